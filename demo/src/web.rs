//! The routes: pages to read, and forms that record what people say and decide.
//!
//! No handler drives a chat. A request only writes rows, and the worker finds them.

use askback::{BoxError, ChatId, Error, ErrorKind, QuestionId, Settled};
use axum::extract::{Form, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Router, response};
use serde::Deserialize;
use serde_json::Value;

use crate::app::{App, CUSTOMER, STAFF_COOKIE, Staff, chain};
use crate::cards::Notice;
use crate::html::Html;
use crate::shop::Conversation;
use crate::view::{self, Desk, OpenChat};

/// How many conversations the page lists.
const LISTED: i64 = 6;

/// The whole desk.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/", get(newest))
        .route("/new", get(blank))
        .route("/chats", post(open))
        .route("/chats/{chat}", get(show))
        .route("/chats/{chat}/say", post(say))
        .route("/chats/{chat}/answer", post(answer))
        .route("/chats/{chat}/cancel", post(cancel))
        .route("/person", post(person))
        .route("/worker", post(worker))
        .route("/assets/{name}", get(asset))
        .fallback(async || refusal(StatusCode::NOT_FOUND, "Nothing is here", "The desk has no such page."))
        .layer(from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

/// What goes wrong in a handler, as a page.
struct Failure(BoxError);

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let kind = self.0.downcast_ref::<Error>().map(Error::kind);
        let (status, title) = match kind {
            Some(ErrorKind::NotFound) => (StatusCode::NOT_FOUND, "Nothing is here"),
            Some(ErrorKind::Invalid) => (StatusCode::BAD_REQUEST, "That does not fit"),
            Some(kind) if is_retryable(kind) => (StatusCode::SERVICE_UNAVAILABLE, "Please try again"),
            _ => {
                tracing::error!(error = chain(&*self.0), "a request failed");
                return refusal(StatusCode::INTERNAL_SERVER_ERROR, "That went wrong", "The desk's log says why.");
            }
        };
        refusal(status, title, &self.0.to_string())
    }
}

fn is_retryable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Busy | ErrorKind::Retry | ErrorKind::Restart)
}

fn refusal(status: StatusCode, title: &str, text: &str) -> Response {
    (status, html_of(view::message_page(title, text))).into_response()
}

fn html_of(html: Html) -> response::Html<String> {
    response::Html(html.into_string())
}

type Page = Result<Response, Failure>;

async fn newest(State(app): State<App>) -> Page {
    let newest = app.shop.conversations(CUSTOMER, 1).await?;
    Ok(back_to(newest.first().map(Conversation::chat)).into_response())
}

async fn blank(State(app): State<App>, staff: Staff) -> Page {
    Ok(html_of(view::page(&desk(&app, staff, None).await?)).into_response())
}

async fn show(State(app): State<App>, staff: Staff, Path(chat): Path<ChatId>) -> Page {
    Ok(html_of(view::page(&desk(&app, staff, Some(chat)).await?)).into_response())
}

/// Reads everything the page shows.
async fn desk(app: &App, staff: Staff, chat: Option<ChatId>) -> Result<Desk, Failure> {
    let pool = app.askback.pool();
    let open = match chat {
        Some(id) => {
            let chat = app.askback.chat(id);
            Some(OpenChat {
                transcript: chat.transcript(pool).await?,
                questions: chat.pending_questions(pool).await?,
                decisions: chat.decisions(pool).await?,
            })
        }
        None => None,
    };
    let mut conversations = Vec::new();
    for conversation in app.shop.conversations(CUSTOMER, LISTED).await? {
        let questions = app.askback.chat(conversation.chat()).pending_questions(pool).await?.len();
        conversations.push((conversation, questions));
    }
    Ok(Desk {
        staff,
        worker: app.worker.status(),
        conversations,
        open,
        orders: app.shop.orders(CUSTOMER).await?,
        refunds: app.shop.refunds().await?,
        notice: None,
        refused: None,
    })
}

/// A text of the customer's.
#[derive(Deserialize)]
struct Said {
    text: String,
}

async fn open(State(app): State<App>, staff: Staff, Form(said): Form<Said>) -> Page {
    if said.text.trim().is_empty() {
        let mut desk = desk(&app, staff, None).await?;
        desk.refused = Some(("Please write something first.".into(), String::new()));
        return Ok((StatusCode::BAD_REQUEST, html_of(view::page(&desk))).into_response());
    }
    let chat = app.shop.open(&app.askback, CUSTOMER, &said.text).await?;
    Ok(Redirect::to(&format!("/chats/{chat}")).into_response())
}

async fn say(State(app): State<App>, staff: Staff, Path(chat): Path<ChatId>, Form(said): Form<Said>) -> Page {
    let refused = match app.askback.chat(chat).say(app.askback.pool(), said.text.as_str()).await {
        Ok(_) => return Ok(Redirect::to(&format!("/chats/{chat}")).into_response()),
        Err(error) => error,
    };
    let why = match refused.kind() {
        ErrorKind::PendingToolCalls => "The desk still works on what you asked for. Wait for that, or cancel it.",
        ErrorKind::Busy => "The desk still answers your last message. Try again in a moment.",
        ErrorKind::Invalid => "That text cannot be sent.",
        _ => return Err(refused.into()),
    };
    let mut desk = desk(&app, staff, Some(chat)).await?;
    desk.refused = Some((why.into(), said.text));
    Ok((StatusCode::CONFLICT, html_of(view::page(&desk))).into_response())
}

