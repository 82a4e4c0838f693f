//! The book of promises to clients, over all lives of a node. Each check is named after the sentence of `docs/promise.md` that it holds,
//! and panics with that name first.
//!
//! It knows only the bytes that clients wrote and read, and the disk after a recovery; of the node's state only the ids of topics.

mod copies;
mod counts;
mod firsts;
mod found;
mod groups;
mod ids;
mod lost;
mod rest;
mod spread;
mod stop;
#[cfg(test)]
mod tests;

pub use self::counts::Counts;
pub use self::found::{ANYWHERE, Keeps, StartupFindings};
use self::ids::Ids;
pub use self::spread::EPHEMERAL;
use self::spread::Spread;
use super::moved::Moved;
pub use super::moved::{Floor, MOVED};
use super::operated::Operated;
pub use super::operated::{Answered, Change, Gone, OPERATED};
pub use super::ordered::ORDERED;
use super::ordered::Order;
use super::paused::Paused;
use super::producers::{Deleted, Producer};
pub use super::reach::ChannelKey;
use super::sequence::Sequence;
use crate::base::{LogId, MessagePlace, PartitionId, Rng, TopicId};
use crate::format::cursor::CursorImage;
use crate::log::recovery::Recovered;
use crate::log::recovery::channels::is_confirmed;
use crate::sim::check::log_of;
use crate::sim::disk::SimDisk;
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet};

/// Knowledge of clients about a channel.
#[derive(Default)]
struct Channel {
    /// Messages that its clients finished.
    finished: FxHashSet<usize>,
    /// A SUB was answered: it is on every partition.
    is_whole: bool,
    /// Partitions of which a native Subscribe was answered, and the begin of the channel there if the Subscribe created it.
    partitions: BTreeMap<u16, Option<LogId>>,
}

struct Written {
    topic: usize,
    body: Vec<u8>,
    /// Channels whose SUB was answered before this was written; of a native one, if it is stored in this partition.
    owed: Vec<(ChannelKey, Option<u16>)>,
    /// Partition that a native producer names.
    partition: Option<u16>,
    is_acknowledged: bool,
    /// The how manieth of all that were.
    acknowledged_as: u64,
    is_delivered: bool,
    /// A recovery did not find it: it must never come any more.
    is_gone: bool,
    /// True if the publish was refused as not carried out and was sent once: the message must never come.
    is_refused: bool,
    /// True once the client of some channel wrote FIN for it.
    is_finished: bool,
    /// True if its producer is idempotent.
    is_repeatable: bool,
    /// Time before which no channel may have it, by [`Book::wall_ms`].
    due_ms: u64,
    /// The delay that was asked for, and when it was over at the latest, as its answer came.
    delay_ms: u64,
    due_by_ms: u64,
}

const LOG_ID_MAX: u64 = (1 << 54) - 1;

/// An OK to a publish, and the FINs that its connection had written before.
struct Claim {
    conn: u64,
    message: usize,
    fins: Vec<(ChannelKey, MessagePlace)>,
}

/// Cause that made a FIN durable; for the text of a failure.
#[derive(Clone, Copy, Debug)]
struct Settled {
    _conn: u64,
    _published: usize,
    _at: MessagePlace,
    _generation: u64,
}

