//! One node of a few cores in one thread, over a disk without faults: the bytes that clients see.

use super::*;
use crate::base::{DiskDone, DiskError, DiskOp, FileId, LogId, MessageId, MessageIds, MessagePlace, OpId, PartitionId, Peer};
use crate::codec::nsq::frame::Frame;
use crate::codec::nsq::{frame, request};
use crate::seam::{message::MeshMessage, outcome::PublishError};
use crate::sim::memory::{self, MemoryDisk};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

mod catalog;
mod delays;
mod ephemeral;
mod firsts;
mod gaps;
mod ids;
mod operate;
mod ordered;
mod reads;
mod topics;

struct Node {
    shards: Vec<Shard>,
    now: Now,
    disk: MemoryDisk,
    /// Operations that were issued and not answered.
    pending: VecDeque<(usize, OpId, DiskOp)>,
    mesh: VecDeque<(CoreId, CoreId, MeshMessage)>,
    /// Bytes that clients got, by connection.
    clients: HashMap<ConnId, (usize, Vec<u8>)>,
    closed: Vec<ConnId>,
    next_conn: u64,
    stopped: usize,
    /// No partition file can grow.
    is_full: bool,
    /// Topic whose segments cannot be written.
    failing: &'static str,
    /// Requests for snapshots that wait here, since they get no answer.
    held: Option<Vec<(usize, OpId, DiskOp)>>,
    /// Messages about first channels that wait here, so that they do not come to other cores.
    held_creations: Option<Vec<(CoreId, CoreId, MeshMessage)>>,
    /// Answers to the HTTP thread, and what it is told unasked.
    http: Vec<MeshMessage>,
    catalog: Vec<crate::seam::message::CatalogChange>,
}

impl Node {
    fn new(cores: u16, partitions: u16) -> Self {
        Self::with(cores, Settings { partitions, ..Settings::default() })
    }

    fn with(cores: u16, settings: Settings) -> Self {
        let settings = Arc::new(Settings { journal_bytes: settings.journal_bytes.min(4 << 20), ..settings });
        let shard = |core| {
            let mut shard = memory::first_startup(core, cores, &settings, core as u64);
            shard.lending.set_min(256);
            shard
        };
        Node {
            shards: (0..cores).map(shard).collect(),
            now: Now { ticks: Ticks(1), unix_ns: 1_700_000_000_000_000_000 },
            disk: MemoryDisk::default(),
            pending: VecDeque::new(),
            mesh: VecDeque::new(),
            clients: HashMap::new(),
            closed: vec![],
            next_conn: 0,
            stopped: 0,
            is_full: false,
            failing: "",
            held: None,
            held_creations: None,
            http: vec![],
            catalog: vec![],
        }
    }

    fn step(&mut self, core: usize, event: Event<'_>) {
        let mut out = vec![];
        self.shards[core].step(self.now, event, &mut out);
        self.carry(core, out);
    }

