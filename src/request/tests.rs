//! Requests and answers, as tables of cases.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::json;

use super::*;
use crate::ask::{choice, confirm, form, secret, text, url};

// A2, A5, A7, A9
#[test]
fn every_constructor_writes_what_is_set_and_is_read_back() {
    let none: [(&str, &str); 0] = [];
    let cases = [
        (confirm("Go?").request, json!({ "kind": "confirm", "prompt": "Go?", "metadata": {} })),
        (text("Name?").request, json!({ "kind": "text", "prompt": "Name?", "metadata": {} })),
        (secret("PIN?").request, json!({ "kind": "secret", "prompt": "PIN?", "metadata": {} })),
        (
            url("Pay", "https://example.org/é?a=1").request,
            json!({ "kind": "url", "prompt": "Pay", "url": "https://example.org/é?a=1", "metadata": {} }),
        ),
        (choice::<Value>("", none).request, json!({ "kind": "choice", "prompt": "", "metadata": {} })),
        (
            choice::<i64>("Plan?", [(1, "Basic"), (2, "Pro")]).request,
            json!({
                "kind": "choice", "prompt": "Plan?", "metadata": {},
                "options": [{ "value": 1, "label": "Basic" }, { "value": 2, "label": "Pro" }],
            }),
        ),
        (
            form::<Value>(
                "Fill in",
                [
                    Field::new("name", FieldType::String).required().title("Name"),
                    Field::new("news", FieldType::Boolean).default_value(false),
                    Field::new("sizes", FieldType::Choices).options(["S", "M"]),
                ],
            )
            .request,
            json!({
                "kind": "form", "prompt": "Fill in", "metadata": {},
                "fields": [
                    { "name": "name", "type": "string", "title": "Name", "required": true },
                    { "name": "news", "type": "boolean", "required": false, "default": false },
                    { "name": "sizes", "type": "choices", "required": false, "options": ["S", "M"] },
                ],
            }),
        ),
        (
            text("Why?")
                .key("why")
                .schema(json!({ "minLength": 1 }))
                .metadata(json!([null, "\0", { "a": 1.5 }]))
                .may_person("ann")
                .may_role("boss")
                .expires_in(Duration::from_millis(1_999))
                .default_answer("no reason")
                .request,
            json!({
                "kind": "text", "prompt": "Why?", "schema": { "minLength": 1 },
                "metadata": [null, "\0", { "a": 1.5 }], "may": ["person:ann", "role:boss"], "expires_in": 1,
                "default": "no reason",
            }),
        ),
        (text("x").metadata(Value::Null).request, json!({ "kind": "text", "prompt": "x", "metadata": null })),
        (text("x").schema(Value::Null).request, json!({ "kind": "text", "prompt": "x", "metadata": {} })),
    ];
    for (request, written) in cases {
        assert_eq!(request.to_json(), written);
        assert_eq!(InputRequest::from_json(written.clone()).unwrap(), request);
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<InputRequest>(&text).unwrap(), request);
        // What a later release writes is ignored.
        let mut more = written;
        more["colour"] = json!("red");
        assert_eq!(InputRequest::from_json(more).unwrap(), request);
        assert_eq!(request.clone(), request);
    }
    assert_ne!(text("a").request, text("b").request);
    assert_ne!(text("a").request, secret("a").request);
}

// A6
#[test]
fn json_that_is_no_request_is_refused() {
    let cases = [
        (json!({ "kind": "approve", "prompt": "x" }), "\"approve\" is no kind of question"),
        (json!({ "kind": "Confirm", "prompt": "x" }), "\"Confirm\" is no kind of question"),
        (json!({ "kind": "", "prompt": "x" }), "\"\" is no kind of question"),
        (json!({ "kind": 1, "prompt": "x" }), "this is no input request"),
        (json!({ "kind": "text" }), "this is no input request"),
        (json!({ "prompt": "x" }), "this is no input request"),
        (json!({ "kind": "text", "prompt": 1 }), "this is no input request"),
        (json!({ "kind": "form", "prompt": "x", "fields": [{ "name": "a" }] }), "this is no input request"),
        (json!([]), "this is no input request"),
        (json!(null), "this is no input request"),
    ];
    for (value, why) in cases {
        let error = InputRequest::from_json(value.clone()).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(error.to_string().contains(why), "{value}: {error}");
    }
}

