//! Fixtures: a fresh database, an agent whose setup a test writes, tools that leave a trace.

pub mod child;
pub mod tools;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use askback::provider::scripted::Scripted;
use askback::{Agent, AgentContext, Askback, BoxError, Chat, Pool, Setup, sqlx};
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;

/// A test, to be run on each database.
#[derive(Clone, Copy)]
pub struct Test {
    pub name: &'static str,
    pub run: fn(TestDb) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The tests of a module.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub fn tests() -> Vec<$crate::support::Test> {
            vec![$($crate::support::Test {
                name: concat!(module_path!(), "::", stringify!($name)),
                run: |db| Box::pin($name(db)),
            }),*]
        }
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
    MySql,
}

impl Backend {
    pub const ALL: [Backend; 3] = [Backend::Sqlite, Backend::Postgres, Backend::MySql];

    fn server(self) -> Option<String> {
        match self {
            Backend::Sqlite => None,
            Backend::Postgres => std::env::var("ASKBACK_TEST_PG").ok(),
            Backend::MySql => std::env::var("ASKBACK_TEST_MYSQL").ok(),
        }
    }

    pub fn is_here(self) -> bool {
        self == Backend::Sqlite || self.server().is_some()
    }

    pub fn way_out(self) -> &'static str {
        match self {
            Backend::Sqlite => "",
            Backend::Postgres => "ignored, ASKBACK_TEST_PG is not set",
            Backend::MySql => "ignored, ASKBACK_TEST_MYSQL is not set",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Sqlite => "sqlite",
            Backend::Postgres => "postgres",
            Backend::MySql => "mysql",
        })
    }
}

/// A database that nobody else uses.
#[derive(Clone)]
pub struct TestDb {
    pub backend: Backend,
    pub pool: Pool,
    pub url: String,
    name: String,
}

impl TestDb {
    /// An empty database, without askback's tables.
    pub async fn empty(backend: Backend) -> Self {
        let name = format!("askback_{}", uuid::Uuid::new_v4().simple());
        let url = match backend {
            Backend::Sqlite => format!("sqlite:{}/{name}.db", env!("CARGO_TARGET_TMPDIR")),
            _ => {
                let server = backend.server().expect("the server's address");
                admin(&server, &format!("create database {name}")).await;
                let (base, _) = server.rsplit_once('/').expect("an address with a database");
                format!("{base}/{name}")
            }
        };
        Self { backend, pool: connect(&url, 12).await, url, name }
    }

    pub async fn fresh(backend: Backend) -> Self {
        let db = Self::empty(backend).await;
        askback::migrate(&db.pool).await.unwrap();
        db.exec("create table ledger (call_id varchar(40) not null, what varchar(200) not null)").await;
        db
    }

    pub async fn drop_database(self) {
        let (pool, url) = (self.pool, self.url);
        match (self.backend, self.backend.server()) {
            (Backend::Sqlite, _) => {
                close(pool).await;
                let file = url.trim_start_matches("sqlite:");
                for file in [file.to_owned(), format!("{file}-wal"), format!("{file}-shm")] {
                    let _ = std::fs::remove_file(file);
                }
            }
            (Backend::Postgres, Some(server)) => {
                close(pool).await;
                admin(&server, &format!("drop database {} with (force)", self.name)).await;
            }
            (_, Some(server)) => {
                close(pool).await;
                admin(&server, &format!("drop database {}", self.name)).await;
            }
            _ => {}
        }
    }

    /// A handle with short leases, so that a test need not wait long for a takeover.
    pub fn askback(&self) -> Askback {
        Askback::new(self.pool.clone()).lease(Duration::from_secs(4)).grace(Duration::from_millis(500))
    }

    /// A handle with the test's agent.
    pub fn lab(&self, setup: impl Fn() -> Setup + Send + Sync + 'static) -> Askback {
        self.askback().agent::<Lab>(LabApp { setup: Arc::new(setup) })
    }

    /// A chat of the test's agent to which somebody has spoken.
    pub async fn chat(&self, askback: &Askback) -> Chat {
        let chat = askback.start(&self.pool, &Lab {}, "carl").await.unwrap();
        chat.say(&self.pool, "please").await.unwrap();
        chat
    }

