//! The table of states: whole, without doubt, and as the machine does it.

use super::rig::{Rig, inquire, log_of, n};
use crate::base::Position;
use crate::codec::peer::message::{Align, Body};
use crate::replica::Event;
use crate::replica::states::{State, TRANSITIONS, Trigger, next};
use crate::seam::membership::Membership;

/// Triggers that can happen in any state.
const EVERYWHERE: [Trigger; 4] = [Trigger::ToFollow, Trigger::ToLead, Trigger::Dropped, Trigger::LogBroke];

#[test]
fn each_pair_has_one_row() {
    for (i, (from, trigger, _)) in TRANSITIONS.iter().enumerate() {
        let others = TRANSITIONS[i + 1..].iter().filter(|(f, t, _)| (f, t) == (from, trigger));
        assert_eq!(others.count(), 0, "{from:?} {trigger:?} stands twice");
        assert_ne!(*from, State::Failed, "nothing leads out of a failure but a restart");
    }
}

/// An open leader with something that is not committed is asked to hand over.
fn quiescing(rig: &mut Rig) -> u32 {
    let session = rig.lead(5);
    rig.append(5, 1);
    rig.give(Event::Sealed);
    rig.settle();
    let m = rig.membership(5, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { wanted: Some(n(2)), ..m }));
    rig.give(Event::Tick);
    session
}

/// A member brought into a state.
fn in_state(state: State) -> Rig {
    let mut rig = Rig::with_batches(3);
    let two = Position { ..rig.node.log.batches[1].header.end() };
    // Another's log, which goes another way after the first batch, and has more.
    let better = |log: &[u64]| Body::Standing(Rig::standing(&log_of(log), Position::START, false));
    match state {
        State::Idle => {}
        State::Apart => rig.metadata(5, 2, &[1, 2, 3]),
        State::Promising => {
            rig.metadata(5, 2, &[1, 2, 3]);
            rig.hear(2, 5, 1, inquire());
        }
        State::Truncating => {
            rig.metadata(5, 2, &[1, 2, 3]);
            rig.inquired(5, 1);
            rig.hear(2, 5, 1, Body::Align(Align::Truncate { at: two, chain_crc: None }));
        }
        State::Aligned => rig.follow(5),
        State::Claiming => rig.metadata(5, 1, &[1, 2, 3]),
        State::Asking => {
            rig.metadata(5, 1, &[1, 2, 3]);
            rig.settle();
        }
        State::Trimming | State::Fetching => {
            rig = Rig::new();
            rig.append(if state == State::Trimming { 2 } else { 1 }, 1);
            rig.settle();
            if state == State::Fetching {
                rig = Rig::new();
            }
            rig.metadata(5, 1, &[1, 2, 3]);
            rig.settle();
            let session = rig.session(2);
            rig.hear(2, 5, session, better(&[3, 3]));
        }
        State::Settling => {
            rig.metadata(5, 1, &[1, 2, 3]);
            rig.settle();
            let session = rig.session(2);
            let same = Rig::standing(&rig.node.log, Position::START, false);
            rig.hear(2, 5, session, Body::Standing(same));
        }
        State::Open => drop(rig.lead(5)),
        State::Quiescing => drop(quiescing(&mut rig)),
        State::Resigned => {
            let session = quiescing(&mut rig);
            rig.ack(2, 5, session);
            rig.listed(2, 5, session);
        }
        State::Closed => {
            rig.lead(5);
            rig.append(5, 1);
            rig.give(Event::Sealed);
            rig.settle();
            let limit = crate::replica::ReplicaOptions::default().write_limit;
            rig.wait(limit);
        }
        State::Failed => rig.give(Event::LogFailed),
    }
    assert_eq!(rig.state(), state);
    rig
}

#[test]
fn what_can_happen_everywhere_leads_where_the_table_says() {
    use State::*;
    let states = [
        Idle, Apart, Promising, Truncating, Aligned, Claiming, Asking, Trimming, Fetching, Settling, Open, Quiescing, Resigned,
        Closed, Failed,
    ];
    for state in states {
        for trigger in EVERYWHERE {
            let mut rig = in_state(state);
            match trigger {
                Trigger::ToFollow => rig.metadata(9, 3, &[1, 2, 3]),
                Trigger::ToLead => rig.metadata(9, 1, &[1, 2, 3]),
                Trigger::LogBroke => rig.give(Event::LogFailed),
                _ => {
                    let m = rig.membership(9, 2, &[2, 3]);
                    rig.give(Event::Metadata(Membership { replicas: vec![n(2), n(3)], ..m }));
                }
            }
            let expected = next(state, trigger).unwrap_or(state);
            // A follower that has heard nobody has nothing to forget.
            assert_eq!(rig.state(), expected, "{state:?} {trigger:?}");
            rig.settle();
        }
    }
}

#[test]
fn the_table_has_no_state_that_is_not_reached() {
    let mut reached = vec![State::Idle];
    while let Some((_, _, to)) = TRANSITIONS.iter().find(|(from, _, to)| reached.contains(from) && !reached.contains(to)) {
        reached.push(*to);
    }
    assert_eq!(reached.len(), 15);
}
