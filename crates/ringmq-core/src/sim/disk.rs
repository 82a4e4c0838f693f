//! A disk in memory that fails as disks fail, from one seed. It is both the blocking [`Storage`] of recovery and, through
//! [`SimDisk::submit`] and [`SimDisk::complete`], the asynchronous disk of the engine.
//!
//! Model: a file is a row of 512-byte sectors. A write lands in the volatile image when it is issued, sector by sector, and is durable
//! when it completes (with [`Durability::Durable`]) or when a later sync completes. At a crash every sector that is not durable keeps
//! its old or one of its newer contents: all of them, a prefix, or any subset. A failed write may be in the image as well, in part.
//! After a failed write or sync its sectors stay not durable, whatever is synced later, until they are written again: the device may
//! have dropped them and reported that only then. A process that is only killed ([`SimDisk::kill`]) leaves the volatile image as it is,
//! still not durable. Creating, growing, truncating, renaming and removing files is durable when it completes; one in flight at a crash
//! happened or did not. The space of a removed segment is kept for another one in half of the cases, with its content behind the first
//! block.
//!
//! Never used by a running node.

mod file;
mod spares;

use crate::base::{
    BLOCK, DiskDone, DiskError, DiskOp, Durability, FileId, IO_BYTES_MAX, OpId, PartitionDir, PartitionId, READ_BYTES_MAX, Rng,
    TopicName,
};
use crate::format::storage::Storage;
use bytes::Bytes;
use file::File;
pub use file::SECTOR;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Probabilities are per operation, 0.0 to 1.0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub read_error: f64,
    pub write_error: f64,
    pub sync_error: f64,
    /// A write that takes only its first sectors and says so.
    pub short_write: f64,
    /// An allocation that finds no space although there is some.
    pub no_space: f64,
    /// Space for all files together, in bytes; 0: no bound.
    pub capacity: u64,
    /// Completions that come later than those issued after them.
    pub late: f64,
    /// The machine crashes when so many more operations were issued: every call fails from then on.
    pub crash_after: Option<u64>,
    /// A write that the device says it has done, and that is not there.
    pub lost_write: f64,
    /// A write that the device says it has done, and that stands elsewhere in its file.
    pub misdirected_write: f64,
}

/// No faults, as a base for plans.
pub const NO_FAULTS: Faults = Faults {
    read_error: 0.0,
    write_error: 0.0,
    sync_error: 0.0,
    short_write: 0.0,
    no_space: 0.0,
    capacity: 0,
    late: 0.0,
    crash_after: None,
    lost_write: 0.0,
    misdirected_write: 0.0,
};

/// Counts of operations, for tests that ask whether a run was worth anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub writes: u64,
    pub syncs: u64,
    pub reads: u64,
    pub faults: u64,
    pub torn_sectors: u64,
    pub crashes: u64,
    /// Writes that were lost or misdirected.
    pub damages: u64,
    /// Segments that began on the space of retired ones.
    pub reused: u64,
}

#[derive(Clone)]
struct Pending {
    id: OpId,
    op: DiskOp,
    number: u64,
    is_late: bool,
}

#[derive(Clone)]
pub struct SimDisk {
    files: BTreeMap<String, File>,
    pub faults: Faults,
    pub counts: Counts,
    /// Retired segments.
    spares: Vec<(FileId, File)>,
    sparing: Rng,
    rng: Rng,
    /// Random source for the part of a failing write that lands.
    landing: Rng,
    pending: VecDeque<Pending>,
    next_number: u64,
    crashed: bool,
}

impl SimDisk {
    pub fn new(seed: u64) -> Self {
        SimDisk {
            files: BTreeMap::new(),
            faults: Faults::default(),
            counts: Counts::default(),
            spares: vec![],
            sparing: Rng::new(seed ^ 0x59a4e),
            rng: Rng::new(seed),
            landing: Rng::new(seed ^ 0x1a4d),
            pending: VecDeque::new(),
            next_number: 0,
            crashed: false,
        }
    }

    // ---- the asynchronous disk

