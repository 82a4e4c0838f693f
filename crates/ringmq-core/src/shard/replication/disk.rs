//! Topics that this node's disk has, by name: one of a name at a time.
//!
//! ```text
//! recording ─ durable ─> recorded ─ deleted ─> removing ─ gone ─> the name is free: the topic that waits for it is recorded
//!     └ deleted meanwhile: doomed ─^
//! ```
//! Every core knows what is recorded. The rest is kept at the topic's home core.

use crate::base::{PartitionId, TopicId, TopicName, TopicRef};
use crate::log::RecordTicket;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

#[derive(Debug, Default)]
pub struct DiskTopics {
    recorded: HashMap<TopicName, TopicRef>,
    /// Topics whose record is on its way.
    recording: VecDeque<(RecordTicket, TopicRef)>,
    /// Topics of the cluster of which this node has replicas, by the name that is not free yet.
    waiting: BTreeMap<TopicName, TopicRef>,
    /// Topics that were deleted while their record was on its way to the journal.
    doomed: BTreeSet<TopicId>,
    /// Deleted topics that the disk still has.
    removing: BTreeSet<TopicId>,
}

/// Missing part of a topic of which this node has replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    Nothing,
    /// The topic's record.
    Record,
    /// The topic's name, which another topic on its way to the disk, or being deleted, has.
    Name,
    /// The topic's name, which another topic has that was not deleted.
    NameOf(TopicId),
}

impl DiskTopics {
    /// Looks at what the topic lacks. If that is its name, the topic waits for it.
    pub fn need(&mut self, topic: &TopicRef) -> Lack {
        let lack = self.lack_of(topic);
        if matches!(lack, Lack::Name | Lack::NameOf(_)) {
            self.waiting.insert(topic.name.clone(), topic.clone());
        }
        lack
    }

    fn lack_of(&self, topic: &TopicRef) -> Lack {
        match self.recorded.get(&topic.name) {
            Some(known) if known.id != topic.id && self.removing.contains(&known.id) => return Lack::Name,
            Some(known) if known.id != topic.id => return Lack::NameOf(known.id),
            Some(known) if known.partitions >= topic.partitions => return Lack::Nothing,
            _ => {}
        }
        match self.recording.iter().rfind(|(_, t)| t.name == topic.name) {
            Some((_, coming)) if coming.id != topic.id => Lack::Name,
            Some((_, coming)) if coming.partitions >= topic.partitions => Lack::Nothing,
            _ => Lack::Record,
        }
    }

    pub fn begin(&mut self, record: RecordTicket, topic: &TopicRef) {
        self.recording.push_back((record, topic.clone()));
    }

    /// Takes a topic whose record is durable.
    pub fn take_durable(&mut self, upto: RecordTicket) -> Option<TopicRef> {
        self.recording.pop_front_if(|r| r.0 <= upto).map(|(_, topic)| topic)
    }

    /// The topic's record is durable.
    pub fn recorded(&mut self, topic: &TopicRef) {
        let known = self.recorded.entry(topic.name.clone()).or_insert_with(|| topic.clone());
        if known.id != topic.id || known.partitions < topic.partitions {
            *known = topic.clone();
        }
    }

    /// Whether the disk has the topic, with however many partitions.
    pub fn has(&self, topic: &TopicRef) -> bool {
        self.recorded.get(&topic.name).is_some_and(|known| known.id == topic.id)
    }

    /// Whether the disk has the topic with this partition.
    pub fn has_partition(&self, topic: &TopicRef, partition: PartitionId) -> bool {
        self.recorded.get(&topic.name).is_some_and(|known| known.id == topic.id && known.partitions > partition.0)
    }

    // ---- deletion

    /// The topic was deleted. True: the disk has it, and it is to be removed now.
    pub fn delete(&mut self, topic: &TopicRef) -> bool {
        let is_recording = self.recording.iter().any(|(_, t)| t.id == topic.id);
        if is_recording {
            self.doomed.insert(topic.id);
        }
        !is_recording && self.has(topic)
    }

