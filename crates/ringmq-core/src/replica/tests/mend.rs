//! Requests of a replica that damage took something from, and its answers to such requests.

use super::rig::{Rig, log_of, n};
use crate::base::Position;
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Batches, Body, Pull, Pulled};
use crate::replica::model::log::ModelLog;
use crate::replica::model::node::NodeOutput;
use crate::replica::states::State;
use crate::replica::{Alarm, Effect, Event};
use std::time::Duration;

const RETRY: Duration = Duration::from_millis(500);

fn range(log: &ModelLog, batches: std::ops::Range<usize>) -> (Position, Position) {
    (log.batches[batches.start].header.start(), log.batches[batches.end - 1].header.end())
}

fn rot(rig: &mut Rig, batches: std::ops::Range<usize>) -> (Position, Position) {
    let lost = range(&rig.node.log, batches);
    rig.node.log.rot = Some(lost);
    rig.give(Event::Damaged);
    lost
}

fn pulled(log: &ModelLog, from: usize, to: usize) -> Body {
    let batches = Batches::new(log.batches[from..to].iter().map(|b| b.bytes.clone()).collect());
    Body::Pulled(Pulled { from: log.batches[from].header.start(), batches })
}

fn mended(rig: &mut Rig) -> Option<Vec<Position>> {
    rig.effects().into_iter().find_map(|e| match e {
        Effect::Mend { batches } => Some(batches.iter().map(|b| b.header.start()).collect()),
        _ => None,
    })
}

fn pull_of(rig: &mut Rig, to: u8) -> Option<Pull> {
    rig.said(to).into_iter().find_map(|m| if let Body::Pull(pull) = m.body { Some(pull) } else { None })
}

fn follower() -> Rig {
    let mut rig = Rig::with_batches(6);
    rig.follow(5);
    rig.out.clear();
    rig
}

#[test]
fn a_follower_asks_its_leader_and_writes_what_stood_there() {
    let mut rig = follower();
    let (from, to) = rot(&mut rig, 2..4);
    assert_eq!(pull_of(&mut rig, 2).map(|p| p.from), Some(from));
    // More than the lost bytes may come: bytes behind the loss are not taken.
    let answer = pulled(&rig.node.log, 2, 6);
    rig.hear(2, 5, 1, answer);
    let starts: Vec<Position> = rig.node.log.batches[2..4].iter().map(|b| b.header.start()).collect();
    assert_eq!(mended(&mut rig), Some(starts));
    rig.wait(2 * RETRY);
    assert!(pull_of(&mut rig, 2).is_none(), "it is being written");
    // Not all of it was there: the rest is asked for at once.
    rig.node.log.rot = Some((rig.node.log.batches[3].header.start(), to));
    rig.give(Event::Mended { is_whole: true });
    assert_eq!(pull_of(&mut rig, 2).map(|p| p.from), Some(rig.node.log.batches[3].header.start()));
    rig.node.log.rot = None;
    rig.give(Event::Mended { is_whole: true });
    rig.wait(2 * RETRY);
    assert!(pull_of(&mut rig, 2).is_none());
    assert_eq!(rig.state(), State::Aligned, "it is in step all the while");
}

/// Found by the cluster simulator (seed 981000000000107): damage took the commit record before the batch, too.
#[test]
fn a_batch_of_which_the_offset_alone_is_known_is_mended() {
    let mut rig = follower();
    let (from, to) = range(&rig.node.log, 2..4);
    let guess = Position { count: from.count - 1, log_id: crate::base::LogId(from.log_id.0 - 1), ..from };
    rig.node.log.rot = Some((guess, to));
    rig.give(Event::Damaged);
    assert_eq!(pull_of(&mut rig, 2).map(|p| p.from), Some(guess));
    let parts: Vec<_> = rig.node.log.batches[2..4].iter().map(|b| b.bytes.clone()).collect();
    let answer = |parts: &[bytes::Bytes]| Body::Pulled(Pulled { from: guess, batches: Batches::new(parts.to_vec()) });
    rig.hear(2, 5, 1, answer(&parts[1..]));
    assert_eq!(mended(&mut rig), None, "another one is not taken");
    rig.wait(2 * RETRY);
    rig.hear(2, 5, 1, answer(&parts));
    assert_eq!(mended(&mut rig).map(|starts| starts[0]), Some(from));
}

#[test]
fn who_does_not_answer_is_asked_again_and_an_operator_hears_of_it() {
    let mut rig = follower();
    let (from, to) = rot(&mut rig, 2..3);
    assert_eq!(pull_of(&mut rig, 2).map(|p| p.from), Some(from));
    for n in 2..=5 {
        rig.give(Event::Damaged);
        assert!(pull_of(&mut rig, 2).is_none(), "not before the pause is over");
        assert_eq!(rig.node.member.deadline(), Some(rig.now + RETRY));
        rig.wait(RETRY);
        // An empty answer: the leader cannot read it either.
        rig.hear(2, 5, 1, Body::Pulled(Pulled { from, batches: Batches::default() }));
        assert!(pull_of(&mut rig, 2).is_some());
        let alarms: Vec<Effect> = rig.effects().into_iter().filter(|e| matches!(e, Effect::Alarm(_))).collect();
        let alarm = matches!(alarms[..], [Effect::Alarm(Alarm::Damaged { from: f, to: t })] if (f, t) == (from, to));
        assert_eq!(alarm, n == 5, "{alarms:?}");
    }
}

