//! What cores (and the HTTP thread) tell each other. Every request carries a ticket that comes back with its answer.

use crate::base::{ChannelName, LogId, MessagePlace, PartitionId, Peer, Position, SubId, TopicName, TopicRef};
use crate::codec::peer::Addressed;
use crate::replica::{ClientCode, NodeId, ReplicaError};
use crate::transport::TlsFacts;

pub use crate::session::auth::Grants;
use std::sync::Arc;

pub use super::offsets::SetOffset;
pub use super::operate::{ChangeChannel, ChannelChange};
pub use super::order::SetOrder;
pub use crate::codec::native::Start;

/// Chosen by the asker, meaningful to it alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Room that a native publish's body has in front for the header of its batch.
pub const BATCH_ROOM: usize = crate::log::batch::BATCH_HEADER_LEN;

/// Why a publish, or a change of a channel, was not acknowledged. `Unknown` says that it may still turn out to be done; all others, that
/// nothing was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the disk is full: free space on the data path; consumers go on")]
    DiskFull,
    #[error("the journal or log of this core failed and is read-only until a restart")]
    ReadOnly,
    #[error("too many bytes wait for the disk")]
    TooMuchWaiting,
    #[error("the topic could not be created")]
    NoTopic,
    #[error("the topic has no such partition")]
    NoPartition,
    #[error("the topic was just removed: try again")]
    TopicGone,
    #[error("the node has as many topics as --max-topics allows")]
    TooManyTopics,
    #[error("the topic has as many channels as --max-channels-per-topic allows")]
    TooManyChannels,
    #[error("the channel has as many consumers as --max-channel-consumers allows")]
    TooManyConsumers,
    #[error("the node is stopping")]
    Stopping,
    #[error("the messages take more than 64 MiB with 12 bytes around each: publish fewer at a time")]
    TooBig,
    #[error("the outcome is unknown: the write was issued and not confirmed")]
    Unknown,
    #[error("the cluster has no such topic")]
    TopicNotExist,
    #[error("this node does not lead the partition")]
    NotLeader,
    #[error("no write is taken: {0}")]
    NotWritable(Unwritable),
}

/// Why a partition's leader takes no write for now. Nothing was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unwritable {
    #[error("the leader compares its log with the other replicas, try again in a moment")]
    Opening,
    #[error("too few replicas are in sync")]
    IsrTooSmall,
    #[error("a replica did not confirm in time, writes are disabled until the next epoch is open")]
    Disabled,
    #[error("a replica did not confirm in time, and the operation was taken back")]
    NotConfirmed,
    #[error("a write failed on this node, it takes nothing for the partition until a restart")]
    Failed,
}

impl PublishError {
    /// A word for /metrics.
    pub fn kind(self) -> &'static str {
        match self {
            PublishError::DiskFull => "publish_disk_full",
            PublishError::ReadOnly => "publish_read_only",
            PublishError::TooMuchWaiting => "publish_too_much_waiting",
            PublishError::NoTopic | PublishError::TopicNotExist => "publish_no_topic",
            PublishError::NoPartition => "publish_no_partition",
            PublishError::TopicGone => "publish_topic_gone",
            PublishError::TooManyTopics => "publish_too_many_topics",
            PublishError::TooManyChannels => "publish_too_many_channels",
            PublishError::TooManyConsumers => "publish_too_many_consumers",
            PublishError::Stopping => "publish_stopping",
            PublishError::TooBig => "publish_too_big",
            PublishError::Unknown => "publish_outcome_unknown",
            PublishError::NotLeader => "publish_not_leader",
            PublishError::NotWritable(_) => "publish_not_writable",
        }
    }

    /// The code that clients of a cluster know, where it says that another node, or a later time, is the right one.
    pub fn cluster_code(self) -> Option<&'static str> {
        match self {
            PublishError::NotLeader => Some(ClientCode::NotLeader.code()),
            PublishError::NotWritable(_) => Some(ClientCode::NotWritable.code()),
            _ => None,
        }
    }
}

