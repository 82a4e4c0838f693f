//! The procedures of docs/cluster.md and docs/cluster-failures.md, with real processes and a real etcd: the first three nodes, a node
//! that stays away or is removed, the largest topic, data paths in the wrong place, a single node that joins, a restore of everything,
//! and an etcd whose members fail.

mod node;

use node::cluster::{Cluster, LIMIT, Publisher, WITH_ETCD, consume, until};
use node::etcd::{FAST, Member, copy_folder, members};
use node::pki::Pki;
use node::{Client, Node};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Exit code and output of `ringmq cluster`.
fn ringmq(etcd: &Member, args: &[&str]) -> (Option<i32>, String) {
    let endpoints = format!("--etcd-endpoints={}", etcd.url());
    let args = ["cluster"].into_iter().chain(args.iter().copied()).chain([endpoints.as_str()]);
    let output = Command::new(node::binary()).args(args).output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// A list of `ringmq cluster`.
fn list(etcd: &Member, what: &str) -> Vec<Value> {
    let (_, text) = ringmq(etcd, &[what, "--json"]);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn post(node: &Node, path: &str) {
    let answer = node.post(path, b"").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
}

/// Id of a data path's node.
fn id_of(node: &Node) -> String {
    node.run(&["node-id", &format!("--data-path={}", node.data_path().display())])
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

// ---- a node that stays away

const REBUILDS_MAX: usize = 1;
const PARTITIONS: usize = 6;

/// Replicas of each node, by its name.
fn shares(etcd: &Member, names: &[&str]) -> Vec<usize> {
    let all = list(etcd, "partitions");
    let has = |name: &str, p: &Value| texts(&p["replicas"]).contains(&name);
    names.iter().map(|name| all.iter().filter(|p| has(name, p)).count()).collect()
}

/// Most partitions that had a living replica out of sync at a time, over all revisions of these.
fn most_rebuilds(etcd: &Member, revisions: std::ops::RangeInclusive<u64>) -> usize {
    let at = |revision| {
        let nodes: Vec<String> = etcd.values_at("/ringmq/main/node/", revision).into_iter().map(|(key, _)| key).collect();
        let lives = |id: &str| nodes.iter().any(|key| key.ends_with(id));
        let is_rebuilt = |p: &Value| {
            let isr = texts(&p["isr"]);
            texts(&p["replicas"]).into_iter().any(|id| lives(id) && !isr.contains(&id))
        };
        etcd.values_at("/ringmq/main/part/", revision).iter().filter(|(_, p)| is_rebuilt(p)).count()
    };
    revisions.map(at).max().unwrap_or(0)
}

/// More partitions lose a replica than may be rebuilt at a time. The zones stay apart meanwhile, and what the node comes back to is its
/// share.
#[test]
fn a_node_that_stays_away_is_replaced_at_a_limited_rate_and_gets_its_share_back() {
    let etcd = Member::start(&FAST);
    let names = ["a", "b", "c", "d"];
    let zones = [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")];
    let rebuilds = format!("--rebuilds-max={REBUILDS_MAX}");
    let mut cluster = Cluster::start_named(&[etcd.url()], &zones, &["--replace-after=1s", &rebuilds]);
    post(&cluster.nodes[0], &format!("/topic/create?topic=orders&partition_num={PARTITIONS}&replicator=2&min_isr=1"));
    let in_zone_y = |p: &Value| texts(&p["replicas"]).iter().filter(|name| ["c", "d"].contains(name)).count();
    let partitions = list(&etcd, "partitions");
    assert!(
        partitions.len() == PARTITIONS && partitions.iter().all(|p| in_zone_y(p) == 1),
        "a replica in each zone: {partitions:?}"
    );
    assert_eq!(shares(&etcd, &names), [3; 4]);
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(300);

    cluster.nodes[3].kill();
    until(|| shares(&etcd, &names) == [3, 3, 6, 0], || format!("c has what d had: {:?}", list(&etcd, "partitions")));
    let is_whole = || list(&etcd, "partitions").iter().all(|p| p["troubles"] == json!([]) && texts(&p["isr"]).len() == 2);
    until(is_whole, || format!("all are in sync: {:?}", list(&etcd, "partitions")));
    background.wait_more(100);
    let (code, text) = ringmq(&etcd, &["verify"]);
    assert!(text.contains("the node is away") || code == Some(0), "{text}");
    let replaced = etcd.revision();
    let has_d = |revision: u64| etcd.values_at("/ringmq/main/node/", revision).len() == names.len();
    let lost = (1..=replaced).rev().find(|revision| has_d(*revision)).expect("it was there") + 1;
    assert_eq!(most_rebuilds(&etcd, lost..=replaced), REBUILDS_MAX, "of three that were lost");

    cluster.nodes[3].spawn();
    cluster.nodes[3].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    // Two more than the least are even enough.
    let is_even = || {
        let shares = shares(&etcd, &names);
        shares.iter().sum::<usize>() == 2 * PARTITIONS && shares[3] >= 2 && shares.iter().all(|count| *count <= 4)
    };
    until(is_even, || format!("d has its share: {:?}", list(&etcd, "partitions")));
    until(is_whole, || format!("all are in sync: {:?}", list(&etcd, "partitions")));
    // By the records, since the list of the operator's page has no order.
    let is_led_first = || {
        let all = etcd.values("/ringmq/main/part/");
        all.iter().all(|(_, p)| p["leader"]["node"] == p["replicas"][0] && p["wanted"].is_null())
    };
    let (code, text) = ringmq(&etcd, &["rebalance"]);
    assert_eq!(code, Some(0), "{text}");
    until(is_led_first, || format!("the first replicas lead: {:?}", etcd.values("/ringmq/main/part/")));
    assert!(list(&etcd, "partitions").iter().all(|p| in_zone_y(p) == 1), "a replica in each zone");
    background.wait_more(100);
    let publisher = background.stop();
    consume(cluster.nodes[3].tcp(), "orders", "c", &publisher.acknowledged);
    let mut verified = Default::default();
    let agrees = || {
        verified = ringmq(&etcd, &["verify"]);
        verified.0 == Some(0)
    };
    until(agrees, || "metadata and replicas agree".into());
}

// ---- a node that is removed over HTTP

/// Status and body of `POST /cluster/node/remove`.
fn remove(at: &Node, name: &str) -> (u16, String) {
    let path = format!("/cluster/node/remove?remove_node={name}");
    let (status, _, body) = node::stock::request(at.http(), "POST", &path).expect("it answers");
    (status, body)
}

/// Repeats the request until the cluster forgets the node.
fn remove_to_the_end(at: &Node, name: &str) {
    let mut last = Default::default();
    let mut is_removed = || {
        last = remove(at, name);
        assert_eq!(last.0, 200, "{last:?}");
        last.1 == format!("node {name} is removed")
    };
    until(&mut is_removed, || format!("node {name} is removed"));
}

/// docs/cluster.md, "Nodes and partitions": one node that serves, which returns as a new one, and one that is lost with its replicas.
#[test]
fn a_node_is_removed_over_http() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let names = ["a", "b", "c"];
    for (name, wanted) in [("", (400, "MISSING_ARG_REMOVE_NODE")), ("d", (404, "there is no node d"))] {
        let answer = remove(&cluster.nodes[0], name);
        assert!(answer.0 == wanted.0 && answer.1.contains(wanted.1), "{name}: {answer:?}");
    }
    post(&cluster.nodes[0], "/topic/create?topic=orders&partition_num=3&replicator=2&min_isr=1");
    for word in ["status", "topics", "partitions", "verify"] {
        let (code, text) = ringmq(&etcd, &[word, "--topic=ordres"]);
        assert!(code == Some(1) && text.contains("there is no topic ordres"), "{word}: {code:?} {text}");
    }
    let (code, text) = ringmq(&etcd, &["expand", "--topic=orders", "--partitions=2"]);
    assert!(code == Some(1) && text.contains("NOT_DONE: topic orders has 3 partitions") && !text.contains('{'), "{text}");
    let (code, text) = ringmq(&etcd, &["expand", "--topic=ordres", "--partitions=2"]);
    assert!(code == Some(1) && text.contains("there is no topic ordres"), "{text}");
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(100);
    let first = cluster.leader("orders", 0);
    let (name, at) = (names[first], (first + 1) % 3);
    let id = id_of(&cluster.nodes[first]);
    // A creation whose node is killed leaves a partition without a topic, which no node ever takes.
    let stray = format!("/ringmq/main/part/{}/0000", "ab".repeat(16));
    let tag = json!({ "session": 0, "number": 0 });
    let record = json!({ "v": 1, "epoch": 1, "leader": null, "replicas": [&id], "isr": [&id], "min_isr": 1, "tag": tag });
    etcd.put(&stray, &record);
    let answer = remove(&cluster.nodes[at], name);
    assert!(answer.0 == 200 && answer.1.contains("is being drained and has "), "{answer:?}");
    until(|| shares(&etcd, &[name]) == [0], || format!("it is empty: {:?}", list(&etcd, "partitions")));
    let answer = remove(&cluster.nodes[at], name);
    assert!(answer.0 == 200 && answer.1.contains("has no replicas, and is not removed yet: stop it"), "{answer:?}");
    assert_eq!(list(&etcd, "nodes").len(), 3);
    background.wait_more(100);
    cluster.nodes[first].stop();
    remove_to_the_end(&cluster.nodes[at], name);
    let keys = ["member", "node", "drain", "load"].map(|kind| etcd.values(&format!("/ringmq/main/{kind}/{id}")));
    assert!(keys.iter().all(Vec::is_empty), "no key names it: {keys:?}");
    assert_eq!(remove(&cluster.nodes[at], name).0, 404, "it is gone");

    // On its data path it is a new node, which is not drained.
    cluster.nodes[first].spawn();
    cluster.nodes[first].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.wait_registered();
    let lost = at;
    cluster.nodes[lost].kill();
    let answer = remove(&cluster.nodes[first], names[lost]);
    assert!(answer.0 == 200 && answer.1.contains("is being drained and has "), "{answer:?}");
    remove_to_the_end(&cluster.nodes[first], names[lost]);
    assert_eq!(list(&etcd, "nodes").len(), 2);
    let is_whole = || list(&etcd, "partitions").iter().all(|p| p["troubles"] == json!([]) && texts(&p["isr"]).len() == 2);
    until(is_whole, || format!("the two that are left have everything: {:?}", list(&etcd, "partitions")));
    background.wait_more(100);
    let publisher = background.stop();
    consume(cluster.nodes[first].tcp(), "orders", "c", &publisher.acknowledged);
}

// ---- the largest topic

const PARTITIONS_MAX: usize = 1024;

/// Publishes once to each of these partitions, all at once; again where the outcome is an error. Bodies that were acknowledged.
fn publish_to_each(at: &Node, topic: &str, round: usize) -> Vec<Vec<u8>> {
    let body = |partition: usize| format!("{topic} {partition} {round}").into_bytes();
    let mut left: Vec<usize> = (0..PARTITIONS_MAX).collect();
    let began = Instant::now();
    while !left.is_empty() {
        assert!(began.elapsed() < LIMIT, "{} partitions take no publish, the first is {}", left.len(), left[0]);
        let mut client = Client::connect(at.tcp()).expect("it listens");
        let all: Vec<u8> = left.iter().flat_map(|p| node::command_with_body(&format!("PUB {topic} {p}"), &body(*p))).collect();
        let done = client.write(&all).map_or(0, |()| left.iter().take_while(|_| client.ok().is_ok()).count());
        left.drain(..done);
    }
    (0..PARTITIONS_MAX).map(body).collect()
}

/// Partitions that the nodes that run lead.
fn led(cluster: &Cluster, topic: &str) -> usize {
    let of = |node: &Node| {
        let answer = node.get(&format!("/stats?format=json&topic={topic}")).unwrap_or_default();
        answer.matches(r#""role":"leader""#).count()
    };
    cluster.nodes.iter().filter(|node| node.is_up()).map(of).sum()
}

fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
        meta => meta.map_or(0, |meta| meta.len()),
    };
    entries.flatten().map(of).sum()
}

/// docs/cluster.md, "Topics": as many partitions as a topic may have, which lose a node, are consumed by one client and deleted.
#[test]
fn a_topic_of_1024_partitions_survives_a_node_and_leaves_the_disks() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    for (wrong, wanted) in [
        ("partition_num=1025", "a topic has 1 to 1024 partitions"),
        ("partition_num=70000", "partition_num is not a whole number, or too large"),
        ("partition_num=0", "partition_num is at least 1"),
        ("replicator=0", "replicator is at least 1"),
        ("replicator=6", "1 to 5 replicas"),
        ("replicator=3&min_isr=4", "a min_isr of 1 to its replicas"),
        ("replicator=5&min_isr=4", "3 nodes can take replicas, and 4 are needed"),
    ] {
        let answer = node::stock::request(cluster.nodes[0].http(), "POST", &format!("/topic/create?topic=wide&{wrong}"));
        let (status, _, text) = answer.expect("it answers");
        assert!((status == 400 || status == 503) && text.contains(wanted), "{wrong}: {status} {text}");
    }
    assert_eq!(list(&etcd, "topics"), [Value::Null; 0], "nothing was created");
    let began = Instant::now();
    let took = |what: &str| println!("{:7.2} s  {what}", began.elapsed().as_secs_f64());
    // Asked for at all nodes at once. Requests that come too late leave no partition behind.
    let create = format!("/topic/create?topic=wide&partition_num={PARTITIONS_MAX}&replicator=3");
    std::thread::scope(|scope| cluster.nodes.iter().for_each(|node| drop(scope.spawn(|| post(node, &create)))));
    assert_eq!(etcd.values("/ringmq/main/part/").len(), PARTITIONS_MAX);
    until(|| led(&cluster, "wide") == PARTITIONS_MAX, || format!("{} are led", led(&cluster, "wide")));
    took("all partitions are led");
    let mut wanted = publish_to_each(&cluster.nodes[0], "wide", 0);
    took("a publish to each is acknowledged");
    let killed = cluster.leader("wide", 0);
    let others = [(killed + 1) % 3, (killed + 2) % 3];
    cluster.nodes[killed].kill();
    until(|| led(&cluster, "wide") == PARTITIONS_MAX, || format!("{} are led", led(&cluster, "wide")));
    took("a node was killed, and all partitions are led");
    wanted.extend(publish_to_each(&cluster.nodes[others[0]], "wide", 1));
    took("a publish to each is acknowledged");
    consume(cluster.nodes[others[1]].tcp(), "wide", "c", &wanted);
    took("one consumer has all");
    let folder = |node: usize| cluster.nodes[node].data_path().join("topics/wide");
    assert!(others.iter().all(|node| bytes_below(&folder(*node)) > 0));
    post(&cluster.nodes[others[0]], "/topic/delete?topic=wide");
    for node in others {
        until(|| bytes_below(&folder(node)) == 0, || format!("the disk is free:\n{}", cluster.nodes[node].log()));
    }
    took("it is deleted, and the disks are free");
    assert!(bytes_below(&folder(killed)) > 0, "it has not heard of it");
    cluster.nodes[killed].spawn();
    cluster.nodes[killed].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let folder = cluster.nodes[killed].data_path().join("topics/wide");
    until(|| bytes_below(&folder) == 0, || format!("the disk is free:\n{}", cluster.nodes[killed].log()));
    took("also that of the killed node");
    post(&cluster.nodes[killed], "/topic/create?topic=wide");
    let publisher = {
        let mut publisher = Publisher::new(&cluster, "wide");
        publisher.publish(10);
        publisher
    };
    consume(cluster.nodes[killed].tcp(), "wide", "c", &publisher.acknowledged);
}

// ---- data paths in the wrong place

/// Output of a process that does not start on this data path.
fn refused(node: &Node, data: &Path, flags: &[&str]) -> String {
    let addresses = [("tcp", node.tcp()), ("http", node.http()), ("native", node.native()), ("peer", node.peer())];
    let mut command = Command::new("timeout");
    command.arg("60").arg(node::binary()).arg("serve").arg(format!("--data-path={}", data.display()));
    let output =
        command.args(addresses.map(|(name, at)| format!("--{name}-address={at}"))).args(["--shards=2"]).args(flags).output();
    let output = output.expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.status.code() != Some(124), "{flags:?}: {}: {text}", output.status);
    text
}

