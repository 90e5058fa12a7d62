//! The one decision: what a chat needs next, from its rows alone. Pure.
//!
//! There is no other state. Resuming after a pause, a crash or a deploy is
//! "load the rows and ask again".

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::id::{ChatId, ToolCallId};
use crate::message::{Message, Role};
use crate::tool_call::{CallState, ResultKind, ToolCall};

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

    pub(crate) fn close(&mut self, id: ToolCallId, result: String, kind: ResultKind) {
        if let Some(call) = self.call_mut(id) {
            call.state = CallState::Done;
            (call.result, call.result_kind, call.run_token) = (Some(result), Some(kind), None);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::tool_call::ResultKind;

    fn call(message_position: i64, position: i64, state: CallState) -> ToolCall {
        ToolCall {
            id: ToolCallId::new(),
            message: crate::id::MessageId::new(),
            message_position,
            position,
            wire_id: "w".into(),
            name: "tool".into(),
            arguments: Some("{}".into()),
            raw_arguments: None,
            gate: None,
            questions: Vec::new(),
            state,
            result: (state == CallState::Done).then(|| "null".into()),
            result_kind: (state == CallState::Done).then_some(ResultKind::Value),
            run_token: None,
            attempts: 0,
            updated_at: DateTime::UNIX_EPOCH,
        }
    }

    /// A chat of these messages; the numbers are calls of the last turn, by their states.
    fn chat(roles: &[Role], states: &[CallState], tool_turns: i64, cancelled: bool) -> Transcript {
        let row = ChatRow {
            id: ChatId::new(),
            tenant: String::new(),
            agent: "lab".into(),
            action: String::new(),
            arguments: "{}".into(),
            actor: "carl".into(),
            generation: 3,
            tool_turns,
            tool_choice_cleared: false,
            state: ChatState::Ready,
            next_position: roles.len() as i64,
            lease_token: None,
            lease_until: None,
            cancel_generation: Some(if cancelled { 3 } else { 2 }),
            failures: 0,
            not_before: None,
            last_error: None,
            metadata: None,
            created_at: DateTime::UNIX_EPOCH,
            updated_at: DateTime::UNIX_EPOCH,
            read_at: DateTime::UNIX_EPOCH,
        };
        let message = |(position, role): (i64, &Role)| Message {
            id: MessageId::new(),
            position,
            role: *role,
            content: "x".into(),
            items: None,
            service: None,
            api: None,
            model: None,
            finish_reason: None,
            created_at: DateTime::UNIX_EPOCH,
        };
        let last = roles.len() as i64 - 1;
        let calls = (0..).zip(states).map(|(at, state)| call(last, at, *state)).collect();
        Transcript { chat: row, messages: (0..).zip(roles).map(message).collect(), calls }
    }

    // Q14, A16, A20, A47, Q17
    #[test]
    fn the_rows_alone_say_what_comes_next() {
        use CallState::{Done, Ready, Running, Waiting};
        use Role::{Assistant, User};
        let turn: &[Role] = &[User, Assistant];
        // Messages, calls of the last one, turns so far, cancelled; then what comes, with the calls that can run.
        type Case<'a> = (&'a [Role], &'a [CallState], i64, bool, Step, &'a [usize]);
        let cases: [Case<'_>; 15] = [
            (&[], &[], 0, false, Step::Done, &[]),
            (&[User], &[], 0, false, Step::CallModel, &[]),
            (&[User, User], &[], 0, false, Step::CallModel, &[]),
            (&[User], &[], 0, true, Step::Done, &[]),
            (turn, &[], 0, false, Step::Done, &[]),
            (turn, &[Done], 1, false, Step::CallModel, &[]),
            (turn, &[Done, Done], 2, false, Step::CallModel, &[]),
            (turn, &[Done, Done], 3, false, Step::Capped, &[]),
            (turn, &[Done], 1, true, Step::Done, &[]),
            (turn, &[Waiting], 1, false, Step::Wait, &[]),
            (turn, &[Done, Waiting], 3, false, Step::Wait, &[]),
            (turn, &[Ready, Waiting, Running, Done], 1, false, Step::RunCalls(Vec::new()), &[0, 2]),
            (turn, &[Ready], 3, false, Step::RunCalls(Vec::new()), &[0]),
            (turn, &[Waiting, Running], 1, true, Step::RunCalls(Vec::new()), &[1]),
            (&[User, Assistant, User], &[], 1, false, Step::CallModel, &[]),
        ];
        for (at, (roles, states, tool_turns, cancelled, expected, runnable)) in cases.into_iter().enumerate() {
            let transcript = chat(roles, states, tool_turns, cancelled);
            let expected = match expected {
                Step::RunCalls(_) => Step::RunCalls(runnable.iter().map(|n| transcript.calls[*n].id).collect()),
                other => other,
            };
            assert_eq!(next(&transcript, 2), expected, "{at}");
        }
    }

    #[test]
    fn a_message_has_the_calls_of_its_own_turn() {
        let mut transcript = chat(&[Role::User, Role::Assistant, Role::Assistant, Role::Assistant], &[], 0, false);
        transcript.calls = [(1, 0), (1, 1), (3, 0)].map(|(turn, at)| call(turn, at, CallState::Done)).to_vec();
        let counts: Vec<_> = transcript.messages.iter().map(|message| transcript.calls_of(message).len()).collect();
        assert_eq!(counts, [0, 2, 0, 1]);
    }
}
