//! Reads of batches as stored, for a replica that catches up: past the read cache, in memory of their own, verified like all reads.
//!
//! Reads wait in one line per core. Reads under way take at most [`SHARE`] of memory, beside first batches that are longer than
//! requested. Handed-out runs belong to the reader. A reader asks for one run at a time.
//!
//! **Read ahead.** A read whose run was handed out stays, with its bytes behind the run. A reader that continues there gets them, and
//! from then on the disk is [`AHEAD`] bytes ahead of the reader, as far as there is memory. Unused bytes are dropped when their memory
//! is needed, and when the files change: at a truncation, and after a repair. A read never reaches beyond the part that was written when
//! it began, so no block of it is written again otherwise.
//!
//! ```text
//! segment   ....|== piece ==|== piece ==|== piece ==|--------|....
//!                   ^next       run ...     ^ahead           ^limit
//! ```
//! Only a batch that lies in two pieces is copied ([`super::pieces`]).

use super::chain::{Chain, ChainStop, Walk};
use super::core_logs::{Op, Shared};
use super::notice::{Notice, PartitionIdx};
use super::partition::PartitionLog;
use super::pieces::{Parts, Pieces, PiecesEnd};
use super::read::newer;
use super::recovery::scan::segment_at;
use super::view::View;
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, FileId, IO_BYTES_MAX, PartitionDir, Position, block_down, block_up};
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::files::Bad;
use bytes::Bytes;
use slab::Slab;
use std::collections::VecDeque;

/// Bytes of reads under way, and of bytes read ahead, at most.
const SHARE: usize = 4 * 1024 * 1024;

/// Read beyond the run that is wanted.
const AHEAD: u64 = 1024 * 1024;

/// Reason why a run cannot be handed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("no stored batch begins at offset {0}: retention or a truncation removed it")]
    Gone(i64),
    #[error("the bytes at offset {0} fail their checks")]
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
    p: PartitionIdx,
    /// Reader that waits for the run that begins at `next`. `None`: the bytes wait for a reader.
    want: Option<Want>,
    next: Position,
    base: i64,
    /// End of the segment's written part when the read began.
    limit: i64,
    /// The first piece holds `next`.
    pieces: Pieces,
    /// The reader went on with the run: the disk reads ahead.
    is_sequential: bool,
    /// True if no reader can continue it: the read is dropped when no operation of it is under way.
    is_over: bool,
}

impl Read {
    fn bytes(&self) -> usize {
        self.pieces.len()
    }

    /// Position in the file up to which reads were issued.
    fn asked_until(&self) -> u64 {
        self.pieces.end().unwrap_or(block_down(segment_at(self.base, self.next.offset)))
    }

    /// Position in the file up to which this read needs it.
    fn wanted(&self, want: &Want) -> u64 {
        block_up(segment_at(self.base, want.from.offset) + want.bytes_max as u64)
    }

    /// Bytes of that which were not asked for, and are there.
    fn missing(&self, want: &Want) -> usize {
        let until = self.wanted(want).min(block_up(segment_at(self.base, self.limit)));
        until.saturating_sub(self.asked_until()) as usize
    }

    fn is_idle(&self) -> bool {
        self.want.is_none() && !self.pieces.is_under_way()
    }

    /// Drops the pieces before `next`. (Behind a lost batch `next` may lie behind the operations under way.)
    fn drop_before_next(&mut self) {
        self.pieces.drop_before(segment_at(self.base, self.next.offset));
    }
}

/// Outcome of the bytes that were read.
enum Parsed {
    Run(Run),
    /// The first batch goes on up to this file position.
    More(u64),
    Gone,
    Damaged(Bad),
}

#[derive(Default)]
pub struct Verbatim {
    waiting: VecDeque<Want>,
    reads: Slab<Read>,
    /// The store stops: no read begins.
    is_stopping: bool,
}

/// A batch that was read and does not hold.
pub(super) struct Damaged {
    pub p: PartitionIdx,
    pub offset: i64,
    pub what: String,
    /// Reads that wait are looked at next.
    pub pumps: bool,
}

/// Next step of the store.
pub(super) enum Next {
    Done,
    /// Reads that wait may begin: [`Verbatim::pump`].
    Pump,
    /// The end of the damaged batch is to be found.
    Search(Damaged),
}

impl Next {
    fn and_pump(self) -> Next {
        match self {
            Next::Done | Next::Pump => Next::Pump,
            Next::Search(damaged) => Next::Search(Damaged { pumps: true, ..damaged }),
        }
    }
}

impl Verbatim {
    /// No further read begins.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// True if a reader waits for a read of the partition, or an operation is under way.
    pub fn reads(&self, p: PartitionIdx) -> bool {
        self.reads.iter().any(|(_, r)| r.p == p && !r.is_idle())
    }

