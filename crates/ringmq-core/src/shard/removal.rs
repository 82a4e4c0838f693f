//! Removal of a topic over all cores, while clients may publish to it. An ephemeral topic is removed with its last channel, as in nsqd;
//! any topic when an operator deletes it ([`topic_delete`](super::topic_delete)); a cluster's topic when it has a tombstone
//! ([`deletion`](super::replication)).
//!
//! ```text
//! core with a partition   TopicIdle ─> home ─ CloseTopic ─> every core: no subscriber, no channel?
//!                                      │                    it is frozen there: requests for the name wait; Leave once no
//!                                      │                    publish to it is under way
//!                                      ├─ any no: ReopenTopic, waiting requests continue
//!                                      └─ all yes: TopicDelete durable (the decision) ─ DropTopic ─> every core:
//!                                         its partitions go, Dropped ─> home: topic.meta goes, waiting requests create it anew
//! ```
//! So a publish goes to the topic before its removal, or to the next one of the name, which has another id. A startup begins the same
//! for every ephemeral topic, since ephemeral channels do not outlive a restart.
//!
//! The home decides when its journal has room for the record. Before, the partitions stay open for checkpoints, which make that room.
//!
//! A failure leaves the topic closed until a restart, which finishes the removal: the decision stays in the home's journal until every
//! file is gone.

