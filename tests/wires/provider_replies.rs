//! Replies in shapes that no recording holds, read all the same.

use askback::provider::anthropic::Anthropic;
use askback::provider::openai_chat::OpenAiChat;
use askback::provider::{Model, Request, Turn, TurnCall};

use crate::server::{Answer, Server};

async fn claude(body: &str) -> Turn {
    let server = Server::start([Answer::new(200, &[], body)]).await;
    Model::new(Anthropic::new("", "m").base_url(&server.url)).generate(&Request::default()).await.unwrap()
}

async fn gpt(message: &str, finish: &str) -> Turn {
    let body = format!(r#"{{"choices":[{{"message":{message},"finish_reason":"{finish}"}}]}}"#);
    let server = Server::start([Answer::new(200, &[], &body)]).await;
    let turn = Model::new(OpenAiChat::new("", "m").base_url(&server.url)).generate(&Request::default()).await.unwrap();
    assert_eq!(turn.items.as_deref(), Some(message));
    turn
}

#[tokio::test]
async fn the_text_of_items_and_arguments_is_the_providers() {
    // A59, case CD8: spacing, key order, escapes, doubled keys and long numbers.
    let content = "[ {\"type\":\"new_kind\",\"x\":[1.0]},{\"id\":\"a\",\"input\":{\"b\": 1.10,\n\"a\":12345678901234567890.5,\"b\":\"\\u00e9\"},\"name\":\"t\",\"type\":\"tool_use\"} ]";
    let turn = claude(&format!("{{\"content\" : {content},\"stop_reason\":\"tool_use\"}}")).await;
    assert_eq!(turn.items.as_deref(), Some(content));
    let arguments = "{\"b\": 1.10,\n\"a\":12345678901234567890.5,\"b\":\"\\u00e9\"}";
    assert_eq!(turn.calls, [TurnCall::new("a", "t", arguments)]);
}

#[tokio::test]
async fn a_turn_that_was_cut_keeps_its_calls_as_they_came() {
    let cut = r#"{"role":"assistant","content":"x","tool_calls":[{"id":"a","type":"function","function":{"name":"t","arguments":"{\"n\": 1"}}]}"#;
    let turn = gpt(cut, "length").await;
    assert_eq!(turn.finish_reason.as_deref(), Some("length"));
    assert_eq!(turn.calls, [TurnCall::new("a", "t", "{\"n\": 1")]);
}

#[tokio::test]
async fn calls_count_whatever_the_finish_reason_says() {
    let message = r#"{"content":null,"tool_calls":[{"function":{"name":"t","arguments":{"n": 1.0}}},{"id":"c","type":"custom","custom":{"name":"u","input":"raw"}},{"id":"d"}]}"#;
    let turn = gpt(message, "stop").await;
    let expected =
        [TurnCall::new("", "t", r#"{"n": 1.0}"#), TurnCall::new("c", "u", "raw"), TurnCall::new("d", "", "")];
    assert_eq!(turn.calls, expected);
}

#[tokio::test]
async fn content_in_parts_is_read_as_text_and_thinking() {
    let message = r#"{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"yes"}]}"#;
    let turn = gpt(message, "stop").await;
    assert_eq!((turn.text.as_str(), turn.reasoning.as_str()), ("yes", "hm"));
}

#[tokio::test]
async fn a_character_that_was_cut_in_half_does_not_lose_the_turn() {
    let turn = gpt(r#"{"role":"assistant","content":"so \ud83d"}"#, "length").await;
    assert_eq!(turn.text, "so \u{FFFD}");
}

#[tokio::test]
async fn an_anthropic_turn_without_content_is_a_turn() {
    let turn = claude(r#"{"content":[],"stop_reason":"refusal","error":null}"#).await;
    assert_eq!((turn.text.as_str(), turn.finish_reason.as_deref()), ("", Some("refusal")));
}
