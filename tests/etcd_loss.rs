//! Accepted losses, with a real etcd: a replica that returns with the lost data stays out until the loss is accepted, and then begins
//! anew by itself.

mod node;

use node::Node;
use node::cluster::{Cluster, Publisher, consume, until};
use node::etcd::{FAST, Member};

/// docs: "all nodes of an ISR are lost for good". The nodes come back nevertheless.
#[test]
fn replicas_that_return_after_a_repair_by_hand_begin_anew_once_an_operator_accepted_the_loss() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &[]);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(50);
    let first = cluster.leader("orders", 0);
    let left = (first + 1) % 3;
    let isr = |cluster: &Cluster, node| cluster.replica(node, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len));
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let kept = publisher.acknowledged.clone();
    cluster.nodes[left].kill();
    until(|| isr(&cluster, first) == Some(2), || "the killed node leaves the ISR".into());
    publisher.publish(500);
    let others = [first, 3 - first - left];
    others.iter().for_each(|node| cluster.nodes[*node].kill());
    cluster.nodes[left].spawn();
    cluster.nodes[left].wait_ready().unwrap_or_else(|e| panic!("{e}"));

    // The repair by hand.
    let record = || etcd.values("/ringmq/main/part/").pop().expect("a partition");
    let update = || cluster.nodes[left].post("/topic/meta/update?topic=orders&min_isr=1", b"").unwrap_or_default();
    until(|| update().starts_with("HTTP/1.1 200"), || format!("{}\n{}", update(), cluster.nodes[left].log()));
    let tcp = cluster.nodes[left].tcp().to_string();
    let members = etcd.values("/ringmq/main/member/");
    let (member, _) = members.iter().find(|(_, member)| member["tcp_address"] == tcp.as_str()).expect("it is registered");
    let id = member.rsplit_once('/').expect("a key").1;
    let (key, mut value) = record();
    (value["isr"], value["leader"]) = (serde_json::json!([id]), serde_json::Value::Null);
    value["epoch"] = (value["epoch"].as_u64().expect("a number") + 1).into();
    etcd.put(&key, &value);
    cluster.wait_role(left, "orders", 0, "leader");
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(20);

    // Nothing of theirs goes by itself.
    others.iter().for_each(|node| cluster.nodes[*node].spawn());
    others.iter().for_each(|node| cluster.nodes[*node].wait_ready().unwrap_or_else(|e| panic!("{e}")));
    let alarm = |cluster: &Cluster| cluster.replica(left, "orders", 0).map(|r| r["alarm"].to_string()).unwrap_or_default();
    until(|| alarm(&cluster).contains("stays out of the ISR"), || format!("{}\n{}", alarm(&cluster), cluster.nodes[left].log()));
    let committed = |cluster: &Cluster, node| cluster.replica(node, "orders", 0).and_then(|r| r["committed"].as_i64());
    let kept_there = others.map(|node| committed(&cluster, node));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!((others.map(|node| committed(&cluster, node)), isr(&cluster, left)), (kept_there, Some(1)));
    assert!(kept_there.iter().all(|end| *end > committed(&cluster, left)), "{kept_there:?}");

    let status = || {
        let args = ["cluster", "status", &format!("--etcd-endpoints={}", etcd.url())].map(String::from);
        let output = std::process::Command::new(node::binary()).args(args).output().expect("the binary runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    until(|| status().contains("needs an operator") && status().contains("stays out of the ISR"), status);

    let accept = |loss: &str| {
        let path = format!("/replica/acceptloss?topic=orders&partition=0{loss}");
        cluster.nodes[left].post(&path, b"").expect("it answers")
    };
    let named = accept("");
    assert!(named.contains("LOSS_NOT_NAMED") && named.contains("the replica removes its copy and begins anew"), "{named}");
    let (_, name) = named.rsplit_once("loss=").expect("it is named");
    let accepted = accept(&format!("&loss={}", name.trim_end_matches("\"}")));
    assert!(accepted.starts_with("HTTP/1.1 200"), "{accepted}");
    until(|| isr(&cluster, left) == Some(3), || format!("all are in sync: {:?}\n{}", record(), cluster.nodes[left].log()));
    assert!(record().1["given_up"]["epoch"].as_u64() <= record().1["epoch"].as_u64(), "{:?}", record());
    assert_eq!(alarm(&cluster), "null");
    for node in others {
        assert!(cluster.nodes[node].whole_log().contains("an operator gave up this replica's data: the replica begins anew"));
    }
    publisher.publish(100);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    let all: Vec<Vec<u8>> = kept.iter().chain(&publisher.acknowledged).cloned().collect();
    consume(cluster.nodes[left].tcp(), "orders", "c", &all);
    // Once more from the disks alone.
    for node in others {
        cluster.nodes[node].kill();
        cluster.nodes[node].spawn();
        cluster.nodes[node].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    }
    until(|| isr(&cluster, left) == Some(3), || format!("all are in sync again: {:?}\n{}", record(), cluster.nodes[left].log()));
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    cluster.stop_and_compare(all.len());
}

/// Changes each byte of this text wherever a file of the data path has it; how often that was.
fn rot_text(node: &Node, text: &[u8]) -> usize {
    fn files(folder: &std::path::Path, all: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it is read")) {
            match entry.file_type().expect("it has one").is_dir() {
                true => files(&entry.path(), all),
                false => all.push(entry.path()),
            }
        }
    }
    let (mut all, mut count) = (vec![], 0);
    files(&node.data_path(), &mut all);
    for path in all {
        let mut bytes = std::fs::read(&path).expect("its own user may");
        let found: Vec<usize> = (0..bytes.len().saturating_sub(text.len())).filter(|at| bytes[*at..].starts_with(text)).collect();
        for at in &found {
            bytes[*at..*at + text.len()].iter_mut().for_each(|byte| *byte ^= 0x20);
        }
        if !found.is_empty() {
            println!("{} x in {}", found.len(), path.display());
            std::fs::write(&path, bytes).expect("its own user may");
        }
        count += found.len();
    }
    count
}

