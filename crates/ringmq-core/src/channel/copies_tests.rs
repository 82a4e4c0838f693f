//! A REQ longer than the message timeout: a copy is wanted, and stands for the message once it is committed.

use super::tests::{A, B, DeliveryLog, Log, channel, finish, ms, subscribe};
use crate::base::LogId;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_long_req_wants_a_copy_and_a_short_one_none() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[2]), DeliveryLog::default());
    subscribe(&mut channel, A, 10);
    channel.deliver(ms(0), &mut log, &mut got);
    channel.requeue(ms(0), A, LogId(2), Duration::from_millis(900)).expect("it has it");
    assert!(!channel.wants_copies());
    channel.requeue(ms(0), A, LogId(1), LONG).expect("it has it");
    assert!(channel.wants_copies());
    log.unix_ns = 5_000_000;
    let copy = channel.next_copy(ms(1_000), 7, &mut log).expect("it can be read");
    assert_eq!((copy.log_id, copy.first_id, copy.attempts), (LogId(1), LogId(1), 1));
    assert_eq!((copy.due_unix_ns, &copy.body[..]), (19_005_000_000, &b"body"[..]));
    assert!(!channel.wants_copies() && channel.next_copy(ms(1_000), 8, &mut log).is_none());
    // Not committed: it is wanted again. Committed: the original is confirmed. Another attempt's answer changes nothing.
    channel.copied(LogId(1), 7, false);
    assert!(channel.wants_copies());
    channel.next_copy(ms(1_000), 9, &mut log).expect("it can be read");
    channel.copied(LogId(1), 7, true);
    assert_eq!((channel.confirmed().log_id, channel.deferred_count()), (LogId(1), 2));
    channel.copied(LogId(1), 9, true);
    assert_eq!((channel.confirmed().log_id, channel.deferred_count()), (LogId(2), 1));
}

#[test]
fn a_copy_comes_under_the_first_id_to_its_channel_alone() {
    let (mut channel, mut log, mut got) = (channel(), Log::new(&[1]), DeliveryLog::default());
    log.publish_copy("other", LogId(1), 4, 0);
    log.publish_copy("ch", LogId(1), 4, 10);
    subscribe(&mut channel, B, 10);
    channel.deliver(ms(0), &mut log, &mut got);
    assert_eq!((got.take(), channel.deferred_count()), (vec![(B, 1, 1)], 1));
    finish(&mut channel, B, [1]);
    log.unix_ns = 10_000_000;
    channel.tick(ms(10), &mut |_, _| {});
    channel.deliver(ms(10), &mut log, &mut got);
    assert_eq!(got.take(), [(B, 1, 5)]);
    finish(&mut channel, B, [1]);
    assert_eq!(channel.confirmed(), log.end());
}
