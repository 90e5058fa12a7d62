//! The shop's own tables: orders, refunds and conversations, beside askback's in the same database.
//!
//! Every statement is written once, as PostgreSQL and SQLite read it; MySQL
//! gets `?` for `$1`.

use std::env;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use askback::{Askback, BoxError, ChatId, Pool, ToolCallId};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::types::Uuid;
use sqlx::types::chrono::{DateTime, Utc};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, FromRow, MySqlPool, PgPool, SqlSafeStr, SqlStr, SqlitePool, query,
    query_as,
};

use crate::agent::Support;

/// The file the desk runs on when no `DATABASE_URL` is set, from the current directory.
const FILE: &str = "target/desk/desk.db";
/// How long a database may take to let the desk in.
const CONNECT: Duration = Duration::from_secs(5);
/// How many connections a process keeps.
const CONNECTIONS: u32 = 8;

/// The shop's database; cheap to clone.
#[derive(Clone)]
pub(crate) enum Shop {
    /// On PostgreSQL.
    Postgres(PgPool),
    /// On MySQL or MariaDB.
    MySql(MySqlPool),
    /// In a file.
    Sqlite(SqlitePool),
}

/// What somebody bought.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Order {
    /// What stands on the parcel.
    pub(crate) id: String,
    /// What was bought.
    pub(crate) item: String,
    /// In which size.
    pub(crate) size: String,
    /// What was paid.
    pub(crate) cents: i64,
    /// What the parcel says after an exchange.
    pub(crate) parcel_note: String,
}

/// Money that went back, once per tool call.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Refund {
    /// The call that booked it.
    pub(crate) tool_call: Uuid,
    /// For which order.
    pub(crate) order_id: String,
    /// How much.
    pub(crate) cents: i64,
    /// Why.
    pub(crate) reason: String,
    /// When.
    pub(crate) booked_at: DateTime<Utc>,
}

/// A chat of a customer's.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Conversation {
    chat: Uuid,
    /// How it began.
    pub(crate) subject: String,
    /// When.
    pub(crate) opened_at: DateTime<Utc>,
}

impl Conversation {
    /// askback's chat.
    pub(crate) fn chat(&self) -> ChatId {
        ChatId(self.chat)
    }
}

/// Runs one statement on whichever database it is.
macro_rules! run {
    ($shop:expr, $make:ident($sql:expr $(, $arg:expr)*), $query:ident, $pool:ident => $then:expr) => {
        match $shop {
            Shop::Postgres($pool) => { let $query = $make($sql)$(.bind($arg))*; $then }
            Shop::MySql($pool) => { let $query = $make(question_marks($sql))$(.bind($arg))*; $then }
            Shop::Sqlite($pool) => { let $query = $make($sql)$(.bind($arg))*; $then }
        }
    };
}

impl Shop {
    /// Connects to the database of this address.
    pub(crate) async fn connect(url: &str) -> Result<Self, BoxError> {
        Self::connect_to(url).await.map_err(|e| format!("DATABASE_URL: {}", crate::app::chain(&*e)).into())
    }

