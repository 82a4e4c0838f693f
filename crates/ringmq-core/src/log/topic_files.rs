//! The creation and deletion of topics, each with a journal record. The two files of `topic.meta` must be durable before a checkpoint
//! passes the record of a creation, and removed before one passes that of a deletion. A topic that gets more partitions is written once
//! more, in the same way.
//!
//! ```text
//! record queued, Allocate topic.meta.0 -> Write, durable -> Allocate topic.meta.1 -> Write, durable -> done
//!                     no space: again after a pause               any other error: failed, the journal keeps the record
//! ```

use super::core_logs::{Op, Ops};
use super::notice::Io;
use crate::base::{
    BLOCK, DiskDone, DiskError, DiskOp, Durability, FileId, IdMap, Now, PartitionDir, PartitionId, Ticks, TopicId, TopicInfo,
    TopicName,
};
use crate::format::meta::TopicMeta;
use bytes::Bytes;
use std::sync::Arc;

/// The `topic.meta` of one topic on its way to the disk.
struct TopicFile {
    dir: Arc<PartitionDir>,
    /// Content of both files.
    block: Bytes,
    /// The copy that is being made: 0, then 1.
    copy: u8,
    /// The file of this copy is allocated.
    is_allocated: bool,
    /// Sequence of the journal write that holds the topic's record, once packed: no checkpoint passes it.
    write_sequence: Option<u64>,
    /// The file must not be written any more.
    is_failed: bool,
    retry_at: Option<Ticks>,
    /// True if the files wait for those of the same topic with fewer partitions.
    is_behind: bool,
    /// True if there was no space for the file when it was allocated last.
    lacks_space: bool,
}

/// A topic that is being deleted, on its home core.
struct TopicDelete {
    dir: Arc<PartitionDir>,
    /// Sequence of the journal write that holds the record, once packed: no checkpoint passes it.
    write_sequence: Option<u64>,
    /// Only topic.meta is left.
    is_wanted: bool,
    /// True when a part of the topic could not be removed: the next startup removes it.
    is_failed: bool,
}

/// The topics whose `topic.meta` is not durable, and those that are being deleted. Each has a key.
#[derive(Default)]
pub(super) struct TopicFiles {
    files: IdMap<u64, TopicFile>,
    deletes: IdMap<u64, TopicDelete>,
    last_key: u64,
}

impl TopicFiles {
    /// A key for a topic that is created or deleted.
    pub fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// The record of this key is in a journal write.
    pub fn packed(&mut self, key: u64, write_sequence: u64) {
        if let Some(file) = self.files.get_mut(&key) {
            file.write_sequence = Some(write_sequence);
        } else if let Some(delete) = self.deletes.get_mut(&key) {
            delete.write_sequence = Some(write_sequence);
        }
    }

    /// Journal writes whose records no checkpoint may pass yet.
    pub fn records(&self) -> impl Iterator<Item = u64> {
        let created = self.files.values().filter_map(|file| file.write_sequence);
        created.chain(self.deletes.values().filter_map(|delete| delete.write_sequence))
    }

    /// Journal writes whose records no checkpoint passes until a restart.
    pub fn failed_records(&self) -> impl Iterator<Item = u64> {
        let created = self.files.values().filter(|file| file.is_failed).filter_map(|file| file.write_sequence);
        created.chain(self.deletes.values().filter(|delete| delete.is_failed).filter_map(|delete| delete.write_sequence))
    }

    /// A file that will be durable has its record before this journal write.
    pub fn has_record_before(&self, write_sequence: u64) -> bool {
        self.files.values().any(|file| file.write_sequence.is_some_and(|w| w < write_sequence) && !file.is_failed)
    }

    /// A topic whose file could not be written.
    pub fn failed(&self) -> Option<&TopicName> {
        self.files.values().find(|file| file.is_failed).map(|file| &file.dir.topic)
    }

    pub fn waits_for_space(&self) -> bool {
        self.files.values().any(|file| file.lacks_space && !file.is_failed)
    }

    /// An operation on the topic's file is in flight.
    fn is_under_way(&self, id: TopicId) -> bool {
        let is_in_flight = |file: &TopicFile| file.retry_at.is_none() && !file.is_failed && !file.is_behind;
        self.files.values().any(|file| file.dir.topic_id == id && is_in_flight(file))
    }

