//! The one rule that stored batches are held to: each goes on where the one before it ends, names that one's header crc, and bears no
//! lower epoch (rule 6). [`Walk`] holds them to it for readers, for copies to a follower, for a truncation that looks for its place, for
//! recovery and for `ringmq inspect`.
//!
//! A lost batch took the place of others after the fact: its crc and epoch are not those that stood there. So behind one the chain
//! begins anew. Recovery, which wrote it, holds a lost batch itself to the chain; a reader only to its place.

use crate::base::{PartitionDir, Position};
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader, FoundBatch};
use crate::format::files::Bad;
use bytes::Bytes;

/// End of a log that its next batch has to continue, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain {
    /// Position at which the next batch begins.
    pub at: Option<Position>,
    /// Header crc of the batch before it.
    pub crc: Option<u32>,
    /// Epoch of the batch before it; zero: unknown.
    pub epoch: u64,
}

impl Chain {
    /// The chain behind this batch.
    pub fn behind(h: &BatchHeader) -> Chain {
        match h.is_lost() {
            true => Chain { at: Some(h.end()), ..Chain::default() },
            false => Chain { at: Some(h.end()), crc: Some(h.header_crc.get()), epoch: h.epoch.get() },
        }
    }

    /// True if a batch continues the log, by its writer's rule.
    pub fn is_continued_by(&self, h: &BatchHeader) -> bool {
        self.is_place_of(h) && self.crc.is_none_or(|crc| crc == h.prev_crc.get()) && h.epoch.get() >= self.epoch
    }

    /// Whether a reader may go on with a batch.
    pub fn is_read_on_by(&self, h: &BatchHeader) -> bool {
        if h.is_lost() { self.is_place_of(h) } else { self.is_continued_by(h) }
    }

    fn is_place_of(&self, h: &BatchHeader) -> bool {
        self.at.is_none_or(|at| at == h.start())
    }
}

/// Walk over the batches of a segment, used by every reader of segments: bytes in; a batch, a need of more bytes, or damage out.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'a> {
    dir: &'a PartitionDir,
    /// Offset of the next batch.
    offset: i64,
    /// End of the segment's written part.
    limit: i64,
    chain: Chain,
}

/// Reason why no batch is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainStop {
    /// Bytes that are needed, from the start of the batch on.
    More(usize),
    /// No batch of the partition is at this place.
    Bad(Bad),
    /// The batch is the partition's, and does not belong at this place.
    Breaks(Bad),
}

