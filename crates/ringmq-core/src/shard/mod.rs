//! Owns one core's partitions and sessions and routes each event to its machine.
//!
//! Pure: the same code in production and in the simulator. [`Shard::step`] never blocks and never fails: an error is an
//! effect. Within a turn events only change state; the work they cause (batches, journal, deliveries, sends) is done once,
//! at [`Event::TurnEnd`].
//!
//! ```text
//! Bytes ─> Session ─(Host)─> Engine ─> Store ─> Disk effects          Disk ─> Store ─> notices ─> replies, wakes
//! TurnEnd: deliver (Channel ─> Session output) · FINs to the journal · seal and pack · Send
//! ```

mod attach;
mod bundles;
mod catalog;
mod channels;
mod client;
#[cfg(test)]
mod cluster_tests;
mod consumers;
mod copies;
mod cursors;
mod deliver;
mod engine;
mod failures;
mod host;
#[cfg(test)]
mod model;
mod moves;
mod native;
mod offsets;
mod operate;
mod outbox;
mod parked;
mod partitions;
mod parts;
mod peers;
mod properties;
mod publish;
mod questions;
mod removal;
mod replication;
mod search;
mod stats;
mod stop;
mod subscriber;
mod subscription;
#[cfg(test)]
mod tests;
mod timers;
mod topic_create;
mod topic_delete;
mod topic_empty;
mod topics;
mod waiting;

use crate::seam::{
    event::{Effect, Effects, Event},
    faults::FaultLog,
};
pub use deliver::LENT_MIN;

use crate::base::NodeId;
use crate::base::topic::home_core;
use crate::base::{ConnId, CoreId, Epoch, IdMap, Now, SubId, Ticks, TopicRef};
use crate::codec::nsq::Limits;
use crate::codec::nsq::layers::Terms;
use crate::codec::peer::message::Route;
use crate::config::Settings;
use crate::format::journal::JournalIdentity;
use crate::log::state::RecoveredPartition;
use crate::log::{PartitionIdx, Store, StoreOptions};
use crate::peer::Links;
use crate::replica::states::State;
use crate::replica::{Replica, ReplicaOptions};
use crate::seam::cluster::ClusterOptions;
use crate::seam::message::{MeshMessage, Protocol};
use crate::session::native::{NativeSession, NodeFacts};
use crate::session::{CommandKind, Session};
use client::Client;
use deliver::Lending;
use engine::Engine;
use outbox::LateAnswer;
use partitions::{ChannelKey, Partition};
use parts::CoreParts;
use replication::{Cluster, cursors_moved, note_doubt};
use std::sync::Arc;
use timers::Timer;

/// Options of a core.
pub struct ShardOptions {
    pub core: CoreId,
    pub cores: u16,
    pub settings: Arc<Settings>,
    /// The epoch of this startup: the node's generation.
    pub epoch: Epoch,
    pub journal: JournalIdentity,
    /// Every topic of the node.
    pub topics: Vec<TopicRef>,
    /// The partitions that this core owns.
    pub partitions: Vec<RecoveredPartition>,
    /// Seed of topic ids; drawn by the runtime.
    pub seed: u64,
    /// Connections this core takes; 0 is no limit.
    pub connections_max: usize,
    /// The node's id, told to native clients and other nodes.
    pub node_id: [u8; 16],
    /// Options of a clustered node, whose topics and partitions are those that the coordinator names; `None`: the node is stand-alone.
    pub cluster: Option<ClusterOptions>,
    /// Runs of so many bytes go to native clients from where they stand ([`LENT_MIN`]).
    pub lent_min: usize,
    /// Terms for NSQ clients that ask for TLS.
    pub tls: Option<Terms>,
}

struct Conn {
    session: Client,
    /// True while the connection is in the list of those that this turn touched.
    touched: bool,
    paused: bool,
    closing: bool,
    /// Fullness of its output as the engine was told.
    full: bool,
    /// The timer of the session is set to this or earlier.
    timer: Option<Ticks>,
    /// Frames from other cores that wait until the session takes messages (SUB's OK goes first).
    held: Vec<u8>,
}

