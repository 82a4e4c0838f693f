//! Losses that an operator accepted: the leader tells the store, and a replica that returns with the lost data begins anew.

use super::rig::{Rig, log_of, n, run_of};
use crate::base::{Epoch, Position, Ticks};
use crate::codec::peer::message::{Align, Aligned, Body, Standing};
use crate::format::snapshot::Doubt;
use crate::replica::model::log::{ModelLog, tail_of};
use crate::replica::states::State;
use crate::replica::{Alarm, Effect, Event, LogView, LossKind, ReplicaOptions};
use crate::seam::membership::GivenUp;

/// Epoch 5 opened with a log of epoch 1 that ends there.
fn loss(last_epoch: u64, end: i64) -> GivenUp {
    GivenUp { epoch: Epoch(5), last_epoch: Epoch(last_epoch), end }
}

/// Node 1 returns with a log of these epochs, all of it committed; node 2 leads in epoch 5.
fn returned(epochs: &[u64], isr: &[u8], given_up: Option<GivenUp>) -> (Rig, Standing) {
    let mut rig = Rig::new();
    let log = log_of(epochs);
    let mut disk = log.disk.clone();
    (disk.committed, disk.promised) = (log.end().at, Epoch(epochs[epochs.len() - 1]));
    rig.node.log = ModelLog::recover(disk);
    rig.node.restart(ReplicaOptions::default());
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    let mut m = rig.membership(5, 2, isr);
    m.given_up = given_up;
    rig.give(Event::Metadata(m));
    rig.inquired(5, 1);
    let Body::Standing(standing) = rig.last(2) else { panic!("no standing") };
    (rig, standing)
}

#[test]
fn a_replica_that_returns_behind_an_accepted_loss_begins_anew() {
    let leader = log_of(&[1, 1, 5]);
    let opened_at = leader.batches[1].header.end();
    let (mut rig, standing) = returned(&[1, 1, 1, 1], &[2, 3], Some(loss(1, opened_at.offset)));
    assert_eq!((standing.committed, standing.durable), (Position::START, log_of(&[1, 1, 1, 1]).end().at));
    rig.hear(2, 5, 1, Body::Align(Align::Truncate { at: opened_at, chain_crc: None }));
    rig.settle();
    assert_eq!((rig.state(), rig.last(2)), (State::Aligned, Body::Aligned(Aligned { at: Position::START })));
    let effects = rig.effects();
    assert!(!effects.iter().any(|e| matches!(e, Effect::Alarm(_))), "{effects:?}");
    assert_eq!((rig.end(), rig.node.log.disk.committed), (Position::START, Position::START));
    rig.hear(2, 5, 1, run_of(&leader, 0, leader.end().at));
    rig.settle();
    assert_eq!((rig.end(), rig.node.member.committed()), (leader.end().at, leader.end().at));
}

#[test]
fn nothing_goes_that_no_operator_gave_up() {
    let own = log_of(&[1, 1, 1]);
    let (second, third) = (own.batches[1].header.end(), own.end().at);
    let kept = [
        // Nothing was given up.
        (&[1, 1, 1][..], &[2, 3][..], None),
        // All that it knows to be committed stands in the log that went on.
        (&[1, 1, 1], &[2, 3], Some(loss(1, third.offset))),
        // The loss lies behind the replica: its data was committed afterwards.
        (&[1, 1, 5], &[2, 3], Some(loss(1, second.offset))),
        // It is in sync.
        (&[1, 1, 1], &[1, 2, 3], Some(loss(1, second.offset))),
    ];
    for (epochs, isr, given_up) in kept {
        let (mut rig, standing) = returned(epochs, isr, given_up);
        let end = log_of(epochs).end().at;
        assert_eq!(standing.committed, end, "{epochs:?} {given_up:?}");
        rig.hear(2, 5, 1, Body::Align(Align::Truncate { at: log_of(epochs).batches[0].header.end(), chain_crc: None }));
        rig.settle();
        assert_eq!(rig.end(), end, "{epochs:?} {given_up:?}");
        assert!(rig.effects().iter().any(|e| matches!(e, Effect::Alarm(Alarm::BelowCommitted { .. }))));
    }
}

