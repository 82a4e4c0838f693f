//! The creation of topics: a journal record, and the two files of `topic.meta` that must be durable before a checkpoint passes the
//! record. A topic that gets more partitions is written once more, in the same way.
//!
//! ```text
//! record queued, Allocate topic.meta.0 -> Write, durable -> Allocate topic.meta.1 -> Write, durable -> done
//!                     no space: again after a pause               any other error: failed, the journal keeps the record
//! ```

use super::notice::Io;
use super::store::{Op, Ops};
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

/// The topics whose `topic.meta` is not durable. Each has a key, of the same numbers as the deletions of topics.
#[derive(Default)]
pub(super) struct TopicFiles {
    files: IdMap<u64, TopicFile>,
    last_key: u64,
}

impl TopicFiles {
    /// A key for a topic that is created or deleted.
    pub fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// The record of this key is in a journal write. False: no file waits for it.
    pub fn packed(&mut self, key: u64, write_sequence: u64) -> bool {
        let file = self.files.get_mut(&key);
        let is_here = file.is_some();
        file.into_iter().for_each(|file| file.write_sequence = Some(write_sequence));
        is_here
    }

    /// Journal writes whose records no checkpoint may pass yet.
    pub fn records(&self) -> impl Iterator<Item = u64> {
        self.files.values().filter_map(|file| file.write_sequence)
    }

    /// Journal writes whose records no checkpoint passes until a restart.
    pub fn failed_records(&self) -> impl Iterator<Item = u64> {
        self.files.values().filter(|file| file.is_failed).filter_map(|file| file.write_sequence)
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
    pub fn is_under_way(&self, id: TopicId) -> bool {
        let is_in_flight = |file: &TopicFile| file.retry_at.is_none() && !file.is_failed && !file.is_behind;
        self.files.values().any(|file| file.dir.topic_id == id && is_in_flight(file))
    }

    /// The topic is removed.
    pub fn forget(&mut self, id: TopicId) {
        self.files.retain(|_, file| file.dir.topic_id != id);
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
