//! Book of a channel that an operator pauses, empties and deletes. Messages from before it was emptied or deleted are not owed to it
//! any more, and never come to it again: `what_an_operator_removed_never_comes`.

use super::book::{Book, ChannelKey, Keeps, StartupFindings};
use crate::base::{ChannelName, LogId, MessagePlace, PartitionId, TopicRef};
use crate::{
    codec::native::Start,
    seam::{
        message::{ChangeChannel, ChannelChange, MeshMessage, SetOffset, Ticket},
        outcome::SetOffsetError,
    },
};
use std::collections::BTreeMap;

/// The channel that operators empty and delete.
pub const OPERATED: &str = "operated";

/// Time for which bytes of a client that left may still be read and carried out.
const STRAY_MS: u64 = 6_000;

/// Name of the check.
const NAME: &str = "what_an_operator_removed_never_comes";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Pause,
    Unpause,
    Empty,
    Delete,
}

impl Change {
    /// The question of the HTTP thread.
    pub fn ask(self, ticket: Ticket, topic: TopicRef, partition: u16, channel: &str) -> MeshMessage {
        let (partition, channel) = (PartitionId(partition), ChannelName::new(channel).expect("valid"));
        let change = match self {
            Change::Pause => ChannelChange::Pause,
            Change::Unpause => ChannelChange::Unpause,
            Change::Delete => ChannelChange::Delete,
            Change::Empty => {
                let set = Box::new(SetOffset { topic, partition, channel, to: Start::Newest, from: None, force: true });
                return MeshMessage::SetOffset { ticket, set };
            }
        };
        MeshMessage::ChangeChannel { ticket, set: Box::new(ChangeChannel { topic, partition, channel, change }) }
    }

    fn removes(self) -> bool {
        matches!(self, Change::Empty | Change::Delete)
    }
}

/// Result of a change.
#[derive(Clone, Copy, Debug)]
pub enum Answered {
    /// Done; for one that empties, the position of the channel.
    Done(Option<LogId>),
    /// The channel does not exist.
    NoChannel,
    /// Unknown result.
    Unknown,
}

impl Answered {
    pub fn of<T>(result: Result<T, SetOffsetError>, at: impl FnOnce(T) -> Option<LogId>) -> Answered {
        match result {
            Ok(done) => Answered::Done(at(done)),
            Err(SetOffsetError::NoChannel) => Answered::NoChannel,
            Err(_) => Answered::Unknown,
        }
    }
}

/// Guarantee that messages before this do not come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gone {
    /// Position behind the last message that was known to be there.
    before: LogId,
    /// Number of publishes that were acknowledged.
    acknowledged: u64,
}

impl Gone {
    fn or_later(self, other: Gone) -> Gone {
        Gone { before: self.before.max(other.before), acknowledged: self.acknowledged.max(other.acknowledged) }
    }
}

/// A change without an answer.
struct OpenChange {
    change: Change,
    gone: Gone,
    was_on: bool,
    owed_since: usize,
}

#[derive(Default)]
struct ChangeModel {
    asked: Option<OpenChange>,
    /// Messages that were written before this one are not owed. The greatest number: none is owed, until a client is told that the
    /// channel exists.
    owed_since: usize,
    gone: Gone,
    /// Rises with each deletion, and with its answer.
    serial: u64,
    /// True if it may have been deleted at some time.
    was_deleted: bool,
    /// True if the channel is deleted, and no client has asked for it since.
    is_away: bool,
    /// Time until which the SUB of a client that left may be read.
    stray_until: u64,
}

#[derive(Default)]
pub struct Operated {
    places: BTreeMap<(ChannelKey, u16), ChangeModel>,
    pub emptied: u64,
    pub deleted: u64,
    /// Answered changes that a disk was asked for.
    pub looked_for: u64,
}

