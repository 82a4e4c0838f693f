//! Publishing: messages are gathered into batches per partition, which are sent in order, as many at a time as the window has
//! room for.

use super::FOREVER;
use super::ack::{Ack, BatchOutcome, OutcomeGuard};
use super::batch::{Batch, Limits};
use super::error::{Error, Result};
use super::lane;
use super::link::partition_of;
use super::node::Inner;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Settings of a producer; [`ProducerBuilder`] has a setter for each.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub topic: Arc<str>,
    pub partitions: u16,
    pub create: bool,
    pub linger: Duration,
    pub batch_messages: u32,
    pub batch_bytes: usize,
    pub window_batches: usize,
    pub window_bytes: usize,
    pub idempotent: bool,
    pub limit: Duration,
    pub pinned: Option<Pinned>,
}

/// An id that a producer keeps in one partition, over its own restarts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pinned {
    pub partition: u16,
    pub producer_id: u64,
    pub next_sequence: u64,
}

/// Settings of a producer, each with its default.
#[must_use = "a builder does nothing until `build` is called"]
pub struct ProducerBuilder {
    inner: Arc<Inner>,
    settings: Settings,
}

impl ProducerBuilder {
    pub(super) fn new(inner: Arc<Inner>, topic: &str) -> ProducerBuilder {
        let settings = Settings {
            topic: topic.into(),
            partitions: 0,
            create: true,
            linger: Duration::from_millis(1),
            batch_messages: 10_000,
            batch_bytes: 256 * 1024,
            window_batches: 16,
            window_bytes: 16 * 1024 * 1024,
            idempotent: true,
            limit: Duration::from_secs(120),
            pinned: None,
        };
        ProducerBuilder { inner, settings }
    }

    /// A topic that is not there is made, with so many partitions; 0 (the default): as many as the node's setting says.
    pub fn create_with(mut self, partitions: u16) -> Self {
        (self.settings.create, self.settings.partitions) = (true, partitions);
        self
    }

    /// A topic that is not there is an error.
    pub fn must_exist(mut self) -> Self {
        self.settings.create = false;
        self
    }

    /// Sets the time that a message waits for others to share its batch. Zero: only while the window is full. Default: 1 ms.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger.min(FOREVER);
        self
    }

    /// A batch with so many messages is sent. 10,000.
    pub fn batch_messages(mut self, num: u32) -> Self {
        self.settings.batch_messages = num.max(1);
        self
    }

    /// A batch of so many bytes is sent. 256 KiB.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.batch_bytes = bytes.max(1);
        self
    }

    /// Batches in flight, per partition. 16.
    pub fn window_batches(mut self, num: usize) -> Self {
        self.settings.window_batches = num.max(1);
        self
    }

    /// Bytes taken and not answered, over all partitions; a send waits while there are as many. The producer's memory. 16 MiB.
    pub fn window_bytes(mut self, bytes: usize) -> Self {
        self.settings.window_bytes = bytes.max(1);
        self
    }

    /// Gives batches a producer id and a sequence, so that a batch that is sent again is stored once. Default: on.
    pub fn idempotent(mut self, on: bool) -> Self {
        self.settings.idempotent = on;
        self
    }

    /// Publishes to `partition` as the producer `producer_id`, whose next message there has the number `next_sequence`: 0 for an id that
    /// was never used. A program that keeps both numbers, and after its restart sends the same batches again from that number on, stores
    /// none of them twice. Once a batch is refused for good, those behind it are refused too: the producer never takes another id.
    pub fn resume(mut self, partition: u16, producer_id: u64, next_sequence: u64) -> Self {
        self.settings.pinned = Some(Pinned { partition, producer_id: producer_id.max(1), next_sequence });
        self.idempotent(true)
    }

    /// Limits the time that a batch is tried for, from its first message on. Default: 120 s; at most ten years.
    ///
    /// Keep it well below the node's `--producer-expiry` (24 h). A partition that has forgotten the producer refuses repeated batches,
    /// whose outcome is then unknown, and stores the very first batches again.
    pub fn retry_for(mut self, limit: Duration) -> Self {
        self.settings.limit = limit.min(FOREVER);
        self
    }

    /// Asks where the topic's partitions are, and makes the topic if it is to.
    pub async fn build(self) -> Result<Producer> {
        let ProducerBuilder { inner, mut settings } = self;
        let map = match inner.topic(&settings.topic).await? {
            Some(map) => map,
            None if settings.create => inner.create(&settings.topic, settings.partitions).await?,
            None => return Err(Error::NoTopic { topic: settings.topic }),
        };
        let facts = inner.any_link().await?.facts.clone();
        let limits = Limits::new(facts.max_message_bytes, facts.max_frame_bytes);
        settings.batch_bytes = settings.batch_bytes.min(limits.body_bytes);
        let lanes = (0..map.partitions.len()).map(|_| Arc::new(Lane::default())).collect();
        let shared = Arc::new(LaneContext {
            settings,
            limits,
            held: AtomicUsize::new(0),
            room: Notify::new(),
            closed: AtomicBool::new(false),
        });
        let producer = Producer { inner, shared, lanes, turn: AtomicUsize::new(chance_of(map.partitions.len())) };
        for (partition, lane) in producer.lanes.iter().enumerate() {
            lane::spawn(producer.inner.clone(), producer.shared.clone(), lane.clone(), partition_of(partition));
        }
        Ok(producer)
    }
}

