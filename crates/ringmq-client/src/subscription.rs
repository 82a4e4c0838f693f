//! The task of one partition of a consumer: subscribes, hands messages on, gives credit, and sends confirmations in
//! ranges of many messages.
//!
//! After a lost connection it subscribes again. Confirmations that were not sent by then are dropped: the node delivers those
//! messages again.

use super::delivery::Received;
use super::error::{Error, Result};
use super::link::{Connection, RequestAnswer, SubEvent};
use super::node::{Inner, pause_after, unexpected};
use ringmq_protocol::base::PartitionId;
use ringmq_protocol::codec::native::{IdRange, RANGES_MAX, Request, Retry, Start, Subscribe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Settings that all partitions of a consumer share.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub topic: Arc<str>,
    pub channel: Arc<str>,
    pub start: Start,
    pub message_timeout: Duration,
    /// Unfinished messages, and bytes that the client holds, per partition.
    pub window_messages: u32,
    pub window_bytes: u64,
    pub ack_delay: Duration,
    pub ordered: bool,
}

/// State that the holders of messages share with the task.
#[derive(Debug)]
pub(super) struct Sub {
    pub partition: PartitionId,
    book: Mutex<Book>,
    wake: Notify,
    /// The first try to subscribe is through.
    pub begun: Notify,
    /// Bytes received, over all connections.
    received: AtomicU64,
    /// Received bytes that the client does not hold any more, over all connections.
    released: AtomicU64,
    /// Released bytes as of the last credit.
    credited: AtomicU64,
    window_bytes: u64,
    batch: u64,
}

/// Confirmations to be sent to the node.
#[derive(Debug, Default)]
struct Book {
    /// Counts the subscriptions after each other.
    turn: u64,
    finish: Vec<IdRange>,
    finish_num: u64,
    requeue: Vec<(u32, IdRange)>,
    touch: Vec<IdRange>,
    /// Time of the oldest of these.
    since: Option<Instant>,
    urgent: bool,
    syncs: Vec<oneshot::Sender<Result<()>>>,
    closing: bool,
    /// True when something was finished or requeued that the node is not known to have taken.
    unconfirmed: bool,
    /// True when unconfirmed finishes or requeues were lost with a connection, and no waiting caller has been told.
    lost: bool,
    /// The task is gone.
    ended: bool,
}

impl Book {
    fn is_empty(&self) -> bool {
        self.finish.is_empty() && self.requeue.is_empty() && self.touch.is_empty() && self.syncs.is_empty()
    }

    fn clear(&mut self) {
        self.finish.clear();
        self.requeue.clear();
        self.touch.clear();
        (self.finish_num, self.since, self.urgent) = (0, None, false);
    }

    /// Returns an error once if confirmations were lost.
    fn take_lost(&mut self) -> Result<()> {
        if std::mem::take(&mut self.lost) { Err(lost()) } else { Ok(()) }
    }
}

/// Decision about messages.
#[derive(Clone, Copy)]
enum Noted {
    Finish,
    /// Requeue after so many ms.
    Requeue(u32),
    Touch,
}

/// Merges ranges into as few as possible.
fn merge(ranges: &mut Vec<IdRange>) {
    ranges.sort_unstable_by_key(|r| r.first);
    ranges.dedup_by(|next, before| {
        let touches = next.first.0 <= before.last.0.saturating_add(1);
        if touches {
            before.last = before.last.max(next.last);
        }
        touches
    });
}

