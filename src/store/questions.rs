//! Questions on the calls' rows: listed without the chat, and settled under the call's lock.
//!
//! Settling stands here twice, side by side: as one statement on PostgreSQL,
//! so that the lock never waits for the app, and as the same steps in one short
//! transaction elsewhere. Both give the same verdicts.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::decision::{Decision, Verb, Who};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChatId, MessageId, QuestionId, ToolCallId};
use crate::question::Question;
use crate::store::chats;
use crate::store::conn::{Database, Session};
use crate::store::transcript::{CallRecord, call_columns};
use crate::tool_call::{Asked, CallState, Recorded, ToolCall};

#[derive(FromRow)]
struct ListedCall {
    message_id: Option<Uuid>,
    call_id: Option<Uuid>,
    message_position: Option<i64>,
    position: Option<i64>,
    name: Option<String>,
    arguments: Option<String>,
    raw_arguments: Option<String>,
    questions: Option<Json<Vec<Asked>>>,
    updated_at: Option<DateTime<Utc>>,
}

/// The open questions of a chat, in the order the model made its calls: one statement.
///
/// A chat that waits for nobody gives one row without a call, a chat that does not exist none.
pub(crate) async fn pending(session: &mut Session<'_>, chat: ChatId) -> Result<Vec<Question>> {
    let sql = sql!(
        "select t.message_id, t.id as call_id, t.message_position, t.position, t.name, t.arguments,
                t.raw_arguments, t.questions, t.updated_at
           from askback_chats c
           left join askback_tool_calls t on t.chat_id = c.id and t.state = 'waiting' and t.result_kind is null
          where c.id = ?
          order by t.message_position, t.position"
    );
    let rows = session.all::<ListedCall>(sql, args![chat]).await?;
    if rows.is_empty() {
        return Err(chats::unknown(chat));
    }
    let mut questions = Vec::new();
    for row in rows {
        let (Some(id), Some(message)) = (row.call_id, row.message_id) else { continue };
        let call = ToolCall {
            id: ToolCallId(id),
            message: MessageId(message),
            message_position: row.message_position.unwrap_or_default(),
            position: row.position.unwrap_or_default(),
            wire_id: String::new(),
            name: row.name.unwrap_or_default(),
            arguments: row.arguments,
            raw_arguments: row.raw_arguments,
            gate: None,
            questions: row.questions.map(|json| json.0).unwrap_or_default(),
            state: CallState::Waiting,
            result: None,
            result_kind: None,
            run_token: None,
            attempts: 0,
            updated_at: row.updated_at.unwrap_or_default(),
        };
        let all = call.questions(chat)?;
        questions.extend(all.into_iter().filter(|question| question.decision.is_none()));
    }
    Ok(questions)
}

/// A call, as it stands now.
pub(crate) async fn call(session: &mut Session<'_>, chat: ChatId, call: ToolCallId) -> Result<Option<ToolCall>> {
    let sql = sql!("select ", call_columns!(), " from askback_tool_calls t where t.chat_id = ? and t.id = ?");
    session.one::<CallRecord>(sql, args![chat, call]).await?.map(CallRecord::call).transpose()
}

/// What is to be recorded on a question.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    pub(crate) chat: ChatId,
    pub(crate) call: ToolCallId,
    /// Which of the call's questions, from 0.
    pub(crate) index: usize,
    pub(crate) key: String,
    /// Of the question the answer was checked against; a question with another one is `Changed`.
    pub(crate) digest: String,
    pub(crate) act: Act,
    pub(crate) note: Option<String>,
    pub(crate) by: Who,
    /// What the question's `may` is compared with.
    pub(crate) names: Vec<String>,
    pub(crate) idem: Option<String>,
    pub(crate) via: Option<String>,
}

/// What a settlement does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Act {
    /// Records this answer, JSON text.
    Accept(String),
    Decline,
    /// Records the declared default, if the time is over.
    Expire,
}

/// What the locked row said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) ruling: Ruling,
    /// Whether this settlement made the call ready.
    pub(crate) ready: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ruling {
    Recorded,
    Already(Recorded),
    Expired(Recorded),
    Closed,
    Changed,
    NotAllowed,
    NotDue,
    /// There is no such call or question, or the transaction is too old to see it.
    Gone,
}

/// Settles a question under its call's row lock.
///
/// `lock_timeout` bounds the wait for the lock on PostgreSQL; `None` in the app's own transaction, whose settings
/// are not ours to change.
pub(crate) async fn settle(
    session: &mut Session<'_>,
    settlement: &Settlement,
    lock_timeout: Option<Duration>,
) -> Result<Verdict> {
    match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => settle_in_one(session, settlement, lock_timeout).await,
        #[allow(unreachable_patterns)]
        _ => settle_in_steps(session, settlement).await,
    }
}

