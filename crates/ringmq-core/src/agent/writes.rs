//! Writes of a leader about its partition: its ISR, an epoch, that it leads no longer. A partition has one write under way at a time.

use super::{Agent, Effect, Purpose};
use crate::base::{Epoch, NodeId, Ticks, TopicId};
use crate::codec::peer::message::Route;
use crate::metadata::keys::Key;
use crate::metadata::record::{GivenUpRecord, Leader, PartitionRecord, Tag, decode, encode};
use crate::metadata::request::{Compare, KeyValue, Op, Request, Txn};
use crate::seam::cluster::{Ask, Fact};
use crate::seam::membership::{EPOCH_BASE, GivenUp};
use std::collections::{BTreeMap, BTreeSet};

/// Writes on their way, at most; the others wait.
const FLIGHTS_MAX: usize = 64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Intent {
    /// The ISR, while the record is of this version.
    Isr { version: u64, isr: Vec<NodeId> },
    /// A loss that an operator accepted.
    GiveUp { loss: GivenUp },
    /// An epoch above this one.
    Epoch { above: Epoch },
    /// The session leads no more, and another node does at once if that one is in sync and alive. This one served nothing when it asked.
    Resign { to: Option<NodeId> },
    /// Announce that this node serves nothing more of its former leadership.
    Release,
    /// The record anew.
    Read,
    /// The record anew, to know whether it is of this version.
    Leave { version: u64 },
}

impl Intent {
    fn is_write(&self) -> bool {
        !matches!(self, Intent::Read | Intent::Leave { .. })
    }
}

/// A write whose outcome is not known yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flight {
    at: (TopicId, u16),
    intent: Intent,
    tag: Tag,
}

#[derive(Debug, Default)]
pub(super) struct Writes {
    /// The newest intent of each kind that matters; an older one of the partition that was not begun is dropped with an answer.
    waiting: BTreeMap<(TopicId, u16), Intent>,
    flying: BTreeSet<(TopicId, u16)>,
    number: u64,
}

fn at(route: Route) -> (TopicId, u16) {
    (route.topic_id, route.partition.0)
}

impl Agent {
    pub(super) fn ask(&mut self, ask: Ask, out: &mut Vec<Effect>) {
        let (at, intent) = match ask {
            Ask::Propose { route, version, isr } => (at(route), Intent::Isr { version, isr }),
            Ask::GiveUp { route, loss } => (at(route), Intent::GiveUp { loss }),
            Ask::AskEpoch { route, above } => (at(route), Intent::Epoch { above }),
            Ask::Refresh { route } => (at(route), Intent::Read),
            Ask::Resign { route, to } => (at(route), Intent::Resign { to }),
            Ask::Release { route } => (at(route), Intent::Release),
            Ask::Leave { route, version } => (at(route), Intent::Leave { version }),
            // CreateTopic comes as an `Admin::CreateTopic`; the others concern no partition's record.
            Ask::CreateTopic { .. } | Ask::PeerLost { .. } | Ask::Doubt { .. } => return,
        };
        let waiting = self.writes.waiting.get(&at);
        // Everything else answers with the record, too.
        if intent == Intent::Read && waiting.is_some() {
            return;
        }
        if let Some(before) = self.writes.waiting.insert(at, intent) {
            self.refuse(at, &before, out);
        }
    }

    fn refuse(&self, (topic_id, number): (TopicId, u16), intent: &Intent, out: &mut Vec<Effect>) {
        let route = Route { topic_id, partition: crate::base::PartitionId(number) };
        match intent {
            Intent::Isr { version, .. } => out.push(Effect::Fact(Fact::ProposalRefused { route, version: *version })),
            _ => out.extend(self.told.partition(&self.view, (topic_id, number)).map(Effect::Fact)),
        }
    }

    pub(super) fn start_writes(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        let ready = |at: &&(TopicId, u16)| !self.writes.flying.contains(at);
        let room = FLIGHTS_MAX.saturating_sub(self.writes.flying.len());
        let begin: Vec<(TopicId, u16)> = self.writes.waiting.keys().filter(ready).take(room).copied().collect();
        for at in begin {
            let Some(intent) = self.writes.waiting.remove(&at) else { continue };
            match self.txn_of(at, &intent) {
                Some((tag, txn)) => {
                    self.writes.flying.insert(at);
                    self.send(now, Purpose::Write(Flight { at, intent, tag }), Request::Txn(txn), out);
                }
                None => self.refuse(at, &intent, out),
            }
        }
    }

