//! The open messages of a channel: delivered, waiting to be delivered again, or deferred. One small entry for each, or
//! for a run of them that a ranged client has or had; linked into at most one list. No body is held: it is fetched again
//! by the batch's offset.
//!
//! All entries are linked in the order of their ids, too. All messages between two of them are confirmed, so this order also gives the
//! confirmed intervals. Nothing is searched for: a new entry is the last one, or a part of an existing one.

use super::arena::Arena;
use crate::base::{LogId, Position, Ticks};
use crate::format::cursor::Interval;
use std::collections::BTreeMap;

pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenState {
    /// The message is with a client, until the client finishes it or the timer fires. The entry is in the client's list, and named by a
    /// `Flight`.
    InFlight,
    /// The message is to be delivered again. The entry is in one of the channel's lists.
    Waiting,
    /// Waiting once it is due. In a list of [`Deferred`].
    Deferred,
    /// Finished on an ordered channel, and that is not settled. In no list.
    Finishing,
}

/// A message, or a run: `num` consecutive messages of one batch that have all else in common.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Log id of the first message.
    pub id: LogId,
    /// Start of its batch.
    pub offset: i64,
    /// Messages before the first.
    pub count: i64,
    /// Position in its batch of the message `skip` before the first one.
    pub at: u32,
    /// Length of its batch when the last message there is its last, else zero.
    pub last_of: u32,
    prev: u32,
    next: u32,
    /// The neighbours by id.
    lower: u32,
    higher: u32,
    pub attempts: u16,
    pub num: u16,
    /// Messages between `at` and the start of the entry: the rest of a split run does not know the place of its first message.
    pub skip: u16,
    pub state: OpenState,
}

const _: () = assert!(size_of::<Open>() <= 56);

/// Messages that are handed out of the log for the first time.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    pub id: LogId,
    pub offset: i64,
    pub count: i64,
    pub at: u32,
    pub last_of: u32,
    pub num: u16,
}

impl Open {
    pub fn new(fresh: Fresh) -> Open {
        let Fresh { id, offset, count, at, last_of, num } = fresh;
        let (attempts, skip, state) = (0, 0, OpenState::Waiting);
        Open { id, offset, count, at, last_of, prev: NONE, next: NONE, lower: NONE, higher: NONE, attempts, num, skip, state }
    }

    /// Log id of the last message.
    pub fn last(&self) -> LogId {
        LogId(self.id.0 + self.num as u64 - 1)
    }

    /// Position of the first message.
    pub fn start(&self) -> Position {
        Position { offset: self.offset, count: self.count, log_id: self.id }
    }

    /// Interval that is confirmed when the entry is finished.
    pub fn interval(&self) -> Interval {
        let num = self.num as i64;
        let end = Position {
            offset: self.offset + self.last_of as i64,
            count: self.count + num,
            log_id: LogId(self.id.0 + num as u64),
        };
        Interval { start: self.id, end }
    }