use super::attach::Attaching;
use super::operate::Operators;
use super::partitions::Partition;
use super::parts::CoreParts;
use super::replication::Cluster;
use super::search::Searches;
use super::subscription::Subscriptions;
use super::timers::Timer;
use super::topics::{Topics, Waiters, WaitingCore};
use crate::base::topic::home_core;
use crate::base::{CoreId, Now, Ticks, TopicId, TopicName, TopicRef};
use crate::log::{PartitionIdx, RecordTicket};
use crate::seam::{
    message::{MeshMessage, Ticket},
    outcome::PublishError,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Time for which a removed topic's id is remembered: longer than any request of another thread that names it may be under way.
const REMEMBERED: Duration = Duration::from_secs(120);

/// A waiting operator: the core that asked, and its ticket for the answer.
pub(super) type Asker = (CoreId, Ticket);

enum ClosingStage {
    Asking { left: usize },
    Deciding { key: u64, record: RecordTicket },
    Dropping { key: u64, left: usize, is_gone: bool },
    Removing { key: u64 },
    Stuck,
}

/// Topic that may go, or goes; kept at its home.
struct Closing {
    topic: TopicRef,
    stage: ClosingStage,
    /// Cores that have frozen the topic and wait for the verdict.
    agreed: Vec<CoreId>,
    is_refused: bool,
    /// A last channel went meanwhile.
    again: bool,
    /// An operator deletes it: its channels and clients are no reason to keep it.
    is_forced: bool,
    /// Operators that wait for the decision.
    askers: Vec<Asker>,
}

impl Closing {
    fn new(topic: &TopicRef, cores: u16, is_forced: bool, askers: Vec<Asker>) -> Self {
        let (topic, stage) = (topic.clone(), ClosingStage::Asking { left: cores as usize });
        Closing { topic, stage, agreed: vec![], is_refused: false, again: false, is_forced, askers }
    }
}

/// A core's own part of a topic that goes.
struct Dropping {
    topic: TopicRef,
    /// The partitions are removed once this record is durable.
    after: RecordTicket,
    left: Vec<PartitionIdx>,
    is_gone: bool,
}

#[derive(Default)]
pub(super) struct Removals {
    closing: BTreeMap<TopicName, Closing>,
    dropping: Vec<Dropping>,
    /// Topics that no client of this core may use.
    frozen: BTreeSet<TopicId>,
    /// Topics among them that an operator deletes.
    forced: BTreeSet<TopicId>,
    /// Frozen here, with publishes under way: their homes have no answer yet.
    unanswered: Vec<TopicRef>,
    /// Topics of this home whose cores have all answered.
    undecided: Vec<TopicRef>,
    gone: BTreeSet<TopicId>,
    gone_since: VecDeque<(Ticks, TopicId)>,
    /// Looked at when the timer fires.
    due: BTreeSet<TopicName>,
    /// Requests of other cores for a topic of a name that is free now.
    again: Vec<(CoreId, MeshMessage)>,
}

impl Removals {
    /// Whether a step has to look at the removals before it ends.
    pub fn is_unsettled(&self) -> bool {
        !self.unanswered.is_empty() || !self.undecided.is_empty() || !self.again.is_empty()
    }

    /// Whether a message that names this topic comes too late: it goes, or is gone.
    pub fn is_gone(&self, topics: &Topics, from: CoreId, topic: &TopicRef) -> bool {
        // Another core sent its publishes before it said yes, so they belong to the topic still.
        from == CoreId::HTTP && self.is_frozen(topic)
            || self.gone.contains(&topic.id)
            || self.dropping.iter().any(|d| d.topic.id == topic.id)
            || topics.known(&topic.name).is_some_and(|known| known.id != topic.id)
    }

    /// Whether the topic goes or is gone, of which late news may still come.
    pub fn is_removing(&self, topic: TopicId) -> bool {
        let is_it = |t: &TopicRef| t.id == topic;
        self.frozen.contains(&topic)
            || self.gone.contains(&topic)
            || self.dropping.iter().any(|d| is_it(&d.topic))
            || self.closing.values().any(|c| is_it(&c.topic))
    }

    pub fn is_frozen(&self, topic: &TopicRef) -> bool {
        self.frozen.contains(&topic.id)
    }

    /// An operator, or the cluster, deletes the topic, although it may be in use.
    pub(super) fn force(&mut self, topic: TopicId) {
        self.forced.insert(topic);
    }

    pub(super) fn thaw(&mut self, topic: TopicId) {
        self.frozen.remove(&topic);
        self.forced.remove(&topic);
    }

    /// Remembers a topic of which this core has nothing any more.
    fn note_gone(&mut self, now: Now, topic: TopicId) {
        while let Some((_, id)) = self.gone_since.pop_front_if(|(at, _)| now.ticks.since(*at) > REMEMBERED) {
            self.gone.remove(&id);
        }
        self.gone.insert(topic);
        self.gone_since.push_back((now.ticks, topic));
    }
}

/// The removals of a core, and the parts that they look at and work on, borrowed for one call.
pub(super) struct Removing<'a> {
    pub core: &'a mut CoreParts,
    /// `None`: the node is stand-alone.
    pub cluster: Option<&'a mut Cluster>,
    pub removals: &'a mut Removals,
    pub subs: &'a Subscriptions,
    pub attaching: &'a mut Attaching,
    pub operators: &'a Operators,
    pub searches: &'a Searches,
}

