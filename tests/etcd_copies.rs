//! Copies of what should be one: a backup of etcd, and a copy of a node's data path. What was acknowledged is never lost to them.

mod node;

use node::Node;
use node::cluster::{Cluster, Publisher, consume, until};
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

/// The process that is registered stands still, so its links are free. What the copy confirmed would count as its own.
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
    copy_folder(&cluster.nodes[origin].data_path(), &copy.data_path());
    copy.spawn();
    until(|| copy.whole_log().contains("this node is registered"), || copy.log());
    publisher.publish(20);
    let isr = |cluster: &Cluster| cluster.replica(leader, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len));
    until(|| isr(&cluster) == Some(3), || format!("the copy is in sync: {:?}\n{}", isr(&cluster), copy.log()));
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
