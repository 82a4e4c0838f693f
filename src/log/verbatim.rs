//! Reading batches as they stand, for a replica that catches up: past the read cache, in a share of memory of its own, verified
//! like everything that is read.
//!
//! Reads stand in one line per core; those under way take at most [`SHARE`], beside one batch that is longer. What is handed out is
//! the reader's; he asks for one run at a time.

use super::batch::{BATCH_HEADER_LEN, Batch, BatchHeader};
use super::format::Bad;
use super::notice::{Io, Notice, PartitionIdx};
use super::read::{Purpose, newer};
use super::recovery::scan::segment_at;
use super::search::Finding;
use super::store::{Op, Store};
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, FileId, IO_BYTES_MAX, Now, Position, block_down, block_up};
use bytes::Bytes;
use slab::Slab;
use std::collections::VecDeque;

/// Bytes of reads under way.
const SHARE: usize = 4 * 1024 * 1024;

/// Why a run cannot be handed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("no batch that is stored begins at offset {0}: retention or a cut took it")]
    Gone(i64),
    #[error("what stands at offset {0} does not hold")]
    Damaged(i64),
    #[error("the device refuses: {0}")]
    Refused(String),
}

/// Whole batches one after the other, and where they end.
pub type Run = (Vec<Bytes>, Position);

#[derive(Clone, Copy)]
struct Want {
    p: PartitionIdx,
    token: u64,
    from: Position,
    bytes_max: usize,
}

struct Read {
    want: Want,
    base: i64,
    /// Where what is written of the segment ends.
    limit: i64,
    /// File positions, whole blocks.
    at: u64,
    until: u64,
    found: Vec<u8>,
    asked: usize,
}

#[derive(Default)]
pub struct Verbatim {
    waiting: VecDeque<Want>,
    reads: Slab<Read>,
}

impl Verbatim {
    pub fn reads(&self, p: PartitionIdx) -> bool {
        self.reads.iter().any(|(_, r)| r.want.p == p)
    }

    /// Nobody wants to read it any more.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.waiting.retain(|w| w.p != p);
    }

    pub fn bytes(&self) -> usize {
        self.reads.iter().map(|(_, r)| (r.until - r.at) as usize).sum()
    }
}

/// What came of the bytes that were read.
enum Parsed {
    Run(Run),
    /// The first batch goes on up to this file position.
    More(u64),
    Gone,
    Damaged(Bad),
}

impl Store {
    /// Reads batches verbatim from `from` on, at most `bytes_max` or one, nothing beyond the durable end, not over a segment's border.
    /// [`Notice::Verbatim`] answers, perhaps not before the next completion or tick; with nothing where the log ends.
    pub fn read_verbatim(&mut self, p: PartitionIdx, token: u64, from: Position, bytes_max: usize, io: &mut Io) {
        let want = Want { p, token, from, bytes_max: bytes_max.clamp(1, SHARE) };
        let part = self.part(p);
        let durable = self.log_view(p).durable().at;
        if from == durable {
            return self.answer_verbatim(want, Ok((vec![], from)));
        }
        if !(part.start.offset..durable.offset).contains(&from.offset) {
            return self.answer_verbatim(want, Err(Unreadable::Gone(from.offset)));
        }
        if part.lost_at(from.offset).is_some() {
            return self.answer_verbatim(want, Err(Unreadable::Damaged(from.offset)));
        }
        if let Some(run) = self.run_in_memory(want, durable) {
            return self.answer_verbatim(want, Ok(run));
        }
        self.verbatim.waiting.push_back(want);
        self.pump_verbatim(io);
    }

    fn answer_verbatim(&mut self, want: Want, result: Result<Run, Unreadable>) {
        self.notices.push(Notice::Verbatim { p: want.p, token: want.token, result });
    }

    fn run_in_memory(&self, want: Want, durable: Position) -> Option<Run> {
        let (index, first) = self.log_view(want.p).batch_at(want.from.offset)?;
        if first.header().start() != want.from {
            return None;
        }
        let (mut parts, mut end, mut len) = (vec![], want.from, 0);
        for r in self.part(want.p).recent.iter().skip(index) {
            len += r.bytes.len();
            let is_beyond = r.header().end().offset > durable.offset;
            if is_beyond || !parts.is_empty() && len > want.bytes_max {
                break;
            }
            parts.push(r.bytes.clone());
            end = r.header().end();
        }
        Some((parts, end))
    }

    /// Begins the reads that there is room for.
    pub(super) fn pump_verbatim(&mut self, io: &mut Io) {
        while let Some(&want) = self.verbatim.waiting.front() {
            let is_alone = self.verbatim.reads.is_empty();
            if !is_alone && self.verbatim.bytes() + want.bytes_max + 2 * BLOCK > SHARE || self.is_stopping() {
                return;
            }
            self.verbatim.waiting.pop_front();
            let offset = want.from.offset;
            let Some(limit) = self.readable_limit(want.p, offset) else {
                // It left the memory, or a cut is under way.
                self.answer_verbatim(want, Err(Unreadable::Gone(offset)));
                continue;
            };
            let base = self.part(want.p).segment_of(offset).1.meta.base.offset;
            let at = block_down(segment_at(base, offset));
            let end = block_up(segment_at(base, limit));
            let until = end.min(block_up(segment_at(base, offset) + want.bytes_max as u64));
            let read = Read { want, base, limit, at, until, found: vec![], asked: 0 };
            let key = self.verbatim.reads.insert(read) as u32;
            self.ask_verbatim(key, io);
        }
    }

