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

use super::cache::{Cached, ReadCache};
use super::chain::{Chain, ChainStop, Walk};
use super::core_logs::CoreLogs;
use super::fetch::Fetch;
use super::lend::Lender;
use super::notice::{Io, Notice, PartitionIdx, SearchBy};
use super::reader::{PARTITION_READS_MAX, Purpose, Read, Reader};
use super::recovery::scan::segment_at;
use super::scrub::Scrub;
use super::search::{Extent, Finding, Searches};
use super::verbatim::{Damaged, Next, Verbatim};
use crate::base::{BLOCK, DiskDone, DiskError, Now, Position, Ticks, block_up, read_memory};
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

/// All that reads the logs of a core from the disk.
pub(super) struct Reads {
    reader: Reader,
    verbatim: Verbatim,
    searches: Searches,
    scrub: Scrub,
}

impl Reads {
    pub fn new(cache_bytes: usize) -> Self {
        Reads {
            reader: Reader::new(ReadCache::new(cache_bytes)),
            verbatim: Verbatim::default(),
            searches: Searches::default(),
            scrub: Scrub::default(),
        }
    }

    /// Whether one of the partition's files is being read.
    pub fn is_any_in(&self, p: PartitionIdx) -> bool {
        self.reader.reads(p) || self.verbatim.reads(p) || self.searches.is_any_in(p) || self.scrub.repairs(p)
    }

    /// Whether the scrubber is writing a file of the partition.
    pub fn repairs(&self, p: PartitionIdx) -> bool {
        self.scrub.repairs(p)
    }

