//! Clients come to channels, and channels into being. "The first channel of a topic starts at the oldest message, later
//! ones at the end": one verdict for all partitions of a topic, whichever cores they live on. Partition 0 gives it.
//!
//! ```text
//! SUB ─> partition 0: finds or creates the channel; the first one's cursor says so (a flag)
//!          durable ─> CreateChannel to the cores of the others: the first channel comes to be there, with or without its client
//!                     (until they all have it, nobody hears that his channel is a later one)
//!          durable ─> Subscribed, with the verdict ─> the client's core asks the other partitions, which follow it
//! ```
//! A crash in between leaves the flag at partition 0, and the start completes what it says (`log::recovery`). What a
//! native client subscribes to is one partition: there the partition judges for itself, or begins where it is told.

use super::engine::Engine;
use super::message::{MeshMessage, PublishError, SubRequest};
use super::partitions::ChannelKey;
use super::removal::ParkedSub;
use super::replication::Waiting;
use crate::base::{ChannelName, CoreId, Now, PartitionId, Position, SubId, TopicId, TopicRef};
use crate::log::cursor::CursorImage;
use crate::log::{PartitionIdx, RecordTicket};
use std::collections::{BTreeSet, VecDeque};

/// A SUB whose channel's record may not be durable yet.
#[derive(Clone, Copy)]
pub(super) struct Subscribing {
    record: RecordTicket,
    pub sub: SubId,
    pub partition: PartitionId,
    topic: TopicId,
    first: bool,
}

/// At partition 0's core: the first channel of a topic, until every partition has it.
struct First {
    topic: TopicRef,
    channel: ChannelName,
    record: RecordTicket,
    /// Cores that have not answered; `None`: not asked, the record is not durable.
    left: Option<usize>,
    /// SUBs of later channels.
    held: Vec<Subscribing>,
}

#[derive(Default)]
pub(super) struct Attaching {
    /// In the order of their records.
    subscribing: VecDeque<Subscribing>,
    firsts: Vec<First>,
    /// First channels of other cores' topics, created here: until durable, with the core that asked.
    created: VecDeque<(RecordTicket, CoreId, TopicRef)>,
}

impl Engine {
    /// A SUB of another core.
    pub fn on_subscribe(&mut self, now: Now, request: SubRequest) {
        if self.is_frozen(&request.topic) {
            // Its core has not agreed that the topic goes, and never will while the client is there.
            return self.removals.parked_subs.push(ParkedSub { request, credit: 0, blocked: false });
        }
        if self.is_gone(request.sub.core, &request.topic) {
            return self.tell_subscriber(request.sub, request.partition, Err(PublishError::TopicGone));
        }
        if self.cluster.is_none() {
            self.topic_known(&request.topic);
        }
        self.attach(now, request);
    }

    /// Finds or creates the channel, adds the client, and answers when the channel is durable.
    pub fn attach(&mut self, now: Now, request: SubRequest) {
        let SubRequest { sub, topic, partition, channel, options, first } = request;
        if self.stopping {
            return self.tell_subscriber(sub, partition, Err(PublishError::Stopping));
        }
        let found = self.partition(now, &topic, partition);
        let idx = match found.and_then(|idx| self.partitions.get(idx).check_read(now.ticks).map(|()| idx)) {
            Ok(idx) => idx,
            Err(error) => return self.tell_subscriber(sub, partition, Err(error)),
        };
        let is_alone = self.cluster.is_none();
        let (i, first) = match self.partitions.get(idx).channel(&channel) {
            Some(i) => (i, first.unwrap_or_else(|| self.was_first(idx, i))),
            None => {
                let judges = first.is_none() && is_alone;
                let first = first.unwrap_or_else(|| self.partitions.get(idx).channels.is_empty());
                let i = match self.create_channel(idx, channel.clone(), None, is_alone.then_some(first)) {
                    Ok(i) => i,
                    Err(error) => return self.tell_subscriber(sub, partition, Err(error)),
                };
                if judges && first && topic.partitions > 1 && !channel.is_ephemeral() {
                    let record = self.partitions.get(idx).channels[i as usize].created;
                    let first = First { topic: topic.clone(), channel, record, left: None, held: vec![] };
                    self.attaching.firsts.push(first);
                }
                (i, first)
            }
        };
        let key = ChannelKey { partition: idx.0, channel: i };
        let c = self.partitions.channel_mut(key).expect("the channel was just found");
        c.machine.subscribe(now.ticks, sub, options);
        c.subs.push(sub);
        let record = c.created;
        self.sub_keys.insert((sub, partition), key);
        let s = Subscribing { record, sub, partition, topic: topic.id, first };
        if self.await_creation(key, || Waiting::Sub(s)) {
            // Its record, and then the other replicas.
        } else if record <= self.durable_record {
            self.subscribed(s);
        } else if self.read_only.is_some() {
            // The journal failed before the channel's record was in it, and takes nothing more.
            self.tell_subscriber(sub, partition, Err(PublishError::ReadOnly));
        } else {
            self.attaching.subscribing.push_back(s);
        }
        self.wake_channel(key);
    }

