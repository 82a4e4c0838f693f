//! Messages with a due time that nobody has had yet. A channel reads on behind them and delivers each once it is due.
//!
//! Consecutive messages of a batch that are not due are *one* entry of the open set, whatever their due times: a stretch. So are
//! consecutive small batches, up to [`SPAN_BYTES`] of the log: a span. The entry waits until the first of its messages is due; then
//! the channel reads it, what is due of it goes out, and what is not is put off again, in front of it and behind. So deferred
//! messages cost memory per span, not per message. A message costs an entry of its own only once its neighbours are finished, and
//! then the channel needs one for the gap between them anyway.
//!
//! Due times are times of the wall clock, which a restart and another node know too. They are held against it at the very
//! delivery, so a clock that was set back makes no message early.

use super::deliver::{Place, Turn};
use super::machine::Channel;
use super::open::{Deferred, Fresh, Open, State};
use crate::base::{LogId, Position, Ticks};
use crate::format::batch::{BATCH_HEADER_LEN, Batch, Messages};
use std::{num::NonZeroU64, time::Duration};

/// Messages of one stretch. A longer one is several, so that no step of a turn is long.
const STRETCH_MAX: usize = 1024;
/// Bytes of the log that a span of several batches covers at most: they are read whenever one of its messages falls due.
pub(super) const SPAN_BYTES: i64 = 16 * 1024;

/// The entry that was put off last, and the millisecond at which it stands among the deferred ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastPutOff {
    pub(super) key: u32,
    due_ms: NonZeroU64,
}

impl LastPutOff {
    /// `None` for a due time of zero, which is not worth a byte in each channel: the entry is not widened then.
    fn new(key: u32, due_ms: u64) -> Option<LastPutOff> {
        Some(LastPutOff { key, due_ms: NonZeroU64::new(due_ms)? })
    }
}

/// What a batch has at some place, as to due times.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// So many messages that are due, at least one.
    Due { num: usize },
    /// So many messages that are not, at least one: the first of them is due at that time. `end`: where they end.
    Later { num: u16, end: usize, due_unix_ns: i64 },
    /// So many copies for other channels, at least one.
    Foreign { num: u16, end: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
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
                Some(copy_of) if copy_of.channel != channel => Kind::Foreign,
                _ if message.due_unix_ns.is_some_and(|due| due > unix_ns) => Kind::Later,
                _ => Kind::Due,
            };
            if *kind.get_or_insert(found) != found {
                break;
            }
            let due = message.due_unix_ns.unwrap_or(nearest);
            (num, end, nearest) = (num + 1, batch.bytes.len() - messages.rest_len(), nearest.min(due));
        }
        match kind {
            Some(Kind::Later) => Stretch::Later { num: num as u16, end, due_unix_ns: nearest },
            Some(Kind::Foreign) => Stretch::Foreign { num: num as u16, end },
            Some(Kind::Due) | None => Stretch::Due { num: num.max(1) },
        }
    }

    /// When the first of them is due. The wheel of deferred entries is exact to a millisecond, and never early.
    fn due(due_unix_ns: i64, turn: &Turn) -> Ticks {
        turn.now + Duration::from_nanos(due_unix_ns.abs_diff(turn.unix_ns))
    }
}

impl Channel {
    /// On an ordered channel nothing passes a message that is not due.
    fn stretch_limit(&self) -> usize {
        if self.ordered { 1 } else { STRETCH_MAX }
    }

    /// Passes what the log has at `next`, where `place` stands too, and what is not due there, or for another channel. False: what
    /// stands there is due.
    pub(super) fn put_off(&mut self, batch: &Batch, place: &mut Place, turn: &mut Turn) -> bool {
        // `skip_restored` left `next` before the nearest of them.
        let until_restored = self.restored.nearest().map_or(u64::MAX, |i| i.start.0 - place.id.0);
        let limit = until_restored.min(self.until_handed(place.id)).min(self.stretch_limit() as u64) as usize;
        let (num, end, due) = match Stretch::of(batch, place.at, place.id, limit, (self.name().as_str(), turn.unix_ns)) {
            Stretch::Due { .. } => return false,
            Stretch::Later { num, end, due_unix_ns } => (num, end, Some(due_unix_ns)),
            Stretch::Foreign { num, end } => (num, end, None),
        };
        let open = Open::new(Fresh {
            id: place.id,
            offset: batch.header.offset.get(),
            count: self.next.count,
            at: place.at as u32,
            last_of: if end == batch.bytes.len() { batch.header.len() as u32 } else { 0 },
            num,
        });
        self.next = open.interval().end;
        match due.map(|due_unix_ns| Stretch::due(due_unix_ns, turn)) {
            Some(due) if self.widens_last(&open, due, turn.now) => {}
            Some(due) => {
                let key = self.open.push(open);
                self.defer_unread(key, due, turn.now);
            }
            None => self.confirm(open.interval()),
        }
        (place.at, place.id) = (end, LogId(place.id.0 + num as u64));
        turn.spend_step();
        turn.spend_walk(num as usize);
        self.skip_restored();
        true
    }

