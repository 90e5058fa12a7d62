//! An agent: what is kept on a chat's row so that any process builds its model, instructions and tools again.

use std::any::type_name;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::erased::{DynTool, Typed, panic_text};
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::id::ChatId;
use crate::provider::{Model, ToolChoice};
use crate::tool::{Approval, Tool};

/// How many turns with tool calls a generation may have, unless the agent says otherwise.
pub const DEFAULT_MAX_TOOL_TURNS: u32 = 25;

/// A kind of agent. Its own fields are kept on the chat's row, so that any process builds it again.
///
/// An agent with several actions is an enum with
/// `#[serde(tag = "action", content = "arguments")]`: the two keys are two columns.
///
/// ```
/// use askback::{Agent, AgentContext, BoxError, Model, Setup};
/// use serde::{Deserialize, Serialize};
///
/// /// What the app lends its agents.
/// struct Shop {
///     model: Model,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Support {
///     ticket: i64,
/// }
///
/// impl Agent for Support {
///     const NAME: &str = "support";
///     type App = Shop;
///
///     async fn setup(&self, shop: &Shop, _ctx: &AgentContext) -> Result<Setup, BoxError> {
///         Ok(Setup::new(shop.model.clone()).instructions(format!("Help with ticket {}.", self.ticket)))
///     }
/// }
/// ```
pub trait Agent: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name it is registered under; it stands on the chats' rows.
    const NAME: &str;
    /// What the app lends it: pools, models, clients.
    type App: Send + Sync + 'static;

    /// Says which model, instructions and tools it works with now.
    ///
    /// # Errors
    /// Any error leaves the chat as it was, to be tried again.
    fn setup(
        &self,
        app: &Self::App,
        ctx: &AgentContext,
    ) -> impl Future<Output = std::result::Result<Setup, BoxError>> + Send;
}

/// For whom and for which chat an agent is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AgentContext {
    /// The chat.
    pub chat: ChatId,
    /// Whose chat it is; empty when the app has one tenant.
    pub tenant: String,
    /// On whose behalf the agent acts.
    pub actor: String,
    /// The app's own, from the chat's row.
    pub metadata: Option<Value>,
}

/// What an agent works with: a model, instructions, tools and limits.
#[derive(Clone)]
pub struct Setup {
    pub(crate) model: Model,
    pub(crate) instructions: Option<String>,
    pub(crate) tools: BTreeMap<String, Arc<dyn DynTool>>,
    /// In the order they were added, as the model is told of them.
    pub(crate) order: Vec<String>,
    pub(crate) gated: Vec<String>,
    pub(crate) max_tool_turns: u32,
    pub(crate) tool_choice: Option<ToolChoice>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stop_on_tool_error: bool,
}

impl Setup {
    /// An agent with this model.
    pub fn new(model: impl Into<Model>) -> Self {
        Self {
            model: model.into(),
            instructions: None,
            tools: BTreeMap::new(),
            order: Vec::new(),
            gated: Vec::new(),
            max_tool_turns: DEFAULT_MAX_TOOL_TURNS,
            tool_choice: None,
            max_tokens: None,
            stop_on_tool_error: false,
        }
    }

