//! The node's way: [`ShardDisk`] on an executor like a core's, pinned like a core's.
//!
//! ```text
//! run(job) -> [thread of the executor: keeps `depth` writes under way until the time is over] -> samples
//! ```
//! Between two jobs nothing is under way and its thread sleeps, so that the plain way has the CPU for itself. A core's other work
//! (sockets, messages) is not here: this measures the disk code alone.

use super::samples::Samples;
use super::{JOURNAL_BYTES, MeasureError, SEGMENT_BYTES, STEP_BYTES, WritePath, chance_bytes};
use crate::base::{
    BLOCK, DiskDone, DiskError, DiskOp, Durability, FileId, IO_BYTES_MAX, OpId, PartitionDir, PartitionId, TopicName,
};
use crate::disk::{DiskOptions, ShardDisk, files};
use crate::ring::{Bell, Ring, WakeFd};
use crate::runtime::StopHandle;
use crate::runtime::cores::executor;
use bytes::Bytes;
use glommio::ExecutorJoinHandle;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub struct NodePath {
    /// Channel of jobs; `None` once the probe is to end.
    jobs: Option<mpsc::Sender<Job>>,
    done: mpsc::Receiver<Result<Samples, MeasureError>>,
    thread: Option<ExecutorJoinHandle<()>>,
}

#[derive(Clone, Copy)]
struct Job {
    way: WritePath,
    bytes: usize,
    depth: usize,
    time: Duration,
}

impl NodePath {
    /// `folder` is a scratch folder with the journal in it. io_uring was found to work: glommio ends the process otherwise.
    pub fn start(folder: &Path, cpu: usize, stop: StopHandle) -> Result<NodePath, MeasureError> {
        files::write_probe(folder).map_err(|source| MeasureError::Io { path: folder.to_owned(), call: "write", source })?;
        let (jobs, todo) = mpsc::channel();
        let (results, done) = mpsc::channel();
        let folder = folder.to_owned();
        let run = move || async move {
            let bell = Bell::new();
            let disk = match ShardDisk::start(&folder, DiskOptions::default(), bell.clone()).await {
                Ok(disk) => disk,
                Err(e) => {
                    let _ = results.send(Err(MeasureError::DiskStart(e))); // who asked has ended before
                    return;
                }
            };
            let ring = WakeFd::new().and_then(|wake| Ring::new(RING_ENTRIES, &wake));
            let ring = match ring {
                Ok(ring) => ring,
                Err(e) => {
                    let _ =
                        results.send(Err(MeasureError::Executor { cpu, what: format!("no io_uring ring can be created: {e}") }));
                    return;
                }
            };
            let mut writer = Writer::new(disk, ring, bell, stop);
            let mut answer = writer.open().await.map(|()| Samples::default());
            while results.send(answer).is_ok() {
                let Ok(job) = todo.recv() else { break };
                answer = writer.carry_out(job).await;
            }
            writer.disk.stop().await;
        };
        let spawned = executor(cpu).name("measure").spawn(run);
        let thread = spawned.map_err(|e| MeasureError::Executor { cpu, what: e.to_string() })?;
        let path = NodePath { jobs: Some(jobs), done, thread: Some(thread) };
        path.answer(cpu)?;
        Ok(path)
    }

    fn answer(&self, cpu: usize) -> Result<Samples, MeasureError> {
        let ended = || MeasureError::Executor { cpu, what: "the executor's thread has ended".into() };
        self.done.recv().map_err(|_| ended())?
    }

    /// `way` is one of the node's. At least `depth` writes are made.
    pub fn run(&self, way: WritePath, bytes: usize, depth: usize, time: Duration) -> Result<Samples, MeasureError> {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job { way, bytes, depth, time }).is_ok());
        if !sent {
            return Err(MeasureError::Executor { cpu: 0, what: "the executor's thread has ended".into() });
        }
        self.answer(0)
    }
}

impl Drop for NodePath {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its errors were answers
        }
    }
}

const RING_ENTRIES: u32 = 256;

/// State of one of the writes that are in flight at the same time.
#[derive(Clone)]
struct Lane {
    at: u64,
    issued: Instant,
    /// Bytes of the job that were submitted.
    submitted: usize,
    pending: usize,
}

struct Writer {
    disk: ShardDisk,
    /// Ring like a core's own; writes that clients wait for go there.
    ring: Ring,
    bell: Bell,
    stop: StopHandle,
    segment: FileId,
    /// End of the segment's written part.
    segment_end: u64,
    block: Bytes,
    done: Vec<crate::disk::Completion>,
}

impl Writer {
    fn new(disk: ShardDisk, ring: Ring, bell: Bell, stop: StopHandle) -> Self {
        let topic = TopicName::new("measure").expect("it is a valid name");
        let dir = PartitionDir { topic, topic_id: Default::default(), partition: PartitionId(0) };
        let segment = FileId::Segment(Arc::new(dir), 0);
        let block = Bytes::from(chance_bytes(STEP_BYTES));
        Writer { disk, ring, bell, stop, segment, segment_end: 0, block, done: vec![] }
    }

    /// Opens both files, which no write pays for afterwards.
    async fn open(&mut self) -> Result<(), MeasureError> {
        self.renew_segment().await?;
        for file in [FileId::Journal(0), self.segment.clone()] {
            let parts = vec![self.block.slice(..BLOCK)];
            self.one(DiskOp::Write { file, at: 0, parts, durability: Durability::Durable }).await?;
        }
        self.segment_end = BLOCK as u64;
        Ok(())
    }

