//! One partition during recovery: opened from its newest snapshot and the files that this needs, changed by redo, then finished:
//! everything synced, a snapshot that contains it all, and the state that the engine takes over.
//!
//! Reads the snapshot slots, the first block of the last segment and of those that its table does not name ([`headers`]), the end of the
//! last segment and the last block of its records; more only if these do not agree.

use super::channels::Channels;
use super::files::Files;
use super::headers::{self, HeaderAction};
use super::producers::Counted;
use super::records::Records;
use super::report::{Report, Severity};
use super::scan::{commit_at, commit_index, commit_record_at, commit_records, segment_at};
use super::snapshots::{Data, FoundSlots, SNAPSHOT_TABLE, Slots, SnapshotAction};
use super::truncations::PartitionTruncations;
use super::{RecoverError, node, unknown};
use crate::base::{Epoch, FileId, PartitionDir, Position, TopicRef, block_down, block_up};
use crate::format::cursor::CursorImage;
use crate::format::decision::{Row, decide, finding};
use crate::format::epochs::Epochs;
use crate::format::files::{COMMIT_RECORD_LEN, CommitRecord};
use crate::format::snapshot::Snapshot;
use crate::format::storage::{Storage, read_range};
use crate::format::tail::Tail;
use crate::format::{files::SegmentMeta, snapshot::Doubt};
use crate::log::damage::Damage;
use crate::log::producers::ProducerLimits;
use crate::log::state::RecoveredPartition;
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::FromBytes;

finding! {
    /// First block of the last segment's commit log.
    CommitHeader { Holds, Fails }
}

finding! {
    /// The record before the end that the snapshot gives, and those before it in its block.
    CommitEnd {
        /// The record is the last batch's, or the segment begins at the end.
        Agrees,
        /// A record is missing, damaged, or another batch's.
        Differs,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitAction {
    Keep,
    /// Write the header again; the records stay.
    RepairHeader,
    /// Write every record again from the segment's batch headers.
    Rebuild,
}

/// | header | record before the end | action | why |
/// |---|---|---|---|
/// | Holds | Agrees | Keep | what stands behind the end is a promise to redo, or cleared |
/// | Fails | Agrees | RepairHeader | the segment's header says the same |
/// | any | Differs | Rebuild | it is an index: the segment has all of it |
pub const COMMIT_TABLE: &[Row<CommitHeader, CommitEnd, (), CommitAction>] = &[
    Row {
        a: &[CommitHeader::Holds],
        b: &[CommitEnd::Agrees],
        c: &[],
        then: CommitAction::Keep,
        why: "what stands behind the end is a promise to redo, or cleared",
    },
    Row {
        a: &[CommitHeader::Fails],
        b: &[CommitEnd::Agrees],
        c: &[],
        then: CommitAction::RepairHeader,
        why: "the segment's header says the same",
    },
    Row {
        a: &[],
        b: &[CommitEnd::Differs],
        c: &[],
        then: CommitAction::Rebuild,
        why: "it is an index: the segment has all of it",
    },
];

/// State of a recovery that all partitions share.
pub struct Context<'a> {
    pub storage: &'a mut dyn Storage,
    pub report: &'a mut Report,
    pub segment_bytes: u64,
    pub now_unix_ns: i64,
    /// Suffix in the names of files that are set aside.
    pub label: &'a str,
    /// Generation of this startup, or a lower one that no earlier startup had.
    pub generation: u64,
    /// Record and snapshot sequences begin here when those before are unknown: above any that was ever used.
    pub sequence_floor: u64,
    pub producers: ProducerLimits,
}

impl Context<'_> {
    /// Allocates; on a full disk from the room that node.meta keeps for this.
    pub fn allocate(&mut self, file: &FileId, len: u64) -> Result<(), RecoverError> {
        match self.storage.allocate(file, len) {
            Err(e) if e.is_no_space() && node::give_back(self.storage)? => Ok(self.storage.allocate(file, len)?),
            other => Ok(other?),
        }
    }
}

