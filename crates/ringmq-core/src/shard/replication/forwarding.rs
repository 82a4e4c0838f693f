//! Publishes at a node that does not lead the partition. The node's core of the partition sends them to the leader over the peer link
//! ([`super::lines`]); the leader appends them like publishes of its own clients, and answers each.
//!
//! Publishes that are surely not stored wait for a reachable leader: for `lease-ttl` and `pub-waiting-timeout` at most, which outlasts a
//! failover.

use super::lines::{Lines, Next, Pending, may_be_stored_later};
use super::peers::Peers;
use super::{CoreParts, Work};
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
struct Refusals(IdMap<(NodeId, Route), (u64, Session)>);

impl Refusals {
    fn note(&mut self, Origin { node, route, attempt, asker }: Origin) {
        self.0.insert((node, route), (asker.generation, attempt));
    }

    fn has(&self, Origin { node, route, attempt, asker }: Origin) -> bool {
        self.0.get(&(node, route)) == Some(&(asker.generation, attempt))
    }

    fn forget(&mut self, topic: TopicId) {
        self.0.retain(|(_, route), _| route.topic_id != topic);
    }
}

/// Publishes that one node makes for another: those of this node's clients for leaders elsewhere, and those of other nodes' clients here.
#[derive(Debug, Default)]
pub struct Forwards {
    /// Publishes of this node's clients that others are to store. None of their publishers is at another node.
    lines: Lines,
    refusals: Refusals,
}

impl Forwards {
    // ---- this node's clients

    /// Whether publishes to the partition wait for their leader: others come behind them.
    pub fn has(&self, route: Route) -> bool {
        self.lines.has(route)
    }

    /// Memory of publishes that other nodes work on for this one.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    /// Whether no publish waits for the answer of another node.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// A publish for a partition of this core goes to its leader, once one can be reached.
    pub(super) fn push(
        &mut self,
        core: &mut CoreParts,
        now: Now,
        peers: &mut Peers,
        route: Route,
        publisher: Publisher,
        (bodies, delay_ms): (PackedBodies, u64),
    ) {
        self.lines.push(now.ticks, route, publisher, bodies, delay_ms);
        core.timers.at_most(Timer::Forwards, Some(now.ticks + leader_limit(&core.settings)));
        self.go_on(core, now, peers, route);
    }

    /// Sends the publishes that may go now; or has them appended, if this node leads the partition by now.
    pub(super) fn go_on(&mut self, core: &mut CoreParts, now: Now, peers: &mut Peers, route: Route) {
        if !self.lines.has(route) {
            return;
        }
        let Some(leader) = peers.leader(route) else { return };
        let is_me = leader == peers.me();
        if !is_me && !peers.links.is_connected(leader) {
            return;
        }
        if let Next::Send(attempt) = self.lines.next(now.ticks, route, leader) {
            if is_me {
                core.work.push(Work::Append(route));
            } else {
                self.send(now, peers, leader, route, attempt);
            }
        }
        core.timers.at_most(Timer::Forwards, self.lines.retry_at(route));
    }

    fn send(&mut self, now: Now, peers: &mut Peers, leader: NodeId, route: Route, attempt: Session) {
        let head = Head { epoch: Epoch(0), session: attempt };
        for Pending { ticket, bodies, delay_ms, .. } in self.lines.send(now.ticks, route) {
            peers.counts.forwarded.add(bodies.body_bytes());
            let asker = peers.asker(*ticket);
            let body = Body::Forward(Forward { asker, delay_ms: *delay_ms, bodies: bodies.clone() });
            peers.links.send(leader, route, Message { head, body });
        }
    }

    /// The oldest publish to a partition that waits for a leader; [`Self::give_back`] returns it to its place.
    pub fn take_first(&mut self, route: Route) -> Option<Pending> {
        self.lines.take_first(route)
    }

    pub fn give_back(&mut self, core: &mut CoreParts, now: Now, route: Route, pending: Pending, error: PublishError) {
        self.lines.give_back(now.ticks, route, pending, error);
        core.timers.at_most(Timer::Forwards, self.lines.retry_at(route));
    }

