//! The table in the first block of a segment and of its commit log: the segments before it, so that a startup reads one header
//! and not all of them.
//!
//! The table is a copy: the header of each segment has the same facts, and startup reads the header of a segment that no table names
//! ([`crate::log::recovery::headers`]). A table may name segments that retention has removed since: startup ignores these entries.

use crate::base::{BLOCK, PartitionId, Position, TopicId};
use crate::format::files::SegmentMeta;
use crate::format::files::{Bad, FileHeader, RawPosition};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const TABLE_MAGIC: [u8; 4] = *b"RQI1";

/// Byte at which the table begins: right behind the file header. It ends with the block.
pub const TABLE_AT: usize = size_of::<FileHeader>();

/// Number of segments that fit.
pub const TABLE_MAX: usize = (BLOCK - TABLE_AT - size_of::<TableHeader>()) / size_of::<TableEntry>();

/// Followed by `count` x [`TableEntry`], ascending; then zeros. The crc covers all behind it up to the block's end, and begins with
/// magic, topic id, partition and the base offset of the segment. 16 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct TableHeader {
    pub magic: [u8; 4],
    pub crc: U32,
    /// Number of segments, never zero: without segments to name there is no table.
    pub count: U32,
    pub reserved: U32,
}

/// A segment as its file header says. 28 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct TableEntry {
    pub base: RawPosition,
    pub prev_crc: U32,
}

const _: () = {
    assert!(size_of::<TableHeader>() == 16);
    assert!(size_of::<TableEntry>() == 28);
    assert!(TABLE_MAX == 142);
};

/// Segments before one, ascending: the newest of them, as many as fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentTable(Vec<SegmentMeta>);

impl SegmentTable {
    /// Table of the newest ones of `before`: all segments that there are, ascending.
    pub fn of(before: impl ExactSizeIterator<Item = SegmentMeta>) -> Self {
        let skipped = before.len().saturating_sub(TABLE_MAX);
        SegmentTable(before.skip(skipped).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn segments(&self) -> &[SegmentMeta] {
        &self.0
    }

    /// Whether the table names all segments that `other` names, and says the same of them.
    pub fn covers(&self, other: &SegmentTable) -> bool {
        let find = |m: &SegmentMeta| self.0.binary_search_by_key(&m.base.offset, |n| n.base.offset);
        other.0.iter().all(|m| find(m).is_ok_and(|i| self.0[i] == *m))
    }

    /// Puts it into the first block of a file of the segment at `base`.
    pub fn encode(&self, block: &mut [u8], topic_id: TopicId, partition: PartitionId, base: i64) {
        if self.0.is_empty() {
            return;
        }
        let space = &mut block[TABLE_AT..BLOCK];
        let mut header =
            TableHeader { magic: TABLE_MAGIC, crc: 0.into(), count: (self.0.len() as u32).into(), reserved: 0.into() };
        let mut at = size_of::<TableHeader>();
        for meta in &self.0 {
            let entry = TableEntry { base: meta.base.into(), prev_crc: meta.prev_crc.into() };
            space[at..at + size_of::<TableEntry>()].copy_from_slice(entry.as_bytes());
            at += size_of::<TableEntry>();
        }
        space[..size_of::<TableHeader>()].copy_from_slice(header.as_bytes());
        header.crc = crc_of(space, topic_id, partition, base).into();
        space[4..8].copy_from_slice(header.crc.as_bytes());
    }

    /// The table in the first block of a file of the segment at `base`. [`Bad::Zero`]: it has none.
    pub fn parse(block: &[u8], topic_id: TopicId, partition: PartitionId, base: i64) -> Result<Self, Bad> {
        let space = block.get(TABLE_AT..BLOCK).ok_or(Bad::Short)?;
        if space.iter().all(|&b| b == 0) {
            return Err(Bad::Zero);
        }
        let (header, entries) = TableHeader::read_from_prefix(space).map_err(|_| Bad::Short)?;
        if header.magic != TABLE_MAGIC {
            return Err(Bad::Magic);
        }
        if header.crc.get() != crc_of(space, topic_id, partition, base) {
            return Err(Bad::Crc);
        }
        let count = header.count.get() as usize;
        if !(1..=TABLE_MAX).contains(&count) {
            return Err(Bad::Bounds);
        }
        let entries = entries.chunks_exact(size_of::<TableEntry>()).take(count).map(TableEntry::read_from_bytes);
        let entries: Vec<TableEntry> = entries.collect::<Result<_, _>>().map_err(|_| Bad::Short)?;
        let metas = entries.iter().map(|e| SegmentMeta { base: Position::from(e.base), prev_crc: e.prev_crc.get() });
        let metas: Vec<SegmentMeta> = metas.collect();
        let ascends = metas.windows(2).all(|w| w[0].base.offset < w[1].base.offset);
        let is_before = metas.last().is_some_and(|m| m.base.offset < base);
        if !ascends || !is_before || !metas.iter().all(|m| m.base.is_sane()) {
            return Err(Bad::Bounds);
        }
        Ok(SegmentTable(metas))
    }
}

/// `space`: the block from [`TABLE_AT`] on.
pub fn crc_of(space: &[u8], topic_id: TopicId, partition: PartitionId, base: i64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&TABLE_MAGIC);
    crc.update(&topic_id.0);
    crc.update(&partition.0.to_le_bytes());
    crc.update(&base.to_le_bytes());
    crc.update(&space[8..]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use crate::base::{LogId, Rng};
    use crate::format::segment_table::*;

    const BASE: i64 = 1 << 50;

    fn metas(rng: &mut Rng, n: u64) -> Vec<SegmentMeta> {
        let mut offset = rng.below(1000) as i64;
        let mut next = || {
            offset += 1 + rng.below(1 << 30) as i64;
            let base = Position { offset, count: rng.below(1 << 40) as i64, log_id: LogId(1 + rng.below(1 << 50)) };
            SegmentMeta { base, prev_crc: rng.next_u64() as u32 }
        };
        (0..n).map(|_| next()).collect()
    }

    fn block(table: &SegmentTable) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..TABLE_AT].fill(0x77); // the header is not the table's
        table.encode(&mut block, TopicId([3; 16]), PartitionId(5), BASE);
        block
    }

