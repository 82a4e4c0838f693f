//! What can go wrong for a client, and whether the request may be sent again.

use super::tls::TlsError;
use ringmq_protocol::codec::native::{Code, FrameError, Malformed, NativeError, Retry};
use std::{io, sync::Arc, time::Duration};

pub type Result<T> = std::result::Result<T, Error>;

/// Why a request failed. Cheap to clone: one failure is the outcome of many messages.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no connection to {address}: {source}")]
    Connect { address: Arc<str>, source: Arc<io::Error> },
    #[error("no TLS with {address}: {source}")]
    Tls { address: Arc<str>, source: Arc<TlsError> },
    #[error("{address} did not answer within {limit:?}")]
    Silent { address: Arc<str>, limit: Duration },
    #[error("the connection to {address} was lost: {why}")]
    Lost { address: Arc<str>, why: Arc<str> },
    #[error("{address} does not keep to the protocol: {why}")]
    Protocol { address: Arc<str>, why: Arc<str> },
    #[error("the node refuses: {message} ({code:?}, retry: {retry:?})")]
    Node {
        code: Code,
        retry: Retry,
        message: Arc<str>,
        /// With [`Code::WrongCore`]: where the partition is.
        core: u16,
    },
    /// It may be stored or not, and nobody can say any more.
    #[error("the outcome is not known: {why}; sending the messages again may store them twice")]
    Outcome { why: Arc<str> },
    #[error("not sent within {limit:?}; the last obstacle: {why}")]
    Expired { limit: Duration, why: Arc<str> },
    #[error("{len} bytes are more than the {max} that the node takes in one message or batch")]
    TooBig { len: usize, max: usize },
    #[error("a {what} of {len} bytes: at most {} are sent", Error::NAME_BYTES_MAX)]
    Name { what: &'static str, len: usize },
    #[error("a batch without messages cannot be sent")]
    Empty,
    #[error("topic {topic} has partitions 0 to {last}, not {partition}")]
    Partition { topic: Arc<str>, partition: u16, last: u16 },
    #[error("there is no topic {topic}: create it, or let the producer do it")]
    NoTopic { topic: Arc<str> },
    #[error("the node has ended the subscription: {reason}")]
    Unsubscribed { reason: Arc<str> },
    /// A consumer goes on with its other partitions.
    #[error("partition {partition} is not consumed any more: {why}")]
    Ended { partition: u16, why: Arc<Error> },
    #[error("it was closed on this side")]
    Closed,
}

impl Error {
    /// What may be done with the request: see [`Retry`].
    ///
    /// ```
    /// use ringmq_client::{Error, Retry};
    /// assert_eq!(Error::Closed.retry(), Retry::Never);
    /// ```
    pub fn retry(&self) -> Retry {
        match self {
            Error::Node { retry, .. } => *retry,
            Error::Connect { .. } | Error::Expired { .. } => Retry::Later,
            Error::Lost { .. } | Error::Silent { .. } | Error::Protocol { .. } | Error::Outcome { .. } => Retry::Unknown,
            Error::Unsubscribed { .. } => Retry::Refresh,
            // somebody must change a file or a setting first; a client reads its files when it is made
            Error::Tls { .. } => Retry::Never,
            Error::Ended { why, .. } => why.retry(),
            Error::TooBig { .. } | Error::Name { .. } | Error::Empty => Retry::Never,
            Error::Partition { .. } | Error::NoTopic { .. } | Error::Closed => Retry::Never,
        }
    }

    /// The code that the node gave, if it was the node that refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Node { code, .. } => Some(*code),
            Error::Ended { why, .. } => why.code(),
            _ => None,
        }
    }

    /// Any name that a node takes is shorter; with so many bytes of each, a frame's metadata has room for all.
    const NAME_BYTES_MAX: usize = 4096;

    /// Whether a frame has room for a name. Whether it is a good one is for the node to say.
    pub(super) fn unless_it_fits(what: &'static str, name: &str) -> Result<()> {
        if name.len() <= Error::NAME_BYTES_MAX { Ok(()) } else { Err(Error::Name { what, len: name.len() }) }
    }

    pub(super) fn outcome(why: impl std::fmt::Display) -> Error {
        Error::Outcome { why: why.to_string().into() }
    }

    pub(super) fn tls(address: &Arc<str>, source: TlsError) -> Error {
        Error::Tls { address: address.clone(), source: Arc::new(source) }
    }

    pub(super) fn lost(address: &Arc<str>, why: impl std::fmt::Display) -> Error {
        Error::Lost { address: address.clone(), why: why.to_string().into() }
    }

    pub(super) fn protocol(address: &Arc<str>, why: impl std::fmt::Display) -> Error {
        Error::Protocol { address: address.clone(), why: why.to_string().into() }
    }

    /// Whether the connection is gone with it.
    pub(super) fn is_of_the_link(&self) -> bool {
        matches!(
            self,
            Error::Lost { .. } | Error::Protocol { .. } | Error::Silent { .. } | Error::Connect { .. } | Error::Tls { .. }
        )
    }
}

impl From<&NativeError<'_>> for Error {
    fn from(e: &NativeError<'_>) -> Error {
        Error::Node { code: e.code, retry: e.retry, message: e.message.into(), core: e.core }
    }
}

/// Why the reading of a stream ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the node closed it")]
    Ended,
    #[error("nothing was heard from the node for two heartbeat intervals")]
    Silent,
    #[error("the node says: {0}")]
    Fatal(String),
    #[error("{0}")]
    Unexpected(&'static str),
}

impl Broken {
    pub(super) fn into_error(self, address: &Arc<str>) -> Error {
        match self {
            Broken::Frame(_) | Broken::Malformed(_) | Broken::Unexpected(_) => Error::protocol(address, self),
            _ => Error::lost(address, self),
        }
    }
}
