//! A log in memory over a disk that takes operations in order, later: a crash leaves a prefix of them.

use crate::base::{ChannelName, Epoch, LogId, PartitionId, Position, TopicId};
use crate::format::batch::{Batch, BatchBuilder, Stamp};
use crate::format::cursor::CursorImage;
use crate::format::snapshot::Doubt;
use crate::format::tail::EpochEnd;
use crate::format::tail::{BatchId, Tail};
use crate::replica::event::LogView;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

pub const TOPIC: TopicId = TopicId([7; 16]);
pub const PARTITION: PartitionId = PartitionId(0);

pub type Channels = BTreeMap<ChannelName, CursorImage>;

/// Operations on the disk, in order.
#[derive(Clone, Debug)]
pub enum DiskOp {
    Append(Batch),
    Truncate(i64),
    Restart(Tail),
    Epoch(Epoch),
    /// Record of the committed end.
    Committed(Position),
    /// Channels, with the number that waits for them.
    Cursors(Channels, Option<u64>),
    Doubted,
    Cleared,
}

/// Contents of the disk.
#[derive(Clone, Debug)]
pub struct Disk {
    pub start: Tail,
    pub batches: Vec<Batch>,
    pub promised: Epoch,
    pub committed: Position,
    pub doubt: Doubt,
    /// Damage begins here.
    pub hole: Option<i64>,
    pub channels: Channels,
}

#[derive(Debug)]
pub struct ModelLog {
    pub disk: Disk,
    pub queue: VecDeque<DiskOp>,
    start: Tail,
    pub batches: Vec<Batch>,
    pub durable: usize,
    doubt: Doubt,
    pub channels: Channels,
    /// Batches below this offset are not in memory, only on the disk.
    pub memory_from: i64,
    /// Found while it runs.
    pub rot: Option<(Position, Position)>,
    /// The journal has no room for facts that can wait.
    pub is_full: bool,
}

pub fn id_of(batch: &Batch) -> BatchId {
    let h = &batch.header;
    BatchId {
        epoch: Epoch(h.epoch.get()),
        log_id: LogId(h.log_id.get()),
        last_log_id: LogId(h.last_log_id.get()),
        header_crc: h.header_crc.get(),
    }
}

pub fn tail_of(batch: &Batch) -> Tail {
    let h = &batch.header;
    Tail { at: h.end(), chain_crc: h.header_crc.get(), epoch: Epoch(h.epoch.get()) }
}

impl ModelLog {
    pub fn new() -> Self {
        let disk = Disk {
            start: Tail::START,
            batches: vec![],
            promised: Epoch(0),
            committed: Position::START,
            doubt: Doubt::None,
            hole: None,
            channels: Channels::new(),
        };
        Self::recover(disk)
    }

    pub fn recover(disk: Disk) -> Self {
        ModelLog {
            start: disk.start,
            batches: disk.batches.clone(),
            durable: disk.batches.len(),
            doubt: disk.doubt,
            channels: disk.channels.clone(),
            memory_from: disk.batches.last().map_or(disk.start.at, |b| b.header.end()).offset,
            queue: VecDeque::new(),
            rot: None,
            is_full: false,
            disk,
        }
    }

    /// The leader's own.
    pub fn append_own(&mut self, epoch: Epoch, num: u32, body: &[u8]) -> Batch {
        let end = self.end();
        let mut builder = BatchBuilder::default();
        (0..num).for_each(|_| builder.push(1_000, body));
        let batch = builder.seal(Stamp { topic_id: TOPIC, partition: PARTITION, epoch, at: end.at, prev_crc: end.chain_crc });
        self.append(batch.clone());
        batch
    }

    pub fn append(&mut self, batch: Batch) {
        let end = self.end();
        assert_eq!((batch.header.start(), batch.header.prev_crc.get()), (end.at, end.chain_crc), "a log goes on where it ends");
        assert!(batch.header.epoch.get() >= end.epoch.0, "epochs never fall");
        self.batches.push(batch.clone());
        self.queue.push_back(DiskOp::Append(batch));
    }

    pub fn truncate(&mut self, to: Position) {
        let keep = self.batches.partition_point(|b| b.header.end().offset <= to.offset);
        self.batches.truncate(keep);
        assert_eq!(self.end().at, to, "a truncation is at the end of a batch");
        self.durable = self.durable.min(keep);
        self.queue.push_back(DiskOp::Truncate(to.offset));
    }

    pub fn restart(&mut self, start: Tail) {
        (self.start, self.durable) = (start, 0);
        self.batches.clear();
        self.memory_from = start.at.offset;
        self.queue.push_back(DiskOp::Restart(start));
    }

    pub fn lose(&mut self) {
        self.doubt = Doubt::Lost;
        self.queue.push_back(DiskOp::Doubted);
    }

    pub fn clear(&mut self) {
        self.doubt = Doubt::None;
        self.queue.push_back(DiskOp::Cleared);
    }

