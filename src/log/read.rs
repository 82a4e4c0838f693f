//! Handing out batches: from memory, from the read cache, or by reading ahead from a segment.
//!
//! What comes from a disk is verified (crc, identity, offset, chain) before it is cached; a batch that fails is never
//! handed out: the commit log says where the next one begins, and the reader is answered [`Fetch::Lost`].
//! A read that fails is tried again, at last with the blocks of one batch alone; only when the device keeps refusing
//! is the batch called damaged.

use super::batch::{BATCH_HEADER_LEN, Batch, BatchHeader};
use super::fetch::Fetch;
use super::format::{Bad, FILE_HEADER_LEN};
use super::notice::{Io, Notice, PartitionIdx};
use super::store::{Op, Store};
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, FileId, IO_BYTES_MAX, Now, Position, Ticks, block_down, block_up};
use bytes::Bytes;
use slab::Slab;
use std::{collections::VecDeque, time::Duration};

/// What one read ahead asks for.
const READ_AHEAD: u64 = 512 * 1024;
/// With fewer reads of the core in flight, a reader is kept two runs ahead instead of one.
const READS_FEW: usize = 8;
/// Reads of a core in flight.
const READS_MAX: usize = 32;
/// Reads of a partition in flight: channels at different places.
const PARTITION_READS_MAX: usize = 4;
const TRIES_MAX: u32 = 3;
const RETRY: Duration = Duration::from_secs(1);
/// What a device says of blocks it cannot give: EIO, ENODATA, EILSEQ, EREMOTEIO.
const MEDIA_ERRORS: [i32; 4] = [5, 61, 84, 121];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Fetch,
    Scrub,
}

/// One run being read.
struct Read {
    p: PartitionIdx,
    purpose: Purpose,
    /// Of the first batch wanted.
    offset: i64,
    /// Of its segment.
    base: i64,
    /// Where what is written of the segment ends.
    limit: i64,
    /// File position of `found`, whole blocks.
    at: u64,
    /// What is there so far.
    found: Bytes,
    /// Bytes of the read in flight.
    asked: usize,
    tries: u32,
    retry_at: Option<Ticks>,
}

#[derive(Default)]
pub struct Reader {
    reads: Slab<Read>,
    /// Waiting for a read to end before they may begin one.
    waiting: VecDeque<PartitionIdx>,
}

impl Reader {
    pub fn bytes(&self) -> usize {
        self.reads.iter().map(|(_, r)| r.found.len() + r.asked).sum()
    }
}

/// What came of the bytes that were read.
enum Parsed {
    /// At least one batch.
    Run(Vec<Batch>),
    /// The first batch goes on up to this file position.
    More(u64),
    Damaged(Bad),
}

impl Store {
    /// The batch that begins at `offset`, if it is durable. [`Notice::Readable`] follows a [`Fetch::Pending`].
    pub fn fetch(&mut self, p: PartitionIdx, offset: i64, io: &mut Io) -> Fetch {
        let part = self.part(p);
        if offset < part.start.offset {
            return Fetch::Below { start: part.start };
        }
        if offset >= part.durable.at.offset {
            return Fetch::End;
        }
        if let Some((_, r)) = part.recent_at(offset) {
            return Fetch::Batch(r.batch.clone());
        }
        if let Some((from, to)) = part.lost_at(offset) {
            return Fetch::Lost { from, to };
        }
        if let Some(hit) = self.cache.get(p, offset) {
            self.read_on(p, hit.run_end, io);
            return Fetch::Batch(hit.batch);
        }
        if self.part(p).reads.contains(&offset) || self.searches_extent_of(p, offset) {
            return Fetch::Pending;
        }
        let Some(limit) = self.readable_limit(p, offset) else {
            // No batch begins here: it lies inside one that is in memory. Nobody wrote such a cursor.
            let from = Position { offset, ..self.part(p).durable.at };
            let to = self.next_in_memory(p, offset);
            return Fetch::Lost { from, to };
        };
        if self.reader.reads.len() >= READS_MAX || self.part(p).reads.len() >= PARTITION_READS_MAX {
            if !std::mem::replace(&mut self.part_mut(p).waits_to_read, true) {
                self.reader.waiting.push_back(p);
            }
            return Fetch::Pending;
        }
        self.start_read(p, offset, limit, Purpose::Fetch, io);
        Fetch::Pending
    }

    /// Reads what follows a run before somebody asks: the next run, and while the disk has little to do the one after it,
    /// so that the disk reads one while another is handed out.
    fn read_on(&mut self, p: PartitionIdx, next: i64, io: &mut Io) {
        let offset = match self.cache.run_end(p, next) {
            Some(after) if self.reader.reads.len() < READS_FEW => after,
            Some(_) => return,
            None => next,
        };
        let part = self.part(p);
        let is_useless = part.recent_at(offset).is_some()
            || part.lost_at(offset).is_some()
            || part.reads.contains(&offset)
            || part.reads.len() >= PARTITION_READS_MAX
            || self.cache.contains(p, offset)
            || self.reader.reads.len() >= READS_MAX / 2;
        if !is_useless && let Some(limit) = self.readable_limit(p, offset) {
            self.start_read(p, offset, limit, Purpose::Fetch, io);
        }
    }

