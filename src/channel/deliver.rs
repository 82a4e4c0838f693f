//! Hands a channel's messages to its clients: what waits first (requeued, then due), then the log from the read
//! position. One turn is bounded in messages and bytes; within a batch no message costs a lookup of the log.

use super::machine::{Channel, DUE, REQUEUED, mix};
use super::open::{NONE, Open, State};
use super::{Sink, Source};
use crate::base::{LogId, MessageId, Position, Ticks, TimerId};
use crate::log::batch::{BATCH_HEADER_LEN, Batch, Message, Messages};
use crate::log::cursor::Interval;
use crate::log::fetch::Fetch;

/// Bounds of one [`Channel::deliver`].
const TURN_MESSAGES_MAX: usize = 2500;
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Batches that waiting messages may ask the disk for at once; the log is read meanwhile.
const PENDING_MAX: usize = 16;
/// Waiting messages of pending batches that one call steps over.
const STEPPED_OVER_MAX: usize = 4096;

/// How far a batch was read. The batch itself is asked for again in each turn: a channel that kept it would keep the
/// whole buffer that was read with it, beyond what the read cache counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Of the batch's header.
    crc: u32,
    /// Where message `id` begins in the batch's bytes.
    at: usize,
    id: LogId,
}

/// What is left of a turn.
struct Turn {
    messages: usize,
    bytes: usize,
    has_handed_out: bool,
}

impl Turn {
    fn is_spent(&self) -> bool {
        self.messages == 0 || self.bytes == 0
    }

    fn spend(&mut self, bytes: usize) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Why a part of the turn came to its end.
#[derive(PartialEq, Eq)]
enum Stop {
    /// Nobody has credit and room.
    NoClient,
    /// Nothing is there (yet), or the confirm window is full.
    NoMessage,
    TurnSpent,
}

enum Handed {
    Taken,
    /// The client that was next does not sample it.
    SampledOut,
    NoClient,
}

impl Channel {
    /// Hands out what it may, for one short turn. True: there is more to do now, call again. Otherwise it has work again
    /// after a publish, a lend, an unblock, a requeue, a tick, an unpause, or when the partition is readable.
    pub fn deliver(&mut self, now: Ticks, source: &mut impl Source, sink: &mut impl Sink) -> bool {
        self.awaits_read = false;
        if self.paused {
            return false;
        }
        let mut turn = Turn { messages: TURN_MESSAGES_MAX, bytes: TURN_BYTES_MAX, has_handed_out: false };
        let more = self.deliver_all(&mut turn, now, source, sink);
        // Whoever was lent credit has used some of it: a recall need not wait for the next read too.
        self.awaits_read &= !turn.has_handed_out;
        more
    }

    fn deliver_all(&mut self, turn: &mut Turn, now: Ticks, source: &mut impl Source, sink: &mut impl Sink) -> bool {
        let mut waiting_held = 0;
        for list in [REQUEUED, DUE] {
            match self.deliver_waiting(list, turn, &mut waiting_held, now, source, sink) {
                Stop::NoClient => return false,
                Stop::TurnSpent => return true,
                Stop::NoMessage => {}
            }
        }
        self.waiting_held = waiting_held;
        self.deliver_log(turn, now, source, sink) == Stop::TurnSpent
    }

    /// The log may be read on.
    pub(super) fn may_read(&self) -> bool {
        // Before a restored interval lie messages that were never read here: only they can shrink the window.
        self.confirmed.interval_count() <= self.options.confirm_window || !self.restored.is_empty()
    }

