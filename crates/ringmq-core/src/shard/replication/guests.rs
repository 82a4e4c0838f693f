//! Clients of other nodes at the partitions that this node leads ([`super::relays`] has their side). A core of another node is one more
//! core of the mesh, under a number of its own: channels lend to and deliver to its clients as to those of any other core.

use super::Engine;
use crate::base::client::ClientInfo;
use crate::base::{CoreId, Epoch, IdMap, NodeId, Now, PartitionId, SubId};
use crate::codec::peer::message::{Body, Head, Message, NotCarriedOut, Relay, Relayed, Remote, Route, Session, Subscriber};
use crate::seam::message::{MeshMessage, SubOptions, SubRequest};
use crate::seam::outcome::{InFlightCommand, InFlightError, PublishError, outcome_of};

/// A core of another node, in one life of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Home {
    node: NodeId,
    generation: u64,
    core: CoreId,
}

/// A client of another node, at a partition of this core.
#[derive(Clone, Copy, Debug)]
struct Guest {
    route: Route,
    session: Session,
}

#[derive(Debug, Default)]
pub struct Guests {
    /// By the number that stands for the core here.
    homes: Vec<Option<Home>>,
    clients: IdMap<(SubId, PartitionId), Guest>,
}

impl Guests {
    /// The number that stands for a core of another node. `None`: there are too many.
    fn core_of(&mut self, home: Home) -> Option<CoreId> {
        let place = self.homes.iter().position(|known| *known == Some(home));
        let place = place.or_else(|| self.homes.iter().position(Option::is_none)).unwrap_or(self.homes.len());
        let core = CoreId::guest(place)?;
        if place == self.homes.len() {
            self.homes.push(None);
        }
        self.homes[place] = Some(home);
        Some(core)
    }

    fn home(&self, core: CoreId) -> Option<Home> {
        self.homes.get(core.guest_place()?).copied().flatten()
    }
}

impl Engine {
    /// What the core of a client at another node says to the partition.
    pub(super) fn on_relay(&mut self, now: Now, from: NodeId, (route, session): (Route, Session), relay: Relay) {
        let Remote { generation, core, conn } = relay.client;
        let Some(core) = self.cluster_mut().guests.core_of(Home { node: from, generation, core }) else { return };
        let (sub, partition) = (SubId { core, conn }, route.partition);
        let known = self.cluster_mut().guests.clients.get(&(sub, partition)).copied();
        if let Relayed::Subscribe(subscriber) = relay.what {
            if known.is_some() {
                self.guest_leaves(now, sub, partition);
            }
            return self.guest_comes(now, from, (sub, Guest { route, session }), *subscriber);
        }
        if known.is_none_or(|guest| guest.session != session || guest.route != route) {
            return;
        }
        let message = match relay.what {
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
        self.on_mesh(now, core, message);
    }

    fn guest_comes(&mut self, now: Now, from: NodeId, (sub, guest): (SubId, Guest), subscriber: Subscriber) {
        let cluster = self.cluster_mut();
        cluster.guests.clients.insert((sub, guest.route.partition), guest);
        let partition = guest.route.partition;
        let Some(topic) = cluster.topics.get(&guest.route.topic_id).cloned() else {
            return self.tell_subscriber(sub, partition, Err(PublishError::NotLeader));
        };
        let client = ClientInfo {
            version: "V2",
            client_id: subscriber.client_id,
            hostname: subscriber.hostname,
            user_agent: subscriber.user_agent,
            remote_address: format!("{} through {}", subscriber.remote_address, cluster.name_of(from)),
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
        self.cluster_mut().guests.clients.remove(&(sub, partition));
        self.detach(now, sub, partition);
    }

    /// The connection with the node is lost: what its clients had in flight is delivered again.
    pub(super) fn guests_gone(&mut self, now: Now, node: NodeId) {
        let guests = &mut self.cluster_mut().guests;
        let is_of_node = |sub: &SubId| guests.home(sub.core).is_some_and(|home| home.node == node);
        let mut gone: Vec<(SubId, PartitionId)> = guests.clients.keys().filter(|(sub, _)| is_of_node(sub)).copied().collect();
        gone.sort_unstable();
        for (sub, partition) in gone {
            self.guest_leaves(now, sub, partition);
        }
        let homes = &mut self.cluster_mut().guests.homes;
        homes.iter_mut().filter(|home| home.is_some_and(|home| home.node == node)).for_each(|home| *home = None);
    }

    /// Tells a client's core at another node what its partition here says.
    pub(in crate::shard) fn tell_guest(&mut self, message: MeshMessage) {
        let (sub, partition, what) = match message {
            MeshMessage::Subscribed { sub, partition, result: Ok(_) } => (sub, partition, Relayed::Subscribed),
            MeshMessage::Subscribed { sub, partition, result: Err(error) } => {
                (sub, partition, Relayed::Refused(outcome_of(Err(error))))
            }
            MeshMessage::Returned { sub, partition, credit } => (sub, partition, Relayed::Returned(credit)),
            MeshMessage::Hungry { sub, partition } => (sub, partition, Relayed::Hungry),
            MeshMessage::PartLost { sub, partition } => (sub, partition, Relayed::Lost),
            MeshMessage::ChannelDeleted { sub, partition } => (sub, partition, Relayed::ChannelDeleted),
            MeshMessage::InFlightFailed { sub, place, command, why } => {
                let why = match why {
                    InFlightError::NotInFlight => NotCarriedOut::NotInFlight,
                    InFlightError::NotOwned => NotCarriedOut::NotOwned,
                    InFlightError::Refused(error) => NotCarriedOut::Refused(outcome_of(Err(error))),
                };
                let what = match command {
                    InFlightCommand::Finish => Relayed::NotFinished(place.log_id, why),
                    InFlightCommand::Requeue => Relayed::NotRequeued(place.log_id, why),
                    InFlightCommand::Touch => Relayed::NotTouched(place.log_id, why),
                };
                (sub, place.partition, what)
            }
            _ => return,
        };
        self.send_guest(sub, partition, what);
    }

    /// The turn's messages for clients of other nodes go.
    pub(in crate::shard) fn deliver_to_guests(&mut self) {
        for ((sub, partition), frames) in self.bundles.take_guest_frames() {
            self.send_guest(sub, partition, Relayed::Deliver(frames.into()));
        }
    }

    fn send_guest(&mut self, sub: SubId, partition: PartitionId, what: Relayed) {
        let cluster = self.cluster_mut();
        let Some(Guest { route, session }) = cluster.guests.clients.get(&(sub, partition)).copied() else { return };
        let Some(Home { node, generation, core }) = cluster.guests.home(sub.core) else { return };
        if matches!(what, Relayed::Lost | Relayed::ChannelDeleted) {
            cluster.guests.clients.remove(&(sub, partition));
        }
        let client = Remote { generation, core, conn: sub.conn };
        let (head, body) = (Head { epoch: Epoch(0), session }, Body::Relay(Relay { client, what }));
        cluster.links.send(node, route, Message { head, body });
    }
}
