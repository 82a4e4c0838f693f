//! What native sessions ask of their core. Everything of a partition is asked on the partition's own core: a client
//! that is elsewhere is told where to go, so nothing of this protocol but a topic's creation crosses cores.

use super::cursors::{CursorChange, CursorRequest, Finisher};
use super::engine::{Attempt, Engine};
use super::failures::{failure_of, sequence_failure};
use super::offsets::Setter;
use super::outbox::Heard;
use super::partitions::{ChannelKey, Publisher};
use super::timers::Timer;
use crate::base::{ChannelName, ConnId, CoreId, IdMap, LogId, Now, PartitionId, Position, ProducerId, SubId, TopicRef};
use crate::channel::Run;
use crate::codec::native::{Code, IdRange, Messages, Retry, Start};
use crate::format::producer::Sequence;
use crate::log::native::{BadBody, BodyLimits, NativeBatch};
use crate::log::{Appended, BatchRefusal, PartitionIdx, Refusal, SearchBy};
use crate::seam::message::SetOffset;
use crate::seam::{
    message::SubOptions,
    outcome::{PublishError, SetOffsetError},
};
use crate::session::native::{
    Answer, ClientIdentity, Failure, NativeFinished, NativeHost, NativePublish, NativeSetOffset, NativeSubscribe, NativeTaken,
    PartitionPlace, TopicEntry,
};
use rustc_hash::FxHashSet;
use std::time::Duration;

/// Subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 4096;

/// Subscription whose channel is not final yet.
struct NativeSubscribing {
    created: CursorRequest,
    conn: ConnId,
    request: u64,
    answer: Answer,
}

/// What native connections of this core have, and wait for.
#[derive(Default)]
pub(super) struct NativeClients {
    subs: IdMap<ConnId, Vec<NativeSub>>,
    /// Verified batches that wait for space, by their request.
    stalled: IdMap<ConnId, (u64, NativeBatch)>,
    /// Connections whose output was full.
    blocked: FxHashSet<ConnId>,
    /// In the order in which they came.
    subscribing: Vec<NativeSubscribing>,
    /// Searches by their token.
    finding: IdMap<u64, Finding>,
    last_search: u64,
}

impl NativeClients {
    pub fn subs_of(&mut self, conn: ConnId) -> Option<&mut Vec<NativeSub>> {
        self.subs.get_mut(&conn)
    }

    /// Ends the connection's subscription to the channel. Returns its number.
    pub fn end(&mut self, conn: ConnId, key: ChannelKey) -> Option<u32> {
        let subs = self.subs.get_mut(&conn)?;
        let at = subs.iter().position(|s| s.key == key)?;
        Some(subs.swap_remove(at).number)
    }

    /// Whether the connection has a subscription that was not answered.
    pub fn is_subscribing(&self, conn: ConnId) -> bool {
        self.subscribing.iter().any(|s| s.conn == conn)
    }

    /// Whether a search is under way in the partition.
    pub fn searches_in(&self, idx: PartitionIdx) -> bool {
        self.finding.values().any(|f| f.idx == idx)
    }

    /// The batch that waited is refused.
    pub fn forget_stalled(&mut self, conn: ConnId) {
        self.stalled.remove(&conn);
    }

    fn sub_mut(&mut self, conn: ConnId, number: u32) -> Option<&mut NativeSub> {
        self.subs.get_mut(&conn)?.iter_mut().find(|s| s.number == number)
    }
}

/// One subscription of a native connection.
#[derive(Debug)]
pub(super) struct NativeSub {
    pub number: u32,
    pub key: ChannelKey,
    /// Messages that may be unfinished at a time, as the client last said.
    window: u32,
    /// Bytes of payload, since the subscription began.
    granted: u64,
    sent: u64,
}

/// A search whose answer somebody waits for.
#[derive(Debug)]
struct Finding {
    /// Whose it is: it goes with the connection. None: another core's.
    conn: Option<ConnId>,
    idx: PartitionIdx,
    start: Start,
    what: FindingFor,
}

