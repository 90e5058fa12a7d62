//! The handle on one chat, and its verbs.

use std::fmt;

use serde_json::Value;

use crate::answer::Answer;
use crate::askback::{Askback, Inner, MAX_TEXT_BYTES};
use crate::decision::{By, Decision, Settled, Verb, Who, plain, plain_note};
use crate::drive::{self, Outcome, Until};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChatId, MessageId, QuestionId};
use crate::question::Question;
use crate::request::{Checked, InputRequest, Kind};
use crate::step::{self, ChatRow, ChatState, Step, Transcript};
use crate::store::chats;
use crate::store::conn::{Db, Held};
use crate::store::questions::{self, Act, Ruling, Settlement};
use crate::store::transcript;
use crate::tool_call::{CallState, ToolCall};
use crate::turn::MAX_ARGUMENT_BYTES;

/// Runs a verb, and once more from its start when the database undid a transaction of ours.
macro_rules! again_if_undone {
    ($db:expr, $in:ident => $verb:expr) => {{
        let mut $in: Db<'_> = $db;
        let pool = $in.pool();
        let mut tries = 0;
        loop {
            match ($verb, &pool) {
                (Err(e), Some(pool)) if e.kind() == ErrorKind::Restart && tries < 5 => {
                    tries += 1;
                    $in = Db::from(pool);
                }
                (done, _) => break done,
            }
        }
    }};
}

/// A handle on one chat. No I/O to make one; cheap to clone.
///
/// Verbs that only read or write rows take a pool, a connection or the app's
/// open transaction. Verbs that drive (`step`, `complete`, `say_and_complete`)
/// use the handle's own pool, because they hold no connection while a model or
/// a tool works. They run in a task of their own: dropping their future, as web
/// servers do when a client goes away, stops nothing.
#[derive(Clone)]
pub struct Chat {
    pub(crate) askback: Askback,
    pub(crate) id: ChatId,
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chat({})", self.id)
    }
}

impl Chat {
    /// Its id.
    pub fn id(&self) -> ChatId {
        self.id
    }

    fn inner(&self) -> &Inner {
        self.askback.inner()
    }

