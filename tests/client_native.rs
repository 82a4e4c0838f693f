//! The client library against a real node: acknowledged messages are stored, in order, once; also when the node is killed meanwhile.

mod node;

use node::Node;
use ringmq::client::{Batch, Client, Code, Consumer, Error, LogId, Start};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// No answer takes as long, on however slow a machine.
const HANG: Duration = Duration::from_secs(60);

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(HANG, test).await.expect("it hangs") })
}

async fn client(node: &Node) -> Client {
    Client::builder().address(node.native().to_string()).client_id("test").connect().await.expect("the node is ready")
}

fn body(i: u64) -> Vec<u8> {
    format!("message {i} {}", "x".repeat(i as usize % 200)).into_bytes()
}

/// Consumes `num` messages; bodies by partition, in the order of their log ids, each id once.
async fn drain(consumer: &mut Consumer, num: usize) -> BTreeMap<(u16, u64), Vec<u8>> {
    let found = consume(consumer, num).await;
    consumer.sync().await.expect("the node takes it");
    found
}

async fn consume(consumer: &mut Consumer, num: usize) -> BTreeMap<(u16, u64), Vec<u8>> {
    let mut found = BTreeMap::new();
    while found.len() < num {
        let batch = consumer.next_batch().await.expect("a batch");
        for message in batch.deliveries() {
            found.insert((message.partition().0, message.log_id().0), message.body().to_vec());
        }
        batch.finish();
    }
    found
}

#[test]
fn what_is_sent_is_consumed_once_and_in_order() {
    let node = Node::start(&["--shards=2"]);
    run(async {
        let client = client(&node).await;
        let producer = client.producer("orders").create_with(4).build().await.expect("a topic");
        let mut acks = Vec::new();
        for i in 0..5000u64 {
            let key = (i % 7).to_le_bytes();
            acks.push(producer.send_keyed(&key, &body(i)).await.expect("taken"));
        }
        let mut batch = Batch::with_capacity(3, 30);
        (5000..5003).for_each(|i| batch.push(&body(i)));
        let at = producer.send_batch_to(3, batch).await.expect("taken").await.expect("stored");
        assert_eq!((at.partition.0, at.duplicate), (3, false));
        let mut stored = BTreeMap::new();
        for (i, ack) in acks.into_iter().enumerate() {
            let at = ack.await.expect("stored");
            stored.insert((at.partition.0, at.log_id().expect("it is new").0), body(i as u64));
        }
        for i in 0..3 {
            stored.insert((3, at.log_id().expect("it is new").0 + i), body(5000 + i));
        }
        assert_eq!(stored.len(), 5003, "no two have one place");

        let mut consumer = client.consumer("orders", "all").start(Start::Oldest).build().await.expect("it is there");
        assert_eq!(drain(&mut consumer, 5003).await, stored);
        consumer.close().await.expect("confirmed");
        // finished messages do not come again
        producer.send_to(0, b"last").await.expect("taken").await.expect("stored");
        let mut consumer = client.consumer("orders", "all").build().await.expect("it is there");
        let last = consumer.next().await.expect("a message");
        assert_eq!((&last.body()[..], last.attempts()), (&b"last"[..], 1));
        last.requeue(Duration::ZERO);
        let again = consumer.next().await.expect("a message");
        assert_eq!((&again.body()[..], again.attempts()), (&b"last"[..], 2));
        again.finish();
        consumer.close().await.expect("confirmed");
    });
}