pub struct Partition {
    pub dir: Arc<PartitionDir>,
    pub topic: TopicRef,
    pub start: Position,
    pub end: Position,
    pub collect_start: Position,
    pub chain_crc: u32,
    /// True if the last batch is a lost one: the next batch chains to the original header.
    pub chain_open: bool,
    pub epoch: Epoch,
    /// All epochs before the last one; `None` while unknown.
    pub epochs: Option<Epochs>,
    pub promised: Epoch,
    pub committed: Position,
    pub damage: Damage,
    /// Damage was found in this partition at this startup.
    pub(super) is_damaged: bool,
    pub records: Records,
    pub saved: FoundSlots,
    /// The journal mentions the partition, so all of it must be synced before the journal is closed.
    pub touched: bool,
    pub channels: Channels,
    pub files: Files,
    pub counted: Counted,
    pub truncations: PartitionTruncations,
}

impl Partition {
    /// Opens it as its own files tell, without the journal.
    pub fn open(
        cx: &mut Context<'_>,
        topic: &TopicRef,
        dir: Arc<PartitionDir>,
        truncations: PartitionTruncations,
    ) -> Result<Partition, RecoverError> {
        let bases: BTreeSet<i64> = cx.storage.segments(&dir)?.into_iter().filter(|&b| b >= 0).collect();
        let mut slots = Slots::read(cx.storage, &dir)?;
        let data = match bases.first() {
            None => Data::Nothing,
            Some(0) if bases.len() == 1 && commit_record_at(cx.storage, &dir, 0, 0)?.is_none() => Data::Nothing,
            Some(0) => Data::FromStart,
            // A restart in the journal makes all that is needed of it.
            Some(_) if truncations.has_restart() => Data::FromStart,
            Some(_) => Data::FromLater,
        };
        let mut p = Partition {
            topic: topic.clone(),
            start: Position::START,
            end: Position::START,
            collect_start: Position::START,
            chain_crc: 0,
            chain_open: false,
            epoch: Epoch(0),
            epochs: Some(Epochs::default()),
            promised: Epoch(0),
            committed: Position::START,
            damage: Damage::default(),
            is_damaged: false,
            records: Records::fresh(cx.sequence_floor, false),
            saved: FoundSlots::of(&mut slots),
            touched: false,
            channels: Channels::default(),
            files: Files::new(dir.clone(), bases),
            counted: Counted::new(cx.producers),
            truncations,
            dir,
        };
        match decide(SNAPSHOT_TABLE, slots.found, data, ()).then {
            action @ (SnapshotAction::Use | SnapshotAction::UseIfProven) => {
                p.use_snapshot(cx, action == SnapshotAction::UseIfProven)?;
            }
            action @ (SnapshotAction::Fresh | SnapshotAction::FreshIfFirst) => {
                p.records = Records::fresh(cx.sequence_floor, action == SnapshotAction::FreshIfFirst);
                p.open_truncation(cx, 0)?;
            }
            SnapshotAction::Rebuild => p.rebuild(cx)?,
            SnapshotAction::Halt => return Err(unknown(slots.newer.expect("the table's row has one"), 0)),
        }
        Ok(p)
    }

    /// The partition is suspect from now on: something was complete once, and is lost.
    pub fn suspect(&mut self) {
        self.damage.set_doubt(Doubt::Lost);
        self.is_damaged = true;
    }

    /// Reports damage.
    pub fn report_damage(&mut self, cx: &mut Context<'_>, file: FileId, at: Option<u64>, what: impl Into<String>) {
        self.suspect();
        cx.report.note(Severity::Damage, &file, at, what);
    }

    /// Notes damage that may have taken channels: those that clients name begin at the oldest message there is.
    pub fn lose_channels(&mut self, cx: &mut Context<'_>, file: FileId, what: impl Into<String>) {
        self.damage.mark_channels_lost(cx.generation);
        self.report_damage(cx, file, None, what);
    }

    /// `is_unproven`: no other slot holds.
    fn use_snapshot(&mut self, cx: &mut Context<'_>, is_unproven: bool) -> Result<(), RecoverError> {
        let s = self.saved.newest().expect("the table's row needs a slot that holds");
        let applied = s.applied;
        self.records = Records::behind(applied, cx.sequence_floor, is_unproven);
        (self.start, self.end, self.collect_start) = (s.start, s.end, s.collect_start);
        (self.chain_crc, self.epoch) = (s.chain_crc, s.epoch);
        (self.promised, self.committed) = (s.promised, s.committed);
        self.damage = Damage::new(vec![], s.vouched, s.doubt, s.channels_lost);
        self.epochs = Some(Epochs::restore(s.epochs.clone()).expect("verified when it was read"));
        self.channels = Channels::of(s.channels.clone());
        self.counted = Counted::behind(cx.producers, s);
        if self.open_truncation(cx, applied)? {
            return Ok(());
        }
        let end = self.end.offset;
        let before: Vec<i64> = self.files.ahead().range(..end).copied().collect();
        if !self.leave_what_is_left(&before) {
            self.enter_old(cx, &before)?;
        }
        if self.files.begins_at(end) && !self.truncations.is_pending() {
            // A segment that was begun, or is about to be, just at the end.
            return self.enter(cx);
        }
        self.check_last(cx)
    }