    /// Entry of the first message alone, for a look at it.
    pub fn first(&self) -> Open {
        Open { num: 1, ..*self }
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

impl Default for List {
    fn default() -> Self {
        List::EMPTY
    }
}

#[derive(Debug)]
pub struct OpenSet {
    arena: Arena<Open>,
    /// Key of the entry with the lowest id; the entries are linked by id.
    lowest: u32,
    highest: u32,
}

impl Default for OpenSet {
    fn default() -> Self {
        OpenSet { arena: Arena::default(), lowest: NONE, highest: NONE }
    }
}

impl OpenSet {
    pub fn is_empty(&self) -> bool {
        self.arena.is_empty()
    }

    pub fn get(&self, key: u32) -> &Open {
        self.arena.get(key)
    }

    pub fn get_mut(&mut self, key: u32) -> &mut Open {
        self.arena.get_mut(key)
    }

    /// The entry of the lowest id.
    pub fn lowest(&self) -> Option<&Open> {
        self.lowest_key().map(|key| self.arena.get(key))
    }

    pub fn lowest_key(&self) -> Option<u32> {
        (self.lowest != NONE).then_some(self.lowest)
    }

    /// The entry that follows by id.
    pub fn higher(&self, key: u32) -> Option<u32> {
        let higher = self.arena.get(key).higher;
        (higher != NONE).then_some(higher)
    }

    /// All entries, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Open)> {
        let some = |key: u32| (key != NONE).then_some(key);
        std::iter::successors(some(self.lowest), move |&key| some(self.arena.get(key).higher))
            .map(|key| (key, self.arena.get(key)))
    }

    /// Adds an entry that lies behind all others.
    pub fn push(&mut self, open: Open) -> u32 {
        let lower = self.highest;
        let key = self.arena.insert(Open { lower, higher: NONE, ..open });
        match lower {
            NONE => self.lowest = key,
            lower => {
                let lower = self.arena.get_mut(lower);
                assert!(lower.last() < open.id, "the log is read on, not back");
                lower.higher = key;
            }
        }
        self.highest = key;
        key
    }

    /// Adds the front part that was split off an entry.
    pub fn insert_before(&mut self, higher: u32, front: Open) -> u32 {
        let lower = self.arena.get(higher).lower;
        let key = self.arena.insert(Open { lower, higher, ..front });
        self.arena.get_mut(higher).lower = key;
        match lower {
            NONE => self.lowest = key,
            lower => self.arena.get_mut(lower).higher = key,
        }
        key
    }

    /// Takes out an entry that is in no list.
    #[inline]
    pub fn remove(&mut self, key: u32) -> Open {
        let open = self.arena.remove(key);
        match open.lower {
            NONE => self.lowest = open.higher,
            lower => self.arena.get_mut(lower).higher = open.higher,
        }
        match open.higher {
            NONE => self.highest = open.lower,
            higher => self.arena.get_mut(higher).lower = open.lower,
        }
        open
    }

    #[inline]
    pub fn push_back(&mut self, list: &mut List, key: u32) {
        let open = self.arena.get_mut(key);
        (open.prev, open.next) = (list.tail, NONE);
        match list.tail {
            NONE => list.head = key,
            tail => self.arena.get_mut(tail).next = key,
        }
        list.tail = key;
    }

    /// Puts an entry before another in its list.
    pub fn list_before(&mut self, list: &mut List, after: u32, key: u32) {
        let prev = self.arena.get(after).prev;
        let open = self.arena.get_mut(key);
        (open.prev, open.next) = (prev, after);
        self.arena.get_mut(after).prev = key;
        match prev {
            NONE => list.head = key,
            prev => self.arena.get_mut(prev).next = key,
        }
    }

    /// Takes an entry out of the list in which it is.
    #[inline]
    pub fn unlink(&mut self, list: &mut List, key: u32) {
        let &Open { prev, next, .. } = self.arena.get(key);
        match prev {
            NONE => list.head = next,
            prev => self.arena.get_mut(prev).next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.arena.get_mut(next).prev = prev,
        }
    }

    /// The entry after `key` in its list.
    pub fn after(&self, key: u32) -> Option<u32> {
        let next = self.arena.get(key).next;
        (next != NONE).then_some(next)
    }

    /// True if another entry needs no more memory.
    pub fn has_room(&self) -> bool {
        self.arena.has_room()
    }

    pub fn allocated_bytes(&self) -> usize {
        self.arena.allocated_bytes()
    }
}

/// Deferred entries by the millisecond in which they are due; none is needed before that.
///
/// The first and the last entry of a list have no neighbour to name: there they hold the approximate due time of the list. So an entry
/// is taken out early without a search, and needs no field for its time.
#[derive(Debug, Default)]
pub struct Deferred {
    by_ms: BTreeMap<u64, List>,
}

/// Bit of a link at the end of a list. The other bits are the list's time in units of [`COARSE_MS`], modulo 2^31: that is four years.
const END: u32 = 1 << 31;
const NS_PER_MS: u64 = 1_000_000;
/// Delays of a minute and more end at a multiple of so many milliseconds, so that a million of them share lists.
const COARSE_MS: u64 = 64;
const COARSE_FROM_MS: u64 = 60_000;
/// A list in a B-tree, whose nodes are two thirds full, and a bit more than their entries.
const LIST_BYTES: usize = 2 * size_of::<(u64, List)>();

impl Deferred {
    /// List for an entry that is put off at `now` until `due`, as its time in milliseconds.
    pub fn place(now: Ticks, due: Ticks) -> u64 {
        let due_ms = due.0.div_ceil(NS_PER_MS);
        let is_far = due_ms.saturating_sub(now.0 / NS_PER_MS) >= COARSE_FROM_MS;
        if is_far { due_ms.next_multiple_of(COARSE_MS) } else { due_ms }
    }