    /// The system prompt.
    #[must_use]
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.instructions = Some(text.into());
        self
    }

    /// Adds a tool. One of the same name takes the earlier one's place.
    #[must_use]
    pub fn tool<T: Tool>(self, tool: T) -> Self {
        self.add(T::NAME, Arc::new(Typed::new(tool)))
    }

    /// Adds a tool that works in the transaction of its result. One of the same name takes the earlier one's place.
    #[cfg(feature = "_sql")]
    #[must_use]
    pub fn transactional_tool<T: crate::TransactionalTool>(self, tool: T) -> Self {
        self.add(T::NAME, Arc::new(crate::transactional::Transacting::new(tool)))
    }

    fn add(mut self, name: &str, tool: Arc<dyn DynTool>) -> Self {
        if self.tools.insert(name.to_owned(), tool).is_none() {
            self.order.push(name.to_owned());
        }
        self
    }

    /// Every call of these tools waits for an approval. A name that no tool has is logged.
    #[must_use]
    pub fn requires_approval<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.gated.extend(tools.into_iter().map(Into::into));
        self
    }

    /// How many turns with tool calls a generation may have, pauses included.
    #[must_use]
    pub fn max_tool_turns(mut self, turns: u32) -> Self {
        self.max_tool_turns = turns;
        self
    }

    /// Which tools the model must or must not call; a forced choice holds until the model has used it.
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = Some(choice);
        self
    }

    /// The most tokens of a reply.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Ends a drive with the error of a tool, instead of letting the model read it and go on.
    ///
    /// The result is recorded all the same and the siblings' results stay. The chat is then `failed`: no worker takes
    /// it, an explicit [`complete`](crate::Chat::complete) goes on.
    #[must_use]
    pub fn stop_on_tool_error(mut self) -> Self {
        self.stop_on_tool_error = true;
        self
    }

    /// Whether a call needs an approval, by today's tools. A call that cannot run needs none.
    pub(crate) fn is_gated(&self, tool: &str, arguments: &str) -> bool {
        let Some(offered) = self.tools.get(tool) else { return false };
        match offered.approval(arguments) {
            Ok(Approval::Required) => true,
            Ok(Approval::Free) => self.gated.iter().any(|name| name == tool),
            // It gets an error result that says so. Edited arguments that fit are looked at again.
            Err(_) => false,
        }
    }

    fn warn_of_unknown_gates(&self, agent: &str) {
        for name in self.gated.iter().filter(|name| !self.tools.contains_key(*name)) {
            tracing::warn!(agent, tool = %name, "requires_approval names a tool that the agent does not offer");
        }
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("model", &self.model)
            .field("tools", &self.order)
            .field("gated", &self.gated)
            .field("max_tool_turns", &self.max_tool_turns)
            .finish_non_exhaustive()
    }
}

/// An agent as the row keeps it.
pub(crate) struct Stored {
    pub(crate) action: String,
    pub(crate) arguments: String,
}

impl Stored {
    pub(crate) fn of<A: Agent>(agent: &A) -> Result<Self> {
        let unfit = |why: &str| Error::invalid(format!("the agent {} cannot be kept on a row: {why}", A::NAME));
        let value = serde_json::to_value(agent).map_err(|e| unfit("it is no JSON").caused_by(e))?;
        let (action, arguments) = match value {
            Value::Object(map) if is_tagged(&map) => {
                let mut map = map;
                let action = map.remove("action").and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
                (action, map.remove("arguments").unwrap_or(Value::Null))
            }
            other => (String::new(), other),
        };
        let stored = Self { action, arguments: arguments.to_string() };
        // What cannot be read back would strand the chat in every process.
        read::<A>(&stored.action, &stored.arguments).map_err(|e| unfit("it cannot be read back").caused_by(e))?;
        Ok(stored)
    }
}

/// An enum with `tag = "action", content = "arguments"`.
fn is_tagged(map: &Map<String, Value>) -> bool {
    map.get("action").is_some_and(Value::is_string) && map.keys().all(|key| key == "action" || key == "arguments")
}

fn read<A: Agent>(action: &str, arguments: &str) -> std::result::Result<A, serde_json::Error> {
    if action.is_empty() {
        return serde_json::from_str(arguments);
    }
    let mut map = Map::from_iter([("action".to_owned(), Value::from(action))]);
    match serde_json::from_str(arguments)? {
        Value::Null => {}
        arguments => drop(map.insert("arguments".to_owned(), arguments)),
    }
    serde_json::from_value(Value::Object(map))
}

/// An agent's type with what the app lends it, both forgotten.
pub(crate) trait Registered: Send + Sync {
    fn build<'a>(&'a self, action: &'a str, arguments: &'a str, ctx: &'a AgentContext) -> BoxFuture<'a, Result<Setup>>;
}

pub(crate) struct Lent<A: Agent> {
    pub(crate) app: A::App,
}

