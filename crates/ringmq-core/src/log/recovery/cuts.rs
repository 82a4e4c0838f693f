//! Cuts of a log during recovery: truncations, and restarts that drop it all.
//!
//! A cut's record is durable before a byte is cut, and nothing is appended behind it before the cut is physically complete. So
//! the journal tells how far a cut has come: with a batch behind it, it was complete, and what stands in the files behind its
//! place is new; without, nothing behind it counts, and it is done (again). The journals are looked through for cuts before
//! anything is redone:
//!
//! ```text
//! snapshot says     a later cut       what is redone
//! ends before it    any               batches that a later cut takes are not written: their place may have new ones
//! ends behind it    truncation        the log is opened where the cut ends it, as its tail may be gone
//! any               restart           the log is opened empty, where the restart begins it; channels and promises stay
//! ```

use super::RecoverError;
use super::partition::{Context, Partition};
use super::scan::{commit_at, commit_index, commit_record_at, segment_at};
use crate::base::{Epoch, FileId, IdMap, Position, TopicId};
use crate::format::epochs::Epochs;
use crate::format::files::RawPosition;
use crate::format::journal::RecordKind;
use crate::journal::replay::Record;
use crate::log::producers::Producers;
use crate::log::recovery::channels;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// One cut, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Of the record.
    pub sequence: u64,
    pub is_restart: bool,
    /// Where the log ends by it; of a restart also where it begins.
    pub to: Position,
    /// Header crc of the batch before.
    pub chain_crc: u32,
    /// A batch was journaled behind it.
    pub is_done: bool,
}

impl Cut {
    /// The batch that begins at `offset` goes by it.
    fn takes(&self, offset: i64) -> bool {
        self.is_restart || offset >= self.to.offset
    }
}

/// The cuts of all partitions that the journals hold, in order; and how far retention let go of each.
#[derive(Debug, Default)]
pub struct Cuts {
    cuts: IdMap<(TopicId, u16), Vec<Cut>>,
    starts: IdMap<(TopicId, u16), Position>,
}

