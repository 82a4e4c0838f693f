//! Clients of other nodes at the partitions that this node leads ([`super::relays`] has their side). All other nodes have one core
//! number of the mesh, [`CoreId::GUESTS`], and each subscription has a number of this core that is never used again: channels treat it
//! like a client of another core.
//!
//! **Memory.** Delivered messages wait in the link's queue. A guest whose link has no room counts as full, until the link has sent
//! enough.

use super::peers::Peers;
use crate::base::client::ClientInfo;
use crate::base::{ConnId, CoreId, Epoch, IdMap, NodeId, PartitionId, SubId, TopicRef};
use crate::codec::peer::message::{Body, Head, Message, NotCarriedOut, Relayed, Route, Session, Subscriber};
use crate::seam::message::{MeshMessage, SubOptions, SubRequest};
use crate::seam::outcome::{InFlightCommand, InFlightError, PublishError, outcome_of};
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

impl Guests {
    /// Whether the link of the guest takes more messages for clients.
    pub fn has_room_for(&self, peers: &Peers, sub: SubId) -> bool {
        let guest = self.guests.get(&sub.conn);
        guest.is_none_or(|Guest { node, route, .. }| peers.links.has_room_for_relayed(*node, *route))
    }

    /// Handles a message from the core of a client at another node to the partition. Returns it as a message of [`CoreId::GUESTS`].
    pub(super) fn hear(
        &mut self,
        peers: &mut Peers,
        topic: Option<&TopicRef>,
        from: NodeId,
        (route, session): (Route, Session),
        relayed: Relayed,
    ) -> [Option<MeshMessage>; 2] {
        let known = self.find(from, session);
        if let Relayed::Subscribe(subscriber) = relayed {
            let left = known.map(|(sub, guest)| self.leave(sub, guest.route.partition));
            return [left, self.come(peers, topic, Guest { node: from, route, session }, *subscriber)];
        }
        let Some((sub, _)) = known.filter(|(_, guest)| guest.route == route) else { return [None, None] };
        let partition = route.partition;
        let message = match relayed {
            Relayed::Unsubscribe => self.leave(sub, partition),
            Relayed::Lend(credit) => MeshMessage::Lend { sub, partition, credit },
            Relayed::Recall(credit) => MeshMessage::Recall { sub, partition, credit },
            Relayed::Block(blocked) => MeshMessage::Block { sub, partition, blocked },
            Relayed::Finish(ids) => MeshMessage::Finish { sub, partition, ids },
            Relayed::Requeue { id, delay_ms } => MeshMessage::Requeue { sub, partition, id, delay_ms },
            Relayed::Touch(id) => MeshMessage::Touch { sub, partition, id },
            // messages for a client's node, and those of a later version
            _ => return [None, None],
        };
        [Some(message), None]
    }

    fn come(&mut self, peers: &mut Peers, topic: Option<&TopicRef>, guest: Guest, subscriber: Subscriber) -> Option<MeshMessage> {
        let (sub, partition) = (self.add(guest), guest.route.partition);
        let Some(topic) = topic.filter(|topic| partition.0 < topic.partitions).cloned() else {
            self.tell(peers, MeshMessage::Subscribed { sub, partition, result: Err(PublishError::NotLeader) });
            return None;
        };
        let client = ClientInfo {
            version: "V2",
            client_id: subscriber.client_id,
            hostname: subscriber.hostname,
            user_agent: subscriber.user_agent,
            remote_address: format!("{} through {}", subscriber.remote_address, peers.name_of(guest.node)),
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
        let request = SubRequest { sub, topic, partition, channel, options, first: None, is_alone: true };
        Some(MeshMessage::Subscribe { request: Box::new(request) })
    }

    fn leave(&mut self, sub: SubId, partition: PartitionId) -> MeshMessage {
        self.remove(sub);
        MeshMessage::Unsubscribe { sub, partition }
    }

    /// Lets the clients of a node go whose connection is lost. Returns messages of [`CoreId::GUESTS`].
    pub(super) fn gone(&mut self, node: NodeId) -> Vec<MeshMessage> {
        let guests = self.guests.iter();
        let mut gone: Vec<_> = guests.filter(|(_, g)| g.node == node).map(|(conn, g)| (*conn, g.route.partition)).collect();
        gone.sort_unstable();
        let leaves = |(conn, partition)| self.leave(SubId { core: CoreId::GUESTS, conn }, partition);
        gone.into_iter().map(leaves).collect()
    }

    /// The guest is full: it gets more when its link has room. True: the link has room by now.
    pub fn hold(&mut self, peers: &Peers, sub: SubId) -> bool {
        let has_room = self.has_room_for(peers, sub);
        if !has_room && self.guests.contains_key(&sub.conn) {
            self.waiting.insert(sub.conn);
        }
        has_room
    }

    /// Links may have sent their waiting messages: returns the guests that get more.
    pub fn resume(&mut self, peers: &Peers) -> Vec<(SubId, PartitionId)> {
        let subs = self.waiting.iter().map(|conn| SubId { core: CoreId::GUESTS, conn: *conn });
        let resumed: Vec<SubId> = subs.filter(|sub| self.has_room_for(peers, *sub)).collect();
        let Guests { guests, waiting, .. } = self;
        waiting.retain(|conn| !resumed.iter().any(|sub| sub.conn == *conn));
        resumed.into_iter().filter_map(|sub| Some((sub, guests.get(&sub.conn)?.route.partition))).collect()
    }

    /// Tells another node what its partition here says to a client's core.
    pub(super) fn tell(&mut self, peers: &mut Peers, message: MeshMessage) {
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
        let Some(Guest { node, route, session }) = self.guests.get(&sub.conn).copied() else { return };
        match &relayed {
            Relayed::Lost | Relayed::ChannelDeleted => self.remove(sub),
            Relayed::Deliver(frames) => peers.counts.delivered.add(frames.len()),
            _ => {}
        }
        let head = Head { epoch: Epoch(0), session };
        peers.links.send(node, route, Message { head, body: Body::Relay(relayed) });
    }
}
