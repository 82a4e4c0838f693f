//! Faults that hit a replica in a state that it soon leaves: its disk stands still for a while, and meanwhile the metadata store names
//! another leader, takes the replica away, or a write of its journal fails. By chance alone these meet too rarely.

use super::meta::{LEASE, TopicPartition};
use super::world::{MS, Phase, World};
use crate::replica::states::State;

/// States that last as long as a write or a few messages, and those in which few replicas are.
fn is_rare(state: State) -> bool {
    use State::*;
    matches!(state, Idle | Promising | Truncating | Claiming | Asking | Trimming | Fetching | Settling | Closed)
}

impl World {
    /// A turn of a core ends: notes the roles of its replicas, before their requests are carried out.
    pub fn look_at_roles(&mut self, n: usize, core: usize) {
        // nothing is drawn for it where it is not: runs without it stay as they were
        if self.faults.role_change == 0.0 || self.phase != Phase::Faulty {
            return;
        }
        let Some(r) = &self.nodes[n].running else { return };
        let states = r.shards[core].replica_states();
        let states: Vec<(TopicPartition, State)> =
            states.filter_map(|(route, state)| Some((self.meta.key(route)?, state))).collect();
        for (key, state) in states {
            let before = self.roles.insert((n, key), state);
            let is_new = before.is_some_and(|before| before != state);
            // few seeds get to these at all
            let is_rarest = matches!(state, State::Truncating | State::Trimming | State::Fetching);
            if is_new && is_rare(state) && (is_rarest || self.rng.chance(self.faults.role_change)) {
                self.change_role(n, key, state);
            }
        }
    }

    fn change_role(&mut self, n: usize, key: TopicPartition, state: State) {
        self.outcome.role_changes += 1;
        // The former leader may hold a lease, and until it is over no other node holds one.
        let longest = if self.rng.chance(0.3) { LEASE + 500 * MS } else { 200 * MS };
        let until = self.now + 20 * MS + self.rng.below(longest);
        let node = &mut self.nodes[n];
        node.disk_stands_until = node.disk_stands_until.max(until);
        let what = self.rng.below(3);
        match what {
            0 => {
                let instead_of = self.meta.leader(key).filter(|_| self.rng.chance(0.5));
                if self.meta.elect(key, instead_of, self.now, &mut self.rng) {
                    self.changed(key);
                }
            }
            1 => self.change_replicas_of(key, n),
            _ => self.nodes[n].fails_journal = true,
        }
        let what = ["a leader is named", "the replica goes or comes", "a journal write fails"][what as usize];
        self.say(|| format!("node{n} {key:?} is {state:?}: its disk stands still, {what}"));
    }
}
