//! Opening of an epoch by a leader (rule 2).

use super::rig::{Rig, cursor, log_of, n, run_of};
use crate::base::{Epoch, Position};
use crate::codec::peer::message::{Ack, Align, Aligned, Append, Batches, Body, CursorsAck, Pulled};
use crate::format::snapshot::Doubt;
use crate::replica::model::log::ModelLog;
use crate::replica::states::State;
use crate::replica::{Alarm, Effect, Event, LogView, LossKind, ReplicaError, ReplicaOptions};
use crate::{codec::peer::error::PeerError, seam::membership::Membership};
use std::time::Duration;

/// Node 1 with this log leads epoch 5 of an ISR, and has asked.
fn asking(log: &[u64], isr: &[u8]) -> Rig {
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(log_of(log).disk);
    rig.metadata(5, 1, isr);
    rig.settle();
    assert_eq!(rig.state(), State::Asking);
    rig
}

fn stands(rig: &mut Rig, from: u8, log: &ModelLog, committed: Position, suspect: bool) {
    let session = rig.session(from);
    rig.hear(from, 5, session, Body::Standing(Rig::standing(log, committed, suspect)));
}

/// A sound member stands there, and is not made the leader for as long as it is waited for.
fn handed_over(rig: &mut Rig, from: u8, log: &ModelLog) {
    stands(rig, from, log, Position::START, false);
    assert_eq!(rig.state(), State::Asking);
    let options = crate::replica::ReplicaOptions::default();
    rig.wait(options.write_limit + options.follower_limit);
    stands(rig, from, log, Position::START, false);
}

fn alarms(rig: &mut Rig) -> Vec<Alarm> {
    rig.effects().into_iter().filter_map(|e| if let Effect::Alarm(a) = e { Some(a) } else { None }).collect()
}

/// The source's batches come, as asked for.
fn pulled(rig: &mut Rig, from: u8, source: &ModelLog) {
    let said = rig.said(from);
    let pull = said.iter().rev().find(|m| matches!(m.body, Body::Pull(_))).expect("it pulls");
    let Body::Pull(ask) = pull.body else { unreachable!() };
    let (_, batches) = source.read(ask.from.offset, ask.bytes_max as usize);
    let batches = Batches::new(batches.expect("the source has it"));
    rig.hear(from, 5, pull.head.session.0, Body::Pulled(Pulled { from: ask.from, batches }));
}

#[test]
fn its_own_promise_is_durable_before_it_asks() {
    let mut rig = Rig::with_batches(2);
    rig.metadata(5, 1, &[1, 2, 3]);
    assert!(rig.said(2).is_empty());
    assert_eq!(rig.state(), State::Claiming);
    rig.settle();
    assert!(matches!(rig.last(2), Body::Inquire(_)));
    assert_eq!(rig.node.log.disk.promised, Epoch(5));
}

#[test]
fn it_waits_for_min_isr_members_and_writes_only_when_its_tail_is_committed() {
    let mut rig = asking(&[1, 1], &[1, 2, 3]);
    assert_eq!(rig.node.member.check_write(rig.now), Err(ReplicaError::Opening));
    let same = log_of(&[1, 1]);
    let session = {
        let session = rig.session(2);
        rig.hear(2, 5, session, Body::Standing(Rig::standing(&same, Position::START, false)));
        session
    };
    assert_eq!(rig.state(), State::Settling);
    let Body::Align(Align::Truncate { at, chain_crc }) = rig.last(2) else { panic!("no order") };
    assert_eq!((at, chain_crc), (rig.end(), Some(rig.node.log.end().chain_crc)));
    rig.hear(2, 5, session, Body::Aligned(Aligned { at }));
    assert_eq!(rig.state(), State::Settling, "node 3 is in the ISR, too");
    assert_eq!(rig.node.member.check_write(rig.now), Err(ReplicaError::Opening), "its tail is not committed");
    stands(&mut rig, 3, &log_of(&[1]), Position::START, false);
    let Body::Align(Align::Truncate { at, chain_crc: None }) = rig.last(3) else { panic!("no order") };
    assert_eq!(at, log_of(&[1]).end().at);
}

