//! Cost of one core per message: a publish of 100 bytes until its OK, and a delivery with its FIN, through `Shard::step`, with a disk
//! that answers at once and clients that take all. A figure is for one message.
//!
//! `cargo bench --bench shard`. In `lone` every message has a turn (and a journal write) of its own; in `busy` 64
//! connections bring 16 per turn each; in `one topic` and `own topics` 64 bring one per turn, all to one topic or each to
//! its own, which makes as many batches. Figures of time vary with the machine; instructions and allocations do not:
//! `benches/instructions` counts them, with valgrind: it runs this program with `--count WHAT SHAPE ROUNDS`, which
//! measures nothing itself, says how many messages the rounds were and what they allocated, and makes what counts in
//! [`counted_step`] alone. So the client's part is not counted, nor, for `deliver`, the publishes before.

mod common;

use criterion::Throughput;
use ringmq::base::{ConnId, CoreId, DiskDone, DiskOp, Now, Peer, Ticks};
use ringmq::codec::nsq::frame::{self, Frame};
use ringmq::codec::nsq::request;
use ringmq::config::Settings;
use ringmq::seam::event::{Effect, Effects, Event};
use ringmq::shard::Shard;
use ringmq_core::sim::memory::first_startup;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BODY: [u8; 100] = [7; 100];
const JOURNAL_BYTES: u64 = 64 << 20;

/// The system's allocator, which also counts while [`counted_step`] runs.
struct Counting;

thread_local! {
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    /// Calls and bytes.
    static ALLOCATED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn count_allocation(bytes: usize) {
    if IS_COUNTING.get() {
        let (calls, all) = ALLOCATED.get();
        ALLOCATED.set((calls + 1, all + bytes as u64));
    }
}

// SAFETY: everything is handed on as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation(size);
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Publishes of a turn: connections, messages and topics.
struct Shape {
    name: &'static str,
    connections: usize,
    per_turn: usize,
    /// True if each connection has its own topic.
    is_own: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { name: "lone", connections: 1, per_turn: 1, is_own: false },
    Shape { name: "busy", connections: 64, per_turn: 16, is_own: false },
    Shape { name: "one topic", connections: 64, per_turn: 1, is_own: false },
    Shape { name: "own topics", connections: 64, per_turn: 1, is_own: true },
];

impl Shape {
    fn messages(&self) -> usize {
        self.connections * self.per_turn
    }

    fn topic(&self, connection: usize) -> String {
        if self.is_own { format!("bench-{connection}") } else { "bench".into() }
    }

    /// Commands that connection `i` publishes in a turn.
    fn publishes(&self, i: usize) -> Vec<u8> {
        let mut bytes = vec![];
        (0..self.per_turn).for_each(|_| request::publish(&mut bytes, &self.topic(i), &BODY));
        bytes
    }
}

struct Core {
    shard: Shard,
    now: Now,
    effects: Effects,
    /// Received bytes, by connection.
    received: Vec<Vec<u8>>,
    is_counted: bool,
    spent: Duration,
}

/// One step of the shard, which valgrind counts by this function's name; so it is never inlined.
#[inline(never)]
fn counted_step(shard: &mut Shard, now: Now, event: Event<'_>, effects: &mut Effects) {
    IS_COUNTING.set(true);
    shard.step(now, event, effects);
    std::hint::black_box(effects);
    IS_COUNTING.set(false);
}

impl Core {
    fn new(connections: usize) -> Self {
        let settings = Settings { journal_bytes: JOURNAL_BYTES, scrub_bytes_per_second: 0, ..Settings::default() };
        let shard = first_startup(0, 1, &Arc::new(settings), 1);
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

    /// Begins the measurement.
    fn begin(&mut self) {
        (self.is_counted, self.spent) = (true, Duration::ZERO);
    }

    /// Time since the beginning of the measurement.
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
                        drop(request); // as a disk does before it tells
                        self.step(Event::Disk { op, outcome: Ok(done) });
                    }
                    Effect::PauseReading { .. } | Effect::ResumeReading { .. } => {}
                    // The catalog of topics, for the HTTP thread.
                    Effect::Pass { to: CoreId::HTTP, .. } => {}
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

    /// A turn in which the connections bring these bytes, the first one the first.
    fn publish(&mut self, bytes: &[(usize, Vec<u8>)]) {
        self.pass_time();
        for (i, bytes) in bytes {
            self.step(Event::Bytes { conn: ConnId(*i as u64), bytes });
        }
        self.turn();
    }

    fn took(&mut self, i: usize) -> Vec<u8> {
        std::mem::take(&mut self.received[i])
    }
}

/// Time in the shard for `rounds` turns of publishes, until their OKs.
fn publish(shape: &Shape, rounds: u64) -> Duration {
    let mut core = Core::new(shape.connections);
    let bytes: Vec<_> = (0..shape.connections).map(|i| (i, shape.publishes(i))).collect();
    core.publish(&bytes);
    core.received.iter_mut().for_each(Vec::clear);
    core.begin();
    for _ in 0..rounds {
        core.publish(&bytes);
        for i in 0..shape.connections {
            assert_eq!(core.took(i).len(), shape.per_turn * 10, "an OK each");
        }
    }
    core.end()
}

/// Time in the shard for the deliveries of as many messages and their FINs. One more connection publishes them.
fn deliver(shape: &Shape, rounds: u64) -> Duration {
    let Shape { connections, per_turn, .. } = *shape;
    let mut core = Core::new(connections + 1);
    let bytes = [(connections, (0..connections).flat_map(|i| shape.publishes(i)).collect())];
    for i in 0..connections {
        core.step(Event::Bytes { conn: ConnId(i as u64), bytes: format!("SUB {} channel\n", shape.topic(i)).as_bytes() });
    }
    core.turn();
    core.received.iter_mut().for_each(Vec::clear);
    let (mut spent, ready) = (Duration::ZERO, format!("RDY {per_turn}\n"));
    for _ in 0..rounds {
        core.publish(&bytes);
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
        assert_eq!(delivered, shape.messages());
        spent += core.end();
        for i in 0..connections {
            core.step(Event::Bytes { conn: ConnId(i as u64), bytes: b"RDY 0\n" });
        }
        core.received.iter_mut().for_each(Vec::clear);
    }
    spent
}

type Run = fn(&Shape, u64) -> Duration;
const RUNS: [(&str, Run); 2] = [("publish", publish), ("deliver", deliver)];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, count, what, shape, rounds, ..] = &args[..]
        && count == "--count"
    {
        let run = RUNS.iter().find(|(name, _)| name == what).expect("publish or deliver").1;
        let shape = SHAPES.iter().find(|s| s.name == shape).expect("a shape's name");
        let rounds: u64 = rounds.parse().expect("a number of rounds");
        run(shape, rounds);
        let (messages, (calls, bytes)) = (shape.messages() as u64 * rounds, ALLOCATED.get());
        return println!("{messages} messages, {calls} allocations, {bytes} bytes");
    }
    let mut c = common::criterion();
    for (name, run) in RUNS {
        for shape in &SHAPES {
            let mut group = c.benchmark_group(name);
            group.throughput(Throughput::Elements(1));
            let messages = shape.messages() as u64;
            group.bench_function(shape.name, |b| {
                // One iteration is one message.
                b.iter_custom(|n| run(shape, n.div_ceil(messages)).mul_f64(n as f64 / (n.next_multiple_of(messages)) as f64));
            });
            group.finish();
        }
    }
    c.final_summary();
}
