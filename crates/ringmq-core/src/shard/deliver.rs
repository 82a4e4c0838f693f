//! Delivers messages to clients: straight into the outputs of sessions on this core, and into one bundle of frames per client of another
//! core and turn.

use super::bundles::Bundles;
use super::client::Client;
use super::copies::CopiesToAppend;
use super::native::{self, NativeClients};
use super::partitions::ChannelKey;
use super::replication::Cluster;
use super::{Conn, Shard};
use crate::base::{ConnId, CoreId, IdMap, MessageId, MessageIds, MessagePlace, Now, PartitionId, SubId};
use crate::channel::{Run, Sink, Source};
use crate::codec::native::frame::payload_crc;
use crate::codec::nsq::frame;
use crate::format::batch::Message;
use crate::log::fetch::Fetch;
use crate::log::{Io, Lender, PartitionIdx, Store};
use crate::metrics::counters::Counters;
use crate::peer::RELAYED_MAX;
use bytes::Bytes;
use std::ops::Range;

/// Frames that one turn collects for a client of another core before the client counts as full.
const REMOTE_FRAMES_MAX: usize = if cfg!(test) { 4 * 1024 } else { 256 * 1024 };

/// Shorter runs are cheaper to copy than to lend: a piece of memory keeps all that was read with it.
pub const LENT_MIN: usize = 16 * 1024;

/// The store's memory, lent to the sockets of native clients.
pub(super) struct Lending {
    lender: Lender,
    /// Shorter runs are copied.
    bytes_min: usize,
}

impl Lending {
    pub fn new(lender: Lender, bytes_min: usize) -> Self {
        Lending { lender, bytes_min }
    }

    #[cfg(test)]
    pub fn set_min(&mut self, bytes_min: usize) {
        self.bytes_min = bytes_min;
    }

    fn lend(&self, batch: &Bytes, at: Range<usize>) -> Option<Bytes> {
        if at.len() < self.bytes_min { None } else { self.lender.lend(batch, at) }
    }
}

struct Log<'a> {
    store: &'a mut Store,
    p: PartitionIdx,
    /// End for consumers: the committed end, or the start of a pause of the topic.
    end: i64,
    unix_ns: i64,
    io: &'a mut Io,
}

impl Source for Log<'_> {
    fn fetch(&mut self, offset: i64) -> Fetch {
        if offset >= self.end {
            return Fetch::End;
        }
        self.store.fetch(self.p, offset, self.io)
    }

    fn unix_ns(&self) -> i64 {
        self.unix_ns
    }
}

struct Outputs<'a> {
    core: CoreId,
    conns: &'a mut IdMap<ConnId, Conn>,
    touched: &'a mut Vec<ConnId>,
    bundles: &'a mut Bundles,
    native: &'a mut NativeClients,
    lending: &'a Lending,
    key: ChannelKey,
    /// Message ids of the topic.
    ids: MessageIds,
    partition: PartitionId,
    counters: &'a mut Counters,
    unix_ns: i64,
    cluster: Option<&'a Cluster>,
    /// Clients that were full, and for which channel.
    full: &'a mut Vec<(SubId, ChannelKey)>,
}

fn write_message(out: &mut Vec<u8>, message: &Message<'_>, id: MessageId, attempts: u16, place: Option<(i64, u32)>) {
    match place {
        None => frame::message(out, message.unix_ns, attempts, id, message.body),
        Some(place) => frame::placed_message(out, message.unix_ns, attempts, id, place, message.body),
    }
}

impl Sink for Outputs<'_> {
    fn deliver(&mut self, sub: SubId, message: &Message<'_>, attempts: u16, place: Option<(i64, u32)>) -> bool {
        let id = self.ids.id(MessagePlace::new(self.partition, message.log_id));
        if sub.core != self.core {
            let is_guest = sub.core == CoreId::GUESTS;
            let is_over = is_guest && self.bundles.guest_bytes() >= RELAYED_MAX;
            let frames = self.bundles.frames_for(sub);
            let before = frames.len();
            let has_room = !is_guest || before > 0 || self.cluster.is_none_or(|c| c.guests.has_room_for(&c.peers, sub));
            if is_over || !has_room || before >= REMOTE_FRAMES_MAX {
                self.full.push((sub, self.key));
                return false;
            }
            write_message(frames, message, id, attempts, place);
            let written = frames.len() - before;
            if is_guest {
                self.bundles.add_guest_bytes(written);
            }
            self.counters.handed_out(attempts, self.unix_ns, message.unix_ns, 1);
            return true;
        }
        let Some(c) = self.conns.get_mut(&sub.conn) else { return false };
        if c.session.is_output_full() || c.session.is_closing() || c.closing {
            self.full.push((sub, self.key));
            return false;
        }
        let Client::Nsq(session) = &mut c.session else { return false };
        write_message(session.output(), message, id, attempts, place);
        self.counters.handed_out(attempts, self.unix_ns, message.unix_ns, 1);
        c.touch(sub.conn, self.touched);
        true
    }

    fn deliver_range(&mut self, sub: SubId, run: &Run<'_>) -> bool {
        let (Some(c), Some(subs)) = (self.conns.get_mut(&sub.conn), self.native.subs_of(sub.conn)) else { return false };
        if c.session.is_output_full() || c.session.is_closing() || c.closing {
            self.full.push((sub, self.key));
            return false;
        }
        let Client::Native(session) = &mut c.session else { return false };
        // without bytes left the channel keeps the client blocked until Credit brings some
        let Some(messages) = native::take_run(subs, self.key, run) else { return false };
        let whole = run.num == run.batch.header.num.get();
        let payload = &run.batch.bytes[run.at.clone()];
        // a whole body's crc stands in its header
        let crc = if whole { run.batch.header.body_crc.get() } else { payload_crc(payload) };
        self.counters.handed_out(run.attempts, self.unix_ns, run.batch.header.base_unix_ns.get(), run.num.into());
        match self.lending.lend(&run.batch.bytes, run.at.clone()) {
            Some(payload) => session.lent_messages(messages, payload, crc),
            None => session.messages(messages, payload, crc),
        }
        c.touch(sub.conn, self.touched);
        true
    }
}

