//! Faults: crashes, lost and damaged disks, failed writes, parted networks, moved leaders, changed replicas. A disk loses something
//! only while another in-sync replica keeps a good copy, so every run can be survived.

use super::log::DiskOp;
use super::node::Node;
use super::world::{World, node_id};
use crate::base::NodeId;
use crate::format::snapshot::Doubt;
use crate::replica::Event;
use crate::replica::lease::Lease;
use crate::replica::states::State;
use std::collections::VecDeque;
use std::time::Duration;

impl World {
    fn crash(&mut self, i: usize) {
        let kept = self.rng.below(self.nodes[i].log.queue.len() as u64 + 1);
        let torn = kept < self.nodes[i].log.queue.len() as u64 && self.rng.chance(0.3);
        for _ in 0..kept {
            let cleared = matches!(self.nodes[i].log.complete(), Some(DiskOp::Cleared));
            if cleared {
                self.check.lost.remove(&self.nodes[i].id);
            }
        }
        let id = self.nodes[i].id;
        let node = &mut self.nodes[i];
        node.is_up = false;
        node.log.disk.doubt = node.log.disk.doubt.max(if torn { Doubt::Torn } else { Doubt::None });
        self.net.retain(|m| m.0 != id || self.rng.chance(0.5));
        self.reads.retain(|r| r.0 != id);
        self.asks.retain(|a| a.0 != id || self.rng.chance(0.5));
        if self.rng.chance(0.2) && self.may_lose(id) {
            self.lose(i);
        }
    }

    /// True if another member of the ISR keeps a sound copy.
    fn may_lose(&self, id: NodeId) -> bool {
        let good = |n: &&Node| {
            n.id != id && self.store.is_in_sync(n.id) && !n.log.disk.doubt.is_suspect() && !self.check.lost.contains_key(&n.id)
        };
        self.nodes.iter().any(|n| good(&n))
    }

    fn lose(&mut self, i: usize) {
        let disk = &mut self.nodes[i].log.disk;
        let n = disk.batches.len() as u64;
        if n == 0 {
            return;
        }
        let keep = self.rng.below(n) as usize;
        if self.rng.chance(0.5) {
            disk.batches.truncate(keep);
            disk.hole = None;
        } else {
            let at = disk.batches[keep].header.offset.get();
            disk.hole = Some(disk.hole.map_or(at, |h| h.min(at)));
        }
        disk.doubt = Doubt::Lost;
        self.check.lost.insert(self.nodes[i].id, ());
    }

    /// The node goes down, and its disk has lost the newer half of the log without a trace: nothing that a startup finds says so.
    pub fn lose_unseen(&mut self, i: usize) {
        let (id, kept) = (self.nodes[i].id, self.nodes[i].log.disk.batches.len() / 2);
        self.crash(i);
        let disk = &mut self.nodes[i].log.disk;
        disk.batches.truncate(kept);
        (disk.hole, disk.doubt) = (None, Doubt::None);
        let end = disk.batches.last().map_or(disk.start.at, |b| b.header.end());
        disk.committed = if disk.committed.offset > end.offset { end } else { disk.committed };
        self.check.lost.insert(id, ());
    }

    /// The node goes down, and comes back where nobody hears it.
    pub fn restart_alone(&mut self, i: usize) {
        self.crash(i);
        for other in (0..self.nodes.len()).filter(|other| *other != i) {
            self.cut.extend([(node_id(i), node_id(other)), (node_id(other), node_id(i))]);
        }
        self.start(i);
    }

    pub fn start(&mut self, i: usize) {
        let options = self.options;
        self.nodes[i].restart(options);
        self.leases[i] = Lease::default();
        *self.check.lives.entry(self.nodes[i].id).or_default() += 1;
        self.renew_lease(i);
        let id = self.nodes[i].id;
        for other in (0..self.nodes.len()).filter(|o| *o != i) {
            if self.rng.chance(0.7) {
                self.give(other, Event::Connected { node: id });
            }
        }
    }

    pub(super) fn fault(&mut self) {
        let i = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(12) {
            10 | 11 if self.has_controller => self.want(),
            0 if self.nodes[i].is_up => self.crash(i),
            1 | 2 if !self.nodes[i].is_up => self.start(i),
            3 => {
                let j = self.rng.below(self.nodes.len() as u64) as usize;
                self.cut.insert((node_id(i), node_id(j)));
                if self.rng.chance(0.5) {
                    self.cut.insert((node_id(j), node_id(i)));
                }
            }
            4 | 5 => self.cut.clear(),
            6 => self.elect(),
            7 if self.rng.chance(0.4) && self.nodes[i].is_up => {
                self.poison(i);
            }
            8 if self.rng.chance(0.3) => {
                self.away[i] = self.now + Duration::from_millis(self.rng.below(2500));
            }
            9 if self.rng.chance(0.3) => {
                let offset = self.nodes[i].member.committed().offset / 2;
                if self.nodes[i].log.queue.is_empty() && self.nodes[i].is_up && self.nodes[i].log.disk.hole.is_none() {
                    self.nodes[i].log.drop_below(offset);
                }
            }
            _ => self.change_replicas(),
        }
    }

    /// States that last a moment: the model forces the events that may happen in them.
    pub(super) fn disturb(&mut self) {
        use State::{Claiming, Fetching, Trimming, Truncating};
        let find = |states: &[State]| self.nodes.iter().position(|n| n.is_up && states.contains(&n.member.state()));
        let rarer = find(&[Truncating, Trimming]);
        if rarer.is_none() && self.rng.chance(0.9) {
            return;
        }
        let Some(i) = rarer.or_else(|| find(&[Claiming, Fetching])) else { return };
        let id = self.nodes[i].id;
        match self.rng.below(6) {
            0 => self.elect(),
            1 if self.store.is_in_sync(id) => self.name_leader(Some(id)),
            2 => self.poison(i),
            3 => self.change_replica(i),
            4 => {
                let source = self.rng.below(self.nodes.len() as u64) as usize;
                self.cut.insert((node_id(i), node_id(source)));
            }
            _ => return,
        }
        if self.rng.chance(0.7) {
            let newest = self.store.clone();
            self.give(i, Event::Metadata(newest));
        }
    }

    /// A disk is full, or has room again.
    pub(super) fn fill(&mut self, i: usize, is_full: bool) {
        self.nodes[i].is_full = is_full;
        self.nodes[i].log.is_full = is_full && i.is_multiple_of(2);
        let mut out = VecDeque::new();
        self.nodes[i].append_held(&mut out);
        self.take(i, out);
    }

    fn poison(&mut self, i: usize) {
        self.nodes[i].failed = true;
        self.nodes[i].log.queue.clear();
        self.nodes[i].held.clear();
        self.give(i, Event::LogFailed);
    }

    /// The controller takes a replica away, or gives the partition one more.
    fn change_replicas(&mut self) {
        let i = self.rng.below(self.nodes.len() as u64) as usize;
        self.change_replica(i);
    }

    fn change_replica(&mut self, i: usize) {
        let id = self.nodes[i].id;
        let mut m = self.store.clone();
        if !m.is_replica(id) {
            m.replicas.push(id);
            return self.swap(m);
        }
        let others: Vec<NodeId> = m.isr.iter().copied().filter(|n| *n != id).collect();
        if !self.rng.chance(0.3) || m.is_in_sync(id) && (others.len() < m.min_isr || !self.may_lose(id)) {
            return;
        }
        if m.leader == Some(id) {
            self.name_leader(None);
            m = self.store.clone();
        }
        m.replicas.retain(|n| *n != id);
        m.isr = others;
        self.swap(m);
    }
}
