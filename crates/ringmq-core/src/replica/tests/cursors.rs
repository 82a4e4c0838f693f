//! Rule 3: cursors on their way to followers, and there.

use super::rig::{Rig, cursor, log_of, run_of};
use crate::base::{ChannelName, Position};
use crate::codec::peer::message::{Ack, Align, Aligned, Body, Cursors, CursorsAck};
use crate::format::cursor::{CursorImage, Interval};
use crate::replica::model::log::ModelLog;
use crate::replica::model::node::{NodeOutput, Operation};
use crate::replica::states::State;
use crate::replica::{CursorEvent, Effect, Event, LogView, ReplicaOptions};
use crate::{base::NodeId, codec::peer::error::PeerError};

/// A follower in epoch 5 whose log has four batches, two of them committed.
fn follower() -> (Rig, ModelLog) {
    let mut rig = Rig::new();
    rig.follow(5);
    let leader = log_of(&[1, 1, 5, 5]);
    rig.hear(2, 5, 1, run_of(&leader, 0, leader.batches[1].header.end()));
    rig.settle();
    rig.said(2);
    (rig, leader)
}

fn tell(rig: &mut Rig, seq: u64, committed: Position, flush: bool, cursors: Vec<CursorImage>) -> Result<(), PeerError> {
    let (is_all, collect_start, agreed_start, deleted, producers) = (false, None, None, vec![], vec![]);
    let message =
        Cursors { seq, committed, flush, is_all, collect_start, agreed_start, cursors, deleted, producers, channels_lost: false };
    rig.hear(2, 5, 1, Body::Cursors(message));
    rig.settle();
    match rig.last(2) {
        Body::CursorsAck(CursorsAck { seq: s, result }) if s == seq => result,
        body => panic!("no answer: {body:?}"),
    }
}

fn place(leader: &ModelLog, n: usize) -> Position {
    leader.batches.get(n).map_or(leader.end().at, |b| b.header.start())
}

fn here(rig: &Rig, name: &str) -> Option<(u64, u64, Position)> {
    rig.node.log.cursor(&ChannelName::new(name).unwrap()).map(|(e, g, at)| (e.0, g, at))
}

#[test]
fn a_cursor_is_acknowledged_when_it_is_durable() {
    let (mut rig, leader) = follower();
    let image = cursor("c", 5, 1, place(&leader, 1));
    let message = Cursors {
        seq: 1,
        committed: place(&leader, 2),
        flush: true,
        is_all: false,
        collect_start: None,
        agreed_start: None,
        cursors: vec![image],
        deleted: vec![],
        producers: vec![],
        channels_lost: false,
    };
    rig.hear(2, 5, 1, Body::Cursors(message));
    assert!(rig.said(2).is_empty());
    rig.settle();
    assert_eq!(rig.last(2), Body::CursorsAck(CursorsAck { seq: 1, result: Ok(()) }));
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 1))));
}

#[test]
fn beyond_the_end_the_largest_is_kept_until_a_flush_moves_the_end() {
    let (mut rig, leader) = follower();
    let committed = place(&leader, 2);
    tell(&mut rig, 1, committed, true, vec![cursor("c", 5, 1, place(&leader, 1))]).unwrap();
    // Both lie beyond what is committed; the smaller one comes later.
    assert_eq!(tell(&mut rig, 2, committed, false, vec![cursor("c", 5, 1, place(&leader, 4))]), Err(PeerError::Clamped));
    assert_eq!(tell(&mut rig, 3, committed, false, vec![cursor("c", 5, 1, place(&leader, 3))]), Err(PeerError::Clamped));
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 1))), "kept, not applied");
    // The end moves, by another channel's flush.
    tell(&mut rig, 4, place(&leader, 4), true, vec![cursor("d", 5, 1, place(&leader, 1))]).unwrap();
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 4))), "the largest");
}

