//! Copies of messages that a client put off for long: what is in the log does not go with the process, nor comes early after it.
//!
//! A message that is requeued for longer than its client's message timeout is appended to the log again, with the due time, the
//! channel and the first id. It waits in memory meanwhile, as after any REQ. Once the copy is committed the original is confirmed;
//! the channel meets the copy when it reads on, puts it off like any message that is not due, and hands it out under the first
//! id. Other channels pass it. When no copy can be made (a full disk), the message goes on waiting in memory, and it is tried again.
//!
//! After a crash between the two the message is there twice: it may come at once, and again when the copy is due.

use super::Source;
use super::deliver::find;
use super::machine::Channel;
use super::open::State;
use crate::base::{LogId, Ticks};
use crate::log::batch::{CopyOf, Message};
use crate::log::fetch::Fetch;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// What is to be appended.
#[derive(Debug)]
pub struct Copy {
    /// Of the message that is confirmed once the copy is committed.
    pub log_id: LogId,
    pub due_unix_ns: i64,
    /// What the clients know of the message: its id, its time, and the deliveries so far.
    pub first_id: LogId,
    pub unix_ns: i64,
    pub attempts: u16,
    pub body: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Deferred entries that are to be copied, or of which the copy is under way.
    by_id: BTreeMap<LogId, Copying>,
    wanted: BTreeSet<LogId>,
    /// Own ids of copies that clients know by another one. Pruned now and then.
    shown: BTreeMap<LogId, LogId>,
}

#[derive(Clone, Copy, Debug)]
struct Copying {
    key: u32,
    due: Ticks,
    /// Where it stands among what is deferred.
    due_ms: u64,
    /// Names the copy that is under way.
    number: u64,
}

/// Ids in `shown` that are not looked through.
const SHOWN_KEPT: usize = 1024;

impl Copies {
    pub(super) fn want(&mut self, id: LogId, key: u32, due: Ticks, due_ms: u64) {
        self.by_id.insert(id, Copying { key, due, due_ms, number: 0 });
        self.wanted.insert(id);
    }

    /// It is due: a copy comes too late.
    pub(super) fn forget(&mut self, id: LogId) {
        if !self.by_id.is_empty() && self.by_id.remove(&id).is_some() {
            self.wanted.remove(&id);
        }
    }
}

impl Channel {
    pub fn wants_copies(&self) -> bool {
        !self.copies.wanted.is_empty()
    }

    /// The next message that is to be copied; the caller appends the copy and says what came of it by [`Channel::copied`]. `number`
    /// names the attempt. `None`: there is none, or it cannot be read yet.
    pub fn next_copy(&mut self, now: Ticks, number: u64, source: &mut impl Source) -> Option<Copy> {
        let &id = self.copies.wanted.first()?;
        let copying = self.copies.by_id.get_mut(&id).expect("what is wanted is deferred");
        let open = *self.open.get(copying.key);
        let batch = match source.fetch(open.offset) {
            Fetch::Batch(batch) => batch,
            Fetch::Pending | Fetch::Held | Fetch::End => return None,
            Fetch::Lost { .. } | Fetch::Below { .. } => {
                // Found out again, and reported, when it is due.
                self.copies.forget(id);
                return None;
            }
        };
        let Some(found) = find(&batch, &open) else {
            self.copies.forget(id);
            return None;
        };
        copying.number = number;
        self.copies.wanted.remove(&id);
        let wait_ns = copying.due.0.saturating_sub(now.0);
        let (message, attempts) = known_as(&found.message, open.attempts);
        Some(Copy {
            log_id: id,
            due_unix_ns: source.unix_ns().saturating_add_unsigned(wait_ns),
            first_id: message.log_id,
            unix_ns: message.unix_ns,
            attempts,
            body: batch.bytes.slice_ref(message.body),
        })
    }

    /// What came of a copy. When it is committed the message that it is of is confirmed; else it is wanted still.
    pub fn copied(&mut self, id: LogId, number: u64, is_committed: bool) {
        let is_it = |c: &&Copying| c.number == number;
        let Some(&Copying { key, due_ms, .. }) = self.copies.by_id.get(&id).filter(is_it) else { return };
        if !is_committed {
            self.copies.wanted.insert(id);
            return;
        }
        self.copies.by_id.remove(&id);
        assert!(self.open.get(key).state == State::Deferred, "what falls due is forgotten here");
        self.deferred.remove(&mut self.open, due_ms, key);
        self.deferred_count -= self.open.get(key).num as u64;
        let interval = self.open.remove(key).interval();
        self.confirm(interval);
    }

    /// A copy goes out, and the client will name it by its first id.
    pub(super) fn shows(&mut self, first_id: LogId, own: LogId) {
        if self.copies.shown.len() >= SHOWN_KEPT && self.copies.shown.len() as u64 > 2 * self.in_flight_count {
            let flights = &self.flights;
            self.copies.shown.retain(|_, own| flights.find(*own).is_some());
        }
        self.copies.shown.insert(first_id, own);
    }

    /// The own id of a copy that went out under this one.
    pub(super) fn own_id(&self, shown: LogId) -> Option<LogId> {
        self.copies.shown.get(&shown).copied()
    }
}

/// The message as clients know it, and how many deliveries it had when it was delivered `attempts` times from here.
pub(super) fn known_as<'a>(message: &Message<'a>, attempts: u16) -> (Message<'a>, u16) {
    match message.copy_of {
        None => (*message, attempts),
        Some(CopyOf { log_id, unix_ns, attempts: before, .. }) => {
            (Message { log_id, unix_ns, ..*message }, attempts.saturating_add(before))
        }
    }
}
