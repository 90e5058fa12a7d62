//! Three databases, one text: the connection an app lends us, and how a statement is written for each.

use std::borrow::Cow;

use chrono::{DateTime, SubsecRound, Utc};
use sqlx::{AssertSqlSafe, FromRow, query, query_as};

use crate::error::Result;
#[cfg(feature = "sqlite")]
use crate::store::dialect::time_text;
use crate::store::dialect::{Arg, Sql};

/// Which database a connection speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Database {
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres,
    /// MySQL and MariaDB.
    #[cfg(feature = "mysql")]
    MySql,
    /// SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite,
}

/// A pool of one of the databases; cheap to clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Pool {
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    /// MySQL and MariaDB.
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
    /// SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
}

/// A borrowed connection of one of the databases, inside or outside a transaction.
#[derive(Debug)]
#[non_exhaustive]
pub enum Conn<'c> {
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(&'c mut sqlx::PgConnection),
    /// MySQL and MariaDB.
    #[cfg(feature = "mysql")]
    MySql(&'c mut sqlx::MySqlConnection),
    /// SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut sqlx::SqliteConnection),
}

/// Where a verb reads or writes: a pool (askback opens and commits its own
/// transaction), a connection, or the app's open transaction (askback neither
/// commits nor rolls back, and nothing counts before the app commits).
///
/// Made by `Into` from `&PgPool`, `&mut Transaction<'_, Postgres>`,
/// `&mut PgConnection`, `&mut PoolConnection<Postgres>` and the same of the
/// other databases.
#[derive(Debug)]
#[non_exhaustive]
pub enum Db<'c> {
    /// A pool.
    Pool(Pool),
    /// A connection or an open transaction of the app's.
    Conn(Conn<'c>),
}

/// An open transaction of ours.
#[derive(Debug)]
pub(crate) enum Tx<'t> {
    #[cfg(feature = "postgres")]
    Postgres(sqlx::Transaction<'t, sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(sqlx::Transaction<'t, sqlx::MySql>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'t, sqlx::Sqlite>),
}

/// A connection taken out of a pool.
#[derive(Debug)]
pub(crate) enum Pooled {
    #[cfg(feature = "postgres")]
    Postgres(sqlx::pool::PoolConnection<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(sqlx::pool::PoolConnection<sqlx::MySql>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::pool::PoolConnection<sqlx::Sqlite>),
}

macro_rules! backend {
    ($feature:literal, $variant:ident, $db:ty, $pool:ty, $conn:ty) => {
        #[cfg(feature = $feature)]
        impl From<&$pool> for Pool {
            fn from(pool: &$pool) -> Self {
                Pool::$variant(pool.clone())
            }
        }
        #[cfg(feature = $feature)]
        impl From<$pool> for Pool {
            fn from(pool: $pool) -> Self {
                Pool::$variant(pool)
            }
        }
        #[cfg(feature = $feature)]
        impl<'c> From<&$pool> for Db<'c> {
            fn from(pool: &$pool) -> Self {
                Db::Pool(pool.into())
            }
        }
        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut $conn> for Conn<'c> {
            fn from(conn: &'c mut $conn) -> Self {
                Conn::$variant(conn)
            }
        }
        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut $conn> for Db<'c> {
            fn from(conn: &'c mut $conn) -> Self {
                Db::Conn(conn.into())
            }
        }
        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut sqlx::Transaction<'_, $db>> for Db<'c> {
            fn from(tx: &'c mut sqlx::Transaction<'_, $db>) -> Self {
                Db::Conn(Conn::$variant(tx))
            }
        }
        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut sqlx::pool::PoolConnection<$db>> for Db<'c> {
            fn from(conn: &'c mut sqlx::pool::PoolConnection<$db>) -> Self {
                Db::Conn(Conn::$variant(conn))
            }
        }
    };
}
backend!("postgres", Postgres, sqlx::Postgres, sqlx::PgPool, sqlx::PgConnection);
backend!("mysql", MySql, sqlx::MySql, sqlx::MySqlPool, sqlx::MySqlConnection);
backend!("sqlite", Sqlite, sqlx::Sqlite, sqlx::SqlitePool, sqlx::SqliteConnection);

impl<'c> From<Conn<'c>> for Db<'c> {
    fn from(conn: Conn<'c>) -> Self {
        Db::Conn(conn)
    }
}

impl<'c> From<&Pool> for Db<'c> {
    fn from(pool: &Pool) -> Self {
        Db::Pool(pool.clone())
    }
}

