//! The model behind the desk: a real one if a key is set, else a stand-in of a few rules.
//!
//! The stand-in understands "refund", "exchange" and order numbers, and nothing
//! else. It is here so that the desk runs without a key and does the same
//! thing each time. Like a real model it knows only what the request holds.

use std::env;
use std::time::Duration;

use askback::Model;
use askback::provider::anthropic::Anthropic;
use askback::provider::openai_chat::OpenAiChat;
use askback::provider::{CallResult, Entry, Provider, ProviderError, Request, Turn};
use serde_json::{Value, json};

use crate::shop::dollars;

/// How long the stand-in thinks.
const THINKS: Duration = Duration::from_millis(400);
/// What it says when it understands nothing.
const HELP: &str = "I can refund an order or exchange its size. Tell me which, and the order's number (like A-1001).";

/// The model that the environment names: `ANTHROPIC_API_KEY` (`ANTHROPIC_MODEL`) or
/// `OPENAI_API_KEY` (`OPENAI_BASE_URL`, `OPENAI_MODEL`); without a key the rules below.
pub(crate) fn from_env() -> Model {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
    if let Some(key) = set("ANTHROPIC_API_KEY") {
        let model = set("ANTHROPIC_MODEL").unwrap_or_else(|| "claude-sonnet-4-5".into());
        return Model::new(Anthropic::new(key, model));
    }
    if let Some(key) = set("OPENAI_API_KEY") {
        let mut wire = OpenAiChat::new(key, set("OPENAI_MODEL").unwrap_or_else(|| "gpt-4.1-mini".into()));
        if let Some(url) = set("OPENAI_BASE_URL") {
            // Whoever answers there is not OpenAI.
            wire = wire.base_url(url).service("openai-compatible");
        }
        return Model::new(wire);
    }
    Model::new(Rules)
}

/// The stand-in.
struct Rules;

impl Provider for Rules {
    fn service(&self) -> &str {
        "desk"
    }

    fn api(&self) -> &str {
        "desk_rules"
    }

    fn model(&self) -> &str {
        "a stand-in of a few rules, no key set"
    }

    async fn generate(&self, request: &Request) -> Result<Turn, ProviderError> {
        tokio::time::sleep(THINKS).await;
        Ok(reply(&request.history))
    }
}

/// What a customer wants done with an order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wish {
    /// Money back; `None` is all of it.
    Refund(Option<i64>),
    /// Another size.
    Exchange,
}

/// The next turn: look the orders up, then act on all of them at once, then say what came of it.
fn reply(history: &[Entry]) -> Turn {
    let last_said = history.iter().rposition(|entry| matches!(entry, Entry::User { .. }));
    let (before, after) = history.split_at(last_said.map_or(0, |at| at + 1));
    let texts: Vec<&str> = before.iter().filter_map(said).collect();
    let mut results = after.iter().filter_map(|entry| match entry {
        Entry::Turn { calls, .. } if !calls.is_empty() => Some(calls.as_slice()),
        _ => None,
    });
    match (results.next(), results.next()) {
        (None, _) => look_up(&texts),
        (Some(found), None) => act(&wishes(&texts), found),
        (Some(_), Some(done)) => Turn::text(done.iter().map(outcome).collect::<Vec<_>>().join("\n")),
    }
}

fn said(entry: &Entry) -> Option<&str> {
    match entry {
        Entry::User { text } => Some(text),
        _ => None,
    }
}

/// The first turn: a call for each order that is named, or a question back.
fn look_up(texts: &[&str]) -> Turn {
    let wishes = wishes(texts);
    if wishes.is_empty() {
        return Turn::text(match intents(texts.last().copied().unwrap_or_default()).as_slice() {
            [] => HELP,
            _ => "Gladly. Which order is it? Its number stands on the parcel, like A-1001.",
        });
    }
    let mut orders: Vec<&str> = Vec::new();
    for (order, _) in &wishes {
        if !orders.contains(&order.as_str()) {
            orders.push(order);
        }
    }
    orders.iter().enumerate().fold(Turn::default(), |turn, (n, order)| {
        turn.call(format!("look_{n}"), "look_up_order", json!({ "order": order }).to_string())
    })
}

/// The second turn: every wish at once, for the orders that were found.
fn act(wishes: &[(String, Wish)], found: &[CallResult]) -> Turn {
    let mut turn = Turn::default();
    for (n, (order, wish)) in wishes.iter().enumerate() {
        let same = |call: &&CallResult| !call.is_error && text_of(&parsed(&call.result), "order") == *order;
        let Some(call) = found.iter().find(same) else { continue };
        let known = parsed(&call.result);
        let left = cents_of(&known, "paid_cents") - cents_of(&known, "refunded_cents");
        turn = match wish {
            Wish::Refund(None) if left <= 0 => continue,
            Wish::Refund(cents) => {
                let arguments =
                    json!({ "order": order, "cents": cents.unwrap_or(left), "reason": "the customer asked" });
                turn.call(format!("act_{n}"), "refund", arguments.to_string())
            }
            Wish::Exchange => turn.call(format!("act_{n}"), "exchange", json!({ "order": order }).to_string()),
        };
    }
    if !turn.calls.is_empty() {
        return turn;
    }
    let told = found.iter().map(|call| match call.is_error {
        true => outcome(call),
        false => format!("Order {} was refunded in full already.", text_of(&parsed(&call.result), "order")),
    });
    Turn::text(told.collect::<Vec<_>>().join("\n"))
}

