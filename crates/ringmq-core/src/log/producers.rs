//! Idempotent producers of one partition, derived from the log: the next sequence of each, and the places of its last batches, so that a
//! repeat is answered with the place of the original instead of being stored again (rule 9).
//!
//! ```text
//! batch header: producer id P, first sequence F, num N   ->   next of P = F + N, [.., place of this batch], last used
//! asked for F, N:  F == next        new               F + N <= next   a repeat, of one of the last five or of an older one
//!                  F > next         a gap             else            overlaps stored sequences
//!                  P not known      new when F == 0, else refused
//! ```
//! A table is a fold of [`Producers::count`] over the batch headers in log order. So the partition's leader, its replicas and a recovery
//! have the same table, a truncated batch was never counted, and a snapshot only names the end up to which its table counts. Even the
//! time by which a producer expires is the log's. A log whose beginning retention removed lacks the producers of the removed batches:
//! the leader tells them ([`Producers::adopt`]).
//!
//! **Consequence of forgetting.** A producer that is not in the table (the least recently used one above the limit, or one that wrote
//! nothing for the expiry) and continues with a sequence above 0 is refused with [`SequenceError::UnknownProducer`]: it is unknown
//! whether its batch is stored, and nothing is stored twice. Only the very first batch of a forgotten producer, sequence 0, looks like
//! the first batch of a new one: a client that still repeats it stores it, and its repeats behind it, again. So a client gives up on its
//! first batch after a time far below the expiry, and takes a new random id after [`SequenceError::UnknownProducer`].

use crate::format::batch::BatchHeader;
use crate::format::producer::{BatchPlace, PRODUCERS_MAX, Producer, Sequence, SequenceError, SequenceVerdict};

use crate::base::ProducerId;
use crate::config::Settings;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerLimits {
    /// Producers of a partition.
    pub max: usize,
    pub expiry_ms: u64,
}

impl From<&Settings> for ProducerLimits {
    fn from(settings: &Settings) -> Self {
        let max = usize::try_from(settings.max_producers).unwrap_or(PRODUCERS_MAX);
        ProducerLimits { max: max.clamp(1, PRODUCERS_MAX), expiry_ms: settings.producer_expiry_ms }
    }
}

impl Default for ProducerLimits {
    fn default() -> Self {
        ProducerLimits::from(&Settings::default())
    }
}

/// The producer of a batch, as it was before that was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Start offset of the batch.
    pub offset: i64,
    id: ProducerId,
    was: Option<Producer>,
}

/// The table of one partition; see the module's description. Empty, it has allocated nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producers {
    limits: ProducerLimits,
    /// Ordered, as clients choose the ids: a hash could be attacked.
    by_id: BTreeMap<ProducerId, Producer>,
    /// Producers by the offset of their last batch: the least recently used first.
    by_use: BTreeMap<i64, ProducerId>,
}

impl Producers {
    pub fn new(limits: ProducerLimits) -> Self {
        assert!(limits.max > 0, "a table has room for a producer");
        Producers { limits, by_id: BTreeMap::new(), by_use: BTreeMap::new() }
    }

    /// Restores the list of [`Producers::iter`].
    pub fn restore(limits: ProducerLimits, list: &[Producer]) -> Self {
        let mut table = Producers::new(limits);
        list.iter().for_each(|&p| table.insert(p));
        table.forget_some();
        table
    }

