//! The typed ids: chats, messages, tool calls and questions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, ErrorKind};

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Makes a new UUIDv7: random, and sorted by the time it was made.
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                Uuid::parse_str(text).map(Self).map_err(|e| {
                    Error::new(ErrorKind::Invalid, format!("{:?} is not the id of a {}", clip(text), $what)).caused_by(e)
                })
            }
        }

        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }
    };
}

uuid_id!(
    /// Names a chat. An app may pass its own when it starts one.
    ChatId,
    "chat"
);
uuid_id!(
    /// Names a message of a chat.
    MessageId,
    "message"
);
uuid_id!(
    /// Names a tool call: ours, unlike the provider's `wire_id`, which is unique nowhere.
    ToolCallId,
    "tool call"
);

/// Names a question: the call that asks, and the question's key within the call.
///
/// Written as `<call id>` for the approval a call waits for, and as
/// `<call id>.<key>` for a question the tool asked, split at the first dot.
///
/// ```
/// use askback::QuestionId;
///
/// let id: QuestionId = "01890a5d-ac96-774b-bcce-b302099a8057.size".parse()?;
/// assert_eq!(id.key(), "size");
/// assert_eq!(id.to_string(), "01890a5d-ac96-774b-bcce-b302099a8057.size");
/// # Ok::<(), askback::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionId {
    call: ToolCallId,
    key: String,
}

impl QuestionId {
    /// Names the question `key` of a call; the empty key is the call's approval.
    pub fn new(call: ToolCallId, key: impl Into<String>) -> Self {
        Self { call, key: key.into() }
    }

    /// The call that asks.
    pub fn call(&self) -> ToolCallId {
        self.call
    }

    /// Whether it asks what to do about a run that was interrupted.
    pub fn is_in_doubt(&self) -> bool {
        self.key == crate::tool_call::IN_DOUBT
    }

    /// The question's key within the call; empty for the approval.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl From<ToolCallId> for QuestionId {
    fn from(call: ToolCallId) -> Self {
        Self::new(call, "")
    }
}

impl fmt::Display for QuestionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => self.call.fmt(f),
            key => write!(f, "{}.{key}", self.call),
        }
    }
}

impl fmt::Debug for QuestionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuestionId({self})")
    }
}

impl FromStr for QuestionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (call, key) = text.split_once('.').unwrap_or((text, ""));
        let call = call.parse::<ToolCallId>().map_err(|e| {
            Error::new(
                ErrorKind::Invalid,
                format!("{:?} is not the id of a question (<call id> or <call id>.<key>)", clip(text)),
            )
            .caused_by(e)
        })?;
        Ok(Self::new(call, key))
    }
}

impl Serialize for QuestionId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for QuestionId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The start of a text that may be long and is shown in an error.
pub(crate) fn clip(text: &str) -> &str {
    const SHOWN: usize = 120;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_id_is_split_at_the_first_dot() {
        let call = ToolCallId::new();
        for key in ["", "size", "a.b", "é ", "..", "x\u{0}y"] {
            let id = QuestionId::new(call, key);
            assert_eq!(id.to_string().parse::<QuestionId>().unwrap(), id);
        }
        assert_eq!("nonsense".parse::<QuestionId>().unwrap_err().kind(), ErrorKind::Invalid);
    }
}
