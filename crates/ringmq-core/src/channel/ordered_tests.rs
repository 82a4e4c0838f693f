//! Ordered channels and cursors that are set: one behaviour per test, and random lives of which each delivery must be that
//! of the first message that is not finished.

use super::tests::{A, B, DeliveryLog, Log, TIMEOUT_MS, channel, channel_at, cursor, ms, options, subscribe};
use super::{Channel, NotInFlight};
use crate::base::{LogId, Position, SubId, Ticks};
use crate::format::cursor::{CursorImage, Interval};
use crate::log::fetch::Fetch;
use proptest::prelude::*;
use std::time::Duration;

fn ordered() -> Channel {
    channel_at(CursorImage { ordered: true, ..cursor("ch") })
}

fn deliver(channel: &mut Channel, log: &mut Log, now: Ticks) -> Vec<(SubId, u64, u16)> {
    let mut got = DeliveryLog::default();
    while channel.deliver(now, log, &mut got) {}
    let runs = got.runs.iter().flat_map(|&(sub, first, last, attempts)| (first..=last).map(move |id| (sub, id, attempts)));
    let mut all: Vec<_> = runs.collect();
    all.extend(got.take());
    all
}

fn none(_: SubId, _: u32) {}

#[test]
fn one_message_is_out_and_the_next_waits_until_its_fin_is_settled() {
    let (mut channel, mut log) = (ordered(), Log::new(&[3, 2]));
    subscribe(&mut channel, A, 10);
    subscribe(&mut channel, B, 10);
    assert_eq!(deliver(&mut channel, &mut log, ms(0)), [(A, 1, 1)]);
    assert_eq!(deliver(&mut channel, &mut log, ms(1)), []);
    channel.finish(ms(1), A, LogId(1)).unwrap();
    assert_eq!(channel.finishing().map(|i| (i.start, i.end.log_id)), Some((LogId(1), LogId(2))));
    assert_eq!(deliver(&mut channel, &mut log, ms(1)), [], "not settled");
    assert_eq!((channel.confirmed().log_id, channel.image().confirmed.log_id), (LogId(1), LogId(2)));
    assert!(!channel.is_dirty(), "who settles it has journaled it");
    channel.settle(true);
    assert_eq!(channel.confirmed().log_id, LogId(2));
    assert_eq!(deliver(&mut channel, &mut log, ms(1)), [(B, 2, 1)], "many clients, one at a time");
}

#[test]
fn a_fin_that_is_taken_back_comes_again_before_any_later_one() {
    let (mut channel, mut log) = (ordered(), Log::new(&[3]));
    subscribe(&mut channel, A, 10);
    deliver(&mut channel, &mut log, ms(0));
    channel.finish(ms(1), A, LogId(1)).unwrap();
    let generation = channel.generation();
    channel.settle(false);
    assert!(channel.generation() > generation);
    assert_eq!((channel.confirmed(), channel.image().confirmed), (Position::START, Position::START));
    assert_eq!(deliver(&mut channel, &mut log, ms(1)), [(A, 1, 2)]);
    channel.finish(ms(1), A, LogId(1)).unwrap();
    channel.settle(true);
    assert_eq!(deliver(&mut channel, &mut log, ms(1)), [(A, 2, 1)]);
}

#[test]
fn what_is_requeued_times_out_or_was_a_lost_clients_goes_first() {
    let (mut channel, mut log) = (ordered(), Log::new(&[3]));
    subscribe(&mut channel, A, 10);
    subscribe(&mut channel, B, 10);
    assert_eq!(deliver(&mut channel, &mut log, ms(0)), [(A, 1, 1)]);
    channel.requeue(ms(0), A, LogId(1), Duration::ZERO).unwrap();
    assert_eq!(deliver(&mut channel, &mut log, ms(0)), [(B, 1, 2)]);
    channel.tick(ms(TIMEOUT_MS + 1), &mut none);
    assert_eq!(deliver(&mut channel, &mut log, ms(TIMEOUT_MS + 1)), [(A, 1, 3)]);
    channel.unsubscribe(A);
    assert_eq!(deliver(&mut channel, &mut log, ms(TIMEOUT_MS + 2)), [(B, 1, 4)]);
}

/// A redelivery that has to be read from the disk is not overtaken by what is in memory.
#[test]
fn a_redelivery_that_is_being_read_holds_the_rest() {
    let (mut channel, mut log) = (ordered(), Log::new(&[1]));
    let second = log.publish(1);
    subscribe(&mut channel, A, 10);
    deliver(&mut channel, &mut log, ms(0));
    channel.requeue(ms(0), A, LogId(1), Duration::ZERO).unwrap();
    for missing in [Fetch::Pending, Fetch::Held] {
        log.answers.insert(0, missing);
        assert_eq!(deliver(&mut channel, &mut log, ms(0)), []);
    }
    log.answers.clear();
    channel.readable();
    assert_eq!(deliver(&mut channel, &mut log, ms(0)), [(A, 1, 2)]);
    assert!(second > 0);
}

