//! Tools that ask: recorded, answered, run again.

use std::sync::{Arc, Mutex};

use askback::provider::Turn;
use askback::provider::scripted::Scripted;
use askback::{
    Askback, BoxError, By, CallState, Field, FieldType, InputRequest, Kind, Outcome, Question, ResultKind, Settled,
    Setup, Tool, ToolContext, ToolResult, choice, confirm, form, secret, text, url,
};
use serde_json::{Value, json};

use crate::support::tools::{
    Anything, Exchange, Free, Nothing, Null, Pay, Refund, answer, finish, note, open, park, read, results,
};
use crate::support::{TestDb, calls, calls_then_done, connect};
use crate::{tests, tool};

tests![
    a_tool_asks_a_person_answers_and_the_call_is_carried_on,
    a_tool_may_ask_in_any_way_it_likes,
    who_asks_is_not_for_the_tool_to_say,
    what_nobody_could_answer_is_the_calls_error,
    arguments_that_are_no_object_never_run,
    blank_arguments_are_an_empty_object,
    a_tool_reads_its_latest_answer_and_each_by_its_key,
    questions_without_a_key_are_paired_by_their_order,
    a_question_with_a_key_keeps_its_answer_under_another_prompt,
    a_question_with_other_options_is_asked_anew,
    a_question_without_a_key_must_be_the_same_as_a_whole,
    what_json_cannot_keep_exactly_is_still_the_same_question,
    one_key_asked_twice_in_a_run_is_one_question,
    siblings_run_and_nothing_goes_to_the_model_during_a_pause,
    a_null_result_has_finished,
    results_go_out_together_in_call_order_as_the_same_bytes,
    false_declines_every_kind_and_an_empty_text_is_an_answer,
    a_declined_tool_does_not_run_again_and_its_siblings_are_untouched,
    three_calls_that_ask_have_three_questions,
    two_calls_of_one_tool_are_answered_in_either_order,
    an_earlier_result_is_never_an_answer,
    a_second_question_has_an_id_of_its_own_and_a_choice_is_matched_exactly,
    calls_with_one_wire_id_are_two_calls,
    a_nul_goes_through_everywhere_or_is_refused_at_the_edge,
    every_character_and_a_megabyte_come_back_as_they_were,
    a_decline_is_never_held_to_the_form,
    a_label_is_shown_and_a_value_is_the_answer,
];

fn by() -> By {
    By::person("ann")
}

/// A handle whose agent has this model, and what the test adds.
fn lab(db: &TestDb, model: &Scripted, add: impl Fn(Setup, askback::Pool) -> Setup + Send + Sync + 'static) -> Askback {
    let (model, pool) = (model.clone(), db.pool.clone());
    db.lab(move || add(Setup::new(model.clone()), pool.clone()))
}

// A1, A3, A11, A24, Q1, Q2, Q3, B3
async fn a_tool_asks_a_person_answers_and_the_call_is_carried_on(db: TestDb) {
    let model = calls_then_done(calls([("w1", "refund"), ("w2", "free")]));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Refund(pool.clone())).tool(Free(pool)));
    let chat = db.chat(&askback).await;

    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    // The sibling ran, the asking one did not act.
    assert_eq!(db.ledger().await, 1);
    let questions = chat.pending_questions(&db.pool).await.unwrap();
    assert_eq!(questions.len(), 1);
    let question = &questions[0];
    assert_eq!((question.request.kind, question.request.prompt.as_str()), (Kind::Confirm, "Refund?"));
    assert_eq!(question.request.tool_name.as_deref(), Some("refund"));
    assert_eq!(question.request.arguments, Some(json!({})));

    let settled = chat.answer(&db.pool, &question.id, true, By::person("ann").via("web")).await.unwrap();
    assert_eq!(settled, Settled::Recorded);
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    assert_eq!(db.ledger().await, 2);
    model.assert_asked(2);
    model.assert_results("refund", [json!({ "refunded": true })]);
    model.assert_results("free", [json!("free")]);
    let decisions = chat.decisions(&db.pool).await.unwrap();
    assert_eq!(decisions.len(), 1);
    assert_eq!((decisions[0].by.to_string(), decisions[0].via.as_deref()), ("ann".into(), Some("web")));
}

