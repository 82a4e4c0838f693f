//! Balance of a cluster with an etcd: nodes tell what is published to them, and an operator moves replicas and leaders, or changes the
//! number of a topic's replicas. In the end every topic has the replicas of the plan.
//!
//! | check | when |
//! |---|---|
//! | leaders_come_to_rest | at rest no leader changes any more, whatever nodes told of their load |

use super::meta::TopicPartition;
use super::plan::Coordination;
use super::world::{SECOND, World};
use crate::agent::{Admin, Event, TopicChange};
use crate::base::TopicName;
use crate::metadata::keys::Key as StoreKey;
use crate::metadata::record::{TopicRecord, decode};

/// Most that is published to a partition, in KiB per second.
const KIB_PER_S_MAX: u64 = 40_000;
/// Time at rest in which the controller balances again: an interval of its looks, and a look.
const REST: u64 = 13 * SECOND;
/// Time in which leaders come to rest: a few of them move, one after the other.
const PATIENCE: u64 = 90 * SECOND;

impl World {
    /// A node measures the load of the partitions that it leads.
    pub fn measure_load(&mut self, n: usize) {
        let led: Vec<TopicPartition> = self.meta.all_keys().into_iter().filter(|key| self.meta.leader(*key) == Some(n)).collect();
        // A node tells a change once in a while: one that leads little has nothing to tell.
        if led.len() < 2 {
            return;
        }
        let loads = led.into_iter().map(|key| {
            let is_busy = self.rng.chance(0.9);
            let kib_per_s = if is_busy { self.rng.below(KIB_PER_S_MAX) as u32 } else { 0 };
            (self.meta.topics[&key.0].name.clone(), key.1, kib_per_s)
        });
        let loads = loads.collect();
        self.step_agent(n, Event::Load(loads));
    }

    /// An operator asks for a move, or for another number of replicas.
    pub fn ask_for_move(&mut self) {
        let keys = self.meta.all_keys();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.rng.below(keys.len() as u64) as usize];
        let name = self.meta.topics[&key.0].name.clone();
        let replicas = self.meta.entries[&key].now.replicas.clone();
        let from = replicas[self.rng.below(replicas.len() as u64) as usize].to_string();
        let first = self.rng.below(self.nodes.len() as u64) as usize;
        let mut others = (0..self.nodes.len()).map(|i| &self.meta.nodes[(first + i) % self.nodes.len()]);
        let to = others.find(|node| !replicas.contains(&node.id)).unwrap_or(&self.meta.nodes[first]).id.to_string();
        let admin = match self.rng.below(8) {
            0..4 => Admin::MoveReplica { name, partition: key.1, from, to },
            4 | 5 => Admin::MoveLeader { name, partition: key.1, to: from },
            6 => Admin::Rebalance,
            _ => {
                let drawn = 1 + self.rng.below(self.nodes.len() as u64) as u8;
                let replicas = Some(drawn.max(self.plan.replicas_least()));
                Admin::AlterTopic { name, change: TopicChange { replicas, ..TopicChange::default() } }
            }
        };
        self.ask_some_agent(admin);
    }

    pub fn topic_record(&self, topic: &TopicName) -> Option<TopicRecord> {
        let store = &self.meta.store;
        let known = store.etcd.get(&store.layout.key(&StoreKey::Topic(topic.clone())))?;
        Some(decode(&known.value).expect("agents write sound records"))
    }

    /// Requests that give each topic as many replicas as the plan has.
    pub fn lacks_replicas(&self) -> Vec<Admin> {
        if self.plan.faults.store.moves == 0.0 {
            return vec![];
        }
        let wanted = self.plan.replicas as u8;
        let names = self.meta.topics.values().map(|t| &t.name);
        let others = names.filter(|name| self.topic_record(name).is_some_and(|record| record.replicas != wanted));
        let change = TopicChange { replicas: Some(wanted), ..TopicChange::default() };
        others.map(|name| Admin::AlterTopic { name: name.clone(), change }).collect()
    }

    /// Waits until no leader changes for a while.
    pub fn leaders_come_to_rest(&mut self) {
        let store = self.plan.faults.store;
        if self.plan.coordination != Coordination::Etcd || store.loads + store.moves == 0.0 {
            return;
        }
        let until = self.now + PATIENCE;
        loop {
            let before = self.meta.counts.elections;
            self.run_until(self.now + REST);
            if self.meta.counts.elections == before {
                return;
            }
            assert!(
                self.now < until,
                "leaders_come_to_rest: a leader changed in the last {} s\n{}",
                REST / SECOND,
                self.describe()
            );
        }
    }
}
