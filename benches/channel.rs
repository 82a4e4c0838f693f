//! Cost of a channel per message with a million messages in flight, and of its timer wheel per timer.
//!
//! `cargo bench --bench channel`. The log is in memory; a figure is for the number of messages its name says.

mod common;

use criterion::{BatchSize, Criterion, Throughput};
use ringmq::base::{ChannelName, ConnId, CoreId, Epoch, LogId, PartitionId, Position, SubId, Ticks, TopicId, Wheel};
use ringmq::channel::{Channel, ChannelOptions, Run, Sink, Source};
use ringmq::format::batch::{Batch, BatchBuilder, Message, Stamp};
use ringmq::format::cursor::CursorImage;
use ringmq::log::fetch::Fetch;
use ringmq::{base::client::ClientInfo, seam::message::SubOptions};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

const IN_FLIGHT: u64 = 1_000_000;
const BATCH: u64 = 1_000;
/// Messages handled per measured round.
const ROUND: u64 = 10_000;
const TIMEOUT_MS: u64 = 60_000;
const SUB: SubId = SubId { core: CoreId(0), conn: ConnId(1) };

struct Log(HashMap<i64, Batch>);

impl Log {
    fn new(messages: u64) -> Self {
        let mut batches = HashMap::new();
        let mut at = Position::START;
        for _ in 0..messages / BATCH {
            let mut builder = BatchBuilder::default();
            (0..BATCH).for_each(|_| builder.push(1, &[7; 100]));
            let stamp = Stamp { topic_id: TopicId([1; 16]), partition: PartitionId(0), epoch: Epoch(1), at, prev_crc: 0 };
            let batch = builder.seal(stamp);
            at = batch.header.end();
            batches.insert(batch.header.offset.get(), batch);
        }
        Log(batches)
    }
}

impl Source for Log {
    fn unix_ns(&self) -> i64 {
        0
    }

    fn fetch(&mut self, offset: i64) -> Fetch {
        self.0.get(&offset).map_or(Fetch::End, |batch| Fetch::Batch(batch.clone()))
    }
}

struct Null;

impl Sink for Null {
    fn deliver(&mut self, _: SubId, message: &Message<'_>, _: u16, _: Option<(i64, u32)>) -> bool {
        black_box((message.body, message.log_id));
        true
    }

    fn deliver_range(&mut self, _: SubId, run: &Run<'_>) -> bool {
        black_box((run.stored(), run.first, run.num));
        true
    }
}

fn ms(ms: u64) -> Ticks {
    Ticks(ms * 1_000_000)
}

/// A channel with [`IN_FLIGHT`] messages at one client, in runs if it is ranged.
fn loaded(log: &mut Log, ranged: bool) -> Channel {
    let mut channel = channel_of(ranged);
    channel.lend(SUB, IN_FLIGHT as u32);
    // Spread over a second, as a fast stream would be.
    let mut now = 0;
    while channel.deliver(ms(now), log, &mut Null) {
        now += 2;
    }
    assert_eq!(channel.in_flight_count(), IN_FLIGHT);
    channel
}

fn empty() -> Channel {
    channel_of(false)
}

/// A channel at the start of the log, with one client.
fn channel_of(ranged: bool) -> Channel {
    let cursor = CursorImage::new(ChannelName::new("bench").expect("a valid name"), Epoch(1), 0, Position::START);
    let options = ChannelOptions {
        max_msg_timeout: Duration::from_secs(900),
        max_req_timeout: Duration::from_secs(3600),
        end_to_end: None,
    };
    let mut channel = Channel::new(options, PartitionId(0), cursor);
    channel.subscribe(
        SUB,
        SubOptions {
            msg_timeout_ms: TIMEOUT_MS,
            sample_rate: 0,
            ranged,
            ordered: false,
            placed: false,
            client: ClientInfo::default(),
        },
    );
    channel
}

