//! Settling: every verdict, the app's own transaction, and races.

use std::sync::Arc;
use std::time::Duration;

use askback::{
    Askback, By, Chat, ErrorKind, Outcome, Pool, Question, QuestionId, Settled, Setup, TestClock, Tool, ToolCallId,
    ToolContext, ToolResult, Verb, choice, confirm, text,
};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::tools::{Exchange, Free, Nothing, Pay, Refund};
use crate::support::{Backend, TestDb, calls, calls_then_done, connect};
use crate::tests;

tests![
    an_answer_is_checked_before_anything_is_written,
    the_first_decision_wins_and_the_others_are_told,
    the_same_key_is_recorded_again,
    an_old_page_is_shown_the_new_question,
    a_question_may_name_who_answers,
    an_expired_question_takes_its_default,
    a_decline_closes_the_other_questions_of_its_call,
    a_question_of_another_chat_is_not_found,
    the_apps_transaction_decides,
    a_dead_transaction_of_the_apps_says_so,
    a_row_that_stays_locked_is_busy,
    fifty_settlers_have_one_winner,
    two_last_answers_at_once_leave_no_chat_behind,
    declining_a_running_call_is_refused,
];

/// A chat that waits for the questions of these tools.
async fn parked(db: &TestDb, tools: &[(&str, &str)]) -> (Askback, Chat, Vec<Question>) {
    let model = calls_then_done(calls(tools.iter().copied()));
    let pool = db.pool.clone();
    let askback = db.lab(move || {
        Setup::new(model.clone())
            .tool(Refund(pool.clone()))
            .tool(Exchange(pool.clone()))
            .tool(Free(pool.clone()))
            .tool(Timed)
            .tool(Restricted)
    });
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    let questions = chat.pending_questions(&db.pool).await.unwrap();
    (askback, chat, questions)
}

struct Timed;
impl Tool for Timed {
    const NAME: &str = "timed";
    const DESCRIPTION: &str = "Asks for a while";
    type Args = Nothing;
    type Output = Value;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<Value> {
        let colour = choice::<String>("Which colour?", ["red", "blue"]);
        let colour = ctx.ask(colour.expires_in(Duration::from_secs(60)).default_answer("blue"));
        let sure = ctx.ask(text("Why?").expires_in(Duration::from_secs(3600)).default_answer("no reason"));
        Ok(json!([colour?, sure?]))
    }
}

struct Restricted;
impl Tool for Restricted {
    const NAME: &str = "restricted";
    const DESCRIPTION: &str = "Asks the boss";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<bool> {
        ctx.ask(confirm("Really?").may_person("eve").may_role("boss"))?;
        Ok(true)
    }
}

