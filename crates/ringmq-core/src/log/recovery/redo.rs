//! Redo: applies a journal's records to a partition's segments, commit logs and cursors. Same bytes, same place, so doing it twice
//! changes nothing.
//!
//! A hole is bridged by lost batches. The batch behind a lost one chains to the lost header, so the chain begins anew there.

use super::headers::{self, HeaderAction};
use super::partition::{Context, Partition};
use super::records::Gap;
use super::report::Severity;
use super::scan::{self, BatchAction, BatchFound, Batches, Place, SEGMENT_TABLE, commit_record, segment_at};
use super::{RecoverError, unknown};
use crate::base::{BLOCK, Epoch, FileId, LogId, Position, block_up};
use crate::format::batch::{BATCH_BODY_MAX, BATCH_HEADER_LEN, Batch, BatchHeader};
use crate::format::cursor::CursorImage;
use crate::format::decision::decide;
use crate::format::files::RawPosition;
use crate::format::journal::RecordKind;
use crate::format::producer::Producer;
use crate::format::snapshot::Snapshot;
use crate::format::storage::overlay;
use crate::format::tail::Tail;
use crate::format::{files::SegmentMeta, snapshot::Doubt};
use crate::journal::replay::Record;
use crate::log::chain::Chain;
use std::collections::BTreeMap;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

impl Partition {
    /// Brings one record in. Batches go by their place, everything else by its sequence.
    pub fn redo(&mut self, cx: &mut Context<'_>, record: &Record) -> Result<(), RecoverError> {
        self.touched = true;
        let sequence = record.header.sequence.get();
        let (gap, is_new) = self.records.see(sequence);
        match gap {
            Gap::None => {}
            Gap::First => self.no_first_record(cx),
            Gap::Missing(missing) => {
                let what = format!("{missing} journal records before record {sequence} of this partition are missing");
                self.lose_channels(cx, FileId::Snapshot(self.dir.clone(), 0), what);
            }
        }
        match record.kind {
            RecordKind::Batch | RecordKind::DirectBatch => self.redo_batch(cx, record),
            _ if !is_new => Ok(()),
            _ => self.redo_fact(cx, record),
        }
    }

    /// Applies a fact of a truncated write. Earlier records may be truncated, too.
    pub fn redo_kept(&mut self, cx: &mut Context<'_>, record: &Record) -> Result<(), RecoverError> {
        let sequence = record.header.sequence.get();
        if !self.records.see_kept(sequence) {
            return Ok(());
        }
        self.touched = true;
        let place = || RawPosition::read_from_prefix(&record.payload).map(|(p, _)| Position::from(p));
        if record.kind == RecordKind::Truncate && place().is_ok_and(|to| to.offset > self.end.offset) {
            // The batches before the truncation went with the write: there is nothing to truncate, and nothing is missing.
            self.truncations.pass(sequence);
            return Ok(());
        }
        self.redo_fact(cx, record)
    }

