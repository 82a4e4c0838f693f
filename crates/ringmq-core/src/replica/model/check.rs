//! Invariants at every moment, by the names of the simulator's checkers. Facts come in as they happen; a breach panics.

use super::log::{Channels, id_of};
use super::node::{Node, Operation};
use crate::base::{ChannelName, Epoch, LogId, Position};
use crate::format::batch::Batch;
use crate::format::cursor::CursorImage;
use crate::format::snapshot::Doubt;
use crate::format::tail::BatchId;
use crate::replica::LogView;
use crate::{base::NodeId, seam::membership::Membership};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Checker {
    /// Committed batches by offset.
    committed: BTreeMap<i64, BatchId>,
    batches: BTreeMap<(Epoch, LogId), BatchId>,
    writers: BTreeMap<Epoch, (NodeId, u64)>,
    acked: Vec<Batch>,
    pub acked_cursors: BTreeMap<ChannelName, Operation>,
    /// Every state that a leader's client, or the end of an operation, gave to a channel, in order.
    made: BTreeMap<ChannelName, Vec<CursorImage>>,
    /// Nodes whose disk lost something by a fault, until they were compared.
    pub lost: BTreeMap<NodeId, ()>,
    /// The latest epoch in which clients were served, and by whom.
    served: Option<(Epoch, NodeId)>,
    /// Starts of each node.
    pub lives: BTreeMap<NodeId, u64>,
}

impl Checker {
    pub fn acked(&self) -> usize {
        self.acked.len()
    }

    pub fn on_append(&mut self, batch: &Batch) {
        let id = id_of(batch);
        let known = self.batches.entry((id.epoch, id.log_id)).or_insert(id);
        assert_eq!(*known, id, "one_batch_per_epoch_and_log_id");
    }

    pub fn on_own_append(&mut self, node: NodeId, epoch: Epoch) {
        let life = self.lives.get(&node).copied().unwrap_or(0);
        let writer = self.writers.entry(epoch).or_insert((node, life));
        assert_eq!(*writer, (node, life), "one_leader_writes_per_epoch: {epoch:?}");
    }

    /// Clients are served there now.
    pub fn serves(&mut self, node: NodeId, epoch: Epoch) {
        let latest = *self.served.get_or_insert((epoch, node));
        assert!(epoch > latest.0 || (epoch, node) == latest, "one_leader_serves: {node} in {epoch:?}, after {latest:?}");
        self.served = Some((epoch, node));
    }

    pub fn on_committed(&mut self, node: &Node, end: Position) {
        assert!(node.log.durable().at.offset >= end.offset, "a replica commits what it has durably");
        for batch in node.log.batches.iter().take_while(|b| b.header.end().offset <= end.offset) {
            let id = id_of(batch);
            let known = self.committed.entry(batch.header.offset.get()).or_insert(id);
            assert_eq!(*known, id, "committed_prefixes_are_equal_bytes: offset {} on {}", batch.header.offset.get(), node.id);
        }
    }

    /// `isr`: of the store, now.
    pub fn on_acked(&mut self, nodes: &[Node], isr: &[NodeId], batch: Batch) {
        for node in nodes.iter().filter(|n| isr.contains(&n.id) && !self.lost.contains_key(&n.id)) {
            let has = node.log.disk.batches.iter().any(|b| b.header == batch.header);
            let is_below = batch.header.end().offset <= node.log.disk.start.at.offset;
            assert!(has || is_below, "acked_is_on_every_isr_disk: offset {} on {}", batch.header.offset.get(), node.id);
        }
        self.acked.push(batch);
    }

