//! One behaviour of ranged clients per test.

use super::tests::{A, B, C, DeliveryLog, Log, channel, channel_at, cursor, finish, ms, options, subscribe};
use super::{Channel, NotInFlight};
use crate::base::{LogId, Position, SubId};
use crate::format::cursor::{CursorImage, Interval};
use crate::log::fetch::Fetch;
use std::time::Duration;

pub(super) fn subscribe_ranged(channel: &mut Channel, sub: SubId, credit: u32) {
    let mut options = options(0);
    options.ranged = true;
    channel.subscribe(sub, options);
    channel.lend(sub, credit);
}

fn finish_range(channel: &mut Channel, sub: SubId, first: u64, last: u64) -> u64 {
    channel.finish_range(ms(0), sub, LogId(first), LogId(last))
}

fn requeue_range(channel: &mut Channel, sub: SubId, first: u64, last: u64) -> u64 {
    channel.requeue_range(ms(0), sub, LogId(first), LogId(last), Duration::ZERO)
}

impl DeliveryLog {
    fn take_runs(&mut self) -> Vec<(SubId, u64, u64, u16)> {
        std::mem::take(&mut self.runs)
    }
}

#[test]
fn a_run_ends_with_its_batch_its_clients_credit_or_what_is_confirmed() {
    let mut log = Log::new(&[10, 10, 10]);
    let offset = log.batches.values().nth(1).unwrap().header.offset.get();
    let at = |id: u64| Position { offset, count: id as i64 - 1, log_id: LogId(id) };
    let intervals = vec![Interval { start: LogId(14), end: at(16) }];
    let mut channel = channel_at(CursorImage { intervals, ..cursor("ch") });
    let mut got = DeliveryLog::default();
    subscribe_ranged(&mut channel, A, 25);
    assert!(!channel.deliver(ms(0), &mut log, &mut got));
    assert_eq!(got.take_runs(), [(A, 1, 10, 1), (A, 11, 13, 1), (A, 16, 20, 1), (A, 21, 27, 1)]);
    assert_eq!((channel.in_flight_count(), channel.depth(log.end()), got.messages.len()), (25, 3, 0));
    assert_eq!(finish_range(&mut channel, A, 0, u64::MAX), 25);
    assert_eq!(channel.confirmed().log_id, LogId(28));
    channel.lend(A, 25);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(A, 28, 30, 1)]);
    assert_eq!(finish_range(&mut channel, A, 28, 30), 3);
    assert_eq!(channel.confirmed(), log.end());
    assert_eq!(
        channel.take_finished(),
        Some(vec![Interval { start: LogId(1), end: at(14) }, Interval { start: LogId(16), end: log.end() }])
    );
}

#[test]
fn a_part_that_is_finished_leaves_its_pieces_in_flight() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[20]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, 100);
    channel.deliver(ms(10), &mut log, &mut got);
    assert_eq!(finish_range(&mut channel, A, 5, 6), 2);
    assert_eq!(finish_range(&mut channel, A, 5, 8), 2);
    assert_eq!(finish_range(&mut channel, B, 1, 20), 0);
    assert_eq!(finish_range(&mut channel, A, 9, 8), 0);
    channel.finish(ms(0), A, LogId(20)).unwrap();
    assert_eq!(channel.finish(ms(0), A, LogId(20)), Err(NotInFlight));
    channel.touch(ms(500), A, LogId(2)).unwrap();
    assert_eq!(channel.confirmed().log_id, LogId(1));
    let ids: Vec<(u64, u64)> = channel.image().intervals.iter().map(|i| (i.start.0, i.end.log_id.0)).collect();
    assert_eq!((ids, channel.in_flight_count()), (vec![(5, 9), (20, 21)], 15));
    let mut late = 0;
    channel.tick(ms(1010), &mut |sub, num| late += if sub == A { num } else { 0 });
    assert_eq!((late, channel.in_flight_count()), (14, 1));
    got.take_runs();
    channel.deliver(ms(1010), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(A, 3, 4, 2), (A, 9, 19, 2), (A, 1, 1, 2)]);
    assert_eq!(finish_range(&mut channel, A, 0, 100), 15);
    assert_eq!((channel.confirmed(), channel.deadline()), (log.end(), None));
}

