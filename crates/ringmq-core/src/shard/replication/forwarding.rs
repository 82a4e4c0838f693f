//! Publishes at a node that does not lead the partition. The node's core of the partition sends them to the leader over the peer link
//! ([`super::lines`]); the leader appends them like publishes of its own clients, and answers each.
//!
//! Publishes that are surely not stored wait for a reachable leader: for `lease-ttl` and `pub-waiting-timeout` at most, which outlasts a
//! failover.

use super::lines::{Next, Pending, may_be_stored_later};
use super::{Cluster, CoreParts, Work};
use crate::base::{Epoch, IdMap, NodeId, Now, TopicId, TopicRef};
use crate::codec::peer::message::{Asker, Body, Forward, Forwarded, Head, Lane, Message, PackedBodies, Route, Session};
use crate::config::Settings;
use crate::metrics::remote::RemoteOutcome;
use crate::seam::outcome::{PublishError, Unwritable, outcome_of, result_of};
use crate::shard::partitions::Publisher;
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

/// The last attempt of each node of which a publish to the partition was refused, with the life of the node.
#[derive(Debug, Default)]
pub struct Refusals(IdMap<(NodeId, Route), (u64, Session)>);

impl Refusals {
    fn note(&mut self, Origin { node, route, attempt, asker }: Origin) {
        self.0.insert((node, route), (asker.generation, attempt));
    }

    fn has(&self, Origin { node, route, attempt, asker }: Origin) -> bool {
        self.0.get(&(node, route)) == Some(&(asker.generation, attempt))
    }

    pub(super) fn forget(&mut self, topic: TopicId) {
        self.0.retain(|(_, route), _| route.topic_id != topic);
    }
}

impl Cluster {
    fn send_forwards(&mut self, now: Now, leader: NodeId, route: Route, attempt: Session) {
        let head = Head { epoch: Epoch(0), session: attempt };
        for Pending { ticket, bodies, delay_ms, .. } in self.lines.send(now.ticks, route) {
            self.peers.counts.forwarded.add(bodies.body_bytes());
            let asker = self.peers.asker(*ticket);
            let body = Body::Forward(Forward { asker, delay_ms: *delay_ms, bodies: bodies.clone() });
            self.peers.links.send(leader, route, Message { head, body });
        }
    }

    /// Whether a publish comes from another node, and an earlier one of its attempt was refused.
    pub(in crate::shard) fn follows_refusal(&self, publisher: Publisher) -> bool {
        matches!(publisher, Publisher::Node(origin) if self.refusals.has(origin))
    }

    /// Tells another node the outcome of its client's publish. After a refusal that allows a repeat, the rest of the attempt is refused:
    /// so the sender can keep the order.
    pub(in crate::shard) fn answer_forward(&mut self, origin: Origin, result: Result<(), PublishError>) {
        let Origin { node, route, attempt, asker } = origin;
        if result.is_err_and(may_be_stored_later) {
            self.refusals.note(origin);
        }
        let head = Head { epoch: Epoch(0), session: attempt };
        let body = Body::Forwarded(Forwarded { asker, outcome: outcome_of(result) });
        self.peers.links.send_on(node, Lane::Data, route, Message { head, body });
    }

    // ---- this node's clients

    /// Whether publishes to the partition wait for their leader: others come behind them.
    pub(in crate::shard) fn is_forwarding(&self, route: Route) -> bool {
        self.lines.has(route)
    }

    /// Memory of publishes that other nodes work on for this one.
    pub(in crate::shard) fn forwarding_bytes(&self) -> u64 {
        self.lines.bytes()
    }

    /// Whether a publish waits for the answer of another node.
    pub(in crate::shard) fn has_forwarded(&self) -> bool {
        !self.lines.is_empty()
    }

    /// A publish for a partition of this core goes to its leader, once one can be reached.
    pub(in crate::shard) fn forward(
        &mut self,
        core: &mut CoreParts,
        now: Now,
        route: Route,
        publisher: Publisher,
        (bodies, delay_ms): (PackedBodies, u64),
    ) {
        // An OK to this publish implies the FINs before it, if the same leader has their partition.
        self.relays.flush(&mut self.peers);
        self.lines.push(now.ticks, route, publisher, bodies, delay_ms);
        core.timers.at_most(Timer::Forwards, Some(now.ticks + leader_limit(&core.settings)));
        self.go_on_forwarding(core, now, route);
    }

    /// Sends the publishes that may go now; or has them appended, if this node leads the partition by now.
    pub(super) fn go_on_forwarding(&mut self, core: &mut CoreParts, now: Now, route: Route) {
        if !self.lines.has(route) {
            return;
        }
        let Some(leader) = self.peers.leader(route) else { return };
        let is_me = leader == self.peers.me();
        if !is_me && !self.peers.links.is_connected(leader) {
            return;
        }
        if let Next::Send(attempt) = self.lines.next(now.ticks, route, leader) {
            if is_me {
                self.work.push(Work::Append(route));
            } else {
                self.send_forwards(now, leader, route, attempt);
            }
        }
        core.timers.at_most(Timer::Forwards, self.lines.retry_at(route));
    }

