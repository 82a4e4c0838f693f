//! A leader that is asked to hand over: the work that it finishes first, when it resigns, when it goes on.

use super::rig::{Rig, cursor, n};
use crate::base::Position;
use crate::codec::peer::message::{Ack, Body, Cursors, CursorsAck};
use crate::replica::states::State;
use crate::replica::{CursorEvent, Effect, Event, ReplicaError, ReplicaOptions};
use crate::seam::membership::Membership;

/// Leads, with node 2 in step, and one batch that node 2 has not confirmed.
fn leading() -> (Rig, u32) {
    let mut rig = Rig::with_batches(2);
    let session = rig.lead(5);
    rig.append(5, 1);
    rig.give(Event::Sealed);
    rig.settle();
    rig.said(2);
    (rig, session)
}

fn want(rig: &mut Rig, node: Option<u8>) {
    let m = rig.membership(5, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { wanted: node.map(n), ..m }));
    rig.give(Event::Tick);
}

fn list(rig: &mut Rig) -> Option<Cursors> {
    let said = rig.said(2).into_iter();
    said.filter_map(|m| if let Body::Cursors(c) = m.body { Some(c) } else { None }).find(|c| c.is_all)
}

fn resigned_to(rig: &mut Rig) -> Vec<u8> {
    let of = |e| if let Effect::Resign { to } = e { to } else { None };
    rig.effects().into_iter().filter_map(of).map(|n| n.0[0]).collect()
}

fn confirm(rig: &mut Rig, session: u32, seq: u64) {
    rig.hear(2, 5, session, Body::CursorsAck(CursorsAck { seq, result: Ok(()) }));
}

#[test]
fn it_resigns_when_all_is_committed_and_the_next_leader_has_the_channels() {
    let (mut rig, session) = leading();
    let name = cursor("c", 5, 1, Position::START);
    rig.node.log.channels.insert(name.name.clone(), name);
    want(&mut rig, Some(2));
    assert_eq!(rig.state(), State::Quiescing);
    assert_eq!(rig.node.member.check_write(rig.now), Err(ReplicaError::HandingOver));
    assert_eq!(rig.node.member.check_read(rig.now), Ok(()), "deliveries go on");
    assert!(list(&mut rig).is_none() && resigned_to(&mut rig).is_empty(), "something is not committed");
    rig.ack(2, 5, session);
    assert_eq!(rig.node.member.committed(), rig.end());
    let list = list(&mut rig).expect("the channels, as they are");
    assert!(list.flush && list.committed == rig.end() && list.cursors.len() == 1);
    assert_eq!(rig.state(), State::Quiescing);
    confirm(&mut rig, session, list.seq);
    assert_eq!((rig.state(), resigned_to(&mut rig)), (State::Resigned, vec![2]));
    assert_eq!(rig.node.member.check_read(rig.now), Err(ReplicaError::HandingOver), "the store may have named another one");
    rig.metadata(6, 2, &[1, 2]);
    assert_eq!(rig.state(), State::Apart);
    let is_unknown = |e: &Effect| matches!(e, Effect::Closed { error: ReplicaError::OutcomeUnknown });
    assert!(!rig.effects().iter().any(is_unknown), "no publish has an unknown outcome");
}

#[test]
fn who_is_not_in_step_is_waited_for_with_writes_going_on() {
    let (mut rig, _) = leading();
    want(&mut rig, Some(3));
    assert_eq!(rig.state(), State::Open, "it is not even in sync");
    let limits = ReplicaOptions::default();
    let m = rig.membership(5, 1, &[1, 2, 3]);
    rig.give(Event::Metadata(Membership { wanted: Some(n(3)), ..m }));
    rig.wait(limits.retry);
    assert_eq!((rig.state(), rig.node.member.check_write(rig.now)), (State::Open, Ok(())), "it is silent");
    want(&mut rig, Some(1));
    assert_eq!(rig.state(), State::Open, "it is this one");
}

#[test]
fn a_hand_over_that_takes_long_or_is_not_wanted_any_more_is_put_off() {
    for is_withdrawn in [false, true] {
        let (mut rig, session) = leading();
        want(&mut rig, Some(2));
        rig.effects();
        let limits = ReplicaOptions::default();
        match is_withdrawn {
            true => want(&mut rig, None),
            false => rig.wait(limits.follower_limit / 2),
        }
        assert_eq!((rig.state(), rig.node.member.check_write(rig.now)), (State::Open, Ok(())), "withdrawn: {is_withdrawn}");
        rig.ack(2, 5, session);
        assert_eq!(rig.state(), State::Open, "not at once again");
    }
}

#[test]
fn an_operation_of_a_channel_ends_first_and_new_ones_are_refused() {
    let (mut rig, session) = leading();
    rig.ack(2, 5, session);
    let image = cursor("c", 5, 1, Position::START);
    rig.node.log.channels.insert(image.name.clone(), image.clone());
    rig.give(Event::Cursor(CursorEvent::Sync { request: 1, image: image.clone() }));
    let seq = |rig: &mut Rig| match rig.said(2).pop().expect("something was said").body {
        Body::Cursors(c) => c.seq,
        other => panic!("{other:?}"),
    };
    let first = seq(&mut rig);
    // It has the list, and the operation is on its way: not in step.
    want(&mut rig, Some(2));
    assert_eq!(rig.state(), State::Open);
    confirm(&mut rig, session, first);
    rig.wait(ReplicaOptions::default().retry);
    assert_eq!(rig.state(), State::Quiescing);
    rig.said(2);
    rig.give(Event::Cursor(CursorEvent::Sync { request: 2, image }));
    assert!(rig.said(2).is_empty(), "it is refused");
}

#[test]
fn a_session_that_is_lost_begins_the_last_word_anew() {
    let (mut rig, session) = leading();
    want(&mut rig, Some(2));
    rig.ack(2, 5, session);
    let first = list(&mut rig).expect("the channels");
    rig.give(Event::Disconnected { node: n(2) });
    rig.give(Event::Tick);
    confirm(&mut rig, session, first.seq);
    assert_eq!(rig.state(), State::Quiescing, "an answer of a session that is over");
    rig.wait(ReplicaOptions::default().follower_limit);
    assert_eq!(rig.state(), State::Open);
}

#[test]
fn a_resignation_is_repeated_and_in_the_end_an_epoch_is_asked_for() {
    let (mut rig, session) = leading();
    want(&mut rig, Some(2));
    rig.ack(2, 5, session);
    let seq = list(&mut rig).expect("the channels").seq;
    confirm(&mut rig, session, seq);
    let limits = ReplicaOptions::default();
    rig.effects();
    rig.wait(limits.retry);
    assert_eq!(resigned_to(&mut rig), [2]);
    rig.wait(limits.write_limit);
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::AskEpoch { .. })));
    rig.wait(limits.retry);
    assert!(resigned_to(&mut rig).is_empty(), "that would come behind the epoch");
    // Also metadata of the same epoch does not make it serve.
    want(&mut rig, None);
    rig.hear(2, 5, session, Body::Ack(Ack { durable: rig.end() }));
    assert_eq!(rig.state(), State::Resigned);
    rig.metadata(6, 1, &[1, 2]);
    assert_eq!(rig.state(), State::Claiming);
}
