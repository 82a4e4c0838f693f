//! Handing out batches: from memory, from the read cache, or by reading ahead from a segment.
//!
//! A batch that comes from a disk is verified (crc, identity, offset, chain) before it is cached; a batch that fails is never handed
//! out: the commit log has the start of the next one, and the reader gets [`Fetch::Lost`]. Only bytes that were read are judged: a
//! refused read is repeated ([`super::hold`]), with the blocks of one batch alone, and the reader gets [`Fetch::Held`] until then.
//!
//! **Progress.** Every reader gets its batch, however small the cache and however many others read:
//! 1. A fetch begins a read or waits in line. Reads end; when none is under way and the turn is over, there is memory for one. Memory is
//!    given in the order of the line, and kept for a called reader until it had its turn.
//! 2. A read run stays until the end of the turn in which it came, and [`Notice::Readable`] wakes every channel of the partition in that
//!    turn. Nothing else can push it out before: the room of every other read was set aside when that read began.
//! 3. The credit a channel was lent stays with it while its read is under way (`Engine::on_recall`), so in that turn it hands out a
//!    message at least, or passes a lost range. Then the credit goes on to the next hungry channel: not before, and at the latest when
//!    that message is finished.

use super::cache::Cached;
use super::chain::{Chain, ChainStop, Walk};
use super::fetch::Fetch;
use super::lend::Lender;
use super::notice::{Io, Notice, PartitionIdx};
use super::reader::{PARTITION_READS_MAX, Purpose, Read};
use super::recovery::scan::segment_at;
use super::search::Finding;
use super::store::Store;
use super::verbatim::{Damaged, Next};
use crate::base::{BLOCK, DiskDone, DiskError, Now, Position, block_up, read_memory};
use crate::format::batch::Batch;
use crate::format::files::{Bad, FILE_HEADER_LEN};
use bytes::Bytes;

/// Outcome of the bytes that were read.
enum Parsed {
    /// The bytes hold at least one batch.
    Run(Vec<Cached>),
    /// The first batch goes on up to this file position.
    More(u64),
    Damaged(Bad),
}

impl Store {
    /// Bytes that were read from segments, are being read, or are lent.
    pub fn read_bytes(&self) -> usize {
        self.reader.memory_bytes()
    }

    /// Lends fetched batches beyond the turn.
    pub fn lender(&self) -> Lender {
        self.reader.cache.lender().clone()
    }

    /// Place where the partition cannot be read, if there is one, for /stats.
    pub fn held(&self, p: PartitionIdx) -> Option<String> {
        if let Some((from, to)) = self.log_view(p).awaited() {
            let (from, to) = (from.offset, to.offset);
            return Some(format!("from offset {from} to {to} (damaged: another replica is asked for it)"));
        }
        self.reader.holds.describe(p)
    }

    /// The batch that begins at `offset`, if it is durable. [`Notice::Readable`] follows a [`Fetch::Pending`].
    pub fn fetch(&mut self, p: PartitionIdx, offset: i64, io: &mut Io) -> Fetch {
        let part = self.part(p);
        if offset < part.start().offset {
            return Fetch::Below { start: part.start() };
        }
        if offset >= part.progress.durable().at.offset {
            return Fetch::End;
        }
        if part.is_truncating() {
            return Fetch::Pending; // What stands there may just go. Its end says that the partition is readable.
        }
        if let Some(r) = part.recent_at(offset) {
            return Fetch::Batch(r.batch());
        }
        if let Some((from, to)) = part.damage.lost_at(offset) {
            return if part.waits_for(to) { Fetch::Held } else { Fetch::Lost { from, to } };
        }
        if let Some(hit) = self.reader.cache.get(p, offset) {
            if hit.is_unfollowed {
                let (reader, mut shared) = self.with_reader(io);
                if reader.read_on(p, offset, &mut shared) {
                    reader.cache.set_followed(p, offset);
                }
            }
            return Fetch::Batch(hit.batch);
        }
        if self.reader.holds.is_held(p, offset) {
            return Fetch::Held;
        }
        if self.part(p).reading.is_under_way(offset) || self.searches.is_for_extent_of(p, offset) {
            return Fetch::Pending;
        }
        let Some(limit) = self.part(p).readable_limit(offset) else {
            // No batch begins here: the offset lies inside a batch in memory. The node never writes such a cursor.
            let from = Position { offset, ..self.part(p).progress.durable().at };
            let to = self.next_in_memory(p, offset);
            return Fetch::Lost { from, to };
        };
        if self.part(p).reading.count() >= PARTITION_READS_MAX {
            // The end of each of them says that the partition is readable.
            return Fetch::Pending;
        }
        if !self.reader.begins(p) {
            if self.part_mut(p).reading.wait() {
                self.reader.stand_in_line(p);
            }
            return Fetch::Pending;
        }
        let (reader, mut shared) = self.with_reader(io);
        reader.start_read(p, offset, limit, Purpose::Fetch, &mut shared);
        Fetch::Pending
    }

