//! What the providers make of statuses, broken replies and silence, on a real socket.

use std::error::Error as _;
use std::time::Duration;

use askback::provider::anthropic::Anthropic;
use askback::provider::openai_chat::OpenAiChat;
use askback::provider::{Model, ProviderError, Request, Turn};

use crate::server::{Answer, Server};

const KEY: &str = "sk-secret-0123456789abcdef";
const GOOD: &str = r#"{"id":"msg_1","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn"}"#;

/// Asks an Anthropic model behind this answer.
async fn ask(answer: Answer) -> Result<Turn, ProviderError> {
    let server = Server::start([answer]).await;
    Model::new(Anthropic::new(KEY, "m").base_url(&server.url)).generate(&Request::default()).await
}

async fn fails(answer: Answer) -> ProviderError {
    let error = ask(answer).await.unwrap_err();
    assert!(!everything(&error).contains(KEY), "the key stands in {error:?}");
    error
}

/// All that an error could show.
fn everything(error: &ProviderError) -> String {
    let mut all = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        all.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    all
}

#[tokio::test]
async fn the_key_goes_out_in_its_header_and_the_body_to_its_path() {
    let chat = r#"{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
    let json = [("content-type", "application/json")];
    let server =
        Server::start([Answer::new(200, &json, GOOD), Answer::new(200, &json, chat), Answer::new(200, &json, chat)])
            .await;
    let claude = Anthropic::new(KEY, "claude").base_url(format!("{}/", server.url)).header("anthropic-beta", "one");
    assert_eq!(Model::new(claude).generate(&Request::default()).await.unwrap().text, "hi");
    let gpt = OpenAiChat::new(KEY, "gpt").base_url(format!("{}/openai/v1?api-version=3", server.url));
    assert_eq!(Model::new(gpt).generate(&Request::default()).await.unwrap().text, "hi");
    let local = OpenAiChat::new("", "qwen").base_url(format!("{}/v1", server.url)).service("ollama");
    Model::new(local).generate(&Request::default()).await.unwrap();

    let seen = server.seen();
    assert!(seen[0].head.starts_with("post /v1/messages http/1.1"));
    for header in [&format!("x-api-key: {KEY}"), "anthropic-version: 2023-06-01", "anthropic-beta: one"] {
        assert!(seen[0].head.contains(header), "{header}");
    }
    assert!(seen[1].head.starts_with("post /openai/v1/chat/completions?api-version=3 "));
    assert!(seen[1].head.contains(&format!("authorization: bearer {KEY}")));
    assert!(!seen[2].head.contains("authorization"));
    assert_eq!(seen[2].body, r#"{"model":"qwen","messages":[]}"#);
}

#[tokio::test]
async fn a_401_is_told_in_the_providers_words_and_never_retried() {
    let body = r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#;
    let error = fails(Answer::new(401, &[("retry-after", "3")], body)).await;
    assert_eq!(error.to_string(), "status 401: invalid x-api-key");
    assert_eq!((error.status(), error.code()), (Some(401), Some("authentication_error")));
    assert_eq!((error.is_retryable(), error.retry_after()), (false, None));
}

#[tokio::test]
async fn a_429_tells_how_long_to_wait_in_seconds_or_by_date() {
    let body = r#"{"error":{"message":"Slow down","type":"requests","code":"rate_limit_exceeded"}}"#;
    let wait = async |headers: &[(&str, &str)]| {
        let error = fails(Answer::new(429, headers, body)).await;
        assert!(error.is_retryable());
        assert_eq!((error.message(), error.code()), ("Slow down", Some("rate_limit_exceeded")));
        error.retry_after()
    };
    let date = ("date", "Wed, 21 Oct 2026 07:28:00 GMT");
    assert_eq!(wait(&[("retry-after", "7")]).await, Some(Duration::from_secs(7)));
    assert_eq!(wait(&[("retry-after", "0.5")]).await, Some(Duration::from_millis(500)));
    assert_eq!(wait(&[date, ("retry-after", "Wed, 21 Oct 2026 07:29:30 GMT")]).await, Some(Duration::from_secs(90)));
    assert_eq!(wait(&[date, ("retry-after", "Wed, 21 Oct 2026 07:00:00 GMT")]).await, Some(Duration::ZERO));
    assert_eq!(wait(&[("retry-after", "999999999999")]).await, Some(Duration::from_secs(3_600)));
    assert_eq!(wait(&[("retry-after", "-4")]).await, Some(Duration::ZERO));
    assert_eq!(wait(&[("retry-after", "soon")]).await, None);
    assert_eq!(wait(&[]).await, None);
}

#[tokio::test]
async fn a_429_that_waiting_does_not_cure_is_not_retried() {
    for body in [
        r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
        r#"{"error":{"message":"Request too large for gpt-4o: Limit 30000, Requested 30601.","type":"tokens","code":"rate_limit_exceeded"}}"#,
    ] {
        assert!(!fails(Answer::new(429, &[("retry-after", "1")], body)).await.is_retryable(), "{body}");
    }
}

#[tokio::test]
async fn a_failure_of_the_other_side_is_retried_whatever_its_body_is() {
    let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    for (status, body, message) in [
        (500, "", "the reply is empty"),
        (502, "<html>\n<h1>Bad  gateway</h1>", "the reply is HTML, not JSON: <html> <h1>Bad gateway</h1>"),
        (503, "no healthy upstream", "the reply is not what was expected: no healthy upstream"),
        (503, r#"{"a":1}"#, r#"the reply is not what was expected: {"a":1}"#),
        (529, overloaded, "Overloaded"),
        (408, r#"{"error":"timed out"}"#, "timed out"),
        (500, r#"[{"error":{"code":500,"message":"internal","status":"INTERNAL"}}]"#, "internal"),
    ] {
        let error = fails(Answer::new(status, &[], body)).await;
        assert_eq!((error.message(), error.is_retryable(), error.status()), (message, true, Some(status)));
    }
    let error = fails(Answer::new(500, &[("x-should-retry", "false")], "")).await;
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_refused_request_is_not_retried() {
    for status in [400, 403, 404, 413, 422, 501] {
        let error = fails(Answer::new(status, &[], r#"{"detail":[{"msg":"field required"}]}"#)).await;
        assert_eq!((error.is_retryable(), error.status()), (false, Some(status)));
        assert!(error.message().contains("field required"));
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::start([Answer::new(200, &[], GOOD)]).await;
    let error = fails(Answer::new(307, &[("location", &elsewhere.url)], "")).await;
    assert_eq!((error.status(), error.is_retryable()), (Some(307), false));
    assert!(error.message().contains("redirect"));
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn html_with_a_status_of_success_is_no_turn() {
    let error = fails(Answer::new(200, &[("content-type", "text/html")], "<!doctype html><p>Sign in</p>")).await;
    assert_eq!(error.to_string(), "status 200: the reply is HTML, not JSON: <!doctype html><p>Sign in</p>");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn half_a_reply_is_no_turn_and_may_come_whole_the_next_time() {
    let half = &GOOD[..40];
    // Inside a character.
    let broken = Answer::unmeasured("").repeat(b"{\"content\":\"\xc3".to_vec(), 1);
    for (answer, message) in [
        (Answer::cut(200, 400, half), "the reply broke off"),
        (Answer::unmeasured(half), "the reply is cut off after 40 bytes"),
        (Answer::new(200, &[], half), "the reply is cut off after 40 bytes"),
        (Answer::new(200, &[], ""), "the reply is empty"),
        (broken, "the reply is cut off after 13 bytes"),
    ] {
        let error = fails(answer).await;
        assert_eq!((error.message(), error.is_retryable()), (message, true));
    }
}

#[tokio::test]
async fn json_of_another_shape_is_no_turn() {
    for body in
        [r#"{"choices":[],"note":"private"}"#, r#"{"content":"a text"}"#, "[1]", "\"hi\"", "{\"content\":[]} trailing"]
    {
        let error = fails(Answer::new(200, &[], body)).await;
        assert!(!error.is_retryable(), "{body}: {error}");
        assert!(!error.message().contains("private"));
    }
    let error = fails(Answer::new(200, &[], r#"{"choices":[],"note":1}"#)).await;
    assert_eq!(error.message(), "the reply is no Messages reply: it has no `content`, but `choices`, `note`");
}

#[tokio::test]
async fn an_error_inside_a_reply_of_success_is_an_error() {
    let top = r#"{"error":{"message":"Provider returned error","code":502,"metadata":{"raw":"upstream down","provider_name":"x"}}}"#;
    let inside = r#"{"choices":[{"finish_reason":"error","error":{"message":"Bad","code":400},"message":{"role":"assistant","content":""}}]}"#;
    for (body, message, retryable) in [(top, "Provider returned error: upstream down", true), (inside, "Bad", false)] {
        let server = Server::start([Answer::new(200, &[], body)]).await;
        let model = Model::new(OpenAiChat::new(KEY, "m").base_url(&server.url));
        let error = model.generate(&Request::default()).await.unwrap_err();
        assert_eq!((error.message(), error.is_retryable()), (message, retryable));
    }
}

#[tokio::test]
async fn a_reply_above_the_cap_is_given_up() {
    let said = Answer::cut(200, 65 * 1024 * 1024, "{");
    let unsaid = Answer::unmeasured("{\"content\":[{\"type\":\"text\",\"text\":\"").repeat(vec![b'x'; 1024 * 1024], 70);
    for answer in [said, unsaid] {
        let error = fails(answer).await;
        assert_eq!((error.message(), error.is_retryable()), ("the reply is larger than 64 MiB", false));
    }
    // An error keeps its status however much comes with it.
    let error = fails(Answer::cut(500, 80 * 1024 * 1024, "<p>").repeat(vec![b'x'; 1024 * 1024], 70)).await;
    assert_eq!((error.status(), error.is_retryable()), (Some(500), true));
    assert!(error.message().chars().count() < 300);
}

#[tokio::test]
async fn a_reply_that_takes_too_long_is_retried() {
    for answer in [Answer::unmeasured("").hang(), Answer::cut(200, 900, "{\"content\":").hang()] {
        let server = Server::start([answer]).await;
        let model = Anthropic::new(KEY, "m").base_url(&server.url).timeout(Duration::from_millis(200));
        let error = Model::new(model).generate(&Request::default()).await.unwrap_err();
        assert_eq!((error.message(), error.is_retryable()), ("no whole reply within 0.2 s", true));
    }
}

#[tokio::test]
async fn a_host_that_is_not_there_is_retried_and_its_address_not_shown() {
    let gone = Server::start([]).await.url.replace("http://", "http://user:hunter2hunter2@");
    let url = format!("{gone}/v1?key={KEY}");
    let error = Model::new(OpenAiChat::new("", "m").base_url(url)).generate(&Request::default()).await.unwrap_err();
    assert!(error.is_retryable());
    for secret in [KEY, "hunter2"] {
        assert!(!everything(&error).contains(secret), "{}", everything(&error));
    }
}

#[tokio::test]
async fn a_base_url_that_is_none_is_told_without_quoting_it() {
    for url in [format!("not a url {KEY}"), format!("ftp://{KEY}@host/"), String::new()] {
        let error = Model::new(OpenAiChat::new("", "m").base_url(url)).generate(&Request::default()).await.unwrap_err();
        assert!(!error.is_retryable());
        assert!(error.message().contains("base URL"), "{error}");
        assert!(!everything(&error).contains(KEY));
    }
}

#[tokio::test]
async fn a_key_never_shows() {
    let echoing = format!(r#"{{"error":{{"message":"no such key: {KEY} (Bearer {KEY})","code":"{KEY}"}}}}"#);
    let error = fails(Answer::new(401, &[], &echoing)).await;
    assert_eq!(error.message(), "no such key: [key] (Bearer [key])");
    // Nor half of it, where a quote ends.
    for body in [format!("<p>{KEY}"), format!("<p>{}{KEY}", "x".repeat(185))] {
        let error = fails(Answer::new(200, &[], &body)).await;
        assert!(!error.message().contains("sk-secret"), "{error}");
    }

    let claude = Anthropic::new(KEY, "m").base_url(format!("http://h/?k={KEY}")).header("authorization", KEY);
    let gpt = OpenAiChat::new(KEY, "m").base_url(format!("http://{KEY}@h/")).header("api-key", KEY);
    assert!(!format!("{claude:?} {claude:#?} {gpt:?} {gpt:#?}").contains(KEY));

    let unfit = Anthropic::new(format!("{KEY}\n{KEY}"), "m").base_url("http://127.0.0.1:9");
    let error = Model::new(unfit).generate(&Request::default()).await.unwrap_err();
    assert!(!everything(&error).contains(KEY));
    assert!(error.message().contains("x-api-key"));
}

#[tokio::test]
async fn the_apps_own_client_is_used() {
    let server = Server::start([Answer::new(200, &[], GOOD)]).await;
    let model = Model::new(Anthropic::new(KEY, "m").base_url(&server.url).client(client_of_the_app("the-app/1")));
    model.generate(&Request::default()).await.unwrap();
    assert!(server.seen()[0].head.contains("user-agent: the-app/1"));
}

fn client_of_the_app(agent: &str) -> reqwest::Client {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(config).user_agent(agent).build().unwrap()
}