#[derive(Debug, thiserror::Error)]
enum Deep {
    #[error("the desk: {0}")]
    Desk(#[from] askback::AskError),
}

fn desk(ctx: &ToolContext) -> Result<String, Deep> {
    Ok(ctx.ask(text("Name?"))?)
}

fn boxed(ctx: &ToolContext) -> Result<String, BoxError> {
    Ok(desk(ctx)?)
}

tool!(Plain, "plain", Nothing => String, |_pool, ctx, _args| Ok(ctx.ask(text("Name?"))?));
tool!(ThroughEnum, "through_enum", Nothing => String, |_pool, ctx, _args| Ok(desk(&ctx)?));
tool!(ThroughBox, "through_box", Nothing => String, |_pool, ctx, _args| Ok(boxed(&ctx)?));
tool!(Returned, "returned", Nothing => Value, |_pool, ctx, _args| match ctx.input_answer() {
    Some(name) => Ok(name),
    None => Err(text("Name?").into()),
});
tool!(ReturnedRequest, "returned_request", Nothing => Value, |_pool, ctx, _args| match ctx.input_answer() {
    Some(name) => Ok(name),
    None => Err(text("Name?").request().clone().into()),
});
tool!(Swallowed, "swallowed", Nothing => String, |_pool, ctx, _args| {
    Ok(ctx.ask(text("Name?")).unwrap_or_else(|_| "nobody".into()))
});
tool!(OtherError, "other_error", Nothing => String, |_pool, ctx, _args| {
    ctx.ask(text("Name?")).map_err(|_| std::io::Error::other("no name").into())
});
tool!(OtherPanic, "other_panic", Nothing => String, |_pool, ctx, _args| Ok(ctx.ask(text("Name?")).unwrap()));

// A1
async fn a_tool_may_ask_in_any_way_it_likes(db: TestDb) {
    let ways = [
        "plain",
        "through_enum",
        "through_box",
        "returned",
        "returned_request",
        "swallowed",
        "other_error",
        "other_panic",
    ];
    let model = calls_then_done(calls(ways.map(|way| ("w", way))));
    let askback = lab(&db, &model, |setup, pool| {
        let setup = setup.tool(Plain(pool.clone())).tool(ThroughEnum(pool.clone())).tool(ThroughBox(pool.clone()));
        let setup = setup.tool(Returned(pool.clone())).tool(ReturnedRequest(pool.clone()));
        setup.tool(Swallowed(pool.clone())).tool(OtherError(pool.clone())).tool(OtherPanic(pool))
    });
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    let asking: Vec<_> = questions.iter().filter_map(|q| q.request.tool_name.as_deref()).collect();
    assert_eq!(asking, ways);
    assert!(questions.iter().all(|q| q.request.prompt == "Name?" && q.id.key() == "1"), "{questions:?}");
    for (n, question) in questions.iter().enumerate() {
        answer(&db, &chat, question, format!("name {n}")).await;
    }
    finish(&chat).await;
    let expected: Vec<_> = (0..ways.len()).map(|n| (ways[n].to_owned(), format!("\"name {n}\""))).collect();
    assert_eq!(read(&model), expected);
}

tool!(Liar, "liar", Anything => Value, |_pool, ctx, args| match ctx.input_answer() {
    Some(answer) => Ok(answer),
    None => {
        let request = InputRequest::from_json(json!({
            "kind": "text", "prompt": "Sure?", "tool_call_id": "1", "tool_name": "bank", "arguments": { "amount": 1 },
            "schema": { "type": "string" }, "metadata": { "hint": ["a", 1] }, "something": "else",
        }))?;
        Err(request.into())
    }
});

// A8, A9, A5, Q2, case CC8
async fn who_asks_is_not_for_the_tool_to_say(db: TestDb) {
    let model = calls_then_done(Turn::default().call("w", "liar", r#"{"amount": 9000, "to":"é"}"#));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Liar(pool)));
    let chat = db.chat(&askback).await;
    park(&db, &chat).await;
    // Another process, which knows no agent.
    let elsewhere = Askback::new(connect(&db.url, 2).await);
    let questions = elsewhere.chat(chat.id()).pending_questions(elsewhere.pool()).await.unwrap();
    let question = &questions[0];
    let transcript = chat.transcript(&db.pool).await.unwrap();
    let call = &transcript.calls[0];
    assert_eq!((question.chat, question.message), (chat.id(), transcript.messages[1].id));
    assert_eq!((question.id.call(), question.id.key()), (call.id, "1"));
    let request = &question.request;
    assert_eq!(request.tool_call_id, Some(call.id.to_string()));
    assert_eq!(request.tool_name.as_deref(), Some("liar"));
    assert_eq!(request.arguments, Some(json!({ "amount": 9000, "to": "é" })));
    assert_eq!(request.schema, Some(json!({ "type": "string" })));
    assert_eq!(request.metadata, json!({ "hint": ["a", 1] }));
    answer(&db, &chat, question, "yes").await;
    finish(&chat).await;
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub struct Which {
    which: usize,
}

tool!(Unanswerable, "unanswerable", Which => bool, |pool, ctx, args| {
    let none: [&str; 0] = [];
    match args.which {
        0 => ctx.ask(confirm("  "))?,
        1 => drop(ctx.ask(choice::<String>("Which?", none))?),
        2 => drop(ctx.ask(choice::<Value>("Which?", [json!(1), json!(false)]))?),
        3 => drop(ctx.ask(choice::<Value>("Which?", [Value::Null]))?),
        4 => drop(ctx.ask(form::<Value>("Which?", []))?),
        5 => ctx.ask(url("Go?", "javascript:alert(1)"))?,
        6 => drop(ctx.ask(text("Name?").key("7"))?),
        7 => drop(ctx.ask(choice::<String>("Which?", ["a"]).default_answer("b"))?),
        8 => drop(ctx.ask(text("Name?").may_person("a\0b"))?),
        9 => return Err(confirm("").into()),
        // Deeper than JSON text is read back, nobody could list it.
        10 => drop(ctx.ask(text("Name?").metadata((0..200).fold(json!(1), |deep, _| json!([deep]))))?),
        _ => return Err(InputRequest::from_json(json!({ "kind": "approve", "prompt": "x" })).unwrap_err().into()),
    }
    note(pool, &ctx, "acted").await?;
    Ok(true)
});

// A4, A6, Q8, case CH1
async fn what_nobody_could_answer_is_the_calls_error(db: TestDb) {
    let turn = (0..12).fold(Turn::default(), |turn, n| turn.call("w", "unanswerable", format!("{{\"which\":{n}}}")));
    let model = calls_then_done(turn.call("w", "free", "{}"));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Unanswerable(pool.clone())).tool(Free(pool)));
    let chat = db.chat(&askback).await;
    finish(&chat).await;
    assert_eq!(db.ledger().await, 1);
    let read = read(&model);
    let why = [
        "a confirm question needs a prompt",
        "at least one option",
        "false cannot be an option",
        "null cannot be an option",
        "at least one field",
        "only http and https",
        "cannot be a question's key",
        "the default answer",
        "NUL",
        "a confirm question needs a prompt",
        "could not be read back",
        "is no kind of question",
    ];
    for (n, why) in why.into_iter().enumerate() {
        let result: Value = serde_json::from_str(&read[n].1).unwrap();
        assert!(result["error"].as_str().unwrap().contains(why), "{n}: {result}");
    }
    assert_eq!(read[12].1, "\"free\"");
}

// A10, case CF5, case CH5, case CH6
async fn arguments_that_are_no_object_never_run(db: TestDb) {
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    let sent = [
        r#"{"amount": 5"#.to_owned(),
        "null".into(),
        "[]".into(),
        "\"x\"".into(),
        r#"{"amount": NaN}"#.into(),
        r#"{"amount": 1e999}"#.into(),
        "{} {}".into(),
        r#"{"a":"\ud800"}"#.into(),
        "a\0b".into(),
        "true".into(),
        deep,
        "é🙂 }{ ```".into(),
    ];
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(8 * 1024 * 1024));
    let mut turn = Turn::default();
    for arguments in sent.iter().chain([&long]) {
        turn = turn.call("w", "pay", arguments).call("w", "gated", arguments);
    }
    // What is an object and does not fit the tool is the tool's error; no rule sees a number that was not sent.
    let turn = turn.call("w", "pay", r#"{"amount":1,"amount":9999}"#).call("w", "pay", r#"{"amount":"5"}"#);
    let model = calls_then_done(turn);
    let askback =
        lab(&db, &model, |setup, pool| setup.tool(Pay(pool.clone())).tool(Gated(pool)).requires_approval(["gated"]));
    let chat = db.chat(&askback).await;
    finish(&chat).await;
    assert_eq!(db.ledger().await, 0);
    let transcript = chat.transcript(&db.pool).await.unwrap();
    for (call, sent) in transcript.calls.chunks(2).zip(&sent) {
        for call in call {
            assert_eq!((call.raw_arguments.as_ref(), call.arguments.as_ref()), (Some(sent), None));
            assert_eq!((call.attempts, call.result_kind), (0, Some(ResultKind::Error)));
            let result: Value = serde_json::from_str(call.result.as_deref().unwrap()).unwrap();
            assert!(result["error"].as_str().unwrap().contains("not a JSON object"), "{result}");
            let shown = result["arguments"].as_str().unwrap();
            assert!(!shown.is_empty() && sent.starts_with(shown.trim_end_matches('…')), "{result}");
        }
    }
    for call in &transcript.calls[2 * sent.len()..][..2] {
        assert_eq!((call.attempts, call.result_kind), (0, Some(ResultKind::Error)));
        assert!(call.result.as_deref().unwrap().contains("at most 8388608 are taken"), "{:?}", call.result);
        assert!(call.result.as_deref().unwrap().len() < 1000);
    }
    for (call, why) in transcript.calls[2 * sent.len() + 2..].iter().zip(["duplicate field", "invalid type"]) {
        assert_eq!(call.result_kind, Some(ResultKind::Error));
        assert!(call.result.as_deref().unwrap().contains(why), "{:?}", call.result);
        assert!(call.raw_arguments.is_none());
    }
    // The model is shown what it sent, as it sent it.
    let requests = model.requests();
    let Some(askback::provider::Entry::Turn { calls, .. }) = requests.last().unwrap().history.last() else { panic!() };
    assert_eq!(calls[0].arguments, sent[0]);
    assert_eq!(calls[2 * sent.len() + 2].arguments, r#"{"amount":1,"amount":9999}"#);
}

tool!(Gated, "gated", Anything => bool, |pool, ctx, args| {
    note(pool, &ctx, &Value::Object(args).to_string()).await?;
    Ok(true)
});

// A10
async fn blank_arguments_are_an_empty_object(db: TestDb) {
    let model = calls_then_done(Turn::default().call("", "free", "").call("", "free", " \n\t").call("", "gated", ""));
    let askback =
        lab(&db, &model, |setup, pool| setup.tool(Free(pool.clone())).tool(Gated(pool)).requires_approval(["gated"]));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions[0].request.arguments, Some(json!({})));
    chat.approve(&db.pool, &questions[0].id, by()).await.unwrap();
    finish(&chat).await;
    assert_eq!(db.ledger().await, 3);
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    assert!(calls.iter().all(|call| call.arguments.as_deref() == Some("{}") && call.raw_arguments.is_none()));
}

/// What a tool saw, run by run.
type Seen<T> = Arc<Mutex<Vec<T>>>;

struct Interview(Seen<Value>);
impl Tool for Interview {
    const NAME: &str = "interview";
    const DESCRIPTION: &str = "Asks three times";
    type Args = Nothing;
    type Output = i64;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<i64> {
        let by_key = [ctx.answer("name"), ctx.answer("age"), ctx.answer("1"), ctx.answer("nothing")];
        self.0.lock().unwrap().push(json!({ "latest": ctx.input_answer(), "by_key": by_key, "run": ctx.attempt() }));
        ctx.ask(text("Name?").key("name"))?;
        ctx.ask(choice::<i64>("Age?", [(17, "under"), (18, "over")]).key("age"))?;
        ctx.ask(text("Colour?"))?;
        Ok(ctx.attempt())
    }
}

// A11, A13
async fn a_tool_reads_its_latest_answer_and_each_by_its_key(db: TestDb) {
    let model = calls_then_done(calls([("w", "interview")]));
    let seen: Seen<Value> = Arc::default();
    let log = seen.clone();
    let askback = lab(&db, &model, move |setup, _| setup.tool(Interview(log.clone())));
    let chat = db.chat(&askback).await;
    for value in [json!("Zoë"), json!("18"), json!("")] {
        let questions = park(&db, &chat).await;
        assert_eq!(questions.len(), 1);
        answer(&db, &chat, &questions[0], value).await;
    }
    finish(&chat).await;
    assert_eq!(
        *seen.lock().unwrap(),
        [
            json!({ "latest": null, "by_key": [null, null, null, null], "run": 1 }),
            json!({ "latest": "Zoë", "by_key": ["Zoë", null, null, null], "run": 2 }),
            // A choice is matched as text, and the tool gets the option's own value.
            json!({ "latest": 18, "by_key": ["Zoë", 18, null, null], "run": 3 }),
            json!({ "latest": "", "by_key": ["Zoë", 18, "", null], "run": 4 }),
        ]
    );
    model.assert_results("interview", [json!(4)]);
}

/// Does what the test says now, which may differ from run to run.
#[derive(Clone)]
struct Says(Arc<Mutex<Body>>);
type Body = Arc<dyn Fn(&ToolContext) -> ToolResult<Value> + Send + Sync>;

impl Says {
    fn new(body: impl Fn(&ToolContext) -> ToolResult<Value> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(body))))
    }

    fn now(&self, body: impl Fn(&ToolContext) -> ToolResult<Value> + Send + Sync + 'static) {
        *self.0.lock().unwrap() = Arc::new(body);
    }
}