    pub fn limits(&self) -> ProducerLimits {
        self.limits
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The least recently used first.
    pub fn iter(&self) -> impl Iterator<Item = &Producer> {
        self.by_use.values().filter_map(|id| self.by_id.get(id))
    }

    /// Judges a batch of `num` messages. Changes nothing.
    pub fn judge(&self, sequence: Sequence, num: u32) -> Result<SequenceVerdict, SequenceError> {
        let end = sequence.first.checked_add(num as u64).ok_or(SequenceError::TooHigh)?;
        let Some(producer) = self.by_id.get(&sequence.producer) else {
            return if sequence.first == 0 { Ok(SequenceVerdict::New) } else { Err(SequenceError::UnknownProducer) };
        };
        let expected = producer.next;
        match sequence.first.cmp(&expected) {
            std::cmp::Ordering::Equal => Ok(SequenceVerdict::New),
            std::cmp::Ordering::Greater => Err(SequenceError::Gap { expected, found: sequence.first }),
            std::cmp::Ordering::Less if end > expected => {
                Err(SequenceError::Overlap { expected, first: sequence.first, last: end - 1 })
            }
            std::cmp::Ordering::Less => producer.find(sequence.first, num),
        }
    }

    /// Counts the next batch of the log. A batch that was counted before, or has no producer, changes nothing; so a part of the log may
    /// be walked again.
    ///
    /// The log is right: if a batch does not continue its producer's sequences (damage destroyed the batches between, or the producer
    /// was forgotten), the producer continues from this batch.
    pub fn count(&mut self, h: &BatchHeader) {
        let Some(id) = ProducerId::new(h.producer_id.get()).filter(|_| !h.is_lost()) else { return };
        let newest = self.by_use.last_key_value().map(|(&offset, id)| (offset, self.by_id[id].last_unix_ns));
        if newest.is_some_and(|(offset, _)| h.offset.get() <= offset) {
            return;
        }
        let now = newest.map_or(i64::MIN, |n| n.1).max(h.base_unix_ns.get());
        let (first, place) = (h.first_sequence.get(), BatchPlace { at: h.start(), num: h.num.get() });
        let next = first.saturating_add(place.num as u64);
        let known = self.by_id.get(&id).copied();
        let mut producer = match known.filter(|p| p.next == first) {
            Some(known) => known,
            None => Producer::unplaced(id, next, now),
        };
        if let Some(known) = known {
            self.by_use.remove(&known.last_offset());
        }
        producer.push(place);
        (producer.next, producer.last_unix_ns) = (next, now);
        self.insert(producer);
        self.forget_some();
    }

    /// State that counting this batch is going to change; `None`: none.
    pub fn before(&self, h: &BatchHeader) -> Option<Before> {
        let id = ProducerId::new(h.producer_id.get()).filter(|_| !h.is_lost())?;
        let offset = h.offset.get();
        let is_new = self.by_use.last_key_value().is_none_or(|(newest, _)| offset > *newest);
        is_new.then(|| Before { offset, id, was: self.by_id.get(&id).copied() })
    }

    /// Undoes the last count. A producer that was forgotten for it stays forgotten.
    pub fn take_back(&mut self, before: Before) {
        if let Some(producer) = self.by_id.remove(&before.id) {
            self.by_use.remove(&producer.last_offset());
        }
        if let Some(was) = before.was {
            self.insert(was);
        }
    }

    /// Whether some producer has a batch at or behind `offset`.
    pub fn is_used_from(&self, offset: i64) -> bool {
        self.by_use.range(offset..).next().is_some()
    }

    /// Adds the producers of another table that are not in this one.
    pub fn add_missing(&mut self, other: &Producers) {
        let missing: Vec<Producer> = other.iter().copied().filter(|p| !self.by_id.contains_key(&p.id)).collect();
        missing.into_iter().for_each(|p| self.insert(p));
    }

    /// The producers whose last batch lies below `offset`: the table with which a walk from there begins.
    pub fn below(&self, offset: i64) -> Producers {
        let list: Vec<Producer> = self.iter().copied().filter(|p| p.last_offset() < offset).collect();
        Producers::restore(self.limits, &list)
    }

    /// Producers whose last batch is below `offset`, each with that batch alone: unknown to a log that begins there. The
    /// `max` that were used last, in order.
    pub fn told_before(&self, offset: i64, max: usize) -> Vec<Producer> {
        let before: Vec<&Producer> = self.iter().filter(|p| p.last_offset() < offset).collect();
        let newest = &before[before.len().saturating_sub(max)..];
        newest.iter().filter_map(|p| Producer::new(p.id, p.next, p.last_unix_ns, &p.places()[p.places().len() - 1..])).collect()
    }

    /// Takes in producers of another replica whose batches all stand below `start`, where this log begins and does not show them. Returns
    /// the producers that were not known here.
    pub fn adopt(&mut self, list: &[Producer], start: i64) -> Vec<Producer> {
        let mut adopted = vec![];
        for &(mut p) in list.iter().filter(|p| p.last_offset() < start) {
            let at = p.last_offset();
            if self.by_id.contains_key(&p.id) || self.by_use.contains_key(&at) {
                continue;
            }
            // The time of the log ascends with it.
            let time_of = |used: Option<(&i64, &ProducerId)>| used.map(|(_, id)| self.by_id[id].last_unix_ns);
            let (before, behind) = (time_of(self.by_use.range(..at).next_back()), time_of(self.by_use.range(at..).next()));
            p.last_unix_ns = p.last_unix_ns.max(before.unwrap_or(i64::MIN)).min(behind.unwrap_or(i64::MAX));
            self.insert(p);
            adopted.push(p);
        }
        self.forget_some();
        adopted.retain(|p| self.by_id.contains_key(&p.id));
        adopted
    }

    /// The log was truncated to `to`, and batches behind that cannot be [taken back](Producers::take_back). A producer goes back to its
    /// last batch before `to`; its remembered batches are contiguous. A producer without a remembered batch before `to` is forgotten,
    /// and its repeats are refused. So are those of a producer that was forgotten for a truncated batch.
    pub fn truncate(&mut self, to: i64) {
        let gone = self.by_use.split_off(&to);
        let mut kept: Vec<Producer> = vec![];
        for mut producer in gone.into_values().filter_map(|id| self.by_id.remove(&id)) {
            while producer.places().last().is_some_and(|p| p.at.offset >= to) && producer.pop() {}
            if !producer.places().is_empty() {
                kept.push(producer);
            }
        }
        kept.sort_by_key(Producer::last_offset);
        for mut producer in kept {
            // When it was used is not known any more: as early as it can be.
            let before = self.by_use.range(..producer.last_offset()).next_back();
            let before = before.map(|(_, id)| self.by_id[id].last_unix_ns);
            let behind = self.by_use.range(producer.last_offset()..).next().map(|(_, id)| self.by_id[id].last_unix_ns);
            producer.last_unix_ns = before.or(behind).unwrap_or(producer.last_unix_ns);
            self.insert(producer);
        }
    }

    fn insert(&mut self, producer: Producer) {
        self.by_use.insert(producer.last_offset(), producer.id);
        self.by_id.insert(producer.id, producer);
    }

    /// Forgets producers beyond the limits, but never the producer of the newest batch.
    fn forget_some(&mut self) {
        let Some(newest) = self.by_use.last_key_value().and_then(|(_, id)| self.by_id.get(id)) else { return };
        let expiry = i64::try_from(self.limits.expiry_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let kept_from = newest.last_unix_ns.saturating_sub(expiry);
        while let Some((&offset, id)) = self.by_use.first_key_value() {
            let is_old = self.by_id.get(id).is_none_or(|p| p.last_unix_ns < kept_from);
            if !is_old && self.by_id.len() <= self.limits.max {
                return;
            }
            self.by_id.remove(id);
            self.by_use.remove(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Position;
    use crate::base::{Epoch, LogId, PartitionId, TopicId};
    use crate::format::batch::{Batch, BatchBuilder, Stamp};
    use proptest::prelude::*;

    fn id(n: u64) -> ProducerId {
        ProducerId::new(n).expect("not zero")
    }

    fn header(at: Position, producer: u64, first: u64, num: u32, unix_ns: i64) -> BatchHeader {
        let mut builder = BatchBuilder::default();
        (0..num).for_each(|_| builder.push(unix_ns, b""));
        let stamp = Stamp { topic_id: TopicId::default(), partition: PartitionId::default(), epoch: Epoch(1), at, prev_crc: 0 };
        let mut h = builder.seal(stamp).header;
        (h.producer_id, h.first_sequence) = (producer.into(), first.into());
        h
    }

    struct Log {
        end: Position,
        headers: Vec<BatchHeader>,
        table: Producers,
    }

    impl Log {
        fn new(max: usize, expiry_ms: u64) -> Log {
            let table = Producers::new(ProducerLimits { max, expiry_ms });
            Log { end: Position::START, headers: vec![], table }
        }

        fn append(&mut self, producer: u64, first: u64, num: u32, unix_ns: i64) -> Position {
            let h = header(self.end, producer, first, num, unix_ns);
            let at = self.end;
            self.end = h.end();
            self.table.count(&h);
            self.headers.push(h);
            at
        }

        fn judge(&self, producer: u64, first: u64, num: u32) -> Result<SequenceVerdict, SequenceError> {
            self.table.judge(Sequence { producer: id(producer), first }, num)
        }
    }

    #[test]
    fn what_a_later_start_does_not_tell_is_adopted() {
        let mut whole = Log::new(9, 1_000_000);
        whole.append(1, 0, 2, 100);
        whole.append(2, 0, 1, 200);
        let last = whole.append(1, 2, 3, 300);
        let start = whole.append(3, 0, 1, 150);
        whole.append(4, 0, 1, 500);
        let told = whole.table.told_before(start.offset, 9);
        assert_eq!(told.iter().map(|p| (p.id, p.places().len())).collect::<Vec<_>>(), [(id(2), 1), (id(1), 1)]);
        assert_eq!(whole.table.told_before(start.offset, 1), told[1..], "those that were used last");
        let mut later = Log::new(3, 1_000_000);
        later.end = start;
        later.append(3, 0, 1, 150);
        later.append(4, 0, 1, 500);
        assert_eq!(later.judge(1, 5, 1), Err(SequenceError::UnknownProducer));
        let adopted = later.table.adopt(&told, start.offset);
        assert_eq!(adopted.iter().map(|p| p.id).collect::<Vec<_>>(), [id(1)], "three are remembered, the last ones");
        assert_eq!(later.judge(1, 5, 1), Ok(SequenceVerdict::New));
        assert_eq!(later.judge(1, 2, 3), Ok(SequenceVerdict::Repeat { at: Some(last), upto: last.offset }));
        assert_eq!(later.judge(1, 0, 2), Ok(SequenceVerdict::Repeat { at: None, upto: last.offset }));
        let used: Vec<i64> = later.table.iter().map(|p| p.last_unix_ns).collect();
        assert_eq!(used, [150, 150, 500], "the log's time ascends");
        // Neither known producers nor those of its own log, now or later.
        assert!(later.table.adopt(&told[1..], start.offset).is_empty());
        let everything: Vec<Producer> = whole.table.iter().copied().collect();
        assert!(Log::new(9, 1_000_000).table.adopt(&everything, last.offset).len() == 1);
    }

    #[test]
    fn a_producer_goes_on_where_it_was_and_a_repeat_finds_its_original() {
        let mut log = Log::new(10, 1000);
        assert_eq!(log.judge(7, 0, 3), Ok(SequenceVerdict::New));
        assert_eq!(log.judge(7, 1, 3), Err(SequenceError::UnknownProducer));
        let places: Vec<Position> = (0..7u64).map(|i| log.append(7, 3 * i, 3, 5)).collect();
        assert_eq!(log.judge(7, 21, 9), Ok(SequenceVerdict::New));
        assert_eq!(log.judge(7, 22, 1), Err(SequenceError::Gap { expected: 21, found: 22 }));
        assert_eq!(log.judge(7, 20, 2), Err(SequenceError::Overlap { expected: 21, first: 20, last: 21 }));
        for i in 2..7 {
            let at = places[i as usize];
            assert_eq!(log.judge(7, 3 * i, 3), Ok(SequenceVerdict::Repeat { at: Some(at), upto: at.offset }));
        }
        // Older ones are known to be there, not where; the oldest known one bounds them.
        assert_eq!(log.judge(7, 3, 3), Ok(SequenceVerdict::Repeat { at: None, upto: places[2].offset }));
        for (first, num) in [(6, 2), (5, 2), (5, 4), (18, 2), (15, 6)] {
            let overlap = SequenceError::Overlap { expected: 21, first, last: first + num as u64 - 1 };
            assert_eq!(log.judge(7, first, num), Err(overlap), "{first} {num}");
        }
        assert_eq!(log.judge(7, u64::MAX, 2), Err(SequenceError::TooHigh));
        assert_eq!(log.judge(8, u64::MAX, 1), Err(SequenceError::TooHigh));
    }

    #[test]
    fn the_least_recently_used_is_forgotten_first_and_the_idle_one_by_the_log_s_time() {
        let mut log = Log::new(2, 1);
        log.append(1, 0, 1, 0);
        log.append(2, 0, 1, 0);
        log.append(1, 1, 1, 0);
        log.append(3, 0, 1, 0);
        assert_eq!(log.table.iter().map(|p| p.id.get()).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(log.judge(2, 1, 1), Err(SequenceError::UnknownProducer));
        log.append(3, 1, 1, 1_000_000);
        assert_eq!(log.table.len(), 2, "idle for the expiry, not longer");
        // Batches without a producer do not expire producers; the producer's own batch finds itself.
        log.append(0, 0, 5, 9_000_000);
        assert_eq!(log.judge(1, 2, 1), Ok(SequenceVerdict::New));
        log.append(1, 2, 1, 9_000_000);
        assert_eq!(log.table.iter().map(|p| (p.id.get(), p.next)).collect::<Vec<_>>(), [(1, 3)]);
        // A clock that goes back makes no producer younger.
        log.append(3, 0, 1, 0);
        assert_eq!(log.table.iter().map(|p| p.last_unix_ns).collect::<Vec<_>>(), [9_000_000; 2]);
    }

    #[test]
    fn lost_batches_name_nobody_and_what_follows_damage_is_believed() {
        let mut log = Log::new(5, 1000);
        log.append(7, 0, 4, 1);
        let to = Position { offset: log.end.offset + 500, count: log.end.count + 6, log_id: LogId(log.end.log_id.0 + 6) };
        let lost = Batch::lost(TopicId::default(), PartitionId::default(), Epoch(1), log.end, to, 0).expect("there is room");
        log.table.count(&lost.header);
        log.end = to;
        assert_eq!(log.judge(7, 4, 1), Ok(SequenceVerdict::New), "lost, so it may come again");
        let at = log.append(7, 10, 2, 1);
        assert_eq!(log.judge(7, 12, 1), Ok(SequenceVerdict::New));
        assert_eq!(log.judge(7, 4, 6), Ok(SequenceVerdict::Repeat { at: None, upto: at.offset }));
        let last = log.append(7, u64::MAX - 1, 9, 1);
        assert_eq!(log.judge(7, 1, 1), Ok(SequenceVerdict::Repeat { at: None, upto: last.offset }));
    }

    proptest! {
        /// A table that is encoded anywhere and continued (also from an earlier place, as recovery may) is the table of the whole log;
        /// and its verdict on every batch is that of a plain list of all appended batches.
        #[test]
        fn a_table_is_a_fold_of_the_log(
            steps in proptest::collection::vec((0u64..5, 1u32..4, 0i64..3), 1..60),
            max in 1usize..5,
            cut in any::<proptest::sample::Index>(),
            back in 0usize..10,
        ) {
            let mut log = Log::new(max, 1);
            let mut next = [0u64; 5];
            let mut now = 0;
            for &(producer, num, pause) in &steps {
                now += pause * 500_000;
                if producer > 0 && log.judge(producer, next[producer as usize], num) == Err(SequenceError::UnknownProducer) {
                    next[producer as usize] = 0;
                }
                log.append(producer, next[producer as usize], num, now);
                next[producer as usize] += if producer == 0 { 0 } else { num as u64 };
            }
            let cut = cut.index(log.headers.len());
            let mut first = Producers::new(log.table.limits);
            log.headers[..cut].iter().for_each(|h| first.count(h));
            let mut bytes = vec![];
            first.iter().for_each(|p| p.encode(&mut bytes));
            prop_assert_eq!(bytes.len(), first.iter().map(Producer::encoded_len).sum::<usize>());
            let (mut list, mut rest) = (vec![], &bytes[..]);
            while !rest.is_empty() {
                let (p, len) = Producer::decode(rest).expect("it was just encoded");
                list.push(p);
                rest = &rest[len..];
            }
            let mut second = Producers::restore(log.table.limits, &list);
            prop_assert_eq!(&second, &first);
            log.headers[cut.saturating_sub(back)..].iter().for_each(|h| second.count(h));
            prop_assert_eq!(&second, &log.table);
            prop_assert!(second.len() <= max);
            for p in second.iter() {
                let own = |h: &&BatchHeader| h.producer_id.get() == p.id.get();
                let newest = log.headers.iter().rev().find(own).expect("it wrote");
                prop_assert_eq!(p.next, newest.first_sequence.get() + newest.num.get() as u64);
                let mut from = p.next;
                for (place, h) in p.places().iter().rev().zip(log.headers.iter().rev().filter(own)) {
                    from -= place.num as u64;
                    prop_assert_eq!((place.at, from), (h.start(), h.first_sequence.get()));
                    let sequence = Sequence { producer: p.id, first: from };
                    let expected = SequenceVerdict::Repeat { at: Some(place.at), upto: place.at.offset };
                    prop_assert_eq!(second.judge(sequence, place.num), Ok(expected));
                }
            }
        }

        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok((p, len)) = Producer::decode(&bytes) {
                prop_assert!(len <= bytes.len());
                let mut table = Producers::restore(ProducerLimits { max: 1, expiry_ms: 0 }, &[p]);
                for first in [0, p.next, p.next.wrapping_sub(3)] {
                    let _ = table.judge(Sequence { producer: p.id, first }, 3);
                }
                table.count(&header(Position::START, 5, u64::MAX, 3, i64::MIN));
            }
        }
    }
}
