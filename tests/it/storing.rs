//! The tables: migrated from any state; and how often the server is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use askback::{By, ErrorKind, Outcome, Pool, Settled, Setup, migrate, migrations, sqlx};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::tools::Refund;
use crate::support::{Backend, Lab, LabApp, TestDb, calls, calls_then_done, connect};
use crate::tests;

tests![
    migrations_run_twice_and_from_many_processes_at_once,
    a_migration_that_was_killed_is_healed,
    a_schema_newer_than_the_build_is_refused,
    the_apps_own_migrations_and_foreign_keys_stand_beside,
    migrations_join_the_apps_transaction,
    a_missing_schema_is_named,
    answering_takes_two_round_trips,
    listing_takes_one_round_trip,
    an_answer_and_its_continuation_take_at_most_eleven_statements,
    a_long_chat_is_not_read_to_list_its_questions,
];

async fn versions(db: &TestDb) -> i64 {
    db.count("select count(*) from askback_migrations").await
}

// Q19, case CI10
async fn migrations_run_twice_and_from_many_processes_at_once(db: TestDb) {
    let db = TestDb::empty(db.backend).await;
    let mut migrating = JoinSet::new();
    for _ in 0..8 {
        let url = db.url.clone();
        migrating.spawn(async move { migrate(&connect(&url, 1).await).await.unwrap() });
    }
    migrating.join_all().await;
    migrate(&db.pool).await.unwrap();
    assert_eq!(versions(&db).await, migrations(db.pool.database()).len() as i64);
    db.drop_database().await;
}

// Q19, case CI10
async fn a_migration_that_was_killed_is_healed(db: TestDb) {
    // The worst that a kill leaves: MySQL commits each table by itself.
    let half = migrations(db.pool.database())[0].sql.split("create table if not exists askback_tool_calls").next();
    let half = sqlx::raw_sql(sqlx::AssertSqlSafe(half.unwrap().to_owned()));
    let db = TestDb::empty(db.backend).await;
    let _rows = match &db.pool {
        Pool::Postgres(pool) => half.execute(pool).await.unwrap().rows_affected(),
        Pool::MySql(pool) => half.execute(pool).await.unwrap().rows_affected(),
        Pool::Sqlite(pool) => half.execute(pool).await.unwrap().rows_affected(),
        _ => unreachable!(),
    };
    migrate(&db.pool).await.unwrap();
    assert_eq!(db.count("select count(*) from askback_decisions").await, 0);
    assert_eq!(db.count("select count(*) from askback_usages").await, 0);
    db.drop_database().await;
}

// Q19
async fn a_schema_newer_than_the_build_is_refused(db: TestDb) {
    db.exec("insert into askback_migrations (version, name, applied_at) values (99, 'later', 'now')").await;
    let error = migrate(&db.pool).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Migration);
    assert!(
        error.to_string().contains("version 99") && error.to_string().contains("deploy the newer build"),
        "{error}"
    );
}

// Q19
async fn the_apps_own_migrations_and_foreign_keys_stand_beside(db: TestDb) {
    let (id, engine) = match db.backend {
        Backend::Postgres => ("uuid", ""),
        Backend::MySql => ("binary(16)", "engine = InnoDB"),
        Backend::Sqlite => ("blob", ""),
    };
    // sqlx's default table is the app's.
    db.exec("create table _sqlx_migrations (version bigint primary key, mine varchar(10) not null)").await;
    db.exec(&format!(
        "create table orders (id bigint primary key, chat_id {id}, call_id {id},
            foreign key (chat_id) references askback_chats (id),
            foreign key (call_id) references askback_tool_calls (id)) {engine}"
    ))
    .await;
    migrate(&db.pool).await.unwrap();
    let model = calls_then_done(calls([("1", "refund")]));
    let pool = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(pool.clone())));
    let chat = db.chat(&askback).await;
    chat.complete().await.unwrap();
    let question = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    let (chat_id, call_id) = (db.uuid(chat.id().0), db.uuid(question.id.call().0));
    db.exec(&format!("insert into orders values (1, {chat_id}, {call_id})")).await;
    // The app's row references the call while it is settled and run.
    chat.answer(&db.pool, &question.id, true, By::person("ann")).await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    let joined = "select count(*) from orders o join askback_tool_calls t on t.id = o.call_id where t.state = 'done'";
    assert_eq!(db.count(joined).await, 1);
}

