//! Topics that the cluster deleted: the nodes' disks are free of them, and their names are free for others.

use super::*;

const OLD: TopicId = TopicId([9; 16]);

impl Net {
    /// The name's next topic, of as many partitions as the last one, in the metadata: node 0 leads it.
    fn name_next_topic(&mut self, id: u8) {
        let (name, partitions) = (self.topic.name.clone(), self.topic.partitions);
        self.topic = TopicInfo { name, id: TopicId([id; 16]), partitions }.into();
        let nodes: Vec<NodeId> = (0..3).map(id_of_node).collect();
        for m in &mut self.metadata {
            (m.version, m.epoch, m.leader) = (m.version + 1, Epoch(1), Some(nodes[0]));
            (m.isr, m.replicas) = (nodes.clone(), nodes.clone());
        }
    }

    fn old_topic(&self) -> TopicRef {
        TopicInfo { name: self.topic.name.clone(), id: OLD, partitions: self.topic.partitions }.into()
    }

    /// Bytes of the topic's files. Segments and commit logs are kept ready for others elsewhere.
    fn topic_bytes(&self, node: usize) -> u64 {
        let disk = &self.nodes[node].disk;
        disk.paths().filter(|path| path.starts_with("topics/t/")).map(|path| disk.len_of(path)).sum()
    }

    /// Topics that a startup would find, if the node lost power now.
    fn topics_on_disk(&self, node: usize) -> Vec<TopicId> {
        let mut disk = self.nodes[node].disk.clone();
        disk.crash();
        let recovered = recover(&mut disk, &self.recover_options(node)).expect("a disk without faults");
        assert!(!recovered.report.has_damage(), "{:?}", recovered.report);
        recovered.topics.iter().map(|t| t.id).collect()
    }

    fn old_partitions(&self, node: usize) -> usize {
        let partitions = self.nodes[node].shards.iter().flat_map(|s| s.engine.core.partitions.iter());
        partitions.filter(|(_, p)| p.topic.id == OLD).count()
    }
}

fn with_old_messages(cores: u16) -> Net {
    let mut net = Net::with(cores, 4, Settings::default());
    let p = net.connect(0);
    (0..8).for_each(|i| net.publish(p, &format!("old{i}")));
    assert_eq!(net.take(p), ["OK"; 8]);
    net.subscribe(0, "ch", 0);
    net
}

fn takes_and_delivers(net: &mut Net, leader: usize) {
    let p = net.connect(1);
    (0..4).for_each(|i| net.publish(p, &format!("new{i}")));
    net.pass_time(Duration::from_secs(1));
    assert_eq!(net.take(p), ["OK"; 4]);
    let (c, mut got) = net.subscribe(leader, "ch", 9);
    net.pass_time(Duration::from_millis(100));
    got.extend(net.take(c));
    let mut got = bodies(&got);
    got.sort_unstable();
    assert_eq!(got, ["new0", "new1", "new2", "new3"], "and nothing of the old topic");
}

#[test]
fn a_deleted_topic_leaves_the_disks_and_its_name_is_free() {
    for cores in [1, 2, 3] {
        let mut net = with_old_messages(cores);
        let (consumer, _) = net.subscribe(0, "ch", 1);
        net.name_next_topic(8);
        for node in 0..3 {
            net.tell(node, Fact::TopicDeleted(net.old_topic()));
        }
        net.run();
        assert!(net.closed.contains(&consumer), "its clients leave");
        for node in 0..3 {
            assert_eq!((net.old_partitions(node), net.topic_bytes(node)), (0, 0), "node {node} of {cores} cores");
            assert_eq!(net.topics_on_disk(node), []);
        }
        let p = net.connect(0);
        net.publish(p, "x");
        assert!(net.take(p)[0].starts_with("E_TOPIC_NOT_EXIST"));
        (0..3).for_each(|node| net.tell_all(node));
        net.run();
        net.pass_time(Duration::from_secs(1));
        takes_and_delivers(&mut net, 0);
        assert!((0..3).all(|node| net.topics_on_disk(node) == [TopicId([8; 16])]));
    }
}

/// The next topic of the name comes while the files of the old one are still there: its publishes wait.
#[test]
fn a_topic_of_the_name_waits_until_the_old_one_is_gone() {
    for cores in [1, 3] {
        let mut net = with_old_messages(cores);
        (0..3).for_each(|node| net.nodes[node].is_slow = true);
        let waiting = net.connect(0);
        net.publish(waiting, "lost");
        net.name_next_topic(8);
        for node in 0..3 {
            net.tell(node, Fact::TopicDeleted(net.old_topic()));
            net.tell_all(node);
        }
        net.run();
        let told = net.take(waiting);
        assert!(told.len() == 1 && told[0].starts_with("E_"), "a publish that waits is told: {told:?}");
        let p = net.connect(0);
        net.publish(p, "new");
        net.pass_time(Duration::from_secs(1));
        assert!(net.take(p).is_empty() && net.topic_bytes(0) > 0, "nothing is stored beside the old topic");
        (0..3).for_each(|node| net.nodes[node].is_slow = false);
        net.run();
        net.pass_time(Duration::from_secs(1));
        assert_eq!(net.take(p), ["OK"]);
        assert!((0..3).all(|node| net.topics_on_disk(node) == [TopicId([8; 16])] && net.old_partitions(node) == 0));
    }
}

