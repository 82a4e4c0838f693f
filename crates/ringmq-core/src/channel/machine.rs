//! The channel's state, and how clients and time change it; deliveries are in `deliver`.

use super::Source;
use super::backlog::{Backlog, REQUEUED};
use super::clients::Clients;
use super::copies::{Copies, Copy};
use super::cursor;
use super::figures::Figures;
use super::finished::Finished;
use super::flights::{Flight, Flights};
use super::forward::ForwardPolicy;
use super::open::{Open, OpenState};
use super::ordered::Syncing;
use super::reading::Reading;
use super::tail::Tail;
use crate::base::{ChannelName, Epoch, LogId, PartitionId, Position, SubId, Ticks, TimerId, mix};
use crate::format::cursor::{CursorImage, Interval};
use crate::metrics::stats::ChannelStats;
use crate::seam::message::SubOptions;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// No TOUCH keeps a message longer than this after its delivery.
    pub max_msg_timeout: Duration,
    /// Longer delays of a REQ count as this.
    pub max_req_timeout: Duration,
    /// Window of the times from publish to FIN. `None`: not measured.
    pub end_to_end: Option<Duration>,
}

/// A FIN, REQ or TOUCH named a message that this client does not have (any more).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the message is not in flight for this client")]
pub struct NotInFlight;

/// Timers handled by one [`Channel::tick`], so that a crowd of timeouts does not make one long turn.
const TICK_TIMERS_MAX: usize = 10_000;

/// Channel on one partition, on the partition's core.
#[derive(Debug)]
pub struct Channel {
    pub(super) max_req_timeout: Duration,
    name: ChannelName,
    pub(super) paused: bool,
    pub(super) ordered: bool,
    first: bool,
    epoch: Epoch,

    pub(super) finished: Finished,
    pub(super) syncing: Syncing,

    pub(super) reading: Reading,
    /// The last delivery ended at a read that is under way, and nothing was handed out.
    pub(super) awaits_read: bool,
    /// The log cannot be read at the read position, as far as known.
    pub(super) is_log_held: bool,
    /// Salt of sampling, so that channels of one topic do not all sample the same messages.
    sample_salt: u64,

    pub(super) backlog: Backlog,
    pub(super) flights: Flights,
    pub(super) copies: Box<Copies>,
    /// Memory that open messages may take before the log is read no further: [`Channel::set_room`].
    room: usize,
    pub(super) clients: Clients,
    figures: Figures,
}

impl Channel {
    /// Goes on where the cursor stands: everything that it does not say to be confirmed is delivered (again).
    pub fn new(options: ChannelOptions, partition: PartitionId, cursor: CursorImage) -> Self {
        let sample_salt = cursor.name.bytes().fold(partition.0 as u64, |h, b| mix(h ^ b as u64));
        let reading = Reading::new(cursor.confirmed, cursor.intervals, cursor.handed);
        Channel {
            max_req_timeout: options.max_req_timeout,
            name: cursor.name,
            paused: cursor.paused,
            ordered: cursor.ordered,
            first: cursor.first,
            epoch: cursor.epoch,
            figures: Figures::new(reading.next().count, options.end_to_end),
            reading,
            finished: Finished::new(cursor.generation),
            syncing: Syncing::default(),
            awaits_read: false,
            is_log_held: false,
            sample_salt,
            backlog: Backlog::default(),
            flights: Flights::default(),
            copies: Box::default(),
            room: usize::MAX,
            clients: Clients::new(options.max_msg_timeout),
        }
    }

    pub fn name(&self) -> &ChannelName {
        &self.name
    }

