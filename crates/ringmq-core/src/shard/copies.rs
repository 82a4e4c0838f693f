//! Copies that channels want of messages whose time is far off: appended like a publish, and reported to the channel once they are
//! committed.

use super::engine::{Attempt, Engine};
use super::partitions::{ChannelKey, ChannelState, Publisher};
use super::timers::Timer;
use crate::base::{LogId, Now, Position};
use crate::channel::{Copy, ForwardPolicy, Source};
use crate::config::Settings;
use crate::format::batch::CopyOf;
use crate::log::PartitionIdx;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// Most copies that one turn of a channel makes.
const TURN_COPIES_MAX: usize = 64;
/// Bytes of bodies after which a turn of a channel makes no further copy.
const TURN_BYTES_MAX: usize = 1 << 20;
/// Pause after a refusal: a full disk, memory that is full, no leadership.
const RETRY: Duration = Duration::from_secs(1);

/// Copies of this core: their numbers, and outcomes that the channels have not heard of.
pub struct Copies {
    forward: ForwardPolicy,
    last_number: u64,
    outcomes: Vec<Outcome>,
    /// Number of each channel's copies that are appended and not settled. An operator's change waits for them: a copy that is committed
    /// behind the end to which a channel is moved would come, and so would one that a new channel of the name finds.
    under_way: HashMap<ChannelKey, u32>,
}

/// Outcome of the copy of a message.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub key: ChannelKey,
    /// Id of the original.
    pub id: LogId,
    /// Number of the copy.
    pub number: u64,
    pub is_committed: bool,
}

/// Copies that a channel gets in one turn.
#[derive(Default)]
pub struct Wanted {
    /// Each with its number.
    copies: Vec<(u64, Copy)>,
    /// The channel wants more, which the turn has no room for.
    has_more: bool,
}

impl Copies {
    pub fn new(settings: &Settings) -> Copies {
        let after = Duration::from_millis(settings.forward_deferred_after_ms);
        let forward = ForwardPolicy { held_bytes: settings.max_bytes_per_file, after };
        Copies { forward, last_number: 0, outcomes: vec![], under_way: HashMap::new() }
    }

    /// The next copies that a channel wants, each with its number. `end`: of what the channel may read.
    pub fn wanted(&mut self, c: &mut ChannelState, now: Now, end: Position, source: &mut impl Source) -> Wanted {
        if c.copies_at > now.ticks || c.machine.is_syncing() {
            return Wanted::default();
        }
        let (mut copies, mut bytes) = (vec![], 0);
        c.machine.look_forward(now.ticks, end, self.forward, source);
        while c.machine.wants_copies() {
            if copies.len() == TURN_COPIES_MAX || bytes >= TURN_BYTES_MAX {
                return Wanted { copies, has_more: true };
            }
            self.last_number += 1;
            let Some(copy) = c.machine.next_copy(now.ticks, self.last_number, source) else { break };
            bytes += copy.body.len();
            copies.push((self.last_number, copy));
        }
        Wanted { copies, has_more: false }
    }

    /// Outcome of a copy that was appended.
    pub fn note(&mut self, outcome: Outcome) {
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

impl Engine {
    pub fn append_copies(&mut self, now: Now, key: ChannelKey, wanted: Wanted) {
        let mut is_refused = false;
        for (number, copy) in wanted.copies {
            is_refused = is_refused || !self.append_copy(now, key, number, &copy);
            if is_refused {
                self.copies.outcomes.push(Outcome { key, id: copy.log_id, number, is_committed: false });
            }
        }
        if is_refused {
            let at = now.ticks + RETRY;
            if let Some(c) = self.partitions.channel_mut(key) {
                c.copies_at = at;
            }
            self.timers.at_most(Timer::Channel(key), Some(at));
        } else if wanted.has_more {
            self.wake_channel(key);
        }
    }

    /// False: refused for now.
    fn append_copy(&mut self, now: Now, key: ChannelKey, number: u64, copy: &Copy) -> bool {
        let idx = key.partition_idx();
        let Some(c) = self.partitions.channel_mut(key) else { return true };
        let name = c.name.clone();
        let publisher = Publisher::Copy(key, copy.log_id, number);
        let &Copy { first_id: log_id, unix_ns, attempts, due_unix_ns, ref body, .. } = copy;
        let attempt = self.append_as(now, idx, publisher, body.len(), |e| {
            let copy_of = CopyOf { log_id, unix_ns, attempts, channel: name.as_str() };
            e.store.append_copy(now, idx, copy_of, due_unix_ns, body, e.outbox.io())
        });
        let is_accepted = matches!(attempt, Attempt::Accepted);
        if is_accepted {
            *self.copies.under_way.entry(key).or_default() += 1;
        }
        is_accepted
    }

    /// Whether an operator waits for a change of the channel. No further copy of its messages begins meanwhile.
    pub(super) fn is_change_waiting(&self, key: ChannelKey) -> bool {
        let p = self.partitions.get(key.partition_idx());
        let name = p.channels.get(key.channel as usize).map(|c| &c.name);
        self.operators.offsets.is_waiting(key) || self.operators.is_waiting(&p.dir, name)
    }

    /// Reports to the channels what came of their copies.
    pub fn settle_copies(&mut self, now: Now) {
        let outcomes = std::mem::take(&mut self.copies.outcomes);
        for &Outcome { key, id, number, is_committed } in &outcomes {
            let Some(c) = self.partitions.channel_mut(key) else { continue };
            c.machine.copied(id, number, is_committed);
            if c.machine.is_dirty() {
                self.mark_dirty(now, key);
                // What stands first now may be worth a copy, too.
                self.wake_channel(key);
            }
            self.open_memory.count(&mut self.partitions, key);
        }
        for key in outcomes.iter().map(|o| o.key).filter(|key| !self.copies.is_under_way(*key)).collect::<Vec<_>>() {
            self.go_on_setting(now, key);
        }
        if !outcomes.is_empty() {
            self.go_on_operating(now);
            self.go_on_emptying();
        }
    }
}
