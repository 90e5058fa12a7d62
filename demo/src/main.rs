//! The support desk: a small web app that embeds askback.
//!
//! The web process shows chats and records answers. A child process of the same
//! binary, the worker, carries the chats on. Both know each other only through
//! the database's rows, so either can be killed at any moment.
//!
//! Nothing needs to be set. `ADDRESS` says where to listen, `DATABASE_URL` on
//! which database (`postgres://`, `mysql://`, `sqlite:`), `DESK_SLOW_MS` how long
//! the bank takes; [`model`] names the variables of real models.

#[macro_use]
mod html;

mod agent;
mod app;
mod cards;
mod chat;
mod log;
mod model;
mod shop;
mod view;
mod web;
mod worker;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use askback::BoxError;
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use crate::app::{App, askback_on, chain, stopped};
use crate::shop::Shop;
use crate::worker::WorkerProcess;

/// Where the desk listens unless `ADDRESS` says otherwise; with this port taken, on one of the next.
const ADDRESS: (&str, u16) = ("127.0.0.1", 3000);
/// How many ports are tried.
const PORTS: u16 = 50;

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let ended = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => desk().await,
        ["worker"] => worker::run().await,
        _ => Err("the desk takes no arguments; ADDRESS and DATABASE_URL in the environment set it up".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("askback-demo: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Opens the desk and serves it until it is told to stop.
async fn desk() -> Result<(), BoxError> {
    let url = shop::database_url()?;
    let shop = Shop::connect(&url).await?;
    shop.migrate().await?;
    let listener = listen().await?;
    let address = listener.local_addr()?;

    let worker = Arc::new(WorkerProcess::new(env::current_exe()?, url.clone()));
    worker.start()?;
    let app = App { askback: askback_on(&shop), shop, worker: worker.clone(), local: address.ip().is_loopback() };
    println!(
        "The support desk is open at http://{address} (database: {}, model: {})",
        shop::shown(&url),
        model::from_env().model()
    );
    let served = axum::serve(listener, web::router(app)).with_graceful_shutdown(stopped()).await;
    worker.stop().await;
    Ok(served?)
}

/// Listens where `ADDRESS` says, or on the first free port from 3000 on.
async fn listen() -> Result<TcpListener, BoxError> {
    if let Ok(address) = env::var("ADDRESS") {
        return TcpListener::bind(&address).await.map_err(|e| format!("ADDRESS={address}: {e}").into());
    }
    let (host, first) = ADDRESS;
    for port in first..first + PORTS {
        match TcpListener::bind((host, port)).await {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            bound => return Ok(bound?),
        }
    }
    Err(format!("no port of {host} from {first} on is free; set ADDRESS").into())
}
