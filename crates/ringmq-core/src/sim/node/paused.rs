//! Book of channels that an operator pauses: while one is, nothing leaves the node for it, and a startup finds it so.

use super::book::{Book, ChannelKey, Keeps, StartupFindings};
use crate::base::MessagePlace;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Paused {
    /// Last answers; `None` once something else was asked for since.
    places: BTreeMap<(ChannelKey, u16), Option<bool>>,
    /// Pauses; not their ends, which every channel gets when a run is over.
    pub answered: u64,
    /// Answered pauses that a startup was asked for.
    pub looked_for: u64,
}

impl Book {
    /// An operator asks for the one or the other.
    pub fn pauses(&mut self, channel: &ChannelKey, partition: u16) {
        self.paused.places.insert((channel.clone(), partition), None);
    }

    pub fn was_paused(&mut self, channel: &ChannelKey, partition: u16, paused: bool) {
        self.paused.places.insert((channel.clone(), partition), Some(paused));
        self.paused.answered += u64::from(paused);
    }

    /// Forgets a deleted channel: a new one of the name is another.
    pub(super) fn is_not_paused(&mut self, channel: &ChannelKey, partition: u16) {
        self.paused.places.remove(&(channel.clone(), partition));
    }

    /// Channels that are paused, or may be.
    pub fn maybe_paused(&self) -> Vec<(ChannelKey, u16)> {
        self.paused.places.iter().filter(|(_, said)| **said != Some(false)).map(|(place, _)| place.clone()).collect()
    }

    /// A message leaves the node for the channel.
    pub fn a_pause_holds(&self, channel: &ChannelKey, id: MessagePlace) {
        let said = self.paused.places.get(&(channel.clone(), id.partition.0)).copied().flatten();
        assert_ne!(said, Some(true), "a_pause_holds: {id:?} comes to {channel:?}");
    }

    /// Checks that the disks that must have it hold each pause.
    pub(super) fn pauses_survive(&mut self, found: &StartupFindings, keeps: Keeps<'_>) {
        for ((channel, partition), said) in &self.paused.places {
            let (Some(paused), true) = (*said, keeps(channel.0, *partition)) else { continue };
            let images = found.images.get(&(channel.0, *partition));
            let image = images.and_then(|all| all.iter().find(|i| *i.name == *channel.1));
            assert!(image.is_some_and(|i| i.paused == paused), "a_pause_holds: {channel:?} {partition}: {paused}, but {image:?}");
            self.paused.looked_for += 1;
        }
    }
}
