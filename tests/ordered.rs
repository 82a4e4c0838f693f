//! Ordered channels, named partitions and set offsets, over the sockets of the real binary: a raw NSQ client, HTTP, and the
//! native client; and over a kill.

mod node;

use node::{Client, Frame, Message, Node, command_with_body, multi_publish};
use ringmq::client::{Code, Start};
use std::future::Future;
use std::time::Duration;

/// No answer takes as long, on however slow a machine.
const HANG: Duration = Duration::from_secs(60);

fn connect(node: &Node) -> Client {
    Client::connect(node.tcp()).expect("it takes connections")
}

fn publish(node: &Node, partition: u16, numbers: std::ops::Range<u32>) {
    let mut client = connect(node);
    let bodies: Vec<Vec<u8>> = numbers.map(|n| n.to_string().into_bytes()).collect();
    client.write(&multi_publish(&format!("t {partition}"), &bodies)).expect("it reads");
    client.ok().expect("stored");
}

fn subscribe_ordered(node: &Node, partition: u16) -> Client {
    let mut client = connect(node);
    client.write(format!("SUB_ORDERED t ch {partition}\n").as_bytes()).expect("it reads");
    client.ok().expect("subscribed");
    client.write(b"RDY 50\n").expect("it reads");
    client
}

/// Offset of the message in the log, and its number.
fn number(message: &Message) -> (i64, u32) {
    let (offset, rest) = message.body.split_first_chunk::<8>().expect("an offset");
    let number = std::str::from_utf8(&rest[4..]).expect("text").parse().expect("a number");
    (i64::from_be_bytes(*offset), number)
}

fn set_offset(node: &Node, query: &str, to: &str) -> String {
    node.post(&format!("/channel/setoffset?topic=t&channel=ch{query}"), to.as_bytes()).expect("it answers")
}

#[test]
fn an_ordered_channel_keeps_its_order_over_clients_and_kills() {
    let mut node = Node::start(&["--shards=2", "--partitions=2"]);
    publish(&node, 1, 0..40);
    let mut expected = 0;
    for life in 0..3 {
        // Several clients, of which one at a time has a message; some go without a word.
        for _ in 0..4 {
            let mut client = subscribe_ordered(&node, 1);
            for _ in 0..3 {
                let message = client.message().expect("a message");
                assert_eq!(number(&message).1, expected, "life {life}");
                client.finish(&message.id).expect("it reads");
                expected += 1;
            }
            // The next one comes once the FIN is durable: from here on none of them comes again, whatever happens.
            let next = client.message().expect("a message");
            assert_eq!(number(&next).1, expected);
        }
        node.kill();
        node.spawn();
        node.wait_ready().expect("it starts again");
    }
    let mut client = subscribe_ordered(&node, 1);
    let message = client.message().expect("a message");
    assert_eq!(number(&message).1, expected);
    client.write(&[b"REQ ", &message.id[..], b" 0\n"].concat()).expect("it reads");
    let again = client.message().expect("a message");
    assert_eq!((number(&again).1, again.id), (expected, message.id));
    assert!(again.attempts > message.attempts);
}

#[test]
fn a_partition_that_is_not_there_ends_the_connection_with_its_code() {
    let node = Node::start(&["--shards=2", "--partitions=2"]);
    publish(&node, 0, 0..1);
    for (command, code) in [
        (command_with_body("PUB t 2", b"x"), "E_TOPIC_NOT_EXIST"),
        (b"SUB t ch 2\n".to_vec(), "E_TOPIC_NOT_EXIST"),
        (b"SUB_ORDERED t ch two\n".to_vec(), "E_BAD_PARTITION"),
    ] {
        let mut client = connect(&node);
        client.write(&command).expect("it reads");
        match client.read().expect("an answer") {
            Frame::Error(text) => assert!(text.starts_with(code), "{text}"),
            other => panic!("{other:?}"),
        }
        assert!(client.read().is_err(), "closed");
    }
    node::assert_serves(&node);
}

#[test]
fn an_offset_is_set_over_http_and_stays_set_over_a_kill() {
    let mut node = Node::start(&["--shards=2", "--partitions=2"]);
    publish(&node, 0, 0..10);
    publish(&node, 1, 100..110);
    assert!(set_offset(&node, "", "msgcount:3").starts_with("HTTP/1.1 404"), "no channel yet");
    let mut client = connect(&node);
    client.subscribe("t", "ch", 20).expect("subscribed");
    let all: Vec<Message> = (0..20).map(|_| client.message().expect("a message")).collect();
    all.iter().for_each(|m| client.finish(&m.id).expect("it reads"));
    drop(client);
    let answer = set_offset(&node, "", "msgcount:7");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"count\":7"), "{answer}");
    node.kill();
    node.spawn();
    node.wait_ready().expect("it starts again");
    let mut client = connect(&node);
    client.subscribe("t", "ch", 20).expect("subscribed");
    let mut again: Vec<Vec<u8>> = (0..6).map(|_| client.message().expect("a message").body).collect();
    again.sort();
    assert_eq!(again, [&b"107"[..], b"108", b"109", b"7", b"8", b"9"]);
    let other = connect(&node);
    let mut other = other;
    other.subscribe("t", "ch", 0).expect("subscribed");
    assert!(set_offset(&node, "&partition=1", "special:-1").starts_with("HTTP/1.1 409"));
    let answer = set_offset(&node, "&partition=1&force=true", "special:-1");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"count\":10"), "{answer}");
    publish(&node, 1, 110..111);
    assert_eq!(client.message().expect("a message").body, b"110");
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(HANG, test).await.expect("it hangs") })
}

/// One channel serves clients of both protocols.
#[test]
fn the_native_client_reads_in_order_and_sets_offsets() {
    let node = Node::start(&["--shards=2", "--partitions=2"]);
    publish(&node, 1, 0..30);
    run(async {
        let client =
            ringmq::client::Client::builder().address(node.native().to_string()).connect().await.expect("the node is ready");
        let consumer = || client.consumer("t", "ch").partitions([1]).start(Start::Oldest).ordered().build();
        let mut readers = [consumer().await.expect("subscribed"), consumer().await.expect("subscribed")];
        let error = client.set_offset("t", 1, "ch", Start::Oldest, false).await.expect_err("two consumers");
        assert_eq!(error.code(), Some(Code::BadSubscription), "{error}");
        for n in 0..20 {
            let [a, b] = &mut readers;
            let message = tokio::select! { m = a.next() => m, m = b.next() => m }.expect("a message");
            assert_eq!(message.body(), n.to_string().as_bytes());
            message.finish();
        }
        let [reader, other] = readers;
        other.close().await.expect("it leaves");
        reader.close().await.expect("it leaves");
        let at = client.set_offset("t", 1, "ch", Start::Count(4), false).await.expect("nobody is subscribed");
        assert_eq!((at.count, at.log_id.0), (4, 5));
        let mut reader = consumer().await.expect("subscribed");
        for n in 4..30 {
            let message = reader.next().await.expect("a message");
            assert_eq!(message.body(), n.to_string().as_bytes());
            message.finish();
        }
        let error = client.set_offset("t", 1, "none", Start::Oldest, true).await.expect_err("no such channel");
        assert_eq!(error.code(), Some(Code::BadChannel), "{error}");
        let error = client.set_offset("t", 7, "ch", Start::Oldest, true).await.expect_err("no such partition");
        assert!(error.to_string().contains("partitions 0 to 1"), "{error}");
    });
}
