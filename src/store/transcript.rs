//! The rows of a chat as a whole: loaded, and written by the one who drives it.
//!
//! Every write of a driver starts with the fence: the chat's row is locked on
//! the condition that the lease is the driver's. Each is one statement on
//! PostgreSQL and one short transaction elsewhere. False means that nothing
//! was written because the lease, or the call, is no longer the driver's.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChatId, MessageId, ToolCallId};
use crate::message::{Message, Role};
use crate::step::Transcript;
use crate::store::chats;
use crate::store::conn::{Database, Pool, Session};
use crate::tool_call::{Asked, CallState, Gate, ResultKind, ToolCall};

#[derive(FromRow)]
struct MessageRecord {
    id: Uuid,
    position: i64,
    role: String,
    content: String,
    items: Option<String>,
    service: Option<String>,
    api: Option<String>,
    model: Option<String>,
    finish_reason: Option<String>,
    created_at: DateTime<Utc>,
}

impl MessageRecord {
    fn message(self) -> Result<Message> {
        let role = match self.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => return Err(corrupt(format!("message {} has no role {other:?}", self.id))),
        };
        Ok(Message {
            id: MessageId(self.id),
            position: self.position,
            role,
            content: self.content,
            items: self.items,
            service: self.service,
            api: self.api,
            model: self.model,
            finish_reason: self.finish_reason,
            created_at: self.created_at,
        })
    }
}

/// The columns of a [`CallRecord`], of a table named `t`.
macro_rules! call_columns {
    () => {
        "t.id, t.message_id, t.message_position, t.position, t.wire_id, t.name, t.arguments, t.raw_arguments, t.approval, \
         t.questions, t.state, t.result, t.result_kind, t.run_token, t.attempts, t.updated_at"
    };
}
pub(crate) use call_columns;

#[derive(FromRow)]
pub(crate) struct CallRecord {
    id: Uuid,
    message_id: Uuid,
    message_position: i64,
    position: i64,
    wire_id: String,
    name: String,
    arguments: Option<String>,
    raw_arguments: Option<String>,
    approval: Option<String>,
    questions: Json<Vec<Asked>>,
    state: String,
    result: Option<String>,
    result_kind: Option<String>,
    run_token: Option<Uuid>,
    attempts: i64,
    updated_at: DateTime<Utc>,
}

impl CallRecord {
    pub(crate) fn call(self) -> Result<ToolCall> {
        let id = self.id;
        let state = match self.state.as_str() {
            "ready" => CallState::Ready,
            "waiting" => CallState::Waiting,
            "running" => CallState::Running,
            "done" => CallState::Done,
            other => return Err(corrupt(format!("tool call {id} is in no state {other:?}"))),
        };
        let gate = match self.approval.as_deref() {
            None => None,
            Some("pending") => Some(Gate::Pending),
            Some("approved") => Some(Gate::Approved),
            Some("remembered") => Some(Gate::Remembered),
            Some("declined") => Some(Gate::Declined),
            Some(other) => return Err(corrupt(format!("tool call {id} has no approval {other:?}"))),
        };
        let result_kind = match self.result_kind.as_deref() {
            None => None,
            Some("value") => Some(ResultKind::Value),
            Some("declined") => Some(ResultKind::Declined),
            Some("error") => Some(ResultKind::Error),
            Some("unfinished") => Some(ResultKind::Unfinished),
            Some("cancelled") => Some(ResultKind::Cancelled),
            Some(other) => return Err(corrupt(format!("tool call {id} has no result of kind {other:?}"))),
        };
        let raw = |text: String| serde_json::from_str(&text).unwrap_or(text);
        Ok(ToolCall {
            id: ToolCallId(id),
            message: MessageId(self.message_id),
            message_position: self.message_position,
            position: self.position,
            wire_id: self.wire_id,
            name: self.name,
            arguments: self.arguments,
            raw_arguments: self.raw_arguments.map(raw),
            gate,
            questions: self.questions.0,
            state,
            result: self.result,
            result_kind,
            run_token: self.run_token,
            attempts: self.attempts,
            updated_at: self.updated_at,
        })
    }
}

fn corrupt(message: String) -> Error {
    Error::new(ErrorKind::Database, message)
}

