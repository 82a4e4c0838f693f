//! Messages in flight: the client and the deadline of each entry. A client that is not ranged names a message by its id, which is looked
//! up here; the runs of a ranged client stand in its `runs`.

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
    pub wheel: Wheel<Flight>,
    index: Index,
    /// Ids in `index`.
    indexed: usize,
}

/// Pages kept allocated when no id is in flight.
const KEPT_PAGES: usize = 64;

impl Flights {
    pub fn find(&self, id: LogId) -> Option<TimerId> {
        self.index.get(id)
    }

    /// Makes the flight findable by the message's id.
    pub fn name(&mut self, id: LogId, timer: TimerId) {
        self.index.insert(id, timer);
        self.indexed += 1;
    }

    /// The flight of an id that was named is found no more.
    pub fn forget(&mut self, id: LogId) -> TimerId {
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