    fn deliver_waiting(
        &mut self,
        list: usize,
        turn: &mut Turn,
        held: &mut u64,
        now: Ticks,
        source: &mut impl Source,
        sink: &mut impl Sink,
    ) -> Stop {
        let mut after = self.waiting[list].first();
        let mut batch: Option<Batch> = None;
        // Batches that cannot be had now, and whether the device refuses them.
        let (mut pending, mut pending_count, mut stepped_over) = ([(0, false); PENDING_MAX], 0, 0);
        while let Some(key) = after {
            if self.clients.next().is_none() {
                return Stop::NoClient;
            }
            if turn.is_spent() {
                return Stop::TurnSpent;
            }
            after = self.open.after(key);
            let offset = self.open.get(key).offset;
            if let Some((_, is_held)) = pending[..pending_count].iter().find(|(o, _)| *o == offset) {
                *held += *is_held as u64;
                stepped_over += 1;
                if stepped_over == STEPPED_OVER_MAX {
                    return Stop::NoMessage;
                }
                continue;
            }
            if batch.as_ref().is_none_or(|b| b.header.offset.get() != offset) {
                match source.fetch(offset) {
                    Fetch::Batch(found) => batch = Some(found),
                    missing @ (Fetch::Pending | Fetch::Held | Fetch::End) => {
                        let is_held = matches!(missing, Fetch::Held);
                        *held += is_held as u64;
                        self.awaits_read |= matches!(missing, Fetch::Pending);
                        pending[pending_count] = (offset, is_held);
                        pending_count += 1;
                        if pending_count == PENDING_MAX {
                            return Stop::NoMessage;
                        }
                        continue;
                    }
                    Fetch::Lost { .. } | Fetch::Below { .. } => batch = None,
                }
            }
            let Some(message) = batch.as_ref().and_then(|b| find(b, self.open.get(key))) else {
                // Damage or retention took it away since it was delivered.
                self.drop_lost(list, key);
                turn.spend(0);
                continue;
            };
            let attempts = self.open.get(key).attempts.saturating_add(1);
            match self.hand_out(&message, attempts, sink) {
                Handed::Taken => {}
                // It was delivered before, so it is owed; `hand_out` samples first deliveries only.
                Handed::SampledOut => unreachable!("a redelivery is not sampled"),
                Handed::NoClient => return Stop::NoClient,
            }
            self.open.unlink(&mut self.waiting[list], key);
            self.waiting_count -= 1;
            self.begin_flight(key, now);
            turn.spend(message.body.len());
            turn.has_handed_out = true;
        }
        Stop::NoMessage
    }

    fn drop_lost(&mut self, list: usize, key: u32) {
        self.open.unlink(&mut self.waiting[list], key);
        self.waiting_count -= 1;
        let open = self.open.remove(key);
        tracing::warn!(channel = %self.name(), log_id = open.id.0, offset = open.offset, "a message to be delivered again is lost");
        self.confirm(open.interval());
    }

    fn deliver_log(&mut self, turn: &mut Turn, now: Ticks, source: &mut impl Source, sink: &mut impl Sink) -> Stop {
        loop {
            if self.clients.next().is_none() {
                return Stop::NoClient;
            }
            if !self.may_read() {
                return Stop::NoMessage;
            }
            if turn.is_spent() {
                return Stop::TurnSpent;
            }
            self.skip_restored();
            turn.spend(0);
            let found = source.fetch(self.next.offset);
            self.is_log_held = matches!(found, Fetch::Held);
            let to = match found {
                Fetch::Batch(batch) if self.begin_batch(&batch) => {
                    let crc = batch.header.header_crc.get();
                    let start = Place { crc, at: BATCH_HEADER_LEN, id: LogId(batch.header.log_id.get()) };
                    let mut place = self.place.take().filter(|p| p.crc == crc).unwrap_or(start);
                    let stop = self.deliver_batch(&batch, &mut place, turn, now, sink);
                    if batch.header.offset.get() == self.next.offset {
                        self.place = Some(place);
                    }
                    match stop {
                        Some(stop) => return stop,
                        None => continue,
                    }
                }
                Fetch::Batch(batch) => batch.header.end(),
                Fetch::Lost { to, .. } => to,
                Fetch::Below { start } => start,
                Fetch::Pending => {
                    self.awaits_read = true;
                    return Stop::NoMessage;
                }
                Fetch::Held | Fetch::End => return Stop::NoMessage,
            };
            if !self.pass_lost(to) {
                tracing::error!(channel = %self.name(), next = ?self.next, ?to, "the log answers with what lies behind");
                return Stop::NoMessage;
            }
        }
    }

    /// Moves the read position to where `batch` continues it. False when no message of it is wanted.
    fn begin_batch(&mut self, batch: &Batch) -> bool {
        let (start, end) = (batch.header.start(), batch.header.end());
        if batch.header.is_lost() || end.log_id <= self.next.log_id {
            return false;
        }
        if start.log_id > self.next.log_id {
            self.confirm(Interval { start: self.next.log_id, end: start });
            self.next = start;
        }
        let index = self.next.log_id.0 - start.log_id.0;
        self.next.offset = start.offset;
        self.next.count = start.count + index as i64;
        true
    }

    /// Everything up to `to` is gone: it counts as confirmed. False when that leads nowhere.
    fn pass_lost(&mut self, to: Position) -> bool {
        if to.offset <= self.next.offset {
            return false;
        }
        if to.log_id > self.next.log_id {
            self.confirm(Interval { start: self.next.log_id, end: to });
        }
        let log_id = self.next.log_id.max(to.log_id);
        self.next = Position { offset: to.offset, count: self.next.count.max(to.count), log_id };
        true
    }

