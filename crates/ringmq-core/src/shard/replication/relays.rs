//! Subscriptions of this node's clients to partitions that other nodes lead. To the client's core a partition lives on its core of
//! this node, whoever leads it; that core passes on what the client's core says, and what the leader says ([`super::guests`]).
//!
//! ```text
//! client ── its core ── mesh ── the partition's core ══ peer link ══ the partition's core of the leader ── channel
//! ```
//! A relay is one client's subscription at one leader, under a number of its own: whatever belongs to another one is dropped, at both
//! ends. It ends when the link is lost or another node leads; the client's core hears that the part is lost, forgets what it had lent,
//! and joins again. So nothing of a leader that was replaced comes behind what the next one delivers.

use super::Engine;
use crate::base::{Epoch, IdMap, LogId, MessagePlace, NodeId, PartitionId, SubId};
use crate::codec::peer::message::{Body, Head, Message, NotCarriedOut, Relay, Relayed, Remote, Route, Session, Subscriber};
use crate::codec::peer::relay::FINISHED_MAX;
use crate::seam::message::{MeshMessage, SubRequest};
use crate::seam::outcome::{InFlightCommand, InFlightError, PublishError, result_of};
use crate::shard::outbox::Heard;

/// A client's subscription at the leader of a partition.
#[derive(Debug)]
struct Relaying {
    route: Route,
    to: NodeId,
    session: Session,
    /// FINs of this turn.
    finished: Vec<LogId>,
}

#[derive(Debug, Default)]
pub struct Relays {
    sessions: u32,
    clients: IdMap<(SubId, PartitionId), Relaying>,
    /// Relays that have FINs.
    finishing: Vec<(SubId, PartitionId)>,
}

impl Relays {
    fn of(&self, mut is: impl FnMut(&Relaying) -> bool) -> Vec<(SubId, PartitionId)> {
        let mut found: Vec<_> = self.clients.iter().filter(|(_, r)| is(r)).map(|(key, _)| *key).collect();
        found.sort_unstable();
        found
    }
}

impl Engine {
    /// Asks the leader of the partition, where that is another node which can be asked. False: it is not.
    pub(in crate::shard) fn relay_subscribe(&mut self, request: &SubRequest) -> bool {
        let route = Route { topic_id: request.topic.id, partition: request.partition };
        let Some(to) = self.relays_to(route).filter(|_| !request.options.ranged) else { return false };
        let relays = &mut self.cluster_mut().relays;
        relays.sessions = relays.sessions.wrapping_add(1).max(1);
        let relaying = Relaying { route, to, session: Session(relays.sessions), finished: vec![] };
        relays.clients.insert((request.sub, request.partition), relaying);
        let (options, client) = (&request.options, &request.options.client);
        let subscriber = Subscriber {
            channel: request.channel.clone(),
            msg_timeout_ms: options.msg_timeout_ms,
            sample_rate: options.sample_rate,
            ordered: options.ordered,
            placed: options.placed,
            client_id: client.client_id.clone(),
            hostname: client.hostname.clone(),
            user_agent: client.user_agent.clone(),
            remote_address: client.remote_address.clone(),
            connected_unix_s: client.connected_unix_s,
        };
        self.relay(request.sub, request.partition, Relayed::Subscribe(Box::new(subscriber)))
    }

    /// The other node that leads the partition and takes relays. Its cores are as many as this node's: so all that is said takes one link,
    /// and both ends hear when that is lost.
    fn relays_to(&self, route: Route) -> Option<NodeId> {
        let cluster = self.cluster.as_ref()?;
        let leader = cluster.leaders.get(&route)?.1.filter(|leader| *leader != cluster.me)?;
        let links = &cluster.links;
        (links.is_connected(leader) && links.takes_relays(leader) && links.cores_of(leader) == Some(self.cores)).then_some(leader)
    }

    /// Tells the leader what the client's core says. False: the client is not relayed.
    pub(in crate::shard) fn relay(&mut self, sub: SubId, partition: PartitionId, what: Relayed) -> bool {
        if !self.is_relayed(sub, partition) {
            return false;
        }
        self.flush_relay(sub, partition);
        self.send_relay(sub, partition, what);
        true
    }

    pub(in crate::shard) fn is_relayed(&self, sub: SubId, partition: PartitionId) -> bool {
        self.cluster.as_ref().is_some_and(|c| c.relays.clients.contains_key(&(sub, partition)))
    }

    fn send_relay(&mut self, sub: SubId, partition: PartitionId, what: Relayed) {
        let cluster = self.cluster_mut();
        let Some(relaying) = cluster.relays.clients.get(&(sub, partition)) else { return };
        let client = Remote { generation: cluster.generation, core: sub.core, conn: sub.conn };
        let (head, body) = (Head { epoch: Epoch(0), session: relaying.session }, Body::Relay(Relay { client, what }));
        cluster.links.send(relaying.to, relaying.route, Message { head, body });
    }

    /// A FIN goes with the others of the turn. False: the client is not relayed.
    pub(in crate::shard) fn relay_finish(&mut self, sub: SubId, partition: PartitionId, id: LogId) -> bool {
        let Some(relays) = self.cluster.as_mut().map(|c| &mut c.relays) else { return false };
        let Some(relaying) = relays.clients.get_mut(&(sub, partition)) else { return false };
        if relaying.finished.is_empty() {
            relays.finishing.push((sub, partition));
        }
        relaying.finished.push(id);
        true
    }

