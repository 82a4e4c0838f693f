//! Replicas that moved to other nodes: the disks of those that had them are free of them, and they may come back.

use super::*;
use crate::shard::parts::CoreParts;

impl Net {
    /// Node 2 is no replica of the partition any more.
    fn move_away(&mut self, partition: u16) {
        self.change(partition, |m| {
            m.replicas.truncate(2);
            m.isr.truncate(2);
            m.removals += 1;
        });
        self.pass_time(Duration::from_millis(100));
    }

    /// Node 2 is a replica again, which has to catch up.
    fn move_back(&mut self, partition: u16) {
        self.change(partition, |m| m.replicas.push(id_of_node(2)));
    }

    /// Files of the partitions of the topic, topic.meta aside.
    fn files(&self, node: usize) -> usize {
        let is_of_partition = |path: &&str| path.starts_with("topics/t/") && !path.contains("topic.meta");
        self.nodes[node].disk.paths().filter(is_of_partition).count()
    }

    fn partitions_in_memory(&self, node: usize) -> usize {
        self.nodes[node].shards.iter().map(|s| s.engine.core.partitions.iter().count()).sum()
    }

    /// Messages that a startup would find in the partition, if the node lost power now.
    fn stored(&self, node: usize, partition: u16) -> i64 {
        let mut disk = self.nodes[node].disk.clone();
        disk.crash();
        let recovered = recover(&mut disk, &self.recover_options(node)).expect("a disk without faults");
        assert!(!recovered.report.has_damage(), "{:?}", recovered.report);
        recovered.partitions.iter().find(|p| p.dir.partition.0 == partition).map_or(0, |p| p.end.count)
    }

    fn publish_some(&mut self, count: usize) {
        let p = self.connect(0);
        (0..count).for_each(|i| self.publish(p, &format!("m{i}")));
        self.pass_time(Duration::from_millis(200));
        assert_eq!(self.take(p), vec!["OK"; count]);
        self.leave(p);
    }
}

fn with_messages(cores: u16, partitions: u16) -> Net {
    let mut net = Net::with(cores, partitions, Settings::default());
    net.publish_some(8);
    net.subscribe(0, "ch", 0);
    net.pass_time(Duration::from_millis(500));
    net
}

#[test]
fn a_replica_that_moved_away_leaves_the_disk_and_may_come_back() {
    for (cores, partitions) in [(1, 1), (2, 4), (3, 2)] {
        let mut net = with_messages(cores, partitions);
        let (files, before) = (net.files(2), net.partitions_in_memory(2));
        for round in 0..3 {
            net.move_away(0);
            assert!(net.files(2) < files && net.stored(2, 0) == 0, "round {round} of {cores} cores");
            assert_eq!((net.partitions_in_memory(2), net.files(0), net.files(1)), (before - 1, files, files));
            if partitions == 1 {
                assert_eq!(net.files(2), 0);
            }
            net.publish_some(partitions as usize);
            net.move_back(0);
            net.pass_time(Duration::from_secs(5));
            assert_eq!(net.metadata[0].isr.len(), 3, "it is in sync again");
            assert_eq!(net.stored(2, 0), net.stored(0, 0));
            assert_eq!(net.cursors_on_disk(2), net.cursors_on_disk(0));
        }
        // What it has now counts: it leads alone with one other.
        net.elect(0, 2);
        net.pass_time(Duration::from_secs(1));
        net.publish_some(partitions as usize);
    }
}

/// The records of the replica fill the journal, and are all that a checkpoint could free.
#[test]
fn a_replica_leaves_also_when_its_records_fill_the_journal() {
    let mut net = with_messages(1, 1);
    net.nodes[2].is_slow = true;
    let bytes = net.nodes[2].shards[0].engine.core.settings.journal_bytes;
    let CoreParts { store, partitions, .. } = &mut net.nodes[2].shards[0].engine.core;
    let (idx, _) = partitions.iter().next().expect("it has a replica");
    // The ring stays full: a record takes less of it than it counts for in the queue.
    while store.queued_bytes() < 2 * bytes {
        store.log_collect_start(idx, store.collect_start(idx));
    }
    net.move_away(0);
    assert!(net.files(2) > 0, "the journal has no room for the decision yet");
    net.nodes[2].is_slow = false;
    net.pass_time(Duration::from_secs(5));
    assert_eq!((net.files(2), net.stored(2, 0)), (0, 0));
}

/// Something acts on an older version, or nobody may have what is committed: the files stay.
#[test]
fn nothing_goes_before_the_metadata_says_again_that_the_replica_is_none() {
    let mut net = with_messages(1, 1);
    let files = net.files(2);
    net.is_store_there = false;
    net.move_away(0);
    net.pass_time(Duration::from_secs(20));
    assert_eq!((net.files(2), net.stored(2, 0)), (files, 8), "the store is not there");
    assert_eq!(net.leaves_asked, 4, "after pauses of 2, 4 and 8 seconds");
    // It is a replica again before the store was heard of.
    net.move_back(0);
    net.is_store_there = true;
    net.pass_time(Duration::from_secs(5));
    assert_eq!((net.files(2), net.metadata[0].isr.len()), (files, 3));
    for keep in [|m: &mut Membership| m.leader = None, |m: &mut Membership| m.isr.truncate(1)] {
        let mut net = with_messages(1, 1);
        // Nobody joins the ISR.
        net.isolate(1, true);
        net.change(0, |m| {
            m.replicas.truncate(2);
            m.isr.truncate(2);
            m.removals += 1;
            keep(m);
        });
        let moved = net.metadata[0].has_moved_from(id_of_node(2));
        net.pass_time(Duration::from_millis(50));
        assert!(!moved && net.files(2) == files && net.stored(2, 0) == 8);
    }
}

