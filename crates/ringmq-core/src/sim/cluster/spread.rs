//! Clients that name no partition: a publish goes to any, and one SUB consumes all of them, whoever leads them.
//!
//! | check | when |
//! |---|---|
//! | a_consumer_reads_all_partitions | at rest a SUB is owed what is published to each partition ([`crate::sim::node::book`]) |
//! | rdy_is_never_exceeded | at rest no client has more messages than it is ready for |

use super::clients::Visitor;
use super::meta::TopicPartition;
use super::world::{SECOND, World};
use crate::log::recovery::Recovered;
use crate::sim::node::any::AnyClient;
use crate::sim::node::book::{ChannelKey, EPHEMERAL, MOVED, OPERATED};
use crate::sim::node::client::{Client, Role};
use crate::sim::node::reach::Reach;

/// Time in which a subscription finds the leaders of all partitions, while leaders stay.
const ALL_LEADERS: u64 = 3 * SECOND;

impl World {
    /// Whether the next client names no partition: nodes relay to leaders that have as many cores.
    pub fn names_no_partition(&mut self) -> bool {
        let chance = self.plan.faults.strays.all_partitions;
        chance > 0.0 && self.plan.relays() && self.rng.chance(chance)
    }

    /// A client of all partitions of the key's topic.
    pub fn spread_client(&mut self, role: Role, key: TopicPartition, node: usize) -> u64 {
        let wire = self.connect(node, false);
        let reach = self.reach(key, node);
        let reach = Reach { partition: None, defers_publishes: reach.defers, ..reach };
        let wire = self.came(wire, AnyClient::Nsq(Client::new(wire, role, reach)), node, key);
        self.clients.get_mut(&wire).expect("it just came").is_spread = true;
        wire
    }

    /// Whether one client drains the channel on all partitions of the topic. There is one now if that is to be.
    pub fn has_spread_consumer(&mut self, channel: &ChannelKey, key: TopicPartition) -> bool {
        let is_it = |v: &Visitor| v.is_spread && v.client.drains(channel);
        if self.clients.values().any(is_it) {
            return true;
        }
        // Another client drains the partition, or an operator deleted the channel there.
        let is_drained = self.clients.values().any(|v| v.key == key && v.client.drains(channel));
        let is_kept = self.book.is_on(channel, key.1);
        if is_drained || !is_kept || channel.1 == OPERATED || channel.1 == MOVED || !self.names_no_partition() {
            return false;
        }
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        if !self.takes_clients(node) {
            return false;
        }
        // A message that is due comes in time to a client that is ready (`due_times_hold`).
        let rdy = if self.plan.faults.put_off > 0.0 { 50 } else { [1, 2, 7, 50][self.rng.below(4) as usize] };
        let is_slow = rdy > 2 && self.plan.faults.put_off == 0.0 && self.rng.chance(0.5);
        let wire = self.spread_client(Role::Drain, key, node);
        let visitor = self.clients.get_mut(&wire).expect("it just came");
        visitor.is_slow = is_slow;
        if let AnyClient::Nsq(client) = &mut visitor.client {
            client.subscribe(&mut self.book, channel.clone(), rdy);
        }
        self.flush(wire);
        true
    }

    /// A recovery at the end: clients of ephemeral channels left long ago.
    pub fn an_ephemeral_channel_goes(&self, n: usize, recovered: &Recovered) {
        for p in &recovered.partitions {
            let left = p.channels.iter().find(|channel| *channel.name == *EPHEMERAL);
            assert!(left.is_none(), "an_ephemeral_channel_goes: node{n} {}: {left:?}", p.topic.name);
        }
    }

    /// A SUB of all partitions that has rested for long enough, also behind lost links, reads all of them: messages from now on are owed
    /// to it.
    pub fn consumers_read_all_partitions(&mut self) {
        let subscribed = |w: &World| -> Vec<(u64, ChannelKey)> {
            let spread = w.clients.iter().filter(|(_, v)| v.is_spread);
            spread.filter_map(|(wire, v)| Some((*wire, v.client.nsq()?.subscribed()?.clone()))).collect()
        };
        let before = subscribed(self);
        if before.is_empty() {
            return;
        }
        // Subscriptions lose the partitions of other nodes, and ask for them again.
        if self.rng.chance(0.7) {
            self.peer_wires().into_iter().for_each(|wire| self.reset(wire));
        }
        self.run_until(self.now + ALL_LEADERS);
        let after = subscribed(self);
        for (_, channel) in before.iter().filter(|one| after.contains(one)) {
            self.say(|| format!("a_consumer_reads_all_partitions: {channel:?}"));
            self.book.reads_all_partitions(channel);
        }
    }
}
