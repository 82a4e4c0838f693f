//! Finding a place in a partition on the real disk: by log id, count, offset and time. 100,000 batches of one message in
//! segments of 4 MiB, of which the memory holds the end only; each search reads the commit logs anew, with O_DIRECT.
//!
//! `cargo bench --bench search [-- --folder=PATH]`. A figure is for one search of a random place in the first nine tenths;
//! the reads that a search took are printed before it.

mod common;

use common::store::RealStore;
use common::{Jobs, Worker};
use criterion::{Criterion, SamplingMode};
use ringmq::base::{LogId, Position, Rng};
use ringmq::config::Settings;
use ringmq::log::SearchBy;
use std::path::Path;
use std::time::Instant;

/// Time between two messages.
const STEP_NS: i64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
enum By {
    LogId,
    Count,
    Offset,
    Time,
}

struct Job {
    by: By,
    times: u64,
}

fn settings() -> Settings {
    Settings {
        max_bytes_per_file: 4 << 20,
        // Every message is a batch of its own.
        direct_bytes: 128,
        tail_cache_bytes: 1 << 20,
        read_cache_bytes: 1 << 20,
        scrub_bytes_per_second: 0,
        ..Settings::default()
    }
}

async fn serve(jobs: Jobs<Job>, data: &Path) {
    let mut log = RealStore::start(data, &settings()).await;
    let batches = if common::is_smoke() { 10_000 } else { 100_000 };
    let body = [vec![7; 100]];
    let (mut last, first_ns) = (log.append(&body).await, log.unix_ns());
    for _ in 1..batches {
        log.ahead_ns += STEP_NS;
        last = log.append(&body).await;
    }
    let last_ns = log.unix_ns();
    log.until_durable(last).await;
    log.settle().await;
    let (start, end) = (log.store.start(log.p), log.store.durable_end(log.p));
    let mut rng = Rng::new(1);
    while let Some(Job { by, times }) = jobs.next() {
        let (begun, operations) = (Instant::now(), log.operations);
        for _ in 0..times {
            let mut within = |from: i64, to: i64| from + rng.below(((to - from) as u64 * 9 / 10).max(1)) as i64;
            let by = match by {
                By::LogId => SearchBy::LogId(LogId(within(start.log_id.0 as i64, end.log_id.0 as i64) as u64)),
                By::Count => SearchBy::Count(within(start.count, end.count)),
                By::Offset => SearchBy::Offset(within(start.offset, end.offset)),
                By::Time => SearchBy::UnixNs(within(first_ns, last_ns)),
            };
            let found = log.search(by).await.expect("it lies within the log");
            check(by, found, start, end);
        }
        let took = begun.elapsed();
        if times >= 100 {
            eprintln!("by {by:?}: {:.1} reads each", (log.operations - operations) as f64 / times as f64);
        }
        jobs.done(took);
    }
    log.stop().await;
}

/// Every batch has one message, so the place found is known.
fn check(by: SearchBy, found: Position, start: Position, end: Position) {
    assert!(found.offset >= start.offset && found.offset < end.offset, "{by:?}: {found:?}");
    match by {
        SearchBy::LogId(id) => assert_eq!(found.log_id, id),
        SearchBy::Count(count) => assert_eq!(found.count, count),
        SearchBy::Offset(offset) => assert!(found.offset <= offset && offset - found.offset < 1000, "{by:?}: {found:?}"),
        SearchBy::UnixNs(_) => {}
    }
}

fn main() {
    let folder = common::data_folder();
    let data = folder.path().to_owned();
    RealStore::prepare(&data, &settings());
    let worker = Worker::start(move |jobs| async move { serve(jobs, &data).await });
    let mut c: Criterion = common::criterion();
    let mut group = c.benchmark_group("search, 100,000 batches");
    group.sampling_mode(SamplingMode::Flat);
    for by in [By::LogId, By::Count, By::Offset, By::Time] {
        group.bench_function(format!("by {by:?}"), |b| b.iter_custom(|times| worker.run(Job { by, times })));
    }
    group.finish();
    Criterion::final_summary(&c);
}