/// The same expression on the driver's own connection, pool or transaction.
macro_rules! each {
    ($enum:ident, $value:expr, $c:ident => $e:expr) => {
        match $value {
            #[cfg(feature = "postgres")]
            $enum::Postgres($c) => $e,
            #[cfg(feature = "mysql")]
            $enum::MySql($c) => $e,
            #[cfg(feature = "sqlite")]
            $enum::Sqlite($c) => $e,
        }
    };
}

/// The same enum's variant around what the driver gives.
macro_rules! wrap {
    ($from:ident, $value:expr, $to:ident, $c:ident => $e:expr) => {
        match $value {
            #[cfg(feature = "postgres")]
            $from::Postgres($c) => $to::Postgres($e),
            #[cfg(feature = "mysql")]
            $from::MySql($c) => $to::MySql($e),
            #[cfg(feature = "sqlite")]
            $from::Sqlite($c) => $to::Sqlite($e),
        }
    };
}

impl Pool {
    /// Which database it is.
    pub fn database(&self) -> Database {
        match self {
            #[cfg(feature = "postgres")]
            Pool::Postgres(_) => Database::Postgres,
            #[cfg(feature = "mysql")]
            Pool::MySql(_) => Database::MySql,
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(_) => Database::Sqlite,
        }
    }

    pub(crate) async fn acquire(&self) -> Result<Pooled> {
        Ok(wrap!(Pool, self, Pooled, pool => pool.acquire().await?))
    }

    pub(crate) async fn begin(&self) -> Result<Tx<'static>> {
        Ok(match self {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => Tx::Postgres(pool.begin().await?),
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => Tx::MySql(pool.begin_with(BEGIN_MYSQL).await?),
            #[cfg(feature = "sqlite")]
            Pool::Sqlite(pool) => Tx::Sqlite(pool.begin_with(BEGIN_SQLITE).await?),
        })
    }
}

/// Read committed, because under MySQL's default a plain read after a locking one shows the older snapshot.
#[cfg(feature = "mysql")]
const BEGIN_MYSQL: &str = "set transaction isolation level read committed; start transaction";
/// Immediate, because a transaction that reads first may not be allowed to write any more.
#[cfg(feature = "sqlite")]
const BEGIN_SQLITE: &str = "begin immediate";

impl Tx<'_> {
    pub(crate) fn conn(&mut self) -> Conn<'_> {
        wrap!(Tx, self, Conn, tx => tx)
    }

    pub(crate) async fn commit(self) -> Result<()> {
        each!(Tx, self, tx => tx.commit().await?);
        Ok(())
    }
}

impl Pooled {
    pub(crate) fn conn(&mut self) -> Conn<'_> {
        wrap!(Pooled, self, Conn, conn => conn)
    }
}

impl<'c> Conn<'c> {
    /// Whether a transaction is open, as far as sqlx has been told (`begin`, not a `BEGIN` sent as text).
    pub(crate) fn is_in_transaction(&self) -> bool {
        use sqlx::Connection;
        each!(Conn, self, conn => conn.is_in_transaction())
    }

    pub(crate) async fn begin(self) -> Result<Tx<'c>> {
        use sqlx::Connection;
        Ok(match self {
            #[cfg(feature = "postgres")]
            Conn::Postgres(conn) => Tx::Postgres(conn.begin().await?),
            #[cfg(feature = "mysql")]
            Conn::MySql(conn) => Tx::MySql(conn.begin_with(BEGIN_MYSQL).await?),
            #[cfg(feature = "sqlite")]
            Conn::Sqlite(conn) => Tx::Sqlite(conn.begin_with(BEGIN_SQLITE).await?),
        })
    }

    /// Which database it is.
    pub fn database(&self) -> Database {
        match self {
            #[cfg(feature = "postgres")]
            Conn::Postgres(_) => Database::Postgres,
            #[cfg(feature = "mysql")]
            Conn::MySql(_) => Database::MySql,
            #[cfg(feature = "sqlite")]
            Conn::Sqlite(_) => Database::Sqlite,
        }
    }

    /// The same connection, lent on.
    pub fn reborrow(&mut self) -> Conn<'_> {
        wrap!(Conn, self, Conn, conn => conn)
    }
}

/// A row that can be read from every database. `#[derive(sqlx::FromRow)]` gives all of it.
#[cfg(feature = "postgres")]
pub(crate) trait FromPg: for<'r> FromRow<'r, sqlx::postgres::PgRow> {}
#[cfg(feature = "postgres")]
impl<T: for<'r> FromRow<'r, sqlx::postgres::PgRow>> FromPg for T {}
#[cfg(not(feature = "postgres"))]
pub(crate) trait FromPg {}
#[cfg(not(feature = "postgres"))]
impl<T> FromPg for T {}

