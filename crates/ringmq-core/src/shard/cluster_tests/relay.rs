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

/// What was in flight at a node that cannot be reached goes to others at once.
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

/// One message at a time, none before the FIN of the one before is on all in-sync replicas, over leaders.
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
    let stats = shard.stats(None, None, true);
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
