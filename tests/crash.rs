//! Kills the node at a random moment, again and again, and looks for every message.
//!
//! **What a SIGKILL can prove**: that nothing acknowledged stands in the memory of the process alone; that recovery takes whatever
//! half-done state of journal, segments and snapshots the process left, and restarts at once; that ids, cursors and channels go on.
//! **What it cannot prove**: that the data is on the device. Bytes that the kernel has taken survive the process, written or not, in
//! order or not. Lost, torn and reordered sectors are the simulated disk's (crates/ringmq-core/src/sim); that the writes ask for
//! durability is the disk room's own test.
//!
//! A round: publishers and consumers on several connections, over topics that are old and one created just before; SIGKILL;
//! restart on the same data (now and then killed again while it recovers); then both channels of every topic are
//! consumed up to a sentinel. Checked:
//! - every acknowledged message arrives on every channel, and what was not acknowledged on all or none; a MPUB whole or
//!   not at all; what was once missing never comes later;
//! - every body is what was sent under its name; nothing is invented;
//! - delivered but unfinished comes again; finished before an OK to a later publish on the same connection does not.
//!
//! `RINGMQ_CRASH_ROUNDS` (100), `RINGMQ_CRASH_SECONDS` (900, then it fails), `RINGMQ_CRASH_SEED`.

mod node;

use node::{Chance, Client, Node, command_with_body, multi_publish};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::DirEntry;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

const CHANNELS: [&str; 2] = ["left", "right"];
const OLD_TOPICS: usize = 4;
const PUBLISHERS: u64 = 4;
const CONSUMERS: u64 = 3;

/// Names one message for ever: round, connection, number on the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Name {
    round: u64,
    connection: u64,
    number: u64,
}

impl Name {
    /// The name, a length, and as many bytes as follow from the name.
    fn body(self, len: usize) -> Vec<u8> {
        let mut body = format!("{} {} {} {len}|", self.round, self.connection, self.number).into_bytes();
        let mut chance = Chance::new(self.round << 40 ^ self.connection << 32 ^ self.number);
        body.extend(std::iter::repeat_with(|| chance.next().to_le_bytes()).flatten().take(len));
        body
    }

    /// `None` when the body is not what was sent under its name.
    fn of(body: &[u8]) -> Option<Name> {
        let end = body.iter().position(|b| *b == b'|')?;
        let text = std::str::from_utf8(&body[..end]).ok()?;
        let numbers: Vec<u64> = text.split(' ').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let [round, connection, number, len] = numbers[..] else { return None };
        let name = Name { round, connection, number };
        (name.body(len as usize) == body).then_some(name)
    }
}

