//! Leaders and ISRs as something outside of the nodes decides them: a metadata store that compares and swaps, with leases and a
//! controller that elects from the ISR, or files that an operator changes.
//!
//! The store is linearizable: it is one value here. That its word comes late, twice or not at all is the world's doing.

use super::MetadataCounts;
use super::plan::{Coordination, Plan};
use super::store::{PASSING, Store};
use crate::base::NodeId;
use crate::base::{Epoch, PartitionId, Rng, TopicRef};
use crate::codec::peer::message::Route;
use crate::seam::cluster::{Ask, ClusterNode, Fact};
use crate::seam::membership::{EPOCH_BASE, Membership, static_epoch};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A topic's number and a partition.
pub type TopicPartition = (usize, u16);

/// A node's lease in the store, in nanoseconds. A node takes its own for over earlier.
pub const LEASE: u64 = 1_500_000_000;

/// A version of a static file holds room for so many openings of a leader.
const OPENINGS_BITS: u32 = 20;

#[derive(Clone, Debug)]
pub struct PartitionMeta {
    pub now: Membership,
    pub history: Vec<Membership>,
    /// Last leader before the partition had none.
    last_leader: Option<usize>,
    /// End of the leases that the store gave to it.
    led_until: u64,
}

impl PartitionMeta {
    pub fn new(now: Membership) -> PartitionMeta {
        PartitionMeta { history: vec![now.clone()], now, last_leader: None, led_until: 0 }
    }
}

/// Consequence of an [`Ask`].
#[derive(Debug, Default)]
pub struct AskResult {
    /// The partition's metadata is another now: every watch says so.
    pub changed: Option<TopicPartition>,
    /// Fact for the node that asked alone.
    pub fact: Option<Fact>,
}

pub struct Meta {
    coordination: Coordination,
    pub nodes: Arc<[ClusterNode]>,
    /// Topics by their numbers.
    pub topics: BTreeMap<usize, TopicRef>,
    pub entries: BTreeMap<TopicPartition, PartitionMeta>,
    /// The etcd of a run that has one. The entries have its records.
    pub store: Store,
    /// Revision of all entries: rises with each change.
    pub revision: u64,
    /// Time until which the store takes each node for alive.
    leases: Vec<u64>,
    /// Static files: the version of each node's file, and how often it opened in this life.
    files: Vec<u64>,
    openings: BTreeMap<(usize, TopicPartition), u64>,
    /// The generation of each node's life.
    pub generations: Vec<u64>,
    replicas_max: usize,
    pub counts: MetadataCounts,
}

impl Meta {
    pub fn new(plan: &Plan, ids: &[NodeId], topics: Vec<TopicRef>, rng: &mut Rng) -> Meta {
        let node = |(n, id): (usize, &NodeId)| ClusterNode::new(*id, format!("node{n}"), format!("node{n}:4170"));
        let mut entries = BTreeMap::new();
        let is_etcd = plan.coordination == Coordination::Etcd;
        // A static file has its own numbers.
        let epoch = if plan.coordination == Coordination::Store { Epoch(EPOCH_BASE + 1) } else { Epoch(1) };
        let topics: BTreeMap<usize, TopicRef> = if is_etcd { BTreeMap::new() } else { (0..).zip(topics).collect() };
        for (&t, topic) in &topics {
            for p in 0..topic.partitions {
                let first = rng.below(ids.len() as u64) as usize;
                let replicas: Vec<NodeId> = (0..plan.replicas).map(|i| ids[(first + i) % ids.len()]).collect();
                let leader = Some(replicas[rng.below(replicas.len() as u64) as usize]);
                let now = Membership::new(1, epoch, leader, replicas, plan.min_isr);
                entries.insert((t, p), PartitionMeta::new(now));
            }
        }
        Meta {
            coordination: plan.coordination,
            nodes: ids.iter().enumerate().map(node).collect(),
            topics,
            entries,
            store: Store::default(),
            revision: 1,
            leases: vec![0; ids.len()],
            files: vec![1; ids.len()],
            openings: BTreeMap::new(),
            generations: vec![0; ids.len()],
            replicas_max: (plan.replicas + 1).min(plan.nodes),
            counts: MetadataCounts::default(),
        }
    }

    pub fn index(&self, id: NodeId) -> usize {
        self.nodes.iter().position(|n| n.id == id).expect("nodes stay")
    }

    /// The node that an address names.
    pub fn node_at(&self, address: &str) -> Option<usize> {
        self.nodes.iter().position(|n| *n.peer_address == *address)
    }

