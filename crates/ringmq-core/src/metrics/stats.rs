//! Statistics of /stats, gathered per core and merged by the HTTP module.

use super::counters::Counts;
use super::end_to_end::Sample;
use super::remote::RemoteStats;
use crate::base::client::ClientInfo;
use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    pub core: u16,
    pub connections: u64,
    /// Topics whose home is this core, published to or not. Empty in a cluster.
    pub topics: Vec<String>,
    pub partitions: Vec<PartitionStats>,
    /// Addresses of clients of this core that have said CLS.
    pub closing: Vec<String>,
    /// Publishing clients on this core.
    pub producers: Vec<ProducerStats>,
    pub healthy: bool,
    /// Reason why the core is not healthy, in a sentence.
    pub health: String,
    /// True if the core serves clients although it is not healthy: a full disk of a node in a cluster, where any node forwards.
    pub serves: bool,
    /// Partitions that this core leads and that take no publish. Empty outside a cluster.
    pub closed: ClosedPartitions,
    /// Links with the other nodes of a cluster.
    pub links: Vec<LinkStats>,
    /// Complete passes of the scrubber since startup, or since the last repair.
    pub scrubs: u64,
    /// Bytes of segments that retention let go and that wait to be deleted.
    pub deleting_bytes: u64,
    /// Bytes of publishes that wait for the disk.
    pub waiting_bytes: u64,
    pub counts: Counts,
    /// Numbers of the traffic with other leaders; `Some` for a node in a cluster.
    pub remote: Option<RemoteStats>,
    /// Turns of the core's loop. The caller of the core fills it in.
    pub turns: TurnStats,
}

/// Partitions that a core leads and that take no publish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedPartitions {
    pub count: u64,
    /// Name of one of these partitions, and the reason.
    pub example: String,
}

/// A core's link with another node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    pub node: String,
    pub connected: bool,
    /// Bytes that wait to be sent.
    pub queued_bytes: u64,
}

/// Durations of a core's turns: while a turn lasts, everything on the core waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TurnStats {
    pub count: u64,
    /// Time of all turns together.
    #[serde(skip)]
    pub busy_us: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    /// Turns that were longer than `--stall-log`.
    pub stalls: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionStats {
    pub topic: String,
    pub partition: u16,
    /// Messages that no channel has: those that wait for the first one, or for the end of a pause.
    pub depth: u64,
    /// The topic is paused.
    pub paused: bool,
    pub message_count: u64,
    pub message_bytes: u64,
    /// Bytes of the log, headers of batches included.
    pub stored_bytes: u64,
    /// Place that the device refuses to read: the partition's channels hold there.
    pub unreadable: Option<String>,
    /// Channels that damage may have taken, until an operator accepts that.
    pub channels_lost: Option<String>,
    /// Replication state, in a cluster.
    pub replication: Option<ReplicationStats>,
    pub channels: Vec<ChannelStats>,
}

/// Role of a leader that serves nothing, because its node's lease is over.
pub const LEASE_OVER: &str = "leader, lease over";

/// A partition's replica on this node. Offsets are bytes of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicationStats {
    pub partition: u16,
    pub role: &'static str,
    pub epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// NSQ address of the leader, as far as the metadata has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_tcp_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_native_address: Option<String>,
    pub replicas: Vec<String>,
    pub isr: Vec<String>,
    pub min_isr: usize,
    pub committed: i64,
    pub durable: i64,
    pub end: i64,
    /// Followers as a leader sees them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub followers: Vec<FollowerStats>,
    /// Begin of damage, until it is repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<i64>,
    /// Alarm for an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alarm: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FollowerStats {
    pub node: String,
    pub in_sync: bool,
    pub state: &'static str,
    /// Durable there; sent to it.
    pub acked: i64,
    pub sent: i64,
    /// Bytes of the leader's log that are not durable there.
    pub lag: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelStats {
    pub channel: String,
    pub depth: u64,
    pub in_flight_count: u64,
    pub deferred_count: u64,
    pub message_count: u64,
    pub requeue_count: u64,
    pub timeout_count: u64,
    /// Messages that an ephemeral channel dropped, since it had more to deliver than it may keep.
    pub dropped_count: u64,
    pub paused: bool,
    /// Bytes of its open messages, when they keep it from reading on.
    pub full_bytes: Option<u64>,
    /// Times from publish to FIN, where percentiles are asked for.
    pub end_to_end: Option<Sample>,
    /// Number of clients, also when `clients` was not asked for and is empty.
    pub client_count: u64,
    pub clients: Vec<ClientStats>,
}

impl ChannelStats {
    /// Adds the counts of the channel in another partition. A client consumes every partition of the topic.
    pub fn add_counts(&mut self, part: &ChannelStats) {
        self.depth += part.depth;
        self.in_flight_count += part.in_flight_count;
        self.deferred_count += part.deferred_count;
        self.message_count += part.message_count;
        self.requeue_count += part.requeue_count;
        self.timeout_count += part.timeout_count;
        self.dropped_count += part.dropped_count;
        self.paused |= part.paused;
        if let Some(bytes) = part.full_bytes {
            *self.full_bytes.get_or_insert(0) += bytes;
        }
        self.client_count = self.client_count.max(part.client_count);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    pub info: ClientInfo,
    pub ready_count: u64,
    pub in_flight_count: u64,
    pub message_count: u64,
    pub finish_count: u64,
    pub requeue_count: u64,
    pub sample_rate: u8,
    pub msg_timeout_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerStats {
    pub info: ClientInfo,
    /// Topic name and messages published to it.
    pub topics: Vec<(String, u64)>,
}
