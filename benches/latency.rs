//! From a publish to its delivery, through a real node over loopback: one connection sends a PUB, another one has the
//! message, which the node delivers once it is durable. One message under way at a time; FIN is sent after it was timed.
//!
//! `cargo bench --bench latency`. The node (`--shards=1`) is on the first CPU, the client, one thread, on the last.
//! Criterion's figure is a mean; the percentiles of all measured messages are printed after it, since the tail counts.
//! With load beside, at a fixed rate: `ringmq load --mode=both --rate=5000` (docs/benchmarks.md).

mod common;
#[path = "../tests/node/mod.rs"]
mod node;

use criterion::{Criterion, SamplingMode};
use node::{Client, Node, command_with_body};
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [100, 1024, 16 << 10];
/// RDY of a consumer that reads on: more messages than are ever in flight.
const READY: u32 = 100;

struct Pair {
    publisher: Client,
    consumer: Client,
    command: Vec<u8>,
    ns: Vec<u32>,
}

impl Pair {
    fn connect(node: &Node, size: usize) -> Pair {
        let topic = format!("latency-{size}");
        let mut publisher = Client::connect(node.tcp()).expect("the node listens");
        let mut consumer = Client::connect(node.tcp()).expect("the node listens");
        publisher.publish(&topic, b"the first creates the topic").expect("the node answers");
        consumer.subscribe(&topic, "c", READY).expect("the node answers");
        let first = consumer.message().expect("the node delivers");
        consumer.finish(&first.id).expect("the node reads");
        Pair { publisher, consumer, command: command_with_body(&format!("PUB {topic}"), &vec![7; size]), ns: vec![] }
    }

    fn run(&mut self, times: u64) -> Duration {
        let mut took = Duration::ZERO;
        for _ in 0..times {
            let begun = Instant::now();
            self.publisher.write(&self.command).expect("the node reads");
            let message = self.consumer.message().expect("the node delivers");
            let one = begun.elapsed();
            self.publisher.ok().expect("the node answers");
            self.consumer.finish(&message.id).expect("the node reads");
            self.ns.push(one.as_nanos().min(u32::MAX as u128) as u32);
            took += one;
        }
        took
    }
}

fn main() {
    let mut c: Criterion = common::criterion();
    // Started before this thread is pinned: it would inherit that.
    let node = Node::start(&["--shards=1"]);
    common::pin(common::last_cpu());
    let mut group = c.benchmark_group("from publish to delivery");
    group.sampling_mode(SamplingMode::Flat);
    for size in SIZES {
        let mut pair = Pair::connect(&node, size);
        group.bench_function(format!("{size} B"), |b| b.iter_custom(|times| pair.run(times)));
        pair.ns.sort_unstable();
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|q| common::percentile_us(&pair.ns, q));
        println!("{size} B, {} messages, us: p50 {p50:.0}, p90 {p90:.0}, p99 {p99:.0}, p99.9 {p999:.0}", pair.ns.len());
    }
    group.finish();
    Criterion::final_summary(&c);
}