/// Loads a chat whole.
pub(crate) async fn load(session: &mut Session<'_>, chat: ChatId) -> Result<Transcript> {
    let row = chats::get(session, chat).await?;
    let sql = sql!(
        "select m.id, m.position, m.role, m.content, m.items, m.service, m.api, m.model, m.finish_reason, m.created_at
           from askback_messages m where m.chat_id = ? order by m.position"
    );
    let messages = session.all::<MessageRecord>(sql, args![chat]).await?;
    let sql = sql!(
        "select ",
        call_columns!(),
        " from askback_tool_calls t where t.chat_id = ? order by t.message_position, t.position"
    );
    let calls = session.all::<CallRecord>(sql, args![chat]).await?;
    Ok(Transcript {
        chat: row,
        messages: messages.into_iter().map(MessageRecord::message).collect::<Result<_>>()?,
        calls: calls.into_iter().map(CallRecord::call).collect::<Result<_>>()?,
    })
}

/// The calls without a result, in the order the model made them.
pub(crate) async fn open_calls(session: &mut Session<'_>, chat: ChatId) -> Result<Vec<ToolCall>> {
    let sql = sql!(
        "select ",
        call_columns!(),
        " from askback_tool_calls t where t.chat_id = ? and t.result_kind is null
          order by t.message_position, t.position"
    );
    session.all::<CallRecord>(sql, args![chat]).await?.into_iter().map(CallRecord::call).collect()
}

/// The driver's lease on a chat, as its writes need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    pub(crate) chat: ChatId,
    pub(crate) token: Uuid,
}

/// A turn of the model, to be written with its calls.
#[derive(Debug)]
pub(crate) struct NewTurn {
    pub(crate) message: Message,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) usage: crate::provider::Usage,
    pub(crate) tool_turns: i64,
    pub(crate) tool_choice_cleared: bool,
    /// Whether the generation ends with this turn: the chat is then idle, and the lease given back with it.
    pub(crate) last: bool,
}

