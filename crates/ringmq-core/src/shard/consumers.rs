//! Consumers and their credit: RDY, REQ and TOUCH of this core's clients go to the partitions, wherever they live, and credit comes
//! back; and the partitions of this core take the same of clients of other cores and nodes.
//!
//! ```text
//! client's core     Subscription ── Lend, Recall, Block, Requeue, Touch ──> channel     the partition's core
//!                                <── Returned, Hungry, Subscribed, PartLost ──
//! ```
//! [`Consumers`] has both ends. Between ends on one core credit goes by a call; between cores, and to clients of other nodes, by a message
//! of the mesh. Answers go by a message even to this core, which hears it before the step ends
//! ([`Outbox::pass`](super::outbox::Outbox::pass)).

use super::attach::Attaching;
use super::bundles::Bundles;
use super::cursors::{CursorChange, Finisher};
use super::moves::Moves;
use super::outbox::LateAnswer;
use super::partitions::{ChannelKey, Finished};
use super::parts::CoreParts;
use super::removal::Removals;
use super::replication::{Cluster, may_be_stored_later};
use super::subscription::{LendAction, Part, Subscription, Subscriptions};
use super::timers::Timer;
use crate::base::{ConnId, CoreId, LogId, MessageId, MessagePlace, Now, PartitionId, SubId, TopicRef};
use crate::codec::peer::message::Relayed;
use crate::seam::message::MeshMessage;
use crate::seam::outcome::{InFlightCommand, InFlightError, PublishError};
use std::time::Duration;

/// The subscriptions of a core, and the parts that they need, borrowed for one call.
pub(super) struct Consumers<'a> {
    pub core: &'a mut CoreParts,
    /// `None`: the node is stand-alone.
    pub cluster: Option<&'a mut Cluster>,
    pub subs: &'a mut Subscriptions,
    pub bundles: &'a mut Bundles,
    pub attaching: &'a mut Attaching,
    pub moves: &'a mut Moves,
    pub removals: &'a Removals,
}

