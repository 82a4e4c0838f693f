//! Consuming: messages of the partitions of a topic, through a channel, in batches or one by one.

use super::FOREVER;
use super::delivery::{Deliveries, Delivery, Received};
use super::error::{Error, Result};
use super::node::Inner;
use super::subscription::{Delivered, Settings, Sub, Task};
use futures_core::Stream;
use ringmq_protocol::base::PartitionId;
use ringmq_protocol::codec::native::Start;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

/// Settings of a consumer, each with its default.
#[must_use = "a builder does nothing until `build` is called"]
pub struct ConsumerBuilder {
    inner: Arc<Inner>,
    topic: Arc<str>,
    channel: Arc<str>,
    partitions: Vec<u16>,
    start: Start,
    messages: u32,
    bytes: u64,
    auto_ack: bool,
    ack_delay: Duration,
    message_timeout: Duration,
    ordered: bool,
    create: bool,
}

impl ConsumerBuilder {
    pub(super) fn new(inner: Arc<Inner>, topic: &str, channel: &str) -> ConsumerBuilder {
        ConsumerBuilder {
            inner,
            topic: topic.into(),
            channel: channel.into(),
            partitions: Vec::new(),
            start: Start::Default,
            messages: 2500,
            bytes: 16 * 1024 * 1024,
            auto_ack: false,
            ack_delay: Duration::from_millis(2),
            message_timeout: Duration::ZERO,
            ordered: false,
            create: true,
        }
    }

    /// Consumes these partitions only. Default: all.
    pub fn partitions(mut self, partitions: impl IntoIterator<Item = u16>) -> Self {
        self.partitions = partitions.into_iter().collect();
        self
    }

    /// Sets the position at which a new channel begins; an existing channel goes on. Default: as for NSQ clients, the first channel of
    /// a topic begins at the oldest message, a later one at the end.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the largest number of unfinished messages over all partitions: at least one per partition, at most the node's limit.
    /// Default: 2,500.
    pub fn max_in_flight(mut self, messages: u32) -> Self {
        self.messages = messages;
        self
    }

    /// Sets the largest number of bytes that the consumer holds: its queue, and deliveries that the program has not dropped yet. A
    /// single frame may exceed it. Default: 16 MiB.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Finishes a message when the next one is asked for. Default: off.
    pub fn auto_ack(mut self, on: bool) -> Self {
        self.auto_ack = on;
        self
    }

    /// Sets the time that a finished message waits, so that many are confirmed together. Default: 2 ms.
    pub fn ack_delay(mut self, delay: Duration) -> Self {
        self.ack_delay = delay.min(FOREVER);
        self
    }

    /// Sets the time after which an unfinished message is delivered again. Zero: the node's default.
    pub fn message_timeout(mut self, timeout: Duration) -> Self {
        self.message_timeout = timeout;
        self
    }

    /// Makes the channel ordered: one message at a time of each partition, in log order, and none before the previous one is finished
    /// durably. A message that is requeued, times out or loses its consumer is delivered again before any later one. The channel stays
    /// ordered, for all its consumers. Finished messages are confirmed at once, whatever [`Self::ack_delay`] says.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Makes a missing topic an error. Default: the topic is created.
    pub fn must_exist(mut self) -> Self {
        self.create = false;
        self
    }