/// Event of a connection before the crash, in order.
enum ClientEvent {
    /// Names of messages that left in one command.
    Sent(Vec<Name>),
    Acknowledged(Vec<Name>),
    Delivered {
        channel: usize,
        name: Name,
    },
    /// A FIN was written.
    Finished {
        channel: usize,
        name: Name,
    },
    /// An OK came to a publish that was written after these FINs.
    Settled {
        channel: usize,
        names: Vec<Name>,
    },
    /// A body that nobody sent.
    Broken(Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum OnChannel {
    #[default]
    Waiting,
    /// A FIN was written, and may or may not have been durable.
    Finished,
    /// The FIN is durable.
    Settled,
}

#[derive(Default)]
struct SentMessage {
    acknowledged: bool,
    delivered: bool,
    /// True if a message was neither acknowledged nor there after a restart: it must never come.
    absent: bool,
    /// The first message of its MPUB, for all or nothing.
    command: Option<Name>,
    channels: [OnChannel; 2],
}

/// Messages that were ever sent to one topic.
#[derive(Default)]
struct Topic {
    messages: HashMap<Name, SentMessage>,
}

impl Topic {
    fn apply(&mut self, seen: Vec<ClientEvent>) -> Result<(), String> {
        for seen in seen {
            match seen {
                ClientEvent::Sent(names) => {
                    let command = names.first().copied();
                    self.messages.extend(names.iter().map(|name| (*name, SentMessage { command, ..SentMessage::default() })));
                }
                ClientEvent::Acknowledged(names) => {
                    names.iter().try_for_each(|name| self.known(name).map(|m| m.acknowledged = true))?
                }
                ClientEvent::Delivered { channel, name } => self.delivered(channel, name)?,
                ClientEvent::Finished { channel, name } => self.known(&name)?.channels[channel] = OnChannel::Finished,
                ClientEvent::Settled { channel, names } => {
                    names.iter().try_for_each(|name| self.known(name).map(|m| m.channels[channel] = OnChannel::Settled))?;
                }
                ClientEvent::Broken(body) => return Err(describe_broken(&body)),
            }
        }
        Ok(())
    }

    fn known(&mut self, name: &Name) -> Result<&mut SentMessage, String> {
        self.messages.get_mut(name).ok_or_else(|| format!("invented: nobody sent {name:?} to this topic"))
    }

    fn delivered(&mut self, channel: usize, name: Name) -> Result<(), String> {
        let message = self.known(&name)?;
        if message.absent {
            return Err(format!("{name:?} was not there after an earlier restart, and comes now"));
        }
        if message.channels[channel] == OnChannel::Settled {
            let why = "its FIN was written before a publish that was acknowledged on the same connection";
            return Err(format!("{name:?} comes again on {}: {why}", CHANNELS[channel]));
        }
        message.delivered = true;
        Ok(())
    }

    /// Checks that both consumed channels got every message that they had to get.
    fn check_complete(&mut self) -> Result<(), String> {
        let mut commands: HashMap<Name, (u64, u64)> = HashMap::new();
        for (name, message) in &mut self.messages {
            let exists = message.acknowledged || message.delivered;
            message.absent |= !exists;
            let parts = commands.entry(message.command.unwrap_or(*name)).or_default();
            *if exists { &mut parts.0 } else { &mut parts.1 } += 1;
            for (channel, state) in message.channels.iter_mut().enumerate() {
                // Both channels are at their end: a message with an uncertain FIN that did not come is finished for good.
                if *state == OnChannel::Finished {
                    *state = OnChannel::Settled;
                }
                if exists && *state == OnChannel::Waiting {
                    let what = if message.acknowledged { "acknowledged" } else { "delivered elsewhere" };
                    return Err(format!("lost: {name:?} was {what}, and does not come on {}", CHANNELS[channel]));
                }
            }
        }
        match commands.iter().find(|(_, (there, missing))| *there > 0 && *missing > 0) {
            Some((name, (there, missing))) => Err(format!("half a MPUB: of {name:?} {there} are there, {missing} are not")),
            None => Ok(()),
        }
    }
}

fn describe_broken(body: &[u8]) -> String {
    let start = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
    format!("a body of {} bytes that nobody sent: {start:?}", body.len())
}

/// One connection of the load. It ends when the node does.
struct Connection<'a> {
    client: Client,
    topic: &'a str,
    round: u64,
    number: u64,
    next: u64,
    chance: Chance,
    seen: Vec<ClientEvent>,
}

impl Connection<'_> {
    fn new_body(&mut self) -> (Name, Vec<u8>) {
        self.next += 1;
        let name = Name { round: self.round, connection: self.number, number: self.next };
        // Mostly small; some over a block, few over the threshold from which a batch goes straight to its segment.
        let len = match self.chance.below(200) {
            0 => 150_000 + self.chance.below(100_000),
            1..=10 => 3_000 + self.chance.below(12_000),
            _ => self.chance.below(300),
        };
        (name, name.body(len as usize))
    }

    /// A PUB or a MPUB; answers the command, and notes what is in it.
    fn new_command(&mut self) -> (Vec<Name>, Vec<u8>) {
        let count = if self.chance.one_in(4) { 2 + self.chance.below(12) } else { 1 };
        let (names, bodies): (Vec<Name>, Vec<Vec<u8>>) = (0..count).map(|_| self.new_body()).unzip();
        let command = match count {
            1 => command_with_body(&format!("PUB {}", self.topic), &bodies[0]),
            _ => multi_publish(self.topic, &bodies),
        };
        self.seen.push(ClientEvent::Sent(names.clone()));
        (names, command)
    }

    /// Several commands in flight, then their answers.
    fn publish(&mut self) -> io::Result<()> {
        loop {
            let window = 1 + self.chance.below(12);
            let (names, commands): (Vec<_>, Vec<_>) = (0..window).map(|_| self.new_command()).unzip();
            self.client.write(&commands.concat())?;
            for names in names {
                self.client.ok()?;
                self.seen.push(ClientEvent::Acknowledged(names));
            }
        }
    }