#[test]
fn the_flush_flag_moves_the_end_now_and_clamps_what_is_still_beyond() {
    let (mut rig, leader) = follower();
    tell(&mut rig, 1, place(&leader, 2), true, vec![cursor("c", 5, 1, place(&leader, 1))]).unwrap();
    // As far as the leader's committed end, not to its own durable end.
    assert_eq!(tell(&mut rig, 2, place(&leader, 3), true, vec![cursor("c", 5, 1, place(&leader, 4))]), Err(PeerError::Clamped));
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 3))));
    // The rest was kept.
    rig.hear(2, 5, 1, run_of(&leader, 3, leader.end().at));
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 4))));
}

#[test]
fn a_new_channel_begins_at_once() {
    let (mut rig, leader) = follower();
    tell(&mut rig, 1, place(&leader, 2), true, vec![]).unwrap();
    assert_eq!(
        tell(&mut rig, 2, place(&leader, 2), false, vec![cursor("new", 5, 3, place(&leader, 4))]),
        Err(PeerError::Clamped)
    );
    assert_eq!(here(&rig, "new"), Some((5, 3, place(&leader, 2))), "as far as the end goes");
}

#[test]
fn backwards_only_under_a_higher_generation_which_drops_what_is_kept() {
    let (mut rig, leader) = follower();
    let all = leader.end().at;
    tell(&mut rig, 1, place(&leader, 2), true, vec![cursor("c", 5, 1, place(&leader, 2))]).unwrap();
    tell(&mut rig, 2, place(&leader, 2), true, vec![cursor("c", 5, 1, place(&leader, 1))]).unwrap();
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 2))), "old news");
    assert_eq!(tell(&mut rig, 3, place(&leader, 2), false, vec![cursor("c", 5, 1, place(&leader, 4))]), Err(PeerError::Clamped));
    tell(&mut rig, 4, place(&leader, 2), true, vec![cursor("c", 5, 2, place(&leader, 0))]).unwrap();
    assert_eq!(here(&rig, "c"), Some((5, 2, place(&leader, 0))));
    tell(&mut rig, 5, all, true, vec![]).unwrap();
    assert_eq!(here(&rig, "c"), Some((5, 2, place(&leader, 0))), "what was kept is gone");
    // A set is never undone by what was sent before it.
    assert_eq!(tell(&mut rig, 6, all, true, vec![cursor("c", 5, 1, place(&leader, 3))]), Err(PeerError::Superseded));
    assert_eq!(tell(&mut rig, 7, all, true, vec![cursor("c", 4, 9, place(&leader, 3))]), Err(PeerError::Superseded));
    assert_eq!(here(&rig, "c"), Some((5, 2, place(&leader, 0))));
}

#[test]
fn intervals_come_along_without_a_limit() {
    let (mut rig, _) = follower();
    let mut leader = log_of(&[1, 1, 5, 5]);
    (0..600).for_each(|_| drop(leader.append_own(crate::base::Epoch(5), 1, b"x")));
    while leader.complete().is_some() {}
    rig.hear(2, 5, 1, run_of(&leader, 4, leader.end().at));
    rig.settle();
    let ends = leader.batches.iter().skip(5).step_by(2);
    let intervals: Vec<Interval> = ends.map(|b| Interval { start: b.header.start().log_id, end: b.header.end() }).collect();
    assert!(intervals.len() > 100);
    let image = CursorImage { intervals: intervals.clone(), ..cursor("c", 5, 1, place(&leader, 1)) };
    rig.said(2);
    tell(&mut rig, 1, leader.end().at, true, vec![image]).unwrap();
    assert_eq!(rig.node.log.channels.values().next().unwrap().intervals, intervals);
}

