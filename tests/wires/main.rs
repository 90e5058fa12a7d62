//! The integration tests, one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod exchanges;
mod provider_http;
mod provider_render;
mod provider_replies;
mod scripted;
mod server;
