//! A native session's seam to its shard.

use crate::base::{ConnId, Now, PartitionId, Position};
use crate::codec::native::{Code, IdRange, Retry, Start};
use std::borrow::Cow;
use std::sync::Arc;

/// A publish that was received whole.
#[derive(Debug)]
pub struct NativePublish {
    pub request: u64,
    pub topic: String,
    pub partition: PartitionId,
    pub num: u32,
    pub producer_id: u64,
    pub first_sequence: u64,
    /// Room for a batch's header, then the body as it came. Taken by a host that accepts it.
    pub body: Vec<u8>,
    pub body_crc: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeSubscribe {
    pub request: u64,
    pub subscription: u32,
    pub topic: String,
    pub partition: PartitionId,
    pub channel: String,
    pub start: Start,
    /// Message timeout within the node's bounds.
    pub message_timeout_ms: u64,
    /// The channel is to be ordered, if it is not yet.
    pub ordered: bool,
}

/// New position of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeSetOffset {
    pub request: u64,
    pub topic: String,
    pub partition: PartitionId,
    pub channel: String,
    pub to: Start,
    pub force: bool,
}

/// Reason why a request was not, or perhaps not, carried out, for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub retry: Retry,
    pub message: Cow<'static, str>,
    /// The partition's core, with [`Code::WrongCore`].
    pub core: u16,
    /// True when the connection ends after the answer.
    pub fatal: bool,
}

impl Failure {
    pub fn new(code: Code, retry: Retry, message: impl Into<Cow<'static, str>>) -> Self {
        Failure { code, retry, message: message.into(), core: 0, fatal: false }
    }

    pub fn never(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Failure::new(code, Retry::Never, message)
    }

    pub fn fatal(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Failure { fatal: true, ..Failure::never(code, message) }
    }
}

/// Outcome of a request that is answered later.
#[derive(Debug)]
pub enum NativeTaken {
    /// The session's `answer` follows, once, with the request's id.
    Accepted,
    /// The request waits. The session keeps it and reads no further until `resume` or `fail_stalled`.
    Stall,
    Refused(Failure),
}

/// Outcome of a Finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeFinished {
    /// Number of messages of the ranges that were in flight for the subscription.
    Done(u64),
    /// The Finish waits, on an ordered channel: [`NativeAnswer::Finished`] follows, if there is a request id, once it is final.
    Waits,
    /// Refusal on an ordered channel: nothing is finished, and messages in flight stay there.
    Refused(Failure),
    NoSubscription,
}

/// A topic as [`NativeHost::topics`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicEntry {
    pub name: crate::base::TopicName,
    pub id: crate::base::TopicId,
    /// Core and node of each partition.
    pub places: Vec<PartitionPlace>,
}

/// The node that leads a partition, and its core there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PartitionPlace {
    /// Index in [`NativeHost::native_nodes`], from 1; 0: the node itself, or unknown.
    pub node: u16,
    pub core: u16,
}

/// The answer to an accepted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeAnswer {
    Published {
        at: Option<Position>,
        duplicate: bool,
    },
    Subscribed {
        subscription: u32,
        created: bool,
        at: Position,
    },
    /// The topic is there, with the other nodes that its places name.
    Created(TopicEntry, Vec<([u8; 16], Arc<str>)>),
    /// Position that was found, or that a channel was set to.
    Found {
        at: Position,
    },
    /// The answer to a Finish that had to wait.
    Finished {
        num: u64,
    },
    Failed(Failure),
}

/// Implemented by the shard. Names were checked.
pub trait NativeHost {
    /// The connection is to live on `core`. True: it moves as soon as it is quiet, and the session stalls until then.
    fn native_move(&mut self, conn: ConnId, core: u16) -> bool;
    /// Takes the body when it accepts.
    fn native_publish(&mut self, now: Now, conn: ConnId, publish: &mut NativePublish) -> NativeTaken;
    fn native_subscribe(
        &mut self,
        now: Now,
        conn: ConnId,
        subscribe: &NativeSubscribe,
        client: &super::ClientIdentity,
    ) -> NativeTaken;
    /// False: there is no such subscription; the same goes for those below.
    fn native_credit(&mut self, conn: ConnId, subscription: u32, messages: u32, bytes: u64) -> bool;
    fn native_finish(&mut self, now: Now, conn: ConnId, request: u64, subscription: u32, ranges: &[IdRange]) -> NativeFinished;
    /// Requeues messages; returns how many messages of the ranges were in flight for the subscription.
    fn native_requeue(&mut self, now: Now, conn: ConnId, subscription: u32, ranges: &[IdRange], delay_ms: u32) -> Option<u64>;
    fn native_touch(&mut self, now: Now, conn: ConnId, subscription: u32, ranges: &[IdRange]) -> Option<u64>;
    fn native_unsubscribe(&mut self, conn: ConnId, subscription: u32) -> bool;
    /// The other nodes whose clients can be told where they are: id, host and port of the native protocol.
    fn native_nodes(&self) -> Vec<([u8; 16], Arc<str>)>;
    /// Lists the named topics that are known, or all behind `after` in the order of their names, until `each` says that it is enough.
    fn native_topics(&mut self, names: &[&str], after: &str, each: &mut dyn FnMut(TopicEntry) -> bool);
    fn native_create_topic(&mut self, now: Now, conn: ConnId, request: u64, topic: &str, partitions: u16) -> NativeTaken;
    fn native_find(
        &mut self,
        now: Now,
        conn: ConnId,
        request: u64,
        topic: &str,
        partition: PartitionId,
        start: Start,
    ) -> NativeTaken;
    /// Answered with [`NativeAnswer::Found`].
    fn native_set_offset(&mut self, now: Now, conn: ConnId, set: &NativeSetOffset) -> NativeTaken;
}