    /// Returns where it stands: [`Deferred::place`].
    pub fn insert(&mut self, open: &mut OpenSet, now: Ticks, due: Ticks, key: u32) -> u64 {
        assert!(key & END == 0, "a channel has fewer than 2^31 open messages");
        let due_ms = Self::place(now, due);
        let list = self.by_ms.entry(due_ms).or_insert(List::EMPTY);
        let (last, end) = (list.tail, END | (due_ms / COARSE_MS) as u32);
        let entry = open.get_mut(key);
        (entry.prev, entry.next, list.tail) = (last, end, key);
        match last {
            NONE => (entry.prev, list.head) = (end, key),
            last => open.get_mut(last).next = key,
        }
        due_ms
    }

    /// Takes one out, whenever it is due.
    pub fn remove(&mut self, open: &mut OpenSet, key: u32) {
        let &Open { prev, next, .. } = open.get(key);
        let (is_first, is_last) = (prev & END != 0, next & END != 0);
        if !is_first {
            open.get_mut(prev).next = next;
        }
        if !is_last {
            open.get_mut(next).prev = prev;
        }
        if is_first || is_last {
            let (due_ms, list) = self.list_that_ends(if is_first { prev } else { next }, key);
            match (is_first, is_last) {
                (true, true) => _ = self.by_ms.remove(&due_ms),
                (true, false) => list.head = next,
                (false, _) => list.tail = prev,
            }
        }
    }

    /// The list whose first or last entry is `key`, where `end` stands.
    fn list_that_ends(&mut self, end: u32, key: u32) -> (u64, &mut List) {
        let nearest = self.by_ms.first_key_value().expect("an entry is in a list").0 / COARSE_MS;
        let ahead = end.wrapping_sub(nearest as u32) & !END;
        let from = (nearest + ahead as u64) * COARSE_MS;
        let mut lists = self.by_ms.range_mut(from..from + COARSE_MS);
        let (due_ms, list) = lists.find(|(_, list)| list.head == key || list.tail == key).expect("an entry is in a list");
        (*due_ms, list)
    }

    /// All deferred entries with their due times.
    pub fn iter(&self, open: &OpenSet) -> impl Iterator<Item = (u32, Ticks)> {
        self.by_ms.iter().flat_map(move |(&ms, list)| {
            let keys = std::iter::successors(list.first(), move |&key| Some(open.get(key).next).filter(|next| next & END == 0));
            keys.map(move |key| (key, Ticks(ms.saturating_mul(NS_PER_MS))))
        })
    }

    /// Takes out one that is due.
    pub fn pop_due(&mut self, open: &mut OpenSet, now: Ticks) -> Option<u32> {
        let (_, list) = self.by_ms.first_key_value().filter(|(ms, _)| **ms <= now.0 / NS_PER_MS)?;
        let key = list.first().expect("a list goes with its last entry");
        self.remove(open, key);
        Some(key)
    }

    pub fn deadline(&self) -> Option<Ticks> {
        self.by_ms.first_key_value().map(|(&ms, _)| Ticks(ms.saturating_mul(NS_PER_MS)))
    }

