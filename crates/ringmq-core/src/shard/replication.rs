//! The replicas of this core's partitions in a cluster: passes the shard's events to them, carries out their effects, and passes their
//! state to clients, other cores and the operator.
//!
//! ```text
//! facts, peers' messages, notices of the store, seals, ticks ─> Member ─> effects ─> store, peers, coordinator, clients
//! ```
//! One event at a time: its effects are carried out, in order, before a replica gets the next ([`Cluster::step`]). Consequences of an
//! effect wait in a queue, and so does work for the rest of the core ([`Work`]). The machines here borrow the core's parts
//! ([`CoreParts`]) and do not see the engine; [`routing`] stands between. Topics and leaders come from the coordinator alone
//! ([`facts`]).
//!
//! A publish is answered when it is committed: the ends that became durable are remembered with the last append before each,
//! until the committed end passes them ([`Seat::marks`]).

mod changes;
mod cursors;
mod deletion;
mod disk;
mod effects;
mod facts;
mod forwarding;
mod growth;
mod guests;
mod known;
mod leaving;
mod lines;
pub mod loss;
mod nodes;
mod peers;
mod relays;
mod roles;
mod routing;
mod status;
mod store_work;
mod view;
mod wanted;
mod work;

pub use cursors::{collect_from, cursors_moved, replicate_cursor};
pub use forwarding::Origin;
pub use forwarding::leader_limit;
pub use lines::{Pending, may_be_stored_later};
pub use work::WorkQueue;

use super::engine::Attempt;
use super::partitions::{Partition, Partitions};
use super::parts::CoreParts;
use super::timers::Timer;
use crate::base::{CoreId, NodeId, Now, Position, Ticks};
use crate::format::batch::Batch;
use crate::log::{AppendTicket, PartitionIdx, RecordTicket, Store};
use crate::metrics::remote::RemoteStats;
use crate::metrics::stats::ReplicationStats;
use crate::peer::Links;
use crate::replica::lease::Lease;
use crate::replica::states::State;
use crate::replica::{Alarm, CursorEvent, Effect, Event, Member, ReplicaOptions};
use crate::seam::cluster::ClusterOptions;
use crate::seam::message::Share;
use disk::DiskTopics;
use forwarding::Forwards;
use growth::begin_channels;
use known::KnownTopics;
use peers::Peers;
pub use roles::note_doubt;
use roles::{note_damage, note_role, stop_leading};
use routing::Work;
use status::replication_stats;
use std::collections::VecDeque;
use store_work::{Recorded, StoreWork};
use view::View;

/// A leader's batch for the log.
struct Incoming {
    batch: Batch,
    /// True if the batch is committed without this replica: no commit waits for it.
    is_settled: bool,
}

/// A replica, and the shard's state for it.
pub struct Seat {
    pub member: Member,
    /// Durable ends that are not committed, with the last append before each. Used by a leader with publishers.
    pub marks: VecDeque<(i64, AppendTicket)>,
    /// A leader's batches for which the store had no room, in order.
    held: VecDeque<Incoming>,
    /// True if the store refused a batch for good: the batches behind it, also in the same frame, are refused too, until a restart.
    has_failed: bool,
    /// Appended to since the last `Sealed`: it is in the list of the turn's end.
    has_grown: bool,
    /// Bytes that are durable and not committed, of a leader.
    uncommitted: u64,
    alarm: Option<Alarm>,
    /// Offset of the collect start that a leader told the others, or is going to, for retention.
    collecting: i64,
    /// Offset up to which an operator gave up damaged data.
    given_up: i64,
    /// Share that the other cores were told.
    told: Share,
    /// State that the last log lines reported.
    seen: LoggedState,
    /// The coordinator was told that the replica is suspect.
    is_told_suspect: bool,
}

#[derive(Default)]
struct LoggedState {
    state: Option<State>,
    version: u64,
    leader: Option<NodeId>,
    isr: Vec<NodeId>,
    /// True: leader and ISR are not logged yet, since the nodes' names are not known.
    waits_for_names: bool,
}

impl Seat {
    fn new(member: Member) -> Self {
        Seat {
            member,
            marks: VecDeque::new(),
            held: VecDeque::new(),
            has_failed: false,
            has_grown: false,
            uncommitted: 0,
            alarm: None,
            collecting: 0,
            given_up: 0,
            told: Share::default(),
            seen: LoggedState::default(),
            is_told_suspect: false,
        }
    }

    /// True: this is not the alarm that the replica raised last.
    pub fn raise(&mut self, alarm: Alarm) -> bool {
        self.alarm.replace(alarm) != Some(alarm)
    }

