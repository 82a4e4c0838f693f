//! Retention: a segment that every channel has confirmed, and that neither age nor size keeps, is removed.
//!
//! With several replicas only the segments on which they agreed are removed: the leader's store asks for the agreement
//! ([`Notice::Removable`]).
//!
//! The new start is durable in the journal before a file is unlinked (rule 6), and redo needs nothing below the last snapshot. The
//! active segment stays, except on a full disk (of any core): then a segment that is confirmed to its end is closed, so that many
//! topics, each within its first segment, do not hold all space for ever (rule 10). They are unlinked one after the other, not all at
//! once ([`super::deletes`]). Recovery removes a file below the start that was not unlinked yet, or could not be.

use super::core_logs::{CoreLogs, Ops, Shared};
use super::deletes::{Deletes, Old, delete};
use super::flush::Flushing;
use super::notice::{Io, Notice, PartitionIdx, RecordTicket};
use super::read::Reads;
use super::recovery::scan::segment_at;
use crate::base::{DiskDone, DiskError, FileId, Now, Ticks};
use crate::format::journal::RecordKind;
use std::{collections::VecDeque, time::Duration};

/// Interval at which age is looked at.
const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Retention {
    due: Vec<PartitionIdx>,
    /// Segments that go when the record of the new start is durable.
    removals: VecDeque<(RecordTicket, PartitionIdx, Vec<Old>)>,
    deletes: Deletes,
    next_at: Option<Ticks>,
    /// Whether [`StoreOptions::is_any_timed`](super::StoreOptions::is_any_timed) was asked since a topic's retention changed.
    has_looked_at_ages: bool,
}

impl Retention {
    /// The partition goes as a whole.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.due.retain(|&q| q != p);
        self.removals.retain(|r| r.1 != p);
        self.deletes.take(p);
    }

    /// Puts the partition on the list of those where a segment may be removed.
    pub fn look_at(&mut self, p: PartitionIdx) {
        if !self.due.contains(&p) {
            self.due.push(p);
        }
    }

    /// Asks again whether age keeps anything: a topic's retention has changed.
    pub fn look_at_ages(&mut self) {
        self.has_looked_at_ages = false;
    }

    /// Takes out the files of the partition that wait to be deleted.
    pub(super) fn take_old(&mut self, p: PartitionIdx) -> Vec<Old> {
        self.deletes.take(p)
    }

    /// Bytes of segments that wait to be deleted.
    pub fn deleting_bytes(&self) -> u64 {
        self.deletes.bytes()
    }

    pub(super) fn deadline(&self, ops: &Ops) -> Option<Ticks> {
        self.next_at.into_iter().chain(self.deletes.deadline(ops)).min()
    }
}

impl CoreLogs {
    /// Removes the segments that neither channels, replicas, age nor size keep.
    pub fn retain(&mut self, now: Now, flushing: &mut Flushing, reads: &mut Reads, io: &mut Io) {
        for p in std::mem::take(&mut self.retention.due) {
            self.retain_partition(now, p, flushing, reads, io);
        }
        let has_looked = std::mem::replace(&mut self.retention.has_looked_at_ages, true);
        if !has_looked && self.retention.next_at.is_none() && self.options.is_any_timed() {
            self.retention.next_at = Some(now.ticks + INTERVAL);
        }
    }

    fn retain_partition(&mut self, now: Now, p: PartitionIdx, flushing: &mut Flushing, reads: &mut Reads, io: &mut Io) {
        let part = self.part(p);
        let (ms, bytes) = self.options.retention_of(&part.dir.topic);
        let age_min = i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let bytes_min = i64::try_from(bytes).unwrap_or(i64::MAX);
        if part.is_closed() || part.truncation.is_some() || self.ring.is_poisoned() {
            return;
        }
        if self.full_disk.is_short() {
            self.close_confirmed(now, p, age_min, bytes_min);
        }
        let part = self.part(p);
        let (mut removable, mut unknown) = (0, None);
        for (segment, next) in part.segments.iter().zip(part.segments.iter().skip(1)) {
            let border = next.meta.base;
            let is_kept =
                border.offset > part.borders.low_water().offset || part.progress.durable().at.offset - border.offset < bytes_min;
            if is_kept {
                break;
            }
            if age_min > 0 {
                match segment.last_unix_ns {
                    Some(at) if now.unix_ns - at >= age_min => {}
                    Some(_) => break,
                    None => {
                        unknown = Some((segment.base(), border.offset));
                        break;
                    }
                }
            }
            removable += 1;
        }
        let base_of = |n: usize| part.segments.get(n).map(|s| s.meta.base).filter(|_| n > 0);
        let wanted = base_of(removable).filter(|&at| !part.borders.is_agreed(at));
        while base_of(removable).is_some_and(|at| !part.borders.is_agreed(at)) {
            removable -= 1;
        }
        let border = base_of(removable);
        if let Some(at) = wanted {
            self.notices.push(Notice::Removable { p, at });
        }
        if let Some((closed, next)) = unknown {
            reads.find_age(self, p, closed, next, io);
        }
        let Some(border) = border else { return };
        let part = self.part(p);
        if border.offset > part.slots.end().offset {
            // Redo would begin below the border: a snapshot first. It looks here again when it is durable.
            self.part_mut(p).flush.want_snapshot(false);
            flushing.want(self, p, false);
            return;
        }
        // A file that is written is not unlinked.
        let is_repaired = reads.repairs(p) || self.part(p).is_mending();
        let part = self.part_mut(p);
        if part.flush.stage != super::flush::FlushStage::Idle || is_repaired {
            self.retention.look_at(p);
            return;
        }
        let bases = part.segments.remove_first(removable);
        let ends = bases[1..].iter().copied().chain([border.offset]);
        let old: Vec<Old> = bases.iter().zip(ends).map(|(&base, end)| Old { p, base, bytes: segment_at(base, end) }).collect();
        let is_old = |f: &FileId| matches!(f, FileId::Segment(_, base) | FileId::Commit(_, base) if bases.contains(base));
        part.flush.unsynced_segments.retain(|f| !is_old(f));
        part.flush.unsynced_commits.retain(|f| !is_old(f));
        part.borders.move_start(border);
        part.epochs.trim(border);
        part.damage.remove_before(part.segments.first().meta);
        let ticket = self.log_position(p, RecordKind::Start, border);
        self.retention.removals.push_back((ticket, p, old));
    }