/// The client's core.
impl Consumers<'_> {
    fn sub(&self, conn: ConnId) -> SubId {
        SubId { core: self.core.id, conn }
    }

    pub fn set_ready(&mut self, conn: ConnId, rdy: u32) {
        self.decide(conn, |s, actions| s.set_rdy(rdy, actions));
    }

    /// Lends credit to the partitions of the connection's subscription, which were all asked.
    pub fn open(&mut self, conn: ConnId) {
        let Some(s) = self.subs.get(conn) else { return };
        let full: Vec<_> = s.parts.iter().filter(|_| s.blocked).map(|part| (part.partition, part.core)).collect();
        full.into_iter().for_each(|(partition, core)| self.tell_blocked(conn, partition, core, true));
        self.decide(conn, Subscription::open);
    }

    /// The connection is gone. Returns the topic of its subscription if no channel's end says that the topic may be idle.
    pub fn forget(&mut self, conn: ConnId) -> Option<TopicRef> {
        let s = self.subs.remove(conn)?;
        let sub = self.sub(conn);
        for &Part { partition, core, .. } in &s.parts[..s.asked()] {
            self.core.outbox.pass(core, MeshMessage::Unsubscribe { sub, partition });
        }
        s.leaves_no_channel().then_some(s.topic)
    }

    pub fn on_returned(&mut self, sub: SubId, partition: PartitionId, credit: u32) {
        self.decide(sub.conn, |s, actions| {
            if let Some(part) = s.part_of(partition) {
                s.on_returned(part, credit, actions);
            }
        });
    }

    pub fn on_hungry(&mut self, sub: SubId, partition: PartitionId) {
        self.decide(sub.conn, |s, actions| {
            if let Some(part) = s.part_of(partition) {
                s.on_hungry(part, actions);
            }
        });
    }

    /// Lets a subscription decide, and carries out its actions; credit that a local partition returns at once may lead to further ones.
    fn decide(&mut self, conn: ConnId, decide: impl FnOnce(&mut Subscription, &mut Vec<LendAction>)) {
        let sub = self.sub(conn);
        let mut actions = self.subs.decide(conn, decide);
        let mut next = 0;
        while let Some(&action) = actions.get(next) {
            next += 1;
            let (LendAction::Lend { part, credit } | LendAction::Recall { part, credit }) = action;
            let Some(s) = self.subs.get(conn) else { break };
            let (partition, core) = (s.parts[part].partition, s.parts[part].core);
            match action {
                LendAction::Lend { .. } if core == self.core.id => self.lend(sub, partition, credit),
                LendAction::Lend { .. } => self.core.outbox.pass(core, MeshMessage::Lend { sub, partition, credit }),
                LendAction::Recall { .. } if core == self.core.id => {
                    let back = self.recall(sub, partition, credit);
                    if back > 0
                        && let Some(s) = self.subs.get_mut(conn)
                    {
                        s.on_returned(part, back, &mut actions);
                    }
                }
                LendAction::Recall { .. } => self.core.outbox.pass(core, MeshMessage::Recall { sub, partition, credit }),
            }
        }
        self.subs.give_back(actions);
    }

    pub fn finish(&mut self, now: Now, conn: ConnId, id: MessageId) -> Result<(), InFlightError> {
        let done = match self.subs.place_named(conn, id) {
            Some((core, MessagePlace { partition, log_id })) if core == self.core.id => {
                self.on_finish(now, self.sub(conn), partition, log_id)
            }
            Some((_, MessagePlace { partition, log_id })) => {
                self.bundles.finish(conn, partition, log_id);
                Ok(())
            }
            None => Err(InFlightError::NotInFlight),
        };
        done.map_err(|why| self.why_not_named(conn, id, why))
    }

    pub fn requeue(&mut self, now: Now, conn: ConnId, id: MessageId, delay_ms: u64) -> Result<(), InFlightError> {
        let sub = self.sub(conn);
        let is_taken = match self.subs.place_named(conn, id) {
            Some((core, place)) if core == self.core.id => self.on_requeue(now, sub, place.partition, place.log_id, delay_ms),
            Some((core, MessagePlace { partition, log_id: id })) => {
                self.core.outbox.pass(core, MeshMessage::Requeue { sub, partition, id, delay_ms });
                true
            }
            None => false,
        };
        self.named(conn, id, is_taken)
    }

    pub fn touch(&mut self, now: Now, conn: ConnId, id: MessageId) -> Result<(), InFlightError> {
        let sub = self.sub(conn);
        let is_taken = match self.subs.place_named(conn, id) {
            Some((core, place)) if core == self.core.id => self.on_touch(now, sub, place.partition, place.log_id),
            Some((core, MessagePlace { partition, log_id: id })) => {
                self.core.outbox.pass(core, MeshMessage::Touch { sub, partition, id });
                true
            }
            None => false,
        };
        self.named(conn, id, is_taken)
    }

    fn named(&mut self, conn: ConnId, id: MessageId, is_taken: bool) -> Result<(), InFlightError> {
        if is_taken { Ok(()) } else { Err(self.why_not_named(conn, id, InFlightError::NotInFlight)) }
    }

    /// The more exact reason why a message is not in flight for the connection, if known; else `why`.
    pub fn why_not_named(&mut self, conn: ConnId, id: MessageId, why: InFlightError) -> InFlightError {
        match self.subs.place_named(conn, id) {
            Some((_, place)) => self.core.partitions.why_not_in_flight(self.sub(conn), place, why),
            None => why,
        }
    }

    /// A command of the client for a message failed after it was accepted.
    pub fn on_in_flight_failed(&mut self, sub: SubId, place: MessagePlace, command: InFlightCommand, why: InFlightError) {
        if let Some(s) = self.subs.get(sub.conn) {
            self.core.outbox.tell(sub.conn, LateAnswer::InFlightFailed(s.ids.id(place), command, why));
        }
    }

    /// The client's output became full, or has room again.
    pub fn set_blocked(&mut self, conn: ConnId, blocked: bool) {
        let Some(s) = self.subs.get_mut(conn) else { return self.set_native_blocked(conn, blocked) };
        if std::mem::replace(&mut s.blocked, blocked) == blocked {
            return;
        }
        let asked = s.asked();
        for i in 0..asked {
            let Some(&Part { partition, core, .. }) = self.subs.get(conn).map(|s| &s.parts[i]) else { return };
            self.tell_blocked(conn, partition, core, blocked);
        }
    }

    /// Tells a partition whether the client's output is full.
    fn tell_blocked(&mut self, conn: ConnId, partition: PartitionId, core: CoreId, blocked: bool) {
        let sub = self.sub(conn);
        if core == self.core.id {
            self.block(sub, partition, blocked);
        } else {
            self.core.outbox.pass(core, MeshMessage::Block { sub, partition, blocked });
        }
    }

    /// A native client's output became full, or has room again: then all its subscriptions that have bytes left may go on.
    fn set_native_blocked(&mut self, conn: ConnId, blocked: bool) {
        for key in self.core.native.set_blocked(conn, blocked) {
            self.unblock(SubId { core: self.core.id, conn }, key);
        }
    }

    /// A native client says how many messages and bytes a subscription may have. False: there is no such subscription.
    pub fn native_credit(&mut self, conn: ConnId, subscription: u32, messages: u32, bytes: u64) -> bool {
        let sub = self.sub(conn);
        let Some(s) = self.core.native.sub_mut(conn, subscription) else { return false };
        let key = s.key;
        let (before, gets_bytes) = s.grant(messages, bytes);
        let Some(c) = self.core.partitions.channel_mut(key) else { return false };
        c.change_window(sub, before, messages);
        if gets_bytes {
            c.machine.block(sub, false);
        }
        self.core.partitions.wake(key);
        true
    }

    /// Passes on the FINs of this turn for partitions of other cores and nodes.
    #[inline]
    pub fn flush_fins(&mut self) {
        self.bundles.flush_fins(self.core, self.cluster.as_deref_mut(), self.subs);
    }

    // ---- answers of partitions

    /// A partition has taken the client, and says whether the channel is its topic's first; or it refuses the client.
    pub fn on_subscribed(&mut self, sub: SubId, partition: PartitionId, result: Result<bool, PublishError>) {
        let Some(s) = self.subs.get_mut(sub.conn) else { return };
        if let Err(error) = result
            && s.follows_leaders()
            && (s.slot.is_none() || may_be_stored_later(error))
        {
            return self.part_refused(sub, partition, error);
        }
        let opens = s.on_answer(partition, result);
        self.answer_sub(sub.conn);
        if opens {
            self.subs.expect_opening(sub.conn);
        }
    }

    /// SUB is answered when every partition has, and there is one.
    fn answer_sub(&mut self, conn: ConnId) {
        if let Some((slot, result)) = self.subs.get_mut(conn).and_then(Subscription::take_answer) {
            self.core.outbox.tell(conn, LateAnswer::Answer(slot, result));
        }
    }

    /// The leader of a partition that comes to the subscription does not take the client: it is asked again where that may help.
    fn part_refused(&mut self, sub: SubId, partition: PartitionId, error: PublishError) {
        let Some(s) = self.subs.get_mut(sub.conn) else { return };
        if !may_be_stored_later(error) && !matches!(error, PublishError::NotWritable(_) | PublishError::Unknown) {
            return self.core.outbox.tell(sub.conn, LateAnswer::SubscriptionLost(error));
        }
        if !may_be_stored_later(error) {
            s.log_refusal(partition, error);
        }
        self.on_part_lost(sub, partition);
    }

    /// A partition has forgotten the client: the subscription goes on without, and asks for it again.
    pub fn on_part_lost(&mut self, sub: SubId, partition: PartitionId) {
        if self.subs.contains(sub.conn) {
            self.decide(sub.conn, |s, actions| s.leave(partition, actions));
            self.answer_sub(sub.conn);
            self.expect_parts(sub.conn);
        }
    }

    /// The connection's channel was deleted in one of its partitions: it ends, as nsqd's do.
    pub fn on_channel_deleted(&mut self, sub: SubId) {
        if let Some(s) = self.subs.get_mut(sub.conn) {
            s.channel_deleted = true;
            self.core.outbox.tell(sub.conn, LateAnswer::ChannelDeleted);
        }
    }

    /// The connection lacks a partition: it asks for it when it may.
    pub fn expect_parts(&mut self, conn: ConnId) {
        let at = self.subs.lacks(conn);
        self.core.timers.at_most(Timer::Parts, Some(at));
    }

    /// Ends a subscription that has had no partition for so long.
    pub fn end_idle(&mut self, now: Now, conn: ConnId, limit: Duration) {
        let Some(s) = self.subs.get_mut(conn) else { return };
        if s.is_idle_for(now.ticks, limit) {
            let heard = match s.slot.take() {
                Some(slot) => LateAnswer::Answer(slot, Err(PublishError::NotLeader)),
                None => LateAnswer::SubscriptionLost(PublishError::NotLeader),
            };
            self.core.outbox.tell(conn, heard);
        } else if s.lacks_any() {
            self.expect_parts(conn);
        }
    }
}

