//! Book of a channel whose offset clients set: from where on which messages are owed to it, and that an answered set stays.

use super::book::{Book, ChannelKey, StartupFindings};
use crate::base::{LogId, MessagePlace, PartitionId};
use std::collections::{BTreeMap, BTreeSet};

/// The channel whose offset is set.
pub const MOVED: &str = "moved";

/// Time for which bytes of a client that left may still be read and carried out.
const STRAY_MS: u64 = 5_000;

/// A set without an answer.
struct Setting {
    conn: u64,
    to: LogId,
    /// Messages finished since the set was written; they may stand behind the move.
    finished: BTreeSet<usize>,
}

#[derive(Default)]
struct SetModel {
    setting: Option<Setting>,
    /// Time until which the set of a client that left may be carried out, and its target.
    stray: Option<(u64, LogId)>,
    /// First id that is owed: an answered set put the channel there.
    owed_from: LogId,
    /// The same for sets with an unknown outcome: at most so far.
    perhaps: LogId,
    /// Target of the last answered set, unless another was written since.
    floor: Option<LogId>,
    /// Rises with every set that is written.
    serial: u64,
    /// Generation of the cursor at the last startup.
    generation: u64,
}

impl SetModel {
    /// First id that is owed: a client has moved the channel there, or may have.
    fn owed_from(&self) -> LogId {
        let asked = self.setting.as_ref().map(|s| s.to);
        asked.into_iter().chain(self.stray.map(|s| s.1)).fold(self.owed_from.max(self.perhaps), LogId::max)
    }
}

/// A FIN of a native client that the node has perhaps not read. A FIN names a message, not a delivery: a set that overtakes it has the
/// message delivered again, and to the same subscription perhaps before the FIN is read, which then finishes that delivery.
struct Unread {
    conn: u64,
    /// The answer to this request of the connection, or to a later one, says that the node has read the FIN.
    request: u64,
    channel: ChannelKey,
    partition: u16,
    n: usize,
    /// Time until which the node may read the set of a client that left.
    until: Option<u64>,
}

#[derive(Default)]
pub struct Moved {
    places: BTreeMap<(ChannelKey, u16), SetModel>,
    unread: Vec<Unread>,
    pub answered: u64,
    /// Answered sets that a startup was asked for.
    pub looked_for: u64,
}

/// Guarantee of a subscription: nothing before this comes, until the offset is set again.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    pub at: LogId,
    serial: u64,
}

impl Book {
    /// True if a set may be written: one at a time.
    pub fn may_set(&self, channel: &ChannelKey, partition: u16) -> bool {
        self.moved.places.get(&(channel.clone(), partition)).is_none_or(|p| p.setting.is_none())
    }

    /// A client writes a set to this message, or to one before it. `late`: messages that NSQ clients have finished, and whose FINs the
    /// node has perhaps not read; the book knows those of native clients. Of its own connection the node reads all FINs before the set.
    pub fn sets(&mut self, conn: u64, channel: &ChannelKey, partition: u16, to: LogId, mut late: BTreeSet<usize>) {
        let now = self.now_ms;
        self.moved.unread.retain(|u| u.until.is_none_or(|until| until >= now));
        let others = self.moved.unread.iter().filter(|u| u.conn != conn && (&u.channel, u.partition) == (channel, partition));
        late.extend(others.map(|u| u.n));
        let place = self.moved.places.entry((channel.clone(), partition)).or_default();
        place.setting = Some(Setting { conn, to, finished: late });
        place.floor = None;
        place.serial += 1;
    }

    /// Records an answered set: the channel stands there on every ISR member.
    pub fn was_set(&mut self, channel: &ChannelKey, partition: u16, at: LogId) {
        let now = self.now_ms;
        let Some(place) = self.moved.places.get_mut(&(channel.clone(), partition)) else { return };
        let Some(setting) = place.setting.take() else { return };
        place.stray = place.stray.filter(|s| s.0 >= now);
        (place.owed_from, place.perhaps) = (at, LogId(0));
        place.floor = Some(at).filter(|_| place.stray.is_none());
        self.moved.answered += 1;
        self.comes_again(channel, partition, at, &setting.finished);
    }

