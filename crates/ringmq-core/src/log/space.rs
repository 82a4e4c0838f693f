//! Allocated space: a publish is admitted only when the segment and the commit log have room for it (rule 10).
//! Files grow in steps that double, ahead of need, so that steady publishing does not wait.
//!
//! A startup finds out by itself whether the disk is full: partitions that need room get it before the first publish. A full disk is
//! tried again each second, one partition at a time; the first success tries the others at once.

use super::admission::Lack;
use super::core_logs::{CoreLogs, Op};
use super::notice::{PartitionIdx, Refusal};
use super::store::commit_len;
use crate::base::{BLOCK, CoreId, DiskDone, DiskError, DiskOp, FileId, Now, PartitionDir, Ticks};
use crate::format::files::FILE_HEADER_LEN;
use crate::format::snapshot::SLOTS;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const SEGMENT_STEP_MIN: u64 = 16 * 1024;
const SEGMENT_STEP_MAX: u64 = 16 * 1024 * 1024;
const COMMIT_STEP_MIN: u64 = 8 * 1024;
const COMMIT_STEP_MAX: u64 = 256 * 1024;
/// Pause between two tries on a full disk.
pub const RETRY: Duration = Duration::from_secs(1);

/// Kind of a partition's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Segment,
    Commit,
    /// Snapshot slot of this number.
    Snapshot(u8),
}