    /// Retention removed all that the log had, and unlinks files in any order on a full disk. The last of those that a crash left may
    /// not be the one that the log ended in: then none of them is entered, and the log goes on in a new one.
    fn leave_what_is_left(&mut self, before: &[i64]) -> bool {
        let end = self.end.offset;
        let start = self.truncations.retained_start(self.start);
        let ended_in = self.saved.newest().map(|s| s.segment_base);
        let is_left =
            start.offset >= end && self.truncations.is_empty() && before.last().is_some_and(|last| ended_in != Some(*last));
        if is_left {
            self.start = start;
            self.files.retire_before(end);
        }
        is_left
    }

    /// Holds the last segment and its commit log against the end.
    fn check_last(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        let Some(meta @ SegmentMeta { base, .. }) = self.files.last() else { return Ok(()) };
        let [segment, commit] = self.files.pair(base.offset);
        self.files.measure(cx)?;
        let (there, needed) = (self.files.segment_len(), block_up(segment_at(base.offset, self.end.offset)));
        if there < needed {
            self.report_damage(cx, segment, Some(there), format!("the file ends at byte {there}, its batches at {needed}"));
            self.files.grow_segment(cx, needed)?;
        }
        let index = commit_index(cx.storage, &self.dir, base.offset, self.end.offset)?;
        let last = match index {
            0 => None,
            _ => commit_record_at(cx.storage, &self.dir, base.offset, index - 1)?,
        };
        let agrees = last.is_some_and(|r| r.end() == self.end && r.batch_crc.get() == self.chain_crc)
            && last_records_hold(cx.storage, &self.dir, base.offset, index)?;
        let header = headers::read(cx.storage, &self.dir, base.offset)?;
        let header = if header.spare.is_some() { CommitHeader::Holds } else { CommitHeader::Fails };
        let end = if agrees { CommitEnd::Agrees } else { CommitEnd::Differs };
        match decide(COMMIT_TABLE, header, end, ()).then {
            CommitAction::Keep => self.files.set_commit_count(index),
            CommitAction::RepairHeader => {
                cx.report.note(Severity::Repaired, &commit, Some(0), "the file header is damaged: written again");
                self.files.write_headers(cx, &meta, self.epoch)?;
                self.files.set_commit_count(index);
            }
            CommitAction::Rebuild => {
                cx.report.note(Severity::Repaired, &commit, None, "short or damaged: rebuilt from the segment");
                let promised = self.end;
                self.rebuild_commit(cx, Some(promised))?;
            }
        }
        Ok(())
    }

    /// Rebuilds the state without a snapshot: positions come from the segments and the last commit log.
    fn rebuild(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        self.records = Records::unknown(cx.sequence_floor);
        self.saved.raise(cx.sequence_floor);
        self.epochs = None;
        let file = FileId::Snapshot(self.dir.clone(), 0);
        self.lose_channels(
            cx,
            file,
            "no snapshot holds: rebuilt from the segments; channels that the journal does not name are lost",
        );
        if self.open_truncation(cx, 0)? {
            return Ok(());
        }
        let mut bases: Vec<i64> = self.files.ahead().iter().copied().collect();
        // Segments that were allocated and never begun are entered like any other when the log comes to them.
        while let Some(&last) = bases.last() {
            let blank = headers::read(cx.storage, &self.dir, last)?.meta.is_none();
            if !blank {
                break;
            }
            bases.pop();
        }
        self.enter_old(cx, &bases)?;
        let (Some(first), Some(last)) = (self.files.segments().first().copied(), self.files.last()) else { return Ok(()) };
        (self.start, self.collect_start) = (first.base, first.base);
        (self.end, self.chain_crc) = (last.base, last.prev_crc);
        self.files.measure(cx)?;
        self.count_producers(cx, first.base.offset, last.base.offset)?;
        let records = commit_records(cx.storage, &self.dir, last.base.offset)?;
        let promised = records.last().map(|r| r.end());
        self.rebuild_commit(cx, promised)
    }

