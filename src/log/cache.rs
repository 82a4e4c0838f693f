//! The read cache of a core: verified runs of batches that were read from segments, shared by all channels, bounded in
//! bytes, least recently used first out. Holds nothing that was not verified.

use super::batch::Batch;
use super::notice::PartitionIdx;
use crate::base::IdMap;
use slab::Slab;

const NONE: u32 = u32::MAX;

/// Batches that one read brought, contiguous.
struct Run {
    p: PartitionIdx,
    batches: Vec<Batch>,
    /// Of the buffer they share.
    bytes: usize,
    newer: u32,
    older: u32,
}

pub struct ReadCache {
    bytes_max: usize,
    bytes: usize,
    runs: Slab<Run>,
    /// By partition and batch offset: run and place in it.
    index: IdMap<(u32, i64), (u32, u32)>,
    newest: u32,
    oldest: u32,
}

/// A cached batch.
pub struct Hit {
    pub batch: Batch,
    /// Where what follows its run begins.
    pub run_end: i64,
}

impl ReadCache {
    pub fn new(bytes_max: usize) -> Self {
        ReadCache { bytes_max, bytes: 0, runs: Slab::new(), index: IdMap::default(), newest: NONE, oldest: NONE }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn contains(&self, p: PartitionIdx, offset: i64) -> bool {
        self.index.contains_key(&(p.0, offset))
    }

    /// Where the run that holds the batch at `offset` ends.
    pub fn run_end(&self, p: PartitionIdx, offset: i64) -> Option<i64> {
        let &(key, _) = self.index.get(&(p.0, offset))?;
        self.runs[key as usize].batches.last().map(|last| last.header.end().offset)
    }

    pub fn get(&mut self, p: PartitionIdx, offset: i64) -> Option<Hit> {
        let &(key, place) = self.index.get(&(p.0, offset))?;
        if self.newest != key {
            self.unlink(key);
            self.link(key);
        }
        let run = &self.runs[key as usize];
        let last = run.batches.last().expect("a run has a batch");
        Some(Hit { batch: run.batches[place as usize].clone(), run_end: last.header.end().offset })
    }

    /// Keeps the run that was just read, whatever its size, and drops the least recently used ones over the bound.
    pub fn insert(&mut self, p: PartitionIdx, batches: Vec<Batch>, bytes: usize) {
        assert!(!batches.is_empty());
        let key = self.runs.insert(Run { p, batches, bytes, newer: NONE, older: NONE }) as u32;
        for (place, batch) in self.runs[key as usize].batches.iter().enumerate() {
            self.index.insert((p.0, batch.header.offset.get()), (key, place as u32));
        }
        self.bytes += bytes;
        self.link(key);
        while self.bytes > self.bytes_max && self.oldest != key {
            self.remove(self.oldest);
        }
    }

    fn remove(&mut self, key: u32) {
        self.unlink(key);
        let run = self.runs.remove(key as usize);
        self.bytes -= run.bytes;
        for batch in &run.batches {
            let at = (run.p.0, batch.header.offset.get());
            if self.index.get(&at).is_some_and(|i| i.0 == key) {
                self.index.remove(&at);
            }
        }
    }

    fn link(&mut self, key: u32) {
        let older = std::mem::replace(&mut self.newest, key);
        (self.runs[key as usize].older, self.runs[key as usize].newer) = (older, NONE);
        match self.runs.get_mut(older as usize) {
            Some(run) => run.newer = key,
            None => self.oldest = key,
        }
    }

    fn unlink(&mut self, key: u32) {
        let (newer, older) = (self.runs[key as usize].newer, self.runs[key as usize].older);
        match self.runs.get_mut(newer as usize) {
            Some(run) => run.older = older,
            None => self.newest = older,
        }
        match self.runs.get_mut(older as usize) {
            Some(run) => run.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, PartitionId, Position, TopicId};
    use crate::log::batch::{BatchBuilder, Stamp};

    fn batch(n: i64) -> Batch {
        let at = Position { offset: n * 1000, count: n, log_id: crate::base::LogId(n as u64 + 1) };
        let mut b = BatchBuilder::default();
        b.push(1, &[0; 1000 - 140]);
        b.seal(Stamp { topic_id: TopicId([1; 16]), partition: PartitionId(0), epoch: Epoch(1), at, prev_crc: 0 })
    }

    #[test]
    fn the_least_recently_used_run_goes_first() {
        let mut cache = ReadCache::new(3000);
        let p = PartitionIdx(7);
        for n in 0..3 {
            cache.insert(p, vec![batch(n)], 1000);
        }
        assert!(cache.get(p, 0).is_some());
        cache.insert(p, vec![batch(3)], 1000);
        assert!(cache.contains(p, 0) && !cache.contains(p, 1000) && cache.contains(p, 2000));
        assert!(!cache.contains(PartitionIdx(8), 0));
        cache.insert(p, vec![batch(4), batch(5)], 9000);
        assert_eq!(cache.bytes(), 9000, "what was just read stays, alone");
        assert!(cache.get(p, 5000).is_some_and(|h| h.run_end == 6000));
        assert_eq!((cache.run_end(p, 4000), cache.run_end(p, 6000)), (Some(6000), None));
        // The same place read twice: dropping the old run must not hide the new one.
        cache.insert(p, vec![batch(5)], 1000);
        cache.insert(p, vec![batch(6)], 1000);
        assert!(cache.contains(p, 5000) && !cache.contains(p, 4000));
        assert_eq!((cache.runs.len(), cache.index.len()), (2, 2));
    }
}