    /// The oldest publish to a partition that waits for a leader; [`Self::give_back`] returns it to its place.
    pub(in crate::shard) fn take_forwarded(&mut self, route: Route) -> Option<Pending> {
        self.lines.take_first(route)
    }

    pub(in crate::shard) fn give_back(
        &mut self,
        core: &mut CoreParts,
        now: Now,
        route: Route,
        pending: Pending,
        error: PublishError,
    ) {
        self.lines.give_back(now.ticks, route, pending, error);
        core.timers.at_most(Timer::Forwards, self.lines.retry_at(route));
    }

    /// The leader has answered a publish of this core.
    pub(super) fn on_forwarded(&mut self, core: &mut CoreParts, now: Now, route: Route, answer: Forwarded) {
        if !self.peers.has_asked(&answer.asker) {
            return;
        }
        let ticket = answer.asker.ticket;
        match result_of(answer.outcome) {
            Err(error) if may_be_stored_later(error) && !core.life.is_stopping() => {
                let error = match error {
                    // It is that node which stops, not this one.
                    PublishError::Stopping => PublishError::NotLeader,
                    PublishError::NotWritable(Unwritable::Busy) => PublishError::TooMuchWaiting,
                    error => error,
                };
                if !self.lines.hold(now.ticks, route, ticket, error) {
                    return;
                }
                self.peers.counts.forwards.count(RemoteOutcome::Retried);
            }
            result => {
                let Some(publisher) = self.lines.finish(route, ticket) else { return };
                self.peers.counts.forwards.count(result.err().map_or(RemoteOutcome::Done, told_of));
                core.tell_publisher(Some(self), publisher, result);
            }
        }
        self.go_on_forwarding(core, now, route);
        self.after_forwarding(route);
    }

    /// The connection with a node is made, or was lost: publishes sent to it may have been stored.
    pub(super) fn forward_to(&mut self, core: &mut CoreParts, now: Now, node: NodeId, is_connected: bool) {
        if self.lines.is_empty() {
            return;
        }
        let mut told = vec![];
        if !is_connected {
            self.lines.routes_to(node).into_iter().for_each(|route| self.lines.lose(route, &mut told));
        }
        self.tell_forwarded(core, told);
        self.go_on_with_all(core, now);
    }

    /// Gives up publishes that have waited for long enough, and tries others again.
    pub(in crate::shard) fn tick_forwards(&mut self, core: &mut CoreParts, now: Now) {
        let (limit, mut told) = (leader_limit(&core.settings), vec![]);
        self.lines.routes().into_iter().for_each(|route| self.lines.expire(now.ticks, limit, route, &mut told));
        self.tell_forwarded(core, told);
        self.go_on_with_all(core, now);
        core.timers.at_most(Timer::Forwards, self.lines.deadline(limit));
    }

    fn go_on_with_all(&mut self, core: &mut CoreParts, now: Now) {
        for route in self.lines.routes() {
            self.go_on_forwarding(core, now, route);
            self.after_forwarding(route);
        }
    }

    /// Refuses waiting publishes: the node stops, or the topic is gone.
    pub(in crate::shard) fn refuse_forwards(&mut self, core: &mut CoreParts, topic: Option<&TopicRef>, error: PublishError) {
        let mut routes = self.lines.routes();
        routes.retain(|route| topic.is_none_or(|t| t.id == route.topic_id));
        self.refuse_held(core, &routes, error);
    }

    fn refuse_held(&mut self, core: &mut CoreParts, routes: &[Route], error: PublishError) {
        let mut told = vec![];
        routes.iter().for_each(|route| self.lines.refuse_held(*route, error, &mut told));
        self.tell_forwarded(core, told);
        routes.iter().for_each(|route| self.after_forwarding(*route));
    }

    fn tell_forwarded(&mut self, core: &mut CoreParts, told: Vec<(Publisher, PublishError)>) {
        for (publisher, error) in told {
            self.peers.counts.forwards.count(told_of(error));
            core.tell_publisher(Some(self), publisher, Err(error));
        }
    }

    pub(in crate::shard) fn after_forwarding(&mut self, route: Route) {
        self.lines.tidy(route);
        self.work.push(Work::RetryElsewhere);
    }

    // ---- clients of other nodes

    /// A publish that came from another node, for a partition of this core.
    pub(super) fn on_forward(&mut self, node: NodeId, (route, attempt): (Route, Session), forward: Forward) {
        let Forward { asker, delay_ms, bodies } = forward;
        let origin = Origin { node, route, attempt, asker };
        self.peers.counts.received.add(bodies.body_bytes());
        let idx = self.member_at(route).filter(|_| !self.follows_refusal(Publisher::Node(origin)));
        match idx {
            None => self.answer_forward(origin, Err(PublishError::NotLeader)),
            Some(idx) => self.work.push(Work::Take(idx, origin, bodies, delay_ms)),
        }
    }
}

/// Time that a publish waits for a leader, and then for its answer, and that a subscription waits for a leader.
pub fn leader_limit(settings: &Settings) -> Duration {
    Duration::from_millis(settings.lease_ttl_ms.saturating_add(settings.pub_waiting_timeout_ms))
}

fn told_of(error: PublishError) -> RemoteOutcome {
    if error == PublishError::Unknown { RemoteOutcome::Unknown } else { RemoteOutcome::Refused }
}
