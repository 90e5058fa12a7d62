//! The chat's own row: started, spoken to, leased, released, cancelled.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::FromRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChatId, MessageId};
use crate::step::{ChatRow, ChatState};
use crate::store::conn::{Database, Session};

/// The columns of a [`ChatRecord`], of a table named `c`.
macro_rules! chat_columns {
    () => {
        "c.id, c.tenant, c.agent, c.action, c.arguments, c.actor, c.generation_no, c.tool_turns, \
         c.tool_choice_cleared, c.state, c.next_position, c.lease_token, c.lease_until, c.cancel_generation, \
         c.failures, c.not_before, c.last_error, c.metadata, c.created_at, c.updated_at, {now} as read_at"
    };
}

/// True of a chat `c` that somebody should drive. The only text that says so:
/// a driver looks with it once more after it has let go, and the poll looks
/// with it for chats that nobody drives.
macro_rules! has_work {
    () => {
        "c.state <> 'failed'
           and (c.not_before is null or c.not_before <= {start})
           and (c.state = 'ready'
                or exists (select 1 from askback_tool_calls t where t.chat_id = c.id and t.state = 'ready')
                or exists (select 1 from askback_tool_calls t
                            where t.chat_id = c.id and t.state = 'waiting' and t.next_expiry <= {start}))"
    };
}

/// True of a chat `c` that nobody drives: no lease, or one that ended longer ago than the grace.
/// Its value is the grace in milliseconds, negated.
macro_rules! lease_is_free {
    () => {
        "(c.lease_token is null or c.lease_until is null or c.lease_until < {after ?})"
    };
}

/// PostgreSQL: the commit of this statement is not waited for.
#[cfg(feature = "postgres")]
macro_rules! unwaited {
    () => {
        "with unwaited as materialized (select set_config('synchronous_commit', 'off', true)) "
    };
}

#[derive(FromRow)]
struct ChatRecord {
    id: Uuid,
    tenant: String,
    agent: String,
    action: String,
    arguments: String,
    actor: String,
    generation_no: i64,
    tool_turns: i64,
    tool_choice_cleared: bool,
    state: String,
    next_position: i64,
    lease_token: Option<Uuid>,
    lease_until: Option<DateTime<Utc>>,
    cancel_generation: Option<i64>,
    failures: i64,
    not_before: Option<DateTime<Utc>>,
    last_error: Option<String>,
    metadata: Option<Json<Value>>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    read_at: DateTime<Utc>,
}

impl ChatRecord {
    fn row(self) -> Result<ChatRow> {
        let state = match self.state.as_str() {
            "idle" => ChatState::Idle,
            "ready" => ChatState::Ready,
            "waiting" => ChatState::Waiting,
            "failed" => ChatState::Failed,
            other => {
                return Err(Error::new(ErrorKind::Database, format!("chat {} is in no state {other:?}", self.id)));
            }
        };
        Ok(ChatRow {
            id: ChatId(self.id),
            tenant: self.tenant,
            agent: self.agent,
            action: self.action,
            arguments: self.arguments,
            actor: self.actor,
            generation: self.generation_no,
            tool_turns: self.tool_turns,
            tool_choice_cleared: self.tool_choice_cleared,
            state,
            next_position: self.next_position,
            lease_token: self.lease_token,
            lease_until: self.lease_until,
            cancel_generation: self.cancel_generation,
            failures: self.failures,
            not_before: self.not_before,
            last_error: self.last_error,
            metadata: self.metadata.map(|json| json.0),
            created_at: self.created_at,
            updated_at: self.updated_at,
            read_at: self.read_at,
        })
    }
}

/// What a new chat's row holds.
pub(crate) struct NewChat<'a> {
    pub(crate) id: ChatId,
    pub(crate) tenant: &'a str,
    pub(crate) agent: &'a str,
    pub(crate) action: &'a str,
    pub(crate) arguments: &'a str,
    pub(crate) actor: &'a str,
    pub(crate) metadata: Option<String>,
}

pub(crate) async fn insert(session: &mut Session<'_>, chat: &NewChat<'_>) -> Result<()> {
    let inserted = session
        .exec(
            sql!(
                "insert into askback_chats (id, tenant, agent, action, arguments, actor, metadata, created_at, updated_at)
                 values (?, ?, ?, ?, ?, ?, {json}, {now}, {now})"
            ),
            args![chat.id, chat.tenant, chat.agent, chat.action, chat.arguments, chat.actor, chat.metadata.clone()],
        )
        .await;
    inserted.map(drop)
}

