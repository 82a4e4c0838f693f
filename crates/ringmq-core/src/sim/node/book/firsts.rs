//! First channel of a topic: it is the same in all partitions.

use super::{Book, ChannelKey};
use crate::base::PartitionId;
use crate::log::recovery::Recovered;
use crate::log::state::RecoveredPartition;
use std::collections::BTreeSet;

impl Book {
    /// Checks that partition 0's word on the topic's first channel holds in all partitions.
    pub(super) fn first_is_everywhere(&self, r: &Recovered) {
        for zero in r.partitions.iter().filter(|p| p.dir.partition == PartitionId(0)) {
            for first in zero.channels.iter().filter(|c| c.first) {
                let has = |p: &RecoveredPartition| p.topic.id != zero.topic.id || p.channels.iter().any(|c| c.name == first.name);
                assert!(r.partitions.iter().all(has), "first_is_everywhere: {}/{}", zero.topic.name, first.name);
            }
        }
    }

    /// Channels of a topic that got some messages acknowledged before any SUB. Without topics where a native client may have made a
    /// channel of one partition: it may begin anywhere, and be that partition's first.
    fn firsts(&self) -> impl Iterator<Item = (&BTreeSet<usize>, Vec<&ChannelKey>)> {
        self.early.iter().filter(|(topic, _)| !self.native_topics.contains(topic)).map(|(topic, early)| {
            let of_it = self.channels.iter().filter(|((t, _), _)| t == topic);
            (early, of_it.filter(|(_, known)| early.iter().any(|n| known.finished.contains(n))).map(|(key, _)| key).collect())
        })
    }

    /// Number of messages of `early` that a channel finished.
    fn finished_of(&self, early: &BTreeSet<usize>, channel: &ChannelKey) -> usize {
        early.iter().filter(|n| self.channels[channel].finished.contains(n)).count()
    }

    /// A first channel that still lacks some of the messages before it.
    pub fn first_lacks(&self) -> Option<&ChannelKey> {
        let mut one = self.firsts().filter_map(|(early, firsts)| (firsts.len() == 1).then(|| (early, firsts[0])));
        one.find(|(early, first)| self.finished_of(early, first) < early.len()).map(|(_, first)| first)
    }

    /// Checks that messages acknowledged before any SUB went, all of them, to the first channel, and none to the others.
    pub(super) fn one_channel_is_first(&mut self) {
        let mut count = 0;
        for (early, firsts) in self.firsts() {
            for channel in &firsts {
                let got = self.finished_of(early, channel);
                assert_eq!(got, early.len(), "one_channel_is_first: {channel:?} got a part of what was there before it");
            }
            assert!(firsts.len() <= 1, "one_channel_is_first: both {:?} and {:?}", firsts[0], firsts[1]);
            count += !firsts.is_empty() as u64;
        }
        self.counts.firsts += count;
    }
}
