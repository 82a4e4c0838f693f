//! The coordinator of a node whose cluster an etcd decides (`--etcd-endpoints`): checks before the node starts whether the data path, the
//! node and the store belong together, then starts the thread that speaks with the store ([`super::driver`]).

use super::CoordinatorError;
use super::driver::{self, NodeIdentity};
use super::hub::{Hub, ToCoordinator, WakeCores};
use super::memory::Memory;
use crate::base::{NodeId, Ticks};
use crate::config::Settings;
use crate::etcd::health::Health;
use crate::etcd::{Endpoint, Etcd, Options, Store, User};
use crate::metadata::keys::{Key, Layout, ROOT};
use crate::metadata::record::{ClusterRecord, MemberRecord, decode, encode};
use crate::metadata::request::{Answer, Compare, KeyValue, Listing, Op, Request, Txn};
use crate::seam::cluster::ClusterOptions;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::LocalSet;

/// Pause before the store is asked again, while it does not answer a node that needs it to start.
const RETRY: Duration = Duration::from_millis(500);
/// Time between two log lines about that.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Time that a stop waits until the lease is given back. It ends by itself else.
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// Addresses to which no other machine can connect.
const UNSPECIFIED: [&str; 2] = ["0.0.0.0", "[::]"];

/// Options of the store by the settings.
pub fn options(settings: &Settings) -> Result<(Options, Layout), CoordinatorError> {
    let urls = settings.etcd_endpoints.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|url| !url.is_empty());
    let endpoints =
        urls.map(Endpoint::parse).collect::<Result<Vec<_>, _>>().map_err(|e| CoordinatorError::Etcd(e.to_string()))?;
    let layout = Layout::new(&settings.cluster_name).map_err(|e| CoordinatorError::Etcd(format!("--cluster-name: {e}")))?;
    if endpoints.is_empty() {
        return Err(CoordinatorError::Etcd("--etcd-endpoints names no URL".into()));
    }
    let tls = match endpoints.iter().any(Endpoint::is_tls) {
        true => Some(crate::tls::etcd_client(settings).map_err(|e| CoordinatorError::Etcd(e.to_string()))?),
        false => None,
    };
    let user = match settings.etcd_user.as_str() {
        "" => None,
        name => {
            let user = User { name: name.into(), password_file: settings.etcd_password_file.clone().into() };
            let unread = |e| CoordinatorError::Etcd(format!("--etcd-password-file={}: {e}", settings.etcd_password_file));
            user.password().map_err(unread)?;
            Some(user)
        }
    };
    Ok((Options { endpoints, tls, user, prefix: layout.prefix().into() }, layout))
}

/// The node's membership in a cluster of an etcd.
pub struct StoreCoordinator {
    settings: Arc<Settings>,
    data: PathBuf,
    options: Options,
    layout: Layout,
    cluster: [u8; 16],
    memory: Option<Memory>,
    /// Random number of this process.
    process: u64,
    hub: Arc<Hub>,
    told: UnboundedReceiver<ToCoordinator>,
}

/// Clock that the runtime lends the thread.
pub struct Clock {
    /// CLOCK_BOOTTIME, as the cores read it.
    pub now: fn() -> Ticks,
    /// Random, for ids.
    pub seed: u64,
}

/// The running thread.
pub struct RunningStore {
    hub: Arc<Hub>,
    thread: JoinHandle<()>,
}

impl StoreCoordinator {
    /// Waits for the store only while the node cannot know its cluster without it. `random`: the id of a cluster that is new.
    /// `None`: `is_stopping` said so meanwhile.
    pub fn open(
        settings: &Arc<Settings>,
        random: [u8; 16],
        is_stopping: impl Fn() -> bool,
    ) -> Result<Option<StoreCoordinator>, CoordinatorError> {
        let data = PathBuf::from(&settings.data_path);
        let (options, layout) = options(settings)?;
        let memory = Memory::read(&data)?;
        if let Some(memory) = memory.as_ref().filter(|memory| memory.cluster != settings.cluster_name) {
            let (known, asked) = (memory.cluster.clone(), settings.cluster_name.clone());
            return Err(CoordinatorError::OtherName { data, known, asked });
        }
        let found = contact(&options, &layout, memory.as_ref(), random, is_stopping)?;
        let Some(cluster) = found else { return Ok(None) };
        let (low, high) = random.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        // 0 stands for none.
        let process = (half(low) ^ half(high)).max(1);
        let (sender, told) = unbounded_channel();
        let hub = Arc::new(Hub::new(sender));
        Ok(Some(StoreCoordinator { settings: settings.clone(), data, options, layout, cluster, memory, process, hub, told }))
    }

