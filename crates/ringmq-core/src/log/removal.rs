//! Removing a topic from this core: its partitions' folders, and on its home core `topic.meta`.
//!
//! ```text
//! close_partition -> TopicDelete durable -> remove_partition, once nothing of it is in flight -> Notice::Removed
//! (home) log_topic_delete ... all partitions of all cores are gone -> remove_topic -> Notice::TopicRemoved
//! ```
//! A partition whose replica moved to another node is removed in the same way; its own record, PartitionDelete, is the decision then,
//! and holds the checkpoint until the files are gone ([`Store::log_partition_delete`], [`Store::remove_departed`]).
//!
//! The home's record is the decision: recovery finishes an incomplete removal. So no checkpoint passes the record before the files are
//! gone. The other cores' records only follow the topic's records in their own rings, which checkpoints may pass as soon as the decision
//! is durable.

use super::core_logs::{Op, RecordPurpose};
use super::notice::{Io, Notice, PartitionIdx, RecordTicket};
use super::partition::Closed;
use super::store::Store;
use crate::base::{DiskDone, DiskError, DiskOp, Epoch, Position, Ticks, TopicInfo};
use crate::format::journal::{RecordHeader, RecordKind, WHOLE_TOPIC};
use crate::journal::ring::{NO_SLOT, Record};
use bytes::Bytes;

#[derive(Default)]
pub struct Removal {
    /// Closed partitions that go once nothing of them is in flight.
    waiting: Vec<PartitionIdx>,
}

impl Store {
    /// True if all appended batches of the partition are durable, so that no publish waits.
    pub fn is_at_rest(&self, p: PartitionIdx) -> bool {
        let part = self.core.part(p);
        part.open.is_empty() && part.progress.is_all_durable()
    }

    pub fn is_poisoned(&self, p: PartitionIdx) -> bool {
        self.core.part(p).is_closed()
    }

    /// Closes a partition for writing: it is about to be removed.
    pub fn close_partition(&mut self, p: PartitionIdx, io: &mut Io) {
        self.core.part_mut(p).closed = Some(Box::new(Closed::Leaving));
        self.flushing.give_up(&mut self.core, p);
        self.core.failures.forget(p);
        self.core.retention.forget(p);
        self.reads.forget(p);
        self.hold_until_committed(p, false);
        self.core.turn.forget_commit(p);
        self.truncations.forget(p);
        self.core.full_disk.leave(p);
        self.core.admission.signal_all();
        self.flushing.finish_checkpoint(&mut self.core, io);
    }

    /// Logs the decision, on the topic's home core. Returns its number for [`Store::remove_topic`], and its ticket.
    pub fn log_topic_delete(&mut self, topic: &TopicInfo) -> (u64, RecordTicket) {
        let key = self.core.topics.begin_delete(topic);
        (key, self.log_deletion(topic, key))
    }

    /// Logs the topic's end on another core: recovery need not miss the topic's records in that core's ring.
    pub fn log_topic_gone(&mut self, topic: &TopicInfo) -> RecordTicket {
        self.log_deletion(topic, 0)
    }

    fn log_deletion(&mut self, topic: &TopicInfo, key: u64) -> RecordTicket {
        let ticket = self.core.turn.next_record();
        let Epoch(epoch) = self.core.options.epoch;
        let payload = Bytes::new();
        let header = RecordHeader::new(RecordKind::TopicDelete, topic.id, WHOLE_TOPIC, 2, epoch, &payload);
        let note = RecordPurpose::Topic(key, ticket);
        self.core.ring.queue(Record { header, payload, slot: NO_SLOT, end: Position::START, note });
        ticket
    }

    /// Whether the journal has a record of the partition, or the disk a file.
    pub fn has_any_of(&self, p: PartitionIdx) -> bool {
        let part = self.core.part(p);
        part.journaled.sequence() > 0 || part.slots.sequence() > 0 || part.space.has_any()
    }

    /// The last record of a closed partition: its replica moved to another node.
    pub fn log_partition_delete(&mut self, p: PartitionIdx) -> RecordTicket {
        assert!(self.core.part(p).is_leaving(), "a partition is closed before it is removed");
        self.core.fact(p, RecordKind::PartitionDelete, vec![])
    }