fn channel(c: &mut Criterion) {
    let mut log = Log::new(2 * IN_FLIGHT);
    let mut group = c.benchmark_group("channel, 1 M in flight, 10,000 messages");
    group.throughput(Throughput::Elements(ROUND)).sample_size(10);

    let mut channel = loaded(&mut log, false);
    let mut next = 1;
    group.bench_function("FIN in order, and as many delivered", |b| {
        b.iter(|| {
            // At the end of the log, from the start again.
            if next + ROUND > IN_FLIGHT {
                channel = loaded(&mut log, false);
                next = 1;
            }
            for id in next..next + ROUND {
                channel.finish(ms(3000), SUB, LogId(id)).expect("in flight");
            }
            next += ROUND;
            channel.lend(SUB, ROUND as u32);
            while channel.deliver(ms(3000), &mut log, &mut Null) {}
            black_box(channel.take_finished());
        })
    });

    group.bench_function("FIN of every 97th", |b| {
        b.iter_batched_ref(
            || loaded(&mut log, false),
            |channel| (1..=ROUND).for_each(|n| channel.finish(ms(3000), SUB, LogId(n * 97)).expect("in flight")),
            BatchSize::PerIteration,
        )
    });

    let mut channel = loaded(&mut log, false);
    group.bench_function("REQ 0, and delivered again", |b| {
        b.iter(|| {
            for n in 1..=ROUND {
                channel.requeue(ms(3000), SUB, LogId(n * 97), Duration::ZERO).expect("in flight");
            }
            channel.lend(SUB, ROUND as u32);
            while channel.deliver(ms(3000), &mut log, &mut Null) {}
        })
    });

    let mut channel = loaded(&mut log, false);
    group.bench_function("TOUCH", |b| {
        b.iter(|| (1..=ROUND).for_each(|n| channel.touch(ms(3000), SUB, LogId(n * 97)).expect("in flight")))
    });

    let mut channel = loaded(&mut log, true);
    let mut next = 1;
    group.bench_function("ranges: FIN of whole batches, and as many delivered", |b| {
        b.iter(|| {
            if next + ROUND > IN_FLIGHT {
                channel = loaded(&mut log, true);
                next = 1;
            }
            for first in (next..next + ROUND).step_by(BATCH as usize) {
                let done = channel.finish_range(ms(3000), SUB, LogId(first), LogId(first + BATCH - 1));
                assert_eq!(done, BATCH);
            }
            next += ROUND;
            channel.lend(SUB, ROUND as u32);
            while channel.deliver(ms(3000), &mut log, &mut Null) {}
            black_box(channel.take_finished());
        })
    });

    let mut channel = loaded(&mut log, true);
    group.bench_function("ranges: REQ 0 of 100 of each 1,000, and delivered again", |b| {
        b.iter(|| {
            for n in 0..ROUND / 100 {
                let (first, last) = (LogId(n * BATCH + 401), LogId(n * BATCH + 500));
                assert_eq!(channel.requeue_range(ms(3000), SUB, first, last, Duration::ZERO), 100);
            }
            channel.lend(SUB, ROUND as u32);
            while channel.deliver(ms(3000), &mut log, &mut Null) {}
        })
    });

    group.throughput(Throughput::Elements(IN_FLIGHT));
    group.bench_function("ranges: timeout of all 1 M", |b| {
        b.iter_batched_ref(
            || loaded(&mut log, true),
            |channel| {
                let mut late = 0;
                channel.tick(ms(2 * TIMEOUT_MS), &mut |_, num| late += num as u64);
                assert_eq!(late, IN_FLIGHT);
            },
            BatchSize::PerIteration,
        )
    });
    group.bench_function("timeout of all 1 M", |b| {
        b.iter_batched_ref(
            || loaded(&mut log, false),
            |channel| {
                let (now, mut late) = (ms(2 * TIMEOUT_MS), 0);
                while channel.deadline().is_some_and(|at| at <= now) {
                    channel.tick(now, &mut |_, num| late += num as u64);
                }
                assert_eq!(late, IN_FLIGHT);
            },
            BatchSize::PerIteration,
        )
    });
    group.finish();
}

