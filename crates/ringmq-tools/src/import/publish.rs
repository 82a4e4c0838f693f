//! Puts the queues of a topic into its log, batch by batch. The content of a batch follows from the files alone, so a continued run
//! builds the same batches again.

use super::diskqueue::{LeftOut, Record, RecordPlace, Records};
use super::progress::Progress;
use super::source::Source;
use super::state::StateFile;
use super::{ImportError, Options, Target};
use ringmq_client::{Ack, Batch, Error, Producer};
use ringmq_protocol::codec::native::Code;
use ringmq_protocol::format::batch::MESSAGE_OVERHEAD;
use std::collections::VecDeque;
use std::time::Instant;

/// Messages and bytes of a batch, at most; a longer message is a batch of its own. Every node takes so many bytes. Never changed: a batch
/// that is sent again must be the same.
const BATCH_MESSAGES: u32 = 5_000;
const BATCH_BYTES: usize = 256 << 10;

/// Batches that are sent before the state is saved. The node remembers the places of a producer's last five batches.
const WINDOW: usize = 4;

/// A batch on its way.
struct BatchInFlight {
    ack: Ack,
    num: u32,
    bytes: u64,
    delivered_before: u64,
    behind: RecordPlace,
    skipped: Vec<LeftOut>,
}

/// Publishes all sections of a topic that are not done.
pub(super) async fn sections(
    options: &Options,
    source: &Source,
    target: &Target,
    saved: &mut StateFile,
    at: usize,
    progress: &mut Progress,
) -> Result<(), ImportError> {
    let name = saved.state.topics[at].name.clone();
    let failed = |source| ImportError::Publish { topic: name.clone(), source };
    let topic = &mut saved.state.topics[at];
    if options.accept_duplicates && topic.next_sequence > 0 {
        (topic.producer_id, topic.next_sequence) = (super::random_id(), 0);
        saved.save()?;
    }
    let topic = &saved.state.topics[at];
    let producer = target.client.producer(&name).must_exist().window_batches(WINDOW);
    let producer = producer.resume(0, topic.producer_id, topic.next_sequence).build().await.map_err(failed)?;
    for index in 0..saved.state.topics[at].sections.len() {
        let section = &saved.state.topics[at].sections[index];
        let queue = source.queue(&name, section.channel.as_deref())?;
        let bytes = queue.bytes();
        if section.is_done {
            progress.skip(bytes);
            continue;
        }
        progress.begin(&name, section.channel.as_deref());
        let records = queue.read(section.from);
        let reader = Reader { records, pending: None, message_max: target.message_max, topic: &name, options };
        let mut sender = Sender { producer: &producer, window: VecDeque::new(), at, index };
        sender.run(reader, saved, progress).await?;
        saved.state.topics[at].sections[index].is_done = true;
        saved.save()?;
    }
    producer.close().await.map_err(failed)
}

/// Makes batches of records.
struct Reader<'a> {
    records: Records,
    /// Read, and too long for the batch before.
    pending: Option<Record>,
    message_max: usize,
    topic: &'a str,
    options: &'a Options,
}

struct Gathered {
    batch: Batch,
    bytes: u64,
    delivered_before: u64,
    behind: RecordPlace,
    skipped: Vec<LeftOut>,
}

