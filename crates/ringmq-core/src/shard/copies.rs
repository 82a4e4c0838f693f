//! Copies that channels want of messages whose retry is far off: appended like a publish, and reported to the channel once they are
//! committed.

use super::engine::{Attempt, Engine};
use super::partitions::{ChannelKey, ChannelState, Publisher};
use super::timers::Timer;
use crate::base::{LogId, Now};
use crate::channel::{Copy, Source};
use crate::format::batch::CopyOf;
use std::time::Duration;

/// Most copies that one turn of a channel makes.
const TURN_COPIES_MAX: usize = 64;
/// Pause after a refusal: a full disk, memory that is full, no leadership.
const RETRY: Duration = Duration::from_secs(1);

/// Copies of this core: their numbers, and outcomes that the channels have not heard of.
#[derive(Default)]
pub struct Copies {
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

impl Copies {
    /// The next copies that a channel wants, each with its number.
    pub fn wanted(&mut self, c: &mut ChannelState, now: Now, source: &mut impl Source) -> Vec<(u64, Copy)> {
        let mut copies = vec![];
        while copies.len() < TURN_COPIES_MAX && c.copies_at <= now.ticks && c.machine.wants_copies() {
            self.last_number += 1;
            let Some(copy) = c.machine.next_copy(now.ticks, self.last_number, source) else { break };
            copies.push((self.last_number, copy));
        }
        copies
    }

    pub fn note(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }
}

impl Engine {
    pub fn append_copies(&mut self, now: Now, key: ChannelKey, copies: Vec<(u64, Copy)>) {
        let (is_full_turn, mut is_refused) = (copies.len() == TURN_COPIES_MAX, false);
        for (number, copy) in copies {
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
        } else if is_full_turn {
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
            }
            self.count_open(key);
        }
    }
}
