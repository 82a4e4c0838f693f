//! The open messages of a channel by state, and their numbers: in flight, waiting for a delivery, deferred. A new entry, or an entry
//! taken out of its list, is in no list: the next call puts it into one, or removes it.

use super::delayed::{SPAN_BYTES, STRETCH_MAX};
use super::open::{Deferred, List, Open, OpenSet, OpenState};
use crate::base::{LogId, Position, Ticks};
use crate::format::batch::{BATCH_HEADER_LEN, Batch};
use std::num::NonZeroU64;

/// The lists of waiting messages, in the order in which they go out.
pub(super) const REQUEUED: usize = 0;
pub(super) const DUE: usize = 1;

/// The entry that was put off last, and the millisecond at which it stands among the deferred ones.
#[derive(Clone, Copy, Debug)]
struct LastPutOff {
    key: u32,
    due_ms: NonZeroU64,
}

impl LastPutOff {
    /// `None` for a due time of zero, which is not worth a byte in each channel: the entry is not widened then.
    fn new(key: u32, due_ms: u64) -> Option<LastPutOff> {
        Some(LastPutOff { key, due_ms: NonZeroU64::new(due_ms)? })
    }
}

#[derive(Debug, Default)]
pub(super) struct Backlog {
    open: OpenSet,
    deferred: Deferred,
    /// Deferred entry that was never delivered, and that the next message may widen.
    last_put_off: Option<LastPutOff>,
    /// [`REQUEUED`] and [`DUE`].
    waiting: [List; 2],
    /// Messages of the entries in `waiting`, in clients' lists, and in `deferred`.
    waiting_count: u64,
    in_flight_count: u64,
    deferred_count: u64,
    /// Waiting messages that cannot be read, as far as known.
    held_count: u64,
}

impl Backlog {
    pub(super) fn open(&self) -> &OpenSet {
        &self.open
    }

    pub(super) fn into_open(self) -> OpenSet {
        self.open
    }