/// A log that parted before the loss is given up, even one that is shorter than the leader's.
#[test]
fn a_log_that_parted_before_the_loss_is_given_up_as_well() {
    let (rig, standing) = returned(&[1, 2, 2], &[2, 3], Some(loss(3, 10_000)));
    assert_eq!((standing.committed, rig.state()), (Position::START, State::Apart));
}

/// Found by seed 20635 of the cluster simulator: retention had removed more of the replica's log than the leader had.
#[test]
fn a_replica_whose_log_begins_behind_the_leader_s_end_begins_anew() {
    let mut rig = Rig::new();
    let mut disk = log_of(&[1, 1, 1, 1]).disk;
    disk.committed = log_of(&[1, 1, 1, 1]).end().at;
    disk.start = tail_of(&disk.batches[2]);
    disk.batches.drain(..3);
    rig.node.log = ModelLog::recover(disk);
    rig.node.restart(ReplicaOptions::default());
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    let mut m = rig.membership(5, 2, &[2, 3]);
    m.given_up = Some(loss(1, log_of(&[1]).end().at.offset));
    rig.give(Event::Metadata(m));
    rig.inquired(5, 1);
    let Body::Standing(standing) = rig.last(2) else { panic!("no standing") };
    assert_eq!(standing.committed, Position::START, "its log begins at {:?}", standing.start);
}

/// A replica that lost some of its log cannot know the epochs in which that part was committed.
#[test]
fn a_replica_that_lost_committed_data_itself_is_kept() {
    let mut rig = Rig::new();
    let mut disk = log_of(&[1, 1]).disk;
    disk.committed = log_of(&[1, 1, 1]).end().at;
    rig.node.log = ModelLog::recover(disk);
    rig.node.restart(ReplicaOptions::default());
    let mut m = rig.membership(5, 2, &[2, 3]);
    m.given_up = Some(loss(1, 10));
    rig.give(Event::Metadata(m));
    rig.inquired(5, 1);
    let Body::Standing(standing) = rig.last(2) else { panic!("no standing") };
    assert_eq!(standing.committed, log_of(&[1, 1, 1]).end().at);
}

/// The log of node 1 went on without what node 3, which is not in sync, has.
fn with_one_that_stays_out() -> (Rig, u32) {
    let mut rig = Rig::with_batches(2);
    rig.lead(5);
    rig.said(3);
    rig.give(Event::Connected { node: n(3) });
    rig.wait(ReplicaOptions::default().retry);
    let session = rig.session(3);
    let full = log_of(&[1, 1, 1, 1]);
    rig.hear(3, 5, session, Body::Standing(Rig::standing(&full, full.end().at, false)));
    (rig, session)
}

/// Found by seed 6011 of the cluster simulator: retention had removed the beginning of the log that went on. A replica that returned was
/// restarted there, as if it were merely behind.
#[test]
fn a_replica_that_returns_beside_a_log_that_has_grown_and_lost_its_beginning_stays_out() {
    let returned = log_of(&[1, 1, 2, 2]);
    // The log with which epoch 5 opens, all of it, and the number of batches that retention removed.
    for (opened, epochs, removed) in [(&[1, 1][..], &[1, 1, 5, 5, 5, 5, 5][..], 5), (&[1, 1, 3, 3, 3], &[1, 1, 3, 3, 3, 5, 5], 1)]
    {
        let mut rig = Rig::new();
        rig.node.log = ModelLog::recover(log_of(opened).disk);
        rig.lead(5);
        let mut disk = log_of(epochs).disk;
        disk.start = tail_of(&disk.batches[removed - 1]);
        disk.batches.drain(..removed);
        rig.node.log = ModelLog::recover(disk);
        rig.said(3);
        rig.give(Event::Connected { node: n(3) });
        rig.wait(ReplicaOptions::default().retry);
        let session = rig.session(3);
        rig.hear(3, 5, session, Body::Standing(Rig::standing(&returned, returned.end().at, false)));
        let is_aligned = rig.said(3).into_iter().any(|message| matches!(message.body, Body::Align(_)));
        let stays_out = rig.effects().iter().any(|e| matches!(e, Effect::Alarm(Alarm::StaysOut { .. })));
        assert_eq!((is_aligned, stays_out), (false, true), "{epochs:?}");
        // A replica that merely lags begins where this log does.
        rig.wait(ReplicaOptions::default().follower_limit);
        let session = rig.session(3);
        let behind = log_of(&opened[..1]);
        rig.hear(3, 5, session, Body::Standing(Rig::standing(&behind, behind.end().at, false)));
        assert!(matches!(rig.last(3), Body::Align(_)));
    }
}