    /// Issues an operation. Its effect may survive a crash from now on; its outcome comes from [`SimDisk::complete`].
    pub fn submit(&mut self, id: OpId, op: DiskOp) {
        let number = self.number();
        if !self.crashed
            && let DiskOp::Write { file, at, parts, .. } = &op
        {
            let len: usize = parts.iter().map(Bytes::len).sum();
            assert!(at % BLOCK as u64 == 0 && len.is_multiple_of(BLOCK) && len > 0, "{file}: a write of {len} at {at}");
            assert!(len <= IO_BYTES_MAX, "{file}: a write of {len} bytes");
            self.assert_no_overlap(file, *at, len);
            if let Some(f) = self.files.get_mut(&file.to_string())
                && at + len as u64 <= f.len() as u64
            {
                f.begin(number, *at, parts);
            }
        }
        let is_late = self.rng.chance(self.faults.late);
        self.pending.push_back(Pending { id, op, number, is_late });
    }

    /// True if an operation is under way.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Completes one operation, chosen by the seed. `None`: nothing is under way, or the machine has crashed.
    pub fn complete(&mut self) -> Option<(OpId, Result<DiskDone, DiskError>)> {
        if self.crashed || self.pending.is_empty() {
            return None;
        }
        let timely: Vec<usize> = (0..self.pending.len()).filter(|&i| !self.pending[i].is_late).collect();
        let i = match timely.is_empty() {
            true => self.rng.below(self.pending.len() as u64) as usize,
            false => timely[self.rng.below(timely.len() as u64) as usize],
        };
        // Late ones come after some others did.
        if self.rng.chance(0.2) {
            self.pending.iter_mut().for_each(|p| p.is_late = false);
        }
        let Pending { id, op, number, .. } = self.pending.remove(i).expect("chosen within the queue");
        let outcome = self.perform(op, number);
        if self.crashed { None } else { Some((id, outcome)) }
    }

    fn assert_no_overlap(&self, file: &FileId, at: u64, len: usize) {
        for p in &self.pending {
            if let DiskOp::Write { file: other, at: other_at, parts, .. } = &p.op {
                let other_len: usize = parts.iter().map(Bytes::len).sum();
                let apart = other != file || other_at + other_len as u64 <= at || at + len as u64 <= *other_at;
                assert!(apart, "{file}: two writes in flight overlap at {at} and {other_at}");
            }
        }
    }

    fn perform(&mut self, op: DiskOp, number: u64) -> Result<DiskDone, DiskError> {
        match op {
            DiskOp::Write { file, at, parts, durability } => {
                let len: usize = parts.iter().map(Bytes::len).sum();
                self.counts.writes += 1;
                let fault = self.write_fault(&file, at, len);
                let was_issued = self.file(&file)?.ends(number);
                if let Err(error) = fault {
                    if was_issued {
                        self.fail_write(&file, at, len, &error);
                    }
                    return Err(error);
                }
                if at + len as u64 > self.file(&file)?.len() as u64 {
                    return Err(io(&file, "write", 27, "past the allocated end"));
                }
                if self.lies(&file, at, len) {
                    return Ok(DiskDone::Done);
                }
                if durability == Durability::Durable {
                    self.file(&file)?.make_durable(at, len);
                }
                Ok(DiskDone::Done)
            }
            DiskOp::Sync { file } => Storage::sync(self, &file).map(|_| DiskDone::Done),
            DiskOp::Read { file, at, len } => Storage::read(self, &file, at, len).map(|b| DiskDone::Read(b.into())),
            DiskOp::Allocate { file, len } => Storage::allocate(self, &file, len).map(|_| DiskDone::Done),
            DiskOp::AllocateSegment { file, len, max } => self.allocate_segment(&file, len, max).map(DiskDone::Allocated),
            DiskOp::Retire { segment, commit } => self.retire(segment, commit).map(DiskDone::Retired),
            DiskOp::Truncate { file, len } => Storage::truncate(self, &file, len).map(|_| DiskDone::Done),
            DiskOp::Remove { files } => Storage::remove(self, &files).map(|_| DiskDone::Done),
            DiskOp::RemovePartition { dir } => {
                self.tick()?;
                let prefix = format!("topics/{}/{}/", dir.topic, dir.partition);
                self.files.retain(|name, _| !name.starts_with(&prefix));
                self.spares.retain(|(was, _)| !was.to_string().starts_with(&prefix));
                Ok(DiskDone::Done)
            }
        }
    }

