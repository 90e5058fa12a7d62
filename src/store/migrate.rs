//! The schema: shipped with the crate, applied beside the app's own migrations.
//!
//! sqlx's own `Migrator` is not used to apply them: on MySQL a kill in the
//! middle leaves it refusing to go on, on SQLite two processes race, and its
//! table `_sqlx_migrations` is the app's. Here every statement may run again,
//! and `askback_migrations` says what is done.

use sqlx::{Connection, FromRow, SqlSafeStr, raw_sql};

use crate::error::{Error, ErrorKind, Result};
use crate::store::conn::{Conn, Database, Db, Session};

/// One step of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Its number, from 1.
    pub version: i64,
    /// What it brings.
    pub name: &'static str,
    /// The statements, as a person can paste them into the database's shell.
    pub sql: &'static str,
}

/// Every step of a database's schema, in order, for people who run DDL by other means.
///
/// [`migrate`](crate::migrate()) may be run later all the same: the statements may run again, and it keeps a table of
/// its own.
pub fn migrations(database: Database) -> &'static [Migration] {
    match database {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            &[Migration { version: 1, name: "chats", sql: include_str!("../../migrations/postgres/0001_chats.sql") }]
        }
        #[cfg(feature = "mysql")]
        Database::MySql => {
            &[Migration { version: 1, name: "chats", sql: include_str!("../../migrations/mysql/0001_chats.sql") }]
        }
        #[cfg(feature = "sqlite")]
        Database::Sqlite => {
            &[Migration { version: 1, name: "chats", sql: include_str!("../../migrations/sqlite/0001_chats.sql") }]
        }
    }
}

/// Brings the schema to what this build needs.
///
/// Safe to run twice, from many processes at once, and again after a kill in
/// the middle. In an open transaction of the app's it commits with that
/// (MySQL commits each DDL statement by itself). Run it before the app's own
/// migrations, so that those may reference askback's tables.
///
/// # Errors
/// [`Migration`](ErrorKind::Migration) when the schema is newer than this
/// build; [`Database`](ErrorKind::Database) when a statement fails.
pub async fn migrate<'c>(db: impl Into<Db<'c>>) -> Result<()> {
    match db.into() {
        Db::Pool(pool) => apply(pool.acquire().await?.conn()).await,
        Db::Conn(conn) => apply(conn).await,
    }
    .map_err(|e| e.while_doing("migrating askback's tables"))
}

async fn apply(conn: Conn<'_>) -> Result<()> {
    let database = conn.database();
    match conn {
        #[cfg(feature = "postgres")]
        Conn::Postgres(conn) => {
            // A savepoint if the app's transaction is open.
            let mut tx = conn.begin().await?;
            let mut session = Session { conn: Conn::Postgres(&mut tx), clock_ms: 0 };
            // Held until the outermost transaction ends; the number is arbitrary.
            session.exec(sql!("select pg_advisory_xact_lock(7021805543206911)"), args![]).await?;
            apply_all(&mut session, database).await?;
            tx.commit().await?;
        }
        #[cfg(feature = "mysql")]
        Conn::MySql(conn) => {
            let mut session = Session { conn: Conn::MySql(conn), clock_ms: 0 };
            #[derive(FromRow)]
            struct Got {
                got: Option<i64>,
            }
            // Held by the connection, so a kill lets it go.
            let sql = sql!("select cast(get_lock(concat('askback:', left(database(), 40)), 120) as signed) as got");
            if session.one::<Got>(sql, args![]).await?.and_then(|row| row.got) != Some(1) {
                return Err(Error::new(ErrorKind::Busy, "another process is migrating; it did not finish in 120 s"));
            }
            let applied = apply_all(&mut session, database).await;
            session.exec(sql!("do release_lock(concat('askback:', left(database(), 40)))"), args![]).await?;
            applied?;
        }
        #[cfg(feature = "sqlite")]
        Conn::Sqlite(conn) => {
            // Immediate, so that the second of two processes waits; a savepoint if the app's transaction is open.
            let mut tx = match conn.is_in_transaction() {
                true => conn.begin().await?,
                false => conn.begin_with("begin immediate").await?,
            };
            apply_all(&mut Session { conn: Conn::Sqlite(&mut tx), clock_ms: 0 }, database).await?;
            tx.commit().await?;
        }
    }
    Ok(())
}

async fn apply_all(session: &mut Session<'_>, database: Database) -> Result<()> {
    #[derive(FromRow)]
    struct Newest {
        version: Option<i64>,
    }
    run(
        session,
        "create table if not exists askback_migrations (
            version bigint not null primary key,
            name varchar(255) not null,
            applied_at varchar(40) not null
        )",
    )
    .await?;
    let newest = sql!("select max(version) as version from askback_migrations");
    let done = session.one::<Newest>(newest, args![]).await?.and_then(|row| row.version).unwrap_or(0);
    let all = migrations(database);
    let known = all.last().map_or(0, |migration| migration.version);
    if done > known {
        return Err(Error::new(
            ErrorKind::Migration,
            format!("the schema is at version {done}, this build knows {known}: deploy the newer build"),
        ));
    }
    for migration in all.iter().filter(|migration| migration.version > done) {
        run(session, migration.sql).await?;
        session
            .exec(
                sql!("insert into askback_migrations (version, name, applied_at) values (?, ?, ?)"),
                args![migration.version, migration.name, crate::store::dialect::time_text(chrono::Utc::now())],
            )
            .await?;
    }
    Ok(())
}

/// Runs several statements as they stand.
async fn run(session: &mut Session<'_>, text: &'static str) -> Result<()> {
    let statements = raw_sql(text.into_sql_str());
    let _rows = match &mut session.conn {
        #[cfg(feature = "postgres")]
        Conn::Postgres(conn) => statements.execute(&mut **conn).await?.rows_affected(),
        #[cfg(feature = "mysql")]
        Conn::MySql(conn) => statements.execute(&mut **conn).await?.rows_affected(),
        #[cfg(feature = "sqlite")]
        Conn::Sqlite(conn) => statements.execute(&mut **conn).await?.rows_affected(),
    };
    Ok(())
}
