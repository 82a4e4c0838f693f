//! Topics of the cluster that a client's first PUB or SUB asks for: the coordinator creates each of them once, whichever node and core
//! asks. The client continues when this node knows the topic's leaders.

use super::CoreParts;
use crate::base::{Now, Ticks, TopicName, TopicRef};
use crate::seam::outcome::{PublishError, Unwritable};
use crate::shard::timers::Timer;
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

    /// A wanted topic is in the metadata: its clients wait until its leaders are known. Those of another topic need not wait.
    pub fn came(&mut self, core: &mut CoreParts, topic: &TopicRef, waiters: Waiters) {
        match self.topics.get_mut(&topic.name) {
            Some(wanted) => wanted.waiters = Some(waiters),
            None => core.outbox.tell_waiters(waiters, Ok(topic.clone())),
        }
    }

    /// Resumes the clients that wait for the topic, if all its leaders are known.
    pub fn leaders_changed(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        let waits = self.topics.get(&topic.name).is_some_and(|wanted| wanted.waiters.is_some());
        if waits && core.topics.is_settled(&topic.name) {
            self.end(core, &topic.name);
        }
    }

    /// Takes in that the cluster does not create the topic.
    pub fn refused(&mut self, core: &mut CoreParts, name: &TopicName, error: PublishError) {
        let Some(AwaitedTopic { waiters: None, .. }) = self.topics.get(name) else { return };
        self.topics.remove(name);
        core.topic_failed(name, error);
    }

    /// Ends the wait for topics that the coordinator was asked for too long ago.
    pub fn tick(&mut self, core: &mut CoreParts, now: Now) {
        let late = self.topics.iter().filter(|(_, wanted)| wanted.until <= now.ticks);
        let late: Vec<TopicName> = late.map(|(name, _)| name.clone()).collect();
        late.iter().for_each(|name| self.end(core, name));
        core.timers.at_most(Timer::Wanted, self.topics.values().map(|wanted| wanted.until).min());
    }

    fn end(&mut self, core: &mut CoreParts, name: &TopicName) {
        let Some(AwaitedTopic { waiters, .. }) = self.topics.remove(name) else { return };
        match (waiters, core.topics.known(name).cloned()) {
            (Some(waiters), Some(topic)) => core.outbox.tell_waiters(waiters, Ok(topic)),
            (Some(waiters), None) => core.outbox.tell_waiters(waiters, Err(PublishError::TopicNotExist)),
            (None, _) => core.topic_failed(name, PublishError::NotWritable(Unwritable::NotCreated)),
        }
    }
}
