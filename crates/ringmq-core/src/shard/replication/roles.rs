//! A replica's role as the rest of the node sees it: who may use the partition, who has to leave it, and what the log says of it.

use super::{Engine, Seat};
use crate::base::{ConnId, Epoch, Now, PartitionId, TopicRef};
use crate::channel::Channel;
use crate::format::snapshot::Doubt;
use crate::log::PartitionIdx;
use crate::log::recovery::channels::clamp;
use crate::replica::Alarm;
use crate::replica::states::State;
use crate::seam::cluster::Ask;
use crate::seam::event::Effect;
use crate::seam::message::{MeshMessage, Share};
use crate::shard::partitions::ChannelKey;
use crate::shard::subscription::Subscription;
use crate::shard::timers::Timer;

impl Seat {
    fn share(&self) -> Share {
        let state = self.member.state();
        let is_enough = self.member.membership().is_some_and(|m| m.isr.len() >= m.min_isr);
        let writable = matches!(state, State::Open | State::Quiescing) && is_enough;
        let serves = matches!(state, State::Open | State::Quiescing | State::Closed) && !self.member.waits_for_former();
        Share { serves, writable }
    }
}

/// Name of a state for operators.
pub(super) fn role_of(state: State) -> &'static str {
    match state {
        State::Idle => "none",
        State::Apart | State::Promising | State::Truncating => "follower, not in step",
        State::Aligned => "follower",
        State::Claiming | State::Asking | State::Trimming | State::Fetching | State::Settling => "leader, opening",
        State::Open => "leader",
        State::Quiescing | State::Resigned => "leader, handing over",
        State::Closed => "leader, writes disabled",
        State::Failed => "failed",
    }
}

impl Engine {
    /// Tells a changed state: to the other cores the share that clients can use, to the operator the rest.
    pub(super) fn note_role(&mut self, now: Now, idx: PartitionIdx) {
        let p = self.partitions.get_mut(idx);
        let (topic, partition) = (p.topic.clone(), p.dir.partition);
        let (Some(seat), Some(cluster)) = (p.seat_mut(), &self.cluster) else { return };
        let (state, before) = (seat.member.state(), seat.seen.state);
        if before != Some(state) {
            seat.seen.state = Some(state);
            if matches!(state, State::Open | State::Aligned | State::Idle) && seat.alarm.take().is_some() {
                tracing::info!(topic = %topic.name, %partition, "the partition's alarm is over");
            }
            let (role, was) = (role_of(state), before.map_or("none", role_of));
            if role != was {
                let (epoch, committed) = (seat.member.epoch().map(Epoch::number), seat.member.committed().offset);
                tracing::info!(topic = %topic.name, %partition, role, was, epoch, committed, "the replica's role");
            }
        }
        if let Some(m) = seat.member.membership().filter(|m| m.version > seat.seen.version) {
            let (leader, isr) = (m.leader, &m.isr);
            if leader != seat.seen.leader || *isr != seat.seen.isr {
                let leader_name = leader.map_or("nobody".into(), |l| cluster.name_of(l));
                let (isr_names, epoch, min_isr) = (cluster.names_of(isr), m.epoch.number(), m.min_isr);
                let (topic, leader, isr) = (&topic.name, leader_name, isr_names);
                tracing::info!(%topic, %partition, leader, isr, min_isr, epoch, "the partition's replicas");
            }
            (seat.seen.version, seat.seen.leader, seat.seen.isr) = (m.version, leader, isr.clone());
            // A single replica has nobody to wait for.
            let given_up = if m.replicas.len() == 1 { i64::MAX } else { seat.given_up };
            self.store.give_up_lost(idx, given_up);
        }
        let share = seat.share();
        if std::mem::replace(&mut seat.told, share) == share {
            return;
        }
        let message = || MeshMessage::Share { topic: topic.clone(), partition, share };
        self.tell_others(message);
        self.pass(crate::base::CoreId::HTTP, message());
        self.on_share(now, &topic, partition, share);
    }

    /// The coordinator hears whether the replica lost something that was complete once. A torn tail alone is no reason to elect others:
    /// every crash under a write leaves one.
    pub(in crate::shard) fn note_doubt(&mut self, idx: PartitionIdx) {
        let is_suspect = self.store.log_view(idx).doubt() == Doubt::Lost;
        let Some(seat) = self.partitions.get_mut(idx).seat_mut() else { return };
        if std::mem::replace(&mut seat.is_told_suspect, is_suspect) != is_suspect {
            let route = seat.member.route();
            self.outbox.push(Effect::Ask(Ask::Doubt { route, is_suspect }));
        }
    }

