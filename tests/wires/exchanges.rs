//! Recorded exchanges with real services, replayed over a socket: every reply is read as it was recorded, and every
//! stored turn goes back as the next recorded request had it, or the difference has a name.
//!
//! The recordings are not part of the repository. `ASKBACK_EXCHANGES` says where they are; a checkout without them
//! passes, unless `ASKBACK_REQUIRE_EXCHANGES` is set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use askback::provider::anthropic::Anthropic;
use askback::provider::openai_chat::OpenAiChat;
use askback::provider::{CallResult, Entry, Model, ProviderError, Request, Turn, Usage};
use serde_json::{Value, json};

use crate::server::{Answer, Server};

/// One exchange of a recording with what it should be read as.
struct Exchange {
    name: String,
    provider: String,
    protocol: String,
    request: Value,
    response: Value,
    expected: Value,
}

impl Exchange {
    fn is_ours(&self) -> bool {
        matches!(self.protocol.as_str(), "anthropic_messages" | "openai_chat")
    }

    /// Why it is left out.
    fn left_out(&self) -> Option<&'static str> {
        self.response.get("sse").map(|_| "streamed: later")
    }

    fn answer(&self) -> Answer {
        let status = self.response["status"].as_u64().unwrap() as u16;
        let headers: Vec<_> = self.response["headers"].as_object().into_iter().flatten().collect();
        // These belong to the recorded transfer, not to ours.
        let ours = ["content-length", "transfer-encoding", "content-encoding", "connection"];
        let headers: Vec<_> = headers
            .iter()
            .filter(|(name, _)| !ours.contains(&name.to_ascii_lowercase().as_str()))
            .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
            .collect();
        let body = match (&self.response["body"], &self.response["body_text"]) {
            (Value::Null, Value::String(text)) => text.clone(),
            (Value::Null, _) => String::new(),
            (body, _) => body.to_string(),
        };
        Answer::new(status, &headers, &body)
    }

    fn model(&self, url: &str) -> Model {
        match self.protocol.as_str() {
            "anthropic_messages" => Anthropic::new("key", "m").base_url(url).into(),
            _ => OpenAiChat::new("key", "m").base_url(url).into(),
        }
    }

    async fn replay(&self) -> Result<Turn, ProviderError> {
        let server = Server::start([self.answer()]).await;
        self.model(&server.url).generate(&Request::default()).await
    }

    fn messages(&self) -> &[Value] {
        self.request["body"]["messages"].as_array().map(Vec::as_slice).unwrap_or_default()
    }
}

fn directory() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/exchanges");
    let named = std::env::var_os("ASKBACK_EXCHANGES").map(PathBuf::from);
    let found = named.or_else(|| Some(beside).filter(|path| path.is_dir()));
    if found.is_none() {
        assert!(std::env::var_os("ASKBACK_REQUIRE_EXCHANGES").is_none(), "the recorded exchanges are required");
        println!("no recorded exchanges here: ran on none");
    }
    found
}

/// The recordings, each as its exchanges.
fn recordings() -> Vec<Vec<Exchange>> {
    let Some(directory) = directory() else { return Vec::new() };
    let read = |path: PathBuf| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let expected = read(directory.join("expected.json"));
    let list = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let of_file = |(file, expected): (&String, &Value)| {
        let recorded = read(directory.join(file));
        let exchanges = recorded.get("exchanges").map(list).unwrap_or_else(|| vec![recorded.clone()]);
        let expected = list(expected);
        assert_eq!(exchanges.len(), expected.len(), "{file}");
        let exchange = |(n, (exchange, expected)): (usize, (Value, Value))| Exchange {
            name: format!("{} #{n}", file.trim_end_matches(".json")),
            provider: exchange["provider"].as_str().unwrap().to_owned(),
            protocol: exchange["protocol"].as_str().unwrap().to_owned(),
            request: exchange["request"].clone(),
            response: exchange["response"].clone(),
            expected,
        };
        exchanges.into_iter().zip(expected).enumerate().map(exchange).collect()
    };
    let recordings: Vec<_> = expected.as_object().unwrap().iter().map(of_file).collect();
    assert!(!recordings.is_empty());
    recordings
}

#[tokio::test]
async fn every_recorded_reply_is_read_as_it_was_recorded() {
    let mut totals = BTreeMap::<String, usize>::new();
    for exchange in recordings().into_iter().flatten().filter(Exchange::is_ours) {
        let outcome = match exchange.left_out() {
            Some(reason) => format!("left out: {reason}"),
            None => match exchange.replay().await {
                Ok(turn) => {
                    check_turn(&exchange, &turn);
                    if turn.calls.is_empty() { "turn".to_owned() } else { "turn with calls".to_owned() }
                }
                Err(error) => {
                    check_error(&exchange, &error);
                    format!("error, {}", if error.is_retryable() { "retryable" } else { "for good" })
                }
            },
        };
        println!("{:<100} {:<24} {outcome}", exchange.name, exchange.provider);
        *totals.entry(format!("{}: {outcome}", exchange.protocol)).or_default() += 1;
    }
    for (outcome, count) in &totals {
        println!("{count:>4}  {outcome}");
    }
}

