//! Duties of the controller: a leader for each partition in time, and no copy lost by its moves.

use super::plan::Coordination;
use super::store::Removal;
use super::world::{MS, SECOND, World};

/// A partition without a leader waits for the lease of its last one, and for this.
const ELECTION: u64 = SECOND;
/// Nodes run by then.
const PATIENCE: u64 = 20 * SECOND;

impl World {
    /// Checks that every partition has a leader in its session within the lease and a second, once all nodes run.
    pub fn leaders_come_in_time(&mut self) {
        if self.plan.coordination != Coordination::Etcd {
            return;
        }
        let runs = |w: &World| (0..w.nodes.len()).all(|n| w.takes_clients(n) && w.nodes[n].paused_until <= w.now);
        let lacks = |w: &World| w.meta.all_keys().into_iter().find(|key| w.meta.leader(*key).is_none());
        let patience = self.now + PATIENCE;
        let mut end = self.now + super::meta::LEASE + ELECTION;
        while let Some(key) = lacks(self) {
            // A node whose disk failed is started again by its operator, after the faults, too.
            if !runs(self) && self.now < patience {
                end = self.now + super::meta::LEASE + ELECTION;
            }
            assert!(self.now < end, "every_partition_is_led_in_time: {key:?} has no leader\n{}", self.describe());
            self.run_until(self.now + 10 * MS);
        }
        self.say(|| "every partition has a leader".into());
    }

    /// A replica was removed: one undamaged replica that stays in sync must have every acknowledged message on its disk.
    pub fn no_only_copy_is_removed(&mut self, removal: &Removal) {
        let Some(entry) = self.meta.entries.get(&removal.key) else { return };
        let stay: Vec<usize> = entry.now.isr.iter().map(|id| self.meta.index(*id)).collect();
        self.say(|| format!("{} is no replica of {:?} any more", removal.node, removal.key));
        let sound = stay.iter().copied().find(|n| !self.nodes[*n].is_damaged);
        assert!(sound.is_some(), "no_only_copy_is_removed: of {:?} damaged copies are left: {stay:?}", removal.key);
        // A node that is down is looked at when it starts.
        for n in stay {
            if self.nodes[n].running.is_some() {
                self.probe(n);
            }
        }
    }
}
