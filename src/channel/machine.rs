//! The channel's state and what clients and time do to it; what it hands out is in `deliver`.

use super::clients::Clients;
use super::confirmed::{Confirmed, Finished};
use super::deliver::Place;
use super::open::{List, Open, OpenSet, State};
use super::ordered::Syncing;
use crate::base::{ChannelName, Epoch, LogId, PartitionId, Position, SubId, Ticks, TimerId, Wheel, mix};
use crate::log::cursor::{CursorImage, Interval};
use crate::metrics::stats::ChannelStats;
use crate::shard::message::SubOptions;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// With more confirmed intervals out of order the log is not read on; what waits still goes out.
    pub confirm_window: usize,
    /// No TOUCH keeps a message longer than this after its delivery.
    pub max_msg_timeout: Duration,
    /// Longer delays of a REQ count as this.
    pub max_req_timeout: Duration,
}

/// A FIN, REQ or TOUCH named a message that this client does not have (any more).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the message is not in flight for this client")]
pub struct NotInFlight;

/// Timers handled by one [`Channel::tick`], so that a crowd of timeouts does not make one long turn.
const TICK_TIMERS_MAX: usize = 10_000;

/// The lists of waiting messages, in the order in which they go out.
pub(super) const REQUEUED: usize = 0;
pub(super) const DUE: usize = 1;

/// One channel on one partition, on the partition's core.
#[derive(Debug)]
pub struct Channel {
    pub(super) options: ChannelOptions,
    name: ChannelName,
    pub(super) paused: bool,
    pub(super) ordered: bool,
    first: bool,
    epoch: Epoch,
    pub(super) generation: u64,

    pub(super) confirmed: Confirmed,
    pub(super) finished: Finished,
    pub(super) syncing: Syncing,
    /// Messages before the place where the channel stood when it was made.
    began: i64,

    /// The first message that was never read, and the start of its batch.
    pub(super) next: Position,
    /// Confirmed before the channel was made and still ahead of `next`; the nearest is last.
    pub(super) restored: Vec<Interval>,
    /// How far the batch in which `next` is was read.
    pub(super) place: Option<Place>,
    /// The last delivery ended at a read that is under way, and nothing was handed out.
    pub(super) awaits_read: bool,
    /// The log cannot be read at `next`, as far as known.
    pub(super) is_log_held: bool,
    /// Waiting messages that cannot be read, as far as known.
    pub(super) waiting_held: u64,
    /// So that channels of one topic do not all sample the same messages.
    pub(super) sample_salt: u64,

    pub(super) open: OpenSet,
    /// [`REQUEUED`] and [`DUE`].
    pub(super) waiting: [List; 2],
    pub(super) waiting_count: u64,
    pub(super) in_flight_count: u64,
    pub(super) deferred_count: u64,
    /// Keys of open messages that are in flight or deferred.
    pub(super) wheel: Wheel<u32>,
    pub(super) clients: Clients,

    requeue_count: u64,
    timeout_count: u64,
}

impl Channel {
    /// Goes on where the cursor stands: everything that it does not say to be confirmed is delivered (again).
    pub fn new(options: ChannelOptions, partition: PartitionId, cursor: CursorImage) -> Self {
        let mut confirmed = Confirmed::new(cursor.confirmed);
        cursor.intervals.iter().for_each(|&i| confirmed.insert(i));
        let sample_salt = cursor.name.bytes().fold(partition.0 as u64, |h, b| mix(h ^ b as u64));
        Channel {
            options,
            name: cursor.name,
            paused: cursor.paused,
            ordered: cursor.ordered,
            first: cursor.first,
            epoch: cursor.epoch,
            generation: cursor.generation,
            began: confirmed.position().count,
            next: confirmed.position(),
            restored: confirmed.intervals().rev().collect(),
            confirmed,
            finished: Finished::default(),
            syncing: Syncing::default(),
            place: None,
            awaits_read: false,
            is_log_held: false,
            waiting_held: 0,
            sample_salt,
            open: OpenSet::default(),
            waiting: [List::EMPTY; 2],
            waiting_count: 0,
            in_flight_count: 0,
            deferred_count: 0,
            wheel: Wheel::new(),
            clients: Clients::default(),
            requeue_count: 0,
            timeout_count: 0,
        }
    }

