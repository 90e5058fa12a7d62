//! What a status of failure, or a reply that is none, means: the provider's words, and whether to try again.

use std::time::{Duration, SystemTime};

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use super::ProviderError;
use super::wire::Fields;

/// The most characters of a provider's own message.
const MAX_MESSAGE: usize = 2_000;
/// The most characters of a body that is quoted for want of a message.
const MAX_QUOTE: usize = 200;
/// The longest wait that a provider may ask for: a header that is wrong must not park a chat for days.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);

/// What a reply with a status of failure says.
pub(super) fn failure(status: u16, headers: &HeaderMap, body: &str) -> ProviderError {
    let said = Said::read(body);
    let quota = status == 429 && said.as_ref().is_some_and(Said::is_for_good);
    // `x-should-retry` is what Anthropic's and OpenAI's own clients obey; only its no is taken, never a yes to a 400.
    let stop = headers.get("x-should-retry").is_some_and(|value| value == "false");
    let redirected = if (300..400).contains(&status) {
        "the provider answered with a redirect, which is not followed: "
    } else {
        ""
    };
    let (message, code) = match said {
        Some(said) => (said.message, said.code.or(said.kind)),
        None => (format!("{redirected}{}", unreadable(body)), None),
    };
    let mut error = ProviderError::new(message).with_status(status);
    if let Some(code) = code {
        error = error.with_code(code);
    }
    if is_retryable(status) && !quota && !stop { error.retryable(retry_after(headers)) } else { error }
}

/// Timeouts, conflicts with a request that runs, too many requests, and failures of the other side (529 is
/// Anthropic's overload). 501 and 505 will be the same next time.
fn is_retryable(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429) || (status >= 500 && status != 501 && status != 505)
}

/// `retry-after`, in seconds or as a date (RFC 9110). A date is held against the reply's own, so that our clock may be wrong.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match value.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(MAX_RETRY_AFTER),
        Err(_) => {
            let until = httpdate::parse_http_date(value).ok()?;
            let sent = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
            until.duration_since(sent.unwrap_or_else(SystemTime::now)).unwrap_or_default()
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// A provider's own words about an error.
struct Said {
    message: String,
    code: Option<String>,
    kind: Option<String>,
}

impl Said {
    /// Reads the shapes that are about: `error` as an object (Anthropic, OpenAI, Azure, OpenRouter) or a text (Ollama),
    /// the fields at the top (Mistral), `detail` (FastAPI: Mistral, vLLM), and any of them in a list (Gemini).
    fn read(body: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(body).ok()?;
        let value = value.get(0).unwrap_or(&value);
        Self::of(value.get("error").filter(|error| !error.is_null()).unwrap_or(value))
    }

    fn of(error: &Value) -> Option<Self> {
        let scalar = |key: &str| match error.get(key)? {
            Value::String(text) => Some(clipped(text, 100)).filter(|text| !text.is_empty()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let mut message = match error {
            Value::String(text) => text.clone(),
            _ => ["message", "detail", "msg"].into_iter().find_map(|key| match error.get(key)? {
                Value::String(text) => Some(text.clone()),
                Value::Null => None,
                other => Some(other.to_string()),
            })?,
        };
        // OpenRouter: what the service behind it said.
        if let Some(raw) = error.pointer("/metadata/raw").and_then(Value::as_str) {
            message = format!("{message}: {raw}");
        }
        Some(Self { message: clipped(&message, MAX_MESSAGE), code: scalar("code"), kind: scalar("type") })
    }

    /// A 429 that waiting does not cure: money that is used up, or a request above the limit by itself.
    fn is_for_good(&self) -> bool {
        let words = [self.code.as_deref(), self.kind.as_deref()];
        words.into_iter().flatten().any(|word| matches!(word, "insufficient_quota" | "billing_hard_limit_reached"))
            || self.message.starts_with("Request too large")
    }

    /// Whether an error without a status of its own may pass.
    fn may_pass(&self) -> bool {
        [self.code.as_deref(), self.kind.as_deref()].into_iter().flatten().any(|word| match word.parse::<u16>() {
            Ok(status) => is_retryable(status),
            Err(_) => matches!(
                word,
                "overloaded_error"
                    | "api_error"
                    | "rate_limit_error"
                    | "timeout_error"
                    | "server_error"
                    | "rate_limit_exceeded"
            ),
        }) && !self.is_for_good()
    }
}

/// An error that came with a status of success, as OpenRouter sends them.
pub(super) fn error_inside(reply: &Fields<'_>) -> Option<ProviderError> {
    let error: Value = serde_json::from_str(reply.get("error")?.get()).ok()?;
    if matches!(&error, Value::Bool(false)) || error == "" || error == serde_json::json!({}) {
        return None;
    }
    let said = Said::of(&error).unwrap_or_else(|| Said {
        message: clipped(&error.to_string(), MAX_QUOTE),
        code: None,
        kind: None,
    });
    let passes = said.may_pass();
    let mut failed = ProviderError::new(said.message);
    if let Some(code) = said.code.or(said.kind) {
        failed = failed.with_code(code);
    }
    Some(if passes { failed.retryable(None) } else { failed })
}

/// A reply of success that is no JSON object. One that is cut may come whole the next time.
pub(super) fn not_json(body: &str, error: &serde_json::Error) -> ProviderError {
    if body.trim().is_empty() {
        ProviderError::new("the reply is empty").retryable(None)
    } else if error.is_eof() {
        cut_off(body.len())
    } else {
        ProviderError::new(unreadable(body))
    }
}

pub(super) fn cut_off(bytes: usize) -> ProviderError {
    ProviderError::new(format!("the reply is cut off after {bytes} bytes")).retryable(None)
}

/// A reply of success that is JSON of another kind. Its fields are named and not quoted: they may be a person's.
pub(super) fn wrong_shape(reply: &Fields<'_>, wire: &str, missing: &str) -> ProviderError {
    let names = clipped(&reply.names(), MAX_QUOTE);
    ProviderError::new(format!("the reply is no {wire} reply: it has no `{missing}`, but {names}"))
}

fn unreadable(body: &str) -> String {
    let start = clipped(body, MAX_QUOTE);
    if start.is_empty() {
        "the reply is empty".into()
    } else if start.starts_with('<') {
        format!("the reply is HTML, not JSON: {start}")
    } else {
        format!("the reply is not what was expected: {start}")
    }
}

/// A text on one line, with at most so many characters.
fn clipped(text: &str, max: usize) -> String {
    let mut line = String::new();
    // No more words are joined than could be shown.
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > max * 4 {
            break;
        }
    }
    match line.char_indices().nth(max) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_one_line_and_clipped_at_a_character() {
        assert_eq!(clipped(" a\n\tb\u{0}c ", 10), "a b c");
        assert_eq!(clipped("éééé", 3), "ééé…");
        assert_eq!(clipped("éééé", 4), "éééé");
    }
}
