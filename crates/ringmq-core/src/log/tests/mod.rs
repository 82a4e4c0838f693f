//! The store over a small disk in memory whose operations finish when, and as, a test says.

use super::*;
use crate::base::*;
use crate::format::cursor::CursorImage;
use crate::format::files;
use crate::format::journal::JournalIdentity;
use crate::format::journal::{RING_START, RecordHeader, RecordKind, Records, WriteHeader};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod ahead;
mod deletes;
mod direct;
mod faults;
mod follow;
mod mend;
mod model;
mod native;
mod paths;
mod rounds;
mod tables;
mod truncations;
mod verbatim;

pub const MIB: u64 = 1024 * 1024;

pub fn options() -> StoreOptions {
    let journal = JournalIdentity { journal_id: [9; 16], generation: 4, file_len: MIB, slot_sequence: 1 };
    let settings = crate::config::Settings {
        max_bytes_per_file: 256 * 1024,
        direct_bytes: 32 * 1024,
        flush_bytes: 64 * 1024,
        read_cache_bytes: 256 * 1024,
        tail_cache_bytes: 64 * 1024,
        max_pub_waiting_size: 512 * 1024,
        delete_bytes_per_second: 0,
        ..Default::default()
    };
    StoreOptions::new(&settings, CoreId(0), Epoch(4), journal)
}

/// Files as bytes; unsynced bytes are not told apart.
#[derive(Default)]
pub struct Disk {
    pub files: BTreeMap<FileId, Vec<u8>>,
    pub pending: Vec<(OpId, DiskOp)>,
    pub removed: Vec<FileId>,
    /// Retired segments, at most so many.
    pub spares: Vec<Vec<u8>>,
    pub spares_max: usize,
    /// Bytes of memory of what was read, while somebody has it.
    pub read: Arc<AtomicUsize>,
}

/// Buffer that a read filled: its bytes, the bytes that it counts for, and the counter that its drop lowers.
struct Buffer(Vec<u8>, usize, Arc<AtomicUsize>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.2.fetch_sub(self.1, Relaxed);
    }
}

impl Disk {
    fn check(&self, op: &DiskOp) {
        match op {
            DiskOp::Write { file, at, parts, .. } => {
                let len: usize = parts.iter().map(|p| p.len()).sum();
                assert!(at % BLOCK as u64 == 0 && len.is_multiple_of(BLOCK) && len > 0 && len <= IO_BYTES_MAX);
                let space = self.files.get(file).map_or(0, Vec::len) as u64;
                assert!(at + len as u64 <= space, "{file} is allocated for {space}, written at {at} + {len}");
                for (_, other) in &self.pending {
                    if let DiskOp::Write { file: f, at: a, parts, .. } = other {
                        let l: usize = parts.iter().map(|p| p.len()).sum();
                        assert!(f != file || a + l as u64 <= *at || at + len as u64 <= *a, "two writes overlap in {file}");
                    }
                }
            }
            DiskOp::Read { at, len, .. } => {
                assert!(at % BLOCK as u64 == 0 && len.is_multiple_of(BLOCK) && *len > 0 && *len <= READ_BYTES_MAX);
            }
            _ => {}
        }
    }

    pub fn take(&mut self, io: &mut Io) {
        for (id, op) in io.drain(..) {
            self.check(&op);
            self.pending.push((id, op));
        }
    }

    pub fn apply(&mut self, op: &DiskOp) -> Result<DiskDone, DiskError> {
        match op {
            DiskOp::Write { file, at, parts, .. } => {
                let bytes = parts.concat();
                let f = self.files.get_mut(file).ok_or(DiskError::NotFound { file: file.clone() })?;
                f[*at as usize..*at as usize + bytes.len()].copy_from_slice(&bytes);
            }
            DiskOp::Read { file, at, len } => {
                let f = self.files.get(file).ok_or(DiskError::NotFound { file: file.clone() })?;
                let (from, to) = ((*at as usize).min(f.len()), (*at as usize + len).min(f.len()));
                let memory = read_memory(*len);
                self.read.fetch_add(memory, Relaxed);
                let buffer = Buffer(f[from..to].to_vec(), memory, self.read.clone());
                return Ok(DiskDone::Read(bytes::Bytes::from_owner(buffer)));
            }
            DiskOp::AllocateSegment { file, max, .. } if self.spares.last().is_some_and(|s| s.len() as u64 <= *max) => {
                let spare = self.spares.pop().expect("it is there");
                let len = spare.len() as u64;
                self.files.insert(file.clone(), spare);
                return Ok(DiskDone::Allocated(len));
            }
            DiskOp::Allocate { file, len } | DiskOp::AllocateSegment { file, len, .. } => {
                let f = self.files.entry(file.clone()).or_default();
                f.resize(f.len().max(*len as usize), 0);
            }
            DiskOp::Truncate { file, len } => self.files.get_mut(file).expect("it is there").truncate(*len as usize),
            DiskOp::Remove { files } => {
                for f in files {
                    self.files.remove(f);
                    self.removed.push(f.clone());
                }
            }
            DiskOp::Retire { segment, commit } => {
                let old = self.files.remove(segment).expect("it is there");
                self.files.remove(commit);
                self.removed.extend([segment.clone(), commit.clone()]);
                let is_kept = self.spares.len() < self.spares_max;
                if is_kept {
                    let mut spare = old;
                    spare[..BLOCK].fill(0);
                    self.spares.push(spare);
                }
                return Ok(DiskDone::Retired(is_kept));
            }
            DiskOp::Sync { .. } | DiskOp::RemovePartition { .. } => {}
        }
        Ok(DiskDone::Done)
    }
}

