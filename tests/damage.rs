//! One damaged block may cost the messages that it holds, and nothing else: every block that is not zeros, of every file of a small data
//! path, has one bit flipped, is zeroed, or is where its file ends. Then the node starts, its scrubber goes over what is there, and every
//! channel is drained. Messages that a channel does not get were in the block; all others come as published; and the log names the file.
//!
//! The real recovery and the real shard, over the simulated disk. `DAMAGE=<part of a path>` tries the files of that name alone and
//! prints each case that does not hold.

mod node;

use node::Client;
use ringmq::base::{BLOCK, ConnId, CoreId, Epoch, FileId, Now, PartitionId, Peer, Ticks, TopicRef};
use ringmq::config::Settings;
use ringmq::format::journal::RING_START;
use ringmq::journal::replay::{self, ReadAhead, WriteAction};
use ringmq::log::recovery::{JOURNAL_BYTES_MIN, RecoverError, RecoverOptions, recover};
use ringmq::seam::event::{Effect, Event};
use ringmq::seam::{
    message::{MeshMessage, Ticket},
    outcome::AcceptLossError,
};
use ringmq::shard::{LENT_MIN, Shard, ShardOptions};
use ringmq_core::sim::disk::SimDisk;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

const SEGMENT_BYTES: u64 = 16 * 1024;
const TOPICS: [(&str, usize); 2] = [("one", 90), ("two", 8)];
const CHANNELS: [&str; 2] = ["a", "b"];
/// Number of messages of each topic that channel a has finished.
const FINISHED: usize = 5;

// ---- the log of this thread

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Capture;

impl tracing::field::Visit for Capture {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        SAID.with_borrow_mut(|said| said.push_str(&format!("{field}={value:?} ")));
    }
}

impl tracing::Subscriber for Capture {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Capture);
        SAID.with_borrow_mut(|said| said.push('\n'));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Capture).expect("nobody else listens"));
    SAID.with_borrow_mut(String::clear);
}

// ---- a node of one core

struct Node {
    shard: Shard,
    disk: SimDisk,
    now: Now,
    /// Bytes that clients have not read yet, by connection.
    sent: BTreeMap<u64, Vec<u8>>,
    topics: Vec<TopicRef>,
    /// Answers about losses that were accepted.
    accepted: Vec<Result<String, AcceptLossError>>,
    is_turn_open: bool,
    is_stopped: bool,
}

impl Node {
    /// Starts the node; the findings of recovery go to the log.
    fn start(disk: &mut SimDisk, life: u64, accept_lost_journal: u64) -> Result<Node, RecoverError> {
        let now = Now { ticks: Ticks(1), unix_ns: 1_700_000_000_000_000_000 + life as i64 };
        let options = RecoverOptions {
            cores: 1,
            journal_bytes: JOURNAL_BYTES_MIN,
            segment_bytes: SEGMENT_BYTES,
            now_unix_ns: now.unix_ns,
            producers: Default::default(),
            seed: life,
            accept_lost_journal,
            is_clustered: false,
        };
        let mut recovered = recover(disk, &options)?;
        recovered.report.findings.iter().for_each(|found| tracing::info!("{found}"));
        let settings = Settings {
            partitions: 2,
            journal_bytes: JOURNAL_BYTES_MIN,
            max_bytes_per_file: SEGMENT_BYTES,
            scrub_bytes_per_second: 1 << 30,
            ..Settings::default()
        };
        let topics = recovered.topics.clone();
        let shard = Shard::new(ShardOptions {
            core: CoreId(0),
            cores: 1,
            settings: Arc::new(settings),
            epoch: Epoch(recovered.generation),
            journal: recovered.journals.remove(0),
            topics: recovered.topics,
            partitions: recovered.partitions,
            seed: life,
            connections_max: 0,
            node_id: recovered.node_id,
            cluster: None,
            lent_min: LENT_MIN,
            tls: None,
        });
        let disk = std::mem::replace(disk, SimDisk::new(0));
        let (sent, accepted) = (BTreeMap::new(), vec![]);
        Ok(Node { shard, disk, now, sent, topics, accepted, is_turn_open: false, is_stopped: false })
    }

