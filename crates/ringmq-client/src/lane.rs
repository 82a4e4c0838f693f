//! The task of one partition of a producer: sends batches in order, keeps them until they are answered, and sends them again
//! in order when that is safe.
//!
//! ```text
//! sending --an error, or the connection lost--> draining --all in flight have an answer--> recovering --> sending
//! ```
//! While one batch of an idempotent producer has failed, the node refuses those behind it (their sequences leave some out),
//! so nothing new is sent until all are answered; then they go again, with the same sequences. Where these are of no use any
//! more (one batch was refused for good, or the node has forgotten the producer), the others go again under a new producer
//! id; those that may have been stored do not, and have an unknown outcome. So they have without idempotence.

use super::ack::Published;
use super::error::{Error, Result};
use super::link::{Connection, LaneAnswer, RequestAnswer};
use super::node::{Inner, chance, pause_after};
use super::producer::{Lane, LaneContext, Next, Sealed};
use bytes::Bytes;
use ringmq_protocol::base::PartitionId;
use ringmq_protocol::codec::native::{Code, Publish, Retry};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until, timeout_at};

/// The pause after a refusal that asks for one; it doubles with each.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) fn spawn(inner: Arc<Inner>, shared: Arc<LaneContext>, lane: Arc<Lane>, partition: PartitionId) {
    let (tx, rx) = mpsc::unbounded_channel();
    let pinned = shared.settings.pinned.filter(|pinned| pinned.partition == partition.0);
    let task = Task {
        inner,
        shared,
        lane,
        partition,
        tx,
        rx,
        link: None,
        flight: VecDeque::new(),
        given_up: HashMap::new(),
        next_try: 0,
        draining: false,
        failures: 0,
        producer_id: pinned.map_or_else(new_producer_id, |pinned| pinned.producer_id),
        next_sequence: pinned.map_or(0, |pinned| pinned.next_sequence),
        is_pinned: pinned.is_some(),
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
    /// Sequence under the present producer id.
    sequence: Option<u64>,
    state: Try,
    /// True once a try had an unknown outcome: the batch may only be sent again under the same producer id and sequence.
    maybe_stored: bool,
    /// Reason why the batch is not stored yet.
    obstacle: Option<Error>,
}

enum Try {
    Due,
    Sent(u64),
    Failed(Error),
}

impl Flight {
    fn is_sent(&self) -> bool {
        matches!(self.state, Try::Sent(_))
    }

