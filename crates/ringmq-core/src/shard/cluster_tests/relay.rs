//! Consumers at nodes that do not lead the partition.

use super::*;

fn ids(messages: &[String]) -> Vec<String> {
    messages.iter().map(|m| m.split(' ').next().expect("an id").to_owned()).collect()
}

fn fill(net: &mut Net, node: usize, bodies: &[&str]) {
    let p = net.connect(node);
    bodies.iter().for_each(|body| net.publish(p, body));
    assert_eq!(net.take(p), vec!["OK"; bodies.len()]);
}

#[test]
fn a_consumer_at_any_node_gets_what_it_is_ready_for_and_is_heard() {
    for cores in [1, 2] {
        let mut net = Net::with(cores, 1, Settings::default());
        fill(&mut net, 0, &["0", "1", "2", "3", "4"]);
        let (c, got) = net.subscribe(1, "ch", 2);
        assert_eq!(bodies(&got), ["0", "1"], "{cores} cores: never more than RDY");
        net.finish(c, &got[..1]);
        let more = net.take(c);
        assert_eq!(bodies(&more), ["2"]);
        // put back, and held
        let (first, second) = (&ids(&got)[1], &ids(&more)[0]);
        net.send(c, format!("TOUCH {second}\nREQ {first} 0\n").as_bytes());
        let again = net.take(c);
        assert_eq!(bodies(&again), ["1"], "the one that was put back comes first");
        net.send(c, format!("FIN {}\nTOUCH {0}\nREQ {0} 0\n", ids(&got)[0]).as_bytes());
        let told = net.take(c);
        assert!(told.len() == 3 && told.iter().all(|t| t.contains("_FAILED") && t.contains("not in flight")), "{told:?}");
        net.send(c, b"RDY 9\n");
        let rest = net.take(c);
        assert_eq!(bodies(&rest), ["3", "4"]);
        net.finish(c, &[again, more, rest].concat());
        net.pass_time(Duration::from_millis(400));
        assert!((0..3).all(|i| net.cursors(i)["ch"] == 6), "everything is finished, on all replicas");
        // a client of another node has its share, and leaves what it does not finish
        net.send(c, b"RDY 0\n");
        fill(&mut net, 2, &["5"]);
        let (d, got) = net.subscribe(2, "ch", 1);
        assert_eq!((bodies(&got), net.take(c).len()), (vec!["5"], 0));
        net.leave(d);
        net.send(c, b"RDY 1\n");
        assert_eq!(bodies(&net.take(c)), ["5"]);
    }
}

#[test]
fn a_consumer_stays_where_it_is_while_leaders_change() {
    let mut net = Net::new();
    fill(&mut net, 0, &["0", "1", "2"]);
    let (c, got) = net.subscribe(1, "ch", 2);
    net.finish(c, &got[..1]);
    assert_eq!(bodies(&net.take(c)), ["2"]);
    net.pass_time(Duration::from_millis(300));
    // another node, this node, and the first one again
    for leader in [2, 1, 0] {
        net.elect(0, leader);
        net.pass_time(Duration::from_secs(1));
        assert_eq!(bodies(&net.take(c)), ["1", "2"], "what was in flight comes again from node {leader}");
    }
    net.send(c, format!("FIN {}\n", ids(&got)[1]).as_bytes());
    fill(&mut net, 2, &["3"]);
    assert_eq!(bodies(&net.take(c)), ["3"]);
    net.kill(0);
    net.pass_time(Duration::from_secs(1));
    net.change(0, |m| {
        (m.leader, m.epoch) = (Some(id_of_node(2)), Epoch(9));
        m.isr.retain(|n| *n != id_of_node(0));
    });
    net.pass_time(Duration::from_secs(1));
    assert_eq!(net.take(c).len(), 2, "RDY holds at the next leader, too");
    assert!(net.closed.is_empty());
}

