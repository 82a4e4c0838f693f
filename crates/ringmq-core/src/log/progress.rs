//! Progress of a partition's batches: one border per step of a batch's way, in an order that every move asserts.
//!
//! ```text
//! batch numbers    pinned ........... durable .... packed ... enqueued ... released ... end | open batch
//!        evictable | in no segment or | in a journal | in the  | held behind  | sealed, the |
//!                  | commit log yet   | write        | queue   | a direct one | turn goes on|
//!
//! pinned <= committed <= durable <= packed <= enqueued <= released <= end
//!           committed <= written <= end,  synced <= written
//! ```
//! A direct batch is written before it is durable; any other one is durable first. Only a truncation moves borders back, and a failed
//! journal, whose batches are taken back.

use crate::base::{Epoch, Position};
use crate::format::batch::BatchHeader;
use crate::format::tail::Tail;
use std::ops::Range;

/// A border between two batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the batch that begins here. Counted from the startup of the process.
    pub number: u64,
    pub at: Position,
    /// Header crc and epoch of the batch that ends here.
    pub chain_crc: u32,
    pub epoch: Epoch,
    /// Base timestamp of the batch that ends here; zero when unknown.
    pub unix_ns: i64,
}

impl Mark {
    /// The border after the next batch.
    pub fn after(self, header: &BatchHeader) -> Mark {
        assert_eq!(header.start(), self.at, "batches are contiguous");
        Mark {
            number: self.number + 1,
            at: header.end(),
            chain_crc: header.header_crc.get(),
            epoch: Epoch(header.epoch.get()),
            unix_ns: header.base_unix_ns.get(),
        }
    }

    pub fn tail(&self) -> Tail {
        Tail { at: self.at, chain_crc: self.chain_crc, epoch: self.epoch }
    }
}

/// The borders of one partition.
#[derive(Debug)]
pub struct Progress {
    /// End of all sealed batches.
    end: Mark,
    /// Number of the first batch that waits for its turn's end.
    released: u64,
    /// Number of the first batch that the journal's queue was not given.
    enqueued: u64,
    /// Number of the first batch that is in no journal write.
    packed: u64,
    /// End of the batches that the journal has durably.
    durable: Mark,
    /// End of the batches that are in segments; `synced`: of those that are synced there.
    written: Mark,
    synced: Mark,
    /// End of the batches with records in the commit logs.
    committed: Mark,
    /// Number of the first batch that must stay in memory.
    pinned: u64,
}

impl Progress {
    /// Progress as recovery leaves it: everything before `end` is in place.
    pub fn new(end: Mark) -> Self {
        let number = end.number;
        Progress {
            end,
            released: number,
            enqueued: number,
            packed: number,
            durable: end,
            written: end,
            synced: end,
            committed: end,
            pinned: number,
        }
    }

    pub fn end(&self) -> Mark {
        self.end
    }

    pub fn released(&self) -> u64 {
        self.released
    }

    pub fn enqueued(&self) -> u64 {
        self.enqueued
    }

    pub fn packed(&self) -> u64 {
        self.packed
    }

    pub fn durable(&self) -> Mark {
        self.durable
    }

    pub fn written(&self) -> Mark {
        self.written
    }

    pub fn synced(&self) -> Mark {
        self.synced
    }

    pub fn committed(&self) -> Mark {
        self.committed
    }

    pub fn pinned(&self) -> u64 {
        self.pinned
    }

    /// True if every sealed batch is durable.
    pub fn is_all_durable(&self) -> bool {
        self.durable.number == self.end.number
    }

    /// The journal's queue was not given all that was released.
    pub fn is_held_back(&self) -> bool {
        self.enqueued < self.released
    }

    /// A batch was sealed behind the last one.
    pub fn seal(&mut self, header: &BatchHeader) {
        self.end = self.end.after(header);
    }

    /// Ends the turn: all sealed batches may go to the journal. Returns them.
    pub fn release(&mut self) -> Range<u64> {
        let before = std::mem::replace(&mut self.released, self.end.number);
        before..self.released
    }

    /// Lets batches before `number` go to the journal. Batches behind `number` that were not given to the journal stay.
    pub fn release_before(&mut self, number: u64) {
        self.released = number.max(self.enqueued);
        assert!(self.released <= self.end.number, "what is released was sealed");
    }

    /// The journal's queue was given the next batch.
    pub fn enqueue(&mut self) {
        assert!(self.enqueued < self.released, "a batch is released before it is given to the journal");
        self.enqueued += 1;
    }

    /// A journal write took the next batch. Its number.
    pub fn pack(&mut self) -> u64 {
        assert!(self.packed < self.enqueued, "a batch is queued before it is in a write");
        self.packed += 1;
        self.packed - 1
    }

    /// The next batch, which has this header, is durable.
    pub fn make_durable(&mut self, header: &BatchHeader) {
        assert!(self.durable.number < self.packed, "a batch is in a journal write before it is durable");
        self.durable = self.durable.after(header);
    }