fn chance_of(n: usize) -> usize {
    super::node::chance() as usize % n.max(1)
}

/// State that all lanes share.
pub(super) struct LaneContext {
    pub settings: Settings,
    pub limits: Limits,
    /// Bytes taken and not answered.
    held: AtomicUsize,
    room: Notify,
    pub closed: AtomicBool,
}

impl LaneContext {
    /// Room for a message, when anything is left of the window: so that none is too large to get through.
    fn take(&self, bytes: usize) -> bool {
        let max = self.settings.window_bytes;
        self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| (held < max).then(|| held + bytes)).is_ok()
    }

    pub fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.room.notify_waiters();
    }
}

/// The batches of one partition that its task has not taken yet.
#[derive(Default)]
pub(super) struct Lane {
    queue: Mutex<Queue>,
    pub wake: Notify,
}

#[derive(Default)]
pub(super) struct Queue {
    open: Option<Gathering>,
    sealed: VecDeque<Sealed>,
    flush: bool,
    /// A batch was sealed since the turn came here last.
    was_sealed: bool,
    /// True when the lane takes no messages from here any more.
    gone: bool,
    /// Outcomes that are still owed, in order.
    owing: VecDeque<Arc<BatchOutcome>>,
}

struct Gathering {
    batch: Batch,
    since: Instant,
    owed: OutcomeGuard,
}

/// A batch to be sent.
pub(super) struct Sealed {
    pub batch: Batch,
    pub since: Instant,
    pub owed: OutcomeGuard,
}

/// Next action of a lane's task.
pub(super) enum Next {
    Send(Sealed),
    /// Time at which the open batch is sent.
    At(Instant),
    Nothing,
}

impl Lane {
    pub fn locked(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|p| p.into_inner())
    }
}

impl Queue {
    fn owe(&mut self, outcome: Arc<BatchOutcome>) {
        while self.owing.front().is_some_and(|o| o.is_set()) {
            self.owing.pop_front();
        }
        self.owing.push_back(outcome);
    }

    fn seal(&mut self) {
        if let Some(Gathering { batch, since, owed }) = self.open.take() {
            self.sealed.push_back(Sealed { batch, since, owed });
            self.was_sealed = true;
        }
    }

    /// True if so many bytes do not fit into the open batch.
    fn is_overfull(&self, bytes: usize, batch_bytes: usize) -> bool {
        self.open.as_ref().is_some_and(|o| o.batch.bytes() + bytes > batch_bytes)
    }

