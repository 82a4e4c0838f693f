//! Messages of other nodes for the partitions of this core, and the loss of the connection with a node: each goes to its machine, and the
//! answer of the machine is handed on.

use super::relays::{ForClient, RelayKey};
use super::{Cluster, CoreParts, Work};
use crate::base::{NodeId, Now};
use crate::codec::peer::Addressed;
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Body, Message, PackedBodies, Route};
use crate::replica::Event;
use crate::seam::cluster::Ask;
use crate::seam::message::MeshMessage;
use crate::shard::outbox::LateAnswer;
use crate::shard::partitions::Publisher;

impl Cluster {
    /// A message of another node for a partition of this core.
    pub(in crate::shard) fn on_peer_message(&mut self, core: &mut CoreParts, now: Now, from: NodeId, addressed: Addressed) {
        let Addressed { route, message } = addressed;
        match message {
            Message { head, body: Body::Forward(forward) } => {
                self.forwards.hear(core, &mut self.peers, from, (route, head.session), forward);
            }
            Message { body: Body::Forwarded(answer), .. } => {
                self.forwards.hear_answer(core, now, &mut self.peers, route, answer);
            }
            Message { head, body: Body::Relay(relayed) } if relayed.is_for_leader() => {
                let topic = self.topics.get(route.topic_id);
                let said = self.guests.hear(&mut self.peers, topic, from, (route, head.session), relayed);
                core.work.extend(said.into_iter().flatten().map(Work::Guest));
            }
            Message { head, body: Body::Relay(relayed) } => {
                match self.relays.hear(&mut self.peers, from, (route, head.session), relayed) {
                    Some((sub, ForClient::Message(message))) => core.outbox.pass(sub.core, message),
                    Some((sub, ForClient::Frames(frames))) if sub.core == core.id => {
                        core.outbox.tell(sub.conn, LateAnswer::Frames(frames));
                    }
                    Some((sub, ForClient::Frames(frames))) => {
                        core.outbox.pass(sub.core, MeshMessage::Deliver { sub, frames: frames.into() });
                    }
                    None => {}
                }
            }
            Message { body: Body::Change(change), .. } => {
                let topic = self.topics.get(route.topic_id);
                let change = self.changes.hear(&mut self.peers, topic, (from, route), change);
                core.work.extend(change.map(Work::Guest));
            }
            Message { body: Body::Changed(answer), .. } => {
                if let Some((asked_by, message)) = self.changes.hear_answer(&self.peers, from, answer) {
                    core.outbox.pass(asked_by, message);
                }
            }
            message => match core.partitions.member_at(route) {
                Some(idx) => core.work.tell(idx, Event::Message { from, message }),
                // It may be on its way: the leader asks again.
                None => self.refuse_unknown(from, route, message),
            },
        }
    }

    fn refuse_unknown(&mut self, from: NodeId, route: Route, message: Message) {
        let lane = message.body.lane();
        if matches!(message.body, Body::Inquire(_) | Body::Append(_)) {
            let body = Body::Refused(PeerError::UnknownPartition);
            self.peers.links.send_on(from, lane, route, Message { head: message.head, body });
        }
    }

    /// The connection of this core to another node is made, or is lost with the messages in flight.
    pub(in crate::shard) fn on_peer(&mut self, core: &mut CoreParts, now: Now, node: NodeId, is_connected: bool) {
        core.work
            .tell_all(&core.partitions, || if is_connected { Event::Connected { node } } else { Event::Disconnected { node } });
        self.forwards.on_peer(core, now, &mut self.peers, node, is_connected);
        if !is_connected {
            core.outbox.ask(Ask::PeerLost { node });
            self.relays.with(node).into_iter().for_each(|key| self.drop_relay(core, key, false));
            for (asked_by, message) in self.changes.lose(node) {
                core.outbox.pass(asked_by, message);
            }
            let gone = self.guests.gone(node);
            core.work.extend(gone.into_iter().map(Work::Guest));
        }
    }

    /// A publish for a partition of this core goes to its leader, once one can be reached.
    pub(in crate::shard) fn forward(
        &mut self,
        core: &mut CoreParts,
        now: Now,
        route: Route,
        publisher: Publisher,
        packed: (PackedBodies, u64),
    ) {
        // An OK to this publish implies the FINs before it, if the same leader has their partition.
        self.relays.flush(&mut self.peers);
        self.forwards.push(core, now, &mut self.peers, route, publisher, packed);
    }

    /// The metadata names a leader: relays to another node join again.
    pub(super) fn look_at_relays(&mut self, core: &mut CoreParts, route: Route) {
        self.relays.elsewhere(&self.peers, route).into_iter().for_each(|key| self.drop_relay(core, key, true));
    }

    fn drop_relay(&mut self, core: &mut CoreParts, key: RelayKey, is_connected: bool) {
        let lost = self.relays.end(&mut self.peers, key, is_connected);
        core.outbox.pass(key.0.core, lost);
    }

    /// Sends another node a partition's message to a client's core, or to an operator.
    pub(in crate::shard) fn tell_guest(&mut self, message: MeshMessage) {
        if let Some(message) = self.changes.tell(&mut self.peers, message) {
            self.guests.tell(&mut self.peers, message);
        }
    }
}
