//! Models that fail, and agents that cannot be built: the chat stays whole and goes on later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use askback::provider::anthropic::Anthropic;
use askback::provider::openai_chat::OpenAiChat;
use askback::provider::scripted::{Scripted, Step};
use askback::provider::{Entry, ProviderError, Turn};
use askback::{
    Agent, AgentContext, Askback, BoxError, Chat, ChatState, ErrorKind, Model, Outcome, Pool, Role, Setup, TestClock,
    Transcript, Worker,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{Semaphore, oneshot};

use crate::support::tools::{Free, Refund, answer, finish, open, park, results};
use crate::support::{Lab, LabApp, TestDb, calls, calls_then_done};
use crate::tests;

#[path = "../wires/server.rs"]
#[allow(dead_code)]
mod server;
use server::{Answer, Server};

tests![
    a_provider_that_fails_leaves_nothing_half_written,
    a_service_that_is_not_there_may_be_there_later,
    a_turn_that_was_paid_for_is_kept_through_failures,
    an_error_for_good_fails_the_chat_until_somebody_comes_back,
    a_chat_that_fails_too_often_is_left_alone,
    a_worker_does_not_take_a_chat_before_its_time,
    an_agent_that_is_not_registered_leaves_the_chat_as_it_was,
    a_row_that_does_not_fit_its_agent_is_named_and_left_as_it_was,
    every_action_of_an_agent_is_built_again,
    an_agent_that_cannot_be_set_up_is_tried_again,
    an_agent_that_could_not_be_read_back_is_refused_at_the_start,
];

const KEY: &str = "sk-secret-0123456789abcdef";

/// A chat with this model to which somebody has spoken.
async fn spoken(db: &TestDb, model: Model) -> Chat {
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Free(pool.clone())).tool(Refund(pool.clone())));
    db.chat(&askback).await
}

fn everything(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = format!("{error} {error:?}");
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(" {cause} {cause:?}"));
        next = cause.source();
    }
    text
}

struct Case {
    name: &'static str,
    answer: Answer,
    /// Whether the same request may succeed later, and what was said about when.
    again: Option<Duration>,
    says: &'static str,
}

fn failures() -> Vec<Case> {
    let json = [("content-type", "application/json")];
    let refused = format!(r#"{{"error":{{"type":"authentication_error","message":"wrong key: {KEY}"}}}}"#);
    let busy = r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#;
    let down = r#"{"error":{"type":"api_error","message":"it broke"}}"#;
    vec![
        Case { name: "401", answer: Answer::new(401, &json, &refused), again: None, says: "status 401" },
        Case {
            name: "429",
            answer: Answer::new(429, &[("retry-after", "70")], busy),
            again: Some(Duration::from_secs(70)),
            says: "slow down",
        },
        Case { name: "500", answer: Answer::new(500, &json, down), again: Some(Duration::ZERO), says: "it broke" },
        Case { name: "HTML", answer: Answer::new(200, &json, "<html>Sign in</html>"), again: None, says: "is HTML" },
        Case {
            name: "half a body",
            answer: Answer::cut(200, 5_000, r#"{"id":"m","content":[{"type":"te"#),
            again: Some(Duration::ZERO),
            says: "broke off",
        },
    ]
}

// Q16, Q15, A58, case CB3
async fn a_provider_that_fails_leaves_nothing_half_written(db: TestDb) {
    let chat_reply = r#"{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
    let messages_reply = r#"{"id":"msg_1","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn"}"#;
    for wire in ["openai", "anthropic"] {
        for Case { name, answer, again, says } in failures() {
            let good = if wire == "openai" { chat_reply } else { messages_reply };
            let server = Server::start([answer, Answer::new(200, &[], good)]).await;
            let model = match wire {
                "openai" => Model::new(OpenAiChat::new(KEY, "m").base_url(&server.url)),
                _ => Model::new(Anthropic::new(KEY, "m").base_url(&server.url)),
            };
            let chat = spoken(&db, model).await;
            let error = chat.complete().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Provider, "{wire} {name}: {error}");
            assert_eq!((error.is_retryable(), error.retry_after()), (again.is_some(), again), "{wire} {name}");
            assert!(everything(&error).contains(says), "{wire} {name}: {}", everything(&error));
            assert!(error.to_string().contains(&chat.id().to_string()), "{error}");

            let Transcript { chat: row, messages, calls, .. } = chat.transcript(&db.pool).await.unwrap();
            assert_eq!((messages.len(), calls.len(), row.failures), (1, 0, 1));
            assert_eq!((row.next_position, row.tool_turns), (1, 0));
            assert!(!row.is_driven());
            let last_error = row.last_error.unwrap();
            assert!(last_error.contains(says), "{last_error}");
            assert!(!last_error.contains(KEY) && !everything(&error).contains(KEY), "{wire} {name}: {last_error}");
            let state = if again.is_some() { ChatState::Ready } else { ChatState::Failed };
            assert_eq!(row.state, state, "{wire} {name}");
            let wait = row.not_before.unwrap() - row.read_at;
            let least = again.unwrap_or_default().as_secs() as i64;
            assert!(wait.num_milliseconds() > least * 1000 - 5_000, "{wire} {name}: {wait}");

            // Whoever completes it now does not wait, and nothing is left of the failure.
            finish(&chat).await;
            let Transcript { chat: row, messages, .. } = chat.transcript(&db.pool).await.unwrap();
            assert_eq!((messages.len(), messages[1].content.as_str()), (2, "hi"));
            assert_eq!((row.failures, row.last_error, row.not_before), (0, None, None));
            // The second request was the first again.
            let seen = server.seen();
            assert_eq!((seen.len(), &seen[0].body), (2, &seen[1].body));
        }
    }
}

// Q16
async fn a_service_that_is_not_there_may_be_there_later(db: TestDb) {
    // A port that was free a moment ago.
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let chat = spoken(&db, Model::new(OpenAiChat::new(KEY, "m").base_url(format!("http://{nobody}/?k={KEY}")))).await;
    let error = chat.complete().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Provider, true), "{error}");
    let row = chat.row(&db.pool).await.unwrap();
    assert_eq!((row.state, row.failures), (ChatState::Ready, 1));
    assert!(!format!("{row:?} {}", everything(&error)).contains(KEY));
}

