//! The requests of native sessions, one method each.

use super::*;
use crate::shard::engine::Engine;
use crate::shard::search::place_of;

/// Subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 4096;

impl NativeHost for Engine {
    fn native_move(&mut self, conn: ConnId, core: u16) -> bool {
        if self.core.life.is_stopping() || core >= self.core.cores || core == self.core.id.0 {
            return false;
        }
        self.moves.begin(conn, CoreId(core));
        true
    }

    fn native_publish(&mut self, now: Now, conn: ConnId, publish: &mut NativePublish) -> NativeTaken {
        if self.core.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        match self.core.locate(now, self.cluster.as_deref_mut(), conn, &publish.topic, publish.partition) {
            Located::Here(idx) => self.publishing().native_append(now, conn, idx, publish),
            Located::Wait => NativeTaken::Stall,
            Located::Refused(failure) => NativeTaken::Refused(failure),
        }
    }

    fn native_subscribe(&mut self, now: Now, conn: ConnId, subscribe: &NativeSubscribe, client: &ClientIdentity) -> NativeTaken {
        if self.core.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        let (subs, number) = (self.core.native.subs.get(&conn), subscribe.subscription);
        let is_taken = subs.is_some_and(|subs| subs.iter().any(|s| s.number == number));
        if is_taken || self.searches.is_subscribing(conn, number) {
            let why = format!("subscription {} is in use on this connection", subscribe.subscription);
            return NativeTaken::Refused(Failure::never(Code::BadSubscription, why));
        }
        if subs.map_or(0, Vec::len) + self.searches.count(conn) >= SUBSCRIPTIONS_MAX {
            let why = format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions: open another");
            return NativeTaken::Refused(Failure::never(Code::BadSubscription, why));
        }
        let idx = match self.core.locate(now, self.cluster.as_deref_mut(), conn, &subscribe.topic, subscribe.partition) {
            Located::Here(idx) => idx,
            Located::Wait => return NativeTaken::Stall,
            Located::Refused(failure) => return NativeTaken::Refused(failure),
        };
        if let Err(error) = self.core.partitions.get(idx).check_read(now.ticks) {
            return NativeTaken::Refused(failure_of(error));
        }
        let options = SubOptions {
            msg_timeout_ms: subscribe.message_timeout_ms,
            sample_rate: 0,
            client: client.into(),
            ranged: true,
            ordered: subscribe.ordered,
            placed: false,
        };
        let is_new = self.core.partitions.get(idx).channel(&subscribe.channel).is_none();
        let begin = match place_of(&self.core.store, &self.core.partitions, idx, subscribe.start) {
            Err(by) if is_new => {
                let what = FindingFor::Subscribe { subscribe: subscribe.clone(), options };
                let finding = Finding { conn: Some(conn), idx, start: subscribe.start, what };
                self.searches.begin(by, finding, &mut self.core.store, self.core.outbox.io());
                return NativeTaken::Accepted;
            }
            place => place.unwrap_or_default(),
        };
        match self.core.native_attach(now, conn, idx, subscribe, options, begin) {
            Ok(()) => NativeTaken::Accepted,
            Err(failure) => NativeTaken::Refused(failure),
        }
    }

    fn native_credit(&mut self, conn: ConnId, subscription: u32, messages: u32, bytes: u64) -> bool {
        self.consumers().native_credit(conn, subscription, messages, bytes)
    }

    fn native_finish(&mut self, now: Now, conn: ConnId, request: u64, subscription: u32, ranges: &[IdRange]) -> NativeFinished {
        let sub = SubId { core: self.core.id, conn };
        let Some(key) = self.core.native.sub_mut(conn, subscription).map(|s| s.key) else {
            return NativeFinished::NoSubscription;
        };
        let Some(c) = self.core.partitions.served_mut(now.ticks, key) else { return NativeFinished::Done(0) };
        if c.machine.is_ordered()
            && let Err(error) = self.core.partitions.check_change(now.ticks, key)
        {
            return NativeFinished::Refused(failure_of(error));
        }
        let Some(c) = self.core.partitions.channel_mut(key) else { return NativeFinished::Done(0) };
        let num = ranges.iter().map(|r| c.machine.finish_range(now.ticks, sub, r.first, r.last)).sum();
        if num > 0 && c.machine.finishing().is_some() {
            self.channels().sync(key, CursorChange::Finish { sub, by: Finisher::Native { conn, request } });
            return NativeFinished::Waits;
        }
        if num > 0 {
            self.channels().mark_dirty(now, key);
            self.consumers().freed(key, sub, u32::try_from(num).unwrap_or(u32::MAX));
        }
        NativeFinished::Done(num)
    }

    fn native_requeue(&mut self, now: Now, conn: ConnId, subscription: u32, ranges: &[IdRange], delay_ms: u32) -> Option<u64> {
        let sub = SubId { core: self.core.id, conn };
        let key = self.core.native.sub_mut(conn, subscription)?.key;
        let Some(c) = self.core.partitions.served_mut(now.ticks, key) else { return Some(0) };
        if c.machine.is_ordered() && delay_ms > 0 {
            // as for REQ: they come again by their timeout
            return Some(0);
        }
        let delay = Duration::from_millis(delay_ms as u64);
        let num = ranges.iter().map(|r| c.machine.requeue_range(now.ticks, sub, r.first, r.last, delay)).sum();
        self.consumers().requeued(key, sub, u32::try_from(num).unwrap_or(u32::MAX));
        Some(num)
    }

