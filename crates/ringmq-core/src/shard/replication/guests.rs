//! Clients of other nodes at the partitions that this node leads ([`super::relays`] has their side). All other nodes stand under one
//! core number of the mesh, [`CoreId::GUESTS`], and each subscription has a number of this core that never comes again: channels lend
//! to and deliver to it as to a client of another core.
//!
//! **Memory.** What is delivered waits in the link's queue. A guest whose link has no room counts as full, until the link has sent enough.

use super::{Cluster, Engine};
use crate::base::client::ClientInfo;
use crate::base::{ConnId, CoreId, Epoch, IdMap, NodeId, Now, PartitionId, SubId};
use crate::codec::peer::message::{Body, Head, Message, NotCarriedOut, Relayed, Route, Session, Subscriber};
use crate::seam::message::{MeshMessage, SubOptions, SubRequest};
use crate::seam::outcome::{InFlightCommand, InFlightError, PublishError, outcome_of};
use crate::shard::partitions::ChannelKey;
use std::collections::BTreeSet;

/// A subscription of a client of another node, at a partition of this core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Guest {
    node: NodeId,
    route: Route,
    session: Session,
}

#[derive(Debug, Default)]
pub struct Guests {
    /// The last number that was given.
    last: u64,
    guests: IdMap<ConnId, Guest>,
    /// Connection numbers of the guests, by their node and their session there.
    numbers: IdMap<(NodeId, Session), ConnId>,
    /// Guests that wait for room in their link.
    waiting: BTreeSet<ConnId>,
}

impl Guests {
    fn add(&mut self, guest: Guest) -> SubId {
        self.last += 1;
        let conn = ConnId(self.last);
        self.guests.insert(conn, guest);
        self.numbers.insert((guest.node, guest.session), conn);
        SubId { core: CoreId::GUESTS, conn }
    }

    pub fn count(&self) -> u64 {
        self.guests.len() as u64
    }

    fn find(&self, node: NodeId, session: Session) -> Option<(SubId, Guest)> {
        let conn = *self.numbers.get(&(node, session))?;
        Some((SubId { core: CoreId::GUESTS, conn }, *self.guests.get(&conn)?))
    }

    fn remove(&mut self, sub: SubId) {
        self.waiting.remove(&sub.conn);
        if let Some(Guest { node, session, .. }) = self.guests.remove(&sub.conn) {
            self.numbers.remove(&(node, session));
        }
    }
}

impl Cluster {
    /// Whether the link of the guest takes more messages for clients.
    pub(in crate::shard) fn has_room_for(&self, sub: SubId) -> bool {
        let guest = self.guests.guests.get(&sub.conn);
        guest.is_none_or(|Guest { node, route, .. }| self.links.has_room_for_relayed(*node, *route))
    }
}

impl Engine {
    /// Handles a message from the core of a client at another node to the partition.
    pub(super) fn on_relay(&mut self, now: Now, from: NodeId, (route, session): (Route, Session), relayed: Relayed) {
        let known = self.cluster_mut().guests.find(from, session);
        if let Relayed::Subscribe(subscriber) = relayed {
            if let Some((sub, guest)) = known {
                self.guest_leaves(now, sub, guest.route.partition);
            }
            return self.guest_comes(now, Guest { node: from, route, session }, *subscriber);
        }
        let Some((sub, _)) = known.filter(|(_, guest)| guest.route == route) else { return };
        let partition = route.partition;
        let message = match relayed {
            Relayed::Unsubscribe => return self.guest_leaves(now, sub, partition),
            Relayed::Lend(credit) => MeshMessage::Lend { sub, partition, credit },
            Relayed::Recall(credit) => MeshMessage::Recall { sub, partition, credit },
            Relayed::Block(blocked) => MeshMessage::Block { sub, partition, blocked },
            Relayed::Finish(ids) => MeshMessage::Finish { sub, partition, ids },
            Relayed::Requeue { id, delay_ms } => MeshMessage::Requeue { sub, partition, id, delay_ms },
            Relayed::Touch(id) => MeshMessage::Touch { sub, partition, id },
            // what a client's node hears, and what is of a later version
            _ => return,
        };
        self.on_mesh(now, CoreId::GUESTS, message);
    }

