//! One node of the model: a member, its log, and what the shard would do around them.

use super::log::{DiskOp, ModelLog, PARTITION, TOPIC};
use crate::base::NodeId;
use crate::base::{Epoch, Position, Ticks, TopicInfo, TopicName};
use crate::format::batch::Batch;
use crate::format::cursor::CursorImage;
use crate::format::snapshot::Doubt;
use crate::format::tail::Tail;
use crate::replica::{Channels, CursorEvent, Effect, Event, LogView, Member, ReplicaOptions};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A publish that waits for its answer.
#[derive(Clone, Debug)]
pub struct WaitingPublish {
    pub batch: Batch,
}

/// A waiting cursor operation: the channel's state before, and the new one.
#[derive(Clone, Debug)]
pub struct Operation {
    pub before: CursorImage,
    pub image: CursorImage,
}

pub struct Node {
    pub id: NodeId,
    pub member: Member,
    pub log: ModelLog,
    pub is_up: bool,
    /// Messages of a peer that wait because the store has no room.
    pub is_full: bool,
    pub held: VecDeque<Batch>,
    pub failed: bool,
    pub waiting: Vec<WaitingPublish>,
    pub operations: BTreeMap<u64, Operation>,
    /// Lags behind the store by a random number of versions.
    pub seen_version: u64,
    pub opened: Option<Epoch>,
    /// Doubt at the begin of the opening.
    pub opened_in: Doubt,
}

pub fn topic() -> Arc<TopicInfo> {
    Arc::new(TopicInfo { name: TopicName::new("t").unwrap(), id: TOPIC, partitions: 1 })
}

/// Output of a step for the world: messages, questions to the store, facts for the checkers.
#[derive(Debug)]
pub enum NodeOutput {
    Effect(Effect),
    Committed(Position),
    Opened(Epoch),
    Acked(Batch),
    CursorAcked(Operation),
    Read(NodeId, crate::codec::peer::message::Session, Position, usize),
    Sent(NodeId, crate::codec::peer::message::Message),
    Appended(Batch),
    /// The channel is set to this cursor.
    Made(CursorImage),
}

impl Node {
    pub fn new(id: NodeId, options: ReplicaOptions) -> Self {
        let member = Member::new(id, topic(), PARTITION, options, None);
        Node {
            id,
            member,
            log: ModelLog::new(),
            is_up: true,
            is_full: false,
            held: VecDeque::new(),
            failed: false,
            waiting: vec![],
            operations: BTreeMap::new(),
            seen_version: 0,
            opened: None,
            opened_in: Doubt::None,
        }
    }

    /// Restarts with the disk as it is now.
    pub fn restart(&mut self, options: ReplicaOptions) {
        let disk = self.log.disk.clone();
        let last = disk.batches.last().map_or(Epoch(0), |b| Epoch(b.header.epoch.get()));
        let promised = disk.promised.max(last);
        self.member = Member::new(self.id, topic(), PARTITION, options, Some((promised, disk.committed)));
        self.log = ModelLog::recover(disk);
        (self.is_up, self.failed, self.seen_version, self.opened) = (true, false, 0, None);
        self.waiting.clear();
        self.operations.clear();
        self.is_full = false;
        self.held.clear();
    }

    /// Gives an event and carries out what the log and the shard are asked for; the rest comes out.
    pub fn step(&mut self, now: Ticks, event: Event, out: &mut VecDeque<NodeOutput>) {
        if !self.is_up {
            return;
        }
        let before = self.member.epoch();
        let mut effects = vec![];
        self.member.step(now, (&self.log, &[]), event, &mut effects);
        if self.member.epoch() != before {
            self.opened_in = self.log.doubt();
        }
        for effect in effects {
            self.carry_out(now, effect, out);
        }
    }

