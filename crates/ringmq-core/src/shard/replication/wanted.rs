//! Topics of the cluster that a client's first PUB or SUB asks for: the coordinator creates each of them once, whichever node and core
//! asks. The client continues when this node knows the topic's leaders.

use crate::base::{Ticks, TopicName, TopicRef};
use crate::seam::outcome::{PublishError, Unwritable};
use crate::shard::topics::{Topics, Waiters};
use std::collections::BTreeMap;

/// Topics that this core has asked the cluster for.
#[derive(Debug, Default)]
pub struct WantedTopics {
    creates_topics: bool,
    topics: BTreeMap<TopicName, AwaitedTopic>,
}

#[derive(Debug)]
struct AwaitedTopic {
    until: Ticks,
    /// The topic is there, and its leaders are not known yet.
    waiters: Option<Waiters>,
}

/// The clients that waited for a topic, and their answer.
pub type EndedWait = (Waiters, Result<TopicRef, PublishError>);

impl WantedTopics {
    pub fn new(creates_topics: bool) -> Self {
        WantedTopics { creates_topics, topics: BTreeMap::new() }
    }

    pub fn check_creates(&self) -> Result<(), PublishError> {
        if self.creates_topics { Ok(()) } else { Err(PublishError::TopicNotExist) }
    }

    /// Notes the wish for an unknown topic, of which `max` are allowed (0: any number). `Some`: the coordinator is to create it.
    pub fn want(&mut self, topics: &mut Topics, name: &str, until: Ticks, max: u64) -> Result<Option<TopicName>, PublishError> {
        if topics.is_pending(name) {
            return Ok(None);
        }
        let name = TopicName::new(name).map_err(|_| PublishError::NoTopic)?;
        if name.is_ephemeral() {
            return Err(PublishError::TopicNotExist);
        }
        if max > 0 && (topics.all().count() + self.topics.len()) as u64 >= max {
            return Err(PublishError::TooManyTopics);
        }
        topics.begin(name.clone(), None);
        self.topics.insert(name.clone(), AwaitedTopic { until, waiters: None });
        Ok(Some(name))
    }

    /// A wanted topic is in the metadata: its clients wait until its leaders are known. Returns those that need not wait.
    pub fn came(&mut self, topic: &TopicRef, waiters: Waiters) -> Option<EndedWait> {
        match self.topics.get_mut(&topic.name) {
            Some(wanted) => {
                wanted.waiters = Some(waiters);
                None
            }
            None => Some((waiters, Ok(topic.clone()))),
        }
    }

    /// Looks at a wanted topic again after its leaders changed.
    pub fn leaders_changed(&mut self, topics: &mut Topics, topic: &TopicRef) -> Option<EndedWait> {
        let waits = self.topics.get(&topic.name).is_some_and(|wanted| wanted.waiters.is_some());
        if waits && topics.is_settled(&topic.name) { self.end(topics, &topic.name) } else { None }
    }

    /// Takes in that the cluster does not create the topic.
    pub fn refused(&mut self, topics: &mut Topics, name: &TopicName, error: PublishError) -> Option<EndedWait> {
        let Some(AwaitedTopic { waiters: None, .. }) = self.topics.get(name) else { return None };
        self.topics.remove(name);
        Some((topics.forget(name), Err(error)))
    }

    /// Clients that waited too long.
    pub fn expire(&mut self, topics: &mut Topics, now: Ticks) -> Vec<EndedWait> {
        let late = self.topics.iter().filter(|(_, wanted)| wanted.until <= now);
        let late: Vec<TopicName> = late.map(|(name, _)| name.clone()).collect();
        late.iter().filter_map(|name| self.end(topics, name)).collect()
    }

    pub fn deadline(&self) -> Option<Ticks> {
        self.topics.values().map(|wanted| wanted.until).min()
    }

    fn end(&mut self, topics: &mut Topics, name: &TopicName) -> Option<EndedWait> {
        let AwaitedTopic { waiters, .. } = self.topics.remove(name)?;
        Some(match (waiters, topics.known(name).cloned()) {
            (Some(waiters), Some(topic)) => (waiters, Ok(topic)),
            (Some(waiters), None) => (waiters, Err(PublishError::TopicNotExist)),
            (None, _) => (topics.forget(name), Err(PublishError::NotWritable(Unwritable::NotCreated))),
        })
    }
}
