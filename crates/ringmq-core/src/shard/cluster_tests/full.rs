//! A follower on a full disk: its journal takes the leader's channels only while it has room.

use super::*;

const MESSAGES: usize = 1300;
const CHANNELS: usize = 8;

impl Net {
    fn store(&self, node: usize) -> &crate::log::Store {
        &self.nodes[node].shards[0].engine.core.store
    }

    fn is_in_sync(&self, node: usize) -> bool {
        self.metadata[0].is_in_sync(id_of_node(node))
    }

    fn intervals(&self, node: usize) -> Vec<Vec<crate::format::cursor::Interval>> {
        self.partition(node, 0).channels.iter().map(|(_, c)| c.machine.image().intervals).collect()
    }
}

#[test]
fn a_follower_without_room_for_channels_leaves_the_isr_until_there_is_some() {
    let mut net = Net::with(1, 1, Settings { msg_timeout_ms: 600_000, ..Settings::default() });
    let clients: Vec<_> = (0..CHANNELS).map(|i| net.subscribe(0, &format!("ch{i}"), MESSAGES as u32).0).collect();
    let p = net.connect(0);
    let mut bytes = vec![];
    request::multi_publish(&mut bytes, "t", (0..MESSAGES).map(|_| b"x".as_slice()));
    net.send(p, &bytes);
    let got: Vec<Vec<String>> = clients.iter().map(|c| net.take(*c)).collect();
    assert!(got.iter().all(|got| got.len() == MESSAGES));
    net.nodes[2].disk.faults.no_space = 1.0;
    let mut most = 0;
    // Each FIN leaves a gap before it: each image of the channel is longer than the one before.
    for number in (1..MESSAGES).step_by(2) {
        clients.iter().zip(&got).for_each(|(c, got)| net.finish(*c, &got[number..=number]));
        net.pass_time(Duration::from_millis(100));
        most = most.max(net.store(2).queued_bytes());
    }
    assert!(!net.store(2).is_read_only() && most < JOURNAL / 8, "{most} bytes of facts waited");
    assert!(!net.store(2).takes_facts() && !net.is_in_sync(2) && net.is_in_sync(1));
    assert_ne!(net.intervals(2), net.intervals(0));
    assert_eq!(net.intervals(1), net.intervals(0));
    // Once there is space, it takes what it refused, and then joins.
    net.nodes[2].disk.faults.no_space = 0.0;
    net.pass_time(Duration::from_secs(10));
    assert!(net.is_in_sync(2));
    assert_eq!(net.intervals(2), net.intervals(0));
}
