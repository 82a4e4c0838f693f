//! Memory of open messages, over all channels of a core. Only this bounds the number of a channel's open messages.
//!
//! A channel may take [`SHARE`] times the free memory. So one channel cannot take everything, and channels that take little go on while
//! a large one holds. A channel that holds reads its log no further, and still delivers its open messages: finished ones make room.

use super::{ChannelKey, ChannelState, Partition, TOLD_EVERY};
use crate::base::Now;

/// A single channel gets eight ninths of the memory.
const SHARE: usize = 8;

#[derive(Debug)]
pub(super) struct OpenMemory {
    /// Bytes that all channels may take together.
    bytes_max: usize,
    /// Bytes that they take: the sum of [`ChannelState::open_bytes`].
    used: usize,
    /// Channels that hold, each once.
    holding: Vec<ChannelKey>,
    /// Bytes in use when the last of them began to hold, or was woken.
    mark: usize,
}

impl OpenMemory {
    pub fn new(bytes_max: u64) -> OpenMemory {
        OpenMemory { bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX), used: 0, holding: vec![], mark: 0 }
    }

    #[cfg(test)]
    pub fn used_bytes(&self) -> usize {
        self.used
    }

    /// Gives a channel its memory limit, before its turn.
    pub fn give_room(&self, c: &mut ChannelState) {
        let left = self.bytes_max.saturating_sub(self.used - c.open_bytes);
        c.machine.set_room(left / (SHARE + 1) * SHARE);
    }

    /// Counts a channel's open messages, after its turn or after they were dropped. Whether they fill its memory.
    pub fn count(&mut self, partition: &mut Partition, key: ChannelKey) -> bool {
        let end = partition.flows_to();
        let Some(c) = partition.channels.get_mut(key.channel as usize) else { return false };
        let own = c.machine.open_bytes();
        self.used = self.used - c.open_bytes + own;
        c.open_bytes = own;
        if !c.machine.is_full(end) {
            return false;
        }
        self.mark = self.used;
        if !self.holding.contains(&key) {
            self.holding.push(key);
        }
        true
    }

    /// The log's line about a channel that is full, and holds, at most once in [`TOLD_EVERY`].
    pub fn tell_held(&self, now: Now, partition: &mut Partition, key: ChannelKey) {
        let Partition { topic, dir, channels, .. } = partition;
        let Some(c) = channels.get_mut(key.channel as usize) else { return };
        if c.tell_full_at <= now.ticks {
            c.tell_full_at = now.ticks + TOLD_EVERY;
            tracing::warn!(
                topic = %topic.name, partition = %dir.partition, channel = %c.name, open_bytes = c.open_bytes,
                channel_memory = self.bytes_max,
                "unfinished messages take all memory that the channel may have: the channel reads no further messages until some are \
                 finished; finish messages, or raise channel-memory"
            );
        }
    }

    /// The channel is gone.
    pub fn forget(&mut self, key: ChannelKey, open_bytes: usize) {
        self.used -= open_bytes;
        self.holding.retain(|k| *k != key);
    }

    /// Channels that hold, once memory became free: each is to look whether it may go on.
    #[inline]
    pub fn take_holding(&mut self) -> Option<Vec<ChannelKey>> {
        if self.used >= self.mark || self.holding.is_empty() {
            return None;
        }
        self.mark = self.used;
        Some(std::mem::take(&mut self.holding))
    }
}
