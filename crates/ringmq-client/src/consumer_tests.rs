//! Consumers against the made-up node: lost connections, credit, confirmations that went astray.

use super::tests::{Mock, Setup, Tell, faultless, run};
use super::*;
use ringmq_protocol::base::PartitionId;
use ringmq_protocol::codec::native::{Encoder, Messages, Payload, Reply, frame};
use std::sync::atomic::Ordering;
use tokio::time::timeout;

const SOON: Duration = Duration::from_millis(50);

impl Mock {
    /// Sends a frame of messages to the subscription that was made last.
    fn deliver(&self, first: u64, bodies: &[&[u8]]) {
        self.deliver_to(self.subscribed.len() - 1, first, bodies);
    }

    fn deliver_to(&self, at: usize, first: u64, bodies: &[&[u8]]) {
        let sub = &self.subscribed[at];
        let mut batch = Batch::new();
        bodies.iter().for_each(|body| batch.push(body));
        let payload = batch.into_body();
        let messages = Messages {
            subscription: sub.number,
            log_id: LogId(first),
            num: bodies.len() as u32,
            count: first as i64 - 1,
            batch_offset: 0,
            base_unix_ns: 0,
            attempts: 1,
        };
        let mut out = Vec::new();
        Encoder::default().reply(&mut out, 0, &Reply::Messages(messages), Payload::of(&payload));
        out.extend_from_slice(&payload);
        sub.session.send(Tell::Send(out)).unwrap();
    }

    /// Loses the connection of the subscription that was made last.
    fn lose(&self) {
        self.subscribed.last().unwrap().session.send(Tell::Lose).unwrap();
    }

    fn tell(&self, reply: &Reply<'_>) {
        let mut out = Vec::new();
        Encoder::default().reply(&mut out, 0, reply, Payload::NONE);
        self.subscribed.last().unwrap().session.send(Tell::Send(out)).unwrap();
    }

    fn has_finished(&self, id: u64) -> bool {
        self.finished.iter().any(|r| (r.first.0..=r.last.0).contains(&id))
    }
}

/// A consumer of partition 0 that is subscribed.
async fn one(setup: &Setup, client: &Client) -> Consumer {
    let before = setup.mock.lock().unwrap().credit.len();
    let consumer = client.consumer("t", "c").partitions([0]).max_bytes(1000).ack_delay(Duration::MAX).build().await.unwrap();
    setup.until(|mock| mock.credit.len() > before).await;
    consumer
}

#[test]
fn consumers_of_one_client_share_a_channel() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let mut first = one(&setup, &client).await;
        let mut second = client.consumer("t", "c").partitions([0, 0]).build().await.unwrap();
        setup.until(|mock| mock.subscribed.len() == 2).await;
        setup.mock.lock().unwrap().deliver_to(0, 1, &[b"one"]);
        setup.mock.lock().unwrap().deliver_to(1, 2, &[b"two"]);
        assert_eq!(&first.next().await.unwrap().body()[..], b"one");
        assert_eq!(&second.next().await.unwrap().body()[..], b"two");
        first.close().await.unwrap();
        assert_eq!(setup.mock.lock().unwrap().unsubscribed, 1, "close waits for it");
        let _third = one(&setup, &client).await;
    });
}

#[test]
fn sync_tells_of_what_was_finished_after_its_connection() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let mut consumer = one(&setup, &client).await;
        setup.mock.lock().unwrap().deliver(1, &[b"one"]);
        let message = consumer.next().await.unwrap();
        setup.mock.lock().unwrap().lose();
        setup.until(|mock| mock.credit.len() == 2).await;
        consumer.sync().await.expect("nothing was finished yet");
        message.touch();
        consumer.sync().await.expect("a touch confirms nothing");
        message.finish();
        assert_eq!(consumer.sync().await.expect_err("it comes again").retry(), Retry::Unknown);
        consumer.sync().await.expect("that was said");
    });
}

#[test]
fn sync_tells_of_what_was_finished_after_the_subscription() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let mut consumer = one(&setup, &client).await;
        setup.mock.lock().unwrap().deliver(1, &[b"one"]);
        let message = consumer.next().await.unwrap();
        {
            let mut mock = setup.mock.lock().unwrap();
            mock.tell(&Reply::Unsubscribed { subscription: 1, reason: "made up" });
            mock.subscribed.clear();
        }
        // Another node leads the partition, or none for a while: it subscribes again.
        setup.until(|mock| mock.subscribed.len() == 1).await;
        consumer.sync().await.expect("nothing was finished yet");
        message.finish();
        consumer.sync().await.expect_err("the node did not take it");
        setup.mock.lock().unwrap().deliver(1, &[b"one"]);
        assert_eq!(&consumer.next().await.expect("it goes on").body()[..], b"one");
    });
}