impl From<ReplicaError> for PublishError {
    fn from(error: ReplicaError) -> Self {
        PublishError::NotWritable(match error {
            ReplicaError::OutcomeUnknown => return PublishError::Unknown,
            error if error.client_code() == ClientCode::NotLeader => return PublishError::NotLeader,
            ReplicaError::IsrTooSmall { .. } => Unwritable::IsrTooSmall,
            ReplicaError::WriteDisabled => Unwritable::Disabled,
            ReplicaError::NotConfirmed => Unwritable::NotConfirmed,
            ReplicaError::Failed => Unwritable::Failed,
            _ => Unwritable::Opening,
        })
    }
}

/// What this node can do with a partition of a topic, as its core says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// It leads, and delivers and takes FINs: its epoch was opened.
    pub serves: bool,
    /// It takes publishes, too.
    pub writable: bool,
}

/// Why a channel was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetOffsetError {
    #[error("the topic has no such partition")]
    NoPartition,
    #[error("the partition has no such channel")]
    NoChannel,
    #[error("more than one client is subscribed to the channel: unsubscribe them, or force it")]
    NotFirstClient,
    #[error("clients are subscribed to the channel: unsubscribe them first")]
    HasClients,
    #[error("a place is needed: the oldest or newest message, an offset, a count, an id or a time")]
    NoPlace,
    #[error("the log cannot be read there: try again, and look at /stats")]
    Unreadable,
    #[error("{0}")]
    Failed(PublishError),
}

/// Why a loss was not accepted. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AcceptLossError {
    #[error("this node has no replica of the partition")]
    NoReplica,
    #[error("the partition's replica here waits for no such decision: its role is {role}")]
    Nothing { role: &'static str },
    #[error("{what}. Only who repeats it accepts it: loss={name}")]
    NotNamed { name: String, what: String },
    #[error("the core's journal has failed, so the decision cannot be kept: restart the node, and accept the loss then")]
    ReadOnly,
}

/// Bodies of one publish, in order, owned: what crosses cores. `ends[i]` is where body i ends in `bytes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedBodies {
    pub bytes: Vec<u8>,
    pub ends: Vec<u32>,
    /// No channel delivers them before so many milliseconds have passed.
    pub delay_ms: u64,
}

impl OwnedBodies {
    pub fn push(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
        self.ends.push(self.bytes.len() as u32);
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(s, &e)| &self.bytes[s as usize..e as usize])
    }
}

/// How a subscription wants its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubOptions {
    pub msg_timeout_ms: u64,
    /// Percent of messages to deliver; 0 means all.
    pub sample_rate: u8,
    /// It takes messages in runs, as they are stored, and confirms them in ranges; it is not sampled.
    pub ranged: bool,
    /// The channel is to be ordered, if it is not yet (`log::cursor`).
    pub ordered: bool,
    /// Its messages go out with their place in the log and binary ids ([`placed_message`](crate::codec::nsq::frame)).
    pub placed: bool,
    /// For /stats.
    pub client: ClientInfo,
}

/// One client's SUB, as one partition hears of it.
#[derive(Clone, Debug)]
pub struct SubRequest {
    pub sub: SubId,
    pub topic: TopicRef,
    pub partition: PartitionId,
    pub channel: ChannelName,
    pub options: SubOptions,
    /// What partition 0 said: whether the channel is its topic's first one. Partition 0 itself is asked.
    pub first: Option<bool>,
    /// The client reads this partition alone: it judges for itself.
    pub is_alone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ClientInfo {
    /// Of the protocol: "V2" as in nsqd, or "native".
    pub version: &'static str,
    pub client_id: String,
    pub hostname: String,
    pub user_agent: String,
    pub remote_address: String,
    pub connected_unix_s: i64,
    /// What its bytes pass.
    pub layers: Layers,
    /// Who the auth server says it is.
    pub auth: Option<Box<Identity>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    pub identity: String,
    pub identity_url: String,
}

/// What an auth server is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthQuery {
    pub remote_ip: String,
    pub tls: bool,
    /// Of the client's certificate.
    pub common_name: String,
    pub secret: Vec<u8>,
}

/// The layers of a client's connection, as /stats shows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    pub tls: Option<Box<TlsFacts>>,
    pub snappy: bool,
    pub deflate: bool,
}

