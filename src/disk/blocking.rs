//! The disk before there are executors: blocking, O_DIRECT, one thread. Recovery and `inspect` use it.
//!
//! Every file it opens for writing is locked through the description that writes it (see [`super::lock`]); dropping the
//! storage closes them all, so that the executors can lock them.

use super::files::{self, disk_errno, disk_error};
use super::spares::Spares;
use super::{lock, paths};
use crate::base::{BLOCK, DiskError, FileId, IO_BYTES_MAX, PartitionDir, PartitionId, TopicName, block_up};
use crate::format::storage::Storage;
use std::alloc::Layout;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files kept open between calls.
const OPEN_MAX: usize = 64;

/// Bytes at an address that O_DIRECT takes.
pub struct AlignedBuffer {
    data: std::ptr::NonNull<u8>,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zero bytes; not 0.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let data = unsafe { std::alloc::alloc_zeroed(layout) };
        let data = std::ptr::NonNull::new(data).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        AlignedBuffer { data, len }
    }

    fn layout(len: usize) -> Layout {
        assert!(len > 0, "an aligned buffer is not empty");
        Layout::from_size_align(len, BLOCK).expect("a buffer is no larger than memory")
    }
}

// SAFETY: plain memory that has one owner, and whose sharers only read it.
unsafe impl Send for AlignedBuffer {}
unsafe impl Sync for AlignedBuffer {}

impl std::ops::Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with this length and initialised.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; borrowed mutably with self.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout.
        unsafe { std::alloc::dealloc(self.data.as_ptr(), Self::layout(self.len)) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Takes the lock of each file it opens.
    ReadWrite,
    /// Looks at files that another process may be using; refuses to change anything.
    ReadOnly,
}

pub struct BlockingStorage {
    data: PathBuf,
    access: Access,
    /// Open files by path. Recovery names a file before it knows the topic's id, and one file has one description.
    open: HashMap<PathBuf, File>,
    buffer: AlignedBuffer,
    /// Kept space, given back where space is short.
    spares: Option<Arc<Spares>>,
}

impl BlockingStorage {
    /// A disk for a data path whose [`super::DataLock`] is held.
    pub fn new(data: &Path) -> Self {
        Self::with_access(data, Access::ReadWrite)
    }

    pub fn with_access(data: &Path, access: Access) -> Self {
        let buffer = AlignedBuffer::zeroed(IO_BYTES_MAX);
        BlockingStorage { data: data.to_owned(), access, open: HashMap::new(), buffer, spares: None }
    }

    /// Gives this space back where it needs some.
    pub fn with_spares(self, spares: Arc<Spares>) -> Self {
        BlockingStorage { spares: Some(spares), ..self }
    }

    fn path(&self, file: &FileId) -> PathBuf {
        paths::path_of(&self.data, file)
    }

    fn file(&mut self, file: &FileId) -> Result<&File, DiskError> {
        let path = self.path(file);
        if !self.open.contains_key(&path) {
            if self.open.len() >= OPEN_MAX {
                self.open.clear();
            }
            let opened = self.open(file)?;
            self.open.insert(path.clone(), opened);
        }
        Ok(&self.open[&path])
    }

    fn open(&self, file: &FileId) -> Result<File, DiskError> {
        let is_writer = self.access == Access::ReadWrite;
        let mut options = File::options();
        options.read(true).write(is_writer).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
        let opened = options.open(self.path(file)).map_err(|e| disk_error(file, "open", &e))?;
        if is_writer {
            match lock::flock_within(opened.as_raw_fd(), lock::FILE_LOCK_WAIT) {
                Ok(true) => {}
                Ok(false) => {
                    let message = "another process has the file open for writing: stop that process".into();
                    return Err(disk_errno(file, "flock", libc::EWOULDBLOCK, message));
                }
                Err(e) => return Err(disk_error(file, "flock", &e)),
            }
        }
        Ok(opened)
    }

    fn may_write(&self, file: &FileId) -> Result<(), DiskError> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(disk_errno(file, "write", libc::EROFS, "this storage was opened for reading only".into())),
        }
    }

    /// Names in a folder, none when it is not there. Errors carry `file` as the nearest thing that has a name.
    fn names(&self, folder: &Path, file: &FileId) -> Result<Vec<String>, DiskError> {
        let failed = |e: io::Error| disk_error(file, "readdir", &e);
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(e) => return Err(failed(e)),
        };
        let mut names = vec![];
        for entry in entries {
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name); // none of ours is anything but ASCII
            }
        }
        Ok(names)
    }

    fn bases(&self, dir: &Arc<PartitionDir>, extension: &str) -> Result<Vec<i64>, DiskError> {
        let names = self.names(&paths::folder_of(&self.data, dir), &FileId::Topic(dir.clone(), 0))?;
        let mut bases: Vec<i64> = names.iter().filter_map(|name| paths::base_of(name, extension)).collect();
        bases.sort_unstable();
        Ok(bases)
    }

    fn rename(&self, from: &Path, label: &str, file: &FileId) -> Result<(), DiskError> {
        let mut to = from.as_os_str().to_owned();
        to.push(format!("~{label}"));
        files::forget_name(from);
        fs::rename(from, &to).map_err(|e| disk_error(file, "rename", &e))?;
        let folder = from.parent().unwrap_or(&self.data);
        files::sync_folder(folder).map_err(|e| disk_error(file, "fsync of the folder", &e))
    }

    fn topic_folder(&self, topic: &TopicName) -> PathBuf {
        self.data.join(paths::TOPICS).join(crate::base::file::topic_folder(topic))
    }
}