    fn ask_verbatim(&mut self, key: u32, io: &mut Io) {
        let read = &mut self.verbatim.reads[key as usize];
        let at = read.at + read.found.len() as u64;
        read.asked = (read.until - at).min(IO_BYTES_MAX as u64) as usize;
        let (len, file) = (read.asked, FileId::Segment(self.partitions[read.want.p.0 as usize].dir.clone(), read.base));
        self.ops.issue(io, DiskOp::Read { file, at, len }, Op::Verbatim(key));
    }

    pub(super) fn verbatim_done(&mut self, now: Now, key: u32, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let read = &mut self.verbatim.reads[key as usize];
        let bytes = match outcome {
            Ok(DiskDone::Read(bytes)) => bytes,
            Ok(DiskDone::Done) => Bytes::new(),
            Err(error) => {
                let want = self.verbatim.reads.remove(key as usize).want;
                self.answer_verbatim(want, Err(Unreadable::Refused(error.to_string())));
                return self.pump_verbatim(io);
            }
        };
        let is_short = bytes.len() < read.asked;
        read.found.extend_from_slice(&bytes);
        if read.at + (read.found.len() as u64) < read.until && !is_short {
            return self.ask_verbatim(key, io);
        }
        let found = Bytes::from(std::mem::take(&mut read.found));
        let parsed = self.parse_verbatim(key, &found);
        if let Parsed::More(until) = parsed
            && !is_short
        {
            let read = &mut self.verbatim.reads[key as usize];
            read.until = block_up(until).max(read.until + BLOCK as u64);
            read.found = found.into();
            return self.ask_verbatim(key, io);
        }
        let Read { want, .. } = self.verbatim.reads.remove(key as usize);
        let (p, offset) = (want.p, want.from.offset);
        let is_there = self.part(p).start.offset <= offset && self.part(p).cut.is_none();
        let damage = match parsed {
            Parsed::Run(run) => {
                self.answer_verbatim(want, Ok(run));
                None
            }
            Parsed::Damaged(bad @ Bad::Version(_)) if is_there => {
                self.answer_verbatim(want, Err(Unreadable::Refused(newer(bad))));
                None
            }
            Parsed::Damaged(bad) if is_there => Some(bad.to_string()),
            Parsed::More(_) if is_there => Some("the segment is shorter than its log".into()),
            Parsed::Damaged(_) | Parsed::More(_) | Parsed::Gone => {
                self.answer_verbatim(want, Err(Unreadable::Gone(offset)));
                None
            }
        };
        if let Some(what) = damage {
            self.answer_verbatim(want, Err(Unreadable::Damaged(offset)));
            if !self.searches_extent_of(p, offset) && self.part(p).lost_at(offset).is_none() {
                self.find_extent(now, p, offset, Purpose::Fetch, Finding::Damaged(what), io);
            }
        }
        self.pump_verbatim(io);
    }

    /// Verifies what was read, batch by batch.
    fn parse_verbatim(&self, key: u32, found: &Bytes) -> Parsed {
        let read = &self.verbatim.reads[key as usize];
        let (want, dir) = (&read.want, &self.part(read.want.p).dir);
        let (mut parts, mut end, mut len): (Vec<Bytes>, Position, usize) = (vec![], want.from, 0);
        let mut last: Option<BatchHeader> = None;
        // Where the run that is being gathered begins, and where the bytes behind it.
        let (mut run_from, mut run_to) = (0, 0);
        while end.offset < read.limit {
            let in_file = segment_at(read.base, end.offset);
            let from = (in_file - read.at) as usize;
            let bytes = found.slice(from.min(found.len())..);
            let header = BatchHeader::parse(&bytes, dir.topic_id, dir.partition);
            let is_first = last.is_none();
            let batch = match header {
                Err(Bad::Short) if is_first => return Parsed::More(in_file + BATCH_HEADER_LEN as u64),
                Err(bad) if is_first => return Parsed::Damaged(bad),
                Err(_) => break,
                Ok(h) if is_first && h.offset.get() != end.offset => return Parsed::Damaged(Bad::Foreign),
                Ok(h) if is_first && h.start() != end => return Parsed::Gone,
                Ok(h) if h.end().offset > read.limit && is_first => return Parsed::Damaged(Bad::Bounds),
                Ok(h) if !is_first && !follows(&h, last.as_ref(), read.limit) => break,
                Ok(h) if !is_first && len + h.len() > want.bytes_max => break,
                Ok(h) if !h.is_lost() && bytes.len() < h.len() => {
                    if is_first {
                        return Parsed::More(in_file + h.len() as u64);
                    }
                    break;
                }
                Ok(_) => Batch::parse(&bytes, dir.topic_id, dir.partition),
            };
            let batch = match batch {
                Ok(batch) => batch,
                Err(bad) if is_first => return Parsed::Damaged(bad),
                // Found again, as the first one, by whoever gets there.
                Err(_) => break,
            };
            if from != run_to {
                if run_to > run_from {
                    parts.push(found.slice(run_from..run_to));
                }
                run_from = from;
            }
            run_to = from + batch.bytes.len();
            len += batch.bytes.len();
            end = batch.header.end();
            last = Some(batch.header);
        }
        if run_to > run_from {
            parts.push(found.slice(run_from..run_to));
        }
        Parsed::Run((parts, end))
    }
}

/// A batch that goes on where the one before it ends. A lost one took the place of another after the fact.
fn follows(h: &BatchHeader, last: Option<&BatchHeader>, limit: i64) -> bool {
    let goes_on = |l: &BatchHeader| {
        let stands = l.is_lost() || h.is_lost() || l.epoch.get() <= h.epoch.get() && l.header_crc.get() == h.prev_crc.get();
        l.end() == h.start() && stands
    };
    last.is_none_or(goes_on) && h.end().offset <= limit
}
