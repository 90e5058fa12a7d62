//! What a tool asks a person, and what an answer to it may be. Pure.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::decision::{Decision, MAX_NAME_BYTES, plain};
use crate::error::{Error, Result};
use crate::id::{ChatId, MessageId, QuestionId, clip};

/// The most bytes an answer may have as JSON text: 4 MiB.
pub const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// The most bytes a note, a name, a key or a route may have.
pub(crate) const MAX_NOTE_BYTES: usize = 64 * 1024;

/// The shape of a question, and so of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// The gate of a call whose tool requires approval: `true` lets it run.
    Approval,
    /// `true` goes on, `false` declines.
    Confirm,
    /// Any text, the empty one included.
    Text,
    /// One of the options.
    Choice,
    /// A value that the tool uses and the model never sees.
    Secret,
    /// Several named fields.
    Form,
    /// An address the person is sent to; the answer `true` says that they agreed to go.
    Url,
}

impl Kind {
    /// The lower-case word for it, as on the row and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Approval => "approval",
            Kind::Confirm => "confirm",
            Kind::Text => "text",
            Kind::Choice => "choice",
            Kind::Secret => "secret",
            Kind::Form => "form",
            Kind::Url => "url",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One option of a choice: the value is the answer, the label is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "RawOption", into = "RawOption")]
pub struct ChoiceOption {
    /// What the tool gets.
    pub value: Value,
    /// What the person reads; `None` shows the value.
    pub label: Option<String>,
}

impl ChoiceOption {
    /// An option whose label differs from its value.
    pub fn labelled(value: impl Into<Value>, label: impl Into<String>) -> Self {
        Self { value: value.into(), label: Some(label.into()) }
    }

    /// What the person reads.
    pub fn shown(&self) -> String {
        self.label.clone().unwrap_or_else(|| as_text(&self.value))
    }
}

/// An option on the wire: a bare value or `{value, label}`; without `value` the label is the value.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum RawOption {
    Labelled {
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
        label: String,
    },
    Valued {
        value: Value,
    },
    Bare(Value),
}

/// A `null` that is there is no missing value: it is refused when it is asked.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl From<RawOption> for ChoiceOption {
    fn from(raw: RawOption) -> Self {
        match raw {
            RawOption::Labelled { value, label } => {
                Self { value: value.unwrap_or_else(|| Value::String(label.clone())), label: Some(label) }
            }
            RawOption::Valued { value } | RawOption::Bare(value) => Self { value, label: None },
        }
    }
}

impl From<ChoiceOption> for RawOption {
    fn from(option: ChoiceOption) -> Self {
        match option.label {
            Some(label) => RawOption::Labelled { value: Some(option.value), label },
            None if option.value.is_object() => RawOption::Valued { value: option.value },
            None => RawOption::Bare(option.value),
        }
    }
}

macro_rules! bare_option {
    ($($from:ty),*) => { $(impl From<$from> for ChoiceOption {
        fn from(value: $from) -> Self {
            Self { value: value.into(), label: None }
        }
    })* };
}
bare_option!(&str, String, i32, i64, u32, Value);

impl<V: Into<Value>, L: Into<String>> From<(V, L)> for ChoiceOption {
    fn from((value, label): (V, L)) -> Self {
        Self::labelled(value, label)
    }
}

/// The type of a form's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FieldType {
    /// A text.
    String,
    /// A number.
    Number,
    /// A number without a fraction.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// One of the field's options.
    Choice,
    /// Any of the field's options, as a list.
    Choices,
}

/// One named field of a form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Field {
    /// The key of the field in the answer.
    pub name: String,
    /// What it takes.
    #[serde(rename = "type")]
    pub kind: FieldType,
    /// What the person reads beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What the person reads below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether an answer without it is refused.
    #[serde(default)]
    pub required: bool,
    /// The options of a choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<ChoiceOption>,
    /// What an answer without it gets; `null` is none.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub default: Value,
}