/// A channel that the former leader told only to this replica is answered as final once the partition is open: all replicas that may lead
/// next must have it then. An operator raised min_isr above the number of in-sync replicas, and the leader began again. In-sync replicas
/// have everything, so the leader opens, and others can join.
#[test]
fn an_isr_below_a_raised_min_isr_opens_when_all_of_it_answered() {
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(log_of(&[1, 1]).disk);
    rig.metadata(5, 1, &[1]);
    rig.settle();
    assert_eq!(rig.state(), State::Open, "it needs nobody else");
    let refused = ReplicaError::IsrTooSmall { isr: 1, min_isr: 2 };
    assert_eq!(rig.node.member.check_write(rig.now), Err(refused));
    assert_eq!(rig.node.member.committed(), rig.end(), "its tail");
    let (session, theirs, at) = (rig.session(2), log_of(&[1, 1]), rig.end());
    rig.hear(2, 5, session, Body::Standing(Rig::standing(&theirs, Position::START, false)));
    rig.hear(2, 5, session, Body::Aligned(Aligned { at }));
    rig.listed(2, 5, session);
    let proposed = rig.effects().into_iter().find_map(|e| if let Effect::Propose { isr, .. } = e { Some(isr) } else { None });
    assert_eq!(proposed, Some(vec![n(1), n(2)]), "who has everything joins");
    rig.metadata(5, 1, &[1, 2]);
    assert_eq!(rig.node.member.check_write(rig.now), Ok(()));

    // Two of three that are in sync, where three are wanted: both are heard.
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(log_of(&[1, 1]).disk);
    let membership = Membership { min_isr: 3, ..rig.membership(5, 1, &[1, 2]) };
    rig.give(Event::Metadata(membership));
    rig.settle();
    assert_eq!(rig.state(), State::Asking);
    stands(&mut rig, 2, &log_of(&[1, 1]), Position::START, false);
    assert_eq!(rig.state(), State::Settling);
}

#[test]
fn it_opens_when_every_member_of_the_isr_has_confirmed_its_channels() {
    let mut rig = asking(&[1, 1], &[1, 2, 3]);
    let image = cursor("c", 1, 1, rig.end());
    rig.node.log.channels.insert(image.name.clone(), image);
    let session = [2, 3].map(|node| {
        let session = rig.session(node);
        rig.hear(node, 5, session, Body::Standing(Rig::standing(&log_of(&[1, 1]), Position::START, false)));
        session
    });
    let at = rig.end();
    for node in [2, 3] {
        rig.hear(node, 5, session[node as usize - 2], Body::Aligned(Aligned { at }));
    }
    assert_eq!((rig.state(), rig.node.member.committed()), (State::Settling, at), "the log alone is on all of them");
    rig.listed(2, 5, session[0]);
    assert_eq!(rig.state(), State::Settling);
    // The last one could not take all of it, and gets it again.
    let list = |rig: &mut Rig| {
        let lists = rig.said(3).into_iter().filter_map(|m| if let Body::Cursors(c) = m.body { Some(c) } else { None });
        lists.filter(|c| c.is_all).last().expect("a list")
    };
    let first = list(&mut rig);
    assert_eq!(first.cursors.len(), 1);
    let clamped = CursorsAck { seq: first.seq, result: Err(PeerError::Clamped) };
    rig.hear(3, 5, session[1], Body::CursorsAck(clamped));
    assert_eq!(rig.state(), State::Settling);
    rig.wait(ReplicaOptions::default().cursor_interval);
    let again = list(&mut rig);
    rig.hear(3, 5, session[1], Body::CursorsAck(CursorsAck { seq: again.seq, result: Ok(()) }));
    assert_eq!(rig.state(), State::Open);
    // A replica that begins another session has had them.
    rig.give(Event::Disconnected { node: n(2) });
    rig.give(Event::Connected { node: n(2) });
    assert_eq!(rig.state(), State::Open);
}