fn down() -> ProviderError {
    ProviderError::new("it broke").with_status(500).retryable(None)
}

// Q16, case CB3
async fn a_turn_that_was_paid_for_is_kept_through_failures(db: TestDb) {
    let script: [Step; 5] = [
        calls([("1", "refund"), ("2", "free")]).into(),
        down().into(),
        down().into(),
        Turn::text("refunded").into(),
        Turn::text("you are welcome").into(),
    ];
    let model = Scripted::new(script);
    let chat = spoken(&db, model.clone().into()).await;
    let questions = park(&db, &chat).await;
    answer(&db, &chat, &questions[0], true).await;
    for failures in 1..3 {
        let error = chat.complete().await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Provider, true));
        // The answer and both results stand, and nothing is unmatched.
        db.check_invariants().await;
        assert_eq!(results(&db, &chat).await, [r#"{"refunded":true}"#, r#""free""#]);
        assert_eq!(open(&db, &chat).await, []);
        assert_eq!(db.ledger().await, 2);
        assert_eq!(chat.row(&db.pool).await.unwrap().failures, failures);
        // What was said is not answered yet.
        assert_eq!(chat.say(&db.pool, "thanks").await.unwrap_err().kind(), ErrorKind::Busy);
    }
    finish(&chat).await;
    assert_eq!(chat.say_and_complete("thanks").await.unwrap(), Outcome::Done);
    model.assert_finished();
    assert_eq!(db.ledger().await, 2);
    let requests = model.requests();
    assert_eq!(requests[1], requests[2]);
    assert_eq!(requests[1], requests[3]);
    assert_eq!(requests[4].history.len(), 4);
}

// Q15
async fn an_error_for_good_fails_the_chat_until_somebody_comes_back(db: TestDb) {
    let refused = || ProviderError::new("no such model").with_status(404);
    let script: [Step; 4] = [refused().into(), Turn::text("one").into(), refused().into(), Turn::text("two").into()];
    let model = Scripted::new(script);
    let chat = spoken(&db, model.clone().into()).await;
    assert!(!chat.complete().await.unwrap_err().is_retryable());
    assert_eq!(chat.row(&db.pool).await.unwrap().state, ChatState::Failed);
    finish(&chat).await;
    assert_eq!(chat.row(&db.pool).await.unwrap().state, ChatState::Idle);

    chat.say(&db.pool, "and?").await.unwrap();
    chat.complete().await.unwrap_err();
    let row = chat.row(&db.pool).await.unwrap();
    assert_eq!((row.state, row.last_error.is_some()), (ChatState::Failed, true));
    // A new text revives it, behind the one that was not answered.
    chat.say(&db.pool, "hello?").await.unwrap();
    let row = chat.row(&db.pool).await.unwrap();
    assert_eq!((row.state, row.failures, row.last_error, row.not_before), (ChatState::Ready, 0, None, None));
    finish(&chat).await;
    let roles: Vec<_> = chat.transcript(&db.pool).await.unwrap().messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::User, Role::Assistant]);
    let requests = model.requests();
    let texts: Vec<_> = requests[3].history.iter().map(|entry| matches!(entry, Entry::User { .. })).collect();
    assert_eq!(texts, [true, false, true, true]);
}

