//! Blocking calls on files and folders: creating, truncating, removing, and making that durable. They run on the blocking pool of an
//! executor, or before there are executors. They never panic: a panic would end the pool.
//!
//! The data path's lock is not looked at here: these calls are synchronous, so that a killed process's are over before
//! its data path is free.

use super::names::Names;
use super::paths;
use super::spares::Spares;
use crate::base::{DiskError, FileId, PartitionDir};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static NAMES: Names = Names::new();

/// The error of a system call on a file.
pub fn disk_error(file: &FileId, call: &'static str, error: &io::Error) -> DiskError {
    disk_errno(file, call, error.raw_os_error().unwrap_or(0), error.to_string())
}

pub fn disk_errno(file: &FileId, call: &'static str, errno: i32, message: String) -> DiskError {
    let file = file.clone();
    match errno {
        libc::ENOSPC | libc::EDQUOT => DiskError::NoSpace { file },
        libc::ENOENT => DiskError::NotFound { file },
        _ => DiskError::Io { file, call, errno, message },
    }
}

pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes the folders from `data` down to `folder`.
fn create_folders(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

/// Makes sure that `path` is found after a power loss, also when an earlier process created it and died before it could.
fn make_name_durable(data: &Path, path: &Path) -> io::Result<()> {
    NAMES.make_durable(data, path, sync_folder)
}

/// Drops the cached name; call it before a file or folder is removed or renamed.
pub(super) fn forget_name(path: &Path) {
    NAMES.forget(path);
}

/// Locks of file lengths, by a hash of the path. Files that share a lock wait for each other.
static LENGTHS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// The lock to hold from reading a file's length to changing it. A snapshot's space is allocated by its round and ahead of it; without
/// the lock, a failing allocation would take back the length that the other one has just set.
fn alone(path: &Path) -> MutexGuard<'static, ()> {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(path);
    // nothing in there is left half changed
    LENGTHS[hash as usize % LENGTHS.len()].lock().unwrap_or_else(PoisonError::into_inner)
}

/// See `DiskOp::Allocate`. Gives kept space back before it says that there is none.
pub fn allocate(data: &Path, file: &FileId, len: u64, spares: Option<&Spares>) -> Result<(), DiskError> {
    loop {
        match try_to_allocate(data, file, len) {
            Err(e) if e.is_no_space() && spares.is_some_and(Spares::give_back) => {}
            outcome => return outcome,
        }
    }
}

/// See `DiskOp::AllocateSegment`.
pub fn allocate_segment(data: &Path, file: &FileId, (len, max): (u64, u64), spares: Option<&Spares>) -> Result<u64, DiskError> {
    let path = paths::path_of(data, file);
    let folder = path.parent().unwrap_or(data);
    let FileId::Segment(dir, base) = file else { unreachable!("a segment is allocated") };
    let free = spares.filter(|_| !path.exists() && create_folders(folder).is_ok());
    let taken = free.and_then(|spares| spares.take(&path, (dir, *base), (len, max)));
    // also where one was taken: it makes the name durable
    allocate(data, file, len, spares)?;
    Ok(taken.unwrap_or(len))
}

/// See `DiskOp::Retire`.
pub fn retire(data: &Path, segment: FileId, commit: FileId, spares: Option<&Spares>) -> Result<bool, DiskError> {
    let path = paths::path_of(data, &segment);
    let FileId::Segment(dir, base) = &segment else { unreachable!("a segment is retired") };
    forget_name(&path);
    let Some((spares, moved)) = spares.and_then(|s| Some((s, s.move_in(&path, dir, *base)?))) else {
        return remove(data, &[segment, commit]).map(|()| false);
    };
    // Not before the name is gone durably is anything in it changed.
    match remove(data, &[segment, commit]) {
        Ok(()) => Ok(spares.keep(moved)),
        Err(e) => {
            spares.drop(moved);
            Err(e)
        }
    }
}

