//! Subscriptions on the connection's core: SUB, RDY, FIN, REQ and TOUCH go from here to the partitions, wherever they live.

use super::engine::{Attempt, Engine};
use super::outbox::LateAnswer;
use super::replication::may_be_stored_later;
use super::subscription::{Follows, LendAction, Part, Subscription};
use super::timers::Timer;
use crate::base::{ChannelName, ConnId, CoreId, MessageId, MessagePlace, Now, PartitionId, SubId, TopicRef};
use crate::codec::peer::message::Route;
use crate::seam::{
    message::{MeshMessage, SubOptions, SubRequest},
    outcome::{InFlightCommand, InFlightError, PublishError},
};
use crate::session::ReplySlot;

impl Engine {
    pub fn subscribe(
        &mut self,
        now: Now,
        conn: ConnId,
        (topic, partition): (&str, Option<PartitionId>),
        channel: ChannelName,
        options: SubOptions,
        slot: ReplySlot,
    ) -> Attempt {
        if self.life.is_stopping() {
            return Attempt::Refused(PublishError::Stopping);
        }
        if self.moves.is_moving(conn) {
            return Attempt::Wait;
        }
        match self.ensure_topic(now, topic) {
            Ok(true) => {}
            Ok(false) => {
                self.topics.wait_conn(topic, conn);
                return Attempt::Wait;
            }
            Err(error) => return Attempt::Refused(error),
        }
        let topic = self.topics.known(topic).expect("the topic is known").clone();
        if partition.is_some_and(|p| p.0 >= topic.partitions) {
            return Attempt::Refused(PublishError::NoPartition);
        }
        let partitions = self.readable_partitions(&topic, partition);
        if let Some(cluster) = &self.cluster {
            let route = |&partition| Route { topic_id: topic.id, partition };
            if let Some(error) = partitions.iter().find_map(|p| cluster.relays_to(route(p)).err()) {
                return Attempt::Refused(error);
            }
        }
        let home = match partition {
            None => self.best_core(&topic, &partitions),
            Some(p) => Some(topic.core_of(p, self.cores)).filter(|core| *core != self.core),
        };
        if let Some(home) = home {
            self.moves.begin(conn, home);
            return Attempt::Wait;
        }
        let sub = SubId { core: self.core, conn };
        let parts = partitions.iter().map(|&p| Part::new(p, topic.core_of(p, self.cores))).collect();
        let mut subscription = Subscription::new(topic.clone(), channel.clone(), options.clone(), slot, parts);
        if !self.is_clustered() {
            self.subs.insert(conn, subscription);
            let (is_alone, partition) = (partition.is_some(), partitions[0]);
            self.ask(now, SubRequest { sub, topic, partition, channel, options, first: None, is_alone });
            return Attempt::Accepted;
        }
        // Partitions have leaders of their own: each judges for itself whether the channel is its first one.
        subscription.follows = Some(Follows { only: partition, idle_since: None, is_told: false });
        subscription.open(&mut vec![]);
        let lacks_any = subscription.lacks_any();
        self.subs.insert(conn, subscription);
        if lacks_any {
            self.expect_parts(conn);
        }
        for partition in partitions {
            let (topic, channel, options) = (topic.clone(), channel.clone(), options.clone());
            self.ask(now, SubRequest { sub, topic, partition, channel, options, first: None, is_alone: true });
        }
        Attempt::Accepted
    }

    /// The partitions that a SUB of the topic, or of one partition of it, reads at once: those that this node serves or another leads.
    fn readable_partitions(&self, topic: &TopicRef, only: Option<PartitionId>) -> Vec<PartitionId> {
        if !self.is_clustered() {
            return only.map_or_else(|| (0..topic.partitions).map(PartitionId).collect(), |only| vec![only]);
        }
        let mut readable = self.topics.readable(&topic.name);
        readable.retain(|partition| only.is_none_or(|only| only == *partition));
        readable
    }

    /// The connection lacks a partition: it asks for it when it may.
    pub fn expect_parts(&mut self, conn: ConnId) {
        let at = self.subs.lacks(conn);
        self.timers.at_most(Timer::Parts, Some(at));
    }

    /// Subscriptions that lack a partition ask whoever leads it now, here or at another node. One that has had none for as long as a
    /// publish waits for a leader ends.
    pub fn look_for_parts(&mut self, now: Now) {
        for conn in self.subs.take_lacking(now.ticks) {
            let Some(s) = self.subs.get(conn) else { continue };
            let topic = s.topic.clone();
            let mut readable = self.topics.readable(&topic.name);
            readable.retain(|partition| s.lacks(*partition));
            readable.into_iter().for_each(|partition| self.join_part(now, conn, partition));
            self.end_idle(now, conn);
        }
    }