#[test]
fn what_does_not_hold_is_not_written() {
    let mut rig = follower();
    let (from, _) = rot(&mut rig, 2..4);
    let log = &rig.node.log;
    let cut = log.batches[2].bytes.slice(..100);
    let bad = [
        Batches::new(vec![log.batches[3].bytes.clone()]),
        Batches::new(vec![cut]),
        Batches::new(vec![log.batches[2].bytes.clone(), log.batches[2].bytes.clone()]),
        Batches::new(vec![log_of(&[9, 9, 9]).batches[2].bytes.slice(1..)]),
    ];
    for batches in bad {
        rig.hear(2, 5, 1, Body::Pulled(Pulled { from, batches }));
        assert_eq!(mended(&mut rig), None);
        rig.wait(RETRY);
    }
    // Of nobody that was asked.
    let answer = pulled(&rig.node.log, 2, 4);
    rig.hear(3, 5, 1, answer.clone());
    rig.hear(2, 5, 9, answer.clone());
    assert_eq!(mended(&mut rig), None);
    rig.hear(2, 5, 1, answer);
    assert!(mended(&mut rig).is_some());
}

#[test]
fn where_the_leader_has_no_batch_there_the_logs_are_compared_again() {
    let mut rig = follower();
    rot(&mut rig, 2..3);
    rig.hear(2, 5, 1, Body::Refused(PeerError::OutOfReach));
    assert_eq!((rig.state(), rig.refusal(2)), (State::Apart, PeerError::NotAligned));
    assert_eq!(rig.node.member.deadline(), None, "the next session is the leader's");
}

#[test]
fn a_follower_that_is_not_in_step_asks_when_it_is() {
    let mut rig = Rig::with_batches(6);
    rig.metadata(5, 2, &[1, 2, 3]);
    rot(&mut rig, 2..3);
    assert!(rig.said(2).is_empty() && rig.node.member.deadline().is_none());
    rig.follow(5);
}

#[test]
fn a_leader_asks_those_that_have_it_in_turn_and_goes_on_leading() {
    let mut rig = Rig::with_batches(6);
    let session = rig.lead(2);
    rig.out.clear();
    let (from, _) = rot(&mut rig, 2..3);
    assert_eq!(pull_of(&mut rig, 2).map(|p| p.from), Some(from));
    // The follower has nothing for it: nothing ends by that.
    rig.hear(2, 2, session, Body::Pulled(Pulled { from, batches: Batches::default() }));
    assert_eq!((mended(&mut rig), rig.state()), (None, State::Open));
    rig.wait(RETRY);
    assert!(pull_of(&mut rig, 2).is_some() && rig.node.member.check_write(rig.now).is_ok());
    let answer = pulled(&rig.node.log, 2, 3);
    rig.hear(2, 2, session, answer);
    assert!(mended(&mut rig).is_some());
}

#[test]
fn a_leader_asks_nobody_that_lacks_it() {
    let mut rig = Rig::with_batches(6);
    rig.lead(2);
    rig.out.clear();
    rig.append(2, 2);
    rig.give(Event::Sealed);
    rig.settle();
    rig.said(2);
    rot(&mut rig, 6..7);
    assert!(pull_of(&mut rig, 2).is_none(), "nobody has acknowledged it");
    assert!(rig.node.member.deadline().is_some_and(|at| at <= rig.now + RETRY));
}

#[test]
fn both_give_what_they_have_and_empty_answers_where_it_cannot_be_read() {
    let read = |rig: &mut Rig| {
        let at = rig.out.iter().position(|o| matches!(o, NodeOutput::Read(..)))?;
        match rig.out.remove(at) {
            Some(NodeOutput::Read(to, session, from, _)) => Some((to, session, from)),
            _ => None,
        }
    };
    let batches = log_of(&[1; 6]);
    let from = batches.batches[2].header.start();
    let pull = Body::Pull(Pull { from, bytes_max: 1 << 20 });
    let answers = [
        (Ok(vec![batches.batches[2].bytes.clone()]), 1),
        (Err(PeerError::BadBatch(crate::format::files::Bad::Crc)), 0),
        (Err(PeerError::OutOfReach), 0),
    ];
    for (result, count) in answers {
        let is_gone = result == Err(PeerError::OutOfReach);
        let end = batches.batches[2].header.end();
        // A follower: it is in step, and remains so.
        let mut rig = follower();
        rig.hear(2, 5, 1, pull.clone());
        let (to, session, at) = read(&mut rig).expect("it reads");
        assert_eq!((to, at), (n(2), from));
        rig.give(Event::LogRead { to, session, from, end, result: result.clone() });
        match rig.last(2) {
            Body::Pulled(p) => assert_eq!((p.from, p.batches.parts.len()), (from, count)),
            body => panic!("{body:?}"),
        }
        assert_eq!(rig.state(), State::Aligned);
        // A leader: the follower keeps its session.
        let mut rig = Rig::with_batches(6);
        let own = rig.lead(2);
        rig.out.clear();
        rig.hear(2, 2, own, pull.clone());
        let (to, session, at) = read(&mut rig).expect("it reads");
        assert_eq!((to, at, session.0), (n(2), from, own));
        rig.hear(2, 2, own, pull.clone());
        assert!(read(&mut rig).is_none(), "one read at a time");
        rig.give(Event::LogRead { to, session, from, end, result });
        match rig.last(2) {
            Body::Pulled(p) if !is_gone => assert_eq!((p.from, p.batches.parts.len()), (from, count)),
            Body::Refused(PeerError::OutOfReach) if is_gone => {}
            body => panic!("{body:?}"),
        }
        assert_eq!(rig.node.member.followers().find(|f| f.node == n(2)).map(|f| f.state), Some("live"));
    }
}
