//! A request that was recorded on a call: plain data, read from the rows.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::answer::Answer;
use crate::decision::Decision;
use crate::error::Result;
use crate::id::{ChatId, MessageId, QuestionId};
use crate::request::InputRequest;

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
    pub fn check(&self, answer: impl Into<Answer>) -> Result<()> {
        let value = answer.into().value_for(&self.request)?;
        self.request.check(&value).map(drop)
    }
}