    /// True: such an alarm was raised, and is over now.
    pub fn end_alarm(&mut self, is_over: impl FnOnce(&Alarm) -> bool) -> bool {
        self.alarm.take_if(|alarm| is_over(alarm)).is_some()
    }

    pub fn is_leader(&self) -> bool {
        self.member.epoch().is_some()
    }

    /// The append whose commit says that the durable batch at this place is committed; of one whose place is not known any more,
    /// that all are. `None`: it is.
    pub fn commits_at(&self, place: Option<Position>) -> Option<AppendTicket> {
        let committed = self.member.committed().offset;
        let mark = match place {
            Some(at) if at.offset < committed => None,
            Some(at) => self.marks.iter().find(|(end, _)| *end > at.offset),
            None => self.marks.back(),
        };
        mark.map(|m| m.1)
    }
}

/// A core's part of a cluster, beside its partitions: machines with private state. Here is what concerns several of them.
pub struct Cluster {
    pub(super) peers: Peers,
    replica: ReplicaOptions,
    lease: Lease,
    topics: KnownTopics,
    pub(super) disk: DiskTopics,
    pub(super) leaving: leaving::Leaving,
    pub(super) store_work: StoreWork,
    /// Partitions with publishes since the last seal.
    grown: Vec<PartitionIdx>,
    /// Bytes that are durable and not committed, of all leaders of this core.
    uncommitted: u64,
    /// Emptied list of effects, kept for its memory.
    effects: Vec<Effect>,
    pub(super) wanted: wanted::WantedTopics,
    pub(super) forwards: Forwards,
    /// Relays of this node's clients at other leaders, and of other nodes' clients here.
    pub(super) relays: relays::Relays,
    pub(super) guests: guests::Guests,
    changes: changes::Changes,
}

impl Cluster {
    pub fn new(options: &ClusterOptions, me: NodeId, cores: (CoreId, u16), replica: ReplicaOptions, links: Links) -> Self {
        Cluster {
            peers: Peers::new(me, options.generation, cores, links),
            wanted: wanted::WantedTopics::new(options.creates_topics),
            replica,
            lease: Lease::default(),
            topics: KnownTopics::default(),
            disk: DiskTopics::default(),
            leaving: leaving::Leaving::default(),
            store_work: StoreWork::default(),
            grown: vec![],
            uncommitted: 0,
            effects: vec![],
            forwards: Forwards::default(),
            relays: relays::Relays::default(),
            guests: guests::Guests::default(),
            changes: changes::Changes::default(),
        }
    }

    /// Gives the partition's replica an event, and carries out its effects.
    fn step(&mut self, core: &mut CoreParts, now: Now, idx: PartitionIdx, event: Event) {
        // The store takes nothing more, and has no batch open.
        if core.life.is_stopped() {
            return;
        }
        let Some((seat, channels)) = core.partitions.get_mut(idx).seat_and_channels() else { return };
        let (is_metadata, is_mended) = (matches!(event, Event::Metadata(_)), matches!(event, Event::Mended { .. }));
        let has_led = seat.is_leader();
        if seat.member.may_end_leading(&event) {
            core.store.seal_open(idx);
        }
        let view = View { store: &core.store, log: core.store.log_view(idx), channels };
        let mut effects = std::mem::take(&mut self.effects);
        seat.member.step(now.ticks, (&view, self.peers.nodes()), event, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(core, now, idx, effect);
        }
        self.effects = effects;
        let Some(seat) = core.partitions.get(idx).seat() else { return };
        let (is_leader, deadline) = (seat.is_leader(), seat.member.deadline());
        if has_led && !is_leader {
            stop_leading(core, now, idx);
        }
        self.answer_late(core, idx);
        self.count_uncommitted(core, idx);
        note_role(core, &self.peers, idx);
        note_doubt(core, idx);
        if is_mended {
            note_damage(core, idx);
        }
        if is_metadata {
            self.leaving.look_whether_moved(core, now, self.peers.me(), idx);
        }
        core.timers.at_most(Timer::Replica(idx.0), deadline);
    }

    pub(super) fn tick(&mut self, core: &mut CoreParts, now: Now, idx: PartitionIdx) {
        let Some(seat) = core.partitions.look(idx).and_then(|p| p.seat()) else { return };
        match seat.member.deadline() {
            Some(at) if at <= now.ticks => core.work.tell(idx, Event::Tick),
            later => core.timers.at_most(Timer::Replica(idx.0), later),
        }
    }

