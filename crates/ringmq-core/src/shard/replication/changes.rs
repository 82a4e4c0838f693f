//! Changes by operators of channels whose partitions other nodes lead: the partition's core asks the leader, and passes the answer on.
//!
//! ```text
//! HTTP thread ── mesh ── the partition's core ══ peer link ══ the partition's core of the leader
//! ```
//! The leader takes a change of another node as one of its own HTTP thread, under the core number [`CoreId::GUESTS`] and a ticket of its
//! own. A change that was on its way when the link was lost may have been made: its outcome is unknown.

use super::peers::Peers;
use crate::base::{ChannelName, CoreId, Epoch, IdMap, NodeId, Now, PartitionId, Ticks, TopicRef};
use crate::codec::peer::Outcome;
use crate::codec::peer::message::{
    Asker, Body, Change, ChangeDone, Changed, Changing, Head, Lane, Message, NotChanged, Route, Session,
};
use crate::seam::message::{ChangeChannel, ChannelChange, MeshMessage, SetOffset, SetOrder, Ticket};
use crate::seam::outcome::{PublishError, SetOffsetError, Unwritable, outcome_of, result_of};
use std::time::Duration;

/// Time after which an answer is not waited for any more.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Message that answers a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AnswerKind {
    ChannelChanged,
    OrderSet,
    OffsetSet,
}

/// A change that the leader has not answered.
#[derive(Debug)]
struct PendingChange {
    to: NodeId,
    at: Ticks,
    core: CoreId,
    ticket: Ticket,
    kind: AnswerKind,
}

/// A change that came from another node.
#[derive(Clone, Copy, Debug)]
struct GuestChange {
    node: NodeId,
    route: Route,
    asker: Asker,
}

#[derive(Debug, Default)]
pub struct Changes {
    /// The last number that was given, to either.
    last: u64,
    asked: IdMap<u64, PendingChange>,
    guests: IdMap<u64, GuestChange>,
}

impl Changes {
    fn ask(&mut self, asked: PendingChange) -> u64 {
        let now = asked.at;
        self.asked.retain(|_, other| now.since(other.at) < FORGET_AFTER);
        self.last += 1;
        self.asked.insert(self.last, asked);
        self.last
    }

    fn take_in(&mut self, guest: GuestChange) -> Ticket {
        self.last += 1;
        self.guests.insert(self.last, guest);
        Ticket(self.last)
    }

    /// The questions to the node, in their order.
    fn take_lost(&mut self, node: NodeId) -> Vec<PendingChange> {
        self.guests.retain(|_, guest| guest.node != node);
        let mut lost: Vec<(u64, PendingChange)> = self.asked.extract_if(|_, asked| asked.to == node).collect();
        lost.sort_unstable_by_key(|(number, _)| *number);
        lost.into_iter().map(|(_, asked)| asked).collect()
    }
}

/// Parts of a message about a channel: partition, channel, ticket and kind of the answer, and the change for the leader.
fn parts_of(message: &MeshMessage) -> Option<(Route, &ChannelName, Ticket, AnswerKind, Changing)> {
    let route = |topic: &TopicRef, partition: PartitionId| Route { topic_id: topic.id, partition };
    Some(match message {
        MeshMessage::ChangeChannel { ticket, set } => {
            let ChangeChannel { topic, partition, channel, change } = &**set;
            let what = match *change {
                ChannelChange::Create { first, is_alone } => Changing::Create { first, is_alone },
                ChannelChange::Delete => Changing::Delete,
                ChannelChange::Pause => Changing::Pause,
                ChannelChange::Unpause => Changing::Unpause,
            };
            (route(topic, *partition), channel, *ticket, AnswerKind::ChannelChanged, what)
        }
        MeshMessage::SetOrder { ticket, set } => {
            let SetOrder { topic, partition, channel, ordered } = &**set;
            (route(topic, *partition), channel, *ticket, AnswerKind::OrderSet, Changing::SetOrder(*ordered))
        }
        MeshMessage::SetOffset { ticket, set } => {
            let SetOffset { topic, partition, channel, to, from, force } = &**set;
            let what = Changing::SetOffset { to: *to, from: *from, force: *force };
            (route(topic, *partition), channel, *ticket, AnswerKind::OffsetSet, what)
        }
        _ => return None,
    })
}