    fn redo_fact(&mut self, cx: &mut Context<'_>, record: &Record) -> Result<(), RecoverError> {
        let cursor = || CursorImage::decode(&record.payload).map(|(c, _)| c).expect("verified when it was read");
        let place = || RawPosition::read_from_prefix(&record.payload).map(|(p, _)| Position::from(p));
        match record.kind {
            RecordKind::Cursor => self.channels.set(cursor(), self.start),
            RecordKind::Finished => self.channels.finish(cursor(), self.start),
            RecordKind::ChannelDelete => self.channels.delete(&cursor().name, self.start),
            RecordKind::CollectStart => self.collect_start = place().expect("verified when it was read"),
            RecordKind::Start => {
                let start = place().expect("verified when it was read");
                if start.offset > self.start.offset && !self.truncations.is_dropped_later() {
                    self.start = start;
                }
            }
            RecordKind::Epoch => {
                let epoch = U64::read_from_prefix(&record.payload).map(|(e, _)| e.get()).expect("verified when it was read");
                self.promised = self.promised.max(Epoch(epoch));
            }
            RecordKind::Doubt => {
                let is_suspect =
                    U64::read_from_prefix(&record.payload).map(|(is, _)| is != 0).expect("verified when it was read");
                // Damage that this recovery finds was never compared with another replica.
                self.damage.set_doubt(if is_suspect || self.is_damaged { Doubt::Lost } else { Doubt::None });
            }
            RecordKind::LossAccepted => {
                let upto = U64::read_from_prefix(&record.payload).map(|(g, _)| g.get()).expect("verified when it was read");
                if self.damage.channels_lost() <= upto {
                    self.damage.accept_channels_lost();
                }
            }
            RecordKind::ChannelsLost => {
                let generation = U64::read_from_prefix(&record.payload).map(|(g, _)| g.get()).expect("verified when it was read");
                self.damage.mark_channels_lost(generation.max(self.damage.channels_lost()));
            }
            RecordKind::Producers if self.truncations.is_dropped_later() => {}
            RecordKind::Producers => {
                let list = Producer::decode_all(&record.payload).expect("verified when it was read");
                self.counted.adopt(&list, self.start.offset);
            }
            RecordKind::Committed => self.committed = place().expect("verified when it was read"),
            RecordKind::Truncate | RecordKind::Restart => self.redo_truncation(cx, record.header.sequence.get())?,
            RecordKind::Batch | RecordKind::DirectBatch => {}
            RecordKind::TopicCreate | RecordKind::TopicDelete | RecordKind::PartitionDelete => {}
        }
        Ok(())
    }

    /// Reports, after all records, channels whose records do not stand on others. With a sound snapshot and no missing record, the
    /// channel was being deleted, or another leader's cursor had taken its place. The record of that was not durable, nor anything
    /// behind it, and no answer tells of the channel since: it stays as the snapshot has it.
    pub fn report_unfounded(&mut self, cx: &mut Context<'_>) {
        let is_whole = !self.is_damaged && self.records.is_known();
        let snapshot = self.saved.newest().filter(|_| is_whole).map(|s| Snapshot::file(&self.dir, s.sequence));
        for cursor in self.channels.take_unfounded(self.start) {
            let name = cursor.name.clone();
            if let Some(file) = &snapshot {
                let what = format!(
                    "channel {name} was deleted or replaced, and the journal does not have the change: the channel is as \
                    this snapshot has it"
                );
                cx.report.note(Severity::Repaired, file, None, what);
                continue;
            }
            self.channels.adopt(cursor);
            let what = format!("channel {name} was lost: unfinished messages are redelivered from the log's start");
            self.lose_channels(cx, FileId::Snapshot(self.dir.clone(), 0), what);
        }
    }

    fn redo_batch(&mut self, cx: &mut Context<'_>, record: &Record) -> Result<(), RecoverError> {
        let (h, _) = BatchHeader::read_from_prefix(&record.payload).expect("verified when it was read");
        if self.truncations.takes_later(record.header.sequence.get(), h.offset.get()) {
            return Ok(()); // What stands there now may be what came after the truncation.
        }
        let covering = self.files.segments().iter().rev().find(|m| m.base.offset <= h.offset.get());
        if let Some(m) = covering {
            // Bytes that are in place already may come from a process that died before they were durable.
            self.files.touch(m.base.offset);
        }
        if h.offset.get() < self.end.offset {
            return Ok(());
        }
        if h.offset.get() > self.end.offset {
            self.reach(cx, h.start(), "the journal goes on behind it")?;
        }
        let continues = self.chain_open || h.prev_crc.get() == self.chain_crc;
        if h.start() != self.end || !continues || h.epoch.get() < self.epoch.0 {
            if h.offset.get() >= self.end.offset {
                let file = FileId::Segment(self.dir.clone(), self.end.offset);
                self.report_damage(cx, file, None, format!("a journaled batch at offset {} does not continue the log", h.offset));
            }
            return Ok(());
        }
        match record.kind {
            RecordKind::DirectBatch => self.redo_direct(cx, &h),
            _ => {
                (cx.report.batches_redone, cx.report.bytes_redone) =
                    (cx.report.batches_redone + 1, cx.report.bytes_redone + h.len() as u64);
                self.append(cx, &h, &record.payload)
            }
        }
    }