    /// A publish was appended: the followers get it when the turn's end has sealed it.
    pub(super) fn has_grown(&mut self, partitions: &mut Partitions, idx: PartitionIdx) {
        if let Some(seat) = partitions.get_mut(idx).seat_mut()
            && !std::mem::replace(&mut seat.has_grown, true)
        {
            self.grown.push(idx);
        }
    }

    /// The turn's batches are sealed: they go to the followers while the journal writes them.
    pub(super) fn replicate_sealed(&mut self, core: &mut CoreParts) {
        for idx in std::mem::take(&mut self.grown) {
            if let Some(seat) = core.partitions.get_mut(idx).seat_mut() {
                seat.has_grown = false;
            }
            core.work.tell(idx, Event::Sealed);
            if core.store.has_open_batch(idx) {
                // The journal is busy, and the open batch still grows.
                self.has_grown(&mut core.partitions, idx);
            }
        }
    }

    /// The partition's log is durable up to here.
    pub(super) fn durable(&mut self, core: &mut CoreParts, idx: PartitionIdx, end: Position, upto: AppendTicket) {
        let p = core.partitions.get_mut(idx);
        if !p.publishers.is_empty()
            && let Some(seat) = p.seat_mut()
        {
            seat.marks.push_back((end.offset, upto));
        }
        core.work.tell(idx, Event::Durable);
    }

    /// Answers publishes of a single replica: when several writes became durable at once, the first notice commits everything, and the
    /// later ones find nothing new.
    fn answer_late(&mut self, core: &mut CoreParts, idx: PartitionIdx) {
        let Some(seat) = core.partitions.get(idx).seat() else { return };
        let committed = seat.member.committed().offset;
        if seat.marks.front().is_some_and(|mark| mark.0 <= committed) {
            self.answer_committed(core, idx, committed);
        }
    }

    /// Records up to here are durable.
    pub(super) fn records_durable(&mut self, core: &mut CoreParts, now: Now, upto: RecordTicket) {
        while let Some((idx, what)) = self.store_work.take_durable(upto) {
            match what {
                Recorded::Promise(epoch) => core.work.tell(idx, Event::EpochDurable { epoch }),
                Recorded::Applied(number) => core.work.tell(idx, Event::Cursor(CursorEvent::Applied { number })),
                Recorded::Collecting(at) => {
                    // Another leader may have brought a lower one since.
                    let at = std::cmp::min_by_key(at, core.store.collect_start(idx), |at| at.offset);
                    core.work.tell(idx, Event::Cursor(CursorEvent::Collecting { at }));
                }
            }
        }
        self.topics_recorded(core, now, upto);
        self.leaving.durable(core, upto);
    }

    /// Reason that keeps a publish from being appended. Bytes that wait for the other replicas count like those that wait for this
    /// node's disk, but only for publishes: batches of a leader elsewhere are taken, or two nodes would wait for each other.
    pub(super) fn check_publish(&self, core: &mut CoreParts, now: Now, idx: PartitionIdx, bytes: usize) -> Option<Attempt> {
        if let Err(error) =
            core.partitions.get(idx).check_write(now.ticks).and_then(|()| begin_channels(&self.topics, core, now, idx))
        {
            return Some(Attempt::Refused(error));
        }
        let waiting = self.uncommitted + core.store.waiting_bytes();
        let is_full = self.uncommitted > 0 && waiting + bytes as u64 > core.settings.max_pub_waiting_size;
        is_full.then_some(Attempt::Wait)
    }

    fn count_uncommitted(&mut self, core: &mut CoreParts, idx: PartitionIdx) {
        let durable = core.store.durable_end(idx).offset;
        let Some(seat) = core.partitions.get_mut(idx).seat_mut() else { return };
        let committed = seat.member.committed().offset;
        let bytes = if seat.is_leader() { (durable - committed).max(0) as u64 } else { 0 };
        self.uncommitted = self.uncommitted + bytes - seat.uncommitted;
        seat.uncommitted = bytes;
    }

    // ---- figures

    /// Traffic between this core and leaders elsewhere; `parked_bytes`: memory of other nodes' publishes that wait for space.
    pub(super) fn remote_stats(&self, parked_bytes: u64) -> RemoteStats {
        RemoteStats {
            counts: self.peers.counts,
            forwarding_bytes: self.forwards.bytes(),
            parked_bytes,
            relays: self.relays.count(),
            guests: self.guests.count(),
        }
    }

    /// State of the partition's replica here. `None`: it has none.
    pub(super) fn replication_stats(
        &self,
        now: Ticks,
        store: &Store,
        idx: PartitionIdx,
        p: &Partition,
    ) -> Option<ReplicationStats> {
        replication_stats(&self.peers, self.lease.until() > now, store, (idx, p))
    }
}
