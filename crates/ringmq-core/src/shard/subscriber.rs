//! SUB on the connection's core: the partitions that the subscription reads are asked, and those that come to it later.

use super::consumers::Consumers;
use super::engine::Attempt;
use super::replication::leader_limit;
use super::subscription::{Part, Subscription};
use crate::base::{ChannelName, ConnId, CoreId, Now, PartitionId, SubId, TopicRef};
use crate::codec::peer::message::Route;
use crate::seam::{
    message::{MeshMessage, SubOptions, SubRequest},
    outcome::PublishError,
};
use crate::session::ReplySlot;

impl Consumers<'_> {
    pub fn subscribe(
        &mut self,
        now: Now,
        conn: ConnId,
        (topic, partition): (&str, Option<PartitionId>),
        channel: ChannelName,
        options: SubOptions,
        slot: ReplySlot,
    ) -> Attempt {
        if self.core.life.is_stopping() {
            return Attempt::Refused(PublishError::Stopping);
        }
        if self.moves.is_moving(conn) {
            return Attempt::Wait;
        }
        match self.core.ensure_topic(now, self.cluster.as_deref_mut(), topic, 0) {
            Ok(true) => {}
            Ok(false) => {
                self.core.topics.wait_conn(topic, conn);
                return Attempt::Wait;
            }
            Err(error) => return Attempt::Refused(error),
        }
        let topic = self.core.topics.known(topic).expect("the topic is known").clone();
        if partition.is_some_and(|p| p.0 >= topic.partitions) {
            return Attempt::Refused(PublishError::NoPartition);
        }
        let mut partitions = self.core.topics.readable(&topic.name);
        partitions.retain(|readable| partition.is_none_or(|only| only == *readable));
        if let Some(cluster) = &self.cluster {
            let route = |&partition| Route { topic_id: topic.id, partition };
            if let Some(error) = partitions.iter().find_map(|p| cluster.peers.relays_to(route(p)).err()) {
                return Attempt::Refused(error);
            }
        }
        let home = match partition {
            None => best_core(&topic, &partitions, self.core.id, self.core.cores),
            Some(p) => Some(topic.core_of(p, self.core.cores)).filter(|core| *core != self.core.id),
        };
        if let Some(home) = home {
            self.moves.begin(conn, home);
            return Attempt::Wait;
        }
        let parts = partitions.iter().map(|&p| Part::new(p, topic.core_of(p, self.core.cores))).collect();
        let mut s = Subscription::new(topic, channel, options, slot, parts);
        s.is_alone = partition.is_some();
        if self.core.is_clustered {
            s.follow(partition);
        }
        let sub = SubId { core: self.core.id, conn };
        let requests: Vec<SubRequest> = s.parts[..s.asked()].iter().map(|part| s.request(sub, part.partition)).collect();
        let lacks_any = s.lacks_any();
        self.subs.insert(conn, s);
        if lacks_any {
            self.expect_parts(conn);
        }
        requests.into_iter().for_each(|request| self.ask(now, request));
        Attempt::Accepted
    }

    /// Subscriptions that lack a partition ask its present leader, here or at another node. A subscription without any partition for as
    /// long as a publish waits for a leader ends.
    pub fn look_for_parts(&mut self, now: Now) {
        let limit = leader_limit(&self.core.settings);
        for conn in self.subs.take_lacking(now.ticks) {
            let Some(s) = self.subs.get(conn) else { continue };
            let readable = self.core.topics.readable(&s.topic.name).into_iter().filter(|partition| s.lacks(*partition));
            readable.collect::<Vec<_>>().into_iter().for_each(|partition| self.join_part(now, conn, partition));
            self.end_idle(now, conn, limit);
        }
    }

    /// A subscription takes in a partition that it lacks.
    pub fn join_part(&mut self, now: Now, conn: ConnId, partition: PartitionId) {
        let Some(s) = self.subs.get_mut(conn) else { return };
        s.join(Part::new(partition, s.topic.core_of(partition, self.core.cores)));
        let request = s.request(SubId { core: self.core.id, conn }, partition);
        self.ask(now, request);
        self.open(conn);
    }

    /// Partition 0 has answered: asks the other partitions with its verdict.
    pub fn open_subscriptions(&mut self, now: Now) {
        for conn in self.subs.take_opening() {
            let Some(s) = self.subs.get(conn) else { continue };
            let sub = SubId { core: self.core.id, conn };
            let others: Vec<SubRequest> = s.parts[1..].iter().map(|part| s.request(sub, part.partition)).collect();
            others.into_iter().for_each(|request| self.ask(now, request));
            self.open(conn);
        }
    }

    /// Later messages about the client follow the request in order.
    fn ask(&mut self, now: Now, request: SubRequest) {
        let core = request.topic.core_of(request.partition, self.core.cores);
        if core == self.core.id {
            self.attach(now, request);
        } else {
            self.core.outbox.pass(core, MeshMessage::Subscribe { request: Box::new(request) });
        }
    }
}

/// The core that has clearly more of these partitions than this one.
fn best_core(topic: &TopicRef, partitions: &[PartitionId], this: CoreId, cores: u16) -> Option<CoreId> {
    let mut counts = vec![0u16; cores as usize];
    partitions.iter().for_each(|&p| counts[topic.core_of(p, cores).0 as usize] += 1);
    let (best, &most) = counts.iter().enumerate().max_by_key(|(_, n)| **n)?;
    // Partitions are dealt out in turn, so counts differ by one at most: only a core that has none is clearly worse.
    (counts[this.0 as usize] == 0 && most > 0).then_some(CoreId(best as u16))
}