    /// The body must stand in its segment, and hold.
    fn redo_direct(&mut self, cx: &mut Context<'_>, h: &BatchHeader) -> Result<(), RecoverError> {
        self.flush(cx)?;
        if self.files.begins_at(self.end.offset) {
            self.enter(cx)?;
        }
        let (mut found, mut at) = (BatchFound::Zeros, None);
        if let Some(base) = self.files.last_base() {
            let (f, there) = Batches::new(&self.dir, base).judge(cx.storage, self.end.offset, &Chain::default())?;
            found = if there.is_some_and(|t| t.header_crc != h.header_crc) { BatchFound::Breaks } else { f };
            at = Some(segment_at(base, self.end.offset));
        }
        match decide(SEGMENT_TABLE, found, Place::Direct, ()).then {
            BatchAction::Keep | BatchAction::KeepHeader => self.accept(cx, h),
            BatchAction::Halt => Err(unknown(self.files.last_segment().expect("it was read"), at.unwrap_or(0))),
            BatchAction::Bridge | BatchAction::Truncate => {
                let file = FileId::Segment(self.dir.clone(), self.files.last_base().unwrap_or(self.end.offset));
                self.report_damage(cx, file, at, format!("the body of a batch of {} messages is damaged ({found:?})", h.num));
                self.bridge(cx, h.end())
            }
        }
    }

    /// Extends the log to a promised position: batches in the segments are kept, the rest is lost.
    pub fn reach(&mut self, cx: &mut Context<'_>, to: Position, why: &str) -> Result<(), RecoverError> {
        let to = self.truncations.below(to);
        if !to.is_sane() || to.offset <= self.end.offset || self.truncations.is_dropped_later() {
            return Ok(());
        }
        self.advance(cx)?;
        while self.end.offset < to.offset {
            // A segment that begins in between names its start, and may have the batches behind it.
            let step = self.next_segment(cx, to)?;
            let before = self.end;
            let file = FileId::Segment(self.dir.clone(), self.files.last_base().unwrap_or(0));
            let at = self.files.last_base().map(|base| segment_at(base, before.offset));
            let what = format!(
                "lost: offsets {} to {}, ids {} to {}: {why}",
                before.offset, step.offset, before.log_id.0, step.log_id.0
            );
            self.report_damage(cx, file, at, what);
            self.bridge(cx, step)?;
            if self.end == before {
                break;
            }
            self.advance(cx)?;
        }
        Ok(())
    }

    fn next_segment(&mut self, cx: &mut Context<'_>, to: Position) -> Result<Position, RecoverError> {
        let between: Vec<i64> = self.files.ahead().range(self.end.offset + 1..to.offset).copied().collect();
        for base in between {
            if let Some(meta) = headers::read(cx.storage, &self.dir, base)?.meta
                && meta.base.is_sane()
                && meta.base.log_id > self.end.log_id
                && meta.base.count >= self.end.count
            {
                return Ok(meta.base);
            }
        }
        Ok(to)
    }

    /// Goes to each segment behind the end whose header says where it begins: something was promised up to there.
    pub fn reach_begun(&mut self, cx: &mut Context<'_>, why: &str) -> Result<(), RecoverError> {
        loop {
            let (before, nowhere) = (self.end, Position { offset: i64::MAX, ..self.end });
            let next = self.next_segment(cx, nowhere)?;
            if next == nowhere {
                return Ok(());
            }
            self.reach(cx, next, why)?;
            if self.end == before {
                return Ok(());
            }
        }
    }

