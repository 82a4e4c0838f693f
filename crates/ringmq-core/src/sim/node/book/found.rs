//! Content of all topics on a disk, as a startup found it.

use super::ChannelKey;
use crate::base::{LogId, MessagePlace};
use crate::format::cursor::CursorImage;
use crate::log::recovery::channels::is_confirmed;
use std::collections::BTreeMap;

/// Findings of one startup in all topics.
#[derive(Default)]
pub struct StartupFindings {
    /// Message to its id, which names the partition.
    pub stored: BTreeMap<usize, MessagePlace>,
    /// First message that is still stored, by partition.
    pub first: BTreeMap<(usize, u16), LogId>,
    pub images: BTreeMap<(usize, u16), Vec<CursorImage>>,
    /// Copies of each message that was put off for long: channel and id.
    pub copies: BTreeMap<usize, Vec<(ChannelKey, MessagePlace)>>,
    /// Copies of messages that were never delivered.
    pub forwarded: u64,
    /// The sentence that is broken when something acknowledged is not there.
    pub name: &'static str,
}

/// Decides whether a replica must hold acknowledged messages of a topic's partition; an unknown partition is the last.
pub type Keeps<'a> = &'a dyn Fn(usize, u16) -> bool;

/// Unknown partition, for [`Keeps`].
pub const ANYWHERE: u16 = u16::MAX;

impl StartupFindings {
    /// True if a copy of the message waits for the channel, which may have confirmed the original.
    pub fn has_copy(&self, n: usize, channel: &ChannelKey) -> bool {
        let waits = |at: MessagePlace| {
            let images = self.images.get(&(channel.0, at.partition.0));
            let image = images.and_then(|all| all.iter().find(|i| *i.name == *channel.1));
            image.is_some_and(|i| !is_confirmed(i, at.log_id))
        };
        self.copies.get(&n).is_some_and(|all| all.iter().any(|(of, at)| of == channel && waits(*at)))
    }
}
