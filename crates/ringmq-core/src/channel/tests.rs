//! One behaviour of a channel per test. Tests of ranged clients are in `range_tests`, random mixtures in `model`.

use super::{Channel, ChannelOptions, NotInFlight, Run, Sink, Source};
use crate::base::{ChannelName, ConnId, CoreId, Epoch, LogId, PartitionId, Position, SubId, Ticks, TopicId};
use crate::format::batch::{Batch, BatchBuilder, CopyOf, Message, Messages, Stamp};
use crate::format::cursor::{CursorImage, Interval};
use crate::log::fetch::Fetch;
use crate::{base::client::ClientInfo, seam::message::SubOptions};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

pub(super) const A: SubId = SubId { core: CoreId(0), conn: ConnId(1) };
pub(super) const B: SubId = SubId { core: CoreId(0), conn: ConnId(2) };
pub(super) const C: SubId = SubId { core: CoreId(1), conn: ConnId(1) };
pub(super) const TIMEOUT_MS: u64 = 1000;

pub(super) fn ms(ms: u64) -> Ticks {
    Ticks(ms * 1_000_000)
}

/// Batches by offset, and answers that stand in their place.
#[derive(Default)]
pub(super) struct Log {
    pub batches: BTreeMap<i64, Batch>,
    end: Option<Position>,
    pub answers: HashMap<i64, Fetch>,
    pub fetches: usize,
    pub unix_ns: i64,
}

impl Log {
    pub fn new(batches: &[usize]) -> Self {
        let mut log = Log::default();
        for &num in batches {
            log.publish(num);
        }
        log
    }

    pub fn end(&self) -> Position {
        self.end.unwrap_or(Position::START)
    }

    /// Appends `num` messages as a batch; returns its offset.
    pub fn publish(&mut self, num: usize) -> i64 {
        self.publish_due(&vec![None; num])
    }

    /// A copy for a channel, due at that millisecond.
    pub fn publish_copy(&mut self, channel: &str, log_id: LogId, attempts: u16, due_ms: i64) {
        let mut builder = BatchBuilder::default();
        builder.push_copy(1, due_ms * 1_000_000, CopyOf { log_id, unix_ns: 3, attempts, channel }, b"body");
        self.add(builder);
    }

    /// A message for each due time.
    pub fn publish_due(&mut self, due_unix_ns: &[Option<i64>]) -> i64 {
        let mut builder = BatchBuilder::default();
        due_unix_ns.iter().for_each(|&due| builder.push_due(1, due, b"body"));
        self.add(builder)
    }

    fn add(&mut self, mut builder: BatchBuilder) -> i64 {
        let at = self.end();
        let stamp = Stamp { topic_id: TopicId([1; 16]), partition: PartitionId(2), epoch: Epoch(1), at, prev_crc: 0 };
        let batch = builder.seal(stamp);
        self.end = Some(batch.header.end());
        self.batches.insert(at.offset, batch);
        at.offset
    }
}

impl Source for Log {
    fn unix_ns(&self) -> i64 {
        self.unix_ns
    }

    fn fetch(&mut self, offset: i64) -> Fetch {
        self.fetches += 1;
        match (self.answers.get(&offset), self.batches.get(&offset)) {
            (Some(answer), _) => answer.clone(),
            (None, Some(batch)) => Fetch::Batch(batch.clone()),
            (None, None) => Fetch::End,
        }
    }
}

/// Deliveries by client, message and attempt; and the clients that are full.
#[derive(Default)]
pub(super) struct DeliveryLog {
    pub messages: Vec<(SubId, u64, u16)>,
    /// First and last.
    pub runs: Vec<(SubId, u64, u64, u16)>,
    pub full: HashSet<SubId>,
}

impl DeliveryLog {
    pub fn take(&mut self) -> Vec<(SubId, u64, u16)> {
        std::mem::take(&mut self.messages)
    }

    pub fn ids(&mut self) -> Vec<u64> {
        self.take().into_iter().map(|m| m.1).collect()
    }
}

impl Sink for DeliveryLog {
    fn deliver(&mut self, sub: SubId, message: &Message<'_>, attempts: u16, _: Option<(i64, u32)>) -> bool {
        let has_room = !self.full.contains(&sub);
        if has_room {
            self.messages.push((sub, message.log_id.0, attempts));
        }
        has_room
    }

