//! Publishes: when they are OK, and what they are told otherwise.

use super::*;
use crate::base::ChannelName;
use crate::seam::cluster::TopicProperties;
use crate::seam::message::ChannelChange;

#[test]
fn a_publish_is_ok_when_all_three_have_it_durable() {
    let mut net = Net::new();
    assert_eq!((net.state(0), net.state(1), net.state(2)), (State::Open, State::Aligned, State::Aligned));
    let p = net.connect(0);
    for slow in 0..3 {
        let before = net.durable(slow);
        net.nodes[slow].is_slow = true;
        net.publish(p, "x");
        assert!(net.take(p).is_empty(), "node {slow} does not have it");
        assert_eq!(net.durable(slow), before);
        assert!((0..3).all(|i| i == slow || net.durable(i) == before + 1), "the others did not wait");
        net.nodes[slow].is_slow = false;
        net.run();
        assert_eq!(net.take(p), ["OK"]);
        assert_eq!(net.durable(slow), before + 1);
    }
}

/// Consumers see what is committed, not what is durable here.
#[test]
fn a_consumer_waits_for_the_followers() {
    let mut net = Net::new();
    let (c, _) = net.subscribe(0, "ch", 5);
    let p = net.connect(0);
    net.nodes[2].is_slow = true;
    net.publish(p, "x");
    assert!(net.take(c).is_empty());
    // Also one whose coming wakes the channel.
    let (d, got) = net.subscribe(0, "ch", 5);
    assert!(got.is_empty() && net.take(c).is_empty() && net.durable(0) == 1);
    net.nodes[2].is_slow = false;
    net.run();
    let mut got = net.take(c);
    got.extend(net.take(d));
    assert_eq!(bodies(&got), ["x"]);
}

#[test]
fn the_isr_shrinks_and_the_publish_that_waited_is_ok() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.isolate(2, true);
    net.publish(p, "x");
    assert!(net.take(p).is_empty());
    net.pass_time(Duration::from_secs(4));
    assert_eq!(net.take(p), ["OK"]);
    assert_eq!(net.metadata[0].isr, [id_of_node(0), id_of_node(1)]);
    // It comes back, catches up, and counts again.
    net.isolate(2, false);
    net.pass_time(RECONNECT);
    assert_eq!(net.metadata[0].isr.len(), 3);
    assert_eq!(net.durable(2), 1);
}

/// No time passes: nothing waits for the limit of a follower that lags.
#[test]
fn a_follower_that_stops_leaves_the_isr_at_once_where_that_leaves_enough() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.step(2, 0, Event::Stop);
    net.run();
    net.publish(p, "x");
    assert_eq!(net.take(p), ["OK"]);
    let enough = [id_of_node(0), id_of_node(1)];
    assert_eq!(net.metadata[0].isr, enough);
    net.step(1, 0, Event::Stop);
    net.run();
    net.publish(p, "y");
    assert!(net.take(p).is_empty());
    assert_eq!(net.metadata[0].isr, enough);
}

/// A store that takes no proposal: the static file.
#[test]
fn without_a_smaller_isr_writes_end_until_the_next_epoch() {
    let mut net = Net::new();
    net.is_store_there = false;
    let (p, late, c) = (net.connect(0), net.connect(0), net.subscribe(0, "ch", 5).0);
    net.isolate(2, true);
    net.publish(p, "x");
    net.pass_time(Duration::from_secs(6));
    assert_eq!(net.take(p), [format!("E_PUB_FAILED PUB failed {}", PublishError::Unknown)]);
    net.publish(late, "y");
    let got = net.take(late);
    assert!(got[0].starts_with("E_FAILED_ON_NOT_WRITABLE PUB failed the partition accepts no write"), "{got:?}");
    assert!(net.closed.iter().all(|conn| *conn != late), "the connection stays");
    assert!(net.take(c).is_empty(), "what is not committed is not delivered");
    // The file names a smaller ISR, and a new epoch decides what was open.
    net.change(0, |m| (m.isr, m.epoch) = (vec![id_of_node(0), id_of_node(1)], Epoch(2)));
    net.pass_time(Duration::from_secs(1));
    net.publish(late, "z");
    assert_eq!(net.take(late), ["OK"]);
    assert_eq!(bodies(&net.take(c)), ["x", "z"]);
}