// A4, case CH11
#[test]
fn an_option_is_a_value_or_a_value_with_a_label() {
    // As it may come, what it means, as it is written.
    let cases = [
        (json!("S"), (json!("S"), None), json!("S")),
        (json!(7), (json!(7), None), json!(7)),
        (json!(true), (json!(true), None), json!(true)),
        (json!(null), (json!(null), None), json!(null)),
        (json!({ "label": "Small" }), (json!("Small"), Some("Small")), json!({ "value": "Small", "label": "Small" })),
        (json!({ "value": 1, "label": "one" }), (json!(1), Some("one")), json!({ "value": 1, "label": "one" })),
        (json!({ "value": null, "label": "x" }), (json!(null), Some("x")), json!({ "value": null, "label": "x" })),
        (json!({ "value": { "a": 1 } }), (json!({ "a": 1 }), None), json!({ "value": { "a": 1 } })),
        (json!({ "a": 1 }), (json!({ "a": 1 }), None), json!({ "value": { "a": 1 } })),
        (
            json!({ "value": { "label": "x", "value": 2 } }),
            (json!({ "label": "x", "value": 2 }), None),
            json!({ "value": { "label": "x", "value": 2 } }),
        ),
    ];
    for (came, (value, label), written) in cases {
        let option: ChoiceOption = serde_json::from_value(came.clone()).unwrap();
        assert_eq!((&option.value, option.label.as_deref()), (&value, label), "{came}");
        assert_eq!(serde_json::to_value(&option).unwrap(), written, "{came}");
        assert_eq!(serde_json::from_value::<ChoiceOption>(written).unwrap(), option, "{came}");
    }
    assert_eq!(ChoiceOption::labelled(1, "one").shown(), "one");
    assert_eq!(ChoiceOption::from("S").shown(), "S");
    assert_eq!(ChoiceOption::from(json!([1])).shown(), "[1]");
}

// A4, A6, Q8
#[test]
fn what_nobody_could_answer_is_refused() {
    let field = |kind| Field::new("size", kind);
    let deep = (0..200).fold(json!(1), |deep, _| json!([deep]));
    let none: [&str; 0] = [];
    let refused = [
        (confirm(" \n").request, "a confirm question needs a prompt"),
        (choice::<Value>("x", none).request, "a choice needs at least one option"),
        (choice::<Value>("x", [json!("a"), json!(false)]).request, "false cannot be an option"),
        (choice::<Value>("x", [(Value::Null, "nothing")]).request, "null cannot be an option"),
        (form::<Value>("x", []).request, "a form needs at least one field"),
        (form::<Value>("x", [field(FieldType::Choice)]).request, "size needs at least one option"),
        (form::<Value>("x", [field(FieldType::Choices).options([json!(false)])]).request, "size: false cannot"),
        (url("x", "").request, "only http and https"),
        (url("x", "HTTPS:/x").request, "only http and https"),
        (url("x", "data:text/html,x").request, "only http and https"),
        (url("x", "https://a\nb").request, "only http and https"),
        (url("x", "https://a b").request, "only http and https"),
        (text("x").default_answer(Value::Null).request, "the default answer: null is no answer"),
        (confirm("x").default_answer("yes").request, "the default answer"),
        (text("x").expires_in(Duration::MAX).request, "at most 100 years"),
        (text("x").may_person("\0").request, "NUL"),
        (text("x").may_role("x".repeat(300)).request, "at most 263"),
        (text("x").metadata(deep.clone()).request, "could not be read back"),
        (text("x").schema(deep).request, "could not be read back"),
        (InputRequest::new(Kind::Approval, "x"), "askback's to ask"),
    ];
    for (request, why) in refused {
        let error = request.validate().unwrap_err();
        assert!(error.to_string().contains(why), "{request:?}: {error}");
    }
    let taken = [
        confirm("?").default_answer(false).request,
        text("x").default_answer("").may_person("x".repeat(255)).request,
        url("x", "http://127.0.0.1:80/?q=é").request,
        choice::<Value>("x", [json!(true), json!(0), json!(""), json!("false")]).request,
    ];
    for request in taken {
        request.validate().unwrap();
    }
}

