//! Attempts over a clean stop. As the node stops, the channel notes which messages were delivered and not finished, with their
//! attempts, and until when they were put off; the last snapshot has it. After the start the channel meets these messages in the log
//! again. Each of them waits then as if it had been requeued, or as long as it was put off.

use super::deliver::{Place, Turn};
use super::machine::{Channel, REQUEUED};
use super::open::{Fresh, Open, State};
use crate::base::{IdMap, LogId, Now, Ticks};
use crate::format::batch::{Batch, Messages};
use crate::format::cursor::Handed;
use std::time::Duration;

/// Longest entry that is made of messages that had been delivered: a run of a ranged client.
const ENTRY_MAX: u64 = super::deliver::RUN_MAX as u64;

impl Channel {
    /// The channel stops: from now on [`Channel::image`] tells what was delivered and not finished. False: nothing was.
    pub fn keep_attempts(&mut self, now: Now) -> bool {
        let due_unix_ns = |due: Ticks| now.unix_ns.saturating_add_unsigned(due.0.saturating_sub(now.ticks.0));
        let due: IdMap<u32, i64> = self.deferred.iter(&self.open).map(|(key, due)| (key, due_unix_ns(due))).collect();
        let mut kept: Vec<Handed> = vec![];
        for (key, open) in self.open.iter().filter(|(_, open)| open.attempts > 0) {
            let due_unix_ns = if open.state == State::Deferred { due.get(&key).copied().unwrap_or(0) } else { 0 };
            let handed = Handed { start: open.id, num: open.num as u32, attempts: open.attempts, due_unix_ns };
            match kept.last_mut() {
                Some(last) if is_joined(last, &handed) => last.num += handed.num,
                _ => kept.push(handed),
            }
        }
        // What is not read yet; of a run that was taken up in part, the rest.
        for unread in self.handed.iter().rev().filter(|h| h.end() > self.next.log_id) {
            let start = unread.start.max(self.next.log_id);
            kept.push(Handed { start, num: (unread.end().0 - start.0) as u32, ..*unread });
        }
        kept.reverse();
        self.handed = kept;
        !self.handed.is_empty()
    }

    /// What is nearest of that which had been delivered and is not read yet.
    fn nearest_handed(&mut self) -> Option<Handed> {
        while self.handed.last().is_some_and(|h| h.end() <= self.next.log_id) {
            self.handed.pop();
        }
        if self.handed.is_empty() {
            self.handed = vec![];
        }
        self.handed.last().copied()
    }

    /// Number of messages from `id` on that had not been delivered before the stop.
    pub(super) fn until_handed(&self, id: LogId) -> u64 {
        let ahead = self.handed.iter().rev().find(|h| h.end() > id);
        ahead.map_or(u64::MAX, |h| h.start.0.saturating_sub(id.0))
    }

    /// Takes up what had been delivered before the stop, if that stands at `next`, where `place` stands too. False: it does not.
    pub(super) fn take_up(&mut self, batch: &Batch, place: &mut Place, turn: &mut Turn) -> bool {
        let Some(handed) = self.nearest_handed().filter(|h| h.start <= place.id) else { return false };
        let until_restored = self.restored.nearest().map_or(u64::MAX, |i| i.start.0 - place.id.0);
        let limit = (handed.end().0 - place.id.0).min(until_restored).min(if self.ordered { 1 } else { ENTRY_MAX });
        let mut messages = Messages::resume(&batch.bytes[place.at..], place.id, 0);
        let num = messages.by_ref().take(limit as usize).count() as u16;
        let end = batch.bytes.len() - messages.rest_len();
        let open = Open::new(Fresh {
            id: place.id,
            offset: batch.header.offset.get(),
            count: self.next.count,
            at: place.at as u32,
            last_of: if end == batch.bytes.len() { batch.header.len() as u32 } else { 0 },
            num,
        });
        self.next = open.interval().end;
        let key = self.open.push(open);
        self.open.get_mut(key).attempts = handed.attempts;
        if handed.due_unix_ns > turn.unix_ns && !self.ordered {
            let wait = Duration::from_nanos(handed.due_unix_ns.abs_diff(turn.unix_ns)).min(self.max_req_timeout);
            self.defer(key, turn.now + wait, turn.now);
        } else {
            self.wait(REQUEUED, key);
            turn.has_taken_up = true;
        }
        (place.at, place.id) = (end, LogId(place.id.0 + num as u64));
        turn.spend_step();
        turn.spend_walk(num as usize);
        self.skip_restored();
        true
    }
}

/// One run with what lies before it.
fn is_joined(last: &Handed, next: &Handed) -> bool {
    let is_at_once = (last.due_unix_ns, next.due_unix_ns) == (0, 0);
    last.end() == next.start && last.attempts == next.attempts && is_at_once && last.num.checked_add(next.num).is_some()
}
