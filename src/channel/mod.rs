//! Tracks one channel on one partition. Pure.
//!
//! A [`Channel`] lives on the partition's core. It reads the partition's log through [`Source`], hands messages to its
//! clients through [`Sink`], and knows which of them are finished. It owns no body, reads no clock, writes no file: the
//! shard journals what [`Channel::take_finished`] says and gives the time.
//!
//! ```text
//!   log --read--> in flight --FIN--> confirmed (position, intervals beyond it)
//!                  |   |  ^
//!     timeout, REQ 0,  |  +-- delivered again, before anything new is read
//!     client gone --> waiting <-- due -- deferred <-- REQ with a delay
//! ```
//! Every message before the read position is confirmed or open; nothing after it is open. What the log lost (damage,
//! retention, a gap in the ids) counts as confirmed once the read position meets it.

mod clients;
mod confirmed;
mod deliver;
mod machine;
#[cfg(test)]
mod model;
mod open;
#[cfg(test)]
mod tests;

pub use confirmed::Confirmed;
pub use machine::{Channel, ChannelOptions, NotInFlight};

use crate::base::{MessageId, SubId};
use crate::log::{batch::Message, fetch::Fetch};

/// The partition's log.
pub trait Source {
    /// What stands at `offset`, the start of a batch or the end of the log. After [`Fetch::Pending`] the channel is
    /// asked to deliver again once the partition is readable; after [`Fetch::Held`] too, having been told
    /// [`Channel::readable`].
    fn fetch(&mut self, offset: i64) -> Fetch;
}

/// Where messages go.
pub trait Sink {
    /// False: the client's output is full and the message was *not* taken. It goes to another client, and this one is
    /// given nothing until [`Channel::block`] says that it has room again.
    fn deliver(&mut self, sub: SubId, message: &Message<'_>, id: MessageId, attempts: u16) -> bool;
}
