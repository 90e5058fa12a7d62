//! Other processes: this binary again, with a role.

use std::process::{Child, Command, ExitCode, Stdio};

/// Runs the role that the environment names; `None` in the process of the suite.
pub fn run() -> Option<ExitCode> {
    let role = std::env::var("ASKBACK_TEST_ROLE").ok()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().ok()?;
    runtime.block_on(crate::driving::child(&role));
    Some(ExitCode::SUCCESS)
}

/// Starts a process with a role on a database.
pub fn spawn(role: &str, url: &str, env: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .env("ASKBACK_TEST_ROLE", role)
        .env("ASKBACK_TEST_URL", url)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
