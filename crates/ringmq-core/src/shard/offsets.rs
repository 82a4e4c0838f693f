//! Sets the offset of a channel, or finishes a stretch of the log for it: finds the place, changes the cursor, and answers when that is
//! final.
//!
//! ```text
//! SetOffset ─> place known, or searched in the commit logs ─> the batch is read: the border of a message
//!           ─> once no other change of the cursor waits, and no copy is under way: moved, journaled
//!           ─> final ─> answered with its position
//! ```
//! Messages in flight, waiting or deferred are dropped: those behind the place are redelivered. The channel delivers nothing until the
//! change is final. Each partition is set by its own core.

use super::failures::set_failure;
use super::operate::Operating;
use super::outbox::{LateAnswer, Outbox};
use super::partitions::ChannelKey;
use super::search::{Finding, FindingFor, place_of};
use crate::base::{ChannelName, ConnId, CoreId, DiskError, LogId, Now, PartitionDir, PartitionId, Position, TopicId, TopicRef};
use crate::format::batch::{BATCH_HEADER_LEN, Batch, Messages};
use crate::log::PartitionIdx;
use crate::log::fetch::Fetch;
use crate::seam::message::SetOffset;
use crate::session::native::NativeAnswer;
use crate::{
    codec::native::Start,
    seam::{
        message::{MeshMessage, Ticket},
        outcome::{PublishError, SetOffsetError},
    },
};

/// Recipient of the answer.
#[derive(Debug)]
pub(super) enum Setter {
    Core(CoreId, Ticket),
    Native { conn: ConnId, request: u64 },
}