    /// Takes over whatever stands in the segments behind the end and continues the log. A commit record is written of
    /// durable batches only: so one for the very end promises a batch, which is damage when it does not hold.
    pub fn advance(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        self.flush(cx)?;
        'segments: loop {
            let Some(base) = self.files.last_base() else {
                if !self.files.begins_at(self.end.offset) {
                    return Ok(());
                }
                self.enter(cx)?;
                continue;
            };
            let dir = self.dir.clone();
            let mut batches = Batches::new(&dir, base);
            while !self.files.begins_at(self.end.offset) {
                let (found, h) = batches.judge(cx.storage, self.end.offset, &self.chain())?;
                match (decide(SEGMENT_TABLE, found, Place::Beyond, ()).then, h) {
                    (BatchAction::Keep, Some(h)) => {
                        cx.report.batches_found += 1;
                        self.touched = true;
                        // Nothing tells that it was synced, and a sync covers nothing of a write or a sync that failed.
                        let file = FileId::Segment(dir.clone(), base);
                        overlay(cx.storage, &file, segment_at(base, self.end.offset), batches.judged(&h))?;
                        self.accept(cx, &h)?;
                    }
                    (BatchAction::Halt, _) => {
                        return Err(unknown(FileId::Segment(dir, base), segment_at(base, self.end.offset)));
                    }
                    (_, h) => {
                        if !self.advance_over(cx, base, found, h)? {
                            return self.flush(cx);
                        }
                        batches = Batches::new(&dir, base);
                        if self.files.last_base() != Some(base) {
                            continue 'segments;
                        }
                    }
                }
            }
            self.enter(cx)?;
        }
    }

    /// Continues the log behind its end when no valid batch stands there, but its commit record says that one did. The commit record is
    /// believed only where this startup has found something missing (a journal or a write of it, a snapshot). Otherwise all that was
    /// acknowledged beyond the snapshot was redone by now, and the record is of a batch that was not acknowledged: a startup that was
    /// interrupted found it in segment blocks that a power loss then took.
    fn advance_over(
        &mut self,
        cx: &mut Context<'_>,
        base: i64,
        found: BatchFound,
        header: Option<BatchHeader>,
    ) -> Result<bool, RecoverError> {
        if !self.is_damaged {
            return Ok(false);
        }
        let record = scan::commit_record_at(cx.storage, &self.dir, base, self.files.commit_count())?;
        let Some(record) = record.filter(|r| r.position() == self.end && r.end().is_sane() && r.epoch.get() >= self.epoch.0)
        else {
            return Ok(false);
        };
        let (before, file) = (self.end, FileId::Segment(self.dir.clone(), base));
        let what = format!("a batch of {} messages that its commit record names is damaged ({found:?})", record.num);
        self.report_damage(cx, file, Some(segment_at(base, before.offset)), what);
        self.touched = true;
        match (decide(SEGMENT_TABLE, found, Place::Promised, ()).then, header) {
            (BatchAction::KeepHeader, Some(h)) if h.end() == record.end() => {
                self.unvouch();
                self.accept(cx, &h)?;
            }
            _ => {
                self.bridge(cx, record.end())?;
                self.flush(cx)?;
            }
        }
        Ok(self.end != before)
    }

    fn chain(&self) -> Chain {
        let crc = (!self.chain_open).then_some(self.chain_crc);
        Chain { at: Some(self.end), crc, epoch: self.epoch.0 }
    }

    /// The batch stands at the end of the last segment already: index it.
    fn accept(&mut self, cx: &mut Context<'_>, h: &BatchHeader) -> Result<(), RecoverError> {
        assert!(!self.files.has_unwritten_bytes(), "nothing unwritten stands before a batch that is in place");
        if h.is_lost() {
            self.unvouch();
            self.damage.add_lost(h.start(), h.end());
        }
        self.files.touch_last_segment();
        self.index(cx, h)
    }

    fn append(&mut self, cx: &mut Context<'_>, h: &BatchHeader, bytes: &[u8]) -> Result<(), RecoverError> {
        if self.chain_open {
            // The header of a segment that begins with this batch has the batch's prev crc; readers compare the two.
            self.chain_crc = h.prev_crc.get();
        }
        self.make_room(cx, bytes.len())?;
        self.files.append(bytes);
        self.index(cx, h)?;
        if self.files.is_flush_due() { self.flush(cx) } else { Ok(()) }
    }

    /// Adds the commit record and moves the end.
    fn index(&mut self, cx: &mut Context<'_>, h: &BatchHeader) -> Result<(), RecoverError> {
        self.files.add_record(cx, &commit_record(h, &self.dir))?;
        if let Some(epochs) = self.epochs.as_mut().filter(|_| h.epoch.get() > self.epoch.0) {
            epochs.close(self.start, Tail { at: self.end, chain_crc: self.chain_crc, epoch: self.epoch });
        }
        (self.end, self.chain_crc, self.chain_open) = (h.end(), h.header_crc.get(), h.is_lost());
        self.epoch = self.epoch.max(Epoch(h.epoch.get()));
        self.counted.count(h);
        Ok(())
    }

    /// A segment that holds the next `len` bytes behind the end: the last one, the one that was begun just here, or a new one.
    fn make_room(&mut self, cx: &mut Context<'_>, len: usize) -> Result<(), RecoverError> {
        if self.files.begins_at(self.end.offset) || self.files.segments().is_empty() {
            self.enter(cx)?;
        }
        let base = self.files.last_base().expect("entered above");
        let at = segment_at(base, self.end.offset);
        // Behind a lost batch the end may lie beyond the file: the bytes between are not allocated.
        let there = self.files.segment_len();
        let is_full = self.end.offset > base && (at > there || at + len as u64 > there.max(cx.segment_bytes));
        if is_full && at + len as u64 > there {
            self.enter(cx)?;
        }
        let base = self.files.last_base().expect("entered above");
        self.files.grow_segment(cx, block_up(segment_at(base, self.end.offset) + len as u64))
    }

    /// Begins, or goes on in, the segment whose base is the end.
    pub fn enter(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        self.flush(cx)?;
        let base = self.end.offset;
        let [segment, commit] = self.files.pair(base);
        let found = match self.files.leave_ahead(base) {
            true => Some(headers::read(cx.storage, &self.dir, base)?),
            false => None,
        };
        if found.as_ref().is_some_and(|h| h.action == HeaderAction::SetAside) {
            self.is_damaged = true;
            headers::set_aside(cx.storage, &self.dir, base, cx.label, "it belongs to another topic or partition", cx.report)?;
        }
        cx.allocate(&segment, 2 * BLOCK as u64)?;
        cx.allocate(&commit, 2 * BLOCK as u64)?;
        // Behind a lost batch the chain begins anew, with the prev crc of the batch that stands here.
        let there = found.as_ref().and_then(|h| h.meta).filter(|m| self.chain_open && m.base == self.end);
        let meta = there.unwrap_or(SegmentMeta { base: self.end, prev_crc: self.chain_crc });
        let before = self.files.table(base);
        match found.is_some_and(|h| h.is_right(&meta, &before)) {
            true => self.files.write_back_headers(cx, base)?,
            false => self.files.write_headers(cx, &meta, self.epoch)?,
        }
        self.files.enter(cx, meta)
    }

    /// Writes the appended bytes.
    pub fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        self.files.flush(cx, self.end)
    }

    /// Moves the end over a hole: lost batches take its ids and offsets.
    fn bridge(&mut self, cx: &mut Context<'_>, to: Position) -> Result<(), RecoverError> {
        let from = self.end;
        let pieces = pieces(from, to);
        if pieces.is_empty() {
            let file = FileId::Segment(self.dir.clone(), from.offset);
            self.report_damage(
                cx,
                file,
                None,
                format!("offsets {} to {} are not a hole that batches left", from.offset, to.offset),
            );
        }
        for piece_end in pieces {
            self.flush(cx)?;
            let (id, partition, epoch) = (self.dir.topic_id, self.dir.partition, self.epoch);
            let lost =
                Batch::lost(id, partition, epoch, self.end, piece_end, self.chain_crc).expect("a piece has room for a header");
            self.make_room(cx, BATCH_HEADER_LEN)?;
            let base = self.files.last_base().expect("there is room");
            let file = FileId::Segment(self.dir.clone(), base);
            overlay(cx.storage, &file, segment_at(base, self.end.offset), &lost.bytes)?;
            self.accept(cx, &lost.header)?;
        }
        Ok(())
    }

    /// Skips more ids and offsets than `bytes` of a journal could have named, and all that the files have space for: no batch is
    /// admitted beyond that, and direct batches take more of the log than of the journal. Durable when done, since the files that show
    /// that space are removed next.
    pub fn leap(&mut self, cx: &mut Context<'_>, bytes: u64, why: &str) -> Result<(), RecoverError> {
        let Partition { end: from, .. } = *self;
        let mut space_end = from.offset;
        let bases: Vec<i64> =
            self.files.segments().iter().map(|m| m.base.offset).chain(self.files.ahead().iter().copied()).collect();
        for base in bases {
            let len = cx.storage.len(&FileId::Segment(self.dir.clone(), base))?.unwrap_or(0);
            space_end = space_end.max(base.saturating_add(len.saturating_sub(segment_at(0, 0)).min(i64::MAX as u64) as i64));
        }
        if bytes == 0 && space_end == from.offset {
            return Ok(());
        }
        self.reach_begun(cx, why)?;
        let from = self.end;
        let offset = space_end.max(from.offset + block_up(bytes) as i64).max(from.offset + BATCH_HEADER_LEN as i64);
        let ids = (offset - from.offset) as u64 / crate::format::batch::MESSAGE_OVERHEAD as u64 + 1;
        let to = Position { offset, count: from.count, log_id: LogId(from.log_id.0 + ids) };
        self.touched = true;
        self.reach(cx, to, why)?;
        self.flush(cx)?;
        self.files.sync(cx)
    }

    /// Writes the last segment's commit log again from its batch headers. `promised`: where the log is known to reach;
    /// up to there damage is bridged, or stepped over where the old commit log still tells how far. Moves the end.
    pub fn rebuild_commit(&mut self, cx: &mut Context<'_>, promised: Option<Position>) -> Result<(), RecoverError> {
        let Some(SegmentMeta { base, prev_crc }) = self.files.last() else { return Ok(()) };
        let dir = self.dir.clone();
        let old: BTreeMap<i64, _> =
            scan::commit_records(cx.storage, &dir, base.offset)?.into_iter().map(|r| (r.offset.get(), r)).collect();
        self.files.restart_commit(cx, self.epoch)?;
        self.epochs = None;
        (self.end, self.chain_crc, self.chain_open) = (base, prev_crc, base.offset > 0 && prev_crc == 0);
        let last_epoch = std::mem::take(&mut self.epoch);
        let mut batches = Batches::new(&dir, base.offset);
        loop {
            let left = promised.filter(|p| self.end.offset < p.offset);
            let place = if left.is_some() { Place::Promised } else { Place::Beyond };
            let (found, h) = batches.judge(cx.storage, self.end.offset, &self.chain())?;
            let at = segment_at(base.offset, self.end.offset);
            match (decide(SEGMENT_TABLE, found, place, ()).then, h) {
                // Redo itself looks behind the promised position.
                _ if left.is_none() && promised.is_some() => break,
                (BatchAction::Keep, Some(h)) => self.accept(cx, &h)?,
                (BatchAction::KeepHeader, Some(h)) => {
                    self.report_damage(cx, FileId::Segment(dir.clone(), base.offset), Some(at), "the body of a batch is damaged");
                    self.unvouch();
                    self.accept(cx, &h)?;
                }
                (BatchAction::Halt, _) => return Err(unknown(FileId::Segment(dir, base.offset), at)),
                (BatchAction::Truncate, _) => break,
                _ => {
                    let to = left.expect("only a promised place is bridged");
                    let next_known = old.range(self.end.offset + 1..to.offset).next().map(|(_, r)| r.position());
                    let hop = old.get(&self.end.offset).filter(|r| r.position() == self.end).map(|r| r.end()).or(next_known);
                    let found = batches.find(cx.storage, self.end, hop.unwrap_or(to).offset)?.map(|h| h.start());
                    let next = found.or(hop).unwrap_or(to);
                    let next = if next.offset > to.offset { to } else { next };
                    let what = format!("lost: offsets {} to {}", self.end.offset, next.offset);
                    self.report_damage(cx, FileId::Segment(dir.clone(), base.offset), Some(at), what);
                    let before = self.end;
                    self.bridge(cx, next)?;
                    if self.end == before {
                        // No hole that whole batches could have left: the promised position counts.
                        self.end = to;
                    }
                    batches = Batches::new(&dir, base.offset);
                }
            }
        }
        self.epoch = self.epoch.max(last_epoch);
        self.flush(cx)?;
        let records = self.files.commit_count();
        let file = FileId::Commit(dir, base.offset);
        cx.report.note(Severity::Repaired, &file, None, format!("{records} records were written again"));
        Ok(())
    }
}