    /// Segments have all batches before `mark`; they are not synced yet.
    pub fn write(&mut self, mark: Mark) {
        let range = self.written.number..=self.end.number;
        assert!(range.contains(&mark.number), "what is written was sealed, and stays written");
        self.written = mark;
    }

    /// Segments have all batches before `mark` durably.
    pub fn write_durably(&mut self, mark: Mark) {
        self.write(mark);
        self.sync();
    }

    /// Marks every written batch as synced.
    pub fn sync(&mut self) {
        self.synced = self.written;
    }

    /// Commit logs have the records of all batches before `mark`.
    pub fn commit(&mut self, mark: Mark) {
        let range = self.committed.number..=self.durable.number.min(self.written.number);
        assert!(range.contains(&mark.number), "commit records are of durable batches that stand in a segment");
        self.committed = mark;
    }

    /// Lets batches that stand in segment and commit log leave the memory. Returns them.
    pub fn unpin(&mut self) -> Range<u64> {
        let before = std::mem::replace(&mut self.pinned, self.committed.number);
        before..self.pinned
    }

    /// The journal failed: its batches that are not durable never will be.
    pub fn take_back(&mut self) {
        let number = self.durable.number;
        (self.released, self.enqueued, self.packed) = (number, number, number);
        self.assert_order();
    }

    /// Moves every border that is behind `mark` back to it.
    pub fn truncate(&mut self, mark: Mark) {
        for m in [&mut self.end, &mut self.durable, &mut self.written, &mut self.synced, &mut self.committed] {
            *m = if m.number >= mark.number { mark } else { *m };
        }
        for number in [&mut self.released, &mut self.enqueued, &mut self.packed, &mut self.pinned] {
            *number = (*number).min(mark.number);
        }
        self.assert_order();
    }

    /// The order of the picture. The other moves assert the border that they might cross.
    fn assert_order(&self) {
        let [durable, written, end] = [self.durable, self.written, self.end].map(|mark| mark.number);
        let to_journal = [self.pinned, self.committed.number, durable, self.packed, self.enqueued, self.released, end];
        let to_segment = [self.committed.number, written, end];
        let is_ordered = to_journal.is_sorted() && to_segment.is_sorted() && self.synced.number <= written;
        assert!(is_ordered, "borders stay in their order: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{PartitionId, TopicId};
    use crate::format::batch::{Batch, BatchBuilder, Stamp};

    fn begun() -> Progress {
        let end = Mark { number: 0, at: Position::START, chain_crc: 0, epoch: Epoch(0), unix_ns: 0 };
        Progress::new(end)
    }

    fn sealed(progress: &mut Progress) -> BatchHeader {
        let mut builder = BatchBuilder::default();
        builder.push(7, b"body");
        let (topic_id, partition) = (TopicId::default(), PartitionId::default());
        let (at, prev_crc) = (progress.end().at, progress.end().chain_crc);
        let Batch { header, .. } = builder.seal(Stamp { topic_id, partition, epoch: Epoch(1), at, prev_crc });
        progress.seal(&header);
        header
    }

    #[test]
    fn a_batch_goes_its_way_and_a_truncation_takes_it_back() {
        let mut progress = begun();
        let headers = [sealed(&mut progress), sealed(&mut progress)];
        let first = begun().end().after(&headers[0]);
        assert_eq!(progress.release(), 0..2);
        for (number, header) in (0..).zip(&headers) {
            progress.enqueue();
            assert_eq!(progress.pack(), number);
            progress.make_durable(header);
        }
        progress.write(progress.end());
        progress.sync();
        progress.commit(first);
        assert_eq!((progress.unpin(), progress.unpin()), (0..1, 1..1));
        assert!(progress.is_all_durable() && !progress.is_held_back());
        progress.truncate(first);
        assert_eq!((progress.end(), progress.durable(), progress.synced()), (first, first, first));
        assert_eq!((progress.released(), progress.packed(), progress.pinned()), (1, 1, 1));
    }

    #[test]
    fn what_a_failed_journal_had_is_taken_back() {
        let mut progress = begun();
        let header = sealed(&mut progress);
        sealed(&mut progress);
        progress.release();
        progress.enqueue();
        progress.enqueue();
        progress.pack();
        progress.make_durable(&header);
        progress.take_back();
        assert_eq!((progress.packed(), progress.enqueued(), progress.released(), progress.end().number), (1, 1, 1, 2));
    }

    #[test]
    #[should_panic(expected = "released before it is given to the journal")]
    fn nothing_goes_to_the_journal_before_its_turn_is_over() {
        let mut progress = begun();
        sealed(&mut progress);
        progress.enqueue();
    }

    #[test]
    #[should_panic(expected = "in a journal write before it is durable")]
    fn nothing_is_durable_that_no_write_had() {
        let mut progress = begun();
        let header = sealed(&mut progress);
        progress.release();
        progress.enqueue();
        progress.make_durable(&header);
    }

    #[test]
    #[should_panic(expected = "durable batches that stand in a segment")]
    fn no_commit_record_is_of_a_batch_that_is_not_durable() {
        let mut progress = begun();
        sealed(&mut progress);
        progress.write_durably(progress.end());
        progress.commit(progress.end());
    }
}
