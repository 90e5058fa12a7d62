//! The suite: one behaviour, run on every database at hand.
//!
//! SQLite always; PostgreSQL where `ASKBACK_TEST_PG` and MySQL or MariaDB where
//! `ASKBACK_TEST_MYSQL` holds the address of a server on which databases may be
//! made. Each test gets a fresh database, and afterwards the rows are checked
//! for what must always hold.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]

mod asking;
mod driving;
mod gates;
mod holding;
mod models;
mod settling;
mod storing;
mod support;
mod verbs;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use support::{Backend, TestDb};

fn main() -> ExitCode {
    if let Some(code) = support::child::run() {
        return code;
    }
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .try_init();
    let arguments = Arguments::from_args();
    // B13: one suite, each test on every database.
    let mut trials = Vec::new();
    for backend in Backend::ALL {
        let here = backend.is_here();
        if !arguments.list {
            eprintln!("{backend}: {}", if here { "runs" } else { backend.way_out() });
        }
        for test in [
            asking::tests(),
            driving::tests(),
            settling::tests(),
            storing::tests(),
            gates::tests(),
            holding::tests(),
            models::tests(),
            verbs::tests(),
        ]
        .concat()
        {
            let trial = Trial::test(format!("{backend}::{}", test.name.trim_start_matches("it::")), move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
                runtime.block_on(async {
                    let db = TestDb::fresh(backend).await;
                    tokio::time::timeout(std::time::Duration::from_secs(300), (test.run)(db.clone()))
                        .await
                        .map_err(|_| "the test did not end in 300 s")?;
                    db.check_invariants().await;
                    db.drop_database().await;
                    Ok(())
                })
            });
            trials.push(trial.with_ignored_flag(!here));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
