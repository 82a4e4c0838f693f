//! Hands a channel's messages to its clients: waiting ones first (requeued, then due), then the log from the read position. One turn is
//! bounded in messages and bytes; within a batch no message costs a lookup of the log.

use super::backlog::{DUE, REQUEUED};
use super::copies::known_as;
use super::flights::Flight;
use super::machine::Channel;
use super::open::Open;
use super::reading::BatchProgress;
use super::runs::HandedRun;
use super::{Sink, Source};
use crate::base::{LogId, Position, Ticks};
use crate::format::batch::{Batch, MESSAGE_OVERHEAD, Message, Messages};
use crate::log::fetch::Fetch;

/// Bounds of one [`Channel::deliver`].
const TURN_MESSAGES_MAX: usize = 2500;
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Messages of one run at most. The rest of a split run is found by a walk over at most as many heads.
pub(super) const RUN_MAX: usize = TURN_MESSAGES_MAX;
const _: () = assert!(RUN_MAX <= u16::MAX as usize);
/// Batches that waiting messages may ask the disk for at once; the log is read meanwhile.
const PENDING_MAX: usize = 16;
/// Waiting messages of pending batches that one call steps over.
const STEPPED_OVER_MAX: usize = 4096;

/// Budget that is left of a turn.
pub(super) struct Turn {
    pub(super) now: Ticks,
    /// The wall clock at that moment.
    pub(super) unix_ns: i64,
    messages: usize,
    bytes: usize,
    messages_max: usize,
    bytes_max: usize,
    /// True while nothing was handed out: the next turn will have no more room.
    is_fresh: bool,
    /// True once something was handed out of the part that is handed out now: the waiting messages, or the log.
    has_begun: bool,
    /// True if messages of the log became waiting entries: they go out before the log behind them.
    pub(super) has_taken_up: bool,
    /// Bytes of the messages that were handed out.
    pub(super) handed_bytes: usize,
}

impl Turn {
    pub(super) fn new(now: Ticks, messages: usize, bytes: usize) -> Turn {
        let (is_fresh, has_begun, has_taken_up, handed_bytes) = (true, false, false, 0);
        let (messages_max, bytes_max) = (messages, bytes);
        Turn { now, unix_ns: 0, messages, bytes, messages_max, bytes_max, is_fresh, has_begun, has_taken_up, handed_bytes }
    }

    fn is_spent(&self) -> bool {
        self.messages == 0 || self.bytes == 0
    }

    /// A message was handed out.
    fn spend(&mut self, bytes: usize) {
        (self.is_fresh, self.has_begun) = (false, true);
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.handed_bytes += bytes;
    }

    /// Spends budget for a step that is no delivery.
    pub(super) fn spend_step(&mut self) {
        self.messages = self.messages.saturating_sub(1);
    }

    /// Spends budget for `heads` message heads that were walked to find a message.
    pub(super) fn spend_walk(&mut self, heads: usize) {
        self.bytes = self.bytes.saturating_sub(heads * MESSAGE_OVERHEAD);
    }

    pub(super) fn spend_run(&mut self, num: u16, bytes: usize) {
        (self.is_fresh, self.has_begun) = (false, true);
        self.messages = self.messages.saturating_sub(num as usize);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.handed_bytes += bytes;
    }

    pub(super) fn has_room(&self, num: usize, bytes: usize) -> bool {
        // The budget that a turn spent before its first run does not split a run of a turn's size.
        if self.is_fresh {
            num <= self.messages_max && bytes <= self.bytes_max
        } else {
            num <= self.messages && bytes <= self.bytes
        }
    }

    /// Whether a run should go as a whole in the next turn rather than in two parts. Only behind others of its kind: it does not wait
    /// for ever when each turn begins with a few redeliveries.
    pub(super) fn should_wait(&self, num: usize, bytes: usize) -> bool {
        self.has_begun && num <= self.messages_max && bytes <= self.bytes_max
    }
}

/// Reason why a part of the turn ended.
#[derive(PartialEq, Eq)]
enum TurnStop {
    /// No client has credit and room, or the channel is ordered and has a message out.
    NoClient,
    /// No message is there (yet), or the memory bound holds.
    NoMessage,
    TurnSpent,
}

enum HandOut {
    Taken,
    /// The client whose turn it was does not sample the message.
    SampledOut,
    /// No client took it: the one whose turn it is now takes runs only.
    Ranged,
    NoClient,
}