    pub fn key(&self, route: Route) -> Option<TopicPartition> {
        let topic = *self.topics.iter().find(|(_, t)| t.id == route.topic_id)?.0;
        self.entries.contains_key(&(topic, route.partition.0)).then_some((topic, route.partition.0))
    }

    /// Partitions that clients use.
    pub fn keys(&self) -> Vec<TopicPartition> {
        self.entries.range(..(PASSING, 0)).map(|(key, _)| *key).collect()
    }

    /// Keys of all topics, also of those that come and go.
    pub fn all_keys(&self) -> Vec<TopicPartition> {
        self.entries.keys().copied().collect()
    }

    /// True if the node is in sync by the newest version.
    pub fn is_in_sync(&self, key: TopicPartition, node: usize) -> bool {
        let id = self.nodes[node].id;
        self.entries.get(&key).is_some_and(|e| e.now.is_in_sync(id))
    }

    pub fn leader(&self, key: TopicPartition) -> Option<usize> {
        self.entries.get(&key)?.now.leader.map(|id| self.index(id))
    }

    // ---- facts for nodes

    /// Facts that a starting node reads, in order.
    pub fn all_facts(&self, node: usize) -> Vec<Fact> {
        let topics = self.topics.values().map(|t| Fact::Topic(t.clone()));
        let partitions = self.entries.keys().map(|key| self.fact(node, *key));
        let read = Fact::Read { revision: self.revision };
        std::iter::once(Fact::Nodes(self.nodes.clone())).chain(topics).chain(partitions).chain([read]).collect()
    }

    /// Newest metadata of a partition, as this node is told it.
    pub fn fact(&self, node: usize, key: TopicPartition) -> Fact {
        let entry = &self.entries[&key];
        match self.coordination {
            Coordination::File => {
                let version = self.files[node];
                let of_file = entry.history.iter().rev().find(|m| m.version <= version).unwrap_or(&entry.history[0]);
                self.fact_of(node, key, &Membership { version, ..of_file.clone() })
            }
            _ => self.fact_of(node, key, &entry.now),
        }
    }

    /// A version of a partition's metadata, as this node is told it.
    pub fn fact_of(&self, node: usize, key: TopicPartition, membership: &Membership) -> Fact {
        let mut membership = membership.clone();
        if self.coordination == Coordination::File {
            let openings = self.openings.get(&(node, key)).copied().unwrap_or(0);
            let leads = membership.leader == Some(self.nodes[node].id);
            let (generation, opening) = if leads { (self.generations[node], openings) } else { (0, 0) };
            membership.epoch = static_epoch(membership.epoch.0, generation, opening).expect("a run has few of each");
            membership.version = membership.version << OPENINGS_BITS | openings;
        }
        Fact::Partition { topic: self.topics[&key.0].clone(), partition: PartitionId(key.1), membership }
    }

    /// A startup of a node.
    pub fn started(&mut self, node: usize, generation: u64) {
        self.generations[node] = generation;
        self.openings.retain(|(n, _), _| *n != node);
    }

    // ---- requests of nodes

    pub fn ask(&mut self, from: usize, ask: Ask, now: u64, rng: &mut Rng) -> AskResult {
        let route = match &ask {
            Ask::Propose { route, .. } | Ask::AskEpoch { route, .. } | Ask::Refresh { route } | Ask::Resign { route, .. } => {
                *route
            }
            Ask::GiveUp { route, .. } => *route,
            Ask::Release { .. } | Ask::PeerLost { .. } | Ask::Leave { .. } | Ask::Doubt { .. } => return AskResult::default(),
            Ask::CreateTopic { .. } => unreachable!("the plan names the topics"),
        };
        let Some(key) = self.key(route) else { return AskResult::default() };
        let id = self.nodes[from].id;
        let m = &self.entries[&key].now;
        let is_file = self.coordination == Coordination::File;
        match ask {
            Ask::Propose { version, isr, .. } => {
                let proposed = Membership { isr, ..m.clone() };
                if !is_file && m.version == version && m.leader == Some(id) && proposed.is_sane() {
                    self.counts.proposals += 1;
                    return self.swap(key, proposed);
                }
                AskResult { fact: Some(Fact::ProposalRefused { route, version }), changed: None }
            }
            Ask::AskEpoch { .. } if is_file => {
                *self.openings.entry((from, key)).or_default() += 1;
                AskResult { fact: Some(self.fact(from, key)), changed: None }
            }
            Ask::AskEpoch { above, .. } if m.leader == Some(id) => {
                let epoch = Epoch(m.epoch.0.max(above.0) + 1);
                let m = Membership { epoch, ..m.clone() };
                self.swap(key, m)
            }
            Ask::GiveUp { loss, .. } if !is_file && m.leader == Some(id) => {
                let m = Membership { given_up: Some(loss), ..m.clone() };
                self.swap(key, m)
            }
            Ask::Resign { to: Some(to), .. }
                if !is_file && m.leader == Some(id) && m.is_in_sync(to) && self.is_alive(self.index(to), now) =>
            {
                // A leader that resigns serves nothing any more: its lease is not waited for.
                self.counts.elections += 1;
                let m = Membership { leader: Some(to), epoch: Epoch(m.epoch.0 + 1), wanted: None, ..m.clone() };
                self.swap(key, m)
            }
            Ask::Resign { .. } if !is_file && m.leader == Some(id) => {
                let changed = self.elect(key, Some(from), now, rng).then_some(key);
                AskResult { changed, fact: None }
            }
            _ => AskResult { fact: Some(self.fact(from, key)), changed: None },
        }
    }

