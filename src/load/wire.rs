//! One NSQ connection of the generator: the handshake, and buffers that are filled and emptied in place.

use super::options::Options;
use crate::codec::nsq::frame::{self, Frame};
use crate::codec::nsq::{HEARTBEAT, MAGIC, OK, request};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

const READ_LEN: usize = 256 * 1024;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// nsqd shows it in /stats.
const USER_AGENT: &str = concat!("ringmq-load/", env!("CARGO_PKG_VERSION"));

pub struct Wire {
    stream: TcpStream,
    /// What came and was not taken: `input[start..end]`.
    input: Vec<u8>,
    start: usize,
    end: usize,
    pub out: Vec<u8>,
    sent: usize,
    /// As the server named it.
    pub server_version: Option<String>,
}

impl Wire {
    /// Connected and identified.
    pub async fn connect(options: &Options) -> Result<Wire, String> {
        match tokio::time::timeout(HANDSHAKE_LIMIT, Wire::handshake(options)).await {
            Ok(result) => result,
            Err(_) => Err(format!("connect: no answer to IDENTIFY within {HANDSHAKE_LIMIT:?}")),
        }
    }

    async fn handshake(options: &Options) -> Result<Wire, String> {
        let stream = TcpStream::connect(options.target).await.map_err(|e| format!("connect: {e}"))?;
        stream.set_nodelay(true).map_err(|e| format!("connect: {e}"))?;
        let mut wire =
            Wire { stream, input: vec![0; READ_LEN], start: 0, end: 0, out: Vec::new(), sent: 0, server_version: None };
        let mut identity = serde_json::json!({
            "client_id": "ringmq-load", "user_agent": USER_AGENT, "feature_negotiation": true
        });
        if let Some(timeout) = options.output_buffer_timeout {
            identity["output_buffer_timeout"] = (timeout.as_millis() as u64).max(1).into();
        }
        wire.out.extend_from_slice(MAGIC);
        request::identify(&mut wire.out, identity.to_string().as_bytes());
        let answer = wire.ask("IDENTIFY").await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        wire.server_version = answer["version"].as_str().map(String::from);
        Ok(wire)
    }

    /// Subscribed; nothing is delivered before RDY.
    pub async fn subscribe(&mut self, topic: &str, channel: &str) -> Result<(), String> {
        request::subscribe(&mut self.out, topic, channel);
        match tokio::time::timeout(HANDSHAKE_LIMIT, self.ask("SUB")).await {
            Ok(Ok(answer)) if answer == OK => Ok(()),
            Ok(Ok(answer)) => Err(format!("SUB: an unexpected answer: {}", String::from_utf8_lossy(&answer))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(format!("SUB: no answer within {HANDSHAKE_LIMIT:?}")),
        }
    }

    /// Sends what stands in `out` and waits for the one answer.
    async fn ask(&mut self, what: &str) -> Result<Vec<u8>, String> {
        self.stream.write_all(&self.out).await.map_err(|e| format!("{what}: {e}"))?;
        self.out.clear();
        loop {
            if let Some((frame, len)) = frame::decode(self.unread()).map_err(|e| format!("{what}: {e}"))? {
                let answer = match frame {
                    Frame::Response(HEARTBEAT) => None,
                    Frame::Response(data) => Some(Ok(data.to_vec())),
                    Frame::Error(text) => Some(Err(format!("{what}: {}", String::from_utf8_lossy(text)))),
                    Frame::Message(_) => Some(Err(format!("{what}: answered by a message"))),
                };
                self.took(len);
                match answer {
                    Some(answer) => return answer,
                    None => continue,
                }
            }
            let n = self.stream.read(&mut self.input[self.end..]).await.map_err(|e| format!("{what}: {e}"))?;
            if n == 0 {
                return Err(format!("{what}: the server closed the connection"));
            }
            self.end += n;
        }
    }

    pub fn unread(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// Input and output at once, for a loop that answers what it reads.
    pub fn split(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.input[self.start..self.end], &mut self.out)
    }

    /// `len` bytes of `unread` are done with.
    pub fn took(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// True when some bytes went out.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        while self.sent < self.out.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.out[self.sent..]) {
                Poll::Ready(Ok(n)) => (self.sent, progress) = (self.sent + n, true),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(progress),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(progress)
    }

    /// True when some bytes came in. The end of the stream is an error.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.input.len() {
            // One frame that is larger than the buffer.
            self.input.resize(self.input.len() * 2, 0);
        }
        let mut room = ReadBuf::new(&mut self.input[self.end..]);
        match Pin::new(&mut self.stream).poll_read(cx, &mut room) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => match room.filled().len() {
                0 => Err(io::Error::other("the server closed the connection")),
                n => {
                    self.end += n;
                    Ok(true)
                }
            },
        }
    }
}
