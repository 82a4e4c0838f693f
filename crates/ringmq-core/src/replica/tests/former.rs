//! A leader whose predecessor's lease may still hold, that predecessor, and members whose process is taken for ended.

use super::rig::{Rig, n};
use crate::replica::states::State;
use crate::replica::{Effect, Event, ReplicaError, ReplicaOptions};
use crate::seam::membership::Membership;

fn releases(rig: &mut Rig) -> usize {
    rig.effects().iter().filter(|e| matches!(e, Effect::Release)).count()
}

#[test]
fn a_leader_writes_and_delivers_nothing_while_its_predecessor_may() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    let m = rig.membership(5, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { former: Some(n(3)), ..m }));
    assert_eq!(rig.node.member.check_write(rig.now), Ok(()));
    assert_eq!(rig.node.member.check_read(rig.now), Err(ReplicaError::FormerMayServe));
    rig.metadata(5, 1, &[1, 2]);
    assert_eq!(rig.node.member.check_read(rig.now), Ok(()));
    let m = rig.membership(5, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { former: Some(n(1)), ..m }));
    assert_eq!(rig.node.member.check_read(rig.now), Ok(()), "it was this one itself");
    assert_eq!(releases(&mut rig), 0);
}

#[test]
fn a_former_leader_says_that_it_serves_nothing_until_the_store_has_it() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    let m = rig.membership(6, 2, &[1, 2]);
    rig.give(Event::Metadata(Membership { former: Some(n(1)), ..m }));
    assert!(rig.node.member.check_read(rig.now).is_err());
    assert_eq!(releases(&mut rig), 1);
    rig.wait(ReplicaOptions::default().retry);
    assert_eq!(releases(&mut rig), 1, "again");
    rig.metadata(6, 2, &[1, 2]);
    rig.wait(ReplicaOptions::default().retry);
    assert_eq!(releases(&mut rig), 0);
}

#[test]
fn a_member_that_is_down_is_removed_without_waiting_for_the_limit() {
    let mut rig = Rig::with_batches(1);
    let m = rig.membership(5, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
    rig.settle();
    assert_eq!(rig.state(), State::Settling, "one is enough");
    let proposed = |rig: &mut Rig| rig.effects().iter().any(|e| matches!(e, Effect::Propose { isr, .. } if *isr == [n(1)]));
    assert!(!proposed(&mut rig));
    rig.give(Event::Down { node: n(3) });
    assert!(!proposed(&mut rig), "that one is in no ISR");
    rig.give(Event::Disconnected { node: n(2) });
    rig.give(Event::Down { node: n(2) });
    assert!(proposed(&mut rig));
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    rig.give(Event::Down { node: n(2) });
    assert!(!proposed(&mut rig), "it is connected");
}
