//! The raw limit of a data path: how fast a durable write is there, the node's way and the plain way side by side.
//!
//! | way | timed operation |
//! |---|---|
//! | journal | [`ShardDisk`](crate::disk::ShardDisk) on a core's executor: one O_DIRECT, O_DSYNC write over space that was written before |
//! | segment | the same: an O_DIRECT write, then fdatasync, on space that was allocated and never written |
//! | raw | a plain pwrite, then fdatasync, on O_DIRECT over space that was written before; a thread each, on the same CPU |
//!
//! All ways take turns in short slices, in another order each round, so that a disk that slows down slows all of them.
//! Works in a folder of its own (scratch.rs), also while a node runs; never opens a file of a node.

mod node_path;
mod raw;
pub mod report;
mod samples;
mod scratch;

pub use raw::Pass;
pub use report::Report;
pub use samples::{Figures, Samples, Stream, StreamFigures};

use super::Finding;
use crate::base::DiskError;
use crate::base::rng::Rng;
use crate::config::Settings;
use crate::disk::DiskStartError;
use crate::runtime::StopHandle;
use crate::runtime::cores::allowed_cpus;
use node_path::NodePath;
use raw::Raw;
use report::{Durable, Sequential};
use scratch::Scratch;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
pub const DEPTHS: [usize; 4] = [1, 4, 16, 64];

/// Bytes of one step of a sequential pass, and of the largest write.
const STEP_BYTES: usize = 1 << 20;

/// The file of durable writes: room for the largest size at the largest depth.
const JOURNAL_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 128 << 20;
const SEQUENTIAL_BYTES: u64 = 256 << 20;
const DISK_BYTES: u64 = JOURNAL_BYTES + SEGMENT_BYTES + SEQUENTIAL_BYTES;

const ROUNDS: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WritePath {
    Journal,
    Segment,
    Raw,
}

pub const WAYS: [WritePath; 3] = [WritePath::Journal, WritePath::Segment, WritePath::Raw];

#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error("{path}: {call} failed: {source}; the data path must be on a disk that this user may write, see ringmq doctor")]
    Io { path: PathBuf, call: &'static str, source: io::Error },
    #[error(
        "{folder}: {} MiB are free, {} MiB are written and {} MiB stay free for others: free some, or give another --data-path \
         on the same disk",
        .free >> 20,
        .needed >> 20,
        .spare >> 20
    )]
    NoSpace { folder: PathBuf, free: u64, needed: u64, spare: u64 },
    #[error("in the folder of the measurement: {0}; see dmesg for errors of the disk")]
    Disk(DiskError),
    #[error(transparent)]
    DiskStart(#[from] DiskStartError),
    #[error("the executor on CPU {cpu} cannot run: {what}; see ringmq doctor")]
    Executor { cpu: usize, what: String },
    #[error("the CPUs that this process may use cannot be read: {0}")]
    Cpus(io::Error),
    #[error("interrupted; the files of the measurement are removed")]
    Interrupted,
}

/// Both paths on one scratch folder, one measurement at a time.
pub struct Probe {
    // ends before its files go
    node: NodePath,
    raw: Raw,
    scratch: Scratch,
}

impl Probe {
    /// Writes its files in `data`, or in the nearest folder above it. `doctor::check` found nothing that fails.
    pub fn start(data: &Path, cpu: usize, stop: &StopHandle) -> Result<Probe, MeasureError> {
        let scratch = Scratch::create(data, DISK_BYTES)?;
        let raw = Raw::start(scratch.folder(), cpu, stop.clone())?;
        let node = NodePath::start(scratch.folder(), cpu, stop.clone())?;
        Ok(Probe { node, raw, scratch })
    }

    pub fn folder(&self) -> &Path {
        self.scratch.folder()
    }

    /// Durable writes of `bytes` (whole blocks, at most 1 MiB) with `depth` (at most 64) under way, for about `time`; each of
    /// them at least once.
    pub fn durable(&self, way: WritePath, bytes: usize, depth: usize, time: Duration) -> Result<Samples, MeasureError> {
        let is_whole = bytes.is_multiple_of(crate::base::BLOCK) && (1..=STEP_BYTES).contains(&bytes);
        assert!(is_whole && (1..=64).contains(&depth), "{depth} writes of {bytes} bytes have no place");
        match way {
            WritePath::Raw => self.raw.durable(bytes, depth, time),
            WritePath::Journal | WritePath::Segment => self.node.run(way, bytes, depth, time),
        }
    }

    /// [`Pass::WriteNew`] comes first.
    pub fn pass(&self, pass: Pass, time: Duration) -> Result<Stream, MeasureError> {
        self.raw.pass(pass, time)
    }
}

/// Bytes that no device takes for a hole, nor makes smaller.
fn chance_bytes(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(len as u64);
    std::iter::repeat_with(|| rng.next_u64().to_le_bytes()).flatten().take(len).collect()
}

/// An entry of the plan, with its results.
enum Job {
    Durable { way: WritePath, bytes: usize, depth: usize, samples: Samples },
    Pass { pass: Pass, stream: Stream },
}