impl<A: Agent> Registered for Lent<A> {
    fn build<'a>(&'a self, action: &'a str, arguments: &'a str, ctx: &'a AgentContext) -> BoxFuture<'a, Result<Setup>> {
        Box::pin(async move {
            let agent: A = read(action, arguments).map_err(|e| {
                let what = if action.is_empty() { String::new() } else { format!(" with the action {action:?}") };
                Error::new(
                    ErrorKind::Agent,
                    format!(
                        "chat {}: its row does not fit the agent {}{what} ({})",
                        ctx.chat,
                        A::NAME,
                        type_name::<A>()
                    ),
                )
                .caused_by(e)
            })?;
            let setup = AssertUnwindSafe(async { agent.setup(&self.app, ctx).await }).catch_unwind().await;
            let failed =
                || Error::new(ErrorKind::Agent, format!("chat {}: setting up the agent {}", ctx.chat, A::NAME));
            let setup = match setup {
                Ok(Ok(setup)) => setup,
                Ok(Err(error)) => return Err(failed().caused_by(error)),
                Err(panic) => return Err(failed().caused_by(format!("it panicked: {}", panic_text(&*panic)))),
            };
            setup.warn_of_unknown_gates(A::NAME);
            Ok(setup)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::provider::scripted::Scripted;
    use crate::tool::{ToolContext, ToolResult};

    macro_rules! agent {
        ($($name:ident),*) => { $(impl Agent for $name {
            const NAME: &str = "desk";
            type App = ();
            async fn setup(&self, (): &(), _: &AgentContext) -> Result<Setup, BoxError> {
                Err("never".into())
            }
        })* };
    }
    agent!(Plain, Unit, Desk, ActionField, Untagged, Newtype);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Plain {
        ticket: i64,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Unit;
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "action", content = "arguments")]
    enum Desk {
        Greet,
        Answer { ticket: i64 },
        Both(i64, String),
        Maybe(Option<i64>),
    }
    /// Happens to have a field of that name.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct ActionField {
        action: String,
        more: i64,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Untagged {
        One { a: i64 },
        Two,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Newtype(String);

    fn kept<A: Agent + PartialEq + fmt::Debug>(agent: &A, action: &str, arguments: Value) {
        let stored = Stored::of(agent).unwrap();
        assert_eq!(stored.action, action);
        assert_eq!(serde_json::from_str::<Value>(&stored.arguments).unwrap(), arguments);
        assert_eq!(&read::<A>(&stored.action, &stored.arguments).unwrap(), agent);
    }

    // A22, A23
    #[test]
    fn an_agent_is_kept_as_action_and_arguments() {
        kept(&Plain { ticket: 7 }, "", json!({ "ticket": 7 }));
        kept(&Unit, "", json!(null));
        kept(&Desk::Greet, "Greet", json!(null));
        kept(&Desk::Answer { ticket: 7 }, "Answer", json!({ "ticket": 7 }));
        kept(&Desk::Both(1, "é\0".into()), "Both", json!([1, "é\0"]));
        kept(&Desk::Maybe(Some(1)), "Maybe", json!(1));
        kept(&Desk::Maybe(None), "Maybe", json!(null));
        kept(&ActionField { action: "x".into(), more: 1 }, "", json!({ "action": "x", "more": 1 }));
        kept(&Untagged::One { a: 1 }, "", json!({ "One": { "a": 1 } }));
        kept(&Untagged::Two, "", json!("Two"));
        kept(&Newtype("\"".into()), "", json!("\""));
    }

    struct Pay;
    #[derive(Deserialize, schemars::JsonSchema)]
    struct Amount {
        amount: i64,
    }
    impl Tool for Pay {
        const NAME: &str = "pay";
        const DESCRIPTION: &str = "Pays";
        type Args = Amount;
        type Output = i64;
        fn approval(&self, args: &Amount) -> Approval {
            match args.amount {
                666 => panic!("no rule today"),
                101.. => Approval::Required,
                _ => Approval::Free,
            }
        }
        async fn call(&self, _: ToolContext, args: Amount) -> ToolResult<i64> {
            Ok(args.amount)
        }
    }

    // A40, A44, A45, case CF5
    #[test]
    fn a_gate_is_named_or_decided_by_the_arguments() {
        let open = Setup::new(Scripted::new(["x"])).tool(Pay);
        let gated = open.clone().requires_approval(["unheard of"]).requires_approval(["pay"]);
        // Tool, arguments, whether it waits by its rule, and when it is named.
        let cases = [
            ("pay", r#"{"amount":100}"#, false, true),
            ("pay", r#"{"amount":101}"#, true, true),
            ("pay", r#"{"amount":666}"#, true, true),
            // These can run nowhere: the model gets an error.
            ("pay", r#"{"amount":"1"}"#, false, false),
            ("pay", r#"{"amount":1,"amount":9999}"#, false, false),
            ("pay", r#"{"amount":NaN}"#, false, false),
            ("pay", "null", false, false),
            ("pay", "", false, false),
            ("unheard of", "{}", false, false),
        ];
        for (tool, arguments, by_rule, by_name) in cases {
            assert_eq!(open.is_gated(tool, arguments), by_rule, "{tool} {arguments}");
            assert_eq!(gated.is_gated(tool, arguments), by_name, "{tool} {arguments}");
        }
    }
}
