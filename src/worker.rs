//! The worker: finds chats that can go on, by wake-up and by looking, and drives them.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::askback::Askback;
use crate::drive::{Outcome, Until};
use crate::error::{ErrorKind, Result, chain};
use crate::id::ChatId;
use crate::store::chats;
use crate::store::conn::Db;

/// Drives every chat that can go on and whose agent is registered here.
///
/// Wake-ups make it quick (on PostgreSQL from any process, elsewhere from this
/// one); looking at the rows every now and then makes it sure. Any number of
/// workers may run, in any number of processes.
///
/// ```no_run
/// # async fn run(askback: askback::Askback) -> askback::Result<()> {
/// use askback::Worker;
///
/// Worker::new(askback).run_until(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await
/// # }
/// ```
pub struct Worker {
    askback: Askback,
    concurrency: usize,
    poll: Duration,
    stop_timeout: Duration,
    #[cfg(feature = "postgres")]
    listen: Option<sqlx::postgres::PgConnectOptions>,
}

impl std::fmt::Debug for Worker {
    // Not the options to listen with: they may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("askback", &self.askback)
            .field("concurrency", &self.concurrency)
            .field("poll", &self.poll)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker for the agents of this handle.
    pub fn new(askback: Askback) -> Self {
        Self {
            askback,
            concurrency: 16,
            poll: Duration::from_secs(2),
            stop_timeout: Duration::from_secs(30),
            #[cfg(feature = "postgres")]
            listen: None,
        }
    }

    /// How many chats it drives at once; 16 unless said otherwise.
    #[must_use]
    pub fn concurrency(mut self, chats: usize) -> Self {
        self.concurrency = chats.max(1);
        self
    }

    /// How often it looks for work that no wake-up told of; every 2 s unless said otherwise.
    #[must_use]
    pub fn poll_every(mut self, time: Duration) -> Self {
        self.poll = time.clamp(Duration::from_millis(1), Duration::from_secs(24 * 3600));
        self
    }

    /// How long it waits for its chats when it is told to stop; 30 s unless said otherwise.
    ///
    /// A chat stops after the turn or the tools that run. One that takes longer
    /// goes on until the process ends, and is taken over when its lease is over.
    #[must_use]
    pub fn stop_timeout(mut self, time: Duration) -> Self {
        self.stop_timeout = time;
        self
    }

    /// Listens for wake-ups on a connection of these options: the server's own
    /// address, where the pool goes through a pooler that does not pass them on.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn listen_on(mut self, options: sqlx::postgres::PgConnectOptions) -> Self {
        self.listen = Some(options);
        self
    }

    /// Works until `shutdown` is over, then lets go of its chats.
    ///
    /// # Errors
    /// What the database says to the first look: a wrong address, missing
    /// tables. Later failures are logged, and the worker looks again.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let inner = self.askback.inner();
        if inner.agents.is_empty() {
            tracing::warn!("no agent is registered with this handle: the worker drives nothing");
        }
        let (stop, stopping) = watch::channel(false);
        // Registered before the first look, so that nothing falls between the two.
        let mut wakes = inner.wakes().subscribe();
        let mut ears = Ears::listen(&self);
        let mut tasks = Tasks { running: HashMap::new(), again: BTreeSet::new(), set: JoinSet::new() };
        let mut told: BTreeSet<ChatId> = BTreeSet::new();
        let mut tick = tokio::time::interval_at(Instant::now() + self.poll, self.poll);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shutdown = std::pin::pin!(shutdown);

        self.look(&mut tasks, &stopping).await?;
        // Whether a look is due: with every place taken it waits for one, before all wake-ups.
        let mut due = false;
        loop {
            let free = tasks.running.len() < self.concurrency;
            tokio::select! {
                () = &mut shutdown => break,
                wake = wakes.recv() => match wake {
                    Ok(chat) => drop(told.insert(chat)),
                    // Too far behind to know which: look at all.
                    Err(broadcast::error::RecvError::Lagged(_)) => tick.reset_immediately(),
                    Err(broadcast::error::RecvError::Closed) => {}
                },
                heard = ears.heard() => match heard {
                    Some(chat) => drop(told.insert(chat)),
                    // Connected anew: what was sent meanwhile is lost.
                    None => tick.reset_immediately(),
                },
                Some(ended) = tasks.set.join_next_with_id() => {
                    let task = match &ended { Ok((task, _)) => *task, Err(e) => e.id() };
                    let chat = tasks.running.remove(&task);
                    // With every place taken, more work may have been left over.
                    if !free && told.is_empty() {
                        tick.reset_immediately();
                    }
                    if let Some(chat) = chat
                        && (tasks.again.remove(&chat) || matches!(&ended, Ok((_, Outcome::Ready))))
                    {
                        told.insert(chat);
                    }
                }
                _ = tick.tick() => due = true,
            }
            if due && tasks.running.len() < self.concurrency {
                due = false;
                if let Err(error) = self.look(&mut tasks, &stopping).await {
                    tracing::warn!(error = %chain(&error), "looking for work failed; trying again");
                }
            }
            while tasks.running.len() < self.concurrency {
                let Some(chat) = told.pop_first() else { break };
                if let Err(error) = self.consider(chat, &mut tasks, &stopping).await {
                    tracing::warn!(%chat, error = %chain(&error), "a wake-up could not be followed; the next look finds it");
                }
            }
        }
        let _ = stop.send(true);
        let ended = async { while tasks.set.join_next().await.is_some() {} };
        if tokio::time::timeout(self.stop_timeout, ended).await.is_err() {
            tracing::warn!("stopped while chats were being driven; others take them over when their leases are over");
            tasks.set.detach_all();
        }
        Ok(())
    }

    /// Looks at the rows for chats that somebody should drive.
    async fn look(&self, tasks: &mut Tasks, stopping: &watch::Receiver<bool>) -> Result<()> {
        let inner = self.askback.inner();
        let free = self.concurrency.saturating_sub(tasks.running.len());
        if free == 0 {
            return Ok(());
        }
        // Some that others take first must not hide the rest.
        let limit = i64::try_from(free.saturating_mul(4)).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        let mut held = Db::from(&inner.pool).hold(inner.clock_ms()).await?;
        for agent in inner.agents.keys() {
            found.extend(chats::workable(&mut held.session(), agent, inner.options.grace, limit).await?);
        }
        drop(held);
        // Workers that look at the same time should not all want the same chat first.
        found.sort_by_cached_key(|_| uuid::Uuid::new_v4());
        for chat in found.into_iter().take(free) {
            tasks.drive(&self.askback, chat, stopping);
        }
        Ok(())
    }

    /// Follows a wake-up, if there is work, nobody does it, and the agent is known here.
    async fn consider(&self, chat: ChatId, tasks: &mut Tasks, stopping: &watch::Receiver<bool>) -> Result<()> {
        let inner = self.askback.inner();
        let mut held = Db::from(&inner.pool).hold(inner.clock_ms()).await?;
        let agent = chats::workable_agent(&mut held.session(), inner.options.grace, chat).await?;
        if agent.is_some_and(|agent| inner.agents.contains_key(&agent)) {
            tasks.drive(&self.askback, chat, stopping);
        }
        Ok(())
    }
}