impl Job {
    /// Share of the measuring time. The figures that others are compared with get the most.
    fn weight(&self) -> u32 {
        match self {
            Job::Durable { bytes: 4096, depth: 1, .. } => 4,
            Job::Durable { depth: 1, .. } => 2,
            Job::Durable { .. } => 1,
            Job::Pass { .. } => 8,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Job::Durable { samples, .. } => samples.ns.is_empty(),
            Job::Pass { stream, .. } => stream.bytes == 0,
        }
    }

    fn run(&mut self, probe: &Probe, time: Duration) -> Result<(), MeasureError> {
        match self {
            Job::Durable { way, bytes, depth, samples } => samples.add(probe.durable(*way, *bytes, *depth, time)?),
            Job::Pass { pass, stream } => stream.add(probe.pass(*pass, time)?),
        }
        Ok(())
    }
}

/// The three ways of a size and depth stand beside each other.
fn plan() -> Vec<Vec<Job>> {
    let durable = |bytes, depth| WAYS.map(|way| Job::Durable { way, bytes, depth, samples: Samples::default() }).into();
    let passes = [Pass::WriteNew, Pass::WriteSynced, Pass::Write, Pass::Read];
    let mut groups: Vec<Vec<Job>> = SIZES.iter().flat_map(|&bytes| DEPTHS.map(|depth| durable(bytes, depth))).collect();
    // second, so that the reference is there when the time is too short for all
    groups.insert(1, passes.map(|pass| Job::Pass { pass, stream: Stream::default() }).into());
    groups
}

/// Measures for about `time`, at the most about twice that on a slow disk. `findings` are the machine's, for the report;
/// `progress` is called with the share that is done.
pub fn measure(
    settings: &Settings,
    findings: &[Finding],
    time: Duration,
    stop: &StopHandle,
    mut progress: impl FnMut(f64),
) -> Result<Report, MeasureError> {
    let data = Path::new(&settings.data_path);
    // the node's first core
    let cpu = *allowed_cpus().map_err(MeasureError::Cpus)?.first().expect("a running process has a CPU");
    let began_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let (begun, ran_before) = (Instant::now(), scratch::is_node_running(data));
    let probe = Probe::start(data, cpu, stop)?;
    let mut groups = plan();
    run_rounds(&mut groups, &probe, begun, time, &mut progress)?;
    let node_ran = ran_before || scratch::is_node_running(data);
    let mut notes = vec![];
    if node_ran {
        notes.push("a node runs on this data path: its load changes the figures, and the measurement slowed it".to_owned());
    }
    for name in scratch::elsewhere(data) {
        notes.push(format!("{}/{name} is on another file system, which was not measured", data.display()));
    }
    if groups.iter().flatten().any(Job::is_empty) {
        notes.push("the time ended before everything was measured: raise --seconds".to_owned());
    }
    let mut report = Report::new(settings, findings, probe.folder(), cpu);
    (report.began_unix_ms, report.seconds) = (began_at, begun.elapsed().as_secs_f64());
    (report.node_ran, report.notes, report.disk_bytes) = (node_ran, notes, DISK_BYTES);
    for job in groups.into_iter().flatten() {
        match job {
            Job::Durable { way, bytes, depth, samples } => {
                report.durable.push(Durable { way, bytes: bytes as u64, depth, figures: samples.figures(bytes) });
            }
            Job::Pass { pass, stream } => {
                let Sequential { write_new_synced, write_synced, write, read } = &mut report.sequential;
                let place = match pass {
                    Pass::WriteNew => write_new_synced,
                    Pass::WriteSynced => write_synced,
                    Pass::Write => write,
                    Pass::Read => read,
                };
                *place = stream.figures();
            }
        }
    }
    Ok(report)
}

fn run_rounds(
    groups: &mut [Vec<Job>],
    probe: &Probe,
    begun: Instant,
    time: Duration,
    progress: &mut impl FnMut(f64),
) -> Result<(), MeasureError> {
    // making the files took a part of the time, on a slow disk most of it; measurements that do not fit into the rest are left out
    let until = (begun + time).max(Instant::now() + time / 2);
    let last = until + time;
    let weights: u32 = groups.iter().flatten().map(Job::weight).sum();
    let mut left = weights * ROUNDS;
    for round in 0..ROUNDS as usize {
        for group in groups.iter_mut() {
            // the passes build on each other
            let turn = if matches!(group[0], Job::Pass { .. }) { 0 } else { round % group.len() };
            for i in 0..group.len() {
                let i = (i + turn) % group.len();
                let (now, job) = (Instant::now(), &mut group[i]);
                let slice = until.saturating_duration_since(now) * job.weight() / left;
                left -= job.weight();
                // everything is measured once, if that is to be had
                if now < until || (job.is_empty() && now < last) {
                    job.run(probe, slice)?;
                }
                progress(1.0 - left as f64 / (weights * ROUNDS) as f64);
            }
        }
    }
    Ok(())
}
