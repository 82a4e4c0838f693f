//! A connection to a node in the NSQ protocol.

use crate::options::Identity;
use crate::secure::Stream;
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
    #[error("no connection to {address}: {source}; check --nsqd-tcp-address")]
    Connect { address: String, source: std::io::Error },
    #[error("{address}: the connection was lost: {source}")]
    Lost { address: String, source: std::io::Error },
    #[error("{address}: {what}: {message}")]
    Refused { address: String, what: &'static str, message: String },
    #[error(
        "{address}: no TLS: {source}; tls_root_ca_file names the CAs to trust, tls_cert and tls_key a client certificate for a node \
        that asks for one"
    )]
    Insecure { address: String, source: std::io::Error },
    #[error("{address} does not speak the NSQ protocol ({why}); give the node's --tcp-address, not its --http-address")]
    Protocol { address: String, why: String },
}

/// Frames of a node, without heartbeats.
#[derive(Debug)]
pub enum Received {
    Ok,
    Error(String),
    /// Answer to IDENTIFY and AUTH.
    Json(serde_json::Value),
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
    stream: Stream,
    input: Vec<u8>,
    /// Requests that [`Connection::flush`] sends.
    pub out: Vec<u8>,
}

impl Connection {
    /// Connects, identifies, and answers the node's demands: TLS, AUTH.
    pub async fn connect(address: &str, identity: &Identity) -> Result<Connection, NsqError> {
        let failed = |source| NsqError::Connect { address: address.into(), source };
        let stream = match timeout(LIMIT, TcpStream::connect(address)).await {
            Ok(stream) => stream.map_err(failed)?,
            Err(_) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
        };
        let _ = stream.set_nodelay(true);
        let mut connection = Connection { address: address.into(), stream: Box::new(stream), input: vec![], out: MAGIC.to_vec() };
        request::identify(&mut connection.out, identity.body().as_bytes());
        let facts = match connection.expect_answer("IDENTIFY").await? {
            Received::Json(facts) => facts,
            _ => serde_json::Value::Null,
        };
        if identity.secure.is_some() {
            if facts["tls_v1"] != true {
                return Err(connection.refused("IDENTIFY", "the node has no TLS (--tls-cert, --tls-key)".into()));
            }
            connection = connection.secure(identity).await?;
        }
        if facts["auth_required"] == true {
            connection.authorize(identity).await?;
        }
        Ok(connection)
    }

    async fn secure(self, identity: &Identity) -> Result<Connection, NsqError> {
        let Connection { address, stream, input, out } = self;
        let failed = |source| NsqError::Insecure { address: address.clone(), source };
        let secure = identity.secure.as_ref().expect("the caller has looked");
        let stream = match timeout(LIMIT, secure.connect(&address, stream)).await {
            Ok(stream) => stream.map_err(failed)?,
            Err(_) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
        };
        let mut connection = Connection { address, stream, input, out };
        // In TLS 1.3 a node refuses the client's certificate after the handshake.
        match connection.expect_ok("TLS").await {
            Err(NsqError::Lost { address, source }) => Err(NsqError::Insecure { address, source }),
            done => done.map(|()| connection),
        }
    }

    async fn authorize(&mut self, identity: &Identity) -> Result<(), NsqError> {
        let Some(secret) = &identity.auth_secret else {
            return Err(self.refused("AUTH", "the node asks for a secret: give the option auth_secret".into()));
        };
        request::auth(&mut self.out, secret.as_bytes());
        self.expect_answer("AUTH").await.map(drop)
    }

    pub async fn subscribe(&mut self, topic: &str, channel: &str, ready: u32) -> Result<(), NsqError> {
        request::subscribe(&mut self.out, topic, channel);
        self.expect_ok("SUB").await?;
        request::ready(&mut self.out, ready);
        self.flush().await
    }

    async fn expect_ok(&mut self, what: &'static str) -> Result<(), NsqError> {
        match self.expect_answer(what).await? {
            Received::Ok => Ok(()),
            other => Err(self.refused(what, format!("the node answered {other:?}"))),
        }
    }

    /// An OK or JSON.
    async fn expect_answer(&mut self, what: &'static str) -> Result<Received, NsqError> {
        self.flush().await?;
        let message = match timeout(LIMIT, self.receive()).await {
            Ok(Ok(answer @ (Received::Ok | Received::Json(_)))) => return Ok(answer),
            Ok(Ok(Received::Error(message))) => message,
            Ok(Ok(Received::Message(_))) => "the node answered with a message".into(),
            Ok(Err(error)) => return Err(error),
            Err(_) => format!("the node did not answer within {LIMIT:?}"),
        };
        Err(self.refused(what, message))
    }

    pub async fn flush(&mut self) -> Result<(), NsqError> {
        let mut result = self.stream.write_all(&self.out).await;
        self.out.clear();
        if result.is_ok() {
            // TLS keeps its unsent bytes.
            result = self.stream.flush().await;
        }
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
                Frame::Response(other) => match serde_json::from_slice(other) {
                    Ok(json) => Some(Received::Json(json)),
                    Err(_) => return Err(broken(String::from_utf8_lossy(other).into_owned())),
                },
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
