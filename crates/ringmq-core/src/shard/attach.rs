//! Subscriptions to channels, and creation of channels. "The first channel of a topic starts at the oldest message, later ones at the
//! end": one verdict for all partitions of a topic, whichever cores they live on. Partition 0 gives it.
//!
//! ```text
//! SUB ─> partition 0: finds or creates the channel; the first one's cursor says so (a flag)
//!          final ─> CreateChannel to the cores of the others: the first channel is created there, with or without its client
//!                     (until all have it, no client gets the verdict that its channel is a later one)
//!          final ─> Subscribed, with the verdict ─> the client's core asks the other partitions, which follow it
//! ```
//! A crash in between leaves the flag at partition 0, and the startup completes what it says (`log::recovery`). A native client
//! subscribes to one partition: that partition judges for itself, or begins at the given position.

use super::consumers::Consumers;
use super::cursors::CursorRequest;
use super::parked::{ParkedSub, ParkedSubs};
use super::partitions::ChannelKey;
use super::parts::CoreParts;
use crate::base::{ChannelName, CoreId, Now, PartitionId, SubId, TopicId, TopicRef};
use crate::log::PartitionIdx;
use crate::seam::{
    message::{MeshMessage, SubRequest},
    outcome::PublishError,
};
use std::collections::BTreeSet;

/// A SUB whose channel may not be final yet.
#[derive(Clone, Copy)]
struct Subscribing {
    created: CursorRequest,
    sub: SubId,
    partition: PartitionId,
    topic: TopicId,
    first: bool,
}

/// First channel of a topic, at partition 0's core, until every partition has it.
struct First {
    topic: TopicRef,
    channel: ChannelName,
    created: CursorRequest,
    /// Cores that have not answered; `None`: not asked, the channel is not final.
    left: Option<usize>,
    /// SUBs of later channels.
    held: Vec<Subscribing>,
}

#[derive(Default)]
pub(super) struct Attaching {
    /// Waiting subscriptions, in the order of their arrival.
    subscribing: Vec<Subscribing>,
    firsts: Vec<First>,
    /// First channels of other cores' topics that are created here: the changes that are not final, with the core that asked.
    created: Vec<(Vec<CursorRequest>, CoreId, TopicRef)>,
    /// SUBs that came while their topic was frozen, and those whose channel is being deleted.
    pub parked: ParkedSubs,
}

impl Attaching {
    /// Whether the topic's first channel (if it is this one) does not stand in all partitions yet; asked at partition 0's core.
    pub fn is_spreading(&self, topic: TopicId, channel: Option<&ChannelName>) -> bool {
        self.firsts.iter().any(|f| f.topic.id == topic && channel.is_none_or(|c| *c == f.channel))
    }

    /// The channel, and whether it is its topic's first one.
    #[expect(clippy::too_many_arguments)]
    pub fn find_or_create(
        &mut self,
        core: &mut CoreParts,
        now: Now,
        idx: PartitionIdx,
        topic: &TopicRef,
        channel: ChannelName,
        first: Option<bool>,
        is_alone: bool,
        ordered: bool,
    ) -> Result<(u32, bool), PublishError> {
        if let Some(i) = core.partitions.get(idx).channel(&channel) {
            return Ok((i, first.unwrap_or_else(|| core.partitions.get(idx).was_first(i))));
        }
        if first.is_none() {
            core.channels().check_new(idx, &channel)?;
        }
        let judges = first.is_none() && !is_alone;
        let is_first = first.unwrap_or_else(|| !core.partitions.get(idx).has_channels());
        let flag = (!is_alone).then_some(is_first);
        let i = core.channels().create(now, idx, channel.clone(), None, flag, ordered)?;
        if judges && is_first && topic.partitions > 1 && !channel.is_ephemeral() {
            let created = core.partitions.get(idx).channels[i as usize].created;
            let first = First { topic: topic.clone(), channel, created, left: None, held: vec![] };
            self.firsts.push(first);
        }
        Ok((i, is_first))
    }

    /// The client is gone, or leaves.
    pub fn forget(&mut self, sub: SubId, partition: PartitionId) {
        self.parked.forget(sub, partition);
        self.subscribing.retain(|s| (s.sub, s.partition) != (sub, partition));
        for first in &mut self.firsts {
            first.held.retain(|s| (s.sub, s.partition) != (sub, partition));
        }
    }
}