    // ---- the end of a machine or a process

    /// Power is lost: sectors that are not durable stay, are lost, or tear. No operation under way completes any more.
    pub fn crash(&mut self) {
        self.counts.crashes += 1;
        for p in std::mem::take(&mut self.pending) {
            if let DiskOp::RemovePartition { dir } = &p.op {
                let (prefix, rng) = (format!("{dir}/"), &mut self.rng);
                self.files.retain(|name, _| !name.starts_with(&prefix) || rng.chance(0.5));
                continue;
            }
            // A change of a name or a length happened or did not.
            if !matches!(p.op, DiskOp::Write { .. } | DiskOp::Sync { .. } | DiskOp::Read { .. }) && self.rng.chance(0.5) {
                (self.crashed, self.faults.crash_after) = (false, None);
                let faults = std::mem::take(&mut self.faults);
                let _ = self.perform(p.op, p.number);
                self.faults = faults;
            }
        }
        let rng = &mut self.rng;
        for f in self.files.values_mut().chain(self.spares.iter_mut().map(|(_, f)| f)) {
            self.counts.torn_sectors += f.crash(rng);
        }
        (self.crashed, self.faults.crash_after) = (false, None);
    }

    /// The process dies, the machine stays: issued writes are in the device's cache, and may still be lost later.
    pub fn kill(&mut self) {
        for p in std::mem::take(&mut self.pending) {
            if !matches!(p.op, DiskOp::Write { .. } | DiskOp::Sync { .. } | DiskOp::Read { .. }) && self.rng.chance(0.5) {
                let faults = std::mem::take(&mut self.faults);
                self.crashed = false;
                let _ = self.perform(p.op, p.number);
                self.faults = faults;
            }
        }
        self.files.values_mut().for_each(File::forget_in_flight);
        (self.crashed, self.faults.crash_after) = (false, None);
    }

    pub fn is_crashed(&self) -> bool {
        self.crashed
    }

    // ---- for tests

    /// A file's bytes as a reader sees them.
    pub fn contents(&self, file: &FileId) -> Option<&[u8]> {
        self.files.get(&file.to_string()).map(File::bytes)
    }

    /// The same by path.
    pub fn contents_of(&self, path: &str) -> &[u8] {
        self.files.get(path).map_or(&[], File::bytes)
    }

    pub fn len_of(&self, path: &str) -> u64 {
        self.contents_of(path).len() as u64
    }

