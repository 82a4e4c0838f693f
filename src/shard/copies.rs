//! Copies that channels want of messages that their clients put off for long: appended like a publish, and told to the channel
//! once they are committed.

use super::engine::{Attempt, Engine};
use super::partitions::{ChannelKey, ChannelState, Publisher};
use super::timers::Timer;
use crate::base::Now;
use crate::channel::{Copy, Source};
use crate::log::batch::CopyOf;
use std::time::Duration;

/// Copies that one turn of a channel makes.
const TURN_COPIES_MAX: usize = 64;
/// After a refusal (a full disk, no leadership) the channel tries again.
const RETRY: Duration = Duration::from_secs(1);

/// The next copies of a channel, each with its number.
pub fn wanted(c: &mut ChannelState, now: Now, next_number: &mut u64, source: &mut impl Source) -> Vec<(u64, Copy)> {
    let mut copies = vec![];
    while copies.len() < TURN_COPIES_MAX && c.machine.wants_copies() {
        *next_number += 1;
        let Some(copy) = c.machine.next_copy(now.ticks, *next_number, source) else { break };
        copies.push((*next_number, copy));
    }
    copies
}

impl Engine {
    pub fn append_copies(&mut self, now: Now, key: ChannelKey, copies: Vec<(u64, Copy)>) {
        let mut is_refused = false;
        for (number, copy) in copies {
            is_refused |= !self.append_copy(now, key, number, &copy);
            if is_refused {
                self.copied.push((key, copy.log_id, number, false));
            }
        }
        if is_refused {
            self.timers.at_most(Timer::Channel(key), Some(now.ticks + RETRY));
        } else if self.partitions.channel_mut(key).is_some_and(|c| c.machine.wants_copies()) {
            self.wake_channel(key);
        }
    }

    /// False: not now.
    fn append_copy(&mut self, now: Now, key: ChannelKey, number: u64, copy: &Copy) -> bool {
        let idx = key.partition_idx();
        let Some(c) = self.partitions.channel_mut(key) else { return true };
        let name = c.name.clone();
        let publisher = Publisher::Copy(key, copy.log_id, number);
        let &Copy { first_id: log_id, unix_ns, attempts, due_unix_ns, ref body, .. } = copy;
        let attempt = self.append_as(now, idx, publisher, body.len(), |e| {
            let copy_of = CopyOf { log_id, unix_ns, attempts, channel: name.as_str() };
            e.store.append_copy(now, idx, copy_of, due_unix_ns, body, &mut e.io)
        });
        matches!(attempt, Attempt::Accepted)
    }

    /// Tells the channels what came of their copies.
    pub fn settle_copies(&mut self, now: Now) {
        for (key, id, number, is_committed) in std::mem::take(&mut self.copied) {
            let Some(c) = self.partitions.channel_mut(key) else { continue };
            c.machine.copied(id, number, is_committed);
            if c.machine.is_dirty() {
                self.mark_dirty(now, key);
            }
            self.count_open(key);
        }
    }
}
