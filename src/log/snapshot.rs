//! A partition's snapshot as bytes: what a checkpoint leaves behind, so that redo needs nothing older.

use super::cursor::CursorImage;
use super::format::{Bad, SNAPSHOT_MAGIC, SNAPSHOT_SUSPECT, SnapshotHeader, VERSION};
use crate::base::{BLOCK, Epoch, PartitionId, Position, TopicId};
use zerocopy::{FromBytes, IntoBytes};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub topic_id: TopicId,
    pub partition: PartitionId,
    pub sequence: u64,
    pub applied: u64,
    pub epoch: Epoch,
    pub start: Position,
    pub end: Position,
    pub committed: Position,
    pub collect_start: Position,
    pub chain_crc: u32,
    pub segment_base: i64,
    pub suspect: bool,
    pub channels: Vec<CursorImage>,
}

const HEADER_LEN: usize = size_of::<SnapshotHeader>();

impl Snapshot {
    /// Whole blocks.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_LEN];
        self.channels.iter().for_each(|c| c.encode(&mut out));
        let mut header = SnapshotHeader {
            magic: SNAPSHOT_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            partition: self.partition.0.into(),
            len: (out.len() as u32).into(),
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
            flags: if self.suspect { SNAPSHOT_SUSPECT } else { 0 }.into(),
            reserved: [0; 52],
        };
        out[..HEADER_LEN].copy_from_slice(header.as_bytes());
        header.crc = crc32fast::hash(&out[8..]).into();
        out[..HEADER_LEN].copy_from_slice(header.as_bytes());
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        out
    }

    pub fn decode(bytes: &[u8], topic_id: TopicId, partition: PartitionId) -> Result<Snapshot, Bad> {
        let (h, _) = SnapshotHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        if h.as_bytes().iter().all(|&b| b == 0) {
            return Err(Bad::Zero);
        }
        if h.magic != SNAPSHOT_MAGIC {
            return Err(Bad::Magic);
        }
        let len = h.len.get() as usize;
        if !(HEADER_LEN..=bytes.len()).contains(&len) {
            return Err(Bad::Bounds);
        }
        if crc32fast::hash(&bytes[8..len]) != h.crc.get() {
            return Err(Bad::Crc);
        }
        if h.version.get() != VERSION {
            return Err(Bad::Version(h.version.get()));
        }
        if h.topic_id != topic_id.0 || h.partition.get() != partition.0 {
            return Err(Bad::Foreign);
        }
        let (mut at, mut channels) = (HEADER_LEN, vec![]);
        for _ in 0..h.channels.get() {
            let (image, used) = CursorImage::decode(&bytes[at..len])?;
            channels.push(image);
            at += used;
        }
        Ok(Snapshot {
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
            suspect: h.flags.get() & SNAPSHOT_SUSPECT != 0,
            channels,
        })
    }
}