    pub async fn exec(&self, sql: &str) -> u64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match &self.pool {
            Pool::Postgres(pool) => sqlx::query(sql).execute(pool).await.unwrap().rows_affected(),
            Pool::MySql(pool) => sqlx::query(sql).execute(pool).await.unwrap().rows_affected(),
            Pool::Sqlite(pool) => sqlx::query(sql).execute(pool).await.unwrap().rows_affected(),
            _ => unreachable!(),
        }
    }

    pub async fn count(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match &self.pool {
            Pool::Postgres(pool) => sqlx::query_scalar(sql).fetch_one(pool).await.unwrap(),
            Pool::MySql(pool) => sqlx::query_scalar(sql).fetch_one(pool).await.unwrap(),
            Pool::Sqlite(pool) => sqlx::query_scalar(sql).fetch_one(pool).await.unwrap(),
            _ => unreachable!(),
        }
    }

    /// How many real side effects the tools had.
    pub async fn ledger(&self) -> i64 {
        self.count("select count(*) from ledger").await
    }

    /// What must hold of the rows at any time, looked at through the rows alone.
    pub async fn check_invariants(&self) {
        if self.count(&self.has_table("askback_chats")).await == 0 {
            return;
        }
        let never = [
            (
                "a position is missing",
                "select count(*) from askback_chats c where c.next_position <>
                (select count(*) from askback_messages m where m.chat_id = c.id)",
            ),
            (
                "a message stands behind an open call",
                "select count(*) from askback_tool_calls t
                join askback_messages m on m.chat_id = t.chat_id and m.position > t.message_position
                where t.result_kind is null",
            ),
            (
                "an idle chat has an open call",
                "select count(*) from askback_chats c
                join askback_tool_calls t on t.chat_id = c.id
                where c.state = 'idle' and t.result_kind is null",
            ),
            ("a chat is still leased", "select count(*) from askback_chats where lease_token is not null"),
            (
                "a call waits for nothing",
                "select count(*) from askback_tool_calls
                where state = 'waiting' and open_count < 1",
            ),
            (
                "a result without a text",
                "select count(*) from askback_tool_calls
                where result_kind is not null and result is null",
            ),
            (
                "two calls at one place",
                "select count(*) from (select 1 from askback_tool_calls
                group by chat_id, message_position, position having count(*) > 1) x",
            ),
            (
                "a call waits and nobody will look",
                "select count(*) from askback_chats c
                join askback_tool_calls t on t.chat_id = c.id and t.state = 'ready'
                where c.state = 'idle'",
            ),
        ];
        for (what, sql) in never {
            assert_eq!(self.count(sql).await, 0, "{what}");
        }
        self.check_decisions().await;
    }

    /// Every decision on a question has its audit row, and the other way round.
    async fn check_decisions(&self) {
        let askback = self.askback();
        for chat in self.chat_ids().await {
            let chat = askback.chat(chat);
            let audit = chat.decisions(&self.pool).await.unwrap();
            let mut on_calls = self
                .count(&format!("select count(*) from askback_decisions where chat_id = {}", self.uuid(chat.id().0)))
                .await;
            for call in &chat.transcript(&self.pool).await.unwrap().calls {
                on_calls -= call.decisions().len() as i64;
            }
            assert_eq!(on_calls, 0, "decisions on calls and audit rows differ: {audit:?}");
        }
    }

    async fn chat_ids(&self) -> Vec<askback::ChatId> {
        let sql = "select id from askback_chats";
        let ids: Vec<uuid::Uuid> = match &self.pool {
            Pool::Postgres(pool) => sqlx::query_scalar(sql).fetch_all(pool).await.unwrap(),
            Pool::MySql(pool) => sqlx::query_scalar(sql).fetch_all(pool).await.unwrap(),
            Pool::Sqlite(pool) => sqlx::query_scalar(sql).fetch_all(pool).await.unwrap(),
            _ => unreachable!(),
        };
        ids.into_iter().map(askback::ChatId).collect()
    }

    fn has_table(&self, table: &str) -> String {
        match self.backend {
            Backend::Sqlite => format!("select count(*) from sqlite_master where name = '{table}'"),
            Backend::Postgres => format!("select count(*) from pg_tables where tablename = '{table}'"),
            Backend::MySql => format!(
                "select count(*) from information_schema.tables
                  where table_schema = database() and table_name = '{table}'"
            ),
        }
    }

    /// An id as a literal of this database.
    pub fn uuid(&self, id: uuid::Uuid) -> String {
        match self.backend {
            Backend::Postgres => format!("'{id}'"),
            _ => format!("x'{}'", id.simple()),
        }
    }
}

pub async fn connect(url: &str, connections: u32) -> Pool {
    if url.starts_with("postgres") {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(connections).connect(url).await.unwrap();
        Pool::from(pool)
    } else if url.starts_with("mysql") {
        let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(connections).connect(url).await.unwrap();
        Pool::from(pool)
    } else {
        let options = url
            .parse::<sqlx::sqlite::SqliteConnectOptions>()
            .unwrap()
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .synchronous(sqlx::sqlite::SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(20));
        let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(connections).connect_with(options).await;
        Pool::from(pool.unwrap())
    }
}

async fn close(pool: Pool) {
    match pool {
        Pool::Postgres(pool) => pool.close().await,
        Pool::MySql(pool) => pool.close().await,
        Pool::Sqlite(pool) => pool.close().await,
        _ => {}
    }
}

/// Runs a statement on the server's own database.
async fn admin(url: &str, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    let connect = connect(url, 1).await;
    let _rows = match &connect {
        Pool::Postgres(pool) => sqlx::query(sql).execute(pool).await.unwrap().rows_affected(),
        Pool::MySql(pool) => sqlx::query(sql).execute(pool).await.unwrap().rows_affected(),
        _ => unreachable!(),
    };
    close(connect).await;
}

/// The test's agent: its setup is a closure.
#[derive(Serialize, Deserialize)]
pub struct Lab {}

pub struct LabApp {
    pub setup: Arc<dyn Fn() -> Setup + Send + Sync>,
}

impl Agent for Lab {
    const NAME: &str = "lab";
    type App = LabApp;

    async fn setup(&self, app: &LabApp, _: &AgentContext) -> Result<Setup, BoxError> {
        Ok((app.setup)())
    }
}

/// A turn that calls tools without arguments: `(wire id, tool)`.
pub fn calls<'a>(calls: impl IntoIterator<Item = (&'a str, &'a str)>) -> askback::provider::Turn {
    calls.into_iter().fold(askback::provider::Turn::default(), |turn, (id, tool)| turn.call(id, tool, "{}"))
}

/// A model that calls these tools in one turn and then says "done", whoever asks it and however often.
pub fn calls_then_done(turn: askback::provider::Turn) -> Scripted {
    Scripted::rule(move |request: &askback::provider::Request| match request.history.last() {
        Some(askback::provider::Entry::User { .. }) => turn.clone(),
        _ => askback::provider::Turn::text("done"),
    })
}
