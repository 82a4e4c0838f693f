//! Messages between cores (and the HTTP thread). Every request carries a ticket that comes back with its answer.

use crate::base::{ChannelName, LogId, MessagePlace, PartitionId, Peer, Position, SubId, TopicName, TopicRef};
use crate::codec::peer::Addressed;
use crate::{
    base::client::ClientInfo,
    seam::{
        grants::Grants,
        outcome::{AcceptLossError, InFlightCommand, InFlightError, PublishError, SetOffsetError},
    },
};
use std::any::Any;

use crate::base::NodeId;

use std::sync::Arc;

use crate::codec::native::Start;

/// Chosen by the asker, meaningful to it alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Room that a native publish's body has in front for the header of its batch.
pub const BATCH_ROOM: usize = crate::format::batch::BATCH_HEADER_LEN;

/// Capabilities of this node for a partition of a topic, as the partition's core says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// The node leads, delivers and takes FINs: its epoch was opened.
    pub serves: bool,
    /// The node takes publishes, too.
    pub writable: bool,
}

/// Bodies of one publish, in order, owned, for another core. `ends[i]`: the end of body i in `bytes`.
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

/// Options of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubOptions {
    pub msg_timeout_ms: u64,
    /// Percent of messages to deliver; 0 means all.
    pub sample_rate: u8,
    /// The client takes messages in runs, as they are stored, and confirms them in ranges; it is not sampled.
    pub ranged: bool,
    /// The channel is to be ordered, if it is not yet (`log::cursor`).
    pub ordered: bool,
    /// Messages go out with their place in the log and binary ids ([`placed_message`](crate::codec::nsq::frame)).
    pub placed: bool,
    /// Client's identity for /stats.
    pub client: ClientInfo,
}

/// SUB of a client, as one partition receives it.
#[derive(Clone, Debug)]
pub struct SubRequest {
    pub sub: SubId,
    pub topic: TopicRef,
    pub partition: PartitionId,
    pub channel: ChannelName,
    pub options: SubOptions,
    /// Answer of partition 0: whether the channel is its topic's first one. `None`: this asks partition 0.
    pub first: Option<bool>,
    /// The client reads this partition alone: it judges for itself.
    pub is_alone: bool,
}

/// Question for an auth server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthQuery {
    pub remote_ip: String,
    pub tls: bool,
    /// Common name of the client's certificate.
    pub common_name: String,
    pub secret: Vec<u8>,
}

/// A session between two cores: it has no reply outstanding, nothing unsent and no subscription.
#[derive(Debug)]
pub struct MovedSession {
    pub peer: Peer,
    pub protocol: Protocol,
    /// State of the session, known to the module of its protocol alone.
    state: Box<dyn Any + Send>,
}

/// Protocol of a session that moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Nsq,
    Native,
    Peer,
}

impl MovedSession {
    pub fn new(peer: Peer, protocol: Protocol, state: impl Any + Send) -> Box<MovedSession> {
        Box::new(MovedSession { peer, protocol, state: Box::new(state) })
    }

    /// The state that [`MovedSession::new`] was given.
    ///
    /// # Panics
    ///
    /// When that was of another type: the sessions of a protocol make and read their own.
    pub fn into_state<T: Any>(self) -> T {
        *self.state.downcast().expect("the state is of the session's protocol")
    }
}

/// State of a connection below its session (TLS), known to the module that made it alone.
pub type Layer = Box<dyn Any + Send>;