    fn swap(&mut self, key: TopicPartition, membership: Membership) -> AskResult {
        let entry = self.entries.get_mut(&key).expect("a known partition");
        let version = entry.now.version + 1;
        entry.now = Membership { version, ..membership };
        assert!(entry.now.is_sane(), "the store holds what makes sense: {:?}", entry.now);
        entry.history.push(entry.now.clone());
        self.revision += 1;
        AskResult { changed: Some(key), fact: None }
    }

    // ---- leases and elections

    pub fn renew(&mut self, node: usize, now: u64) {
        self.leases[node] = now + LEASE;
    }

    pub fn is_alive(&self, node: usize, now: u64) -> bool {
        self.leases[node] > now || self.coordination != Coordination::Store
    }

    /// Makes a living member of the ISR the leader, in a new epoch; not `instead_of`, if there is another. While the lease of the
    /// present leader holds, the partition gets no leader: a later renewal has a revision by which that node leads no more. True if the
    /// metadata changed.
    pub fn elect(&mut self, key: TopicPartition, instead_of: Option<usize>, now: u64, rng: &mut Rng) -> bool {
        let PartitionMeta { now: m, last_leader, led_until, .. } = self.entries[&key].clone();
        if m.leader.is_none() && led_until > now {
            return false;
        }
        let instead_of = instead_of.or(last_leader.filter(|_| m.leader.is_none()));
        let alive: Vec<NodeId> = m.isr.iter().copied().filter(|id| self.is_alive(self.index(*id), now)).collect();
        let others: Vec<NodeId> = alive.iter().copied().filter(|id| Some(self.index(*id)) != instead_of).collect();
        let of = if others.is_empty() { &alive } else { &others };
        if of.is_empty() {
            return false;
        }
        let leader = Some(of[rng.below(of.len() as u64) as usize]);
        let epoch = Epoch(m.epoch.0 + 1);
        let old = m.leader.filter(|old| leader != Some(*old)).map(|old| self.index(old));
        match old.filter(|old| self.leases[*old] > now) {
            Some(old) => self.take_lead(key, old, m),
            None => {
                self.counts.elections += 1;
                self.swap(key, Membership { leader, epoch, wanted: None, ..m });
            }
        }
        true
    }

    /// Takes the lead away until the leases of the old leader have ended.
    fn take_lead(&mut self, key: TopicPartition, old: usize, m: Membership) {
        let entry = self.entries.get_mut(&key).expect("a known partition");
        (entry.last_leader, entry.led_until) = (Some(old), self.leases[old]);
        self.swap(key, Membership { leader: None, epoch: Epoch(m.epoch.0 + 1), ..m });
    }

    /// The controller replaces every leader whose lease is over. Returns the changed partitions.
    pub fn control(&mut self, now: u64, rng: &mut Rng) -> Vec<TopicPartition> {
        let lacks = |key: &TopicPartition| self.leader(*key).is_none_or(|n| !self.is_alive(n, now));
        let lacking: Vec<TopicPartition> = self.keys().into_iter().filter(lacks).collect();
        lacking.into_iter().filter(|key| self.elect(*key, None, now, rng)).collect()
    }