    fn deliver_range(&mut self, sub: SubId, run: &Run<'_>) -> bool {
        let header = &run.batch.header;
        assert_eq!((header.partition.get(), run.count), (2, run.first.0 as i64 - 1));
        let mut messages = Messages::resume(run.stored(), run.first, 0);
        assert_eq!(messages.by_ref().count(), run.num as usize);
        assert_eq!(messages.rest_len(), 0);
        let has_room = !self.full.contains(&sub);
        if has_room {
            self.runs.push((sub, run.first.0, run.last().0, run.attempts));
        }
        has_room
    }
}

pub(super) fn cursor(name: &str) -> CursorImage {
    CursorImage::new(ChannelName::new(name).unwrap(), Epoch(1), 0, Position::START)
}

pub(super) fn channel_at(cursor: CursorImage) -> Channel {
    let options = ChannelOptions {
        max_msg_timeout: Duration::from_millis(2500),
        max_req_timeout: Duration::from_secs(60),
        end_to_end: None,
    };
    Channel::new(options, PartitionId(2), cursor)
}

pub(super) fn channel() -> Channel {
    channel_at(cursor("ch"))
}

pub(super) fn options(sample_rate: u8) -> SubOptions {
    SubOptions {
        msg_timeout_ms: TIMEOUT_MS,
        sample_rate,
        ranged: false,
        ordered: false,
        placed: false,
        client: ClientInfo::default(),
    }
}

pub(super) fn subscribe(channel: &mut Channel, sub: SubId, credit: u32) {
    channel.subscribe(sub, options(0));
    channel.lend(sub, credit);
}

pub(super) fn finish(channel: &mut Channel, sub: SubId, ids: impl IntoIterator<Item = u64>) {
    ids.into_iter().for_each(|id| channel.finish(ms(0), sub, LogId(id)).unwrap());
}

#[test]
fn clients_take_turns_and_a_full_one_stops_nobody() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[4, 20]), DeliveryLog::default());
    [A, B, C].into_iter().for_each(|sub| subscribe(&mut channel, sub, 100));
    channel.lend(B, 0);
    got.full.insert(B);
    assert!(!channel.deliver(ms(1), &mut log, &mut got));
    let to = |sub| got.messages.iter().filter(|m| m.0 == sub).count();
    assert_eq!((to(A), to(B), to(C)), (12, 0, 12));
    assert_eq!(got.messages[..4].iter().map(|m| (m.0, m.1)).collect::<Vec<_>>(), [(A, 1), (C, 2), (A, 3), (C, 4)]);
    got.take();
    got.full.clear();
    log.publish(3);
    channel.deliver(ms(1), &mut log, &mut got);
    assert!(got.take().iter().all(|m| m.0 != B), "blocked until it is said to have room");
    channel.block(B, false);
    log.publish(3);
    channel.deliver(ms(1), &mut log, &mut got);
    assert_eq!(got.take().iter().filter(|m| m.0 == B).count(), 1);
}

#[test]
fn requeued_go_first_then_due_ones_then_the_log() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[3, 3]), DeliveryLog::default());
    subscribe(&mut channel, A, 3);
    channel.deliver(ms(0), &mut log, &mut got);
    channel.requeue(ms(0), A, LogId(1), Duration::from_millis(5)).unwrap();
    channel.requeue(ms(0), A, LogId(3), Duration::from_millis(2)).unwrap();
    channel.requeue(ms(0), A, LogId(2), Duration::ZERO).unwrap();
    assert_eq!((channel.deferred_count(), channel.in_flight_count()), (2, 0));
    channel.tick(Ticks(4_999_999), &mut |_, _| panic!("nothing is in flight"));
    assert_eq!(channel.deferred_count(), 1);
    channel.tick(ms(5), &mut |_, _| panic!("nothing is in flight"));
    got.take();
    channel.lend(A, 5);
    channel.deliver(ms(5), &mut log, &mut got);
    assert_eq!(got.take(), [(A, 2, 2), (A, 3, 2), (A, 1, 2), (A, 4, 1), (A, 5, 1)]);
}