#[derive(Default)]
pub struct Book {
    messages: Vec<Written>,
    /// Messages of each MPUB.
    groups: Vec<Vec<usize>>,
    /// Channels whose SUB was answered.
    channels: BTreeMap<ChannelKey, Channel>,
    /// Channels that may begin inside a batch, by a client's request.
    cut_channels: BTreeSet<ChannelKey>,
    pub producers: Vec<Producer>,
    /// Core of each partition in this life, by node and topic that a client asked for.
    pub homes: BTreeMap<(usize, usize), Vec<u16>>,
    /// Message ids, each with its message.
    ids: BTreeMap<(usize, MessagePlace), usize>,
    places: BTreeMap<usize, MessagePlace>,
    /// The batch at an offset, by its header's crc.
    batches: BTreeMap<(usize, u16, i64), u32>,
    ends: BTreeMap<(usize, u16), i64>,
    claims: Vec<Claim>,
    /// FINs that failed, of this life's connections.
    failed_fins: BTreeSet<(u64, MessagePlace)>,
    /// FINs that an OK made durable.
    settled: BTreeMap<(ChannelKey, MessagePlace), Settled>,
    /// Messages that clients put off for longer than the message timeout.
    put_off: BTreeSet<(ChannelKey, MessagePlace)>,
    /// True when some message may have a copy: it was put off, or published deferred, for long.
    has_copies: bool,
    generation: u64,
    /// Topics to which a client has begun to subscribe.
    subscribed_topics: BTreeSet<usize>,
    early: BTreeMap<usize, BTreeSet<usize>>,
    /// Topics for whose channels a native client has asked, with or without an answer.
    native_topics: BTreeSet<usize>,
    /// Messages of ephemeral topics that were written, in all.
    passing: u64,
    /// First serial of each ephemeral topic that counts: earlier messages are gone for good.
    passing_floor: BTreeMap<u64, u64>,
    /// The topic id under which such a message was found on the disk.
    passing_ids: BTreeMap<u64, TopicId>,
    message_ids: Ids,
    /// Messages that an operator gave up.
    given_up: BTreeSet<usize>,
    pub(super) sequence: Sequence,
    pub(super) order: Order,
    pub(super) moved: Moved,
    pub(super) paused: Paused,
    pub(super) operated: Operated,
    spread: Spread,
    /// Channels of one partition that a reader asked for, with or without an answer.
    pub(super) read: BTreeSet<(ChannelKey, u16)>,
    /// Files of some core have failed, or its journal: until a restart its FINs may find no room there, and its ordered
    /// channels stand still.
    pub is_sick: bool,
    /// The time of clients.
    pub now_ms: u64,
    /// The wall clock of the one node.
    pub wall_ms: u64,
    /// True if no node is paused for so long that a message times out unseen.
    pub is_delay_checked: bool,
    pub counts: Counts,
}

pub fn topic_name(topic: usize) -> String {
    format!("topic{topic}")
}

pub const EPHEMERAL_TOPICS: u64 = 2;

pub fn passing_name(topic: u64) -> String {
    format!("passing{topic}#ephemeral")
}

/// The number and the topic that a message of an ephemeral topic names.
fn passing_of(body: &[u8]) -> (u64, u64) {
    let text = String::from_utf8_lossy(body);
    let mut words = text.split(' ').map(|w| w.parse().unwrap_or_else(|_| panic!("none_invented: {text}")));
    (words.next().expect("a number"), words.next().expect("a topic"))
}

/// An ephemeral topic has none of the book's numbers.
pub fn topic_number(name: &str) -> usize {
    if name.ends_with("#ephemeral") {
        return usize::MAX;
    }
    name.strip_prefix("topic").and_then(|n| n.parse().ok()).expect("clients use no other topics")
}

impl Book {
    // ---- clients' writes and reads

    /// `partition`: where the client wants it.
    pub fn write_to(&mut self, topic: usize, partition: Option<u16>, rng: &mut Rng) -> usize {
        let n = self.messages.len();
        let len = match rng.below(24) {
            0 => 20_000 + rng.below(20_000),
            1..5 => rng.below(4000),
            _ => rng.below(80),
        };
        let mut body = format!("{n} ").into_bytes();
        body.extend((0..len).map(|i| (i as usize * 7 + n * 13) as u8));
        let mut owed = vec![];
        for (key, channel) in self.channels.iter().filter(|((t, _), _)| *t == topic) {
            match channel.is_whole {
                true => owed.push((key.clone(), None)),
                false if partition.is_none() && self.is_on_all(key) => owed.push((key.clone(), None)),
                false => owed.extend(channel.partitions.keys().map(|p| (key.clone(), Some(*p)))),
            }
        }
        self.messages.push(Written {
            topic,
            body,
            owed,
            partition,
            is_acknowledged: false,
            acknowledged_as: 0,
            is_delivered: false,
            is_gone: false,
            is_refused: false,
            is_finished: false,
            is_repeatable: false,
            due_ms: 0,
            delay_ms: 0,
            due_by_ms: 0,
        });
        self.counts.written += 1;
        n
    }