#[cfg(feature = "mysql")]
pub(crate) trait FromMy: for<'r> FromRow<'r, sqlx::mysql::MySqlRow> {}
#[cfg(feature = "mysql")]
impl<T: for<'r> FromRow<'r, sqlx::mysql::MySqlRow>> FromMy for T {}
#[cfg(not(feature = "mysql"))]
pub(crate) trait FromMy {}
#[cfg(not(feature = "mysql"))]
impl<T> FromMy for T {}

#[cfg(feature = "sqlite")]
pub(crate) trait FromLite: for<'r> FromRow<'r, sqlx::sqlite::SqliteRow> {}
#[cfg(feature = "sqlite")]
impl<T: for<'r> FromRow<'r, sqlx::sqlite::SqliteRow>> FromLite for T {}
#[cfg(not(feature = "sqlite"))]
pub(crate) trait FromLite {}
#[cfg(not(feature = "sqlite"))]
impl<T> FromLite for T {}

/// A row that can be read from every database that is built in.
pub(crate) trait Record: FromPg + FromMy + FromLite + Send + Unpin {}
impl<T: FromPg + FromMy + FromLite + Send + Unpin> Record for T {}

macro_rules! bind {
    ($query:expr, $args:expr, $c:ident, arrays) => {
        bind!(@ $query, $args, |v: DateTime<Utc>| v, q => {
            Arg::Uuids(v) => q.bind(v),
            Arg::Texts(v) => q.bind(v),
            Arg::Ints(v) => q.bind(v),
        })
    };
    ($query:expr, $args:expr, $c:ident, $time:expr) => {
        bind!(@ $query, $args, $time, q => {
            // Statements with arrays are PostgreSQL's own.
            Arg::Uuids(_) | Arg::Texts(_) | Arg::Ints(_) => q,
        })
    };
    (@ $query:expr, $args:expr, $time:expr, $q:ident => { $($arrays:tt)* }) => {{
        let mut $q = $query;
        for arg in $args {
            $q = match arg {
                Arg::Uuid(v) => $q.bind(v),
                Arg::Text(v) => $q.bind(v.map(Cow::into_owned)),
                Arg::Int(v) => $q.bind(v),
                Arg::Bool(v) => $q.bind(v),
                Arg::Time(v) => $q.bind(v.map(|v| ($time)(v.trunc_subsecs(6)))),
                $($arrays)*
            };
        }
        $q
    }};
}

/// Runs the driver's query on the connection at hand, with its values bound.
macro_rules! run {
    ($self:ident, $sql:ident, $args:ident, $query:ident, $q:ident, $c:ident => $e:expr) => {{
        let text = $sql.for_database($self.conn.database(), $self.clock_ms);
        match &mut $self.conn {
            #[cfg(feature = "postgres")]
            Conn::Postgres($c) => {
                let $q = bind!($query(safe(text)), $args, $c, arrays);
                $e
            }
            #[cfg(feature = "mysql")]
            Conn::MySql($c) => {
                let $q = bind!($query(safe(text)), $args, $c, |v: DateTime<Utc>| v);
                $e
            }
            #[cfg(feature = "sqlite")]
            Conn::Sqlite($c) => {
                let $q = bind!($query(safe(text)), $args, $c, time_text);
                $e
            }
        }
    }};
}

/// Our statements are static texts; only the test clock's offset, a number, is written into them.
fn safe(text: Cow<'static, str>) -> sqlx::SqlStr {
    use sqlx::SqlSafeStr;
    match text {
        Cow::Borrowed(text) => text.into_sql_str(),
        Cow::Owned(text) => AssertSqlSafe(text).into_sql_str(),
    }
}

/// A connection and how statements are run on it.
#[derive(Debug)]
pub(crate) struct Session<'c> {
    pub(crate) conn: Conn<'c>,
    pub(crate) clock_ms: i64,
}

impl Session<'_> {
    /// Runs a statement; how many rows it touched (or matched).
    pub(crate) async fn exec(&mut self, sql: &'static Sql, args: Vec<Arg<'_>>) -> Result<u64> {
        Ok(run!(self, sql, args, query, q, c => q.execute(&mut **c).await?.rows_affected()))
    }

    pub(crate) async fn all<T: Record>(&mut self, sql: &'static Sql, args: Vec<Arg<'_>>) -> Result<Vec<T>> {
        Ok(run!(self, sql, args, query_as, q, c => q.fetch_all(&mut **c).await?))
    }

    pub(crate) async fn one<T: Record>(&mut self, sql: &'static Sql, args: Vec<Arg<'_>>) -> Result<Option<T>> {
        Ok(run!(self, sql, args, query_as, q, c => q.fetch_optional(&mut **c).await?))
    }

    pub(crate) fn database(&self) -> Database {
        self.conn.database()
    }
}

