//! Errors of the client, with whether the request may be sent again.

use super::tls::TlsError;
use ringmq_protocol::codec::native::{Code, FrameError, Malformed, NativeError, Retry};
use std::{io, sync::Arc, time::Duration};

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a request failed. Cheap to clone: one failure is the outcome of many messages.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no connection to {address}: {source}")]
    /// The node could not be reached.
    Connect {
        /// Host and port of the node.
        address: Arc<str>,
        /// Error of the operating system.
        source: Arc<io::Error>,
    },
    #[error("no TLS with {address}: {source}")]
    /// The TLS handshake with the node failed.
    Tls {
        /// Host and port of the node.
        address: Arc<str>,
        /// Reason, with the remedy.
        source: Arc<TlsError>,
    },
    #[error("{address} did not answer within {limit:?}")]
    /// The node sent nothing for longer than its heartbeat allows.
    Silent {
        /// Host and port of the node.
        address: Arc<str>,
        /// The time that was waited.
        limit: Duration,
    },
    #[error("the connection to {address} was lost: {why}")]
    /// The connection ended while a request was under way.
    Lost {
        /// Host and port of the node.
        address: Arc<str>,
        /// Reason why the connection ended.
        why: Arc<str>,
    },
    #[error("{address} violates the protocol: {why}")]
    /// The node sent bytes that the protocol does not allow.
    Protocol {
        /// Host and port of the node.
        address: Arc<str>,
        /// Fault of the bytes.
        why: Arc<str>,
    },
    #[error("the node refuses: {message} ({code:?}, retry: {retry:?})")]
    /// The node refused the request.
    Node {
        /// The reason, for programs.
        code: Code,
        /// Rule for sending the request again.
        retry: Retry,
        /// The reason, for people.
        message: Arc<str>,
        /// Core of the partition, with [`Code::WrongCore`].
        core: u16,
    },
    /// Unknown outcome: the message may be stored or not.
    #[error("the outcome is unknown: {why}; sending the messages again may store them twice")]
    Outcome {
        /// Event that hid the outcome.
        why: Arc<str>,
    },
    #[error("not sent within {limit:?}; the last obstacle: {why}")]
    /// The request was not sent within the time that it was given. Nothing of it was stored.
    Expired {
        /// The time that it was given.
        limit: Duration,
        /// The last obstacle.
        why: Arc<str>,
    },
    #[error("a message or batch of {len} bytes is too long: the node takes at most {max} bytes")]
    /// A message or batch is longer than the node takes.
    TooBig {
        /// Length in bytes.
        len: usize,
        /// The longest that the node takes, in bytes.
        max: usize,
    },
    #[error("a {what} of {len} bytes is too long: the limit is {} bytes", Error::NAME_BYTES_MAX)]
    /// A name is longer than a request can carry.
    Name {
        /// Kind of the name: a topic, a channel.
        what: &'static str,
        /// Length in bytes.
        len: usize,
    },
    #[error("a batch without messages cannot be sent")]
    /// A batch has no messages.
    Empty,
    #[error("topic {topic} has partitions 0 to {last}, not {partition}")]
    /// The topic has no such partition.
    Partition {
        /// The name of the topic.
        topic: Arc<str>,
        /// The partition that was asked for.
        partition: u16,
        /// The topic's last partition.
        last: u16,
    },
    #[error("there is no topic {topic}: create it, or let the producer create it")]
    /// The node has no such topic.
    NoTopic {
        /// The name of the topic.
        topic: Arc<str>,
    },
    #[error("the node has ended the subscription: {reason}")]
    /// The node ended the subscription.
    Unsubscribed {
        /// The reason, as the node gives it.
        reason: Arc<str>,
    },
    /// A consumer goes on with its other partitions.
    #[error("partition {partition} is no longer consumed: {why}")]
    Ended {
        /// The partition that ended.
        partition: u16,
        /// Error that ended it.
        why: Arc<Error>,
    },
    #[error("the client has closed the connection")]
    /// The client, producer or consumer was closed by its owner.
    Closed,
}

impl Error {
    /// Rule for sending the request again: see [`Retry`].
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
            // a file or a setting must be changed first; a client reads its files when it is made
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

    /// Most bytes of a name in a request. Every name that a node takes is shorter, and a frame's metadata has room for so many bytes of
    /// each name.
    const NAME_BYTES_MAX: usize = 4096;

    /// Refuses a name that does not fit a frame. Other rules for names are the node's.
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

    /// True if the error ended the connection.
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

/// Reason why the reading of a stream ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("closed by the node")]
    Ended,
    #[error("the node sent nothing for two heartbeat intervals")]
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