#[test]
fn a_channel_that_becomes_ordered_begins_again_at_its_first_open_message() {
    let (mut channel, mut log) = (channel(), Log::new(&[5]));
    subscribe(&mut channel, A, 10);
    assert_eq!(deliver(&mut channel, &mut log, ms(0)).len(), 5);
    channel.finish(ms(0), A, LogId(3)).unwrap();
    let mut dropped = vec![];
    channel.set_ordered(true, &mut |sub, num| dropped.push((sub, num)));
    assert_eq!((dropped, channel.in_flight_count(), channel.image().ordered), (vec![(A, 4)], 0, true));
    assert_eq!(channel.finish(ms(0), A, LogId(1)), Err(NotInFlight));
    channel.lend(A, 4);
    for id in [1, 2, 4, 5] {
        assert_eq!(deliver(&mut channel, &mut log, ms(0)), [(A, id, 1)]);
        channel.finish(ms(0), A, LogId(id)).unwrap();
        channel.settle(true);
    }
    assert_eq!(channel.confirmed(), log.end());
}

#[test]
fn an_offset_that_is_set_drops_what_is_open_and_holds_until_it_is_settled() {
    let (mut channel, mut log) = (channel(), Log::new(&[4, 4]));
    subscribe(&mut channel, A, 100);
    assert_eq!(deliver(&mut channel, &mut log, ms(0)).len(), 8);
    (1..=4).for_each(|id| channel.finish(ms(0), A, LogId(id)).unwrap());
    channel.requeue(ms(0), A, LogId(5), Duration::ZERO).unwrap();
    channel.requeue(ms(0), A, LogId(6), Duration::from_millis(50)).unwrap();
    let generation = channel.generation();
    let mut dropped = vec![];
    let to = Position { offset: 0, count: 1, log_id: LogId(2) };
    channel.move_to(to, &mut |sub, num| dropped.push((sub, num)));
    assert_eq!(dropped, [(A, 2)]);
    assert_eq!((channel.in_flight_count(), channel.deferred_count(), channel.depth(log.end())), (0, 0, 7));
    assert_eq!((channel.image().confirmed, channel.confirmed()), (to, to), "retention keeps what is needed");
    assert!(channel.image().generation > generation && !channel.is_dirty());
    assert_eq!(channel.finish(ms(0), A, LogId(8)), Err(NotInFlight), "a late FIN");
    assert_eq!(deliver(&mut channel, &mut log, ms(0)), []);
    channel.tick(ms(5000), &mut |_, _| panic!("nobody has anything"));
    channel.settle(true);
    let ids: Vec<u64> = deliver(&mut channel, &mut log, ms(0)).iter().map(|m| m.1).collect();
    assert_eq!(ids, [2, 3, 4, 5, 6, 7, 8]);
}

/// A FIN names a message, not a delivery: that it was written before the offset was set is not to be seen.
#[test]
fn a_late_fin_finishes_what_the_same_client_was_given_again() {
    let (mut channel, mut log) = (channel(), Log::new(&[2]));
    subscribe(&mut channel, A, 1);
    subscribe(&mut channel, B, 1);
    assert_eq!(deliver(&mut channel, &mut log, ms(0)), [(A, 1, 1), (B, 2, 1)]);
    channel.move_to(Position::START, &mut none);
    channel.settle(true);
    channel.lend(A, 2);
    assert_eq!(deliver(&mut channel, &mut log, ms(1)), [(A, 1, 1), (A, 2, 1)]);
    assert_eq!(channel.finish(ms(2), B, LogId(2)), Err(NotInFlight), "another client has it now");
    channel.finish(ms(2), A, LogId(1)).unwrap();
    assert_eq!(channel.confirmed().log_id, LogId(2));
}

#[test]
fn an_offset_that_is_taken_back_leaves_the_cursor_where_it_was() {
    let (mut channel, mut log) = (channel(), Log::new(&[6]));
    subscribe(&mut channel, A, 100);
    deliver(&mut channel, &mut log, ms(0));
    [1, 2, 5].into_iter().for_each(|id| channel.finish(ms(0), A, LogId(id)).unwrap());
    let before = channel.image();
    channel.move_to(log.end(), &mut none);
    assert_eq!(channel.confirmed(), before.confirmed, "retention waits for the outcome");
    channel.settle(false);
    let after = channel.image();
    assert_eq!((after.confirmed, &after.intervals), (before.confirmed, &before.intervals));
    assert!(after.generation > before.generation + 1);
    let ids: Vec<u64> = deliver(&mut channel, &mut log, ms(0)).iter().map(|m| m.1).collect();
    assert_eq!(ids, [3, 4, 6]);
}

