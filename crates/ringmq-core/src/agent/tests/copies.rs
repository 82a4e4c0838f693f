//! Copies of requests that come late: none of them undoes what came after it.

use super::*;
use crate::base::ChannelName;

/// Found by the cluster simulator (seed 1086): the topic was there again, under an id that has a tombstone.
#[test]
fn a_late_copy_of_a_creation_does_not_bring_a_deleted_topic_back() {
    let mut world = cluster(3);
    let name = TopicName::new("t").unwrap();
    world.create(0, "t", 3);
    let is_creation = |request: &Request| matches!(request, Request::Txn(txn) if txn.then.len() == 4);
    let copy = world.requests.iter().find(|r| is_creation(&r.4)).expect("it is on its way").4.clone();
    world.run(100);
    world.step(0, Event::Admin { token: 2, admin: Admin::DeleteTopic { name: name.clone() } });
    world.run(100);
    assert!(matches!(world.store.carry(world.now, &copy), Ok(Answer::Txn { succeeded: false, .. })));
    let key = Layout::new("c").unwrap().key(&Key::Topic(name));
    assert!(world.store.get(&key).is_none());
}

#[test]
fn a_late_copy_of_a_drain_does_not_undo_what_came_after_it() {
    let mut world = cluster(3);
    world.run(100);
    let node = world.nodes[2].agent.options.me;
    let key = Layout::new("c").unwrap().key(&Key::Drain(node));
    let is_of_drain = |request: &Request| {
        let of_key = |op: &Op| matches!(op, Op::Put { key: k, .. } | Op::Delete { key: k } if *k == key);
        matches!(request, Request::Txn(txn) if txn.then.iter().any(of_key))
    };
    let mut copies = vec![];
    for wanted in [true, false, true] {
        let node = node.to_string();
        let admin = if wanted { Admin::Drain { node } } else { Admin::Undrain { node } };
        world.step(0, Event::Admin { token: 2, admin });
        copies.push(world.requests.iter().find(|r| is_of_drain(&r.4)).expect("it is on its way").4.clone());
        world.run(100);
        assert_eq!(world.store.get(&key).is_some(), wanted);
        // No copy of what came before changes anything.
        for copy in &copies {
            assert!(matches!(world.store.carry(world.now, copy), Ok(Answer::Txn { succeeded: false, .. })));
        }
    }
}

#[test]
fn partitions_are_added_once_whatever_copies_come() {
    let mut world = cluster(3);
    let name = TopicName::new("t").unwrap();
    world.create(0, "t", 3);
    world.run(100);
    let ask = |world: &mut World, partitions: u16| {
        let channels = vec![ChannelName::new("ch").unwrap()];
        world.step(0, Event::Admin { token: 3, admin: Admin::ExpandTopic { name: name.clone(), partitions, channels } });
    };
    ask(&mut world, 130);
    let layout = Layout::new("c").unwrap();
    let of_topic = layout.key(&Key::Topic(name.clone()));
    let is_of_it = |r: &&Request| {
        let compares_topic = |c: &Compare| matches!(c, Compare::ModRevision { key, .. } if *key == of_topic);
        matches!(r, Request::Txn(txn) if txn.compares.iter().any(compares_topic))
    };
    let mut copies: Vec<Request> = vec![];
    for _ in 0..300 {
        world.run(1);
        let txns = world.requests.iter().map(|r| &r.4).filter(is_of_it);
        let new: Vec<Request> = txns.filter(|r| !copies.contains(r)).cloned().collect();
        copies.extend(new);
    }
    assert_eq!(copies.len(), 4, "three of partitions, and the topic");
    let record = |world: &World| {
        let value = world.store.get(&layout.key(&Key::Topic(name.clone()))).expect("it is there").value.clone();
        decode::<crate::metadata::record::TopicRecord>(&value).unwrap()
    };
    let topic = record(&world);
    assert_eq!((topic.partitions, topic.grown_from, &topic.channels[..]), (130, Some(3), &["ch".to_owned()][..]));
    assert!((0..130).all(|p| world.store.get(&layout.key(&Key::Partition(topic.id, p))).is_some()));
    let revision = world.store.revision();
    for copy in &copies {
        assert!(matches!(world.store.carry(world.now, copy), Ok(Answer::Txn { succeeded: false, .. })));
    }
    assert_eq!(world.store.revision(), revision, "no copy changes anything");
    ask(&mut world, 130);
    ask(&mut world, 5);
    world.run(100);
    let told = std::mem::take(&mut world.nodes[0].admin);
    assert!(matches!(&told[..], [.., Ok(_), Err(AdminError::Shrinks { partitions: 130, .. })]), "{told:?}");
    assert_eq!(record(&world).partitions, 130);
}

/// Each node begins to create the topic, in several transactions; one node completes them.
#[test]
fn creations_that_come_too_late_leave_no_partition_and_no_copy_of_them_makes_a_topic() {
    let mut world = cluster(3);
    let name = TopicName::new("t").unwrap();
    (0..3).for_each(|n| world.create(n, "t", 130));
    let mut copies: Vec<Request> = vec![];
    for _ in 0..300 {
        world.run(1);
        let is_creation = |r: &&Request| matches!(r, Request::Txn(txn) if txn.then.len() > 10);
        let new: Vec<Request> =
            world.requests.iter().map(|r| &r.4).filter(is_creation).filter(|r| !copies.contains(r)).cloned().collect();
        copies.extend(new);
    }
    assert!(copies.len() > 3, "several nodes wrote partitions: {}", copies.len());
    let there = Ok("topic t exists".to_string());
    assert!(world.nodes.iter().all(|n| n.admin == [there.clone()]));
    let topics =
        |world: &World| -> BTreeSet<TopicId> { world.nodes[0].agent.view().partitions().map(|((topic, _), _)| topic).collect() };
    let made = world.nodes[0].agent.view().topic("t").expect("it is there").value.record.id;
    assert_eq!(topics(&world), BTreeSet::from([made]));
    world.step(0, Event::Admin { token: 2, admin: Admin::DeleteTopic { name: name.clone() } });
    world.run(200);
    for copy in &copies {
        assert!(matches!(world.store.carry(world.now, copy), Ok(Answer::Txn { succeeded: false, .. })));
    }
    world.run(200);
    assert_eq!(topics(&world), BTreeSet::new());
    assert!(world.nodes[0].agent.view().topic("t").is_none());
}