pub(crate) async fn get(session: &mut Session<'_>, id: ChatId) -> Result<ChatRow> {
    let sql = sql!("select ", chat_columns!(), " from askback_chats c where c.id = ?");
    session.one::<ChatRecord>(sql, args![id]).await?.ok_or_else(|| unknown(id))?.row()
}

/// The chat's row, locked until the transaction ends.
pub(crate) async fn lock(session: &mut Session<'_>, id: ChatId) -> Result<ChatRow> {
    let sql = sql!("select ", chat_columns!(), " from askback_chats c where c.id = ? {lock}");
    session.one::<ChatRecord>(sql, args![id]).await?.ok_or_else(|| unknown(id))?.row()
}

/// SQLite has one lock. An app's deferred transaction that reads first may not be allowed to write any more, so in
/// that a write that changes nothing goes before. Ours begin with the lock.
pub(crate) async fn take_write_lock(session: &mut Session<'_>) -> Result<()> {
    match session.database() {
        #[cfg(feature = "sqlite")]
        Database::Sqlite => {
            session.exec(sql!("update askback_chats set state = state where id is null"), args![]).await.map(drop)
        }
        #[allow(unreachable_patterns)]
        _ => Ok(()),
    }
}

pub(crate) fn unknown(id: ChatId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no chat {id} (or the transaction began before it was started)"))
}

/// The database's clock now. Under a lock: read it after the lock is ours.
pub(crate) async fn clock(session: &mut Session<'_>) -> Result<DateTime<Utc>> {
    #[derive(FromRow)]
    struct Clock {
        now: DateTime<Utc>,
    }
    let row = session.one::<Clock>(sql!("select {now} as now"), args![]).await?;
    row.map(|row| row.now).ok_or_else(|| Error::new(ErrorKind::Database, "the database tells no time"))
}

/// A person's text as the first message of a new generation; false when the chat is not idle or somebody drives it.
///
/// `at` is the position the caller saw, for a chat that failed; `None` for an idle one.
pub(crate) async fn say(
    session: &mut Session<'_>,
    chat: ChatId,
    message: MessageId,
    text: &str,
    grace: Duration,
    at: Option<i64>,
) -> Result<bool> {
    // Every condition is a column of the row that is locked.
    macro_rules! speak {
        () => {
            concat!(
                "update askback_chats as c
                    set next_position = c.next_position + 1, generation_no = c.generation_no + 1, tool_turns = 0,
                        tool_choice_cleared = false, state = 'ready', failures = 0, not_before = null,
                        last_error = null, lease_token = null, lease_until = null, updated_at = {now}
                  where c.id = ? and (c.state = 'idle' or (c.state = 'failed' and c.next_position = ?)) and ",
                lease_is_free!()
            )
        };
    }
    let spoken = args![chat, at, back(grace)];
    match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            let sql = sql!(
                "with spoken as (",
                speak!(),
                " returning c.id, c.next_position - 1 as position)
                 insert into askback_messages (chat_id, position, id, role, content, created_at)
                 select id, position, ?, 'user', ?, {now} from spoken"
            );
            let args = [spoken, args![message, text]].concat();
            Ok(session.exec(sql, args).await? == 1)
        }
        #[allow(unreachable_patterns)]
        _ => {
            if session.exec(sql!(speak!()), spoken).await? != 1 {
                return Ok(false);
            }
            let sql = sql!(
                "insert into askback_messages (chat_id, position, id, role, content, created_at)
                 select c.id, c.next_position - 1, ?, 'user', ?, {now} from askback_chats c where c.id = ?"
            );
            session.exec(sql, args![message, text, chat]).await?;
            Ok(true)
        }
    }
}

fn back(time: Duration) -> i64 {
    -millis(time)
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Takes the chat for one driver. True when nobody else has it.
///
/// `ready` from here on: if the driver dies, the state query finds the chat.
/// The commit is not waited for: a later durable one covers it, and before that nothing was done.
pub(crate) async fn acquire(
    session: &mut Session<'_>,
    chat: ChatId,
    token: Uuid,
    lease: Duration,
    grace: Duration,
) -> Result<bool> {
    macro_rules! take {
        ($from:literal) => {
            concat!(
                "update askback_chats as c
                    set lease_token = ?, lease_until = {after ?}, lease_epoch = c.lease_epoch + 1, state = 'ready' ",
                $from,
                " where c.id = ? and ",
                lease_is_free!()
            )
        };
    }
    let args = args![token, millis(lease), chat, back(grace)];
    let taken = match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => session.exec(sql!(unwaited!(), take!(" from unwaited")), args).await?,
        #[allow(unreachable_patterns)]
        _ => session.exec(sql!(take!("")), args).await?,
    };
    Ok(taken == 1)
}