#[test]
fn a_timeout_comes_in_time_and_touch_has_its_limit() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[1]), DeliveryLog::default());
    subscribe(&mut channel, A, 9);
    let mut late = vec![];
    channel.deliver(ms(10), &mut log, &mut got);
    channel.tick(Ticks(ms(1010).0 - 1), &mut |sub, _| late.push(sub));
    for at in [1009, 2000, 2500] {
        channel.touch(ms(at), A, LogId(1)).unwrap();
    }
    channel.tick(Ticks(ms(2510).0 - 1), &mut |sub, _| late.push(sub));
    assert_eq!(late, []);
    assert!(channel.deadline().unwrap() <= ms(2510));
    channel.tick(ms(2510), &mut |sub, _| late.push(sub));
    assert_eq!(late, [A]);
    assert_eq!(channel.touch(ms(2510), A, LogId(1)), Err(NotInFlight));
    assert_eq!(channel.finish(ms(2510), A, LogId(1)), Err(NotInFlight));
    channel.deliver(ms(2510), &mut log, &mut got);
    assert_eq!(got.take(), [(A, 1, 1), (A, 1, 2)]);
    assert_eq!(channel.stats(log.end(), false).timeout_count, 1);
}

#[test]
fn the_memory_bound_stops_the_log_but_not_what_waits() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[500, 500]), DeliveryLog::default());
    channel.set_room(100 * size_of::<super::open::Open>());
    subscribe(&mut channel, A, 1000);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    let read = got.take().len() as u64;
    assert!((100..=128).contains(&read) && channel.is_full(log.end()), "{read}");
    assert_eq!(channel.recall(A), 1000 - read as u32);
    // No client is asked for useless credit.
    channel.hungry(log.end(), &mut |_| panic!("nothing may go out"));
    channel.lend(A, 1000);
    channel.requeue(ms(0), A, LogId(5), Duration::ZERO).unwrap();
    assert!(!channel.deliver(ms(0), &mut log, &mut got));
    assert_eq!(got.ids(), [5], "what waits still goes out");
    // Half of them, spread over all: no chunk of memory is free, and the places in it are.
    finish(&mut channel, A, (2..=read).step_by(2));
    assert!(!channel.is_full(log.end()));
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.ids(), (read + 1..=read + read / 2).collect::<Vec<_>>());
    assert!(channel.is_full(log.end()));
    channel.set_room(usize::MAX);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    assert!(got.messages.last().is_some_and(|m| m.1 == 1000) && !channel.is_full(log.end()));
}

#[test]
fn a_channel_with_nothing_open_reads_whatever_its_room() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[500]), DeliveryLog::default());
    channel.set_room(0);
    subscribe(&mut channel, A, 1000);
    for round in 0.. {
        while channel.deliver(ms(0), &mut log, &mut got) {}
        let ids = got.ids();
        assert!(!ids.is_empty() && ids.len() <= 64 && round < 100, "{ids:?}");
        finish(&mut channel, A, ids.iter().copied());
        if ids.last() == Some(&500) {
            break;
        }
    }
    assert_eq!(channel.confirmed(), log.end());
}

#[test]
fn a_restored_cursor_is_stepped_over() {
    let mut log = Log::new(&[10, 10]);
    let at = |log: &Log, id: u64| {
        let batch = log.batches.values().find(|b| (b.header.log_id.get()..=b.header.last_log_id.get()).contains(&id)).unwrap();
        Position { offset: batch.header.offset.get(), count: id as i64 - 1, log_id: LogId(id) }
    };
    let intervals = [2, 4, 6, 8, 10, 12].map(|id| Interval { start: LogId(id), end: at(&log, id + 1) });
    let mut channel = channel_at(CursorImage { intervals: intervals.to_vec(), ..cursor("ch") });
    let mut got = DeliveryLog::default();
    subscribe(&mut channel, A, 6);
    assert_eq!(channel.depth(log.end()), 14);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.ids(), [1, 3, 5, 7, 9, 11]);
    assert_eq!(channel.image().intervals, intervals);
    finish(&mut channel, A, [1, 3, 5, 7]);
    channel.lend(A, 100);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.ids(), (13..=20).collect::<Vec<_>>());
    finish(&mut channel, A, [9, 11].into_iter().chain(13..=20));
    assert_eq!((channel.confirmed(), channel.image().intervals), (log.end(), vec![]));
}