// A3, A34, A37, Q7, Q8, case CB15, case CE5
#[test]
fn an_answer_is_checked_by_its_kind() {
    let pick = choice::<Value>("x", [json!("approve"), json!("approve with changes"), json!(7), json!(1.5)]).request;
    let labelled = choice::<Value>("x", [("a", "Same"), ("b", "Same"), ("c", "a")]).request;
    let one = form::<Value>("x", [Field::new("n", FieldType::Integer).required()]).request;
    let many = form::<Value>(
        "x",
        [
            Field::new("name", FieldType::String).required(),
            Field::new("news", FieldType::Boolean).default_value(false),
            Field::new("sizes", FieldType::Choices).options(["S", "M"]),
            Field::new("plan", FieldType::Choice).options([(1, "Basic")]),
            Field::new("price", FieldType::Number),
        ],
    )
    .request;
    let right = |value: Value| Ok(Checked::Accept(value));
    let wrong = |why: &'static str| Err(why);
    let (go, words, pin, to) =
        (confirm("x").request, text("x").request, secret("x").request, url("x", "https://a").request);
    let gate = InputRequest::new(Kind::Approval, "x");
    let cases = [
        (&go, json!(true), right(json!(true))),
        (&gate, json!(true), right(json!(true))),
        (&go, json!("true"), wrong("takes true or false")),
        (&gate, json!({ "arguments": {} }), wrong("takes true or false")),
        (&go, json!(0), wrong("takes true or false")),
        (&to, json!(true), right(json!(true))),
        (&to, json!("https://a"), wrong("takes no value")),
        (&to, json!({}), wrong("takes no value")),
        (&words, json!(""), right(json!(""))),
        (&words, json!(true), right(json!(true))),
        (&words, json!(0), right(json!(0))),
        (&words, json!({ "output": "x" }), wrong("a text is expected")),
        (&pin, json!("0000"), right(json!("0000"))),
        (&pin, json!([]), wrong("a text is expected")),
        (&pick, json!("approve"), right(json!("approve"))),
        (&pick, json!("7"), right(json!(7))),
        (&pick, json!("1.5"), right(json!(1.5))),
        (&pick, json!("approved"), wrong("not one of \"approve\"")),
        (&pick, json!("approve with"), wrong("not one of")),
        (&pick, json!("Approve"), wrong("not one of")),
        (&pick, json!("7.0"), wrong("not one of")),
        (&pick, json!(["approve"]), wrong("not one of")),
        (&labelled, json!("a"), right(json!("a"))),
        (&labelled, json!("Same"), wrong("not one of \"a\", \"b\", \"c\"")),
        (&one, json!(3), right(json!({ "n": 3 }))),
        (&one, json!({ "n": -3 }), right(json!({ "n": -3 }))),
        // A whole number is given to the tool as one.
        (&one, json!({ "n": 3.0 }), right(json!({ "n": 3 }))),
        (&one, json!({ "n": u64::MAX }), right(json!({ "n": u64::MAX }))),
        (&one, json!({ "n": 3.5 }), wrong("n: a whole number is expected")),
        (&one, json!({ "n": 1e300 }), wrong("n: a whole number is expected")),
        (&one, json!({ "n": "3" }), wrong("n: a whole number is expected")),
        (&one, json!({ "n": null }), wrong("n is missing")),
        (&one, json!({}), wrong("n is missing")),
        (&many, json!({ "name": "x", "more": 1 }), right(json!({ "name": "x", "news": false }))),
        (
            &many,
            json!({ "name": "", "news": true, "sizes": ["M", "S"], "plan": "1", "price": 1 }),
            right(json!({ "name": "", "news": true, "sizes": ["M", "S"], "plan": 1, "price": 1 })),
        ),
        (&many, json!({ "name": "x", "sizes": [] }), right(json!({ "name": "x", "news": false, "sizes": [] }))),
        (&many, json!({ "output": { "name": "x" } }), wrong("none of the form's fields is in the answer")),
        (&many, json!({}), wrong("name is missing")),
        (&many, json!("x"), wrong("an object with these fields is expected: name, news")),
        (&many, json!({ "name": "x", "news": "on" }), wrong("news: true or false is expected")),
        (&many, json!({ "name": "x", "sizes": "S" }), wrong("sizes: a list of its options")),
        (&many, json!({ "name": "x", "sizes": ["L"] }), wrong("sizes: not one of")),
        (&many, json!({ "name": 1 }), wrong("name: a text is expected")),
    ];
    for (request, answer, expected) in cases {
        match (request.check(&answer), expected) {
            (Ok(checked), Ok(expected)) => assert_eq!(checked, expected, "{} {answer}", request.kind),
            (Err(error), Err(why)) => {
                assert!(error.to_string().contains(why), "{} {answer}: {error}", request.kind)
            }
            (got, expected) => panic!("{} {answer}: {got:?}, not {expected:?}", request.kind),
        }
    }
    // `false` declines every kind, and `null` answers none.
    for request in [&go, &gate, &words, &pin, &to, &pick, &one, &many] {
        assert_eq!(request.check(&json!(false)).unwrap(), Checked::Decline, "{}", request.kind);
        assert!(request.check(&json!(null)).unwrap_err().to_string().contains("null is no answer"));
    }
    let long = json!("x".repeat(MAX_ANSWER_BYTES - 2));
    assert!(words.check(&long).is_ok());
    assert!(words.check(&json!("é".repeat(MAX_ANSWER_BYTES / 2))).is_err());
}

