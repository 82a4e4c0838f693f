//! Messages between replicas of a partition, as plain values. The wire form is the peer codec's.
//!
//! ```text
//! leader                            follower                                        lane
//! Inquire  ─────────────────────>   promises the epoch durably, waits for its writes control
//!           <─────────────────────  Standing (ends, suspect?, newest epochs)         control
//! EpochsAsk ────────────────────>   when no epoch of the page is shared              control
//!           <─────────────────────  Standing, the next page                          control
//! Pull ─────────────────────────>   the leader takes the best tail, or damaged batches   catch-up
//!           <─────────────────────  Pulled                                           catch-up
//!           <─────────────────────  Pull: damage took something here                 catch-up
//! Pulled ───────────────────────>   empty where it cannot be read                    catch-up
//! Align    ─────────────────────>   truncates to the common prefix (or begins anew)  control
//!           <─────────────────────  Aligned                                          control
//! Append   ═════════════════════>   batches verbatim, pipelined in a window          data, or catch-up
//!           <═════════════════════  Ack: durable up to                               data
//! Cursors  ─────────────────────>   channels, their cursors, pauses, deletions       control
//!           <─────────────────────  CursorsAck: applied and durable                  control
//!           <─────────────────────  Refused, instead of any answer                   any
//!
//! leader                            any other node                                  lane
//!           <═════════════════════  Forward: publishes of its clients                data
//! Outcome  ═════════════════════>   the outcome of each                              data
//! Relay    <════════════════════>   frames of its clients' subscriptions             data
//!           <─────────────────────  Change: its operators' changes of channels       control
//! Changed  ─────────────────────>   the outcome of it                                control
//! ```
//! **Fencing.** Every message of the replicas names the leader's epoch and the session. The epoch is the leader's present one, and it
//! alone fences; the epoch in a batch's header is the one in which the batch was first appended. A session is one attempt of this leader
//! to keep this follower in step: it begins with an `Inquire` of a higher number, and messages of an older one are dropped. An answer
//! repeats both numbers of its question.
//!
//! **Order.** A lane delivers in order and without loss, or its connection is lost, which begins a new session. Nothing
//! relies on the order between lanes: the leader sends on one of data and catch-up at a time.
//!
//! **Units.** Offsets and lengths are bytes of the partition's log, headers included, as everywhere. Counts and log ids are
//! messages. There is no time on this wire.

use crate::base::{ChannelName, CoreId, Epoch, LogId, PartitionId, Position, TopicId, TopicName};
use crate::codec::native::Start;
use crate::codec::peer::Outcome;
use crate::codec::peer::error::PeerError;
use crate::format::batch::Batch;
use crate::format::batch::{BATCH_BODY_MAX, BATCH_HEADER_LEN};
use crate::format::cursor::CursorImage;
use crate::format::files::Bad;
use crate::format::producer::Producer;
pub use crate::format::tail::EpochEnd;
use bytes::Bytes;

/// Batch bytes of one [`Append`] or [`Pulled`] beyond the first batch; one batch may be as long as a batch can be.
pub const APPEND_BYTES_MAX: usize = 1024 * 1024;
/// The longest run of batch bytes that is believed.
pub const RUN_BYTES_MAX: usize = BATCH_HEADER_LEN + BATCH_BODY_MAX + APPEND_BYTES_MAX;
/// Entries of one [`Standing`].
pub const EPOCHS_MAX: usize = 64;
/// Channels of one [`Cursors`], also deletions: all that a partition may have.
pub const CURSORS_MAX: usize = crate::format::snapshot::CHANNELS_MAX;
/// Encoded cursors of one [`Cursors`]. The sender leaves the highest intervals out until they fit, as a snapshot does.
pub const CURSORS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Idempotent producers of one [`Cursors`], those that were used last: all that a partition knows by default.
pub const PRODUCERS_TOLD_MAX: usize = 1000;

/// Address of a partition's replica in a frame. Topic id and partition choose the replica. A known name with another id is other data
/// and is answered with [`PeerError::UnknownPartition`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Route {
    pub topic_id: TopicId,
    /// Partition, below [`PartitionId::COUNT_MAX`].
    pub partition: PartitionId,
}

