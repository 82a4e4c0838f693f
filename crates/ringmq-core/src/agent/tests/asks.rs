//! Requests of cores about the replicas of their node: whether one may leave, and whether one is suspect.

use super::*;

fn route_of((topic_id, number): (TopicId, u16)) -> crate::codec::peer::message::Route {
    crate::codec::peer::message::Route { topic_id, partition: crate::base::PartitionId(number) }
}

/// The watch of the node is late: the node's view of the metadata is old.
#[test]
fn a_replica_may_leave_only_by_the_version_that_the_store_has_when_it_is_asked() {
    let mut world = cluster(3);
    world.create(0, "t", 1);
    world.run(200);
    let (at, record) = world.records()[0].clone();
    let leader = record.leader.unwrap().node.0[0] as usize - 1;
    let asks = (leader + 1) % 3;
    let version = |w: &World| w.nodes[asks].core.memberships[&at].version;
    let leave = |w: &mut World, version| w.step(asks, Event::Ask(Ask::Leave { route: route_of(at), version }));
    let first = version(&world);
    leave(&mut world, first);
    world.run(50);
    assert_eq!(world.nodes[asks].core.may_leave, [first]);
    world.faults.watch_late = 100;
    let (route, isr) = (route_of(at), vec![id(leader), id(asks)]);
    world.step(leader, Event::Ask(Ask::Propose { route, version: first, isr }));
    world.run(50);
    assert_eq!(version(&world), first, "it has not heard of it");
    leave(&mut world, first);
    world.run(50);
    assert_eq!(world.nodes[asks].core.may_leave, [first], "no other answer");
    let newer = version(&world);
    assert!(newer > first, "but the newest metadata");
    world.store_away = world.now + 3_000 * MS;
    leave(&mut world, newer);
    world.run(1_000);
    assert_eq!(world.nodes[asks].core.may_leave.len(), 1);
    world.run(5_000);
    assert_eq!(world.nodes[asks].core.may_leave, [first, newer], "once the store answers");
}

#[test]
fn a_replica_that_lost_something_is_published_and_leads_only_when_all_others_did_too() {
    let mut world = cluster(3);
    world.create(0, "t", 1);
    world.run(200);
    let (at, record) = world.records()[0].clone();
    let index = |node: NodeId| node.0[0] as usize - 1;
    let [first, next, last] = [0, 1, 2].map(|place| index(record.replicas[place]));
    let doubt = |w: &mut World, n: usize, is_suspect| w.step(n, Event::Ask(Ask::Doubt { route: route_of(at), is_suspect }));
    let is_known = |w: &World| w.nodes[last].agent.view().node(id(next)).unwrap().value.suspects.has(at);
    for is_suspect in [true, false, true] {
        doubt(&mut world, next, is_suspect);
        world.run(500);
        assert_eq!(is_known(&world), is_suspect);
    }
    // Its process begins anew, and its cores say it again before it is registered.
    world.restart(next, 0);
    doubt(&mut world, next, true);
    world.run(5_000);
    assert!(is_known(&world) && world.nodes[next].agent.session().is_some());
    world.kill(first);
    world.run(TTL.as_millis() as u64 + 3_000);
    let leader = world.records()[0].1.leader.unwrap();
    assert_eq!(index(leader.node), last, "{:?}", world.records());
}
