//! Native clients, and requests of their sessions. Everything of a partition is asked on the partition's own core: a client
//! that is elsewhere is told where to go, so nothing of this protocol but a topic's creation crosses cores.

mod host;

use super::cursors::{CursorChange, CursorRequest, Finisher};
use super::engine::Attempt;
use super::failures::{failure_of, sequence_failure};
use super::offsets::Setter;
use super::outbox::LateAnswer;
use super::partitions::{ChannelKey, Publisher};
use super::parts::CoreParts;
use super::publish::Publishing;
use super::replication::Cluster;
use super::search::{Finding, FindingFor};
use crate::base::{ChannelName, ConnId, CoreId, DiskError, IdMap, Now, PartitionId, Position, ProducerId, SubId, TopicRef};
use crate::channel::Run;
use crate::codec::native::{Code, IdRange, Messages, Retry, Start};
use crate::format::producer::Sequence;
use crate::log::native::{BadBody, BodyLimits, NativeBatch};
use crate::log::{Appended, BatchRefusal, PartitionIdx, Refusal};
use crate::seam::message::SetOffset;
use crate::seam::{message::SubOptions, outcome::PublishError};
use crate::session::native::{
    ClientIdentity, Failure, NativeAnswer, NativeFinished, NativeHost, NativePublish, NativeSetOffset, NativeSubscribe,
    NativeTaken, PartitionPlace, TopicEntry,
};
use rustc_hash::FxHashSet;
use std::time::Duration;

/// Subscription whose channel is not final yet.
struct NativeSubscribing {
    created: CursorRequest,
    conn: ConnId,
    request: u64,
    answer: NativeAnswer,
}

/// Subscriptions and waiting requests of this core's native connections.
#[derive(Default)]
pub(super) struct NativeClients {
    subs: IdMap<ConnId, Vec<NativeSub>>,
    /// Verified batches that wait for space, by their request.
    stalled: IdMap<ConnId, (u64, NativeBatch)>,
    /// Connections whose output was full.
    blocked: FxHashSet<ConnId>,
    /// Waiting Subscribes in the order in which they came.
    subscribing: Vec<NativeSubscribing>,
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

    /// The batch that waited is refused.
    pub fn forget_stalled(&mut self, conn: ConnId) {
        self.stalled.remove(&conn);
    }

    /// The connection is gone. Returns the channels that it leaves.
    fn forget(&mut self, conn: ConnId) -> Vec<ChannelKey> {
        self.blocked.remove(&conn);
        self.stalled.remove(&conn);
        self.subscribing.retain(|s| s.conn != conn);
        self.subs.remove(&conn).unwrap_or_default().into_iter().map(|s| s.key).collect()
    }

    /// The connection's output became full, or has room again. Returns the channels that may go on.
    pub fn set_blocked(&mut self, conn: ConnId, blocked: bool) -> Vec<ChannelKey> {
        let Some(subs) = self.subs.get(&conn) else { return vec![] };
        if blocked {
            self.blocked.insert(conn);
            return vec![];
        }
        let was_blocked = self.blocked.remove(&conn);
        subs.iter().filter(|s| was_blocked && s.has_bytes()).map(|s| s.key).collect()
    }

    pub fn sub_mut(&mut self, conn: ConnId, number: u32) -> Option<&mut NativeSub> {
        self.subs.get_mut(&conn)?.iter_mut().find(|s| s.number == number)
    }
}

/// Subscription of a native connection.
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

impl NativeSub {
    fn has_bytes(&self) -> bool {
        self.sent < self.granted
    }

    /// The client sets the window, and grants payload up to so many bytes in all. Returns the window before, and whether the
    /// subscription had no bytes left and has some now.
    pub fn grant(&mut self, window: u32, bytes: u64) -> (u32, bool) {
        let had_bytes = self.has_bytes();
        self.granted = self.granted.max(bytes);
        (std::mem::replace(&mut self.window, window), !had_bytes && self.has_bytes())
    }
}

