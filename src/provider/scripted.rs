//! A model that follows a script: for askback's own tests, and for those of apps.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::{Entry, Provider, ProviderError, Request, Turn};

/// A model that answers from a script, or by a rule, and keeps what it was sent.
///
/// A clone is the same model: it reads on in the same script and sees the same requests.
///
/// ```
/// use askback::provider::{Provider, ProviderError, Request, Turn, scripted::Scripted};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), ProviderError> {
/// let model = Scripted::new([
///     Turn::default().call("call_1", "refund", r#"{"order": 7}"#),
///     Turn::text("Done."),
/// ]);
/// let asks = model.generate(&Request::default()).await?;
/// assert_eq!(asks.calls[0].name, "refund");
/// assert_eq!(model.generate(&Request::default()).await?.text, "Done.");
/// model.assert_finished();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Scripted {
    inner: Arc<Inner>,
}

struct Inner {
    source: Source,
    requests: Mutex<Vec<Request>>,
}

enum Source {
    Steps(Mutex<VecDeque<Step>>),
    Rule(Box<dyn Fn(&Request) -> Step + Send + Sync>),
}

impl Scripted {
    /// A model that takes one step for each request, in this order.
    pub fn new(steps: impl IntoIterator<Item = impl Into<Step>>) -> Self {
        Self::from_source(Source::Steps(Mutex::new(steps.into_iter().map(Into::into).collect())))
    }

    /// A model that decides from the request alone, so that it never runs out and several chats can share it.
    pub fn rule<S: Into<Step>>(rule: impl Fn(&Request) -> S + Send + Sync + 'static) -> Self {
        Self::from_source(Source::Rule(Box::new(move |request| rule(request).into())))
    }

    fn from_source(source: Source) -> Self {
        Self { inner: Arc::new(Inner { source, requests: Mutex::default() }) }
    }

    /// Adds a step at the end of the script; a rule takes none, and leaves it out.
    pub fn push(&self, step: impl Into<Step>) {
        if let Source::Steps(steps) = &self.inner.source {
            lock(steps).push_back(step.into());
        }
    }

    /// What the model was sent, oldest first, a request whose reply was never awaited included.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.inner.requests).clone()
    }

    /// Asserts that the model was asked so many times.
    ///
    /// # Panics
    /// If it was not.
    #[track_caller]
    pub fn assert_asked(&self, times: usize) {
        assert_eq!(lock(&self.inner.requests).len(), times, "how often the model was asked");
    }

    /// Asserts that the whole script was used up.
    ///
    /// # Panics
    /// If steps are left.
    #[track_caller]
    pub fn assert_finished(&self) {
        if let Source::Steps(steps) = &self.inner.source {
            assert_eq!(lock(steps).len(), 0, "steps that the model was not asked for");
        }
    }

    /// Asserts what the model read, with the last request, as the results of a tool: all of them in the last turn that
    /// called it, in call order.
    ///
    /// # Panics
    /// If it read something else, or was never asked.
    #[track_caller]
    pub fn assert_results(&self, tool: &str, expected: impl IntoIterator<Item = Value>) {
        let requests = lock(&self.inner.requests);
        let turns = requests.last().map(|request| request.history.as_slice()).unwrap_or_default().iter().rev();
        let read = turns.filter_map(|entry| match entry {
            Entry::Turn { calls, .. } => {
                let of_tool: Vec<_> = calls.iter().filter(|call| call.name == tool).map(|call| &call.result).collect();
                Some(of_tool).filter(|results| !results.is_empty())
            }
            Entry::User { .. } => None,
        });
        // A result that is no JSON is shown as the text it is.
        let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()));
        let read: Vec<Value> = read.take(1).flatten().map(value).collect();
        assert_eq!(read, expected.into_iter().collect::<Vec<_>>(), "what the model read as results of `{tool}`");
    }
}

impl Provider for Scripted {
    fn service(&self) -> &str {
        "scripted"
    }

    fn api(&self) -> &str {
        "scripted"
    }

    fn model(&self) -> &str {
        "scripted-1"
    }

    async fn generate(&self, request: &Request) -> Result<Turn, ProviderError> {
        // The step is taken at once: a real service, too, is paid for a reply that nobody waits for.
        let asked = {
            let mut requests = lock(&self.inner.requests);
            requests.push(request.clone());
            requests.len()
        };
        let step = match &self.inner.source {
            Source::Rule(rule) => rule(request),
            Source::Steps(steps) => lock(steps).pop_front().ok_or_else(|| {
                ProviderError::new(format!("the script has run out: request {asked} found no step left"))
            })?,
        };
        for wait in step.waits {
            wait().await;
        }
        step.reply
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = match &self.inner.source {
            Source::Steps(steps) => Some(lock(steps).len()),
            Source::Rule(_) => None,
        };
        let asked = lock(&self.inner.requests).len();
        f.debug_struct("Scripted").field("asked", &asked).field("steps_left", &left).finish_non_exhaustive()
    }
}

/// One reply of a [`Scripted`] model, and what it waits for first.
pub struct Step {
    waits: Vec<Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send + Sync>>,
    reply: Result<Turn, ProviderError>,
}

impl Step {
    /// A turn, a text or an error, at once.
    pub fn new(reply: impl Into<Self>) -> Self {
        reply.into()
    }

    /// Waits so long first, by tokio's clock.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        self.when(move || tokio::time::sleep(delay))
    }

    /// Waits for this first: the closure runs when the request has come, so it can let a test go on at a barrier, and
    /// the reply waits for its future.
    #[must_use]
    pub fn when<F>(mut self, wait: impl FnOnce() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.waits.push(Box::new(move || {
            let future = wait();
            Box::pin(async move {
                future.await;
            })
        }));
        self
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("waits", &self.waits.len()).field("reply", &self.reply).finish()
    }
}

impl From<Result<Turn, ProviderError>> for Step {
    fn from(reply: Result<Turn, ProviderError>) -> Self {
        Self { waits: Vec::new(), reply }
    }
}

impl From<Turn> for Step {
    fn from(turn: Turn) -> Self {
        Ok(turn).into()
    }
}

impl From<ProviderError> for Step {
    fn from(error: ProviderError) -> Self {
        Err(error).into()
    }
}

impl From<&str> for Step {
    fn from(text: &str) -> Self {
        Turn::text(text).into()
    }
}

/// A test that has failed elsewhere must not hide its reason behind a poisoned lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
