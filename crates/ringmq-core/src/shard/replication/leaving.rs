//! A replica that moved to another node: its files go.
//!
//! ```text
//! metadata: no replica here; others lead it, with enough in sync ──Leave──> coordinator: reads the metadata anew
//!   MayLeave, of the version that this replica knows ─> retired, closed ─> PartitionDelete durable (the decision) ─> files go
//!                                                                      ─> a replica that the metadata names here again begins anew
//! ```
//! - Since it has heard of that version the replica acknowledged nothing, and who acted on a newer one was not there yet when the
//!   coordinator read. So nobody counts on what goes: a leader begins a new session with a replica that was removed and added again
//!   ([`Membership::removals`](crate::seam::membership::Membership)).
//! - A node that is killed before the decision is durable asks again after its next startup; behind it, that start removes the files.

use super::{Cluster, Engine};
use crate::base::{Now, Ticks, TopicId};
use crate::codec::peer::message::Route;
use crate::log::{PartitionIdx, RecordTicket};
use crate::seam::cluster::Ask;
use crate::seam::event;
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
}

impl Engine {
    /// The version of the metadata by which the replica's files are needed no more.
    fn moved_by(&self, idx: PartitionIdx) -> Option<u64> {
        let membership = self.partitions.look(idx)?.seat()?.member.membership()?;
        let me = self.cluster.as_ref()?.me;
        (membership.has_moved_from(me) && self.store.has_any_of(idx)).then_some(membership.version)
    }

    /// The replica took the metadata: whether it has moved away is asked once of each version, and again after a pause.
    pub(super) fn look_whether_moved(&mut self, now: Now, route: Route, idx: PartitionIdx) {
        let moved = self.moved_by(idx);
        let asked = &mut self.cluster_mut().leaving.asked;
        let Some(version) = moved else {
            asked.remove(&route);
            return;
        };
        let before = asked.get(&route).filter(|asked| asked.version == version);
        if before.is_some_and(|asked| now.ticks < asked.again_at) {
            return;
        }
        let pause = before.map_or(PAUSE, |asked| (asked.pause * 2).min(PAUSE_MAX));
        let at = now.ticks + pause;
        asked.insert(route, LeaveQuestion { version, again_at: at, pause });
        self.timers.at_most(Timer::Leaving, Some(at));
        self.outbox.push(event::Effect::Ask(Ask::Leave { route, version }));
    }

    pub(in crate::shard) fn tick_leaving(&mut self, now: Now) {
        let Some(cluster) = &self.cluster else { return };
        let asked = cluster.leaving.asked.iter();
        let due: Vec<Route> = asked.filter(|(_, asked)| asked.again_at <= now.ticks).map(|(route, _)| *route).collect();
        for route in due {
            match self.member_at(route) {
                Some(idx) => self.look_whether_moved(now, route, idx),
                None => self.cluster_mut().leaving.asked.retain(|of, _| *of != route),
            }
        }
        let next = self.cluster_mut().leaving.asked.values().map(|asked| asked.again_at).min();
        self.timers.at_most(Timer::Leaving, next);
    }

    /// The metadata was of this version after the replica had heard of it. What cannot be done now is asked for again.
    pub(super) fn on_may_leave(&mut self, now: Now, route: Route, version: u64) {
        let Some(idx) = self.member_at(route).filter(|idx| self.moved_by(*idx) == Some(version) && self.may_go(*idx)) else {
            return;
        };
        let name = self.partitions.get(idx).topic.name.clone();
        tracing::info!(topic = %name, partition = %route.partition, "the replica has moved to other nodes: its files here are removed");
        self.retire(idx);
        self.topics.forget_place(&name, route.partition);
        self.partitions.unlist(idx);
        self.close_partition(now, idx);
        let after = Some(self.store.log_partition_delete(idx));
        let leaving = &mut self.cluster_mut().leaving;
        leaving.asked.remove(&route);
        leaving.going.insert(route, Going { idx, after, is_stuck: false });
    }

    /// Whether nobody of this core uses the replica, and the journal takes its end.
    fn may_go(&self, idx: PartitionIdx) -> bool {
        let p = self.partitions.get(idx);
        let is_used = !p.publishers.is_empty()
            || p.seat().is_none_or(|seat| !seat.held.is_empty())
            || self.waiting.has_parked_for(idx)
            || self.searches.is_any_in(idx)
            || self.changes_channels_of(&p.topic);
        let is_writable = !self.life.is_stopping() && !self.life.is_read_only() && !self.store.is_poisoned(idx);
        is_writable && !is_used && !self.is_removing(p.topic.id) && self.store.is_at_rest(idx)
    }

    /// Records up to here are durable.
    pub(in crate::shard) fn leavings_durable(&mut self, upto: RecordTicket) {
        let Some(cluster) = &mut self.cluster else { return };
        for going in cluster.leaving.going.values_mut() {
            if going.after.take_if(|after| *after <= upto).is_some() {
                self.store.remove_departed(going.idx, self.outbox.io());
            }
        }
    }

    /// The files are gone. What the store could not remove stays closed until the next startup.
    pub(in crate::shard) fn has_left(&mut self, now: Now, idx: PartitionIdx, is_gone: bool) {
        let Some(cluster) = &mut self.cluster else { return };
        let going = &mut cluster.leaving.going;
        let Some((&route, of)) = going.iter_mut().find(|(_, g)| g.idx == idx && !g.is_stuck) else { return };
        of.is_stuck = !is_gone;
        if is_gone {
            going.remove(&route);
            self.create_coming(now);
        }
    }
}
