//! Subscriptions on the partition's core: channels come and go, credit is taken and given back, FINs reach the journal.

use super::copies::CopyOutcome;
use super::cursors::{CursorChange, Finisher};
use super::engine::Engine;
use super::partitions::{ChannelKey, ChannelState};
use super::timers::Timer;
use crate::base::{CoreId, LogId, Now, PartitionId, SubId};
use crate::channel::Channel;
use crate::codec::peer::message::Relayed;
use crate::format::cursor::CursorImage;
use crate::log::PartitionIdx;
use crate::seam::{message::MeshMessage, outcome::InFlightError};
use std::time::Duration;

/// FINs for which the journal has no room are given to it again after this time, or after the interval if that is longer.
const FINS_RETRY_MS: u64 = 100;

/// Channels of a partition: with more, its snapshot could not be read again, and every cursor would be lost.
pub(super) const CHANNELS_MAX: usize = if cfg!(test) { 64 } else { crate::format::snapshot::CHANNELS_MAX };

impl Engine {
    pub fn channels_max(&self) -> usize {
        match self.settings.max_channels_per_topic as usize {
            0 => CHANNELS_MAX,
            n => n.min(CHANNELS_MAX),
        }
    }

    /// A channel that is journaled as it stands.
    pub fn add_channel(&mut self, idx: PartitionIdx, image: CursorImage) -> u32 {
        let options = self.channel_options();
        let name = image.name.clone();
        let machine = Channel::new(options, self.partitions.get(idx).dir.partition, image);
        if !name.is_topic_pause() {
            self.outbox.catalog().list_channel(self.partitions.get(idx), &name);
        }
        self.partitions.add_channel(idx, name, machine)
    }

    pub fn detach(&mut self, now: Now, sub: SubId, partition: PartitionId) {
        if self.cluster.as_mut().is_some_and(|c| c.relay_detach(sub, partition)) {
            return;
        }
        self.bundles.set_blocked(sub, false);
        self.forget_subscribing(sub, partition);
        let Some(key) = self.partitions.forget_client(sub, partition) else { return };
        self.bundles.drop_frames(sub);
        self.detach_from(now, sub, key);
    }

