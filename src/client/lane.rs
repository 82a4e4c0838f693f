//! The task of one partition of a producer: sends batches in order, keeps them until they are answered, and sends them again
//! in order when that is safe.
//!
//! ```text
//! sending --an error, or the connection lost--> draining --all in flight have an answer--> recovering --> sending
//! ```
//! While one batch of an idempotent producer has failed, the node refuses those behind it (their sequences leave some out),
//! so nothing new is sent until all are answered; then they go again, with the same sequences. Where the node cannot tell
//! any more what it has (UnknownProducer), batches that were tried once were refused and go again under a new producer id,
//! and those that were tried more often have an unknown outcome.

use super::ack::Published;
use super::error::{Error, Result};
use super::link::{Answer, LaneAnswer, Link};
use super::node::{Inner, chance, pause_after};
use super::producer::{Lane, Next, Sealed, Shared};
use crate::base::PartitionId;
use crate::codec::native::{Code, Publish, Retry};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until, timeout_at};

/// The pause after a refusal that asks for one; it doubles with each.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) fn spawn(inner: Arc<Inner>, shared: Arc<Shared>, lane: Arc<Lane>, partition: PartitionId) {
    let (tx, rx) = mpsc::unbounded_channel();
    let task = Task {
        inner,
        shared,
        lane,
        partition,
        tx,
        rx,
        link: None,
        flight: VecDeque::new(),
        outstanding: 0,
        draining: false,
        failures: 0,
        producer_id: new_producer_id(),
        next_sequence: 0,
    };
    tokio::spawn(task.run());
}

fn new_producer_id() -> u64 {
    chance().max(1)
}

/// A batch that was taken from the queue and has no outcome yet.
struct Flight {
    sealed: Sealed,
    body: Bytes,
    num: u32,
    crc: u32,
    /// Under the present producer id.
    sequence: Option<u64>,
    /// Of the try that is in flight.
    request: Option<u64>,
    tries: u32,
    /// What came of the last try.
    error: Option<Error>,
}

struct Task {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    partition: PartitionId,
    tx: mpsc::UnboundedSender<LaneAnswer>,
    rx: mpsc::UnboundedReceiver<LaneAnswer>,
    link: Option<Arc<Link>>,
    /// In the order in which they are to be stored.
    flight: VecDeque<Flight>,
    /// Tries without an answer.
    outstanding: usize,
    /// Nothing is sent until all tries are answered.
    draining: bool,
    /// Recoveries since a batch was last stored.
    failures: u32,
    producer_id: u64,
    next_sequence: u64,
}