impl Consumers<'_> {
    /// SUBs that waited for their topic or their channel.
    pub fn resume_parked_subs(&mut self, now: Now) {
        for ParkedSub { request, credit, blocked } in self.attaching.parked.take_resuming() {
            let (sub, partition) = (request.sub, request.partition);
            self.on_subscribe(now, request);
            self.lend(sub, partition, credit);
            self.block(sub, partition, blocked);
        }
    }

    /// A SUB of another core.
    pub fn on_subscribe(&mut self, now: Now, request: SubRequest) {
        if self.removals.is_frozen(&request.topic) {
            // The client's core has not agreed that the topic goes, and never will while the client is there.
            return self.attaching.parked.park(request);
        }
        if self.removals.is_gone(&self.core.topics, request.sub.core, &request.topic) {
            return self.answer_attach(request.sub, request.partition, Err(PublishError::TopicGone));
        }
        if !self.core.is_clustered {
            self.core.topic_known(&request.topic);
        }
        self.attach(now, request);
    }

    /// Finds or creates the channel, adds the client, and answers when the channel is durable.
    pub fn attach(&mut self, now: Now, request: SubRequest) {
        let (sub, partition) = (request.sub, request.partition);
        if let Err(error) = self.try_attach(now, request) {
            self.answer_attach(sub, partition, Err(error));
        }
    }

    fn try_attach(&mut self, now: Now, request: SubRequest) -> Result<(), PublishError> {
        self.core.life.check_running()?;
        if let Some(cluster) = self.cluster.as_mut().filter(|_| request.sub.core != CoreId::GUESTS)
            && cluster.relays.subscribe(&mut cluster.peers, &request)?
        {
            return Ok(());
        }
        let SubRequest { sub, topic, partition, channel, mut options, first, is_alone } = request;
        options.ordered |= self.core.topics.properties.orders_channels(topic.id) && !channel.is_ephemeral();
        let idx = self.core.partition(now, &topic, partition)?;
        self.core.partitions.get(idx).check_read(now.ticks)?;
        if self.core.partitions.get(idx).is_deleting(&channel) {
            self.attaching.parked.park(SubRequest { sub, topic, partition, channel, options, first, is_alone });
            return Ok(());
        }
        if self.core.partitions.get(idx).channel(&channel).is_none() {
            self.core.topics.properties.check_registered(topic.id)?;
        }
        let judges = first.is_none();
        let (i, first) = self.attaching.find_or_create(self.core, now, idx, &topic, channel, first, is_alone, options.ordered)?;
        let key = ChannelKey { partition: idx.0, channel: i };
        self.core.partitions.check_join(now.ticks, key, options.ordered)?;
        // partition 0 judges for the others, which are asked after it
        if judges && self.is_crowded(key) {
            return Err(PublishError::TooManyConsumers);
        }
        self.core.channels().join(key, sub, options);
        self.core.partitions.set_client(sub, partition, key);
        let created = self.core.partitions.channel_mut(key).expect("the channel was just found").created;
        let s = Subscribing { created, sub, partition, topic: topic.id, first };
        if self.core.syncs.is_pending(created) {
            self.attaching.subscribing.push(s);
        } else {
            self.subscribed(s);
        }
        self.core.partitions.wake(key);
        Ok(())
    }

    /// The client leaves the partition; its messages in flight are redelivered.
    pub fn detach(&mut self, sub: SubId, partition: PartitionId) {
        if self.cluster.as_mut().is_some_and(|c| c.relays.detach(&mut c.peers, sub, partition)) {
            return;
        }
        self.bundles.set_blocked(sub, false);
        self.attaching.forget(sub, partition);
        if let Some(key) = self.core.partitions.forget_client(sub, partition) {
            self.bundles.drop_frames(sub);
            self.core.channels().leave(key, sub);
        }
    }

    /// Whether the channel takes no further consumer.
    fn is_crowded(&self, key: ChannelKey) -> bool {
        let most = self.core.settings.max_channel_consumers as usize;
        most > 0 && self.core.partitions.get(key.partition_idx()).channels[key.channel as usize].subs.len() >= most
    }

    fn answer_attach(&mut self, sub: SubId, partition: PartitionId, result: Result<bool, PublishError>) {
        self.core.outbox.pass(sub.core, MeshMessage::Subscribed { sub, partition, result });
    }

    /// The channel is durable. That it is a later one is said when all partitions have the first one.
    fn subscribed(&mut self, s: Subscribing) {
        let is_later = s.partition == PartitionId(0) && !s.first;
        match self.attaching.firsts.iter_mut().find(|f| is_later && f.topic.id == s.topic) {
            Some(first) => first.held.push(s),
            None => self.answer_attach(s.sub, s.partition, Ok(s.first)),
        }
    }

    /// A channel is final, or will not be.
    pub fn attaching_done(&mut self, now: Now, request: CursorRequest, result: Result<(), PublishError>) {
        match result {
            Ok(()) => self.spread_firsts(now, request),
            // Requests that wait for a channel which was never created fail.
            Err(_) => {
                let failed = |f: &mut First| f.left.is_none() && f.created == request;
                let failed: Vec<First> = self.attaching.firsts.extract_if(.., failed).collect();
                for s in failed.into_iter().flat_map(|f| f.held) {
                    self.answer_attach(s.sub, s.partition, Ok(s.first));
                }
            }
        }
        let done: Vec<Subscribing> = self.attaching.subscribing.extract_if(.., |s| s.created == request).collect();
        for s in done {
            match result {
                Ok(()) => self.subscribed(s),
                Err(error) => {
                    if self.core.is_clustered {
                        // The client's subscription may go on without the partition, and ask again.
                        self.detach(s.sub, s.partition);
                    }
                    self.answer_attach(s.sub, s.partition, Err(error));
                }
            }
        }
        self.attaching.created.iter_mut().for_each(|c| c.0.retain(|r| *r != request));
        let done: Vec<_> = self.attaching.created.extract_if(.., |c| c.0.is_empty()).collect();
        for (_, core, topic) in done {
            self.core.outbox.pass(core, MeshMessage::ChannelCreated { topic });
        }
    }

    /// First channels that are final at partition 0 come to the other partitions.
    fn spread_firsts(&mut self, now: Now, request: CursorRequest) {
        let due = self.attaching.firsts.iter_mut().filter(|f| f.left.is_none() && f.created == request);
        let due: Vec<_> = due
            .map(|f| {
                let cores = (1..f.topic.partitions).map(|p| f.topic.core_of(PartitionId(p), self.core.cores));
                let cores: BTreeSet<CoreId> = cores.filter(|&core| core != self.core.id).collect();
                f.left = Some(cores.len());
                (f.topic.clone(), f.channel.clone(), cores)
            })
            .collect();
        for (topic, channel, cores) in due {
            self.create_first(now, &topic, &channel);
            for core in cores {
                self.core.outbox.pass(core, MeshMessage::CreateChannel { topic: topic.clone(), channel: channel.clone() });
            }
        }
        self.release_held();
    }

    /// Creates the channel in all partitions of this core; returns the requests that are not final yet.
    fn create_first(&mut self, now: Now, topic: &TopicRef, channel: &ChannelName) -> Vec<CursorRequest> {
        let mut requests = vec![];
        let (core, cores) = (self.core.id, self.core.cores);
        for partition in (0..topic.partitions).map(PartitionId).filter(|&p| topic.core_of(p, cores) == core) {
            let Ok(idx) = self.core.partition(now, topic, partition) else { continue };
            let found = self.core.partitions.get(idx).channel(channel);
            let created = match found {
                Some(i) => Ok(i),
                None => self.core.channels().create(now, idx, channel.clone(), None, Some(true), false),
            };
            // A core that cannot tells so to the client that asks it; the next startup completes it.
            if let Ok(i) = created {
                requests.push(self.core.partitions.get(idx).channels[i as usize].created);
            }
        }
        requests.retain(|r| self.core.syncs.is_pending(*r));
        requests
    }

    pub fn on_create_channel(&mut self, now: Now, from: CoreId, topic: TopicRef, channel: ChannelName) {
        if self.core.life.is_stopping() || self.core.life.is_read_only() || self.removals.is_gone(&self.core.topics, from, &topic)
        {
            return self.core.outbox.pass(from, MeshMessage::ChannelCreated { topic });
        }
        self.core.topic_known(&topic);
        let requests = self.create_first(now, &topic, &channel);
        if requests.is_empty() {
            return self.core.outbox.pass(from, MeshMessage::ChannelCreated { topic });
        }
        self.attaching.created.push((requests, from, topic));
    }

    pub fn on_channel_created(&mut self, topic: &TopicRef) {
        let is_it = |f: &&mut First| f.topic.id == topic.id && f.left.is_some();
        if let Some(first) = self.attaching.firsts.iter_mut().find(is_it) {
            first.left = first.left.map(|n| n.saturating_sub(1));
        }
        self.release_held();
    }

    /// Every partition has the first channel: answers the SUBs of later channels.
    fn release_held(&mut self) {
        while let Some(i) = self.attaching.firsts.iter().position(|f| f.left == Some(0)) {
            let first = self.attaching.firsts.remove(i);
            first.held.into_iter().for_each(|s| self.answer_attach(s.sub, s.partition, Ok(s.first)));
        }
    }
}