/// Ends of the lost batches that bridge a hole: none is longer than a batch can be, each has an id of its own.
fn pieces(from: Position, to: Position) -> Vec<Position> {
    const PIECE_MAX: i64 = (BATCH_HEADER_LEN + BATCH_BODY_MAX) as i64;
    let len = to.offset - from.offset;
    let ids = to.log_id.0.saturating_sub(from.log_id.0);
    let count = (len.max(0) as u64).div_ceil(PIECE_MAX as u64);
    let last_len = len - PIECE_MAX * (count as i64 - 1);
    let messages_fit = (0..=u32::MAX as i64).contains(&(to.count - from.count));
    if !to.is_sane() || !messages_fit || count == 0 || ids < count || len < BATCH_HEADER_LEN as i64 {
        return vec![];
    }
    // A last piece that is too short for a header borrows from the one before it.
    let borrowed = if last_len < BATCH_HEADER_LEN as i64 { BATCH_HEADER_LEN as i64 } else { 0 };
    let mut ends: Vec<_> = (1..count)
        .map(|i| Position { offset: from.offset + PIECE_MAX * i as i64, count: from.count, log_id: LogId(from.log_id.0 + i) })
        .collect();
    if let Some(before_last) = ends.last_mut() {
        before_last.offset -= borrowed;
    }
    ends.push(to);
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;

    #[test]
    fn a_hole_is_bridged_by_batches_that_readers_accept() {
        let mut rng = Rng::new(3);
        let from = Position { offset: 1000, count: 10, log_id: LogId(11) };
        for _ in 0..2000 {
            let len = [rng.below(1000), rng.below(1 << 28), (rng.below(4) << 26) + rng.below(300)][rng.below(3) as usize] as i64;
            let ids = rng.below(9);
            let to = Position { offset: from.offset + len, count: 10 + ids as i64, log_id: LogId(11 + ids) };
            let (mut at, ends) = (from, pieces(from, to));
            for &end in &ends {
                let batch = Batch::lost(Default::default(), Default::default(), Epoch(1), at, end, 0).expect("there is room");
                let parsed = BatchHeader::parse(&batch.bytes, Default::default(), Default::default());
                assert_eq!(parsed.map(|h| (h.start(), h.end())), Ok((at, end)));
                at = end;
            }
            assert!(ends.is_empty() || at == to);
            assert!(
                !ends.is_empty() || len < 128 || (ids as i64) < len.div_euclid(BATCH_BODY_MAX as i64 + 128) + 1,
                "{len} {ids}"
            );
        }
    }
}