#[derive(Debug)]
enum FindingFor {
    Find { request: u64 },
    Subscribe { subscribe: NativeSubscribe, options: SubOptions },
    Set { key: ChannelKey, set: SetOffset, setter: Setter },
}

/// Where a request's partition is.
enum Located {
    Here(PartitionIdx),
    /// The topic is being created.
    Wait,
    Refused(Failure),
}

impl Engine {
    /// The partition on this core; its topic is created when there is none.
    fn locate(&mut self, now: Now, conn: ConnId, topic: &str, partition: PartitionId) -> Located {
        match self.ensure_topic(now, topic) {
            Ok(true) => {}
            Ok(false) => {
                self.topics.wait_conn(topic, conn);
                return Located::Wait;
            }
            Err(error) => return Located::Refused(failure_of(error)),
        }
        let topic = self.topics.known(topic).expect("the topic is known").clone();
        if let Some(idx) = self.topics.place(&topic.name, partition) {
            return Located::Here(idx);
        }
        if partition.0 >= topic.partitions {
            let why = format!("topic {} has partitions 0 to {}, not {}", topic.name, topic.partitions - 1, partition.0);
            return Located::Refused(Failure::never(Code::BadPartition, why));
        }
        let core = topic.core_of(partition, self.cores);
        if core != self.core {
            let why = format!("partition {} of topic {} lives on core {}: connect to it there", partition.0, topic.name, core.0);
            return Located::Refused(Failure { core: core.0, ..Failure::new(Code::WrongCore, Retry::Refresh, why) });
        }
        match self.partition(now, &topic, partition) {
            Ok(idx) => Located::Here(idx),
            Err(error) => Located::Refused(failure_of(error)),
        }
    }

    fn native_append(&mut self, now: Now, conn: ConnId, idx: PartitionIdx, publish: &mut NativePublish) -> NativeTaken {
        let limits = BodyLimits {
            message_bytes_max: self.settings.max_msg_size as usize,
            body_bytes_max: crate::format::batch::BATCH_BODY_MAX,
        };
        let first = publish.first_sequence;
        let producer = ProducerId::new(publish.producer_id).map(|producer| Sequence { producer, first });
        let body = std::mem::take(&mut publish.body);
        // one that waited was verified before
        let kept = self.native.stalled.remove(&conn).filter(|(request, _)| *request == publish.request && body.is_empty());
        let batch = match kept {
            Some((_, batch)) => batch,
            None => match NativeBatch::verify(body, publish.num, publish.body_crc, producer, &limits) {
                Ok(batch) => batch,
                // a bit flipped on the way explains this as well
                Err(error @ BadBody::Crc { .. }) => {
                    return NativeTaken::Refused(Failure::new(Code::BadBatch, Retry::Later, error.to_string()));
                }
                Err(error) => return NativeTaken::Refused(Failure::never(Code::BadBatch, error.to_string())),
            },
        };
        if self.is_clustered() {
            match self.check_publish(now, idx, batch.len()) {
                None | Some(Attempt::Accepted) => {}
                Some(Attempt::Refused(error)) => return NativeTaken::Refused(failure_of(error)),
                Some(Attempt::Wait) => return self.native_stall(now, conn, publish.request, batch),
            }
        }
        let message_bytes = batch.message_bytes();
        match self.store.append_batch(now, idx, batch, self.outbox.io()) {
            Ok(Appended::New { at, ticket }) => {
                let publisher = Publisher::Native { conn, request: publish.request, at: Some(at), duplicate: false };
                let p = self.partitions.get_mut(idx);
                p.publishers.push_back((ticket, publisher, now.ticks));
                p.message_bytes += message_bytes as u64;
                if self.is_clustered() {
                    self.has_grown(idx);
                }
                NativeTaken::Accepted
            }
            Ok(Appended::Duplicate { at, ticket }) => {
                let publisher = Publisher::Native { conn, request: publish.request, at, duplicate: true };
                let ticket = ticket.or_else(|| self.original_at(idx, at));
                match ticket {
                    Some(ticket) => {
                        let publishers = &mut self.partitions.get_mut(idx).publishers;
                        let place = publishers.partition_point(|(t, _, _)| *t <= ticket);
                        publishers.insert(place, (ticket, publisher, now.ticks));
                    }
                    None => self.tell_publisher(publisher, Ok(())),
                }
                NativeTaken::Accepted
            }
            Err(refused) => match refused.why {
                BatchRefusal::Store(Refusal::Busy) => self.native_stall(now, conn, publish.request, refused.batch),
                BatchRefusal::Store(Refusal::DiskFull) => NativeTaken::Refused(failure_of(PublishError::DiskFull)),
                BatchRefusal::Store(Refusal::ReadOnly) => NativeTaken::Refused(failure_of(PublishError::ReadOnly)),
                BatchRefusal::Store(Refusal::TooBig) => NativeTaken::Refused(failure_of(PublishError::TooBig)),
                BatchRefusal::Sequence(error) => NativeTaken::Refused(sequence_failure(&error)),
            },
        }
    }