    /// Consumes, finishes most, and now and then publishes: its OK settles the FINs before it.
    fn consume(&mut self, channel: usize) -> io::Result<()> {
        self.client.write(b"RDY 40\n")?;
        let mut finished = Vec::new();
        loop {
            let message = self.client.message()?;
            let Some(name) = Name::of(&message.body) else {
                self.seen.push(ClientEvent::Broken(message.body));
                continue;
            };
            self.seen.push(ClientEvent::Delivered { channel, name });
            // Messages without an answer here stay in flight until the crash.
            if !self.chance.one_in(20) {
                self.seen.push(ClientEvent::Finished { channel, name });
                self.client.finish(&message.id)?;
                finished.push(name);
            }
            if self.chance.one_in(12) {
                let (names, command) = self.new_command();
                self.client.write(&command)?;
                self.client.ok()?;
                self.seen.push(ClientEvent::Acknowledged(names));
                self.seen.push(ClientEvent::Settled { channel, names: std::mem::take(&mut finished) });
            }
        }
    }
}

/// Runs the load until the node is killed; answers what each connection saw, by topic.
fn load(node: &mut Node, topics: &[String], round: u64, chance: &mut Chance) -> Vec<(String, Vec<ClientEvent>)> {
    let (address, killed) = (node.tcp(), AtomicBool::new(false));
    let started = Barrier::new((PUBLISHERS + CONSUMERS) as usize + 1);
    let seeds: Vec<u64> = (0..PUBLISHERS + CONSUMERS).map(|_| chance.next()).collect();
    let wait = Duration::from_micros(2_000 + chance.below(300_000));
    let run = |number: u64, seed: u64| {
        let mut chance = Chance::new(seed);
        // The newest topic is always published to and consumed by somebody.
        let topic = if number.is_multiple_of(PUBLISHERS) { topics.len() - 1 } else { chance.below(topics.len() as u64) as usize };
        let client = Client::connect(address).expect("the node runs");
        let topic = &topics[topic];
        let mut connection = Connection { client, topic, round, number, next: 0, chance, seen: Vec::new() };
        let consumes = number >= PUBLISHERS;
        let channel = (number % 2) as usize;
        if consumes {
            connection.client.write(format!("SUB {topic} {}\n", CHANNELS[channel]).as_bytes()).expect("the node runs");
            connection.client.ok().expect("the node runs");
        }
        started.wait();
        let ended = if consumes { connection.consume(channel) } else { connection.publish() };
        let error = ended.expect_err("it goes on until the connection breaks");
        assert!(killed.load(Ordering::SeqCst), "the node runs, but a connection broke: {error}");
        (topic.clone(), connection.seen)
    };
    let run = &run;
    std::thread::scope(|scope| {
        let numbers = 0..PUBLISHERS + CONSUMERS;
        let threads: Vec<_> = numbers.zip(seeds).map(|(n, seed)| scope.spawn(move || run(n, seed))).collect();
        started.wait();
        std::thread::sleep(wait);
        killed.store(true, Ordering::SeqCst);
        node.kill();
        threads.into_iter().map(|thread| thread.join().expect("a connection of the load")).collect()
    })
}

/// Consumes one channel up to a sentinel, finishes everything and settles it.
fn drain(address: SocketAddr, name: &str, topic: &mut Topic, channel: usize, sentinel: Name) -> Result<u64, String> {
    let broken = |error: io::Error| format!("while {} is consumed: {error}", CHANNELS[channel]);
    let mut client = Client::connect(address).map_err(broken)?;
    client.subscribe(name, CHANNELS[channel], 200).map_err(broken)?;
    let mut finished = HashSet::new();
    loop {
        let message = client.message().map_err(broken)?;
        let found = Name::of(&message.body).ok_or_else(|| describe_broken(&message.body))?;
        topic.delivered(channel, found)?;
        client.finish(&message.id).map_err(broken)?;
        if !finished.insert(found) {
            return Err(format!("{found:?} comes twice on {}, though it was finished in time", CHANNELS[channel]));
        }
        topic.known(&found)?.channels[channel] = OnChannel::Finished;
        if found == sentinel {
            break;
        }
    }
    // Nothing is left, so what follows is for the FINs alone: its OK makes them durable. It arrives in the next round.
    let name_of_seal = Name { number: sentinel.number + 10 + channel as u64, ..sentinel };
    topic.apply(vec![ClientEvent::Sent(vec![name_of_seal])])?;
    client.publish(name, &name_of_seal.body(8)).map_err(broken)?;
    let count = finished.len() as u64;
    let names = finished.into_iter().collect();
    topic.apply(vec![ClientEvent::Acknowledged(vec![name_of_seal]), ClientEvent::Settled { channel, names }])?;
    Ok(count)
}

