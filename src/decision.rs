//! Who decided what: the answer's author, the recorded decision, and the verdict of settling.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::id::QuestionId;
use crate::question::Question;
use crate::request::MAX_NOTE_BYTES;

/// The most bytes a name, a key or a tenant may have.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// Who decided: a person, a service of the app, or askback itself.
///
/// `Display` gives the bare name, and `askback (expired)` for askback itself; on the rows it is `person:<name>`,
/// `service:<name>` or `system:<reason>`, so that no name can pass for another kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Who {
    /// A person, by the name the app gave.
    Person(String),
    /// A service of the app.
    Service(String),
    /// askback, and why: `expired` or `cancelled`.
    System(String),
}

impl Who {
    /// Reads it as it stands on a row.
    pub(crate) fn from_row(text: &str) -> Self {
        match text.split_once(':') {
            Some(("person", name)) => Who::Person(name.into()),
            Some(("service", name)) => Who::Service(name.into()),
            Some(("system", reason)) => Who::System(reason.into()),
            _ => Who::Service(text.into()),
        }
    }

    /// As it stands on a row.
    pub(crate) fn to_row(&self) -> String {
        match self {
            Who::Person(name) => format!("person:{name}"),
            Who::Service(name) => format!("service:{name}"),
            Who::System(reason) => format!("system:{reason}"),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Person(name) | Who::Service(name) => f.write_str(name),
            Who::System(reason) => write!(f, "askback ({reason})"),
        }
    }
}

impl Serialize for Who {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_row())
    }
}

impl<'de> Deserialize<'de> for Who {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Who::from_row(&String::deserialize(deserializer)?))
    }
}

/// The author of an answer. It comes from the app's own session, never from the request's body.
///
/// ```
/// use askback::By;
///
/// let by = By::person("ann").role("support").via("web").seen("<the digest on the page>");
/// ```
#[derive(Clone, Debug)]
pub struct By {
    pub(crate) who: Who,
    pub(crate) roles: Vec<String>,
    pub(crate) via: Option<String>,
    pub(crate) seen: Option<String>,
    pub(crate) key: Option<String>,
}

impl By {
    fn new(who: Who) -> Self {
        Self { who, roles: Vec::new(), via: None, seen: None, key: None }
    }

    /// A person, by the name the app knows them under.
    pub fn person(name: impl Into<String>) -> Self {
        Self::new(Who::Person(name.into()))
    }

    /// A service of the app, say a rule that answers for people.
    pub fn service(name: impl Into<String>) -> Self {
        Self::new(Who::Service(name.into()))
    }

    /// A role of theirs, for questions that name who may answer.
    #[must_use]
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.roles.push(role.into());
        self
    }

    /// From where the answer came: a page, an address, a channel. Kept for the audit.
    #[must_use]
    pub fn via(mut self, via: impl Into<String>) -> Self {
        self.via = Some(via.into());
        self
    }

    /// The digest of the question they saw: an answer to another one is refused with [`Settled::Changed`].
    #[must_use]
    pub fn seen(mut self, digest: impl Into<String>) -> Self {
        self.seen = Some(digest.into());
        self
    }

    /// Names this answer: the same key by the same author with the same value gets
    /// [`Settled::Recorded`] again. Without one a key is made up.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The names that a question's `may` is compared with.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.roles.iter().map(|role| format!("role:{role}")).collect();
        names.push(self.who.to_row());
        names
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let name = self.who.to_string();
        if name.trim().is_empty() {
            return Err(Error::invalid("an answer needs the name of who gives it"));
        }
        plain("the name of who answers", &name, MAX_NAME_BYTES)?;
        for (what, text) in [("the idempotency key", &self.key), ("the route of the answer", &self.via)] {
            if let Some(text) = text {
                plain(what, text, MAX_NAME_BYTES)?;
            }
        }
        for role in &self.roles {
            plain("a role", role, MAX_NAME_BYTES)?;
        }
        Ok(())
    }
}

/// Refuses a text that not every database can keep as it is.
pub(crate) fn plain(what: &str, text: &str, max: usize) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid(format!("{what} contains a NUL character, which databases cannot keep in a text")));
    }
    if text.len() > max {
        return Err(Error::invalid(format!("{what} has {} bytes, at most {max} are kept", text.len())));
    }
    Ok(())
}

