//! The data path of an nsqd: its lock, its metadata, and the diskqueue files of each topic and channel.

use super::ImportError;
use super::diskqueue::{LeftOut, Queue};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Content of nsqd.dat.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    #[serde(default)]
    pub version: String,
    /// `null` where nsqd had no topic.
    pub topics: Option<Vec<TopicMetadata>>,
}

#[derive(Debug, Deserialize)]
pub struct TopicMetadata {
    pub name: String,
    #[serde(default)]
    pub paused: bool,
    pub channels: Option<Vec<ChannelMetadata>>,
}

#[derive(Debug, Deserialize)]
pub struct ChannelMetadata {
    pub name: String,
    #[serde(default)]
    pub paused: bool,
}

/// A data path that no nsqd runs on while this lives.
pub struct Source {
    path: PathBuf,
    metadata: Metadata,
    /// nsqd takes the same lock at its startup.
    _lock: File,
}

impl Source {
    /// Locks the data path and reads its metadata.
    pub fn open(path: &Path) -> Result<Source, ImportError> {
        let unreadable = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ImportError::Read { path, source }
        };
        let lock = File::open(path).map_err(unreadable(path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ImportError::InUse { path: path.to_path_buf(), holder: holder_of(&lock) });
            }
            Err(TryLockError::Error(source)) => return Err(ImportError::Read { path: path.to_path_buf(), source }),
        }
        let file = path.join("nsqd.dat");
        let text = match fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ImportError::NoMetadata { path: path.to_path_buf() });
            }
            read => read.map_err(unreadable(&file))?,
        };
        let metadata = serde_json::from_slice(&text).map_err(|source| ImportError::BadMetadata { path: file, source })?;
        Ok(Source { path: path.to_path_buf(), metadata, _lock: lock })
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub fn stamp(&self) -> Result<String, ImportError> {
        stamp_of(&self.path.join("nsqd.dat"))
    }

    /// The queue of a topic, or of a channel of it.
    pub fn queue(&self, topic: &str, channel: Option<&str>) -> Result<Queue, ImportError> {
        Queue::open(&self.path, &queue_name(topic, channel))
    }

    /// Files of queues that the metadata does not name, and files that nsqd itself had put aside.
    pub fn orphans(&self) -> Result<Vec<LeftOut>, ImportError> {
        let mut known = BTreeSet::new();
        for topic in self.metadata.topics.iter().flatten() {
            known.insert(queue_name(&topic.name, None));
            known.extend(topic.channels.iter().flatten().map(|channel| queue_name(&topic.name, Some(&channel.name))));
        }
        let unreadable = |source| ImportError::Read { path: self.path.clone(), source };
        let mut found = vec![];
        for entry in fs::read_dir(&self.path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((queue, rest)) = name.split_once(".diskqueue.") else { continue };
            let why = if name.ends_with(".bad") {
                "nsqd could not read the file and set it aside"
            } else if known.contains(queue) || rest == "meta.dat" {
                continue;
            } else {
                "nsqd.dat names no such topic or channel: nsqd would not deliver it either"
            };
            let bytes = entry.metadata().map_err(unreadable)?.len();
            found.push(LeftOut { what: name, bytes, why: why.into() });
        }
        found.sort_by(|a, b| a.what.cmp(&b.what));
        Ok(found)
    }
}

/// Names the state of the metadata file, which nsqd writes anew at each stop.
pub fn stamp_of(file: &Path) -> Result<String, ImportError> {
    let metadata = fs::metadata(file).map_err(|source| ImportError::Read { path: file.to_path_buf(), source })?;
    Ok(format!("{}.{:09}-{}", metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

fn queue_name(topic: &str, channel: Option<&str>) -> String {
    channel.map_or_else(|| topic.to_owned(), |channel| format!("{topic}:{channel}"))
}

/// Holder of the lock, where the kernel tells: ` (pid 17, nsqd)`.
fn holder_of(file: &File) -> String {
    let inode = file.metadata().map(|m| m.ino()).unwrap_or_default();
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid = locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid, place) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && place.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.to_owned())
    });
    let Some(pid) = pid else { return String::new() };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!(" (pid {pid}, {})", name.trim())
}