impl Task {
    async fn run(mut self) {
        loop {
            if self.draining && self.outstanding == 0 {
                self.recover().await;
            }
            let wake_at = self.admit();
            let owes = self.flight.iter().any(|f| f.request.is_none());
            if owes && !self.draining && self.link.is_none() {
                self.connect().await;
                continue;
            }
            if owes && !self.draining {
                self.send();
                if self.link.is_none() && self.outstanding == 0 {
                    continue;
                }
            }
            if self.flight.is_empty() && wake_at.is_none() && self.shared.closed.load(Ordering::Acquire) {
                return;
            }
            let expires = self.flight.front().map(|f| self.expires(f));
            let at = match (wake_at, expires) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let sleeping = async {
                match at {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                answer = self.rx.recv() => if let Some((request, result)) = answer {
                    self.answered(request, result);
                    while let Ok((request, result)) = self.rx.try_recv() {
                        self.answered(request, result);
                    }
                },
                () = self.lane.wake.notified() => {}
                () = sleeping => self.expire(),
            }
        }
    }

    fn expires(&self, flight: &Flight) -> Instant {
        flight.sealed.since + self.shared.settings.limit
    }

    /// Takes batches from the queue while the window has room; when to look again.
    fn admit(&mut self) -> Option<Instant> {
        while self.flight.len() < self.shared.settings.window_batches {
            let closed = self.shared.closed.load(Ordering::Acquire);
            let next = self.lane.locked().next(Instant::now(), self.shared.settings.linger, closed);
            match next {
                Next::Send(mut sealed) => {
                    let body = std::mem::take(&mut sealed.batch);
                    let num = body.num();
                    let body = body.into_body();
                    let crc = crc32fast::hash(&body);
                    self.flight.push_back(Flight {
                        sealed,
                        body,
                        num,
                        crc,
                        sequence: None,
                        request: None,
                        tries: 0,
                        error: None,
                    });
                }
                Next::At(at) => return Some(at),
                Next::Nothing => return None,
            }
        }
        // the window is full: an answer wakes us
        None
    }

    fn send(&mut self) {
        let Some(link) = &self.link else { return };
        let settings = &self.shared.settings;
        for f in self.flight.iter_mut().filter(|f| f.request.is_none()) {
            let sequence = *f.sequence.get_or_insert(self.next_sequence);
            self.next_sequence = self.next_sequence.max(sequence + f.num as u64);
            let publish = Publish {
                topic: &settings.topic,
                partition: self.partition,
                num: f.num,
                producer_id: if settings.idempotent { self.producer_id } else { 0 },
                first_sequence: if settings.idempotent { sequence } else { 0 },
            };
            match link.publish(publish, &f.body, f.crc, &self.tx) {
                Ok(request) => {
                    f.request = Some(request);
                    f.tries += 1;
                    self.outstanding += 1;
                }
                Err(_) => {
                    // nothing of it was sent: as if it were to be sent for the first time
                    self.link = None;
                    self.draining = self.outstanding > 0;
                    return;
                }
            }
        }
    }

    fn answered(&mut self, request: u64, result: Result<Answer>) {
        // of a batch that was given up meanwhile there is nothing to say
        let Some(at) = self.flight.iter().position(|f| f.request == Some(request) && f.error.is_none()) else { return };
        self.outstanding -= 1;
        let result = match result {
            Ok(Answer::Published { at, duplicate }) => Ok(Published { partition: self.partition, at, duplicate }),
            Ok(other) => Err(Error::outcome(format_args!("an answer that was not asked for: {other:?}"))),
            Err(error) => Err(error),
        };
        match result {
            Ok(published) => {
                self.failures = 0;
                if let Some(f) = self.flight.remove(at) {
                    self.settle(&f, Ok(published));
                }
            }
            Err(error) => {
                self.flight[at].error = Some(error);
                self.draining = true;
            }
        }
    }

    fn settle(&self, flight: &Flight, result: Result<Published>) {
        flight.sealed.owed.set(result);
        self.shared.give_back(flight.body.len());
    }

    /// Settles those whose turn to fail it is; the others keep their order.
    fn fail_where(&mut self, mut which: impl FnMut(&Flight) -> Option<Error>) {
        let flight = std::mem::take(&mut self.flight);
        for f in flight {
            match which(&f) {
                Some(error) => self.settle(&f, Err(error)),
                None => self.flight.push_back(f),
            }
        }
    }

    /// All sequences are given anew, under an id that the node has never seen.
    fn renew(&mut self) {
        self.producer_id = new_producer_id();
        self.next_sequence = 0;
        self.flight.iter_mut().for_each(|f| f.sequence = None);
    }

    /// All tries are answered and one has failed: decides what is sent again.
    async fn recover(&mut self) {
        self.draining = false;
        let Some(error) = self.flight.iter().find_map(|f| f.error.clone()) else { return };
        let idempotent = self.shared.settings.idempotent;
        let retry = error.retry();
        tracing::debug!(topic = %self.shared.settings.topic, partition = self.partition.0, "publishing again: {error}");
        match (error.code(), retry) {
            (Some(Code::UnknownProducer | Code::SequenceGap | Code::SequenceOverlap), _) if idempotent => {
                // a first try that is refused was not stored; what an earlier try did, nobody knows
                self.fail_where(|f| (f.tries > 1).then(|| Error::outcome(&error)));
                self.renew();
            }
            (_, Retry::Never) => {
                // each has its own answer; behind one that failed they are refused for leaving its sequences out
                let mut is_first = true;
                self.fail_where(|f| {
                    let own = f.error.clone().filter(|e| e.retry() == Retry::Never)?;
                    let follows = idempotent && own.code() == Some(Code::SequenceGap);
                    let fails = is_first || !follows;
                    is_first = false;
                    fails.then_some(own)
                });
                self.renew();
            }
            _ if idempotent => {}
            _ => self.fail_where(|f| {
                f.error.clone().filter(|e| !matches!(e.retry(), Retry::Later | Retry::Refresh)).map(Error::outcome)
            }),
        }
        for f in &mut self.flight {
            (f.request, f.error) = (None, None);
        }
        if error.is_of_the_link() || self.link.as_ref().is_some_and(|l| !l.is_alive()) {
            self.link = None;
        }
        if retry == Retry::Refresh {
            self.link = None;
            self.inner.forget(&self.shared.settings.topic);
        }
        self.expire();
        if !self.flight.is_empty() {
            self.failures = self.failures.saturating_add(1);
            // a connection that was lost is made again at once, the pauses between connections are kept there; what is refused for
            // good needs none, unless it goes on and on
            let at_once = error.is_of_the_link() || (retry == Retry::Never && self.failures < 3);
            if !at_once {
                sleep(pause_after(self.failures, PAUSE, PAUSE_MAX)).await;
            }
        }
    }

    async fn connect(&mut self) {
        let Some(first) = self.flight.front() else { return };
        let until = self.expires(first);
        let topic = self.shared.settings.topic.clone();
        match timeout_at(until.into(), self.inner.link_for(&topic, self.partition.0)).await {
            Ok(Ok(link)) => self.link = Some(link),
            Ok(Err(error)) => {
                tracing::debug!(%topic, partition = self.partition.0, "no connection yet: {error}");
                if error.retry() == Retry::Never {
                    self.fail_where(|f| Some(if f.tries > 0 { Error::outcome(&error) } else { error.clone() }));
                    self.renew();
                    return;
                }
                self.failures = self.failures.saturating_add(1);
                let pause = pause_after(self.failures, PAUSE, PAUSE_MAX);
                for f in &mut self.flight {
                    f.sealed.obstacle = Some(error.clone());
                }
                let _ = timeout_at(until.into(), sleep(pause)).await;
                self.expire();
            }
            Err(_) => self.expire(),
        }
    }

    /// Gives up what has been tried for too long.
    fn expire(&mut self) {
        let (now, limit) = (Instant::now(), self.shared.settings.limit);
        if self.flight.front().is_none_or(|f| f.sealed.since + limit > now) {
            return;
        }
        let tried = self.flight.front().is_some_and(|f| f.tries > 0);
        let expired = |f: &Flight| {
            let why = f.error.as_ref().or(f.sealed.obstacle.as_ref()).map_or("no answer".into(), |e| e.to_string().into());
            Error::Expired { limit, why }
        };
        if tried {
            // their sequences go with it, so what was sent behind it cannot be asked about any more either
            self.fail_where(|f| (f.tries > 0).then(|| Error::outcome(expired(f))));
            (self.outstanding, self.draining) = (0, false);
            self.renew();
        } else {
            self.fail_where(|f| (f.sealed.since + limit <= now).then(|| expired(f)));
        }
    }
}
