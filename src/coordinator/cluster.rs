//! The coordinator as the runtime sees it: a static file, or an etcd.

use super::hub::{Hub, StoreDesk, WakeCores};
use super::store::{Clock, RunningStore, StoreCoordinator};
use super::{Coordinator, CoordinatorError, Desk};
use crate::base::NodeId;
use crate::config::Settings;
use crate::seam::cluster::{Ask, ClusterOptions, Fact};
use std::sync::Arc;

/// The coordinator of a node that is one of several.
pub enum Cluster {
    File(Coordinator),
    Store(Box<StoreCoordinator>),
}

/// Makes the desk of each core.
pub enum Desks {
    File(Desk),
    Store(Arc<Hub>),
}

/// Core's side of the coordinator. It lives on the core's thread.
pub enum CoreDesk {
    File(Desk),
    Store(StoreDesk),
}

impl Cluster {
    /// `None`: the node is alone, or `is_stopping` said so while etcd was waited for.
    pub fn open(
        settings: &Arc<Settings>,
        random: [u8; 16],
        is_stopping: impl Fn() -> bool,
    ) -> Result<Option<Cluster>, CoordinatorError> {
        // With an etcd it checks that no file was in force.
        let file = Coordinator::open(settings)?;
        if !settings.has_etcd() {
            return Ok(file.map(Cluster::File));
        }
        let store = StoreCoordinator::open(settings, random, is_stopping)?;
        Ok(store.map(|store| Cluster::Store(Box::new(store))))
    }

    pub fn file(&self) -> Option<&Coordinator> {
        match self {
            Cluster::File(file) => Some(file),
            Cluster::Store(_) => None,
        }
    }

    pub fn options(&self, generation: u64) -> ClusterOptions {
        match self {
            Cluster::File(file) => file.options(generation),
            Cluster::Store(store) => store.cluster_options(generation),
        }
    }

    /// The node is about to serve under this generation.
    pub fn begin(&mut self, me: NodeId, generation: u64) -> Result<(), CoordinatorError> {
        match self {
            Cluster::File(file) => file.begin(generation),
            Cluster::Store(store) => store.begin(me),
        }
    }

    pub fn desks(&self, generation: u64) -> Result<Desks, CoordinatorError> {
        match self {
            Cluster::File(file) => file.of_cores(generation).map(Desks::File),
            Cluster::Store(store) => Ok(Desks::Store(store.hub())),
        }
    }

    /// The node's condition, for health checks. A file leaves nothing to say.
    pub fn hub(&self) -> Option<Arc<Hub>> {
        match self {
            Cluster::File(_) => None,
            Cluster::Store(store) => Some(store.hub()),
        }
    }

    /// The cores run.
    pub fn start(self, generation: u64, cores: u16, wake: WakeCores, clock: Clock) -> Result<Running, CoordinatorError> {
        match self {
            Cluster::File(file) => Ok(Running::File(file)),
            Cluster::Store(store) => store.start(generation, cores, wake, clock).map(Running::Store),
        }
    }
}

/// The coordinator of a node that serves.
pub enum Running {
    File(Coordinator),
    Store(RunningStore),
}

impl Running {
    /// SIGHUP. Whether the cores have something to hear.
    pub fn reread(&self) -> bool {
        match self {
            Running::File(file) => {
                file.reread_and_tell();
                true
            }
            Running::Store(_) => false,
        }
    }

    /// The cores have ended: all that was taken is durable and answered.
    pub fn stop(self) {
        if let Running::Store(store) = self {
            store.stop();
        }
    }
}

impl Desks {
    pub fn desk(&self) -> CoreDesk {
        match self {
            Desks::File(desk) => CoreDesk::File(desk.clone()),
            Desks::Store(hub) => CoreDesk::Store(StoreDesk::new(hub.clone())),
        }
    }
}

impl CoreDesk {
    /// Gives the core its new facts.
    pub fn news(&mut self, hear: &mut dyn FnMut(Fact)) {
        match self {
            CoreDesk::File(desk) => desk.news(hear),
            CoreDesk::Store(desk) => desk.news(hear),
        }
    }

    pub fn has_news(&self) -> bool {
        match self {
            CoreDesk::File(desk) => desk.has_news(),
            CoreDesk::Store(desk) => desk.has_news(),
        }
    }

    pub fn ask(&mut self, ask: Ask) {
        match self {
            CoreDesk::File(desk) => desk.ask(ask),
            CoreDesk::Store(desk) => desk.ask(ask),
        }
    }
}
