//! Creation of topics and partitions at their first use. In a cluster the coordinator creates topics, and only the metadata makes
//! partitions.

use super::partitions::Partition;
use super::parts::CoreParts;
use super::questions::Question;
use super::replication::Cluster;
use super::timers::Timer;
use crate::base::topic::home_core;
use crate::base::{Now, PartitionDir, PartitionId, TopicInfo, TopicName, TopicRef};
use crate::log::PartitionIdx;
use crate::replica::Replica;
use crate::seam::cluster::Ask;
use crate::seam::message::MeshMessage;
use crate::seam::outcome::PublishError;
use std::sync::Arc;
use std::time::Duration;

impl CoreParts {
    /// Sees to it that the topic comes into being; `true` when it is known already. A new topic gets so many partitions, 0: as many as
    /// the setting says. `cluster`: `None` on a stand-alone node.
    pub fn ensure_topic(
        &mut self,
        now: Now,
        cluster: Option<&mut Cluster>,
        name: &str,
        partitions: u16,
    ) -> Result<bool, PublishError> {
        if self.topics.known(name).is_some() {
            return Ok(true);
        }
        if let Some(cluster) = cluster {
            return self.want_topic(now, cluster, name, partitions);
        }
        if self.topics.is_stuck(name) {
            return Err(PublishError::ReadOnly);
        }
        if !self.topics.is_pending(name) {
            self.life.check_running()?;
            let name = TopicName::new(name).map_err(|_| PublishError::NoTopic)?;
            let home = home_core(&name, self.cores);
            if home == self.id {
                self.create_topic(now, name, partitions)?;
            } else {
                let ticket = self.questions.open(Question::Topic { name: name.clone() });
                self.topics.begin(name.clone(), None);
                self.outbox.pass(home, MeshMessage::EnsureTopic { ticket, name, partitions });
            }
        }
        Ok(false)
    }

    /// Asks the coordinator for the topic, unless it was asked. `false`: the answer follows.
    fn want_topic(&mut self, now: Now, cluster: &mut Cluster, name: &str, partitions: u16) -> Result<bool, PublishError> {
        cluster.wanted.check_creates()?;
        self.life.check_running()?;
        let until = now.ticks + Duration::from_millis(self.settings.pub_waiting_timeout_ms);
        if let Some(name) = cluster.wanted.want(&mut self.topics, name, until, self.settings.max_topics)? {
            self.timers.at_most(Timer::Wanted, Some(until));
            self.outbox.ask(Ask::CreateTopic { name, partitions });
        }
        Ok(false)
    }

    fn create_topic(&mut self, now: Now, name: TopicName, partitions: u16) -> Result<(), PublishError> {
        self.life.check_writable()?;
        if self.store.is_stuck() {
            return Err(PublishError::DiskFull);
        }
        let max = self.settings.max_topics;
        if max > 0 && self.topics.total() >= max {
            return Err(PublishError::TooManyTopics);
        }
        let id = self.topics.new_id();
        let partitions = if partitions == 0 { self.settings.partitions } else { partitions.min(PartitionId::COUNT_MAX) };
        let info = TopicInfo { name: name.clone(), id, partitions };
        tracing::info!(topic = %name, id = %id, partitions = info.partitions, "creating topic");
        let record = self.store.log_topic_create(&info, now.unix_ns, self.outbox.io());
        self.topics.begin(name, Some((info, record)));
        self.count_topics(1);
        Ok(())
    }

    pub fn topic_known(&mut self, topic: &TopicRef) {
        let waiters = self.topics.learn(topic);
        if !waiters.is_empty() {
            self.outbox.tell_waiters(waiters, Ok(topic.clone()));
        }
    }

    pub fn topic_failed(&mut self, name: &str, error: PublishError) {
        let waiters = self.topics.forget(name);
        self.outbox.tell_waiters(waiters, Err(error));
    }

    /// A partition of this core, made when it is used for the first time.
    pub fn partition(&mut self, now: Now, topic: &TopicRef, partition: PartitionId) -> Result<PartitionIdx, PublishError> {
        if let Some(idx) = self.topics.place(&topic.name, partition) {
            return Ok(idx);
        }
        if self.is_clustered {
            return Err(PublishError::NotLeader);
        }
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        let idx = self.partitions.find(&dir).unwrap_or_else(|| {
            let dir = Arc::new(dir);
            let idx = self.store.create(now, dir.clone(), self.outbox.io());
            let replica = Replica::new(self.epoch, self.store.durable_end(idx));
            self.partitions.insert(idx, Partition::alone(topic.clone(), dir, replica));
            idx
        });
        self.topics.set_place(&topic.name, partition, idx);
        Ok(idx)
    }
}