impl Book {
    /// An operator asks for the change; one at a time for a channel of a partition.
    pub fn operates(&mut self, channel: &ChannelKey, partition: u16, change: Change) {
        if matches!(change, Change::Pause | Change::Unpause | Change::Delete) {
            self.pauses(channel, partition);
        }
        if channel.1 != OPERATED {
            return;
        }
        let gone = Gone { before: self.end_known(channel.0, partition), acknowledged: self.counts.acknowledged };
        let was_on = change == Change::Delete && self.leaves_partition(channel, partition);
        let place = self.operated.places.entry((channel.clone(), partition)).or_default();
        assert!(place.asked.is_none(), "one at a time");
        place.asked = Some(OpenChange { change, gone, was_on, owed_since: place.owed_since });
        if change.removes() {
            place.owed_since = usize::MAX;
            self.may_begin_inside(channel);
            self.drops_deferred(channel, partition);
        }
        if change == Change::Delete {
            let place = self.operated.places.entry((channel.clone(), partition)).or_default();
            (place.serial, place.was_deleted) = (place.serial + 1, true);
        }
    }

    /// Records an answer, or that none will come. `is_wanted`: a SUB of the channel may be under way. `is_sure`: the answer that there
    /// is no such channel is certain.
    pub fn operated(
        &mut self,
        channel: &ChannelKey,
        partition: u16,
        change: Change,
        answer: Answered,
        is_wanted: bool,
        is_sure: bool,
    ) {
        if let (Answered::Done(_), Change::Pause | Change::Unpause) = (&answer, change) {
            self.was_paused(channel, partition, change == Change::Pause);
        }
        if channel.1 != OPERATED {
            return;
        }
        let written = self.written();
        let is_stray = |place: &ChangeModel| place.stray_until > self.now_ms;
        let key = (channel.clone(), partition);
        let Some(place) = self.operated.places.get_mut(&key) else { return };
        let Some(asked) = place.asked.take() else { return };
        match (answer, change) {
            (Answered::Done(_), Change::Pause | Change::Unpause) => {
                if place.owed_since == usize::MAX {
                    place.owed_since = written;
                }
                place.is_away = false;
                self.subscribed_to(channel.clone(), partition, None);
            }
            (Answered::Done(at), Change::Empty) => {
                let at = at.unwrap_or_default();
                assert!(at >= asked.gone.before, "{NAME}: {key:?} was emptied up to {at:?} alone: {:?}", asked.gone);
                place.gone = place.gone.or_later(Gone { before: at, ..asked.gone });
                place.owed_since = written;
                self.operated.emptied += 1;
            }
            (Answered::Done(_), Change::Delete) => {
                place.gone = place.gone.or_later(asked.gone);
                place.serial += 1;
                place.is_away = !is_wanted && !is_stray(place);
                self.operated.deleted += 1;
                self.is_not_paused(channel, partition);
            }
            (Answered::NoChannel, _) => {
                let is_on = asked.was_on || self.is_on(channel, partition);
                assert!(!is_on || !is_sure, "acked_survives: the channel {key:?} is gone, says the answer to {change:?}");
                if asked.was_on {
                    self.subscribed_to(channel.clone(), partition, None);
                }
                if let Some(place) = self.operated.places.get_mut(&key) {
                    place.owed_since = asked.owed_since;
                }
            }
            (Answered::Unknown, _) => {}
        }
    }

    /// A client is about to write its SUB: notes its guarantees, for [`Book::subscribed_to_operated`] and
    /// [`Book::what_an_operator_removed_never_comes`].
    pub fn asks_for_operated(&mut self, channel: &ChannelKey, partition: u16) -> (u64, Gone) {
        self.knows(channel);
        let place = self.operated.places.entry((channel.clone(), partition)).or_default();
        place.is_away = false;
        (place.serial, place.gone)
    }

    /// Records an answered SUB: the channel is there, unless it was deleted meanwhile.
    pub fn subscribed_to_operated(&mut self, channel: &ChannelKey, partition: u16, serial: u64) {
        let written = self.written();
        let place = self.operated.places.entry((channel.clone(), partition)).or_default();
        let asked = place.asked.as_ref().map(|a| a.change);
        if place.serial != serial || asked == Some(Change::Delete) {
            return;
        }
        let is_open = asked.is_some_and(Change::removes);
        if place.owed_since == usize::MAX && !is_open {
            place.owed_since = written;
        }
        self.subscribed_to(channel.clone(), partition, None);
    }

