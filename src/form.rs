//! Options and fields: what a person chooses from, and fills in.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::request::as_text;

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

    pub(crate) fn check(&self, value: &Value) -> Result<Value> {
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

/// Finds the option that an answer names; compared as text, byte for byte.
pub(crate) fn pick(options: &[ChoiceOption], answer: &Value) -> Result<Value> {
    let text = as_text(answer);
    options.iter().find(|o| as_text(&o.value) == text).map(|o| o.value.clone()).ok_or_else(|| {
        let mut shown: Vec<String> = options.iter().take(20).map(|o| o.value.to_string()).collect();
        if options.len() > shown.len() {
            shown.push("…".into());
        }
        Error::invalid(format!("not one of {}", shown.join(", ")))
    })
}