    /// What partition 0 says of a channel that it has. A channel without the flag that is alone (a native client made it, or
    /// an older build) is as good as the first.
    fn was_first(&self, idx: PartitionIdx, i: u32) -> bool {
        let channels = &self.partitions.get(idx).channels;
        channels[i as usize].machine.is_first() || channels.len() == 1
    }

    /// The channel is durable. That it is a later one is said when all partitions have the first one.
    pub fn subscribed(&mut self, s: Subscribing) {
        let is_later = s.partition == PartitionId(0) && !s.first;
        match self.attaching.firsts.iter_mut().find(|f| is_later && f.topic.id == s.topic) {
            Some(first) => first.held.push(s),
            None => self.tell_subscriber(s.sub, s.partition, Ok(s.first)),
        }
    }

    /// The first channel starts at the oldest message that is collected, later ones at the end, as nsqd's do; or at `begin`.
    /// `first` is the topic's verdict; without one the partition judges for itself.
    pub fn create_channel(
        &mut self,
        idx: PartitionIdx,
        name: ChannelName,
        begin: Option<Position>,
        first: Option<bool>,
    ) -> Result<u32, PublishError> {
        if self.read_only.is_some() && !name.is_ephemeral() {
            return Err(PublishError::ReadOnly);
        }
        if self.partitions.get(idx).channels.len() >= self.channels_max() {
            return Err(PublishError::TooManyChannels);
        }
        let is_first = first.unwrap_or_else(|| self.partitions.get(idx).channels.is_empty());
        let oldest = || std::cmp::max_by_key(self.store.collect_start(idx), self.store.start(idx), |p| p.offset);
        let p = self.partitions.get(idx);
        let usual = if is_first { oldest() } else { p.committed() };
        let confirmed = begin.unwrap_or(usual);
        self.store.lower_low_water(idx, confirmed);
        let image = CursorImage {
            name: name.clone(),
            paused: false,
            ordered: false,
            first: first == Some(true),
            epoch: p.seat().and_then(|s| s.member.epoch()).unwrap_or(self.epoch),
            generation: p.seat().map_or(0, |s| s.generation_floor()),
            confirmed,
            intervals: vec![],
        };
        let p = self.partitions.get(idx);
        tracing::info!(topic = %p.topic.name, partition = %p.dir.partition, channel = %name, offset = confirmed.offset, "creating channel");
        let created = if name.is_ephemeral() { RecordTicket::default() } else { self.store.log_cursor(idx, &image) };
        let channel = self.add_channel(idx, image, created);
        if !name.is_ephemeral() {
            self.replicate_creation(ChannelKey { partition: idx.0, channel }, created);
        }
        Ok(channel)
    }

    /// The partition is not led here any more: who waits for a channel's record hears of it.
    pub fn fail_subscribing(&mut self, idx: PartitionIdx, error: PublishError) {
        let p = self.partitions.get(idx);
        let (topic, partition) = (p.topic.id, p.dir.partition);
        let subscribing = std::mem::take(&mut self.attaching.subscribing);
        let (failed, rest): (Vec<_>, Vec<_>) = subscribing.into_iter().partition(|s| (s.topic, s.partition) == (topic, partition));
        self.attaching.subscribing = rest.into();
        failed.into_iter().for_each(|s| self.tell_subscriber(s.sub, s.partition, Err(error)));
    }

    /// The client is gone, or leaves.
    pub fn forget_subscribing(&mut self, sub: SubId, partition: PartitionId) {
        self.removals.parked_subs.retain(|s| (s.request.sub, s.request.partition) != (sub, partition));
        self.attaching.subscribing.retain(|s| (s.sub, s.partition) != (sub, partition));
        self.forget_waiting(|w| matches!(w, Waiting::Sub(s) if (s.sub, s.partition) == (sub, partition)));
        for first in &mut self.attaching.firsts {
            first.held.retain(|s| (s.sub, s.partition) != (sub, partition));
        }
    }

