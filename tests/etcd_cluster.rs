//! Three nodes and a real etcd, as processes: a client's first command creates a topic, and a killed leader is replaced without an
//! operator. No acknowledged message is lost.

mod node;

use node::cluster::{Cluster, Publisher, consume, until};
use node::etcd::{FAST, Member};
use node::{Client, Frame};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[test]
fn a_killed_leader_is_replaced_and_comes_back_as_a_follower() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    // All nodes are asked at once for a topic that nobody knows.
    let mut publishers: Vec<Publisher> = (0..3).map(|_| Publisher::new(&cluster, "orders")).collect();
    std::thread::scope(|scope| publishers.iter_mut().for_each(|p| drop(scope.spawn(|| p.publish(50)))));
    let acknowledged: BTreeSet<Vec<u8>> = publishers.iter().flat_map(|p| p.acknowledged.clone()).collect();
    let publisher = publishers.swap_remove(0);
    let background = publisher.in_background();
    background.wait_more(300);
    let first = cluster.leader("orders", 0);
    cluster.nodes[first].kill();
    let second = cluster.leader("orders", 0);
    assert_ne!(first, second);
    background.wait_more(300);
    cluster.nodes[first].spawn();
    cluster.nodes[first].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.wait_role(first, "orders", 0, "follower");
    let isr = |cluster: &Cluster| cluster.replica(second, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len));
    until(
        || isr(&cluster) == Some(3),
        || format!("it is in the ISR again: {:?}\n{}", isr(&cluster), cluster.nodes[second].log()),
    );
    background.wait_more(100);
    let publisher = background.stop();
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let all: Vec<Vec<u8>> = publisher.acknowledged.iter().cloned().chain(acknowledged).collect();
    consume(cluster.nodes[second].tcp(), "orders", "c", &all);
    cluster.stop_and_compare(publisher.acknowledged.len());
}

/// Connections to a node that does not lead, which stay while the leader is killed: every publish is stored, once, and comes.
#[test]
fn a_client_publishes_and_consumes_where_nothing_is_led_while_the_leader_is_killed() {
    let etcd = Member::start(&FAST);
    // A busy machine takes its time, and nothing is refused meanwhile.
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &["--pub-waiting-timeout=30s"]);
    Publisher::new(&cluster, "orders").publish(1);
    let first = cluster.leader("orders", 0);
    let at = (first + 1) % 3;
    let address = cluster.nodes[at].tcp();
    // One of the two is at a node that leads nothing after the failover, either.
    let consumers = [at, (first + 2) % 3].map(|node| {
        let mut consumer = Client::connect(cluster.nodes[node].tcp()).expect("it listens");
        consumer.subscribe("orders", &format!("at-{node}"), 10).expect("it is relayed");
        consumer
    });
    let mut client = Client::connect(address).expect("it listens");
    let mut acknowledged = vec![];
    let mut publish = |client: &mut Client, count: usize| {
        for n in 0..count {
            let body = format!("forwarded {} {n} ", acknowledged.len()).into_bytes();
            match client.publish("orders", &body) {
                Ok(()) => acknowledged.push(body),
                // It was on its way to the leader when that was killed; the error ends the connection, as with nsqd.
                Err(error) => {
                    assert!(error.to_string().contains("the outcome is unknown"), "{error}");
                    *client = Client::connect(address).expect("it listens");
                }
            }
        }
    };
    publish(&mut client, 100);
    cluster.nodes[first].kill();
    publish(&mut client, 100);
    let second = cluster.leader("orders", 0);
    assert_ne!(first, second);
    let other = (0..3).find(|n| ![first, second].contains(n)).expect("three nodes");
    for (path, body) in [("/pub?topic=orders", "over http"), ("/mpub?topic=orders", "line 1\nline 2")] {
        let answer = cluster.nodes[other].post(path, body.as_bytes()).expect("it answers");
        assert!(answer.ends_with("OK"), "{answer}");
        acknowledged.extend(body.split('\n').map(|line| line.as_bytes().to_vec()));
    }
    consumers.into_iter().for_each(|consumer| consume_all(consumer, &acknowledged));
}

