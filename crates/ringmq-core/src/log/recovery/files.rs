//! The files of one partition during recovery: its segments and commit logs, and the planned writes to the last ones.

use super::RecoverError;
use super::partition::Context;
use super::report::Severity;
use super::scan::{commit_at, segment_at};
use crate::base::{BLOCK, Epoch, FileId, IO_BYTES_MAX, PartitionDir, Position, block_down, block_up};
use crate::format::files::{COMMIT_MAGIC, COMMIT_RECORD_LEN, CommitRecord, FileHeader, SEGMENT_MAGIC, SegmentMeta};
use crate::format::segment_table::SegmentTable;
use crate::format::storage::{overlay, read_range};
use crate::log::state::RecoveredFiles;
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Redone bytes of a partition are written when there are as many.
const PENDING_MAX: usize = 1024 * 1024;

/// Segments that the log has come to are *entered*, in the order of their offsets; the log's end lies in the last one. Segment files
/// that it has not come to are *ahead*.
pub struct Files {
    dir: Arc<PartitionDir>,
    /// Entered segments, ascending.
    segments: Vec<SegmentMeta>,
    /// Base offsets of segment files ahead.
    ahead: BTreeSet<i64>,
    /// Allocated bytes of the last segment's file.
    segment_len: u64,
    /// Allocated bytes of its commit log.
    commit_len: u64,
    /// Records of that commit log, those in `pending_records` included.
    commit_count: u64,
    /// Bytes of the log that are not written yet; they end at the log's end.
    pending: Vec<u8>,
    /// Commit records that are not written yet, the last ones.
    pending_records: Vec<u8>,
    /// Files to sync.
    written: BTreeSet<FileId>,
    /// Base offsets of segment files that are removed as soon as the log's start is durable, and of no use before.
    retired: Vec<i64>,
}

impl Files {
    pub fn new(dir: Arc<PartitionDir>, ahead: BTreeSet<i64>) -> Files {
        Files {
            dir,
            segments: vec![],
            ahead,
            segment_len: 0,
            commit_len: 0,
            commit_count: 0,
            pending: vec![],
            pending_records: vec![],
            written: BTreeSet::new(),
            retired: vec![],
        }
    }

    /// The files of the segment at `base`: its batches, its commit log.
    pub fn pair(&self, base: i64) -> [FileId; 2] {
        [FileId::Segment(self.dir.clone(), base), FileId::Commit(self.dir.clone(), base)]
    }

    pub fn segments(&self) -> &[SegmentMeta] {
        &self.segments
    }

    pub fn last(&self) -> Option<SegmentMeta> {
        self.segments.last().copied()
    }

    pub fn last_base(&self) -> Option<i64> {
        self.segments.last().map(|m| m.base.offset)
    }

    pub fn last_segment(&self) -> Option<FileId> {
        Some(FileId::Segment(self.dir.clone(), self.last_base()?))
    }

    pub fn last_commit(&self) -> Option<FileId> {
        Some(FileId::Commit(self.dir.clone(), self.last_base()?))
    }

    pub fn segment_len(&self) -> u64 {
        self.segment_len
    }

    /// Number of records of the last commit log.
    pub fn commit_count(&self) -> u64 {
        self.commit_count
    }

    pub fn set_commit_count(&mut self, count: u64) {
        self.commit_count = count;
    }

    /// Base offsets of segment files that the log has not come to.
    pub fn ahead(&self) -> &BTreeSet<i64> {
        &self.ahead
    }

    /// A segment file ahead begins at `offset`.
    pub fn begins_at(&self, offset: i64) -> bool {
        self.ahead.contains(&offset)
    }

    /// The file at `base` is not ahead any more. Whether it was.
    pub fn leave_ahead(&mut self, base: i64) -> bool {
        self.ahead.remove(&base)
    }

    pub fn take_ahead(&mut self) -> BTreeSet<i64> {
        std::mem::take(&mut self.ahead)
    }

    /// The files ahead that begin before `end` are of no use: they are removed once the log's start is durable.
    pub fn retire_before(&mut self, end: i64) {
        let later = self.ahead.split_off(&end);
        self.retired = std::mem::replace(&mut self.ahead, later).into_iter().collect();
    }

    /// Segments before the end whose place is known. Their files are looked at later.
    pub fn enter_known(&mut self, known: impl IntoIterator<Item = SegmentMeta>) {
        self.segments.extend(known);
    }

    /// The segment that goes on at the log's end. Its files are allocated and have no record.
    pub fn enter(&mut self, cx: &mut Context<'_>, meta: SegmentMeta) -> Result<(), RecoverError> {
        self.segments.push(meta);
        self.commit_count = 0;
        self.touch(meta.base.offset);
        self.measure(cx)
    }

    /// The log is dropped: no segment is entered.
    pub fn forget_segments(&mut self) {
        self.segments.clear();
        (self.segment_len, self.commit_len, self.commit_count) = (0, 0, 0);
    }

