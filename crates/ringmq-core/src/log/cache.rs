//! The read cache of a core: runs of batches that were read from segments, shared by all channels, bounded in bytes, least recently
//! used first out. Hands out nothing that was not verified: a body is when it is first asked for, so that the CPU has
//! its bytes at hand when they are sent.

use super::hold::PROBE_ROOM;
use super::lend::Lender;
use super::notice::PartitionIdx;
use crate::base::{IdMap, READ_BYTES_MAX, block_down, read_memory};
use crate::format::batch::{Batch, BatchHeader, FoundBatch};
use bytes::Bytes;
use slab::Slab;

const NONE: u32 = u32::MAX;

/// Largest read-ahead, in bytes: at most a quarter of the bound, so that one run is in use while the next is read; less when runs are
/// dropped before they are used up, because the cache has no room for all readers.
const AHEAD_MAX: usize = READ_BYTES_MAX;
const AHEAD_MIN: usize = 16 * 1024;
const AHEAD_STEP: usize = 32 * 1024;

#[derive(Debug)]
pub enum Cached {
    /// The batch's body was not looked at.
    Found(FoundBatch),
    Verified(Batch),
}

impl Cached {
    pub fn header(&self) -> &BatchHeader {
        match self {
            Cached::Found(found) => &found.header,
            Cached::Verified(batch) => &batch.header,
        }
    }

    /// Verifies the batch on its first use. None: its body fails its check.
    fn verified(&mut self) -> Option<&Batch> {
        if let Cached::Found(found) = self {
            *self = Cached::Verified(found.clone().verify().ok()?);
        }
        match self {
            Cached::Verified(batch) => Some(batch),
            Cached::Found(_) => None,
        }
    }
}

/// Batches that one read brought, contiguous. The first is verified.
struct Run {
    p: PartitionIdx,
    batches: Vec<Cached>,
    /// Bytes of the batch behind them, which the read ended within.
    tail: Bytes,
    /// Bytes of the memory that they share.
    bytes: usize,
    newer: u32,
    older: u32,
    /// True if the run came in this turn: the readers that wait for it have not had their turn.
    is_fresh: bool,
    /// The run's last batch was handed out.
    is_used_up: bool,
    /// The bytes behind the run are read, or there are none.
    is_followed: bool,
}

pub struct ReadCache {
    bytes_max: usize,
    lender: Lender,
    bytes: usize,
    runs: Slab<Run>,
    /// Run and place in it, by partition and batch offset.
    index: IdMap<(u32, i64), (u32, u32)>,
    newest: u32,
    oldest: u32,
    fresh: Vec<u32>,
    fresh_bytes: usize,
    ahead: usize,
}

/// A cached batch.
pub struct Hit {
    pub batch: Batch,
    /// The bytes behind the batch's run are to be read now.
    pub is_unfollowed: bool,
}

