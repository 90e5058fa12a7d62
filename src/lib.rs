//! LLM chats in SQL rows: a tool call stops and asks a person, any process
//! settles the answer, any process carries the call on.

pub mod provider;

mod agent;
#[cfg(feature = "_sql")]
mod askback;
mod decision;
#[cfg(feature = "_sql")]
mod drive;
mod error;
mod id;
#[cfg(feature = "_sql")]
mod lease;
mod message;
#[cfg(feature = "_sql")]
mod prompt;
mod question;
mod step;
#[cfg(feature = "_sql")]
mod store;
mod tool;
mod tool_call;
#[cfg(feature = "_sql")]
mod wake;
#[cfg(feature = "_sql")]
mod worker;

pub use agent::{Agent, AgentContext, DEFAULT_MAX_TOOL_TURNS, Setup};
#[cfg(all(feature = "_sql", feature = "test-util"))]
pub use askback::TestClock;
#[cfg(feature = "_sql")]
pub use askback::{Askback, Chat, Enqueue, MAX_TEXT_BYTES, Start};
pub use decision::{By, Decision, Settled, Verb, Who};
#[cfg(feature = "_sql")]
pub use drive::Outcome;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use id::{ChatId, MessageId, QuestionId, ToolCallId};
pub use message::{Message, Role};
pub use provider::{Model, Provider};
pub use question::{
    Ask, ChoiceOption, Field, FieldType, InputRequest, Kind, MAX_ANSWER_BYTES, Question, choice, confirm, form, secret,
    text, url,
};
pub use schemars;
#[cfg(feature = "_sql")]
pub use sqlx;
pub use step::{ChatRow, ChatState, Step, Transcript, next};
#[cfg(feature = "_sql")]
pub use store::conn::{Conn, Database, Db, Pool};
#[cfg(feature = "_sql")]
pub use store::migrate::{Migration, migrate, migrations};
pub use tool::{Approval, AskError, OnInterrupt, Tool, ToolContext, ToolError, ToolResult};
pub use tool_call::{CallState, Gate, ResultKind, ToolCall};
#[cfg(feature = "_sql")]
pub use worker::Worker;
