//! A whole node, from its settings to its end: lock, checks, recovery, cores, HTTP, and back down.

use super::clock::{self, Clock};
use super::cores::{self, Build, CoreParts, CoresError, CoresOptions};
use super::machine::Machine;
use super::slice::{self, SliceState};
use super::stop::{self, StopHandle};
use super::turn::ListenerKind;
use crate::base::NodeId;
use crate::codec::nsq::layers;
use crate::config::Settings;
use crate::coordinator;
use crate::coordinator::cluster::{Cluster, Running};
use crate::coordinator::hub::Hub;
use crate::coordinator::{Coordinator, CoordinatorError};
use crate::disk::spares::Spares;
use crate::disk::{BlockingStorage, DataLock, DiskOptions, LockError, files, lock};
use crate::mesh::{self, HttpPort, Wake};
use crate::metrics::node::SpareBytes;
use crate::net::{self, NetError, NetOptions, Reserved};
use crate::ring::WakeFd;
use crate::tls::{self, PeerTerms, Terms, TlsError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest stop; after it the process ends anyway.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Time that a restart waits for a killed process's listeners.
const ADDRESS_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{failures} of the startup checks failed (see above, or run `ringmq doctor`)")]
    Doctor { failures: usize },
    #[error("{path}: {source}; the data path must be writable")]
    DataPath { path: String, source: io::Error },
    #[error(transparent)]
    Cluster(#[from] CoordinatorError),
    #[error("recovery failed: {0}")]
    Recovery(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(
        "{source}. The node does not start without the native protocol, since the cluster file sends native clients to it \
         (native_address = {listed:?})"
    )]
    NativeListed { source: NetError, listed: Arc<str> },
    #[error("cannot create an eventfd: {0}; raise the limit of open files (ulimit -n)")]
    Eventfd(io::Error),
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    #[error(transparent)]
    Cores(#[from] CoresError),
    #[error("{0}")]
    Front(String),
}

/// Parts that the HTTP thread gets.
pub struct FrontStart {
    pub port: HttpPort,
    /// Listener of `--http-address`, unless that is empty.
    pub listener: Option<TcpListener>,
    /// Listener of `--lookupd-http-address`.
    pub lookups: Option<TcpListener>,
    /// Listener of `--https-address`, with the node's certificate.
    pub https: Option<(TcpListener, layers::Terms)>,
    pub cores: u16,
    pub tcp_address: SocketAddr,
    /// Bytes in `spare/`: of segments that were removed, kept for new ones.
    pub spare_bytes: SpareBytes,
    /// Reason why a node whose cluster an etcd decides cannot serve, if it cannot.
    pub hub: Option<Arc<Hub>>,
}

/// Ends the HTTP thread; returns when it takes no more and has answered.
pub type StopFront = Box<dyn FnOnce()>;

/// HTTP module as the runtime sees it.
pub struct Front {
    /// Wakes the HTTP thread.
    pub wake: Arc<dyn Wake>,
    pub start: Box<dyn FnOnce(FrontStart) -> Result<StopFront, String>>,
}

/// Parts that recovery gets.
pub struct Recovering<'a> {
    pub storage: &'a mut BlockingStorage,
    pub settings: &'a Arc<Settings>,
    /// Cores of this startup.
    pub cores: u16,
    /// Nanoseconds since 1970.
    pub now_unix_ns: i64,
    /// Random, for ids.
    pub seed: u64,
    /// Coordinator of a clustered node.
    pub coordinator: Option<&'a Cluster>,
    /// Terms for NSQ clients that ask for TLS.
    pub nsq_tls: Option<layers::Terms>,
}

/// Results of recovery.
pub struct Recovered<M> {
    /// Machines, one per core.
    pub builds: Vec<Build<M>>,
    /// Generation of this startup.
    pub generation: u64,
    /// Id of the data path.
    pub me: NodeId,
}

/// Runs a node until `stop` is asked to; returns when everything is durable and closed.
///
/// `examine` checks the machine, logs its findings, and returns the number of failed checks. `recover` reads the data path and returns a
/// maker of each core's machine; it runs before any executor does. `reread` is called on SIGHUP, for the files of the caller.
pub fn run_node<M: Machine + 'static>(
    settings: Arc<Settings>,
    stop: StopHandle,
    front: Front,
    examine: impl FnOnce(&Settings) -> usize,
    recover: impl FnOnce(Recovering<'_>) -> Result<Recovered<M>, String>,
    mut reread: impl FnMut(),
) -> Result<(), NodeError> {
    let mut clock = Clock::start();
    let begun = Instant::now();
    let data = Path::new(&settings.data_path);
    let (tls, peer_tls, nsq_tls) = (Terms::load(&settings)?, PeerTerms::load(&settings)?, tls::nsq_terms(&settings)?);
    let cores = cores_of(&settings)?;
    if let Err(e) = cores::raise_open_files() {
        tracing::warn!("the limit of open files cannot be raised: {e}");
    }
    shorten_slice(Duration::from_micros(settings.time_slice_us));
    // first of all, and in this order: a process that is dying gives up both, and a node that cannot start has changed nothing
    let made = DataLock::acquire_made(data, lock::DATA_LOCK_WAIT)?;
    let mut addresses = Addresses::reserve(&settings)?;
    let _lock = made.map_or_else(|| DataLock::acquire(data, lock::DATA_LOCK_WAIT), Ok)?;
    let failures = examine(&settings);
    if failures > 0 {
        return Err(NodeError::Doctor { failures });
    }
    files::write_probe(data).map_err(|source| NodeError::DataPath { path: settings.data_path.clone(), source })?;
    let mut cluster = Cluster::open(&settings, random_id()?, || stop.is_requested())?;
    if stop.is_requested() {
        return Ok(()); // it may have waited for its cluster until then
    }
    addresses.do_without_native(cluster.as_ref())?;

    let spares = Arc::new(Spares::open(data, settings.spare_bytes, settings.max_bytes_per_file));
    let mut storage = BlockingStorage::new(data).with_spares(spares.clone());
    let recovering = Recovering {
        storage: &mut storage,
        settings: &settings,
        cores,
        now_unix_ns: clock.now().unix_ns,
        seed: random()?,
        coordinator: cluster.as_ref(),
        nsq_tls: nsq_tls.clone(),
    };
    let Recovered { builds, generation, me } = recover(recovering).map_err(NodeError::Recovery)?;
    drop(storage); // and with it the locks, which the cores take over
    if let Some(cluster) = &mut cluster {
        cluster.begin(me, generation)?;
    }
    assert_eq!(builds.len(), cores as usize, "recovery prepares every core");
    tracing::info!(ms = begun.elapsed().as_millis() as u64, cores, "recovered");

    let tcp_address = addresses.tcp.address();
    let [http, https_address, native, peers] = [&addresses.http, &addresses.https, &addresses.native, &addresses.peer]
        .map(|address| address.as_ref().map(|address| address.address().to_string()).unwrap_or_default());
    let Parts { parts, http_port, listener, lookups, https: of_https } = parts(addresses, builds, front.wake)?;
    let spare_bytes: SpareBytes = Box::new({
        let spares = spares.clone();
        move || spares.bytes()
    });
    let options = CoresOptions {
        data: data.to_owned(),
        net: NetOptions::default(),
        disk: DiskOptions { spares: Some(spares), ..DiskOptions::default() },
        spin_before_park: Duration::from_micros(settings.spin_before_park_us),
        stall_log: Duration::from_millis(settings.stall_log_ms),
        clock,
        tls: tls.clone(),
        peer_tls: peer_tls.clone(),
        coordinator: cluster.as_ref().map(|c| c.desks(generation)).transpose()?,
    };
    let running = cores::run_cores(&options, parts, &stop)?;
    let hub = cluster.as_ref().and_then(Cluster::hub);
    let cores_stop = running.stop_handle();
    let (wake, lent) =
        (Box::new(move || cores_stop.wake_all()), coordinator::store::Clock { now: clock::ticks, seed: random()? });
    let coordinator = cluster.map(|c| c.start(generation, cores, wake, lent)).transpose()?;
    let https = of_https.zip(nsq_tls.clone());
    let started = (front.start)(FrontStart { port: http_port, listener, lookups, https, cores, tcp_address, spare_bytes, hub });
    if started.is_ok() {
        // In nsqd's words, for programs that wait for this line.
        tracing::info!("TCP: listening on {tcp_address}");
        for (name, address) in [("HTTP", &http), ("HTTPS", &https_address)].into_iter().filter(|(_, address)| !address.is_empty())
        {
            tracing::info!("{name}: listening on {address}");
        }
        tracing::info!(tcp = %tcp_address, %http, native, peers, cores, "ready");
        let reason = stop.wait(|| {
            tracing::info!("SIGHUP: rereading the settings, TLS files and cluster file that can change now");
            reread();
            reread_tls(&settings, tls.as_ref(), peer_tls.as_ref(), nsq_tls.as_ref());
            if coordinator.as_ref().is_some_and(Running::reread) {
                running.wake();
            }
        });
        tracing::info!(reason, "stopping");
    }
    let _limit = stop::exit_after(STOP_LIMIT);
    let failed = match started {
        Ok(stop_front) => {
            stop_front(); // first, since its requests wait for the cores
            None
        }
        Err(what) => Some(what),
    };
    running.request_stop();
    let ended = running.join();
    // Every accepted publish is durable and answered: others may lead from now on.
    coordinator.into_iter().for_each(Running::stop);
    let ended = ended?;
    for core in &ended {
        tracing::info!(core = core.core(), turns = %core.turns, stalls = core.stalls, "core ended: its turns and how long they took");
    }
    failed.map_or(Ok(()), |what| Err(NodeError::Front(what)))
}

/// Reads the PEM files of the settings again, and logs the outcome. Present connections keep their certificates.
fn reread_tls(settings: &Settings, native_tls: Option<&Terms>, peer_tls: Option<&PeerTerms>, nsq_tls: Option<&layers::Terms>) {
    let native = native_tls.map(|terms| ("native", terms.reread(settings)));
    let peer = peer_tls.map(|terms| ("peer", terms.reread(settings)));
    let nsq = nsq_tls.map(|terms| ("NSQ", tls::reread_nsq(terms, settings)));
    for (port, read) in native.into_iter().chain(peer).chain(nsq) {
        match read {
            Ok(()) => tracing::info!("the TLS files of the {port} port are in force for new connections"),
            Err(error) => tracing::error!("the TLS files of the {port} port stay as they were: {error}"),
        }
    }
}

/// `--shards`, or as many as there are CPUs for us.
fn cores_of(settings: &Settings) -> Result<u16, NodeError> {
    if settings.shards > 0 {
        return Ok(settings.shards);
    }
    let cpus = cores::allowed_cpus().map_err(|e| NodeError::Cores(CoresError::Affinity(e)))?;
    Ok(cpus.len().clamp(1, 1024) as u16)
}

/// A node without it is slower under load, and no less right.
fn shorten_slice(wanted: Duration) {
    if wanted.is_zero() {
        return;
    }
    match slice::ask(wanted) {
        Ok(SliceState::InForce(slice)) => tracing::debug!(us = slice.as_micros() as u64, "time slice"),
        Ok(SliceState::NotKnown) => tracing::info!("--time-slice has no effect: the kernel needs to be Linux 6.12 or later"),
        Ok(SliceState::OtherPolicy) => tracing::info!("the scheduling policy is not SCHED_OTHER: --time-slice has no effect"),
        Err(e) => tracing::warn!("--time-slice has no effect: sched_setattr: {e}"),
    }
}

/// Addresses that the node holds and will listen on.
struct Addresses {
    tcp: Reserved,
    http: Option<Reserved>,
    native: Option<Reserved>,
    /// Reason why the default address of the native protocol, which no setting gave, is not served.
    native_refusal: Option<NetError>,
    peer: Option<Reserved>,
    lookups: Option<Reserved>,
    https: Option<Reserved>,
}

impl Addresses {
    fn reserve(settings: &Settings) -> Result<Addresses, NetError> {
        let take = |address: &String| Reserved::take(address, ADDRESS_WAIT);
        let tcp = take(&settings.tcp_address)?;
        let http = Some(&settings.http_address).filter(|address| !address.is_empty()).map(take).transpose()?;
        let mut native_refusal = None;
        let native = match &settings.native_address {
            none if none.is_empty() => None,
            address => match take(address) {
                Err(refusal @ NetError::InUse { .. }) if settings.is_native_optional() => {
                    native_refusal = Some(refusal);
                    None
                }
                taken => Some(taken?),
            },
        };
        let peer = settings.is_clustered().then(|| take(&settings.peer_address)).transpose()?;
        let lookups = match &settings.lookupd_http_address {
            none if none.is_empty() => None,
            address => Some(take(address)?),
        };
        let https = Self::https(settings)?;
        Ok(Addresses { tcp, http, native, native_refusal, peer, lookups, https })
    }

    /// Address of HTTPS, where there is a certificate. Two nodes of a machine do not fight for nsqd's default port.
    fn https(settings: &Settings) -> Result<Option<Reserved>, NetError> {
        if !settings.is_https_served() {
            return Ok(None);
        }
        match Reserved::take(&settings.https_address, ADDRESS_WAIT) {
            Err(refusal @ NetError::InUse { .. }) if !settings.given.contains("https-address") => {
                tracing::warn!(
                    "HTTPS is not served on its default address: {refusal}. Give another --https-address, or an empty one for no HTTPS"
                );
                Ok(None)
            }
            taken => taken.map(Some),
        }
    }

    /// Starts without the native port if its default address is taken, unless other nodes send native clients to this one.
    fn do_without_native(&mut self, cluster: Option<&Cluster>) -> Result<(), NodeError> {
        let Some(source) = self.native_refusal.take() else { return Ok(()) };
        if let Some(listed) = cluster.and_then(Cluster::file).and_then(Coordinator::listed_native_address) {
            return Err(NodeError::NativeListed { source, listed });
        }
        tracing::warn!(
            "the native protocol is not served on its default address: {source}. Give another --native-address, or an empty one for no \
             native protocol"
        );
        Ok(())
    }
}

struct Parts<M> {
    parts: Vec<CoreParts<M>>,
    http_port: HttpPort,
    /// Listener of HTTP.
    listener: Option<TcpListener>,
    lookups: Option<TcpListener>,
    https: Option<TcpListener>,
}

/// Listeners, mesh and wakes, all connected before the first core runs.
fn parts<M>(addresses: Addresses, builds: Vec<Build<M>>, http_wake: Arc<dyn Wake>) -> Result<Parts<M>, NodeError> {
    let cores = builds.len() as u16;
    let (mut ports, mut http_port) = mesh::mesh(cores);
    let wakes = (0..cores).map(|_| WakeFd::new()).collect::<io::Result<Vec<_>>>().map_err(NodeError::Eventfd)?;
    let wakers: Vec<Arc<dyn Wake>> = wakes.iter().map(|wake| wake.clone() as Arc<dyn Wake>).collect();
    for port in ports.iter_mut().chain([&mut http_port]) {
        port.connect_wakers(&wakers, http_wake.clone());
    }
    let Addresses { tcp, http, native, peer, lookups, https, .. } = addresses;
    let mut of_core: Vec<Vec<(ListenerKind, TcpListener)>> = (0..cores).map(|_| vec![]).collect();
    for (place, address) in [(ListenerKind::Nsq, Some(tcp)), (ListenerKind::Native, native), (ListenerKind::Peer, peer)] {
        let Some(address) = address else { continue };
        let at = address.address();
        for (listener, listeners) in address.share(cores as usize)?.into_iter().zip(&mut of_core) {
            if place == ListenerKind::Peer {
                let failed = |cause| NetError::Listen { address: at.to_string(), cause };
                net::keep_alive(&listener).map_err(failed)?;
            }
            listeners.push((place, listener));
        }
    }
    let each = of_core.into_iter().zip(ports).zip(wakes).zip(builds);
    let parts = each.map(|(((listeners, port), wake), build)| CoreParts { listeners, port, wake, build }).collect();
    let lookups = lookups.map(listen_alone).transpose()?;
    let https = https.map(listen_alone).transpose()?;
    let listener = http.map(listen_alone).transpose()?;
    Ok(Parts { parts, http_port, listener, lookups, https })
}

/// Opens a single listener. Its connections may be silent for long, so TCP keep-alive ends those whose other end is gone.
fn listen_alone(address: Reserved) -> Result<TcpListener, NetError> {
    let at = address.address();
    let listener = address.listen()?;
    net::keep_alive(&listener).map_err(|cause| NetError::Listen { address: at.to_string(), cause })?;
    Ok(listener)
}

/// 128 bits from the kernel.
pub fn random_id() -> Result<[u8; 16], NodeError> {
    let (first, second) = (random()?, random()?);
    Ok((u128::from(first) << 64 | u128::from(second)).to_be_bytes())
}

/// 64 bits from the kernel.
pub fn random() -> Result<u64, NodeError> {
    let mut bytes = [0u8; 8];
    // SAFETY: eight writable bytes; short answers do not happen below 256 bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(NodeError::Recovery(format!("no random bytes: {}", io::Error::last_os_error())));
    }
    Ok(u64::from_le_bytes(bytes))
}