    fn carry(&mut self, core: usize, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Send { conn, bytes } => {
                    self.clients.get_mut(&conn).expect("known").1.extend(&bytes);
                    self.step(core, Event::Sent { conn, bytes: bytes.len() });
                }
                Effect::SendPieces { conn, pieces } => {
                    self.clients.get_mut(&conn).expect("known").1.extend(pieces.concat());
                    let bytes = pieces.iter().map(|piece| piece.len()).sum();
                    drop(pieces);
                    self.step(core, Event::Sent { conn, bytes });
                }
                Effect::ReceiveInto { .. } => unreachable!("only links between nodes do"),
                Effect::Close { conn } => {
                    self.closed.push(conn);
                    self.step(core, Event::Closed { conn });
                }
                Effect::Move { conn, to, session, unread } => {
                    let (_, got) = self.clients.remove(&conn).expect("known");
                    self.clients.insert(conn, (to.0 as usize, got));
                    self.step(to.0 as usize, Event::Adopted { conn, session });
                    self.step(to.0 as usize, Event::Bytes { conn, bytes: &unread });
                    self.end_turn(to.0 as usize);
                }
                Effect::Disk { op, request } => self.pending.push_back((core, op, request)),
                Effect::Pass { to, message: message @ MeshMessage::CreateChannel { .. } } if self.held_creations.is_some() => {
                    let held = self.held_creations.as_mut().expect("just looked at");
                    held.push((CoreId(core as u16), to, message));
                }
                Effect::Pass { to: CoreId::HTTP, message: MeshMessage::Catalog { changes } } => self.catalog.extend(changes),
                Effect::Pass { to: CoreId::HTTP, message } => self.http.push(message),
                Effect::Pass { to, message } => self.mesh.push_back((CoreId(core as u16), to, message)),
                Effect::Dial { .. } | Effect::Ask(_) => unreachable!("these nodes are alone"),
                Effect::Halt { reason } => panic!("halted: {reason}"),
                Effect::Stopped => self.stopped += 1,
                Effect::PauseReading { .. } | Effect::ResumeReading { .. } => {}
            }
        }
    }

    fn end_turn(&mut self, core: usize) {
        self.step(core, Event::TurnEnd);
    }

    fn disk_op(&mut self, op: DiskOp) -> Result<DiskDone, DiskError> {
        match op {
            DiskOp::Allocate { file, .. } if self.is_full && !matches!(file, FileId::Topic(..)) => {
                Err(DiskError::NoSpace { file })
            }
            DiskOp::Write { file: FileId::Segment(dir, base), .. } if *dir.topic == *self.failing => {
                let file = FileId::Segment(dir, base);
                Err(DiskError::Io { file, call: "write", errno: 5, message: "Input/output error".into() })
            }
            op => Ok(self.disk.perform(op)),
        }
    }

    /// Runs until nothing is left to do without time passing.
    fn run(&mut self) {
        for _ in 0..10_000 {
            for core in 0..self.shards.len() {
                self.end_turn(core);
                if self.shards[core].deadline().is_some_and(|at| at <= self.now.ticks) {
                    self.step(core, Event::Tick);
                    self.end_turn(core);
                }
            }
            if let Some((from, to, message)) = self.mesh.pop_front() {
                self.step(to.0 as usize, Event::Mesh { from, message });
            } else if let Some((core, op, request)) = self.pending.pop_front() {
                if let (Some(held), Some(FileId::Snapshot(..))) = (&mut self.held, request.file()) {
                    held.push((core, op, request));
                    continue;
                }
                let outcome = self.disk_op(request);
                self.step(core, Event::Disk { op, outcome });
            } else {
                return;
            }
        }
        panic!("the node never comes to rest");
    }

    fn pass_time(&mut self, d: Duration) {
        self.now.ticks = self.now.ticks + d;
        self.now.unix_ns += d.as_nanos() as i64;
        for core in 0..self.shards.len() {
            self.step(core, Event::Tick);
        }
        self.run();
    }

    fn connect(&mut self, core: usize) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.clients.insert(conn, (core, vec![]));
        self.step(core, Event::Opened { conn, peer: Peer("test:1".into()) });
        self.send(conn, b"  V2");
        conn
    }

    /// Connects a client that says nothing; nothing else happens meanwhile.
    fn connect_quietly(&mut self, core: usize) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.clients.insert(conn, (core, vec![]));
        self.step(core, Event::Opened { conn, peer: Peer("test:1".into()) });
        conn
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        let core = self.clients[&conn].0;
        self.step(core, Event::Bytes { conn, bytes });
        self.run();
    }

    /// Whole frames that arrived, as text: responses, errors, and messages as `id attempts body`.
    fn take(&mut self, conn: ConnId) -> Vec<String> {
        let bytes = std::mem::take(&mut self.clients.get_mut(&conn).expect("known").1);
        let (frames, used) = frame::decode_all(&bytes).expect("well-formed frames");
        assert_eq!(used, bytes.len());
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let show = |f: Frame<'_>| match f {
            Frame::Response(r) => text(r),
            Frame::Error(e) => text(e),
            Frame::Message(m) => format!("{} {} {}", text(&m.id), m.attempts, text(m.body)),
        };
        frames.into_iter().map(show).collect()
    }

    /// Id of a message, in a topic that some core knows.
    fn message_id(&self, topic: &str, partition: u16, log_id: u64) -> MessageId {
        let mut known = self.shards.iter().flat_map(Shard::topics);
        let topic = known.find(|t| &*t.name == topic).expect("a core knows it");
        MessageIds::of(topic.id).id(MessagePlace::new(PartitionId(partition), LogId(log_id)))
    }

    /// Id of a message in the form that clients see.
    fn id(&self, topic: &str, partition: u16, log_id: u64) -> String {
        String::from_utf8(self.message_id(topic, partition, log_id).hex().to_vec()).expect("hex")
    }

    fn publish(&mut self, conn: ConnId, topic: &str, body: &str) {
        let mut bytes = vec![];
        request::publish(&mut bytes, topic, body.as_bytes());
        self.send(conn, &bytes);
    }
}