    pub(super) fn get(&self, key: u32) -> &Open {
        self.open.get(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn waiting_count(&self) -> u64 {
        self.waiting_count
    }

    pub(super) fn in_flight_count(&self) -> u64 {
        self.in_flight_count
    }

    pub(super) fn deferred_count(&self) -> u64 {
        self.deferred_count
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.open.allocated_bytes() + self.deferred.allocated_bytes()
    }

    /// Adds an entry behind all others. It is in no list.
    pub(super) fn push(&mut self, open: Open) -> u32 {
        self.open.push(open)
    }

    /// Removes an entry that is in no list.
    #[inline]
    pub(super) fn remove(&mut self, key: u32) -> Open {
        self.open.remove(key)
    }

    /// The entry, which is in no list, is finished once that is durable.
    pub(super) fn begin_finish(&mut self, key: u32) {
        self.open.get_mut(key).state = OpenState::Finishing;
    }

    #[cfg(test)]
    pub(super) fn set_attempts(&mut self, key: u32, attempts: u16) {
        self.open.get_mut(key).attempts = attempts;
    }

    // ---- waiting

    pub(super) fn first_waiting(&self, list: usize) -> Option<u32> {
        self.waiting[list].first()
    }

    /// An entry that is in no list is to be delivered again.
    pub(super) fn wait(&mut self, list: usize, key: u32) {
        let open = self.open.get_mut(key);
        open.state = OpenState::Waiting;
        self.waiting_count += open.num as u64;
        self.open.push_back(&mut self.waiting[list], key);
    }

    /// Removes a waiting entry.
    pub(super) fn remove_waiting(&mut self, list: usize, key: u32) -> Open {
        self.open.unlink(&mut self.waiting[list], key);
        let open = self.open.remove(key);
        self.waiting_count -= open.num as u64;
        self.hold(self.held_count);
        open
    }

    /// So many of the waiting messages, at most all, cannot be read.
    pub(super) fn hold(&mut self, num: u64) {
        self.held_count = num.min(self.waiting_count);
    }

    /// A waiting message can be read, as far as known.
    pub(super) fn has_readable(&self) -> bool {
        self.waiting_count > self.held_count
    }

    /// Takes `num` messages out of a waiting list, from the entry `key` on, as one entry that is in no list: they lie side by side in a
    /// batch, and stand at `at` to `end` there. Also says where the list goes on.
    pub(super) fn take_waiting(&mut self, list: usize, key: u32, num: u16, (at, end): (usize, usize)) -> (u32, Option<u32>) {
        self.waiting_count -= num as u64;
        let head = self.open.get_mut(key);
        if head.num > num {
            (head.at, head.skip) = (at as u32, 0);
            let front = head.split_front(num);
            (head.at, head.skip) = (end as u32, 0);
            return (self.open.insert_before(key, front), Some(key));
        }
        let mut after = self.open.after(key);
        self.open.unlink(&mut self.waiting[list], key);
        let head = self.open.get(key);
        let (mut left, mut last_of) = (num - head.num, head.last_of);
        while left > 0 {
            let next = after.expect("what was joined is in the list");
            let open = self.open.get_mut(next);
            if open.num > left {
                open.split_front(left);
                (open.at, open.skip) = (end as u32, 0);
                last_of = 0;
                break;
            }
            (left, last_of) = (left - open.num, open.last_of);
            after = self.open.after(next);
            self.open.unlink(&mut self.waiting[list], next);
            self.open.remove(next);
        }
        let head = self.open.get_mut(key);
        (head.at, head.skip, head.num, head.last_of) = (at as u32, 0, num, last_of);
        (key, after)
    }

    /// Splits a waiting entry at `end`, where its first batch ends: the messages behind become an entry of their own, behind it in the
    /// list. Returns the entry of the messages before.
    pub(super) fn split_span(&mut self, list: usize, key: u32, end: Position) -> u32 {
        let open = self.open.get_mut(key);
        let is_beyond = open.id < end.log_id && end.log_id <= open.last() && open.offset < end.offset;
        if !is_beyond {
            return key;
        }
        let len = (end.offset - open.offset) as u32;
        let mut front = open.split_front((end.log_id.0 - open.id.0) as u16);
        front.last_of = len;
        (open.offset, open.at, open.skip, open.last_of) = (end.offset, BATCH_HEADER_LEN as u32, 0, open.last_of - len);
        let front = self.open.insert_before(key, front);
        self.open.list_before(&mut self.waiting[list], key, front);
        front
    }

    // ---- in flight

    /// An entry that is in no list goes to the client whose list this is.
    #[inline]
    pub(super) fn begin_flight(&mut self, client: &mut List, key: u32) {
        let open = self.open.get_mut(key);
        open.state = OpenState::InFlight;
        open.attempts = open.attempts.saturating_add(1);
        self.in_flight_count += open.num as u64;
        self.open.push_back(client, key);
    }

    /// Takes an entry out of its client's list; then it is in none.
    #[inline]
    pub(super) fn end_flight(&mut self, client: &mut List, key: u32) {
        self.open.unlink(client, key);
        self.in_flight_count -= self.open.get(key).num as u64;
    }

    /// Makes the first `num` messages of an entry in flight an entry of their own, before it in the client's list.
    pub(super) fn split_flight(&mut self, client: &mut List, key: u32, num: u16) -> u32 {
        let front = self.open.get_mut(key).split_front(num);
        let front = self.open.insert_before(key, front);
        self.open.list_before(client, key, front);
        front
    }

    // ---- deferred

    /// Time at which [`Backlog::pop_due`] next has something.
    pub(super) fn deadline(&self) -> Option<Ticks> {
        self.deferred.deadline()
    }

    /// All deferred entries with their due times.
    pub(super) fn deferred(&self) -> impl Iterator<Item = (u32, Ticks)> {
        self.deferred.iter(&self.open)
    }

    /// An entry that is in no list waits until it is due. Returns where it stands among the deferred ones.
    pub(super) fn defer(&mut self, key: u32, due: Ticks, now: Ticks) -> u64 {
        let open = self.open.get_mut(key);
        open.state = OpenState::Deferred;
        self.deferred_count += open.num as u64;
        self.deferred.insert(&mut self.open, now, due, key)
    }

    /// Defers an entry that was never delivered: the next message may widen it.
    pub(super) fn defer_unread(&mut self, key: u32, due: Ticks, now: Ticks) {
        let due_ms = self.defer(key, due, now);
        self.last_put_off = LastPutOff::new(key, due_ms);
    }

    /// Adds `stretch`, which is all of a batch, to the entry that was put off last, if that ends where it begins. False: it does not.
    pub(super) fn widen_last(&mut self, stretch: &Open, due: Ticks, now: Ticks) -> bool {
        let Some(LastPutOff { key, due_ms }) = self.last_put_off else { return false };
        let (last, due_ms) = (*self.open.get(key), due_ms.get());
        let is_whole = |open: &Open| open.at as usize == BATCH_HEADER_LEN && open.skip == 0 && open.last_of > 0;
        let bytes = stretch.offset + stretch.last_of as i64 - last.offset;
        let num = last.num as usize + stretch.num as usize;
        let is_next = is_whole(&last) && is_whole(stretch) && last.interval().end == stretch.start();
        if !is_next || bytes > SPAN_BYTES || num > STRETCH_MAX {
            return false;
        }
        let open = self.open.get_mut(key);
        (open.num, open.last_of) = (num as u16, bytes as u32);
        self.deferred_count += stretch.num as u64;
        if Deferred::place(now, due) < due_ms {
            self.deferred.remove(&mut self.open, key);
            let due_ms = self.deferred.insert(&mut self.open, now, due, key);
            self.last_put_off = LastPutOff::new(key, due_ms);
        }
        true
    }

    /// Moves an entry that is due to the waiting ones. Its first id.
    pub(super) fn pop_due(&mut self, now: Ticks) -> Option<LogId> {
        let key = self.deferred.pop_due(&mut self.open, now)?;
        self.close_last(key);
        let &Open { id, num, .. } = self.open.get(key);
        self.deferred_count -= num as u64;
        self.wait(DUE, key);
        Some(id)
    }

    /// Removes a deferred entry.
    pub(super) fn remove_deferred(&mut self, key: u32) -> Open {
        self.deferred.remove(&mut self.open, key);
        self.close_last(key);
        let open = self.open.remove(key);
        self.deferred_count -= open.num as u64;
        open
    }

    /// Takes the first message of a deferred entry out of it, as an entry that is deferred, too: the entry itself when it is all of it.
    /// The message stands at `at` to `behind` in `batch`.
    pub(super) fn split_deferred(
        &mut self,
        key: u32,
        batch: &Batch,
        (at, behind): (usize, usize),
        (now, due): (Ticks, Ticks),
    ) -> u32 {
        let open = self.open.get_mut(key);
        if open.num == 1 {
            (open.at, open.skip) = (at as u32, 0);
            // The messages read next do not become a part of the entry that is confirmed with the copy.
            self.close_last(key);
            return key;
        }
        let mut front = open.split_front(1);
        let end = batch.header.end();
        if open.id == end.log_id {
            let len = (end.offset - open.offset) as u32;
            front.last_of = len;
            (open.offset, open.at, open.skip, open.last_of) = (end.offset, BATCH_HEADER_LEN as u32, 0, open.last_of - len);
        } else {
            (open.at, open.skip) = (behind as u32, 0);
        }
        (front.at, front.skip) = (at as u32, 0);
        let front = self.open.insert_before(key, front);
        self.deferred.insert(&mut self.open, now, due, front);
        front
    }

    /// Keeps the message that is put off next from widening this entry.
    fn close_last(&mut self, key: u32) {
        self.last_put_off = self.last_put_off.filter(|last| last.key != key);
    }
}
