//! Outcome of a request, as clients and other cores are told.

use crate::codec::peer::Outcome;

/// Code of an error for a client. E_FAILED_ON_NOT_LEADER makes existing clients look the leader up again, E_FAILED_ON_NOT_WRITABLE
/// makes them try another partition or later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientCode {
    NotLeader,
    NotWritable,
}

impl ClientCode {
    pub fn code(self) -> &'static str {
        match self {
            ClientCode::NotLeader => "E_FAILED_ON_NOT_LEADER",
            ClientCode::NotWritable => "E_FAILED_ON_NOT_WRITABLE",
        }
    }
}

/// Reason why a publish, or a change of a channel, was not acknowledged. `Unknown`: it may be done or not. All others: nothing was done.
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
    /// Refusal of a subscription.
    #[error("this node does not lead the partition, and cannot relay: the leader has another number of cores (--shards)")]
    NotRelayed,
    #[error("the partition accepts no write: {0}")]
    NotWritable(Unwritable),
    #[error(transparent)]
    OverLimit(#[from] OverLimit),
    #[error("the channel is not registered, and the topic takes only registered channels: POST /channel/create registers it")]
    NotRegistered,
}

/// Limit of the topic that a publish exceeds; it is tighter than the node's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OverLimit {
    #[error("message too big {bytes} > {max}, the topic's max_msg_size")]
    Message { bytes: u64, max: u64 },
    #[error("delay {delay_ms} ms is out of range 0-{max_ms}, the topic's max_defer")]
    Delay { delay_ms: u64, max_ms: u64 },
}

/// Reason why a partition's leader takes no write for now. Nothing was stored.
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
    #[error("a write failed on this node: the partition accepts no write here until a restart")]
    Failed,
    #[error(
        "the cluster has not created the topic yet: try again in a moment. If the error persists, the log of this node has the reason"
    )]
    NotCreated,
    #[error("this node reaches no leader of the partition, try again in a moment")]
    NoLeader,
    #[error("the leader holds as many publishes of other nodes as it may, try again in a moment")]
    Busy,
    #[error("the leader refused the publish for a reason that this node's version does not know")]
    Refused,
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
            PublishError::NotLeader | PublishError::NotRelayed => "publish_not_leader",
            PublishError::NotWritable(_) => "publish_not_writable",
            PublishError::OverLimit(_) => "publish_over_limit",
            PublishError::NotRegistered => "channel_not_registered",
        }
    }

    /// The code that clients of a cluster know, where it says that another node, or a later time, is the right one.
    pub fn cluster_code(self) -> Option<&'static str> {
        match self {
            PublishError::NotLeader | PublishError::NotRelayed => Some(ClientCode::NotLeader.code()),
            PublishError::NotWritable(_) => Some(ClientCode::NotWritable.code()),
            _ => None,
        }
    }
}

/// Outcome for the node that forwarded a publish.
pub fn outcome_of(result: Result<(), PublishError>) -> Outcome {
    let error = match result {
        Ok(()) => return Outcome::Stored,
        Err(error) => error,
    };
    match error {
        PublishError::Unknown => Outcome::Unknown,
        PublishError::DiskFull => Outcome::DiskFull,
        PublishError::ReadOnly => Outcome::ReadOnly,
        PublishError::TooMuchWaiting => Outcome::TooMuchWaiting,
        PublishError::Stopping => Outcome::Stopping,
        PublishError::TooBig => Outcome::TooBig,
        PublishError::TopicGone => Outcome::TopicGone,
        PublishError::TooManyChannels => Outcome::TooManyChannels,
        PublishError::TooManyConsumers => Outcome::TooManyConsumers,
        PublishError::NotRegistered => Outcome::ChannelNotRegistered,
        PublishError::NotLeader | PublishError::NotRelayed => Outcome::NotLeader,
        PublishError::NotWritable(Unwritable::Opening) => Outcome::Opening,
        PublishError::NotWritable(Unwritable::IsrTooSmall) => Outcome::IsrTooSmall,
        PublishError::NotWritable(Unwritable::Disabled) => Outcome::Disabled,
        PublishError::NotWritable(Unwritable::NotConfirmed) => Outcome::NotConfirmed,
        PublishError::NotWritable(Unwritable::Failed) => Outcome::Failed,
        PublishError::NotWritable(Unwritable::Busy) => Outcome::Busy,
        PublishError::NotWritable(Unwritable::NotCreated | Unwritable::NoLeader | Unwritable::Refused)
        | PublishError::NoTopic
        | PublishError::NoPartition
        | PublishError::TooManyTopics
        | PublishError::OverLimit(_)
        | PublishError::TopicNotExist => Outcome::Refused,
    }
}

