//! Requests to a node besides messages.

use super::error::Result;
use super::link::{RequestAnswer, TopicMap};
use super::node::unexpected;
use super::{Client, Error};
use ringmq_protocol::base::{PartitionId, Position};
use ringmq_protocol::codec::native::{Request, SetOffset, Start};

impl Client {
    /// Lists all topics and the places of their partitions, ordered by name.
    pub async fn topics(&self) -> Result<Vec<TopicMap>> {
        self.inner.topics().await
    }

    /// The topic, as the node has it now.
    pub async fn topic(&self, topic: &str) -> Result<TopicMap> {
        match self.inner.refresh(topic).await? {
            Some(map) => Ok((*map).clone()),
            None => Err(Error::NoTopic { topic: topic.into() }),
        }
    }

    /// Creates a topic; 0 partitions: as many as the node's setting says. An existing topic is answered as it is.
    ///
    /// ```no_run
    /// # async fn f(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let topic = client.create_topic("orders", 8).await?;
    /// assert_eq!(topic.partitions.len(), 8);
    /// # Ok(()) }
    /// ```
    pub async fn create_topic(&self, topic: &str, partitions: u16) -> Result<TopicMap> {
        self.inner.create(topic, partitions).await.map(|map| (*map).clone())
    }

    /// The place in a partition that `start` means.
    ///
    /// ```no_run
    /// # use ringmq_client::{Client, Error, Start};
    /// # async fn f(client: Client) -> Result<(), Error> {
    /// let end = client.find("orders", 0, Start::Newest).await?;
    /// println!("{} messages were ever stored there", end.count);
    /// # Ok(()) }
    /// ```
    pub async fn find(&self, topic: &str, partition: u16, start: Start) -> Result<Position> {
        let request = Request::Find { topic, partition: PartitionId(partition), start };
        match self.inner.ask_there(topic, partition, &request).await? {
            RequestAnswer::Found(at) => Ok(at),
            other => Err(unexpected(&*self.inner.any_link().await?, &other)),
        }
    }

    /// Moves a channel of a partition to `start`, forwards or back, and returns the position there. Messages before it count as
    /// finished, and none after it. A message in flight after it is delivered again, and a FIN of its present holder does not
    /// count. Refused while more than one consumer is subscribed, unless it is forced.
    ///
    /// ```no_run
    /// # use ringmq_client::{Client, Error, Start};
    /// # async fn f(client: Client) -> Result<(), Error> {
    /// let at = client.set_offset("orders", 0, "billing", Start::Timestamp(1_700_000_000_000_000_000), false).await?;
    /// println!("the channel continues at the message that has {} before it", at.count);
    /// # Ok(()) }
    /// ```
    pub async fn set_offset(&self, topic: &str, partition: u16, channel: &str, start: Start, force: bool) -> Result<Position> {
        Error::unless_it_fits("channel's name", channel)?;
        let request = Request::SetOffset(SetOffset { topic, partition: PartitionId(partition), channel, start, force });
        match self.inner.ask_there(topic, partition, &request).await? {
            RequestAnswer::Found(at) => Ok(at),
            other => Err(unexpected(&*self.inner.any_link().await?, &other)),
        }
    }

    /// The longest message that the node takes, in bytes.
    pub async fn message_bytes_max(&self) -> Result<usize> {
        Ok(self.inner.any_link().await?.facts.max_message_bytes)
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<()> {
        let link = self.inner.any_link().await?;
        match link.ask(&Request::Ping).await? {
            RequestAnswer::Pong => Ok(()),
            other => Err(unexpected(&link, &other)),
        }
    }
}
