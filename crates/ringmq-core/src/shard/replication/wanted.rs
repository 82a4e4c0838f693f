//! Topics of the cluster that a client's first PUB or SUB asks for: the coordinator creates each of them once, whichever node and core
//! asks, and who waits goes on when this node knows who leads it.

use crate::base::{Now, Ticks, TopicName, TopicRef};
use crate::seam::cluster::Ask;
use crate::seam::event::Effect;
use crate::seam::outcome::{PublishError, Unwritable};
use crate::shard::engine::Engine;
use crate::shard::timers::Timer;
use crate::shard::topics::Waiters;
use std::collections::BTreeMap;
use std::time::Duration;

/// Topics that this core has asked the cluster for.
#[derive(Debug, Default)]
pub struct WantedTopics {
    creates_topics: bool,
    topics: BTreeMap<TopicName, Wanted>,
}

#[derive(Debug)]
struct Wanted {
    until: Ticks,
    /// The topic is there, and its leaders are not known yet.
    waiters: Option<Waiters>,
}

impl WantedTopics {
    pub fn new(creates_topics: bool) -> Self {
        WantedTopics { creates_topics, topics: BTreeMap::new() }
    }
}

impl Engine {
    /// A topic that nobody knows here. `false`: it is asked for.
    pub(in crate::shard) fn want_topic(&mut self, now: Now, name: &str, partitions: u16) -> Result<bool, PublishError> {
        let wanted = &self.cluster_mut().wanted;
        let count = wanted.topics.len() as u64;
        if !wanted.creates_topics {
            return Err(PublishError::TopicNotExist);
        }
        self.life.check_running()?;
        if self.topics.is_pending(name) {
            return Ok(false);
        }
        let name = TopicName::new(name).map_err(|_| PublishError::NoTopic)?;
        if name.is_ephemeral() {
            return Err(PublishError::TopicNotExist);
        }
        let max = self.settings.max_topics;
        if max > 0 && self.topics.all().count() as u64 + count >= max {
            return Err(PublishError::TooManyTopics);
        }
        self.topics.begin(name.clone(), None);
        let until = now.ticks + Duration::from_millis(self.settings.pub_waiting_timeout_ms);
        self.cluster_mut().wanted.topics.insert(name.clone(), Wanted { until, waiters: None });
        self.timers.at_most(Timer::Wanted, Some(until));
        self.outbox.push(Effect::Ask(Ask::CreateTopic { name, partitions }));
        Ok(false)
    }

    /// A topic of the metadata: who asked for it waits on, until its leaders are known.
    pub(super) fn topic_came(&mut self, topic: &TopicRef, waiters: Waiters) {
        match self.cluster_mut().wanted.topics.get_mut(&topic.name) {
            Some(wanted) => wanted.waiters = Some(waiters),
            None => self.tell_waiters(waiters, Ok(topic.clone())),
        }
    }

    /// Looks at a wanted topic again after its leaders changed.
    pub(super) fn look_at_wanted(&mut self, topic: &TopicRef) {
        let wanted = &self.cluster_mut().wanted.topics;
        if !wanted.is_empty()
            && wanted.get(&topic.name).is_some_and(|w| w.waiters.is_some())
            && self.topics.is_settled(&topic.name)
        {
            self.end_wanted(&topic.name);
        }
    }

    /// Takes in that the cluster does not create the topic.
    pub(super) fn topic_refused(&mut self, name: &TopicName, error: PublishError) {
        if let Some(Wanted { waiters: None, .. }) = self.cluster_mut().wanted.topics.get(name) {
            self.cluster_mut().wanted.topics.remove(name);
            self.topic_failed(name, error);
        }
    }

    /// Clients that waited too long.
    pub(in crate::shard) fn expire_wanted(&mut self, now: Now) {
        let all = &self.cluster_mut().wanted.topics;
        let late: Vec<TopicName> = all.iter().filter(|(_, w)| w.until <= now.ticks).map(|(name, _)| name.clone()).collect();
        late.iter().for_each(|name| self.end_wanted(name));
        let next = self.cluster_mut().wanted.topics.values().map(|w| w.until).min();
        self.timers.at_most(Timer::Wanted, next);
    }

    /// Answers the waiting requests with the topic's present state.
    fn end_wanted(&mut self, name: &TopicName) {
        let Some(Wanted { waiters, .. }) = self.cluster_mut().wanted.topics.remove(name) else { return };
        match (waiters, self.topics.known(name).cloned()) {
            (Some(waiters), Some(topic)) => self.tell_waiters(waiters, Ok(topic)),
            (Some(waiters), None) => self.tell_waiters(waiters, Err(PublishError::TopicNotExist)),
            (None, _) => self.topic_failed(name, PublishError::NotWritable(Unwritable::NotCreated)),
        }
    }
}
