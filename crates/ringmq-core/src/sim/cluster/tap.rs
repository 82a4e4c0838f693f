//! Reads the messages between nodes, and checks the rules that only these messages show: `one_leader_writes_per_epoch`,
//! `one_batch_per_epoch_and_log_id`, `suspect_is_never_elected_alone`.

use super::check::Checker;
use super::meta::{Meta, TopicPartition};
use crate::base::Epoch;
use crate::codec::peer::frame::{FRAME_MAX, HEADER_LEN, Header};
use crate::codec::peer::message::{Batches, Body, Route};
use crate::codec::peer::{Addressed, Frame};
use crate::format::batch::BatchHeader;
use crate::format::snapshot::Doubt;
use crate::{base::NodeId, codec::peer::error::PeerError};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Sender and receiver of a message.
#[derive(Clone, Copy)]
pub struct Talk {
    pub from: NodeId,
    pub life: u64,
    pub to: NodeId,
}

#[derive(Default)]
pub struct Tap {
    /// Bytes of an incomplete frame, by connection and side.
    rest: BTreeMap<(u64, usize), Vec<u8>>,
    leaders: BTreeMap<(TopicPartition, Epoch), (NodeId, u64)>,
    /// Lives of nodes that were in step with a leader of the partition, or decided as they may.
    compared: BTreeSet<(NodeId, u64, TopicPartition)>,
    /// Replicas that reported their standing to a leader, in its epoch, and whether they are suspect.
    stood: BTreeMap<(TopicPartition, Epoch), BTreeMap<NodeId, bool>>,
    /// Partitions of which an operator chose the log.
    pub decided: BTreeSet<TopicPartition>,
    pub batches: u64,
    /// Cursors that a follower kept in memory, as they lie beyond its end.
    pub clamped: u64,
    /// Messages for a readable trace.
    pub said: Option<Vec<String>>,
}

impl Tap {
    /// `doubt`: the loss that the sender's recovery found in its log of a partition.
    pub fn heard(
        &mut self,
        at: (u64, usize),
        talk: Talk,
        bytes: &[u8],
        meta: &Meta,
        check: &mut Checker,
        doubt: &dyn Fn(TopicPartition) -> Doubt,
    ) {
        let mut all = self.rest.remove(&at).unwrap_or_default();
        all.extend_from_slice(bytes);
        let mut from = 0;
        while let Some((header, metadata)) = Header::parse(&all[from..], FRAME_MAX).expect("nodes send sound frames") {
            let Some(frame) = all[from..].get(..header.frame_len()) else { break };
            let payload = Bytes::copy_from_slice(&frame[HEADER_LEN + header.meta_len..]);
            header.check_payload(&payload).expect("nodes send sound payloads");
            from += header.frame_len();
            if let Frame::Messages(messages) = Frame::decode(&header, metadata, &payload).expect("nodes send known frames") {
                for addressed in &messages {
                    self.message(talk, addressed, meta, check, doubt);
                }
            }
        }
        all.drain(..from);
        if !all.is_empty() {
            self.rest.insert(at, all);
        }
    }

    pub fn forget(&mut self, wire: u64) {
        self.rest.remove(&(wire, 0));
        self.rest.remove(&(wire, 1));
    }

    fn message(&mut self, talk: Talk, of: &Addressed, meta: &Meta, check: &mut Checker, doubt: &dyn Fn(TopicPartition) -> Doubt) {
        let Some(key) = meta.key(of.route) else { return };
        let epoch = of.message.head.epoch;
        if let Some(said) = &mut self.said {
            let (from, to, session) = (meta.index(talk.from), meta.index(talk.to), of.message.head.session.0);
            let body = brief(&of.message.body);
            said.push(format!("node{from} to node{to}: {key:?} epoch {} session {session} {body}", epoch.0));
        }
        match &of.message.body {
            Body::Standing(standing) => {
                self.stood.entry((key, epoch)).or_default().insert(talk.from, standing.suspect);
            }
            Body::Aligned(_) => drop(self.compared.insert((talk.from, talk.life, key))),
            Body::Pulled(pulled) => self.batches_of(key, of.route, &pulled.batches, check, &mut |_| {}),
            Body::Inquire(_) | Body::EpochsAsk(_) | Body::Align(_) | Body::Append(_) | Body::Cursors(_) => {
                let leader = (talk.from, talk.life);
                let known = *self.leaders.entry((key, epoch)).or_insert(leader);
                assert_eq!(known, leader, "one_leader_writes_per_epoch: {key:?} {epoch:?}");
                match &of.message.body {
                    Body::Append(append) => self.batches_of(key, of.route, &append.batches, check, &mut |_| {}),
                    // It has decided which log is the one.
                    Body::Align(_) if doubt(key).is_suspect() => {
                        self.may_decide((talk.from, talk.life), key, epoch, meta, doubt(key))
                    }
                    _ => {}
                }
            }
            // A follower asks its leader for damaged batches.
            Body::Pull(_) => {}
            Body::CursorsAck(ack) => self.clamped += (ack.result == Err(PeerError::Clamped)) as u64,
            Body::Ack(_)
            | Body::Refused(_)
            | Body::Forward(_)
            | Body::Forwarded(_)
            | Body::Relay(_)
            | Body::Change(_)
            | Body::Changed(_) => {}
        }
    }

