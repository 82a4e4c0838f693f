//! Changes of channels by an operator, over all cores of a node.

use super::*;
use crate::base::{ChannelName, PartitionId, TopicRef};
use crate::{
    codec::native::Start,
    seam::{
        message::{ChangeChannel, ChannelChange, SetOffset, Ticket},
        outcome::{PublishError, SetOffsetError},
    },
};

const CREATE: ChannelChange = ChannelChange::Create { first: None, is_alone: false };
/// Pauses a topic, with the name `#paused`; to delete that one ends the pause.
const PAUSE: ChannelChange = ChannelChange::Create { first: Some(false), is_alone: true };

impl Node {
    fn topic_t(&self) -> TopicRef {
        self.known("t")
    }

    fn known(&self, topic: &str) -> TopicRef {
        self.shards[0].engine.core.topics.known(topic).expect("it is known everywhere").clone()
    }

    fn ask(&mut self, partition: u16, channel: &str, change: ChannelChange) {
        self.ask_of(self.topic_t(), partition, channel, change);
    }

    /// Gives it to the core, which does no more than that.
    fn ask_of(&mut self, topic: TopicRef, partition: u16, channel: &str, change: ChannelChange) {
        let core = topic.core_of(PartitionId(partition), self.shards.len() as u16).0 as usize;
        let channel = ChannelName::of_cursor(channel).expect("valid");
        let set = Box::new(ChangeChannel { topic, partition: PartitionId(partition), channel, change });
        self.step(core, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::ChangeChannel { ticket: Ticket(7), set } });
    }

    pub fn operate(&mut self, partition: u16, channel: &str, change: ChannelChange) -> Result<bool, SetOffsetError> {
        self.ask(partition, channel, change);
        self.run();
        match self.http.pop() {
            Some(MeshMessage::ChannelChanged { ticket: Ticket(7), result }) => result,
            other => panic!("no answer but {other:?}"),
        }
    }

    fn empty(&mut self, partition: u16, channel: &str) {
        let topic = self.topic_t();
        let core = topic.core_of(PartitionId(partition), self.shards.len() as u16).0 as usize;
        let channel = ChannelName::new(channel).expect("valid");
        let set =
            Box::new(SetOffset { topic, partition: PartitionId(partition), channel, to: Start::Newest, from: None, force: true });
        self.step(core, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::SetOffset { ticket: Ticket(8), set } });
        self.run();
        assert!(matches!(self.http.pop(), Some(MeshMessage::OffsetSet { result: Ok(_), .. })));
    }

    fn is_paused(&self, channel: &str) -> Vec<bool> {
        let stats = self.shards.iter().flat_map(|s| s.stats(Ticks(0), None, None, false).partitions);
        stats.flat_map(|p| p.channels).filter(|c| c.channel == channel).map(|c| c.paused).collect()
    }

    fn channels(&self, partition: u16) -> Vec<String> {
        let engines = self.shards.iter().map(|s| &s.engine);
        let partitions = engines.flat_map(|e| e.core.partitions.iter().map(|(_, p)| p));
        let one = partitions.filter(|p| p.dir.partition == PartitionId(partition));
        one.flat_map(|p| p.channels.iter().map(|(_, c)| c.name.to_string())).collect()
    }

    fn publish_all(&mut self, partition: u16, bodies: &[&str]) {
        let p = self.connect(0);
        let mut bytes = vec![];
        request::multi_publish_to(&mut bytes, "t", Some(PartitionId(partition)), bodies.iter().map(|b| b.as_bytes()));
        self.send(p, &bytes);
        assert_eq!(self.take(p), ["OK"]);
    }

    fn subscribed(&mut self, core: usize, channel: &str, rdy: u32) -> (ConnId, Vec<String>) {
        let c = self.connect(core);
        self.send(c, format!("SUB t {channel} 1\nRDY {rdy}\n").as_bytes());
        let mut got = self.take(c);
        assert_eq!(got.remove(0), "OK");
        (c, got)
    }
}

fn bodies(got: &[String]) -> Vec<&str> {
    got.iter().map(|m| m.rsplit(' ').next().expect("a body")).collect()
}

