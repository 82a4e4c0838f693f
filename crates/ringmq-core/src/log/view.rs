//! View of a log that a replica has without reading a file: ends, epochs, and the batches in memory.
//!
//! The store's half of `replica::LogView`, with the same methods; the half that concerns channels is the shard's.

use crate::format::tail::{BatchId, EpochEnd, Tail};

use super::partition::PartitionLog;
use super::recent::Recent;
use crate::base::{Epoch, Position};
use crate::format::files::CommitRecord;
use crate::format::{files::SegmentMeta, snapshot::Doubt};

impl PartitionLog {
    /// Damage begins at `from`; `before` is the record of the batch that ends there, as far as the commit log tells. Without, the
    /// replica vouches for its log up to the last place before that whose crc is known.
    pub fn unvouch(&mut self, from: Position, before: Option<CommitRecord>) {
        let tail = |r: CommitRecord| Tail { at: r.end(), chain_crc: r.batch_crc.get(), epoch: Epoch(r.epoch.get()) };
        let SegmentMeta { base, prev_crc } = self.segments.holding(from.offset).1.meta;
        let epoch = self.epochs.epoch_at(base.offset).unwrap_or(self.progress.end().epoch);
        let segment = Tail { at: base, chain_crc: prev_crc, epoch };
        let closed = self.epochs.newest_first().find(|e| e.end.offset <= from.offset);
        let closed = closed.map(|e| Tail { at: e.end, chain_crc: e.chain_crc, epoch: e.epoch });
        let known = || before.map(tail).or(closed.filter(|c| c.at.offset > segment.at.offset)).unwrap_or(segment);
        self.damage.unvouch(from, known);
    }
}

/// Partition's log as it is now.
#[derive(Clone, Copy)]
pub struct View<'a> {
    part: &'a PartitionLog,
}

impl<'a> View<'a> {
    pub(super) fn new(part: &'a PartitionLog) -> Self {
        View { part }
    }

    /// First position still stored, and the header crc of the batch before it (zero if damage destroyed every source of it).
    pub fn start(&self) -> (Position, u32) {
        let first = self.part.segments.first().meta;
        // A crash may come before the segment that begins there has a file.
        let crc = if first.base == self.part.start() { first.prev_crc } else { self.part.borders.start_crc() };
        (self.part.start(), crc)
    }

    /// End of all that was appended and sealed.
    pub fn end(&self) -> Tail {
        self.part.truncation.as_ref().map_or(self.part.progress.end().tail(), |truncation| truncation.tail)
    }

    /// Durable end, at most the log's end.
    pub fn durable(&self) -> Tail {
        let durable = self.part.progress.durable().tail();
        let truncation = self
            .part
            .truncation
            .as_ref()
            .filter(|truncation| truncation.is_restart || truncation.tail.at.offset <= durable.at.offset);
        truncation.map_or(durable, |truncation| truncation.tail)
    }

    /// End of the log's sound part: its end, or the start of the first damage.
    pub fn vouched(&self) -> Position {
        let end = self.end().at;
        self.part.damage.vouched().map(|v| v.at).filter(|v| v.offset < end.offset).unwrap_or(end)
    }

    /// The first damaged range. A range of which a startup knows only the start is not reported.
    pub fn damage(&self) -> Option<(Position, Position)> {
        self.part.damage.lost().first().copied().filter(|_| self.part.truncation.is_none())
    }

    /// The first of them for which readers wait.
    pub fn awaited(&self) -> Option<(Position, Position)> {
        let is_truncating = self.part.truncation.is_some();
        self.part.damage.lost().iter().copied().find(|l| self.part.waits_for(l.1)).filter(|_| !is_truncating)
    }

    /// Doubt after truncation or loss at a recovery, until [`Store::clear_suspect`](super::Store::clear_suspect).
    pub fn doubt(&self) -> Doubt {
        self.part.damage.doubt()
    }

    /// True while damage may have taken channels, and no operator has accepted that.
    pub fn may_lack_channels(&self) -> bool {
        self.part.damage.channels_lost() > 0
    }

    /// The batch in memory that begins at `offset`, durable or not.
    pub fn held(&self, offset: i64) -> Option<BatchId> {
        let found = self.batch_at(offset)?.1;
        Some(BatchId::from(found.header()))
    }

    /// The end of the longest run of batches from `from` on that is in memory and at most `bytes_max` long, one batch at least.
    pub fn run_end(&self, from: i64, bytes_max: usize) -> Option<Position> {
        let (number, first) = self.batch_at(from)?;
        let limit = from.saturating_add(i64::try_from(bytes_max).unwrap_or(i64::MAX)).min(self.end().at.offset);
        let behind = self.part.batches.number_where(|h| h.end().offset <= limit);
        let last = behind.checked_sub(1).filter(|&last| last > number).and_then(|last| self.part.batches.get(last));
        Some(last.map_or(first.header().end(), |r| r.header().end()))
    }

    /// Appends the newest `max` epochs below `below` of the log before [`View::vouched`], newest first. True if there are older ones.
    pub fn epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        let end = self.end();
        let vouched = self.part.damage.vouched().filter(|v| v.at.offset < end.at.offset);
        self.epochs_before(vouched.unwrap_or(end), below, max, out)
    }

    /// The same of all that was appended, also behind damage.
    pub fn all_epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        self.epochs_before(self.end(), below, max, out)
    }

    fn epochs_before(&self, last: Tail, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        let start = self.part.start().offset;
        let is_wanted = |e: &EpochEnd| below.is_none_or(|b| e.epoch < b);
        let closed = self.part.epochs.newest_first().filter(|e| e.end.offset < last.at.offset);
        // For an empty log: the batch before it, whose epoch is known unless another replica named the place.
        let is_known = last.at.offset > start || last.at.offset == start && start > 0 && last.epoch > Epoch(0);
        let open = is_known.then_some(EpochEnd::from(last));
        let mut found = open.into_iter().chain(closed).filter(is_wanted);
        out.extend(found.by_ref().take(max));
        found.next().is_some()
    }

    /// The sealed batch in memory that begins at `offset`, with its number.
    pub(super) fn batch_at(&self, offset: i64) -> Option<(u64, &'a Recent)> {
        self.part.batches.starting_at(offset).filter(|_| offset < self.end().at.offset)
    }
}
