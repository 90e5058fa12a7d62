//! LLM chats in SQL rows: a tool call can stop and ask a person, any process
//! settles the answer, and any process carries the call on.
//!
//! The README is the first ten minutes, ARCHITECTURE.md says how it works
//! inside. In short:
//!
//! ```no_run
//! use askback::provider::scripted::Scripted;
//! use askback::{Agent, AgentContext, Askback, BoxError, By, Outcome, Setup, Tool, ToolContext, ToolResult, confirm};
//! use serde::{Deserialize, Serialize};
//!
//! struct Refund;
//!
//! #[derive(Deserialize, schemars::JsonSchema)]
//! struct Args {
//!     order: String,
//! }
//!
//! impl Tool for Refund {
//!     const NAME: &str = "refund";
//!     const DESCRIPTION: &str = "Refund an order";
//!     type Args = Args;
//!     type Output = String;
//!
//!     async fn call(&self, ctx: ToolContext, args: Args) -> ToolResult<String> {
//!         ctx.ask(confirm(format!("Refund {}?", args.order)))?; // ends here until a person answers
//!         Ok(format!("refunded {}", args.order))
//!     }
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Support;
//!
//! impl Agent for Support {
//!     const NAME: &str = "support";
//!     type App = Scripted;
//!
//!     async fn setup(&self, model: &Scripted, _: &AgentContext) -> Result<Setup, BoxError> {
//!         Ok(Setup::new(model.clone()).tool(Refund))
//!     }
//! }
//!
//! # async fn run(db: sqlx::SqlitePool, model: Scripted) -> askback::Result<()> {
//! askback::migrate(&db).await?;
//! let askback = Askback::new(&db).agent::<Support>(model);
//! let chat = askback.start(&db, &Support, "carl").await?;
//! chat.say(&db, "I want my money back for A-1001").await?;
//! assert_eq!(chat.complete().await?, Outcome::Waiting); // or leave that to a Worker
//!
//! // Another request, another process, hours later.
//! let chat = askback.chat(chat.id());
//! let question = &chat.pending_questions(&db).await?[0];
//! chat.answer(&db, &question.id, true, By::person("ann").seen(&question.digest)).await?;
//! assert_eq!(chat.complete().await?, Outcome::Done);
//! # Ok(()) }
//! ```
//!
//! # Layout
//!
//! - [`Askback`] is the handle an app holds, [`Chat`] the handle on one chat, [`Worker`] what drives them.
//! - [`Agent`], [`Setup`] and [`Tool`] are what an app writes; a tool asks with [`ToolContext::ask`] and
//!   [`confirm`], [`text`], [`choice`] and the other constructors.
//! - [`Question`], [`By`], [`Settled`] and [`Decision`] are what goes between a chat and a person.
//! - [`step::next`] is the one decision of the loop: what a chat's rows ([`Transcript`]) need next ([`Step`]).
//! - [`provider`] is what a model has to be, and the wires that are spoken.
//!
//! # Features
//!
//! None is on by default: `postgres`, `mysql`, `sqlite`; `anthropic`, `openai-chat`, `rustls-ring`; `test-util`.
//! Without a database the pure parts are there alone.

// Without a database the pure parts stand alone; what only the loop calls is then not called.
#![cfg_attr(not(feature = "_sql"), allow(dead_code))]

pub mod provider;

mod agent;
mod answer;
mod ask;
#[cfg(feature = "_sql")]
mod askback;
#[cfg(feature = "_sql")]
mod chat;
mod decision;
#[cfg(feature = "_sql")]
mod drive;
mod erased;
mod error;
mod form;
mod id;
#[cfg(feature = "_sql")]
mod lease;
mod message;
#[cfg(feature = "_sql")]
mod prompt;
mod question;
mod request;
pub mod step;
#[cfg(feature = "_sql")]
mod store;
mod tool;
mod tool_call;
#[cfg(feature = "_sql")]
mod transactional;
#[cfg(feature = "_sql")]
mod turn;
#[cfg(feature = "_sql")]
mod wake;
#[cfg(feature = "_sql")]
mod worker;

pub use agent::{Agent, AgentContext, DEFAULT_MAX_TOOL_TURNS, Setup};
pub use answer::Answer;
pub use ask::{Ask, choice, confirm, form, secret, text, url};
#[cfg(all(feature = "_sql", feature = "test-util"))]
pub use askback::TestClock;
#[cfg(feature = "_sql")]
pub use askback::{Askback, Enqueue, MAX_TEXT_BYTES, Start};
#[cfg(feature = "_sql")]
pub use chat::Chat;
pub use decision::{By, Decision, Settled, Verb, Who};
#[cfg(feature = "_sql")]
pub use drive::Outcome;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use form::{ChoiceOption, Field, FieldType};
pub use id::{ChatId, MessageId, QuestionId, ToolCallId};
pub use message::{Message, Role};
pub use provider::{Model, Provider};
pub use question::Question;
pub use request::{InputRequest, Kind, MAX_ANSWER_BYTES};
#[cfg(feature = "_http")]
pub use reqwest;
pub use schemars;
#[cfg(feature = "_sql")]
pub use sqlx;
pub use step::{ChatRow, ChatState, Step, Transcript};
#[cfg(feature = "_sql")]
pub use store::conn::{Conn, Database, Db, Pool};
#[cfg(feature = "_sql")]
pub use store::migrate::{Migration, migrate, migrations};
pub use tool::{Approval, AskError, OnInterrupt, Tool, ToolContext, ToolError, ToolResult, input_answer};
pub use tool_call::{CallState, Gate, ResultKind, ToolCall};
#[cfg(feature = "_sql")]
pub use transactional::TransactionalTool;
#[cfg(feature = "_sql")]
pub use worker::Worker;

/// The README's code, compiled.
#[cfg(all(doctest, feature = "postgres", feature = "anthropic"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
