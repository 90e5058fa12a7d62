//! Anthropic's Messages API, and everyone who speaks it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::failure::{error_inside, not_json, wrong_shape};
use super::http::Http;
use super::wire::{Fields, Splices, elements, keep_option, own_items, unique_ids};
use super::{CallResult, Entry, Provider, ProviderError, Request, ToolChoice, ToolSpec, Turn, TurnCall, Usage, wire};

/// The wire format of the turns, as it is stored with them.
pub const API: &str = "anthropic_messages";

const BASE_URL: &str = "https://api.anthropic.com";
const HEADERS: &[(&str, &str)] = &[("anthropic-version", "2023-06-01")];
/// The API wants a limit in every request; this one holds for all models that are sold.
const MAX_TOKENS: u32 = 8_192;
const WRITTEN: &[&str] = &["model", "max_tokens", "system", "messages", "tools", "tool_choice", "stream"];

/// A model behind Anthropic's Messages API.
///
/// ```no_run
/// use askback::provider::{Model, anthropic::Anthropic};
///
/// let key = std::env::var("ANTHROPIC_API_KEY").unwrap_or_default();
/// let model = Model::new(Anthropic::new(key, "claude-sonnet-4-5").max_tokens(4_096));
/// ```
pub struct Anthropic {
    service: String,
    model: String,
    max_tokens: u32,
    options: Map<String, Value>,
    http: Http,
}

impl Anthropic {
    /// A model at `api.anthropic.com`. A blank key is not sent.
    pub fn new(api_key: impl AsRef<str>, model: impl Into<String>) -> Self {
        let mut http = Http::new(BASE_URL, "/v1/messages", HEADERS);
        if !api_key.as_ref().trim().is_empty() {
            http.set_header("x-api-key", api_key.as_ref());
        }
        Self { service: "anthropic".into(), model: model.into(), max_tokens: MAX_TOKENS, options: Map::new(), http }
    }

    /// Where the API is, without its `/v1/messages`.
    #[must_use]
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.http.set_base_url(url.into());
        self
    }

    /// Who is asked, where that is not Anthropic; stored with each turn.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = name.into();
        self
    }

    /// The HTTP client to use, with the app's own proxy, TLS and pool.
    ///
    /// Build it with `redirect::Policy::none()`: reqwest takes only `authorization` off a request that is
    /// redirected to another host, not `x-api-key`.
    #[must_use]
    pub fn client(mut self, client: reqwest::Client) -> Self {
        self.http.set_client(client);
        self
    }

    /// The most tokens of a reply when the request does not say; 8,192 at first.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.max_tokens = tokens;
        self
    }

    /// How long one request may take, to the last byte of its reply; 10 minutes at first.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.http.set_timeout(timeout);
        self
    }

    /// Adds a header, say `anthropic-beta`, or `authorization` where that is the key. Its value is treated as a secret.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.http.set_header(name.as_ref(), value.as_ref());
        self
    }

    /// Adds a field to every request, say `thinking` or `temperature`. Fields that askback writes itself are left out.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: Value) -> Self {
        keep_option(&mut self.options, WRITTEN, name.into(), value);
        self
    }

    /// The body of a request, JSON text.
    ///
    /// A turn of this wire stands in it as it came, byte for byte. Left out are only what the API would refuse:
    /// blank text blocks, thinking blocks without text and signature, and thinking that led to nothing. A call's id
    /// is changed only if it is blank or repeated.
    pub fn render(&self, request: &Request) -> String {
        let with_tools = !request.tools.is_empty();
        wire::to_json(&Body {
            model: &self.model,
            max_tokens: request.max_tokens.unwrap_or(self.max_tokens),
            system: request.instructions.as_deref().filter(|text| !text.trim().is_empty()),
            messages: messages(&request.history),
            tools: request.tools.iter().map(tool).collect(),
            tool_choice: request.tool_choice.as_ref().filter(|_| with_tools).map(choice),
            options: &self.options,
        })
    }
}

