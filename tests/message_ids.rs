//! Message ids over the sockets of the real binary: no two messages of two nodes, several topics and partitions have the same, and
//! each keeps its own over redeliveries, kinds of channels, a kill and a clean stop.

mod node;

use node::{Client, Frame, Message, Node, multi_publish};
use std::collections::BTreeMap;

const TOPICS: [&str; 3] = ["a", "b", "c"];
const PARTITIONS: u16 = 3;
const EACH: usize = 10;

/// The body of each id, and the id of each body.
#[derive(Default)]
struct Book {
    named: BTreeMap<u64, String>,
    of: BTreeMap<String, u64>,
}

impl Book {
    fn note(&mut self, id: u64, body: &[u8]) {
        let body = String::from_utf8(body.to_vec()).expect("text");
        let named = self.named.entry(id).or_insert(body.clone());
        assert_eq!(*named, body, "{id:016x} names two messages");
        let known = *self.of.entry(body.clone()).or_insert(id);
        assert_eq!(known, id, "{body} came as {known:016x} and as {id:016x}");
    }

    fn came(&mut self, message: &Message) {
        let text = std::str::from_utf8(&message.id).expect("hex");
        let is_hex = text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let id = u64::from_str_radix(text, 16).ok().filter(|_| is_hex).expect("lower-case hex");
        self.note(id, &message.body);
    }
}

fn subscribe(node: &Node, topic: &str) -> Client {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    client.subscribe(topic, "ch", 200).expect("subscribed");
    client
}

/// Takes all messages of the topic, which stay in flight for the client.
fn take_all(book: &mut Book, client: &mut Client) -> Vec<Message> {
    let messages: Vec<Message> = (0..EACH * PARTITIONS as usize).map(|_| client.message().expect("each message comes")).collect();
    messages.iter().for_each(|m| book.came(m));
    messages
}

#[test]
fn no_two_messages_have_the_same_id_and_each_keeps_its_own() {
    let mut nodes = [(); 2].map(|()| Node::start(&["--shards=2", "--partitions=3"]));
    let mut book = Book::default();
    for (n, node) in nodes.iter().enumerate() {
        for topic in TOPICS {
            let mut client = Client::connect(node.tcp()).expect("it takes connections");
            for partition in 0..PARTITIONS {
                let bodies: Vec<_> = (0..EACH).map(|i| format!("{n} {topic} {partition} {i}").into_bytes()).collect();
                client.write(&multi_publish(&format!("{topic} {partition}"), &bodies)).expect("it reads");
                client.ok().expect("stored");
            }
        }
    }
    for node in &nodes {
        for topic in TOPICS {
            let mut client = subscribe(node, topic);
            for message in take_all(&mut book, &mut client) {
                client.write(&[b"REQ ", &message.id[..], b" 0\n"].concat()).expect("it reads");
            }
            let again = take_all(&mut book, &mut client);
            assert!(again.iter().all(|m| m.attempts > 1), "requeued messages come again");
        }
    }
    assert_eq!(book.named.len(), nodes.len() * TOPICS.len() * PARTITIONS as usize * EACH);

    nodes[0].kill();
    nodes[1].stop();
    for node in &mut nodes {
        node.spawn();
        node.wait_ready().expect("it starts");
        for topic in TOPICS {
            take_all(&mut book, &mut subscribe(node, topic));
        }
    }

    // An ordered channel's ids are binary, and the same.
    for node in &nodes {
        for topic in TOPICS {
            let mut client = Client::connect(node.tcp()).expect("it takes connections");
            client.write(format!("SUB_ORDERED {topic} ch 2\nRDY 1\n").as_bytes()).expect("it reads");
            client.ok().expect("subscribed");
            let message = client.message().expect("a message");
            let (id, trace) = message.id.split_first_chunk::<8>().expect("16 bytes");
            assert_eq!(trace, [0; 8]);
            book.note(u64::from_be_bytes(*id), &message.body[12..]);
        }
    }
    assert_eq!(book.named.len(), nodes.len() * TOPICS.len() * PARTITIONS as usize * EACH);
}

#[test]
fn an_id_of_another_topic_is_not_in_flight() {
    let node = Node::start(&["--shards=2", "--partitions=1"]);
    let mut publisher = Client::connect(node.tcp()).expect("it takes connections");
    publisher.publish("a", b"of a").expect("stored");
    publisher.publish("b", b"of b").expect("stored");
    let (mut a, mut b) = (subscribe(&node, "a"), subscribe(&node, "b"));
    let (of_a, of_b) = (a.message().expect("a message"), b.message().expect("a message"));
    for id in [of_b.id, *b"0000000000000000", *b"0000000000000001", *b"ffffffffffffffff"] {
        for (name, rest) in [("FIN", ""), ("REQ", " 0"), ("TOUCH", "")] {
            let id = std::str::from_utf8(&id).expect("hex");
            a.write(format!("{name} {id}{rest}\n").as_bytes()).expect("it reads");
            let error = format!("E_{name}_FAILED {name} {id} failed ID not in flight");
            assert_eq!(a.read().expect("an answer"), Frame::Error(error));
        }
    }
    a.finish(&of_a.id).expect("it reads");
    b.finish(&of_b.id).expect("it reads");
    // No client was refused, and no message is left: the next ones are new.
    for (client, topic) in [(&mut a, "a"), (&mut b, "b")] {
        publisher.publish(topic, b"new").expect("stored");
        assert_eq!(client.message().expect("a message").body, b"new");
    }
}