/// The member answers everything else, so nothing but the list tells that it cannot be waited for.
#[test]
fn a_member_that_does_not_confirm_the_channels_is_to_be_removed() {
    let mut rig = asking(&[1, 1], &[1, 2, 3]);
    let log = log_of(&[1, 1]);
    let mut proposed = vec![];
    let (mut waited, step) = (Duration::ZERO, Duration::from_millis(50));
    while proposed.is_empty() && waited < Duration::from_secs(20) {
        for node in [2, 3] {
            for said in rig.said(node) {
                let answer = match said.body {
                    Body::Inquire(_) => Body::Standing(Rig::standing(&log, Position::START, false)),
                    Body::Align(Align::Truncate { at, .. }) => Body::Aligned(Aligned { at }),
                    Body::Append(_) => Body::Ack(Ack { durable: rig.end() }),
                    Body::Cursors(c) if node == 2 => Body::CursorsAck(CursorsAck { seq: c.seq, result: Ok(()) }),
                    _ => continue,
                };
                rig.hear(node, 5, said.head.session.0, answer);
            }
        }
        assert_eq!(rig.state(), State::Settling);
        rig.wait(step);
        waited += step;
        proposed = rig
            .effects()
            .into_iter()
            .filter_map(|e| if let Effect::Propose { isr, .. } = e { Some(isr) } else { None })
            .collect();
    }
    assert_eq!(proposed, [vec![n(1), n(2)]]);
    assert!(waited >= ReplicaOptions::default().follower_limit && waited < 2 * ReplicaOptions::default().follower_limit);
    // The store takes it.
    rig.metadata(5, 1, &[1, 2]);
    rig.wait(step);
    assert_eq!(rig.state(), State::Open);
}

#[test]
fn the_highest_log_is_taken() {
    let mut rig = asking(&[1], &[1, 2, 3]);
    let better = log_of(&[1, 2, 2]);
    stands(&mut rig, 2, &better, Position::START, false);
    assert_eq!(rig.state(), State::Fetching);
    pulled(&mut rig, 2, &better);
    assert_eq!(rig.state(), State::Fetching, "not durable yet");
    rig.settle();
    assert_eq!((rig.state(), rig.end()), (State::Settling, better.end().at));
}

#[test]
fn its_own_tail_goes_only_where_a_later_epoch_went_another_way() {
    // An older epoch, however long, changes nothing.
    let mut rig = asking(&[1, 3], &[1, 2, 3]);
    stands(&mut rig, 2, &log_of(&[1, 2, 2, 2]), Position::START, false);
    assert_eq!((rig.state(), rig.end()), (State::Settling, log_of(&[1, 3]).end().at));
    // The same epoch and less of it changes nothing either.
    let mut rig = asking(&[1, 3, 3], &[1, 2, 3]);
    stands(&mut rig, 2, &log_of(&[1, 3]), Position::START, false);
    assert_eq!((rig.state(), rig.end()), (State::Settling, log_of(&[1, 3, 3]).end().at));
    let mut rig = asking(&[1, 2, 2], &[1, 2, 3]);
    let better = log_of(&[1, 3]);
    stands(&mut rig, 2, &better, Position::START, false);
    assert_eq!((rig.state(), rig.end()), (State::Trimming, log_of(&[1]).end().at));
    rig.settle();
    pulled(&mut rig, 2, &better);
    rig.settle();
    assert_eq!((rig.state(), rig.end()), (State::Settling, better.end().at));
}

/// Only an edit by hand puts two logs that parted into one ISR. An operator decides then, also where both must be in sync.
#[test]
fn what_it_knows_to_be_committed_is_truncated_for_another_log_only_if_an_operator_accepts_that() {
    let mut rig = Rig::new();
    let mut disk = log_of(&[1, 2]).disk;
    let committed = log_of(&[1, 2]).end().at;
    disk.committed = committed;
    rig.node.log = ModelLog::recover(disk);
    rig.node.restart(Default::default());
    rig.give(Event::Lease { until: crate::base::Ticks(u64::MAX) });
    // It may have opened the first epoch that it hears of.
    rig.metadata(4, 1, &[1, 2]);
    rig.metadata(5, 1, &[1, 2]);
    rig.settle();
    let better = log_of(&[1, 3, 3]);
    stands(&mut rig, 2, &better, Position::START, false);
    assert_eq!(alarms(&mut rig), vec![Alarm::CommittedMissing { committed }]);
    assert_eq!((rig.state(), rig.end()), (State::Asking, committed));
    let parted = log_of(&[1]).end().at;
    let loss = rig.node.member.loss().expect("it is named");
    assert_eq!((loss.kind, loss.from, loss.to), (LossKind::Tail, parted, committed));
    let beyond = Position { offset: parted.offset + 1, ..parted };
    rig.give(Event::AcceptLoss { from: beyond });
    assert_eq!((rig.state(), rig.end()), (State::Asking, committed), "more would be lost than was accepted");

    rig.give(Event::AcceptLoss { from: loss.from });
    assert_eq!((rig.state(), rig.node.log.doubt()), (State::Trimming, Doubt::Lost), "a crash that comes now leaves it suspect");
    rig.settle();
    assert_eq!((rig.end(), rig.node.log.disk.committed), (parted, parted));
    pulled(&mut rig, 2, &better);
    rig.settle();
    assert_eq!((rig.state(), rig.end(), rig.node.log.doubt()), (State::Settling, better.end().at, Doubt::None));
}

