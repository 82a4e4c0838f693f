//! Answers to native clients, and their times.

use super::operate::OperationEnd;
use super::*;
use crate::base::LogId;
use crate::codec::native::frame::FRAME_MAX;
use crate::codec::native::{
    Code, Encoder, FEATURES, HEADER_LEN, Header, Hello, IdRange, Payload, Publish, Reply, Request, Retry, SetOffset, Start,
    Subscribe, VERSION,
};

impl Net {
    pub(super) fn connect_native(&mut self, node: usize) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.clients.insert(conn, (node, 0, vec![]));
        self.step(node, 0, Event::OpenedNative { conn, peer: Peer("test:1".into()) });
        let hello = Hello {
            version: VERSION,
            oldest_version: VERSION,
            features: FEATURES,
            client_id: "c",
            hostname: "h",
            user_agent: "",
            core: None,
            max_frame_bytes: 0,
            heartbeat_ms: 0,
            auth_method: "",
            auth: &[],
        };
        self.ask(conn, 1, &Request::Hello(hello), b"");
        let said = self.hear(conn);
        assert!(said.len() == 1 && said[0].starts_with("1 Welcome"), "{said:?}");
        conn
    }

    pub(super) fn ask(&mut self, conn: ConnId, id: u64, request: &Request<'_>, payload: &[u8]) {
        let mut bytes = vec![];
        Encoder::default().request(&mut bytes, id, request, Payload::of(payload));
        bytes.extend_from_slice(payload);
        self.send(conn, &bytes);
    }

    /// Publishes one message, the first is 1, in a batch of an idempotent producer.
    pub(super) fn produce(&mut self, conn: ConnId, id: u64, sequence: u64) {
        self.produce_at_once(conn, &[(id, sequence)]);
    }

    /// Several such batches, each with its request, which come in one piece.
    fn produce_at_once(&mut self, conn: ConnId, batches: &[(u64, u64)]) {
        let mut body = 9u32.to_le_bytes().to_vec();
        body.extend_from_slice(&[0; 8]);
        body.push(b'x');
        let (mut bytes, mut encoder) = (vec![], Encoder::default());
        for (id, sequence) in batches {
            let publish = Publish { topic: "t", partition: PartitionId(0), num: 1, producer_id: 7, first_sequence: sequence - 1 };
            encoder.request(&mut bytes, *id, &Request::Publish(publish), Payload::of(&body));
            bytes.extend_from_slice(&body);
        }
        self.send(conn, &bytes);
    }

    pub(super) fn subscribe_native(&mut self, conn: ConnId, id: u64, ordered: bool) {
        self.ask_to_subscribe(conn, id, "ch", ordered);
    }

    pub(super) fn ask_to_subscribe(&mut self, conn: ConnId, id: u64, channel: &str, ordered: bool) {
        let (topic, partition, start) = ("t", PartitionId(0), Start::Oldest);
        let subscribe = Subscribe { subscription: 1, topic, partition, channel, start, message_timeout_ms: 0, ordered };
        self.ask(conn, id, &Request::Subscribe(subscribe), b"");
    }

    /// Answers by their request, as they look in Rust.
    pub(super) fn hear(&mut self, conn: ConnId) -> Vec<String> {
        let bytes = std::mem::take(&mut self.clients.get_mut(&conn).expect("known").2);
        let (mut said, mut rest) = (vec![], &bytes[..]);
        while let Some((header, metadata)) = Header::parse(rest, FRAME_MAX).expect("a sound frame") {
            let reply = Reply::decode(header.kind, metadata).expect("a known reply");
            said.push(format!("{} {reply:?}", header.request));
            rest = &rest[header.frame_len()..];
        }
        assert!(HEADER_LEN > 0 && rest.is_empty());
        said
    }
}

