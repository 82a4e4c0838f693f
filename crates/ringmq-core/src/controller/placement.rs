//! Placement of replicas of new partitions, and of additional ones.
//!
//! The first replica of a partition is to lead it, so leaders are spread by spreading first replicas. Replicas of a partition stand on
//! different nodes always, and in different zones where there are enough.

use super::decide::{capacity, zone};
use crate::base::NodeId;
use crate::metadata::view::View;
use std::collections::{BTreeMap, BTreeSet};

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
    pub fn load(&self) -> usize {
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

/// The best node that has no replica of the partition.
pub(super) fn another(view: &View, down: &BTreeSet<NodeId>, replicas: &[NodeId]) -> Option<NodeId> {
    let free = places(view, down).into_iter().filter(|p| !replicas.contains(&p.node));
    let shared =
        |p: &NodeLoad| replicas.iter().filter(|r| view.session(**r).is_some() && zone(view, **r) == zone(view, p.node)).count();
    free.min_by_key(|p| (shared(p), p.load(), p.node)).map(|p| p.node)
}
