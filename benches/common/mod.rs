//! What the benches share: a database of their own, chats that wait, ratios.

use std::time::Duration;

use askback::{Askback, Chat, ChatId, QuestionId, ToolCallId, migrate, sqlx};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, PgPool};
use uuid::Uuid;

/// A fresh database on the server that `ASKBACK_TEST_PG` names.
///
/// `durable` says whether commits are waited for: without that the disk is not what is measured.
pub(crate) async fn postgres(connections: u32, durable: bool) -> Option<(PgPool, Drop)> {
    let server: PgConnectOptions = match std::env::var("ASKBACK_TEST_PG") {
        Ok(url) => url.parse().expect("ASKBACK_TEST_PG is an address"),
        Err(_) => {
            println!("not run: ASKBACK_TEST_PG does not name a PostgreSQL server");
            return None;
        }
    };
    let name = format!("askback_bench_{}", Uuid::new_v4().simple());
    let mut admin = server.connect().await.expect("the server answers");
    sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await.expect("a database");
    let options = server.clone().database(&name);
    let options = if durable { options } else { options.options([("synchronous_commit", "off")]) };
    let pool = PgPoolOptions::new().max_connections(connections).min_connections(connections);
    let pool = pool.test_before_acquire(false).acquire_timeout(Duration::from_secs(60));
    let pool = pool.connect_with(options).await.expect("a pool");
    migrate(&pool).await.expect("the tables");
    Some((pool, Drop { server, name }))
}

/// The database to be dropped at the end.
pub(crate) struct Drop {
    server: PgConnectOptions,
    name: String,
}

impl Drop {
    pub(crate) async fn now(self, pool: PgPool) {
        pool.close().await;
        let mut admin = self.server.connect().await.expect("the server answers");
        let sql = format!("drop database {} with (force)", self.name);
        sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.expect("the database goes");
    }
}

/// Chats with a history of so many messages, each with one call that waits for an approval.
pub(crate) async fn waiting(pool: &PgPool, askback: &Askback, chats: usize, messages: i64) -> Vec<(Chat, QuestionId)> {
    let mut made = Vec::with_capacity(chats);
    for _ in 0..chats {
        let (chat, call) = (Uuid::now_v7(), Uuid::now_v7());
        let history = "
            with c as (insert into askback_chats (id, agent, arguments, actor, state, next_position, created_at, updated_at)
                       values ($1, 'bench', '{}', 'carl', 'waiting', $3, now(), now()) returning id),
                 m as (insert into askback_messages (chat_id, position, id, role, content, created_at)
                       select c.id, n, gen_random_uuid(), case when n % 2 = 0 then 'user' else 'assistant' end,
                              repeat('words and ', 20), now() from c, generate_series(0, $3 - 1) n),
                 d as (insert into askback_tool_calls (chat_id, message_id, message_position, position, id, wire_id, name, arguments,
                              state, result, result_kind, created_at, updated_at)
                       select c.id, gen_random_uuid(), n, 0, gen_random_uuid(), 'w', 'look_up', '{}', 'done', '1', 'value', now(), now()
                         from c, generate_series(1, $3 - 3, 2) n)
            insert into askback_tool_calls (chat_id, message_id, message_position, position, id, wire_id, name, arguments, approval,
                   questions, open_count, state, created_at, updated_at)
            select c.id, gen_random_uuid(), $3 - 1, 0, $2, 'w', 'refund', '{\"order\":\"A-1\",\"cents\":4200}', 'pending', $4::text::jsonb, 1,
                   'waiting', now(), now() from c";
        sqlx::query(history)
            .bind(chat)
            .bind(call)
            .bind(messages)
            .bind(questions())
            .execute(pool)
            .await
            .expect("a waiting chat");
        made.push((askback.chat(ChatId(chat)), QuestionId::from(ToolCallId(call))));
    }
    sqlx::query("vacuum analyze").execute(pool).await.expect("statistics");
    made
}

fn questions() -> String {
    let ask = r#"{\"kind\":\"approval\",\"prompt\":\"Allow refund to run?\",\"metadata\":{\"approval\":true}}"#;
    let digest = digest();
    format!(r#"[{{"key":"","round":0,"digest":"{digest}","asked_us":1700000000000000,"ask":"{ask}"}}]"#)
}

/// The digest that stands on the benches' questions; as long as a real one.
pub(crate) fn digest() -> String {
    "ab".repeat(32)
}

/// The smallest, the median and the largest of some ratios.
pub(crate) fn print(what: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("{what:<64} {:>6.2} {median:>6.2} {:>6.2}", ratios[0], ratios[ratios.len() - 1]);
}
