//! Interface between the pure modules and a disk: operations and their outcomes. There is no path and no descriptor: a [`FileId`] names
//! a file, and the disk module (or the simulated disk) maps it to one.
//!
//! A write may tear at a power loss (any subset of its 512-byte sectors), and completes in any order with others.
//! The pure rooms never have two writes in flight that overlap, and never write a file again that failed.

use super::{BLOCK, PartitionId, TopicId, TopicName};
use bytes::{Buf, Bytes, BytesMut};
use std::{fmt, sync::Arc};

/// Empty memory for a write of `bytes` bytes. It begins at a block's border, so the disk can write it without a copy. It must not grow.
pub fn block_memory(bytes: usize) -> BytesMut {
    let mut memory = BytesMut::with_capacity(bytes + BLOCK);
    let skipped = memory.as_ptr().align_offset(BLOCK);
    memory.resize(skipped, 0);
    memory.advance(skipped);
    memory
}

/// Number of one disk operation, chosen by the shard, unique while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// The folder of one partition: `<data-path>/topics/<topic>/<partition>`. The id is checked in every file below it.
#[derive(PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PartitionDir {
    pub topic: TopicName,
    pub topic_id: TopicId,
    pub partition: PartitionId,
}

impl fmt::Display for PartitionDir {
    /// The path below the data path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topics/{}/{}", topic_folder(&self.topic), self.partition)
    }
}

/// The folder of a topic is its name, but for the two valid names that a file system takes for something else.
/// (`%` is in no name.)
pub fn topic_folder(name: &TopicName) -> &str {
    match name.as_str() {
        "." => "%2e",
        ".." => "%2e%2e",
        name => name,
    }
}

/// The topic that a folder below `topics/` belongs to; `None` for a foreign one, or one that was set aside.
pub fn topic_of_folder(folder: &str) -> Option<TopicName> {
    let name = match folder {
        "%2e" => ".",
        "%2e%2e" => "..",
        "." | ".." => return None,
        name => name,
    };
    TopicName::new(name).ok()
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum FileId {
    /// `node.meta.0` and `node.meta.1`: the node's id and generation, written in turn.
    Node(u8),
    /// `journal/<n>`: one core's ring.
    Journal(u16),
    /// `topics/<topic>/topic.meta.0` and `topic.meta.1`: two copies of the topic's metadata. The partition of the `PartitionDir` is
    /// ignored.
    Topic(Arc<PartitionDir>, u8),
    /// `<partition>/<base offset, 20 digits>.segment`
    Segment(Arc<PartitionDir>, i64),
    /// `<partition>/<base offset, 20 digits>.commit`: the commit log of that segment.
    Commit(Arc<PartitionDir>, i64),
    /// `<partition>/state.0` to `state.2`: the partition's snapshot, written in turn.
    Snapshot(Arc<PartitionDir>, u8),
}

impl fmt::Display for FileId {
    /// The path below the data path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileId::Node(slot) => write!(f, "node.meta.{slot}"),
            FileId::Journal(core) => write!(f, "journal/{core}"),
            FileId::Topic(d, copy) => write!(f, "topics/{}/topic.meta.{copy}", topic_folder(&d.topic)),
            FileId::Segment(d, base) => write!(f, "{d}/{base:020}.segment"),
            FileId::Commit(d, base) => write!(f, "{d}/{base:020}.commit"),
            FileId::Snapshot(d, slot) => write!(f, "{d}/state.{slot}"),
        }
    }
}

/// Point at which a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Done when the device has taken the write; a later [`DiskOp::Sync`] of the file makes it durable.
    Later,
    /// Done when the write is durable: the file is open O_DSYNC, the write itself asks for it, or an fdatasync follows.
    Durable,
}

#[derive(Clone, Debug)]
pub enum DiskOp {
    /// Writes `parts`, one after the other, at `at`. `at` and the sum of the parts are whole blocks;
    /// the sum is at most [`super::IO_BYTES_MAX`]. The file exists and is allocated that far.
    Write { file: FileId, at: u64, parts: Vec<Bytes>, durability: Durability },
    /// Makes everything durable that was written to the file before.
    Sync { file: FileId },
    /// Reads `len` bytes at `at`, both whole blocks, `len` at most [`super::READ_BYTES_MAX`].
    /// Past the end of the file the answer is short.
    Read { file: FileId, at: u64, len: usize },
    /// Makes the file (and its folders) exist with `len` bytes of allocated space, zeros where nothing was written.
    /// Durable (file size, folder entries) when done. A file that is longer already is left alone. ENOSPC changes nothing.
    Allocate { file: FileId, len: u64 },
    /// Allocates like [`DiskOp::Allocate`], for a new segment. A retired segment of at most `max` bytes may take its place: a block of
    /// zeros, then any bytes. Done with [`DiskDone::Allocated`].
    AllocateSegment { file: FileId, len: u64, max: u64 },
    /// Truncates the file to `len` bytes, durable when done.
    Truncate { file: FileId, len: u64 },
    /// Unlinks files, durable when done. A missing file is not an error.
    Remove { files: Vec<FileId> },
    /// Removes like [`DiskOp::Remove`], for a segment's files that retention released: the space may be kept for another segment. Done
    /// with [`DiskDone::Retired`].
    Retire { segment: FileId, commit: FileId },
    /// Unlinks a partition's folder and all in it.
    RemovePartition { dir: Arc<PartitionDir> },
}

impl DiskOp {
    pub fn file(&self) -> Option<&FileId> {
        match self {
            DiskOp::Write { file, .. }
            | DiskOp::Sync { file }
            | DiskOp::Read { file, .. }
            | DiskOp::Allocate { file, .. }
            | DiskOp::AllocateSegment { file, .. }
            | DiskOp::Truncate { file, .. } => Some(file),
            DiskOp::Remove { .. } | DiskOp::Retire { .. } | DiskOp::RemovePartition { .. } => None,
        }
    }
}

/// Result of a finished operation.
#[derive(Clone, Debug)]
pub enum DiskDone {
    Done,
    Read(Bytes),
    /// The file is so long.
    Allocated(u64),
    /// Retired; true if the space was kept.
    Retired(bool),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    #[error("{file}: no space left on the device")]
    NoSpace { file: FileId },
    #[error("{file}: {written} of {len} bytes were written at {at}")]
    ShortWrite { file: FileId, at: u64, len: usize, written: usize },
    #[error("{file}: {call} failed: {message} (os error {errno})")]
    Io { file: FileId, call: &'static str, errno: i32, message: String },
    #[error("{file}: not found")]
    NotFound { file: FileId },
}

impl DiskError {
    /// Space may come back; everything else says that the file can no longer be trusted with writes.
    pub fn is_no_space(&self) -> bool {
        matches!(self, DiskError::NoSpace { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_topic_name_leaves_the_topics_folder() {
        for name in [".", "..", "...", "a", "a.b#ephemeral"] {
            let topic = TopicName::new(name).unwrap();
            let folder = topic_folder(&topic).to_owned();
            assert!(folder != "." && folder != "..");
            assert_eq!(topic_of_folder(&folder), Some(topic.clone()));
            let dir = Arc::new(PartitionDir { topic, topic_id: TopicId::default(), partition: PartitionId(3) });
            assert_eq!(FileId::Segment(dir, 42).to_string(), format!("topics/{folder}/3/00000000000000000042.segment"));
        }
        assert_eq!(topic_of_folder("a~old"), None);
    }
}