#[test]
fn a_paused_topic_hands_nothing_on_until_the_pause_ends() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 2);
        n.publish_all(1, &["one"]);
        let (c, got) = n.subscribed(0, "ch", 9);
        assert_eq!(bodies(&got), ["one"], "{cores} cores");
        let first = got[0].clone();
        assert_eq!(n.operate(1, "#paused", PAUSE), Ok(false));
        assert_eq!(n.operate(1, "#paused", PAUSE), Ok(false), "again");
        n.publish_all(1, &["two", "three"]);
        n.publish_all(0, &["of another partition"]);
        assert_eq!(n.take(c), Vec::<String>::new());
        let (d, got) = n.subscribed(0, "later", 9);
        assert!(got.is_empty(), "{got:?}");
        n.send(c, format!("REQ {} 0\n", id_of(&first)).as_bytes());
        assert_eq!(bodies(&n.take(c)), ["one"], "the channel goes on with what it has");
        let stats = n.shards.iter().flat_map(|s| s.stats(Ticks(0), None, None, false).partitions);
        let shown: Vec<_> = stats.filter(|p| p.partition == 1).map(|p| (p.paused, p.depth, p.channels.len())).collect();
        assert_eq!(shown, [(true, 2, 2)], "the mark is no channel");
        assert_eq!(n.operate(1, "#paused", ChannelChange::Delete), Ok(false));
        assert_eq!(bodies(&n.take(c)), ["two", "three"]);
        assert_eq!(bodies(&n.take(d)), ["two", "three"], "it came while they waited");
        assert_eq!(n.operate(1, "#paused", ChannelChange::Delete), Err(SetOffsetError::NoChannel));
    }
}

#[test]
fn a_paused_channel_hands_out_nothing_and_keeps_what_is_in_flight() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 2);
        n.publish_all(1, &["one", "two", "three"]);
        let (c, got) = n.subscribed(0, "ch", 1);
        assert_eq!(bodies(&got), ["one"], "{cores} cores");
        assert_eq!((n.operate(1, "ch", ChannelChange::Pause), n.is_paused("ch")), (Ok(false), vec![true]));
        assert_eq!(n.operate(1, "ch", ChannelChange::Pause), Ok(false), "again");
        n.send(c, format!("TOUCH {0}\nFIN {0}\nRDY 9\n", id_of(&got[0])).as_bytes());
        n.publish_all(1, &["four"]);
        assert_eq!(n.take(c), Vec::<String>::new(), "the FIN holds, and nothing comes");
        assert_eq!((n.operate(1, "ch", ChannelChange::Unpause), n.is_paused("ch")), (Ok(false), vec![false]));
        assert_eq!(bodies(&n.take(c)), ["two", "three", "four"]);
        assert_eq!(n.operate(0, "ch", ChannelChange::Pause), Err(SetOffsetError::NoChannel));
        assert_eq!(n.operate(2, "ch", ChannelChange::Pause), Err(SetOffsetError::NoPartition));
    }
}

/// The first of two messages of an ordered channel is finished, not yet durably.
fn with_a_fin_under_way() -> (Node, ConnId) {
    let mut n = Node::new(1, 2);
    n.publish_all(1, &["one", "two"]);
    let c = n.connect(0);
    n.send(c, b"SUB_ORDERED t ch 1\nRDY 1\n");
    n.clients.get_mut(&c).expect("known").1.clear();
    let mut fin = b"FIN ".to_vec();
    fin.extend(n.message_id("t", 1, 1).binary());
    fin.push(b'\n');
    n.step(0, Event::Bytes { conn: c, bytes: &fin });
    (n, c)
}

/// A FIN of an ordered channel that is not durable yet is settled first.
#[test]
fn a_pause_waits_for_a_fin_and_both_hold() {
    let (mut n, c) = with_a_fin_under_way();
    assert_eq!(n.operate(1, "ch", ChannelChange::Pause), Ok(false));
    assert!(n.take(c).is_empty(), "the next one does not come");
    let confirmed = |n: &Node| {
        let e = &n.shards[0].engine;
        let p = e.core.partitions.iter().find(|(_, p)| p.dir.partition == PartitionId(1)).expect("there").1;
        p.channels.iter().map(|(_, c)| c.machine.confirmed().log_id.0).collect::<Vec<_>>()
    };
    assert_eq!(confirmed(&n), [2]);
    assert_eq!(n.operate(1, "ch", ChannelChange::Unpause), Ok(false));
    assert!(!n.clients[&c].1.is_empty());
}

