//! What one core pays per message: a publish of 100 bytes until its OK, and a delivery with its FIN, through
//! `Shard::step`, with a disk that answers at once and clients that take all. A figure is for one message.
//!
//! `cargo bench --bench shard`. In `1 connection` every message has a turn (and a journal write) of its own; in `64
//! connections` each brings 16 per turn. Figures of time vary with the machine; instructions do not:
//! `benches/instructions` counts them, with valgrind: it runs this program with `--count WHAT CONNECTIONS ROUNDS`, which
//! measures nothing itself, says how many messages the rounds were, and makes what counts in [`counted_step`] alone. So
//! the client's part is not counted, nor, for `deliver`, the publishes before.

mod common;

use criterion::Throughput;
use ringmq::base::{ConnId, DiskDone, DiskOp, Now, Peer, Ticks};
use ringmq::codec::nsq::frame::{self, Frame};
use ringmq::codec::nsq::request;
use ringmq::config::Settings;
use ringmq::shard::{Effect, Effects, Event, Shard};
use ringmq::sim::memory::first_start;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BODY: [u8; 100] = [7; 100];
const JOURNAL_BYTES: u64 = 64 << 20;

struct Core {
    shard: Shard,
    now: Now,
    effects: Effects,
    /// By connection, what it was sent.
    received: Vec<Vec<u8>>,
    is_counted: bool,
    spent: Duration,
}

/// What valgrind counts: by this name, so that it is never inlined.
#[inline(never)]
fn counted_step(shard: &mut Shard, now: Now, event: Event<'_>, effects: &mut Effects) {
    shard.step(now, event, effects);
    std::hint::black_box(effects);
}

impl Core {
    fn new(connections: usize) -> Self {
        let settings = Settings { journal_bytes: JOURNAL_BYTES, scrub_bytes_per_second: 0, ..Settings::default() };
        let shard = first_start(0, 1, &Arc::new(settings), 1);
        let now = Now { ticks: Ticks(1), unix_ns: 1_700_000_000_000_000_000 };
        let mut core = Core { shard, now, effects: vec![], received: vec![], is_counted: false, spent: Duration::ZERO };
        for i in 0..connections {
            core.received.push(vec![]);
            let conn = ConnId(i as u64);
            core.step(Event::Opened { conn, peer: Peer("bench:1".into()) });
            core.step(Event::Bytes { conn, bytes: b"  V2" });
        }
        core.turn();
        core
    }

    fn step(&mut self, event: Event<'_>) {
        let start = Instant::now();
        if self.is_counted {
            counted_step(&mut self.shard, self.now, event, &mut self.effects);
        } else {
            self.shard.step(self.now, event, &mut self.effects);
        }
        self.spent += start.elapsed();
    }

    /// From here on it is measured.
    fn begin(&mut self) {
        (self.is_counted, self.spent) = (true, Duration::ZERO);
    }

    /// What was spent since the beginning.
    fn end(&mut self) -> Duration {
        self.is_counted = false;
        self.spent
    }