/// How a driver leaves a chat.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Leave {
    /// With what the rows say.
    As(ChatState),
    /// As it was, because this process cannot build its agent; a worker puts it off.
    Unbuilt { state: ChatState, wait: Option<Duration> },
    /// After a failure: counted, with the time to wait.
    Failed { state: ChatState, wait: Duration, error: String },
}

/// Gives the lease back. False when it was no longer ours.
pub(crate) async fn release(session: &mut Session<'_>, chat: ChatId, token: Uuid, leave: &Leave) -> Result<bool> {
    macro_rules! leave {
        ($set:literal, $from:literal) => {
            concat!(
                "update askback_chats as c set lease_token = null, lease_until = null, updated_at = {now},
                        state = case when ? <> 'idle' and c.cancel_generation = c.generation_no then 'ready' else ? end",
                $set,
                $from,
                " where c.id = ? and c.lease_token = ?"
            )
        };
    }
    macro_rules! waited_or_not {
        ($set:literal, $args:expr) => {
            match session.database() {
                #[cfg(feature = "postgres")]
                Database::Postgres => session.exec(sql!(unwaited!(), leave!($set, " from unwaited")), $args).await?,
                #[allow(unreachable_patterns)]
                _ => session.exec(sql!(leave!($set, "")), $args).await?,
            }
        };
    }
    let left = match leave {
        Leave::As(state) => {
            waited_or_not!(
                ", failures = 0, not_before = null, last_error = null",
                args![state.as_str(), state.as_str(), chat, token]
            )
        }
        Leave::Unbuilt { state, wait: None } => waited_or_not!("", args![state.as_str(), state.as_str(), chat, token]),
        Leave::Unbuilt { state, wait: Some(wait) } => {
            waited_or_not!(
                ", not_before = {after ?}",
                args![state.as_str(), state.as_str(), millis(*wait), chat, token]
            )
        }
        Leave::Failed { state, wait, error } => waited_or_not!(
            ", not_before = case when c.cancel_generation = c.generation_no then null else {after ?} end,
              last_error = ?, failures = c.failures + 1",
            args![state.as_str(), state.as_str(), millis(*wait), error, chat, token]
        ),
    };
    Ok(left == 1)
}

/// What renewing a lease found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// It has a new end; and whether the generation was cancelled meanwhile.
    Yes { cancelled: bool },
    /// It is not ours any more, or its row is held by somebody just now.
    No,
}

/// Moves the ends of leases, for each the answer in the same order.
///
/// Passes over rows that are locked: one slow transaction must not end all leases.
pub(crate) async fn renew(
    session: &mut Session<'_>,
    leases: &[(ChatId, Uuid)],
    lease: Duration,
) -> Result<Vec<Renewed>> {
    #[derive(FromRow)]
    struct Kept {
        id: Uuid,
        lease_token: Option<Uuid>,
        cancelled: Option<bool>,
    }
    let mut renewed = Vec::with_capacity(leases.len());
    match session.database() {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            let sql = sql!(
                "with unwaited as materialized (select set_config('synchronous_commit', 'off', true)),
                      mine as (select c.id from askback_chats c
                                where c.id = any(?::uuid[]) and c.lease_token = any(?::uuid[]) {skip locked})
                 update askback_chats as c set lease_until = {after ?}
                   from mine, unwaited
                  where c.id = mine.id and c.lease_token = any(?::uuid[])
                 returning c.id, c.lease_token, c.cancel_generation = c.generation_no as cancelled"
            );
            let (ids, tokens): (Vec<_>, Vec<_>) = leases.iter().map(|(chat, token)| (chat.0, *token)).unzip();
            let kept = session.all::<Kept>(sql, args![ids, tokens.clone(), millis(lease), tokens]).await?;
            for (chat, token) in leases {
                let found = kept.iter().find(|kept| kept.id == chat.0 && kept.lease_token == Some(*token));
                renewed.push(match found {
                    Some(kept) => Renewed::Yes { cancelled: kept.cancelled == Some(true) },
                    None => Renewed::No,
                });
            }
        }
        #[allow(unreachable_patterns)]
        _ => {
            for (chat, token) in leases {
                // One transaction, so that nobody takes the lock between the look and the write and holds up all leases.
                let clock_ms = session.clock_ms;
                let mut tx = session.conn.reborrow().begin().await?;
                let mut session = Session { conn: tx.conn(), clock_ms };
                let sql = sql!(
                    "select c.id, c.lease_token, c.cancel_generation = c.generation_no as cancelled
                       from askback_chats c where c.id = ? {skip locked}"
                );
                let kept = session.one::<Kept>(sql, args![*chat]).await?;
                let Some(kept) = kept.filter(|kept| kept.lease_token == Some(*token)) else {
                    renewed.push(Renewed::No);
                    continue;
                };
                let sql = sql!("update askback_chats set lease_until = {after ?} where id = ? and lease_token = ?");
                let moved = session.exec(sql, args![millis(lease), *chat, *token]).await? == 1;
                tx.commit().await?;
                let cancelled = kept.cancelled == Some(true);
                renewed.push(if moved { Renewed::Yes { cancelled } } else { Renewed::No });
            }
        }
    }
    Ok(renewed)
}