#[test]
fn a_stretch_that_is_finished_leaves_the_rest_as_it_was() {
    let (mut channel, mut log) = (channel(), Log::new(&[4, 4, 4]));
    subscribe(&mut channel, A, 6);
    assert_eq!(deliver(&mut channel, &mut log, ms(0)).len(), 6);
    [1, 3].into_iter().for_each(|id| channel.finish(ms(0), A, LogId(id)).unwrap());
    // Batches of four.
    let at = |log: &Log, id: u64| Position {
        offset: *log.batches.keys().nth((id as usize - 1) / 4).expect("it is there"),
        count: id as i64 - 1,
        log_id: LogId(id),
    };
    let mut dropped = vec![];
    // A message in flight, one that was never read, and ids below the confirmed ones.
    channel.finish_between(Interval { start: LogId(5), end: at(&log, 7) }, &mut |sub, num| dropped.push((sub, num)));
    assert_eq!(dropped, [(A, 4)]);
    assert_eq!(deliver(&mut channel, &mut log, ms(0)), [], "not before it is durable");
    channel.settle(true);
    channel.finish_between(Interval { start: LogId(1), end: at(&log, 4) }, &mut none);
    channel.settle(true);
    assert_eq!(channel.image().confirmed.log_id, LogId(4));
    channel.finish_between(Interval { start: LogId(9), end: at(&log, 11) }, &mut none);
    channel.settle(false);
    assert_eq!((channel.image().confirmed.log_id, channel.depth(log.end())), (LogId(4), 7));
    channel.lend(A, 100);
    let ids: Vec<u64> = deliver(&mut channel, &mut log, ms(0)).iter().map(|m| m.1).collect();
    assert_eq!(ids, [4, 7, 8, 9, 10, 11, 12]);
}

#[derive(Clone, Debug)]
enum Step {
    Publish(usize),
    Subscribe {
        client: usize,
        ranged: bool,
    },
    Unsubscribe(usize),
    Lend {
        client: usize,
        credit: u32,
    },
    Block {
        client: usize,
        blocked: bool,
    },
    Deliver {
        pending: bool,
    },
    Finish {
        settles: Option<bool>,
    },
    FinishLate(u64),
    Settle(bool),
    Requeue,
    Advance(u64),
    /// Restart, also after a crash: journaled changes that were not settled may be there or not.
    Restart {
        with_unsettled: bool,
    },
    Move(u64),
}

const CLIENTS: [SubId; 3] = [A, B, super::tests::C];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = 0..CLIENTS.len();
    let step = prop_oneof![
        4 => (1usize..6).prop_map(Step::Publish),
        4 => (client.clone(), any::<bool>()).prop_map(|(client, ranged)| Step::Subscribe { client, ranged }),
        1 => client.clone().prop_map(Step::Unsubscribe),
        4 => (client.clone(), 0u32..5).prop_map(|(client, credit)| Step::Lend { client, credit }),
        1 => (client.clone(), any::<bool>()).prop_map(|(client, blocked)| Step::Block { client, blocked }),
        12 => prop::bool::weighted(0.2).prop_map(|pending| Step::Deliver { pending }),
        10 => prop::option::weighted(0.8, prop::bool::weighted(0.8)).prop_map(|settles| Step::Finish { settles }),
        2 => (1u64..40).prop_map(Step::FinishLate),
        4 => prop::bool::weighted(0.7).prop_map(Step::Settle),
        3 => Just(Step::Requeue),
        2 => (0u64..2 * TIMEOUT_MS).prop_map(Step::Advance),
        1 => any::<bool>().prop_map(|with_unsettled| Step::Restart { with_unsettled }),
        1 => (0u64..40).prop_map(Step::Move),
    ];
    prop::collection::vec(step, 1..120)
}

/// Model of an ordered channel: the invariants, by what was delivered and finished.
struct Life {
    channel: Channel,
    log: Log,
    now: u64,
    /// The first message that is not finished, and where it goes when the change that waits is settled or not.
    next: u64,
    unsettled: Option<(u64, u64)>,
    /// Client that has the message.
    out: Option<SubId>,
    delivered: u64,
}

impl Life {
    fn position(&self, id: u64) -> Position {
        let batch = self.log.batches.values().find(|b| b.header.log_id.get() <= id && id <= b.header.last_log_id.get());
        let Some(batch) = batch else { return self.log.end() };
        let start = batch.header.start();
        Position { offset: start.offset, count: id as i64 - 1, log_id: LogId(id) }
    }

