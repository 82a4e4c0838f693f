//! Small facts for the journal: cursors, finished messages, channels, collect starts, and the creation of topics with
//! the `topic.meta` that must stand before a checkpoint passes the record.

use super::notice::{Io, PartitionIdx, RecordTicket};
use super::store::{Note, Op, Store};
use crate::base::{
    BLOCK, ChannelName, DiskDone, DiskError, DiskOp, Durability, Epoch, FileId, Now, PartitionDir, PartitionId, Position, Ticks,
    TopicId, TopicInfo, TopicName,
};
use crate::format::cursor::{CursorImage, Interval};
use crate::format::files::{RawPosition, TOPIC_MAGIC, TopicHeader, VERSION};
use crate::format::intervals;
use crate::format::journal::{RecordHeader, RecordKind, WHOLE_TOPIC};
use crate::format::producer::Producer;
use crate::journal::ring::{NO_SLOT, Record};
use bytes::Bytes;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A `topic.meta` on its way to the disk.
pub struct TopicFile {
    dir: Arc<PartitionDir>,
    block: Bytes,
    /// The copy that is being made: 0, then 1.
    copy: u8,
    /// The file of this copy is.
    is_allocated: bool,
    /// The journal write that holds the topic's record, once packed: no checkpoint passes it.
    pub write_sequence: Option<u64>,
    /// The file must not be written any more.
    pub failed: bool,
    retry_at: Option<Ticks>,
    /// There was no space for it when it was asked for last.
    lacks_space: bool,
}

impl TopicFile {
    pub fn id(&self) -> TopicId {
        self.dir.topic_id
    }

    /// An operation on the file is in flight.
    pub fn is_under_way(&self) -> bool {
        self.retry_at.is_none() && !self.failed
    }

    pub fn name(&self) -> &TopicName {
        &self.dir.topic
    }

    pub fn waits_for_space(&self) -> bool {
        self.lacks_space && !self.failed
    }
}

impl Store {
    /// The channel exists and stands here: creation, set, empty, pause. What it had delivered stands in snapshots alone.
    pub fn log_cursor(&mut self, p: PartitionIdx, image: &CursorImage) -> RecordTicket {
        let (first, rest) =
            image.intervals.split_at(intervals::fitting(image.confirmed, &image.intervals, self.intervals_bytes_max()));
        let ticket =
            self.log_image(p, RecordKind::Cursor, &CursorImage { intervals: first.to_vec(), handed: vec![], ..image.clone() });
        if rest.is_empty() { ticket } else { self.log_finished(p, &image.name, image.generation, rest) }
    }

    /// Messages finished since the last call.
    pub fn log_finished(
        &mut self,
        p: PartitionIdx,
        channel: &ChannelName,
        generation: u64,
        intervals: &[Interval],
    ) -> RecordTicket {
        let mut last = self.turn.last_record();
        let (max, mut rest) = (self.intervals_bytes_max(), intervals);
        while !rest.is_empty() {
            let mut image = CursorImage { generation, ..self.bare_cursor(channel) };
            let (some, others) = rest.split_at(intervals::fitting(image.confirmed, rest, max));
            image.intervals = some.to_vec();
            last = self.log_image(p, RecordKind::Finished, &image);
            rest = others;
        }
        last
    }

    /// Channels may have been lost here, by the start with this generation, and nobody has accepted that yet; zero: none.
    pub fn channels_lost(&self, p: PartitionIdx) -> u64 {
        self.part(p).damage.channels_lost()
    }

    pub(super) fn tell_of_lost_channels(&self, p: PartitionIdx) {
        let part = self.part(p);
        if part.damage.channels_lost() > 0 {
            let (topic, partition) = (&part.dir.topic, part.dir.partition);
            tracing::warn!(
                %topic, %partition,
                "damage may have taken channels: until that is accepted (POST /replica/acceptloss) new ones begin at the oldest \
                 message, and nothing is removed"
            );
        }
    }

    /// The leader says that channels may be lost; `generation` is that of this start.
    pub fn mark_channels_lost(&mut self, p: PartitionIdx, generation: u64) -> RecordTicket {
        self.part_mut(p).damage.mark_channels_lost(generation);
        self.tell_of_lost_channels(p);
        self.fact(p, RecordKind::ChannelsLost, generation.to_le_bytes().to_vec())
    }

    /// What is lost of channels is accepted: new ones begin where they usually do, and retention goes on.
    pub fn accept_channels_lost(&mut self, p: PartitionIdx) -> RecordTicket {
        let upto = self.part_mut(p).damage.accept_channels_lost();
        self.fact(p, RecordKind::LossAccepted, upto.to_le_bytes().to_vec())
    }

    pub fn log_channel_delete(&mut self, p: PartitionIdx, channel: &ChannelName) -> RecordTicket {
        let image = self.bare_cursor(channel);
        self.log_image(p, RecordKind::ChannelDelete, &image)
    }

    /// Where the topic's next first channel starts in this partition.
    pub fn log_collect_start(&mut self, p: PartitionIdx, at: Position) -> RecordTicket {
        self.part_mut(p).borders.set_collect_start(at);
        self.log_position(p, RecordKind::CollectStart, at)
    }