    /// Checks that a startup, of a node that is alone, found each answered set.
    pub(super) fn sets_survive(&mut self, found: &StartupFindings) {
        let name = "set_offset_is_never_undone";
        // all connections are gone
        self.moved.unread.clear();
        let mut places = std::mem::take(&mut self.moved.places);
        let ids: BTreeMap<(usize, MessagePlace), usize> =
            found.stored.iter().map(|(&n, &id)| ((self.topic_of(n), id), n)).collect();
        for ((channel, partition), place) in &mut places {
            // The set under way is decided: it put the channel at most where it stands now.
            place.perhaps = if place.setting.is_some() || place.stray.is_some() { place.owed_from() } else { place.perhaps };
            (place.setting, place.stray) = (None, None);
            let images = found.images.get(&(channel.0, *partition));
            let Some(image) = images.and_then(|all| all.iter().find(|i| *i.name == *channel.1)) else { continue };
            assert!(image.generation >= place.generation, "{name}: the generation of {channel:?} {partition} fell: {image:?}");
            place.generation = image.generation;
            place.perhaps = place.perhaps.min(image.confirmed.log_id);
            let Some(at) = place.floor else { continue };
            self.moved.looked_for += 1;
            let confirmed = image.confirmed.log_id;
            assert!(confirmed >= at, "{name}: {channel:?} {partition} was set to {at:?}: {image:?}");
            let id = |id| (channel.0, MessagePlace::new(PartitionId(*partition), id));
            for (_, n) in ids.range(id(at)..id(confirmed)) {
                assert!(
                    self.is_finished(channel, *n) || found.has_copy(*n, channel),
                    "{name}: {channel:?} {partition} was set to {at:?}, {n} unfinished: {image:?}"
                );
            }
        }
        self.moved.places = places;
    }

    /// The node says that it was not done, or that it does not know (`is_unknown`).
    pub fn set_failed(&mut self, channel: &ChannelKey, partition: u16, is_unknown: bool) {
        let Some(place) = self.moved.places.get_mut(&(channel.clone(), partition)) else { return };
        if let Some(setting) = place.setting.take().filter(|_| is_unknown) {
            place.perhaps = place.perhaps.max(setting.to);
        }
    }

    /// A native client writes a FIN, just before it writes, or as, this request.
    pub fn writes_fin(&mut self, conn: u64, request: u64, channel: &ChannelKey, id: MessagePlace) {
        if channel.1 != MOVED {
            return;
        }
        for n in self.named(channel.0, std::iter::once(id)) {
            let (channel, partition) = (channel.clone(), id.partition.0);
            self.moved.unread.push(Unread { conn, request, channel, partition, n, until: None });
        }
    }

    /// The node answers a request: it has read all that the connection wrote before.
    pub fn has_read(&mut self, conn: u64, request: u64) {
        self.moved.unread.retain(|u| u.conn != conn || u.request > request);
    }

    /// Records that the result will not be heard.
    pub fn set_ended(&mut self, conn: u64) {
        let until = self.now_ms + STRAY_MS;
        self.moved.unread.iter_mut().filter(|u| u.conn == conn).for_each(|u| u.until = Some(until));
        for place in self.moved.places.values_mut() {
            if let Some(setting) = place.setting.take_if(|s| s.conn == conn) {
                let before = place.stray.map_or(LogId(0), |s| s.1);
                place.stray = Some((until, before.max(setting.to)));
                place.perhaps = place.perhaps.max(setting.to);
            }
        }
    }

    pub fn floor(&self, channel: &ChannelKey, partition: u16) -> Option<Floor> {
        let place = self.moved.places.get(&(channel.clone(), partition))?;
        Some(Floor { at: place.floor?, serial: place.serial })
    }

    /// A message comes to a subscription that was asked for when this was the floor. `id`: where it stands, or its copy.
    pub fn set_offset_is_never_undone(&self, channel: &ChannelKey, id: MessagePlace, floor: Option<Floor>) {
        let Some(floor) = floor else { return };
        let place = self.moved.places.get(&(channel.clone(), id.partition.0));
        let is_last = place.is_some_and(|p| p.serial == floor.serial);
        assert!(
            !is_last || id.log_id >= floor.at,
            "set_offset_is_never_undone: {id:?} comes to {channel:?}, which was set to {:?}",
            floor.at
        );
    }

    pub(super) fn note_finished(&mut self, channel: &ChannelKey, id: MessagePlace, n: usize) {
        if channel.1 == MOVED
            && let Some(place) = self.moved.places.get_mut(&(channel.clone(), id.partition.0))
            && let Some(setting) = &mut place.setting
        {
            setting.finished.insert(n);
        }
    }

