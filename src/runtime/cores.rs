//! One pinned glommio executor per shard: starts them, waits until each is ready, stops and joins them.

use super::account::StallDetector;
use super::clock::Clock;
use super::machine::Machine;
use super::stop::{CoresStop, StopHandle};
use super::turn::{Core, ListenerKind};
use crate::base::CoreId;
use crate::coordinator::cluster::{CoreDesk, Desks};
use crate::disk::{DiskOptions, ShardDisk};
use crate::mesh::{Port, Wake};
use crate::net::{Net, NetOptions};
use crate::ring::{Bell, WakeFd};
use crate::tls::{Links, PeerTerms, Terms};

use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement, PoolPlacement};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Preemption interval so long that it never fires: glommio 0.9.0 can park for good with a runnable task when it does
/// (docs/decisions/glommio.md).
const PREEMPT_TIMER: Duration = Duration::from_secs(3600);
const _: () = assert!(PREEMPT_TIMER.as_secs() >= 3600);

/// Depth of each of an executor's three rings; further operations would wait in user space.
pub const RING_DEPTH: usize = 1024;

/// Memory for disk buffers per executor that is registered with each of its three rings. Further operations in flight use plain memory.
pub const IO_MEMORY: usize = 4 << 20;

/// Threads per core for blocking calls (creating, truncating and removing files), on any CPU that the process may use. They wait for
/// syncs nearly all the time, and simultaneous syncs share a commit of the file system.
pub(super) const BLOCKING_THREADS: usize = 8;

pub struct CoresOptions {
    pub data: PathBuf,
    pub net: NetOptions,
    pub disk: DiskOptions,
    /// Zero: park at once.
    pub spin_before_park: Duration,
    pub stall_log: Duration,
    pub clock: Clock,
    /// TLS terms of the native port; `None`: it has no TLS.
    pub tls: Option<Terms>,
    /// The same with other nodes.
    pub peer_tls: Option<PeerTerms>,
    /// Coordinator of a clustered node; each core gets a clone.
    pub coordinator: Option<Desks>,
}

/// Makes a core's machine, on the core's own thread.
pub type Build<M> = Box<dyn FnOnce(CoreId) -> M + Send>;

/// Parts that a core gets from outside.
pub struct CoreParts<M> {
    pub listeners: Vec<(ListenerKind, TcpListener)>,
    pub port: Port,
    pub wake: Arc<WakeFd>,
    pub build: Build<M>,
}

#[derive(Debug, thiserror::Error)]
pub enum CoresError {
    #[error("core {core} cannot start: {what}")]
    Start { core: u16, what: String },
    #[error("core {core} ended: {what}")]
    Ended { core: u16, what: String },
    #[error("the CPUs that this process may use cannot be read: {0}")]
    Affinity(io::Error),
}

/// Cores that are up.
pub struct RunningCores {
    stop: Arc<CoresStop>,
    threads: Vec<(u16, ExecutorJoinHandle<Result<StallDetector, String>>)>,
}

/// The CPUs that this process may use, ascending.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero set is a valid value; the call fills at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Err(io::Error::last_os_error());
        }
        set
    };
    // SAFETY: the number is below the set's size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// Lets the process open as many files as its hard limit allows; the soft one is often 1,024 for the sake of programs that
/// use select(2). Returns the limit in force.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable, and then readable.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

/// Executor of a core, pinned to `cpu`. It never spins, since the kernel's workers may need this CPU. `--spin-before-park` concerns the
/// core before it sleeps in its own ring.
pub fn executor(cpu: usize) -> LocalExecutorBuilder {
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .preempt_timer(PREEMPT_TIMER)
        .ring_depth(RING_DEPTH)
        .io_memory(IO_MEMORY)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(BLOCKING_THREADS))
}

