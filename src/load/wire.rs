//! One socket of the generator: buffers that are filled and emptied in place. Their content is the protocol's.

use super::options::Options;
use crate::client::{BoxedStream, Secure, TLS_ALERT};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// Longest time for a connection and its handshake.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Servers show it among their clients.
pub const CLIENT_ID: &str = "ringmq-load";
pub const USER_AGENT: &str = concat!("ringmq-load/", env!("CARGO_PKG_VERSION"));

pub struct Wire {
    stream: BoxedStream,
    /// Unread input: `input[start..end]`.
    input: Vec<u8>,
    start: usize,
    end: usize,
    pub out: Vec<u8>,
    sent: usize,
    /// True if TLS holds some of the sent bytes.
    is_held: bool,
    secure: Option<Arc<Secure>>,
}

impl Wire {
    /// `read_len`: room that a read is offered.
    pub async fn connect(options: &Options, read_len: usize) -> Result<Wire, String> {
        let stream = TcpStream::connect(options.target).await.map_err(|e| format!("connect: {e}"))?;
        Wire::over(stream, options, &options.address, read_len).await
    }

    /// Connects to another node than the one that was named.
    pub async fn connect_to(options: &Options, address: &str, read_len: usize) -> Result<Wire, String> {
        let stream = TcpStream::connect(address).await.map_err(|e| format!("connect to {address}: {e}"))?;
        Wire::over(stream, options, address, read_len).await
    }

    async fn over(stream: TcpStream, options: &Options, address: &str, read_len: usize) -> Result<Wire, String> {
        stream.set_nodelay(true).map_err(|e| format!("connect: {e}"))?;
        let mut stream: BoxedStream = Box::pin(stream);
        if let Some(secure) = &options.secure {
            stream = secure.connect(address, stream).await.map_err(|e| format!("no TLS: {e}"))?;
        }
        Ok(Wire {
            stream,
            input: vec![0; read_len],
            start: 0,
            end: 0,
            out: Vec::new(),
            sent: 0,
            is_held: false,
            secure: options.secure.clone(),
        })
    }

    /// Sends the bytes of `out`.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| match self.poll_flush(cx) {
            Ok(_) if self.unsent() > 0 || self.is_held => Poll::Pending,
            done => Poll::Ready(done.map(drop)),
        })
        .await
    }

    /// Waits for more input.
    pub async fn fill(&mut self) -> io::Result<()> {
        poll_fn(|cx| match self.poll_fill(cx) {
            Ok(false) => Poll::Pending,
            done => Poll::Ready(done.map(drop)),
        })
        .await
    }

    /// Meaning of a connection error that came before the server's first answer.
    pub fn explain(&self, error: &io::Error) -> String {
        let tls = self.secure.as_ref().and_then(|secure| secure.explain(error));
        tls.map_or_else(|| self.name_other_protocol(error), |why| format!("no TLS: {why}"))
    }

    /// The text of an error before the server's first answer. Names the protocol of the port where the answer shows that it
    /// is another one: TLS on a plain connection, or HTTP.
    pub fn name_other_protocol(&self, error: impl ToString) -> String {
        if self.secure.is_none() && self.unread().starts_with(&TLS_ALERT) {
            "the server speaks TLS on this port: --protocol=native with --tls-ca, the CA that signed its certificate".into()
        } else if self.unread().starts_with(b"HTTP/") {
            "the server speaks HTTP on this port: give the port of NSQ clients (4150 by default), or with --protocol=native \
             that of native clients (4153)"
                .into()
        } else {
            error.to_string()
        }
    }

    pub fn unread(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// Input and output at once, for a loop that answers its input.
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
            match self.stream.as_mut().poll_write(cx, &self.out[self.sent..]) {
                Poll::Ready(Ok(n)) => (self.sent, progress, self.is_held) = (self.sent + n, true, true),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(progress),
            }
        }
        self.out.clear();
        self.sent = 0;
        if self.is_held {
            match self.stream.as_mut().poll_flush(cx) {
                Poll::Ready(flushed) => (self.is_held, progress) = (flushed.map(|()| false)?, true),
                Poll::Pending => {}
            }
        }
        Ok(progress)
    }

    /// True when some bytes came in. The end of the stream is an error.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.input.len() {
            // The frame is larger than the buffer.
            self.input.resize(self.input.len() * 2, 0);
        }
        let mut room = ReadBuf::new(&mut self.input[self.end..]);
        match self.stream.as_mut().poll_read(cx, &mut room) {
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
