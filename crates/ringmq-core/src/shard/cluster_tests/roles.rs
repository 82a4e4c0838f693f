//! Permission to use a partition, and its end.

use super::*;
use crate::base::ChannelName;
use crate::seam::cluster::TopicProperties;
use crate::seam::message::{SetOrder, Ticket};

#[test]
fn topics_come_from_the_metadata_alone() {
    let mut net = Net::new();
    for command in [&b"PUB other\n\0\0\0\x01x"[..], b"SUB other ch\n"] {
        let c = net.connect(0);
        net.send(c, command);
        let got = net.take(c);
        assert!(got.len() == 1 && got[0].starts_with("E_TOPIC_NOT_EXIST"), "{got:?}");
        assert_eq!(net.closed.pop(), Some(c));
    }
    net.tell(0, Fact::TopicGone(net.topic.clone()));
    let p = net.connect(0);
    net.publish(p, "x");
    assert!(net.take(p)[0].starts_with("E_TOPIC_NOT_EXIST"));
    assert_eq!(net.state(0), State::Idle);
}

/// A partition on the disk that no fact names is kept and not served, until a fact names it.
#[test]
fn a_partition_without_metadata_is_kept_and_not_served() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "x");
    net.kill(0);
    let disk = std::mem::replace(&mut net.nodes[0].disk, SimDisk::new(0));
    net.nodes[0] = net.start(0, disk);
    net.run();
    assert_eq!((net.state(0), net.durable(0)), (State::Idle, 1));
    let c = net.connect(0);
    net.send(c, b"SUB t ch\n");
    assert!(net.take(c)[0].starts_with("E_TOPIC_NOT_EXIST"));
}

/// The node's other core may wait for its clients meanwhile.
#[test]
fn a_core_that_has_stopped_serves_nothing() {
    let mut net = Net::with(2, 2, Settings::default());
    net.subscribe(0, "ch", 1);
    let core = net.topic.core_of(PartitionId(0), 2).0 as usize;
    let serves = |net: &Net| net.nodes[0].shards[core].served(net.now.ticks).count();
    assert_eq!(serves(&net), 1);
    net.step(0, core, Event::Stop);
    net.pass_time(Duration::from_millis(100));
    let shard = &net.nodes[0].shards[core];
    let knows_the_lease = shard.engine.core.partitions.iter().any(|(_, p)| p.check_read(net.now.ticks).is_ok());
    assert!(shard.engine.core.life.is_stopped() && knows_the_lease);
    assert_eq!(serves(&net), 0);
}

/// The channel exists on every in-sync replica before its SUB is answered.
#[test]
fn a_channel_is_on_all_replicas_before_its_client_hears_of_it() {
    let mut net = Net::new();
    net.nodes[2].is_slow = true;
    let (c, other) = (net.connect(0), net.connect(0));
    net.send(c, b"SUB t ch\n");
    net.send(other, b"SUB t ch\n");
    assert!(net.take(c).is_empty() && net.take(other).is_empty());
    assert_eq!(net.cursors(1).len(), 1);
    net.nodes[2].is_slow = false;
    net.run();
    assert_eq!((net.take(c), net.take(other)), (vec!["OK".to_owned()], vec!["OK".to_owned()]));
    assert!((0..3).all(|i| net.cursors(i).contains_key("ch")));
    let e = net.connect(0);
    net.send(e, b"SUB t e#ephemeral\n");
    assert_eq!(net.take(e), ["OK"]);
    assert!((1..3).all(|i| net.cursors(i).len() == 1), "ephemeral channels stay at the leader");
}

/// A replica that does not answer: nobody is told of the channel, until one who asks again finds that all have it.
#[test]
fn a_channel_that_a_replica_does_not_confirm_is_refused() {
    let mut net = Net::new();
    net.is_store_there = false;
    net.isolate(2, true);
    let c = net.connect(0);
    net.send(c, b"SUB t ch\n");
    assert_eq!(net.cursors(1).len(), 1);
    net.pass_time(Duration::from_secs(6));
    let got = net.take(c);
    assert!(got.len() == 1 && got[0].starts_with("E_FAILED_ON_NOT_WRITABLE SUB failed"), "{got:?}");
    net.isolate(2, false);
    net.pass_time(RECONNECT);
    let p = net.connect(0);
    net.publish(p, "x");
    let (_, got) = net.subscribe(0, "ch", 5);
    assert_eq!(bodies(&got), ["x"]);
    assert_eq!((net.cursors(1), net.cursors(2)), (net.cursors(0), net.cursors(0)));
}