/// All nodes are killed. The journal of the first one to return has rotted, and an operator does not wait for the others.
#[test]
fn a_loss_is_accepted_at_an_opening_and_the_replica_that_had_it_begins_anew() {
    let etcd = Member::start(&FAST);
    // Nothing is written to segments before the kill.
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &["--min-isr=1", "--flush-bytes=64MiB"]);
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(50);
    let first = cluster.leader("orders", 0);
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    let isr = |cluster: &Cluster| cluster.replica(first, "orders", 0).and_then(|r| r["isr"].as_array().map(Vec::len));
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    cluster.nodes[third].kill();
    until(|| isr(&cluster) == Some(2), || "the killed node leaves the ISR".into());
    publisher.publish(200);
    cluster.wait_equal(&[first, second], "orders", 0);
    [first, second].iter().for_each(|node| cluster.nodes[*node].signal(libc::SIGKILL));
    [first, second].iter().for_each(|node| cluster.nodes[*node].kill());
    let lost = b"orders-150 x";
    assert_eq!(rot_text(&cluster.nodes[first], lost), 1, "in the journal alone");
    cluster.nodes[first].spawn();
    cluster.nodes[first].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let alarm = |cluster: &Cluster| cluster.replica(first, "orders", 0).map(|r| r["alarm"].to_string()).unwrap_or_default();
    let is_told = |cluster: &Cluster| alarm(cluster).contains("every in-sync replica that answered lost data at its recovery");
    until(|| is_told(&cluster), || format!("{}\n{}", alarm(&cluster), cluster.nodes[first].log()));
    assert_eq!(cluster.role(first, "orders", 0), "leader, opening");

    let accept = |loss: &str| {
        let path = format!("/replica/acceptloss?topic=orders&partition=0{loss}");
        cluster.nodes[first].post(&path, b"").expect("it answers")
    };
    let named = accept("");
    assert!(named.contains("LOSS_NOT_NAMED: the log would end at offset "), "{named}");
    let (_, name) = named.rsplit_once("loss=").expect("it is named");
    assert!(accept("&loss=1-2").contains("LOSS_NOT_NAMED"), "no other loss than that one");
    let accepted = accept(&format!("&loss={}", name.trim_end_matches("\"}")));
    assert!(accepted.starts_with("HTTP/1.1 200"), "{accepted}");
    cluster.wait_role(first, "orders", 0, "leader");
    let end = cluster.replica(first, "orders", 0).and_then(|r| r["committed"].as_i64()).expect("it leads");
    let kept: Vec<&Vec<u8>> = publisher.acknowledged.iter().take_while(|body| !body.starts_with(lost)).collect();
    assert!(kept.len() > 100 && kept.len() < publisher.acknowledged.len(), "{} are left", kept.len());
    let mut after = Publisher::new(&cluster, "orders");
    // Other bodies than before.
    after.skip(1000);
    after.publish(30);
    let record = || etcd.values("/ringmq/main/part/").pop().expect("a partition").1;
    until(|| record()["given_up"]["epoch"].is_u64(), || format!("the record says what was given up: {}", record()));

    // It has all that was acknowledged, and is behind the loss that was accepted.
    cluster.nodes[second].spawn();
    cluster.nodes[second].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let begins_anew = "an operator gave up this replica's data: the replica begins anew";
    until(|| cluster.nodes[second].whole_log().contains(begins_anew), || cluster.nodes[second].log());
    cluster.nodes[third].spawn();
    cluster.nodes[third].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    until(|| isr(&cluster) == Some(3), || format!("all are in sync: {}\n{}", record(), cluster.nodes[first].log()));
    assert!(!cluster.nodes[third].whole_log().contains(begins_anew), "it has nothing that was given up");
    assert_eq!(alarm(&cluster), "null");
    after.publish(30);
    cluster.wait_equal(&[0, 1, 2], "orders", 0);
    assert!(cluster.replica(first, "orders", 0).and_then(|r| r["committed"].as_i64()).is_some_and(|now| now > end));
    let all: Vec<Vec<u8>> = kept.into_iter().chain(&after.acknowledged).cloned().collect();
    consume(cluster.nodes[second].tcp(), "orders", "c", &all);
    cluster.stop_and_compare(all.len());
}
