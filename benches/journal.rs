//! A journal write that is durable when it completes, through [`ShardDisk`], beside a plain loop of pwrite and fdatasync on
//! the same core, in the same run. `cargo bench --bench journal [-- --folder=PATH --cpu=N]`; the folder should be on the
//! disk that is meant (default: the build's), the CPU one that takes the disk's interrupts or not (tuning.md).
//!
//! One write at a time, as a core has it: what is measured is latency. Both write the same file, written once before, so
//! that no metadata changes. They take turns in short runs, so that a disk that slows down slows both: not criterion's,
//! which measures one thing after the other and gives no ratio.

mod common;

use bytes::Bytes;
use ringmq::base::{DiskOp, Durability, FileId, OpId};
use ringmq::disk::blocking::AlignedBuffer;
use ringmq::disk::{BlockingStorage, DiskOptions, ShardDisk, files};
use ringmq::log::storage::Storage as _;
use ringmq::net::Bell;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 64 << 20;
const SIZES: [usize; 8] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
/// Time per size, way and round.
fn slice() -> Duration {
    Duration::from_millis(if common::is_smoke() { 5 } else { 250 })
}

fn main() {
    let cpu = common::option("cpu").map_or(0, |cpu| cpu.parse().expect("--cpu= is a number"));
    let rounds = if common::is_smoke() { 1 } else { 4 };
    let data = common::data_folder();
    files::write_probe(data.path()).expect("the folder is writable");
    BlockingStorage::new(data.path()).fill(&FileId::Journal(0), FILE_BYTES).expect("there is room for 64 MiB");
    let mut results = vec![(vec![], vec![]); SIZES.len()];
    for _ in 0..rounds {
        let (raw, disk) = (run_raw(data.path(), cpu), run_shard_disk(data.path(), cpu));
        for (result, (raw, disk)) in results.iter_mut().zip(raw.into_iter().zip(disk)) {
            result.0.extend(raw);
            result.1.extend(disk);
        }
    }
    println!("durable writes of {}, one at a time, on CPU {cpu}; microseconds; load {}", data.path().display(), common::load());
    println!("| bytes | pwrite + fdatasync p50 | p99 | ShardDisk p50 | p99 | p50, of raw | ShardDisk MB/s |");
    println!("|---|---|---|---|---|---|---|");
    for (size, (mut raw, mut disk)) in SIZES.into_iter().zip(results) {
        let (raw50, raw99) = percentiles(&mut raw);
        let (disk50, disk99) = percentiles(&mut disk);
        let rate = size as f64 * disk.len() as f64 / disk.iter().sum::<f64>();
        println!("| {size} | {raw50:.0} | {raw99:.0} | {disk50:.0} | {disk99:.0} | {:.2} | {rate:.0} |", disk50 / raw50);
    }
}

fn percentiles(us: &mut [f64]) -> (f64, f64) {
    us.sort_by(f64::total_cmp);
    (us[us.len() / 2], us[us.len() * 99 / 100])
}

/// Places of the ring, one after the other.
fn places(size: usize) -> impl Iterator<Item = u64> {
    (0..FILE_BYTES / size as u64).cycle().map(move |i| i * size as u64)
}

fn run_raw(data: &Path, cpu: usize) -> Vec<Vec<f64>> {
    let path = data.join("journal/0");
    let run = move || {
        common::pin(cpu);
        let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path).expect("it was just written");
        let measure = |size| {
            let buffer = AlignedBuffer::zeroed(size);
            let (begun, mut us) = (Instant::now(), vec![]);
            for at in places(size) {
                let issued = Instant::now();
                assert_eq!(file.write_at(&buffer, at).expect("the disk works"), size);
                file.sync_data().expect("the disk works");
                us.push(issued.elapsed().as_secs_f64() * 1e6);
                if begun.elapsed() >= slice() {
                    break;
                }
            }
            us
        };
        SIZES.into_iter().map(measure).collect()
    };
    std::thread::spawn(run).join().expect("the raw loop does not panic")
}

fn run_shard_disk(data: &Path, cpu: usize) -> Vec<Vec<f64>> {
    let data = data.to_owned();
    let run = move || async move {
        let bell = Bell::new();
        let disk = ShardDisk::start(&data, DiskOptions::default(), bell.clone()).await.expect("the disk works");
        let (mut results, mut done) = (vec![], vec![]);
        for size in SIZES {
            let bytes = Bytes::from(vec![0; size]);
            let (begun, mut us) = (Instant::now(), vec![]);
            for at in places(size) {
                let issued = Instant::now();
                let parts = vec![bytes.clone()];
                disk.submit(OpId(at), DiskOp::Write { file: FileId::Journal(0), at, parts, durability: Durability::Durable });
                while done.is_empty() {
                    bell.wait().await;
                    disk.drain(&mut done);
                }
                done.pop().expect("it is there").outcome.expect("the disk works");
                us.push(issued.elapsed().as_secs_f64() * 1e6);
                if begun.elapsed() >= slice() {
                    break;
                }
            }
            results.push(us);
        }
        disk.stop().await;
        results
    };
    common::executor(cpu).spawn(run).expect("io_uring works here: see ringmq doctor").join().expect("the executor does not panic")
}