#[test]
fn ephemeral_channels_are_refused_and_a_whole_list_deletes_others() {
    let (mut rig, leader) = follower();
    let end = leader.end().at;
    assert_eq!(tell(&mut rig, 1, end, true, vec![cursor("e#ephemeral", 5, 1, Position::START)]), Err(PeerError::Ephemeral));
    tell(&mut rig, 2, end, true, vec![cursor("a", 5, 1, Position::START), cursor("b", 5, 1, Position::START)]).unwrap();
    let (flush, agreed_start) = (false, None);
    let (cursors, collect_start, deleted) = (vec![cursor("b", 5, 1, Position::START)], Some(Position::START), vec![]);
    let producers = vec![];
    let list = Cursors {
        seq: 3,
        committed: end,
        flush,
        is_all: true,
        collect_start,
        agreed_start,
        cursors,
        deleted,
        producers,
        channels_lost: false,
    };
    rig.hear(2, 5, 1, Body::Cursors(list));
    rig.settle();
    assert_eq!((here(&rig, "a"), here(&rig, "b").is_some()), (None, true));
    let deleted = vec![ChannelName::new("b").unwrap()];
    let (is_all, collect_start, cursors, producers) = (false, None, vec![], vec![]);
    let message = Cursors {
        seq: 4,
        committed: end,
        flush,
        is_all,
        collect_start,
        agreed_start,
        cursors,
        deleted,
        producers,
        channels_lost: false,
    };
    rig.hear(2, 5, 1, Body::Cursors(message.clone()));
    rig.settle();
    assert_eq!(here(&rig, "b"), None);
    // A repeat, and one behind a gap, are dropped.
    rig.said(2);
    rig.hear(2, 5, 1, Body::Cursors(message.clone()));
    rig.hear(2, 5, 1, Body::Cursors(Cursors { seq: 9, ..message }));
    assert!(rig.said(2).is_empty());
}

// ---- the leader's side

/// A leader whose follower 2 has confirmed the list.
fn leader() -> (Rig, u32) {
    let mut rig = Rig::with_batches(3);
    let session = rig.lead(5);
    (rig, session)
}

fn cursors_said(rig: &mut Rig) -> Vec<Cursors> {
    rig.said(2).into_iter().filter_map(|m| if let Body::Cursors(c) = m.body { Some(c) } else { None }).collect()
}

fn done(rig: &Rig) -> bool {
    rig.out.iter().any(|o| matches!(o, NodeOutput::CursorAcked(_)))
}

fn operate(rig: &mut Rig, image: CursorImage) {
    rig.node.log.channels.insert(image.name.clone(), image.clone());
    let before = CursorImage { generation: 0, confirmed: Position::START, ..image.clone() };
    rig.node.operations.insert(1, Operation { before, image: image.clone() });
    rig.give(Event::Cursor(CursorEvent::Sync { request: 1, image }));
}

#[test]
fn ordinary_cursors_go_once_per_interval_and_nobody_waits() {
    let (mut rig, _) = leader();
    let image = cursor("c", 5, 1, rig.end());
    rig.node.log.channels.insert(image.name.clone(), image.clone());
    for _ in 0..10 {
        rig.give(Event::Cursor(CursorEvent::Moved { channel: image.name.clone() }));
    }
    assert!(cursors_said(&mut rig).is_empty());
    rig.wait(ReplicaOptions::default().cursor_interval);
    let said = cursors_said(&mut rig);
    assert_eq!(said.len(), 1);
    assert_eq!((said[0].flush, &said[0].cursors), (false, &vec![image]));
}

#[test]
fn an_operation_is_done_when_every_isr_member_has_it() {
    let (mut rig, session) = leader();
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image.clone());
    let said = cursors_said(&mut rig).pop().expect("it is sent at once");
    assert!(said.flush && !done(&rig));
    rig.hear(2, 5, session, Body::CursorsAck(CursorsAck { seq: said.seq, result: Err(PeerError::Clamped) }));
    rig.wait(ReplicaOptions::default().cursor_interval);
    let again = cursors_said(&mut rig).pop().expect("it is sent again");
    assert!(!done(&rig));
    rig.hear(2, 5, session, Body::CursorsAck(CursorsAck { seq: again.seq, result: Ok(()) }));
    assert!(done(&rig));
}

#[test]
fn an_operation_that_is_not_confirmed_is_taken_back_under_a_higher_generation() {
    let (mut rig, _) = leader();
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image);
    rig.wait(ReplicaOptions::default().write_limit);
    assert!(!done(&rig));
    assert_eq!(here(&rig, "c"), Some((5, 2, Position::START)));
}

#[test]
fn a_member_that_is_removed_is_not_waited_for() {
    let (mut rig, _) = leader();
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image);
    rig.metadata(5, 1, &[1, 3]);
    assert!(done(&rig));
}

