//! How a statement is written for each database, and how its values are.

use std::borrow::Cow;
use std::sync::OnceLock;

use chrono::{DateTime, SecondsFormat, Utc};
use uuid::Uuid;

use crate::store::conn::Database;

/// A value bound to a statement.
#[derive(Clone, Debug)]
pub(crate) enum Arg<'a> {
    Uuid(Option<Uuid>),
    Text(Option<Cow<'a, str>>),
    Int(Option<i64>),
    Bool(bool),
    Time(Option<DateTime<Utc>>),
    /// PostgreSQL only.
    Uuids(Vec<Uuid>),
    /// PostgreSQL only.
    Texts(Vec<Option<&'a str>>),
    /// PostgreSQL only.
    Ints(Vec<i64>),
}

macro_rules! arg_from {
    ($($from:ty => $v:ident $e:expr),* $(,)?) => { $(impl<'a> From<$from> for Arg<'a> {
        fn from($v: $from) -> Self {
            $e
        }
    })* };
}
arg_from! {
    Uuid => v Arg::Uuid(Some(v)),
    Option<Uuid> => v Arg::Uuid(v),
    crate::id::ChatId => v Arg::Uuid(Some(v.0)),
    crate::id::MessageId => v Arg::Uuid(Some(v.0)),
    crate::id::ToolCallId => v Arg::Uuid(Some(v.0)),
    &'a str => v Arg::Text(Some(Cow::Borrowed(v))),
    &'a String => v Arg::Text(Some(Cow::Borrowed(v))),
    String => v Arg::Text(Some(Cow::Owned(v))),
    Option<&'a str> => v Arg::Text(v.map(Cow::Borrowed)),
    Option<String> => v Arg::Text(v.map(Cow::Owned)),
    i64 => v Arg::Int(Some(v)),
    Option<i64> => v Arg::Int(v),
    bool => v Arg::Bool(v),
    DateTime<Utc> => v Arg::Time(Some(v)),
    Option<DateTime<Utc>> => v Arg::Time(v),
    Vec<Uuid> => v Arg::Uuids(v),
    Vec<Option<&'a str>> => v Arg::Texts(v),
    Vec<i64> => v Arg::Ints(v),
}

/// The values of a statement, in the order of its question marks.
macro_rules! args {
    ($($e:expr),* $(,)?) => { vec![$($crate::store::dialect::Arg::from($e)),*] };
}

/// A timestamp as SQLite keeps it: text of one width, so that it sorts.
pub(crate) fn time_text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, false)
}

/// A statement, written once. `?` stands for a value; what differs has a name:
///
/// - `{now}`: the database's clock at this moment of the statement
/// - `{start}`: that clock when the statement began, which an index can be searched for
/// - `{after ?}`: that clock plus so many milliseconds
/// - `{json}`: a value that is JSON text, for a column that is looked into
/// - `{same}`: equal, or both null
/// - `{lock}`: locks the row read, without waiting for foreign keys that reference it
/// - `{skip locked}`: the same, but passes over rows that others hold
pub(crate) struct Sql {
    text: &'static str,
    #[cfg(feature = "postgres")]
    postgres: OnceLock<String>,
    #[cfg(feature = "mysql")]
    mysql: OnceLock<String>,
    #[cfg(feature = "sqlite")]
    sqlite: OnceLock<String>,
}

/// A statement that is rendered once per database.
macro_rules! sql {
    ($($text:expr),+ $(,)?) => {{
        static SQL: $crate::store::dialect::Sql = $crate::store::dialect::Sql::new(concat!($($text),+));
        &SQL
    }};
}

impl Sql {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self {
            text,
            #[cfg(feature = "postgres")]
            postgres: OnceLock::new(),
            #[cfg(feature = "mysql")]
            mysql: OnceLock::new(),
            #[cfg(feature = "sqlite")]
            sqlite: OnceLock::new(),
        }
    }

    pub(crate) fn for_database(&'static self, database: Database, clock_ms: i64) -> Cow<'static, str> {
        if clock_ms != 0 {
            return Cow::Owned(render(self.text, database, clock_ms));
        }
        let cache = match database {
            #[cfg(feature = "postgres")]
            Database::Postgres => &self.postgres,
            #[cfg(feature = "mysql")]
            Database::MySql => &self.mysql,
            #[cfg(feature = "sqlite")]
            Database::Sqlite => &self.sqlite,
        };
        Cow::Borrowed(cache.get_or_init(|| render(self.text, database, 0)))
    }
}

/// Writes a statement for a database. `clock_ms` moves the clock, for tests.
fn render(text: &str, database: Database, clock_ms: i64) -> String {
    let Dialect { now, start, after, json, same, lock, skip } = dialect(database, clock_ms);
    let named = text
        .replace("{now}", &now)
        .replace("{start}", &start)
        .replace("{after ?}", &after)
        .replace("{json}", json)
        .replace("{same}", same)
        .replace("{lock}", lock)
        .replace("{skip locked}", skip);
    match database {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            // Values that a statement numbers itself (`$1`) stay as they are.
            let (mut out, mut n) = (String::with_capacity(named.len() + 32), 0);
            for ch in named.chars() {
                match ch {
                    '?' => {
                        n += 1;
                        out.push_str(&format!("${n}"));
                    }
                    ch => out.push(ch),
                }
            }
            out
        }
        #[allow(unreachable_patterns)]
        _ => named,
    }
}

/// How one database says what statements name.
struct Dialect {
    now: String,
    start: String,
    after: String,
    json: &'static str,
    same: &'static str,
    lock: &'static str,
    skip: &'static str,
}

fn dialect(database: Database, clock_ms: i64) -> Dialect {
    match database {
        #[cfg(feature = "postgres")]
        Database::Postgres => {
            let moved = |clock: &str| match clock_ms {
                0 => format!("{clock}()"),
                ms => format!("({clock}() + interval '{ms} milliseconds')"),
            };
            let now = moved("clock_timestamp");
            Dialect {
                after: format!("({now} + ?::bigint * interval '1 millisecond')"),
                now,
                start: moved("statement_timestamp"),
                json: "?::text::jsonb",
                same: "is not distinct from",
                lock: "for no key update",
                skip: "for no key update skip locked",
            }
        }
        #[cfg(feature = "mysql")]
        Database::MySql => {
            let now = match clock_ms {
                0 => "utc_timestamp(6)".to_owned(),
                ms => format!("(utc_timestamp(6) + interval {} microsecond)", ms * 1000),
            };
            Dialect {
                after: format!("({now} + interval (? * 1000) microsecond)"),
                start: now.clone(),
                now,
                json: "?",
                same: "<=>",
                lock: "for update",
                skip: "for update skip locked",
            }
        }
        #[cfg(feature = "sqlite")]
        Database::Sqlite => {
            // Text of one width: '2026-01-31T12:00:00.123000+00:00'.
            let at = |more: &str| format!("(strftime('%Y-%m-%dT%H:%M:%f', 'now'{more}) || '000+00:00')");
            let moved = match clock_ms {
                0 => String::new(),
                ms => format!(", '{:+.3} seconds'", ms as f64 / 1000.0),
            };
            Dialect {
                now: at(&moved),
                start: at(&moved),
                after: at(&format!("{moved}, (? / 1000.0) || ' seconds'")),
                json: "?",
                same: "is",
                lock: "",
                skip: "",
            }
        }
    }
}
