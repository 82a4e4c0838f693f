//! Publishes at nodes that do not lead the partition.

use super::*;
use crate::seam::message::{OwnedBodies, Ticket};

/// Time that is longer than any publish waits for a leader.
fn long(net: &Net) -> Duration {
    Duration::from_millis(net.settings.lease_ttl_ms + net.settings.pub_waiting_timeout_ms + 1000)
}

fn in_log(net: &mut Net, node: usize) -> Vec<String> {
    let (c, got) = net.subscribe(node, "check", 100);
    net.finish(c, &got);
    net.closed.clear();
    bodies(&got).into_iter().map(str::to_owned).collect()
}

#[test]
fn a_publish_at_any_node_is_stored_by_the_leader_and_answered_in_order() {
    for cores in [1, 2] {
        let mut net = Net::with(cores, 1, Settings::default());
        let clients = [net.connect(1), net.connect_to(2, cores as usize - 1)];
        for i in 0..3 {
            clients.iter().for_each(|c| net.publish(*c, &format!("{i}")));
        }
        let mut many = vec![];
        request::multi_publish_to(&mut many, "t", Some(PartitionId(0)), [&b"a"[..], b"b"].into_iter());
        request::publish_deferred(&mut many, "t", 10, b"late");
        net.send(clients[0], &many);
        assert_eq!((net.take(clients[0]), net.take(clients[1])), (vec!["OK".to_owned(); 5], vec!["OK".to_owned(); 3]));
        net.pass_time(Duration::from_millis(100));
        let found = in_log(&mut net, 0);
        assert_eq!(found.len(), 9, "{cores} cores: {found:?}");
        let alone: Vec<&String> = found.iter().filter(|b| ["a", "b"].contains(&b.as_str())).collect();
        assert_eq!(alone, ["a", "b"]);
        assert!(net.nodes.iter().all(|n| n.shards.iter().all(|s| !s.engine.has_outstanding())));
    }
}

/// The forwarding node answers only after the leader's answer.
#[test]
fn an_answer_waits_for_the_in_sync_replicas_and_a_lost_link_is_an_unknown_outcome() {
    let mut net = Net::new();
    net.is_store_there = false;
    net.nodes[0].is_slow = true;
    let clients = [net.connect(1), net.connect(1)];
    net.publish(clients[0], "x");
    net.publish(clients[1], "y");
    assert!(clients.iter().all(|c| net.take(*c).is_empty()), "no disk of the leader has it");
    net.hang_up_all(1);
    net.run();
    for c in clients {
        let told = net.take(c);
        assert!(told.len() == 1 && told[0].starts_with("E_PUB_FAILED") && told[0].contains("unknown"), "{told:?}");
    }
    net.nodes[0].is_slow = false;
    net.pass_time(RECONNECT);
    assert_eq!(in_log(&mut net, 0), ["x", "y"], "neither was sent twice");
}

#[test]
fn a_failover_is_ridden_out_in_order_and_nothing_is_stored_twice() {
    let mut net = Net::new();
    let p = net.connect(1);
    net.publish(p, "0");
    assert_eq!(net.take(p), ["OK"]);
    net.kill(0);
    (1..4).for_each(|i| net.publish(p, &i.to_string()));
    net.pass_time(Duration::from_secs(5));
    assert!(net.take(p).is_empty(), "nobody leads");
    net.change(0, |m| {
        (m.leader, m.epoch) = (Some(id_of_node(2)), Epoch(2));
        m.isr.retain(|n| *n != id_of_node(0));
    });
    net.publish(p, "4");
    net.pass_time(Duration::from_secs(1));
    assert_eq!(net.take(p), ["OK"; 4]);
    assert_eq!(in_log(&mut net, 2), ["0", "1", "2", "3", "4"]);
}

/// The metadata of the sender and of the leader need not agree: the leader refuses, and what it refused comes in order once it leads.
#[test]
fn what_a_leader_refuses_goes_to_it_again_in_order() {
    let mut net = Net::new();
    // node 2 hears of its leadership last
    net.metadata[0].version += 1;
    (net.metadata[0].leader, net.metadata[0].epoch) = (Some(id_of_node(2)), Epoch(2));
    (0..2).for_each(|i| net.tell_partition(i, 0));
    net.run();
    let (p, q) = (net.connect(1), net.connect(0));
    (0..3).for_each(|i| net.publish(p, &format!("p{i}")));
    (0..3).for_each(|i| net.publish(q, &format!("q{i}")));
    net.pass_time(Duration::from_millis(350));
    assert!(net.take(p).is_empty() && net.take(q).is_empty());
    net.tell_partition(2, 0);
    net.publish(p, "p3");
    net.pass_time(Duration::from_secs(1));
    assert_eq!((net.take(p), net.take(q)), (vec!["OK".to_owned(); 4], vec!["OK".to_owned(); 3]));
    let found = in_log(&mut net, 2);
    let of = |who| found.iter().filter(|b| b.starts_with(who)).cloned().collect::<Vec<_>>();
    assert_eq!(
        (of('p'), of('q')),
        (vec!["p0".into(), "p1".into(), "p2".into(), "p3".into()], vec!["q0".into(), "q1".into(), "q2".into()])
    );
}