    /// Checks that a message is due when the node sends it, or the client reads it.
    fn due_times_hold(&mut self, channel: &ChannelKey, n: usize) {
        let (due, now) = (self.messages[n].due_ms, self.wall_ms);
        assert!(now >= due, "due_times_hold: message {n} comes to {channel:?} at {now} ms, and is due at {due} ms");
        self.counts.deferred += (due > 0) as u64;
    }

    pub fn body(&self, n: usize) -> &[u8] {
        &self.messages[n].body
    }

    pub fn acknowledged(&mut self, n: usize) {
        self.counts.acknowledged += 1;
        let m = &mut self.messages[n];
        if !std::mem::replace(&mut m.is_acknowledged, true) {
            m.acknowledged_as = self.counts.acknowledged;
            m.due_by_ms = self.wall_ms + m.delay_ms;
        }
        let topic = m.topic;
        if !self.subscribed_topics.contains(&topic) {
            self.early.entry(topic).or_default().insert(n);
        }
    }

    /// The how manieth of all publishes that were acknowledged; `None`: it was not.
    pub(super) fn acknowledged_as(&self, n: usize) -> Option<u64> {
        let m = &self.messages[n];
        m.is_acknowledged.then_some(m.acknowledged_as)
    }

    /// Messages so far.
    pub(super) fn written(&self) -> usize {
        self.messages.len()
    }

    /// An idempotent producer sends it again: it may be stored now.
    pub fn sent_again(&mut self, n: usize) {
        (self.messages[n].is_gone, self.messages[n].is_repeatable) = (false, true);
    }

    /// The node says that it did not carry the publish out.
    pub fn refused(&mut self, n: usize) {
        self.messages[n].is_refused = true;
    }

    /// The node says where a message stands.
    pub fn placed(&mut self, n: usize, id: MessagePlace) {
        let m = &self.messages[n];
        assert!(m.partition.is_none_or(|p| p == id.partition.0), "message {n} is stored in another partition: {id:?}");
        self.ids_and_offsets_never_repeat(m.topic, id, n);
    }

    /// A publish was acknowledged after its connection had written these FINs.
    pub fn claim(&mut self, conn: u64, message: usize, fins: Vec<(ChannelKey, MessagePlace)>) {
        self.claims.push(Claim { conn, message, fins });
    }

    pub fn fin_failed(&mut self, conn: u64, id: MessagePlace) {
        self.failed_fins.insert((conn, id));
    }

    /// A client is about to write its SUB.
    pub fn subscribes(&mut self, topic: usize) {
        self.subscribed_topics.insert(topic);
    }

    /// A message for an ephemeral topic.
    pub fn pass(&mut self, topic: u64) -> Vec<u8> {
        self.passing += 1;
        let mut body = format!("{} {topic} ", self.passing).into_bytes();
        body.resize(300, b'x');
        body
    }

    pub fn passed(&self, topic: u64, body: &[u8]) {
        let (n, of) = passing_of(body);
        assert!(of == topic && n <= self.passing && body.len() == 300, "none_invented: {n} of {of} came in {topic}");
        let floor = self.passing_floor.get(&topic).copied().unwrap_or(0);
        assert!(n > floor, "a_gone_topic_stays_gone: message {n} of passing{topic} came back, all up to {floor} are gone");
    }

    /// The node has nothing of this ephemeral topic.
    pub fn passing_is_gone(&mut self, topic: u64) {
        self.passing_floor.insert(topic, self.passing);
    }

    pub fn subscribed(&mut self, channel: ChannelKey) {
        self.channels.entry(channel).or_default().is_whole = true;
    }

    /// A native client is about to send its Subscribe.
    pub fn subscribes_natively(&mut self, topic: usize) {
        self.native_topics.insert(topic);
    }

