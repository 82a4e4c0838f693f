//! Subscriptions of this node's clients to partitions that other nodes lead. For the client's core a partition lives on its core of this
//! node, whichever node leads it; that core passes on the messages of the client's core and of the leader ([`super::guests`]).
//!
//! ```text
//! client ── its core ── mesh ── the partition's core ══ peer link ══ the partition's core of the leader ── channel
//! ```
//! A relay is one client's subscription at one leader, under a number of its own: both ends drop messages with another number. It ends
//! when the link is lost or another node leads; the client's core is told that the partition is lost, forgets the credit that it had
//! lent, and joins again. So no message of a replaced leader comes behind those of the next one.

use super::lines::may_be_stored_later;
use super::peers::Peers;
use crate::base::{Epoch, IdMap, LogId, MessagePlace, NodeId, PartitionId, SubId};
use crate::codec::peer::message::{Body, Head, Message, NotCarriedOut, Relayed, Route, Session, Subscriber};
use crate::codec::peer::relay::FINISHED_MAX;
use crate::metrics::remote::RemoteOutcome;
use crate::seam::message::{MeshMessage, SubRequest};
use crate::seam::outcome::{InFlightCommand, InFlightError, PublishError, result_of};
use bytes::Bytes;

/// A client at a partition.
pub(super) type RelayKey = (SubId, PartitionId);

/// A client's subscription at the leader of a partition.
#[derive(Debug)]
struct Relaying {
    route: Route,
    to: NodeId,
    session: Session,
    /// Messages that the leader may still have in flight, or give back.
    lent: u32,
    /// FINs of this turn.
    finished: Vec<LogId>,
}

#[derive(Debug, Default)]
pub struct Relays {
    /// The last number that was given.
    last: u32,
    clients: IdMap<RelayKey, Relaying>,
    by_number: IdMap<Session, RelayKey>,
    /// Relays that have FINs.
    finishing: Vec<RelayKey>,
}

impl Relays {
    fn of(&self, mut is: impl FnMut(&Relaying) -> bool) -> Vec<RelayKey> {
        let mut found: Vec<_> = self.clients.iter().filter(|(_, r)| is(r)).map(|(key, _)| *key).collect();
        found.sort_unstable();
        found
    }

    fn add(&mut self, key: RelayKey, route: Route, to: NodeId) {
        self.last = self.last.wrapping_add(1).max(1);
        let session = Session(self.last);
        self.clients.insert(key, Relaying { route, to, session, lent: 0, finished: vec![] });
        self.by_number.insert(session, key);
    }

    pub fn count(&self) -> u64 {
        self.clients.len() as u64
    }

    fn remove(&mut self, key: RelayKey) {
        if let Some(relaying) = self.clients.remove(&key) {
            self.by_number.remove(&relaying.session);
        }
    }

    /// The client to which the node's messages under this number go.
    fn find(&self, from: NodeId, route: Route, session: Session) -> Option<RelayKey> {
        let key = *self.by_number.get(&session)?;
        self.clients.get(&key).filter(|r| (r.to, r.route) == (from, route)).map(|_| key)
    }

    /// The leader gives credit back. False: it was not lent so much.
    fn take_back(&mut self, key: RelayKey, credit: u32) -> bool {
        let Some(relaying) = self.clients.get_mut(&key) else { return false };
        let rest = relaying.lent.checked_sub(credit);
        relaying.lent = rest.unwrap_or(0);
        rest.is_some()
    }
}

/// Message for the core of a relayed client.
pub(super) enum ForClient {
    /// Messages, ready for the socket.
    Frames(Bytes),
    Message(MeshMessage),
}

impl Relays {
    /// Asks the leader of the partition, where that is another node which can be asked. Ok(false): it is not.
    pub fn subscribe(&mut self, peers: &mut Peers, request: &SubRequest) -> Result<bool, PublishError> {
        let route = Route { topic_id: request.topic.id, partition: request.partition };
        if request.options.ranged {
            return Ok(false);
        }
        let Some(to) = peers.relays_to(route)? else { return Ok(false) };
        let key = (request.sub, request.partition);
        self.detach(peers, request.sub, request.partition);
        self.add(key, route, to);
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
        self.send(peers, key, Relayed::Subscribe(Box::new(subscriber)));
        Ok(true)
    }

    /// Passes a message of the client's core to the leader. False: the client is not relayed.
    pub fn tell(&mut self, peers: &mut Peers, sub: SubId, partition: PartitionId, relayed: Relayed) -> bool {
        let key = (sub, partition);
        let Some(relaying) = self.clients.get_mut(&key) else { return false };
        if let Relayed::Lend(credit) = relayed {
            relaying.lent = relaying.lent.saturating_add(credit);
        }
        self.flush_one(peers, key);
        self.send(peers, key, relayed);
        true
    }

    fn send(&self, peers: &mut Peers, key: RelayKey, relayed: Relayed) {
        let Some(relaying) = self.clients.get(&key) else { return };
        let head = Head { epoch: Epoch(0), session: relaying.session };
        peers.links.send(relaying.to, relaying.route, Message { head, body: Body::Relay(relayed) });
    }

    /// A FIN goes with the others of the turn. False: the client is not relayed.
    pub fn finish(&mut self, sub: SubId, partition: PartitionId, id: LogId) -> bool {
        let Some(relaying) = self.clients.get_mut(&(sub, partition)) else { return false };
        if relaying.finished.is_empty() {
            self.finishing.push((sub, partition));
        }
        relaying.finished.push(id);
        true
    }

    /// The turn's FINs go.
    pub fn flush(&mut self, peers: &mut Peers) {
        for key in std::mem::take(&mut self.finishing) {
            self.flush_one(peers, key);
        }
    }