    fn step(&mut self, event: Event<'_>) {
        self.is_turn_open = !matches!(event, Event::TurnEnd);
        let mut out = vec![];
        self.shard.step(self.now, event, &mut out);
        for effect in out {
            match effect {
                Effect::Send { conn, bytes } => self.send(conn, &bytes),
                Effect::SendPieces { conn, pieces } => self.send(conn, &pieces.concat()),
                Effect::Disk { op, request } => self.disk.submit(op, request),
                Effect::Close { conn } => self.step(Event::Closed { conn }),
                Effect::Stopped => self.is_stopped = true,
                Effect::Pass { message: MeshMessage::LossAccepted { result, .. }, .. } => self.accepted.push(result),
                Effect::Halt { reason } => panic!("halted: {reason}"),
                _ => {}
            }
        }
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.sent.entry(conn.0).or_default().extend_from_slice(bytes);
        self.step(Event::Sent { conn, bytes: bytes.len() });
    }

    /// Runs until the node waits for time to pass.
    fn settle(&mut self) {
        loop {
            if self.shard.deadline().is_some_and(|at| at <= self.now.ticks) {
                self.step(Event::Tick);
            }
            if self.is_turn_open {
                self.step(Event::TurnEnd);
            }
            match self.disk.complete() {
                Some((op, outcome)) => self.step(Event::Disk { op, outcome }),
                None if !self.is_turn_open => return,
                None => {}
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now.ticks = self.now.ticks + time;
        self.now.unix_ns += time.as_nanos() as i64;
        self.settle();
    }

    fn connect(&mut self, conn: u64, first: &str) {
        self.step(Event::Opened { conn: ConnId(conn), peer: Peer("test:1".into()) });
        self.write(conn, format!("  V2{first}").as_bytes());
    }

    fn write(&mut self, conn: u64, bytes: &[u8]) {
        self.step(Event::Bytes { conn: ConnId(conn), bytes });
        self.settle();
    }

    /// Messages that came on a connection, with their ids; anything else it said must be an OK or a heartbeat.
    fn take(&mut self, conn: u64) -> Vec<(Vec<u8>, String)> {
        let bytes = std::mem::take(self.sent.entry(conn).or_default());
        let (mut rest, mut got) = (&bytes[..], vec![]);
        while let Some((head, tail)) = rest.split_at_checked(8) {
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize;
            let (data, next) = tail.split_at(number(0) - 4);
            match number(4) {
                2 => got.push((data[10..26].to_vec(), String::from_utf8_lossy(&data[26..]).into_owned())),
                _ => assert!(matches!(data, b"OK" | b"_heartbeat_"), "{}", String::from_utf8_lossy(data)),
            }
            rest = next;
        }
        got
    }

    fn finish(&mut self, conn: u64, ids: &[Vec<u8>]) {
        let all: Vec<u8> = ids.iter().flat_map(|id| [b"FIN ", &id[..], b"\n"].concat()).collect();
        self.write(conn, &all);
    }
}

fn body(topic: &str, n: usize) -> String {
    format!("{topic} {n:05} ").repeat(55)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum End {
    Stopped,
    Killed,
}

/// The data path as a node left it, and what each channel is owed.
fn data_path(end: End) -> (SimDisk, BTreeMap<(usize, usize), BTreeSet<usize>>) {
    let mut node = Node::start(&mut SimDisk::new(5), 1, 0).expect("an empty disk starts");
    let mut owed = BTreeMap::new();
    for (t, (topic, messages)) in TOPICS.into_iter().enumerate() {
        for (c, channel) in CHANNELS.into_iter().enumerate() {
            let conn = (10 * t + c) as u64;
            node.connect(conn, &format!("SUB {topic} {channel}\n"));
            owed.insert((t, c), (0..messages).collect::<BTreeSet<usize>>());
        }
        node.connect(100 + t as u64, "");
        for n in 0..messages {
            let body = body(topic, n);
            let publish = [format!("PUB {topic}\n").as_bytes(), &(body.len() as u32).to_be_bytes(), body.as_bytes()].concat();
            node.write(100 + t as u64, &publish);
        }
        node.write(10 * t as u64, format!("RDY {FINISHED}\n").as_bytes());
        let got = node.take(10 * t as u64);
        assert_eq!(got.len(), FINISHED);
        for (_, text) in &got {
            let n: usize = text[topic.len() + 1..][..5].parse().expect("a number");
            owed.get_mut(&(t, 0)).expect("it is owed").remove(&n);
        }
        node.write(10 * t as u64, b"RDY 0\n");
        node.finish(10 * t as u64, &got.into_iter().map(|(id, _)| id).collect::<Vec<_>>());
    }
    node.pass(Duration::from_secs(1));
    // The newest messages are in the journal alone.
    if end == End::Stopped {
        node.step(Event::Stop);
        (0..20).for_each(|_| node.pass(Duration::from_secs(1)));
        assert!(node.is_stopped);
    }
    node.disk.kill();
    (node.disk, owed)
}

// ---- damage

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Rot {
    Flip,
    Zero,
    Cut,
}

/// Kind of a block.
fn class(path: &str, at: usize) -> &'static str {
    let is_first = at == 0;
    match path.rsplit(['/', '.']).next().unwrap_or(path) {
        "segment" if is_first => "segment header",
        "segment" => "batches",
        "commit" if is_first => "commit log header",
        "commit" => "commit records",
        _ if path.starts_with("node.meta") => "node.meta",
        _ if path.contains("topic.meta") => "topic.meta",
        _ if path.contains("state.") => "snapshot",
        _ if (at as u64) < RING_START => "journal slot",
        _ => "journal write",
    }
}

/// The blocks of the journal's ring that a startup redoes.
fn live_ring(disk: &SimDisk) -> Range<usize> {
    let mut disk = disk.clone();
    let ring = replay::scan(&mut disk, 0, u64::MAX).expect("it can be read");
    let generation = ring.generation;
    let ring = replay::scan(&mut disk, 0, generation).expect("it can be read");
    if ring.is_closed() {
        return 0..0;
    }
    let (mut first, mut end, mut sequence, mut ahead) = (usize::MAX, 0, ring.first, ReadAhead::default());
    loop {
        let write = ring.read(&mut disk, &mut ahead, sequence).expect("it can be read");
        if write.action != WriteAction::Apply {
            return first..end;
        }
        let at = write.at.expect("it stands somewhere") as usize;
        (first, end) = (first.min(at), end.max(at + BLOCK));
        sequence += 1;
    }
}

/// Places of messages' batches in a file.
fn places(bytes: &[u8], is_journal: bool) -> Vec<(usize, usize, Range<usize>)> {
    let mut found = vec![];
    for (t, (topic, messages)) in TOPICS.into_iter().enumerate() {
        for n in 0..messages {
            let body = body(topic, n);
            let mut from = 0;
            while let Some(at) = find(&bytes[from..], body.as_bytes()) {
                let at = from + at;
                // Its headers: of the message and the batch, in a journal of the record and the write, too.
                let headers = if is_journal { 1024 } else { 12 + 128 };
                found.push((t, n, at.saturating_sub(headers)..at + body.len()));
                from = at + body.len();
            }
        }
    }
    found
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = what[0];
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|&b| b == first) {
        at += next;
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn apply(disk: &mut SimDisk, path: &str, at: usize, rot: Rot) {
    match rot {
        Rot::Flip => {
            let block = &disk.contents_of(path)[at..at + BLOCK];
            let set: Vec<usize> = (0..BLOCK).filter(|&i| block[i] != 0).collect();
            let which = set[(at / BLOCK * 7919) % set.len()];
            disk.flip(path, (at + which) as u64, which as u32);
        }
        Rot::Zero => disk.scribble(path, at as u64, &[0; BLOCK]),
        Rot::Cut => disk.cut(path, at),
    }
}

/// Starts, drains every channel, and says what does not hold.
fn judge(
    mut disk: SimDisk,
    path: &str,
    owed: &BTreeMap<(usize, usize), BTreeSet<usize>>,
    held: &BTreeSet<(usize, usize)>,
    must_name: bool,
    rot: Rot,
    must_tell: bool,
) -> Vec<(&'static str, String)> {
    listen();
    let mut wrong = vec![];
    let node = Node::start(&mut disk, 2, 0).or_else(|error| {
        let RecoverError::LostJournals { generation, .. } = error else { return Err(error) };
        wrong.push((REFUSED, error.to_string()));
        Node::start(&mut disk, 2, generation)
    });
    let mut node = match node {
        Ok(node) => node,
        Err(error) => return vec![("does not start", error.to_string())],
    };
    for (t, (topic, messages)) in TOPICS.into_iter().enumerate() {
        for (c, channel) in CHANNELS.into_iter().enumerate() {
            let conn = (10 * t + c) as u64;
            node.connect(conn, &format!("SUB {topic} {channel}\nRDY 2000\n"));
            let (mut got, mut quiet) = (BTreeSet::new(), 0);
            while quiet < 3 {
                let some = node.take(conn);
                quiet = if some.is_empty() { quiet + 1 } else { 0 };
                for (_, text) in &some {
                    let n = text.get(topic.len() + 1..topic.len() + 6).and_then(|n| n.parse::<usize>().ok());
                    match n.filter(|&n| n < messages && *text == body(topic, n)) {
                        Some(n) => drop(got.insert(n)),
                        None => wrong.push(("corrupt or invented", text.chars().take(40).collect())),
                    }
                }
                node.finish(conn, &some.into_iter().map(|(id, _)| id).collect::<Vec<_>>());
                node.pass(Duration::from_millis(300));
            }
            let missing: Vec<&usize> = owed[&(t, c)].iter().filter(|n| !got.contains(n) && !held.contains(&(t, **n))).collect();
            if !missing.is_empty() {
                wrong.push(("missing", format!("{topic}/{channel}: {missing:?}")));
            }
        }
    }
    (0..3).for_each(|_| node.pass(Duration::from_secs(1)));
    let said = SAID.with_borrow(String::clone);
    if rot != Rot::Cut && said.contains("may have taken channels") {
        wrong.push(("channels taken for lost", said.clone()));
    }
    if must_tell && !said.contains("may have taken channels") {
        wrong.push(("a loss that nobody is told of", said.clone()));
    }
    if must_name && !said.contains(path) {
        wrong.push(("not named", said));
    }
    wrong
}

const REFUSED: &str = "refused until its loss is accepted";

/// Damages that cost more. A journal that is cut to nothing is refused on purpose, since it may be found again. A last write of zeros
/// looks like no write.
const EXPECTED: &[(End, &str, Rot, &str)] = &[
    (End::Stopped, "journal slot", Rot::Cut, REFUSED),
    (End::Killed, "journal slot", Rot::Cut, REFUSED),
    (End::Killed, "journal write", Rot::Zero, "not named"),
];

fn every_block(end: End) {
    let (disk, owed) = data_path(end);
    let only = std::env::var("DAMAGE").ok();
    let ring = live_ring(&disk);
    let paths: Vec<String> = disk.paths().map(String::from).collect();
    let (mut cases, mut found) = (0, BTreeMap::<(End, &str, Rot, &str), Vec<String>>::new());
    let mut classes = BTreeSet::new();
    for path in paths.iter().filter(|path| only.as_ref().is_none_or(|only| path.contains(only))) {
        let bytes = disk.contents_of(path).to_vec();
        let places = places(&bytes, path.starts_with("journal"));
        for at in (0..bytes.len() / BLOCK).map(|block| block * BLOCK) {
            if bytes[at..at + BLOCK].iter().all(|&b| b == 0) {
                continue;
            }
            let class = class(path, at);
            classes.insert(class);
            for rot in [Rot::Flip, Rot::Zero, Rot::Cut] {
                let damaged = if rot == Rot::Cut { at..bytes.len() } else { at..at + BLOCK };
                let is_held = |r: &Range<usize>| r.start < damaged.end && damaged.start < r.end;
                let held = places.iter().filter(|(.., r)| is_held(r)).map(|(t, n, _)| (*t, *n)).collect();
                // Writes that a startup no longer redoes belong to no partition.
                let must_name = class != "journal write" || (ring.start < damaged.end && damaged.start < ring.end);
                // Bytes of a journal behind its new end are in no other file.
                let must_tell = class == "journal write" && rot == Rot::Cut && must_name;
                let mut disk = disk.clone();
                apply(&mut disk, path, at, rot);
                cases += 1;
                let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    judge(disk, path, &owed, &held, must_name, rot, must_tell)
                }));
                let wrong = wrong.unwrap_or_else(|_| vec![("panic", String::new())]);
                for (what, detail) in wrong {
                    if only.is_some() {
                        println!("{end:?} {path} at {at} {rot:?}: {what}: {detail}");
                    }
                    found.entry((end, class, rot, what)).or_default().push(format!("{path} at {at}: {detail}"));
                }
            }
        }
    }
    println!("{end:?}: {cases} cases");
    if only.is_some() {
        return;
    }
    assert!(cases > 200 && classes.len() == 9, "{cases} cases of {classes:?}");
    let expected: BTreeSet<_> = EXPECTED.iter().filter(|e| e.0 == end).copied().collect();
    let new: Vec<_> = found.iter().filter(|(key, _)| !expected.contains(*key)).collect();
    for (key, places) in &new {
        println!("{key:?}: {} places, the first: {}", places.len(), places[0].chars().take(600).collect::<String>());
    }
    let gone: Vec<_> = expected.iter().filter(|key| !found.contains_key(*key)).collect();
    assert!(new.is_empty(), "{} kinds of damage cost more than they may", new.len());
    assert!(gone.is_empty(), "these hold now: take them off the list: {gone:?}");
}