    /// A native client may ask for the channel to begin anywhere.
    pub fn may_begin_inside(&mut self, channel: &ChannelKey) {
        self.cut_channels.insert(channel.clone());
    }

    /// Position behind the last message of a partition that is known to be there.
    pub fn end_known(&self, topic: usize, partition: u16) -> LogId {
        let id = |log_id| MessagePlace::new(PartitionId(partition), LogId(log_id));
        let known = self.ids.range((topic, id(0))..=(topic, id(LOG_ID_MAX)));
        known.last().map_or(LogId(0), |((_, id), _)| LogId(id.log_id.0 + 1))
    }

    /// A native Subscribe was answered; `begins`: it made the channel there, so that all from there on is owed to it.
    pub fn subscribed_to(&mut self, channel: ChannelKey, partition: u16, begins: Option<LogId>) {
        if let Some(begins) = begins {
            for n in self.stored_from(channel.0, partition, begins) {
                self.messages[n].owed.push((channel.clone(), Some(partition)));
            }
        }
        let known = self.channels.entry(channel).or_default().partitions.entry(partition).or_default();
        if begins.is_some() {
            let before = std::mem::replace(known, begins);
            assert!(before.is_none(), "acked_survives: the channel was made twice, at {before:?} and {begins:?}");
            self.counts.native_channels += 1;
        }
    }

    /// Notes a channel that a client is about to ask for.
    pub(super) fn knows(&mut self, channel: &ChannelKey) {
        self.channels.entry(channel.clone()).or_default();
    }

    /// The channel goes from the partition, perhaps. Whether it was known to be there.
    pub(super) fn leaves_partition(&mut self, channel: &ChannelKey, partition: u16) -> bool {
        self.channels.get_mut(channel).is_some_and(|known| known.partitions.remove(&partition).is_some())
    }

    /// True if the channel is on every partition of its topic, as far as clients know.
    pub fn is_whole(&self, channel: &ChannelKey) -> bool {
        self.channels.get(channel).is_some_and(|c| c.is_whole)
    }

    /// True if a client knows the channel on that partition.
    pub fn is_on(&self, channel: &ChannelKey, partition: u16) -> bool {
        self.channels.get(channel).is_some_and(|c| c.is_whole || c.partitions.contains_key(&partition))
    }

    pub fn channels(&self) -> Vec<ChannelKey> {
        self.channels.keys().cloned().collect()
    }

    pub fn finished(&mut self, channel: &ChannelKey, id: MessagePlace) {
        let n = self.ids[&(channel.0, id)];
        self.messages[n].is_finished = true;
        self.counts.finished += 1;
        // a native client may hold messages of a channel whose Subscribe was answered
        self.channels.get_mut(channel).expect("only subscribers finish").finished.insert(n);
        self.note_finished(channel, id, n);
    }

    /// The channel was moved to `at`: all messages from there on are owed to it again, except those finished since.
    pub(super) fn comes_again(&mut self, channel: &ChannelKey, partition: u16, at: LogId, since: &BTreeSet<usize>) {
        let again = self.stored_from(channel.0, partition, at);
        let Some(known) = self.channels.get_mut(channel) else { return };
        for n in again.iter().filter(|n| !since.contains(n)) {
            known.finished.remove(n);
        }
    }

    /// Messages that are known to stand there or behind. The place of a copy counts for none: the copy is for one channel alone.
    fn stored_from(&self, topic: usize, partition: u16, from: LogId) -> Vec<usize> {
        let id = |log_id| (topic, MessagePlace::new(PartitionId(partition), log_id));
        let known = self.ids.range(id(from)..=id(LogId(LOG_ID_MAX)));
        known.filter(|((_, at), n)| self.place(**n) == Some(*at)).map(|(_, n)| *n).collect()
    }

    /// True if a client of the channel has written FIN for the message.
    pub fn has_finished(&self, channel: &ChannelKey, id: MessagePlace) -> bool {
        self.ids.get(&(channel.0, id)).is_some_and(|&n| self.is_finished(channel, n))
    }