/// A repeat waits for what it repeats, also when that is durable on the leader.
#[test]
fn a_repeat_is_answered_when_the_original_is_committed() {
    let mut net = Net::new();
    let (a, b) = (net.connect_native(0), net.connect_native(0));
    net.produce(a, 2, 1);
    assert!(net.hear(a)[0].starts_with("2 Published"));
    net.nodes[1].is_slow = true;
    net.produce(a, 3, 2);
    net.produce(b, 4, 2);
    net.produce(b, 5, 1);
    assert_eq!(net.durable(0), 2);
    assert!(net.hear(a).is_empty());
    let said = net.hear(b);
    assert!(said.len() == 1 && said[0].starts_with("5 Published") && said[0].contains("duplicate: true"), "{said:?}");
    net.nodes[1].is_slow = false;
    net.run();
    assert!(net.hear(a)[0].starts_with("3 Published"));
    let said = net.hear(b);
    assert!(said[0].starts_with("4 Published") && said[0].contains("duplicate: true"), "{said:?}");
    assert!((0..3).all(|i| net.durable(i) == 2));
    // The next leader knows the producer.
    net.elect(0, 1);
    let c = net.connect_native(1);
    net.produce(c, 6, 2);
    net.produce(c, 7, 3);
    let said = net.hear(c);
    assert!(said[0].contains("duplicate: true") && said[1].contains("duplicate: false"), "{said:?}");
}

/// Retention has removed all that a producer wrote when another replica begins its log, behind that: it is told of the producer.
#[test]
fn a_replica_that_begins_behind_a_producer_s_batches_knows_it() {
    let mut net = Net::with(1, 1, Settings { max_bytes_per_file: 64 * 1024, flush_bytes: 8192, ..Settings::default() });
    net.kill(2);
    net.change(0, |m| m.isr.retain(|n| *n != id_of_node(2)));
    let n = net.connect_native(0);
    net.produce(n, 2, 1);
    net.produce(n, 3, 2);
    assert_eq!(net.hear(n).len(), 2);
    let p = net.connect(0);
    let (c, got) = net.subscribe(0, "ch", 100);
    net.finish(c, &got);
    (0..40).for_each(|_| net.publish(p, &"x".repeat(4000)));
    let got = net.take(c);
    net.finish(c, &got);
    net.pass_time(Duration::from_secs(1));
    let start = |net: &Net, node: usize| net.nodes[node].shards[0].engine.core.store.start(net.index(node)).offset;
    assert!(start(&net, 0) > 0, "the segment with them is gone");
    net.restart(2);
    net.pass_time(RECONNECT);
    assert_eq!((start(&net, 2), net.metadata[0].isr.len()), (start(&net, 0), 3));
    net.elect(0, 2);
    let n = net.connect_native(2);
    net.produce(n, 4, 2);
    let said = net.hear(n);
    assert!(said[0].starts_with("4 Published") && said[0].contains("duplicate: true"), "{said:?}");
    // And after a startup, when nobody tells it.
    net.kill(2);
    net.restart(2);
    net.pass_time(RECONNECT);
    assert_eq!(net.state(2), State::Open);
    let n = net.connect_native(2);
    net.produce(n, 5, 1);
    net.produce(n, 6, 2);
    net.produce(n, 7, 3);
    let said = net.hear(n);
    let duplicates = [true, true, false];
    assert!(said.iter().zip(duplicates).all(|(s, d)| s.contains(&format!("duplicate: {d}"))) && said.len() == 3, "{said:?}");
}

/// Two batches of one journal write are answered together. The first is committed by itself: a repetition of it is not answered before
/// that.
#[test]
fn a_repeat_is_answered_behind_its_original_that_is_committed_and_waits() {
    // one batch at a time goes to each follower
    let mut net = Net::with(1, 1, Settings { replica_window_bytes: 1, ..Settings::default() });
    let (a, b) = (net.connect_native(0), net.connect_native(0));
    net.nodes[1].is_slow = true;
    net.produce_at_once(a, &[(2, 1), (3, 2)]);
    assert_eq!((net.durable(0), net.durable(1), net.durable(2)), (2, 0, 2));
    // the write of the first batch alone
    net.nodes[1].is_slow = false;
    net.turn_disk(1);
    net.nodes[1].is_slow = true;
    net.run();
    assert_eq!((net.durable(1), net.partition(0, 0).committed().count), (1, 1));
    assert!(net.hear(a).is_empty(), "what the write held behind it is not committed");
    net.produce(b, 4, 1);
    assert!(net.hear(b).is_empty(), "its original was not answered");
    net.nodes[1].is_slow = false;
    net.run();
    let said = net.hear(a);
    assert!(said.len() == 2 && said[0].starts_with("2 Published") && said[1].starts_with("3 Published"), "{said:?}");
    let said = net.hear(b);
    assert!(said.len() == 1 && said[0].starts_with("4 Published") && said[0].contains("duplicate: true"), "{said:?}");
}