/// Messages in flight at a node that cannot be reached go to other clients at once.
#[test]
fn a_lost_link_returns_what_was_in_flight_and_the_consumer_joins_again() {
    let mut net = Net::new();
    fill(&mut net, 0, &["0", "1"]);
    let (c, got) = net.subscribe(1, "ch", 1);
    assert_eq!(bodies(&got), ["0"]);
    let (d, other) = net.subscribe(0, "ch", 1);
    assert_eq!(bodies(&other), ["1"]);
    net.hang_up_all(1);
    net.run();
    net.finish(d, &other);
    assert_eq!(bodies(&net.take(d)), ["0"]);
    net.finish(c, &got);
    assert!(net.take(c)[0].starts_with("E_FIN_FAILED"), "it is another's");
    net.pass_time(RECONNECT);
    fill(&mut net, 0, &["2"]);
    assert_eq!(bodies(&net.take(c)), ["2"]);
    assert!(net.closed.is_empty());
}

#[test]
fn a_sub_waits_for_a_leader_and_is_refused_in_time() {
    let mut net = Net::new();
    net.change(0, |m| (m.leader, m.epoch) = (None, Epoch(5)));
    let (c, d) = (net.connect(1), net.connect(2));
    net.send(c, b"SUB t ch\nRDY 1\n");
    net.pass_time(Duration::from_secs(5));
    assert!(net.take(c).is_empty());
    net.change(0, |m| (m.leader, m.epoch) = (Some(id_of_node(0)), Epoch(6)));
    net.pass_time(Duration::from_secs(1));
    fill(&mut net, 1, &["x"]);
    let told = net.take(c);
    assert_eq!((told[0].as_str(), bodies(&told[1..])), ("OK", vec!["x"]));
    net.change(0, |m| (m.leader, m.epoch) = (None, Epoch(7)));
    net.send(d, b"SUB t ch\n");
    net.pass_time(Duration::from_millis(net.settings.lease_ttl_ms + net.settings.pub_waiting_timeout_ms + 1000));
    assert!(net.take(d)[0].starts_with("E_FAILED_ON_NOT_LEADER SUB failed"));
    assert!(net.take(c)[0].starts_with("E_FAILED_ON_NOT_LEADER SUB failed"), "nor does a subscription wait for ever");
    net.closed.sort_unstable();
    assert_eq!(net.closed, [c, d]);
}

/// A client has one message at a time, and gets none before the FIN of the one before is on all in-sync replicas, over leaders.
#[test]
fn an_ordered_channel_keeps_its_order_at_any_node() {
    let mut net = Net::new();
    fill(&mut net, 0, &["0", "1", "2"]);
    let c = net.connect(1);
    let mut sub = vec![];
    request::subscribe_ordered(&mut sub, "t", "ch", None);
    request::ready(&mut sub, 5);
    net.send(c, &sub);
    assert_eq!(net.take_placed(c), ["0"]);
    net.elect(0, 2);
    net.pass_time(Duration::from_secs(1));
    assert_eq!(net.take_placed(c), ["0"], "the next leader begins with what is not finished");
}

#[test]
fn the_leader_shows_whose_client_it_is() {
    let mut net = Net::new();
    net.subscribe(1, "ch", 1);
    let shard = &mut net.nodes[0].shards[0];
    let stats = shard.stats(Ticks(0), None, None, true);
    let shown = format!("{stats:?}");
    assert!(shown.contains("test:1 through b"), "{shown}");
}

/// A leader of several partitions lends and takes back like the partitions of one node.
#[test]
fn a_consumer_reads_all_partitions_of_all_leaders_within_its_rdy() {
    for cores in [1, 2] {
        let mut net = Net::with(cores, 6, Settings::default());
        (0..6).for_each(|p| net.elect(p, p as usize % 3));
        let p = net.connect(2);
        (0..24).for_each(|i| net.publish(p, &i.to_string()));
        let (c, mut got) = net.subscribe(1, "ch", 3);
        let mut all = vec![];
        for _ in 0..100 {
            assert!(got.len() <= 3, "{cores} cores: RDY holds over all leaders: {got:?}");
            all.extend(bodies(&got).iter().map(|b| b.parse::<u32>().expect("a number")));
            if all.len() == 24 {
                break;
            }
            net.finish(c, &got);
            net.pass_time(Duration::from_millis(50));
            got = net.take(c);
        }
        all.sort_unstable();
        assert_eq!(all, (0..24).collect::<Vec<_>>(), "{cores} cores");
    }
}

