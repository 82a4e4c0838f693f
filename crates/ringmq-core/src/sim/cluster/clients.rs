//! The clients of the cluster. The single node's clients are used. Here they go to the leader of their partition by the metadata, and
//! elsewhere if that node does not lead. Some go to any node, which forwards and relays.

use super::events::Happening;
use super::meta::TopicPartition;
use super::plan::Coordination;
use super::world::{MS, Phase, US, World};
use crate::sim::node::any::AnyClient;
use crate::sim::node::book::OPERATED;
use crate::sim::node::client::{Client, Role};
use crate::sim::node::native::{NativeClient, NativeRole};
use crate::sim::node::reach::Reach;

/// A client and where it is.
pub struct Visitor {
    pub client: AnyClient,
    pub node: usize,
    /// Client that runs for ever: it drains a channel, or finishes a producer's work.
    pub key: TopicPartition,
    /// True if the client names no partition.
    pub is_spread: bool,
    /// True if the client finishes messages in a while.
    pub is_slow: bool,
    pub since: u64,
}

impl World {
    /// A client comes, if there are not enough.
    pub fn visit(&mut self) {
        let is_faulty = self.phase == Phase::Faulty;
        let every = if is_faulty { 10 * MS + self.rng.below(25 * MS) } else { 200 * MS };
        let at = self.now + every;
        self.queue.put(at, Happening::Visit);
        if !is_faulty || self.clients.len() >= self.plan.clients {
            return;
        }
        let keys = self.meta.keys();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.rng.below(keys.len() as u64) as usize];
        let node = match self.meta.leader(key) {
            Some(leader) if self.rng.chance(0.92) => leader,
            _ => self.rng.below(self.nodes.len() as u64) as usize,
        };
        self.random_client(key, node);
    }

    fn random_client(&mut self, key: TopicPartition, node: usize) {
        if !self.takes_clients(node) {
            return;
        }
        if self.operator.losses.are_on() {
            return self.plain_client(key, node);
        }
        if self.plan.faults.operator > 0.0 && self.rng.chance(0.3) {
            self.nsq_client(Role::Operated, key, node);
            return;
        }
        let ephemeral = self.plan.faults.memory.ephemeral;
        if ephemeral > 0.0 && self.rng.chance(ephemeral) {
            return self.random_nsq_client(Role::Ephemeral, key, node);
        }
        let is_native = self.rng.chance(self.plan.native);
        if is_native {
            use NativeRole::{Both, Consumer, Idempotent, Mover, Publisher};
            let roles = [Publisher, Publisher, Idempotent, Idempotent, Consumer, Consumer, Both, Mover];
            let role = roles[self.rng.below(roles.len() as u64) as usize].clone();
            self.native_client(role, key, node);
        } else {
            use Role::{Both, Consumer, Ordered, Publisher};
            let roles = [Publisher, Publisher, Publisher, Consumer, Consumer, Both, Both, Ordered];
            let role = roles[self.rng.below(roles.len() as u64) as usize];
            self.random_nsq_client(role, key, node);
        }
    }

    /// A client of that node, or of any, for one partition, or for all.
    fn random_nsq_client(&mut self, role: Role, key: TopicPartition, node: usize) {
        let strays = self.plan.faults.strays;
        let stray = if role == Role::Publisher { strays.publishers } else { strays.consumers };
        let is_stray = stray > 0.0 && self.rng.chance(stray);
        let node = if is_stray { self.rng.below(self.nodes.len() as u64) as usize } else { node };
        if self.takes_clients(node) {
            match self.names_no_partition() {
                true => self.spread_client(role, key, node),
                false => self.nsq_client(role, key, node),
            };
        }
    }

    /// A client whose messages an operator may give up.
    fn plain_client(&mut self, key: TopicPartition, node: usize) {
        let roles = [Role::Publisher, Role::Publisher, Role::Both, Role::Consumer];
        let role = roles[self.rng.below(roles.len() as u64) as usize];
        let is_stray = self.rng.chance(self.plan.faults.strays.publishers);
        let node = if is_stray { self.rng.below(self.nodes.len() as u64) as usize } else { node };
        if self.takes_clients(node) {
            self.nsq_client(role, key, node);
        }
    }

    pub fn takes_clients(&self, node: usize) -> bool {
        self.nodes[node].running.as_ref().is_some_and(|r| !r.is_stopping)
    }

    pub fn reach(&self, key: TopicPartition, node: usize) -> Reach {
        let is_clustered = self.plan.coordination != Coordination::Alone;
        let defers = self.plan.faults.put_off > 0.0 && !self.operator.losses.are_on();
        let defers_publishes = defers && self.meta.topics[&key.0].partitions == 1;
        Reach { node, topics: vec![key.0], partition: Some(key.1), is_clustered, defers, defers_publishes }
    }

    pub fn nsq_client(&mut self, role: Role, key: TopicPartition, node: usize) -> u64 {
        let wire = self.connect(node, false);
        let client = AnyClient::Nsq(Client::new(wire, role, self.reach(key, node)));
        self.came(wire, client, node, key)
    }

    pub fn native_client(&mut self, role: NativeRole, key: TopicPartition, node: usize) -> u64 {
        let wire = self.connect(node, true);
        let cores = self.nodes[node].cores;
        let topic = &self.meta.topics[&key.0];
        let home = topic.core_of(crate::base::PartitionId(key.1), cores).0;
        let is_lost =
            matches!(role, NativeRole::Publisher | NativeRole::Consumer | NativeRole::Both) && self.phase == Phase::Faulty;
        let core = if is_lost && self.rng.chance(0.1) { Some(self.rng.below(cores as u64) as u16) } else { Some(home) };
        let client = NativeClient::new(wire, role, self.reach(key, node), core);
        self.came(wire, AnyClient::Native(Box::new(client)), node, key)
    }

    pub fn came(&mut self, wire: u64, client: AnyClient, node: usize, key: TopicPartition) -> u64 {
        self.clients.insert(wire, Visitor { client, node, key, is_spread: false, is_slow: false, since: self.now });
        let at = self.soon(MS);
        self.queue.put(at, Happening::Act { wire });
        wire
    }

    pub fn act(&mut self, wire: u64) {
        self.book.time_is(self.now / MS);
        let Some(v) = self.clients.get_mut(&wire) else { return };
        if let AnyClient::Native(c) = &mut v.client {
            c.age_ms = (self.now - v.since) / MS;
        }
        match self.phase {
            Phase::Faulty => v.client.act(&mut self.book, &mut self.rng),
            _ => v.client.act_quick(&mut self.book),
        }
        let node = v.node;
        self.book.may_not_be_asked(wire, |key| self.meta.leader(key) != Some(node));
        let is_old = self.phase == Phase::Faulty && self.rng.chance(0.004);
        let leaves = is_old || v.client.wants_to_leave() && (v.client.is_satisfied() || self.rng.chance(0.2));
        self.flush(wire);
        if leaves {
            return self.hang_up(wire);
        }
        let at = match self.phase {
            Phase::Faulty => self.now + 500 * US + self.rng.below(50 * MS),
            _ => self.now + 20 * MS,
        };
        self.queue.put(at, Happening::Act { wire });
    }

    /// Sends the client's output.
    pub fn flush(&mut self, wire: u64) {
        let Some(v) = self.clients.get_mut(&wire) else { return };
        let bytes = std::mem::take(v.client.out());
        self.put_on_wire(wire, 0, bytes);
    }

    pub fn client_receives(&mut self, wire: u64, bytes: &[u8]) {
        self.book.time_is(self.now / MS);
        let Some(v) = self.clients.get_mut(&wire) else { return };
        v.client.receive(&mut self.book, bytes);
        if self.phase != Phase::Faulty && !v.is_slow {
            v.client.act_quick(&mut self.book);
        }
        self.flush(wire);
    }

    pub fn client_gone(&mut self, wire: u64) {
        if let Some(v) = self.clients.remove(&wire) {
            self.book.time_is(self.now / MS);
            if matches!(&v.client, AnyClient::Nsq(c) if c.asks_for_operated()) {
                self.book.may_ask_for_operated(&(v.key.0, OPERATED.to_owned()), v.key.1);
            }
            self.book.hung_up(wire);
        }
    }
}