    fn guest_comes(&mut self, now: Now, guest: Guest, subscriber: Subscriber) {
        let cluster = self.cluster_mut();
        let (sub, partition) = (cluster.guests.add(guest), guest.route.partition);
        let topic = cluster.topics.get(&guest.route.topic_id).filter(|topic| partition.0 < topic.partitions).cloned();
        let Some(topic) = topic else { return self.tell_subscriber(sub, partition, Err(PublishError::NotLeader)) };
        let client = ClientInfo {
            version: "V2",
            client_id: subscriber.client_id,
            hostname: subscriber.hostname,
            user_agent: subscriber.user_agent,
            remote_address: format!("{} through {}", subscriber.remote_address, cluster.name_of(guest.node)),
            connected_unix_s: subscriber.connected_unix_s,
            ..ClientInfo::default()
        };
        let options = SubOptions {
            msg_timeout_ms: subscriber.msg_timeout_ms,
            sample_rate: subscriber.sample_rate,
            ranged: false,
            ordered: subscriber.ordered,
            placed: subscriber.placed,
            client,
        };
        let channel = subscriber.channel;
        self.on_subscribe(now, SubRequest { sub, topic, partition, channel, options, first: None, is_alone: true });
    }

    fn guest_leaves(&mut self, now: Now, sub: SubId, partition: PartitionId) {
        self.cluster_mut().guests.remove(sub);
        self.detach(now, sub, partition);
    }

    /// The connection with the node is lost: what its clients had in flight is delivered again.
    pub(super) fn guests_gone(&mut self, now: Now, node: NodeId) {
        let guests = self.cluster_mut().guests.guests.iter();
        let mut gone: Vec<_> = guests.filter(|(_, g)| g.node == node).map(|(conn, g)| (*conn, g.route.partition)).collect();
        gone.sort_unstable();
        for (conn, partition) in gone {
            self.guest_leaves(now, SubId { core: CoreId::GUESTS, conn }, partition);
        }
    }

    /// The guest is full: it gets more when its link has room.
    pub(in crate::shard) fn hold_guest(&mut self, sub: SubId, key: ChannelKey) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.has_room_for(sub) {
            self.unblock_remote(sub, key);
        } else if cluster.guests.guests.contains_key(&sub.conn) {
            cluster.guests.waiting.insert(sub.conn);
        }
    }

    /// Links may have sent what waited: their guests get more.
    pub(in crate::shard) fn resume_guests(&mut self) {
        let Some(cluster) = self.cluster.as_ref().filter(|c| !c.guests.waiting.is_empty()) else { return };
        let subs = cluster.guests.waiting.iter().map(|conn| SubId { core: CoreId::GUESTS, conn: *conn });
        let resumed: Vec<SubId> = subs.filter(|sub| cluster.has_room_for(*sub)).collect();
        for sub in resumed {
            let guests = &mut self.cluster_mut().guests;
            guests.waiting.remove(&sub.conn);
            let Some(Guest { route, .. }) = guests.guests.get(&sub.conn).copied() else { continue };
            if let Some(key) = self.partitions.of_client(sub, route.partition) {
                self.unblock_remote(sub, key);
            }
        }
    }

    /// Tells another node what its partition here says to a client's core, or to an operator.
    pub(in crate::shard) fn tell_guest(&mut self, message: MeshMessage) {
        let Some(message) = self.tell_changed(message) else { return };
        let (sub, relayed) = match message {
            MeshMessage::Deliver { sub, frames } => (sub, Relayed::Deliver(frames.into())),
            MeshMessage::Subscribed { sub, result: Ok(_), .. } => (sub, Relayed::Subscribed),
            MeshMessage::Subscribed { sub, result: Err(error), .. } => (sub, Relayed::Refused(outcome_of(Err(error)))),
            MeshMessage::Returned { sub, credit, .. } => (sub, Relayed::Returned(credit)),
            MeshMessage::Hungry { sub, .. } => (sub, Relayed::Hungry),
            MeshMessage::PartLost { sub, .. } => (sub, Relayed::Lost),
            MeshMessage::ChannelDeleted { sub } => (sub, Relayed::ChannelDeleted),
            MeshMessage::InFlightFailed { sub, place, command, why } => {
                let why = match why {
                    InFlightError::NotInFlight => NotCarriedOut::NotInFlight,
                    InFlightError::NotOwned => NotCarriedOut::NotOwned,
                    InFlightError::Refused(error) => NotCarriedOut::Refused(outcome_of(Err(error))),
                };
                let relayed = match command {
                    InFlightCommand::Finish => Relayed::NotFinished(place.log_id, why),
                    InFlightCommand::Requeue => Relayed::NotRequeued(place.log_id, why),
                    InFlightCommand::Touch => Relayed::NotTouched(place.log_id, why),
                };
                (sub, relayed)
            }
            _ => return,
        };
        let cluster = self.cluster_mut();
        let Some(Guest { node, route, session }) = cluster.guests.guests.get(&sub.conn).copied() else { return };
        match &relayed {
            Relayed::Lost | Relayed::ChannelDeleted => cluster.guests.remove(sub),
            Relayed::Deliver(frames) => cluster.remote.delivered.add(frames.len()),
            _ => {}
        }
        let head = Head { epoch: Epoch(0), session };
        cluster.links.send(node, route, Message { head, body: Body::Relay(relayed) });
    }
}