    /// The batch waits for room.
    fn native_stall(&mut self, now: Now, conn: ConnId, request: u64, batch: NativeBatch) -> NativeTaken {
        self.native.stalled.insert(conn, (request, batch));
        self.wait_here(now, conn);
        NativeTaken::Stall
    }

    /// Subscribes; `begin` is where a channel begins that is new and was asked to begin at a certain place.
    fn native_attach(
        &mut self,
        now: Now,
        conn: ConnId,
        idx: PartitionIdx,
        subscribe: &NativeSubscribe,
        options: SubOptions,
        begin: Option<Position>,
    ) -> Result<(), Failure> {
        self.partitions.get(idx).check_read(now.ticks).map_err(failure_of)?;
        let sub = SubId { core: self.core, conn };
        let channel = ChannelName::new(&subscribe.channel)
            .map_err(|_| Failure::never(Code::BadChannel, "the channel's name is not valid"))?;
        if self.is_deleting(idx, &channel) {
            return Err(Failure::new(Code::Other, Retry::Later, "the channel is being deleted"));
        }
        let (i, created) = match self.partitions.get(idx).channel(&channel) {
            Some(i) => (i, false),
            None => {
                let taken = self.check_new_channel(&channel);
                let created = taken.and_then(|()| self.create_channel(now, idx, channel, begin, None, options.ordered));
                (created.map_err(failure_of)?, true)
            }
        };
        let key = ChannelKey { partition: idx.0, channel: i };
        self.check_join(now, key, &options).map_err(failure_of)?;
        if self.life.is_read_only() && self.partitions.get(idx).channels[i as usize].is_uncertain {
            return Err(failure_of(PublishError::ReadOnly));
        }
        let subs = self.native.subs.entry(conn).or_default();
        if subs.iter().any(|s| s.key == key) {
            return Err(Failure::never(
                Code::BadSubscription,
                "this connection has subscribed to that channel and partition already",
            ));
        }
        subs.push(NativeSub { number: subscribe.subscription, key, window: 0, granted: 0, sent: 0 });
        self.join_channel(now, key, sub, options);
        let c = self.partitions.channel_mut(key).expect("the channel was just found");
        let (request, at) = (c.created, c.machine.confirmed());
        let answer = Answer::Subscribed { subscription: subscribe.subscription, created, at };
        if self.syncs.is_pending(request) {
            self.native.subscribing.push(NativeSubscribing { created: request, conn, request: subscribe.request, answer });
        } else if c.is_uncertain {
            self.native_unsubscribe(now, conn, subscribe.subscription);
            return Err(failure_of(PublishError::ReadOnly));
        } else {
            self.outbox.tell(conn, Heard::Native(subscribe.request, answer));
        }
        self.wake_channel(key);
        Ok(())
    }