#[test]
fn a_suspect_needs_another_to_compare_with() {
    let suspect = |isr: &[u8]| {
        let mut rig = Rig::new();
        let mut disk = log_of(&[1]).disk;
        disk.doubt = Doubt::Lost;
        rig.node.log = ModelLog::recover(disk);
        rig.metadata(4, 2, isr);
        rig.metadata(5, 1, isr);
        rig.settle();
        rig
    };
    let full = log_of(&[1, 1]);
    let mut rig = suspect(&[1, 2]);
    stands(&mut rig, 2, &full, full.end().at, false);
    assert_eq!(rig.state(), State::Asking, "the other one is sound");
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::Resign { .. })));
    let options = crate::replica::ReplicaOptions::default();
    rig.wait(options.write_limit + options.follower_limit);
    stands(&mut rig, 2, &full, full.end().at, false);
    assert_eq!(rig.state(), State::Fetching, "and nobody makes it lead");
    // Two suspects of three: the third may have what both lost.
    let mut rig = suspect(&[1, 2, 3]);
    stands(&mut rig, 2, &log_of(&[1]), Position::START, true);
    assert_eq!((rig.state(), alarms(&mut rig)), (State::Asking, vec![Alarm::OnlySuspects]));
    stands(&mut rig, 3, &full, Position::START, true);
    assert_eq!(rig.state(), State::Asking, "all there is was compared, but others may have lost less");
    let options = crate::replica::ReplicaOptions::default();
    rig.wait(options.write_limit + options.follower_limit);
    stands(&mut rig, 3, &full, Position::START, true);
    assert_eq!(rig.state(), State::Asking, "they are asked anew");
    stands(&mut rig, 2, &log_of(&[1]), Position::START, true);
    assert_eq!(rig.state(), State::Fetching, "and nobody is better");
    // Alone in sync, with other replicas: no leader, unless an operator says so.
    let mut rig = suspect(&[1, 2]);
    let m = rig.membership(5, 1, &[1]);
    rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
    assert_eq!((rig.state(), alarms(&mut rig)), (State::Asking, vec![Alarm::OnlySuspects]));
    let loss = rig.node.member.loss().expect("it is named");
    assert_eq!((loss.kind, loss.from, loss.to), (LossKind::Unknown, rig.end(), rig.end()));
    let beyond = Position { offset: rig.end().offset + 1, ..rig.end() };
    rig.give(Event::AcceptLoss { from: beyond });
    assert_eq!(rig.state(), State::Asking, "more would be lost than was accepted");
    rig.give(Event::AcceptLoss { from: loss.from });
    assert_eq!((rig.state(), rig.node.member.loss()), (State::Open, None));
    // The decision outlives a restart.
    rig.settle();
    let disk = rig.node.log.disk.clone();
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(disk);
    let m = rig.membership(6, 1, &[1]);
    rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
    rig.settle();
    assert_eq!((rig.state(), rig.node.log.doubt()), (State::Open, Doubt::None));
}