/// An answer, and the core that asked.
pub(super) type AnswerToCore = (CoreId, MeshMessage);

/// Place where a change of a channel is carried out.
pub(super) enum Taker {
    ThisNode(MeshMessage),
    /// The leader was asked.
    Leader,
    /// No node that can be asked leads the partition.
    Nobody(MeshMessage),
}

impl Changes {
    /// Asks the leader of the partition, where that is another node.
    pub(super) fn ask_leader(
        &mut self,
        peers: &mut Peers,
        now: Now,
        from: CoreId,
        message: MeshMessage,
        is_stopping: bool,
    ) -> Taker {
        let Some((route, channel, ticket, kind, what)) = parts_of(&message) else { return Taker::ThisNode(message) };
        // A partition that no metadata names is this node's to refuse.
        let leader = peers.leader(route);
        if !peers.is_named(route) || leader == Some(peers.me()) {
            return Taker::ThisNode(message);
        }
        let refused = match leader.filter(|leader| peers.links.is_connected(*leader)) {
            _ if is_stopping => PublishError::Stopping,
            Some(leader) => {
                let asked = PendingChange { to: leader, at: now.ticks, core: from, ticket, kind };
                self.send(peers, route, channel.clone(), what, asked);
                return Taker::Leader;
            }
            None => PublishError::NotWritable(Unwritable::NoLeader),
        };
        Taker::Nobody(answer_of(ticket, kind, Err(SetOffsetError::Failed(refused))))
    }

    fn send(&mut self, peers: &mut Peers, route: Route, channel: ChannelName, what: Changing, asked: PendingChange) {
        let to = asked.to;
        let asker = peers.asker(self.ask(asked));
        let head = Head { epoch: Epoch(0), session: Session(1) };
        let body = Body::Change(Change { asker, channel, what });
        peers.links.send_on(to, Lane::Control, route, Message { head, body });
    }

    /// The leader has answered a change of this core.
    pub(super) fn hear_answer(&mut self, peers: &Peers, from: NodeId, changed: Changed) -> Option<AnswerToCore> {
        let number = changed.asker.ticket;
        if !peers.has_asked(&changed.asker) || self.asked.get(&number)?.to != from {
            return None;
        }
        let PendingChange { core, ticket, kind, .. } = self.asked.remove(&number)?;
        Some((core, answer_of(ticket, kind, changed.result.map_err(error_of))))
    }

    /// The connection with a node is lost: its pending changes may have been done. Returns the answers for the operators, which repeat
    /// their requests.
    pub(super) fn lose(&mut self, node: NodeId) -> Vec<AnswerToCore> {
        let unknown = |PendingChange { core, ticket, kind, .. }| {
            (core, answer_of(ticket, kind, Err(SetOffsetError::Failed(PublishError::Unknown))))
        };
        self.take_lost(node).into_iter().map(unknown).collect()
    }

    // ---- operators at other nodes

    /// Takes a change of an operator at another node. Returns it as a message of [`CoreId::GUESTS`].
    pub(super) fn hear(
        &mut self,
        peers: &mut Peers,
        topic: Option<&TopicRef>,
        (node, route): (NodeId, Route),
        change: Change,
    ) -> Option<MeshMessage> {
        let Change { asker, channel, what } = change;
        let ticket = self.take_in(GuestChange { node, route, asker });
        let Some(topic) = topic.cloned() else {
            self.answer(peers, ticket, Err(NotChanged::Failed(Outcome::NotLeader)));
            return None;
        };
        let partition = route.partition;
        let change = match what {
            Changing::Create { first, is_alone } => ChannelChange::Create { first, is_alone },
            Changing::Delete => ChannelChange::Delete,
            Changing::Pause => ChannelChange::Pause,
            Changing::Unpause => ChannelChange::Unpause,
            Changing::SetOrder(ordered) => {
                let set = Box::new(SetOrder { topic, partition, channel, ordered });
                return Some(MeshMessage::SetOrder { ticket, set });
            }
            Changing::SetOffset { to, from, force } => {
                let set = Box::new(SetOffset { topic, partition, channel, to, from, force });
                return Some(MeshMessage::SetOffset { ticket, set });
            }
            Changing::Other => {
                self.answer(peers, ticket, Err(NotChanged::Failed(Outcome::Refused)));
                return None;
            }
        };
        let set = Box::new(ChangeChannel { topic, partition, channel, change });
        Some(MeshMessage::ChangeChannel { ticket, set })
    }

