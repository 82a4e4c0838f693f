//! The table of idempotent producers during recovery: it follows the log, so it follows a log that is cut, too.
//!
//! Redo counts each batch when it takes its place in the log ([`Partition::index`](super::partition::Partition)); here is
//! what has to look at headers that it does not pass.

use super::RecoverError;
use super::partition::{Context, Partition};
use super::scan::{Window, commit_record_at, segment_at};
use crate::base::FileId;
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::log::producers::{Before, Producers};
use std::collections::VecDeque;

/// So far before the committed end segments are gone through, for producers with many batches behind it.
const LOOK_BACK: i64 = 16 * 1024 * 1024;

impl Partition {
    /// Counts the batches of `from .. to` by the headers that the segments hold. Behind a damaged header it goes on in the
    /// next segment: producers that only it knew are not recognized any more.
    pub fn count_producers(&mut self, cx: &mut Context<'_>, from: i64, to: i64) -> Result<(), RecoverError> {
        let (mut producers, mut unix_ns) =
            (std::mem::replace(&mut self.producers, Producers::new(cx.producers)), self.last_unix_ns);
        let walked = self.each_header(cx, from, to, &mut |h| {
            producers.count(h);
            unix_ns = if h.is_lost() { unix_ns } else { h.base_unix_ns.get() };
        });
        (self.producers, self.last_unix_ns) = (producers, unix_ns);
        walked
    }

    fn each_header(
        &self,
        cx: &mut Context<'_>,
        from: i64,
        to: i64,
        each: &mut dyn FnMut(&BatchHeader),
    ) -> Result<(), RecoverError> {
        for (i, meta) in self.segments.iter().enumerate() {
            let base = meta.base.offset;
            let border = self.segments.get(i + 1).map_or(to, |next| next.base.offset.min(to));
            let mut window = Window::new(FileId::Segment(self.dir.clone(), base));
            let mut offset = from.max(base);
            while offset < border {
                let head = window.get(cx.storage, segment_at(base, offset), BATCH_HEADER_LEN)?;
                let header = BatchHeader::parse(head, self.dir.topic_id, self.dir.partition);
                let Some(h) = header.ok().filter(|h| h.offset.get() == offset) else { break };
                each(&h);
                offset = h.end().offset;
            }
        }
        Ok(())
    }

    /// What the table was before each batch behind `committed`: a leader may order those to be cut. Who has more of them than the table
    /// remembers is looked for in the segments before that place; one that has no batch near it either is forgotten by such a cut.
    pub fn counted_behind(&self, cx: &mut Context<'_>, committed: i64) -> Result<VecDeque<Before>, RecoverError> {
        let mut counted = VecDeque::new();
        if committed >= self.end.offset || !self.producers.is_used_from(committed) {
            return Ok(counted);
        }
        let before = || self.segments.iter().map(|m| m.base.offset).filter(|base| *base <= committed);
        let near = before().find(|base| *base >= committed - LOOK_BACK);
        let base = near.or(before().next_back()).unwrap_or(committed);
        let mut in_segment = self.producers.below(base);
        self.each_header(cx, base, committed, &mut |h| in_segment.count(h))?;
        let mut table = self.producers.clone();
        table.cut(committed);
        table.add_missing(&in_segment);
        self.each_header(cx, committed, self.end.offset, &mut |h| {
            counted.extend(table.before(h));
            table.count(h);
        })?;
        Ok(counted)
    }

    /// Base timestamp of the batch before the end, as its commit record says.
    fn last_commit_unix_ns(&self, cx: &mut Context<'_>) -> Result<i64, RecoverError> {
        let Some(meta) = self.segments.last().filter(|_| self.commit_count > 0) else { return Ok(0) };
        let record = commit_record_at(cx.storage, &self.dir, meta.base.offset, self.commit_count - 1)?;
        Ok(record.map_or(0, |r| r.unix_ns.get()))
    }

    /// The log was cut to its present end: what the batches behind it told is taken back.
    pub fn uncount_producers(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        if self.producers.is_empty() && self.snapshot_producers.is_empty() {
            // Where there never was one, none of the log's batches has to be looked at.
            self.last_unix_ns = self.last_commit_unix_ns(cx)?;
            return Ok(());
        }
        let (counted, unix_ns) = self.on_disk.as_ref().map_or((0, 0), |s| (s.end.offset, s.unix_ns));
        let stored = self.segments.first().map_or(0, |m| m.base.offset);
        let from = if self.end.offset >= counted {
            (self.producers, self.last_unix_ns) = (self.snapshot_producers.clone(), unix_ns);
            counted
        } else {
            // Whose last batch retention has removed is as the snapshot says, the others as the log does.
            (self.producers, self.last_unix_ns) = (self.snapshot_producers.below(stored), 0);
            stored
        };
        self.count_producers(cx, from, self.end.offset)
    }
}