impl<'a> Walk<'a> {
    pub fn new(dir: &'a PartitionDir, offset: i64, limit: i64, chain: Chain) -> Walk<'a> {
        Walk { dir, offset, limit, chain }
    }

    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// True if there is no further batch.
    pub fn is_over(&self) -> bool {
        self.offset >= self.limit
    }

    /// The header of the next batch. `bytes` begin at [`Walk::offset`].
    pub fn header(&self, bytes: &[u8]) -> Result<BatchHeader, ChainStop> {
        let h = match BatchHeader::parse(bytes, self.dir.topic_id, self.dir.partition) {
            Ok(h) => h,
            Err(Bad::Short) => return Err(ChainStop::More(BATCH_HEADER_LEN)),
            Err(bad) => return Err(ChainStop::Bad(bad)),
        };
        match self.check(&h) {
            Ok(()) => Ok(h),
            Err(bad) => Err(ChainStop::Breaks(bad)),
        }
    }

    /// The next batch, whose body is not verified. `bytes` begin at [`Walk::offset`].
    pub fn batch(&self, bytes: &Bytes) -> Result<FoundBatch, ChainStop> {
        let header = self.header(bytes)?;
        FoundBatch::of(header, bytes).ok_or(ChainStop::More(header.stored_len()))
    }

    /// Whether the batch that stands at [`Walk::offset`] belongs there.
    fn check(&self, h: &BatchHeader) -> Result<(), Bad> {
        if h.offset.get() != self.offset {
            return Err(Bad::Foreign);
        }
        if !self.chain.is_read_on_by(h) {
            return Err(Bad::Chain);
        }
        if h.end().offset > self.limit {
            return Err(Bad::Bounds);
        }
        Ok(())
    }

    /// Goes on behind a batch.
    pub fn pass(&mut self, h: &BatchHeader) {
        (self.offset, self.chain) = (h.end().offset, Chain::behind(h));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, LogId, PartitionId, TopicId, TopicName};
    use crate::format::batch::{Batch, BatchBuilder, Stamp};

    fn dir(partition: u16) -> PartitionDir {
        let topic = TopicName::new("t").expect("a valid name");
        PartitionDir { topic, topic_id: TopicId::default(), partition: PartitionId(partition) }
    }

    fn sealed(at: Position, epoch: u64, prev_crc: u32) -> Batch {
        let mut builder = BatchBuilder::default();
        builder.push(7, b"body");
        let (topic_id, partition) = (TopicId::default(), PartitionId::default());
        builder.seal(Stamp { topic_id, partition, epoch: Epoch(epoch), at, prev_crc })
    }

    fn batch(at: Position, epoch: u64, prev_crc: u32) -> BatchHeader {
        sealed(at, epoch, prev_crc).header
    }

    #[test]
    fn a_batch_is_held_to_the_one_before_it() {
        let first = batch(Position::START, 3, 0);
        let (end, crc) = (first.end(), first.header_crc.get());
        let dir = dir(0);
        let mut walk = Walk::new(&dir, 0, 10_000, Chain { crc: Some(0), ..Chain::default() });
        assert_eq!(walk.check(&first), Ok(()));
        assert_eq!(
            walk.check(&batch(Position::START, 3, 9)),
            Err(Bad::Chain),
            "the header of the segment says what is before it"
        );
        walk.pass(&first);
        assert_eq!((walk.offset(), walk.check(&batch(end, 3, crc))), (end.offset, Ok(())));
        assert_eq!(walk.check(&batch(end, 4, crc)), Ok(()));
        assert_eq!(walk.check(&batch(end, 2, crc)), Err(Bad::Chain), "epochs never fall");
        assert_eq!(walk.check(&batch(end, 3, crc ^ 1)), Err(Bad::Chain));
        assert_eq!(walk.check(&batch(Position { count: end.count + 1, ..end }, 3, crc)), Err(Bad::Chain));
        assert_eq!(walk.check(&first), Err(Bad::Foreign));
        assert_eq!(Walk { limit: end.offset + 1, ..walk }.check(&batch(end, 3, crc)), Err(Bad::Bounds));
        assert!(!walk.is_over() && Walk { limit: end.offset, ..walk }.is_over());
    }

    #[test]
    fn bytes_give_a_batch_or_a_need_of_more_or_damage() {
        let (dir, other, first) = (dir(0), dir(9), sealed(Position::START, 3, 0));
        let (bytes, len) = (first.bytes.clone(), first.bytes.len());
        let walk = Walk::new(&dir, 0, len as i64, Chain::default());
        let found = |len: usize| walk.batch(&bytes.slice(..len)).map(|found| found.verify().map(|batch| batch.bytes));
        assert_eq!(found(len), Ok(Ok(bytes.clone())));
        assert_eq!(found(BATCH_HEADER_LEN - 1), Err(ChainStop::More(BATCH_HEADER_LEN)));
        assert_eq!(found(len - 1), Err(ChainStop::More(len)));
        assert_eq!(walk.header(&bytes[..BATCH_HEADER_LEN]), Ok(first.header), "a header needs no body");
        assert_eq!(walk.header(&[0; BATCH_HEADER_LEN]), Err(ChainStop::Bad(Bad::Zero)));
        assert_eq!(Walk { offset: 1, ..walk }.header(&bytes), Err(ChainStop::Breaks(Bad::Foreign)));
        assert_eq!(Walk { dir: &other, ..walk }.header(&bytes), Err(ChainStop::Bad(Bad::Foreign)));
    }

    #[test]
    fn the_chain_begins_anew_behind_a_lost_batch() {
        let first = batch(Position::START, 3, 0);
        let end = first.end();
        let to = Position { offset: end.offset + 500, count: end.count + 2, log_id: LogId(end.log_id.0 + 2) };
        let lost = Batch::lost(TopicId::default(), PartitionId::default(), Epoch(1), end, to, 9).expect("there is room").header;
        let chain = Chain::behind(&first);
        assert!(chain.is_read_on_by(&lost) && !chain.is_continued_by(&lost));
        let chain = Chain::behind(&lost);
        assert!(chain.is_read_on_by(&batch(to, 1, 77)) && chain.is_continued_by(&batch(to, 1, 77)));
        assert!(!chain.is_read_on_by(&batch(end, 1, 77)));
    }
}