    fn carry_out(&mut self, now: Ticks, effect: Effect, out: &mut VecDeque<NodeOutput>) {
        match effect {
            Effect::Append { batch, .. } => {
                self.held.push_back(batch);
                self.append_held(out);
            }
            Effect::LogEpoch { epoch } => self.log.queue.push_back(DiskOp::Epoch(epoch)),
            Effect::Truncate { to } => {
                self.held.clear();
                self.log.truncate(to);
            }
            Effect::Restart { start, chain_crc } => {
                self.held.clear();
                let epoch = Epoch(0);
                self.log.restart(Tail { at: start, chain_crc, epoch });
            }
            Effect::GaveUp { committed } => self.log.queue.push_back(DiskOp::Committed(committed)),
            Effect::Doubted => self.log.lose(),
            Effect::Cleared => self.log.clear(),
            Effect::Committed { end } => {
                self.log.queue.push_back(DiskOp::Committed(end));
                out.push_back(NodeOutput::Committed(end));
                let done = self.waiting.iter().take_while(|w| w.batch.header.end().offset <= end.offset).count();
                out.extend(self.waiting.drain(..done).map(|w| NodeOutput::Acked(w.batch)));
            }
            Effect::Opened { epoch } => {
                self.opened = Some(epoch);
                out.push_back(NodeOutput::Opened(epoch));
            }
            Effect::Closed { .. } => {
                self.opened = None;
                self.waiting.clear();
            }
            Effect::ReadLog { to, session, from, bytes_max } => out.push_back(NodeOutput::Read(to, session, from, bytes_max)),
            Effect::SendTail { to, head, from, end, committed } => {
                let batches = self.log.tail(from.offset, end.offset);
                out.push_back(NodeOutput::Sent(to, append(head, committed, batches)));
            }
            Effect::SendCatchUp { to, head, committed, batches } => {
                out.push_back(NodeOutput::Sent(to, append(head, committed, batches)));
            }
            Effect::Send { to, message } => out.push_back(NodeOutput::Sent(to, message)),
            Effect::CollectCursors { to, session, channels } => {
                let epoch = self.member.epoch().expect("a leader collects");
                let is_all = channels == Channels::All;
                let images = match channels {
                    Channels::All => self.log.channels.values().cloned().collect(),
                    Channels::Some(names) => names.iter().filter_map(|n| self.log.channels.get(n).cloned()).collect::<Vec<_>>(),
                };
                let cursors = images.into_iter().map(|c| CursorImage { epoch, ..c }).collect();
                let (collect_start, producers) = (Position::START, vec![]);
                let event = CursorEvent::Collected { to, session, is_all, collect_start, cursors, producers };
                self.step(now, Event::Cursor(event), out);
            }
            Effect::ApplyCursors { number, images, deleted, .. } => {
                for image in images {
                    self.log.channels.insert(image.name.clone(), image);
                }
                for name in deleted {
                    self.log.channels.remove(&name);
                }
                self.log.queue.push_back(DiskOp::Cursors(self.log.channels.clone(), Some(number)));
            }
            Effect::CursorDone { request, result } => {
                let Some(operation) = self.operations.remove(&request) else { return };
                match result {
                    Ok(()) => out.push_back(NodeOutput::CursorAcked(operation)),
                    Err(_) => self.roll_back(now, operation, out),
                }
            }
            effect => out.push_back(NodeOutput::Effect(effect)),
        }
    }

    /// Appends what waits, if there is space.
    pub fn append_held(&mut self, out: &mut VecDeque<NodeOutput>) {
        while !self.is_full
            && let Some(batch) = self.held.pop_front()
        {
            self.log.append(batch.clone());
            out.push_back(NodeOutput::Appended(batch));
        }
    }

    /// The channel returns to where it was, under a higher generation.
    fn roll_back(&mut self, now: Ticks, operation: Operation, out: &mut VecDeque<NodeOutput>) {
        let generation = operation.image.generation + 1;
        let Some(current) = self.log.channels.get_mut(&operation.image.name) else { return };
        if current.generation > operation.image.generation {
            return;
        }
        *current = CursorImage { generation, ..operation.before };
        out.push_back(NodeOutput::Made(current.clone()));
        let channel = current.name.clone();
        self.log.queue.push_back(DiskOp::Cursors(self.log.channels.clone(), None));
        if self.member.epoch().is_some() {
            self.step(now, Event::Cursor(CursorEvent::Moved { channel }), out);
        }
    }

    /// The oldest disk operation is done.
    pub fn complete(&mut self, now: Ticks, out: &mut VecDeque<NodeOutput>) {
        let event = match self.log.complete() {
            Some(DiskOp::Append(_)) => Event::Durable,
            Some(DiskOp::Truncate(_) | DiskOp::Restart(_)) => Event::Truncated,
            Some(DiskOp::Epoch(epoch)) => Event::EpochDurable { epoch },
            Some(DiskOp::Cursors(_, Some(number))) => Event::Cursor(CursorEvent::Applied { number }),
            Some(DiskOp::Cursors(_, None) | DiskOp::Committed(_) | DiskOp::Doubted | DiskOp::Cleared) | None => return,
        };
        self.step(now, event, out);
    }
}

fn append(
    head: crate::codec::peer::message::Head,
    committed: Position,
    batches: Vec<bytes::Bytes>,
) -> crate::codec::peer::message::Message {
    use crate::codec::peer::message::{Append, Batches, Body, Message};
    Message { head, body: Body::Append(Append { committed, batches: Batches::new(batches) }) }
}
