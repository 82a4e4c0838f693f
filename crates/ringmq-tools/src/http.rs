//! One HTTP request to a node or an nsqlookupd, on a connection of its own.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Largest answer that is read: the statistics of some ten thousand channels.
const ANSWER_MAX: usize = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("no connection to http://{address}: {source}; is the node's --http-address another one?")]
    Connect { address: String, source: std::io::Error },
    #[error("http://{address}{path}: no answer within {limit:?}")]
    Silent { address: String, path: String, limit: Duration },
    #[error("http://{address}{path}: {why}")]
    Broken { address: String, path: String, why: String },
    #[error("http://{address}{path}: {status} {message}")]
    Refused { address: String, path: String, status: u16, message: String },
}

impl HttpError {
    /// The status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            HttpError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Asks one server.
#[derive(Clone, Debug)]
pub struct Http {
    address: String,
    connect_limit: Duration,
    limit: Duration,
}

impl Http {
    /// `address`: host and port.
    pub fn new(address: &str) -> Http {
        Http::with_limits(address, Duration::from_secs(5), Duration::from_secs(60))
    }

    pub fn with_limits(address: &str, connect_limit: Duration, limit: Duration) -> Http {
        let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        Http { address: address.to_owned(), connect_limit, limit }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub async fn get(&self, path: &str) -> Result<Value, HttpError> {
        let body = self.ask(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(&body).map_err(|e| self.broken(path, format!("not the JSON that was expected: {e}")))
    }

    pub async fn text(&self, path: &str) -> Result<String, HttpError> {
        let body = self.ask(Method::GET, path, Bytes::new()).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    pub async fn post(&self, path: &str) -> Result<(), HttpError> {
        self.ask(Method::POST, path, Bytes::new()).await.map(drop)
    }

    fn broken(&self, path: &str, why: impl ToString) -> HttpError {
        HttpError::Broken { address: self.address.clone(), path: path.into(), why: why.to_string() }
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, HttpError> {
        let failed = |source| HttpError::Connect { address: self.address.clone(), source };
        let stream = match timeout(self.connect_limit, TcpStream::connect(&self.address)).await {
            Ok(stream) => stream.map_err(failed)?,
            Err(_) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
        };
        match timeout(self.limit, self.exchange(stream, method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(HttpError::Silent { address: self.address.clone(), path: path.into(), limit: self.limit }),
        }
    }

    async fn exchange(&self, stream: TcpStream, method: Method, path: &str, body: Bytes) -> Result<Bytes, HttpError> {
        let broken = |e: hyper::Error| self.broken(path, e);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let driver = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.address)
            .header("accept", "application/vnd.nsq; version=1.0");
        let request = request.body(Full::new(body)).map_err(|e| self.broken(path, e))?;
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await.map_err(|e| self.broken(path, e))?.to_bytes();
        driver.abort();
        if status == StatusCode::OK {
            return Ok(body);
        }
        let json: Option<Value> = serde_json::from_slice(&body).ok();
        let message = json
            .as_ref()
            .and_then(|json| json["message"].as_str())
            .map_or_else(|| String::from_utf8_lossy(&body).trim().chars().take(200).collect(), str::to_owned);
        Err(HttpError::Refused { address: self.address.clone(), path: path.into(), status: status.as_u16(), message })
    }
}

/// A value as it stands in a query.
pub fn escaped(value: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    value.bytes().map(|b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_a_query() {
        assert_eq!(escaped("a-b_c.1#ephemeral"), "a-b_c.1%23ephemeral");
    }
}
