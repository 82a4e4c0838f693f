//! Data that a node keeps for ephemeral channels and topics.

use super::*;
use crate::metrics::stats::{ChannelStats, PartitionStats};
use crate::seam::message::ChannelChange;

impl Node {
    fn keeping(messages: u64) -> Node {
        Node::with(1, Settings { mem_queue_size: messages, ..Settings::default() })
    }

    fn only_partition(&self) -> PartitionStats {
        self.shards[0].stats(Ticks(0), None, None, false).partitions.remove(0)
    }

    fn only_channel(&self) -> ChannelStats {
        self.only_partition().channels.remove(0)
    }

    /// Messages before the place from which on the log of the only partition is needed.
    fn unneeded(&self) -> i64 {
        let e = &self.shards[0].engine;
        let (idx, p) = e.core.partitions.iter().next().expect("one");
        assert!(!p.low_water_stale, "the store knows it");
        p.low_water(e.core.store.collect_start(idx)).count
    }

    fn publish_many(&mut self, topic: &str, bodies: std::ops::Range<u32>) {
        let p = self.connect(0);
        bodies.for_each(|body| self.publish(p, topic, &body.to_string()));
        assert!(self.take(p).iter().all(|answer| answer == "OK"));
    }

    fn bodies(&mut self, conn: ConnId) -> Vec<String> {
        self.take(conn).iter().filter_map(|m| Some(m.rsplit_once(' ')?.1.to_owned())).collect()
    }
}

#[test]
fn a_stuck_client_of_an_ephemeral_channel_keeps_little_of_the_log() {
    let mut n = Node::keeping(10);
    let stuck = n.connect(0);
    n.send(stuck, b"SUB t tail#ephemeral\nRDY 1\n");
    n.publish_many("t", 0..100);
    let channel = n.only_channel();
    assert_eq!((channel.depth, channel.in_flight_count, channel.dropped_count), (10, 1, 89));
    assert_eq!(n.unneeded(), 90, "not even what it has in flight");
    assert_eq!(n.bodies(stuck), ["0"]);
    let id = n.id("t", 0, 1);
    n.send(stuck, format!("FIN {id}\nRDY 3\n").as_bytes());
    assert_eq!(n.bodies(stuck), ["90", "91", "92"]);
}

#[test]
fn an_ephemeral_channel_without_a_client_is_bounded_and_a_durable_one_is_not() {
    let mut n = Node::keeping(10);
    n.publish_many("t", 0..1);
    for channel in ["c#ephemeral", "d"] {
        assert!(n.operate(0, channel, ChannelChange::Create { first: None, is_alone: false }).is_ok());
    }
    n.publish_many("t", 1..50);
    let partition = n.only_partition();
    let depths = |name: &str| partition.channels.iter().find(|c| c.channel == name).map(|c| c.depth);
    assert_eq!((depths("c#ephemeral"), depths("d")), (Some(10), Some(49)));
    assert_eq!(n.unneeded(), 1);
    assert!(n.operate(0, "d", ChannelChange::Delete).is_ok());
    n.publish_many("t", 50..52);
    assert_eq!(n.unneeded(), 42);
}

#[test]
fn an_ephemeral_topic_keeps_as_much_for_its_first_channel() {
    let mut n = Node::keeping(10);
    n.publish_many("t#ephemeral", 0..60);
    assert_eq!((n.only_partition().depth, n.unneeded()), (10, 50));
    let c = n.connect(0);
    n.send(c, b"SUB t#ephemeral c#ephemeral\nRDY 99\n");
    assert_eq!(n.bodies(c), (50..60).map(|i| i.to_string()).collect::<Vec<_>>());
}
