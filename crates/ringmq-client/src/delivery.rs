//! What a consumer gets: batches of messages of one partition, and single messages out of them. Bodies are slices of what was
//! read from the socket.

use super::subscription::Sub;
use bytes::Bytes;
use ringmq_protocol::base::{LogId, PartitionId};
use ringmq_protocol::codec::native::{IdRange, Messages};
use ringmq_protocol::format::batch::{Message, Messages as Walk};
use std::sync::Arc;
use std::time::Duration;

/// What is known of a frame of messages; its bytes count against the consumer's bound while anything refers to it.
#[derive(Debug)]
pub(super) struct Frame {
    sub: Arc<Sub>,
    /// The connection's turn in which it came: what is confirmed later means nothing to the node.
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
/// What is dropped without a word is delivered again when its message timeout has passed.
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

    /// Its connection was lost: nothing of it can be finished any more.
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

    /// How often these were delivered, this time included.
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

    /// All of them are done with. They are confirmed in a while, many at a time; [`Consumer::sync`](super::Consumer::sync) waits
    /// for that.
    pub fn finish(&self) {
        self.frame.sub.finish(self.frame.turn, self.frame.messages.ids());
    }

    /// All of them are to be delivered again, not before `delay` has passed.
    pub fn requeue(&self, delay: Duration) {
        self.frame.sub.requeue(self.frame.turn, self.frame.messages.ids(), delay);
    }

    /// Their message timeout begins anew.
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

/// One message.
///
/// Its body keeps the piece of memory that it was read into (some hundred KiB): copy what is kept for long.
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

    /// Its number in the partition; with the partition it names the message for ever.
    pub fn log_id(&self) -> LogId {
        self.log_id
    }

    /// When it was published, in ns since 1970, by the node's clock.
    pub fn unix_ns(&self) -> i64 {
        self.unix_ns
    }

    /// How often it was delivered, this time included.
    pub fn attempts(&self) -> u16 {
        self.frame.messages.attempts
    }

    fn ids(&self) -> IdRange {
        IdRange { first: self.log_id, last: self.log_id }
    }

    /// It is done with.
    pub fn finish(&self) {
        self.frame.sub.finish(self.frame.turn, self.ids());
    }

    /// It is to be delivered again, not before `delay` has passed.
    pub fn requeue(&self, delay: Duration) {
        self.frame.sub.requeue(self.frame.turn, self.ids(), delay);
    }

    /// Its message timeout begins anew.
    pub fn touch(&self) {
        self.frame.sub.touch(self.frame.turn, self.ids());
    }
}