/// The replicas left in the ISR may not include the next leader.
#[test]
fn below_min_isr_no_operation_is_taken_and_none_is_final() {
    let (mut rig, session) = leader();
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image);
    let said = cursors_said(&mut rig).pop().expect("it is sent");
    rig.metadata(5, 1, &[1]);
    assert!(!done(&rig), "nobody is waited for, and that is not enough");
    answer(&mut rig, 2, session, said.seq, Ok(()));
    assert!(!done(&rig));
    let other = cursor("d", 5, 1, rig.end());
    rig.node.operations.insert(2, Operation { before: other.clone(), image: other.clone() });
    rig.give(Event::Cursor(CursorEvent::Sync { request: 2, image: other }));
    assert!(rig.node.operations.keys().eq([&1]), "the other one was answered with an error");
    assert!(cursors_said(&mut rig).is_empty() && !done(&rig));
    rig.metadata(5, 1, &[1, 2]);
    assert!(done(&rig));
}

#[test]
fn a_new_session_begins_with_a_list_and_what_still_waits() {
    let (mut rig, session) = leader();
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image);
    rig.wait(ReplicaOptions::default().retry);
    let next = rig.session(2);
    assert!(next > session);
    let same = Rig::standing(&rig.node.log, Position::START, false);
    rig.hear(2, 5, next, Body::Standing(same));
    let at = rig.end();
    rig.hear(2, 5, next, Body::Aligned(crate::codec::peer::message::Aligned { at }));
    rig.listed(2, 5, next);
    let said = cursors_said(&mut rig).pop().expect("the operation comes again");
    rig.hear(2, 5, next, Body::CursorsAck(CursorsAck { seq: said.seq, result: Ok(()) }));
    assert!(done(&rig));
}

#[test]
fn only_an_open_leader_takes_operations() {
    let mut rig = Rig::with_batches(1);
    rig.metadata(5, 2, &[1, 2, 3]);
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image);
    assert!(!done(&rig) && rig.node.operations.is_empty(), "it was answered with an error");
}

/// A replica that may lead next has to know where channels begin, before anybody removes what lies before.
#[test]
fn retention_goes_as_far_as_every_member_of_the_isr_begins_its_channels() {
    let (mut rig, session) = leader();
    let (at, later) = (rig.node.log.batches[1].header.start(), rig.node.log.batches[2].header.start());
    let agreed = |rig: &mut Rig| {
        let mut effects = rig.effects();
        effects.retain(|e| matches!(e, Effect::Agreed { .. }));
        effects.pop().map(|e| if let Effect::Agreed { at } = e { at } else { unreachable!("only those stayed") })
    };
    let to = NodeId([2; 16]);
    let collected = |collect_start| {
        let session = crate::codec::peer::message::Session(session);
        let (is_all, cursors, producers) = (false, vec![], vec![]);
        Event::Cursor(CursorEvent::Collected { to, session, is_all, collect_start, cursors, producers })
    };
    rig.give(Event::Cursor(CursorEvent::Collecting { at }));
    assert_eq!(agreed(&mut rig), None, "nobody was told");
    // The others may hear of more than is durable here.
    rig.give(collected(later));
    let said = cursors_said(&mut rig).pop().expect("the follower is told");
    assert_eq!((said.collect_start, said.agreed_start), (Some(later), None));
    assert_eq!(agreed(&mut rig), None, "nobody has confirmed it");
    rig.hear(2, 5, session, Body::CursorsAck(CursorsAck { seq: said.seq, result: Ok(()) }));
    assert_eq!(agreed(&mut rig), Some(at));
    rig.wait(ReplicaOptions::default().cursor_interval);
    let said = cursors_said(&mut rig).pop().expect("the follower hears that it may remove it");
    assert_eq!(said.agreed_start, Some(at));
    // A member that counts from now on has not.
    rig.metadata(5, 1, &[1, 2, 3]);
    rig.give(Event::Cursor(CursorEvent::Collecting { at: later }));
    assert_eq!(agreed(&mut rig), None);
    rig.metadata(5, 1, &[1, 2]);
    assert_eq!(agreed(&mut rig), Some(later), "and is not waited for any more");
}

