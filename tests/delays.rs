//! Deferred publishes and far-off retries over the sockets of the real binary, over kills and clean stops: none is early, none is lost,
//! and clients find the attempts that they know, as with nsqd.
//!
//! A test waits as long as it takes for a message, and holds against the wall clock only that it did not come too soon: that is
//! exact on a machine that is as slow as it likes. That a message is not late is what `channel::model` holds, on a clock of its own.

mod node;

use node::stock::{Process, stock};
use node::{Client, Message, Node, Ports, command_with_body};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
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

/// A message's delay counts from the time that it bears. A clock that is read before the sockets are looked at is too old for what comes
/// meanwhile: publishes that never cease meet that moment.
#[test]
fn no_message_bears_a_time_before_it_was_sent() {
    const ROUNDS: usize = 50;
    const WINDOW: usize = 50;
    let node = Node::start(&["--shards=2", "--partitions=2"]);
    let unix_ns = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as i64;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut publisher = Client::connect(node.tcp()).expect("it takes connections");
                for _ in 0..ROUNDS {
                    (0..WINDOW).for_each(|_| {
                        publisher.write(&command_with_body("PUB t", unix_ns().to_string().as_bytes())).expect("a socket");
                    });
                    (0..WINDOW).for_each(|_| publisher.ok().expect("stored"));
                }
            });
        }
    });
    let mut consumer = subscribe(&node, "c");
    for _ in 0..4 * ROUNDS * WINDOW {
        let message = consumer.message().expect("a message");
        let sent: i64 = std::str::from_utf8(&message.body).expect("text").parse().expect("a number");
        // A time is kept to the microsecond.
        assert!(message.unix_ns + 1000 > sent, "a message bears a time {} ns before it was sent", sent - message.unix_ns);
        consumer.finish(&message.id).expect("a socket");
    }
}

/// Some deferred messages wait beside a client that has deferred them already, some were never read: no restart changes their due times.
#[test]
fn deferred_messages_come_when_they_are_due_over_kills_and_stops() {
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
    node.stop();
    node.spawn();
    node.wait_ready().expect("it starts again");
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
    // Messages behind the deferred ones are not held up.
    read(&mut client, &mut BTreeSet::from([5]));
    let stats = || node.get("/stats?format=json&topic=t&channel=ch").expect("it answers");
    assert!(stats().contains("\"deferred_count\":5") && stats().contains("\"depth\":0"), "{}", stats());
    let answer = node.post("/channel/empty?topic=t&channel=ch", b"").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(stats().contains("\"deferred_count\":0") && stats().contains("\"depth\":0"), "{}", stats());
}

fn requeue(client: &mut Client, message: &Message, delay_ms: u64) {
    client.write(&[b"REQ ", &message.id[..], format!(" {delay_ms}\n").as_bytes()].concat()).expect("a socket");
}

