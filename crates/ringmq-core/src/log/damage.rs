//! State of a partition's damage: the lost ranges, the end up to which the replica vouches for its log, and its suspicion.

use crate::base::{Epoch, Position};
use crate::format::snapshot::Doubt;
use crate::format::{files::SegmentMeta, tail::Tail};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Damage {
    /// Ranges that do not hold, ascending, disjoint.
    lost: Vec<(Position, Position)>,
    /// Start of the first of them, with the known facts of the batch before it. A startup may know this alone.
    vouched: Option<Box<Tail>>,
    doubt: Doubt,
    /// Generation of the startup that may have lost channels, until an operator accepts the loss; zero: none.
    channels_lost: u64,
}

impl Damage {
    pub fn new(lost: Vec<(Position, Position)>, vouched: Option<Tail>, doubt: Doubt, channels_lost: u64) -> Self {
        Damage { lost, vouched: vouched.map(Box::new), doubt, channels_lost }
    }

    pub fn lost(&self) -> &[(Position, Position)] {
        &self.lost
    }

    /// The lost range that holds `offset`.
    pub fn lost_at(&self, offset: i64) -> Option<(Position, Position)> {
        let index = self.lost.partition_point(|l| l.0.offset <= offset).checked_sub(1)?;
        self.lost.get(index).copied().filter(|l| offset < l.1.offset)
    }

    /// Adds a range to the lost ones.
    pub fn add_lost(&mut self, from: Position, to: Position) {
        let index = self.lost.partition_point(|l| l.0.offset < from.offset);
        if let Some(before) = index.checked_sub(1).and_then(|i| self.lost.get_mut(i))
            && before.1.offset >= from.offset
        {
            if to.offset > before.1.offset {
                before.1 = to;
            }
            return;
        }
        self.lost.insert(index, (from, to));
    }

    /// The end of the sound part of the log; `None`: all of it is.
    pub fn vouched(&self) -> Option<Tail> {
        self.vouched.as_deref().copied()
    }

    /// Damage begins at `from`; `known` is the last place before it whose crc is known.
    pub fn unvouch(&mut self, from: Position, known: impl FnOnce() -> Tail) {
        if self.vouched.as_ref().is_none_or(|v| v.at.offset > from.offset) {
            self.vouched = Some(Box::new(known()));
        }
    }

    /// The log is sound up to here.
    pub fn vouch(&mut self, upto: Tail) {
        self.vouched = Some(Box::new(upto));
    }

    /// Retention removed the segments before `start`, perhaps with the damage.
    pub fn remove_before(&mut self, start: SegmentMeta) {
        self.lost.retain(|l| l.1.offset > start.base.offset);
        if self.vouched.as_ref().is_some_and(|v| v.at.offset < start.base.offset) {
            let left = (!self.lost.is_empty()).then_some(Tail { at: start.base, chain_crc: start.prev_crc, epoch: Epoch(0) });
            self.vouched = left.map(Box::new);
        }
    }

    /// The range that was lost from this offset on stands there again, up to `to`. Where the next damage begins, if there is more.
    pub fn mend(&mut self, from: i64, to: Position) -> Option<Position> {
        let index = self.lost.iter().position(|l| l.0.offset == from)?;
        if self.lost[index].1.offset <= to.offset {
            self.lost.remove(index);
        } else {
            self.lost[index].0 = to;
        }
        self.vouched = None;
        self.lost.first().map(|l| l.0)
    }

    /// The log ends at `at`.
    pub fn truncate(&mut self, at: Position) {
        self.lost.retain(|l| l.0.offset < at.offset);
        for (_, to) in &mut self.lost {
            if to.offset > at.offset {
                *to = at;
            }
        }
        self.vouched = self.vouched.take().filter(|v| v.at.offset < at.offset);
    }

    /// Drops all damage: nothing is left of the log.
    pub fn restart(&mut self) {
        self.lost.clear();
        self.vouched = None;
    }

    pub fn doubt(&self) -> Doubt {
        self.doubt
    }

    pub fn set_doubt(&mut self, doubt: Doubt) {
        self.doubt = doubt;
    }

    pub fn channels_lost(&self) -> u64 {
        self.channels_lost
    }

    /// The leader says that channels may be lost. `generation`: of this startup.
    pub fn mark_channels_lost(&mut self, generation: u64) {
        self.channels_lost = generation;
    }

    /// Accepts the loss of channels; returns the generation of the startup that lost them.
    pub fn accept_channels_lost(&mut self) -> u64 {
        std::mem::take(&mut self.channels_lost)
    }
}
