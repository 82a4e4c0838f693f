//! Another node leads; nodes go away and come back.

use super::*;

#[test]
fn the_next_leader_has_everything_and_the_cursors() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..6).for_each(|i| net.publish(p, &i.to_string()));
    assert_eq!(net.take(p), ["OK"; 6]);
    let (c, got) = net.subscribe(0, "ch", 4);
    net.finish(c, &got[..2]);
    net.pass_time(Duration::from_millis(300));
    net.leave(c);
    net.elect(0, 1);
    assert_eq!((net.state(0), net.state(1)), (State::Aligned, State::Open));
    let (c, got) = net.subscribe(1, "ch", 9);
    assert_eq!(bodies(&got), ["2", "3", "4", "5"], "what was finished does not come again, what was in flight does");
    net.finish(c, &got);
    let p = net.connect(1);
    net.publish(p, "6");
    assert_eq!((net.take(p), bodies(&net.take(c))), (vec!["OK".to_owned()], vec!["6"]));
    assert!((0..3).all(|i| net.durable(i) == 7 && net.epochs(i) == [2, 1]), "each batch has its leader's epoch");
    // And back.
    net.pass_time(Duration::from_millis(300));
    net.leave(c);
    net.elect(0, 0);
    let (_, got) = net.subscribe(0, "ch", 9);
    assert_eq!(bodies(&got), ["6"]);
}

#[test]
fn a_killed_leader_loses_nothing_that_was_acknowledged() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..6).for_each(|i| net.publish(p, &i.to_string()));
    assert_eq!(net.take(p), ["OK"; 6]);
    net.kill(0);
    net.change(0, |m| {
        (m.leader, m.epoch) = (Some(id_of_node(2)), Epoch(2));
        m.isr.retain(|n| *n != id_of_node(0));
    });
    net.pass_time(Duration::from_millis(100));
    let p = net.connect(2);
    net.publish(p, "6");
    assert_eq!(net.take(p), ["OK"]);
    let (c, got) = net.subscribe(2, "ch", 9);
    assert_eq!(got.len(), 7);
    net.finish(c, &got[..5]);
    // It comes back, catches up, takes the cursors, and is in sync again.
    net.restart(0);
    net.pass_time(RECONNECT);
    assert_eq!((net.state(0), net.durable(0), net.metadata[0].isr.len()), (State::Aligned, 7, 3));
    assert_eq!(net.cursors(0)["ch"], 6);
    net.elect(0, 0);
    let (_, got) = net.subscribe(0, "ch", 9);
    assert_eq!(bodies(&got), ["5", "6"]);
}

/// The copy of a message whose retry is far off is replicated before the leader confirms the original.
#[test]
fn a_far_off_retry_survives_its_leader_and_keeps_its_id_and_its_time() {
    let mut net = Net::with(1, 1, Settings { msg_timeout_ms: 1000, ..Settings::default() });
    let p = net.connect(0);
    net.publish(p, "0");
    assert_eq!(net.take(p), ["OK"]);
    let (c, got) = net.subscribe(0, "ch", 4);
    let id = got[0].split(' ').next().expect("an id").to_owned();
    net.send(c, format!("REQ {id} 5000\n").as_bytes());
    net.pass_time(Duration::from_millis(300));
    assert_eq!((net.cursors(0)["ch"], (0..3).map(|i| net.durable(i)).collect::<Vec<_>>()), (2, vec![2; 3]));
    net.kill(0);
    net.change(0, |m| {
        (m.leader, m.epoch) = (Some(id_of_node(2)), Epoch(2));
        m.isr.retain(|n| *n != id_of_node(0));
    });
    net.pass_time(Duration::from_millis(100));
    let (c, got) = net.subscribe(2, "ch", 9);
    assert_eq!(got, Vec::<String>::new(), "it is early");
    net.pass_time(Duration::from_millis(4000));
    assert_eq!(net.take(c), Vec::<String>::new(), "it is early");
    net.pass_time(Duration::from_millis(800));
    assert_eq!(net.take(c), [format!("{id} 0")]);
}

/// A tail that a leader had alone when it was cut off is truncated when it follows the next leader.
#[test]
fn a_tail_that_was_never_committed_is_truncated() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    net.isolate(0, true);
    net.publish(p, "lost");
    net.publish(p, "lost");
    assert_eq!((net.take(p), net.durable(0)), (vec!["OK".to_owned()], 3));
    net.elect(0, 1);
    let told = net.take(p);
    assert_eq!(told, [format!("E_PUB_FAILED PUB failed {}", PublishError::Unknown)], "and the connection is closed");
    net.isolate(0, false);
    net.pass_time(RECONNECT);
    let p = net.connect(1);
    net.publish(p, "1");
    assert_eq!(net.take(p), ["OK"]);
    net.pass_time(Duration::from_secs(1));
    assert!((0..3).all(|i| net.durable(i) == 2), "{:?}", [net.durable(0), net.durable(1), net.durable(2)]);
    net.elect(0, 0);
    let (_, got) = net.subscribe(0, "ch", 9);
    assert_eq!(bodies(&got), ["0", "1"]);
}