/// A leader may write again before its refusal has reached the sender. Publishes that were sent behind the refused one must not be stored
/// first.
#[test]
fn a_leader_takes_nothing_that_follows_its_refusal_in_an_attempt() {
    let end = Ticks(1) + Duration::from_secs(3);
    let mut net = Net::with_lease(1, 1, Settings::default(), end);
    net.pass_time(end.since(net.now.ticks));
    let p = net.connect(1);
    for body in [b"0", b"1"] {
        let mut bytes = vec![];
        request::publish(&mut bytes, "t", body);
        net.put(p, &bytes);
        net.step(1, 0, Event::TurnEnd);
    }
    assert_eq!(net.wire.len(), 2, "both are on their way");
    net.carry_wire();
    net.step(0, 0, Event::TurnEnd);
    assert_eq!(net.wire.len(), 2, "the first one is refused");
    net.tell(0, Fact::Lease { until: Ticks(u64::MAX), revision: 1 });
    net.run();
    net.pass_time(Duration::from_secs(1));
    assert_eq!(net.take(p), ["OK"; 2]);
    assert_eq!(in_log(&mut net, 0), ["0", "1"]);
}

/// The node becomes the leader while publishes wait for one.
#[test]
fn what_waits_for_a_leader_is_taken_where_the_client_is() {
    let mut net = Net::new();
    let p = net.connect(1);
    net.kill(0);
    (0..3).for_each(|i| net.publish(p, &i.to_string()));
    net.change(0, |m| {
        (m.leader, m.epoch) = (Some(id_of_node(1)), Epoch(2));
        m.isr.retain(|n| *n != id_of_node(0));
    });
    net.publish(p, "3");
    net.pass_time(Duration::from_secs(1));
    assert_eq!(net.take(p), ["OK"; 4]);
    assert_eq!(in_log(&mut net, 1), ["0", "1", "2", "3"]);
}

#[test]
fn a_publish_without_a_leader_is_refused_in_time() {
    let mut net = Net::new();
    net.change(0, |m| (m.leader, m.epoch) = (None, Epoch(9)));
    let p = net.connect(1);
    net.publish(p, "x");
    assert!(net.take(p).is_empty());
    net.pass_time(long(&net));
    let told = net.take(p);
    assert!(told.len() == 1 && told[0].starts_with("E_FAILED_ON_NOT_WRITABLE PUB failed"), "{told:?}");
    // the cluster's topics come and go
    net.publish(p, "x");
    net.tell(1, Fact::TopicGone(net.topic.clone()));
    net.run();
    let told = net.take(p);
    assert!(told.len() == 1 && told[0].starts_with("E_TOPIC_NOT_EXIST"), "{told:?}");
}

/// The leader's refusal of one message is that message's alone.
#[test]
fn a_refusal_for_good_is_told_as_the_leader_told_it() {
    let mut net = Net::new();
    net.change(0, |m| m.isr = vec![id_of_node(0)]);
    let p = net.connect(1);
    net.publish(p, "x");
    net.pass_time(Duration::from_millis(100));
    let told = net.take(p);
    assert!(told.len() == 1 && told[0].contains("too few replicas are in sync"), "{told:?}");
}

/// Partitions of several leaders, here and elsewhere, take publishes in turn.
#[test]
fn publishes_are_spread_over_the_partitions_of_all_leaders() {
    for cores in [1, 2] {
        let mut net = Net::with(cores, 6, Settings::default());
        (0..6).for_each(|p| net.elect(p, p as usize % 3));
        let c = net.connect(1);
        (0..12).for_each(|i| net.publish(c, &i.to_string()));
        net.run();
        assert_eq!(net.take(c), ["OK"; 12], "{cores} cores");
        for partition in 0..6 {
            let leader = partition as usize % 3;
            let p = net.partition(leader, partition);
            assert_eq!(p.committed().count, 2, "partition {partition}, {cores} cores");
        }
    }
}

#[test]
fn a_publish_of_the_http_thread_is_forwarded_too() {
    let mut net = Net::with(2, 1, Settings::default());
    let core = net.topic.core_of(PartitionId(0), 2).0 as usize;
    let mut bodies = OwnedBodies::default();
    bodies.push(b"over-http");
    let message = MeshMessage::Publish { ticket: Ticket(7), topic: net.topic.clone(), partition: PartitionId(0), bodies };
    net.step(2, core, Event::Mesh { from: CoreId::HTTP, message });
    net.run();
    let is_stored = |m: &MeshMessage| matches!(m, MeshMessage::Published { ticket: Ticket(7), result: Ok(()) });
    assert!(net.nodes[2].http.iter().any(is_stored), "{:?}", net.nodes[2].http);
    let told = net.nodes[2].http.iter().any(|m| matches!(m, MeshMessage::LedElsewhere { is_elsewhere: true, .. }));
    assert!(told && !net.nodes[0].http.iter().any(|m| matches!(m, MeshMessage::LedElsewhere { .. })));
    assert_eq!(in_log(&mut net, 0), ["over-http"]);
}