    /// Idempotent producers whose batches retention has removed on the leader: this log does not tell them. The record of those
    /// that were not known here, if any.
    pub fn log_producers(&mut self, p: PartitionIdx, list: &[Producer]) -> Option<RecordTicket> {
        let max = (self.ring.payload_max() / 2 / Producer::ENCODED_MAX).max(1);
        let part = self.part_mut(p);
        let adopted = part.producers.adopt(list, part.start().offset);
        let some = adopted.chunks(max).map(|some| self.fact(p, RecordKind::Producers, Producer::encode_all(some)));
        some.last()
    }

    /// What [`Store::log_producers`] of a follower has to be told.
    pub fn producers_before_start(&self, p: PartitionIdx, max: usize) -> Vec<Producer> {
        let part = self.part(p);
        part.producers.sealed().told_before(part.start().offset, max)
    }

    pub(super) fn log_position(&mut self, p: PartitionIdx, kind: RecordKind, at: Position) -> RecordTicket {
        self.fact(p, kind, RawPosition::from(at).as_bytes().to_vec())
    }

    fn log_image(&mut self, p: PartitionIdx, kind: RecordKind, image: &CursorImage) -> RecordTicket {
        let mut payload = Vec::with_capacity(image.encoded_len());
        image.encode(&mut payload);
        self.fact(p, kind, payload)
    }

    fn bare_cursor(&self, channel: &ChannelName) -> CursorImage {
        CursorImage {
            name: channel.clone(),
            paused: false,
            ordered: false,
            first: false,
            epoch: self.options.epoch,
            generation: 0,
            confirmed: Position { offset: 0, count: 0, log_id: Default::default() },
            intervals: vec![],
            handed: vec![],
        }
    }

    /// Bytes of intervals in one record: it takes at most a quarter of a write.
    fn intervals_bytes_max(&self) -> usize {
        self.ring.payload_max() / 2
    }

    // ---- topics

    pub(super) fn create_topic(&mut self, info: &TopicInfo, created_unix_ns: i64, io: &mut Io) -> RecordTicket {
        let mut name = [0; 64];
        name[..info.name.len()].copy_from_slice(info.name.as_bytes());
        let mut header = TopicHeader {
            magic: TOPIC_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            partitions: info.partitions.into(),
            name_len: (info.name.len() as u32).into(),
            topic_id: info.id.0,
            created_unix_ns: created_unix_ns.into(),
            flags: 0.into(),
            name,
            reserved: [0; 84],
        };
        crate::format::files::seal(&mut header);
        let mut block = vec![0; BLOCK];
        block[..size_of::<TopicHeader>()].copy_from_slice(header.as_bytes());
        let payload = Bytes::copy_from_slice(header.as_bytes());

        self.last_topic += 1;
        let key = self.last_topic;
        let ticket = self.turn.next_record();
        let Epoch(epoch) = self.options.epoch;
        let header = RecordHeader::new(RecordKind::TopicCreate, info.id, WHOLE_TOPIC, 1, epoch, &payload);
        let note = Note::Topic(key, ticket);
        self.ring.queue(Record { header, payload, slot: NO_SLOT, end: Position::START, note });

        let dir = Arc::new(PartitionDir { topic: info.name.clone(), topic_id: info.id, partition: PartitionId(0) });
        let (block, failed) = (block.into(), false);
        let file = TopicFile {
            dir,
            block,
            copy: 0,
            is_allocated: false,
            write_sequence: None,
            failed,
            retry_at: None,
            lacks_space: false,
        };
        self.topics.insert(key, file);
        self.write_topic(key, io);
        ticket
    }

    /// Allocates the file of one copy, then writes it.
    fn write_topic(&mut self, key: u64, io: &mut Io) {
        let Some(topic) = self.topics.get_mut(&key) else { return };
        topic.retry_at = None;
        let file = FileId::Topic(topic.dir.clone(), topic.copy);
        let op = if topic.is_allocated {
            DiskOp::Write { file, at: 0, parts: vec![topic.block.clone()], durability: Durability::Durable }
        } else {
            DiskOp::Allocate { file, len: BLOCK as u64 }
        };
        self.ops.issue(io, op, Op::Topic(key));
    }

    pub(super) fn topic_written(&mut self, now: Now, key: u64, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let topic = self.topics.get_mut(&key).expect("a topic file stays until it is written");
        match outcome {
            Ok(_) if topic.is_allocated && topic.copy == 0 => {
                (topic.copy, topic.is_allocated) = (1, false);
                self.write_topic(key, io);
            }
            Ok(_) if topic.is_allocated => {
                self.topics.remove(&key);
                self.finish_checkpoint(io);
            }
            Ok(_) => {
                (topic.is_allocated, topic.lacks_space) = (true, false);
                self.write_topic(key, io);
            }
            Err(error) if error.is_no_space() && !topic.is_allocated => {
                (topic.retry_at, topic.lacks_space) = (Some(now.ticks + super::space::RETRY), true);
            }
            Err(error) => {
                tracing::error!(%error, topic = %topic.dir.topic, "topic.meta was not written: the journal keeps its record");
                topic.failed = true;
            }
        }
    }

    pub(super) fn retry_topics(&mut self, now: Now, io: &mut Io) {
        let due = |t: &TopicFile| t.retry_at.is_some_and(|at| at <= now.ticks);
        let mut keys: Vec<u64> = self.topics.iter().filter(|(_, t)| due(t)).map(|(&k, _)| k).collect();
        keys.sort_unstable();
        keys.into_iter().for_each(|key| self.write_topic(key, io));
    }

    pub(super) fn topic_deadline(&self) -> Option<Ticks> {
        self.topics.values().filter_map(|t| t.retry_at).min()
    }
}
