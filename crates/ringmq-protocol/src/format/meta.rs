//! `node.meta` (node id and generation) and `topic.meta` (name, id and partitions of a topic): encode, verify, decode.
//!
//! node.meta is two files of a block, written in turn; the valid one with the higher sequence counts.
//! topic.meta is two files with the same block, which is written again, under the same id, when the topic gets more partitions.

use crate::base::{BLOCK, FileId, PartitionId, TopicId, TopicInfo, TopicName};
use crate::format::files::{self, Bad, NODE_MAGIC, NodeHeader, TOPIC_MAGIC, TopicHeader, VERSION};
use zerocopy::{FromBytes, IntoBytes};

/// Length of each file of node.meta.
pub const NODE_META_LEN: u64 = BLOCK as u64;
/// Length of each file of topic.meta.
pub const TOPIC_META_LEN: u64 = BLOCK as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMeta {
    pub node_id: [u8; 16],
    /// Sequence of this file: even ones stand in node.meta.0, odd ones in node.meta.1.
    pub sequence: u64,
    pub generation: u64,
    /// Number of journals that were begun under this generation and must exist, one per core from 0. Zero: they are being begun, and are
    /// empty.
    pub journals: u16,
    /// The highest version of a cluster file that was in force here; zero: the node was never in a cluster.
    pub cluster_version: u64,
}

impl NodeMeta {
    /// The file in which this sequence stands.
    pub fn file(&self) -> FileId {
        FileId::Node((self.sequence % 2) as u8)
    }

    /// Encodes the file: one block.
    pub fn encode(&self) -> Vec<u8> {
        let mut h = NodeHeader {
            magic: NODE_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            journals: self.journals.into(),
            reserved_32: 0.into(),
            node_id: self.node_id,
            sequence: self.sequence.into(),
            generation: self.generation.into(),
            cluster_version: self.cluster_version.into(),
            reserved: [0; 8],
        };
        files::seal(&mut h);
        block(h.as_bytes())
    }

    pub fn decode(bytes: &[u8]) -> Result<NodeMeta, Bad> {
        let (h, _) = NodeHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        files::check(&h.magic, NODE_MAGIC, h.as_bytes(), h.version.get())?;
        Ok(NodeMeta {
            node_id: h.node_id,
            sequence: h.sequence.get(),
            generation: h.generation.get(),
            journals: h.journals.get(),
            cluster_version: h.cluster_version.get(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMeta {
    pub info: TopicInfo,
    pub created_unix_ns: i64,
}

impl TopicMeta {
    /// The header alone: payload of a [`TopicCreate`](crate::format::journal::RecordKind::TopicCreate) record.
    pub fn header(&self) -> TopicHeader {
        let name = self.info.name.as_bytes();
        let mut h = TopicHeader {
            magic: TOPIC_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            partitions: self.info.partitions.into(),
            name_len: (name.len() as u32).into(),
            topic_id: self.info.id.0,
            created_unix_ns: self.created_unix_ns.into(),
            flags: 0.into(),
            name: [0; 64],
            reserved: [0; 84],
        };
        h.name[..name.len()].copy_from_slice(name);
        files::seal(&mut h);
        h
    }

    /// The file: one block.
    pub fn encode(&self) -> Vec<u8> {
        block(self.header().as_bytes())
    }

    /// Decodes the file's block or a record's payload.
    pub fn decode(bytes: &[u8]) -> Result<TopicMeta, Bad> {
        let (h, _) = TopicHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        files::check(&h.magic, TOPIC_MAGIC, h.as_bytes(), h.version.get())?;
        let name = h.name.get(..h.name_len.get() as usize).ok_or(Bad::Bounds)?;
        let name = std::str::from_utf8(name).ok().and_then(|n| TopicName::new(n).ok()).ok_or(Bad::Bounds)?;
        let partitions = h.partitions.get();
        if !(1..=PartitionId::COUNT_MAX).contains(&partitions) {
            return Err(Bad::Bounds);
        }
        let info = TopicInfo { name, id: TopicId(h.topic_id), partitions };
        Ok(TopicMeta { info, created_unix_ns: h.created_unix_ns.get() })
    }
}

fn block(bytes: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

#[cfg(test)]
mod tests {
    use crate::format::meta::*;

    #[test]
    fn metas_come_back_as_they_went() {
        let node = NodeMeta { node_id: [3; 16], sequence: 5, generation: 9, journals: 3, cluster_version: 12 };
        assert_eq!(NodeMeta::decode(&node.encode()).unwrap(), node);
        assert_eq!(node.file(), FileId::Node(1));
        let info = TopicInfo { name: TopicName::new("orders").unwrap(), id: TopicId([8; 16]), partitions: 4 };
        let topic = TopicMeta { info, created_unix_ns: 77 };
        assert_eq!(TopicMeta::decode(&topic.encode()).unwrap(), topic);
        assert_eq!(TopicMeta::decode(topic.header().as_bytes()).unwrap(), topic);
        assert_eq!(TopicMeta::decode(&[0; BLOCK]).unwrap_err(), Bad::Zero);
        for i in 0..size_of::<TopicHeader>() {
            let mut bytes = topic.encode();
            bytes[i] ^= 1;
            assert!(TopicMeta::decode(&bytes).is_err(), "byte {i}");
        }
    }
}
