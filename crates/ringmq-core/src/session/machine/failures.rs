//! Error for an NSQ client from an outcome that came later.

use crate::codec::nsq::ClientError;
use crate::seam::outcome::{InFlightCommand, InFlightError, OverLimit, PublishError};
use crate::session::CommandKind;

/// Fatal, as in nsqd, with the code of its command.
pub fn failure(asked: CommandKind, why: PublishError) -> ClientError {
    let (code, name) = match asked {
        CommandKind::Publish => ("E_PUB_FAILED", "PUB"),
        CommandKind::DeferredPublish => ("E_DPUB_FAILED", "DPUB"),
        CommandKind::MultiPublish => ("E_MPUB_FAILED", "MPUB"),
        CommandKind::Subscribe => ("E_SUB_FAILED", "SUB"),
    };
    let text = format!("{name} failed {why}");
    if let Some(code) = why.cluster_code() {
        // Nothing is wrong with the command: a publisher keeps its connection; a consumer looks for the leader anew.
        let is_fatal = asked == CommandKind::Subscribe;
        return if is_fatal { ClientError::fatal(code, text) } else { ClientError::passing(code, text) };
    }
    let code = match why {
        PublishError::TooMuchWaiting => "E_PUB_TOO_MUCH_WAITING",
        PublishError::NoPartition | PublishError::TopicNotExist => "E_TOPIC_NOT_EXIST",
        PublishError::NotRegistered => "E_SUB_CHANNEL_NOT_REGISTERED",
        PublishError::OverLimit(OverLimit::Message { .. }) => "E_BAD_MESSAGE",
        PublishError::OverLimit(OverLimit::Delay { .. }) => "E_INVALID",
        _ => code,
    };
    ClientError::fatal(code, text)
}

pub(super) fn in_flight_error(id: &[u8; 16], command: InFlightCommand, why: InFlightError) -> ClientError {
    let (code, name): (_, &[u8]) = match command {
        InFlightCommand::Finish => ("E_FIN_FAILED", b"FIN "),
        InFlightCommand::Requeue => ("E_REQ_FAILED", b"REQ "),
        InFlightCommand::Touch => ("E_TOUCH_FAILED", b"TOUCH "),
    };
    ClientError::passing(code, [name, id, format!(" failed {why}").as_bytes()].concat())
}
