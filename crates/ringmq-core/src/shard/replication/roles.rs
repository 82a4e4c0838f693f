//! A replica's role for the rest of the node: the clients that may use the partition, those that have to leave it, and the log lines
//! about it.

use super::peers::Peers;
use super::{CoreParts, Seat};
use crate::base::{CoreId, Epoch, Now, Position};
use crate::channel::Channel;
use crate::format::snapshot::Doubt;
use crate::log::PartitionIdx;
use crate::log::recovery::channels::clamp;
use crate::replica::Alarm;
use crate::replica::states::State;
use crate::seam::cluster::Ask;
use crate::seam::message::{MeshMessage, Share};
use crate::shard::partitions::ChannelKey;
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

/// Tells a changed state: to all cores the share that clients can use, to the operator the rest.
pub(super) fn note_role(core: &mut CoreParts, peers: &Peers, idx: PartitionIdx) {
    let p = core.partitions.get_mut(idx);
    let (topic, partition) = (p.topic.clone(), p.dir.partition);
    let Some(seat) = p.seat_mut() else { return };
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
    // Before its registration a node knows no other one by name.
    let knows_names = !peers.nodes().is_empty();
    let is_due = seat.seen.waits_for_names && knows_names;
    if let Some(m) = seat.member.membership().filter(|m| m.version > seat.seen.version || is_due) {
        let (leader, isr) = (m.leader, &m.isr);
        seat.seen.waits_for_names = !knows_names;
        if knows_names && (leader != seat.seen.leader || *isr != seat.seen.isr) {
            (seat.seen.leader, seat.seen.isr) = (leader, isr.clone());
            let leader_name = leader.map_or("nobody".into(), |l| peers.name_of(l));
            let (isr_names, epoch, min_isr) = (peers.names_of(isr), m.epoch.number(), m.min_isr);
            let (topic, leader, isr) = (&topic.name, leader_name, isr_names);
            tracing::info!(%topic, %partition, leader, isr, min_isr, epoch, "the partition's replicas");
        }
        seat.seen.version = m.version;
        // A single replica has no other replica to wait for.
        let given_up = if m.replicas.len() == 1 { i64::MAX } else { seat.given_up };
        core.store.give_up_lost(idx, given_up);
    }
    let share = seat.share();
    if std::mem::replace(&mut seat.told, share) == share {
        return;
    }
    let message = || MeshMessage::Share { topic: topic.clone(), partition, share };
    core.outbox.pass_to_others(message);
    core.outbox.pass(CoreId::HTTP, message());
    core.outbox.pass(core.id, message());
}

/// Stops leading, since another node leads or none: clients of this node leave the channels, and messages in flight are forgotten.
pub(super) fn stop_leading(core: &mut CoreParts, now: Now, idx: PartitionIdx) {
    // FINs until now belong to the channel's state.
    core.channels().journal_fins(now, true);
    core.partitions.channel_keys(idx).into_iter().for_each(|key| lose_clients(core, key));
    let p = core.partitions.get_mut(idx);
    p.low_water_stale = true;
    if let Some(seat) = p.seat_mut() {
        seat.marks.clear();
    }
}

/// The replica's log is about to end at `to`: no channel stands beyond it.
pub(super) fn clamp_channels(core: &mut CoreParts, now: Now, idx: PartitionIdx, to: Position) {
    let p = core.partitions.get(idx);
    let partition = p.dir.partition;
    let beyond: Vec<u32> = (p.channels.iter())
        .filter(|(_, c)| clamp(&mut c.machine.image(), to) || !c.subs.is_empty() || c.machine.is_syncing())
        .map(|(i, _)| i as u32)
        .collect();
    if beyond.is_empty() {
        return;
    }
    core.channels().journal_fins(now, true);
    let options = core.channels().options();
    for channel in beyond {
        let key = ChannelKey { partition: idx.0, channel };
        lose_clients(core, key);
        let Some(c) = core.partitions.channel_mut(key) else { continue };
        let mut image = c.machine.image();
        if clamp(&mut image, to) {
            c.machine = Channel::new(options, partition, image.clone());
            core.store.log_cursor(idx, &image);
            core.store.lower_low_water(idx, image.confirmed);
        }
    }
    core.partitions.get_mut(idx).low_water_stale = true;
    core.channels().update_low_water(idx);
}

/// Takes the channel's clients off. A durable channel stands where its cursor does; an ephemeral one goes with them.
fn lose_clients(core: &mut CoreParts, key: ChannelKey) {
    let options = core.channels().options();
    let idx = key.partition_idx();
    let partition = core.partitions.get(idx).dir.partition;
    let Some(c) = core.partitions.channel_mut(key) else { return };
    let subs = c.take_subs();
    c.has_moved = false;
    let is_ephemeral = c.name.is_ephemeral();
    let was_used = !subs.is_empty() || c.machine.is_syncing();
    if c.machine.is_syncing() && !is_ephemeral {
        // The waiting request is answered in its turn.
        c.machine.settle(false);
        core.store.log_cursor(idx, &c.machine.image());
    }
    if was_used && !is_ephemeral {
        c.machine = Channel::new(options, partition, c.machine.image());
        core.partitions.count_open(key);
    }
    core.timers.remove(Timer::Channel(key));
    core.end_subscriptions(key, subs, false);
    if is_ephemeral {
        core.channels().forget(key);
    }
}

/// The coordinator hears whether the replica lost something that was complete once. A torn tail alone is no reason to elect others:
/// every crash under a write leaves one.
pub fn note_doubt(core: &mut CoreParts, idx: PartitionIdx) {
    let is_suspect = core.store.log_view(idx).doubt() == Doubt::Lost;
    let Some(seat) = core.partitions.get_mut(idx).seat_mut() else { return };
    if std::mem::replace(&mut seat.is_told_suspect, is_suspect) != is_suspect {
        core.outbox.ask(Ask::Doubt { route: seat.member.route(), is_suspect });
    }
}

/// Notes damage, or its end, with which the alarm of damage ends.
pub fn note_damage(core: &mut CoreParts, idx: PartitionIdx) {
    let is_damaged = core.store.log_view(idx).awaited().is_some();
    core.partitions.get_mut(idx).end_alarm(|alarm| matches!(alarm, Alarm::Damaged { .. }) && !is_damaged);
}