pub struct NoCursors;
impl CursorSource for NoCursors {
    fn cursors(&self, _: PartitionIdx) -> Vec<CursorImage> {
        vec![]
    }
}

pub struct Rig {
    pub store: Store,
    pub disk: Disk,
    pub now: Now,
    pub io: Io,
    pub notices: Vec<Notice>,
    /// Messages before the first one that the last `read_all` brought.
    pub read_from: usize,
    pub reads: usize,
    pub read_bytes: usize,
}

pub fn dir(topic: &str) -> Arc<PartitionDir> {
    let mut id = [1; 16];
    id[..topic.len()].copy_from_slice(topic.as_bytes());
    Arc::new(PartitionDir {
        topic: TopicName::new(topic).expect("a valid name"),
        topic_id: TopicId(id),
        partition: PartitionId(0),
    })
}

impl Rig {
    pub fn new(options: StoreOptions) -> Rig {
        let mut disk = Disk::default();
        disk.files.insert(FileId::Journal(0), vec![0; options.journal.file_len as usize]);
        let now = Now { ticks: Ticks(1_000_000_000), unix_ns: 1_700_000_000_000_000_000 };
        Rig { store: Store::new(options), disk, now, io: vec![], notices: vec![], read_from: 0, reads: 0, read_bytes: 0 }
    }

    pub fn create(&mut self, topic: &str) -> PartitionIdx {
        let p = self.store.create(self.now, dir(topic), &mut self.io);
        self.settle();
        p
    }

    pub fn append(&mut self, p: PartitionIdx, bodies: &[&[u8]]) -> Result<AppendTicket, Refusal> {
        let bytes = bodies.iter().map(|b| b.len()).sum();
        let result = self.store.append(self.now, p, bodies.iter().copied(), bodies.len(), bytes, &mut self.io);
        self.disk.take(&mut self.io);
        result
    }

    pub fn turn_end(&mut self) {
        self.store.turn_end(self.now, &NoCursors, &mut self.io);
        self.disk.take(&mut self.io);
    }

    pub fn tick(&mut self, ms: u64) {
        self.now.ticks.0 += ms * 1_000_000;
        self.now.unix_ns += ms as i64 * 1_000_000;
        self.store.tick(self.now, &NoCursors, &mut self.io, &mut self.notices);
        self.disk.take(&mut self.io);
    }

    /// Finishes the pending operation at `index`.
    pub fn complete(&mut self, index: usize) {
        let (id, op) = self.disk.pending.remove(index);
        if let DiskOp::Read { len, .. } = &op {
            self.reads += 1;
            self.read_bytes += len;
        }
        let outcome = self.disk.apply(&op);
        self.finish(id, outcome);
    }

    pub fn fail(&mut self, index: usize, no_space: bool) -> DiskOp {
        let (id, op) = self.disk.pending.remove(index);
        let file = op.file().cloned().unwrap_or(FileId::Node(0));
        let error = if no_space {
            DiskError::NoSpace { file }
        } else {
            DiskError::Io { file, call: "test", errno: 5, message: "input/output error".into() }
        };
        self.finish(id, Err(error));
        op
    }

    pub fn finish(&mut self, id: OpId, outcome: Result<DiskDone, DiskError>) {
        self.store.completed(self.now, id, outcome, &NoCursors, &mut self.io, &mut self.notices);
        self.disk.take(&mut self.io);
    }

    /// Turns and completions until nothing is left to do.
    pub fn settle(&mut self) {
        self.disk.take(&mut self.io);
        loop {
            self.turn_end();
            if self.disk.pending.is_empty() {
                break;
            }
            self.complete(0);
        }
        if self.store.deadline().is_some_and(|d| d <= self.now.ticks) {
            self.tick(0);
        }
    }

    /// Bytes of the memory of what is read or was, as the disk knows it.
    pub fn read_memory(&self) -> usize {
        let asked = |op: &DiskOp| if let DiskOp::Read { len, .. } = op { read_memory(*len) } else { 0 };
        self.disk.read.load(Relaxed) + self.disk.pending.iter().map(|(_, op)| asked(op)).sum::<usize>()
    }

