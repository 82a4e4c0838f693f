//! Three nodes as real processes, by static files, with faults: acknowledged messages are on every node that the file then makes a
//! leader, replicas that were away catch up, and in the end the logs are the same bytes.
//!
//! Killed processes prove what the crash test says that a SIGKILL can prove; lost sectors and reordered messages are the
//! simulator's. Here the sockets, files, signals and the operator's commands are real.

mod node;

use node::Client;
use node::cluster::{Cluster, Publisher, consume, rot, until};
use std::time::Duration;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

#[test]
fn publishes_reach_all_three_and_any_client_can_verify_them() {
    let mut cluster = Cluster::start(&[("orders", 1), ("spread", 3)], &[]);
    for (node, role) in [(A, "leader"), (B, "follower"), (C, "follower")] {
        cluster.wait_role(node, "orders", 0, role);
    }
    for partition in 0..3 {
        cluster.wait_role(partition, "spread", partition, "leader");
    }
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(300);
    consume(cluster.nodes[A].tcp(), "orders", "c", &publisher.acknowledged);
    for protocol in ["nsq", "native"] {
        let address = if protocol == "nsq" { cluster.nodes[A].tcp() } else { cluster.nodes[A].native() };
        let args = ["--messages=3000", "--duration=60s", "--drain=60s", "--verify", "--mode=both", "--quiet", "--in-flight=8"];
        let (address, protocol) = (format!("--address={address}"), format!("--protocol={protocol}"));
        let target = ["load", &address, &protocol, "--topic=orders", "--channel=loaded", "--partition=0"];
        cluster.nodes[A].run(&[&target[..], &args].concat());
    }
    // Each node leads one partition, and a publish without one goes to each in turn.
    let mut spread = 0;
    for node in [A, B, C] {
        let mut client = node::Client::connect(cluster.nodes[node].tcp()).expect("it runs");
        for n in 0..50 {
            client.publish("spread", format!("{node}-{n}").as_bytes()).expect("some node leads it");
            spread += 1;
        }
    }
    let mut at_a_follower = node::Client::connect(cluster.nodes[B].tcp()).expect("it runs");
    at_a_follower.publish("orders", b"x").expect("it is forwarded");
    let unknown = node::Client::connect(cluster.nodes[B].tcp()).expect("it runs").publish("new", b"x");
    assert!(unknown.as_ref().is_err_and(|e| e.to_string().contains("E_TOPIC_NOT_EXIST")), "{unknown:?}");
    cluster.wait_equal(&[A, B, C], "orders", 0);
    (0..3).for_each(|partition| cluster.wait_equal(&[partition, (partition + 1) % 3, (partition + 2) % 3], "spread", partition));
    cluster.stop_and_compare(300 + 6000 + 1 + spread);
}

#[test]
fn a_killed_follower_leaves_the_isr_catches_up_and_joins_again() {
    let mut cluster = Cluster::start(&[("orders", 1)], &[]);
    cluster.wait_role(A, "orders", 0, "leader");
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(200);
    cluster.nodes[C].kill();
    // Its absence is said, with what to change.
    let said = r#"isr = ["a", "b"], version = 2"#;
    let background = publisher.in_background();
    until(|| cluster.nodes[A].whole_log().contains(said), || cluster.nodes[A].log());
    cluster.change(|file| file.partition("orders", 0).isr = vec![A, B]);
    background.wait_more(500);
    cluster.nodes[C].spawn();
    cluster.nodes[C].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    let said = r#"c has caught up and may join the isr. In the cluster file of every node: isr = ["a", "b", "c"], version = 3"#;
    until(|| cluster.nodes[A].whole_log().contains(said), || cluster.nodes[A].log());
    cluster.change(|file| file.partition("orders", 0).isr = vec![A, B, C]);
    background.wait_more(100);
    let publisher = background.stop();
    cluster.wait_equal(&[A, B, C], "orders", 0);
    consume(cluster.nodes[A].tcp(), "orders", "c", &publisher.acknowledged);
    cluster.stop_and_compare(publisher.acknowledged.len());
}

/// The line "may join the isr" stays true: the named node has all acknowledged messages until the operator writes. Whether each
/// connection with the peer, of which the log tells, has ended.
fn has_lost(log: &str, peer: &str) -> bool {
    let of = |what: &str| log.lines().filter(|line| line.contains(what) && line.contains(&format!("peer={peer}"))).count();
    of(" connected to a peer core=") == of("the connection to a peer is lost")
}

