//! Messages that consumers put off, or never finish, keep nobody from the rest: only memory bounds them.

use super::*;
use crate::seam::message::ChannelChange;

const DELAY_MS: u64 = 60_000;

fn multi_publish(n: &mut Node, conn: ConnId, topic: &str, messages: usize) {
    for _ in 0..messages / 1000 {
        let mut bytes = vec![];
        request::multi_publish(&mut bytes, topic, (0..1000).map(|_| b"x".as_slice()));
        n.send(conn, &bytes);
    }
    assert!(n.take(conn).iter().all(|f| f == "OK"));
}

/// Puts off every message that has an even number, or all, and finishes the others, until no new ones come. Says how many were
/// finished and put off.
fn consume(n: &mut Node, conn: ConnId, is_put_off: impl Fn(usize) -> bool) -> (usize, usize) {
    let (mut finished, mut put_off) = (0, 0);
    loop {
        let got: Vec<String> = n.take(conn).into_iter().filter(|f| f.contains(' ')).collect();
        if got.is_empty() {
            return (finished, put_off);
        }
        let mut commands = String::new();
        for message in &got {
            if is_put_off(finished + put_off) {
                commands += &format!("REQ {} {DELAY_MS}\n", id_of(message));
                put_off += 1;
            } else {
                commands += &format!("FIN {}\n", id_of(message));
                finished += 1;
            }
        }
        n.send(conn, commands.as_bytes());
    }
}

/// Makes the deferred messages due, and connects a new consumer: those before it are silent for too long.
fn due(n: &mut Node) -> ConnId {
    n.pass_time(Duration::from_millis(DELAY_MS + 64));
    let c = n.connect(0);
    n.send(c, b"SUB t ch\nRDY 200\n");
    c
}

fn stats(n: &Node, channel: &str) -> crate::metrics::stats::ChannelStats {
    let mut parts = n.shards.iter().flat_map(|s| s.stats(Ticks(0), None, None, false).partitions).flat_map(|p| p.channels);
    parts.find(|c| c.channel == channel).expect("the channel is there")
}

#[test]
fn half_of_the_messages_put_off_keep_nobody_from_the_other_half() {
    let mut n = Node::new(1, 1);
    let (p, c) = (n.connect(0), n.connect(0));
    multi_publish(&mut n, p, "t", 3000);
    n.send(c, b"SUB t ch\nRDY 200\n");
    assert_eq!(consume(&mut n, c, |nth| nth % 2 == 0), (1500, 1500));
    let found = stats(&n, "ch");
    assert_eq!((found.depth, found.deferred_count, found.full_bytes), (0, 1500, None));
    let c = due(&mut n);
    assert_eq!(consume(&mut n, c, |_| false), (1500, 0));
    assert_eq!(stats(&n, "ch").deferred_count, 0);
}

#[test]
fn a_channel_holds_at_the_memory_bound_says_so_and_goes_on_below_it() {
    let mut n = Node::with(1, Settings { partitions: 1, channel_memory: 36_000, ..Settings::default() });
    let (p, c, d) = (n.connect(0), n.connect(0), n.connect(0));
    n.send(d, b"SUB t healthy\nRDY 100\n");
    n.send(c, b"SUB t ch\nRDY 100\n");
    multi_publish(&mut n, p, "t", 3000);
    let (finished, put_off) = consume(&mut n, c, |_| true);
    let open_bytes = |n: &Node| n.shards[0].engine.core.partitions.open_bytes();
    assert!(finished == 0 && (400..700).contains(&put_off), "{put_off}");
    assert!(open_bytes(&n) < 36_000, "{}", open_bytes(&n));
    let found = stats(&n, "ch");
    assert_eq!((found.depth, found.deferred_count), (3000 - put_off as u64, put_off as u64));
    assert!(found.full_bytes.is_some_and(|bytes| bytes > 24_000), "{found:?}");
    // Another channel of the core goes on.
    assert_eq!(stats(&n, "healthy").full_bytes, None);
    assert_eq!(consume(&mut n, d, |_| false), (3000, 0));
    // Due messages are finished, so there is room for the rest.
    let c = due(&mut n);
    assert_eq!(consume(&mut n, c, |_| false), (3000, 0));
    let found = stats(&n, "ch");
    assert_eq!((found.depth, found.full_bytes), (0, None));
    assert!(open_bytes(&n) < 10_000, "{}", open_bytes(&n));
}

#[test]
fn a_channel_that_holds_goes_on_when_another_one_lets_go() {
    let mut n = Node::with(1, Settings { partitions: 1, channel_memory: 36_000, ..Settings::default() });
    let p = n.connect(0);
    let clients: Vec<ConnId> = (0..4).map(|_| n.connect(0)).collect();
    for (i, c) in clients.iter().enumerate() {
        n.send(*c, format!("SUB t c{i}\nRDY 100\n").as_bytes());
    }
    multi_publish(&mut n, p, "t", 1000);
    let put_off: Vec<usize> = clients.iter().map(|c| consume(&mut n, *c, |_| true).1).collect();
    assert!(put_off.iter().all(|n| (32..700).contains(n)), "{put_off:?}");
    assert!((0..4).all(|i| stats(&n, &format!("c{i}")).full_bytes.is_some()));
    let asked = stats(&n, "c3").deferred_count;
    // An operator deletes the one that has most: nothing happened to the others.
    n.operate(0, "c0", ChannelChange::Delete).expect("it is there");
    let got = n.take(clients[3]).iter().filter(|f| f.contains(' ')).count();
    assert!(got > 0 && stats(&n, "c3").in_flight_count == got as u64 && stats(&n, "c3").deferred_count == asked, "{got}");
}