fn told(rig: &mut Rig) -> Vec<GivenUp> {
    let loss = |e| if let Effect::GiveUp { loss } = e { Some(loss) } else { None };
    rig.effects().into_iter().filter_map(loss).collect()
}

#[test]
fn an_open_leader_asks_an_operator_about_a_replica_that_stays_out() {
    let (mut rig, _) = with_one_that_stays_out();
    let opened_at = rig.end();
    let committed = log_of(&[1, 1, 1, 1]).end().at;
    let effects = rig.effects();
    assert!(effects.iter().any(|e| matches!(e, Effect::Alarm(Alarm::StaysOut { node, .. }) if *node == n(3))), "{effects:?}");
    assert!(!effects.iter().any(|e| matches!(e, Effect::GiveUp { .. })), "nothing goes by itself");
    let found = rig.node.member.loss().expect("it is named");
    assert_eq!((found.kind, found.from.offset, found.to), (LossKind::StaysOut, opened_at.offset, committed));
    rig.give(Event::AcceptLoss { from: found.from });
    let accepted = loss(1, opened_at.offset);
    assert_eq!((told(&mut rig), rig.node.member.loss()), (vec![accepted], None));
    // The store did not hear of it.
    let retry = ReplicaOptions::default().retry;
    rig.wait(retry);
    assert_eq!(told(&mut rig), [accepted]);
    let mut m = rig.membership(5, 1, &[1, 2]);
    m.given_up = Some(accepted);
    rig.give(Event::Metadata(m));
    rig.wait(retry);
    assert_eq!((told(&mut rig), rig.state()), (vec![], State::Open));
}

#[test]
fn the_alarm_ends_when_the_replica_is_in_step() {
    let (mut rig, _) = with_one_that_stays_out();
    rig.effects();
    rig.wait(ReplicaOptions::default().follower_limit);
    let session = rig.session(3);
    rig.hear(3, 5, session, Body::Standing(Rig::standing(&log_of(&[1]), Position::START, true)));
    let at = log_of(&[1]).end().at;
    rig.hear(3, 5, session, Body::Aligned(Aligned { at }));
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::AlarmOver)));
    assert_eq!(rig.node.member.loss(), None);
}

#[test]
fn a_loss_that_was_accepted_at_an_opening_is_told_once_the_epoch_is_open() {
    let mut rig = Rig::new();
    let mut disk = log_of(&[1, 1]).disk;
    disk.doubt = Doubt::Lost;
    rig.node.log = ModelLog::recover(disk);
    rig.metadata(5, 1, &[1, 2, 3]);
    rig.settle();
    let session = rig.session(2);
    rig.hear(2, 5, session, Body::Standing(Rig::standing(&log_of(&[1, 1]), Position::START, true)));
    let from = rig.node.member.loss().expect("it is named").from;
    rig.give(Event::AcceptLoss { from });
    assert_eq!((rig.state(), told(&mut rig)), (State::Settling, vec![]));
    let at = rig.end();
    rig.hear(2, 5, session, Body::Aligned(Aligned { at }));
    rig.listed(2, 5, session);
    rig.metadata(5, 1, &[1, 2]);
    assert_eq!((rig.state(), told(&mut rig)), (State::Open, vec![loss(1, at.offset)]));
}