// B5, case CF8
#[test]
fn a_digest_binds_what_is_asked_and_not_how_it_looks() {
    let ask = || choice::<Value>("Size?", [("S", "Small"), ("M", "Middle")]).request;
    let arguments: Value = serde_json::from_str(r#"{"a":"é","b":[1,{"c":2}]}"#).unwrap();
    let digest = |request: &InputRequest| request.digest("shop", Some(&arguments), "size", 0);
    let first = digest(&ask());
    assert_eq!((first.len(), first.to_lowercase()), (64, first.clone()));
    // The same, spelled otherwise, and what only decorates the page.
    let spelled: Value = serde_json::from_str(" {\"b\" : [1, {\"c\":2}], \"a\":\"\\u00e9\"} ").unwrap();
    assert_eq!(ask().digest("shop", Some(&spelled), "size", 0), first);
    let mut decorated = ask();
    (decorated.metadata, decorated.schema) = (json!({ "icon": "x" }), Some(json!({})));
    assert_eq!(digest(&decorated), first);
    // Everything a person decides on.
    let change = |change: fn(&mut InputRequest)| {
        let mut request = ask();
        change(&mut request);
        digest(&request)
    };
    let mut all = vec![
        first,
        ask().digest("shops", Some(&arguments), "size", 0),
        ask().digest("shop", Some(&json!({ "a": "e", "b": [1, { "c": 2 }] })), "size", 0),
        ask().digest("shop", Some(&json!({ "a": "é", "b": ["1", { "c": 2 }] })), "size", 0),
        ask().digest("shop", None, "size", 0),
        ask().digest("shop", Some(&arguments), "sizes", 0),
        ask().digest("shop", Some(&arguments), "size", 1),
        change(|request| request.prompt.push('!')),
        change(|request| request.kind = Kind::Text),
        change(|request| request.options[0].label = Some("Tiny".into())),
        change(|request| drop(request.options.pop())),
        change(|request| request.url = Some("https://a".into())),
        change(|request| request.fields.push(Field::new("a", FieldType::String))),
    ];
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

// case CF8
#[test]
fn canonical_json_has_sorted_keys_and_no_white_space() {
    let cases = [
        (r#" { "b" : 1 , "a" : { "d" : [ ] , "c" : null } } "#, r#"{"a":{"c":null,"d":[]},"b":1}"#),
        (r#"{"é":1,"z":2,"\u0061":3}"#, r#"{"a":3,"z":2,"é":1}"#),
        (r#"["\u00e9","\n\u0000"," "]"#, r#"["é","\n\u0000"," "]"#),
        ("18446744073709551615", "18446744073709551615"),
        ("1.0", "1.0"),
        ("1", "1"),
    ];
    for (text, expected) in cases {
        assert_eq!(canonical(&serde_json::from_str(text).unwrap()), expected);
    }
}