    /// Records a client that left without an answer to its SUB.
    pub fn may_ask_for_operated(&mut self, channel: &ChannelKey, partition: u16) {
        let until = self.now_ms + STRAY_MS;
        let place = self.operated.places.entry((channel.clone(), partition)).or_default();
        (place.stray_until, place.is_away) = (until, false);
    }

    /// Pauses, channels that were emptied or deleted, and how often a disk was asked for one of these.
    pub fn operators_counts(&self) -> (u64, u64, u64) {
        let (paused, operated) = (&self.paused, &self.operated);
        (paused.answered, operated.emptied + operated.deleted, paused.looked_for + operated.looked_for)
    }

    /// Messages that are gone by now.
    pub fn gone(&self, channel: &ChannelKey, partition: u16) -> Gone {
        self.operated.places.get(&(channel.clone(), partition)).map_or(Gone::default(), |p| p.gone)
    }

    /// Checks a message that comes to the channel, or leaves for it.
    pub fn what_an_operator_removed_never_comes(&self, channel: &ChannelKey, id: MessagePlace, body: &[u8], gone: Gone) {
        let n = self.none_invented(channel.0, body);
        let is_old = id.log_id < gone.before || self.acknowledged_as(n).is_some_and(|nth| nth <= gone.acknowledged);
        assert!(!is_old, "{NAME}: message {n} ({id:?}) comes to {channel:?}, of which {gone:?} is gone");
    }

    /// True if a message is owed to the channel, as far as an operator's changes are concerned.
    pub(super) fn is_owed_still(&self, channel: &ChannelKey, partition: Option<u16>, n: usize) -> bool {
        let Some(partition) = partition.filter(|_| channel.1 == OPERATED) else { return true };
        self.operated.places.get(&(channel.clone(), partition)).is_none_or(|place| n >= place.owed_since)
    }

    /// True if the partition's last channel may have gone: then its messages are not needed.
    pub(super) fn may_have_no_channel(&self, topic: usize, partition: u16) -> bool {
        let place = self.operated.places.get(&((topic, OPERATED.to_owned()), partition));
        place.is_some_and(|place| place.was_deleted) || self.had_ephemeral(topic)
    }

    /// Checks that the disks that must have it hold each answered change.
    pub(super) fn what_was_operated_holds(&mut self, found: &StartupFindings, keeps: Keeps<'_>) {
        for ((channel, partition), place) in &self.operated.places {
            let images = found.images.get(&(channel.0, *partition)).filter(|_| keeps(channel.0, *partition));
            let Some(images) = images else { continue };
            let image = images.iter().find(|i| *i.name == *channel.1);
            let is_away = place.is_away && place.asked.is_none();
            assert!(image.is_none() || !is_away, "{NAME}: {channel:?} {partition} was deleted: {image:?}");
            let is_behind = image.is_none_or(|i| i.confirmed.log_id >= place.gone.before);
            assert!(is_behind, "{NAME}: {:?} of {channel:?} {partition} is gone: {image:?}", place.gone);
            self.operated.looked_for += (place.gone.acknowledged > 0) as u64;
        }
    }

    /// A stand-alone node has started: now the outcome of unanswered changes is known.
    pub(super) fn operations_end(&mut self, found: &StartupFindings) {
        let written = self.written();
        let mut there = vec![];
        for ((channel, partition), place) in &mut self.operated.places {
            place.stray_until = 0;
            let is_unknown = place.asked.take().is_some() || place.owed_since == usize::MAX;
            let images = found.images.get(&(channel.0, *partition));
            if is_unknown && images.is_some_and(|all| all.iter().any(|i| *i.name == *channel.1)) {
                place.owed_since = written;
                there.push((channel.clone(), *partition));
            }
        }
        there.into_iter().for_each(|(channel, partition)| self.subscribed_to(channel, partition, None));
    }
}