#[test]
fn a_node_that_was_away_removes_the_topic_when_it_is_back() {
    let mut net = with_old_messages(2);
    net.kill(2);
    net.name_next_topic(8);
    for node in 0..2 {
        net.tell(node, Fact::TopicDeleted(net.old_topic()));
        net.tell_all(node);
    }
    net.run();
    net.pass_time(Duration::from_secs(1));
    let disk = std::mem::replace(&mut net.nodes[2].disk, SimDisk::new(0));
    net.nodes[2] = net.start(2, disk);
    net.run();
    assert!(net.topics_on_disk(2) == [OLD], "no fact, no removal");
    net.tell(2, Fact::TopicDeleted(net.old_topic()));
    net.tell_all(2);
    net.run();
    net.pass_time(RECONNECT);
    takes_and_delivers(&mut net, 0);
    net.pass_time(Duration::from_secs(1));
    assert_eq!((net.topics_on_disk(2), net.old_partitions(2)), (vec![TopicId([8; 16])], 0));
    assert_eq!(net.metadata[0].isr.len(), 3, "it is a replica of the new one");
}

/// Wherever the node is killed: the next startup finds the whole topic or none of it, and ends with none.
#[test]
fn a_node_that_is_killed_while_it_removes_a_topic_finishes_that() {
    for cores in [1, 2] {
        let mut last = 0;
        for turns in 0.. {
            let mut net = with_old_messages(cores);
            net.tell(2, Fact::TopicDeleted(net.old_topic()));
            let mut did = true;
            for _ in 0..turns {
                did = net.turn(2);
            }
            let is_over = !did && net.nodes[2].mesh.is_empty() && net.topic_bytes(2) == 0;
            net.kill(2);
            net.name_next_topic(8);
            let disk = std::mem::replace(&mut net.nodes[2].disk, SimDisk::new(0));
            net.nodes[2] = net.start(2, disk);
            for node in 0..3 {
                net.tell(node, Fact::TopicDeleted(net.old_topic()));
                net.tell_all(node);
            }
            net.run();
            net.pass_time(RECONNECT);
            assert!(net.topics_on_disk(2) == [TopicId([8; 16])] && net.old_partitions(2) == 0, "killed after {turns} turns");
            takes_and_delivers(&mut net, 0);
            last = turns;
            if is_over {
                break;
            }
        }
        assert!(last > 5, "there are moments to be killed at: {last}");
    }
}

/// The tombstone comes while the topic's own record is on its way to the journal.
#[test]
fn a_topic_that_is_deleted_while_it_comes_goes_when_it_is_there() {
    for (cores, has_next) in [(1, false), (2, false), (1, true), (2, true)] {
        let mut net = with_old_messages(cores);
        net.nodes[1].is_slow = true;
        let other =
            TopicRef::new(TopicInfo { name: TopicName::new("brief").expect("valid"), id: TopicId([7; 16]), partitions: 1 });
        let membership = Membership { version: 1, ..net.metadata[0].clone() };
        net.tell(1, Fact::Topic(other.clone()));
        net.tell(1, Fact::Partition { topic: other.clone(), partition: PartitionId(0), membership });
        net.run();
        net.tell(1, Fact::TopicDeleted(other.clone()));
        let next = TopicRef::new(TopicInfo { id: TopicId([6; 16]), ..(*other).clone() });
        if has_next {
            let membership = Membership { version: 2, ..net.metadata[0].clone() };
            net.tell(1, Fact::Topic(next.clone()));
            net.tell(1, Fact::Partition { topic: next.clone(), partition: PartitionId(0), membership });
        }
        net.run();
        net.nodes[1].is_slow = false;
        net.run();
        net.pass_time(Duration::from_secs(1));
        let expected = if has_next { vec![next.id, OLD] } else { vec![OLD] };
        assert_eq!(net.topics_on_disk(1), expected, "of {cores} cores");
    }
}

/// Found by the cluster simulator (seed 442000000000103).
#[test]
fn a_name_that_came_back_before_its_deletions_were_told_is_the_last_topics() {
    let mut net = Net::new();
    for id in 20..40 {
        net.name_next_topic(id);
        net.tell(1, Fact::Topic(net.topic.clone()));
        let known = net.nodes[1].shards[0].engine.core.topics.known("t").map(|t| t.id);
        assert_eq!(known, Some(TopicId([id; 16])));
    }
}