    /// Subscriptions whose channel is final now; or never will be.
    pub fn native_channels_done(&mut self, now: Now, done: CursorRequest, result: Result<(), PublishError>) {
        while let Some(at) = self.native.subscribing.iter().position(|s| s.created == done) {
            let NativeSubscribing { conn, request, answer, .. } = self.native.subscribing.remove(at);
            let answer = match (answer, result) {
                (Answer::Subscribed { subscription, .. }, Err(error)) => {
                    self.native_unsubscribe(now, conn, subscription);
                    Answer::Failed(failure_of(error))
                }
                (answer, _) => answer,
            };
            self.outbox.tell(conn, Heard::Native(request, answer));
        }
    }

    /// The connection's output became full, or has room again: then all that have bytes left may go on.
    pub fn set_native_blocked(&mut self, conn: ConnId, blocked: bool) {
        if blocked {
            if self.native.subs.contains_key(&conn) {
                self.native.blocked.insert(conn);
            }
            return;
        }
        if !self.native.blocked.remove(&conn) {
            return;
        }
        let sub = SubId { core: self.core, conn };
        let subs = self.native.subs.get(&conn).into_iter().flatten();
        let keys: Vec<_> = subs.filter(|s| s.sent < s.granted).map(|s| s.key).collect();
        for key in keys {
            if let Some(c) = self.partitions.channel_mut(key) {
                c.machine.block(sub, false);
                self.wake_channel(key);
            }
        }
    }

    /// The connection is gone.
    pub fn forget_native(&mut self, now: Now, conn: ConnId) {
        self.native.blocked.remove(&conn);
        self.native.stalled.remove(&conn);
        for s in self.native.subs.remove(&conn).unwrap_or_default() {
            self.native_detach(now, conn, s.key);
        }
        self.native.subscribing.retain(|s| s.conn != conn);
        self.native.finding.retain(|_, f| f.conn != Some(conn));
    }

    fn native_detach(&mut self, now: Now, conn: ConnId, key: ChannelKey) {
        let sub = SubId { core: self.core, conn };
        self.detach_from(now, sub, key);
    }

    /// Starts the search for a place that the commit logs know.
    fn search(&mut self, by: SearchBy, finding: Finding) {
        self.native.last_search += 1;
        let token = self.native.last_search;
        let idx = finding.idx;
        self.native.finding.insert(token, finding);
        self.store.search(idx, by, token, self.outbox.io());
    }

    /// The answer of a search: the start of a batch at or before the place, or nothing by time.
    pub fn on_found(&mut self, now: Now, token: u64, result: Result<Option<Position>, crate::base::DiskError>) {
        let Some(Finding { conn, idx, start, what }) = self.native.finding.remove(&token) else { return };
        let end = self.partitions.get(idx).committed();
        // By time the first batch is found whose base is not before it; the one before may end with messages of that time.
        if let (Start::Timestamp(_), Ok(batch)) = (start, &result) {
            let before = batch.map_or(end, |b| b).offset - 1;
            if before >= self.store.start(idx).offset {
                let finding = Finding { conn, idx, start: Start::Offset(before), what };
                return self.search(SearchBy::Offset(before), finding);
            }
        }
        let what = match what {
            FindingFor::Set { key, set, setter } => {
                return match result {
                    Ok(batch) => self.offset_found(now, key, set, setter, batch.unwrap_or(end)),
                    Err(_) => self.tell_setter(setter, Err(SetOffsetError::Unreadable)),
                };
            }
            what => what,
        };
        let found = match result {
            Ok(Some(batch)) => Ok(inside(batch, start, end)),
            Ok(None) => Ok(end),
            Err(error) => Err(Failure::new(Code::Other, Retry::Later, format!("the commit log cannot be read: {error}"))),
        };
        let Some(conn) = conn else { return };
        match what {
            FindingFor::Set { .. } => {}
            FindingFor::Find { request } => {
                let answer = found.map_or_else(Answer::Failed, |at| Answer::Found { at });
                self.outbox.tell(conn, Heard::Native(request, answer));
            }
            FindingFor::Subscribe { subscribe, options } => {
                let request = subscribe.request;
                let done = found.and_then(|at| self.native_attach(now, conn, idx, &subscribe, options, Some(at)));
                if let Err(failure) = done {
                    self.outbox.tell(conn, Heard::Native(request, Answer::Failed(failure)));
                }
            }
        }
    }

