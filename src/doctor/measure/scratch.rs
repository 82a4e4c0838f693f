//! The folder that a measurement writes in: on the file system of the data path, gone again whatever happens.
//!
//! It is removed when it is dropped. Its process holds its lock, so that the next measurement can remove the folder of a killed process.
//! No file of the node is opened, except its lock to look at it.

use super::MeasureError;
use crate::disk::{lock, paths};
use crate::doctor::storage;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PREFIX: &str = "ringmq-measure-";

/// Bytes left free beside the measurement's files, for a node that runs on the same file system.
const SPARE_BYTES: u64 = 256 << 20;

pub struct Scratch {
    folder: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Scratch {
    /// Creates a scratch folder in the data path, or in the nearest existing folder above it, with space for `needed` bytes.
    pub fn create(data: &Path, needed: u64) -> Result<Scratch, MeasureError> {
        let above = storage::existing(data).map_err(|e| failed(data, "stat", e))?;
        remove_left_overs(&above);
        let free = storage::free_bytes(&above).map_err(|e| failed(&above, "statfs", e))?;
        if free < needed.saturating_add(SPARE_BYTES) {
            return Err(MeasureError::NoSpace { folder: above, free, needed, spare: SPARE_BYTES });
        }
        // more than one may be of this process
        let name = |i: u32| above.join(format!("{PREFIX}{}-{i}", std::process::id()));
        let mut made = Err(io::ErrorKind::AlreadyExists.into());
        let mut folder = name(0);
        for i in 0..1000 {
            folder = name(i);
            made = fs::create_dir(&folder);
            if !made.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists) {
                break;
            }
        }
        made.map_err(|e| failed(&folder, "mkdir", e))?;
        let opened = File::open(&folder).and_then(|file| lock::try_flock(file.as_raw_fd()).map(|is_ours| (file, is_ours)));
        match opened {
            Ok((lock, true)) => Ok(Scratch { folder, _lock: lock }),
            Ok((_, false)) => Err(failed(&folder, "flock", io::Error::other("another measurement is removing it: try again"))),
            Err(e) => {
                let _ = fs::remove_dir(&folder); // it is empty, and the error below says what went wrong
                Err(failed(&folder, "open", e))
            }
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.folder) {
            tracing::warn!("{}: cannot be removed: {e}; remove it by hand", self.folder.display());
        }
    }
}

fn failed(path: &Path, call: &'static str, source: io::Error) -> MeasureError {
    MeasureError::Io { path: path.to_owned(), call, source }
}

/// Removes the folders of killed processes, whose locks are free. A folder that cannot be removed stays and does no harm.
fn remove_left_overs(above: &Path) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_ours || !is_folder {
            continue;
        }
        let free = File::open(entry.path()).and_then(|file| Ok(lock::try_flock(file.as_raw_fd())?.then_some(file)));
        if let Ok(Some(_lock)) = free {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// True if a node holds the data path. Creates nothing.
pub fn is_node_running(data: &Path) -> bool {
    // the lock that a look takes is given back at once; a node that starts in between tries again
    File::open(data.join(paths::LOCK)).is_ok_and(|file| lock::try_flock(file.as_raw_fd()).is_ok_and(|is_free| !is_free))
}

/// Folders of the node that lie on another file system than the data path, whose speed is not measured.
pub fn elsewhere(data: &Path) -> Vec<&'static str> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let Some(own) = device(data) else { return vec![] };
    [paths::JOURNALS, paths::TOPICS].into_iter().filter(|name| device(&data.join(name)).is_some_and(|dev| dev != own)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DataLock;
    use std::time::Duration;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_scratch_folder_goes_and_takes_what_the_killed_left_but_not_what_is_in_use() {
        let temp = tempfile::tempdir_in(".").unwrap();
        fs::create_dir_all(temp.path().join("ringmq-measure-1-0/journal")).unwrap();
        fs::write(temp.path().join("ringmq-measure-1-0/journal/0"), "left").unwrap();
        fs::write(temp.path().join("ringmq-measure-not-a-folder"), "kept").unwrap();
        let first = Scratch::create(&temp.path().join("not/there"), 1).unwrap();
        let second = Scratch::create(temp.path(), 1).unwrap();
        assert_ne!(first.folder(), second.folder());
        fs::write(first.folder().join("x"), "x").unwrap();
        let third = Scratch::create(temp.path(), 1).unwrap();
        assert_eq!(names(temp.path()).len(), 4, "three in use and a file: {:?}", names(temp.path()));
        drop((first, second, third));
        assert_eq!(names(temp.path()), ["ringmq-measure-not-a-folder"]);
    }

    #[test]
    fn too_little_space_and_a_data_path_that_is_a_file_are_refused() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let refused = Scratch::create(temp.path(), u64::MAX).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("MiB are free") && refused.contains("free some"), "{refused}");
        let file = temp.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = Scratch::create(&file, 1).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("is not a folder"), "{refused}");
        assert_eq!(names(temp.path()), ["file"]);
    }

    #[test]
    fn a_node_is_seen_by_its_lock() {
        let temp = tempfile::tempdir_in(".").unwrap();
        assert!(!is_node_running(temp.path()) && names(temp.path()).is_empty(), "a look creates nothing");
        let lock = DataLock::acquire(temp.path(), Duration::ZERO).unwrap();
        assert!(is_node_running(temp.path()));
        drop(lock);
        assert!(!is_node_running(temp.path()));
        assert!(elsewhere(temp.path()).is_empty());
    }
}