impl Setter {
    pub fn tell(self, outbox: &mut Outbox, result: Result<Position, SetOffsetError>) {
        match self {
            Setter::Core(core, ticket) => outbox.pass(core, MeshMessage::OffsetSet { ticket, result }),
            Setter::Native { conn, request } => {
                let answer =
                    result.map_or_else(|error| NativeAnswer::Failed(set_failure(error)), |at| NativeAnswer::Found { at });
                outbox.tell(conn, LateAnswer::Native(request, answer));
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Offsets {
    /// The batch at the place is being read.
    reading: Vec<WantedOffset>,
    /// Wanted offsets that wait for an earlier change of the cursor.
    waiting: Vec<WantedOffset>,
}

struct WantedOffset {
    key: ChannelKey,
    set: SetOffset,
    setter: Setter,
    at: Position,
}

impl Offsets {
    /// A channel of the topic is about to be moved.
    pub fn is_any_of(&self, topic: TopicId) -> bool {
        self.reading.iter().chain(&self.waiting).any(|w| w.set.topic.id == topic)
    }

    /// True if a change of this channel's position waits.
    pub fn is_waiting(&self, key: ChannelKey) -> bool {
        self.waiting.iter().any(|w| w.key == key)
    }
}

impl Operating<'_> {
    pub fn set_offset(&mut self, now: Now, set: SetOffset, setter: Setter) {
        match self.may_set_offset(now, &set) {
            Ok(key) => match place_of(&self.core.store, &self.core.partitions, key.partition_idx(), set.to) {
                Ok(Some(at)) => self.move_channel(now, WantedOffset { key, set, setter, at }),
                Ok(None) => setter.tell(&mut self.core.outbox, Err(SetOffsetError::NoPlace)),
                Err(by) => {
                    let (idx, start) = (key.partition_idx(), set.to);
                    let finding = Finding { conn: None, idx, start, what: FindingFor::Set { key, set, setter } };
                    self.searches.begin(by, finding, &mut self.core.store, self.core.outbox.io());
                }
            },
            Err(error) => setter.tell(&mut self.core.outbox, Err(error)),
        }
    }

    fn may_set_offset(&mut self, now: Now, set: &SetOffset) -> Result<ChannelKey, SetOffsetError> {
        let key = self.channel_to_set(now, &set.topic, set.partition, &set.channel)?;
        let c = self.core.partitions.channel_mut(key).ok_or(SetOffsetError::NoChannel)?;
        if c.subs.len() > 1 && !set.force {
            return Err(SetOffsetError::NotFirstClient);
        }
        Ok(key)
    }

    /// The channel in one partition, where it may be changed now.
    pub fn channel_to_set(
        &mut self,
        now: Now,
        topic: &TopicRef,
        partition: PartitionId,
        name: &ChannelName,
    ) -> Result<ChannelKey, SetOffsetError> {
        self.core.life.check_running().map_err(SetOffsetError::Failed)?;
        if partition.0 >= topic.partitions {
            return Err(SetOffsetError::NoPartition);
        }
        if self.removals.is_frozen(topic) {
            return Err(SetOffsetError::Failed(PublishError::TopicGone));
        }
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        let missing =
            if self.core.is_clustered { SetOffsetError::Failed(PublishError::NotLeader) } else { SetOffsetError::NoChannel };
        let idx = self.core.partitions.find(&dir).ok_or(missing)?;
        self.core.partitions.get(idx).check_read(now.ticks).map_err(SetOffsetError::Failed)?;
        let channel = self.core.partitions.get(idx).channel(name).ok_or(SetOffsetError::NoChannel)?;
        let key = ChannelKey { partition: idx.0, channel };
        self.core.partitions.check_change(now.ticks, key).map_err(SetOffsetError::Failed)?;
        if !name.is_ephemeral() {
            self.core.life.check_writable().map_err(SetOffsetError::Failed)?;
            self.check_change_fits().map_err(SetOffsetError::Failed)?;
        }
        Ok(key)
    }

    /// Takes in the found batch that holds the place of a search, or is the last before it.
    pub fn offset_found(
        &mut self,
        now: Now,
        key: ChannelKey,
        set: SetOffset,
        setter: Setter,
        found: Result<Position, DiskError>,
    ) {
        match found {
            Ok(at) => self.read_offset(now, WantedOffset { key, set, setter, at }),
            Err(_) => setter.tell(&mut self.core.outbox, Err(SetOffsetError::Unreadable)),
        }
    }

    /// The partition was read.
    pub fn read_offsets(&mut self, now: Now, p: PartitionIdx) {
        let those: Vec<WantedOffset> = self.operators.offsets.reading.extract_if(.., |w| w.key.partition_idx() == p).collect();
        those.into_iter().for_each(|w| self.read_offset(now, w));
    }

    /// Looks into the batch for the message.
    fn read_offset(&mut self, now: Now, mut wanted: WantedOffset) {
        // It may have gone meanwhile.
        if let Err(error) = self.may_set_offset(now, &wanted.set) {
            return wanted.setter.tell(&mut self.core.outbox, Err(error));
        }
        let idx = wanted.key.partition_idx();
        let committed = self.core.partitions.get(idx).committed();
        let found = if wanted.at.offset >= committed.offset {
            Fetch::End
        } else {
            self.core.store.fetch(idx, wanted.at.offset, self.core.outbox.io())
        };
        wanted.at = match found {
            Fetch::Batch(batch) => border(&batch, wanted.set.to),
            Fetch::Pending => return self.operators.offsets.reading.push(wanted),
            Fetch::Held => return wanted.setter.tell(&mut self.core.outbox, Err(SetOffsetError::Unreadable)),
            Fetch::End => committed,
            Fetch::Lost { to, .. } => to,
            Fetch::Below { start } => start,
        };
        if wanted.at.log_id > committed.log_id {
            wanted.at = committed;
        }
        self.move_channel(now, wanted);
    }

    fn move_channel(&mut self, now: Now, wanted: WantedOffset) {
        // A client may have come, or the channel may have gone, since it was asked for.
        let key = match self.may_set_offset(now, &wanted.set) {
            Ok(key) => key,
            Err(error) => return wanted.setter.tell(&mut self.core.outbox, Err(error)),
        };
        let idx = key.partition_idx();
        let is_replicated = self.core.partitions.get(idx).seat().is_some();
        let oldest = if is_replicated { self.core.partitions.oldest(idx, &self.core.store) } else { self.core.store.start(idx) };
        let (committed, is_copying) = (self.core.partitions.get(idx).committed(), self.core.copies.is_under_way(key));
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        if c.machine.is_syncing() || is_copying {
            return self.operators.offsets.waiting.push(WantedOffset { key, ..wanted });
        }
        let WantedOffset { set, setter, at, .. } = wanted;
        // While it waited copies came that the end is behind.
        let at = if set.to == Start::Newest { committed } else { at };
        let at = if at.log_id < oldest.log_id { oldest } else { at };
        tracing::info!(
            topic = %set.topic.name, partition = %set.partition, channel = %set.channel,
            offset = at.offset, count = at.count, "setting the channel's offset"
        );
        self.core.channels().set_offset(key, set.from, at, setter);
    }

    /// A change of this channel's cursor was settled.
    pub fn go_on_setting(&mut self, now: Now, key: ChannelKey) {
        // Where the channel has gone, all of them hear it.
        for wanted in self.operators.offsets.waiting.extract_if(.., |w| w.key == key).collect::<Vec<_>>() {
            self.move_channel(now, wanted);
        }
    }
}

/// The first message of the batch that `to` means, or where the batch ends.
fn border(batch: &Batch, to: Start) -> Position {
    let header = &batch.header;
    let (start, end) = (header.start(), header.end());
    let mut messages = Messages::resume(&batch.bytes[BATCH_HEADER_LEN..], start.log_id, header.base_unix_ns.get());
    let mut index = 0;
    while let Some(message) = messages.next() {
        let behind = start.offset + (batch.bytes.len() - messages.rest_len()) as i64;
        let is_it = match to {
            Start::Offset(offset) => behind > offset,
            Start::Timestamp(unix_ns) => message.unix_ns >= unix_ns,
            Start::Count(count) => start.count + index >= count,
            Start::LogId(id) => message.log_id >= id,
            Start::Default | Start::Oldest | Start::Newest => true,
        };
        if is_it {
            return Position { offset: start.offset, count: start.count + index, log_id: LogId(start.log_id.0 + index as u64) };
        }
        index += 1;
    }
    end
}