    pub fn hub(&self) -> Arc<Hub> {
        self.hub.clone()
    }

    pub fn cluster_options(&self, generation: u64) -> ClusterOptions {
        ClusterOptions { cluster_id: self.cluster, generation, creates_topics: true }
    }

    /// The node is about to serve: from now on the data path belongs to this cluster.
    pub fn begin(&mut self, me: NodeId) -> Result<(), CoordinatorError> {
        let known = self.memory.take();
        if let Some(known) = known.as_ref().filter(|known| known.node != me) {
            return Err(CoordinatorError::OtherNode { data: self.data.clone(), known: known.node, found: me });
        }
        let (revision, processes) = known.map_or((0, vec![]), |known| (known.revision, known.processes));
        let cluster = self.settings.cluster_name.clone();
        let mut memory = Memory { cluster, id: self.cluster, node: me, revision, processes };
        // Before it can be registered: a process that does not find itself here is overtaken.
        memory.begin(self.process);
        memory.write(&self.data)?;
        self.memory = Some(memory);
        Ok(())
    }

    /// Starts the thread. The cores are there, each with its desk.
    pub fn start(self, generation: u64, cores: u16, wake: WakeCores, clock: Clock) -> Result<RunningStore, CoordinatorError> {
        let memory = self.memory.expect("the node has begun");
        self.hub.set_wake(wake);
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned();
        let place = NodeIdentity {
            member: MemberRecord { process: self.process, ..member(&self.settings, cores) },
            machine,
            generation,
            memory,
            data: self.data,
            layout: self.layout,
            settings: self.settings,
            now: clock.now,
            seed: clock.seed,
        };
        let (hub, options, told) = (self.hub.clone(), self.options, self.told);
        let run = move || on_a_loop(driver::run(Etcd::new(options), place, hub, told));
        let thread = std::thread::Builder::new().name("coordinator".into()).spawn(run).map_err(CoordinatorError::Thread)?;
        Ok(RunningStore { hub: self.hub, thread })
    }
}

impl RunningStore {
    /// Gives the lease back, so that no other node waits for its end. Called while the cores still answer their peers.
    pub fn stop(self) {
        self.hub.send(ToCoordinator::Stop);
        let began = Instant::now();
        while !self.thread.is_finished() && began.elapsed() < STOP_LIMIT {
            std::thread::sleep(Duration::from_millis(2));
        }
        if !self.thread.is_finished() {
            tracing::warn!("etcd does not answer: the node's lease is not given back, and ends by itself");
        }
    }
}

/// Version and alarms of the members of the store.
pub fn health(settings: &Settings) -> Result<Vec<Health>, CoordinatorError> {
    let (options, _) = options(settings)?;
    Ok(on_a_loop(async { Etcd::new(options).health().await }))
}

/// Bytes of the store's database and its quota, where it tells them.
pub fn space(settings: &Settings) -> Result<Option<(u64, u64)>, CoordinatorError> {
    let (options, _) = options(settings)?;
    Ok(on_a_loop(async { Etcd::new(options).space().await }))
}

/// Lists everything that the store has of the cluster, for a caller without an agent.
pub fn list(settings: &Settings) -> Result<(Layout, Listing), CoordinatorError> {
    let (options, layout) = options(settings)?;
    match on_a_loop(async { Etcd::new(options).carry(Request::List).await }) {
        Ok(Answer::Listed(listing)) => Ok((layout, listing)),
        Ok(other) => Err(CoordinatorError::Etcd(format!("etcd answers with {other:?}"))),
        Err(failure) => Err(CoordinatorError::Etcd(failure.to_string())),
    }
}

/// Names of the clusters that the store has, as far as the user may look.
pub fn clusters(settings: &Settings) -> Vec<String> {
    let Ok((mut options, _)) = options(settings) else { return vec![] };
    options.prefix = ROOT.into();
    let answer = on_a_loop(async { Etcd::new(options).carry(Request::List).await });
    let Ok(Answer::Listed(listing)) = answer else { return vec![] };
    let name = |kv: &KeyValue| std::str::from_utf8(&kv.key).ok()?.strip_prefix(ROOT)?.strip_suffix("/id").map(str::to_owned);
    listing.entries.iter().filter_map(name).filter(|name| !name.contains('/')).collect()
}

/// Carries one transaction of a tool. True if its compares held.
pub fn write(settings: &Settings, txn: Txn) -> Result<bool, CoordinatorError> {
    let (options, _) = options(settings)?;
    match on_a_loop(async { Etcd::new(options).carry(Request::Txn(txn)).await }) {
        Ok(Answer::Txn { succeeded, .. }) => Ok(succeeded),
        Ok(other) => Err(CoordinatorError::Etcd(format!("etcd answers with {other:?}"))),
        Err(failure) => Err(CoordinatorError::Etcd(failure.to_string())),
    }
}

