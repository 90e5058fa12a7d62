//! A turn of the model as rows: gates are decided and unusable arguments get their result. Pure.

use chrono::{DateTime, Utc};

use crate::agent::Setup;
use crate::error::Result;
use crate::id::{MessageId, ToolCallId, clip};
use crate::message::{Message, Role};
use crate::provider::{ToolChoice, Turn, TurnCall};
use crate::step::Transcript;
use crate::store::transcript::NewTurn;
use crate::tool_call::{CallState, Gate, ResultKind, ToolCall, approval_request, error_result};

/// The most bytes a call's arguments may have: 8 MiB.
pub(crate) const MAX_ARGUMENT_BYTES: usize = 8 * 1024 * 1024;
/// The most bytes a tool's name has on its row.
const MAX_TOOL_NAME_BYTES: usize = 255;

/// The rows of a turn: gates are decided here, once, and arguments that cannot run get their result at once.
pub(crate) fn new_turn(transcript: &Transcript, setup: &Setup, turn: Turn, now: DateTime<Utc>) -> Result<NewTurn> {
    let position = transcript.chat.next_position;
    let tool_turns = transcript.chat.tool_turns + i64::from(!turn.calls.is_empty());
    let capped = tool_turns > i64::from(setup.max_tool_turns);
    let used = match &setup.tool_choice {
        Some(ToolChoice::Required) => !turn.calls.is_empty(),
        Some(ToolChoice::Tool(name)) => turn.calls.iter().any(|call| call.name == *name),
        _ => false,
    };
    let message = Message {
        id: MessageId::new(),
        position,
        role: Role::Assistant,
        content: turn.text.replace('\0', "\u{fffd}"),
        items: turn.items,
        service: Some(setup.model.service().to_owned()),
        api: Some(setup.model.api().to_owned()),
        model: Some(setup.model.model().to_owned()),
        finish_reason: turn.finish_reason.map(|reason| cut(&reason.replace('\0', "\u{fffd}"))),
        created_at: now,
    };
    let mut calls = Vec::with_capacity(turn.calls.len());
    for (at, call) in (0..).zip(&turn.calls) {
        calls.push(new_call(setup, call, &message, at, capped)?);
    }
    Ok(NewTurn {
        message,
        last: calls.is_empty(),
        calls,
        usage: turn.usage,
        tool_turns,
        tool_choice_cleared: transcript.chat.tool_choice_cleared || used,
    })
}

fn new_call(setup: &Setup, call: &TurnCall, message: &Message, position: i64, capped: bool) -> Result<ToolCall> {
    let now = message.created_at;
    let mut row = ToolCall {
        id: ToolCallId::new(),
        message: message.id,
        message_position: message.position,
        position,
        wire_id: call.wire_id.replace('\0', "\u{fffd}"),
        name: cut(&call.name.replace('\0', "\u{fffd}")),
        arguments: None,
        raw_arguments: None,
        gate: None,
        questions: Vec::new(),
        state: CallState::Ready,
        result: None,
        result_kind: None,
        run_token: None,
        attempts: 0,
        updated_at: now,
    };
    let end = |row: &mut ToolCall, result: String| {
        row.state = CallState::Done;
        (row.result, row.result_kind) = (Some(result), Some(ResultKind::Error));
    };
    match object(&call.arguments) {
        Ok(arguments) => row.arguments = Some(arguments.to_owned()),
        Err(why) => {
            let raw = clip(&call.arguments);
            row.raw_arguments = Some(if why.is_size { raw.to_owned() } else { call.arguments.clone() });
            end(&mut row, malformed(raw, &why.text));
        }
    }
    if capped {
        end(&mut row, error_result("limit of tool turns reached"));
    }
    if row.is_open() && setup.is_gated(&row.name, row.arguments.as_deref().unwrap_or("{}")) {
        let asked = row.ask("", &approval_request(&row.name), now)?;
        row.questions.push(asked);
        (row.state, row.gate) = (CallState::Waiting, Some(Gate::Pending));
    }
    Ok(row)
}

struct NoObject {
    text: String,
    is_size: bool,
}

/// The arguments' text, if it is a JSON object; blank means none.
fn object(arguments: &str) -> Result<&str, NoObject> {
    let no = |text: String, is_size| Err(NoObject { text, is_size });
    let trimmed = arguments.trim();
    if trimmed.is_empty() {
        return Ok("{}");
    }
    if trimmed.len() > MAX_ARGUMENT_BYTES {
        return no(format!("{} bytes, at most {MAX_ARGUMENT_BYTES} are taken", trimmed.len()), true);
    }
    match serde_json::from_str::<serde_json::Value>(trimmed) {
        Ok(value) if value.is_object() => Ok(trimmed),
        Ok(_) => no("no JSON object".into(), false),
        Err(e) => no(format!("no JSON: {e}"), false),
    }
}

/// What the model reads of arguments that cannot run; it shows what it sent.
pub(crate) fn malformed(raw: &str, why: &str) -> String {
    let (why, raw) = (serde_json::Value::from(why), serde_json::Value::from(raw));
    format!(r#"{{"error":"the arguments are not a JSON object","reason":{why},"arguments":{raw}}}"#)
}

pub(crate) fn interrupted(call: &ToolCall, note: Option<&str>) -> String {
    let mut result = format!(
        r#"{{"error":{}"#,
        serde_json::Value::from(format!(
            "{} was interrupted while it ran; it may or may not have done its work",
            call.name
        ))
    );
    if let Some(note) = note {
        result.push_str(&format!(r#","note":{}"#, serde_json::Value::from(note)));
    }
    result + "}"
}

/// A person changed the arguments: the model is told, with both.
pub(crate) fn edited(call: &ToolCall, value: String) -> String {
    let (Some(edited), Some(original)) = (call.edited_arguments(), &call.arguments) else { return value };
    format!(
        r#"{{"result":{value},"note":"a person changed the arguments before the tool ran","arguments":{edited},"requested_arguments":{original}}}"#
    )
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_TOOL_NAME_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
