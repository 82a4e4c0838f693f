//! The open messages of a channel: delivered, waiting to be delivered again, or deferred. One small entry for each, or
//! for a run of them that a ranged client has or had; linked into at most one list. No body is held: it is fetched again
//! by the batch's offset.
//!
//! A single message is found here by its log id. A run in flight is found in `Client::runs`; while it waits, or is
//! deferred, nobody asks for it.

use crate::base::{IdMap, LogId, Position, Ticks, TimerId};
use crate::log::cursor::Interval;
use slab::Slab;

pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// With a client, until it finishes it or the timer fires. In the client's list, and a run in its `runs`.
    InFlight,
    /// To be delivered again. In one of the channel's lists.
    Waiting,
    /// Waiting once the timer fires. In no list.
    Deferred,
    /// Finished on an ordered channel, and that is not settled. In no list.
    Finishing,
}

/// A message, or a run: `num` consecutive messages of one batch that have all else in common.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Of the first message.
    pub id: LogId,
    /// Start of its batch.
    pub offset: i64,
    /// Messages before the first.
    pub count: i64,
    /// When it last went out.
    pub delivered: Ticks,
    /// Where the message `skip` before the first begins in its batch.
    pub at: u32,
    /// Length of its batch when the last message there is its last, else zero.
    pub last_of: u32,
    pub prev: u32,
    pub next: u32,
    /// Who has it, while in flight.
    pub client: u32,
    /// While in flight or deferred.
    pub timer: TimerId,
    pub attempts: u16,
    pub num: u16,
    /// A run that was cut does not know where what is left of it begins: so many messages behind `at`.
    pub skip: u16,
    pub state: State,
    /// It is found by its id. Then it is one message.
    pub indexed: bool,
}

const _: () = assert!(size_of::<Open>() <= 64);

impl Open {
    /// Of its last message.
    pub fn last(&self) -> LogId {
        LogId(self.id.0 + self.num as u64 - 1)
    }

    /// What is confirmed when it is finished.
    pub fn interval(&self) -> Interval {
        let num = self.num as i64;
        let end = Position {
            offset: self.offset + self.last_of as i64,
            count: self.count + num,
            log_id: LogId(self.id.0 + num as u64),
        };
        Interval { start: self.id, end }
    }

    /// Takes the first `num` messages off, which are not all of it.
    pub fn split_front(&mut self, num: u16) -> Open {
        assert!(0 < num && num < self.num, "a run is split into two that are not empty");
        let front = Open { num, last_of: 0, ..*self };
        self.id.0 += num as u64;
        self.count += num as i64;
        self.skip += num;
        self.num -= num;
        front
    }
}

/// A list through `prev` and `next` of open messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub const EMPTY: List = List { head: NONE, tail: NONE };

    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

#[derive(Debug, Default)]
pub struct OpenSet {
    slab: Slab<Open>,
    index: Index,
}

/// Entries kept allocated when nothing is open.
const KEPT_ENTRIES: usize = 4096;

impl OpenSet {
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    pub fn find(&self, id: LogId) -> Option<u32> {
        self.index.get(id)
    }

    pub fn get(&self, key: u32) -> &Open {
        &self.slab[key as usize]
    }

    pub fn get_mut(&mut self, key: u32) -> &mut Open {
        &mut self.slab[key as usize]
    }

    pub fn insert(&mut self, open: Open) -> u32 {
        let (id, indexed) = (open.id, open.indexed);
        let key = self.slab.insert(open);
        assert!(key < NONE as usize, "a channel has fewer than 2^32 - 1 open messages");
        if indexed {
            self.index.insert(id, key as u32);
        }
        key as u32
    }

    /// Makes an entry one that is found by its id, or is not.
    pub fn set_indexed(&mut self, key: u32, indexed: bool) {
        let open = &mut self.slab[key as usize];
        if open.indexed == indexed {
            return;
        }
        assert!(open.num == 1, "what is found by its id is one message");
        open.indexed = indexed;
        if indexed {
            self.index.insert(open.id, key);
        } else {
            self.index.remove(open.id);
        }
    }

    /// Takes out an entry that is in no list.
    pub fn remove(&mut self, key: u32) -> Open {
        let open = self.slab.remove(key as usize);
        if open.indexed {
            self.index.remove(open.id);
        }
        if self.slab.is_empty() && self.slab.capacity() > KEPT_ENTRIES {
            // The peak is over: give its memory back.
            self.slab = Slab::new();
            self.index = Index::default();
        }
        open
    }

    pub fn push_back(&mut self, list: &mut List, key: u32) {
        let open = &mut self.slab[key as usize];
        (open.prev, open.next) = (list.tail, NONE);
        match list.tail {
            NONE => list.head = key,
            tail => self.slab[tail as usize].next = key,
        }
        list.tail = key;
    }

    /// Puts an entry behind another in its list.
    pub fn insert_after(&mut self, list: &mut List, before: u32, key: u32) {
        let next = self.slab[before as usize].next;
        let open = &mut self.slab[key as usize];
        (open.prev, open.next) = (before, next);
        self.slab[before as usize].next = key;
        match next {
            NONE => list.tail = key,
            next => self.slab[next as usize].prev = key,
        }
    }