    /// Looks the partitions up and subscribes. The channel gets every message that is published after this returns, wherever the
    /// channel begins. A partition that cannot be subscribed to at once is tried again in the background.
    pub async fn build(self) -> Result<Consumer> {
        Error::unless_it_fits("channel's name", &self.channel)?;
        let map = match self.inner.topic(&self.topic).await? {
            Some(map) => map,
            None if self.create => self.inner.create(&self.topic, 0).await?,
            None => return Err(Error::NoTopic { topic: self.topic }),
        };
        let all = map.partitions.len() as u16;
        let mut partitions = if self.partitions.is_empty() { (0..all).collect() } else { self.partitions };
        if let Some(&partition) = partitions.iter().find(|p| **p >= all) {
            return Err(Error::Partition { topic: self.topic, partition, last: all.saturating_sub(1) });
        }
        partitions.sort_unstable();
        partitions.dedup();
        let n = partitions.len() as u32;
        let settings = Arc::new(Settings {
            topic: self.topic,
            channel: self.channel,
            start: self.start,
            message_timeout: self.message_timeout,
            window_messages: (self.messages / n).max(1),
            window_bytes: (self.bytes / n as u64).max(1),
            ack_delay: if self.ordered { Duration::ZERO } else { self.ack_delay },
            ordered: self.ordered,
        });
        // a connection subscribes once to each partition of a channel, and another consumer may have
        let inner = Arc::new(self.inner.apart(&settings.topic, map));
        let (to, from) = mpsc::unbounded_channel();
        let (mut subs, mut tasks) = (Vec::with_capacity(partitions.len()), Vec::with_capacity(partitions.len()));
        for partition in partitions {
            let sub = Arc::new(Sub::new(PartitionId(partition), &settings));
            let task = Task { inner: inner.clone(), settings: settings.clone(), sub: sub.clone(), to: to.clone() };
            tasks.push(tokio::spawn(task.run()));
            subs.push(sub);
        }
        for sub in &subs {
            sub.begun.notified().await;
        }
        Ok(Consumer { from, subs, tasks, current: None, given: Given::Nothing, auto_ack: self.auto_ack })
    }
}

/// Messages that were given out last, for automatic acknowledgement.
enum Given {
    Nothing,
    One(Delivery),
    Batch(Received),
}

/// Consumes one topic in one channel. Made by [`Client::consumer`](super::Client::consumer).
///
/// Each message is delivered at least once: again when it is not finished in time, when the connection is lost, or when it
/// is requeued. Dropping the consumer ends its subscriptions; finished messages are confirmed first, in the background.
/// It has connections of its own, one per core on which its partitions live.
///
/// It is also a [`Stream`] of the results of [`Consumer::next`]; the stream ends when no subscription is left.
///
/// ```no_run
/// # async fn f(consumer: ringmq_client::Consumer) -> Result<(), ringmq_client::Error> {
/// use futures_lite::StreamExt;
///
/// let mut large = consumer.filter(|message| message.as_ref().map_or(true, |m| m.body().len() > 1000)).take(10);
/// while let Some(message) = large.next().await {
///     message?.finish();
/// }
/// # Ok(()) }
/// ```
pub struct Consumer {
    from: mpsc::UnboundedReceiver<Delivered>,
    subs: Vec<Arc<Sub>>,
    tasks: Vec<JoinHandle<()>>,
    /// The batch that `next` takes messages from.
    current: Option<Deliveries>,
    given: Given,
    auto_ack: bool,
}

impl Consumer {
    /// The next messages that came together: of one partition, one after the other. Dropping the future loses nothing.
    ///
    /// ```no_run
    /// # async fn f(mut consumer: ringmq_client::Consumer) -> Result<(), ringmq_client::Error> {
    /// loop {
    ///     let batch = consumer.next_batch().await?;
    ///     let bytes: usize = batch.bodies().map(|body| body.len()).sum();
    ///     println!("{} messages, {bytes} bytes", batch.num());
    ///     batch.finish();
    /// }
    /// # }
    /// ```
    pub async fn next_batch(&mut self) -> Result<Received> {
        self.finish_given();
        let received = poll_fn(|context| self.poll_receive(context)).await?;
        if self.auto_ack {
            self.given = Given::Batch(received.clone());
        }
        Ok(received)
    }

    /// The next message. Dropping the future loses nothing. After [`Error::Ended`] one partition is not consumed any more; the
    /// others go on.
    pub async fn next(&mut self) -> Result<Delivery> {
        self.finish_given();
        let delivery = self.one().await?;
        self.note_given(&delivery);
        Ok(delivery)
    }

    async fn one(&mut self) -> Result<Delivery> {
        poll_fn(|context| self.poll_one(context)).await
    }

    fn poll_one(&mut self, context: &mut Context<'_>) -> Poll<Result<Delivery>> {
        loop {
            if let Some(delivery) = self.current.as_mut().and_then(Iterator::next) {
                return Poll::Ready(Ok(delivery));
            }
            self.current = None;
            self.current = Some(ready!(self.poll_receive(context))?.deliveries());
        }
    }