/// A crash of all nodes tears tails, and damage took the newest snapshot of one: its channels are not final for all.
#[test]
fn who_lost_something_lets_another_suspect_lead() {
    let leading = |doubt: Doubt| {
        let mut rig = Rig::new();
        let mut disk = log_of(&[1, 1]).disk;
        disk.doubt = doubt;
        rig.node.log = ModelLog::recover(disk);
        rig.metadata(4, 2, &[1, 2]);
        rig
    };
    let opens = |rig: &mut Rig, epoch: u64| {
        rig.metadata(epoch, 1, &[1, 2]);
        rig.settle();
        rig.effects();
        let session = rig.session(2);
        let standing = Rig::standing(&log_of(&[1, 1]), Position::START, true);
        rig.hear(2, epoch, session, Body::Standing(standing));
        let resigns = rig.effects().iter().any(|e| matches!(e, Effect::Resign { .. }));
        assert_eq!(rig.state(), if resigns { State::Asking } else { State::Settling });
        !resigns
    };
    let mut rig = leading(Doubt::Torn);
    assert!(opens(&mut rig, 5), "what it truncated was never acknowledged, or is gone from both");
    let mut rig = leading(Doubt::Lost);
    let mut hand_overs = 0;
    while !opens(&mut rig, 5 + 2 * hand_overs) {
        hand_overs += 1;
        assert!(hand_overs < 100, "both lost something, and neither leads");
        rig.metadata(4 + 2 * hand_overs, 2, &[1, 2]);
    }
    assert!(hand_overs > 1, "the other one may have gone down at once");
}

/// The log is truncated at the damage, and cursors behind it go with it (seed 471528332 of 8aa5a32).
#[test]
fn who_found_damage_below_what_is_committed_lets_another_suspect_lead() {
    let full = log_of(&[1, 1]);
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(full.disk.clone());
    rig.follow(4);
    let committed = full.end().at;
    rig.hear(2, 4, 1, Body::Append(Append { committed, batches: Batches::new(vec![]) }));
    let damage = log_of(&[1]).end().at;
    rig.node.log.disk.hole = Some(damage.offset);
    assert_eq!((rig.node.log.doubt(), rig.node.log.vouched()), (Doubt::None, damage));
    let mut epoch = 5;
    loop {
        rig.metadata(epoch, 1, &[1, 2]);
        rig.settle();
        rig.effects();
        let session = rig.session(2);
        rig.hear(2, epoch, session, Body::Standing(Rig::standing(&full, committed, true)));
        if !rig.effects().iter().any(|e| matches!(e, Effect::Resign { .. })) {
            assert!(epoch > 7, "the other one may have gone down at once");
            assert_eq!(
                (rig.state(), rig.node.log.doubt()),
                (State::Trimming, Doubt::Lost),
                "a crash that comes now leaves it suspect"
            );
            break;
        }
        assert_eq!(rig.state(), State::Asking);
        rig.metadata(epoch + 1, 2, &[1, 2]);
        epoch += 2;
        assert!(epoch < 100, "both lost something, and neither leads");
    }
}

#[test]
fn the_only_one_in_sync_leads_with_what_a_crash_left_of_its_tail() {
    let torn = |isr: &[u8], doubt: Doubt, hole: Option<i64>| {
        let mut rig = Rig::new();
        let mut disk = log_of(&[1, 1]).disk;
        (disk.doubt, disk.hole) = (doubt, hole);
        rig.node.log = ModelLog::recover(disk);
        for epoch in [4, 5] {
            let m = rig.membership(epoch, 1, isr);
            rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
        }
        rig.settle();
        rig
    };
    let mut rig = torn(&[1], Doubt::Torn, None);
    assert_eq!((rig.state(), alarms(&mut rig)), (State::Open, vec![]));
    assert_eq!(rig.node.log.doubt(), Doubt::None, "its log is the log from now on");
    // Known losses are not taken for a torn tail.
    let hole = log_of(&[1]).end().at.offset;
    for mut rig in [torn(&[1], Doubt::Lost, None), torn(&[1], Doubt::Torn, Some(hole))] {
        assert_eq!((rig.state(), alarms(&mut rig)), (State::Asking, vec![Alarm::OnlySuspects]));
    }
    // The leader waits for other in-sync replicas, which may have the truncated data.
    let mut rig = torn(&[1, 2], Doubt::Torn, None);
    assert_eq!((rig.state(), alarms(&mut rig)), (State::Asking, vec![Alarm::OnlySuspects]));
    stands(&mut rig, 2, &log_of(&[1, 1, 1]), Position::START, true);
    assert_eq!(rig.state(), State::Fetching);
}

