//! The one error of the crate: opaque, with a kind that says what a caller can do.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// An error of any kind that an app's or a tool's code hands to askback.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What askback's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done.
///
/// [`kind`](Error::kind) says what a caller can do about it. `Display` tells
/// this layer and names the thing; the causes are behind `source()` and are
/// not repeated. Waiting, busy, already settled and capped are no errors: they
/// are values of [`Outcome`](crate::Outcome) and [`Settled`](crate::Settled).
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    doing: Option<String>,
    message: String,
    source: Option<BoxError>,
    retry_after: Option<Duration>,
}

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such chat, call or question (or the app's transaction is too old to see it).
    NotFound,
    /// The person may not answer this question. Nothing about its decision is shown.
    NotAllowed,
    /// The state of the chat does not allow it now.
    Conflict,
    /// The input is wrong; the message says what would be right.
    Invalid,
    /// The call already runs, so its approval can no longer be declined.
    ToolCallRunning,
    /// Calls of the chat have no result yet, so no text can follow them.
    PendingToolCalls,
    /// Somebody else holds the row or the chat; try again.
    Busy,
    /// The transaction is dead (serialization failure, deadlock, stale snapshot): run it again from its start.
    Restart,
    /// The database could not do it just now (lock timeout, busy file); the transaction may go on.
    Retry,
    /// No agent of that name is registered here, or the chat's row does not fit it.
    Agent,
    /// The model's provider refused, failed, or said what we cannot read.
    Provider,
    /// A tool failed and the agent stops on tool errors.
    Tool,
    /// The schema cannot be brought to what this build needs.
    Migration,
    /// The database failed, or a row holds what askback never wrote.
    Database,
    /// The lease on the chat was lost or ended; whoever holds it carries on.
    LeaseLost,
}

impl Error {
    /// Makes an error of a kind with its message.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { inner: Box::new(Inner { kind, doing: None, message: message.into(), source: None, retry_after: None }) }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Adds the cause.
    #[must_use]
    pub(crate) fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Adds how long the other side asked us to wait.
    #[must_use]
    pub(crate) fn after(mut self, wait: Option<Duration>) -> Self {
        self.inner.retry_after = wait;
        self
    }

    /// Puts what was being done before the message: `doing: message`.
    #[must_use]
    pub(crate) fn while_doing(mut self, doing: impl fmt::Display) -> Self {
        self.inner.doing = Some(match self.inner.doing.take() {
            Some(inner) => format!("{doing}: {inner}"),
            None => doing.to_string(),
        });
        self
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// What is wrong, without what was being done: for a page that shows the thing itself.
    pub fn reason(&self) -> &str {
        &self.inner.message
    }

    /// Whether the same call may succeed later as it is.
    ///
    /// After [`Restart`](ErrorKind::Restart) an app that passed its own
    /// transaction has to run that again from its start.
    pub fn is_retryable(&self) -> bool {
        match self.inner.kind {
            ErrorKind::Busy | ErrorKind::Restart | ErrorKind::Retry | ErrorKind::LeaseLost => true,
            ErrorKind::Provider => self.inner.retry_after.is_some(),
            _ => false,
        }
    }

    /// How long to wait before another try, where it is known.
    ///
    /// Zero where the provider can be asked again but named no time.
    pub fn retry_after(&self) -> Option<Duration> {
        self.inner.retry_after
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(doing) = &self.inner.doing {
            write!(f, "{doing}: ")?;
        }
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.inner.kind).field("message", &self.to_string());
        if let Some(source) = &self.inner.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|e| e as _)
    }
}

/// An error and its causes in one line, for logs and for the chat's `last_error`.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(feature = "_sql")]
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let (kind, message) = classify(&error);
        Error::new(kind, message).caused_by(error)
    }
}

/// Sorts the drivers' failures into what a caller can do.
///
/// PostgreSQL: SQLSTATE (appendix A of its manual). MySQL and MariaDB: the
/// server error numbers. SQLite: the extended result codes, whose low byte is
/// the primary one (5 busy, 6 locked; 517 is a snapshot that is too old).
#[cfg(feature = "_sql")]
fn classify(error: &sqlx::Error) -> (ErrorKind, &'static str) {
    use ErrorKind::{Database, Restart, Retry};
    let Some(db) = error.as_database_error() else {
        return match error {
            sqlx::Error::PoolTimedOut => (Retry, "no database connection became free in time"),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                (Database, "a row holds what askback did not write")
            }
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) => (Database, "the connection to the database failed"),
            _ => (Database, "the database could not be used"),
        };
    };
    #[cfg(feature = "mysql")]
    if let Some(my) = db.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return match my.number() {
            1213 | 1020 => (Restart, "the transaction met another one and was undone"),
            1205 | 3572 => (Retry, "another transaction holds the row"),
            1146 => (Database, "a table is missing: has askback::migrate run on this database?"),
            _ => (Database, "the database refused the statement"),
        };
    }
    match db.code().as_deref() {
        Some("40001" | "40P01" | "25P02") => (Restart, "the transaction met another one and was undone"),
        Some("517") => (Restart, "the transaction's snapshot is older than the newest write"),
        Some("55P03") => (Retry, "another transaction holds the row"),
        Some("57014") => (Retry, "the statement was stopped by a timeout"),
        Some("42P01") => (Database, "a table is missing: has askback::migrate run on this database?"),
        Some(code) if code.parse::<u32>().is_ok_and(|n| matches!(n & 0xff, 5 | 6)) && code.len() < 5 => {
            (Retry, "another process writes to the database file")
        }
        _ if db.message().contains("no such table") => {
            (Database, "a table is missing: has askback::migrate run on this database?")
        }
        _ => (Database, "the database refused the statement"),
    }
}