/// Number of an attempt to keep one follower in step, chosen by the leader. A leader begins with 1 in each epoch and gives each
/// number once, to whomever: a follower that was removed and added again within the epoch hears higher ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Session(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Epoch of the leader; in an answer, the epoch of the question.
    pub epoch: Epoch,
    pub session: Session,
}

/// A message of one partition. Sender and receiver are the connection's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub head: Head,
    pub body: Body,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    // ---- from the leader
    Inquire(Inquire),
    EpochsAsk(EpochsAsk),
    Pull(Pull),
    Align(Align),
    Append(Append),
    Cursors(Cursors),
    // ---- from the follower
    Standing(Standing),
    Pulled(Pulled),
    Aligned(Aligned),
    Ack(Ack),
    CursorsAck(CursorsAck),
    Refused(PeerError),
    // ---- between any two nodes
    Forward(Forward),
    Forwarded(Forwarded),
    Relay(Relayed),
    Change(Change),
    Changed(Changed),
}

/// Connections have a lane for each, so that catch-up never delays a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    Data,
    Control,
    CatchUp,
}

/// Begins a session: the follower promises to follow no lower epoch, and says where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inquire {
    /// Name of the topic, for a node that must create the partition.
    pub topic: TopicName,
    /// 1 to [`PartitionId::COUNT_MAX`].
    pub partitions: u16,
    /// Version of the leader's metadata. A follower with an older one asks the store for the new metadata; it never takes metadata from
    /// a peer.
    pub membership_version: u64,
}

/// The follower's newest epochs had none in common: those below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochsAsk {
    pub below: Epoch,
}

/// A replica's log, as far as it vouches for it: up to its durable end, or to the first place where damage took something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// First position still stored, and the header crc of the batch before it.
    pub start: Position,
    pub start_crc: u32,
    /// Last epoch and its end; the first of `epochs` unless a later page was asked for.
    pub last_epoch: Epoch,
    pub durable: Position,
    /// Committed position that the replica knows. At most `durable`, except on a replica that lost data.
    pub committed: Position,
    /// True if the replica truncated, lost or set aside data and was not compared since.
    pub suspect: bool,
    /// Newest first, at most [`EPOCHS_MAX`].
    pub epochs: Vec<EpochEnd>,
    /// True if there are older ones.
    pub more: bool,
}

/// Request for batches from `from` on. A leader that opens its epoch asks a member for its tail; a replica with damage asks a replica in
/// step for the lost batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pull {
    pub from: Position,
    /// Wanted bytes, at most [`APPEND_BYTES_MAX`]; at least one batch comes.
    pub bytes_max: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    pub from: Position,
    pub batches: Batches,
}

/// Makes the follower's log a prefix of the leader's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Truncate the log at `at`, the end of a batch in both logs. The follower checks its batch against `chain_crc`, the header crc of
    /// the leader's batch that ends there. Without it the first appended batch proves the match.
    Truncate { at: Position, chain_crc: Option<u32> },
    /// Drop everything and begin at `start`, behind a batch whose header has this crc: the leader's log no longer reaches
    /// back to anything shared.
    Restart { start: Position, chain_crc: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aligned {
    pub at: Position,
}

/// Whole batches, one after the other, as they stand in the log. A part may hold several; each begins with its header,
/// which says its length (a lost batch has its header alone).
#[derive(Clone, Debug, Default)]
pub struct Batches {
    pub parts: Vec<Bytes>,
    /// The checksum of each body was computed, and is as its header says.
    are_bodies_checked: bool,
}

impl PartialEq for Batches {
    fn eq(&self, other: &Batches) -> bool {
        self.parts == other.parts
    }
}

impl Eq for Batches {}

impl Batches {
    pub fn new(parts: Vec<Bytes>) -> Batches {
        Batches { parts, are_bodies_checked: false }
    }

    /// The checksum of each body was computed, and is as its header says.
    pub fn note_checked(&mut self) {
        self.are_bodies_checked = true;
    }

    /// Takes the first batch of a part, verified.
    pub fn take(&self, part: &mut Bytes, route: Route) -> Result<Batch, Bad> {
        let parse = if self.are_bodies_checked { Batch::parse_checked } else { Batch::parse };
        let batch = parse(part, route.topic_id, route.partition)?;
        bytes::Buf::advance(part, batch.bytes.len());
        Ok(batch)
    }

    /// Length in bytes, at most [`RUN_BYTES_MAX`].
    pub fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }
}

