//! Listens to what nodes send each other, and holds the rules that only their talk shows:
//! `one_leader_writes_per_epoch`, `one_batch_per_epoch_and_log_id`, `suspect_is_never_elected_alone`.

use super::check::Checker;
use super::meta::{Key, Meta};
use crate::base::Epoch;
use crate::codec::peer::frame::{FRAME_MAX, HEADER_LEN, Header};
use crate::codec::peer::{Addressed, Frame};
use crate::log::batch::BatchHeader;
use crate::replica::NodeId;
use crate::replica::message::{Batches, Body, Route};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Who says something, and to whom.
#[derive(Clone, Copy)]
pub struct Talk {
    pub from: NodeId,
    pub life: u64,
    pub to: NodeId,
    pub to_life: u64,
}

#[derive(Default)]
pub struct Tap {
    /// Of each connection and side, bytes of a frame that is not whole.
    rest: BTreeMap<(u64, usize), Vec<u8>>,
    leaders: BTreeMap<(Key, Epoch), (NodeId, u64)>,
    /// Lives of nodes that have compared their log of a partition with another's.
    compared: BTreeSet<(NodeId, u64, Key)>,
    pub batches: u64,
    /// What was said, for a readable trace.
    pub said: Option<Vec<String>>,
}

impl Tap {
    /// `is_suspect`: whether the sender's recovery found its log of this partition suspect.
    pub fn heard(
        &mut self,
        at: (u64, usize),
        talk: Talk,
        bytes: &[u8],
        meta: &Meta,
        check: &mut Checker,
        is_suspect: &dyn Fn(Key) -> bool,
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
                    self.message(talk, addressed, meta, check, is_suspect);
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

    fn message(&mut self, talk: Talk, of: &Addressed, meta: &Meta, check: &mut Checker, is_suspect: &dyn Fn(Key) -> bool) {
        let Some(key) = meta.key(of.route) else { return };
        let epoch = of.message.head.epoch;
        if let Some(said) = &mut self.said {
            let (from, to, session) = (meta.index(talk.from), meta.index(talk.to), of.message.head.session.0);
            let body = brief(&of.message.body);
            said.push(format!("node{from} to node{to}: {key:?} epoch {} session {session} {body}", epoch.0));
        }
        match &of.message.body {
            Body::Standing(_) => drop(self.compared.insert((talk.to, talk.to_life, key))),
            Body::Aligned(_) => drop(self.compared.insert((talk.from, talk.life, key))),
            Body::Pulled(pulled) => self.batches_of(key, of.route, &pulled.batches, check, &mut |_| {}),
            Body::Inquire(_) | Body::EpochsAsk(_) | Body::Pull(_) | Body::Align(_) | Body::Append(_) | Body::Cursors(_) => {
                let leader = (talk.from, talk.life);
                let known = *self.leaders.entry((key, epoch)).or_insert(leader);
                assert_eq!(known, leader, "one_leader_writes_per_epoch: {key:?} {epoch:?}");
                if let Body::Append(append) = &of.message.body {
                    let is_compared = self.compared.contains(&(talk.from, talk.life, key)) || !is_suspect(key);
                    self.batches_of(key, of.route, &append.batches, check, &mut |h| {
                        let is_own = Epoch(h.epoch.get()) == epoch;
                        assert!(is_compared || !is_own, "suspect_is_never_elected_alone: {} {key:?} {epoch:?}", talk.from);
                    });
                }
            }
            Body::Ack(_) | Body::CursorsAck(_) | Body::Refused(_) => {}
        }
    }

    fn batches_of(&mut self, key: Key, route: Route, batches: &Batches, check: &mut Checker, each: &mut dyn FnMut(&BatchHeader)) {
        for run in &batches.0 {
            let mut rest = &run[..];
            while !rest.is_empty() {
                let h = BatchHeader::parse(rest, route.topic_id, route.partition).expect("nodes send whole batches");
                if !h.is_lost() {
                    check.batch(key, &h);
                }
                each(&h);
                self.batches += 1;
                rest = &rest[h.len().min(rest.len())..];
            }
        }
    }
}

/// A message without the bytes of its batches.
fn brief(body: &Body) -> String {
    match body {
        Body::Append(a) => format!("Append of {} bytes, committed {}", a.batches.len(), a.committed.offset),
        Body::Pulled(p) => format!("Pulled from {}, {} bytes", p.from.offset, p.batches.len()),
        Body::Cursors(c) => format!("Cursors {} flush {}, {} of them", c.seq, c.flush, c.cursors.len()),
        other => format!("{other:?}"),
    }
}
