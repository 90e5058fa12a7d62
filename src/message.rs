//! A message of a chat, as it stands on its row.

use chrono::{DateTime, Utc};

use crate::id::MessageId;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// A person's text to the model.
    User,
    /// A turn of the model.
    Assistant,
}

impl Role {
    /// The word for it on the row.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// A message of a chat.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// Its id.
    pub id: MessageId,
    /// Its place in the chat, from 0, without gaps.
    pub position: i64,
    /// Who speaks.
    pub role: Role,
    /// The plain text. A NUL that a model sent shows as U+FFFD; `items` keeps it.
    pub content: String,
    /// A turn exactly as the provider sent it, JSON text.
    pub items: Option<String>,
    /// Who sent it, say `anthropic`.
    pub service: Option<String>,
    /// In which wire format the items are, say `anthropic_messages`.
    pub api: Option<String>,
    /// The model that was asked.
    pub model: Option<String>,
    /// The provider's own word for why it stopped.
    pub finish_reason: Option<String>,
    /// When it was saved.
    pub created_at: DateTime<Utc>,
}
