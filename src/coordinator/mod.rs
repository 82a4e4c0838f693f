//! Source of a cluster's metadata: its nodes, and the replicas and leader of each partition. Either an operator writes them into a file
//! (`--cluster-file`, docs/cluster-file.md): nothing is automatic, and the log has the changes that replicas propose. Or an etcd has
//! them (`--etcd-endpoints`), and the nodes change them by themselves.
//!
//! | file | its concept |
//! |---|---|
//! | file | the text of a cluster file, read and checked; pure |
//! | change | whether a new file may follow the one in force, and what it changes; pure |
//! | answers | the facts for one core, and the answers to its requests; pure |
//! | copy | the file in force, kept in the data path twice, so that a restart knows it |
//! | offers | the offers of a place in an ISR, kept there |
//! | twice | two files of the data path that say the same |
//! | mod | the node's coordinator: reads the file at startup and on SIGHUP, and hands it to the cores |
//! | store | with an etcd: the checks before the node starts |
//! | memory | with an etcd: the facts about its cluster that the data path remembers |
//! | driver | with an etcd: the thread that carries the agent's requests |
//! | hub | between that thread and the cores |
//! | cluster | either of the two, as the runtime sees it |
//!
//! With a file it has no thread but the one that writes offers down. The first thread of the node reads the file (at startup, and when
//! SIGHUP came); each core looks at each turn whether another version is in force, which is one atomic load.

pub mod answers;
pub mod change;
pub mod cluster;
pub mod copy;
pub mod driver;
pub mod file;
pub mod hub;
pub mod memory;
pub mod offers;
pub mod store;
#[cfg(test)]
mod tests;
mod twice;

