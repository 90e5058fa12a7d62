//! The one loop: does what [`step::next`] says, on rows, under a lease.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::agent::{AgentContext, Setup};
use crate::askback::Inner;
use crate::decision::Who;
use crate::erased::{DynTool, Ran, panic_text};
use crate::error::{Error, ErrorKind, Result, chain};
use crate::id::{ChatId, ToolCallId};
use crate::lease::{Lease, boot_ms};
use crate::prompt;
use crate::provider::ProviderError;
use crate::step::{self, ChatRow, ChatState, Step, Transcript};
use crate::store::chats::{self, Leave};
use crate::store::conn::{Db, Pool};
use crate::store::questions::{self, Act, Ruling, Settlement};
use crate::store::transcript::{self, Fence, fenced_write};
use crate::tool::{OnInterrupt, ToolContext, in_doubt_request};
use crate::tool_call::{
    CallState, Gate, IN_DOUBT, ResultKind, ToolCall, approval_request, declined_result, error_result,
};
use crate::turn::{self, edited, interrupted, malformed};

/// What a drive ends with. None of these is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The model has said its last word.
    Done,
    /// Calls wait for people.
    Waiting,
    /// Somebody else drives the chat.
    Busy,
    /// The generation has reached its limit of tool turns.
    Capped,
    /// The generation was cancelled.
    Cancelled,
    /// There is more to do: the drive was asked to stop, or to go one step.
    Ready,
}

/// How far a drive goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Until {
    pub(crate) one_step: bool,
    /// True when the worker stops.
    pub(crate) stop: Option<watch::Receiver<bool>>,
    /// Whether a chat whose agent cannot be built here is put off, so that a worker does not meet it at once again.
    pub(crate) put_off: bool,
}

impl Until {
    fn is_stopping(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| *stop.borrow())
    }
}

/// How often one drive takes its chat again because of what arrived while it had it.
const MAX_ROUNDS: usize = 100;
/// How often a driver looks for answers while its tools run.
const LOOK_UP: Duration = Duration::from_millis(500);
/// The longest wait after a failure, unless the provider asks for more.
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// The longest wait that a provider may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Takes the chat and drives it until nothing can be done, or somebody else has it.
pub(crate) async fn drive(askback: &Inner, chat: ChatId, until: Until) -> Result<Outcome> {
    let mut last = Outcome::Busy;
    // Rows that claim work which no step finds must not be looked at for ever.
    for _ in 0..MAX_ROUNDS {
        let Some(lease) = askback.leases().acquire(&askback.terms(), chat).await? else {
            // An unknown chat is not a busy one.
            if last == Outcome::Busy {
                let mut held = Db::from(&askback.pool).hold(askback.clock_ms()).await?;
                chats::get(&mut held.session(), chat).await?;
            }
            return Ok(last);
        };
        let mut driver = Driver { askback, chat, lease, until: &until, setup: None, clock: None };
        let driven = AssertUnwindSafe(driver.run()).catch_unwind().await.unwrap_or_else(|panic| {
            let error = format!("it panicked: {}", panic_text(&*panic));
            Err(Error::new(ErrorKind::Agent, format!("driving chat {chat}")).caused_by(error))
        });
        let left = driver.leave(&driven).await;
        driver.lease.forget();
        last = driven?;
        left?;
        if last == Outcome::Ready {
            return Ok(last);
        }
        // What arrived while the lease was held wakes nobody else. So look once more, after letting go.
        let mut held = Db::from(&askback.pool).hold(askback.clock_ms()).await?;
        if !chats::has_work(&mut held.session(), chat).await? {
            return Ok(last);
        }
    }
    tracing::warn!(%chat, "the chat's rows claim work that cannot be found");
    Ok(last)
}

struct Driver<'a> {
    askback: &'a Inner,
    chat: ChatId,
    lease: Lease,
    until: &'a Until,
    setup: Option<Setup>,
    /// What the database's clock said at which moment of ours.
    clock: Option<(DateTime<Utc>, i64)>,
}