    /// The same, for a channel that is to stand there.
    pub(super) fn search_offset(&mut self, by: SearchBy, key: ChannelKey, set: SetOffset, setter: Setter) {
        let start = set.to;
        self.search(by, Finding { conn: None, idx: key.partition_idx(), start, what: FindingFor::Set { key, set, setter } });
    }

    /// What `start` means without a search.
    pub(super) fn place_of(&self, idx: PartitionIdx, start: Start) -> Result<Option<Position>, SearchBy> {
        let committed = self.partitions.get(idx).committed();
        let oldest = self.store.start(idx);
        Ok(match start {
            Start::Default => None,
            Start::Oldest => Some(oldest),
            Start::Newest => Some(committed),
            Start::Offset(offset) if offset >= committed.offset => Some(committed),
            Start::Offset(offset) if offset <= oldest.offset => Some(oldest),
            Start::Offset(offset) => return Err(SearchBy::Offset(offset)),
            Start::Count(count) if count >= committed.count => Some(committed),
            Start::Count(count) if count <= oldest.count => Some(oldest),
            Start::Count(count) => return Err(SearchBy::Count(count)),
            Start::LogId(id) if id >= committed.log_id => Some(committed),
            Start::LogId(id) if id <= oldest.log_id => Some(oldest),
            Start::LogId(id) => return Err(SearchBy::LogId(id)),
            Start::Timestamp(unix_ns) => return Err(SearchBy::UnixNs(unix_ns)),
        })
    }

    fn topic_entry(&self, topic: &TopicRef) -> TopicEntry {
        let place = |p: u16| {
            self.place_elsewhere(topic, PartitionId(p))
                .unwrap_or_else(|| PartitionPlace { node: 0, core: topic.core_of(PartitionId(p), self.cores).0 })
        };
        TopicEntry { name: topic.name.clone(), id: topic.id, places: (0..topic.partitions).map(place).collect() }
    }
}

/// The place inside a batch that begins at `batch`; ids and counts of a batch are dense.
fn inside(batch: Position, start: Start, end: Position) -> Position {
    let skip = match start {
        Start::LogId(LogId(id)) => id.saturating_sub(batch.log_id.0),
        Start::Count(count) => (count - batch.count).max(0) as u64,
        _ => 0,
    };
    if batch.log_id.0 + skip >= end.log_id.0 {
        return end;
    }
    Position { offset: batch.offset, count: batch.count + skip as i64, log_id: LogId(batch.log_id.0 + skip) }
}

impl NativeHost for Engine {
    fn native_move(&mut self, conn: ConnId, core: u16) -> bool {
        if self.life.is_stopping() || core >= self.cores || core == self.core.0 {
            return false;
        }
        self.moves.begin(conn, CoreId(core));
        true
    }

    fn native_publish(&mut self, now: Now, conn: ConnId, publish: &mut NativePublish) -> NativeTaken {
        if self.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        match self.locate(now, conn, &publish.topic, publish.partition) {
            Located::Here(idx) => self.native_append(now, conn, idx, publish),
            Located::Wait => NativeTaken::Stall,
            Located::Refused(failure) => NativeTaken::Refused(failure),
        }
    }