impl Removing<'_> {
    /// Continues removals: answers the homes of topics with no operation under way, and decides where the journal has room. Returns the
    /// requests that waited for a name that is free now: they are repeated.
    pub fn settle(&mut self) -> Vec<(CoreId, MeshMessage)> {
        self.answer_closes();
        std::mem::take(&mut self.removals.undecided).iter().for_each(|topic| self.decide(topic));
        std::mem::take(&mut self.removals.again)
    }

    /// Expects no subscriptions, as after a startup.
    pub fn expect_idle(&mut self, topic: &TopicRef) {
        if topic.name.is_ephemeral() && self.core.is_home_of(topic) {
            self.removals.due.insert(topic.name.clone());
            self.core.timers.at_most(Timer::Topics, Some(Ticks(0)));
        }
    }

    pub fn look_at_topics(&mut self) {
        for name in std::mem::take(&mut self.removals.due) {
            if let Some(topic) = self.core.topics.known(&name).cloned() {
                self.begin_close(&topic);
            }
        }
    }

    pub(super) fn is_in_use(&self, topic: &TopicRef) -> bool {
        let is_forced = self.removals.forced.contains(&topic.id);
        let is_leaving = |idx: PartitionIdx| self.cluster.as_ref().is_some_and(|c| c.leaving.has(idx));
        let is_used = |(idx, p): (PartitionIdx, &Partition)| {
            p.topic.id == topic.id && (!is_forced && p.has_channels() || self.core.store.is_poisoned(idx) && !is_leaving(idx))
        };
        self.core.life.is_stopping()
            || self.core.life.is_read_only()
            || !is_forced && self.subs.iter().any(|(_, s)| s.topic.id == topic.id)
            || self.core.partitions.iter().any(is_used)
    }

    /// True if a client of this core, or an operation in one of its partitions, waits for something of the topic.
    fn is_busy(&self, topic: &TopicRef) -> bool {
        self.core.questions.publishes_to(topic.id)
            || self.changes_channels_of(topic)
            || self.cluster.as_ref().is_some_and(|c| c.leaving.has_any_of(topic.id))
            || self.core.partitions.iter().filter(|(_, p)| p.topic.id == topic.id).any(|(idx, p)| {
                !p.publishers.is_empty()
                    || !self.core.store.is_at_rest(idx)
                    || self.core.waiting.has_parked_for(idx)
                    || self.searches.is_any_in(idx)
            })
    }

    /// Freezes the topic, unless it is in use: no request gets it from here on.
    pub(super) fn freeze(&mut self, topic: &TopicRef) -> bool {
        if self.is_in_use(topic) {
            return false;
        }
        self.removals.frozen.insert(topic.id);
        self.core.topics.leave(topic);
        // The topic's home is answered when the step settles.
        self.removals.unanswered.push(topic.clone());
        true
    }

    /// Answers the homes of frozen topics that have no operation under way any more.
    fn answer_closes(&mut self) {
        for topic in std::mem::take(&mut self.removals.unanswered) {
            let in_use = self.is_in_use(&topic);
            if !in_use && self.is_busy(&topic) {
                self.removals.unanswered.push(topic);
                continue;
            }
            self.answer_close(topic, !in_use);
        }
    }

    fn answer_close(&mut self, topic: TopicRef, agrees: bool) {
        if !agrees {
            self.thaw(&topic);
        }
        self.core.outbox.pass(home_core(&topic.name, self.core.cores), MeshMessage::Leave { topic, agrees });
    }

    /// Keeps the topic: waiting requests go on.
    fn thaw(&mut self, topic: &TopicRef) {
        self.removals.thaw(topic.id);
        let waiters = self.core.topics.reopen(topic);
        self.core.outbox.tell_waiters(waiters, Ok(topic.clone()));
        self.attaching.parked.resume();
    }

    // ---- at home

    fn begin_close(&mut self, topic: &TopicRef) {
        if let Some(closing) = self.removals.closing.get_mut(&topic.name) {
            closing.again = true;
            return;
        }
        let is_known = self.core.topics.known(&topic.name).is_some_and(|known| known.id == topic.id);
        if !is_known || self.is_in_use(topic) {
            return;
        }
        self.removals.closing.insert(topic.name.clone(), Closing::new(topic, self.core.cores, false, vec![]));
        self.core.outbox.pass_to_others(|| MeshMessage::CloseTopic { topic: topic.clone(), is_forced: false });
        self.freeze(topic);
    }

    /// An operator deletes the topic, although it may be in use. The asker gets the answer once the decision is durable.
    pub(super) fn begin_delete(&mut self, name: &TopicName, asker: Asker) -> Result<(), PublishError> {
        if let Some(closing) = self.removals.closing.get_mut(name) {
            match closing.stage {
                ClosingStage::Stuck => return Err(PublishError::ReadOnly),
                ClosingStage::Dropping { .. } | ClosingStage::Removing { .. } => return Err(PublishError::NoTopic),
                // Where an ephemeral topic stays after all, it is deleted then.
                ClosingStage::Asking { .. } | ClosingStage::Deciding { .. } => closing.askers.push(asker),
            }
            return Ok(());
        }
        let topic = self.core.topics.known(name).cloned().ok_or(PublishError::NoTopic)?;
        self.close_forced(&topic, vec![asker]);
        Ok(())
    }

    /// The cluster has deleted the topic. False: it stays for now.
    pub(super) fn close_deleted(&mut self, topic: &TopicRef) -> bool {
        if !self.removals.closing.contains_key(&topic.name) {
            self.close_forced(topic, vec![]);
        }
        self.removals.closing.contains_key(&topic.name)
    }

    fn close_forced(&mut self, topic: &TopicRef, askers: Vec<Asker>) {
        if !self.freeze_forced(topic) {
            return self.core.outbox.answer_askers(askers, Err(self.why_kept()));
        }
        tracing::info!(topic = %topic.name, id = %topic.id, "deleting the topic, with its channels and messages");
        self.removals.closing.insert(topic.name.clone(), Closing::new(topic, self.core.cores, true, askers));
        self.core.outbox.pass_to_others(|| MeshMessage::CloseTopic { topic: topic.clone(), is_forced: true });
    }

    fn answered(&mut self, from: CoreId, topic: &TopicRef, agrees: bool) {
        let Some(closing) = self.removals.closing.get_mut(&topic.name).filter(|c| c.topic.id == topic.id) else { return };
        let ClosingStage::Asking { left } = &mut closing.stage else { return };
        *left -= 1;
        if agrees {
            closing.agreed.push(from);
        }
        closing.is_refused |= !agrees;
        if *left == 0 {
            self.removals.undecided.push(topic.clone());
        }
    }

    /// Decides, after all answers. The partitions stay open until the journal takes the record that removes them: only then do
    /// checkpoints pass the journal's records of them.
    fn decide(&mut self, topic: &TopicRef) {
        let Some(mut closing) = self.removals.closing.remove(&topic.name) else { return };
        let goes = !closing.is_refused && !self.is_in_use(topic);
        if goes && !self.core.store.takes_deletion() {
            self.removals.closing.insert(topic.name.clone(), closing);
            self.removals.undecided.push(topic.clone());
            return;
        }
        if goes {
            self.close_partitions(topic);
            let (key, record) = self.core.store.log_topic_delete(topic);
            if !closing.is_forced {
                tracing::info!(topic = %topic.name, id = %topic.id, "removing an ephemeral topic: its last channel is gone");
            }
            closing.stage = ClosingStage::Deciding { key, record };
            self.removals.closing.insert(topic.name.clone(), closing);
            return;
        }
        closing.agreed.retain(|&core| core != self.core.id);
        for core in closing.agreed {
            self.core.outbox.pass(core, MeshMessage::ReopenTopic { topic: topic.clone() });
        }
        self.thaw(topic);
        if closing.is_forced {
            self.core.outbox.answer_askers(closing.askers, Err(self.why_kept()));
        } else if !closing.askers.is_empty() {
            return self.close_forced(topic, closing.askers);
        }
        if closing.again {
            self.begin_close(topic);
        }
    }

    fn one_dropped(&mut self, topic: &TopicRef, gone: bool) {
        let Some(closing) = self.removals.closing.get_mut(&topic.name) else { return };
        let ClosingStage::Dropping { key, left, is_gone } = &mut closing.stage else { return };
        (*left, *is_gone) = (*left - 1, *is_gone && gone);
        if *left > 0 {
            return;
        }
        let (key, is_gone) = (*key, *is_gone);
        if is_gone {
            closing.stage = ClosingStage::Removing { key };
            self.core.store.remove_topic(key, self.core.outbox.io());
        } else {
            self.core.store.topic_delete_failed(key);
            self.stick(topic);
        }
    }

    /// The home's last file of the topic is gone, or cannot be removed.
    pub fn topic_removed(&mut self, now: Now, key: u64, is_gone: bool) {
        let is_it = |c: &Closing| matches!(c.stage, ClosingStage::Removing { key: k } if k == key);
        let Some(topic) = self.removals.closing.values().find(|c| is_it(c)).map(|c| c.topic.clone()) else { return };
        if !is_gone {
            return self.stick(&topic);
        }
        self.removals.closing.remove(&topic.name);
        if self.cluster.is_none() {
            self.core.count_topics(-1);
        }
        self.go_on_without(&topic);
        if let Some(cluster) = &mut self.cluster {
            cluster.name_is_free(self.core, now, &topic);
        }
    }

    /// Keeps the topic closed until a restart, which decides whether it exists.
    fn stick(&mut self, topic: &TopicRef) {
        if let Some(closing) = self.removals.closing.get_mut(&topic.name) {
            closing.stage = ClosingStage::Stuck;
            let askers = std::mem::take(&mut closing.askers);
            self.core.outbox.answer_askers(askers, Err(PublishError::Unknown));
        }
        let waiters = self.core.topics.stick(topic);
        self.core.outbox.tell_waiters(waiters, Err(PublishError::ReadOnly));
    }

    // ---- at each core

    pub fn on_removal(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        if self.core.life.is_stopped() {
            return;
        }
        match message {
            // A cluster's topics go when the coordinator says so.
            MeshMessage::TopicIdle { .. } if self.cluster.is_some() => {}
            MeshMessage::TopicIdle { topic } => self.begin_close(&topic),
            MeshMessage::CloseTopic { topic, is_forced } => self.on_close(from, topic, is_forced),
            MeshMessage::Leave { topic, agrees } => self.answered(from, &topic, agrees),
            MeshMessage::ReopenTopic { topic } => self.thaw(&topic),
            MeshMessage::StuckTopic { topic } => self.stick(&topic),
            MeshMessage::DropTopic { topic } => self.begin_drop(now, topic),
            MeshMessage::Dropped { topic, is_gone } => self.one_dropped(&topic, is_gone),
            _ => {}
        }
    }

    fn on_close(&mut self, home: CoreId, topic: TopicRef, is_forced: bool) {
        let is_frozen = if is_forced { self.freeze_forced(&topic) } else { self.freeze(&topic) };
        if !is_frozen {
            self.core.outbox.pass(home, MeshMessage::Leave { topic, agrees: false });
        }
    }

    /// Removes this core's part. Its own record first: its ring may have more of the topic, and is read after a crash
    /// when the home's record may have been passed by a checkpoint. That is after this core has answered, so nothing of the topic keeps
    /// this core's ring, which may be full.
    fn begin_drop(&mut self, now: Now, topic: TopicRef) {
        let left = self.close_partitions(&topic);
        left.iter().for_each(|&idx| self.core.store.forget_records(idx, self.core.outbox.io()));
        self.attaching.parked.forget_topic(topic.id);
        let is_gone = !self.core.life.is_read_only();
        let after = if is_gone { self.core.store.log_topic_gone(&topic) } else { RecordTicket::default() };
        self.removals.dropping.push(Dropping { topic, after, left, is_gone });
        if !is_gone {
            self.end_drop(now, self.removals.dropping.len() - 1);
        }
    }

    fn drop_partitions(&mut self, now: Now, i: usize) {
        // The record is not waited for again.
        self.removals.dropping[i].after = RecordTicket(u64::MAX);
        for idx in self.removals.dropping[i].left.clone() {
            self.core.store.remove_partition(idx, self.core.outbox.io());
        }
        if self.removals.dropping[i].left.is_empty() {
            self.end_drop(now, i);
        }
    }

    /// Ends a removal: nothing of the topic is left on this core, or the remaining files stay for the next startup.
    fn end_drop(&mut self, now: Now, i: usize) {
        let Dropping { topic, is_gone, .. } = self.removals.dropping.remove(i);
        self.removals.thaw(topic.id);
        self.removals.note_gone(now, topic.id);
        if let Some(cluster) = &mut self.cluster {
            cluster.part_is_gone(self.core, &topic);
        }
        let home = home_core(&topic.name, self.core.cores);
        self.core.outbox.pass(home, MeshMessage::Dropped { topic: topic.clone(), is_gone });
        if home != self.core.id {
            self.go_on_without(&topic);
        }
    }

    /// Removes the topic: requests that waited for it ask for a topic of its name again.
    fn go_on_without(&mut self, topic: &TopicRef) {
        let Waiters { conns, asked_by } = self.core.topics.remove(topic);
        self.core.outbox.catalog().unlist_topic(topic);
        self.core.outbox.resume(conns);
        for WaitingCore { from, ticket, partitions } in asked_by {
            let message = MeshMessage::EnsureTopic { ticket, name: topic.name.clone(), partitions };
            self.removals.again.push((from, message));
        }
    }

    /// Ends removals at a stop: no topic is created any more, so no request waits for a removal.
    pub fn stop_removals(&mut self) {
        let waiters = self.core.topics.take_leaving_waiters();
        waiters.into_iter().for_each(|w| self.core.outbox.tell_waiters(w, Err(PublishError::Stopping)));
    }

    // ---- notices of the store

    pub fn partition_removed(&mut self, now: Now, idx: PartitionIdx, is_gone: bool) {
        if is_gone {
            self.core.partitions.remove(idx);
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.partition_removed(self.core, now, idx, is_gone);
        }
        let Some(i) = self.removals.dropping.iter().position(|d| d.left.contains(&idx)) else { return };
        let dropping = &mut self.removals.dropping[i];
        dropping.left.retain(|p| *p != idx);
        dropping.is_gone &= is_gone;
        if dropping.left.is_empty() {
            self.end_drop(now, i);
        }
    }

    /// Records up to here are durable.
    pub fn removals_durable(&mut self, now: Now, upto: RecordTicket) {
        while let Some(i) = self.removals.dropping.iter().position(|d| d.after <= upto) {
            self.drop_partitions(now, i);
        }
        let cores = self.core.cores as usize;
        let is_decided = |c: &&mut Closing| matches!(c.stage, ClosingStage::Deciding { record, .. } if record <= upto);
        let decided: Vec<(TopicRef, Vec<Asker>)> = (self.removals.closing.values_mut().filter(is_decided))
            .map(|c| {
                if let ClosingStage::Deciding { key, .. } = c.stage {
                    c.stage = ClosingStage::Dropping { key, left: cores, is_gone: true };
                }
                (c.topic.clone(), std::mem::take(&mut c.askers))
            })
            .collect();
        for (topic, askers) in decided {
            self.core.outbox.answer_askers(askers, Ok(()));
            self.core.outbox.pass_to_others(|| MeshMessage::DropTopic { topic: topic.clone() });
            // The home's own record is the decision itself.
            let (left, after) = (self.core.partitions.of_topic(topic.id), RecordTicket::default());
            self.removals.dropping.push(Dropping { topic, after, left, is_gone: true });
            self.drop_partitions(now, self.removals.dropping.len() - 1);
        }
    }

    /// No record becomes durable any more: removals that wait for one are left to the next startup.
    pub fn removals_failed(&mut self, now: Now) {
        let waits = |d: &Dropping| d.after < RecordTicket(u64::MAX);
        while let Some(i) = self.removals.dropping.iter().position(waits) {
            self.removals.dropping[i].is_gone = false;
            self.end_drop(now, i);
        }
        let undecided = self.removals.closing.values().filter(|c| matches!(c.stage, ClosingStage::Deciding { .. }));
        for topic in undecided.map(|c| c.topic.clone()).collect::<Vec<_>>() {
            // The record may be in the journal or not: nothing may be acknowledged in this topic any more.
            self.core.outbox.pass_to_others(|| MeshMessage::StuckTopic { topic: topic.clone() });
            self.stick(&topic);
        }
    }
}
