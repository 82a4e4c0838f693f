//! What a data path remembers of the store, and what the store says of a data path.

use super::*;

/// A backup of the store is older than what the nodes acted upon, whether they listed everything since or not.
#[test]
fn a_store_that_went_back_is_refused_after_a_restart() {
    let mut world = cluster(3);
    world.create(0, "t", 3);
    world.run(200);
    let backup = world.store.revision();
    world.kill(2);
    world.run(4_000);
    assert!(world.records().iter().all(|(_, r)| r.leader.is_some_and(|l| l.node != id(2))));
    let changed = world.store.revision();
    assert!(world.nodes[..2].iter().all(|n| (backup + 1..=changed).contains(&n.remembered)));
    world.step(1, Event::Stop);
    assert_eq!(world.nodes[1].remembered, world.nodes[1].agent.view().newest(), "and all of it at a stop");
    for n in 0..2 {
        world.restart(n, 0);
        let mut effects = vec![];
        let listing = Listing { revision: backup, entries: vec![] };
        let seen = world.nodes[n].remembered;
        world.nodes[n].agent.listed(Ticks(world.now), listing, seen, &mut effects);
        assert!(matches!(effects[..], [Effect::Refuse(AgentError::Store(ViewError::WentBack { .. }))]), "{effects:?}");
    }
}

#[test]
fn revisions_of_no_topic_are_remembered_now_and_then() {
    let mut world = cluster(2);
    world.run(20_000);
    let before = world.nodes[0].remembered;
    world.step(1, Event::Load(vec![(TopicName::new("t").unwrap(), 0, 900)]));
    world.run(20_000);
    let after = world.store.revision();
    assert!(after > before && world.nodes[0].remembered == after);
}
