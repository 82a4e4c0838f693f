//! Facts that every core knows of a topic.

use super::{CoreId, PartitionId, TopicId, TopicName};
use std::sync::Arc;

/// A topic. Under the same id its name never changes, and its partitions become more only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    pub name: TopicName,
    pub id: TopicId,
    /// 1 to [`PartitionId::COUNT_MAX`].
    pub partitions: u16,
}

pub type TopicRef = Arc<TopicInfo>;

impl TopicInfo {
    /// The core that owns a partition when the node has `cores` of them. Files do not depend on it.
    pub fn core_of(&self, partition: PartitionId, cores: u16) -> CoreId {
        core_of(&self.name, partition, cores)
    }
}

/// The core that owns a partition of the topic of this name.
pub fn core_of(name: &str, partition: PartitionId, cores: u16) -> CoreId {
    CoreId(((home_hash(name) + partition.0 as u64) % cores as u64) as u16)
}

/// The core that creates a topic of this name and keeps its metadata; it owns partition 0.
pub fn home_core(name: &str, cores: u16) -> CoreId {
    core_of(name, PartitionId(0), cores)
}

/// FNV-1a, folded: stable over versions, since operators see where a topic lives.
fn home_hash(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ hash >> 32) & 0xffff_ffff
}
