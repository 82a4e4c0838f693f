//! Moves of replicas and leaders that even the distribution out. It is looked at at intervals, while the cluster is calm.

use super::PartitionKey;
use super::decide::zone;
use super::load::Relief;
use super::placement::NodeLoad;
use crate::base::Ticks;
use crate::metadata::record::PartitionRecord;
use crate::metadata::view::{Entry, View};
use std::collections::BTreeMap;
use std::time::Duration;

/// Interval at which the balance of the distribution is looked at.
const BALANCE_EVERY: Duration = Duration::from_secs(10);
/// Partitions that one look at the distribution moves, at most.
const MOVES_MAX: usize = 16;

/// A record that evens the load out, if nothing changes it before.
#[derive(Debug)]
pub(super) struct Move {
    pub at: PartitionKey,
    pub seen: u64,
    pub next: PartitionRecord,
}

#[derive(Debug, Default)]
pub(super) struct Balance {
    /// Time of the next look.
    next_at: Ticks,
    /// Moves that the last look found.
    moves: BTreeMap<PartitionKey, Move>,
    relief: Relief,
}

impl Balance {
    pub fn next_at(&self) -> Ticks {
        self.next_at
    }

    /// The next look is an interval away.
    pub fn put_off(&mut self, now: Ticks) {
        self.next_at = now + BALANCE_EVERY;
    }

    /// Looks for moves: no more than `moves_max` replicas, and a leader for its load if `may_relieve`. Gives the partitions to look at.
    pub fn look(
        &mut self,
        view: &View,
        places: &[NodeLoad],
        moves_max: usize,
        may_relieve: bool,
    ) -> impl Iterator<Item = PartitionKey> {
        let mut moves = balance_numbers(view, places, moves_max);
        if moves.is_empty() && may_relieve {
            moves.extend(self.relief.find(view, places));
        }
        self.moves = moves.into_iter().map(|m| (m.at, m)).collect();
        self.moves.keys().copied()
    }

    pub fn forget(&mut self) {
        self.moves.clear();
    }

    /// Takes the move of the partition, if its record has not changed since.
    pub fn take(&mut self, at: PartitionKey, record: &Entry<PartitionRecord>) -> Option<PartitionRecord> {
        self.moves.remove(&at).filter(|m| m.seen == record.mod_revision).map(|m| m.next)
    }
}

/// Moves that make the numbers a little more even.
fn balance_numbers(view: &View, places: &[NodeLoad], moves_max: usize) -> Vec<Move> {
    let by_load = |p: &&NodeLoad| (p.load(), p.node);
    let (Some(full), Some(under)) = (places.iter().max_by_key(by_load), places.iter().min_by_key(by_load)) else {
        return vec![];
    };
    let over = full.node;
    // A move has to make the balance better by a tenth.
    let step = 100_000 / under.capacity.min(full.capacity);
    if full.load() <= under.load() + 2 * step || full.load() * 10 <= under.load() * 11 {
        return balance_leaders(view, places);
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
    let most = ((full.load() - under.load()) / (2 * step)).clamp(1, MOVES_MAX).min(moves_max);
    view.replicas_of(over).filter_map(|at| fits(&at)).take(most).collect()
}

/// Balances leaders, with replicas even already: a node that is first in too many partitions makes other replicas the first. Each
/// move counts before the next is chosen, so that no node gets more leaders than its share.
fn balance_leaders(view: &View, places: &[NodeLoad]) -> Vec<Move> {
    let Some(most) = places.iter().max_by_key(|p| (p.lead(), p.node)) else { return vec![] };
    let step = 100_000 / most.capacity;
    let (mut top, mut leads) = (most.lead(), places.iter().map(|p| (p.node, (p.lead(), p.capacity))).collect::<BTreeMap<_, _>>());
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
