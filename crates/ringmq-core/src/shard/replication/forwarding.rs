//! Publishes that clients make at a node that does not lead the partition. Its core of the partition sends them to the leader over
//! the peer link ([`super::lines`]); the leader appends them as it does those of its own clients, and answers each.
//!
//! While no leader can be reached, what was surely not stored waits for one: for `lease-ttl` and `pub-waiting-timeout` at most, which
//! outlasts a failover.

use super::lines::{Next, Pending, may_be_stored_later};
use super::{Cluster, Engine};
use crate::base::{ConnId, Epoch, NodeId, Now, TopicRef};
use crate::codec::nsq::Bodies;
use crate::codec::peer::message::{Asker, Body, Forward, Forwarded, Head, Lane, Message, PackedBodies, Route, Session};
use crate::log::PartitionIdx;
use crate::metrics::remote::RemoteOutcome;
use crate::seam::message::OwnedBodies;
use crate::seam::outcome::{PublishError, Unwritable, outcome_of, result_of};
use crate::session::ReplySlot;
use crate::shard::engine::Attempt;
use crate::shard::partitions::Publisher;
use crate::shard::publish::is_too_big;
use crate::shard::timers::Timer;
use std::time::Duration;

/// Address of the party at another node that waits for a publish's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    node: NodeId,
    route: Route,
    attempt: Session,
    asker: Asker,
}

impl Cluster {
    fn send_forwards(&mut self, now: Now, leader: NodeId, route: Route, attempt: Session) {
        let head = Head { epoch: Epoch(0), session: attempt };
        for Pending { ticket, bodies, delay_ms, .. } in self.lines.send(now.ticks, route) {
            self.remote.forwarded.add(bodies.body_bytes());
            let asker = Asker { generation: self.generation, core: self.core, ticket: *ticket };
            let body = Body::Forward(Forward { asker, delay_ms: *delay_ms, bodies: bodies.clone() });
            self.links.send(leader, route, Message { head, body });
        }
    }

    /// Whether a publish comes from another node, and an earlier one of its attempt was refused.
    pub(in crate::shard) fn follows_refusal(&self, publisher: Publisher) -> bool {
        let Publisher::Node(Origin { node, route, attempt, asker }) = publisher else { return false };
        self.refused.get(&(node, route)) == Some(&(asker.generation, attempt))
    }

    /// Tells another node what became of a publish of its client. After a refusal that it may try again, nothing that follows in the
    /// attempt is taken: the sender keeps the order.
    pub(in crate::shard) fn answer_forward(&mut self, origin: Origin, result: Result<(), PublishError>) {
        let Origin { node, route, attempt, asker } = origin;
        if result.is_err_and(may_be_stored_later) {
            self.refused.insert((node, route), (asker.generation, attempt));
        }
        let head = Head { epoch: Epoch(0), session: attempt };
        let body = Body::Forwarded(Forwarded { asker, outcome: outcome_of(result) });
        self.links.send_on(node, Lane::Data, route, Message { head, body });
    }
}

impl Engine {
    // ---- this node's clients

    /// A publish of a client of this core, for a partition of this core: taken here, or sent to its leader.
    pub(in crate::shard) fn publish_replicated(
        &mut self,
        now: Now,
        conn: ConnId,
        route: Route,
        place: Option<PartitionIdx>,
        bodies: &Bodies<'_>,
        slot: ReplySlot,
    ) -> Attempt {
        if let Some(idx) = place.filter(|_| !self.is_forwarding(route)) {
            if self.waiting.has_parked_for(idx) {
                // A publish of the same connection may be among them.
                self.waiting.wait_here(now, conn, &mut self.timers);
                return Attempt::Wait;
            }
            match self.publish_here(now, conn, idx, bodies, slot) {
                Attempt::Refused(error) if may_be_stored_later(error) => {}
                attempt => return attempt,
            }
        }
        if let Err(error) = self.life.check_running() {
            return Attempt::Refused(error);
        }
        if is_too_big(bodies.count(), bodies.bytes()) {
            return Attempt::Refused(PublishError::TooBig);
        }
        let waiting = self.elsewhere_bytes();
        if waiting > 0 && waiting + bodies.bytes() as u64 > self.settings.max_pub_waiting_size {
            self.waiting.wait_elsewhere(now, conn, &mut self.timers);
            return Attempt::Wait;
        }
        self.moves.published_here(conn);
        self.forward(now, route, Publisher::Session(conn, slot), PackedBodies::pack(bodies.iter()), bodies.delay_ms());
        Attempt::Accepted
    }