impl Cuts {
    /// Looks at the next record of a journal.
    pub fn see(&mut self, record: &Record) {
        let key = || (TopicId(record.header.topic_id), record.header.partition.get());
        match record.kind {
            RecordKind::Batch | RecordKind::DirectBatch => {
                let before = if self.cuts.is_empty() { None } else { self.cuts.get_mut(&key()) };
                before.into_iter().flatten().for_each(|cut| cut.is_done = true);
            }
            kind @ (RecordKind::Truncate | RecordKind::Restart) => {
                let (raw, rest) = RawPosition::read_from_prefix(&record.payload).expect("verified when it was read");
                let (crc, _) = U32::read_from_prefix(rest).expect("verified when it was read");
                let (sequence, is_restart) = (record.header.sequence.get(), kind == RecordKind::Restart);
                let cut = Cut { sequence, is_restart, to: raw.into(), chain_crc: crc.get(), is_done: false };
                if cut.to.is_sane() {
                    self.cuts.entry(key()).or_default().push(cut);
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

    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Where the log begins by the newest record of it.
    pub fn start_of(&self, topic: TopicId, partition: u16) -> Option<Position> {
        self.starts.get(&(topic, partition)).copied()
    }

    pub fn of(&self, topic: TopicId, partition: u16) -> Vec<Cut> {
        self.cuts.get(&(topic, partition)).cloned().unwrap_or_default()
    }
}

impl Partition {
    /// Those that redo has not come to.
    fn cuts_to_come(&self) -> impl Iterator<Item = &Cut> {
        self.cuts.iter().filter(|c| c.sequence > self.cut_upto)
    }

    /// A later cut, one that the snapshot contains too, takes the batch at `offset` that the record `sequence` holds.
    pub fn is_cut_later(&self, sequence: u64, offset: i64) -> bool {
        self.cuts.iter().any(|c| c.sequence > sequence && c.takes(offset))
    }

    /// The log is dropped by a record that redo has not come to.
    pub fn is_dropped_later(&self) -> bool {
        self.cuts_to_come().any(|c| c.is_restart)
    }

    /// `to`, or where a later cut ends the log below it.
    pub fn below_cuts(&self, to: Position) -> Position {
        let lowest = self.cuts_to_come().map(|c| c.to).min_by_key(|at| at.offset);
        lowest.filter(|at| at.offset < to.offset).unwrap_or(to)
    }

    /// A cut whose physical part may be missing is still to come.
    pub fn is_cut_pending(&self) -> bool {
        self.cuts_to_come().any(|c| !c.is_done)
    }

    /// The log is opened where the cuts that its snapshot does not contain end it. The segments are not looked at yet. True: it
    /// was dropped.
    pub fn open_cut(&mut self, cx: &mut Context<'_>, contained: u64) -> Result<bool, RecoverError> {
        self.cut_upto = contained;
        if let Some(restart) = self.cuts_to_come().filter(|c| c.is_restart).last().copied() {
            return self.open_restarted(cx, restart).map(|()| true);
        }
        let lowest = self.cuts_to_come().min_by_key(|c| c.to.offset).copied();
        if let Some(cut) = lowest.filter(|c| (self.start.offset..self.end.offset).contains(&c.to.offset)) {
            (self.end, self.chain_crc, self.chain_open) = (cut.to, cut.chain_crc, false);
            self.cut_epochs(cut.to);
        }
        Ok(false)
    }

    /// Nothing of what stood before counts; what stands behind the place does only when the restart was complete.
    fn open_restarted(&mut self, cx: &mut Context<'_>, restart: Cut) -> Result<(), RecoverError> {
        let at = restart.to;
        (self.start, self.end, self.chain_crc, self.chain_open) = (at, at, restart.chain_crc, false);
        (self.epoch, self.epochs, self.vouched) = (Epoch(0), Some(Epochs::default()), None);
        self.producers = Producers::new(cx.producers);
        (self.snapshot_producers, self.last_unix_ns) = (self.producers.clone(), 0);
        self.segments.clear();
        (self.segment_len, self.commit_len, self.commit_count) = (0, 0, 0);
        if !restart.is_done {
            let bases: Vec<i64> = std::mem::take(&mut self.ahead).into_iter().collect();
            self.remove_segments(cx, bases)?;
        }
        self.touched = true;
        if self.ahead.contains(&at.offset) { self.enter(cx) } else { Ok(()) }
    }

    fn remove_segments(&mut self, cx: &mut Context<'_>, bases: Vec<i64>) -> Result<(), RecoverError> {
        for base in bases {
            let files = [FileId::Segment(self.dir.clone(), base), FileId::Commit(self.dir.clone(), base)];
            // Redo may have written them before it came to the cut.
            self.written.retain(|f| !files.contains(f));
            cx.storage.remove(&files)?;
        }
        Ok(())
    }

    /// The epochs of what is left; the last one is that of the batch before `to`, unless only a commit log can tell.
    fn cut_epochs(&mut self, to: Position) {
        if let Some(epochs) = &mut self.epochs {
            self.epoch = epochs.cut(to.offset).unwrap_or(self.epoch);
        }
        if to.offset <= self.start.offset {
            self.epoch = Epoch(0);
        }
        self.vouched = self.vouched.filter(|v| v.at.offset < to.offset);
        self.lost.retain(|l| l.0.offset < to.offset);
    }

    /// Redo has come to a cut.
    pub fn redo_cut(&mut self, cx: &mut Context<'_>, sequence: u64) -> Result<(), RecoverError> {
        let Some(cut) = self.cuts.iter().find(|c| c.sequence == sequence).copied() else { return Ok(()) };
        self.cut_upto = sequence;
        let is_void = self.is_dropped_later() || !cut.is_restart && self.cuts_to_come().any(|c| c.takes(cut.to.offset));
        if is_void {
            return Ok(());
        }
        if !cut.is_restart {
            self.reach(cx, cut.to, "the journal cuts the log behind it")?;
            if self.end.offset < cut.to.offset || self.start.offset > cut.to.offset {
                return Ok(());
            }
            self.truncate(cx, &cut)?;
        }
        // Cursors follow the log.
        self.settle_finished();
        for channel in self.channels.iter_mut().chain(&mut self.unfounded) {
            channels::clamp(channel, cut.to);
        }
        if self.collect_start.offset > cut.to.offset {
            self.collect_start = cut.to;
        }
        Ok(())
    }

    fn truncate(&mut self, cx: &mut Context<'_>, cut: &Cut) -> Result<(), RecoverError> {
        self.flush(cx)?;
        let to = cut.to;
        while self.segments.len() > 1 && self.segments.last().is_some_and(|m| m.base.offset > to.offset) {
            let base = self.segments.pop().expect("there are two").base.offset;
            self.ahead.insert(base);
        }
        let base = self.segments.last().map_or(0, |m| m.base.offset);
        (self.end, self.chain_crc, self.chain_open) = (to, cut.chain_crc, false);
        self.cut_epochs(to);
        if let (Some(segment), Some(commit)) = (self.segment_file(), self.commit_file()) {
            self.commit_count = commit_index(cx.storage, &self.dir, base, to.offset)?;
            (self.segment_len, self.commit_len) = (cx.storage.len(&segment)?.unwrap_or(0), cx.storage.len(&commit)?.unwrap_or(0));
            let last = match self.commit_count {
                0 => None,
                count => commit_record_at(cx.storage, &self.dir, base, count - 1)?,
            };
            if let (None, Some(last)) = (&self.epochs, last) {
                self.epoch = Epoch(last.epoch.get());
            }
        }
        self.uncount_producers(cx)?;
        if cut.is_done {
            return Ok(());
        }
        let ahead: Vec<i64> = std::mem::take(&mut self.ahead).into_iter().collect();
        self.remove_segments(cx, ahead)?;
        let (Some(segment), Some(commit)) = (self.segment_file(), self.commit_file()) else { return Ok(()) };
        self.segment_len = super::redo::wipe(cx, &segment, segment_at(base, to.offset), self.segment_len)?;
        self.commit_len = super::redo::wipe(cx, &commit, commit_at(self.commit_count), self.commit_len)?;
        self.written.extend([segment, commit]);
        Ok(())
    }
}
