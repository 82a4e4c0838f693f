//! Ordered channels, and changes of a cursor that somebody waits for.
//!
//! ```text
//! ordered:  in flight (one) --FIN--> finishing --settled--> confirmed, then the next one
//!                 |  ^                  \--taken back--> waiting
//!      REQ, timeout, client gone
//!                 v  |
//!               waiting         nothing is read on while anything is open
//!
//! moved:    what is open is dropped, the cursor stands elsewhere; settled: it is read from there
//!                                                             taken back: from where it stood
//! ```
//! What is not settled is in [`Channel::image`], since the journal has it, but retention spares what a change that is
//! taken back needs again. A cursor that goes back, or elsewhere, does so under a higher generation, which ends all that
//! was journaled before.

use super::confirmed::{Confirmed, Finished};
use super::machine::{Channel, REQUEUED};
use super::open::{List, OpenSet, State};
use crate::base::{LogId, Position, SubId, TimerId, Wheel};
use crate::log::cursor::Interval;

/// A change that waits until it is durable. Nothing is handed out meanwhile.
#[derive(Debug, Default)]
pub(super) enum Syncing {
    #[default]
    No,
    /// The message of an ordered channel that was finished: its entry.
    Finish(u32),
    /// The cursor was moved; where it stood.
    Move(Confirmed),
    /// The channel goes.
    Delete,
}

impl Channel {
    /// One message is in flight at a time, and none is delivered before its predecessor is finished, durably.
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// A change is not settled.
    pub fn is_syncing(&self) -> bool {
        !matches!(self.syncing, Syncing::No)
    }

    /// Nothing may be handed out, whoever has credit.
    pub(super) fn is_held(&self) -> bool {
        self.is_syncing() || self.ordered && self.in_flight_count + self.deferred_count > 0
    }

    /// What the FIN that is not settled confirms: for the journal.
    pub fn finishing(&self) -> Option<Interval> {
        match self.syncing {
            Syncing::Finish(key) => Some(self.open.get(key).interval()),
            _ => None,
        }
    }

    pub fn has_in_flight(&self, sub: SubId, id: LogId) -> bool {
        self.find_in_flight(sub, id).is_some()
    }

    /// The entry, which is in no list, was finished by its client.
    pub(super) fn begin_finish(&mut self, key: u32) {
        assert!(!self.is_syncing(), "nothing is in flight while a change is not settled");
        let open = self.open.get_mut(key);
        (open.state, open.timer) = (State::Finishing, TimerId::NONE);
        self.syncing = Syncing::Finish(key);
    }

    /// From here on the channel is ordered, or is not. What is open then is dropped and delivered again; `dropped` is told
    /// whose messages in flight, and how many.
    pub fn set_ordered(&mut self, ordered: bool, dropped: &mut impl FnMut(SubId, u32)) {
        assert!(!self.is_syncing() || self.open.is_empty(), "a FIN is settled first");
        if self.ordered != ordered {
            self.ordered = ordered;
            self.drop_open(dropped);
            self.read_from_confirmed();
        }
    }

    /// Everything before `to` is confirmed and nothing after it, under a higher generation; [`Channel::settle`] follows.
    /// What is in flight, waits or is deferred is dropped, as in [`Channel::set_ordered`].
    pub fn move_to(&mut self, to: Position, dropped: &mut impl FnMut(SubId, u32)) {
        assert!(!self.is_syncing(), "one change at a time");
        self.drop_open(dropped);
        let before = std::mem::replace(&mut self.confirmed, Confirmed::new(to));
        self.syncing = Syncing::Move(before);
        self.raise_generation();
        self.read_from_confirmed();
    }

    /// The channel goes, and hands out nothing any more; its clients have left. What was open is dropped. [`Channel::settle`]
    /// follows only when it stays after all: then it delivers from its cursor on.
    pub fn begin_delete(&mut self) {
        assert!(!self.is_syncing() && !self.has_clients(), "one change at a time, and nobody is there");
        self.drop_open(&mut |_, _| {});
        self.finished = Finished::default();
        self.syncing = Syncing::Delete;
        self.read_from_confirmed();
    }

    pub fn is_deleting(&self) -> bool {
        matches!(self.syncing, Syncing::Delete)
    }

    /// The change is final. If it is not `kept` the channel stands as before it, under a higher generation, which is to be
    /// journaled.
    pub fn settle(&mut self, kept: bool) {
        match std::mem::take(&mut self.syncing) {
            Syncing::Finish(key) if kept => {
                let interval = self.open.remove(key).interval();
                self.confirmed.insert(interval);
            }
            Syncing::Finish(key) => {
                self.raise_generation();
                self.wait(REQUEUED, key);
            }
            Syncing::Move(before) if !kept => {
                self.raise_generation();
                self.confirmed = before;
                self.read_from_confirmed();
            }
            Syncing::Delete if !kept => self.raise_generation(),
            Syncing::No | Syncing::Move(_) | Syncing::Delete => {}
        }
    }

    /// The cursor stands elsewhere than it was journaled to: the whole of it is journaled next.
    pub fn raise_generation(&mut self) {
        self.generation += 1;
        self.finished = Finished::default();
    }

    fn drop_open(&mut self, dropped: &mut impl FnMut(SubId, u32)) {
        self.clients.drop_in_flight(dropped);
        (self.open, self.wheel, self.waiting) = (OpenSet::default(), Wheel::new(), [List::EMPTY; 2]);
        (self.waiting_count, self.in_flight_count, self.deferred_count) = (0, 0, 0);
    }

    fn read_from_confirmed(&mut self) {
        self.next = self.confirmed.position();
        self.restored = self.confirmed.intervals().rev().collect();
        (self.place, self.awaits_read, self.is_log_held, self.waiting_held) = (None, false, false, 0);
    }
}