#[test]
fn what_waits_side_by_side_goes_out_as_one_run() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[6, 6]), DeliveryLog::default());
    subscribe(&mut channel, A, 9);
    channel.deliver(ms(0), &mut log, &mut got);
    channel.unsubscribe(A);
    subscribe_ranged(&mut channel, B, 4);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(B, 1, 4, 2)]);
    channel.lend(B, 100);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(B, 5, 6, 2), (B, 7, 9, 2), (B, 10, 12, 1)]);
    // With other attempts, or out of order, it is another run.
    assert_eq!([(9, 12), (2, 3), (4, 6), (1, 1)].map(|(a, b)| requeue_range(&mut channel, B, a, b)), [4, 2, 3, 1]);
    assert_eq!(channel.stats(log.end(), false).requeue_count, 10);
    channel.lend(B, 100);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(B, 9, 9, 3), (B, 10, 12, 2), (B, 2, 6, 3), (B, 1, 1, 3)]);
}

#[test]
fn a_waiting_run_falls_to_a_client_that_takes_messages() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[8]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, 8);
    channel.deliver(ms(0), &mut log, &mut got);
    finish_range(&mut channel, A, 3, 4);
    assert_eq!(channel.unsubscribe(A), 6);
    subscribe(&mut channel, B, 3);
    got.take_runs();
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take(), [(B, 1, 2), (B, 2, 2), (B, 5, 2)]);
    assert_eq!((channel.in_flight_count(), channel.depth(log.end())), (3, 3));
    finish(&mut channel, B, [2, 5]);
    subscribe_ranged(&mut channel, C, 8);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(C, 6, 8, 2)]);
    channel.unsubscribe(B);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(C, 1, 1, 3)]);
    assert_eq!(finish_range(&mut channel, C, 1, 8), 4);
    assert_eq!(channel.confirmed(), log.end());
}

#[test]
fn deferred_ranges_fall_due() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[8]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, 8);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(channel.requeue_range(ms(0), A, LogId(3), LogId(50), Duration::from_millis(20)), 6);
    assert_eq!((channel.deferred_count(), channel.in_flight_count()), (6, 2));
    channel.tick(ms(20), &mut |_, _| panic!("nothing is late"));
    channel.lend(A, 8);
    got.take_runs();
    channel.deliver(ms(20), &mut log, &mut got);
    assert_eq!((got.take_runs(), channel.deferred_count()), (vec![(A, 3, 8, 2)], 0));
}

#[test]
fn a_turn_cuts_no_batch_that_fits_one() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[1000, 1000, 1000, 2500, 4000]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, 20_000);
    let turns = (1..).find(|_| !channel.deliver(ms(0), &mut log, &mut got)).unwrap();
    let lens: Vec<u64> = got.take_runs().iter().map(|&(_, first, last, _)| last - first + 1).collect();
    assert_eq!((lens, turns), (vec![1000, 1000, 1000, 2500, 2500, 1500], 5));
    assert_eq!(channel.in_flight_count(), 9500);
}

#[test]
fn a_full_client_is_passed_over_and_a_paused_channel_gives_nothing() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[5, 5]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, 100);
    subscribe_ranged(&mut channel, B, 100);
    got.full.insert(A);
    channel.set_paused(true);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), []);
    channel.set_paused(false);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(B, 1, 5, 1), (B, 6, 10, 1)]);
    assert_eq!((channel.recall(A), channel.recall(B)), (100, 90));
    requeue_range(&mut channel, B, 2, 7);
    got.full.clear();
    channel.lend(A, 4);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [], "blocked until it is said to have room");
    channel.block(A, false);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.take_runs(), [(A, 2, 5, 2)]);
}