impl Field {
    /// A field that may be left out.
    pub fn new(name: impl Into<String>, kind: FieldType) -> Self {
        Self {
            name: name.into(),
            kind,
            title: None,
            description: None,
            required: false,
            options: Vec::new(),
            default: Value::Null,
        }
    }

    /// Refuses an answer without it.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// What the person reads beside it.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The options of a choice.
    #[must_use]
    pub fn options<O: Into<ChoiceOption>>(mut self, options: impl IntoIterator<Item = O>) -> Self {
        self.options = options.into_iter().map(Into::into).collect();
        self
    }

    /// What an answer without it gets.
    #[must_use]
    pub fn default_value(mut self, default: impl Into<Value>) -> Self {
        self.default = default.into();
        self
    }

    fn check(&self, value: &Value) -> Result<Value> {
        let right = match self.kind {
            FieldType::String => value.is_string(),
            FieldType::Number => value.is_number(),
            FieldType::Integer => match value.as_f64() {
                // `3.0` is a whole number, and a tool's integer takes `3` only.
                Some(n) if value.is_f64() && n.fract() == 0.0 && n.abs() < 9e15 => return Ok(Value::from(n as i64)),
                _ => value.is_i64() || value.is_u64(),
            },
            FieldType::Boolean => value.is_boolean(),
            FieldType::Choice => return pick(&self.options, value).map_err(|e| e.while_doing(&self.name)),
            FieldType::Choices => {
                let Some(values) = value.as_array() else {
                    return Err(Error::invalid(format!("{}: a list of its options is expected", self.name)));
                };
                let picked: Result<Vec<_>> = values.iter().map(|v| pick(&self.options, v)).collect();
                return picked.map(Value::Array).map_err(|e| e.while_doing(&self.name));
            }
        };
        match right {
            true => Ok(value.clone()),
            false => Err(Error::invalid(format!("{}: {} is expected", self.name, article(self.kind)))),
        }
    }
}

fn article(kind: FieldType) -> &'static str {
    match kind {
        FieldType::String => "a text",
        FieldType::Number => "a number",
        FieldType::Integer => "a whole number",
        FieldType::Boolean => "true or false",
        FieldType::Choice => "one of its options",
        FieldType::Choices => "a list of its options",
    }
}

/// What a tool asks a person: a plain value, equal when all its parts are.
///
/// Made by [`confirm`], [`text`], [`choice`], [`secret`], [`form`] and
/// [`url`](fn@url). As JSON, attributes that are not set are left out,
/// `metadata` is always written, and unknown keys are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InputRequest {
    /// The shape of the answer.
    pub kind: Kind,
    /// What the person reads.
    pub prompt: String,
    /// The options of a choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<ChoiceOption>,
    /// The fields of a form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Field>,
    /// Where a `url` question sends the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A JSON Schema for the answer: a hint for the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Anything the tool wants the page to know.
    #[serde(default = "empty_object")]
    pub metadata: Value,
    /// Who may answer: `person:<name>` or `role:<name>`; empty means whoever the app lets in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub may: Vec<String>,
    /// How long it may stay open, in whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
    /// What is answered when the time is over; without it the question is then declined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// The call that asks. Filled by askback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool that asks. Filled by askback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// The arguments as the model sent them. Filled by askback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
}

fn empty_object() -> Value {
    Value::Object(Map::new())
}

impl InputRequest {
    pub(crate) fn new(kind: Kind, prompt: impl Into<String>) -> Self {
        Self {
            kind,
            prompt: prompt.into(),
            options: Vec::new(),
            fields: Vec::new(),
            url: None,
            schema: None,
            metadata: empty_object(),
            may: Vec::new(),
            expires_in: None,
            default: None,
            tool_call_id: None,
            tool_name: None,
            arguments: None,
        }
    }