impl Tool for Says {
    const NAME: &str = "says";
    const DESCRIPTION: &str = "Of a test";
    type Args = Anything;
    type Output = Value;
    async fn call(&self, ctx: ToolContext, _: Anything) -> ToolResult<Value> {
        let body = self.0.lock().unwrap().clone();
        body(&ctx)
    }
}

/// A chat that waits for the questions of one call of this tool.
async fn asked(db: &TestDb, says: &Says) -> (askback::Chat, Scripted, Vec<Question>) {
    let model = calls_then_done(calls([("w", "says")]));
    let says = says.clone();
    let askback = lab(db, &model, move |setup, _| setup.tool(says.clone()));
    let chat = db.chat(&askback).await;
    let questions = park(db, &chat).await;
    (chat, model, questions)
}

// A14
async fn questions_without_a_key_are_paired_by_their_order(db: TestDb) {
    let says = Says::new(|ctx| {
        let (one, two) = (ctx.ask(text("Same?")), ctx.ask(text("Same?")));
        Ok(json!([one?, two?]))
    });
    let (chat, model, questions) = asked(&db, &says).await;
    assert_eq!(questions.iter().map(|q| q.id.key()).collect::<Vec<_>>(), ["1", "2"]);
    answer(&db, &chat, &questions[1], "second").await;
    // One of the two is not enough, and the tool is not run for it.
    assert_eq!(park(&db, &chat).await, questions[..1]);
    answer(&db, &chat, &questions[0], "first").await;
    finish(&chat).await;
    model.assert_results("says", [json!(["first", "second"])]);
    assert_eq!(chat.transcript(&db.pool).await.unwrap().calls[0].attempts, 2);
}