    /// Damage was written again as another replica has it, or was not.
    pub(in crate::shard) fn member_mended(&mut self, now: Now, idx: PartitionIdx, is_whole: bool) {
        self.tell_member(now, idx, crate::replica::Event::Mended { is_whole });
        self.note_damage(idx);
    }

    /// Notes damage, or its end, with which the alarm of damage ends.
    pub(super) fn note_damage(&mut self, idx: PartitionIdx) {
        let is_damaged = self.store.log_view(idx).awaited().is_some();
        self.end_alarm(idx, |alarm| matches!(alarm, Alarm::Damaged { .. }) && !is_damaged);
    }

    pub(super) fn end_alarm(&mut self, idx: PartitionIdx, is_over: impl FnOnce(&Alarm) -> bool) {
        let p = self.partitions.get_mut(idx);
        if let Some(seat) = p.seat_mut()
            && seat.alarm.take_if(|alarm| is_over(alarm)).is_some()
        {
            tracing::info!(topic = %p.topic.name, partition = %p.dir.partition, "the partition's alarm is over");
        }
    }

    // ---- on every core

    /// Takes in a share that a partition's core told. A subscription adds the partitions that this node leads now.
    pub(in crate::shard) fn on_share(&mut self, now: Now, topic: &TopicRef, partition: PartitionId, share: Share) {
        let serves_now = self.topics.set_share(topic, partition, share);
        self.leaders_changed(topic);
        if !serves_now {
            return;
        }
        let wants = |s: &Subscription| s.topic.id == topic.id && s.lacks(partition);
        let mut conns: Vec<ConnId> = self.subs.iter().filter(|(_, s)| wants(s)).map(|(conn, _)| conn).collect();
        conns.sort_unstable();
        conns.into_iter().for_each(|conn| self.join_part(now, conn, partition));
    }

    // ---- on the partition's core

    /// Another node leads from now on, or nobody: no client of this one has a say in the channels any more, and what was in flight
    /// is forgotten.
    pub(super) fn stop_leading(&mut self, now: Now, idx: PartitionIdx) {
        // FINs until now belong to the channel's state.
        self.channels().journal_fins(now, true);
        let partition = self.partitions.get(idx).dir.partition;
        let keys: Vec<u32> = self.partitions.get(idx).channels.iter().map(|(i, _)| i as u32).collect();
        for channel in keys {
            self.lose_clients(ChannelKey { partition: idx.0, channel }, partition);
        }
        let p = self.partitions.get_mut(idx);
        p.low_water_stale = true;
        if let Some(seat) = p.seat_mut() {
            seat.marks.clear();
        }
        self.count_uncommitted(idx);
    }

    /// Takes the channel's clients off. A durable channel stands where its cursor does; an ephemeral one goes with them.
    pub(super) fn lose_clients(&mut self, key: ChannelKey, partition: PartitionId) {
        let options = self.channels().options();
        let Some(c) = self.partitions.channel_mut(key) else { return };
        let subs = c.take_subs();
        c.has_moved = false;
        let is_ephemeral = c.name.is_ephemeral();
        let was_used = !subs.is_empty() || c.machine.is_syncing();
        if c.machine.is_syncing() && !is_ephemeral {
            // The waiting request is answered in its turn.
            c.machine.settle(false);
            let image = c.machine.image();
            self.store.log_cursor(key.partition_idx(), &image);
        }
        if was_used && !is_ephemeral {
            c.machine = Channel::new(options, partition, c.machine.image());
            self.partitions.count_open(key);
        }
        self.timers.remove(Timer::Channel(key));
        self.consumers().end_subscriptions(key, subs, false);
        if is_ephemeral {
            self.channels().forget(key);
        }
    }

    /// The replica's log is about to end at `to`: no channel stands beyond it.
    pub(super) fn clamp_channels(&mut self, now: Now, idx: PartitionIdx, to: crate::base::Position) {
        let options = self.channels().options();
        let partition = self.partitions.get(idx).dir.partition;
        let beyond: Vec<u32> = (self.partitions.get(idx).channels.iter())
            .filter(|(_, c)| clamp(&mut c.machine.image(), to) || !c.subs.is_empty() || c.machine.is_syncing())
            .map(|(i, _)| i as u32)
            .collect();
        if beyond.is_empty() {
            return;
        }
        self.channels().journal_fins(now, true);
        for channel in beyond {
            let key = ChannelKey { partition: idx.0, channel };
            self.lose_clients(key, partition);
            let Some(c) = self.partitions.channel_mut(key) else { continue };
            let mut image = c.machine.image();
            if clamp(&mut image, to) {
                c.machine = Channel::new(options, partition, image.clone());
                self.store.log_cursor(idx, &image);
                self.store.lower_low_water(idx, image.confirmed);
            }
        }
        self.partitions.get_mut(idx).low_water_stale = true;
        self.channels().update_low_water(idx);
    }
}
