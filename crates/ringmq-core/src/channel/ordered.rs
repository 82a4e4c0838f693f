//! Ordered channels, and changes of a cursor with a waiting client.
//!
//! ```text
//! ordered:  in flight (one) --FIN--> finishing --settled--> confirmed, then the next one
//!                 |  ^                  \--taken back--> waiting
//!      REQ, timeout, client gone
//!                 v  |
//!               waiting         nothing is read on while anything is open
//!
//! moved:    open messages are dropped, the cursor stands elsewhere; settled: read from there
//!                                                             taken back: from where it stood
//! ```
//! An unsettled change is in [`Channel::image`], since the journal has it. Retention keeps the messages that are needed if the change is
//! reverted. A cursor that goes back, or elsewhere, gets a higher generation, which overrides all that was journaled before.

use super::backlog::REQUEUED;
use super::cursor::Stood;
use super::flights::Flights;
use super::machine::Channel;
use super::reading::Reading;
use crate::base::{LogId, Position, SubId};
use crate::format::cursor::Interval;

/// A change that waits until it is durable. Nothing is handed out meanwhile.
#[derive(Debug, Default)]
pub(super) enum Syncing {
    #[default]
    No,
    /// The message of an ordered channel that was finished: its entry.
    Finish(u32),
    /// The cursor was moved; where it stood.
    Move(Stood),
    /// The channel goes.
    Delete,
}

impl Channel {
    /// Whether the channel is ordered: one message is in flight at a time, and none is delivered before its predecessor is finished,
    /// durably.
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// A change is not settled.
    pub fn is_syncing(&self) -> bool {
        !matches!(self.syncing, Syncing::No)
    }

    /// Whether delivery is held: nothing may be handed out, whatever credit clients have.
    pub(super) fn is_held(&self) -> bool {
        self.is_syncing() || self.ordered && self.in_flight_count() + self.deferred_count() > 0
    }

    /// Interval that the FIN which is not settled confirms; it goes to the journal.
    pub fn finishing(&self) -> Option<Interval> {
        self.finishing_entry().map(|key| self.backlog.get(key).interval())
    }

    pub(super) fn finishing_entry(&self) -> Option<u32> {
        match self.syncing {
            Syncing::Finish(key) => Some(key),
            _ => None,
        }
    }

    pub fn has_in_flight(&self, sub: SubId, id: LogId) -> bool {
        self.find_in_flight(sub, id).is_some()
    }

    /// The entry, which is in no list, was finished by its client.
    pub(super) fn begin_finish(&mut self, key: u32) {
        assert!(!self.is_syncing(), "nothing is in flight while a change is not settled");
        self.backlog.begin_finish(key);
        self.syncing = Syncing::Finish(key);
    }

    /// Makes the channel ordered or unordered. Open messages are dropped and delivered again; `dropped` is told the subscription and
    /// the number of its messages in flight.
    pub fn set_ordered(&mut self, ordered: bool, dropped: &mut impl FnMut(SubId, u32)) {
        assert!(!self.is_syncing() || self.backlog.is_empty(), "a FIN is settled first");
        if self.ordered != ordered {
            self.ordered = ordered;
            let stood = self.drop_open(dropped);
            self.read_from(stood.image());
        }
    }

    /// Moves the cursor to `to`, under a higher generation: everything before it is confirmed and nothing after it; [`Channel::settle`]
    /// follows. Messages in flight, waiting or deferred are dropped, as in [`Channel::set_ordered`].
    pub fn move_to(&mut self, to: Position, dropped: &mut impl FnMut(SubId, u32)) {
        assert!(!self.is_syncing(), "one change at a time");
        self.syncing = Syncing::Move(self.drop_open(dropped));
        self.raise_generation();
        self.read_from((to, vec![]));
    }

    /// Confirms the messages of `done`, in whatever state they are. The others stay as they are, under a higher generation, and open
    /// ones are redelivered. [`Channel::settle`] follows, as after [`Channel::move_to`].
    pub fn finish_between(&mut self, done: Interval, dropped: &mut impl FnMut(SubId, u32)) {
        assert!(!self.is_syncing(), "one change at a time");
        let stood = self.drop_open(dropped);
        let (confirmed, mut intervals) = stood.image();
        if done.start.max(confirmed.log_id) < done.end.log_id {
            intervals.push(Interval { start: done.start.max(confirmed.log_id), end: done.end });
        }
        self.syncing = Syncing::Move(stood);
        self.raise_generation();
        self.read_from((confirmed, intervals));
    }

    /// Messages of which nothing was read are dropped as confirmed ones, under a higher generation, which is to be journaled.
    pub fn pass_over(&mut self, interval: Interval) {
        self.reading.restore(interval);
        self.raise_generation();
    }

    /// Begins the channel's deletion: it delivers nothing any more, its clients have left, open messages are dropped.
    /// [`Channel::settle`] follows only if the deletion fails: then the channel delivers from its cursor on.
    pub fn begin_delete(&mut self) {
        assert!(!self.is_syncing() && !self.has_clients(), "one change at a time, and nobody is there");
        let stood = self.drop_open(&mut |_, _| {});
        self.finished.clear();
        self.syncing = Syncing::Delete;
        self.read_from(stood.image());
    }

    pub fn is_deleting(&self) -> bool {
        matches!(self.syncing, Syncing::Delete)
    }

    /// The change is final. If it is not `kept` the channel stands as before it, under a higher generation, which is to be
    /// journaled.
    pub fn settle(&mut self, kept: bool) {
        match std::mem::take(&mut self.syncing) {
            Syncing::Finish(key) if kept => {
                self.backlog.remove(key);
            }
            Syncing::Finish(key) => {
                self.raise_generation();
                self.backlog.wait(REQUEUED, key);
            }
            Syncing::Move(before) if !kept => {
                self.raise_generation();
                self.drop_open(&mut |_, _| {});
                self.read_from(before.image());
            }
            Syncing::Delete if !kept => self.raise_generation(),
            Syncing::No | Syncing::Move(_) | Syncing::Delete => {}
        }
    }

    /// The cursor stands elsewhere than it was journaled to: the whole of it is journaled next.
    pub fn raise_generation(&mut self) {
        self.finished.raise_generation();
    }

    /// Drops all open messages; returns the state from before.
    fn drop_open(&mut self, dropped: &mut impl FnMut(SubId, u32)) -> Stood {
        self.clients.drop_in_flight(dropped);
        (self.flights, self.copies) = (Flights::default(), Box::default());
        let nowhere = Reading::new(self.reading.next(), vec![], vec![]);
        let (next, restored) = std::mem::replace(&mut self.reading, nowhere).into_parts();
        Stood { open: std::mem::take(&mut self.backlog).into_open(), next, restored }
    }

    fn read_from(&mut self, (confirmed, intervals): (Position, Vec<Interval>)) {
        self.reading = Reading::new(confirmed, intervals, vec![]);
        (self.awaits_read, self.is_log_held) = (false, false);
    }
}