impl Shard {
    /// Delivers in one round over the channels that may have something; those that have more stay in the list.
    pub(super) fn deliver(&mut self, now: Now) {
        if self.engine.core.copies.has_outcomes() {
            self.engine.operating().settle_copies(now);
        }
        self.engine.consumers().resume_guests();
        let num_ready = self.engine.core.partitions.agenda.num_ready();
        if num_ready > 0 {
            self.deliver_ready(now, num_ready);
        } else {
            self.engine.core.partitions.wake_holding();
        }
    }

    /// One round over the first `num_ready` channels of the list.
    fn deliver_ready(&mut self, now: Now, num_ready: usize) {
        let mut full = std::mem::take(&mut self.full);
        for _ in 0..num_ready {
            let Some(key) = self.engine.core.partitions.agenda.next_ready() else { break };
            let more = self.deliver_channel(now, key, &mut full);
            if more {
                self.engine.core.partitions.wake(key);
            }
        }
        self.engine.core.partitions.wake_holding();
        self.engine.consumers().pass_frames();
        for (sub, key) in full.drain(..) {
            if sub.core == self.engine.core.id {
                // The end of the turn asks the session whether it is still full.
                if let Some(c) = self.conns.get_mut(&sub.conn) {
                    c.tell_full(sub.conn, true, &mut self.engine);
                    c.touch(sub.conn, &mut self.touched);
                }
            } else {
                self.engine.consumers().go_on_delivering(sub, key);
            }
        }
        self.full = full;
    }

    fn deliver_channel(&mut self, now: Now, key: ChannelKey, full: &mut Vec<(SubId, ChannelKey)>) -> bool {
        let e = &mut self.engine;
        let idx = key.partition_idx();
        let (end, multi, may_read, ids, partition) = {
            let p = e.core.partitions.get(idx);
            let (ids, partition) = (MessageIds::of(p.dir.topic_id), p.dir.partition);
            (p.flows_to(), p.topic.partitions > 1, p.check_read(now.ticks).is_ok(), ids, partition)
        };
        // A copy behind the mark of a pause would go when the topic is emptied; the channel has the message since before.
        let may_copy = e.core.partitions.get(idx).pause.is_none() && !e.operators.is_change_waiting(&e.core.partitions, key);
        let Some(c) = e.core.partitions.begin_turn(key) else { return false };
        // No FIN becomes durable before a restart: each message would be redelivered at once, for ever.
        let is_stuck = e.core.life.is_read_only() && c.machine.is_ordered() && !c.name.is_ephemeral();
        if !may_read || is_stuck {
            // Woken when the partition may be read again.
            e.consumers().settle_owed(key);
            return false;
        }
        let mut source = Log { store: &mut e.core.store, p: idx, end: end.offset, unix_ns: now.unix_ns, io: e.core.outbox.io() };
        let mut sink = Outputs {
            core: e.core.id,
            conns: &mut self.conns,
            touched: &mut self.touched,
            bundles: &mut e.bundles,
            native: &mut e.core.native,
            lending: &self.lending,
            key,
            ids,
            partition,
            counters: &mut e.core.counters,
            unix_ns: now.unix_ns,
            cluster: e.cluster.as_deref(),
            full,
        };
        let more = c.machine.deliver(now.ticks, &mut source, &mut sink);
        let copies = if may_copy { e.core.copies.wanted(c, now, end, &mut source) } else { CopiesToAppend::default() };
        let deadline = c.machine.deadline();
        if multi {
            c.machine.hungry(end, &mut |sub| self.hungry.push(sub));
        }
        let (dirty, owes_credit) = (c.machine.is_dirty(), c.owes_credit());
        e.core.timers.at_most(super::Timer::Channel(key), deadline);
        e.core.partitions.end_turn(now, key);
        if dirty {
            // Sampling or damage confirmed messages.
            e.channels().mark_dirty(now, key);
        }
        if !copies.copies.is_empty() {
            e.publishing().append_copies(now, key, copies);
        }
        if owes_credit {
            e.consumers().settle_owed(key);
        }
        if !self.hungry.is_empty() {
            self.tell_hungry(partition);
        }
        more
    }

    fn tell_hungry(&mut self, partition: PartitionId) {
        for sub in self.hungry.drain(..) {
            self.engine.consumers().tell_hungry(sub, partition);
        }
    }
}