/// A replica that has all channels, but was not told yet from where a new one begins, does not count: it could lead.
#[test]
fn who_was_not_told_of_what_is_removed_joins_no_isr() {
    let (mut rig, session) = leader();
    let at = rig.node.log.batches[1].header.start();
    let proposed = |rig: &mut Rig| rig.effects().iter().any(|e| matches!(e, Effect::Propose { .. }));
    rig.metadata(5, 1, &[1]);
    // alone in the ISR, it agrees with itself
    rig.give(Event::Cursor(CursorEvent::Collecting { at }));
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::Agreed { at: place } if *place == at)));
    let end = rig.end();
    rig.hear(2, 5, session, Body::Ack(Ack { durable: end }));
    assert!(!proposed(&mut rig));
    let to = NodeId([2; 16]);
    let session_ = crate::codec::peer::message::Session(session);
    let (is_all, collect_start, cursors, producers) = (false, at, vec![], vec![]);
    rig.give(Event::Cursor(CursorEvent::Collected { to, session: session_, is_all, collect_start, cursors, producers }));
    let said = cursors_said(&mut rig).pop().expect("the follower is told");
    rig.hear(2, 5, session, Body::CursorsAck(CursorsAck { seq: said.seq, result: Ok(()) }));
    assert!(proposed(&mut rig));
}

/// Node 3 is in step and has the list, but is not in the ISR. Its session.
fn third(rig: &mut Rig) -> u32 {
    let session = rig.session(3);
    let standing = Rig::standing(&rig.node.log, Position::START, false);
    rig.hear(3, 5, session, Body::Standing(standing));
    let at = rig.end();
    rig.hear(3, 5, session, Body::Aligned(Aligned { at }));
    session
}

fn said_to_third(rig: &mut Rig) -> Cursors {
    let mut said = rig.said(3).into_iter().filter_map(|m| if let Body::Cursors(c) = m.body { Some(c) } else { None });
    said.next_back().expect("node 3 is told")
}

fn proposes(rig: &mut Rig) -> bool {
    rig.effects().iter().any(|e| matches!(e, Effect::Propose { .. }))
}

fn answer(rig: &mut Rig, from: u8, session: u32, seq: u64, result: Result<(), PeerError>) {
    rig.hear(from, 5, session, Body::CursorsAck(CursorsAck { seq, result }));
}

/// The operation waits for node 2 alone. Node 3 holds it in memory, beyond its end: it could lead without it.
#[test]
fn who_clamped_an_operation_joins_the_isr_when_it_has_the_channel() {
    let (mut rig, session) = leader();
    let third_session = third(&mut rig);
    let list = said_to_third(&mut rig);
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image);
    let (seq, first) = (cursors_said(&mut rig).pop().expect("sent").seq, said_to_third(&mut rig));
    answer(&mut rig, 2, session, seq, Ok(()));
    assert!(done(&rig));
    answer(&mut rig, 3, third_session, first.seq, Err(PeerError::Clamped));
    answer(&mut rig, 3, third_session, list.seq, Ok(()));
    rig.ack(3, 5, third_session);
    assert!(!proposes(&mut rig), "it has the channel in memory alone");
    for result in [Err(PeerError::Clamped), Ok(())] {
        rig.wait(ReplicaOptions::default().cursor_interval);
        assert!(!proposes(&mut rig));
        let again = said_to_third(&mut rig);
        assert_eq!(again.cursors.len(), 1, "the channel is sent again");
        answer(&mut rig, 3, third_session, again.seq, result);
    }
    assert!(proposes(&mut rig), "every channel is complete");
}

/// A failed operation may have left changes at a follower, which must not lead with them.
#[test]
fn who_may_have_a_failed_operation_joins_when_it_has_what_holds_again() {
    let (mut rig, _) = leader();
    let third_session = third(&mut rig);
    rig.metadata(5, 1, &[1, 2]);
    let list = said_to_third(&mut rig);
    let image = cursor("c", 5, 1, rig.end());
    operate(&mut rig, image);
    let operation = said_to_third(&mut rig);
    answer(&mut rig, 3, third_session, list.seq, Ok(()));
    // Node 2 stays silent while the others are in step.
    let until = rig.now + ReplicaOptions::default().write_limit;
    answer(&mut rig, 3, third_session, operation.seq, Ok(()));
    while rig.now < until {
        rig.wait(ReplicaOptions::default().heartbeat / 2);
        rig.ack(3, 5, third_session);
    }
    assert_eq!(here(&rig, "c"), Some((5, 2, Position::START)), "it was taken back");
    rig.effects();
    rig.metadata(5, 1, &[1]);
    rig.ack(3, 5, third_session);
    assert!(!proposes(&mut rig), "it may have what was taken back");
}