/// PostgreSQL: lock, clock, verdict, write and audit in one statement.
///
/// Readiness lives on the row that is locked: two last answers that arrive
/// together cannot each see the other still open, so nobody has to count under
/// a wider lock. `for no key update` is the form of `for update` that does not
/// wait for foreign keys which reference the call. Every check reads the
/// locked row, whose columns are the newest committed ones.
#[cfg(feature = "postgres")]
async fn settle_in_one(
    session: &mut Session<'_>,
    settlement: &Settlement,
    lock_timeout: Option<Duration>,
) -> Result<Verdict> {
    #[derive(FromRow)]
    struct Row {
        verdict: String,
        decision: Option<String>,
        value: Option<String>,
        by_whom: Option<String>,
        at_us: Option<i64>,
        note: Option<String>,
        via: Option<String>,
        ready: bool,
    }
    let sql = sql!(include_str!("settle_postgres.sql"));
    let (verb, value) = match &settlement.act {
        Act::Accept(value) => ("accept", Some(value.as_str())),
        Act::Decline => ("decline", None),
        Act::Expire => ("expire", None),
    };
    let names: Vec<Option<&str>> = settlement.names.iter().map(|name| Some(name.as_str())).collect();
    let args = args![
        lock_timeout.map(|time| format!("{}ms", chats::millis(time))),
        settlement.chat,
        settlement.call,
        i64::try_from(settlement.index).unwrap_or(i64::MAX),
        &settlement.key,
        &settlement.digest,
        verb,
        value,
        settlement.by.to_row(),
        names,
        settlement.idem.as_deref(),
        settlement.note.as_deref(),
        settlement.via.as_deref(),
    ];
    let Some(row) = session.one::<Row>(sql, args).await? else {
        return Ok(Verdict { ruling: Ruling::Gone, ready: false });
    };
    let recorded = || -> Result<Recorded> {
        let verb = match row.decision.as_deref() {
            Some("accept") => Verb::Accept,
            Some("decline") => Verb::Decline,
            Some("cancel") => Verb::Cancel,
            _ => return Err(Error::new(ErrorKind::Database, "a question's row holds no decision")),
        };
        Ok(Recorded {
            decision: verb,
            value: row.value.clone(),
            by: row.by_whom.clone().unwrap_or_default(),
            at_us: row.at_us.unwrap_or_default(),
            idem: None,
            note: row.note.clone(),
            via: row.via.clone(),
        })
    };
    let ruling = match row.verdict.as_str() {
        "won" | "recorded" => Ruling::Recorded,
        "already" => Ruling::Already(recorded()?),
        "expired" => Ruling::Expired(recorded()?),
        "closed" => Ruling::Closed,
        "changed" => Ruling::Changed,
        "not_allowed" => Ruling::NotAllowed,
        "not_due" => Ruling::NotDue,
        _ => Ruling::Gone,
    };
    Ok(Verdict { ruling, ready: row.ready })
}

/// MySQL and SQLite: the same steps, in a transaction.
///
/// Every read is a locking one: under repeatable read a plain read may show an older snapshot than the lock.
async fn settle_in_steps(session: &mut Session<'_>, settlement: &Settlement) -> Result<Verdict> {
    let sql = sql!("select ", call_columns!(), " from askback_tool_calls t where t.chat_id = ? and t.id = ? {lock}");
    let Some(record) = session.one::<CallRecord>(sql, args![settlement.chat, settlement.call]).await? else {
        return Ok(Verdict { ruling: Ruling::Gone, ready: false });
    };
    let mut call = record.call()?;
    let at = chats::clock(session).await?;
    let ruling = rule(&call, settlement, at.timestamp_micros());
    let decision = match &ruling {
        Won::No(ruling) => return Ok(Verdict { ruling: ruling.clone(), ready: false }),
        Won::Decided(decision) | Won::Expired(decision) => decision.clone(),
    };
    call.questions[settlement.index].decision = Some(decision.clone());
    let open: Vec<&Asked> = call.questions.iter().filter(|asked| asked.decision.is_none()).collect();
    let declined = decision.decision == Verb::Decline;
    let ready = declined || open.is_empty();
    let next_expiry = open.iter().filter_map(|asked| asked.expires_us).min().and_then(DateTime::from_timestamp_micros);
    let approval = match (settlement.key.is_empty(), declined) {
        (false, _) => call.gate.map(crate::tool_call::Gate::as_str),
        (true, true) => Some("declined"),
        (true, false) => Some("approved"),
    };
    let questions = serde_json::to_string(&call.questions)
        .map_err(|e| Error::new(ErrorKind::Database, "a call's questions are no JSON").caused_by(e))?;
    let sql = sql!(
        "update askback_tool_calls
            set questions = {json}, open_count = ?, state = ?, approval = ?, next_expiry = ?, updated_at = ?
          where chat_id = ? and id = ?"
    );
    let open_count = if declined { 0 } else { i64::try_from(open.len()).unwrap_or(i64::MAX) };
    let state = if ready { "ready" } else { "waiting" };
    let mut args = args![questions, open_count, state, approval, next_expiry, at];
    args.extend(args![settlement.chat, settlement.call]);
    session.exec(sql, args).await?;
    insert_decision(session, settlement.chat, settlement.call, &call.questions[settlement.index], &decision, at)
        .await?;
    let ruling = match ruling {
        Won::Expired(decision) => Ruling::Expired(decision),
        _ => Ruling::Recorded,
    };
    Ok(Verdict { ruling, ready })
}