/// Place of a request's partition.
enum Located {
    Here(PartitionIdx),
    /// The topic is being created.
    Wait,
    Refused(Failure),
}

impl CoreParts {
    /// The partition on this core; its topic is created when there is none.
    fn locate(&mut self, now: Now, cluster: Option<&mut Cluster>, conn: ConnId, topic: &str, partition: PartitionId) -> Located {
        match self.ensure_topic(now, cluster, topic, 0) {
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
        if core != self.id {
            let why = format!("partition {} of topic {} lives on core {}: connect to it there", partition.0, topic.name, core.0);
            return Located::Refused(Failure { core: core.0, ..Failure::new(Code::WrongCore, Retry::Refresh, why) });
        }
        match self.partition(now, &topic, partition) {
            Ok(idx) => Located::Here(idx),
            Err(error) => Located::Refused(failure_of(error)),
        }
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
        let sub = SubId { core: self.id, conn };
        let channel = ChannelName::new(&subscribe.channel)
            .map_err(|_| Failure::never(Code::BadChannel, "the channel's name is not valid"))?;
        if self.partitions.get(idx).is_deleting(&channel) {
            return Err(Failure::new(Code::Other, Retry::Later, "the channel is being deleted"));
        }
        let (i, created) = match self.partitions.get(idx).channel(&channel) {
            Some(i) => (i, false),
            None => {
                let topic = self.partitions.get(idx).topic.id;
                let taken =
                    self.topics.properties.check_registered(topic).and_then(|()| self.channels().check_new(idx, &channel));
                let created = taken.and_then(|()| self.channels().create(now, idx, channel, begin, None, options.ordered));
                (created.map_err(failure_of)?, true)
            }
        };
        let key = ChannelKey { partition: idx.0, channel: i };
        self.partitions.check_join(now.ticks, key, options.ordered).map_err(failure_of)?;
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
        self.channels().join(key, sub, options);
        let c = self.partitions.channel_mut(key).expect("the channel was just found");
        let (request, at) = (c.created, c.machine.confirmed());
        let answer = NativeAnswer::Subscribed { subscription: subscribe.subscription, created, at };
        if self.syncs.is_pending(request) {
            self.native.subscribing.push(NativeSubscribing { created: request, conn, request: subscribe.request, answer });
        } else {
            self.outbox.tell(conn, LateAnswer::Native(subscribe.request, answer));
        }
        self.partitions.wake(key);
        Ok(())
    }

    /// A search has ended for which a request waits.
    pub fn place_found(&mut self, now: Now, finding: Finding, found: Result<Position, DiskError>) {
        let Finding { conn, idx, what, .. } = finding;
        let Some(conn) = conn else { return };
        let unreadable = |error| Failure::new(Code::Other, Retry::Later, format!("the commit log cannot be read: {error}"));
        let found = found.map_err(unreadable);
        match what {
            FindingFor::Set { .. } => {}
            FindingFor::Find { request } => {
                let answer = found.map_or_else(NativeAnswer::Failed, |at| NativeAnswer::Found { at });
                self.outbox.tell(conn, LateAnswer::Native(request, answer));
            }
            FindingFor::Subscribe { subscribe, options } => {
                let request = subscribe.request;
                let done = found.and_then(|at| self.native_attach(now, conn, idx, &subscribe, options, Some(at)));
                if let Err(failure) = done {
                    self.outbox.tell(conn, LateAnswer::Native(request, NativeAnswer::Failed(failure)));
                }
            }
        }
    }

    /// Subscriptions whose channel is final now; or never will be.
    pub fn native_channels_done(&mut self, done: CursorRequest, result: Result<(), PublishError>) {
        while let Some(at) = self.native.subscribing.iter().position(|s| s.created == done) {
            let NativeSubscribing { conn, request, answer, .. } = self.native.subscribing.remove(at);
            let answer = match (answer, result) {
                (NativeAnswer::Subscribed { subscription, .. }, Err(error)) => {
                    self.native_leave(conn, subscription);
                    NativeAnswer::Failed(failure_of(error))
                }
                (answer, _) => answer,
            };
            self.outbox.tell(conn, LateAnswer::Native(request, answer));
        }
    }

    /// The connection is gone.
    pub fn forget_native(&mut self, conn: ConnId) {
        let sub = SubId { core: self.id, conn };
        for key in self.native.forget(conn) {
            self.channels().leave(key, sub);
        }
    }

    /// The client leaves, or gives up, a subscription. False: it has none of this number.
    fn native_leave(&mut self, conn: ConnId, subscription: u32) -> bool {
        let is_number =
            |a: &NativeAnswer| matches!(a, NativeAnswer::Subscribed { subscription: number, .. } if *number == subscription);
        if let Some(at) = self.native.subscribing.iter().position(|s| s.conn == conn && is_number(&s.answer)) {
            let request = self.native.subscribing.remove(at).request;
            let failure = Failure::never(Code::BadSubscription, "the client gave the subscription up before it was durable");
            self.outbox.tell(conn, LateAnswer::Native(request, NativeAnswer::Failed(failure)));
        }
        let Some(subs) = self.native.subs.get_mut(&conn) else { return false };
        let Some(at) = subs.iter().position(|s| s.number == subscription) else { return false };
        let key = subs.swap_remove(at).key;
        let sub = SubId { core: self.id, conn };
        self.channels().leave(key, sub);
        true
    }
}

impl Publishing<'_> {
    pub fn native_append(&mut self, now: Now, conn: ConnId, idx: PartitionIdx, publish: &mut NativePublish) -> NativeTaken {
        let (topic, most) = (self.core.partitions.get(idx).topic.id, self.core.settings.max_msg_size);
        let limits = BodyLimits {
            message_bytes_max: self.core.topics.properties.max_msg_size(topic, most) as usize,
            body_bytes_max: crate::format::batch::BATCH_BODY_MAX,
        };
        let first = publish.first_sequence;
        let producer = ProducerId::new(publish.producer_id).map(|producer| Sequence { producer, first });
        let body = std::mem::take(&mut publish.body);
        // one that waited was verified before
        let kept = self.core.native.stalled.remove(&conn).filter(|(request, _)| *request == publish.request && body.is_empty());
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
        if let Some(cluster) = &mut self.cluster {
            match cluster.check_publish(self.core, now, idx, batch.len()) {
                None | Some(Attempt::Accepted) => {}
                Some(Attempt::Refused(error)) => return NativeTaken::Refused(failure_of(error)),
                Some(Attempt::Wait) => return self.native_stall(now, conn, publish.request, batch),
            }
        }
        let message_bytes = batch.message_bytes();
        match self.core.store.append_batch(now, idx, batch, self.core.outbox.io()) {
            Ok(Appended::New { at, ticket }) => {
                let publisher = Publisher::Native { conn, request: publish.request, at: Some(at), duplicate: false };
                self.note_appended(now, idx, ticket, publisher, message_bytes);
                NativeTaken::Accepted
            }
            Ok(Appended::Duplicate { at, ticket }) => {
                let publisher = Publisher::Native { conn, request: publish.request, at, duplicate: true };
                let ticket = ticket.or_else(|| self.core.partitions.get(idx).original_at(at));
                match ticket {
                    Some(ticket) => {
                        let publishers = &mut self.core.partitions.get_mut(idx).publishers;
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
        self.core.native.stalled.insert(conn, (request, batch));
        self.core.waiting.wait_here(now, conn, &mut self.core.timers);
        NativeTaken::Stall
    }
}

/// Frame of a subscription, if the client has bytes left; counts the payload. A payload larger than the rest goes out while any byte is
/// left.
pub(super) fn take_run(subs: &mut [NativeSub], key: ChannelKey, run: &Run<'_>) -> Option<Messages> {
    let s = subs.iter_mut().find(|s| s.key == key)?;
    if !s.has_bytes() {
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