/// Whether somebody should drive the chat.
pub(crate) async fn has_work(session: &mut Session<'_>, chat: ChatId) -> Result<bool> {
    #[derive(FromRow)]
    struct Found {
        #[allow(dead_code)]
        id: Uuid,
    }
    let sql = sql!("select c.id from askback_chats c where c.id = ? and ", has_work!());
    Ok(session.one::<Found>(sql, args![chat]).await?.is_some())
}

#[derive(FromRow)]
struct Workable {
    id: Uuid,
    agent: String,
}

/// Chats of an agent that somebody should drive and nobody does, at most `limit`.
///
/// Starts from the small sets (ready chats, ready calls, deadlines), never from all chats.
pub(crate) async fn workable(
    session: &mut Session<'_>,
    agent: &str,
    grace: Duration,
    limit: i64,
) -> Result<Vec<ChatId>> {
    let sql = sql!(
        "select c.id, c.agent
           from (select id from askback_chats where state = 'ready'
                 union select chat_id from askback_tool_calls where state = 'ready'
                 union select chat_id from askback_tool_calls where state = 'waiting' and next_expiry <= {start}) w
           join askback_chats c on c.id = w.id
          where c.agent = ? and ",
        lease_is_free!(),
        " and ",
        has_work!(),
        " limit ?"
    );
    let found = session.all::<Workable>(sql, args![agent, back(grace), limit]).await?;
    Ok(found.into_iter().map(|chat| ChatId(chat.id)).collect())
}

/// The agent of a chat that somebody should drive and nobody does.
pub(crate) async fn workable_agent(session: &mut Session<'_>, grace: Duration, chat: ChatId) -> Result<Option<String>> {
    let sql =
        sql!("select c.id, c.agent from askback_chats c where c.id = ? and ", lease_is_free!(), " and ", has_work!());
    let found = session.one::<Workable>(sql, args![chat, back(grace)]).await?;
    Ok(found.map(|chat| chat.agent))
}

/// Ties a cancel to the generation that runs. The chat's row must be locked.
pub(crate) async fn mark_cancelled(session: &mut Session<'_>, chat: ChatId) -> Result<()> {
    let sql = sql!("update askback_chats set cancel_generation = generation_no, updated_at = {now} where id = ?");
    session.exec(sql, args![chat]).await.map(drop)
}

/// Leaves a cancelled chat that nobody drives idle. The chat's row must be locked.
pub(crate) async fn set_idle(session: &mut Session<'_>, chat: ChatId) -> Result<()> {
    let sql = sql!(
        "update askback_chats set state = 'idle', lease_token = null, lease_until = null, failures = 0,
                not_before = null, last_error = null, updated_at = {now} where id = ?"
    );
    session.exec(sql, args![chat]).await.map(drop)
}

/// Whether nobody drives a chat whose row was read at `now`.
pub(crate) fn is_free(row: &ChatRow, now: DateTime<Utc>, grace: Duration) -> bool {
    let grace = chrono::Duration::from_std(grace).unwrap_or(chrono::Duration::MAX);
    row.lease_token.is_none() || row.lease_until.is_none_or(|until| until + grace < now)
}