use crate::base::NodeId;
use crate::base::Rng;
use crate::config::Settings;
use crate::disk::blocking::{Access, BlockingStorage};
use crate::disk::lock::DATA_LOCK_WAIT;
use crate::disk::{DataLock, LockError};
use crate::log::recovery::RecoverError;
use crate::log::recovery::node::{self, Identity, identify};
use crate::seam::cluster::{Ask, ClusterOptions, Fact};
use crate::seam::membership::GENERATION_MAX;
use answers::{Answers, OperatorNote};
use change::{Change, Refusal};
use copy::{Damaged, InForce};
use file::{BadFile, ClusterFile, FILE_BYTES_MAX};
use offers::{Book, ReportedOffer};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    #[error("--cluster-file={path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("--cluster-file={path}: the file is longer than {FILE_BYTES_MAX} bytes, the most that a cluster file may have")]
    TooLong { path: PathBuf },
    #[error("--cluster-file={path}, {error}")]
    Bad { path: PathBuf, error: BadFile },
    #[error("--cluster-file={path}: {error}. The copy {copy} stays in force", copy = copy.display())]
    Refused { path: PathBuf, copy: PathBuf, error: Refusal },
    #[error(
        "--cluster-file={path} names no node with the id of {data}, which is {id}. Put it under a [[node]], with a name and the \
         peer_address of this node, raise version, and bring the file to every node; or give the --data-path of a node in the file",
        path = path.display(),
        data = data.display()
    )]
    NotNamed { path: PathBuf, data: PathBuf, id: NodeId },
    #[error(
        "{data} has no node id yet: `ringmq node-id --data-path={data}` makes one and prints it; put it under a [[node]] of \
         {path}, with a name and the peer_address of this node",
        path = path.display(),
        data = data.display()
    )]
    NoId { path: PathBuf, data: PathBuf },
    #[error(
        "node.meta of {data} is damaged, so the id of this node in the cluster is not known. Move the data path away, begin \
         with an empty one (ringmq node-id), and put its id into the cluster file as another node, outside of every isr: it \
         then catches up",
        data = data.display()
    )]
    IdLost { data: PathBuf },
    #[error(
        "--cluster-file={path}: its version {found} is older than version {known}, which was in force here by node.meta; the copies of \
         that file are damaged ({damage}). Use the newest file that any node has",
        path = path.display()
    )]
    OlderThanKnown { path: PathBuf, found: u64, known: u64, damage: String },
    #[error(
        "{path} is damaged ({what}), and so is its copy: they hold the nodes to which this leader offered a place in an isr. Remove both \
         (cluster.offers and cluster.offers.copy), start again, and add no node to an isr that the log named before",
        path = path.display()
    )]
    BadOffers { path: PathBuf, what: String },
    #[error("cannot start the thread that writes offers: {0}; raise the limit of processes (ulimit -u)")]
    Scribe(io::Error),
    #[error("{path}: {source}; the data path must be writable", path = path.display())]
    Copy { path: PathBuf, source: io::Error },
    #[error(
        "{data} belongs to a cluster ({first} is the file that was in force), and there is no --cluster-file: alone the node would \
         take messages that the cluster does not have. Start it with its cluster file. To make it a node of its own for good, \
         remove {first} and {second}: it cannot return to the cluster then",
        data = data.display(),
        first = copies[0].display(),
        second = copies[1].display()
    )]
    BelongsToACluster { data: PathBuf, copies: [PathBuf; 2] },
    #[error(
        "{data} can no longer join a cluster: its generation {generation} is above {GENERATION_MAX}, since its node ran alone after it \
         had been in a cluster. Begin with an empty data path, as another node of the cluster: that node then catches up",
        data = data.display()
    )]
    GenerationUsedUp { data: PathBuf, generation: u64 },
    #[error("{0}")]
    Etcd(String),
    #[error(
        "both {first} and {second} are damaged ({what}); they name the cluster of this data path. If this is the cluster of \
         --etcd-endpoints and --cluster-name, remove both files and start again",
        first = paths[0].display(),
        second = paths[1].display()
    )]
    BadMemory { paths: [PathBuf; 2], what: String },
    #[error(
        "{data} belongs to the cluster {known:?} and not to {asked:?} (--cluster-name). Correct --data-path or --cluster-name",
        data = data.display()
    )]
    OtherName { data: PathBuf, known: String, asked: String },
    #[error(
        "the cluster {name:?} of this etcd has the id {found}, and this data path is of the cluster {known}: this is another etcd, or \
         etcd was wiped. Nothing is changed. Give the --etcd-endpoints of this data path's cluster"
    )]
    OtherCluster { name: String, known: NodeId, found: NodeId },
    #[error(
        "{data} belonged to node {known} in its cluster, and now belongs to node {found}: parts of two data paths were mixed. Move the \
         data path away and begin with an empty one: the node then catches up",
        data = data.display()
    )]
    OtherNode { data: PathBuf, known: NodeId, found: NodeId },
    #[error(
        "{data} belongs to a cluster with an etcd ({memory}), and --etcd-endpoints is missing: start the node with --etcd-endpoints",
        memory = memory.display(),
        data = data.display()
    )]
    BelongsToAnEtcd { data: PathBuf, memory: PathBuf },
    #[error(
        "{data} belongs to a cluster of a static file ({copy}), and --etcd-endpoints names an etcd: begin with an empty data path, or \
         start with --cluster-file",
        copy = copy.display(),
        data = data.display()
    )]
    BelongsToAFile { data: PathBuf, copy: PathBuf },
    #[error("the coordinator's thread does not start: {0}; raise the limit of processes (ulimit -u)")]
    Thread(io::Error),
    #[error(transparent)]
    Data(#[from] RecoverError),
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// The file that is in force, for all cores.
struct Board {
    latest: Mutex<Arc<ClusterFile>>,
    /// Version of the latest file.
    version: AtomicU64,
}

/// The coordinator of a node.
pub struct Coordinator {
    path: PathBuf,
    data: PathBuf,
    me: NodeId,
    /// Text of the latest file.
    text: Mutex<String>,
    board: Arc<Board>,
    offers: Book,
    damage: Vec<Damaged>,
}

/// Result of reading the file again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reread {
    /// The file has the content in force.
    Same { version: u64 },
    /// The file has another version, and perhaps nothing else changed.
    Changed { version: u64, changes: Vec<Change> },
}