#[test]
fn a_node_that_was_away_at_the_move_removes_the_files_when_it_is_back() {
    let mut net = with_messages(2, 2);
    let files = net.files(2);
    net.kill(2);
    net.move_away(0);
    let disk = std::mem::replace(&mut net.nodes[2].disk, SimDisk::new(0));
    net.nodes[2] = net.start(2, disk);
    net.run();
    assert!(net.files(2) == files, "no fact, no removal");
    net.tell_all(2);
    net.run();
    assert!(net.files(2) < files && net.stored(2, 0) == 0 && net.stored(2, 1) > 0);
    // A startup finds nothing of it, and asks for nothing.
    net.kill(2);
    net.restart(2);
    net.pass_time(RECONNECT);
    let left = net.files(2);
    assert!(left < files && net.stored(2, 0) == 0);
    net.move_back(0);
    net.pass_time(Duration::from_secs(5));
    assert_eq!((net.metadata[0].isr.len(), net.stored(2, 0)), (3, net.stored(0, 0)));
}

/// Wherever the node is killed: the next startup finds the whole replica or none of it, and ends with none; and it comes back as a new one.
#[test]
fn a_node_that_is_killed_while_it_removes_a_replica_finishes_that() {
    for comes_back in [false, true] {
        let (mut last, mut whole, mut none) = (0, 0, 0);
        for turns in 0.. {
            let mut net = with_messages(1, 1);
            let before = net.stored(2, 0);
            let m = &mut net.metadata[0];
            (m.version, m.removals) = (m.version + 1, m.removals + 1);
            m.replicas.truncate(2);
            m.isr.truncate(2);
            (0..3).for_each(|node| net.tell_partition(node, 0));
            let mut did = true;
            for _ in 0..turns {
                did = net.turn(2);
            }
            let is_over = !did && net.files(2) == 0;
            if comes_back {
                net.move_back(0);
                net.pass_time(Duration::from_millis(turns % 7));
            }
            net.kill(2);
            match net.stored(2, 0) {
                0 => none += 1,
                n if n == before => whole += 1,
                n => assert!(comes_back, "killed after {turns} turns: {n} of {before} messages"),
            }
            net.restart(2);
            net.pass_time(RECONNECT);
            if !comes_back {
                assert_eq!(net.files(2), 0, "killed after {turns} turns");
                net.move_back(0);
            }
            net.pass_time(Duration::from_secs(5));
            assert_eq!((net.metadata[0].isr.len(), net.stored(2, 0)), (3, before), "killed after {turns} turns");
            assert_eq!(net.cursors_on_disk(2), net.cursors_on_disk(0));
            last = turns;
            if is_over {
                break;
            }
        }
        assert!(last > 3 && none > 0 && (comes_back || whole > 0), "there are moments to be killed at: {last} {whole} {none}");
    }
}

/// The topic's tombstone comes while a replica of it goes.
#[test]
fn a_topic_that_is_deleted_while_a_replica_goes_goes_too() {
    for turns in 0..12 {
        let mut net = with_messages(2, 2);
        let m = &mut net.metadata[0];
        (m.version, m.removals) = (m.version + 1, m.removals + 1);
        m.replicas.truncate(2);
        m.isr.truncate(2);
        net.tell_partition(2, 0);
        for _ in 0..turns {
            net.turn(2);
        }
        net.tell(2, Fact::TopicDeleted(net.topic.clone()));
        net.run();
        net.pass_time(Duration::from_secs(1));
        let left = net.nodes[2].disk.paths().filter(|path| path.starts_with("topics/t/")).count();
        assert_eq!((left, net.partitions_in_memory(2)), (0, 0), "deleted after {turns} turns");
    }
}

/// A publish at the node while the files go is the leader's, as at any node without a replica.
#[test]
fn publishes_at_the_node_are_forwarded_while_the_files_go() {
    let mut net = with_messages(1, 1);
    net.nodes[2].is_slow = true;
    net.move_away(0);
    assert!(net.files(2) > 0, "the decision is on its way to the journal");
    let p = net.connect(2);
    net.publish(p, "x");
    net.pass_time(Duration::from_millis(200));
    assert_eq!(net.take(p), ["OK"]);
    net.nodes[2].is_slow = false;
    net.run();
    net.publish(p, "y");
    net.pass_time(Duration::from_millis(200));
    assert_eq!((net.take(p), net.files(2)), (vec!["OK".to_owned()], 0));
}
