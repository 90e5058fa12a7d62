//! The lease on a chat: who may drive it, renewed while they do, and given up before it ends.
//!
//! A lease that ended proves no death, so the holder stops itself first: it
//! counts from before the request was sent, on a clock that runs on while the
//! machine sleeps or the process is stopped. One thread per process renews all
//! leases on a connection of its own, so that neither a busy runtime nor an
//! exhausted pool ends them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use crate::error::Result;
use crate::id::ChatId;
use crate::store::chats::{self, Renewed};
use crate::store::conn::{Conn, Db, Own, Pool, Session};
use crate::store::transcript::Fence;

/// Milliseconds on a clock that never goes back and runs on while the machine sleeps.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot_ms() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// Milliseconds on the process's monotonic clock.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn boot_ms() -> i64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    i64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// A lease that this process holds. Dropped without being given back, it ends by itself.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) fence: Fence,
    state: Arc<State>,
    leases: Weak<Leases>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.forget();
    }
}

impl State {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    fn is_alive(&self) -> bool {
        boot_ms() < self.deadline.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct State {
    /// Past it nothing starts and nothing is written; on [`boot_ms`].
    deadline: AtomicI64,
    cancelled: AtomicBool,
    changed: Notify,
}

impl Lease {
    /// Whether its holder may still act.
    pub(crate) fn is_alive(&self) -> bool {
        self.state.is_alive()
    }

    /// Runs a future only while the lease lasts: it is not polled once more after that, not even when the whole
    /// process was stopped meanwhile. `None` when it was cut off.
    pub(crate) fn while_alive<F: Future + Send>(&self, future: F) -> impl Future<Output = Option<F::Output>> + use<F> {
        let (state, mut future) = (self.state.clone(), Box::pin(future));
        std::future::poll_fn(move |cx| match state.is_alive() {
            true => future.as_mut().poll(cx).map(Some),
            false => Poll::Ready(None),
        })
    }

    /// No longer renews it: it was given back, or is over.
    pub(crate) fn forget(&self) {
        if let Some(leases) = self.leases.upgrade() {
            leases.held().leases.remove(&(self.fence.chat, self.fence.token));
        }
        self.state.deadline.store(i64::MIN, Ordering::Release);
    }

    /// Ends when its holder must stop.
    pub(crate) async fn ended(&self) {
        loop {
            let left = self.state.deadline.load(Ordering::Acquire) - boot_ms();
            let Ok(left @ 1..) = u64::try_from(left) else { return };
            tokio::time::sleep(Duration::from_millis(left)).await;
        }
    }

    /// Ends when the generation was cancelled.
    pub(crate) async fn cancelled(&self) {
        loop {
            let changed = self.state.changed.notified();
            if self.state.cancelled.load(Ordering::Acquire) {
                return;
            }
            changed.await;
        }
    }
}

/// The leases of this process.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    leases: HashMap<(ChatId, Uuid), Arc<State>>,
    renewing: bool,
}

impl Leases {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the chat; `None` when somebody else has it.
    pub(crate) async fn acquire(self: &Arc<Self>, terms: &Terms, chat: ChatId) -> Result<Option<Lease>> {
        let token = Uuid::new_v4();
        // From before the request: the database may count later, never earlier.
        let before = boot_ms();
        let mut held = Db::from(&terms.pool).hold(terms.clock_ms()).await?;
        if !chats::acquire(&mut held.session(), chat, token, terms.lease, terms.grace).await? {
            return Ok(None);
        }
        let state = Arc::new(State {
            deadline: AtomicI64::new(before + chats::millis(terms.lease)),
            cancelled: AtomicBool::new(false),
            changed: Notify::new(),
        });
        let mut leases = self.held();
        leases.leases.insert((chat, token), state.clone());
        if !leases.renewing {
            leases.renewing = true;
            let (weak, terms) = (Arc::downgrade(self), terms.clone());
            // A thread that cannot start leaves leases that end by themselves.
            if let Err(error) =
                std::thread::Builder::new().name("askback-leases".into()).spawn(move || renew_all(&weak, &terms))
            {
                leases.renewing = false;
                tracing::error!(%error, "leases cannot be renewed");
            }
        }
        Ok(Some(Lease { fence: Fence { chat, token }, state, leases: Arc::downgrade(self) }))
    }

    /// Tells the drivers of this process at once that a chat was cancelled; others see it when they renew.
    pub(crate) fn cancel(&self, chat: ChatId, token: Uuid) {
        for (_, state) in self.snapshot().iter().filter(|(held, _)| *held == (chat, token)) {
            state.cancel();
        }
    }

    fn snapshot(&self) -> Vec<((ChatId, Uuid), Arc<State>)> {
        self.held().leases.iter().map(|(key, state)| (*key, state.clone())).collect()
    }
}

/// On what terms chats are leased.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) pool: Pool,
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    pub(crate) clock: crate::askback::Clock,
}

impl Terms {
    fn clock_ms(&self) -> i64 {
        self.clock.offset_ms()
    }
}

/// The renewing thread: ends when the last handle of the app is gone.
fn renew_all(leases: &Weak<Leases>, terms: &Terms) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "leases cannot be renewed");
            return;
        }
    };
    runtime.block_on(async {
        let pause = (terms.lease / 4).max(Duration::from_millis(20));
        let mut own: Option<Own> = None;
        loop {
            tokio::time::sleep(pause).await;
            let Some(leases) = leases.upgrade() else { return };
            let held = leases.snapshot();
            drop(leases);
            if held.is_empty() {
                // A process that drives nothing holds no connection for it.
                own = None;
                continue;
            }
            // A server that does not answer must not keep the thread for ever.
            let renewed = tokio::time::timeout(terms.lease, renew(&mut own, terms, &held)).await;
            if !matches!(renewed, Ok(Ok(()))) {
                own = None;
                if let Ok(Err(error)) = renewed {
                    tracing::warn!(error = %crate::error::chain(&error), "leases could not be renewed; trying again");
                }
            }
        }
    });
}

async fn renew(own: &mut Option<Own>, terms: &Terms, held: &[((ChatId, Uuid), Arc<State>)]) -> Result<()> {
    let own = match own {
        Some(own) => own,
        None => own.insert(Own::connect(&terms.pool).await?),
    };
    let before = boot_ms();
    let keys: Vec<_> = held.iter().map(|(key, _)| *key).collect();
    let conn: Conn<'_> = own.conn();
    let mut session = Session { conn, clock_ms: terms.clock_ms() };
    let renewed = chats::renew(&mut session, &keys, terms.lease).await?;
    for ((_, state), renewed) in held.iter().zip(renewed) {
        let Renewed::Yes { cancelled } = renewed else { continue };
        // A lease that was given back meanwhile stays given back.
        let until = before + chats::millis(terms.lease);
        let _ = state
            .deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |was| (was != i64::MIN).then_some(was.max(until)));
        if cancelled {
            state.cancel();
        }
    }
    Ok(())
}