    /// Where the written part of the segment that holds `offset` ends; `None` when `offset` is beyond it.
    pub(super) fn readable_limit(&self, p: PartitionIdx, offset: i64) -> Option<i64> {
        let part = self.part(p);
        let (index, _) = part.segment_of(offset);
        let border = part.segments.get(index + 1).map_or(i64::MAX, |s| s.meta.base.offset);
        let limit = border.min(part.written.at.offset).min(part.durable.at.offset);
        (offset < limit).then_some(limit)
    }

    /// The first position after `offset` that memory knows.
    pub(super) fn next_in_memory(&self, p: PartitionIdx, offset: i64) -> Position {
        let part = self.part(p);
        let index = part.recent.partition_point(|r| r.batch.header.offset.get() <= offset);
        let found = part.recent.get(index).map(|r| r.batch.header.start());
        found.filter(|f| f.offset < part.durable.at.offset).unwrap_or(part.durable.at)
    }

    pub(super) fn start_read(&mut self, p: PartitionIdx, offset: i64, limit: i64, purpose: Purpose, io: &mut Io) -> u64 {
        let base = self.part(p).segment_of(offset).1.meta.base.offset;
        let at = block_down(FILE_HEADER_LEN + (offset - base) as u64);
        let end = block_up(FILE_HEADER_LEN + (limit - base) as u64);
        let asked = (end - at).min(READ_AHEAD) as usize;
        let (found, tries, retry_at) = (Bytes::new(), 0, None);
        let read = Read { p, purpose, offset, base, limit, at, found, asked, tries, retry_at };
        let key = self.reader.reads.insert(read) as u32;
        if purpose == Purpose::Fetch {
            self.part_mut(p).reads.push(offset);
        }
        self.ask(key, io);
        asked as u64
    }

    /// Issues the next part of a read.
    fn ask(&mut self, key: u32, io: &mut Io) {
        let read = &mut self.reader.reads[key as usize];
        read.retry_at = None;
        let (p, base, at, len) = (read.p, read.base, read.at + read.found.len() as u64, read.asked);
        assert!(len > 0 && len <= IO_BYTES_MAX && len % BLOCK == 0 && at % BLOCK as u64 == 0);
        let file = FileId::Segment(self.part(p).dir.clone(), base);
        self.ops.issue(io, DiskOp::Read { file, at, len }, Op::Read(key));
    }

    pub(super) fn read_done(&mut self, now: Now, key: u32, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let read = &mut self.reader.reads[key as usize];
        let bytes = match outcome {
            Ok(DiskDone::Read(bytes)) => bytes,
            Ok(DiskDone::Done) => Bytes::new(),
            Err(error) => return self.read_failed(now, key, error, io),
        };
        let is_short = bytes.len() < read.asked;
        read.asked = 0;
        if read.found.is_empty() {
            read.found = bytes;
        } else {
            let mut joined = Vec::with_capacity(read.found.len() + bytes.len());
            joined.extend_from_slice(&read.found);
            joined.extend_from_slice(&bytes);
            read.found = joined.into();
        }
        match self.parse_run(key) {
            Parsed::Run(batches) => self.read_ended(now, key, batches, io),
            Parsed::More(_) if is_short => self.read_damaged(now, key, "the segment is shorter than its log".into(), io),
            Parsed::More(end) => {
                let read = &mut self.reader.reads[key as usize];
                let there = read.at + read.found.len() as u64;
                read.asked = (block_up(end) - there).min(IO_BYTES_MAX as u64) as usize;
                self.ask(key, io);
            }
            Parsed::Damaged(bad) => self.read_damaged(now, key, bad.to_string(), io),
        }
    }