fn id_of(message: &str) -> &str {
    message.split(' ').next().expect("a message has an id")
}

#[test]
fn a_message_goes_in_and_comes_out() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 1);
        let (p, c) = (n.connect(0), n.connect(cores as usize - 1));
        n.publish(p, "orders", "one");
        assert_eq!(n.take(p), ["OK"]);
        n.send(c, b"SUB orders billing\nRDY 5\n");
        let got = n.take(c);
        let (first, second) = (n.id("orders", 0, 1), n.id("orders", 0, 2));
        assert_eq!(got, ["OK".to_owned(), format!("{first} 1 one")], "{cores} cores");
        n.publish(p, "orders", "two");
        let got = n.take(c);
        assert_eq!(got, [format!("{second} 1 two")]);
        n.send(c, format!("FIN {first}\nFIN {second}\nFIN {second}\n").as_bytes());
        assert_eq!(n.take(c), [format!("E_FIN_FAILED FIN {second} failed ID not in flight")]);
    }
}

#[test]
fn ready_holds_over_partitions_of_several_cores() {
    let mut n = Node::new(2, 4);
    let (p, c) = (n.connect(0), n.connect(1));
    for i in 0..20 {
        n.publish(p, "t", &i.to_string());
    }
    n.take(p);
    n.send(c, b"SUB t ch\nRDY 3\n");
    let mut seen = std::collections::BTreeSet::new();
    let mut flying: Vec<String> = n.take(c).split_off(1);
    while !flying.is_empty() {
        assert!(flying.len() <= 3, "{flying:?}");
        let message = flying.remove(0);
        seen.insert(message.split(' ').nth(2).unwrap_or_else(|| panic!("{message}")).to_owned());
        n.send(c, format!("FIN {}\n", id_of(&message)).as_bytes());
        flying.extend(n.take(c));
    }
    assert_eq!(seen.len(), 20);
}

#[test]
fn a_message_that_times_out_comes_again() {
    let mut n = Node::new(2, 1);
    let (p, c) = (n.connect(0), n.connect(1));
    n.publish(p, "t", "x");
    n.send(c, b"SUB t ch\nRDY 1\n");
    let id = n.id("t", 0, 1);
    assert_eq!(n.take(c), ["OK".to_owned(), format!("{id} 1 x")]);
    n.pass_time(Duration::from_secs(29));
    n.send(c, b"NOP\n");
    n.pass_time(Duration::from_secs(29));
    assert!(n.take(c).iter().all(|f| f == "_heartbeat_"));
    n.send(c, b"NOP\n");
    n.pass_time(Duration::from_secs(3));
    assert_eq!(n.take(c).last(), Some(&format!("{id} 2 x")));
}

#[test]
fn a_lost_client_gives_its_messages_back() {
    let mut n = Node::new(2, 1);
    let (p, a, b) = (n.connect(0), n.connect(0), n.connect(1));
    n.send(a, b"SUB t ch\nRDY 1\n");
    n.publish(p, "t", "x");
    let id = n.id("t", 0, 1);
    assert_eq!(n.take(a), ["OK".to_owned(), format!("{id} 1 x")]);
    n.send(b, b"SUB t ch\nRDY 1\n");
    assert_eq!(n.take(b), ["OK"]);
    let core = n.clients[&a].0;
    n.step(core, Event::Closed { conn: a });
    n.run();
    assert_eq!(n.take(b), [format!("{id} 2 x")]);
}

