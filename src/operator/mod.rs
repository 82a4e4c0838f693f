//! `ringmq cluster`: a cluster's metadata in etcd, as tables or JSON, and changes of it ([`change`]). That needs no node. `status` adds
//! facts of the nodes that answer ([`live`]); `verify` and `doctor` ask all nodes ([`checks`]).

pub mod ask;
pub mod change;
pub mod checks;
mod doctor;
mod finding;
mod live;
mod report;
mod verify;

use crate::config::Settings;
use crate::coordinator::CoordinatorError;
use crate::coordinator::store;
use crate::metadata::view::{View, ViewError};
use ask::Asker;
use live::Live;
use report::Report;
use std::io::{self, Write};

/// Page or check that the operator asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    Status,
    Nodes,
    Topics,
    Partitions,
}

/// The words of [`PageKind`], as the command line has them.
pub const WORDS: [&str; 4] = ["status", "nodes", "topics", "partitions"];

impl PageKind {
    pub fn of(word: &str) -> Option<PageKind> {
        let all = [PageKind::Status, PageKind::Nodes, PageKind::Topics, PageKind::Partitions];
        WORDS.iter().position(|known| *known == word).map(|at| all[at])
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    #[error("--etcd-endpoints is missing: give the endpoints of the cluster's etcd")]
    NoEtcd,
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    NoCluster(#[from] NoCluster),
    #[error("there is no topic {0} (`ringmq cluster topics` lists the topics)")]
    NoTopic(String),
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

/// The etcd was asked for a cluster that it does not have.
#[derive(Debug, thiserror::Error)]
#[error(
    "this etcd has no cluster {name}: {found}. check --cluster-name and --etcd-endpoints; ringmq cluster init creates a new cluster"
)]
pub struct NoCluster {
    name: String,
    /// Mode that the node runs in instead.
    found: String,
}

/// Fails where the etcd does not have the cluster of the view.
fn check_exists(settings: &Settings, view: &View) -> Result<(), NoCluster> {
    if view.cluster_id().is_some() {
        return Ok(());
    }
    let others = store::clusters(settings);
    let found = if others.is_empty() { "it has none".into() } else { format!("it has {}", others.join(", ")) };
    Err(NoCluster { name: settings.cluster_name.clone(), found })
}

/// Fails where the cluster does not have the topic that is asked about.
fn check_topic(view: &View, topic: Option<&str>) -> Result<(), OperatorError> {
    let missing = topic.filter(|name| view.topic(name).is_none());
    missing.map_or(Ok(()), |name| Err(OperatorError::NoTopic(name.into())))
}

/// Fails where the command line alone says that the word cannot be carried out: no usable etcd is named, or a flag is missing or wrong.
pub fn check_call(settings: &Settings, word: &str, names: &change::Names) -> Result<(), String> {
    if !settings.has_etcd() {
        return Err(OperatorError::NoEtcd.to_string());
    }
    store::options(settings).map_err(|error| error.to_string())?;
    match change::WORDS.into_iter().find(|known| *known == word) {
        Some(word) => names.check(word).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// Prints; whether all is well: each partition has a leader, its replicas are in sync, no node is away.
pub fn run(
    settings: &Settings,
    asker: &Asker,
    what: PageKind,
    topic: Option<&str>,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<bool, OperatorError> {
    if !settings.has_etcd() {
        return Err(OperatorError::NoEtcd);
    }
    let (layout, listing) = store::list(settings)?;
    let mut view = View::new(layout, 0);
    view.replace(listing, None)?;
    check_exists(settings, &view)?;
    check_topic(&view, topic)?;
    let live = match what {
        PageKind::Status => store::on_a_loop(live::gather(asker, &view)),
        PageKind::Nodes | PageKind::Topics | PageKind::Partitions => Live::default(),
    };
    let report = Report::of(&view, &settings.cluster_name, topic, &live);
    match is_json {
        true => writeln!(out, "{}", report.json(what))?,
        false => out.write_all(report.text(what).as_bytes())?,
    }
    Ok(report.is_well())
}
