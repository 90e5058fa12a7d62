//! Gates, limits of turns, forced tools, and tools that fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use askback::provider::scripted::Scripted;
use askback::provider::{Entry, ToolChoice, Turn};
use askback::{
    Approval, Askback, By, CallState, ChatState, ErrorKind, Gate, Kind, Outcome, Pool, ResultKind, Settled, Setup,
    Tool, ToolContext, ToolResult, confirm, text,
};
use serde_json::{Value, json};

use crate::support::tools::{
    Amount, Anything, Free, Nothing, Panics, Pay, Raises, Refund, answer, finish, note, open, park, read, results,
};
use crate::support::{TestDb, calls, calls_then_done, connect};
use crate::{tests, tool};

tests![
    every_call_of_a_gated_tool_waits_and_a_later_one_again,
    an_approved_tool_runs_without_an_answer_and_still_asks_its_own_question,
    a_parked_call_does_not_run_without_a_decision,
    a_gate_stays_when_todays_agent_has_none,
    a_gate_that_todays_agent_adds_counts,
    each_call_of_a_resumed_turn_is_dispatched_by_the_first_rule_that_fits,
    a_rule_decides_by_the_arguments_as_they_were_sent,
    a_rule_that_panics_means_that_approval_is_needed,
    edited_arguments_run_and_the_model_is_told,
    an_edit_changes_arguments_and_nothing_else,
    edited_arguments_are_never_dropped_silently,
    edited_arguments_have_a_limit,
    four_decisions_at_once_give_four_results,
    equal_arguments_have_an_equal_digest,
    the_limit_of_tool_turns_ends_a_generation_and_not_the_chat,
    pauses_do_not_count_as_turns,
    a_forced_tool_stays_forced_until_it_is_used,
    a_forced_tool_is_used_up_over_a_pause,
    a_siblings_failure_takes_no_result_away,
    an_agent_may_stop_on_the_error_of_a_tool,
];

fn by() -> By {
    By::person("ann")
}

fn lab(db: &TestDb, model: &Scripted, add: impl Fn(Setup, Pool) -> Setup + Send + Sync + 'static) -> Askback {
    let (model, pool) = (model.clone(), db.pool.clone());
    db.lab(move || add(Setup::new(model.clone()), pool.clone()))
}

tool!(Delete, "delete", Anything => Value, |pool, ctx, args| {
    assert_eq!(ctx.input_answer(), None);
    note(pool, &ctx, "delete").await?;
    Ok(Value::Object(args))
});

/// Asks two questions of its own, one after the other.
struct Asking(Arc<Mutex<Vec<Option<Value>>>>);
impl Tool for Asking {
    const NAME: &str = "asking";
    const DESCRIPTION: &str = "Asks";
    type Args = Nothing;
    type Output = String;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<String> {
        self.0.lock().unwrap().push(ctx.input_answer());
        ctx.ask(confirm("Sure?"))?;
        Ok(ctx.ask(text("Why?"))?)
    }
}

