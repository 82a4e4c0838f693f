//! Memory of open messages, over all channels of a core. Nothing else bounds how many messages of a channel are open.
//!
//! A channel may take [`SHARE`] times what the others leave free. So one channel cannot take everything, and those that take
//! little go on while it holds. A channel that holds reads its log no further, and still delivers what it has: what is finished
//! makes room.

use super::engine::Engine;
use super::partitions::ChannelKey;
use crate::base::Now;
use std::time::Duration;

/// A single channel gets eight ninths of the memory.
const SHARE: usize = 8;
/// Between two lines of the log about one channel.
const TOLD_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct OpenMemory {
    used: usize,
    /// Channels that hold, each once.
    holding: Vec<ChannelKey>,
    /// Bytes in use when the last of them began to hold, or was woken.
    mark: usize,
}

impl OpenMemory {
    #[cfg(test)]
    pub fn used_bytes(&self) -> usize {
        self.used
    }

    /// What a channel may take that takes `own` now.
    fn room(&self, bytes_max: usize, own: usize) -> usize {
        bytes_max.saturating_sub(self.used - own) / (SHARE + 1) * SHARE
    }
}

impl Engine {
    /// Gives a channel its memory limit, before its turn.
    pub fn give_room(&mut self, key: ChannelKey) {
        let bytes_max = usize::try_from(self.settings.channel_memory).unwrap_or(usize::MAX);
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.set_room(self.open_memory.room(bytes_max, c.open_bytes));
    }

    /// Counts a channel's open messages, after its turn or after they were dropped.
    pub fn count_open(&mut self, key: ChannelKey) {
        let end = self.partitions.get(key.partition_idx()).flows_to();
        let Some(c) = self.partitions.channel_mut(key) else { return };
        let memory = &mut self.open_memory;
        let own = c.machine.open_bytes();
        memory.used = memory.used - c.open_bytes + own;
        c.open_bytes = own;
        if !c.machine.is_full(end) {
            return;
        }
        memory.mark = memory.used;
        if !memory.holding.contains(&key) {
            memory.holding.push(key);
        }
    }

    /// The log's line about a channel that holds, at most once in [`TOLD_EVERY`].
    pub fn tell_held(&mut self, now: Now, key: ChannelKey) {
        let end = self.partitions.get(key.partition_idx()).flows_to();
        let Some(c) = self.partitions.channel_mut(key).filter(|c| c.machine.is_full(end)) else { return };
        if c.tell_full_at <= now.ticks {
            c.tell_full_at = now.ticks + TOLD_EVERY;
            let own = c.open_bytes;
            let p = self.partitions.get(key.partition_idx());
            tracing::warn!(
                topic = %p.topic.name, partition = %p.dir.partition, channel = %p.channels[key.channel as usize].name,
                open_bytes = own, channel_memory = self.settings.channel_memory,
                "unfinished messages take all memory that the channel may have: it reads no further until some are finished; \
                 finish them, or raise channel-memory"
            );
        }
    }

    /// The channel is gone.
    pub fn uncount_open(&mut self, key: ChannelKey, open_bytes: usize) {
        self.open_memory.used -= open_bytes;
        self.open_memory.holding.retain(|k| *k != key);
    }

    /// Memory became free: channels that hold look whether they may go on.
    pub fn wake_holding(&mut self) {
        let memory = &mut self.open_memory;
        if memory.used < memory.mark && !memory.holding.is_empty() {
            memory.mark = memory.used;
            for key in std::mem::take(&mut memory.holding) {
                self.wake_channel(key);
            }
        }
    }
}