fn check_turn(exchange: &Exchange, turn: &Turn) {
    let (name, expected) = (&exchange.name, &exchange.expected);
    assert!(expected["error"].is_null(), "{name}");
    let text = |key: &str| expected[key].as_str().unwrap_or_default();
    // A refusal is told as the text.
    let said = if text("text").is_empty() { text("refusal") } else { text("text") };
    assert_eq!(turn.text, said, "{name}");
    assert_eq!(turn.reasoning, text("reasoning_text"), "{name}");
    assert_eq!(json!(turn.finish_reason), expected["finish_reason"], "{name}");
    assert_eq!(json!(turn.response_id), expected["response_id"], "{name}");
    assert_eq!(json!(turn.model), expected["model"], "{name}");
    check_usage(name, &turn.usage, &expected["usage"]);

    let calls = expected["tool_calls"].as_array().unwrap();
    assert_eq!(turn.calls.len(), calls.len(), "{name}");
    for (call, expected) in turn.calls.iter().zip(calls) {
        assert_eq!(call.wire_id, expected["id"].as_str().unwrap_or_default(), "{name}");
        assert_eq!(call.name, expected["name"], "{name}");
        match &expected["arguments"] {
            Value::String(text) => assert_eq!(&call.arguments, text, "{name}"),
            Value::Null => assert_eq!(call.arguments, "", "{name}"),
            value => assert_eq!(&serde_json::from_str::<Value>(&call.arguments).unwrap(), value, "{name}"),
        }
    }

    let body = &exchange.response["body"];
    let own = if exchange.protocol == "openai_chat" { &body["choices"][0]["message"] } else { &body["content"] };
    assert_eq!(turn.items.as_deref(), Some(own.to_string().as_str()), "{name}: the items are the provider's bytes");
}

fn check_usage(name: &str, usage: &Usage, expected: &Value) {
    let read = [
        ("input", usage.input),
        ("output", usage.output),
        ("total", usage.total),
        ("cache_read", usage.cache_read),
        ("reasoning", usage.reasoning),
    ];
    for (key, value) in read {
        assert_eq!(value, expected[key].as_u64(), "{name}: {key}");
    }
    // Services that write to a cache on Chat Completions say so beside what the expected parses take in.
    if !expected["cache_write"].is_null() {
        assert_eq!(usage.cache_write, expected["cache_write"].as_u64(), "{name}");
    }
}

fn check_error(exchange: &Exchange, error: &ProviderError) {
    let (name, expected) = (&exchange.name, &exchange.expected);
    assert_eq!(error.status().map(u64::from), expected["status"].as_u64(), "{name}");
    let told = &expected["error"];
    if told.is_null() {
        // The one recording whose body was not kept.
        assert_eq!(error.message(), "the reply is empty", "{name}");
    } else {
        let message = told["message"].as_str().or(told["detail"].as_str()).unwrap();
        assert_eq!(error.message(), message, "{name}");
        let word = [&told["code"], &told["type"]].into_iter().find(|word| !word.is_null());
        let word = word.map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned));
        assert_eq!(error.code(), word.as_deref(), "{name}");
    }
    let too_large = error.message().starts_with("Request too large");
    let passes = matches!(error.status(), Some(429 | 500..)) && !too_large;
    assert_eq!(error.is_retryable(), passes, "{name}");
    if let Some(seconds) = exchange.response["headers"]["retry-after"].as_str().filter(|_| passes) {
        assert_eq!(error.retry_after().unwrap().as_secs().to_string(), seconds, "{name}");
    }
}

#[tokio::test]
async fn every_recorded_turn_goes_back_as_the_next_request_had_it() {
    // A59
    let (mut equal, mut compared) = (0, 0);
    let mut reasons = BTreeMap::<&str, usize>::new();
    let mut unnamed = Vec::new();
    for recording in recordings() {
        for pair in recording.windows(2).filter(|pair| pair[0].is_ours() && pair[0].protocol == pair[1].protocol) {
            let [before, next] = pair else { continue };
            let at = before.messages().len();
            if before.response["status"] != 200 || next.messages().len() <= at {
                println!("{}: not continued by the next request", before.name);
                continue;
            }
            if let Some(reason) = before.left_out() {
                println!("{}: left out: {reason}", before.name);
                continue;
            }
            let turn = before.replay().await.unwrap();
            let (recorded, results) = (&next.messages()[at], &next.messages()[at + 1..]);
            let sent = goes_out(before, turn, results);
            let mut differences = Vec::new();
            compare("", recorded, &sent[0], &mut differences);
            let answered: Vec<_> = results.iter().flat_map(result_ids).collect();
            let ours: Vec<_> = sent[1..].iter().flat_map(result_ids).collect();
            if answered != ours {
                differences.push((".result_ids".into(), json!(answered), json!(ours)));
            }
            compared += 1;
            equal += usize::from(differences.is_empty());
            for (path, recorded, sent) in differences {
                match reason(&path, &recorded, &sent) {
                    Some(reason) => {
                        println!("{}: {path}: {reason}", before.name);
                        *reasons.entry(reason).or_default() += 1;
                    }
                    None => unnamed.push(format!("{}: {path}: recorded {recorded}, ours {sent}", before.name)),
                }
            }
        }
    }
    println!("{compared} turns compared, {equal} equal");
    for (reason, count) in reasons {
        println!("{count:>4}  {reason}");
    }
    assert!(unnamed.is_empty(), "{unnamed:#?}");
}