/// Appends a turn with its calls and what it used up.
///
/// The fence also hands out the position, so a driver whose transcript is not the newest writes nothing;
/// and nothing is appended to a generation that was cancelled.
pub(crate) async fn append(session: &mut Session<'_>, fence: Fence, turn: &NewTurn) -> Result<bool> {
    // A cancelled generation gets no further turn.
    macro_rules! advance {
        () => {
            "update askback_chats as c
                set next_position = c.next_position + 1, tool_turns = ?, tool_choice_cleared = ?,
                    service = ?, api = ?, model = ?, failures = 0, not_before = null, last_error = null,
                    state = case when ? then 'idle' else 'ready' end,
                    lease_token = case when ? then null else c.lease_token end,
                    lease_until = case when ? then null else c.lease_until end,
                    updated_at = {now}
              where c.id = ? and c.lease_token = ? and c.next_position = ?
                and (c.cancel_generation is null or c.cancel_generation <> c.generation_no)"
        };
    }
    let message = &turn.message;
    let (service, api, model) = (message.service.as_deref(), message.api.as_deref(), message.model.as_deref());
    let mut fenced = args![turn.tool_turns, turn.tool_choice_cleared, service, api, model];
    fenced.extend(args![turn.last, turn.last, turn.last, fence.chat, fence.token, message.position]);
    let usage =
        [turn.usage.input, turn.usage.output, turn.usage.cache_read, turn.usage.cache_write, turn.usage.reasoning]
            .map(|tokens| tokens.and_then(|n| i64::try_from(n).ok()));
    let [input, output, cache_read, cache_write, reasoning] = usage;
    match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            let sql = sql!(
                "with f as (",
                advance!(),
                " returning c.id),
                 m as (
                     insert into askback_messages
                            (chat_id, position, id, role, content, items, service, api, model, finish_reason, created_at)
                     select f.id, ?, ?, 'assistant', ?, ?, ?, ?, ?, ?, {now} from f),
                 k as (
                     insert into askback_tool_calls
                            (chat_id, message_id, message_position, position, id, wire_id, name, arguments, raw_arguments, approval,
                             questions, open_count, state, result, result_kind, created_at, updated_at)
                     select f.id, ?, ?, k.position, k.id, k.wire_id, k.name, k.arguments, k.raw_arguments, k.approval,
                            k.questions::jsonb, k.open_count, k.state, k.result, k.result_kind, {now}, {now}
                       from f, unnest(?::uuid[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[],
                                      ?::text[], ?::bigint[], ?::text[], ?::text[], ?::text[])
                            as k (id, position, wire_id, name, arguments, raw_arguments, approval,
                                  questions, open_count, state, result, result_kind))
                 insert into askback_usages
                        (chat_id, id, message_position, service, model, input_tokens, output_tokens, cache_read,
                         cache_write, reasoning, created_at)
                 select f.id, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now} from f"
            );
            let calls = &turn.calls;
            let questions: Vec<String> = calls.iter().map(questions_json).collect::<Result<_>>()?;
            let raw: Vec<Option<String>> = calls.iter().map(raw_json).collect();
            let mut args = fenced;
            args.extend(args![message.position, message.id, &message.content, message.items.as_deref()]);
            args.extend(args![service, api, model, message.finish_reason.as_deref(), message.id, message.position]);
            args.extend(args![
                calls.iter().map(|c| c.id.0).collect::<Vec<_>>(),
                calls.iter().map(|c| c.position).collect::<Vec<_>>(),
                calls.iter().map(|c| Some(c.wire_id.as_str())).collect::<Vec<_>>(),
                calls.iter().map(|c| Some(c.name.as_str())).collect::<Vec<_>>(),
                calls.iter().map(|c| c.arguments.as_deref()).collect::<Vec<_>>(),
                raw.iter().map(Option::as_deref).collect::<Vec<_>>(),
                calls.iter().map(|c| c.gate.map(Gate::as_str)).collect::<Vec<_>>(),
                questions.iter().map(|q| Some(q.as_str())).collect::<Vec<_>>(),
                calls.iter().map(open_count).collect::<Vec<_>>(),
                calls.iter().map(|c| Some(c.state.as_str())).collect::<Vec<_>>(),
                calls.iter().map(|c| c.result.as_deref()).collect::<Vec<_>>(),
                calls.iter().map(|c| c.result_kind.map(ResultKind::as_str)).collect::<Vec<_>>(),
            ]);
            args.extend(args![Uuid::now_v7(), message.position, service.unwrap_or(""), model.unwrap_or("")]);
            args.extend(args![input, output, cache_read, cache_write, reasoning]);
            Ok(session.exec(sql, args).await? == 1)
        }
        #[allow(unreachable_patterns)]
        _ => {
            if session.exec(sql!(advance!()), fenced).await? != 1 {
                return Ok(false);
            }
            let sql = sql!(
                "insert into askback_messages
                        (chat_id, position, id, role, content, items, service, api, model, finish_reason, created_at)
                 values (?, ?, ?, 'assistant', ?, ?, ?, ?, ?, ?, {now})"
            );
            let mut args = args![fence.chat, message.position, message.id, &message.content, message.items.as_deref()];
            args.extend(args![service, api, model, message.finish_reason.as_deref()]);
            session.exec(sql, args).await?;
            for call in &turn.calls {
                let sql = sql!(
                    "insert into askback_tool_calls
                            (chat_id, message_id, message_position, position, id, wire_id, name, arguments, raw_arguments, approval,
                             questions, open_count, state, result, result_kind, created_at, updated_at)
                     values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {json}, ?, ?, ?, ?, {now}, {now})"
                );
                let mut args = args![fence.chat, message.id, message.position, call.position, call.id];
                args.extend(args![&call.wire_id, &call.name]);
                args.extend(args![call.arguments.as_deref(), raw_json(call), call.gate.map(Gate::as_str)]);
                args.extend(args![questions_json(call)?, open_count(call), call.state.as_str()]);
                args.extend(args![call.result.as_deref(), call.result_kind.map(ResultKind::as_str)]);
                session.exec(sql, args).await?;
            }
            let sql = sql!(
                "insert into askback_usages
                        (chat_id, id, message_position, service, model, input_tokens, output_tokens, cache_read,
                         cache_write, reasoning, created_at)
                 values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now})"
            );
            let mut args = args![fence.chat, Uuid::now_v7(), message.position];
            args.extend(args![service.unwrap_or(""), model.unwrap_or("")]);
            args.extend(args![input, output, cache_read, cache_write, reasoning]);
            session.exec(sql, args).await?;
            Ok(true)
        }
    }
}

fn questions_json(call: &ToolCall) -> Result<String> {
    serde_json::to_string(&call.questions).map_err(|e| Error::invalid("the questions are no JSON").caused_by(e))
}

fn raw_json(call: &ToolCall) -> Option<String> {
    call.raw_arguments.as_ref().map(|raw| serde_json::Value::from(raw.as_str()).to_string())
}

