//! FIN, REQ and TOUCH of ranges of ids, by ranged clients: each costs per run that it meets, never per message. A run
//! that a range meets in part is cut, and what is left of it keeps its deadline and its place.

use super::machine::Channel;
use crate::base::{LogId, SubId, Ticks};
use std::time::Duration;

impl Channel {
    /// Finishes what the client has of `first ..= last`, and says how many messages that is. Other ids do not count. 0
    /// for a client that is not ranged.
    pub fn finish_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId) -> u64 {
        self.each_run(now, sub, first, last, |channel, key| channel.finish_entry(key))
    }

    /// As [`Channel::finish_range`], but what the client has is delivered again after `delay`.
    pub fn requeue_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId, delay: Duration) -> u64 {
        self.each_run(now, sub, first, last, |channel, key| channel.requeue_entry(now, key, delay))
    }

    /// As [`Channel::finish_range`], but the timeout of what the client has begins anew.
    pub fn touch_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId) -> u64 {
        self.each_run(now, sub, first, last, |channel, key| channel.touch_entry(now, key))
    }

    /// Does something with all runs, or parts of runs, of the client within `first ..= last`.
    fn each_run(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId, mut act: impl FnMut(&mut Channel, u32)) -> u64 {
        let Some(client) = self.clients.find(sub) else { return 0 };
        let (mut from, mut count) = (first, 0);
        while let Some(mut key) = self.first_run(client, from, last) {
            let run = self.open.get(key);
            let before = from.0.saturating_sub(run.id.0);
            if before > 0 {
                key = self.cut_run(now, key, before as u16);
            }
            let run = self.open.get(key);
            if run.last() > last {
                let within = (last.0 - run.id.0 + 1) as u16;
                self.cut_run(now, key, within);
            }
            let run = self.open.get(key);
            count += run.num as u64;
            // A run ends before the last of all ids.
            from = LogId(run.last().0 + 1);
            act(self, key);
        }
        count
    }

    /// The client's first run that has an id of `from ..= last`.
    fn first_run(&self, client: u32, from: LogId, last: LogId) -> Option<u32> {
        if from > last {
            return None;
        }
        let runs = &self.clients.get(client).runs;
        let around = runs.range(..=from).next_back().map(|(_, &key)| key);
        let around = around.filter(|&key| self.open.get(key).last() >= from);
        around.or_else(|| runs.range(from..=last).next().map(|(_, &key)| key))
    }

    /// Leaves the first `num` messages to a run in flight. The rest becomes a run of its own behind it, whose key is
    /// returned.
    fn cut_run(&mut self, now: Ticks, key: u32, num: u16) -> u32 {
        let open = self.open.get_mut(key);
        let mut rest = *open;
        *open = rest.split_front(num);
        let rest_key = self.open.insert(rest);
        let deadline = self.wheel.deadline(rest.timer);
        self.open.get_mut(rest_key).timer = self.wheel.insert(now, deadline, rest_key);
        let client = self.clients.get_mut(rest.client);
        client.runs.insert(rest.id, rest_key);
        self.open.insert_after(&mut client.in_flight, key, rest_key);
        rest_key
    }
}
