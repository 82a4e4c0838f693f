//! One partition during recovery: opened from its newest snapshot and the files that this needs, changed by redo,
//! then finished: everything synced, a snapshot that contains it all, and what the engine takes over.
//!
//! Reads the snapshot slots, the first block of the last segment and of those that its table does not name ([`headers`]), and of
//! the last segment the end and the last block of records before it; more only where these do not agree.

use super::cuts::Cut;
use super::headers::{self, HeaderAction};
use super::report::{Report, Severity};
use super::scan::{commit_at, commit_index, commit_record_at, commit_records, segment_at};
use super::snapshots::{Data, SNAPSHOT_TABLE, Slots, SnapshotAction};
use super::{RecoverError, channels, node, unknown};
use crate::base::{ChannelName, Epoch, FileId, PartitionDir, Position, TopicRef, block_down, block_up};
use crate::format::cursor::CursorImage;
use crate::format::decision::{Row, decide, finding};
use crate::format::epochs::Epochs;
use crate::format::files::{COMMIT_RECORD_LEN, CommitRecord};
use crate::format::snapshot::Snapshot;
use crate::format::storage::{Storage, read_range};
use crate::format::tail::Tail;
use crate::format::{files::SegmentMeta, snapshot::Doubt};
use crate::log::producers::{ProducerLimits, Producers};
use crate::log::state::RecoveredPartition;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::FromBytes;

finding! {
    /// First block of the last segment's commit log.
    CommitHeader { Holds, Fails }
}

