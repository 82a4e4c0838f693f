//! Unfinished messages keep nobody from the others, over the sockets of the real binary: at the default settings any number of them
//! may be put off, and at the bound of their memory the node says why nothing comes.

mod node;

use node::{Client, Message, Node, multi_publish};
use std::time::Duration;

const MESSAGES: usize = 3000;

fn publish(node: &Node) {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    let bodies: Vec<Vec<u8>> = (0..MESSAGES).map(|n| n.to_string().into_bytes()).collect();
    for some in bodies.chunks(1000) {
        client.write(&multi_publish("t", some)).expect("it reads");
        client.ok().expect("stored");
    }
}

fn consumer(node: &Node, ready: u32) -> Client {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    client.subscribe("t", "ch", ready).expect("subscribed");
    client
}

fn stats(node: &Node, format: &str) -> String {
    node.get(&format!("/stats?format={format}&topic=t&channel=ch")).expect("it answers")
}

fn number(message: &Message) -> usize {
    std::str::from_utf8(&message.body).expect("text").parse().expect("a number")
}

/// Asks until the answer is as wanted.
fn wait_for(what: &str, node: &Node, is_so: impl Fn(&str) -> bool) {
    for _ in 0..200 {
        if is_so(&stats(node, "json")) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: {}", stats(node, "json"));
}

#[test]
fn half_of_the_messages_put_off_for_a_minute_keep_nobody_from_the_other_half() {
    let node = Node::start(&[]);
    publish(&node);
    let mut client = consumer(&node, 200);
    let mut finished = vec![];
    for _ in 0..MESSAGES {
        let message = client.message().expect("messages go on coming");
        if number(&message).is_multiple_of(2) {
            client.write(&[b"REQ ", &message.id[..], b" 60000\n"].concat()).expect("it reads");
        } else {
            client.finish(&message.id).expect("it reads");
            finished.push(number(&message));
        }
    }
    finished.sort_unstable();
    assert!(finished.iter().copied().eq((1..MESSAGES).step_by(2)), "{finished:?}");
    wait_for("half is put off, and nothing else is left", &node, |s| {
        s.contains("\"deferred_count\":1500,") && s.contains("\"in_flight_count\":0,") && s.contains("\"depth\":0,")
    });
    assert!(!stats(&node, "json").contains("\"held\""), "{}", stats(&node, "json"));
}

#[test]
fn at_the_memory_bound_the_node_says_why_nothing_comes_and_goes_on_when_messages_are_finished() {
    let node = Node::start(&["--shards=1", "--channel-memory=64KiB"]);
    publish(&node);
    let mut client = consumer(&node, 2500);
    client.set_read_timeout(Duration::from_millis(300)).expect("a socket");
    let mut held = vec![];
    for _ in 0..100 {
        match client.message() {
            Ok(message) => held.push(message),
            Err(_) if stats(&node, "json").contains("\"held\":\"unfinished messages take ") => break,
            Err(_) => {}
        }
        while let Ok(message) = client.message() {
            held.push(message);
        }
    }
    assert!((500..2000).contains(&held.len()), "{}", held.len());
    let text = stats(&node, "text");
    assert!(text.contains("*H [ch] held: unfinished messages take ") && text.contains("channel-memory"), "{text}");
    let log = node.whole_log();
    assert_eq!(log.matches("finish messages, or raise channel-memory").count(), 1, "{log}");
    client.set_read_timeout(Duration::from_secs(20)).expect("a socket");
    let mut seen: Vec<usize> = vec![];
    while seen.len() < MESSAGES {
        let message = held.pop().unwrap_or_else(|| client.message().expect("the rest comes"));
        client.finish(&message.id).expect("it reads");
        seen.push(number(&message));
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..MESSAGES), "each comes once");
    wait_for("it holds no more", &node, |s| s.contains("\"depth\":0,") && !s.contains("\"held\""));
}
