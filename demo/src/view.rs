//! The page: the customer's chat on one side, the staff's cards on the other, the log below.
//!
//! There is one page and one way to render it. A region with `data-live` is
//! replaced from a newer page as it stands, one with `data-list` child by
//! child, and one with `data-reply` only from the reply to a form.

use askback::{ChatId, Decision, Question, Transcript, Who};
use serde_json::Value;
use sqlx::types::chrono::{DateTime, Utc};

use crate::app::{CUSTOMER, Staff};
use crate::cards::{self, Notice};
use crate::chat;
use crate::html::{Html, Shown};
use crate::log;
use crate::shop::{Conversation, Order, Refund, dollars};
use crate::worker::Status;

/// Everything the page shows.
pub(crate) struct Desk {
    /// Who sits on the staff's side.
    pub(crate) staff: Staff,
    /// Whether somebody drives the chats.
    pub(crate) worker: Status,
    /// The latest conversations, each with how many questions are open.
    pub(crate) conversations: Vec<(Conversation, usize)>,
    /// The conversation that is shown; none on the first visit.
    pub(crate) open: Option<OpenChat>,
    /// The customer's orders.
    pub(crate) orders: Vec<Order>,
    /// Every refund.
    pub(crate) refunds: Vec<Refund>,
    /// What became of an answer that this very request brought.
    pub(crate) notice: Option<Notice>,
    /// Why this very request's text was not taken, and the text.
    pub(crate) refused: Option<(String, String)>,
}

/// The conversation that is shown.
pub(crate) struct OpenChat {
    /// Its rows.
    pub(crate) transcript: Transcript,
    /// What people are asked.
    pub(crate) questions: Vec<Question>,
    /// What they decided.
    pub(crate) decisions: Vec<Decision>,
}

impl OpenChat {
    /// Its id.
    pub(crate) fn id(&self) -> ChatId {
        self.transcript.chat.id
    }
}

/// The whole page.
pub(crate) fn page(desk: &Desk) -> Html {
    let id = desk.open.as_ref().map(OpenChat::id);
    frame(
        "Support desk",
        html!(
            r#"<header class="top">
<div><h1>Support desk</h1><p>Carl writes, a model calls tools, Ann and Ben decide. All of it is rows.</p></div>
{worker}
</header>
<p id="offline" class="banner" hidden>The desk does not answer. This page tries again.</p>
<noscript><p class="banner">Without scripts the page stands still: reload it to see what is new.</p></noscript>
<main>
<section class="panel chat" aria-label="The customer's chat">
<header><h2>{customer}, the customer</h2><a class="button quiet" href="/new">New conversation</a></header>
{conversations}{messages}{say}
</section>
<section class="panel staff" aria-label="The staff's cards">
<header><h2>Staff</h2>{picker}</header>
{cards}
</section>
</main>
<section class="logs">{log}</section>
"#,
            worker = worker(&desk.worker, id),
            customer = CUSTOMER,
            conversations = conversations(&desk.conversations, id),
            messages = chat::messages(desk),
            say = chat::say(desk, id),
            picker = picker(desk.staff, id),
            cards = cards::panel(desk.open.as_ref(), desk.notice.as_ref()),
            log = log::panels(desk),
        ),
    )
}

/// A page that only says something, say an error.
pub(crate) fn message_page(title: &str, text: &str) -> Html {
    frame(
        title,
        html!(
            r#"<header class="top"><div><h1>{title}</h1></div></header>
<main><section class="panel"><p class="empty">{text}</p><p><a class="button" href="/">Back to the desk</a></p></section></main>"#,
            title = title,
            text = text
        ),
    )
}

fn frame(title: &str, body: Html) -> Html {
    html!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="/assets/desk.svg" type="image/svg+xml">
<link rel="stylesheet" href="/assets/desk.css">
<script src="/assets/desk.js" defer></script>
</head>
<body>
{body}
</body>
</html>
"#,
        title = title,
        body = body
    )
}

/// The field that says which conversation to come back to.
fn back(chat: Option<ChatId>) -> Html {
    chat.map(|chat| html!(r#"<input type="hidden" name="chat" value="{chat}">"#, chat = Shown(chat)))
        .unwrap_or_default()
}

fn worker(status: &Status, chat: Option<ChatId>) -> Html {
    let (class, text, action, label) = match status {
        Status::Running(pid) => {
            ("on", html!("<b>running</b>, pid {pid}", pid = Shown(pid)), "kill", "kill -9 the worker")
        }
        Status::Stopped(why) => ("off", html!("<b>stopped</b>, {why}", why = why), "start", "start the worker"),
    };
    html!(
        r#"<form id="worker" class="worker {class}" data-live data-fetch method="post" action="/worker">
<span><i class="dot"></i>Worker {text}</span>{back}<button class="quiet" name="action" value="{action}">{label}</button></form>"#,
        class = class,
        text = text,
        back = back(chat),
        action = action,
        label = label
    )
}

fn picker(staff: Staff, chat: Option<ChatId>) -> Html {
    let buttons = Staff::ALL.into_iter().map(|one| {
        let pressed = if one == staff { "true" } else { "false" };
        html!(
            r#"<button class="quiet" name="name" value="{name}" aria-pressed="{pressed}">{name}</button>"#,
            name = one.name(),
            pressed = pressed
        )
    });
    html!(
        r#"<form class="picker" method="post" action="/person"><span>You are</span>{back}{buttons}</form>"#,
        back = back(chat),
        buttons = buttons.collect::<Html>()
    )
}

fn conversations(list: &[(Conversation, usize)], shown: Option<ChatId>) -> Html {
    let links = list.iter().map(|(one, open)| {
        let badge = match open {
            0 => Html::default(),
            n => html!(r#" <b class="badge" title="open questions">{n}</b>"#, n = Shown(n)),
        };
        html!(
            r#"<a href="/chats/{chat}"{current} title="{at}">{subject}{badge}</a>"#,
            chat = Shown(one.chat()),
            current = if shown == Some(one.chat()) { html!(r#" aria-current="page""#) } else { Html::default() },
            at = Shown(one.opened_at.format("%Y-%m-%d %H:%M UTC")),
            subject = one.subject.chars().take(60).collect::<String>(),
            badge = badge
        )
    });
    html!(r#"<nav id="conversations" data-live>{links}</nav>"#, links = links.collect::<Html>())
}

/// An argument as a person reads it.
pub(crate) fn shown_value(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(n) if key == "cents" => n.as_i64().map_or_else(|| n.to_string(), dollars),
        other => other.to_string(),
    }
}

/// Who decided, as a person reads it.
pub(crate) fn who(by: &Who) -> String {
    match by {
        Who::System(why) => format!("askback ({why})"),
        person => person.to_string(),
    }
}

/// A time; the page's script shows it in the visitor's own zone.
pub(crate) fn time(at: DateTime<Utc>) -> Html {
    html!(r#"<time datetime="{iso}">{clock}</time>"#, iso = at.to_rfc3339(), clock = Shown(at.format("%H:%M:%S UTC")))
}