// A14
async fn a_question_with_a_key_keeps_its_answer_under_another_prompt(db: TestDb) {
    let says = Says::new(|ctx| Ok(ctx.ask(text("It is 10:00. Name?").key("name"))?.into()));
    let (chat, model, questions) = asked(&db, &says).await;
    answer(&db, &chat, &questions[0], "Zoë").await;
    says.now(|ctx| Ok(ctx.ask(text("It is 11:00. Name?").key("name").metadata(json!({ "new": 1 })))?.into()));
    finish(&chat).await;
    model.assert_results("says", [json!("Zoë")]);
}

// A25, A14, B5, case CB15
async fn a_question_with_other_options_is_asked_anew(db: TestDb) {
    let says = Says::new(|ctx| Ok(ctx.ask(choice::<Value>("Size?", ["S", "M"]).key("size"))?));
    let (chat, model, questions) = asked(&db, &says).await;
    let old = &questions[0];
    answer(&db, &chat, old, "S").await;
    says.now(|ctx| Ok(ctx.ask(choice::<Value>("Size?", ["S", "L"]).key("size"))?));
    let questions = park(&db, &chat).await;
    let new = &questions[0];
    assert_eq!((new.id.clone(), old.round, new.round), (old.id.clone(), 0, 1));
    assert_ne!(new.digest, old.digest);
    // A click on the old page decides nothing of the new question.
    let settled = chat.answer(&db.pool, &old.id, "S", by().seen(&old.digest)).await.unwrap();
    assert_eq!(settled, Settled::Changed(Box::new(new.clone())));
    assert_eq!(open(&db, &chat).await, questions);
    let settled = chat.answer(&db.pool, &new.id, "L", by().seen(&new.digest)).await.unwrap();
    assert_eq!(settled, Settled::Recorded);
    finish(&chat).await;
    model.assert_results("says", [json!("L")]);
    // Both stand in the audit, each with what was seen.
    let decisions = chat.decisions(&db.pool).await.unwrap();
    let seen: Vec<_> = decisions.iter().map(|d| (d.digest.as_str(), d.value.clone().unwrap())).collect();
    assert_eq!(seen, [(old.digest.as_str(), json!("S")), (new.digest.as_str(), json!("L"))]);
}

// A14
async fn a_question_without_a_key_must_be_the_same_as_a_whole(db: TestDb) {
    let says = Says::new(|ctx| Ok(ctx.ask(text("Name?"))?.into()));
    let (chat, model, questions) = asked(&db, &says).await;
    answer(&db, &chat, &questions[0], "an answer to Name?").await;
    // Another prompt, then other metadata, then another kind: each is another question.
    says.now(|ctx| Ok(ctx.ask(text("City?"))?.into()));
    let questions = park(&db, &chat).await;
    assert_eq!((questions[0].request.prompt.as_str(), questions[0].round), ("City?", 1));
    answer(&db, &chat, &questions[0], "an answer to City?").await;
    says.now(|ctx| Ok(ctx.ask(text("City?").metadata(json!({ "of": "birth" })))?.into()));
    let questions = park(&db, &chat).await;
    answer(&db, &chat, &questions[0], "Ulm").await;
    // Who may answer, and until when, was settled with the answer.
    says.now(|ctx| {
        let ask = text("City?").metadata(json!({ "of": "birth" })).may_role("boss");
        Ok(ctx.ask(ask.expires_in(std::time::Duration::from_secs(9)))?.into())
    });
    finish(&chat).await;
    model.assert_results("says", [json!("Ulm")]);
}

// A7, A14
async fn what_json_cannot_keep_exactly_is_still_the_same_question(db: TestDb) {
    // Floats whose JSON text is not read back as the same bits, a schema that is null, an order of keys.
    let says = Says::new(|ctx| {
        let floats = [0.1 + 0.2, 1.0 / 3.0, 2.0e-308 / 3.0, 123_456.789e-300, f64::MAX, 5e-324, 31.245_270_191_439_438];
        let plain = ctx.ask(text("One?").metadata(json!({ "floats": floats, "z": 1, "a": 2 })).schema(Value::Null));
        let choice = ctx.ask(choice::<Value>("Two?", floats.map(|n| json!(n))).key("two"));
        Ok(json!([plain?, choice?.is_f64()]))
    });
    let (chat, model, questions) = asked(&db, &says).await;
    answer(&db, &chat, &questions[0], "x").await;
    let option = questions[1].request.options[2].value.clone();
    answer(&db, &chat, &questions[1], option).await;
    finish(&chat).await;
    model.assert_results("says", [json!(["x", true])]);
}

// A14
async fn one_key_asked_twice_in_a_run_is_one_question(db: TestDb) {
    let says = Says::new(|ctx| {
        if let Some(answer) = ctx.answer("name") {
            return Ok(answer);
        }
        let _ = ctx.ask(text("Name?").key("name"));
        let _ = ctx.ask(text("Name?").key("name"));
        Err(text("Your name?").key("name").into())
    });
    let (chat, model, questions) = asked(&db, &says).await;
    assert_eq!(questions.len(), 1, "{questions:?}");
    answer(&db, &chat, &questions[0], "Zoë").await;
    finish(&chat).await;
    model.assert_results("says", [json!("Zoë")]);
}

