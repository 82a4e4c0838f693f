//! A channel of a partition, and its core's state for it: its clients, and their recalled credit.
//!
//! ```text
//! lent ──> unspent ── delivery ──> in flight ── FIN, REQ, timeout ──> unspent
//! recalled: unspent credit at once, or after the channel's next turn; the rest (`owed`) when messages in flight are finished
//! ```

use crate::base::{ChannelName, SubId, Ticks};
use crate::channel::Channel;
use crate::format::cursor::Interval;
use crate::shard::cursors::CursorRequest;
use std::collections::HashMap;

pub struct ChannelState {
    pub name: ChannelName,
    pub machine: Channel,
    /// True while the channel is in the agenda's list of those that may deliver.
    pub(super) queued: bool,
    /// True while the channel is in the agenda's list of those whose FINs wait for the journal.
    pub(super) dirty: bool,
    /// The replica was told that the cursor moved, and has not asked for it since.
    pub has_moved: bool,
    /// The last change that SUBs wait for, if it is not final.
    pub created: CursorRequest,
    /// True after a failed change, which is journaled again before a SUB is answered.
    pub is_uncertain: bool,
    /// True if the channel's image is journaled again once the waiting change is settled.
    pub owes_image: bool,
    /// Recalled credit that comes back after the channel's next turn, or when a message in flight is done.
    owed: HashMap<SubId, u32>,
    /// Bytes of its open messages as [`room`](super::room) has counted them.
    pub(super) open_bytes: usize,
    /// Earliest time of the next log line about full memory.
    pub(super) tell_full_at: Ticks,
    /// Earliest time of the next log line about dropped messages.
    pub(super) tell_dropped_at: Ticks,
    /// No copy is tried before: the last one was refused.
    pub copies_at: Ticks,
    pub subs: Vec<SubId>,
}

impl ChannelState {
    pub(super) fn new(name: ChannelName, machine: Channel) -> Self {
        ChannelState {
            name,
            machine,
            queued: false,
            dirty: false,
            has_moved: false,
            created: CursorRequest::default(),
            is_uncertain: false,
            owes_image: false,
            owed: HashMap::new(),
            open_bytes: 0,
            tell_full_at: Ticks::default(),
            tell_dropped_at: Ticks::default(),
            copies_at: Ticks::default(),
            subs: vec![],
        }
    }

    /// Takes the FINs for the journal.
    pub fn take_fins(&mut self) -> Option<Vec<Interval>> {
        self.dirty = false;
        self.machine.take_finished()
    }

    // ---- clients

    /// The client leaves; its messages in flight are redelivered.
    pub fn leave(&mut self, sub: SubId) {
        self.machine.unsubscribe(sub);
        self.subs.retain(|s| *s != sub);
        self.owed.remove(&sub);
    }

    /// Takes off the clients for which `ends` holds; their messages in flight are redelivered.
    pub fn take_off(&mut self, ends: impl Fn(SubId) -> bool) -> Vec<SubId> {
        let ended: Vec<SubId> = self.subs.extract_if(.., |sub| ends(*sub)).collect();
        for sub in &ended {
            self.machine.unsubscribe(*sub);
            self.owed.remove(sub);
        }
        ended
    }

    /// Takes off all clients of a channel whose machine is replaced.
    pub fn take_subs(&mut self) -> Vec<SubId> {
        self.owed.clear();
        std::mem::take(&mut self.subs)
    }

    // ---- credit

    /// Takes at most `credit` of the client's unspent credit.
    fn take_unspent(&mut self, sub: SubId, credit: u32) -> u32 {
        let unspent = self.machine.recall(sub);
        let taken = unspent.min(credit);
        self.machine.lend(sub, unspent - taken);
        taken
    }

    fn take_or_owe(&mut self, sub: SubId, credit: u32, is_free: bool) -> u32 {
        let taken = if is_free { self.take_unspent(sub, credit) } else { 0 };
        if taken < credit {
            *self.owed.entry(sub).or_default() += credit - taken;
        }
        taken
    }

    /// Recalls credit. Returns what comes back at once; the rest is owed.
    ///
    /// A channel with a turn to come may use the credit first; else two partitions with messages would take a small RDY from each other
    /// for ever, each before its turn. The same holds for a channel with a read under way: the run would leave the cache, unused, before
    /// the credit is back (see `log::read`, "progress").
    pub fn recall(&mut self, sub: SubId, credit: u32) -> u32 {
        let is_free = !self.queued && !self.machine.awaits_read();
        self.take_or_owe(sub, credit, is_free)
    }

    /// Whether recalled credit has yet to come back.
    pub fn owes_credit(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Owed credit that the channel's turn did not use, unless a read is in flight for it: it goes back to the clients.
    pub fn settle_owed(&mut self) -> Vec<(SubId, u32)> {
        if self.owed.is_empty() || self.machine.awaits_read() {
            return vec![];
        }
        let mut subs: Vec<SubId> = self.owed.keys().copied().collect();
        subs.sort_unstable();
        let mut back = vec![];
        for sub in subs {
            let owed = self.owed.remove(&sub).unwrap_or_default();
            let taken = self.take_or_owe(sub, owed, true);
            back.extend((taken > 0).then_some((sub, taken)));
        }
        back
    }

    /// Counts `num` of the client's messages in flight as done. Their credit is the client's again; returns the owed part of it, which
    /// goes back to the client's core.
    pub fn free(&mut self, sub: SubId, num: u32) -> u32 {
        let back = if self.owed.is_empty() { 0 } else { self.pay_owed(sub, num) };
        if num > back {
            self.machine.lend(sub, num - back);
        }
        back
    }

    /// Pays owed credit off, as far as `credit` reaches. Returns the part that was paid.
    fn pay_owed(&mut self, sub: SubId, credit: u32) -> u32 {
        let Some(owed) = self.owed.get_mut(&sub) else { return 0 };
        let paid = credit.min(*owed);
        *owed -= paid;
        if *owed == 0 {
            self.owed.remove(&sub);
        }
        paid
    }

    /// The client changes its own window, from `before` to `window` messages in flight: no credit goes back to a lender.
    pub fn change_window(&mut self, sub: SubId, before: u32, window: u32) {
        match window.checked_sub(before) {
            Some(more) => {
                let kept = self.pay_owed(sub, more);
                self.machine.lend(sub, more - kept);
            }
            None => drop(self.take_or_owe(sub, before - window, true)),
        }
    }

    /// Whether a FIN changes nothing but its client's credit: the channel has a turn coming, and its FINs a journal write.
    pub fn takes_fins_quietly(&self) -> bool {
        self.dirty && self.queued && self.owed.is_empty() && !self.machine.is_ordered()
    }
}
