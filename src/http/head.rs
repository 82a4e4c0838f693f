//! A connection on which the head of a request that has begun must end soon. Between requests it may be silent for longer: hyper
//! bounds that. Bodies and answers have limits of their own.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestStage {
    /// No byte of the next request came.
    Idle,
    Head,
    /// The request is being answered.
    Request,
}

/// Stage of a connection, with the number of requests that were answered. Connection and service share it.
#[derive(Clone)]
pub struct Progress(Rc<Cell<(RequestStage, u64)>>);

impl Progress {
    pub fn new() -> Self {
        Progress(Rc::new(Cell::new((RequestStage::Idle, 0))))
    }

    /// A head is complete.
    pub fn begin_request(&self) {
        self.0.set((RequestStage::Request, self.0.get().1));
    }

    /// The request has its answer.
    pub fn end_request(&self) {
        self.0.set((RequestStage::Idle, self.0.get().1 + 1));
    }

    fn receive(&self) {
        if let (RequestStage::Idle, answered) = self.0.get() {
            self.0.set((RequestStage::Head, answered));
        }
    }
}

pub struct HeadLimited<S> {
    stream: S,
    progress: Progress,
    limit: Duration,
    /// Number of answered requests, and the time by which the next head must have come, while a read waits for it.
    waiting: Option<(u64, Pin<Box<Sleep>>)>,
}

impl<S> HeadLimited<S> {
    pub fn new(stream: S, progress: Progress, limit: Duration) -> Self {
        HeadLimited { stream, progress, limit, waiting: None }
    }

    /// Ready when a head takes too long.
    fn poll_limit(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (RequestStage::Head, answered) = self.progress.0.get() else {
            self.waiting = None;
            return Poll::Pending;
        };
        let (_, end) = match self.waiting.take_if(|(of, _)| *of == answered) {
            Some(waiting) => self.waiting.insert(waiting),
            None => self.waiting.insert((answered, Box::pin(sleep(self.limit)))),
        };
        end.as_mut().poll(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadLimited<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if outcome.is_pending() {
            ready!(self.poll_limit(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if buf.filled().len() > before {
            self.progress.receive();
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadLimited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