#[test]
fn an_emptied_channel_has_nothing_left_and_late_fins_fail() {
    let mut n = Node::new(2, 2);
    n.publish_all(1, &["one", "two", "three"]);
    let (c, got) = n.subscribed(0, "ch", 2);
    n.send(c, format!("REQ {} 60000\n", id_of(&got[1])).as_bytes());
    n.take(c);
    n.empty(1, "ch");
    n.send(c, format!("FIN {}\n", id_of(&got[0])).as_bytes());
    assert!(n.take(c).iter().all(|m| m.starts_with("E_FIN_FAILED")));
    n.publish_all(1, &["four"]);
    assert_eq!(bodies(&n.take(c)), ["four"], "and its ready count is whole again");
    let stats = n.shards.iter().flat_map(|s| s.stats(Ticks(0), None, None, false).partitions).flat_map(|p| p.channels);
    let left: Vec<_> = stats.map(|c| (c.depth, c.in_flight_count, c.deferred_count)).collect();
    assert_eq!(left, [(0, 1, 0)]);
}

#[test]
fn a_deleted_channel_is_gone_with_its_clients_and_comes_anew_at_the_end() {
    for (cores, has_other) in [(1, false), (2, true), (3, false)] {
        let mut n = Node::new(cores, 2);
        n.publish_all(1, &["one", "two", "three"]);
        if has_other {
            n.subscribed(0, "other", 0);
        }
        let (c, got) = n.subscribed(cores as usize - 1, "ch", 2);
        n.send(c, format!("FIN {}\n", got.first().map_or(n.id("t", 1, 1), |m| id_of(m).to_owned())).as_bytes());
        assert_eq!(n.operate(1, "ch", ChannelChange::Delete), Ok(false), "{cores} cores");
        assert!(n.closed.contains(&c), "its client is disconnected");
        assert_eq!(n.channels(1), if has_other { vec!["other"] } else { vec![] });
        assert_eq!(n.operate(1, "ch", ChannelChange::Delete), Err(SetOffsetError::NoChannel));
        n.publish_all(1, &["four"]);
        let (c, got) = n.subscribed(0, "ch", 9);
        // Where it was the last one the partition collects for the next from the deletion on.
        assert_eq!(bodies(&got), if has_other { vec![] } else { vec!["four"] }, "nothing of before");
        n.publish_all(1, &["five"]);
        assert_eq!(bodies(&n.take(c)), ["five"]);
        let engines = n.shards.iter().map(|s| &s.engine);
        let p = engines.flat_map(|e| e.core.partitions.iter().map(|(_, p)| p)).find(|p| p.dir.partition == PartitionId(1));
        let generation = p.and_then(|p| p.channels.iter().find(|(_, c)| &*c.name == "ch")).map(|(_, c)| c.machine.generation());
        assert!(generation > Some(0), "whoever knows the old one takes it for newer: {generation:?}");
    }
}

/// Retention waits for the slowest channel, but not for one that is gone.
#[test]
fn retention_no_longer_waits_for_a_deleted_channel() {
    let mut n = Node::new(1, 2);
    let low_water = |n: &Node| {
        let e = &n.shards[0].engine;
        let (idx, p) = e.core.partitions.iter().find(|(_, p)| p.dir.partition == PartitionId(1)).expect("there");
        p.low_water(e.core.store.collect_start(idx)).log_id.0
    };
    n.subscribed(0, "slow", 0);
    let (c, _) = n.subscribed(0, "ch", 9);
    n.publish_all(1, &["one", "two"]);
    for m in n.take(c) {
        n.send(c, format!("FIN {}\n", id_of(&m)).as_bytes());
    }
    assert_eq!(low_water(&n), 1);
    assert_eq!(n.operate(1, "slow", ChannelChange::Delete), Ok(false));
    assert_eq!(low_water(&n), 3);
    assert_eq!(n.operate(1, "ch", ChannelChange::Delete), Ok(false));
    n.publish_all(1, &["three"]);
    assert_eq!(low_water(&n), 3, "from here on the next first channel gets what comes");
}

