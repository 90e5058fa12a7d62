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
        if kind == Kind::Approval {
            return Err(Error::invalid("an approval is askback's to ask; a tool asks a confirm question"));
        }
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
    ///
    /// It tells two askings of one question apart, not two calls that ask the same.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::*;

    // A2, A5, A7, A9
    #[test]
    fn every_constructor_writes_what_is_set_and_is_read_back() {
        let none: [(&str, &str); 0] = [];
        let cases = [
            (confirm("Go?").request, json!({ "kind": "confirm", "prompt": "Go?", "metadata": {} })),
            (text("Name?").request, json!({ "kind": "text", "prompt": "Name?", "metadata": {} })),
            (secret("PIN?").request, json!({ "kind": "secret", "prompt": "PIN?", "metadata": {} })),
            (
                url("Pay", "https://example.org/é?a=1").request,
                json!({ "kind": "url", "prompt": "Pay", "url": "https://example.org/é?a=1", "metadata": {} }),
            ),
            (choice::<Value>("", none).request, json!({ "kind": "choice", "prompt": "", "metadata": {} })),
            (
                choice::<i64>("Plan?", [(1, "Basic"), (2, "Pro")]).request,
                json!({
                    "kind": "choice", "prompt": "Plan?", "metadata": {},
                    "options": [{ "value": 1, "label": "Basic" }, { "value": 2, "label": "Pro" }],
                }),
            ),
            (
                form::<Value>(
                    "Fill in",
                    [
                        Field::new("name", FieldType::String).required().title("Name"),
                        Field::new("news", FieldType::Boolean).default_value(false),
                        Field::new("sizes", FieldType::Choices).options(["S", "M"]),
                    ],
                )
                .request,
                json!({
                    "kind": "form", "prompt": "Fill in", "metadata": {},
                    "fields": [
                        { "name": "name", "type": "string", "title": "Name", "required": true },
                        { "name": "news", "type": "boolean", "required": false, "default": false },
                        { "name": "sizes", "type": "choices", "required": false, "options": ["S", "M"] },
                    ],
                }),
            ),
            (
                text("Why?")
                    .key("why")
                    .schema(json!({ "minLength": 1 }))
                    .metadata(json!([null, "\0", { "a": 1.5 }]))
                    .may_person("ann")
                    .may_role("boss")
                    .expires_in(Duration::from_millis(1_999))
                    .default_answer("no reason")
                    .request,
                json!({
                    "kind": "text", "prompt": "Why?", "schema": { "minLength": 1 },
                    "metadata": [null, "\0", { "a": 1.5 }], "may": ["person:ann", "role:boss"], "expires_in": 1,
                    "default": "no reason",
                }),
            ),
            (text("x").metadata(Value::Null).request, json!({ "kind": "text", "prompt": "x", "metadata": null })),
            (text("x").schema(Value::Null).request, json!({ "kind": "text", "prompt": "x", "metadata": {} })),
        ];
        for (request, written) in cases {
            assert_eq!(request.to_json(), written);
            assert_eq!(InputRequest::from_json(written.clone()).unwrap(), request);
            let text = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<InputRequest>(&text).unwrap(), request);
            // What a later release writes is ignored.
            let mut more = written;
            more["colour"] = json!("red");
            assert_eq!(InputRequest::from_json(more).unwrap(), request);
            assert_eq!(request.clone(), request);
        }
        assert_ne!(text("a").request, text("b").request);
        assert_ne!(text("a").request, secret("a").request);
    }

    // A6
    #[test]
    fn json_that_is_no_request_is_refused() {
        let cases = [
            (json!({ "kind": "approve", "prompt": "x" }), "\"approve\" is no kind of question"),
            (json!({ "kind": "Confirm", "prompt": "x" }), "\"Confirm\" is no kind of question"),
            (json!({ "kind": "", "prompt": "x" }), "\"\" is no kind of question"),
            (json!({ "kind": 1, "prompt": "x" }), "this is no input request"),
            (json!({ "kind": "text" }), "this is no input request"),
            (json!({ "prompt": "x" }), "this is no input request"),
            (json!({ "kind": "text", "prompt": 1 }), "this is no input request"),
            (json!({ "kind": "form", "prompt": "x", "fields": [{ "name": "a" }] }), "this is no input request"),
            (json!([]), "this is no input request"),
            (json!(null), "this is no input request"),
        ];
        for (value, why) in cases {
            let error = InputRequest::from_json(value.clone()).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{value}: {error}");
        }
    }

    // A4, case CH11
    #[test]
    fn an_option_is_a_value_or_a_value_with_a_label() {
        // As it may come, what it means, as it is written.
        let cases = [
            (json!("S"), (json!("S"), None), json!("S")),
            (json!(7), (json!(7), None), json!(7)),
            (json!(true), (json!(true), None), json!(true)),
            (json!(null), (json!(null), None), json!(null)),
            (
                json!({ "label": "Small" }),
                (json!("Small"), Some("Small")),
                json!({ "value": "Small", "label": "Small" }),
            ),
            (json!({ "value": 1, "label": "one" }), (json!(1), Some("one")), json!({ "value": 1, "label": "one" })),
            (json!({ "value": null, "label": "x" }), (json!(null), Some("x")), json!({ "value": null, "label": "x" })),
            (json!({ "value": { "a": 1 } }), (json!({ "a": 1 }), None), json!({ "value": { "a": 1 } })),
            (json!({ "a": 1 }), (json!({ "a": 1 }), None), json!({ "value": { "a": 1 } })),
            (
                json!({ "value": { "label": "x", "value": 2 } }),
                (json!({ "label": "x", "value": 2 }), None),
                json!({ "value": { "label": "x", "value": 2 } }),
            ),
        ];
        for (came, (value, label), written) in cases {
            let option: ChoiceOption = serde_json::from_value(came.clone()).unwrap();
            assert_eq!((&option.value, option.label.as_deref()), (&value, label), "{came}");
            assert_eq!(serde_json::to_value(&option).unwrap(), written, "{came}");
            assert_eq!(serde_json::from_value::<ChoiceOption>(written).unwrap(), option, "{came}");
        }
        assert_eq!(ChoiceOption::labelled(1, "one").shown(), "one");
        assert_eq!(ChoiceOption::from("S").shown(), "S");
        assert_eq!(ChoiceOption::from(json!([1])).shown(), "[1]");
    }

    // A4, A6, Q8
    #[test]
    fn what_nobody_could_answer_is_refused() {
        let field = |kind| Field::new("size", kind);
        let deep = (0..200).fold(json!(1), |deep, _| json!([deep]));
        let none: [&str; 0] = [];
        let refused = [
            (confirm(" \n").request, "a confirm question needs a prompt"),
            (choice::<Value>("x", none).request, "a choice needs at least one option"),
            (choice::<Value>("x", [json!("a"), json!(false)]).request, "false cannot be an option"),
            (choice::<Value>("x", [(Value::Null, "nothing")]).request, "null cannot be an option"),
            (form::<Value>("x", []).request, "a form needs at least one field"),
            (form::<Value>("x", [field(FieldType::Choice)]).request, "size needs at least one option"),
            (form::<Value>("x", [field(FieldType::Choices).options([json!(false)])]).request, "size: false cannot"),
            (url("x", "").request, "only http and https"),
            (url("x", "HTTPS:/x").request, "only http and https"),
            (url("x", "data:text/html,x").request, "only http and https"),
            (url("x", "https://a\nb").request, "only http and https"),
            (url("x", "https://a b").request, "only http and https"),
            (text("x").default_answer(Value::Null).request, "the default answer: null is no answer"),
            (confirm("x").default_answer("yes").request, "the default answer"),
            (text("x").expires_in(Duration::MAX).request, "at most 100 years"),
            (text("x").may_person("\0").request, "NUL"),
            (text("x").may_role("x".repeat(300)).request, "at most 263"),
            (text("x").metadata(deep.clone()).request, "could not be read back"),
            (text("x").schema(deep).request, "could not be read back"),
            (InputRequest::new(Kind::Approval, "x"), "askback's to ask"),
        ];
        for (request, why) in refused {
            let error = request.validate().unwrap_err();
            assert!(error.to_string().contains(why), "{request:?}: {error}");
        }
        let taken = [
            confirm("?").default_answer(false).request,
            text("x").default_answer("").may_person("x".repeat(255)).request,
            url("x", "http://127.0.0.1:80/?q=é").request,
            choice::<Value>("x", [json!(true), json!(0), json!(""), json!("false")]).request,
        ];
        for request in taken {
            request.validate().unwrap();
        }
    }

    // A3, A34, A37, Q7, Q8, case CB15, case CE5
    #[test]
    fn an_answer_is_checked_by_its_kind() {
        let pick =
            choice::<Value>("x", [json!("approve"), json!("approve with changes"), json!(7), json!(1.5)]).request;
        let labelled = choice::<Value>("x", [("a", "Same"), ("b", "Same"), ("c", "a")]).request;
        let one = form::<Value>("x", [Field::new("n", FieldType::Integer).required()]).request;
        let many = form::<Value>(
            "x",
            [
                Field::new("name", FieldType::String).required(),
                Field::new("news", FieldType::Boolean).default_value(false),
                Field::new("sizes", FieldType::Choices).options(["S", "M"]),
                Field::new("plan", FieldType::Choice).options([(1, "Basic")]),
                Field::new("price", FieldType::Number),
            ],
        )
        .request;
        let right = |value: Value| Ok(Checked::Accept(value));
        let wrong = |why: &'static str| Err(why);
        let (go, words, pin, to) =
            (confirm("x").request, text("x").request, secret("x").request, url("x", "https://a").request);
        let gate = InputRequest::new(Kind::Approval, "x");
        let cases = [
            (&go, json!(true), right(json!(true))),
            (&gate, json!(true), right(json!(true))),
            (&go, json!("true"), wrong("takes true or false")),
            (&gate, json!({ "arguments": {} }), wrong("takes true or false")),
            (&go, json!(0), wrong("takes true or false")),
            (&to, json!(true), right(json!(true))),
            (&to, json!("https://a"), wrong("takes no value")),
            (&to, json!({}), wrong("takes no value")),
            (&words, json!(""), right(json!(""))),
            (&words, json!(true), right(json!(true))),
            (&words, json!(0), right(json!(0))),
            (&words, json!({ "output": "x" }), wrong("a text is expected")),
            (&pin, json!("0000"), right(json!("0000"))),
            (&pin, json!([]), wrong("a text is expected")),
            (&pick, json!("approve"), right(json!("approve"))),
            (&pick, json!("7"), right(json!(7))),
            (&pick, json!("1.5"), right(json!(1.5))),
            (&pick, json!("approved"), wrong("not one of \"approve\"")),
            (&pick, json!("approve with"), wrong("not one of")),
            (&pick, json!("Approve"), wrong("not one of")),
            (&pick, json!("7.0"), wrong("not one of")),
            (&pick, json!(["approve"]), wrong("not one of")),
            (&labelled, json!("a"), right(json!("a"))),
            (&labelled, json!("Same"), wrong("not one of \"a\", \"b\", \"c\"")),
            (&one, json!(3), right(json!({ "n": 3 }))),
            (&one, json!({ "n": -3 }), right(json!({ "n": -3 }))),
            // A whole number is given to the tool as one.
            (&one, json!({ "n": 3.0 }), right(json!({ "n": 3 }))),
            (&one, json!({ "n": u64::MAX }), right(json!({ "n": u64::MAX }))),
            (&one, json!({ "n": 3.5 }), wrong("n: a whole number is expected")),
            (&one, json!({ "n": 1e300 }), wrong("n: a whole number is expected")),
            (&one, json!({ "n": "3" }), wrong("n: a whole number is expected")),
            (&one, json!({ "n": null }), wrong("n is missing")),
            (&one, json!({}), wrong("n is missing")),
            (&many, json!({ "name": "x", "more": 1 }), right(json!({ "name": "x", "news": false }))),
            (
                &many,
                json!({ "name": "", "news": true, "sizes": ["M", "S"], "plan": "1", "price": 1 }),
                right(json!({ "name": "", "news": true, "sizes": ["M", "S"], "plan": 1, "price": 1 })),
            ),
            (&many, json!({ "name": "x", "sizes": [] }), right(json!({ "name": "x", "news": false, "sizes": [] }))),
            (&many, json!({ "output": { "name": "x" } }), wrong("none of the form's fields is in the answer")),
            (&many, json!({}), wrong("name is missing")),
            (&many, json!("x"), wrong("an object with these fields is expected: name, news")),
            (&many, json!({ "name": "x", "news": "on" }), wrong("news: true or false is expected")),
            (&many, json!({ "name": "x", "sizes": "S" }), wrong("sizes: a list of its options")),
            (&many, json!({ "name": "x", "sizes": ["L"] }), wrong("sizes: not one of")),
            (&many, json!({ "name": 1 }), wrong("name: a text is expected")),
        ];
        for (request, answer, expected) in cases {
            match (request.check(&answer), expected) {
                (Ok(checked), Ok(expected)) => assert_eq!(checked, expected, "{} {answer}", request.kind),
                (Err(error), Err(why)) => {
                    assert!(error.to_string().contains(why), "{} {answer}: {error}", request.kind)
                }
                (got, expected) => panic!("{} {answer}: {got:?}, not {expected:?}", request.kind),
            }
        }
        // `false` declines every kind, and `null` answers none.
        for request in [&go, &gate, &words, &pin, &to, &pick, &one, &many] {
            assert_eq!(request.check(&json!(false)).unwrap(), Checked::Decline, "{}", request.kind);
            assert!(request.check(&json!(null)).unwrap_err().to_string().contains("null is no answer"));
        }
        let long = json!("x".repeat(MAX_ANSWER_BYTES - 2));
        assert!(words.check(&long).is_ok());
        assert!(words.check(&json!("é".repeat(MAX_ANSWER_BYTES / 2))).is_err());
    }

    // B5, case CF8
    #[test]
    fn a_digest_binds_what_is_asked_and_not_how_it_looks() {
        let ask = || choice::<Value>("Size?", [("S", "Small"), ("M", "Middle")]).request;
        let arguments: Value = serde_json::from_str(r#"{"a":"é","b":[1,{"c":2}]}"#).unwrap();
        let digest = |request: &InputRequest| request.digest("shop", Some(&arguments), "size", 0);
        let first = digest(&ask());
        assert_eq!((first.len(), first.to_lowercase()), (64, first.clone()));
        // The same, spelled otherwise, and what only decorates the page.
        let spelled: Value = serde_json::from_str(" {\"b\" : [1, {\"c\":2}], \"a\":\"\\u00e9\"} ").unwrap();
        assert_eq!(ask().digest("shop", Some(&spelled), "size", 0), first);
        let mut decorated = ask();
        (decorated.metadata, decorated.schema) = (json!({ "icon": "x" }), Some(json!({})));
        assert_eq!(digest(&decorated), first);
        // Everything a person decides on.
        let change = |change: fn(&mut InputRequest)| {
            let mut request = ask();
            change(&mut request);
            digest(&request)
        };
        let mut all = vec![
            first,
            ask().digest("shops", Some(&arguments), "size", 0),
            ask().digest("shop", Some(&json!({ "a": "e", "b": [1, { "c": 2 }] })), "size", 0),
            ask().digest("shop", Some(&json!({ "a": "é", "b": ["1", { "c": 2 }] })), "size", 0),
            ask().digest("shop", None, "size", 0),
            ask().digest("shop", Some(&arguments), "sizes", 0),
            ask().digest("shop", Some(&arguments), "size", 1),
            change(|request| request.prompt.push('!')),
            change(|request| request.kind = Kind::Text),
            change(|request| request.options[0].label = Some("Tiny".into())),
            change(|request| drop(request.options.pop())),
            change(|request| request.url = Some("https://a".into())),
            change(|request| request.fields.push(Field::new("a", FieldType::String))),
        ];
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    // case CF8
    #[test]
    fn canonical_json_has_sorted_keys_and_no_white_space() {
        let cases = [
            (r#" { "b" : 1 , "a" : { "d" : [ ] , "c" : null } } "#, r#"{"a":{"c":null,"d":[]},"b":1}"#),
            (r#"{"é":1,"z":2,"\u0061":3}"#, r#"{"a":3,"z":2,"é":1}"#),
            (r#"["\u00e9","\n\u0000"," "]"#, r#"["é","\n\u0000"," "]"#),
            ("18446744073709551615", "18446744073709551615"),
            ("1.0", "1.0"),
            ("1", "1"),
        ];
        for (text, expected) in cases {
            assert_eq!(canonical(&serde_json::from_str(text).unwrap()), expected);
        }
    }
}
