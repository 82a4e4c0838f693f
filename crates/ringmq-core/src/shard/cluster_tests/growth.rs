//! Partitions that are added to a topic.

use super::*;
use crate::base::ChannelName;

impl Net {
    /// The topic has so many partitions from now on; node 0 leads the new ones, which begin with these channels.
    fn grow(&mut self, partitions: u16, channels: &[&str]) {
        let from = self.topic.partitions;
        self.topic = TopicInfo { partitions, ..(*self.topic).clone() }.into();
        let nodes: Vec<NodeId> = (0..3).map(id_of_node).collect();
        for _ in from..partitions {
            let (leader, replicas, isr) = (Some(nodes[0]), nodes.clone(), nodes.clone());
            let first = Membership { version: 1, epoch: Epoch(1), leader, replicas, isr, ..self.metadata[0].clone() };
            self.metadata.push(first);
        }
        let names = channels.iter().map(|name| ChannelName::new(name).expect("valid"));
        let grown = Fact::TopicGrown { topic: self.topic.id, from, channels: names.collect() };
        for node in 0..3 {
            self.tell(node, Fact::Topic(self.topic.clone()));
            self.tell(node, grown.clone());
            (from..partitions).for_each(|p| self.tell_partition(node, p));
        }
    }

    fn partitions_on_disk(&self, node: usize) -> u16 {
        let mut disk = self.nodes[node].disk.clone();
        disk.crash();
        let recovered = recover(&mut disk, &self.recover_options(node)).expect("a disk without faults");
        assert!(!recovered.report.has_damage(), "{:?}", recovered.report);
        recovered.topics[0].partitions
    }
}

#[test]
fn added_partitions_get_publishes_and_every_channel_gets_all_of_them() {
    for cores in [1, 2] {
        let mut net = Net::with(cores, 1, Settings::default());
        let (consumer, _) = net.subscribe(0, "consumed", 100);
        let (idle, _) = net.subscribe(0, "idle", 0);
        let core = net.clients[&idle].1;
        net.step(0, core, Event::Closed { conn: idle });
        net.run();
        net.grow(4, &["consumed", "idle"]);
        net.run();
        net.pass_time(Duration::from_secs(1));
        let p = net.connect(0);
        (0..8).for_each(|i| net.publish(p, &format!("m{i}")));
        net.pass_time(Duration::from_secs(1));
        assert_eq!(net.take(p), ["OK"; 8]);
        let got = net.take(consumer);
        let mut all = bodies(&got).into_iter().map(String::from).collect::<Vec<_>>();
        all.sort();
        assert_eq!(all, ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"], "without another SUB, of {cores} cores");
        net.finish(consumer, &got);
        net.pass_time(Duration::from_secs(1));
        assert!((1..4).all(|partition| (0..3).all(|node| {
            let channels = net.partition(node, partition).open_channels().count();
            channels == 2
        })));
        // The channel that had no consumer gets them all, from the next leader, too.
        (0..4).for_each(|partition| net.elect(partition, 1));
        net.pass_time(Duration::from_secs(1));
        let (late, mut got) = net.subscribe(1, "idle", 100);
        net.pass_time(Duration::from_millis(200));
        got.extend(net.take(late));
        assert_eq!(got.len(), 8, "{got:?}");
        assert!((0..3).all(|node| net.partitions_on_disk(node) == 4));
    }
}

/// Wherever the node is killed, the next startup finds a whole topic, and the added partitions go on.
#[test]
fn a_node_that_is_killed_while_partitions_are_added_has_them_after_its_next_start() {
    for cores in [1, 2] {
        for turns in 0..60 {
            let mut net = Net::with(cores, 1, Settings::default());
            net.grow(3, &[]);
            for _ in 0..turns {
                net.turn(2);
            }
            net.kill(2);
            assert!([1, 3].contains(&net.partitions_on_disk(2)));
            net.restart(2);
            net.pass_time(RECONNECT);
            let p = net.connect(0);
            (0..6).for_each(|i| net.publish(p, &format!("m{i}")));
            net.pass_time(Duration::from_secs(1));
            assert_eq!(net.take(p), ["OK"; 6], "killed after {turns} turns");
            assert!(net.partitions_on_disk(2) == 3 && net.metadata.iter().all(|m| m.isr.len() == 3));
        }
    }
}
