//! The outcome of a batch, shared by all callers that wait for one of its messages.

use super::error::{Error, Result};
use ringmq_protocol::base::{LogId, PartitionId, Position};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Place of a stored message, or of the first message of a batch: durable on every in-sync replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The partition that it is in.
    pub partition: PartitionId,
    /// Start of its batch in the log, messages of the partition before it, and its log id. `None`: it was stored by an
    /// earlier try, so long ago that the node does not know the place any more.
    pub at: Option<Position>,
    /// An earlier try had stored it already; it is there once.
    pub duplicate: bool,
}

impl Published {
    /// The log id, where the place is known.
    pub fn log_id(&self) -> Option<LogId> {
        self.at.map(|at| at.log_id)
    }

    fn nth(self, index: u32) -> Published {
        let nth = |at: Position| Position {
            offset: at.offset,
            count: at.count + index as i64,
            log_id: LogId(at.log_id.0 + index as u64),
        };
        Published { at: self.at.map(nth), ..self }
    }
}

#[derive(Debug, Default)]
struct AckState {
    result: Option<Result<Published>>,
    wakers: Vec<Waker>,
}

/// The outcome of one batch, when there is one.
#[derive(Debug, Default)]
pub(super) struct BatchOutcome {
    state: Mutex<AckState>,
}

impl BatchOutcome {
    fn set(&self, result: Result<Published>) {
        let mut state = self.state.lock().unwrap_or_else(|p| p.into_inner());
        if state.result.is_none() {
            state.result = Some(result);
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    pub fn is_set(&self) -> bool {
        self.state.lock().unwrap_or_else(|p| p.into_inner()).result.is_some()
    }

    pub fn ack(self: &Arc<Self>, index: u32) -> Ack {
        Ack { outcome: self.clone(), index, waker: None }
    }
}

/// Obligation to report an outcome. If it is dropped without one, it reports that.
#[derive(Debug, Default)]
pub(super) struct OutcomeGuard(pub Arc<BatchOutcome>);

impl OutcomeGuard {
    pub fn set(&self, result: Result<Published>) {
        self.0.set(result);
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        self.0.set(Err(Error::outcome("the producer's task was stopped")));
    }
}

/// A message that was taken; the future resolves when it is durable, or has failed. Dropping it changes nothing for the message.
#[derive(Debug)]
#[must_use = "the message was taken, and is not stored until this resolves"]
pub struct Ack {
    outcome: Arc<BatchOutcome>,
    index: u32,
    /// Place of this future's waker.
    waker: Option<usize>,
}

impl Ack {
    /// The outcome, if there is one already.
    pub fn now(&self) -> Option<Result<Published>> {
        let state = self.outcome.state.lock().unwrap_or_else(|p| p.into_inner());
        state.result.clone().map(|r| r.map(|p| p.nth(self.index)))
    }
}

impl Future for Ack {
    type Output = Result<Published>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (index, outcome) = (self.index, self.outcome.clone());
        let mut state = outcome.state.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone().map(|p| p.nth(index)));
        }
        match self.waker.and_then(|at| state.wakers.get_mut(at)) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => {
                self.waker = Some(state.wakers.len());
                state.wakers.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }
}