    fn step(&mut self, step: Step) {
        let now = ms(self.now);
        let channel = &mut self.channel;
        match step {
            Step::Publish(num) => drop(self.log.publish(num)),
            Step::Subscribe { client, ranged } => {
                if channel.clients().all(|c| c != CLIENTS[client]) {
                    let options = crate::seam::message::SubOptions { ranged, ..options(0) };
                    channel.subscribe(CLIENTS[client], options);
                }
            }
            Step::Unsubscribe(client) => {
                channel.unsubscribe(CLIENTS[client]);
                self.out = self.out.filter(|c| *c != CLIENTS[client]);
            }
            Step::Lend { client, credit } => channel.lend(CLIENTS[client], credit),
            Step::Block { client, blocked } => channel.block(CLIENTS[client], blocked),
            Step::Deliver { pending } => {
                if pending {
                    self.log.answers = self.log.batches.keys().map(|&at| (at, Fetch::Pending)).collect();
                }
                let got = deliver(channel, &mut self.log, now);
                self.log.answers.clear();
                assert!(got.len() <= 1, "one at a time: {got:?}");
                for (client, id, _) in got {
                    assert!(self.out.is_none() && self.unsettled.is_none(), "message {id} overtakes what is open");
                    assert_eq!(id, self.next, "log order");
                    self.out = Some(client);
                    self.delivered += 1;
                }
            }
            Step::Finish { settles } => {
                let Some(client) = self.out.take() else { return };
                channel.finish(now, client, LogId(self.next)).expect("it has it");
                self.unsettled = Some((self.next + 1, self.next));
                if let Some(kept) = settles {
                    self.step(Step::Settle(kept));
                }
            }
            Step::FinishLate(id) => {
                for client in CLIENTS.into_iter().filter(|c| self.out != Some(*c) || id != self.next) {
                    assert_eq!(channel.finish(now, client, LogId(id)), Err(NotInFlight));
                }
            }
            Step::Settle(kept) => {
                channel.settle(kept);
                if let Some((then, else_)) = self.unsettled.take() {
                    self.next = if kept { then } else { else_ };
                }
            }
            Step::Requeue => {
                let Some(client) = self.out.take() else { return };
                channel.requeue(now, client, LogId(self.next), Duration::ZERO).expect("it has it");
            }
            Step::Advance(by) => {
                self.now += by;
                let mut late = vec![];
                channel.tick(ms(self.now), &mut |sub, num| late.push((sub, num)));
                assert!(late.len() <= 1);
                if let [(client, num)] = late[..] {
                    assert_eq!((Some(client), num), (self.out.take(), 1));
                }
            }
            Step::Restart { with_unsettled } => {
                let mut image = channel.image();
                if !with_unsettled {
                    image.confirmed = self.position(self.next);
                }
                if let (true, Some((then, _))) = (with_unsettled, self.unsettled) {
                    self.next = then;
                }
                (self.unsettled, self.out) = (None, None);
                self.channel = channel_at(CursorImage { intervals: vec![], ..image });
            }
            Step::Move(id) => {
                let to = (id.max(1)).min(self.log.end().log_id.0);
                let at = self.position(to);
                if self.channel.is_syncing() {
                    return;
                }
                self.channel.move_to(at, &mut none);
                (self.unsettled, self.out) = (Some((at.log_id.0, self.next)), None);
            }
        }
    }

    fn check(&self) {
        let image = self.channel.image();
        let (now, then) = (self.next, self.unsettled.map_or(self.next, |u| u.0));
        assert_eq!((image.confirmed, image.intervals.len()), (self.position(then), 0));
        assert_eq!(self.channel.confirmed(), self.position(now.min(then)));
        assert_eq!(self.channel.in_flight_count(), self.out.is_some() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn order_is_never_broken(steps in steps()) {
        let mut life = Life { channel: ordered(), log: Log::new(&[]), now: 0, next: 1, unsettled: None, out: None, delivered: 0 };
        for step in steps {
            life.step(step);
            life.check();
        }
        // After any course of events, one client that finishes everything gets all remaining messages, in order.
        life.step(Step::Settle(true));
        for client in 0..CLIENTS.len() {
            life.step(Step::Unsubscribe(client));
        }
        life.step(Step::Subscribe { client: 0, ranged: false });
        let left = life.log.end().log_id.0 - life.next;
        let before = life.delivered;
        for _ in 0..left {
            life.step(Step::Lend { client: 0, credit: 1 });
            life.step(Step::Deliver { pending: false });
            life.step(Step::Finish { settles: Some(true) });
            life.check();
        }
        assert_eq!(life.delivered - before, left);
    }
}
