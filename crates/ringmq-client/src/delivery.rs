//! Deliveries of a consumer: batches of messages of one partition, and single messages out of them. Bodies are slices of the
//! memory that the socket was read into.

use super::subscription::Sub;
use bytes::Bytes;
use ringmq_protocol::base::{LogId, PartitionId};
use ringmq_protocol::codec::native::{IdRange, Messages};
use ringmq_protocol::format::batch::{Message, Messages as Walk};
use std::sync::Arc;
use std::time::Duration;

/// A received frame of messages. Its bytes count against the consumer's bound while anything refers to it.
#[derive(Debug)]
pub(super) struct Frame {
    sub: Arc<Sub>,
    /// Subscription in which the frame came: the node ignores confirmations in a later one.
    turn: u64,
    messages: Messages,
    payload: Bytes,
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.sub.release(self.payload.len() as u64);
    }
}

/// Consecutive messages of one partition, delivered together.
///
/// A message that is dropped without being finished or requeued is delivered again after its message timeout.
#[derive(Clone, Debug)]
pub struct Received {
    frame: Arc<Frame>,
}

impl Received {
    /// `None`: the payload does not hold the messages that were announced.
    pub(super) fn new(sub: Arc<Sub>, turn: u64, messages: Messages, payload: Bytes) -> Option<Received> {
        let received = Received { frame: Arc::new(Frame { sub, turn, messages, payload }) };
        let mut walk = received.walk();
        let found = walk.by_ref().count();
        (found == messages.num as usize && walk.rest_len() == 0).then_some(received)
    }

    /// True if the connection was lost: none of these messages can be finished any more.
    pub(super) fn is_stale(&self) -> bool {
        !self.frame.sub.is_at(self.frame.turn)
    }

    fn walk(&self) -> Walk<'_> {
        let Frame { messages, payload, .. } = &*self.frame;
        Walk::resume(payload, messages.log_id, messages.base_unix_ns)
    }

    /// The partition that it comes from.
    pub fn partition(&self) -> PartitionId {
        self.frame.sub.partition
    }

    /// The number of its messages.
    pub fn num(&self) -> u32 {
        self.frame.messages.num
    }

    /// Bytes as stored.
    pub fn bytes(&self) -> usize {
        self.frame.payload.len()
    }

    /// The log id of its first message.
    pub fn first_log_id(&self) -> LogId {
        self.frame.messages.log_id
    }

    /// Messages of the partition before the first.
    pub fn count(&self) -> i64 {
        self.frame.messages.count
    }

    /// Number of deliveries of these messages, including this one.
    pub fn attempts(&self) -> u16 {
        self.frame.messages.attempts
    }

    /// The bodies, in order, borrowed: nothing is counted or copied per message.
    pub fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        self.walk().map(|m| m.body)
    }

    /// The messages one by one, each to be finished by itself.
    pub fn deliveries(&self) -> Deliveries {
        Deliveries { received: self.clone(), at: 0, next: self.frame.messages.log_id }
    }

    /// Finishes all messages. They are confirmed later, many at a time; [`Consumer::sync`](super::Consumer::sync) waits for that.
    pub fn finish(&self) {
        self.frame.sub.finish(self.frame.turn, self.frame.messages.ids());
    }

    /// Requeues all messages; none is delivered again before `delay` has passed.
    pub fn requeue(&self, delay: Duration) {
        self.frame.sub.requeue(self.frame.turn, self.frame.messages.ids(), delay);
    }

    /// Restarts the message timeout of all messages.
    pub fn touch(&self) {
        self.frame.sub.touch(self.frame.turn, self.frame.messages.ids());
    }
}

/// The messages of a [`Received`], one by one.
#[derive(Debug)]
pub struct Deliveries {
    received: Received,
    /// Place in the payload.
    at: usize,
    next: LogId,
}

impl Iterator for Deliveries {
    type Item = Delivery;

    fn next(&mut self) -> Option<Delivery> {
        let frame = &self.received.frame;
        let rest = frame.payload.get(self.at..)?;
        let mut walk = Walk::resume(rest, self.next, frame.messages.base_unix_ns);
        let Message { log_id, unix_ns, body, .. } = walk.next()?;
        self.at += rest.len() - walk.rest_len();
        self.next = LogId(log_id.0 + 1);
        Some(Delivery { body: frame.payload.slice_ref(body), log_id, unix_ns, frame: frame.clone() })
    }
}

/// Message that was delivered.
///
/// The body keeps the memory that it was read into (some hundred KiB): copy a body that is kept for long.
#[derive(Clone, Debug)]
pub struct Delivery {
    frame: Arc<Frame>,
    log_id: LogId,
    unix_ns: i64,
    body: Bytes,
}

impl Delivery {
    /// The body as it was published.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The partition that it comes from.
    pub fn partition(&self) -> PartitionId {
        self.frame.sub.partition
    }

    /// Number of the message in the partition; with the partition it names the message for ever.
    pub fn log_id(&self) -> LogId {
        self.log_id
    }

    /// Time of the publish in ns since 1970, by the node's clock.
    pub fn unix_ns(&self) -> i64 {
        self.unix_ns
    }

    /// Number of deliveries of this message, including this one.
    pub fn attempts(&self) -> u16 {
        self.frame.messages.attempts
    }

    fn ids(&self) -> IdRange {
        IdRange { first: self.log_id, last: self.log_id }
    }

    /// Finishes the message.
    pub fn finish(&self) {
        self.frame.sub.finish(self.frame.turn, self.ids());
    }

    /// Requeues the message; it is not delivered again before `delay` has passed.
    pub fn requeue(&self, delay: Duration) {
        self.frame.sub.requeue(self.frame.turn, self.ids(), delay);
    }

    /// Restarts the message timeout.
    pub fn touch(&self) {
        self.frame.sub.touch(self.frame.turn, self.ids());
    }
}
