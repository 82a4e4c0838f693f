//! Retries that are far off, as copies in the log: a copy outlives the process, and pins no segment.
//!
//! A message that its client requeues for longer than the client's message timeout is appended to the log again, as a *copy*: with the
//! due time, the channel, the first id, the first timestamp and the attempts. The message waits in memory meanwhile, as after any REQ.
//! Once the copy is committed the original is confirmed. The channel meets the copy when it reads on, puts it off like any message
//! that is not due, and hands it out under the first id. Other channels pass it.
//!
//! While no copy can be made (a full disk, no leadership) the message waits in memory, and the copy is tried again. A message that falls
//! due before its copy is committed goes out from memory; the copy may come too. The same holds after a crash between the two: at least
//! once, as always.
//!
//! A deferred message that holds back much finished log is copied, too: `forward`.

use super::Source;
use super::backlog::Backlog;
use super::deliver::find;
use super::flights::Flights;
use super::forward::Forward;
use crate::base::{LogId, Ticks};
use crate::format::batch::{CopyOf, Message};
use crate::log::fetch::Fetch;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A copy that is to be appended.
#[derive(Debug)]
pub struct Copy {
    /// Id of the message that is confirmed once the copy is committed.
    pub log_id: LogId,
    pub due_unix_ns: i64,
    /// Id by which clients know the message. `unix_ns` and `attempts` are its timestamp and its deliveries so far.
    pub first_id: LogId,
    pub unix_ns: i64,
    pub attempts: u16,
    pub body: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Deferred entries that are to be copied, or whose copy is under way.
    by_id: BTreeMap<LogId, Copying>,
    /// Ids in `by_id` whose copy is not under way.
    wanted: BTreeSet<LogId>,
    /// Own ids of copies that went out, by the id that clients know. Pruned now and then.
    shown: BTreeMap<LogId, LogId>,
    pub(super) forward: Forward,
}

#[derive(Clone, Copy, Debug)]
struct Copying {
    key: u32,
    /// Due time of a message that was delivered before. A message that was never delivered carries its due time itself.
    due: Ticks,
    /// Name of the copy that is under way.
    number: u64,
}

/// Length of `shown` up to which it is not pruned.
const SHOWN_KEPT: usize = 1024;

impl Copies {
    /// The entry is deferred; `due` tells when clients that had it get it again.
    pub(super) fn want(&mut self, id: LogId, key: u32, due: Ticks) {
        self.by_id.insert(id, Copying { key, due, number: 0 });
        self.wanted.insert(id);
    }

    /// The message is due: a copy comes too late.
    pub(super) fn forget(&mut self, id: LogId) {
        if !self.by_id.is_empty() && self.by_id.remove(&id).is_some() {
            self.wanted.remove(&id);
        }
    }

    /// Own id of the copy that went out under `shown`.
    pub(super) fn own_id(&self, shown: LogId) -> Option<LogId> {
        self.shown.get(&shown).copied()
    }

    /// A copy is wanted that is not under way.
    pub(super) fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The next message that is to be copied; its copy is under way from now on. `number` names the attempt. `None`: there is none, or it
    /// cannot be read yet.
    pub(super) fn next(&mut self, backlog: &Backlog, now: Ticks, number: u64, source: &mut impl Source) -> Option<Copy> {
        while let Some(&id) = self.wanted.first() {
            let copying = self.by_id.get_mut(&id).expect("a copy is wanted of deferred entries alone");
            let open = *backlog.get(copying.key);
            let batch = match source.fetch(open.offset) {
                Fetch::Batch(batch) => Some(batch),
                Fetch::Pending | Fetch::Held | Fetch::End => return None,
                Fetch::Lost { .. } | Fetch::Below { .. } => None,
            };
            let Some((batch, found)) = batch.as_ref().and_then(|batch| Some((batch, find(batch, &open)?))) else {
                // Found again, and reported, when it is due.
                self.forget(id);
                continue;
            };
            copying.number = number;
            let due_unix_ns = found.message.due_unix_ns.filter(|_| open.attempts == 0).unwrap_or_else(|| {
                let wait_ns = copying.due.0.saturating_sub(now.0);
                source.unix_ns().saturating_add_unsigned(wait_ns)
            });
            self.wanted.remove(&id);
            let (message, attempts) = known_as(&found.message, open.attempts);
            return Some(Copy {
                log_id: id,
                due_unix_ns,
                first_id: message.log_id,
                unix_ns: message.unix_ns,
                attempts,
                body: batch.bytes.slice_ref(message.body),
            });
        }
        None
    }

    /// Outcome of a copy. Returns the original's entry once the copy is committed; otherwise the copy is wanted still.
    pub(super) fn settle(&mut self, id: LogId, number: u64, is_committed: bool) -> Option<u32> {
        let is_it = |c: &&Copying| c.number == number;
        let &Copying { key, .. } = self.by_id.get(&id).filter(is_it)?;
        if !is_committed {
            self.wanted.insert(id);
            return None;
        }
        self.by_id.remove(&id);
        Some(key)
    }

    /// A copy goes out, and its client will name it by its first id.
    pub(super) fn show(&mut self, first_id: LogId, own: LogId, flights: &Flights, in_flight_count: u64) {
        if self.shown.len() >= SHOWN_KEPT && self.shown.len() as u64 > 2 * in_flight_count {
            self.shown.retain(|_, own| flights.find(*own).is_some());
        }
        self.shown.insert(first_id, own);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        // Nodes of a B-tree are two thirds full, and a bit more than their entries.
        2 * (self.by_id.len() * size_of::<(LogId, Copying)>() + self.wanted.len() * size_of::<LogId>())
    }
}

/// The message as clients know it, and the number of the delivery that is its `attempts`th from here.
pub(super) fn known_as<'a>(message: &Message<'a>, attempts: u16) -> (Message<'a>, u16) {
    match message.copy_of {
        None => (*message, attempts),
        Some(CopyOf { log_id, unix_ns, attempts: before, .. }) => {
            (Message { log_id, unix_ns, ..*message }, attempts.saturating_add(before))
        }
    }
}