    /// Removes a departed partition, whose record is durable. No checkpoint passes the record before the files are gone.
    pub fn remove_departed(&mut self, p: PartitionIdx, io: &mut Io) {
        self.removal.waiting.push(p);
        self.try_removals(io);
    }

    /// Lets checkpoints pass the records of a closed partition. The deletion of its topic is durable on the home core, whose journal
    /// keeps it. Before, a checkpoint must not pass records that only the journal has, while the topic may still be there after a crash.
    pub fn forget_records(&mut self, p: PartitionIdx, io: &mut Io) {
        let part = self.core.part_mut(p);
        assert!(part.is_leaving(), "a partition is closed before its records are forgotten");
        part.journaled.forget();
        self.flushing.finish_checkpoint(&mut self.core, io);
    }

    /// Removes a closed partition. The record of its topic's deletion, logged after it was closed, is durable: so are all
    /// before it, and nothing of the partition is on its way to the journal.
    pub fn remove_partition(&mut self, p: PartitionIdx, io: &mut Io) {
        assert!(self.core.part(p).is_leaving(), "a partition is closed before it is removed");
        self.removal.waiting.push(p);
        self.try_removals(io);
        self.forget_records(p, io);
    }

    /// Removes the topic's file, once the partitions of all cores are gone.
    pub fn remove_topic(&mut self, key: u64, io: &mut Io) {
        self.core.topics.want_removal(key);
        self.try_removals(io);
    }

    /// Notes that a core could not remove its part: the record of the deletion stays in the journal.
    pub fn topic_delete_failed(&mut self, key: u64) {
        self.core.topics.delete_failed(key);
    }

    /// Begins the removals that no operation in flight delays any more.
    pub(super) fn try_removals(&mut self, io: &mut Io) {
        if self.removal.waiting.is_empty() && !self.core.topics.is_deleting() {
            return;
        }
        for p in std::mem::take(&mut self.removal.waiting) {
            if self.is_in_use(p) {
                self.removal.waiting.push(p);
            } else {
                let dir = self.core.part(p).dir.clone();
                self.core.ops.issue(io, DiskOp::RemovePartition { dir }, Op::RemovePartition(p));
            }
        }
        self.core.topics.remove_due(&mut self.core.ops, io);
    }

    fn is_in_use(&self, p: PartitionIdx) -> bool {
        let is_of_it =
            |op: &Op| matches!(op, Op::Space { p: q, .. } | Op::Flush(q, _) | Op::Remove(q) | Op::Truncation(q) if *q == p);
        self.core.ops.is_any(is_of_it) || self.reads.is_any_in(p) || self.core.part(p).is_mending()
    }

    pub(super) fn partition_removed(&mut self, p: PartitionIdx, outcome: Result<DiskDone, DiskError>) {
        let is_gone = outcome.is_ok();
        if let Err(error) = outcome {
            tracing::error!(%error, dir = %self.core.part(p).dir, "a removed partition stays on the disk: the next startup removes it");
            self.core.failures.stuck(p);
        } else {
            let part = self.core.partitions.remove(p.0 as usize);
            self.core.batch_memory.eviction.forget(p, part.unflushed_bytes());
            self.reads.forget_all(p);
            self.core.retention.forget(p);
            self.flushing.forget(p);
            self.core.turn.forget(p);
            self.core.full_disk.forget(p);
            self.core.full_disk.hurry(Ticks(0)); // the space that it had may be enough for others
        }
        self.core.notices.push(Notice::Removed { p, is_gone });
    }

    pub(super) fn topic_removed(&mut self, key: u64, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let is_gone = outcome.is_ok();
        if let Err(error) = outcome {
            tracing::error!(%error, "a removed topic's topic.meta stays on the disk: the next startup removes it");
            self.core.topics.delete_failed(key);
        } else {
            self.core.topics.removed(key);
        }
        self.flushing.finish_checkpoint(&mut self.core, io);
        self.core.notices.push(Notice::TopicRemoved { key, is_gone });
    }
}
