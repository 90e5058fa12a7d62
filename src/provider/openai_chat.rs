//! OpenAI's Chat Completions API, and the many who speak it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::failure::{error_inside, not_json, wrong_shape};
use super::http::Http;
use super::wire::{Fields, Splices, decoded, elements, json_string, keep_option, own_items, unique_ids};
use super::{CallResult, Entry, Provider, ProviderError, Request, ToolChoice, ToolSpec, Turn, TurnCall, Usage, wire};

/// The wire format of the turns, as it is stored with them.
pub const API: &str = "openai_chat";

const BASE_URL: &str = "https://api.openai.com/v1";
const WRITTEN: &[&str] =
    &["model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream", "n"];

/// A model behind a Chat Completions API: OpenAI's, Azure's, OpenRouter's, Ollama's and others'.
///
/// ```no_run
/// use askback::provider::{Model, openai_chat::OpenAiChat};
///
/// let local = Model::new(OpenAiChat::new("", "qwen3").base_url("http://localhost:11434/v1").service("ollama"));
/// ```
pub struct OpenAiChat {
    service: String,
    model: String,
    max_tokens: Option<u32>,
    options: Map<String, Value>,
    http: Http,
}

impl OpenAiChat {
    /// A model at `api.openai.com`. A blank key is not sent: Ollama wants none.
    pub fn new(api_key: impl AsRef<str>, model: impl Into<String>) -> Self {
        let mut http = Http::new(BASE_URL, "/chat/completions", &[]);
        let key = api_key.as_ref().trim();
        if !key.is_empty() {
            http.set_header("authorization", &format!("Bearer {key}"));
        }
        Self { service: "openai".into(), model: model.into(), max_tokens: None, options: Map::new(), http }
    }

    /// Where the API is, without its `/chat/completions`. A query, as Azure's `api-version`, stays.
    #[must_use]
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.http.set_base_url(url.into());
        self
    }

    /// Who is asked, say `openrouter`; stored with each turn.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = name.into();
        self
    }

    /// The HTTP client to use, with the app's own proxy, TLS and pool.
    ///
    /// Build it with `redirect::Policy::none()`: reqwest takes only `authorization` off a request that is
    /// redirected to another host, no other header.
    #[must_use]
    pub fn client(mut self, client: reqwest::Client) -> Self {
        self.http.set_client(client);
        self
    }

    /// The most tokens of a reply when the request does not say; the service's own limit at first.
    ///
    /// It is sent as `max_completion_tokens` to the services `openai` and `azure`, whose reasoning models take
    /// nothing else, and as `max_tokens` to all others, most of which know only that.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// How long one request may take, to the last byte of its reply; 10 minutes at first.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.http.set_timeout(timeout);
        self
    }

    /// Adds a header, say Azure's `api-key`. Its value is treated as a secret.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.http.set_header(name.as_ref(), value.as_ref());
        self
    }

    /// Adds a field to every request, say `reasoning_effort`. Fields that askback writes itself are left out.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: Value) -> Self {
        keep_option(&mut self.options, WRITTEN, name.into(), value);
        self
    }

    /// The body of a request, JSON text.
    ///
    /// A turn of this wire stands in it as it came, byte for byte, less the fields of its message that only a reply
    /// has: `annotations`, and those that hold nothing. A call's id is changed only if it is blank or repeated.
    pub fn render(&self, request: &Request) -> String {
        let with_tools = !request.tools.is_empty();
        let limit = request.max_tokens.or(self.max_tokens);
        let completion = matches!(self.service.as_str(), "openai" | "azure");
        wire::to_json(&Body {
            model: &self.model,
            messages: messages(request),
            tools: request.tools.iter().map(tool).collect(),
            tool_choice: request.tool_choice.as_ref().filter(|_| with_tools).map(choice),
            max_completion_tokens: limit.filter(|_| completion),
            max_tokens: limit.filter(|_| !completion),
            options: &self.options,
        })
    }
}

impl Provider for OpenAiChat {
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

impl fmt::Debug for OpenAiChat {
    /// Shows no header and no address: both may hold a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiChat").field("service", &self.service).field("model", &self.model).finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(flatten)]
    options: &'a Map<String, Value>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Message<'a> {
    /// A stored turn.
    Raw(Box<RawValue>),
    Assistant {
        role: &'static str,
        content: &'a str,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Value>,
    },
    Tool {
        role: &'static str,
        tool_call_id: String,
        content: &'a str,
    },
    /// The system prompt or a person's text.
    Text {
        role: &'static str,
        content: &'a str,
    },
}

/// The messages, one for each thing that was said: none are merged, whatever their roles.
fn messages(request: &Request) -> Vec<Message<'_>> {
    let history = &request.history;
    // `system` and not `developer`: OpenAI takes the one for the other, and the rest know only the one.
    let system = request.instructions.as_deref().filter(|text| !text.trim().is_empty());
    let mut messages: Vec<_> = system.map(|content| Message::Text { role: "system", content }).into_iter().collect();
    for (entry, ids) in history.iter().zip(unique_ids(history, |_, _| true)) {
        match entry {
            Entry::User { text } => messages.push(Message::Text { role: "user", content: text }),
            Entry::Turn { text, items, api, calls, .. } => {
                messages.extend(
                    own_items(items, api, API)
                        .and_then(|items| verbatim(items, &ids))
                        .unwrap_or_else(|| neutral(text, &ids, calls)),
                );
                messages.extend(calls.iter().zip(ids).map(result));
            }
        }
    }
    messages
}

/// A result, as the JSON text that is stored, a string in its quotes: `"5"` and `5` stay apart, and a result has the
/// same bytes whether it is sent at once, after a pause or years later. This wire has no sign for an error.
fn result((call, tool_call_id): (&CallResult, String)) -> Message<'_> {
    Message::Tool { role: "tool", tool_call_id, content: &call.result }
}