impl Channel {
    /// Delivers for one short turn, within credit and limits. True: there is more to do now, call again. Otherwise the channel has work
    /// again after a publish, a lend, an unblock, a requeue, a tick, an unpause, or when the partition is readable.
    pub fn deliver(&mut self, now: Ticks, source: &mut impl Source, sink: &mut impl Sink) -> bool {
        self.deliver_turn(Turn::new(now, TURN_MESSAGES_MAX, TURN_BYTES_MAX), source, sink)
    }

    pub(super) fn deliver_turn(&mut self, mut turn: Turn, source: &mut impl Source, sink: &mut impl Sink) -> bool {
        self.awaits_read = false;
        turn.unix_ns = source.unix_ns();
        if self.paused || self.is_held() {
            return false;
        }
        let more = self.deliver_all(&mut turn, source, sink);
        // A client with lent credit has used some of it: a recall need not wait for the next read too.
        self.awaits_read &= turn.is_fresh;
        self.copies.forward.earn(turn.handed_bytes);
        more
    }

    fn deliver_all(&mut self, turn: &mut Turn, source: &mut impl Source, sink: &mut impl Sink) -> bool {
        let mut held = 0;
        for list in [REQUEUED, DUE] {
            match self.deliver_waiting(list, turn, &mut held, source, sink) {
                TurnStop::NoClient => return false,
                TurnStop::TurnSpent => return true,
                TurnStop::NoMessage => {}
            }
        }
        self.backlog.hold(held);
        if self.ordered && self.backlog.waiting_count() > 0 {
            // It goes first, and cannot be had now.
            return false;
        }
        turn.has_begun = false;
        self.deliver_log(turn, source, sink) == TurnStop::TurnSpent || turn.has_taken_up
    }

    /// `held` counts the messages that no turn will get at before the partition is readable; others than those that are
    /// being read.
    fn deliver_waiting(
        &mut self,
        list: usize,
        turn: &mut Turn,
        held: &mut u64,
        source: &mut impl Source,
        sink: &mut impl Sink,
    ) -> TurnStop {
        let mut after = self.backlog.first_waiting(list);
        // Batch at the offset that was looked at last, or the end of a lost range there.
        let (mut batch, mut lost_to): (Option<Batch>, _) = (None, Position::START);
        // Batches that cannot be had now, and whether the device refuses them.
        let (mut pending, mut pending_count, mut stepped_over) = ([(0, false); PENDING_MAX], 0, 0);
        while let Some(key) = after {
            if self.is_held() || self.clients.next().is_none() {
                return TurnStop::NoClient;
            }
            if turn.is_spent() {
                return TurnStop::TurnSpent;
            }
            after = self.backlog.open().after(key);
            let offset = self.backlog.get(key).offset;
            if let Some((_, is_held)) = pending[..pending_count].iter().find(|(o, _)| *o == offset) {
                *held += self.backlog.get(key).num as u64 * *is_held as u64;
                stepped_over += 1;
                if stepped_over == STEPPED_OVER_MAX {
                    *held = self.backlog.waiting_count();
                    return TurnStop::NoMessage;
                }
                continue;
            }
            if batch.as_ref().is_none_or(|b| b.header.offset.get() != offset) {
                match source.fetch(offset) {
                    Fetch::Batch(found) => batch = Some(found),
                    missing @ (Fetch::Pending | Fetch::Held | Fetch::End) => {
                        let is_held = matches!(missing, Fetch::Held);
                        *held += self.backlog.get(key).num as u64 * is_held as u64;
                        self.awaits_read |= matches!(missing, Fetch::Pending);
                        pending[pending_count] = (offset, is_held);
                        pending_count += 1;
                        if pending_count == PENDING_MAX {
                            *held = self.backlog.waiting_count();
                            return TurnStop::NoMessage;
                        }
                        continue;
                    }
                    Fetch::Lost { to, .. } | Fetch::Below { start: to } => (batch, lost_to) = (None, to),
                }
            }
            let key = self.backlog.split_span(list, key, batch.as_ref().map_or(lost_to, |b| b.header.end()));
            after = self.backlog.open().after(key);
            turn.spend_walk(self.backlog.get(key).skip as usize);
            let Some((batch, found)) = batch.as_ref().and_then(|b| Some((b, find(b, self.backlog.get(key))?))) else {
                // Damage or retention took it away since it was delivered.
                self.drop_lost(list, key);
                turn.spend_step();
                continue;
            };
            let attempts = self.backlog.get(key).attempts.saturating_add(1);
            if attempts == 1
                && let Some(next) = self.put_off_again(list, key, batch, found.at, turn)
            {
                after = next;
                continue;
            }
            let place = (offset + found.at as i64, (found.behind - found.at) as u32);
            let (shown, deliveries) = known_as(&found.message, attempts);
            match self.hand_out(&shown, deliveries, place, sink) {
                HandOut::Taken => {
                    if shown.log_id != found.message.log_id {
                        self.show_copy(shown.log_id, found.message.log_id);
                    }
                    let taken;
                    (taken, after) = self.backlog.take_waiting(list, key, 1, (found.at, found.behind));
                    self.begin_flight(taken, turn, found.message.unix_ns);
                    turn.spend(found.message.body.len());
                }
                HandOut::Ranged => match self.hand_waiting_run(list, key, batch, found.at, turn, sink) {
                    HandedRun::Taken(next) => after = next,
                    HandedRun::Refused => after = Some(key),
                    HandedRun::Later => return TurnStop::TurnSpent,
                },
                // It had a due time, and this would have been its first delivery.
                HandOut::SampledOut => {
                    let taken;
                    (taken, after) = self.backlog.take_waiting(list, key, 1, (found.at, found.behind));
                    let interval = self.backlog.remove(taken).interval();
                    self.confirm(interval);
                    turn.spend(0);
                }
                HandOut::NoClient => return TurnStop::NoClient,
            }
        }
        TurnStop::NoMessage
    }

