//! Truncations of a log during recovery, and restarts that drop all of it.
//!
//! A truncation's record is durable before a byte is truncated, and nothing is appended before the truncation is physically
//! complete. So the journal tells how far a truncation has come. With a batch behind its record it was complete, and the bytes
//! behind its place are new. Without one nothing behind its place counts, and it is done (again). The journals are searched for
//! truncations before anything is redone:
//!
//! ```text
//! snapshot says     later record      what is redone
//! ends before it    any               batches that a later truncation takes are not written: their place may have new ones
//! ends behind it    truncation        the log is opened where the truncation ends it, as its tail may be gone
//! any               restart           the log is opened empty, where the restart begins it; channels and promises stay
//! ```

use super::RecoverError;
use super::partition::{Context, Partition};
use super::producers::Counted;
use super::scan::{commit_index, commit_record_at};
use crate::base::{Epoch, IdMap, Position, TopicId};
use crate::format::epochs::Epochs;
use crate::format::files::RawPosition;
use crate::format::journal::RecordKind;
use crate::journal::replay::Record;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Truncation as its record describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncationRecord {
    /// Sequence of the record.
    pub sequence: u64,
    pub is_restart: bool,
    /// End of the log after the truncation; for a restart also its start.
    pub to: Position,
    /// Header crc of the batch before.
    pub chain_crc: u32,
    /// True when a batch was journaled behind it.
    pub is_done: bool,
}

impl TruncationRecord {
    /// Whether the truncation removes the batch that begins at `offset`.
    fn takes(&self, offset: i64) -> bool {
        self.is_restart || offset >= self.to.offset
    }
}

/// The truncations of all partitions that the journals hold, in order; and how far retention removed each.
#[derive(Debug, Default)]
pub struct Truncations {
    truncations: IdMap<(TopicId, u16), Vec<TruncationRecord>>,
    starts: IdMap<(TopicId, u16), Position>,
}

impl Truncations {
    /// Looks at the next record of a journal.
    pub fn see(&mut self, record: &Record) {
        let key = || (TopicId(record.header.topic_id), record.header.partition.get());
        match record.kind {
            RecordKind::Batch | RecordKind::DirectBatch => {
                let before = if self.truncations.is_empty() { None } else { self.truncations.get_mut(&key()) };
                before.into_iter().flatten().for_each(|truncation| truncation.is_done = true);
            }
            kind @ (RecordKind::Truncate | RecordKind::Restart) => {
                let (raw, rest) = RawPosition::read_from_prefix(&record.payload).expect("verified when it was read");
                let (crc, _) = U32::read_from_prefix(rest).expect("verified when it was read");
                let (sequence, is_restart) = (record.header.sequence.get(), kind == RecordKind::Restart);
                let truncation = TruncationRecord { sequence, is_restart, to: raw.into(), chain_crc: crc.get(), is_done: false };
                if truncation.to.is_sane() {
                    self.truncations.entry(key()).or_default().push(truncation);
                }
            }
            RecordKind::Start => {
                let (raw, _) = RawPosition::read_from_prefix(&record.payload).expect("verified when it was read");
                let (at, known) = (Position::from(raw), self.starts.entry(key()).or_insert(Position::START));
                *known = std::cmp::max_by_key(*known, at, |p| p.offset);
            }
            _ => {}
        }
    }

    /// The partition's files are removed: earlier truncations do not matter any more.
    pub fn forget(&mut self, topic: TopicId, partition: u16) {
        self.truncations.remove(&(topic, partition));
        self.starts.remove(&(topic, partition));
    }

    pub fn is_empty(&self) -> bool {
        self.truncations.is_empty()
    }

    /// The truncations of one partition, none of them redone.
    pub fn of(&self, topic: TopicId, partition: u16) -> PartitionTruncations {
        let key = (topic, partition);
        PartitionTruncations {
            truncations: self.truncations.get(&key).cloned().unwrap_or_default(),
            upto: 0,
            retained_from: self.starts.get(&key).copied(),
        }
    }
}

/// The truncations of one partition that the journals hold, and how far redo has come among them.
#[derive(Debug)]
pub struct PartitionTruncations {
    /// Truncations, in the order of their records.
    truncations: Vec<TruncationRecord>,
    /// Sequence of the last record that the snapshot contains, or that was redone, of a truncation or before it.
    upto: u64,
    /// Start of the log after retention, by its newest record in the journals.
    retained_from: Option<Position>,
}

impl PartitionTruncations {
    /// The truncations that redo has not come to.
    fn to_come(&self) -> impl Iterator<Item = &TruncationRecord> {
        self.truncations.iter().filter(|c| c.sequence > self.upto)
    }

    /// The truncations behind the record `contained`, in their order.
    pub fn behind(&self, contained: u64) -> impl Iterator<Item = &TruncationRecord> {
        self.truncations.iter().filter(move |c| c.sequence > contained)
    }

    /// Redo has come to this record.
    pub fn pass(&mut self, sequence: u64) {
        self.upto = sequence;
    }

    pub fn is_empty(&self) -> bool {
        self.truncations.is_empty()
    }

    pub fn has_restart(&self) -> bool {
        self.truncations.iter().any(|c| c.is_restart)
    }