    /// The leader has answered a publish of this core.
    pub(super) fn hear_answer(&mut self, core: &mut CoreParts, now: Now, peers: &mut Peers, route: Route, answer: Forwarded) {
        if !peers.has_asked(&answer.asker) {
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
                peers.counts.forwards.count(RemoteOutcome::Retried);
            }
            result => {
                let Some(publisher) = self.lines.finish(route, ticket) else { return };
                peers.counts.forwards.count(result.err().map_or(RemoteOutcome::Done, told_of));
                core.tell_publisher(None, publisher, result);
            }
        }
        self.go_on(core, now, peers, route);
        self.tidy(core, route);
    }

    /// The connection with a node is made, or was lost: publishes sent to it may have been stored.
    pub(super) fn on_peer(&mut self, core: &mut CoreParts, now: Now, peers: &mut Peers, node: NodeId, is_connected: bool) {
        if self.lines.is_empty() {
            return;
        }
        let mut told = vec![];
        if !is_connected {
            self.lines.routes_to(node).into_iter().for_each(|route| self.lines.lose(route, &mut told));
        }
        tell(core, peers, told);
        self.go_on_with_all(core, now, peers);
    }

    /// Gives up publishes that have waited for long enough, and tries others again.
    pub fn tick(&mut self, core: &mut CoreParts, now: Now, peers: &mut Peers) {
        let (limit, mut told) = (leader_limit(&core.settings), vec![]);
        self.lines.routes().into_iter().for_each(|route| self.lines.expire(now.ticks, limit, route, &mut told));
        tell(core, peers, told);
        self.go_on_with_all(core, now, peers);
        core.timers.at_most(Timer::Forwards, self.lines.deadline(limit));
    }

    fn go_on_with_all(&mut self, core: &mut CoreParts, now: Now, peers: &mut Peers) {
        for route in self.lines.routes() {
            self.go_on(core, now, peers, route);
            self.tidy(core, route);
        }
    }

    /// Refuses waiting publishes: the node stops, or the topic is gone.
    pub fn refuse_waiting(&mut self, core: &mut CoreParts, peers: &mut Peers, topic: Option<&TopicRef>, error: PublishError) {
        let (mut routes, mut told) = (self.lines.routes(), vec![]);
        routes.retain(|route| topic.is_none_or(|t| t.id == route.topic_id));
        routes.iter().for_each(|route| self.lines.refuse_held(*route, error, &mut told));
        tell(core, peers, told);
        routes.iter().for_each(|route| self.tidy(core, *route));
    }

    /// Forgets the partition's line if nothing waits in it; publishes that wait for answers of other nodes try again.
    pub fn tidy(&mut self, core: &mut CoreParts, route: Route) {
        self.lines.tidy(route);
        core.work.push(Work::RetryElsewhere);
    }

    // ---- clients of other nodes

    /// A publish that came from another node, for a partition of this core.
    pub(super) fn hear(
        &mut self,
        core: &mut CoreParts,
        peers: &mut Peers,
        node: NodeId,
        (route, attempt): (Route, Session),
        Forward { asker, delay_ms, bodies }: Forward,
    ) {
        let origin = Origin { node, route, attempt, asker };
        peers.counts.received.add(bodies.body_bytes());
        let idx = core.partitions.member_at(route).filter(|_| !self.follows_refusal(Publisher::Node(origin)));
        match idx {
            None => self.answer(peers, origin, Err(PublishError::NotLeader)),
            Some(idx) => core.work.push(Work::Take(idx, origin, bodies, delay_ms)),
        }
    }

    /// Whether a publish comes from another node, and an earlier one of its attempt was refused.
    pub fn follows_refusal(&self, publisher: Publisher) -> bool {
        matches!(publisher, Publisher::Node(origin) if self.refusals.has(origin))
    }

    /// Tells another node the outcome of its client's publish. After a refusal that allows a repeat, the rest of the attempt is refused:
    /// so the sender can keep the order.
    pub fn answer(&mut self, peers: &mut Peers, origin: Origin, result: Result<(), PublishError>) {
        let Origin { node, route, attempt, asker } = origin;
        if result.is_err_and(may_be_stored_later) {
            self.refusals.note(origin);
        }
        let head = Head { epoch: Epoch(0), session: attempt };
        let body = Body::Forwarded(Forwarded { asker, outcome: outcome_of(result) });
        peers.links.send_on(node, Lane::Data, route, Message { head, body });
    }

    /// This core's replicas of the topic are retired: nothing is stored here any more.
    pub(super) fn forget_refusals(&mut self, topic: TopicId) {
        self.refusals.forget(topic);
    }
}

fn tell(core: &mut CoreParts, peers: &mut Peers, told: Vec<(Publisher, PublishError)>) {
    for (publisher, error) in told {
        peers.counts.forwards.count(told_of(error));
        core.tell_publisher(None, publisher, Err(error));
    }
}

/// Time that a publish waits for a leader, and then for its answer, and that a subscription waits for a leader.
pub fn leader_limit(settings: &Settings) -> Duration {
    Duration::from_millis(settings.lease_ttl_ms.saturating_add(settings.pub_waiting_timeout_ms))
}

fn told_of(error: PublishError) -> RemoteOutcome {
    if error == PublishError::Unknown { RemoteOutcome::Unknown } else { RemoteOutcome::Refused }
}