/// A batch that the store has no room for yet belongs to the log all the same: it comes before anything that a later role takes.
#[test]
fn what_waits_for_room_is_counted_whatever_its_role_becomes() {
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(log_of(&[1]).disk);
    rig.follow(2);
    let full = log_of(&[1, 2, 2]);
    rig.node.is_full = true;
    rig.hear(2, 2, 1, run_of(&full, 1, Position::START));
    assert_eq!((rig.node.held.len(), rig.end()), (2, log_of(&[1]).end().at));
    rig.metadata(3, 1, &[1, 2, 3]);
    rig.settle();
    assert_eq!(rig.state(), State::Claiming);
    rig.metadata(4, 2, &[1, 2, 3]);
    rig.inquired(4, 1);
    assert_eq!(rig.state(), State::Promising, "it cannot say yet where it stands");
    rig.room();
    let Body::Standing(standing) = rig.last(2) else { panic!("it stands") };
    assert_eq!((rig.state(), standing.durable), (State::Apart, full.end().at));
}

#[test]
fn a_tail_that_was_fetched_in_part_waits_for_room_before_another_log_is_chosen() {
    let mut rig = asking(&[1], &[1, 2, 3]);
    let full = log_of(&[1, 2, 2]);
    stands(&mut rig, 2, &full, Position::START, false);
    assert_eq!(rig.state(), State::Fetching);
    rig.node.is_full = true;
    let session = rig.session(2);
    let one = Batches::new(vec![full.batches[1].bytes.clone()]);
    rig.hear(2, 5, session, Body::Pulled(Pulled { from: log_of(&[1]).end().at, batches: one }));
    rig.wait(crate::replica::ReplicaOptions::default().follower_limit);
    assert_eq!((rig.state(), rig.node.held.len()), (State::Asking, 1), "its source is silent");
    stands(&mut rig, 3, &log_of(&[1]), Position::START, false);
    assert_eq!(rig.state(), State::Asking, "its own log is not all there");
    rig.room();
    assert_eq!((rig.state(), rig.end()), (State::Settling, log_of(&[1, 2]).end().at));
}

#[test]
fn the_only_replica_opens_by_itself() {
    let mut rig = Rig::new();
    let mut disk = log_of(&[1]).disk;
    disk.doubt = Doubt::Lost;
    rig.node.log = ModelLog::recover(disk);
    for epoch in [4, 5] {
        let m = rig.membership(epoch, 1, &[1]);
        rig.give(Event::Metadata(Membership { replicas: vec![n(1)], min_isr: 1, ..m }));
    }
    rig.settle();
    assert_eq!(rig.state(), State::Open);
    rig.append(5, 1);
    rig.give(Event::Sealed);
    rig.settle();
    assert_eq!(rig.node.member.committed(), rig.end());
}

#[test]
fn no_leader_rather_than_one_that_lacks_what_is_committed() {
    let mut rig = asking(&[1], &[1, 2, 3]);
    let full = log_of(&[1, 1, 1]);
    // It lost its tail, and remembers that it was committed.
    stands(&mut rig, 2, &log_of(&[1, 1]), full.end().at, true);
    assert_eq!(alarms(&mut rig), vec![Alarm::CommittedMissing { committed: full.end().at }]);
    assert_eq!(rig.state(), State::Asking);
    let loss = rig.node.member.loss().expect("it is named");
    let end = log_of(&[1, 1]).end().at;
    assert_eq!((loss.kind, loss.from, loss.to, loss.name()), (LossKind::Tail, end, full.end().at, "310-492".into()));
    stands(&mut rig, 3, &full, Position::START, false);
    assert_eq!((rig.state(), rig.node.member.loss()), (State::Fetching, None));
}

#[test]
fn an_accepted_loss_is_that_one_and_no_other() {
    let mut rig = asking(&[1], &[1, 2, 3]);
    let full = log_of(&[1, 1, 1]);
    stands(&mut rig, 2, &log_of(&[1, 1]), full.end().at, true);
    let loss = rig.node.member.loss().expect("it is named");
    rig.give(Event::AcceptLoss { from: loss.from });
    assert_eq!(rig.state(), State::Fetching);
    // The one that was to be taken is gone, and who is left has less.
    let options = crate::replica::ReplicaOptions::default();
    rig.wait(options.follower_limit);
    assert_eq!(rig.state(), State::Asking);
    let session = rig.session(3);
    rig.hear(3, 5, session, Body::Standing(Rig::standing(&log_of(&[1]), full.end().at, false)));
    assert_eq!(rig.state(), State::Asking);
    assert_eq!(rig.node.member.loss().map(|l| l.from), Some(rig.end()));
}