#[test]
fn too_small_an_isr_takes_no_write() {
    let mut net = Net::new();
    net.is_store_there = false;
    net.change(0, |m| m.isr = vec![id_of_node(0)]);
    let p = net.connect(0);
    net.publish(p, "x");
    let got = net.take(p);
    assert_eq!(got, ["E_FAILED_ON_NOT_WRITABLE PUB failed the partition accepts no write: too few replicas are in sync"]);
}

/// Bytes that wait for a follower are bounded as those that wait for the disk.
#[test]
fn what_is_not_committed_counts_as_waiting() {
    let settings = Settings { max_pub_waiting_size: 64 * 1024, pub_waiting_timeout_ms: 1000, ..Settings::default() };
    let mut net = Net::with(1, 1, settings);
    net.nodes[1].is_slow = true;
    let body = "x".repeat(10 * 1024);
    let conns: Vec<ConnId> = (0..10).map(|_| net.connect(0)).collect();
    for &conn in &conns {
        net.publish(conn, &body);
    }
    let taken = net.partition(0, 0).publishers.len();
    assert!((4..=6).contains(&taken), "{taken} publishes wait for the follower");
    net.nodes[1].is_slow = false;
    net.run();
    assert!(conns.iter().all(|&conn| net.take(conn) == ["OK"]), "those that waited were taken when there was room");
    net.nodes[1].is_slow = true;
    conns.iter().for_each(|&conn| net.publish(conn, &body));
    net.pass_time(Duration::from_millis(1100));
    let refused = conns.iter().filter(|&&c| net.take(c).iter().any(|f| f.starts_with("E_PUB_TOO_MUCH_WAITING"))).count();
    assert!(refused >= 4, "{refused}");
}

/// The file of a long batch fails, which went to the followers at the same time.
#[test]
fn a_leader_whose_segment_fails_says_unknown() {
    let mut net = Net::with(1, 1, Settings { direct_bytes: 4096, ..Settings::default() });
    let p = net.connect(0);
    net.nodes[0].disk.faults.write_error = 1.0;
    net.publish(p, &"x".repeat(10_000));
    let got = net.take(p);
    assert_eq!(got, [format!("E_PUB_FAILED PUB failed {}", PublishError::Unknown)]);
    net.elect(0, 1);
    let (_, got) = net.subscribe(1, "ch", 5);
    assert_eq!(got.len(), 1, "the followers have it");
}

/// A write of the leader fails: the next leader may commit the batches that were sent to the followers.
#[test]
fn a_leader_whose_disk_fails_says_unknown_and_resigns() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.nodes[0].disk.faults.write_error = 1.0;
    net.publish(p, "x");
    let got = net.take(p);
    assert_eq!(got, [format!("E_PUB_FAILED PUB failed {}", PublishError::Unknown)]);
    assert_eq!((net.state(0), &net.resigned[..]), (State::Failed, &[0][..]));
    net.elect(0, 1);
    let (_, got) = net.subscribe(1, "ch", 5);
    assert_eq!(bodies(&got), ["x"], "the followers have it");
}

/// A follower whose segment or commit log failed hears of it with the next batches: of a frame with several, it takes none.
#[test]
fn a_follower_whose_files_failed_takes_nothing_of_a_frame() {
    let mut net = Net::with(1, 1, Settings { flush_bytes: 4096, ..Settings::default() });
    let p = net.connect(0);
    net.nodes[2].do_files_fail = true;
    net.publish(p, &"x".repeat(5000));
    net.pass_time(Duration::from_secs(1));
    assert_eq!((net.take(p), net.state(2)), (vec!["OK".to_owned()], State::Aligned), "its journal has it");
    net.isolate(2, true);
    (0..3).for_each(|i| net.publish(p, &i.to_string()));
    net.isolate(2, false);
    net.pass_time(RECONNECT);
    assert_eq!((net.state(2), net.durable(2)), (State::Failed, 1));
    assert_eq!((net.take(p), net.metadata[0].isr.len()), (vec!["OK".to_owned(); 3], 2));
}