    fn native_subscribe(&mut self, now: Now, conn: ConnId, subscribe: &NativeSubscribe, client: &ClientIdentity) -> NativeTaken {
        if self.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        let subs = self.native.subs.get(&conn);
        let pending = self.native.finding.values().filter(|f| f.conn == Some(conn)).filter_map(|f| match &f.what {
            FindingFor::Subscribe { subscribe, .. } => Some(subscribe.subscription),
            FindingFor::Find { .. } | FindingFor::Set { .. } => None,
        });
        if subs.into_iter().flatten().map(|s| s.number).chain(pending).any(|number| number == subscribe.subscription) {
            let why = format!("subscription {} is in use on this connection", subscribe.subscription);
            return NativeTaken::Refused(Failure::never(Code::BadSubscription, why));
        }
        let searching = self.native.finding.values().filter(|f| f.conn == Some(conn)).count();
        if subs.map_or(0, Vec::len) + searching >= SUBSCRIPTIONS_MAX {
            let why = format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions: open another");
            return NativeTaken::Refused(Failure::never(Code::BadSubscription, why));
        }
        let idx = match self.locate(now, conn, &subscribe.topic, subscribe.partition) {
            Located::Here(idx) => idx,
            Located::Wait => return NativeTaken::Stall,
            Located::Refused(failure) => return NativeTaken::Refused(failure),
        };
        if let Err(error) = self.partitions.get(idx).check_read(now.ticks) {
            return NativeTaken::Refused(failure_of(error));
        }
        let options = SubOptions {
            msg_timeout_ms: subscribe.message_timeout_ms,
            sample_rate: 0,
            client: client.into(),
            ranged: true,
            ordered: subscribe.ordered,
            placed: false,
        };
        let is_new = self.partitions.get(idx).channel(&subscribe.channel).is_none();
        let begin = match self.place_of(idx, subscribe.start) {
            Err(by) if is_new => {
                let what = FindingFor::Subscribe { subscribe: subscribe.clone(), options };
                self.search(by, Finding { conn: Some(conn), idx, start: subscribe.start, what });
                return NativeTaken::Accepted;
            }
            place => place.unwrap_or_default(),
        };
        match self.native_attach(now, conn, idx, subscribe, options, begin) {
            Ok(()) => NativeTaken::Accepted,
            Err(failure) => NativeTaken::Refused(failure),
        }
    }

    fn native_credit(&mut self, conn: ConnId, subscription: u32, messages: u32, bytes: u64) -> bool {
        let sub = SubId { core: self.core, conn };
        let Some(s) = self.native.sub_mut(conn, subscription) else { return false };
        let (key, before) = (s.key, std::mem::replace(&mut s.window, messages));
        let had_bytes = s.sent < s.granted;
        s.granted = s.granted.max(bytes);
        let has_bytes = s.sent < s.granted;
        let Some(c) = self.partitions.channel_mut(key) else { return false };
        if messages >= before {
            let mut more = messages - before;
            if let Some(owed) = c.owed.get_mut(&sub) {
                let kept = more.min(*owed);
                *owed -= kept;
                more -= kept;
                if *owed == 0 {
                    c.owed.remove(&sub);
                }
            }
            c.machine.lend(sub, more);
        } else {
            let less = before - messages;
            let taken = c.take_unspent(sub, less);
            if taken < less {
                *c.owed.entry(sub).or_default() += less - taken;
            }
        }
        if has_bytes && !had_bytes {
            c.machine.block(sub, false);
        }
        self.wake_channel(key);
        true
    }

    fn native_finish(&mut self, now: Now, conn: ConnId, request: u64, subscription: u32, ranges: &[IdRange]) -> NativeFinished {
        let sub = SubId { core: self.core, conn };
        let Some(key) = self.native.sub_mut(conn, subscription).map(|s| s.key) else { return NativeFinished::NoSubscription };
        let Some(c) = self.partitions.served_mut(now.ticks, key) else { return NativeFinished::Done(0) };
        if c.machine.is_ordered()
            && let Err(error) = self.partitions.check_change(now.ticks, key)
        {
            return NativeFinished::Refused(failure_of(error));
        }
        let Some(c) = self.partitions.channel_mut(key) else { return NativeFinished::Done(0) };
        let num = ranges.iter().map(|r| c.machine.finish_range(now.ticks, sub, r.first, r.last)).sum();
        if num > 0 && c.machine.finishing().is_some() {
            self.sync_cursor(now, key, CursorChange::Finish { sub, by: Finisher::Native { conn, request } });
            return NativeFinished::Waits;
        }
        if num > 0 {
            self.mark_dirty(now, key);
            self.on_freed(key, sub, u32::try_from(num).unwrap_or(u32::MAX));
        }
        NativeFinished::Done(num)
    }

