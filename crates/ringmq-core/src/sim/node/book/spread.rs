//! SUB of all partitions of a cluster's topic. Its OK says that the channel is on some partition; a message says that the channel is on the
//! message's partition. At rest it is on all (`a_consumer_reads_all_partitions`), and no client gets more than its RDY
//! (`rdy_is_never_exceeded`).

use super::super::moved::MOVED;
use super::super::operated::OPERATED;
use super::{Book, ChannelKey};
use crate::base::MessagePlace;
use std::collections::{BTreeMap, BTreeSet};

/// The ephemeral channel of regular topics.
pub const EPHEMERAL: &str = "e#ephemeral";

/// Time that a message takes to a client at most, at rest.
const WAY_MS: u64 = 150;

#[derive(Default)]
pub struct Spread {
    /// Partitions of each topic.
    partitions: BTreeMap<usize, u16>,
    /// Time since which nodes, links and leaders are as they are: of what clients got since then, none comes again that a client has.
    calm_since_ms: Option<u64>,
    /// Topics of which a client may have read an ephemeral channel.
    ephemeral: BTreeSet<usize>,
}

impl Book {
    pub(super) fn topic_has(&mut self, topic: usize, partitions: u16) {
        self.spread.partitions.insert(topic, partitions);
    }

    /// A SUB of all partitions was answered.
    pub fn subscribed_to_some(&mut self, channel: ChannelKey) {
        self.channels.entry(channel).or_default();
    }

    /// A SUB of all partitions gets a message of this one.
    pub fn comes_from_any(&mut self, channel: &ChannelKey, partition: u16) {
        if !self.is_on(channel, partition) {
            self.subscribed_to(channel.clone(), partition, None);
        }
    }

    /// A SUB of all partitions is at rest for longer than it takes to find all leaders.
    pub fn reads_all_partitions(&mut self, channel: &ChannelKey) {
        let partitions = self.spread.partitions.get(&channel.0).copied().unwrap_or(0);
        (0..partitions).for_each(|partition| self.comes_from_any(channel, partition));
    }

    /// The channel gets a message of the topic, whichever partition takes it. Not where an operator or a client moves the channel.
    pub(super) fn is_on_all(&self, channel: &ChannelKey) -> bool {
        let is_moved = channel.1 == OPERATED || channel.1 == MOVED;
        let partitions = self.spread.partitions.get(&channel.0).copied().unwrap_or(0);
        !is_moved && partitions > 0 && (0..partitions).all(|partition| self.is_on(channel, partition))
    }

    /// A client asks for the topic's ephemeral channel, which may be the only one for a while: nobody needs what is gone with it.
    pub fn has_ephemeral(&mut self, topic: usize) {
        self.spread.ephemeral.insert(topic);
    }

    pub(in crate::sim::node) fn had_ephemeral(&self, topic: usize) -> bool {
        self.spread.ephemeral.contains(&topic)
    }

    /// A message comes to an ephemeral channel: it is committed, due and what its publisher wrote.
    pub fn comes_to_ephemeral(&mut self, channel: &ChannelKey, id: MessagePlace, body: &[u8]) {
        let n = self.none_invented(channel.0, body);
        self.what_was_given_up_never_comes(n);
        self.ids_and_offsets_never_repeat(channel.0, id, n);
        self.due_times_hold(channel, n);
        self.messages[n].is_delivered = true;
    }

    pub fn finished_by_ephemeral(&mut self, topic: usize, id: MessagePlace) {
        let n = self.ids[&(topic, id)];
        self.messages[n].is_finished = true;
    }

    /// The faults have ended, or begin again.
    pub fn is_calm(&mut self, is_calm: bool) {
        self.spread.calm_since_ms = is_calm.then_some(self.now_ms);
    }

    /// A leader, or a link between nodes, is another one.
    pub fn is_disturbed(&mut self) {
        self.spread.calm_since_ms = self.spread.calm_since_ms.map(|since| since.max(self.now_ms));
    }

    /// Checks the messages that a client has without an answer, by the times at which they came. The last one came just now.
    pub fn rdy_is_never_exceeded<'a>(&self, came_ms: impl Iterator<Item = &'a u64>, rdy: u32) {
        let Some(since) = self.spread.calm_since_ms else { return };
        let held = came_ms.filter(|came| **came > since + WAY_MS).count();
        assert!(
            held <= rdy as usize,
            "rdy_is_never_exceeded: a client holds {held} messages, and never was ready for more than {rdy}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;

    #[test]
    fn a_message_for_any_partition_is_owed_to_channels_that_are_on_all() {
        let (mut book, mut rng, channel) = (Book::default(), Rng::new(1), (0, "a".to_owned()));
        book.topic_has(0, 2);
        book.subscribed_to_some(channel.clone());
        book.comes_from_any(&channel, 1);
        let first = book.write_to(0, None, &mut rng);
        book.acknowledged(first);
        assert_eq!(book.owes(), None, "it may be in partition 0");
        book.reads_all_partitions(&channel);
        let second = book.write_to(0, None, &mut rng);
        book.acknowledged(second);
        assert_eq!(book.owes(), Some((second, None, &channel)));
    }

    #[test]
    fn more_than_rdy_is_noticed_while_all_is_calm() {
        let mut book = Book::default();
        book.rdy_is_never_exceeded([1, 2, 3].iter(), 2);
        book.time_is(1000);
        book.is_calm(true);
        book.rdy_is_never_exceeded([1000, 2000, 2000].iter(), 2);
        let told = std::panic::catch_unwind(|| book.rdy_is_never_exceeded([2000; 3].iter(), 2)).expect_err("three");
        assert!(told.downcast_ref::<String>().is_some_and(|text| text.starts_with("rdy_is_never_exceeded")));
    }
}
