//! Retries that are far off: a copy in the log stands for the message, which pins nothing any more.

use super::*;

const LONG_MS: u64 = 3_600_000;

/// Log id of the first message that the channel has not confirmed.
fn confirmed(n: &Node, channel: &str) -> u64 {
    let mut partitions = n.shards.iter().flat_map(|s| s.engine.core.partitions.iter().map(|(_, p)| p));
    let (_, c) = partitions.find_map(|p| p.channels.iter().find(|(_, c)| &*c.name == channel)).expect("the channel is there");
    c.machine.confirmed().log_id.0
}

#[test]
fn a_far_off_retry_pins_nothing_and_comes_under_its_first_id_when_it_is_due() {
    for cores in [1, 2] {
        let mut n = Node::new(cores, 1);
        let (p, c, other) = (n.connect(0), n.connect(cores as usize - 1), n.connect(0));
        n.send(c, b"SUB t ch\nRDY 2\n");
        n.send(other, b"SUB t other\nRDY 1\n");
        n.publish(p, "t", "x");
        let id = n.id("t", 0, 1);
        let of = |n: &mut Node, conn| n.take(conn).into_iter().filter(|f| f != "OK" && f != "_heartbeat_").collect::<Vec<_>>();
        assert_eq!((of(&mut n, c), of(&mut n, other)), (vec![format!("{id} 1 x")], vec![format!("{id} 1 x")]));
        n.send(other, format!("FIN {id}\n").as_bytes());
        n.send(c, format!("REQ {id} {LONG_MS}\n").as_bytes());
        n.pass_time(Duration::from_millis(1));
        // The copy has log id 2. The channel waits for it; the other one has passed it.
        assert_eq!((confirmed(&n, "ch"), confirmed(&n, "other"), of(&mut n, other)), (2, 3, vec![]));
        n.pass_time(Duration::from_millis(LONG_MS - 2));
        let c = n.connect(cores as usize - 1);
        n.send(c, b"SUB t ch\nRDY 2\n");
        assert_eq!(of(&mut n, c), Vec::<String>::new(), "it is early");
        n.pass_time(Duration::from_millis(100));
        assert_eq!(of(&mut n, c), [format!("{id} 2 x")]);
        // Again, and again as the same message; a TOUCH and a FIN find it by that id.
        n.send(c, format!("TOUCH {id}\nREQ {id} {LONG_MS}\n").as_bytes());
        n.pass_time(Duration::from_millis(1));
        assert_eq!((confirmed(&n, "ch"), of(&mut n, c)), (3, vec![]));
        n.pass_time(Duration::from_millis(LONG_MS + 100));
        let c = n.connect(0);
        n.send(c, b"SUB t ch\nRDY 2\n");
        assert_eq!(of(&mut n, c), [format!("{id} 3 x")]);
        n.send(c, format!("FIN {id}\n").as_bytes());
        assert_eq!((confirmed(&n, "ch"), of(&mut n, c)), (4, vec![]));
    }
}

#[test]
fn a_short_retry_and_one_of_an_ephemeral_channel_stay_in_memory() {
    let mut n = Node::new(1, 1);
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish(p, "t", "x");
    let id = n.id("t", 0, 1);
    n.send(c, b"SUB t ch\nRDY 2\n");
    n.send(c, format!("REQ {id} 59000\n").as_bytes());
    let d = n.connect(0);
    n.send(d, b"SUB t ch2#ephemeral\nRDY 2\n");
    n.publish(p, "t", "y");
    let id = n.id("t", 0, 2);
    n.send(d, format!("REQ {id} {LONG_MS}\n").as_bytes());
    n.pass_time(Duration::from_millis(1));
    let stats = n.shards[0].stats(Ticks(0), None, None, false);
    assert_eq!((confirmed(&n, "ch"), stats.partitions[0].message_count), (1, 2));
}

#[test]
fn a_copy_that_the_disk_does_not_take_is_tried_again_and_the_message_waits_meanwhile() {
    let mut n = Node::with(1, Settings { partitions: 1, max_bytes_per_file: 1 << 20, ..Settings::default() });
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish(p, "t", "x");
    n.send(c, b"SUB t ch\nRDY 1\n");
    let id = n.id("t", 0, 1);
    assert_eq!(n.take(c).last(), Some(&format!("{id} 1 x")));
    // Nothing but the files that there are: they fill up.
    n.is_full = true;
    for len in [200_000, 20_000, 2_000, 200, 20, 1] {
        let p = n.connect(0);
        (0..20).for_each(|_| n.publish(p, "t", &"f".repeat(len)));
    }
    n.send(c, format!("REQ {id} {LONG_MS}\n").as_bytes());
    n.pass_time(Duration::from_secs(3));
    let deferred = |n: &Node| n.shards[0].stats(Ticks(0), None, None, false).partitions[0].channels[0].deferred_count;
    assert_eq!((confirmed(&n, "ch"), deferred(&n)), (1, 1), "it waits in memory");
    n.is_full = false;
    n.pass_time(Duration::from_secs(1));
    n.pass_time(Duration::from_secs(2));
    assert!(confirmed(&n, "ch") > 1, "the copy is made");
}

