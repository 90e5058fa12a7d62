//! The staff's cards, one for each open question, and what became of an answer.

use askback::{Decision, Kind, Question, Settled, Verb, Who};
use serde_json::Value;

use crate::app::Staff;
use crate::html::{Html, Shown};
use crate::view::{OpenChat, shown_value, time, who};

/// What the page says about an answer.
pub(crate) struct Notice {
    kind: &'static str,
    text: Html,
}

impl Notice {
    /// The answer could not be taken; the form keeps what was typed.
    pub(crate) fn refused(why: &str) -> Self {
        Self { kind: "error", text: html!("<b>Not taken:</b> {why}.", why = why) }
    }

    /// The answer came too late to be one.
    pub(crate) fn late(why: &str) -> Self {
        Self { kind: "closed", text: html!("<b>Too late:</b> {why}.", why = why) }
    }

    /// What settling came to, as the person who answered reads it.
    pub(crate) fn settled(settled: &Settled, staff: Staff) -> Self {
        let (kind, text) = match settled {
            Settled::Recorded => ("recorded", html!("<b>Recorded.</b> Your answer is the decision.")),
            Settled::Already(first) if first.verb == Verb::Cancel => (
                "closed",
                html!("<b>Closed.</b> The request was cancelled at {at}, so nothing was changed.", at = time(first.at)),
            ),
            Settled::Already(first) if matches!(first.by, Who::System(_)) => ("expired", over(first)),
            Settled::Already(first) if first.by == Who::Person(staff.name().into()) => {
                ("first", html!("<b>Decided already,</b> by you: {what}.", what = in_words(first)))
            }
            Settled::Already(first) => (
                "first",
                html!(
                    "<b>{by} was first:</b> {what}. Yours changed nothing.",
                    by = who(&first.by),
                    what = in_words(first)
                ),
            ),
            Settled::Expired(default) => ("expired", over(default)),
            Settled::Closed => {
                ("closed", html!("<b>Closed.</b> The call no longer waits for this question, so nothing was changed."))
            }
            Settled::Changed(now) => (
                "changed",
                html!(
                    "<b>The question changed</b> since you saw it, so your answer was not taken. It reads now: “{prompt}”",
                    prompt = now.request.prompt
                ),
            ),
            _ => ("closed", html!("The answer was not taken. Please look again.")),
        };
        Self { kind, text }
    }
}

fn over(default: &Decision) -> Html {
    html!("<b>The time was over.</b> What stands in place of an answer: {what}.", what = in_words(default))
}

/// The decision with its value, note and time.
fn in_words(decision: &Decision) -> Html {
    html!("{what} at {at}", what = verdict(decision), at = time(decision.at))
}

/// The decision with its value and note.
pub(crate) fn verdict(decision: &Decision) -> Html {
    let note = decision.note.as_deref().map(|note| html!(" (“{note}”)", note = note)).unwrap_or_default();
    let what = match (decision.verb, &decision.value) {
        (Verb::Accept, Some(Value::Bool(true)) | None) => html!("yes"),
        (Verb::Accept, Some(value)) => html!("“{value}”", value = shown_value("", value)),
        (Verb::Decline, _) => html!("declined"),
        (_, _) => html!("cancelled"),
    };
    html!("{what}{note}", what = what, note = note)
}

