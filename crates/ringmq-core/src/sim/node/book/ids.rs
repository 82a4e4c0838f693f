//! Book of message ids: the ids of each topic, and that no two messages have the same.

use super::Book;
use crate::base::{MessageId, MessageIds, MessagePlace, TopicId};
use crate::shard::Shard;
use std::collections::BTreeMap;

const NAME: &str = "message_ids_never_repeat";

#[derive(Default)]
pub struct Ids {
    topics: BTreeMap<usize, (TopicId, MessageIds)>,
    /// The message that came under an id, of any topic.
    named: BTreeMap<MessageId, usize>,
    /// The id under which a message came.
    of: BTreeMap<usize, MessageId>,
}

impl Ids {
    /// The message is lost, and its id may name another one.
    pub(super) fn forget(&mut self, n: usize) {
        if let Some(id) = self.of.remove(&n) {
            self.named.remove(&id);
        }
    }
}

impl Book {
    /// The ids of the topics that a core of some node knows by now, of so many that clients use.
    pub fn learn_topics(&mut self, shard: &Shard, topics: usize) {
        if self.message_ids.topics.len() < topics {
            let regular = shard.topics().filter(|t| !t.name.is_ephemeral());
            let numbered = regular.map(|t| (super::topic_number(&t.name), t)).filter(|(number, _)| *number < topics);
            numbered.for_each(|(number, topic)| {
                self.topic_is(number, topic.id);
                self.topic_has(number, topic.partitions);
            });
        }
    }

    pub fn topic_is(&mut self, topic: usize, id: TopicId) {
        let known = self.message_ids.topics.entry(topic).or_insert((id, MessageIds::of(id))).0;
        assert_eq!(known, id, "{NAME}: topic {topic} has another id");
    }

    /// Place that an NSQ client's message id names in a topic.
    pub fn place_named(&self, topic: usize, id: MessageId) -> MessagePlace {
        self.message_ids.topics.get(&topic).expect("a topic with messages is known").1.place(id)
    }

    /// A message comes to an NSQ client: under an id that is its own over all topics, and the same each time.
    pub fn message_ids_never_repeat(&mut self, topic: usize, id: MessageId, body: &[u8]) {
        let n = self.none_invented(topic, body);
        let named = *self.message_ids.named.entry(id).or_insert(n);
        assert_eq!(named, n, "{NAME}: {id:x?} names messages of the topics {} and {topic}", self.topic_of(named));
        let known = *self.message_ids.of.entry(n).or_insert(id);
        assert_eq!(known, id, "{NAME}: message {n} of topic {topic} comes under a second id");
    }
}
