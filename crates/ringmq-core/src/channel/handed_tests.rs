//! Attempts, and delays of REQs, over a clean stop.

use super::Channel;
use super::range_tests::subscribe_ranged;
use super::tests::{A, B, DeliveryLog, Log, channel, channel_at, finish, ms, subscribe};
use crate::base::{LogId, Now};
use crate::format::cursor::{CursorImage, Handed};
use crate::log::fetch::Fetch;
use std::time::Duration;

fn stopped(mut channel: Channel, now_ms: u64, unix_ns: i64) -> CursorImage {
    channel.unsubscribe(A);
    channel.keep_attempts(Now { ticks: ms(now_ms), unix_ns });
    channel.image()
}

#[test]
fn what_was_in_flight_comes_again_with_its_attempts_and_what_was_put_off_not_before_its_time() {
    let (mut before, mut log, mut got) = (channel(), Log::new(&[3, 3]), DeliveryLog::default());
    subscribe(&mut before, A, 5);
    before.deliver(ms(0), &mut log, &mut got);
    before.requeue(ms(0), A, LogId(2), Duration::ZERO).expect("it has it");
    before.lend(A, 1);
    before.deliver(ms(0), &mut log, &mut got);
    finish(&mut before, A, [3]);
    before.requeue(ms(0), A, LogId(4), Duration::from_millis(500)).expect("it has it");
    let image = stopped(before, 100, 1_000_000_000);
    let handed = |start, attempts, due_unix_ns, wait_s| Handed { start: LogId(start), num: 1, attempts, due_unix_ns, wait_s };
    assert_eq!(image.handed, [handed(1, 1, 0, 0), handed(2, 2, 0, 0), handed(4, 1, 1_400_000_000, 1), handed(5, 1, 0, 0)]);

    // No client reads the message before the next stop: it is kept.
    let image = stopped(channel_at(image), 0, 0);
    assert_eq!(image.handed.len(), 4);

    let (mut after, mut got) = (channel_at(image), DeliveryLog::default());
    log.unix_ns = 1_100_000_000;
    subscribe(&mut after, B, 10);
    while after.deliver(ms(0), &mut log, &mut got) {}
    assert_eq!(got.take(), [(B, 1, 2), (B, 2, 3), (B, 5, 2), (B, 6, 1)]);
    assert_eq!((after.deferred_count(), after.image().handed), (1, vec![]));
    log.unix_ns = 1_400_000_000;
    after.tick(ms(299), &mut |_, _| {});
    after.deliver(ms(299), &mut log, &mut got);
    assert_eq!(got.take(), []);
    after.tick(ms(300), &mut |_, _| {});
    after.deliver(ms(300), &mut log, &mut got);
    assert_eq!(got.take(), [(B, 4, 2)]);
    finish(&mut after, B, [1, 2, 4, 5, 6]);
    assert_eq!(after.confirmed(), log.end());
}

/// Seed 1044820484443 of the cluster simulator, with one node: the messages waited for an hour, and for up to 30 days by default.
#[test]
fn a_clock_that_is_set_back_over_a_clean_stop_makes_no_requeued_message_wait_longer() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let (mut before, mut log, mut got) = (channel(), Log::new(&[1]), DeliveryLog::default());
    subscribe(&mut before, A, 5);
    before.deliver(ms(0), &mut log, &mut got);
    before.requeue(ms(0), A, LogId(1), Duration::from_millis(2_500)).expect("it has it");
    let (mut after, mut got) = (channel_at(stopped(before, 100, HOUR_NS)), DeliveryLog::default());
    (after.max_req_timeout, log.unix_ns) = (Duration::from_secs(7_200), 0);
    subscribe(&mut after, B, 5);
    after.deliver(ms(0), &mut log, &mut got);
    for (now, delivered) in [(2_399, vec![]), (3_000, vec![(B, 1, 2)])] {
        after.tick(ms(now), &mut |_, _| {});
        after.deliver(ms(now), &mut log, &mut got);
        assert_eq!(got.take(), delivered, "at {now} ms");
    }
}

#[test]
fn a_run_keeps_its_attempts_over_batches_and_a_set_offset_ends_them() {
    let (mut before, mut log, mut got) = (channel(), Log::new(&[4, 4]), DeliveryLog::default());
    subscribe_ranged(&mut before, A, 8);
    while before.deliver(ms(0), &mut log, &mut got) {}
    let image = stopped(before, 0, 0);
    assert_eq!(image.handed, [Handed { start: LogId(1), num: 8, attempts: 1, due_unix_ns: 0, wait_s: 0 }]);
    let (mut after, mut got) = (channel_at(image.clone()), DeliveryLog::default());
    subscribe(&mut after, B, 10);
    while after.deliver(ms(0), &mut log, &mut got) {}
    assert_eq!(got.take(), (1..=8).map(|id| (B, id, 2)).collect::<Vec<_>>());
    let mut moved = channel_at(image);
    moved.move_to(log.end(), &mut |_, _| {});
    assert_eq!(moved.image().handed, []);
}

#[test]
fn a_stop_that_finds_a_run_half_read_keeps_each_message_once() {
    let (mut before, mut log, mut got) = (channel(), Log::new(&[4]), DeliveryLog::default());
    let second = log.publish(4);
    subscribe(&mut before, A, 8);
    while before.deliver(ms(0), &mut log, &mut got) {}
    let mut after = channel_at(stopped(before, 0, 0));
    log.answers.insert(second, Fetch::Pending);
    subscribe(&mut after, A, 2);
    while after.deliver(ms(0), &mut log, &mut got) {}
    let image = stopped(after, 0, 0);
    let handed: Vec<_> = image.handed.iter().map(|h| (h.start.0, h.num, h.attempts)).collect();
    assert_eq!(handed, [(1, 2, 2), (3, 2, 1), (5, 4, 1)]);
    let mut bytes = vec![];
    image.encode(&mut bytes);
    assert_eq!(CursorImage::decode(&bytes), Ok((image, bytes.len())));
}

#[test]
fn an_ordered_channel_goes_on_with_the_message_that_was_out() {
    let mut log = Log::new(&[3]);
    let image = CursorImage { ordered: true, ..super::tests::cursor("ch") };
    let (mut before, mut got) = (channel_at(image), DeliveryLog::default());
    subscribe(&mut before, A, 5);
    before.deliver(ms(0), &mut log, &mut got);
    let image = stopped(before, 0, 0);
    let (mut after, mut got) = (channel_at(image), DeliveryLog::default());
    subscribe(&mut after, B, 5);
    while after.deliver(ms(0), &mut log, &mut got) {}
    assert_eq!(got.take(), [(B, 1, 2)]);
}