    /// Reads batches verbatim from `from` on, at most `bytes_max` or one, nothing beyond the durable end, not over a segment's border.
    /// [`Notice::Verbatim`] answers, perhaps not before the next completion or tick; with nothing where the log ends.
    pub fn read_verbatim(&mut self, p: PartitionIdx, token: u64, from: Position, bytes_max: usize, io: &mut Io) {
        let (verbatim, mut shared) = self.with_verbatim(io);
        let next = verbatim.read(p, token, from, bytes_max, &mut shared);
        self.go_on_verbatim(next, io);
    }

    pub(super) fn verbatim_done(&mut self, key: u32, at: u64, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let (verbatim, mut shared) = self.with_verbatim(io);
        let next = verbatim.done(key, at, outcome, &mut shared);
        self.go_on_verbatim(next, io);
    }

    /// Begins the verbatim reads that wait, as far as there is room, and looks for the ends of damaged batches.
    fn go_on_verbatim(&mut self, mut next: Next, io: &mut Io) {
        loop {
            match next {
                Next::Done => return,
                Next::Pump => {}
                Next::Search(Damaged { p, offset, what, pumps }) => {
                    if !self.searches.is_for_extent_of(p, offset) && self.part(p).damage.lost_at(offset).is_none() {
                        self.find_extent(p, offset, Purpose::Fetch, Finding::Damaged(what), io);
                    }
                    if !pumps {
                        return;
                    }
                }
            }
            let (verbatim, mut shared) = self.with_verbatim(io);
            next = verbatim.pump(&mut shared);
        }
    }

    /// Every channel that was told of a read has had its turn: from here on the run may leave the memory, and readers that wait for
    /// memory are called.
    pub(super) fn end_reads_turn(&mut self, io: &mut Io) {
        self.reader.end_turn();
        if self.is_stopping() {
            return;
        }
        let (reader, mut shared) = self.with_reader(io);
        while let Some(key) = reader.unpark() {
            reader.ask(key, &mut shared);
        }
        while let Some(p) = self.reader.call() {
            self.part_mut(p).reading.leave_line();
            self.notices.push(Notice::Readable { p });
        }
    }

    /// The first position after `offset` that memory knows.
    pub(super) fn next_in_memory(&self, p: PartitionIdx, offset: i64) -> Position {
        let part = self.part(p);
        let found = part.batches.get(part.batches.number_at(offset + 1)).map(|r| r.header().start());
        found.filter(|f| f.offset < part.progress.durable().at.offset).unwrap_or(part.progress.durable().at)
    }

    pub(super) fn read_done(&mut self, now: Now, key: u32, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let read = &mut self.reader.reads[key as usize];
        if read.is_useless {
            self.end_read(key);
            return;
        }
        let bytes = match outcome {
            Ok(DiskDone::Read(bytes)) => bytes,
            Ok(_) => Bytes::new(),
            Err(error) => return self.read_failed(now, key, error.to_string(), io),
        };
        let is_short = bytes.len() < read.asked;
        read.asked = 0;
        match read.joined.is_empty() {
            true => read.found = bytes,
            false => read.joined.extend_from_slice(&bytes),
        }
        let there = read.at + read.len() as u64;
        if there < read.until && !is_short {
            let (reader, mut shared) = self.with_reader(io);
            return reader.ask(key, &mut shared);
        }
        if !read.joined.is_empty() {
            read.found = std::mem::take(&mut read.joined).into();
        }
        if read.follows.is_none() {
            self.judge_read(now, key, io);
        }
    }

