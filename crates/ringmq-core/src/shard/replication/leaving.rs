//! Removal of the files of a replica that moved to another node.
//!
//! ```text
//! metadata: no replica here; others lead it, with enough in sync ──Leave──> coordinator: reads the metadata anew
//!   MayLeave, of the version that this replica knows ─> retired, closed ─> PartitionDelete durable (the decision) ─> files go
//!                                                                      ─> a replica that the metadata names here again begins anew
//! ```
//! - Since it knows that version the replica acknowledged nothing, and no newer version existed when the coordinator read. So no other
//!   node counts on the removed data: a leader begins a new session with a replica that was removed and added again
//!   ([`Membership::removals`](crate::seam::membership::Membership)).
//! - A node that is killed before the decision is durable asks again after its next startup; if it is killed afterwards, the startup
//!   removes the files.

use super::CoreParts;
use crate::base::{NodeId, Now, Ticks, TopicId};
use crate::codec::peer::message::Route;
use crate::log::{PartitionIdx, RecordTicket};
use crate::seam::cluster::Ask;
use crate::shard::timers::Timer;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pause before the coordinator is asked again. Each pause is twice as long as the one before: a static file has no answer.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// Question whether a replica may leave.
#[derive(Clone, Copy, Debug)]
struct LeaveQuestion {
    /// Version of the metadata that it is about.
    version: u64,
    /// Time of the next question, and the pause before it.
    again_at: Ticks,
    pause: Duration,
}

/// A replica whose files go.
#[derive(Clone, Copy, Debug)]
struct Going {
    idx: PartitionIdx,
    /// The files go once this record is durable. `None`: they go.
    after: Option<RecordTicket>,
    /// The store could not remove them: the next startup does.
    is_stuck: bool,
}

#[derive(Debug, Default)]
pub struct Leaving {
    asked: BTreeMap<Route, LeaveQuestion>,
    going: BTreeMap<Route, Going>,
}

impl Leaving {
    /// Whether files of the partition that was here are still there.
    pub(super) fn has_files_of(&self, route: Route) -> bool {
        self.going.contains_key(&route)
    }

    /// Whether the files of a partition of the topic are about to be gone.
    pub fn has_any_of(&self, topic: TopicId) -> bool {
        self.going.iter().any(|(route, going)| route.topic_id == topic && !going.is_stuck)
    }

    /// Whether the partition's files are about to be gone.
    pub fn has(&self, idx: PartitionIdx) -> bool {
        self.going.values().any(|going| going.idx == idx && !going.is_stuck)
    }

    /// The replica took the metadata: whether it has moved away is asked once of each version, and again after a pause.
    pub(super) fn look_whether_moved(&mut self, core: &mut CoreParts, now: Now, me: NodeId, idx: PartitionIdx) {
        let moved = moved_by(core, me, idx);
        let p = core.partitions.get(idx);
        let route = Route { topic_id: p.topic.id, partition: p.dir.partition };
        let Some(version) = moved else {
            self.asked.remove(&route);
            return;
        };
        let before = self.asked.get(&route).filter(|asked| asked.version == version);
        if before.is_some_and(|asked| now.ticks < asked.again_at) {
            return;
        }
        let pause = before.map_or(PAUSE, |asked| (asked.pause * 2).min(PAUSE_MAX));
        let at = now.ticks + pause;
        self.asked.insert(route, LeaveQuestion { version, again_at: at, pause });
        core.timers.at_most(Timer::Leaving, Some(at));
        core.outbox.ask(Ask::Leave { route, version });
    }

    pub fn tick(&mut self, core: &mut CoreParts, now: Now, me: NodeId) {
        let asked = self.asked.iter();
        let due: Vec<Route> = asked.filter(|(_, asked)| asked.again_at <= now.ticks).map(|(route, _)| *route).collect();
        for route in due {
            match core.partitions.member_at(route) {
                Some(idx) => self.look_whether_moved(core, now, me, idx),
                None => drop(self.asked.remove(&route)),
            }
        }
        let next = self.asked.values().map(|asked| asked.again_at).min();
        core.timers.at_most(Timer::Leaving, next);
    }

    /// The files of the replica, which is retired, go once that is durable.
    pub(super) fn begin(&mut self, core: &mut CoreParts, idx: PartitionIdx) {
        let p = core.partitions.get(idx);
        let (name, partition) = (p.topic.name.clone(), p.dir.partition);
        let route = Route { topic_id: p.topic.id, partition };
        tracing::info!(topic = %name, %partition, "the replica has moved to other nodes: its files here are removed");
        core.topics.forget_place(&name, partition);
        core.partitions.unlist(idx);
        core.close_partition(idx);
        let after = Some(core.store.log_partition_delete(idx));
        self.asked.remove(&route);
        self.going.insert(route, Going { idx, after, is_stuck: false });
    }

    /// Records up to here are durable.
    pub(super) fn durable(&mut self, core: &mut CoreParts, upto: RecordTicket) {
        for going in self.going.values_mut() {
            if going.after.take_if(|after| *after <= upto).is_some() {
                core.store.remove_departed(going.idx, core.outbox.io());
            }
        }
    }

    /// The store has removed the partition's files, or could not: then they stay closed until the next startup. True: the files of a
    /// replica that left are gone.
    pub(super) fn end(&mut self, idx: PartitionIdx, is_gone: bool) -> bool {
        let Some((&route, of)) = self.going.iter_mut().find(|(_, g)| g.idx == idx && !g.is_stuck) else { return false };
        of.is_stuck = !is_gone;
        if is_gone {
            self.going.remove(&route);
        }
        is_gone
    }
}

/// The version of the metadata by which the replica's files are needed no more.
fn moved_by(core: &CoreParts, me: NodeId, idx: PartitionIdx) -> Option<u64> {
    let membership = core.partitions.look(idx)?.seat()?.member.membership()?;
    (membership.has_moved_from(me) && core.store.has_any_of(idx)).then_some(membership.version)
}

/// The replica that may leave: the metadata still had this version after the replica knew it, no operation of the replica is under
/// way, and the journal takes the deletion. Otherwise the replica asks again later.
pub(super) fn leaver(core: &CoreParts, me: NodeId, route: Route, version: u64) -> Option<PartitionIdx> {
    let idx = core.partitions.member_at(route).filter(|idx| moved_by(core, me, *idx) == Some(version))?;
    let p = core.partitions.get(idx);
    let is_used = !p.publishers.is_empty()
        || p.seat().is_none_or(|seat| !seat.held.is_empty())
        || core.waiting.has_parked_for(idx)
        || !core.store.is_at_rest(idx);
    let is_writable = !core.life.is_stopping() && !core.life.is_read_only() && !core.store.is_poisoned(idx);
    (is_writable && !is_used && core.store.takes_deletion()).then_some(idx)
}
