//! What goes out on the wires: the stored turns byte for byte, and what no wire would take left out.

use askback::provider::anthropic::Anthropic;
use askback::provider::openai_chat::OpenAiChat;
use askback::provider::{CallResult, Entry, Request, ToolChoice, ToolSpec};
use serde_json::{Value, json};

fn user(text: &str) -> Entry {
    Entry::User { text: text.into() }
}

fn turn(api: &str, text: &str, items: &str, calls: Vec<CallResult>) -> Entry {
    Entry::Turn {
        text: text.into(),
        items: Some(items.into()),
        service: Some("s".into()),
        api: Some(api.into()),
        calls,
    }
}

fn call(id: &str, result: &str) -> CallResult {
    CallResult::new(id, "t", "{}", result)
}

fn request(history: impl Into<Vec<Entry>>) -> Request {
    let mut request = Request::default();
    request.history = history.into();
    request
}

fn claude(history: impl Into<Vec<Entry>>) -> String {
    Anthropic::new("k", "m").render(&request(history))
}

fn gpt(history: impl Into<Vec<Entry>>) -> String {
    OpenAiChat::new("k", "m").render(&request(history))
}

fn messages(body: &str) -> Vec<Value> {
    let body: Value = serde_json::from_str(body).unwrap();
    body["messages"].as_array().unwrap().clone()
}