    /// Steps over what was confirmed before the channel was made.
    fn skip_restored(&mut self) {
        while let Some(&Interval { start, end }) = self.restored.last() {
            if start > self.next.log_id {
                return;
            }
            if end.log_id > self.next.log_id {
                self.next = end;
            }
            self.restored.pop();
        }
    }

    /// Hands out messages of the batch in which `next` is. `None`: `next` has left the batch.
    fn deliver_batch(
        &mut self,
        batch: &Batch,
        place: &mut Place,
        turn: &mut Turn,
        now: Ticks,
        sink: &mut impl Sink,
    ) -> Option<Stop> {
        let header = &batch.header;
        let (offset, last, unix_ns) = (header.offset.get(), header.last_log_id.get(), header.base_unix_ns.get());
        let bytes = &batch.bytes;
        while self.next.offset == offset {
            if turn.is_spent() {
                return Some(Stop::TurnSpent);
            }
            if !self.may_read() {
                return Some(Stop::NoMessage);
            }
            let mut messages = Messages::resume(&bytes[place.at..], place.id, unix_ns);
            let Some(message) = messages.next() else {
                // A verified batch has as many messages as it says; if not, the rest of it is not readable.
                self.pass_lost(header.end());
                return None;
            };
            let at = place.at;
            let behind = bytes.len() - messages.rest_len();
            if message.log_id < self.next.log_id {
                (place.at, place.id) = (behind, LogId(place.id.0 + 1));
                continue;
            }
            let open = Open {
                id: message.log_id,
                offset,
                count: self.next.count,
                delivered: now,
                at: at as u32,
                last_of: if message.log_id.0 == last { header.len() as u32 } else { 0 },
                prev: NONE,
                next: NONE,
                client: NONE,
                timer: TimerId::NONE,
                attempts: 0,
                state: State::Waiting,
            };
            let interval = open.interval();
            match self.hand_out(&message, 1, sink) {
                Handed::Taken => {
                    let key = self.open.insert(open);
                    self.begin_flight(key, now);
                    turn.spend(message.body.len());
                    turn.has_handed_out = true;
                }
                Handed::SampledOut => {
                    self.confirm(interval);
                    turn.spend(0);
                }
                Handed::NoClient => return Some(Stop::NoClient),
            }
            (place.at, place.id) = (behind, LogId(place.id.0 + 1));
            self.next = interval.end;
            self.skip_restored();
        }
        None
    }

    /// Gives a message to the next client that takes it; then that client stays first until [`Channel::begin_flight`].
    fn hand_out(&mut self, message: &Message<'_>, attempts: u16, sink: &mut impl Sink) -> Handed {
        let id = MessageId::new(self.partition, message.log_id);
        while let Some(number) = self.clients.next() {
            let client = self.clients.get(number);
            let rate = client.options.sample_rate as u64;
            // nsqd's rule: (rate + 1) percent. A redelivery is owed whatever the rate.
            if attempts == 1 && rate > 0 && mix(message.log_id.0 ^ self.sample_salt) % 100 > rate {
                self.clients.rotate();
                return Handed::SampledOut;
            }
            if sink.deliver(client.sub, message, id, attempts) {
                return Handed::Taken;
            }
            self.clients.get_mut(number).blocked = true;
        }
        Handed::NoClient
    }

    /// The next client has taken a message that is in no list.
    fn begin_flight(&mut self, key: u32, now: Ticks) {
        let number = self.clients.next().expect("the client that took a message has credit until it is spent");
        let client = self.clients.get_mut(number);
        let timer = self.wheel.insert(now, now + client.timeout, key);
        let open = self.open.get_mut(key);
        (open.state, open.client, open.timer, open.delivered) = (State::InFlight, number, timer, now);
        open.attempts = open.attempts.saturating_add(1);
        self.open.push_back(&mut client.in_flight, key);
        self.clients.spend(number);
        self.in_flight_count += 1;
    }
}

/// An open message in its batch. `None` when this is another batch, or one that was lost.
fn find<'a>(batch: &'a Batch, open: &Open) -> Option<Message<'a>> {
    let header = &batch.header;
    let is_there = header.offset.get() == open.offset
        && !header.is_lost()
        && (header.log_id.get()..=header.last_log_id.get()).contains(&open.id.0);
    let rest = batch.bytes.get(open.at as usize..).filter(|_| is_there)?;
    Messages::resume(rest, open.id, header.base_unix_ns.get()).next()
}