#[test]
fn what_is_held_over_a_lost_connection_counts() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let mut consumer = one(&setup, &client).await;
        setup.mock.lock().unwrap().deliver(1, &[&[0; 588]]);
        let held = consumer.next().await.unwrap();
        setup.mock.lock().unwrap().deliver(2, &[&[0; 288]]);
        setup.mock.lock().unwrap().lose();
        setup.until(|mock| mock.credit.len() == 2).await;
        let granted = setup.mock.lock().unwrap().credit[1].1;
        assert!(granted <= 400, "{granted} and the 600 that are held: more than 1000");
        setup.mock.lock().unwrap().deliver(3, &[b"three"]);
        let next = consumer.next().await.unwrap();
        assert_eq!(next.log_id(), LogId(3), "what came over the lost connection cannot be finished any more");
        drop(held);
        setup.until(|mock| mock.credit.last().is_some_and(|(_, bytes)| *bytes == 1000)).await;
    });
}

#[test]
fn a_handler_loop_that_is_dropped_leaves_automatic_acknowledgement_on() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let mut consumer = client.consumer("t", "c").partitions([0]).auto_ack(true).build().await.unwrap();
        setup.until(|mock| mock.credit.len() == 1).await;
        let looping = consumer.for_each_concurrent(1, Duration::ZERO, |_| async { Ok::<(), Error>(()) });
        assert!(timeout(SOON, looping).await.is_err());
        setup.mock.lock().unwrap().deliver(7, &[b"seven", b"eight"]);
        let _seven = consumer.next().await.unwrap();
        let _eight = consumer.next().await.unwrap();
        consumer.sync().await.unwrap();
        assert!(setup.mock.lock().unwrap().has_finished(7));
    });
}

#[test]
fn a_client_skips_a_frame_of_a_kind_that_it_does_not_know() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let mut consumer = one(&setup, &client).await;
        let mut out = Vec::new();
        frame::encode(&mut out, 250, 0, &[1; 16], 0, 0);
        setup.mock.lock().unwrap().subscribed[0].session.send(Tell::Send(out)).unwrap();
        setup.mock.lock().unwrap().deliver(1, &[b"one"]);
        assert_eq!(consumer.next().await.unwrap().partition(), PartitionId(0));
        consumer.sync().await.unwrap();
        assert_eq!(setup.mock.lock().unwrap().subscribed.len(), 1);
        assert!(setup.connections.load(Ordering::Relaxed) <= 2);
    });
}

#[test]
fn a_consumer_is_a_stream_that_acknowledges_like_its_methods_and_ends_with_its_partitions() {
    use futures_lite::StreamExt as _;
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let mut consumer = client.consumer("t", "c").partitions([0]).auto_ack(true).build().await.unwrap();
        setup.until(|mock| mock.credit.len() == 1).await;
        assert!(timeout(SOON, futures_lite::StreamExt::next(&mut consumer)).await.is_err(), "nothing came yet");
        setup.mock.lock().unwrap().deliver(1, &[b"one", b"two"]);
        setup.mock.lock().unwrap().deliver(3, &[b"three"]);
        let some: Vec<_> = (&mut consumer).take(3).map(|message| message.unwrap().body().to_vec()).collect().await;
        assert_eq!(some, [&b"one"[..], b"two", b"three"]);
        consumer.sync().await.unwrap();
        assert!([1, 2].iter().all(|id| setup.mock.lock().unwrap().has_finished(*id)), "the next was asked for");
        assert!(!setup.mock.lock().unwrap().has_finished(3));
        {
            let mut mock = setup.mock.lock().unwrap();
            mock.is_gone = true;
            let subscription = mock.subscribed[0].number;
            mock.tell(&Reply::Unsubscribed { subscription, reason: "deleted" });
        }
        let rest: Vec<_> = consumer.collect().await;
        assert!(matches!(rest[..], [Err(Error::Ended { .. })]), "{rest:?}");
    });
}
