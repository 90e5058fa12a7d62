//! What holds where two things meet: cancels and parks, deliveries and rounds, plain connections, transactions of tools.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use askback::{
    Askback, By, Chat, ChatId, Conn, ErrorKind, Outcome, Pool, ResultKind, Settled, Setup, Start, Tool, ToolCallId,
    ToolContext, ToolResult, TransactionalTool, Worker, choice, confirm, input_answer, sqlx, text,
};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;

use crate::support::tools::{Amount, Exchange, Free, Nothing, Refund, note};
use crate::support::{Backend, Lab, TestDb, calls, calls_then_done};
use crate::tests;

tests![
    a_plain_connection_is_as_good_as_a_pool,
    a_cancel_before_the_park_is_not_lost,
    a_delivery_that_comes_again_settles_no_later_question,
    a_wake_up_while_a_drive_ends_is_followed,
    who_may_not_answer_learns_nothing_of_the_question,
    who_confirms_an_edited_call_is_shown_what_will_run,
    a_transactional_tool_and_its_result_commit_together,
    a_transactional_tool_that_is_cut_off_has_done_nothing,
    a_tool_beyond_its_time_is_unfinished,
    code_below_a_tool_reads_the_answer_of_its_own_call_only,
];

// Q20, Q10, Q4
async fn a_plain_connection_is_as_good_as_a_pool(db: TestDb) {
    let model = calls_then_done(calls([("1", "exchange")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Exchange(pool.clone())));
    for round in 0..25 {
        let chat = db.chat(&askback).await;
        assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
        let questions = chat.pending_questions(&db.pool).await.unwrap();
        let barrier = Arc::new(Barrier::new(4));
        let mut answers = JoinSet::new();
        for (n, value) in [(0, "S"), (0, "M"), (1, "x"), (1, "y")] {
            let (db, chat, barrier, id) = (db.clone(), chat.clone(), barrier.clone(), questions[n].id.clone());
            answers.spawn(async move {
                let by = By::person(value);
                // Taken out of the pool, with no transaction open.
                let settled = match &db.pool {
                    Pool::Postgres(pool) => {
                        let mut conn = pool.acquire().await.unwrap();
                        barrier.wait().await;
                        chat.answer(&mut conn, &id, value, by).await
                    }
                    Pool::MySql(pool) => {
                        let mut conn = pool.acquire().await.unwrap();
                        barrier.wait().await;
                        chat.answer(&mut conn, &id, value, by).await
                    }
                    Pool::Sqlite(pool) => {
                        let mut conn = pool.acquire().await.unwrap();
                        barrier.wait().await;
                        chat.answer(&mut conn, &id, value, by).await
                    }
                    _ => unreachable!(),
                };
                (n, settled.unwrap())
            });
        }
        let settled = answers.join_all().await;
        for n in [0, 1] {
            let won = settled.iter().filter(|(of, settled)| *of == n && *settled == Settled::Recorded).count();
            assert_eq!(won, 1, "round {round}: {settled:?}");
        }
        let mut audit = chat.decisions(&db.pool).await.unwrap();
        let mut on_call = chat.transcript(&db.pool).await.unwrap().calls[0].decisions();
        audit.sort_by_key(|decision| decision.question.clone());
        on_call.sort_by_key(|decision| decision.question.clone());
        assert_eq!(audit, on_call, "round {round}");
        assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    }
}

/// Cancels its own chat through another handle, as another process would, and then asks.
struct CancelledMeanwhile(Chat, Pool);
impl Tool for CancelledMeanwhile {
    const NAME: &str = "meanwhile";
    const DESCRIPTION: &str = "Is cancelled, then asks";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<bool> {
        self.0.cancel(&self.1).await?;
        ctx.ask(confirm("Too late?"))?;
        Ok(true)
    }
}

// Q17
async fn a_cancel_before_the_park_is_not_lost(db: TestDb) {
    let id = ChatId::new();
    let elsewhere = Askback::new(db.pool.clone()).chat(id);
    let (pool, model) = (db.pool.clone(), calls_then_done(calls([("1", "meanwhile")])));
    let askback = db
        .lab(move || Setup::new(model.clone()).tool(CancelledMeanwhile(elsewhere.clone(), pool.clone())))
        // So long that the driver does not learn of the cancel by renewing.
        .lease(Duration::from_secs(600));
    let chat = askback.start_with(&db.pool, &Lab {}, "carl", Start::new().id(id)).await.unwrap();
    chat.say(&db.pool, "please").await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Cancelled);
    assert_eq!(chat.pending_questions(&db.pool).await.unwrap(), []);
    chat.say(&db.pool, "next").await.unwrap();
    chat.cancel(&db.pool).await.unwrap();
}