    /// Writes the pending bytes, looks behind the end, makes all durable, takes a snapshot if the newest one differs, and removes the
    /// segments below the start. May be repeated after a crash at any point.
    pub fn finish(mut self, cx: &mut Context<'_>) -> Result<RecoveredPartition, RecoverError> {
        self.settle_first(cx)?;
        self.advance(cx)?;
        self.prove(cx)?;
        if self.files.segments().is_empty() && self.end.offset > 0 {
            self.enter(cx)?;
        }
        self.drop_ahead(cx)?;
        self.clamp(cx);
        self.check_start(cx);
        self.files.clear_stale_records(cx)?;
        self.find_epochs(cx)?;
        self.report_bad_slots(cx);
        let snapshot = self.snapshot();
        let copies = self.copies(&snapshot);
        if self.touched {
            // Another process may have died with these written and not yet durable.
            self.files.touch_last();
        }
        self.files.sync(cx)?;
        if self.touched {
            self.write_back_newest(cx)?;
        }
        self.mend_slot(cx)?;
        self.write_snapshots(cx, snapshot, copies)?;
        self.files.retire(cx, self.start)?;
        self.into_recovered(cx)
    }

    /// Whether neither the disk nor a journal has anything of the partition.
    pub fn is_blank(&self) -> bool {
        !self.touched && self.end.offset == 0 && self.files.segments().is_empty() && self.saved.newest().is_none()
    }