    pub(super) fn is_finished(&self, channel: &ChannelKey, n: usize) -> bool {
        self.channels.get(channel).is_some_and(|c| c.finished.contains(&n))
    }

    pub(super) fn topic_of(&self, n: usize) -> usize {
        self.messages[n].topic
    }

    /// Messages that these ids name.
    pub(super) fn named(&self, topic: usize, ids: impl Iterator<Item = MessagePlace>) -> BTreeSet<usize> {
        ids.map(|id| self.ids[&(topic, id)]).collect()
    }

    pub fn delivered(&mut self, channel: &ChannelKey, id: MessagePlace, body: &[u8]) {
        let n = self.none_invented(channel.0, body);
        self.what_was_given_up_never_comes(n);
        self.ids_and_offsets_never_repeat(channel.0, id, n);
        let settled = self.settled.get(&(channel.clone(), id));
        assert!(settled.is_none(), "fin_before_ok_is_durable: message {n} {id:?} comes to {channel:?} again: {settled:?}");
        let begins = self.channels.get(channel).and_then(|c| c.partitions.get(&id.partition.0).copied().flatten());
        let has_begun = channel.1 == MOVED || begins <= Some(id.log_id);
        assert!(has_begun, "channel_begins_where_told: {channel:?} began at {begins:?}, and {id:?} comes");
        self.comes(channel, id);
        self.due_times_hold(channel, n);
        self.messages[n].is_delivered = true;
        self.counts.delivered += 1;
    }

    // ---- the sentences

    /// Checks that a stored or delivered message was written by a client, to this topic, with this body; and that a message that was
    /// missing after a startup never comes later.
    pub fn none_invented(&self, topic: usize, body: &[u8]) -> usize {
        let number = body.split(|&b| b == b' ').next().and_then(|n| std::str::from_utf8(n).ok()?.parse().ok());
        let n: usize = number.unwrap_or_else(|| panic!("none_invented: a body without a number: {body:?}"));
        let message = self.messages.get(n).unwrap_or_else(|| panic!("none_invented: message {n}"));
        assert!(message.topic == topic && message.body == body, "none_invented: message {n} is another one in topic {topic}");
        assert!(!message.is_gone, "none_invented: message {n} was missing after a startup and came back");
        assert!(!message.is_refused, "none_invented: message {n} was refused as not carried out, and is there");
        n
    }

    /// An id names one message, and a message has one id.
    fn ids_and_offsets_never_repeat(&mut self, topic: usize, id: MessagePlace, n: usize) {
        self.order.names_a_message(topic, id);
        let named = *self.ids.entry((topic, id)).or_insert(n);
        assert_eq!(named, n, "ids_and_offsets_never_repeat: {id:?} of topic {topic} names two messages");
        let place = *self.places.entry(n).or_insert(id);
        let name = match self.messages[n].is_repeatable {
            true => "no_duplicate_from_idempotent_producer",
            false => "ids_and_offsets_never_repeat",
        };
        assert_eq!(place, id, "{name}: message {n} is stored twice");
    }

    /// Compares a recovery's findings with the book. `cores_before`: number of cores in the ended life.
    pub fn recovered(&mut self, disk: &SimDisk, r: &Recovered, cores_before: u16) {
        assert!(!r.report.has_damage(), "nothing was damaged: {:?}", r.report);
        assert!(r.generation > self.generation, "ids_and_offsets_never_repeat: the generation did not rise");
        (self.generation, self.is_sick) = (r.generation, false);
        let regular = r.topics.iter().filter(|t| !t.name.is_ephemeral());
        regular.for_each(|t| self.topic_is(topic_number(&t.name), t.id));
        for topic in 0..EPHEMERAL_TOPICS {
            if r.topics.iter().all(|t| *t.name != *passing_name(topic)) {
                self.passing_is_gone(topic);
            }
        }
        self.first_is_everywhere(r);
        self.homes.clear();
        let found = self.look(disk, r);
        self.counts.copies += found.copies.len() as u64;
        self.counts.forwarded += found.forwarded;
        self.mpub_is_all_or_nothing(&found);
        self.replica_keeps(&found, &|_, _| true);
        self.fin_before_ok_is_durable(&found, r, cores_before);
        self.sets_survive(&found);
        self.operators_word_is_kept(&found, &|_, _| true);
        self.operations_end(&found);
        self.producers_recovered(|n| found.stored.get(&n).copied(), |book, n| book.is_deleted(&found, n));
        for (n, message) in self.messages.iter_mut().enumerate() {
            let is_here = found.stored.contains_key(&n) || found.copies.contains_key(&n);
            self.counts.survived += (is_here && message.is_acknowledged) as u64;
            if !is_here && !message.is_gone {
                message.is_gone = true;
                self.counts.gone += !message.is_delivered as u64;
                self.counts.deleted += message.is_delivered as u64;
            }
        }
    }