/// Asks twice under one key.
struct Reasks(Pool);
impl Tool for Reasks {
    const NAME: &str = "reasks";
    const DESCRIPTION: &str = "Asks for little, then for much";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<bool> {
        let much = ctx.answer("pay").is_some();
        let prompt = if much { "Pay 10000?" } else { "Pay 10?" };
        // Other options, so that the answer to the first does not count for the second.
        let options = if much { ["yes", "never"] } else { ["yes", "no"] };
        ctx.ask(choice::<String>(prompt, options).key("pay"))?;
        note(&self.0, &ctx, prompt).await?;
        Ok(true)
    }
}

// Q4, B5, case CA5
async fn a_delivery_that_comes_again_settles_no_later_question(db: TestDb) {
    let model = calls_then_done(calls([("1", "reasks")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Reasks(pool.clone())));
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    let id = chat.pending_questions(&db.pool).await.unwrap()[0].id.clone();
    let by = || By::person("ann").idempotency_key("evt-1");
    assert_eq!(chat.answer(&db.pool, &id, "yes", by()).await.unwrap(), Settled::Recorded);
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    // The same words, for another question of the same id.
    assert_eq!(chat.answer(&db.pool, &id, "yes", by()).await.unwrap(), Settled::Recorded);
    let open = chat.pending_questions(&db.pool).await.unwrap();
    assert_eq!((open.len(), open[0].request.prompt.as_str()), (1, "Pay 10000?"));
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    assert_eq!(db.ledger().await, 0);
}

// B10, case CB8
async fn a_wake_up_while_a_drive_ends_is_followed(db: TestDb) {
    const CHATS: usize = 1000;
    let model = calls_then_done(calls([("1", "refund"), ("2", "free")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(pool.clone())).tool(Free(pool.clone())));
    let stop = Arc::new(Semaphore::new(0));
    let (stopped, working) = (stop.clone(), askback.clone());
    let worker = tokio::spawn(async move {
        // It never looks by itself: every chat depends on its wake-ups.
        let worker = Worker::new(working).poll_every(Duration::from_secs(3600));
        worker.run_until(async { drop(stopped.acquire().await) }).await
    });
    // On PostgreSQL the answers come from another handle, whose wake-ups go through the server.
    let elsewhere = if db.backend == Backend::Postgres { db.askback() } else { askback.clone() };
    let mut chats = JoinSet::new();
    for _ in 0..CHATS {
        let (db, askback, elsewhere) = (db.clone(), askback.clone(), elsewhere.clone());
        chats.spawn(async move {
            let chat = db.chat(&askback).await;
            let answering = elsewhere.chat(chat.id());
            loop {
                if let Some(question) = answering.pending_questions(&db.pool).await.unwrap().first() {
                    let settled = answering.answer(&db.pool, &question.id, true, By::person("ann")).await.unwrap();
                    assert_eq!(settled, Settled::Recorded);
                    break;
                }
                tokio::task::yield_now().await;
            }
            while !chat.is_complete(&db.pool).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        if chats.len() >= 8 {
            chats.join_next().await.unwrap().unwrap();
        }
    }
    chats.join_all().await;
    stop.close();
    worker.await.unwrap().unwrap();
    assert_eq!(db.ledger().await, 2 * CHATS as i64);
}

/// Asks the boss to choose from what is nobody else's business.
struct Confidential;
impl Tool for Confidential {
    const NAME: &str = "confidential";
    const DESCRIPTION: &str = "Asks the boss";
    type Args = Nothing;
    type Output = String;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<String> {
        Ok(ctx.ask(choice::<String>("Sell to whom?", ["ACME", "Initech"]).may_role("boss"))?)
    }
}

// B4
async fn who_may_not_answer_learns_nothing_of_the_question(db: TestDb) {
    let model = calls_then_done(calls([("1", "confidential")]));
    let askback = db.lab(move || Setup::new(model.clone()).tool(Confidential));
    let chat = db.chat(&askback).await;
    chat.complete().await.unwrap();
    let id = chat.pending_questions(&db.pool).await.unwrap()[0].id.clone();
    let error = chat.answer(&db.pool, &id, "guess", By::person("ann")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAllowed);
    assert!(!error.to_string().contains("ACME"), "{error}");
}

/// Asks again although it was approved.
struct Sure;
impl Tool for Sure {
    const NAME: &str = "sure";
    const DESCRIPTION: &str = "Asks twice";
    type Args = Amount;
    type Output = i64;
    async fn call(&self, ctx: ToolContext, args: Amount) -> ToolResult<i64> {
        ctx.ask(confirm("Sure?"))?;
        Ok(args.amount)
    }
}

// B5, Q2
async fn who_confirms_an_edited_call_is_shown_what_will_run(db: TestDb) {
    let model = calls_then_done(askback::provider::Turn::default().call("1", "sure", r#"{"amount":5}"#));
    let askback = db.lab(move || Setup::new(model.clone()).tool(Sure).requires_approval(["sure"]));
    let chat = db.chat(&askback).await;
    chat.complete().await.unwrap();
    let gate = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    assert_eq!(gate.request.arguments, Some(serde_json::json!({ "amount": 5 })));
    let edited = serde_json::json!({ "amount": 5000 });
    chat.approve_edited(&db.pool, &gate.id, edited.clone(), By::person("ann")).await.unwrap();
    chat.complete().await.unwrap();
    let sure = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    assert_eq!(sure.request.arguments, Some(edited));
    chat.answer(&db.pool, &sure.id, true, By::person("eve")).await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
}

/// Writes on the connection of its result; how often it began, and what it does after its write.
struct Books(Arc<AtomicUsize>, fn(&ToolContext) -> ToolResult<()>);
impl TransactionalTool for Books {
    const NAME: &str = "books";
    const DESCRIPTION: &str = "Books";
    const TIME_LIMIT: Duration = Duration::from_secs(5);
    type Args = Nothing;
    type Output = i64;
    async fn call(&self, ctx: ToolContext, _: Nothing, conn: &mut Conn<'_>) -> ToolResult<i64> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let sql =
            sqlx::AssertSqlSafe(format!("insert into ledger (call_id, what) values ('{}', 'booked')", ctx.call_id()));
        let _rows = match conn {
            Conn::Postgres(conn) => sqlx::query(sql).execute(&mut **conn).await?.rows_affected(),
            Conn::MySql(conn) => sqlx::query(sql).execute(&mut **conn).await?.rows_affected(),
            Conn::Sqlite(conn) => sqlx::query(sql).execute(&mut **conn).await?.rows_affected(),
            _ => unreachable!(),
        };
        (self.1)(&ctx)?;
        Ok(7)
    }
}

// B9
async fn a_transactional_tool_and_its_result_commit_together(db: TestDb) {
    let began = Arc::new(AtomicUsize::new(0));
    let run = async |after: fn(&ToolContext) -> ToolResult<()>| {
        let model = calls_then_done(calls([("1", "books")]));
        let began = began.clone();
        let askback = db.lab(move || Setup::new(model.clone()).transactional_tool(Books(began.clone(), after)));
        let chat = db.chat(&askback).await;
        let outcome = chat.complete().await.unwrap();
        (chat, outcome)
    };
    let (chat, outcome) = run(|_| Ok(())).await;
    assert_eq!(outcome, Outcome::Done);
    let call = chat.transcript(&db.pool).await.unwrap().calls.remove(0);
    assert_eq!((call.result.as_deref(), call.result_kind), (Some("7"), Some(ResultKind::Value)));
    assert_eq!(db.ledger().await, 1);
    // An error undoes what it wrote.
    let (chat, outcome) = run(|_| Err("no funds".into())).await;
    assert_eq!(outcome, Outcome::Done);
    let call = chat.transcript(&db.pool).await.unwrap().calls.remove(0);
    assert_eq!(call.result.as_deref(), Some(r#"{"error":"no funds"}"#));
    assert_eq!(db.ledger().await, 1);
    // So does a question; with the answer it works once.
    let (chat, outcome) = run(|ctx| Ok(ctx.ask(confirm("Book?"))?)).await;
    assert_eq!(outcome, Outcome::Waiting);
    assert_eq!(db.ledger().await, 1);
    let id = chat.pending_questions(&db.pool).await.unwrap()[0].id.clone();
    chat.answer(&db.pool, &id, true, By::person("ann")).await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    assert_eq!((db.ledger().await, began.load(Ordering::SeqCst)), (2, 4));
}

/// Writes, and never ends.
struct Stuck;
impl TransactionalTool for Stuck {
    const NAME: &str = "stuck";
    const DESCRIPTION: &str = "Writes and never ends";
    const TIME_LIMIT: Duration = Duration::from_millis(200);
    type Args = Nothing;
    type Output = i64;
    async fn call(&self, ctx: ToolContext, _: Nothing, conn: &mut Conn<'_>) -> ToolResult<i64> {
        Books(Arc::default(), |_| Ok(())).call(ctx, Nothing {}, conn).await?;
        std::future::pending().await
    }
}

// B9
async fn a_transactional_tool_that_is_cut_off_has_done_nothing(db: TestDb) {
    let model = calls_then_done(calls([("1", "stuck")]));
    let askback = db.lab(move || Setup::new(model.clone()).transactional_tool(Stuck));
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    let call = chat.transcript(&db.pool).await.unwrap().calls.remove(0);
    assert_eq!(call.result_kind, Some(ResultKind::Error));
    assert!(call.result.unwrap().contains("did not end within 200ms and was undone"));
    assert_eq!(db.ledger().await, 0);
}

/// Never ends by itself.
struct Dawdles;
impl Tool for Dawdles {
    const NAME: &str = "dawdles";
    const DESCRIPTION: &str = "Never ends";
    const TIME_LIMIT: Option<Duration> = Some(Duration::from_millis(100));
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<bool> {
        std::future::pending().await
    }
}

// B8
async fn a_tool_beyond_its_time_is_unfinished(db: TestDb) {
    let model = calls_then_done(calls([("1", "dawdles"), ("2", "free")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Dawdles).tool(Free(pool.clone())));
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    assert_eq!(calls[0].result_kind, Some(ResultKind::Unfinished));
    assert!(calls[0].result.as_deref().unwrap().contains("may or may not have done its work"));
    assert_eq!(calls[1].result_kind, Some(ResultKind::Value));
}

/// Asks, and has code below it read the answer.
struct Below(Arc<std::sync::Mutex<Vec<String>>>);
impl Tool for Below {
    const NAME: &str = "below";
    const DESCRIPTION: &str = "Reads below";
    type Args = Nothing;
    type Output = String;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<String> {
        async fn below(call: ToolCallId) -> String {
            tokio::task::yield_now().await;
            let other = input_answer(ToolCallId::new());
            let spawned = tokio::spawn(async move { input_answer(call) }).await.unwrap();
            format!("{:?} {other:?} {spawned:?}", input_answer(call))
        }
        let line = below(ctx.call_id()).await;
        self.0.lock().unwrap().push(line);
        Ok(ctx.ask(text("Well?"))?)
    }
}

// A12, A11
async fn code_below_a_tool_reads_the_answer_of_its_own_call_only(db: TestDb) {
    let read = Arc::new(std::sync::Mutex::default());
    let (model, seen) = (calls_then_done(calls([("1", "below")])), Arc::clone(&read));
    let askback = db.lab(move || Setup::new(model.clone()).tool(Below(seen.clone())));
    let chat = db.chat(&askback).await;
    chat.complete().await.unwrap();
    let question = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    chat.answer(&db.pool, &question.id, "yes", By::person("ann")).await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    assert_eq!(*read.lock().unwrap(), ["None None None", r#"Some(String("yes")) None None"#]);
    assert_eq!(input_answer(question.id.call()), None);
    assert!(ToolContext::current().is_none());
}