// A15, A16, case CC3
async fn siblings_run_and_nothing_goes_to_the_model_during_a_pause(db: TestDb) {
    let turn = [("1", "free"), ("2", "refund"), ("3", "free"), ("4", "exchange"), ("5", "free")];
    let model = calls_then_done(calls(turn));
    let askback =
        lab(&db, &model, |setup, pool| setup.tool(Refund(pool.clone())).tool(Exchange(pool.clone())).tool(Free(pool)));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions.len(), 3);
    let states: Vec<_> = chat.transcript(&db.pool).await.unwrap().calls.iter().map(|call| call.state).collect();
    let (done, waiting) = (CallState::Done, CallState::Waiting);
    assert_eq!(states, [done, waiting, done, waiting, done]);
    assert_eq!(db.ledger().await, 3);
    // However often it is driven, and after each answer but the last, the model is not asked and no sibling runs.
    for question in &questions {
        assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
        model.assert_asked(1);
        let value = if question.id.key() == "size" { json!("S") } else { json!(true) };
        answer(&db, &chat, question, value).await;
    }
    finish(&chat).await;
    model.assert_asked(2);
    assert_eq!(db.ledger().await, 5);
    let whats = "select count(distinct call_id) from ledger";
    assert_eq!(db.count(whats).await, 5);
}

// A20
async fn a_null_result_has_finished(db: TestDb) {
    let model = calls_then_done(calls([("1", "null"), ("2", "refund")]));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Null).tool(Refund(pool)));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions.len(), 1);
    assert_eq!(results(&db, &chat).await, ["null", "Waiting"]);
    answer(&db, &chat, &questions[0], true).await;
    finish(&chat).await;
    assert_eq!(read(&model)[0], ("null".into(), "null".into()));
    assert_eq!(chat.transcript(&db.pool).await.unwrap().calls[0].attempts, 1);
}

/// Returns JSON whose text no database's JSON type would keep.
struct Odd;
impl Tool for Odd {
    const NAME: &str = "odd";
    const DESCRIPTION: &str = "Returns odd JSON";
    type Args = Nothing;
    type Output = OddJson;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<OddJson> {
        Ok(OddJson { z: 1.0, a: "é\0🙂\u{2028}", big: u64::MAX, small: 1e-7, nested: vec![None, Some(0.1 + 0.2)] })
    }
}

#[derive(serde::Serialize)]
struct OddJson {
    z: f64,
    a: &'static str,
    big: u64,
    small: f64,
    nested: Vec<Option<f64>>,
}

