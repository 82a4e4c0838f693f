//! Attempts over a clean stop. As the node stops, the channel notes which messages were delivered and not finished, with their
//! attempts, and until when they were put off; the last snapshot has it. After the startup the channel meets these messages in the log
//! again. Each of them waits then as if it had been requeued, or as long as it was put off. By a clock that was set back meanwhile it would
//! wait longer by as much, so it waits at most as long as it had to at the stop.

use super::backlog::REQUEUED;
use super::deliver::Turn;
use super::machine::Channel;
use super::open::OpenState;
use super::reading::BatchProgress;
use crate::base::{IdMap, Now, Ticks};
use crate::format::batch::{Batch, Messages};
use crate::format::cursor::Handed;
use std::time::Duration;

/// Longest entry that is made of messages that had been delivered: a run of a ranged client.
const ENTRY_MAX: u64 = super::deliver::RUN_MAX as u64;

impl Channel {
    /// Stops the channel: from now on [`Channel::image`] has the messages that were delivered and not finished. False: there are none.
    pub fn keep_attempts(&mut self, now: Now) -> bool {
        let wait_ns = |due: Ticks| due.0.saturating_sub(now.ticks.0);
        let waits: IdMap<u32, u64> = self.backlog.deferred().map(|(key, due)| (key, wait_ns(due))).collect();
        let mut kept: Vec<Handed> = vec![];
        for (key, open) in self.backlog.open().iter().filter(|(_, open)| open.attempts > 0) {
            let wait_ns = waits.get(&key).filter(|_| open.state == OpenState::Deferred);
            let due_unix_ns = wait_ns.map_or(0, |ns| now.unix_ns.saturating_add_unsigned(*ns));
            let wait_s = wait_ns.map_or(0, |ns| Handed::seconds(Duration::from_nanos(*ns)));
            let handed = Handed { start: open.id, num: open.num as u32, attempts: open.attempts, due_unix_ns, wait_s };
            match kept.last_mut() {
                Some(last) if is_joined(last, &handed) => last.num += handed.num,
                _ => kept.push(handed),
            }
        }
        self.reading.keep_handed(kept)
    }

    /// Takes up messages that had been delivered before the stop and stand at the read position, where `place` stands too. False: there
    /// are none.
    pub(super) fn take_up(&mut self, batch: &Batch, place: &mut BatchProgress, turn: &mut Turn) -> bool {
        let Some(handed) = self.reading.handed_at(place.id) else { return false };
        let limit = (handed.end().0 - place.id.0).min(self.reading.until_restored(place.id));
        let limit = limit.min(if self.ordered { 1 } else { ENTRY_MAX });
        let mut messages = Messages::resume(&batch.bytes[place.at..], place.id, 0);
        let num = messages.by_ref().take(limit as usize).count() as u16;
        let end = batch.bytes.len() - messages.rest_len();
        let mut open = self.reading.entry(batch, place, num);
        open.attempts = handed.attempts;
        self.reading.pass(&open);
        let key = self.backlog.push(open);
        let wait = handed.wait(turn.unix_ns).min(self.max_req_timeout);
        if wait > Duration::ZERO && !self.ordered {
            self.backlog.defer(key, turn.now + wait, turn.now);
        } else {
            self.backlog.wait(REQUEUED, key);
            turn.has_taken_up = true;
        }
        place.pass(num as u64, end);
        turn.spend_step();
        turn.spend_walk(num as usize);
        true
    }
}

/// Whether a run continues the one before it, so that both are one.
fn is_joined(last: &Handed, next: &Handed) -> bool {
    let is_at_once = (last.due_unix_ns, next.due_unix_ns) == (0, 0);
    last.end() == next.start && last.attempts == next.attempts && is_at_once && last.num.checked_add(next.num).is_some()
}
