//! The scripted model does what its script says, and tells what it was sent.

use std::sync::Arc;
use std::time::Duration;

use askback::provider::scripted::{Scripted, Step};
use askback::provider::{CallResult, Entry, Model, Provider, ProviderError, Request, Turn};
use serde_json::json;
use tokio::sync::Barrier;

fn asked(text: &str) -> Request {
    let mut request = Request::default();
    request.history.push(Entry::User { text: text.into() });
    request
}

// B17
#[tokio::test]
async fn a_script_is_read_in_order_and_shared_by_clones() {
    let model = Scripted::new([
        Step::new("one"),
        ProviderError::new("busy").retryable(None).into(),
        Turn::text("three").into(),
    ]);
    let other = Model::new(model.clone());
    assert_eq!(model.generate(&asked("a")).await.unwrap().text, "one");
    assert!(other.generate(&asked("b")).await.unwrap_err().is_retryable());
    assert_eq!(other.generate(&asked("c")).await.unwrap().text, "three");
    model.assert_finished();
    model.assert_asked(3);
    assert_eq!(model.requests()[1], asked("b"));
}

#[tokio::test]
async fn a_script_that_has_run_out_says_so() {
    let model = Scripted::new(["one"]);
    model.generate(&asked("a")).await.unwrap();
    let error = model.generate(&asked("b")).await.unwrap_err();
    assert_eq!(error.to_string(), "the script has run out: request 2 found no step left");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_rule_decides_from_the_request_and_never_runs_out() {
    let model = Scripted::rule(|request| Turn::text(format!("{} entries", request.history.len())));
    for _ in 0..3 {
        assert_eq!(model.generate(&asked("a")).await.unwrap().text, "1 entries");
    }
}

#[tokio::test]
async fn a_step_waits_for_its_delay() {
    let model = Scripted::new([Step::new("late").after(Duration::from_millis(30))]);
    let before = std::time::Instant::now();
    model.generate(&asked("a")).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn a_step_waits_at_a_barrier_that_the_test_holds() {
    let barrier = Arc::new(Barrier::new(2));
    let held = barrier.clone();
    let model = Scripted::new([Step::new("after").when(move || async move { held.wait().await })]);
    let running = tokio::spawn({
        let model = model.clone();
        async move { model.generate(&asked("a")).await.unwrap().text }
    });
    barrier.wait().await;
    assert_eq!(running.await.unwrap(), "after");
}

#[tokio::test]
async fn the_results_that_the_model_read_can_be_asserted() {
    let model = Scripted::new(["ok"]);
    let mut request = asked("a");
    request.history.push(Entry::Turn {
        text: String::new(),
        items: None,
        service: None,
        api: None,
        calls: vec![
            CallResult::new("1", "refund", "{}", r#"{"refunded":true}"#),
            CallResult::new("2", "other", "{}", "1"),
            CallResult::new("3", "refund", "{}", "\"no\""),
        ],
    });
    model.generate(&request).await.unwrap();
    model.assert_results("refund", [json!({"refunded": true}), json!("no")]);
    model.assert_results("unknown", []);
}