impl Conn {
    fn new(session: Client) -> Self {
        Conn { session, touched: false, paused: false, closing: false, full: false, timer: None, held: vec![] }
    }

    fn touch(&mut self, conn: ConnId, touched: &mut Vec<ConnId>) {
        if !std::mem::replace(&mut self.touched, true) {
            touched.push(conn);
        }
    }

    /// True if sent bytes alone may give the turn's end new work: with room in its output a connection continues its reading, its
    /// deliveries or its held-back answers.
    fn waits_for_sends(&self) -> bool {
        self.full || self.paused || self.closing || !self.held.is_empty() || matches!(self.session, Client::Native(_))
    }

    /// Tells the engine when the output became full, or has room again.
    fn tell_full(&mut self, conn: ConnId, full: bool, engine: &mut Engine) {
        // A subscription begins as one that has room.
        if full || self.full {
            self.full = full;
            engine.consumers().set_blocked(conn, full);
        }
    }

    /// Sees to the session's next tick.
    fn set_timer(&mut self, conn: ConnId, engine: &mut Engine) {
        let deadline = self.session.deadline();
        if deadline.is_some_and(|at| self.timer.is_none_or(|set| at < set)) {
            self.timer = deadline;
            engine.core.timers.at_most(Timer::Session(conn), deadline);
        }
    }
}

/// Whole state of a core.
pub struct Shard {
    engine: Engine,
    conns: IdMap<ConnId, Conn>,
    touched: Vec<ConnId>,
    /// Scratch of a turn's deliveries.
    full: Vec<(SubId, ChannelKey)>,
    /// Scratch of a channel's turn: clients that could take more than their partition was lent.
    hungry: Vec<SubId>,

    /// Timers of one tick.
    due: Vec<Timer>,
    /// Client errors on their way to the log.
    faults: FaultLog,
    limits: Arc<Limits>,
    connections_max: usize,
    /// The store's memory for native clients.
    lending: Lending,
    /// Facts of this node for native clients.
    node: NodeFacts,
}

impl Shard {
    pub fn new(options: ShardOptions) -> Self {
        let ShardOptions {
            core,
            cores,
            settings,
            epoch,
            journal,
            topics,
            partitions,
            seed,
            connections_max,
            node_id,
            cluster,
            lent_min,
            tls,
        } = options;
        let node = NodeFacts { node_id, cores, core: core.0 };
        let limits = Arc::new(Limits { tls, ..Limits::from(&*settings) });
        let store = Store::new(StoreOptions::new(&settings, core, epoch, journal));
        let links = cluster.as_ref().map(|cluster| peers::links(cluster, &settings, node_id, core, cores, seed));
        let mut engine = Engine::new(CoreParts::new((core, cores), cluster.is_some(), settings, epoch, store, seed));
        let replica = ReplicaOptions::from(&*engine.core.settings);
        let of_cluster = cluster.as_ref().zip(links);
        engine.cluster =
            of_cluster.map(|(options, links)| Box::new(Cluster::new(options, NodeId(node_id), (core, cores), replica, links)));
        for topic in topics {
            if let Some(cluster) = &mut engine.cluster {
                // The coordinator says whether it is still the cluster's.
                cluster.disk.recorded(&topic);
                continue;
            }
            engine.core.topics.count(home_core(&topic.name, cores), 1);
            engine.core.topics.learn(&topic);
            engine.core.outbox.catalog().list_topic(&topic, false);
            engine.removing().expect_idle(&topic);
        }
        for recovered in partitions {
            let (dir, topic, end, channels) =
                (recovered.dir.clone(), recovered.topic.clone(), recovered.end, recovered.channels.clone());
            let partition = match &engine.cluster {
                None => Partition::alone(topic, dir.clone(), Replica::new(epoch, end)),
                Some(c) => {
                    let seat = c.seat(&topic, dir.partition, Some((recovered.promised, recovered.committed)));
                    Partition::member(topic, dir.clone(), seat)
                }
            };
            let idx = engine.core.store.open(recovered);
            if engine.cluster.is_some() {
                engine.core.store.await_agreement(idx);
            }
            engine.core.partitions.insert(idx, partition);
            note_doubt(&mut engine.core, idx);
            for image in channels {
                engine.channels().add(idx, image);
            }
            engine.channels().update_low_water(idx);
        }
        Shard {
            lending: Lending::new(engine.core.store.lender(), lent_min),
            engine,
            conns: IdMap::default(),
            touched: vec![],
            full: vec![],
            hungry: vec![],

            due: vec![],
            faults: FaultLog::default(),
            limits,
            connections_max,
            node,
        }
    }