// Q6, A3, A34, case CE5, case CB11
async fn an_answer_is_checked_before_anything_is_written(db: TestDb) {
    let (_, chat, questions) = parked(&db, &[("1", "refund"), ("2", "exchange")]).await;
    let before = db.count("select count(*) from askback_decisions").await;
    let [confirm, size, wish] = questions.as_slice() else { panic!("{questions:?}") };
    let long = "x".repeat(askback::MAX_ANSWER_BYTES);
    let wrong: Vec<(&QuestionId, Value, &str)> = vec![
        (&confirm.id, json!(null), "null is no answer"),
        (&confirm.id, json!("true"), "takes true or false"),
        (&confirm.id, json!(1), "takes true or false"),
        (&size.id, json!("XL"), r#"not one of "S", "M""#),
        (&size.id, json!("Small"), "not one of"),
        (&size.id, json!("s"), "not one of"),
        (&size.id, json!(null), "null"),
        (&wish.id, json!({ "output": "x" }), "a text is expected"),
        (&wish.id, json!(["x"]), "a text is expected"),
        (&wish.id, json!(long), "at most 4194304 are taken"),
    ];
    for (id, value, why) in wrong {
        let error = chat.answer(&db.pool, id, value, By::person("ann")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.to_string().contains(&id.to_string()), "{error}");
    }
    // What no database could keep, or nobody could be held to.
    for by in [By::person(" "), By::person("a\0b"), By::person("ann").idempotency_key("k\0")] {
        let error = chat.answer(&db.pool, &wish.id, "x", by).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let error = chat.decline(&db.pool, &wish.id, Some("no\0"), By::person("ann")).await.unwrap_err();
    assert!(error.to_string().contains("NUL"), "{error}");
    let error = chat.approve(&db.pool, &wish.id, By::person("ann")).await.unwrap_err();
    assert!(error.to_string().contains("only approvals"), "{error}");
    assert_eq!(db.count("select count(*) from askback_decisions").await, before);
    assert_eq!(chat.pending_questions(&db.pool).await.unwrap(), questions);
}

// Q4, B3, case CA5
async fn the_first_decision_wins_and_the_others_are_told(db: TestDb) {
    let (_, chat, questions) = parked(&db, &[("1", "refund")]).await;
    let id = &questions[0].id;
    let ann = By::person("ann").via("web").idempotency_key("evt-1");
    assert_eq!(chat.answer(&db.pool, id, true, ann.clone()).await.unwrap(), Settled::Recorded);
    for _ in 0..3 {
        assert_eq!(chat.answer(&db.pool, id, true, ann.clone()).await.unwrap(), Settled::Recorded);
    }
    // Another key, another person, the opposite, something that does not even fit: each is told of the first.
    let ben = || By::person("ben");
    let others = [
        chat.decline(&db.pool, id, Some("never"), By::person("ann").idempotency_key("evt-2")).await.unwrap(),
        chat.answer(&db.pool, id, true, ben()).await.unwrap(),
        chat.answer(&db.pool, id, true, ben().idempotency_key("evt-1")).await.unwrap(),
        chat.answer(&db.pool, id, false, ann).await.unwrap(),
        chat.answer(&db.pool, id, "nonsense", ben()).await.unwrap(),
    ];
    for other in others {
        let Settled::Already(first) = other else { panic!("{other:?}") };
        assert_eq!((first.by.to_string().as_str(), first.verb), ("ann", Verb::Accept));
        assert_eq!((first.value, first.via.as_deref(), first.note), (Some(json!(true)), Some("web"), None));
    }
    assert_eq!(chat.decisions(&db.pool).await.unwrap().len(), 1);
}

// Q4
async fn the_same_key_is_recorded_again(db: TestDb) {
    let (_, chat, questions) = parked(&db, &[("1", "exchange")]).await;
    let by = By::person("ann").idempotency_key("k");
    for _ in 0..2 {
        let settled = chat.answer(&db.pool, &questions[0].id, "S", by.clone()).await.unwrap();
        assert_eq!(settled, Settled::Recorded);
    }
    // The key names one answer, not one question.
    assert_eq!(chat.answer(&db.pool, &questions[1].id, "none", by).await.unwrap(), Settled::Recorded);
}

// B5
async fn an_old_page_is_shown_the_new_question(db: TestDb) {
    let (_, chat, questions) = parked(&db, &[("1", "refund")]).await;
    let question = &questions[0];
    let by = By::person("ann").seen("0123");
    let settled = chat.answer(&db.pool, &question.id, true, by).await.unwrap();
    let Settled::Changed(shown) = settled else { panic!("{settled:?}") };
    assert_eq!(*shown, *question);
    assert_eq!(chat.decisions(&db.pool).await.unwrap(), []);
    let by = By::person("ann").seen(&question.digest);
    assert_eq!(chat.answer(&db.pool, &question.id, true, by).await.unwrap(), Settled::Recorded);
}

// B4
async fn a_question_may_name_who_answers(db: TestDb) {
    let (_, chat, questions) = parked(&db, &[("1", "restricted"), ("2", "restricted")]).await;
    for by in [By::person("ann"), By::person("boss"), By::service("eve"), By::person("ann").role("eve")] {
        let error = chat.answer(&db.pool, &questions[0].id, true, by.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}");
        let error = chat.decline(&db.pool, &questions[0].id, None, by).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}");
    }
    let boss = By::person("ann").role("boss");
    assert_eq!(chat.answer(&db.pool, &questions[0].id, true, boss).await.unwrap(), Settled::Recorded);
    assert_eq!(chat.answer(&db.pool, &questions[1].id, true, By::person("eve")).await.unwrap(), Settled::Recorded);
    // Who may not answer is not told what was decided either.
    let error = chat.answer(&db.pool, &questions[0].id, true, By::person("ben")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAllowed);
    assert!(!error.to_string().contains("ann"), "{error}");
}

// B6, case CB6
async fn an_expired_question_takes_its_default(db: TestDb) {
    let clock = TestClock::new();
    let (askback, chat, questions) = parked(&db, &[("1", "timed"), ("2", "timed")]).await;
    let late = askback.clone().clock(&clock);
    let chat_later = late.chat(chat.id());
    let until = questions[0].expires_at.unwrap() - questions[0].asked_at;
    assert_eq!(until.num_seconds(), 60);
    clock.advance(Duration::from_secs(61));
    // Somebody who answers too late is told so, and the default is recorded in its place.
    let settled = chat_later.answer(&db.pool, &questions[0].id, "red", By::person("ann")).await.unwrap();
    let Settled::Expired(decision) = settled else { panic!("{settled:?}") };
    assert_eq!((decision.by.to_string().as_str(), decision.value.unwrap()), ("askback (expired)", json!("blue")));
    // Nobody comes for the other one: a driver finds it. The third and fourth questions are not due yet.
    assert_eq!(chat_later.complete().await.unwrap(), Outcome::Waiting);
    let open: Vec<_> = chat.pending_questions(&db.pool).await.unwrap().into_iter().map(|q| q.request.prompt).collect();
    assert_eq!(open, ["Why?", "Why?"]);
    assert_eq!(chat_later.complete().await.unwrap(), Outcome::Waiting);
    clock.advance(Duration::from_secs(3600));
    assert_eq!(chat_later.complete().await.unwrap(), Outcome::Done);
    let by: Vec<_> = chat.decisions(&db.pool).await.unwrap().into_iter().map(|d| d.by.to_string()).collect();
    assert_eq!(by, ["askback (expired)"; 4]);
    let transcript = chat.transcript(&db.pool).await.unwrap();
    assert_eq!(transcript.calls[0].result.as_deref(), Some(r#"["blue","no reason"]"#));
}

// Q5, A37, A39
async fn a_decline_closes_the_other_questions_of_its_call(db: TestDb) {
    let (_, chat, questions) = parked(&db, &[("1", "exchange"), ("2", "refund")]).await;
    let by = || By::person("ann");
    assert_eq!(chat.decline(&db.pool, &questions[0].id, Some("too late"), by()).await.unwrap(), Settled::Recorded);
    assert_eq!(chat.answer(&db.pool, &questions[1].id, "x", by()).await.unwrap(), Settled::Closed);
    // A bare false declines any question.
    assert_eq!(chat.answer(&db.pool, &questions[2].id, false, by()).await.unwrap(), Settled::Recorded);
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    let results: Vec<_> =
        chat.transcript(&db.pool).await.unwrap().calls.into_iter().map(|c| c.result.unwrap()).collect();
    assert_eq!(results, [r#"{"error":"declined by user","note":"too late"}"#, r#"{"error":"declined by user"}"#]);
    assert_eq!(db.ledger().await, 0);
    assert_eq!(chat.answer(&db.pool, &questions[1].id, "x", by()).await.unwrap(), Settled::Closed);
}

// Q6, Q3
async fn a_question_of_another_chat_is_not_found(db: TestDb) {
    let (askback, chat, questions) = parked(&db, &[("1", "refund")]).await;
    let other = db.chat(&askback).await;
    let nobody = askback.chat(askback::ChatId::new());
    let call = questions[0].id.call();
    let by = || By::person("ann");
    for (chat, id) in [
        (&other, questions[0].id.clone()),
        (&nobody, questions[0].id.clone()),
        (&chat, QuestionId::from(ToolCallId::new())),
        (&chat, QuestionId::from(call)),
        (&chat, QuestionId::new(call, "size")),
    ] {
        let error = chat.answer(&db.pool, &id, true, by()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains(&id.to_string()), "{error}");
    }
    assert_eq!(nobody.pending_questions(&db.pool).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(nobody.complete().await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(nobody.say(&db.pool, "hello").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(nobody.cancel(&db.pool).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(other.pending_questions(&db.pool).await.unwrap(), []);
    other.complete().await.unwrap();
}

/// Runs the same lines in a transaction of the database at hand.
macro_rules! in_transaction {
    ($db:expr, $tx:ident => $body:block) => {
        match &$db.pool {
            Pool::Postgres(pool) => {
                let mut $tx = pool.begin().await.unwrap();
                $body
            }
            Pool::MySql(pool) => {
                let mut $tx = pool.begin().await.unwrap();
                $body
            }
            Pool::Sqlite(pool) => {
                let mut $tx = pool.begin().await.unwrap();
                $body
            }
            _ => unreachable!(),
        }
    };
}

// Q20, Q4
async fn the_apps_transaction_decides(db: TestDb) {
    let (askback, chat, questions) = parked(&db, &[("1", "refund")]).await;
    let id = &questions[0].id;
    in_transaction!(db, tx => {
        let settled = chat.answer(&mut tx, id, true, By::person("ann")).await.unwrap();
        assert_eq!(settled, Settled::Recorded);
        assert_eq!(chat.pending_questions(&mut tx).await.unwrap(), []);
        tx.rollback().await.unwrap();
    });
    assert_eq!(chat.pending_questions(&db.pool).await.unwrap(), questions);
    assert_eq!(chat.decisions(&db.pool).await.unwrap(), []);
    in_transaction!(db, tx => {
        let new = askback.start(&mut tx, &crate::support::Lab {}, "carl").await.unwrap();
        new.say(&mut *tx, "hello").await.unwrap();
        chat.answer(&mut *tx, id, true, By::person("ben")).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(new.complete().await.unwrap(), Outcome::Waiting);
    });
    assert_eq!(chat.decisions(&db.pool).await.unwrap()[0].by.to_string(), "ben");
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    assert_eq!(db.ledger().await, 1);
}

// Q20
async fn a_dead_transaction_of_the_apps_says_so(db: TestDb) {
    let (_, chat, questions) = parked(&db, &[("1", "refund")]).await;
    let id = &questions[0].id;
    let read = "select count(*) from askback_chats";
    match &db.pool {
        // A snapshot that is older than somebody else's write.
        Pool::Sqlite(pool) => {
            let mut tx = pool.begin().await.unwrap();
            let _: i64 = askback::sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
            db.exec("insert into ledger (call_id, what) values ('x', 'elsewhere')").await;
            let error = chat.answer(&mut tx, id, true, By::person("ann")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Restart, "{error:?}");
        }
        Pool::Postgres(pool) => {
            let mut tx = pool.begin_with("begin isolation level repeatable read").await.unwrap();
            let _: i64 = askback::sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
            chat.answer(&db.pool, id, true, By::person("ben")).await.unwrap();
            let error = chat.answer(&mut tx, id, true, By::person("ann")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Restart, "{error:?}");
        }
        // Under repeatable read the locking reads see the newest rows all the same.
        Pool::MySql(pool) => {
            let mut tx = pool.begin().await.unwrap();
            let _: i64 = askback::sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
            chat.answer(&db.pool, id, true, By::person("ben")).await.unwrap();
            let settled = chat.answer(&mut tx, id, true, By::person("ann")).await.unwrap();
            let Settled::Already(first) = settled else { panic!("{settled:?}") };
            assert_eq!(first.by.to_string(), "ben");
        }
        _ => unreachable!(),
    }
}

// P1, Q20
async fn a_row_that_stays_locked_is_busy(db: TestDb) {
    // Elsewhere the database's own timeout holds.
    if db.backend != Backend::Postgres {
        return;
    }
    let (askback, chat, questions) = parked(&db, &[("1", "refund")]).await;
    let hasty = askback.clone().lock_timeout(Duration::from_millis(50));
    let Pool::Postgres(pool) = &db.pool else { unreachable!() };
    let mut tx = pool.begin().await.unwrap();
    chat.answer(&mut tx, &questions[0].id, true, By::person("ann")).await.unwrap();
    let error = hasty.chat(chat.id()).answer(&db.pool, &questions[0].id, true, By::person("ben")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    assert!(error.is_retryable());
    // The setting was the statement's own.
    let timeout: String = askback::sqlx::query_scalar("show lock_timeout").fetch_one(pool).await.unwrap();
    assert_eq!(timeout, "0");
    tx.commit().await.unwrap();
}

// A24, Q4, case CA1
async fn fifty_settlers_have_one_winner(db: TestDb) {
    let (askback, chat, questions) = parked(&db, &[("1", "refund")]).await;
    let barrier = Arc::new(Barrier::new(50));
    let mut settlers = JoinSet::new();
    let elsewhere = connect(&db.url, 12).await;
    for n in 0..50 {
        let (chat, barrier, id) = (askback.chat(chat.id()), barrier.clone(), questions[0].id.clone());
        let pool = if n % 2 == 0 { db.pool.clone() } else { elsewhere.clone() };
        settlers.spawn(async move {
            barrier.wait().await;
            let settled = chat.answer(&pool, &id, true, By::person(format!("person {n}"))).await.unwrap();
            chat.complete().await.unwrap();
            settled
        });
    }
    let settled = settlers.join_all().await;
    let winners = settled.iter().filter(|settled| **settled == Settled::Recorded).count();
    assert_eq!(winners, 1, "{settled:?}");
    let first = &chat.decisions(&db.pool).await.unwrap()[0];
    for loser in settled.iter().filter(|settled| **settled != Settled::Recorded) {
        let Settled::Already(told) = loser else { panic!("{loser:?}") };
        assert_eq!((&told.by, told.at), (&first.by, first.at));
    }
    // A drive that found another at work may have ended before it.
    chat.complete().await.unwrap();
    assert!(chat.is_complete(&db.pool).await.unwrap());
    assert_eq!(db.ledger().await, 1);
}

// Q10
async fn two_last_answers_at_once_leave_no_chat_behind(db: TestDb) {
    const ROUNDS: usize = 200;
    let model = calls_then_done(calls([("1", "exchange")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Exchange(pool.clone())));
    let mut rounds = JoinSet::new();
    for round in 0..ROUNDS {
        let (askback, db) = (askback.clone(), db.clone());
        rounds.spawn(async move {
            let chat = db.chat(&askback).await;
            assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
            let questions = chat.pending_questions(&db.pool).await.unwrap();
            let barrier = Barrier::new(2);
            let answer = async |id: &QuestionId, value: &str| {
                barrier.wait().await;
                chat.answer(&db.pool, id, value, By::person("ann")).await.unwrap()
            };
            let (one, two) = tokio::join!(answer(&questions[0].id, "S"), answer(&questions[1].id, "none"));
            assert_eq!((one, two), (Settled::Recorded, Settled::Recorded), "round {round}");
            chat
        });
        if rounds.len() >= 6 {
            let chat: Chat = rounds.join_next().await.unwrap().unwrap();
            assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
        }
    }
    for chat in rounds.join_all().await {
        assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    }
    assert_eq!(db.ledger().await, ROUNDS as i64);
    assert_eq!(db.count("select count(*) from askback_decisions").await, 2 * ROUNDS as i64);
}

// Q9
async fn declining_a_running_call_is_refused(db: TestDb) {
    let model = calls_then_done(askback::provider::Turn::default().call("1", "pay", r#"{"amount":500}"#));
    let started = Arc::new(tokio::sync::Semaphore::new(0));
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let (pool, s, g) = (db.pool.clone(), started.clone(), go_on.clone());
    let askback = db.lab(move || {
        Setup::new(model.clone())
            .requires_approval(["held", "unheard of"])
            .tool(Pay(pool.clone()))
            .tool(Held(s.clone(), g.clone()))
    });
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    let id = chat.pending_questions(&db.pool).await.unwrap()[0].id.clone();
    chat.approve(&db.pool, &id, By::person("ann")).await.unwrap();
    // Approved and not yet running: the decision stands, and a decline is told so.
    let settled = chat.decline(&db.pool, &id, None, By::person("ben")).await.unwrap();
    assert!(matches!(settled, Settled::Already(_)), "{settled:?}");
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);

    let model = calls_then_done(calls([("1", "held")]));
    let (s, g) = (started.clone(), go_on.clone());
    let askback =
        db.lab(move || Setup::new(model.clone()).requires_approval(["held"]).tool(Held(s.clone(), g.clone())));
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    let id = chat.pending_questions(&db.pool).await.unwrap()[0].id.clone();
    chat.approve(&db.pool, &id, By::person("ann")).await.unwrap();
    let driver = chat.clone();
    let driven = tokio::spawn(async move { driver.complete().await });
    started.acquire().await.unwrap().forget();
    let error = chat.decline(&db.pool, &id, None, By::person("ben")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ToolCallRunning, "{error}");
    go_on.add_permits(1);
    assert_eq!(driven.await.unwrap().unwrap(), Outcome::Done);
}

/// Says that it has started, and waits until it may go on.
struct Held(Arc<tokio::sync::Semaphore>, Arc<tokio::sync::Semaphore>);
impl Tool for Held {
    const NAME: &str = "held";
    const DESCRIPTION: &str = "Waits";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<bool> {
        self.0.add_permits(1);
        self.1.acquire().await?.forget();
        Ok(true)
    }
}