    /// Transaction for an intent. `None`: by the view it cannot be done.
    fn txn_of(&mut self, at: (TopicId, u16), intent: &Intent) -> Option<(Tag, Txn)> {
        let layout = self.view.layout();
        let key = layout.key(&Key::Partition(at.0, at.1));
        let mut otherwise = vec![Op::Get { key: key.clone() }];
        if *intent == Intent::Read {
            // Nothing has revision 0 and is there: it reads.
            let compares = vec![Compare::Value { key: key.clone(), is: bytes::Bytes::new() }];
            return Some((Tag::default(), Txn { compares, then: vec![], otherwise }));
        }
        if let Intent::Leave { version } = intent {
            let cluster = Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() };
            let compares = vec![cluster, Compare::ModRevision { key, is: version >> 1 }];
            return Some((Tag::default(), Txn { compares, then: vec![], otherwise }));
        }
        let session = self.session.live()?;
        let (me, entry) = (self.options.me, self.view.partition(at.0, at.1)?);
        let record = &entry.value;
        let is_asker = match intent {
            Intent::Release => record.former.is_some_and(|l| l.node == me),
            _ => record.leader.is_some_and(|l| l.node == me && l.session == session),
        };
        if !is_asker {
            return None;
        }
        let of_node = |node: NodeId, is: u64| Compare::CreateRevision { key: layout.key(&Key::Node(node)), is };
        let mut compares = vec![
            Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() },
            Compare::ModRevision { key: key.clone(), is: entry.mod_revision },
            of_node(me, session),
        ];
        let mut next = record.clone();
        match intent {
            Intent::Isr { version, isr } => {
                if *version != entry.mod_revision << 1 || isr.is_empty() {
                    return None;
                }
                for joiner in isr.iter().filter(|n| !record.isr.contains(n)) {
                    compares.push(of_node(*joiner, self.view.session(*joiner)?));
                }
                next.isr = isr.clone();
            }
            Intent::GiveUp { loss } => {
                let known = record.given_up.map_or(0, |known| known.epoch);
                next.given_up = Some(GivenUpRecord::of(loss)?).filter(|next| next.epoch > known);
                next.given_up?;
            }
            Intent::Epoch { above } => {
                // An epoch of a static file, or of a stand-alone node, is below all epochs of the store.
                let above = above.0.saturating_sub(EPOCH_BASE);
                next.epoch = record.epoch.max(above) + 1;
            }
            Intent::Resign { to } => {
                let is_fit = |node: &NodeId| *node != me && record.isr.contains(node);
                let named = to.filter(is_fit).and_then(|node| Some(Leader { node, session: self.view.session(node)? }));
                next.leader = named;
                if let Some(leader) = named {
                    compares.push(of_node(leader.node, leader.session));
                    otherwise.push(Op::Get { key: layout.key(&Key::Node(leader.node)) });
                    (next.epoch, next.wanted) = (record.epoch + 1, None);
                }
            }
            Intent::Release => next.former = None,
            Intent::Read | Intent::Leave { .. } => {}
        }
        self.writes.number += 1;
        next.tag = Tag { session, number: self.writes.number };
        let then = vec![Op::Put { key, value: encode(&next), lease: None }];
        next.is_sane().then_some((next.tag, Txn { compares, then, otherwise }))
    }

    pub(super) fn wrote(
        &mut self,
        now: Ticks,
        flight: Flight,
        (succeeded, reads): (bool, Vec<Option<KeyValue>>),
        (request, revision): (&Request, u64),
        out: &mut Vec<Effect>,
    ) {
        let Flight { at, intent, tag } = flight;
        self.writes.flying.remove(&at);
        if succeeded {
            self.learn_txn(now, request, true, reads, revision, out);
            if let Intent::Leave { version } = intent {
                let route = Route { topic_id: at.0, partition: crate::base::PartitionId(at.1) };
                out.push(Effect::Fact(Fact::MayLeave { route, version }));
            }
            return;
        }
        let record = reads.first().and_then(Option::as_ref).and_then(|kv| decode::<PartitionRecord>(&kv.value).ok());
        let is_done = intent.is_write() && record.as_ref().is_some_and(|r| r.tag == tag);
        let before = self.view.mod_revision(&Key::Partition(at.0, at.1));
        self.learn_txn(now, request, false, reads, revision, out);
        if is_done {
            return;
        }
        let has_changed = before != self.view.mod_revision(&Key::Partition(at.0, at.1));
        match intent {
            // Still to be done, on top of the new record; not if the record is unchanged.
            Intent::GiveUp { .. } | Intent::Epoch { .. } | Intent::Resign { .. } | Intent::Release if has_changed => {
                self.writes.waiting.entry(at).or_insert(intent);
            }
            _ => self.refuse(at, &intent, out),
        }
    }

    /// The store will not carry it out.
    pub(super) fn write_refused(&mut self, flight: Flight, out: &mut Vec<Effect>) {
        self.writes.flying.remove(&flight.at);
        self.refuse(flight.at, &flight.intent, out);
    }
}
