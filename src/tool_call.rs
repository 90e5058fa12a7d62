//! A tool call, as it stands on its row: with its questions, their decisions and its result.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::decision::{Decision, Verb, Who};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChatId, MessageId, QuestionId, ToolCallId};
use crate::question::Question;
use crate::request::{InputRequest, Kind};

/// The key of the question that asks what to do about an interrupted run.
pub(crate) const IN_DOUBT: &str = "askback:interrupted";

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallState {
    /// Its tool can run now, or its decline can be recorded.
    Ready,
    /// It waits for a person.
    Waiting,
    /// Its tool was started.
    Running,
    /// It has its result.
    Done,
}

impl CallState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            CallState::Ready => "ready",
            CallState::Waiting => "waiting",
            CallState::Running => "running",
            CallState::Done => "done",
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResultKind {
    /// Its tool returned.
    Value,
    /// A person declined it.
    Declined,
    /// It failed, or could not run.
    Error,
    /// It was interrupted and is not tried again.
    Unfinished,
    /// The generation was cancelled.
    Cancelled,
}

impl ResultKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ResultKind::Value => "value",
            ResultKind::Declined => "declined",
            ResultKind::Error => "error",
            ResultKind::Unfinished => "unfinished",
            ResultKind::Cancelled => "cancelled",
        }
    }
}

/// The gate of a call, decided once, when its turn was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Gate {
    /// The call waits for an approval.
    Pending,
    /// A person approved it.
    Approved,
    /// An approval was remembered for it.
    Remembered,
    /// A person declined it.
    Declined,
}

impl Gate {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Gate::Pending => "pending",
            Gate::Approved => "approved",
            Gate::Remembered => "remembered",
            Gate::Declined => "declined",
        }
    }
}

/// A call that the model made.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// Its id: ours, unique.
    pub id: ToolCallId,
    /// The turn that made it.
    pub message: MessageId,
    /// The position of that turn in the chat.
    pub message_position: i64,
    /// Its place in the turn, from 0.
    pub position: i64,
    /// The provider's id, unique nowhere.
    pub wire_id: String,
    /// The tool, as the model called it.
    pub name: String,
    /// The JSON object the model sent, as text; `None` when it sent none.
    pub arguments: Option<String>,
    /// What it sent instead of a JSON object.
    pub raw_arguments: Option<String>,
    /// The gate, if there is one.
    pub gate: Option<Gate>,
    /// The questions in the order they were asked, decided ones included.
    pub(crate) questions: Vec<Asked>,
    /// Where it stands.
    pub state: CallState,
    /// What the model reads, JSON text.
    pub result: Option<String>,
    /// How it ended; `None` while it is open.
    pub result_kind: Option<ResultKind>,
    /// Which run may write the result.
    pub(crate) run_token: Option<Uuid>,
    /// How often its tool was started.
    pub attempts: i64,
    /// When the row last changed.
    pub updated_at: DateTime<Utc>,
}

impl ToolCall {
    /// Whether it has no result yet.
    pub fn is_open(&self) -> bool {
        self.result_kind.is_none()
    }

    /// Every question of the call, decided ones included.
    pub(crate) fn questions(&self, chat: ChatId) -> Result<Vec<Question>> {
        self.questions.iter().map(|asked| asked.question(chat, self)).collect()
    }

    /// The first decline of a question of this call: the tool must not run (again).
    pub(crate) fn decline(&self) -> Option<&Recorded> {
        self.questions.iter().filter_map(|q| q.decision.as_ref()).find(|d| d.decision == Verb::Decline)
    }

    /// What the tool runs with: the model's arguments, or what a person put in their place on approval.
    pub(crate) fn effective_arguments(&self) -> Option<String> {
        self.edited_arguments().or_else(|| self.arguments.clone())
    }

    /// The arguments a person put in place of the model's when they approved the call.
    pub(crate) fn edited_arguments(&self) -> Option<String> {
        let approval = self.questions.iter().rev().find(|q| q.key.is_empty())?;
        let value = approval.decision.as_ref().filter(|d| d.decision == Verb::Accept)?.value.as_deref()?;
        // As text: what cannot be read must fail in the tool's place, not make it run with what was sent.
        let edited: Edited<'_> = serde_json::from_str(value).ok()?;
        Some(edited.arguments.get().to_owned())
    }

