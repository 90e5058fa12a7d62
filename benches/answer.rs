//! P1: answering a question, against the same two statements sent raw through the same driver.
//!
//! `ASKBACK_TEST_PG=postgres://... cargo bench --bench answer`
//!
//! Ours and raw alternate within each run, on the same pool, on chats made the
//! same way. The ratio is ours to raw in answers a second: 1.00 is as fast, and
//! the goal is at least 0.90. Commits are not waited for, so that the disk does
//! not hide the difference; the durable ones are reported beside it.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::{Duration, Instant};

use askback::{Askback, By, Chat, QuestionId, Settled, sqlx};
use sqlx::{AssertSqlSafe, PgPool, Row};
use tokio::task::JoinSet;
use uuid::Uuid;

const RUNS: usize = 5;
/// How often ours and raw alternate in a run.
const ROUNDS: usize = 6;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!("{:<64} {:>6} {:>6} {:>6}", "answers a second, ours / raw", "min", "median", "max");
        for durable in [false, true] {
            for connections in [1, 8, 32] {
                let Some((pool, database)) = common::postgres(connections, durable).await else { return };
                let askback = Askback::new(pool.clone());
                let each = if durable { 10 } else { 30 } * connections as usize;
                let mut ratios = Vec::new();
                for _ in 0..RUNS {
                    let mut chats =
                        common::waiting(&pool, &askback, each * 2 * ROUNDS + 2 * connections as usize, 10).await;
                    // Both sides' statements are prepared on every connection before anything is timed.
                    let warm = chats.split_off(each * 2 * ROUNDS);
                    let (ours, raw) = warm.split_at(connections as usize);
                    timed(&pool, ours.to_vec(), connections, false).await;
                    timed(&pool, raw.to_vec(), connections, true).await;
                    let (mut ours, mut raw) = (Duration::ZERO, Duration::ZERO);
                    for _ in 0..ROUNDS {
                        ours += timed(&pool, chats.split_off(chats.len() - each), connections, false).await;
                        raw += timed(&pool, chats.split_off(chats.len() - each), connections, true).await;
                    }
                    ratios.push(raw.as_secs_f64() / ours.as_secs_f64());
                }
                let how = if durable { "commits waited for" } else { "commits not waited for" };
                common::print(&format!("P1 answer, {connections} connections, {how}"), ratios);
                database.now(pool).await;
            }
        }
    });
}

/// Answers all of them with so many tasks.
async fn timed(pool: &PgPool, mut chats: Vec<(Chat, QuestionId)>, tasks: u32, raw: bool) -> Duration {
    let share = chats.len().div_ceil(tasks as usize);
    let mut shares = Vec::new();
    while !chats.is_empty() {
        shares.push(chats.split_off(chats.len().saturating_sub(share)));
    }
    let start = Instant::now();
    let mut running = JoinSet::new();
    for share in shares {
        let pool = pool.clone();
        running.spawn(async move {
            for (chat, question) in share {
                match raw {
                    true => answer_raw(&pool, &chat, &question).await,
                    false => {
                        let settled = chat.answer(&pool, &question, true, By::person("ann")).await.unwrap();
                        assert_eq!(settled, Settled::Recorded);
                    }
                }
            }
        });
    }
    running.join_all().await;
    start.elapsed()
}

/// The same two statements, with nothing around them.
async fn answer_raw(pool: &PgPool, chat: &Chat, question: &QuestionId) {
    const SETTLE: &str = include_str!("../src/store/settle_postgres.sql");
    let mut conn = pool.acquire().await.unwrap();
    let call = sqlx::query(
        "select t.id, t.message_id, t.message_position, t.position, t.wire_id, t.name, t.arguments,
                t.raw_arguments, t.approval, t.questions, t.state, t.result, t.result_kind, t.run_token, t.attempts,
                t.updated_at
           from askback_tool_calls t
          where t.chat_id = $1 and t.id = $2",
    )
    .bind(chat.id().0)
    .bind(question.call().0)
    .fetch_one(&mut *conn)
    .await
    .unwrap();
    let questions: serde_json::Value = call.get("questions");
    let settled = sqlx::query(AssertSqlSafe(SETTLE.replace("{now}", "clock_timestamp()")))
        .bind(Some("10000ms"))
        .bind(chat.id().0)
        .bind(question.call().0)
        .bind(0_i64)
        .bind("")
        .bind(questions[0]["digest"].as_str())
        .bind("accept")
        .bind("true")
        .bind("person:ann")
        .bind(vec!["person:ann"])
        .bind(Uuid::new_v4().to_string())
        .bind(None::<&str>)
        .bind(None::<&str>)
        .fetch_one(&mut *conn)
        .await
        .unwrap();
    assert_eq!(settled.get::<&str, _>("verdict"), "won");
}