    /// The topic's first channel, as partition 0 has it, is here too.
    pub fn complete_first(&mut self, first: &CursorImage) {
        let oldest = std::cmp::max_by_key(self.collect_start, self.start, |p| p.offset);
        self.touched |= self.channels.complete_first(first, oldest);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            topic_id: self.dir.topic_id,
            partition: self.dir.partition,
            sequence: self.saved.sequence() + 1,
            applied: self.records.last(),
            epoch: self.epoch,
            start: self.start,
            end: self.end,
            committed: self.committed_end(),
            collect_start: self.collect_start,
            chain_crc: self.chain_crc,
            segment_base: self.files.last_base().unwrap_or(0),
            doubt: self.damage.doubt(),
            channels_lost: self.damage.channels_lost(),
            unix_ns: self.counted.last_unix_ns(),
            channels: self.channels.list().to_vec(),
            producers: self.counted.producers().iter().copied().collect(),
            promised: self.promised,
            epochs: self.epochs.as_ref().expect("they are searched before a snapshot is taken").iter().collect(),
            vouched: self.damage.vouched().filter(|_| self.promised > Epoch(0)),
        }
    }

    /// Committed end. Without another replica everything durable is committed.
    fn committed_end(&self) -> Position {
        if self.promised == Epoch(0) { self.end } else { self.committed }
    }

    /// Sets the begin of damage to the end, if no damage was found before it.
    pub fn unvouch(&mut self) {
        let Partition { end: at, chain_crc, epoch, .. } = *self;
        self.damage.unvouch(at, || Tail { at, chain_crc, epoch });
    }

    /// Segment files behind the end: of a life that was not acknowledged, unless something was lost here.
    fn drop_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        let needed = self.files.last_base().map_or(0, |base| block_up(segment_at(base, self.end.offset)));
        if self.files.begins_at(self.end.offset) || needed > self.files.segment_len() {
            // Behind a lost batch the end may lie beyond the file: the log goes on in a new one.
            self.enter(cx)?;
        }
        let mut ahead = self.files.take_ahead();
        let known: BTreeSet<i64> = self.files.segments().iter().map(|m| m.base.offset).collect();
        ahead.extend(cx.storage.commits(&self.dir)?);
        for base in ahead.into_iter().filter(|b| !known.contains(b)) {
            if self.is_damaged && headers::read(cx.storage, &self.dir, base)?.action == HeaderAction::Keep {
                headers::set_aside(cx.storage, &self.dir, base, cx.label, "the segment does not continue the log", cx.report)?;
            } else {
                cx.storage.remove(&[FileId::Segment(self.dir.clone(), base), FileId::Commit(self.dir.clone(), base)])?;
            }
        }
        Ok(())
    }

    fn clamp(&mut self, cx: &mut Context<'_>) {
        let end = self.end;
        let mut beyond = self.channels.clamp(end, self.start);
        if self.start.offset > end.offset {
            self.start = end;
            beyond += 1;
        }
        if self.collect_start.offset > end.offset {
            self.collect_start = end;
            // A follower takes its leader's at once, and the log up to there later.
            beyond += (self.promised == Epoch(0)) as usize;
        }
        if beyond > 0 && !self.records.has_kept() {
            let file = FileId::Snapshot(self.dir.clone(), 0);
            self.report_damage(cx, file, None, format!("{beyond} cursors were beyond the log's end and were moved to it"));
        }
    }

    /// Retention journals the new start before it unlinks; so after redo the start lies in a segment that is there.
    fn check_start(&mut self, cx: &mut Context<'_>) {
        let kept_from = self.files.segments().first().map_or(self.end, |m| m.base);
        if kept_from.offset > self.start.offset {
            let file = FileId::Segment(self.dir.clone(), self.start.offset);
            self.report_damage(
                cx,
                file,
                None,
                format!("segments are missing from {} to {}", self.start.offset, kept_from.offset),
            );
            self.damage.add_lost(self.start, kept_from);
            self.start = kept_from;
        }
    }

    /// Crc of the batch that ends at the log's start. The start may lie within the last segment: retention removed everything there,
    /// and the segment that would have followed did not exist yet. A replica that begins there takes only batches chained to it.
    fn start_crc(&self, cx: &mut Context<'_>) -> Result<u32, RecoverError> {
        let Some(first) = self.files.segments().first() else { return Ok(self.chain_crc) };
        if first.base == self.start {
            return Ok(first.prev_crc);
        }
        if self.start == self.end {
            return Ok(self.chain_crc);
        }
        let (base, start) = (first.base.offset, self.start);
        let before = commit_index(cx.storage, &self.dir, base, start.offset)?.checked_sub(1);
        let record = before.map(|index| commit_record_at(cx.storage, &self.dir, base, index)).transpose()?.flatten();
        Ok(record.filter(|r| r.end() == start).map_or(0, |r| r.batch_crc.get()))
    }

    fn into_recovered(self, cx: &mut Context<'_>) -> Result<RecoveredPartition, RecoverError> {
        let start_crc = self.start_crc(cx)?;
        let committed = self.committed_end();
        let counted = self.counted_behind(cx, committed.offset)?;
        Ok(RecoveredPartition {
            dir: self.dir,
            topic: self.topic,
            start: self.start,
            start_crc,
            end: self.end,
            collect_start: self.collect_start,
            chain_crc: self.chain_crc,
            epoch: self.epoch,
            epochs: self.epochs.unwrap_or_default(),
            promised: self.promised,
            committed,
            damage: self.damage,
            record_sequence: self.records.last(),
            snapshot_sequence: self.saved.sequence(),
            files: self.files.into_recovered(cx, self.end)?,
            channels: self.channels.into_list(),
            last_unix_ns: self.counted.last_unix_ns(),
            producers: self.counted.into_producers(),
            counted,
        })
    }
}

/// True if the last block of a commit log with `count` records has all of them, one behind the other. The writer continues this block
/// with the bytes read now, so the scrubber would never find an error in it.
fn last_records_hold(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, base: i64, count: u64) -> Result<bool, RecoverError> {
    let (to, mut next) = (commit_at(count), None);
    let at = block_down(to - 1).max(commit_at(0));
    let bytes = read_range(storage, &FileId::Commit(dir.clone(), base), at, (to - at) as usize)?;
    let hold = bytes.chunks_exact(COMMIT_RECORD_LEN).all(|record| {
        let record = CommitRecord::read_from_bytes(record).ok().filter(|r| r.is_valid(dir.topic_id, dir.partition));
        let follows = record.is_some_and(|r| next.is_none_or(|at| r.position() == at));
        next = record.map(|r| r.end());
        follows
    });
    Ok(hold && bytes.len() as u64 == to - at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::decision;

    #[test]
    fn the_table_answers_everything_once() {
        decision::check(COMMIT_TABLE, include_str!("partition.rs"));
    }
}
