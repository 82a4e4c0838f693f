//! A connection to a node in the NSQ protocol.

use ringmq_protocol::codec::nsq::frame::{self, Frame};
use ringmq_protocol::codec::nsq::{HEARTBEAT, MAGIC, OK, request};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(10);
const READ_LEN: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub enum NsqError {
    #[error("no connection to {address}: {source}; is a node there? (--nsqd-tcp-address)")]
    Connect { address: String, source: std::io::Error },
    #[error("{address}: the connection was lost: {source}")]
    Lost { address: String, source: std::io::Error },
    #[error("{address}: {what}: {message}")]
    Refused { address: String, what: &'static str, message: String },
    #[error("{address} does not speak the NSQ protocol ({why}); is it the HTTP port?")]
    Protocol { address: String, why: String },
}

/// What a node sends, with heartbeats taken out.
#[derive(Debug)]
pub enum Received {
    Ok,
    Error(String),
    Message(Message),
}

#[derive(Debug)]
pub struct Message {
    pub unix_ns: i64,
    pub attempts: u16,
    pub id: [u8; 16],
    pub body: Vec<u8>,
}

pub struct Connection {
    address: String,
    stream: TcpStream,
    input: Vec<u8>,
    /// Requests that [`Connection::flush`] sends.
    pub out: Vec<u8>,
}

impl Connection {
    /// Connects and identifies.
    pub async fn connect(address: &str, tool: &str) -> Result<Connection, NsqError> {
        let failed = |source| NsqError::Connect { address: address.into(), source };
        let stream = match timeout(LIMIT, TcpStream::connect(address)).await {
            Ok(stream) => stream.map_err(failed)?,
            Err(_) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
        };
        let _ = stream.set_nodelay(true);
        let mut connection = Connection { address: address.into(), stream, input: vec![], out: MAGIC.to_vec() };
        let agent = format!("ringmq-{tool}/{}", env!("CARGO_PKG_VERSION"));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        // Without `feature_negotiation` the answer is a plain OK.
        let identity = serde_json::json!({ "client_id": host.trim(), "hostname": host.trim(), "user_agent": agent });
        request::identify(&mut connection.out, identity.to_string().as_bytes());
        connection.expect_ok("IDENTIFY").await?;
        Ok(connection)
    }

    pub async fn subscribe(&mut self, topic: &str, channel: &str, ready: u32) -> Result<(), NsqError> {
        request::subscribe(&mut self.out, topic, channel);
        self.expect_ok("SUB").await?;
        request::ready(&mut self.out, ready);
        self.flush().await
    }

    async fn expect_ok(&mut self, what: &'static str) -> Result<(), NsqError> {
        self.flush().await?;
        let message = match timeout(LIMIT, self.receive()).await {
            Ok(Ok(Received::Ok)) => return Ok(()),
            Ok(Ok(Received::Error(message))) => message,
            Ok(Ok(Received::Message(_))) => "answered by a message".into(),
            Ok(Err(error)) => return Err(error),
            Err(_) => format!("no answer within {LIMIT:?}"),
        };
        Err(self.refused(what, message))
    }

    pub async fn flush(&mut self) -> Result<(), NsqError> {
        let result = self.stream.write_all(&self.out).await;
        self.out.clear();
        result.map_err(|source| self.lost(source))
    }

    fn lost(&self, source: std::io::Error) -> NsqError {
        NsqError::Lost { address: self.address.clone(), source }
    }

    /// The next frame. Dropping the future loses nothing.
    pub async fn receive(&mut self) -> Result<Received, NsqError> {
        loop {
            if let Some(received) = self.received()? {
                return Ok(received);
            }
            if !self.out.is_empty() {
                self.flush().await?;
            }
            self.input.reserve(READ_LEN);
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) => return Err(self.lost(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(source) => return Err(self.lost(source)),
            }
        }
    }

    /// The next frame that came already.
    pub fn received(&mut self) -> Result<Option<Received>, NsqError> {
        loop {
            let broken = |why: String| NsqError::Protocol { address: self.address.clone(), why };
            let Some((frame, len)) = frame::decode(&self.input).map_err(|e| broken(e.to_string()))? else { return Ok(None) };
            let received = match frame {
                Frame::Response(HEARTBEAT) => {
                    request::nop(&mut self.out);
                    None
                }
                Frame::Response(OK) => Some(Received::Ok),
                Frame::Response(other) => return Err(broken(String::from_utf8_lossy(other).into_owned())),
                Frame::Error(text) => Some(Received::Error(String::from_utf8_lossy(text).into_owned())),
                Frame::Message(m) => {
                    Some(Received::Message(Message { unix_ns: m.unix_ns, attempts: m.attempts, id: m.id, body: m.body.to_vec() }))
                }
            };
            self.input.drain(..len);
            if received.is_some() {
                return Ok(received);
            }
        }
    }

    pub fn refused(&self, what: &'static str, message: String) -> NsqError {
        NsqError::Refused { address: self.address.clone(), what, message }
    }
}
