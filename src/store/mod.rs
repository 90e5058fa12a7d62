//! All SQL. Nothing else in the crate knows a table.
//!
//! Lock order, for everybody: the chat's row, then calls by id, then messages;
//! the app's own rows of a transactional tool come before all. What is written
//! without the chat's row (an answer) locks its call alone, and the audit row
//! that it inserts references the call, never the chat.

// With one database alone, what the others need is not needed.
#![cfg_attr(
    not(all(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(dead_code, unused_imports, unused_variables)
)]

#[macro_use]
pub(crate) mod dialect;
pub(crate) mod chats;
pub(crate) mod conn;
pub(crate) mod migrate;
pub(crate) mod questions;
pub(crate) mod transcript;
