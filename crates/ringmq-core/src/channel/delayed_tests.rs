//! Messages with a due time: never early, whatever stands beside them, and cheap while they wait.

use super::Channel;
use super::tests::{A, DeliveryLog, Log, channel, channel_at, cursor, ms, options, subscribe};
use crate::base::LogId;
use crate::format::cursor::CursorImage;
use crate::log::fetch::Fetch;
use crate::seam::message::SubOptions;

const MS: i64 = 1_000_000;

/// Sets both clocks to that moment: first what falls due, then what is handed out.
fn at(channel: &mut Channel, log: &mut Log, got: &mut DeliveryLog, now_ms: u64) {
    log.unix_ns = now_ms as i64 * MS;
    channel.tick(ms(now_ms), &mut |_, _| {});
    while channel.deliver(ms(now_ms), log, got) {}
}

fn due(ms: i64) -> Option<i64> {
    Some(ms * MS)
}

#[test]
fn each_comes_when_it_is_due_and_holds_up_nobody() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    log.publish_due(&[due(30), None, due(10), due(20), None, due(5)]);
    log.publish(1);
    subscribe(&mut channel, A, 100);
    at(&mut channel, &mut log, &mut got, 5);
    assert_eq!((got.ids(), channel.deferred_count()), (vec![2, 5, 6, 7], 3), "what is due already is as any other");
    assert_eq!((channel.depth(log.end()), channel.deadline()), (0, Some(ms(10))));
    at(&mut channel, &mut log, &mut got, 9);
    assert_eq!(got.ids(), [0; 0]);
    at(&mut channel, &mut log, &mut got, 10);
    assert_eq!((got.take(), channel.deferred_count()), (vec![(A, 3, 1)], 2));
    at(&mut channel, &mut log, &mut got, 30);
    assert_eq!(got.ids(), [4, 1]);
    for id in 1..=7 {
        channel.finish(ms(30), A, LogId(id)).expect("it has it");
    }
    assert_eq!((channel.confirmed(), channel.deadline()), (log.end(), None));
}

/// The cursor knows that the messages are not confirmed: a restart meets them again, and their due times with them.
#[test]
fn a_restart_changes_no_due_time() {
    let (mut first, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    log.publish_due(&[due(50), None, due(50)]);
    subscribe(&mut first, A, 100);
    at(&mut first, &mut log, &mut got, 1);
    first.finish(ms(1), A, LogId(2)).expect("it has it");
    let mut again = channel_at(first.image());
    subscribe(&mut again, A, 100);
    got.take();
    at(&mut again, &mut log, &mut got, 49);
    assert_eq!((got.ids(), again.deferred_count()), (vec![], 2));
    at(&mut again, &mut log, &mut got, 50);
    assert_eq!(got.ids(), [1, 3]);
}

#[test]
fn a_wall_clock_that_is_set_back_makes_nothing_early() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    log.publish_due(&[due(50)]);
    subscribe(&mut channel, A, 1);
    at(&mut channel, &mut log, &mut got, 0);
    log.unix_ns = 20 * MS;
    channel.tick(ms(50), &mut |_, _| {});
    channel.deliver(ms(50), &mut log, &mut got);
    assert_eq!((got.ids(), channel.deferred_count(), channel.deadline()), (vec![], 1, Some(ms(80))));
}

/// A ranged client takes what is stored: a run must end before what is not due.
#[test]
fn a_run_has_only_what_is_due() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    log.publish_due(&[None, None, due(10), due(10), due(20), None]);
    let ranged = SubOptions { ranged: true, ..options(0) };
    channel.subscribe(A, ranged);
    channel.lend(A, 100);
    let runs = |got: &mut DeliveryLog| std::mem::take(&mut got.runs).into_iter().map(|r| (r.1, r.2)).collect::<Vec<_>>();
    at(&mut channel, &mut log, &mut got, 0);
    assert_eq!(runs(&mut got), [(1, 2), (6, 6)]);
    at(&mut channel, &mut log, &mut got, 10);
    assert_eq!(runs(&mut got), [(3, 4)]);
    at(&mut channel, &mut log, &mut got, 20);
    assert_eq!(runs(&mut got), [(5, 5)]);
}