    /// Ends the queue after its task has stopped: batches that the task had not taken fail, and nothing more is taken. Returns their bytes.
    pub fn end(&mut self) -> usize {
        self.gone = true;
        self.seal();
        let ended = self.sealed.drain(..).map(|sealed| {
            sealed.owed.set(Err(Error::Closed));
            sealed.batch.bytes()
        });
        ended.sum()
    }

    /// Next batch that is due, or the time of the next one.
    pub fn next(&mut self, now: Instant, linger: Duration, closed: bool) -> Next {
        if self.sealed.is_empty()
            && let Some(open) = &self.open
        {
            let at = open.since + linger;
            if now < at && !self.flush && !closed {
                return Next::At(at);
            }
            self.seal();
        }
        match self.sealed.pop_front() {
            Some(sealed) => {
                self.flush &= self.open.is_some();
                Next::Send(sealed)
            }
            None => {
                self.flush = false;
                Next::Nothing
            }
        }
    }
}

/// Publishes to one topic. Made by [`Client::producer`](super::Client::producer); share it by reference or in an `Arc`.
///
/// Dropping the producer sends the queued messages in the background, as long as the runtime lives; [`close`](Producer::close) waits
/// for that.
pub struct Producer {
    inner: Arc<Inner>,
    shared: Arc<LaneContext>,
    lanes: Vec<Arc<Lane>>,
    /// The partition whose turn it is.
    turn: AtomicUsize,
}

impl Producer {
    /// The number of partitions of the topic that it sends to.
    pub fn partitions(&self) -> usize {
        self.lanes.len()
    }

    /// Queues a message for the partition whose turn it is; the turn passes with each batch, full or sent after its linger.
    /// Waits while the window is full; a call that is dropped while it waits has not queued the message. The returned [`Ack`]
    /// resolves when the message is durable.
    ///
    /// ```no_run
    /// # async fn f(producer: ringmq_client::Producer) -> Result<(), ringmq_client::Error> {
    /// let stored = producer.send(b"hello").await?;   // taken
    /// println!("stored at {:?}", stored.await?.at);  // durable
    /// # Ok(()) }
    /// ```
    pub async fn send(&self, message: &[u8]) -> Result<Ack> {
        self.push(None, message).await
    }

    /// Queues a message for the partition of its key: crc32(key) modulo the number of partitions. Messages of one key are stored in the
    /// order in which they were sent.
    ///
    /// The order holds between messages that one task sends one after the other, while the topic keeps its number of partitions, and
    /// only with idempotence: without it, a batch that the node refused for a while is stored after later batches. A message that
    /// fails leaves a gap; later messages are stored all the same.
    pub async fn send_keyed(&self, key: &[u8], message: &[u8]) -> Result<Ack> {
        self.push(Some(self.partition_of_key(key)), message).await
    }

    /// Queues a message for a partition.
    pub async fn send_to(&self, partition: u16, message: &[u8]) -> Result<Ack> {
        self.push(Some(self.lane_of(partition)?), message).await
    }