// A40, A41, A28
async fn every_call_of_a_gated_tool_waits_and_a_later_one_again(db: TestDb) {
    let turn = || Turn::default().call("1", "delete", r#"{"path":"/é"}"#).call("2", "free", "{}");
    let model = Scripted::new([turn(), turn(), Turn::text("done")]);
    let askback = lab(&db, &model, |setup, pool| {
        let setup = setup.requires_approval(["delete"]).requires_approval(vec!["free".to_owned(), "unheard_of".into()]);
        setup.tool(Delete(pool.clone())).tool(Free(pool))
    });
    let chat = db.chat(&askback).await;
    for round in 0..2 {
        let questions = park(&db, &chat).await;
        assert_eq!((questions.len(), db.ledger().await), (2, 2 * round));
        let request = &questions[0].request;
        assert_eq!((request.kind, request.prompt.as_str()), (Kind::Approval, "Allow delete to run?"));
        assert_eq!(request.tool_name.as_deref(), Some("delete"));
        assert_eq!(request.arguments, Some(json!({ "path": "/é" })));
        assert_eq!(request.metadata, json!({ "approval": true }));
        assert_eq!((questions[0].id.key(), questions[0].id.call().to_string()), ("", questions[0].id.to_string()));
        assert_eq!(questions[1].request.prompt, "Allow free to run?");
        // `true` is an approval, and so is the verb.
        answer(&db, &chat, &questions[0], true).await;
        assert_eq!(chat.approve(&db.pool, &questions[1].id, by()).await.unwrap(), Settled::Recorded);
    }
    finish(&chat).await;
    assert_eq!(db.ledger().await, 4);
    let gates: Vec<_> = chat.transcript(&db.pool).await.unwrap().calls.iter().map(|call| call.gate).collect();
    assert_eq!(gates, [Some(Gate::Approved); 4]);
}

// A42
async fn an_approved_tool_runs_without_an_answer_and_still_asks_its_own_question(db: TestDb) {
    let model = calls_then_done(calls([("1", "asking")]));
    let seen: Arc<Mutex<Vec<Option<Value>>>> = Arc::default();
    let log = seen.clone();
    let askback =
        lab(&db, &model, move |setup, _| setup.tool(Asking(log.clone())).requires_approval(["asking", "asking"]));
    let chat = db.chat(&askback).await;
    for (prompt, value) in [("Allow asking to run?", json!(true)), ("Sure?", json!(true)), ("Why?", json!("so"))] {
        let questions = park(&db, &chat).await;
        assert_eq!(questions.iter().map(|q| q.request.prompt.as_str()).collect::<Vec<_>>(), [prompt]);
        answer(&db, &chat, &questions[0], value).await;
    }
    finish(&chat).await;
    assert_eq!(*seen.lock().unwrap(), [None, Some(json!(true)), Some(json!("so"))]);
    model.assert_results("asking", [json!("so")]);

    // A decline of the tool's own question ends a call that was approved.
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    answer(&db, &chat, &questions[0], true).await;
    let questions = park(&db, &chat).await;
    answer(&db, &chat, &questions[0], false).await;
    finish(&chat).await;
    assert_eq!(results(&db, &chat).await, [r#"{"error":"declined by user"}"#]);
}

// case CF6
async fn a_parked_call_does_not_run_without_a_decision(db: TestDb) {
    let model = calls_then_done(calls([("1", "delete"), ("2", "delete")]));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Delete(pool)).requires_approval(["delete"]));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    for _ in 0..3 {
        // Another process, with a pool and leases of its own.
        let there = askback_of(&db, &model).await;
        assert_eq!(there.chat(chat.id()).complete().await.unwrap(), Outcome::Waiting);
        assert_eq!(there.chat(chat.id()).step().await.unwrap(), Outcome::Waiting);
    }
    assert_eq!((open(&db, &chat).await, db.ledger().await), (questions, 0));
    model.assert_asked(1);
}

async fn askback_of(db: &TestDb, model: &Scripted) -> Askback {
    let (model, pool) = (model.clone(), connect(&db.url, 2).await);
    let lent = crate::support::LabApp {
        setup: Arc::new({
            let pool = pool.clone();
            move || Setup::new(model.clone()).tool(Delete(pool.clone())).tool(Free(pool.clone()))
        }),
    };
    Askback::new(pool).agent::<crate::support::Lab>(lent)
}

// A43, A28, Q11
async fn a_gate_stays_when_todays_agent_has_none(db: TestDb) {
    let model = calls_then_done(calls([("1", "delete"), ("2", "delete")]));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Delete(pool)).requires_approval(["delete"]));
    let chat = db.chat(&askback).await;
    // The gate is decided when the turn is saved, not when the calls would run.
    assert_eq!(chat.step().await.unwrap(), Outcome::Waiting);
    let questions = open(&db, &chat).await;
    assert_eq!(questions.len(), 2);
    // Today's agent gates nothing: what was recorded counts.
    let today = askback_of(&db, &model).await;
    let there = today.chat(chat.id());
    assert_eq!(there.complete().await.unwrap(), Outcome::Waiting);
    assert_eq!(db.ledger().await, 0);
    answer(&db, &there, &questions[0], false).await;
    answer(&db, &there, &questions[1], true).await;
    finish(&there).await;
    assert_eq!(results(&db, &chat).await, [r#"{"error":"declined by user"}"#, "{}"]);
    assert_eq!(db.ledger().await, 1);
}

// A28, Q11
async fn a_gate_that_todays_agent_adds_counts(db: TestDb) {
    let model = calls_then_done(calls([("1", "delete"), ("2", "refund")]));
    let free = lab(&db, &model, |setup, pool| setup.tool(Delete(pool.clone())).tool(Refund(pool)));
    let strict = lab(&db, &model, |setup, pool| {
        setup.tool(Delete(pool.clone())).tool(Refund(pool)).requires_approval(["delete", "refund"])
    });
    // The turn was saved without gates, and nothing has run yet.
    let chat = db.chat(&free).await;
    assert_eq!(chat.step().await.unwrap(), Outcome::Ready);
    assert_eq!(chat.transcript(&db.pool).await.unwrap().calls[0].gate, None);
    let there = strict.chat(chat.id());
    let questions = park(&db, &there).await;
    assert_eq!(questions.iter().map(|q| q.id.key()).collect::<Vec<_>>(), ["", ""]);
    assert_eq!(db.ledger().await, 0);
    // An approval holds whoever carries on.
    answer(&db, &chat, &questions[0], true).await;
    answer(&db, &chat, &questions[1], true).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions[0].request.prompt, "Refund?");
    answer(&db, &chat, &questions[0], true).await;
    finish(&there).await;
    assert_eq!(db.ledger().await, 2);

    // A call that has run and asked is gated before it runs again, and keeps its answer.
    let chat = db.chat(&free).await;
    let questions = park(&db, &chat).await;
    answer(&db, &chat, &questions[0], true).await;
    let there = strict.chat(chat.id());
    let questions = park(&db, &there).await;
    assert_eq!(questions[0].request.prompt, "Allow refund to run?");
    answer(&db, &there, &questions[0], true).await;
    finish(&there).await;
    assert_eq!(results(&db, &chat).await, ["{}", r#"{"refunded":true}"#]);
    assert_eq!(db.ledger().await, 4);
}

// A28, A24, Q16
async fn each_call_of_a_resumed_turn_is_dispatched_by_the_first_rule_that_fits(db: TestDb) {
    let turn = [("1", "free"), ("2", "delete"), ("3", "delete"), ("4", "refund"), ("5", "asking"), ("6", "asking")];
    let model = calls_then_done(calls(turn));
    let seen: Arc<Mutex<Vec<Option<Value>>>> = Arc::default();
    let log = seen.clone();
    let yesterday = lab(&db, &model, move |setup, pool| {
        let setup = setup.tool(Free(pool.clone())).tool(Delete(pool.clone())).tool(Refund(pool));
        setup.tool(Asking(log.clone())).requires_approval(["delete"])
    });
    let chat = db.chat(&yesterday).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions.len(), 5);
    for (question, value) in questions.iter().zip([true, false, true, true, false]) {
        answer(&db, &chat, question, value).await;
    }
    // Today `refund` is gone, `free` would need an approval, and `asking` is another tool of that name.
    let log = seen.clone();
    let today = lab(&db, &model, move |setup, pool| {
        let setup = setup.tool(Free(pool.clone())).tool(Delete(pool));
        setup.tool(Asking(log.clone())).requires_approval(["free"])
    });
    let chat = today.chat(chat.id());
    let questions = park(&db, &chat).await;
    // It asks its next question; everything else is closed.
    assert_eq!(questions[0].request.prompt, "Why?");
    let now = results(&db, &chat).await;
    let declined = r#"{"error":"declined by user"}"#;
    let gone = r#"{"error":"there is no tool refund"}"#;
    assert_eq!(now, [r#""free""#, "{}", declined, gone, "Waiting", declined]);
    answer(&db, &chat, &questions[0], "so").await;
    finish(&chat).await;
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    assert_eq!(calls.iter().map(|call| call.attempts).collect::<Vec<_>>(), [1, 1, 0, 1, 3, 1]);
    assert_eq!(db.ledger().await, 2);
    model.assert_asked(2);
}

/// Asks a rule of the test's about its arguments.
struct Ruled(Pool, Arc<dyn Fn(i64) -> Approval + Send + Sync>);
impl Tool for Ruled {
    const NAME: &str = "ruled";
    const DESCRIPTION: &str = "Has a rule";
    type Args = Amount;
    type Output = i64;
    fn approval(&self, args: &Amount) -> Approval {
        (self.1)(args.amount)
    }
    async fn call(&self, ctx: ToolContext, args: Amount) -> ToolResult<i64> {
        note(&self.0, &ctx, "ruled").await?;
        Ok(args.amount)
    }
}

// A45, case CF5
async fn a_rule_decides_by_the_arguments_as_they_were_sent(db: TestDb) {
    let sent = [r#"{"amount":100}"#, r#"{"amount":101}"#, r#" { "amount" : -5, "more": 1 } "#, r#"{"amount":5"#, "{}"];
    let model = calls_then_done(sent.iter().fold(Turn::default(), |turn, sent| turn.call("w", "ruled", *sent)));
    let seen: Arc<Mutex<Vec<i64>>> = Arc::default();
    let log = seen.clone();
    let askback = lab(&db, &model, move |setup, pool| {
        let log = log.clone();
        let rule = move |amount| {
            log.lock().unwrap().push(amount);
            if amount > 100 { Approval::Required } else { Approval::Free }
        };
        setup.tool(Ruled(pool, Arc::new(rule)))
    });
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions.len(), 1);
    assert_eq!(questions[0].request.arguments, Some(json!({ "amount": 101 })));
    // The rule never saw a number that the model did not send.
    assert!(seen.lock().unwrap().iter().all(|amount| [100, 101, -5].contains(amount)), "{seen:?}");
    assert_eq!(db.ledger().await, 2);
    answer(&db, &chat, &questions[0], true).await;
    finish(&chat).await;
    let read = read(&model);
    assert_eq!(read.iter().map(|(_, result)| result.as_str()).take(3).collect::<Vec<_>>(), ["100", "101", "-5"]);
    assert!(read[3].1.contains("not a JSON object") && read[4].1.contains("missing field"), "{read:?}");
    assert_eq!(db.ledger().await, 3);
}

// A45
async fn a_rule_that_panics_means_that_approval_is_needed(db: TestDb) {
    let model = calls_then_done(Turn::default().call("w", "ruled", r#"{"amount":1}"#));
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let askback = lab(&db, &model, move |setup, pool| {
        let count = count.clone();
        let rule = move |_| match count.fetch_add(1, Ordering::SeqCst) {
            0 => panic!("no rule today"),
            _ => Approval::Free,
        };
        setup.tool(Ruled(pool, Arc::new(rule)))
    });
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    assert_eq!(questions[0].request.kind, Kind::Approval);
    // That the rule would say something else now changes nothing.
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    assert_eq!(db.ledger().await, 0);
    answer(&db, &chat, &questions[0], true).await;
    finish(&chat).await;
    assert_eq!(db.ledger().await, 1);
}

// Q5, B5, case CK5
async fn edited_arguments_run_and_the_model_is_told(db: TestDb) {
    let model = calls_then_done(Turn::default().call("w", "pay", r#"{"amount": 500}"#));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Pay(pool)));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    let edited = chat.approve_edited(&db.pool, &questions[0].id, json!({ "amount": 250 }), by()).await.unwrap();
    assert_eq!(edited, Settled::Recorded);
    finish(&chat).await;
    assert_eq!(db.count("select count(*) from ledger where what = 'pay 250'").await, 1);
    assert_eq!(db.ledger().await, 1);
    let result: Value = serde_json::from_str(&read(&model)[0].1).unwrap();
    assert_eq!(
        result,
        json!({
            "result": 250, "note": "a person changed the arguments before the tool ran",
            "arguments": { "amount": 250 }, "requested_arguments": { "amount": 500 },
        })
    );
    // The call stands as the model made it, and the decision says what was put in its place.
    let call = &chat.transcript(&db.pool).await.unwrap().calls[0];
    assert_eq!(call.arguments.as_deref(), Some(r#"{"amount": 500}"#));
    assert_eq!(chat.decisions(&db.pool).await.unwrap()[0].value, Some(json!({ "arguments": { "amount": 250 } })));
    let requests = model.requests();
    let Some(Entry::Turn { calls, .. }) = requests[1].history.last() else { panic!() };
    assert_eq!((calls[0].arguments.as_str(), calls[0].is_error), (r#"{"amount": 500}"#, false));
}

// B5, Q6, case CF3, case CE5
async fn an_edit_changes_arguments_and_nothing_else(db: TestDb) {
    let turn = Turn::default().call("1", "pay", r#"{"amount":500}"#).call("2", "pay", r#"{"amount":600}"#);
    let model = calls_then_done(turn.call("3", "refund", "{}"));
    let askback = lab(&db, &model, |setup, pool| {
        setup.tool(Pay(pool.clone())).tool(Delete(pool.clone())).tool(Refund(pool)).requires_approval(["delete"])
    });
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    for wrong in [json!([]), json!("delete"), json!(null), json!(true), json!(1)] {
        let error = chat.approve_edited(&db.pool, &questions[0].id, wrong, by()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    // What is no approval cannot be approved, edited or not; an approval takes nothing but yes and no.
    for error in [
        chat.approve(&db.pool, &questions[2].id, by()).await.unwrap_err(),
        chat.approve_edited(&db.pool, &questions[2].id, json!({}), by()).await.unwrap_err(),
        chat.answer(&db.pool, &questions[0].id, json!({ "arguments": { "amount": 1 } }), by()).await.unwrap_err(),
        chat.answer(&db.pool, &questions[0].id, "yes", by()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(open(&db, &chat).await, questions);
    // Names are only arguments, and must fit the tool as the model's must.
    let sneaky = json!({ "name": "delete", "tool": "delete", "amount": 7 });
    chat.approve_edited(&db.pool, &questions[0].id, sneaky, by()).await.unwrap();
    chat.approve_edited(&db.pool, &questions[1].id, json!({ "path": "/" }), by()).await.unwrap();
    answer(&db, &chat, &questions[2], true).await;
    finish(&chat).await;
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["pay", "pay", "refund"]);
    assert_eq!(db.count("select count(*) from ledger where what = 'pay 7'").await, 1);
    assert_eq!(db.ledger().await, 2);
    assert_eq!(calls[1].result_kind, Some(ResultKind::Error));
    let told = calls[1].result.as_deref().unwrap();
    assert!(told.contains("do not fit the tool pay") && told.contains("amount"), "{told}");
}

// Q5, B5
async fn edited_arguments_are_never_dropped_silently(db: TestDb) {
    // Deeper than JSON text is read back: the tool must not run with the model's arguments instead.
    let mut deep = json!(1);
    for _ in 0..150 {
        deep = json!([deep]);
    }
    let model = calls_then_done(Turn::default().call("w", "delete", r#"{"path":"/everything"}"#));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Delete(pool)).requires_approval(["delete"]));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    match chat.approve_edited(&db.pool, &questions[0].id, json!({ "path": deep }), by()).await {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert_eq!(open(&db, &chat).await, questions);
            chat.decline(&db.pool, &questions[0].id, None, by()).await.unwrap();
        }
        Ok(settled) => assert_eq!(settled, Settled::Recorded),
    }
    finish(&chat).await;
    assert_eq!(db.ledger().await, 0);
    assert!(results(&db, &chat).await[0].starts_with(r#"{"error":"#));
}

// B5, case CB16
async fn edited_arguments_have_a_limit(db: TestDb) {
    let model = calls_then_done(calls([("w", "delete")]));
    let askback = lab(&db, &model, |setup, pool| setup.tool(Delete(pool)).requires_approval(["delete"]));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    let long = json!({ "a": "x".repeat(8 * 1024 * 1024) });
    let error = chat.approve_edited(&db.pool, &questions[0].id, long, by()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(open(&db, &chat).await, questions);
    answer(&db, &chat, &questions[0], true).await;
    finish(&chat).await;
}

// A39, Q5, case CC11, case CK5
async fn four_decisions_at_once_give_four_results(db: TestDb) {
    let turn = Turn::default()
        .call("1", "free", "{}")
        .call("2", "pay", r#"{"amount":101}"#)
        .call("3", "pay", r#"{"amount":102}"#)
        .call("4", "pay", r#"{"amount":103}"#);
    let model = calls_then_done(turn);
    let askback = lab(&db, &model, |setup, pool| setup.tool(Pay(pool.clone())).tool(Free(pool)));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    // In another order than the calls'.
    chat.approve_edited(&db.pool, &questions[2].id, json!({ "amount": 3 }), by()).await.unwrap();
    chat.decline(&db.pool, &questions[1].id, Some("tell me first"), by()).await.unwrap();
    chat.approve(&db.pool, &questions[0].id, by()).await.unwrap();
    finish(&chat).await;
    let read: Vec<_> = read(&model).into_iter().map(|(_, result)| result).collect();
    assert_eq!(read[..3], [r#""free""#, "101", r#"{"error":"declined by user","note":"tell me first"}"#]);
    let edited: Value = serde_json::from_str(&read[3]).unwrap();
    assert_eq!((&edited["result"], &edited["requested_arguments"]), (&json!(3), &json!({ "amount": 103 })));
    assert_eq!(db.ledger().await, 3);
}

// B5, case CF8
async fn equal_arguments_have_an_equal_digest(db: TestDb) {
    let same = [
        r#"{"a":"é","b":[1,{"c":2,"d":null}]}"#,
        r#" { "b" : [ 1 , {"d":null, "c":2} ],  "a" : "\u00e9" } "#,
        r#"{"b":[1,{"\u0063":2,"d":null}],"a":"é"}"#,
    ];
    let other = [r#"{"a":"é","b":["1",{"c":2,"d":null}]}"#, r#"{"a":"e","b":[1,{"c":2,"d":null}]}"#, r#"{"a":"é"}"#];
    let turn = same.iter().chain(&other).fold(Turn::default(), |turn, sent| turn.call("w", "delete", *sent));
    let model = calls_then_done(turn.call("w", "free", same[0]));
    let askback = lab(&db, &model, |setup, pool| {
        setup.tool(Delete(pool.clone())).tool(Free(pool)).requires_approval(["delete", "free"])
    });
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    let digests: Vec<_> = questions.iter().map(|question| question.digest.as_str()).collect();
    assert_eq!((digests[0], digests[0]), (digests[1], digests[2]));
    let different: std::collections::HashSet<_> = digests[2..].iter().collect();
    assert_eq!(different.len(), 5, "{digests:?}");
    // What the page showed can be used, whatever the spelling.
    let by = by().seen(digests[0]);
    assert_eq!(chat.approve(&db.pool, &questions[1].id, by).await.unwrap(), Settled::Recorded);
    let settled = chat.approve(&db.pool, &questions[4].id, By::person("ann").seen(digests[0])).await.unwrap();
    assert!(matches!(settled, Settled::Changed(_)), "{settled:?}");
}

// A21, A47, Q14
async fn the_limit_of_tool_turns_ends_a_generation_and_not_the_chat(db: TestDb) {
    let model = Scripted::rule(|request| match request.history.last() {
        Some(Entry::User { text }) if text == "only talk" => Turn::text("done"),
        _ => Turn::default().call("1", "free", "{}").call("2", "delete", "{}").call("3", "free", "not JSON"),
    });
    for limit in [0, 1, 3] {
        let before = db.ledger().await;
        let asked = model.requests().len();
        let askback = lab(&db, &model, move |setup, pool| {
            setup.tool(Free(pool.clone())).tool(Delete(pool)).max_tool_turns(limit)
        });
        let chat = db.chat(&askback).await;
        assert_eq!(chat.complete().await.unwrap(), Outcome::Capped);
        assert_eq!(db.ledger().await - before, 2 * i64::from(limit));
        let calls = chat.transcript(&db.pool).await.unwrap().calls;
        assert_eq!(calls.len(), 3 * (limit as usize + 1));
        for call in &calls[calls.len() - 3..] {
            assert_eq!(call.result.as_deref(), Some(r#"{"error":"limit of tool turns reached"}"#));
            assert_eq!((call.attempts, call.result_kind), (0, Some(ResultKind::Error)));
        }
        model.assert_asked(asked + limit as usize + 1);
        // Driving it again asks nobody; the chat takes the next message, and every call in the request has its result.
        assert_eq!(chat.complete().await.unwrap(), Outcome::Capped);
        model.assert_asked(asked + limit as usize + 1);
        assert_eq!(chat.say_and_complete("only talk").await.unwrap(), Outcome::Done);
        let requests = model.requests();
        let history = &requests.last().unwrap().history;
        assert_eq!(history.len(), limit as usize + 3);
        // The next generation has turns of its own.
        let before = db.ledger().await;
        assert_eq!(chat.say_and_complete("again").await.unwrap(), Outcome::Capped);
        assert_eq!(db.ledger().await - before, 2 * i64::from(limit));
    }
}

// A47, A21
async fn pauses_do_not_count_as_turns(db: TestDb) {
    let model = Scripted::rule(|_| calls([("1", "asking"), ("2", "delete")]));
    let askback = lab(&db, &model, |setup, pool| {
        setup.tool(Asking(Arc::default())).tool(Delete(pool)).requires_approval(["delete"]).max_tool_turns(2)
    });
    let chat = db.chat(&askback).await;
    for _ in 0..2 {
        // Each turn pauses three times.
        let questions = park(&db, &chat).await;
        answer(&db, &chat, &questions[0], true).await;
        let questions = park(&db, &chat).await;
        assert_eq!(questions.len(), 2);
        answer(&db, &chat, &questions[0], "so").await;
        let questions = park(&db, &chat).await;
        assert_eq!(questions.len(), 1);
        answer(&db, &chat, &questions[0], true).await;
    }
    // The turn beyond neither runs nor pauses.
    assert_eq!(chat.complete().await.unwrap(), Outcome::Capped);
    assert_eq!((open(&db, &chat).await, db.ledger().await), (vec![], 2));
    model.assert_asked(3);
    assert_eq!(chat.row(&db.pool).await.unwrap().state, ChatState::Idle);
}

/// Which choice each request carried.
fn choices(model: &Scripted) -> Vec<Option<ToolChoice>> {
    model.requests().into_iter().map(|request| request.tool_choice).collect()
}

// A46
async fn a_forced_tool_stays_forced_until_it_is_used(db: TestDb) {
    let named = || ToolChoice::Tool("raises".into());
    let cases = [
        (ToolChoice::Required, vec!["free"], vec![Some(ToolChoice::Required), None]),
        // Another tool does not use up a named one; a call that fails does.
        (
            named(),
            vec!["free", "free", "raises", "free"],
            vec![Some(named()), Some(named()), Some(named()), None, None],
        ),
        // A tool that is not there was used all the same.
        (ToolChoice::Required, vec!["unheard_of"], vec![Some(ToolChoice::Required), None]),
        (ToolChoice::Auto, vec!["free"], vec![Some(ToolChoice::Auto); 2]),
        (ToolChoice::None, vec![], vec![Some(ToolChoice::None)]),
    ];
    for (choice, turns, expected) in cases {
        let script: Vec<_> = turns.iter().map(|tool| calls([("w", *tool)])).collect();
        let model = Scripted::new(script);
        let setup_choice = choice.clone();
        let askback =
            lab(&db, &model, move |setup, pool| setup.tool(Free(pool)).tool(Raises).tool_choice(setup_choice.clone()));
        model.push(Turn::text("done"));
        let chat = db.chat(&askback).await;
        finish(&chat).await;
        assert_eq!(choices(&model), expected, "{choice:?}");
        // The next message is forced again.
        model.push(Turn::text("done"));
        chat.say_and_complete("again").await.unwrap();
        assert_eq!(choices(&model).last(), Some(&expected[0]));
    }
}

// A46
async fn a_forced_tool_is_used_up_over_a_pause(db: TestDb) {
    for (choice, approve) in [("refund", true), ("delete", true), ("delete", false)] {
        let script = [calls([("1", "refund")]), calls([("2", "delete")]), Turn::text("done")];
        let model = Scripted::new(script);
        let askback = lab(&db, &model, move |setup, pool| {
            let setup = setup.tool(Refund(pool.clone())).tool(Delete(pool)).requires_approval(["delete"]);
            setup.tool_choice(ToolChoice::Tool(choice.into()))
        });
        let chat = db.chat(&askback).await;
        for _ in 0..2 {
            let questions = park(&db, &chat).await;
            answer(&db, &chat, &questions[0], approve).await;
        }
        finish(&chat).await;
        let forced = Some(ToolChoice::Tool(choice.into()));
        let expected = if choice == "refund" { vec![forced, None, None] } else { vec![forced.clone(), forced, None] };
        assert_eq!(choices(&model), expected);
    }
}

// Q16, A15, case CA3
async fn a_siblings_failure_takes_no_result_away(db: TestDb) {
    let turn = [("1", "free"), ("2", "raises"), ("3", "panics"), ("4", "refund"), ("5", "free")];
    let model = calls_then_done(calls(turn));
    let askback =
        lab(&db, &model, |setup, pool| setup.tool(Free(pool.clone())).tool(Refund(pool)).tool(Raises).tool(Panics));
    let chat = db.chat(&askback).await;
    let questions = park(&db, &chat).await;
    let parked = results(&db, &chat).await;
    assert_eq!(
        parked,
        [
            r#""free""#,
            r#"{"error":"the bank is closed"}"#,
            r#"{"error":"the tool panics failed"}"#,
            "Waiting",
            r#""free""#
        ]
    );
    answer(&db, &chat, &questions[0], true).await;
    finish(&chat).await;
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    assert_eq!(db.ledger().await, 3);
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    assert_eq!(calls.iter().map(|call| call.attempts).collect::<Vec<_>>(), [1, 1, 1, 2, 1]);
    assert!(calls.iter().all(|call| call.state == CallState::Done));
    let sent: Vec<_> = read(&model).into_iter().map(|(_, result)| result).collect();
    assert_eq!(sent[..3], parked[..3]);
    model.assert_asked(2);
    // What a panic says may be anything; it stands nowhere.
    assert!(!format!("{:?} {calls:?}", model.requests()).contains("secret detail"));
}

// Q16, case CA3
async fn an_agent_may_stop_on_the_error_of_a_tool(db: TestDb) {
    let model = calls_then_done(calls([("1", "free"), ("2", "raises"), ("3", "panics"), ("4", "refund")]));
    let askback = lab(&db, &model, |setup, pool| {
        setup.tool(Free(pool.clone())).tool(Refund(pool)).tool(Raises).tool(Panics).stop_on_tool_error()
    });
    let chat = db.chat(&askback).await;
    let error = chat.complete().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Tool, false));
    assert!(error.to_string().contains("failed") && error.to_string().contains(&chat.id().to_string()), "{error}");
    // What was done stays, and what is asked stays open.
    let now = results(&db, &chat).await;
    assert_eq!(now[0], r#""free""#);
    assert_eq!(now[1..3], [r#"{"error":"the bank is closed"}"#, r#"{"error":"the tool panics failed"}"#]);
    let row = chat.row(&db.pool).await.unwrap();
    assert_eq!(row.state, ChatState::Failed);
    assert!(row.last_error.unwrap().contains("the tool"));
    let questions = open(&db, &chat).await;
    assert_eq!(questions.len(), 1);
    answer(&db, &chat, &questions[0], true).await;
    // An explicit complete goes on, and the error is told once.
    finish(&chat).await;
    assert_eq!(db.ledger().await, 2);
    model.assert_asked(2);
    assert_eq!(read(&model)[1].1, r#"{"error":"the bank is closed"}"#);
    assert_eq!(chat.row(&db.pool).await.unwrap().last_error, None);
}
