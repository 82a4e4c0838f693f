//! Errors between replicas and towards clients, each with the rule by which it may be tried again.

use crate::base::NodeId;
use crate::{
    codec::peer::error::{PeerError, Retry},
    seam::outcome::{ClientCode, PublishError, Unwritable},
};

use crate::format::files::Bad;
use crate::log::Unreadable;

impl From<Unreadable> for PeerError {
    fn from(error: Unreadable) -> Self {
        match error {
            Unreadable::Gone(_) => PeerError::OutOfReach,
            // It may be mended, or readable, in a while.
            Unreadable::Damaged(_) | Unreadable::Refused(_) => PeerError::BadBatch(Bad::Crc),
        }
    }
}

/// Reason why a replica refuses a client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error("this node does not lead the partition")]
    NotLeader { leader: Option<NodeId> },
    #[error("the leader's lease may be over: the leader neither writes nor delivers until the lease is renewed")]
    LeaseOver,
    #[error("the leader compares its log with the other replicas; try again in a moment")]
    Opening,
    #[error("{isr} replicas are in sync, and a write needs {min_isr}")]
    IsrTooSmall { isr: usize, min_isr: usize },
    #[error("the leader hands the partition over to another node; try again in a moment")]
    HandingOver,
    #[error("the former leader's lease may still hold: deliveries begin when it is over")]
    FormerMayServe,
    #[error("writes are disabled until the next epoch is open")]
    WriteDisabled,
    #[error(
        "the outcome is unknown: the write was issued and not confirmed by all replicas in time; the next epoch decides the outcome"
    )]
    OutcomeUnknown,
    #[error("the operation was not confirmed by all replicas in time and was taken back")]
    NotConfirmed,
    #[error("a write failed on this node: the partition accepts no write here until a restart")]
    Failed,
}

impl ReplicaError {
    pub fn retry(&self) -> Retry {
        match self {
            ReplicaError::NotLeader { .. } | ReplicaError::LeaseOver => Retry::AfterRefresh,
            ReplicaError::Opening
            | ReplicaError::HandingOver
            | ReplicaError::FormerMayServe
            | ReplicaError::IsrTooSmall { .. } => Retry::Again,
            ReplicaError::WriteDisabled | ReplicaError::NotConfirmed => Retry::Again,
            // A second copy is the client's decision; an idempotent producer may repeat safely.
            ReplicaError::OutcomeUnknown => Retry::Never,
            ReplicaError::Failed => Retry::AfterRefresh,
        }
    }

    pub fn client_code(&self) -> ClientCode {
        match self {
            ReplicaError::NotLeader { .. } | ReplicaError::LeaseOver => ClientCode::NotLeader,
            _ => ClientCode::NotWritable,
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
