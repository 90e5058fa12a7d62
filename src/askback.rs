//! The handle an app holds: its pool, its agents and some options.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::agent::{Agent, Lent, Registered, Stored};
use crate::chat::Chat;
use crate::decision::{MAX_NAME_BYTES, plain};
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::id::ChatId;
use crate::lease::{Leases, Terms};
use crate::store::chats::{self, NewChat};
use crate::store::conn::{Conn, Db, Held, Pool, Session};
use crate::store::questions::{self, Settlement, Verdict};
use crate::wake::Wakes;

/// The most bytes a person's text may have: 4 MiB.
pub const MAX_TEXT_BYTES: usize = 4 * 1024 * 1024;

/// A shorter lease would end before it could be renewed.
const MIN_LEASE: Duration = Duration::from_millis(100);
/// As long as anything is waited for.
const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

/// The handle an app holds: its pool, its agents and some options. Cheap to clone.
///
/// One per process is enough, and needs no I/O to make. Its leases are renewed
/// by a thread of its own while it drives chats.
#[derive(Clone)]
pub struct Askback {
    inner: Arc<Inner>,
}

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) pool: Pool,
    pub(crate) agents: BTreeMap<String, Arc<dyn Registered>>,
    pub(crate) options: Options,
    pub(crate) enqueue: Option<Arc<dyn DynEnqueue>>,
    leases: Arc<Leases>,
    wakes: Arc<Wakes>,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    pub(crate) lock_timeout: Duration,
    pub(crate) max_failures: u32,
    pub(crate) clock: Clock,
}

/// How far the database's clock is moved; only tests move it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Arc<AtomicI64>);

impl Clock {
    pub(crate) fn offset_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A clock that a test moves: what the database says, plus so much.
#[cfg(feature = "test-util")]
#[derive(Clone, Debug, Default)]
pub struct TestClock(Clock);

#[cfg(feature = "test-util")]
impl TestClock {
    /// A clock that shows the database's time.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves it forward; expiries, leases and back-off are decided by it.
    pub fn advance(&self, time: Duration) {
        self.0.0.fetch_add(chats::millis(time), Ordering::Relaxed);
    }
}

/// Hands a chat that can go on to a queue of the app's own.
///
/// Called in the transaction in which a text or a last answer made the chat
/// ready, so that the job exists exactly if the answer does. The job calls
/// [`Chat::complete`]; it is only a hint, and one that comes twice finds nothing
/// to do. Nothing is enqueued for a crash, a back-off or a question that
/// expires: run a [`Worker`](crate::Worker) for those.
pub trait Enqueue: Send + Sync + 'static {
    /// Puts a job for `chat` into the queue, not to be run before `run_at`.
    ///
    /// # Errors
    /// Any error undoes the answer, in a transaction of askback's own.
    fn resume(
        &self,
        chat: ChatId,
        run_at: DateTime<Utc>,
        conn: Conn<'_>,
    ) -> impl Future<Output = std::result::Result<(), BoxError>> + Send;
}

pub(crate) trait DynEnqueue: Send + Sync {
    fn resume<'a>(
        &'a self,
        chat: ChatId,
        run_at: DateTime<Utc>,
        conn: Conn<'a>,
    ) -> BoxFuture<'a, std::result::Result<(), BoxError>>;
}

impl<E: Enqueue> DynEnqueue for E {
    fn resume<'a>(
        &'a self,
        chat: ChatId,
        run_at: DateTime<Utc>,
        conn: Conn<'a>,
    ) -> BoxFuture<'a, std::result::Result<(), BoxError>> {
        Box::pin(Enqueue::resume(self, chat, run_at, conn))
    }
}