finding! {
    /// The record before the end that the snapshot gives, and those before it in its block.
    CommitEnd {
        /// It is the last batch's, or the segment begins at the end.
        Agrees,
        /// One is missing, damaged, or another batch's.
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

/// What a whole recovery shares with each partition.
pub struct Context<'a> {
    pub storage: &'a mut dyn Storage,
    pub report: &'a mut Report,
    pub segment_bytes: u64,
    pub now_unix_ns: i64,
    /// Names what is set aside.
    pub label: &'a str,
    /// That this start will have, or a lower one that no earlier start had.
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
    /// The last batch is a lost one: the one behind it chains to what was there.
    pub chain_open: bool,
    pub epoch: Epoch,
    /// All epochs before that one; `None` while nobody knows.
    pub epochs: Option<Epochs>,
    pub promised: Epoch,
    pub committed: Position,
    /// Where the first damage begins.
    pub vouched: Option<Tail>,
    pub doubt: Doubt,
    /// The generation of the start that may have lost channels, until somebody accepts that; zero: none.
    pub channels_lost: u64,
    pub record_sequence: u64,
    /// Which records are contained is unknown: redo all that are found.
    pub sequence_unknown: bool,
    /// No snapshot: the journal is to begin with the partition's first record, if it has any.
    pub expects_first_record: bool,
    /// It has one, or what was there is lost.
    pub(super) needs_first_record: bool,
    /// One slot alone holds. It has all that there was when the journal still has the record behind what it contains; else
    /// what another one had may be lost.
    pub(super) unproven: bool,
    /// A damaged write without facts, or whose facts a copy has, explains that records are missing.
    pub is_gap_explained: bool,
    /// Facts of a write that was cut are kept: they may be of what was cut with it.
    pub has_kept: bool,
    /// The journal holds a record that is contained in the snapshot in use, or the first behind: so it has all since.
    pub has_witness: bool,
    /// The slots that do not hold (see [`Slots`]), to be told of and written again.
    pub(super) bad_slots: Vec<(FileId, bool)>,
    /// Two slots say what `on_disk` says.
    pub(super) is_twice: bool,
    /// The journal mentions the partition, so all of it must be synced before the journal is closed.
    pub touched: bool,
    pub channels: Vec<CursorImage>,
    pub lost: Vec<(Position, Position)>,
    pub segments: Vec<SegmentMeta>,
    /// Segment files not in `segments`: they begin at or behind the end.
    pub ahead: BTreeSet<i64>,
    pub segment_len: u64,
    pub commit_len: u64,
    /// Records of the last segment, those in `pending_records` included.
    pub commit_count: u64,
    /// Bytes of the log that are not written yet; they end at `end`.
    pub pending: Vec<u8>,
    pub pending_records: Vec<u8>,
    /// Files to sync.
    pub written: BTreeSet<FileId>,
    /// Idempotent producers as the batches before `end` tell them.
    pub producers: Producers,
    /// Cuts that the journals hold, and the last record of them that is contained, or was redone.
    pub cuts: Vec<Cut>,
    pub cut_upto: u64,
    /// Where retention let the log begin, by the newest record of it in the journals.
    let_go: Option<Position>,
    /// Segment files that are unlinked as soon as the start is durable, and of no use before.
    retired: Vec<i64>,
    /// The same before the snapshot's end, for a truncation that goes back behind what redo has counted since.
    pub snapshot_producers: Producers,
    /// Base timestamp of the last batch before `end`; zero when unknown.
    pub last_unix_ns: i64,
    /// Cursors of which FINs were redone, and nothing else is known, nor told later on: see [`Partition::report_unfounded`].
    pub unfounded: Vec<CursorImage>,
    /// FINs that were redone and are not in their cursors yet, by channel and generation.
    pub finished: BTreeMap<(ChannelName, u64), CursorImage>,
    pub finished_count: usize,
    /// Damage was found in this partition at this start.
    pub damaged: bool,
    pub(super) snapshot_sequence: u64,
    /// What the newest slot on disk says.
    pub(super) on_disk: Option<Snapshot>,
}

impl Partition {
    /// Opens it as its own files tell, without the journal.
    pub fn open(
        cx: &mut Context<'_>,
        topic: &TopicRef,
        dir: Arc<PartitionDir>,
        cuts: Vec<Cut>,
        let_go: Option<Position>,
    ) -> Result<Partition, RecoverError> {
        let bases: BTreeSet<i64> = cx.storage.segments(&dir)?.into_iter().filter(|&b| b >= 0).collect();
        let slots = Slots::read(cx.storage, &dir)?;
        let data = match bases.first() {
            None => Data::Nothing,
            Some(0) if bases.len() == 1 && commit_record_at(cx.storage, &dir, 0, 0)?.is_none() => Data::Nothing,
            Some(0) => Data::FromStart,
            // A restart in the journal makes all that is needed of it.
            Some(_) if cuts.iter().any(|c| c.is_restart) => Data::FromStart,
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
            vouched: None,
            doubt: Doubt::None,
            channels_lost: 0,
            record_sequence: 0,
            sequence_unknown: false,
            expects_first_record: false,
            needs_first_record: false,
            unproven: false,
            is_gap_explained: false,
            has_kept: false,
            has_witness: false,
            bad_slots: slots.bad,
            is_twice: slots.is_twice,
            touched: false,
            channels: vec![],
            lost: vec![],
            segments: vec![],
            ahead: bases,
            segment_len: 0,
            commit_len: 0,
            commit_count: 0,
            pending: vec![],
            pending_records: vec![],
            written: BTreeSet::new(),
            producers: Producers::new(cx.producers),
            snapshot_producers: Producers::new(cx.producers),
            last_unix_ns: 0,
            cuts,
            cut_upto: 0,
            let_go,
            retired: vec![],
            unfounded: vec![],
            finished: BTreeMap::new(),
            finished_count: 0,
            damaged: false,
            snapshot_sequence: 0,
            on_disk: None,
            dir,
        };
        match decide(SNAPSHOT_TABLE, slots.found, data, ()).then {
            action @ (SnapshotAction::Use | SnapshotAction::UseIfProven) => {
                p.unproven = action == SnapshotAction::UseIfProven;
                p.use_snapshot(cx, slots.newest.expect("the table's row needs a slot that holds"))?;
            }
            action @ (SnapshotAction::Fresh | SnapshotAction::FreshIfFirst) => {
                p.expects_first_record = true;
                p.needs_first_record = action == SnapshotAction::FreshIfFirst;
                p.open_cut(cx, 0)?;
            }
            SnapshotAction::Rebuild => p.rebuild(cx)?,
            SnapshotAction::Halt => return Err(unknown(slots.newer.expect("the table's row has one"), 0)),
        }
        Ok(p)
    }

    pub fn segment_file(&self) -> Option<FileId> {
        Some(FileId::Segment(self.dir.clone(), self.segments.last()?.base.offset))
    }

    pub fn commit_file(&self) -> Option<FileId> {
        Some(FileId::Commit(self.dir.clone(), self.segments.last()?.base.offset))
    }

    /// Notes damage: the partition is suspect from now on.
    pub fn damage(&mut self, cx: &mut Context<'_>, file: FileId, at: Option<u64>, what: impl Into<String>) {
        (self.doubt, self.damaged) = (Doubt::Lost, true);
        cx.report.note(Severity::Damage, &file, at, what);
    }

    /// Notes damage that may have taken channels: those that clients name begin at the oldest message there is.
    pub fn lose_channels(&mut self, cx: &mut Context<'_>, file: FileId, what: impl Into<String>) {
        self.channels_lost = cx.generation;
        self.damage(cx, file, None, what);
    }

    fn use_snapshot(&mut self, cx: &mut Context<'_>, s: Snapshot) -> Result<(), RecoverError> {
        (self.start, self.end, self.collect_start) = (s.start, s.end, s.collect_start);
        (self.chain_crc, self.epoch, self.doubt) = (s.chain_crc, s.epoch, s.doubt);
        (self.record_sequence, self.snapshot_sequence) = (s.applied, s.sequence);
        (self.promised, self.committed, self.vouched) = (s.promised, s.committed, s.vouched);
        self.channels_lost = s.channels_lost;
        self.epochs = Some(Epochs::restore(s.epochs.clone()).expect("verified when it was read"));
        self.channels = s.channels.clone();
        self.producers = Producers::restore(cx.producers, &s.producers);
        self.snapshot_producers = self.producers.clone();
        self.last_unix_ns = s.unix_ns;
        let applied = s.applied;
        self.on_disk = Some(s);
        if self.open_cut(cx, applied)? {
            return Ok(());
        }
        let end = self.end.offset;
        let before: Vec<i64> = self.ahead.iter().copied().filter(|&b| b < end).collect();
        if !self.leave_what_is_left(&before) {
            self.enter_old(cx, &before)?;
        }
        if self.ahead.contains(&end) && !self.is_cut_pending() {
            // A segment that was begun, or is about to be, just at the end.
            return self.enter(cx);
        }
        self.check_last(cx)
    }

    /// Retention let go of all that the log had, and unlinks files in any order on a full disk. The last of those that a crash left may
    /// not be the one that the log ended in: then none of them is entered, and the log goes on in a new one.
    fn leave_what_is_left(&mut self, before: &[i64]) -> bool {
        let end = self.end.offset;
        let start = self.let_go.filter(|at| at.offset > self.start.offset).unwrap_or(self.start);
        let ended_in = self.on_disk.as_ref().map(|s| s.segment_base);
        let is_left = start.offset >= end && self.cuts.is_empty() && before.last().is_some_and(|last| ended_in != Some(*last));
        if is_left {
            self.start = start;
            self.ahead.retain(|base| *base >= end);
            self.retired = before.to_vec();
        }
        is_left
    }

    /// Holds the last segment and its commit log against the end.
    fn check_last(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        let Some(&SegmentMeta { base, .. }) = self.segments.last() else { return Ok(()) };
        let (segment, commit) = (FileId::Segment(self.dir.clone(), base.offset), FileId::Commit(self.dir.clone(), base.offset));
        self.segment_len = cx.storage.len(&segment)?.unwrap_or(0);
        self.commit_len = cx.storage.len(&commit)?.unwrap_or(0);
        let needed = block_up(segment_at(base.offset, self.end.offset));
        if self.segment_len < needed {
            let what = format!("the file ends at byte {}, its batches at {needed}", self.segment_len);
            self.damage(cx, segment.clone(), Some(self.segment_len), what);
            cx.allocate(&segment, needed)?;
            self.segment_len = needed;
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
            CommitAction::Keep => self.commit_count = index,
            CommitAction::RepairHeader => {
                cx.report.note(Severity::Repaired, &commit, Some(0), "the file header is damaged: written again");
                let meta = *self.segments.last().expect("looked at above");
                self.write_headers(cx, &meta, self.epoch)?;
                self.commit_count = index;
            }
            CommitAction::Rebuild => {
                cx.report.note(Severity::Repaired, &commit, None, "short or damaged: rebuilt from the segment");
                let promised = self.end;
                self.rebuild_commit(cx, Some(promised))?;
            }
        }
        Ok(())
    }

    /// Without a snapshot: the place comes from the segments and the last commit log.
    fn rebuild(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        (self.sequence_unknown, self.snapshot_sequence) = (true, cx.sequence_floor);
        self.epochs = None;
        self.record_sequence = cx.sequence_floor;
        let file = FileId::Snapshot(self.dir.clone(), 0);
        self.lose_channels(
            cx,
            file,
            "no snapshot holds: rebuilt from the segments; channels that the journal does not name are lost",
        );
        if self.open_cut(cx, 0)? {
            return Ok(());
        }
        let mut bases: Vec<i64> = self.ahead.iter().copied().collect();
        // Segments that were allocated and never begun are entered like any other when the log comes to them.
        while let Some(&last) = bases.last() {
            let blank = headers::read(cx.storage, &self.dir, last)?.meta.is_none();
            if !blank {
                break;
            }
            bases.pop();
        }
        self.enter_old(cx, &bases)?;
        let (Some(first), Some(last)) = (self.segments.first().copied(), self.segments.last().copied()) else { return Ok(()) };
        (self.start, self.collect_start) = (first.base, first.base);
        (self.end, self.chain_crc) = (last.base, last.prev_crc);
        self.segment_len = cx.storage.len(&FileId::Segment(self.dir.clone(), last.base.offset))?.unwrap_or(0);
        self.commit_len = cx.storage.len(&FileId::Commit(self.dir.clone(), last.base.offset))?.unwrap_or(0);
        self.count_producers(cx, first.base.offset, last.base.offset)?;
        let records = commit_records(cx.storage, &self.dir, last.base.offset)?;
        let promised = records.last().map(|r| r.end());
        self.rebuild_commit(cx, promised)
    }

    /// Writes what is not written, looks behind the end, makes all durable, takes a snapshot when the newest one does
    /// not say the same, and removes what retention let go. Safe to do again after a crash at any point.
    pub fn finish(mut self, cx: &mut Context<'_>) -> Result<RecoveredPartition, RecoverError> {
        self.settle_first(cx)?;
        self.advance(cx)?;
        self.prove(cx)?;
        if self.segments.is_empty() && self.end.offset > 0 {
            self.enter(cx)?;
        }
        self.drop_ahead(cx)?;
        self.clamp(cx);
        self.check_start(cx);
        self.clear_stale_records(cx)?;
        self.find_epochs(cx)?;
        self.report_bad_slots(cx);
        let snapshot = self.snapshot();
        let copies = self.copies(&snapshot);
        if self.touched {
            // Another process may have died with these written and not yet durable.
            self.written.extend([self.segment_file(), self.commit_file()].into_iter().flatten());
        }
        for file in &self.written {
            cx.storage.sync(file)?;
        }
        if let (true, Some(on_disk)) = (self.touched, &self.on_disk) {
            // The same goes for the snapshot; and before another slot is written over, lest a power loss takes both.
            Self::write_slot(cx, &Snapshot::file(&self.dir, on_disk.sequence), &on_disk.encode())?;
        }
        self.mend_slot(cx)?;
        self.write_snapshots(cx, snapshot, copies)?;
        self.retire(cx)?;
        self.into_recovered(cx)
    }

    /// The topic's first channel, as partition 0 has it, is here too.
    pub fn complete_first(&mut self, first: &CursorImage) {
        if channels::position(&self.channels, &first.name).is_none() {
            let oldest = std::cmp::max_by_key(self.collect_start, self.start, |p| p.offset);
            self.channels.push(CursorImage { generation: 0, ..channels::reborn(first, oldest) });
            self.touched = true;
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            topic_id: self.dir.topic_id,
            partition: self.dir.partition,
            sequence: self.snapshot_sequence + 1,
            applied: self.record_sequence,
            epoch: self.epoch,
            start: self.start,
            end: self.end,
            committed: self.committed_end(),
            collect_start: self.collect_start,
            chain_crc: self.chain_crc,
            segment_base: self.segments.last().map_or(0, |m| m.base.offset),
            doubt: self.doubt,
            channels_lost: self.channels_lost,
            unix_ns: self.last_unix_ns,
            channels: self.channels.clone(),
            producers: self.producers.iter().copied().collect(),
            promised: self.promised,
            epochs: self.epochs.as_ref().expect("they are searched before a snapshot is taken").iter().collect(),
            vouched: self.vouched.filter(|_| self.promised > Epoch(0)),
        }
    }

    /// What has no other replica is committed when it is durable.
    fn committed_end(&self) -> Position {
        if self.promised == Epoch(0) { self.end } else { self.committed }
    }

    /// Damage begins at the end, if none was found before it.
    pub fn unvouch(&mut self) {
        let Partition { end: at, chain_crc, epoch, .. } = *self;
        if self.vouched.is_none_or(|v| at.offset < v.at.offset) {
            self.vouched = Some(Tail { at, chain_crc, epoch });
        }
    }

    /// On a full disk: frees the space that was allocated ahead of the log's end. Whether there was any.
    pub(super) fn give_back(&mut self, cx: &mut Context<'_>) -> Result<bool, RecoverError> {
        let (Some(segment), Some(commit)) = (self.segment_file(), self.commit_file()) else { return Ok(false) };
        let base = self.segments.last().expect("it has a file").base.offset;
        let lens = [block_up(segment_at(base, self.end.offset)), block_up(commit_at(self.commit_count))];
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

    /// Segment files behind the end: of a life that was not acknowledged, unless something was lost here.
    fn drop_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        let is_beyond =
            |p: &Partition| p.segments.last().is_some_and(|m| block_up(segment_at(m.base.offset, p.end.offset)) > p.segment_len);
        if self.ahead.contains(&self.end.offset) || is_beyond(self) {
            // Behind a lost batch the end may lie beyond the file: the log goes on in a new one.
            self.enter(cx)?;
        }
        let mut ahead = std::mem::take(&mut self.ahead);
        let known: BTreeSet<i64> = self.segments.iter().map(|m| m.base.offset).collect();
        ahead.extend(cx.storage.commits(&self.dir)?);
        for base in ahead.into_iter().filter(|b| !known.contains(b)) {
            if self.damaged && headers::read(cx.storage, &self.dir, base)?.action == HeaderAction::Keep {
                headers::set_aside(cx.storage, &self.dir, base, cx.label, "it does not continue the log", cx.report)?;
            } else {
                cx.storage.remove(&[FileId::Segment(self.dir.clone(), base), FileId::Commit(self.dir.clone(), base)])?;
            }
        }
        Ok(())
    }

    fn clamp(&mut self, cx: &mut Context<'_>) {
        let (end, mut beyond) = (self.end, 0);
        for channel in &mut self.channels {
            beyond += channels::clamp(channel, end) as usize;
        }
        if self.start.offset > end.offset {
            self.start = end;
            beyond += 1;
        }
        if self.collect_start.offset > end.offset {
            self.collect_start = end;
            // A follower takes its leader's at once, and the log up to there later.
            beyond += (self.promised == Epoch(0)) as usize;
        }
        if beyond > 0 && !self.has_kept {
            let file = FileId::Snapshot(self.dir.clone(), 0);
            self.damage(cx, file, None, format!("{beyond} cursors stood behind the log's end and were moved to it"));
        }
    }

    /// Retention journals the new start before it unlinks; so after redo the start lies in a segment that is there.
    fn check_start(&mut self, cx: &mut Context<'_>) {
        let kept_from = self.segments.first().map_or(self.end, |m| m.base);
        if kept_from.offset > self.start.offset {
            let file = FileId::Segment(self.dir.clone(), self.start.offset);
            self.damage(cx, file, None, format!("segments are missing from {} to {}", self.start.offset, kept_from.offset));
            self.lost.push((self.start, kept_from));
            self.start = kept_from;
        }
    }

    /// Unlinks what lies wholly before the start: the start is durable by now.
    fn retire(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        for base in std::mem::take(&mut self.retired) {
            cx.storage.remove(&[FileId::Segment(self.dir.clone(), base), FileId::Commit(self.dir.clone(), base)])?;
        }
        while self.segments.len() > 1 && self.segments[1].base.offset <= self.start.offset {
            let base = self.segments.remove(0).base.offset;
            cx.storage.remove(&[FileId::Segment(self.dir.clone(), base), FileId::Commit(self.dir.clone(), base)])?;
        }
        Ok(())
    }

    /// Of the batch that ends at the start. That may lie within the last segment: retention let go of all that was there, and there was
    /// no file yet of the one that would have gone on behind it. A replica that begins there takes only what is chained to it.
    fn start_crc(&self, cx: &mut Context<'_>) -> Result<u32, RecoverError> {
        let Some(first) = self.segments.first() else { return Ok(self.chain_crc) };
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
        let (mut tail, mut commit_tail) = (vec![], vec![]);
        if let (Some(segment), Some(commit), Some(last)) = (self.segment_file(), self.commit_file(), self.segments.last()) {
            let rest = |at: u64| (block_down(at), (at - block_down(at)) as usize);
            let (at, len) = rest(segment_at(last.base.offset, self.end.offset));
            tail = read_range(cx.storage, &segment, at, len)?;
            let (at, len) = rest(commit_at(self.commit_count));
            commit_tail = read_range(cx.storage, &commit, at, len)?;
            debug_assert!(commit_tail.len() % COMMIT_RECORD_LEN == 0);
        }
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
            vouched: self.vouched,
            doubt: self.doubt,
            channels_lost: self.channels_lost,
            record_sequence: self.record_sequence,
            snapshot_sequence: self.snapshot_sequence,
            segment_len: self.segment_len,
            commit_len: self.commit_len,
            segments: self.segments,
            tail,
            commit_tail,
            commit_records: self.commit_count,
            channels: self.channels,
            lost: self.lost,
            producers: self.producers,
            counted,
            last_unix_ns: self.last_unix_ns,
        })
    }
}

/// Whether all records in the last block of a commit log that holds `count` of them stand there, one behind the other. The writer goes
/// on in this block with what is read of it, so no scrubber would ever find it other than it was written.
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
        decision::check(COMMIT_TABLE, include_str!("partition.rs"), crate::ON_DISK);
    }
}