impl Driver<'_> {
    async fn run(&mut self) -> Result<Outcome> {
        let mut transcript = {
            let mut held = Db::from(&self.askback.pool).hold(self.askback.clock_ms()).await?;
            transcript::load(&mut held.session(), self.chat).await?
        };
        self.clock = Some((transcript.chat.read_at, boot_ms()));
        let mut steps = 0;
        loop {
            self.check_alive()?;
            if transcript.chat.is_cancelled() && transcript.open_calls().next().is_some() {
                return self.close_cancelled().await;
            }
            if self.until.is_stopping() || (self.until.one_step && steps == 1) {
                return Ok(match step::next(&transcript, self.max_tool_turns()) {
                    Step::Wait => Outcome::Waiting,
                    Step::Done => Outcome::Done,
                    Step::Capped => Outcome::Capped,
                    Step::CallModel | Step::RunCalls(_) => Outcome::Ready,
                });
            }
            steps += 1;
            match step::next(&transcript, self.max_tool_turns()) {
                Step::Done if transcript.chat.is_cancelled() => return Ok(Outcome::Cancelled),
                Step::Done => return Ok(Outcome::Done),
                Step::Capped => return Ok(Outcome::Capped),
                Step::Wait if self.expire(&transcript).await? => self.refresh(&mut transcript).await?,
                Step::Wait => return Ok(Outcome::Waiting),
                // The limit of turns is the agent's, so it has to be built before the model may be asked.
                Step::CallModel if self.setup.is_none() => {
                    self.set_up(&transcript.chat).await?;
                    steps -= 1;
                }
                Step::CallModel => match self.call_model(&mut transcript).await? {
                    Said::Calls => {}
                    Said::LastWord => return Ok(Outcome::Done),
                    Said::Nothing => return self.close_cancelled().await,
                },
                Step::RunCalls(calls) => {
                    self.set_up(&transcript.chat).await?;
                    if !self.run_calls(&mut transcript, calls).await? {
                        return self.close_cancelled().await;
                    }
                }
            }
        }
    }

    fn check_alive(&self) -> Result<()> {
        match self.lease.is_alive() {
            true => Ok(()),
            false => Err(lost(self.chat)),
        }
    }

    fn max_tool_turns(&self) -> i64 {
        self.setup.as_ref().map_or(i64::MAX, |setup| i64::from(setup.max_tool_turns))
    }

    /// The database's clock, as far as it is known without asking.
    fn now(&self) -> DateTime<Utc> {
        let Some((then, at)) = self.clock else { return Utc::now() };
        then + TimeDelta::milliseconds(boot_ms() - at)
    }

    async fn set_up(&mut self, row: &ChatRow) -> Result<()> {
        if self.setup.is_some() {
            return Ok(());
        }
        let Some(agent) = self.askback.agents.get(&row.agent) else {
            return Err(Error::new(
                ErrorKind::Agent,
                format!(
                    "chat {}: no agent {:?} is registered here (registered: {})",
                    self.chat,
                    row.agent,
                    match self.askback.agents.keys().map(String::as_str).collect::<Vec<_>>().join(", ") {
                        none if none.is_empty() => "none is".to_owned(),
                        names => names,
                    }
                ),
            ));
        };
        let ctx = AgentContext {
            chat: self.chat,
            tenant: row.tenant.clone(),
            actor: row.actor.clone(),
            metadata: row.metadata.clone(),
        };
        let build = agent.build(&row.action, &row.arguments, &ctx);
        self.setup = Some(tokio::select! {
            setup = build => setup?,
            () = self.lease.ended() => return Err(lost(self.chat)),
        });
        Ok(())
    }

    /// Asks the model and saves its turn.
    async fn call_model(&mut self, transcript: &mut Transcript) -> Result<Said> {
        let Some(setup) = &self.setup else { return Ok(Said::Calls) };
        let request = prompt::request(transcript, setup);
        let model = setup.model.clone();
        let said = tokio::select! {
            said = model.generate(&request) => said.map_err(|e| provider_error(self.chat, &model, e))?,
            () = self.lease.ended() => return Err(lost(self.chat)),
            () = self.lease.cancelled() => return Ok(Said::Nothing),
        };
        drop(request);
        let new = turn::new_turn(transcript, setup, said, self.now())?;
        self.check_alive()?;
        let (askback, fence) = (self.askback, self.lease.fence);
        let saved = fenced_write!(&askback.pool, askback.clock_ms(), session =>
            transcript::append(&mut session, fence, &new));
        if !saved? {
            self.refused(transcript).await?;
            return Ok(Said::Nothing);
        }
        if new.last {
            // The lease went with the turn.
            self.lease.forget();
            return Ok(Said::LastWord);
        }
        transcript.chat.next_position += 1;
        transcript.chat.tool_turns = new.tool_turns;
        transcript.chat.tool_choice_cleared = new.tool_choice_cleared;
        transcript.messages.push(new.message);
        transcript.calls.extend(new.calls);
        Ok(Said::Calls)
    }

    /// A write behind the fence was refused: because of a cancel (false), or because the lease is lost.
    async fn refused(&self, transcript: &mut Transcript) -> Result<bool> {
        let mut held = Db::from(&self.askback.pool).hold(self.askback.clock_ms()).await?;
        transcript.chat = chats::get(&mut held.session(), self.chat).await?;
        match transcript.chat.lease_token == Some(self.lease.fence.token) && transcript.chat.is_cancelled() {
            true => Ok(false),
            false => Err(lost(self.chat)),
        }
    }

    /// Runs calls, each with its siblings, until none of them runs; false when the generation was cancelled.
    async fn run_calls(&mut self, transcript: &mut Transcript, runnable: Vec<ToolCallId>) -> Result<bool> {
        let mut running = Running::default();
        let mut failed = None;
        for id in runnable {
            if !self.dispatch(transcript, id, &mut running).await? {
                return self.refused(transcript).await;
            }
        }
        while !running.calls.is_empty() {
            tokio::select! {
                Some(joined) = running.tasks.join_next_with_id() => {
                    let (task, ran) = match joined {
                        Ok((_, None)) => return Err(lost(self.chat)),
                        Ok((task, Some(ran))) => (task, ran),
                        Err(e) => (e.id(), Ran::Failed { message: "the tool was stopped".into(), error: Some(e.into()) }),
                    };
                    let Some((id, run)) = running.calls.remove(&task) else { continue };
                    self.check_alive()?;
                    if let Some(error) = self.record(transcript, id, run, ran).await? {
                        failed.get_or_insert(error);
                    }
                }
                () = self.lease.ended() => return Err(lost(self.chat)),
                () = self.lease.cancelled() => return Ok(false),
                () = tokio::time::sleep(LOOK_UP), if transcript.open_calls().any(|c| c.state == CallState::Waiting) => {
                    // The tools that run are worth more than a look that failed.
                    if let Err(error) = self.refresh(transcript).await {
                        tracing::warn!(chat = %self.chat, error = %chain(&error), "looking for answers failed");
                        continue;
                    }
                    let ready = transcript.open_calls().filter(|call| call.state == CallState::Ready);
                    for id in ready.map(|call| call.id).collect::<Vec<_>>() {
                        if !self.dispatch(transcript, id, &mut running).await? {
                            return self.refused(transcript).await;
                        }
                    }
                }
            }
        }
        match failed {
            Some(error) if self.setup.as_ref().is_some_and(|setup| setup.stop_on_tool_error) => Err(error),
            _ => Ok(true),
        }
    }

    /// Starts a call's tool, or says why it does not run. First match wins (A28). False when the fence refused.
    async fn dispatch(&mut self, transcript: &mut Transcript, id: ToolCallId, running: &mut Running) -> Result<bool> {
        self.check_alive()?;
        let Some(call) = transcript.calls.iter().find(|call| call.id == id).cloned() else { return Ok(true) };
        if running.calls.values().any(|(running, _)| *running == id) {
            return Ok(true);
        }
        if let Some(declined) = call.decline() {
            let (result, kind) = match call.questions.last() {
                Some(last) if last.key == IN_DOUBT => {
                    (interrupted(&call, declined.note.as_deref()), ResultKind::Unfinished)
                }
                _ => (declined_result(declined.note.as_deref()), ResultKind::Declined),
            };
            return self.close(transcript, &call, result, kind).await;
        }
        let Some(setup) = &self.setup else { return Ok(true) };
        let Some(tool) = setup.tools.get(&call.name).cloned() else {
            let result = error_result(&format!("there is no tool {}", call.name));
            return self.close(transcript, &call, result, ResultKind::Error).await;
        };
        let Some(arguments) = call.effective_arguments() else {
            let result = malformed(call.raw_arguments.as_deref().unwrap_or_default(), "no JSON object");
            return self.close(transcript, &call, result, ResultKind::Error).await;
        };
        let interrupted_run = call.state == CallState::Running;
        if interrupted_run {
            match tool.on_interrupt() {
                OnInterrupt::Retry => {}
                OnInterrupt::Ask => {
                    return self
                        .ask(transcript, call.clone(), vec![(IN_DOUBT.into(), in_doubt_request(&call.name))])
                        .await;
                }
                OnInterrupt::Fail => {
                    return self.close(transcript, &call, interrupted(&call, None), ResultKind::Unfinished).await;
                }
            }
        }
        // Today's tools can add a gate, never remove one; an approval holds for the whole call.
        let approved = matches!(call.gate, Some(Gate::Approved | Gate::Remembered));
        if !approved && (call.gate.is_some() || setup.is_gated(&call.name, &arguments)) {
            return self.ask(transcript, call.clone(), vec![(String::new(), approval_request(&call.name))]).await;
        }
        let run = Uuid::new_v4();
        // What may run again can lose its mark in a crash; what may not has it on disk before it starts.
        let wait = tool.on_interrupt() != OnInterrupt::Retry;
        let (askback, fence) = (self.askback, self.lease.fence);
        let claimed = fenced_write!(&askback.pool, askback.clock_ms(), session =>
            transcript::claim(&mut session, fence, id, call.run_token, run, wait));
        if !claimed? {
            return Ok(false);
        }
        // The claim may have waited for a lock.
        self.check_alive()?;
        if let Some(row) = transcript.call_mut(id) {
            (row.state, row.run_token) = (CallState::Running, Some(run));
            row.attempts += 1;
        }
        let attempt = call.attempts + 1;
        let actor = &transcript.chat.actor;
        let ctx = ToolContext::new(self.chat, id, &call.name, actor, attempt, call.questions.clone());
        let task = match tool.transaction() {
            None => running.tasks.spawn(self.lease.while_alive(async move { tool.run(ctx, arguments).await })),
            Some(limit) => {
                let (pool, clock_ms) = (askback.pool.clone(), askback.clock_ms());
                let mut claimed = call.clone();
                claimed.run_token = Some(run);
                let run = async move {
                    let run = transact(&pool, clock_ms, fence, &claimed, &*tool, ctx, arguments);
                    tokio::time::timeout(limit, run).await.unwrap_or_else(|_| Ran::Failed {
                        message: format!("{} did not end within {limit:?} and was undone", claimed.name),
                        error: None,
                    })
                };
                running.tasks.spawn(self.lease.while_alive(run))
            }
        };
        running.calls.insert(task.id(), (id, run));
        Ok(true)
    }

    /// Records what a run came to; the error of a tool that failed.
    async fn record(&self, transcript: &mut Transcript, id: ToolCallId, run: Uuid, ran: Ran) -> Result<Option<Error>> {
        let Some(call) = transcript.calls.iter().find(|call| call.id == id).cloned() else { return Ok(None) };
        debug_assert_eq!(call.run_token, Some(run));
        let (result, kind, failed) = match ran {
            Ran::Asks(asks) => {
                return match self.ask(transcript, call, asks).await? {
                    true => Ok(None),
                    false => Err(lost(self.chat)),
                };
            }
            Ran::Recorded(result) => {
                transcript.close(id, result, ResultKind::Value);
                return Ok(None);
            }
            Ran::Broken(error) => {
                // Without a reply to the commit only the row tells.
                self.refresh_call(transcript, id).await?;
                let done = transcript.calls.iter().any(|call| call.id == id && !call.is_open());
                return if done { Ok(None) } else { Err(error) };
            }
            Ran::TimedOut => {
                let result = error_result(&format!(
                    "{} did not end within its time; it may or may not have done its work",
                    call.name
                ));
                (result, ResultKind::Unfinished, None)
            }
            Ran::Value(value) => (edited(&call, value), ResultKind::Value, None),
            Ran::Failed { message, error } => {
                let mut failed =
                    Error::new(ErrorKind::Tool, format!("chat {}: the tool {} failed", self.chat, call.name));
                if let Some(error) = error {
                    tracing::info!(chat = %self.chat, call = %id, tool = %call.name, error = %chain(&*error), "a tool failed");
                    failed = failed.caused_by(error);
                }
                (error_result(&message), ResultKind::Error, Some(failed))
            }
        };
        match self.close(transcript, &call, result, kind).await? {
            true => Ok(failed),
            false => Err(lost(self.chat)),
        }
    }

    /// Writes a call's result. False when the fence refused.
    async fn close(
        &self,
        transcript: &mut Transcript,
        call: &ToolCall,
        result: String,
        kind: ResultKind,
    ) -> Result<bool> {
        let (askback, fence) = (self.askback, self.lease.fence);
        let closed = fenced_write!(&askback.pool, askback.clock_ms(), session =>
            transcript::record_result(&mut session, fence, call.id, call.run_token, &result, kind));
        if !closed? {
            return Ok(false);
        }
        transcript.close(call.id, result, kind);
        Ok(true)
    }

    /// Records questions of a call, which waits from then on. False when the fence refused.
    async fn ask(
        &self,
        transcript: &mut Transcript,
        mut call: ToolCall,
        asks: Vec<(String, crate::request::InputRequest)>,
    ) -> Result<bool> {
        for (key, request) in asks {
            let asked = call.ask(&key, &request, self.now())?;
            if key.is_empty() {
                call.gate = Some(Gate::Pending);
            }
            call.questions.push(asked);
        }
        let (askback, fence) = (self.askback, self.lease.fence);
        let parked = fenced_write!(&askback.pool, askback.clock_ms(), session =>
            transcript::record_questions(&mut session, fence, &call));
        if !parked? {
            return Ok(false);
        }
        (call.state, call.run_token) = (CallState::Waiting, None);
        if let Some(row) = transcript.call_mut(call.id) {
            *row = call;
        }
        Ok(true)
    }

    /// Reads again what others may have written: the open calls and a cancel.
    async fn refresh(&self, transcript: &mut Transcript) -> Result<()> {
        let mut held = Db::from(&self.askback.pool).hold(self.askback.clock_ms()).await?;
        let mut session = held.session();
        transcript.chat = chats::get(&mut session, self.chat).await?;
        for call in transcript::open_calls(&mut session, self.chat).await? {
            if let Some(row) = transcript.call_mut(call.id) {
                *row = call;
            }
        }
        Ok(())
    }

    async fn refresh_call(&self, transcript: &mut Transcript, id: ToolCallId) -> Result<()> {
        let mut held = Db::from(&self.askback.pool).hold(self.askback.clock_ms()).await?;
        let read = questions::call(&mut held.session(), self.chat, id).await?;
        if let (Some(row), Some(call)) = (transcript.call_mut(id), read) {
            *row = call;
        }
        Ok(())
    }

    /// Records the defaults of questions whose time is over; whether there were any.
    async fn expire(&self, transcript: &Transcript) -> Result<bool> {
        let mut any = false;
        for call in transcript.open_calls().filter(|call| call.state == CallState::Waiting) {
            let open =
                call.questions.iter().enumerate().filter(|(_, q)| q.decision.is_none() && q.expires_us.is_some());
            for (index, asked) in open {
                let settlement = Settlement {
                    chat: self.chat,
                    call: call.id,
                    index,
                    key: asked.key.clone(),
                    digest: asked.digest.clone(),
                    act: Act::Expire,
                    note: None,
                    by: Who::System("expired".into()),
                    names: Vec::new(),
                    idem: None,
                    via: None,
                };
                let mut held = Db::from(&self.askback.pool).hold(self.askback.clock_ms()).await?;
                let verdict = self.askback.settle(&mut held, &settlement).await?;
                any |= !matches!(verdict.ruling, Ruling::NotDue);
            }
        }
        Ok(any)
    }

    async fn close_cancelled(&mut self) -> Result<Outcome> {
        let askback = self.askback;
        let mut tries = 0;
        loop {
            match transcript::close_cancelled(&askback.pool, askback.clock_ms(), self.lease.fence).await {
                Ok(true) => return Ok(Outcome::Cancelled),
                Ok(false) => return Err(lost(self.chat)),
                Err(e) if e.kind() == ErrorKind::Restart && tries < 5 => tries += 1,
                Err(e) => return Err(e),
            }
        }
    }

    /// Gives the lease back with what the rows say.
    async fn leave(&self, driven: &Result<Outcome>) -> Result<()> {
        let leave = match driven {
            // Its last turn, or its cancel, gave the lease back already; this then finds nothing.
            Ok(Outcome::Done | Outcome::Capped | Outcome::Cancelled) => Leave::As(ChatState::Idle),
            Ok(Outcome::Waiting) => Leave::As(ChatState::Waiting),
            Ok(Outcome::Ready | Outcome::Busy) => Leave::As(ChatState::Ready),
            Err(e) if e.kind() == ErrorKind::LeaseLost => return Ok(()),
            Err(e) => self.leave_failed(e).await?,
        };
        if !self.lease.is_alive() {
            return Ok(());
        }
        let mut held = Db::from(&self.askback.pool).hold(self.askback.clock_ms()).await?;
        chats::release(&mut held.session(), self.chat, self.lease.fence.token, &leave).await?;
        Ok(())
    }

    async fn leave_failed(&self, error: &Error) -> Result<Leave> {
        tracing::warn!(chat = %self.chat, error = %chain(error), "driving the chat failed");
        let mut held = Db::from(&self.askback.pool).hold(self.askback.clock_ms()).await?;
        let row = chats::get(&mut held.session(), self.chat).await?;
        let options = &self.askback.options;
        let unbuilt = error.kind() == ErrorKind::Agent && self.setup.is_none();
        if unbuilt {
            // As it was: another process, or the next deploy, may know the agent.
            let failed_before = row.failures >= i64::from(options.max_failures);
            let state = if failed_before && row.failures > 0 { ChatState::Failed } else { ChatState::Ready };
            return Ok(Leave::Unbuilt { state, wait: self.until.put_off.then_some(MAX_BACKOFF / 10) });
        }
        let failures = row.failures + 1;
        let for_good = error.kind() == ErrorKind::Tool
            || (error.kind() == ErrorKind::Provider && !error.is_retryable())
            || failures >= i64::from(options.max_failures);
        let asked = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
        Ok(Leave::Failed {
            state: if for_good { ChatState::Failed } else { ChatState::Ready },
            wait: backoff(failures).max(asked),
            error: chain(error).replace('\0', "\u{fffd}"),
        })
    }
}

