//! The loop: leases, fences, workers, crashes of real processes.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use askback::provider::scripted::{Scripted, Step};
use askback::provider::{Request, Turn};
use askback::{
    Askback, BoxError, By, Chat, ChatId, ChatState, Conn, Enqueue, ErrorKind, Kind, Outcome, QuestionId, Setup,
    TestClock, Tool, ToolContext, ToolResult, Worker, sqlx,
};
use chrono::{DateTime, Utc};
use serde_json::json;
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;

use crate::support::child::spawn;
use crate::support::tools::{Free, Nothing, Refund, SlowAsk, SlowFail, SlowRetry};
use crate::support::{Backend, Lab, LabApp, TestDb, calls, calls_then_done, connect};
use crate::tests;

tests![
    one_process_asks_one_answers_one_carries_on,
    a_killed_run_is_asked_about_and_runs_again_if_a_person_says_so,
    a_killed_run_is_asked_about_and_stays_dead_if_a_person_says_so,
    a_killed_run_that_may_repeat_runs_again,
    a_killed_run_that_must_not_repeat_is_unfinished,
    eight_workers_and_twenty_answers_make_one_continuation,
    an_answer_nobody_was_told_of_is_found,
    an_answer_in_the_very_moment_of_the_question_is_never_lost,
    an_answer_while_a_sibling_runs_is_seen_by_the_look_after_letting_go,
    a_wake_up_needs_no_look,
    a_wake_up_reaches_other_processes,
    a_chat_is_driven_by_one_at_a_time,
    a_stale_driver_cannot_write,
    a_turn_a_question_and_a_result_are_each_fenced_by_the_lease_alone,
    a_driver_stops_itself_before_its_lease_ends,
    a_lease_is_renewed_while_a_tool_works,
    a_dropped_handle_stops_nothing,
    a_worker_that_stops_lets_go_of_its_chats,
    no_connection_is_held_while_a_model_works,
    a_worker_leaves_agents_it_does_not_know_to_others,
    the_apps_queue_gets_the_job_in_the_transaction_of_the_answer,
    a_chat_that_crashed_before_its_model_answered_is_found,
];