#[test]
fn a_stop_answers_flushes_and_says_so() {
    let mut n = Node::new(2, 2);
    let p = n.connect(0);
    n.publish(p, "t", "x");
    assert_eq!(n.take(p), ["OK"]);
    for core in 0..2 {
        n.step(core, Event::Stop);
    }
    n.run();
    assert_eq!((n.stopped, n.closed.len()), (2, 1));
}

#[test]
fn later_channels_start_at_the_end() {
    let mut n = Node::new(1, 1);
    let (p, a, b) = (n.connect(0), n.connect(0), n.connect(0));
    n.publish(p, "t", "old");
    n.send(a, b"SUB t first\nRDY 9\n");
    n.send(b, b"SUB t second\nRDY 9\n");
    n.publish(p, "t", "new");
    assert_eq!((n.take(a).len(), n.take(b)), (3, vec!["OK".to_owned(), format!("{} 1 new", n.id("t", 0, 2))]));
}

/// Partitions that all have messages once took a small RDY from each other before it could be used.
#[test]
fn a_ready_count_of_one_serves_every_partition() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 4);
        let (p, c) = (n.connect(0), n.connect(0));
        for i in 0..12 {
            n.publish(p, "t", &i.to_string());
        }
        n.send(c, b"SUB t ch\nRDY 1\n");
        let mut seen = std::collections::BTreeSet::new();
        let mut got = n.take(c).split_off(1);
        while let Some(message) = got.pop() {
            assert!(got.is_empty(), "one in flight");
            seen.insert(message.split(' ').nth(2).expect("a body").to_owned());
            n.send(c, format!("FIN {}\n", id_of(&message)).as_bytes());
            got = n.take(c);
        }
        assert_eq!(seen.len(), 12, "{cores} cores");
    }
}

#[test]
fn a_stalled_sub_fails_with_its_own_code() {
    let mut n = Node::new(1, 1);
    let c = n.connect(0);
    n.step(0, Event::Bytes { conn: c, bytes: b"SUB t ch\n" });
    n.step(0, Event::Stop);
    n.run();
    assert_eq!(n.take(c), ["E_SUB_FAILED SUB failed the node is stopping"]);
}

#[test]
fn a_sub_whose_channel_the_journal_did_not_take_is_refused() {
    let mut n = Node::new(1, 1);
    let (p, a, b) = (n.connect(0), n.connect(0), n.connect(0));
    n.publish(p, "t", "x");
    n.step(0, Event::Bytes { conn: a, bytes: b"SUB t ch\n" });
    n.end_turn(0);
    let at = n.pending.iter().position(|(_, _, op)| matches!(op.file(), Some(FileId::Journal(_)))).expect("the channel's record");
    let (_, op, request) = n.pending.remove(at).expect("it is there");
    let file = request.file().expect("a write").clone();
    n.step(0, Event::Disk { op, outcome: Err(DiskError::Io { file, call: "write", errno: 5, message: String::new() }) });
    n.run();
    n.send(b, b"SUB t ch\n");
    for conn in [a, b] {
        let got = n.take(conn);
        assert!(got.len() == 1 && got[0].starts_with("E_SUB_FAILED"), "{got:?}");
    }
}

/// An OK to a publish implies the FINs before it, on the publish's core too.
#[test]
fn a_fin_reaches_another_core_before_a_later_publish() {
    let mut n = Node::new(2, 2);
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish(p, "t", "0");
    n.publish(p, "t", "1");
    n.send(c, b"SUB t ch\nRDY 9\n");
    let messages = n.take(c).split_off(1);
    let mut bytes: Vec<u8> = messages.iter().flat_map(|m| format!("FIN {}\n", id_of(m)).into_bytes()).collect();
    (0..2).for_each(|_| request::publish(&mut bytes, "t", b"2"));
    n.step(0, Event::Bytes { conn: c, bytes: &bytes });
    let at = |is: fn(&MeshMessage) -> bool| n.mesh.iter().position(|(_, _, m)| is(m)).expect("it was passed");
    assert!(at(|m| matches!(m, MeshMessage::Finish { .. })) < at(|m| matches!(m, MeshMessage::Publish { .. })));
    n.run();
}

