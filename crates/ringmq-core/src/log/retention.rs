//! Retention: a segment that every channel has confirmed, and that neither age nor size keeps, is removed.
//!
//! With several replicas only the segments on which they agreed are removed: the leader's store asks for the agreement
//! ([`Notice::Removable`]).
//!
//! The new start is durable in the journal before a file is unlinked (rule 6), and redo needs nothing below the last snapshot. The
//! active segment stays, except on a full disk (of any core): then a segment that is confirmed to its end is closed, so that many
//! topics, each within its first segment, do not hold all space for ever (rule 10). They are unlinked one after the other, not all at
//! once ([`super::deletes`]). Recovery removes a file below the start that was not unlinked yet, or could not be.

use super::deletes::{Deletes, Old, delete};
use super::notice::{Io, Notice, PartitionIdx, RecordTicket};
use super::recovery::scan::segment_at;
use super::store::{Store, StoreParts};
use crate::base::{DiskDone, DiskError, FileId, Now, Position, Ticks};
use crate::config::TopicSettings;
use crate::format::journal::RecordKind;
use std::{collections::VecDeque, time::Duration};

/// Interval at which age is looked at.
const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Retention {
    due: Vec<PartitionIdx>,
    /// Segments that go when the record of the new start is durable.
    removals: VecDeque<(RecordTicket, PartitionIdx, Vec<Old>)>,
    pub(super) deletes: Deletes,
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
}

impl Store {
    /// Sets the offset before which all channels have confirmed everything. It never moves back, and stays while a lost channel may come
    /// again.
    pub fn set_low_water(&mut self, p: PartitionIdx, at: Position) {
        let is_short = self.full_disk.is_short();
        let part = self.part_mut(p);
        let moves = part.damage.channels_lost() == 0 && part.borders.raise_low_water(at);
        if moves && (is_short || part.segments.get(1).is_some_and(|s| s.base() <= at.offset)) {
            self.retention.look_at(p);
        }
    }

    /// A channel begins at `at`, which may lie before the other channels' confirmed positions.
    pub fn lower_low_water(&mut self, p: PartitionIdx, at: Position) {
        self.part_mut(p).borders.lower_low_water(at);
    }

    /// The partition is one replica of several: nothing goes that they have not agreed on.
    pub fn await_agreement(&mut self, p: PartitionIdx) {
        self.part_mut(p).borders.await_agreement();
    }

    /// Sets the retention that the metadata gives a topic.
    pub fn set_topic_retention(&mut self, topic: &str, settings: TopicSettings) {
        let topics = &mut self.options.cluster_topics;
        match settings == TopicSettings::default() {
            true => drop(topics.remove(topic)),
            false => drop(topics.insert(topic.to_owned(), settings)),
        }
        self.retention.has_looked_at_ages = false;
    }

    /// No replica may need messages before `at`. Never moves back.
    pub fn set_agreed_start(&mut self, p: PartitionIdx, at: Position) {
        if self.part_mut(p).borders.agree(at) {
            self.retention.look_at(p);
        }
    }

    /// The partition may ask for an agreement again: [`Notice::Removable`].
    pub fn look_at_retention(&mut self, p: PartitionIdx) {
        self.retention.look_at(p);
    }

    /// Removes the segments that neither channels, replicas, age nor size keep.
    pub(super) fn retain(&mut self, now: Now, io: &mut Io) {
        for p in std::mem::take(&mut self.retention.due) {
            self.retain_partition(now, p, io);
        }
        let has_looked = std::mem::replace(&mut self.retention.has_looked_at_ages, true);
        if !has_looked && self.retention.next_at.is_none() && self.options.is_any_timed() {
            self.retention.next_at = Some(now.ticks + INTERVAL);
        }
    }

    fn retain_partition(&mut self, now: Now, p: PartitionIdx, io: &mut Io) {
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
        if let Some((closed, next)) = unknown
            && !self.searches.is_for_age_of(p, closed)
        {
            self.find_age(p, closed, next, io);
        }
        let Some(border) = border else { return };
        let part = self.part(p);
        if border.offset > part.slots.end().offset {
            // Redo would begin below the border: a snapshot first. It looks here again when it is durable.
            self.part_mut(p).flush.want_snapshot(false);
            self.want_flush(p, false);
            return;
        }
        // A file that is written is not unlinked.
        let is_repaired = self.scrub.repairs(p) || self.part(p).is_mending();
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
    pub(super) fn look_at_all(&mut self) {
        self.retention.due = self.partitions.iter().map(|(i, _)| PartitionIdx(i as u32)).collect();
    }

    /// Deletes the files of old segments that are due.
    pub(super) fn delete_old(&mut self, now: Now, io: &mut Io) {
        if self.retention.deletes.is_empty() {
            return;
        }
        let is_short = self.is_short_of_space();
        let is_hurried = self.is_stopping() || is_short;
        let rate = if is_hurried { 0 } else { self.options.delete_bytes_per_second };
        let mut shared = StoreParts { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io };
        self.retention.deletes.delete_due(now.ticks, rate, is_short, &mut shared);
    }

    /// Bytes of segments that wait to be deleted.
    pub fn deleting_bytes(&self) -> u64 {
        self.retention.deletes.bytes()
    }

    /// Records up to here are durable: the files that they free may be unlinked.
    pub(super) fn remove_upto(&mut self, upto: RecordTicket, io: &mut Io) {
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

    pub(super) fn removed(&mut self, now: Now, p: PartitionIdx, outcome: Result<DiskDone, DiskError>) {
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
    pub(super) fn learn_age(&mut self, p: PartitionIdx, closed: i64, unix_ns: i64) {
        self.part_mut(p).segments.learn_age(closed, unix_ns);
        self.retention.look_at(p);
    }

    pub(super) fn retention_tick(&mut self, now: Now) {
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

    pub(super) fn retention_deadline(&self) -> Option<Ticks> {
        self.retention.next_at
    }
}