#[test]
fn a_data_path_is_refused_where_it_does_not_belong() {
    let (etcd, elsewhere) = (Member::start(&FAST), Member::start(&FAST));
    assert_eq!(ringmq(&elsewhere, &["init"]).0, Some(0));
    let mut node = Node::prepare_with_etcd(&[etcd.url()], "a", &WITH_ETCD);
    node.spawn();
    node.wait_ready().unwrap_or_else(|e| panic!("{e}"));
    until(|| node.whole_log().contains("this node is registered"), || node.log());
    let version = Command::new("etcd").arg("--version").output().expect("tests/run installs it").stdout;
    let version = String::from_utf8_lossy(&version).lines().next().and_then(|line| line.split(' ').next_back()).map(String::from);
    let is_fit = ringmq::etcd::health::is_fit(&version.expect("it has a version"));
    assert_eq!(
        node.whole_log().contains("3.5.28, 3.6.9"),
        !is_fit,
        "the start says what is wrong with this etcd: {}",
        node.log()
    );
    assert_eq!(ringmq(&etcd, &["doctor"]).1.contains("3.5.28, 3.6.9"), !is_fit);
    let (code, text) = ringmq(&etcd, &["remove", "--node=a"]);
    assert!(code == Some(1) && text.contains("node a is alive"), "{text}");
    node.stop();

    let data = node.data_path();
    let (own, other) = (format!("--etcd-endpoints={}", etcd.url()), format!("--etcd-endpoints={}", elsewhere.url()));
    for (flags, wanted) in [
        (vec![own.as_str(), "--cluster-name=other"], r#"belongs to the cluster "main" and not to "other" (--cluster-name)"#),
        (vec![other.as_str()], r#"the cluster "main" of this etcd has the id "#),
        (vec![], "belongs to a cluster with an etcd ("),
    ] {
        let said = refused(&node, &data, &flags);
        assert!(said.contains(wanted), "{flags:?}: {said}");
    }
    // Parts of two data paths.
    let mixed = Node::prepare_with_etcd(&[etcd.url()], "b", &WITH_ETCD);
    let known = id_of(&node);
    let found = id_of(&mixed);
    for name in ["cluster.etcd", "cluster.etcd.copy"] {
        std::fs::copy(data.join(name), mixed.data_path().join(name)).expect("it is there");
    }
    let said = refused(&mixed, &mixed.data_path(), &[&own]);
    assert!(said.contains(&format!("belonged to node {known} in its cluster, and now belongs to node {found}")), "{said}");
    // One of a cluster file.
    let of_a_file = Node::prepare_with_etcd(&[etcd.url()], "c", &WITH_ETCD);
    std::fs::create_dir_all(of_a_file.data_path()).expect("the folder is writable");
    std::fs::write(of_a_file.data_path().join("cluster.toml"), "").expect("the folder is writable");
    let said = refused(&of_a_file, &of_a_file.data_path(), &[&own]);
    assert!(said.contains("belongs to a cluster of a static file"), "{said}");
    // It serves where it belongs, and is forgotten when it has nothing and has stopped.
    node.spawn();
    node.wait_ready().unwrap_or_else(|e| panic!("{e}"));
    until(|| node.whole_log().matches("this node is registered").count() == 2, || node.log());
    node.stop();
    let (code, text) = ringmq(&etcd, &["remove", "--node=a"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(list(&etcd, "nodes"), [Value::Null; 0]);
}

// ---- a single node that joins

/// docs/cluster.md, "Joining with existing data": the node's own data has lower epochs than any of the cluster's.
#[test]
fn a_log_that_ran_alone_joins_a_cluster() {
    let etcd = Member::start(&FAST);
    let small = ["--shards=2", "--journal-bytes=8MiB", "--max-bytes-per-file=1MiB", "--retention=1h"];
    let mut alone = Node::start(&small);
    let mut client = node::Client::connect(alone.tcp()).expect("it listens");
    let mut bodies: Vec<Vec<u8>> = (0..300).map(|n| format!("alone {n} ").repeat(n % 40 + 1).into_bytes()).collect();
    // A kill gives the log a second epoch of its own.
    for half in [0..150, 150..300] {
        half.for_each(|n| client.publish("orders", &bodies[n]).expect("it is stored"));
        alone.kill();
        alone.spawn();
        alone.wait_ready().unwrap_or_else(|e| panic!("{e}"));
        client = node::Client::connect(alone.tcp()).expect("it listens");
    }
    client.publish("orders", b"alone, the last").expect("it is stored");
    bodies.push(b"alone, the last".to_vec());
    alone.stop();
    let inspected = alone.run(&["inspect", &alone.data_path().display().to_string()]);
    let topic = inspected.lines().find_map(|line| Some(line.split_once(": topic ")?.1.split_once(" with 1 partitions")?.0));
    let topic = topic.unwrap_or_else(|| panic!("it names the topic: {inspected}")).to_owned();
    let id = id_of(&alone);

    let mut nodes: Vec<Node> = ["a", "b", "c"].map(|name| Node::prepare_with_etcd(&[etcd.url()], name, &WITH_ETCD)).into();
    nodes[0].with_data(alone.data_path());
    nodes.iter_mut().for_each(Node::spawn);
    nodes.iter_mut().for_each(|node| node.wait_ready().unwrap_or_else(|e| panic!("{e}")));
    let mut cluster = Cluster::of(nodes);
    cluster.wait_registered();
    let tag = json!({ "session": 0, "number": 0 });
    let partition = json!({ "v": 1, "epoch": 1, "leader": null, "replicas": [&id], "isr": [&id], "min_isr": 1, "tag": tag });
    etcd.put(&format!("/ringmq/main/part/{topic}/0000"), &partition);
    etcd.put("/ringmq/main/topic/orders", &json!({ "v": 1, "id": topic, "partitions": 1, "replicas": 3, "min_isr": 2 }));

    cluster.wait_role(0, "orders", 0, "leader");
    let isr = |cluster: &Cluster| cluster.replica(0, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len));
    until(|| isr(&cluster) == Some(3), || format!("the others follow: {:?}\n{}", isr(&cluster), cluster.nodes[0].log()));
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(50);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let epoch = cluster.replica(0, "orders", 0).map(|r| r["epoch"].clone());
    assert!(epoch.as_ref().and_then(Value::as_u64).is_some_and(|epoch| epoch < 100), "people's numbers: {epoch:?}");
    // The next leader has what it never saw alone.
    cluster.nodes[0].kill();
    publisher.publish(50);
    let second = cluster.leader("orders", 0);
    bodies.extend(publisher.acknowledged);
    consume(cluster.nodes[second].tcp(), "orders", "c", &bodies);
    cluster.nodes[0].spawn();
    cluster.nodes[0].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    until(|| cluster.role(0, "orders", 0) == "follower", || cluster.nodes[0].log());
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    cluster.stop_and_compare(bodies.len());
}

// ---- backup and restore

/// docs/cluster.md, "Backup and restore": everything from copies and a snapshot; then one node whose disk is lost.
#[test]
fn a_backup_of_everything_is_restored_and_a_lost_disk_is_filled_again() {
    let mut etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &["--replace-after=1s"]);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(200);
    cluster.nodes.iter_mut().for_each(|node| assert!(node.stop() < Duration::from_secs(60)));
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let copy = |n: usize| kept.path().join(n.to_string());
    (0..3).for_each(|n| copy_folder(&cluster.nodes[n].data_path(), &copy(n)));
    etcd.back_up();
    let start = |cluster: &mut Cluster| {
        cluster.nodes.iter_mut().filter(|node| !node.is_up()).for_each(Node::spawn);
        cluster.nodes.iter_mut().for_each(|node| node.wait_ready().unwrap_or_else(|e| panic!("{e}")));
        cluster.wait_registered();
    };
    start(&mut cluster);
    Publisher::new(&cluster, "orders").publish(20);
    // All is lost.
    cluster.nodes.iter_mut().for_each(Node::kill);
    for n in 0..3 {
        std::fs::remove_dir_all(cluster.nodes[n].data_path()).expect("it is ours");
        copy_folder(&copy(n), &cluster.nodes[n].data_path());
    }
    etcd.go_back();
    start(&mut cluster);
    publisher.publish(50);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);

    let leader = cluster.leader("orders", 0);
    let lost = (leader + 1) % 3;
    let before = id_of(&cluster.nodes[lost]);
    cluster.nodes[lost].kill();
    std::fs::remove_dir_all(cluster.nodes[lost].data_path()).expect("it is ours");
    publisher.publish(50);
    cluster.nodes[lost].spawn();
    cluster.nodes[lost].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let isr = |cluster: &Cluster| cluster.replica(leader, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len));
    until(|| cluster.role(lost, "orders", 0) == "follower", || format!("it gets a replica: {}", cluster.nodes[lost].log()));
    until(|| isr(&cluster) == Some(3), || format!("it is in sync: {:?}\n{}", isr(&cluster), cluster.nodes[leader].log()));
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let mut removed = Default::default();
    let is_removed = || {
        removed = ringmq(&etcd, &["remove", &format!("--node={before}")]);
        removed.0 == Some(0)
    };
    until(is_removed, || "the old id is forgotten".into());
    assert_eq!(list(&etcd, "nodes").len(), 3);
    publisher.publish(10);
    consume(cluster.nodes[lost].tcp(), "orders", "c", &publisher.acknowledged);
    let consumed = publisher.acknowledged.len();
    publisher.publish(40);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    cluster.stop_and_compare(publisher.acknowledged.len());

    // docs/cluster-failures.md, "etcd is lost": the messages that the channel has left.
    let rescue = kept.path().join("rescue");
    copy_folder(&cluster.nodes[lost].data_path(), &rescue);
    ["cluster.etcd", "cluster.etcd.copy"].iter().for_each(|name| std::fs::remove_file(rescue.join(name)).expect("it is there"));
    let alone = Node::start_at(Some(rescue), &["--shards=2", "--journal-bytes=8MiB"]);
    consume(alone.tcp(), "orders", "c", &publisher.acknowledged[consumed..]);
}

