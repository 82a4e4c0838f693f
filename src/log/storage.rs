//! The disk as recovery sees it: blocking, one call after the other, before any executor runs.
//!
//! The disk room implements it on O_DIRECT files, the simulated disk in memory. Names and paths are theirs.

use crate::base::{DiskError, FileId, PartitionDir, PartitionId, TopicName};
use std::sync::Arc;

/// Reads and writes are whole blocks at block positions, of at most [`IO_BYTES_MAX`](crate::base::IO_BYTES_MAX) bytes.
/// After an error of a call that changes something nothing is known of its effect: recovery ends and starts anew.
pub trait Storage {
    /// Folders below `topics/` whose names are valid topic names (so none that was set aside).
    fn topics(&mut self) -> Result<Vec<TopicName>, DiskError>;
    /// Numbered folders of a topic, ascending; empty when the topic has no folder.
    fn partitions(&mut self, topic: &TopicName) -> Result<Vec<PartitionId>, DiskError>;
    /// Base offsets of `*.segment`, ascending; empty when there is no folder.
    fn segments(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError>;
    /// Base offsets of `*.commit`, ascending.
    fn commits(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError>;
    /// Numbers below `journal/`, ascending.
    fn journals(&mut self) -> Result<Vec<u16>, DiskError>;

    /// `None`: not there.
    fn len(&mut self, file: &FileId) -> Result<Option<u64>, DiskError>;
    /// Short at the end of the file; empty past it.
    fn read(&mut self, file: &FileId, at: u64, len: usize) -> Result<Vec<u8>, DiskError>;
    /// The file exists and is allocated that far. Durable after [`Storage::sync`].
    fn write(&mut self, file: &FileId, at: u64, bytes: &[u8]) -> Result<(), DiskError>;
    fn sync(&mut self, file: &FileId) -> Result<(), DiskError>;
    /// Makes the file and its folders exist with `len` allocated bytes, zeros where nothing was written; durable when done.
    /// A file that is longer is left alone.
    fn allocate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError>;
    /// Makes the file exist with `len` bytes of *written* zeros, durable when done, so that writing over them changes no
    /// metadata. What stood in it is gone.
    fn fill(&mut self, file: &FileId, len: u64) -> Result<(), DiskError>;
    /// Cuts the file, durable when done.
    fn truncate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError>;
    /// Unlinks, durable when done. One that is gone already is not an error.
    fn remove(&mut self, files: &[FileId]) -> Result<(), DiskError>;
    /// Renames `topics/<name>` to `topics/<name>~<label>`, durable when done.
    fn set_aside_topic(&mut self, topic: &TopicName, label: &str) -> Result<(), DiskError>;
    /// Renames a file to `<name>~<label>`, durable when done. One that was set aside under this name before is replaced.
    fn set_aside(&mut self, file: &FileId, label: &str) -> Result<(), DiskError>;
}
