//! `ringmq cluster` beside processes that end, and nodes that speak HTTPS alone.

mod node;

use node::Node;
use node::cluster::{Cluster, WITH_ETCD, until};
use node::etcd::{FAST, Member};
use node::pki::Pki;
use node::small_disk::SmallDisk;
use std::cell::RefCell;

/// Exit code and output.
fn ringmq(etcd: &Member, args: &[&str]) -> (Option<i32>, String) {
    let endpoints = format!("--etcd-endpoints={}", etcd.url());
    let args = ["cluster"].into_iter().chain(args.iter().copied()).chain([endpoints.as_str()]);
    let output = std::process::Command::new(node::binary()).args(args).output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn the_status_page_names_a_killed_process_at_once_and_says_when_it_is_replaced() {
    let etcd = Member::start(&FAST);
    let flags = ["--lease-ttl=8s", "--replace-after=1h", "--broadcast-address=127.0.0.1", "--catch-up-rate=2MiB"];
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &flags);
    let create = "/topic/create?topic=orders&partition_num=1&replicator=2&min_isr=1";
    let answer = cluster.nodes[0].post(create, b"").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let leader = cluster.leader("orders", 0);
    let (code, text) = ringmq(&etcd, &["status"]);
    assert!(code == Some(0) && text.contains("nodes       3, away: none\n") && !text.contains("under way"), "{text}");
    let partitions: serde_json::Value = serde_json::from_str(&ringmq(&etcd, &["partitions", "--json"]).1).expect("it is JSON");
    let names = ["a", "b", "c"];
    let follower = names.iter().position(|n| {
        let replicas = partitions[0]["replicas"].as_array().expect("a list");
        *n != partitions[0]["leader"] && replicas.iter().any(|replica| replica == n)
    });
    let (follower, name) = follower.map(|n| (n, names[n])).unwrap_or_else(|| panic!("{partitions}"));
    assert_ne!(follower, leader);
    cluster.nodes[follower].kill();
    // The kernel ends a killed process's sockets some milliseconds after the process; the lease ends after 8 s.
    let page = RefCell::new(String::new());
    let says_so = || {
        let (code, text) = ringmq(&etcd, &["status"]);
        page.replace(text);
        code == Some(1) && page.borrow().contains(&format!("away: none, not answering: {name}\n"))
    };
    until(says_so, || format!("the page names the killed process: {}", page.borrow()));
    let nodes = ringmq(&etcd, &["status", "--json"]).1;
    assert!(nodes.contains("\"not answering\""), "{nodes}");
    let said = RefCell::new(String::new());
    let says = |wanted: &[&str]| {
        let has_all = || {
            said.replace(ringmq(&etcd, &["status"]).1);
            wanted.iter().all(|text| said.borrow().contains(text))
        };
        until(has_all, || format!("the page says {wanted:?}: {}", said.borrow()));
    };
    let away = format!("{name} is away: start it, or another node replaces it in 60 min");
    says(&[&format!("nodes       3, away: {name}\n"), &away]);
    for _ in 0..40 {
        let body = vec![b'x'; 900 << 10];
        let answer = cluster.nodes[leader].post("/pub?topic=orders", &body).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    cluster.nodes[follower].spawn();
    says(&["under way   1 replica catches up: ", &format!("{name} catches up: "), "/s, about "]);
}

#[test]
fn the_status_page_names_a_node_with_a_full_disk() {
    let etcd = Member::start(&FAST);
    let disk = SmallDisk::new(64 << 20);
    let mut node = Node::prepare_with_etcd(&[etcd.url()], "a", &WITH_ETCD);
    node.with_data(disk.path().join("data"));
    node.spawn();
    node.wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let cluster = Cluster::of(vec![node]);
    cluster.wait_registered();
    let node = &cluster.nodes[0];
    let answer = node.post("/topic/create?topic=orders&partition_num=1&replicator=1&min_isr=1", b"").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    cluster.leader("orders", 0);
    let page = RefCell::new(String::new());
    let says = |wanted: i32, text: &str| {
        let (code, said) = ringmq(&etcd, &["status"]);
        page.replace(said);
        code == Some(wanted) && page.borrow().contains(text)
    };
    until(|| says(0, "partitions  1, without a leader: 0"), || format!("the cluster is well: {}", page.borrow()));
    let filler = disk.filler("filler", u64::MAX);
    let body = vec![b'x'; 900 << 10];
    let publish = || node.post("/pub?topic=orders", &body).expect("it answers");
    until(|| publish().starts_with("HTTP/1.1 507"), || "the disk is full".into());
    let full = "\nunhealthy   a: the disk is full: 1 partitions take no publish, the first is ";
    until(|| says(1, full), || format!("the page names the node: {}", page.borrow()));
    std::fs::remove_file(filler).expect("it was made");
    until(|| publish().starts_with("HTTP/1.1 200"), || "the disk has room".into());
    until(|| says(0, "partitions  1, without a leader: 0"), || format!("the cluster is well again: {}", page.borrow()));
}

#[test]
fn nodes_that_speak_https_alone_are_verified_and_examined() {
    let etcd = Member::start(&FAST);
    let pki = Pki::new();
    let [cert, key, ca] = pki.peer("node", &["127.0.0.1", "localhost"]);
    let own = [format!("--tls-cert={cert}"), format!("--tls-key={key}")];
    let secure = ["--tls-required=true", "--https-address=127.0.0.1:0", "--broadcast-address=127.0.0.1", "--shards=1"];
    let flags: Vec<&str> = own.iter().map(String::as_str).chain(secure).chain(["--journal-bytes=8MiB"]).collect();
    let mut nodes: Vec<Node> = ["a", "b"].map(|name| Node::prepare_with_etcd(&[etcd.url()], name, &flags)).into();
    nodes.iter_mut().for_each(Node::spawn);
    let trusted = format!("--http-client-tls-root-ca-file={ca}");
    until(
        || ringmq(&etcd, &["nodes"]).1.matches(" there ").count() == 2,
        || format!("both are registered: {}", nodes.iter().map(Node::log).collect::<String>()),
    );
    let (code, text) = ringmq(&etcd, &["verify", &trusted]);
    assert!(code == Some(0) && text.contains("metadata and replicas agree"), "{text}");
    let (code, text) = ringmq(&etcd, &["verify"]);
    assert!(code == Some(1) && text.contains("not asked: ") && text.contains("--http-client-tls-root-ca-file"), "{text}");
    // The version of this machine's etcd is what it is.
    let (_, text) = ringmq(&etcd, &["doctor", "--json", &trusted]);
    let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let bad = told["findings"].as_array().into_iter().flatten().filter(|found| found["is_bad"] == true);
    let of_nodes: Vec<_> = bad.filter(|found| !found["about"].as_str().unwrap_or_default().starts_with("etcd")).collect();
    assert!(of_nodes.is_empty(), "{of_nodes:?}");
    let (code, text) = ringmq(&etcd, &["doctor"]);
    assert!(code == Some(1) && text.contains("--http-client-tls-root-ca-file"), "{text}");
}
