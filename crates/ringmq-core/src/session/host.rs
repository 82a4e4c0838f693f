//! The session's seam to its shard: requests, and their answers.

use crate::base::{ConnId, MessageId, Now, PartitionId};
use crate::codec::nsq::{Bodies, ClientError};
use crate::seam::{
    message::{AuthQuery, SubOptions},
    outcome::InFlightError,
};

/// A place in a session's queue of replies; consecutive, so that replies leave in the order of their commands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ReplySlot(pub u64);

/// Outcome of a command that is answered later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandTaken {
    /// `Session::reply` (or `Session::fail`) follows for the slot, once.
    Accepted,
    /// The command waits. The session keeps it and parses no further until `resume` or `fail_stalled`; the slot is not used.
    Stall,
    /// Answered with this error, in its place.
    Refused(ClientError),
}

/// A SUB or SUB_ORDERED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribe<'a> {
    pub topic: &'a str,
    pub channel: &'a str,
    /// `None`: all of the topic.
    pub partition: Option<PartitionId>,
}

/// Implemented by the shard. Names, sizes and counts were checked; borrowed bytes are valid for the call only.
/// A partition that is not on this core may answer FIN, REQ and TOUCH with `Ok` and later with `Session::in_flight_failed`.
pub trait Host {
    /// Publishes all of `bodies` or none, to a partition or the one whose turn it is.
    fn publish(
        &mut self,
        now: Now,
        conn: ConnId,
        topic: &str,
        partition: Option<PartitionId>,
        bodies: Bodies<'_>,
        slot: ReplySlot,
    ) -> CommandTaken;
    /// Subscribes. `Stall` also if the connection moves first: the command then travels in the bytes that `Session::carry` returns.
    fn subscribe(&mut self, now: Now, conn: ConnId, to: Subscribe<'_>, options: SubOptions, slot: ReplySlot) -> CommandTaken;
    /// Credit, at most the limit's `max_rdy_count`. May come before the reply to SUB.
    fn ready(&mut self, now: Now, conn: ConnId, count: u32);
    /// A FIN. On an ordered channel it may fail later, as on another core.
    fn finish(&mut self, now: Now, conn: ConnId, id: MessageId) -> Result<(), InFlightError>;
    /// `delay_ms` is at most the limit's `max_req_timeout_ms`.
    fn requeue(&mut self, now: Now, conn: ConnId, id: MessageId, delay_ms: u64) -> Result<(), InFlightError>;
    fn touch(&mut self, now: Now, conn: ConnId, id: MessageId) -> Result<(), InFlightError>;
    /// Asks the auth server; [`Session::authorized`](super::Session::authorized) has the answer, once.
    fn authorize(&mut self, conn: ConnId, query: AuthQuery);
    /// CLS: no further message goes out; messages in flight may still be finished, requeued and touched.
    fn close_subscription(&mut self, now: Now, conn: ConnId);
}