#[test]
fn fins_arrive_at_the_followers() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..5).for_each(|i| net.publish(p, &i.to_string()));
    let (c, got) = net.subscribe(0, "ch", 9);
    assert_eq!(got.len(), 5);
    net.finish(c, &got[..3]);
    net.finish(c, &got[4..]);
    net.pass_time(Duration::from_millis(400));
    for i in 0..3 {
        assert_eq!(net.cursors(i)["ch"], 4, "node {i}");
        let (_, channel) = net.partition(i, 0).channels.iter().next().expect("it has the channel");
        assert_eq!(channel.machine.image().intervals.len(), 1, "the one out of order, too");
    }
}

/// Another node may have led meanwhile, unknown to this one.
#[test]
fn after_a_lapse_nothing_is_served_before_the_metadata_was_read_anew() {
    let second = Duration::from_secs(1);
    let end = Ticks(1) + 3 * second;
    let mut net = Net::with_lease(1, 1, Settings::default(), end);
    let p = net.connect(0);
    net.publish(p, "x");
    let (c, got) = net.subscribe(0, "ch", 5);
    // In time: it goes on, though the metadata has changed since it was read.
    net.tell(0, Fact::Lease { until: end + 10 * second, revision: 2 });
    net.publish(p, "x");
    let more = net.take(c);
    assert_eq!((net.take(p), bodies(&more)), (vec!["OK".to_owned(); 2], vec!["x"]));
    let role = |net: &Net| {
        let stats = net.nodes[0].shards[0].stats(net.now.ticks, None, None, false);
        stats.partitions[0].replication.as_ref().expect("it is replicated").role
    };
    assert_eq!(role(&net), "leader");
    net.pass_time(end.since(net.now.ticks));
    assert_eq!(role(&net), "leader, lease over");
    net.finish(c, &got);
    assert!(net.take(c)[0].starts_with("E_FIN_FAILED"));
    net.publish(p, "y");
    assert!(net.take(p).is_empty(), "it waits for a leader");
    let s = net.connect(0);
    net.send(s, b"SUB t other\n");
    assert!(net.take(s).is_empty(), "so does a SUB");
    // A renewal alone says nothing of what was missed, nor does what was read before it.
    net.tell(0, Fact::Lease { until: Ticks(u64::MAX), revision: 3 });
    net.tell(0, Fact::Read { revision: 1 });
    net.pass_time(Duration::from_millis(200));
    assert!(net.take(p).is_empty());
    net.tell(0, Fact::Read { revision: 3 });
    net.publish(p, "z");
    net.pass_time(Duration::from_millis(200));
    assert_eq!((net.take(p), bodies(&net.take(c))), (vec!["OK".to_owned(); 2], vec!["y", "z"]));
    assert_eq!(role(&net), "leader");
    net.finish(c, &more);
    assert_eq!(net.take(c), Vec::<String>::new());
}

/// Answered when all replicas have it; a follower that leads later has it too.
#[test]
fn an_order_that_is_set_stands_on_all_replicas() {
    let mut net = Net::new();
    net.subscribe(0, "ch", 0);
    let ordered = |net: &Net, node: usize| net.partition(node, 0).channels.iter().all(|(_, c)| c.machine.is_ordered());
    let set = SetOrder {
        topic: net.topic.clone(),
        partition: PartitionId(0),
        channel: ChannelName::new("ch").expect("valid"),
        ordered: true,
    };
    net.nodes[2].is_slow = true;
    let message = MeshMessage::SetOrder { ticket: Ticket(4), set: Box::new(set) };
    net.step(0, 0, Event::Mesh { from: CoreId::HTTP, message });
    net.run();
    let answers =
        |net: &Net| net.nodes[0].http.iter().filter(|m| matches!(m, MeshMessage::OrderSet { result: Ok(()), .. })).count();
    assert_eq!(answers(&net), 0, "one does not have it yet");
    net.nodes[2].is_slow = false;
    net.run();
    assert_eq!((answers(&net), ordered(&net, 1), ordered(&net, 2)), (1, true, true));
}