    /// The turn's FINs go.
    pub(in crate::shard) fn flush_relays(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        for (sub, partition) in std::mem::take(&mut cluster.relays.finishing) {
            self.flush_relay(sub, partition);
        }
    }

    fn flush_relay(&mut self, sub: SubId, partition: PartitionId) {
        let Some(relaying) = self.cluster_mut().relays.clients.get_mut(&(sub, partition)) else { return };
        for ids in std::mem::take(&mut relaying.finished).chunks(FINISHED_MAX) {
            self.send_relay(sub, partition, Relayed::Finish(ids.to_vec()));
        }
    }

    /// The client leaves. False: it is not relayed.
    pub(in crate::shard) fn relay_detach(&mut self, sub: SubId, partition: PartitionId) -> bool {
        let is_relayed = self.relay(sub, partition, Relayed::Unsubscribe);
        if is_relayed {
            self.cluster_mut().relays.clients.remove(&(sub, partition));
        }
        is_relayed
    }

    /// The metadata names a leader: who reads from another one joins again.
    pub(super) fn look_at_relays(&mut self, route: Route) {
        if self.cluster_mut().relays.clients.is_empty() {
            return;
        }
        let to = self.relays_to(route);
        for (sub, partition) in self.cluster_mut().relays.of(|r| r.route == route && Some(r.to) != to) {
            self.relay_detach(sub, partition);
            self.tell_part_lost(sub, partition);
        }
    }

    /// The connection with the node is lost, and with it what was on its way.
    pub(super) fn lose_relays(&mut self, node: NodeId) {
        for (sub, partition) in self.cluster_mut().relays.of(|r| r.to == node) {
            self.cluster_mut().relays.clients.remove(&(sub, partition));
            self.tell_part_lost(sub, partition);
        }
    }

    /// What the leader says.
    pub(super) fn on_relayed(&mut self, from: NodeId, (route, session): (Route, Session), relay: Relay) {
        let Remote { generation, core, conn } = relay.client;
        let (sub, partition, cluster) = (SubId { core, conn }, route.partition, self.cluster_mut());
        let relaying = cluster.relays.clients.get(&(sub, partition));
        let is_of_it = |r: &Relaying| (r.to, r.route, r.session) == (from, route, session);
        if generation != cluster.generation || !relaying.is_some_and(is_of_it) {
            return;
        }
        if matches!(relay.what, Relayed::Lost | Relayed::ChannelDeleted) {
            cluster.relays.clients.remove(&(sub, partition));
        }
        match relay.what {
            Relayed::Subscribed => self.tell_subscriber(sub, partition, Ok(false)),
            Relayed::Refused(outcome) => {
                // the leader may have taken the client in before its channel failed
                self.relay_detach(sub, partition);
                let error = result_of(outcome).err().unwrap_or(PublishError::Unknown);
                self.tell_subscriber(sub, partition, Err(error));
            }
            Relayed::Returned(credit) if core == self.core => self.on_returned(sub, partition, credit),
            Relayed::Returned(credit) => self.pass(core, MeshMessage::Returned { sub, partition, credit }),
            Relayed::Hungry => self.tell_hungry(sub, partition),
            Relayed::Deliver(frames) if core == self.core => self.outbox.tell(conn, Heard::Frames(frames)),
            Relayed::Deliver(frames) => self.pass(core, MeshMessage::Deliver { sub, frames: frames.into() }),
            Relayed::Lost => self.tell_part_lost(sub, partition),
            Relayed::ChannelDeleted if core == self.core => self.subscription_deleted(sub),
            Relayed::ChannelDeleted => self.pass(core, MeshMessage::ChannelDeleted { sub, partition }),
            Relayed::NotFinished(id, why) => self.not_carried_out(sub, partition, (id, InFlightCommand::Finish), why),
            Relayed::NotRequeued(id, why) => self.not_carried_out(sub, partition, (id, InFlightCommand::Requeue), why),
            Relayed::NotTouched(id, why) => self.not_carried_out(sub, partition, (id, InFlightCommand::Touch), why),
            // what a leader hears, and what is of a later version
            _ => {}
        }
    }

    fn not_carried_out(
        &mut self,
        sub: SubId,
        partition: PartitionId,
        (id, command): (LogId, InFlightCommand),
        why: NotCarriedOut,
    ) {
        let why = match why {
            NotCarriedOut::NotInFlight => InFlightError::NotInFlight,
            NotCarriedOut::NotOwned => InFlightError::NotOwned,
            NotCarriedOut::Refused(outcome) => InFlightError::Refused(result_of(outcome).err().unwrap_or(PublishError::Unknown)),
        };
        self.tell_in_flight_failed(sub, MessagePlace::new(partition, id), command, why);
    }

    /// The client's core hears that the partition has forgotten the client.
    pub(super) fn tell_part_lost(&mut self, sub: SubId, partition: PartitionId) {
        if sub.core == self.core {
            self.part_lost(sub, partition);
        } else {
            self.pass(sub.core, MeshMessage::PartLost { sub, partition });
        }
    }
}