    pub fn allocated_bytes(&self) -> usize {
        self.by_ms.len() * LIST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(id: u64) -> Open {
        Open::new(Fresh { id: LogId(id), offset: 0, count: 0, at: 0, last_of: 0, num: 1 })
    }

    fn ids(set: &OpenSet) -> Vec<u64> {
        set.iter().map(|(_, open)| open.id.0).collect()
    }

    #[test]
    fn entries_stand_in_the_order_of_their_ids() {
        let mut set = OpenSet::default();
        let keys: Vec<u32> = (1..=5).map(|id| set.push(open(id * 10))).collect();
        set.remove(keys[2]);
        set.remove(keys[4]);
        assert_eq!(ids(&set), [10, 20, 40]);
        let run = set.push(Open { num: 5, ..open(60) });
        let front = set.get_mut(run).split_front(2);
        let front = set.insert_before(run, front);
        assert_eq!((ids(&set), set.get(run).id), (vec![10, 20, 40, 60, 62], LogId(62)));
        set.remove(keys[0]);
        set.remove(front);
        assert_eq!((ids(&set), set.lowest().map(|o| o.id)), (vec![20, 40, 62], Some(LogId(20))));
        let first = set.insert_before(keys[1], open(15));
        assert_eq!(set.lowest().map(|o| o.id), Some(LogId(15)));
        for key in [first, keys[1], keys[3], run] {
            set.remove(key);
        }
        assert!(set.is_empty() && set.lowest().is_none() && set.iter().next().is_none());
        assert_eq!(set.push(open(3)), set.iter().next().expect("one").0);
    }

    #[test]
    fn lists_keep_their_order() {
        let mut set = OpenSet::default();
        let mut list = List::EMPTY;
        let keys: Vec<u32> = (1..=4).map(|id| set.push(open(id))).collect();
        keys.iter().for_each(|&key| set.push_back(&mut list, key));
        set.unlink(&mut list, keys[1]);
        set.unlink(&mut list, keys[0]);
        assert_eq!((list.first(), set.after(keys[2]), set.after(keys[3])), (Some(keys[2]), Some(keys[3]), None));
        set.list_before(&mut list, keys[2], keys[0]);
        set.list_before(&mut list, keys[2], keys[1]);
        let walked: Vec<u32> = std::iter::successors(list.first(), |&key| set.after(key)).collect();
        assert_eq!(walked, keys);
        for key in [keys[3], keys[0], keys[2], keys[1]] {
            set.unlink(&mut list, key);
        }
        assert_eq!(list, List::EMPTY);
    }

    #[test]
    fn deferred_ones_come_when_they_are_due_and_never_before() {
        let ms = |ms: u64| Ticks(ms * NS_PER_MS);
        let (mut set, mut deferred) = (OpenSet::default(), Deferred::default());
        let keys: Vec<u32> = (1..=5).map(|id| set.push(open(id))).collect();
        for (key, due) in keys.iter().zip([ms(40), Ticks(39 * NS_PER_MS + 1), ms(39), ms(60_001), ms(60_010)]) {
            deferred.insert(&mut set, ms(1), due, *key);
        }
        assert_eq!((deferred.deadline(), deferred.pop_due(&mut set, ms(38))), (Some(ms(39)), None));
        let mut due = |now| std::iter::from_fn(|| deferred.pop_due(&mut set, now)).collect::<Vec<_>>();
        assert_eq!(due(ms(39)), [keys[2]]);
        assert_eq!(due(ms(40)), [keys[0], keys[1]], "in the order in which they were put off");
        assert_eq!((due(ms(60_010)), due(ms(60_031))), (vec![], vec![]));
        assert_eq!(due(ms(60_032)), [keys[3], keys[4]]);
        assert_eq!((deferred.deadline(), deferred.allocated_bytes()), (None, 0));
    }

    #[test]
    fn one_is_taken_out_before_it_is_due_wherever_it_stands() {
        let ms = |ms: u64| Ticks(ms * NS_PER_MS);
        let due_ms = [7, 7, 7, 8, 70, 130_000, 130_000];
        // Also where the numbers of the lists begin anew.
        for start in [0, (1u64 << 31) * COARSE_MS - 32] {
            for taken in 0..due_ms.len() {
                let (mut set, mut deferred) = (OpenSet::default(), Deferred::default());
                let keys: Vec<u32> = (1..=due_ms.len() as u64).map(|id| set.push(open(id))).collect();
                for (&key, due) in keys.iter().zip(due_ms) {
                    deferred.insert(&mut set, ms(start), ms(start + due), key);
                }
                deferred.remove(&mut set, keys[taken]);
                let left: Vec<u32> = keys.iter().copied().filter(|&key| key != keys[taken]).collect();
                assert_eq!(deferred.iter(&set).map(|(key, _)| key).collect::<Vec<_>>(), left);
                let due = std::iter::from_fn(|| deferred.pop_due(&mut set, ms(start + 130_063))).collect::<Vec<_>>();
                assert_eq!((due, deferred.deadline(), deferred.allocated_bytes()), (left, None, 0));
            }
        }
    }
}