    /// Records up to here are durable.
    pub fn attaching_durable(&mut self, now: Now, upto: RecordTicket) {
        self.spread_firsts(now, upto);
        while let Some(s) = self.attaching.subscribing.pop_front_if(|s| s.record <= upto) {
            self.subscribed(s);
        }
        while let Some((_, core, topic)) = self.attaching.created.pop_front_if(|c| c.0 <= upto) {
            self.pass(core, MeshMessage::ChannelCreated { topic });
        }
    }

    /// No record becomes durable any more.
    pub fn attaching_failed(&mut self) {
        while let Some(s) = self.attaching.subscribing.pop_front() {
            self.tell_subscriber(s.sub, s.partition, Err(PublishError::ReadOnly));
        }
        while let Some((_, core, topic)) = self.attaching.created.pop_front() {
            self.pass(core, MeshMessage::ChannelCreated { topic });
        }
        // Who waits for a channel that never came to be.
        for first in std::mem::take(&mut self.attaching.firsts) {
            if first.left.is_some() {
                self.attaching.firsts.push(first);
            } else {
                first.held.into_iter().for_each(|s| self.tell_subscriber(s.sub, s.partition, Ok(s.first)));
            }
        }
    }

    /// First channels that are durable at partition 0 come to the other partitions.
    fn spread_firsts(&mut self, now: Now, upto: RecordTicket) {
        let due = self.attaching.firsts.iter_mut().filter(|f| f.left.is_none() && f.record <= upto);
        let due: Vec<_> = due
            .map(|f| {
                let cores = (1..f.topic.partitions).map(|p| f.topic.core_of(PartitionId(p), self.cores));
                let cores: BTreeSet<CoreId> = cores.filter(|&core| core != self.core).collect();
                f.left = Some(cores.len());
                (f.topic.clone(), f.channel.clone(), cores)
            })
            .collect();
        for (topic, channel, cores) in due {
            self.create_first(now, &topic, &channel);
            for core in cores {
                self.pass(core, MeshMessage::CreateChannel { topic: topic.clone(), channel: channel.clone() });
            }
        }
        self.release_held();
    }

    /// In all partitions of this core; returns the last record of it.
    fn create_first(&mut self, now: Now, topic: &TopicRef, channel: &ChannelName) -> RecordTicket {
        let mut last = RecordTicket::default();
        let (core, cores) = (self.core, self.cores);
        for partition in (0..topic.partitions).map(PartitionId).filter(|&p| topic.core_of(p, cores) == core) {
            let Ok(idx) = self.partition(now, topic, partition) else { continue };
            let found = self.partitions.get(idx).channel(channel);
            let created = match found {
                Some(i) => Ok(i),
                None => self.create_channel(idx, channel.clone(), None, Some(true)),
            };
            // A core that cannot tells so to the client that asks it; the next start completes it.
            if let Ok(i) = created {
                last = last.max(self.partitions.get(idx).channels[i as usize].created);
            }
        }
        last
    }

    pub fn on_create_channel(&mut self, now: Now, from: CoreId, topic: TopicRef, channel: ChannelName) {
        if self.stopping || self.read_only.is_some() || self.is_gone(from, &topic) {
            return self.pass(from, MeshMessage::ChannelCreated { topic });
        }
        self.topic_known(&topic);
        let record = self.create_first(now, &topic, &channel);
        if record <= self.durable_record {
            return self.pass(from, MeshMessage::ChannelCreated { topic });
        }
        let created = &mut self.attaching.created;
        let at = created.partition_point(|c| c.0 <= record);
        created.insert(at, (record, from, topic));
    }

    pub fn on_channel_created(&mut self, topic: &TopicRef) {
        let is_it = |f: &&mut First| f.topic.id == topic.id && f.left.is_some();
        if let Some(first) = self.attaching.firsts.iter_mut().find(is_it) {
            first.left = first.left.map(|n| n.saturating_sub(1));
        }
        self.release_held();
    }

    /// Every partition has the first channel: the later ones hear of theirs.
    fn release_held(&mut self) {
        while let Some(i) = self.attaching.firsts.iter().position(|f| f.left == Some(0)) {
            let first = self.attaching.firsts.remove(i);
            first.held.into_iter().for_each(|s| self.tell_subscriber(s.sub, s.partition, Ok(s.first)));
        }
    }
}
