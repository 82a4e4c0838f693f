//! Messages with a due time that were not delivered yet. A channel reads on behind them and delivers each once it is due.
//!
//! Consecutive messages of a batch that are not due are *one* entry of the open set, whatever their due times: a stretch. So are
//! consecutive small batches, up to [`SPAN_BYTES`] of the log: a span. The entry waits until the first of its messages is due. Then the
//! channel reads it, delivers the due messages, and defers those before and behind them again. So deferred messages cost memory per
//! span, not per message. A message costs an entry of its own only once its neighbours are finished, and then the channel needs one for
//! the gap between them anyway.
//!
//! Due times are wall-clock times, so they hold over a restart and on another node. They are compared with the clock at the delivery
//! itself, so a clock that is set back makes no message early.

use super::deliver::Turn;
use super::machine::Channel;
use super::open::Open;
use super::reading::BatchProgress;
use crate::base::{LogId, Ticks};
use crate::format::batch::{Batch, Messages};
use std::time::Duration;

/// Messages of one stretch. A longer one is several, so that no step of a turn is long.
pub(super) const STRETCH_MAX: usize = 1024;
/// Bytes of the log that a span of several batches covers at most: they are read whenever one of its messages falls due.
pub(super) const SPAN_BYTES: i64 = 16 * 1024;

/// Messages at some place of a batch, by their due times.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// Number of messages that are due, at least one.
    Due { num: usize },
    /// Messages that are not due, at least one: the first of them is due at that time. `end`: where they end.
    Later { num: u16, end: usize, due_unix_ns: i64 },
    /// Copies for other channels, at least one.
    Foreign { num: u16, end: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StretchKind {
    Due,
    Later,
    Foreign,
}

impl Stretch {
    /// Looks at the messages of `batch` from `at` on, where message `first` begins, and at not more than `limit`.
    pub(super) fn of(batch: &Batch, at: usize, first: LogId, limit: usize, (channel, unix_ns): (&str, i64)) -> Stretch {
        let mut messages = Messages::resume(&batch.bytes[at..], first, 0);
        let (mut num, mut end, mut nearest) = (0, at, i64::MAX);
        let mut kind = None;
        while num < limit.min(STRETCH_MAX)
            && let Some(message) = messages.next()
        {
            let found = match message.copy_of {
                Some(copy_of) if copy_of.channel != channel => StretchKind::Foreign,
                _ if message.due_unix_ns.is_some_and(|due| due > unix_ns) => StretchKind::Later,
                _ => StretchKind::Due,
            };
            if *kind.get_or_insert(found) != found {
                break;
            }
            let due = message.due_unix_ns.unwrap_or(nearest);
            (num, end, nearest) = (num + 1, batch.bytes.len() - messages.rest_len(), nearest.min(due));
        }
        match kind {
            Some(StretchKind::Later) => Stretch::Later { num: num as u16, end, due_unix_ns: nearest },
            Some(StretchKind::Foreign) => Stretch::Foreign { num: num as u16, end },
            Some(StretchKind::Due) | None => Stretch::Due { num: num.max(1) },
        }
    }

    /// Time at which the first message is due. The wheel of deferred entries is exact to a millisecond, and never early.
    fn due(due_unix_ns: i64, turn: &Turn) -> Ticks {
        turn.now + Duration::from_nanos(due_unix_ns.abs_diff(turn.unix_ns))
    }
}

impl Channel {
    /// Largest number of messages in a stretch. On an ordered channel nothing passes a message that is not due, so it is 1 there.
    fn stretch_limit(&self) -> usize {
        if self.ordered { 1 } else { STRETCH_MAX }
    }

    /// Passes the messages at the read position, where `place` stands too, that are not due or are for another channel. False: the
    /// message there is due.
    pub(super) fn put_off(&mut self, batch: &Batch, place: &mut BatchProgress, turn: &mut Turn) -> bool {
        let limit = self.reading.until_known(place.id).min(self.stretch_limit() as u64) as usize;
        let (num, end, due) = match Stretch::of(batch, place.at, place.id, limit, (self.name().as_str(), turn.unix_ns)) {
            Stretch::Due { .. } => return false,
            Stretch::Later { num, end, due_unix_ns } => (num, end, Some(due_unix_ns)),
            Stretch::Foreign { num, end } => (num, end, None),
        };
        let open = self.reading.entry(batch, place, num);
        self.reading.pass(&open);
        match due.map(|due_unix_ns| Stretch::due(due_unix_ns, turn)) {
            Some(due) if self.widens_last(&open, due, turn.now) => {}
            Some(due) => {
                let key = self.backlog.push(open);
                self.backlog.defer_unread(key, due, turn.now);
            }
            None => self.confirm(open.interval()),
        }
        place.pass(num as u64, end);
        turn.spend_step();
        turn.spend_walk(num as usize);
        true
    }

    /// Takes the messages that are not due off the front of a waiting entry that was never delivered and begins at `at` in its batch.
    /// Returns the entry with which the list continues. `None`: the first message is due.
    pub(super) fn put_off_again(
        &mut self,
        list: usize,
        key: u32,
        batch: &Batch,
        at: usize,
        turn: &mut Turn,
    ) -> Option<Option<u32>> {
        let &Open { id, num: whole, .. } = self.backlog.get(key);
        let limit = self.stretch_limit().min(whole as usize);
        let stretch = Stretch::of(batch, at, id, limit, (self.name().as_str(), turn.unix_ns));
        let Stretch::Later { num, end, due_unix_ns } = stretch else { return None };
        let (taken, after) = self.backlog.take_waiting(list, key, num, (at, end));
        let (stretch, due) = (*self.backlog.get(taken), Stretch::due(due_unix_ns, turn));
        if self.widens_last(&stretch, due, turn.now) {
            self.backlog.remove(taken);
        } else {
            self.backlog.defer_unread(taken, due, turn.now);
        }
        turn.spend_step();
        turn.spend_walk(num as usize);
        Some(after)
    }

    /// [`Backlog::widen_last`](super::backlog::Backlog::widen_last), but on an ordered channel each message is an entry.
    fn widens_last(&mut self, stretch: &Open, due: Ticks, now: Ticks) -> bool {
        !self.ordered && self.backlog.widen_last(stretch, due, now)
    }
}