/// A leader that is there and does not serve is asked again and again, but not for ever.
#[test]
fn a_leader_that_refuses_for_too_long_is_no_leader() {
    let mut net = Net::new();
    net.change(0, |m| (m.leader, m.epoch, m.former) = (Some(id_of_node(1)), Epoch(2), Some(id_of_node(0))));
    let c = net.connect(2);
    net.send(c, b"SUB t ch\n");
    let limit = Duration::from_millis(net.settings.lease_ttl_ms + net.settings.pub_waiting_timeout_ms);
    net.pass_time(limit - Duration::from_secs(1));
    assert!(net.take(c).is_empty());
    net.pass_time(Duration::from_secs(2));
    assert!(net.take(c)[0].starts_with("E_FAILED_ON_NOT_LEADER SUB failed"));
    assert_eq!(net.closed, [c]);
}

#[test]
fn a_node_with_another_number_of_cores_refuses_at_once_and_names_the_leader() {
    let mut net = Net::new();
    let (c, _) = net.subscribe(1, "ch", 1);
    net.kill(2);
    net.cores = 2;
    net.restart(2);
    net.pass_time(RECONNECT);
    let d = net.connect(2);
    net.send(d, b"SUB t ch\n");
    let told = net.take(d);
    let begin = "E_FAILED_ON_NOT_LEADER SUB failed this node does not lead the partition, and cannot relay";
    assert!(told[0].starts_with(begin) && told[0].ends_with(": a at a:2 does"), "{told:?}");
    assert_eq!(net.closed, [d]);
    // A subscription ends with the same when such a node comes to lead.
    net.elect(0, 2);
    net.pass_time(Duration::from_secs(1));
    let told = net.take(c);
    assert!(told[0].starts_with(begin), "{told:?}");
    assert_eq!(net.closed, [d, c]);
}

#[test]
fn a_relayed_client_counts_among_the_consumers_of_its_channel() {
    let mut net = Net::with(1, 1, Settings { max_channel_consumers: 1, ..Settings::default() });
    let (c, _) = net.subscribe(1, "ch", 1);
    let told = |net: &mut Net, node: usize| {
        let d = net.connect(node);
        net.send(d, b"SUB t ch\n");
        net.take(d)
    };
    for node in 0..3 {
        let told = told(&mut net, node);
        assert!(told[0].starts_with("E_SUB_FAILED SUB failed consumers for"), "{told:?}");
    }
    net.leave(c);
    assert_eq!(told(&mut net, 2), ["OK"]);
}

/// The leader keeps messages that a client does not take, and messages that a link does not take.
#[test]
fn a_slow_link_holds_messages_back() {
    const MESSAGES: usize = 30;
    let mut net = Net::new();
    let body = "x".repeat(64 * 1024);
    let p = net.connect(0);
    (0..MESSAGES).for_each(|_| net.publish(p, &body));
    let (c, _) = net.subscribe(1, "ch", 0);
    net.stuck.insert(0, vec![]);
    net.send(c, b"RDY 100\n");
    // More turns than there are messages: the leader could deliver one in each.
    net.pass_time(Duration::from_secs(1));
    let waits = |net: &Net| {
        let links = net.nodes[0].shards[0].stats(Ticks(0), None, None, false).links;
        links.iter().map(|l| l.queued_bytes).max().expect("it has links") as usize
    };
    // The socket has taken none of what was given to it, and the queue behind it takes no more.
    let least = crate::peer::DATA_UNSENT_MAX;
    let most = least + crate::peer::RELAYED_MAX + 2 * body.len();
    assert!((least..most).contains(&waits(&net)) && most < MESSAGES * body.len(), "{} bytes wait", waits(&net));
    net.unstick(0);
    assert_eq!((net.take(c).len(), waits(&net)), (MESSAGES, 0));
}