#[test]
fn nothing_is_acknowledged_without_a_node_that_was_told_to_be_able_to_join() {
    let mut cluster = Cluster::start(&[("orders", 1)], &[]);
    cluster.wait_role(A, "orders", 0, "leader");
    cluster.nodes[C].kill();
    // While its sockets are still there the leader takes it for one that has everything, and may offer it the place.
    until(|| has_lost(&cluster.nodes[A].whole_log(), "c"), || cluster.nodes[A].log());
    cluster.change(|file| {
        file.topics[0].min_isr = 1;
        file.partition("orders", 0).isr = vec![A];
    });
    let said = r#"b has caught up and may join the isr. In the cluster file of every node: isr = ["a", "b"], version = 3"#;
    until(|| cluster.nodes[A].whole_log().contains(said), || cluster.nodes[A].log());
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(100);
    cluster.nodes[B].kill();
    // Longer than a write waits: the leader opens anew.
    background.stands_still(Duration::from_secs(6));
    let said = r#"b does not keep up; publishes wait for it. In the cluster file of every node: isr = ["a"], version = 3"#;
    until(|| cluster.nodes[A].whole_log().contains(said), || cluster.nodes[A].log());
    cluster.nodes[A].kill();
    cluster.nodes[A].spawn();
    cluster.nodes[A].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    background.stands_still(Duration::from_secs(4));
    cluster.nodes[B].spawn();
    cluster.nodes[B].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    background.wait_more(100);
    cluster.nodes[A].kill();
    // The old leader never hears of either version.
    cluster.change(|file| file.partition("orders", 0).isr = vec![A, B]);
    cluster.change(|file| file.lead("orders", 0, B, Some(A)));
    cluster.wait_role(B, "orders", 0, "leader");
    background.wait_more(50);
    let publisher = background.stop();
    consume(cluster.nodes[B].tcp(), "orders", "c", &publisher.acknowledged);
}

#[test]
fn the_next_leader_has_all_that_a_killed_one_acknowledged() {
    let mut cluster = Cluster::start(&[("orders", 1)], &[]);
    cluster.wait_role(A, "orders", 0, "leader");
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(400);
    cluster.nodes[A].kill();
    cluster.change(|file| file.lead("orders", 0, B, Some(A)));
    cluster.wait_role(B, "orders", 0, "leader");
    background.wait_more(200);
    // The old one comes back: it follows, and what only it has is cut.
    cluster.nodes[A].spawn();
    cluster.nodes[A].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.wait_role(A, "orders", 0, "follower");
    until(|| cluster.nodes[B].whole_log().contains("a has caught up and may join the isr"), || cluster.nodes[B].log());
    cluster.change(|file| file.partition("orders", 0).isr = vec![A, B, C]);
    background.wait_more(50);
    // And leads again, with a higher epoch.
    cluster.change(|file| file.lead("orders", 0, A, None));
    cluster.wait_role(A, "orders", 0, "leader");
    background.wait_more(50);
    let publisher = background.stop();
    cluster.wait_equal(&[A, B, C], "orders", 0);
    consume(cluster.nodes[A].tcp(), "orders", "c", &publisher.acknowledged);
    cluster.stop_and_compare(publisher.acknowledged.len());
}

#[test]
fn a_stopped_follower_and_bad_links_cost_nothing_acknowledged() {
    let mut cluster = Cluster::start(&[("orders", 1)], &[]);
    cluster.wait_role(A, "orders", 0, "leader");
    let background = Publisher::new(&cluster, "orders").in_background();
    background.wait_more(100);
    // Longer than every limit: writes end as unknown, and go on when it goes on.
    cluster.nodes[B].signal(libc::SIGSTOP);
    background.stands_still(Duration::from_secs(5));
    cluster.nodes[B].signal(libc::SIGCONT);
    background.wait_more(100);
    cluster.cut(A, C);
    background.stands_still(Duration::from_secs(2));
    cluster.heal(A, C);
    background.wait_more(100);
    cluster.hold(A, B);
    background.stands_still(Duration::from_secs(5));
    cluster.heal(A, B);
    background.wait_more(100);
    cluster.delay(A, C, 30);
    background.wait_more(30);
    cluster.delay(A, C, 0);
    // Cut off from both the leader commits nothing, and the others go on without it.
    cluster.cut(A, B);
    cluster.cut(A, C);
    background.stands_still(Duration::from_secs(1));
    cluster.change(|file| file.lead("orders", 0, C, Some(A)));
    cluster.wait_role(C, "orders", 0, "leader");
    background.wait_more(100);
    cluster.heal(A, B);
    cluster.heal(A, C);
    cluster.wait_role(A, "orders", 0, "follower");
    until(|| cluster.nodes[C].whole_log().contains("a has caught up and may join the isr"), || cluster.nodes[C].log());
    cluster.change(|file| file.partition("orders", 0).isr = vec![A, B, C]);
    let publisher = background.stop();
    assert!(publisher.failed > 0, "a write that outlasts every limit fails");
    cluster.wait_equal(&[A, B, C], "orders", 0);
    consume(cluster.nodes[C].tcp(), "orders", "c", &publisher.acknowledged);
    cluster.stop_and_compare(publisher.acknowledged.len());
}

