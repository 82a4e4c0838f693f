//! Which channel of a topic is its first one: the same in all partitions.

use super::Book;
use crate::base::PartitionId;
use crate::log::recovery::Recovered;
use crate::log::state::RecoveredPartition;

impl Book {
    /// What partition 0 says of its topic's first channel holds in all partitions.
    pub(super) fn first_is_everywhere(&self, r: &Recovered) {
        for zero in r.partitions.iter().filter(|p| p.dir.partition == PartitionId(0)) {
            for first in zero.channels.iter().filter(|c| c.first) {
                let has = |p: &RecoveredPartition| p.topic.id != zero.topic.id || p.channels.iter().any(|c| c.name == first.name);
                assert!(r.partitions.iter().all(has), "first_is_everywhere: {}/{}", zero.topic.name, first.name);
            }
        }
    }

    /// What was acknowledged before any SUB came, whole, to the first channel, and nothing of it to the others. Not where a
    /// native client may have made a channel of one partition: it may begin anywhere, and be that partition's first.
    pub(super) fn one_channel_is_first(&mut self) {
        for (topic, early) in self.early.iter().filter(|(topic, _)| !self.native_topics.contains(topic)) {
            let of_it = self.channels.iter().filter(|((t, _), _)| t == topic);
            let firsts: Vec<_> = of_it.filter(|(_, known)| early.iter().any(|n| known.finished.contains(n))).collect();
            for (channel, known) in &firsts {
                let got = early.iter().filter(|n| known.finished.contains(n)).count();
                assert_eq!(got, early.len(), "one_channel_is_first: {channel:?} got a part of what was there before it");
            }
            assert!(firsts.len() <= 1, "one_channel_is_first: both {:?} and {:?}", firsts[0].0, firsts[1].0);
            self.counts.firsts += !firsts.is_empty() as u64;
        }
    }
}
