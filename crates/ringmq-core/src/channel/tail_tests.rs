//! Messages that an ephemeral channel keeps, and those that it drops.

use super::tests::{A, DeliveryLog, Log, channel, channel_at, cursor, finish, ms, subscribe};
use super::{Channel, Tail};
use crate::base::{LogId, Position};
use std::time::Duration;

struct Tailed {
    channel: Channel,
    log: Log,
    tail: Tail,
    got: DeliveryLog,
}

impl Tailed {
    fn keeps(kept: u64) -> Tailed {
        let (channel, tail) = (channel_at(cursor("ch#ephemeral")), Tail::new(kept, Position::START));
        Tailed { channel, log: Log::default(), tail, got: DeliveryLog::default() }
    }

    /// A batch of `num` messages is committed, and the channel has its turn. How many messages it drops.
    fn publish(&mut self, num: usize) -> u64 {
        self.log.publish(num);
        self.tail.reach(self.log.end());
        self.turn()
    }

    fn turn(&mut self) -> u64 {
        while self.channel.deliver(ms(0), &mut self.log, &mut self.got) {}
        self.channel.drop_old(&self.tail, self.log.end())
    }

    fn depth(&self) -> u64 {
        self.channel.depth(self.log.end())
    }
}

#[test]
fn an_ephemeral_channel_drops_the_oldest_of_what_is_too_much() {
    let mut t = Tailed::keeps(10);
    assert_eq!((0..10).map(|_| t.publish(1)).sum::<u64>(), 0);
    assert_eq!((t.publish(1), t.depth()), (1, 10));
    assert_eq!((t.publish(35), t.depth(), t.channel.stats(t.log.end(), false).dropped_count), (35, 10, 36));
    subscribe(&mut t.channel, A, 4);
    assert_eq!((t.turn(), t.got.ids(), t.depth()), (0, vec![37, 38, 39, 40], 6), "in the middle of a batch");
    assert_eq!((t.publish(6), t.depth()), (2, 10), "what is in flight does not count");
    finish(&mut t.channel, A, 37..=40);
    t.channel.lend(A, 99);
    assert_eq!((t.turn(), t.got.ids(), t.depth()), (0, (43..=52).collect(), 0));
    finish(&mut t.channel, A, 43..=52);
    assert_eq!(t.channel.confirmed(), t.log.end());
}

#[test]
fn what_a_client_gave_back_stays_and_counts() {
    let mut t = Tailed::keeps(5);
    subscribe(&mut t.channel, A, 3);
    t.publish(3);
    assert_eq!(t.got.ids(), [1, 2, 3]);
    for id in 1..=3 {
        t.channel.requeue(ms(0), A, LogId(id), Duration::ZERO).unwrap();
    }
    assert_eq!((t.publish(1), t.publish(4), t.depth()), (0, 3, 5));
    t.channel.lend(A, 9);
    t.turn();
    assert_eq!(t.got.ids(), [1, 2, 3, 7, 8]);
}

/// Places behind the first are known only of what was committed since the tail began.
#[test]
fn what_was_there_before_is_dropped_over_many_batches() {
    let mut t = Tailed::keeps(3);
    t.log = Log::new(&[1, 2, 3, 4]);
    t.tail = Tail::new(3, t.log.end());
    assert_eq!((t.turn(), t.depth()), (7, 3));
    subscribe(&mut t.channel, A, 9);
    assert_eq!((t.turn(), t.got.ids()), (0, vec![8, 9, 10]));
}

#[test]
fn a_channel_that_keeps_nothing_delivers_at_once_or_never() {
    let mut t = Tailed::keeps(0);
    subscribe(&mut t.channel, A, 2);
    assert_eq!((t.publish(1), t.publish(3), t.got.ids(), t.depth()), (0, 2, vec![1, 2], 0));
    finish(&mut t.channel, A, [1, 2]);
    t.channel.lend(A, 2);
    assert_eq!((t.turn(), t.got.ids()), (0, vec![]));
    assert_eq!((t.publish(1), t.got.ids()), (0, vec![5]));
}

#[test]
fn a_durable_channel_keeps_everything() {
    let mut t = Tailed::keeps(1);
    t.channel = channel();
    assert_eq!((t.publish(50), t.depth()), (0, 50));
}
