//! A batch as it stands in the journal and the segments: built as the store does (a small one is copied to where those of its core
//! stand), verified as a reader does, walked; and the crc alone, of which both mostly consist.
//!
//! `cargo bench --bench batch`. A figure is for one batch; the rate counts its bytes.

mod common;

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use ringmq::base::{Epoch, PartitionId, Position, TopicId};
use ringmq::format::batch::{Batch, BatchBuilder, Stamp};
use ringmq::log::memory::BatchMemory;
use std::hint::black_box;

const TOPIC: TopicId = TopicId([1; 16]);
/// Messages, and bytes of each.
const SHAPES: [(usize, usize); 4] = [(1, 100), (200, 100), (200, 1024), (16, 64 << 10)];

fn build((builder, memory): &mut (BatchBuilder, BatchMemory), (count, len): (usize, usize), body: &[u8]) -> Batch {
    builder.reserve(128 + count * (12 + len));
    (0..count).for_each(|n| builder.push(n as i64, body));
    let stamp = Stamp { topic_id: TOPIC, partition: PartitionId(0), epoch: Epoch(1), at: Position::START, prev_crc: 0 };
    builder.seal_in(stamp, |bytes| memory.keep(bytes))
}

fn main() {
    let mut c = common::criterion();
    for shape in SHAPES {
        let (count, len) = shape;
        let (mut builder, body) = (<(BatchBuilder, BatchMemory)>::default(), vec![7; len]);
        let batch = build(&mut builder, shape, &body);
        let mut group = c.benchmark_group(format!("batch of {count} x {len} B"));
        group.throughput(Throughput::Bytes(batch.bytes.len() as u64));
        group.bench_function("encode, with crc", |b| b.iter(|| build(&mut builder, shape, black_box(&body))));
        group.bench_function("verify", |b| {
            b.iter(|| {
                let bytes: &Bytes = black_box(&batch.bytes);
                Batch::parse(bytes, TOPIC, PartitionId(0)).expect("it was just built")
            })
        });
        group.bench_function("walk", |b| {
            b.iter(|| {
                let mut messages = black_box(&batch).messages();
                assert_eq!(messages.by_ref().map(black_box).count(), count);
            })
        });
        group.bench_function("crc alone", |b| b.iter(|| crc32fast::hash(black_box(&batch.bytes))));
        group.finish();
    }
    Criterion::final_summary(&c);
}