// Q19, Q20, case CI10
async fn migrations_join_the_apps_transaction(db: TestDb) {
    let db = TestDb::empty(db.backend).await;
    match &db.pool {
        Pool::Postgres(pool) => {
            let mut tx = pool.begin().await.unwrap();
            migrate(&mut tx).await.unwrap();
            tx.rollback().await.unwrap();
        }
        Pool::Sqlite(pool) => {
            let mut tx = pool.begin().await.unwrap();
            migrate(&mut tx).await.unwrap();
            tx.rollback().await.unwrap();
        }
        // Each DDL statement commits by itself there.
        Pool::MySql(pool) => migrate(&mut pool.begin().await.unwrap()).await.unwrap(),
        _ => unreachable!(),
    }
    if db.backend != Backend::MySql {
        let error = db.askback().chat(askback::ChatId::new()).row(&db.pool).await.unwrap_err();
        assert!(error.to_string().contains("has askback::migrate run"), "{error}");
    }
    migrate(&db.pool).await.unwrap();
    assert_eq!(versions(&db).await, 1);
    db.drop_database().await;
}

// Q19
async fn a_missing_schema_is_named(db: TestDb) {
    let db = TestDb::empty(db.backend).await;
    let worker = askback::Worker::new(db.lab(|| unreachable!()));
    let error = worker.run_until(std::future::pending()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Database);
    assert!(error.to_string().contains("has askback::migrate run on this database?"), "{error}");
    db.drop_database().await;
}

/// What went over the wire to PostgreSQL.
#[derive(Default)]
struct Counts {
    /// Messages after which the client waits for the server.
    trips: AtomicUsize,
    /// Statements that were run.
    statements: AtomicUsize,
}

impl Counts {
    fn trips(&self) -> usize {
        self.trips.load(Ordering::SeqCst)
    }

    fn statements(&self) -> usize {
        self.statements.load(Ordering::SeqCst)
    }
}