/// Consumes both channels of a topic after a restart and compares the messages with the sent ones.
fn verify(address: SocketAddr, name: &str, topic: &mut Topic, round: u64) -> Result<u64, String> {
    // Seals of this very verification are acknowledged between the two channels: they are looked for in the next one.
    let before: HashSet<Name> = topic.messages.keys().copied().collect();
    let sentinel = Name { round, connection: u64::MAX >> 32, number: 1 };
    topic.apply(vec![ClientEvent::Sent(vec![sentinel])])?;
    let mut client = Client::connect(address).map_err(|e| e.to_string())?;
    client.publish(name, &sentinel.body(8)).map_err(|e| format!("publishing the sentinel: {e}"))?;
    topic.apply(vec![ClientEvent::Acknowledged(vec![sentinel])])?;
    let mut count = 0;
    for channel in 0..CHANNELS.len() {
        count += drain(address, name, topic, channel, sentinel)?;
    }
    let mut now = Topic::default();
    let seals: Vec<Name> = topic.messages.keys().filter(|name| !before.contains(name) && **name != sentinel).copied().collect();
    for seal in seals {
        let message = topic.messages.remove(&seal).expect("it was listed a moment ago");
        now.messages.insert(seal, message);
    }
    topic.check_complete()?;
    topic.messages.extend(now.messages);
    Ok(count)
}

/// Creates both channels before the first publish, so that both get every message.
fn create(address: SocketAddr, name: &str) -> io::Result<()> {
    CHANNELS.iter().try_for_each(|channel| Client::connect(address)?.subscribe(name, channel, 0))
}

fn number_from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

fn run(node: &mut Node, rounds: u64, limit: Duration, seed: u64) -> Result<(), String> {
    let began = Instant::now();
    let mut chance = Chance::new(seed);
    let mut topics: BTreeMap<String, Topic> = BTreeMap::new();
    let (mut delivered, mut restart_max) = (0, Duration::ZERO);
    for n in 0..OLD_TOPICS {
        let name = format!("old-{n}");
        create(node.tcp(), &name).map_err(|e| format!("{name}: {e}"))?;
        topics.insert(name, Topic::default());
    }
    let mut reused = Reused::default();
    for round in 1..=rounds {
        let fail = |what: String| format!("round {round} of {rounds}, seed {seed}: {what}");
        if began.elapsed() > limit {
            return Err(fail(format!("{limit:?} are over: RINGMQ_CRASH_SECONDS")));
        }
        let new = format!("new-{round}");
        create(node.tcp(), &new).map_err(|e| fail(format!("{new}: {e}")))?;
        topics.insert(new.clone(), Topic::default());
        let mut in_use: Vec<String> = (0..OLD_TOPICS).map(|n| format!("old-{n}")).collect();
        in_use.push(new);
        // Those of the round before, too: nothing may come back there.
        let earlier = format!("new-{}", round - 1);
        // One connection consumes what another sent: all that was sent is noted first.
        let (sent, rest): (Vec<_>, Vec<_>) = load(node, &in_use, round, &mut chance)
            .into_iter()
            .map(|(name, seen)| {
                let (sent, rest) = seen.into_iter().partition(|seen| matches!(seen, ClientEvent::Sent(_)));
                ((name.clone(), sent), (name, rest))
            })
            .unzip();
        for (name, seen) in sent.into_iter().chain(rest) {
            topics.entry(name.clone()).or_default().apply(seen).map_err(|what| fail(format!("{name}: {what}")))?;
        }
        for _ in 0..chance.below(8).saturating_sub(5) {
            node.spawn();
            std::thread::sleep(Duration::from_micros(chance.below(60_000)));
            node.kill();
        }
        inspect(node).map_err(fail)?;
        reused.look(&node.data_path());
        let restart = Instant::now();
        node.spawn();
        node.wait_ready().map_err(fail)?;
        restart_max = restart_max.max(restart.elapsed());
        in_use.extend(topics.contains_key(&earlier).then_some(earlier));
        let address = node.tcp();
        delivered += std::thread::scope(|scope| {
            let used = topics.iter_mut().filter(|(name, _)| in_use.contains(name));
            let threads: Vec<_> = used
                .map(|(name, topic)| {
                    scope.spawn(move || verify(address, name, topic, round).map_err(|what| format!("{name}: {what}")))
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join().expect("a verifier does not panic"));
            ended.collect::<Result<Vec<u64>, String>>().map(|counts| counts.iter().sum::<u64>())
        })
        .map_err(fail)?;
        if round % 10 == 0 {
            let sent: usize = topics.values().map(|topic| topic.messages.len()).sum();
            eprintln!(
                "{round} rounds in {:?}: {sent} sent, {delivered} delivered, restart at most {restart_max:?}, {} segments on the \
                 space of others",
                began.elapsed(),
                reused.again.len()
            );
        }
    }
    match rounds >= 50 && reused.again.is_empty() && !node::is_nsqd() {
        true => Err(format!("no segment began on the space of another one in {rounds} rounds")),
        false => Ok(()),
    }
}

/// Files of segments that retention let go, by inode and time of birth, and those of them that were seen again as segments.
#[derive(Default)]
struct Reused {
    spare: HashSet<(u64, SystemTime)>,
    again: HashSet<(u64, SystemTime)>,
}

impl Reused {
    fn look(&mut self, data: &Path) {
        let files = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let about = |file: DirEntry| Some((file.ino(), file.metadata().ok()?.created().ok()?));
        self.spare.extend(files(data.join("spare")).filter_map(about));
        let partitions = files(data.join("topics")).flat_map(|topic| files(topic.path())).filter(|entry| entry.path().is_dir());
        let segments = partitions.flat_map(|partition| files(partition.path()));
        let segments = segments.filter(|file| file.path().extension().is_some_and(|e| e == "segment")).filter_map(about);
        self.again.extend(segments.filter(|file| self.spare.contains(file)));
    }
}

/// Checks that a kill leaves no damage.
fn inspect(node: &Node) -> Result<(), String> {
    if node::is_nsqd() {
        return Ok(());
    }
    let output = Command::new(node::binary()).arg("inspect").arg(node.data_path()).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let damage: Vec<&str> = text.lines().filter(|line| line.contains("DAMAGE")).collect();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("inspect, before the startup: {}\n{}", output.status, damage.join("\n"))),
    }
}

