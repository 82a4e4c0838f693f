//! The segments of a partition: ascending, contiguous, never none. The last one takes new batches.

use super::progress::Mark;
use crate::format::files::SegmentMeta;
use crate::format::segment_table::SegmentTable;
use std::collections::VecDeque;

/// A segment and its commit log.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub meta: SegmentMeta,
    /// Base timestamp of its newest batch; `None` while unknown: an earlier process closed the segment, and no search has run yet.
    pub last_unix_ns: Option<i64>,
}

impl Segment {
    fn new(meta: SegmentMeta) -> Self {
        Segment { meta, last_unix_ns: None }
    }

    /// Offset of its first batch, which names its files.
    pub fn base(&self) -> i64 {
        self.meta.base.offset
    }
}

#[derive(Debug)]
pub struct Segments {
    list: VecDeque<Segment>,
    /// Batches of the last segment.
    batches: u64,
}

impl Segments {
    /// `batches` stand in the last one.
    pub fn new(metas: &[SegmentMeta], batches: u64) -> Self {
        assert!(!metas.is_empty(), "a partition has a segment");
        Segments { list: metas.iter().copied().map(Segment::new).collect(), batches }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn get(&self, index: usize) -> Option<&Segment> {
        self.list.get(index)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Segment> + '_ {
        self.list.iter()
    }

    pub fn first(&self) -> &Segment {
        self.list.front().expect("a partition has a segment")
    }

    /// The one that takes new batches.
    pub fn active(&self) -> &Segment {
        self.list.back().expect("a partition has a segment")
    }

    /// Batches of the active segment.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// The segment that holds `offset`, with its index. The first one for anything below.
    pub fn holding(&self, offset: i64) -> (usize, &Segment) {
        self.last_where(|meta| meta.base.offset <= offset)
    }

    /// The last segment of which this holds, with its index; it holds of those before that. The first one when it holds of none.
    pub fn last_where(&self, is_before: impl Fn(&SegmentMeta) -> bool) -> (usize, &Segment) {
        let index = self.list.partition_point(|s| is_before(&s.meta)).saturating_sub(1);
        (index, &self.list[index])
    }

    /// Start of the segment after the one of this index; i64::MAX without one.
    pub fn border(&self, index: usize) -> i64 {
        self.get(index + 1).map_or(i64::MAX, Segment::base)
    }

    /// The segment that begins at `base`, with its index.
    pub fn at_base(&self, base: i64) -> Option<(usize, &Segment)> {
        Some(self.holding(base)).filter(|(_, s)| s.base() == base)
    }

    /// The first segment that begins behind `base`.
    pub fn behind(&self, base: i64) -> Option<&Segment> {
        self.list.iter().find(|s| s.base() > base)
    }

    /// The segments before the one of this index.
    pub fn table_of(&self, index: usize) -> SegmentTable {
        SegmentTable::of(self.list.range(..index).map(|s| s.meta))
    }

    /// A batch was sealed behind the last one.
    pub fn count_batch(&mut self) {
        self.batches += 1;
    }

    /// Begins a new segment at the log's end; `last_unix_ns` is of the batch before that.
    pub fn roll(&mut self, end: Mark, last_unix_ns: Option<i64>) {
        let active = self.list.back_mut().expect("a partition has a segment");
        assert!(active.base() < end.at.offset, "a segment that is closed has a batch");
        active.last_unix_ns = last_unix_ns;
        self.list.push_back(Segment::new(SegmentMeta { base: end.at, prev_crc: end.chain_crc }));
        self.batches = 0;
    }

    /// Sets the time of a closed segment's newest batch.
    pub fn learn_age(&mut self, base: i64, unix_ns: i64) {
        if let Some(segment) = self.list.iter_mut().find(|s| s.base() == base) {
            segment.last_unix_ns = Some(unix_ns);
        }
    }

    /// Takes the oldest ones away. Their bases.
    pub fn remove_first(&mut self, count: usize) -> Vec<i64> {
        assert!(count < self.list.len(), "the active segment stays");
        self.list.drain(..count).map(|s| s.base()).collect()
    }

    /// The segment of this index takes new batches again, behind so many.
    pub fn truncate(&mut self, index: usize, batches: u64) {
        assert!(index < self.list.len(), "a partition has a segment");
        self.list.truncate(index + 1);
        self.list[index].last_unix_ns = None;
        self.batches = batches;
    }

    /// A single, empty segment is left.
    pub fn restart(&mut self, meta: SegmentMeta) {
        self.list.clear();
        self.list.push_back(Segment::new(meta));
        self.batches = 0;
    }
}
