//! A node's conversation with the metadata store: its session and lease, the changes of its leaders, the requests of operators, and the
//! controller's work while it holds `ctl`.
//!
//! Pure: [`Agent::step`] takes an event and the time and gives effects. A thread with a client of the store carries them.
//!
//! # The session
//! ```text
//! Reading ──listed──> Entering ──> Live <──confirmed: listed anew, renewed── Lapsed
//!    ^                               │ └──── its own deadline passed ─────────^ │
//!    └────── the key is gone ────────┴──────────────────────────────────────────┘
//! Entering: the dead predecessor's lease is revoked, a lease is granted, the key is put
//! ```
//! - A lease holds to the sending of the request that gave it, plus the time that the store gave, less a margin. An answer that comes
//!   behind that deadline revives nothing: first everything is listed anew, then the lease is renewed, then the cores are told.
//! - A request without an answer for a second is sent again. Every write is a compare-and-swap that excludes its own other copies, so
//!   the answer to any copy, or the writer's tag in the record read, tells the outcome of all.

mod access;
mod admin;
mod hints;
mod leaderless;
mod load;
pub mod plans;
mod session;
#[cfg(test)]
mod tests;
mod writes;

use crate::base::{NodeId, Rng, Ticks, TopicName};
use crate::controller::{Batch, Controller, ControllerOptions};
use crate::metadata::facts::FactsTold;
use crate::metadata::keys::{Key, Layout};
use crate::metadata::record::{ClusterRecord, ControllerRecord, MemberRecord, NodeRecord, encode};
use crate::metadata::request::{Answer, Change, Compare, Failure, KeyValue, Listing, Op, Outcome, Request, Txn};
use crate::metadata::view::{Changed, Unreadable, View, ViewError};
use crate::seam::cluster::{Ask, Fact};
use access::Access;
pub use access::StoreTrouble;
pub use admin::{Admin, AdminError, TRIES_MAX, TopicChange};
use bytes::Bytes;
pub use hints::Probe;
use session::Session;
use std::collections::BTreeMap;
use std::time::Duration;
use writes::Writes;

#[derive(Clone, Debug)]
pub struct AgentOptions {
    pub me: NodeId,
    pub layout: Layout,
    /// Asked of the store for the lease; the store may give more.
    pub ttl: Duration,
    /// The lease counts for so much less than the store says: scheduling, clock rates.
    pub margin: Duration,
    /// A request is answered within this, or is sent again.
    pub patience: Duration,
    pub record: NodeRecord,
    pub member: MemberRecord,
    /// Processes of the data path that may be the one registered last.
    pub processes: Vec<u64>,
    /// The cluster that the data path belongs to. `None`: to none yet.
    pub cluster: Option<[u8; 16]>,
    /// Highest revision of the store that the data path remembers.
    pub seen: u64,
    /// Random. It becomes the cluster's id when the store has none and the data path belongs to none.
    pub fresh_id: [u8; 16],
    /// Replicas of a topic that does not say how many.
    pub replicas: u8,
    /// Partitions of a topic that does not say how many.
    pub partitions: u16,
    pub controller: ControllerOptions,
    /// Random: ids of topics follow from it.
    pub seed: u64,
}

#[derive(Debug)]
pub enum Event {
    Tick,
    /// Outcome of a request. A token that is unknown is ignored.
    Answered {
        token: u64,
        outcome: Outcome,
    },
    /// Changes in their order, all of a revision together.
    Watched(Vec<Change>),
    /// The watch is lost, or its next revisions are compacted.
    WatchLost,
    Ask(Ask),
    Admin {
        token: u64,
        admin: Admin,
    },
    /// Outcome of an [`Effect::Probe`].
    Probed {
        node: NodeId,
        probe: Probe,
    },
    /// KiB/s that were published of late to the partitions that this node leads.
    Load(Vec<(TopicName, u16, u32)>),
    /// The node stops, and serves nothing any more.
    Stop,
}