/// The chats that are being driven here.
struct Tasks {
    running: HashMap<tokio::task::Id, ChatId>,
    /// Told of while their drive was ending: its last look may have come before the answer.
    again: BTreeSet<ChatId>,
    set: JoinSet<Outcome>,
}

impl Tasks {
    fn drive(&mut self, askback: &Askback, chat: ChatId, stopping: &watch::Receiver<bool>) {
        if self.running.values().any(|running| *running == chat) {
            self.again.insert(chat);
            return;
        }
        let handle = askback.chat(chat);
        let until = Until { one_step: false, stop: Some(stopping.clone()), put_off: true };
        let task = self.set.spawn(async move {
            match handle.drive(until).await {
                Ok(outcome) => outcome,
                // Logged, counted and put off where it happened; somebody else carries on.
                Err(error) if error.kind() == ErrorKind::LeaseLost => Outcome::Busy,
                Err(error) => {
                    tracing::debug!(%chat, error = %chain(&error), "a drive failed");
                    Outcome::Busy
                }
            }
        });
        self.running.insert(task.id(), chat);
    }
}

/// Where wake-ups from other processes come in: PostgreSQL only.
struct Ears {
    #[cfg(feature = "postgres")]
    heard: Option<tokio::sync::mpsc::Receiver<Option<ChatId>>>,
}

impl Ears {
    #[cfg(feature = "postgres")]
    fn listen(worker: &Worker) -> Self {
        #[allow(irrefutable_let_patterns)]
        let options = match (&worker.listen, &worker.askback.inner().pool) {
            (Some(options), _) => options.clone(),
            (None, crate::store::conn::Pool::Postgres(pool)) => (*pool.connect_options()).clone(),
            #[allow(unreachable_patterns)]
            _ => return Self { heard: None },
        };
        let (heard, ears) = tokio::sync::mpsc::channel(1024);
        tokio::spawn(async move {
            loop {
                if let Err(error) = hear(&options, &heard).await {
                    tracing::warn!(%error, "wake-ups cannot be heard; the worker looks for work meanwhile");
                }
                if heard.is_closed() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        Self { heard: Some(ears) }
    }

    #[cfg(not(feature = "postgres"))]
    fn listen(_: &Worker) -> Self {
        Self {}
    }

    /// A chat that was told of; `None` when some may have been missed.
    async fn heard(&mut self) -> Option<ChatId> {
        #[cfg(feature = "postgres")]
        if let Some(ears) = &mut self.heard
            && let Some(heard) = ears.recv().await
        {
            return heard;
        }
        std::future::pending().await
    }
}

/// Listens on a connection of its own until that breaks or the worker is gone.
#[cfg(feature = "postgres")]
async fn hear(
    options: &sqlx::postgres::PgConnectOptions,
    heard: &tokio::sync::mpsc::Sender<Option<ChatId>>,
) -> sqlx::Result<()> {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(options.clone());
    let mut listener = sqlx::postgres::PgListener::connect_with(&pool).await?;
    listener.listen(crate::wake::CHANNEL).await?;
    loop {
        // From here on nothing is missed; before, something may have been.
        if heard.send(None).await.is_err() {
            return Ok(());
        }
        loop {
            let told = tokio::select! {
                told = listener.try_recv() => told?,
                () = heard.closed() => return Ok(()),
            };
            // Nothing means that the connection broke and stands again.
            let Some(told) = told else { break };
            let Ok(chat) = told.payload().parse() else { continue };
            if heard.send(Some(chat)).await.is_err() {
                return Ok(());
            }
        }
    }
}