enum Won {
    Decided(Recorded),
    Expired(Recorded),
    No(Ruling),
}

/// The verdict over a locked row; in the same order as the statement's.
fn rule(call: &ToolCall, settlement: &Settlement, at_us: i64) -> Won {
    let Some(asked) = call.questions.get(settlement.index).filter(|asked| asked.key == settlement.key) else {
        return Won::No(Ruling::Gone);
    };
    let expire = settlement.act == Act::Expire;
    if !expire && !asked.may.is_empty() && !asked.may.iter().any(|name| settlement.names.contains(name)) {
        return Won::No(Ruling::NotAllowed);
    }
    let (verb, value) = match &settlement.act {
        Act::Accept(value) => (Verb::Accept, Some(value.clone())),
        Act::Decline | Act::Expire => (Verb::Decline, None),
    };
    if let Some(was) = &asked.decision {
        let same = was.idem.is_some()
            && was.idem == settlement.idem
            && was.by == settlement.by.to_row()
            && was.decision == verb
            && was.value == value;
        return Won::No(if same { Ruling::Recorded } else { Ruling::Already(was.clone()) });
    }
    if asked.digest != settlement.digest {
        return Won::No(Ruling::Changed);
    }
    if call.state != CallState::Waiting {
        return Won::No(Ruling::Closed);
    }
    if asked.expires_us.is_some_and(|until| until <= at_us) {
        return Won::Expired(Recorded {
            decision: if asked.default.is_some() { Verb::Accept } else { Verb::Decline },
            value: asked.default.clone(),
            by: "system:expired".into(),
            at_us,
            idem: None,
            note: None,
            via: None,
        });
    }
    if expire {
        return Won::No(Ruling::NotDue);
    }
    Won::Decided(Recorded {
        decision: verb,
        value,
        by: settlement.by.to_row(),
        at_us,
        idem: settlement.idem.clone(),
        note: settlement.note.clone(),
        via: settlement.via.clone(),
    })
}

/// The audit row of a decision.
pub(crate) async fn insert_decision(
    session: &mut Session<'_>,
    chat: ChatId,
    call: ToolCallId,
    asked: &Asked,
    decision: &Recorded,
    at: DateTime<Utc>,
) -> Result<()> {
    let sql = sql!(
        "insert into askback_decisions (chat_id, call_id, question, digest, decision, value, note, by_whom, via, idem, at)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    );
    let mut args = args![chat, call, &asked.key, &asked.digest, decision.decision.as_str(), decision.value.as_deref()];
    args.extend(args![decision.note.as_deref(), &decision.by, decision.via.as_deref(), decision.idem.as_deref(), at]);
    session.exec(sql, args).await.map(drop)
}

#[derive(FromRow)]
struct DecisionRecord {
    call_id: Uuid,
    question: String,
    digest: String,
    decision: String,
    value: Option<String>,
    note: Option<String>,
    by_whom: String,
    via: Option<String>,
    at: DateTime<Utc>,
}

/// Every decision of a chat, oldest first.
pub(crate) async fn decisions(session: &mut Session<'_>, chat: ChatId) -> Result<Vec<Decision>> {
    let sql = sql!(
        "select d.call_id, d.question, d.digest, d.decision, d.value, d.note, d.by_whom, d.via, d.at
           from askback_decisions d where d.chat_id = ? order by d.at, d.call_id, d.question"
    );
    let rows = session.all::<DecisionRecord>(sql, args![chat]).await?;
    let decision = |row: DecisionRecord| {
        Ok(Decision {
            question: QuestionId::new(ToolCallId(row.call_id), row.question),
            digest: row.digest,
            verb: match row.decision.as_str() {
                "accept" => Verb::Accept,
                "decline" => Verb::Decline,
                "cancel" => Verb::Cancel,
                other => return Err(Error::new(ErrorKind::Database, format!("there is no decision {other:?}"))),
            },
            value: row.value.as_deref().and_then(|text| serde_json::from_str(text).ok()),
            note: row.note,
            by: Who::from_row(&row.by_whom),
            via: row.via,
            at: row.at,
        })
    };
    rows.into_iter().map(decision).collect()
}