    /// The decisions on its questions, in the order the questions were asked.
    pub fn decisions(&self) -> Vec<Decision> {
        let decided = self.questions.iter().filter_map(|asked| {
            let id = QuestionId::new(self.id, asked.key.as_str());
            asked.decision.as_ref()?.decision(&id, &asked.digest).ok()
        });
        decided.collect()
    }

    /// A new question for this call, in the next round of its key.
    pub(crate) fn ask(&self, key: &str, request: &InputRequest, now: DateTime<Utc>) -> Result<Asked> {
        let round = u32::try_from(self.questions.iter().filter(|q| q.key == key).count()).unwrap_or(u32::MAX);
        Asked::new(key, round, request, &self.name, self.effective_arguments().as_deref(), now)
    }
}

/// An approval that changed the arguments.
#[derive(Deserialize)]
struct Edited<'a> {
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// A question as it stands in the call's `questions`: a JSON object whose texts
/// from outside are JSON text within a string, so that `\u0000` and the order
/// of keys survive `jsonb`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) key: String,
    pub(crate) round: u32,
    pub(crate) digest: String,
    /// When it was asked, in microseconds since 1970.
    pub(crate) asked_us: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) may: Vec<String>,
    /// Until when it can be answered, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_us: Option<i64>,
    /// The default's JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<String>,
    /// The request's JSON text, without what stands on the call's row anyway.
    pub(crate) ask: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<Recorded>,
}

/// The decision on a question of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) decision: Verb,
    /// The answer's JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    pub(crate) by: String,
    /// When, in microseconds since 1970.
    pub(crate) at_us: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) via: Option<String>,
}

