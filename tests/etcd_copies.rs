//! A backup of etcd, and a copy of a node's data path: neither of them loses acknowledged messages.

mod node;

use node::Node;
use node::cluster::{Cluster, Proxy, Publisher, WITH_ETCD, consume, until};
use node::etcd::{FAST, Member, copy_folder};
use std::time::Duration;

/// A backup of etcd from before a failover names replicas as in sync that lack what was acknowledged after it.
#[test]
fn an_etcd_from_before_a_failover_is_refused() {
    let mut etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(20);
    etcd.back_up();
    let first = cluster.leader("orders", 0);
    cluster.nodes[first].kill();
    publisher.publish(50);
    let others: Vec<usize> = (0..3).filter(|n| *n != first).collect();
    others.iter().for_each(|n| cluster.nodes[*n].kill());
    etcd.go_back();
    for n in others {
        cluster.nodes[n].spawn();
        let ended = cluster.nodes[n].wait_ready().expect_err("it does not start");
        assert!(ended.contains("etcd went back"), "{ended}");
    }
}

/// Three messages are on all nodes; then a follower stands still. The topic's publisher, its leader, and the follower.
fn with_a_stopped_follower(cluster: &Cluster) -> (Publisher, usize, usize) {
    let mut publisher = Publisher::new(cluster, "orders");
    publisher.publish(3);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let leader = cluster.leader("orders", 0);
    let origin = (leader + 1) % 3;
    cluster.nodes[origin].signal(libc::SIGSTOP);
    (publisher, leader, origin)
}

/// Number of replicas in the ISR of the topic's partition, as this leader says.
fn isr_len(cluster: &Cluster, leader: usize) -> Option<usize> {
    cluster.replica(leader, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len))
}

/// Starts `copy` on a copy of the origin's data path. It is registered in the origin's place, and comes in sync with 20 more messages.
fn copy_comes_in_sync(cluster: &Cluster, (leader, origin): (usize, usize), copy: &mut Node, publisher: &mut Publisher) {
    copy_folder(&cluster.nodes[origin].data_path(), &copy.data_path());
    copy.spawn();
    until(|| copy.whole_log().contains("this node is registered"), || copy.log());
    publisher.publish(20);
    let in_sync = || isr_len(cluster, leader);
    until(|| in_sync() == Some(3), || format!("the copy is in sync: {:?}\n{}", in_sync(), copy.log()));
}

/// The process that is registered stands still, so its links are free. Confirmations of the copy would count as those of the process.
#[test]
fn a_copy_of_a_data_path_takes_no_part_while_its_origin_is_registered() {
    let etcd = Member::start(&FAST);
    let flags = ["--lease-ttl=60s", "--min-isr=1"];
    let cluster = Cluster::start_with_etcd(&[etcd.url()], &flags);
    let (mut publisher, leader, origin) = with_a_stopped_follower(&cluster);
    let small = ["--shards=2", "--journal-bytes=8MiB", "--max-bytes-per-file=1MiB"];
    let mut copy = Node::prepare_with_etcd(&[etcd.url()], "copy", &[&small[..], &flags[..]].concat());
    copy_folder(&cluster.nodes[origin].data_path(), &copy.data_path());
    copy.spawn();
    until(|| copy.whole_log().contains("another process is registered as this node"), || copy.log());
    publisher.publish(20);
    std::thread::sleep(Duration::from_secs(3));
    let log = copy.whole_log();
    assert!(!log.contains("connected to a peer") && !log.contains("role=\"follower\" "), "{log}");
    copy.kill();
    cluster.nodes[origin].signal(libc::SIGCONT);
    publisher.publish(1);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    consume(cluster.nodes[leader].tcp(), "orders", "c", &publisher.acknowledged);
}