    /// An operator makes this replica the only one in sync, with `min_isr` 1 and without a leader.
    pub fn repair_by_hand(&mut self, key: TopicPartition, node: usize) {
        let isr = vec![self.nodes[node].id];
        let entry = self.entries.get_mut(&key).expect("a known partition");
        (entry.last_leader, entry.led_until) = (None, 0);
        let m = entry.now.clone();
        let epoch = Epoch(m.epoch.0 + 1);
        self.swap(key, Membership { leader: None, isr, min_isr: 1, epoch, wanted: None, ..m });
    }

    /// The leader is asked to hand over to another member of the ISR. Whether there is one.
    pub fn want(&mut self, key: TopicPartition, rng: &mut Rng) -> bool {
        let m = self.entries[&key].now.clone();
        let others: Vec<NodeId> = m.isr.iter().copied().filter(|n| m.leader.is_some_and(|leader| leader != *n)).collect();
        if others.is_empty() {
            return false;
        }
        let wanted = Some(others[rng.below(others.len() as u64) as usize]);
        self.swap(key, Membership { wanted, ..m });
        true
    }

    /// A replica comes or goes. `may_go`: another member of the ISR keeps a good copy.
    pub fn change_replicas(&mut self, key: TopicPartition, node: usize, may_go: bool, rng: &mut Rng) -> bool {
        let (id, mut m) = (self.nodes[node].id, self.entries[&key].now.clone());
        if !m.is_replica(id) {
            if m.replicas.len() >= self.replicas_max {
                return false;
            }
            m.replicas.push(id);
        } else {
            let others: Vec<NodeId> = m.isr.iter().copied().filter(|n| *n != id).collect();
            let is_needed = m.is_in_sync(id) && (others.len() < m.min_isr || !may_go);
            if is_needed || m.replicas.len() <= m.min_isr || rng.chance(0.5) {
                return false;
            }
            m.replicas.retain(|n| *n != id);
            m.isr = others;
            if m.leader == Some(id) {
                self.counts.replica_changes += 1;
                self.take_lead(key, node, m);
                return true;
            }
        }
        self.counts.replica_changes += 1;
        self.swap(key, m);
        true
    }

    /// Makes every node a replica again, as far as the plan has room for it.
    pub fn restore_replicas(&mut self, key: TopicPartition, wanted: usize) -> bool {
        let mut m = self.entries[&key].now.clone();
        let before = m.replicas.len();
        for n in self.nodes.iter().map(|n| n.id) {
            if m.replicas.len() < wanted && !m.is_replica(n) {
                m.replicas.push(n);
            }
        }
        let changed = m.replicas.len() != before;
        if changed {
            self.swap(key, m);
        }
        changed
    }

    // ---- static files

    /// The operator writes a new file in which this node leads: any member of the ISR of a static file may lead.
    pub fn write_file(&mut self, key: TopicPartition, leader: usize) {
        let version = self.entries.values().map(|e| e.now.version).max().unwrap_or(0) + 1;
        let entry = self.entries.get_mut(&key).expect("a known partition");
        let (leader, epoch) = (Some(self.nodes[leader].id), Epoch(entry.now.epoch.0 + 1));
        entry.now = Membership { version, leader, epoch, ..entry.now.clone() };
        entry.history.push(entry.now.clone());
        self.counts.elections += 1;
    }

    pub fn newest_file(&self) -> u64 {
        self.entries.values().map(|e| e.now.version).max().unwrap_or(1)
    }