// Q15
async fn a_chat_that_fails_too_often_is_left_alone(db: TestDb) {
    let model = Scripted::rule(|_| down());
    let (lent, pool) = (model.clone(), db.pool.clone());
    let askback = db.lab(move || Setup::new(lent.clone()).tool(Free(pool.clone()))).max_failures(3);
    let chat = db.chat(&askback).await;
    let mut last = Duration::ZERO;
    for (n, state) in [ChatState::Ready, ChatState::Ready, ChatState::Failed].into_iter().enumerate() {
        assert!(chat.complete().await.unwrap_err().is_retryable());
        let row = chat.row(&db.pool).await.unwrap();
        assert_eq!((row.failures, row.state), (n as i64 + 1, state));
        let wait = (row.not_before.unwrap() - row.updated_at).to_std().unwrap();
        // Each wait is longer than the one before.
        assert!(wait > last, "{wait:?} {last:?}");
        last = wait;
    }
    // Another failure of an explicit drive leaves it so.
    chat.complete().await.unwrap_err();
    assert_eq!(chat.row(&db.pool).await.unwrap().state, ChatState::Failed);
}

// Q15, B10
async fn a_worker_does_not_take_a_chat_before_its_time(db: TestDb) {
    let (asked, answered) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (a, b) = (asked.clone(), answered.clone());
    let signal = |semaphore: &Arc<Semaphore>, reply: Step| {
        let semaphore = semaphore.clone();
        reply.when(move || async move { semaphore.add_permits(1) })
    };
    let late: [Step; 2] = [down().into(), signal(&a, Turn::text("late").into())];
    let (late, prompt) = (Scripted::new(late), Scripted::new([signal(&b, Turn::text("at once").into())]));
    let chat = spoken(&db, late.clone().into()).await;
    chat.complete().await.unwrap_err();
    late.assert_asked(1);

    // One worker for both: it knows which model a chat has by who it is for.
    let clock = TestClock::new();
    let (one, two) = (late.clone(), prompt.clone());
    let askback = db.askback().clock(&clock).agent::<ByActor>(Box::new(move |actor: &str| match actor {
        "prompt" => Setup::new(two.clone()),
        _ => Setup::new(one.clone()),
    }));
    let other = askback.start(&db.pool, &ByActor {}, "prompt").await.unwrap();
    other.say(&db.pool, "please").await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(askback.clone()).poll_every(Duration::from_millis(20));
    let worker = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
    // It looks, and takes the other one only.
    answered.acquire().await.unwrap().forget();
    late.assert_asked(1);
    assert_eq!(chat.row(&db.pool).await.unwrap().state, ChatState::Ready);
    clock.advance(Duration::from_secs(10));
    asked.acquire().await.unwrap().forget();
    stop.send(()).unwrap();
    worker.await.unwrap().unwrap();
    assert!(chat.is_complete(&db.pool).await.unwrap() && other.is_complete(&db.pool).await.unwrap());
    late.assert_asked(2);
}

/// The test's agent again, with a setup that depends on whom it is for. Chats of [`Lab`] are its chats too.
#[derive(Serialize, Deserialize)]
struct ByActor {}
impl Agent for ByActor {
    const NAME: &str = Lab::NAME;
    type App = Box<dyn Fn(&str) -> Setup + Send + Sync>;
    async fn setup(&self, app: &Self::App, ctx: &AgentContext) -> Result<Setup, BoxError> {
        Ok(app(&ctx.actor))
    }
}

/// What must be the same after a drive that could not begin.
async fn as_it_is(db: &TestDb, chat: &Chat) -> String {
    let Transcript { chat: row, messages, calls, .. } = chat.transcript(&db.pool).await.unwrap();
    let row = (row.state, row.failures, row.last_error, row.next_position, row.tool_turns, row.generation);
    format!("{row:?} {messages:?} {calls:?}")
}

/// Drives a chat whose agent cannot be built here; the error's text.
async fn cannot_be_built(db: &TestDb, chat: &Chat) -> String {
    let before = as_it_is(db, chat).await;
    let error = chat.complete().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Agent, false), "{error}");
    assert!(error.to_string().contains(&chat.id().to_string()), "{error}");
    assert_eq!(as_it_is(db, chat).await, before);
    everything(&error)
}