#[test]
fn a_hole_that_nobody_fills_is_where_the_log_goes_on() {
    let mut rig = asking(&[1, 1, 1], &[1, 2, 3]);
    let hole = rig.node.log.batches[1].header.start();
    rig.node.log.disk.hole = Some(hole.offset);
    handed_over(&mut rig, 2, &log_of(&[1]));
    assert_eq!(rig.state(), State::Trimming);
    rig.settle();
    assert_eq!((rig.state(), rig.end()), (State::Settling, hole));
}

/// The leader chose its own tail, which only it has; then that turns out rotten. It may have been acknowledged to nobody: the next
/// epoch begins before it, and a member that may have it is waited for.
#[test]
fn a_tail_that_rots_while_it_is_settled_is_decided_by_the_next_epoch() {
    let limit = crate::replica::ReplicaOptions::default().write_limit;
    let mut rig = asking(&[1, 1, 1], &[1, 2, 3]);
    let tail = rig.node.log.batches[1].header.start();
    stands(&mut rig, 2, &log_of(&[1]), Position::START, false);
    assert_eq!(rig.state(), State::Settling);
    rig.wait(limit);
    assert_eq!(rig.state(), State::Settling, "who is silent is waited for");
    rig.node.log.disk.hole = Some(tail.offset);
    let mut asks = || {
        rig.wait(limit);
        rig.effects().iter().any(|e| matches!(e, Effect::AskEpoch { above: Epoch(5) }))
    };
    assert_eq!([asks(), asks()], [false, true], "somebody may have it yet");
    assert_eq!(rig.state(), State::Settling);
    rig.metadata(6, 1, &[1, 2, 3]);
    rig.settle();
    let session = rig.session(2);
    rig.hear(2, 6, session, Body::Standing(Rig::standing(&log_of(&[1]), Position::START, true)));
    assert_eq!((rig.state(), alarms(&mut rig)), (State::Asking, vec![Alarm::OnlySuspects]), "two that lost something");
    for waits in [true, false] {
        let session = rig.session(3);
        rig.hear(3, 6, session, Body::Standing(Rig::standing(&log_of(&[1]), Position::START, false)));
        assert_eq!(rig.state() == State::Asking, waits);
        rig.wait(limit + limit);
    }
    rig.settle();
    assert_eq!((rig.state(), rig.end()), (State::Settling, tail));
}

/// Alone in sync with damage in what it knows not to be committed, it may have acknowledged that all the same.
#[test]
fn who_is_alone_in_sync_does_not_truncate_its_damage() {
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(log_of(&[1, 1]).disk);
    let tail = rig.node.log.batches[1].header.start();
    rig.node.log.disk.hole = Some(tail.offset);
    let m = rig.membership(5, 1, &[1]);
    rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
    rig.settle();
    assert_eq!((rig.state(), alarms(&mut rig)), (State::Asking, vec![Alarm::OnlySuspects]));
    assert_eq!(rig.node.member.loss().map(|l| l.from), Some(tail));
}

/// Retention took all that the leader had: its log is as long as that of the others, which still have it, and its channels stay.
#[test]
fn a_log_that_retention_emptied_is_not_taken_for_a_lesser_one() {
    let full = log_of(&[1, 2]);
    let mut disk = full.disk.clone();
    disk.start = full.end();
    disk.batches.clear();
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(disk.clone());
    rig.metadata(5, 1, &[1, 2, 3]);
    rig.settle();
    stands(&mut rig, 2, &full, full.end().at, false);
    assert_eq!((rig.state(), rig.node.log.start().0), (State::Settling, full.end().at));
    // And one of which nobody knows how it went on before takes another's.
    disk.start.epoch = Epoch(0);
    rig = Rig::new();
    rig.node.log = ModelLog::recover(disk);
    rig.metadata(5, 1, &[1, 2, 3]);
    rig.settle();
    stands(&mut rig, 2, &full, full.end().at, false);
    assert_eq!(rig.state(), State::Trimming);
}