/// Batches for the follower's end. Without any it asks for an [`Ack`] and tells the committed end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Append {
    /// The leader's committed end. May lie beyond the follower's log.
    pub committed: Position,
    pub batches: Batches,
}

/// Acknowledgement of a follower: everything below `durable` is on its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    pub durable: Position,
}

/// State of channels. `seq` counts from 1 in each session; the follower applies the messages in order and drops older ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursors {
    pub seq: u64,
    /// The leader's committed end: the follower's end for cursors is the lesser of this and its durable end (rule 3).
    pub committed: Position,
    /// True: move the follower's end to `committed` now, and apply the cursors. False: cursors beyond the end wait until it moves.
    pub flush: bool,
    /// True if these are all channels: the receiver deletes others.
    pub is_all: bool,
    /// The oldest message that a new channel may get, as the leader has it. Not with an operation that a client waits for.
    pub collect_start: Option<Position>,
    /// Position up to which retention may remove: every member of the required set has a durable collect start at or beyond it, so no
    /// later leader gives earlier messages to a channel. `None` with an operation.
    pub agreed_start: Option<Position>,
    /// Cursors with names, pauses and order, at most [`CURSORS_MAX`]. The follower creates channels that are new to it.
    pub cursors: Vec<CursorImage>,
    /// Deleted channels, at most [`CURSORS_MAX`].
    pub deleted: Vec<ChannelName>,
    /// Idempotent producers whose batches the leader's log does not hold any more, with the list of all channels: the follower's
    /// log may begin behind them, too. At most [`PRODUCERS_TOLD_MAX`].
    pub producers: Vec<Producer>,
    /// True if damage may have taken channels from this leader, or from one before it, and no operator has accepted that: the next leader
    /// lacks them, too. Not with an operation.
    pub channels_lost: bool,
}

/// Sent when all that `seq` brought is durable. With an error when something of it was not applied as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CursorsAck {
    pub seq: u64,
    pub result: Result<(), PeerError>,
}

/// Sender of a forwarded publish: the node's life, its core, and the core's number of the publish. The answer repeats it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Asker {
    pub generation: u64,
    pub core: CoreId,
    pub ticket: u64,
}

/// A client's publish for the leader. The head's epoch is 0; its session is the sender's attempt for the partition: after one
/// refusal the leader refuses everything that follows in the attempt, so that the sender can try all of it again in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    pub asker: Asker,
    /// No channel delivers the messages before so many milliseconds have passed.
    pub delay_ms: u64,
    pub bodies: PackedBodies,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forwarded {
    pub asker: Asker,
    pub outcome: Outcome,
}

/// Bodies of one publish as they travel: the length of each as a `u32`, then the bodies. At most [`RUN_BYTES_MAX`] bytes. Clones share
/// the memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackedBodies {
    count: usize,
    bytes: Bytes,
}

impl PackedBodies {
    pub fn pack<'a>(bodies: impl Iterator<Item = &'a [u8]> + Clone) -> PackedBodies {
        let (count, len) = bodies.clone().fold((0, 0), |(count, len), body| (count + 1, len + LENGTH + body.len()));
        let mut bytes = Vec::with_capacity(len);
        bodies.clone().for_each(|body| bytes.extend_from_slice(&(body.len() as u32).to_le_bytes()));
        bodies.for_each(|body| bytes.extend_from_slice(body));
        PackedBodies { count, bytes: bytes.into() }
    }

    /// Bodies from another node. `None`: the lengths do not add up, or a body is empty.
    pub fn parse(count: u32, bytes: Bytes) -> Option<PackedBodies> {
        let count = count as usize;
        let table = bytes.get(..count.checked_mul(LENGTH)?)?;
        let (mut total, mut is_any_empty) = (table.len(), count == 0);
        for len in table.chunks_exact(LENGTH).map(length) {
            total = total.checked_add(len)?;
            is_any_empty |= len == 0;
        }
        (total == bytes.len() && !is_any_empty).then_some(PackedBodies { count, bytes })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of all bodies.
    pub fn body_bytes(&self) -> usize {
        self.bytes.len() - self.count * LENGTH
    }

    /// The bodies in wire form.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let (table, mut rest) = self.bytes.split_at(self.count * LENGTH);
        table.chunks_exact(LENGTH).map(length).map(move |len| {
            let (body, behind) = rest.split_at(len);
            rest = behind;
            body
        })
    }
}