    /// A subscription takes in a partition that it lacks.
    pub fn join_part(&mut self, now: Now, conn: ConnId, partition: PartitionId) {
        let Some(s) = self.subs.get_mut(conn) else { return };
        let (topic, channel, options, blocked) = (s.topic.clone(), s.channel.clone(), s.options.clone(), s.blocked);
        let (sub, core) = (SubId { core: self.core, conn }, topic.core_of(partition, self.cores));
        s.join(Part::new(partition, core));
        self.ask(now, SubRequest { sub, topic, partition, channel, options, first: None, is_alone: true });
        if self.part_core(conn, partition).is_none() {
            return; // it was refused at once
        }
        if blocked {
            self.tell_blocked(sub, partition, core, true);
        }
        let actions = self.subs.decide(conn, Subscription::open);
        self.lend(conn, actions);
    }

    fn end_idle(&mut self, now: Now, conn: ConnId) {
        let limit = self.leader_limit();
        let Some(s) = self.subs.get_mut(conn) else { return };
        let (is_idle, lacks_any) = (!s.has_any(), s.lacks_any());
        let Some(follows) = &mut s.follows else { return };
        follows.idle_since = if is_idle { Some(follows.idle_since.unwrap_or(now.ticks)) } else { None };
        if follows.idle_since.is_some_and(|since| now.ticks.since(since) >= limit) {
            let heard = match s.slot.take() {
                Some(slot) => LateAnswer::Answer(slot, Err(PublishError::NotLeader)),
                None => LateAnswer::SubscriptionLost(PublishError::NotLeader),
            };
            self.outbox.tell(conn, heard);
        } else if lacks_any {
            self.expect_parts(conn);
        }
    }

    /// SUB is answered when every partition has, and there is one.
    fn answer_sub(&mut self, conn: ConnId) {
        let Some(s) = self.subs.get_mut(conn) else { return };
        if s.unanswered == 0
            && (!s.parts.is_empty() || s.failed.is_some())
            && let Some(slot) = s.slot.take()
        {
            let result = s.failed.map_or(Ok(()), Err);
            self.outbox.tell(conn, LateAnswer::Answer(slot, result));
        }
    }

    pub fn ask(&mut self, now: Now, request: SubRequest) {
        let core = request.topic.core_of(request.partition, self.cores);
        if core == self.core {
            self.attach(now, request);
        } else {
            self.pass(core, MeshMessage::Subscribe { request: Box::new(request) });
        }
    }

    /// Partition 0 has answered: the others follow what it said.
    pub fn open_subscriptions(&mut self, now: Now) {
        for conn in self.subs.take_opening() {
            let actions = self.subs.decide(conn, Subscription::open);
            let Some(s) = self.subs.get(conn) else { continue };
            let (topic, channel, options) = (s.topic.clone(), s.channel.clone(), s.options.clone());
            let (first, blocked) = (s.first, s.blocked);
            let sub = SubId { core: self.core, conn };
            let others: Vec<(PartitionId, CoreId)> = s.parts[1..].iter().map(|p| (p.partition, p.core)).collect();
            for (partition, core) in others {
                let (topic, channel, options) = (topic.clone(), channel.clone(), options.clone());
                self.ask(now, SubRequest { sub, topic, partition, channel, options, first, is_alone: false });
                if blocked {
                    self.tell_blocked(sub, partition, core, true);
                }
            }
            self.lend(conn, actions);
        }
    }

    /// The core that has clearly more of these partitions than this one.
    pub fn best_core(&self, topic: &TopicRef, partitions: &[PartitionId]) -> Option<CoreId> {
        let mut counts = vec![0u16; self.cores as usize];
        partitions.iter().for_each(|&p| counts[topic.core_of(p, self.cores).0 as usize] += 1);
        let (best, &most) = counts.iter().enumerate().max_by_key(|(_, n)| **n)?;
        // Partitions are dealt out in turn, so counts differ by one at most: only a core that has none is clearly worse.
        (counts[self.core.0 as usize] == 0 && most > 0).then_some(CoreId(best as u16))
    }

    pub fn set_ready(&mut self, conn: ConnId, rdy: u32) {
        let actions = self.subs.decide(conn, |s, actions| s.set_rdy(rdy, actions));
        self.lend(conn, actions);
    }