#[test]
fn a_topic_whose_properties_say_so_has_ordered_channels() {
    let mut net = Net::new();
    let properties = TopicProperties { ordered: true, ..TopicProperties::default() };
    (0..3).for_each(|node| net.tell(node, Fact::TopicProperties { topic: net.topic.clone(), properties }));
    net.subscribe(0, "ch", 0);
    net.run();
    let ordered = |net: &Net, node: usize| net.partition(node, 0).channels.iter().all(|(_, c)| c.machine.is_ordered());
    assert!((0..3).all(|node| net.partition(node, 0).channels.iter().count() == 1 && ordered(&net, node)));
}

/// A publish is on its way and another one comes while the leader hands over.
#[test]
fn a_hand_over_leaves_no_publish_without_a_clear_answer() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "a");
    assert_eq!(net.take(p), ["OK"]);
    net.nodes[2].is_slow = true;
    net.publish(p, "b");
    net.change(0, |m| m.wanted = Some(id_of_node(1)));
    net.publish(p, "c");
    assert_eq!(net.take(p), Vec::<String>::new(), "one is not committed, the other one waits");
    net.nodes[2].is_slow = false;
    net.run();
    net.pass_time(Duration::from_millis(100));
    let told = net.take(p);
    assert_eq!(told.first().map(String::as_str), Some("OK"), "{told:?}");
    assert!(told[1..].iter().all(|t| t == "OK" || t.starts_with("E_FAILED_ON_NOT_LEADER")), "{told:?}");
    assert_eq!((net.metadata[0].leader, net.metadata[0].wanted), (Some(id_of_node(1)), None));
    let q = net.connect(1);
    net.publish(q, "d");
    assert_eq!(net.take(q), ["OK"]);
}

#[test]
fn a_new_leader_writes_at_once_and_delivers_when_the_former_one_surely_does_not() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "a");
    let (c, _) = net.subscribe(0, "ch", 5);
    net.change(0, |m| (m.leader, m.epoch, m.former) = (Some(id_of_node(1)), Epoch(m.epoch.0 + 1), Some(id_of_node(0))));
    net.pass_time(Duration::from_millis(100));
    let q = net.connect(1);
    net.publish(q, "b");
    assert_eq!(net.take(q), ["OK"]);
    let s = net.connect(1);
    net.send(s, b"SUB t ch\nRDY 1\n");
    net.pass_time(Duration::from_secs(1));
    assert!(net.take(s).is_empty() && net.take(c).is_empty(), "nothing is delivered, here or through another node");
    net.change(0, |m| m.former = None);
    net.pass_time(Duration::from_millis(300));
    let (here, through) = (net.take(s), net.take(c));
    assert_eq!((here[0].as_str(), here.len(), through.len()), ("OK", 2, 1), "{here:?} {through:?}");
    let mut came = [bodies(&here[1..]), bodies(&through)].concat();
    came.sort_unstable();
    assert_eq!(came, ["a", "b"]);
}