/// Result of a publish that was forwarded.
pub fn result_of(outcome: Outcome) -> Result<(), PublishError> {
    Err(match outcome {
        Outcome::Stored => return Ok(()),
        Outcome::DiskFull => PublishError::DiskFull,
        Outcome::ReadOnly => PublishError::ReadOnly,
        Outcome::TooMuchWaiting => PublishError::TooMuchWaiting,
        Outcome::Stopping => PublishError::Stopping,
        Outcome::TooBig => PublishError::TooBig,
        Outcome::TopicGone => PublishError::TopicGone,
        Outcome::TooManyChannels => PublishError::TooManyChannels,
        Outcome::TooManyConsumers => PublishError::TooManyConsumers,
        Outcome::ChannelNotRegistered => PublishError::NotRegistered,
        Outcome::NotLeader => PublishError::NotLeader,
        Outcome::Opening => PublishError::NotWritable(Unwritable::Opening),
        Outcome::IsrTooSmall => PublishError::NotWritable(Unwritable::IsrTooSmall),
        Outcome::Disabled => PublishError::NotWritable(Unwritable::Disabled),
        Outcome::NotConfirmed => PublishError::NotWritable(Unwritable::NotConfirmed),
        Outcome::Failed => PublishError::NotWritable(Unwritable::Failed),
        Outcome::Busy => PublishError::NotWritable(Unwritable::Busy),
        Outcome::Refused => PublishError::NotWritable(Unwritable::Refused),
        _ => PublishError::Unknown,
    })
}

/// Reason why a channel was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetOffsetError {
    #[error("the topic has no such partition")]
    NoPartition,
    #[error("the partition has no such channel")]
    NoChannel,
    #[error("more than one client is subscribed to the channel: unsubscribe them, or force the change")]
    NotFirstClient,
    #[error("clients are subscribed to the channel: unsubscribe them first")]
    HasClients,
    #[error("a position is needed: the oldest or newest message, an offset, a count, an id or a time")]
    NoPlace,
    #[error("the log cannot be read at that position: try again, and look at /stats")]
    Unreadable,
    #[error("{0}")]
    Failed(PublishError),
}

/// Reason why a loss was not accepted. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AcceptLossError {
    #[error("this node has no replica of the partition")]
    NoReplica,
    #[error("no loss of the partition waits for acceptance on this node: the replica's role is {role}")]
    Nothing { role: &'static str },
    #[error("{what}. To accept this loss, repeat the request with its name: loss={name}")]
    NotNamed { name: String, what: String },
    #[error(
        "{what}. A loss cannot be accepted with a cluster file: stop the replica's node, and begin there with an empty data path"
    )]
    ByFile { what: String },
    #[error("the core's journal has failed, so the decision cannot be kept: restart the node, and accept the loss then")]
    ReadOnly,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlightCommand {
    Finish,
    Requeue,
    Touch,
}

/// Reason why a FIN, REQ or TOUCH was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InFlightError {
    /// The message is not in flight for this client: unknown, timed out, finished, or another client's. Or its FIN was taken back: it
    /// comes again.
    #[error("ID not in flight")]
    NotInFlight,
    /// The message is another client's.
    #[error("client does not own message")]
    NotOwned,
    /// The message stays in flight: it comes again by its timeout.
    #[error("{0}")]
    Refused(PublishError),
}
