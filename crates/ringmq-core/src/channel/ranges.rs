//! FIN, REQ and TOUCH of ranges of ids, by ranged clients: each costs per run that it meets, never per message. A run that a range meets
//! in part is split, and the rest keeps its deadline and its place.

use super::flights::Flight;
use super::machine::Channel;
use super::open::Open;
use crate::base::{LogId, SubId, Ticks, TimerId};
use std::time::Duration;

impl Channel {
    /// Finishes the client's messages in flight among `first ..= last`. Returns their number; other ids do not count. 0 for a client
    /// that is not ranged.
    pub fn finish_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId) -> u64 {
        self.each_run(now, sub, first, last, |channel, timer| channel.finish_flight(now, timer))
    }

    /// Requeues the client's messages in the range; each is delivered again after `delay`. Otherwise as [`Channel::finish_range`].
    pub fn requeue_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId, delay: Duration) -> u64 {
        self.each_run(now, sub, first, last, |channel, timer| channel.requeue_flight(now, timer, delay))
    }

    /// Restarts the timeout of the client's messages in the range. Otherwise as [`Channel::finish_range`].
    pub fn touch_range(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId) -> u64 {
        self.each_run(now, sub, first, last, |channel, timer| channel.touch_flight(now, timer))
    }

    /// Does something with all runs, or parts of runs, of the client within `first ..= last`.
    fn each_run(&mut self, now: Ticks, sub: SubId, first: LogId, last: LogId, mut act: impl FnMut(&mut Channel, TimerId)) -> u64 {
        let Some(client) = self.clients.find(sub) else { return 0 };
        let (mut from, mut count) = (first, 0);
        while let Some(mut timer) = self.first_run(client, from, last) {
            let run = self.run(timer);
            let before = from.0.saturating_sub(run.id.0);
            if before > 0 {
                self.cut_run(now, timer, before as u16);
            }
            let run = self.run(timer);
            if run.last() > last {
                let within = (last.0 - run.id.0 + 1) as u16;
                timer = self.cut_run(now, timer, within);
            }
            let run = self.run(timer);
            count += run.num as u64;
            // A run ends before the last of all ids.
            from = LogId(run.last().0 + 1);
            act(self, timer);
        }
        count
    }

    fn run(&self, timer: TimerId) -> &Open {
        self.backlog.get(self.flights.wheel.get(timer).key)
    }

    /// The client's first run that has an id of `from ..= last`.
    fn first_run(&self, client: u32, from: LogId, last: LogId) -> Option<TimerId> {
        if from > last {
            return None;
        }
        let runs = &self.clients.get(client).runs;
        let around = runs.range(..=from).next_back().map(|(_, &timer)| timer);
        let around = around.filter(|&timer| self.run(timer).last() >= from);
        around.or_else(|| runs.range(from..=last).next().map(|(_, &timer)| timer))
    }

    /// Makes the first `num` messages of a run in flight a run of their own, which is returned. The flight goes on with the rest.
    fn cut_run(&mut self, now: Ticks, timer: TimerId, num: u16) -> TimerId {
        let flight = *self.flights.wheel.get(timer);
        let client = self.clients.get_mut(flight.client);
        let key = self.backlog.split_flight(&mut client.in_flight, flight.key, num);
        let deadline = self.flights.wheel.deadline(timer);
        let front_timer = self.flights.wheel.insert(now, deadline, Flight { key, ..flight });
        client.runs.insert(self.backlog.get(key).id, front_timer);
        client.runs.insert(self.backlog.get(flight.key).id, timer);
        front_timer
    }
}