impl Reader<'_> {
    /// The next batch, perhaps without messages where those that were read are too large. `None` at the end.
    fn batch(&mut self) -> Result<Option<Gathered>, ImportError> {
        // All messages of a batch have one time, so that the batch is the same when it is made again.
        let now = Instant::now();
        let mut gathered: Option<Gathered> = None;
        loop {
            let record = match self.pending.take() {
                Some(record) => record,
                None => match self.records.read()? {
                    Some(record) => record,
                    None => return Ok(gathered),
                },
            };
            let len = record.body.len();
            let is_full =
                |g: &Gathered| g.batch.num() >= BATCH_MESSAGES || g.batch.bytes() + MESSAGE_OVERHEAD + len > BATCH_BYTES;
            if gathered.as_ref().is_some_and(|g| !g.batch.is_empty() && is_full(g)) {
                self.pending = Some(record);
                return Ok(gathered);
            }
            let g = gathered.get_or_insert_with(|| Gathered {
                batch: Batch::new(),
                bytes: 0,
                delivered_before: 0,
                behind: record.behind,
                skipped: vec![],
            });
            g.behind = record.behind;
            if len > self.message_max {
                if !self.options.skip_too_large {
                    return Err(ImportError::TooLarge { topic: self.topic.into(), len, max: self.message_max });
                }
                let what =
                    format!("a message of {}, before byte {} of file {}", self.topic, record.behind.at, record.behind.file);
                g.skipped.push(LeftOut { what, bytes: len as u64, why: format!("the node takes {} bytes", self.message_max) });
                continue;
            }
            g.batch.push_at(now, &record.body);
            g.bytes += len as u64;
            g.delivered_before += (record.attempts > 0) as u64;
        }
    }
}

struct Sender<'a> {
    producer: &'a Producer,
    window: VecDeque<BatchInFlight>,
    /// Index of the topic and the section in the state.
    at: usize,
    index: usize,
}

impl Sender<'_> {
    async fn run(&mut self, mut reader: Reader<'_>, saved: &mut StateFile, progress: &mut Progress) -> Result<(), ImportError> {
        let name = reader.topic.to_owned();
        while let Some(Gathered { batch, bytes, delivered_before, behind, skipped }) = reader.batch()? {
            let num = batch.num();
            if num == 0 {
                // Too large, all of them.
                self.settle(saved, progress).await?;
                let section = &mut saved.state.topics[self.at].sections[self.index];
                section.left_out.extend(skipped);
                section.from = Some(behind);
                continue;
            }
            let sent = self.producer.send_batch_to(0, batch).await;
            let ack = sent.map_err(|source| ImportError::Publish { topic: name.clone(), source })?;
            self.window.push_back(BatchInFlight { ack, num, bytes, delivered_before, behind, skipped });
            if self.window.len() == WINDOW {
                self.settle(saved, progress).await?;
            }
        }
        self.settle(saved, progress).await?;
        saved.state.topics[self.at].sections[self.index].left_out.extend(reader.records.left_out());
        Ok(())
    }

    /// Waits for all that was sent, and saves the state.
    async fn settle(&mut self, saved: &mut StateFile, progress: &mut Progress) -> Result<(), ImportError> {
        if self.window.is_empty() {
            return Ok(());
        }
        for BatchInFlight { ack, num, bytes, delivered_before, behind, skipped } in self.window.drain(..) {
            let published = ack.await;
            let topic = &mut saved.state.topics[self.at];
            let published = published.map_err(|source| explain(topic, source))?;
            let Some(first) = published.log_id().map(|id| id.0) else {
                return Err(ImportError::Forgotten { topic: topic.name.clone(), upto: WINDOW as u64 * BATCH_MESSAGES as u64 });
            };
            topic.next_sequence += num as u64;
            let section = &mut topic.sections[self.index];
            section.stored(first, first + num as u64 - 1);
            section.messages += num as u64;
            section.body_bytes += bytes;
            section.delivered_before += delivered_before;
            section.left_out.extend(skipped);
            section.from = Some(behind);
            progress.stored(num as u64, bytes);
        }
        saved.save()?;
        if progress.is_interrupted() { Err(ImportError::Interrupted) } else { Ok(()) }
    }
}

fn explain(topic: &super::state::Topic, source: Error) -> ImportError {
    let is_of_sequence = matches!(source.code(), Some(Code::UnknownProducer | Code::SequenceGap | Code::SequenceOverlap));
    if is_of_sequence && topic.next_sequence > 0 {
        return ImportError::Forgotten { topic: topic.name.clone(), upto: WINDOW as u64 * BATCH_MESSAGES as u64 };
    }
    ImportError::Publish { topic: topic.name.clone(), source }
}
