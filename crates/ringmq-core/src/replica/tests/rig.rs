//! One member with a log whose disk waits to be told, and what it says; the others are played by the test.

use crate::base::{ChannelName, Epoch, Position, Ticks};
use crate::codec::peer::message::{
    Ack, Align, Aligned, Append, Batches, Body, CursorsAck, Head, Inquire, Message, Session, Standing,
};
use crate::format::cursor::CursorImage;
use crate::replica::model::log::ModelLog;
use crate::replica::model::node::{Node, NodeOutput, topic};
use crate::replica::states::State;
use crate::replica::{Effect, Event, LogView, ReplicaOptions};
use crate::seam::membership::REPLICAS_MAX;
use crate::{base::NodeId, codec::peer::error::PeerError, seam::membership::Membership};
use std::collections::VecDeque;
use std::time::Duration;

pub fn n(i: u8) -> NodeId {
    assert!((i as usize) < REPLICAS_MAX);
    NodeId([i; 16])
}

/// The member under test is node 1.
pub struct Rig {
    pub node: Node,
    pub now: Ticks,
    pub out: VecDeque<NodeOutput>,
    pub version: u64,
}

impl Rig {
    pub fn new() -> Rig {
        let mut node = Node::new(n(1), ReplicaOptions::default());
        node.id = n(1);
        let mut rig = Rig { node, now: Ticks(1_000_000_000), out: VecDeque::new(), version: 0 };
        rig.give(Event::Lease { until: Ticks(u64::MAX) });
        rig
    }

    /// A rig with so many durable batches of epoch 1.
    pub fn with_batches(count: usize) -> Rig {
        let mut rig = Rig::new();
        rig.append(1, count);
        rig.settle();
        rig
    }

    pub fn append(&mut self, epoch: u64, count: usize) {
        (0..count).for_each(|_| drop(self.node.log.append_own(Epoch(epoch), 1, b"body")));
    }

    pub fn give(&mut self, event: Event) {
        self.node.step(self.now, event, &mut self.out);
    }

    pub fn membership(&mut self, epoch: u64, leader: u8, isr: &[u8]) -> Membership {
        self.version += 1;
        Membership {
            isr: isr.iter().map(|i| n(*i)).collect(),
            ..Membership::new(self.version, Epoch(epoch), Some(n(leader)), vec![n(1), n(2), n(3)], 2)
        }
    }

    pub fn metadata(&mut self, epoch: u64, leader: u8, isr: &[u8]) {
        let membership = self.membership(epoch, leader, isr);
        self.give(Event::Metadata(membership));
    }

    /// Completes everything that the disk was asked for.
    pub fn settle(&mut self) {
        while !self.node.log.queue.is_empty() {
            self.node.complete(self.now, &mut self.out);
        }
    }

    /// The store has room again.
    pub fn room(&mut self) {
        self.node.is_full = false;
        self.node.append_held(&mut self.out);
        self.settle();
    }