    /// Takes an entry out of the list in which it is.
    pub fn unlink(&mut self, list: &mut List, key: u32) {
        let Open { prev, next, .. } = self.slab[key as usize];
        match prev {
            NONE => list.head = next,
            prev => self.slab[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.slab[next as usize].prev = prev,
        }
    }

    /// The entry after `key` in its list.
    pub fn after(&self, key: u32) -> Option<u32> {
        let next = self.slab[key as usize].next;
        (next != NONE).then_some(next)
    }

    pub fn allocated_bytes(&self) -> usize {
        self.slab.capacity() * size_of::<Open>() + self.index.pages.capacity() * size_of::<Page>()
    }
}

/// Log ids are dense where messages are open, so slab keys stand in pages of 64 consecutive ids. A page exists only
/// while one of its ids is open: one message that is never finished costs a page, however far the others go on.
#[derive(Debug, Default)]
struct Index {
    numbers: IdMap<u64, u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Page {
    keys: [u32; PAGE],
    /// Bit per id that is open.
    open: u64,
}

const PAGE: usize = u64::BITS as usize;

impl Index {
    fn get(&self, id: LogId) -> Option<u32> {
        let page = &self.pages[*self.numbers.get(&(id.0 / PAGE as u64))? as usize];
        let nth = id.0 as usize % PAGE;
        (page.open >> nth & 1 != 0).then_some(page.keys[nth])
    }

    fn insert(&mut self, id: LogId, key: u32) {
        let Index { numbers, pages, free } = self;
        let number = *numbers.entry(id.0 / PAGE as u64).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                pages.push(Page { keys: [NONE; PAGE], open: 0 });
                (pages.len() - 1) as u32
            })
        });
        let page = &mut pages[number as usize];
        let nth = id.0 as usize % PAGE;
        assert!(page.open >> nth & 1 == 0, "a message is open once");
        page.keys[nth] = key;
        page.open |= 1 << nth;
    }

    fn remove(&mut self, id: LogId) {
        let number = id.0 / PAGE as u64;
        let at = self.numbers[&number];
        let page = &mut self.pages[at as usize];
        page.open &= !(1 << (id.0 as usize % PAGE));
        if page.open == 0 {
            self.numbers.remove(&number);
            self.free.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(id: u64) -> Open {
        Open {
            id: LogId(id),
            offset: 0,
            count: 0,
            delivered: Ticks(0),
            at: 0,
            last_of: 0,
            prev: NONE,
            next: NONE,
            client: NONE,
            timer: TimerId::NONE,
            attempts: 0,
            num: 1,
            skip: 0,
            state: State::Waiting,
            indexed: true,
        }
    }

    #[test]
    fn what_is_open_is_found_and_nothing_else() {
        let mut set = OpenSet::default();
        let ids: Vec<u64> = (1..300).chain([1 << 40, LogId::MAX.0]).collect();
        let keys: Vec<u32> = ids.iter().map(|&id| set.insert(open(id))).collect();
        for (&id, &key) in ids.iter().zip(&keys).step_by(2) {
            assert_eq!(set.remove(key).id, LogId(id));
        }
        for (n, (&id, &key)) in ids.iter().zip(&keys).enumerate() {
            assert_eq!(set.find(LogId(id)), (n % 2 == 1).then_some(key));
        }
        assert_eq!((set.find(LogId(0)), set.find(LogId(400))), (None, None));
    }

    #[test]
    fn a_stuck_message_costs_one_page_and_a_peak_is_given_back() {
        let mut set = OpenSet::default();
        let stuck = set.insert(open(1));
        for id in 2..100_000 {
            let key = set.insert(open(id));
            set.remove(key);
        }
        assert!(set.index.pages.len() <= 2);
        let keys: Vec<u32> = (100_000..120_000).map(|id| set.insert(open(id))).collect();
        for key in keys {
            set.remove(key);
        }
        set.remove(stuck);
        assert_eq!(set.allocated_bytes(), 0);
    }

    #[test]
    fn lists_keep_their_order() {
        let mut set = OpenSet::default();
        let mut list = List::EMPTY;
        let keys: Vec<u32> = (1..=4).map(|id| set.insert(open(id))).collect();
        keys.iter().for_each(|&key| set.push_back(&mut list, key));
        set.unlink(&mut list, keys[1]);
        set.unlink(&mut list, keys[3]);
        assert_eq!((list.first(), set.after(keys[0]), set.after(keys[2])), (Some(keys[0]), Some(keys[2]), None));
        set.insert_after(&mut list, keys[0], keys[1]);
        set.insert_after(&mut list, keys[2], keys[3]);
        let walked: Vec<u32> = std::iter::successors(list.first(), |&key| set.after(key)).collect();
        assert_eq!(walked, keys);
        for key in [keys[3], keys[0], keys[2], keys[1]] {
            set.unlink(&mut list, key);
        }
        assert_eq!(list, List::EMPTY);
    }
}