/// A stored turn's message: `None` if it is not what it should be, `Some(None)` if nothing of it can be sent.
fn verbatim(items: &str, ids: &[String]) -> Option<Option<Message<'static>>> {
    let text = serde_json::from_str::<&RawValue>(items).ok()?.get();
    let text = with_ids(text, ids)?;
    let message = Fields::of(&text).ok()?;
    let kept: Vec<_> = message.iter().filter(|(name, value)| goes_back(name, value)).collect();
    let has = |name: &str| kept.iter().any(|(other, _)| *other == name);
    let says = |name: &str| message.get(name).is_some_and(|raw| !matches!(raw.get(), "\"\"" | "[]"));
    if !kept.iter().any(|(name, _)| *name != "role" && *name != "content") && !says("content") {
        return Some(None);
    }
    // Only a message with calls or a refusal may have no content.
    let bare = !has("tool_calls") && !has("refusal") && message.get("content").is_none();
    let whole = kept.len() == message.iter().count() && has("role") && !bare;
    let text = if whole {
        text.into_owned()
    } else {
        let mut fields = Vec::new();
        if !has("role") {
            fields.push("\"role\":\"assistant\"".to_owned());
        }
        for (name, value) in kept.into_iter().filter(|(name, _)| !bare || *name != "content") {
            fields.push(format!("{}:{}", json_string(name), value.get()));
        }
        if bare {
            fields.push("\"content\":\"\"".to_owned());
        }
        format!("{{{}}}", fields.join(","))
    };
    Some(Some(Message::Raw(RawValue::from_string(text).ok()?)))
}

/// Whether a field of a reply's message belongs into a request. The API reference has no `annotations` there, refuses
/// an empty list of calls, and gateways send every field they know with nothing in it.
fn goes_back(name: &str, value: &RawValue) -> bool {
    let nothing = matches!(value.get(), "null" | "\"\"" | "[]" | "{}");
    let blank = |key: &str| Fields::of(value.get()).is_ok_and(|fields| fields.text(key).is_none_or(|id| id.is_empty()));
    match name {
        "content" => true,
        "annotations" => false,
        // DeepSeek wants the reasoning back even when it is empty.
        "reasoning_content" => value.get() != "null",
        "function_call" => !nothing && !blank("name"),
        "audio" => !nothing && !blank("id"),
        _ => !nothing,
    }
}

/// The message with its calls' ids as they go out, or `None` if its calls are not those that have results.
fn with_ids<'a>(text: &'a str, ids: &[String]) -> Option<Cow<'a, str>> {
    let made = list(&Fields::of(text).ok()?, "tool_calls");
    if made.len() != ids.len() {
        return None;
    }
    let mut splices = Splices::new(text);
    for (raw, id) in made.into_iter().zip(ids) {
        let fields = Fields::of(raw.get()).ok()?;
        if fields.text("id").as_ref() != Some(id) {
            splices.set_id(raw, &fields, id);
        }
        // OpenRouter sends calls without arguments; in a request the field is required.
        if let Some(function) = fields.get("function")
            && let Ok(fields) = Fields::of(function.get())
            && fields.get("arguments").is_none()
        {
            match fields.iter().find(|(name, _)| *name == "arguments") {
                Some((_, null)) => splices.replace(null, "\"{}\"".into()),
                None => splices.add_field(function, "arguments", "\"{}\""),
            }
        }
    }
    Some(splices.finish())
}

fn neutral<'a>(text: &'a str, ids: &[String], calls: &'a [CallResult]) -> Option<Message<'a>> {
    if text.is_empty() && calls.is_empty() {
        return None;
    }
    let call = |(call, id): (&CallResult, &String)| {
        let arguments = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    };
    // An empty text beside calls, and not null: OpenAI takes both, some gateways only the text.
    Some(Message::Assistant { role: "assistant", content: text, tool_calls: calls.iter().zip(ids).map(call).collect() })
}

fn tool(spec: &ToolSpec) -> Value {
    let schema = wire::schema(spec);
    let function = if spec.description.is_empty() {
        json!({"name": spec.name, "parameters": schema})
    } else {
        json!({"name": spec.name, "description": spec.description, "parameters": schema})
    };
    json!({"type": "function", "function": function})
}

