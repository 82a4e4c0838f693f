//! Error for a native client from an outcome: a code, and when the request may be sent again.

use crate::codec::native::{Code, Retry};
use crate::format::producer::SequenceError;
use crate::log::AppendError;
use crate::seam::outcome::{PublishError, SetOffsetError, Unwritable};
use crate::session::native::Failure;

impl From<AppendError> for PublishError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::ReadOnly => PublishError::ReadOnly,
            AppendError::Unknown => PublishError::Unknown,
        }
    }
}

pub(super) fn failure_of(error: PublishError) -> Failure {
    let (code, retry) = match error {
        PublishError::DiskFull => (Code::DiskFull, Retry::Later),
        PublishError::ReadOnly => (Code::ReadOnly, Retry::Refresh),
        PublishError::TooMuchWaiting => (Code::TooMuchWaiting, Retry::Later),
        PublishError::NoTopic => (Code::BadTopic, Retry::Never),
        PublishError::NoPartition => (Code::BadPartition, Retry::Never),
        PublishError::TopicGone => (Code::BadTopic, Retry::Refresh),
        PublishError::TooManyChannels | PublishError::TooManyConsumers => (Code::TooManyChannels, Retry::Never),
        PublishError::NotRegistered => (Code::BadChannel, Retry::Never),
        PublishError::TooManyTopics => (Code::TooManyTopics, Retry::Never),
        PublishError::Stopping => (Code::Stopping, Retry::Refresh),
        PublishError::TooBig | PublishError::OverLimit(_) => (Code::TooBig, Retry::Never),
        PublishError::Unknown => (Code::Outcome, Retry::Unknown),
        PublishError::TopicNotExist => (Code::BadTopic, Retry::Refresh),
        PublishError::NotLeader | PublishError::NotRelayed => (Code::NotLeader, Retry::Refresh),
        PublishError::NotWritable(Unwritable::Failed) => (Code::ReadOnly, Retry::Refresh),
        PublishError::NotWritable(_) => (Code::ReadOnly, Retry::Later),
    };
    Failure::new(code, retry, error.to_string())
}

pub(super) fn set_failure(error: SetOffsetError) -> Failure {
    let (code, retry) = match error {
        SetOffsetError::Failed(error) => return failure_of(error),
        SetOffsetError::NoPartition => (Code::BadPartition, Retry::Never),
        SetOffsetError::NoChannel => (Code::BadChannel, Retry::Never),
        SetOffsetError::NotFirstClient | SetOffsetError::HasClients => (Code::BadSubscription, Retry::Never),
        SetOffsetError::NoPlace => (Code::BadStart, Retry::Never),
        SetOffsetError::Unreadable => (Code::Other, Retry::Later),
    };
    Failure::new(code, retry, error.to_string())
}

pub(super) fn sequence_failure(error: &SequenceError) -> Failure {
    let code = match error {
        SequenceError::Gap { .. } => Code::SequenceGap,
        SequenceError::Overlap { .. } | SequenceError::TooHigh => Code::SequenceOverlap,
        SequenceError::UnknownProducer => Code::UnknownProducer,
    };
    // behind a batch that was refused, the ones after it leave a gap: in order, from that one on, they are taken
    let retry = if matches!(error, SequenceError::Gap { .. }) { Retry::Later } else { Retry::Never };
    Failure::new(code, retry, error.to_string())
}
