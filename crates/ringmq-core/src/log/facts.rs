//! Small facts for the journal: cursors, finished messages, channels, collect starts.

use super::notice::{PartitionIdx, RecordTicket};
use super::store::Store;
use crate::base::{ChannelName, Position};
use crate::format::cursor::{CursorImage, Interval};
use crate::format::intervals;
use crate::format::journal::RecordKind;
use crate::format::producer::Producer;

impl Store {
    /// Logs a channel's existence and cursor: creation, set, empty, pause. Only snapshots have the runs that it had delivered.
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
        let mut last = self.core.turn.last_record();
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

    /// Generation of the startup that may have lost channels, while no operator has accepted the loss; zero: none.
    pub fn channels_lost(&self, p: PartitionIdx) -> u64 {
        self.core.part(p).damage.channels_lost()
    }

    pub(super) fn tell_of_lost_channels(&self, p: PartitionIdx) {
        let part = self.core.part(p);
        if part.damage.channels_lost() > 0 {
            let (topic, partition) = (&part.dir.topic, part.dir.partition);
            tracing::warn!(
                %topic, %partition,
                "damage may have taken channels: until the loss is accepted (POST /replica/acceptloss) new channels begin at the oldest \
                 message, and no message is removed"
            );
        }
    }

    /// The leader says that channels may be lost. `generation`: of this startup.
    pub fn mark_channels_lost(&mut self, p: PartitionIdx, generation: u64) -> RecordTicket {
        self.core.part_mut(p).damage.mark_channels_lost(generation);
        self.tell_of_lost_channels(p);
        self.core.fact(p, RecordKind::ChannelsLost, generation.to_le_bytes().to_vec())
    }

    /// Accepts the loss of channels: new ones begin where they usually do, and retention goes on.
    pub fn accept_channels_lost(&mut self, p: PartitionIdx) -> RecordTicket {
        let upto = self.core.part_mut(p).damage.accept_channels_lost();
        self.core.fact(p, RecordKind::LossAccepted, upto.to_le_bytes().to_vec())
    }

    pub fn log_channel_delete(&mut self, p: PartitionIdx, channel: &ChannelName) -> RecordTicket {
        let image = self.bare_cursor(channel);
        self.log_image(p, RecordKind::ChannelDelete, &image)
    }

    /// Logs the position at which the topic's next first channel starts in this partition.
    pub fn log_collect_start(&mut self, p: PartitionIdx, at: Position) -> RecordTicket {
        self.core.part_mut(p).borders.set_collect_start(at);
        self.core.log_position(p, RecordKind::CollectStart, at)
    }

    /// Idempotent producers whose batches retention has removed on the leader: this log does not tell them. The record of those
    /// that were not known here, if any.
    pub fn log_producers(&mut self, p: PartitionIdx, list: &[Producer]) -> Option<RecordTicket> {
        let max = (self.core.ring.payload_max() / 2 / Producer::ENCODED_MAX).max(1);
        let part = self.core.part_mut(p);
        let adopted = part.producers.adopt(list, part.start().offset);
        let some = adopted.chunks(max).map(|some| self.core.fact(p, RecordKind::Producers, Producer::encode_all(some)));
        some.last()
    }

    /// Producers that [`Store::log_producers`] of a follower has to be told.
    pub fn producers_before_start(&self, p: PartitionIdx, max: usize) -> Vec<Producer> {
        let part = self.core.part(p);
        part.producers.sealed().told_before(part.start().offset, max)
    }

    fn log_image(&mut self, p: PartitionIdx, kind: RecordKind, image: &CursorImage) -> RecordTicket {
        let mut payload = Vec::with_capacity(image.encoded_len());
        image.encode(&mut payload);
        self.core.fact(p, kind, payload)
    }

    fn bare_cursor(&self, channel: &ChannelName) -> CursorImage {
        CursorImage::new(
            channel.clone(),
            self.core.options.epoch,
            0,
            Position { offset: 0, count: 0, log_id: Default::default() },
        )
    }

    /// Bytes of intervals in one record: it takes at most a quarter of a write.
    fn intervals_bytes_max(&self) -> usize {
        self.core.ring.payload_max() / 2
    }
}
