//! Next record of a partition: an election first, then replicas that are too many, a hand-over, replicas that are missing.

use super::placement::another;
use super::worklist::Stage;
use super::{Controller, PartitionKey};
use crate::base::{NodeId, Ticks};
use crate::metadata::record::{Leader, PartitionRecord};
use crate::metadata::view::View;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// No work until a key changes.
    Rest,
    Wait(Stage),
    Write(Box<PartitionRecord>),
}

impl From<PartitionRecord> for Verdict {
    fn from(record: PartitionRecord) -> Verdict {
        Verdict::Write(Box::new(record))
    }
}

/// Whether the replica there lost nothing, as far as its node says.
fn is_sound(view: &View, at: PartitionKey, node: NodeId) -> bool {
    view.node(node).is_some_and(|e| !e.value.suspects.has(at))
}

fn is_in_session(view: &View, leader: Leader) -> bool {
    view.session(leader.node) == Some(leader.session)
}

impl Controller {
    pub(super) fn decide(&self, now: Ticks, view: &View, at: PartitionKey, record: &PartitionRecord) -> Verdict {
        let Some(topic) = view.topic_by_id(at.0).filter(|_| view.gone(at.0).is_none()) else { return Verdict::Rest };
        let leads = record.leader.is_some_and(|l| is_in_session(view, l) && !self.nodes.is_down(view, l.node));
        if !leads {
            return self.elect(now, view, at, record);
        }
        if record.former.is_some_and(|former| !is_in_session(view, former)) {
            return PartitionRecord { former: None, ..record.clone() }.into();
        }
        if record.min_isr != topic.value.record.min_isr {
            return PartitionRecord { min_isr: topic.value.record.min_isr, ..record.clone() }.into();
        }
        let wanted = usize::from(topic.value.record.replicas);
        if let Some(next) = self.remove(now, view, at, record, wanted) {
            return next;
        }
        if let Some(next) = self.hand_over(now, view, at, record) {
            return next;
        }
        self.add(now, view, at, record, wanted)
    }

    /// Elects a leader of the ISR whose node is alive. No leader rather than a wrong one.
    fn elect(&self, now: Ticks, view: &View, at: PartitionKey, record: &PartitionRecord) -> Verdict {
        let lives = |n: &NodeId| view.session(*n).is_some() && !self.nodes.is_down(view, *n);
        let alive: Vec<NodeId> = record.isr.iter().copied().filter(lives).collect();
        if alive.is_empty() {
            return Verdict::Rest;
        }
        let back = record.leader.map(|l| l.node).filter(|n| alive.contains(n) && is_sound(view, at, *n));
        // A node whose process has ended while its lease holds is no victim of a mass expiry.
        let is_held = self.nodes.is_held(now, record.isr.iter().copied().filter(|n| view.session(*n).is_none()));
        if is_held && back.is_none() {
            return Verdict::Wait(Stage::Held);
        }
        let resigned =
            record.replicas.iter().position(|n| record.leader.is_none() && view.session(*n) == Some(record.tag.session));
        // The turn goes round behind the node that resigned: two nodes that both resign must not elect each other for ever.
        let turn = |n: NodeId| {
            let place = record.replicas.iter().position(|r| *r == n).unwrap_or(0);
            resigned.map_or(place, |last| (place + record.replicas.len() - last - 1) % record.replicas.len())
        };
        let rank = |n: &NodeId| {
            let is_wanted = record.wanted == Some(*n);
            let keeps = Some(*n) == back;
            let is_welcome = resigned.is_some() || !view.is_draining(*n);
            (is_sound(view, at, *n), is_wanted, keeps, is_welcome, std::cmp::Reverse(turn(*n)))
        };
        let of = if is_held { back } else { alive.iter().copied().max_by_key(rank) };
        let Some(leader) = of.and_then(|node| Some(Leader { node, session: view.session(node)? })) else { return Verdict::Rest };
        // An absent node may have the only whole copy, when all others lost something.
        let may_shrink = !is_held && alive.len() >= usize::from(record.min_isr) && alive.iter().any(|n| is_sound(view, at, *n));
        let isr = if may_shrink { alive } else { record.isr.clone() };
        // A leader that waited for its own predecessor delivered nothing.
        let may_deliver = record.former.filter(|l| is_in_session(view, *l)).or(record.leader.filter(|l| is_in_session(view, *l)));
        let former = may_deliver.filter(|l| l.node != leader.node);
        PartitionRecord { epoch: record.epoch + 1, leader: Some(leader), isr, wanted: None, former, ..record.clone() }.into()
    }

    /// Whether a node is to keep its replicas.
    fn stays(&self, now: Ticks, view: &View, node: NodeId) -> bool {
        view.member(node).is_some() && !view.is_draining(node) && !self.nodes.is_late(now, node)
    }

    /// Whether this replica is to stay where it is.
    fn stays_in(&self, now: Ticks, view: &View, record: &PartitionRecord, node: NodeId) -> bool {
        record.leaving != Some(node) && self.stays(now, view, node)
    }