#[test]
fn gaps_cost_less_than_64_bytes_each_and_a_peak_is_given_back() {
    // Alternating, and sparse: every 100th. Delays that all differ, or are one.
    type Delay = fn(u64) -> u64;
    let cases: [(usize, usize, Delay); 4] = [
        (200_000, 2, |_| 60_000),
        (100_000, 2, |n| 30_000 + n % 10_000),
        (20_000, 100, |_| 45_000),
        (56_000, 7, |n| 61_000 + n % 3_000_000),
    ];
    for (case, (gaps, each, delay)) in cases.into_iter().enumerate() {
        // No delay is longer than the message timeout: such a one is a copy in the log.
        let hour = Duration::from_secs(3600);
        let timeouts = ChannelOptions { max_msg_timeout: hour, max_req_timeout: hour, end_to_end: None };
        let mut channel = Channel::new(timeouts, PartitionId(2), cursor("ch"));
        let (mut log, mut got) = (Log::new(&vec![1000; gaps * each / 1000]), DeliveryLog::default());
        channel.subscribe(A, SubOptions { msg_timeout_ms: 3_600_000, ..options(0) });
        channel.lend(A, 1000);
        for first in (1..=(gaps * each) as u64).step_by(1000) {
            while channel.deliver(ms(0), &mut log, &mut got) {}
            got.take();
            for id in first..first + 1000 {
                match id % each as u64 {
                    0 => channel.requeue(ms(first / 1000), A, LogId(id), Duration::from_millis(delay(id))).unwrap(),
                    _ => channel.finish(ms(0), A, LogId(id)).unwrap(),
                }
            }
            channel.take_finished();
            channel.lend(A, 1000);
        }
        let (bytes, all) = (channel.open_bytes(), channel.memory_bytes());
        assert_eq!((channel.deferred_count(), channel.image().intervals.len()), (gaps as u64, gaps - 1));
        assert!(bytes < 64 * gaps, "{} bytes each", bytes as f64 / gaps as f64);
        assert!(all - bytes < 200_000, "{all}");
        let restored = channel_at(channel.image());
        assert!(restored.memory_bytes() < 64 * gaps && restored.depth(log.end()) == gaps as u64);
        // The messages come again, half of them are finished, and their memory is free; then all.
        for part in 0..2 {
            let now = 10_000_000 + part as u64;
            while channel.deadline().is_some_and(|at| at <= ms(now)) {
                channel.tick(ms(now), &mut |_, _| {});
            }
            assert_eq!(channel.depth(log.end()), (gaps / (part + 1)) as u64);
            for _ in 0..gaps / 2000 {
                while channel.deliver(ms(now), &mut log, &mut got) {}
                finish(&mut channel, A, got.ids());
                channel.lend(A, 1000);
            }
            // Where those that are done lie side by side, half of the memory is free, too.
            assert!(case % 2 == 1 && part == 0 || channel.open_bytes() < bytes * (1 - part) * 7 / 10 + 16 * 1024, "{case}");
        }
        assert_eq!(channel.confirmed(), log.end());
    }
}

#[test]
fn sampling_delivers_rate_plus_one_percent_and_confirms_the_rest() {
    for (rate, least, most) in [(0, 10_000, 10_000), (10, 1000, 1200), (50, 4900, 5300), (99, 10_000, 10_000)] {
        let (mut channel, mut log, mut got) = (channel_at(cursor("ch")), Log::new(&[5000, 5000]), DeliveryLog::default());
        channel.subscribe(A, options(rate));
        channel.lend(A, 10_000);
        while channel.deliver(ms(0), &mut log, &mut got) {}
        assert!((least..=most).contains(&got.messages.len()), "{rate}: {}", got.messages.len());
        let first = got.take();
        for &(_, id, _) in &first {
            channel.requeue(ms(0), A, LogId(id), Duration::ZERO).unwrap();
        }
        channel.lend(A, 10_000);
        while channel.deliver(ms(0), &mut log, &mut got) {}
        assert_eq!(got.messages.len(), first.len(), "what was delivered once is owed");
        finish(&mut channel, A, got.ids());
        assert_eq!(channel.confirmed(), log.end());
    }
}