    pub fn name(&self) -> &ChannelName {
        &self.name
    }

    /// Of the leader that last said how the cursor stands.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// While paused nothing is delivered; FIN, REQ, TOUCH and timeouts go on. [`Channel::raise_generation`] follows, and the journal.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    // ---- clients

    /// A client without credit. Panics when it is subscribed already.
    pub fn subscribe(&mut self, _now: Ticks, sub: SubId, options: SubOptions) {
        let timeout = Duration::from_millis(options.msg_timeout_ms.max(1)).min(self.options.max_msg_timeout);
        self.clients.insert(sub, options, timeout);
    }

    /// What the client had is delivered again at once, attempts kept. Says how many; 0 when it is not subscribed.
    pub fn unsubscribe(&mut self, _now: Ticks, sub: SubId) -> usize {
        let Some(number) = self.clients.find(sub) else { return 0 };
        let mut client = self.clients.remove(number);
        let mut returned = 0;
        while let Some(key) = client.in_flight.first() {
            self.wheel.cancel(self.open.get(key).timer);
            self.open.unlink(&mut client.in_flight, key);
            let num = self.open.get(key).num;
            self.in_flight_count -= num as u64;
            self.wait(REQUEUED, key);
            returned += num as usize;
        }
        returned
    }

    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    pub fn clients(&self) -> impl Iterator<Item = SubId> + '_ {
        self.clients.iter().map(|c| c.sub)
    }

    /// Allows the client `credit` more messages. Nothing happens when it is not subscribed.
    pub fn lend(&mut self, sub: SubId, credit: u32) {
        if let Some(number) = self.clients.find(sub) {
            let client = self.clients.get_mut(number);
            client.credit = client.credit.saturating_add(credit);
            self.clients.wake(number);
        }
    }

    /// Takes back the credit that was not spent.
    pub fn recall(&mut self, sub: SubId) -> u32 {
        let Some(number) = self.clients.find(sub) else { return 0 };
        let credit = std::mem::take(&mut self.clients.get_mut(number).credit);
        self.clients.starve(number);
        credit
    }

    /// The client's output is full, or has room again.
    pub fn block(&mut self, sub: SubId, blocked: bool) {
        if let Some(number) = self.clients.find(sub) {
            self.clients.get_mut(number).blocked = blocked;
            self.clients.wake(number);
        }
    }

    /// Names each client that has no credit while messages are there for it. A client is named once, then again only
    /// after it was lent credit and has spent it (or it was recalled). `end` is the log's durable end.
    pub fn hungry(&mut self, end: Position, tell: &mut impl FnMut(SubId)) {
        let unread = self.next.log_id < end.log_id && self.may_read() && !self.is_log_held;
        if !self.paused && !self.is_held() && (self.waiting_count > self.waiting_held || unread) {
            self.clients.tell_starved(tell);
        }
    }

    /// Credit is waiting for a read: to take it away now would make that read useless. It is used, or free, after the
    /// next delivery that finds what was read.
    pub fn awaits_read(&self) -> bool {
        self.awaits_read
    }

    /// A read of the partition has ended: what could not be read may be there now.
    pub fn readable(&mut self) {
        (self.is_log_held, self.waiting_held) = (false, 0);
    }

    // ---- messages

    /// On an ordered channel it is not final before [`Channel::settle`]: [`Channel::finishing`].
    pub fn finish(&mut self, now: Ticks, sub: SubId, id: LogId) -> Result<(), NotInFlight> {
        match self.find_in_flight(sub, id) {
            Some(key) => self.finish_entry(key),
            None if self.finish_range(now, sub, id, id) == 1 => {}
            None => return Err(NotInFlight),
        }
        Ok(())
    }

    /// Delivered again after `delay`, at once when that is zero.
    pub fn requeue(&mut self, now: Ticks, sub: SubId, id: LogId, delay: Duration) -> Result<(), NotInFlight> {
        match self.find_in_flight(sub, id) {
            Some(key) => self.requeue_entry(now, key, delay),
            None if self.requeue_range(now, sub, id, id, delay) == 1 => {}
            None => return Err(NotInFlight),
        }
        Ok(())
    }

    /// The client's message timeout begins anew, but never ends later than `max_msg_timeout` after the delivery.
    pub fn touch(&mut self, now: Ticks, sub: SubId, id: LogId) -> Result<(), NotInFlight> {
        match self.find_in_flight(sub, id) {
            Some(key) => self.touch_entry(now, key),
            None if self.touch_range(now, sub, id, id) == 1 => {}
            None => return Err(NotInFlight),
        }
        Ok(())
    }

    pub(super) fn finish_entry(&mut self, key: u32) {
        let open = self.open.get(key);
        self.clients.get_mut(open.client).finish_count += open.num as u64;
        self.wheel.cancel(open.timer);
        self.end_flight(key);
        if self.ordered {
            return self.begin_finish(key);
        }
        let interval = self.open.remove(key).interval();
        self.confirm(interval);
    }

    pub(super) fn requeue_entry(&mut self, now: Ticks, key: u32, delay: Duration) {
        let open = self.open.get(key);
        let num = open.num as u64;
        self.clients.get_mut(open.client).requeue_count += num;
        self.requeue_count += num;
        self.wheel.cancel(open.timer);
        self.end_flight(key);
        let delay = delay.min(self.options.max_req_timeout);
        if delay.is_zero() {
            self.wait(REQUEUED, key);
        } else {
            let timer = self.wheel.insert(now, now + delay, key);
            let open = self.open.get_mut(key);
            (open.state, open.timer) = (State::Deferred, timer);
            self.deferred_count += num;
        }
    }

    pub(super) fn touch_entry(&mut self, now: Ticks, key: u32) {
        let open = self.open.get_mut(key);
        let timeout = self.clients.get(open.client).timeout;
        let deadline = (now + timeout).min(open.delivered + self.options.max_msg_timeout);
        self.wheel.cancel(open.timer);
        open.timer = self.wheel.insert(now, deadline, key);
    }

    /// Messages time out and deferred ones fall due, a bounded number per call: look at the deadline again afterwards.
    /// `timed_out` is told of a client and how many messages it does not have any more, perhaps several times.
    pub fn tick(&mut self, now: Ticks, timed_out: &mut impl FnMut(SubId, u32)) {
        let Channel { wheel, open, clients, waiting, .. } = self;
        let (mut late, mut due) = (0, 0);
        wheel.expire_some(now, TICK_TIMERS_MAX, |key| {
            let entry = open.get_mut(key);
            let num = entry.num;
            let list = match std::mem::replace(&mut entry.state, State::Waiting) {
                State::InFlight => {
                    let client = clients.get_mut(entry.client);
                    client.in_flight_count -= num as u64;
                    if !entry.indexed {
                        client.runs.remove(&entry.id);
                    }
                    open.unlink(&mut client.in_flight, key);
                    timed_out(client.sub, num as u32);
                    late += num as u64;
                    REQUEUED
                }
                State::Deferred => {
                    due += num as u64;
                    DUE
                }
                State::Waiting | State::Finishing => unreachable!("what waits has no timer"),
            };
            open.get_mut(key).timer = TimerId::NONE;
            open.push_back(&mut waiting[list], key);
        });
        self.in_flight_count -= late;
        self.timeout_count += late;
        self.deferred_count -= due;
        self.waiting_count += late + due;
    }

    /// When [`Channel::tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        self.wheel.next_deadline()
    }

    /// A single message; runs are looked for in `ranges`.
    /// Another client has it in flight.
    pub fn is_anothers(&self, sub: SubId, id: LogId) -> bool {
        let open = self.open.find(id).map(|key| self.open.get(key));
        open.is_some_and(|open| open.state == State::InFlight && self.clients.get(open.client).sub != sub)
    }

    pub(super) fn find_in_flight(&self, sub: SubId, id: LogId) -> Option<u32> {
        let key = self.open.find(id)?;
        let open = self.open.get(key);
        let is_his = open.state == State::InFlight && self.clients.get(open.client).sub == sub;
        is_his.then_some(key)
    }

    /// Takes an entry out of its client's hands. Its timer is the caller's.
    fn end_flight(&mut self, key: u32) {
        let &Open { id, client, num, indexed, .. } = self.open.get(key);
        let client = self.clients.get_mut(client);
        self.open.unlink(&mut client.in_flight, key);
        if !indexed {
            client.runs.remove(&id);
        }
        client.in_flight_count -= num as u64;
        self.in_flight_count -= num as u64;
    }

    /// An entry that is in no list is to be delivered again.
    pub(super) fn wait(&mut self, list: usize, key: u32) {
        let open = self.open.get_mut(key);
        (open.state, open.timer) = (State::Waiting, TimerId::NONE);
        self.waiting_count += open.num as u64;
        self.open.push_back(&mut self.waiting[list], key);
    }

    // ---- what is confirmed

    pub(super) fn confirm(&mut self, interval: Interval) {
        self.confirmed.insert(interval);
        if !self.name.is_ephemeral() {
            self.finished.insert(interval);
        }
    }

    /// What was confirmed since the last call: ascending, disjoint, not touching. For the journal; always `None` on an
    /// ephemeral channel, which never stands there.
    pub fn take_finished(&mut self) -> Option<Vec<Interval>> {
        self.finished.take()
    }

    /// [`Channel::take_finished`] has something.
    pub fn is_dirty(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Nobody needs what lies before it, whatever comes of a change that is not settled.
    pub fn confirmed(&self) -> Position {
        let here = self.confirmed.position();
        match &self.syncing {
            Syncing::Move(before) => std::cmp::min_by_key(here, before.position(), |p| p.log_id),
            _ => here,
        }
    }

    /// It was its topic's first channel.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// As it is journaled: with what is not settled.
    pub fn image(&self) -> CursorImage {
        let with_finishing = self.finishing().map(|interval| {
            let mut confirmed = self.confirmed.clone();
            confirmed.insert(interval);
            confirmed
        });
        let confirmed = with_finishing.as_ref().unwrap_or(&self.confirmed);
        CursorImage {
            name: self.name.clone(),
            paused: self.paused,
            ordered: self.ordered,
            first: self.first,
            epoch: self.epoch,
            generation: self.generation,
            confirmed: confirmed.position(),
            intervals: confirmed.intervals().collect(),
        }
    }

    // ---- figures

    /// Messages up to `end` (the log's) that wait for a delivery, as nsqd counts: in flight and deferred ones are not
    /// among them.
    pub fn depth(&self, end: Position) -> u64 {
        let done: u64 = self.restored.iter().map(|i| i.end.log_id.0.saturating_sub(i.start.0.max(self.next.log_id.0))).sum();
        u64::try_from(end.count - self.next.count).unwrap_or(0).saturating_sub(done) + self.waiting_count
    }

    pub fn in_flight_count(&self) -> u64 {
        self.in_flight_count
    }

    pub fn deferred_count(&self) -> u64 {
        self.deferred_count
    }

    /// `message_count` counts what the partition took since the channel was made in this process.
    pub fn stats(&self, end: Position, with_clients: bool) -> ChannelStats {
        ChannelStats {
            client_count: self.clients().count() as u64,
            channel: self.name.to_string(),
            depth: self.depth(end),
            in_flight_count: self.in_flight_count,
            deferred_count: self.deferred_count,
            message_count: u64::try_from(end.count - self.began).unwrap_or(0),
            requeue_count: self.requeue_count,
            timeout_count: self.timeout_count,
            paused: self.paused,
            clients: if with_clients { self.clients.iter().map(|c| c.stats()).collect() } else { vec![] },
        }
    }

    /// Bytes allocated for open messages and their timers.
    pub fn memory_bytes(&self) -> usize {
        // A B-tree's nodes are two thirds full, and a bit more than their entries.
        let runs: usize = self.clients.iter().map(|c| c.runs.len() * size_of::<(LogId, u32)>() * 2).sum();
        self.open.allocated_bytes() + self.wheel.allocated_bytes() + runs
    }
}