#[test]
fn an_anthropic_turn_goes_back_byte_for_byte() {
    // A59: odd spacing, key order, escapes, numbers and unknown fields are the provider's, and stay.
    let items = "[ {\"type\":\"thinking\",\"signature\":\"S/+==\",\"thinking\":\"h\\u00e9\"},\n {\"data\":\"D\",\"type\":\"redacted_thinking\"},\
         {\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"t\",\"input\":{\"z\":1.50,\"a\":1e3,\"z\":null},\"caller\":{\"type\":\"direct\"}} ]";
    let body = claude([user("go"), turn("anthropic_messages", "", items, vec![call("a", "1")])]);
    assert!(body.contains(&format!(r#"{{"role":"assistant","content":{items}}}"#)), "{body}");
}

#[test]
fn a_chat_turn_goes_back_byte_for_byte() {
    // A59, case CD8
    let items = "{\"role\":\"assistant\" ,\"content\":null,\"reasoning_details\":[{\"data\":\"X\",\"type\":\"reasoning.encrypted\"}],\
        \"tool_calls\":[ {\"index\":0,\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"t\",\"arguments\":\"{\\\"n\\\": 1.50}\"},\
        \"extra_content\":{\"google\":{\"thought_signature\":\"T\"}}}]}";
    let body = gpt([user("go"), turn("openai_chat", "", items, vec![call("a", "1")])]);
    assert!(body.contains(&format!(",{items},")), "{body}");
}

#[test]
fn only_a_thinking_block_with_nothing_in_it_is_not_sent() {
    // A59, case CD6
    let blocks = [
        r#"{"type":"thinking","thinking":"hm", "signature":"S1"}"#,
        r#"{"type":"thinking","thinking":"","signature":"S2"}"#,
        r#"{"type":"redacted_thinking","data":"R=="}"#,
        r#"{"type":"thinking","thinking":"","signature":""}"#,
        r#"{"type":"tool_use","id":"a","name":"t","input":{ }}"#,
    ];
    let items = format!("[{}]", blocks.join(","));
    let body = claude([user("go"), turn("anthropic_messages", "", &items, vec![call("a", "1")])]);
    let sent = [blocks[0], blocks[1], blocks[2], blocks[4]].join(",");
    assert!(body.contains(&format!(r#""content":[{sent}]"#)), "{body}");
}

#[test]
fn a_turn_that_says_nothing_is_not_sent() {
    let thought = r#"[{"type":"thinking","thinking":"cut","signature":"S"}]"#;
    for items in ["[]", r#"[{"type":"text","text":" \n"}]"#, thought] {
        let body = claude([user("go"), turn("anthropic_messages", "", items, vec![]), user("on")]);
        let both = json!([{"type": "text", "text": "go"}, {"type": "text", "text": "on"}]);
        assert_eq!(messages(&body), [json!({"role": "user", "content": both})], "{items}");
    }
    for items in [r#"{"role":"assistant","content":null,"refusal":null,"annotations":[]}"#, r#"{"content":""}"#, "{}"] {
        let body = gpt([user("go"), turn("openai_chat", "", items, vec![]), user("on")]);
        assert_eq!(messages(&body).len(), 2, "{items}");
    }
    assert_eq!(messages(&claude([user(" "), user("on")])).len(), 1);
}

#[test]
fn thinking_that_led_to_nothing_is_not_sent_at_the_end() {
    let items = r#"[{"type":"text","text":"a"},{"type":"thinking","thinking":"cut","signature":"S"}]"#;
    let body = claude([user("go"), turn("anthropic_messages", "a", items, vec![]), user("on")]);
    assert_eq!(messages(&body)[1], json!({"role": "assistant", "content": [{"type": "text", "text": "a"}]}));
}

#[test]
fn fields_that_only_a_reply_has_do_not_go_back() {
    let items = r#"{"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"t","arguments":"{}"}}],"reasoning":null,"reasoning_content":"","function_call":{"arguments":"","name":""}}"#;
    let body = gpt([user("go"), turn("openai_chat", "", items, vec![call("a", "1")])]);
    let sent = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"t","arguments":"{}"}}],"reasoning_content":""}"#;
    assert!(body.contains(&format!(",{sent},")), "{body}");
}

#[test]
fn content_that_is_missing_without_calls_is_sent_empty() {
    let items = r#"{"role":"assistant","content":null,"reasoning":"cut while thinking"}"#;
    let body = gpt([user("go"), turn("openai_chat", "", items, vec![])]);
    assert!(body.contains(r#"{"role":"assistant","reasoning":"cut while thinking","content":""}"#), "{body}");
    // A refusal stands for the content.
    let items = r#"{"role":"assistant","content":null,"refusal":"No."}"#;
    assert!(gpt([user("go"), turn("openai_chat", "No.", items, vec![])]).contains(items));
}

#[test]
fn repeated_and_blank_ids_are_made_unique_in_the_call_and_its_result_alone() {
    // A19, case CE1
    let items = r#"[{"type":"tool_use" ,"id": "dup","name":"t","input":{}},{"type":"tool_use","id" : "dup","name":"t","input":{"n":1.0}},{"type":"tool_use","id":"","name":"t","input":{}}]"#;
    let calls = vec![call("dup", "1"), call("dup", "2"), call("", "3")];
    let body = claude([user("go"), turn("anthropic_messages", "", items, calls.clone())]);
    let sent =
        items.replacen("\"id\" : \"dup\"", "\"id\" : \"call00001\"", 1).replace("\"id\":\"\"", "\"id\":\"call00002\"");
    assert!(body.contains(&sent), "{body}");
    let results = &messages(&body)[2]["content"];
    assert_eq!(
        ["dup", "call00001", "call00002"].map(Value::from),
        [0, 1, 2].map(|n| results[n]["tool_use_id"].clone())
    );
    assert_eq!(["1", "2", "3"].map(Value::from), [0, 1, 2].map(|n| results[n]["content"].clone()));

    let items = r#"{"role":"assistant","content":"","tool_calls":[{"id":"dup","function":{"name":"t","arguments":"{}"}}, {"function":{"name":"t","arguments":"{ }"},"id":"dup"},{"function":{"name":"t","arguments":"{}"}}]}"#;
    let body = gpt([user("go"), turn("openai_chat", "", items, calls)]);
    let sent = items.replace("},\"id\":\"dup\"}", "},\"id\":\"call00001\"}").replace(
        ",{\"function\":{\"name\":\"t\",\"arguments\":\"{}\"}}]",
        ",{\"id\":\"call00002\",\"function\":{\"name\":\"t\",\"arguments\":\"{}\"}}]",
    );
    assert!(body.contains(&sent), "{body}");
    let ids: Vec<_> = messages(&body)[2..].iter().map(|message| message["tool_call_id"].clone()).collect();
    assert_eq!(ids, ["dup", "call00001", "call00002"]);
}

#[test]
fn ids_that_come_again_in_a_later_turn_are_made_unique_there() {
    // A19, case CE3. An id that would be made up is taken by the provider's own.
    let item = |id: &str| {
        format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"t","arguments":"{{}}"}}}}]}}"#
        )
    };
    let one = |id: &str| turn("openai_chat", "", &item(id), vec![call(id, "1")]);
    let history = vec![user("go"), one("call_0"), one("call_0"), one("call00001"), one("call_0")];
    let body = gpt(history.clone());
    let ids: Vec<_> = messages(&body).iter().filter_map(|m| m["tool_call_id"].as_str().map(str::to_owned)).collect();
    assert_eq!(ids, ["call_0", "call00002", "call00001", "call00004"]);
    for id in &ids {
        assert!(body.contains(&item(id)), "{id}");
    }
    assert_eq!(gpt(history), body);
}