    /// The log ends at `to`: segments that begin behind it are ahead again, but for the first one.
    pub fn truncate(&mut self, to: Position) {
        while self.segments.len() > 1 && self.segments.last().is_some_and(|m| m.base.offset > to.offset) {
            let base = self.segments.pop().expect("there are two").base.offset;
            self.ahead.insert(base);
        }
    }

    /// Reads the lengths of the last segment's files.
    pub fn measure(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        if let Some([segment, commit]) = self.last_base().map(|base| self.pair(base)) {
            self.segment_len = cx.storage.len(&segment)?.unwrap_or(0);
            self.commit_len = cx.storage.len(&commit)?.unwrap_or(0);
        }
        Ok(())
    }

    /// Allocates the last segment's file up to `len`, if it is shorter.
    pub fn grow_segment(&mut self, cx: &mut Context<'_>, len: u64) -> Result<(), RecoverError> {
        if len > self.segment_len {
            let file = self.last_segment().expect("a segment is entered");
            cx.allocate(&file, len)?;
            self.segment_len = len;
        }
        Ok(())
    }

    /// Bytes that the log goes on with, to be written by [`Files::flush`].
    pub fn append(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    pub fn is_flush_due(&self) -> bool {
        self.pending.len() >= PENDING_MAX
    }

    pub fn has_unwritten_bytes(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The record of the next batch, to be written by [`Files::flush`].
    pub fn add_record(&mut self, cx: &mut Context<'_>, record: &CommitRecord) -> Result<(), RecoverError> {
        let record_end = commit_at(self.commit_count + 1);
        if record_end > self.commit_len {
            let file = self.last_commit().expect("a batch stands in a segment");
            cx.allocate(&file, block_up(record_end))?;
            self.commit_len = block_up(record_end);
        }
        self.pending_records.extend_from_slice(record.as_bytes());
        self.commit_count += 1;
        Ok(())
    }

    /// Writes the appended bytes of a log that ends at `end`. Other bytes of a block stay: a direct batch may begin in it.
    pub fn flush(&mut self, cx: &mut Context<'_>, end: Position) -> Result<(), RecoverError> {
        let Some(base) = self.last_base() else { return Ok(()) };
        let [segment, commit] = self.pair(base);
        if !self.pending.is_empty() {
            let at = segment_at(base, end.offset - self.pending.len() as i64);
            overlay(cx.storage, &segment, at, &self.pending)?;
            self.pending.clear();
            self.written.insert(segment);
        }
        if !self.pending_records.is_empty() {
            let at = commit_at(self.commit_count) - self.pending_records.len() as u64;
            overlay(cx.storage, &commit, at, &self.pending_records)?;
            self.pending_records.clear();
            self.written.insert(commit);
        }
        Ok(())
    }

    /// Notes that both files of this segment are to be synced.
    pub fn touch(&mut self, base: i64) {
        self.written.extend(self.pair(base));
    }

    pub fn touch_last(&mut self) {
        self.last_base().into_iter().for_each(|base| self.touch(base));
    }

    pub fn touch_last_segment(&mut self) {
        self.written.extend(self.last_segment());
    }

    /// Syncs all that was written.
    pub fn sync(&self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        for file in &self.written {
            cx.storage.sync(file)?;
        }
        Ok(())
    }

    /// The segments before the one at `base`.
    pub fn table(&self, base: i64) -> SegmentTable {
        let before = self.segments.partition_point(|m| m.base.offset < base);
        SegmentTable::of(self.segments[..before].iter().copied())
    }

    /// Writes both headers, with the table of the segments before. The files are allocated.
    pub fn write_headers(&mut self, cx: &mut Context<'_>, meta: &SegmentMeta, epoch: Epoch) -> Result<(), RecoverError> {
        let table = self.table(meta.base.offset);
        let (id, partition) = (self.dir.topic_id, self.dir.partition);
        let header = |magic| FileHeader::new(magic, id, partition, meta.base, meta.prev_crc, epoch, cx.now_unix_ns);
        let blocks = [SEGMENT_MAGIC, COMMIT_MAGIC].map(|magic| header(magic).block(&table));
        for (file, block) in self.pair(meta.base.offset).into_iter().zip(blocks) {
            cx.storage.write(&file, 0, &block)?;
            self.written.insert(file);
        }
        Ok(())
    }

    /// Writes the first blocks of both files as they stand. They hold, but a process whose write or sync failed may have left them in a
    /// cache, and a later sync covers nothing of that.
    pub fn write_back_headers(&mut self, cx: &mut Context<'_>, base: i64) -> Result<(), RecoverError> {
        for file in self.pair(base) {
            let block = read_range(cx.storage, &file, 0, BLOCK)?;
            cx.storage.write(&file, 0, &block)?;
            self.written.insert(file);
        }
        Ok(())
    }

    /// Begins the last commit log anew, without a record. Behind its header are zeros.
    pub fn restart_commit(&mut self, cx: &mut Context<'_>, epoch: Epoch) -> Result<(), RecoverError> {
        let Some(meta) = self.last() else { return Ok(()) };
        let [_, commit] = self.pair(meta.base.offset);
        cx.allocate(&commit, block_up(commit_at(1)))?;
        self.write_headers(cx, &meta, epoch)?;
        let len = cx.storage.len(&commit)?.unwrap_or(0);
        self.commit_len = wipe(cx, &commit, commit_at(0), len)?;
        self.commit_count = 0;
        self.touch(meta.base.offset);
        Ok(())
    }

    /// Zeroes the last segment's files behind the log's end.
    pub fn wipe_behind(&mut self, cx: &mut Context<'_>, end: Position) -> Result<(), RecoverError> {
        let Some(base) = self.last_base() else { return Ok(()) };
        let [segment, commit] = self.pair(base);
        self.segment_len = wipe(cx, &segment, segment_at(base, end.offset), self.segment_len)?;
        self.commit_len = wipe(cx, &commit, commit_at(self.commit_count), self.commit_len)?;
        self.touch(base);
        Ok(())
    }

    /// Removes the files of these segments, which are entered no more.
    pub fn remove(&mut self, cx: &mut Context<'_>, bases: impl IntoIterator<Item = i64>) -> Result<(), RecoverError> {
        for base in bases {
            let files = self.pair(base);
            // Redo may have written them before it came to the truncation.
            self.written.retain(|f| !files.contains(f));
            cx.storage.remove(&files)?;
        }
        Ok(())
    }

    /// Removes the segments that lie wholly before the start, which is durable by now.
    pub fn retire(&mut self, cx: &mut Context<'_>, start: Position) -> Result<(), RecoverError> {
        for base in std::mem::take(&mut self.retired) {
            cx.storage.remove(&self.pair(base))?;
        }
        while self.segments.len() > 1 && self.segments[1].base.offset <= start.offset {
            let base = self.segments.remove(0).base.offset;
            cx.storage.remove(&self.pair(base))?;
        }
        Ok(())
    }

    /// Frees the space that was allocated ahead of the log's end, on a full disk. Returns whether there was any.
    pub fn give_back(&mut self, cx: &mut Context<'_>, end: Position) -> Result<bool, RecoverError> {
        let Some(base) = self.last_base() else { return Ok(false) };
        let [segment, commit] = self.pair(base);
        let lens = [block_up(segment_at(base, end.offset)), block_up(commit_at(self.commit_count))];
        let mut any = false;
        for (file, needed, len) in [(segment, lens[0], &mut self.segment_len), (commit, lens[1], &mut self.commit_len)] {
            if needed < *len {
                cx.storage.truncate(&file, needed)?;
                *len = needed;
                any = true;
            }
        }
        Ok(any)
    }

    /// Clears the records behind the last valid one of the commit log: those of lost batches, or of former content. Otherwise they would
    /// be found when the log has grown to their ids.
    pub fn clear_stale_records(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        let Some(file) = self.last_commit() else { return Ok(()) };
        let at = commit_at(self.commit_count);
        let behind = read_range(cx.storage, &file, at, BLOCK.min(self.commit_len.saturating_sub(at) as usize))?;
        if behind.iter().all(|&b| b == 0) {
            return Ok(());
        }
        let what = format!("records behind record {} name no stored batch: cleared", self.commit_count);
        cx.report.note(Severity::Repaired, &file, Some(at), what);
        let rest = vec![0; IO_BYTES_MAX];
        let mut at = at;
        while at < self.commit_len {
            let len = rest.len().min((self.commit_len - at) as usize);
            overlay(cx.storage, &file, at, &rest[..len])?;
            at += len as u64;
        }
        self.written.insert(file);
        Ok(())
    }

    /// Files that the engine takes over, of a log that ends at `end`.
    pub fn into_recovered(self, cx: &mut Context<'_>, end: Position) -> Result<RecoveredFiles, RecoverError> {
        let (mut tail, mut commit_tail) = (vec![], vec![]);
        if let Some(base) = self.last_base() {
            let [segment, commit] = self.pair(base);
            let rest = |at: u64| (block_down(at), (at - block_down(at)) as usize);
            let (at, len) = rest(segment_at(base, end.offset));
            tail = read_range(cx.storage, &segment, at, len)?;
            let (at, len) = rest(commit_at(self.commit_count));
            commit_tail = read_range(cx.storage, &commit, at, len)?;
            debug_assert!(commit_tail.len() % COMMIT_RECORD_LEN == 0);
        }
        let Files { segments, segment_len, commit_len, commit_count: commit_records, .. } = self;
        Ok(RecoveredFiles { segments, segment_len, commit_len, tail, commit_tail, commit_records })
    }
}

/// Makes everything from `at` to the end of the file zeros, its length staying.
fn wipe(cx: &mut Context<'_>, file: &FileId, at: u64, len: u64) -> Result<u64, RecoverError> {
    let keep = block_up(at);
    if keep > at && keep <= len {
        overlay(cx.storage, file, at, &vec![0; (keep - at) as usize])?;
    }
    if keep < len {
        cx.storage.truncate(file, keep)?;
        cx.allocate(file, len)?;
    }
    Ok(len)
}

const _: () = assert!(BLOCK.is_multiple_of(COMMIT_RECORD_LEN));