/// Ten million of 100 B in batches of 100 messages are some 6 MB by this.
#[test]
fn a_stretch_costs_one_entry_whatever_its_due_times() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    const BATCHES: i64 = 500;
    for batch in 0..BATCHES {
        let dues: Vec<_> = (0..100).map(|n| due(1_000 + (batch * 7919 + n * 104_729) % 100_000)).collect();
        log.publish_due(&dues);
    }
    subscribe(&mut channel, A, 1);
    at(&mut channel, &mut log, &mut got, 0);
    assert_eq!(channel.deferred_count(), BATCHES as u64 * 100);
    let bytes = channel.open_bytes();
    assert!(bytes < BATCHES as usize * 200, "{bytes} bytes");
    // They all come, each in its millisecond or up to 64 ms later.
    channel.lend(A, u32::MAX / 2);
    for now_ms in (1_000..101_100).step_by(50) {
        at(&mut channel, &mut log, &mut got, now_ms);
        for (_, id, _) in got.take() {
            let n = (id - 1) as i64;
            let due_ms = 1_000 + (n / 100 * 7919 + n % 100 * 104_729) % 100_000;
            assert!((due_ms..due_ms + 50 + 64).contains(&(now_ms as i64)), "{id} due at {due_ms} came at {now_ms}");
            channel.finish(ms(now_ms), A, LogId(id)).expect("it has it");
        }
    }
    assert_eq!((channel.deferred_count(), channel.confirmed()), (0, log.end()));
}

/// Each message is a batch of its own, as a DPUB makes it. Ten million of 100 B take some 9 MB before any is due, and at most 140 MB when
/// every second one is finished.
#[test]
fn a_span_of_small_batches_costs_one_entry_whatever_its_due_times() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    const MESSAGES: i64 = 5_000;
    let due_ms = |n: i64| 1_000 + n * 104_729 % 100_000;
    for n in 0..MESSAGES {
        log.publish_due(&[due(due_ms(n))]);
    }
    subscribe(&mut channel, A, 1);
    at(&mut channel, &mut log, &mut got, 0);
    assert_eq!((channel.deferred_count(), channel.deadline()), (MESSAGES as u64, Some(ms(1_000))));
    let bytes = channel.open_bytes();
    assert!(bytes < MESSAGES as usize * 3, "{bytes} bytes");
    channel.lend(A, u32::MAX / 2);
    let mut most = 0;
    for now_ms in (1_000..101_100).step_by(50) {
        at(&mut channel, &mut log, &mut got, now_ms);
        for (_, id, _) in got.take() {
            let due_ms = due_ms((id - 1) as i64);
            assert!((due_ms..due_ms + 50 + 64).contains(&(now_ms as i64)), "{id} due at {due_ms} came at {now_ms}");
            channel.finish(ms(now_ms), A, LogId(id)).expect("it has it");
        }
        most = most.max(channel.open_bytes());
    }
    assert!(most < MESSAGES as usize * 56 * 2 / 3, "{most} bytes");
    assert_eq!((channel.deferred_count(), channel.confirmed()), (0, log.end()));
}

#[test]
fn damage_in_a_span_costs_what_it_took() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    let offsets: Vec<i64> = (0..5).map(|_| log.publish_due(&[due(10), due(10)])).collect();
    subscribe(&mut channel, A, 100);
    at(&mut channel, &mut log, &mut got, 0);
    let (from, to) = (log.batches[&offsets[2]].header.start(), log.batches[&offsets[2]].header.end());
    log.answers.insert(offsets[2], Fetch::Lost { from, to });
    at(&mut channel, &mut log, &mut got, 10);
    assert_eq!(got.ids(), [1, 2, 3, 4, 7, 8, 9, 10]);
    for id in [1, 2, 3, 4, 7, 8, 9, 10] {
        channel.finish(ms(10), A, LogId(id)).expect("it has it");
    }
    assert_eq!(channel.confirmed(), log.end());
}

#[test]
fn an_ordered_channel_waits_for_what_is_not_due() {
    let (mut channel, mut log, mut got) =
        (channel_at(CursorImage { ordered: true, ..cursor("ch") }), Log::default(), DeliveryLog::default());
    log.publish_due(&[due(10), None]);
    subscribe(&mut channel, A, 10);
    at(&mut channel, &mut log, &mut got, 0);
    assert_eq!((got.ids(), channel.deferred_count()), (vec![], 1));
    at(&mut channel, &mut log, &mut got, 10);
    assert_eq!(got.ids(), [1]);
}