#[test]
fn an_ephemeral_channel_goes_with_its_relayed_client() {
    let mut net = Net::new();
    let names = |net: &Net| net.cursors(0).into_keys().collect::<Vec<_>>();
    let (c, _) = net.subscribe(1, "e#ephemeral", 1);
    assert_eq!(names(&net), ["e#ephemeral"]);
    net.leave(c);
    assert!(names(&net).is_empty());
    let (c, _) = net.subscribe(2, "e#ephemeral", 5);
    fill(&mut net, 0, &["0"]);
    assert_eq!(bodies(&net.take(c)), ["0"]);
    net.elect(0, 1);
    net.pass_time(Duration::from_secs(1));
    fill(&mut net, 0, &["1"]);
    assert_eq!(net.take(c).last().map(|m| bodies(std::slice::from_ref(m))[0].to_owned()).as_deref(), Some("1"));
}

#[test]
fn the_clients_of_a_topic_that_goes_end() {
    let mut net = Net::new();
    let (c, _) = net.subscribe(1, "ch", 1);
    let (d, _) = net.subscribe(0, "ch", 1);
    (0..3).for_each(|node| net.tell(node, Fact::TopicGone(net.topic.clone())));
    net.run();
    net.closed.sort_unstable();
    assert_eq!(net.closed, [c, d]);
    assert!(net.take(c).is_empty() && net.take(d).is_empty(), "without a word, as with nsqd");
}

/// The client's node goes: its messages in flight go to another client at once.
#[test]
fn a_lost_client_node_returns_what_was_in_flight() {
    let mut net = Net::new();
    fill(&mut net, 0, &["0", "1"]);
    let (_, got) = net.subscribe(1, "ch", 2);
    assert_eq!(got.len(), 2);
    let (d, none) = net.subscribe(2, "ch", 2);
    assert!(none.is_empty());
    net.kill(1);
    net.run();
    assert_eq!(bodies(&net.take(d)), ["0", "1"]);
}

/// The former leader, which reaches neither the store nor the next one, still knows its clients.
#[test]
fn a_client_leaves_a_leader_that_the_metadata_does_not_name_any_more() {
    let mut net = Net::new();
    net.is_store_there = false;
    net.cut.extend([(0, 2), (2, 0)]);
    net.hang_up_all(2);
    net.pass_time(RECONNECT);
    let (c, _) = net.subscribe(1, "e#ephemeral", 1);
    let has_client = |net: &Net| {
        let stats = net.nodes[0].shards[0].stats(Ticks(0), None, None, true);
        format!("{stats:?}").contains("test:1 through b")
    };
    assert!(has_client(&net));
    let m = &mut net.metadata[0];
    (m.version, m.leader, m.epoch) = (m.version + 1, Some(id_of_node(2)), Epoch(2));
    m.isr.retain(|node| *node != id_of_node(0));
    [1, 2].into_iter().for_each(|node| net.tell_partition(node, 0));
    net.run();
    assert_eq!(
        (net.state(0), has_client(&net)),
        (State::Open, false),
        "the client has left before its leader hears of another one"
    );
    net.pass_time(Duration::from_secs(1));
    assert!(net.partition(0, 0).channels.is_empty());
    fill(&mut net, 2, &["0"]);
    assert_eq!(bodies(&net.take(c)), ["0"]);
}

/// The time without a leader is not added up.
#[test]
fn a_subscription_waits_as_long_for_each_leader() {
    let mut net = Net::new();
    let (c, _) = net.subscribe(1, "ch", 5);
    let limit = Duration::from_millis(net.settings.lease_ttl_ms + net.settings.pub_waiting_timeout_ms);
    for epoch in [2, 4] {
        net.change(0, |m| (m.leader, m.epoch) = (None, Epoch(epoch)));
        net.pass_time(limit - Duration::from_secs(1));
        net.change(0, |m| (m.leader, m.epoch) = (Some(id_of_node(0)), Epoch(epoch + 1)));
        net.pass_time(Duration::from_secs(1));
        fill(&mut net, 2, &["x"]);
        let got = net.take(c);
        assert_eq!(bodies(&got), ["x"]);
        net.finish(c, &got);
        net.pass_time(Duration::from_millis(300));
    }
    assert!(net.closed.is_empty());
}