    /// Judges the bytes of a complete read.
    pub(super) fn judge_read(&mut self, now: Now, key: u32, io: &mut Io) {
        let read = &mut self.reader.reads[key as usize];
        let there = read.at + read.len() as u64;
        let is_short = there < read.until;
        let head = std::mem::take(&mut read.head);
        let first = match head.is_empty() {
            true => None,
            false => match self.reader.join(key, head, &self.partitions) {
                Ok(batch) => Some(batch),
                // The reader asks again, and one read then covers the whole batch.
                Err(_) => return drop(self.end_read(key)),
            },
        };
        let joined = first.as_ref().map_or(0, |batch| batch.bytes.len());
        match self.parse_run(key, first) {
            Parsed::Run(batches) => self.read_ended(now, key, batches, joined, io),
            Parsed::More(_) if is_short => self.read_damaged(key, "the segment is shorter than its log".into(), io),
            Parsed::More(end) => {
                let (reader, mut shared) = self.with_reader(io);
                reader.drop_followers(key);
                reader.reads[key as usize].until = block_up(end).max(there + BLOCK as u64);
                if reader.park(key) {
                    reader.ask(key, &mut shared);
                }
            }
            // Another program can read it: nothing is lost.
            Parsed::Damaged(bad @ Bad::Version(_)) => self.read_failed(now, key, newer(bad), io),
            Parsed::Damaged(bad) => self.read_damaged(key, bad.to_string(), io),
        }
    }

    /// Verifies the read bytes, batch by batch, behind the batch that was put together already.
    fn parse_run(&self, key: u32, first: Option<Batch>) -> Parsed {
        let read = &self.reader.reads[key as usize];
        let part = self.part(read.p);
        let segment = part.segments.holding(read.offset).1;
        let mut batches: Vec<Cached> = vec![];
        // At a segment's start the chain is known from its header.
        let crc = (segment.base() == read.offset).then_some(segment.meta.prev_crc);
        let mut walk = Walk::new(&part.dir, read.offset, read.limit, Chain { crc, ..Chain::default() });
        if let Some(batch) = first {
            walk.pass(&batch.header);
            batches.push(Cached::Verified(batch));
        }
        while !walk.is_over() {
            let in_file = segment_at(read.base, walk.offset());
            let from = ((in_file - read.at) as usize).min(read.found.len());
            // A reader that continues asks for the other batches, and has them verified then.
            let is_judged = batches.is_empty() || read.purpose != Purpose::Fetch;
            let taken = walk.batch(&read.found.slice(from..)).and_then(|found| match is_judged {
                true => found.verify().map(Cached::Verified).map_err(ChainStop::Bad),
                false => Ok(Cached::Found(found)),
            });
            match taken {
                Ok(batch) => {
                    walk.pass(batch.header());
                    batches.push(batch);
                }
                // The next reader finds it again, as its first batch.
                Err(_) if !batches.is_empty() => break,
                Err(ChainStop::More(len)) => return Parsed::More(in_file + len as u64),
                Err(ChainStop::Bad(bad) | ChainStop::Breaks(bad)) => return Parsed::Damaged(bad),
            }
        }
        Parsed::Run(batches)
    }

    /// Takes a read out of the books.
    pub(super) fn end_read(&mut self, key: u32) -> Read {
        self.reader.drop_followers(key);
        let read = self.reader.reads.remove(key as usize);
        if read.is_useless || read.follows.is_some() {
            return read;
        }
        if read.purpose != Purpose::Scrub {
            self.part_mut(read.p).reading.end(read.offset);
            self.notices.push(Notice::Readable { p: read.p });
        }
        read
    }