/// The messages that our request holds for a turn and its results.
fn goes_out(exchange: &Exchange, turn: Turn, results: &[Value]) -> Vec<Value> {
    let texts: Vec<_> = results.iter().flat_map(result_texts).collect();
    let made = turn.calls.into_iter().enumerate().map(|(n, call)| {
        CallResult::new(call.wire_id, call.name, call.arguments, texts.get(n).cloned().unwrap_or_else(|| "null".into()))
    });
    let calls = made.collect();
    let (service, api) = (Some(exchange.provider.clone()), Some(exchange.protocol.clone()));
    let mut request = Request::default();
    request.history.push(Entry::User { text: "go".into() });
    request.history.push(Entry::Turn { text: turn.text, items: turn.items, service, api, calls });
    let body = match exchange.protocol.as_str() {
        "anthropic_messages" => Anthropic::new("key", "m").render(&request),
        _ => OpenAiChat::new("key", "m").render(&request),
    };
    serde_json::from_str::<Value>(&body).unwrap()["messages"].as_array().unwrap()[1..].to_vec()
}

fn result_blocks(message: &Value) -> Vec<&Value> {
    let blocks = message["content"].as_array().into_iter().flatten();
    blocks.filter(|block| block["type"] == "tool_result").collect()
}

fn result_ids(message: &Value) -> Vec<Value> {
    match message["tool_call_id"].as_str() {
        Some(id) => vec![id.into()],
        None => result_blocks(message).into_iter().map(|block| block["tool_use_id"].clone()).collect(),
    }
}

fn result_texts(message: &Value) -> Vec<String> {
    if message["tool_call_id"].is_string() {
        return vec![message["content"].to_string()];
    }
    result_blocks(message).into_iter().map(|block| block["content"].to_string()).collect()
}

/// Where two values differ: the path without its indices, what was recorded and what is ours.
fn compare(path: &str, recorded: &Value, ours: &Value, found: &mut Vec<(String, Value, Value)>) {
    match (recorded, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let of =
                    |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_else(|| "(none)".into());
                compare(&format!("{path}.{key}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (a, b) in a.iter().zip(b) {
                compare(&format!("{path}[]"), a, b, found);
            }
        }
        _ if recorded == ours => {}
        _ => found.push((path.to_owned(), recorded.clone(), ours.clone())),
    }
}

/// Why ours differs from what the recorded client sent, where that is as it should be.
fn reason(path: &str, recorded: &Value, ours: &Value) -> Option<&'static str> {
    const DROPS: &str = "the recorded client drops a field that we keep";
    let none = |value: &Value| value == "(none)";
    let nothing = |value: &Value| none(value) || value.is_null() || value == "" || value == &json!([]);
    let made_up = |value: &Value| value.as_str().is_some_and(|id| id.starts_with("call0"));
    let json_of = |value: &Value| value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let ids = |value: &Value| value.as_array().cloned().unwrap_or_default();
    Some(match path {
        ".content[].cache_control" if none(ours) => "the recorded client marks its cache",
        ".content[].caller" | ".content[].citations" if none(recorded) => DROPS,
        ".tool_calls[].index" | ".tool_calls[].custom" if none(recorded) => DROPS,
        ".extra_content" | ".thought_signature" | ".reasoning" if none(recorded) => DROPS,
        ".reasoning_details[].format" | ".reasoning_details[].index" if none(recorded) => DROPS,
        ".content" if nothing(recorded) && nothing(ours) => "empty content has another form",
        ".refusal" | ".annotations" | ".reasoning" if nothing(recorded) && none(ours) => {
            "we send no field that holds nothing"
        }
        ".reasoning" | ".reasoning_content" if none(ours) => {
            "the recorded client adds the reasoning under another name"
        }
        ".content" if recorded.as_str()?.starts_with("<think>") => {
            "the recorded client puts the reasoning into the text"
        }
        ".tool_calls[].function.arguments" if json_of(recorded)? == json_of(ours)? => {
            "the recorded client writes arguments anew"
        }
        ".tool_calls[].id" if made_up(ours) => "a blank id is made up, to another taste",
        ".result_ids" if ids(ours).iter().all(made_up) => "a blank id is made up, to another taste",
        ".result_ids" if ids(recorded).starts_with(&ids(ours)) => "the recorded client adds a call of its own",
        ".function_call" if none(ours) => "the old form of a call goes back in the new one",
        ".tool_calls" if made_up(&ours[0]["id"]) => "the old form of a call goes back in the new one",
        _ => return None,
    })
}