    /// Reads a request from JSON.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when a key has the wrong type or the kind is unknown.
    pub fn from_json(value: Value) -> Result<Self> {
        if let Some(kind) = value.get("kind").and_then(Value::as_str)
            && serde_json::from_value::<Kind>(Value::from(kind)).is_err()
        {
            return Err(Error::invalid(format!(
                "{:?} is no kind of question (confirm, text, choice, secret, form, url)",
                clip(kind)
            )));
        }
        serde_json::from_value(value).map_err(|e| Error::invalid("this is no input request").caused_by(e))
    }

    /// The request as a JSON object.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    /// Refuses what no person could answer.
    pub(crate) fn validate(&self) -> Result<()> {
        let kind = self.kind;
        if self.prompt.trim().is_empty() {
            return Err(Error::invalid(format!("a {kind} question needs a prompt")));
        }
        let lists = match kind {
            Kind::Choice => vec![("a choice", &self.options)],
            Kind::Form if self.fields.is_empty() => return Err(Error::invalid("a form needs at least one field")),
            Kind::Form => self
                .fields
                .iter()
                .filter(|f| matches!(f.kind, FieldType::Choice | FieldType::Choices))
                .map(|f| (f.name.as_str(), &f.options))
                .collect(),
            _ => Vec::new(),
        };
        for (name, options) in lists {
            if options.is_empty() {
                return Err(Error::invalid(format!("{name} needs at least one option")));
            }
            if let Some(option) = options.iter().find(|o| matches!(o.value, Value::Null | Value::Bool(false))) {
                return Err(Error::invalid(format!(
                    "{name}: {} cannot be an option, it means no answer",
                    option.value
                )));
            }
        }
        if kind == Kind::Url {
            let url = self.url.as_deref().unwrap_or_default();
            let safe = url.starts_with("https://") || url.starts_with("http://");
            if !safe || url.chars().any(|c| c.is_control() || c == ' ') {
                return Err(Error::invalid(format!("only http and https addresses are asked, not {:?}", clip(url))));
            }
        }
        for name in &self.may {
            plain("the name of who may answer", name, "service:".len() + MAX_NAME_BYTES)?;
        }
        if let Some(default) = &self.default {
            self.check(default).map_err(|e| e.while_doing("the default answer"))?;
        }
        // The row keeps JSON text, and whoever lists the questions reads it.
        let text = serde_json::to_string(self).map_err(|e| Error::invalid("it is no JSON").caused_by(e))?;
        if let Err(e) = serde_json::from_str::<Self>(&text) {
            return Err(Error::invalid(format!("it could not be read back: {e}")));
        }
        if self.expires_in.is_some_and(|s| s > MAX_EXPIRY.as_secs()) {
            return Err(Error::invalid("a question may stay open for at most 100 years"));
        }
        Ok(())
    }

    /// Checks an answer and gives what is recorded for it.
    ///
    /// `false` declines every kind. A `choice` is compared as text and gives the option's own value.
    pub(crate) fn check(&self, answer: &Value) -> Result<Checked> {
        let value = match (self.kind, answer) {
            (_, Value::Null) => return Err(Error::invalid("null is no answer")),
            (_, Value::Bool(false)) => return Ok(Checked::Decline),
            (Kind::Approval | Kind::Confirm, Value::Bool(true)) | (Kind::Url, Value::Bool(true)) => Value::Bool(true),
            (kind @ (Kind::Approval | Kind::Confirm), _) => {
                return Err(Error::invalid(format!("a question of kind {kind} takes true or false")));
            }
            (Kind::Url, _) => {
                return Err(Error::invalid("an address takes no value: true agrees to go, false declines"));
            }
            (Kind::Text | Kind::Secret, Value::Object(_) | Value::Array(_)) => {
                return Err(Error::invalid("a text is expected, not an object or a list"));
            }
            (Kind::Text | Kind::Secret, value) => value.clone(),
            (Kind::Choice, value) => pick(&self.options, value)?,
            (Kind::Form, value) => self.check_form(value)?,
        };
        let bytes = value_bytes(&value);
        if bytes > MAX_ANSWER_BYTES {
            return Err(Error::invalid(format!("the answer has {bytes} bytes, at most {MAX_ANSWER_BYTES} are taken")));
        }
        Ok(Checked::Accept(value))
    }