    async fn one(&mut self, op: DiskOp) -> Result<(), MeasureError> {
        self.disk.submit_on(&mut self.ring, OpId(0), op);
        self.next().await.map(|_| ())
    }

    /// The next completion.
    async fn next(&mut self) -> Result<OpId, MeasureError> {
        while self.done.is_empty() {
            if self.disk.in_ring() > 0 {
                self.reap()?;
            }
            self.disk.drain(&mut self.done);
            if self.done.is_empty() && self.disk.pending() > 0 {
                self.bell.wait().await;
            }
        }
        let completion = self.done.swap_remove(0);
        let outcome: Result<DiskDone, DiskError> = completion.outcome;
        outcome.map(|_| completion.op).map_err(MeasureError::Disk)
    }

    fn reap(&mut self) -> Result<(), MeasureError> {
        let waited = self.ring.enter_and_wait(Duration::from_millis(100));
        waited.map_err(|e| MeasureError::Executor { cpu: 0, what: format!("the executor's io_uring ring fails: {e}") })?;
        self.ring.take(&mut Vec::new(), RING_ENTRIES as usize); // files alone are on this ring
        self.disk.take_completed(&mut self.ring);
        Ok(())
    }

    /// Space that was never written, as every write to a segment finds it.
    async fn renew_segment(&mut self) -> Result<(), MeasureError> {
        let file = self.segment.clone();
        // only an existing file can be truncated
        self.one(DiskOp::Allocate { file: file.clone(), len: SEGMENT_BYTES }).await?;
        self.one(DiskOp::Truncate { file: file.clone(), len: 0 }).await?;
        self.one(DiskOp::Allocate { file, len: SEGMENT_BYTES }).await?;
        self.segment_end = 0;
        Ok(())
    }

    async fn carry_out(&mut self, job: Job) -> Result<Samples, MeasureError> {
        let mut samples = Samples::default();
        while samples.ns.is_empty() || samples.time < job.time {
            if job.way == WritePath::Segment && SEGMENT_BYTES - self.segment_end < (job.bytes * job.depth) as u64 {
                self.renew_segment().await?;
            }
            self.burst(job, &mut samples).await?;
            if self.stop.is_requested() {
                return Err(MeasureError::Interrupted);
            }
        }
        Ok(samples)
    }

    /// Keeps `depth` writes under way until the time, or the segment, is used up.
    async fn burst(&mut self, job: Job, samples: &mut Samples) -> Result<(), MeasureError> {
        let begun = Instant::now();
        let until = begun + job.time.saturating_sub(samples.time);
        let mut places = Places { way: job.way, next: if job.way == WritePath::Segment { self.segment_end } else { 0 } };
        let mut lanes = vec![];
        let mut active = 0;
        for number in 0..job.depth {
            let at = places.take(job.bytes).expect("there is room for one of each");
            lanes.push(Lane { at, issued: Instant::now(), submitted: 0, pending: 0 });
            self.submit(job, number, &mut lanes[number]);
            active += 1;
        }
        while active > 0 {
            let number = self.next().await?.0 as usize;
            let lane = &mut lanes[number];
            lane.pending -= 1;
            if lane.submitted < job.bytes {
                self.submit(job, number, lane);
            } else if lane.pending == 0 {
                let now = Instant::now();
                samples.ns.push((now - lane.issued).as_nanos() as u64);
                match places.take(job.bytes).filter(|_| now < until && !self.stop.is_requested()) {
                    Some(at) => {
                        *lane = Lane { at, issued: Instant::now(), submitted: 0, pending: 0 };
                        self.submit(job, number, lane);
                    }
                    None => active -= 1,
                }
            }
        }
        samples.time += begun.elapsed();
        if job.way == WritePath::Segment {
            self.segment_end = places.next.min(SEGMENT_BYTES);
        }
        Ok(())
    }

    /// Submits the writes of a job that takes several. Writes of a segment go together, as in the node. Writes of a journal follow one
    /// another; a node with as much to write has up to four in flight, which depth stands for.
    fn submit(&mut self, job: Job, number: usize, lane: &mut Lane) {
        loop {
            let len = (job.bytes - lane.submitted).min(IO_BYTES_MAX);
            let parts = vec![self.block.slice(lane.submitted..lane.submitted + len)];
            let file = if job.way == WritePath::Segment { self.segment.clone() } else { FileId::Journal(0) };
            let at = lane.at + lane.submitted as u64;
            let request = DiskOp::Write { file, at, parts, durability: Durability::Durable };
            self.disk.submit_on(&mut self.ring, OpId(number as u64), request);
            lane.submitted += len;
            lane.pending += 1;
            if job.way != WritePath::Segment || lane.submitted == job.bytes {
                return;
            }
        }
    }
}

/// Offsets of consecutive writes: a journal is a ring, a segment has an end.
struct Places {
    way: WritePath,
    next: u64,
}

impl Places {
    fn take(&mut self, bytes: usize) -> Option<u64> {
        let bytes = bytes as u64;
        let at = self.next;
        if self.way == WritePath::Segment {
            if at + bytes > SEGMENT_BYTES {
                return None;
            }
            self.next = at + bytes;
            return Some(at);
        }
        self.next = (at + bytes) % (JOURNAL_BYTES - JOURNAL_BYTES % bytes);
        Some(at)
    }
}