    /// Paths of all files, those that were set aside too.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    pub fn used_bytes(&self) -> u64 {
        self.files.values().map(|f| f.len() as u64).sum()
    }

    /// Flips a stored bit: rot.
    pub fn flip(&mut self, path: &str, at: u64, bit: u32) {
        let f = self.files.get_mut(path).expect("a file that is there");
        f.damage(at as usize, 1, |byte, _| byte[0] ^= 1 << (bit % 8));
    }

    /// Overwrites stored bytes, durably: rot, a foreign file, a zeroed block.
    pub fn scribble(&mut self, path: &str, at: u64, bytes: &[u8]) {
        let f = self.files.entry(path.to_string()).or_default();
        f.grow(at as usize + bytes.len());
        f.damage(at as usize, bytes.len(), |stored, from| stored.copy_from_slice(&bytes[from..from + stored.len()]));
    }

    /// Truncates a file, durably: rot of its inode.
    pub fn cut(&mut self, path: &str, len: usize) {
        let f = self.files.get_mut(path).expect("a file that is there");
        f.resize(f.len().min(len));
    }

    /// Removes a file, or renames it away when `to` is given.
    pub fn lose(&mut self, path: &str, to: Option<&str>) {
        let file = self.files.remove(path);
        if let (Some(file), Some(to)) = (file, to) {
            self.files.insert(to.to_string(), file);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Counts an operation; an error if the machine goes down at it.
    fn tick(&mut self) -> Result<(), DiskError> {
        if let Some(left) = &mut self.faults.crash_after {
            if *left == 0 {
                self.crashed = true;
            } else {
                *left -= 1;
            }
        }
        if self.crashed { Err(io(&FileId::Node(0), "any", 5, "the machine has crashed")) } else { Ok(()) }
    }

    fn fault(&mut self, probability: f64) -> bool {
        let hit = self.rng.chance(probability);
        self.counts.faults += hit as u64;
        hit
    }

    fn write_fault(&mut self, file: &FileId, at: u64, len: usize) -> Result<(), DiskError> {
        self.tick()?;
        if self.fault(self.faults.write_error) {
            return Err(io(file, "write", 5, "input/output error"));
        }
        if self.fault(self.faults.short_write) {
            let written = self.rng.below((len / SECTOR) as u64) as usize * SECTOR;
            return Err(DiskError::ShortWrite { file: file.clone(), at, len, written });
        }
        Ok(())
    }

    /// True if the device silently loses or misdirects this write.
    fn lies(&mut self, file: &FileId, at: u64, len: usize) -> bool {
        let Faults { lost_write, misdirected_write, .. } = self.faults;
        if lost_write + misdirected_write == 0.0 {
            return false;
        }
        let is_misdirected = self.rng.chance(misdirected_write);
        if !is_misdirected && !self.rng.chance(lost_write) || matches!(file, FileId::Node(_)) {
            return false;
        }
        self.counts.damages += 1;
        let shift = self.rng.next_u64();
        let f = self.files.get_mut(&file.to_string()).expect("it was just there");
        let bytes = f.read(at as usize, len);
        f.lose(at, len);
        let places = (f.len() - len) / BLOCK + 1;
        if is_misdirected {
            f.misdirect((shift % places as u64) as usize * BLOCK, &bytes);
        }
        true
    }

    fn fail_write(&mut self, file: &FileId, at: u64, len: usize, error: &DiskError) {
        let (Some(f), false) = (self.files.get_mut(&file.to_string()), self.crashed) else { return };
        let landed = match error {
            DiskError::ShortWrite { written, .. } => Some(written / SECTOR),
            _ => None,
        };
        f.fail(at, len, landed, &mut self.landing);
    }

    fn file(&mut self, file: &FileId) -> Result<&mut File, DiskError> {
        self.files.get_mut(&file.to_string()).ok_or_else(|| DiskError::NotFound { file: file.clone() })
    }

    fn room_for(&mut self, file: &FileId, more: u64) -> Result<(), DiskError> {
        let is_full = self.faults.capacity > 0 && self.used_bytes() + more > self.faults.capacity;
        if more > 0 && (is_full || self.fault(self.faults.no_space)) {
            return Err(DiskError::NoSpace { file: file.clone() });
        }
        Ok(())
    }

    fn numbers(&self, prefix: &str, suffix: &str) -> Vec<i64> {
        let inner = |name: &String| name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok();
        self.files.keys().filter_map(inner).collect()
    }
}

fn io(file: &FileId, call: &'static str, errno: i32, message: &str) -> DiskError {
    DiskError::Io { file: file.clone(), call, errno, message: message.into() }
}

impl Storage for SimDisk {
    fn topics(&mut self) -> Result<Vec<TopicName>, DiskError> {
        self.tick()?;
        let names = self.files.keys().filter_map(|n| n.strip_prefix("topics/")?.split('/').next());
        let names: BTreeSet<TopicName> = names.filter_map(|n| TopicName::new(n).ok()).collect();
        Ok(names.into_iter().collect())
    }

    fn partitions(&mut self, topic: &TopicName) -> Result<Vec<PartitionId>, DiskError> {
        self.tick()?;
        let prefix = format!("topics/{topic}/");
        let names = self.files.keys().filter_map(|n| n.strip_prefix(&prefix)?.split_once('/'));
        let numbers: BTreeSet<u16> = names.filter_map(|(n, _)| n.parse().ok()).collect();
        Ok(numbers.into_iter().map(PartitionId).collect())
    }

    fn segments(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.tick()?;
        Ok(self.numbers(&format!("topics/{}/{}/", dir.topic, dir.partition), ".segment"))
    }

    fn commits(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.tick()?;
        Ok(self.numbers(&format!("topics/{}/{}/", dir.topic, dir.partition), ".commit"))
    }

    fn journals(&mut self) -> Result<Vec<u16>, DiskError> {
        self.tick()?;
        let mut journals: Vec<u16> = self.numbers("journal/", "").into_iter().filter_map(|n| n.try_into().ok()).collect();
        journals.sort_unstable();
        Ok(journals)
    }

    fn len(&mut self, file: &FileId) -> Result<Option<u64>, DiskError> {
        self.tick()?;
        Ok(self.files.get(&file.to_string()).map(|f| f.len() as u64))
    }

    fn read(&mut self, file: &FileId, at: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        assert!(
            at.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK) && len <= READ_BYTES_MAX,
            "{file}: a read of {len} at {at}"
        );
        self.tick()?;
        self.counts.reads += 1;
        if self.fault(self.faults.read_error) {
            return Err(io(file, "read", 5, "input/output error"));
        }
        let f = self.file(file)?;
        Ok(f.read(at as usize, len))
    }

    fn write(&mut self, file: &FileId, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        assert!(
            at.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK),
            "{file}: a write of {} at {at}",
            bytes.len()
        );
        assert!(bytes.len() <= IO_BYTES_MAX, "{file}: a write of {} bytes", bytes.len());
        if !self.crashed
            && let Ok(f) = self.file(file)
        {
            assert!(at + bytes.len() as u64 <= f.len() as u64, "{file}: a write past the allocated end");
            f.put(at, bytes);
        }
        self.counts.writes += 1;
        if let Err(error) = self.write_fault(file, at, bytes.len()) {
            self.fail_write(file, at, bytes.len(), &error);
            return Err(error);
        }
        self.file(file).map(drop)
    }

    fn sync(&mut self, file: &FileId) -> Result<(), DiskError> {
        self.tick()?;
        self.counts.syncs += 1;
        if self.fault(self.faults.sync_error) {
            if let Ok(f) = self.file(file) {
                f.fail_sync();
            }
            return Err(io(file, "fdatasync", 5, "input/output error"));
        }
        self.file(file)?.sync();
        Ok(())
    }

    fn allocate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.tick()?;
        let now = self.files.get(&file.to_string()).map_or(0, |f| f.len() as u64);
        self.room_for(file, len.saturating_sub(now))?;
        let f = self.files.entry(file.to_string()).or_default();
        f.grow(len as usize);
        Ok(())
    }

    fn fill(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.tick()?;
        let now = self.files.get(&file.to_string()).map_or(0, |f| f.len() as u64);
        self.room_for(file, len.saturating_sub(now))?;
        self.files.insert(file.to_string(), File::default());
        self.file(file)?.grow(len as usize);
        Ok(())
    }

    fn truncate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.tick()?;
        let f = self.file(file)?;
        f.resize(f.len().min(len as usize));
        Ok(())
    }

    fn remove(&mut self, files: &[FileId]) -> Result<(), DiskError> {
        for file in files {
            self.tick()?;
            self.files.remove(&file.to_string());
        }
        Ok(())
    }

    fn set_aside_topic(&mut self, topic: &TopicName, label: &str) -> Result<(), DiskError> {
        self.tick()?;
        let prefix = format!("topics/{topic}/");
        let moved: Vec<String> = self.files.keys().filter(|n| n.starts_with(&prefix)).cloned().collect();
        for name in moved {
            let to = format!("topics/{topic}~{label}/{}", &name[prefix.len()..]);
            self.lose(&name, Some(&to));
        }
        Ok(())
    }

    fn set_aside(&mut self, file: &FileId, label: &str) -> Result<(), DiskError> {
        self.tick()?;
        let name = file.to_string();
        self.lose(&name, Some(&format!("{name}~{label}")));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