/// Takes messages in rounds, as a consumer does that finishes all, or puts every `each`th off for a minute.
fn consume(channel: &mut Channel, log: &mut Log, messages: u64, each: Option<u64>) {
    for first in (1..=messages).step_by(BATCH as usize) {
        channel.lend(SUB, BATCH as u32);
        while channel.deliver(ms(0), log, &mut Null) {}
        for id in first..first + BATCH {
            match each {
                Some(each) if id % each == 0 => channel.requeue(ms(first / 100), SUB, LogId(id), Duration::from_secs(60)),
                _ => channel.finish(ms(0), SUB, LogId(id)),
            }
            .expect("in flight");
        }
        black_box(channel.take_finished());
    }
}

/// Cost of unfinished messages for other deliveries, and of a million of them.
fn gaps(c: &mut Criterion) {
    const MESSAGES: u64 = 200_000;
    let mut log = Log::new(2 * IN_FLIGHT);
    let mut group = c.benchmark_group("gaps");
    group.sample_size(10).throughput(Throughput::Elements(MESSAGES));
    for (name, each) in [("200,000 finished", None), ("200,000, every second put off for a minute", Some(2))] {
        group.bench_function(name, |b| {
            b.iter_batched_ref(empty, |channel| consume(channel, &mut log, MESSAGES, each), BatchSize::PerIteration)
        });
    }
    let mut channel = empty();
    consume(&mut channel, &mut log, 2 * IN_FLIGHT, Some(2));
    assert_eq!(channel.deferred_count(), IN_FLIGHT);
    println!("a million gaps: {:.1} bytes each", channel.memory_bytes() as f64 / IN_FLIGHT as f64);
    let mut bytes = vec![];
    channel.image().encode(&mut bytes);
    println!("the cursor of a million gaps: {} bytes", bytes.len());
    group.throughput(Throughput::Elements(IN_FLIGHT));
    group.bench_function("the cursor of 1 M gaps, encoded", |b| {
        b.iter(|| {
            bytes.clear();
            channel.image().encode(&mut bytes);
            black_box(bytes.len())
        })
    });
    group
        .bench_function("the figures of a channel with 1 M gaps", |b| b.iter(|| black_box(channel.stats(Position::START, true))));
    group.finish();
}

fn wheel(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel, 1 M timers");
    group.sample_size(10);
    let loaded = || {
        let mut wheel = Wheel::new();
        (0..IN_FLIGHT).for_each(|n| {
            wheel.insert(ms(0), ms(TIMEOUT_MS + n / 1000), n as u32);
        });
        wheel
    };
    group.throughput(Throughput::Elements(IN_FLIGHT));
    group.bench_function("insert", |b| b.iter_with_large_drop(loaded));
    group.bench_function("expire, a millisecond at a time", |b| {
        b.iter_batched_ref(
            loaded,
            |wheel| {
                let mut fired = 0u64;
                (0..=TIMEOUT_MS + 1000).for_each(|at| wheel.expire(ms(at), |_| fired += 1));
                assert_eq!(fired, IN_FLIGHT);
            },
            BatchSize::PerIteration,
        )
    });
    let mut wheel = loaded();
    group.throughput(Throughput::Elements(ROUND));
    group.bench_function("10,000 inserted and cancelled", |b| {
        b.iter(|| {
            for n in 0..ROUND {
                let timer = wheel.insert(ms(10), ms(TIMEOUT_MS + n % 5000), 0);
                wheel.cancel(black_box(timer));
            }
        })
    });
    group.finish();
}

fn main() {
    let mut c = common::criterion();
    channel(&mut c);
    gaps(&mut c);
    wheel(&mut c);
    c.final_summary();
}
