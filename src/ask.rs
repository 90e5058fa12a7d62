//! What a tool writes to ask: a request together with the type of its answer.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::form::{ChoiceOption, Field};
use crate::request::{InputRequest, Kind, as_text};

/// A request together with the type of its answer; what the constructors return.
pub struct Ask<T> {
    pub(crate) request: InputRequest,
    pub(crate) key: Option<String>,
    pub(crate) read: fn(Value) -> Result<T, serde_json::Error>,
    answer: PhantomData<fn() -> T>,
}

impl<T> Ask<T> {
    fn new(request: InputRequest, read: fn(Value) -> Result<T, serde_json::Error>) -> Self {
        Self { request, key: None, read, answer: PhantomData }
    }

    /// Pairs the question with its answer by this key, not by its place among the tool's asks.
    ///
    /// Use it where the prompt may differ between two runs of the tool, or
    /// where it does not always ask the same questions in the same order.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// A JSON Schema for the answer: a hint for the page.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.request.schema = Some(schema).filter(|schema| !schema.is_null());
        self
    }

    /// Anything the page should know.
    #[must_use]
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.request.metadata = metadata;
        self
    }

    /// Lets only this person answer, or the others named so.
    #[must_use]
    pub fn may_person(mut self, name: impl fmt::Display) -> Self {
        self.request.may.push(format!("person:{name}"));
        self
    }

    /// Lets only people with this role answer, or the others named so.
    #[must_use]
    pub fn may_role(mut self, role: impl fmt::Display) -> Self {
        self.request.may.push(format!("role:{role}"));
        self
    }

    /// How long the question may stay open, counted by the database's clock; cut to whole seconds.
    #[must_use]
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.request.expires_in = Some(time.as_secs());
        self
    }

    /// What is answered when the time is over; without it the question is then declined.
    #[must_use]
    pub fn default_answer(mut self, answer: impl Into<Value>) -> Self {
        self.request.default = Some(answer.into());
        self
    }

    /// The plain request.
    pub fn request(&self) -> &InputRequest {
        &self.request
    }
}

impl<T> fmt::Debug for Ask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask").field("key", &self.key).field("request", &self.request).finish()
    }
}

/// Asks for a yes. `true` goes on; `false` declines, and the tool does not run again.
pub fn confirm(prompt: impl Into<String>) -> Ask<()> {
    Ask::new(InputRequest::new(Kind::Confirm, prompt), |_| Ok(()))
}

/// Asks for a text.
pub fn text(prompt: impl Into<String>) -> Ask<String> {
    Ask::new(InputRequest::new(Kind::Text, prompt), |value| Ok(as_text(&value)))
}

/// Asks for one of the options: bare values, or `(value, label)` pairs.
///
/// ```
/// use askback::choice;
///
/// let bare = choice::<String>("Which size?", ["S", "M", "L"]);
/// let labelled = choice::<i64>("Which plan?", [(1, "Basic"), (2, "Pro")]);
/// assert_eq!(bare.request().options.len(), 3);
/// assert_eq!(labelled.request().options[1].shown(), "Pro");
/// ```
pub fn choice<T: DeserializeOwned>(
    prompt: impl Into<String>,
    options: impl IntoIterator<Item = impl Into<ChoiceOption>>,
) -> Ask<T> {
    let mut request = InputRequest::new(Kind::Choice, prompt);
    request.options = options.into_iter().map(Into::into).collect();
    Ask::new(request, serde_json::from_value)
}

/// Asks for a value that the tool uses and the model never sees.
pub fn secret(prompt: impl Into<String>) -> Ask<String> {
    Ask::new(InputRequest::new(Kind::Secret, prompt), |value| Ok(as_text(&value)))
}

/// Asks for several named fields at once.
pub fn form<T: DeserializeOwned>(prompt: impl Into<String>, fields: impl IntoIterator<Item = Field>) -> Ask<T> {
    let mut request = InputRequest::new(Kind::Form, prompt);
    request.fields = fields.into_iter().collect();
    Ask::new(request, serde_json::from_value)
}

/// Sends the person to an address; only `http` and `https` are asked.
pub fn url(prompt: impl Into<String>, url: impl Into<String>) -> Ask<()> {
    let mut request = InputRequest::new(Kind::Url, prompt);
    request.url = Some(url.into());
    Ask::new(request, |_| Ok(()))
}