#[test]
fn a_channel_begins_where_it_was_told() {
    let node = Node::start(&["--shards=2"]);
    run(async {
        let client = client(&node).await;
        let producer = client.producer("t").create_with(1).build().await.expect("a topic");
        let (mut places, mut times) = (vec![], vec![]);
        for batch in 0..6 {
            let mut messages = Batch::new();
            (batch * 3..batch * 3 + 3).for_each(|i: u32| messages.push(i.to_string().as_bytes()));
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
            times.push(since.as_nanos() as i64);
            places.push(producer.send_batch_to(0, messages).await.expect("taken").await.expect("stored").at.expect("it is new"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let starts = [
            (Start::Default, 0..=0),
            (Start::Oldest, 0..=0),
            (Start::Offset(places[2].offset), 6..=6),
            (Start::Offset(places[2].offset + 1), 6..=6),
            (Start::Count(7), 7..=7),
            (Start::LogId(LogId(places[3].log_id.0 + 1)), 10..=10),
            // nothing of that time is missed; of one batch earlier messages may come
            (Start::Timestamp(times[4]), 9..=12),
            (Start::Timestamp(0), 0..=0),
            // all of these are at the end
            (Start::Newest, 18..=18),
            (Start::Count(1 << 40), 18..=18),
            (Start::LogId(LogId(1 << 40)), 18..=18),
            (Start::Offset(1 << 40), 18..=18),
        ];
        let mut consumers = vec![];
        for (n, (start, first)) in starts.into_iter().enumerate() {
            let consumer = client.consumer("t", &format!("c{n}")).start(start).build().await.expect("it is there");
            consumers.push((start, first, consumer));
        }
        producer.send_to(0, b"18").await.expect("taken").await.expect("stored");
        for (start, first, mut consumer) in consumers {
            let found: u32 = String::from_utf8_lossy(consumer.next().await.expect("a message").body()).parse().expect("a number");
            assert!(first.contains(&found), "{start:?} began at {found}");
        }
    });
}

#[test]
fn the_node_is_asked_about_itself() {
    let node = Node::start(&["--shards=2"]);
    run(async {
        let client = client(&node).await;
        client.ping().await.expect("alive");
        assert_eq!(client.create_topic("b", 3).await.expect("made").partitions.len(), 3);
        client.create_topic("a", 1).await.expect("made");
        let names: Vec<_> = client.topics().await.expect("known").into_iter().map(|t| (t.name, t.partitions.len())).collect();
        assert_eq!(names, [("a".to_string(), 1), ("b".to_string(), 3)]);
        let producer = client.producer("b").must_exist().build().await.expect("it is there");
        for _ in 0..3 {
            producer.send_to(1, b"x").await.expect("taken").await.expect("stored");
        }
        assert_eq!(client.find("b", 1, Start::Newest).await.expect("found").count, 3);
        assert_eq!(client.find("b", 1, Start::Count(2)).await.expect("found").count, 2);
        let missing = client.find("none", 0, Start::Oldest).await.expect_err("no such topic");
        assert!(matches!(missing, Error::NoTopic { .. }), "{missing}");
        assert!(matches!(client.find("b", 9, Start::Oldest).await, Err(Error::Partition { last: 2, .. })));
        let bad = client.create_topic("not a name!", 1).await.expect_err("a bad name");
        assert_eq!(bad.code(), Some(Code::BadTopic));
        let too_big = producer.send(&vec![0; 64 << 20]).await.expect_err("too big");
        assert!(matches!(too_big, Error::TooBig { .. }), "{too_big}");
    });
}

#[test]
fn a_killed_node_costs_nothing_that_was_acknowledged_and_stores_nothing_twice() {
    let mut node = Node::start(&["--shards=2"]);
    run(async {
        let client = client(&node).await;
        let producer =
            client.producer("t").create_with(2).linger(Duration::ZERO).batch_messages(20).build().await.expect("a topic");
        let mut consumer = client.consumer("t", "c").start(Start::Oldest).build().await.expect("it is there");
        let mut acks = Vec::new();
        for round in 0..3u64 {
            for i in 0..1000 {
                acks.push(producer.send(&body(round * 1000 + i)).await.expect("taken"));
            }
            // some are answered, others are on their way
            while acks[round as usize * 1000 + 200].now().is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            node.kill();
            node.spawn();
        }
        let mut stored = BTreeMap::new();
        for (i, ack) in acks.into_iter().enumerate() {
            let at = ack.await.expect("an idempotent producer gets it through");
            if let Some(id) = at.log_id() {
                stored.insert((at.partition.0, id.0), body(i as u64));
            }
        }
        let found = consume(&mut consumer, 3000).await;
        assert_eq!(found.len(), 3000, "each once");
        // messages from before the last kill may have been finished on the broken connection: the consumer says so, once
        if let Err(error) = consumer.sync().await {
            assert!(matches!(error, Error::Outcome { .. }), "{error}");
            consumer.sync().await.expect("the node takes the rest");
        }
        assert!(stored.iter().all(|(place, body)| found.get(place) == Some(body)));
        let mut bodies: Vec<_> = found.into_values().collect();
        bodies.sort();
        let mut expected: Vec<_> = (0..3000).map(body).collect();
        expected.sort();
        assert_eq!(bodies, expected);
        let counts = [client.find("t", 0, Start::Newest).await, client.find("t", 1, Start::Newest).await];
        let sum: i64 = counts.into_iter().map(|c| c.expect("found").count).sum();
        assert_eq!(sum, 3000, "nothing twice");
    });
}

#[test]
fn a_slow_consumer_holds_no_more_than_its_bound() {
    let node = Node::start(&["--shards=1"]);
    run(async {
        let client = client(&node).await;
        let producer = client.producer("t").create_with(1).build().await.expect("a topic");
        for _ in 0..40 {
            let mut batch = Batch::new();
            (0..10).for_each(|_| batch.push(&[7; 1000]));
            producer.send_batch(batch).await.expect("taken").await.expect("stored");
        }
        let mut consumer = client.consumer("t", "c").start(Start::Oldest).max_bytes(50_000).build().await.expect("it is there");
        let mut held = Vec::new();
        while let Ok(batch) = tokio::time::timeout(Duration::from_millis(500), consumer.next_batch()).await {
            held.push(batch.expect("a batch"));
        }
        let bytes: usize = held.iter().map(|b| b.bytes()).sum();
        assert!((50_000..70_000).contains(&bytes), "{bytes}");
        let mut found: u32 = held.iter().map(|b| b.num()).sum();
        held.drain(..).for_each(|b| b.finish());
        while found < 400 {
            let batch = consumer.next_batch().await.expect("a batch");
            found += batch.num();
            batch.finish();
        }
        assert_eq!(found, 400);
        consumer.close().await.expect("confirmed");
    });
}

#[test]
fn handlers_run_side_by_side_and_what_fails_comes_again() {
    use std::sync::{Arc, Mutex};
    let node = Node::start(&["--shards=1"]);
    run(async {
        let client = client(&node).await;
        let producer = client.producer("t").create_with(1).build().await.expect("a topic");
        for i in 0..100u8 {
            let _ack = producer.send(&[i]).await.expect("taken");
        }
        producer.flush().await.expect("stored");
        let mut consumer = client.consumer("t", "c").start(Start::Oldest).build().await.expect("it is there");
        let done = Arc::new(Mutex::new(BTreeMap::new()));
        let handling = consumer.for_each_concurrent(8, Duration::ZERO, |message| {
            let done = done.clone();
            async move {
                if message.body()[0] % 10 == 0 && message.attempts() == 1 {
                    return Err("not yet");
                }
                done.lock().expect("no handler panics").insert(message.body()[0], message.attempts());
                Ok(())
            }
        });
        let all = async {
            while done.lock().expect("no handler panics").len() < 100 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            error = handling => panic!("{error}"),
            () = all => {}
        }
        assert!(done.lock().expect("no handler panics").iter().all(|(i, attempts)| *attempts == 1 + u16::from(i % 10 == 0)));
    });
}
