//! Facts about the cluster that a core receives, and its requests: the contract with the coordinator, which is a static file or a
//! metadata store.
//!
//! Every core gets every fact, and uses those about its partitions. Facts may be old or repeated: versions tell.

use crate::base::NodeId;
use crate::base::{ChannelName, Epoch, PartitionId, Ticks, TopicId, TopicName, TopicRef};
use crate::codec::peer::message::Route;
use crate::seam::membership::{GivenUp, Membership};
use crate::seam::outcome::PublishError;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Options of a node that is one of several. Without them a node is alone and leads every partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterOptions {
    /// 128 bits that the cluster was given at its beginning: nodes of two clusters never mix.
    pub cluster_id: [u8; 16],
    /// Rises durably with each startup of the node.
    pub generation: u64,
    /// Whether a client's first PUB or SUB creates a topic ([`Ask::CreateTopic`]). Otherwise an operator names the topics.
    pub creates_topics: bool,
}

/// A node of the cluster, this one too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterNode {
    pub id: NodeId,
    /// Name for logs and /stats.
    pub name: Arc<str>,
    /// Address for peers, host:port.
    pub peer_address: Arc<str>,
    /// Addresses that other nodes tell clients: of the native protocol, and of NSQ's. `None`: none is told.
    pub native_address: Option<Arc<str>>,
    pub tcp_address: Option<Arc<str>>,
    /// Incarnation of the process that was registered last as this node. 0: there is no store.
    pub incarnation: u64,
}

impl ClusterNode {
    /// A node whose clients find it by themselves.
    pub fn new(id: NodeId, name: impl Into<Arc<str>>, peer_address: impl Into<Arc<str>>) -> ClusterNode {
        let (name, peer_address) = (name.into(), peer_address.into());
        ClusterNode { id, name, peer_address, native_address: None, tcp_address: None, incarnation: 0 }
    }
}

/// Name of a node for people; a node that the cluster does not list goes by its id.
pub fn name_of(nodes: &[ClusterNode], node: NodeId) -> String {
    nodes.iter().find(|n| n.id == node).map_or_else(|| node.to_string(), |n| n.name.to_string())
}

/// Properties of a topic that its partitions' logs and channels follow. `None`: the node's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TopicProperties {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    /// Whether each subscription makes its channel an ordered one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// Whether a channel is created by operators only, and not by its first subscription.
    #[serde(default, rename = "disable_channel_auto_create", skip_serializing_if = "std::ops::Not::not")]
    pub channels_by_operator: bool,
    /// Bytes of a message that is published to the topic, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_msg_size: Option<u64>,
    /// Delay of a deferred publish, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_defer_ms: Option<u64>,
}

#[derive(Clone, Debug)]
pub enum Fact {
    /// All nodes of the cluster. Connections of others are refused.
    Nodes(Arc<[ClusterNode]>),
    /// A topic of the cluster, whether this node has a part of it or not. Its id never changes, and its partitions become more only.
    Topic(TopicRef),
    /// Partitions from this number on were added to the topic. They begin with these channels. Comes after the topic, and before the
    /// partitions.
    TopicGrown { topic: TopicId, from: u16, channels: Arc<[ChannelName]> },
    /// Membership of a partition; comes after its topic. A node that is no replica of the partition does not keep it.
    Partition { topic: TopicRef, partition: PartitionId, membership: Membership },
    /// Metadata of a topic beside the assignment of its partitions; comes after the topic.
    TopicProperties { topic: TopicRef, properties: TopicProperties },
    /// The topic is not the cluster's any more. The node keeps its files and does not serve them.
    TopicGone(TopicRef),
    /// The topic was deleted, and has a tombstone: the node removes its files. This fact precedes a later topic of the same name, and
    /// also comes for topics that this node never knew.
    TopicDeleted(TopicRef),
    /// The store renewed this node's lease at this revision of the metadata. Until its end no other node becomes the leader of a
    /// partition that this node leads at that revision. `until` is by this node's clock, counted from the sending of the request; a
    /// static file gives `Ticks::MAX`. The lease counts after everything up to the revision is [read](Fact::Read); the coordinator
    /// ensures that.
    Lease { until: Ticks, revision: u64 },
    /// Revision up to which all changes of the metadata have been told.
    Read { revision: u64 },
    /// The node's process is taken for ended: its machine refuses connections.
    NodeDown { node: NodeId },
    /// The answer to an [`Ask::Leave`]: when it was asked, the partition's metadata still was of this version.
    MayLeave { route: Route, version: u64 },
    /// Refusal of an [`Ask::Propose`].
    ProposalRefused { route: Route, version: u64 },
    /// Reason why the topic of an [`Ask::CreateTopic`] is not created.
    TopicRefused { name: TopicName, error: PublishError },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Proposal of this ISR, if the metadata still has that version.
    Propose { route: Route, version: u64, isr: Vec<NodeId> },
    /// Durable word that an operator accepted this loss, for the leader. A static file takes none.
    GiveUp { route: Route, loss: GivenUp },
    /// Request of a leader for a new epoch above this one. [`Fact::Partition`] answers it.
    AskEpoch { route: Route, above: Epoch },
    /// The partition's metadata anew: answered by [`Fact::Partition`].
    Refresh { route: Route },
    /// Wish of this node, which serves nothing of the partition any more, not to lead it. `to`: the member of the ISR that should.
    Resign { route: Route, to: Option<NodeId> },
    /// Word of this node that it serves nothing more of the partition, which it led before ([`Membership::former`]).
    Release { route: Route },
    /// Question whether the partition's metadata, without this node as a replica, still has this version. [`Fact::MayLeave`] or a newer
    /// fact answers it. A static file has no answer.
    Leave { route: Route, version: u64 },
    /// Word of whether the replica here lost something that was complete once, and was not compared with another one since. Without a
    /// word it did not.
    Doubt { route: Route, is_suspect: bool },
    /// The connection of a core to the node ended.
    PeerLost { node: NodeId },
    /// A topic of this name, with so many partitions if it is new; 0: as many as the cluster's topics have by default. Answered by
    /// [`Fact::Topic`] or [`Fact::TopicRefused`].
    CreateTopic { name: TopicName, partitions: u16 },
}