#[test]
fn what_is_kept_in_memory_supersedes_nothing() {
    let (mut rig, leader) = follower();
    let committed = place(&leader, 2);
    tell(&mut rig, 1, committed, true, vec![cursor("c", 5, 1, place(&leader, 1))]).unwrap();
    assert_eq!(tell(&mut rig, 2, committed, false, vec![cursor("c", 5, 3, place(&leader, 4))]), Err(PeerError::Clamped));
    let older = cursor("c", 5, 2, place(&leader, 2));
    assert_eq!(tell(&mut rig, 3, committed, true, vec![older.clone()]), Err(PeerError::Clamped), "neither is durable here");
    tell(&mut rig, 4, leader.end().at, true, vec![]).unwrap();
    assert_eq!(here(&rig, "c"), Some((5, 3, place(&leader, 4))));
    assert_eq!(tell(&mut rig, 5, committed, true, vec![older]), Err(PeerError::Superseded));
}

/// A list with a cursor beyond the end, or one that is not durable, does not count: a replica that lost its channels must not give them
/// to others.
#[test]
fn a_list_that_was_clamped_clears_no_suspicion() {
    let (mut rig, leader) = follower();
    rig.node.log.lose();
    rig.settle();
    let (committed, end) = (place(&leader, 2), leader.end().at);
    let list = |seq, at, confirmed| Cursors {
        seq,
        committed: at,
        flush: false,
        is_all: true,
        collect_start: None,
        agreed_start: None,
        cursors: vec![cursor("c", 5, 1, confirmed)],
        deleted: vec![],
        producers: vec![],
        channels_lost: false,
    };
    rig.hear(2, 5, 1, Body::Cursors(list(1, committed, place(&leader, 4))));
    rig.settle();
    assert_eq!(rig.last(2), Body::CursorsAck(CursorsAck { seq: 1, result: Err(PeerError::Clamped) }));
    rig.hear(2, 5, 1, run_of(&leader, 4, committed));
    rig.settle();
    assert!(rig.node.log.doubt().is_suspect(), "the channel is in memory alone");
    rig.hear(2, 5, 1, run_of(&leader, 4, end));
    rig.settle();
    rig.hear(2, 5, 1, Body::Cursors(list(2, end, place(&leader, 4))));
    assert!(rig.node.log.doubt().is_suspect(), "it is not durable");
    rig.settle();
    assert!(!rig.node.log.doubt().is_suspect());
}

/// Nothing is lost by it: the list of the next session has what was refused.
#[test]
fn a_follower_without_room_refuses_channels_and_takes_them_in_a_later_session() {
    let (mut rig, leader) = follower();
    let end = leader.end().at;
    tell(&mut rig, 1, end, true, vec![cursor("a", 5, 1, place(&leader, 1)), cursor("b", 5, 1, place(&leader, 1))]).unwrap();
    rig.node.log.is_full = true;
    // Retention may free space by a collect start, so that is taken.
    let start = Cursors { seq: 2, committed: end, collect_start: Some(end), ..no_cursors() };
    rig.hear(2, 5, 1, Body::Cursors(start));
    rig.settle();
    assert_eq!(rig.last(2), Body::CursorsAck(CursorsAck { seq: 2, result: Ok(()) }));
    let moved = Cursors { seq: 3, committed: end, cursors: vec![cursor("a", 5, 1, place(&leader, 2))], ..no_cursors() };
    rig.hear(2, 5, 1, Body::Cursors(moved));
    rig.settle();
    assert_eq!(rig.refusal(2), PeerError::NoRoom);
    assert_eq!((rig.state(), here(&rig, "a")), (State::Apart, Some((5, 1, place(&leader, 1)))));
    // The next session's list is refused while there is no room, also by what it deletes.
    let list =
        Cursors { seq: 1, committed: end, is_all: true, cursors: vec![cursor("a", 5, 1, place(&leader, 2))], ..no_cursors() };
    for session in [2, 3] {
        rig.inquired(5, session);
        rig.hear(2, 5, session, Body::Align(Align::Truncate { at: end, chain_crc: None }));
        rig.said(2);
        rig.node.log.is_full = session == 2;
        rig.hear(2, 5, session, Body::Cursors(list.clone()));
        rig.settle();
        match session {
            2 => assert_eq!((rig.refusal(2), here(&rig, "b").is_some()), (PeerError::NoRoom, true)),
            _ => assert_eq!(rig.last(2), Body::CursorsAck(CursorsAck { seq: 1, result: Ok(()) })),
        }
    }
    assert_eq!((here(&rig, "a"), here(&rig, "b")), (Some((5, 1, place(&leader, 2))), None));
}

