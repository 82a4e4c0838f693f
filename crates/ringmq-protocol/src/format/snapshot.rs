//! A partition's snapshot: the state that does not follow from its segments (cursors, start), and the sequence of the last journal
//! record that is contained, so that redo knows where to begin. Three files, `state.0` to `state.2`, written in turn.
//!
//! [`Snapshot::file`] names the slot of a sequence. A reader takes the valid slot with the highest sequence. Before the journal frees a
//! record, two slots contain it: one of them may be lost. The next snapshot goes to the third slot, so this also holds during the write.

use crate::format::cursor::CursorImage;
use crate::format::epochs::{EPOCHS_MAX, Epochs};
use crate::format::files::{
    Bad, RawEpochEnd, SNAPSHOT_DAMAGED, SNAPSHOT_MAGIC, SNAPSHOT_SUSPECT, SNAPSHOT_TORN, SnapshotHeader, VERSION,
};
use crate::format::intervals::{self, INTERVAL_MAX};
use crate::format::producer::{PRODUCERS_MAX, Producer};

use crate::base::{BLOCK, Epoch, FileId, PartitionDir, PartitionId, Position, TopicId, block_up};
use crate::format::tail::{EpochEnd, Tail};
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Slots of a partition. Facts that the journal no longer has stand in two of them, also while the third is written.
pub const SLOTS: u8 = 3;
/// A longer snapshot is not believed: 16 thousand channels with a full window are far below.
pub const SNAPSHOT_LEN_MAX: usize = 256 * 1024 * 1024;
/// More channels are not believed; so no partition may have more.
pub const CHANNELS_MAX: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub topic_id: TopicId,
    pub partition: PartitionId,
    /// Rises by one with each slot that is written; its slot is the remainder of its division by three. From 1.
    pub sequence: u64,
    /// Every journal record of this partition up to this sequence is contained.
    pub applied: u64,
    /// Epoch of the last batch before `end`.
    pub epoch: Epoch,
    /// First position still stored.
    pub start: Position,
    /// End of the synced bytes in segments and commit logs.
    pub end: Position,
    /// Lower bound of the committed end. Beyond `end` only on a replica that lost something.
    pub committed: Position,
    pub collect_start: Position,
    /// Header crc of the last batch before `end`.
    pub chain_crc: u32,
    /// Base offset of the segment that holds `end`.
    pub segment_base: i64,
    pub doubt: Doubt,
    /// Base timestamp of the last batch before `end`; zero when unknown.
    pub unix_ns: i64,
    pub channels: Vec<CursorImage>,
    /// Producers of the batches before `end`, the least recently used first.
    pub producers: Vec<Producer>,
    /// The highest epoch that the replica promised to follow; zero: it is none of several.
    pub promised: Epoch,
    /// All epochs before `end` but the last one, ascending.
    pub epochs: Vec<EpochEnd>,
    /// End up to which the replica vouches for its data: damage begins there, before `end`. `None`: no damage.
    pub vouched: Option<Tail>,
    /// Generation of the startup that may have lost channels, until an operator accepts the loss; zero: none.
    pub channels_lost: u64,
}

impl Snapshot {
    /// The slot that a snapshot of this sequence is written to.
    pub fn file(dir: &Arc<PartitionDir>, sequence: u64) -> FileId {
        FileId::Snapshot(dir.clone(), (sequence % SLOTS as u64) as u8)
    }

    /// The same, but for the slot.
    pub fn says_as(&self, other: &Snapshot) -> bool {
        Snapshot { sequence: 0, ..self.clone() } == Snapshot { sequence: 0, ..other.clone() }
    }

    /// Bytes of the snapshot without padding.
    pub fn encoded_len(&self) -> usize {
        size_of::<SnapshotHeader>()
            + self.channels.iter().map(CursorImage::encoded_len).sum::<usize>()
            + self.producers.iter().map(Producer::encoded_len).sum::<usize>()
            + (self.epochs.len() + self.vouched.is_some() as usize) * size_of::<RawEpochEnd>()
    }

    /// The whole snapshot, padded with zeros to blocks. Where it would be too long for a reader, intervals are left out.
    pub fn encode(&self) -> Vec<u8> {
        match self.encoded_len() {
            len if len > SNAPSHOT_LEN_MAX => self.trimmed(SNAPSHOT_LEN_MAX).encode_whole(),
            _ => self.encode_whole(),
        }
    }