    /// The newest file arrives at a node. Whether it is newer than the one there.
    pub fn install_file(&mut self, node: usize, version: u64) -> bool {
        let is_newer = version > self.files[node];
        self.files[node] = self.files[node].max(version);
        is_newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{TopicId, TopicInfo, TopicName};

    fn meta(coordination: Coordination) -> (Meta, Rng, Route) {
        let mut rng = Rng::new(1);
        let plan = Plan { replicas: 3, min_isr: 2, nodes: 3, ..Plan::draw(1, 3, Some(coordination)) };
        let ids: Vec<NodeId> = (0..3).map(|n| NodeId([n + 1; 16])).collect();
        let topic = TopicInfo { name: TopicName::new("t").unwrap(), id: TopicId([9; 16]), partitions: 1 };
        let route = Route { topic_id: topic.id, partition: PartitionId(0) };
        let mut meta = Meta::new(&plan, &ids, vec![Arc::new(topic)], &mut rng);
        (0..3).for_each(|n| meta.renew(n, 0));
        (meta, rng, route)
    }

    #[test]
    fn only_the_leader_swaps_the_isr_and_only_of_the_version_it_names() {
        let (mut meta, mut rng, route) = meta(Coordination::Store);
        let leader = meta.leader((0, 0)).unwrap();
        let isr = vec![meta.nodes[leader].id];
        let propose = |version| Ask::Propose { route, version, isr: isr.clone() };
        assert!(meta.ask((leader + 1) % 3, propose(1), 0, &mut rng).changed.is_none(), "another node");
        assert!(meta.ask(leader, propose(2), 0, &mut rng).changed.is_none(), "another version");
        assert_eq!(meta.ask(leader, propose(1), 0, &mut rng).changed, Some((0, 0)));
        assert!((0..3).all(|n| meta.is_in_sync((0, 0), n) == (n == leader)));
        let again = meta.ask(leader, propose(1), 0, &mut rng);
        assert!(matches!(again.fact, Some(Fact::ProposalRefused { version: 1, .. })), "a repeat is refused");
    }

    #[test]
    fn a_leader_whose_lease_is_over_is_replaced_by_an_isr_member_that_is_alive() {
        let (mut meta, mut rng, _) = meta(Coordination::Store);
        let (key, old) = ((0, 0), meta.leader((0, 0)).unwrap());
        assert!(meta.control(LEASE - 1, &mut rng).is_empty());
        (0..3).filter(|n| *n != old).for_each(|n| meta.renew(n, LEASE));
        let epoch = meta.entries[&key].now.epoch;
        assert_eq!(meta.control(LEASE + 1, &mut rng), [key]);
        let new = meta.leader(key).unwrap();
        assert!(new != old && meta.entries[&key].now.epoch > epoch);
        assert!(meta.control(3 * LEASE, &mut rng).is_empty(), "nobody is alive: no leader rather than a dead one");
    }

    #[test]
    fn nobody_else_leads_while_a_lease_from_before_may_hold() {
        let (mut meta, mut rng, _) = meta(Coordination::Store);
        let (key, old) = ((0, 0), meta.leader((0, 0)).unwrap());
        let revision = meta.revision;
        assert!(meta.elect(key, Some(old), 10, &mut rng));
        assert!(meta.leader(key).is_none() && meta.revision > revision, "a renewal from now on says that it does not lead");
        (0..3).for_each(|n| meta.renew(n, LEASE - 1));
        assert!(meta.control(LEASE - 1, &mut rng).is_empty());
        assert_eq!(meta.control(LEASE, &mut rng), [key]);
        assert!(meta.leader(key).is_some_and(|new| new != old));
    }

    #[test]
    fn an_isr_member_goes_only_when_enough_stay() {
        let (mut meta, mut rng, _) = meta(Coordination::Store);
        for _ in 0..200 {
            let node = rng.below(3) as usize;
            meta.change_replicas((0, 0), node, true, &mut rng);
            let m = &meta.entries[&(0, 0)].now;
            assert!(m.isr.len() >= 2 && m.is_sane(), "{m:?}");
        }
        assert!(meta.counts.replica_changes > 2);
        assert!(!meta.change_replicas((0, 0), 0, false, &mut rng) || !meta.is_in_sync((0, 0), 0));
    }

    #[test]
    fn static_files_give_each_opening_an_epoch_of_its_own_and_reach_nodes_one_by_one() {
        let (mut meta, mut rng, route) = meta(Coordination::File);
        let key = (0, 0);
        let leader = meta.leader(key).unwrap();
        meta.started(leader, 5);
        let epoch_of = |fact: &Fact| match fact {
            Fact::Partition { membership, .. } => (membership.version, membership.epoch),
            other => panic!("{other:?}"),
        };
        let first = epoch_of(&meta.fact(leader, key));
        let asked = meta.ask(leader, Ask::AskEpoch { route, above: first.1 }, 0, &mut rng).fact.unwrap();
        assert!(epoch_of(&asked) > first && epoch_of(&asked).1 > first.1);
        let other = (leader + 1) % 3;
        meta.write_file(key, other);
        assert_eq!(epoch_of(&meta.fact(leader, key)), epoch_of(&asked), "its file is the old one");
        assert!(meta.install_file(leader, meta.newest_file()) && !meta.install_file(leader, 1));
        let Fact::Partition { membership, .. } = meta.fact(leader, key) else { panic!("a partition") };
        assert!(membership.leader == Some(meta.nodes[other].id) && membership.epoch > epoch_of(&asked).1);
    }
}
