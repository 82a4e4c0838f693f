//! Deferred publishes over the sockets of the real binary, and over kills: none is early, none is lost.
//!
//! A test waits as long as it takes for a message, and holds against the wall clock only that it did not come too soon: that is
//! exact on a machine that is as slow as it likes. That a message is not late is what `channel::model` holds, on a clock of its own.

mod node;

use node::{Client, Node, command_with_body};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

/// Says in its body from when on it may come.
fn body(number: usize, delay_ms: u64) -> Vec<u8> {
    format!("{number} {}", unix_ms() + delay_ms).into_bytes()
}

fn publish_deferred(client: &mut Client, number: usize, delay_ms: u64) {
    let body = body(number, delay_ms);
    client.write(&command_with_body(&format!("DPUB t {delay_ms}"), &body)).expect("a socket");
    client.ok().expect("stored");
}

/// Reads until all of `missing` have come, each not before its time.
fn read(client: &mut Client, missing: &mut BTreeSet<usize>) {
    while !missing.is_empty() {
        let message = client.message().unwrap_or_else(|error| panic!("{error}; {missing:?} did not come"));
        let now = unix_ms();
        let text = String::from_utf8(message.body.clone()).expect("text");
        let (number, due) = text.split_once(' ').expect("two numbers");
        let (number, due): (usize, u64) = (number.parse().expect("a number"), due.parse().expect("a time"));
        assert!(now >= due, "message {number} came {} ms too early", due - now);
        client.finish(&message.id).expect("a socket");
        missing.remove(&number);
    }
}

fn restart(node: &mut Node) {
    node.kill();
    node.spawn();
    node.wait_ready().expect("it starts again");
}

fn subscribe(node: &Node, channel: &str) -> Client {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    client.subscribe("t", channel, 100).expect("subscribed");
    client
}

/// Some wait while a client is there that has them put off already, some were never read: a kill changes nothing for either.
#[test]
fn deferred_messages_come_when_they_are_due_over_kills() {
    let mut node = Node::start(&["--shards=2", "--partitions=3"]);
    let consumer = subscribe(&node, "read");
    let mut idle = Client::connect(node.tcp()).expect("it takes connections");
    idle.subscribe("t", "unread", 0).expect("subscribed");
    let mut publisher = Client::connect(node.tcp()).expect("it takes connections");
    let delays = |number: usize| [0, 400, 1_500, 3_000, 5_000][number % 5];
    (0..100).for_each(|number| publish_deferred(&mut publisher, number, delays(number)));
    for number in 100..110 {
        let answer = node.post("/pub?topic=t&defer=4000", &body(number, 4_000)).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let lines = [body(110, 2_000), body(111, 2_000)].join(&b'\n');
    let answer = node.post("/mpub?topic=t&defer=2000", &lines).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop((publisher, consumer, idle));
    restart(&mut node);
    restart(&mut node);
    for channel in ["read", "unread"] {
        let mut client = subscribe(&node, channel);
        read(&mut client, &mut (0..112).collect());
        client.set_read_timeout(Duration::from_millis(300)).expect("a socket");
        let end = client.message().expect_err("nothing is left");
        assert!(matches!(end.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{end}");
    }
}

#[test]
fn stats_count_what_waits_for_its_time_and_an_empty_takes_it() {
    let node = Node::start(&["--shards=1"]);
    let mut client = subscribe(&node, "ch");
    let mut publisher = Client::connect(node.tcp()).expect("it takes connections");
    (0..5).for_each(|number| publish_deferred(&mut publisher, number, 3_600_000));
    publish_deferred(&mut publisher, 5, 0);
    // What is behind them is not held up by them.
    read(&mut client, &mut BTreeSet::from([5]));
    let stats = || node.get("/stats?format=json&topic=t&channel=ch").expect("it answers");
    assert!(stats().contains("\"deferred_count\":5") && stats().contains("\"depth\":0"), "{}", stats());
    let answer = node.post("/channel/empty?topic=t&channel=ch", b"").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(stats().contains("\"deferred_count\":0") && stats().contains("\"depth\":0"), "{}", stats());
}