/// Waits until it is true; the suite's own time limit ends it otherwise.
async fn eventually<F: Future<Output = bool>>(mut is: impl FnMut() -> F) {
    while !is().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_done(db: &TestDb, chat: &Chat) {
    eventually(|| async {
        let row = chat.row(&db.pool).await.unwrap();
        row.state == ChatState::Idle && !row.is_driven()
    })
    .await;
}

/// What another process does, by the role that its environment names.
pub async fn child(role: &str) {
    let url = std::env::var("ASKBACK_TEST_URL").unwrap();
    let pool = connect(&url, 4).await;
    let tool = std::env::var("ASKBACK_TEST_TOOL").unwrap_or_else(|_| "refund".into());
    let slow = Duration::from_secs(std::env::var("ASKBACK_TEST_SLOW").map_or(0, |secs| secs.parse().unwrap()));
    let model = calls_then_done(calls([("w1", tool.as_str())]));
    let lent = pool.clone();
    let askback = Askback::new(pool.clone())
        .lease(Duration::from_millis(1500))
        .grace(Duration::from_millis(300))
        .agent::<Lab>(LabApp {
            setup: Arc::new(move || {
                Setup::new(model.clone())
                    .tool(Refund(lent.clone()))
                    .tool(SlowAsk(lent.clone(), slow))
                    .tool(SlowRetry(lent.clone(), slow))
                    .tool(SlowFail(lent.clone(), slow))
            }),
        });
    match role {
        "ask" => {
            let chat = askback.start(&pool, &Lab {}, "carl").await.unwrap();
            assert_eq!(chat.say_and_complete("please").await.unwrap(), Outcome::Waiting);
            println!("{}", chat.id());
        }
        "answer" => {
            let chat: ChatId = std::env::var("ASKBACK_TEST_CHAT").unwrap().parse().unwrap();
            // No agent, no model: the rows are enough.
            let askback = Askback::new(pool.clone());
            let question = askback.chat(chat).pending_questions(&pool).await.unwrap().remove(0);
            let by = By::person("ann").seen(&question.digest);
            println!("{:?}", askback.chat(chat).answer(&pool, &question.id, true, by).await.unwrap());
        }
        "work" => {
            println!("working");
            let every = std::env::var("ASKBACK_TEST_POLL_MS").map_or(100, |ms| ms.parse().unwrap());
            let worker = Worker::new(askback).poll_every(Duration::from_millis(every));
            worker.run_until(std::future::pending()).await.unwrap();
        }
        other => panic!("no such role: {other}"),
    }
}

/// A process that dies with the test.
struct Process(Child);

impl Process {
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// kill -9.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        std::mem::forget(self);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn process(db: &TestDb, role: &str, env: &[(&str, &str)]) -> Process {
    Process(spawn(role, &db.url, env))
}

// A22, A24, Q1, Q3, Q14, B10
async fn one_process_asks_one_answers_one_carries_on(db: TestDb) {
    let mut asks = process(&db, "ask", &[]);
    let id = asks.line();
    assert!(asks.0.wait().unwrap().success());
    let mut answers = process(&db, "answer", &[("ASKBACK_TEST_CHAT", &id)]);
    assert_eq!(answers.line(), "Recorded");
    assert!(answers.0.wait().unwrap().success());
    let works = process(&db, "work", &[]);
    let chat = db.askback().chat(id.parse().unwrap());
    until_done(&db, &chat).await;
    works.kill();
    let transcript = chat.transcript(&db.pool).await.unwrap();
    assert_eq!(transcript.calls[0].result.as_deref(), Some(r#"{"refunded":true}"#));
    assert_eq!(transcript.messages.last().unwrap().content, "done");
    assert_eq!(db.ledger().await, 1);
}

/// A chat whose worker was killed with SIGKILL in the middle of a tool's run.
async fn killed_in_the_middle(db: &TestDb, tool: &str) -> Chat {
    let chat = db.chat(&db.lab(|| unreachable!("nobody drives it here"))).await;
    let works = process(db, "work", &[("ASKBACK_TEST_TOOL", tool), ("ASKBACK_TEST_SLOW", "600")]);
    eventually(|| async { db.ledger().await == 1 }).await;
    works.kill();
    // From here on another process works; its tool is quick.
    chat
}

async fn ledger_of(db: &TestDb) -> (i64, i64) {
    let count = async |what| db.count(&format!("select count(*) from ledger where what = '{what}'")).await;
    (count("began").await, count("ended").await)
}

async fn in_doubt(db: &TestDb, chat: &Chat) -> QuestionId {
    eventually(|| async { !chat.pending_questions(&db.pool).await.unwrap().is_empty() }).await;
    let question = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    assert_eq!(question.request.kind, Kind::Confirm);
    assert!(question.request.prompt.contains("was interrupted while it ran"), "{question:?}");
    // It waits for ever, without a second run.
    assert_eq!(ledger_of(db).await, (1, 0));
    question.id
}

// Q16, B8
async fn a_killed_run_is_asked_about_and_runs_again_if_a_person_says_so(db: TestDb) {
    let chat = killed_in_the_middle(&db, "slow_ask").await;
    let works = process(&db, "work", &[("ASKBACK_TEST_TOOL", "slow_ask")]);
    let question = in_doubt(&db, &chat).await;
    chat.answer(&db.pool, &question, true, By::person("ann")).await.unwrap();
    until_done(&db, &chat).await;
    works.kill();
    assert_eq!(ledger_of(&db).await, (2, 1));
    let call = chat.transcript(&db.pool).await.unwrap().calls.remove(0);
    assert_eq!((call.result.as_deref(), call.attempts), (Some("2"), 2));
}

// Q16, B8
async fn a_killed_run_is_asked_about_and_stays_dead_if_a_person_says_so(db: TestDb) {
    let chat = killed_in_the_middle(&db, "slow_ask").await;
    let works = process(&db, "work", &[("ASKBACK_TEST_TOOL", "slow_ask")]);
    let question = in_doubt(&db, &chat).await;
    chat.decline(&db.pool, &question, Some("the bank has it"), By::person("ann")).await.unwrap();
    until_done(&db, &chat).await;
    works.kill();
    assert_eq!(ledger_of(&db).await, (1, 0));
    let call = chat.transcript(&db.pool).await.unwrap().calls.remove(0);
    assert_eq!(call.result_kind, Some(askback::ResultKind::Unfinished));
    let result = call.result.unwrap();
    assert!(result.contains("may or may not have done its work") && result.contains("the bank has it"), "{result}");
}

// Q16, B8
async fn a_killed_run_that_may_repeat_runs_again(db: TestDb) {
    let chat = killed_in_the_middle(&db, "slow_retry").await;
    let works = process(&db, "work", &[("ASKBACK_TEST_TOOL", "slow_retry")]);
    until_done(&db, &chat).await;
    works.kill();
    assert_eq!(ledger_of(&db).await, (2, 1));
    // The same key for both runs: it is the call's id.
    assert_eq!(db.count("select count(distinct call_id) from ledger").await, 1);
    assert_eq!(chat.transcript(&db.pool).await.unwrap().calls[0].attempts, 2);
}

// Q16, B8
async fn a_killed_run_that_must_not_repeat_is_unfinished(db: TestDb) {
    let chat = killed_in_the_middle(&db, "slow_fail").await;
    let works = process(&db, "work", &[("ASKBACK_TEST_TOOL", "slow_fail")]);
    until_done(&db, &chat).await;
    works.kill();
    assert_eq!(ledger_of(&db).await, (1, 0));
    let call = chat.transcript(&db.pool).await.unwrap().calls.remove(0);
    assert_eq!(call.result_kind, Some(askback::ResultKind::Unfinished));
    assert_eq!(chat.decisions(&db.pool).await.unwrap(), []);
}

/// A worker in this process, until the guard is dropped.
fn work(askback: Askback) -> Working {
    let stop = Arc::new(Semaphore::new(0));
    let stopping = stop.clone();
    let worker = Worker::new(askback).poll_every(Duration::from_millis(200));
    let task = tokio::spawn(async move { worker.run_until(async { drop(stopping.acquire().await) }).await });
    Working { stop, task }
}

struct Working {
    stop: Arc<Semaphore>,
    task: tokio::task::JoinHandle<askback::Result<()>>,
}

impl Working {
    async fn stop(self) {
        self.stop.close();
        self.task.await.unwrap().unwrap();
    }
}

// Q15, A24, A26
async fn eight_workers_and_twenty_answers_make_one_continuation(db: TestDb) {
    let ids: Vec<String> = (0..20).map(|n| format!("w{n}")).collect();
    let model = calls_then_done(calls(ids.iter().map(|id| (id.as_str(), "refund"))));
    let setup = |pool: askback::Pool| {
        let model = model.clone();
        LabApp { setup: Arc::new(move || Setup::new(model.clone()).tool(Refund(pool.clone()))) }
    };
    let mut workers = Vec::new();
    for _ in 0..8 {
        // Each with a pool and leases of its own, as in a process of its own.
        let pool = connect(&db.url, 3).await;
        let askback = Askback::new(pool.clone()).lease(Duration::from_secs(10)).agent::<Lab>(setup(pool));
        workers.push(work(askback));
    }
    let chat = db.chat(&db.askback()).await;
    eventually(|| async { chat.pending_questions(&db.pool).await.unwrap().len() == 20 }).await;
    let questions = chat.pending_questions(&db.pool).await.unwrap();
    let barrier = Arc::new(Barrier::new(20));
    let mut answers = JoinSet::new();
    for question in questions {
        let (chat, db, barrier) = (chat.clone(), db.clone(), barrier.clone());
        answers.spawn(async move {
            barrier.wait().await;
            chat.answer(&db.pool, &question.id, true, By::person("ann")).await.unwrap()
        });
    }
    answers.join_all().await;
    until_done(&db, &chat).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(db.ledger().await, 20);
    // The turn with the calls, and one continuation.
    model.assert_asked(2);
    assert_eq!(db.count("select count(*) from askback_messages").await, 3);
}

// B10, case CB1
async fn an_answer_nobody_was_told_of_is_found(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(pool.clone())));
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    let id = chat.pending_questions(&db.pool).await.unwrap()[0].id.clone();
    // On a connection of the app's nothing is sent.
    match &db.pool {
        askback::Pool::Postgres(pool) => {
            drop(chat.answer(&mut pool.acquire().await.unwrap(), &id, true, By::person("a")).await.unwrap())
        }
        askback::Pool::MySql(pool) => {
            drop(chat.answer(&mut pool.acquire().await.unwrap(), &id, true, By::person("a")).await.unwrap())
        }
        askback::Pool::Sqlite(pool) => {
            drop(chat.answer(&mut pool.acquire().await.unwrap(), &id, true, By::person("a")).await.unwrap())
        }
        _ => unreachable!(),
    }
    assert_eq!(db.count("select count(*) from askback_tool_calls where state = 'ready'").await, 1);
    let worker = work(askback);
    until_done(&db, &chat).await;
    worker.stop().await;
    assert_eq!(db.ledger().await, 1);
}

// B10
async fn an_answer_in_the_very_moment_of_the_question_is_never_lost(db: TestDb) {
    const CHATS: usize = 200;
    const AT_ONCE: usize = 12;
    let model = calls_then_done(calls([("1", "refund"), ("2", "free")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(pool.clone())).tool(Free(pool.clone())));
    let mut chats = JoinSet::new();
    for n in 0..CHATS {
        let (db, askback) = (db.clone(), askback.clone());
        chats.spawn(async move {
            let chat = askback.start(&db.pool, &Lab {}, "carl").await.unwrap();
            let driver = chat.clone();
            let drives = tokio::spawn(async move { driver.say_and_complete("please").await.unwrap() });
            // The answer races with the sibling's run, the park and the look after it.
            let answered = loop {
                if let Some(question) = chat.pending_questions(&db.pool).await.unwrap().first() {
                    break chat.answer(&db.pool, &question.id, true, By::person("ann")).await.unwrap();
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(answered, askback::Settled::Recorded);
            // The driver found the answer, or ended before it came; then the chat is there to be found.
            if drives.await.unwrap() == Outcome::Waiting {
                chat.complete().await.unwrap();
            }
            assert!(chat.is_complete(&db.pool).await.unwrap(), "chat {n}");
        });
        if chats.len() >= AT_ONCE {
            chats.join_next().await.unwrap().unwrap();
        }
    }
    chats.join_all().await;
    assert_eq!(db.ledger().await, 2 * CHATS as i64);
}

/// Says that it has begun, and ends when it may.
struct Sibling(Arc<Semaphore>, Arc<Semaphore>);
impl Tool for Sibling {
    const NAME: &str = "sibling";
    const DESCRIPTION: &str = "Runs beside";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<bool> {
        self.0.add_permits(1);
        self.1.acquire().await?.forget();
        Ok(true)
    }
}

// B10, case CB8
async fn an_answer_while_a_sibling_runs_is_seen_by_the_look_after_letting_go(db: TestDb) {
    let (began, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let model = calls_then_done(calls([("1", "refund"), ("2", "sibling")]));
    let (pool, b, g) = (db.pool.clone(), began.clone(), go_on.clone());
    let askback =
        db.lab(move || Setup::new(model.clone()).tool(Refund(pool.clone())).tool(Sibling(b.clone(), g.clone())));
    let chat = db.chat(&askback).await;
    let driver = chat.clone();
    let driven = tokio::spawn(async move { driver.complete().await.unwrap() });
    began.acquire().await.unwrap().forget();
    eventually(|| async { !chat.pending_questions(&db.pool).await.unwrap().is_empty() }).await;
    // The driver has the lease, and knows the question as open. Nobody else is told.
    let question = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    chat.answer(&db.pool, &question.id, true, By::person("ann")).await.unwrap();
    go_on.add_permits(1);
    assert_eq!(driven.await.unwrap(), Outcome::Done);
    assert_eq!(db.ledger().await, 1);
}

/// Speaks, waits for the question, answers; a worker that hardly ever looks does the rest.
async fn woken_by(askback: &Askback, db: &TestDb) {
    let chat = askback.start(&db.pool, &Lab {}, "carl").await.unwrap();
    chat.say(&db.pool, "please").await.unwrap();
    eventually(|| async { !chat.pending_questions(&db.pool).await.unwrap().is_empty() }).await;
    let question = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    chat.answer(&db.pool, &question.id, true, By::person("ann")).await.unwrap();
    until_done(db, &chat).await;
}

// B10
async fn a_wake_up_needs_no_look(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(pool.clone())));
    let (stop, stopping) = (Arc::new(Semaphore::new(0)), askback.clone());
    let stopped = stop.clone();
    let worker = tokio::spawn(async move {
        let worker = Worker::new(stopping).poll_every(Duration::from_secs(3600));
        worker.run_until(async { drop(stopped.acquire().await) }).await
    });
    woken_by(&askback, &db).await;
    stop.close();
    worker.await.unwrap().unwrap();
}

// B10
async fn a_wake_up_reaches_other_processes(db: TestDb) {
    // Elsewhere the worker of another process looks.
    let seldom = if db.backend == Backend::Postgres { "3600000" } else { "100" };
    let mut works = process(&db, "work", &[("ASKBACK_TEST_POLL_MS", seldom)]);
    assert_eq!(works.line(), "working");
    // Its first look may come before the chat, and its ears may open after: that is one look more, and no other.
    woken_by(&db.askback(), &db).await;
    woken_by(&db.askback(), &db).await;
    works.kill();
    assert_eq!(db.ledger().await, 2);
}

/// A model that says when it is asked, and answers when it may.
fn held_model(asked: &Arc<Semaphore>, go_on: &Arc<Semaphore>, turn: Turn) -> Scripted {
    let (asked, go_on) = (asked.clone(), go_on.clone());
    Scripted::rule(move |_: &Request| {
        let (asked, go_on) = (asked.clone(), go_on.clone());
        Step::new(turn.clone()).when(move || async move {
            asked.add_permits(1);
            go_on.acquire().await.unwrap().forget();
        })
    })
}

// Q15, case CA8
async fn a_chat_is_driven_by_one_at_a_time(db: TestDb) {
    let (asked, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let model = held_model(&asked, &go_on, Turn::text("hello"));
    let seen = model.clone();
    let askback = db.lab(move || Setup::new(model.clone()));
    let chat = db.chat(&askback).await;
    let driver = chat.clone();
    let first = tokio::spawn(async move { driver.complete().await.unwrap() });
    asked.acquire().await.unwrap().forget();
    assert!(chat.is_running(&db.pool).await.unwrap());
    // From this process and from another.
    assert_eq!(chat.complete().await.unwrap(), Outcome::Busy);
    assert_eq!(db.lab(|| unreachable!()).chat(chat.id()).complete().await.unwrap(), Outcome::Busy);
    assert_eq!(chat.say(&db.pool, "hurry").await.unwrap_err().kind(), ErrorKind::Busy);
    go_on.add_permits(1);
    assert_eq!(first.await.unwrap(), Outcome::Done);
    assert!(!chat.is_running(&db.pool).await.unwrap());
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    seen.assert_asked(1);
}

// Q15, case CA6
async fn a_stale_driver_cannot_write(db: TestDb) {
    let (asked, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let slow = held_model(&asked, &go_on, Turn::text("from the stale one"));
    let stale = db.lab(move || Setup::new(slow.clone()));
    let chat = db.chat(&stale).await;
    let driver = chat.clone();
    let first = tokio::spawn(async move { driver.complete().await });
    asked.acquire().await.unwrap().forget();
    // For the database an hour goes by; the first driver does not notice.
    let clock = TestClock::new();
    clock.advance(Duration::from_secs(3600));
    let fresh = db.lab(|| Setup::new(Scripted::new([Turn::text("from the new one")]))).clock(&clock);
    assert_eq!(fresh.chat(chat.id()).complete().await.unwrap(), Outcome::Done);
    go_on.add_permits(1);
    assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::LeaseLost);
    let transcript = chat.transcript(&db.pool).await.unwrap();
    let said: Vec<_> = transcript.messages.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(said, ["please", "from the new one"]);
}

/// Begins, and when it may, asks or returns.
struct Fenced(Arc<Semaphore>, Arc<Semaphore>, bool);
impl Tool for Fenced {
    const NAME: &str = "fenced";
    const DESCRIPTION: &str = "Waits, then asks or returns";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<bool> {
        self.0.add_permits(1);
        self.1.acquire().await?.forget();
        if self.2 {
            ctx.ask(askback::confirm("Well?"))?;
        }
        Ok(true)
    }
}

// Q15
async fn a_turn_a_question_and_a_result_are_each_fenced_by_the_lease_alone(db: TestDb) {
    for what in ["turn", "question", "result"] {
        let (began, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let model = match what {
            "turn" => held_model(&began, &go_on, calls([("1", "fenced")])),
            _ => calls_then_done(calls([("1", "fenced")])),
        };
        let (b, g) = (began.clone(), go_on.clone());
        let askback = db.lab(move || Setup::new(model.clone()).tool(Fenced(b.clone(), g.clone(), what == "question")));
        let chat = db.chat(&askback).await;
        let driver = chat.clone();
        let driven = tokio::spawn(async move { driver.complete().await });
        began.acquire().await.unwrap().forget();
        // Another driver has it now, and has not done anything yet: no position, no call has changed.
        let (id, token) = (db.uuid(chat.id().0), db.uuid(uuid::Uuid::new_v4()));
        db.exec(&format!("update askback_chats set lease_token = {token} where id = {id}")).await;
        let before = chat.transcript(&db.pool).await.unwrap();
        go_on.add_permits(1);
        let error = driven.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{what}: {error}");
        let after = chat.transcript(&db.pool).await.unwrap();
        assert_eq!((&before.messages, &before.calls), (&after.messages, &after.calls), "{what}");
        assert_eq!(after.chat.next_position, before.chat.next_position, "{what}");
        db.exec(&format!("update askback_chats set lease_token = null, state = 'ready' where id = {id}")).await;
        chat.cancel(&db.pool).await.unwrap();
    }
}

/// Never ends; counts how many of it began and how many were dropped.
struct Endless(Arc<AtomicUsize>, Arc<AtomicUsize>);
impl Tool for Endless {
    const NAME: &str = "endless";
    const DESCRIPTION: &str = "Never ends";
    type Args = Nothing;
    type Output = bool;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<bool> {
        struct Dropped(Arc<AtomicUsize>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let _dropped = Dropped(self.1.clone());
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

// Q15
async fn a_driver_stops_itself_before_its_lease_ends(db: TestDb) {
    let (began, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let model = calls_then_done(calls([("1", "endless")]));
    let (b, d) = (began.clone(), dropped.clone());
    let askback = db
        .lab(move || Setup::new(model.clone()).tool(Endless(b.clone(), d.clone())))
        .lease(Duration::from_millis(1500));
    let chat = db.chat(&askback).await;
    let driver = chat.clone();
    let driven = tokio::spawn(async move { driver.complete().await });
    eventually(|| async { began.load(Ordering::SeqCst) == 1 }).await;
    // Somebody sits on the chat's row, so that the lease cannot be renewed.
    let held = format!("update askback_chats set metadata = null where id = {}", db.uuid(chat.id().0));
    let (sql, error) = (sqlx::AssertSqlSafe(held), async { driven.await.unwrap().unwrap_err() });
    let error = match &db.pool {
        askback::Pool::Postgres(pool) => {
            let mut tx = pool.begin().await.unwrap();
            sqlx::query(sql).execute(&mut *tx).await.unwrap();
            error.await
        }
        askback::Pool::MySql(pool) => {
            let mut tx = pool.begin().await.unwrap();
            sqlx::query(sql).execute(&mut *tx).await.unwrap();
            error.await
        }
        askback::Pool::Sqlite(pool) => {
            let mut tx = pool.begin().await.unwrap();
            sqlx::query(sql).execute(&mut *tx).await.unwrap();
            error.await
        }
        _ => unreachable!(),
    };
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    eventually(|| async { dropped.load(Ordering::SeqCst) == 1 }).await;
    // What it leaves behind is in doubt, and the next driver asks.
    let model = calls_then_done(calls([("1", "endless")]));
    let later = TestClock::new();
    later.advance(Duration::from_secs(60));
    let next = db.lab(move || Setup::new(model.clone()).tool(Endless(began.clone(), dropped.clone()))).clock(&later);
    assert_eq!(next.chat(chat.id()).complete().await.unwrap(), Outcome::Waiting);
    assert_eq!(chat.pending_questions(&db.pool).await.unwrap().len(), 1);
}

// Q15
async fn a_lease_is_renewed_while_a_tool_works(db: TestDb) {
    let model = calls_then_done(calls([("1", "slow_ask")]));
    let pool = db.pool.clone();
    let slow = Duration::from_millis(5000);
    let terms = |askback: Askback| askback.lease(Duration::from_millis(2000)).grace(Duration::from_millis(500));
    let askback = terms(db.lab(move || Setup::new(model.clone()).tool(SlowAsk(pool.clone(), slow))));
    let chat = db.chat(&askback).await;
    let driver = chat.clone();
    let driven = tokio::spawn(async move { driver.complete().await.unwrap() });
    eventually(|| async { db.ledger().await == 1 }).await;
    // Two and a half leases long somebody else wants it.
    let other = db.lab(|| unreachable!("it never gets the chat while there is work"));
    let other = terms(other).chat(chat.id());
    let mut refused = 0;
    while other.complete().await.unwrap() == Outcome::Busy {
        refused += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(refused > 10, "{refused}");
    assert_eq!(driven.await.unwrap(), Outcome::Done);
    assert_eq!(ledger_of(&db).await, (1, 1));
}

// Q15
async fn a_dropped_handle_stops_nothing(db: TestDb) {
    let (asked, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let model = held_model(&asked, &go_on, Turn::text("hello"));
    let askback = db.lab(move || Setup::new(model.clone()));
    let chat = db.chat(&askback).await;
    {
        // As a web server does when the client goes away.
        let driven = chat.complete();
        tokio::select! {
            _ = driven => unreachable!(),
            permit = asked.acquire() => permit.unwrap().forget(),
        }
    }
    go_on.add_permits(1);
    until_done(&db, &chat).await;
    assert_eq!(chat.transcript(&db.pool).await.unwrap().messages.len(), 2);
}

// B10, Q16
async fn a_worker_that_stops_lets_go_of_its_chats(db: TestDb) {
    let model = calls_then_done(calls([("1", "slow_ask")]));
    let pool = db.pool.clone();
    let slow = Duration::from_millis(700);
    let askback = db.lab(move || Setup::new(model.clone()).tool(SlowAsk(pool.clone(), slow)));
    let chat = db.chat(&askback).await;
    let worker = work(askback.clone());
    eventually(|| async { db.ledger().await == 1 }).await;
    // The tool that runs ends; the model is not asked any more.
    worker.stop().await;
    assert_eq!(ledger_of(&db).await, (1, 1));
    let row = chat.row(&db.pool).await.unwrap();
    assert_eq!((row.state, row.is_driven(), row.failures), (ChatState::Ready, false, 0));
    assert_eq!(chat.transcript(&db.pool).await.unwrap().messages.len(), 2);
    let worker = work(askback);
    until_done(&db, &chat).await;
    worker.stop().await;
    assert_eq!(ledger_of(&db).await, (1, 1));
}

// Q20, case CI3
async fn no_connection_is_held_while_a_model_works(db: TestDb) {
    let (asked, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let model = held_model(&asked, &go_on, Turn::text("hello"));
    let small = connect(&db.url, 1).await;
    let askback =
        Askback::new(small.clone()).agent::<Lab>(LabApp { setup: Arc::new(move || Setup::new(model.clone())) });
    let mut drives = JoinSet::new();
    for _ in 0..5 {
        let chat = db.chat(&askback).await;
        drives.spawn(async move { chat.complete().await.unwrap() });
    }
    // All five models are asked at once, and the only connection is free.
    asked.acquire_many(5).await.unwrap().forget();
    let idle = askback.start(&small, &Lab {}, "carl").await.unwrap();
    assert_eq!(idle.pending_questions(&small).await.unwrap(), []);
    go_on.add_permits(5);
    assert_eq!(drives.join_all().await, [Outcome::Done; 5]);
}

// B10
async fn a_worker_leaves_agents_it_does_not_know_to_others(db: TestDb) {
    let askback = db.lab(|| Setup::new(Scripted::new([Turn::text("hello")])));
    let chat = db.chat(&askback).await;
    let stranger = work(db.askback());
    let other = db.chat(&askback).await;
    // The stranger has met both, by its look and by a wake-up.
    let before = chat.row(&db.pool).await.unwrap();
    assert_eq!((before.state, before.not_before), (ChatState::Ready, None));
    stranger.stop().await;
    let error = db.askback().chat(chat.id()).complete().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Agent);
    assert!(error.to_string().contains(r#"no agent "lab" is registered here"#), "{error}");
    let row = other.row(&db.pool).await.unwrap();
    assert_eq!((row.state, row.is_driven(), row.failures), (ChatState::Ready, false, 0));
    assert_eq!(db.count("select count(*) from askback_chats where lease_epoch = 0").await, 1);
    chat.complete().await.unwrap();
    other.cancel(&db.pool).await.unwrap();
}

/// A queue of the app's own: a row in its table, in the same transaction.
struct Queue {
    refuses: bool,
}

impl Enqueue for Queue {
    async fn resume(&self, chat: ChatId, _: DateTime<Utc>, conn: Conn<'_>) -> Result<(), BoxError> {
        let sql = sqlx::AssertSqlSafe(format!("insert into ledger (call_id, what) values ('{chat}', 'job')"));
        let _rows = match conn {
            Conn::Postgres(conn) => sqlx::query(sql).execute(&mut *conn).await?.rows_affected(),
            Conn::MySql(conn) => sqlx::query(sql).execute(&mut *conn).await?.rows_affected(),
            Conn::Sqlite(conn) => sqlx::query(sql).execute(&mut *conn).await?.rows_affected(),
            _ => unreachable!(),
        };
        match self.refuses {
            true => Err("the queue is full".into()),
            false => Ok(()),
        }
    }
}

// A53, case CB1
async fn the_apps_queue_gets_the_job_in_the_transaction_of_the_answer(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(pool.clone())));
    let jobs = async || db.count("select count(*) from ledger where what = 'job'").await;
    let chat = db.chat(&askback).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    let id = chat.pending_questions(&db.pool).await.unwrap()[0].id.clone();
    let full = askback.clone().enqueue(Queue { refuses: true });
    // What the queue refuses is not answered either, and can be answered again.
    full.chat(chat.id()).answer(&db.pool, &id, true, By::person("ann")).await.unwrap_err();
    assert_eq!((jobs().await, chat.decisions(&db.pool).await.unwrap().len()), (0, 0));
    let queued = askback.clone().enqueue(Queue { refuses: false });
    queued.chat(chat.id()).answer(&db.pool, &id, true, By::person("ann")).await.unwrap();
    assert_eq!((jobs().await, chat.decisions(&db.pool).await.unwrap().len()), (1, 1));
    // A second answer makes no second job, and the job finds what to do.
    queued.chat(chat.id()).answer(&db.pool, &id, true, By::person("ben")).await.unwrap();
    assert_eq!(jobs().await, 1);
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    queued.chat(chat.id()).say(&db.pool, "once more").await.unwrap();
    assert_eq!(jobs().await, 2);
    chat.cancel(&db.pool).await.unwrap();
}

// Q16, B10
async fn a_chat_that_crashed_before_its_model_answered_is_found(db: TestDb) {
    let model = calls_then_done(calls([("1", "free")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Free(pool.clone())));
    let chat = db.chat(&askback).await;
    // What a process leaves that died with the lease in its hand: nothing but the lease.
    let token = db.uuid(uuid::Uuid::new_v4());
    db.exec(&format!("update askback_chats set lease_token = {token}, lease_until = '2020-01-01 00:00:00'")).await;
    let worker = work(askback);
    until_done(&db, &chat).await;
    worker.stop().await;
    let seen = chat.transcript(&db.pool).await.unwrap();
    assert_eq!(seen.calls[0].result, Some(json!("free").to_string()));
}