// Q16, Q1, case CK3
async fn an_agent_that_is_not_registered_leaves_the_chat_as_it_was(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund"), ("2", "free")]));
    let chat = spoken(&db, model.clone().into()).await;
    let nobody = db.askback().agent::<Desk>(Shop::new(&model)).chat(chat.id());
    for _ in 0..3 {
        let error = cannot_be_built(&db, &nobody).await;
        assert!(error.contains("\"lab\"") && error.contains("desk"), "{error}");
    }
    // A chat that only waits needs no agent to be looked at, answered and found waiting.
    park(&db, &chat).await;
    let questions = open(&db, &nobody).await;
    assert_eq!(nobody.complete().await.unwrap(), Outcome::Waiting);
    answer(&db, &nobody, &questions[0], true).await;
    // Somebody who cannot carry it on leaves it to those who can.
    let before = results(&db, &chat).await;
    assert_eq!(nobody.complete().await.unwrap_err().kind(), ErrorKind::Agent);
    assert_eq!((results(&db, &chat).await, db.ledger().await), (before, 1));
    finish(&chat).await;
    assert_eq!(db.ledger().await, 2);
    model.assert_asked(2);
}

/// What the app lends its agents here.
struct Shop {
    model: Model,
}

impl Shop {
    fn new(model: &Scripted) -> Self {
        Self { model: model.clone().into() }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", content = "arguments", rename_all = "snake_case")]
enum Desk {
    Greet,
    Answer { ticket: i64, tags: Vec<String> },
    Wrap(Inner),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Inner {
    text: Option<String>,
}

impl Agent for Desk {
    const NAME: &str = "desk";
    type App = Shop;
    async fn setup(&self, shop: &Shop, ctx: &AgentContext) -> Result<Setup, BoxError> {
        let about = json!({ "agent": self, "tenant": ctx.tenant, "actor": ctx.actor, "metadata": ctx.metadata });
        Ok(Setup::new(shop.model.clone()).instructions(about.to_string()))
    }
}

/// The same agent of another release: other actions, other arguments.
#[derive(Serialize, Deserialize)]
#[serde(tag = "action", content = "arguments", rename_all = "snake_case")]
enum OtherDesk {
    Answer { ticket: String },
    Close,
}
impl Agent for OtherDesk {
    const NAME: &str = Desk::NAME;
    type App = Shop;
    async fn setup(&self, shop: &Shop, _: &AgentContext) -> Result<Setup, BoxError> {
        Ok(Setup::new(shop.model.clone()))
    }
}

// Q16, case CK3
async fn a_row_that_does_not_fit_its_agent_is_named_and_left_as_it_was(db: TestDb) {
    let model = Scripted::rule(|_| Turn::text("done"));
    let before = db.askback().agent::<Desk>(Shop::new(&model));
    let after = db.askback().agent::<OtherDesk>(Shop::new(&model));
    let misfits = [
        (Desk::Greet, "greet", "unknown variant"),
        (Desk::Answer { ticket: 7, tags: vec![] }, "answer", "invalid type: integer `7`, expected a string"),
        (Desk::Wrap(Inner { text: None }), "wrap", "unknown variant"),
    ];
    for (agent, action, why) in misfits {
        let chat = before.start(&db.pool, &agent, "carl").await.unwrap();
        chat.say(&db.pool, "please").await.unwrap();
        let error = cannot_be_built(&db, &after.chat(chat.id())).await;
        for part in ["desk", &format!("{action:?}"), "OtherDesk", why] {
            assert!(error.contains(part), "{error} does not say {part}");
        }
        finish(&chat).await;
    }
    // And the other way round.
    let chat = after.start(&db.pool, &OtherDesk::Close, "carl").await.unwrap();
    chat.say(&db.pool, "please").await.unwrap();
    assert!(cannot_be_built(&db, &before.chat(chat.id())).await.contains("close"));
    finish(&chat).await;
    let chat = after.start(&db.pool, &OtherDesk::Answer { ticket: "7".into() }, "carl").await.unwrap();
    chat.say(&db.pool, "please").await.unwrap();
    cannot_be_built(&db, &before.chat(chat.id())).await;
    finish(&chat).await;
}

// A23, A22, Q1
async fn every_action_of_an_agent_is_built_again(db: TestDb) {
    let model = Scripted::rule(|_| Turn::text("done"));
    let actions = [
        (Desk::Greet, "greet", "null"),
        (
            Desk::Answer { ticket: i64::MIN, tags: vec!["é\0".into(), "🙂".into()] },
            "answer",
            r#"{"tags":["é\u0000","🙂"],"ticket":-9223372036854775808}"#,
        ),
        (Desk::Wrap(Inner { text: None }), "wrap", r#"{"text":null}"#),
    ];
    for (agent, action, arguments) in actions {
        let askback = db.askback();
        let start = askback::Start::new().tenant("acme").metadata(json!({ "plan": ["a", 1] }));
        let chat = askback.start_with(&db.pool, &agent, "carl", start).await.unwrap();
        let row = chat.row(&db.pool).await.unwrap();
        assert_eq!((row.agent.as_str(), row.action.as_str()), ("desk", action));
        let kept: serde_json::Value = serde_json::from_str(&row.arguments).unwrap();
        assert_eq!(kept, serde_json::from_str::<serde_json::Value>(arguments).unwrap());
        chat.say(&db.pool, "please").await.unwrap();
        // Another process builds it from the row alone.
        let there = Askback::new(crate::support::connect(&db.url, 2).await).agent::<Desk>(Shop::new(&model));
        finish(&there.chat(chat.id())).await;
        let about = model.requests().last().unwrap().instructions.clone().unwrap();
        let about: serde_json::Value = serde_json::from_str(&about).unwrap();
        assert_eq!(serde_json::from_value::<Desk>(about["agent"].clone()).unwrap(), agent);
        assert_eq!((&about["tenant"], &about["actor"]), (&json!("acme"), &json!("carl")));
        assert_eq!(about["metadata"], json!({ "plan": ["a", 1] }));
    }
}

/// An agent whose setup fails, then panics, then works.
#[derive(Serialize, Deserialize)]
struct Moody {
    unit: (),
}
impl Agent for Moody {
    const NAME: &str = "moody";
    type App = (AtomicUsize, Model, Pool);
    async fn setup(&self, app: &Self::App, _: &AgentContext) -> Result<Setup, BoxError> {
        match app.0.fetch_add(1, Ordering::SeqCst) {
            0 => Err("the vault is sealed".into()),
            1 => panic!("a bug of the app"),
            _ => Ok(Setup::new(app.1.clone()).tool(Refund(app.2.clone()))),
        }
    }
}

// Q16
async fn an_agent_that_cannot_be_set_up_is_tried_again(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund")]));
    let askback = db.askback().agent::<Moody>((AtomicUsize::new(0), model.clone().into(), db.pool.clone()));
    let chat = askback.start(&db.pool, &Moody { unit: () }, "carl").await.unwrap();
    chat.say(&db.pool, "please").await.unwrap();
    let error = cannot_be_built(&db, &chat).await;
    assert!(error.contains("moody") && error.contains("the vault is sealed"), "{error}");
    let error = cannot_be_built(&db, &chat).await;
    assert!(error.contains("moody") && error.contains("panicked: a bug of the app"), "{error}");
    model.assert_asked(0);
    let questions = park(&db, &chat).await;
    answer(&db, &chat, &questions[0], true).await;
    finish(&chat).await;

    // The same with a call that was answered: it is not lost, and not run.
    let lab = db.askback().agent::<Lab>(LabApp { setup: Arc::new(|| panic!("again")) });
    let chat = spoken(&db, model.clone().into()).await;
    let questions = park(&db, &chat).await;
    answer(&db, &chat, &questions[0], true).await;
    let ledger = db.ledger().await;
    let error = lab.chat(chat.id()).complete().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Agent);
    assert_eq!((db.ledger().await, open(&db, &chat).await), (ledger, vec![]));
    finish(&chat).await;
    assert_eq!(db.ledger().await, ledger + 1);
}

/// Writes what it cannot read.
#[derive(Serialize, Deserialize)]
struct Lopsided {
    #[serde(skip_serializing)]
    #[allow(dead_code)]
    key: String,
}
impl Agent for Lopsided {
    const NAME: &str = "lopsided";
    type App = ();
    async fn setup(&self, (): &(), _: &AgentContext) -> Result<Setup, BoxError> {
        Err("never".into())
    }
}

// Q16
async fn an_agent_that_could_not_be_read_back_is_refused_at_the_start(db: TestDb) {
    let agent = Lopsided { key: "x".into() };
    let error = db.askback().start(&db.pool, &agent, "carl").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("lopsided"), "{error}");
    let desk = Desk::Greet;
    for (actor, tenant) in [("a\0", "acme"), ("carl", "a\0"), (&"x".repeat(256), "acme")] {
        let start = askback::Start::new().tenant(tenant);
        let error = db.askback().start_with(&db.pool, &desk, actor, start).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(db.count("select count(*) from askback_chats").await, 0);
}