    /// Forgets a partition that is not read any more.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.waiting.retain(|w| w.p != p);
        self.drop_ahead(p);
    }

    /// Drops the partition's bytes that were read ahead: the file may change soon.
    pub fn drop_ahead(&mut self, p: PartitionIdx) {
        self.reads.retain(|_, r| {
            r.is_over |= r.p == p;
            !(r.is_over && r.is_idle())
        });
    }

    pub fn bytes(&self) -> usize {
        self.reads.iter().map(|(_, r)| r.bytes()).sum()
    }

    /// The read whose run ended where this one begins.
    fn ahead_of(&self, want: &Want) -> Option<u32> {
        let goes_on = |r: &Read| r.p == want.p && r.next == want.from && r.want.is_none() && !r.is_over;
        self.reads.iter().find(|(_, r)| goes_on(r)).map(|(key, _)| key as u32)
    }

    /// Makes room for `bytes` by dropping reads without a waiting reader, except `kept`. True if there is room.
    fn makes_room(&mut self, bytes: usize, kept: Option<u32>) -> bool {
        while self.bytes() + bytes > SHARE {
            let is_spare = |(key, r): &(usize, &Read)| r.is_idle() && Some(*key as u32) != kept;
            let Some(idle) = self.reads.iter().find(is_spare).map(|(key, _)| key) else {
                return self.reads.len() == kept.is_some() as usize;
            };
            self.reads.remove(idle);
        }
        true
    }

    // ---- reads

    /// Reads batches verbatim for the caller of this token. [`Notice::Verbatim`] answers.
    pub(super) fn read(
        &mut self,
        p: PartitionIdx,
        token: u64,
        from: Position,
        bytes_max: usize,
        shared: &mut Shared<'_>,
    ) -> Next {
        let want = Want { p, token, from, bytes_max: bytes_max.clamp(1, SHARE) };
        let log = shared.log(p);
        let durable = View::new(log).durable().at;
        let answer = if from == durable {
            Some(Ok((vec![], from)))
        } else if !(log.start().offset..durable.offset).contains(&from.offset) {
            Some(Err(Unreadable::Gone(from.offset)))
        } else if log.damage.lost_at(from.offset).is_some() {
            Some(Err(Unreadable::Damaged(from.offset)))
        } else {
            run_in_memory(log, want, durable).map(Ok)
        };
        if let Some(answer) = answer {
            answer_to(want, answer, shared.notices);
            return Next::Done;
        }
        let ahead = self.ahead_of(&want);
        if let Some(key) = ahead.filter(|key| self.reads[*key as usize].missing(&want) == 0) {
            return self.take_on(key, want, shared);
        }
        self.waiting.push_back(want);
        Next::Pump
    }

    fn take_on(&mut self, key: u32, want: Want, shared: &mut Shared<'_>) -> Next {
        let read = &mut self.reads[key as usize];
        (read.want, read.is_sequential) = (Some(want), true);
        self.go_on(key, shared)
    }

    /// Begins the next read that there is room for. [`Next::Done`]: there is none.
    pub(super) fn pump(&mut self, shared: &mut Shared<'_>) -> Next {
        let Some(&want) = self.waiting.front() else { return Next::Done };
        let ahead = self.ahead_of(&want);
        let missing = ahead.map_or(want.bytes_max + 2 * BLOCK, |key| self.reads[key as usize].missing(&want));
        if self.is_stopping || !self.makes_room(missing, ahead) {
            return Next::Done;
        }
        self.waiting.pop_front();
        if let Some(key) = ahead {
            return self.take_on(key, want, shared).and_pump();
        }
        let (p, next, offset) = (want.p, want.from, want.from.offset);
        let log = shared.log(p);
        let Some(limit) = log.readable_limit(offset) else {
            // It left the memory, or a truncation is under way.
            answer_to(want, Err(Unreadable::Gone(offset)), shared.notices);
            return Next::Pump;
        };
        let base = log.segments.holding(offset).1.base();
        let pieces = Pieces::default();
        let read = Read { p, want: Some(want), next, base, limit, pieces, is_sequential: false, is_over: false };
        let key = self.reads.insert(read) as u32;
        self.go_on(key, shared).and_pump()
    }

    /// Asks for the file up to `until`, or its written part's end.
    fn ask(&mut self, key: u32, until: u64, shared: &mut Shared<'_>) {
        let read = &mut self.reads[key as usize];
        let until = until.min(block_up(segment_at(read.base, read.limit)));
        loop {
            let at = read.asked_until();
            if at >= until {
                return;
            }
            let len = (until - at).min(IO_BYTES_MAX as u64) as usize;
            read.pieces.ask(at, len);
            let file = FileId::Segment(shared.log(read.p).dir.clone(), read.base);
            shared.issue(DiskOp::Read { file, at, len }, Op::Verbatim(key, at));
        }
    }

    /// An operation has ended.
    pub(super) fn done(&mut self, key: u32, at: u64, outcome: Result<DiskDone, DiskError>, shared: &mut Shared<'_>) -> Next {
        self.reads[key as usize].pieces.answer(at, outcome);
        self.go_on(key, shared).and_pump()
    }

    /// Issues reads for the missing bytes; answers the waiting reader when the run is there.
    fn go_on(&mut self, key: u32, shared: &mut Shared<'_>) -> Next {
        let read = &mut self.reads[key as usize];
        let Some(want) = read.want else {
            if read.is_over && !read.pieces.is_under_way() {
                self.reads.remove(key as usize);
            }
            return Next::Done;
        };
        let wanted = read.wanted(&want);
        self.ask(key, wanted, shared);
        self.read_ahead(key, wanted, shared);
        let read = &self.reads[key as usize];
        let (known, end) = read.pieces.known_until();
        if end.is_none() && known < wanted.min(block_up(segment_at(read.base, read.limit))) {
            return Next::Done;
        }
        let parsed = parse(read, want, &shared.log(read.p).dir);
        if let Parsed::More(until) = parsed
            && end.is_none()
        {
            self.ask(key, block_up(until), shared);
            if self.reads[key as usize].pieces.is_under_way() {
                return Next::Done;
            }
        }
        let (p, offset) = (want.p, want.from.offset);
        let log = shared.log(p);
        let is_steady = log.truncation.is_none() && !log.is_mending();
        let is_stored = log.start().offset <= offset && log.truncation.is_none();
        let read = &mut self.reads[key as usize];
        // The file may have changed behind a read that is over: its findings do not hold any more.
        let is_there = is_stored && !read.is_over;
        read.want = None;
        read.is_over |= !matches!(parsed, Parsed::Run(_)) || !is_steady;
        let mut damage = None;
        let answer = match (parsed, end) {
            (Parsed::Run(run), _) => {
                read.next = run.1;
                read.drop_before_next();
                read.is_over |= read.next.offset >= read.limit;
                Ok(run)
            }
            (Parsed::More(_), Some(PiecesEnd::Refused(error))) => Err(Unreadable::Refused(error)),
            (Parsed::Damaged(bad @ Bad::Version(_)), _) if is_there => Err(Unreadable::Refused(newer(bad))),
            (Parsed::Damaged(bad), _) if is_there => {
                damage = Some(bad.to_string());
                Err(Unreadable::Damaged(offset))
            }
            (Parsed::More(_), _) if is_there => {
                damage = Some("the segment is shorter than its log".into());
                Err(Unreadable::Damaged(offset))
            }
            (Parsed::Damaged(_) | Parsed::More(_) | Parsed::Gone, _) => Err(Unreadable::Gone(offset)),
        };
        if read.is_over && !read.pieces.is_under_way() {
            self.reads.remove(key as usize);
        }
        answer_to(want, answer, shared.notices);
        damage.map_or(Next::Done, |what| Next::Search(Damaged { p, offset, what, pumps: false }))
    }

    /// Reads ahead of the run, so that the disk goes on while the run is on its way, and after it.
    fn read_ahead(&mut self, key: u32, wanted: u64, shared: &mut Shared<'_>) {
        let read = &self.reads[key as usize];
        // whole operations only, as long as there can be one
        let more = (wanted + AHEAD).saturating_sub(read.asked_until()) / IO_BYTES_MAX as u64 * IO_BYTES_MAX as u64;
        let has_room = self.waiting.is_empty() && self.bytes() + more as usize <= SHARE;
        if read.is_sequential && has_room && !self.is_stopping {
            let until = read.asked_until() + more;
            self.ask(key, until, shared);
        }
    }
}

