//! Messages that an operator gave up: acknowledged or delivered, and not in the log with which the partition continues. No channel is
//! owed these messages any more, and they never come (`what_was_given_up_never_comes`). All others are owed.

use super::{Book, StartupFindings};
use crate::base::PartitionId;
use std::collections::BTreeSet;

impl Book {
    /// The partition continues with the log on this disk. Returns the messages that are lost by it. Their ids may come again for others.
    pub fn gives_up(&mut self, (topic, partition): (usize, u16), found: &StartupFindings) -> BTreeSet<usize> {
        let is_there = |n: &usize| found.stored.contains_key(n) || found.copies.contains_key(n) || self.is_below(found, *n);
        let is_in = |n: &usize| {
            let at = self.messages[*n].partition.or_else(|| self.place(*n).map(|id| id.partition.0));
            self.messages[*n].topic == topic && at == Some(partition)
        };
        let committed = (0..self.messages.len()).filter(|n| self.is_committed(*n) && is_in(n));
        let lost: BTreeSet<usize> = committed.filter(|n| !is_there(n)).collect();
        lost.iter().for_each(|n| self.forget(*n));
        self.groups.retain(|group| !group.iter().any(|n| lost.contains(n)));
        self.early.values_mut().for_each(|early| early.retain(|n| !lost.contains(n)));
        self.forget_channels((topic, partition), found);
        self.order.starts_over(topic, PartitionId(partition));
        self.given_up.extend(&lost);
        lost
    }

    fn forget(&mut self, n: usize) {
        let m = &mut self.messages[n];
        (m.is_acknowledged, m.is_delivered) = (false, false);
        m.owed.clear();
        if let Some(id) = self.places.remove(&n) {
            self.ids.remove(&(m.topic, id));
        }
        self.message_ids.forget(n);
        for channel in self.channels.values_mut() {
            channel.finished.remove(&n);
        }
    }

    /// Channels that were made while the replica was away are gone with the rest.
    fn forget_channels(&mut self, (topic, partition): (usize, u16), found: &StartupFindings) {
        let images = found.images.get(&(topic, partition));
        let is_there = |name: &str| images.is_some_and(|all| all.iter().any(|image| *image.name == *name));
        for (key, channel) in self.channels.iter_mut().filter(|((of, name), _)| *of == topic && !is_there(name)) {
            if channel.partitions.remove(&partition).is_some() {
                let of_it = |owed: &(super::ChannelKey, Option<u16>)| owed.0 == *key && owed.1 == Some(partition);
                self.messages.iter_mut().for_each(|m| m.owed.retain(|owed| !of_it(owed)));
                // Made anew, the channel may begin inside a batch.
                self.cut_channels.insert(key.clone());
            }
        }
    }

    /// Checks a message that comes to a client.
    pub(super) fn what_was_given_up_never_comes(&self, n: usize) {
        assert!(!self.given_up.contains(&n), "what_was_given_up_never_comes: message {n}");
    }

    /// Messages of these that stand on a disk.
    pub fn standing<'a>(found: &'a StartupFindings, of: &'a BTreeSet<usize>) -> impl Iterator<Item = usize> + 'a {
        of.iter().copied().filter(|n| found.stored.contains_key(n))
    }

    /// Whether an operator gave up anything.
    pub fn has_given_up(&self) -> bool {
        !self.given_up.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{LogId, MessagePlace, Rng};

    #[test]
    fn what_the_log_lacks_is_owed_no_more_and_the_rest_is() {
        let (mut book, mut rng, channel) = (Book::default(), Rng::new(1), (0, "a".to_owned()));
        let place = |id| MessagePlace::new(PartitionId(0), LogId(id));
        book.subscribed_to(channel.clone(), 0, Some(LogId::FIRST));
        let messages: Vec<usize> = (0..3).map(|_| book.write_to(0, Some(0), &mut rng)).collect();
        messages.iter().for_each(|n| book.acknowledged(*n));
        let body = book.body(messages[2]).to_vec();
        book.delivered(&channel, place(3), &body);
        let mut found = StartupFindings::default();
        found.stored.extend((0..2).map(|i| (messages[i], place(1 + i as u64))));
        found.images.insert((0, 0), vec![]);
        assert_eq!(book.gives_up((0, 0), &found), BTreeSet::from([messages[2]]));
        assert_eq!(book.owes(), None, "the channel is gone");
        assert!(book.is_committed(messages[1]) && !book.is_committed(messages[2]));
        // Another message has the id now.
        let next = book.write_to(0, Some(0), &mut rng);
        let other = book.body(next).to_vec();
        book.subscribed_to(channel.clone(), 0, None);
        book.delivered(&channel, place(3), &other);
        let again = std::panic::catch_unwind(move || book.delivered(&channel, place(4), &body)).expect_err("it was given up");
        assert!(again.downcast_ref::<String>().is_some_and(|text| text.starts_with("what_was_given_up_never_comes")));
    }
}