fn open_count(call: &ToolCall) -> i64 {
    i64::try_from(call.questions.iter().filter(|q| q.decision.is_none()).count()).unwrap_or(i64::MAX)
}

/// The earliest deadline of an open question.
fn next_expiry(call: &ToolCall) -> Option<DateTime<Utc>> {
    let open = call.questions.iter().filter(|q| q.decision.is_none());
    open.filter_map(|q| q.expires_us).min().and_then(DateTime::from_timestamp_micros)
}

/// Elsewhere: the fence as the first statement of the transaction.
async fn hold_fence(session: &mut Session<'_>, fence: Fence) -> Result<bool> {
    #[derive(FromRow)]
    struct Mine {
        #[allow(dead_code)]
        id: Uuid,
    }
    let sql = sql!("select c.id from askback_chats c where c.id = ? and c.lease_token = ? {lock}");
    Ok(session.one::<Mine>(sql, args![fence.chat, fence.token]).await?.is_some())
}

/// Marks a call as running, before its tool starts.
///
/// `was` is the run that was found interrupted, if any. With `wait` the mark is durable when this returns.
pub(crate) async fn claim(
    session: &mut Session<'_>,
    fence: Fence,
    call: ToolCallId,
    was: Option<Uuid>,
    run: Uuid,
    wait: bool,
) -> Result<bool> {
    macro_rules! mark {
        ($from:literal) => {
            concat!(
                "update askback_tool_calls as t
                    set state = 'running', run_token = ?, attempts = t.attempts + 1, updated_at = {now} ",
                $from,
                " where t.chat_id = ? and t.id = ? and t.state in ('ready', 'running') and t.run_token {same} ?
                    and t.result_kind is null"
            )
        };
    }
    let marked = args![run, fence.chat, call, was];
    match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            let fenced = args![fence.chat, fence.token];
            let sql = match wait {
                true => sql!(
                    "with f as (select c.id from askback_chats c where c.id = ? and c.lease_token = ?
                                   and (c.cancel_generation is null or c.cancel_generation <> c.generation_no)
                                   for no key update) ",
                    mark!("from f")
                ),
                false => sql!(
                    "with unwaited as materialized (select set_config('synchronous_commit', 'off', true)),
                          f as (select c.id from askback_chats c where c.id = ? and c.lease_token = ?
                                   and (c.cancel_generation is null or c.cancel_generation <> c.generation_no)
                                   for no key update) ",
                    mark!("from f, unwaited")
                ),
            };
            Ok(session.exec(sql, [fenced, marked].concat()).await? == 1)
        }
        #[allow(unreachable_patterns)]
        _ => {
            #[derive(FromRow)]
            struct Mine {
                #[allow(dead_code)]
                id: Uuid,
            }
            let sql = sql!(
                "select c.id from askback_chats c where c.id = ? and c.lease_token = ?
                    and (c.cancel_generation is null or c.cancel_generation <> c.generation_no) {lock}"
            );
            if session.one::<Mine>(sql, args![fence.chat, fence.token]).await?.is_none() {
                return Ok(false);
            }
            Ok(session.exec(sql!(mark!("")), marked).await? == 1)
        }
    }
}

/// Writes the result of a call: of the run `run`, or of a call that was never run.
pub(crate) async fn record_result(
    session: &mut Session<'_>,
    fence: Fence,
    call: ToolCallId,
    run: Option<Uuid>,
    result: &str,
    kind: ResultKind,
) -> Result<bool> {
    macro_rules! close {
        ($from:literal) => {
            concat!(
                "update askback_tool_calls as t
                    set state = 'done', result = ?, result_kind = ?, run_token = null, updated_at = {now} ",
                $from,
                " where t.chat_id = ? and t.id = ? and t.run_token {same} ? and t.state in ('ready', 'running')
                    and t.result_kind is null"
            )
        };
    }
    let closed = args![result, kind.as_str(), fence.chat, call, run];
    match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            let sql = sql!(
                "with f as (select c.id from askback_chats c where c.id = ? and c.lease_token = ? for no key update) ",
                close!("from f")
            );
            Ok(session.exec(sql, [args![fence.chat, fence.token], closed].concat()).await? == 1)
        }
        #[allow(unreachable_patterns)]
        _ => Ok(hold_fence(session, fence).await? && session.exec(sql!(close!("")), closed).await? == 1),
    }
}