/// A session between two cores: it has no reply outstanding, nothing unsent and no subscription.
#[derive(Debug)]
pub struct MovedSession {
    pub peer: Peer,
    /// What the session room needs to go on (identified options, counters).
    pub state: MovedState,
}

#[derive(Debug)]
pub enum MovedState {
    Nsq(crate::session::Carried),
    Native(Box<crate::session::native::NativeCarried>),
    Peer(crate::peer::Carried),
}

/// What a connection has below its session (TLS). Known to the room that made it, and to nobody on the way.
pub type Layer = Box<dyn std::any::Any + Send>;

#[derive(Debug)]
pub enum MeshMessage {
    // ---- topics: asked of the home core
    EnsureTopic {
        ticket: Ticket,
        name: TopicName,
        /// Of a topic that is new; 0: as many as the setting says.
        partitions: u16,
    },
    /// Answered by `Topic`, `NoTopic` when there is none: it is not created.
    FindTopic {
        ticket: Ticket,
        name: TopicName,
    },
    Topic {
        ticket: Ticket,
        result: Result<TopicRef, PublishError>,
    },

    /// From the HTTP thread to the partition's core. Answered by `TopicChanged`, once that is durable.
    EmptyTopic {
        ticket: Ticket,
        topic: TopicRef,
        partition: PartitionId,
    },
    /// From the HTTP thread to its home. Answered by `TopicChanged`, once the decision is durable.
    DeleteTopic {
        ticket: Ticket,
        name: TopicName,
    },
    TopicChanged {
        ticket: Ticket,
        result: Result<(), PublishError>,
    },

    /// How many topics the sender is the home of; told to all when it changes.
    TopicCount {
        topics: u64,
    },
    /// The sender's disk is full, or no longer; told to all when it changes, since space may be freed anywhere.
    DiskFull {
        full: bool,
    },

    /// From its home to all: so every core can list the node's topics.
    TopicCreated {
        topic: TopicRef,
    },

    // ---- a topic goes (src/shard/removal.rs)
    /// To its home: the sender's last channel of the topic went.
    TopicIdle {
        topic: TopicRef,
    },
    /// From its home: may it go? Forced: unless the core cannot write. Answered by `Leave`.
    CloseTopic {
        topic: TopicRef,
        is_forced: bool,
    },
    Leave {
        topic: TopicRef,
        agrees: bool,
    },
    /// It stays.
    ReopenTopic {
        topic: TopicRef,
    },
    /// It goes: its deletion is durable. Answered by `Dropped`.
    DropTopic {
        topic: TopicRef,
    },
    Dropped {
        topic: TopicRef,
        is_gone: bool,
    },
    /// Whether it goes is known after a restart only.
    StuckTopic {
        topic: TopicRef,
    },

    // ---- publish: asked of the partition's core
    Publish {
        ticket: Ticket,
        topic: TopicRef,
        partition: PartitionId,
        bodies: OwnedBodies,
    },
    Published {
        ticket: Ticket,
        result: Result<(), PublishError>,
    },

    // ---- consume: asked of the partition's core
    Subscribe {
        request: Box<SubRequest>,
    },
    /// The channel is durable; whether it is its topic's first one.
    Subscribed {
        sub: SubId,
        partition: PartitionId,
        result: Result<bool, PublishError>,
    },
    /// From partition 0's core: its topic's first channel is durable there. Answered by `ChannelCreated`.
    CreateChannel {
        topic: TopicRef,
        channel: ChannelName,
    },
    /// It is durable in all of the sender's partitions of the topic, or cannot be.
    ChannelCreated {
        topic: TopicRef,
    },
    Unsubscribe {
        sub: SubId,
        topic: TopicRef,
        partition: PartitionId,
        channel: ChannelName,
    },
    /// The connection's core lends: the partition may have `credit` more messages in flight for this client.
    Lend {
        sub: SubId,
        partition: PartitionId,
        credit: u32,
    },
    /// Give `credit` back, as soon as it is not in use; answered by one or more `Returned`.
    Recall {
        sub: SubId,
        partition: PartitionId,
        credit: u32,
    },
    Returned {
        sub: SubId,
        partition: PartitionId,
        credit: u32,
    },
    /// Messages are there but no credit.
    Hungry {
        sub: SubId,
        partition: PartitionId,
    },
    /// The client's output is full (or has room again): deliver nothing until then.
    Block {
        sub: SubId,
        partition: PartitionId,
        blocked: bool,
    },
    /// Frames ready for the socket.
    Deliver {
        sub: SubId,
        frames: Vec<u8>,
    },
    Finish {
        sub: SubId,
        partition: PartitionId,
        ids: Vec<LogId>,
    },
    Requeue {
        sub: SubId,
        partition: PartitionId,
        id: LogId,
        delay_ms: u64,
    },
    Touch {
        sub: SubId,
        partition: PartitionId,
        id: LogId,
    },
    /// A FIN, REQ or TOUCH was not carried out.
    InFlightFailed {
        sub: SubId,
        place: MessagePlace,
        command: InFlightCommand,
        why: InFlightError,
    },