    pub fn on_opened(&self, nodes: &[Node], leader: &Node, epoch: Epoch, membership: &Membership) {
        let (committed, end) = (leader.member.committed(), leader.log.end().at);
        assert_eq!(committed, end, "nothing_is_written_before_the_tail_is_committed: {} in {epoch:?}", leader.id);
        for batch in &self.acked {
            let has = leader.log.batches.iter().any(|b| b.header == batch.header);
            let is_below = batch.header.end().offset <= leader.log.start().0.offset;
            assert!(has || is_below, "acked_survives: offset {} on {} in {epoch:?}", batch.header.offset.get(), leader.id);
        }
        // Data that a crash took from the only in-sync replica was never acknowledged.
        let is_torn_alone = leader.opened_in == Doubt::Torn && membership.isr == [leader.id];
        if leader.opened_in.is_suspect() && !is_torn_alone && membership.replicas.len() > 1 {
            let heard = |n: &&Node| n.id != leader.id && membership.is_in_sync(n.id) && n.log.disk.promised >= epoch;
            assert!(nodes.iter().any(|n| heard(&n)), "suspect_is_never_elected_alone: {} in {epoch:?}", leader.id);
        }
        for operation in self.acked_cursors.values() {
            assert!(
                self.is_kept(&leader.log.channels, operation),
                "set_offset_is_never_undone: {:?} on {}, which has {:?}",
                operation.image,
                leader.id,
                leader.log.channels.get(&operation.image.name)
            );
        }
    }

    pub fn on_cursor_acked(&mut self, nodes: &[Node], isr: &[NodeId], operation: Operation) {
        for node in nodes.iter().filter(|n| isr.contains(&n.id) && !self.lost.contains_key(&n.id)) {
            assert!(
                self.is_kept(&node.log.disk.channels, &operation),
                "acknowledged_cursor_survives_failover: {:?} on {}, which has {:?}",
                operation.image,
                node.id,
                node.log.disk.channels.get(&operation.image.name)
            );
        }
        self.acked_cursors.insert(operation.image.name.clone(), operation);
    }

    /// Notes that the leader's channel is set to this cursor.
    pub fn on_made(&mut self, image: &CursorImage) {
        self.made.entry(image.name.clone()).or_default().push(image.clone());
    }

    /// True if the channel is at least as new as what was acknowledged. Under a higher generation somebody has moved the channel since:
    /// then it stands no lower than either place says, whatever of the move a replica has clamped.
    fn is_kept(&self, channels: &Channels, operation: &Operation) -> bool {
        let image = &operation.image;
        let Some(here) = channels.get(&image.name) else { return false };
        if here.generation <= image.generation {
            let is_older = (here.epoch, here.generation) < (image.epoch, image.generation);
            return here.generation == image.generation && !is_older && here.confirmed.log_id >= image.confirmed.log_id;
        }
        let made = self.made.get(&image.name).map_or(&[][..], |made| &made[..]);
        let since = made.iter().rev().take_while(|m| *m != image);
        let is_move = |m: &&CursorImage| m.generation == here.generation && m.epoch >= image.epoch;
        since.filter(is_move).any(|m| here.confirmed.log_id >= m.confirmed.log_id.min(image.confirmed.log_id))
    }
}

/// A higher generation is no excuse: the channel stands where somebody moved it since, or it has forgotten what was acknowledged.
#[test]
fn a_higher_generation_keeps_only_what_somebody_made() {
    use crate::replica::tests::rig::cursor;
    let at = |log_id: u64| Position { offset: log_id as i64 * 100, count: log_id as i64, log_id: LogId(log_id) };
    let (before, image) = (cursor("c", 5, 1, at(3)), cursor("c", 5, 2, at(9)));
    let operation = Operation { before, image: image.clone() };
    let mut check = Checker::default();
    let is_kept = |check: &Checker, here: CursorImage| check.is_kept(&[(here.name.clone(), here)].into(), &operation);
    assert!(!check.is_kept(&Channels::new(), &operation), "it is gone");
    assert!(is_kept(&check, image.clone()) && is_kept(&check, cursor("c", 6, 2, at(12))));
    assert!(!is_kept(&check, cursor("c", 5, 2, at(8))) && !is_kept(&check, cursor("c", 6, 1, at(12))));
    check.on_made(&cursor("c", 5, 3, at(1)));
    check.on_made(&image);
    assert!(!is_kept(&check, cursor("c", 5, 3, at(12))), "made before what was acknowledged");
    check.on_made(&cursor("c", 6, 4, at(7)));
    assert!(!is_kept(&check, cursor("c", 6, 5, at(12))), "nobody made generation 5");
    assert!(is_kept(&check, cursor("c", 6, 4, at(7))) && !is_kept(&check, cursor("c", 6, 4, at(6))));
}
