//! Copies of deferred messages at the end of the log, so that they do not keep finished messages on the disk.
//!
//! A deferred message keeps its segment on the disk, and every segment behind it: the log is freed from its front. So a message that is
//! due in a month would keep a month of traffic. When the channel has read more than a segment behind such a message, it copies the
//! message to the end of the log, like a far-off retry (`copies`), and confirms the original once the copy is committed.
//!
//! Deliveries pay for copies: a byte of copies for [`COST`] delivered bytes. So in a log of mostly deferred messages, where a copy frees
//! next to nothing, little is copied. The log that a channel keeps is some [`COST`] times its deferred messages, and a segment.

use super::Source;
use super::backlog::Backlog;
use super::copies::Copies;
use super::deliver::find;
use super::open::{Open, OpenState};
use crate::base::{LogId, Ticks};
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

    /// Whether an entry is copied forward: no client has had it, it is deferred, and so much is read behind it.
    fn is_worth_a_copy(&self, open: &Open, read_to: i64, policy: ForwardPolicy) -> bool {
        let held_bytes = (read_to - open.offset) as u64;
        let is_unread = open.state == OpenState::Deferred && open.attempts == 0;
        is_unread && held_bytes > policy.held_bytes && self.allowance > 0
    }
}

impl Copies {
    /// Wants copies of the first open messages, if they are deferred and hold back enough of the log, which is read up to the offset
    /// `read_to`.
    pub(super) fn look_forward(
        &mut self,
        backlog: &mut Backlog,
        read_to: i64,
        now: Ticks,
        policy: ForwardPolicy,
        source: &mut impl Source,
    ) {
        let mut next = backlog.open().lowest_key().filter(|&key| backlog.get(key).id > self.forward.until);
        for _ in 0..ROUND {
            let Some(key) = next.filter(|&key| self.forward.is_worth_a_copy(backlog.get(key), read_to, policy)) else { return };
            // The entry may go on in other batches.
            let first = backlog.get(key).first();
            let batch = match source.fetch(first.offset) {
                Fetch::Batch(batch) => batch,
                Fetch::Pending | Fetch::Held | Fetch::End => return,
                // Found again, and reported, when it is due.
                Fetch::Lost { .. } | Fetch::Below { .. } => return self.forward.until = first.id,
            };
            self.forward.until = first.id;
            let Some(found) = find(&batch, &first) else { return };
            let wait_ns = found.message.due_unix_ns.map_or(0, |due| due.saturating_sub(source.unix_ns()).max(0));
            let wait = Duration::from_nanos(wait_ns.unsigned_abs());
            if wait <= policy.after {
                return;
            }
            let taken = backlog.split_deferred(key, &batch, (found.at, found.behind), (now, now + wait));
            self.want(first.id, taken, now + wait);
            self.forward.allowance -= (found.behind - found.at) as i64;
            next = backlog.open().higher(taken);
        }
    }
}