    /// The partition is closed: nobody waits for reads of it.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.reader.forget(p);
        self.verbatim.forget(p);
    }

    /// The partition is gone, or was truncated.
    pub fn forget_all(&mut self, p: PartitionIdx) {
        self.reader.forget_all(p);
        self.scrub.forget(p);
    }

    /// Drops bytes that were read verbatim before anybody asked: others are to stand there.
    pub fn drop_ahead(&mut self, p: PartitionIdx) {
        self.verbatim.drop_ahead(p);
    }

    /// Damage was mended: a pass of the scrubber counts anew.
    pub fn mended(&mut self) {
        self.scrub.mended();
    }

    /// Number of passes of the scrubber over all partitions since anything of them was mended.
    pub fn scrubs(&self) -> u64 {
        self.scrub.passes()
    }

    /// Bytes that were read from segments, are being read, or are lent.
    pub fn read_bytes(&self) -> usize {
        self.reader.memory_bytes()
    }

    /// The same, with verbatim reads.
    pub fn memory_bytes(&self) -> usize {
        self.read_bytes() + self.verbatim.bytes()
    }

    pub fn lender(&self) -> Lender {
        self.reader.cache.lender().clone()
    }

    /// The first place of the partition that cannot be read, in words.
    pub fn held(&self, p: PartitionIdx) -> Option<String> {
        self.reader.holds.describe(p)
    }

    /// The store stops.
    pub fn stop(&mut self) {
        self.verbatim.stop();
        self.scrub.stop();
    }

    /// Work that is due by time alone.
    pub fn tick(&mut self, core: &mut CoreLogs, now: Now, io: &mut Io) {
        let (is_stopping, rate) = (core.is_stopping, core.options.scrub_bytes_per_second);
        let mut shared = core.shared(io);
        if !is_stopping {
            self.reader.retry_holds(now, &self.searches, &mut shared);
        }
        self.scrub.begin_next(now, rate, &mut self.reader, &mut shared);
    }

    pub fn deadline(&self, core: &CoreLogs) -> Option<Ticks> {
        if self.reader.has_called() {
            return Some(Ticks(0));
        }
        let scrubs = core.options.scrub_bytes_per_second > 0 && !core.partitions.is_empty();
        let scrub = self.scrub.deadline().filter(|_| scrubs);
        let holds = self.reader.holds.deadline().filter(|_| !core.is_stopping);
        scrub.into_iter().chain(holds).min()
    }

    pub fn search(&mut self, core: &mut CoreLogs, p: PartitionIdx, by: SearchBy, token: u64, io: &mut Io) {
        self.searches.search(core, p, by, token, io);
    }

    /// The time of the first batch in `next` tells when the segment `closed` before it ended.
    pub fn find_age(&mut self, core: &mut CoreLogs, p: PartitionIdx, closed: i64, next: i64, io: &mut Io) {
        self.searches.find_age(core, p, closed, next, io);
    }

    /// A read of a search has come in.
    pub fn search_read(&mut self, core: &mut CoreLogs, now: Now, id: u32, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        match self.searches.went_on(core, now, id, outcome, io) {
            None => {}
            Some(Extent::Unread { p, offset, error }) => {
                self.reader.hold(now, p, offset, error, &core.partitions[p.0 as usize], &mut core.notices);
            }
            Some(Extent::Known { p, offset, to, purpose, passed_over }) => {
                match passed_over {
                    None => self.reader.release(now, p, offset, &core.partitions[p.0 as usize], &mut core.notices),
                    Some(what) => self.scrub.pass_over(p, offset, &what, &core.part(p).dir),
                }
                core.notices.push(Notice::Readable { p });
                if purpose == Purpose::Scrub {
                    self.scrub.scrubbed(p, to);
                }
            }
        }
    }

    /// An operation of the scrubber has finished.
    pub fn scrub_done(&mut self, core: &mut CoreLogs, now: Now, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let is_short = core.full_disk.is_short();
        self.scrub.done(now, outcome, is_short, &mut core.shared(io));
    }

    #[cfg(test)]
    pub fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    #[cfg(test)]
    pub fn verbatim(&self) -> &Verbatim {
        &self.verbatim
    }

    /// See [`Store::fetch`](super::Store::fetch).
    pub fn fetch(&mut self, core: &mut CoreLogs, p: PartitionIdx, offset: i64, io: &mut Io) -> Fetch {
        let part = core.part(p);
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
                let (reader, mut shared) = (&mut self.reader, core.shared(io));
                if reader.read_on(p, offset, &mut shared) {
                    reader.cache.set_followed(p, offset);
                }
            }
            return Fetch::Batch(hit.batch);
        }
        if self.reader.holds.is_held(p, offset) {
            return Fetch::Held;
        }
        if core.part(p).reading.is_under_way(offset) || self.searches.is_for_extent_of(p, offset) {
            return Fetch::Pending;
        }
        let Some(limit) = core.part(p).readable_limit(offset) else {
            // No batch begins here: the offset lies inside a batch in memory. The node never writes such a cursor.
            let from = Position { offset, ..core.part(p).progress.durable().at };
            let to = core.next_in_memory(p, offset);
            return Fetch::Lost { from, to };
        };
        if core.part(p).reading.count() >= PARTITION_READS_MAX {
            // The end of each of them says that the partition is readable.
            return Fetch::Pending;
        }
        if !self.reader.begins(p) {
            if core.part_mut(p).reading.wait() {
                self.reader.stand_in_line(p);
            }
            return Fetch::Pending;
        }
        let (reader, mut shared) = (&mut self.reader, core.shared(io));
        reader.start_read(p, offset, limit, Purpose::Fetch, &mut shared);
        Fetch::Pending
    }

    /// See [`Store::read_verbatim`](super::Store::read_verbatim).
    pub fn read_verbatim(
        &mut self,
        core: &mut CoreLogs,
        p: PartitionIdx,
        token: u64,
        from: Position,
        bytes_max: usize,
        io: &mut Io,
    ) {
        let (verbatim, mut shared) = (&mut self.verbatim, core.shared(io));
        let next = verbatim.read(p, token, from, bytes_max, &mut shared);
        self.go_on_verbatim(core, next, io);
    }

    pub fn verbatim_done(&mut self, core: &mut CoreLogs, key: u32, at: u64, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let (verbatim, mut shared) = (&mut self.verbatim, core.shared(io));
        let next = verbatim.done(key, at, outcome, &mut shared);
        self.go_on_verbatim(core, next, io);
    }

    /// Begins the verbatim reads that wait, as far as there is room, and looks for the ends of damaged batches.
    fn go_on_verbatim(&mut self, core: &mut CoreLogs, mut next: Next, io: &mut Io) {
        loop {
            match next {
                Next::Done => return,
                Next::Pump => {}
                Next::Search(Damaged { p, offset, what, pumps }) => {
                    if !self.searches.is_for_extent_of(p, offset) && core.part(p).damage.lost_at(offset).is_none() {
                        self.searches.find_extent(core, p, offset, Purpose::Fetch, Finding::Damaged(what), io);
                    }
                    if !pumps {
                        return;
                    }
                }
            }
            let (verbatim, mut shared) = (&mut self.verbatim, core.shared(io));
            next = verbatim.pump(&mut shared);
        }
    }

    /// Every channel that was told of a read has had its turn: from here on the run may leave the memory, and readers that wait for
    /// memory are called.
    pub fn end_turn(&mut self, core: &mut CoreLogs, io: &mut Io) {
        self.reader.end_turn();
        if core.is_stopping {
            return;
        }
        let (reader, mut shared) = (&mut self.reader, core.shared(io));
        while let Some(key) = reader.unpark() {
            reader.ask(key, &mut shared);
        }
        while let Some(p) = self.reader.call() {
            core.part_mut(p).reading.leave_line();
            core.notices.push(Notice::Readable { p });
        }
    }

    pub fn read_done(&mut self, core: &mut CoreLogs, now: Now, key: u32, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let read = &mut self.reader.reads[key as usize];
        if read.is_useless {
            self.end_read(core, key);
            return;
        }
        let bytes = match outcome {
            Ok(DiskDone::Read(bytes)) => bytes,
            Ok(_) => Bytes::new(),
            Err(error) => return self.read_failed(core, now, key, error.to_string(), io),
        };
        let is_short = bytes.len() < read.asked;
        read.asked = 0;
        match read.joined.is_empty() {
            true => read.found = bytes,
            false => read.joined.extend_from_slice(&bytes),
        }
        let there = read.at + read.len() as u64;
        if there < read.until && !is_short {
            let (reader, mut shared) = (&mut self.reader, core.shared(io));
            return reader.ask(key, &mut shared);
        }
        if !read.joined.is_empty() {
            read.found = std::mem::take(&mut read.joined).into();
        }
        if read.follows.is_none() {
            self.judge_read(core, now, key, io);
        }
    }

    /// Judges the bytes of a complete read.
    pub fn judge_read(&mut self, core: &mut CoreLogs, now: Now, key: u32, io: &mut Io) {
        let read = &mut self.reader.reads[key as usize];
        let there = read.at + read.len() as u64;
        let is_short = there < read.until;
        let head = std::mem::take(&mut read.head);
        let first = match head.is_empty() {
            true => None,
            false => match self.reader.join(key, head, &core.partitions) {
                Ok(batch) => Some(batch),
                // The reader asks again, and one read then covers the whole batch.
                Err(_) => return drop(self.end_read(core, key)),
            },
        };
        let joined = first.as_ref().map_or(0, |batch| batch.bytes.len());
        match self.parse_run(core, key, first) {
            Parsed::Run(batches) => self.read_ended(core, now, key, batches, joined, io),
            Parsed::More(_) if is_short => self.read_damaged(core, key, "the segment is shorter than its log".into(), io),
            Parsed::More(end) => {
                let (reader, mut shared) = (&mut self.reader, core.shared(io));
                reader.drop_followers(key);
                reader.reads[key as usize].until = block_up(end).max(there + BLOCK as u64);
                if reader.park(key) {
                    reader.ask(key, &mut shared);
                }
            }
            // Another program can read it: nothing is lost.
            Parsed::Damaged(bad @ Bad::Version(_)) => self.read_failed(core, now, key, newer(bad), io),
            Parsed::Damaged(bad) => self.read_damaged(core, key, bad.to_string(), io),
        }
    }

    /// Verifies the read bytes, batch by batch, behind the batch that was put together already.
    fn parse_run(&self, core: &CoreLogs, key: u32, first: Option<Batch>) -> Parsed {
        let read = &self.reader.reads[key as usize];
        let part = core.part(read.p);
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
    pub fn end_read(&mut self, core: &mut CoreLogs, key: u32) -> Read {
        self.reader.drop_followers(key);
        let read = self.reader.reads.remove(key as usize);
        if read.is_useless || read.follows.is_some() {
            return read;
        }
        if read.purpose != Purpose::Scrub {
            core.part_mut(read.p).reading.end(read.offset);
            core.notices.push(Notice::Readable { p: read.p });
        }
        read
    }

    /// `joined`: bytes of the batches that stand in memory of their own.
    fn read_ended(&mut self, core: &mut CoreLogs, now: Now, key: u32, batches: Vec<Cached>, joined: usize, io: &mut Io) {
        let next = self.reader.reads[key as usize].followed_by.take();
        let read = self.end_read(core, key);
        let end = batches.last().map_or(read.limit, |b| b.header().end().offset);
        match read.purpose {
            Purpose::Fetch | Purpose::Probe => {
                if let Some(last) = batches.last() {
                    core.part_mut(read.p).reading.found_batch(last.header().len());
                }
                let bytes = read_memory((read.until - read.at) as usize) + joined;
                self.reader.make_room(bytes);
                self.reader.cache.insert(read.p, batches, tail_of(&read, end), bytes);
                self.reader.release(now, read.p, read.offset, &core.partitions[read.p.0 as usize], &mut core.notices);
                if let Some(next) = next
                    && self.reader.go_on_behind(&read, next, end, &mut core.partitions)
                {
                    self.judge_read(core, now, next, io);
                }
            }
            Purpose::Scrub => {
                let headers = batches.iter().map(|b| *b.header()).collect();
                let (scrub, mut shared) = (&mut self.scrub, core.shared(io));
                scrub.check_commit_log((read.p, read.base, end), headers, &mut shared);
            }
        }
    }

    /// The device refused. That says nothing of the bytes.
    fn read_failed(&mut self, core: &mut CoreLogs, now: Now, key: u32, error: String, io: &mut Io) {
        let read = self.end_read(core, key);
        let Read { p, offset, limit, .. } = read;
        if let Some(before) = read.follows {
            self.reader.reads[before as usize].followed_by = None;
            read_carefully(core, &read, &error);
            return;
        }
        if core.part(p).start().offset > offset {
            // Retention removed it meanwhile.
            match read.purpose {
                Purpose::Scrub => self.scrub.scrubbed(p, core.partitions[p.0 as usize].start().offset),
                _ => self.reader.release(now, p, offset, &core.partitions[p.0 as usize], &mut core.notices),
            }
            return;
        }
        let is_long = read.len() == 0 && read.until - read.at > BLOCK as u64;
        if is_long {
            read_carefully(core, &read, &error);
        }
        match read.purpose {
            Purpose::Scrub if is_long => {
                let (reader, mut shared) = (&mut self.reader, core.shared(io));
                reader.start_read(p, offset, limit, Purpose::Scrub, &mut shared);
            }
            Purpose::Scrub => self.searches.find_extent(core, p, offset, Purpose::Scrub, Finding::Unreadable(error), io),
            // The reader asks again.
            _ if is_long => {}
            _ => self.reader.hold(now, p, offset, error, &core.partitions[p.0 as usize], &mut core.notices),
        }
    }

    /// The first batch of the read does not hold: its commit record says how far it went.
    fn read_damaged(&mut self, core: &mut CoreLogs, key: u32, what: String, io: &mut Io) {
        let read = self.end_read(core, key);
        let purpose = if read.purpose == Purpose::Scrub { Purpose::Scrub } else { Purpose::Fetch };
        self.searches.find_extent(core, read.p, read.offset, purpose, Finding::Damaged(what), io);
    }
}

/// Perhaps one block of it is bad: up to its end each batch is read alone.
fn read_carefully(core: &mut CoreLogs, read: &Read, error: &str) {
    tracing::debug!(%error, "a read failed and is tried again in parts");
    let until = read.base + (read.until - FILE_HEADER_LEN) as i64;
    core.part_mut(read.p).reading.be_careful(until);
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
