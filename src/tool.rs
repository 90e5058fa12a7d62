//! A tool: what the model may call, and how it asks a person.
//!
//! **On an answer a tool runs again from its start.** What stands before an
//! `ask` must bear repetition, and a later decline ends a tool that may have
//! acted in between: ask first, act afterwards, and give what acts
//! [`ToolContext::idempotency_key`].

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ask::Ask;
use crate::error::BoxError;
use crate::id::{ChatId, ToolCallId};
use crate::request::{InputRequest, Kind};
use crate::tool_call::{Asked, IN_DOUBT};

/// What a tool's body returns.
pub type ToolResult<T> = Result<T, ToolError>;

/// A tool that the model may call.
///
/// ```
/// use askback::{Tool, ToolContext, ToolResult, confirm};
/// use serde_json::{Value, json};
///
/// struct Refund;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct RefundArgs {
///     order: String,
///     cents: i64,
/// }
///
/// impl Tool for Refund {
///     const NAME: &str = "refund";
///     const DESCRIPTION: &str = "Refund an order";
///     type Args = RefundArgs;
///     type Output = Value;
///
///     async fn call(&self, ctx: ToolContext, args: RefundArgs) -> ToolResult<Value> {
///         // Ends here until a person answers; then the tool runs again from its start.
///         ctx.ask(confirm(format!("Refund {} cents on {}?", args.cents, args.order)))?;
///         // ... act, with ctx.idempotency_key() ...
///         Ok(json!({ "refunded": args.cents }))
///     }
/// }
/// ```
pub trait Tool: Send + Sync + 'static {
    /// The name the model calls.
    const NAME: &str;
    /// What it does, for the model.
    const DESCRIPTION: &str;
    /// What a crash in the middle of a run means.
    const ON_INTERRUPT: OnInterrupt = OnInterrupt::Ask;
    /// How long one run may take. One that takes longer is dropped, and its call ends as unfinished.
    const TIME_LIMIT: Option<Duration> = None;
    /// Its arguments; their JSON Schema goes to the model.
    type Args: DeserializeOwned + JsonSchema + Send;
    /// What the model reads, as JSON.
    type Output: Serialize;

    /// Whether a call with these arguments needs an approval before it runs.
    ///
    /// Evaluated when the call is saved, and once more before it runs, so that
    /// a stricter rule of a later deploy counts. If it panics, approval is needed.
    fn approval(&self, args: &Self::Args) -> Approval {
        let _ = args;
        Approval::Free
    }

    /// Runs the tool.
    ///
    /// The future is dropped when the lease on the chat ends or the generation is cancelled.
    ///
    /// # Errors
    /// An error is the call's result: the model reads its `Display`, never its sources.
    fn call(&self, ctx: ToolContext, args: Self::Args) -> impl Future<Output = ToolResult<Self::Output>> + Send;
}

/// What a crash in the middle of a run means for a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnInterrupt {
    /// A person is told that it may have run, and decides.
    Ask,
    /// It runs again, with the same idempotency key; two runs may overlap.
    Retry,
    /// It does not run again; the model is told that it may have run.
    Fail,
}

/// Whether a call may run without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Approval {
    /// It may.
    Free,
    /// A person approves it first.
    Required,
}

/// Why a tool failed. Any error converts into it with `?`, and so does a request to a person.
///
/// It is no `std::error::Error` itself, so that every one converts.
pub struct ToolError(pub(crate) Failure);

pub(crate) enum Failure {
    Error(BoxError),
    Ask(Box<InputRequest>, Option<String>),
}

impl ToolError {
    /// A failure with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(Failure::Error(message.into().into()))
    }
}

impl<E: Into<BoxError>> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self(Failure::Error(error.into()))
    }
}

impl<T> From<Ask<T>> for ToolError {
    fn from(ask: Ask<T>) -> Self {
        Self(Failure::Ask(Box::new(ask.request), ask.key))
    }
}

