//! A hierarchical timer wheel: many deadlines, each put in and taken out in constant time.
//!
//! Owns its entries and nothing else. It reads no clock, and it never reports a key before its deadline: a deadline is
//! rounded up to a millisecond, the time it is compared with is rounded down.
//!
//! ```text
//! level 0   64 slots of 1 ms        an entry's level is the highest 6-bit digit in which its millisecond differs
//! level 1   64 slots of 64 ms       from `elapsed`, its slot is that digit. So a slot never holds two rounds, and
//! level 2   64 slots of 4,096 ms    everything on a level is due before anything on the level above it.
//! ...       (11 levels: all of u64) Reaching a slot above level 0 sinks its entries to lower levels.
//! ```
//! Levels are allocated when something first stands in them, so that an unused wheel is a few words.

use super::Ticks;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = (u64::BITS as usize).div_ceil(DIGIT_BITS as usize);
const NS_PER_MS: u64 = 1_000_000;
const NONE: u32 = u32::MAX;
/// Entries kept allocated when the wheel runs empty.
const KEPT_ENTRIES: usize = 4096;

/// An entry of a wheel: valid until it is cancelled or reported. Numbers are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerId(u32);

impl TimerId {
    /// Stands for no timer.
    pub const NONE: TimerId = TimerId(NONE);
}

#[derive(Debug)]
struct WheelEntry<K> {
    due_ms: u64,
    key: K,
    /// Neighbours in the slot's ring; `next` alone links free entries.
    prev: u32,
    next: u32,
    level: u8,
    slot: u8,
}

/// Level of a free entry.
const FREE: u8 = u8::MAX;

#[derive(Debug)]
struct Level {
    /// Bit per slot that holds something.
    occupied: u64,
    /// First entry of each slot's ring.
    heads: [u32; SLOTS],
}

#[derive(Debug)]
pub struct Wheel<K> {
    entries: Vec<WheelEntry<K>>,
    free: u32,
    len: u32,
    /// Every entry due before this was reported. Milliseconds.
    elapsed: u64,
    /// Bit per level that holds something.
    occupied: u16,
    /// The slot (level, slot) above level 0 that `elapsed` has reached and that is not sunk to its end.
    sinking: Option<(u8, u8)>,
    levels: [Option<Box<Level>>; LEVELS],
}

impl<K> Default for Wheel<K> {
    fn default() -> Self {
        Wheel {
            entries: Vec::new(),
            free: NONE,
            len: 0,
            elapsed: 0,
            occupied: 0,
            sinking: None,
            levels: [const { None }; LEVELS],
        }
    }
}

