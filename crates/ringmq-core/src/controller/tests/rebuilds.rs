//! How many replicas catch up at a time.

use super::*;

const REBUILDS_MAX: usize = 2;

fn options() -> ControllerOptions {
    ControllerOptions { replace_after: Duration::from_secs(5), rebuilds_max: REBUILDS_MAX, ..ControllerOptions::default() }
}

/// Partitions with a replica on a living node that is not in sync.
fn rebuilt(rig: &Rig) -> usize {
    rig.view.partitions().filter(|(_, e)| catches_up(&rig.view, &e.value)).count()
}

/// Runs so long; the most that caught up at a time, when each replica takes a second for it.
fn most_at_a_time(rig: &mut Rig, seconds: usize) -> usize {
    let second = |rig: &mut Rig| {
        rig.run(1);
        let count = rebuilt(rig);
        rig.leaders_work();
        count
    };
    (0..seconds).map(|_| second(rig)).max().unwrap_or(0)
}

/// One plan looks at all replicas of the lost node.
#[test]
fn a_lost_node_is_replaced_no_faster_than_the_limit_and_without_pauses() {
    let mut rig = Rig::new(4, 4, options());
    rig.topic(TOPIC, "t", 12, 3);
    let lost = rig.view.replica_count(id(1));
    assert!(lost > 4 * REBUILDS_MAX, "{lost}");
    rig.leave(1);
    rig.run(4);
    assert_eq!(rebuilt(&rig), 0);
    // Two a second.
    assert_eq!(most_at_a_time(&mut rig, lost / REBUILDS_MAX + 4), REBUILDS_MAX);
    rig.run(1);
    assert_eq!((rig.view.replica_count(id(1)), rebuilt(&rig)), (0, 0));
}

/// A queued rebuild may be needless when its turn comes: the next one follows at once.
#[test]
fn a_node_that_comes_back_holds_up_no_queue() {
    let mut rig = Rig::new(5, 5, options());
    rig.topic(TOPIC, "t", 20, 3);
    rig.leave(1);
    rig.leave(2);
    rig.run(7);
    rig.arrive(1, Suspects::None);
    rig.look();
    most_at_a_time(&mut rig, 40);
    assert_eq!((rig.view.replica_count(id(2)), rebuilt(&rig)), (0, 0));
    assert!((0..20).all(|p| rig.record(p).isr.len() == 3), "all are whole");
}

#[test]
fn a_new_node_is_filled_no_faster_than_the_limit() {
    let mut rig = Rig::new(3, 3, options());
    rig.topic(TOPIC, "t", 24, 2);
    rig.put(
        Key::Member(id(3)),
        encode(&MemberRecord { name: "n3".into(), zone: "z3".into(), capacity: 100, ..Default::default() }),
    );
    rig.arrive(3, Suspects::None);
    rig.look();
    let most = most_at_a_time(&mut rig, 120);
    assert!(most <= REBUILDS_MAX && rig.view.replica_count(id(3)) > 8, "{most}, {}", rig.view.replica_count(id(3)));
}