/// Memory is bounded: the client waits, and hears of it.
#[test]
fn publishes_beyond_the_memory_wait_and_are_refused_in_time() {
    let settings = Settings { max_pub_waiting_size: 4096, ..Settings::default() };
    let mut net = Net::with(1, 1, settings);
    net.change(0, |m| (m.leader, m.epoch) = (None, Epoch(9)));
    let (p, q) = (net.connect(1), net.connect(1));
    (0..3).for_each(|_| net.publish(p, &"x".repeat(1200)));
    net.publish(q, &"y".repeat(1200));
    net.pass_time(Duration::from_millis(net.settings.pub_waiting_timeout_ms + 100));
    let told = net.take(q);
    assert!(told.len() == 1 && told[0].starts_with("E_PUB_TOO_MUCH_WAITING"), "{told:?}");
    assert!(net.take(p).is_empty(), "what was taken waits on");
    net.change(0, |m| (m.leader, m.epoch) = (Some(id_of_node(0)), Epoch(10)));
    net.pass_time(Duration::from_secs(1));
    assert_eq!(net.take(p), ["OK"; 3]);
}

/// Nor does what other nodes send take more at the leader: it comes again, in order, when there is room.
#[test]
fn a_leader_keeps_no_more_of_other_nodes_than_its_bound() {
    let settings = Settings { max_pub_waiting_size: 4096, pub_waiting_timeout_ms: 60_000, ..Settings::default() };
    let mut net = Net::with(1, 1, settings);
    net.is_store_there = false;
    net.nodes[0].is_slow = true;
    let clients = [net.connect(1), net.connect(1), net.connect(2), net.connect(2)];
    let body = |who: usize, n: usize| format!("{who}-{n}-{}", "x".repeat(700));
    for n in 0..4 {
        clients.iter().enumerate().for_each(|(who, c)| net.publish(*c, &body(who, n)));
    }
    for _ in 0..20 {
        net.pass_time(Duration::from_millis(50));
        assert!(net.nodes[0].shards[0].engine.core.waiting.bytes_of_nodes() <= 4096);
    }
    net.nodes[0].is_slow = false;
    net.pass_time(Duration::from_secs(5));
    clients.iter().for_each(|c| assert_eq!(net.take(*c), ["OK"; 4]));
    let found = in_log(&mut net, 0);
    assert_eq!(found.len(), 16);
    for who in 0..4 {
        let of: Vec<&String> = found.iter().filter(|b| b.starts_with(&format!("{who}-"))).collect();
        assert_eq!(of, (0..4).map(|n| body(who, n)).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    }
}

/// Seed 7700000028: a publish that had waited for a leader then waited for room, and the next publish of its connection found room first.
#[test]
fn what_waits_for_room_after_it_waited_for_a_leader_is_not_overtaken() {
    let settings = Settings { max_pub_waiting_size: 4096, ..Settings::default() };
    let mut net = Net::with(1, 1, settings);
    net.change(0, |m| (m.leader, m.epoch) = (None, Epoch(9)));
    let p = net.connect(0);
    let body = |n: u64| format!("{n}-{}", "x".repeat(if n == 3 { 10 } else { 1300 }));
    (1..=2).for_each(|n| net.publish(p, &body(n)));
    net.is_store_there = false;
    net.nodes[0].is_slow = true;
    net.change(0, |m| (m.leader, m.epoch) = (Some(id_of_node(0)), Epoch(10)));
    net.pass_time(Duration::from_secs(1));
    (3..=4).for_each(|n| net.publish(p, &body(n)));
    net.nodes[0].is_slow = false;
    net.pass_time(Duration::from_secs(2));
    assert_eq!(net.take(p), ["OK"; 4]);
    let found = in_log(&mut net, 0);
    assert_eq!(found.iter().map(|b| &b[..1]).collect::<Vec<_>>(), ["1", "2", "3", "4"]);
}

/// An answer to a life of the node that is over, under a number that is in use again.
#[test]
fn an_answer_to_an_earlier_life_is_not_taken_for_this_ones() {
    let mut net = Net::new();
    net.nodes[0].is_slow = true;
    let p = net.connect(1);
    net.publish(p, "of the first life");
    net.kill(1);
    net.restart(1);
    net.pass_time(RECONNECT);
    net.isolate(2, true);
    let p = net.connect(1);
    net.publish(p, "of the second life");
    net.nodes[0].is_slow = false;
    let before = net.now.ticks;
    net.run();
    assert_eq!(net.now.ticks, before);
    assert_ne!(net.take(p), ["OK"], "the leader's ISR has not confirmed it");
}