fn choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
    }
}

fn parse(body: &str) -> Result<Turn, ProviderError> {
    let reply = Fields::of(body).map_err(|e| not_json(body, &e))?;
    let chosen = objects(&reply, "choices").next();
    // OpenRouter reports a failure of the service behind it with status 200, at the top or inside the choice.
    if let Some(error) = error_inside(&reply).or_else(|| error_inside(chosen.as_ref()?)) {
        return Err(error);
    }
    let Some(choice) = chosen else { return Err(wrong_shape(&reply, "Chat Completions", "choices")) };
    let Some((items, message)) = choice.get("message").and_then(|raw| Some((raw, Fields::of(raw.get()).ok()?))) else {
        return Err(wrong_shape(&choice, "Chat Completions", "message"));
    };
    let (mut text, thought) = content(&message);
    if text.is_empty() {
        text = message.text("refusal").unwrap_or_default();
    }
    Ok(Turn {
        text,
        items: Some(items.get().to_owned()),
        calls: calls(&message),
        reasoning: reasoning(&message).unwrap_or(thought),
        finish_reason: choice.text("finish_reason"),
        response_id: reply.text("id"),
        model: reply.text("model"),
        usage: reply.object("usage").map(|usage| read_usage(&usage)).unwrap_or_default(),
    })
}

/// The text and the thinking of a message's content: a text, or parts of it, as Mistral's reasoning models send them.
fn content(message: &Fields<'_>) -> (String, String) {
    if let Some(text) = message.text("content") {
        return (text, String::new());
    }
    let (mut text, mut thought) = (String::new(), String::new());
    for part in objects(message, "content") {
        text.push_str(&part.text("text").unwrap_or_default());
        for piece in objects(&part, "thinking") {
            thought.push_str(&piece.text("text").unwrap_or_default());
        }
    }
    (text, thought)
}

/// The readable reasoning: `reasoning` (OpenRouter, Ollama, Groq), `reasoning_content` (DeepSeek, vLLM, xAI), or the
/// texts in OpenRouter's `reasoning_details`.
fn reasoning(message: &Fields<'_>) -> Option<String> {
    let plain = ["reasoning", "reasoning_content"].into_iter().find_map(|key| message.text(key));
    plain.filter(|text| !text.is_empty()).or_else(|| {
        let details = objects(message, "reasoning_details");
        let texts: String = details.filter_map(|part| part.text("text").or_else(|| part.text("summary"))).collect();
        Some(texts).filter(|text| !text.is_empty())
    })
}

/// The calls, whatever the finish reason says: some services say `stop`, or nothing, beside calls.
fn calls(message: &Fields<'_>) -> Vec<TurnCall> {
    let call = |call: &Fields<'_>, function: &Fields<'_>| {
        let arguments = function.get("arguments").or_else(|| function.get("input"));
        // Some gateways send the object itself and not its text.
        let arguments = arguments.map(|raw| decoded(raw).unwrap_or_else(|| raw.get().to_owned()));
        let text = |fields: &Fields<'_>, key: &str| fields.text(key).unwrap_or_default();
        TurnCall::new(text(call, "id"), text(function, "name"), arguments.unwrap_or_default())
    };
    let listed: Vec<_> = objects(message, "tool_calls").collect();
    if !listed.is_empty() {
        let function = |fields: &Fields<'_>| {
            let called = fields.object("function").or_else(|| fields.object("custom"));
            called.map_or_else(|| TurnCall::new(fields.text("id").unwrap_or_default(), "", ""), |f| call(fields, &f))
        };
        return listed.iter().map(function).collect();
    }
    // The old form of a single call, without an id. Snowflake sends an empty one beside every message.
    let old = message.object("function_call").filter(|function| function.text("name").is_some_and(|n| !n.is_empty()));
    old.map(|function| call(&function, &function)).into_iter().collect()
}

fn read_usage(usage: &Fields<'_>) -> Usage {
    let (prompt, completion) = (usage.object("prompt_tokens_details"), usage.object("completion_tokens_details"));
    Usage {
        input: usage.number("prompt_tokens"),
        output: usage.number("completion_tokens"),
        total: usage.number("total_tokens"),
        cache_read: prompt.as_ref().and_then(|details| details.number("cached_tokens")),
        cache_write: prompt.as_ref().and_then(|details| details.number("cache_write_tokens")),
        reasoning: completion.and_then(|details| details.number("reasoning_tokens")),
    }
}

/// The elements of an array; none if the field is missing or something else.
fn list<'a>(fields: &Fields<'a>, key: &str) -> Vec<&'a RawValue> {
    fields.get(key).and_then(elements).unwrap_or_default()
}

fn objects<'a>(fields: &Fields<'a>, key: &str) -> impl Iterator<Item = Fields<'a>> + use<'a> {
    list(fields, key).into_iter().filter_map(|raw| Fields::of(raw.get()).ok())
}