#[test]
fn one_block_costs_what_it_holds_after_a_stop() {
    every_block(End::Stopped);
}

#[test]
fn one_block_costs_what_it_holds_after_a_kill() {
    every_block(End::Killed);
}

/// No single block does this. Finished messages are delivered again, which is better than a loss.
#[test]
fn channels_of_which_no_snapshot_is_left_begin_at_the_oldest_message() {
    let (disk, owed) = data_path(End::Stopped);
    for rot in [Rot::Flip, Rot::Zero, Rot::Cut] {
        let mut disk = disk.clone();
        let paths: Vec<String> =
            disk.paths().filter(|path| path.contains("one/") && path.contains("state.")).map(String::from).collect();
        paths.iter().for_each(|path| apply(&mut disk, path, 0, rot));
        let wrong = judge(disk, "topics/one/0/state.", &owed, &BTreeSet::new(), true, Rot::Cut, true);
        assert!(paths.len() == 6 && wrong.is_empty(), "{rot:?}: {wrong:?}");
        assert!(SAID.with_borrow(|said| said.contains("damage may have taken channels")));
    }
}

/// Files are named here as they are there.
#[test]
fn every_kind_of_file_is_there() {
    let (disk, _) = data_path(End::Stopped);
    let segments = disk.paths().filter(|path| path.starts_with("topics/one/0/") && path.ends_with("segment")).count();
    assert!(segments > 2, "several segments: {:?}", disk.paths().collect::<Vec<_>>());
    assert!(disk.paths().any(|path| path == FileId::Node(1).to_string()));
}

