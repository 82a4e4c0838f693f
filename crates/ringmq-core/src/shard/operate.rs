//! Operators' changes of a channel in one partition: creation, pause, deletion, order. (Emptying sets the offset to the end.) And of the
//! topic in the partition: emptying ([`topic_empty`](super::topic_empty)).
//!
//! ```text
//! ChangeChannel, SetOrder ─> once no other change of the channel waits, and no copy before it is deleted: made, journaled
//! ─> final ─> answered; else reverted
//! ```
//! All are changes of the cursor like others ([`cursors`](super::cursors)). *Pause* stops deliveries at once and does not touch messages
//! in flight. *Delete* takes the clients off at once. Until it is final the channel keeps its position, retention keeps the messages
//! that the channel would need again, no snapshot and no list for a follower has the channel, and a SUB of the name waits. After the
//! last channel's deletion the partition collects for the next first one; that record stands before the deletion's, so after no crash a
//! new channel gets messages that were owed to the old one.
//!
//! *Order.* `SUB_ORDERED` makes a channel ordered, too. Messages in flight, waiting or deferred are dropped and redelivered. A channel
//! with clients does not become ordinary: clients of `SUB_ORDERED` would lose the order.
//!
//! A channel after a deleted one of the same name begins with a higher generation: so a follower that missed the deletion and the
//! creation accepts it.

use super::attach::Attaching;
use super::copies::CopyOutcome;
use super::cursors::CursorRequest;
use super::offsets::Offsets;
use super::partitions::{ChannelKey, Partitions};
use super::parts::CoreParts;
use super::removal::{Asker, Removals};
use super::replication::loss::Acceptances;
use super::search::Searches;
use super::topic_empty::{Emptied, Emptying};
use crate::base::{ChannelName, Now, PartitionDir, PartitionId, Position, TopicRef};
use crate::log::{RecordTicket, Refusal};
use crate::seam::message::{ChangeChannel, ChannelChange, MeshMessage, SetOrder};
use crate::seam::outcome::{PublishError, SetOffsetError};

/// Unfinished requests of operators. The state of each kind is private to its file.
#[derive(Default)]
pub(super) struct Operators {
    pub changes: Changes,
    pub offsets: Offsets,
    pub emptying: Emptying,
    pub losses: Acceptances,
}

/// Changes of channels, in the order in which they came.
#[derive(Default)]
pub(super) struct Changes {
    waiting: Vec<Operator>,
    creators: Vec<Creator>,
    orders: Vec<Orderer>,
}

/// Change that waits until another change of the channel is final.
struct Operator {
    set: ChangeChannel,
    asker: Asker,
}

/// Creation whose channel is there and not final yet.
struct Creator {
    request: CursorRequest,
    asker: Asker,
    /// Whether the channel is its topic's first.
    is_first: bool,
}

/// Change of the order that waits until another change of the channel's cursor is final.
struct Orderer {
    key: ChannelKey,
    set: SetOrder,
    asker: Asker,
}

/// Collect start from before the deletion of a channel that is the partition's last one, and the one from after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collects {
    pub was: Position,
    pub to: Position,
}

impl Operators {
    /// Whether an operator waits for a change of the channel. No copy of its messages begins meanwhile.
    pub fn is_change_waiting(&self, partitions: &Partitions, key: ChannelKey) -> bool {
        let p = partitions.get(key.partition_idx());
        let name = p.channels.get(key.channel as usize).map(|c| &c.name);
        self.offsets.is_waiting(key) || self.is_waiting(&p.dir, name)
    }

    /// Whether a change of this channel waits, or a pause of the topic, or that it is emptied.
    fn is_waiting(&self, dir: &PartitionDir, channel: Option<&ChannelName>) -> bool {
        let is_it =
            |o: &Operator| (o.set.topic.id, o.set.partition) == (dir.topic_id, dir.partition) && Some(&o.set.channel) == channel;
        self.changes.waiting.iter().any(is_it) || self.emptying.is_waiting(dir)
    }
}

/// Requests of a core's operators, with the parts that they read and change, borrowed for one call.
pub(super) struct Operating<'a> {
    pub core: &'a mut CoreParts,
    pub operators: &'a mut Operators,
    pub attaching: &'a mut Attaching,
    pub removals: &'a Removals,
    pub searches: &'a mut Searches,
}

/// No answer yet: it was given, or the change waits.
type Begun = Result<(), SetOffsetError>;