#[test]
fn a_connection_that_comes_to_a_stopping_core_is_closed() {
    let mut n = Node::new(2, 1);
    let home = crate::base::topic::home_core("t", 2).0 as usize;
    let (p, c) = (n.connect(1 - home), n.connect(1 - home));
    n.publish(p, "t", "x");
    n.step(home, Event::Stop);
    n.send(c, b"SUB t ch\n");
    n.run();
    assert_eq!(n.closed, [c]);
}

#[test]
fn a_partition_has_no_more_channels_than_its_snapshot_can_hold() {
    let mut n = Node::new(1, 1);
    for i in 0..channels::CHANNELS_MAX {
        let c = n.connect(0);
        n.send(c, format!("SUB t ch{i}\n").as_bytes());
        assert_eq!(n.take(c), ["OK"]);
    }
    let c = n.connect(0);
    n.send(c, b"SUB t one-more\n");
    assert_eq!(n.take(c), ["E_SUB_FAILED SUB failed the topic has as many channels as --max-channels-per-topic allows"]);
    let c = n.connect(0);
    n.send(c, b"SUB t ch0\n");
    assert_eq!(n.take(c), ["OK"]);
}

/// Also when the first one's client is gone before the other partitions were asked.
#[test]
fn a_later_channel_waits_until_all_partitions_have_the_first() {
    let mut n = Node::new(2, 2);
    let (p, home) = (n.connect(0), home_core("t", 2).0 as usize);
    (0..4).for_each(|i| n.publish(p, "t", &format!("old{i}")));
    assert_eq!(n.take(p), ["OK"; 4]);
    n.held_creations = Some(vec![]);
    let a = n.connect(home);
    n.step(home, Event::Bytes { conn: a, bytes: b"SUB t a\n" });
    n.step(home, Event::Closed { conn: a });
    n.run();
    let b = n.connect(1 - home);
    n.send(b, b"SUB t b\nRDY 9\n");
    assert!(n.take(b).is_empty(), "the other core does not have the first channel yet");
    let held = n.held_creations.take().expect("it was set");
    assert_eq!(held.len(), 1);
    n.mesh.extend(held);
    n.run();
    assert_eq!(n.take(b), ["OK"], "and nothing of what was there before");
    let a = n.connect(home);
    n.send(a, b"SUB t a\nRDY 9\n");
    assert_eq!(n.take(a).len(), 5, "all of it");
}

/// Publishers and consumers of the name go on with a new topic, wherever they are.
#[test]
fn an_ephemeral_topic_goes_with_its_last_channel_and_comes_back_as_another_one() {
    for (cores, partitions) in [(1, 1), (1, 3), (2, 1), (3, 3)] {
        let mut n = Node::new(cores, partitions);
        let p = n.connect(cores as usize - 1);
        let files = |n: &Node| n.disk.files().filter(|f| f.to_string().starts_with("topics/e#ephemeral/")).count();
        for round in 0..5 {
            for i in 0..partitions {
                n.publish(p, "e#ephemeral", &format!("{round}-{i}"));
            }
            assert!(files(&n) > 0, "without a channel it stays");
            let c = n.connect(round % cores as usize);
            n.send(c, b"SUB e#ephemeral c#ephemeral\nRDY 9\n");
            let got = n.take(c);
            assert_eq!(got.len(), 1 + partitions as usize, "{cores} cores: only what is of this topic: {got:?}");
            assert!(got[1..].iter().all(|m| m.contains(&format!(" {round}-"))), "{got:?}");
            // Publishes that are under way when the last client goes.
            let core = n.clients[&c].0;
            let mut late = vec![];
            request::publish(&mut late, "e#ephemeral", b"late");
            n.step(n.clients[&p].0, Event::Bytes { conn: p, bytes: &late });
            n.step(core, Event::Closed { conn: c });
            n.run();
            n.pass_time(Duration::from_secs(1));
            assert_eq!(n.take(p), vec!["OK"; partitions as usize + 1], "{cores} cores");
            if files(&n) > 0 {
                // The late one came into the next topic: it goes in the same way.
                let c = n.connect(0);
                n.send(c, b"SUB e#ephemeral c#ephemeral\n");
                n.step(n.clients[&c].0, Event::Closed { conn: c });
                n.run();
            }
            assert_eq!(files(&n), 0, "{cores} cores, round {round}");
            assert!(
                n.shards
                    .iter()
                    .all(|s| s.engine.core.partitions.iter().count() == 0 && s.engine.core.topics.known("e#ephemeral").is_none())
            );
        }
        n.publish(p, "t", "x");
        assert_eq!(n.take(p), ["OK"]);
        let counted = |s: &Shard| s.engine.core.topics.total();
        assert!(n.shards.iter().all(|s| counted(s) == 1), "what is gone does not count for --max-topics");
    }
}