    /// Queues a whole batch for the partition whose turn it is.
    pub async fn send_batch(&self, batch: Batch) -> Result<Ack> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        self.push_batch(turn, batch).await
    }

    /// Queues a whole batch for a partition.
    pub async fn send_batch_to(&self, partition: u16, batch: Batch) -> Result<Ack> {
        self.push_batch(self.lane_of(partition)?, batch).await
    }

    /// The partition of the messages of this key.
    pub fn partition_of_key(&self, key: &[u8]) -> usize {
        crc32fast::hash(key) as usize % self.lanes.len()
    }

    fn lane_of(&self, partition: u16) -> Result<usize> {
        let (at, len) = (partition as usize, self.lanes.len());
        let wrong = || Error::Partition { topic: self.shared.settings.topic.clone(), partition, last: partition_of(len - 1).0 };
        (at < len).then_some(at).ok_or_else(wrong)
    }

    async fn room(&self, bytes: usize) {
        while !self.shared.take(bytes) {
            let waiting = self.shared.room.notified();
            tokio::pin!(waiting);
            waiting.as_mut().enable();
            if self.shared.take(bytes) {
                return;
            }
            waiting.await;
        }
    }

    /// The lane whose turn it is for a message that takes so many bytes.
    fn lane_in_turn(&self, bytes: usize) -> usize {
        let turn = self.turn.load(Ordering::Relaxed);
        let at = turn % self.lanes.len();
        let mut queue = self.lanes[at].locked();
        if queue.is_overfull(bytes, self.shared.settings.batch_bytes) {
            queue.seal();
            self.lanes[at].wake.notify_one();
        }
        if !std::mem::take(&mut queue.was_sealed) {
            return at;
        }
        drop(queue);
        // Callers that come at the same time pass it once.
        let next = turn.wrapping_add(1);
        let _ = self.turn.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
        let at = next % self.lanes.len();
        self.lanes[at].locked().was_sealed = false;
        at
    }

    /// Queues a message on this lane, or on the lane whose turn it is.
    async fn push(&self, lane: Option<usize>, message: &[u8]) -> Result<Ack> {
        let LaneContext { settings, limits, .. } = &*self.shared;
        let bytes = message.len() + ringmq_protocol::format::batch::MESSAGE_OVERHEAD;
        if message.len() > limits.message_bytes || bytes > limits.body_bytes {
            return Err(Error::TooBig { len: message.len(), max: limits.message_bytes.min(limits.body_bytes) });
        }
        self.room(bytes).await;
        // from here to the end nothing waits: the message is taken as a whole or not at all
        let lane = &self.lanes[lane.unwrap_or_else(|| self.lane_in_turn(bytes))];
        let now = Instant::now();
        let mut queue = lane.locked();
        if queue.gone {
            self.shared.give_back(bytes);
            return Err(Error::Closed);
        }
        if queue.is_overfull(bytes, settings.batch_bytes) {
            queue.seal();
        }
        let was_open = queue.open.is_some();
        let open = queue.open.get_or_insert_with(|| Gathering { batch: Batch::new(), since: now, owed: OutcomeGuard::default() });
        let ack = open.owed.0.ack(open.batch.num());
        open.batch.push_at(now, message);
        let full = open.batch.num() >= settings.batch_messages || open.batch.bytes() >= settings.batch_bytes;
        if !was_open {
            let outcome = open.owed.0.clone();
            queue.owe(outcome);
        }
        if full {
            queue.seal();
        }
        drop(queue);
        if full || !was_open {
            lane.wake.notify_one();
        }
        Ok(ack)
    }

    async fn push_batch(&self, lane: usize, batch: Batch) -> Result<Ack> {
        batch.check(&self.shared.limits)?;
        self.room(batch.bytes()).await;
        let lane = &self.lanes[lane];
        let owed = OutcomeGuard::default();
        let ack = owed.0.ack(0);
        let mut queue = lane.locked();
        if queue.gone {
            self.shared.give_back(batch.bytes());
            return Err(Error::Closed);
        }
        queue.seal();
        queue.owe(owed.0.clone());
        queue.sealed.push_back(Sealed { batch, since: Instant::now(), owed });
        drop(queue);
        lane.wake.notify_one();
        Ok(ack)
    }

    /// Sends all queued messages without lingering, and waits until each has an outcome. Returns a failure among them, if there was
    /// one; the [`Ack`] of a message has the message's own outcome.
    pub async fn flush(&self) -> Result<()> {
        let mut waited = Vec::new();
        for lane in &self.lanes {
            let mut queue = lane.locked();
            queue.flush = true;
            waited.extend(queue.owing.iter().map(|o| o.ack(0)));
            drop(queue);
            lane.wake.notify_one();
        }
        let mut failed = None;
        for ack in waited {
            if let Err(error) = ack.await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Flushes, and ends.
    pub async fn close(self) -> Result<()> {
        self.flush().await
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.lanes.iter().for_each(|lane| lane.wake.notify_one());
    }
}
