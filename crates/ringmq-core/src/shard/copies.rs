//! Copies that channels want of messages whose time is far off: appended like a publish, and reported to the channel once they are
//! committed.

use super::engine::{Attempt, Engine};
use super::partitions::{ChannelKey, ChannelState, Publisher};
use super::timers::Timer;
use crate::base::{LogId, Now, Position};
use crate::channel::{Copy, ForwardPolicy, Source};
use crate::config::Settings;
use crate::format::batch::CopyOf;
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
pub struct Wanted {
    /// Each with its number.
    copies: Vec<(u64, Copy)>,
    /// The channel wants more, which the turn has no room for.
    has_more: bool,
}

impl Copies {
    pub fn new(settings: &Settings) -> Copies {
        let after = Duration::from_millis(settings.forward_deferred_after_ms);
        Copies { forward: ForwardPolicy { held_bytes: settings.max_bytes_per_file, after }, last_number: 0, outcomes: vec![] }
    }

    /// The next copies that a channel wants, each with its number. `end`: of what the channel may read.
    pub fn wanted(&mut self, c: &mut ChannelState, now: Now, end: Position, source: &mut impl Source) -> Wanted {
        let (mut copies, mut bytes) = (vec![], 0);
        if c.copies_at > now.ticks {
            return Wanted { copies, has_more: false };
        }
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

    pub fn note(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }
}

impl Engine {
    pub fn append_copies(&mut self, now: Now, key: ChannelKey, wanted: Wanted) {
        let mut is_refused = false;
        for (number, copy) in wanted.copies {
            is_refused = is_refused || !self.append_copy(now, key, number, &copy);
            if is_refused {
                self.copies.note(Outcome { key, id: copy.log_id, number, is_committed: false });
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
        matches!(attempt, Attempt::Accepted)
    }

    /// Reports to the channels what came of their copies.
    pub fn settle_copies(&mut self, now: Now) {
        for Outcome { key, id, number, is_committed } in std::mem::take(&mut self.copies.outcomes) {
            let Some(c) = self.partitions.channel_mut(key) else { continue };
            c.machine.copied(id, number, is_committed);
            if c.machine.is_dirty() {
                self.mark_dirty(now, key);
                // What stands first now may be worth a copy, too.
                self.wake_channel(key);
            }
            self.open_memory.count(&mut self.partitions, key);
        }
    }
}