    fn flush_one(&mut self, peers: &mut Peers, key: RelayKey) {
        let Some(relaying) = self.clients.get_mut(&key) else { return };
        for ids in std::mem::take(&mut relaying.finished).chunks(FINISHED_MAX) {
            self.send(peers, key, Relayed::Finish(ids.to_vec()));
        }
    }

    /// The client leaves. False: it is not relayed.
    pub fn detach(&mut self, peers: &mut Peers, sub: SubId, partition: PartitionId) -> bool {
        let is_relayed = self.tell(peers, sub, partition, Relayed::Unsubscribe);
        if is_relayed {
            self.remove((sub, partition));
        }
        is_relayed
    }

    /// Relays to another node than the one that the metadata names as the leader.
    pub(super) fn elsewhere(&self, peers: &Peers, route: Route) -> Vec<RelayKey> {
        if self.clients.is_empty() {
            return vec![];
        }
        let to = peers.relays_to(route).ok().flatten();
        self.of(|r| r.route == route && Some(r.to) != to)
    }

    pub(super) fn with(&self, node: NodeId) -> Vec<RelayKey> {
        self.of(|r| r.to == node)
    }

    /// Ends the relay, and tells the leader if it is connected. Returns the message for the client's core.
    pub(super) fn end(&mut self, peers: &mut Peers, (sub, partition): RelayKey, is_connected: bool) -> MeshMessage {
        match is_connected {
            true => drop(self.detach(peers, sub, partition)),
            false => self.remove((sub, partition)),
        }
        peers.counts.relays.count(RemoteOutcome::Lost);
        MeshMessage::PartLost { sub, partition }
    }

    /// Handles a message of a leader to one of this core's subscriptions. Returns the message for the client's core.
    pub(super) fn hear(
        &mut self,
        peers: &mut Peers,
        from: NodeId,
        (route, session): (Route, Session),
        relayed: Relayed,
    ) -> Option<(SubId, ForClient)> {
        let key = self.find(from, route, session)?;
        let (sub, partition) = key;
        let message = match relayed {
            Relayed::Subscribed => {
                peers.counts.relays.count(RemoteOutcome::Done);
                MeshMessage::Subscribed { sub, partition, result: Ok(false) }
            }
            Relayed::Refused(outcome) => {
                let error = result_of(outcome).err().unwrap_or(PublishError::Unknown);
                peers.counts.relays.count(if may_be_stored_later(error) {
                    RemoteOutcome::Retried
                } else {
                    RemoteOutcome::Refused
                });
                // the leader may have taken the client in before its channel failed
                self.detach(peers, sub, partition);
                MeshMessage::Subscribed { sub, partition, result: Err(error) }
            }
            Relayed::Returned(credit) if !self.take_back(key, credit) => {
                tracing::error!(peer = %from, %partition, credit, "a leader returned more credit than it had: the client subscribes again");
                self.end(peers, key, true)
            }
            Relayed::Returned(credit) => MeshMessage::Returned { sub, partition, credit },
            Relayed::Hungry => MeshMessage::Hungry { sub, partition },
            Relayed::Deliver(frames) => {
                peers.counts.relayed.add(frames.len());
                return Some((sub, ForClient::Frames(frames)));
            }
            Relayed::Lost => self.end(peers, key, false),
            Relayed::ChannelDeleted => {
                self.remove(key);
                MeshMessage::ChannelDeleted { sub }
            }
            Relayed::NotFinished(id, why) => not_carried_out(key, (id, InFlightCommand::Finish), why),
            Relayed::NotRequeued(id, why) => not_carried_out(key, (id, InFlightCommand::Requeue), why),
            Relayed::NotTouched(id, why) => not_carried_out(key, (id, InFlightCommand::Touch), why),
            // messages for a leader, and those of a later version
            _ => return None,
        };
        Some((sub, ForClient::Message(message)))
    }
}

fn not_carried_out((sub, partition): RelayKey, (id, command): (LogId, InFlightCommand), why: NotCarriedOut) -> MeshMessage {
    let why = match why {
        NotCarriedOut::NotInFlight => InFlightError::NotInFlight,
        NotCarriedOut::NotOwned => InFlightError::NotOwned,
        NotCarriedOut::Refused(outcome) => InFlightError::Refused(result_of(outcome).err().unwrap_or(PublishError::Unknown)),
    };
    MeshMessage::InFlightFailed { sub, place: MessagePlace::new(partition, id), command, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ConnId, CoreId, TopicId};

    #[test]
    fn a_number_is_heard_from_its_leader_alone_and_gives_back_what_it_was_lent() {
        let (a, b) = (NodeId([1; 16]), NodeId([2; 16]));
        let route = Route { topic_id: TopicId([1; 16]), partition: PartitionId(3) };
        let key = (SubId { core: CoreId(0), conn: ConnId(7) }, route.partition);
        let mut relays = Relays::default();
        relays.add(key, route, a);
        let other = Route { partition: PartitionId(4), ..route };
        assert_eq!(relays.find(a, route, Session(1)), Some(key));
        assert_eq!(
            [relays.find(b, route, Session(1)), relays.find(a, other, Session(1)), relays.find(a, route, Session(2))],
            [None; 3]
        );
        relays.clients.get_mut(&key).expect("it was added").lent = 5;
        assert!(relays.take_back(key, 3) && !relays.take_back(key, 3) && relays.take_back(key, 0));
        relays.remove(key);
        relays.add(key, route, a);
        assert_eq!((relays.find(a, route, Session(1)), relays.find(a, route, Session(2))), (None, Some(key)));
        assert!(!relays.take_back((key.0, PartitionId(9)), 0));
    }
}