/// A follower that was away for long reads what is no longer in memory, and restarts on the way.
#[test]
fn a_follower_catches_up_from_the_files() {
    let settings =
        Settings { tail_cache_bytes: 1 << 20, max_bytes_per_file: 1 << 20, flush_bytes: 64 << 10, ..Settings::default() };
    let mut net = Net::with(1, 1, settings);
    net.kill(2);
    net.change(0, |m| m.isr.retain(|n| *n != id_of_node(2)));
    let p = net.connect(0);
    let body = "x".repeat(60_000);
    (0..100).for_each(|_| net.publish(p, &body));
    assert_eq!(net.take(p), vec!["OK"; 100]);
    net.restart(2);
    net.pass_time(Duration::from_millis(700));
    net.kill(2);
    net.restart(2);
    net.pass_time(RECONNECT);
    assert_eq!((net.durable(2), net.metadata[0].isr.len()), (100, 3));
    assert!(net.nodes[2].generation > net.nodes[1].generation);
}

/// The same node leads again, in a higher epoch: its clients stay.
#[test]
fn a_leader_that_opens_again_keeps_its_clients() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    let (c, got) = net.subscribe(0, "ch", 5);
    net.elect(0, 0);
    net.finish(c, &got);
    net.publish(p, "1");
    assert_eq!((net.take(p), bodies(&net.take(c))), (vec!["OK".to_owned(); 2], vec!["1"]));
    assert_eq!((net.cursors(0)["ch"], net.state(0)), (2, State::Open));
}

/// The log is as long as the others', which still hold theirs: the leader takes none of them, and its channels stay.
#[test]
fn a_leader_whose_log_retention_emptied_opens_with_its_channels() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..6).for_each(|i| net.publish(p, &i.to_string()));
    let (c, got) = net.subscribe(0, "ch", 9);
    net.finish(c, &got);
    net.pass_time(Duration::from_secs(1));
    // Another core of node 0 has no space.
    net.nodes[0].shards[0].engine.core.store.set_other_full(CoreId(1), true);
    net.pass_time(Duration::from_secs(2));
    let starts = |net: &Net| [0, 1].map(|i| net.nodes[i].shards[0].engine.core.store.start(net.index(i)).count);
    assert_eq!((starts(&net), net.cursors(0)["ch"]), ([6, 0], 7), "its log is empty, the next one's is not");
    net.elect(0, 0);
    assert_eq!((net.state(0), starts(&net), net.cursors(0)["ch"]), (State::Open, [6, 0], 7));
    let p = net.connect(0);
    net.publish(p, "6");
    assert_eq!((net.take(p), bodies(&net.take(c))), (vec!["OK".to_owned()], vec!["6"]), "its client is there still");
}

/// A replica that catches up keeps channel updates that lie beyond its own end in memory. It must have them on disk when it joins: each
/// member of the ISR may be the only one left.
#[test]
fn who_joins_the_isr_has_on_disk_what_was_answered_while_it_caught_up() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    net.subscribe(0, "ch", 0);
    net.make_ordered("ch");
    net.in_sync(2);
    net.nodes[2].is_slow = true;
    (1..4).for_each(|i| net.publish(p, &i.to_string()));
    let (c, mut got) = net.subscribe(0, "ch", 1);
    for body in ["0", "1", "2", "3"] {
        assert_eq!(bodies(&got), [body], "the FIN before is answered without node 2");
        net.finish(c, &got);
        got = net.take(c);
    }
    assert_eq!((net.cursors(0)["ch"], net.cursors(1)["ch"]), (5, 5));
    net.is_store_there = true;
    net.nodes[2].is_slow = false;
    net.pass_time(RECONNECT);
    assert_eq!(net.joined, [(2, BTreeMap::from([("ch".to_owned(), 5)]))]);
}

/// A publish of the same turn is in no batch when the leader hears of a higher epoch. The turn's end puts it into the log all the same.
#[test]
fn a_leader_that_hears_of_a_higher_epoch_calls_nothing_not_stored_that_it_keeps() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.metadata[0].version += 1;
    (net.metadata[0].leader, net.metadata[0].epoch) = (Some(id_of_node(1)), Epoch(2));
    net.tell_partition(1, 0);
    while net.wire.is_empty() && net.turn(1) {}
    let mut bytes = vec![];
    request::publish(&mut bytes, "t", b"x");
    net.put(p, &bytes);
    while net.carry_wire() {}
    net.run();
    assert_eq!(net.take(p), [format!("E_PUB_FAILED PUB failed {}", PublishError::Unknown)]);
}
