//! P2: listing what one chat waits for, against one raw statement that reads the same columns.
//!
//! `ASKBACK_TEST_PG=postgres://... cargo bench --bench pending`
//!
//! Ours and raw alternate one by one. The first ratio is ours to raw in time:
//! 1.00 is as fast, the goal is at most 1.30. The second is a chat of 1000
//! messages to one of 10, ours to ours: the goal is at most 1.20.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::{Duration, Instant};

use askback::{Askback, Chat, QuestionId, sqlx};
use sqlx::{PgPool, Row};

const RUNS: usize = 5;
const LOOKS: usize = 400;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Some((pool, database)) = common::postgres(1, false).await else { return };
        let askback = Askback::new(pool.clone());
        let short = common::waiting(&pool, &askback, 20, 10).await;
        let long = common::waiting(&pool, &askback, 20, 1000).await;
        println!("{:<64} {:>6} {:>6} {:>6}", "median time of a list, ratio", "min", "median", "max");
        let (mut of_short, mut of_long, mut growth) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let (ours_short, raw_short) = medians(&pool, &short).await;
            let (ours_long, raw_long) = medians(&pool, &long).await;
            of_short.push(ours_short / raw_short);
            of_long.push(ours_long / raw_long);
            growth.push(ours_long / ours_short);
        }
        common::print("P2 pending_questions, 10 messages, ours / raw", of_short);
        common::print("P2 pending_questions, 1000 messages, ours / raw", of_long);
        common::print("P2 pending_questions, 1000 messages / 10 messages, ours", growth);
        database.now(pool).await;
    });
}

async fn medians(pool: &PgPool, chats: &[(Chat, QuestionId)]) -> (f64, f64) {
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for (chat, _) in chats.iter().cycle().take(LOOKS) {
        let start = Instant::now();
        assert_eq!(chat.pending_questions(pool).await.unwrap().len(), 1);
        ours.push(start.elapsed());
        let start = Instant::now();
        list_raw(pool, chat).await;
        raw.push(start.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    };
    (median(&mut ours), median(&mut raw))
}

async fn list_raw(pool: &PgPool, chat: &Chat) {
    let rows = sqlx::query(
        "select t.id, t.message_id, t.message_position, t.name, t.arguments, t.questions
           from askback_tool_calls t
          where t.chat_id = $1 and t.state = 'waiting' and t.result_kind is null
          order by t.message_position, t.position",
    )
    .bind(chat.id().0)
    .fetch_all(pool)
    .await
    .unwrap();
    let questions: serde_json::Value = rows[0].get("questions");
    assert_eq!(questions[0]["digest"].as_str(), Some(common::digest().as_str()));
}