    pub fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.give(Event::Tick);
    }

    pub fn state(&self) -> State {
        self.node.member.state()
    }

    pub fn end(&self) -> Position {
        self.node.log.end().at
    }

    /// Takes the messages to a node since the last call.
    pub fn said(&mut self, to: u8) -> Vec<Message> {
        let mut said = vec![];
        self.out.retain(|o| match o {
            NodeOutput::Sent(node, message) if *node == n(to) => {
                said.push(message.clone());
                false
            }
            _ => true,
        });
        said
    }

    /// The last thing said to a node.
    pub fn last(&mut self, to: u8) -> Body {
        self.said(to).pop().expect("something was said").body
    }

    pub fn refusal(&mut self, to: u8) -> PeerError {
        match self.last(to) {
            Body::Refused(error) => error,
            body => panic!("no refusal: {body:?}"),
        }
    }

    pub fn effects(&mut self) -> Vec<Effect> {
        let mut effects = vec![];
        for item in std::mem::take(&mut self.out) {
            match item {
                NodeOutput::Effect(effect) => effects.push(effect),
                item => self.out.push_back(item),
            }
        }
        effects
    }

    pub fn hear(&mut self, from: u8, epoch: u64, session: u32, body: Body) {
        let head = Head { epoch: Epoch(epoch), session: Session(session) };
        self.give(Event::Message { from: n(from), message: Message { head, body } });
    }

    /// The session that the leader under test keeps with a node, as it last said.
    pub fn session(&mut self, with: u8) -> u32 {
        self.said(with).pop().expect("something was said").head.session.0
    }

    // ---- as a follower of node 2

    pub fn inquired(&mut self, epoch: u64, session: u32) {
        self.hear(2, epoch, session, inquire());
        self.settle();
    }

    /// Follows node 2 in this epoch, in session 1, in step.
    pub fn follow(&mut self, epoch: u64) {
        self.metadata(epoch, 2, &[1, 2, 3]);
        self.inquired(epoch, 1);
        let at = self.end();
        self.hear(2, epoch, 1, Body::Align(Align::Truncate { at, chain_crc: None }));
        assert_eq!(self.state(), State::Aligned);
        self.said(2);
    }

    // ---- as the leader

    pub fn standing(log: &ModelLog, committed: Position, suspect: bool) -> Standing {
        let mut epochs = vec![];
        let more = log.epochs(None, 64, &mut epochs);
        let (start, start_crc) = log.start();
        let last_epoch = epochs.first().map_or(Epoch(0), |e| e.epoch);
        Standing { start, start_crc, last_epoch, durable: log.vouched(), committed, suspect, epochs, more }
    }

    /// Leads epoch `epoch` with node 2 in step, which has the same log and the list of channels, and 3 silent.
    pub fn lead(&mut self, epoch: u64) -> u32 {
        self.metadata(epoch, 1, &[1, 2]);
        self.settle();
        assert_eq!(self.state(), State::Asking);
        let session = self.session(2);
        let standing = Self::standing(&self.node.log, Position::START, false);
        self.hear(2, epoch, session, Body::Standing(standing));
        let at = self.end();
        self.hear(2, epoch, session, Body::Aligned(Aligned { at }));
        self.listed(2, epoch, session);
        assert_eq!(self.state(), State::Open);
        session
    }

    /// The follower confirms the list of channels that it was sent.
    pub fn listed(&mut self, from: u8, epoch: u64, session: u32) {
        let list = self.said(from).into_iter().find_map(|m| if let Body::Cursors(c) = m.body { Some(c) } else { None });
        let list = list.filter(|l| l.is_all).expect("a list");
        let ack = CursorsAck { seq: list.seq, result: Ok(()) };
        self.hear(from, epoch, session, Body::CursorsAck(ack));
    }

    pub fn ack(&mut self, from: u8, epoch: u64, session: u32) {
        let durable = self.end();
        self.hear(from, epoch, session, Body::Ack(Ack { durable }));
    }
}

pub fn inquire() -> Body {
    Body::Inquire(Inquire { topic: topic().name.clone(), partitions: 1, membership_version: 0 })
}

/// Batches of a log as they travel.
pub fn run_of(log: &ModelLog, from: usize, committed: Position) -> Body {
    let batches = Batches::new(log.batches[from..].iter().map(|b| b.bytes.clone()).collect());
    Body::Append(Append { committed, batches })
}

/// A log with batches of these epochs.
pub fn log_of(epochs: &[u64]) -> ModelLog {
    let mut log = ModelLog::new();
    for (i, epoch) in epochs.iter().enumerate() {
        log.append_own(Epoch(*epoch), 1 + i as u32 % 3, format!("body {epoch}").as_bytes());
    }
    while log.complete().is_some() {}
    log
}

pub fn cursor(name: &str, epoch: u64, generation: u64, confirmed: Position) -> CursorImage {
    let name = ChannelName::new(name).unwrap();
    CursorImage::new(name, Epoch(epoch), generation, confirmed)
}