#[test]
fn what_rots_on_a_node_is_mended_from_another() {
    // A pass of the scrubber takes some ten seconds.
    let mut cluster = Cluster::start(&[("orders", 1)], &["--scrub-bytes-per-second=256KiB"]);
    cluster.wait_role(A, "orders", 0, "leader");
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(7000);
    cluster.wait_equal(&[A, B, C], "orders", 0);
    let said = |cluster: &Cluster, node: usize| {
        for line in ["damage: stored bytes fail their checks; another replica is asked for them", "damage is repaired"] {
            until(|| cluster.nodes[node].whole_log().contains(line), || format!("{line}:\n{}", cluster.nodes[node].log()));
        }
    };
    // On a follower that was stopped: its scrubber begins with the first segment.
    cluster.nodes[C].stop();
    rot(&cluster.nodes[C], "orders", 0, 0, 40_000);
    cluster.nodes[C].spawn();
    cluster.nodes[C].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.wait_role(C, "orders", 0, "follower");
    // On one that runs: its scrubber is not there yet.
    cluster.nodes[B].stop();
    cluster.nodes[B].spawn();
    cluster.nodes[B].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    rot(&cluster.nodes[B], "orders", 0, 2, 30_000);
    said(&cluster, C);
    said(&cluster, B);
    // On the leader: a reader waits for it, and gets every message.
    cluster.nodes[A].stop();
    cluster.nodes[A].spawn();
    cluster.nodes[A].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.wait_role(A, "orders", 0, "leader");
    rot(&cluster.nodes[A], "orders", 0, 1, 50_000);
    consume(cluster.nodes[A].tcp(), "orders", "c", &publisher.acknowledged);
    said(&cluster, A);
    publisher.publish(100);
    cluster.wait_equal(&[A, B, C], "orders", 0);
    cluster.stop_and_compare(publisher.acknowledged.len());
}

/// The Rust client is given one address, and finds whoever leads.
#[test]
fn a_client_follows_the_leader() {
    let mut cluster = Cluster::start(&[("orders", 1)], &[]);
    cluster.wait_role(A, "orders", 0, "leader");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // A follower's address.
    let address = cluster.nodes[C].native().to_string();
    let client = runtime.block_on(ringmq::client::Client::builder().address(address).connect()).expect("it runs");
    let producer = runtime.block_on(client.producer("orders").build()).expect("the topic is known");
    let mut consumer = runtime.block_on(client.consumer("orders", "c").build()).expect("the topic is known");
    let mut wanted = std::collections::HashSet::new();
    let mut round = |cluster: &Cluster, number: usize| {
        let mut acks = vec![];
        for n in 0..200 {
            let body = format!("{number}-{n}");
            acks.push(runtime.block_on(producer.send(body.as_bytes())).expect("taken"));
            wanted.insert(body.into_bytes());
        }
        for ack in acks {
            runtime.block_on(ack).unwrap_or_else(|e| panic!("round {number}: {e}\n{}", cluster.nodes[C].log()));
        }
        while !wanted.is_empty() {
            let next = async { tokio::time::timeout(Duration::from_secs(60), consumer.next()).await };
            let message = runtime
                .block_on(next)
                .unwrap_or_else(|_| panic!("round {number}: {} are missing", wanted.len()))
                .expect("it goes on");
            wanted.remove(&message.body()[..]);
            message.finish();
        }
    };
    round(&cluster, 0);
    // A node that is well.
    cluster.change(|file| file.lead("orders", 0, B, None));
    cluster.wait_role(B, "orders", 0, "leader");
    round(&cluster, 1);
    // A node that is gone.
    cluster.nodes[B].kill();
    cluster.change(|file| file.lead("orders", 0, A, Some(B)));
    cluster.wait_role(A, "orders", 0, "leader");
    round(&cluster, 2);
}