    /// A later truncation, one that the snapshot contains too, takes the batch at `offset` that the record `sequence` holds.
    pub fn takes_later(&self, sequence: u64, offset: i64) -> bool {
        self.behind(sequence).any(|c| c.takes(offset))
    }

    /// The log is dropped by a record that redo has not come to.
    pub fn is_dropped_later(&self) -> bool {
        self.to_come().any(|c| c.is_restart)
    }

    /// Position `to`, or the lower one where a later truncation ends the log.
    pub fn below(&self, to: Position) -> Position {
        let lowest = self.to_come().map(|c| c.to).min_by_key(|at| at.offset);
        lowest.filter(|at| at.offset < to.offset).unwrap_or(to)
    }

    /// A truncation whose physical part may be missing is still to come.
    pub fn is_pending(&self) -> bool {
        self.to_come().any(|c| !c.is_done)
    }

    /// `start`, or the later place where retention let the log begin by the journals.
    pub fn retained_start(&self, start: Position) -> Position {
        self.retained_from.filter(|at| at.offset > start.offset).unwrap_or(start)
    }

    /// The truncation of this record. `None`: there is none, or later ones make it void.
    fn reached(&mut self, sequence: u64) -> Option<TruncationRecord> {
        let truncation = self.truncations.iter().find(|c| c.sequence == sequence).copied()?;
        self.upto = sequence;
        let is_void = self.is_dropped_later() || !truncation.is_restart && self.to_come().any(|c| c.takes(truncation.to.offset));
        (!is_void).then_some(truncation)
    }
}

impl Partition {
    /// The log is opened where the truncations that its snapshot does not contain end it. The segments are not looked at yet. True: it
    /// was dropped.
    pub fn open_truncation(&mut self, cx: &mut Context<'_>, contained: u64) -> Result<bool, RecoverError> {
        self.truncations.pass(contained);
        if let Some(restart) = self.truncations.to_come().filter(|c| c.is_restart).last().copied() {
            return self.open_restarted(cx, restart).map(|()| true);
        }
        let lowest = self.truncations.to_come().min_by_key(|c| c.to.offset).copied();
        if let Some(truncation) = lowest.filter(|c| (self.start.offset..self.end.offset).contains(&c.to.offset)) {
            (self.end, self.chain_crc, self.chain_open) = (truncation.to, truncation.chain_crc, false);
            self.truncate_epochs(truncation.to);
        }
        Ok(false)
    }

    /// Opens a log that was restarted: nothing before the restart counts, and bytes behind its place count only if the restart was
    /// complete.
    fn open_restarted(&mut self, cx: &mut Context<'_>, restart: TruncationRecord) -> Result<(), RecoverError> {
        let at = restart.to;
        (self.start, self.end, self.chain_crc, self.chain_open) = (at, at, restart.chain_crc, false);
        (self.epoch, self.epochs) = (Epoch(0), Some(Epochs::default()));
        self.damage.restart();
        self.counted = Counted::new(cx.producers);
        self.files.forget_segments();
        if !restart.is_done {
            let ahead = self.files.take_ahead();
            self.files.remove(cx, ahead)?;
        }
        self.touched = true;
        if self.files.begins_at(at.offset) { self.enter(cx) } else { Ok(()) }
    }

    /// Truncates the epochs. The last one is the epoch of the batch before `to`, unless only a commit log has it.
    fn truncate_epochs(&mut self, to: Position) {
        if let Some(epochs) = &mut self.epochs {
            self.epoch = epochs.truncate(to.offset).unwrap_or(self.epoch);
        }
        if to.offset <= self.start.offset {
            self.epoch = Epoch(0);
        }
        self.damage.truncate(to);
    }

    /// Redo has come to a truncation.
    pub fn redo_truncation(&mut self, cx: &mut Context<'_>, sequence: u64) -> Result<(), RecoverError> {
        let Some(truncation) = self.truncations.reached(sequence) else { return Ok(()) };
        if !truncation.is_restart {
            self.reach(cx, truncation.to, "the journal truncates the log behind it")?;
            if self.end.offset < truncation.to.offset || self.start.offset > truncation.to.offset {
                return Ok(());
            }
            self.truncate(cx, &truncation)?;
        }
        // Cursors follow the log.
        self.channels.clamp(truncation.to, self.start);
        if self.collect_start.offset > truncation.to.offset {
            self.collect_start = truncation.to;
        }
        Ok(())
    }

    fn truncate(&mut self, cx: &mut Context<'_>, truncation: &TruncationRecord) -> Result<(), RecoverError> {
        self.flush(cx)?;
        let to = truncation.to;
        self.files.truncate(to);
        (self.end, self.chain_crc, self.chain_open) = (to, truncation.chain_crc, false);
        self.truncate_epochs(to);
        if let Some(base) = self.files.last_base() {
            self.files.set_commit_count(commit_index(cx.storage, &self.dir, base, to.offset)?);
            self.files.measure(cx)?;
            let last = match self.files.commit_count() {
                0 => None,
                count => commit_record_at(cx.storage, &self.dir, base, count - 1)?,
            };
            if let (None, Some(last)) = (&self.epochs, last) {
                self.epoch = Epoch(last.epoch.get());
            }
        }
        self.uncount_producers(cx)?;
        if truncation.is_done {
            return Ok(());
        }
        let ahead = self.files.take_ahead();
        self.files.remove(cx, ahead)?;
        self.files.wipe_behind(cx, to)
    }
}
