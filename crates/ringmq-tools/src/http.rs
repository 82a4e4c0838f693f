//! One HTTP request to a node or an nsqlookupd, on a connection of its own. A node that wants TLS says so, and is asked again by it.

use crate::secure::{Stream, Terms};
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
    #[error("no connection to {address}: {source}; check the node's --http-address")]
    Connect { address: String, source: std::io::Error },
    #[error("{address}: no TLS: {why}; --http-client-tls-root-ca-file names the CAs to trust")]
    Insecure { address: String, why: String },
    #[error("{address}{path}: no answer within {limit:?}")]
    Silent { address: String, path: String, limit: Duration },
    #[error("{address}{path}: {why}")]
    Broken { address: String, path: String, why: String },
    /// `https_port`: where a node that refuses plaintext answers.
    #[error("{address}{path}: {status} {message}")]
    Refused { address: String, path: String, status: u16, message: String, https_port: Option<u16> },
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
    /// Scheme, host and port.
    address: String,
    limits: Limits,
    terms: Terms,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connect: Duration,
    pub answer: Duration,
}

impl Http {
    /// `address`: host and port.
    pub fn new(address: &str) -> Http {
        let limits = Limits { connect: Duration::from_secs(5), answer: Duration::from_secs(60) };
        Http::with(address, limits, Terms::default())
    }

    /// `address`: host and port, and perhaps `http://` or `https://` before them.
    pub fn with(address: &str, limits: Limits, terms: Terms) -> Http {
        let address = address.trim_end_matches('/');
        let scheme = if address.contains("://") { "" } else { "http://" };
        Http { address: format!("{scheme}{address}"), limits, terms }
    }

    pub async fn get(&self, path: &str) -> Result<Value, HttpError> {
        let body = self.ask(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(&body).map_err(|e| self.broken(path, format!("the answer is not the expected JSON: {e}")))
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
        let refused = match self.ask_once(method.clone(), path, body.clone()).await {
            Err(HttpError::Refused { status: 403, https_port: Some(port), .. }) if !self.is_secure() => port,
            answer => return answer,
        };
        let host = self.authority().rsplit_once(':').map_or(self.authority(), |(host, _)| host);
        let secure = Http::with(&format!("https://{host}:{refused}"), self.limits, self.terms.clone());
        secure.ask_once(method, path, body).await
    }

    fn is_secure(&self) -> bool {
        self.address.starts_with("https://")
    }

    /// Host and port.
    fn authority(&self) -> &str {
        self.address.split_once("://").map_or(&*self.address, |(_, authority)| authority)
    }

    async fn connected(&self) -> Result<Stream, HttpError> {
        let stream = TcpStream::connect(self.authority()).await;
        let stream = stream.map_err(|source| HttpError::Connect { address: self.address.clone(), source })?;
        if !self.is_secure() {
            return Ok(Box::new(stream));
        }
        let insecure = |why| HttpError::Insecure { address: self.address.clone(), why };
        let secure = self.terms.load().map_err(insecure)?;
        secure.connect(self.authority(), Box::new(stream)).await.map_err(|e| insecure(e.to_string()))
    }

    async fn ask_once(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, HttpError> {
        let stream = match timeout(self.limits.connect, self.connected()).await {
            Ok(stream) => stream?,
            Err(_) => {
                return Err(HttpError::Connect { address: self.address.clone(), source: std::io::ErrorKind::TimedOut.into() });
            }
        };
        match timeout(self.limits.answer, self.exchange(stream, method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(HttpError::Silent { address: self.address.clone(), path: path.into(), limit: self.limits.answer }),
        }
    }

    async fn exchange(&self, stream: Stream, method: Method, path: &str, body: Bytes) -> Result<Bytes, HttpError> {
        let broken = |e: hyper::Error| self.broken(path, e);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let driver = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.authority())
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
        let https_port = json.as_ref().and_then(|json| json["https_port"].as_u64()).and_then(|port| port.try_into().ok());
        Err(HttpError::Refused { address: self.address.clone(), path: path.into(), status: status.as_u16(), message, https_port })
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
