//! An operator empties a topic, in one partition: the messages that wait for the topic's first channel, or for the end of a pause, are
//! dropped.
//!
//! A topic with channels that is not paused does not change, as in nsqd, where such a topic holds no messages of its own. Without
//! channels the collect start moves to the end. In a paused topic each channel skips the messages since the pause, and then the mark of
//! the pause moves to the end: a crash in between leaves messages in some channels, and the operator had no answer yet. The answer
//! follows the last record.

use super::copies::Copies;
use super::partitions::{Partition, Partitions};
use super::removal::Asker;
use crate::base::{PartitionDir, PartitionId, Position, TopicRef};
use crate::format::cursor::Interval;
use crate::log::{PartitionIdx, RecordTicket, Store};
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Emptying {
    /// Askers that wait for a record, in order.
    records: VecDeque<(RecordTicket, Asker)>,
    /// Requests that wait until a change of one of the partition's channels is final.
    waiting: Vec<(TopicRef, PartitionId, Asker)>,
}

/// Outcome of a request, as far as it has one.
pub(super) enum Emptied {
    /// The answer follows a record, which a turn's end gives to the journal.
    Logged,
    /// The request waits until a change of a channel is final.
    Waits,
    /// The topic had nothing to empty.
    Nothing,
}

impl Emptying {
    /// Whether a request waits for the partition.
    pub fn is_waiting(&self, dir: &PartitionDir) -> bool {
        self.waiting.iter().any(|(topic, partition, _)| (topic.id, *partition) == (dir.topic_id, dir.partition))
    }

    /// Requests that waited: they are tried again.
    pub fn take_waiting(&mut self) -> Vec<(TopicRef, PartitionId, Asker)> {
        std::mem::take(&mut self.waiting)
    }

    /// The next asker whose record is durable by now.
    pub fn pop_durable(&mut self, upto: RecordTicket) -> Option<Asker> {
        Some(self.records.pop_front_if(|(record, _)| *record <= upto)?.1)
    }

    /// Askers whose records will not become durable, or are durable without a notice.
    pub fn take_askers(&mut self) -> Vec<Asker> {
        std::mem::take(&mut self.records).into_iter().map(|(_, asker)| asker).collect()
    }

    /// Empties the topic's partition.
    pub fn empty(
        &mut self,
        (topic, partition): (&TopicRef, PartitionId),
        asker: Asker,
        partitions: &mut Partitions,
        store: &mut Store,
        copies: &Copies,
    ) -> Emptied {
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        let is_held = |p: &Partition| p.pause.is_some() || !p.has_channels();
        let Some(idx) = partitions.find(&dir).filter(|&idx| is_held(partitions.get(idx))) else {
            return Emptied::Nothing;
        };
        let p = partitions.get(idx);
        let (from, end) = (p.flows_to(), p.committed());
        if copies.is_any_under_way(idx) || p.channels.iter().any(|(_, c)| c.machine.is_syncing()) {
            self.waiting.push((topic.clone(), partition, asker));
            return Emptied::Waits;
        }
        tracing::info!(topic = %topic.name, %partition, count = end.count, "emptying the topic");
        let mut record = None;
        if p.has_channels() {
            pass_over(idx, partitions.get_mut(idx), Interval { start: from.log_id, end }, store);
        } else {
            record = Some(store.log_collect_start(idx, end));
        }
        let p = partitions.get_mut(idx);
        let record = move_pause(idx, p, end, store).or(record);
        p.low_water_stale = true;
        p.update_low_water(idx, store);
        store.look_at_retention(idx);
        let Some(record) = record else { return Emptied::Nothing };
        self.records.push_back((record, asker));
        Emptied::Logged
    }
}

/// No channel of the partition gets these messages, of which none has read anything.
fn pass_over(idx: PartitionIdx, p: &mut Partition, dropped: Interval, store: &mut Store) {
    let pause = p.pause;
    for (_, c) in p.channels.iter_mut().filter(|(i, _)| Some(*i as u32) != pause) {
        c.machine.pass_over(dropped);
        if !c.name.is_ephemeral() {
            store.log_cursor(idx, &c.machine.image());
        }
    }
}

/// The mark of the pause, if there is one, stands at `to` from now on.
fn move_pause(idx: PartitionIdx, p: &mut Partition, to: Position, store: &mut Store) -> Option<RecordTicket> {
    let mark = &mut p.channels[p.pause? as usize].machine;
    mark.move_to(to, &mut |_, _| {});
    mark.settle(true);
    Some(store.log_cursor(idx, &mark.image()))
}