impl Coordinator {
    /// Reads and checks all there is, and changes nothing. `None`: there is no cluster file.
    pub fn open(settings: &Settings) -> Result<Option<Coordinator>, CoordinatorError> {
        let data = PathBuf::from(&settings.data_path);
        let copies = copy::paths(&data);
        let memory = memory::files(&data);
        match (settings.has_etcd(), memory.exists()) {
            (true, _) => {
                let copy = copies.into_iter().find(|copy| copy.exists());
                return copy.map_or(Ok(None), |copy| Err(CoordinatorError::BelongsToAFile { data, copy }));
            }
            (false, true) => {
                let [memory, _] = memory.paths;
                return Err(CoordinatorError::BelongsToAnEtcd { data, memory });
            }
            (false, false) => {}
        }
        if !settings.is_clustered() {
            return match copies.iter().any(|copy| copy.exists()) {
                true => Err(CoordinatorError::BelongsToACluster { data, copies }),
                false => Ok(None),
            };
        }
        let path = PathBuf::from(&settings.cluster_file);
        let (text, file) = read(&path)?;
        let me = match read_identity(&data)? {
            Identity::Known(id) => NodeId(id),
            Identity::None => return Err(CoordinatorError::NoId { path, data }),
            Identity::Lost => return Err(CoordinatorError::IdLost { data }),
        };
        let offers = Book::open(&data)?;
        let InForce { file: in_force, version: known, damage } = copy::read(&data)?;
        if let Some(in_force) = &in_force {
            let [copy, _] = copies;
            change::compare(in_force, &file)
                .and_then(|_| change::check_offers(in_force, &file, me, &offers.offers()))
                .map_err(|error| CoordinatorError::Refused { path: path.clone(), copy, error })?;
        }
        if file.version < known {
            let damage = damage.iter().map(Damaged::to_string).collect::<Vec<_>>().join("; ");
            return Err(CoordinatorError::OlderThanKnown { path, found: file.version, known, damage });
        }
        if file.node(me).is_none() {
            return Err(CoordinatorError::NotNamed { path, data, id: me });
        }
        let version = AtomicU64::new(file.version);
        let board = Arc::new(Board { latest: Mutex::new(Arc::new(file)), version });
        Ok(Some(Coordinator { path, data, me, text: Mutex::new(text), board, offers, damage }))
    }

    pub fn me(&self) -> NodeId {
        self.me
    }

    pub fn file(&self) -> Arc<ClusterFile> {
        self.board.latest()
    }

    /// The address to which other nodes send native clients of this one.
    pub fn listed_native_address(&self) -> Option<Arc<str>> {
        self.file().node(self.me)?.native_address.clone()
    }

    /// Copies in the data path that were damaged when it was opened.
    pub fn damage(&self) -> &[Damaged] {
        &self.damage
    }

    /// The node is about to serve under this generation: from now on the file is in force, also for later starts.
    pub fn begin(&self, generation: u64) -> Result<(), CoordinatorError> {
        if generation > GENERATION_MAX {
            return Err(CoordinatorError::GenerationUsedUp { data: self.data.clone(), generation });
        }
        let file = self.file();
        self.damage.iter().for_each(|damage| tracing::error!("{damage}"));
        copy::write(&self.data, &self.text.lock().unwrap_or_else(PoisonError::into_inner), file.version)?;
        self.offers.begin()?;
        let name = file.name(self.me);
        tracing::info!(
            name,
            node = %self.me,
            version = file.version,
            nodes = file.nodes.len(),
            topics = file.topics.len(),
            "the cluster file is in force"
        );
        tell_resting(&file);
        Ok(())
    }

    pub fn options(&self, generation: u64) -> ClusterOptions {
        ClusterOptions { cluster_id: self.file().cluster_id, generation, creates_topics: false }
    }

    /// Handles for the cores, one each.
    pub fn of_cores(&self, generation: u64) -> Result<Desk, CoordinatorError> {
        let answers = Answers::new(self.me, generation, self.file(), self.offers.offers());
        let scribe = self.offers.scribe().map_err(CoordinatorError::Scribe)?;
        Ok(Desk { board: self.board.clone(), answers, scribe, seen: 0, waiting: vec![] })
    }

    /// SIGHUP: reads the file again. The outcome is logged; the cores get it with their next turn.
    pub fn reread_and_tell(&self) {
        match self.reread() {
            Ok(Reread::Same { version }) => tracing::info!(version, "the cluster file is the one in force: nothing changes"),
            Ok(Reread::Changed { version, changes }) => {
                tracing::info!(version, changes = changes.len(), "another version of the cluster file is in force");
                changes.iter().for_each(|change| tracing::info!(version, "{change}"));
                tell_resting(&self.file());
            }
            Err(error) => tracing::error!("the cluster file in force stays: {error}"),
        }
    }

