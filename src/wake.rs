//! Wake-ups: who waits for work is told which chat has some. A lost one costs a poll, never an answer.

#[cfg(feature = "postgres")]
use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::broadcast;
#[cfg(feature = "postgres")]
use tokio::sync::mpsc;

use crate::id::ChatId;
use crate::store::conn::Pool;

/// The channel that PostgreSQL's notifications go through; the payload is a chat's id.
#[cfg(feature = "postgres")]
pub(crate) const CHANNEL: &str = "askback";

/// How many wake-ups a worker may be behind before it looks at all chats instead.
const BEHIND: usize = 1024;

/// The wake-ups of this process, and on PostgreSQL of all processes.
#[derive(Debug)]
pub(crate) struct Wakes {
    here: broadcast::Sender<ChatId>,
    #[cfg(feature = "postgres")]
    elsewhere: std::sync::Mutex<Option<mpsc::UnboundedSender<ChatId>>>,
}

impl Default for Wakes {
    fn default() -> Self {
        Self {
            here: broadcast::channel(BEHIND).0,
            #[cfg(feature = "postgres")]
            elsewhere: std::sync::Mutex::default(),
        }
    }
}

impl Wakes {
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ChatId> {
        self.here.subscribe()
    }

    /// Tells everybody that a chat has work. After the commit, and without waiting.
    pub(crate) fn send(self: &Arc<Self>, pool: &Pool, chat: ChatId) {
        // Without a worker in this process nobody listens, and that is fine.
        let _ = self.here.send(chat);
        #[cfg(feature = "postgres")]
        #[allow(irrefutable_let_patterns)]
        if let Pool::Postgres(pool) = pool {
            self.notify(pool, chat);
        }
        #[cfg(not(feature = "postgres"))]
        let _ = pool;
    }

    /// Hands the chat to the one task that sends notifications, in batches: `pg_notify` inside the answer's
    /// transaction would serialise all commits of the server.
    #[cfg(feature = "postgres")]
    fn notify(&self, pool: &sqlx::PgPool, chat: ChatId) {
        let mut sender = self.elsewhere.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if sender.as_ref().is_some_and(|sender| sender.send(chat).is_ok()) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (fresh, receiver) = mpsc::unbounded_channel();
        let _ = fresh.send(chat);
        *sender = Some(fresh);
        runtime.spawn(notify_all(pool.clone(), receiver));
    }
}

#[cfg(feature = "postgres")]
async fn notify_all(pool: sqlx::PgPool, mut chats: mpsc::UnboundedReceiver<ChatId>) {
    const BATCH: usize = 500;
    // A single wake-up goes out at once; many are sent together, at most so often, and leave the pool to the app.
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    let mut batch = Vec::new();
    while chats.recv_many(&mut batch, BATCH).await > 0 {
        let ids: BTreeSet<String> = batch.drain(..).map(|chat| chat.to_string()).collect();
        let sent = sqlx::query(
            "with unwaited as materialized (select set_config('synchronous_commit', 'off', true))
             select pg_notify($1, id) from unwaited, unnest($2::text[]) as id",
        )
        .bind(CHANNEL)
        .bind(Vec::from_iter(ids))
        .execute(&pool)
        .await;
        if let Err(error) = sent {
            tracing::warn!(%error, "wake-ups were not sent; workers find the chats by looking");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
