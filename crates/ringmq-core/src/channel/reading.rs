//! Read position of a channel in its partition's log, and its knowledge of the messages ahead of that position: intervals that were
//! confirmed, and messages that had been delivered before a clean stop.

use super::cursor::Restored;
use super::open::{Fresh, Open};
use super::tail::Tail;
use crate::base::{LogId, Position};
use crate::format::batch::{BATCH_HEADER_LEN, Batch};
use crate::format::cursor::{Handed, Interval};

/// Progress within a batch. The batch itself is asked for again in each turn: a channel that kept it would keep the whole buffer that
/// was read with it, and the read cache would not count that.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchProgress {
    /// Offset of the batch, and crc of its header.
    offset: i64,
    crc: u32,
    /// Position of message `id` in the batch's bytes.
    pub(super) at: usize,
    pub(super) id: LogId,
}

impl BatchProgress {
    fn start_of(batch: &Batch) -> BatchProgress {
        let header = &batch.header;
        let (offset, crc, id) = (header.offset.get(), header.header_crc.get(), LogId(header.log_id.get()));
        BatchProgress { offset, crc, at: BATCH_HEADER_LEN, id }
    }

    /// The place behind `num` messages, which end at `end`.
    pub(super) fn pass(&mut self, num: u64, end: usize) {
        (self.at, self.id) = (end, LogId(self.id.0 + num));
    }
}

#[derive(Debug)]
pub(super) struct Reading {
    /// The first message that was never read, and the start of its batch. No restored interval holds it.
    next: Position,
    restored: Restored,
    /// Runs that had been delivered before a clean stop and are not read yet; the nearest is last.
    handed: Vec<Handed>,
    /// Progress within the batch that contains `next`.
    place: Option<BatchProgress>,
}

impl Reading {
    /// Goes on at `next`; the intervals were confirmed, and `handed`, ascending, had been delivered.
    pub(super) fn new(next: Position, intervals: Vec<Interval>, handed: Vec<Handed>) -> Reading {
        let handed = handed.into_iter().rev().collect();
        let mut reading = Reading { next, restored: Restored::new(intervals), handed, place: None };
        reading.skip_restored();
        reading
    }

    /// The first message that was never read, and the start of its batch.
    pub(super) fn next(&self) -> Position {
        self.next
    }

    pub(super) fn restored(&self) -> &Restored {
        &self.restored
    }

    /// Runs that had been delivered before the stop, ascending.
    pub(super) fn handed(&self) -> impl Iterator<Item = &Handed> {
        self.handed.iter().rev()
    }

    /// Messages up to `end` (the log's) that are not read.
    pub(super) fn unread(&self, end: Position) -> u64 {
        u64::try_from(end.count - self.next.count).unwrap_or(0).saturating_sub(self.restored.count())
    }

    pub(super) fn is_before(&self, end: Position) -> bool {
        self.next.log_id < end.log_id
    }

    /// Steps over messages that were confirmed before the channel was made.
    fn skip_restored(&mut self) {
        while let Some(Interval { start, end }) = self.restored.nearest() {
            if start > self.next.log_id {
                return;
            }
            if end.log_id > self.next.log_id {
                self.next = end;
            }
            self.restored.pop();
        }
    }

    /// `interval`, of which nothing was read, counts as confirmed.
    pub(super) fn restore(&mut self, interval: Interval) {
        self.restored.insert(interval);
        self.skip_restored();
    }

    /// The next `num` messages are not read.
    pub(super) fn skip(&mut self, num: u64, tail: &Tail) {
        self.next = tail.place(self.next, self.next.count + num as i64);
        self.skip_restored();
    }

    // ---- messages ahead

    /// Number of messages from `id`, the next one, on that were not confirmed before.
    pub(super) fn until_restored(&self, id: LogId) -> u64 {
        self.restored.nearest().map_or(u64::MAX, |i| i.start.0 - id.0)
    }

    /// Number of messages from `id`, the next one, on that were neither confirmed nor delivered before.
    pub(super) fn until_known(&self, id: LogId) -> u64 {
        let ahead = self.handed.iter().rev().find(|h| h.end() > id);
        ahead.map_or(u64::MAX, |h| h.start.0.saturating_sub(id.0)).min(self.until_restored(id))
    }

