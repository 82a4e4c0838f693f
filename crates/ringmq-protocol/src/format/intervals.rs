//! Confirmed intervals as bytes, in snapshots, journal records and peer messages: each as its distance to the one before. Every
//! second message of a batch is a byte each.
//!
//! ```text
//! bits 0..2  ids between the end before and the start, 0 to 6;  7: a varint says so
//! bits 3..5  messages, 1 to 7;                                  0: a varint says so
//! bit 6      a varint follows: bytes from the offset of the end before to that of this end, zigzag
//! bit 7      a varint follows: by how much more the count has grown than the log id, zigzag
//! ```
//! The varints stand in this order. The first interval counts from the cursor's confirmed position.

use crate::base::{LogId, Position};
use crate::format::cursor::Interval;
use crate::format::files::Bad;

/// Bytes of one interval, at most.
pub const INTERVAL_MAX: usize = 1 + 4 * VARINT_MAX;
const VARINT_MAX: usize = (u64::BITS as usize).div_ceil(7);

const GAP_LONG: u8 = 7;
const LEN_SHIFT: u32 = 3;
const LEN_MAX: u64 = 7;
const HAS_OFFSET: u8 = 1 << 6;
const HAS_COUNT: u8 = 1 << 7;

/// Appends an interval behind one that ends at `before`.
pub fn push(out: &mut Vec<u8>, before: Position, interval: &Interval) {
    let Interval { start, end } = *interval;
    let gap = start.0.wrapping_sub(before.log_id.0);
    let len = end.log_id.0.wrapping_sub(start.0);
    let offset = end.offset.wrapping_sub(before.offset);
    let ids = end.log_id.0.wrapping_sub(before.log_id.0) as i64;
    let count = end.count.wrapping_sub(before.count).wrapping_sub(ids);
    let short_gap = if gap < GAP_LONG as u64 { gap as u8 } else { GAP_LONG };
    let short_len = if (1..=LEN_MAX).contains(&len) { len as u8 } else { 0 };
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    out.push(short_gap | short_len << LEN_SHIFT | flag(offset != 0, HAS_OFFSET) | flag(count != 0, HAS_COUNT));
    if short_gap == GAP_LONG {
        push_varint(out, gap);
    }
    if short_len == 0 {
        push_varint(out, len);
    }
    if offset != 0 {
        push_varint(out, zigzag(offset));
    }
    if count != 0 {
        push_varint(out, zigzag(count));
    }
}

/// Takes an interval behind one that ends at `before` off the front of `bytes`.
pub fn take(bytes: &mut &[u8], before: Position) -> Result<Interval, Bad> {
    let (&head, rest) = bytes.split_first().ok_or(Bad::Short)?;
    *bytes = rest;
    let (short_gap, short_len) = (head & GAP_LONG, head >> LEN_SHIFT & LEN_MAX as u8);
    let gap = if short_gap == GAP_LONG { take_varint(bytes)? } else { short_gap as u64 };
    let len = if short_len == 0 { take_varint(bytes)? } else { short_len as u64 };
    let offset = if head & HAS_OFFSET != 0 { unzigzag(take_varint(bytes)?) } else { 0 };
    let count = if head & HAS_COUNT != 0 { unzigzag(take_varint(bytes)?) } else { 0 };
    let start = before.log_id.0.checked_add(gap).ok_or(Bad::Bounds)?;
    let end = start.checked_add(len).filter(|&end| end > start && end <= LogId::MAX.0 + 1).ok_or(Bad::Bounds)?;
    let ids = (end - before.log_id.0) as i64;
    let end = Position {
        offset: before.offset.wrapping_add(offset),
        count: before.count.wrapping_add(ids).wrapping_add(count),
        log_id: LogId(end),
    };
    Ok(Interval { start: LogId(start), end })
}

/// Bytes of intervals, the first of which lies behind `before`.
pub fn len(mut before: Position, intervals: &[Interval]) -> usize {
    let mut scratch = Vec::with_capacity(INTERVAL_MAX);
    let len = |interval: &Interval| {
        scratch.clear();
        push(&mut scratch, before, interval);
        before = interval.end;
        scratch.len()
    };
    intervals.iter().map(len).sum()
}

