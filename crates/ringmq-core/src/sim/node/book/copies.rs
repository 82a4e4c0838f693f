//! Book of messages that were put off: none comes late, and a REQ for long leaves a copy in the log, for one channel.

use super::{Book, ChannelKey, StartupFindings};
use crate::base::MessagePlace;
use crate::format::batch::CopyOf;
use crate::sim::node::reader::ReaderKind;
use crate::sim::node::world::FORWARD_AFTER_MS;

impl Book {
    /// A copy that stands at this id has the body of the message whose id it says.
    pub fn a_copy_names_its_message(
        &self,
        found: &mut StartupFindings,
        at: (usize, MessagePlace),
        n: usize,
        copy_of: CopyOf<'_>,
    ) {
        let (topic, id) = at;
        found.forwarded += (copy_of.attempts == 0) as u64;
        found.copies.entry(n).or_default().push(((topic, copy_of.channel.to_owned()), id));
        let first = MessagePlace::new(id.partition, copy_of.log_id);
        let named = self.ids.get(&(topic, first));
        assert!(named.is_none_or(|named| *named == n), "ids_and_offsets_never_repeat: a copy of message {n} says {first:?}");
        let is_deferred = self.messages[n].delay_ms > FORWARD_AFTER_MS;
        assert!(
            copy_of.attempts > 0 || is_deferred,
            "ids_and_offsets_never_repeat: message {n} was copied, never delivered and not deferred for long"
        );
    }

    /// Whether a client was told which message has this id.
    pub fn is_named(&self, topic: usize, id: MessagePlace) -> bool {
        self.ids.contains_key(&(topic, id))
    }

    /// A native client got a copy, which it confirms by the id at which the copy stands. Returns the id that NSQ clients know.
    pub fn comes_as_copy(&mut self, channel: &ChannelKey, at: MessagePlace, copy_of: CopyOf<'_>, body: &[u8]) -> MessagePlace {
        assert!(copy_of.channel == channel.1, "none_invented: {channel:?} gets a copy for {}", copy_of.channel);
        let n = self.none_invented(channel.0, body);
        self.ids.insert((channel.0, at), n);
        self.order.is_alias(channel.0, at);
        MessagePlace::new(at.partition, copy_of.log_id)
    }

    /// Records that a message is about to be written as a deferred publish.
    pub fn is_due_in(&mut self, n: usize, delay_ms: u64) {
        (self.messages[n].due_ms, self.messages[n].delay_ms) = (self.wall_ms + delay_ms, delay_ms);
        self.has_copies |= delay_ms > FORWARD_AFTER_MS;
    }

    /// Whether copies of messages may stand between others in the logs.
    pub fn has_copies(&self) -> bool {
        self.has_copies
    }

    /// A REQ for longer than the message timeout was written: from now on the channel may have the message and a copy of it, which
    /// clients know by one id. A FIN of one says nothing of the other.
    pub fn puts_off_for_long(&mut self, channel: &ChannelKey, id: MessagePlace) {
        self.put_off.insert((channel.clone(), id));
        self.settled.remove(&(channel.clone(), id));
        self.counts.put_off += 1;
        self.has_copies = true;
    }

    /// The time of clients, and the wall clock of nodes that all have one.
    pub fn time_is(&mut self, now_ms: u64) {
        (self.now_ms, self.wall_ms) = (now_ms, now_ms);
    }

    /// The channel may have the message and a copy of it: after a REQ, or since it was published deferred and held back much.
    pub fn may_be_twice(&self, channel: &ChannelKey, id: MessagePlace) -> bool {
        let is_deferred = |n: &usize| self.messages[*n].delay_ms > FORWARD_AFTER_MS;
        self.put_off.contains(&(channel.clone(), id)) || self.ids.get(&(channel.0, id)).is_some_and(is_deferred)
    }

    /// Checks that due messages are finished in time while every consumer finishes at once: the other side of `due_times_hold`.
    /// `since_ms`: the time from which on they do. `way_ms`: the time of the way to the clients. A message that a channel has had was
    /// in time there, and a REQ may have put it off.
    pub fn none_is_late(&self, since_ms: u64, way_ms: u64) {
        let is_over = |due_by_ms: u64| due_by_ms > since_ms && due_by_ms + LATE_MS + way_ms <= self.wall_ms;
        for (n, m) in
            self.messages.iter().enumerate().filter(|(_, m)| m.is_acknowledged && m.delay_ms > 0 && is_over(m.due_by_ms))
        {
            let is_open = |c: &ChannelKey| !self.channels[c].finished.contains(&n) && !self.has_come(c, n);
            let missing = |c: &&ChannelKey| ReaderKind::of(&c.1).is_none() && is_open(c);
            let late = self.owed(n, self.place(n).or(self.anywhere(n))).find(missing);
            let (due, now) = (m.due_by_ms, self.wall_ms);
            assert!(late.is_none(), "due_times_hold: message {n} is due at {due} ms, and at {now} ms {late:?} lacks it");
        }
    }
}

/// Seed 770000189 of FULL_DISK: the publisher reads its answer when the message has come, and was put off by a REQ.
#[test]
fn what_a_channel_has_had_is_not_late_there() {
    use crate::base::{LogId, PartitionId, Rng};
    let (mut book, place) = (Book::default(), MessagePlace::new(PartitionId(0), LogId(1)));
    let [a, b] = ["a", "b"].map(|name| (0, name.to_owned()));
    book.subscribed_to(a.clone(), 0, Some(LogId::FIRST));
    let n = book.write_to(0, Some(0), &mut Rng::new(1));
    book.is_due_in(n, 100);
    book.time_is(100);
    let body = book.body(n).to_vec();
    book.delivered(&a, place, &body);
    book.acknowledged(n);
    book.time_is(1_000);
    book.none_is_late(50, 0);
    book.subscribed_to(b, 0, Some(LogId::FIRST));
    let late = std::panic::catch_unwind(|| book.none_is_late(50, 0)).expect_err("the other channel lacks it");
    assert!(late.downcast_ref::<String>().is_some_and(|text| text.starts_with("due_times_hold: message 0")), "{late:?}");
}

/// Time that the wheel of deferred messages and the turns of a node may take, in milliseconds.
const LATE_MS: u64 = 100;

/// Seed 990000000010519: the message stood in front of a late channel's begin, and its copy for an earlier channel behind it.
#[test]
fn a_late_channel_is_owed_what_stands_behind_its_begin_and_no_copy_for_another_one() {
    use crate::base::{LogId, PartitionId, Rng};
    let place = |id: u64| MessagePlace::new(PartitionId(0), LogId(id));
    let (mut book, channel) = (Book::default(), |name: &str| (0, name.to_owned()));
    book.subscribed_to(channel("first"), 0, Some(LogId::FIRST));
    let n = book.write_to(0, Some(0), &mut Rng::new(1));
    book.placed(n, place(5));
    book.acknowledged(n);
    let copy_of = CopyOf { log_id: LogId(5), unix_ns: 0, attempts: 0, channel: "first" };
    let body = book.body(n).to_vec();
    assert_eq!(book.comes_as_copy(&channel("first"), place(9), copy_of, &body), place(5));
    book.finished(&channel("first"), place(9));
    book.subscribed_to(channel("late"), 0, Some(LogId(6)));
    assert_eq!(book.owes(), None);
    book.subscribed_to(channel("from there on"), 0, Some(LogId(5)));
    assert_eq!(book.owes(), Some((n, Some(place(5)), &channel("from there on"))));
}
