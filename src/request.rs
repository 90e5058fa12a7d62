//! What a tool asks a person, and what an answer to it may be. Pure.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::decision::{MAX_NAME_BYTES, plain};
use crate::error::{Error, Result};
use crate::form::{ChoiceOption, Field, FieldType, pick};
use crate::id::clip;

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

/// What a tool asks a person: a plain value, equal when all its parts are.
///
/// Made by [`confirm`](fn@crate::confirm), [`text`](fn@crate::text), [`choice`](fn@crate::choice),
/// [`secret`](fn@crate::secret), [`form`](fn@crate::form) and [`url`](fn@crate::url). As JSON, attributes that are not
/// set are left out, `metadata` is always written, and unknown keys are ignored.
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
    /// The arguments as the model sent them, or as a person changed them on approval. Filled by askback.
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

#[cfg(test)]
mod tests;