#[test]
fn nothing_acknowledged_is_lost_to_a_kill() {
    let rounds = number_from_env("RINGMQ_CRASH_ROUNDS", 100);
    let limit = Duration::from_secs(number_from_env("RINGMQ_CRASH_SECONDS", 900));
    let seed = number_from_env("RINGMQ_CRASH_SEED", std::process::id() as u64);
    eprintln!("{rounds} rounds, seed {seed}");
    // A small journal laps within a round, and segments roll.
    let mut node = Node::start(&["--shards=2", "--journal-bytes=4MiB", "--max-bytes-per-file=1MiB"]);
    if let Err(what) = run(&mut node, rounds, limit, seed) {
        let log = node.log();
        let kept = node.keep();
        panic!("{what}\n---- the node's log\n{log}\n---- data and log are kept in {}", kept.display());
    }
}

/// The check itself must be able to fail.
#[test]
fn every_kind_of_damage_is_noticed() {
    let name = |number| Name { round: 1, connection: 1, number };
    let fails = |seen: Vec<ClientEvent>, part: &str| {
        let mut topic = Topic::default();
        let result = topic.apply(seen).and_then(|()| topic.check_complete());
        assert!(result.as_ref().is_err_and(|what| what.contains(part)), "{part}: {result:?}");
        topic
    };
    let (a, b) = (name(1), name(2));
    let both = |name| [0, 1].map(|channel| ClientEvent::Finished { channel, name });
    fails(vec![ClientEvent::Sent(vec![a]), ClientEvent::Acknowledged(vec![a])], "lost");
    let mut half = vec![ClientEvent::Sent(vec![a, b]), ClientEvent::Delivered { channel: 0, name: a }];
    half.extend(both(a));
    fails(half, "half a MPUB");
    fails(vec![ClientEvent::Sent(vec![a]), ClientEvent::Delivered { channel: 0, name: a }], "lost");
    fails(vec![ClientEvent::Delivered { channel: 0, name: b }], "invented");
    fails(vec![ClientEvent::Broken(b"x".to_vec())], "nobody sent");
    let settled = ClientEvent::Settled { channel: 0, names: vec![a] };
    fails(vec![ClientEvent::Sent(vec![a]), settled, ClientEvent::Delivered { channel: 0, name: a }], "comes again");
    let mut topic = Topic::default();
    topic.apply(vec![ClientEvent::Sent(vec![a])]).expect("nothing is wrong yet");
    topic.check_complete().expect("not acknowledged, not there");
    let late = topic.apply(vec![ClientEvent::Delivered { channel: 0, name: a }]);
    assert!(late.is_err_and(|what| what.contains("comes now")));
    let mut body = a.body(100);
    assert_eq!(Name::of(&body), Some(a));
    body[50] ^= 1;
    assert_eq!(Name::of(&body), None);
}