impl Askback {
    /// A handle on the chats of this database.
    pub fn new(pool: impl Into<Pool>) -> Self {
        let options = Options {
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(10),
            max_failures: 8,
            clock: Clock::default(),
        };
        let inner = Inner {
            pool: pool.into(),
            agents: BTreeMap::new(),
            options,
            enqueue: None,
            leases: Arc::default(),
            wakes: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// Registers an agent under its name, with what the app lends it.
    #[must_use]
    pub fn agent<A: Agent>(self, app: A::App) -> Self {
        self.with(|inner| drop(inner.agents.insert(A::NAME.to_owned(), Arc::new(Lent::<A> { app }))))
    }

    /// How long a lease on a chat lasts; 30 s unless said otherwise, at least 100 ms and at most a day. It is renewed four times in that time.
    ///
    /// After a crash others take the chat over when lease and grace have passed.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|inner| {
            inner.options.lease = lease.clamp(MIN_LEASE, MAX_LEASE);
            inner.leases = Arc::default();
        })
    }

    /// How long others wait after a lease has ended before they take the chat; 5 s unless said otherwise, at most a day.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        self.with(|inner| {
            inner.options.grace = grace.min(MAX_LEASE);
            inner.leases = Arc::default();
        })
    }

    /// How long an answer waits for its row before it is [`Busy`](ErrorKind::Busy); 10 s unless said otherwise.
    /// On PostgreSQL; elsewhere the database's own setting holds.
    #[must_use]
    pub fn lock_timeout(self, timeout: Duration) -> Self {
        self.with(|inner| inner.options.lock_timeout = timeout.clamp(Duration::from_millis(1), MAX_LEASE))
    }

    /// After how many failures in a row a chat is `failed` and left alone; 8 unless said otherwise.
    #[must_use]
    pub fn max_failures(self, failures: u32) -> Self {
        self.with(|inner| inner.options.max_failures = failures.max(1))
    }

    /// Hands chats that can go on to a queue of the app's own.
    #[must_use]
    pub fn enqueue(self, queue: impl Enqueue) -> Self {
        self.with(|inner| inner.enqueue = Some(Arc::new(queue)))
    }

    /// Moves the database's clock, for tests.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(self, clock: &TestClock) -> Self {
        self.with(|inner| {
            inner.options.clock = clock.0.clone();
            inner.leases = Arc::default();
        })
    }

    /// The pool it works on.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// A handle on a chat. No I/O.
    pub fn chat(&self, id: ChatId) -> Chat {
        Chat { askback: self.clone(), id }
    }

    /// Starts a chat: one row, in whatever transaction the app passes.
    ///
    /// `actor` is on whose behalf the agent acts.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) when the agent cannot be kept on a row.
    pub async fn start<'c, A: Agent>(
        &self,
        db: impl Into<Db<'c>>,
        agent: &A,
        actor: impl Into<String>,
    ) -> Result<Chat> {
        self.start_with(db, agent, actor, Start::default()).await
    }

    /// Starts a chat with an id, a tenant or metadata of the app's.
    ///
    /// # Errors
    /// As [`start`](Askback::start); [`Conflict`](ErrorKind::Conflict) when the id is taken.
    pub async fn start_with<'c, A: Agent>(
        &self,
        db: impl Into<Db<'c>>,
        agent: &A,
        actor: impl Into<String>,
        start: Start,
    ) -> Result<Chat> {
        let stored = Stored::of(agent)?;
        let (id, actor) = (start.id.unwrap_or_default(), actor.into());
        plain("the tenant", &start.tenant, MAX_NAME_BYTES)?;
        plain("the actor", &actor, MAX_NAME_BYTES)?;
        plain("the agent's name", A::NAME, MAX_NAME_BYTES)?;
        plain("the agent's action", &stored.action, MAX_NAME_BYTES)?;
        let metadata = start.metadata.map(|value| value.to_string());
        if let Some(text) = &metadata {
            let value: Value = serde_json::from_str(text)
                .map_err(|e| Error::invalid("the metadata cannot be read back").caused_by(e))?;
            if has_nul(&value) {
                return Err(Error::invalid("the metadata contains a NUL character, which databases cannot keep"));
            }
        }
        let chat = NewChat {
            id,
            tenant: &start.tenant,
            agent: A::NAME,
            action: &stored.action,
            arguments: &stored.arguments,
            actor: &actor,
            metadata,
        };
        let mut held = db.into().hold(self.inner.clock_ms()).await?;
        chats::insert(&mut held.session(), &chat).await.map_err(|e| {
            let taken = std::error::Error::source(&e)
                .and_then(|e| e.downcast_ref::<sqlx::Error>())
                .and_then(sqlx::Error::as_database_error)
                .is_some_and(|e| e.is_unique_violation());
            match taken {
                true => Error::new(ErrorKind::Conflict, format!("there is a chat {id} already")).caused_by(e),
                false => e.while_doing(format!("starting chat {id}")),
            }
        })?;
        Ok(self.chat(id))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl fmt::Debug for Askback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Askback")
            .field("database", &self.inner.pool.database())
            .field("agents", &self.inner.agents.keys())
            .field("options", &self.inner.options)
            .finish()
    }
}