impl Sub {
    pub fn new(partition: PartitionId, settings: &Settings) -> Sub {
        Sub {
            partition,
            book: Mutex::default(),
            wake: Notify::new(),
            begun: Notify::new(),
            received: AtomicU64::new(0),
            released: AtomicU64::new(0),
            credited: AtomicU64::new(0),
            window_bytes: settings.window_bytes,
            batch: (settings.window_messages as u64 / 4).max(1),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// True if messages of this turn can still be finished.
    pub fn is_at(&self, turn: u64) -> bool {
        self.locked().turn == turn
    }

    /// Notes something; wakes the task for the first, and when enough has come together.
    fn note(&self, turn: u64, ids: IdRange, what: Noted) {
        let mut book = self.locked();
        if book.turn != turn || book.ended {
            // a message whose touch is lost comes again like any other that is not finished in time
            book.lost |= !matches!(what, Noted::Touch);
            return;
        }
        match what {
            Noted::Finish => ids.append_to(&mut book.finish),
            Noted::Requeue(ms) => book.requeue.push((ms, ids)),
            Noted::Touch => ids.append_to(&mut book.touch),
        }
        if !matches!(what, Noted::Touch) {
            book.finish_num += ids.last.0 - ids.first.0 + 1;
            book.unconfirmed = true;
        }
        let first = book.since.is_none();
        if first {
            book.since = Some(Instant::now());
        }
        let full = !book.urgent && book.finish_num >= self.batch;
        book.urgent |= full;
        drop(book);
        if first || full {
            self.wake.notify_one();
        }
    }

    pub fn finish(&self, turn: u64, ids: IdRange) {
        self.note(turn, ids, Noted::Finish);
    }

    pub fn requeue(&self, turn: u64, ids: IdRange, delay: Duration) {
        self.note(turn, ids, Noted::Requeue(u32::try_from(delay.as_millis()).unwrap_or(u32::MAX)));
    }

    pub fn touch(&self, turn: u64, ids: IdRange) {
        self.note(turn, ids, Noted::Touch);
    }

    /// Credit is renewed when so many bytes were released.
    fn step(&self) -> u64 {
        self.window_bytes.div_ceil(4).max(1)
    }

    pub fn release(&self, bytes: u64) {
        // in one order with the store and load of `Credit::renew`: one of the two sees the other
        let before = self.released.fetch_add(bytes, Ordering::SeqCst);
        let due = self.credited.load(Ordering::SeqCst) + self.step();
        if before < due && before + bytes >= due {
            self.wake.notify_one();
        }
    }

    /// Sends the collected confirmations: no more follow for now.
    pub fn hurry(&self) {
        let mut book = self.locked();
        if book.since.is_some() && !book.urgent {
            book.urgent = true;
            drop(book);
            self.wake.notify_one();
        }
    }

    /// Resolves when the node has taken every finish, requeue and touch that was noted.
    pub fn sync(&self) -> oneshot::Receiver<Result<()>> {
        let (tx, rx) = oneshot::channel();
        let mut book = self.locked();
        if book.ended {
            let _ = tx.send(book.take_lost());
        } else {
            book.syncs.push(tx);
            book.urgent = true;
        }
        drop(book);
        self.wake.notify_one();
        rx
    }

    pub fn close(&self) {
        self.locked().closing = true;
        self.wake.notify_one();
    }

    /// Starts the next subscription and returns its turn. The confirmations of the previous one are lost: a waiting sync, or
    /// else the next one, returns the error. A sync comes before or after all of this.
    fn turn_over(&self) -> u64 {
        let mut book = self.locked();
        book.clear();
        book.turn += 1;
        book.lost |= std::mem::take(&mut book.unconfirmed);
        if !book.syncs.is_empty() {
            let result = book.take_lost();
            for sync in book.syncs.drain(..) {
                let _ = sync.send(result.clone());
            }
        }
        book.turn
    }

    fn end(&self) {
        self.locked().ended = true;
        self.turn_over();
    }
}

pub(super) type Delivered = Result<Received>;

pub(super) struct Task {
    pub inner: Arc<Inner>,
    pub settings: Arc<Settings>,
    pub sub: Arc<Sub>,
    pub to: mpsc::UnboundedSender<Delivered>,
}

/// Reason why a subscription ended.
enum EndReason {
    Closed,
    /// Subscribing again would end the same way, or is not this side's to decide.
    Fatal(Error),
    Again(Error),
}

impl Task {
    pub async fn run(self) {
        let ended = self.consume().await;
        self.sub.end();
        self.sub.begun.notify_one();
        if let Some(why) = ended {
            // the consumer may be gone
            let _ = self.to.send(Err(Error::Ended { partition: self.sub.partition.0, why: Arc::new(why) }));
        }
    }

    /// Consumes until it is closed, or an error ends it.
    async fn consume(&self) -> Option<Error> {
        let mut failures = 0u32;
        loop {
            if self.sub.locked().closing {
                return None;
            }
            let connected = tokio::select! {
                link = self.inner.link_for(&self.settings.topic, self.sub.partition.0) => link,
                () = self.to.closed() => return None,
            };
            let began = Instant::now();
            let end = match connected {
                Ok(link) => self.attached(&link).await,
                Err(error) if error.retry() == Retry::Never => EndReason::Fatal(error),
                Err(error) => EndReason::Again(error),
            };
            let error = match end {
                EndReason::Closed => return None,
                EndReason::Fatal(error) => return Some(error),
                EndReason::Again(error) => error,
            };
            tracing::debug!(topic = %self.settings.topic, partition = self.sub.partition.0, "subscribing again: {error}");
            self.sub.turn_over();
            self.sub.begun.notify_one();
            if error.retry() == Retry::Refresh {
                self.inner.forget(&self.settings.topic);
            }
            failures = if began.elapsed() > PAUSE_MAX { 0 } else { failures.saturating_add(1) };
            tokio::select! {
                () = sleep(pause_after(failures, PAUSE, PAUSE_MAX)) => {}
                () = self.to.closed() => return None,
            }
        }
    }

    async fn attached(&self, link: &Arc<Connection>) -> EndReason {
        let (number, mut events) = match link.new_subscription() {
            Ok(new) => new,
            Err(error) => return EndReason::Again(error),
        };
        let end = self.subscribed(link, number, &mut events).await;
        link.forget_subscription(number);
        end
    }

    async fn subscribed(&self, link: &Arc<Connection>, number: u32, events: &mut mpsc::UnboundedReceiver<SubEvent>) -> EndReason {
        let settings = &self.settings;
        let subscribe = Subscribe {
            subscription: number,
            topic: &settings.topic,
            partition: self.sub.partition,
            channel: &settings.channel,
            start: settings.start,
            message_timeout_ms: u32::try_from(settings.message_timeout.as_millis()).unwrap_or(u32::MAX),
            ordered: settings.ordered,
        };
        match link.ask(&Request::Subscribe(subscribe)).await {
            Ok(RequestAnswer::Subscribed) => {}
            Ok(other) => return EndReason::Fatal(unexpected(link, &other)),
            Err(error) if error.retry() == Retry::Never => return EndReason::Fatal(error),
            Err(error) => return EndReason::Again(error),
        }
        let turn = self.sub.turn_over();
        let mut credit = Credit::new(number, &self.sub);
        credit.tell(link, settings.window_messages);
        self.sub.begun.notify_one();
        loop {
            let flush_at = {
                let book = self.sub.locked();
                let now = book.urgent || book.closing;
                book.since.map(|since| if now { since } else { since + settings.ack_delay })
            };
            let flushing = async {
                match flush_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Some(SubEvent::Messages(messages, payload)) => {
                        self.sub.received.fetch_add(payload.len() as u64, Ordering::Relaxed);
                        if let Err(error) = self.hand_on(link, turn, messages, payload) {
                            link.break_off(error.clone());
                            return EndReason::Again(error);
                        }
                    }
                    Some(SubEvent::Ended(reason)) => return self.ended(link, Error::Unsubscribed { reason }).await,
                    None => return EndReason::Again(link.fault().unwrap_or(Error::Closed)),
                },
                () = self.sub.wake.notified() => {}
                // Also one that was never handed out.
                () = self.to.closed() => {}
                () = flushing => {}
            }
            while credit.renew(&self.sub) {
                credit.tell(link, settings.window_messages);
            }
            self.tell(link, number, flush_at).await;
            if self.sub.locked().closing || self.to.is_closed() {
                self.tell(link, number, Some(Instant::now())).await;
                let _ = link.ask(&Request::Unsubscribe { subscription: number }).await;
                return EndReason::Closed;
            }
        }
    }

    /// The node has ended the subscription. While it knows the topic, another node leads the partition, or none for a while:
    /// the next leader is looked up.
    async fn ended(&self, link: &Arc<Connection>, why: Error) -> EndReason {
        match self.inner.refresh_by(link, &self.settings.topic).await {
            Ok(None) => EndReason::Fatal(why),
            _ => EndReason::Again(why),
        }
    }

    fn hand_on(
        &self,
        link: &Connection,
        turn: u64,
        messages: ringmq_protocol::codec::native::Messages,
        payload: bytes::Bytes,
    ) -> Result<()> {
        let Some(received) = Received::new(self.sub.clone(), turn, messages, payload) else {
            return Err(Error::protocol(&link.facts.address, "a batch does not hold the announced messages"));
        };
        // the loop ends when the consumer is gone
        let _ = self.to.send(Ok(received));
        Ok(())
    }

    /// Sends the noted confirmations when they are due; waits for the node only while a sync waits.
    async fn tell(&self, link: &Connection, number: u32, flush_at: Option<Instant>) {
        let (mut finish, requeue, mut touch, syncs) = {
            let mut book = self.sub.locked();
            let due = book.urgent || book.closing || flush_at.is_some_and(|at| at <= Instant::now());
            if book.is_empty() || !due {
                return;
            }
            let taken = (
                std::mem::take(&mut book.finish),
                std::mem::take(&mut book.requeue),
                std::mem::take(&mut book.touch),
                std::mem::take(&mut book.syncs),
            );
            book.clear();
            taken
        };
        merge(&mut finish);
        merge(&mut touch);
        for ranges in finish.chunks(RANGES_MAX) {
            link.tell(&Request::Finish { subscription: number, ranges: ranges.to_vec() });
        }
        for ranges in touch.chunks(RANGES_MAX) {
            link.tell(&Request::Touch { subscription: number, ranges: ranges.to_vec() });
        }
        for same in requeue.chunk_by(|a, b| a.0 == b.0) {
            let mut ranges: Vec<_> = same.iter().map(|(_, r)| *r).collect();
            merge(&mut ranges);
            for ranges in ranges.chunks(RANGES_MAX) {
                link.tell(&Request::Requeue { subscription: number, ranges: ranges.to_vec(), delay_ms: same[0].0 });
            }
        }
        if !syncs.is_empty() {
            // frames are carried out in order: when this one is answered, those before it have been
            let result = match link.ask(&Request::Finish { subscription: number, ranges: Vec::new() }).await {
                Ok(RequestAnswer::Done) => {
                    let mut book = self.sub.locked();
                    book.unconfirmed = !book.finish.is_empty() || !book.requeue.is_empty();
                    book.take_lost()
                }
                Ok(other) => Err(unexpected(link, &other)),
                Err(error) => Err(error),
            };
            for sync in syncs {
                let _ = sync.send(result.clone());
            }
        }
    }
}

fn lost() -> Error {
    Error::outcome(
        "the connection was lost before the node confirmed every finished message: those that it did not take are delivered again",
    )
}

/// The bytes that the node may send: the window, minus the bytes that the client still holds, also of earlier connections.
struct Credit {
    number: u32,
    /// Messages that came before this subscription.
    before: u64,
    /// Released messages as of the last credit.
    released: u64,
    granted: u64,
}

impl Credit {
    fn new(number: u32, sub: &Sub) -> Credit {
        let mut credit = Credit { number, before: sub.received.load(Ordering::Relaxed), released: 0, granted: 0 };
        credit.grant(sub);
        credit
    }

