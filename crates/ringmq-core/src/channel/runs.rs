//! Hands runs to ranged clients: a piece of the log, or of a waiting entry, that lies in one batch. The length of the batch's rest is a
//! subtraction; the end of a shorter run is found by a walk over the heads of its messages.

use super::delayed::Stretch;
use super::deliver::{RUN_MAX, Turn};
use super::machine::Channel;
use super::reading::BatchProgress;
use super::{Run, Sink};
use crate::base::LogId;
use crate::format::batch::{Batch, Messages};

pub(super) enum HandedRun {
    /// The run was taken. For a waiting run: the next entry of its list.
    Taken(Option<u32>),
    /// The client is full.
    Refused,
    /// The run goes as a whole in the next turn.
    Later,
}

impl Channel {
    /// Gives the next client, which is ranged, a run of the log at the read position, where `place` stands too.
    pub(super) fn hand_log_run(
        &mut self,
        batch: &Batch,
        place: &mut BatchProgress,
        turn: &mut Turn,
        sink: &mut impl Sink,
    ) -> HandedRun {
        let BatchProgress { at, id: first, .. } = *place;
        let number = self.clients.next().expect("the next client was seen");
        let ahead = self.reading.until_known(first);
        let limit = (self.clients.run_max(number) as u64).min(ahead).min(self.run_limit() as u64) as usize;
        let limit = self.due_limit(batch, at, first, limit, turn);
        let Some(cut) = cut(batch, at, first, limit, turn) else { return HandedRun::Later };
        let open = self.reading.entry(batch, place, cut.num);
        let run = Run { batch, first, num: cut.num as u32, count: open.count, at: at..cut.end, attempts: 1 };
        if !sink.deliver_range(self.clients.get(number).sub, &run) {
            self.clients.get_mut(number).blocked = true;
            return HandedRun::Refused;
        }
        turn.spend_run(cut.num, cut.end - at);
        place.pass(cut.num as u64, cut.end);
        self.reading.pass(&open);
        let key = self.backlog.push(open);
        self.begin_flight(key, turn, batch.header.base_unix_ns.get());
        HandedRun::Taken(None)
    }

    /// Gives the next client, which is ranged, a run that begins with a waiting entry: the entry, its front, or the entry with those
    /// that follow it in the list and in the batch after as many attempts. `at`: start of the entry in its batch.
    pub(super) fn hand_waiting_run(
        &mut self,
        list: usize,
        key: u32,
        batch: &Batch,
        at: usize,
        turn: &mut Turn,
        sink: &mut impl Sink,
    ) -> HandedRun {
        let number = self.clients.next().expect("the next client was seen");
        let limit = (self.clients.run_max(number) as usize).min(self.run_limit());
        let head = *self.backlog.get(key);
        let mut limit = limit.min(self.joined(key, limit));
        if head.attempts == 0 {
            limit = self.due_limit(batch, at, head.id, limit, turn);
        }
        let Some(cut) = cut(batch, at, head.id, limit, turn) else { return HandedRun::Later };
        let run = Run {
            batch,
            first: head.id,
            num: cut.num as u32,
            count: head.count,
            at: at..cut.end,
            attempts: head.attempts.saturating_add(1),
        };
        if !sink.deliver_range(self.clients.get(number).sub, &run) {
            self.clients.get_mut(number).blocked = true;
            return HandedRun::Refused;
        }
        turn.spend_run(cut.num, cut.end - at);
        let (taken, after) = self.backlog.take_waiting(list, key, cut.num, (at, cut.end));
        self.begin_flight(taken, turn, batch.header.base_unix_ns.get());
        HandedRun::Taken(after)
    }

    /// Number of messages of a run that begins at `at` with message `first`, which is due; the run ends before the next message that is
    /// not.
    fn due_limit(&self, batch: &Batch, at: usize, first: LogId, limit: usize, turn: &Turn) -> usize {
        if !batch.header.has_due() {
            return limit;
        }
        match Stretch::of(batch, at, first, limit, (self.name().as_str(), turn.unix_ns)) {
            Stretch::Due { num } => num,
            Stretch::Later { .. } | Stretch::Foreign { .. } => unreachable!("what begins a run is due"),
        }
    }

    fn run_limit(&self) -> usize {
        if self.ordered { 1 } else { RUN_MAX }
    }

    /// Messages that lie side by side in the list as in the batch, from an entry on, up to about `limit`.
    fn joined(&self, key: u32, limit: usize) -> usize {
        let head = self.backlog.get(key);
        let (mut num, mut tail) = (head.num as usize, key);
        while num < limit
            && let Some(next) = self.backlog.open().after(tail)
        {
            let open = self.backlog.get(next);
            let follows = open.id.0 == head.id.0 + num as u64 && open.offset == head.offset && open.attempts == head.attempts;
            if !follows {
                break;
            }
            num += open.num as usize;
            tail = next;
        }
        num
    }
}

/// End of a run.
struct RunEnd {
    num: u16,
    end: usize,
}

/// Takes a run of at most `limit` messages of `batch` from `at` on, where message `first` begins. `None`: the run is the whole rest of
/// the batch, and goes out in the next turn rather than being split.
fn cut(batch: &Batch, at: usize, first: LogId, limit: usize, turn: &Turn) -> Option<RunEnd> {
    let bytes = &batch.bytes;
    let rest = usize::try_from(batch.header.last_log_id.get() - first.0 + 1).unwrap_or(usize::MAX);
    if limit >= rest {
        let len = bytes.len() - at;
        if turn.has_room(rest, len) {
            return Some(RunEnd { num: rest as u16, end: bytes.len() });
        }
        if turn.should_wait(rest, len) {
            return None;
        }
    }
    let mut messages = Messages::resume(&bytes[at..], first, 0);
    let (mut num, mut end) = (0, at);
    while (num as usize) < limit && messages.next().is_some() {
        let behind = bytes.len() - messages.rest_len();
        if num > 0 && !turn.has_room(num as usize + 1, behind - at) {
            break;
        }
        (num, end) = (num + 1, behind);
    }
    assert!(num > 0, "a run begins with a message that was read");
    Some(RunEnd { num, end })
}