// A24, A26, case CC10
async fn results_go_out_together_in_call_order_as_the_same_bytes(db: TestDb) {
    // The same tool without a pause.
    let model = calls_then_done(calls([("1", "odd")]));
    let askback = lab(&db, &model, |setup, _| setup.tool(Odd));
    finish(&db.chat(&askback).await).await;
    let unpaused = read(&model)[0].clone();
    let written: Value = serde_json::from_str(&unpaused.1).unwrap();
    assert!(unpaused.1.starts_with(r#"{"z":1.0,"a":"é\u0000🙂"#), "{unpaused:?}");
    assert_eq!(written["big"], json!(u64::MAX));

    let turn = [("1", "refund"), ("2", "odd"), ("3", "refund"), ("4", "refund"), ("5", "null")];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let model = calls_then_done(calls(turn));
        let askback = lab(&db, &model, |setup, pool| setup.tool(Odd).tool(Null).tool(Refund(pool)));
        let chat = db.chat(&askback).await;
        let questions = park(&db, &chat).await;
        for at in order {
            answer(&db, &chat, &questions[at], true).await;
            chat.complete().await.unwrap();
        }
        model.assert_asked(2);
        let refunded = || ("refund".to_owned(), r#"{"refunded":true}"#.to_owned());
        let null = ("null".to_owned(), "null".to_owned());
        assert_eq!(read(&model), [refunded(), unpaused.clone(), refunded(), refunded(), null]);
        // One turn holds them all, behind the person's text.
        assert_eq!(model.requests()[1].history.len(), 2);
        let attempts: Vec<_> = chat.transcript(&db.pool).await.unwrap().calls.iter().map(|c| c.attempts).collect();
        assert_eq!(attempts, [2, 1, 2, 2, 1]);
    }
    assert_eq!(db.ledger().await, 9);
}

// A2, A3, A37
async fn false_declines_every_kind_and_an_empty_text_is_an_answer(db: TestDb) {
    let says = Says::new(|ctx| {
        let asks = [
            ctx.ask(confirm("1?")).map(|()| json!(true)),
            ctx.ask(text("2?")).map(Value::from),
            ctx.ask(choice::<Value>("3?", [json!("false"), json!(0), json!(true)])),
            ctx.ask(secret("4?")).map(Value::from),
            ctx.ask(form::<Value>("5?", [Field::new("a", FieldType::Boolean).required()])),
            ctx.ask(url("6?", "https://example.org/pay")).map(|()| json!(true)),
        ];
        Ok(asks.into_iter().collect::<Result<Vec<_>, _>>()?.into())
    });
    let kinds = [Kind::Confirm, Kind::Text, Kind::Choice, Kind::Secret, Kind::Form, Kind::Url];
    for (at, kind) in kinds.into_iter().enumerate() {
        let (chat, model, questions) = asked(&db, &says).await;
        assert_eq!(questions.iter().map(|q| q.request.kind).collect::<Vec<_>>(), kinds);
        answer(&db, &chat, &questions[at], false).await;
        finish(&chat).await;
        assert_eq!(read(&model)[0].1, r#"{"error":"declined by user"}"#, "{kind}");
        let call = &chat.transcript(&db.pool).await.unwrap().calls[0];
        assert_eq!((call.attempts, call.result_kind), (1, Some(ResultKind::Declined)));
    }
    let says = Says::new(|ctx| {
        let (one, two) = (ctx.ask(text("1?")), ctx.ask(choice::<Value>("2?", [json!("false"), json!(0)])));
        let (three, four) = (ctx.ask(url("3?", "http://example.org")), ctx.ask(text("4?")));
        three?;
        Ok(json!([one?, two?, four?]))
    });
    let (chat, model, questions) = asked(&db, &says).await;
    // The word is no decline.
    for (question, value) in questions.iter().zip([json!(""), json!("false"), json!(true), json!(-7.5)]) {
        answer(&db, &chat, question, value).await;
    }
    finish(&chat).await;
    model.assert_results("says", [json!(["", "false", "-7.5"])]);
}

// A39, Q5, A38
async fn a_declined_tool_does_not_run_again_and_its_siblings_are_untouched(db: TestDb) {
    let turn = calls([("1", "refund"), ("2", "refund"), ("3", "gated"), ("4", "free"), ("5", "gated")]);
    let model = calls_then_done(turn);
    let askback = lab(&db, &model, |setup, pool| {
        setup.tool(Refund(pool.clone())).tool(Free(pool.clone())).tool(Gated(pool)).requires_approval(["gated"])
    });
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    let note = "tell \"me\"\nfirst 🙂";
    assert_eq!(chat.decline(&db.pool, &questions[0].id, Some(note), by()).await.unwrap(), Settled::Recorded);
    assert_eq!(chat.decline(&db.pool, &questions[2].id, None, by()).await.unwrap(), Settled::Recorded);
    answer(&db, &chat, &questions[3], false).await;
    assert_eq!(park(&db, &chat).await, questions[1..2]);
    answer(&db, &chat, &questions[1], true).await;
    finish(&chat).await;
    let results: Vec<_> = read(&model).into_iter().map(|(_, result)| result).collect();
    assert_eq!(
        results,
        [
            r#"{"error":"declined by user","note":"tell \"me\"\nfirst 🙂"}"#,
            r#"{"refunded":true}"#,
            r#"{"error":"declined by user"}"#,
            r#""free""#,
            r#"{"error":"declined by user"}"#,
        ]
    );
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    assert_eq!(calls.iter().map(|call| call.attempts).collect::<Vec<_>>(), [1, 2, 0, 1, 0]);
    assert_eq!(db.ledger().await, 2);
    let requests = model.requests();
    let Some(askback::provider::Entry::Turn { calls, .. }) = requests[1].history.last() else { panic!() };
    assert_eq!(calls.iter().map(|call| call.is_error).collect::<Vec<_>>(), [true, false, true, false, true]);
}

// Q1, Q3, case CC1, case CC3, case CC8
async fn three_calls_that_ask_have_three_questions(db: TestDb) {
    let model = calls_then_done(calls([("1", "refund"), ("1", "gated"), ("1", "exchange")]));
    let askback = lab(&db, &model, |setup, pool| {
        setup.tool(Refund(pool.clone())).tool(Exchange(pool.clone())).tool(Gated(pool)).requires_approval(["gated"])
    });
    let chat = db.chat(&askback).await;
    park(&db, &chat).await;
    // Another process, which knows no agent, lists them and answers.
    let elsewhere = Askback::new(connect(&db.url, 2).await);
    let there = elsewhere.chat(chat.id());
    let questions = there.pending_questions(elsewhere.pool()).await.unwrap();
    let transcript = chat.transcript(&db.pool).await.unwrap();
    let listed: Vec<_> = questions.iter().map(|q| (q.request.tool_name.clone().unwrap(), q.id.key())).collect();
    let expected = [("refund", "1"), ("gated", ""), ("exchange", "size"), ("exchange", "wish")];
    assert_eq!(listed, expected.map(|(tool, key)| (tool.to_owned(), key)));
    for question in &questions {
        assert_eq!((question.chat, question.message), (chat.id(), transcript.messages[1].id));
        let call = transcript.calls.iter().find(|call| call.id == question.id.call()).unwrap();
        assert_eq!(question.request.tool_call_id, Some(call.id.to_string()));
        assert_eq!(question.request.tool_name.as_ref(), Some(&call.name));
        assert_eq!(question.id.to_string().parse::<askback::QuestionId>().unwrap(), question.id);
    }
    let mut left: Vec<_> = questions.iter().collect();
    for value in [json!(true), json!(true), json!("S"), json!("none")] {
        let question = left.remove(0);
        there.answer(elsewhere.pool(), &question.id, value, by()).await.unwrap();
        let open = there.pending_questions(elsewhere.pool()).await.unwrap();
        assert_eq!(open.iter().collect::<Vec<_>>(), left);
    }
    finish(&chat).await;
    assert_eq!(db.ledger().await, 3);
}

// case CC5, case CC6
async fn two_calls_of_one_tool_are_answered_in_either_order(db: TestDb) {
    let turns = [
        (Turn::default().call("a", "pay", r#"{"amount":101}"#).call("b", "pay", r#"{"amount":202}"#), ["101", "202"]),
        (Turn::default().call("a", "pay", r#"{"amount":303}"#).call("b", "gated", r#"{"n":4}"#), ["303", "true"]),
    ];
    for (turn, expected) in turns {
        for order in [[0, 1], [1, 0]] {
            let model = calls_then_done(turn.clone());
            let askback = lab(&db, &model, |setup, pool| {
                setup.tool(Pay(pool.clone())).tool(Gated(pool)).requires_approval(["gated"])
            });
            let chat = db.chat(&askback).await;
            let questions = park(&db, &chat).await;
            for (answered, at) in order.into_iter().enumerate() {
                assert_eq!(open(&db, &chat).await.len(), 2 - answered);
                // Each time from another process.
                let there = Askback::new(connect(&db.url, 2).await);
                let settled = there.chat(chat.id()).approve(there.pool(), &questions[at].id, by()).await.unwrap();
                assert_eq!(settled, Settled::Recorded);
                chat.complete().await.unwrap();
                let done = results(&db, &chat).await;
                assert_eq!(done[at], expected[at], "{done:?}");
                if answered == 0 {
                    assert_eq!(done[1 - at], "Waiting");
                }
            }
            assert_eq!(open(&db, &chat).await, []);
            assert!(chat.is_complete(&db.pool).await.unwrap());
        }
    }
    assert_eq!(db.ledger().await, 8);
    for what in ["pay 101", "pay 202", "pay 303", "{\"n\":4}"] {
        let sql = format!("select count(*) from ledger where what = '{what}'");
        assert_eq!(db.count(&sql).await, 2, "{what}");
    }
}

// case CB13
async fn an_earlier_result_is_never_an_answer(db: TestDb) {
    let seen: Seen<Value> = Arc::default();
    let log = seen.clone();
    let says = Says::new(move |ctx| {
        log.lock().unwrap().push(json!([ctx.input_answer(), ctx.answer("1"), ctx.answer("q")]));
        Ok(ctx.ask(text("Q1?").key("q"))?.into())
    });
    let script = [calls([("w", "free")]), calls([("w", "says"), ("w", "free")]), Turn::text("done")];
    let model = Scripted::new(script);
    let askback = lab(&db, &model, move |setup, pool| setup.tool(Free(pool)).tool(says.clone()));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(results(&db, &chat).await, ["\"free\"", "Waiting", "\"free\""]);
    answer(&db, &chat, &questions[0], "mine").await;
    finish(&chat).await;
    assert_eq!(*seen.lock().unwrap(), [json!([null, null, null]), json!(["mine", null, "mine"])]);
    assert_eq!(read(&model), [("says".into(), "\"mine\"".into()), ("free".into(), "\"free\"".into())]);
}

// A25, A34, case CB15
async fn a_second_question_has_an_id_of_its_own_and_a_choice_is_matched_exactly(db: TestDb) {
    let says = Says::new(|ctx| {
        let one: String = ctx.ask(choice("Q1?", ["approve", "approve with changes"]))?;
        let two: String = ctx.ask(choice("Q2?", ["not approved", "approved"]))?;
        Ok(json!([one, two]))
    });
    let (chat, model, first) = asked(&db, &says).await;
    assert_eq!(first.len(), 1);
    for wrong in ["approve with", "Approve", "approve ", "approved", "", "changes"] {
        let error = chat.answer(&db.pool, &first[0].id, wrong, by()).await.unwrap_err();
        assert_eq!(error.kind(), askback::ErrorKind::Invalid, "{wrong}: {error}");
    }
    answer(&db, &chat, &first[0], "approve with changes").await;
    let second = park(&db, &chat).await;
    assert_eq!(second.len(), 1);
    assert_ne!((&second[0].id, &second[0].digest), (&first[0].id, &first[0].digest));
    // The first is decided, and an answer to it is no answer to the second.
    let settled = chat.answer(&db.pool, &first[0].id, "approve", by()).await.unwrap();
    assert!(matches!(settled, Settled::Already(_)), "{settled:?}");
    assert_eq!(open(&db, &chat).await, second);
    answer(&db, &chat, &second[0], "not approved").await;
    finish(&chat).await;
    model.assert_results("says", [json!(["approve with changes", "not approved"])]);
}

// A19, case CE1
async fn calls_with_one_wire_id_are_two_calls(db: TestDb) {
    let turn = Turn::default().call("dup", "pay", r#"{"amount":500}"#).call("dup", "gated", r#"{"delete":true}"#);
    let model = calls_then_done(turn.call("dup", "gated", r#"{"delete":true}"#));
    let askback =
        lab(&db, &model, |setup, pool| setup.tool(Pay(pool.clone())).tool(Gated(pool)).requires_approval(["gated"]));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    chat.approve(&db.pool, &questions[0].id, by()).await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    assert_eq!(results(&db, &chat).await, ["500", "Waiting", "Waiting"]);
    assert_eq!(db.count("select count(*) from ledger where what = 'pay 500'").await, 1);
    assert_eq!(db.ledger().await, 1);
    chat.decline(&db.pool, &questions[2].id, None, by()).await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    chat.approve(&db.pool, &questions[1].id, by()).await.unwrap();
    finish(&chat).await;
    assert_eq!(db.ledger().await, 2);
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    // What the provider sent stays as it came; ours are unique.
    assert!(calls.iter().all(|call| call.wire_id == "dup"));
    assert_eq!(calls.iter().map(|call| call.id).collect::<std::collections::HashSet<_>>().len(), 3);
}

// case CH1
async fn a_nul_goes_through_everywhere_or_is_refused_at_the_edge(db: TestDb) {
    let says = Says::new(|ctx| {
        let label = choice::<String>("Pick\0?", [("a\0", "label\0"), ("b", "\0")]).metadata(json!({ "m\0": "\0" }));
        let (picked, wish) = (ctx.ask(label), ctx.ask(text("\0?").schema(json!("\0"))));
        Ok(json!({ "picked\0": picked?, "wish": wish?, "\0": "\0" }))
    });
    let turn = Turn::text("I say\0").call("w\0", "says", "{\"a\":\"\\u0000\",\"\\u0000\":1}");
    let mut turn = turn.call("w", "sa\0ys", "{}").call("w", "says\0", "a\0");
    turn.items = Some(r#"[{"text":"I say\u0000"}]"#.into());
    turn.finish_reason = Some("stop\0".into());
    let model = Scripted::new([turn, Turn::text("do\0ne")]);
    let askback = lab(&db, &model, move |setup, _| setup.tool(says.clone()));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions[0].request.prompt, "Pick\0?");
    assert_eq!(questions[0].request.options[0].shown(), "label\0");
    assert_eq!(questions[0].request.metadata, json!({ "m\0": "\0" }));
    assert_eq!(questions[0].request.arguments, Some(json!({ "a": "\0", "\0": 1 })));
    assert_eq!(questions[1].request.schema, Some(json!("\0")));
    let error = chat.decline(&db.pool, &questions[1].id, Some("\0"), by()).await.unwrap_err();
    assert_eq!(error.kind(), askback::ErrorKind::Invalid, "{error}");
    answer(&db, &chat, &questions[0], "a\0").await;
    answer(&db, &chat, &questions[1], "answer\0").await;
    finish(&chat).await;
    let read = read(&model);
    assert_eq!(
        serde_json::from_str::<Value>(&read[0].1).unwrap(),
        json!({ "picked\0": "a\0", "wish": "answer\0", "\0": "\0" })
    );
    assert!(read[1].1.contains("there is no tool"), "{read:?}");
    let decisions = chat.decisions(&db.pool).await.unwrap();
    assert_eq!(decisions[1].value, Some(json!("answer\0")));
    let transcript = chat.transcript(&db.pool).await.unwrap();
    assert_eq!(transcript.messages[1].content, "I say\u{fffd}");
    assert_eq!(transcript.messages[1].items.as_deref(), Some(r#"[{"text":"I say\u0000"}]"#));
    assert_eq!(transcript.messages[2].content, "do\u{fffd}ne");
    assert_eq!(transcript.calls[0].arguments.as_deref(), Some("{\"a\":\"\\u0000\",\"\\u0000\":1}"));
    assert_eq!(transcript.calls[2].raw_arguments.as_deref(), Some("a\0"));
    // A text of a person is refused, and the chat takes the next one.
    let error = chat.say(&db.pool, "a\0b").await.unwrap_err();
    assert_eq!(error.kind(), askback::ErrorKind::Invalid, "{error}");
    model.push(Turn::text("still here"));
    assert_eq!(chat.say_and_complete("hello?").await.unwrap(), Outcome::Done);
}

// case CH8
async fn every_character_and_a_megabyte_come_back_as_they_were(db: TestDb) {
    const ODD: &str = "🙂 👩‍👩‍👧 שלום مرحبا e\u{301} é \u{feff}\u{200b}\u{fffe} İıſẞ  trailing  ";
    let long = format!("{ODD}{}", "ü🙂".repeat(12_000));
    let huge = format!("{}{ODD}", "0123456789abcdef".repeat(64 * 1024));
    let says = Says::new(|ctx| {
        let pick = choice::<String>(format!("{ODD}?"), [("é", ODD), ("e", "e"), ("E", "E"), ("e\u{301}", "two")]);
        let (text, pick) = (ctx.ask(text(ODD).key(ODD)), ctx.ask(pick.key("é")));
        let e = ctx.ask(askback::text("e").key("e"));
        Ok(json!([text?, pick?, e?]))
    });
    let turn = Turn::text(&huge).call("🙂", "says", json!({ ODD: huge }).to_string());
    let model = Scripted::new([turn.clone(), Turn::text("done")]);
    let handed = says.clone();
    let askback = lab(&db, &model, move |setup, _| setup.tool(handed.clone()));
    let chat = askback.start(&db.pool, &crate::support::Lab {}, ODD).await.unwrap();
    chat.say(&db.pool, &huge).await.unwrap();
    let questions = park(&db, &chat).await;
    // Keys that a collation might take for the same are two questions.
    assert_eq!(questions.iter().map(|q| q.id.key()).collect::<Vec<_>>(), [ODD, "é", "e"]);
    assert_eq!((&*questions[0].request.prompt, &*questions[1].request.options[0].shown()), (ODD, ODD));
    assert_eq!(questions[0].request.arguments, Some(json!({ ODD: huge })));
    for wrong in ["É", "ê", "e ", "é ", "ｅ"] {
        chat.answer(&db.pool, &questions[1].id, wrong, by()).await.unwrap_err();
    }
    answer(&db, &chat, &questions[0], long.as_str()).await;
    answer(&db, &chat, &questions[1], "e").await;
    answer(&db, &chat, &questions[2], huge.as_str()).await;
    finish(&chat).await;
    assert_eq!(serde_json::from_str::<Value>(&read(&model)[0].1).unwrap(), json!([long, "e", huge]));
    let transcript = chat.transcript(&db.pool).await.unwrap();
    assert_eq!(transcript.chat.actor, ODD);
    assert!(transcript.messages[0].content == huge && transcript.messages[1].content == huge);
    assert_eq!(transcript.calls[0].wire_id, "🙂");
    let decisions = chat.decisions(&db.pool).await.unwrap();
    let values: Vec<_> = decisions.into_iter().map(|decision| decision.value.unwrap()).collect();
    assert!(values == [json!(long), json!("e"), json!(huge)]);
}

// Q6, case CH10
async fn a_decline_is_never_held_to_the_form(db: TestDb) {
    let says = Says::new(|ctx| {
        let fields = [
            Field::new("name", FieldType::String).required(),
            Field::new("size", FieldType::Choice).required().options(["S", "M"]),
        ];
        Ok(ctx.ask(form::<Value>("Fill in", fields))?)
    });
    for (n, note) in [None, Some("no"), None].into_iter().enumerate() {
        let (chat, model, questions) = asked(&db, &says).await;
        for wrong in [json!({}), json!(null), json!({ "name": "x" }), json!({ "output": { "name": "x" } }), json!("x")]
        {
            let error = chat.answer(&db.pool, &questions[0].id, wrong.clone(), by()).await.unwrap_err();
            assert_eq!(error.kind(), askback::ErrorKind::Invalid, "{wrong}: {error}");
        }
        assert_eq!(open(&db, &chat).await, questions);
        match n {
            0 | 1 => drop(chat.decline(&db.pool, &questions[0].id, note, by()).await.unwrap()),
            // What is cancelled neither.
            _ => {
                chat.cancel(&db.pool).await.unwrap();
                assert_eq!(results(&db, &chat).await, [r#"{"error":"cancelled by user"}"#]);
                continue;
            }
        }
        finish(&chat).await;
        assert!(read(&model)[0].1.starts_with(r#"{"error":"declined by user""#));
    }
}

// A4, case CH11
async fn a_label_is_shown_and_a_value_is_the_answer(db: TestDb) {
    let says = Says::new(|ctx| {
        let options = [("a", "Same"), ("b", "Same"), ("c", "a"), ("d", "Other")];
        Ok(ctx.ask(choice::<Value>("Which?", options))?)
    });
    // A label that is another option's value stands for that value.
    for value in ["a", "b", "c"] {
        let (chat, model, questions) = asked(&db, &says).await;
        let shown: Vec<_> = questions[0].request.options.iter().map(|option| option.shown()).collect();
        assert_eq!(shown, ["Same", "Same", "a", "Other"]);
        for label in ["Same", "Other"] {
            chat.answer(&db.pool, &questions[0].id, label, by()).await.unwrap_err();
        }
        answer(&db, &chat, &questions[0], value).await;
        finish(&chat).await;
        model.assert_results("says", [json!(value)]);
        assert_eq!(chat.decisions(&db.pool).await.unwrap()[0].value, Some(json!(value)));
    }
}
