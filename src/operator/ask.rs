//! One request of a node's HTTP, on a connection of its own, and whether a port takes connections.

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::DATE;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Largest answer: the statistics of a topic with some thousand channels.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// An answer, whatever its status.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    /// Clock of the node, as the head of the answer has it.
    pub date: Option<String>,
}

impl Answer {
    /// The body of a 200.
    pub fn good(self) -> Result<String, String> {
        if self.status == 200 { Ok(self.body) } else { Err(format!("{} {}", self.status, self.body)) }
    }
}

/// `address`: host and port.
pub async fn get(address: &str, path: &str) -> Result<Answer, String> {
    request(address, Method::GET, path).await
}

/// A POST without a body.
pub async fn post(address: &str, path: &str) -> Result<Answer, String> {
    request(address, Method::POST, path).await
}

async fn request(address: &str, method: Method, path: &str) -> Result<Answer, String> {
    match timeout(ANSWER_LIMIT, converse(address, method, path)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {ANSWER_LIMIT:?}")),
    }
}

async fn connect(address: &str) -> Result<TcpStream, Box<dyn Error>> {
    let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
    Ok(stream.map_err(|_| format!("no connection within {CONNECT_LIMIT:?}"))??)
}

/// Why the address takes no connection.
pub async fn reach(address: &str) -> Result<(), String> {
    connect(address).await.map(drop).map_err(|error| error.to_string())
}

async fn converse(address: &str, method: Method, path: &str) -> Result<Answer, Box<dyn Error>> {
    let stream = TokioIo::new(connect(address).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let carrier = tokio::task::spawn_local(connection);
    let request = Request::builder().method(method).uri(path).header("host", address).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let date = response.headers().get(DATE).and_then(|date| date.to_str().ok()).map(String::from);
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string());
    carrier.abort();
    let body = String::from_utf8_lossy(&body?.to_bytes()).into_owned();
    Ok(Answer { status, body, date })
}
