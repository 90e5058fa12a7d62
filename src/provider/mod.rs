//! What askback needs of a model, and the wires it speaks.
//!
//! A provider turns a [`Request`] into a [`Turn`]. It keeps what the other side
//! sent as the exact text it sent ([`Turn::items`]), and sends that back
//! untouched when it meets it again in a request's history: reasoning and
//! signatures that nobody here understands survive that way.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::error::BoxError;

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(any(feature = "anthropic", feature = "openai-chat"))]
mod failure;
#[cfg(any(feature = "anthropic", feature = "openai-chat"))]
mod http;
#[cfg(feature = "openai-chat")]
pub mod openai_chat;
#[cfg(feature = "test-util")]
pub mod scripted;
#[cfg(any(feature = "anthropic", feature = "openai-chat"))]
mod wire;

/// A model behind some wire.
///
/// A complete one, which repeats what it is told:
///
/// ```
/// use askback::provider::{Entry, Provider, ProviderError, Request, Turn};
///
/// struct Echo;
///
/// impl Provider for Echo {
///     fn service(&self) -> &str { "echo" }
///     fn api(&self) -> &str { "echo" }
///     fn model(&self) -> &str { "echo-1" }
///
///     async fn generate(&self, request: &Request) -> Result<Turn, ProviderError> {
///         let said = request.history.iter().rev().find_map(|entry| match entry {
///             Entry::User { text } => Some(text.clone()),
///             _ => None,
///         });
///         Ok(Turn::text(said.unwrap_or_default()))
///     }
/// }
/// ```
pub trait Provider: Send + Sync + 'static {
    /// Who is asked, say `anthropic`. Stored with each turn.
    fn service(&self) -> &str;

    /// The wire format of [`Turn::items`], say `anthropic_messages`. Stored with each turn.
    fn api(&self) -> &str;

    /// The model as it is requested.
    fn model(&self) -> &str;

    /// Asks for one turn.
    ///
    /// The future may be dropped at any await: when the lease on the chat ends, or the generation is cancelled.
    fn generate(&self, request: &Request) -> impl Future<Output = Result<Turn, ProviderError>> + Send;
}

/// A provider whose type is forgotten; cheap to clone.
#[derive(Clone)]
pub struct Model(Arc<dyn DynProvider>);

impl Model {
    /// Wraps a provider.
    pub fn new(provider: impl Provider) -> Self {
        Self(Arc::new(provider))
    }

    /// Who is asked.
    pub fn service(&self) -> &str {
        self.0.service()
    }

    /// The wire format.
    pub fn api(&self) -> &str {
        self.0.api()
    }

    /// The model as it is requested.
    pub fn model(&self) -> &str {
        self.0.model()
    }

    /// Asks for one turn.
    ///
    /// # Errors
    /// What the provider says; see [`ProviderError`].
    pub async fn generate(&self, request: &Request) -> Result<Turn, ProviderError> {
        self.0.generate(request).await
    }
}

impl<P: Provider> From<P> for Model {
    fn from(provider: P) -> Self {
        Self::new(provider)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("service", &self.service())
            .field("api", &self.api())
            .field("model", &self.model())
            .finish()
    }
}

trait DynProvider: Send + Sync {
    fn service(&self) -> &str;
    fn api(&self) -> &str;
    fn model(&self) -> &str;
    fn generate<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Turn, ProviderError>>;
}

impl<P: Provider> DynProvider for P {
    fn service(&self) -> &str {
        Provider::service(self)
    }
    fn api(&self) -> &str {
        Provider::api(self)
    }
    fn model(&self) -> &str {
        Provider::model(self)
    }
    fn generate<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Turn, ProviderError>> {
        Box::pin(Provider::generate(self, request))
    }
}

/// What a model is asked: the whole conversation so far.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Request {
    /// The system prompt.
    pub instructions: Option<String>,
    /// The conversation, oldest first. Every call in it has its result.
    pub history: Vec<Entry>,
    /// The tools the model may call.
    pub tools: Vec<ToolSpec>,
    /// Which tools it must or must not call; `None` leaves it to the provider's default.
    pub tool_choice: Option<ToolChoice>,
    /// The most tokens of the reply.
    pub max_tokens: Option<u32>,
}

