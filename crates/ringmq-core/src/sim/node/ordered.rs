//! Book of order and delay: how far ordered channels are finished, and which messages may not come yet.
//!
//! An ordered channel hands a message out only when every ISR member knows, durably, that all before it are finished. So after a message
//! came, no earlier one may come again to a later subscriber.

use super::book::{Book, ChannelKey};
use crate::base::{LogId, MessagePlace, PartitionId};
use std::collections::{BTreeMap, BTreeSet};

/// The name of the ordered channel.
pub const ORDERED: &str = "ordered";

/// A REQ counts as taken when it is written so long after its message came: it cannot have timed out.
const SURELY_HELD_MS: u64 = super::world::MSG_TIMEOUT_MS / 2;
/// A client that goes so soon after a REQ may have lost it on the way: behind a publish that waits for replicas nothing is read.
const SURELY_READ_MS: u64 = 2_500;

/// Requeue with a delay: the message comes not before `due`, in this term of the leader.
struct Deferred {
    due: u64,
    term: u64,
    conn: u64,
    asked: u64,
}

#[derive(Default)]
pub struct Order {
    /// Last message that came, by ordered channel and partition.
    last: BTreeMap<(ChannelKey, u16), LogId>,
    /// First message that is not finished, by ordered channel and partition.
    open: BTreeMap<(ChannelKey, u16), LogId>,
    /// Messages that came, when, and in which term of their leader.
    came: BTreeMap<(ChannelKey, MessagePlace), (u64, u64)>,
    deferred: BTreeMap<(ChannelKey, MessagePlace), Deferred>,
    /// Connections that the node does not read any more. Their clients may not know yet, and go on asking.
    unread: BTreeSet<u64>,
    /// Ids that an ordered channel passed and that name no message: copies for another channel.
    copies: BTreeSet<(usize, MessagePlace)>,
    /// Ids at which copies stand that native clients got: they name a message that has another id.
    aliases: BTreeSet<(usize, MessagePlace)>,
    /// Term of a partition: rises whenever its leader may be another one, or one that forgot the deferred messages.
    terms: BTreeMap<(usize, u16), u64>,
    /// Deferred messages that came when they should.
    pub kept: u64,
    /// Messages of ordered channels that came.
    pub in_order: u64,
}

impl Order {
    /// A copy stands at this id.
    pub fn is_alias(&mut self, topic: usize, id: MessagePlace) {
        self.aliases.insert((topic, id));
    }

    /// The partition goes on with a log and channels of before: messages come again, and ids name others.
    pub fn starts_over(&mut self, topic: usize, partition: PartitionId) {
        let is_other = |(of, p): &(ChannelKey, u16)| of.0 != topic || *p != partition.0;
        self.last.retain(|key, _| is_other(key));
        self.open.retain(|key, _| is_other(key));
        let is_elsewhere = |(of, id): &(ChannelKey, MessagePlace)| of.0 != topic || id.partition != partition;
        self.came.retain(|key, _| is_elsewhere(key));
        self.deferred.retain(|key, _| is_elsewhere(key));
        *self.terms.entry((topic, partition.0)).or_default() += 1;
    }

    /// A message has this id: no ordered channel may have passed it as a copy.
    pub fn names_a_message(&self, topic: usize, id: MessagePlace) {
        assert!(!self.copies.contains(&(topic, id)), "ordered_channel_in_order: {id:?} of topic {topic} was passed unseen");
    }
}

impl Book {
    /// A partition's leader, or its memory, may be another one from now on.
    pub fn term_ends(&mut self, topic: usize, partition: u16) {
        *self.order.terms.entry((topic, partition)).or_default() += 1;
        self.is_disturbed();
    }

    fn term(&self, channel: &ChannelKey, id: MessagePlace) -> u64 {
        self.order.terms.get(&(channel.0, id.partition.0)).copied().unwrap_or(0)
    }

    /// Log ids up to which everything is finished on every ISR member, by partition.
    pub fn finished_for_good(&self, channel: &ChannelKey) -> BTreeMap<u16, LogId> {
        let of_channel = self.order.last.range((channel.clone(), 0)..=(channel.clone(), u16::MAX));
        of_channel.map(|((_, partition), last)| (*partition, *last)).collect()
    }

    /// The node sends a message, which is on its way now.
    pub fn leaves_in_order(&self, channel: &ChannelKey, id: MessagePlace) {
        let last = self.order.last.get(&(channel.clone(), id.partition.0)).copied().unwrap_or(LogId(0));
        assert!(id.log_id >= last, "ordered_channel_in_order: {id:?} of {channel:?} comes after {last:?}");
    }

    /// A client asked for it to come later.
    pub fn deferred(&mut self, conn: u64, channel: &ChannelKey, id: MessagePlace, delay_ms: u64) {
        let (key, term) = ((channel.clone(), id), self.term(channel, id));
        let is_sure = self.order.came.get(&key).is_some_and(|(at, of)| *of == term && at + SURELY_HELD_MS > self.now_ms);
        let is_read = !self.order.unread.contains(&conn);
        if is_sure && is_read && delay_ms > 0 && channel.1 != ORDERED {
            let (asked, due) = (self.now_ms, self.now_ms + delay_ms);
            self.order.deferred.insert(key, Deferred { due, term, conn, asked });
        }
    }