impl Inner {
    pub(crate) fn clock_ms(&self) -> i64 {
        self.options.clock.offset_ms()
    }

    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms {
            pool: self.pool.clone(),
            lease: self.options.lease,
            grace: self.options.grace,
            clock: self.options.clock.clone(),
        }
    }

    pub(crate) fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }

    /// After a commit of ours: tells the workers.
    pub(crate) fn wake(&self, chat: ChatId) {
        self.wakes.send(&self.pool, chat);
    }

    /// Settles a question, in a transaction of ours or in the app's. Ours is tried again when the database undid it.
    pub(crate) async fn settle(&self, held: &mut Held<'_>, settlement: &Settlement) -> Result<Verdict> {
        if !held.is_own() {
            let mut session = held.session();
            let verdict = questions::settle(&mut session, settlement, None).await?;
            if verdict.ready {
                self.enqueue_in(&mut session.conn, settlement.chat).await?;
            }
            return Ok(verdict);
        }
        let mut tries = 0;
        let verdict = loop {
            match self.settle_own(held, settlement).await {
                Err(e) if e.kind() == ErrorKind::Restart && tries < 5 => tries += 1,
                Err(e) if e.kind() == ErrorKind::Retry => return Err(busy(e)),
                settled => break settled?,
            }
        };
        if verdict.ready {
            self.wake(settlement.chat);
        }
        Ok(verdict)
    }

    async fn settle_own(&self, held: &mut Held<'_>, settlement: &Settlement) -> Result<Verdict> {
        let wait = Some(self.options.lock_timeout);
        // One statement needs no transaction around it, unless a job of the app's belongs to it.
        if held.is_one_statement() && self.enqueue.is_none() {
            return questions::settle(&mut held.session(), settlement, wait).await;
        }
        let clock_ms = self.clock_ms();
        let Some(mut tx) = held.begin().await? else { return Err(Error::new(ErrorKind::Database, "no transaction")) };
        let mut session = Session { conn: tx.conn(), clock_ms };
        let verdict = questions::settle(&mut session, settlement, wait).await?;
        if verdict.ready {
            self.enqueue_in(&mut session.conn, settlement.chat).await?;
        }
        tx.commit().await?;
        Ok(verdict)
    }

    pub(crate) async fn enqueue_in(&self, conn: &mut Conn<'_>, chat: ChatId) -> Result<()> {
        let Some(queue) = &self.enqueue else { return Ok(()) };
        queue.resume(chat, Utc::now(), conn.reborrow()).await.map_err(|e| {
            Error::new(ErrorKind::Database, format!("chat {chat} could not be put into the app's queue")).caused_by(e)
        })
    }
}

/// The row was held too long: the same call may succeed later.
fn busy(error: Error) -> Error {
    Error::new(ErrorKind::Busy, "the question is being worked on by somebody else; try again").caused_by(error)
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(list) => list.iter().any(has_nul),
        Value::Object(map) => map.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        _ => false,
    }
}

/// What an app may say about a chat it starts.
#[derive(Clone, Debug, Default)]
pub struct Start {
    id: Option<ChatId>,
    tenant: String,
    metadata: Option<Value>,
}

impl Start {
    /// Nothing special.
    pub fn new() -> Self {
        Self::default()
    }

    /// The chat's id, made by the app.
    #[must_use]
    pub fn id(mut self, id: ChatId) -> Self {
        self.id = Some(id);
        self
    }

    /// Whose chat it is.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Anything the app wants to find on the row.
    #[must_use]
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = Some(metadata);
        self
    }
}
