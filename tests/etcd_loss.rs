//! What an operator gives up, with a real etcd: a replica that returns with it stays out until the loss is accepted, and begins anew by
//! itself then.

mod node;

use node::cluster::{Cluster, Publisher, consume, until};
use node::etcd::{FAST, Member};

fn base64(text: &str) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text)
}

/// The values below a prefix, with their keys.
fn values(etcd: &Member, prefix: &str) -> Vec<(String, serde_json::Value)> {
    let end = format!("{prefix}~");
    let answer = etcd.post("/v3/kv/range", &format!(r#"{{"key":"{}","range_end":"{}"}}"#, base64(prefix), base64(&end)));
    let found: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("it is JSON");
    let decoded = |value: &serde_json::Value| {
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, value.as_str().expect("a text"));
        String::from_utf8(bytes.expect("it is base64")).expect("it is a text")
    };
    let all = found["kvs"].as_array().cloned().unwrap_or_default();
    all.iter().map(|kv| (decoded(&kv["key"]), serde_json::from_str(&decoded(&kv["value"])).expect("it is JSON"))).collect()
}

/// docs: "all nodes of an ISR are lost for good". They come back nevertheless.
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
    let record = || values(&etcd, "/ringmq/main/part/").pop().expect("a partition");
    let update = || cluster.nodes[left].post("/topic/meta/update?topic=orders&min_isr=1", b"").unwrap_or_default();
    until(|| update().starts_with("HTTP/1.1 200"), || format!("{}\n{}", update(), cluster.nodes[left].log()));
    let tcp = cluster.nodes[left].tcp().to_string();
    let members = values(&etcd, "/ringmq/main/member/");
    let (member, _) = members.iter().find(|(_, member)| member["tcp_address"] == tcp.as_str()).expect("it is registered");
    let id = member.rsplit_once('/').expect("a key").1;
    let (key, mut value) = record();
    (value["isr"], value["leader"]) = (serde_json::json!([id]), serde_json::Value::Null);
    value["epoch"] = (value["epoch"].as_u64().expect("a number") + 1).into();
    let put = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(&key), base64(&value.to_string()));
    assert!(etcd.post("/v3/kv/put", &put).contains("200 OK"));
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
        assert!(cluster.nodes[node].whole_log().contains("an operator gave up what this replica has: it begins anew"));
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