impl Asked {
    pub(crate) fn new(
        key: &str,
        round: u32,
        request: &InputRequest,
        tool: &str,
        arguments: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Self> {
        let mut bare = request.clone();
        (bare.tool_call_id, bare.tool_name, bare.arguments) = (None, None, None);
        let (may, expires_in, default) = (std::mem::take(&mut bare.may), bare.expires_in.take(), bare.default.take());
        let arguments = arguments.and_then(|text| serde_json::from_str::<Value>(text).ok());
        Ok(Self {
            key: key.into(),
            round,
            digest: bare.digest(tool, arguments.as_ref(), key, round),
            asked_us: now.timestamp_micros(),
            may,
            expires_us: expires_in.map(|s| now.timestamp_micros().saturating_add((s as i64).saturating_mul(1_000_000))),
            default: default.map(|value| value.to_string()),
            ask: serde_json::to_string(&bare).map_err(|e| Error::invalid("the question is no JSON").caused_by(e))?,
            decision: None,
        })
    }

    /// The request with everything that was taken off it for the row.
    pub(crate) fn request(&self) -> Result<InputRequest> {
        let mut request: InputRequest = serde_json::from_str(&self.ask)
            .map_err(|e| Error::new(ErrorKind::Database, "a question's row does not hold a question").caused_by(e))?;
        request.may.clone_from(&self.may);
        request.expires_in =
            self.expires_us.map(|until| u64::try_from((until - self.asked_us) / 1_000_000).unwrap_or_default());
        request.default = self.default.as_deref().and_then(|text| serde_json::from_str(text).ok());
        Ok(request)
    }

    pub(crate) fn question(&self, chat: ChatId, call: &ToolCall) -> Result<Question> {
        let mut request = self.request()?;
        request.tool_call_id = Some(call.id.to_string());
        request.tool_name = Some(call.name.clone());
        // The gate shows what the model sent; whatever is asked later, what the tool runs with.
        let runs_with = if self.key.is_empty() { call.arguments.clone() } else { call.effective_arguments() };
        request.arguments = match runs_with {
            Some(text) => serde_json::from_str(&text).ok(),
            None => call.raw_arguments.clone().map(Value::String),
        };
        let id = QuestionId::new(call.id, self.key.as_str());
        Ok(Question {
            chat,
            message: call.message,
            request,
            digest: self.digest.clone(),
            round: self.round,
            asked_at: micros(self.asked_us)?,
            expires_at: self.expires_us.map(micros).transpose()?,
            decision: self.decision.as_ref().map(|d| d.decision(&id, &self.digest)).transpose()?,
            id,
        })
    }

    /// The answer's value, if the question was answered.
    pub(crate) fn answer(&self) -> Option<Value> {
        let decision = self.decision.as_ref().filter(|d| d.decision == Verb::Accept)?;
        serde_json::from_str(decision.value.as_deref()?).ok()
    }
}

impl Recorded {
    pub(crate) fn decision(&self, question: &QuestionId, digest: &str) -> Result<Decision> {
        Ok(Decision {
            question: question.clone(),
            digest: digest.into(),
            verb: self.decision,
            value: self.value.as_deref().and_then(|text| serde_json::from_str(text).ok()),
            note: self.note.clone(),
            by: Who::from_row(&self.by),
            via: self.via.clone(),
            at: micros(self.at_us)?,
        })
    }
}

/// The gate's request (A41).
pub(crate) fn approval_request(tool: &str) -> InputRequest {
    let mut request = InputRequest::new(Kind::Approval, format!("Allow {tool} to run?"));
    request.metadata = serde_json::json!({ "approval": true });
    request
}

fn micros(us: i64) -> Result<DateTime<Utc>> {
    DateTime::from_timestamp_micros(us)
        .ok_or_else(|| Error::new(ErrorKind::Database, format!("a question's row holds {us}, which is no time")))
}

/// The model reads exactly this of a declined call (A39).
pub(crate) fn declined_result(note: Option<&str>) -> String {
    match note {
        None => r#"{"error":"declined by user"}"#.into(),
        Some(note) => format!(r#"{{"error":"declined by user","note":{}}}"#, Value::from(note)),
    }
}

/// An error as the model reads it.
pub(crate) fn error_result(message: &str) -> String {
    format!(r#"{{"error":{}}}"#, Value::from(message))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::ask::{choice, text};

    fn call(arguments: Option<&str>) -> ToolCall {
        ToolCall {
            id: ToolCallId::new(),
            message: MessageId::new(),
            message_position: 1,
            position: 0,
            wire_id: "w".into(),
            name: "pay".into(),
            arguments: arguments.map(str::to_owned),
            raw_arguments: arguments.is_none().then(|| "[1".to_owned()),
            gate: None,
            questions: Vec::new(),
            state: CallState::Waiting,
            result: None,
            result_kind: None,
            run_token: None,
            attempts: 0,
            updated_at: DateTime::UNIX_EPOCH,
        }
    }

    fn decided(mut asked: Asked, decision: Verb, value: Option<&str>) -> Asked {
        asked.decision = Some(Recorded {
            decision,
            value: value.map(str::to_owned),
            by: "person:ann".into(),
            at_us: 1_700_000_000_000_000,
            idem: Some("k".into()),
            note: Some("\"why\"".into()),
            via: None,
        });
        asked
    }

    // A39, A21
    #[test]
    fn the_model_reads_these_very_bytes() {
        assert_eq!(declined_result(None), r#"{"error":"declined by user"}"#);
        assert_eq!(declined_result(Some("a \"b\"\né\0")), r#"{"error":"declined by user","note":"a \"b\"\né\u0000"}"#);
        assert_eq!(declined_result(Some("")), r#"{"error":"declined by user","note":""}"#);
        assert_eq!(error_result("\"\n"), r#"{"error":"\"\n"}"#);
    }

    // A41
    #[test]
    fn the_gate_asks_by_the_tools_name() {
        let request = approval_request("pay");
        assert_eq!((request.kind, request.prompt.as_str()), (Kind::Approval, "Allow pay to run?"));
        assert_eq!(request.metadata, json!({ "approval": true }));
    }

    // Q5, B5
    #[test]
    fn the_latest_approval_says_with_what_a_call_runs() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let deep_edit = format!(r#"{{"arguments":{{"a":{deep}}}}}"#);
        let deep_runs = format!(r#"{{"a":{deep}}}"#);
        let own = r#"{"amount": 5}"#;
        let cases = [
            (vec![], own),
            (vec![(Verb::Accept, Some("true"))], own),
            (vec![(Verb::Accept, Some(r#"{"arguments":{"b":1,"a":2.0}}"#))], r#"{"b":1,"a":2.0}"#),
            // Whatever was put in place of the arguments is what runs, or fails to.
            (vec![(Verb::Accept, Some(deep_edit.as_str()))], deep_runs.as_str()),
            (vec![(Verb::Decline, None)], own),
            (vec![(Verb::Accept, Some(r#"{"arguments":{"n":1}}"#)), (Verb::Accept, Some("true"))], own),
            (vec![(Verb::Accept, Some("true")), (Verb::Accept, Some(r#"{"arguments":{"n":1}}"#))], r#"{"n":1}"#),
        ];
        for (decisions, runs) in cases {
            let mut call = call(Some(own));
            for (verb, value) in decisions {
                let asked = call.ask("", &approval_request("pay"), Utc::now()).unwrap();
                call.questions.push(decided(asked, verb, value));
            }
            // An answer to the tool's own question is never an edit.
            let asked = call.ask("1", text("x").request(), Utc::now()).unwrap();
            call.questions.push(decided(asked, Verb::Accept, Some(r#"{"arguments":{"own":1}}"#)));
            assert_eq!(call.effective_arguments().as_deref(), Some(runs));
        }
        assert_eq!(call(None).effective_arguments(), None);
    }

    // A14, B5
    #[test]
    fn each_asking_of_a_key_has_a_round_and_a_digest_of_its_own() {
        let mut call = call(Some("{}"));
        let request = text("x").request;
        let mut digests = Vec::new();
        for round in 0..3 {
            let asked = call.ask("k", &request, Utc::now()).unwrap();
            assert_eq!(asked.round, round);
            digests.push(asked.digest.clone());
            call.questions.push(asked);
        }
        assert_eq!(call.ask("other", &request, Utc::now()).unwrap().round, 0);
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), 3);
    }

    // A7, A8, case CH1, case CH3
    #[test]
    fn a_question_comes_back_from_its_row_as_it_was_asked() {
        let ask = choice::<Value>("Pick\0 é🙂", [("a\0", "label\0"), ("b", "\u{2028}")]).key("k");
        let ask = ask.metadata(json!({ "m\0": ["\0", 1.5] })).schema(json!("\0")).may_person("ann");
        let mut request = ask.expires_in(Duration::from_secs(60)).default_answer("b").request;
        request.tool_name = Some("bank".into());
        let call = call(Some(r#"{"a":"\u0000"}"#));
        let asked = decided(call.ask("k", &request, Utc::now()).unwrap(), Verb::Accept, Some(r#""a\u0000""#));
        // No NUL for `jsonb` to refuse: every text from outside is JSON text in a string.
        let row = serde_json::to_string(&asked).unwrap();
        assert!(!row.replace(r"\\u0000", "").contains(r"\u0000"), "{row}");
        let back: Asked = serde_json::from_str(&row).unwrap();
        assert_eq!(back, asked);
        request.tool_name = None;
        assert_eq!(back.request().unwrap(), request);
        assert_eq!(back.answer(), Some(json!("a\0")));
        let question = back.question(ChatId::new(), &call).unwrap();
        assert_eq!(question.request.tool_name.as_deref(), Some("pay"));
        assert_eq!(question.request.arguments, Some(json!({ "a": "\0" })));
        assert_eq!(question.expires_at.unwrap() - question.asked_at, chrono::TimeDelta::seconds(60));
        let decision = question.decision.unwrap();
        assert_eq!((decision.value, decision.note.as_deref()), (Some(json!("a\0")), Some("\"why\"")));
        assert_eq!((decision.by, decision.question), (Who::Person("ann".into()), question.id));
    }

    // A10
    #[test]
    fn a_call_without_an_object_shows_what_was_sent() {
        let call = call(None);
        let asked = call.ask("", &approval_request("pay"), Utc::now()).unwrap();
        let question = asked.question(ChatId::new(), &call).unwrap();
        assert_eq!(question.request.arguments, Some(json!("[1")));
    }

    // case CH3
    #[test]
    fn a_row_that_holds_something_else_is_an_error_and_no_panic() {
        let good = call(Some("{}")).ask("k", text("x").request(), Utc::now()).unwrap();
        for ask in ["", "null", "[]", "{}", r#"{"kind":"approve","prompt":"x"}"#, r#"{"__type__":"os.system"}"#] {
            let bad = Asked { ask: ask.into(), ..good.clone() };
            assert_eq!(bad.request().unwrap_err().kind(), ErrorKind::Database, "{ask}");
        }
        let bad = Asked { asked_us: i64::MAX, ..good.clone() };
        assert!(bad.question(ChatId::new(), &call(None)).is_err());
        let backwards = Asked { expires_us: Some(0), ..good };
        assert_eq!(backwards.request().unwrap().expires_in, Some(0));
    }
}
