//! Placement of replicas of new partitions, of additional ones, and of those that move to even the load out.
//!
//! The first replica of a partition is to lead it, so leaders are spread by spreading first replicas. Replicas of a partition stand on
//! different nodes always, and in different zones where there are enough.

use super::decide::{capacity, zone};
use super::{Controller, PartitionKey};
use crate::base::{NodeId, Ticks};
use crate::metadata::record::PartitionRecord;
use crate::metadata::view::View;
use std::collections::{BTreeMap, BTreeSet};

/// Partitions that one look at the distribution moves, at most.
const MOVES_MAX: usize = 16;
/// Sum of all nodes' loads, in KiB per second, below which loads say nothing.
const WEIGHED_KIB_PER_S: usize = 1024;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{alive} nodes can take replicas, and {needed} are needed: start more nodes, or ask for fewer in-sync replicas")]
pub struct TooFewNodes {
    pub alive: usize,
    pub needed: usize,
}

#[derive(Clone, Debug)]
pub(super) struct NodeLoad {
    pub node: NodeId,
    zone: usize,
    pub capacity: usize,
    replicas: usize,
    firsts: usize,
    /// The node's published load as a number of leaders of average partitions.
    weight: usize,
}

impl NodeLoad {
    /// Replicas per mille of the node's capacity, so that nodes of different capacities compare.
    fn load(&self) -> usize {
        self.replicas * 100_000 / self.capacity
    }

    pub fn lead(&self) -> usize {
        self.firsts * 100_000 / self.capacity
    }

    /// Leaders on the node, or the load published to them where that is more, relative to its capacity.
    fn burden(&self) -> usize {
        self.firsts.max(self.weight) * 100_000 / self.capacity
    }
}

/// A record that evens the load out, if nothing changes it before.
#[derive(Debug)]
pub(super) struct Move {
    pub at: PartitionKey,
    pub seen: u64,
    pub next: PartitionRecord,
}

/// Nodes that are alive and not drained, without those whose process is taken for ended.
pub(super) fn places(view: &View, down: &BTreeSet<NodeId>) -> Vec<NodeLoad> {
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    let is_usable = |n: &NodeId| view.member(*n).is_some() && !view.is_draining(*n) && !down.contains(n);
    let usable = view.nodes().map(|(node, _)| node).filter(is_usable);
    usable
        .map(|node| {
            let count = zones.len();
            let zone = *zones.entry(zone(view, node)).or_insert(count);
            let (replicas, firsts) = (view.replica_count(node), view.first_count(node));
            NodeLoad { node, zone, capacity: capacity(view, node), replicas, firsts, weight: 0 }
        })
        .collect()
}

/// Sets the weights, where there is enough to weigh.
fn weigh(view: &View, places: &mut [NodeLoad]) {
    let kib = |place: &NodeLoad| view.load(place.node).map_or(0, |e| e.value.kib_per_s as usize);
    let (sum, firsts) = places.iter().fold((0, 0), |(sum, firsts), p| (sum + kib(p), firsts + p.firsts));
    if sum >= WEIGHED_KIB_PER_S {
        places.iter_mut().for_each(|p| p.weight = kib(p) * firsts / sum);
    }
}

/// Replicas of `partitions` new partitions, the first of each to lead. Fewer than `replicas` where there are fewer nodes, but at least
/// `needed`. None on the nodes of `down`.
pub fn place(
    view: &View,
    down: &BTreeSet<NodeId>,
    partitions: u16,
    replicas: usize,
    needed: usize,
) -> Result<Vec<Vec<NodeId>>, TooFewNodes> {
    let mut places = places(view, down);
    weigh(view, &mut places);
    if places.len() < needed.max(1) {
        return Err(TooFewNodes { alive: places.len(), needed: needed.max(1) });
    }
    let count = replicas.min(places.len());
    let mut of_zone = vec![0usize; places.iter().map(|p| p.zone + 1).max().unwrap_or(0)];
    let mut taken = Vec::with_capacity(count);
    let all = (0..partitions).map(|_| {
        of_zone.fill(0);
        taken.clear();
        while taken.len() < count {
            let is_first = taken.is_empty();
            let free = (0..places.len()).filter(|i| !taken.contains(i));
            let rank = |i: &usize| {
                let p = &places[*i];
                let lead = if is_first { p.burden() } else { 0 };
                // Behind the least loaded ones, those that lead most follow least.
                (of_zone[p.zone], lead, p.load(), p.lead(), p.node)
            };
            let Some(next) = free.min_by_key(rank) else { break };
            of_zone[places[next].zone] += 1;
            places[next].replicas += 1;
            places[next].firsts += usize::from(is_first);
            places[next].weight += usize::from(is_first);
            taken.push(next);
        }
        taken.iter().map(|i| places[*i].node).collect()
    });
    Ok(all.collect())
}