/// Consumes all messages. Those in flight at a killed leader are redelivered, and a FIN of one may come too late.
fn consume_all(mut consumer: Client, wanted: &[Vec<u8>]) {
    let mut missing: BTreeSet<Vec<u8>> = wanted.iter().cloned().collect();
    let mut ids = BTreeMap::new();
    while !missing.is_empty() {
        match consumer.read().expect("its connection stays") {
            Frame::Message(message) => {
                missing.remove(&message.body);
                let id = *ids.entry(message.body).or_insert(message.id);
                assert_eq!(id, message.id, "none is stored twice");
                consumer.finish(&message.id).expect("it reads");
            }
            Frame::Error(error) => assert!(error.starts_with("E_FIN_FAILED"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_stopped_node_gives_its_lease_back_and_nobody_waits_for_its_end() {
    let etcd = Member::start(&FAST);
    // No client could wait for these.
    let limits = ["--lease-ttl=60s", "--follower-limit=300s", "--replica-write-limit=400s"];
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &limits);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(50);
    let first = cluster.leader("orders", 0);
    // All three are in sync, and a follower that stops leaves the ISR.
    let follower = (first + 1) % 3;
    cluster.nodes[follower].stop();
    publisher.publish(50);
    cluster.nodes[follower].spawn();
    cluster.nodes[follower].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let are_in_sync = || {
        let wanted = "ringmq_partition_in_sync_replicas{topic=\"orders\",partition=\"0\"} 3";
        cluster.nodes[first].get("/metrics").is_ok_and(|metrics| metrics.contains(wanted))
    };
    until(are_in_sync, || cluster.nodes[first].log());
    cluster.nodes[first].stop();
    publisher.publish(50);
    let second = cluster.leader("orders", 0);
    // A killed process on the same data path is known to be gone.
    cluster.nodes[first].spawn();
    cluster.nodes[first].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.nodes[first].kill();
    cluster.nodes[first].spawn();
    cluster.nodes[first].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    publisher.publish(50);
    consume(cluster.nodes[second].tcp(), "orders", "c", &publisher.acknowledged);
}

#[test]
fn leaders_stop_while_etcd_sleeps_and_go_on_when_it_is_back() {
    let mut etcd = Member::start(&FAST);
    let cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(100);
    // A restart within the time of the lease costs nothing.
    etcd.restart();
    background.wait_more(100);
    etcd.pause();
    let leader = cluster.leader("orders", 0);
    let lapsed = || cluster.nodes[leader].get("/ping").is_ok_and(|answer| answer.contains("lease of this node is over"));
    until(lapsed, || format!("/ping says so:\n{}", cluster.nodes[leader].log()));
    background.stands_still(Duration::from_secs(2));
    etcd.resume();
    background.wait_more(200);
    let publisher = background.stop();
    let leader = cluster.leader("orders", 0);
    consume(cluster.nodes[leader].tcp(), "orders", "c", &publisher.acknowledged);
    for node in &cluster.nodes {
        until(|| node.get("/ping").is_ok_and(|answer| answer.ends_with("OK")), || format!("all is well:\n{}", node.log()));
    }
}

#[test]
fn a_wiped_etcd_changes_nothing_and_a_data_path_stays_in_its_cluster() {
    let mut etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(50);
    etcd.wipe();
    for node in &cluster.nodes {
        let refuses = || node.get("/ping").is_ok_and(|answer| answer.contains("the metadata store"));
        until(refuses, || format!("it says that the store is not its own:\n{}", node.log()));
    }
    let refused = Client::connect(cluster.nodes[0].tcp()).expect("it listens").publish("orders", b"x");
    assert!(refused.is_err(), "nobody leads by a store that is not the cluster's");
    cluster.nodes[0].kill();
    cluster.nodes[0].spawn();
    let ended = cluster.nodes[0].wait_ready().expect_err("it does not start");
    assert!(ended.contains("etcd has no key `id` of this cluster"), "{ended}");
}

#[test]
fn a_killed_process_is_replaced_long_before_its_lease_is_over() {
    let etcd = Member::start(&FAST);
    // No client could wait for this one.
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &["--lease-ttl=60s"]);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(50);
    let first = cluster.leader("orders", 0);
    cluster.nodes[first].kill();
    publisher.publish(50);
    let second = cluster.leader("orders", 0);
    assert_ne!(first, second);
    // Its lease lives on, and so nobody delivers yet.
    let args = ["cluster", "partitions", "--json", &format!("--etcd-endpoints={}", etcd.url())].map(String::from);
    let output = std::process::Command::new(node::binary()).args(args).output().expect("the binary runs");
    let partitions: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(partitions[0]["troubles"][0], "no deliveries yet", "{partitions}\n{}", cluster.nodes[second].log());
    // The next process on the same data path ends the lease of the killed one: now it is certain that nobody else delivers.
    cluster.nodes[first].spawn();
    cluster.nodes[first].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let leader = cluster.leader("orders", 0);
    consume(cluster.nodes[leader].tcp(), "orders", "c", &publisher.acknowledged);
}

/// A node that was not in sync comes back alone: it may not lead, and says so when an election had its time.
#[test]
fn a_node_says_which_of_its_partitions_have_no_leader() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(10);
    let first = cluster.leader("orders", 0);
    let alone = (first + 1) % 3;
    cluster.nodes[alone].kill();
    let in_sync = |cluster: &Cluster| cluster.replica(first, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len));
    until(|| in_sync(&cluster) == Some(2), || "the killed node leaves the ISR".into());
    publisher.publish(10);
    (0..3).filter(|n| *n != alone).for_each(|n| cluster.nodes[n].kill());
    cluster.nodes[alone].spawn();
    let ping = |cluster: &Cluster| cluster.nodes[alone].get("/ping").unwrap_or_default();
    let said = "OK - 1 partition of this node has no leader: orders/0 (start one of ";
    until(|| ping(&cluster).contains(said), || format!("{}\n{}", ping(&cluster), cluster.nodes[alone].log()));
    assert!(cluster.nodes[alone].log().contains("1 partition of this node has no leader"));
    let stats = cluster.nodes[alone].get("/stats?format=json").expect("it answers");
    assert!(stats.contains(said), "{stats}");
    let metrics = cluster.nodes[alone].get("/metrics").expect("it answers");
    assert!(metrics.contains("ringmq_cluster_own_partitions_without_leader 1\n"), "{metrics}");
    cluster.nodes[first].spawn();
    until(|| ping(&cluster).ends_with("OK"), || format!("{}\n{}", ping(&cluster), cluster.nodes[alone].log()));
}

/// `ringmq cluster init`, `verify` and `doctor`: a cluster is made once, one that is well is found to be, and what is not well is named.
#[test]
fn an_operator_verifies_replicas_and_asks_the_doctor() {
    let etcd = Member::start(&FAST);
    let ringmq = |args: &[&str]| {
        let endpoints = format!("--etcd-endpoints={}", etcd.url());
        let args = ["cluster"].into_iter().chain(args.iter().copied()).chain([endpoints.as_str()]);
        let output = std::process::Command::new(node::binary()).args(args).output().expect("the binary runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    // A cluster that does not exist is not well.
    for word in ["status", "nodes", "topics", "partitions", "verify", "rebalance"] {
        let (code, text) = ringmq(&[word]);
        assert!(code == Some(1) && text.contains("this etcd has no cluster main: it has none"), "{word}: {text}");
    }
    assert!(ringmq(&["doctor"]).1.contains("this etcd has no cluster main"));
    let made = ringmq(&["init"]);
    assert!(made.0 == Some(0) && made.1.contains("is created: id "), "{made:?}");
    let (_, id) = made.1.split_once("id ").expect("it was looked at");
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &["--broadcast-address=127.0.0.1"]);
    let again = ringmq(&["init"]);
    assert!(again.0 == Some(0) && again.1.contains(&format!("exists: id {}, 3 nodes", &id[..32])), "{again:?}");
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(100);
    // Also while they move.
    let mut last = Default::default();
    until(
        || {
            last = ringmq(&["verify", "--topic=orders"]);
            last.0 == Some(0)
        },
        || "replicas agree".into(),
    );
    assert!(last.1.contains("1 compared: metadata and replicas agree"), "{last:?}");
    let doctor = || -> Vec<String> {
        let (code, text) = ringmq(&["doctor", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(code, Some(if told["is_well"] == true { 0 } else { 1 }));
        let all = told["findings"].as_array().cloned().unwrap_or_default();
        let bad = all.iter().filter(|f| f["is_bad"] == true);
        bad.map(|f| format!("{}: {}", f["about"].as_str().unwrap_or_default(), f["found"].as_str().unwrap_or_default())).collect()
    };
    // The version of this machine's etcd is what it is.
    let of_nodes = || doctor().into_iter().filter(|found| !found.starts_with("etcd")).collect::<Vec<_>>();
    assert_eq!(of_nodes(), [""; 0]);
    let (code, text) = ringmq(&["status", "--cluster-name=mian"]);
    assert!(code == Some(1) && text.contains("no cluster mian: it has main"), "{text}");
    // Of three nodes none can take a third replica.
    let (code, text) = ringmq(&["drain", "--wait", "--node=b"]);
    assert!(code == Some(1) && text.contains("node b keeps 1 replicas that no other node can take: orders/0"), "{text}");
    let (code, text) = ringmq(&["remove", "--node=b"]);
    assert!(code == Some(1) && text.contains("holds 1 replicas"), "{text}");
    assert_eq!(ringmq(&["undrain", "--node=b"]).0, Some(0));
    drop(background.stop());
    let other = (cluster.leader("orders", 0) + 1) % 3;
    cluster.nodes[other].kill();
    until(
        || of_nodes().iter().any(|found| found.ends_with("the node is away: its lease is over")),
        || format!("{:?}", of_nodes()),
    );
    let (code, text) = ringmq(&["verify"]);
    assert!(code == Some(1) && text.contains("not asked: the node is away"), "{text}");
}

fn stats(cluster: &Cluster, node: usize) -> serde_json::Value {
    let answer = cluster.nodes[node].get("/cluster/stats").expect("it answers");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("it is JSON")
}

/// Name of the node in the cluster.
fn name_of(cluster: &Cluster, node: usize) -> String {
    let tcp = cluster.nodes[node].tcp().to_string();
    let stats = stats(cluster, node);
    let all = stats["node_stat_list"].as_array().expect("a list").clone();
    let found = all.iter().find(|n| n["tcp_address"] == tcp.as_str()).unwrap_or_else(|| panic!("{tcp} in {all:?}"));
    found["hostname"].as_str().expect("a name").to_owned()
}

#[test]
fn an_operator_drains_a_node_and_moves_a_leader_while_clients_publish() {
    let etcd = Member::start(&FAST);
    let cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let create = "/topic/create?topic=orders&partition_num=1&replicator=2&min_isr=1&retention=1";
    let post = |node: usize, path: &str| {
        let answer = cluster.nodes[node].post(path, b"").expect("it answers");
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((post(0, create).as_str(), post(1, create).as_str()), ("200", "200"), "created, and there like that");
    assert_eq!(post(1, "/topic/create?topic=orders&partition_num=2"), "409", "not like that");
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(100);
    let ringmq = |args: &[&str]| {
        let endpoints = format!("--etcd-endpoints={}", etcd.url());
        let args: Vec<&str> = ["cluster"].into_iter().chain(args.iter().copied()).chain([endpoints.as_str()]).collect();
        cluster.nodes[0].run(&args)
    };
    let first = cluster.leader("orders", 0);
    let drained = name_of(&cluster, first);
    let said = ringmq(&["drain", "--wait", &format!("--node={drained}")]);
    assert!(said.contains(&format!("node {drained} is empty")), "{said}");
    let second = cluster.leader("orders", 0);
    assert_ne!(first, second);
    background.wait_more(100);
    ringmq(&["undrain", &format!("--node={drained}")]);
    let third = 3 - first - second;
    let to = name_of(&cluster, third);
    // A move that cannot be names the nodes as people do.
    let moved = |from: &str, to: &str| {
        let path = format!("/topic/partition/move?topic=orders&partition=0&move_from={from}&move_to={to}");
        cluster.nodes[first].post(&path, b"").expect("it answers")
    };
    let refused = moved(&drained, &drained);
    assert!(refused.contains(&format!("of topic orders has no replica on node {drained}; it has replicas on ")), "{refused}");
    let refused = moved(&to, &to);
    assert!(refused.contains(&format!("has a replica on node {to} already")), "{refused}");
    let put = node::stock::request(cluster.nodes[third].http(), "PUT", create).expect("it answers");
    assert_eq!(put.0, 200, "{put:?}");
    let move_it = format!("/topic/partition/move?topic=orders&partition=0&move_leader=true&move_to={to}");
    assert_eq!(post(first, &move_it), "200", "{}", stats(&cluster, first));
    until(|| cluster.role(third, "orders", 0) == "leader", || format!("{to} leads:\n{}", cluster.nodes[second].log()));
    background.wait_more(100);
    let metrics = cluster.nodes[first].get("/metrics").expect("it answers");
    assert!(metrics.contains("ringmq_cluster_partitions_without_leader 0\n"), "{metrics}");
    assert!(metrics.contains("ringmq_cluster_lease 1\n"), "{metrics}");
    let publisher = background.stop();
    consume(cluster.nodes[third].tcp(), "orders", "c", &publisher.acknowledged);
}

/// One node is away while the topic is deleted, and another one is killed during the deletion.
#[test]
fn a_deleted_topic_frees_the_disks_of_all_nodes_and_its_name() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let post = |cluster: &Cluster, node: usize, path: &str| {
        let answer = cluster.nodes[node].post(path, b"").expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    };
    post(&cluster, 0, "/topic/create?topic=orders&partition_num=4");
    let leader = cluster.leader("orders", 0);
    let mut client = Client::connect(cluster.nodes[leader].tcp()).expect("it listens");
    let body = vec![b'x'; 100_000];
    (0..100).for_each(|_| client.publish("orders", &body).expect("it is stored"));
    let folder = |cluster: &Cluster, node: usize| cluster.nodes[node].data_path().join("topics/orders");
    until(
        || (0..3).all(|node| bytes_below(&folder(&cluster, node)) > 5_000_000),
        || "the messages are in the topic's files".into(),
    );
    let (away, killed) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[away].kill();
    post(&cluster, leader, "/topic/delete?topic=orders");
    cluster.nodes[killed].kill();
    cluster.nodes[killed].spawn();
    cluster.nodes[killed].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    for node in [leader, killed] {
        // A kill between the removal of the last file and of its folder leaves the folder.
        let is_free = || bytes_below(&folder(&cluster, node)) == 0;
        until(is_free, || format!("node {node} frees the space:\n{}", cluster.nodes[node].log()));
    }
    assert!(bytes_below(&folder(&cluster, away)) > 5_000_000, "it has not heard of it");
    cluster.nodes[away].spawn();
    cluster.nodes[away].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(300);
    until(
        || (0..3).all(|node| ["leader", "follower"].contains(&cluster.role(node, "orders", 0).as_str())),
        || format!("all nodes have the next topic of the name:\n{}", cluster.nodes[away].log()),
    );
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let second = cluster.leader("orders", 0);
    consume(cluster.nodes[second].tcp(), "orders", "c", &publisher.acknowledged);
    assert!((0..3).all(|node| bytes_below(&folder(&cluster, node)) < 5_000_000), "nothing of the old topic is left");
    // A startup that finishes a deletion leaves empty folders of partitions: the data paths are not compared folder by folder.
    for node in &mut cluster.nodes {
        node.stop();
    }
}

#[test]
fn a_replica_that_moved_away_frees_its_old_node_and_may_come_back() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let post = |cluster: &Cluster, node: usize, path: &str| {
        let answer = cluster.nodes[node].post(path, b"").expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    };
    post(&cluster, 0, "/topic/create?topic=orders&partition_num=1&replicator=2");
    let leader = cluster.leader("orders", 0);
    let folder = |cluster: &Cluster, node: usize| cluster.nodes[node].data_path().join("topics/orders/0");
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(3000);
    until(|| (0..3).filter(|node| folder(&cluster, *node).exists()).count() == 2, || "two nodes have a replica".into());
    let from = (0..3).find(|node| *node != leader && folder(&cluster, *node).exists()).expect("a follower");
    let to = 3 - leader - from;
    let move_it = |cluster: &Cluster, from: usize, to: usize| {
        let [from, to] = [from, to].map(|node| name_of(cluster, node));
        post(cluster, leader, &format!("/topic/partition/move?topic=orders&partition=0&move_from={from}&move_to={to}"));
    };
    move_it(&cluster, from, to);
    until(|| !folder(&cluster, from).exists(), || format!("node {from} frees the space:\n{}", cluster.nodes[from].log()));
    cluster.wait_equal(&[leader, to], "orders", 0);
    // Back, and away again while the node is killed.
    move_it(&cluster, to, from);
    until(|| !folder(&cluster, to).exists(), || format!("node {to} frees the space:\n{}", cluster.nodes[to].log()));
    publisher.publish(300);
    cluster.wait_equal(&[leader, from], "orders", 0);
    cluster.nodes[to].kill();
    cluster.nodes[to].spawn();
    cluster.nodes[to].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    assert!(!folder(&cluster, to).exists(), "a startup makes nothing of a replica that is elsewhere");
    consume(cluster.nodes[leader].tcp(), "orders", "c", &publisher.acknowledged);
}

#[test]
fn partitions_are_added_under_publishers_and_consumers() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    Publisher::new(&cluster, "orders").publish(10);
    let first = cluster.leader("orders", 0);
    // A channel with a consumer, and one without.
    let mut consumer = Client::connect(cluster.nodes[first].tcp()).expect("it listens");
    consumer.subscribe("orders", "served", 100).expect("it leads the topic");
    Client::connect(cluster.nodes[first].tcp()).and_then(|mut c| c.subscribe("orders", "idle", 0)).expect("it leads the topic");
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(50);
    let endpoints = format!("--etcd-endpoints={}", etcd.url());
    let expand = ["cluster", "expand", "--topic=orders", "--partitions=6", &endpoints];
    let said = cluster.nodes[0].run(&expand);
    assert!(said.contains("topic orders has 6 partitions"), "{said}");
    let answer = cluster.nodes[1].post("/topic/partition/expand?topic=orders&partition_num=3", b"").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    let leaders: Vec<usize> = (0..6).map(|partition| cluster.leader("orders", partition)).collect();
    assert!((0..3).all(|node| leaders.contains(&node)), "the partitions are spread: {leaders:?}");
    let messages = |cluster: &Cluster, partition: usize| -> i64 {
        let end = cluster.replica(leaders[partition], "orders", partition).and_then(|r| r["end"].as_i64());
        end.unwrap_or(0)
    };
    until(|| (0..6).all(|p| messages(&cluster, p) > 0), || "publishes are spread over all of them".into());
    cluster.nodes[leaders[5]].kill();
    background.wait_more(100);
    cluster.nodes[leaders[5]].spawn();
    cluster.nodes[leaders[5]].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let publisher = background.stop();
    (0..6).for_each(|partition| cluster.wait_equal(&[0, 1, 2], "orders", partition));
    // The channel that had no consumer when partitions were added has all messages, wherever each is led.
    let mut missing: BTreeSet<Vec<u8>> = publisher.acknowledged.iter().cloned().collect();
    for node in 0..3 {
        if !(0..6).any(|partition| cluster.role(node, "orders", partition) == "leader") {
            continue;
        }
        let mut client = Client::connect(cluster.nodes[node].tcp()).expect("it runs");
        client.subscribe("orders", "idle", 100).expect("it leads something");
        client.set_read_timeout(Duration::from_secs(3)).expect("it is a socket");
        while let Ok(message) = client.message() {
            missing.remove(&message.body);
            client.finish(&message.id).expect("it reads");
        }
    }
    assert!(missing.is_empty(), "{} of {} did not come", missing.len(), publisher.acknowledged.len());
    cluster.stop_and_compare(publisher.acknowledged.len());
}

/// Any node takes the operations, also one that leads no partition of the topic.
#[test]
fn channels_are_changed_at_any_node_and_a_topic_leaves_them_to_operators() {
    let etcd = Member::start(&FAST);
    let cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let post = |node: usize, path: &str, status: &str| {
        let answer = cluster.nodes[node].post(path, b"").expect("it answers");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    };
    post(0, "/topic/create?topic=orders&partition_num=6&disable_channel_auto_create=true", "200");
    post(0, "/topic/create?topic=single&disable_channel_auto_create=true", "200");
    let leaders: BTreeSet<usize> = (0..6).map(|partition| cluster.leader("orders", partition)).collect();
    assert!(leaders.len() > 1, "several nodes lead: {leaders:?}");
    let leader = cluster.leader("single", 0);
    let (other, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let subscribe = |node: usize, topic: &str| {
        let mut client = Client::connect(cluster.nodes[node].tcp()).expect("it listens");
        client.write(format!("SUB {topic} c\n").as_bytes()).expect("it listens");
        match client.read().expect("it answers") {
            Frame::Response(_) => Ok(client),
            Frame::Error(text) => Err(text),
            other => panic!("{other:?}"),
        }
    };
    let is_refused =
        |node, topic: &str| subscribe(node, topic).is_err_and(|error| error.starts_with("E_SUB_CHANNEL_NOT_REGISTERED"));
    for topic in ["orders", "single"] {
        let of = |operation: &str| format!("/channel/{operation}?topic={topic}&channel=c");
        assert!((0..3).all(|node| is_refused(node, topic)), "at leaders, and through a relay");
        post(other, &of("pause"), "404");
        post(other, &of("create"), "200");
        post(third, &of("create"), "200");
        (0..3).for_each(|node| drop(subscribe(node, topic).expect("the channel is there")));
        post(other, &of("pause"), "200");
        let mut client = subscribe(third, topic).expect("the channel is there");
        client.write(b"RDY 100\n").expect("it listens");
        let mut publisher = Publisher::new(&cluster, topic);
        publisher.publish(30);
        client.set_read_timeout(Duration::from_millis(300)).expect("it is a socket");
        assert!(client.message().is_err(), "it is paused in all partitions");
        // Less than a heartbeat, which would be read as a sign of life.
        client.set_read_timeout(Duration::from_secs(20)).expect("it is a socket");
        post(third, &of("unpause"), "200");
        let mut missing: BTreeSet<Vec<u8>> = publisher.acknowledged.iter().cloned().collect();
        while !missing.is_empty() {
            let message = client.message().expect("it goes on in all partitions");
            missing.remove(&message.body);
            client.finish(&message.id).expect("it listens");
        }
        post(other, &format!("/topic/pause?topic={topic}"), "200");
        publisher.publish(10);
        post(third, &of("pause"), "200");
        post(other, &format!("/topic/unpause?topic={topic}"), "200");
        post(other, &of("empty"), "200");
        post(third, &of("unpause"), "200");
        publisher.publish(1);
        let message = client.message().expect("it goes on");
        assert_eq!(Some(&message.body), publisher.acknowledged.last(), "what came before is gone in all partitions");
        post(third, &of("delete"), "200");
        assert!((0..3).all(|node| is_refused(node, topic)));
        post(other, &of("delete"), "404");
    }
    // The tool asks one node for all of them, also where it knows several.
    let addresses: Vec<String> = cluster.nodes.iter().map(|node| format!("--nsqd-http-address={}", node.http())).collect();
    let ringmq = |operation: &str| {
        let all = addresses.iter().map(String::as_str);
        cluster.nodes[0].run(&["channel", operation, "--yes", "orders", "c"].into_iter().chain(all).collect::<Vec<_>>());
    };
    ringmq("create");
    (0..3).for_each(|node| drop(subscribe(node, "orders").expect("the channel is there")));
    ringmq("delete");
    assert!((0..3).all(|node| is_refused(node, "orders")));
    post(1, "/topic/meta/update?topic=orders&disable_channel_auto_create=false", "200");
    until(|| (0..3).all(|node| subscribe(node, "orders").is_ok()), || "subscriptions make channels again".into());
}

/// Limits of a topic hold for HTTP and NSQ clients, at the leader and at nodes that forward; another limit holds without a restart.
#[test]
fn a_topic_has_limits_of_its_own() {
    let etcd = Member::start(&FAST);
    let cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let post = |node: usize, path: &str, body: &[u8]| {
        let answer = cluster.nodes[node].post(path, body).expect("it answers");
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        (status, answer)
    };
    let is_answered = |node: usize, path: &str, body: &[u8], status: &str, code: &str| {
        let answer = post(node, path, body);
        assert!(answer.0 == status && answer.1.contains(code), "{path} at node {node}: {}", answer.1);
    };
    is_answered(0, "/topic/create?topic=orders&max_msg_size=8&max_defer=1000", b"", "200", "");
    cluster.leader("orders", 0);
    let told = |node: usize, command: &[u8]| {
        let mut client = Client::connect(cluster.nodes[node].tcp()).expect("it listens");
        client.write(command).expect("it listens");
        match client.read().expect("it answers") {
            Frame::Response(text) => String::from_utf8_lossy(&text).into_owned(),
            Frame::Error(text) => text,
            other => panic!("{other:?}"),
        }
    };
    let publish = |node: usize, body: &[u8]| told(node, &node::command_with_body("PUB orders", body));
    let defer = |node: usize, ms: u32| told(node, &node::command_with_body(&format!("DPUB orders {ms}"), b"x"));
    for node in 0..3 {
        let within = [publish(node, b"12345678"), defer(node, 1000)];
        assert_eq!(within, ["OK", "OK"], "node {node}");
        let (long, late) = (publish(node, b"123456789"), defer(node, 1001));
        assert!(long.starts_with("E_BAD_MESSAGE PUB failed message too big 9 > 8"), "node {node}: {long}");
        assert!(late.starts_with("E_INVALID DPUB failed delay 1001 ms is out of range"), "node {node}: {late}");
        is_answered(node, "/pub?topic=orders", b"123456789", "413", "MSG_TOO_BIG");
        is_answered(node, "/mpub?topic=orders", b"1\n123456789\n", "413", "MSG_TOO_BIG");
        is_answered(node, "/pub?topic=orders&defer=1001", b"x", "400", "INVALID_DEFER");
        is_answered(node, "/pub?topic=orders&defer=1000", b"12345678", "200", "OK");
    }
    // A number of partitions is not changed by the way, nor is a min_isr that was chosen.
    is_answered(1, "/topic/meta/update?topic=orders&partition_num=4", b"", "400", "/topic/partition/expand");
    is_answered(1, "/topic/create?topic=other&partition_num=0", b"", "400", "partition_num is at least 1");
    is_answered(1, "/topic/create?topic=chosen&replicator=3&min_isr=3", b"", "200", "");
    is_answered(1, "/topic/meta/update?topic=chosen&replicator=1", b"", "400", "a min_isr of 1 to its replicas");
    // Limits that no node can have promise nothing.
    is_answered(1, "/topic/create?topic=other&max_msg_size=1000000000000", b"", "400", "max_msg_size is at most 66060288");
    is_answered(1, "/topic/meta/update?topic=orders&max_defer=100000000000000", b"", "400", "max_defer is at most 2592000000");
    is_answered(1, "/topic/meta/update?topic=orders&max_msg_size=4&max_defer=0", b"", "200", "");
    for node in 0..3 {
        until(|| publish(node, b"12345").starts_with("E_BAD_MESSAGE"), || format!("node {node} has the tighter limit"));
        assert_eq!([publish(node, b"1234"), defer(node, 60_000)], ["OK", "OK"], "node {node}");
    }
}

/// The nodes' own records come once a minute, so this test writes the record of one node's publishes.
#[test]
fn a_leader_moves_from_a_node_that_takes_much_more_than_others() {
    let etcd = Member::start(&FAST);
    let cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let answer = cluster.nodes[0].post("/topic/create?topic=orders&partition_num=6", b"").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let list = |what: &str| -> Vec<serde_json::Value> {
        let text = cluster.nodes[0].run(&["cluster", what, "--json", &format!("--etcd-endpoints={}", etcd.url())]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let leaders = || list("partitions").iter().map(|p| text(&p["leader"])).collect::<Vec<String>>();
    let is_spread = || {
        let leaders = leaders();
        leaders.len() == 6 && leaders.iter().all(|name| leaders.iter().filter(|n| *n == name).count() == 2)
    };
    until(is_spread, || format!("each node leads two: {:?}", leaders()));
    let before = leaders();
    let busy = &before[0];
    let nodes = list("nodes");
    let id = nodes.iter().find(|n| text(&n["name"]) == *busy).map(|n| text(&n["id"])).expect("it is a node");
    let base64 = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let found = etcd.post("/v3/kv/range", &format!(r#"{{"key":"{}"}}"#, base64("/ringmq/main/topic/orders")));
    let found: serde_json::Value = serde_json::from_str(found.split("\r\n\r\n").nth(1).expect("a body")).expect("it is JSON");
    let record = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text(&found["kvs"][0]["value"]));
    let record: serde_json::Value = serde_json::from_slice(&record.expect("it is base64")).expect("it is JSON");
    let busiest = serde_json::json!([{ "topic": record["id"], "partition": 0, "kib_per_s": 4000 }]);
    let load = serde_json::json!({ "v": 1, "kib_per_s": 9000, "busiest": busiest }).to_string();
    let put = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(&format!("/ringmq/main/load/{id}")), base64(&load));
    assert!(etcd.post("/v3/kv/put", &put).contains("200 OK"));
    until(|| leaders()[0] != *busy, || format!("another node leads the busiest partition: {:?}", list("partitions")));
    let count = leaders().iter().filter(|name| *name == busy).count();
    assert_eq!(count, 1, "one leader moves for one record: {before:?} {:?}", leaders());
    Publisher::new(&cluster, "orders").publish(30);
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let meta = entry.metadata().ok()?;
        Some(if meta.is_dir() { bytes_below(&entry.path()) } else { meta.len() })
    };
    entries.filter_map(of).sum()
}