    /// A node asks for another ISR than the store's: it has decided which log counts. If the others are away it does that without any
    /// message.
    pub fn proposes(&mut self, from: NodeId, life: u64, key: TopicPartition, meta: &Meta, doubt: Doubt) {
        let epoch = meta.entries[&key].now.epoch;
        if doubt.is_suspect() && self.leaders.get(&(key, epoch)).is_none_or(|leader| *leader == (from, life)) {
            self.may_decide((from, life), key, epoch, meta, doubt);
        }
    }

    /// A node whose recovery found its log suspect leads: it must have heard a sound member of the ISR, or the whole ISR. Alone in the
    /// ISR it may lead if it only truncated a torn tail.
    fn may_decide(&mut self, (from, life): (NodeId, u64), key: TopicPartition, epoch: Epoch, meta: &Meta, doubt: Doubt) {
        let newest = &meta.entries[&key].now;
        if self.compared.contains(&(from, life, key)) || newest.epoch > epoch || self.decided.contains(&key) {
            return;
        }
        let nobody = BTreeMap::new();
        let stood = self.stood.get(&(key, epoch)).unwrap_or(&nobody);
        let others: Vec<NodeId> = newest.isr.iter().copied().filter(|n| *n != from).collect();
        let is_sound = others.iter().any(|n| stood.get(n) == Some(&false));
        let is_all = (!others.is_empty() || doubt == Doubt::Torn) && others.iter().all(|n| stood.contains_key(n));
        assert!(is_sound || is_all, "suspect_is_never_elected_alone: {from} {key:?} {epoch:?}, heard {stood:?}");
        self.compared.insert((from, life, key));
    }

    fn batches_of(
        &mut self,
        key: TopicPartition,
        route: Route,
        batches: &Batches,
        check: &mut Checker,
        each: &mut dyn FnMut(&BatchHeader),
    ) {
        for run in &batches.parts {
            let mut rest = &run[..];
            while !rest.is_empty() {
                let h = BatchHeader::parse(rest, route.topic_id, route.partition).expect("nodes send whole batches");
                if !h.is_lost() {
                    check.batch(key, &h);
                }
                each(&h);
                self.batches += 1;
                rest = rest.get(h.stored_len()..).expect("nodes send whole batches");
            }
        }
    }
}

/// A message without the bytes of its batches.
fn brief(body: &Body) -> String {
    match body {
        Body::Append(a) => format!("Append of {} bytes, committed {}", a.batches.len(), a.committed.offset),
        Body::Pulled(p) => format!("Pulled from {}, {} bytes", p.from.offset, p.batches.len()),
        Body::Forward(f) => format!("Forward {} of {} messages", f.asker.ticket, f.bodies.count()),
        Body::Cursors(c) => format!("Cursors {} flush {}, {} of them", c.seq, c.flush, c.cursors.len()),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{LogId, PartitionId, Position, TopicId};
    use crate::format::batch::{BATCH_HEADER_LEN, Batch};

    /// Seed 88120260001725: of a lost batch the header alone is stored and sent, and the next batch begins right behind it.
    #[test]
    fn a_batch_behind_a_lost_one_is_heard() {
        let route = Route { topic_id: TopicId([7; 16]), partition: PartitionId(0) };
        let mut at = Position { offset: 0, count: 0, log_id: LogId(1) };
        let mut run = vec![];
        for len in [1000, 300, 700] {
            let to = Position { offset: at.offset + len, count: at.count + 1, log_id: LogId(at.log_id.0 + 1) };
            let lost = Batch::lost(route.topic_id, route.partition, Epoch(1), at, to, 0).expect("there is room for a header");
            run.extend_from_slice(&lost.bytes);
            at = to;
        }
        assert_eq!(run.len(), 3 * BATCH_HEADER_LEN);
        let (mut tap, mut check, mut heard) = (Tap::default(), Checker::new(1), vec![]);
        let batches = Batches::new(vec![run.into()]);
        tap.batches_of((0, 0), route, &batches, &mut check, &mut |h| heard.push(h.len()));
        assert_eq!(heard, [1000, 300, 700]);
    }
}
