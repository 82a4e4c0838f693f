//! The plainest surroundings of a shard: a disk in memory that does what it is told, and a shard that starts on an empty
//! one. For tests and benchmarks that are not about crashes; those have [`super::disk::SimDisk`].

use crate::base::{CoreId, DiskDone, DiskOp, Epoch, FileId};
use crate::config::Settings;
use crate::format::journal::JournalIdentity;
use crate::shard::{LENT_MIN, Shard, ShardOptions};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Files as bytes. They grow where they are written; every byte counts as durable.
#[derive(Default)]
pub struct MemoryDisk {
    files: FxHashMap<FileId, Vec<u8>>,
}

impl MemoryDisk {
    pub fn files(&self) -> impl Iterator<Item = &FileId> {
        self.files.keys()
    }

    pub fn perform(&mut self, op: DiskOp) -> DiskDone {
        match op {
            DiskOp::Write { file, at, parts, .. } => {
                let mut at = at as usize;
                let content = self.files.entry(file).or_default();
                for part in parts {
                    content.resize(content.len().max(at + part.len()), 0);
                    content[at..at + part.len()].copy_from_slice(&part);
                    at += part.len();
                }
            }
            DiskOp::Read { file, at, len } => {
                let content = self.files.get(&file).map_or(&[][..], Vec::as_slice);
                let end = content.len().min(at as usize + len);
                return DiskDone::Read(content[(at as usize).min(end)..end].to_vec().into());
            }
            DiskOp::Allocate { file, len } | DiskOp::AllocateSegment { file, len, .. } => {
                let content = self.files.entry(file).or_default();
                content.resize(content.len().max(len as usize), 0);
            }
            DiskOp::Remove { files } => files.iter().for_each(|f| drop(self.files.remove(f))),
            DiskOp::Retire { segment, commit } => [segment, commit].iter().for_each(|f| drop(self.files.remove(f))),
            DiskOp::RemovePartition { dir } => {
                let folder = format!("{dir}/");
                self.files.retain(|f, _| !f.to_string().starts_with(&folder));
            }
            // No truncated byte is read again.
            DiskOp::Sync { .. } | DiskOp::Truncate { .. } => {}
        }
        DiskDone::Done
    }
}

/// A core of a node that starts for the first time.
pub fn first_startup(core: u16, cores: u16, settings: &Arc<Settings>, seed: u64) -> Shard {
    let file_len = settings.journal_bytes;
    let journal = JournalIdentity { journal_id: [core as u8 + 1; 16], generation: 1, file_len, slot_sequence: 1 };
    Shard::new(ShardOptions {
        core: CoreId(core),
        cores,
        settings: settings.clone(),
        epoch: Epoch(1),
        journal,
        topics: vec![],
        partitions: vec![],
        seed,
        connections_max: 0,
        node_id: [7; 16],
        cluster: None,
        lent_min: LENT_MIN,
        tls: None,
    })
}