/// Writes of the journal go side by side, and become durable together when the later one is complete first.
#[test]
fn writes_that_become_durable_at_once_are_all_answered() {
    let mut net = Net::new();
    let (p, q) = (net.connect(0), net.connect(0));
    net.nodes[0].is_slow = true;
    net.publish(p, "x");
    net.publish(q, &"y".repeat(3000));
    let waiting = net.nodes[0].asked.make_contiguous();
    assert_eq!(waiting.len(), 2, "two writes of the journal");
    waiting.reverse();
    net.nodes[0].is_slow = false;
    net.run();
    assert_eq!((net.take(p), net.take(q)), (vec!["OK".to_owned()], vec!["OK".to_owned()]));
}

/// A topic's limits are looked at where the client publishes, whoever leads.
#[test]
fn a_topic_may_have_tighter_limits_than_the_nodes() {
    for cores in [1, 2] {
        let mut net = Net::with(cores, 2, Settings::default());
        let limit = |net: &mut Net, max_msg_size, max_defer_ms| {
            let properties = TopicProperties { max_msg_size, max_defer_ms, ..Default::default() };
            (0..3).for_each(|node| net.tell(node, Fact::TopicProperties { topic: net.topic.clone(), properties }));
        };
        limit(&mut net, Some(4), Some(1000));
        for node in 0..2 {
            let told = |net: &mut Net, bytes: &[u8]| {
                let p = net.connect(node);
                net.send(p, bytes);
                net.pass_time(Duration::from_millis(100));
                net.take(p)
            };
            assert_eq!(told(&mut net, b"PUB t\n\0\0\0\x04four"), ["OK"]);
            let big = told(&mut net, b"PUB t\n\0\0\0\x05fives");
            assert!(big[0].starts_with("E_BAD_MESSAGE PUB failed message too big 5 > 4"), "{big:?}");
            assert_eq!(told(&mut net, b"DPUB t 1000\n\0\0\0\x04four"), ["OK"]);
            let far = told(&mut net, b"DPUB t 1001\n\0\0\0\x04four");
            assert!(far[0].starts_with("E_INVALID DPUB failed delay 1001 ms"), "{far:?}");
        }
        limit(&mut net, None, None);
        let p = net.connect(1);
        net.publish(p, "fives");
        net.pass_time(Duration::from_millis(100));
        assert_eq!(net.take(p), ["OK"]);
    }
}

#[test]
fn a_topic_may_leave_its_channels_to_operators() {
    let mut net = Net::new();
    net.subscribe(0, "there", 0);
    let by_operator = |net: &mut Net, channels_by_operator| {
        let properties = TopicProperties { channels_by_operator, ..Default::default() };
        (0..3).for_each(|node| net.tell(node, Fact::TopicProperties { topic: net.topic.clone(), properties }));
    };
    by_operator(&mut net, true);
    net.subscribe(0, "there", 0);
    // At the leader, and at another node.
    for node in 0..2 {
        let c = net.connect(node);
        net.send(c, b"SUB t other\n");
        let told = net.take(c);
        assert!(told[0].starts_with("E_SUB_CHANNEL_NOT_REGISTERED SUB failed the channel is not registered"), "{told:?}");
        assert_eq!((net.cursors(0).len(), net.closed.pop()), (1, Some(c)), "it is not asked again");
    }
    net.ask_change_of(2, ChannelName::new("other").expect("valid"), ChannelChange::Create { first: None, is_alone: false });
    (0..3).for_each(|node| drop(net.subscribe(node, "other", 0)));
    by_operator(&mut net, false);
    net.subscribe(0, "third", 0);
    assert_eq!(net.cursors(0).len(), 3);
}