impl Provider for Anthropic {
    fn service(&self) -> &str {
        &self.service
    }

    fn api(&self) -> &str {
        API
    }

    fn model(&self) -> &str {
        &self.model
    }

    async fn generate(&self, request: &Request) -> Result<Turn, ProviderError> {
        self.http.ask(self.render(request), parse).await
    }
}

impl fmt::Debug for Anthropic {
    /// Shows no header and no address: both may hold a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anthropic").field("service", &self.service).field("model", &self.model).finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<&'a str>,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(flatten)]
    options: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Content<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    /// A stored turn.
    Raw(Box<RawValue>),
    Blocks(Vec<Block<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
    },
    ToolUse {
        id: String,
        name: &'a str,
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        content: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

fn messages(history: &[Entry]) -> Vec<Message<'_>> {
    // The documentation of tool use: ids are letters, digits, `_` and `-`. Another wire's may hold more, and
    // nothing but the call and its result refers to them.
    let fits = |entry: &Entry, id: &str| match entry {
        Entry::Turn { api, .. } if api.as_deref() == Some(API) => true,
        _ => id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'),
    };
    let mut messages = Vec::new();
    for (entry, ids) in history.iter().zip(unique_ids(history, fits)) {
        match entry {
            // A blank text block is refused, now and with every later request of the chat.
            Entry::User { text } if text.trim().is_empty() => {}
            Entry::User { text } => user(&mut messages, vec![Block::Text { text }]),
            Entry::Turn { text, items, api, calls, .. } => {
                let content = own_items(items, api, API)
                    .and_then(|items| verbatim(items, &ids))
                    .unwrap_or_else(|| neutral(text, &ids, calls).map(Content::Blocks));
                // A turn that said nothing, say a refusal, is refused as a message.
                messages.extend(content.map(|content| Message { role: "assistant", content }));
                if !calls.is_empty() {
                    user(&mut messages, results(&ids, calls));
                }
            }
        }
    }
    messages
}

/// Adds blocks to the user's message. What a person says after results stands behind them in the same message:
/// results must lead it, and gateways exist that want the roles to alternate.
fn user<'a>(messages: &mut Vec<Message<'a>>, blocks: Vec<Block<'a>>) {
    if let Some(Message { role: "user", content: Content::Blocks(earlier) }) = messages.last_mut() {
        earlier.extend(blocks);
    } else {
        messages.push(Message { role: "user", content: Content::Blocks(blocks) });
    }
}

/// A stored turn's content: `None` if it is not what it should be, `Some(None)` if nothing of it can be sent.
fn verbatim(items: &str, ids: &[String]) -> Option<Option<Content<'static>>> {
    let whole: &RawValue = serde_json::from_str(items).ok()?;
    let all = elements(whole)?;
    let mut kept = Vec::with_capacity(all.len());
    let (mut changed, mut nth) = (false, 0);
    for raw in &all {
        let block = Fields::of(raw.get()).ok()?;
        let blank = |key: &str| block.text(key).is_none_or(|text| text.trim().is_empty());
        let kind = block.text("type").unwrap_or_default();
        let text = match kind.as_str() {
            "text" if blank("text") => continue,
            "thinking" if blank("thinking") && blank("signature") => continue,
            "tool_use" => {
                let id = ids.get(nth)?;
                nth += 1;
                if block.text("id").as_ref() == Some(id) {
                    raw.get().to_owned()
                } else {
                    changed = true;
                    let mut splices = Splices::new(raw.get());
                    splices.set_id(raw, &block, id);
                    splices.finish().into_owned()
                }
            }
            _ => raw.get().to_owned(),
        };
        kept.push((kind, text));
    }
    // Thinking that led to nothing: "the final block in an assistant message cannot be `thinking`".
    while kept.last().is_some_and(|(kind, _)| kind == "thinking" || kind == "redacted_thinking") {
        kept.pop();
    }
    if nth != ids.len() {
        return None;
    }
    if kept.is_empty() {
        return Some(None);
    }
    let text = if changed || kept.len() != all.len() {
        let blocks: Vec<_> = kept.into_iter().map(|(_, text)| text).collect();
        format!("[{}]", blocks.join(","))
    } else {
        whole.get().to_owned()
    };
    Some(Some(Content::Raw(RawValue::from_string(text).ok()?)))
}