/// A month of traffic does not stand behind one message that is due in a month.
#[test]
fn a_publish_deferred_for_a_month_keeps_no_segment_of_the_traffic_behind_it() {
    let month_ms: u64 = 30 * 24 * 3_600_000;
    let settings = Settings { partitions: 1, max_bytes_per_file: 64 << 10, delete_bytes_per_second: 0, ..Settings::default() };
    let mut n = Node::with(1, settings);
    let p = n.connect(0);
    let consumers = ["ch", "other"].map(|channel| {
        let c = n.connect(0);
        n.send(c, format!("SUB t {channel}\nRDY 2\n").as_bytes());
        c
    });
    n.send(p, &[format!("DPUB t {month_ms}\n").as_bytes(), &5u32.to_be_bytes(), b"later"].concat());
    let id = n.id("t", 0, 1);
    let messages = |n: &mut Node, c| n.take(c).into_iter().filter(|f| f != "OK" && f != "_heartbeat_").collect::<Vec<_>>();
    for round in 0..60 {
        (0..5).for_each(|_| n.publish(p, "t", &"x".repeat(2_000)));
        for _ in 0..6 {
            for c in consumers {
                for message in messages(&mut n, c) {
                    assert!(message.ends_with('x'), "round {round}: {message} is early");
                    n.send(c, format!("FIN {}\n", id_of(&message)).as_bytes());
                }
            }
        }
        n.pass_time(Duration::from_millis(200));
    }
    n.pass_time(Duration::from_secs(60));
    let engine = &n.shards[0].engine;
    let (idx, partition) = engine.core.partitions.iter().next().expect("one");
    let (start, end) = (engine.core.store.start(idx), partition.committed());
    assert!(end.offset > 600_000 && end.offset - start.offset < 200_000, "{start:?} to {end:?} is kept");
    // Each channel gets it once, in a month, as the message that was published.
    for (channel, _) in ["ch", "other"].into_iter().zip(consumers) {
        assert!(confirmed(&n, channel) > 300);
    }
    n.pass_time(Duration::from_millis(month_ms));
    for channel in ["ch", "other"] {
        let c = n.connect(0);
        n.send(c, format!("SUB t {channel}\nRDY 2\n").as_bytes());
        assert_eq!(messages(&mut n, c), [format!("{id} 1 later")]);
    }
}

/// Emptying a topic removes messages behind the mark of a pause; the channel had the message before.
#[test]
fn a_far_off_retry_is_copied_when_the_topics_pause_ends() {
    let mut n = Node::new(1, 1);
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish(p, "t", "x");
    n.send(c, b"SUB t ch\nRDY 1\n");
    let id = n.id("t", 0, 1);
    let pause = crate::seam::message::ChannelChange::Create { first: Some(false), is_alone: true };
    n.operate(0, "#paused", pause).expect("it is paused");
    n.send(c, format!("REQ {id} {LONG_MS}\n").as_bytes());
    n.pass_time(Duration::from_secs(2));
    assert_eq!(confirmed(&n, "ch"), 1, "it waits in memory");
    n.operate(0, "#paused", crate::seam::message::ChannelChange::Delete).expect("the pause ends");
    n.pass_time(Duration::from_secs(2));
    assert_eq!(confirmed(&n, "ch"), 2);
}

#[test]
fn a_copy_that_is_under_way_when_the_topic_is_paused_stands_before_the_mark() {
    let mut n = Node::new(1, 1);
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish(p, "t", "x");
    n.send(c, b"SUB t ch\nRDY 1\n");
    let id = n.id("t", 0, 1);
    n.step(0, Event::Bytes { conn: c, bytes: format!("REQ {id} {LONG_MS}\n").as_bytes() });
    n.end_turn(0);
    let pause = crate::seam::message::ChannelChange::Create { first: Some(false), is_alone: true };
    n.operate(0, "#paused", pause).expect("it is paused");
    let (_, partition) = n.shards[0].engine.core.partitions.iter().next().expect("one");
    assert_eq!((confirmed(&n, "ch"), partition.flows_to().log_id.0), (2, 3));
}