#[test]
fn results_of_a_turn_lead_one_user_message_on_anthropic() {
    // Case CD1: a person's text never stands between calls and results.
    let items =
        r#"[{"type":"tool_use","id":"a","name":"t","input":{}},{"type":"tool_use","id":"b","name":"t","input":{}}]"#;
    let mut declined = call("b", r#"{"error":"declined"}"#);
    declined.is_error = true;
    let body = claude([
        user("go"),
        turn("anthropic_messages", "", items, vec![call("a", "\"rain\""), declined]),
        user("and?"),
    ]);
    let expected = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": "\"rain\""},
        {"type": "tool_result", "tool_use_id": "b", "content": "{\"error\":\"declined\"}", "is_error": true},
        {"type": "text", "text": "and?"},
    ]});
    assert_eq!(messages(&body)[2..], [expected]);
}

#[test]
fn results_follow_their_calls_one_message_each_on_chat() {
    let items = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"t","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"t","arguments":"{}"}}]}"#;
    let body =
        gpt([user("go"), user("on"), turn("openai_chat", "", items, vec![call("a", "\"rain\""), call("b", "null")])]);
    let sent = messages(&body);
    assert_eq!(sent.len(), 5);
    assert_eq!(sent[3], json!({"role": "tool", "tool_call_id": "a", "content": "\"rain\""}));
    assert_eq!(sent[4], json!({"role": "tool", "tool_call_id": "b", "content": "null"}));
}