#[derive(Debug)]
pub enum Effect {
    /// Carry it, and bring the outcome with the token.
    Send {
        token: u64,
        request: Request,
    },
    /// Watch the prefix from this revision on, instead of any other watch.
    Watch {
        from: u64,
    },
    /// Connect to this address, hang up, and report the outcome within half a second.
    Probe {
        node: NodeId,
        address: String,
    },
    /// Fact for every core, in this order.
    Fact(Fact),
    /// The data path belongs to this cluster, whose store was seen up to this revision. Durable before a later effect is carried.
    Remember {
        cluster: [u8; 16],
        seen: u64,
    },
    Admin {
        token: u64,
        result: Result<String, AdminError>,
    },
    /// The node cannot be in this cluster: it must not go on.
    Refuse(AgentError),
    /// Line for the log.
    Say(Note),
    /// Registration of this process: an earlier process of the data path will never be registered again.
    Registered,
    /// The lease is revoked; the thread may end.
    Stopped,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Store(#[from] ViewError),
    #[error(
        "another process is registered as this node ({me}): machine {machine}, data path {data_path}. A copied data path has the id of \
         its origin: begin with an empty data path here, or stop the other process"
    )]
    IdInUse { me: NodeId, machine: String, data_path: String },
    #[error(
        "another data path was registered as this node ({me}) later, and one of the two is a copy of the other: this one may lack \
         acknowledged messages. Begin with an empty data path here"
    )]
    Overtaken { me: NodeId },
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Note {
    #[error("this node is registered with the metadata store: session {session}")]
    Registered { session: u64 },
    #[error("the lease of this node is over by its own clock: nothing is served until the metadata store answers")]
    Lapsed,
    #[error("the lease is confirmed: the node goes on in session {session}")]
    Confirmed { session: u64 },
    #[error("session {session} of this node is over: the node registers again")]
    SessionOver { session: u64 },
    #[error("an earlier process of this data path still has a lease as this node: the lease is revoked")]
    PredecessorRevoked,
    #[error(
        "another process is registered as this node on machine {machine}, data path {data_path}: this process waits for the other's lease \
         to end"
    )]
    WaitsForOther { machine: String, data_path: String },
    #[error("this node is the controller of the cluster: term {term}")]
    TookOffice { term: u64 },
    #[error("this node is no longer the controller")]
    LeftOffice,
    #[error(
        "node {name} refuses connections: its process counts as ended, and other nodes lead at once; deliveries wait for the lease of \
         {name} to end"
    )]
    Down { name: String },
    #[error("node {name} takes connections again")]
    NotDown { name: String },
    #[error("{text}")]
    NoLeader { text: String },
    #[error("all partitions of this node have a leader again")]
    AllLed,
    #[error(transparent)]
    Unreadable(Unreadable),
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Purpose of a request that was sent.
#[derive(Debug)]
enum Purpose {
    /// The highest revision that the node had seen when it asked.
    List {
        seen: u64,
    },
    Init,
    Grant,
    Revoke,
    Register {
        lease: i64,
    },
    Renew,
    NodeValue,
    Load,
    Campaign,
    Depose,
    Write(writes::Flight),
    Batch(Batch),
    Admin(u64),
    Leave,
}

impl Purpose {
    /// True if the node's session depends on the request.
    fn is_of_session(&self) -> bool {
        matches!(
            self,
            Purpose::List { .. } | Purpose::Init | Purpose::Grant | Purpose::Revoke | Purpose::Register { .. } | Purpose::Renew
        )
    }
}

#[derive(Debug)]
struct Pending {
    sent: Ticks,
    purpose: Purpose,
    request: Request,
}

#[derive(Debug)]
pub struct Agent {
    options: AgentOptions,
    view: View,
    told: FactsTold,
    session: Session,
    controller: Controller,
    term: Option<u64>,
    writes: Writes,
    admins: admin::Admins,
    hints: hints::Hints,
    leaderless: leaderless::Leaderless,
    published: load::Published,
    rng: Rng,
    tokens: u64,
    pending: BTreeMap<u64, Pending>,
    /// Requests to send again.
    again: Vec<Pending>,
    again_at: Ticks,
    /// Time from which on everything is to be listed.
    list_at: Option<Ticks>,
    access: Access,
    is_campaigning: bool,
    /// Time before which this node does not campaign.
    campaign_at: Ticks,
    /// Revision that the data path remembers, and when the next one is due if the cores are told nothing.
    remembered: u64,
    remember_at: Ticks,
}

