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

use super::{Cluster, CoreParts};
use crate::base::{Now, Ticks, TopicId};
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
    pub(super) fn has(&self, route: Route) -> bool {
        self.going.contains_key(&route)
    }
}

impl Cluster {
    /// Whether the files of a partition of the topic are about to be gone.
    pub(in crate::shard) fn leaves_any_of(&self, topic: TopicId) -> bool {
        self.leaving.going.iter().any(|(route, going)| route.topic_id == topic && !going.is_stuck)
    }

    /// Whether the partition's files are about to be gone.
    pub(in crate::shard) fn leaves(&self, idx: PartitionIdx) -> bool {
        self.leaving.going.values().any(|going| going.idx == idx && !going.is_stuck)
    }

    /// The version of the metadata by which the replica's files are needed no more.
    fn moved_by(&self, core: &CoreParts, idx: PartitionIdx) -> Option<u64> {
        let membership = core.partitions.look(idx)?.seat()?.member.membership()?;
        (membership.has_moved_from(self.peers.me()) && core.store.has_any_of(idx)).then_some(membership.version)
    }

    /// The replica took the metadata: whether it has moved away is asked once of each version, and again after a pause.
    pub(super) fn look_whether_moved(&mut self, core: &mut CoreParts, now: Now, idx: PartitionIdx) {
        let moved = self.moved_by(core, idx);
        let p = core.partitions.get(idx);
        let route = Route { topic_id: p.topic.id, partition: p.dir.partition };
        let Some(version) = moved else {
            self.leaving.asked.remove(&route);
            return;
        };
        let before = self.leaving.asked.get(&route).filter(|asked| asked.version == version);
        if before.is_some_and(|asked| now.ticks < asked.again_at) {
            return;
        }
        let pause = before.map_or(PAUSE, |asked| (asked.pause * 2).min(PAUSE_MAX));
        let at = now.ticks + pause;
        self.leaving.asked.insert(route, LeaveQuestion { version, again_at: at, pause });
        core.timers.at_most(Timer::Leaving, Some(at));
        core.outbox.ask(Ask::Leave { route, version });
    }

    pub(in crate::shard) fn tick_leaving(&mut self, core: &mut CoreParts, now: Now) {
        let asked = self.leaving.asked.iter();
        let due: Vec<Route> = asked.filter(|(_, asked)| asked.again_at <= now.ticks).map(|(route, _)| *route).collect();
        for route in due {
            match self.member_at(route) {
                Some(idx) => self.look_whether_moved(core, now, idx),
                None => drop(self.leaving.asked.remove(&route)),
            }
        }
        let next = self.leaving.asked.values().map(|asked| asked.again_at).min();
        core.timers.at_most(Timer::Leaving, next);
    }

    /// The replica that may leave: the metadata still had this version after the replica knew it, no operation of the replica is under
    /// way, and the journal takes the deletion. Otherwise the replica asks again later.
    pub(super) fn leaver(&self, core: &CoreParts, route: Route, version: u64) -> Option<PartitionIdx> {
        let idx = self.member_at(route).filter(|idx| self.moved_by(core, *idx) == Some(version))?;
        let p = core.partitions.get(idx);
        let is_used = !p.publishers.is_empty()
            || p.seat().is_none_or(|seat| !seat.held.is_empty())
            || core.waiting.has_parked_for(idx)
            || !core.store.is_at_rest(idx);
        let is_writable = !core.life.is_stopping() && !core.life.is_read_only() && !core.store.is_poisoned(idx);
        (is_writable && !is_used && core.store.takes_deletion()).then_some(idx)
    }

    /// The replica leaves: its files go once that is durable.
    pub(super) fn leave(&mut self, core: &mut CoreParts, now: Now, idx: PartitionIdx) {
        let p = core.partitions.get(idx);
        let (name, partition) = (p.topic.name.clone(), p.dir.partition);
        let route = Route { topic_id: p.topic.id, partition };
        tracing::info!(topic = %name, %partition, "the replica has moved to other nodes: its files here are removed");
        self.retire(core, idx);
        core.topics.forget_place(&name, partition);
        core.partitions.unlist(idx);
        core.close_partition(now, idx);
        let after = Some(core.store.log_partition_delete(idx));
        self.leaving.asked.remove(&route);
        self.leaving.going.insert(route, Going { idx, after, is_stuck: false });
    }

    /// Records up to here are durable.
    pub(super) fn departures_durable(&mut self, core: &mut CoreParts, upto: RecordTicket) {
        for going in self.leaving.going.values_mut() {
            if going.after.take_if(|after| *after <= upto).is_some() {
                core.store.remove_departed(going.idx, core.outbox.io());
            }
        }
    }

    /// The files are gone. Files that the store could not remove stay closed until the next startup.
    pub(in crate::shard) fn has_left(&mut self, core: &mut CoreParts, now: Now, idx: PartitionIdx, is_gone: bool) {
        let going = &mut self.leaving.going;
        let Some((&route, of)) = going.iter_mut().find(|(_, g)| g.idx == idx && !g.is_stuck) else { return };
        of.is_stuck = !is_gone;
        if is_gone {
            going.remove(&route);
            self.create_coming(core, now);
        }
    }
}
