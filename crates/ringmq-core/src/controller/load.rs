//! Moves of leaders by published load, where the counts of leaders are even.
//!
//! Nodes report their load seldom (`load/<node id>`), and one leader moves at a time: the busiest node makes another replica of one of
//! its busiest partitions the first. These rules prevent oscillation:
//! - The busiest node has one and a half times the load of the least busy one, and [`GAP_KIB_PER_S`] more.
//! - The other node stays below the busiest one by the move.
//! - The counts of leaders stay as even as the balance by counts leaves them.
//! - A relieved node is considered again after its next load report.

use super::PartitionKey;
use super::balance::Move;
use super::placement::NodeLoad;
use crate::base::NodeId;
use crate::metadata::view::View;
use std::collections::BTreeMap;

/// Difference between two nodes that is worth a move.
const GAP_KIB_PER_S: u64 = 1024;

fn kib(view: &View, node: NodeId) -> u64 {
    view.load(node).map_or(0, |e| e.value.kib_per_s.into())
}

#[derive(Debug, Default)]
pub(super) struct Relief {
    /// Revision of the load report for which a leader moved away from the node. Its next report shows the effect.
    relieved: BTreeMap<NodeId, u64>,
}

impl Relief {
    /// Move of one leader that balances the load.
    pub fn find(&mut self, view: &View, places: &[NodeLoad]) -> Option<Move> {
        // Per mille of an ordinary node's capacity, so that different nodes compare.
        let share = |p: &NodeLoad| kib(view, p.node) * 100 / p.capacity as u64;
        let most = places.iter().max_by_key(|p| (share(p), p.node))?;
        let least = places.iter().min_by_key(|p| (share(p), p.node))?;
        let (top, low) = (share(most), share(least));
        if top * 2 < low * 3 || top < low + GAP_KIB_PER_S {
            return None;
        }
        let told = view.load(most.node)?;
        if self.relieved.get(&most.node) == Some(&told.mod_revision) {
            return None;
        }
        let step = |p: &NodeLoad| 100_000 / p.capacity;
        let found = told.value.busiest.iter().find_map(|busy| {
            let at: PartitionKey = (busy.topic, busy.partition);
            let entry = view.partition(at.0, at.1)?;
            let record = &entry.value;
            let leads = record.leader.is_some_and(|l| l.node == most.node) && record.replicas.first() == Some(&most.node);
            if !leads || record.isr.len() != record.replicas.len() || record.wanted.is_some() {
                return None;
            }
            let fits = |p: &&NodeLoad| {
                let added = u64::from(busy.kib_per_s) * 100 / p.capacity as u64;
                let is_less = share(p) + added < top;
                let is_even = p.lead() + step(p) <= most.lead() + step(most);
                p.node != most.node && record.replicas.contains(&p.node) && is_less && is_even
            };
            let to = places.iter().filter(fits).min_by_key(|p| (share(p), p.node))?;
            let mut next = record.clone();
            let place = next.replicas.iter().position(|n| *n == to.node)?;
            next.replicas.swap(0, place);
            Some(Move { at, seen: entry.mod_revision, next })
        })?;
        self.relieved.insert(most.node, told.mod_revision);
        Some(found)
    }
}