    fn encode_whole(&self) -> Vec<u8> {
        let len = self.encoded_len();
        assert!(len <= SNAPSHOT_LEN_MAX, "a snapshot that no reader would believe");
        assert!(
            self.channels.len() <= CHANNELS_MAX && self.producers.len() <= PRODUCERS_MAX,
            "a snapshot that no reader would believe"
        );
        assert!(self.epochs.len() <= EPOCHS_MAX, "an epoch table that no reader would believe");
        let flag = |is_set: bool, bit| if is_set { bit } else { 0 };
        let header = SnapshotHeader {
            magic: SNAPSHOT_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            partition: self.partition.0.into(),
            len: (len as u32).into(),
            topic_id: self.topic_id.0,
            sequence: self.sequence.into(),
            applied: self.applied.into(),
            epoch: self.epoch.0.into(),
            start: self.start.into(),
            end: self.end.into(),
            committed: self.committed.into(),
            collect_start: self.collect_start.into(),
            chain_crc: self.chain_crc.into(),
            channels: (self.channels.len() as u32).into(),
            segment_base: self.segment_base.into(),
            flags: (flag(self.doubt.is_suspect(), SNAPSHOT_SUSPECT)
                | flag(self.doubt == Doubt::Torn, SNAPSHOT_TORN)
                | flag(self.vouched.is_some(), SNAPSHOT_DAMAGED))
            .into(),
            producers: (self.producers.len() as u32).into(),
            unix_ns: self.unix_ns.into(),
            promised: self.promised.0.into(),
            epochs: (self.epochs.len() as u32).into(),
            channels_lost: self.channels_lost.into(),
            reserved: [0; 20],
        };
        let mut out = Vec::with_capacity(block_up(len as u64) as usize);
        out.extend_from_slice(header.as_bytes());
        for channel in &self.channels {
            channel.encode(&mut out);
        }
        for producer in &self.producers {
            producer.encode(&mut out);
        }
        for end in self.epochs.iter().copied().chain(self.vouched.map(EpochEnd::from)) {
            end.encode(&mut out);
        }
        let crc = crc32fast::hash(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        out
    }

    /// Bytes of [`Snapshot::encode`], as another slot holds them.
    pub fn renumber(bytes: &[u8], sequence: u64) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let len = Self::len_of(&bytes).expect("it was encoded here");
        let (header, _) = SnapshotHeader::mut_from_prefix(&mut bytes).expect("it was encoded here");
        header.sequence = sequence.into();
        let crc = crc32fast::hash(&bytes[8..len]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Whether a slot was written when one has this sequence.
    pub fn is_due(slot: u8, sequence: u64) -> bool {
        let behind = (sequence + (SLOTS - slot) as u64) % SLOTS as u64;
        sequence > behind
    }

    /// Number of slots to write with the current state, after `sequence` slots: two, the first time all.
    pub fn copies_behind(sequence: u64) -> u64 {
        2.max((SLOTS as u64).saturating_sub(sequence))
    }

    /// Returns the snapshot with as many intervals as fit, the lowest ones of each channel. After a startup the rest is delivered
    /// again, which is allowed; a snapshot that does not decode would lose every cursor.
    fn trimmed(&self, len_max: usize) -> Snapshot {
        let mut trimmed = self.clone();
        trimmed.channels.iter_mut().for_each(|c| c.handed = vec![]);
        let all: usize = self.channels.iter().map(|c| intervals::len(c.confirmed, &c.intervals)).sum();
        let fixed = trimmed.encoded_len() - all;
        let each = len_max.saturating_sub(fixed) / self.channels.len().max(1);
        for c in &mut trimmed.channels {
            let fitting = if each < INTERVAL_MAX { 0 } else { intervals::fitting(c.confirmed, &c.intervals, each) };
            c.intervals.truncate(fitting);
        }
        trimmed
    }

    /// Bytes to read for the snapshot whose first block (or more) this is, when its header can be believed that far.
    pub fn len_of(bytes: &[u8]) -> Result<usize, Bad> {
        let (h, _) = SnapshotHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        if h.as_bytes().iter().all(|&b| b == 0) {
            return Err(Bad::Zero);
        }
        if h.magic != SNAPSHOT_MAGIC {
            return Err(Bad::Magic);
        }
        let len = h.len.get() as usize;
        let counts = (h.channels.get() as usize, h.producers.get() as usize);
        let is_long = counts.0 > CHANNELS_MAX || counts.1 > PRODUCERS_MAX || h.epochs.get() as usize > EPOCHS_MAX;
        if !(size_of::<SnapshotHeader>()..=SNAPSHOT_LEN_MAX).contains(&len) || is_long {
            return Err(Bad::Bounds);
        }
        Ok(len)
    }

    /// Verifies and decodes the snapshot at the start of `bytes`. The slot is not looked at.
    pub fn decode(bytes: &[u8], topic_id: TopicId, partition: PartitionId) -> Result<Snapshot, Bad> {
        let len = Self::len_of(bytes)?;
        let bytes = bytes.get(..len).ok_or(Bad::Short)?;
        let (h, mut rest) = SnapshotHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        crate::format::files::check(&h.magic, SNAPSHOT_MAGIC, bytes, h.version.get())?;
        if h.topic_id != topic_id.0 || h.partition.get() != partition.0 {
            return Err(Bad::Foreign);
        }
        let mut channels = Vec::new();
        for _ in 0..h.channels.get() {
            let (channel, taken) = CursorImage::decode(rest)?;
            channels.push(channel);
            rest = &rest[taken..];
        }
        let mut producers: Vec<Producer> = Vec::new();
        for _ in 0..h.producers.get() {
            let (producer, taken) = Producer::decode(rest)?;
            producers.push(producer);
            rest = &rest[taken..];
        }
        let mut epochs = Vec::new();
        for _ in 0..h.epochs.get() {
            let (end, after) = EpochEnd::decode(rest)?;
            epochs.push(end);
            rest = after;
        }
        let has = |bit| h.flags.get() & bit != 0;
        let mut vouched = None;
        if has(SNAPSHOT_DAMAGED) {
            let (EpochEnd { epoch, end: at, chain_crc }, after) = EpochEnd::decode(rest)?;
            (vouched, rest) = (Some(Tail { at, chain_crc, epoch }), after);
        }
        let doubt = match (has(SNAPSHOT_SUSPECT), has(SNAPSHOT_TORN)) {
            (false, _) => Doubt::None,
            (true, true) => Doubt::Torn,
            (true, false) => Doubt::Lost,
        };
        let snapshot = Snapshot {
            topic_id,
            partition,
            sequence: h.sequence.get(),
            applied: h.applied.get(),
            epoch: Epoch(h.epoch.get()),
            start: h.start.into(),
            end: h.end.into(),
            committed: h.committed.into(),
            collect_start: h.collect_start.into(),
            chain_crc: h.chain_crc.get(),
            segment_base: h.segment_base.get(),
            doubt,
            unix_ns: h.unix_ns.get(),
            channels,
            producers,
            promised: Epoch(h.promised.get()),
            epochs,
            vouched,
            channels_lost: h.channels_lost.get(),
        };
        let positions = [snapshot.start, snapshot.end, snapshot.committed, snapshot.collect_start];
        if !snapshot.producers_agree()
            || !snapshot.epochs_agree()
            || !rest.is_empty()
            || !positions.into_iter().all(Position::is_sane)
            || snapshot.start.offset > snapshot.end.offset
        {
            return Err(Bad::Bounds);
        }
        Ok(snapshot)
    }

    /// The ends rise, all lie within the log, and so does the place where damage begins.
    fn epochs_agree(&self) -> bool {
        let inside = |at: Position| at.offset < self.end.offset;
        let last = self.epochs.last().is_none_or(|e| inside(e.end) && e.epoch < self.epoch);
        last && self.vouched.is_none_or(|v| inside(v.at)) && Epochs::restore(self.epochs.clone()).is_some()
    }

    /// Checks that each producer stands once, in the order of their last batches, all of them before the end.
    fn producers_agree(&self) -> bool {
        let ids: BTreeSet<_> = self.producers.iter().map(|p| p.id).collect();
        let last = |p: &Producer| p.places().last().map_or(i64::MAX, |place| place.at.offset);
        let in_order = self.producers.windows(2).all(|w| last(&w[0]) < last(&w[1]) && w[0].last_unix_ns <= w[1].last_unix_ns);
        in_order && ids.len() == self.producers.len() && self.producers.last().is_none_or(|p| last(p) < self.end.offset)
    }
}

/// Whether a replica may lack something that it had.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Doubt {
    #[default]
    None,
    /// A journal's newest writes were truncated, since the first of them did not hold and nothing says that it was complete. It was torn
    /// by a crash, or failed, and was never acknowledged; unless it was the very last one, acknowledged, and has rotted since.
    Torn,
    /// Data that was complete once is lost, or was set aside.
    Lost,
}

impl Doubt {
    pub fn is_suspect(self) -> bool {
        self != Doubt::None
    }
}

#[cfg(test)]
mod tests {
    use crate::base::{ChannelName, LogId, ProducerId};
    use crate::format::cursor::Interval;
    use crate::format::producer::{BatchPlace, PLACES_MAX};
    use crate::format::snapshot::*;