/// The partition's core.
impl Consumers<'_> {
    pub fn lend(&mut self, sub: SubId, partition: PartitionId, credit: u32) {
        let Some(key) = self.core.partitions.of_client(sub, partition) else {
            if !self.relay(sub, partition, Relayed::Lend(credit))
                && let Some(parked) = self.attaching.parked.get_mut(sub, partition)
            {
                parked.credit += credit;
            }
            return;
        };
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        c.machine.lend(sub, credit);
        self.core.partitions.wake(key);
    }

    /// Credit that returns at once; the rest follows as messages are finished.
    pub fn recall(&mut self, sub: SubId, partition: PartitionId, credit: u32) -> u32 {
        if let Some(key) = self.core.partitions.of_client(sub, partition) {
            self.core.partitions.channel_mut(key).map_or(credit, |c| c.recall(sub, credit))
        } else if self.relay(sub, partition, Relayed::Recall(credit)) {
            0
        } else if let Some(parked) = self.attaching.parked.get_mut(sub, partition) {
            parked.credit = parked.credit.saturating_sub(credit);
            credit
        } else {
            // The client's core is told, or was told, that the partition has forgotten the client.
            0
        }
    }

    pub fn block(&mut self, sub: SubId, partition: PartitionId, blocked: bool) {
        let Some(key) = self.core.partitions.of_client(sub, partition) else {
            if !self.relay(sub, partition, Relayed::Block(blocked))
                && let Some(parked) = self.attaching.parked.get_mut(sub, partition)
            {
                parked.blocked = blocked;
            }
            return;
        };
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        c.machine.block(sub, blocked);
        if !blocked {
            self.core.partitions.wake(key);
        }
    }

    /// Passes a message of a client's core to the leader at another node. False: the client is not relayed.
    fn relay(&mut self, sub: SubId, partition: PartitionId, relayed: Relayed) -> bool {
        self.cluster.as_mut().is_some_and(|c| c.relays.tell(&mut c.peers, sub, partition, relayed))
    }

    pub fn on_finish(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId) -> Result<(), InFlightError> {
        let Some(key) = self.core.partitions.of_client(sub, partition) else {
            let is_relayed = self.cluster.as_mut().is_some_and(|c| c.relays.finish(sub, partition, id));
            return if is_relayed { Ok(()) } else { Err(InFlightError::NotInFlight) };
        };
        match self.core.partitions.finish(now.ticks, key, sub, id)? {
            Finished::Quietly => {}
            Finished::Frees => {
                self.core.channels().mark_dirty(now, key);
                self.freed(key, sub, 1);
            }
            Finished::Waits => {
                self.core.channels().sync(key, CursorChange::Finish { sub, by: Finisher::Nsq(id) });
            }
        }
        Ok(())
    }

    fn on_requeue(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId, delay_ms: u64) -> bool {
        let Some(key) = self.core.partitions.of_client(sub, partition) else {
            return self.relay(sub, partition, Relayed::Requeue { id, delay_ms });
        };
        let Some(c) = self.core.partitions.served_mut(now.ticks, key) else { return false };
        if c.machine.is_ordered() && delay_ms > 0 {
            // It would keep all behind it waiting: it comes again by its timeout, as in the replicated NSQ.
            return c.machine.has_in_flight(sub, id);
        }
        if c.machine.requeue(now.ticks, sub, id, Duration::from_millis(delay_ms)).is_err() {
            return false;
        }
        self.requeued(key, sub, 1);
        true
    }

    /// The client has given back messages, some of which may wait for their time.
    pub fn requeued(&mut self, key: ChannelKey, sub: SubId, num: u32) {
        let deadline = self.core.partitions.channel_mut(key).and_then(|c| c.machine.deadline());
        self.core.timers.at_most(Timer::Channel(key), deadline);
        self.freed(key, sub, num);
    }

    fn on_touch(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId) -> bool {
        let Some(key) = self.core.partitions.of_client(sub, partition) else {
            return self.relay(sub, partition, Relayed::Touch(id));
        };
        self.core.partitions.served_mut(now.ticks, key).is_some_and(|c| c.machine.touch(now.ticks, sub, id).is_ok())
    }

    /// REQ of another core, which has not been answered.
    pub fn on_requeue_passed(&mut self, now: Now, sub: SubId, place: MessagePlace, delay_ms: u64) {
        if !self.on_requeue(now, sub, place.partition, place.log_id, delay_ms) {
            self.refuse_in_flight(sub, place, InFlightCommand::Requeue, InFlightError::NotInFlight);
        }
    }

    /// TOUCH of another core, which has not been answered.
    pub fn on_touch_passed(&mut self, now: Now, sub: SubId, place: MessagePlace) {
        if !self.on_touch(now, sub, place.partition, place.log_id) {
            self.refuse_in_flight(sub, place, InFlightCommand::Touch, InFlightError::NotInFlight);
        }
    }

    /// The client named a message that is not in flight for it, after it was not answered at once.
    pub fn refuse_in_flight(&mut self, sub: SubId, place: MessagePlace, command: InFlightCommand, why: InFlightError) {
        let why = self.core.partitions.why_not_in_flight(sub, place, why);
        self.core.outbox.pass(sub.core, MeshMessage::InFlightFailed { sub, place, command, why });
    }

    /// Messages in flight are done: their credit is the client's again, or goes back to its core.
    pub fn freed(&mut self, key: ChannelKey, sub: SubId, num: u32) {
        let back = self.core.partitions.free(key, sub, num);
        if back > 0 {
            self.give_back(key, sub, back);
        }
    }

    fn give_back(&mut self, key: ChannelKey, sub: SubId, credit: u32) {
        let partition = self.core.partitions.get(key.partition_idx()).dir.partition;
        if sub.core == self.core.id {
            self.on_returned(sub, partition, credit);
        } else {
            self.core.outbox.pass(sub.core, MeshMessage::Returned { sub, partition, credit });
        }
    }

    /// Returns recalled credit that a channel's turn did not use.
    pub fn settle_owed(&mut self, key: ChannelKey) {
        let back = self.core.partitions.channel_mut(key).map(|c| c.settle_owed()).unwrap_or_default();
        back.into_iter().for_each(|(sub, credit)| self.give_back(key, sub, credit));
    }

    /// The client could take more than its partition was lent.
    pub fn tell_hungry(&mut self, sub: SubId, partition: PartitionId) {
        if sub.core == self.core.id {
            self.on_hungry(sub, partition);
        } else {
            self.core.outbox.pass(sub.core, MeshMessage::Hungry { sub, partition });
        }
    }

    /// Timeouts and due deferred messages of one channel.
    pub fn tick_channel(&mut self, now: Now, key: ChannelKey) {
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        let mut freed = vec![];
        c.machine.tick(now.ticks, &mut |sub, num| freed.push((sub, num)));
        let deadline = c.machine.deadline();
        freed.into_iter().for_each(|(sub, num)| self.freed(key, sub, num));
        self.core.timers.at_most(Timer::Channel(key), deadline);
        self.core.partitions.wake(key);
    }

    // ---- frames for clients of other cores and nodes

    /// The turn's messages for clients of other cores and nodes go on their way.
    pub fn pass_frames(&mut self) {
        let Some(mut frames) = self.bundles.take_frames() else { return };
        // A guest whose link has no room has none.
        for (sub, frames) in frames.drain().filter(|(_, frames)| !frames.is_empty()) {
            let message = MeshMessage::Deliver { sub, frames };
            match &mut self.cluster {
                // At once: whether the link has room for more is asked next.
                Some(cluster) if sub.core == CoreId::GUESTS => cluster.tell_guest(message),
                _ => self.core.outbox.pass(sub.core, message),
            }
        }
        self.bundles.give_back_frames(frames);
    }

    /// A remote client was full, and its frames are on their way.
    pub fn go_on_delivering(&mut self, sub: SubId, key: ChannelKey) {
        let is_guest = sub.core == CoreId::GUESTS;
        if !is_guest || self.cluster.as_mut().is_some_and(|c| c.guests.hold(&c.peers, sub)) {
            self.unblock_remote(sub, key);
        }
    }

    /// Links with other nodes may have room again: their clients get more.
    pub fn resume_guests(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        for (sub, partition) in cluster.guests.resume(&cluster.peers) {
            if let Some(key) = self.core.partitions.of_client(sub, partition) {
                self.unblock_remote(sub, key);
            }
        }
    }

    /// A remote client has room again: it may have more.
    fn unblock_remote(&mut self, sub: SubId, key: ChannelKey) {
        if !self.bundles.is_blocked(sub) {
            self.unblock(sub, key);
        }
    }

    fn unblock(&mut self, sub: SubId, key: ChannelKey) {
        if let Some(c) = self.core.partitions.channel_mut(key) {
            c.machine.block(sub, false);
            self.core.partitions.wake(key);
        }
    }
}