    fn check_form(&self, answer: &Value) -> Result<Value> {
        let expected = || self.fields.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ");
        let bare;
        let given = match (answer, self.fields.as_slice()) {
            (Value::Object(map), _) => map,
            (value, [only]) => {
                bare = Map::from_iter([(only.name.clone(), value.clone())]);
                &bare
            }
            _ => return Err(Error::invalid(format!("an object with these fields is expected: {}", expected()))),
        };
        if !given.is_empty() && !self.fields.iter().any(|f| given.contains_key(&f.name)) {
            return Err(Error::invalid(format!(
                "none of the form's fields is in the answer; expected: {}",
                expected()
            )));
        }
        let mut out = Map::new();
        for field in &self.fields {
            match given.get(&field.name).filter(|v| !v.is_null()) {
                Some(value) => drop(out.insert(field.name.clone(), field.check(value)?)),
                None if !field.default.is_null() => drop(out.insert(field.name.clone(), field.default.clone())),
                None if field.required => {
                    return Err(Error::invalid(format!("{} is missing; expected: {}", field.name, expected())));
                }
                None => {}
            }
        }
        Ok(Value::Object(out))
    }

    /// What binds a decision to what the person saw: tool, arguments, question and round.
    ///
    /// SHA-256 over canonical JSON, as 64 lower-case hex digits. What only
    /// decorates the page (metadata, schema) is not part of it.
    pub(crate) fn digest(&self, tool: &str, arguments: Option<&Value>, key: &str, round: u32) -> String {
        let seen = serde_json::json!({
            "tool": tool, "arguments": arguments, "key": key, "round": round,
            "kind": self.kind, "prompt": self.prompt, "options": self.options, "fields": self.fields, "url": self.url,
        });
        Sha256::digest(canonical(&seen)).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// As far in the future as a deadline may lie.
const MAX_EXPIRY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// What a checked answer records.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Checked {
    Accept(Value),
    Decline,
}

/// Finds the option that an answer names; compared as text, byte for byte.
fn pick(options: &[ChoiceOption], answer: &Value) -> Result<Value> {
    let text = as_text(answer);
    options.iter().find(|o| as_text(&o.value) == text).map(|o| o.value.clone()).ok_or_else(|| {
        let mut shown: Vec<String> = options.iter().take(20).map(|o| o.value.to_string()).collect();
        if options.len() > shown.len() {
            shown.push("…".into());
        }
        Error::invalid(format!("not one of {}", shown.join(", ")))
    })
}

/// A string as it is, anything else as JSON text.
pub(crate) fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn value_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Writing a Value into a counter has nothing to fail on.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// JSON text with sorted keys and no white space, whatever features the app turned on in serde_json.
pub(crate) fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(&map[key], out);
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

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

/// A request that was recorded on a call: plain data, read from the rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Question {
    /// The chat that waits for it.
    pub chat: ChatId,
    /// The turn that made the call.
    pub message: MessageId,
    /// The question.
    pub id: QuestionId,
    /// What is asked, with tool, arguments and call filled in.
    #[serde(flatten)]
    pub request: InputRequest,
    /// What a decision is bound to; pass it to [`By::seen`](crate::By::seen) with the answer.
    pub digest: String,
    /// How often this question was asked before; each asking has a digest of its own.
    pub round: u32,
    /// When it was asked.
    pub asked_at: DateTime<Utc>,
    /// Until when it can be answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// The decision, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

impl Question {
    /// Checks an answer against the question, without recording anything.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) says what the question takes.
    pub fn check(&self, answer: &Value) -> Result<()> {
        self.request.check(answer).map(drop)
    }
}
