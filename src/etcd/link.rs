//! One HTTP connection to one endpoint. It carries one request at a time, and ends with the value.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

/// A connection whose other end is gone without a word ends after about this time.
const SILENCE: Duration = Duration::from_secs(3);

/// Client address of a member of etcd: `http://host:port` or `https://host:port`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    is_tls: bool,
    host: String,
    port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("--etcd-endpoints={0}: http://host:port or https://host:port is expected")]
pub struct BadEndpoint(pub String);

impl Endpoint {
    pub fn parse(text: &str) -> Result<Endpoint, BadEndpoint> {
        let bad = || BadEndpoint(text.into());
        let (is_tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(bad()),
            None => (false, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // An address of IPv6 stands in brackets.
        let is_host = |host: &str| !host.is_empty() && !host.contains(['/', '@', '?', ' ']);
        match bare {
            Some(bare) if is_host(bare) => Ok(Endpoint { is_tls, host: bare.into(), port }),
            None if is_host(host) && !host.contains(':') => Ok(Endpoint { is_tls, host: host.into(), port }),
            _ => Err(bad()),
        }
    }

    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// `host:port`.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}", if self.is_tls { "s" } else { "" }, self.authority())
    }
}

#[derive(Debug)]
pub enum LinkError {
    /// No byte of the request has left.
    NotSent(String),
    /// Bytes of the request may have arrived.
    Lost(String),
}

/// A whole answer.
#[derive(Debug)]
pub struct Replied {
    pub status: u16,
    pub body: Bytes,
}

pub struct EtcdConnection {
    authority: String,
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for EtcdConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl EtcdConnection {
    pub async fn connect(
        endpoint: &Endpoint,
        tls: Option<Arc<ClientConfig>>,
        until: Instant,
    ) -> Result<EtcdConnection, LinkError> {
        let failed = |what: String| LinkError::NotSent(what);
        let connecting = async {
            let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
            let stream = stream.map_err(|e| failed(format!("cannot connect: {e}")))?;
            watch_silence(&stream).map_err(|e| failed(format!("the socket cannot be set up: {e}")))?;
            if !endpoint.is_tls {
                return EtcdConnection::over(endpoint, stream).await;
            }
            let config = tls.ok_or_else(|| failed("an endpoint of https:// needs TLS".into()))?;
            let name = ServerName::try_from(endpoint.host.clone());
            let name = name.map_err(|_| failed(format!("{} cannot be a name in a certificate", endpoint.host)))?;
            let secured = TlsConnector::from(config).connect(name, stream).await;
            EtcdConnection::over(endpoint, secured.map_err(|e| failed(format!("TLS: {e}")))?).await
        };
        match timeout_at(until, connecting).await {
            Ok(link) => link,
            Err(_) => Err(failed("cannot connect in time".into())),
        }
    }

    async fn over(
        endpoint: &Endpoint,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    ) -> Result<EtcdConnection, LinkError> {
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|e| LinkError::NotSent(e.to_string()))?;
        let driver = tokio::task::spawn_local(connection).abort_handle();
        Ok(EtcdConnection { authority: endpoint.authority(), sender, driver })
    }

    /// Sends a request and gives the head of its answer, whose body may be a stream.
    pub async fn open(&mut self, path: &str, body: &str, token: Option<&str>) -> Result<Response<Incoming>, LinkError> {
        let mut request = Request::post(path)
            .header("host", &self.authority)
            .header("content-type", "application/json")
            // A member without a leader says so, instead of nothing.
            .header("grpc-metadata-hasleader", "true");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned())));
        let request = request.map_err(|e| LinkError::NotSent(format!("the request cannot be made: {e}")))?;
        self.sender.ready().await.map_err(|e| LinkError::NotSent(e.to_string()))?;
        self.sender.try_send_request(request).await.map_err(|mut failed| match failed.take_message() {
            Some(_) => LinkError::NotSent(failed.into_error().to_string()),
            None => LinkError::Lost(format!("the connection is lost: {}", failed.into_error())),
        })
    }

    pub async fn ask(&mut self, path: &str, body: &str, token: Option<&str>, limit: usize) -> Result<Replied, LinkError> {
        let response = self.open(path, body, token).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), limit).collect().await;
        let body = body.map_err(|e| LinkError::Lost(format!("the answer cannot be read to its end: {e}")))?.to_bytes();
        Ok(Replied { status, body })
    }

    /// A GET of a path that needs no login.
    pub async fn get(&mut self, path: &str, limit: usize) -> Result<Replied, LinkError> {
        let request = Request::get(path).header("host", &self.authority).body(Full::new(Bytes::new()));
        let request = request.map_err(|e| LinkError::NotSent(e.to_string()))?;
        let response = self.sender.send_request(request).await.map_err(|e| LinkError::Lost(e.to_string()))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), limit).collect().await.map_err(|e| LinkError::Lost(e.to_string()))?;
        Ok(Replied { status, body: body.to_bytes() })
    }
}

fn watch_silence(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let second = Duration::from_secs(1);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(second).with_interval(second).with_retries(2))?;
    socket.set_tcp_user_timeout(Some(SILENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls() {
        for (text, shown) in [
            ("http://h:2379", "http://h:2379"),
            ("https://[::1]:2379/", "https://[::1]:2379"),
            ("10.0.0.1:2379", "http://10.0.0.1:2379"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), shown);
        }
        for bad in ["", "h", "h:0", "h:x", "ftp://h:1", "http://h:1/x", "http://:1", "::1:2379", "http://u@h:1"] {
            assert_eq!(Endpoint::parse(bad), Err(BadEndpoint(bad.into())), "{bad}");
        }
    }
}
