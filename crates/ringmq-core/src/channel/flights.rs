//! Messages in flight: the client and the deadline of each entry. A client that is not ranged names a message by its id, which is looked
//! up here; the runs of a ranged client stand in its `runs`.
//!
//! An entry in flight is in its client's list, has one timer, and is named by its id: all three from [`Flights::begin`] to its end.
//!
//! A ranged client names ranges of ids: each costs per run that it meets, never per message.

use super::backlog::Backlog;
use super::clients::{Client, Clients};
use super::open::Open;
use crate::base::{IdMap, LogId, Ticks, TimerId, Wheel};

/// An entry that a client has.
///
/// Packed, so that a timer has a place for all of it in the bytes that its alignment would leave empty.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// Key of the entry.
    pub key: u32,
    /// Number of the client.
    pub client: u32,
    /// Time of the delivery.
    pub delivered: Ticks,
    /// Seconds since its publish at that moment.
    pub age_s: f32,
}

#[derive(Debug, Default)]
pub struct Flights {
    wheel: Wheel<Flight>,
    index: Index,
    /// Ids in `index`.
    indexed: usize,
}

/// Pages kept allocated when no id is in flight.
const KEPT_PAGES: usize = 64;

impl Flights {
    pub fn get(&self, timer: TimerId) -> &Flight {
        self.wheel.get(timer)
    }

    /// A single message by its id; runs are looked for in [`Flights::run_within`].
    pub fn find(&self, id: LogId) -> Option<TimerId> {
        self.index.get(id)
    }

    /// Time at which [`Flights::expire`] next has something.
    pub fn deadline(&self) -> Option<Ticks> {
        self.wheel.next_deadline()
    }

    /// The client of the flight has taken its entry, which is in no list. Returns the number of messages.
    #[inline]
    pub(super) fn begin(&mut self, backlog: &mut Backlog, client: &mut Client, flight: Flight) -> u32 {
        let Flight { key, delivered, .. } = flight;
        let timer = self.wheel.insert(delivered, delivered + client.timeout, flight);
        backlog.begin_flight(&mut client.in_flight, key);
        let &Open { id, num, .. } = backlog.get(key);
        if client.is_ranged {
            client.runs.insert(id, timer);
        } else {
            self.name(id, timer);
        }
        num as u32
    }

    /// The client's message timeout begins anew.
    pub(super) fn touch(&mut self, clients: &Clients, now: Ticks, timer: TimerId) {
        let &Flight { client, delivered, .. } = self.wheel.get(timer);
        self.wheel.reset(timer, clients.touched_until(client, delivered, now));
    }

    /// Takes an entry from its client; then it is in no list.
    #[inline]
    pub(super) fn end(&mut self, backlog: &mut Backlog, clients: &mut Clients, timer: TimerId) -> Flight {
        let flight = self.wheel.cancel(timer);
        self.leave_client(backlog, clients.get_mut(flight.client), flight.key);
        flight
    }

    /// Takes the first entry that a client has; then it is in no list.
    pub(super) fn end_first(&mut self, backlog: &mut Backlog, client: &mut Client) -> Option<u32> {
        let key = client.in_flight.first()?;
        let timer = self.leave_client(backlog, client, key);
        self.wheel.cancel(timer);
        Some(key)
    }

    /// Takes at most `max` entries whose time is over from their clients; then they are in no list.
    pub(super) fn expire(&mut self, backlog: &mut Backlog, clients: &mut Clients, now: Ticks, max: usize) -> Vec<Flight> {
        let mut expired = vec![];
        self.wheel.expire_some(now, max, |flight| expired.push(flight));
        for flight in &expired {
            self.leave_client(backlog, clients.get_mut(flight.client), flight.key);
        }
        expired
    }

    /// Takes an entry out of its client's list, which names it no more. Returns its timer.
    #[inline]
    fn leave_client(&mut self, backlog: &mut Backlog, client: &mut Client, key: u32) -> TimerId {
        let &Open { id, num, .. } = backlog.get(key);
        backlog.end_flight(&mut client.in_flight, key);
        client.in_flight_count -= num as u64;
        if client.is_ranged { client.runs.remove(&id).expect("a ranged client names its runs") } else { self.forget(id) }
    }

    // ---- runs of a ranged client

    /// The client's first run within `from ..= last`. A run that is only in part there is split, and the rest keeps its deadline and its
    /// place.
    pub(super) fn run_within(
        &mut self,
        backlog: &mut Backlog,
        client: &mut Client,
        now: Ticks,
        (from, last): (LogId, LogId),
    ) -> Option<TimerId> {
        let timer = self.first_run(backlog, client, from, last)?;
        let before = from.0.saturating_sub(self.run(backlog, timer).id.0);
        if before > 0 {
            self.cut_run(backlog, client, now, timer, before as u16);
        }
        let run = self.run(backlog, timer);
        if run.last() > last {
            let within = (last.0 - run.id.0 + 1) as u16;
            return Some(self.cut_run(backlog, client, now, timer, within));
        }
        Some(timer)
    }