/// Writes new questions of a call, which waits from then on.
///
/// `call` holds all its questions. Only the driver adds some, and none can be
/// decided before the call waits, so the whole list may be written.
pub(crate) async fn record_questions(session: &mut Session<'_>, fence: Fence, call: &ToolCall) -> Result<bool> {
    macro_rules! park {
        ($from:literal) => {
            concat!(
                "update askback_tool_calls as t
                    set state = 'waiting', questions = {json}, open_count = ?, next_expiry = ?, approval = ?,
                        run_token = null, updated_at = {now} ",
                $from,
                " where t.chat_id = ? and t.id = ? and t.run_token {same} ? and t.state in ('ready', 'running')
                    and t.result_kind is null"
            )
        };
    }
    let mut parked = args![questions_json(call)?, open_count(call), next_expiry(call), call.gate.map(Gate::as_str)];
    parked.extend(args![fence.chat, call.id, call.run_token]);
    match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            let sql = sql!(
                "with f as (select c.id from askback_chats c where c.id = ? and c.lease_token = ? for no key update) ",
                park!("from f")
            );
            Ok(session.exec(sql, [args![fence.chat, fence.token], parked].concat()).await? == 1)
        }
        #[allow(unreachable_patterns)]
        _ => Ok(hold_fence(session, fence).await? && session.exec(sql!(park!("")), parked).await? == 1),
    }
}

/// Runs one of the driver's writes: one statement on PostgreSQL, a transaction elsewhere, tried again when
/// MySQL undid it.
macro_rules! fenced_write {
    ($pool:expr, $clock:expr, $session:ident => $write:expr) => {{
        let mut tries = 0;
        loop {
            let attempt: $crate::error::Result<_> = async {
                let mut held = $crate::store::conn::Db::from($pool).hold_or_transact($clock).await?;
                let mut $session = held.session();
                let written = $write.await?;
                held.commit().await?;
                $crate::error::Result::Ok(written)
            }
            .await;
            match attempt {
                Err(e) if e.kind() == $crate::error::ErrorKind::Restart && tries < 5 => tries += 1,
                done => break done,
            }
        }
    }};
}
pub(crate) use fenced_write;

/// Closes the open calls of a chat whose row is locked, because its generation was cancelled.
///
/// The calls are locked in id order. Their open questions are decided as cancelled, by the system.
pub(crate) async fn cancel_calls(session: &mut Session<'_>, chat: ChatId) -> Result<Vec<ToolCallId>> {
    let sql = sql!(
        "select ",
        call_columns!(),
        " from askback_tool_calls t where t.chat_id = ? and t.result_kind is null order by t.id {lock}"
    );
    let open = session.all::<CallRecord>(sql, args![chat]).await?;
    let now = chats::clock(session).await?;
    let mut closed = Vec::new();
    for record in open {
        let mut call = record.call()?;
        for asked in call.questions.iter_mut().filter(|asked| asked.decision.is_none()) {
            let decision = crate::tool_call::Recorded {
                decision: crate::decision::Verb::Cancel,
                value: None,
                by: "system:cancelled".into(),
                at_us: now.timestamp_micros(),
                idem: None,
                note: None,
                via: None,
            };
            crate::store::questions::insert_decision(session, chat, call.id, asked, &decision, now).await?;
            asked.decision = Some(decision);
        }
        let sql = sql!(
            "update askback_tool_calls set state = 'done', result = ?, result_kind = 'cancelled', questions = {json},
                    open_count = 0, next_expiry = null, run_token = null, updated_at = {now}
              where chat_id = ? and id = ? and result_kind is null"
        );
        let result = crate::tool_call::error_result("cancelled by user");
        session.exec(sql, args![result, questions_json(&call)?, chat, call.id]).await?;
        closed.push(call.id);
    }
    Ok(closed)
}

/// Closes the open calls of a cancelled generation, as its driver.
pub(crate) async fn close_cancelled(pool: &Pool, clock_ms: i64, fence: Fence) -> Result<bool> {
    let mut held = crate::store::conn::Db::from(pool).transact(clock_ms).await?;
    let mut session = held.session();
    if !hold_fence(&mut session, fence).await? {
        return Ok(false);
    }
    cancel_calls(&mut session, fence.chat).await?;
    chats::set_idle(&mut session, fence.chat).await?;
    held.commit().await?;
    Ok(true)
}