    fn grant(&mut self, sub: &Sub) {
        self.released = sub.released.load(Ordering::SeqCst);
        // bytes received in this subscription, and the rest of the window beside all held bytes
        self.granted = sub.window_bytes.saturating_add(self.released).saturating_sub(self.before);
        sub.credited.store(self.released, Ordering::SeqCst);
    }

    /// True when there is more to grant; then the caller asks again, since bytes released meanwhile woke no task.
    fn renew(&mut self, sub: &Sub) -> bool {
        let due = sub.released.load(Ordering::SeqCst) - self.released >= sub.step();
        if due {
            self.grant(sub);
        }
        due
    }

    fn tell(&self, link: &Connection, messages: u32) {
        link.tell(&Request::Credit { subscription: self.number, messages, bytes: self.granted });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringmq_protocol::base::LogId;

    fn range(first: u64, last: u64) -> IdRange {
        IdRange { first: LogId(first), last: LogId(last) }
    }

    #[test]
    fn ranges_come_together() {
        let mut ranges = vec![];
        for id in [1, 2, 3, 7, 5, 6, 9] {
            range(id, id).append_to(&mut ranges);
        }
        assert_eq!(ranges, [range(1, 3), range(7, 7), range(5, 6), range(9, 9)]);
        merge(&mut ranges);
        assert_eq!(ranges, [range(1, 3), range(5, 7), range(9, 9)]);
    }
}