    /// Begins the deletion of a topic; its key.
    pub fn begin_delete(&mut self, topic: &TopicInfo) -> u64 {
        let key = self.next_key();
        let dir = Arc::new(PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition: PartitionId(0) });
        self.deletes.insert(key, TopicDelete { dir, write_sequence: None, is_wanted: false, is_failed: false });
        key
    }

    /// Whether a topic is being deleted.
    pub fn is_deleting(&self) -> bool {
        !self.deletes.is_empty()
    }

    /// All partitions of the topic are gone: its `topic.meta` is to go.
    pub fn want_removal(&mut self, key: u64) {
        if let Some(delete) = self.deletes.get_mut(&key) {
            delete.is_wanted = true;
        }
    }

    /// A part of the topic could not be removed: the record of the deletion stays in the journal.
    pub fn delete_failed(&mut self, key: u64) {
        if let Some(delete) = self.deletes.get_mut(&key) {
            delete.is_failed = true;
        }
    }

    /// A topic that stays half removed until the next startup.
    pub fn half_removed(&self) -> Option<&TopicName> {
        self.deletes.values().find(|delete| delete.is_failed).map(|delete| &delete.dir.topic)
    }

    /// Removes each `topic.meta` that is to go, once no operation on it is in flight.
    pub fn remove_due(&mut self, ops: &mut Ops, io: &mut Io) {
        let due: Vec<u64> = self.deletes.iter().filter(|(_, delete)| delete.is_wanted).map(|(&key, _)| key).collect();
        for key in due {
            let Some(delete) = self.deletes.get(&key) else { continue };
            let dir = delete.dir.clone();
            // It may still be on its way to the disk, or wait for space.
            if self.is_under_way(dir.topic_id) {
                continue;
            }
            self.files.retain(|_, file| file.dir.topic_id != dir.topic_id);
            self.deletes.get_mut(&key).into_iter().for_each(|delete| delete.is_wanted = false);
            let files = [0, 1].map(|copy| FileId::Topic(dir.clone(), copy)).to_vec();
            ops.issue(io, DiskOp::Remove { files }, Op::RemoveTopic(key));
        }
    }

    /// The topic's `topic.meta` is removed: checkpoints may pass the record of its deletion.
    pub fn removed(&mut self, key: u64) {
        self.deletes.remove(&key);
    }

    /// The next one of the topic that waited, which waits no more.
    fn behind(&mut self, id: TopicId) -> Option<u64> {
        let waits = self.files.iter_mut().filter(|(_, file)| file.is_behind && file.dir.topic_id == id);
        let (key, file) = waits.min_by_key(|(key, _)| **key)?;
        file.is_behind = false;
        Some(*key)
    }

    fn due(&self, now: Ticks) -> Vec<u64> {
        let is_due = |file: &TopicFile| file.retry_at.is_some_and(|at| at <= now);
        let mut keys: Vec<u64> = self.files.iter().filter(|(_, file)| is_due(file)).map(|(&key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    pub fn deadline(&self) -> Option<Ticks> {
        self.files.values().filter_map(|file| file.retry_at).min()
    }

    /// Begins the files of a topic whose record was queued under this key.
    pub fn create(&mut self, key: u64, meta: &TopicMeta, ops: &mut Ops, io: &mut Io) {
        let TopicInfo { name, id, .. } = &meta.info;
        let is_behind = self.files.values().any(|file| file.dir.topic_id == *id && !file.is_failed);
        let file = TopicFile {
            dir: Arc::new(PartitionDir { topic: name.clone(), topic_id: *id, partition: PartitionId(0) }),
            block: meta.encode().into(),
            copy: 0,
            is_allocated: false,
            write_sequence: None,
            is_failed: false,
            retry_at: None,
            is_behind,
            lacks_space: false,
        };
        self.files.insert(key, file);
        if !is_behind {
            self.write(key, ops, io);
        }
    }

    /// Allocates the file of one copy, then writes it.
    fn write(&mut self, key: u64, ops: &mut Ops, io: &mut Io) {
        let Some(topic) = self.files.get_mut(&key) else { return };
        topic.retry_at = None;
        let file = FileId::Topic(topic.dir.clone(), topic.copy);
        let op = if topic.is_allocated {
            DiskOp::Write { file, at: 0, parts: vec![topic.block.clone()], durability: Durability::Durable }
        } else {
            DiskOp::Allocate { file, len: BLOCK as u64 }
        };
        ops.issue(io, op, Op::Topic(key));
    }

    /// An operation on a topic's file has finished. Returns the topic if both files are durable: a checkpoint may pass its record, and
    /// [`Self::go_on_behind`] begins the files that wait for these.
    pub fn written(
        &mut self,
        now: Now,
        key: u64,
        outcome: Result<DiskDone, DiskError>,
        ops: &mut Ops,
        io: &mut Io,
    ) -> Option<TopicId> {
        let topic = self.files.get_mut(&key).expect("a topic file stays until it is written");
        match outcome {
            Ok(_) if topic.is_allocated && topic.copy == 0 => {
                (topic.copy, topic.is_allocated) = (1, false);
                self.write(key, ops, io);
            }
            Ok(_) if topic.is_allocated => return self.files.remove(&key).map(|file| file.dir.topic_id),
            Ok(_) => {
                (topic.is_allocated, topic.lacks_space) = (true, false);
                self.write(key, ops, io);
            }
            Err(error) if error.is_no_space() && !topic.is_allocated => {
                (topic.retry_at, topic.lacks_space) = (Some(now.ticks + super::space::RETRY), true);
            }
            Err(error) => {
                tracing::error!(%error, topic = %topic.dir.topic, "topic.meta was not written: the journal keeps its record");
                let id = topic.dir.topic_id;
                self.files.values_mut().filter(|file| file.dir.topic_id == id).for_each(|file| file.is_failed = true);
            }
        }
        None
    }

    /// Begins the next files of the topic, which waited for others of the same topic.
    pub fn go_on_behind(&mut self, id: TopicId, ops: &mut Ops, io: &mut Io) {
        if let Some(next) = self.behind(id) {
            self.write(next, ops, io);
        }
    }

    /// Repeats the writes that lacked space.
    pub fn retry(&mut self, now: Now, ops: &mut Ops, io: &mut Io) {
        self.due(now.ticks).into_iter().for_each(|key| self.write(key, ops, io));
    }
}
