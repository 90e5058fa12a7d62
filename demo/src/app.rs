//! What the handlers share, and who the people are.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use askback::{Askback, By};
use axum::extract::FromRequestParts;
use axum::http::header::COOKIE;
use axum::http::request::Parts;

use crate::shop::Shop;
use crate::worker::WorkerProcess;

/// The cookie that says who sits at the desk.
pub(crate) const STAFF_COOKIE: &str = "desk_staff";
/// The one customer of this demo.
pub(crate) const CUSTOMER: &str = "Carl";
/// The role that may answer what a tool asks.
pub(crate) const STAFF_ROLE: &str = "staff";

/// The state of the web process; cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    /// The chats.
    pub(crate) askback: Askback,
    /// The shop's own tables, in the same database.
    pub(crate) shop: Shop,
    /// The process that drives the chats.
    pub(crate) worker: Arc<WorkerProcess>,
    /// Whether the desk listens on this machine only.
    pub(crate) local: bool,
}

/// The handle both processes use.
///
/// The lease is short, so that a visitor who kills the worker sees the next
/// one take over within seconds. Leave the defaults in an app of your own.
pub(crate) fn askback_on(shop: &Shop) -> Askback {
    Askback::new(shop.pool()).lease(Duration::from_secs(3)).grace(Duration::from_secs(1))
}

/// Somebody of the staff.
///
/// Which one is kept in a cookie, as a session would be in a real app, and is
/// read on the server. No form says who sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staff {
    /// The one who sits there first.
    Ann,
    /// The other.
    Ben,
}

impl Staff {
    /// Everybody.
    pub(crate) const ALL: [Staff; 2] = [Staff::Ann, Staff::Ben];

    /// The name on the page and on the decisions.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Staff::Ann => "Ann",
            Staff::Ben => "Ben",
        }
    }

    /// Whom a name means.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|staff| staff.name() == name)
    }

    /// The author of an answer to the question with this digest.
    pub(crate) fn by(self, seen: &str) -> By {
        By::person(self.name()).role(STAFF_ROLE).via("desk").seen(seen)
    }
}

impl fmt::Display for Staff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<S: Sync> FromRequestParts<S> for Staff {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let cookies = parts.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let named = pairs.filter(|(name, _)| *name == STAFF_COOKIE).find_map(|(_, value)| Staff::named(value));
        Ok(named.unwrap_or(Staff::Ann))
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let told = cause.to_string();
        // Some errors repeat what they wrap.
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        next = cause.source();
    }
    text
}

/// Over when the process is asked to end.
pub(crate) async fn stopped() {
    let interrupted = async { drop(tokio::signal::ctrl_c().await) };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminated) => tokio::select! {
                () = interrupted => {}
                _ = terminated.recv() => {}
            },
            Err(_) => interrupted.await,
        }
    }
    #[cfg(not(unix))]
    interrupted.await;
}
