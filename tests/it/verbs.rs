//! A chat's verbs: say, step, complete, cancel.

use std::sync::Arc;

use askback::provider::scripted::{Scripted, Step};
use askback::provider::{Entry, Turn};
use askback::{
    Askback, By, Chat, ChatState, ErrorKind, Outcome, Pool, ResultKind, Role, Settled, Setup, Tool, ToolContext,
    ToolResult, Verb,
};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::tools::{Exchange, Free, Nothing, Pay, Refund, answer, finish, note, open, park, results};
use crate::support::{TestDb, calls, calls_then_done};
use crate::tests;

tests![
    a_text_is_refused_while_calls_are_unanswered,
    a_text_that_no_row_could_keep_is_refused,
    a_text_waits_for_the_answer_to_the_last_one,
    a_chat_goes_one_step_at_a_time,
    a_chat_that_runs_says_so,
    a_parked_chat_is_cancelled_and_takes_the_next_text,
    a_text_that_nobody_has_answered_is_cancelled,
    a_cancel_stops_a_model_that_is_being_asked,
    a_cancel_stops_a_tool_that_runs,
    a_cancel_does_not_touch_what_comes_after,
];

fn lab(db: &TestDb, model: &Scripted, add: impl Fn(Setup, Pool) -> Setup + Send + Sync + 'static) -> Askback {
    let (model, pool) = (model.clone(), db.pool.clone());
    db.lab(move || add(Setup::new(model.clone()), pool.clone()))
}

/// How many rows a chat has, in messages and calls, and its own row but for the time it was read.
async fn rows(db: &TestDb, chat: &Chat) -> String {
    let mut transcript = chat.transcript(&db.pool).await.unwrap();
    transcript.chat.read_at = transcript.chat.created_at;
    format!("{transcript:?}")
}

// Q13, case CD1
async fn a_text_is_refused_while_calls_are_unanswered(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund"), ("2", "free"), ("3", "exchange")]));
    let askback =
        lab(&db, &model, |setup, pool| setup.tool(Refund(pool.clone())).tool(Free(pool.clone())).tool(Exchange(pool)));
    let chat = db.chat(&askback).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Ready);
    let refused = async |names: &[&str], not: &[&str]| {
        let before = rows(&db, &chat).await;
        for error in
            [chat.say(&db.pool, "hello?").await.unwrap_err(), chat.say_and_complete("hello?").await.unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::PendingToolCalls, "{error}");
            let text = error.to_string();
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
            assert!(!not.iter().any(|name| text.contains(name)), "{text}");
        }
        assert_eq!(rows(&db, &chat).await, before);
    };
    // Calls that nobody has run yet, then calls that wait, then calls that were answered and not carried on.
    refused(&["refund", "free", "exchange"], &[]).await;
    let questions = park(&db, &chat).await;
    refused(&["refund", "exchange"], &["free"]).await;
    for (question, value) in questions.iter().zip([json!(true), json!("S"), json!("none")]) {
        answer(&db, &chat, question, value).await;
    }
    refused(&["refund", "exchange"], &["free"]).await;
    finish(&chat).await;
    // Never was a call in a request without its result.
    for request in model.requests() {
        for entry in request.history {
            let Entry::Turn { calls, .. } = entry else { continue };
            assert!(calls.iter().all(|call| !call.result.is_empty()));
        }
    }
    model.assert_asked(2);
    chat.say(&db.pool, "hello?").await.unwrap();
}

// Q13, case CH1
async fn a_text_that_no_row_could_keep_is_refused(db: TestDb) {
    let model = calls_then_done(Turn::text("hm"));
    let askback = lab(&db, &model, |setup, _| setup);
    let chat = askback.start(&db.pool, &crate::support::Lab {}, "carl").await.unwrap();
    let before = rows(&db, &chat).await;
    let long = "x".repeat(askback::MAX_TEXT_BYTES + 1);
    for (text, why) in [("", "blank"), (" \n\t\u{3000}", "blank"), ("a\0b", "NUL"), (&long, "at most 4194304")] {
        let error = chat.say(&db.pool, text).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        let error = chat.say_and_complete(text).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(rows(&db, &chat).await, before);
    assert!(chat.is_complete(&db.pool).await.unwrap());
    model.assert_asked(0);
    // The longest text is taken, and comes back as it was.
    assert_eq!(chat.say_and_complete(&long[1..]).await.unwrap(), Outcome::Done);
    assert!(chat.transcript(&db.pool).await.unwrap().messages[0].content == long[1..]);
}

// Q13, Q14
async fn a_text_waits_for_the_answer_to_the_last_one(db: TestDb) {
    let model = calls_then_done(calls([("1", "free")]));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Free(pool)));
    let chat = db.chat(&askback).await;
    let before = rows(&db, &chat).await;
    let error = chat.say(&db.pool, "and?").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Busy, true), "{error}");
    assert_eq!(rows(&db, &chat).await, before);
    finish(&chat).await;
    assert_eq!(chat.say_and_complete("and?").await.unwrap(), Outcome::Done);
    let roles: Vec<_> = chat.transcript(&db.pool).await.unwrap().messages.iter().map(|m| m.role).collect();
    let (user, assistant) = (Role::User, Role::Assistant);
    assert_eq!(roles, [user, assistant, assistant, user, assistant, assistant]);
    assert_eq!(chat.row(&db.pool).await.unwrap().generation, 2);
}