/// A durable channel keeps it, with all its messages, whoever else comes and goes.
#[test]
fn an_ephemeral_topic_stays_while_a_channel_does() {
    for cores in [1, 3] {
        let mut n = Node::new(cores, 3);
        let p = n.connect(0);
        let keep = n.connect(0);
        n.send(keep, b"SUB e#ephemeral keep\n");
        n.step(n.clients[&keep].0, Event::Closed { conn: keep });
        (0..3).for_each(|_| n.publish(p, "e#ephemeral", "x"));
        let c = n.connect(0);
        n.send(c, b"SUB e#ephemeral c#ephemeral\n");
        n.step(n.clients[&c].0, Event::Closed { conn: c });
        n.run();
        assert_eq!(n.take(p), ["OK"; 3]);
        let keep = n.connect(0);
        n.send(keep, b"SUB e#ephemeral keep\nRDY 9\n");
        assert_eq!(n.take(keep).len(), 4, "OK and all messages");
    }
}

/// A SUB of another core that comes while the topic's cores decide that it goes waits for what they decide.
#[test]
fn a_sub_that_meets_a_closing_topic_gets_its_answer() {
    let home = home_core("e#ephemeral", 2).0 as usize;
    for early in 0..12 {
        let mut n = Node::new(2, 2);
        let (c, late) = (n.connect(home), n.connect(1 - home));
        n.send(c, b"SUB e#ephemeral c#ephemeral\n");
        assert_eq!(n.take(c), ["OK"]);
        n.step(home, Event::Closed { conn: c });
        // The home's question is under way when the other core sends its SUB, or has come there already.
        for _ in 0..early {
            if let Some((from, to, message)) = n.mesh.pop_front() {
                n.step(to.0 as usize, Event::Mesh { from, message });
            }
        }
        n.step(1 - home, Event::Bytes { conn: late, bytes: b"SUB e#ephemeral d#ephemeral\nRDY 5\n" });
        n.run();
        n.publish(late, "e#ephemeral", "x");
        n.publish(late, "e#ephemeral", "y");
        let got = n.take(late);
        assert_eq!((got.len(), got.first().map(String::as_str)), (5, Some("OK")), "after {early}: {got:?}");
    }
}

#[test]
fn the_number_of_topics_and_channels_is_limited() {
    let mut n = Node::with(2, Settings { max_topics: 3, max_channels_per_topic: 2, ..Settings::default() });
    for i in 0..3 {
        let c = n.connect(i % 2);
        n.publish(c, &format!("t{i}"), "x");
        assert_eq!(n.take(c), ["OK"]);
    }
    for core in 0..2 {
        let c = n.connect(core);
        n.publish(c, "t4", "x");
        assert_eq!(n.take(c), ["E_PUB_FAILED PUB failed the node has as many topics as --max-topics allows"]);
        let c = n.connect(core);
        n.publish(c, "t0", "x");
        assert_eq!(n.take(c), ["OK"], "those that are there go on");
        let c = n.connect(core);
        n.send(c, b"SUB t4 ch\n");
        assert_eq!(n.take(c), ["E_SUB_FAILED SUB failed the node has as many topics as --max-topics allows"]);
        let c = n.connect(core);
        n.send(c, format!("SUB t0 ch{core}\n").as_bytes());
        assert_eq!(n.take(c)[0], "OK");
    }
    let c = n.connect(0);
    n.send(c, b"SUB t0 one-more\n");
    assert_eq!(n.take(c), ["E_SUB_FAILED SUB failed the topic has as many channels as --max-channels-per-topic allows"]);
}