    /// Removes a surplus replica, once as many others that stay as the topic wants are in sync, alive and whole. A replica that should
    /// stay is removed only when no such replica is still catching up: it may be the one that was added.
    fn remove(&self, now: Ticks, view: &View, at: PartitionKey, record: &PartitionRecord, wanted: usize) -> Option<Verdict> {
        if record.replicas.len() <= wanted {
            return None;
        }
        let leader = record.leader.map(|l| l.node);
        let stays = |n: &NodeId| self.stays_in(now, view, record, *n);
        let good = |n: &NodeId| record.isr.contains(n) && is_sound(view, at, *n);
        let is_coming = |n: &NodeId| view.session(*n).is_some() && stays(n) && !record.isr.contains(n);
        let is_whole = !record.replicas.iter().any(is_coming);
        let others = |victim: NodeId| record.replicas.iter().filter(|n| **n != victim && stays(n) && good(n)).count();
        // A former leader may still deliver until its session has ended: it stays in the record until then.
        let may_go = |n: &NodeId| others(*n) >= wanted && (is_whole || !stays(n)) && record.former.is_none_or(|l| l.node != *n);
        let crowded = |n: NodeId| record.replicas.iter().filter(|r| zone(view, **r) == zone(view, n)).count();
        let rank = |n: &NodeId| (!stays(n), !good(n), crowded(*n), view.replica_count(*n) * 100 / capacity(view, *n), *n);
        let victim = record.replicas.iter().copied().filter(may_go).max_by_key(rank)?;
        if Some(victim) == leader {
            // First another one leads.
            let to = record.replicas.iter().copied().find(|n| *n != victim && good(n) && stays(n))?;
            return self.ask_leader(record, to);
        }
        let mut next = record.clone();
        let place = next.replicas.iter().position(|n| *n == victim)?;
        next.replicas.retain(|n| *n != victim);
        next.removals += 1;
        next.isr.retain(|n| *n != victim);
        next.wanted = next.wanted.filter(|n| *n != victim);
        next.leaving = next.leaving.filter(|n| *n != victim);
        if place == 0
            && let Some(last) = next.replicas.pop()
        {
            // The replica that was added for the victim takes its place as the first.
            next.replicas.insert(0, last);
        }
        Some(next.into())
    }

    fn ask_leader(&self, record: &PartitionRecord, to: NodeId) -> Option<Verdict> {
        if record.wanted == Some(to) {
            return None;
        }
        if record.wanted.is_none() && self.handing.len() >= self.options.hand_overs_max {
            return Some(Verdict::Wait(Stage::Postponed));
        }
        Some(PartitionRecord { wanted: Some(to), ..record.clone() }.into())
    }

    /// The first replica is to lead, when it is in sync and has been here for a while; never a node that is drained.
    fn hand_over(&self, now: Ticks, view: &View, at: PartitionKey, record: &PartitionRecord) -> Option<Verdict> {
        let leader = record.leader?.node;
        let is_fit = |n: &NodeId| record.isr.contains(n) && is_sound(view, at, *n) && self.stays_in(now, view, record, *n);
        if record.wanted.is_some_and(|to| to == leader || !is_fit(&to)) {
            return Some(PartitionRecord { wanted: None, ..record.clone() }.into());
        }
        if record.wanted.is_some() {
            return None;
        }
        let is_calm = |n: &NodeId| self.nodes.here_since(*n).is_some_and(|since| now >= since + self.options.calm);
        let first = record.replicas.iter().copied().find(|n| is_fit(n))?;
        let must = !self.stays_in(now, view, record, leader);
        if first == leader || !must && Some(&first) != record.replicas.first() {
            return None;
        }
        if !must && !is_calm(&first) {
            return Some(Verdict::Wait(Stage::Postponed));
        }
        self.ask_leader(record, first)
    }

    /// A replica on another node, for one that does not stay.
    fn add(&self, now: Ticks, view: &View, at: PartitionKey, record: &PartitionRecord, wanted: usize) -> Verdict {
        let staying = record.replicas.iter().filter(|n| self.stays_in(now, view, record, **n)).count();
        if staying >= wanted || record.replicas.len() >= crate::seam::membership::REPLICAS_MAX {
            return Verdict::Rest;
        }
        if !self.rebuilds.may_begin() && !self.rebuilds.has(at) {
            return Verdict::Wait(Stage::Queued);
        }
        match another(view, &self.nodes.down(view), &record.replicas) {
            Some(node) => {
                let mut next = record.clone();
                next.replicas.push(node);
                next.into()
            }
            None => Verdict::Wait(Stage::Short),
        }
    }
}

pub(super) fn zone(view: &View, node: NodeId) -> &str {
    view.member(node).map_or("", |e| e.value.zone.as_str())
}

pub(super) fn capacity(view: &View, node: NodeId) -> usize {
    view.member(node).map_or(1, |e| e.value.capacity.max(1) as usize)
}