// Q14
async fn a_chat_goes_one_step_at_a_time(db: TestDb) {
    let model = Scripted::new([calls([("1", "free"), ("2", "refund")]), calls([("3", "free")]), Turn::text("done")]);
    let askback = lab(&db, &model, |setup, pool| setup.tool(Free(pool.clone())).tool(Refund(pool)));
    let chat = askback.start(&db.pool, &crate::support::Lab {}, "carl").await.unwrap();
    let now = async |complete: bool, waiting: bool, asked: usize, ran: i64| {
        assert_eq!(chat.is_complete(&db.pool).await.unwrap(), complete);
        assert_eq!(chat.is_waiting(&db.pool).await.unwrap(), waiting);
        assert!(!chat.is_running(&db.pool).await.unwrap());
        assert_eq!((model.requests().len(), db.ledger().await), (asked, ran));
    };
    // Nobody has said anything.
    assert_eq!(chat.step().await.unwrap(), Outcome::Done);
    now(true, false, 0, 0).await;
    chat.say(&db.pool, "please").await.unwrap();
    now(false, false, 0, 0).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Ready);
    now(false, false, 1, 0).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Waiting);
    now(false, true, 1, 1).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Waiting);
    now(false, true, 1, 1).await;
    answer(&db, &chat, &open(&db, &chat).await[0], true).await;
    now(false, false, 1, 1).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Ready);
    now(false, false, 1, 2).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Ready);
    now(false, false, 2, 2).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Ready);
    now(false, false, 2, 3).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Done);
    now(true, false, 3, 3).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Done);
    now(true, false, 3, 3).await;
}

/// A model that says when it is asked, and answers when it may.
fn held(then: impl Into<Step>) -> (Step, Arc<Semaphore>, Arc<Semaphore>) {
    let (asked, may) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (a, m) = (asked.clone(), may.clone());
    let step = then.into().when(move || {
        a.add_permits(1);
        async move { m.acquire().await.unwrap().forget() }
    });
    (step, asked, may)
}

// Q14, Q15
async fn a_chat_that_runs_says_so(db: TestDb) {
    let (step, asked, may) = held(Turn::text("done"));
    let model = Scripted::new([step]);
    let askback = lab(&db, &model, |setup, _| setup);
    let chat = db.chat(&askback).await;
    let driver = chat.clone();
    let driven = tokio::spawn(async move { driver.complete().await });
    asked.acquire().await.unwrap().forget();
    assert!(chat.is_running(&db.pool).await.unwrap());
    assert!(!chat.is_complete(&db.pool).await.unwrap());
    assert_eq!(chat.complete().await.unwrap(), Outcome::Busy);
    assert_eq!(chat.step().await.unwrap(), Outcome::Busy);
    let error = chat.say(&db.pool, "and?").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    may.add_permits(1);
    assert_eq!(driven.await.unwrap().unwrap(), Outcome::Done);
    assert!(!chat.is_running(&db.pool).await.unwrap());
    model.assert_asked(1);
}

