//! Channels of this core's partitions: their creation, change and deletion, and the journal records of these.
//!
//! A change with a waiting client goes to [`CursorSyncs`](super::cursors::CursorSyncs). When its outcome is known, the engine has
//! [`Channels`] settle or revert it.

use super::cursors::{CursorChange, CursorRequest};
use super::offsets::Setter;
use super::operate::Collects;
use super::partitions::{ChannelKey, ChannelState};
use super::parts::CoreParts;
use super::timers::Timer;
use crate::base::topic::home_core;
use crate::base::{ChannelName, CoreId, LogId, Now, Position, SubId, TopicId, TopicRef};
use crate::channel::{Channel, ChannelOptions};
use crate::format::cursor::{CursorImage, Interval};
use crate::log::PartitionIdx;
use crate::seam::message::{MeshMessage, SubOptions, Ticket};
use crate::seam::outcome::{PublishError, SetOffsetError};
use std::time::Duration;

/// FINs for which the journal has no room are given to it again after this time, or after the interval if that is longer.
const FINS_RETRY_MS: u64 = 100;

/// Channels of a partition: with more, its snapshot could not be read again, and every cursor would be lost.
pub(super) const CHANNELS_MAX: usize = if cfg!(test) { 64 } else { crate::format::snapshot::CHANNELS_MAX };

/// The channels of a core, borrowed with its parts for one call.
pub(super) struct Channels<'a> {
    core: &'a mut CoreParts,
}

impl CoreParts {
    pub fn channels(&mut self) -> Channels<'_> {
        Channels { core: self }
    }
}