    fn native_requeue(&mut self, now: Now, conn: ConnId, subscription: u32, ranges: &[IdRange], delay_ms: u32) -> Option<u64> {
        let sub = SubId { core: self.core, conn };
        let key = self.native.sub_mut(conn, subscription)?.key;
        let Some(c) = self.partitions.served_mut(now.ticks, key) else { return Some(0) };
        if c.machine.is_ordered() && delay_ms > 0 {
            // as for REQ: they come again by their timeout
            return Some(0);
        }
        let delay = Duration::from_millis(delay_ms as u64);
        let num = ranges.iter().map(|r| c.machine.requeue_range(now.ticks, sub, r.first, r.last, delay)).sum();
        let deadline = c.machine.deadline();
        self.timers.at_most(Timer::Channel(key), deadline);
        self.on_freed(key, sub, u32::try_from(num).unwrap_or(u32::MAX));
        Some(num)
    }

    fn native_touch(&mut self, now: Now, conn: ConnId, subscription: u32, ranges: &[IdRange]) -> Option<u64> {
        let sub = SubId { core: self.core, conn };
        let key = self.native.sub_mut(conn, subscription)?.key;
        let Some(c) = self.partitions.served_mut(now.ticks, key) else { return Some(0) };
        Some(ranges.iter().map(|r| c.machine.touch_range(now.ticks, sub, r.first, r.last)).sum())
    }

    fn native_unsubscribe(&mut self, now: Now, conn: ConnId, subscription: u32) -> bool {
        let is_it = |s: &NativeSubscribe| s.subscription == subscription;
        let of_it =
            |f: &Finding| f.conn == Some(conn) && matches!(&f.what, FindingFor::Subscribe { subscribe, .. } if is_it(subscribe));
        let searching = self.native.finding.iter().find(|(_, f)| of_it(f)).map(|(&token, _)| token);
        if let Some(Finding { what: FindingFor::Subscribe { subscribe, .. }, .. }) =
            searching.and_then(|token| self.native.finding.remove(&token))
        {
            let failure = Failure::never(Code::BadSubscription, "it was given up before it began");
            self.outbox.tell(conn, Heard::Native(subscribe.request, Answer::Failed(failure)));
            return true;
        }
        let is_number = |a: &Answer| matches!(a, Answer::Subscribed { subscription: number, .. } if *number == subscription);
        if let Some(at) = self.native.subscribing.iter().position(|s| s.conn == conn && is_number(&s.answer)) {
            let request = self.native.subscribing.remove(at).request;
            let failure = Failure::never(Code::BadSubscription, "it was given up before it was durable");
            self.outbox.tell(conn, Heard::Native(request, Answer::Failed(failure)));
        }
        let Some(subs) = self.native.subs.get_mut(&conn) else { return false };
        let Some(at) = subs.iter().position(|s| s.number == subscription) else { return false };
        let key = subs.swap_remove(at).key;
        self.native_detach(now, conn, key);
        true
    }

    fn native_nodes(&self) -> Vec<([u8; 16], std::sync::Arc<str>)> {
        self.nodes_elsewhere().map(|(id, address)| (id.0, address.clone())).collect()
    }

    fn native_topics(&mut self, names: &[&str], after: &str, each: &mut dyn FnMut(TopicEntry) -> bool) {
        if names.is_empty() {
            for topic in self.topics.after(after) {
                if !each(self.topic_entry(&topic)) {
                    return;
                }
            }
        } else {
            for topic in names.iter().filter_map(|name| self.topics.known(name)) {
                if !each(self.topic_entry(topic)) {
                    return;
                }
            }
        }
    }

