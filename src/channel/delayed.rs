//! Messages with a due time that nobody has had yet. A channel reads on behind them and delivers each once it is due.
//!
//! Consecutive messages of a batch that are not due are *one* entry of the open set, whatever their due times. It waits until the
//! first of them is due; then what is due of it goes out, and each stretch that is not is put off again. So deferred messages cost
//! memory per stretch, not per message: a message costs an entry of its own only once its neighbours are finished, and then the
//! channel needs one for the gap between them anyway.
//!
//! Due times are times of the wall clock, which a restart and another node know too. They are held against it at the very
//! delivery, so a clock that was set back makes no message early.

use super::deliver::{Place, Turn};
use super::machine::Channel;
use super::open::{Fresh, Open, State};
use crate::base::{LogId, Ticks};
use crate::log::batch::{Batch, Messages};
use std::time::Duration;

/// Messages of one stretch. A longer one is several, so that no step of a turn is long.
const STRETCH_MAX: usize = 1024;

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
        let limit = until_restored.min(self.stretch_limit() as u64) as usize;
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
        match due {
            Some(due_unix_ns) => {
                let key = self.open.push(open);
                self.defer(key, Stretch::due(due_unix_ns, turn), turn.now);
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
        self.defer(taken, Stretch::due(due_unix_ns, turn), turn.now);
        turn.spend_step();
        turn.spend_walk(num as usize);
        Some(after)
    }

    /// An entry that is in no list waits until it is due. Says where, for [`super::open::Deferred::remove`].
    pub(super) fn defer(&mut self, key: u32, due: Ticks, now: Ticks) -> u64 {
        let open = self.open.get_mut(key);
        open.state = State::Deferred;
        self.deferred_count += open.num as u64;
        self.deferred.insert(&mut self.open, now, due, key)
    }
}