    /// A person's text to the model: rows only, whoever drives the chat next answers it.
    ///
    /// # Errors
    /// [`PendingToolCalls`](ErrorKind::PendingToolCalls) while calls have no
    /// result, with the tools' names; [`Busy`](ErrorKind::Busy) while somebody
    /// drives the chat or has not yet answered the last text;
    /// [`Invalid`](ErrorKind::Invalid) for a blank text, one with a NUL, or one
    /// over [`MAX_TEXT_BYTES`]. Nothing is written then.
    pub async fn say<'c>(&self, db: impl Into<Db<'c>>, text: impl Into<String>) -> Result<MessageId> {
        let text = text.into();
        plain("the text", &text, MAX_TEXT_BYTES).map_err(|e| self.doing("speaking to", e))?;
        if text.trim().is_empty() {
            return Err(self.doing("speaking to", Error::invalid("the text is blank")));
        }
        let message = MessageId::new();
        again_if_undone!(db.into(), db => self.say_in(db, message, &text).await)?;
        Ok(message)
    }

    async fn say_in(&self, db: Db<'_>, message: MessageId, text: &str) -> Result<()> {
        let inner = self.inner();
        let mut held = match inner.enqueue {
            Some(_) => db.transact(inner.clock_ms()).await?,
            None => db.hold_or_transact(inner.clock_ms()).await?,
        };
        let (own, grace) = (held.is_own(), inner.options.grace);
        let mut session = held.session();
        if !chats::say(&mut session, self.id, message, text, grace, None).await? {
            let row = chats::get(&mut session, self.id).await?;
            let open = transcript::open_calls(&mut session, self.id).await?;
            let spoken = row.state == ChatState::Failed
                && open.is_empty()
                && chats::say(&mut session, self.id, message, text, grace, Some(row.next_position)).await?;
            if !spoken {
                return Err(self.doing("speaking to", cannot_speak(&open)));
            }
        }
        inner.enqueue_in(&mut session.conn, self.id).await?;
        held.commit().await?;
        if own {
            inner.wake(self.id);
        }
        Ok(())
    }

    /// A person's text to the model, and the drive that answers it.
    ///
    /// # Errors
    /// As [`say`](Chat::say) and [`complete`](Chat::complete).
    pub async fn say_and_complete(&self, text: impl Into<String>) -> Result<Outcome> {
        self.say(&self.inner().pool, text).await?;
        self.complete().await
    }

    /// Drives the chat until the model has said its last word or calls wait for people.
    ///
    /// Calls that need nobody run before it parks. A chat in back-off, or `failed`, is tried at once.
    ///
    /// # Errors
    /// [`Agent`](ErrorKind::Agent) when no agent of its name is registered
    /// here or the row does not fit it; [`Provider`](ErrorKind::Provider);
    /// [`LeaseLost`](ErrorKind::LeaseLost); [`Database`](ErrorKind::Database).
    /// What was committed stays, and the chat can be driven again.
    pub async fn complete(&self) -> Result<Outcome> {
        self.drive(Until::default()).await
    }

    /// Takes one step: one turn of the model, or the calls that can run.
    ///
    /// # Errors
    /// As [`complete`](Chat::complete).
    pub async fn step(&self) -> Result<Outcome> {
        self.drive(Until { one_step: true, ..Until::default() }).await
    }

    pub(crate) async fn drive(&self, until: Until) -> Result<Outcome> {
        let (inner, chat) = (self.askback.inner().clone(), self.id);
        let task = tokio::spawn(async move { drive::drive(&inner, chat, until).await });
        match task.await {
            Ok(driven) => driven,
            Err(e) => {
                Err(Error::new(ErrorKind::LeaseLost, format!("the drive of chat {chat} was stopped")).caused_by(e))
            }
        }
    }

    /// Cancels the generation that runs: its open questions and calls are closed, and the chat can go on.
    ///
    /// With nobody driving, at once; else the driver stops at its next
    /// checkpoint. A text said afterwards starts a new generation, which this does not touch.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Database`](ErrorKind::Database).
    pub async fn cancel<'c>(&self, db: impl Into<Db<'c>>) -> Result<()> {
        again_if_undone!(db.into(), db => self.cancel_in(db).await)
    }

    async fn cancel_in(&self, db: Db<'_>) -> Result<()> {
        let inner = self.inner();
        let mut held = db.transact(inner.clock_ms()).await?;
        let own = held.is_own();
        let mut session = held.session();
        if !own {
            chats::take_write_lock(&mut session).await?;
        }
        let row = chats::lock(&mut session, self.id).await?;
        chats::mark_cancelled(&mut session, self.id).await?;
        let now = chats::clock(&mut session).await?;
        if chats::is_free(&row, now, inner.options.grace) {
            transcript::cancel_calls(&mut session, self.id).await?;
            chats::set_idle(&mut session, self.id).await?;
        }
        held.commit().await?;
        // By its lease: the next one may drive the next generation already.
        if let (true, Some(token)) = (own, row.lease_token) {
            inner.leases().cancel(self.id, token);
        }
        Ok(())
    }

    /// The open questions, in the order the model made its calls. One statement; no agent is built.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Database`](ErrorKind::Database).
    pub async fn pending_questions<'c>(&self, db: impl Into<Db<'c>>) -> Result<Vec<Question>> {
        let mut held = db.into().hold(self.inner().clock_ms()).await?;
        questions::pending(&mut held.session(), self.id).await
    }

    /// Answers a question: checked, then settled under its call's row lock. No agent is built.
    ///
    /// `value` is JSON, or an [`Answer::form`]. `false` declines any question. In the app's own transaction
    /// [`Settled::Recorded`] means "when you commit"; then call [`wake`](Chat::wake).
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) says what the question takes;
    /// [`NotFound`](ErrorKind::NotFound) for a question the chat never asked;
    /// [`NotAllowed`](ErrorKind::NotAllowed); [`Busy`](ErrorKind::Busy);
    /// [`Restart`](ErrorKind::Restart) when the app's own transaction is dead.
    /// Nothing is written then.
    pub async fn answer<'c>(
        &self,
        db: impl Into<Db<'c>>,
        question: &QuestionId,
        value: impl Into<Answer>,
        by: By,
    ) -> Result<Settled> {
        self.settle(db.into(), question, Reply::Answer(value.into()), by).await
    }

    /// Approves a call. The same as answering its approval with `true`.
    ///
    /// # Errors
    /// As [`answer`](Chat::answer); [`Invalid`](ErrorKind::Invalid) for a question that is no approval.
    pub async fn approve<'c>(&self, db: impl Into<Db<'c>>, question: &QuestionId, by: By) -> Result<Settled> {
        self.settle(db.into(), question, Reply::Approve(None), by).await
    }

    /// Approves a call with other arguments than the model's. The model is told, with both.
    ///
    /// # Errors
    /// As [`approve`](Chat::approve); the arguments must be a JSON object.
    pub async fn approve_edited<'c>(
        &self,
        db: impl Into<Db<'c>>,
        question: &QuestionId,
        arguments: Value,
        by: By,
    ) -> Result<Settled> {
        self.settle(db.into(), question, Reply::Approve(Some(arguments)), by).await
    }

    /// Declines a question, with a note that the model reads. The tool does not run (again).
    ///
    /// # Errors
    /// As [`answer`](Chat::answer);
    /// [`ToolCallRunning`](ErrorKind::ToolCallRunning) for an approval whose call already runs.
    pub async fn decline<'c>(
        &self,
        db: impl Into<Db<'c>>,
        question: &QuestionId,
        note: Option<&str>,
        by: By,
    ) -> Result<Settled> {
        self.settle(db.into(), question, Reply::Decline(note.map(str::to_owned)), by).await
    }

    async fn settle(&self, db: Db<'_>, question: &QuestionId, reply: Reply, mut by: By) -> Result<Settled> {
        let doing = |e: Error| e.while_doing(format!("answering question {question}"));
        by.validate().map_err(doing)?;
        if let Reply::Decline(note) = &reply {
            plain_note(note.as_deref()).map_err(doing)?;
        }
        let key = by.key.take().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        let mut held = db.hold(self.inner().clock_ms()).await.map_err(doing)?;
        if !held.is_own() {
            chats::take_write_lock(&mut held.session()).await.map_err(doing)?;
        }
        let call = self.read_call(&mut held, question).await.map_err(doing)?;
        let asked = || call.questions.iter().enumerate().rev().filter(|(_, asked)| asked.key == question.key());
        // What is delivered once more belongs to the round that it settled, however often it was asked since.
        let settled_by_it = |asked: &crate::tool_call::Asked| {
            asked.decision.as_ref().is_some_and(|was| was.idem.as_deref() == Some(&key) && was.by == by.who.to_row())
        };
        let found = asked().find(|(_, asked)| settled_by_it(asked)).or_else(|| asked().next());
        let Some((index, asked)) = found else { return Err(doing(self.no_question(question))) };
        if !asked.may.is_empty() && !by.names().iter().any(|name| asked.may.contains(name)) {
            // Before the answer is checked: what would be right is not theirs to know. The statement rules once more.
            return Err(doing(Error::new(ErrorKind::NotAllowed, format!("{} may not answer it", by.who))));
        }
        let act = match reply.checked(&asked.request().map_err(doing)?) {
            // Whoever comes after the decision is told of it, even with an answer that does not fit.
            Err(_) if asked.decision.is_some() => reply.unchecked(),
            checked => checked.map_err(doing)?,
        };
        let fresh = by.seen.as_ref().is_none_or(|seen| *seen == asked.digest);
        let settlement = Settlement {
            chat: self.id,
            call: call.id,
            index,
            key: question.key().to_owned(),
            // No digest is blank, so this is `Changed` unless it is decided.
            digest: if fresh { asked.digest.clone() } else { String::new() },
            act,
            note: if let Reply::Decline(note) = reply { note } else { None },
            names: by.names(),
            idem: Some(key),
            via: by.via,
            by: by.who,
        };
        let declines_running =
            settlement.act == Act::Decline && asked.key.is_empty() && call.state == CallState::Running;
        let verdict = self.inner().settle(&mut held, &settlement).await.map_err(doing)?;
        let decision = |was: crate::tool_call::Recorded, digest: &str| was.decision(question, digest);
        match verdict.ruling {
            Ruling::Recorded => Ok(Settled::Recorded),
            Ruling::Already(was) if declines_running && was.decision == Verb::Accept => Err(doing(Error::new(
                ErrorKind::ToolCallRunning,
                format!(
                    "the call of {} already runs and cannot be declined any more; {} approved it at {}",
                    call.name,
                    Who::from_row(&was.by),
                    chrono::DateTime::from_timestamp_micros(was.at_us).unwrap_or_default().to_rfc3339()
                ),
            ))),
            Ruling::Already(was) => Ok(Settled::Already(decision(was, &asked.digest)?)),
            Ruling::Expired(was) => Ok(Settled::Expired(decision(was, &asked.digest)?)),
            Ruling::Closed | Ruling::NotDue => Ok(Settled::Closed),
            Ruling::NotAllowed => {
                Err(doing(Error::new(ErrorKind::NotAllowed, format!("{} may not answer it", settlement.by))))
            }
            Ruling::Gone => Err(doing(self.no_question(question))),
            Ruling::Changed => {
                let call = self.read_call(&mut held, question).await.map_err(doing)?;
                let newest = call.questions.iter().rev().find(|asked| asked.key == question.key());
                let Some(newest) = newest else { return Err(doing(self.no_question(question))) };
                Ok(Settled::Changed(Box::new(newest.question(self.id, &call)?)))
            }
        }
    }

    async fn read_call(&self, held: &mut Held<'_>, question: &QuestionId) -> Result<ToolCall> {
        let call = questions::call(&mut held.session(), self.id, question.call()).await?;
        call.ok_or_else(|| self.no_question(question))
    }

    fn no_question(&self, question: &QuestionId) -> Error {
        Error::new(
            ErrorKind::NotFound,
            format!("chat {} has no question {question} (or the transaction began before it was asked)", self.id),
        )
    }

    fn doing(&self, what: &str, error: Error) -> Error {
        error.while_doing(format!("{what} chat {}", self.id))
    }

    /// Tells the workers that the chat has work: for after the commit of the app's own transaction.
    pub fn wake(&self) {
        self.inner().wake(self.id);
    }

    /// The chat's row.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Database`](ErrorKind::Database).
    pub async fn row<'c>(&self, db: impl Into<Db<'c>>) -> Result<ChatRow> {
        let mut held = db.into().hold(self.inner().clock_ms()).await?;
        chats::get(&mut held.session(), self.id).await
    }

    /// The chat whole: its row, messages and calls.
    ///
    /// # Errors
    /// As [`row`](Chat::row).
    pub async fn transcript<'c>(&self, db: impl Into<Db<'c>>) -> Result<Transcript> {
        let mut held = db.into().hold(self.inner().clock_ms()).await?;
        transcript::load(&mut held.session(), self.id).await
    }

    /// Every decision of the chat, oldest first: who, when, from where, what.
    ///
    /// # Errors
    /// [`Database`](ErrorKind::Database).
    pub async fn decisions<'c>(&self, db: impl Into<Db<'c>>) -> Result<Vec<Decision>> {
        let mut held = db.into().hold(self.inner().clock_ms()).await?;
        questions::decisions(&mut held.session(), self.id).await
    }

    /// Whether the model has said its last word and nothing is open.
    ///
    /// # Errors
    /// As [`row`](Chat::row).
    pub async fn is_complete<'c>(&self, db: impl Into<Db<'c>>) -> Result<bool> {
        let step = step::next(&self.transcript(db).await?, i64::MAX);
        Ok(step == Step::Done)
    }

    /// Whether nothing can be done before people have answered.
    ///
    /// # Errors
    /// As [`row`](Chat::row).
    pub async fn is_waiting<'c>(&self, db: impl Into<Db<'c>>) -> Result<bool> {
        let step = step::next(&self.transcript(db).await?, i64::MAX);
        Ok(step == Step::Wait)
    }

    /// Whether somebody drives it now.
    ///
    /// # Errors
    /// As [`row`](Chat::row).
    pub async fn is_running<'c>(&self, db: impl Into<Db<'c>>) -> Result<bool> {
        Ok(self.row(db).await?.is_driven())
    }
}

