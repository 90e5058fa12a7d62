//! The worker: the process that drives the chats, and the web process's hold on it.

use std::env;
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use askback::{BoxError, Worker};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::agent::{Lent, Support};
use crate::app::{askback_on, stopped};
use crate::model;
use crate::shop::{self, Shop};

/// How often the worker looks for work that no wake-up told of.
const POLL: Duration = Duration::from_millis(300);
/// How long a worker that is told to stop may go on with what it has begun.
const STOP: Duration = Duration::from_secs(10);
/// How long the bank takes for a refund unless `DESK_SLOW_MS` says otherwise.
const SLOW_MS: u64 = 3000;

/// The worker's main: drives chats until its standard input closes, as it does when its parent dies.
pub(crate) async fn run() -> Result<(), BoxError> {
    let shop = Shop::connect(&shop::database_url()?).await?;
    let lent = Lent { shop: shop.clone(), model: model::from_env(), slow: slow()? };
    let askback = askback_on(&shop).agent::<Support>(lent);
    let parent_gone = parent_gone();
    let shutdown = async {
        tokio::select! {
            () = parent_gone => {}
            () = stopped() => {}
        }
    };
    Worker::new(askback).poll_every(POLL).stop_timeout(STOP).run_until(shutdown).await?;
    Ok(())
}

fn slow() -> Result<Duration, BoxError> {
    let Ok(text) = env::var("DESK_SLOW_MS") else { return Ok(Duration::from_millis(SLOW_MS)) };
    let ms = text.parse().map_err(|_| format!("DESK_SLOW_MS={text}: a number of milliseconds is expected"))?;
    Ok(Duration::from_millis(ms))
}

/// Over when standard input is. A thread of its own reads it, because such a read cannot be taken back.
async fn parent_gone() {
    let (gone, told) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while std::io::stdin().read(&mut buffer).is_ok_and(|n| n > 0) {}
        drop(gone);
    });
    let _ = told.await;
}

/// The worker as the web process sees it: a child that it starts and kills.
pub(crate) struct WorkerProcess {
    program: PathBuf,
    database_url: String,
    state: Mutex<State>,
}

enum State {
    Running(Child),
    Stopped(String),
}

/// Whether there is a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It runs under this process id.
    Running(u32),
    /// It does not, and why.
    Stopped(String),
}

impl Status {
    /// Whether there is one.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Status::Running(_))
    }
}

impl WorkerProcess {
    /// A worker that was not started yet.
    pub(crate) fn new(program: PathBuf, database_url: String) -> Self {
        Self { program, database_url, state: Mutex::new(State::Stopped("not started".into())) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&self) -> Result<(), BoxError> {
        if self.status().is_running() {
            return Ok(());
        }
        // The address goes by the environment: arguments can be read by everybody on the machine.
        let child = Command::new(&self.program)
            .arg("worker")
            .env("DATABASE_URL", &self.database_url)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("starting the worker {}: {e}", self.program.display()))?;
        *self.state() = State::Running(child);
        Ok(())
    }

    /// Kills it as a crash would: at once, in the middle of whatever it does.
    pub(crate) async fn kill(&self) -> Result<(), BoxError> {
        let taken = std::mem::replace(&mut *self.state(), State::Stopped("killed with signal 9".into()));
        match taken {
            State::Running(mut child) => child.kill().await?,
            stopped @ State::Stopped(_) => *self.state() = stopped,
        }
        Ok(())
    }

    /// Tells it to stop and waits for that.
    pub(crate) async fn stop(&self) {
        let taken = std::mem::replace(&mut *self.state(), State::Stopped("stopped with the desk".into()));
        if let State::Running(mut child) = taken {
            drop(child.stdin.take());
            let _ = tokio::time::timeout(STOP + Duration::from_secs(2), child.wait()).await;
        }
    }

    /// Whether it runs now. Nothing here starts it again.
    pub(crate) fn status(&self) -> Status {
        let mut state = self.state();
        if let State::Running(child) = &mut *state {
            let why = match child.try_wait() {
                Ok(None) => return Status::Running(child.id().unwrap_or_default()),
                Ok(Some(status)) => format!("ended by itself, {status}"),
                Err(e) => format!("lost: {e}"),
            };
            *state = State::Stopped(why);
        }
        match &*state {
            State::Running(child) => Status::Running(child.id().unwrap_or_default()),
            State::Stopped(why) => Status::Stopped(why.clone()),
        }
    }
}