fn try_to_allocate(data: &Path, file: &FileId, len: u64) -> Result<(), DiskError> {
    let path = paths::path_of(data, file);
    let folder = path.parent().unwrap_or(data);
    let failed = |call| move |e: io::Error| disk_error(file, call, &e);
    let open = || {
        create_folders(folder)?;
        File::options().read(true).write(true).create(true).truncate(false).custom_flags(libc::O_CLOEXEC).open(&path)
    };
    let alone = alone(&path);
    let existed = path.exists();
    // once more when a neighbour removed the topic's empty folder in between
    let opened = open().or_else(|e| if e.kind() == io::ErrorKind::NotFound { open() } else { Err(e) }).map_err(failed("open"))?;
    let old = opened.metadata().map_err(failed("stat"))?.len();
    // long enough already: still synced below, since the process that allocated it may have died before its sync
    if old < len
        && let Err(e) = fallocate(&opened, len)
    {
        // give the allocated part back, so that the next try begins from the same state
        let _ = opened.set_len(old);
        if !existed {
            forget_name(&path);
            let _ = fs::remove_file(&path);
        }
        return Err(disk_error(file, "fallocate", &e));
    }
    drop(alone);
    opened.sync_all().map_err(failed("fsync"))?;
    make_name_durable(data, &path).map_err(failed("fsync of the folder"))
}

/// Allocates the first `len` bytes; a file that is shorter grows.
pub fn fallocate(file: &File, len: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: no memory is passed.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// See `DiskOp::Truncate`. A file that is shorter stays as it is.
pub fn truncate(data: &Path, file: &FileId, len: u64) -> Result<(), DiskError> {
    let failed = |call| move |e: io::Error| disk_error(file, call, &e);
    let path = paths::path_of(data, file);
    let opened = File::options().write(true).open(&path).map_err(failed("open"))?;
    let alone = alone(&path);
    if opened.metadata().map_err(failed("stat"))?.len() > len {
        opened.set_len(len).map_err(failed("truncate"))?;
    }
    drop(alone);
    opened.sync_all().map_err(failed("fsync"))
}

/// See `DiskOp::Remove`.
pub fn remove(data: &Path, files: &[FileId]) -> Result<(), DiskError> {
    let mut folders: Vec<(PathBuf, &FileId)> = vec![];
    for file in files {
        let path = paths::path_of(data, file);
        forget_name(&path);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(disk_error(file, "unlink", &e)),
        }
        let folder = path.parent().unwrap_or(data).to_owned();
        // A removal of a partition's files names its snapshots last.
        if matches!(file, FileId::Topic(..) | FileId::Snapshot(..)) {
            remove_if_empty(&folder);
        }
        if !folders.iter().any(|(f, _)| *f == folder) {
            folders.push((folder, file));
        }
    }
    for (folder, file) in folders {
        sync_nearest(data, &folder).map_err(|e| disk_error(file, "fsync of the folder", &e))?;
    }
    Ok(())
}

/// See `DiskOp::RemovePartition`. Its kept segments are removed with it.
pub fn remove_partition(data: &Path, dir: &std::sync::Arc<PartitionDir>, spares: Option<&Spares>) -> Result<(), DiskError> {
    spares.iter().for_each(|spares| spares.forget(dir));
    let folder = paths::folder_of(data, dir);
    let file = FileId::Topic(dir.clone(), 0);
    forget_name(&folder);
    match fs::remove_dir_all(&folder) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(disk_error(&file, "removing the partition's folder", &e)),
    }
    let topic = folder.parent().unwrap_or(data);
    remove_if_empty(topic);
    sync_nearest(data, topic).map_err(|e| disk_error(&file, "fsync of the folder", &e))
}

/// rmdir takes empty folders only; any failure leaves things as they are.
fn remove_if_empty(folder: &Path) {
    forget_name(folder);
    let _ = fs::remove_dir(folder);
}

/// Syncs the folder, or the nearest one above that is still there.
fn sync_nearest(data: &Path, folder: &Path) -> io::Result<()> {
    for folder in folder.ancestors() {
        match sync_folder(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && folder != data => {}
            result => return result,
        }
    }
    Ok(())
}

/// Writes the probe file if it is not there as it should be: whole blocks, not empty, known bytes.
pub fn write_probe(data: &Path) -> io::Result<()> {
    let path = data.join(paths::PROBE);
    if fs::read(&path).is_ok_and(|bytes| bytes == probe_bytes()) {
        return Ok(());
    }
    fs::write(&path, probe_bytes())?;
    File::open(&path)?.sync_all()?;
    sync_folder(data)
}

pub fn probe_bytes() -> Vec<u8> {
    b"RingMQ".iter().copied().cycle().take(2 * crate::base::BLOCK).collect()
}