/// Stands between the client and PostgreSQL and counts.
async fn counting_proxy(counts: Arc<Counts>) -> u16 {
    let server = std::env::var("ASKBACK_TEST_PG").unwrap();
    let server: sqlx::postgres::PgConnectOptions = server.parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = (server.get_host().to_owned(), server.get_port());
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(address.clone()).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let counts = counts.clone();
            tokio::spawn(async move {
                let mut started = false;
                loop {
                    // A frontend message: a type byte (not in the first one), then a length that counts itself.
                    let kind = if started { from_client.read_u8().await.ok() } else { Some(0) };
                    let (Some(kind), Ok(length)) = (kind, from_client.read_u32().await) else { return };
                    let mut body = vec![0; length as usize - 4];
                    from_client.read_exact(&mut body).await.unwrap();
                    if matches!(kind, b'S' | b'Q') {
                        counts.trips.fetch_add(1, Ordering::SeqCst);
                    }
                    if matches!(kind, b'E' | b'Q') {
                        counts.statements.fetch_add(1, Ordering::SeqCst);
                    }
                    let head = if started { vec![kind] } else { Vec::new() };
                    started = true;
                    let message = [head, length.to_be_bytes().to_vec(), body].concat();
                    if to_server.write_all(&message).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// A pool whose round trips are counted, with one connection and no ping before each use.
async fn counted(db: &TestDb) -> (sqlx::PgPool, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let port = counting_proxy(counts.clone()).await;
    let options: sqlx::postgres::PgConnectOptions = db.url.parse().unwrap();
    let options = options.host("127.0.0.1").port(port).ssl_mode(sqlx::postgres::PgSslMode::Disable);
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).test_before_acquire(false);
    (pool.connect_with(options).await.unwrap(), counts)
}

// B1, P1
async fn answering_takes_two_round_trips(db: TestDb) {
    if db.backend != Backend::Postgres {
        return;
    }
    let (inner, counts) = counted(&db).await;
    let model = calls_then_done(calls([("1", "refund"), ("2", "refund"), ("3", "refund")]));
    let tools = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(tools.clone())));
    let chat = db.chat(&askback).await;
    chat.complete().await.unwrap();
    let questions = chat.pending_questions(&db.pool).await.unwrap();
    let by = || By::person("ann");
    // One connection for all, so that no look of the driver's after a returned one falls into the count.
    let mut conn = inner.acquire().await.unwrap();
    // The first prepares the statements on this connection, once for all.
    chat.answer(&mut conn, &questions[0].id, true, by()).await.unwrap();
    for question in &questions[1..] {
        let before = counts.trips();
        assert_eq!(chat.answer(&mut conn, &question.id, true, by()).await.unwrap(), Settled::Recorded);
        // The first reads, so at most the second has a commit to wait for.
        assert_eq!(counts.trips() - before, 2);
    }
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
}

// Q1, P2
async fn listing_takes_one_round_trip(db: TestDb) {
    if db.backend != Backend::Postgres {
        return;
    }
    let (pool, counts) = counted(&db).await;
    let model = calls_then_done(calls([("1", "refund"), ("2", "refund")]));
    let tools = db.pool.clone();
    let askback = db.lab(move || Setup::new(model.clone()).tool(Refund(tools.clone())));
    let chat = db.chat(&askback).await;
    chat.complete().await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    for round in 0..3 {
        let before = counts.trips();
        assert_eq!(chat.pending_questions(&mut conn).await.unwrap().len(), 2);
        // The first time the statement is prepared as well.
        let expected = if round == 0 { 2 } else { 1 };
        assert_eq!(counts.trips() - before, expected);
    }
}

// P3
async fn an_answer_and_its_continuation_take_at_most_eleven_statements(db: TestDb) {
    if db.backend != Backend::Postgres {
        return;
    }
    let (inner, counts) = counted(&db).await;
    let model = calls_then_done(calls([("1", "refund")]));
    let tools = db.pool.clone();
    // A lease so long that no renewal falls into the count.
    let askback = askback::Askback::new(&inner)
        .lease(Duration::from_secs(600))
        .agent::<Lab>(LabApp { setup: Arc::new(move || Setup::new(model.clone()).tool(Refund(tools.clone()))) });
    let chat = db.chat(&askback).await;
    chat.complete().await.unwrap();
    let question = chat.pending_questions(&db.pool).await.unwrap().remove(0);
    let before = counts.statements();
    // In a transaction of the app's, so that no wake-up is counted; its begin and its commit are the app's.
    let mut tx = inner.begin().await.unwrap();
    chat.answer(&mut tx, &question.id, true, By::person("ann")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
    // Two for the answer; the lease, three to load, the mark, the result, the last turn with the lease, and the look after it.
    assert_eq!(counts.statements() - before - 2, 10);
}

// B2, P2
async fn a_long_chat_is_not_read_to_list_its_questions(db: TestDb) {
    if db.backend != Backend::Postgres {
        return;
    }
    let Pool::Postgres(pool) = &db.pool else { unreachable!() };
    let chat = db.chat(&db.lab(|| unreachable!())).await;
    let id = db.uuid(chat.id().0);
    db.exec(&format!(
        "insert into askback_messages (chat_id, position, id, role, content, created_at)
         select {id}, n, gen_random_uuid(), 'assistant', '', now() from generate_series(1, 2000) n"
    ))
    .await;
    db.exec(&format!(
        "insert into askback_tool_calls (chat_id, message_id, message_position, position, id, wire_id, name, arguments, state,
                result, result_kind, created_at, updated_at)
         select {id}, gen_random_uuid(), n, 0, gen_random_uuid(), 'w', 'free', '{{}}', 'done', '1', 'value', now(), now()
           from generate_series(1, 2000) n"
    ))
    .await;
    db.exec("update askback_chats set next_position = 2001, state = 'idle'").await;
    db.exec("analyze").await;
    let plan: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "explain select t.id from askback_chats c
           left join askback_tool_calls t on t.chat_id = c.id and t.state = 'waiting' and t.result_kind is null
          where c.id = {id} order by t.message_position, t.position"
    )))
    .fetch_all(pool)
    .await
    .unwrap();
    assert!(plan.iter().any(|line| line.contains("askback_tool_calls_open")), "{plan:#?}");
    assert!(
        tokio::time::timeout(Duration::from_secs(10), chat.pending_questions(&db.pool))
            .await
            .unwrap()
            .unwrap()
            .is_empty()
    );
}
