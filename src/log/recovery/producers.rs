//! The table of idempotent producers during recovery: it follows the log, so it follows a log that is cut, too.
//!
//! Redo counts each batch when it takes its place in the log ([`Partition::index`](super::partition::Partition)); here is
//! what has to look at headers that it does not pass.

use super::RecoverError;
use super::partition::{Context, Partition};
use super::scan::{Window, commit_record_at, segment_at};
use crate::base::FileId;
use crate::log::batch::{BATCH_HEADER_LEN, BatchHeader};

impl Partition {
    /// Counts the batches of `from .. to` by the headers that the segments hold. Behind a damaged header it goes on in the
    /// next segment: producers that only it knew are not recognized any more.
    pub fn count_producers(&mut self, cx: &mut Context<'_>, from: i64, to: i64) -> Result<(), RecoverError> {
        for (i, meta) in self.segments.iter().enumerate() {
            let base = meta.base.offset;
            let border = self.segments.get(i + 1).map_or(to, |next| next.base.offset.min(to));
            let mut window = Window::new(FileId::Segment(self.dir.clone(), base));
            let mut offset = from.max(base);
            while offset < border {
                let head = window.get(cx.storage, segment_at(base, offset), BATCH_HEADER_LEN)?;
                let header = BatchHeader::parse(head, self.dir.topic_id, self.dir.partition);
                let Some(h) = header.ok().filter(|h| h.offset.get() == offset) else { break };
                self.producers.count(&h);
                self.last_unix_ns = if h.is_lost() { self.last_unix_ns } else { h.base_unix_ns.get() };
                offset = h.end().offset;
            }
        }
        Ok(())
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