    fn native_touch(&mut self, now: Now, conn: ConnId, subscription: u32, ranges: &[IdRange]) -> Option<u64> {
        let sub = SubId { core: self.core.id, conn };
        let key = self.core.native.sub_mut(conn, subscription)?.key;
        let Some(c) = self.core.partitions.served_mut(now.ticks, key) else { return Some(0) };
        Some(ranges.iter().map(|r| c.machine.touch_range(now.ticks, sub, r.first, r.last)).sum())
    }

    fn native_unsubscribe(&mut self, conn: ConnId, subscription: u32) -> bool {
        if let Some(request) = self.searches.give_up(conn, subscription) {
            let failure = Failure::never(Code::BadSubscription, "the client gave the subscription up before it began");
            self.core.outbox.tell(conn, LateAnswer::Native(request, NativeAnswer::Failed(failure)));
            return true;
        }
        self.core.native_leave(conn, subscription)
    }

    fn native_nodes(&self) -> Vec<([u8; 16], std::sync::Arc<str>)> {
        self.cluster.iter().flat_map(|c| c.peers.nodes_elsewhere()).map(|(id, address)| (id.0, address.clone())).collect()
    }

    fn native_topics(&mut self, names: &[&str], after: &str, each: &mut dyn FnMut(TopicEntry) -> bool) {
        if names.is_empty() {
            for topic in self.core.topics.after(after) {
                if !each(topic_entry(&self.core, self.cluster.as_deref(), &topic)) {
                    return;
                }
            }
        } else {
            for topic in names.iter().filter_map(|name| self.core.topics.known(name)) {
                if !each(topic_entry(&self.core, self.cluster.as_deref(), topic)) {
                    return;
                }
            }
        }
    }

    fn native_create_topic(&mut self, now: Now, conn: ConnId, request: u64, topic: &str, partitions: u16) -> NativeTaken {
        if self.core.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        match self.ensure_topic(now, topic, partitions) {
            Ok(true) => {
                let known = self.core.topics.known(topic).expect("the topic is known");
                let entry = topic_entry(&self.core, self.cluster.as_deref(), known);
                self.core.outbox.tell(conn, LateAnswer::Native(request, NativeAnswer::Created(entry, self.native_nodes())));
                NativeTaken::Accepted
            }
            Ok(false) => {
                self.core.topics.wait_conn(topic, conn);
                NativeTaken::Stall
            }
            Err(error) => NativeTaken::Refused(failure_of(error)),
        }
    }

    fn native_find(
        &mut self,
        now: Now,
        conn: ConnId,
        request: u64,
        topic: &str,
        partition: PartitionId,
        start: Start,
    ) -> NativeTaken {
        if self.core.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        if self.core.topics.known(topic).is_none() && !self.core.topics.is_pending(topic) {
            return NativeTaken::Refused(Failure::never(Code::BadTopic, format!("there is no topic {topic}")));
        }
        let idx = match self.core.locate(now, self.cluster.as_deref_mut(), conn, topic, partition) {
            Located::Here(idx) => idx,
            Located::Wait => return NativeTaken::Stall,
            Located::Refused(failure) => return NativeTaken::Refused(failure),
        };
        if let Err(error) = self.core.partitions.get(idx).check_read(now.ticks) {
            return NativeTaken::Refused(failure_of(error));
        }
        match place_of(&self.core.store, &self.core.partitions, idx, start) {
            Ok(place) => {
                let at = place.unwrap_or_else(|| self.core.store.collect_start(idx));
                self.core.outbox.tell(conn, LateAnswer::Native(request, NativeAnswer::Found { at }));
            }
            Err(by) => {
                let finding = Finding { conn: Some(conn), idx, start, what: FindingFor::Find { request } };
                self.searches.begin(by, finding, &mut self.core.store, self.core.outbox.io());
            }
        }
        NativeTaken::Accepted
    }

    fn native_set_offset(&mut self, now: Now, conn: ConnId, set: &NativeSetOffset) -> NativeTaken {
        if self.core.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        if self.core.topics.known(&set.topic).is_none() && !self.core.topics.is_pending(&set.topic) {
            return NativeTaken::Refused(Failure::never(Code::BadTopic, format!("there is no topic {}", set.topic)));
        }
        match self.core.locate(now, self.cluster.as_deref_mut(), conn, &set.topic, set.partition) {
            Located::Here(_) => {}
            Located::Wait => return NativeTaken::Stall,
            Located::Refused(failure) => return NativeTaken::Refused(failure),
        }
        let Ok(channel) = ChannelName::new(&set.channel) else {
            return NativeTaken::Refused(Failure::never(Code::BadChannel, "the channel's name is not valid"));
        };
        let topic = self.core.topics.known(&set.topic).expect("it was just located").clone();
        let setter = Setter::Native { conn, request: set.request };
        let NativeSetOffset { partition, to, force, .. } = *set;
        self.operating().set_offset(now, SetOffset { topic, partition, channel, to, from: None, force }, setter);
        NativeTaken::Accepted
    }
}

/// `cluster`: `None` on a stand-alone node.
fn topic_entry(core: &CoreParts, cluster: Option<&Cluster>, topic: &TopicRef) -> TopicEntry {
    let place = |p: u16| {
        let elsewhere = cluster.and_then(|c| c.peers.place_elsewhere(topic, PartitionId(p)));
        elsewhere.unwrap_or_else(|| PartitionPlace { node: 0, core: topic.core_of(PartitionId(p), core.cores).0 })
    };
    TopicEntry { name: topic.name.clone(), id: topic.id, places: (0..topic.partitions).map(place).collect() }
}