    /// Ends turns until nothing is under way.
    fn turn(&mut self) {
        loop {
            self.step(Event::TurnEnd);
            if self.effects.is_empty() {
                match self.shard.deadline() {
                    Some(at) if at <= self.now.ticks => self.step(Event::Tick),
                    _ => return,
                }
            }
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Send { conn, bytes } => {
                        self.step(Event::Sent { conn, bytes: bytes.len() });
                        self.received[conn.0 as usize].extend_from_slice(&bytes);
                    }
                    Effect::Disk { op, request } => {
                        let read = |len| DiskDone::Read(vec![0; len].into());
                        let done = if let DiskOp::Read { len, .. } = request { read(len) } else { DiskDone::Done };
                        self.step(Event::Disk { op, outcome: Ok(done) });
                    }
                    Effect::PauseReading { .. } | Effect::ResumeReading { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn pass_time(&mut self) {
        // Little, so that no heartbeat falls due in a run.
        self.now.ticks = self.now.ticks + Duration::from_micros(1);
        self.now.unix_ns += 1_000;
    }

    fn publish(&mut self, connections: std::ops::Range<usize>, bytes: &[u8]) {
        self.pass_time();
        for i in connections {
            self.step(Event::Bytes { conn: ConnId(i as u64), bytes });
        }
        self.turn();
    }

    fn took(&mut self, i: usize) -> Vec<u8> {
        std::mem::take(&mut self.received[i])
    }
}

fn publishes(per_turn: usize) -> Vec<u8> {
    let mut bytes = vec![];
    (0..per_turn).for_each(|_| request::publish(&mut bytes, "bench", &BODY));
    bytes
}

/// Time in the shard for `rounds` turns of publishes, until their OKs.
fn publish(connections: usize, per_turn: usize, rounds: u64) -> Duration {
    let mut core = Core::new(connections);
    let bytes = publishes(per_turn);
    core.publish(0..connections, &bytes);
    core.received.iter_mut().for_each(Vec::clear);
    core.begin();
    for _ in 0..rounds {
        core.publish(0..connections, &bytes);
        for i in 0..connections {
            assert_eq!(core.took(i).len(), per_turn * 10, "an OK each");
        }
    }
    core.end()
}

/// Time in the shard for the deliveries of as many messages and their FINs.
fn deliver(connections: usize, per_turn: usize, rounds: u64) -> Duration {
    let mut core = Core::new(connections + 1);
    let (messages, bytes) = (connections * per_turn, publishes(connections * per_turn));
    for i in 0..connections {
        core.step(Event::Bytes { conn: ConnId(i as u64), bytes: b"SUB bench channel\n" });
    }
    core.turn();
    core.received.iter_mut().for_each(Vec::clear);
    let (mut spent, ready) = (Duration::ZERO, format!("RDY {per_turn}\n"));
    for _ in 0..rounds {
        core.publish(connections..connections + 1, &bytes);
        core.begin();
        for i in 0..connections {
            core.step(Event::Bytes { conn: ConnId(i as u64), bytes: ready.as_bytes() });
        }
        core.turn();
        let mut delivered = 0;
        core.pass_time();
        for i in 0..connections {
            let got = core.took(i);
            let (frames, _) = frame::decode_all(&got).expect("well-formed frames");
            let mut fins = vec![];
            for f in frames {
                let Frame::Message(m) = f else { panic!("{f:?}") };
                request::finish(&mut fins, &m.id);
                delivered += 1;
            }
            // Nothing goes out on the credit that comes back: the next messages wait for the next RDY.
            core.step(Event::Bytes { conn: ConnId(i as u64), bytes: &fins });
        }
        core.turn();
        assert_eq!(delivered, messages);
        spent += core.end();
        for i in 0..connections {
            core.step(Event::Bytes { conn: ConnId(i as u64), bytes: b"RDY 0\n" });
        }
        core.received.iter_mut().for_each(Vec::clear);
    }
    spent
}

type Run = fn(usize, usize, u64) -> Duration;
const RUNS: [(&str, Run); 2] = [("publish", publish), ("deliver", deliver)];

fn per_turn(connections: usize) -> usize {
    if connections == 1 { 1 } else { 16 }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, count, what, connections, rounds, ..] = &args[..]
        && count == "--count"
    {
        let run = RUNS.iter().find(|(name, _)| name == what).expect("publish or deliver").1;
        let connections: usize = connections.parse().expect("a number of connections");
        let rounds: u64 = rounds.parse().expect("a number of rounds");
        run(connections, per_turn(connections), rounds);
        return println!("{} messages", connections as u64 * per_turn(connections) as u64 * rounds);
    }
    let mut c = common::criterion();
    for (name, run) in RUNS {
        for connections in [1, 64] {
            let per_turn = per_turn(connections);
            let mut group = c.benchmark_group(name);
            group.throughput(Throughput::Elements(1));
            let messages = (connections * per_turn) as u64;
            group.bench_function(format!("{connections} connections"), |b| {
                // One iteration is one message.
                b.iter_custom(|n| {
                    run(connections, per_turn, n.div_ceil(messages)).mul_f64(n as f64 / (n.next_multiple_of(messages)) as f64)
                });
            });
            group.finish();
        }
    }
    c.final_summary();
}