    /// The client is gone, or the node has dropped it: its last requests may not have been read, and its messages are redelivered at
    /// once, perhaps to another client before this one learns that its connection is closed.
    pub fn asks_no_more(&mut self, conn: u64) {
        let now = self.now_ms;
        self.order.unread.insert(conn);
        self.order.deferred.retain(|_, d| d.conn != conn || d.asked + SURELY_READ_MS < now);
    }

    /// Forgets the deferrals of a client at a node that does not lead the partition: they may be lost on the way to the leader.
    pub fn may_not_be_asked(&mut self, conn: u64, is_relayed: impl Fn((usize, u16)) -> bool) {
        self.order.deferred.retain(|(channel, id), d| d.conn != conn || !is_relayed((channel.0, id.partition.0)));
    }

    /// A REQ failed, of one of the channel's messages: none of them is known to wait.
    pub fn not_deferred(&mut self, channel: Option<&ChannelKey>) {
        self.order.deferred.retain(|(of, _), _| Some(of) != channel);
    }

    /// Drops deferred messages, which come again at once if the channel stays as it was.
    pub(super) fn drops_deferred(&mut self, channel: &ChannelKey, partition: u16) {
        self.order.deferred.retain(|(of, id), _| of != channel || id.partition.0 != partition);
    }

    /// Checks that a message comes neither before its time nor before its turn.
    pub(super) fn comes(&mut self, channel: &ChannelKey, id: MessagePlace) {
        let (key, term, now) = ((channel.clone(), id), self.term(channel, id), self.now_ms);
        if let Some(d) = self.order.deferred.remove(&key).filter(|d| d.term == term && self.is_delay_checked) {
            let due = d.due;
            assert!(now >= due, "deferred_not_early_not_lost: {id:?} comes to {channel:?} at {now} ms, {due} in term {term}");
            self.order.kept += 1;
        }
        self.order.came.insert(key, (now, term));
        if channel.1 == ORDERED {
            self.ordered_channel_in_order(channel, id);
        }
    }

    /// Whether the channel has had the message.
    pub(super) fn has_come(&self, channel: &ChannelKey, n: usize) -> bool {
        self.place(n).is_some_and(|id| self.order.came.contains_key(&(channel.clone(), id)))
    }

    /// An id that names no message, where others do: [`Order::names_a_message`] compares it with later messages.
    fn is_copy(&self, topic: usize, at: MessagePlace) -> bool {
        self.has_copies() && (!self.is_named(topic, at) || self.order.aliases.contains(&(topic, at)))
    }

    fn ordered_channel_in_order(&mut self, channel: &ChannelKey, id: MessagePlace) {
        let (key, came) = ((channel.clone(), id.partition.0), id.log_id);
        let mut open = *self.order.open.entry(key.clone()).or_insert(came);
        while open < came {
            let at = MessagePlace::new(id.partition, open);
            if self.is_copy(channel.0, at) {
                self.order.copies.insert((channel.0, at));
            } else if !self.has_finished(channel, at) {
                break;
            }
            open = LogId(open.0 + 1);
        }
        assert!(came <= open, "ordered_channel_in_order: {id:?} comes to {channel:?}, and {open:?} is not finished");
        self.order.in_order += 1;
        self.order.open.insert(key.clone(), open);
        let last = self.order.last.entry(key).or_default();
        *last = (*last).max(came);
    }
}

/// Copies for other channels stand between the messages of an ordered one.
#[test]
fn a_copy_of_a_deferred_publish_is_no_gap() {
    use crate::base::Rng;
    use crate::sim::node::world::FORWARD_AFTER_MS;
    let (mut book, at) = (Book::default(), MessagePlace::new(PartitionId(0), LogId(7)));
    let n = book.write_to(0, Some(0), &mut Rng::new(1));
    book.is_due_in(n, FORWARD_AFTER_MS);
    assert!(!book.is_copy(0, at), "nobody copies it");
    book.is_due_in(n, FORWARD_AFTER_MS + 1);
    assert!(book.is_copy(0, at));
}

/// Seed 4127493111043: the client asked for a delay when its node had heard already that the connection was gone.
#[test]
fn who_asks_on_a_lost_connection_is_not_heard() {
    let (mut book, channel) = (Book::default(), (0, "a".to_owned()));
    let place = |id| MessagePlace::new(PartitionId(0), LogId(id));
    let is_held = |book: &Book, id| book.order.deferred.contains_key(&(channel.clone(), place(id)));
    for (conn, id) in [(1, 7), (2, 8)] {
        book.comes(&channel, place(id));
        book.deferred(conn, &channel, place(id), 500);
        assert!(is_held(&book, id));
    }
    book.asks_no_more(1);
    assert!(!is_held(&book, 7) && is_held(&book, 8));
    book.comes(&channel, place(7));
    book.deferred(1, &channel, place(7), 500);
    assert!(!is_held(&book, 7));
}