impl<K: Copy> Wheel<K> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reports `key` once, from `deadline` on. `now` must not run backwards from call to call.
    ///
    /// Panics with 2^32 - 1 entries.
    pub fn insert(&mut self, now: Ticks, deadline: Ticks, key: K) -> TimerId {
        if self.len == 0 {
            // Nothing stands relative to the old time: start from now, so that entries begin on low levels.
            self.elapsed = self.elapsed.max(now.0 / NS_PER_MS);
        }
        let entry = WheelEntry { due_ms: deadline.0.div_ceil(NS_PER_MS), key, prev: NONE, next: NONE, level: FREE, slot: 0 };
        let at = if self.free != NONE {
            let at = self.free;
            self.free = self.entries[at as usize].next;
            self.entries[at as usize] = entry;
            at
        } else {
            assert!(self.entries.len() < NONE as usize, "a wheel holds fewer than 2^32 - 1 timers");
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        self.len += 1;
        self.place(at);
        TimerId(at)
    }

    /// Takes an entry out that was neither reported nor cancelled.
    pub fn cancel(&mut self, timer: TimerId) -> K {
        let entry = &self.entries[timer.0 as usize];
        assert!(entry.level != FREE, "a timer is cancelled at most once and not after it fired");
        let key = entry.key;
        self.unlink(timer.0);
        self.release(timer.0);
        key
    }

    /// The key of an entry that was neither reported nor cancelled.
    pub fn get(&self, timer: TimerId) -> &K {
        let entry = &self.entries[timer.0 as usize];
        assert!(entry.level != FREE, "a timer that is asked for stands in the wheel");
        &entry.key
    }

    /// Gives an entry that was neither reported nor cancelled another deadline.
    pub fn reset(&mut self, timer: TimerId, deadline: Ticks) {
        assert!(self.entries[timer.0 as usize].level != FREE, "a timer that is reset stands in the wheel");
        self.unlink(timer.0);
        self.entries[timer.0 as usize].due_ms = deadline.0.div_ceil(NS_PER_MS);
        self.place(timer.0);
    }

    /// Due time of an entry that was neither reported nor cancelled: its deadline, rounded up to a millisecond.
    pub fn deadline(&self, timer: TimerId) -> Ticks {
        let entry = &self.entries[timer.0 as usize];
        assert!(entry.level != FREE, "a timer that is asked for stands in the wheel");
        Ticks(entry.due_ms.saturating_mul(NS_PER_MS))
    }

    /// Reports every key whose deadline has come, and takes it out. Entries of one slot come in the order of insertion.
    pub fn expire(&mut self, now: Ticks, fired: impl FnMut(K)) {
        let more = self.expire_some(now, usize::MAX, fired);
        debug_assert!(!more);
    }

    /// Works like [`Wheel::expire`] on at most `limit` entries (reported or moved to a lower level), so that a turn stays short. True:
    /// more is due, call again.
    pub fn expire_some(&mut self, now: Ticks, mut limit: usize, mut fired: impl FnMut(K)) -> bool {
        let now_ms = now.0 / NS_PER_MS;
        while let Some((level, slot, at_ms)) = self.next_slot() {
            if at_ms > now_ms {
                break;
            }
            if limit == 0 {
                return true;
            }
            limit -= 1;
            debug_assert!(at_ms >= self.elapsed);
            self.elapsed = at_ms;
            if level > 0 {
                self.sinking = Some((level, slot));
            }
            let head = self.levels[level as usize].as_ref().expect("an occupied level is allocated").heads[slot as usize];
            self.unlink(head);
            let entry = &self.entries[head as usize];
            if entry.due_ms <= now_ms {
                let key = entry.key;
                self.release(head);
                fired(key);
            } else {
                self.place(head);
            }
        }
        // No slot begins before now: moving `elapsed` up keeps every entry's digit above that of `elapsed`.
        self.elapsed = self.elapsed.max(now_ms);
        false
    }

    /// Time at which [`Wheel::expire`] next has work: never later than the earliest deadline rounded up to a millisecond, and earlier
    /// when entries must move to a lower level first.
    pub fn next_deadline(&self) -> Option<Ticks> {
        self.next_slot().map(|(_, _, at_ms)| Ticks(at_ms.saturating_mul(NS_PER_MS)))
    }

    pub fn allocated_bytes(&self) -> usize {
        let levels = self.levels.iter().flatten().count() * size_of::<Level>();
        self.entries.capacity() * size_of::<WheelEntry<K>>() + levels
    }

    /// Level, slot and first millisecond of the earliest occupied slot.
    fn next_slot(&self) -> Option<(u8, u8, u64)> {
        if let Some((level, slot)) = self.sinking {
            return Some((level, slot, self.elapsed));
        }
        if self.occupied == 0 {
            return None;
        }
        let level = self.occupied.trailing_zeros();
        let occupied = self.levels[level as usize].as_ref().expect("an occupied level is allocated").occupied;
        let slot = occupied.trailing_zeros();
        let shift = level * DIGIT_BITS;
        // The higher digits are those of `elapsed`, the lower digits are zero.
        let above = self.elapsed.checked_shr(shift + DIGIT_BITS).map_or(0, |high| high << DIGIT_BITS);
        Some((level as u8, slot as u8, (above | slot as u64) << shift))
    }

    /// Links an entry at the end of the slot it belongs to, seen from `elapsed`.
    fn place(&mut self, at: u32) {
        let due_ms = self.entries[at as usize].due_ms.max(self.elapsed);
        let differing = (due_ms ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = differing.ilog2() / DIGIT_BITS;
        let slot = (due_ms >> (level * DIGIT_BITS)) as usize % SLOTS;
        let found = self.levels[level as usize].get_or_insert_with(|| Box::new(Level { occupied: 0, heads: [NONE; SLOTS] }));
        let head = found.heads[slot];
        let (prev, next) = if head == NONE {
            found.heads[slot] = at;
            found.occupied |= 1 << slot;
            self.occupied |= 1 << level;
            (at, at)
        } else {
            (self.entries[head as usize].prev, head)
        };
        let entry = &mut self.entries[at as usize];
        (entry.level, entry.slot, entry.prev, entry.next) = (level as u8, slot as u8, prev, next);
        self.entries[prev as usize].next = at;
        self.entries[next as usize].prev = at;
    }

    fn unlink(&mut self, at: u32) {
        let WheelEntry { prev, next, level, slot, .. } = self.entries[at as usize];
        let found = self.levels[level as usize].as_mut().expect("an entry's level is allocated");
        if next == at {
            found.heads[slot as usize] = NONE;
            found.occupied &= !(1 << slot);
            if found.occupied == 0 {
                self.occupied &= !(1 << level);
            }
            if self.sinking == Some((level, slot)) {
                self.sinking = None;
            }
            return;
        }
        if found.heads[slot as usize] == at {
            found.heads[slot as usize] = next;
        }
        self.entries[prev as usize].next = next;
        self.entries[next as usize].prev = prev;
    }

    fn release(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        entry.level = FREE;
        entry.next = self.free;
        self.free = at;
        self.len -= 1;
        if self.len == 0 && self.entries.capacity() > KEPT_ENTRIES {
            // The peak is over: give its memory back.
            self.entries = Vec::new();
            self.free = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Ticks {
        Ticks(ms * NS_PER_MS)
    }

    fn fired(wheel: &mut Wheel<u32>, now: Ticks) -> Vec<u32> {
        let mut keys = vec![];
        wheel.expire(now, |key| keys.push(key));
        keys
    }

    #[test]
    fn nothing_fires_early_and_all_fires_in_its_millisecond() {
        let mut wheel = Wheel::new();
        wheel.insert(ms(5), Ticks(6 * NS_PER_MS + 1), 1);
        wheel.insert(ms(5), ms(6), 2);
        wheel.insert(ms(5), ms(60_005), 3);
        assert!(fired(&mut wheel, Ticks(6 * NS_PER_MS - 1)).is_empty());
        assert_eq!(fired(&mut wheel, ms(6)), [2]);
        assert!(fired(&mut wheel, Ticks(7 * NS_PER_MS - 1)).is_empty());
        assert_eq!(fired(&mut wheel, ms(7)), [1]);
        assert!(fired(&mut wheel, Ticks(60_005 * NS_PER_MS - 1)).is_empty());
        assert_eq!(fired(&mut wheel, ms(60_005)), [3]);
        assert!(wheel.is_empty() && wheel.next_deadline().is_none());
    }

    #[test]
    fn a_deadline_in_the_past_fires_at_once_and_the_end_of_time_never() {
        let mut wheel = Wheel::new();
        wheel.insert(ms(100), Ticks(u64::MAX), 9);
        wheel.insert(ms(100), ms(3), 1);
        assert!(wheel.next_deadline().unwrap() <= ms(100));
        assert_eq!(fired(&mut wheel, ms(100)), [1]);
        assert!(fired(&mut wheel, ms(1 << 40)).is_empty());
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn a_crowd_is_reported_in_bounded_pieces() {
        let mut wheel = Wheel::new();
        let timers: Vec<_> = (0..10_000).map(|key| wheel.insert(ms(1), ms(300_000 + key as u64 % 3), key)).collect();
        wheel.cancel(timers[5]);
        let (mut seen, mut calls) = (vec![], 0);
        while wheel.expire_some(ms(300_002), 1000, |key| seen.push(key)) {
            calls += 1;
            assert!(wheel.next_deadline().unwrap() <= ms(300_002));
            if let Some(&timer) = timers.iter().find(|t| wheel.entries[t.0 as usize].level != FREE) {
                wheel.cancel(timer);
            }
        }
        assert!(calls >= 9);
        assert!(seen.len() + calls + 1 == 10_000 && wheel.is_empty());
        assert_eq!(wheel.entries.capacity(), 0);
    }

    #[test]
    fn an_unused_wheel_is_small() {
        assert!(size_of::<Wheel<u32>>() <= 160);
        assert!(size_of::<WheelEntry<u32>>() <= 24);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { in_ns: u64 },
        Cancel { nth: usize },
        Reset { nth: usize, in_ns: u64 },
        Expire { after_ns: u64, limit: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = prop_oneof![0..3 * NS_PER_MS, 0..100 * NS_PER_MS, 0..100_000 * NS_PER_MS, 0..u64::MAX / 4];
        let step = prop_oneof![
            4 => span.clone().prop_map(|in_ns| Step::Insert { in_ns }),
            1 => any::<usize>().prop_map(|nth| Step::Cancel { nth }),
            1 => (any::<usize>(), span.clone()).prop_map(|(nth, in_ns)| Step::Reset { nth, in_ns }),
            3 => (prop_oneof![0..2 * NS_PER_MS, 0..200 * NS_PER_MS, 0..200_000 * NS_PER_MS],
                  prop_oneof![1..4usize, Just(usize::MAX)])
                .prop_map(|(after_ns, limit)| Step::Expire { after_ns, limit }),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn it_reports_what_a_sorted_list_would(steps in steps(), start in 0u64..1 << 50) {
            let mut wheel = Wheel::new();
            let mut model: Vec<(u64, u32, TimerId)> = vec![];
            let mut now = start;
            for (key, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert { in_ns } => {
                        let timer = wheel.insert(Ticks(now), Ticks(now.saturating_add(in_ns)), key as u32);
                        model.push((now.saturating_add(in_ns), key as u32, timer));
                    }
                    Step::Cancel { nth } => {
                        if !model.is_empty() {
                            let (_, key, timer) = model.swap_remove(nth % model.len());
                            prop_assert_eq!((*wheel.get(timer), wheel.cancel(timer)), (key, key));
                        }
                    }
                    Step::Reset { nth, in_ns } => {
                        if !model.is_empty() {
                            let at = nth % model.len();
                            model[at].0 = now.saturating_add(in_ns);
                            wheel.reset(model[at].2, Ticks(now.saturating_add(in_ns)));
                        }
                    }
                    Step::Expire { after_ns, limit } => {
                        now += after_ns;
                        let mut seen = vec![];
                        let more = wheel.expire_some(Ticks(now), limit, |key| seen.push(key));
                        for key in &seen {
                            let at = model.iter().position(|m| m.1 == *key).expect("reported once");
                            prop_assert!(model.swap_remove(at).0 <= now, "early");
                        }
                        let now_ms = now / NS_PER_MS;
                        let due = model.iter().filter(|m| m.0.div_ceil(NS_PER_MS) <= now_ms).count();
                        prop_assert!(more || due == 0, "late");
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                let earliest = model.iter().map(|m| m.0.div_ceil(NS_PER_MS)).min();
                match (wheel.next_deadline(), earliest) {
                    (Some(at), Some(earliest)) => prop_assert!(at.0 / NS_PER_MS <= earliest.max(now / NS_PER_MS)),
                    (None, None) => {}
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }
}