/// The id under which errors name a file of a topic's folder.
fn topic_file(topic: &TopicName) -> FileId {
    let topic_id = Default::default();
    FileId::Topic(Arc::new(PartitionDir { topic: topic.clone(), topic_id, partition: PartitionId(0) }), 0)
}

impl Storage for BlockingStorage {
    fn topics(&mut self) -> Result<Vec<TopicName>, DiskError> {
        let names = self.names(&self.data.join(paths::TOPICS), &FileId::Node(0))?;
        let mut topics: Vec<TopicName> = names.iter().filter_map(|name| crate::base::file::topic_of_folder(name)).collect();
        topics.sort();
        Ok(topics)
    }

    fn partitions(&mut self, topic: &TopicName) -> Result<Vec<PartitionId>, DiskError> {
        let names = self.names(&self.topic_folder(topic), &topic_file(topic))?;
        let number = |name: &String| name.parse::<u16>().ok().filter(|n| n.to_string() == *name).map(PartitionId);
        let mut partitions: Vec<PartitionId> = names.iter().filter_map(number).collect();
        partitions.sort();
        Ok(partitions)
    }

    fn segments(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.bases(dir, "segment")
    }

    fn commits(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.bases(dir, "commit")
    }

    fn journals(&mut self) -> Result<Vec<u16>, DiskError> {
        let names = self.names(&self.data.join(paths::JOURNALS), &FileId::Node(0))?;
        let mut journals: Vec<u16> = names.iter().filter_map(|name| paths::journal_of(name)).map(|core| core.0).collect();
        journals.sort_unstable();
        Ok(journals)
    }