    /// Checks that a disk holds all delivered and acknowledged messages, and the channels, of the partitions for which it must.
    pub fn replica_keeps(&self, found: &StartupFindings, keeps: Keeps<'_>) {
        self.acked_survives(found, keeps);
        self.consumer_never_passes_commit(found, keeps);
        self.channels_survive(found, keeps);
    }

    /// Checks the answers to an operator.
    pub fn operators_word_is_kept(&mut self, found: &StartupFindings, keeps: Keeps<'_>) {
        self.pauses_survive(found, keeps);
        self.what_was_operated_holds(found, keeps);
    }

    fn is_kept(&self, n: usize, keeps: Keeps<'_>) -> bool {
        let m = &self.messages[n];
        let partition = m.partition.or_else(|| self.places.get(&n).map(|id| id.partition.0));
        keeps(m.topic, partition.unwrap_or(ANYWHERE))
    }

    /// Place of a message, once a client was told or it was delivered.
    pub fn place(&self, n: usize) -> Option<MessagePlace> {
        self.places.get(&n).copied()
    }

    /// True if the message was acknowledged or delivered, and so is committed.
    pub fn is_committed(&self, n: usize) -> bool {
        self.messages[n].is_acknowledged || self.messages[n].is_delivered
    }

    fn look(&mut self, disk: &SimDisk, r: &Recovered) -> StartupFindings {
        let mut found = StartupFindings { name: "acked_survives", ..StartupFindings::default() };
        for p in &r.partitions {
            let topic = topic_number(&p.topic.name);
            let key = (topic, p.dir.partition.0);
            let log = log_of(disk, p).unwrap_or_else(|e| panic!("{}/{}: {e}", p.topic.name, p.dir.partition));
            if p.topic.name.is_ephemeral() {
                let batches = log.iter().filter_map(|(_, batch)| batch.as_ref());
                for (n, _) in batches.flat_map(|b| b.messages()).map(|m| passing_of(m.body)) {
                    let id = *self.passing_ids.entry(n).or_insert(p.topic.id);
                    assert_eq!(id, p.topic.id, "a_gone_topic_stays_gone: message {n} stands in two topics of a name");
                }
                continue;
            }
            let old = self.ends.insert(key, p.end.offset).unwrap_or(0);
            assert!(old <= p.end.offset, "ids_and_offsets_never_repeat: {key:?} went back from {old} to {:?}", p.end);
            let first = log.first().map_or(p.end.log_id, |(h, _)| LogId(h.log_id.get()));
            found.first.insert(key, first);
            found.images.insert(key, p.channels.clone());
            for (h, batch) in log {
                let crc = h.header_crc.get();
                let known = *self.batches.entry((topic, key.1, h.offset.get())).or_insert(crc);
                assert_eq!(known, crc, "ids_and_offsets_never_repeat: another batch stands at {key:?} {}", h.offset);
                let batch = batch.unwrap_or_else(|| panic!("acked_survives: the batch at {key:?} {} is damaged", h.offset));
                for m in batch.messages() {
                    let id = MessagePlace::new(PartitionId(key.1), m.log_id);
                    let n = self.none_invented(topic, m.body);
                    if let Some(copy_of) = m.copy_of {
                        self.a_copy_names_its_message(&mut found, (topic, id), n, copy_of);
                        continue;
                    }
                    self.ids_and_offsets_never_repeat(topic, id, n);
                    found.stored.insert(n, id);
                }
            }
        }
        found
    }