#[test]
fn stats_tell_what_an_operator_needs() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "x");
    let shown =
        |net: &Net, node: usize| net.nodes[node].shards[0].stats(Ticks(0), None, None, false).partitions[0].replication.clone();
    let leader = shown(&net, 0).expect("it is replicated");
    assert_eq!((leader.role, leader.leader.as_deref(), leader.isr.len(), leader.epoch), ("leader", Some("a"), 3, 1));
    assert!(leader.committed > 0 && leader.committed == leader.end);
    assert!(leader.followers.iter().all(|f| f.in_sync && f.acked == leader.end && f.state == "live"), "{leader:?}");
    assert!(leader.followers.iter().all(|f| f.lag == 0));
    let links = net.nodes[0].shards[0].stats(Ticks(0), None, None, false).links;
    assert_eq!(
        links.iter().map(|l| (&*l.node, l.connected, l.queued_bytes)).collect::<Vec<_>>(),
        [("b", true, 0), ("c", true, 0)]
    );
    net.isolate(2, true);
    net.publish(p, "y");
    let lags: Vec<i64> = shown(&net, 0).expect("it is replicated").followers.iter().map(|f| f.lag).collect();
    assert!(lags.contains(&0) && lags.iter().any(|lag| *lag > 0), "{lags:?}");
    assert!(net.nodes[0].shards[0].stats(Ticks(0), None, None, false).links.iter().any(|l| !l.connected));
    let follower = shown(&net, 1).expect("it is replicated");
    assert_eq!(follower.leader_native_address.as_deref(), Some("a:1"));
    assert_eq!((follower.role, follower.followers.len()), ("follower", 0));
    assert!(net.nodes[0].http.iter().any(|m| matches!(m, MeshMessage::Share { share, .. } if share.writable)));
}

/// Retention of a follower ends where its leader's does: the messages that a new channel may get are on every replica.
#[test]
fn a_follower_removes_nothing_that_its_leader_may_still_give() {
    let mut net = Net::with(1, 1, Settings { max_bytes_per_file: 64 * 1024, flush_bytes: 8192, ..Settings::default() });
    let p = net.connect(0);
    let (c, _) = net.subscribe(0, "ch", 100);
    for _ in 0..3 {
        (0..20).for_each(|_| net.publish(p, &"x".repeat(4000)));
        let got = net.take(c);
        net.finish(c, &got);
        net.pass_time(Duration::from_secs(1));
        let oldest = |net: &Net, node: usize| {
            let e = &net.nodes[node].shards[0].engine;
            let (idx, _) = e.core.partitions.iter().next().expect("the node has the partition");
            (e.core.store.start(idx).offset, e.core.store.collect_start(idx).offset)
        };
        let (start, _) = oldest(&net, 0);
        for node in 1..3 {
            let (own, told) = oldest(&net, node);
            assert!(own <= told && told <= start, "node {node} begins at {own}, was told {told}, the leader begins at {start}");
        }
    }
    let begins = |node: usize| {
        let e = &net.nodes[node].shards[0].engine;
        e.core.partitions.iter().map(|(idx, _)| e.core.store.start(idx).offset).max().expect("the node has the partition")
    };
    assert!((0..3).all(|node| begins(node) > 0), "segments go on every node");
}

/// Also the leader: a failover to one that has not heard of it would give a new channel what is gone here.
#[test]
fn a_leader_removes_nothing_that_another_replica_may_still_give() {
    let mut net = Net::with(1, 1, Settings { max_bytes_per_file: 64 * 1024, flush_bytes: 8192, ..Settings::default() });
    let p = net.connect(0);
    let (c, _) = net.subscribe(0, "ch", 100);
    (0..40).for_each(|_| net.publish(p, &"x".repeat(4000)));
    let got = net.take(c);
    // Nothing becomes durable there.
    net.nodes[2].is_slow = true;
    net.finish(c, &got);
    let starts = |net: &Net| -> Vec<i64> {
        let start = |node: usize| net.nodes[node].shards[0].engine.core.store.start(net.index(node)).offset;
        (0..3).map(start).collect()
    };
    net.pass_time(Duration::from_secs(1));
    assert_eq!(starts(&net), [0, 0, 0], "one replica may still give all of it to a channel");
    net.nodes[2].is_slow = false;
    net.pass_time(Duration::from_secs(1));
    assert!(starts(&net).iter().all(|start| *start > 0), "segments go on every node");
    // Of one that leads next, too, when it has had its word.
    net.elect(0, 1);
    let p = net.connect(1);
    let (c, _) = net.subscribe(1, "ch", 100);
    let before = starts(&net);
    (0..40).for_each(|_| net.publish(p, &"x".repeat(4000)));
    let got = net.take(c);
    net.finish(c, &got);
    net.pass_time(Duration::from_secs(1));
    assert!(starts(&net).iter().zip(&before).all(|(now, before)| now > before), "{before:?}");
}