/// What the model said, as far as the chat is concerned.
enum Said {
    Calls,
    LastWord,
    /// The generation was cancelled meanwhile.
    Nothing,
}

/// The tasks of the tools that run, and which call each runs. Dropping it stops them.
#[derive(Default)]
struct Running {
    tasks: JoinSet<Option<Ran>>,
    calls: HashMap<tokio::task::Id, (ToolCallId, Uuid)>,
}

/// Runs a transactional tool: its rows first, then the fence, its result, and the commit.
async fn transact(
    pool: &Pool,
    clock_ms: i64,
    fence: Fence,
    call: &ToolCall,
    tool: &dyn DynTool,
    ctx: ToolContext,
    arguments: String,
) -> Ran {
    let transacted: Result<Ran> = async {
        let mut held = Db::from(pool).transact(clock_ms).await?;
        let mut session = held.session();
        let value = match tool.run_in(ctx, arguments, &mut session.conn).await {
            Ran::Value(value) => value,
            // Dropping the transaction undoes what the tool wrote.
            other => return Ok(other),
        };
        let result = edited(call, value);
        let kind = ResultKind::Value;
        if !transcript::record_result(&mut session, fence, call.id, call.run_token, &result, kind).await? {
            return Err(lost(fence.chat));
        }
        held.commit().await?;
        Ok(Ran::Recorded(result))
    }
    .await;
    transacted.unwrap_or_else(Ran::Broken)
}

fn lost(chat: ChatId) -> Error {
    Error::new(ErrorKind::LeaseLost, format!("the lease on chat {chat} is over; whoever takes it carries on"))
}

fn provider_error(chat: ChatId, model: &crate::provider::Model, error: ProviderError) -> Error {
    let after = error.is_retryable().then(|| error.retry_after().unwrap_or_default());
    Error::new(ErrorKind::Provider, format!("chat {chat}: asking {} for {}", model.service(), model.model()))
        .after(after)
        .caused_by(error)
}

/// 1 s, doubled with each failure up to five minutes, and up to a quarter more so that chats do not come back together.
fn backoff(failures: i64) -> Duration {
    let doubled = Duration::from_secs(1) * 2u32.pow(u32::try_from(failures.clamp(1, 9) - 1).unwrap_or(0));
    let wait = doubled.min(MAX_BACKOFF);
    wait + wait.mul_f64(f64::from(Uuid::new_v4().as_bytes()[0]) / 1024.0)
}
