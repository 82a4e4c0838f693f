//! Messages of other nodes for the partitions of this core, and the loss of the connection with a node: each goes to its machine, and the
//! answer of the machine is handed on.

use super::Engine;
use super::changes::Taker;
use super::relays::{ForClient, RelayKey};
use crate::base::{CoreId, NodeId, Now};
use crate::codec::peer::Addressed;
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Body, Message, Route};
use crate::replica::Event;
use crate::seam::cluster::Ask;
use crate::seam::event::Effect;
use crate::seam::message::MeshMessage;
use crate::shard::offsets::Setter;
use crate::shard::outbox::LateAnswer;

impl Engine {
    /// A message of another node for a partition of this core.
    pub(in crate::shard) fn on_peer_message(&mut self, now: Now, from: NodeId, addressed: Addressed) {
        let Addressed { route, message } = addressed;
        let message = match message {
            Message { head, body: Body::Forward(forward) } => {
                return self.on_forward(now, from, (route, head.session), forward);
            }
            Message { body: Body::Forwarded(answer), .. } => return self.on_forwarded(now, route, answer),
            Message { head, body: Body::Relay(relayed) } if relayed.is_for_leader() => {
                let said = self.cluster_mut().on_relay(from, (route, head.session), relayed);
                return said.into_iter().flatten().for_each(|message| self.on_mesh(now, CoreId::GUESTS, message));
            }
            Message { head, body: Body::Relay(relayed) } => {
                return match self.cluster_mut().on_relayed(from, (route, head.session), relayed) {
                    Some((sub, ForClient::Message(message))) => self.pass(sub.core, message),
                    Some((sub, ForClient::Frames(frames))) if sub.core == self.core => {
                        self.outbox.tell(sub.conn, LateAnswer::Frames(frames));
                    }
                    Some((sub, ForClient::Frames(frames))) => {
                        self.pass(sub.core, MeshMessage::Deliver { sub, frames: frames.into() });
                    }
                    None => {}
                };
            }
            Message { body: Body::Change(change), .. } => {
                if let Some(change) = self.cluster_mut().on_change(from, route, change) {
                    self.change_here(now, CoreId::GUESTS, change);
                }
                return;
            }
            Message { body: Body::Changed(answer), .. } => {
                if let Some((core, message)) = self.cluster_mut().on_changed(from, answer) {
                    self.pass(core, message);
                }
                return;
            }
            message => message,
        };
        match self.member_at(route) {
            Some(idx) => self.tell_member(now, idx, Event::Message { from, message }),
            // It may be on its way: the leader asks again.
            None => self.refuse_unknown(from, route, message),
        }
    }

    fn refuse_unknown(&mut self, from: NodeId, route: Route, message: Message) {
        let lane = message.body.lane();
        if matches!(message.body, Body::Inquire(_) | Body::Append(_)) {
            let body = Body::Refused(PeerError::UnknownPartition);
            self.send_peer(from, lane, route, Message { head: message.head, body });
        }
    }

    /// The connection of this core to another node is there, or is gone: what was on its way may be lost.
    pub(in crate::shard) fn on_peer(&mut self, now: Now, node: NodeId, is_connected: bool) {
        for idx in self.partitions.members() {
            let event = if is_connected { Event::Connected { node } } else { Event::Disconnected { node } };
            self.tell_member(now, idx, event);
        }
        self.forward_to(now, node, is_connected);
        if !is_connected {
            self.outbox.push(Effect::Ask(Ask::PeerLost { node }));
            let lost = self.cluster_mut().relays_with(node);
            lost.into_iter().for_each(|key| self.end_relay(key, false));
            for (core, message) in self.cluster_mut().lose_changes(node) {
                self.pass(core, message);
            }
            for message in self.cluster_mut().guests_gone(node) {
                self.on_mesh(now, CoreId::GUESTS, message);
            }
        }
    }

    /// The metadata names a leader: who reads from another one joins again.
    pub(super) fn look_at_relays(&mut self, route: Route) {
        let elsewhere = self.cluster_mut().relays_elsewhere(route);
        elsewhere.into_iter().for_each(|key| self.end_relay(key, true));
    }

    fn end_relay(&mut self, key: RelayKey, is_connected: bool) {
        let lost = self.cluster_mut().end_relay(key, is_connected);
        self.pass(key.0.core, lost);
    }

    /// Carries out an operator's change of a channel, here or where the partition is led.
    pub(in crate::shard) fn on_operator(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        let is_stopping = self.life.is_stopping();
        let Some(cluster) = &mut self.cluster else { return self.change_here(now, from, message) };
        match cluster.ask_leader(now, from, message, is_stopping) {
            Taker::ThisNode(message) => self.change_here(now, from, message),
            Taker::Leader => {}
            Taker::Nobody(refusal) => self.pass(from, refusal),
        }
    }

    fn change_here(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        match message {
            MeshMessage::SetOffset { ticket, set } => self.set_offset(now, *set, Setter::Core(from, ticket)),
            MeshMessage::SetOrder { ticket, set } => self.set_order(now, *set, from, ticket),
            MeshMessage::ChangeChannel { ticket, set } => self.change_channel(now, *set, from, ticket),
            _ => unreachable!("no change of a channel"),
        }
    }
}