#[derive(Debug)]
pub enum MeshMessage {
    // ---- topics: asked of the home core
    EnsureTopic {
        ticket: Ticket,
        name: TopicName,
        /// Number of partitions of a new topic; 0: as many as the setting says.
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

    /// Empties the topic in a partition: from the HTTP thread to the partition's core. Answered by `TopicChanged`, once that is
    /// durable.
    EmptyTopic {
        ticket: Ticket,
        topic: TopicRef,
        partition: PartitionId,
    },
    /// Deletes the topic: from the HTTP thread to its home. Answered by `TopicChanged`, once the decision is durable.
    DeleteTopic {
        ticket: Ticket,
        name: TopicName,
    },
    TopicChanged {
        ticket: Ticket,
        result: Result<(), PublishError>,
    },

    /// Number of topics that the sender is the home of; told to all when it changes.
    TopicCount {
        topics: u64,
    },
    /// The sender's disk is full, or no longer; told to all when it changes, since space may be freed anywhere.
    DiskFull {
        full: bool,
    },

    /// Announces a topic, from its home to all: so every core can list the node's topics.
    TopicCreated {
        topic: TopicRef,
    },

    // ---- a topic goes (crates/ringmq-core/src/shard/removal.rs)
    /// The sender's last channel of the topic went; to the topic's home.
    TopicIdle {
        topic: TopicRef,
    },
    /// Asks whether the topic may go, from its home. Forced: it may, unless the core cannot write. Answered by `Leave`.
    CloseTopic {
        topic: TopicRef,
        is_forced: bool,
    },
    Leave {
        topic: TopicRef,
        agrees: bool,
    },
    /// The channel stays.
    ReopenTopic {
        topic: TopicRef,
    },
    /// The topic goes: its deletion is durable. Answered by `Dropped`.
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
    /// The topic's first channel is durable in partition 0; from that partition's core. Answered by `ChannelCreated`.
    CreateChannel {
        topic: TopicRef,
        channel: ChannelName,
    },
    /// The channel is durable in all of the sender's partitions of the topic, or cannot be.
    ChannelCreated {
        topic: TopicRef,
    },
    Unsubscribe {
        sub: SubId,
        partition: PartitionId,
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
    /// An operator accepts the loss that the partition's leader reported, by the name that the leader gave it. Answered by `LossAccepted`.
    AcceptLoss {
        ticket: Ticket,
        topic: TopicRef,
        partition: PartitionId,
        loss: Option<String>,
    },
    /// Answer to `AcceptLoss`, with the loss that was given up.
    LossAccepted {
        ticket: Ticket,
        result: Result<String, AcceptLossError>,
    },

    // ---- replicas (crates/ringmq-core/src/shard/replication.rs)
    /// Share of this node in a partition: from the partition's core to all, and to the HTTP thread, whenever it changes.
    Share {
        topic: TopicRef,
        partition: PartitionId,
        share: Share,
    },
    /// Whether another node leads the partition: from the partition's core to the HTTP thread, when that changes.
    LedElsewhere {
        topic: TopicRef,
        partition: PartitionId,
        is_elsewhere: bool,
    },
    /// The partition is not led here any more, and the channel has forgotten the client; to the client's core.
    PartLost {
        sub: SubId,
        partition: PartitionId,
    },

    /// The client's channel was deleted; to the client's core.
    ChannelDeleted {
        sub: SubId,
    },

    // ---- connections
    /// Carried by the IO modules: the receiving runtime registers the socket and turns it into `Event::Adopted` + `Bytes`.
    Connection {
        fd: i32,
        session: Box<MovedSession>,
        unread: Vec<u8>,
        /// Layer between the socket and the session, if there is one; bytes that it holds come behind `unread`.
        layer: Option<Layer>,
    },

    // ---- other nodes
    /// A message of another node for a partition of the receiving core.
    Peer {
        from: NodeId,
        addressed: Box<Addressed>,
    },

    /// Changes of the catalog, to the HTTP thread, once per turn that changed something.
    Catalog {
        changes: Vec<CatalogChange>,
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

/// New position of a channel in one partition.
#[derive(Clone, Debug)]
pub struct SetOffset {
    pub topic: TopicRef,
    pub partition: PartitionId,
    pub channel: ChannelName,
    pub to: Start,
    /// `Some`: finish the messages from here up to `to`, and leave the others as they are. `None`: finish all before `to`, and nothing
    /// after it.
    pub from: Option<LogId>,
    /// Moves the cursor also when several clients are subscribed.
    pub force: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelChange {
    /// `first` is the topic's verdict; without one partition 0 judges, or this one where it `is_alone`.
    Create {
        first: Option<bool>,
        is_alone: bool,
    },
    Delete,
    Pause,
    Unpause,
}

#[derive(Clone, Debug)]
pub struct ChangeChannel {
    pub topic: TopicRef,
    pub partition: PartitionId,
    pub channel: ChannelName,
    pub change: ChannelChange,
}

/// Change of a channel in one partition.
#[derive(Clone, Debug)]
pub struct SetOrder {
    pub topic: TopicRef,
    pub partition: PartitionId,
    pub channel: ChannelName,
    pub ordered: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CatalogChange {
    /// Topic of a stand-alone node, from the topic's home core. A new one was created just now, and not found by recovery.
    Topic {
        topic: TopicRef,
        is_new: bool,
    },
    TopicGone {
        topic: TopicRef,
    },
    /// Channel of a partition, from the partition's core.
    Channel {
        topic: TopicRef,
        partition: PartitionId,
        channel: ChannelName,
    },
    ChannelGone {
        topic: TopicRef,
        partition: PartitionId,
        channel: ChannelName,
    },
}