fn answer_to(want: Want, result: Result<Run, Unreadable>, notices: &mut Vec<Notice>) {
    notices.push(Notice::Verbatim { p: want.p, token: want.token, result });
}

/// Batches from the wanted one on, if it is in memory.
fn run_in_memory(log: &PartitionLog, want: Want, durable: Position) -> Option<Run> {
    let (number, _) = View::new(log).batch_at(want.from.offset)?;
    let (mut parts, mut end, mut len) = (vec![], want.from, 0);
    for r in log.batches.from(number) {
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

/// Verifies the read bytes, batch by batch.
fn parse(read: &Read, want: Want, dir: &PartitionDir) -> Parsed {
    let (mut parts, mut end) = (Parts::default(), want.from);
    // A replica that lost the batch may know no more than its offset.
    let mut walk = Walk::new(dir, end.offset, read.limit, Chain::default());
    while !walk.is_over() {
        let in_file = segment_at(read.base, end.offset);
        let header = walk.header(&read.pieces.bytes_at(in_file, BATCH_HEADER_LEN).0);
        if !parts.is_empty() && header.is_ok_and(|h| parts.len() + h.len() > want.bytes_max) {
            break;
        }
        let taken = header.and_then(|h| {
            let (bytes, slice) = read.pieces.bytes_at(in_file, h.stored_len());
            Ok((walk.batch(&bytes)?.verify().map_err(ChainStop::Bad)?, slice))
        });
        match taken {
            Ok((batch, slice)) => {
                end = batch.header.end();
                walk.pass(&batch.header);
                parts.push(&read.pieces, batch.bytes, slice);
            }
            // The next reader finds it again, as its first batch.
            Err(_) if !parts.is_empty() => break,
            Err(ChainStop::More(len)) => return Parsed::More(in_file + len as u64),
            Err(ChainStop::Breaks(Bad::Chain)) => return Parsed::Gone,
            Err(ChainStop::Bad(bad) | ChainStop::Breaks(bad)) => return Parsed::Damaged(bad),
        }
    }
    Parsed::Run((parts.finish(&read.pieces), end))
}