    /// Epoch of the leader that last set the cursor.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn generation(&self) -> u64 {
        self.finished.generation()
    }

    /// A consumer with `sample_rate` gets this message: nsqd's rule, (rate + 1) percent of all.
    pub(super) fn samples(&self, id: LogId, rate: u64) -> bool {
        mix(id.0 ^ self.sample_salt) % 100 <= rate
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Pauses delivery, or resumes it; FIN, REQ, TOUCH and timeouts go on. [`Channel::raise_generation`] follows, and the journal.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    // ---- clients

    /// A client without credit. Panics when it is subscribed already.
    pub fn subscribe(&mut self, sub: SubId, options: SubOptions) {
        self.clients.insert(sub, options);
    }

    /// Removes the client. Its messages in flight are delivered again at once, attempts kept; returns their number, 0 when it is not
    /// subscribed.
    pub fn unsubscribe(&mut self, sub: SubId) -> usize {
        let Some(number) = self.clients.find(sub) else { return 0 };
        let mut client = self.clients.remove(number);
        let mut returned = 0;
        while let Some(key) = self.flights.end_first(&mut self.backlog, &mut client) {
            returned += self.backlog.get(key).num as usize;
            self.backlog.wait(REQUEUED, key);
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
        let unread = self.reading.is_before(end) && self.may_read() && !self.is_log_held;
        if !self.paused && !self.is_held() && (self.backlog.has_readable() || unread) {
            self.clients.tell_starved(tell);
        }
    }

    /// True if credit waits for a read: to take it away now would make that read useless. The next delivery that finds the read batch
    /// uses or frees the credit.
    pub fn awaits_read(&self) -> bool {
        self.awaits_read
    }

    /// A read of the partition has ended: the missing batch may be there now.
    pub fn readable(&mut self) {
        self.is_log_held = false;
        self.backlog.hold(0);
    }

    // ---- messages

    /// Finishes a message. On an ordered channel the FIN is not final before [`Channel::settle`]: [`Channel::finishing`].
    pub fn finish(&mut self, now: Ticks, sub: SubId, id: LogId) -> Result<(), NotInFlight> {
        match self.find_in_flight(sub, id) {
            Some(timer) => self.finish_flight(now, timer),
            None if self.finish_range(now, sub, id, id) == 1 => {}
            None => return Err(NotInFlight),
        }
        Ok(())
    }

    /// Delivered again after `delay`, at once when that is zero.
    pub fn requeue(&mut self, now: Ticks, sub: SubId, id: LogId, delay: Duration) -> Result<(), NotInFlight> {
        match self.find_in_flight(sub, id) {
            Some(timer) => self.requeue_flight(now, timer, delay),
            None if self.requeue_range(now, sub, id, id, delay) == 1 => {}
            None => return Err(NotInFlight),
        }
        Ok(())
    }

    /// The client's message timeout begins anew, but never ends later than `max_msg_timeout` after the delivery.
    pub fn touch(&mut self, now: Ticks, sub: SubId, id: LogId) -> Result<(), NotInFlight> {
        match self.find_in_flight(sub, id) {
            Some(timer) => self.flights.touch(&self.clients, now, timer),
            None if self.touch_range(now, sub, id, id) == 1 => {}
            None => return Err(NotInFlight),
        }
        Ok(())
    }

    fn finish_flight(&mut self, now: Ticks, timer: TimerId) {
        let flight @ Flight { key, client, .. } = self.flights.end(&mut self.backlog, &mut self.clients, timer);
        let num = self.backlog.get(key).num as u64;
        self.figures.finished(now, &flight, num);
        self.clients.get_mut(client).finish_count += num;
        if self.ordered {
            return self.begin_finish(key);
        }
        let interval = self.backlog.remove(key).interval();
        self.confirm(interval);
    }

    fn requeue_flight(&mut self, now: Ticks, timer: TimerId, delay: Duration) {
        let Flight { key, client, .. } = self.flights.end(&mut self.backlog, &mut self.clients, timer);
        let &Open { id, num, .. } = self.backlog.get(key);
        let num = num as u64;
        let owner = self.clients.get_mut(client);
        owner.requeue_count += num;
        let delay = delay.min(self.max_req_timeout);
        let is_long = delay > owner.timeout && !owner.is_ranged;
        self.figures.requeued(num);
        if delay.is_zero() {
            self.backlog.wait(REQUEUED, key);
        } else {
            self.backlog.defer(key, now + delay, now);
            if is_long && !self.ordered && !self.name.is_ephemeral() {
                self.copies.want(id, key, now + delay);
            }
        }
    }

    /// Messages time out and deferred ones fall due, a bounded number per call: look at the deadline again afterwards.
    /// `timed_out` is told of a client and how many messages it does not have any more, perhaps several times.
    pub fn tick(&mut self, now: Ticks, timed_out: &mut impl FnMut(SubId, u32)) {
        for Flight { key, client, .. } in self.flights.expire(&mut self.backlog, &mut self.clients, now, TICK_TIMERS_MAX) {
            let num = self.backlog.get(key).num;
            timed_out(self.clients.get(client).sub, num as u32);
            self.figures.timed_out(num as u64);
            self.backlog.wait(REQUEUED, key);
        }
        for _ in 0..TICK_TIMERS_MAX {
            let Some(id) = self.backlog.pop_due(now) else { break };
            self.copies.forget(id);
        }
    }

    /// Time at which [`Channel::tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        [self.flights.deadline(), self.backlog.deadline()].into_iter().flatten().min()
    }

    /// True if the message is in flight for another client.
    pub fn is_anothers(&self, sub: SubId, id: LogId) -> bool {
        self.flights_of(id).any(|timer| self.holder(timer) != sub)
    }

    pub(super) fn find_in_flight(&self, sub: SubId, id: LogId) -> Option<TimerId> {
        self.flights_of(id).find(|timer| self.holder(*timer) == sub)
    }

    /// The flights of a message that clients name by this id: the message's own, and a copy's.
    fn flights_of(&self, id: LogId) -> impl Iterator<Item = TimerId> + '_ {
        let copy = self.copies.own_id(id).and_then(|own| self.flights.find(own));
        self.flights.find(id).into_iter().chain(copy)
    }

    fn holder(&self, timer: TimerId) -> SubId {
        self.clients.get(self.flights.get(timer).client).sub
    }

    // ---- ranges of a ranged client

    /// Finishes the client's messages in flight among `first ..= last`. Returns their number; other ids do not count. 0 for a client
    /// that is not ranged.
    pub fn finish_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId) -> u64 {
        self.each_run(now, sub, first, last, |channel, timer| channel.finish_flight(now, timer))
    }

    /// Requeues the client's messages in the range; each is delivered again after `delay`. Otherwise as [`Channel::finish_range`].
    pub fn requeue_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId, delay: Duration) -> u64 {
        self.each_run(now, sub, first, last, |channel, timer| channel.requeue_flight(now, timer, delay))
    }

    /// Restarts the timeout of the client's messages in the range. Otherwise as [`Channel::finish_range`].
    pub fn touch_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId) -> u64 {
        self.each_run(now, sub, first, last, |channel, timer| channel.flights.touch(&channel.clients, now, timer))
    }

    /// Does something with all runs, or parts of runs, of the client within `first ..= last`.
    fn each_run(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId, mut act: impl FnMut(&mut Channel, TimerId)) -> u64 {
        let Some(number) = self.clients.find(sub) else { return 0 };
        let (mut from, mut count) = (first, 0);
        while let Some(timer) = self.flights.run_within(&mut self.backlog, self.clients.get_mut(number), now, (from, last)) {
            let run = self.backlog.get(self.flights.get(timer).key);
            count += run.num as u64;
            // A run ends before the last of all ids.
            from = LogId(run.last().0 + 1);
            act(self, timer);
        }
        count
    }

    // ---- copies

    pub fn wants_copies(&self) -> bool {
        self.copies.is_wanted()
    }

    /// The next message that is to be copied; the caller appends the copy and reports by [`Channel::copied`]. `number` names the
    /// attempt. `None`: there is none, or it cannot be read yet.
    pub fn next_copy(&mut self, now: Ticks, number: u64, source: &mut impl Source) -> Option<Copy> {
        self.copies.next(&self.backlog, now, number, source)
    }

    /// Outcome of a copy. Once it is committed the original is confirmed; otherwise the copy is wanted still.
    pub fn copied(&mut self, id: LogId, number: u64, is_committed: bool) {
        let Some(key) = self.copies.settle(id, number, is_committed) else { return };
        assert!(self.backlog.get(key).state == OpenState::Deferred, "the copy of a message that falls due is forgotten");
        let interval = self.backlog.remove_deferred(key).interval();
        self.confirm(interval);
    }

    /// Wants copies of the first open messages, if they are deferred and hold back enough. `end`: of the log. A channel that is far
    /// behind the end, or reads no further before something is finished, would meet a copy too late.
    pub fn look_forward(&mut self, now: Ticks, end: Position, policy: ForwardPolicy, source: &mut impl Source) {
        let read_to = self.reading.next().offset;
        let is_behind = end.offset - read_to > policy.held_bytes as i64;
        if is_behind || !self.may_read() || self.ordered || self.name().is_ephemeral() || self.is_syncing() {
            return;
        }
        self.copies.look_forward(&mut self.backlog, read_to, now, policy, source);
    }

    // ---- confirmed messages

    pub(super) fn confirm(&mut self, interval: Interval) {
        if !self.name.is_ephemeral() {
            self.finished.insert(interval);
        }
    }

    /// Intervals that were confirmed since the last call: ascending, disjoint, not touching. They go to the journal; always `None` on an
    /// ephemeral channel, which is never journaled.
    pub fn take_finished(&mut self) -> Option<Vec<Interval>> {
        self.finished.take()
    }

    /// [`Channel::take_finished`] has something.
    pub fn is_dirty(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Position that holds whatever becomes of an unsettled change: the channel needs no message before it.
    pub fn confirmed(&self) -> Position {
        let here = cursor::confirmed(self.backlog.open(), self.reading.next());
        match &self.syncing {
            Syncing::Move(before) => std::cmp::min_by_key(here, before.confirmed(), |p| p.log_id),
            _ => here,
        }
    }

    /// Whether the channel was its topic's first one.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Cursor as it is journaled: with changes that are not settled.
    pub fn image(&self) -> CursorImage {
        let (next, restored) = (self.reading.next(), self.reading.restored());
        let (confirmed, intervals) = cursor::image(self.backlog.open(), next, restored, self.finishing_entry());
        CursorImage {
            name: self.name.clone(),
            paused: self.paused,
            ordered: self.ordered,
            first: self.first,
            epoch: self.epoch,
            generation: self.generation(),
            confirmed,
            intervals,
            handed: self.reading.handed().copied().collect(),
        }
    }

    // ---- figures

    /// Messages up to `end` (the log's) that wait for a delivery, as nsqd counts: in flight and deferred ones are not
    /// among them.
    pub fn depth(&self, end: Position) -> u64 {
        self.reading.unread(end) + self.backlog.waiting_count()
    }

    pub fn in_flight_count(&self) -> u64 {
        self.backlog.in_flight_count()
    }

    pub fn deferred_count(&self) -> u64 {
        self.backlog.deferred_count()
    }

    /// Forgets the times from publish to FIN that are older than their window.
    pub fn move_window(&mut self, now: Ticks) {
        self.figures.move_window(now);
    }

    /// Statistics. `message_count` counts the messages that the partition took since the channel was made in this process.
    pub fn stats(&self, end: Position, with_clients: bool) -> ChannelStats {
        ChannelStats {
            client_count: self.clients().count() as u64,
            channel: self.name.to_string(),
            depth: self.depth(end),
            in_flight_count: self.in_flight_count(),
            deferred_count: self.deferred_count(),
            paused: self.paused,
            full_bytes: self.is_full(end).then(|| self.open_bytes() as u64),
            clients: if with_clients { self.clients.iter().map(|c| c.stats()).collect() } else { vec![] },
            ..self.figures.stats(end)
        }
    }

    // ---- memory

    /// Sets the memory of open messages: from `bytes` on the channel reads no further. Waiting messages still go out.
    pub fn set_room(&mut self, bytes: usize) {
        self.room = bytes;
    }

    /// More messages wait for a delivery than an ephemeral channel keeps, and none of them is being read for a client.
    pub fn has_old(&self, tail: &Tail, end: Position) -> bool {
        self.name.is_ephemeral()
            && !self.awaits_read
            && !self.is_syncing()
            && self.reading.is_before(end)
            && self.depth(end) > tail.kept()
    }

    /// Drops the oldest unread messages beyond the number that the tail keeps. Requeued messages stay. Returns the number of dropped
    /// messages.
    pub fn drop_old(&mut self, tail: &Tail, end: Position) -> u64 {
        if !self.has_old(tail, end) {
            return 0;
        }
        let num = (self.depth(end) - tail.kept()).min(self.reading.unread(end));
        self.reading.skip(num, tail);
        self.figures.dropped(num);
        num
    }

    /// True if the log may be read on. A few open messages are always allowed: the memory for them is there already.
    pub(super) fn may_read(&self) -> bool {
        self.backlog.open().has_room() || self.open_bytes() < self.room || self.backlog.is_empty()
    }

    pub fn room(&self) -> usize {
        self.room
    }

    /// Open messages take all memory that they may: nothing of the log, which ends at `end`, is read before some are finished.
    pub fn is_full(&self, end: Position) -> bool {
        self.reading.is_before(end) && !self.may_read()
    }

    /// Bytes allocated for open messages, without the timers of those in flight, which the clients' RDY bounds. Constant time.
    pub fn open_bytes(&self) -> usize {
        self.backlog.allocated_bytes() + self.copies.allocated_bytes()
    }

    /// Bytes allocated for messages that are open, or were confirmed before the channel was made.
    pub fn memory_bytes(&self) -> usize {
        // A B-tree's nodes are two thirds full, and a bit more than their entries.
        let runs: usize = self.clients.iter().map(|c| c.runs.len() * size_of::<(LogId, TimerId)>() * 2).sum();
        self.open_bytes() + self.flights.allocated_bytes() + self.reading.allocated_bytes() + runs
    }
}