#[test]
fn what_a_leaving_client_had_goes_out_again_at_once() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[5]), DeliveryLog::default());
    subscribe(&mut channel, A, 4);
    channel.deliver(ms(0), &mut log, &mut got);
    finish(&mut channel, A, [2]);
    assert_eq!(channel.unsubscribe(A), 3);
    assert_eq!(channel.unsubscribe(A), 0);
    assert!(channel.deadline().is_none() && !channel.has_clients());
    assert_eq!(channel.finish(ms(0), A, LogId(1)), Err(NotInFlight));
    got.take();
    subscribe(&mut channel, B, 9);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take(), [(B, 1, 2), (B, 3, 2), (B, 4, 2), (B, 5, 1)]);
    assert_eq!(channel.finish(ms(0), A, LogId(1)), Err(NotInFlight));
    finish(&mut channel, B, [1]);
}

#[test]
fn attempts_saturate() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[1]), DeliveryLog::default());
    subscribe(&mut channel, A, 3);
    channel.deliver(ms(0), &mut log, &mut got);
    let (key, _) = channel.backlog.open().iter().next().unwrap();
    channel.backlog.set_attempts(key, u16::MAX - 1);
    for _ in 0..2 {
        channel.requeue(ms(0), A, LogId(1), Duration::ZERO).unwrap();
        channel.deliver(ms(0), &mut log, &mut got);
    }
    assert_eq!(got.take(), [(A, 1, 1), (A, 1, u16::MAX), (A, 1, u16::MAX)]);
}

#[test]
fn what_retention_or_damage_took_counts_as_confirmed() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[3, 3, 3, 3]), DeliveryLog::default());
    let offsets: Vec<i64> = log.batches.keys().copied().collect();
    let starts: Vec<Position> = log.batches.values().map(|b| b.header.start()).collect();
    subscribe(&mut channel, A, 2);
    channel.deliver(ms(0), &mut log, &mut got);
    channel.requeue(ms(0), A, LogId(1), Duration::ZERO).unwrap();
    // The first two batches go, with what was not read of the first. The third turns bad.
    log.answers.insert(offsets[0], Fetch::Below { start: starts[2] });
    log.answers.insert(offsets[1], Fetch::Below { start: starts[2] });
    log.answers.insert(offsets[2], Fetch::Lost { from: starts[2], to: starts[3] });
    channel.lend(A, 9);
    got.take();
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.ids(), [10, 11, 12]);
    assert_eq!(channel.confirmed().log_id, LogId(2));
    assert_eq!(channel.image().intervals, [Interval { start: LogId(3), end: starts[3] }]);
    finish(&mut channel, A, [2, 10, 11, 12]);
    assert_eq!(channel.confirmed(), log.end());
    assert_eq!(channel.take_finished(), Some(vec![Interval { start: LogId(1), end: log.end() }]));
}

#[test]
fn an_answer_that_leads_nowhere_does_not_spin() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[3]), DeliveryLog::default());
    log.answers.insert(0, Fetch::Below { start: Position::START });
    subscribe(&mut channel, A, 9);
    assert!(!channel.deliver(ms(0), &mut log, &mut got));
    assert_eq!((log.fetches, got.messages.len()), (1, 0));
}

#[test]
fn a_pending_batch_blocks_neither_other_redeliveries_nor_the_log() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[2, 2, 2]), DeliveryLog::default());
    let offsets: Vec<i64> = log.batches.keys().copied().collect();
    subscribe(&mut channel, A, 4);
    channel.deliver(ms(0), &mut log, &mut got);
    for id in 1..=4 {
        channel.requeue(ms(0), A, LogId(id), Duration::ZERO).unwrap();
    }
    log.answers.insert(offsets[0], Fetch::Pending);
    channel.lend(A, 100);
    got.take();
    log.fetches = 0;
    assert!(!channel.deliver(ms(0), &mut log, &mut got));
    assert_eq!(got.ids(), [3, 4, 5, 6]);
    assert_eq!(log.fetches, 4, "a pending batch is asked for once per turn");
    log.answers.clear();
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.ids(), [1, 2]);
}

