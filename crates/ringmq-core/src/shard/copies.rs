//! Copies that channels want of messages whose time is far off: the engine appends them like a publish, and the channel hears of each once
//! it is committed.

use super::partitions::{ChannelKey, ChannelState};
use crate::base::{LogId, Now, Position};
use crate::channel::{Copy, ForwardPolicy, Source};
use crate::config::Settings;
use crate::log::PartitionIdx;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// Most copies that one turn of a channel makes.
const TURN_COPIES_MAX: usize = 64;
/// Bytes of bodies after which a turn of a channel makes no further copy.
const TURN_BYTES_MAX: usize = 1 << 20;
/// Pause after a refusal: a full disk, memory that is full, no leadership.
pub const RETRY: Duration = Duration::from_secs(1);

/// Copies of this core: their numbers, and outcomes that the channels have not heard of.
pub struct Copies {
    forward: ForwardPolicy,
    last_number: u64,
    outcomes: Vec<CopyOutcome>,
    /// Number of each channel's copies that are appended and not settled. An operator's change waits for them: a copy that is committed
    /// behind the end to which a channel is moved would come, and so would one that a new channel of the name finds.
    under_way: HashMap<ChannelKey, u32>,
}

/// Outcome of the copy of a message.
#[derive(Clone, Copy, Debug)]
pub struct CopyOutcome {
    pub key: ChannelKey,
    /// Id of the original.
    pub id: LogId,
    /// Number of the copy.
    pub number: u64,
    pub is_committed: bool,
}

/// Copies that a channel gets in one turn.
#[derive(Default)]
pub struct CopiesToAppend {
    /// Copies, each with its number.
    pub copies: Vec<(u64, Copy)>,
    /// The channel wants more, which the turn has no room for.
    pub has_more: bool,
}

impl Copies {
    pub fn new(settings: &Settings) -> Copies {
        let after = Duration::from_millis(settings.forward_deferred_after_ms);
        let forward = ForwardPolicy { held_bytes: settings.max_bytes_per_file, after };
        Copies { forward, last_number: 0, outcomes: vec![], under_way: HashMap::new() }
    }

    /// The next copies that a channel wants, each with its number. `end`: end of the log that the channel may read.
    pub fn wanted(&mut self, c: &mut ChannelState, now: Now, end: Position, source: &mut impl Source) -> CopiesToAppend {
        if c.copies_at > now.ticks || c.machine.is_syncing() {
            return CopiesToAppend::default();
        }
        let (mut copies, mut bytes) = (vec![], 0);
        c.machine.look_forward(now.ticks, end, self.forward, source);
        while c.machine.wants_copies() {
            if copies.len() == TURN_COPIES_MAX || bytes >= TURN_BYTES_MAX {
                return CopiesToAppend { copies, has_more: true };
            }
            self.last_number += 1;
            let Some(copy) = c.machine.next_copy(now.ticks, self.last_number, source) else { break };
            bytes += copy.body.len();
            copies.push((self.last_number, copy));
        }
        CopiesToAppend { copies, has_more: false }
    }

    /// The copy was appended.
    pub fn begin(&mut self, key: ChannelKey) {
        *self.under_way.entry(key).or_default() += 1;
    }

    /// The copy was not appended.
    pub fn refuse(&mut self, key: ChannelKey, id: LogId, number: u64) {
        self.outcomes.push(CopyOutcome { key, id, number, is_committed: false });
    }

    pub fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// Outcomes that the channels are to hear.
    pub fn take_outcomes(&mut self) -> Vec<CopyOutcome> {
        std::mem::take(&mut self.outcomes)
    }

    /// Outcome of a copy that was appended.
    pub fn note(&mut self, outcome: CopyOutcome) {
        if let Entry::Occupied(mut entry) = self.under_way.entry(outcome.key) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        self.outcomes.push(outcome);
    }

    pub fn is_under_way(&self, key: ChannelKey) -> bool {
        self.under_way.contains_key(&key)
    }

    /// Whether a copy of any channel of the partition is.
    pub fn is_any_under_way(&self, idx: PartitionIdx) -> bool {
        self.under_way.keys().any(|key| key.partition_idx() == idx)
    }
}