    /// The topic's record is durable. True: the topic was deleted meanwhile.
    pub fn take_doomed(&mut self, topic: &TopicRef) -> bool {
        self.doomed.remove(&topic.id)
    }

    /// The topic's removal has begun.
    pub fn removing(&mut self, topic: &TopicRef) {
        self.removing.insert(topic.id);
    }

    /// The topic waits for its name no more.
    pub fn end_wait(&mut self, topic: &TopicRef) {
        if self.waiting.get(&topic.name).is_some_and(|t| t.id == topic.id) {
            self.waiting.remove(&topic.name);
        }
    }

    /// The disk has the topic no more.
    pub fn gone(&mut self, topic: &TopicRef) {
        self.removing.remove(&topic.id);
        if self.has(topic) {
            self.recorded.remove(&topic.name);
        }
    }

    /// The same at the topic's home. Gives the topic that waited for the name.
    pub fn free(&mut self, topic: &TopicRef) -> Option<TopicRef> {
        self.gone(topic);
        self.waiting.remove(&topic.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicInfo;
    use std::sync::Arc;

    fn topic(id: u8, partitions: u16) -> TopicRef {
        Arc::new(TopicInfo { name: TopicName::new("t").unwrap(), id: TopicId([id; 16]), partitions })
    }

    /// Records the topic, with everything before it.
    fn record(disk: &mut DiskTopics, ticket: u64, topic: &TopicRef) {
        disk.begin(RecordTicket(ticket), topic);
        while let Some(topic) = disk.take_durable(RecordTicket(ticket)) {
            disk.recorded(&topic);
        }
    }

    #[test]
    fn a_topic_is_recorded_once_and_again_when_it_has_more_partitions() {
        let mut disk = DiskTopics::default();
        assert_eq!(disk.need(&topic(1, 2)), Lack::Record);
        disk.begin(RecordTicket(1), &topic(1, 2));
        assert_eq!([disk.need(&topic(1, 2)), disk.need(&topic(1, 3))], [Lack::Nothing, Lack::Record]);
        assert!(disk.take_durable(RecordTicket(0)).is_none() && !disk.has(&topic(1, 2)));
        record(&mut disk, 2, &topic(1, 3));
        assert_eq!([2, 3].map(|number| disk.has_partition(&topic(1, 4), PartitionId(number))), [true, false]);
        disk.recorded(&topic(1, 2));
        assert_eq!(
            [disk.need(&topic(1, 3)), disk.need(&topic(1, 4))],
            [Lack::Nothing, Lack::Record],
            "an old word changes nothing"
        );
    }

    #[test]
    fn a_name_is_free_for_the_next_topic_when_the_one_before_is_gone() {
        let mut disk = DiskTopics::default();
        record(&mut disk, 1, &topic(1, 1));
        assert_eq!(disk.need(&topic(2, 1)), Lack::NameOf(TopicId([1; 16])), "nobody deleted it");
        assert!(disk.delete(&topic(1, 1)) && !disk.delete(&topic(2, 1)));
        disk.removing(&topic(1, 1));
        assert_eq!(disk.need(&topic(3, 1)), Lack::Name, "the newest waits");
        disk.end_wait(&topic(2, 1));
        assert_eq!(disk.free(&topic(1, 1)), Some(topic(3, 1)));
        assert_eq!((disk.has(&topic(1, 1)), disk.need(&topic(3, 1)), disk.free(&topic(1, 1))), (false, Lack::Record, None));
    }

    #[test]
    fn a_topic_that_is_deleted_on_its_way_to_the_disk_goes_when_it_is_there() {
        let mut disk = DiskTopics::default();
        disk.begin(RecordTicket(1), &topic(1, 1));
        assert!(!disk.delete(&topic(1, 1)), "not yet");
        assert_eq!(disk.need(&topic(2, 1)), Lack::Name);
        let durable = disk.take_durable(RecordTicket(1)).unwrap();
        disk.recorded(&durable);
        assert!(disk.take_doomed(&durable) && !disk.take_doomed(&durable));
        disk.removing(&durable);
        assert_eq!(disk.free(&durable), Some(topic(2, 1)));
        assert!(!disk.has(&durable));
    }
}