/// Number of the first intervals that fit `bytes_max`, at least one.
pub fn fitting(mut before: Position, intervals: &[Interval], bytes_max: usize) -> usize {
    let (mut scratch, mut bytes) = (Vec::with_capacity(INTERVAL_MAX), 0);
    let fits = |interval: &&Interval| {
        scratch.clear();
        push(&mut scratch, before, interval);
        before = interval.end;
        bytes += scratch.len();
        bytes <= bytes_max
    };
    intervals.iter().take_while(fits).count().max(1).min(intervals.len())
}

fn zigzag(n: i64) -> u64 {
    (n << 1 ^ n >> 63) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

fn push_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, Bad> {
    let mut n = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Bad::Short)?;
        *bytes = rest;
        let part = (byte & 0x7f) as u64;
        if part << shift >> shift != part {
            return Err(Bad::Bounds);
        }
        n |= part << shift;
        if byte < 0x80 {
            return Ok(n);
        }
    }
    Err(Bad::Bounds)
}

#[cfg(test)]
mod tests {
    use crate::format::intervals::*;
    use proptest::prelude::*;

    const START: Position = Position { offset: 4096, count: 9, log_id: LogId(10) };

    fn encoded(intervals: &[Interval]) -> Vec<u8> {
        let (mut out, mut before) = (vec![], START);
        for interval in intervals {
            push(&mut out, before, interval);
            before = interval.end;
        }
        assert_eq!(len(START, intervals), out.len());
        out
    }

    #[test]
    fn every_second_message_is_a_byte_and_one_of_a_hundred_a_few() {
        let at = |id: u64| Position { offset: (id / 100) as i64 * 20_000, count: id as i64 - 1, log_id: LogId(id) };
        let each = |n: u64| (1..1000).map(|i| Interval { start: LogId(n * i + 1), end: at(n * i + n) }).collect::<Vec<_>>();
        assert_eq!(encoded(&each(2)[100..200]).len(), 100 + 5 + 2 * 3, "two batches begin, and the first interval is far");
        assert!(encoded(&each(100)).len() <= 6 * 1000);
    }

    #[test]
    fn what_is_no_interval_is_refused() {
        for bad in [
            &[][..],
            &[0],
            &[0, 0],
            &[7],
            &[7, 0x80],
            &[8 | HAS_OFFSET],
            &[7 | 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        ] {
            assert!(take(&mut &bad[..], START).is_err(), "{bad:?}");
        }
        let long = [7 | 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2];
        assert_eq!(take(&mut &long[..], START), Err(Bad::Bounds));
    }

    proptest! {
        #[test]
        fn intervals_come_back_as_they_went(
            parts in prop::collection::vec((0u64..9, 1u64..9, 0i64..3, -2i64..3, any::<bool>(), any::<i64>()), 0..50),
        ) {
            let mut before = START;
            let mut intervals = vec![];
            for (gap, ids, offset, count, is_wild, wild) in parts {
                let gap = if is_wild { wild as u64 >> 20 } else { gap };
                let start = before.log_id.0.saturating_add(gap).min(LogId::MAX.0 - 1000);
                if start < before.log_id.0 { break; }
                let offset = if is_wild { wild } else { before.offset + offset * 4096 };
                let end = Position { offset, count: before.count.wrapping_add(count + ids as i64), log_id: LogId(start + ids) };
                intervals.push(Interval { start: LogId(start), end });
                before = end;
            }
            let bytes = encoded(&intervals);
            let (mut rest, mut before) = (&bytes[..], START);
            for interval in &intervals {
                prop_assert_eq!(&take(&mut rest, before).unwrap(), interval);
                before = interval.end;
            }
            prop_assert!(rest.is_empty());
            for max in [0, 1, 10, 100, 5000] {
                let n = fitting(START, &intervals, max);
                prop_assert!(n == intervals.len() || n == 1 || len(START, &intervals[..n]) <= max);
                prop_assert!(n == intervals.len() || len(START, &intervals[..n + 1]) > max);
            }
        }
    }
}
