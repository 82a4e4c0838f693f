//! A connection of the generator in any protocol: publishes and deliveries, without the protocol's frames.

use super::native::Native;
use super::nsq::Nsq;
use super::options::{Options, Protocol};
use std::io;
use std::task::Context;

pub enum PublishAnswer<'a> {
    /// The publish of this id is durable; none: the oldest that was not answered.
    Done(Option<u64>),
    Refused(Option<u64>, &'a str),
}

pub enum Delivered<'a> {
    /// Body of a message; the link confirms it.
    Message(&'a [u8]),
    Error(&'a str),
}

pub enum Connection {
    Nsq(Nsq),
    Native(Box<Native>),
}

impl Connection {
    /// Connected, to publish to the topics with these indices in turn. `number`: of the producer.
    pub async fn producer(options: &Options, number: u32, topics: &[usize]) -> Result<Connection, String> {
        match options.protocol {
            Protocol::Nsq => Nsq::connect(options, topics.to_vec()).await.map(Connection::Nsq),
            Protocol::Native => Native::connect(options, topics, number).await.map(|native| Connection::Native(Box::new(native))),
        }
    }

    /// Subscribed; nothing is delivered before [`Self::start`].
    pub async fn consumer(options: &Options, topic: usize, channel: usize) -> Result<Connection, String> {
        let (name, channel) = (&options.topics[topic], &options.channels[channel]);
        match options.protocol {
            Protocol::Nsq => {
                let mut nsq = Nsq::connect(options, Vec::new()).await?;
                nsq.subscribe(options, name, channel).await?;
                Ok(Connection::Nsq(nsq))
            }
            Protocol::Native => {
                let mut native = Native::connect(options, &[topic], 0).await?;
                native.subscribe(options, name, channel).await?;
                Ok(Connection::Native(Box::new(native)))
            }
        }
    }

    pub fn server_version(&self) -> Option<&str> {
        match self {
            Connection::Nsq(nsq) => nsq.server_version.as_deref(),
            Connection::Native(native) => Some(&native.server_version),
        }
    }

    /// Lets so many messages be delivered and not confirmed at any time.
    pub fn start(&mut self, rdy: u32) {
        match self {
            Connection::Nsq(nsq) => nsq.ready(rdy),
            Connection::Native(native) => native.credit(rdy),
        }
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        match self {
            Connection::Nsq(nsq) => nsq.unsent(),
            Connection::Native(native) => native.unsent(),
        }
    }

    /// True when some bytes went out.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        match self {
            Connection::Nsq(nsq) => nsq.poll_flush(cx),
            Connection::Native(native) => native.poll_flush(cx),
        }
    }

    /// True when some bytes came in. The end of the stream is an error.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        match self {
            Connection::Nsq(nsq) => nsq.poll_fill(cx),
            Connection::Native(native) => native.poll_fill(cx),
        }
    }

    /// Encodes one publish of `count` messages, whose bodies `write` appends; it gets the topic's index and the message's place. Ids
    /// rise, and are never 0.
    pub fn publish(&mut self, options: &Options, id: u64, count: u32, write: impl FnMut(usize, u32, &mut Vec<u8>)) {
        match self {
            Connection::Nsq(nsq) => nsq.publish(options, count, write),
            Connection::Native(native) => native.publish(options, id, count, write),
        }
    }

    /// Gives the answers that came to `each`. An error ends the connection.
    pub fn answers(&mut self, each: impl FnMut(PublishAnswer<'_>) -> Result<(), String>) -> Result<(), String> {
        match self {
            Connection::Nsq(nsq) => nsq.answers(each),
            Connection::Native(native) => native.answers(each),
        }
    }

    /// Gives the messages that came to `each`, and confirms them.
    pub fn deliveries(&mut self, each: impl FnMut(Delivered<'_>)) -> Result<(), String> {
        match self {
            Connection::Nsq(nsq) => nsq.deliveries(each),
            Connection::Native(native) => native.deliveries(each),
        }
    }
}