#[test]
fn a_sub_waits_while_its_channel_is_deleted() {
    for cores in [1, 2] {
        let mut n = Node::new(cores, 2);
        n.publish_all(1, &["one"]);
        n.subscribed(0, "ch", 0);
        n.ask(1, "ch", ChannelChange::Delete);
        let core = n.topic_t().core_of(PartitionId(1), cores).0 as usize;
        let c = n.connect_quietly(core);
        n.step(core, Event::Bytes { conn: c, bytes: b"  V2SUB t ch 1\nRDY 9\n" });
        assert!(n.http.is_empty() && n.clients[&c].1.is_empty(), "the record is not durable");
        assert_eq!(n.channels(1), ["ch"], "it keeps its place");
        n.run();
        assert!(matches!(n.http.pop(), Some(MeshMessage::ChannelChanged { result: Ok(false), .. })));
        assert_eq!((n.take(c), n.channels(1)), (vec!["OK".to_owned()], vec!["ch".to_owned()]));
        n.publish_all(1, &["two"]);
        assert_eq!(bodies(&n.take(c)), ["two"]);
    }
}

#[test]
fn a_creation_waits_while_its_channel_is_deleted() {
    let mut n = Node::new(1, 2);
    n.publish_all(1, &["one"]);
    n.subscribed(0, "ch", 0);
    n.ask(1, "ch", ChannelChange::Delete);
    n.ask(1, "ch", ChannelChange::Create { first: Some(true), is_alone: false });
    n.run();
    let answers = n.http.drain(..).map(|m| matches!(m, MeshMessage::ChannelChanged { result: Ok(_), .. }));
    assert_eq!((answers.collect::<Vec<_>>(), n.channels(1)), (vec![true, true], vec!["ch".to_owned()]));
}

/// The FIN is settled first: the channel asserts that nothing of it is open when it goes.
#[test]
fn a_deletion_waits_for_a_fin() {
    let (mut n, c) = with_a_fin_under_way();
    assert_eq!(n.operate(1, "ch", ChannelChange::Delete), Ok(false));
    assert!(n.channels(1).is_empty() && n.closed.contains(&c));
    assert!(n.take(c).iter().all(|m| !m.starts_with("E_FIN_FAILED")));
}

#[test]
fn what_does_not_become_durable_is_taken_back() {
    let mut n = Node::new(1, 2);
    n.publish_all(1, &["one"]);
    let (_, got) = n.subscribed(0, "ch", 0);
    assert!(got.is_empty());
    n.subscribed(0, "other", 0);
    n.ask(1, "ch", ChannelChange::Delete);
    n.ask(1, "other", ChannelChange::Pause);
    n.end_turn(0);
    while let Some((core, op, request)) = n.pending.pop_front() {
        let file = request.file().cloned().expect("of a file");
        let outcome = if matches!(file, FileId::Journal(_)) {
            Err(DiskError::Io { file, call: "write", errno: 5, message: "broken".into() })
        } else {
            n.disk_op(request)
        };
        n.step(core, Event::Disk { op, outcome });
        n.end_turn(core);
    }
    n.run();
    let is_unknown =
        |m| matches!(m, MeshMessage::ChannelChanged { result: Err(SetOffsetError::Failed(PublishError::Unknown)), .. });
    assert_eq!(n.http.drain(..).map(is_unknown).collect::<Vec<_>>(), [true, true], "a startup may find it done");
    assert_eq!((n.channels(1).len(), n.is_paused("other"), n.is_paused("ch")), (2, vec![false], vec![false]));
    // The deletion may be durable or not, so a startup may find the channel gone: no client is told that it is there.
    let c = n.connect(0);
    n.send(c, b"SUB t ch 1\nRDY 9\n");
    assert!(n.take(c)[0].starts_with("E_SUB_FAILED"));
    let (_, got) = n.subscribed(0, "other", 9);
    assert_eq!(bodies(&got), [""; 0], "a later channel, and it goes on");
    assert!(matches!(n.operate(1, "ch", ChannelChange::Delete), Err(SetOffsetError::Failed(PublishError::ReadOnly))));
}

#[test]
fn a_channel_is_created_without_a_client() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 2);
        n.publish_all(1, &["one"]);
        assert_eq!(n.operate(0, "a", CREATE), Ok(true), "{cores} cores");
        assert_eq!((n.channels(0), n.channels(1)), (vec!["a".to_owned()], vec!["a".to_owned()]), "the first one is everywhere");
        assert_eq!(n.operate(1, "a", ChannelChange::Create { first: Some(true), is_alone: false }), Ok(true));
        assert_eq!(n.operate(0, "b", CREATE), Ok(false));
        assert_eq!(n.operate(1, "b", ChannelChange::Create { first: Some(false), is_alone: false }), Ok(false));
        assert_eq!(bodies(&n.subscribed(0, "a", 9).1), ["one"]);
        assert_eq!(bodies(&n.subscribed(0, "b", 9).1), Vec::<&str>::new(), "a later one begins at the end");
    }
}