    fn failed(&self) -> Option<&Error> {
        match &self.state {
            Try::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Dropped while it has work, which only the end of its runtime or a panic does, it owes an answer to all that was taken.
struct Task {
    inner: Arc<Inner>,
    shared: Arc<LaneContext>,
    lane: Arc<Lane>,
    partition: PartitionId,
    tx: mpsc::UnboundedSender<LaneAnswer>,
    rx: mpsc::UnboundedReceiver<LaneAnswer>,
    link: Option<Arc<Connection>>,
    /// Batches in flight, in the order in which they are to be stored.
    flight: VecDeque<Flight>,
    /// Tries whose batch was given up and which have no answer yet, with the bytes that the connection still holds of them.
    given_up: HashMap<u64, usize>,
    /// Names the tries over all connections.
    next_try: u64,
    /// True while nothing is sent, until all tries are answered.
    draining: bool,
    /// Recoveries since a batch was last stored.
    failures: u32,
    producer_id: u64,
    next_sequence: u64,
    /// The producer id is the caller's, and never another one.
    is_pinned: bool,
}

impl Task {
    async fn run(mut self) {
        loop {
            if self.draining && !self.is_waiting() {
                self.recover().await;
            }
            let wake_at = self.admit();
            // sent now, its answer would come too late, and it would not be sure any more that it is not stored
            if self.expire() {
                continue;
            }
            let owes = self.flight.iter().any(|f| matches!(f.state, Try::Due));
            if owes && !self.draining && self.link.is_none() {
                self.connect().await;
                continue;
            }
            if owes && !self.draining {
                self.send();
                if self.link.is_none() && !self.is_waiting() {
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
                answer = self.rx.recv() => if let Some((name, result)) = answer {
                    self.answered(name, result);
                    while let Ok((name, result)) = self.rx.try_recv() {
                        self.answered(name, result);
                    }
                },
                () = self.lane.wake.notified() => {}
                () = sleeping => {}
            }
        }
    }

    /// A try has no answer yet.
    fn is_waiting(&self) -> bool {
        self.flight.iter().any(Flight::is_sent)
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
                        state: Try::Due,
                        maybe_stored: false,
                        obstacle: None,
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
        for f in self.flight.iter_mut().filter(|f| matches!(f.state, Try::Due)) {
            let sequence = *f.sequence.get_or_insert(self.next_sequence);
            self.next_sequence = self.next_sequence.max(sequence + f.num as u64);
            let publish = Publish {
                topic: &settings.topic,
                partition: self.partition,
                num: f.num,
                producer_id: if settings.idempotent { self.producer_id } else { 0 },
                first_sequence: if settings.idempotent { sequence } else { 0 },
            };
            if link.publish(publish, &f.body, f.crc, self.next_try, &self.tx).is_err() {
                // nothing of it was sent
                self.link = None;
                self.draining = self.is_waiting();
                return;
            }
            f.state = Try::Sent(self.next_try);
            self.next_try += 1;
        }
    }

    fn answered(&mut self, name: u64, result: Result<RequestAnswer>) {
        if let Some(bytes) = self.given_up.remove(&name) {
            return self.shared.give_back(bytes);
        }
        let Some(at) = self.flight.iter().position(|f| matches!(f.state, Try::Sent(n) if n == name)) else { return };
        let result = match result {
            Ok(RequestAnswer::Published { at, duplicate }) => Ok(Published { partition: self.partition, at, duplicate }),
            Ok(other) => Err(Error::outcome(format_args!("the node sent an answer to no request: {other:?}"))),
            Err(error) => Err(error),
        };
        match result {
            Ok(published) => {
                self.failures = 0;
                if let Some(f) = self.flight.remove(at) {
                    f.sealed.owed.set(Ok(published));
                    self.shared.give_back(f.body.len());
                }
            }
            Err(error) => {
                let f = &mut self.flight[at];
                f.maybe_stored |= error.retry() == Retry::Unknown;
                f.state = Try::Failed(error);
                self.draining = true;
            }
        }
    }

    /// Settles a batch that is not tried again. Its bytes at the connection count as held until the try is answered.
    fn give_up(&mut self, f: Flight, error: Error) {
        let unknown = (f.maybe_stored || f.is_sent()) && !matches!(error, Error::Outcome { .. });
        f.sealed.owed.set(Err(if unknown { Error::outcome(error) } else { error }));
        match f.state {
            Try::Sent(name) => drop(self.given_up.insert(name, f.body.len())),
            Try::Due | Try::Failed(_) => self.shared.give_back(f.body.len()),
        }
    }

    /// Gives up the batches for which `which` returns an error; the others keep their order.
    fn fail_where(&mut self, mut which: impl FnMut(&Flight) -> Option<Error>) {
        for f in std::mem::take(&mut self.flight) {
            match which(&f) {
                Some(error) => self.give_up(f, error),
                None => self.flight.push_back(f),
            }
        }
    }

    /// Gives new sequences, under a new producer id, to all batches that were certainly not stored.
    fn renew(&mut self) {
        self.producer_id = new_producer_id();
        self.next_sequence = 0;
        self.flight.iter_mut().for_each(|f| f.sequence = None);
    }

    /// Decides which batches are sent again, after all tries are answered and one has failed.
    async fn recover(&mut self) {
        self.draining = false;
        let Some(error) = self.flight.iter().find_map(|f| f.failed().cloned()) else { return };
        let idempotent = self.shared.settings.idempotent;
        let retry = error.retry();
        tracing::debug!(topic = %self.shared.settings.topic, partition = self.partition.0, "publishing again: {error}");
        let is_of_sequence =
            |e: &Error| matches!(e.code(), Some(Code::UnknownProducer | Code::SequenceGap | Code::SequenceOverlap)) && idempotent;
        // behind one that failed for good, the others' sequences leave some out
        let renews = idempotent && (is_of_sequence(&error) || retry == Retry::Never);
        if renews && self.is_pinned {
            return self.fail_where(|f| Some(f.failed().unwrap_or(&error).clone()));
        }
        if renews || !idempotent {
            self.fail_where(|f| match f.failed() {
                Some(own) if own.retry() == Retry::Never && !is_of_sequence(own) => Some(own.clone()),
                // under another id, or without one, the node would store it twice
                own if f.maybe_stored => Some(own.unwrap_or(&error).clone()),
                _ => None,
            });
        }
        if renews {
            self.renew();
        }
        for f in &mut self.flight {
            if let Try::Failed(error) = std::mem::replace(&mut f.state, Try::Due) {
                f.obstacle = Some(error);
            }
        }
        if error.is_of_the_link() || self.link.as_ref().is_some_and(|l| !l.is_alive()) {
            self.link = None;
        }
        if retry == Retry::Refresh {
            self.link = None;
            self.inner.forget(&self.shared.settings.topic);
        }
        self.expire();
        if let Some(first) = self.flight.front() {
            let until = self.expires(first);
            self.failures = self.failures.saturating_add(1);
            // a lost connection is made again at once, with the pauses between connections kept there; a final refusal needs no pause,
            // unless it repeats
            let at_once = error.is_of_the_link() || (retry == Retry::Never && self.failures < 3);
            if !at_once {
                let _ = timeout_at(until.into(), sleep(pause_after(self.failures, PAUSE, PAUSE_MAX))).await;
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
                    self.fail_where(|_| Some(error.clone()));
                    self.renew();
                    return;
                }
                self.failures = self.failures.saturating_add(1);
                let pause = pause_after(self.failures, PAUSE, PAUSE_MAX);
                for f in &mut self.flight {
                    f.obstacle = Some(error.clone());
                }
                let _ = timeout_at(until.into(), sleep(pause)).await;
            }
            // the first has expired
            Err(_) => {}
        }
    }

    /// Gives up batches that have been tried for too long; false: there was none. The later batches of an idempotent producer keep their
    /// sequences: the node, which knows the stored ones, judges whether there is a gap.
    fn expire(&mut self) -> bool {
        let (now, limit) = (Instant::now(), self.shared.settings.limit);
        if self.flight.front().is_none_or(|f| f.sealed.since + limit > now) {
            return false;
        }
        self.fail_where(|f| {
            let why = f.failed().or(f.obstacle.as_ref()).map_or("no answer".into(), |e| e.to_string().into());
            (f.sealed.since + limit <= now).then_some(Error::Expired { limit, why })
        });
        true
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let queued = self.lane.locked().end();
        self.fail_where(|_| Some(Error::Closed));
        self.shared.give_back(queued + self.given_up.values().sum::<usize>());
    }
}