pub(crate) fn plain_note(note: Option<&str>) -> Result<()> {
    note.map_or(Ok(()), |note| plain("the note", note, MAX_NOTE_BYTES))
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verb {
    /// The question was answered.
    Accept,
    /// It was declined: the tool does not run again.
    Decline,
    /// The generation was cancelled.
    Cancel,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Accept => "accept",
            Verb::Decline => "decline",
            Verb::Cancel => "cancel",
        }
    }
}

/// A recorded decision: it stands on the question, and again in the audit table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decision {
    /// The question that was decided.
    pub question: QuestionId,
    /// What was asked: tool, arguments, question and round.
    pub digest: String,
    /// What was decided.
    pub verb: Verb,
    /// The answer. Never a secret's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Why, in the person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Who decided.
    pub by: Who,
    /// From where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// When, by the database's clock, read under the lock.
    pub at: DateTime<Utc>,
}

/// What became of an answer. None of these is an error.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Settled {
    /// It is the decision (in the app's own transaction: when that commits).
    Recorded,
    /// Somebody decided first; nothing was changed.
    Already(Decision),
    /// The time was over; the declared default was recorded in its place.
    Expired(Decision),
    /// The call no longer waits for this question; nothing was changed.
    Closed,
    /// The question is not the one the answer was given to; nothing was changed. This is the new one.
    Changed(Box<Question>),
}

#[cfg(test)]
mod tests {
    use super::*;

    // B3, case CF10
    #[test]
    fn no_name_passes_for_another_kind() {
        let all = [
            (Who::Person("ann".into()), "person:ann", "ann"),
            (Who::Service("ann".into()), "service:ann", "ann"),
            (Who::System("expired".into()), "system:expired", "askback (expired)"),
            (Who::Person("system:expired".into()), "person:system:expired", "system:expired"),
            (Who::Person("".into()), "person:", ""),
            (Who::Service("a:b:c é".into()), "service:a:b:c é", "a:b:c é"),
        ];
        for (who, row, shown) in all {
            assert_eq!((who.to_row().as_str(), who.to_string().as_str()), (row, shown));
            assert_eq!(Who::from_row(row), who);
            assert_eq!(serde_json::to_value(&who).ok(), Some(serde_json::Value::from(row)));
        }
        assert_eq!(Who::from_row("mallory"), Who::Service("mallory".into()));
        assert_eq!(Who::from_row("Person:ann"), Who::Service("Person:ann".into()));
    }

    // B4
    #[test]
    fn a_role_is_no_person_of_that_name() {
        let by = By::person("boss").role("clerk").role("person:eve");
        assert_eq!(by.names(), ["role:clerk", "role:person:eve", "person:boss"]);
        assert_eq!(By::service("boss").names(), ["service:boss"]);
    }

    // Q3, case CH1
    #[test]
    fn an_author_that_no_row_could_keep_is_refused() {
        let (most, more) = ("x".repeat(MAX_NAME_BYTES), "é".repeat(MAX_NAME_BYTES / 2 + 1));
        let refused = [
            By::person(""),
            By::person(" \u{3000}"),
            By::person("a\0"),
            By::person(&*more),
            By::service(""),
            By::person("ann").role("\0"),
            By::person("ann").role(&*more),
            By::person("ann").via("\0"),
            By::person("ann").via(&*more),
            By::person("ann").idempotency_key("\0"),
            By::person("ann").idempotency_key(&*more),
        ];
        for by in refused {
            assert!(by.validate().is_err_and(|e| e.kind() == crate::ErrorKind::Invalid), "{by:?}");
        }
        for by in [By::person(&*most).role(&*most).via(&*most).idempotency_key(&*most), By::service("🙂")] {
            assert!(by.validate().is_ok(), "{by:?}");
        }
        assert!(plain_note(Some(&"x".repeat(MAX_NOTE_BYTES))).is_ok());
        assert!(plain_note(Some(&"x".repeat(MAX_NOTE_BYTES + 1))).is_err());
        assert!(plain_note(Some("\0")).is_err());
        assert!(plain_note(None).is_ok());
    }
}