/// Starts a core per part and returns when all are up, or none is. `stop` is asked to stop when a core ends by itself.
/// The data path has its probe file, and io_uring was found to work (`doctor`): glommio ends the process otherwise.
pub fn run_cores<M: Machine + 'static>(
    options: &CoresOptions,
    parts: Vec<CoreParts<M>>,
    stop: &StopHandle,
) -> Result<RunningCores, CoresError> {
    let cpus = allowed_cpus().map_err(CoresError::Affinity)?;
    assert!(!cpus.is_empty(), "a running process has a CPU");
    assert!(options.disk.in_flight_max < RING_DEPTH, "what a ring does not take would wait in it, ahead of the journal");
    let wakes = parts.iter().map(|part| part.wake.clone() as Arc<dyn Wake>).collect();
    let cores_stop = Arc::new(CoresStop::new(wakes));
    let (ready, is_ready) = mpsc::channel::<()>();
    let count = parts.len();
    let mut running = RunningCores { stop: cores_stop.clone(), threads: vec![] };
    for (i, part) in parts.into_iter().enumerate() {
        let core = CoreId(i as u16);
        let guard = EndGuard { core: core.0, stop: stop.clone(), cores: cores_stop.clone(), is_orderly: AtomicBool::new(false) };
        let start = Start {
            core,
            data: options.data.clone(),
            net: options.net,
            disk: options.disk.clone(),
            stall_log: options.stall_log,
            clock: options.clock,
            spin: options.spin_before_park,
            stop: cores_stop.clone(),
            tls: options.tls.clone(),
            peer_tls: options.peer_tls.clone(),
            coordinator: options.coordinator.as_ref().map(Desks::desk),
        };
        let ready = ready.clone();
        let builder = executor(cpus[i % cpus.len()]).name(&format!("core-{}", core.0));
        let spawned = builder.spawn(move || async move {
            let core = start.core(part).await?;
            let _ = ready.send(());
            drop(ready); // who waits for all cores sees that none is left
            let ended = core.run().await.map_err(|e| e.to_string())?;
            guard.is_orderly.store(true, Ordering::Release);
            Ok(ended)
        });
        match spawned {
            Ok(thread) => running.threads.push((core.0, thread)),
            Err(e) => {
                let error = CoresError::Start { core: core.0, what: e.to_string() };
                running.abandon(count);
                return Err(error);
            }
        }
    }
    drop(ready);
    if is_ready.iter().count() == count {
        return Ok(running);
    }
    let failed = running.join();
    Err(failed.err().map_or_else(
        || CoresError::Start { core: 0, what: "a core stopped before it was up".into() },
        |e| match e {
            CoresError::Ended { core, what } => CoresError::Start { core, what },
            other => other,
        },
    ))
}

struct Start {
    core: CoreId,
    data: PathBuf,
    net: NetOptions,
    disk: DiskOptions,
    stall_log: Duration,
    clock: Clock,
    spin: Duration,
    stop: Arc<CoresStop>,
    tls: Option<Terms>,
    peer_tls: Option<PeerTerms>,
    coordinator: Option<CoreDesk>,
}

impl Start {
    async fn core<M: Machine>(self, part: CoreParts<M>) -> Result<Core<M>, String> {
        let Start { core, data, net, disk, stall_log, clock, spin, stop, tls, peer_tls, coordinator } = self;
        let bell = Bell::new();
        // before anything else on this executor touches a file
        let disk = ShardDisk::start(Path::new(&data), disk, bell.clone()).await.map_err(|e| e.to_string())?;
        let (places, listeners) = part.listeners.into_iter().unzip();
        let ring = net.ring(&part.wake).map_err(|e| e.to_string())?;
        let net = Net::on_ring(listeners, net, part.wake, ring.clone()).map_err(|e| e.to_string())?;
        let machine = (part.build)(core);
        let stalls = StallDetector::new(core.0, stall_log);
        let links = Links::new(tls, peer_tls);
        Ok(Core {
            id: core,
            machine,
            coordinator,
            ring,
            net,
            places,
            links,
            port: part.port,
            disk,
            bell,
            clock,
            spin,
            stop,
            stalls,
        })
    }
}

/// A core that ends before all were asked to stop takes the node with it.
struct EndGuard {
    core: u16,
    stop: StopHandle,
    cores: Arc<CoresStop>,
    is_orderly: AtomicBool,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if !self.is_orderly.load(Ordering::Acquire) {
            self.stop.request(&format!("core {} ended", self.core));
            // the others must neither wait for it nor go on without it
            self.cores.core_stopped();
            self.cores.request();
        }
    }
}

impl RunningCores {
    pub fn stop_handle(&self) -> Arc<CoresStop> {
        self.stop.clone()
    }

    /// Wakes all cores, to look at new facts.
    pub fn wake(&self) {
        self.stop.wake_all();
    }

    /// Asks all cores to stop; each finishes its work first.
    pub fn request_stop(&self) {
        self.stop.request();
    }

    /// Waits for the cores to end.
    pub fn join(self) -> Result<Vec<StallDetector>, CoresError> {
        let (mut ended, mut first) = (vec![], None);
        for (core, thread) in self.threads {
            let what = match thread.join() {
                Ok(Ok(stalls)) => {
                    ended.push(stalls);
                    continue;
                }
                Ok(Err(what)) => what,
                Err(e) => e.to_string(),
            };
            first.get_or_insert(CoresError::Ended { core, what });
        }
        first.map_or(Ok(ended), Err)
    }

    /// Counts cores that were never started as stopped, after a startup that failed in the middle.
    fn abandon(self, wanted: usize) {
        for _ in self.threads.len() + 1..wanted {
            self.stop.core_stopped();
        }
        self.stop.request();
        let _ = self.join();
    }
}