    /// Takes one event; `out` gets the effects, in order.
    pub fn step(&mut self, now: Now, event: Event<'_>, out: &mut Effects) {
        self.engine.core.counters.begin_step(now.ticks);
        match event {
            Event::Tick => self.tick(now),
            Event::TurnEnd => self.turn_end(now, out),
            Event::Opened { conn, .. } | Event::OpenedNative { conn, .. } if !self.takes_connections() => {
                out.push(Effect::Close { conn });
                return;
            }
            Event::Opened { conn, peer } => {
                self.add(conn, Client::Nsq(Session::new(conn, peer, self.limits.clone(), now)));
            }
            Event::OpenedNative { conn, peer } => {
                let session = NativeSession::new(conn, peer, self.limits.clone(), self.node, now);
                self.add(conn, Client::Native(Box::new(session)));
            }
            Event::OpenedPeer { conn, peer } => self.peer_opened(now, conn, peer, out),
            Event::Dialed { dial, result } => self.peer_dialed(now, dial, result, out),
            Event::Cluster(fact) => self.engine.on_fact(now, fact),
            // It was on its way when the stop began.
            Event::Adopted { conn, .. } if self.engine.core.life.is_stopping() => out.push(Effect::Close { conn }),
            Event::Adopted { conn, session } => {
                let (peer, limits) = (session.peer.clone(), self.limits.clone());
                let client = match session.protocol {
                    Protocol::Peer => return self.peer_adopted(now, conn, peer, session.into_state(), out),
                    Protocol::Nsq => Client::Nsq(Session::adopt(conn, peer, session.into_state(), limits, now)),
                    Protocol::Native => {
                        let state = session.into_state();
                        Client::Native(Box::new(NativeSession::adopt(conn, peer, state, limits, self.node, now)))
                    }
                };
                self.add(conn, client);
                if let Some(c) = self.conns.get_mut(&conn) {
                    c.session.begin(now, &mut self.engine);
                }
            }
            Event::Bytes { conn, bytes } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    c.session.on_bytes(now, bytes, &mut self.engine);
                    c.touch(conn, &mut self.touched);
                } else if let Some(links) = self.engine.links_mut() {
                    links.bytes(now, conn, bytes);
                }
            }
            Event::Received { conn, lent } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    c.session.received(now, lent, &mut self.engine);
                    c.touch(conn, &mut self.touched);
                } else if let Some(links) = self.engine.links_mut() {
                    links.received(now, conn, lent);
                }
            }
            Event::Sent { conn, bytes } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    c.session.on_sent(now, bytes);
                    // A connection that waited for nothing has nothing to say at the turn's end.
                    if c.waits_for_sends() {
                        c.session.go_on(now, &mut self.engine);
                        c.touch(conn, &mut self.touched);
                    }
                } else if let Some(links) = self.engine.links_mut() {
                    links.sent(now, conn, bytes);
                }
            }
            Event::Ended { conn, unanswered } => {
                let closes_itself = self.conns.get_mut(&conn).is_some_and(|c| {
                    c.touch(conn, &mut self.touched);
                    c.session.on_end()
                });
                if !closes_itself && !unanswered {
                    out.push(Effect::Close { conn });
                }
            }
            Event::Closed { conn } => match self.engine.links_mut() {
                Some(links) if links.owns(conn) => links.closed(now, conn),
                _ => {
                    self.conns.remove(&conn);
                    self.engine.forget_conn(conn);
                }
            },
            Event::Mesh { from, message } => self.on_mesh(now, from, message),
            // The store no longer waits for the operation, such as an allocation of space.
            Event::Disk { .. } if self.engine.core.life.is_stopped() => {}
            Event::Disk { op, outcome } => {
                let e = &mut self.engine;
                e.core.counters.disk_done(op, outcome.is_err());
                let (io, notices) = e.core.outbox.of_store();
                e.core.store.completed(now, op, outcome, &e.core.partitions, io, notices);
            }
            Event::Stop => self.begin_stop(now),
        }
        self.settle(now);
        self.emit(out);
    }

    /// Time at which [`Event::Tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        // Work that a turn left, or found at its end: the runtime does not sleep.
        if self.engine.core.partitions.agenda.num_ready() > 0 || !self.touched.is_empty() || self.engine.core.syncs.is_unpacked {
            return Some(Ticks(0));
        }
        let store = if self.engine.core.life.is_stopped() { None } else { self.engine.core.store.deadline() };
        let links = self.engine.links().and_then(Links::deadline);
        self.engine.core.timers.next().into_iter().chain(store).chain(links).min()
    }

    /// Bytes that were read from segments, are being read, or are lent to sockets.
    pub fn read_bytes(&self) -> usize {
        self.engine.core.store.read_bytes()
    }

    /// The topics that this core knows.
    pub fn topics(&self) -> impl Iterator<Item = &TopicRef> {
        self.engine.core.topics.all()
    }

    /// Reason why this core takes no publish. `None`: it takes them.
    pub fn read_only(&self) -> Option<&str> {
        self.engine.core.life.read_only()
    }

    /// The replicated partitions whose clients this core serves at that moment, and in which epoch. A core that has stopped serves none:
    /// it delivers nothing, and takes no facts any more.
    pub fn served(&self, now: Ticks) -> impl Iterator<Item = (Route, Epoch)> {
        let members = self.engine.core.partitions.iter().filter_map(|(_, p)| Some(&p.seat()?.member));
        let is_stopped = self.engine.core.life.is_stopped();
        members.filter(move |m| !is_stopped && m.check_read(now).is_ok()).filter_map(|m| Some((m.route(), m.epoch()?)))
    }

    /// State of each replica of this core.
    pub fn replica_states(&self) -> impl Iterator<Item = (Route, State)> {
        let members = self.engine.core.partitions.iter().filter_map(|(_, p)| Some(&p.seat()?.member));
        members.map(|m| (m.route(), m.state()))
    }

    fn takes_connections(&self) -> bool {
        if self.engine.core.life.is_stopping() {
            return false;
        }
        let is_full = self.connections_max > 0 && self.conns.len() >= self.connections_max;
        if is_full {
            tracing::warn!(connections = self.conns.len(), "connection refused: see --max-connections");
        }
        !is_full
    }

    fn add(&mut self, conn: ConnId, session: Client) {
        let mut c = Conn::new(session);
        c.set_timer(conn, &mut self.engine);
        c.touch(conn, &mut self.touched);
        let old = self.conns.insert(conn, c);
        assert!(old.is_none(), "a connection's number is never reused");
    }

    fn on_mesh(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        match message {
            MeshMessage::Deliver { sub, frames } => {
                if let Some(c) = self.conns.get_mut(&sub.conn) {
                    c.held.extend_from_slice(&frames);
                    c.touch(sub.conn, &mut self.touched);
                }
            }
            MeshMessage::StatsRequest { ticket, topic, channel, clients } => {
                self.engine.core.move_windows(now);
                let stats = Box::new(self.stats(now.ticks, topic.as_ref(), channel.as_ref(), clients));
                self.engine.pass(from, MeshMessage::Stats { ticket, stats });
            }
            message => self.engine.on_mesh(now, from, message),
        }
    }

    fn tick(&mut self, now: Now) {
        if !self.engine.core.life.is_stopped() && self.engine.core.store.deadline().is_some_and(|at| at <= now.ticks) {
            let e = &mut self.engine;
            let (io, notices) = e.core.outbox.of_store();
            e.core.store.tick(now, &e.core.partitions, io, notices);
        }
        if let Some(links) = self.engine.links_mut() {
            links.tick(now);
        }
        // A timer that is due again at once (more timeouts than one turn takes) waits for the next tick.
        let mut due = std::mem::take(&mut self.due);
        due.extend(std::iter::from_fn(|| self.engine.core.timers.pop_due(now.ticks)));
        for timer in due.drain(..) {
            match timer {
                Timer::Session(conn) => {
                    if let Some(c) = self.conns.get_mut(&conn) {
                        c.timer = None;
                        c.session.tick(now);
                        c.touch(conn, &mut self.touched);
                    }
                }
                Timer::Channel(key) => self.engine.consumers().tick_channel(now, key),
                Timer::Replica(p) => drop(self.engine.in_cluster(now, |c, core| c.tick(core, now, PartitionIdx(p)))),
                Timer::Fins => self.engine.channels().journal_fins(now, false),
                Timer::Stalls => self.expire_stalls(now),
                Timer::Topics => self.engine.removing().look_at_topics(),
                Timer::Wanted => drop(self.engine.in_cluster(now, |c, core| c.wanted.tick(core, now))),
                Timer::Parts => self.engine.consumers().look_for_parts(now),
                Timer::Leaving => drop(self.engine.in_cluster(now, |c, core| c.leaving.tick(core, now, c.peers.me()))),
                Timer::Forwards => drop(self.engine.in_cluster(now, |c, core| c.forwards.tick(core, now, &mut c.peers))),
                Timer::Faults => self.faults.tick(now.ticks),
                // The turn's end looks at the state of the stop.
                Timer::Stop => {}
            }
        }
        self.due = due;
    }

    /// Carries out the consequences of one event inside the core.
    #[inline]
    fn settle(&mut self, now: Now) {
        if self.engine.has_unsettled() {
            self.settle_rounds(now);
        }
    }

    /// Works through the lists until all are empty.
    #[inline(never)]
    fn settle_rounds(&mut self, now: Now) {
        loop {
            self.settle_notices(now);
            self.settle_near(now);
            self.engine.settle_cursors(now);
            self.engine.in_cluster(now, |_, core| cursors_moved(core));
            self.settle_answers(now);
            self.settle_resuming(now);
            self.engine.consumers().open_subscriptions(now);
            self.engine.settle_removals(now);
            self.engine.consumers().resume_parked_subs(now);
            self.hear_links(now);
            if self.engine.is_settled() {
                return;
            }
        }
    }

    /// Takes the notices of the store. Those that come meanwhile wait for the next round.
    fn settle_notices(&mut self, now: Now) {
        if self.engine.core.outbox.notices.is_empty() {
            return;
        }
        let mut notices = self.engine.core.outbox.notices.take();
        for notice in notices.drain(..) {
            self.engine.on_notice(now, notice);
        }
        self.engine.core.outbox.notices.give_back(notices);
    }

    fn settle_near(&mut self, now: Now) {
        if self.engine.core.outbox.near.is_empty() {
            return;
        }
        let mut near = self.engine.core.outbox.near.take();
        for (to, message) in near.drain(..) {
            self.engine.on_near(now, to, message);
        }
        self.engine.core.outbox.near.give_back(near);
    }

    fn settle_answers(&mut self, now: Now) {
        if self.engine.core.outbox.answers.is_empty() {
            return;
        }
        let mut answers = self.engine.core.outbox.answers.take();
        for (conn, heard) in answers.drain(..) {
            self.hear(now, conn, heard);
        }
        self.engine.core.outbox.answers.give_back(answers);
    }

    fn settle_resuming(&mut self, now: Now) {
        for conn in self.engine.core.outbox.take_resuming() {
            if let Some(c) = self.conns.get_mut(&conn)
                && c.session.is_stalled()
            {
                c.session.resume(now, &mut self.engine);
                c.touch(conn, &mut self.touched);
            }
        }
    }

    fn hear(&mut self, now: Now, conn: ConnId, heard: LateAnswer) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        match heard {
            LateAnswer::StallFailed(error) => {
                if c.session.is_stalled() {
                    self.engine.core.native.forget_stalled(conn);
                    let asked = self.engine.moves.stalled_on(conn).unwrap_or(CommandKind::Publish);
                    c.session.fail_stalled(now, asked, error, &mut self.engine);
                }
            }
            LateAnswer::Frames(frames) => c.held.extend_from_slice(&frames),
            LateAnswer::Authorized(result) => c.session.authorized(now, result, &mut self.engine),
            heard => {
                c.session.hear(heard);
                c.session.go_on(now, &mut self.engine);
            }
        }
        c.touch(conn, &mut self.touched);
    }

    fn turn_end(&mut self, now: Now, out: &mut Effects) {
        if self.engine.core.life.is_stopped() {
            // A client of another core may still be there; its channel must not begin a read.
            self.engine.core.partitions.agenda.drop_ready();
        } else {
            self.deliver(now);
        }
        if self.engine.core.store.has_batches() {
            self.engine.channels().journal_fins(now, true);
        }
        self.engine.consumers().flush_fins();
        // Facts from the end of the turn (an answer to a search) are packed by the next one.
        self.engine.core.syncs.is_unpacked = false;
        if !self.engine.core.life.is_stopped() {
            let e = &mut self.engine;
            e.core.store.turn_end(now, &e.core.partitions, e.core.outbox.io());
            e.in_cluster(now, |c, core| c.replicate_sealed(core));
            e.core.tell_full();
            e.core.store.take_notices(e.core.outbox.of_store().1);
        }
        self.settle(now);
        self.move_quiet(out);
        // The disk starts before the sockets are written.
        self.emit(out);
        self.end_links_turn(now, out);
        if !self.touched.is_empty() {
            self.flush_touched(now, out);
        }
        if self.engine.core.life.is_stopping() {
            self.go_on_stopping(now, out);
        }
    }

    fn flush_touched(&mut self, now: Now, out: &mut Effects) {
        let mut touched = std::mem::take(&mut self.touched);
        for conn in touched.drain(..) {
            self.flush(now, conn, out);
        }
        touched.append(&mut self.touched);
        self.touched = touched;
    }

    /// Sends the output of a touched connection.
    fn flush(&mut self, now: Now, conn: ConnId, out: &mut Effects) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.touched = false;
        if let Some(error) = c.session.take_fault() {
            self.engine.core.counters.failed(error.split(' ').next().unwrap_or_default());
            let ask_again = self.faults.say(now.ticks, &c.session.client_info(), &error);
            self.engine.core.timers.at_most(Timer::Faults, ask_again);
        }
        if c.closing {
            // The socket takes nothing more; messages in flight come back when the connection is closed.
            c.held = Vec::new();
            c.session.take_output(now);
            return c.tell_full(conn, true, &mut self.engine);
        }
        if !c.held.is_empty() && !c.session.is_output_full() && !c.session.is_closing() {
            c.session.append(&mut c.held);
            c.held = Vec::new();
        }
        out.extend(c.session.take_output(now).map(|output| Effect::send(conn, output)));
        if c.session.is_closing() {
            c.closing = true;
            out.push(Effect::Close { conn });
            return c.tell_full(conn, true, &mut self.engine);
        }
        let pause = c.session.is_stalled() || !c.session.wants_reading();
        if pause != c.paused {
            c.paused = pause;
            out.push(if pause { Effect::PauseReading { conn } } else { Effect::ResumeReading { conn } });
        }
        if let Some(lent) = c.session.lend() {
            out.push(Effect::ReceiveInto { conn, lent });
        }
        let full = c.session.is_output_full() || !c.held.is_empty();
        c.tell_full(conn, full, &mut self.engine);
        c.set_timer(conn, &mut self.engine);
    }

    fn emit(&mut self, out: &mut Effects) {
        let core = &mut self.engine.core;
        core.outbox.emit(&mut core.counters, out);
    }
}