/// A replica in sync lost its tail and remembers that the tail was committed. Without it the ISR would be too small, so the epoch opens
/// with it or not at all.
#[test]
fn an_accepted_loss_opens_the_epoch_beside_a_replica_that_remembers_more() {
    let full = log_of(&[1, 1, 1]).end().at;
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(log_of(&[1, 1]).disk);
    rig.node.log.memory_from = 0;
    rig.metadata(5, 1, &[1, 2]);
    rig.settle();
    let session = rig.session(2);
    rig.hear(2, 5, session, Body::Standing(Rig::standing(&log_of(&[1]), full, true)));
    let found = rig.node.member.loss().expect("it is named");
    assert_eq!((found.kind, found.from, found.to), (LossKind::Tail, rig.end(), full));
    rig.effects();
    rig.give(Event::AcceptLoss { from: found.from });
    let at = log_of(&[1]).end().at;
    assert_eq!((rig.state(), rig.last(2)), (State::Settling, Body::Align(Align::Truncate { at, chain_crc: None })));
    rig.hear(2, 5, session, Body::Aligned(Aligned { at }));
    rig.ack(2, 5, session);
    rig.listed(2, 5, session);
    assert_eq!((rig.state(), told(&mut rig)), (State::Open, vec![loss(1, rig.end().offset)]));
    assert_eq!(rig.node.member.loss(), None, "nobody stays out");
}

/// Node 1 lost its last batch, which it remembers to be committed; node 2 opened epoch 5 after an operator accepted that.
#[test]
fn a_replica_in_step_forgets_what_was_given_up() {
    let mut rig = Rig::new();
    let mut disk = log_of(&[1, 1]).disk;
    disk.committed = log_of(&[1, 1, 1]).end().at;
    let (remembered, end) = (disk.committed, log_of(&[1, 1]).end().at);
    rig.node.log = ModelLog::recover(disk);
    rig.node.restart(ReplicaOptions::default());
    rig.follow(5);
    let empty = run_of(&log_of(&[]), 0, end);
    rig.hear(2, 5, 1, empty.clone());
    assert_eq!(rig.node.member.committed(), remembered, "no operator gave it up");
    for (given_up, committed) in [
        (GivenUp { epoch: Epoch(4), ..loss(1, end.offset) }, remembered),
        (loss(1, end.offset + 1), remembered),
        (loss(1, end.offset), end),
    ] {
        let mut m = rig.membership(5, 2, &[1, 2, 3]);
        m.given_up = Some(given_up);
        rig.give(Event::Metadata(m));
        rig.hear(2, 5, 1, empty.clone());
        rig.settle();
        assert_eq!((rig.node.member.committed(), rig.node.log.disk.committed), (committed, committed), "{given_up:?}");
    }
}

#[test]
fn a_leader_that_starts_again_asks_about_no_accepted_loss_a_second_time() {
    let mut rig = Rig::new();
    let mut disk = log_of(&[1, 1]).disk;
    disk.committed = log_of(&[1, 1, 1]).end().at;
    rig.node.log = ModelLog::recover(disk);
    rig.node.restart(ReplicaOptions::default());
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    let standing = |log: &[u64]| Body::Standing(Rig::standing(&log_of(log), Position::START, false));
    rig.metadata(4, 2, &[1, 2]);
    rig.metadata(5, 1, &[1, 2]);
    rig.settle();
    let session = rig.session(2);
    rig.hear(2, 5, session, standing(&[1, 1]));
    let found = rig.node.member.loss().expect("it is named");
    rig.give(Event::AcceptLoss { from: found.from });
    rig.settle();
    assert_eq!(rig.state(), State::Settling);
    rig.node.restart(ReplicaOptions::default());
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    rig.metadata(6, 2, &[1, 2]);
    rig.metadata(7, 1, &[1, 2]);
    rig.settle();
    let session = rig.session(2);
    rig.hear(2, 7, session, standing(&[1, 1]));
    assert_eq!((rig.state(), rig.node.member.loss()), (State::Settling, None));
}