#[test]
fn a_turn_of_another_wire_is_told_in_this_ones_words() {
    let calls = || {
        vec![
            CallResult::new("functions.t:0", "t", r#"{"a":1}"#, "1"),
            CallResult::new("b", "t", "", "2"),
            CallResult::new("c", "t", "{\"cut", "3"),
        ]
    };
    let other = || turn("openai_responses", "Looking.", r#"[{"type":"reasoning"}]"#, calls());
    let body = messages(&claude([user("go"), other()]));
    assert_eq!(
        body[1]["content"],
        json!([
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "call00000", "name": "t", "input": {"a": 1}},
            {"type": "tool_use", "id": "b", "name": "t", "input": {}},
            {"type": "tool_use", "id": "c", "name": "t", "input": {"arguments": "{\"cut"}},
        ])
    );
    assert_eq!(body[2]["content"][0]["tool_use_id"], "call00000");
    let body = messages(&gpt([user("go"), other()]));
    assert_eq!(body[1]["content"], "Looking.");
    let arguments = |n: usize| body[1]["tool_calls"][n]["function"]["arguments"].clone();
    assert_eq!([arguments(0), arguments(1), arguments(2)], [r#"{"a":1}"#, "{}", "{\"cut"].map(Value::from));
}

#[test]
fn stored_items_that_are_not_the_turns_are_not_sent() {
    // Never a call without its result, whatever a row holds.
    let more =
        r#"[{"type":"tool_use","id":"a","name":"t","input":{}},{"type":"tool_use","id":"b","name":"t","input":{}}]"#;
    for items in [more, "[]", "not json", "{\"a\":", "[1]"] {
        let body = messages(&claude([user("go"), turn("anthropic_messages", "", items, vec![call("a", "1")])]));
        assert_eq!(body[1]["content"], json!([{"type": "tool_use", "id": "a", "name": "t", "input": {}}]), "{items}");
    }
    for items in [r#"{"content":"x"}"#, "[]", "not json", r#"{"function_call":{"name":"t","arguments":"{}"}}"#] {
        let body = messages(&gpt([user("go"), turn("openai_chat", "", items, vec![call("a", "1")])]));
        assert_eq!(body[1]["tool_calls"].as_array().unwrap().len(), 1, "{items}");
        assert_eq!(body[2]["tool_call_id"], "a");
    }
}

#[test]
fn a_call_without_arguments_goes_back_with_the_field_that_a_request_needs() {
    let items = r#"{"role":"assistant","content":"x","tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"t"}}]}"#;
    let body = gpt([user("go"), turn("openai_chat", "", items, vec![call("a", "1")])]);
    assert!(body.contains(r#""function":{"arguments":"{}","name":"t"}"#), "{body}");
    let items = items.replace("{\"name\":\"t\"}", "{\"name\":\"t\",\"arguments\": null}");
    let body = gpt([user("go"), turn("openai_chat", "", &items, vec![call("a", "1")])]);
    assert!(body.contains(r#""function":{"name":"t","arguments": "{}"}"#), "{body}");
}

#[test]
fn tools_and_choices_have_each_wires_form() {
    let mut all = request([user("go")]);
    all.instructions = Some("Be brief.".into());
    all.tools.push(ToolSpec::new("t", "Does.", json!({"type": "object", "properties": {}})));
    all.max_tokens = Some(9);
    let choices = [ToolChoice::Auto, ToolChoice::None, ToolChoice::Required, ToolChoice::Tool("t".into())];
    let wires = choices.map(|choice| {
        all.tool_choice = Some(choice);
        let bodies = [Anthropic::new("k", "m").render(&all), OpenAiChat::new("k", "m").render(&all)];
        bodies.map(|body| serde_json::from_str::<Value>(&body).unwrap()["tool_choice"].clone())
    });
    assert_eq!(
        wires,
        [
            [json!({"type": "auto"}), json!("auto")],
            [json!({"type": "none"}), json!("none")],
            [json!({"type": "any"}), json!("required")],
            [json!({"type": "tool", "name": "t"}), json!({"type": "function", "function": {"name": "t"}})],
        ]
    );
    all.tool_choice = None;
    assert_eq!(
        Anthropic::new("k", "m").option("temperature", json!(0)).option("model", json!("other")).render(&all),
        r#"{"model":"m","max_tokens":9,"system":"Be brief.","messages":[{"role":"user","content":[{"type":"text","text":"go"}]}],"tools":[{"description":"Does.","input_schema":{"properties":{},"type":"object"},"name":"t"}],"temperature":0}"#
    );
    assert_eq!(
        OpenAiChat::new("k", "m").render(&all),
        r#"{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"go"}],"tools":[{"function":{"description":"Does.","name":"t","parameters":{"properties":{},"type":"object"}},"type":"function"}],"max_completion_tokens":9}"#
    );
    assert!(OpenAiChat::new("", "m").service("ollama").render(&all).contains(r#""max_tokens":9"#));
    // Without tools there is nothing to choose from, and a choice would be refused.
    all.tools.clear();
    all.tool_choice = Some(ToolChoice::Required);
    assert!(!OpenAiChat::new("k", "m").render(&all).contains("tool_choice"));
}