    /// Run that had been delivered before the stop and begins at `id`, the next message, or before it.
    pub(super) fn handed_at(&mut self, id: LogId) -> Option<Handed> {
        while let Some(nearest) = self.handed.last() {
            if nearest.end() > self.next.log_id {
                return Some(*nearest).filter(|h| h.start <= id);
            }
            self.handed.pop();
            if self.handed.is_empty() {
                self.handed = vec![];
            }
        }
        None
    }

    /// Adds to `kept` the unread rest of the messages that had been delivered before an earlier stop; they lie behind `kept`.
    /// [`Reading::handed`] has both from now on. False: there are none.
    pub(super) fn keep_handed(&mut self, mut kept: Vec<Handed>) -> bool {
        for unread in self.handed.iter().rev().filter(|h| h.end() > self.next.log_id) {
            let start = unread.start.max(self.next.log_id);
            kept.push(Handed { start, num: (unread.end().0 - start.0) as u32, ..*unread });
        }
        kept.reverse();
        self.handed = kept;
        !self.handed.is_empty()
    }

    // ---- reading on

    /// The entry of the next `num` messages, which stand at `place` in `batch`.
    pub(super) fn entry(&self, batch: &Batch, place: &BatchProgress, num: u16) -> Open {
        let header = &batch.header;
        let is_last = place.id.0 + num as u64 - 1 == header.last_log_id.get();
        Open::new(Fresh {
            id: place.id,
            offset: header.offset.get(),
            count: self.next.count,
            at: place.at as u32,
            last_of: if is_last { header.len() as u32 } else { 0 },
            num,
        })
    }

    /// The messages of this entry, which begin at the position, are read.
    pub(super) fn pass(&mut self, entry: &Open) {
        assert!(entry.id == self.next.log_id, "the log is read in order");
        self.next = entry.interval().end;
        self.skip_restored();
    }

    /// Passes ids that no batch has, before `batch`: they count as confirmed. `None`: there are none.
    pub(super) fn pass_gap(&mut self, batch: &Batch) -> Option<Interval> {
        let start = batch.header.start();
        let is_gap = !batch.header.is_lost() && start.log_id > self.next.log_id;
        is_gap.then(|| {
            let gap = Interval { start: self.next.log_id, end: start };
            self.next = start;
            self.skip_restored();
            gap
        })
    }

    /// Passes everything up to `to`, which is lost and counts as confirmed. `None`: the read position does not move.
    pub(super) fn pass_lost(&mut self, to: Position) -> Option<Interval> {
        (to.offset > self.next.offset).then(|| {
            let lost = Interval { start: self.next.log_id, end: to };
            let log_id = self.next.log_id.max(to.log_id);
            self.next = Position { offset: to.offset, count: self.next.count.max(to.count), log_id };
            self.skip_restored();
            lost
        })
    }

    /// Goes on in `batch`, where it was read up to before. `None`: no message of it is wanted.
    pub(super) fn begin_batch(&mut self, batch: &Batch) -> Option<BatchProgress> {
        let (start, end) = (batch.header.start(), batch.header.end());
        if batch.header.is_lost() || end.log_id <= self.next.log_id {
            return None;
        }
        let index = self.next.log_id.0 - start.log_id.0;
        self.next.offset = start.offset;
        self.next.count = start.count + index as i64;
        let first = BatchProgress::start_of(batch);
        let is_here = |p: &BatchProgress| (p.offset, p.crc) == (first.offset, first.crc);
        Some(self.place.take().filter(is_here).unwrap_or(first))
    }

    /// The turn ends at `place` in `batch`.
    pub(super) fn end_batch(&mut self, batch: &Batch, place: BatchProgress) {
        if self.is_in(batch) {
            self.place = Some(place);
        }
    }

    /// The position is in `batch`.
    pub(super) fn is_in(&self, batch: &Batch) -> bool {
        self.next.offset == batch.header.offset.get()
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.restored.allocated_bytes() + self.handed.capacity() * size_of::<Handed>()
    }

    /// Position and the intervals confirmed ahead of it, for a channel whose cursor moves elsewhere.
    pub(super) fn into_parts(self) -> (Position, Restored) {
        (self.next, self.restored)
    }
}