/// The disk may be full of the very segments that the channel keeps here.
#[test]
fn a_follower_without_room_takes_the_cursors_that_let_retention_free_space() {
    let (mut rig, leader) = follower();
    let end = leader.end().at;
    let both = |a: usize, b: usize| vec![cursor("a", 5, 1, place(&leader, a)), cursor("b", 5, 1, place(&leader, b))];
    tell(&mut rig, 1, end, true, both(1, 3)).unwrap();
    rig.node.log.is_full = true;
    let agreed_start = Some(place(&leader, 2));
    let list = Cursors { seq: 2, committed: end, is_all: true, agreed_start, cursors: both(3, 4), ..no_cursors() };
    rig.hear(2, 5, 1, Body::Cursors(list));
    rig.settle();
    assert_eq!(rig.refusal(2), PeerError::NoRoom);
    assert_eq!(here(&rig, "a"), Some((5, 1, place(&leader, 3))), "it kept what is before the agreed start");
    assert_eq!(here(&rig, "b"), Some((5, 1, place(&leader, 3))), "it keeps nothing that may go");
}

/// A cursor that waits for the log's end waits for room, too.
#[test]
fn a_kept_cursor_is_applied_when_there_is_room() {
    let (mut rig, leader) = follower();
    tell(&mut rig, 1, place(&leader, 2), true, vec![cursor("c", 5, 1, place(&leader, 1))]).unwrap();
    assert_eq!(tell(&mut rig, 2, place(&leader, 2), false, vec![cursor("c", 5, 1, place(&leader, 4))]), Err(PeerError::Clamped));
    let told = || run_of(&leader, 4, leader.end().at);
    rig.node.log.is_full = true;
    rig.hear(2, 5, 1, told());
    rig.settle();
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 1))));
    rig.node.log.is_full = false;
    rig.hear(2, 5, 1, told());
    rig.settle();
    assert_eq!(here(&rig, "c"), Some((5, 1, place(&leader, 4))));
}

/// It may hold an opening or an operator's change up: it leaves the ISR at once, and gets the list once per limit.
#[test]
fn a_leader_goes_on_without_a_follower_that_has_no_room() {
    let (mut rig, session) = leader();
    rig.metadata(5, 1, &[1, 2, 3]);
    rig.effects();
    rig.hear(2, 5, session, Body::Refused(PeerError::NoRoom));
    rig.wait(ReplicaOptions::default().retry);
    let proposed = |e: &Effect| matches!(e, Effect::Propose { isr, .. } if !isr.contains(&NodeId([2; 16])));
    assert!(rig.effects().iter().any(proposed));
    let is_asked = |rig: &mut Rig| rig.said(2).iter().any(|m| matches!(m.body, Body::Inquire(_)));
    assert!(!is_asked(&mut rig));
    rig.wait(ReplicaOptions::default().follower_limit);
    assert!(is_asked(&mut rig));
}

fn no_cursors() -> Cursors {
    Cursors {
        seq: 0,
        committed: Position::START,
        flush: false,
        is_all: false,
        collect_start: None,
        agreed_start: None,
        cursors: vec![],
        deleted: vec![],
        producers: vec![],
        channels_lost: false,
    }
}
