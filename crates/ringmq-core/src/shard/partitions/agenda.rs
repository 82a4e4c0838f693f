//! Channels that have something to do at the end of a turn. Each stands in a list at most once: the flags of its
//! [`ChannelState`] say whether it does.

use super::{ChannelKey, ChannelState};
use std::collections::VecDeque;

#[derive(Default)]
pub struct Agenda {
    /// Channels that may have something to deliver, in turn: those that are `queued`.
    ready: VecDeque<ChannelKey>,
    /// Channels with FINs that no journal record holds yet: those that are `dirty`.
    fins: Vec<ChannelKey>,
    /// Channels whose cursor moved, of which their replica is to hear.
    moved: Vec<ChannelKey>,
}

impl Agenda {
    /// The channel may have something to deliver.
    pub(super) fn wake(&mut self, key: ChannelKey, channel: &mut ChannelState) {
        if !std::mem::replace(&mut channel.queued, true) {
            self.ready.push_back(key);
        }
    }

    pub fn num_ready(&self) -> usize {
        self.ready.len()
    }

    /// The channel whose turn it is; [`Partitions::begin_turn`](super::Partitions::begin_turn) takes it off the list.
    pub fn next_ready(&mut self) -> Option<ChannelKey> {
        self.ready.pop_front()
    }

    /// Drops the list of channels that have something to deliver.
    pub fn drop_ready(&mut self) {
        self.ready.clear();
    }

    /// The channel has FINs for the journal.
    pub(super) fn add_fins(&mut self, key: ChannelKey, channel: &mut ChannelState) {
        if !std::mem::replace(&mut channel.dirty, true) {
            self.fins.push(key);
        }
    }

    pub fn has_fins(&self) -> bool {
        !self.fins.is_empty()
    }

    /// The channels that have FINs. The caller puts back those that the journal did not take
    /// ([`ChannelState::take_fins`] is not called for them).
    pub fn take_fins(&mut self) -> Vec<ChannelKey> {
        std::mem::take(&mut self.fins)
    }

    pub fn put_back_fins(&mut self, fins: Vec<ChannelKey>) {
        self.fins = fins;
    }

    /// The channel's cursor moved.
    pub(super) fn note_moved(&mut self, key: ChannelKey, channel: &mut ChannelState) {
        if !std::mem::replace(&mut channel.has_moved, true) {
            self.moved.push(key);
        }
    }

    pub fn has_moved(&self) -> bool {
        !self.moved.is_empty()
    }

    pub fn take_moved(&mut self) -> Vec<ChannelKey> {
        std::mem::take(&mut self.moved)
    }

    /// The channel is gone.
    pub(super) fn forget(&mut self, key: ChannelKey) {
        self.ready.retain(|k| *k != key);
        self.fins.retain(|k| *k != key);
        self.moved.retain(|k| *k != key);
    }

    #[cfg(test)]
    pub fn num_fins(&self) -> usize {
        self.fins.len()
    }
}