    /// Tells another node the outcome of a change. Returns a message that is no such answer.
    pub(super) fn tell(&mut self, peers: &mut Peers, message: MeshMessage) -> Option<MeshMessage> {
        let done = ChangeDone::default();
        let (ticket, result) = match message {
            MeshMessage::ChannelChanged { ticket, result } => (ticket, result.map(|is_first| ChangeDone { is_first, ..done })),
            MeshMessage::OrderSet { ticket, result } => (ticket, result.map(|()| done)),
            MeshMessage::OffsetSet { ticket, result } => (ticket, result.map(|at| ChangeDone { at: Some(at), ..done })),
            message => return Some(message),
        };
        self.answer(peers, ticket, result.map_err(reason_of));
        None
    }

    fn answer(&mut self, peers: &mut Peers, ticket: Ticket, result: Result<ChangeDone, NotChanged>) {
        let Some(GuestChange { node, route, asker }) = self.guests.remove(&ticket.0) else { return };
        let head = Head { epoch: Epoch(0), session: Session(1) };
        let body = Body::Changed(Changed { asker, result });
        peers.links.send_on(node, Lane::Control, route, Message { head, body });
    }
}

fn answer_of(ticket: Ticket, kind: AnswerKind, result: Result<ChangeDone, SetOffsetError>) -> MeshMessage {
    let unknown = SetOffsetError::Failed(PublishError::Unknown);
    match kind {
        AnswerKind::ChannelChanged => MeshMessage::ChannelChanged { ticket, result: result.map(|done| done.is_first) },
        AnswerKind::OrderSet => MeshMessage::OrderSet { ticket, result: result.map(drop) },
        AnswerKind::OffsetSet => MeshMessage::OffsetSet { ticket, result: result.and_then(|done| done.at.ok_or(unknown)) },
    }
}

fn reason_of(error: SetOffsetError) -> NotChanged {
    match error {
        SetOffsetError::NoPartition => NotChanged::NoPartition,
        SetOffsetError::NoChannel => NotChanged::NoChannel,
        SetOffsetError::NotFirstClient => NotChanged::NotFirstClient,
        SetOffsetError::HasClients => NotChanged::HasClients,
        SetOffsetError::NoPlace => NotChanged::NoPlace,
        SetOffsetError::Unreadable => NotChanged::Unreadable,
        SetOffsetError::Failed(error) => NotChanged::Failed(outcome_of(Err(error))),
    }
}

fn error_of(reason: NotChanged) -> SetOffsetError {
    match reason {
        // It does not lead any more, or not yet.
        NotChanged::Failed(Outcome::NotLeader) => SetOffsetError::Failed(PublishError::NotWritable(Unwritable::NoLeader)),
        NotChanged::NoPartition => SetOffsetError::NoPartition,
        NotChanged::NoChannel => SetOffsetError::NoChannel,
        NotChanged::NotFirstClient => SetOffsetError::NotFirstClient,
        NotChanged::HasClients => SetOffsetError::HasClients,
        NotChanged::NoPlace => SetOffsetError::NoPlace,
        NotChanged::Unreadable => SetOffsetError::Unreadable,
        NotChanged::Failed(outcome) => SetOffsetError::Failed(result_of(outcome).err().unwrap_or(PublishError::Unknown)),
    }
}