fn neutral<'a>(text: &'a str, ids: &[String], calls: &'a [CallResult]) -> Option<Vec<Block<'a>>> {
    let said = Some(text).filter(|text| !text.trim().is_empty()).map(|text| Block::Text { text });
    let used = calls.iter().zip(ids).map(|(call, id)| Block::ToolUse {
        id: id.clone(),
        name: &call.name,
        input: input(&call.arguments),
    });
    Some(said.into_iter().chain(used).collect::<Vec<_>>()).filter(|blocks| !blocks.is_empty())
}

/// The arguments of another wire's call. Here they must be an object; what is none, cut arguments say, is shown as text.
fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(object @ Value::Object(_)) => object,
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({ "arguments": arguments }),
    }
}

/// The results of a turn. Each goes out as the JSON text that is stored, a string in its quotes: `"5"` and `5` stay
/// apart, and a result has the same bytes whether it is sent at once, after a pause or years later.
fn results<'a>(ids: &[String], calls: &'a [CallResult]) -> Vec<Block<'a>> {
    let result = |(call, id): (&'a CallResult, &String)| Block::ToolResult {
        tool_use_id: id.clone(),
        content: &call.result,
        is_error: call.is_error,
    };
    calls.iter().zip(ids).map(result).collect()
}

fn tool(spec: &ToolSpec) -> Value {
    let schema = wire::schema(spec);
    if spec.description.is_empty() {
        json!({"name": spec.name, "input_schema": schema})
    } else {
        json!({"name": spec.name, "description": spec.description, "input_schema": schema})
    }
}

fn choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::None => json!({"type": "none"}),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Tool(name) => json!({"type": "tool", "name": name}),
    }
}

fn parse(body: &str) -> Result<Turn, ProviderError> {
    let reply = Fields::of(body).map_err(|e| not_json(body, &e))?;
    if let Some(error) = error_inside(&reply) {
        return Err(error);
    }
    let Some((content, blocks)) = reply.get("content").and_then(|raw| Some((raw, elements(raw)?))) else {
        return Err(wrong_shape(&reply, "Messages", "content"));
    };
    let mut turn = Turn {
        items: Some(content.get().to_owned()),
        finish_reason: reply.text("stop_reason"),
        response_id: reply.text("id"),
        model: reply.text("model"),
        usage: reply.object("usage").map(|usage| read_usage(&usage)).unwrap_or_default(),
        ..Turn::default()
    };
    // Blocks of other kinds are the service's own tools and their results: kept in the items, not ours to answer.
    for block in blocks.into_iter().filter_map(|raw| Fields::of(raw.get()).ok()) {
        let text = |key: &str| block.text(key).unwrap_or_default();
        match text("type").as_str() {
            "text" => turn.text.push_str(&text("text")),
            "thinking" => turn.reasoning.push_str(&text("thinking")),
            "tool_use" => {
                let arguments = block.get("input").map(|raw| raw.get()).unwrap_or_default();
                turn.calls.push(TurnCall::new(text("id"), text("name"), arguments));
            }
            _ => {}
        }
    }
    Ok(turn)
}

fn read_usage(usage: &Fields<'_>) -> Usage {
    Usage {
        input: usage.number("input_tokens"),
        output: usage.number("output_tokens"),
        total: None,
        cache_read: usage.number("cache_read_input_tokens"),
        cache_write: usage.number("cache_creation_input_tokens"),
        reasoning: usage.object("output_tokens_details").and_then(|details| details.number("thinking_tokens")),
    }
}
