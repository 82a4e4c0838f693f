//! Phase after the faults: `quiet_cluster_converges`. Every replica is in sync and every leader takes writes again, every idempotent
//! producer gets its answers, every channel all that it is owed; then the nodes stop and all logs are the same.

use super::check::CheckReason;
use super::clients::Visitor;
use super::meta::TopicPartition;
use super::node::recover_options;
use super::plan::Coordination;
use super::world::{MS, Phase, SECOND, World};
use crate::base::{CoreId, Rng};
use crate::codec::native::Start;
use crate::log::recovery::recover;
use crate::log::state::RecoveredPartition;
use crate::metrics::stats::ShardStats;
use crate::seam::event::Event;
use crate::seam::message::{MeshMessage, Ticket};
use crate::sim::node::any::AnyClient;
use crate::sim::node::book::{Book, ChannelKey, OPERATED, ORDERED};
use crate::sim::node::client::{Client, Role};
use crate::sim::node::native::NativeRole;

/// Patience in simulated time; a partition opens and catches up within a few seconds.
const PATIENCE: u64 = 90 * SECOND;
/// Simulated time that a message takes from a leader to a client at rest, and its FIN to the book.
const WAY_MS: u64 = 150;

impl World {
    pub fn all_hang_up(&mut self) {
        let all: Vec<u64> = self.clients.keys().copied().collect();
        all.into_iter().for_each(|wire| self.hang_up(wire));
    }

    pub fn converge(&mut self) {
        self.all_hang_up();
        self.heal();
        self.book.time_is(self.now / MS);
        self.book.is_calm(true);
        self.leaders_come_in_time();
        let until = self.now + PATIENCE;
        self.wait(until, "all nodes are up and in sync", World::is_in_step);
        let drains_first = self.victim.is_some() && self.rng.chance(0.5);
        if !drains_first {
            self.find_damage();
        }
        self.wait(until, "every producer has its answers", World::has_finished_producers);
        if self.plan.faults.operator > 0.0 {
            self.wait(until, "every channel goes on", World::lets_all_go_on);
        }
        self.wait(until, "every channel has what it is owed", World::has_drained);
        if drains_first {
            self.find_damage();
        }
        self.consumers_read_all_partitions();
        self.publish_at_rest();
        self.wait(until, "what is published at rest comes", World::has_drained);
        self.defer_at_rest();
        self.wait(self.now + PATIENCE, "what was put off at rest has come", World::has_drained);
        self.let_groups_come();
        self.book.producers_converge(false);
        self.book.acked_survives_to_every_channel();
    }

    /// The messages of a MPUB that had no answer come too: all of them, or none. One may have been put off for longer than all
    /// faults take. Each channel keeps its clients meanwhile: a leader that moves loses those that it had.
    fn let_groups_come(&mut self) {
        let until = self.now + PATIENCE;
        while self.now < until && self.book.group_that_came_in_part().is_some() {
            self.see_to_clients();
            self.run_until(self.now + 100 * MS);
        }
    }

    /// Lets time pass until it is so.
    fn wait(&mut self, until: u64, what: &str, is_so: fn(&mut World) -> bool) {
        while !is_so(self) {
            if self.now > until {
                let text = self.describe();
                panic!("quiet_cluster_converges: not so after {} s: {what}\n{text}", PATIENCE / SECOND);
            }
            self.run_until(self.now + 200 * MS);
        }
        self.say(|| format!("now {what}"));
    }

    /// Only a scrubber finds damage that no reader has met. It goes through everything after a startup, and then rests for an hour. So
    /// the damaged node is started again, and must have repaired all when its scrubber is through.
    fn find_damage(&mut self) {
        let Some(victim) = self.victim else { return };
        self.begin_stop(victim);
        let until = self.now + PATIENCE;
        self.run_until(self.now + 2 * SECOND);
        self.wait(until, "all nodes are up and in sync again", World::is_in_step);
        self.wait(until, "damage is found and mended", World::is_mended);
    }

    fn is_mended(&mut self) -> bool {
        let Some(victim) = self.victim else { return true };
        self.left.clear();
        self.ask_what_is_left(victim);
        let is_whole = |s: &ShardStats| {
            // remains of a partition that it has no more do not count
            let replicas = s.partitions.iter().filter_map(|p| p.replication.as_ref()).filter(|r| r.role != "none");
            let damaged = replicas.filter_map(|r| r.damaged);
            (s.scrubs > 0 || s.partitions.is_empty()) && damaged.count() == 0
        };
        self.left.len() == self.nodes[victim].cores as usize && self.left.iter().all(|(_, s)| is_whole(s))
    }

    fn is_in_step(&mut self) -> bool {
        let runs = |n: usize| self.nodes[n].running.as_ref().is_some_and(|r| !r.is_stopping) && !self.is_read_only(n);
        let are_up = (0..self.nodes.len()).all(runs);
        are_up && self.has_wishes_fulfilled() && self.meta.all_keys().iter().all(|key| self.is_whole(key))
    }