    /// True if the message lay before the present first segment.
    fn is_below(&self, found: &StartupFindings, n: usize) -> bool {
        let is_first = |id: &MessagePlace| found.first.get(&(self.messages[n].topic, id.partition.0));
        self.places.get(&n).is_some_and(|id| is_first(id).is_some_and(|first| id.log_id < *first))
    }

    /// The channels that a message is owed to, when it is stored there.
    fn owed(&self, n: usize, at: Option<MessagePlace>) -> impl Iterator<Item = &ChannelKey> {
        let is_in = move |p: u16| at.is_some_and(|id| id.partition.0 == p);
        let is_owed = move |(key, p): &&(ChannelKey, Option<u16>)| p.is_none_or(is_in) && self.is_owed_still(key, *p, n);
        let owed = self.messages[n].owed.iter().filter(is_owed).map(|(key, _)| key);
        owed.filter(move |key| self.is_not_skipped(key, at))
    }

    /// True if the message may have been in a segment that retention removed: some client finished it, or all channels begin behind it.
    fn may_be_deleted(&self, found: &StartupFindings, n: usize) -> bool {
        let place = self.places.get(&n).copied();
        let images = |id: MessagePlace| found.images.get(&(self.messages[n].topic, id.partition.0)).filter(|i| !i.is_empty());
        let is_behind = |id: MessagePlace| images(id).is_some_and(|all| all.iter().all(|i| is_confirmed(i, id.log_id)));
        let nobody_s =
            |id: MessagePlace| images(id).is_none() && self.may_have_no_channel(self.messages[n].topic, id.partition.0);
        let is_done = self.messages[n].is_finished || place.is_some_and(|id| is_behind(id) || nobody_s(id));
        let all_finished = || self.owed(n, place).all(|c| self.channels[c].finished.contains(&n) || found.has_copy(n, c));
        (self.is_below(found, n) && is_done || self.may_be_deleted_unseen(found, n)) && all_finished()
    }

    /// Describes everything known of a lost message; for the text of a failure.
    fn tell(&self, found: &StartupFindings, n: usize) -> String {
        let (m, at) = (&self.messages[n], self.place(n));
        let key = (m.topic, at.map(|id| id.partition.0).or(m.partition).unwrap_or(ANYWHERE));
        let open: Vec<&ChannelKey> = self.owed(n, at).filter(|c| !self.channels[*c].finished.contains(&n)).collect();
        let (first, images) = (found.first.get(&key), found.images.get(&key));
        format!("{at:?} of {key:?}, which begins at {first:?}; owed to {open:?}; {images:?}")
    }

    fn is_deleted(&self, found: &StartupFindings, n: usize) -> Deleted {
        match self.is_below(found, n) {
            true => Deleted::Yes,
            false if self.may_be_deleted_unseen(found, n) => Deleted::Perhaps,
            false => Deleted::No,
        }
    }

    /// True if a message whose place is unknown may have lain before a partition's present start.
    fn may_be_deleted_unseen(&self, found: &StartupFindings, n: usize) -> bool {
        let m = &self.messages[n];
        let mut firsts = found.first.iter().filter(|((t, p), _)| *t == m.topic && m.partition.is_none_or(|own| own == *p));
        !self.places.contains_key(&n) && firsts.any(|(_, first)| first.0 > 0)
    }

    /// Checks that messages delivered before the node went down, acknowledged or not, exist after it.
    fn consumer_never_passes_commit(&self, found: &StartupFindings, keeps: Keeps<'_>) {
        let delivered = self.messages.iter().enumerate().filter(|(_, m)| m.is_delivered);
        for (n, _) in delivered.filter(|(n, _)| self.is_kept(*n, keeps)) {
            let exists = found.stored.contains_key(&n) || self.may_be_deleted(found, n);
            assert!(exists, "consumer_never_passes_commit: message {n} was delivered and is gone: {}", self.tell(found, n));
        }
    }

