//! The disk as recovery sees it: blocking, one call after the other, before any executor runs.
//!
//! Implemented by the module `disk` on O_DIRECT files and by the simulated disk in memory. Names and paths are the implementation's.

use crate::base::{BLOCK, DiskError, FileId, IO_BYTES_MAX, PartitionDir, PartitionId, TopicName, block_down, block_up};
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
    /// Creates the file with `len` bytes of *written* zeros, durable when done, so that writing over them changes no metadata. Former
    /// content is lost.
    fn fill(&mut self, file: &FileId, len: u64) -> Result<(), DiskError>;
    /// Truncates the file, durable when done.
    fn truncate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError>;
    /// Unlinks files, durable when done. A missing file is not an error.
    fn remove(&mut self, files: &[FileId]) -> Result<(), DiskError>;
    /// Renames `topics/<name>` to `topics/<name>~<label>`, durable when done.
    fn set_aside_topic(&mut self, topic: &TopicName, label: &str) -> Result<(), DiskError>;
    /// Renames a file to `<name>~<label>`, durable when done. A file that was set aside under this name before is replaced.
    fn set_aside(&mut self, file: &FileId, label: &str) -> Result<(), DiskError>;
}

/// Fill byte of a block that cannot be read. Zeros would pass for a block that was never written.
const UNREADABLE: u8 = 0xee;
/// A block is read as often before it is given up.
const READ_TRIES: usize = 3;

/// Reads any range, in pieces that the disk accepts. Short at the end of the file. A block that cannot be read after
/// several tries comes back as bytes that no checksum accepts, so that it is judged like any other damage.
pub fn read_range(storage: &mut dyn Storage, file: &FileId, at: u64, len: usize) -> Result<Vec<u8>, DiskError> {
    let (first, end) = (block_down(at), block_up(at + len as u64));
    let mut bytes = Vec::new();
    let mut piece_at = first;
    while piece_at < end {
        let piece_len = (end - piece_at).min(IO_BYTES_MAX as u64) as usize;
        let piece = read_piece(storage, file, piece_at, piece_len)?;
        let is_short = piece.len() < piece_len;
        match bytes.is_empty() {
            true => bytes = piece,
            false => bytes.extend_from_slice(&piece),
        }
        if is_short {
            break;
        }
        piece_at += piece_len as u64;
    }
    let skip = ((at - first) as usize).min(bytes.len());
    bytes.drain(..skip);
    bytes.truncate(len);
    Ok(bytes)
}

fn read_piece(storage: &mut dyn Storage, file: &FileId, at: u64, len: usize) -> Result<Vec<u8>, DiskError> {
    match storage.read(file, at, len) {
        Ok(bytes) => return Ok(bytes),
        Err(DiskError::Io { .. }) => {}
        // Another file says which bytes belong there.
        Err(DiskError::NotFound { .. }) => return Ok(vec![]),
        Err(other) => return Err(other),
    }
    let file_len = storage.len(file)?.unwrap_or(0);
    let end = file_len.min(at + len as u64);
    let mut bytes = Vec::new();
    for block_at in (at..end).step_by(BLOCK) {
        let block = (0..READ_TRIES).find_map(|_| storage.read(file, block_at, BLOCK).ok());
        bytes.extend_from_slice(&block.unwrap_or_else(|| vec![UNREADABLE; BLOCK.min((end - block_at) as usize)]));
    }
    Ok(bytes)
}

/// Writes any range of an allocated file without changing a byte beside it: blocks shared with neighbours are read first.
pub fn overlay(storage: &mut dyn Storage, file: &FileId, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
    let (first, end) = (block_down(at), block_up(at + bytes.len() as u64));
    let mut buffer = vec![0; (end - first) as usize];
    let mut keep = |storage: &mut dyn Storage, block_at: u64| -> Result<(), DiskError> {
        let old = read_range(storage, file, block_at, BLOCK)?;
        buffer[(block_at - first) as usize..][..old.len()].copy_from_slice(&old);
        Ok(())
    };
    let last = end.saturating_sub(BLOCK as u64);
    if first != at {
        keep(storage, first)?;
    }
    if end != at + bytes.len() as u64 && (last != first || first == at) {
        keep(storage, last)?;
    }
    buffer[(at - first) as usize..][..bytes.len()].copy_from_slice(bytes);
    for (i, piece) in buffer.chunks(IO_BYTES_MAX).enumerate() {
        storage.write(file, first + (i * IO_BYTES_MAX) as u64, piece)?;
    }
    Ok(())
}