    fn has_finished_producers(&mut self) -> bool {
        let open: Vec<usize> = (0..self.book.producers.len()).filter(|k| !self.book.producers[*k].is_done()).collect();
        for &k in &open {
            let p = &self.book.producers[k];
            let key = (p.topic, p.partition);
            let is_served = p.owner != 0 && self.clients.contains_key(&p.owner);
            let Some(leader) = self.meta.leader(key).filter(|n| !is_served && self.takes_clients(*n)) else { continue };
            self.native_client(NativeRole::Finish(k), key, leader);
        }
        open.is_empty()
    }

    fn has_drained(&mut self) -> bool {
        self.see_to_clients();
        let is_all_there = self.book.owes().is_none() && self.book.first_lacks().is_none();
        is_all_there && self.clients.values().all(|v| v.client.is_satisfied())
    }

    /// Connects a client to each partition of each channel that has none, at its leader.
    fn see_to_clients(&mut self) {
        for key in self.meta.keys() {
            for channel in self.book.channels().into_iter().filter(|(topic, _)| *topic == key.0) {
                if self.has_spread_consumer(&channel, key) {
                    continue;
                }
                if self.book.is_on(&channel, key.1) {
                    self.drain(channel, key);
                }
            }
        }
    }

    fn drain(&mut self, channel: ChannelKey, key: TopicPartition) {
        let Some(leader) = self.meta.leader(key).filter(|n| self.takes_clients(*n)) else { return };
        let is_relayed = self.plan.relays();
        let stays = |client: &AnyClient| is_relayed && matches!(client, AnyClient::Nsq(_));
        let drains = |v: &Visitor| v.key == key && (v.node == leader || stays(&v.client)) && v.client.drains(&channel);
        if self.clients.values().any(drains) {
            return;
        }
        // an ordered channel stays so, and messages come in its own form
        let natively = channel.1 != ORDERED && channel.1 != OPERATED && self.rng.chance(self.plan.native);
        if natively {
            let wire = self.native_client(NativeRole::Drain, key, leader);
            let visitor = self.clients.get_mut(&wire).expect("it just came");
            if let AnyClient::Native(client) = &mut visitor.client {
                client.subscribe(&mut self.book, channel, key.1, Start::Default);
            }
            return self.flush(wire);
        }
        let node = if is_relayed { self.rng.below(self.nodes.len() as u64) as usize } else { leader };
        let wire = self.nsq_client(Role::Drain, key, if self.takes_clients(node) { node } else { leader });
        if let AnyClient::Nsq(client) = &mut self.clients.get_mut(&wire).expect("it just came").client {
            client.subscribe(&mut self.book, channel, 50);
        }
        self.flush(wire);
    }

    /// Every partition takes a publish, at the latest after a few attempts: earlier writes may need another epoch to be decided.
    fn publish_at_rest(&mut self) {
        let mut left = self.meta.keys();
        for _ in 0..6 {
            left = self.publish_to_each(&left);
            if left.is_empty() {
                return;
            }
        }
        let text = self.describe();
        panic!("quiet_cluster_converges: no publish is taken by {left:?}\n{text}");
    }

    /// Defers messages at rest, which have to come in their time (`due_times_hold`), also where so much is published behind them that
    /// they are copied forward.
    fn defer_at_rest(&mut self) {
        if self.plan.faults.put_off == 0.0 {
            return;
        }
        let since_ms = self.now / MS;
        let keys: Vec<TopicPartition> =
            self.meta.keys().into_iter().filter(|key| self.meta.topics[&key.0].partitions == 1).collect();
        let mut publishers = vec![];
        for key in keys {
            let Some(leader) = self.meta.leader(key).filter(|n| self.takes_clients(*n)) else { continue };
            let wire = self.nsq_client(Role::Publisher, key, leader);
            self.publish_with(wire, Client::defer_some);
            publishers.push(wire);
        }
        for step in 0..120 {
            if step < 40 {
                publishers.iter().for_each(|wire| self.publish_with(*wire, Client::publish_to_all));
            }
            self.run_until(self.now + 50 * MS);
            self.has_drained();
            self.book.time_is(self.now / MS);
            self.book.none_is_late(since_ms, WAY_MS);
        }
    }

    fn publish_with(&mut self, wire: u64, publish: fn(&mut Client, &mut Book, &mut Rng)) {
        if let Some(AnyClient::Nsq(client)) = self.clients.get_mut(&wire).map(|v| &mut v.client) {
            publish(client, &mut self.book, &mut self.rng);
        }
        self.flush(wire);
    }