#[test]
fn both_kinds_of_clients_share_fairly() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[2000; 5]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, 100_000);
    subscribe(&mut channel, B, 100_000);
    subscribe(&mut channel, C, 100_000);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    let runs: u64 = got.take_runs().iter().map(|&(_, first, last, _)| last - first + 1).sum();
    let to_b = got.messages.iter().filter(|m| m.0 == B).count();
    let shares = [runs as usize, to_b, got.messages.len() - to_b];
    assert_eq!(shares.iter().sum::<usize>(), 10_000);
    assert!(shares.iter().all(|share| share.abs_diff(3333) < 300), "{shares:?}");
    // Without credit the others are in nobody's way.
    channel.recall(B);
    channel.recall(C);
    log.publish(100);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    got.take_runs();
    log.publish(2000);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    assert_eq!(got.take_runs(), [(A, 10_101, 12_100, 1)]);
}

#[test]
fn a_run_that_was_lost_since_counts_as_confirmed() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[4, 4]), DeliveryLog::default());
    let starts: Vec<_> = log.batches.values().map(|b| b.header.start()).collect();
    subscribe_ranged(&mut channel, A, 8);
    channel.deliver(ms(0), &mut log, &mut got);
    finish_range(&mut channel, A, 2, 2);
    channel.unsubscribe(A);
    subscribe_ranged(&mut channel, A, 8);
    log.answers.insert(0, Fetch::Lost { from: starts[0], to: starts[1] });
    got.take_runs();
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!((got.take_runs(), channel.depth(log.end())), (vec![(A, 5, 8, 2)], 0));
    assert_eq!(channel.confirmed(), starts[1]);
}

#[test]
fn a_million_messages_in_runs_cost_next_to_nothing() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[1000; 1000]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, u32::MAX);
    while channel.deliver(ms(0), &mut log, &mut got) {}
    assert_eq!((channel.in_flight_count(), got.runs.len()), (1_000_000, 1000));
    assert!(channel.memory_bytes() < 200 * 1024, "{} bytes", channel.memory_bytes());
    let mut late = 0;
    channel.tick(ms(1000), &mut |_, num| late += num);
    assert_eq!((late, channel.depth(log.end())), (1_000_000, 1_000_000));
}

#[test]
fn a_run_goes_on_in_its_batch_after_a_read() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[10]), DeliveryLog::default());
    subscribe_ranged(&mut channel, A, 4);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(got.runs, [(A, 1, 4, 1)]);
    // The batch has left the memory meanwhile.
    for (missing, runs) in [(Fetch::Pending, 1), (Fetch::Held, 2)] {
        log.answers.insert(0, missing.clone());
        channel.lend(A, 3);
        assert!(!channel.deliver(ms(0), &mut log, &mut got));
        assert_eq!(channel.awaits_read(), matches!(missing, Fetch::Pending));
        assert_eq!(got.runs.len(), runs);
        log.answers.clear();
        channel.readable();
        channel.deliver(ms(0), &mut log, &mut got);
        assert!(!channel.awaits_read());
    }
    assert_eq!(got.take_runs()[1..], [(A, 5, 7, 1), (A, 8, 10, 1)]);
}

#[test]
fn nobody_is_hungry_for_what_cannot_be_read() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[10, 10]), DeliveryLog::default());
    let hungry = |channel: &mut Channel, log: &Log| {
        let mut subs = vec![];
        channel.hungry(log.end(), &mut |sub| subs.push(sub));
        subs
    };
    let second = *log.batches.keys().nth(1).unwrap();
    subscribe_ranged(&mut channel, A, 15);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(hungry(&mut channel, &log), [A]);
    // Ten wait as one run, and the log goes on behind five more: the device refuses all of that.
    requeue_range(&mut channel, A, 1, 10);
    log.answers.extend([(0, Fetch::Held), (second, Fetch::Held)]);
    subscribe_ranged(&mut channel, B, 9);
    assert!(!channel.deliver(ms(0), &mut log, &mut got));
    assert!(!channel.awaits_read());
    assert_eq!(channel.recall(B), 9);
    assert_eq!(hungry(&mut channel, &log), []);
    // Something else waits that may be there: it is asked for, and nothing more.
    requeue_range(&mut channel, A, 11, 12);
    assert_eq!(hungry(&mut channel, &log), [B]);
    channel.lend(B, 9);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!(channel.recall(B), 9);
    assert_eq!(hungry(&mut channel, &log), []);
    channel.readable();
    assert_eq!(hungry(&mut channel, &log), [B]);
}
