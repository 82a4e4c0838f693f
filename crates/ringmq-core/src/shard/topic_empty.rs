//! An operator empties a topic, in one partition: what waits for the topic's first channel goes, or for the end of a pause.
//!
//! Where the topic has channels and is not paused nothing happens, as with nsqd, whose topic has nothing then that its channels lack.
//! Without channels the collect start moves to the end. In a paused topic each channel passes over what came since the pause, and then the
//! mark of the pause moves to the end: a crash in between leaves some channels with messages that the operator was not told to be gone.
//! The answer follows the last record.

use super::engine::Engine;
use super::partitions::Partition;
use super::removal::Asker;
use crate::base::{PartitionDir, PartitionId, Position, TopicRef};
use crate::format::cursor::Interval;
use crate::log::{PartitionIdx, RecordTicket};
use crate::seam::{message::MeshMessage, outcome::PublishError};
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Emptying {
    /// Askers that wait for a record, in order.
    records: VecDeque<(RecordTicket, Asker)>,
    /// Askers that wait until a change of one of the partition's channels is final.
    waiting: Vec<(TopicRef, PartitionId, Asker)>,
}

impl Emptying {
    pub fn is_waiting(&self, dir: &PartitionDir) -> bool {
        self.waiting.iter().any(|(topic, partition, _)| (topic.id, *partition) == (dir.topic_id, dir.partition))
    }
}

enum Begun {
    Logged(RecordTicket),
    Waits,
    Nothing,
}

impl Engine {
    /// A change of a channel was settled.
    pub(super) fn go_on_emptying(&mut self) {
        for (topic, partition, asker) in std::mem::take(&mut self.operators.emptying.waiting) {
            self.empty_topic(&topic, partition, asker);
        }
    }

    pub(super) fn empty_topic(&mut self, topic: &TopicRef, partition: PartitionId, asker: Asker) {
        match self.begin_empty(topic, partition) {
            Ok(Begun::Logged(record)) => {
                self.operators.emptying.records.push_back((record, asker));
                self.syncs.is_unpacked = true;
            }
            Ok(Begun::Waits) => self.operators.emptying.waiting.push((topic.clone(), partition, asker)),
            Ok(Begun::Nothing) => self.answer_askers(vec![asker], Ok(())),
            Err(error) => self.answer_askers(vec![asker], Err(error)),
        }
    }

    fn begin_empty(&mut self, topic: &TopicRef, partition: PartitionId) -> Result<Begun, PublishError> {
        if self.is_clustered() {
            return Err(PublishError::NotLeader);
        }
        self.life.check_running()?;
        self.life.check_writable()?;
        match () {
            () if self.is_frozen(topic) => return Err(PublishError::TopicGone),
            () if !self.store.takes_changes() => return Err(PublishError::DiskFull),
            () => {}
        }
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        let is_held = |p: &Partition| p.pause.is_some() || !p.has_channels();
        let Some(idx) = self.partitions.find(&dir).filter(|&idx| is_held(self.partitions.get(idx))) else {
            return Ok(Begun::Nothing);
        };
        let p = self.partitions.get(idx);
        let (from, end) = (p.flows_to(), p.committed());
        if self.copies.is_any_under_way(idx) || p.channels.iter().any(|(_, c)| c.machine.is_syncing()) {
            return Ok(Begun::Waits);
        }
        tracing::info!(topic = %topic.name, %partition, count = end.count, "emptying the topic");
        let mut record = None;
        if self.partitions.get(idx).has_channels() {
            self.pass_over(idx, Interval { start: from.log_id, end });
        } else {
            record = Some(self.store.log_collect_start(idx, end));
        }
        let record = self.move_pause(idx, end).or(record);
        self.partitions.get_mut(idx).low_water_stale = true;
        self.update_low_water(idx);
        self.store.look_at_retention(idx);
        Ok(record.map_or(Begun::Nothing, Begun::Logged))
    }

    /// No channel of the partition gets these messages, of which none has read anything.
    fn pass_over(&mut self, idx: PartitionIdx, dropped: Interval) {
        let p = self.partitions.get_mut(idx);
        let pause = p.pause;
        for (_, c) in p.channels.iter_mut().filter(|(i, _)| Some(*i as u32) != pause) {
            c.machine.pass_over(dropped);
            if !c.name.is_ephemeral() {
                self.store.log_cursor(idx, &c.machine.image());
            }
        }
    }

    /// The mark of the pause, if there is one, stands at `to` from now on.
    fn move_pause(&mut self, idx: PartitionIdx, to: Position) -> Option<RecordTicket> {
        let p = self.partitions.get_mut(idx);
        let mark = &mut p.channels[p.pause? as usize].machine;
        mark.move_to(to, &mut |_, _| {});
        mark.settle(true);
        Some(self.store.log_cursor(idx, &mark.image()))
    }

    /// Records up to here are durable.
    pub(super) fn emptied_up_to(&mut self, upto: RecordTicket) {
        while let Some((_, asker)) = self.operators.emptying.records.pop_front_if(|(record, _)| *record <= upto) {
            self.answer_askers(vec![asker], Ok(()));
        }
    }

    /// No record becomes durable any more: the last ones may be in the journal or not.
    pub(super) fn emptying_failed(&mut self) {
        let askers = std::mem::take(&mut self.operators.emptying.records).into_iter().map(|(_, asker)| asker).collect();
        self.answer_askers(askers, Err(PublishError::Unknown));
    }

    pub(super) fn answer_askers(&mut self, askers: Vec<Asker>, result: Result<(), PublishError>) {
        for (core, ticket) in askers {
            self.pass(core, MeshMessage::TopicChanged { ticket, result });
        }
    }
}