fn cannot_speak(open: &[ToolCall]) -> Error {
    if open.is_empty() {
        return Error::new(ErrorKind::Busy, "its last text is still being answered; try again");
    }
    let tools: Vec<&str> = open.iter().map(|call| call.name.as_str()).collect();
    Error::new(ErrorKind::PendingToolCalls, format!("these calls have no result yet: {}", tools.join(", ")))
}

/// What a person replied, before it is checked against the question.
enum Reply {
    Answer(Answer),
    Approve(Option<Value>),
    Decline(Option<String>),
}

impl Reply {
    fn checked(&self, request: &InputRequest) -> Result<Act> {
        match self {
            Reply::Decline(_) => return Ok(Act::Decline),
            Reply::Approve(_) if request.kind != Kind::Approval => {
                return Err(Error::invalid(format!("it is of kind {}, only approvals are approved", request.kind)));
            }
            Reply::Approve(Some(edited @ Value::Object(_))) => {
                let text = edited.to_string();
                if text.len() > MAX_ARGUMENT_BYTES {
                    let bytes = text.len();
                    let limit = format!("the arguments have {bytes} bytes, at most {MAX_ARGUMENT_BYTES} are taken");
                    return Err(Error::invalid(limit));
                }
                serde_json::from_str::<Value>(&text)
                    .map_err(|e| Error::invalid("the arguments cannot be read back").caused_by(e))?;
            }
            Reply::Approve(None) | Reply::Answer(_) => {}
            Reply::Approve(Some(_)) => return Err(Error::invalid("edited arguments must be a JSON object")),
        }
        if let (Kind::Secret, Reply::Answer(answer)) = (request.kind, self)
            && !answer.declines()
        {
            return Err(Error::invalid("a secret cannot be kept on a row; decline it"));
        }
        match self {
            Reply::Answer(answer) => match request.check(&answer.value_for(request)?)? {
                Checked::Accept(value) => Ok(Act::Accept(value.to_string())),
                Checked::Decline => Ok(Act::Decline),
            },
            _ => Ok(self.unchecked()),
        }
    }

    fn unchecked(&self) -> Act {
        match self {
            Reply::Decline(_) => Act::Decline,
            Reply::Answer(answer) if answer.declines() => Act::Decline,
            Reply::Answer(answer) => Act::Accept(answer.as_sent().to_string()),
            Reply::Approve(None) => Act::Accept("true".into()),
            Reply::Approve(Some(arguments)) => Act::Accept(serde_json::json!({ "arguments": arguments }).to_string()),
        }
    }
}
