//! Reach of a client: the partitions that the simulation let it use when it connected.

use crate::base::{PartitionId, Rng};

/// A topic's number and a channel's name.
pub type ChannelKey = (usize, String);

#[derive(Clone, Debug)]
pub struct Reach {
    /// The node that it is connected to, for its owner.
    pub node: usize,
    /// The topics that it uses, by their numbers.
    pub topics: Vec<usize>,
    /// Partition of all its publishes and its SUB. `None`: of a topic's partitions, any for a publish, all for a SUB.
    pub partition: Option<u16>,
    /// True in a cluster: another node may lead the partition, and commands name partitions.
    pub is_clustered: bool,
    /// Puts messages off for longer than the message timeout: all nodes that it may meet have one wall clock.
    pub defers: bool,
    /// Defers publishes, which name no partition: there is one, or the client names none anyway.
    pub defers_publishes: bool,
}

impl Reach {
    /// The only node there is.
    pub fn alone(topics: u64) -> Reach {
        Reach {
            node: 0,
            topics: (0..topics as usize).collect(),
            partition: None,
            is_clustered: false,
            defers: true,
            defers_publishes: true,
        }
    }

    /// The partition that a command names.
    pub fn named(&self) -> Option<PartitionId> {
        self.partition.filter(|_| self.is_clustered).map(PartitionId)
    }

    pub fn topic(&self, rng: &mut Rng) -> usize {
        self.topics[rng.below(self.topics.len() as u64) as usize]
    }
}