    /// Carries out what a subscription decided; what a local partition gives back at once may lead to more.
    pub fn lend(&mut self, conn: ConnId, mut actions: Vec<LendAction>) {
        let sub = SubId { core: self.core, conn };
        let mut next = 0;
        while let Some(&action) = actions.get(next) {
            next += 1;
            let (LendAction::Lend { part, credit } | LendAction::Recall { part, credit }) = action;
            let Some(s) = self.subs.get(conn) else { break };
            let (partition, core) = (s.parts[part].partition, s.parts[part].core);
            match action {
                _ if core != self.core => {
                    let lend = matches!(action, LendAction::Lend { .. });
                    let message = match lend {
                        true => MeshMessage::Lend { sub, partition, credit },
                        false => MeshMessage::Recall { sub, partition, credit },
                    };
                    self.pass(core, message);
                }
                LendAction::Lend { .. } => self.on_lent(sub, partition, credit),
                LendAction::Recall { .. } => {
                    let back = self.on_recall(sub, partition, credit);
                    if back > 0
                        && let Some(s) = self.subs.get_mut(conn)
                    {
                        s.on_returned(part, back, &mut actions);
                    }
                }
            }
        }
        self.subs.give_back(actions);
    }

    pub fn on_returned(&mut self, sub: SubId, partition: PartitionId, credit: u32) {
        let actions = self.subs.decide(sub.conn, |s, actions| {
            if let Some(part) = s.part_of(partition) {
                s.on_returned(part, credit, actions);
            }
        });
        self.lend(sub.conn, actions);
    }

    pub fn on_hungry(&mut self, sub: SubId, partition: PartitionId) {
        let actions = self.subs.decide(sub.conn, |s, actions| {
            if let Some(part) = s.part_of(partition) {
                s.on_hungry(part, actions);
            }
        });
        self.lend(sub.conn, actions);
    }

    pub fn finish(&mut self, now: Now, conn: ConnId, id: MessageId) -> Result<(), InFlightError> {
        let place = self.place_named(conn, id).ok_or(InFlightError::NotInFlight)?;
        let (core, MessagePlace { partition, log_id: id }) = place;
        if core != self.core {
            self.bundles.finish(conn, partition, id);
            return Ok(());
        }
        self.on_finish(now, SubId { core, conn }, partition, id)
    }

    pub fn requeue(&mut self, now: Now, conn: ConnId, id: MessageId, delay_ms: u64) -> bool {
        let Some((core, MessagePlace { partition, log_id: id })) = self.place_named(conn, id) else { return false };
        let sub = SubId { core: self.core, conn };
        if core != self.core {
            self.pass(core, MeshMessage::Requeue { sub, partition, id, delay_ms });
            return true;
        }
        self.on_requeue(now, sub, partition, id, delay_ms)
    }

    pub fn touch(&mut self, now: Now, conn: ConnId, id: MessageId) -> bool {
        let Some((core, MessagePlace { partition, log_id: id })) = self.place_named(conn, id) else { return false };
        let sub = SubId { core: self.core, conn };
        if core != self.core {
            self.pass(core, MeshMessage::Touch { sub, partition, id });
            return true;
        }
        self.on_touch(now, sub, partition, id)
    }

    /// Place of the message with this id in the topic that the connection has subscribed to, and the partition's core. `None`: the
    /// subscription has no such partition.
    fn place_named(&self, conn: ConnId, id: MessageId) -> Option<(CoreId, MessagePlace)> {
        let s = self.subs.get(conn)?;
        let place = s.ids.place(id);
        Some((s.parts[s.part_of(place.partition)?].core, place))
    }

    /// Why a message that the connection names is not in flight for it, as it is known to be wrong.
    pub fn why_not_named(&mut self, conn: ConnId, id: MessageId, why: InFlightError) -> InFlightError {
        let sub = SubId { core: self.core, conn };
        match self.place_named(conn, id) {
            Some((_, place)) => self.partitions.why_not_in_flight(sub, place, why),
            None => why,
        }
    }

    /// The client named a message that is not in flight for it, after it was not answered at once.
    pub fn refuse_in_flight(&mut self, sub: SubId, place: MessagePlace, command: InFlightCommand) {
        let why = self.partitions.why_not_in_flight(sub, place, InFlightError::NotInFlight);
        self.tell_in_flight_failed(sub, place, command, why);
    }

    /// Reports a command for a message that failed after it was accepted.
    pub fn tell_in_flight_failed(&mut self, sub: SubId, place: MessagePlace, command: InFlightCommand, why: InFlightError) {
        if sub.core != self.core {
            return self.pass(sub.core, MeshMessage::InFlightFailed { sub, place, command, why });
        }
        if let Some(s) = self.subs.get(sub.conn) {
            self.outbox.tell(sub.conn, LateAnswer::InFlightFailed(s.ids.id(place), command, why));
        }
    }

    pub fn part_core(&self, conn: ConnId, partition: PartitionId) -> Option<CoreId> {
        let s = self.subs.get(conn)?;
        Some(s.parts[s.part_of(partition)?].core)
    }

    /// The client's output became full, or has room again.
    pub fn set_blocked(&mut self, conn: ConnId, blocked: bool) {
        let Some(s) = self.subs.get_mut(conn) else { return self.set_native_blocked(conn, blocked) };
        if s.blocked == blocked {
            return;
        }
        s.blocked = blocked;
        let sub = SubId { core: self.core, conn };
        for i in 0..s.asked() {
            let Some(part) = self.subs.get(conn).map(|s| &s.parts[i]) else { return };
            self.tell_blocked(sub, part.partition, part.core, blocked);
        }
    }

