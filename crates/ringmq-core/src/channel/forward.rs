//! Copies of deferred messages at the end of the log, so that they do not keep finished messages on the disk.
//!
//! A deferred message keeps its segment on the disk, and every segment behind it: the log is freed from its front. So a message that is
//! due in a month would keep a month of traffic. When the channel has read more than a segment behind such a message, it copies the
//! message to the end of the log, like a far-off retry (`copies`), and confirms the original once the copy is committed.
//!
//! Deliveries pay for copies: a byte of copies for [`COST`] delivered bytes. So in a log of mostly deferred messages, where a copy frees
//! next to nothing, little is copied. The log that a channel keeps is some [`COST`] times its deferred messages, and a segment.

use super::Source;
use super::deliver::find;
use super::machine::Channel;
use super::open::OpenState;
use crate::base::{LogId, Position, Ticks};
use crate::log::fetch::Fetch;
use std::time::Duration;

/// Conditions under which a message is copied forward.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPolicy {
    /// Bytes of the log that a message holds back at least.
    pub held_bytes: u64,
    /// Shortest remaining delay of a message to copy: a message that is due earlier is finished soon anyway.
    pub after: Duration,
}

/// Bytes that clients get for each byte of copies.
const COST: i64 = 4;
/// Bytes of copies that a channel may make before it has handed out any, and most that it may save up.
const START: i64 = 1 << 20;
const SAVED_MAX: i64 = 64 << 20;
/// Messages that are copied at once. The next ones follow when all of these are confirmed.
const ROUND: usize = 128;

#[derive(Debug)]
pub(super) struct Forward {
    /// Bytes of copies that may be made. The last copy may take it below zero.
    allowance: i64,
    /// The last message that was looked at. While it is open no other one is: its copy is under way, or it is due too soon for one.
    until: LogId,
}

impl Default for Forward {
    fn default() -> Self {
        Forward { allowance: START, until: LogId(0) }
    }
}

impl Forward {
    /// Clients got so many bytes.
    pub(super) fn earn(&mut self, bytes: usize) {
        self.allowance = SAVED_MAX.min(self.allowance + bytes as i64 / COST);
    }
}

impl Channel {
    /// Wants copies of the first open messages, if they are deferred and hold back enough. `end`: of the log. A channel that is far
    /// behind the end, or reads no further before something is finished, would meet a copy too late.
    pub fn look_forward(&mut self, now: Ticks, end: Position, policy: ForwardPolicy, source: &mut impl Source) {
        let is_behind = end.offset - self.reading.next().offset > policy.held_bytes as i64;
        if is_behind || !self.may_read() || self.ordered || self.name().is_ephemeral() || self.is_syncing() {
            return;
        }
        let mut next = self.backlog.open().lowest_key().filter(|&key| self.backlog.get(key).id > self.copies.forward.until);
        for _ in 0..ROUND {
            let Some(key) = next.filter(|&key| self.is_worth_a_copy(key, policy)) else { return };
            // The entry may go on in other batches.
            let first = self.backlog.get(key).first();
            let batch = match source.fetch(first.offset) {
                Fetch::Batch(batch) => batch,
                Fetch::Pending | Fetch::Held | Fetch::End => return,
                // Found again, and reported, when it is due.
                Fetch::Lost { .. } | Fetch::Below { .. } => return self.copies.forward.until = first.id,
            };
            self.copies.forward.until = first.id;
            let Some(found) = find(&batch, &first) else { return };
            let wait_ns = found.message.due_unix_ns.map_or(0, |due| due.saturating_sub(source.unix_ns()).max(0));
            let wait = Duration::from_nanos(wait_ns.unsigned_abs());
            if wait <= policy.after {
                return;
            }
            let taken = self.backlog.split_deferred(key, &batch, (found.at, found.behind), (now, now + wait));
            self.copies.want(first.id, taken, now + wait);
            self.copies.forward.allowance -= (found.behind - found.at) as i64;
            next = self.backlog.open().higher(taken);
        }
    }

    /// Whether an entry is copied forward: no client has had it, it is deferred, and so much is read behind it.
    fn is_worth_a_copy(&self, key: u32, policy: ForwardPolicy) -> bool {
        let open = self.backlog.get(key);
        let held_bytes = (self.reading.next().offset - open.offset) as u64;
        let is_unread = open.state == OpenState::Deferred && open.attempts == 0;
        is_unread && held_bytes > policy.held_bytes && self.copies.forward.allowance > 0
    }
}