    /// Checks that acknowledged messages are stored, and that no channel takes one for finished that did not finish it.
    fn acked_survives(&self, found: &StartupFindings, keeps: Keeps<'_>) {
        let acknowledged = self.messages.iter().enumerate().filter(|(_, m)| m.is_acknowledged);
        for (n, _) in acknowledged.filter(|(n, _)| self.is_kept(*n, keeps)) {
            let Some(id) = found.stored.get(&n) else {
                let is_well = self.may_be_deleted(found, n);
                assert!(is_well, "{}: message {n} was acknowledged and is gone: {}", found.name, self.tell(found, n));
                continue;
            };
            for channel in self.owed(n, Some(*id)).filter(|c| !self.channels[*c].finished.contains(&n)) {
                let image = self.image(found, channel, id.partition);
                let is_there = !is_confirmed(image, id.log_id) || found.has_copy(n, channel);
                assert!(is_there, "acked_survives: {channel:?} never finished message {n} ({id:?})");
            }
        }
    }

    fn image<'a>(&self, found: &'a StartupFindings, channel: &ChannelKey, partition: PartitionId) -> &'a CursorImage {
        let images = found.images.get(&(channel.0, partition.0));
        let image = images.and_then(|all| all.iter().find(|i| *i.name == *channel.1));
        image.unwrap_or_else(|| panic!("acked_survives: the channel {channel:?} of partition {partition} is gone"))
    }

    /// A channel whose SUB was answered is on every partition of its topic; after a native Subscribe, on that one.
    fn channels_survive(&self, found: &StartupFindings, keeps: Keeps<'_>) {
        for (channel, known) in &self.channels {
            let partitions = found.images.keys().filter(|(topic, _)| *topic == channel.0);
            for &(_, p) in partitions.filter(|(t, p)| keeps(*t, *p) && (known.is_whole || known.partitions.contains_key(p))) {
                self.image(found, channel, PartitionId(p));
            }
        }
    }

    /// A FIN that was written before a publish on the same connection, for a partition of the core that stored the
    /// publish, is durable when the publish is acknowledged.
    fn fin_before_ok_is_durable(&mut self, found: &StartupFindings, r: &Recovered, cores_before: u16) {
        for claim in std::mem::take(&mut self.claims) {
            let core = |topic: usize, id: MessagePlace| {
                let info = r.topics.iter().find(|t| topic_number(&t.name) == topic).expect("it has messages");
                info.core_of(id.partition, cores_before)
            };
            let Some(&place) = self.places.get(&claim.message) else { continue };
            let home = core(self.messages[claim.message].topic, place);
            for (channel, fin) in claim.fins {
                let is_one = !self.failed_fins.contains(&(claim.conn, fin)) && !self.may_be_twice(&channel, fin);
                if core(channel.0, fin) == home && is_one {
                    let by = Settled { _conn: claim.conn, _published: claim.message, _at: place, _generation: r.generation - 1 };
                    self.settled.entry((channel, fin)).or_insert(by);
                }
            }
        }
        self.failed_fins.clear();
        self.counts.settled = self.settled.len() as u64;
        for ((channel, id), by) in &self.settled {
            let image = self.image(found, channel, id.partition);
            let is_kept = is_confirmed(image, id.log_id);
            assert!(
                is_kept,
                "fin_before_ok_is_durable: {channel:?} forgot the FIN of {id:?} {by:?}, cores {cores_before}: {image:?}"
            );
        }
    }

    /// Stands for the place of a message of which only the partition is known.
    fn anywhere(&self, n: usize) -> Option<MessagePlace> {
        self.messages[n].partition.map(|p| MessagePlace::new(PartitionId(p), LogId::FIRST))
    }

    /// The ordered channels of a core that failed do not.
    fn goes_on(&self, channel: &ChannelKey) -> bool {
        !self.is_sick || channel.1 != ORDERED
    }
}
