//! A data path as files that are only read: the same [`Storage`] that recovery sees, with every change refused.

use crate::base::{DiskError, FileId, PartitionDir, PartitionId, TopicName};
use crate::format::storage::Storage;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

pub struct Files {
    root: PathBuf,
}

impl Files {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Files { root: root.into() }
    }

    /// Names in a folder below the data path; none when it is not there.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        let entries = match fs::read_dir(self.root.join(folder)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
            Err(e) => return Err(error(&FileId::Node(0), "read_dir", e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| error(&FileId::Node(0), "read_dir", e))?;
            names.extend(entry.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn bases(&self, dir: &PartitionDir, suffix: &str) -> Result<Vec<i64>, DiskError> {
        let names = self.names(&format!("topics/{}/{}", dir.topic, dir.partition))?;
        let mut bases: Vec<i64> = names.iter().filter_map(|n| n.strip_suffix(suffix)?.parse().ok()).collect();
        bases.sort_unstable();
        Ok(bases)
    }

    fn refuse<T>(&self, file: &FileId) -> Result<T, DiskError> {
        let message = "inspect never writes".to_string();
        Err(DiskError::Io { file: file.clone(), call: "write", errno: 30, message })
    }
}

fn error(file: &FileId, call: &'static str, e: std::io::Error) -> DiskError {
    match e.kind() {
        ErrorKind::NotFound => DiskError::NotFound { file: file.clone() },
        _ => DiskError::Io { file: file.clone(), call, errno: e.raw_os_error().unwrap_or(0), message: e.to_string() },
    }
}

impl Storage for Files {
    fn topics(&mut self) -> Result<Vec<TopicName>, DiskError> {
        Ok(self.names("topics")?.iter().filter_map(|n| TopicName::new(n).ok()).collect())
    }

    fn partitions(&mut self, topic: &TopicName) -> Result<Vec<PartitionId>, DiskError> {
        let names = self.names(&format!("topics/{topic}"))?;
        let mut ids: Vec<u16> = names.iter().filter_map(|n| n.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids.into_iter().map(PartitionId).collect())
    }

    fn segments(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.bases(dir, ".segment")
    }

    fn commits(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.bases(dir, ".commit")
    }

    fn journals(&mut self) -> Result<Vec<u16>, DiskError> {
        let mut cores: Vec<u16> = self.names("journal")?.iter().filter_map(|n| n.parse().ok()).collect();
        cores.sort_unstable();
        Ok(cores)
    }

    fn len(&mut self, file: &FileId) -> Result<Option<u64>, DiskError> {
        match fs::metadata(self.root.join(file.to_string())) {
            Ok(meta) => Ok(Some(meta.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(error(file, "stat", e)),
        }
    }

    fn read(&mut self, file: &FileId, at: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        let opened = File::open(self.root.join(file.to_string())).map_err(|e| error(file, "open", e))?;
        let (mut bytes, mut filled) = (vec![0; len], 0);
        while filled < len {
            match opened.read_at(&mut bytes[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(error(file, "read", e)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn write(&mut self, file: &FileId, _: u64, _: &[u8]) -> Result<(), DiskError> {
        self.refuse(file)
    }

    fn sync(&mut self, file: &FileId) -> Result<(), DiskError> {
        self.refuse(file)
    }

    fn allocate(&mut self, file: &FileId, _: u64) -> Result<(), DiskError> {
        self.refuse(file)
    }

    fn fill(&mut self, file: &FileId, _: u64) -> Result<(), DiskError> {
        self.refuse(file)
    }

    fn truncate(&mut self, file: &FileId, _: u64) -> Result<(), DiskError> {
        self.refuse(file)
    }

    fn remove(&mut self, _: &[FileId]) -> Result<(), DiskError> {
        self.refuse(&FileId::Node(0))
    }

    fn set_aside_topic(&mut self, _: &TopicName, _: &str) -> Result<(), DiskError> {
        self.refuse(&FileId::Node(0))
    }

    fn set_aside(&mut self, file: &FileId, _: &str) -> Result<(), DiskError> {
        self.refuse(file)
    }
}