/// An operator is told that a loss is accepted once that is durable. A node that cannot keep the decision refuses it.
#[test]
fn an_accepted_loss_is_answered_when_it_is_durable() {
    let (mut disk, _) = data_path(End::Stopped);
    let paths: Vec<String> = disk.paths().filter(|path| path.contains("state.")).map(String::from).collect();
    paths.iter().for_each(|path| apply(&mut disk, path, 0, Rot::Zero));
    let started = || Node::start(&mut disk.clone(), 2, 0).expect("it starts");
    let accept = |node: &mut Node, loss: Option<&str>| {
        let topic = node.topics.iter().find(|topic| &*topic.name == "one").expect("it is there").clone();
        let (ticket, partition, loss) = (Ticket(1), PartitionId(0), loss.map(String::from));
        node.step(Event::Mesh { from: CoreId::HTTP, message: MeshMessage::AcceptLoss { ticket, topic, partition, loss } });
        node.step(Event::TurnEnd);
    };
    let mut node = started();
    node.settle();
    accept(&mut node, None);
    let Some(Err(AcceptLossError::NotNamed { name, .. })) = node.accepted.pop() else { panic!("{:?}", node.accepted) };
    accept(&mut node, Some(&name));
    assert_eq!(node.accepted, [], "its record is not durable yet");
    node.settle();
    assert!(matches!(node.accepted[..], [Ok(_)]), "{:?}", node.accepted);
    // A crash right behind the answer.
    node.disk.crash();
    let mut disk = node.disk;
    let mut node = Node::start(&mut disk, 3, 0).expect("it starts");
    node.settle();
    accept(&mut node, Some(&name));
    assert!(matches!(node.accepted[..], [Err(AcceptLossError::Nothing { .. })]), "{:?}", node.accepted);

    let mut node = started();
    node.settle();
    node.disk.faults.write_error = 1.0;
    for _ in 0..2 {
        accept(&mut node, Some(&name));
        node.settle();
        assert_eq!(node.accepted.pop(), Some(Err(AcceptLossError::ReadOnly)), "the record cannot be written");
    }
}