/// Message between a client's subscription and the leader of the partition. The head's session is the subscription's number, which the
/// client's core gives for the partition and never uses again in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Relayed {
    // ---- to the leader
    Subscribe(Box<Subscriber>),
    Unsubscribe,
    /// Number of messages by which the client's credit grows.
    Lend(u32),
    /// Number of messages that the leader returns as soon as they are not in use.
    Recall(u32),
    /// The client's output is full, or has room again.
    Block(bool),
    Finish(Vec<LogId>),
    Requeue {
        id: LogId,
        delay_ms: u64,
    },
    Touch(LogId),
    // ---- from the leader
    Subscribed,
    Refused(Outcome),
    Returned(u32),
    Hungry,
    /// Frames of the NSQ protocol, as they are for the client.
    Deliver(Bytes),
    /// The leader dropped the client and its messages in flight.
    Lost,
    ChannelDeleted,
    NotFinished(LogId, NotCarriedOut),
    NotRequeued(LogId, NotCarriedOut),
    NotTouched(LogId, NotCarriedOut),
    /// Kind of a later version.
    Other,
}

impl Relayed {
    /// Whether a client's node says it, and not the leader.
    pub fn is_for_leader(&self) -> bool {
        use Relayed::{Block, Finish, Lend, Recall, Requeue, Subscribe, Touch, Unsubscribe};
        matches!(self, Subscribe(_) | Unsubscribe | Lend(_) | Recall(_) | Block(_) | Finish(_) | Requeue { .. } | Touch(_))
    }
}

/// Reason why a FIN, REQ or TOUCH was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotCarriedOut {
    NotInFlight,
    NotOwned,
    Refused(Outcome),
}

/// Subscription as its leader receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscriber {
    pub channel: ChannelName,
    pub msg_timeout_ms: u64,
    pub sample_rate: u8,
    pub ordered: bool,
    pub placed: bool,
    /// Name of the client, for statistics.
    pub client_id: String,
    pub hostname: String,
    pub user_agent: String,
    pub remote_address: String,
    pub connected_unix_s: i64,
}

/// Operator's change of a channel, from another node to the leader of the partition. The head's epoch is 0, its session 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub asker: Asker,
    /// Or the topic's pause.
    pub channel: ChannelName,
    pub what: Changing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changing {
    /// `first`: whether the channel is its topic's first; without it the partition judges.
    Create {
        first: Option<bool>,
        is_alone: bool,
    },
    Delete,
    Pause,
    Unpause,
    SetOrder(bool),
    /// Moves the cursor. With `from`, only the messages from there up to `to` are finished. `force`: also when several clients are
    /// subscribed.
    SetOffset {
        to: Start,
        from: Option<LogId>,
        force: bool,
    },
    /// Kind of a later version.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    pub asker: Asker,
    pub result: Result<ChangeDone, NotChanged>,
}

/// A change of a channel that is final.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeDone {
    /// True when the change created the topic's first channel.
    pub is_first: bool,
    /// Position of the channel after its offset was set.
    pub at: Option<Position>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotChanged {
    NoPartition,
    NoChannel,
    NotFirstClient,
    HasClients,
    NoPlace,
    Unreadable,
    Failed(Outcome),
}

/// Bytes of the field that holds a body's length.
const LENGTH: usize = size_of::<u32>();

fn length(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

impl Body {
    pub fn lane(&self) -> Lane {
        match self {
            Body::Append(_) | Body::Ack(_) | Body::Forward(_) | Body::Forwarded(_) | Body::Relay(_) => Lane::Data,
            Body::Pull(_) | Body::Pulled(_) => Lane::CatchUp,
            _ => Lane::Control,
        }
    }
}