    fn len(&mut self, file: &FileId) -> Result<Option<u64>, DiskError> {
        match fs::metadata(self.path(file)) {
            Ok(found) => Ok(Some(found.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(disk_error(file, "stat", &e)),
        }
    }

    fn read(&mut self, file: &FileId, at: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        self.file(file)?;
        let path = self.path(file);
        let BlockingStorage { open, buffer, .. } = self;
        let opened = &open[&path];
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let wanted = (len - bytes.len()).min(IO_BYTES_MAX);
            let whole = block_up(wanted as u64) as usize;
            match opened.read_at(&mut buffer[..whole], at + bytes.len() as u64) {
                Ok(got) => {
                    bytes.extend_from_slice(&buffer[..got.min(wanted)]);
                    if got < whole {
                        break; // the end of the file
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(disk_error(file, "read", &e)),
            }
        }
        Ok(bytes)
    }

    fn write(&mut self, file: &FileId, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.may_write(file)?;
        assert!(at.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK), "a write of whole blocks");
        self.file(file)?;
        let path = self.path(file);
        let BlockingStorage { open, buffer, .. } = self;
        let opened = &open[&path];
        let mut at = at;
        for chunk in bytes.chunks(IO_BYTES_MAX) {
            buffer[..chunk.len()].copy_from_slice(chunk);
            write_whole(opened, file, &buffer[..chunk.len()], at)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    fn sync(&mut self, file: &FileId) -> Result<(), DiskError> {
        self.may_write(file)?;
        self.file(file)?.sync_data().map_err(|e| disk_error(file, "fdatasync", &e))
    }

    fn allocate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.may_write(file)?;
        files::allocate(&self.data, file, len, self.spares.as_deref())
    }

    fn truncate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.may_write(file)?;
        files::truncate(&self.data, file, len)
    }

    fn remove(&mut self, removed: &[FileId]) -> Result<(), DiskError> {
        for file in removed {
            self.may_write(file)?;
            self.open.remove(&self.path(file));
        }
        files::remove(&self.data, removed)
    }

    fn fill(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.allocate(file, len)?;
        self.truncate(file, len)?;
        self.file(file)?;
        let path = self.path(file);
        let BlockingStorage { open, buffer, .. } = self;
        let opened = &open[&path];
        buffer.fill(0);
        let mut at = 0;
        while at < len {
            let n = (len - at).min(IO_BYTES_MAX as u64) as usize;
            write_whole(opened, file, &buffer[..n], at)?;
            at += n as u64;
        }
        opened.sync_all().map_err(|e| disk_error(file, "fsync", &e))
    }

    fn set_aside_topic(&mut self, topic: &TopicName, label: &str) -> Result<(), DiskError> {
        let file = topic_file(topic);
        self.may_write(&file)?;
        self.open.clear();
        // a folder cannot replace one that is not empty: a folder set aside before keeps its name
        let folder = self.topic_folder(topic);
        let is_taken =
            |label: &str| folder.with_file_name(format!("{}~{label}", crate::base::file::topic_folder(topic))).exists();
        let numbered = (2..).map(|n| format!("{label}.{n}"));
        let free = std::iter::once(label.to_owned()).chain(numbered).find(|label| !is_taken(label));
        self.rename(&folder, &free.expect("numbers do not run out"), &file)
    }

    fn set_aside(&mut self, file: &FileId, label: &str) -> Result<(), DiskError> {
        self.may_write(file)?;
        self.open.remove(&self.path(file));
        self.rename(&self.path(file), label, file)
    }
}

/// A short write is a fault, not something to go on from: it means that space or the device has run out.
fn write_whole(opened: &File, file: &FileId, bytes: &[u8], at: u64) -> Result<(), DiskError> {
    loop {
        match opened.write_at(bytes, at) {
            Ok(written) if written == bytes.len() => return Ok(()),
            Ok(written) => return Err(DiskError::ShortWrite { file: file.clone(), at, len: bytes.len(), written }),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(disk_error(file, "write", &e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicId;

    fn dir(topic: &str) -> Arc<PartitionDir> {
        Arc::new(PartitionDir { topic: TopicName::new(topic).unwrap(), topic_id: TopicId([7; 16]), partition: PartitionId(1) })
    }

    #[test]
    fn what_is_written_is_read_and_found_again() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let mut s = BlockingStorage::new(temp.path());
        assert_eq!(s.topics().unwrap(), vec![]);
        assert_eq!(s.journals().unwrap(), Vec::<u16>::new());
        let d = dir("..");
        let segment = FileId::Segment(d.clone(), 4096);
        assert_eq!(s.len(&segment).unwrap(), None);
        assert_eq!(s.read(&segment, 0, 4096), Err(DiskError::NotFound { file: segment.clone() }));
        s.allocate(&segment, 3 * 4096).unwrap();
        s.allocate(&segment, 4096).unwrap(); // longer already: left alone
        assert_eq!(s.len(&segment).unwrap(), Some(3 * 4096));
        s.write(&segment, 4096, &[9; 4096]).unwrap();
        s.sync(&segment).unwrap();
        let read = s.read(&segment, 0, 8 * 4096).unwrap();
        assert_eq!(read.len(), 3 * 4096);
        assert!(read[..4096].iter().all(|&b| b == 0) && read[4096..8192].iter().all(|&b| b == 9));
        s.allocate(&FileId::Commit(d.clone(), 0), 4096).unwrap();
        assert_eq!((s.segments(&d).unwrap(), s.commits(&d).unwrap()), (vec![4096], vec![0]));
        assert_eq!((s.topics().unwrap(), s.partitions(&d.topic).unwrap()), (vec![d.topic.clone()], vec![PartitionId(1)]));
        s.truncate(&segment, 4096).unwrap();
        assert!(s.read(&segment, 4096, 4096).unwrap().is_empty());
        s.set_aside(&segment, "bad").unwrap();
        assert!(s.segments(&d).unwrap().is_empty());
        s.remove(&[segment, FileId::Commit(d.clone(), 0)]).unwrap();
        for again in ["%2e%2e~old", "%2e%2e~old.2"] {
            s.set_aside_topic(&d.topic, "old").unwrap();
            assert_eq!(s.topics().unwrap(), vec![]);
            assert!(temp.path().join("topics").join(again).exists());
            s.allocate(&FileId::Topic(d.clone(), 0), 4096).unwrap();
        }
    }

    #[test]
    fn a_filled_journal_is_zeros_and_large_transfers_are_cut_into_pieces() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let mut s = BlockingStorage::new(temp.path());
        let journal = FileId::Journal(3);
        let len = 2 * IO_BYTES_MAX + BLOCK;
        s.fill(&journal, len as u64).unwrap();
        assert_eq!(s.journals().unwrap(), vec![3]);
        assert_eq!(s.read(&journal, 0, len).unwrap(), vec![0; len]);
        let bytes: Vec<u8> = (0..len).map(|i| (i / BLOCK) as u8).collect();
        s.write(&journal, 0, &bytes).unwrap();
        assert_eq!(s.read(&journal, 0, len + BLOCK).unwrap(), bytes);
    }

    #[test]
    fn a_file_that_another_description_writes_is_refused_and_a_reader_changes_nothing() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let mut s = BlockingStorage::new(temp.path());
        let journal = FileId::Journal(0);
        s.fill(&journal, 4096).unwrap();
        let mut reader = BlockingStorage::with_access(temp.path(), Access::ReadOnly);
        assert_eq!(reader.read(&journal, 0, 4096).unwrap().len(), 4096);
        assert!(reader.write(&journal, 0, &[0; 4096]).is_err() && reader.truncate(&journal, 0).is_err());
        let other = File::open(temp.path().join("journal/0")).unwrap();
        assert!(!lock::try_flock(other.as_raw_fd()).unwrap(), "the storage holds the lock of what it writes");
        drop(s);
        assert!(lock::try_flock(other.as_raw_fd()).unwrap());
    }
}
