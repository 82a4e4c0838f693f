//! Memory of a data path about the store, and of the store about a data path.

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

/// Peers tell by it whether a process of a node is the last one.
#[test]
fn a_process_keeps_its_incarnation_and_the_next_one_has_a_larger_one() {
    let mut world = cluster(3);
    world.run(2_000);
    let told =
        |world: &World| (world.nodes[0].agent.view().member(id(1)).unwrap().value.incarnation, world.nodes[1].agent.session());
    let first = told(&world);
    assert!(first.0 > 0 && first.1.is_some_and(|session| session > first.0), "{first:?}");
    world.store.end_all_leases();
    world.run(2 * TTL.as_millis() as u64);
    let again = told(&world);
    assert!(again.0 == first.0 && again.1 > first.1, "{again:?}");
    world.restart(1, 0);
    world.run(2 * TTL.as_millis() as u64);
    let next = told(&world);
    assert!(next.0 > first.1.unwrap() && next.1 > again.1, "{next:?}");
}

/// The copy is registered once the lease of its origin is over, and confirms what the origin never hears of.
#[test]
fn who_was_overtaken_by_a_copy_of_its_data_path_is_never_registered_again() {
    let mut world = cluster(3);
    world.create(0, "t", 3);
    world.run(2_000);
    let origin = std::mem::replace(&mut world.nodes[1].agent, agent(1, 1, 0, None));
    let (core, watch) = (std::mem::take(&mut world.nodes[1].core), world.nodes[1].watch);
    let mut copy = agent(1, 9, 0, None);
    copy.options.record.machine = "elsewhere".into();
    (world.nodes[1].agent, world.nodes[1].watch) = (copy, None);
    world.nodes[1].starts = 9;
    world.run(2 * TTL.as_millis() as u64);
    assert!(world.nodes[1].agent.session().is_some() && world.nodes[1].core.nodes == 3);
    // The copy ends, and the origin wakes up.
    (world.nodes[1].agent, world.nodes[1].core, world.nodes[1].watch) = (origin, core, watch);
    world.nodes[1].starts = 1;
    assert_eq!(world.nodes[1].core.nodes, 3);
    world.run(30);
    assert_eq!(world.nodes[1].core.nodes, 0, "its links end as soon as it hears of the copy");
    world.run(5 * TTL.as_millis() as u64);
    let refused = |world: &World| world.nodes[1].refused.iter().any(|e| matches!(e, AgentError::Overtaken { .. }));
    assert!(world.nodes[1].agent.session().is_none() && refused(&world), "{:?}", world.nodes[1].refused);
    // Nor is its next process.
    let mut next = agent(1, 2, 0, None);
    next.options.processes = vec![1, 2];
    (world.nodes[1].agent, world.nodes[1].core, world.nodes[1].watch) = (next, Core::default(), None);
    (world.nodes[1].starts, world.nodes[1].refused) = (2, vec![]);
    world.run(2 * TTL.as_millis() as u64);
    assert!(world.nodes[1].agent.session().is_none() && refused(&world), "{:?}", world.nodes[1].refused);
}

/// A node without renewals serves until its lease is over. An operator is told before, and whether the store answers at all.
#[test]
fn a_store_that_does_not_answer_and_one_that_refuses_are_told_apart_until_the_node_is_registered() {
    let ttl = TTL.as_millis() as u64;
    let told = |world: &World| (world.nodes[0].agent.session().is_some(), world.nodes[0].agent.store_trouble().cloned());
    for (failure, trouble) in [
        (Failure::Refused("no login".into()), StoreTrouble::Refused("no login".into())),
        (Failure::Unreached("no way".into()), StoreTrouble::Away("no way".into())),
        (Failure::Unknown("silence".into()), StoreTrouble::Away("silence".into())),
    ] {
        let mut world = cluster(1);
        world.run(2_000);
        assert_eq!(told(&world), (true, None));
        world.failing = Some((|_| true, failure));
        world.run(ttl / 2);
        assert_eq!(told(&world), (true, Some(trouble.clone())));
        world.run(ttl);
        assert_eq!(told(&world), (false, Some(trouble)));
        world.failing = None;
        world.run(ttl);
        assert_eq!(told(&world), (true, None));
    }
}

/// The listings between the attempts succeed, and say nothing about writing.
#[test]
fn a_store_that_lets_a_node_read_alone_is_said_to_refuse_it_all_the_time() {
    let mut world = cluster(1);
    world.failing = Some((|request| matches!(request, Request::Txn(_)), Failure::Refused("permission denied".into())));
    world.restart(0, 0);
    world.run(1_000);
    for _ in 0..20 {
        world.run(37);
        assert_eq!(world.nodes[0].agent.store_trouble(), Some(&StoreTrouble::Refused("permission denied".into())));
    }
}