    /// Partitions that took no publish.
    fn publish_to_each(&mut self, keys: &[TopicPartition]) -> Vec<TopicPartition> {
        let mut asked = vec![];
        for &key in keys {
            let Some(leader) = self.meta.leader(key).filter(|n| self.takes_clients(*n)) else {
                asked.push((key, 0));
                continue;
            };
            if self.rng.chance(0.5) {
                let wire = self.nsq_client(Role::Publisher, key, leader);
                if let AnyClient::Nsq(client) = &mut self.clients.get_mut(&wire).expect("it just came").client {
                    client.publish_to_all(&mut self.book, &mut self.rng);
                }
                self.flush(wire);
                asked.push((key, wire));
                continue;
            }
            let wire = self.native_client(NativeRole::Publisher, key, leader);
            if let AnyClient::Native(client) = &mut self.clients.get_mut(&wire).expect("it just came").client {
                client.publish_to(&mut self.book, &mut self.rng, key.0, key.1);
            }
            self.flush(wire);
            asked.push((key, wire));
        }
        let until = self.now + 5 * SECOND;
        let mut refused = asked;
        while self.now < until && !refused.is_empty() {
            self.run_until(self.now + 100 * MS);
            refused.retain(|(_, wire)| !self.has_taken(*wire));
        }
        refused.into_iter().map(|(key, _)| key).collect()
    }

    /// True if all publishes of a client were taken.
    fn has_taken(&self, wire: u64) -> bool {
        let client = self.clients.get(&wire).map(|v| &v.client);
        client.is_some_and(|c| c.is_satisfied() && !c.has_failed() && !c.wants_to_leave() && !c.lacks_publish())
    }

    /// Stops all nodes and compares their disks.
    pub fn end(&mut self) {
        self.all_hang_up();
        // the last committed batches reach every replica, also one that was out of sync for a moment, and marked facts are written
        let rest = if self.plan.coordination == Coordination::File { 3 * SECOND } else { SECOND };
        self.run_until(self.now + rest);
        self.wait(self.now + PATIENCE, "all nodes are up and in sync in the end", World::is_in_step);
        self.leaders_come_to_rest();
        self.a_moved_replica_leaves_nothing();
        self.phase = Phase::Ending;
        (0..self.nodes.len()).for_each(|n| self.begin_stop(n));
        let until = self.now + 20 * SECOND;
        while self.nodes.iter().any(|n| n.running.is_some()) {
            assert!(self.now < until, "quiet_cluster_converges: a node does not stop\n{}", self.describe());
            self.run_until(self.now + 100 * MS);
        }
        let (mut logs, mut starts) = (vec![], vec![]);
        for n in 0..self.nodes.len() {
            let unix_ns = self.nodes[n].clocks(self.now).unix_ns;
            let options = recover_options(self.nodes[n].cores, unix_ns, 1, self.is_clustered());
            self.nodes[n].disk.faults = Default::default();
            let recovered = recover(&mut self.nodes[n].disk, &options).unwrap_or_else(|e| panic!("recovery gave up: {e}"));
            let start = |p: &RecoveredPartition| Some(((self.check.topic(&p.topic.name)?, p.dir.partition.0), p.start.offset));
            starts.push(recovered.partitions.iter().filter_map(start).collect());
            logs.push(self.look_at(n, &recovered, CheckReason::End));
            self.look_for_passing(n, &recovered);
            self.an_ephemeral_channel_goes(n, &recovered);
        }
        self.replicas_are_equal(&logs, &starts);
    }

    pub fn ask_what_is_left(&mut self, n: usize) {
        for core in 0..self.nodes[n].cores as usize {
            let message = MeshMessage::StatsRequest { ticket: Ticket(1), topic: None, channel: None, clients: false };
            self.step(n, core, Event::Mesh { from: CoreId::HTTP, message });
        }
    }

    /// Records a node's answer about its partitions.
    pub fn note_left(&mut self, n: usize, message: MeshMessage) {
        match message {
            MeshMessage::Catalog { .. } => {}
            MeshMessage::Stats { stats, .. } => self.left.push((n, *stats)),
            other => self.operator_hears(other),
        }
    }

    /// The state of all, for the message of a failure.
    pub fn describe(&mut self) -> String {
        self.left.clear();
        for n in 0..self.nodes.len() {
            self.ask_what_is_left(n);
        }
        let nodes = self.nodes.iter().enumerate().map(|(n, node)| {
            let state = match &node.running {
                Some(r) if r.is_stopping => "is stopping",
                Some(_) => "runs",
                None => "is down",
            };
            format!("node{n} {:?} {state}, generation {}, read-only {}\n", node.id, node.generation, self.is_read_only(n))
        });
        let nodes: String = nodes.collect();
        let entries: String = self.meta.entries.iter().map(|(key, e)| format!("{key:?} {:?}\n", e.now)).collect();
        let left: String = self.left.iter().map(|(n, stats)| format!("node{n} {stats:?}\n")).collect();
        let clients: Vec<&AnyClient> = self.clients.values().map(|v| &v.client).filter(|c| !c.is_satisfied()).take(4).collect();
        let agents = self.describe_agents();
        format!("{nodes}{agents}{entries}owed: {:?}\nunanswered: {clients:?}\n{left}", self.book.owes())
    }
}