impl Operating<'_> {
    pub fn change_channel(&mut self, now: Now, set: ChangeChannel, asker: Asker) {
        let begun = match set.change {
            ChannelChange::Create { first, is_alone } => self.operator_creates(now, set, first, is_alone, asker),
            ChannelChange::Delete | ChannelChange::Pause | ChannelChange::Unpause => self.operator_changes(now, set, asker),
        };
        if let Err(error) = begun {
            self.tell_changed(asker, Err(error));
        }
    }

    /// Continues the requests that waited for this change of a cursor, which is final or reverted.
    pub fn go_on(&mut self, now: Now, key: ChannelKey) {
        self.go_on_setting(now, key);
        self.go_on_ordering(now, key);
        self.go_on_operating(now);
        self.go_on_emptying();
    }

    /// Continues operators that wait for something to be settled.
    pub fn go_on_operating(&mut self, now: Now) {
        for Operator { set, asker } in std::mem::take(&mut self.operators.changes.waiting) {
            self.change_channel(now, set, asker);
        }
    }

    fn operator_changes(&mut self, now: Now, set: ChangeChannel, asker: Asker) -> Begun {
        let key = self.channel_to_set(now, &set.topic, set.partition, &set.channel)?;
        let is_spreading = set.partition == PartitionId(0) && self.attaching.is_spreading(set.topic.id, Some(&set.channel));
        let c = self.core.partitions.channel_mut(key).ok_or(SetOffsetError::NoChannel)?;
        let is_copying = set.change == ChannelChange::Delete && self.core.copies.is_under_way(key);
        if is_copying || c.machine.is_syncing() || self.core.syncs.changes(key) || is_spreading {
            self.operators.changes.waiting.push(Operator { set, asker });
            return Ok(());
        }
        let ChangeChannel { topic, partition, channel, change } = set;
        if change == ChannelChange::Delete {
            match channel.is_topic_pause() {
                true => tracing::info!(topic = %topic.name, %partition, "unpausing the topic"),
                false => tracing::info!(topic = %topic.name, %partition, %channel, "deleting the channel"),
            }
            let subs = self.core.channels().delete(key, asker);
            self.core.end_subscriptions(key, subs, true);
            return Ok(());
        }
        let paused = change == ChannelChange::Pause;
        tracing::info!(topic = %topic.name, %partition, %channel, paused, "pausing or unpausing the channel");
        self.core.channels().set_paused(key, paused, asker);
        Ok(())
    }

    // ---- order

    pub fn set_order(&mut self, now: Now, set: SetOrder, asker: Asker) {
        let key = match self.may_set_order(now, &set) {
            Ok(key) => key,
            Err(error) => {
                let (core, ticket) = asker;
                return self.core.outbox.pass(core, MeshMessage::OrderSet { ticket, result: Err(error) });
            }
        };
        let Some(c) = self.core.partitions.channel_mut(key) else { return };
        if c.machine.is_syncing() {
            return self.operators.changes.orders.push(Orderer { key, set, asker });
        }
        let SetOrder { topic, partition, channel, ordered } = set;
        tracing::info!(topic = %topic.name, %partition, %channel, ordered, "setting the channel's order");
        self.core.channels().set_order(key, ordered, asker);
    }

    fn may_set_order(&mut self, now: Now, set: &SetOrder) -> Result<ChannelKey, SetOffsetError> {
        let key = self.channel_to_set(now, &set.topic, set.partition, &set.channel)?;
        let c = self.core.partitions.channel_mut(key).ok_or(SetOffsetError::NoChannel)?;
        let is_change = c.machine.is_ordered() != set.ordered;
        if is_change && !set.ordered && !c.subs.is_empty() { Err(SetOffsetError::HasClients) } else { Ok(key) }
    }

    /// A change of this channel's cursor was settled.
    pub fn go_on_ordering(&mut self, now: Now, key: ChannelKey) {
        let orders = &mut self.operators.changes.orders;
        for Orderer { set, asker, .. } in orders.extract_if(.., |o| o.key == key).collect::<Vec<_>>() {
            self.set_order(now, set, asker);
        }
    }

    // ---- emptying

    /// Goes on with topics that are to be emptied: a change of a channel was settled.
    pub fn go_on_emptying(&mut self) {
        for (topic, partition, asker) in self.operators.emptying.take_waiting() {
            self.empty_topic(&topic, partition, asker);
        }
    }

    pub fn empty_topic(&mut self, topic: &TopicRef, partition: PartitionId, asker: Asker) {
        let may = self.may_empty(topic);
        let CoreParts { partitions, store, copies, .. } = &mut *self.core;
        match may.map(|()| self.operators.emptying.empty((topic, partition), asker, partitions, store, copies)) {
            Ok(Emptied::Logged) => self.core.syncs.is_unpacked = true,
            Ok(Emptied::Waits) => {}
            Ok(Emptied::Nothing) => self.core.outbox.answer_askers(vec![asker], Ok(())),
            Err(error) => self.core.outbox.answer_askers(vec![asker], Err(error)),
        }
    }

    fn may_empty(&self, topic: &TopicRef) -> Result<(), PublishError> {
        if self.core.is_clustered {
            return Err(PublishError::NotLeader);
        }
        self.core.life.check_running()?;
        self.core.life.check_writable()?;
        if self.removals.is_frozen(topic) { Err(PublishError::TopicGone) } else { self.check_change_fits() }
    }

    /// Refusal of a change whose record would wait for the journal for as long as the disk is full, or until a restart.
    pub fn check_change_fits(&self) -> Result<(), PublishError> {
        self.core.store.check_change().map_err(|refusal| match refusal {
            Refusal::DiskFull => PublishError::DiskFull,
            _ => PublishError::ReadOnly,
        })
    }

    /// Records up to here are durable.
    pub fn emptied_up_to(&mut self, upto: RecordTicket) {
        while let Some(asker) = self.operators.emptying.pop_durable(upto) {
            self.core.outbox.answer_askers(vec![asker], Ok(()));
        }
    }

    /// No record becomes durable any more: the last ones may be in the journal or not.
    pub fn emptying_failed(&mut self) {
        let askers = self.operators.emptying.take_askers();
        self.core.outbox.answer_askers(askers, Err(PublishError::Unknown));
    }

    // ---- creating

    fn operator_creates(&mut self, now: Now, set: ChangeChannel, first: Option<bool>, is_alone: bool, asker: Asker) -> Begun {
        let failed = SetOffsetError::Failed;
        self.core.life.check_running().map_err(failed)?;
        if set.partition.0 >= set.topic.partitions {
            return Err(SetOffsetError::NoPartition);
        }
        if self.removals.is_gone(&self.core.topics, asker.0, &set.topic) {
            return Err(failed(PublishError::TopicGone));
        }
        let is_alone = is_alone || self.core.is_clustered;
        if !self.core.is_clustered {
            self.core.topic_known(&set.topic);
        }
        let idx = self.core.partition(now, &set.topic, set.partition).map_err(failed)?;
        self.core.partitions.get(idx).check_read(now.ticks).map_err(failed)?;
        // A copy would be committed behind the mark of the pause.
        let is_copying = set.channel.is_topic_pause() && self.core.copies.is_any_under_way(idx);
        let must_wait = is_copying || first.is_none() && !is_alone && self.attaching.is_spreading(set.topic.id, None);
        if must_wait || self.core.partitions.get(idx).is_deleting(&set.channel) {
            self.operators.changes.waiting.push(Operator { set, asker });
            return Ok(());
        }
        let (i, is_first) = self
            .attaching
            .find_or_create(self.core, now, idx, &set.topic, set.channel, first, is_alone, false)
            .map_err(failed)?;
        let key = ChannelKey { partition: idx.0, channel: i };
        let c = self.core.partitions.channel_mut(key).ok_or(SetOffsetError::NoChannel)?;
        if c.is_uncertain {
            self.core.partitions.check_change(now.ticks, key).map_err(failed)?;
        }
        let request = self.core.channels().make_certain(key);
        if self.core.syncs.is_pending(request) {
            self.operators.changes.creators.push(Creator { request, asker, is_first });
        } else {
            self.tell_changed(asker, Ok(is_first));
        }
        Ok(())
    }

    /// A channel is final, or will not be.
    pub fn creators_done(&mut self, request: CursorRequest, result: Result<(), PublishError>) {
        let done: Vec<_> = self.operators.changes.creators.extract_if(.., |c| c.request == request).collect();
        for Creator { asker, is_first, .. } in done {
            self.tell_changed(asker, result.map(|()| is_first).map_err(SetOffsetError::Failed));
        }
    }

    fn tell_changed(&mut self, (core, ticket): Asker, result: Result<bool, SetOffsetError>) {
        self.core.outbox.pass(core, MeshMessage::ChannelChanged { ticket, result });
    }

    // ---- copies

    /// Reports the outcome of copies to the channels, and continues the changes that waited for it.
    pub fn settle_copies(&mut self, now: Now) {
        let outcomes = self.core.copies.take_outcomes();
        for &CopyOutcome { key, id, number, is_committed } in &outcomes {
            let Some(c) = self.core.partitions.channel_mut(key) else { continue };
            c.machine.copied(id, number, is_committed);
            if c.machine.is_dirty() {
                self.core.channels().mark_dirty(now, key);
                // The message that is first now may be worth a copy, too.
                self.core.partitions.wake(key);
            }
            self.core.partitions.count_open(key);
        }
        for key in outcomes.iter().map(|o| o.key).filter(|key| !self.core.copies.is_under_way(*key)).collect::<Vec<_>>() {
            self.go_on_setting(now, key);
        }
        self.go_on_operating(now);
        self.go_on_emptying();
    }
}