    /// A publish of a client of another core, or of the HTTP thread, that this node cannot take.
    pub(in crate::shard) fn forward_owned(&mut self, now: Now, route: Route, publisher: Publisher, bodies: &OwnedBodies) {
        if self.cluster_mut().topic(route.topic_id).is_none() {
            return self.tell_publisher(publisher, Err(PublishError::TopicNotExist));
        }
        if is_too_big(bodies.ends.len(), bodies.bytes.len()) {
            return self.tell_publisher(publisher, Err(PublishError::TooBig));
        }
        self.forward(now, route, publisher, PackedBodies::pack(bodies.iter()), bodies.delay_ms);
    }

    /// Whether publishes to the partition wait for their leader: others come behind them.
    pub(in crate::shard) fn is_forwarding(&self, route: Route) -> bool {
        self.cluster.as_ref().is_some_and(|c| c.lines.has(route))
    }

    /// Memory of publishes that other cores or nodes work on for this one.
    pub(in crate::shard) fn elsewhere_bytes(&self) -> u64 {
        self.questions.publish_bytes() + self.cluster.as_ref().map_or(0, |c| c.lines.bytes())
    }

    /// Whether a publish waits for the answer of another node.
    pub(in crate::shard) fn has_forwarded(&self) -> bool {
        self.cluster.as_ref().is_some_and(|c| !c.lines.is_empty())
    }

    fn forward(&mut self, now: Now, route: Route, publisher: Publisher, bodies: PackedBodies, delay_ms: u64) {
        // An OK to this publish implies the FINs before it, if the same leader has their partition.
        self.cluster_mut().flush_relays();
        self.cluster_mut().lines.push(now.ticks, route, publisher, bodies, delay_ms);
        self.timers.at_most(Timer::Forwards, Some(now.ticks + self.leader_limit()));
        self.go_on_forwarding(now, route);
    }

    /// Time that a publish waits for a leader, and then for its answer, and that a subscription waits for a leader.
    pub(in crate::shard) fn leader_limit(&self) -> Duration {
        Duration::from_millis(self.settings.lease_ttl_ms.saturating_add(self.settings.pub_waiting_timeout_ms))
    }

    /// Sends what may go now; or takes it, if this node leads the partition by now.
    pub(super) fn go_on_forwarding(&mut self, now: Now, route: Route) {
        let cluster = self.cluster_mut();
        if !cluster.lines.has(route) {
            return;
        }
        let Some(leader) = cluster.leaders.get(&route).and_then(|known| known.1) else { return };
        if leader != cluster.me && !cluster.links.is_connected(leader) {
            return;
        }
        if let Next::Send(attempt) = cluster.lines.next(now.ticks, route, leader) {
            if leader == cluster.me {
                self.append_forwarded(now, route);
            } else if cluster.links.takes_forwards(leader) {
                cluster.send_forwards(now, leader, route, attempt);
            } else {
                self.refuse_held(&[route], PublishError::NotLeader);
            }
        }
        let deadline = self.cluster_mut().lines.retry_at(route);
        self.timers.at_most(Timer::Forwards, deadline);
    }

    /// Appends publishes that waited for a leader: by the metadata this node leads the partition.
    fn append_forwarded(&mut self, now: Now, route: Route) {
        let idx = self.member_at(route);
        while let Some(pending) = self.cluster_mut().lines.take_first(route) {
            let Pending { publisher, bodies, delay_ms, .. } = &pending;
            let attempt = match idx {
                None => Attempt::Refused(PublishError::NotLeader),
                Some(idx) => self.append_or_park(now, idx, *publisher, bodies, *delay_ms),
            };
            match attempt {
                Attempt::Refused(error) if may_be_stored_later(error) && !self.life.is_stopping() => {
                    return self.cluster_mut().lines.give_back(now.ticks, route, pending, error);
                }
                Attempt::Refused(error) => self.tell_publisher(pending.publisher, Err(error)),
                Attempt::Accepted | Attempt::Wait => {}
            }
        }
        self.after_forwarding(route);
    }

    /// Appends a publish, or parks it behind those that wait already. Another node's publish is refused when the waiting ones have
    /// reached their bound, and comes again.
    fn append_or_park(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        publisher: Publisher,
        bodies: &PackedBodies,
        delay_ms: u64,
    ) -> Attempt {
        let attempt = match self.waiting.has_parked() {
            true => Attempt::Wait,
            false => self.append(now, idx, publisher, bodies.iter(), bodies.count(), bodies.body_bytes(), delay_ms),
        };
        if matches!(attempt, Attempt::Wait) {
            if !self.waiting.may_park(publisher, bodies.count(), bodies.body_bytes()) {
                return Attempt::Refused(PublishError::NotWritable(Unwritable::Busy));
            }
            let mut owned = OwnedBodies { delay_ms, ..OwnedBodies::default() };
            bodies.iter().for_each(|body| owned.push(body));
            self.park(now, publisher, idx, owned);
        }
        attempt
    }