#[test]
fn a_loss_is_accepted_by_its_name_alone() {
    let mut cluster = Cluster::start(&[("orders", 1)], &["--scrub-bytes-per-second=0"]);
    cluster.wait_role(A, "orders", 0, "leader");
    let mut publisher = Publisher::new(&cluster, "orders");
    publisher.publish(5000);
    cluster.wait_equal(&[A, B, C], "orders", 0);
    // Nothing of it is in memory.
    cluster.nodes[A].stop();
    cluster.nodes[A].spawn();
    cluster.nodes[A].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.wait_role(A, "orders", 0, "leader");
    // A channel that is new would need the others.
    Client::connect(cluster.nodes[A].tcp()).and_then(|mut c| c.subscribe("orders", "c", 0)).expect("it leads the topic");
    cluster.nodes[B].kill();
    cluster.nodes[C].kill();
    rot(&cluster.nodes[A], "orders", 0, 1, 50_000);
    let mut client = Client::connect(cluster.nodes[A].tcp()).expect("it runs");
    client.subscribe("orders", "c", 100).expect("it leads the topic");
    let mut came = 0;
    client.set_read_timeout(Duration::from_secs(8)).expect("a socket");
    while let Ok(message) = client.message() {
        client.finish(&message.id).expect("it reads");
        came += 1;
    }
    assert!((1000..4000).contains(&came), "the reader waits at the damage: {came}");
    let path = "/replica/acceptloss?topic=orders&partition=0";
    let refusal = cluster.nodes[A].post(path, b"").expect("it answers");
    assert!(refusal.contains("409 ") && refusal.contains("LOSS_NOT_NAMED: channels would pass"), "{refusal}");
    let name = refusal.split_once("loss=").and_then(|(_, rest)| rest.split_once('"')).expect("it is named").0.to_string();
    assert!(cluster.nodes[A].post(&format!("{path}&loss=1-2"), b"").expect("it answers").contains("409 "));
    let taken = cluster.nodes[A].post(&format!("{path}&loss={name}"), b"").expect("it answers");
    assert!(taken.contains("200 OK"), "{taken}");
    assert!(cluster.nodes[A].whole_log().contains("an operator accepts a loss"));
    while came < 4900 {
        let message = client.message().unwrap_or_else(|e| panic!("{came} came: {e}"));
        client.finish(&message.id).expect("it reads");
        came += 1;
    }
    // The node that has the message brings it all the same.
    for node in [B, C] {
        cluster.nodes[node].spawn();
        cluster.nodes[node].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    }
    until(|| cluster.nodes[A].whole_log().contains("damage is repaired"), || cluster.nodes[A].log());
    cluster.wait_equal(&[A, B, C], "orders", 0);
    cluster.stop_and_compare(5000);
}

#[test]
fn a_node_refuses_a_file_that_is_not_for_it_and_says_what_to_do() {
    let mut cluster = Cluster::start(&[("orders", 1)], &[]);
    let file = cluster.nodes[C].cluster_file();
    let good = std::fs::read_to_string(&file).expect("it was written");
    let rejects = |cluster: &Cluster, text: &str, part: &str| {
        std::fs::write(&file, text).expect("the folder is writable");
        cluster.nodes[C].signal(libc::SIGHUP);
        until(|| cluster.nodes[C].whole_log().contains(part), || format!("{part}:\n{}", cluster.nodes[C].log()));
    };
    rejects(&cluster, "version", "the cluster file in force stays: --cluster-file=");
    rejects(&cluster, &good.replace("version = 1", "version = 1\n"), "is the one in force: nothing changes version=1");
    rejects(&cluster, &good.replace("leader = \"a\"", "leader = \"b\""), "the same version 1");
    let moved = good.replace("version = 1", "version = 2").replace("leader = \"a\"", "leader = \"b\"");
    rejects(&cluster, &moved, "the leader changes from a to b in epoch 1");
    cluster.nodes[C].stop();
    let refuses = |cluster: &mut Cluster, text: &str, part: &str| {
        std::fs::write(&file, text).expect("the folder is writable");
        cluster.nodes[C].spawn();
        let error = cluster.nodes[C].wait_ready().expect_err("it must not start");
        assert!(error.contains(part), "{part}: {error}");
        cluster.nodes[C].kill();
    };
    let id = cluster.nodes[C].run(&["node-id", &format!("--data-path={}", cluster.nodes[C].data_path().display())]);
    let strange = good.replace("version = 1", "version = 2").replace(&id, &"9".repeat(32));
    refuses(&mut cluster, &strange, "node c has another id, so its data path is another one and empty");
    refuses(&mut cluster, &moved, "raise its epoch");
    std::fs::write(&file, &good).expect("the folder is writable");
    cluster.nodes[C].spawn();
    cluster.nodes[C].wait_ready().unwrap_or_else(|e| panic!("{e}"));
    cluster.wait_role(C, "orders", 0, "follower");
}