/// Runs it to its end on a loop of its own.
pub fn on_a_loop<T>(doing: impl Future<Output = T>) -> T {
    // Fails for want of descriptors only, which the node has by now.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a loop of tokio can be made");
    LocalSet::new().block_on(&runtime, doing)
}

/// Record of this node that the other nodes read.
fn member(settings: &Settings, cores: u16) -> MemberRecord {
    let reachable = |own: &str| {
        let (host, port) = own.rsplit_once(':').unwrap_or((own, ""));
        let is_open = UNSPECIFIED.contains(&host) || settings.given.contains("broadcast-address");
        if is_open { format!("{}:{port}", settings.broadcast_address) } else { own.to_owned() }
    };
    let with_port = |own: &str, port: u16| match port {
        0 => reachable(own),
        port => format!("{}:{port}", settings.broadcast_address),
    };
    MemberRecord {
        name: settings.node_name.clone(),
        peer_address: match settings.broadcast_peer_address.as_str() {
            "" => reachable(&settings.peer_address),
            given => given.to_owned(),
        },
        native_address: Some(&settings.native_address).filter(|own| !own.is_empty()).map(|own| reachable(own)),
        tcp_address: Some(with_port(&settings.tcp_address, settings.broadcast_tcp_port)),
        http_address: Some(with_port(&settings.http_address, settings.broadcast_http_port)),
        zone: settings.zone.clone(),
        capacity: 100,
        cores: cores.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        process: 0,
        incarnation: 0,
    }
}

/// The id of the cluster, which the first node makes. A node that knows it starts without an answer.
fn contact(
    options: &Options,
    layout: &Layout,
    memory: Option<&Memory>,
    random: [u8; 16],
    is_stopping: impl Fn() -> bool,
) -> Result<Option<[u8; 16]>, CoordinatorError> {
    let key = layout.key(&Key::Id);
    let get = Op::Get { key: key.clone() };
    let txn = match memory {
        Some(_) => Txn { then: vec![get], ..Txn::default() },
        None => Txn {
            compares: vec![Compare::CreateRevision { key: key.clone(), is: 0 }],
            then: vec![Op::Put { key: key.clone(), value: encode(&ClusterRecord { id: random }), lease: None }, get.clone()],
            otherwise: vec![get],
        },
    };
    let etcd = Etcd::new(options.clone());
    let mut said: Option<Instant> = None;
    on_a_loop(async {
        loop {
            let failure = match etcd.carry(Request::Txn(txn.clone())).await {
                Ok(Answer::Txn { mut reads, revision, .. }) => {
                    return judge(reads.pop().flatten(), revision, memory).map(Some);
                }
                Ok(other) => format!("etcd answers with {other:?}"),
                Err(failure) => failure.to_string(),
            };
            if let Some(memory) = memory {
                tracing::warn!("the node starts without etcd, and serves when etcd answers: {failure}");
                return Ok(Some(memory.id));
            }
            if is_stopping() {
                return Ok(None);
            }
            if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                said = Some(Instant::now());
                tracing::warn!("the first startup of a node waits for etcd: {failure}");
            }
            tokio::time::sleep(RETRY).await;
        }
    })
}

fn judge(found: Option<KeyValue>, revision: u64, memory: Option<&Memory>) -> Result<[u8; 16], CoordinatorError> {
    let Some(found) = found else {
        let known = memory.map_or([0; 16], |memory| memory.id);
        return Err(CoordinatorError::Etcd(format!(
            "etcd has no key `id` of this cluster, which this data path knows as {}: etcd was wiped, or this is another etcd. Nothing is \
             changed \
             and nothing is deleted; docs/cluster-failures.md says how to go on",
            NodeId(known)
        )));
    };
    let record: ClusterRecord = decode(&found.value).map_err(|e| CoordinatorError::Etcd(format!("the key `id`: {e}")))?;
    let Some(memory) = memory else { return Ok(record.id) };
    if record.id != memory.id {
        return Err(CoordinatorError::OtherCluster {
            name: memory.cluster.clone(),
            known: NodeId(memory.id),
            found: NodeId(record.id),
        });
    }
    if revision < memory.revision {
        return Err(CoordinatorError::Etcd(format!(
            "etcd went back: its revision is {revision}, and {} was seen before. It was wiped, or restored from a backup. Nothing is \
             changed and nothing is deleted; docs/cluster-failures.md says how to go on",
            memory.revision
        )));
    }
    Ok(record.id)
}
