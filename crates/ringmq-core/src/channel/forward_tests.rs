//! Messages that are due in a long time and hold back much move to the end of the log; all others stay where they are, and nothing is
//! lost.

use super::tests::{A, DeliveryLog, Log, channel, finish, ms, subscribe};
use super::{Channel, ForwardPolicy};
use crate::base::{LogId, Rng};
use std::collections::BTreeMap;
use std::time::Duration;

const MS: i64 = 1_000_000;
const POLICY: ForwardPolicy = ForwardPolicy { held_bytes: 4_000, after: Duration::from_millis(1_000) };

/// Delivers what there is, and finishes it.
fn consume(channel: &mut Channel, log: &mut Log, got: &mut DeliveryLog, now_ms: u64) -> Vec<u64> {
    log.unix_ns = now_ms as i64 * MS;
    channel.lend(A, 1_000_000);
    channel.tick(ms(now_ms), &mut |_, _| {});
    while channel.deliver(ms(now_ms), log, got) {}
    let ids = got.ids();
    finish(channel, A, ids.iter().copied());
    ids
}

/// The copies that the channel wants now, in the log and committed. Says the ids of the originals.
fn copy_forward(channel: &mut Channel, log: &mut Log, now_ms: u64) -> Vec<u64> {
    log.unix_ns = now_ms as i64 * MS;
    channel.look_forward(ms(now_ms), log.end(), POLICY, log);
    let copies: Vec<_> = std::iter::from_fn(|| channel.next_copy(ms(now_ms), 1, log)).collect();
    for copy in &copies {
        log.publish_copy("ch", copy.first_id, copy.attempts, copy.due_unix_ns / MS);
    }
    copies.iter().for_each(|copy| channel.copied(copy.log_id, 1, true));
    copies.into_iter().map(|copy| copy.log_id.0).collect()
}

#[test]
fn a_message_that_holds_back_much_moves_and_keeps_its_id_and_its_time() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    subscribe(&mut channel, A, 0);
    log.publish_due(&[Some(50_000 * MS)]);
    (0..40).for_each(|_| _ = log.publish(10));
    assert_eq!(consume(&mut channel, &mut log, &mut got, 5).len(), 400);
    assert_eq!((copy_forward(&mut channel, &mut log, 10), channel.confirmed().log_id), (vec![1], LogId(402)));
    // It is behind all that is finished now, and holds back nothing.
    assert_eq!((consume(&mut channel, &mut log, &mut got, 15), copy_forward(&mut channel, &mut log, 20)), (vec![], vec![]));
    assert_eq!((channel.deferred_count(), consume(&mut channel, &mut log, &mut got, 49_999)), (1, vec![]));
    assert_eq!((consume(&mut channel, &mut log, &mut got, 50_064), channel.confirmed()), (vec![1], log.end()));
}

#[test]
fn what_is_due_soon_or_holds_back_little_stays() {
    let far = Some(50_000 * MS);
    for (due, batches) in [(Some(1_010 * MS), 40), (far, 5)] {
        let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
        subscribe(&mut channel, A, 0);
        log.publish_due(&[due]);
        (0..batches).for_each(|_| _ = log.publish(10));
        consume(&mut channel, &mut log, &mut got, 5);
        assert_eq!(copy_forward(&mut channel, &mut log, 10), [0; 0]);
    }
    // A channel that is far behind would meet the copy late.
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    subscribe(&mut channel, A, 0);
    log.publish_due(&[far]);
    (0..40).for_each(|_| _ = log.publish(10));
    consume(&mut channel, &mut log, &mut got, 5);
    (0..40).for_each(|_| _ = log.publish(10));
    assert_eq!(copy_forward(&mut channel, &mut log, 10), [0; 0]);
    consume(&mut channel, &mut log, &mut got, 5);
    assert_eq!(copy_forward(&mut channel, &mut log, 10), [1]);
}

/// A copy of all that is deferred frees nothing: it is paid for by what clients get.
#[test]
fn a_log_of_deferred_messages_is_not_copied_again_and_again() {
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    subscribe(&mut channel, A, 0);
    (0..600).for_each(|_| _ = log.publish_due(&[Some(5_000_000 * MS); 100]));
    let mut round = || {
        consume(&mut channel, &mut log, &mut got, 5);
        copy_forward(&mut channel, &mut log, 10).len()
    };
    let copied: usize = (0..1_000).map(|_| round()).sum();
    // 24 bytes each.
    assert!((43_000..45_000).contains(&copied), "{copied} copies, and clients got nothing");
}

/// The copied entry was deferred last: the following entries must not become a part of it.
#[test]
fn what_is_put_off_meanwhile_is_not_confirmed_with_the_copy() {
    let policy = ForwardPolicy { held_bytes: 0, ..POLICY };
    let (mut channel, mut log, mut got) = (channel(), Log::default(), DeliveryLog::default());
    subscribe(&mut channel, A, 0);
    log.publish_due(&[Some(50_000 * MS)]);
    consume(&mut channel, &mut log, &mut got, 5);
    channel.look_forward(ms(5), log.end(), policy, &mut log);
    let copy = channel.next_copy(ms(5), 1, &mut log).expect("it is first");
    log.publish_due(&[Some(50_000 * MS)]);
    consume(&mut channel, &mut log, &mut got, 6);
    channel.copied(copy.log_id, 1, true);
    assert_eq!((channel.confirmed().log_id, channel.deferred_count()), (LogId(2), 1));
}

/// Stretches and spans are taken apart from their front, while what is in them falls due, and other messages come and go.
#[test]
fn every_message_comes_once_and_at_its_time_and_the_log_is_freed() {
    for seed in 0..20 {
        let (mut channel, mut log, mut got, mut rng) = (channel(), Log::default(), DeliveryLog::default(), Rng::new(seed));
        subscribe(&mut channel, A, 0);
        let (mut due, mut copied, mut most_held) = (BTreeMap::new(), 0, 0);
        let take = |due: &mut BTreeMap<u64, u64>, ids: Vec<u64>, now_ms: u64| {
            for id in ids {
                let at = due.remove(&id).unwrap_or_else(|| panic!("seed {seed}: {id} came twice"));
                assert!((at..=at + 50 + 64).contains(&now_ms), "seed {seed}: {id} due at {at} came at {now_ms}");
            }
        };
        for now_ms in (50..60_000).step_by(50) {
            if now_ms < 30_000 {
                let times: Vec<_> = (0..1 + rng.below(6)).map(|_| now_ms + 50 + rng.below(20) * rng.below(1_500)).collect();
                let is_deferred = rng.chance(0.3);
                let first = log.end().log_id.0;
                let times = times.into_iter().map(|at| if is_deferred || rng.chance(0.02) { at } else { now_ms });
                let times: Vec<_> = times.collect();
                log.publish_due(&times.iter().map(|&at| (at > now_ms).then_some(at as i64 * MS)).collect::<Vec<_>>());
                due.extend((first..).zip(times));
            }
            let ids = consume(&mut channel, &mut log, &mut got, now_ms);
            take(&mut due, ids, now_ms);
            copied += copy_forward(&mut channel, &mut log, now_ms).len();
            if now_ms % 1_000 == 0 {
                most_held = most_held.max(log.end().offset - channel.confirmed().offset);
            }
        }
        assert!(due.is_empty() && copied > 100, "seed {seed}: {} did not come, {copied} copies", due.len());
        assert_eq!(channel.confirmed(), log.end(), "seed {seed}");
        assert!(most_held < 100_000, "seed {seed}: {most_held} bytes were held back");
    }
}