impl Controller {
    /// The best node that has no replica of the partition.
    pub(super) fn another(&self, view: &View, replicas: &[NodeId]) -> Option<NodeId> {
        let free = places(view, &self.down(view)).into_iter().filter(|p| !replicas.contains(&p.node));
        let shared = |p: &NodeLoad| {
            replicas.iter().filter(|r| view.session(**r).is_some() && zone(view, **r) == zone(view, p.node)).count()
        };
        free.min_by_key(|p| (shared(p), p.load(), p.node)).map(|p| p.node)
    }

    /// Whether the cluster is calm: nothing catches up, no absent node may still come back, and nothing is written at the moment. A
    /// replica that catches up for as long as a node may be away waits for an operator, or for a disk: the others do not wait for it.
    pub(super) fn is_calm(&self, now: Ticks) -> bool {
        let is_settled = self.away.keys().all(|node| self.replaced.contains(node));
        let is_stuck = |at: &PartitionKey| self.slow.get(at).is_some_and(|since| now >= *since + self.options.replace_after);
        self.rebuilding.iter().all(is_stuck) && is_settled && now >= self.held_until() && self.in_flight.is_empty()
    }

    /// Moves that make the load a little more even, as records to look at next. None while replicas catch up, or while a node that is away
    /// may still come back.
    pub(super) fn balance(&self, now: Ticks, view: &View) -> Vec<Move> {
        if !self.is_calm(now) {
            return vec![];
        }
        let places = places(view, &self.down(view));
        let by_load = |p: &&NodeLoad| (p.load(), p.node);
        let (Some(full), Some(under)) = (places.iter().max_by_key(by_load), places.iter().min_by_key(by_load)) else {
            return vec![];
        };
        let over = full.node;
        // A move has to make the balance better by a tenth.
        let step = 100_000 / under.capacity.min(full.capacity);
        if full.load() <= under.load() + 2 * step || full.load() * 10 <= under.load() * 11 {
            return self.balance_leaders(view, &places);
        }
        let fits = |at: &PartitionKey| {
            let entry = view.partition(at.0, at.1)?;
            let record = &entry.value;
            let others = || record.replicas.iter().filter(|n| **n != over);
            let is_new = !record.replicas.contains(&under.node);
            let keeps_zones =
                others().all(|n| zone(view, *n) != zone(view, under.node)) || zone(view, over) == zone(view, under.node);
            let is_whole = record.isr.len() == record.replicas.len() && record.wanted.is_none();
            (is_new && keeps_zones && is_whole).then(|| {
                let mut next = record.clone();
                next.replicas.push(under.node);
                Move { at: *at, seen: entry.mod_revision, next }
            })
        };
        let most = ((full.load() - under.load()) / (2 * step)).clamp(1, MOVES_MAX).min(self.options.rebuilds_max);
        view.replicas_of(over).filter_map(|at| fits(&at)).take(most).collect()
    }

    /// Balances leaders, with replicas even already: a node that is first in too many partitions makes other replicas the first. Each
    /// move counts before the next is chosen, so that no node gets more leaders than its share.
    fn balance_leaders(&self, view: &View, places: &[NodeLoad]) -> Vec<Move> {
        let Some(most) = places.iter().max_by_key(|p| (p.lead(), p.node)) else { return vec![] };
        let step = 100_000 / most.capacity;
        let (mut top, mut leads) =
            (most.lead(), places.iter().map(|p| (p.node, (p.lead(), p.capacity))).collect::<BTreeMap<_, _>>());
        let better = |at: PartitionKey| {
            let entry = view.partition(at.0, at.1)?;
            let record = &entry.value;
            let is_first = record.replicas.first() == Some(&most.node);
            let others = record.replicas.iter().skip(1).filter_map(|n| Some((leads.get(n)?.0, *n)));
            let (least, node) = others.min()?;
            (is_first && least + 2 * step < top && top * 10 > least * 11).then(|| {
                top -= step;
                leads.entry(node).and_modify(|(lead, capacity)| *lead += 100_000 / *capacity);
                let mut next = record.clone();
                let place = next.replicas.iter().position(|n| *n == node).unwrap_or(0);
                next.replicas.swap(0, place);
                Move { at, seen: entry.mod_revision, next }
            })
        };
        view.replicas_of(most.node).filter_map(better).take(MOVES_MAX / 4).collect()
    }
}