    /// The leader has answered a publish of this core.
    pub(super) fn on_forwarded(&mut self, now: Now, route: Route, answer: Forwarded) {
        let (is_stopping, core) = (self.life.is_stopping(), self.core);
        let cluster = self.cluster_mut();
        let Asker { generation, core: asked_by, ticket } = answer.asker;
        if (generation, asked_by) != (cluster.generation, core) {
            return; // of an earlier life of this node, perhaps with other cores
        }
        match result_of(answer.outcome) {
            Err(error) if may_be_stored_later(error) && !is_stopping => {
                let error = match error {
                    // It is that node which stops, not this one.
                    PublishError::Stopping => PublishError::NotLeader,
                    PublishError::NotWritable(Unwritable::Busy) => PublishError::TooMuchWaiting,
                    error => error,
                };
                if !cluster.lines.hold(now.ticks, route, ticket, error) {
                    return;
                }
                cluster.remote.forwards.count(RemoteOutcome::Retried);
            }
            result => {
                let Some(publisher) = cluster.lines.finish(route, ticket) else { return };
                cluster.remote.forwards.count(result.err().map_or(RemoteOutcome::Done, told_of));
                self.tell_publisher(publisher, result);
            }
        }
        self.go_on_forwarding(now, route);
        self.after_forwarding(route);
    }

    /// The connection with a node is there, or was lost: what was sent to it may have been stored.
    pub(super) fn forward_to(&mut self, now: Now, node: NodeId, is_connected: bool) {
        let lines = &mut self.cluster_mut().lines;
        if lines.is_empty() {
            return;
        }
        let mut told = vec![];
        if !is_connected {
            lines.routes_to(node).into_iter().for_each(|route| lines.lose(route, &mut told));
        }
        self.tell_forwarded(told);
        self.go_on_with_all(now);
    }

    /// Gives up publishes that have waited for long enough, and tries others again.
    pub(in crate::shard) fn tick_forwards(&mut self, now: Now) {
        let limit = self.leader_limit();
        let Some(cluster) = &mut self.cluster else { return };
        let (lines, mut told) = (&mut cluster.lines, vec![]);
        lines.routes().into_iter().for_each(|route| lines.expire(now.ticks, limit, route, &mut told));
        self.tell_forwarded(told);
        self.go_on_with_all(now);
        let next = self.cluster_mut().lines.deadline(limit);
        self.timers.at_most(Timer::Forwards, next);
    }

    fn go_on_with_all(&mut self, now: Now) {
        for route in self.cluster_mut().lines.routes() {
            self.go_on_forwarding(now, route);
            self.after_forwarding(route);
        }
    }

    /// Refuses waiting publishes: the node stops, or the topic is gone.
    pub(in crate::shard) fn refuse_forwards(&mut self, topic: Option<&TopicRef>, error: PublishError) {
        let Some(cluster) = &self.cluster else { return };
        let mut routes = cluster.lines.routes();
        routes.retain(|route| topic.is_none_or(|t| t.id == route.topic_id));
        self.refuse_held(&routes, error);
    }

    fn refuse_held(&mut self, routes: &[Route], error: PublishError) {
        let (lines, mut told) = (&mut self.cluster_mut().lines, vec![]);
        routes.iter().for_each(|route| lines.refuse_held(*route, error, &mut told));
        self.tell_forwarded(told);
        routes.iter().for_each(|route| self.after_forwarding(*route));
    }

    fn tell_forwarded(&mut self, told: Vec<(Publisher, PublishError)>) {
        for (publisher, error) in told {
            self.cluster_mut().remote.forwards.count(told_of(error));
            self.tell_publisher(publisher, Err(error));
        }
    }

    fn after_forwarding(&mut self, route: Route) {
        self.cluster_mut().lines.tidy(route);
        self.retry_waiting_elsewhere();
    }

    // ---- clients of other nodes

    /// A publish that came from another node, for a partition of this core.
    pub(super) fn on_forward(&mut self, now: Now, node: NodeId, (route, attempt): (Route, Session), forward: Forward) {
        let Forward { asker, delay_ms, bodies } = forward;
        let publisher = Publisher::Node(Origin { node, route, attempt, asker });
        self.cluster_mut().remote.received.add(bodies.body_bytes());
        let idx = self.member_at(route).filter(|_| !self.cluster_mut().follows_refusal(publisher));
        let attempt = match idx {
            None => Attempt::Refused(PublishError::NotLeader),
            Some(idx) => self.append_or_park(now, idx, publisher, &bodies, delay_ms),
        };
        if let Attempt::Refused(error) = attempt {
            self.tell_publisher(publisher, Err(error));
        }
    }
}

fn told_of(error: PublishError) -> RemoteOutcome {
    if error == PublishError::Unknown { RemoteOutcome::Unknown } else { RemoteOutcome::Refused }
}
