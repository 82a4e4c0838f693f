//! One request of a node's HTTP or HTTPS, on a connection of its own, and whether a port takes connections.

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::DATE;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use ringmq_tools::secure::{Stream, Terms};
use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Largest answer: the statistics of a topic with some thousand channels.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// An answer, whatever its status.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HttpResponse {
    pub status: u16,
    pub body: String,
    /// Clock of the node, as the head of the answer has it.
    pub date: Option<String>,
}

impl HttpResponse {
    /// The body of a 200.
    pub fn good(self) -> Result<String, String> {
        if self.status == 200 { Ok(self.body) } else { Err(format!("{} {}", self.status, self.body)) }
    }
}

/// Asks nodes. A node that refuses plaintext is asked again at its HTTPS port.
#[derive(Clone, Debug, Default)]
pub struct Asker {
    terms: Terms,
}

impl Asker {
    /// Client for nodes. `terms`: trusted CAs for HTTPS, and the certificate to show.
    pub fn new(terms: Terms) -> Asker {
        Asker { terms }
    }

    /// `address`: host and port.
    pub async fn get(&self, address: &str, path: &str) -> Result<HttpResponse, String> {
        self.request(address, Method::GET, path).await
    }

    /// A POST without a body.
    pub async fn post(&self, address: &str, path: &str) -> Result<HttpResponse, String> {
        self.request(address, Method::POST, path).await
    }

    async fn request(&self, address: &str, method: Method, path: &str) -> Result<HttpResponse, String> {
        let answer = within(exchange(connect(address), address, method.clone(), path)).await?;
        let Some(port) = https_port(&answer) else { return Ok(answer) };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let secure = format!("{host}:{port}");
        within(exchange(self.connect_securely(&secure), &secure, method, path)).await
    }

    async fn connect_securely(&self, address: &str) -> Result<Stream, Box<dyn Error>> {
        let stream = connect(address).await?;
        let secure = self.terms.load()?;
        let no_tls = |error| format!("{address}: no TLS: {error}; --http-client-tls-root-ca-file names the CAs to trust");
        Ok(secure.connect(address, stream).await.map_err(no_tls)?)
    }
}

/// HTTPS port of a node that refuses plaintext; `None`: the answer is no such refusal.
fn https_port(answer: &HttpResponse) -> Option<u16> {
    let body: serde_json::Value = serde_json::from_str(&answer.body).ok().filter(|_| answer.status == 403)?;
    body["https_port"].as_u64()?.try_into().ok()
}

async fn within(exchange: impl Future<Output = Result<HttpResponse, Box<dyn Error>>>) -> Result<HttpResponse, String> {
    match timeout(ANSWER_LIMIT, exchange).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {ANSWER_LIMIT:?}")),
    }
}

async fn connect(address: &str) -> Result<Stream, Box<dyn Error>> {
    let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
    Ok(Box::new(stream.map_err(|_| format!("no connection within {CONNECT_LIMIT:?}"))??))
}

/// Connects to the address. The error is the reason why it takes no connection.
pub async fn reach(address: &str) -> Result<(), String> {
    connect(address).await.map(drop).map_err(|error| error.to_string())
}

/// Whether the machine answers that nothing listens at the address.
pub async fn is_refused(address: &str) -> bool {
    let connected = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
    matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

async fn exchange(
    stream: impl Future<Output = Result<Stream, Box<dyn Error>>>,
    address: &str,
    method: Method,
    path: &str,
) -> Result<HttpResponse, Box<dyn Error>> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream.await?)).await?;
    let carrier = tokio::task::spawn_local(connection);
    let request = Request::builder().method(method).uri(path).header("host", address).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let date = response.headers().get(DATE).and_then(|date| date.to_str().ok()).map(String::from);
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string());
    carrier.abort();
    let body = String::from_utf8_lossy(&body?.to_bytes()).into_owned();
    Ok(HttpResponse { status, body, date })
}