    fn native_create_topic(&mut self, now: Now, conn: ConnId, request: u64, topic: &str, partitions: u16) -> NativeTaken {
        if self.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        match self.ensure_topic_with(now, topic, partitions) {
            Ok(true) => {
                let entry = self.topic_entry(&self.topics.known(topic).expect("the topic is known").clone());
                self.outbox.tell(conn, Heard::Native(request, Answer::Created(entry, self.native_nodes())));
                NativeTaken::Accepted
            }
            Ok(false) => {
                self.topics.wait_conn(topic, conn);
                NativeTaken::Stall
            }
            Err(error) => NativeTaken::Refused(failure_of(error)),
        }
    }

    fn native_find(
        &mut self,
        now: Now,
        conn: ConnId,
        request: u64,
        topic: &str,
        partition: PartitionId,
        start: Start,
    ) -> NativeTaken {
        if self.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        if self.topics.known(topic).is_none() && !self.topics.is_pending(topic) {
            return NativeTaken::Refused(Failure::never(Code::BadTopic, format!("there is no topic {topic}")));
        }
        let idx = match self.locate(now, conn, topic, partition) {
            Located::Here(idx) => idx,
            Located::Wait => return NativeTaken::Stall,
            Located::Refused(failure) => return NativeTaken::Refused(failure),
        };
        if let Err(error) = self.partitions.get(idx).check_read(now.ticks) {
            return NativeTaken::Refused(failure_of(error));
        }
        match self.place_of(idx, start) {
            Ok(place) => {
                let at = place.unwrap_or_else(|| self.store.collect_start(idx));
                self.outbox.tell(conn, Heard::Native(request, Answer::Found { at }));
            }
            Err(by) => self.search(by, Finding { conn: Some(conn), idx, start, what: FindingFor::Find { request } }),
        }
        NativeTaken::Accepted
    }

    fn native_set_offset(&mut self, now: Now, conn: ConnId, set: &NativeSetOffset) -> NativeTaken {
        if self.life.is_stopping() {
            return NativeTaken::Refused(failure_of(PublishError::Stopping));
        }
        if self.topics.known(&set.topic).is_none() && !self.topics.is_pending(&set.topic) {
            return NativeTaken::Refused(Failure::never(Code::BadTopic, format!("there is no topic {}", set.topic)));
        }
        match self.locate(now, conn, &set.topic, set.partition) {
            Located::Here(_) => {}
            Located::Wait => return NativeTaken::Stall,
            Located::Refused(failure) => return NativeTaken::Refused(failure),
        }
        let Ok(channel) = ChannelName::new(&set.channel) else {
            return NativeTaken::Refused(Failure::never(Code::BadChannel, "the channel's name is not valid"));
        };
        let topic = self.topics.known(&set.topic).expect("it was just located").clone();
        let setter = Setter::Native { conn, request: set.request };
        let NativeSetOffset { partition, to, force, .. } = *set;
        self.set_offset(now, SetOffset { topic, partition, channel, to, from: None, force }, setter);
        NativeTaken::Accepted
    }
}

/// What a subscription's frame says, when the client has bytes left; the payload is counted. A payload larger than what is
/// left goes out when anything is left.
pub(super) fn take_run(subs: &mut [NativeSub], key: ChannelKey, run: &Run<'_>) -> Option<Messages> {
    let s = subs.iter_mut().find(|s| s.key == key)?;
    if s.sent >= s.granted {
        return None;
    }
    s.sent += run.at.len() as u64;
    Some(Messages {
        subscription: s.number,
        log_id: run.first,
        num: run.num,
        count: run.count,
        batch_offset: run.batch.header.offset.get(),
        base_unix_ns: run.batch.header.base_unix_ns.get(),
        attempts: run.attempts,
    })
}