impl From<InputRequest> for ToolError {
    fn from(request: InputRequest) -> Self {
        Self(Failure::Ask(Box::new(request), None))
    }
}

impl fmt::Debug for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Failure::Error(error) => f.debug_tuple("ToolError").field(error).finish(),
            Failure::Ask(request, _) => f.debug_tuple("ToolError").field(request).finish(),
        }
    }
}

/// Why [`ToolContext::ask`] has no answer; give it on with `?`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Not yet: the question is recorded, and the tool runs again with the answer.
    #[error("waiting for a person")]
    Unanswered,
    /// The request is one that no person could answer.
    #[error("this cannot be asked: {0}")]
    Invalid(#[source] crate::error::Error),
    /// The answer is not of the type the tool wants.
    #[error("the answer does not fit: {0}")]
    Misfit(#[source] serde_json::Error),
}

tokio::task_local! {
    /// The call that runs in this task.
    pub(crate) static CURRENT: ToolContext;
}

/// The person's latest answer to a question of `call`, for code below a tool that was not handed its context.
///
/// `None` outside that call's run: in another call's, in a task that the tool spawned, outside any.
pub fn input_answer(call: ToolCallId) -> Option<Value> {
    ToolContext::current().filter(|ctx| ctx.call_id() == call)?.input_answer()
}

/// What a running tool knows of its call; cheap to clone.
#[derive(Clone)]
pub struct ToolContext(Arc<Context>);

struct Context {
    chat: ChatId,
    call: ToolCallId,
    tool: String,
    actor: String,
    attempt: i64,
    asked: Vec<Asked>,
    asks: Mutex<Asks>,
}

#[derive(Default)]
struct Asks {
    /// How many questions without a key were asked in this run.
    unnamed: usize,
    /// What the run asks and nobody has answered.
    open: Vec<(String, InputRequest)>,
}

impl ToolContext {
    pub(crate) fn new(
        chat: ChatId,
        call: ToolCallId,
        tool: &str,
        actor: &str,
        attempt: i64,
        asked: Vec<Asked>,
    ) -> Self {
        let (tool, actor) = (tool.to_owned(), actor.to_owned());
        Self(Arc::new(Context { chat, call, tool, actor, attempt, asked, asks: Mutex::default() }))
    }

    /// The context of the tool that runs in this task, for code below it; `None` outside any, and in tasks it spawned.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Hands out the person's answer, or records the question and ends the tool.
    ///
    /// A question is paired with its answer by its [`key`](Ask::key), and then
    /// kind, options and fields must still match; without a key by its place
    /// among the tool's asks, and then the whole request must match. Where they
    /// do not, the question is asked anew. To put several questions at once,
    /// ask them all before the first `?`:
    ///
    /// ```
    /// # use askback::{ToolContext, ToolResult, choice, text};
    /// # fn body(ctx: ToolContext) -> ToolResult<(String, String)> {
    /// let (size, note) = (ctx.ask(choice("Which size?", ["S", "M"])), ctx.ask(text("Any wish?")));
    /// let (size, note): (String, String) = (size?, note?);
    /// # Ok((size, note))
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AskError::Unanswered`] until a person has answered: give it on with `?`, through any error type.
    pub fn ask<T>(&self, ask: Ask<T>) -> Result<T, AskError> {
        match self.answer_to(&ask.request, ask.key.as_deref())? {
            Some(value) => (ask.read)(value).map_err(AskError::Misfit),
            None => Err(AskError::Unanswered),
        }
    }

    fn answer_to(&self, request: &InputRequest, key: Option<&str>) -> Result<Option<Value>, AskError> {
        let mut request = request.clone();
        // Who asks is not for the tool to say.
        (request.tool_call_id, request.tool_name, request.arguments) = (None, None, None);
        request.validate().map_err(AskError::Invalid)?;
        if let Some(key) = key {
            check_key(key).map_err(AskError::Invalid)?;
        }
        let mut asks = self.asks();
        let (key, exact) = match key {
            Some(key) => (key.to_owned(), false),
            None => {
                asks.unnamed += 1;
                (asks.unnamed.to_string(), true)
            }
        };
        if let Some(asked) = self.0.asked.iter().rev().find(|asked| asked.key == key)
            && let Some(answer) = asked.answer()
        {
            if asked.request().is_ok_and(|was| matches(&was, &request, exact)) {
                return Ok(Some(answer));
            }
            tracing::warn!(
                chat = %self.0.chat, call = %self.0.call, tool = %self.0.tool, question = %key,
                "the tool asks something else than what was answered; the question is asked anew"
            );
        }
        if asks.open.iter().all(|(open, _)| *open != key) {
            asks.open.push((key, request));
        }
        Ok(None)
    }

    /// The person's latest answer to a question of this call; `None` on the first run.
    pub fn input_answer(&self) -> Option<Value> {
        let questions = self.0.asked.iter().filter(|asked| !asked.key.is_empty() && asked.key != IN_DOUBT);
        let answered = questions.filter_map(|asked| Some((asked.decision.as_ref()?.at_us, asked)));
        answered.max_by_key(|(at, _)| *at).and_then(|(_, asked)| asked.answer())
    }

    /// The person's latest answer to the question with this key: its own, or its number among the unnamed asks, from 1.
    pub fn answer(&self, key: &str) -> Option<Value> {
        self.0.asked.iter().rev().filter(|asked| asked.key == key).find_map(Asked::answer)
    }

    /// The same for every run of this call: give it to what must not happen twice.
    pub fn idempotency_key(&self) -> String {
        self.0.call.to_string()
    }

    /// The chat that runs the tool.
    pub fn chat_id(&self) -> ChatId {
        self.0.chat
    }

    /// The call that is run.
    pub fn call_id(&self) -> ToolCallId {
        self.0.call
    }

    /// On whose behalf the agent acts.
    pub fn actor(&self) -> &str {
        &self.0.actor
    }

    /// How often the tool was started for this call, this run included.
    pub fn attempt(&self) -> i64 {
        self.0.attempt
    }

    /// What this run asks and nobody has answered.
    pub(crate) fn take_open(&self) -> Vec<(String, InputRequest)> {
        std::mem::take(&mut self.asks().open)
    }

    fn asks(&self) -> MutexGuard<'_, Asks> {
        self.0.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext").field("chat", &self.0.chat).field("call", &self.0.call).finish_non_exhaustive()
    }
}

fn check_key(key: &str) -> crate::error::Result<()> {
    crate::decision::plain("a question's key", key, crate::decision::MAX_NAME_BYTES)?;
    if key.is_empty() || key.starts_with("askback:") || key.parse::<usize>().is_ok() {
        return Err(crate::error::Error::invalid(format!(
            "{key:?} cannot be a question's key: it is empty, a number, or one of askback's own"
        )));
    }
    Ok(())
}

/// Whether an answer to `was` may be handed out for `now`.
fn matches(was: &InputRequest, now: &InputRequest, exact: bool) -> bool {
    // What was asked has been JSON text since: not every float is read back as it was.
    let Ok(now) = serde_json::to_string(now).and_then(|text| serde_json::from_str::<InputRequest>(&text)) else {
        return false;
    };
    let shape = was.kind == now.kind && was.options == now.options && was.fields == now.fields;
    // Who may answer and until when was settled with the answer.
    let bare =
        |request: &InputRequest| InputRequest { may: Vec::new(), expires_in: None, default: None, ..request.clone() };
    shape && (!exact || bare(was) == bare(&now))
}

impl ToolContext {
    /// Records a request that a tool returned in place of a result.
    ///
    /// An answer that was already handed out does not count: the tool read it and asks again.
    pub(crate) fn ask_anew(&self, request: InputRequest, key: Option<String>) -> Result<(), AskError> {
        request.validate().map_err(AskError::Invalid)?;
        if let Some(key) = &key {
            check_key(key).map_err(AskError::Invalid)?;
        }
        let mut asks = self.asks();
        let key = key.unwrap_or_else(|| (asks.unnamed + 1).to_string());
        // Two open questions of one key: nobody could name the first.
        if asks.open.iter().all(|(open, _)| *open != key) {
            asks.open.push((key, request));
        }
        Ok(())
    }
}

/// What the person reads of a run that was interrupted.
pub(crate) fn in_doubt_request(tool: &str) -> InputRequest {
    InputRequest::new(
        Kind::Confirm,
        format!("{tool} was interrupted while it ran, and may have done its work. Run it again?"),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ask::{choice, confirm, text, url};
    use crate::decision::Verb;
    use crate::erased::{DynTool, Ran, Typed, schema_of};
    use crate::tool_call::Recorded;

    type Body = fn(&ToolContext) -> ToolResult<Value>;

    struct Says(Body);
    impl Tool for Says {
        const NAME: &str = "says";
        const DESCRIPTION: &str = "Of a test";
        type Args = serde_json::Map<String, Value>;
        type Output = Value;
        async fn call(&self, ctx: ToolContext, _: Self::Args) -> ToolResult<Value> {
            (self.0)(&ctx)
        }
    }

    fn asked(key: &str, round: u32, request: &InputRequest, answer: Option<Value>) -> Asked {
        let mut asked = Asked::new(key, round, request, "says", Some("{}"), chrono::Utc::now()).unwrap();
        asked.decision = answer.map(|value| Recorded {
            decision: Verb::Accept,
            value: Some(value.to_string()),
            by: "person:ann".into(),
            at_us: i64::from(round),
            idem: None,
            note: None,
            via: None,
        });
        asked
    }

    fn context(asked: Vec<Asked>) -> ToolContext {
        ToolContext::new(ChatId::new(), ToolCallId::new(), "says", "carl", 1, asked)
    }

    async fn run(body: Body, asked: Vec<Asked>) -> Ran {
        Typed::new(Says(body)).run(context(asked), "{}".into()).await
    }

    /// The keys and prompts that a run asks.
    fn asks(ran: &Ran) -> Vec<(&str, &str)> {
        let Ran::Asks(asks) = ran else { panic!("{ran:?}") };
        asks.iter().map(|(key, request)| (key.as_str(), request.prompt.as_str())).collect()
    }

    // A1
    #[tokio::test]
    async fn a_run_that_asks_waits_whatever_it_returns() {
        let bodies: [Body; 6] = [
            |ctx| Ok(json!(ctx.ask(text("Name?"))?)),
            |ctx| Ok(ctx.ask(text("Name?")).map(Value::from).unwrap_or_default()),
            |ctx| ctx.ask(text("Name?")).map(Value::from).map_err(|_| ToolError::new("no name")),
            |ctx| Ok(json!(ctx.ask(text("Name?")).unwrap())),
            |_| Err(text("Name?").into()),
            |_| Err(text("Name?").request().clone().into()),
        ];
        for body in bodies {
            assert_eq!(asks(&run(body, vec![]).await), [("1", "Name?")]);
        }
        // With the answer they are done.
        for (body, expected) in bodies.into_iter().take(4).zip([r#""Zoë""#; 4]) {
            let ran = run(body, vec![asked("1", 0, text("Name?").request(), Some(json!("Zoë")))]).await;
            assert!(matches!(&ran, Ran::Value(value) if value == expected), "{ran:?}");
        }
    }

    // A1
    #[test]
    fn a_swallowed_question_is_told_in_the_log() {
        use std::io::Write;
        #[derive(Clone, Default)]
        struct Log(Arc<Mutex<Vec<u8>>>);
        impl Write for Log {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tracing::subscriber::with_default(subscriber, || {
            let read = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            runtime.block_on(run(|ctx| Ok(json!(ctx.ask(text("Name?"))?)), vec![]));
            assert_eq!(read(), "");
            runtime.block_on(run(|ctx| Ok(json!(ctx.ask(text("Name?")).is_ok())), vec![]));
            assert!(read().contains("the call waits") && read().contains("says"), "{}", read());
            // Something else than what was answered is told, too. (A14)
            let other = asked("1", 0, text("City?").request(), Some(json!("Ulm")));
            runtime.block_on(run(|ctx| Ok(json!(ctx.ask(text("Name?"))?)), vec![other]));
            assert!(read().contains("asked anew"), "{}", read());
        });
    }

    // A14
    #[tokio::test]
    async fn an_answer_is_handed_out_for_what_it_was_given_to() {
        let sizes = |options: [&str; 2]| choice::<Value>("Size?", options).request;
        // What was asked and answered under which key, what is asked now, and whether the answer fits.
        let cases: [(&str, InputRequest, Body, bool); 10] = [
            ("1", text("a").request, |ctx| Ok(ctx.ask(text("a"))?.into()), true),
            ("1", text("a").request, |ctx| Ok(ctx.ask(text("b"))?.into()), false),
            ("1", text("a").request, |ctx| Ok(ctx.ask(text("a").metadata(json!(1)))?.into()), false),
            ("1", text("a").request, |ctx| Ok(ctx.ask(text("a").schema(json!({})))?.into()), false),
            ("1", text("a").request, |ctx| Ok(ctx.ask(text("a").may_role("x").default_answer("y"))?.into()), true),
            ("k", text("a").request, |ctx| Ok(ctx.ask(text("b").key("k").metadata(json!(1)))?.into()), true),
            ("k", text("a").request, |ctx| Ok(ctx.ask(crate::ask::secret("a").key("k"))?.into()), false),
            ("k", sizes(["S", "M"]), |ctx| Ok(ctx.ask(choice("b", ["S", "M"]).key("k"))?), true),
            ("k", sizes(["S", "M"]), |ctx| Ok(ctx.ask(choice("Size?", ["M", "S"]).key("k"))?), false),
            ("k", text("a").request, |ctx| Ok(ctx.ask(text("a").key("other"))?.into()), false),
        ];
        for (at, (key, was, body, fits)) in cases.into_iter().enumerate() {
            let ran = run(body, vec![asked(key, 0, &was, Some(json!("S")))]).await;
            match fits {
                true => assert!(matches!(&ran, Ran::Value(value) if value == r#""S""#), "{at}: {ran:?}"),
                false => assert_eq!(asks(&ran).len(), 1, "{at}"),
            }
        }
    }

    // A13, A14
    #[tokio::test]
    async fn the_latest_answer_of_a_key_counts() {
        let request = text("a").request;
        let answered = vec![
            asked("k", 0, &request, Some(json!("old"))),
            asked("1", 1, &request, Some(json!("mine"))),
            asked("k", 2, &request, Some(json!("new"))),
            asked("", 3, &request, Some(json!(true))),
            asked(IN_DOUBT, 4, &request, Some(json!(true))),
            asked("open", 5, &request, None),
        ];
        let ctx = context(answered);
        // Neither an approval nor the word on an interrupted run is an answer to the tool.
        assert_eq!(ctx.input_answer(), Some(json!("new")));
        let read = ["k", "1", "open", "nothing"].map(|key| ctx.answer(key));
        assert_eq!(read, [Some(json!("new")), Some(json!("mine")), None, None]);
        assert_eq!(ctx.ask(text("a").key("k")).unwrap(), "new");
        assert_eq!(context(vec![]).input_answer(), None);
        assert_eq!((ctx.actor(), ctx.attempt(), ctx.idempotency_key()), ("carl", 1, ctx.call_id().to_string()));
    }

    // A6
    #[test]
    fn a_question_that_cannot_be_asked_is_an_error_of_its_own() {
        let ctx = context(vec![]);
        for key in ["", "1", "007", "askback:interrupted", "a\0b", &"x".repeat(256)] {
            let error = ctx.ask(text("Name?").key(key)).unwrap_err();
            assert!(matches!(error, AskError::Invalid(_)), "{key:?}: {error}");
        }
        assert!(matches!(ctx.ask(confirm(" ")), Err(AskError::Invalid(_))));
        assert!(matches!(ctx.ask(url("x", "file:///etc/passwd")), Err(AskError::Invalid(_))));
        assert_eq!(ctx.take_open().len(), 0);
        for key in ["a", "1a", "-1", "a.b", "é 🙂", &"x".repeat(255)] {
            assert!(matches!(ctx.ask(text("Name?").key(key)), Err(AskError::Unanswered)), "{key:?}");
        }
        assert_eq!(ctx.take_open().len(), 6);
    }

    // A3, A34
    #[test]
    fn an_answer_that_is_not_of_the_tools_type_is_a_misfit() {
        let asked = asked("k", 0, choice::<Value>("x", [1, 2]).request(), Some(json!(2)));
        let ctx = context(vec![asked]);
        assert_eq!(ctx.ask(choice::<i64>("x", [1, 2]).key("k")).unwrap(), 2);
        assert!(matches!(ctx.ask(choice::<String>("x", [1, 2]).key("k")), Err(AskError::Misfit(_))));
    }

    #[derive(serde::Deserialize)]
    #[serde(try_from = "Value")]
    struct Touchy;
    impl TryFrom<Value> for Touchy {
        type Error = String;
        fn try_from(value: Value) -> Result<Self, String> {
            if value["panic"] == true {
                panic!("a bug of the tool's")
            }
            if value["fit"] == true { Ok(Self) } else { Err("they do not fit".into()) }
        }
    }
    impl JsonSchema for Touchy {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Touchy".into()
        }
        fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
            true.into()
        }
    }
    struct Ruled;
    impl Tool for Ruled {
        const NAME: &str = "ruled";
        const DESCRIPTION: &str = "Of a test";
        type Args = Touchy;
        type Output = f64;
        fn approval(&self, _: &Touchy) -> Approval {
            Approval::Free
        }
        async fn call(&self, _: ToolContext, _: Touchy) -> ToolResult<f64> {
            Ok(f64::NAN)
        }
    }

    // A45
    #[tokio::test]
    async fn a_rule_never_fails_open() {
        let tool = Typed::new(Ruled);
        assert_eq!(tool.approval(r#"{"fit":true}"#), Ok(Approval::Free));
        assert_eq!(tool.approval(r#"{"panic":true}"#), Ok(Approval::Required));
        assert!(tool.approval("{}").unwrap_err().contains("they do not fit"));
        assert!(tool.approval("not JSON").is_err());
        let ran = tool.run(context(vec![]), "{}".into()).await;
        let Ran::Failed { message, .. } = ran else { panic!("{ran:?}") };
        assert_eq!(message, "the arguments do not fit the tool ruled: they do not fit");
    }

    #[tokio::test]
    async fn what_a_panic_says_is_not_for_the_model() {
        let ran = run(|_| panic!("secret detail"), vec![]).await;
        let Ran::Failed { message, error } = ran else { panic!("{ran:?}") };
        assert_eq!(message, "the tool says failed");
        assert!(error.unwrap().to_string().contains("secret detail"));
    }

    #[test]
    fn a_schema_is_always_an_object() {
        assert_eq!(schema_of::<()>()["type"], "object");
        let schema = schema_of::<serde_json::Map<String, Value>>();
        assert_eq!((&schema["type"], schema.get("properties").is_some()), (&json!("object"), true));
        assert_eq!(Typed::new(Ruled).spec().schema["properties"], json!({}));
    }
}