    /// Closes the active segment when every channel has confirmed all of it and nothing else keeps it.
    fn close_confirmed(&mut self, now: Now, p: PartitionIdx, age_min: i64, bytes_min: i64) {
        let part = self.part_mut(p);
        let is_confirmed = part.borders.low_water().offset >= part.progress.end().at.offset && part.open.is_empty();
        let has_batches = part.segments.active().base() < part.progress.end().at.offset;
        let is_durable = part.progress.is_all_durable();
        let newest = part.batches.last().map(|r| r.header().base_unix_ns.get());
        let is_old = age_min == 0 || newest.is_some_and(|at| now.unix_ns - at >= age_min);
        if is_confirmed && has_batches && is_durable && is_old && bytes_min == 0 {
            part.roll();
        }
    }

    /// The disk has become full: judges every partition's segments anew.
    pub fn look_at_all(&mut self) {
        self.retention.due = self.partitions.iter().map(|(i, _)| PartitionIdx(i as u32)).collect();
    }

    /// Deletes the files of old segments that are due.
    pub fn delete_old(&mut self, now: Now, io: &mut Io) {
        if self.retention.deletes.is_empty() {
            return;
        }
        let is_short = self.full_disk.is_short();
        let is_hurried = self.is_stopping || is_short;
        let rate = if is_hurried { 0 } else { self.options.delete_bytes_per_second };
        let mut shared = Shared { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io };
        self.retention.deletes.delete_due(now.ticks, rate, is_short, &mut shared);
    }

    /// Records up to here are durable: the files that they free may be unlinked.
    pub fn remove_upto(&mut self, upto: RecordTicket, io: &mut Io) {
        while self.retention.removals.front().is_some_and(|r| r.0 <= upto) {
            let Some((_, p, old)) = self.retention.removals.pop_front() else { return };
            if self.part(p).is_restarting() {
                // it may begin where one of them did
                old.into_iter().for_each(|old| delete(old, &mut self.shared(io)));
            } else {
                old.into_iter().for_each(|old| self.retention.deletes.push(old));
            }
        }
    }

    pub fn removed(&mut self, now: Now, p: PartitionIdx, outcome: Result<DiskDone, DiskError>) {
        match outcome {
            // There may be room again for waiting appends.
            Ok(_) if self.full_disk.hurry(now.ticks) => {}
            Ok(DiskDone::Retired(true)) => self.retention.deletes.forgive(),
            Ok(_) => {}
            Err(error) => {
                let topic = &self.part(p).dir.topic;
                tracing::warn!(%error, %topic, "old segments were not removed: the next startup tries again");
            }
        }
    }

    /// The newest batch of a closed segment is as old as the first one of the next.
    pub fn learn_age(&mut self, p: PartitionIdx, closed: i64, unix_ns: i64) {
        self.part_mut(p).segments.learn_age(closed, unix_ns);
        self.retention.look_at(p);
    }

    pub fn retention_tick(&mut self, now: Now) {
        if self.retention.next_at.is_some_and(|at| at <= now.ticks) {
            self.retention.next_at = Some(now.ticks + INTERVAL);
            let is_short = self.full_disk.is_short();
            let due: Vec<PartitionIdx> = self
                .partitions
                .iter()
                .filter(|(_, p)| is_short || p.segments.len() > 1)
                .map(|(i, _)| PartitionIdx(i as u32))
                .collect();
            due.into_iter().for_each(|p| self.retention.look_at(p));
        }
    }
}
