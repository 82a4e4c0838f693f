//! A message from one core to another: a publish of 100 B into the mesh's queues and out of them, by the number that one
//! turn has for the other core, and to and fro between two CPUs that are both awake. A figure is for one message; of
//! `there and back` for one round trip, so two hops.
//!
//! `cargo bench --bench mesh`. The cost of waking a core that sleeps is that of `cargo bench --bench wake`.

mod common;

use criterion::{Criterion, Throughput};
use ringmq::base::{CoreId, PartitionId, TopicId, TopicInfo, TopicName, TopicRef};
use ringmq::mesh::{Port, mesh};
use ringmq::seam::message::{MeshMessage, OwnedBodies, Ticket};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn topic() -> TopicRef {
    Arc::new(TopicInfo { id: TopicId([1; 16]), name: TopicName::new("bench").expect("a valid name"), partitions: 1 })
}

fn message(topic: &TopicRef, bytes: &[u8]) -> MeshMessage {
    let mut bodies = OwnedBodies::default();
    bodies.push(bytes);
    MeshMessage::Publish { ticket: Ticket(1), topic: topic.clone(), partition: PartitionId(0), bodies }
}

fn through_the_queue(c: &mut Criterion) {
    let (mut ports, _http) = mesh(2);
    let [one, other] = &mut ports[..] else { panic!("two cores") };
    let topic = topic();
    let mut group = c.benchmark_group("mesh, a message with its body, in and out on one CPU");
    for in_a_turn in [1, 16, 256] {
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("{in_a_turn} a turn"), |b| {
            b.iter_custom(|times| {
                let turns = times.div_ceil(in_a_turn);
                let begun = Instant::now();
                for _ in 0..turns {
                    (0..in_a_turn).for_each(|_| one.send(CoreId(1), message(&topic, black_box(&[7; 100]))));
                    one.flush();
                    assert_eq!(other.drain(&mut |_, m| drop(black_box(m))) as u64, in_a_turn);
                }
                begun.elapsed().mul_f64(times as f64 / (turns * in_a_turn) as f64)
            })
        });
    }
    group.finish();
}

/// Waits for a message.
fn wait(port: &mut Port, is_over: &AtomicBool) -> Option<MeshMessage> {
    let mut got = None;
    loop {
        if port.drain(&mut |_, m| got = Some(m)) > 0 || is_over.load(Ordering::Relaxed) {
            return got;
        }
        std::hint::spin_loop();
    }
}

/// Time of one message that two sleepless threads pass back and forth, each on a CPU of its own.
fn there_and_back(times: u64) -> Duration {
    let (mut ports, _http) = mesh(2);
    let (mut other, mut one) = (ports.pop().expect("two"), ports.pop().expect("two"));
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = is_over.clone();
    let thread = std::thread::spawn(move || {
        common::pin(common::last_cpu());
        while let Some(message) = wait(&mut other, &ends) {
            other.send(CoreId(0), message);
            other.flush();
        }
    });
    let never = AtomicBool::new(false);
    let mut ball = message(&topic(), &[7; 100]);
    let mut begun = Instant::now();
    // The first of them waits until the thread is there.
    for time in 0..=times {
        one.send(CoreId(1), ball);
        one.flush();
        ball = wait(&mut one, &never).expect("it comes back");
        if time == 0 {
            begun = Instant::now();
        }
    }
    let took = begun.elapsed();
    is_over.store(true, Ordering::Relaxed);
    thread.join().expect("it ends");
    took
}

fn main() {
    let mut c = common::criterion();
    through_the_queue(&mut c);
    if common::last_cpu() == 0 {
        return eprintln!("one CPU: there is no other core to send to");
    }
    let measure = |times| {
        // On a thread that may be pinned.
        let run = move || {
            common::pin(0);
            there_and_back(times)
        };
        std::thread::spawn(run).join().expect("it does not panic")
    };
    let mut group = c.benchmark_group("mesh, between two CPUs");
    group.bench_function("there and back", |b| b.iter_custom(measure));
    group.finish();
    Criterion::final_summary(&c);
}