    fn snapshot() -> Snapshot {
        let at = |n: i64| Position { offset: n * 100, count: n, log_id: LogId(n as u64 + 1) };
        let channel = |name: &str, n| CursorImage {
            name: ChannelName::new(name).unwrap(),
            paused: false,
            ordered: true,
            first: false,
            epoch: Epoch(1),
            generation: 2,
            confirmed: at(3),
            intervals: (0..n).map(|i| Interval { start: LogId(10 + 3 * i), end: at(11 + 3 * i as i64) }).collect(),
            handed: vec![],
        };
        let producer = |id: u64, next, n: usize| {
            let places: Vec<BatchPlace> =
                (0..n as i64).map(|i| BatchPlace { at: at(10 + id as i64 % 2 + 2 * i), num: 5 }).collect();
            Producer::new(ProducerId::new(id).unwrap(), next, 1000, &places).unwrap()
        };
        Snapshot {
            topic_id: TopicId([5; 16]),
            partition: PartitionId(2),
            sequence: 7,
            applied: 99,
            epoch: Epoch(3),
            start: at(1),
            end: at(200),
            committed: at(200),
            collect_start: at(2),
            chain_crc: 0x1234,
            segment_base: 100,
            doubt: Doubt::Torn,
            unix_ns: 77,
            channels: vec![channel("a", 0), channel("b-long-name", 200)],
            producers: vec![producer(9, 5, 1), producer(4, 700, PLACES_MAX)],
            promised: Epoch(8),
            epochs: vec![EpochEnd { epoch: Epoch(1), end: at(20), chain_crc: 5 }],
            vouched: Some(Tail { at: at(150), chain_crc: 6, epoch: Epoch(3) }),
            channels_lost: 5,
        }
    }