    fn note_given(&mut self, delivery: &Delivery) {
        if self.auto_ack {
            self.given = Given::One(delivery.clone());
        }
    }

    fn finish_given(&mut self) {
        match std::mem::replace(&mut self.given, Given::Nothing) {
            Given::Nothing => {}
            Given::One(delivery) => delivery.finish(),
            Given::Batch(received) => received.finish(),
        }
    }

    /// The next batch that can still be finished; one of a connection that was lost meanwhile comes again.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Received>> {
        loop {
            let delivered = match self.from.try_recv() {
                Ok(delivered) => delivered,
                Err(mpsc::error::TryRecvError::Disconnected) => Err(Error::Closed),
                Err(mpsc::error::TryRecvError::Empty) => {
                    // a caller that asks for more has nothing left to finish first
                    self.subs.iter().for_each(|sub| sub.hurry());
                    ready!(self.from.poll_recv(context)).unwrap_or(Err(Error::Closed))
                }
            };
            if !delivered.as_ref().is_ok_and(Received::is_stale) {
                return Poll::Ready(delivered);
            }
        }
    }

    /// Handles messages in `num` tasks at a time: finishes those that went well, requeues the others with `delay`. Ends with the
    /// first error of the consumer, when the handlers that run have ended.
    ///
    /// ```no_run
    /// # async fn f(consumer: &mut ringmq_client::Consumer) {
    /// let error = consumer
    ///     .for_each_concurrent(16, std::time::Duration::from_secs(1), |message| async move {
    ///         println!("{} bytes", message.body().len());
    ///         Ok::<(), std::io::Error>(())
    ///     })
    ///     .await;
    /// println!("no more: {error}");
    /// # }
    /// ```
    pub async fn for_each_concurrent<F, Fut, E>(&mut self, num: usize, delay: Duration, handler: F) -> Error
    where
        F: Fn(Delivery) -> Fut,
        Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        self.finish_given();
        let mut running = JoinSet::new();
        let error = loop {
            while running.len() >= num.max(1) {
                // a handler that panicked says nothing: its message comes again after its timeout
                let _ = running.join_next().await;
            }
            let delivery = match self.one().await {
                Ok(delivery) => delivery,
                Err(error) => break error,
            };
            let handling = handler(delivery.clone());
            running.spawn(async move {
                match handling.await {
                    Ok(()) => delivery.finish(),
                    Err(error) => {
                        tracing::debug!(partition = delivery.partition().0, log_id = delivery.log_id().0, "requeued: {error}");
                        delivery.requeue(delay);
                    }
                }
            });
        };
        while running.join_next().await.is_some() {}
        error
    }

    /// Waits until the node has taken every finish, requeue and touch so far. After an error some messages that were finished since
    /// the last sync may come again, because a connection was lost, or a subscription has ended.
    pub async fn sync(&self) -> Result<()> {
        let waited: Vec<_> = self.subs.iter().map(|sub| sub.sync()).collect();
        let mut failed = None;
        for done in waited {
            // only the end of the runtime ends a task without an answer
            if let Err(error) = done.await.unwrap_or(Err(Error::Closed)) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Closes the consumer: finishes the last messages, if that is automatic, waits until all finished messages are confirmed, and
    /// ends the subscriptions.
    pub async fn close(mut self) -> Result<()> {
        self.finish_given();
        let confirmed = self.sync().await;
        self.from.close();
        self.subs.iter().for_each(|sub| sub.close());
        for task in std::mem::take(&mut self.tasks) {
            // it has panicked, or its runtime ends: either way it is gone
            let _ = task.await;
        }
        confirmed
    }
}

impl Stream for Consumer {
    type Item = Result<Delivery>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Delivery>>> {
        let consumer = self.get_mut();
        consumer.finish_given();
        let next = match ready!(consumer.poll_one(context)) {
            Err(Error::Closed) => None,
            next => Some(next.inspect(|delivery| consumer.note_given(delivery))),
        };
        Poll::Ready(next)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.subs.iter().for_each(|sub| sub.close());
    }
}