    pub fn reread(&self) -> Result<Reread, CoordinatorError> {
        let (text, file) = read(&self.path)?;
        let in_force = self.file();
        let (path, [copy, _]) = (self.path.clone(), copy::paths(&self.data));
        let changes = change::compare(&in_force, &file)
            .and_then(|changes| change::check_offers(&in_force, &file, self.me, &self.offers.offers()).map(|()| changes))
            .map_err(|error| CoordinatorError::Refused { path: path.clone(), copy, error })?;
        if file.version == in_force.version {
            return Ok(Reread::Same { version: file.version });
        }
        if file.node(self.me).is_none() {
            return Err(CoordinatorError::NotNamed { path, data: self.data.clone(), id: self.me });
        }
        // First the copy for a restart: no core acts on a file that a restart would not know.
        copy::write(&self.data, &text, file.version)?;
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
        let version = file.version;
        self.board.put(file);
        Ok(Reread::Changed { version, changes })
    }
}

impl Board {
    fn latest(&self) -> Arc<ClusterFile> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, file: ClusterFile) {
        let version = file.version;
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(file);
        self.version.store(version, Ordering::Release);
    }
}

/// A core's end of the coordinator; lives on the core's thread.
#[derive(Clone)]
pub struct Desk {
    board: Arc<Board>,
    answers: Answers,
    scribe: Sender<ReportedOffer>,
    /// The version that the core knows; 0 before it knows any.
    seen: u64,
    /// Answers that the core has not heard yet.
    waiting: Vec<Fact>,
}

impl Desk {
    /// Gives the core its new facts; the first time all facts.
    pub fn news(&mut self, hear: &mut dyn FnMut(Fact)) {
        if self.seen != self.board.version.load(Ordering::Acquire) {
            let file = self.board.latest();
            self.seen = file.version;
            self.answers.adopt(file).into_iter().for_each(&mut *hear);
        }
        self.waiting.drain(..).for_each(hear);
    }

    pub fn has_news(&self) -> bool {
        !self.waiting.is_empty() || self.seen != self.board.version.load(Ordering::Acquire)
    }

    /// Passes a question on. News for an operator go to the log, the answer is among the next facts.
    pub fn ask(&mut self, ask: Ask) {
        let told = self.answers.offer(&ask);
        let (fact, note) = self.answers.answer(ask);
        match (told, note) {
            // Said when it is durable; where it was said before it is.
            (Some(told), Some(note)) => {
                let told = ReportedOffer { note: Some(note), ..told };
                self.scribe.send(told).expect("the thread lives as long as a desk");
            }
            (_, note) => note.iter().for_each(OperatorNote::tell),
        }
        self.waiting.extend(fact);
    }
}

fn tell_resting(file: &ClusterFile) {
    file.resting().iter().for_each(|what| tracing::warn!(version = file.version, "{what}: the partition takes no publish"));
}

fn read(path: &Path) -> Result<(String, ClusterFile), CoordinatorError> {
    let failed = |source| CoordinatorError::Unreadable { path: path.to_owned(), source };
    let mut text = String::new();
    let opened = std::fs::File::open(path).map_err(failed)?;
    opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(CoordinatorError::TooLong { path: path.to_owned() });
    }
    let file = file::parse(&text).map_err(|error| CoordinatorError::Bad { path: path.to_owned(), error })?;
    Ok((text, file))
}

/// The id of a data path. An empty data path gets its id now, durably, from `random`; the answer is then true.
pub fn node_id(data: &Path, random: u64) -> Result<(NodeId, bool), CoordinatorError> {
    if let Identity::Known(id) = read_identity(data)? {
        return Ok((NodeId(id), false));
    }
    let _lock = DataLock::acquire(data, DATA_LOCK_WAIT)?;
    let mut storage = BlockingStorage::new(data);
    match identify(&mut storage)? {
        Identity::Known(id) => Ok((NodeId(id), false)),
        Identity::None => Ok((NodeId(node::create(&mut storage, &mut Rng::new(random))?), true)),
        Identity::Lost => Err(CoordinatorError::IdLost { data: data.to_owned() }),
    }
}

/// Reads the cluster and node that the data path belongs to; creates nothing.
fn read_identity(data: &Path) -> Result<Identity, CoordinatorError> {
    if !data.is_dir() {
        return Ok(Identity::None);
    }
    let mut storage = BlockingStorage::with_access(data, Access::ReadOnly);
    Ok(identify(&mut storage)?)
}
