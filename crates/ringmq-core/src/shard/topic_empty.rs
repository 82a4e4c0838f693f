//! An operator empties a topic, in one partition: what waits for the topic's first channel goes.
//!
//! Where the topic has channels nothing happens, as with nsqd, whose topic has nothing then that its channels lack. Else the collect start
//! moves to the end, and the answer follows the record of that.

use super::engine::Engine;
use super::removal::Asker;
use crate::base::{PartitionDir, PartitionId, TopicRef};
use crate::log::RecordTicket;
use crate::seam::{message::MeshMessage, outcome::PublishError};
use std::collections::VecDeque;

/// Who waits for which record, in order.
#[derive(Default)]
pub(super) struct Emptying(VecDeque<(RecordTicket, Asker)>);

impl Engine {
    pub(super) fn empty_topic(&mut self, topic: &TopicRef, partition: PartitionId, asker: Asker) {
        match self.begin_empty(topic, partition) {
            Ok(Some(record)) => {
                self.operators.emptying.0.push_back((record, asker));
                self.syncs.is_unpacked = true;
            }
            Ok(None) => self.answer_askers(vec![asker], Ok(())),
            Err(error) => self.answer_askers(vec![asker], Err(error)),
        }
    }

    fn begin_empty(&mut self, topic: &TopicRef, partition: PartitionId) -> Result<Option<RecordTicket>, PublishError> {
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
        let Some(idx) = self.partitions.find(&dir).filter(|&idx| self.partitions.get(idx).channels.is_empty()) else {
            return Ok(None);
        };
        let end = self.partitions.get(idx).committed();
        tracing::info!(topic = %topic.name, %partition, count = end.count, "emptying the topic");
        let record = self.store.log_collect_start(idx, end);
        self.partitions.get_mut(idx).low_water_stale = true;
        self.update_low_water(idx);
        self.store.look_at_retention(idx);
        Ok(Some(record))
    }

    /// Records up to here are durable.
    pub(super) fn emptied_up_to(&mut self, upto: RecordTicket) {
        while let Some((_, asker)) = self.operators.emptying.0.pop_front_if(|(record, _)| *record <= upto) {
            self.answer_askers(vec![asker], Ok(()));
        }
    }

    /// No record becomes durable any more: the last ones may be in the journal or not.
    pub(super) fn emptying_failed(&mut self) {
        let askers = std::mem::take(&mut self.operators.emptying.0).into_iter().map(|(_, asker)| asker).collect();
        self.answer_askers(askers, Err(PublishError::Unknown));
    }

    pub(super) fn answer_askers(&mut self, askers: Vec<Asker>, result: Result<(), PublishError>) {
        for (core, ticket) in askers {
            self.pass(core, MeshMessage::TopicChanged { ticket, result });
        }
    }
}