    /// Verifies what was read, batch by batch.
    fn parse_run(&self, key: u32) -> Parsed {
        let read = &self.reader.reads[key as usize];
        let part = self.part(read.p);
        let (id, partition) = (part.dir.topic_id, part.dir.partition);
        let segment = part.segment_of(read.offset).1;
        let mut batches: Vec<Batch> = vec![];
        let mut offset = read.offset;
        // At a segment's start the chain is known from its header.
        let mut prev_crc = (segment.meta.base.offset == offset).then_some(segment.meta.prev_crc);
        while offset < read.limit {
            let in_file = FILE_HEADER_LEN + (offset - read.base) as u64;
            let from = (in_file - read.at) as usize;
            if from >= read.found.len() {
                if batches.is_empty() {
                    return Parsed::More(in_file + BATCH_HEADER_LEN as u64);
                }
                break;
            }
            let bytes = read.found.slice(from..);
            let header = BatchHeader::parse(&bytes, id, partition);
            let checked = header.and_then(|h| {
                let last = batches.last().map(|b| b.header);
                // A lost batch took the place of another after the fact: epoch and crc are not those that stood there.
                let stands = |l: BatchHeader| l.is_lost() || h.is_lost() || l.epoch.get() <= h.epoch.get();
                let follows = last.is_none_or(|l| l.end() == h.start() && stands(l));
                if h.offset.get() != offset {
                    return Err(Bad::Foreign);
                }
                if h.end().offset > read.limit {
                    return Err(Bad::Bounds);
                }
                if !follows || !h.is_lost() && prev_crc.is_some_and(|c| c != h.prev_crc.get()) {
                    return Err(Bad::Chain);
                }
                Ok(h)
            });
            match checked {
                Ok(h) if bytes.len() < h.len() && !h.is_lost() => {
                    if batches.is_empty() {
                        return Parsed::More(in_file + h.len() as u64);
                    }
                    break;
                }
                Err(Bad::Short) if batches.is_empty() => return Parsed::More(in_file + BATCH_HEADER_LEN as u64),
                Err(Bad::Short) => break,
                Ok(_) => match Batch::parse(&bytes, id, partition) {
                    Ok(batch) => {
                        offset = batch.header.end().offset;
                        prev_crc = (!batch.header.is_lost()).then_some(batch.header.header_crc.get());
                        batches.push(batch);
                    }
                    Err(bad) if batches.is_empty() => return Parsed::Damaged(bad),
                    Err(_) => break,
                },
                Err(bad) if batches.is_empty() => return Parsed::Damaged(bad),
                // Found again, as the first one, by whoever gets there.
                Err(_) => break,
            }
        }
        Parsed::Run(batches)
    }

    /// Takes a read out of the books, and lets others begin.
    fn end_read(&mut self, key: u32) -> Read {
        let read = self.reader.reads.remove(key as usize);
        if read.purpose == Purpose::Fetch {
            self.part_mut(read.p).reads.retain(|&o| o != read.offset);
        }
        // As many as could begin now; who finds no place waits again.
        for _ in self.reader.reads.len()..READS_MAX {
            let Some(p) = self.reader.waiting.pop_front() else { break };
            self.part_mut(p).waits_to_read = false;
            self.notices.push(Notice::Readable { p });
        }
        read
    }

    fn read_ended(&mut self, now: Now, key: u32, batches: Vec<Batch>, io: &mut Io) {
        let read = self.end_read(key);
        let end = batches.last().map_or(read.limit, |b| b.header.end().offset);
        match read.purpose {
            Purpose::Fetch => {
                self.cache.insert(read.p, batches, read.found.len());
                self.notices.push(Notice::Readable { p: read.p });
            }
            Purpose::Scrub => {
                let headers = batches.iter().map(|b| b.header).collect();
                self.check_commit_log(now, (read.p, read.base, end), headers, io);
            }
        }
    }

    fn read_failed(&mut self, now: Now, key: u32, error: DiskError, io: &mut Io) {
        let read = &mut self.reader.reads[key as usize];
        read.tries += 1;
        let is_media = matches!(&error, DiskError::Io { errno, .. } if MEDIA_ERRORS.contains(errno));
        let is_gone = matches!(error, DiskError::NotFound { .. });
        if self.partitions[read.p.0 as usize].start.offset > read.offset {
            // Retention removed it meanwhile.
            let (p, purpose) = (read.p, read.purpose);
            self.end_read(key);
            match purpose {
                Purpose::Fetch => self.notices.push(Notice::Readable { p }),
                Purpose::Scrub => self.scrubbed(now, p, self.part(p).start.offset, io),
            }
            return;
        }
        if read.tries >= TRIES_MAX && (is_media || is_gone) {
            return self.read_damaged(now, key, error.to_string(), io);
        }
        tracing::warn!(%error, tries = read.tries, "a read failed and is tried again");
        // One block, then the rest of its batch: a bad block takes no neighbour with it.
        if read.found.is_empty() {
            read.asked = BLOCK;
        }
        read.retry_at = Some(now.ticks + RETRY);
    }

    /// The first batch of the read does not hold: its commit record says how far it went.
    fn read_damaged(&mut self, now: Now, key: u32, what: String, io: &mut Io) {
        let read = self.end_read(key);
        self.find_extent(now, read.p, read.offset, read.purpose, what, io);
    }

    pub(super) fn retry_reads(&mut self, now: Now, io: &mut Io) {
        let due = |r: &Read| r.retry_at.is_some_and(|at| at <= now.ticks);
        let keys: Vec<u32> = self.reader.reads.iter().filter(|(_, r)| due(r)).map(|(k, _)| k as u32).collect();
        keys.into_iter().for_each(|key| self.ask(key, io));
    }

    pub(super) fn read_deadline(&self) -> Option<Ticks> {
        self.reader.reads.iter().filter_map(|(_, r)| r.retry_at).min()
    }
}
