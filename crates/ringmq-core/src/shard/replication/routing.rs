//! Between the cluster's machines and the rest of a core: the work that one leaves to the other.
//!
//! ```text
//! Engine ── in_cluster ─> a machine, lent the core's parts ─> Work, in a queue ─> Cluster::step, or the engine: publishes, clients, topics
//! ```
//! The queue is empty when [`Engine::in_cluster`] returns, unless it was called for work of the queue: new work is done next.

use super::forwarding::Origin;
use super::leaving::leaver;
use super::loss::accept;
use super::{Cluster, CoreParts};
use crate::base::{ConnId, CoreId, Now, PartitionId, TopicRef};
use crate::codec::peer::message::{PackedBodies, Route};
use crate::log::PartitionIdx;
use crate::replica::Event;
use crate::seam::cluster::Fact;
use crate::seam::message::{MeshMessage, Share, Ticket};
use crate::shard::engine::Engine;
use crate::shard::offsets::Setter;
use crate::shard::replication::changes::Taker;
use crate::shard::subscription::Subscription;

/// Work that a machine of the cluster leaves.
pub(super) enum Work {
    /// The replica takes the event.
    Event(PartitionIdx, Event),
    /// Publishes to the partition that waited for a leader may go on.
    Forward(Route),
    /// The same: this node leads it.
    Append(Route),
    /// A publish of another node's client.
    Take(PartitionIdx, Origin, PackedBodies, u64),
    /// Publishes that wait for room on this core try again.
    Retry,
    /// Publishes that wait for answers of other nodes try again.
    RetryElsewhere,
    /// A message of a client or an operator at another node.
    Guest(MeshMessage),
    /// The topic's clients leave.
    EndClients(TopicRef),
    EndSubscribers(TopicRef),
    /// The topic's replicas decide nothing more.
    Retire(TopicRef),
    /// The disk has a topic that the cluster deleted.
    Remove(TopicRef),
}

impl Engine {
    /// Lets a machine of the cluster work, and does the work that it leaves. `None`: the node is stand-alone.
    pub(in crate::shard) fn in_cluster<R>(
        &mut self,
        now: Now,
        work: impl FnOnce(&mut Cluster, &mut CoreParts) -> R,
    ) -> Option<R> {
        let cluster = self.cluster.as_deref_mut()?;
        let result = work(cluster, &mut self.core);
        self.work_off(now);
        Some(result)
    }

    /// Does the work that machines of the cluster have left, unless it is being done.
    #[inline]
    pub(in crate::shard) fn work_off(&mut self, now: Now) {
        if self.core.work.begin() {
            self.work_through(now);
        }
    }

    fn work_through(&mut self, now: Now) {
        while let Some((work, cluster)) = self.core.work.next().zip(self.cluster.as_deref_mut()) {
            match work {
                Work::Event(idx, event) => cluster.step(&mut self.core, now, idx, event),
                Work::Forward(route) => cluster.forwards.go_on(&mut self.core, now, &mut cluster.peers, route),
                Work::Retire(topic) => cluster.retire_replicas(&mut self.core, topic.id),
                Work::Append(route) => self.publishing().append_forwarded(now, route),
                Work::Take(idx, origin, bodies, delay_ms) => {
                    self.publishing().take_forwarded(now, idx, origin, &bodies, delay_ms);
                }
                Work::Retry => self.publishing().retry_waiting(now),
                Work::RetryElsewhere => self.publishing().retry_waiting_elsewhere(),
                Work::Guest(message) => self.on_mesh(now, CoreId::GUESTS, message),
                Work::EndClients(topic) => self.removing().end_clients(&topic),
                Work::EndSubscribers(topic) => self.removing().end_subscribers(&topic),
                Work::Remove(topic) => {
                    let has_begun = self.removing().close_deleted(&topic);
                    self.in_cluster(now, |c, _| c.note_removing(&topic, has_begun));
                }
            }
        }
    }

    pub(in crate::shard) fn on_fact(&mut self, now: Now, fact: Fact) {
        if self.core.life.is_stopped() {
            return;
        }
        match fact {
            // The topic's home may learn of its deletion before this core learns of the topic.
            Fact::Topic(topic) | Fact::Partition { topic, .. } if self.removals.is_removing(topic.id) => {}
            Fact::MayLeave { route, version } => self.on_may_leave(now, route, version),
            fact => drop(self.in_cluster(now, |c, core| c.on_fact(core, now, fact))),
        }
    }

    /// The coordinator lets a replica leave. If that cannot be done now, the replica asks again.
    fn on_may_leave(&mut self, now: Now, route: Route, version: u64) {
        let Some(cluster) = &self.cluster else { return };
        let Some(idx) = leaver(&self.core, cluster.peers.me(), route, version) else { return };
        let topic = self.core.partitions.get(idx).topic.clone();
        let is_used = self.searches.is_any_in(idx) || self.removing().changes_channels_of(&topic);
        if !is_used && !self.removals.is_removing(topic.id) {
            self.in_cluster(now, |c, core| c.leave(core, idx));
        }
    }

    /// Takes in a share that a partition's core told. A subscription adds the partitions that this node leads now.
    pub(in crate::shard) fn on_share(&mut self, now: Now, topic: &TopicRef, partition: PartitionId, share: Share) {
        let serves_now = self.core.topics.set_share(topic, partition, share);
        self.in_cluster(now, |c, core| c.wanted.leaders_changed(core, topic));
        if !serves_now {
            return;
        }
        let wants = |s: &Subscription| s.topic.id == topic.id && s.lacks(partition);
        let mut conns: Vec<ConnId> = self.subs.iter().filter(|(_, s)| wants(s)).map(|(conn, _)| conn).collect();
        conns.sort_unstable();
        conns.into_iter().for_each(|conn| self.consumers().join_part(now, conn, partition));
    }

    // ---- operators

    /// Carries out an operator's change of a channel, here or where the partition is led. A change that another node passed on goes no
    /// further.
    pub(in crate::shard) fn on_operator(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        let is_stopping = self.core.life.is_stopping();
        let message = match self.cluster.as_deref_mut().filter(|_| from != CoreId::GUESTS) {
            None => message,
            Some(Cluster { changes, peers, .. }) => match changes.ask_leader(peers, now, from, message, is_stopping) {
                Taker::ThisNode(message) => message,
                Taker::Leader => return,
                Taker::Nobody(refusal) => return self.pass(from, refusal),
            },
        };
        match message {
            MeshMessage::SetOffset { ticket, set } => self.operating().set_offset(now, *set, Setter::Core(from, ticket)),
            MeshMessage::SetOrder { ticket, set } => self.operating().set_order(now, *set, (from, ticket)),
            MeshMessage::ChangeChannel { ticket, set } => self.operating().change_channel(now, *set, (from, ticket)),
            _ => unreachable!("no change of a channel"),
        }
    }

    /// Accepts a loss. `loss`: its name in the refusal. The answer has the loss.
    pub(in crate::shard) fn accept_loss(
        &mut self,
        now: Now,
        (from, ticket): (CoreId, Ticket),
        (topic, partition): (&TopicRef, PartitionId),
        loss: Option<&str>,
    ) {
        let result = accept(&mut self.core, topic, partition, loss);
        self.operators.losses.answer(&mut self.core.outbox, from, ticket, result);
        self.work_off(now);
    }
}