impl Which {
    pub fn file(self, dir: &Arc<PartitionDir>, base: i64) -> FileId {
        match self {
            Which::Segment => FileId::Segment(dir.clone(), base),
            Which::Commit => FileId::Commit(dir.clone(), base),
            Which::Snapshot(slot) => FileId::Snapshot(dir.clone(), slot),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct FileSpace {
    /// Allocated.
    len: u64,
    step: u64,
    step_max: u64,
    /// The length that is being allocated.
    growing: Option<u64>,
    /// Bytes that the last append needed.
    need: u64,
}

impl FileSpace {
    /// True if the space need not grow for an append as large as the last one.
    fn is_roomy(&self) -> bool {
        self.len > 0 && self.need + ((self.len - BLOCK as u64) / 2).min(self.step_max / 2) <= self.len
    }

    /// A new file that will soon be as long as one of `max` bytes: the one before it has grown so.
    fn is_long(&self, max: u64) -> bool {
        self.len == 0 && self.step >= self.step_max.min(max / 8)
    }

    /// The length to grow to, when it is time to: half of it is used, or less than half a step is left of a long one.
    fn grow(&mut self, max: u64) -> Option<u64> {
        let max = max.max(self.need);
        if self.growing.is_some() || self.len >= max || self.is_roomy() {
            return None;
        }
        let len = (self.len + self.step).max(self.need).min(max).next_multiple_of(BLOCK as u64);
        self.step = (self.step * 2).min(self.step_max);
        self.growing = Some(len);
        Some(len)
    }
}

/// The space of a partition's last segment and its commit log.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    base: i64,
    segment: FileSpace,
    commit: FileSpace,
    /// The first block of each: without it a checkpoint could not free the ring on a full disk.
    snapshots: [FileSpace; SLOTS as usize],
    /// The last allocation found no space.
    pub is_full: bool,
}

impl Space {
    /// `snapshot_sequence`: of the newest snapshot; 0: no slot has a file.
    pub fn new(base: i64, segment_len: u64, commit_len: u64, snapshot_sequence: u64) -> Self {
        let file = |len, step, step_max| FileSpace { len, step, step_max, growing: None, need: 0 };
        let block = BLOCK as u64;
        let snapshot = FileSpace { need: block, ..file(if snapshot_sequence > 0 { block } else { 0 }, block, block) };
        Space {
            base,
            // as if it had grown to that
            segment: file(segment_len, segment_len.clamp(SEGMENT_STEP_MIN, SEGMENT_STEP_MAX), SEGMENT_STEP_MAX),
            commit: file(commit_len, COMMIT_STEP_MIN, COMMIT_STEP_MAX),
            snapshots: [snapshot; SLOTS as usize],
            is_full: false,
        }
    }

    /// Space of the next segment: it grows with the steps that this one came to.
    pub fn next(&self, base: i64) -> Space {
        let fresh = |f: FileSpace| FileSpace { len: 0, growing: None, need: 0, ..f };
        Space { base, segment: fresh(self.segment), commit: fresh(self.commit), snapshots: self.snapshots, is_full: false }
    }

    /// Space of a segment that was truncated, or begun anew, and has files of these lengths.
    pub fn truncate(&self, base: i64, segment_len: u64, commit_len: u64) -> Space {
        let mut space = self.next(base);
        // The last segment may have less; an earlier one was closed when it had all that.
        let lens = if base == self.base { (self.segment.len, self.commit.len) } else { (u64::MAX, u64::MAX) };
        (space.segment.len, space.commit.len) = (segment_len.min(lens.0), commit_len.min(lens.1));
        space
    }

    /// Whether a file is there, or is being allocated.
    pub fn has_any(&self) -> bool {
        let files = [self.segment, self.commit].into_iter().chain(self.snapshots);
        files.into_iter().any(|file| file.len > 0 || file.growing.is_some())
    }

    fn file(&mut self, which: Which) -> &mut FileSpace {
        match which {
            Which::Segment => &mut self.segment,
            Which::Commit => &mut self.commit,
            Which::Snapshot(slot) => &mut self.snapshots[slot as usize],
        }
    }

    pub fn is_growing(&self) -> bool {
        [&self.segment, &self.commit].into_iter().chain(&self.snapshots).any(|f| f.growing.is_some())
    }

    /// Bytes that `which` may grow to when nothing needs more.
    fn max(which: Which, segment_max: u64) -> u64 {
        match which {
            Which::Segment => segment_max,
            Which::Commit => u64::MAX,
            Which::Snapshot(_) => BLOCK as u64,
        }
    }
}

/// Lack of space: the partitions whose allocation found none, and when the first of them is tried again.
#[derive(Default)]
pub struct FullDisk {
    /// Partitions whose allocation found no space, the next one to try first.
    waiting: Vec<PartitionIdx>,
    /// Set while a partition waits or is tight.
    retry_at: Option<Ticks>,
    /// Other cores that lack space: space freed here may help them.
    others: BTreeSet<CoreId>,
    /// Partitions that a startup found without the room that the next append wants: each is tried once, so that a disk that was
    /// full before the startup is known to be full before a publish comes.
    tight: Vec<PartitionIdx>,
}

impl FullDisk {
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether some core of the node lacks space.
    pub fn is_short(&self) -> bool {
        self.is_full() || !self.others.is_empty()
    }

    /// Number of partitions that wait, and the first.
    pub fn first(&self) -> Option<(usize, PartitionIdx)> {
        self.waiting.first().map(|&p| (self.waiting.len(), p))
    }

    /// Time of the next try.
    pub fn deadline(&self) -> Option<Ticks> {
        self.retry_at
    }

    /// Another core lacks space, or has space again. True if from now on the node lacks space.
    pub fn set_other(&mut self, core: CoreId, is_full: bool) -> bool {
        let was_short = self.is_short();
        if is_full {
            self.others.insert(core);
        } else {
            self.others.remove(&core);
        }
        !was_short && is_full
    }

    /// A startup found the partition without the room that the next append wants.
    fn try_tight(&mut self, p: PartitionIdx) {
        self.tight.push(p);
        self.retry_at = Some(Ticks(0));
    }

    fn wait(&mut self, p: PartitionIdx) {
        self.waiting.push(p);
    }

    /// There was no space just now.
    fn pause(&mut self, now: Ticks) {
        self.retry_at = Some(now + RETRY);
    }

    /// The partition found space: the others are tried at once.
    fn found_space(&mut self, p: PartitionIdx, now: Ticks) {
        self.forget(p);
        self.retry_at = self.is_full().then_some(now);
    }

    /// Space was freed: waiting partitions are tried at once. False: none waits.
    pub fn hurry(&mut self, now: Ticks) -> bool {
        if self.retry_at.is_some() {
            self.retry_at = Some(now);
        }
        self.retry_at.is_some()
    }

    /// The partition whose turn it is, which goes to the end of the line.
    fn due(&mut self, now: Ticks) -> Option<PartitionIdx> {
        self.retry_at.filter(|at| *at <= now)?;
        let first = self.waiting.first().copied();
        self.retry_at = first.map(|_| now + RETRY);
        first.inspect(|_| self.waiting.rotate_left(1))
    }

    /// The partition needs no space any more. False: it did not wait.
    pub fn forget(&mut self, p: PartitionIdx) -> bool {
        let count = self.waiting.len();
        self.waiting.retain(|&q| q != p);
        self.waiting.len() < count
    }

    /// The partition is closed. No try is due when it was the last.
    pub fn leave(&mut self, p: PartitionIdx) {
        self.forget(p);
        if !self.is_full() {
            self.retry_at = None;
        }
    }
}

impl CoreLogs {
    /// Sees to space for lengths of the last segment's files; refuses when it is not there now.
    pub fn reserve(&mut self, p: PartitionIdx, segment: u64, commit: u64, io: &mut super::Io) -> Result<(), Refusal> {
        let part = &mut self.partitions[p.0 as usize];
        part.space.segment.need = segment;
        part.space.commit.need = commit;
        let space = &part.space;
        let has_snapshots = space.snapshots.iter().all(|s| s.len > 0);
        if has_snapshots && space.segment.is_roomy() && space.commit.is_roomy() {
            return Ok(());
        }
        let is_there = segment <= space.segment.len && commit <= space.commit.len && has_snapshots;
        let is_full = part.space.is_full;
        if !is_full {
            self.grow(p, io);
        }
        match (is_there, is_full) {
            (true, _) => Ok(()),
            (false, true) => {
                self.admission.refuse(Lack::Disk);
                Err(Refusal::DiskFull)
            }
            (false, false) => {
                self.admission.refuse(Lack::Space);
                Err(Refusal::Busy)
            }
        }
    }

    /// Takes over the space of a partition as recovery left it. Space that an append grew ahead of need is there after a startup too,
    /// unless the append found none, or a crash came before it: few partitions are tight then. The first append of a partition without
    /// files sees to them.
    pub fn opened(&mut self, p: PartitionIdx) {
        let part = &mut self.partitions[p.0 as usize];
        let used = (part.progress.end().at.offset - part.space.base).max(0) as u64;
        let space = &mut part.space;
        if used == 0 || space.segment.len == 0 {
            return;
        }
        space.segment.need = FILE_HEADER_LEN + used;
        space.commit.need = commit_len(part.segments.batches());
        if !space.segment.is_roomy() || !space.commit.is_roomy() {
            self.full_disk.try_tight(p);
        }
    }

    pub fn grow(&mut self, p: PartitionIdx, io: &mut super::Io) {
        if self.part(p).is_truncating() {
            return;
        }
        for which in [Which::Segment, Which::Commit].into_iter().chain((0..SLOTS).map(Which::Snapshot)) {
            let max = Space::max(which, self.segment_max());
            let part = &mut self.partitions[p.0 as usize];
            let base = part.space.base;
            let is_long = which == Which::Segment && part.space.segment.is_long(max);
            if let Some(len) = part.space.file(which).grow(max) {
                let file = which.file(&part.dir, base);
                let request = match is_long {
                    true => DiskOp::AllocateSegment { file, len, max: max.max(len) },
                    false => DiskOp::Allocate { file, len },
                };
                self.ops.issue(io, request, Op::Space { p, which, base, len });
            }
        }
    }

    /// An allocation has finished. The error of a file that failed.
    pub fn allocated(
        &mut self,
        now: Now,
        p: PartitionIdx,
        (which, base, len): (Which, i64, u64),
        outcome: Result<DiskDone, DiskError>,
        io: &mut super::Io,
    ) -> Result<(), DiskError> {
        let part = &mut self.partitions[p.0 as usize];
        if part.space.base != base && !matches!(which, Which::Snapshot(_)) {
            return Ok(()); // The segment is full and closed; a new one took its place.
        }
        part.space.file(which).growing = None;
        if part.is_leaving() {
            return Ok(());
        }
        match outcome {
            Ok(done) => {
                let len = if let DiskDone::Allocated(len) = done { len } else { len };
                let name = which.file(&part.dir, base);
                let file = part.space.file(which);
                file.len = file.len.max(len);
                if let Which::Snapshot(slot) = which {
                    part.slots.allocated(slot, len);
                }
                self.admission.signal(Lack::Space);
                if std::mem::take(&mut part.space.is_full) {
                    tracing::info!(file = %name, "there is space again: all publishes to the partition are taken");
                    self.admission.signal(Lack::Disk);
                    self.full_disk.found_space(p, now.ticks);
                    self.grow(p, io);
                }
            }
            Err(error) if error.is_no_space() => {
                // Next time only the needed bytes.
                part.space.file(which).step = match which {
                    Which::Segment => SEGMENT_STEP_MIN,
                    Which::Commit => COMMIT_STEP_MIN,
                    Which::Snapshot(_) => BLOCK as u64,
                };
                if !std::mem::replace(&mut part.space.is_full, true) {
                    tracing::warn!(%error, "no space: publishes that need more than there is are refused, trying again each second");
                    if !self.full_disk.is_short() {
                        self.look_at_all();
                    }
                    self.full_disk.wait(p);
                    // Publishes that wait for space now fail: the disk is full.
                    self.admission.signal(Lack::Space);
                }
                self.full_disk.pause(now.ticks);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Tries the first partition that waits for the disk again, and all others when that is overdue by a success.
    pub fn retry_full_disk(&mut self, now: Now, io: &mut super::Io) {
        for p in std::mem::take(&mut self.full_disk.tight) {
            if !self.is_read_only()
                && self.partitions.get(p.0 as usize).is_some_and(|part| !part.is_closed() && !part.is_leaving())
            {
                self.grow(p, io);
            }
        }
        let Some(p) = self.full_disk.due(now.ticks) else { return };
        self.grow(p, io);
        if !self.partitions[p.0 as usize].space.is_growing() {
            // It needs nothing more than it has.
            let dir = &self.partitions[p.0 as usize].dir;
            tracing::info!(topic = %dir.topic, partition = %dir.partition, "publishes that need no more space are taken");
            self.partitions[p.0 as usize].space.is_full = false;
            self.full_disk.forget(p);
            self.admission.signal(Lack::Disk);
        }
    }
}
