//! The customer's side: the messages, the calls between them, and where the chat stands.

use askback::{CallState, ChatId, ChatState, Message, ResultKind, Role, ToolCall};
use serde_json::Value;

use crate::app::CUSTOMER;
use crate::html::{Html, Shown};
use crate::view::{Desk, OpenChat, shown_value};
use crate::worker::Status;

/// Sentences that a visitor can send with one click.
const SUGGESTIONS: [&str; 4] = [
    "I want a refund for order A-1001",
    "Please exchange the size of A-1002",
    "Refund A-1004 and exchange A-1002",
    "Refund $9.00 for A-1003",
];

/// What was said, which tools were called, and where the chat stands.
pub(crate) fn messages(desk: &Desk) -> Html {
    let Some(open) = &desk.open else {
        return html!(
            r#"<div class="messages"><p class="empty">Nothing was said yet. Write as {customer}, or take one of the sentences below.</p></div>"#,
            customer = CUSTOMER
        );
    };
    let driven = open.transcript.chat.is_driven() && desk.worker.is_running();
    let list = open.transcript.messages.iter().map(|message| bubble(message, open, driven));
    html!(
        r#"<div id="messages" class="messages" data-list aria-live="polite">{list}</div><div id="chat-state" data-live>{state}</div>"#,
        list = list.collect::<Html>(),
        state = chat_state(open, &desk.worker)
    )
}

fn bubble(message: &Message, open: &OpenChat, driven: bool) -> Html {
    let class = match message.role {
        Role::User => "from-customer",
        _ => "from-desk",
    };
    let text = match message.content.as_str() {
        "" => Html::default(),
        text => html!(r#"<p class="bubble">{text}</p>"#, text = text),
    };
    let calls = open.transcript.calls_of(message).iter().map(|call| call_line(call, driven));
    html!(
        r#"<div id="m{id}" class="message {class}">{text}{calls}</div>"#,
        id = Shown(message.id),
        class = class,
        text = text,
        calls = calls.collect::<Html>()
    )
}

/// One line on a call: which tool, with what, and where it stands.
fn call_line(call: &ToolCall, driven: bool) -> Html {
    let (class, state) = match (call.state, call.result_kind) {
        (_, Some(ResultKind::Value)) => ("good", "done"),
        (_, Some(ResultKind::Declined)) => ("bad", "declined"),
        (_, Some(ResultKind::Cancelled)) => ("bad", "cancelled"),
        (_, Some(ResultKind::Unfinished)) => ("bad", "interrupted"),
        (_, Some(_)) => ("bad", "failed"),
        (CallState::Waiting, None) => ("waits", "waits for staff"),
        (CallState::Running, None) if driven => ("runs", "running"),
        (CallState::Running, None) => ("waits", "interrupted"),
        (_, None) => ("runs", "next in line"),
    };
    let arguments: Option<Value> = call.arguments.as_deref().and_then(|text| serde_json::from_str(text).ok());
    // The order first, then what is to be done with it.
    let shown = ["order", "cents"].into_iter().filter_map(|key| Some(shown_value(key, arguments.as_ref()?.get(key)?)));
    html!(
        r#"<p class="call {class}"><code>{tool}</code> {arguments}<span>{state}</span></p>"#,
        class = class,
        tool = call.name,
        arguments = shown.collect::<Vec<_>>().join(", "),
        state = state
    )
}

/// What the customer should know of where the chat stands.
fn chat_state(open: &OpenChat, worker: &Status) -> Html {
    let chat = &open.transcript.chat;
    let tools: Vec<&str> = open.transcript.open_calls().map(|call| call.name.as_str()).collect();
    let runs = open.transcript.open_calls().any(|call| call.state == CallState::Running);
    let cancel = html!(
        r#"<form method="post" data-fetch action="/chats/{chat}/cancel"><button class="link">cancel it</button></form>"#,
        chat = Shown(chat.id)
    );
    match chat.state {
        ChatState::Idle => Html::default(),
        ChatState::Waiting => html!(
            r#"<div class="state">Waiting for a colleague ({tools}). {cancel}</div>"#,
            tools = tools.join(", "),
            cancel = cancel
        ),
        ChatState::Failed => html!(
            r#"<p class="state bad">The desk gave up: {error}. Write again to try once more.</p>"#,
            error = chat.last_error.as_deref().unwrap_or("no reason was kept")
        ),
        _ if !worker.is_running() => html!(
            r#"<p class="state bad">The worker is stopped, so nobody goes on with this chat. Nothing is lost: start it again.</p>"#
        ),
        _ if chat.last_error.is_some() => html!(
            r#"<p class="state bad">That did not work and is tried again: {error}.</p>"#,
            error = chat.last_error.as_deref().unwrap_or_default()
        ),
        _ if runs && !chat.is_driven() => {
            html!(r#"<p class="state">The worker that ran it is gone. Another one takes over in a moment.</p>"#)
        }
        _ if runs => html!(
            r#"<p class="state busy">{tools} is running (this bank is slow). A good moment for kill -9.</p>"#,
            tools = tools.join(", ")
        ),
        _ => html!(r#"<p class="state busy">The desk is writing</p>"#),
    }
}

/// Where the customer writes.
pub(crate) fn say(desk: &Desk, chat: Option<ChatId>) -> Html {
    let action = chat.map_or_else(|| "/chats".to_owned(), |chat| format!("/chats/{chat}/say"));
    // A new conversation has an address of its own, so it is no matter for a script.
    let fetch = if chat.is_some() { html!(" data-fetch") } else { Html::default() };
    let (why, text) = desk.refused.clone().unwrap_or_default();
    let refused = match why.as_str() {
        "" => Html::default(),
        why => html!(r#"<p class="notice error" data-kind="error">{why}</p>"#, why = why),
    };
    let suggestions = SUGGESTIONS
        .iter()
        .map(|text| html!(r#"<button class="link" name="text" value="{text}">{text}</button>"#, text = text));
    html!(
        r#"<div id="refused" data-reply role="status">{refused}</div>
<form class="say" method="post" action="{action}"{fetch}>
<textarea name="text" rows="2" required maxlength="4000" aria-label="Your message" placeholder="Write as {customer}">{text}</textarea>
<button>Send</button></form>
<form class="suggestions" method="post" action="{action}"{fetch}>{suggestions}</form>"#,
        refused = refused,
        action = action,
        fetch = fetch,
        customer = CUSTOMER,
        text = text,
        suggestions = suggestions.collect::<Html>()
    )
}
