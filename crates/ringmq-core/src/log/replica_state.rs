//! State of the log of a partition with several replicas.

use super::producers::Before;
use crate::base::{Epoch, Position};
use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub struct ReplicaState {
    /// The highest epoch that was promised.
    promised: Epoch,
    /// Committed end, as was told, and (`recorded`) as the journal or a snapshot says.
    committed: Position,
    recorded: Position,
    /// The partition is in the store's list for a turn's end.
    is_due: bool,
    /// Offset from which on durable bytes still count as published and waiting.
    held_from: Option<i64>,
    /// End of the lost ranges that are given up: readers pass them. A lost range that ends beyond is waited for.
    given_up: i64,
    /// Committed producers before each batch behind `committed`, since the startup: a truncation takes those back.
    counted: VecDeque<Before>,
}

impl ReplicaState {
    pub fn new(promised: Epoch, committed: Position, counted: VecDeque<Before>) -> Self {
        ReplicaState { promised, committed, recorded: committed, is_due: false, held_from: None, given_up: 0, counted }
    }

    pub fn promised(&self) -> Epoch {
        self.promised
    }

    pub fn promise(&mut self, epoch: Epoch) {
        self.promised = self.promised.max(epoch);
    }

    pub fn committed(&self) -> Position {
        self.committed
    }

    /// The partition is committed up to `at`. True if the journal has to record that, and it was not noted yet.
    pub fn commit(&mut self, at: Position) -> bool {
        self.committed = at;
        while self.counted.pop_front_if(|c| c.offset < at.offset).is_some() {}
        at != self.recorded && !std::mem::replace(&mut self.is_due, true)
    }

    /// The committed end, which the journal is told now.
    pub fn record(&mut self) -> Position {
        (self.is_due, self.recorded) = (false, self.committed);
        self.committed
    }

    /// Durable bytes go on counting as waiting, until they are committed.
    pub fn is_held(&self) -> bool {
        self.held_from.is_some()
    }

    /// Holds the bytes that become durable behind `durable` from now on.
    pub fn hold(&mut self, durable: i64) {
        self.held_from.get_or_insert(durable);
    }

    /// Ends the hold; returns the number of held bytes up to `durable`.
    pub fn end_hold(&mut self, durable: i64) -> u64 {
        let released = self.release_from(i64::MIN, durable);
        self.held_from = None;
        released
    }

    /// Releases the held, durable bytes before `offset`. Returns their number.
    pub fn release_before(&mut self, offset: i64, durable: i64) -> u64 {
        self.held_from.as_mut().map_or(0, |from| {
            let upto = offset.clamp(*from, durable.max(*from));
            let bytes = upto - *from;
            *from = upto;
            bytes as u64
        })
    }

    /// Releases the held, durable bytes from `offset` on. Returns their number.
    pub fn release_from(&mut self, offset: i64, durable: i64) -> u64 {
        self.held_from.as_mut().map_or(0, |from| {
            let bytes = durable - offset.max(*from).min(durable);
            *from = offset.min(*from);
            bytes as u64
        })
    }

    /// Releases everything that is durable: the journal failed.
    pub fn release_all(&mut self, durable: i64) {
        if let Some(from) = &mut self.held_from {
            *from = durable;
        }
    }

    /// True if readers wait at the damage up to `to`: another replica may have the lost bytes, and no operator gave them up.
    pub fn waits_for(&self, to: Position) -> bool {
        to.offset > self.given_up
    }

    /// Gives up lost ranges up to here. Returns whether that is news.
    pub fn give_up(&mut self, upto: i64) -> bool {
        std::mem::replace(&mut self.given_up, upto) != upto
    }

    /// Notes the former state of a producer whose batch was counted.
    pub fn count(&mut self, before: Option<Before>) {
        self.counted.extend(before);
    }

    /// Takes the noted states of batches from `offset` on, newest first.
    pub fn take_counted(&mut self, offset: i64) -> impl Iterator<Item = Before> + '_ {
        std::iter::from_fn(move || self.counted.pop_back_if(|c| c.offset >= offset))
    }
}