/// An answer of the staff's. Who gives it is not in the form.
#[derive(Deserialize)]
struct Reply {
    question: QuestionId,
    digest: String,
    verb: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    note: String,
}

async fn answer(State(app): State<App>, staff: Staff, Path(chat): Path<ChatId>, Form(reply): Form<Reply>) -> Page {
    let (status, notice) = match settle(&app, staff, chat, &reply).await {
        Ok(settled) => (StatusCode::OK, Notice::settled(&settled, staff)),
        Err(error) => {
            // The person sees the card, so which question it was need not be told.
            let (text, doing) = (error.to_string(), format!("answering question {}: ", reply.question));
            let text = text.trim_start_matches(&doing);
            match error.kind() {
                ErrorKind::Invalid => (StatusCode::BAD_REQUEST, Notice::refused(text)),
                ErrorKind::NotAllowed => (StatusCode::FORBIDDEN, Notice::refused(text)),
                ErrorKind::ToolCallRunning => (StatusCode::CONFLICT, Notice::late(text)),
                kind if is_retryable(kind) => (StatusCode::SERVICE_UNAVAILABLE, Notice::refused(text)),
                _ => return Err(error.into()),
            }
        }
    };
    let mut desk = desk(&app, staff, Some(chat)).await?;
    desk.notice = Some(notice);
    Ok((status, html_of(view::page(&desk))).into_response())
}

async fn settle(app: &App, staff: Staff, chat: ChatId, reply: &Reply) -> askback::Result<Settled> {
    let (chat, pool, by) = (app.askback.chat(chat), app.askback.pool(), staff.by(&reply.digest));
    match reply.verb.as_str() {
        "yes" => chat.answer(pool, &reply.question, true, by).await,
        "no" => {
            let note = Some(reply.note.trim()).filter(|note| !note.is_empty());
            chat.decline(pool, &reply.question, note, by).await
        }
        _ => chat.answer(pool, &reply.question, Value::from(reply.value.as_str()), by).await,
    }
}

async fn cancel(State(app): State<App>, Path(chat): Path<ChatId>) -> Page {
    app.askback.chat(chat).cancel(app.askback.pool()).await?;
    Ok(Redirect::to(&format!("/chats/{chat}")).into_response())
}

/// Who takes the staff's seat, and where to come back to.
#[derive(Deserialize)]
struct Seat {
    name: String,
    chat: Option<ChatId>,
}

async fn person(Form(seat): Form<Seat>) -> Page {
    let staff = Staff::named(&seat.name).unwrap_or(Staff::Ann);
    let cookie = format!("{STAFF_COOKIE}={staff}; Path=/; HttpOnly; SameSite=Lax");
    Ok(([(header::SET_COOKIE, cookie)], back_to(seat.chat)).into_response())
}

/// What to do with the worker, and where to come back to.
#[derive(Deserialize)]
struct Order {
    action: String,
    chat: Option<ChatId>,
}

async fn worker(State(app): State<App>, Form(order): Form<Order>) -> Page {
    match order.action.as_str() {
        "kill" => app.worker.kill().await?,
        "start" => app.worker.start()?,
        _ => return Ok(refusal(StatusCode::BAD_REQUEST, "That does not fit", "The worker is killed or started.")),
    }
    Ok(back_to(order.chat).into_response())
}

fn back_to(chat: Option<ChatId>) -> Redirect {
    chat.map_or_else(|| Redirect::to("/new"), |chat| Redirect::to(&format!("/chats/{chat}")))
}

async fn asset(Path(name): Path<String>) -> Response {
    let (kind, body) = match name.as_str() {
        "desk.css" => ("text/css; charset=utf-8", include_str!("../assets/desk.css")),
        "desk.js" => ("text/javascript; charset=utf-8", include_str!("../assets/desk.js")),
        "desk.svg" => ("image/svg+xml", include_str!("../assets/desk.svg")),
        _ => return refusal(StatusCode::NOT_FOUND, "Nothing is here", "The desk has no such file."),
    };
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

/// Refuses forms of other sites, and names that point here although they are not ours; adds the page's rules.
async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let forged = request.method() != Method::GET && !is_same_origin(headers);
    let mut response = match forged || (app.local && !is_local(headers)) {
        true => refusal(StatusCode::FORBIDDEN, "Not from here", "The desk takes forms of its own page only."),
        false => next.run(request).await,
    };
    let rules = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in rules {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Browsers say where a form came from; what says nothing is no browser, and has no cookie to abuse.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").is_none_or(|site| site == "same-origin" || site == "none");
    let host = text_of(headers, header::HOST).unwrap_or_default();
    let origin = text_of(headers, header::ORIGIN);
    site && origin.is_none_or(|origin| origin.split_once("://").is_some_and(|(_, from)| from == host))
}

fn is_local(headers: &HeaderMap) -> bool {
    let host = text_of(headers, header::HOST).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, port)| if port.ends_with(']') { host } else { name });
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}