/// One sentence on what came of a call.
fn outcome(call: &CallResult) -> String {
    let (result, arguments) = (parsed(&call.result), parsed(&call.arguments));
    let (order, item) = (text_of(&arguments, "order"), text_of(&result, "item").to_lowercase());
    let what = match call.name.as_str() {
        "refund" => format!("The refund for order {order}"),
        "exchange" => format!("The exchange of order {order}"),
        _ => format!("Looking up order {order}"),
    };
    if call.is_error {
        return match (text_of(&result, "error").as_str(), text_of(&result, "note").as_str()) {
            ("declined by user", "") => format!("{what} was declined by a colleague, without a note. I am sorry."),
            ("declined by user", note) => format!("{what} was declined by a colleague, who says: “{note}”."),
            (error, "") => format!("{what} did not work: {error}."),
            (error, note) => format!("{what} did not work: {error}. A colleague says: “{note}”."),
        };
    }
    match call.name.as_str() {
        "refund" if result["booked_by_an_earlier_run"] == true => format!(
            "{} for the {item} (order {order}) is on its way. It was booked before the interruption, and not again.",
            dollars(cents_of(&result, "refunded_cents"))
        ),
        "refund" => {
            format!("{} for the {item} (order {order}) is on its way.", dollars(cents_of(&result, "refunded_cents")))
        }
        "exchange" => format!(
            "The {item} (order {order}) will arrive in size {}, with a note: “{}”.",
            text_of(&result, "size"),
            text_of(&result, "parcel_note")
        ),
        _ => format!("{what} worked."),
    }
}

/// What the last text asks for; an order or a wish that it leaves out is taken from the texts before.
fn wishes(texts: &[&str]) -> Vec<(String, Wish)> {
    let Some((last, earlier)) = texts.split_last() else { return Vec::new() };
    let mut wishes = Vec::new();
    let mut clauses: Vec<&str> = last.split(['.', ',', ';', '\n']).flat_map(|part| part.split(" and ")).collect();
    // A full stop is no end of a sentence in "12.50".
    if amount(last).is_some() {
        clauses = last.split(';').flat_map(|part| part.split(" and ")).collect();
    }
    let named = orders(last);
    for clause in clauses {
        for intent in intents(clause) {
            let own = orders(clause);
            for order in if own.is_empty() { named.clone() } else { own } {
                let wish = match intent {
                    Wish::Refund(_) => Wish::Refund(amount(clause)),
                    Wish::Exchange => Wish::Exchange,
                };
                if !wishes.contains(&(order.clone(), wish)) {
                    wishes.push((order, wish));
                }
            }
        }
    }
    if wishes.is_empty() && !named.is_empty() {
        let before = earlier.iter().rev().map(|text| intents(text)).find(|found| !found.is_empty()).unwrap_or_default();
        wishes.extend(named.iter().flat_map(|order| before.iter().map(|wish| (order.clone(), *wish))));
    }
    wishes
}

/// The wishes that a text speaks of.
fn intents(text: &str) -> Vec<Wish> {
    let text = text.to_lowercase();
    let any = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let mut found = Vec::new();
    if any(&["refund", "money back", "both"]) {
        found.push(Wish::Refund(amount(&text)));
    }
    if any(&["exchange", "swap", "size", "both"]) {
        found.push(Wish::Exchange);
    }
    found
}

/// The order numbers in a text, say `A-1001`.
fn orders(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let number = |word: &&str| {
        word.split_once('-').is_some_and(|(letter, digits)| {
            letter.len() == 1 && !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
        })
    };
    words.filter(number).map(str::to_uppercase).collect()
}

/// The first amount in a text, say `12.50`, in cents.
fn amount(text: &str) -> Option<i64> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let (whole, cents) = word.trim_end_matches('.').split_once('.')?;
        let cents = if cents.len() == 2 { cents.parse::<i64>().ok()? } else { return None };
        Some(whole.parse::<i64>().ok()?.checked_mul(100)? + cents)
    })
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn text_of(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn cents_of(value: &Value, key: &str) -> i64 {
    value[key].as_i64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_apart_into_wishes() {
        let wish = |order: &str, wish| (order.to_owned(), wish);
        assert_eq!(wishes(&["I want a refund for order a-1001."]), [wish("A-1001", Wish::Refund(None))]);
        assert_eq!(wishes(&["Refund $12.50 of A-1003"]), [wish("A-1003", Wish::Refund(Some(1250)))]);
        assert_eq!(
            wishes(&["Refund A-1001 and exchange A-1002"]),
            [wish("A-1001", Wish::Refund(None)), wish("A-1002", Wish::Exchange)]
        );
        assert_eq!(
            wishes(&["Both please, for A-1002"]),
            [wish("A-1002", Wish::Refund(None)), wish("A-1002", Wish::Exchange)]
        );
        assert_eq!(wishes(&["I need another size", "it is A-1004"]), [wish("A-1004", Wish::Exchange)]);
        assert!(wishes(&["Hello"]).is_empty());
    }
}
