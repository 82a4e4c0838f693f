//! A client of either protocol, as the world sees it.

use super::book::{Book, ChannelKey};
use super::client::Client;
use super::native::NativeClient;
use super::reader::Reader;
use crate::base::Rng;

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most clients are of the first kind")]
pub enum AnyClient {
    Nsq(Client),
    Native(Box<NativeClient>),
    Reader(Box<Reader>),
}

impl AnyClient {
    pub fn nsq(&self) -> Option<&Client> {
        match self {
            AnyClient::Nsq(client) => Some(client),
            AnyClient::Native(_) | AnyClient::Reader(_) => None,
        }
    }

    /// Bytes that are to be written: all of them now.
    pub fn out(&mut self) -> &mut Vec<u8> {
        match self {
            AnyClient::Nsq(c) => &mut c.out,
            AnyClient::Native(c) => &mut c.out,
            AnyClient::Reader(c) => c.pending_output(),
        }
    }

    pub fn act(&mut self, book: &mut Book, rng: &mut Rng) {
        match self {
            AnyClient::Nsq(c) => c.act(book, rng),
            AnyClient::Native(c) => c.act(book, rng),
            AnyClient::Reader(c) => c.act(book, rng),
        }
    }

    /// Acts for a client that is to be done soon.
    pub fn act_quick(&mut self, book: &mut Book) {
        match self {
            AnyClient::Nsq(c) => c.act_quick(book),
            AnyClient::Native(c) => c.act_quick(book),
            AnyClient::Reader(c) => c.act_quick(book),
        }
    }

    pub fn receive(&mut self, book: &mut Book, bytes: &[u8]) {
        match self {
            AnyClient::Nsq(c) => c.receive(book, bytes),
            AnyClient::Native(c) => c.receive(book, bytes),
            AnyClient::Reader(c) => c.receive(book, bytes),
        }
    }

    pub fn has_failed(&self) -> bool {
        match self {
            AnyClient::Nsq(c) => c.has_failed,
            AnyClient::Native(c) => c.has_failed,
            AnyClient::Reader(c) => c.has_failed,
        }
    }

    /// True if the client takes everything of a channel.
    pub fn drains(&self, channel: &ChannelKey) -> bool {
        match self {
            AnyClient::Nsq(c) => c.consumes(channel),
            AnyClient::Native(c) => c.consumes(channel),
            AnyClient::Reader(_) => false,
        }
    }

    /// True if the client wants to ask another node.
    pub fn wants_to_leave(&self) -> bool {
        match self {
            AnyClient::Nsq(c) => c.wants_to_leave,
            AnyClient::Native(c) => c.wants_to_leave,
            AnyClient::Reader(_) => false,
        }
    }

    /// True if a publish was answered with an error that leaves a connection as it is.
    pub fn lacks_publish(&self) -> bool {
        matches!(self, AnyClient::Native(c) if c.lacks_publish)
    }

    pub fn is_satisfied(&self) -> bool {
        match self {
            AnyClient::Nsq(c) => c.is_satisfied(),
            AnyClient::Native(c) => c.is_satisfied(),
            AnyClient::Reader(c) => c.is_satisfied(),
        }
    }

    pub fn time_passed(&mut self, ms: u64) {
        if let AnyClient::Native(c) = self {
            c.age_ms += ms;
        }
    }
}