#[test]
fn a_source_that_falls_silent_is_given_up() {
    let mut rig = asking(&[1], &[1, 2, 3]);
    stands(&mut rig, 2, &log_of(&[1, 2]), Position::START, false);
    assert_eq!(rig.state(), State::Fetching);
    rig.said(2);
    let options = crate::replica::ReplicaOptions::default();
    rig.wait(options.retry);
    assert!(rig.said(2).iter().any(|m| matches!(m.body, Body::Pull(_))), "it asks again");
    rig.wait(options.follower_limit);
    assert_eq!(rig.state(), State::Asking);
    assert!(matches!(rig.last(2), Body::Inquire(_)));
}

#[test]
fn an_epoch_is_opened_once() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    rig.node.restart(Default::default());
    rig.metadata(5, 1, &[1, 2]);
    assert_eq!(rig.state(), State::Apart);
    let asks = |e: &Effect| matches!(e, Effect::AskEpoch { above: Epoch(5) });
    assert!(rig.effects().iter().any(asks));
    rig.metadata(6, 1, &[1, 2]);
    assert_eq!(rig.state(), State::Claiming);
}

/// The promise of the epoch that it first hears of may be lost: with damage, or with the last write of a journal, of whose loss nothing
/// tells (seed 88120260003480).
#[test]
fn an_epoch_that_an_earlier_life_may_have_opened_is_not_opened() {
    for doubt in [Doubt::Lost, Doubt::None] {
        let mut rig = Rig::new();
        let mut disk = log_of(&[1]).disk;
        disk.doubt = doubt;
        rig.node.log = ModelLog::recover(disk);
        rig.node.restart(Default::default());
        for _ in 0..2 {
            rig.metadata(5, 1, &[1, 2, 3]);
            rig.settle();
            assert_eq!(rig.state(), State::Apart);
            assert!(rig.effects().iter().any(|e| matches!(e, Effect::AskEpoch { above: Epoch(5) })));
        }
        rig.metadata(6, 1, &[1, 2, 3]);
        rig.settle();
        assert_eq!(rig.state(), State::Asking);
    }
}

#[test]
fn older_epochs_are_asked_for_page_by_page() {
    // 70 epochs of its own that nobody else has, then a shared one below.
    let mut mine = vec![1];
    mine.extend(100..170);
    let mut theirs = vec![1];
    theirs.extend(200..270);
    let mut rig = Rig::new();
    rig.node.log = ModelLog::recover(log_of(&mine).disk);
    rig.metadata(500, 1, &[1, 2, 3]);
    rig.settle();
    let session = rig.session(2);
    let other = log_of(&theirs);
    rig.hear(2, 500, session, Body::Standing(Rig::standing(&other, Position::START, false)));
    let Body::EpochsAsk(ask) = rig.last(2) else { panic!("the page shares nothing") };
    let mut epochs = vec![];
    let more = other.epochs(Some(ask.below), 64, &mut epochs);
    let page = crate::codec::peer::message::Standing { epochs, more, ..Rig::standing(&other, Position::START, false) };
    rig.hear(2, 500, session, Body::Standing(page));
    assert_eq!((rig.state(), rig.end()), (State::Trimming, log_of(&[1]).end().at));
}

#[test]
fn a_leader_that_nobody_answers_lets_others_lead_and_waits_twice_as_long_each_time() {
    let mut rig = asking(&[1, 1], &[1, 2, 3]);
    let options = ReplicaOptions::default();
    let patience = options.write_limit + options.follower_limit;
    let resigns = |rig: &mut Rig| rig.effects().iter().filter(|e| matches!(e, Effect::Resign { to: None })).count();
    rig.wait(patience - Duration::from_millis(10));
    assert_eq!(resigns(&mut rig), 0);
    for doubled in 0..3 {
        rig.wait(Duration::from_millis(20));
        assert_eq!(resigns(&mut rig), 1, "wait {doubled}");
        assert_eq!(rig.state(), State::Asking, "it opens as soon as enough answer");
        rig.wait(patience * 2 * (1 << doubled) - Duration::from_millis(20));
        assert_eq!(resigns(&mut rig), 0, "wait {doubled}");
    }
    stands(&mut rig, 2, &log_of(&[1, 1]), Position::START, false);
    assert_eq!(rig.state(), State::Settling);
}
