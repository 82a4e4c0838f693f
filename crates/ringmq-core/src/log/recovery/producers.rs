//! The table of idempotent producers during recovery: it follows the log, so it follows a log that is truncated, too.
//!
//! Redo counts each batch when it takes its place in the log ([`Partition::index`](super::partition::Partition)); this file has the
//! parts that read headers which redo does not pass.

use super::RecoverError;
use super::partition::{Context, Partition};
use super::scan::{Window, commit_record_at, segment_at};
use crate::base::FileId;
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::format::producer::Producer;
use crate::format::snapshot::Snapshot;
use crate::log::chain::{Chain, Walk};
use crate::log::producers::{Before, ProducerLimits, Producers};
use std::collections::VecDeque;

/// Bytes before the committed end up to which segments are read, for producers with many batches behind it.
const LOOK_BACK: i64 = 16 * 1024 * 1024;

/// Idempotent producers as the batches before the log's end tell them, and when the last batch was appended.
pub struct Counted {
    producers: Producers,
    /// The table at the snapshot's end, for a truncation that goes back before the batches counted by redo.
    at_snapshot: Producers,
    /// Base timestamp of the last batch before the end; zero when unknown.
    last_unix_ns: i64,
}

impl Counted {
    /// State of a log without batches.
    pub fn new(limits: ProducerLimits) -> Counted {
        Counted { producers: Producers::new(limits), at_snapshot: Producers::new(limits), last_unix_ns: 0 }
    }

    /// State at the end of a snapshot.
    pub fn behind(limits: ProducerLimits, snapshot: &Snapshot) -> Counted {
        let producers = Producers::restore(limits, &snapshot.producers);
        Counted { at_snapshot: producers.clone(), producers, last_unix_ns: snapshot.unix_ns }
    }

    /// The next batch.
    pub fn count(&mut self, h: &BatchHeader) {
        self.producers.count(h);
        if !h.is_lost() {
            self.last_unix_ns = h.base_unix_ns.get();
        }
    }

    /// Producers that a leader told, of a log that begins at `start`.
    pub fn adopt(&mut self, told: &[Producer], start: i64) {
        self.producers.adopt(told, start);
        self.at_snapshot.adopt(told, start);
    }

    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    pub fn into_producers(self) -> Producers {
        self.producers
    }

    pub fn last_unix_ns(&self) -> i64 {
        self.last_unix_ns
    }
}

impl Partition {
    /// Counts the batches of `from .. to` by the headers that the segments hold. Behind a damaged header it goes on in the
    /// next segment: producers that only it knew are not recognized any more.
    pub fn count_producers(&mut self, cx: &mut Context<'_>, from: i64, to: i64) -> Result<(), RecoverError> {
        let mut counted = std::mem::replace(&mut self.counted, Counted::new(cx.producers));
        let walked = self.each_header(cx, from, to, &mut |h| counted.count(h));
        self.counted = counted;
        walked
    }

    fn each_header(
        &self,
        cx: &mut Context<'_>,
        from: i64,
        to: i64,
        each: &mut dyn FnMut(&BatchHeader),
    ) -> Result<(), RecoverError> {
        for (i, meta) in self.files.segments().iter().enumerate() {
            let base = meta.base.offset;
            let border = self.files.segments().get(i + 1).map_or(to, |next| next.base.offset.min(to));
            let mut window = Window::new(FileId::Segment(self.dir.clone(), base));
            let mut walk = Walk::new(&self.dir, from.max(base), border, Chain::default());
            while !walk.is_over() {
                let head = window.get(cx.storage, segment_at(base, walk.offset()), BATCH_HEADER_LEN)?;
                let Ok(h) = walk.header(head) else { break };
                each(&h);
                walk.pass(&h);
            }
        }
        Ok(())
    }

    /// The table before each batch behind `committed`: a leader may truncate those. If a producer has more of them than the table
    /// remembers, its earlier batches are looked for in the segments before that place; without a batch near it, such a truncation
    /// forgets the producer.
    pub fn counted_behind(&self, cx: &mut Context<'_>, committed: i64) -> Result<VecDeque<Before>, RecoverError> {
        let mut counted = VecDeque::new();
        if committed >= self.end.offset || !self.counted.producers.is_used_from(committed) {
            return Ok(counted);
        }
        let before = || self.files.segments().iter().map(|m| m.base.offset).filter(|base| *base <= committed);
        let near = before().find(|base| *base >= committed - LOOK_BACK);
        let base = near.or(before().next_back()).unwrap_or(committed);
        let mut in_segment = self.counted.producers.below(base);
        self.each_header(cx, base, committed, &mut |h| in_segment.count(h))?;
        let mut table = self.counted.producers.clone();
        table.truncate(committed);
        table.add_missing(&in_segment);
        self.each_header(cx, committed, self.end.offset, &mut |h| {
            counted.extend(table.before(h));
            table.count(h);
        })?;
        Ok(counted)
    }

    /// Base timestamp of the batch before the end, as its commit record says.
    fn last_commit_unix_ns(&self, cx: &mut Context<'_>) -> Result<i64, RecoverError> {
        let count = self.files.commit_count();
        let Some(base) = self.files.last_base().filter(|_| count > 0) else { return Ok(0) };
        let record = commit_record_at(cx.storage, &self.dir, base, count - 1)?;
        Ok(record.map_or(0, |r| r.unix_ns.get()))
    }

    /// The log was truncated to its present end: undoes the counts of the batches behind it.
    pub fn uncount_producers(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        if self.counted.producers.is_empty() && self.counted.at_snapshot.is_empty() {
            // Where there never was one, none of the log's batches has to be looked at.
            self.counted.last_unix_ns = self.last_commit_unix_ns(cx)?;
            return Ok(());
        }
        let (end, unix_ns) = self.saved.newest().map_or((0, 0), |s| (s.end.offset, s.unix_ns));
        let stored = self.files.segments().first().map_or(0, |m| m.base.offset);
        let counted = &mut self.counted;
        let from = if self.end.offset >= end {
            (counted.producers, counted.last_unix_ns) = (counted.at_snapshot.clone(), unix_ns);
            end
        } else {
            // Producers whose last batch retention has removed come from the snapshot, the others from the log.
            (counted.producers, counted.last_unix_ns) = (counted.at_snapshot.below(stored), 0);
            stored
        };
        self.count_producers(cx, from, self.end.offset)
    }
}
