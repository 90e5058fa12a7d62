//! A TCP server of a few lines that answers HTTP with exactly the bytes a test gives it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with one request.
#[derive(Clone)]
pub(crate) struct Answer {
    bytes: Vec<u8>,
    then: Then,
}

#[derive(Clone)]
enum Then {
    Close,
    Hang,
    Repeat(Vec<u8>, usize),
}

impl Answer {
    /// A whole reply with its length.
    pub(crate) fn new(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        let length = body.len().to_string();
        let mut all = headers.to_vec();
        all.push(("content-length", &length));
        Self { bytes: [head(status, &all), body.as_bytes().to_vec()].concat(), then: Then::Close }
    }

    /// A reply that promises more than it holds.
    pub(crate) fn cut(status: u16, promised: usize, body: &str) -> Self {
        let length = promised.to_string();
        Self {
            bytes: [head(status, &[("content-length", &length)]), body.as_bytes().to_vec()].concat(),
            then: Then::Close,
        }
    }

    /// A reply without a length, which ends when the connection does.
    pub(crate) fn unmeasured(body: &str) -> Self {
        Self { bytes: [head(200, &[]), body.as_bytes().to_vec()].concat(), then: Then::Close }
    }

    /// Goes on with a piece, again and again.
    pub(crate) fn repeat(mut self, piece: Vec<u8>, times: usize) -> Self {
        self.then = Then::Repeat(piece, times);
        self
    }

    /// Never ends.
    pub(crate) fn hang(mut self) -> Self {
        self.then = Then::Hang;
        self
    }
}

fn head(status: u16, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} Of the test\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    (head + "\r\n").into_bytes()
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Answers one request after the other, each as the list says.
    pub(crate) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answers, log) = (answers.into_iter().collect::<Vec<_>>(), seen.clone());
        let task = tokio::spawn(async move {
            for answer in answers {
                let (mut socket, _) = listener.accept().await.unwrap();
                let request = read(&mut socket).await;
                log.lock().unwrap().push(request);
                give(&mut socket, answer).await;
            }
        });
        Self { url, seen, task }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(socket: &mut TcpStream) -> Seen {
    let (mut bytes, mut buffer) = (Vec::new(), [0_u8; 8192]);
    loop {
        let n = socket.read(&mut buffer).await.unwrap();
        bytes.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Seen { head, body: body.to_owned() };
            }
        }
        assert!(n > 0, "the request broke off");
    }
}

async fn give(socket: &mut TcpStream, answer: Answer) {
    // The other side may have gone: that is what some tests are about.
    let _ = socket.write_all(&answer.bytes).await;
    match answer.then {
        Then::Close => {}
        Then::Hang => tokio::time::sleep(Duration::from_secs(60)).await,
        Then::Repeat(piece, times) => {
            for _ in 0..times {
                if socket.write_all(&piece).await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = socket.shutdown().await;
}