    // ---- asked of the partition's core
    SetOffset {
        ticket: Ticket,
        set: Box<SetOffset>,
    },
    /// Final: where the channel stands.
    OffsetSet {
        ticket: Ticket,
        result: Result<Position, SetOffsetError>,
    },

    /// Answered by `OrderSet`.
    SetOrder {
        ticket: Ticket,
        set: Box<SetOrder>,
    },
    OrderSet {
        ticket: Ticket,
        result: Result<(), SetOffsetError>,
    },
    /// Answered by `ChannelChanged`.
    ChangeChannel {
        ticket: Ticket,
        set: Box<ChangeChannel>,
    },
    /// Final; of one that was created: whether it is its topic's first channel.
    ChannelChanged {
        ticket: Ticket,
        result: Result<bool, SetOffsetError>,
    },
    /// An operator lets go of what the partition's leader would lose, named as it names it. Answered by `LossAccepted`.
    AcceptLoss {
        ticket: Ticket,
        topic: TopicRef,
        partition: PartitionId,
        loss: Option<String>,
    },
    /// What was let go of.
    LossAccepted {
        ticket: Ticket,
        result: Result<String, AcceptLossError>,
    },

    // ---- replicas (src/shard/replication.rs)
    /// From a partition's core to all, and to the HTTP thread, whenever it changes.
    Share {
        topic: TopicRef,
        partition: PartitionId,
        share: Share,
    },
    /// To a client's core: the partition is not led here any more, and the channel has forgotten the client.
    PartLost {
        sub: SubId,
        partition: PartitionId,
    },

    /// To a client's core: its channel was deleted.
    ChannelDeleted {
        sub: SubId,
    },

    // ---- connections
    /// Carried by the IO rooms: the receiving runtime registers the socket and turns it into `Event::Adopted` + `Bytes`.
    Connection {
        fd: i32,
        session: Box<MovedSession>,
        unread: Vec<u8>,
        /// What lies between the socket and the session, if anything does; what it has of bytes comes behind `unread`.
        layer: Option<Layer>,
    },

    // ---- other nodes
    /// A message of another node for a partition of the receiving core.
    Peer {
        from: NodeId,
        addressed: Box<Addressed>,
    },

    /// To the HTTP thread, once per turn that changed something.
    Catalog {
        changes: Vec<super::catalog::CatalogChange>,
    },

    // ---- AUTH: asked of the HTTP thread
    Authorize {
        ticket: Ticket,
        query: Box<AuthQuery>,
    },
    /// The error is for the log.
    Authorized {
        ticket: Ticket,
        result: Result<Arc<Grants>, String>,
    },

    // ---- /stats
    StatsRequest {
        ticket: Ticket,
        topic: Option<TopicName>,
        channel: Option<ChannelName>,
        clients: bool,
    },
    Stats {
        ticket: Ticket,
        stats: Box<crate::metrics::stats::ShardStats>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlightCommand {
    Finish,
    Requeue,
    Touch,
}

/// Why a FIN, REQ or TOUCH was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InFlightError {
    /// Not for this client: unknown, timed out, finished, or another client's. Or its FIN was taken back: it comes again.
    #[error("ID not in flight")]
    NotInFlight,
    /// Another client has it.
    #[error("client does not own message")]
    NotOwned,
    /// The message stays in flight: it comes again by its timeout.
    #[error("{0}")]
    Refused(PublishError),
}