impl Channels<'_> {
    pub fn options(&self) -> ChannelOptions {
        ChannelOptions {
            max_msg_timeout: Duration::from_millis(self.core.settings.max_msg_timeout_ms),
            max_req_timeout: Duration::from_millis(self.core.settings.max_req_timeout_ms),
            end_to_end: self.core.settings.end_to_end_window(),
        }
    }

    fn max(&self) -> usize {
        match self.core.settings.max_channels_per_topic as usize {
            0 => CHANNELS_MAX,
            n => n.min(CHANNELS_MAX),
        }
    }

    fn get_mut(&mut self, key: ChannelKey) -> &mut ChannelState {
        self.core.partitions.channel_mut(key).expect("who changes a channel has found it")
    }

    // ---- channels come

    /// True if a new channel is taken. A channel that partition 0 has taken comes to the others whatever the state of their disk. So does
    /// a channel in a cluster, where a consumer may need it of a leader that has just begun to lead.
    pub fn check_new(&self, idx: PartitionIdx, name: &ChannelName) -> Result<(), PublishError> {
        match () {
            () if self.core.partitions.get(idx).seat().is_some() || name.is_ephemeral() => Ok(()),
            () if self.core.store.is_stuck() => Err(PublishError::DiskFull),
            () if self.core.store.is_kept_full() => Err(PublishError::ReadOnly),
            () => Ok(()),
        }
    }

    /// The first channel starts at the oldest message that is collected, later ones at the end, as nsqd's do; or at `begin`. While the
    /// topic is paused, later ones start where the pause began, since all that came then is still the topic's. Where channels may have been
    /// lost, each may be one of them, and starts at the oldest message there is. The mark of a pause stands where a later channel would;
    /// without channels, where the first one would.
    /// `first` is the topic's verdict; without one the partition judges for itself.
    pub fn create(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        name: ChannelName,
        begin: Option<Position>,
        first: Option<bool>,
        ordered: bool,
    ) -> Result<u32, PublishError> {
        if !name.is_ephemeral() {
            self.core.life.check_writable()?;
            self.core.partitions.get(idx).check_write(now.ticks)?;
        }
        let p = self.core.partitions.get(idx);
        let is_limited = !name.is_topic_pause() && p.open_channels().count() >= self.max();
        if is_limited || p.channels.len() >= CHANNELS_MAX {
            return Err(PublishError::TooManyChannels);
        }
        let first = first.filter(|_| !name.is_topic_pause());
        let is_first = first.unwrap_or_else(|| !self.core.partitions.get(idx).has_channels());
        let (oldest, p) = (self.core.partitions.oldest(idx, &self.core.store), self.core.partitions.get(idx));
        // It may have been here, and be owed anything.
        let is_lost = self.core.store.channels_lost(idx) > 0 && !name.is_ephemeral() && !name.is_topic_pause();
        let oldest = if is_lost && p.seat().is_none() { self.core.store.start(idx) } else { oldest };
        let usual = if is_first || is_lost { oldest } else { p.flows_to() };
        let confirmed = match begin {
            Some(at) if is_lost || p.seat().is_some() && at.offset < oldest.offset => oldest,
            Some(at) => at,
            None => usual,
        };
        self.core.store.lower_low_water(idx, confirmed);
        let image = CursorImage {
            name: name.clone(),
            paused: false,
            ordered,
            first: first == Some(true),
            epoch: p.seat().and_then(|s| s.member.epoch()).unwrap_or(self.core.epoch),
            generation: p.generation_floor,
            confirmed,
            intervals: vec![],
            handed: vec![],
        };
        let (topic, partition, offset) = (&p.topic.name, p.dir.partition, confirmed.offset);
        match name.is_topic_pause() {
            true => tracing::info!(%topic, %partition, offset, "pausing the topic"),
            false => tracing::info!(%topic, %partition, channel = %name, offset, "creating channel"),
        }
        let channel = self.add(idx, image);
        self.sync_image(ChannelKey { partition: idx.0, channel }, false);
        Ok(channel)
    }

    /// A channel that is journaled as it stands.
    pub fn add(&mut self, idx: PartitionIdx, image: CursorImage) -> u32 {
        let name = image.name.clone();
        let machine = Channel::new(self.options(), self.core.partitions.get(idx).dir.partition, image);
        if !name.is_topic_pause() {
            self.core.outbox.catalog().list_channel(self.core.partitions.get(idx), &name);
        }
        self.core.partitions.add_channel(idx, name, machine)
    }

    // ---- clients

    /// Adds the client to a channel, which becomes ordered if the client asks for it. The client's answer waits until the channel's
    /// `created` is final.
    pub fn join(&mut self, key: ChannelKey, sub: SubId, options: SubOptions) {
        let c = self.get_mut(key);
        let made_ordered = options.ordered && !c.machine.is_ordered();
        let mut dropped = vec![];
        if made_ordered {
            tracing::info!(channel = %c.name, "the channel is ordered from here on");
            c.machine.set_ordered(true, &mut |sub, num| dropped.push((sub, num)));
        }
        c.machine.subscribe(sub, options);
        c.subs.push(sub);
        if made_ordered || c.is_uncertain {
            self.sync_image(key, made_ordered);
        }
        self.free(key, dropped);
    }

    /// The client leaves the channel. An ephemeral one goes with its last client.
    pub fn leave(&mut self, key: ChannelKey, sub: SubId) {
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        c.leave(sub);
        if c.subs.is_empty() && c.name.is_ephemeral() {
            self.drop_ephemeral(key);
        } else {
            self.core.partitions.wake(key);
        }
    }

    /// Messages are in flight no more: their credit is their clients' again, or goes back to their cores.
    fn free(&mut self, key: ChannelKey, dropped: Vec<(SubId, u32)>) {
        let partition = self.core.partitions.get(key.partition_idx()).dir.partition;
        for (sub, num) in dropped {
            let credit = self.core.partitions.free(key, sub, num);
            if credit > 0 {
                self.core.outbox.pass(sub.core, MeshMessage::Returned { sub, partition, credit });
            }
        }
    }

    // ---- changes with a waiting client

    /// Journals a change that was made. Its outcome comes at the end of this step at the earliest.
    pub fn sync(&mut self, key: ChannelKey, change: CursorChange) -> CursorRequest {
        let CoreParts { syncs, partitions, store, life, .. } = &mut *self.core;
        syncs.begin(key, change, partitions, store, life)
    }

    /// Journals the channel as it stands, for which SUBs wait.
    fn sync_image(&mut self, key: ChannelKey, made_ordered: bool) {
        let created = self.sync(key, CursorChange::Image { made_ordered });
        let c = self.get_mut(key);
        (c.created, c.is_uncertain) = (created, false);
    }

    /// Journals a channel again whose last change is uncertain. Returns the change that SUBs wait for.
    pub fn make_certain(&mut self, key: ChannelKey) -> CursorRequest {
        if self.get_mut(key).is_uncertain {
            self.sync_image(key, false);
        }
        self.get_mut(key).created
    }

    /// Pauses the channel, or lets it go on.
    pub fn set_paused(&mut self, key: ChannelKey, paused: bool, (core, ticket): (CoreId, Ticket)) {
        let c = self.get_mut(key);
        let was = c.machine.is_paused();
        c.machine.set_paused(paused);
        c.machine.raise_generation();
        self.sync(key, CursorChange::Pause { core, ticket, was });
        self.core.partitions.wake(key);
    }

    /// Makes the channel ordered, or ordinary.
    pub fn set_order(&mut self, key: ChannelKey, ordered: bool, (core, ticket): (CoreId, Ticket)) {
        let c = self.get_mut(key);
        let was = c.machine.is_ordered();
        let mut dropped = vec![];
        c.machine.set_ordered(ordered, &mut |sub, num| dropped.push((sub, num)));
        self.sync(key, CursorChange::Order { core, ticket, was });
        self.free(key, dropped);
        self.core.partitions.wake(key);
    }

    /// Moves the channel's cursor to a position, or finishes the messages from `from` up to it. Messages in flight, waiting or deferred
    /// are dropped.
    pub fn set_offset(&mut self, key: ChannelKey, from: Option<LogId>, at: Position, setter: Setter) {
        let idx = key.partition_idx();
        let mut dropped = vec![];
        let mut drop = |sub, num| dropped.push((sub, num));
        let machine = &mut self.get_mut(key).machine;
        match from {
            None => machine.move_to(at, &mut drop),
            Some(start) => machine.finish_between(Interval { start, end: at }, &mut drop),
        }
        let needed = machine.confirmed();
        self.core.store.lower_low_water(idx, needed);
        self.core.partitions.get_mut(idx).low_water_stale = true;
        self.sync(key, CursorChange::Set { setter, at });
        self.free(key, dropped);
    }

    /// The change of the channel's cursor is final, or was taken back.
    pub fn settle(&mut self, key: ChannelKey, kept: bool) {
        let idx = key.partition_idx();
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        c.machine.settle(kept);
        let owes_image = std::mem::take(&mut c.owes_image);
        if owes_image {
            c.machine.raise_generation();
        }
        if !kept || owes_image {
            self.log_taken_back(key);
        }
        self.core.partitions.get_mut(idx).low_water_stale = true;
        self.update_low_water(idx);
        self.core.partitions.wake(key);
    }

    /// A channel that SUBs wait for is not final: the next change tries again.
    pub fn image_failed(&mut self, key: ChannelKey, made_ordered: bool) {
        let c = self.get_mut(key);
        c.is_uncertain = true;
        if made_ordered {
            self.take_back_order(key, false);
        }
    }

    /// Takes back the order of a channel, unless another change of it is not final.
    pub fn take_back_order(&mut self, key: ChannelKey, was: bool) {
        let c = self.get_mut(key);
        if c.machine.is_syncing() {
            return;
        }
        let mut dropped = vec![];
        c.machine.set_ordered(was, &mut |sub, num| dropped.push((sub, num)));
        c.machine.raise_generation();
        self.log_taken_back(key);
        self.free(key, dropped);
    }

    /// Takes back a pause that did not become durable.
    pub fn take_back_pause(&mut self, key: ChannelKey, was: bool) {
        let Some(p) = self.core.partitions.look(key.partition_idx()) else { return };
        if p.seat().is_some_and(|seat| !seat.is_leader()) {
            // The other leader's state holds.
            return;
        }
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        c.machine.set_paused(was);
        if c.machine.is_syncing() {
            c.owes_image = true;
        } else {
            c.machine.raise_generation();
            self.log_taken_back(key);
        }
        self.core.partitions.wake(key);
    }

    fn log_taken_back(&mut self, key: ChannelKey) {
        let read_only = self.core.life.is_read_only();
        let Some(c) = self.core.partitions.channel_mut(key).filter(|c| !read_only && !c.name.is_ephemeral()) else { return };
        let image = c.machine.image();
        self.core.store.log_cursor(key.partition_idx(), &image);
        self.core.partitions.note_moved(key);
    }

    // ---- FINs

    /// FINs of this channel wait for the journal; they are durable soon even when nothing is published.
    pub fn mark_dirty(&mut self, now: Now, key: ChannelKey) {
        if self.core.partitions.add_fins(key) {
            let at = now.ticks + Duration::from_millis(self.core.settings.fin_sync_interval_ms);
            self.core.timers.at_most(Timer::Fins, Some(at));
        }
    }

    /// Hands the FINs that wait to the journal; before the batches of the same turn, so that an OK to a later publish implies them. FINs
    /// without room in the journal stay in their channels, unless all `must` go.
    pub fn journal_fins(&mut self, now: Now, must: bool) {
        // The timer stays: it fires once more, for nothing or earlier than a later FIN needs, and costs no turn a removal.
        let mut fins = self.core.partitions.agenda.take_fins();
        let mut gone = 0;
        for &key in &fins {
            if !must && !self.core.store.takes_facts() {
                break;
            }
            gone += 1;
            let idx = key.partition_idx();
            let Some(c) = self.core.partitions.channel_mut(key) else { continue };
            let (finished, name) = (c.take_fins(), c.name.clone());
            let generation = c.machine.generation();
            if let Some(intervals) = finished
                && !name.is_ephemeral()
            {
                self.core.store.log_finished(idx, &name, generation, &intervals);
                self.core.partitions.note_moved(key);
            }
            self.core.partitions.get_mut(idx).low_water_stale = true;
        }
        for key in fins.drain(..gone) {
            self.update_low_water(key.partition_idx());
        }
        if !fins.is_empty() {
            let wait = Duration::from_millis(self.core.settings.fin_sync_interval_ms.max(FINS_RETRY_MS));
            self.core.timers.at_most(Timer::Fins, Some(now.ticks + wait));
        }
        self.core.partitions.agenda.put_back_fins(fins);
    }

    /// The core stops, and all clients have left: the last snapshots get the messages that were delivered and not finished. Not in a
    /// cluster: another node leads from here on, and does not get the attempts.
    pub fn keep_attempts(&mut self, now: Now) {
        if self.core.life.is_read_only() {
            return;
        }
        for (idx, channels) in self.core.partitions.channels_mut() {
            for (_, c) in channels.iter_mut().filter(|(_, c)| !c.name.is_ephemeral() && !c.machine.is_syncing()) {
                if c.machine.keep_attempts(now) {
                    // A record, so that the partition has a snapshot to take.
                    self.core.store.log_cursor(idx, &c.machine.image());
                }
            }
        }
    }

    /// Consumers may see more of the log.
    pub fn wake_all(&mut self, idx: PartitionIdx) {
        if self.core.partitions.wake_all(idx) {
            self.update_low_water(idx);
        }
    }

    pub fn update_low_water(&mut self, idx: PartitionIdx) {
        self.core.partitions.get_mut(idx).update_low_water(idx, &mut self.core.store);
    }

    // ---- channels go

    /// Begins to delete the channel. Returns its clients, which are off.
    pub fn delete(&mut self, key: ChannelKey, (core, ticket): (CoreId, Ticket)) -> Vec<SubId> {
        let idx = key.partition_idx();
        let p = self.core.partitions.get(idx);
        let is_other = |(i, c): (u32, &ChannelState)| i != key.channel && !c.machine.is_deleting();
        let is_last = p.pause != Some(key.channel) && !p.open_channels().any(is_other);
        let collects = Collects { was: self.core.store.collect_start(idx), to: p.flows_to() };
        let c = self.get_mut(key);
        let subs = c.take_off(|_| true);
        c.machine.begin_delete();
        let collects = (is_last && !c.name.is_ephemeral()).then_some(collects);
        self.core.timers.remove(Timer::Channel(key));
        if let Some(Collects { to, .. }) = collects {
            self.core.store.log_collect_start(idx, to);
        }
        self.sync(key, CursorChange::Delete { core, ticket, collects });
        subs
    }

    /// The deletion is final, or it is taken back.
    pub fn delete_done(
        &mut self,
        (key, topic, name): (ChannelKey, TopicId, &ChannelName),
        collects: Option<Collects>,
        result: Result<(), PublishError>,
    ) -> Result<(), SetOffsetError> {
        let found = self.core.partitions.channel_of(key, topic, name).map(|c| c.machine.is_deleting());
        match (result, found) {
            (Ok(()), Some(true)) => {
                self.deleted(key);
                Ok(())
            }
            (Ok(()), None) => Ok(()),
            // The replica ceased to lead meanwhile, which took it back.
            (Ok(()), Some(false)) => Err(SetOffsetError::Failed(PublishError::Unknown)),
            (Err(error), found) => {
                if found == Some(true) {
                    // Another replica may have deleted it, or the record may be durable: a SUB is answered behind an image.
                    self.get_mut(key).is_uncertain = true;
                    self.settle(key, false);
                }
                let idx = key.partition_idx();
                if let Some(Collects { was, to }) = collects.filter(|_| found.is_some() && !self.core.life.is_read_only())
                    && self.core.store.collect_start(idx) == to
                {
                    self.core.store.log_collect_start(idx, was);
                }
                if found.is_some() {
                    self.core.store.look_at_retention(idx);
                }
                Err(SetOffsetError::Failed(error))
            }
        }
    }

    fn deleted(&mut self, key: ChannelKey) {
        let idx = key.partition_idx();
        let c = self.get_mut(key);
        let generation = c.machine.generation() + 1;
        if c.name.is_ephemeral() {
            return self.drop_ephemeral(key);
        }
        self.forget(key);
        let p = self.core.partitions.get_mut(idx);
        p.generation_floor = p.generation_floor.max(generation);
        let idle = (!p.has_channels()).then(|| p.topic.clone());
        self.update_low_water(idx);
        self.core.store.look_at_retention(idx);
        if let Some(topic) = idle {
            self.topic_idle(&topic);
        }
    }

    /// An ephemeral channel goes. When it was the last channel, the topic collects from here on.
    fn drop_ephemeral(&mut self, key: ChannelKey) {
        let idx = key.partition_idx();
        self.forget(key);
        let p = self.core.partitions.get(idx);
        let idle = (!p.has_channels()).then(|| (p.topic.clone(), p.flows_to()));
        if let Some((_, end)) = idle {
            self.core.store.log_collect_start(idx, end);
        }
        self.update_low_water(idx);
        if let Some((topic, _)) = idle {
            self.topic_idle(&topic);
        }
    }

    /// The last channel of a partition went, or a SUB was given up that may have been all there was: the home of an ephemeral topic hears
    /// of it.
    pub fn topic_idle(&mut self, topic: &TopicRef) {
        if topic.name.is_ephemeral() {
            self.core.outbox.pass(home_core(&topic.name, self.core.cores), MeshMessage::TopicIdle { topic: topic.clone() });
        }
    }

    /// Forgets a channel without clients, and everything that names its slot, which may be reused.
    pub fn forget(&mut self, key: ChannelKey) {
        let idx = key.partition_idx();
        let name = self.core.partitions.remove_channel(key);
        self.core.timers.remove(Timer::Channel(key));
        if name.is_topic_pause() {
            self.wake_all(idx);
        } else {
            self.core.outbox.catalog().unlist_channel(self.core.partitions.get(idx), &name);
        }
    }
}