// Q17, case CB5
async fn a_parked_chat_is_cancelled_and_takes_the_next_text(db: TestDb) {
    let turn = Turn::default().call("1", "refund", "{}").call("2", "free", "{}").call("3", "pay", r#"{"amount":500}"#);
    let model = Scripted::new([turn, Turn::text("as you like")]);
    let askback =
        lab(&db, &model, |setup, pool| setup.tool(Refund(pool.clone())).tool(Free(pool.clone())).tool(Pay(pool)));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions.len(), 2);
    // A handle that knows no agent will do.
    let there = db.askback().chat(chat.id());
    there.cancel(&db.pool).await.unwrap();
    there.cancel(&db.pool).await.unwrap();
    assert_eq!(open(&db, &chat).await, []);
    let cancelled = r#"{"error":"cancelled by user"}"#;
    assert_eq!(results(&db, &chat).await, [cancelled, r#""free""#, cancelled]);
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    let kinds: Vec<_> = calls.iter().map(|call| call.result_kind.unwrap()).collect();
    assert_eq!(kinds, [ResultKind::Cancelled, ResultKind::Value, ResultKind::Cancelled]);
    let decisions = chat.decisions(&db.pool).await.unwrap();
    assert_eq!(decisions.len(), 2);
    assert!(
        decisions.iter().all(|d| d.verb == Verb::Cancel && d.by.to_string() == "askback (cancelled)"),
        "{decisions:?}"
    );
    // Whoever answers now is told so, and nothing runs.
    for question in &questions {
        match chat.answer(&db.pool, &question.id, true, By::person("ann")).await.unwrap() {
            Settled::Already(decision) => assert_eq!(decision.verb, Verb::Cancel),
            settled => assert_eq!(settled, Settled::Closed),
        }
    }
    assert_eq!(chat.complete().await.unwrap(), Outcome::Cancelled);
    assert_eq!(db.ledger().await, 1);
    model.assert_asked(1);
    assert_eq!(chat.say_and_complete("something else").await.unwrap(), Outcome::Done);
    let requests = model.requests();
    let [Entry::User { .. }, Entry::Turn { calls, .. }, Entry::User { text }] = &requests[1].history[..] else {
        panic!("{requests:?}")
    };
    assert_eq!(text, "something else");
    assert_eq!(calls.iter().map(|call| call.result.as_str()).collect::<Vec<_>>(), [cancelled, r#""free""#, cancelled]);
}

// Q17
async fn a_text_that_nobody_has_answered_is_cancelled(db: TestDb) {
    let model = Scripted::new([Turn::text("hello")]);
    let askback = lab(&db, &model, |setup, _| setup);
    let chat = db.chat(&askback).await;
    chat.cancel(&db.pool).await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Cancelled);
    assert_eq!(chat.row(&db.pool).await.unwrap().state, ChatState::Idle);
    model.assert_asked(0);
    assert_eq!(chat.say_and_complete("hello?").await.unwrap(), Outcome::Done);
    assert_eq!(model.requests()[0].history.len(), 2);
}

// Q17
async fn a_cancel_stops_a_model_that_is_being_asked(db: TestDb) {
    let (step, asked, _never) = held(calls([("1", "free")]));
    let model = Scripted::new([step]);
    let askback = lab(&db, &model, |setup, pool| setup.tool(Free(pool)));
    let chat = db.chat(&askback).await;
    let driver = chat.clone();
    let driven = tokio::spawn(async move { driver.complete().await });
    asked.acquire().await.unwrap().forget();
    chat.cancel(&db.pool).await.unwrap();
    assert_eq!(driven.await.unwrap().unwrap(), Outcome::Cancelled);
    let transcript = chat.transcript(&db.pool).await.unwrap();
    assert_eq!((transcript.messages.len(), transcript.calls.len()), (1, 0));
    assert_eq!((transcript.chat.state, transcript.chat.failures), (ChatState::Idle, 0));
    model.push(Turn::text("done"));
    assert_eq!(chat.say_and_complete("something else").await.unwrap(), Outcome::Done);
    assert_eq!(db.ledger().await, 0);
}

/// Notes that it began, tells the test, and never ends; tells the test when it is stopped.
struct Endless(Pool, Arc<Semaphore>, Arc<Semaphore>);
struct Stopped(Arc<Semaphore>);
impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}
impl Tool for Endless {
    const NAME: &str = "endless";
    const DESCRIPTION: &str = "Never ends";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<bool> {
        note(&self.0, &ctx, "began").await?;
        let _stopped = Stopped(self.2.clone());
        self.1.add_permits(1);
        std::future::pending::<()>().await;
        note(&self.0, &ctx, "ended").await?;
        Ok(true)
    }
}

// Q17
async fn a_cancel_stops_a_tool_that_runs(db: TestDb) {
    let model = Scripted::new([calls([("1", "free"), ("2", "endless"), ("3", "refund")]), Turn::text("as you like")]);
    let (began, stopped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (b, s) = (began.clone(), stopped.clone());
    let askback = lab(&db, &model, move |setup, pool| {
        setup.tool(Free(pool.clone())).tool(Refund(pool.clone())).tool(Endless(pool, b.clone(), s.clone()))
    });
    let chat = db.chat(&askback).await;
    let driver = chat.clone();
    let driven = tokio::spawn(async move { driver.complete().await });
    began.acquire().await.unwrap().forget();
    let there = db.askback().chat(chat.id());
    there.cancel(&db.pool).await.unwrap();
    assert_eq!(driven.await.unwrap().unwrap(), Outcome::Cancelled);
    stopped.acquire().await.unwrap().forget();
    let cancelled = r#"{"error":"cancelled by user"}"#;
    let now = results(&db, &chat).await;
    assert_eq!(now[1..], [cancelled, cancelled]);
    assert_eq!(db.count("select count(*) from ledger where what = 'ended'").await, 0);
    assert_eq!(open(&db, &chat).await, []);
    assert_eq!(chat.say_and_complete("something else").await.unwrap(), Outcome::Done);
    model.assert_asked(2);
}

// Q17
async fn a_cancel_does_not_touch_what_comes_after(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund")]));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Refund(pool)));
    let chat = db.chat(&askback).await;
    park(&db, &chat).await;
    chat.cancel(&db.pool).await.unwrap();
    chat.say(&db.pool, "again").await.unwrap();
    let questions = park(&db, &chat).await;
    assert_eq!(questions.len(), 1);
    answer(&db, &chat, &questions[0], true).await;
    finish(&chat).await;
    assert_eq!(db.ledger().await, 1);
    // A finished chat has nothing to cancel, and goes on.
    chat.cancel(&db.pool).await.unwrap();
    chat.say(&db.pool, "once more").await.unwrap();
    assert_eq!(park(&db, &chat).await.len(), 1);
    let row = chat.row(&db.pool).await.unwrap();
    assert_eq!((row.generation, row.cancel_generation), (3, Some(2)));
}
