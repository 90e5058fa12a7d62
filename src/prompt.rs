//! What a model is asked, from the rows and the agent's setup. Pure.

use crate::agent::Setup;
use crate::message::Role;
use crate::provider::{CallResult, Entry, Request};
use crate::step::Transcript;
use crate::tool_call::ResultKind;

/// The request for the next turn. Every call of the transcript has its result.
pub(crate) fn request(transcript: &Transcript, setup: &Setup) -> Request {
    let history = transcript.messages.iter().map(|message| match message.role {
        Role::User => Entry::User { text: message.content.clone() },
        Role::Assistant => Entry::Turn {
            text: message.content.clone(),
            items: message.items.clone(),
            service: message.service.clone(),
            api: message.api.clone(),
            calls: transcript.calls_of(message).iter().map(result_of).collect(),
        },
    });
    let tools = setup.order.iter().filter_map(|name| setup.tools.get(name)).map(|tool| tool.spec().clone());
    Request {
        instructions: setup.instructions.clone(),
        history: history.collect(),
        tools: tools.collect(),
        // A forced choice holds until the model has used it; cleared means absent (A46).
        tool_choice: setup.tool_choice.clone().filter(|_| !transcript.chat.tool_choice_cleared),
        max_tokens: setup.max_tokens,
    }
}

fn result_of(call: &crate::tool_call::ToolCall) -> CallResult {
    CallResult {
        wire_id: call.wire_id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone().or_else(|| call.raw_arguments.clone()).unwrap_or_default(),
        result: call.result.clone().unwrap_or_default(),
        is_error: call.result_kind != Some(ResultKind::Value),
    }
}