// ---- the first three nodes

/// Brings the loopback device of a network namespace up and becomes the command.
const IN_NAMESPACE: &str = "import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack('16sh22x', b'lo', 1))
os.execvp(sys.argv[1], sys.argv[1:])";

/// The commands of docs/cluster.md as they stand there, on their own ports, in a network of their own.
#[test]
fn the_first_three_nodes_come_up_as_the_page_says() {
    let page = include_str!("../docs/cluster.md");
    let (_, section) = page.split_once("\n## Three nodes from zero\n").expect("the page has the section");
    let (section, _) = section.split_once("\n**On three machines**").expect("the section has the other machines");
    let blocks: Vec<&str> =
        section.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```")).map(|(block, _)| block).collect();
    let [function, five, look] = blocks[..] else { panic!("a function, five commands, a look: {blocks:?}") };
    assert_eq!(five.lines().count(), 5, "{five}");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let programs = folder.path().join("programs");
    std::fs::create_dir(&programs).expect("it is writable");
    std::os::unix::fs::symlink(std::path::absolute(node::binary()).expect("a path"), programs.join("ringmq"))
        .expect("it is writable");
    // The tail goes on until it is told to end.
    let look = look.replace("ringmq tail", "timeout -s INT 5 ringmq tail");
    let script = format!("{function}\n{five}\n{look}\nkill $(jobs -p); wait\n");
    let mut command = Command::new("unshare");
    command.args([
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "python3",
        "-c",
        IN_NAMESPACE,
        "bash",
        "-c",
        &script,
    ]);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("it is writable");
    let output = command.env("PATH", path).current_dir(&data).output().expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let logs = || {
        ["a", "b", "c"].map(|name| std::fs::read_to_string(data.join(format!("{name}.log"))).unwrap_or_default()).join("----\n")
    };
    assert!(text.lines().any(|line| line == "OK"), "{text}\n{}", logs());
    assert!(text.contains("partitions  1, without a leader: 0, below min_isr: 0, too few in sync: 0"), "{text}\n{}", logs());
    assert!(text.lines().any(|line| line.contains("hello")), "{text}\n{}", logs());
}

// ---- etcd

/// Each absence is longer than a lease: a node renews its lease at another member when one is gone.
#[test]
fn nodes_serve_while_members_of_etcd_die_and_fall_silent() {
    let mut etcds = members(3, &FAST);
    let urls: Vec<String> = etcds.iter().map(Member::url).collect();
    let ttl = Duration::from_secs(8);
    let mut cluster = Cluster::start_with_etcd(&urls, &["--lease-ttl=8s"]);
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(100);
    let find_leader = |etcds: &[Member]| etcds.iter().position(Member::is_leader).expect("one leads");
    let killed = find_leader(&etcds);
    etcds[killed].kill();
    std::thread::sleep(ttl + Duration::from_secs(1));
    background.wait_more(100);
    etcds[killed].spawn();
    etcds[killed].wait_healthy();
    let silent = find_leader(&etcds);
    etcds[silent].pause();
    std::thread::sleep(ttl + Duration::from_secs(1));
    background.wait_more(100);
    for node in &cluster.nodes {
        let log = node.whole_log();
        assert!(!log.contains("the lease of this node is over"), "its lease was renewed elsewhere: {log}");
    }
    // A failover is written by whichever member answers.
    let first = cluster.leader("orders", 0);
    cluster.nodes[first].kill();
    background.wait_more(100);
    etcds[silent].resume();
    let second = cluster.leader("orders", 0);
    assert_ne!(first, second);
    let publisher = background.stop();
    cluster.nodes[first].spawn();
    cluster.nodes[first].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    until(|| cluster.role(first, "orders", 0) == "follower", || cluster.nodes[first].log());
    consume(cluster.nodes[first].tcp(), "orders", "c", &publisher.acknowledged);
}

/// A node by its flags: a user with a password file, and certificates.
#[test]
fn a_node_logs_in_to_etcd_and_shows_its_certificate() {
    let pki = Pki::new();
    let [own, own_key, ca] = pki.peer("etcd", &["127.0.0.1", "localhost"]);
    let tls = [format!("--cert-file={own}"), format!("--key-file={own_key}"), format!("--trusted-ca-file={ca}")];
    let tls: Vec<&str> = FAST.into_iter().chain(tls.iter().map(String::as_str)).chain(["--client-cert-auth"]).collect();
    let (guarded, secure) = (Member::start(&FAST), Member::start_with_tls(&tls));
    guarded.enable_users("ringmq", "secret");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let password = folder.path().join("password");
    std::fs::write(&password, "secret\n").expect("it is writable");
    let [cert, key, ca] = pki.peer("node", &["node"]);
    let user = ["--etcd-user=ringmq".to_owned(), format!("--etcd-password-file={}", password.display())];
    let certificate = [format!("--etcd-tls-ca={ca}"), format!("--etcd-tls-cert={cert}"), format!("--etcd-tls-key={key}")];
    for (etcd, flags) in [(&guarded, &user[..]), (&secure, &certificate[..])] {
        let flags: Vec<&str> = WITH_ETCD.into_iter().chain(flags.iter().map(String::as_str)).chain(["--replicas=1"]).collect();
        let mut node = Node::prepare_with_etcd(&[etcd.url()], "a", &flags);
        node.spawn();
        node.wait_ready().unwrap_or_else(|e| panic!("{e}"));
        let is_stored = || node.post("/pub?topic=orders", b"x").is_ok_and(|answer| answer.ends_with("OK"));
        until(is_stored, || format!("a topic is created and led: {}", node.log()));
    }
}

/// Metrics that a monitoring system reads while the lease still holds tell whether to start etcd or to correct the login.
#[test]
fn a_dead_etcd_and_a_refused_login_are_told_apart() {
    let mut etcd = Member::start(&FAST);
    etcd.enable_users("ringmq", "secret");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let password = folder.path().join("password");
    let write = |text: &str| std::fs::write(&password, text).expect("it is writable");
    write("secret");
    let user = ["--etcd-user=ringmq".to_owned(), format!("--etcd-password-file={}", password.display())];
    let flags: Vec<&str> = WITH_ETCD.into_iter().chain(user.iter().map(String::as_str)).chain(["--replicas=1"]).collect();
    let mut node = Node::prepare_with_etcd(&[etcd.url()], "a", &flags);
    node.spawn();
    node.wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let says = |ping: &str, away: u8, refused: u8| {
        let is_said = || {
            let metrics = node.get("/metrics").unwrap_or_default();
            node.get("/ping").is_ok_and(|answer| answer.contains(ping))
                && metrics.contains(&format!("\nringmq_cluster_etcd_away {away}\n"))
                && metrics.contains(&format!("\nringmq_cluster_refused {refused}\n"))
        };
        until(is_said, || format!("{ping}:\n{}", node.log()));
    };
    says("OK", 0, 0);
    etcd.kill();
    says("the metadata store does not answer: http://", 1, 0);
    etcd.restart();
    says("200 OK", 0, 0);
    etcd.change_password("ringmq", "other");
    // The watch ends, and everything is listed again.
    etcd.restart();
    says("the metadata store refuses: http://", 0, 1);
    write("other");
    says("200 OK", 0, 0);
}

/// A restarted node listens before etcd knows it, and clients connect in that moment.
#[test]
fn a_client_of_a_node_without_a_session_waits_for_it() {
    let mut etcd = Member::start(&FAST);
    let mut node = Node::prepare_with_etcd(&[etcd.url()], "a", &[&WITH_ETCD[..], &["--replicas=1"]].concat());
    node.spawn();
    node.wait_ready().unwrap_or_else(|e| panic!("{e}"));
    node.kill();
    etcd.kill();
    node.spawn();
    let listens = || node.get("/ping").is_ok_and(|answer| answer.contains("the metadata store does not answer"));
    until(listens, || node.log());
    std::thread::scope(|scope| {
        let stored = scope.spawn(|| node.post("/pub?topic=orders", b"x").expect("it answers"));
        etcd.restart();
        assert!(stored.join().expect("it does not panic").ends_with("OK"), "{}", node.log());
    });
}