impl ReadCache {
    pub fn new(bytes_max: usize) -> Self {
        ReadCache {
            bytes_max,
            lender: Lender::new(bytes_max, read_memory(ahead_max(bytes_max))),
            bytes: 0,
            runs: Slab::new(),
            index: IdMap::default(),
            newest: NONE,
            oldest: NONE,
            fresh: vec![],
            fresh_bytes: 0,
            ahead: ahead_max(bytes_max),
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes for cached runs and reads under way, without lent bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max - self.lender.kept()
    }

    pub fn lender(&self) -> &Lender {
        &self.lender
    }

    /// Bytes that came in this turn.
    pub fn fresh_bytes(&self) -> usize {
        self.fresh_bytes
    }

    /// Length of a read now, in whole blocks.
    pub fn ahead(&self) -> usize {
        self.ahead
    }

    pub fn contains(&self, p: PartitionIdx, offset: i64) -> bool {
        self.index.contains_key(&(p.0, offset))
    }

    /// End of the run that holds the batch at `offset`, and the read bytes of the batch.
    pub fn run(&self, p: PartitionIdx, offset: i64) -> Option<(i64, Bytes)> {
        let &(key, _) = self.index.get(&(p.0, offset))?;
        let run = &self.runs[key as usize];
        run.batches.last().map(|last| (last.header().end().offset, run.tail.clone()))
    }

    /// Looks the batch at `offset` up. A batch that fails its check is none, and the run ends before it.
    pub fn get(&mut self, p: PartitionIdx, offset: i64) -> Option<Hit> {
        let &(key, place) = self.index.get(&(p.0, offset))?;
        let Some(batch) = self.runs[key as usize].batches[place as usize].verified().cloned() else {
            self.shorten(key, place as usize);
            return None;
        };
        if self.newest != key {
            self.unlink(key);
            self.link(key);
        }
        let ahead_max = ahead_max(self.bytes_max);
        let run = &mut self.runs[key as usize];
        if place as usize + 1 == run.batches.len() && !std::mem::replace(&mut run.is_used_up, true) {
            self.ahead = (self.ahead + AHEAD_STEP).min(ahead_max);
        }
        Some(Hit { batch, is_unfollowed: !run.is_followed })
    }

    /// Marks the run that holds the batch at `offset` as read on: nothing is read ahead behind it.
    pub fn set_followed(&mut self, p: PartitionIdx, offset: i64) {
        if let Some(&(key, _)) = self.index.get(&(p.0, offset)) {
            self.runs[key as usize].is_followed = true;
        }
    }

    /// Keeps the run that was just read, whatever its size, at least until the turn ends.
    pub fn insert(&mut self, p: PartitionIdx, batches: Vec<Cached>, tail: Bytes, bytes: usize) {
        assert!(matches!(batches.first(), Some(Cached::Verified(_))), "whoever reads judges the first batch");
        let (is_fresh, is_used_up, is_followed) = (true, false, false);
        let run = Run { p, batches, tail, bytes, newer: NONE, older: NONE, is_fresh, is_used_up, is_followed };
        let key = self.runs.insert(run) as u32;
        for (place, batch) in self.runs[key as usize].batches.iter().enumerate() {
            self.index.insert((p.0, batch.header().offset.get()), (key, place as u32));
        }
        self.bytes += bytes;
        self.fresh_bytes += bytes;
        self.fresh.push(key);
        self.link(key);
    }

    /// Drops the least recently used runs until `bytes` are left, sparing those of this turn.
    pub fn shrink(&mut self, bytes: usize) {
        let mut key = self.oldest;
        while self.bytes > bytes && key != NONE {
            let next = self.runs[key as usize].newer;
            if !self.runs[key as usize].is_fresh {
                self.remove(key);
            }
            key = next;
        }
    }

    /// Ends the protection of this turn's runs. At most `bytes` are kept, or the newest run alone, if it came in this
    /// turn or is longer than the cache.
    pub fn end_turn(&mut self, bytes: usize) {
        let is_spared = self.runs.get(self.newest as usize).is_some_and(|run| run.is_fresh || run.bytes > self.bytes_max);
        self.fresh_bytes = 0;
        while let Some(key) = self.fresh.pop() {
            self.runs[key as usize].is_fresh = false;
        }
        while self.bytes > bytes && self.oldest != NONE && (self.oldest != self.newest || !is_spared) {
            self.remove(self.oldest);
        }
    }

    /// Drops the cached runs of a partition: its index may soon name another one.
    pub fn forget(&mut self, p: PartitionIdx) {
        let keys: Vec<u32> = self.runs.iter().filter(|(_, r)| r.p == p).map(|(key, _)| key as u32).collect();
        keys.into_iter().for_each(|key| self.remove(key));
    }

    fn remove(&mut self, key: u32) {
        self.unlink(key);
        let run = self.runs.remove(key as usize);
        self.bytes -= run.bytes;
        if run.is_fresh {
            // The partition of this run went in the turn in which the run came.
            self.fresh.retain(|&k| k != key);
            self.fresh_bytes -= run.bytes;
        }
        if !run.is_used_up {
            self.ahead = block_down((self.ahead / 2).max(AHEAD_MIN) as u64) as usize;
        }
        self.forget_places(key, run.p, &run.batches);
    }

    /// Drops the batches of a run from `place` on.
    fn shorten(&mut self, key: u32, place: usize) {
        let run = &mut self.runs[key as usize];
        let (p, gone) = (run.p, run.batches.split_off(place));
        run.tail.clear();
        self.forget_places(key, p, &gone);
    }

    fn forget_places(&mut self, key: u32, p: PartitionIdx, batches: &[Cached]) {
        for batch in batches {
            let at = (p.0, batch.header().offset.get());
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

fn ahead_max(bytes_max: usize) -> usize {
    let quarter = bytes_max.saturating_sub(PROBE_ROOM) / 4;
    block_down(quarter.clamp(AHEAD_MIN, AHEAD_MAX) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, PartitionId, Position, TopicId};
    use crate::format::batch::{BatchBuilder, Stamp};

    fn batch(n: i64) -> Cached {
        Cached::Verified(sealed(n))
    }

    fn sealed(n: i64) -> Batch {
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
            cache.insert(p, vec![batch(n)], Bytes::new(), 1000);
        }
        cache.end_turn(3000);
        assert!(cache.get(p, 0).is_some());
        cache.insert(p, vec![batch(3)], Bytes::new(), 1000);
        assert_eq!((cache.bytes(), cache.fresh_bytes()), (4000, 1000));
        cache.end_turn(3000);
        assert!(cache.contains(p, 0) && !cache.contains(p, 1000) && cache.contains(p, 2000));
        assert!(!cache.contains(PartitionIdx(8), 0));
        cache.insert(p, vec![batch(4), batch(5)], Bytes::new(), 9000);
        cache.shrink(0);
        assert_eq!((cache.bytes(), cache.fresh_bytes()), (9000, 9000), "what came in this turn stays");
        cache.end_turn(3000);
        assert_eq!(cache.bytes(), 9000, "what was just read stays, alone");
        cache.end_turn(3000);
        assert_eq!(cache.bytes(), 9000, "it is longer than the cache");
        assert!(cache.get(p, 5000).is_some_and(|h| h.is_unfollowed));
        assert_eq!((cache.run(p, 4000), cache.run(p, 6000)), (Some((6000, Bytes::new())), None));
        cache.set_followed(p, 5000);
        assert!(cache.get(p, 4000).is_some_and(|h| !h.is_unfollowed));
        // The same place read twice: dropping the old run must not hide the new one.
        cache.insert(p, vec![batch(5)], Bytes::new(), 1000);
        cache.insert(p, vec![batch(6)], Bytes::new(), 1000);
        cache.end_turn(3000);
        assert!(cache.contains(p, 5000) && !cache.contains(p, 4000));
        assert_eq!((cache.runs.len(), cache.index.len()), (2, 2));
        cache.insert(PartitionIdx(8), vec![batch(0)], Bytes::new(), 100);
        cache.insert(p, vec![batch(9)], Bytes::new(), 1000);
        cache.forget(p);
        assert_eq!(cache.fresh_bytes(), 100);
        cache.end_turn(3000);
        assert_eq!((cache.runs.len(), cache.index.len(), cache.bytes()), (1, 1, 100));
        // A run of this turn goes with its partition too, and its place may be taken at once.
        cache.insert(p, vec![batch(7)], Bytes::new(), 1000);
        cache.forget(p);
        assert_eq!(cache.fresh_bytes(), 0);
        cache.end_turn(3000);
        cache.insert(p, vec![batch(7)], Bytes::new(), 1000);
        cache.forget(p);
        cache.insert(PartitionIdx(8), vec![batch(1)], Bytes::new(), 100);
        cache.end_turn(3000);
        assert_eq!((cache.runs.len(), cache.bytes(), cache.fresh_bytes()), (2, 200, 0));
        // If less is left than the last run takes, that run is dropped when its turn is over.
        cache.insert(p, vec![batch(8)], Bytes::new(), 1000);
        cache.end_turn(900);
        assert!(cache.contains(p, 8000));
        cache.end_turn(900);
        assert_eq!((cache.runs.len(), cache.bytes()), (0, 0));
    }

    #[test]
    fn a_batch_is_verified_when_it_is_asked_for() {
        let (mut cache, p) = (ReadCache::new(10_000), PartitionIdx(7));
        let found = |n: i64, is_sound: bool| {
            let mut bytes = sealed(n).bytes.to_vec();
            *bytes.last_mut().expect("it has a body") ^= !is_sound as u8;
            Cached::Found(FoundBatch::parse(&bytes.into(), TopicId([1; 16]), PartitionId(0)).expect("the header holds"))
        };
        let tail = Bytes::from_static(b"of the fifth");
        cache.insert(p, vec![batch(0), found(1, true), found(2, false), found(3, true)], tail.clone(), 4000);
        assert!(cache.get(p, 1000).is_some() && cache.run(p, 1000) == Some((4000, tail)));
        assert!(cache.contains(p, 2000) && cache.get(p, 2000).is_none());
        assert!(!cache.contains(p, 2000) && !cache.contains(p, 3000), "nothing behind it is known");
        assert!(cache.get(p, 1000).is_some() && cache.run(p, 1000) == Some((2000, Bytes::new())));
        assert_eq!(cache.bytes(), 4000);
    }
}