    fn drop_lost(&mut self, list: usize, key: u32) {
        let open = self.backlog.remove_waiting(list, key);
        tracing::warn!(
            channel = %self.name(), log_id = open.id.0, messages = open.num, offset = open.offset,
            "messages that were to be delivered again are lost"
        );
        self.confirm(open.interval());
    }

    fn deliver_log(&mut self, turn: &mut Turn, source: &mut impl Source, sink: &mut impl Sink) -> TurnStop {
        loop {
            if self.clients.next().is_none() {
                return TurnStop::NoClient;
            }
            if !self.may_read() {
                return TurnStop::NoMessage;
            }
            if turn.is_spent() {
                return TurnStop::TurnSpent;
            }
            let found = source.fetch(self.reading.next().offset);
            self.is_log_held = matches!(found, Fetch::Held);
            let to = match found {
                Fetch::Batch(batch) => {
                    if let Some(gap) = self.reading.pass_gap(&batch) {
                        self.confirm(gap);
                        turn.spend_step();
                        continue;
                    }
                    if let Some(mut place) = self.reading.begin_batch(&batch) {
                        let stop = self.deliver_batch(&batch, &mut place, turn, sink);
                        self.reading.end_batch(&batch, place);
                        match stop {
                            Some(stop) => return stop,
                            None => continue,
                        }
                    }
                    batch.header.end()
                }
                Fetch::Lost { to, .. } => to,
                Fetch::Below { start } => start,
                Fetch::Pending => {
                    self.awaits_read = true;
                    return TurnStop::NoMessage;
                }
                Fetch::Held | Fetch::End => return TurnStop::NoMessage,
            };
            turn.spend_step();
            if !self.pass_lost(to) {
                let next = self.reading.next();
                tracing::error!(channel = %self.name(), ?next, ?to, "the log skips to a place before the read position");
                return TurnStop::NoMessage;
            }
        }
    }

    /// Passes everything up to `to`, which is lost. False: the read position does not move.
    fn pass_lost(&mut self, to: Position) -> bool {
        let lost = self.reading.pass_lost(to);
        lost.into_iter().for_each(|lost| self.confirm(lost));
        lost.is_some()
    }