/// Revisions that the cores heard nothing of are remembered this often.
const REMEMBER_EVERY: Duration = Duration::from_secs(10);
/// Pause of a node that lost the office.
const DEPOSED: Duration = Duration::from_secs(1);
/// Pause before a failed request is repeated.
const RETRY: Duration = Duration::from_millis(100);

impl Agent {
    pub fn new(options: AgentOptions) -> Agent {
        Agent {
            view: View::new(options.layout.clone(), options.seen),
            told: FactsTold::new(options.me, options.member.process),
            session: Session::default(),
            controller: Controller::new(options.me, ControllerOptions { ttl: options.ttl, ..options.controller.clone() }),
            term: None,
            writes: Writes::default(),
            admins: admin::Admins::default(),
            hints: hints::Hints::default(),
            leaderless: leaderless::Leaderless::new(options.me, options.ttl),
            published: load::Published::default(),
            rng: Rng::new(options.seed),
            tokens: 0,
            pending: BTreeMap::new(),
            again: vec![],
            again_at: Ticks(0),
            list_at: Some(Ticks(0)),
            access: Access::default(),
            is_campaigning: false,
            campaign_at: Ticks(0),
            remembered: options.seen,
            remember_at: Ticks(0),
            options,
        }
    }

    pub fn me(&self) -> NodeId {
        self.options.me
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Describes the partitions with a replica here that have had no leader for longer than an election takes. `None`: there are none.
    pub fn trouble(&self, now: Ticks) -> Option<String> {
        self.leaderless.text(now, &self.view)
    }

    /// Reason why the store does not keep up the session of this node. `None`: it does.
    pub fn store_trouble(&self) -> Option<&StoreTrouble> {
        self.access.trouble()
    }

    /// Number of partitions with a replica here that have no leader.
    pub fn leaderless(&self) -> usize {
        self.leaderless.len()
    }

    /// The session that this node is in and whose lease holds.
    pub fn session(&self) -> Option<u64> {
        self.session.live()
    }

    /// The term, of the controller.
    pub fn term(&self) -> Option<u64> {
        self.term
    }

    pub fn step(&mut self, now: Ticks, event: Event, out: &mut Vec<Effect>) {
        self.lapse_if_due(now, out);
        match event {
            Event::Tick => {}
            Event::Answered { token, outcome } => {
                if let Some(pending) = self.pending.remove(&token) {
                    self.answered(now, pending, outcome, out);
                }
            }
            Event::Watched(changes) => {
                let changed = self.view.watched(changes);
                self.changed(now, &changed, out);
            }
            Event::WatchLost => self.list_soon(now),
            Event::Ask(Ask::PeerLost { node }) => self.peer_lost(now, node),
            Event::Ask(Ask::Doubt { route, is_suspect }) => self.doubt(route, is_suspect),
            Event::Ask(ask) => self.ask(ask, out),
            Event::Probed { node, probe } => self.probed(now, node, probe, out),
            Event::Admin { token, admin } => self.admin(now, token, admin, out),
            Event::Load(loads) => self.load(now, &loads, out),
            Event::Stop => self.stop(now, out),
        }
        self.go_on(now, out);
    }

    /// Time at which [`Event::Tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        if self.session.is_stopped() {
            return None;
        }
        let late = self.pending.values().map(|p| p.sent + self.options.patience).min();
        let again = (!self.again.is_empty()).then_some(self.again_at);
        let list = self.list_at.filter(|_| !self.is_listing());
        let plan = self.term.and_then(|_| self.controller.deadline());
        let campaign = self.may_campaign().then_some(self.campaign_at);
        let value = self.is_value_old().then_some(self.session.value_at());
        let look = self.session.live().and_then(|_| self.leaderless.deadline(&self.view));
        let remember = (self.view.newest() > self.remembered).then_some(self.remember_at);
        let others = [remember, self.session.deadline(), self.hints.deadline()];
        [late, again, list, plan, campaign, value, look].into_iter().chain(others).flatten().min()
    }

    // ---- requests

    fn send(&mut self, now: Ticks, purpose: Purpose, request: Request, out: &mut Vec<Effect>) {
        self.tokens += 1;
        self.pending.insert(self.tokens, Pending { sent: now, purpose, request: request.clone() });
        out.push(Effect::Send { token: self.tokens, request });
    }

    fn is_listing(&self) -> bool {
        self.pending.values().any(|p| matches!(p.purpose, Purpose::List { .. } | Purpose::Init))
    }

    fn list_soon(&mut self, now: Ticks) {
        self.list_at.get_or_insert(now);
    }

    fn answered(&mut self, now: Ticks, pending: Pending, outcome: Outcome, out: &mut Vec<Effect>) {
        let Pending { sent, purpose, request } = pending;
        let answer = match outcome {
            Ok(answer) => answer,
            Err(failure) => return self.failed(now, Pending { sent, purpose, request }, failure, out),
        };
        self.access.answered(&purpose);
        match (purpose, answer) {
            (Purpose::List { seen }, Answer::Listed(listing)) => self.listed(now, listing, seen, out),
            (Purpose::Init, Answer::Txn { .. }) => self.list_soon(now),
            (Purpose::Write(flight), Answer::Txn { succeeded, reads, revision }) => {
                self.wrote(now, flight, (succeeded, reads), (&request, revision), out);
            }
            (Purpose::Batch(batch), Answer::Txn { succeeded, reads, revision }) => {
                self.learn_txn(now, &request, succeeded, reads, revision, out);
                self.controller.settled(&self.view, &batch, succeeded);
            }
            (Purpose::Admin(token), Answer::Txn { succeeded, reads, revision }) => {
                self.learn_txn(now, &request, succeeded, reads, revision, out);
                self.admin_answered(now, token, succeeded, out);
            }
            (Purpose::Campaign, Answer::Txn { succeeded, reads, revision }) => {
                self.learn_txn(now, &request, succeeded, reads, revision, out);
                self.is_campaigning = self.view.controller().is_none();
                if self.is_campaigning {
                    // The controller is neither this node nor the known one. The agent tries again when it has listed everything.
                    self.list_at = Some(now + RETRY);
                }
            }
            (Purpose::Depose, Answer::Txn { succeeded, reads, revision }) => {
                self.hints.is_deposing = false;
                self.learn_txn(now, &request, succeeded, reads, revision, out);
            }
            (Purpose::NodeValue | Purpose::Load, Answer::Txn { succeeded, reads, revision }) => {
                self.learn_txn(now, &request, succeeded, reads, revision, out);
            }
            (purpose, answer) => self.session_answered(now, sent, purpose, (&request, answer), out),
        }
    }

    /// Handles a failed request. A request that was not surely refused may have been carried out.
    fn failed(&mut self, now: Ticks, pending: Pending, failure: Failure, out: &mut Vec<Effect>) {
        self.access.failed(&pending.purpose, &failure);
        let is_refused = !matches!(failure, Failure::Unknown(_));
        let error = if matches!(failure, Failure::Refused(_)) { AdminError::Refused } else { AdminError::StoreAway };
        if is_refused {
            out.push(Effect::Say(failure.into()));
        }
        match pending.purpose {
            Purpose::List { .. } | Purpose::Init => self.list_at = Some(now + RETRY),
            Purpose::Grant | Purpose::Revoke | Purpose::Renew | Purpose::Leave => self.session_failed(now, &pending.purpose, out),
            Purpose::Register { .. } if is_refused => self.session_failed(now, &pending.purpose, out),
            Purpose::Write(flight) if is_refused => self.write_refused(flight, out),
            Purpose::Batch(batch) if is_refused => self.controller.settled(&self.view, &batch, false),
            Purpose::Admin(token) if is_refused => self.admin_refused(token, error, out),
            Purpose::Campaign if is_refused => self.is_campaigning = false,
            Purpose::Depose if is_refused => self.hints.is_deposing = false,
            Purpose::NodeValue if is_refused => {}
            // The next one says more.
            Purpose::Load => {}
            _ => {
                if self.again.is_empty() {
                    self.again_at = now + RETRY;
                }
                self.again.push(pending);
            }
        }
    }

    /// Does all work that has become possible or due.
    fn go_on(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        if self.session.is_stopped() {
            return;
        }
        let is_late = |p: &Pending| now >= p.sent + self.options.patience;
        let late: Vec<u64> = self.pending.iter().filter(|(_, p)| is_late(p)).map(|(token, _)| *token).collect();
        for token in late {
            if let Some(pending) = self.pending.remove(&token) {
                self.failed(now, pending, Failure::Unknown("no answer in time".into()), out);
            }
        }
        if now >= self.again_at {
            for pending in std::mem::take(&mut self.again) {
                self.send(now, pending.purpose, pending.request, out);
            }
        }
        if self.list_at.is_some_and(|at| now >= at) && !self.is_listing() {
            self.list_at = None;
            self.send(now, Purpose::List { seen: self.view.seen() }, Request::List, out);
        }
        if now >= self.remember_at {
            self.remember(now, out);
        }
        self.go_on_session(now, out);
        self.tell_doubts(now, out);
        self.go_on_hints(now, out);
        self.look_at_office(now, out);
        if self.session.live().is_some() {
            out.extend(self.leaderless.look(now, &self.view).map(Effect::Say));
        }
        self.start_writes(now, out);
        if let (Some(term), Some(session)) = (self.term, self.session.live()) {
            while let Some(batch) = self.controller.plan(now, &self.view, term, session) {
                let txn = batch.txn.clone();
                self.send(now, Purpose::Batch(batch), Request::Txn(txn), out);
            }
        }
    }

    // ---- the view

    fn listed(&mut self, now: Ticks, listing: Listing, seen: u64, out: &mut Vec<Effect>) {
        match self.view.replace_as_of(listing, self.options.cluster, seen) {
            Err(error) => {
                self.list_at = Some(now + self.options.patience);
                return out.push(Effect::Refuse(error.into()));
            }
            Ok(changed) => {
                self.options.cluster = self.view.cluster_id().or(self.options.cluster);
                self.changed(now, &changed, out);
            }
        }
        if self.view.cluster_id().is_none() {
            // The first node of the cluster gives it its id.
            let key = self.view.layout().key(&Key::Id);
            let value = encode(&ClusterRecord { id: self.options.fresh_id });
            let compares = vec![Compare::CreateRevision { key: key.clone(), is: 0 }];
            let txn = Txn { compares, then: vec![Op::Put { key, value, lease: None }], otherwise: vec![] };
            return self.send(now, Purpose::Init, Request::Txn(txn), out);
        }
        self.remember(now, out);
        out.push(Effect::Watch { from: self.view.read() + 1 });
        self.confirm(now, out);
    }

    fn changed(&mut self, now: Ticks, changed: &Changed, out: &mut Vec<Effect>) {
        out.extend(changed.unreadable.iter().cloned().map(|u| Effect::Say(Note::Unreadable(u))));
        let mut facts = vec![];
        self.told.facts(&self.view, changed, &mut facts);
        self.tell(now, facts, out);
        self.controller.observe(now, &self.view, changed);
        if changed.keys.contains(&Key::Node(self.options.me)) {
            self.see_own_key(now, out);
        }
    }

    /// Gives facts to the cores. A node acts on facts about topics and partitions, so the data path remembers the revision first.
    fn tell(&mut self, now: Ticks, facts: Vec<Fact>, out: &mut Vec<Effect>) {
        if facts.iter().any(|fact| !matches!(fact, Fact::Nodes(_) | Fact::Read { .. })) {
            self.remember(now, out);
        }
        out.extend(facts.into_iter().map(Effect::Fact));
    }

    fn remember(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        let seen = self.view.newest();
        if let Some(cluster) = self.options.cluster.filter(|_| seen > self.remembered) {
            (self.remembered, self.remember_at) = (seen, now + REMEMBER_EVERY);
            out.push(Effect::Remember { cluster, seen });
        }
    }

    fn learn(&mut self, now: Ticks, changes: impl IntoIterator<Item = Change>, out: &mut Vec<Effect>) {
        for change in changes {
            let changed = self.view.learn(change);
            if !changed.keys.is_empty() {
                self.changed(now, &changed, out);
            }
        }
    }

    /// Gives the view the keys that a transaction wrote, or read because its compares failed.
    fn learn_txn(
        &mut self,
        now: Ticks,
        request: &Request,
        succeeded: bool,
        reads: Vec<Option<KeyValue>>,
        revision: u64,
        out: &mut Vec<Effect>,
    ) {
        let Request::Txn(txn) = request else { return };
        if !succeeded {
            let keys = txn.otherwise.iter().filter_map(|op| if let Op::Get { key } = op { Some(key) } else { None });
            let read = |(key, kv): (&Bytes, Option<KeyValue>)| match kv {
                Some(kv) => Change::Put(kv),
                None => Change::Deleted { key: key.clone(), mod_revision: revision },
            };
            return self.learn(now, keys.zip(reads).map(read).collect::<Vec<_>>(), out);
        }
        let view = &self.view;
        let written = |op: &Op| match op {
            Op::Put { key, value, lease } => {
                let known = view.layout().parse(key).and_then(|key| view.create_revision(&key));
                let create_revision = known.unwrap_or(revision);
                let (key, value) = (key.clone(), value.clone());
                Some(Change::Put(KeyValue { key, value, create_revision, mod_revision: revision, lease: *lease }))
            }
            Op::Delete { key } => Some(Change::Deleted { key: key.clone(), mod_revision: revision }),
            // The watch tells which keys those were.
            Op::DeletePrefix { .. } | Op::Get { .. } => None,
        };
        let changes: Vec<Change> = txn.then.iter().filter_map(written).collect();
        self.learn(now, changes, out);
    }

    // ---- the controller

    fn may_campaign(&self) -> bool {
        self.view.controller().is_none() && !self.is_campaigning && self.session.live().is_some()
    }

    /// Campaigns for the office of controller when this node's lease holds and there is no controller.
    fn look_at_office(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        let lease = self.session.live().and(self.session.lease());
        let held = self.view.controller().filter(|c| lease.is_some() && c.lease == lease).map(|c| c.create_revision);
        if held != self.term {
            self.term = held;
            match held {
                Some(term) => {
                    out.push(Effect::Say(Note::TookOffice { term }));
                    self.controller.take_office(now, &self.view);
                }
                None => {
                    // Another one took it away, and is to have it.
                    self.campaign_at = now + DEPOSED;
                    out.push(Effect::Say(Note::LeftOffice));
                    self.controller.leave_office();
                }
            }
        }
        if let Some(lease) = lease.filter(|_| self.may_campaign() && now >= self.campaign_at) {
            self.is_campaigning = true;
            let layout = self.view.layout();
            let (key, node) = (layout.key(&Key::Controller), layout.key(&Key::Node(self.options.me)));
            let compares = vec![
                Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() },
                Compare::CreateRevision { key: node, is: self.session.live().unwrap_or(0) },
                Compare::CreateRevision { key: key.clone(), is: 0 },
            ];
            let value = encode(&ControllerRecord { node: self.options.me });
            let then = vec![Op::Put { key: key.clone(), value, lease: Some(lease) }];
            let txn = Txn { compares, then, otherwise: vec![Op::Get { key }] };
            self.send(now, Purpose::Campaign, Request::Txn(txn), out);
        }
    }
}
