//! A journal write that is durable when it completes, the node's way ([`ringmq::disk::ShardDisk`]), beside a plain loop of
//! pwrite and fdatasync on the same core, in the same run. `cargo bench --bench journal [-- --folder=PATH --cpu=N]`; the
//! folder should be on the disk that is meant (default: the build's), the CPU one that takes the disk's interrupts or not (tuning.md).
//!
//! One write at a time, as a core has it: the figures are latencies. The two take turns, so that a disk that slows down slows both. Both
//! are those of `ringmq doctor --measure`, which has other depths and segments too.

mod common;

use ringmq::doctor::measure::{Probe, Samples, WritePath};
use ringmq::runtime::StopHandle;
use std::time::Duration;

const SIZES: [usize; 8] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
/// Time per size, way and round.
fn slice() -> Duration {
    Duration::from_millis(if common::is_smoke() { 5 } else { 250 })
}

fn main() {
    let cpu = common::option("cpu").map_or(0, |cpu| cpu.parse().expect("--cpu= is a number"));
    let rounds = if common::is_smoke() { 1 } else { 4 };
    let data = common::data_folder();
    let folder = data.path().to_owned();
    let probe = Probe::start(&folder, cpu, &StopHandle::new()).unwrap_or_else(|e| panic!("{e}"));
    let mut results = vec![(Samples::default(), Samples::default()); SIZES.len()];
    for _ in 0..rounds {
        for ((raw, disk), size) in results.iter_mut().zip(SIZES) {
            let measure = |way| probe.durable(way, size, 1, slice()).unwrap_or_else(|e| panic!("{e}"));
            raw.add(measure(WritePath::Raw));
            disk.add(measure(WritePath::Journal));
        }
    }
    println!("durable writes of {}, one at a time, on CPU {cpu}; microseconds", folder.display());
    println!("| bytes | pwrite + fdatasync p50 | p99 | ShardDisk p50 | p99 | p50, of raw | ShardDisk MB/s |");
    println!("|---|---|---|---|---|---|---|");
    for (size, (raw, disk)) in SIZES.into_iter().zip(results) {
        let figures = |samples: Samples| samples.figures(size).expect("each writes once at least");
        let (raw, disk) = (figures(raw), figures(disk));
        println!(
            "| {size} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.0} |",
            raw.p50_us,
            raw.p99_us,
            disk.p50_us,
            disk.p99_us,
            disk.p50_us / raw.p50_us,
            disk.megabytes_per_second
        );
    }
}