    async fn connect_to(url: &str) -> Result<Self, BoxError> {
        // One connection first: a pool would try again and tell only that it gave up.
        match url.split(':').next() {
            Some("postgres" | "postgresql") => {
                let options = PgConnectOptions::from_str(url)?;
                in_time(options.connect()).await?.close().await?;
                let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECT);
                Ok(Shop::Postgres(pool.connect_lazy_with(options)))
            }
            Some("mysql" | "mariadb") => {
                let options = MySqlConnectOptions::from_str(url)?;
                in_time(options.connect()).await?.close().await?;
                let pool = MySqlPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECT);
                Ok(Shop::MySql(pool.connect_lazy_with(options)))
            }
            Some("sqlite") if url.contains(":memory:") || url.contains("mode=memory") => {
                Err("a file is needed, because two processes share it".into())
            }
            Some("sqlite") => {
                let options = SqliteConnectOptions::from_str(url)?
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(Duration::from_secs(10));
                in_time(options.connect()).await?.close().await?;
                let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECT);
                Ok(Shop::Sqlite(pool.connect_lazy_with(options)))
            }
            _ => Err("it must begin with postgres://, mysql:// or sqlite:".into()),
        }
    }

    /// Brings both schemas up to date: askback's first, so that the shop's may reference it.
    pub(crate) async fn migrate(&self) -> Result<(), BoxError> {
        askback::migrate(&self.pool()).await?;
        match self {
            Shop::Postgres(pool) => sqlx::migrate!("migrations/postgres").run(pool).await?,
            Shop::MySql(pool) => sqlx::migrate!("migrations/mysql").run(pool).await?,
            Shop::Sqlite(pool) => sqlx::migrate!("migrations/sqlite").run(pool).await?,
        }
        Ok(())
    }

    /// The same database, as askback takes it.
    pub(crate) fn pool(&self) -> Pool {
        match self {
            Shop::Postgres(pool) => pool.into(),
            Shop::MySql(pool) => pool.into(),
            Shop::Sqlite(pool) => pool.into(),
        }
    }

    /// Opens a conversation: the shop's row, the chat and its first text commit together.
    pub(crate) async fn open(&self, askback: &Askback, customer: &str, text: &str) -> Result<ChatId, BoxError> {
        let subject: String = text.trim().chars().take(200).collect();
        let sql = "insert into conversations (chat, customer, subject, opened_at) values ($1, $2, $3, $4)";
        macro_rules! open_in {
            ($tx:expr, $sql:expr) => {{
                let mut tx = $tx.await?;
                let support = Support { customer: customer.to_owned() };
                let chat = askback.start(&mut tx, &support, customer).await?;
                let row = query($sql).bind(chat.id().0).bind(customer).bind(subject).bind(Utc::now());
                row.execute(&mut *tx).await?;
                chat.say(&mut tx, text).await?;
                tx.commit().await?;
                chat
            }};
        }
        let chat = match self {
            Shop::Postgres(pool) => open_in!(pool.begin(), sql),
            Shop::MySql(pool) => open_in!(pool.begin(), question_marks(sql)),
            Shop::Sqlite(pool) => open_in!(pool.begin_with("begin immediate"), sql),
        };
        // The transaction was ours, so is telling the worker.
        chat.wake();
        Ok(chat.id())
    }

    /// The latest conversations of a customer, newest first.
    pub(crate) async fn conversations(&self, customer: &str, limit: i64) -> sqlx::Result<Vec<Conversation>> {
        let sql = "select chat, subject, opened_at from conversations where customer = $1
                   order by opened_at desc, chat desc limit $2";
        run!(self, query_as(sql, customer, limit), q, pool => q.fetch_all(pool).await)
    }

    /// Every order of a customer.
    pub(crate) async fn orders(&self, customer: &str) -> sqlx::Result<Vec<Order>> {
        let sql = "select id, item, size, cents, parcel_note from orders where customer = $1 order by id";
        run!(self, query_as(sql, customer), q, pool => q.fetch_all(pool).await)
    }

    /// One order, if it is this customer's.
    pub(crate) async fn order(&self, customer: &str, id: &str) -> sqlx::Result<Option<Order>> {
        let sql = "select id, item, size, cents, parcel_note from orders where customer = $1 and id = $2";
        run!(self, query_as(sql, customer, id), q, pool => q.fetch_optional(pool).await)
    }

    /// Puts another size and a note on an order. The same again changes nothing.
    pub(crate) async fn exchange(&self, customer: &str, id: &str, size: &str, note: &str) -> sqlx::Result<()> {
        let sql = "update orders set size = $1, parcel_note = $2 where customer = $3 and id = $4";
        run!(self, query(sql, size, note, customer, id), q, pool => q.execute(pool).await.map(drop))
    }

    /// Every refund, newest first.
    pub(crate) async fn refunds(&self) -> sqlx::Result<Vec<Refund>> {
        let sql = "select tool_call, order_id, cents, reason, booked_at from refunds order by booked_at desc limit 50";
        run!(self, query_as(sql), q, pool => q.fetch_all(pool).await)
    }

    /// The refunds of one order.
    pub(crate) async fn refunds_of(&self, order: &str) -> sqlx::Result<Vec<Refund>> {
        let sql = "select tool_call, order_id, cents, reason, booked_at from refunds where order_id = $1";
        run!(self, query_as(sql, order), q, pool => q.fetch_all(pool).await)
    }

    /// Books a refund, once per tool call; `false` when an earlier run of the call has booked it.
    pub(crate) async fn book(&self, call: ToolCallId, order: &str, cents: i64, reason: &str) -> sqlx::Result<bool> {
        let reason: String = reason.chars().take(500).collect();
        let sql = "insert into refunds (tool_call, order_id, cents, reason, booked_at) values ($1, $2, $3, $4, $5)";
        let booked = run!(self, query(sql, call.0, order, cents, &reason, Utc::now()), q, pool => {
            q.execute(pool).await.map(drop)
        });
        match booked {
            Ok(()) => Ok(true),
            Err(e) if e.as_database_error().is_some_and(|e| e.is_unique_violation()) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// The database to run on: `DATABASE_URL`, or a SQLite file whose folder is made here.
pub(crate) fn database_url() -> Result<String, BoxError> {
    match env::var("DATABASE_URL") {
        Ok(url) if !url.trim().is_empty() => Ok(url),
        _ => {
            if let Some(folder) = Path::new(FILE).parent() {
                fs::create_dir_all(folder).map_err(|e| format!("making {}: {e}", folder.display()))?;
            }
            Ok(format!("sqlite:{FILE}"))
        }
    }
}

/// The address without user, password and options, for people.
pub(crate) fn shown(url: &str) -> String {
    let bare = url.split('?').next().unwrap_or_default();
    match (bare.split_once("://"), bare.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        _ => bare.to_owned(),
    }
}

/// An amount as people write it.
pub(crate) fn dollars(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}${}.{:02}", cents.unsigned_abs() / 100, cents.unsigned_abs() % 100)
}

/// A statement as MySQL reads it. Its values stand in the order of their numbers, each once.
fn question_marks(sql: &'static str) -> SqlStr {
    let mut parts = sql.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push('?');
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    AssertSqlSafe(text).into_sql_str()
}

async fn in_time<C>(connecting: impl Future<Output = sqlx::Result<C>>) -> Result<C, BoxError> {
    match tokio::time::timeout(CONNECT, connecting).await {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(format!("no reply within {} s", CONNECT.as_secs()).into()),
    }
}