    /// The oldest operation is done.
    pub fn complete(&mut self) -> Option<DiskOp> {
        let op = self.queue.pop_front()?;
        let disk = &mut self.disk;
        match &op {
            DiskOp::Append(batch) => {
                disk.batches.push(batch.clone());
                // A batch that was truncated meanwhile counts for nothing.
                if self.batches.get(self.durable).is_some_and(|b| b.header == batch.header) {
                    self.durable += 1;
                }
            }
            DiskOp::Truncate(to) => {
                disk.batches.retain(|b| b.header.end().offset <= *to);
                disk.hole = disk.hole.filter(|h| h < to);
            }
            DiskOp::Restart(start) => {
                disk.batches.clear();
                (disk.start, disk.hole) = (*start, None);
            }
            DiskOp::Epoch(epoch) => disk.promised = disk.promised.max(*epoch),
            DiskOp::Committed(end) => disk.committed = *end,
            DiskOp::Cursors(channels, _) => disk.channels = channels.clone(),
            DiskOp::Doubted => disk.doubt = Doubt::Lost,
            DiskOp::Cleared => disk.doubt = Doubt::None,
        }
        Some(op)
    }

    /// Retention.
    pub fn drop_below(&mut self, offset: i64) {
        while self.batches.first().is_some_and(|b| b.header.end().offset <= offset) && self.durable > 1 {
            let first = self.batches.remove(0);
            self.start = tail_of(&first);
            self.durable -= 1;
            self.disk.start = self.start;
            self.disk.batches.retain(|b| b.header.offset.get() >= self.start.at.offset);
        }
    }

    pub fn read(&self, from: i64, bytes_max: usize) -> (Position, Option<Vec<Bytes>>) {
        let durable = &self.batches[..self.durable];
        let Some(index) = durable.iter().position(|b| b.header.offset.get() == from) else {
            let at = Position { offset: from, ..Position::START };
            return (at, (from == self.durable().at.offset).then(Vec::new));
        };
        let mut bytes = vec![];
        let (mut end, mut len) = (durable[index].header.start(), 0);
        for batch in &durable[index..] {
            if len > 0 && len + batch.bytes.len() > bytes_max {
                break;
            }
            len += batch.bytes.len();
            bytes.push(batch.bytes.clone());
            end = batch.header.end();
        }
        (end, Some(bytes))
    }

    pub fn tail(&self, from: i64, end: i64) -> Vec<Bytes> {
        let inside = |b: &&Batch| (from..end).contains(&b.header.offset.get());
        self.batches.iter().filter(inside).map(|b| b.bytes.clone()).collect()
    }

    fn epochs_before(&self, limit: i64, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        let mut found: Vec<EpochEnd> = vec![];
        for batch in self.batches.iter().filter(|b| b.header.end().offset <= limit) {
            let Tail { at: end, chain_crc, epoch } = tail_of(batch);
            if below.is_some_and(|b| epoch >= b) {
                break;
            }
            match found.last_mut() {
                Some(last) if last.epoch == epoch => *last = EpochEnd { epoch, end, chain_crc },
                _ => found.push(EpochEnd { epoch, end, chain_crc }),
            }
        }
        let Tail { at: end, chain_crc, epoch } = self.start;
        if self.batches.is_empty() && epoch > Epoch(0) && below.is_none_or(|b| epoch < b) {
            found.push(EpochEnd { epoch, end, chain_crc });
        }
        let more = found.len() > max;
        out.extend(found.into_iter().rev().take(max));
        more
    }
}

impl LogView for ModelLog {
    fn start(&self) -> (Position, u32) {
        (self.start.at, self.start.chain_crc)
    }

    fn end(&self) -> Tail {
        self.batches.last().map_or(self.start, tail_of)
    }

    fn durable(&self) -> Tail {
        self.durable.checked_sub(1).map_or(self.start, |i| tail_of(&self.batches[i]))
    }

    fn vouched(&self) -> Position {
        let end = self.end().at;
        match self.disk.hole {
            Some(hole) if hole < end.offset => {
                self.batches.iter().map(|b| b.header.start()).find(|p| p.offset >= hole).unwrap_or(end)
            }
            _ => end,
        }
    }

    fn damage(&self) -> Option<(Position, Position)> {
        self.rot
    }

    fn doubt(&self) -> Doubt {
        self.doubt
    }

    fn held(&self, offset: i64) -> Option<BatchId> {
        let found = self.batches.iter().find(|b| b.header.offset.get() == offset)?;
        (offset >= self.memory_from).then(|| id_of(found))
    }

    fn run_end(&self, from: i64, bytes_max: usize) -> Option<Position> {
        if from < self.memory_from {
            return None;
        }
        let index = self.batches.iter().position(|b| b.header.offset.get() == from)?;
        let fits = |b: &&Batch| (b.header.end().offset - from) as usize <= bytes_max;
        let run = self.batches[index..].iter().take_while(fits).last();
        Some(run.unwrap_or(&self.batches[index]).header.end())
    }

    fn epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        self.epochs_before(self.vouched().offset, below, max, out)
    }

    fn all_epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool {
        self.epochs_before(i64::MAX, below, max, out)
    }

    fn cursor(&self, channel: &ChannelName) -> Option<(Epoch, u64, Position)> {
        self.channels.get(channel).map(|c| (c.epoch, c.generation, c.confirmed))
    }

    fn may_lack_channels(&self) -> bool {
        false
    }

    fn takes_facts(&self) -> bool {
        !self.is_full
    }

    fn channels(&self, out: &mut Vec<ChannelName>) {
        out.extend(self.channels.keys().cloned());
    }
}