/// An operator hears of it until the operator accepts it, by its name.
#[test]
fn lost_channels_are_told_of_until_that_is_accepted() {
    let mut node = node::Node::start(&["--shards=1", "--journal-bytes=1048576"]);
    let expected: BTreeSet<String> = (0..20).map(|n| body("t", n)).collect();
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    expected.iter().for_each(|body| client.publish("t", body.as_bytes()).expect("stored"));
    for channel in ["first", "second"] {
        Client::connect(node.tcp()).expect("it takes connections").subscribe("t", channel, 0).expect("subscribed");
    }
    node.stop();
    let state = |slot| node.data_path().join(format!("topics/t/0/state.{slot}"));
    (0..3).for_each(|slot| std::fs::write(state(slot), [0x5a; BLOCK]).expect("it is writable"));
    let told = |node: &mut node::Node, is_lost: bool| {
        node.spawn();
        node.wait_ready().expect("it starts");
        let get = |path| node.get(path).expect("it answers");
        let (json, text) = (get("/stats?format=json"), get("/stats"));
        assert_eq!(json.contains("\"channels_lost\":[\"partition 0: "), is_lost, "{json}");
        assert_eq!(text.contains("*L [t] channels lost: partition 0: "), is_lost, "{text}");
        let name = json.split("loss=").nth(1).map(|rest| rest.split('\"').next().expect("it ends").to_string());
        node.stop();
        name
    };
    let name = told(&mut node, true).expect("it is named");
    assert_eq!(told(&mut node, true), Some(name.clone()), "another start says the same");
    node.spawn();
    node.wait_ready().expect("it starts");
    for channel in ["second", "first"] {
        let mut client = Client::connect(node.tcp()).expect("it takes connections");
        client.subscribe("t", channel, 100).expect("subscribed");
        let body = |client: &mut Client| String::from_utf8(client.message().expect("a message").body).expect("text");
        let got: BTreeSet<String> = (0..expected.len()).map(|_| body(&mut client)).collect();
        assert!(got == expected, "{channel}");
    }
    let accept =
        |node: &node::Node, loss: &str| node.post(&format!("/replica/acceptloss?topic=t{loss}"), b"").expect("it answers");
    for other in ["", "&loss=channels-1"] {
        let answer = accept(&node, other);
        assert!(answer.contains("LOSS_NOT_NAMED") && answer.contains(&format!("loss={name}")), "{answer}");
    }
    let answer = accept(&node, &format!("&loss={name}"));
    assert!(answer.contains("accepted"), "{answer}");
    assert!(accept(&node, &format!("&loss={name}")).contains("NOTHING_TO_ACCEPT"));
    node.kill();
    assert_eq!(told(&mut node, false), None);
}