#[test]
fn a_turn_is_bounded_and_fetches_a_batch_once() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[10_000]), DeliveryLog::default());
    subscribe(&mut channel, A, 20_000);
    let turns = (1..).find(|_| !channel.deliver(ms(0), &mut log, &mut got)).unwrap();
    assert_eq!((turns, got.messages.len()), (5, 10_000));
    assert_eq!(log.fetches, 5, "once per turn, and the end");
}

#[test]
fn a_paused_channel_delivers_nothing() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[3]), DeliveryLog::default());
    subscribe(&mut channel, A, 1);
    channel.deliver(ms(0), &mut log, &mut got);
    channel.set_paused(true);
    channel.lend(A, 9);
    channel.requeue(ms(0), A, LogId(1), Duration::ZERO).unwrap();
    assert!(!channel.deliver(ms(0), &mut log, &mut got));
    assert!(channel.image().paused);
    assert_eq!(got.ids(), [1]);
    channel.set_paused(false);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.ids(), [1, 2, 3]);
}

#[test]
fn the_hungry_are_named_once_and_only_when_something_is_there() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[]), DeliveryLog::default());
    let hungry = |channel: &mut Channel, log: &Log| {
        let mut subs = vec![];
        channel.hungry(log.end(), &mut |sub| subs.push(sub));
        subs
    };
    subscribe(&mut channel, A, 0);
    subscribe(&mut channel, B, 1);
    assert_eq!(hungry(&mut channel, &log), []);
    log.publish(2);
    assert_eq!(hungry(&mut channel, &log), [A]);
    assert_eq!(hungry(&mut channel, &log), []);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(hungry(&mut channel, &log), [B], "it spent its credit and more is there");
    channel.lend(A, 1);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(hungry(&mut channel, &log), [], "all was delivered");
    channel.requeue(ms(0), B, LogId(1), Duration::ZERO).unwrap();
    assert_eq!(hungry(&mut channel, &log), [A]);
    assert_eq!(channel.recall(B), 0);
    assert_eq!(hungry(&mut channel, &log), [B]);
}

#[test]
fn an_ephemeral_channel_has_nothing_for_the_journal() {
    let (mut channel, mut log, mut got) = (channel_at(cursor("ch#ephemeral")), Log::new(&[3]), DeliveryLog::default());
    subscribe(&mut channel, A, 9);
    channel.deliver(ms(0), &mut log, &mut got);
    finish(&mut channel, A, [1, 2, 3]);
    assert_eq!((channel.is_dirty(), channel.take_finished(), channel.confirmed()), (false, None, log.end()));
}

#[test]
fn an_idle_channel_is_tiny_and_an_open_message_small() {
    // Just below a doubling of the tables.
    const COUNT: usize = (1 << 17) - 64;
    let mut channel = channel();
    assert!(size_of::<Channel>() <= 1024, "{}", size_of::<Channel>());
    assert_eq!(channel.memory_bytes(), 0);
    let (mut log, mut got) = (Log::new(&[COUNT / 2, COUNT / 2]), DeliveryLog::default());
    subscribe(&mut channel, A, u32::MAX);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    assert_eq!(channel.in_flight_count(), COUNT as u64);
    assert!(channel.memory_bytes() <= 104 * COUNT, "{} bytes each", channel.memory_bytes() / COUNT);
    finish(&mut channel, A, 1..=COUNT as u64);
    assert!(channel.memory_bytes() < 8192, "{} bytes", channel.memory_bytes());
}

#[test]
fn a_crowd_of_timeouts_is_handled_in_pieces() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[25_000]), DeliveryLog::default());
    subscribe(&mut channel, A, 30_000);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    let (mut late, mut ticks) = (0, 0);
    while channel.deadline().is_some_and(|at| at <= ms(1000)) {
        channel.tick(ms(1000), &mut |_, num| late += num);
        ticks += 1;
    }
    assert_eq!((late, channel.in_flight_count()), (25_000, 0));
    assert!((3..6).contains(&ticks), "{ticks}");
}