/// What a verb works on: the app's connection, or one of ours.
#[derive(Debug)]
pub(crate) struct Held<'c> {
    inner: Holding<'c>,
    clock_ms: i64,
}

#[derive(Debug)]
enum Holding<'c> {
    Pooled(Pooled),
    /// The app's connection with no transaction open: those we need are ours.
    Bare(Conn<'c>),
    Tx(Tx<'c>),
    Host(Conn<'c>),
}

impl<'c> Db<'c> {
    pub(crate) fn database(&self) -> Database {
        match self {
            Db::Pool(pool) => pool.database(),
            Db::Conn(conn) => conn.database(),
        }
    }

    /// The pool, where askback opens and commits by itself.
    pub(crate) fn pool(&self) -> Option<Pool> {
        match self {
            Db::Pool(pool) => Some(pool.clone()),
            Db::Conn(_) => None,
        }
    }

    /// For a single statement.
    pub(crate) async fn hold(self, clock_ms: i64) -> Result<Held<'c>> {
        let inner = match self {
            Db::Pool(pool) => Holding::Pooled(pool.acquire().await?),
            Db::Conn(conn) if conn.is_in_transaction() => Holding::Host(conn),
            Db::Conn(conn) => Holding::Bare(conn),
        };
        Ok(Held { inner, clock_ms })
    }

    /// For statements that belong together: in a transaction of ours, or in the app's.
    pub(crate) async fn transact(self, clock_ms: i64) -> Result<Held<'c>> {
        let inner = match self {
            Db::Pool(pool) => Holding::Tx(pool.begin().await?),
            Db::Conn(conn) if conn.is_in_transaction() => Holding::Host(conn),
            Db::Conn(conn) => Holding::Tx(conn.begin().await?),
        };
        Ok(Held { inner, clock_ms })
    }

    /// For a verb that is one statement on PostgreSQL and several elsewhere.
    pub(crate) async fn hold_or_transact(self, clock_ms: i64) -> Result<Held<'c>> {
        match self.database() {
            #[cfg(feature = "postgres")]
            Database::Postgres => self.hold(clock_ms).await,
            #[allow(unreachable_patterns)]
            _ => self.transact(clock_ms).await,
        }
    }
}

impl Held<'_> {
    /// Whether the connection is one of ours.
    pub(crate) fn is_own(&self) -> bool {
        !matches!(self.inner, Holding::Host(_))
    }

    /// Whether a settlement is one statement here.
    pub(crate) fn is_one_statement(&mut self) -> bool {
        match self.session().database() {
            #[cfg(feature = "postgres")]
            Database::Postgres => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// A transaction of ours on the connection at hand; `None` in the app's, which is open already.
    pub(crate) async fn begin(&mut self) -> Result<Option<Tx<'_>>> {
        match &mut self.inner {
            Holding::Pooled(pooled) => pooled.conn().begin().await.map(Some),
            Holding::Bare(conn) => conn.reborrow().begin().await.map(Some),
            Holding::Tx(_) | Holding::Host(_) => Ok(None),
        }
    }

    pub(crate) fn session(&mut self) -> Session<'_> {
        let conn = match &mut self.inner {
            Holding::Pooled(pooled) => pooled.conn(),
            Holding::Tx(tx) => tx.conn(),
            Holding::Bare(conn) | Holding::Host(conn) => conn.reborrow(),
        };
        Session { conn, clock_ms: self.clock_ms }
    }

    /// Commits what is ours; the app's transaction is left alone.
    pub(crate) async fn commit(self) -> Result<()> {
        match self.inner {
            Holding::Tx(tx) => tx.commit().await,
            Holding::Pooled(_) | Holding::Bare(_) | Holding::Host(_) => Ok(()),
        }
    }
}

/// A connection of ours beside the pool, on whatever runtime asks for it.
#[derive(Debug)]
pub(crate) enum Own {
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgConnection),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlConnection),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqliteConnection),
}

impl Own {
    pub(crate) async fn connect(pool: &Pool) -> Result<Self> {
        use sqlx::ConnectOptions;
        Ok(wrap!(Pool, pool, Own, pool => pool.connect_options().connect().await?))
    }

    pub(crate) fn conn(&mut self) -> Conn<'_> {
        wrap!(Own, self, Conn, conn => conn)
    }
}