    /// The client leaves the channel; what it had in flight is delivered again.
    pub fn detach_from(&mut self, now: Now, sub: SubId, key: ChannelKey) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.unsubscribe(now.ticks, sub);
        c.subs.retain(|s| *s != sub);
        c.owed.remove(&sub);
        if c.subs.is_empty() && c.name.is_ephemeral() {
            self.drop_channel(key);
        } else {
            self.partitions.wake(key);
        }
    }

    /// An ephemeral channel goes with its last client. When it was the last channel, the topic collects from here on.
    pub fn drop_channel(&mut self, key: ChannelKey) {
        let idx = key.partition_idx();
        self.forget_channel(key);
        let last = !self.partitions.get(idx).has_channels();
        if last {
            let end = self.partitions.get(idx).flows_to();
            self.store.log_collect_start(idx, end);
        }
        self.update_low_water(idx);
        if last {
            let topic = self.partitions.get(idx).topic.clone();
            self.topic_idle(&topic);
        }
    }

    /// Forgets a channel without clients, and everything that names its slot, which may be reused.
    pub fn forget_channel(&mut self, key: ChannelKey) {
        let idx = key.partition_idx();
        let name = self.partitions.remove_channel(key);
        self.timers.remove(Timer::Channel(key));
        if name.is_topic_pause() {
            self.wake_all(idx);
        } else {
            self.outbox.catalog().unlist_channel(self.partitions.get(idx), &name);
        }
    }

    pub fn on_lent(&mut self, sub: SubId, partition: PartitionId, credit: u32) {
        let Some(key) = self.partitions.of_client(sub, partition) else {
            if self.relay(sub, partition, Relayed::Lend(credit)) {
                return;
            }
            if let Some(parked) = self.parked_sub(sub, partition) {
                parked.credit += credit;
            }
            return;
        };
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.lend(sub, credit);
        self.partitions.wake(key);
    }

    /// Credit that returns at once; the rest follows as messages are finished.
    pub fn on_recall(&mut self, sub: SubId, partition: PartitionId, credit: u32) -> u32 {
        let Some(key) = self.partitions.of_client(sub, partition) else {
            if self.relay(sub, partition, Relayed::Recall(credit)) {
                return 0;
            }
            let Some(parked) = self.parked_sub(sub, partition) else {
                // The client's core is told, or was told, that the partition has forgotten the client.
                return 0;
            };
            parked.credit = parked.credit.saturating_sub(credit);
            return credit;
        };
        let Some(c) = self.partitions.channel_mut(key) else { return credit };
        // A channel that has a turn coming may use it first; else two partitions that have messages would take a
        // small RDY from each other for ever, each before its turn. The same with a read under way for it: what is read
        // would leave the cache, unused, before the credit is back (see `log::read`, "progress").
        let give = if c.is_queued() || c.machine.awaits_read() { 0 } else { c.take_unspent(sub, credit) };
        if give < credit {
            *c.owed.entry(sub).or_default() += credit - give;
        }
        give
    }

    /// Returns recalled credit that a channel's turn did not use, unless a read is in flight for it.
    pub fn settle_owed(&mut self, key: ChannelKey) {
        let is_free = |c: &&mut ChannelState| !c.owed.is_empty() && !c.machine.awaits_read();
        let Some(c) = self.partitions.channel_mut(key).filter(is_free) else { return };
        let mut back: Vec<(SubId, u32)> = c.owed.iter().map(|(&sub, &owed)| (sub, owed)).collect();
        back.sort_unstable();
        for (sub, owed) in &mut back {
            let give = c.take_unspent(*sub, *owed);
            match *owed - give {
                0 => c.owed.remove(sub),
                rest => c.owed.insert(*sub, rest),
            };
            *owed = give;
        }
        let partition = self.partitions.get(key.partition_idx()).dir.partition;
        for (sub, credit) in back.into_iter().filter(|&(_, credit)| credit > 0) {
            self.give_back(sub, partition, credit);
        }
    }

    fn give_back(&mut self, sub: SubId, partition: PartitionId, credit: u32) {
        if sub.core == self.core {
            self.on_returned(sub, partition, credit);
        } else {
            self.pass(sub.core, MeshMessage::Returned { sub, partition, credit });
        }
    }

    /// Messages in flight are done: their credit is the client's again, or goes back to its core.
    pub fn on_freed(&mut self, key: ChannelKey, sub: SubId, num: u32) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        match c.owed.get_mut(&sub) {
            Some(owed) => {
                let back = num.min(*owed);
                *owed -= back;
                if *owed == 0 {
                    c.owed.remove(&sub);
                }
                if num > back {
                    c.machine.lend(sub, num - back);
                }
                let partition = self.partitions.get(key.partition_idx()).dir.partition;
                self.give_back(sub, partition, back);
            }
            None => c.machine.lend(sub, num),
        }
        self.partitions.wake(key);
    }

    pub fn on_finish(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId) -> Result<(), InFlightError> {
        let Some(key) = self.partitions.of_client(sub, partition) else {
            let is_relayed = self.cluster.as_mut().is_some_and(|c| c.relay_finish(sub, partition, id));
            return if is_relayed { Ok(()) } else { Err(InFlightError::NotInFlight) };
        };
        let c = self.partitions.served_mut(now.ticks, key).ok_or(InFlightError::NotInFlight)?;
        if c.machine.is_ordered() {
            self.partitions.check_change(now.ticks, key).map_err(InFlightError::Refused)?;
        }
        let c = self.partitions.channel_mut(key).ok_or(InFlightError::NotInFlight)?;
        c.machine.finish(now.ticks, sub, id).map_err(|_| InFlightError::NotInFlight)?;
        if c.has_fins() && c.is_queued() && c.owed.is_empty() && !c.machine.is_ordered() {
            // The common case, in one look at the channel.
            c.machine.lend(sub, 1);
            return Ok(());
        }
        if c.machine.finishing().is_some() {
            self.sync_cursor(now, key, CursorChange::Finish { sub, by: Finisher::Nsq(id) });
            return Ok(());
        }
        self.mark_dirty(now, key);
        self.on_freed(key, sub, 1);
        Ok(())
    }

    /// FINs of this channel wait for the journal; they are durable soon even when nothing is published.
    pub fn mark_dirty(&mut self, now: Now, key: ChannelKey) {
        if self.partitions.add_fins(key) {
            let at = now.ticks + Duration::from_millis(self.settings.fin_sync_interval_ms);
            self.timers.at_most(Timer::Fins, Some(at));
        }
    }

    pub fn on_requeue(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId, delay_ms: u64) -> bool {
        let Some(key) = self.partitions.of_client(sub, partition) else {
            return self.relay(sub, partition, Relayed::Requeue { id, delay_ms });
        };
        let Some(c) = self.partitions.served_mut(now.ticks, key) else { return false };
        if c.machine.is_ordered() && delay_ms > 0 {
            // It would keep all behind it waiting: it comes again by its timeout, as in the replicated NSQ.
            return c.machine.has_in_flight(sub, id);
        }
        if c.machine.requeue(now.ticks, sub, id, Duration::from_millis(delay_ms)).is_err() {
            return false;
        }
        let deadline = c.machine.deadline();
        self.timers.at_most(Timer::Channel(key), deadline);
        self.on_freed(key, sub, 1);
        true
    }

    pub fn on_touch(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId) -> bool {
        let Some(key) = self.partitions.of_client(sub, partition) else {
            return self.relay(sub, partition, Relayed::Touch(id));
        };
        self.partitions.served_mut(now.ticks, key).is_some_and(|c| c.machine.touch(now.ticks, sub, id).is_ok())
    }

    pub fn on_block(&mut self, sub: SubId, partition: PartitionId, blocked: bool) {
        let Some(key) = self.partitions.of_client(sub, partition) else {
            if self.relay(sub, partition, Relayed::Block(blocked)) {
                return;
            }
            if let Some(parked) = self.parked_sub(sub, partition) {
                parked.blocked = blocked;
            }
            return;
        };
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.block(sub, blocked);
        if !blocked {
            self.partitions.wake(key);
        }
    }

    /// Timeouts and due deferred messages of one channel.
    pub fn tick_channel(&mut self, now: Now, key: ChannelKey) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        let mut freed = vec![];
        c.machine.tick(now.ticks, &mut |sub, num| freed.push((sub, num)));
        let deadline = c.machine.deadline();
        freed.into_iter().for_each(|(sub, num)| self.on_freed(key, sub, num));
        self.timers.at_most(Timer::Channel(key), deadline);
        self.partitions.wake(key);
    }

    /// Reports to the channels what came of their copies, and goes on with the changes that waited for that.
    pub fn settle_copies(&mut self, now: Now) {
        let outcomes = self.copies.take_outcomes();
        for &CopyOutcome { key, id, number, is_committed } in &outcomes {
            let Some(c) = self.partitions.channel_mut(key) else { continue };
            c.machine.copied(id, number, is_committed);
            if c.machine.is_dirty() {
                self.mark_dirty(now, key);
                // The message that is first now may be worth a copy, too.
                self.partitions.wake(key);
            }
            self.partitions.count_open(key);
        }
        for key in outcomes.iter().map(|o| o.key).filter(|key| !self.copies.is_under_way(*key)).collect::<Vec<_>>() {
            self.go_on_setting(now, key);
        }
        if !outcomes.is_empty() {
            self.go_on_operating(now);
            self.go_on_emptying();
        }
    }

    /// Hands the FINs that wait to the journal; before the batches of the same turn, so that an OK to a later publish
    /// implies them. Those that the journal has no room for stay in their channels, unless all `must` go.
    pub fn journal_fins(&mut self, now: Now, must: bool) {
        // The timer stays: it fires once more, for nothing or earlier than a later FIN needs, and costs no turn a removal.
        let mut fins = self.partitions.agenda.take_fins();
        let mut gone = 0;
        for &key in &fins {
            if !must && !self.store.takes_facts() {
                break;
            }
            gone += 1;
            let idx = key.partition_idx();
            let Some(c) = self.partitions.channel_mut(key) else { continue };
            let (finished, name) = (c.take_fins(), c.name.clone());
            let generation = c.machine.generation();
            if let Some(intervals) = finished
                && !name.is_ephemeral()
            {
                self.store.log_finished(idx, &name, generation, &intervals);
                self.cursor_moved(now, key);
            }
            self.partitions.get_mut(idx).low_water_stale = true;
        }
        for key in fins.drain(..gone) {
            self.update_low_water(key.partition_idx());
        }
        if !fins.is_empty() {
            let wait = Duration::from_millis(self.settings.fin_sync_interval_ms.max(FINS_RETRY_MS));
            self.timers.at_most(Timer::Fins, Some(now.ticks + wait));
        }
        self.partitions.agenda.put_back_fins(fins);
    }

    /// Consumers may see more of the log.
    pub(super) fn wake_all(&mut self, idx: PartitionIdx) {
        if self.partitions.wake_all(idx) {
            self.update_low_water(idx);
        }
    }

    pub fn update_low_water(&mut self, idx: PartitionIdx) {
        self.partitions.get_mut(idx).update_low_water(idx, &mut self.store);
    }

    /// The turn's messages for clients of other cores and nodes go on their way.
    pub fn pass_frames(&mut self) {
        let mut frames = self.bundles.take_frames();
        // A guest whose link has no room has none.
        for (sub, frames) in frames.drain().filter(|(_, frames)| !frames.is_empty()) {
            self.pass(sub.core, MeshMessage::Deliver { sub, frames });
        }
        self.bundles.give_back_frames(frames);
    }

    /// A remote client was full, and its frames are on their way.
    pub fn go_on_delivering(&mut self, sub: SubId, key: ChannelKey) {
        let is_guest = sub.core == CoreId::GUESTS;
        if !is_guest || self.cluster.as_mut().is_some_and(|c| c.hold_guest(sub)) {
            self.unblock_remote(sub, key);
        }
    }

    /// Links with other nodes may have room again: their clients get more.
    pub fn resume_guests(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        for (sub, partition) in cluster.resume_guests() {
            if let Some(key) = self.partitions.of_client(sub, partition) {
                self.unblock_remote(sub, key);
            }
        }
    }

    /// A remote client has room again: it may have more.
    fn unblock_remote(&mut self, sub: SubId, key: ChannelKey) {
        if self.bundles.is_blocked(sub) {
            return;
        }
        if let Some(c) = self.partitions.channel_mut(key) {
            c.machine.block(sub, false);
            self.partitions.wake(key);
        }
    }
}
