//! A whole cluster in one thread from one seed: 1 to 5 nodes with their cores, real recovery, the simulated disks, the bytes between
//! nodes and of clients, a metadata store (or static files) that names the leaders.
//!
//! ```text
//! Plan (a seed draws it) ─> World: nodes ── wires ── nodes, clients      Meta: memberships, leases, watches
//!   safety: faults of each kind that the plan has, at random times; every check holds at every moment
//!   then all is healed, and the cluster must converge, drain and stop
//! ```
//! Time is simulated: all events stand in one queue, by their times. [`check`] has the checks, by their names in docs/promise.md. Panics
//! at the first broken promise, the name of the check first. Only for tests.

mod agents;
mod balance;
mod budget;
mod check;
mod clients;
pub mod coverage;
mod events;
mod faults;
mod loss;
mod meta;
mod moved;
mod node;
mod operator;
mod passing;
pub mod plan;
mod quiet;
mod roles;
pub mod shrink;
mod spread;
mod store;
mod tap;
mod topics;
mod wires;
mod world;

use crate::sim::node::book::Counts;
use plan::Plan;
use world::World;

/// Counts of the metadata's changes in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataCounts {
    /// Leaders that the controller or operator named.
    pub elections: u64,
    /// Memberships that the store changed for a leader.
    pub proposals: u64,
    pub replica_changes: u64,
    /// Changes of an etcd's controller's office, sessions that began, leases that nodes took for over by their own clocks.
    pub terms: u64,
    pub sessions: u64,
    pub lapses: u64,
    /// Requests that were lost, watches that ended.
    pub requests_lost: u64,
    pub watches_lost: u64,
    pub topics_made: u64,
    pub topics_deleted: u64,
    /// Records of what is published to a node.
    pub loads: u64,
    /// Partitions with which an operator went on at a replica that was left behind, committed messages that were lost by it, and losses
    /// that an operator accepted at a leader.
    pub repairs: u64,
    pub given_up: u64,
    pub losses: u64,
}

impl MetadataCounts {
    fn add(&mut self, o: &MetadataCounts) {
        self.elections += o.elections;
        self.proposals += o.proposals;
        self.replica_changes += o.replica_changes;
        self.terms += o.terms;
        self.sessions += o.sessions;
        self.lapses += o.lapses;
        self.requests_lost += o.requests_lost;
        self.watches_lost += o.watches_lost;
        self.topics_made += o.topics_made;
        self.topics_deleted += o.topics_deleted;
        self.loads += o.loads;
        self.repairs += o.repairs;
        self.given_up += o.given_up;
        self.losses += o.losses;
    }
}

/// Counts of a run, so that a test can tell whether the run was worth anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOutcome {
    pub counts: Counts,
    pub startups: u64,
    pub crashes: u64,
    pub stops: u64,
    /// Times that all nodes went down at once.
    pub blackouts: u64,
    pub recovery_crashes: u64,
    pub pauses: u64,
    pub cuts: u64,
    pub resets: u64,
    /// Payloads, or parts of them, that were received to where they stay.
    pub lent: u64,
    /// Connections that ended meanwhile.
    pub lent_cut: u64,
    pub dials: u64,
    pub metadata: MetadataCounts,
    pub read_only: u64,
    pub damages: u64,
    /// Segments that began on the space of others.
    pub reused: u64,
    /// Changes that an operator was told are done: pauses, and channels that were emptied or deleted.
    pub paused: u64,
    pub removed: u64,
    /// Times that a disk was searched for one of these.
    pub operated_looked_for: u64,
    /// Replicas that something befell in a state that they soon leave.
    pub role_changes: u64,
    /// Disks that were looked at while their node ran.
    pub probes: u64,
    pub peer_bytes: u64,
    pub batches_replicated: u64,
    /// Cursors that a follower kept in memory, as they lay beyond its end.
    pub clamped: u64,
    /// Effects of all nodes.
    pub effects: u64,
    /// Hash over every effect of every node, in order.
    pub trace: u64,
}

impl RunOutcome {
    /// Adds the counts of another run.
    pub fn add(&mut self, o: &RunOutcome) {
        self.counts.add(&o.counts);
        self.startups += o.startups;
        self.crashes += o.crashes;
        self.stops += o.stops;
        self.blackouts += o.blackouts;
        self.recovery_crashes += o.recovery_crashes;
        self.pauses += o.pauses;
        self.cuts += o.cuts;
        self.resets += o.resets;
        self.lent += o.lent;
        self.lent_cut += o.lent_cut;
        self.dials += o.dials;
        self.metadata.add(&o.metadata);
        self.read_only += o.read_only;
        self.damages += o.damages;
        self.reused += o.reused;
        self.paused += o.paused;
        self.removed += o.removed;
        self.role_changes += o.role_changes;
        self.operated_looked_for += o.operated_looked_for;
        self.probes += o.probes;
        self.peer_bytes += o.peer_bytes;
        self.batches_replicated += o.batches_replicated;
        self.clamped += o.clamped;
        self.effects += o.effects;
        self.trace ^= o.trace;
    }
}

/// Receiver of a readable trace, line by line.
pub type Sink = Box<dyn FnMut(&str)>;

/// Runs a plan from its seed. Panics when a check fails.
pub fn run(plan: &Plan, sink: Option<Sink>) -> RunOutcome {
    let mut world = World::new(plan, sink);
    world.live();
    world.converge();
    world.lose();
    world.end();
    world.outcome()
}
