//! The client of the native protocol (docs/native.md), for programs on tokio: producers, consumers and administration.
//!
//! ```no_run
//! # async fn f() -> Result<(), ringmq_client::Error> {
//! use ringmq_client::Client;
//!
//! let client = Client::builder().address("127.0.0.1:4153").connect().await?;
//! let producer = client.producer("orders").build().await?;
//! producer.send(b"one").await?.await?;
//!
//! let mut consumer = client.consumer("orders", "billing").build().await?;
//! let message = consumer.next().await?;
//! println!("{:?}", message.body());
//! message.finish();
//! # Ok(()) }
//! ```
//!
//! A client has one connection per core that it uses; its producers share them, and each consumer has its own. The client reconnects
//! after a lost connection, and looks partitions up again after they have moved. A batch that is sent twice is stored once
//! ([`ProducerBuilder::idempotent`]).
//! Every buffer is bounded: a producer's by its window, a consumer's by its credit. [`Error::retry`] tells whether the
//! request may be sent again. This crate never decides what a node stores; it shares the codec with the node, and nothing else.

#![warn(missing_docs)]

mod ack;
mod admin;
mod batch;
mod consumer;
#[cfg(test)]
mod consumer_tests;
mod delivery;
mod error;
mod lane;
mod link;
mod node;
mod producer;
mod subscription;
#[cfg(test)]
mod tests;
mod tls;

pub use ack::{Ack, Published};
pub use batch::Batch;
pub use consumer::{Consumer, ConsumerBuilder};
pub use delivery::{Deliveries, Delivery, Received};
pub use error::{Error, Result};
#[doc(hidden)]
pub use link::TLS_ALERT;
pub use link::{BoxedStream, CoreAddress, Stream, TopicMap};
pub use node::Connector;
pub use producer::{Producer, ProducerBuilder};
pub use ringmq_protocol::base::{LogId, PartitionId, Position};
pub use ringmq_protocol::codec::native::{Code, Retry, Start};
pub use ringmq_protocol::pem::PemError;
#[doc(hidden)]
pub use tls::Secure;
pub use tls::{Tls, TlsError};

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The longest time that a setting means: with it added, no clock overflows.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A node, as its clients see it. Cheap to clone; the connections end with the last clone, producer and consumer.
#[derive(Clone)]
pub struct Client {
    inner: Arc<node::Inner>,
}

/// Settings of a client, each with its default.
#[must_use = "a builder does nothing until `connect` is called"]
pub struct ClientBuilder {
    config: node::Config,
    tls: Option<Tls>,
}

impl ClientBuilder {
    /// Host and port of the node's native protocol. `127.0.0.1:4153`.
    pub fn address(mut self, address: impl Into<Arc<str>>) -> Self {
        self.config.address = address.into();
        self
    }

    /// Sets the name of this client in the node's statistics.
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.config.intro.client_id = id.into();
        self
    }

    /// Sets the heartbeat interval. Each side sends at least this often, and closes after two intervals without input. Zero: the node's
    /// default.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.config.intro.heartbeat = interval;
        self
    }

    /// Limits the time of a connection attempt, handshake included. Default: 10 s.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.config.connect_limit = limit;
        self
    }

    /// The pauses between tries to connect: the first, and the longest. 20 ms, 5 s.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        (self.config.pause, self.config.pause_max) = (first.min(FOREVER), longest.min(FOREVER));
        self
    }

    /// Speaks TLS, over TCP or the streams of [`ClientBuilder::connector`]. Default: plaintext.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Makes the byte streams, instead of TCP: for a proxy, or a test. It gets the address.
    ///
    /// ```no_run
    /// # use ringmq_client::{BoxedStream, Client};
    /// let builder = Client::builder().connector(|address| async move {
    ///     let stream = tokio::net::TcpStream::connect(&*address).await?;
    ///     // a proxy's handshake would follow here
    ///     Ok(Box::pin(stream) as BoxedStream)
    /// });
    /// ```
    pub fn connector<F, Fut>(mut self, connect: F) -> Self
    where
        F: Fn(Arc<str>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<BoxedStream>> + Send + 'static,
    {
        self.config.connector = Arc::new(move |address| Box::pin(connect(address)));
        self
    }

    /// Connects, inside a tokio runtime. One attempt: whether the node is there is the caller's first question.
    pub async fn connect(mut self) -> Result<Client> {
        Error::unless_it_fits("client id", &self.config.intro.client_id)?;
        if let Some(tls) = &self.tls {
            self.config.secure = Some(tls.load().map_err(|e| Error::tls(&self.config.address, e))?);
        }
        let inner = Arc::new(node::Inner::new(self.config));
        inner.any_link().await?;
        Ok(Client { inner })
    }
}

impl Client {
    /// The settings of a client, to be changed before [`ClientBuilder::connect`].
    pub fn builder() -> ClientBuilder {
        let intro = link::Introduction {
            client_id: String::new(),
            user_agent: concat!("ringmq-client/", env!("CARGO_PKG_VERSION")).into(),
            heartbeat: Duration::ZERO,
        };
        let config = node::Config {
            address: "127.0.0.1:4153".into(),
            intro,
            connect_limit: Duration::from_secs(10),
            pause: Duration::from_millis(20),
            pause_max: Duration::from_secs(5),
            connector: node::tcp(),
            secure: None,
        };
        ClientBuilder { config, tls: None }
    }

    /// A producer for a topic.
    pub fn producer(&self, topic: &str) -> ProducerBuilder {
        ProducerBuilder::new(self.inner.clone(), topic)
    }

    /// A consumer of a topic, in a channel: the consumers of one channel share its messages.
    pub fn consumer(&self, topic: &str, channel: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.inner.clone(), topic, channel)
    }
}

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