    /// Takes what is not due off the front of a waiting entry that nobody has had, and that begins at `at` in its batch; then says
    /// where its list goes on. `None`: its first message is due.
    pub(super) fn put_off_again(
        &mut self,
        list: usize,
        key: u32,
        batch: &Batch,
        at: usize,
        turn: &mut Turn,
    ) -> Option<Option<u32>> {
        let &Open { id, num: whole, .. } = self.open.get(key);
        let limit = self.stretch_limit().min(whole as usize);
        let stretch = Stretch::of(batch, at, id, limit, (self.name().as_str(), turn.unix_ns));
        let Stretch::Later { num, end, due_unix_ns } = stretch else { return None };
        let (taken, after) = if num == whole {
            let after = self.open.after(key);
            self.open.unlink(&mut self.waiting[list], key);
            (key, after)
        } else {
            let open = self.open.get_mut(key);
            let front = open.split_front(num);
            (open.at, open.skip) = (end as u32, 0);
            (self.open.insert_before(key, front), Some(key))
        };
        let open = self.open.get_mut(taken);
        (open.at, open.skip) = (at as u32, 0);
        self.waiting_count -= num as u64;
        let (stretch, due) = (*open, Stretch::due(due_unix_ns, turn));
        if self.widens_last(&stretch, due, turn.now) {
            self.open.remove(taken);
        } else {
            self.defer_unread(taken, due, turn.now);
        }
        turn.spend_step();
        turn.spend_walk(num as usize);
        Some(after)
    }

    /// An entry that is in no list waits until it is due. Returns where it stands among the deferred ones.
    pub(super) fn defer(&mut self, key: u32, due: Ticks, now: Ticks) -> u64 {
        let open = self.open.get_mut(key);
        open.state = State::Deferred;
        self.deferred_count += open.num as u64;
        self.deferred.insert(&mut self.open, now, due, key)
    }

    /// The same of an entry that nobody has had: the next one may widen it.
    fn defer_unread(&mut self, key: u32, due: Ticks, now: Ticks) {
        let due_ms = self.defer(key, due, now);
        self.last_put_off = LastPutOff::new(key, due_ms);
    }

    /// Adds `stretch`, which is all of a batch, to the entry that was put off last, if that ends where it begins. False: it does not.
    fn widens_last(&mut self, stretch: &Open, due: Ticks, now: Ticks) -> bool {
        let Some(LastPutOff { key, due_ms }) = self.last_put_off.filter(|_| !self.ordered) else { return false };
        let (last, due_ms) = (*self.open.get(key), due_ms.get());
        let is_whole = |open: &Open| open.at as usize == BATCH_HEADER_LEN && open.skip == 0 && open.last_of > 0;
        let bytes = stretch.offset + stretch.last_of as i64 - last.offset;
        let num = last.num as usize + stretch.num as usize;
        let is_next = is_whole(&last) && is_whole(stretch) && last.interval().end == stretch.start();
        if !is_next || bytes > SPAN_BYTES || num > STRETCH_MAX {
            return false;
        }
        let open = self.open.get_mut(key);
        (open.num, open.last_of) = (num as u16, bytes as u32);
        self.deferred_count += stretch.num as u64;
        if Deferred::place(now, due) < due_ms {
            self.deferred.remove(&mut self.open, key);
            let due_ms = self.deferred.insert(&mut self.open, now, due, key);
            self.last_put_off = LastPutOff::new(key, due_ms);
        }
        true
    }

    /// A waiting entry reaches beyond `end`, where its first batch ends: what is behind becomes an entry of its own, behind it in the
    /// list. Returns the entry of what is before.
    pub(super) fn split_span(&mut self, list: usize, key: u32, end: Position) -> u32 {
        let open = self.open.get_mut(key);
        let is_beyond = open.id < end.log_id && end.log_id <= open.last() && open.offset < end.offset;
        if !is_beyond {
            return key;
        }
        let len = (end.offset - open.offset) as u32;
        let mut front = open.split_front((end.log_id.0 - open.id.0) as u16);
        front.last_of = len;
        (open.offset, open.at, open.skip, open.last_of) = (end.offset, BATCH_HEADER_LEN as u32, 0, open.last_of - len);
        let front = self.open.insert_before(key, front);
        self.open.list_before(&mut self.waiting[list], key, front);
        front
    }
}