/// The copy is registered after the lease of its origin, and is in sync: only its data path has everything.
#[test]
fn an_origin_that_was_overtaken_by_its_copy_never_leads() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &["--min-isr=1"]);
    let (mut publisher, leader, origin) = with_a_stopped_follower(&cluster);
    let flags = ["--shards=2", "--journal-bytes=8MiB", "--max-bytes-per-file=1MiB", "--min-isr=1", "--lease-ttl=3s"];
    let mut copy = Node::prepare_with_etcd(&[etcd.url()], "copy", &[&flags[..], &["--lease-ttl-floor=1s"]].concat());
    copy_comes_in_sync(&cluster, (leader, origin), &mut copy, &mut publisher);
    copy.kill();
    (0..3).filter(|n| *n != origin).for_each(|n| cluster.nodes[n].kill());
    cluster.nodes[origin].signal(libc::SIGCONT);
    let is_refused =
        |cluster: &Cluster| cluster.nodes[origin].whole_log().contains("another data path was registered as this node");
    until(|| is_refused(&cluster), || cluster.nodes[origin].log());
    assert_ne!(cluster.role(origin, "orders", 0), "leader");
    cluster.nodes[leader].spawn();
    cluster.nodes[leader].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let led = cluster.leader("orders", 0);
    assert_eq!(led, leader);
    consume(cluster.nodes[led].tcp(), "orders", "c", &publisher.acknowledged);
}

/// The copy was registered, in sync, and is gone. Its origin reaches its peers and not etcd: only they tell it.
#[test]
fn an_origin_without_etcd_is_refused_by_peers_that_know_of_its_copy() {
    let etcd = Member::start(&FAST);
    let ways: Vec<Proxy> = (0..3).map(|_| Proxy::to(etcd.client())).collect();
    let flags = [&WITH_ETCD[..], &["--min-isr=1"]].concat();
    let node = |n: usize| Node::prepare_with_etcd(&[format!("http://{}", ways[n].address)], ["a", "b", "c"][n], &flags);
    let mut nodes: Vec<Node> = (0..3).map(node).collect();
    let id = |node: &Node| node.run(&["node-id", &format!("--data-path={}", node.data_path().display())]);
    let ids: Vec<String> = nodes.iter().map(id).collect();
    nodes.iter_mut().for_each(Node::spawn);
    nodes.iter_mut().for_each(|node| node.wait_ready().unwrap_or_else(|e| panic!("{e}")));
    let cluster = Cluster::of(nodes);
    cluster.wait_registered();
    // The node with the lowest id connects to both others: it is the one that is told why it is refused.
    let origin = (0..3).min_by_key(|n| &ids[*n]).expect("three");
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(3);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let leader = (0..3).find(|n| *n != origin).expect("three");
    let lead = || {
        cluster.nodes[leader]
            .post(&format!("/topic/partition/move?topic=orders&partition=0&move_leader=true&move_to={}", ids[leader]), b"")
    };
    until(|| cluster.role(leader, "orders", 0) == "leader" || lead().is_err(), || format!("{:?}", lead()));
    // Before the process stops: messages of etcd would wait in its socket.
    ways[origin].hold();
    cluster.nodes[origin].signal(libc::SIGSTOP);

    let mut copy = Node::prepare_with_etcd(&[etcd.url()], "copy", &flags);
    copy_comes_in_sync(&cluster, (leader, origin), &mut copy, &mut publisher);
    copy.kill();
    until(|| isr_len(&cluster, leader) == Some(2), || format!("the copy is out of the ISR: {:?}", isr_len(&cluster, leader)));
    publisher.publish(20);
    let end = |node: usize| cluster.replica(node, "orders", 0).and_then(|r| r["end"].as_i64());
    let before = end(leader);
    cluster.nodes[origin].signal(libc::SIGCONT);
    let said = "the peer ended the connection (Other) and says: a later process was registered as this node";
    let log = || cluster.nodes[origin].whole_log();
    let peers = || (0..3).filter(|n| *n != origin).map(|n| ["a", "b", "c"][n]);
    let is_told = |peer: &str| log().lines().any(|line| line.contains(said) && line.contains(&format!("peer={peer} ")));
    until(|| peers().all(is_told), || format!("both peers say so:\n{}", cluster.nodes[origin].log()));
    for peer in peers() {
        let log = cluster.nodes[["a", "b", "c"].iter().position(|name| *name == peer).expect("it is one")].whole_log();
        assert!(log.contains("a peer is refused: a later process was registered as this node"), "{peer}: {log}");
    }
    publisher.publish(20);
    assert!(end(leader) > before, "the others go on");
    assert_eq!(isr_len(&cluster, leader), Some(2), "it confirms nothing");
    // With its way to etcd it hears the same from there.
    ways[origin].heal();
    until(|| log().contains("another data path was registered as this node"), || cluster.nodes[origin].log());
    assert_eq!(isr_len(&cluster, leader), Some(2), "it confirms nothing");
    consume(cluster.nodes[leader].tcp(), "orders", "c", &publisher.acknowledged);
}
