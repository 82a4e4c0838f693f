//! Tracks one channel on one partition. Pure.
//!
//! A [`Channel`] lives on the partition's core. It reads the partition's log through [`Source`], hands messages to its clients through
//! [`Sink`], and knows which of them are finished. It owns no body, reads no clock, writes no file: the shard journals the intervals of
//! [`Channel::take_finished`] and gives the time.
//!
//! ```text
//!   log --read--> in flight --FIN--> confirmed (position, intervals beyond it)
//!                  |   |  ^
//!     timeout, REQ 0,  |  +-- delivered again, before anything new is read
//!     client gone --> waiting <-- due -- deferred <-- REQ with a delay, or a due time that is still to come
//! ```
//! A *ranged* client (the native protocol's) takes a run of a batch in one step and confirms ranges of ids. A run is one entry from its
//! delivery to its last FIN: nothing is done per message, unless the run has to be split (then the heads of a batch are walked) or goes
//! to a client that is not ranged, message by message.
//!
//! On an *ordered* channel one message is open at a time (`ordered`); there, and when a cursor is set, nothing goes out
//! before the change of the cursor is durable.
//!
//! Every message before the read position is confirmed or open; nothing after it is open. So the confirmed set is not kept: it follows
//! from the open entries, which are linked by id, and the read position (`cursor`). Messages that the log lost (damage, retention, a gap
//! in the ids) count as confirmed once the read position meets them.
//!
//! Memory alone bounds the number of open messages: [`Channel::set_room`]. An ephemeral channel drops waiting messages beyond its bound,
//! the oldest of the log first ([`Channel::drop_old`]).

mod arena;
mod backlog;
mod clients;
mod copies;
#[cfg(test)]
mod copies_tests;
mod cursor;
mod delayed;
#[cfg(test)]
mod delayed_tests;
mod deliver;
mod figures;
mod finished;
mod flights;
mod forward;
#[cfg(test)]
mod forward_tests;
mod handed;
#[cfg(test)]
mod handed_tests;
mod machine;
#[cfg(test)]
mod model;
mod open;
mod ordered;
#[cfg(test)]
mod ordered_tests;
#[cfg(test)]
mod range_tests;
mod reading;
mod runs;
mod tail;
#[cfg(test)]
mod tail_tests;
#[cfg(test)]
mod tests;

pub use copies::Copy;
pub use forward::ForwardPolicy;
pub use machine::{Channel, ChannelOptions, NotInFlight};
pub use tail::Tail;

use crate::base::{LogId, SubId};
use crate::format::batch::{BATCH_HEADER_LEN, Batch, Message};
use crate::log::fetch::Fetch;
use std::ops::Range;

/// The partition's log.
pub trait Source {
    /// Returns the content of the log at `offset`, the start of a batch or the end of the log. After [`Fetch::Pending`] the channel is
    /// asked to deliver again once the partition is readable; after [`Fetch::Held`] too, having been told [`Channel::readable`].
    fn fetch(&mut self, offset: i64) -> Fetch;

    /// The wall clock: messages whose due time is later are not delivered.
    fn unix_ns(&self) -> i64;
}

/// Destination of messages.
pub trait Sink {
    /// False: the client's output is full and the message was *not* taken. It goes to another client, and this one is
    /// given nothing until [`Channel::block`] says that it has room again. `place`, for a client that wants it: where the
    /// message stands in the log, and the bytes that it takes there.
    fn deliver(&mut self, sub: SubId, message: &Message<'_>, attempts: u16, place: Option<(i64, u32)>) -> bool;

    /// Delivers a run to a ranged client, which gets nothing else: all of the run is taken, or nothing of it. See [`Sink::deliver`].
    fn deliver_range(&mut self, sub: SubId, run: &Run<'_>) -> bool;
}

/// Consecutive messages of one batch as they are stored. A ranged client (`SubOptions::ranged`) takes a run in one step.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    pub batch: &'a Batch,
    pub first: LogId,
    /// Number of messages, at least one.
    pub num: u32,
    /// Messages of the partition before the first.
    pub count: i64,
    /// Range of the messages in `batch.bytes`, with their heads; a whole batch begins behind its header.
    pub at: Range<usize>,
    /// The delivery that this is of each of them, from 1 on.
    pub attempts: u16,
}

impl Run<'_> {
    pub fn last(&self) -> LogId {
        LogId(self.first.0 + self.num as u64 - 1)
    }

    /// True if the run is a whole batch, so that the batch's header and checksum hold for it.
    pub fn is_whole_batch(&self) -> bool {
        self.at == (BATCH_HEADER_LEN..self.batch.bytes.len())
    }

    pub fn stored(&self) -> &[u8] {
        &self.batch.bytes[self.at.clone()]
    }
}