    fn run<'a>(&self, backlog: &'a Backlog, timer: TimerId) -> &'a Open {
        backlog.get(self.wheel.get(timer).key)
    }

    /// The client's first run that has an id of `from ..= last`.
    fn first_run(&self, backlog: &Backlog, client: &Client, from: LogId, last: LogId) -> Option<TimerId> {
        if from > last {
            return None;
        }
        let runs = &client.runs;
        let around = runs.range(..=from).next_back().map(|(_, &timer)| timer);
        let around = around.filter(|&timer| self.run(backlog, timer).last() >= from);
        around.or_else(|| runs.range(from..=last).next().map(|(_, &timer)| timer))
    }

    /// Makes the first `num` messages of a run in flight a run of their own, which is returned. The flight goes on with the rest.
    fn cut_run(&mut self, backlog: &mut Backlog, client: &mut Client, now: Ticks, timer: TimerId, num: u16) -> TimerId {
        let flight = *self.wheel.get(timer);
        let key = backlog.split_flight(&mut client.in_flight, flight.key, num);
        let front_timer = self.wheel.insert(now, self.wheel.deadline(timer), Flight { key, ..flight });
        client.runs.insert(backlog.get(key).id, front_timer);
        client.runs.insert(backlog.get(flight.key).id, timer);
        front_timer
    }

    // ---- names

    /// Makes the flight findable by the message's id.
    fn name(&mut self, id: LogId, timer: TimerId) {
        self.index.insert(id, timer);
        self.indexed += 1;
    }

    /// The flight of an id that was named is found no more.
    fn forget(&mut self, id: LogId) -> TimerId {
        let timer = self.index.remove(id);
        self.indexed -= 1;
        if self.indexed == 0 && self.index.pages.capacity() > KEPT_PAGES {
            // The peak is over: give its memory back.
            self.index = Index::default();
        }
        timer
    }

    pub fn allocated_bytes(&self) -> usize {
        let index = &self.index;
        let number = size_of::<(u64, u32)>() + 1;
        self.wheel.allocated_bytes()
            + index.pages.capacity() * size_of::<Page>()
            + index.numbers.capacity() * number
            + index.free.capacity() * size_of::<u32>()
    }
}

/// Log ids are dense where messages are in flight, so timers stand in pages of 64 consecutive ids. A page exists only
/// while one of its ids is in flight: one message that is kept for long costs a page, however far the others go on.
#[derive(Debug, Default)]
struct Index {
    numbers: IdMap<u64, u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Page {
    timers: [TimerId; PAGE],
    /// Bit per id that is in flight.
    in_flight: u64,
}

const PAGE: usize = u64::BITS as usize;

impl Index {
    fn get(&self, id: LogId) -> Option<TimerId> {
        let page = &self.pages[*self.numbers.get(&(id.0 / PAGE as u64))? as usize];
        let nth = id.0 as usize % PAGE;
        (page.in_flight >> nth & 1 != 0).then_some(page.timers[nth])
    }

    fn insert(&mut self, id: LogId, timer: TimerId) {
        let Index { numbers, pages, free } = self;
        let number = *numbers.entry(id.0 / PAGE as u64).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                pages.push(Page { timers: [TimerId::NONE; PAGE], in_flight: 0 });
                (pages.len() - 1) as u32
            })
        });
        let page = &mut pages[number as usize];
        let nth = id.0 as usize % PAGE;
        assert!(page.in_flight >> nth & 1 == 0, "a message is in flight once");
        page.timers[nth] = timer;
        page.in_flight |= 1 << nth;
    }

    fn remove(&mut self, id: LogId) -> TimerId {
        let number = id.0 / PAGE as u64;
        let at = self.numbers[&number];
        let page = &mut self.pages[at as usize];
        let nth = id.0 as usize % PAGE;
        assert!(page.in_flight >> nth & 1 != 0, "it is in flight");
        page.in_flight &= !(1 << nth);
        let timer = page.timers[nth];
        if page.in_flight == 0 {
            self.numbers.remove(&number);
            self.free.push(at);
        }
        timer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fly(flights: &mut Flights, id: u64) -> TimerId {
        let timer = flights.wheel.insert(Ticks(0), Ticks(1), Flight { key: 0, client: 0, delivered: Ticks(0), age_s: 0.0 });
        flights.name(LogId(id), timer);
        timer
    }

    fn land(flights: &mut Flights, id: u64) {
        let timer = flights.forget(LogId(id));
        flights.wheel.cancel(timer);
    }

    #[test]
    fn what_is_in_flight_is_found_and_nothing_else() {
        let mut flights = Flights::default();
        let ids: Vec<u64> = (1..300).chain([1 << 40, LogId::MAX.0]).collect();
        let timers: Vec<TimerId> = ids.iter().map(|&id| fly(&mut flights, id)).collect();
        ids.iter().step_by(2).for_each(|&id| land(&mut flights, id));
        for (n, (&id, &timer)) in ids.iter().zip(&timers).enumerate() {
            assert_eq!(flights.find(LogId(id)), (n % 2 == 1).then_some(timer));
        }
        assert_eq!((flights.find(LogId(0)), flights.find(LogId(400))), (None, None));
    }

    #[test]
    fn a_stuck_message_costs_one_page_and_a_peak_is_given_back() {
        let mut flights = Flights::default();
        fly(&mut flights, 1);
        for id in 2..100_000 {
            fly(&mut flights, id);
            land(&mut flights, id);
        }
        assert!(flights.index.pages.len() <= 2);
        (100_000..120_000).for_each(|id| _ = fly(&mut flights, id));
        (100_000..120_000).for_each(|id| land(&mut flights, id));
        land(&mut flights, 1);
        assert!(flights.allocated_bytes() < 4096, "{}", flights.allocated_bytes());
    }
}