    #[test]
    fn a_snapshot_comes_back_as_it_went() {
        let s = snapshot();
        let bytes = s.encode();
        assert_eq!(bytes.len() % BLOCK, 0);
        assert_eq!(Snapshot::decode(&bytes, s.topic_id, s.partition).unwrap(), s);
        assert_eq!(Snapshot::decode(&bytes, TopicId([6; 16]), s.partition).unwrap_err(), Bad::Foreign);
        assert_eq!(Snapshot::decode(&vec![0; BLOCK], TopicId::default(), PartitionId(0)).unwrap_err(), Bad::Zero);
        assert!((0..s.encoded_len()).all(|n| Snapshot::decode(&bytes[..n], s.topic_id, s.partition).is_err()));
    }

    #[test]
    fn intervals_are_left_out_of_a_snapshot_that_would_be_too_long() {
        let mut s = snapshot();
        let at = |n: i64| Position { offset: n * 100, count: n, log_id: LogId(n as u64 + 1) };
        let long = (0..50_000).map(|i| Interval { start: LogId(10 + 3 * i), end: at(11 + 3 * i as i64) });
        let long = CursorImage { intervals: long.collect(), ..s.channels[1].clone() };
        s.channels = vec![s.channels[0].clone(), long.clone(), long];
        let len = s.encoded_len();
        for len_max in [len - 1, len / 2, 64 * 1024] {
            let trimmed = s.trimmed(len_max);
            assert!(trimmed.encoded_len() <= len_max, "{} {len_max}", trimmed.encoded_len());
            assert!(trimmed.channels.iter().zip(&s.channels).all(|(t, s)| s.intervals.starts_with(&t.intervals)));
            assert!(trimmed.channels[2].intervals.len() > (len_max - 8192) / 15, "{}", trimmed.channels[2].intervals.len());
            assert_eq!(Snapshot::decode(&trimmed.encode(), s.topic_id, s.partition).unwrap(), trimmed);
        }
    }

    #[test]
    fn no_changed_byte_passes() {
        let s = snapshot();
        let good = s.encode();
        for i in 0..s.encoded_len() {
            let mut bytes = good.clone();
            bytes[i] ^= 0x10;
            assert!(Snapshot::decode(&bytes, s.topic_id, s.partition).is_err(), "byte {i}");
        }
    }
}