    /// Hands out messages of the batch in which the read position is. `None`: the position has left the batch.
    fn deliver_batch(
        &mut self,
        batch: &Batch,
        place: &mut BatchProgress,
        turn: &mut Turn,
        sink: &mut impl Sink,
    ) -> Option<TurnStop> {
        let header = &batch.header;
        let (offset, unix_ns) = (header.offset.get(), header.base_unix_ns.get());
        let bytes = &batch.bytes;
        while self.reading.is_in(batch) {
            if self.is_held() {
                return Some(TurnStop::NoClient);
            }
            if turn.is_spent() {
                return Some(TurnStop::TurnSpent);
            }
            if !self.may_read() {
                return Some(TurnStop::NoMessage);
            }
            let mut messages = Messages::resume(&bytes[place.at..], place.id, unix_ns);
            let Some(message) = messages.next() else {
                // A verified batch has as many messages as it says; if not, the rest of it is not readable.
                self.pass_lost(header.end());
                turn.spend_step();
                return None;
            };
            let at = place.at;
            let behind = bytes.len() - messages.rest_len();
            if message.log_id < self.reading.next().log_id {
                place.pass(1, behind);
                continue;
            }
            if self.take_up(batch, place, turn) {
                if self.ordered {
                    return Some(TurnStop::TurnSpent);
                }
                continue;
            }
            if turn.has_taken_up {
                return Some(TurnStop::TurnSpent);
            }
            if message.due_unix_ns.is_some() && self.put_off(batch, place, turn) {
                continue;
            }
            let open = self.reading.entry(batch, place, 1);
            let (shown, deliveries) = known_as(&message, 1);
            match self.hand_out(&shown, deliveries, (offset + at as i64, (behind - at) as u32), sink) {
                HandOut::Taken => {
                    if shown.log_id != message.log_id {
                        self.show_copy(shown.log_id, message.log_id);
                    }
                    let key = self.backlog.push(open);
                    self.begin_flight(key, turn, message.unix_ns);
                    turn.spend(message.body.len());
                }
                HandOut::SampledOut => {
                    self.confirm(open.interval());
                    turn.spend(0);
                }
                HandOut::Ranged => match self.hand_log_run(batch, place, turn, sink) {
                    HandedRun::Taken(_) | HandedRun::Refused => continue,
                    HandedRun::Later => return Some(TurnStop::TurnSpent),
                },
                HandOut::NoClient => return Some(TurnStop::NoClient),
            }
            place.pass(1, behind);
            self.reading.pass(&open);
        }
        None
    }

    /// Gives a message to the next client that takes it; then that client stays first until [`Channel::begin_flight`].
    /// `place` is where it stands in the log, and its bytes there.
    fn hand_out(&mut self, message: &Message<'_>, attempts: u16, place: (i64, u32), sink: &mut impl Sink) -> HandOut {
        while let Some(number) = self.clients.next() {
            let client = self.clients.get(number);
            if client.is_ranged {
                return HandOut::Ranged;
            }
            let rate = client.options.sample_rate as u64;
            // A redelivery is owed whatever the rate.
            if attempts == 1 && rate > 0 && !self.ordered && !self.samples(message.log_id, rate) {
                self.clients.rotate();
                return HandOut::SampledOut;
            }
            let place = client.options.placed.then_some(place);
            if sink.deliver(client.sub, message, attempts, place) {
                return HandOut::Taken;
            }
            self.clients.get_mut(number).blocked = true;
        }
        HandOut::NoClient
    }

    /// A copy goes out, and its client will name it by its first id.
    fn show_copy(&mut self, first_id: LogId, own: LogId) {
        self.copies.show(first_id, own, &self.flights, self.backlog.in_flight_count());
    }

    /// The next client has taken an entry that is in no list; its messages were published then, or its batch was.
    pub(super) fn begin_flight(&mut self, key: u32, turn: &Turn, published_unix_ns: i64) {
        // A clock that was set back makes no message younger than new.
        let age_s = turn.unix_ns.saturating_sub(published_unix_ns).max(0) as f32 / 1e9;
        let number = self.clients.next().expect("the client that took a message has credit until it is spent");
        let flight = Flight { key, client: number, delivered: turn.now, age_s };
        let num = self.flights.begin(&mut self.backlog, self.clients.get_mut(number), flight);
        self.clients.spend(number, num);
    }
}

/// A message in the bytes of its batch.
pub(super) struct BatchMessage<'a> {
    pub(super) message: Message<'a>,
    pub(super) at: usize,
    pub(super) behind: usize,
}

/// The first message of an entry in its batch. `None` when this is another batch, or one that was lost.
pub(super) fn find<'a>(batch: &'a Batch, open: &Open) -> Option<BatchMessage<'a>> {
    let header = &batch.header;
    let is_there = header.offset.get() == open.offset
        && !header.is_lost()
        && header.log_id.get() <= open.id.0
        && open.last().0 <= header.last_log_id.get();
    let rest = batch.bytes.get(open.at as usize..).filter(|_| is_there)?;
    let mut messages = Messages::resume(rest, LogId(open.id.0 - open.skip as u64), header.base_unix_ns.get());
    for _ in 0..open.skip {
        messages.next()?;
    }
    let at = batch.bytes.len() - messages.rest_len();
    let message = messages.next()?;
    Some(BatchMessage { message, at, behind: batch.bytes.len() - messages.rest_len() })
}
