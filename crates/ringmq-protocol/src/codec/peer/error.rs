//! Reasons of a replica to refuse a peer's message, each with its rule of repetition.

use crate::base::{Epoch, Position};
use crate::format::files::Bad;

/// Rule for retrying a refused message. The leader's follower limit bounds the retries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// The same again, after the usual pause.
    Again,
    /// Retry when the metadata was read anew.
    AfterRefresh,
    /// A new session: the logs are compared again first.
    AfterAlign,
    /// No retry: an operator, a restart or another epoch decides.
    Never,
}

/// Reason why a replica refused a peer's message. The number is the one on the wire: never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerError {
    #[error("the partition is not known here, or not yet")]
    UnknownPartition,
    #[error("this replica has promised epoch {}: lower epochs are fenced", promised.0)]
    StaleEpoch { promised: Epoch },
    #[error("the sender is not the leader that the metadata here names")]
    ForeignLeader,
    #[error("this node is no replica of the partition, as far as its metadata says")]
    NotMember,
    #[error("no batch is accepted before the logs were compared in this session")]
    NotAligned,
    #[error("the batch would leave a gap behind offset {}", end.offset)]
    Gap { end: Position },
    #[error("this replica's log has other bytes at offset {offset}: the replica leaves the ISR and catches up")]
    Diverged { offset: i64 },
    #[error("a batch does not match its header: {0}")]
    BadBatch(Bad),
    #[error("the committed end here is offset {}: this replica does not truncate below it on a leader's word alone", committed.offset)]
    BelowCommitted { committed: Position },
    #[error("the requested bytes are not stored here, or no longer")]
    OutOfReach,
    #[error("a write failed on this replica: no batch is accepted until a restart")]
    Failed,
    #[error("ephemeral channels are not replicated")]
    Ephemeral,
    #[error("the cursor lies beyond this replica's end")]
    Clamped,
    #[error("a newer cursor of the channel is known here")]
    Superseded,
    #[error("the journal has no room for the leader's channels: this replica takes them when the disk has space")]
    NoRoom,
}

impl PeerError {
    pub fn retry(&self) -> Retry {
        match self {
            PeerError::UnknownPartition | PeerError::ForeignLeader | PeerError::NotMember => Retry::AfterRefresh,
            PeerError::StaleEpoch { .. } => Retry::AfterRefresh,
            PeerError::NotAligned | PeerError::Gap { .. } | PeerError::Diverged { .. } | PeerError::OutOfReach => {
                Retry::AfterAlign
            }
            // The bytes were damaged on the way (the connection's own checksum should have seen it) or at the leader.
            PeerError::BadBatch(_) | PeerError::Clamped | PeerError::NoRoom => Retry::Again,
            PeerError::BelowCommitted { .. } | PeerError::Failed | PeerError::Ephemeral | PeerError::Superseded => Retry::Never,
        }
    }

    /// True if the refuser leaves the ISR by this: the leader proposes its removal at once, not after the limit.
    pub fn leaves_isr(&self) -> bool {
        matches!(self, PeerError::Diverged { .. } | PeerError::BelowCommitted { .. } | PeerError::Failed | PeerError::NoRoom)
    }

    /// Number on the wire.
    pub fn code(&self) -> u16 {
        match self {
            PeerError::UnknownPartition => 1,
            PeerError::StaleEpoch { .. } => 2,
            PeerError::ForeignLeader => 3,
            PeerError::NotMember => 4,
            PeerError::NotAligned => 5,
            PeerError::Gap { .. } => 6,
            PeerError::Diverged { .. } => 7,
            PeerError::BadBatch(_) => 8,
            PeerError::BelowCommitted { .. } => 9,
            PeerError::OutOfReach => 10,
            PeerError::Failed => 11,
            PeerError::Ephemeral => 12,
            PeerError::Clamped => 13,
            PeerError::Superseded => 14,
            PeerError::NoRoom => 15,
        }
    }
}