    fn parse(block: &[u8]) -> Result<SegmentTable, Bad> {
        SegmentTable::parse(block, TopicId([3; 16]), PartitionId(5), BASE)
    }

    #[test]
    fn what_is_named_is_read_again_the_newest_where_not_all_fit() {
        let mut rng = Rng::new(1);
        for n in [1, 2, 141, 142, 143, 500] {
            let all = metas(&mut rng, n);
            let table = SegmentTable::of(all.iter().copied());
            assert_eq!(table.segments(), &all[all.len().saturating_sub(142)..]);
            let block = block(&table);
            assert!(block[..TABLE_AT].iter().all(|&b| b == 0x77));
            assert_eq!(parse(&block), Ok(table));
        }
        assert_eq!(parse(&block(&SegmentTable::default())), Err(Bad::Zero), "nothing to name, no table");
        assert_eq!(parse(&[0; 100]), Err(Bad::Short));
    }

    #[test]
    fn no_changed_byte_and_no_other_place_is_taken() {
        let mut rng = Rng::new(2);
        let table = SegmentTable::of(metas(&mut rng, 20).into_iter());
        let whole = block(&table);
        for at in TABLE_AT..BLOCK {
            for bit in 0..8 {
                let mut rotten = whole.clone();
                rotten[at] ^= 1 << bit;
                assert!(parse(&rotten).is_err(), "bit {bit} of byte {at}");
            }
        }
        let (id, partition) = (TopicId([3; 16]), PartitionId(5));
        assert!(SegmentTable::parse(&whole, TopicId([4; 16]), partition, BASE).is_err());
        assert!(SegmentTable::parse(&whole, id, PartitionId(6), BASE).is_err());
        assert!(SegmentTable::parse(&whole, id, partition, BASE + 1).is_err());
        // A torn write: the first sectors are new, the others old.
        for sectors in 1..BLOCK / 512 {
            let mut torn = whole.clone();
            torn[sectors * 512..].fill(0);
            let is_complete = torn == whole;
            assert_eq!(parse(&torn).is_ok(), is_complete, "{sectors} sectors");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_whatever_its_checksum() {
        let mut rng = Rng::new(3);
        let good = metas(&mut rng, 3);
        let refused = |metas: Vec<SegmentMeta>| parse(&block(&SegmentTable(metas)));
        assert_eq!(refused(vec![good[1], good[0]]), Err(Bad::Bounds));
        assert_eq!(refused(vec![good[0], good[0]]), Err(Bad::Bounds));
        let mut behind = good[2];
        behind.base.offset = BASE;
        assert_eq!(refused(vec![good[0], behind]), Err(Bad::Bounds));
        let mut insane = good[0];
        insane.base.log_id = LogId(0);
        assert_eq!(refused(vec![insane]), Err(Bad::Bounds));
        for count in [0u32, 143, u32::MAX] {
            let mut block = block(&SegmentTable(good.clone()));
            block[TABLE_AT + 8..TABLE_AT + 12].copy_from_slice(&count.to_le_bytes());
            let crc = crc_of(&block[TABLE_AT..], TopicId([3; 16]), PartitionId(5), BASE);
            block[TABLE_AT + 4..TABLE_AT + 8].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(parse(&block), Err(Bad::Bounds), "{count}");
        }
    }

    #[test]
    fn a_table_covers_one_that_names_less_and_the_same() {
        let mut rng = Rng::new(4);
        let all = metas(&mut rng, 10);
        let whole = SegmentTable::of(all.iter().copied());
        assert!(whole.covers(&whole) && whole.covers(&SegmentTable::of(all[3..].iter().copied())));
        assert!(whole.covers(&SegmentTable::default()) && !SegmentTable::default().covers(&whole));
        let mut other = all[4..].to_vec();
        other[2].prev_crc ^= 1;
        assert!(!whole.covers(&SegmentTable(other)));
    }
}
