//! The one decision: what a chat needs next, from its rows alone. Pure.
//!
//! There is no other state. Resuming after a pause, a crash or a deploy is
//! "load the rows and ask again".

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::id::{ChatId, ToolCallId};
use crate::message::{Message, Role};
use crate::tool_call::{CallState, ToolCall};

/// Where a chat stands, as the last driver left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChatState {
    /// Nothing to do until somebody says something.
    Idle,
    /// Somebody should drive it, or drives it.
    Ready,
    /// It waits for people.
    Waiting,
    /// It failed too often; a new text or an explicit `complete` tries again.
    Failed,
}

impl ChatState {
    /// The word for it on the row.
    pub fn as_str(self) -> &'static str {
        match self {
            ChatState::Idle => "idle",
            ChatState::Ready => "ready",
            ChatState::Waiting => "waiting",
            ChatState::Failed => "failed",
        }
    }
}

/// The row of a chat: what any process needs to build its agent again, and where it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChatRow {
    /// Its id.
    pub id: ChatId,
    /// Whose chat it is; empty when the app has one tenant.
    pub tenant: String,
    /// The agent's registered name.
    pub agent: String,
    /// The agent's action; empty for an agent with one.
    pub action: String,
    /// The agent's own fields, JSON text.
    pub arguments: String,
    /// On whose behalf the agent acts.
    pub actor: String,
    /// Counts up with each user message.
    pub generation: i64,
    /// Turns with tool calls in this generation.
    pub tool_turns: i64,
    /// Whether a turn of this generation has used up a forced `tool_choice`.
    pub tool_choice_cleared: bool,
    /// Where it stands.
    pub state: ChatState,
    /// The position the next message gets.
    pub next_position: i64,
    /// Who drives it now.
    pub(crate) lease_token: Option<Uuid>,
    /// Until when it is driven, by the database's clock.
    pub lease_until: Option<DateTime<Utc>>,
    /// The generation that somebody cancelled.
    pub cancel_generation: Option<i64>,
    /// Failed drives since the last that got on.
    pub failures: i64,
    /// No worker takes it earlier.
    pub not_before: Option<DateTime<Utc>>,
    /// Why the last drive failed.
    pub last_error: Option<String>,
    /// The app's own.
    pub metadata: Option<Value>,
    /// When it was started.
    pub created_at: DateTime<Utc>,
    /// When its state last changed.
    pub updated_at: DateTime<Utc>,
    /// The database's clock when the row was read.
    pub read_at: DateTime<Utc>,
}

impl ChatRow {
    /// Whether somebody drives it now.
    pub fn is_driven(&self) -> bool {
        self.lease_token.is_some() && self.lease_until.is_some_and(|until| until >= self.read_at)
    }

    /// Whether somebody cancelled the generation that runs.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel_generation == Some(self.generation)
    }
}

/// The rows of a chat: its messages in order, and its calls in the order the model made them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Transcript {
    /// The chat's own row.
    pub chat: ChatRow,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The calls of all turns, by turn and by place in the turn.
    pub calls: Vec<ToolCall>,
}

impl Transcript {
    /// The calls without a result.
    pub fn open_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.calls.iter().filter(|call| call.is_open())
    }

    /// The calls of one turn, in the order the model made them.
    pub fn calls_of(&self, message: &Message) -> &[ToolCall] {
        let start = self.calls.partition_point(|call| call.message_position < message.position);
        let end = self.calls.partition_point(|call| call.message_position <= message.position);
        &self.calls[start..end]
    }

    pub(crate) fn call_mut(&mut self, id: ToolCallId) -> Option<&mut ToolCall> {
        self.calls.iter_mut().find(|call| call.id == id)
    }
}

/// What a chat needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// A turn of the model.
    CallModel,
    /// These calls can run, or be closed without running; `running` ones were interrupted, unless the asker runs them.
    RunCalls(Vec<ToolCallId>),
    /// Answers of people.
    Wait,
    /// Nothing: the model has said its last word, or nobody has said anything.
    Done,
    /// Nothing: the generation has reached its limit of tool turns.
    Capped,
}

/// Says what a chat needs next.
///
/// `max_tool_turns` is how many turns with calls one generation may have.
pub fn next(transcript: &Transcript, max_tool_turns: i64) -> Step {
    let mut open = transcript.open_calls().peekable();
    if open.peek().is_some() {
        let runnable: Vec<_> = open.filter(|call| call.state != CallState::Waiting).map(|call| call.id).collect();
        return if runnable.is_empty() { Step::Wait } else { Step::RunCalls(runnable) };
    }
    match transcript.messages.last() {
        None => Step::Done,
        Some(_) if transcript.chat.is_cancelled() => Step::Done,
        Some(last) if last.role == Role::User => Step::CallModel,
        Some(last) if transcript.calls_of(last).is_empty() => Step::Done,
        Some(_) if transcript.chat.tool_turns > max_tool_turns => Step::Capped,
        Some(_) => Step::CallModel,
    }
}