fn nothing_comes(client: &mut Client) {
    client.set_read_timeout(Duration::from_millis(200)).expect("a socket");
    let end = client.message().expect_err("nothing is left");
    assert!(matches!(end.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{end}");
    client.set_read_timeout(Duration::from_secs(30)).expect("a socket");
}

/// A REQ that is longer than the message timeout is a copy in the log, of which clients notice nothing.
#[test]
fn a_far_off_retry_comes_when_it_is_due_over_a_kill_as_the_same_message() {
    let mut node = Node::start(&["--shards=2", "--msg-timeout=500ms"]);
    let mut client = subscribe(&node, "ch");
    let mut publisher = Client::connect(node.tcp()).expect("it takes connections");
    publisher.publish("t", b"x").expect("stored");
    let first = client.message().expect("it comes");
    let due_ms = unix_ms() + 3_000;
    requeue(&mut client, &first, 3_000);
    let is_copied = || node.get("/stats?format=json&topic=t").expect("it answers").contains("\"message_count\":2,");
    (0..300).take_while(|_| !is_copied()).for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    assert!(is_copied(), "{}", node.get("/stats?format=json&topic=t").expect("it answers"));
    // FINs are journaled before the publishes of the same turn, and so is what the copy confirms.
    publisher.publish("t", b"y").expect("stored");
    std::thread::sleep(Duration::from_millis(100));
    publisher.publish("t", b"y").expect("stored");
    drop((client, publisher));
    restart(&mut node);
    let mut client = subscribe(&node, "ch");
    for _ in 0..2 {
        let other = client.message().expect("it comes");
        assert_eq!(other.body, b"y", "the retry is early");
        client.finish(&other.id).expect("a socket");
    }
    let again = client.message().expect("it comes");
    assert!(unix_ms() >= due_ms, "{} ms too early", due_ms - unix_ms());
    assert_eq!(again, Message { attempts: 2, ..first });
    client.finish(&again.id).expect("a socket");
    nothing_comes(&mut client);
}

/// Messages that a client sees around a clean stop, as body and attempts: some finished, some kept, some deferred for a moment and for
/// long.
fn around_a_stop(address: SocketAddr, restart: impl FnOnce()) -> Vec<(Vec<u8>, u16)> {
    let mut client = Client::connect(address).expect("it takes connections");
    client.subscribe("t", "ch", 4).expect("subscribed");
    let mut publisher = Client::connect(address).expect("it takes connections");
    for body in [b"finished", b"held    ", b"again   ", b"put off "] {
        publisher.publish("t", body).expect("stored");
    }
    let mut held = vec![];
    for _ in 0..4 {
        held.push(client.message().expect("it comes"));
    }
    held.sort_by_key(|m| m.body.clone());
    let [again, finished, kept, put_off] = &held[..] else { panic!("four came") };
    client.finish(&finished.id).expect("a socket");
    requeue(&mut client, again, 0);
    let second = client.message().expect("it comes again");
    assert_eq!((&second.body, second.attempts, kept.attempts), (&again.body, 2, 1));
    requeue(&mut client, put_off, 1_500);
    // All was read once this is answered.
    client.publish("other", b"x").expect("stored");
    restart();
    let mut client = Client::connect(address).expect("it takes connections");
    client.subscribe("t", "ch", 4).expect("subscribed");
    let mut came: Vec<Message> = (0..3).map(|_| client.message().expect("it comes again")).collect();
    came.sort_by_key(|m| m.body.clone());
    for (before, after) in [again, kept, put_off].into_iter().zip(&came) {
        assert_eq!((before.id, before.unix_ns), (after.id, after.unix_ns), "it is the same message");
        client.finish(&after.id).expect("a socket");
    }
    nothing_comes(&mut client);
    came.into_iter().map(|m| (m.body, m.attempts)).collect()
}

#[test]
fn attempts_survive_a_clean_stop_as_with_nsqd() {
    let mut node = Node::start(&["--shards=1"]);
    let address = node.tcp();
    let began_ms = unix_ms();
    let ours = around_a_stop(address, || {
        node.stop();
        node.spawn();
        node.wait_ready().expect("it starts again");
    });
    assert!(unix_ms() >= began_ms + 1_500, "what was put off keeps its due time");
    let wanted = [(b"again   ".to_vec(), 3), (b"held    ".to_vec(), 2), (b"put off ".to_vec(), 2)];
    assert_eq!(ours, wanted);

    let (ports, data) = (Ports::free(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the folder is writable"));
    let mut nsqd = stock_nsqd(&ports, data.path(), &[]);
    let theirs = around_a_stop(ports.at(0), || {
        nsqd.stop();
        nsqd = stock_nsqd(&ports, data.path(), &[]);
    });
    assert_eq!(theirs, wanted);
}

fn stock_nsqd(ports: &Ports, data: &Path, more: &[&str]) -> Process {
    let flags = [
        format!("--tcp-address={}", ports.at(0)),
        format!("--http-address={}", ports.at(1)),
        format!("--data-path={}", data.display()),
        "--log-level=error".into(),
    ];
    let mut process = Process::start(&stock("nsqd"), flags.iter().map(String::as_str).chain(more.iter().copied()));
    process.wait_listening(ports.at(0));
    process
}

/// Answers to two DPUBs and a REQ with delays at and above `--max-req-timeout=1s`.
fn bounded(tcp: SocketAddr) -> String {
    let mut client = Client::connect(tcp).expect("it takes connections");
    client.subscribe("t", "ch", 4).expect("subscribed");
    let mut publisher = Client::connect(tcp).expect("it takes connections");
    publisher.write(&command_with_body("DPUB t 1000", b"x")).expect("a socket");
    publisher.ok().expect("no longer than it may be");
    let first = client.message().expect("it comes");
    let asked_ms = unix_ms();
    requeue(&mut client, &first, 3_600_000);
    let again = client.message().expect("it comes before an hour has passed");
    assert!(unix_ms() >= asked_ms + 1_000, "it is early");
    client.finish(&again.id).expect("a socket");
    publisher.write(&command_with_body("DPUB t 1001", b"x")).expect("a socket");
    let refused = publisher.read().expect("an answer");
    format!("{} {refused:?}", again.attempts)
}

#[test]
fn the_longest_delay_bounds_publishes_and_retries_as_with_nsqd() {
    const FLAG: &str = "--max-req-timeout=1s";
    let (ports, data) = (Ports::free(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the folder is writable"));
    let _nsqd = stock_nsqd(&ports, data.path(), &[FLAG]);
    let theirs = bounded(ports.at(0));
    let node = Node::start(&["--shards=1", FLAG]);
    assert_eq!(bounded(node.tcp()), theirs);
    assert!(theirs.contains("E_INVALID DPUB timeout 1001 out of range 0-1000"), "{theirs}");
}