    /// True if a message at this place (or an unknown one) is owed to a channel, as far as sets are concerned.
    pub(super) fn is_not_skipped(&self, channel: &ChannelKey, at: Option<MessagePlace>) -> bool {
        if channel.1 != MOVED {
            return true;
        }
        let from = |p: u16| self.moved.places.get(&(channel.clone(), p)).map_or(LogId(0), SetModel::owed_from);
        at.is_some_and(|id| id.log_id >= from(id.partition.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;

    const SETTER: u64 = 1;
    const FINISHER: u64 = 2;

    fn place(id: u64) -> MessagePlace {
        MessagePlace::new(PartitionId(0), LogId(id))
    }

    /// Three messages that the channel is owed, acknowledged and delivered; the answers so far are to requests below 10.
    fn book() -> (Book, ChannelKey) {
        let (mut book, channel, mut rng) = (Book::default(), (0, MOVED.to_owned()), Rng::new(1));
        book.subscribes_natively(0);
        book.subscribed_to(channel.clone(), 0, Some(LogId::FIRST));
        for id in 1..=3 {
            let n = book.write_to(0, Some(0), &mut rng);
            book.placed(n, place(id));
            book.acknowledged(n);
        }
        (book, channel)
    }

    fn finish(book: &mut Book, request: u64, channel: &ChannelKey, ids: impl Iterator<Item = u64>) {
        for id in ids.map(place) {
            book.finished(channel, id);
            book.writes_fin(FINISHER, request, channel, id);
        }
    }

    fn set(book: &mut Book, conn: u64, channel: &ChannelKey, to: u64) {
        book.sets(conn, channel, 0, LogId(to), BTreeSet::new());
        book.was_set(channel, 0, LogId(to));
    }

    fn owed(book: &Book) -> Option<u64> {
        book.owes().map(|(_, at, _)| at.expect("it was placed").log_id.0)
    }

    #[test]
    fn a_set_that_failed_excuses_nothing_and_one_of_which_nobody_knows_does_until_the_next() {
        let (mut book, channel) = book();
        book.sets(SETTER, &channel, 0, LogId(3), BTreeSet::new());
        assert_eq!(owed(&book), Some(3), "it may be done at any moment");
        book.set_failed(&channel, 0, false);
        assert_eq!(owed(&book), Some(1), "it was not done: what it would have skipped is owed");
        book.sets(SETTER, &channel, 0, LogId(3), BTreeSet::new());
        book.set_failed(&channel, 0, true);
        assert_eq!(owed(&book), Some(3));
        set(&mut book, SETTER, &channel, 2);
        assert_eq!(owed(&book), Some(2), "the answer to a later set says where the channel stands");
    }

    /// Seed 88120260002028: the messages were delivered again to the client whose FINs were under way when another one set the offset.
    #[test]
    fn a_fin_that_a_set_overtook_may_count_after_it() {
        let (mut book, channel) = book();
        finish(&mut book, 10, &channel, 1..=3);
        set(&mut book, SETTER, &channel, 2);
        assert_eq!(owed(&book), None);
        set(&mut book, SETTER, &channel, 2);
        assert_eq!(owed(&book), None, "it is under way still");
    }

    #[test]
    fn what_was_finished_before_a_set_for_sure_is_owed_again() {
        let (mut book, channel) = book();
        finish(&mut book, 10, &channel, 1..=2);
        book.has_read(FINISHER, 9);
        book.has_read(SETTER, 20);
        finish(&mut book, 11, &channel, 3..=3);
        book.has_read(FINISHER, 10);
        set(&mut book, SETTER, &channel, 2);
        assert_eq!(owed(&book), Some(2), "the answer to 10 says that it was read before, and not that 3 was");
        finish(&mut book, 12, &channel, 2..=2);
        assert_eq!(owed(&book), None);
        set(&mut book, FINISHER, &channel, 3);
        assert_eq!(owed(&book), Some(3), "a connection's own FIN is read before its set");
    }

    #[test]
    fn a_fin_whose_client_has_left_is_read_soon_or_never() {
        let (mut book, channel) = book();
        finish(&mut book, 10, &channel, 1..=3);
        book.hung_up(FINISHER);
        book.now_ms += STRAY_MS;
        set(&mut book, SETTER, &channel, 1);
        assert_eq!(owed(&book), None);
        book.now_ms += 1;
        set(&mut book, SETTER, &channel, 1);
        assert_eq!(owed(&book), Some(1));
    }
}