    /// `joined`: bytes of the batches that stand in memory of their own.
    fn read_ended(&mut self, now: Now, key: u32, batches: Vec<Cached>, joined: usize, io: &mut Io) {
        let next = self.reader.reads[key as usize].followed_by.take();
        let read = self.end_read(key);
        let end = batches.last().map_or(read.limit, |b| b.header().end().offset);
        match read.purpose {
            Purpose::Fetch | Purpose::Probe => {
                if let Some(last) = batches.last() {
                    self.part_mut(read.p).reading.found_batch(last.header().len());
                }
                let bytes = read_memory((read.until - read.at) as usize) + joined;
                self.reader.make_room(bytes);
                self.reader.cache.insert(read.p, batches, tail_of(&read, end), bytes);
                self.reader.release(now, read.p, read.offset, &self.partitions[read.p.0 as usize], &mut self.notices);
                if let Some(next) = next
                    && self.reader.go_on_behind(&read, next, end, &mut self.partitions)
                {
                    self.judge_read(now, next, io);
                }
            }
            Purpose::Scrub => {
                let headers = batches.iter().map(|b| *b.header()).collect();
                let (scrub, mut shared) = self.with_scrub(io);
                scrub.check_commit_log((read.p, read.base, end), headers, &mut shared);
            }
        }
    }

    /// The device refused. That says nothing of the bytes.
    fn read_failed(&mut self, now: Now, key: u32, error: String, io: &mut Io) {
        let read = self.end_read(key);
        let Read { p, offset, limit, .. } = read;
        if let Some(before) = read.follows {
            self.reader.reads[before as usize].followed_by = None;
            self.read_carefully(&read, &error);
            return;
        }
        if self.part(p).start().offset > offset {
            // Retention removed it meanwhile.
            match read.purpose {
                Purpose::Scrub => self.scrub.scrubbed(p, self.partitions[p.0 as usize].start().offset),
                _ => self.reader.release(now, p, offset, &self.partitions[p.0 as usize], &mut self.notices),
            }
            return;
        }
        let is_long = read.len() == 0 && read.until - read.at > BLOCK as u64;
        if is_long {
            self.read_carefully(&read, &error);
        }
        match read.purpose {
            Purpose::Scrub if is_long => {
                let (reader, mut shared) = self.with_reader(io);
                reader.start_read(p, offset, limit, Purpose::Scrub, &mut shared);
            }
            Purpose::Scrub => self.find_extent(p, offset, Purpose::Scrub, Finding::Unreadable(error), io),
            // The reader asks again.
            _ if is_long => {}
            _ => self.reader.hold(now, p, offset, error, &self.partitions[p.0 as usize], &mut self.notices),
        }
    }

    /// Perhaps one block of it is bad: up to its end each batch is read alone.
    fn read_carefully(&mut self, read: &Read, error: &str) {
        tracing::debug!(%error, "a read failed and is tried again in parts");
        let until = read.base + (read.until - FILE_HEADER_LEN) as i64;
        self.part_mut(read.p).reading.be_careful(until);
    }

    /// The first batch of the read does not hold: its commit record says how far it went.
    fn read_damaged(&mut self, key: u32, what: String, io: &mut Io) {
        let read = self.end_read(key);
        let purpose = if read.purpose == Purpose::Scrub { Purpose::Scrub } else { Purpose::Fetch };
        self.find_extent(read.p, read.offset, purpose, Finding::Damaged(what), io);
    }
}

/// Bytes that were read of the batch at `end`, which the read ended within.
fn tail_of(read: &Read, end: i64) -> Bytes {
    let from = segment_at(read.base, end);
    let is_written = read.until <= segment_at(read.base, read.limit);
    let is_whole = read.at + read.found.len() as u64 == read.until;
    match (read.at..read.until).contains(&from) && is_written && is_whole {
        true => read.found.slice((from - read.at) as usize..),
        false => Bytes::new(),
    }
}

/// Reason for a hold at a batch of a version that this build does not know.
pub(super) fn newer(bad: Bad) -> String {
    format!("a batch there was written by a newer version of ringmq, which must be started to read it ({bad})")
}