/// A batch that went to the followers before this node's journal took it.
#[test]
fn what_followers_may_have_is_unknown_when_the_journal_fails() {
    let mut net = Net::new();
    let p = net.connect_native(0);
    net.nodes[0].is_slow = true;
    net.produce(p, 2, 1);
    net.produce(p, 3, 2);
    assert_eq!((net.durable(0), net.durable(1)), (0, 2));
    net.nodes[0].disk.faults.write_error = 1.0;
    net.nodes[0].is_slow = false;
    net.run();
    let said = net.hear(p);
    let is_unknown = |s: &String| s.contains(&format!("{:?}", Retry::Unknown));
    assert!(said.len() == 2 && said.iter().all(is_unknown), "{said:?}");
    net.elect(0, 1);
    let (_, got) = net.subscribe(1, "ch", 5);
    assert_eq!(got.len(), 2);
}

#[test]
fn a_native_client_hears_that_another_node_leads() {
    let mut net = Net::new();
    let (c, f) = (net.connect_native(0), net.connect_native(1));
    net.subscribe_native(c, 2, false);
    assert!(net.hear(c)[0].starts_with("2 Subscribed"));
    net.produce(f, 2, 1);
    net.subscribe_native(f, 3, false);
    let said = net.hear(f);
    let is_refused = |s: &String| s.contains(&format!("{:?}", Code::NotLeader)) && s.contains(&format!("{:?}", Retry::Refresh));
    assert!(said.len() == 2 && said.iter().all(is_refused), "{said:?}");
    net.elect(0, 1);
    let said = net.hear(c);
    assert_eq!(said, [r#"0 Unsubscribed { subscription: 1, reason: "this node does not lead the partition any more" }"#]);
    net.produce(c, 4, 1);
    assert!(net.hear(c).iter().all(is_refused));
    net.subscribe_native(f, 5, false);
    assert!(net.hear(f)[0].contains("subscription: 1, created: false"), "and the connection goes on");
}

/// The next message goes out when every replica has the FIN.
#[test]
fn a_fin_of_an_ordered_channel_is_on_all_replicas_first() {
    let mut net = Net::new();
    let p = net.connect_native(0);
    (1..4).for_each(|i| net.produce(p, i + 1, i));
    net.subscribe_native(p, 9, true);
    net.ask(p, 0, &Request::Credit { subscription: 1, messages: 9, bytes: 1 << 20 }, b"");
    let count = |said: &[String]| said.iter().filter(|s| s.starts_with("0 Messages")).count();
    assert_eq!(count(&net.hear(p)), 1, "one at a time");
    net.nodes[2].is_slow = true;
    let one = |id| vec![IdRange { first: LogId(id), last: LogId(id) }];
    net.ask(p, 10, &Request::Finish { subscription: 1, ranges: one(1) }, b"");
    assert!(net.hear(p).is_empty());
    net.nodes[2].is_slow = false;
    net.run();
    let said = net.hear(p);
    assert!(count(&said) == 1 && said.iter().any(|s| s.starts_with("10 Done { num: 1 }")), "{said:?}");
    assert!((0..3).all(|i| net.cursors(i)["ch"] == 2));
    // An unconfirmed FIN is taken back: the same message comes again.
    net.is_store_there = false;
    net.isolate(2, true);
    net.ask(p, 11, &Request::Finish { subscription: 1, ranges: one(2) }, b"");
    net.pass_time(Duration::from_secs(6));
    let said = net.hear(p);
    assert!(said.iter().any(|s| s.starts_with("11 Done { num: 0 }")), "{said:?}");
    assert!(said.iter().any(|s| s.contains("log_id: LogId(2)")), "{said:?}");
    net.isolate(2, false);
    net.pass_time(RECONNECT);
    assert!((0..3).all(|i| net.cursors(i)["ch"] == 2), "{:?}", (0..3).map(|i| net.cursors(i)).collect::<Vec<_>>());
}

#[test]
fn an_offset_that_is_set_stands_on_all_replicas() {
    let mut net = Net::new();
    let p = net.connect_native(0);
    (1..6).for_each(|i| net.produce(p, i + 1, i));
    net.subscribe_native(p, 9, false);
    net.ask(p, 0, &Request::Credit { subscription: 1, messages: 9, bytes: 1 << 20 }, b"");
    let all = vec![IdRange { first: LogId(1), last: LogId(5) }];
    net.ask(p, 10, &Request::Finish { subscription: 1, ranges: all }, b"");
    net.pass_time(Duration::from_millis(400));
    assert!((0..3).all(|i| net.cursors(i)["ch"] == 6));
    let back = SetOffset { topic: "t", partition: PartitionId(0), channel: "ch", start: Start::LogId(LogId(2)), force: false };
    net.nodes[1].is_slow = true;
    net.hear(p);
    net.ask(p, 11, &Request::SetOffset(back), b"");
    assert!(net.hear(p).is_empty());
    net.nodes[1].is_slow = false;
    net.run();
    assert!(net.hear(p).iter().any(|s| s.starts_with("11 Found")));
    assert!((0..3).all(|i| net.cursors(i)["ch"] == 2));
    net.elect(0, 2);
    let (_, got) = net.subscribe(2, "ch", 9);
    assert_eq!(got.len(), 4, "it goes on there");
}

/// The move is in this node's journal and on one follower when another node comes to lead, or when it is given up.
#[test]
fn of_a_set_that_was_issued_nobody_says_that_it_was_not_done() {
    for ends in [OperationEnd::LeaderGoes, OperationEnd::NotConfirmed, OperationEnd::JournalFails] {
        let mut net = Net::new();
        let p = net.connect_native(0);
        (1..4).for_each(|i| net.produce(p, i + 1, i));
        net.subscribe_native(p, 9, false);
        net.hear(p);
        let set = SetOffset { topic: "t", partition: PartitionId(0), channel: "ch", start: Start::Newest, force: false };
        net.nodes[2].is_slow = true;
        net.nodes[0].is_slow = ends == OperationEnd::JournalFails;
        net.ask(p, 11, &Request::SetOffset(set), b"");
        assert!(net.hear(p).is_empty());
        assert_eq!(net.cursors(1)["ch"], if ends == OperationEnd::JournalFails { 1 } else { 4 }, "{ends:?}");
        net.end_of_change(ends);
        let said = net.hear(p);
        let is_unknown = |s: &&String| s.starts_with("11 ") && s.contains(&format!("{:?}", Retry::Unknown));
        assert_eq!(said.iter().filter(is_unknown).count(), 1, "{ends:?}: {said:?}");
    }
}

/// Each node answers with the place of each partition.
#[test]
fn a_native_client_is_told_where_partitions_live() {
    let mut net = Net::with(2, 4, Settings::default());
    net.change(1, |m| (m.leader, m.epoch) = (Some(id_of_node(1)), Epoch(2)));
    net.change(2, |m| (m.leader, m.epoch) = (Some(id_of_node(2)), Epoch(2)));
    net.change(3, |m| (m.leader, m.epoch) = (None, Epoch(2)));
    net.pass_time(Duration::from_millis(100));
    let cores: Vec<u16> = (0..4).map(|p| net.topic.core_of(PartitionId(p), 2).0).collect();
    for (node, leaders) in [(0, ["", "b:1", "c:1", ""]), (1, ["a:1", "", "c:1", ""]), (2, ["a:1", "b:1", "", ""])] {
        let c = net.connect_native(node);
        net.ask(c, 2, &Request::GetTopics { topics: vec!["t"], after: "" }, b"");
        let bytes = std::mem::take(&mut net.clients.get_mut(&c).expect("known").2);
        let (header, metadata) = Header::parse(&bytes, FRAME_MAX).expect("a sound frame").expect("an answer");
        let Ok(Reply::Topics(topics)) = Reply::decode(header.kind, metadata) else { panic!("not topics") };
        let places = &topics.topics[0].partitions;
        let found: Vec<&str> = places.iter().map(|p| topics.nodes[p.node as usize].address).collect();
        assert_eq!((&found[..], topics.nodes.len()), (&leaders[..], 3));
        assert_eq!(places.iter().map(|p| p.core).collect::<Vec<_>>(), cores);
    }
}
