//! Operations on channels over HTTP, as with nsqd: over the sockets of the real binary, and over kills.

mod node;

use node::{Client, Node};

fn channel(node: &Node, operation: &str, query: &str) -> String {
    node.post(&format!("/channel/{operation}?{query}"), b"").expect("it answers")
}

fn done(node: &Node, operation: &str) {
    let answer = channel(node, operation, "topic=t&channel=ch");
    assert!(answer.starts_with("HTTP/1.1 200"), "{operation}: {answer}");
}

fn publish(node: &Node, numbers: std::ops::Range<u32>) {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    numbers.for_each(|n| client.publish("t", n.to_string().as_bytes()).expect("stored"));
}

fn subscribe(node: &Node, ready: u32) -> Client {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    client.subscribe("t", "ch", ready).expect("subscribed");
    client
}

/// Numbers of the next `count` messages, sorted.
fn numbers(client: &mut Client, count: usize) -> Vec<u32> {
    let body = |c: &mut Client| String::from_utf8(c.message().expect("a message").body).expect("text");
    let mut all: Vec<u32> = (0..count).map(|_| body(client).parse().expect("a number")).collect();
    all.sort_unstable();
    all
}

fn restart(node: &mut Node) {
    node.kill();
    node.spawn();
    node.wait_ready().expect("it starts again");
}

fn stats(node: &Node) -> String {
    node.get("/stats?format=json&topic=t&channel=ch").expect("it answers")
}

#[test]
fn an_operator_is_answered_as_by_nsqd() {
    let node = Node::start(&["--shards=2", "--partitions=3"]);
    publish(&node, 0..1);
    let is = |answer: String, status: u32, message: &str| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(message), "{status} {message}: {answer}");
    };
    for operation in ["pause", "unpause", "empty", "delete"] {
        is(channel(&node, operation, "channel=ch"), 400, "MISSING_ARG_TOPIC");
        is(channel(&node, operation, "topic=t"), 400, "MISSING_ARG_CHANNEL");
        is(channel(&node, operation, "topic=a%20b&channel=ch"), 400, "INVALID_ARG_TOPIC");
        is(channel(&node, operation, "topic=t&channel=a%20b"), 400, "INVALID_ARG_CHANNEL");
        is(channel(&node, operation, "topic=none&channel=ch"), 404, "TOPIC_NOT_FOUND");
        is(channel(&node, operation, "topic=t&channel=ch"), 404, "CHANNEL_NOT_FOUND");
    }
    is(node.get("/channel/pause?topic=t&channel=ch").expect("it answers"), 405, "METHOD_NOT_ALLOWED");
    ["create", "create", "pause", "pause", "empty", "unpause", "delete"].iter().for_each(|o| done(&node, o));
    is(channel(&node, "delete", "topic=t&channel=ch"), 404, "CHANNEL_NOT_FOUND");
}

#[test]
fn a_pause_stops_deliveries_and_survives_a_kill() {
    let mut node = Node::start(&["--shards=2", "--partitions=3"]);
    publish(&node, 0..9);
    let mut client = subscribe(&node, 3);
    let held: Vec<_> = (0..3).map(|_| client.message().expect("a message")).collect();
    done(&node, "pause");
    held.iter().for_each(|m| client.finish(&m.id).expect("it reads"));
    publish(&node, 9..10);
    assert!(client.set_read_timeout(std::time::Duration::from_millis(700)).is_ok() && client.message().is_err(), "nothing comes");
    assert_eq!(stats(&node).matches("\"paused\":true").count(), 1, "{}", stats(&node));
    drop(client);
    restart(&mut node);
    let mut client = subscribe(&node, 50);
    client.set_read_timeout(std::time::Duration::from_millis(700)).expect("a socket");
    assert!(client.message().is_err(), "still nothing");
    drop(client);
    done(&node, "unpause");
    let mut client = subscribe(&node, 50);
    let mut finished: Vec<u32> = held.iter().map(|m| String::from_utf8_lossy(&m.body).parse().expect("a number")).collect();
    finished.extend(numbers(&mut client, 7));
    finished.sort_unstable();
    assert_eq!(finished, (0..10).collect::<Vec<_>>());
}

#[test]
fn an_emptied_channel_stays_empty_over_a_kill() {
    let mut node = Node::start(&["--shards=2", "--partitions=3"]);
    publish(&node, 0..9);
    let mut client = subscribe(&node, 4);
    numbers(&mut client, 4);
    done(&node, "empty");
    restart(&mut node);
    publish(&node, 9..12);
    let mut client = subscribe(&node, 50);
    assert_eq!(numbers(&mut client, 3), [9, 10, 11]);
}

#[test]
fn a_deleted_channel_leaves_nothing_behind_over_a_kill() {
    let mut node = Node::start(&["--shards=2", "--partitions=3"]);
    publish(&node, 0..9);
    let mut client = subscribe(&node, 4);
    numbers(&mut client, 4);
    done(&node, "delete");
    assert!(client.read().is_err(), "its client is disconnected");
    restart(&mut node);
    assert!(!stats(&node).contains("\"channel_name\":\"ch\""), "{}", stats(&node));
    // It was the topic's only channel: later messages are collected for the next one.
    publish(&node, 9..12);
    let mut client = subscribe(&node, 50);
    assert_eq!(numbers(&mut client, 3), [9, 10, 11]);
    client.set_read_timeout(std::time::Duration::from_millis(500)).expect("a socket");
    assert!(client.message().is_err(), "nothing of before");
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| if e.path().is_dir() { bytes_below(&e.path()) } else { e.metadata().map_or(0, |m| m.len()) }).sum()
}

/// A client of an ephemeral channel that finishes nothing, and a durable channel that goes on.
#[test]
fn a_stuck_ephemeral_channel_does_not_keep_the_log() {
    let node = Node::start(&["--shards=1", "--mem-queue-size=20", "--max-bytes-per-file=1MiB", "--spare-bytes=0"]);
    let mut stuck = Client::connect(node.tcp()).expect("it takes connections");
    stuck.subscribe("t", "tail#ephemeral", 1).expect("subscribed");
    let mut publisher = Client::connect(node.tcp()).expect("it takes connections");
    let mut healthy = subscribe(&node, 50);
    let body = vec![7; 64 * 1024];
    for _ in 0..400 {
        publisher.publish("t", &body).expect("stored");
        let message = healthy.message().expect("a message");
        healthy.finish(&message.id).expect("it reads");
    }
    let topics = node.data_path().join("topics");
    let began = std::time::Instant::now();
    while bytes_below(&topics) > 8 << 20 {
        assert!(began.elapsed().as_secs() < 20, "{} bytes of 25 MiB are still there", bytes_below(&topics));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(stuck.message().expect("a message").body, body);
}
