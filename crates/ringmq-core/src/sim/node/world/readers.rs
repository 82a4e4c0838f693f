//! Readers of ordered channels and of those whose offset is set, and the HTTP thread's requests that set it.

use super::World;
use crate::base::topic::home_core;
use crate::base::{ChannelName, ConnId, CoreId, LogId, PartitionId, Peer, TopicName};
use crate::seam::event::Event;
use crate::sim::node::any::AnyClient;
use crate::sim::node::book::{Answered, Change, ChannelKey, topic_name};
use crate::sim::node::reader::{Reader, ReaderKind, TopicPartition};
use crate::{
    codec::native::Start,
    seam::{
        message::{MeshMessage, SetOffset, Ticket},
        outcome::{PublishError, SetOffsetError},
    },
};

impl World<'_> {
    fn open_reader(&mut self, kind: ReaderKind, place: TopicPartition, rdy: u32) {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        let reader = Reader::new(self.book, kind, place, rdy);
        let core = self.add_socket(AnyClient::Reader(Box::new(reader)));
        self.step(core, Event::Opened { conn, peer: Peer("test:1".into()) });
    }

    pub(super) fn connect_reader(&mut self) {
        let kind = if self.rng.chance(0.5) { ReaderKind::Ordered } else { ReaderKind::Moved };
        let kind = if self.plan.removals > 0.0 && self.rng.chance(0.6) { ReaderKind::Operated } else { kind };
        let place = (self.rng.below(self.topics) as usize, self.rng.below(self.plan.partitions_max) as u16);
        let rdy = 1 + self.rng.below(6) as u32;
        self.book.subscribes(place.0);
        // it names a partition, which judges for itself whether the channel is the first one
        self.book.subscribes_natively(place.0);
        self.book.read.insert(((place.0, kind.channel().into()), place.1));
        self.open_reader(kind, place, rdy);
    }

    /// Opens a consumer at each channel that a reader asked for: the channel may exist without an answer.
    pub(super) fn drain_readers(&mut self) {
        for ((topic, channel), partition) in self.book.read.clone() {
            let kind = ReaderKind::of(&channel).expect("readers read no others");
            self.open_reader(kind, (topic, partition), 40);
        }
    }

    /// Sets the offset of some channel, one at a time for each.
    pub(super) fn set_somewhere(&mut self) {
        let is_moved = |((_, c), _): &&(ChannelKey, u16)| ReaderKind::of(c) == Some(ReaderKind::Moved);
        let places: Vec<TopicPartition> = self.book.read.iter().filter(is_moved).map(|((topic, _), p)| (*topic, *p)).collect();
        let Some(place) = self.pick(&places).filter(|p| !self.setting.values().any(|s| s == p)) else { return };
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let cores = self.shards.len() as u16;
        let name = TopicName::new(&topic_name(place.0)).expect("valid");
        let Some(topic) = self.known.get(&place.0).cloned() else {
            let home = home_core(&name, cores).0 as usize;
            return self.step(home, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::FindTopic { ticket, name } });
        };
        let to = match self.rng.below(6) {
            0 => Start::Oldest,
            1 => Start::Newest,
            2 => Start::Count(self.rng.below(400) as i64),
            3 => Start::LogId(LogId(1 + self.rng.below(400))),
            4 => Start::Offset(self.rng.below(100_000) as i64),
            _ => Start::Timestamp(self.now.unix_ns - self.rng.below(20_000_000_000) as i64),
        };
        let (partition, key) = (PartitionId(place.1), (place.0, ReaderKind::Moved.channel().to_owned()));
        let readers = self.sockets.values().filter_map(|s| match &s.client {
            AnyClient::Reader(r) if (r.kind, r.place) == (ReaderKind::Moved, place) => Some(r.finished_unread(s.inbox.len())),
            _ => None,
        });
        let late = self.book.named(place.0, readers.flatten());
        // where that is is known when it is answered
        self.book.may_begin_inside(&key);
        self.book.sets(0, &key, place.1, LogId(u64::MAX), late);
        self.setting.insert(ticket.0, place);
        let channel = ChannelName::new(&key.1).expect("valid");
        let core = topic.core_of(partition, cores).0 as usize;
        let set = Box::new(SetOffset { topic, partition, channel, to, from: None, force: true });
        self.step(core, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::SetOffset { ticket, set } });
        self.end_turn(core);
    }

    pub(super) fn operate_somewhere(&mut self) {
        self.pause_somewhere();
        self.remove_somewhere();
    }

    /// Now and then, if there is an operator: pauses the channel of some reader, or lets it go on, one change at a time for each.
    fn pause_somewhere(&mut self) {
        if self.plan.pauses == 0.0 || self.is_stopping || !self.rng.chance(self.plan.pauses) {
            return;
        }
        let places: Vec<(ChannelKey, u16)> = self.book.read.iter().cloned().collect();
        let Some((channel, partition)) = self.pick(&(0..places.len()).collect::<Vec<_>>()).map(|i| places[i].clone()) else {
            return;
        };
        let change = if self.rng.chance(0.5) { Change::Pause } else { Change::Unpause };
        self.operate(channel, partition, change);
    }

    /// Empties or deletes a channel somewhere.
    fn remove_somewhere(&mut self) {
        if self.plan.removals == 0.0 || self.is_stopping || !self.rng.chance(self.plan.removals) {
            return;
        }
        let is_operated = |((_, c), _): &&(ChannelKey, u16)| ReaderKind::of(c) == Some(ReaderKind::Operated);
        let places: Vec<(ChannelKey, u16)> = self.book.read.iter().filter(is_operated).cloned().collect();
        let Some((channel, partition)) = self.pick(&(0..places.len()).collect::<Vec<_>>()).map(|i| places[i].clone()) else {
            return;
        };
        let change = if self.rng.chance(0.5) { Change::Empty } else { Change::Delete };
        self.operate(channel, partition, change);
    }

    /// Unpauses all channels before the drain, also those whose pause is unanswered or in flight.
    pub(super) fn unpause_all(&mut self) {
        for (channel, partition) in self.book.maybe_paused() {
            self.know_topic(channel.0);
            self.drain_all();
            self.operate(channel, partition, Change::Unpause);
            self.drain_all();
        }
    }

    fn know_topic(&mut self, topic: usize) {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let name = TopicName::new(&topic_name(topic)).expect("valid");
        let home = home_core(&name, self.shards.len() as u16).0 as usize;
        self.step(home, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::FindTopic { ticket, name } });
    }

    /// Starts an operator's change of a channel; each channel has at most one under way per partition.
    fn operate(&mut self, key: ChannelKey, partition: u16, change: Change) {
        if self.operating.values().any(|(k, p, _)| (k, *p) == (&key, partition)) {
            return;
        }
        let Some(topic) = self.known.get(&key.0).cloned() else { return self.know_topic(key.0) };
        self.next_ticket += 1;
        let core = topic.core_of(PartitionId(partition), self.shards.len() as u16).0 as usize;
        let message = change.ask(Ticket(self.next_ticket), topic, partition, &key.1);
        self.book.operates(&key, partition, change);
        self.operating.insert(self.next_ticket, (key, partition, change));
        self.step(core, Event::Mesh { from: CoreId::HTTP, message });
        self.end_turn(core);
    }

    fn operated(&mut self, ticket: Ticket, answer: Answered) {
        let (key, partition, change) = self.operating.remove(&ticket.0).expect("answered once");
        let is_waiting = |r: &Reader| r.kind == ReaderKind::Operated && r.place == (key.0, partition) && !r.is_satisfied();
        let is_wanted = self.sockets.values().any(|s| matches!(&s.client, AnyClient::Reader(r) if is_waiting(r)));
        self.book.operated(&key, partition, change, answer, is_wanted, true);
    }

    pub(super) fn http_hears(&mut self, message: MeshMessage) {
        match message {
            MeshMessage::Catalog { .. } => {}
            MeshMessage::Stats { stats, .. } => self.note_left(*stats),
            MeshMessage::Topic { result, .. } => {
                let Ok(topic) = result else { return };
                let number = (0..self.topics as usize).find(|&t| topic_name(t) == *topic.name).expect("it was asked for");
                self.known.insert(number, topic);
            }
            MeshMessage::OffsetSet { ticket, result } if self.operating.contains_key(&ticket.0) => {
                self.operated(ticket, Answered::of(result, |at| Some(at.log_id)));
            }
            MeshMessage::OffsetSet { ticket, result } => {
                let place = self.setting.remove(&ticket.0).expect("answered once");
                let key = (place.0, ReaderKind::Moved.channel().to_owned());
                match result {
                    Ok(at) => self.book.was_set(&key, place.1, at.log_id),
                    Err(error) => self.book.set_failed(&key, place.1, error == SetOffsetError::Failed(PublishError::Unknown)),
                }
            }
            MeshMessage::ChannelChanged { ticket, result } => self.operated(ticket, Answered::of(result, |_| None)),
            other => panic!("the HTTP thread asked for no {other:?}"),
        }
    }
}
