//! Channels that have something to do at the end of a turn. Each stands in a list at most once: the flags of its
//! [`ChannelState`] say whether it does.

use super::partitions::{ChannelKey, ChannelState};
use crate::base::SubId;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Agenda {
    /// Channels that may have something to deliver, in turn: those that are `queued`.
    ready: VecDeque<ChannelKey>,
    /// Channels with FINs that no journal record holds yet: those that are `dirty`.
    fins: Vec<ChannelKey>,
    /// Emptied list of clients that could take more than their partition was lent.
    spare_hungry: Vec<SubId>,
}

impl Agenda {
    /// The channel may have something to deliver.
    pub fn wake(&mut self, key: ChannelKey, channel: &mut ChannelState) {
        if !std::mem::replace(&mut channel.queued, true) {
            self.ready.push_back(key);
        }
    }

    pub fn num_ready(&self) -> usize {
        self.ready.len()
    }

    /// The channel whose turn it is. Whoever takes it clears its `queued`.
    pub fn next_ready(&mut self) -> Option<ChannelKey> {
        self.ready.pop_front()
    }

    /// Nothing is delivered any more.
    pub fn drop_ready(&mut self) {
        self.ready.clear();
    }

    /// The channel has FINs for the journal.
    pub fn add_fins(&mut self, key: ChannelKey, channel: &mut ChannelState) {
        if !std::mem::replace(&mut channel.dirty, true) {
            self.fins.push(key);
        }
    }

    pub fn has_fins(&self) -> bool {
        !self.fins.is_empty()
    }

    /// The channels that have FINs. Whoever takes them clears `dirty` of those that the journal took, and puts back the others.
    pub fn take_fins(&mut self) -> Vec<ChannelKey> {
        std::mem::take(&mut self.fins)
    }

    pub fn put_back_fins(&mut self, fins: Vec<ChannelKey>) {
        self.fins = fins;
    }

    /// An empty list; whoever takes it gives it back.
    pub fn take_hungry(&mut self) -> Vec<SubId> {
        std::mem::take(&mut self.spare_hungry)
    }

    pub fn give_back_hungry(&mut self, emptied: Vec<SubId>) {
        self.spare_hungry = emptied;
    }

    /// The channel is gone.
    pub fn forget(&mut self, key: ChannelKey) {
        self.ready.retain(|k| *k != key);
        self.fins.retain(|k| *k != key);
    }

    #[cfg(test)]
    pub fn num_fins(&self) -> usize {
        self.fins.len()
    }
}