    pub fn publish(&mut self, p: PartitionIdx, body: &[u8]) -> AppendTicket {
        loop {
            match self.append(p, &[body]) {
                Ok(ticket) => break ticket,
                Err(Refusal::Busy) => self.settle(),
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Position of the first pending operation on a file of this kind.
    pub fn find(&self, f: impl Fn(&DiskOp) -> bool) -> Option<usize> {
        self.disk.pending.iter().position(|(_, op)| f(op))
    }

    pub fn fetch(&mut self, p: PartitionIdx, offset: i64) -> Fetch {
        let mut fetch = self.store.fetch(p, offset, &mut self.io);
        self.disk.take(&mut self.io);
        for _ in 0..50 {
            if !matches!(fetch, Fetch::Pending | Fetch::Held) {
                break;
            }
            self.settle();
            if self.disk.pending.is_empty() {
                self.tick(1000);
                self.settle();
            }
            fetch = self.store.fetch(p, offset, &mut self.io);
            self.disk.take(&mut self.io);
        }
        fetch
    }

    /// All bodies from `offset` to the durable end.
    pub fn read_all(&mut self, p: PartitionIdx) -> Vec<Vec<u8>> {
        let (mut at, mut bodies, mut id) = (self.store.start(p), vec![], None);
        loop {
            match self.fetch(p, at.offset) {
                Fetch::Batch(batch) => {
                    assert_eq!(batch.header.start(), at, "batches are contiguous");
                    for m in batch.messages() {
                        assert!(id.is_none_or(|i: LogId| i.0 + 1 == m.log_id.0), "ids are consecutive");
                        id = Some(m.log_id);
                        bodies.push(m.body.to_vec());
                    }
                    at = batch.header.end();
                }
                Fetch::End => break,
                // Retention went by: the bytes that were read are forgotten.
                Fetch::Below { start } => (at, bodies, id) = (start, vec![], None),
                other => panic!("{other:?} at {at:?}"),
            }
        }
        assert_eq!(at, self.store.durable_end(p));
        self.read_from = at.count as usize - bodies.len();
        bodies
    }

    /// Records that redo would find from the durable checkpoint on, in order.
    pub fn redo(&self) -> Vec<(RecordKind, RecordHeader, Vec<u8>)> {
        use crate::format::journal::{CHECKPOINT_MAGIC, Checkpoint};
        use zerocopy::FromBytes;
        let file = &self.disk.files[&FileId::Journal(0)];
        let slot = |n: usize| {
            let (slot, _) = Checkpoint::read_from_prefix(&file[n * BLOCK..]).expect("a block is long enough");
            let is_good =
                slot.magic == CHECKPOINT_MAGIC && files::is_sealed(&file[n * BLOCK..n * BLOCK + size_of::<Checkpoint>()]);
            is_good.then_some(slot)
        };
        let best = [slot(0), slot(1)].into_iter().flatten().max_by_key(|s| s.slot_sequence.get());
        let (mut at, mut lap, mut sequence) =
            best.map_or((RING_START, 1, 1), |s| (s.position.get(), s.lap.get(), s.sequence.get()));
        let mut found: Vec<(RecordKind, RecordHeader, Vec<u8>)> = vec![];
        let mut previous = None;
        loop {
            let parse = |at: u64, lap: u64| {
                let rest = file.get(at as usize..).filter(|r| !r.is_empty())?;
                let head = WriteHeader::parse(rest, &[9; 16], CoreId(0), IO_BYTES_MAX).ok()?;
                (head.header.sequence.get() == sequence && head.header.lap.get() == lap).then_some((at, head))
            };
            let Some((position, head)) = parse(at, lap).or_else(|| parse(RING_START, lap + 1)) else { break };
            assert_eq!(head.header.position.get(), position);
            if let Some(previous) = previous {
                assert_eq!(head.previous, previous, "a write repeats the directory before it");
            }
            let bytes = &file[position as usize..position as usize + head.header.len.get() as usize];
            let mut touched = std::collections::BTreeSet::new();
            for record in Records::new(&head, bytes) {
                let (kind, header, payload) = record.expect("a complete write's records hold");
                touched.insert((header.topic_id, header.partition.get()));
                found.push((kind, header, payload.to_vec()));
            }
            assert_eq!(touched.len(), head.directory.len(), "the directory names what the write touches, once");
            assert!(head.directory.iter().all(|d| touched.contains(&(d.topic_id, d.partition.get()))));
            previous = Some(head.directory);
            at = position + head.header.len.get() as u64;
            lap = head.header.lap.get();
            sequence += 1;
        }
        found
    }

    pub fn redo_count(&self, kind: RecordKind) -> usize {
        self.redo().iter().filter(|r| r.0 == kind).count()
    }

    /// Laps of the ring so far.
    pub fn laps(&self) -> usize {
        let file = &self.disk.files[&FileId::Journal(0)];
        let head = WriteHeader::parse(&file[RING_START as usize..], &[9; 16], CoreId(0), IO_BYTES_MAX);
        head.map_or(0, |h| h.header.lap.get() as usize)
    }
}
