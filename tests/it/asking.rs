//! Tools that ask: recorded, answered, run again.

use askback::{By, ErrorKind, Kind, Outcome, Settled, Setup};
use serde_json::json;

use crate::support::tools::{Exchange, Free, Pay, Refund};
use crate::support::{TestDb, calls, calls_then_done};
use crate::tests;

tests![a_tool_asks_a_person_answers_and_the_call_is_carried_on,];

// A1, A3, A11, A24, Q1, Q2, Q3, B3
async fn a_tool_asks_a_person_answers_and_the_call_is_carried_on(db: TestDb) {
    let model = calls_then_done(calls([("w1", "refund"), ("w2", "free")]));
    let (tools, scripted) = (db.pool.clone(), model.clone());
    let askback = db.lab(move || Setup::new(scripted.clone()).tool(Refund(tools.clone())).tool(Free(tools.clone())));
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
    let _ = (ErrorKind::Busy, Exchange(db.pool.clone()), Pay(db.pool.clone()));
}