/// The same on real files, of a process, for what the startup reads.
#[test]
fn a_process_starts_with_one_block_damaged_and_names_the_file() {
    let mut node = node::Node::start(&["--shards=1", "--partitions=2", "--journal-bytes=1048576"]);
    let subscribe = |node: &node::Node, ready| {
        let mut client = Client::connect(node.tcp()).expect("it takes connections");
        client.subscribe("t", "c", ready).expect("subscribed");
        client
    };
    drop(subscribe(&node, 0));
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    let expected: BTreeSet<String> = (0..20).map(|n| body("t", n)).collect();
    expected.iter().for_each(|body| client.publish("t", body.as_bytes()).expect("stored"));
    drop(client);
    let folder = Path::new("topics/t");
    let (segment, commit) = (format!("0/{:020}.segment", 0), format!("1/{:020}.commit", 0));
    let metas = [["node.meta.0", "node.meta.1"].map(PathBuf::from), ["topic.meta.0", "topic.meta.1"].map(|n| folder.join(n))];
    let metas = metas.into_iter().flatten().flat_map(|path| [Rot::Flip, Rot::Zero, Rot::Cut].map(|rot| (path.clone(), rot)));
    let headers = [(folder.join(segment), Rot::Flip), (folder.join(commit), Rot::Zero)];
    for (n, (file, rot)) in metas.chain(headers).enumerate() {
        if n % 2 == 0 {
            node.stop();
        } else {
            node.kill();
        }
        let path = node.data_path().join(&file);
        let mut bytes = std::fs::read(&path).expect("it is there");
        match rot {
            Rot::Flip => bytes[20] ^= 4,
            Rot::Zero => bytes[..BLOCK].fill(0),
            Rot::Cut => bytes.clear(),
        }
        std::fs::write(&path, bytes).expect("it is writable");
        let before = node.whole_log().len();
        node.spawn();
        node.wait_ready().expect("it starts");
        let log = node.whole_log()[before..].to_owned();
        assert!(log.contains(file.to_str().expect("it is text")), "{} {rot:?} is not named:\n{log}", file.display());
        // Unfinished messages come again with the next startup.
        let mut client = subscribe(&node, 100);
        let body = |client: &mut Client| String::from_utf8(client.message().expect("a message").body).expect("text");
        let got: BTreeSet<String> = (0..expected.len()).map(|_| body(&mut client)).collect();
        assert!(got == expected, "{} {rot:?}", file.display());
    }
}