/// The notice and the cards of the conversation that is shown.
pub(crate) fn panel(open: Option<&OpenChat>, notice: Option<&Notice>) -> Html {
    let notice = notice.map(|notice| {
        html!(r#"<p class="notice {kind}" data-kind="{kind}">{text}</p>"#, kind = notice.kind, text = notice.text)
    });
    let cards: Html = match open {
        Some(open) if !open.questions.is_empty() => {
            open.questions.iter().map(|question| card(question, open)).collect()
        }
        _ => html!(
            r#"<p id="no-cards" class="empty">Nobody is asked anything. When a tool needs a decision, a card appears here.</p>"#
        ),
    };
    html!(
        r#"<div id="notice" data-reply role="status">{notice}</div><div id="cards" data-list>{cards}</div>"#,
        notice = notice.unwrap_or_default(),
        cards = cards
    )
}

fn card(question: &Question, open: &OpenChat) -> Html {
    let request = &question.request;
    let kind = match request.kind {
        Kind::Approval => "Approval",
        Kind::Confirm => "Confirm",
        Kind::Choice => "Choice",
        Kind::Text => "Text",
        _ => "Question",
    };
    let until = question.expires_at.map(|at| html!(" · open until {at}", at = time(at))).unwrap_or_default();
    let again = match question.round {
        0 => Html::default(),
        n => html!(" · asked {n} times before", n = Shown(n)),
    };
    html!(
        r#"<article class="card" id="card-{id}-{round}">
<header><span class="kind {class}">{kind}</span><code>{tool}</code><span class="since">since {since}{until}{again}</span></header>
<p class="prompt">{prompt}</p>
{arguments}
<p class="meta">Asked by the tool {tool}, on behalf of {actor}. <span title="{digest}">Digest of what you see: <code>{short}</code></span></p>
{form}
</article>"#,
        id = Shown(&question.id),
        round = Shown(question.round),
        digest = question.digest,
        class = request.kind.as_str(),
        kind = kind,
        tool = request.tool_name.as_deref().unwrap_or("a tool"),
        since = time(question.asked_at),
        until = until,
        again = again,
        prompt = request.prompt,
        arguments = arguments(request.arguments.as_ref()),
        actor = open.transcript.chat.actor,
        short = question.digest.chars().take(10).collect::<String>(),
        form = form(question)
    )
}

/// What the model wants to call the tool with.
fn arguments(arguments: Option<&Value>) -> Html {
    let rows = match arguments {
        Some(Value::Object(map)) if !map.is_empty() => map
            .iter()
            .map(|(key, value)| {
                let (sent, shown) = (shown_value("", value), shown_value(key, value));
                let shown = if sent == shown { sent } else { format!("{sent} ({shown})") };
                html!("<div><dt>{key}</dt><dd>{value}</dd></div>", key = key, value = shown)
            })
            .collect(),
        Some(Value::Object(_)) | None => return Html::default(),
        Some(other) => html!("<div><dd>{value}</dd></div>", value = shown_value("", other)),
    };
    html!(r#"<dl class="arguments">{rows}</dl>"#, rows = rows)
}

/// The form of a card. It says which question, and what was seen of it; who answers is not in it.
fn form(question: &Question) -> Html {
    let request = &question.request;
    let (fields, yes, no) = match request.kind {
        Kind::Approval => (Html::default(), html!(r#"<button name="verb" value="yes">Approve</button>"#), "Decline"),
        Kind::Confirm => {
            // askback's own keys are for its own questions: whether an interrupted run is repeated.
            let label = if question.id.key().starts_with("askback:") { "Run it again" } else { "Yes, go on" };
            (Html::default(), html!(r#"<button name="verb" value="yes">{label}</button>"#, label = label), "Do not")
        }
        Kind::Choice => {
            (choices(question), html!(r#"<button name="verb" value="answer">Send answer</button>"#), "Decline")
        }
        Kind::Text => (
            html!(
                r#"<textarea name="value" rows="2" required maxlength="500" aria-label="Your answer" placeholder="{default}"></textarea>"#,
                default = request
                    .default
                    .as_ref()
                    .map(|value| format!("If nobody writes: {}", shown_value("", value)))
                    .unwrap_or_default()
            ),
            html!(r#"<button name="verb" value="answer">Send answer</button>"#),
            "Decline",
        ),
        kind => (
            html!(r#"<p class="meta">This desk has no form for a question of kind {kind}.</p>"#, kind = kind.as_str()),
            Html::default(),
            "Decline",
        ),
    };
    html!(
        r#"<form method="post" action="/chats/{chat}/answer" data-fetch>
<input type="hidden" name="question" value="{question}"><input type="hidden" name="digest" value="{digest}">
{fields}<div class="buttons">{yes}<details><summary class="button quiet">{no}…</summary>
<div class="decline"><input name="note" maxlength="1000" placeholder="Why? (the model reads it)" aria-label="Why"><button class="bad" name="verb" value="no" formnovalidate>{no}</button></div></details></div>
</form>"#,
        chat = Shown(question.chat),
        question = Shown(&question.id),
        digest = question.digest,
        fields = fields,
        yes = yes,
        no = no
    )
}

fn choices(question: &Question) -> Html {
    let options = question.request.options.iter().map(|option| {
        html!(
            r#"<label><input type="radio" name="value" value="{value}" required><span>{label}</span></label>"#,
            value = shown_value("", &option.value),
            label = option.shown()
        )
    });
    html!(r#"<div class="choices">{options}</div>"#, options = options.collect::<Html>())
}