    pub fn tell_blocked(&mut self, sub: SubId, partition: PartitionId, core: CoreId, blocked: bool) {
        if core == self.core {
            self.on_block(sub, partition, blocked);
        } else {
            self.pass(core, MeshMessage::Block { sub, partition, blocked });
        }
    }

    /// The connection is gone.
    pub fn forget_conn(&mut self, now: Now, conn: ConnId) {
        self.flush_remote_fins();
        self.moves.forget(conn);
        self.timers.remove(Timer::Session(conn));
        self.forget_native(now, conn);
        let Some(s) = self.subs.remove(conn) else { return };
        let sub = SubId { core: self.core, conn };
        for part in &s.parts[..s.asked()] {
            if part.core == self.core {
                self.detach(now, sub, part.partition);
            } else {
                self.pass(part.core, MeshMessage::Unsubscribe { sub, partition: part.partition });
            }
        }
        if s.slot.is_some() || s.failed.is_some() || s.channel_deleted {
            // It may have kept the topic, and leaves no channel whose end says so.
            self.topic_idle(&s.topic);
        }
    }

    pub fn flush_remote_fins(&mut self) {
        self.flush_relays();
        for ((conn, partition), ids) in self.bundles.take_fins() {
            if let Some(core) = self.part_core(conn, partition) {
                self.pass(core, MeshMessage::Finish { sub: SubId { core: self.core, conn }, partition, ids });
            }
        }
    }

    pub fn tell_subscriber(&mut self, sub: SubId, partition: PartitionId, result: Result<bool, PublishError>) {
        if sub.core != self.core {
            return self.pass(sub.core, MeshMessage::Subscribed { sub, partition, result });
        }
        let is_clustered = self.is_clustered();
        let Some(s) = self.subs.get_mut(sub.conn) else { return };
        if let Err(error) = result
            && is_clustered
            && (s.slot.is_none() || may_be_stored_later(error))
        {
            return self.part_refused(sub, partition, error);
        }
        s.failed = s.failed.or(result.err());
        s.answered(partition);
        if let (Ok(_), Some(follows)) = (result, &mut s.follows) {
            (follows.idle_since, follows.is_told) = (None, false);
        }
        let is_verdict = !is_clustered && partition == s.parts[0].partition;
        if is_verdict {
            s.first = result.ok();
            if result.is_err() {
                // No other partition is asked.
                s.unanswered = 0;
            }
        }
        self.answer_sub(sub.conn);
        if is_verdict && result.is_ok() {
            self.subs.expect_opening(sub.conn);
        }
    }

    /// The leader of a partition that comes to the subscription does not take the client: it is asked again where that may help.
    fn part_refused(&mut self, sub: SubId, partition: PartitionId, error: PublishError) {
        let Some(s) = self.subs.get_mut(sub.conn) else { return };
        if !may_be_stored_later(error) && !matches!(error, PublishError::NotWritable(_) | PublishError::Unknown) {
            return self.outbox.tell(sub.conn, LateAnswer::SubscriptionLost(error));
        }
        if let Some(follows) = s.follows.as_mut().filter(|_| !may_be_stored_later(error))
            && !std::mem::replace(&mut follows.is_told, true)
        {
            let (topic, channel) = (&s.topic.name, &s.channel);
            tracing::warn!(%topic, %partition, %channel, %error, "a subscription goes on without a partition, and asks again; logged once");
        }
        self.part_lost(sub, partition);
    }

    /// A partition has forgotten the client: the subscription goes on without, and asks for it again.
    pub fn part_lost(&mut self, sub: SubId, partition: PartitionId) {
        if self.subs.contains(sub.conn) {
            self.leave_part(sub, partition);
            self.expect_parts(sub.conn);
        }
    }

    /// The client's core hears that the partition has forgotten the client.
    pub fn tell_part_lost(&mut self, sub: SubId, partition: PartitionId) {
        if sub.core == self.core {
            self.part_lost(sub, partition);
        } else {
            self.pass(sub.core, MeshMessage::PartLost { sub, partition });
        }
    }

    fn leave_part(&mut self, sub: SubId, partition: PartitionId) {
        let actions = self.subs.decide(sub.conn, |s, actions| s.leave(partition, actions));
        self.lend(sub.conn, actions);
        self.answer_sub(sub.conn);
    }

    pub fn tell_hungry(&mut self, sub: SubId, partition: PartitionId) {
        if sub.core == self.core {
            self.on_hungry(sub, partition);
        } else {
            self.pass(sub.core, MeshMessage::Hungry { sub, partition });
        }
    }
}