#[test]
fn health_tells_of_a_full_disk_and_the_other_cores_hear_of_it() {
    let mut n = Node::new(2, 1);
    let home = crate::base::topic::home_core("t", 2).0 as usize;
    let p = n.connect(home);
    n.is_full = true;
    n.publish(p, "t", "x");
    n.run();
    let health = |n: &Node, core: usize| n.shards[core].stats(Ticks(0), None, None, false).health;
    assert!(health(&n, home).starts_with(&format!("core {home}: the disk is full: 1 partitions take no publish")));
    assert_eq!(health(&n, 1 - home), "", "each core speaks for itself");
    assert!(n.shards[1 - home].engine.core.store.is_short_of_space() && !n.shards[1 - home].engine.core.store.is_disk_full());
    n.is_full = false;
    n.pass_time(Duration::from_secs(1));
    assert_eq!(health(&n, home), "");
    assert!(!n.shards[1 - home].engine.core.store.is_short_of_space());
}

/// A checkpoint that waits for space for hours must not cost the core its journal.
#[test]
fn fins_wait_in_their_channels_while_the_journal_has_no_room() {
    const MESSAGES: usize = 5000;
    let mut n = Node::with(1, Settings { partitions: 1, journal_bytes: 512 << 10, ..Settings::default() });
    let (p, c) = (n.connect(0), n.connect(0));
    for _ in 0..5 {
        let mut bytes = vec![];
        request::multi_publish(&mut bytes, "t", (0..MESSAGES / 5).map(|_| b"x".as_slice()));
        n.send(p, &bytes);
    }
    assert_eq!(n.take(p), ["OK"; 5]);
    n.send(c, b"SUB t ch\nRDY 1\n");
    n.held = Some(vec![]);
    let (mut finished, mut most) = (0, 0);
    let mut finish = |n: &mut Node, until: usize| {
        while finished < until {
            let got: Vec<String> = n.take(c).into_iter().filter(|f| f != "OK" && f != "_heartbeat_").collect();
            assert_eq!(got.len(), 1, "{got:?}");
            n.send(c, format!("FIN {}\n", id_of(&got[0])).as_bytes());
            n.pass_time(Duration::from_millis(101));
            finished += 1;
            most = most.max(n.shards[0].engine.core.store.queued_bytes());
        }
    };
    finish(&mut n, MESSAGES - 1);
    let engine = &n.shards[0].engine;
    assert!(
        !engine.core.store.takes_facts() && engine.core.partitions.agenda.num_fins() == 1 && !engine.core.store.is_read_only()
    );
    for (core, op, request) in n.held.take().expect("set above") {
        n.pending.push_back((core, op, request));
    }
    n.run();
    n.pass_time(Duration::from_millis(101));
    finish(&mut n, MESSAGES);
    n.pass_time(Duration::from_millis(101));
    assert!(most < 4096, "{most} bytes of facts waited");
    let engine = &n.shards[0].engine;
    assert!(
        engine.core.partitions.agenda.num_fins() == 0 && engine.core.store.takes_facts() && engine.core.store.queued_bytes() == 0
    );
    let p = n.connect(0);
    n.publish(p, "t", "x");
    assert_eq!(n.take(p), ["OK"]);
}

#[test]
fn a_publish_that_no_batch_can_hold_is_refused() {
    let mut n = Node::new(1, 1);
    let c = n.connect(0);
    n.publish(c, "t", "one");
    let idx = n.shards[0].engine.core.topics.place("t", crate::base::PartitionId(0)).expect("it was published to");
    let publisher = partitions::Publisher::Core(CoreId(0), crate::seam::message::Ticket(1));
    // An MPUB of six million messages of one byte has 30 MB on the wire, and 78 MB in a batch.
    let bodies = std::iter::repeat_n(&b"x"[..], 6_000_000);
    let attempt = n.shards[0].engine.publishing().append(n.now, idx, publisher, bodies, 6_000_000, 6_000_000, 0);
    assert!(matches!(attempt, engine::Attempt::Refused(PublishError::TooBig)));
    n.take(c);
    n.publish(c, "t", "two");
    assert_eq!(n.take(c), ["OK"]);
}