#[test]
fn an_ephemeral_channel_is_paused_and_deleted_without_the_journal() {
    let mut n = Node::new(1, 2);
    n.publish_all(1, &["one"]);
    let (c, _) = n.subscribed(0, "ch#ephemeral", 0);
    n.ask(1, "ch#ephemeral", ChannelChange::Pause);
    n.end_turn(0);
    assert!(matches!(n.http.pop(), Some(MeshMessage::ChannelChanged { result: Ok(false), .. })), "nothing has to be durable");
    assert_eq!(n.is_paused("ch#ephemeral"), [true]);
    assert_eq!(n.operate(1, "ch#ephemeral", ChannelChange::Delete), Ok(false));
    assert!(n.closed.contains(&c) && n.channels(1).is_empty());
}

/// A far-off retry whose copy is not durable yet when the channel is emptied or deleted.
#[test]
fn what_is_being_copied_goes_with_what_the_channel_had() {
    for is_deleted in [false, true] {
        let mut n = Node::new(1, 2);
        n.publish_all(1, &["old"]);
        let (c, got) = n.subscribed(0, "ch", 1);
        n.step(0, Event::Bytes { conn: c, bytes: format!("REQ {} 3600000\n", id_of(&got[0])).as_bytes() });
        n.end_turn(0);
        match is_deleted {
            true => assert_eq!(n.operate(1, "ch", ChannelChange::Delete), Ok(false)),
            false => n.empty(1, "ch"),
        }
        n.pass_time(Duration::from_secs(3601));
        let (_, got) = n.subscribed(0, "ch", 9);
        assert_eq!(bodies(&got), Vec::<&str>::new(), "deleted: {is_deleted}");
    }
}

/// The client is still there when its channel goes, and keeps the topic until its connection ends.
#[test]
fn an_ephemeral_topic_goes_when_its_last_channel_is_deleted_under_a_client() {
    for (cores, partitions) in [(1, 1), (2, 1), (2, 3)] {
        for channel in ["c#ephemeral", "c"] {
            for core in 0..cores {
                let mut n = Node::new(cores, partitions);
                let c = n.connect(core as usize);
                n.send(c, format!("SUB e#ephemeral {channel}\nRDY 5\n").as_bytes());
                assert_eq!(n.take(c), ["OK"]);
                let topic = n.known("e#ephemeral");
                for partition in 0..partitions {
                    n.ask_of(topic.clone(), partition, channel, ChannelChange::Delete);
                    n.run();
                }
                n.pass_time(Duration::from_secs(1));
                assert!(n.closed.contains(&c), "its connection ends, as nsqd's do");
                let known = n.shards.iter().filter(|s| s.engine.core.topics.known("e#ephemeral").is_some()).count();
                assert_eq!(known, 0, "{cores} cores, {partitions} partitions, {channel}, client of core {core}");
            }
        }
    }
}

/// A file that failed keeps the journal full, and nothing frees it before a restart: each change is made or refused.
#[test]
fn changes_are_refused_while_a_failed_file_keeps_the_journal_full() {
    let mut n = Node::with(1, Settings { partitions: 1, journal_bytes: 512 << 10, ..Settings::default() });
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish(p, "t", "x");
    n.send(c, b"SUB t ch\n");
    n.failing = "broken";
    let body = "x".repeat(4000);
    let is_well = |n: &Node| n.shards[0].stats(Ticks(0), None, None, false).healthy;
    for _ in 0..1000 {
        if is_well(&n) {
            n.publish(p, "broken", &body);
        }
    }
    assert!(!is_well(&n));
    let changes = [ChannelChange::Pause, ChannelChange::Unpause];
    let made = (0..1000).map_while(|i| n.operate(0, "ch", changes[i % 2]).ok()).count();
    assert!((1..1000).contains(&made), "the journal keeps something for changes: {made}");
    assert_eq!(n.operate(0, "ch", ChannelChange::Pause), Err(SetOffsetError::Failed(PublishError::ReadOnly)));
    assert_eq!(n.operate(0, "ch", ChannelChange::Delete), Err(SetOffsetError::Failed(PublishError::ReadOnly)));
    n.ask_delete("t");
    n.run();
    assert_eq!(n.deleted(), Err(PublishError::ReadOnly));
}
