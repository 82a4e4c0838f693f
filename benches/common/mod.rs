//! Parts that the benches share: the length of a run, the CPUs of its threads, their cost, and a folder on a real disk.
//!
//! Every bench knows a smoke run, as criterion does: with `--test`, or without the `--bench` that `cargo bench` adds, each
//! thing is done once or for a moment, to see that it still works. `cargo bench -- --test` runs all so, `cargo test
//! --benches` too.

#![allow(dead_code)] // each bench uses a part of it

pub mod store;

use criterion::Criterion;
use glommio::{LocalExecutorBuilder, Placement};
use std::future::Future;
use std::sync::{OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

pub fn is_smoke() -> bool {
    let has = |flag| std::env::args().any(|a| a == flag);
    has("--test") || !has("--bench")
}

/// The numbers among the arguments, in order.
pub fn numbers() -> Vec<u64> {
    std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect()
}

/// Value of `--name=` in the arguments.
pub fn option(name: &str) -> Option<String> {
    std::env::args().find_map(|a| a.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

/// Short runs, since all benches together should take minutes; arguments go first.
pub fn criterion() -> Criterion {
    let short = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    short.sample_size(20).configure_from_args()
}

/// Folder of a benchmark's data, below the build's folder: /tmp may be a tmpfs, which has no O_DIRECT. `--folder=PATH` names another
/// disk.
pub fn data_folder() -> tempfile::TempDir {
    let folder = option("folder").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    tempfile::tempdir_in(&folder).expect("the folder is writable")
}

/// The client's CPU; a node's or a server's is the first. The same for all threads: one that is pinned, or was begun by one
/// that is, is told of a single CPU.
pub fn last_cpu() -> usize {
    static LAST: OnceLock<usize> = OnceLock::new();
    *LAST.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()) - 1)
}

/// Puts this thread on a CPU. Where that is not ours, nothing is pinned.
pub fn pin(cpu: usize) {
    last_cpu();
    // SAFETY: an all-zero set is valid, the CPU's number is below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// User and system time of this thread in seconds.
pub fn thread_cpu_seconds() -> f64 {
    // SAFETY: an all-zero value is valid, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The median.
pub fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The value below which a share `q` of them lies; of sorted nanoseconds, in microseconds.
pub fn percentile_us(sorted_ns: &[u32], q: f64) -> f64 {
    sorted_ns.get((sorted_ns.len().saturating_sub(1) as f64 * q) as usize).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

/// The load of the last minute, by which other work shows.
pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or_default().to_owned()
}

/// An executor as the node has them, on one CPU.
pub fn executor(cpu: usize) -> LocalExecutorBuilder {
    // The timer must never fire: src/runtime/cores.rs says why.
    LocalExecutorBuilder::new(Placement::Fixed(cpu)).preempt_timer(Duration::from_secs(3600)).ring_depth(1024)
}

/// A thread that does jobs one after the other, each measured by itself: criterion, which knows no futures of glommio's,
/// asks from another thread. While no job is under way its thread is blocked.
pub struct Worker<J> {
    jobs: Option<mpsc::Sender<J>>,
    times: mpsc::Receiver<Duration>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static> Worker<J> {
    /// `serve` runs on an executor on the first CPU until there are no more jobs.
    pub fn start<F: Future<Output = ()> + 'static>(serve: impl FnOnce(Jobs<J>) -> F + Send + 'static) -> Self {
        let (jobs, receiver) = mpsc::channel();
        let (sender, times) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let serve = move || serve(Jobs { receiver, sender });
            executor(0).spawn(serve).expect("io_uring works here: see ringmq doctor").join().expect("no panic");
        });
        Worker { jobs: Some(jobs), times, thread: Some(thread) }
    }

    /// Time of the job, as the job reports it.
    pub fn run(&self, job: J) -> Duration {
        self.jobs.as_ref().expect("it is taken when it is dropped").send(job).expect("the worker waits for jobs");
        self.times.recv().expect("the worker answers each job")
    }
}

impl<J> Drop for Worker<J> {
    fn drop(&mut self) {
        self.jobs = None;
        let ended = self.thread.take().expect("it ends once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the worker does not panic");
    }
}

/// The worker's end.
pub struct Jobs<J> {
    receiver: mpsc::Receiver<J>,
    sender: mpsc::Sender<Duration>,
}

impl<J> Jobs<J> {
    /// Blocks. `None`: no more will come.
    pub fn next(&self) -> Option<J> {
        self.receiver.recv().ok()
    }

    pub fn done(&self, took: Duration) {
        self.sender.send(took).expect("who gave the job waits for it");
    }
}
