//! The log on the real disk, O_DIRECT and io_uring as a node has them, without sockets and sessions: appends until they
//! are durable, a stream that is carried on into segments and commit logs, and reading back what only the disk has.
//!
//! `cargo bench --bench log [-- --folder=PATH]`; the folder should be on the disk that is meant (default: the build's).
//! `append` is one at a time, so a latency; below the direct-write limit it is the journal's, above it the segment's and
//! the journal's. `stream` has 16 appends under way: the whole way of a byte, with checkpoints, and retention behind it.

mod common;

use common::store::RealStore;
use common::{Jobs, Worker};
use criterion::{Criterion, SamplingMode, Throughput};
use ringmq::base::Position;
use ringmq::config::Settings;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// Messages of an append, and bytes of each.
const APPENDS: [(&str, usize, usize); 4] =
    [("1 x 100 B", 1, 100), ("200 x 100 B", 200, 100), ("100 x 1 KiB", 100, 1024), ("1024 x 1 KiB, direct", 1024, 1024)];
const IN_FLIGHT: usize = 16;
/// Retention follows that far behind the end: as if a channel had confirmed the rest.
const KEPT_BYTES: i64 = 128 << 20;
/// Bytes of the log that are read. The newest bytes are left out, since memory may still hold them.
const READ_BYTES: i64 = 128 << 20;
const IN_MEMORY_BYTES: i64 = 32 << 20;

enum Job {
    /// Appends, one after the other.
    Append {
        count: usize,
        len: usize,
        times: u64,
    },
    Stream {
        count: usize,
        len: usize,
        times: u64,
    },
    /// Bytes of the log that are on the disk and not in memory.
    Fill(i64),
    /// Reads from the start, in order, and from the start again.
    Read {
        bytes: u64,
    },
}

fn settings() -> Settings {
    Settings { max_bytes_per_file: 16 << 20, scrub_bytes_per_second: 0, ..Settings::default() }
}

async fn serve(jobs: Jobs<Job>, data: &Path) {
    let mut log = RealStore::start(data, &settings()).await;
    let mut reading_at = Position::START.offset;
    while let Some(job) = jobs.next() {
        let begun = Instant::now();
        match job {
            Job::Append { count, len, times } => {
                let bodies = vec![vec![7; len]; count];
                for _ in 0..times {
                    let ticket = log.append(&bodies).await;
                    log.until_durable(ticket).await;
                    retain(&mut log);
                }
            }
            Job::Stream { count, len, times } => stream(&mut log, &vec![vec![7; len]; count], times).await,
            Job::Fill(bytes) => {
                // Batches of 200 KiB. Retention leaves all of them.
                stream(&mut log, &vec![vec![7; 1024]; 200], bytes as u64 / (200 << 10)).await;
                log.settle().await;
                reading_at = log.store.start(log.p).offset;
            }
            Job::Read { bytes } => read(&mut log, &mut reading_at, bytes as i64).await,
        }
        jobs.done(begun.elapsed());
        log.settle().await;
    }
    log.stop().await;
}

fn retain(log: &mut RealStore) {
    let end = log.store.durable_end(log.p);
    if end.offset > KEPT_BYTES {
        log.store.set_low_water(log.p, Position { offset: end.offset - KEPT_BYTES, ..end });
    }
}

async fn stream(log: &mut RealStore, bodies: &[Vec<u8>], times: u64) {
    let mut under_way = VecDeque::new();
    for _ in 0..times {
        under_way.push_back(log.append(bodies).await);
        while under_way.len() == IN_FLIGHT {
            log.pass().await;
            while under_way.front().is_some_and(|&ticket| log.is_durable(ticket)) {
                under_way.pop_front();
            }
        }
        retain(log);
    }
    if let Some(last) = under_way.pop_back() {
        log.until_durable(last).await;
    }
}

async fn read(log: &mut RealStore, at: &mut i64, bytes: i64) {
    let mut left = bytes;
    let until = log.store.durable_end(log.p).offset - IN_MEMORY_BYTES;
    while left > 0 {
        if *at >= until {
            *at = log.store.start(log.p).offset;
        }
        let batch = log.read(*at).await.expect("the log does not end here");
        left -= batch.header.end().offset - *at;
        *at = batch.header.end().offset;
    }
}

/// A worker on a log of its own, which goes with its folder.
fn worker() -> (Worker<Job>, tempfile::TempDir) {
    let folder = common::data_folder();
    let data = folder.path().to_owned();
    RealStore::prepare(&data, &settings());
    (Worker::start(move |jobs| async move { serve(jobs, &data).await }), folder)
}

fn main() {
    let mut c: Criterion = common::criterion().sample_size(10);
    let (log, _folder) = worker();
    let mut group = c.benchmark_group("log, append until durable");
    group.sampling_mode(SamplingMode::Flat);
    for (name, count, len) in APPENDS {
        group.throughput(Throughput::Bytes((count * len) as u64));
        group.bench_function(name, |b| b.iter_custom(|times| log.run(Job::Append { count, len, times })));
    }
    group.finish();

    let mut group = c.benchmark_group("log, stream, 16 under way");
    group.sampling_mode(SamplingMode::Flat);
    for (name, count, len) in &APPENDS[1..] {
        let (count, len) = (*count, *len);
        group.throughput(Throughput::Bytes((count * len) as u64));
        group.bench_function(*name, |b| b.iter_custom(|times| log.run(Job::Stream { count, len, times })));
    }
    group.finish();
    drop(log);

    let (log, _folder) = worker();
    let mut group = c.benchmark_group("log, read back from the disk");
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(16 << 20));
    let mut is_filled = false;
    group.bench_function("16 MiB of batches of 200 KiB, in order", |b| {
        // Not for runs that leave this one out.
        if !std::mem::replace(&mut is_filled, true) {
            log.run(Job::Fill(if common::is_smoke() { 2 * IN_MEMORY_BYTES } else { READ_BYTES }));
        }
        b.iter_custom(|times| (0..times).map(|_| log.run(Job::Read { bytes: 16 << 20 })).sum::<Duration>())
    });
    group.finish();
    Criterion::final_summary(&c);
}