/// A piece of the conversation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Entry {
    /// A person's text.
    User {
        /// What they said.
        text: String,
    },
    /// A turn of a model, with the results of its calls.
    Turn {
        /// The plain text, for another wire than the turn's own.
        text: String,
        /// The turn as it came, JSON text.
        items: Option<String>,
        /// Who sent it.
        service: Option<String>,
        /// In which wire format.
        api: Option<String>,
        /// Its calls in the model's order, each with its result.
        calls: Vec<CallResult>,
    },
}

/// A call of an earlier turn with what came of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallResult {
    /// The id the provider gave it; may be blank or repeated.
    pub wire_id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model sent them, text.
    pub arguments: String,
    /// What the model reads, JSON text.
    pub result: String,
    /// Whether that is an error, a decline included.
    pub is_error: bool,
}

impl CallResult {
    /// A call that has succeeded; set [`is_error`](Self::is_error) for one that has not.
    pub fn new(
        wire_id: impl Into<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
        result: impl Into<String>,
    ) -> Self {
        Self {
            wire_id: wire_id.into(),
            name: name.into(),
            arguments: arguments.into(),
            result: result.into(),
            is_error: false,
        }
    }
}

/// A tool as the model is told of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub schema: Value,
}

impl ToolSpec {
    /// A tool of this name.
    pub fn new(name: impl Into<String>, description: impl Into<String>, schema: Value) -> Self {
        Self { name: name.into(), description: description.into(), schema }
    }
}

/// Which tools a model must or must not call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// As it likes.
    Auto,
    /// None.
    None,
    /// Any, but one.
    Required,
    /// This one.
    Tool(String),
}

/// One turn of a model.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Turn {
    /// The plain text of the reply.
    pub text: String,
    /// The turn exactly as it came, JSON text; `None` when the provider has no format of its own.
    pub items: Option<String>,
    /// The calls in the model's order.
    pub calls: Vec<TurnCall>,
    /// The reasoning that can be read, for showing; what must go back is in `items`.
    pub reasoning: String,
    /// The provider's own word for why it stopped.
    pub finish_reason: Option<String>,
    /// The provider's id of the reply.
    pub response_id: Option<String>,
    /// The model that answered, as it names itself.
    pub model: Option<String>,
    /// What it used up.
    pub usage: Usage,
}

impl Turn {
    /// A turn that only says something.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Adds a call.
    #[must_use]
    pub fn call(mut self, wire_id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        self.calls.push(TurnCall { wire_id: wire_id.into(), name: name.into(), arguments: arguments.into() });
        self
    }
}

/// A call as the model made it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnCall {
    /// The provider's id: may be blank, or repeated.
    pub wire_id: String,
    /// The tool.
    pub name: String,
    /// The arguments as text, exactly as they came; blank means none.
    pub arguments: String,
}

impl TurnCall {
    /// A call of a tool.
    pub fn new(wire_id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self { wire_id: wire_id.into(), name: name.into(), arguments: arguments.into() }
    }
}

/// What a reply used up, in tokens as the provider counted them; fields are not added up across each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// In the request.
    pub input: Option<u64>,
    /// In the reply.
    pub output: Option<u64>,
    /// In both, where the provider says so.
    pub total: Option<u64>,
    /// Of the request: read from a cache.
    pub cache_read: Option<u64>,
    /// Of the request: written to a cache.
    pub cache_write: Option<u64>,
    /// Of the reply: spent on reasoning.
    pub reasoning: Option<u64>,
}

/// Why a provider gave no turn.
#[derive(Debug)]
pub struct ProviderError {
    /// The HTTP status, if there was a reply.
    status: Option<u16>,
    /// The provider's own code or type of the error.
    code: Option<String>,
    message: String,
    retryable: bool,
    retry_after: Option<Duration>,
    source: Option<BoxError>,
}

impl ProviderError {
    /// An error with the message a person should read. It must hold no key.
    pub fn new(message: impl Into<String>) -> Self {
        Self { status: None, code: None, message: message.into(), retryable: false, retry_after: None, source: None }
    }

    /// The HTTP status of the reply.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// The provider's own code or type of the error.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Says that the same request may succeed later.
    #[must_use]
    pub fn retryable(mut self, after: Option<Duration>) -> Self {
        (self.retryable, self.retry_after) = (true, after);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The HTTP status, if there was a reply.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// The provider's own code or type of the error.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The message, without the status.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// How long the provider asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "status {status}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for ProviderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
