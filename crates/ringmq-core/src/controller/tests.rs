//! Decisions of the controller, carried out in a store in memory: placement, elections, replacement, removal.

use super::placement::place;
use super::*;
use crate::base::{Rng, TopicName};
use crate::metadata::keys::Layout;
use crate::metadata::record::*;
use crate::metadata::request::{Answer, Compare, Op, Request, Txn};
use crate::sim::etcd::{Etcd, revision_of};
use bytes::Bytes;
use proptest::prelude::*;

mod rebuilds;

const SECOND: u64 = 1_000_000_000;
const TOPIC: TopicId = TopicId([9; 16]);

fn id(n: usize) -> NodeId {
    NodeId((n as u128 + 1).to_be_bytes())
}

struct Rig {
    store: Etcd,
    view: View,
    controller: Controller,
    now: u64,
    watched: u64,
    term: u64,
    txns: usize,
    /// Partition of which no replica catches up.
    stuck: Option<u16>,
}

impl Rig {
    fn new(nodes: usize, zones: usize, options: ControllerOptions) -> Rig {
        let view = View::new(Layout::new("c").unwrap(), 0);
        let (store, controller) = (Etcd::default(), Controller::new(id(0), options));
        let mut rig = Rig { store, view, controller, now: 100 * SECOND, watched: 1, term: 0, txns: 0, stuck: None };
        rig.put(Key::Id, encode(&ClusterRecord { id: [1; 16] }));
        (0..nodes).for_each(|n| {
            let zone = format!("z{}", n % zones);
            rig.put(
                Key::Member(id(n)),
                encode(&MemberRecord { name: format!("n{n}"), zone, capacity: 100, ..Default::default() }),
            );
            rig.arrive(n, Suspects::None);
        });
        rig.put(Key::Controller, encode(&ControllerRecord { node: id(0) }));
        rig.look();
        rig.now += 60 * SECOND;
        rig.term = rig.view.controller().unwrap().create_revision;
        rig.controller.take_office(Ticks(rig.now), &rig.view);
        rig
    }

    fn txn(&mut self, txn: Txn) -> bool {
        match self.store.carry(self.now, &Request::Txn(txn)).unwrap() {
            Answer::Txn { succeeded, .. } => succeeded,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, key: Key, value: Bytes) {
        let op = Op::Put { key: self.view.layout().key(&key), value, lease: None };
        self.txn(Txn { then: vec![op], ..Txn::default() });
    }

    fn arrive(&mut self, n: usize, suspects: Suspects) {
        self.begin(n, 1, suspects);
    }

    /// The process that has begun so often registers.
    fn begin(&mut self, n: usize, start: u64, suspects: Suspects) {
        let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start, suspects };
        self.put(Key::Node(id(n)), encode(&node));
    }

    fn leave(&mut self, n: usize) {
        let op = Op::Delete { key: self.view.layout().key(&Key::Node(id(n))) };
        self.txn(Txn { then: vec![op], ..Txn::default() });
        self.look();
    }

    /// Feeds the watch's changes to the controller.
    fn look(&mut self) {
        let changes = self.store.changes_from(self.watched).unwrap();
        self.watched = changes.last().map_or(self.watched, |c| revision_of(c) + 1);
        let changed = self.view.watched(changes);
        self.controller.observe(Ticks(self.now), &self.view, &changed);
    }

    /// Carries out all that the controller wants now.
    fn go_on(&mut self) {
        while let Some(batch) = self.controller.plan(Ticks(self.now), &self.view, self.term, 1) {
            let succeeded = self.txn(batch.txn.clone());
            self.txns += 1;
            self.look();
            self.controller.settled(&self.view, &batch, succeeded);
        }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += SECOND;
            self.look();
            self.go_on();
        }
    }

    fn topic(&mut self, topic: TopicId, name: &str, partitions: u16, replicas: u8) {
        let min_isr = replicas / 2 + 1;
        let placed = place(&self.view, &BTreeSet::new(), partitions, replicas.into(), min_isr.into()).unwrap();
        for (number, replicas) in (0..).zip(placed) {
            let leader = Some(Leader { node: replicas[0], session: self.view.session(replicas[0]).unwrap() });
            let record = PartitionRecord::new(1, leader, replicas, min_isr);
            self.put(Key::Partition(topic, number), encode(&record));
        }
        let record = TopicRecord::new(topic, partitions, replicas, min_isr, Default::default());
        self.put(Key::Topic(TopicName::new(name).unwrap()), encode(&record));
        self.look();
    }

    fn record(&self, number: u16) -> PartitionRecord {
        self.view.partition(TOPIC, number).unwrap().value.clone()
    }

    fn change(&mut self, number: u16, change: impl FnOnce(&mut PartitionRecord)) {
        let mut record = self.record(number);
        change(&mut record);
        self.put(Key::Partition(TOPIC, number), encode(&record));
        self.look();
    }

    /// Leaders do as they should: hand over when they are asked to, take replicas that are alive into the ISR.
    fn leaders_work(&mut self) {
        let all: Vec<PartitionKey> = self.view.partitions().map(|(at, _)| at).collect();
        for at in all {
            let mut r = self.view.partition(at.0, at.1).unwrap().value.clone();
            let Some(leader) = r.leader.filter(|l| self.view.session(l.node) == Some(l.session)) else { continue };
            let before = r.clone();
            let joins = r.replicas.iter().copied().filter(|n| self.view.session(*n).is_some() && !r.isr.contains(n));
            let joins: Vec<NodeId> = joins.filter(|_| self.stuck != Some(at.1)).collect();
            r.isr.extend(joins);
            if r.wanted.is_some_and(|to| to != leader.node && r.isr.contains(&to)) {
                r.leader = None;
            }
            if r != before {
                self.put(Key::Partition(at.0, at.1), encode(&r));
            }
        }
        self.look();
    }
}

fn counts(rig: &Rig, nodes: usize) -> (Vec<usize>, Vec<usize>) {
    let leads = |n: usize| rig.view.partitions().filter(|(_, e)| e.value.leader.is_some_and(|l| l.node == id(n))).count();
    ((0..nodes).map(|n| rig.view.replica_count(id(n))).collect(), (0..nodes).map(leads).collect())
}

fn spread(counts: &[usize]) -> usize {
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn placements_are_even_and_never_put_two_replicas_on_a_node(nodes in 1usize..13, partitions in 1u16..60, replicas in 1usize..6) {
        let rig = Rig::new(nodes, nodes, ControllerOptions::default());
        let needed = (replicas / 2 + 1).min(nodes);
        let placed = place(&rig.view, &BTreeSet::new(), partitions, replicas, needed).unwrap();
        let mut all = vec![0; nodes];
        let mut firsts = vec![0; nodes];
        for replicas_of in &placed {
            let distinct: BTreeSet<_> = replicas_of.iter().collect();
            prop_assert_eq!(distinct.len(), replicas.min(nodes));
            (0..nodes).for_each(|n| all[n] += usize::from(replicas_of.contains(&id(n))));
            (0..nodes).for_each(|n| firsts[n] += usize::from(replicas_of[0] == id(n)));
        }
        prop_assert!(spread(&firsts) <= 1, "leaders {:?}", firsts);
        prop_assert!(spread(&all) <= 2, "replicas {:?}", all);
    }

    #[test]
    fn replicas_stand_in_different_zones_where_there_are_enough(zones in 1usize..5, per_zone in 1usize..4, replicas in 1usize..5) {
        let rig = Rig::new(zones * per_zone, zones, ControllerOptions::default());
        let count = replicas.min(zones * per_zone);
        for replicas_of in place(&rig.view, &BTreeSet::new(), 20, replicas, 1).unwrap() {
            let zones_of: BTreeSet<_> = replicas_of.iter().map(|n| decide::zone(&rig.view, *n).to_string()).collect();
            prop_assert_eq!(zones_of.len(), count.min(zones));
        }
    }

    /// Nodes come, go, come back suspect and are drained: a leader is always of the ISR before, and the last whole copy stays.
    #[test]
    fn whatever_nodes_do_leaders_come_from_the_isr_and_the_only_copy_stays(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let options = ControllerOptions { replace_after: Duration::from_secs(20), ..ControllerOptions::default() };
        let mut rig = Rig::new(5, 5, options);
        rig.topic(TOPIC, "t", 8, 3);
        for _ in 0..60 {
            let n = rng.below(5) as usize;
            let before: Vec<PartitionRecord> = (0..8).map(|p| rig.record(p)).collect();
            match rng.below(6) {
                0 | 1 => rig.leave(n),
                2 => rig.arrive(n, Suspects::None),
                3 => rig.arrive(n, Suspects::All),
                4 => rig.put(Key::Drain(id(n)), encode(&DrainRecord {})),
                _ => rig.leaders_work(),
            }
            let between: Vec<PartitionRecord> = (0..8).map(|p| rig.view.partition(TOPIC, p).unwrap().value.clone()).collect();
            rig.look();
            rig.run(rng.below(15));
            for (p, (before, between)) in (0..8).zip(before.iter().zip(&between)) {
                let after = rig.record(p);
                prop_assert!(after.is_sane());
                let joined = after.isr.iter().all(|n| between.isr.contains(n));
                prop_assert!(joined, "only leaders add to the ISR: {before:?} {after:?}");
                let may_lead = after.leader.is_none_or(|l| between.isr.contains(&l.node));
                prop_assert!(may_lead, "a leader that was not in the ISR");
                let is_new = after.leader.is_some() && after.leader != between.leader;
                prop_assert!(after.epoch >= before.epoch && (!is_new || after.epoch > between.epoch));
                let is_sound = |n: &&NodeId| rig.view.node(**n).is_none_or(|e| !e.value.suspects.has((TOPIC, p)));
                let sound_before = between.isr.iter().filter(is_sound).count();
                let sound_after = after.isr.iter().filter(is_sound).count();
                prop_assert!(sound_before == 0 || sound_after > 0, "the only whole copy was removed: {between:?} {after:?}");
            }
        }
    }
}

#[test]
fn a_dead_leader_is_replaced_from_the_isr_and_leaves_it() {
    let mut rig = Rig::new(3, 3, ControllerOptions::default());
    rig.topic(TOPIC, "t", 6, 3);
    rig.go_on();
    assert_eq!(rig.txns, 0, "all is well");
    rig.leave(1);
    rig.go_on();
    for p in 0..6 {
        let r = rig.record(p);
        assert!(r.leader.is_some_and(|l| l.node != id(1)));
        let led = r.replicas[0] == id(1);
        assert_eq!((r.epoch, r.isr.len()), if led { (2, 2) } else { (1, 3) }, "a leader that lives shrinks its ISR itself");
    }
    // Its place comes back to it: it leads what it is the first of, once it is in sync and has been there for a while.
    rig.arrive(1, Suspects::None);
    rig.look();
    rig.leaders_work();
    rig.run(25);
    assert_eq!(counts(&rig, 3).1[1], 0, "not at once");
    (0..5).for_each(|_| {
        rig.run(12);
        rig.leaders_work();
    });
    rig.run(1);
    assert_eq!(counts(&rig, 3).1, [2, 2, 2]);
}

#[test]
fn nobody_leads_rather_than_one_that_was_not_in_sync() {
    let mut rig = Rig::new(3, 3, ControllerOptions::default());
    rig.topic(TOPIC, "t", 1, 3);
    let leader = rig.record(0).leader.unwrap();
    rig.change(0, |r| r.isr = vec![leader.node]);
    rig.leave(leader.node.0[15] as usize - 1);
    rig.run(120);
    assert_eq!(rig.record(0).leader, Some(leader), "nothing is written: the other two may lack something");
}

#[test]
fn an_isr_never_shrinks_below_min_isr_nor_to_suspects() {
    let mut rig = Rig::new(3, 3, ControllerOptions::default());
    rig.topic(TOPIC, "t", 1, 3);
    let dead = rig.record(0).leader.unwrap().node.0[15] as usize - 1;
    (0..3).filter(|n| *n != dead).for_each(|n| rig.arrive(n, Suspects::All));
    rig.look();
    rig.leave(dead);
    rig.go_on();
    let r = rig.record(0);
    assert_eq!(
        (r.isr.len(), r.leader.is_some_and(|l| l.node != id(dead))),
        (3, true),
        "who is away may have the only whole copy"
    );
}

#[test]
fn after_a_mass_expiry_nothing_moves_for_a_ttl() {
    let mut rig = Rig::new(3, 3, ControllerOptions::default());
    rig.topic(TOPIC, "t", 3, 3);
    let before: Vec<_> = (0..3).map(|p| rig.record(p)).collect();
    (1..3).for_each(|n| rig.leave(n));
    rig.run(5);
    assert_eq!((0..3).map(|p| rig.record(p)).collect::<Vec<_>>(), before);
    (1..3).for_each(|n| rig.arrive(n, Suspects::None));
    rig.run(1);
    for (p, before) in (0..3).zip(&before) {
        let r = rig.record(p);
        assert_eq!(r.leader.map(|l| l.node), before.leader.map(|l| l.node), "each comes back to what it led");
        assert_eq!(r.isr, before.isr);
    }
}

#[test]
fn a_restart_is_no_expiry_and_holds_back_no_election() {
    for (start, is_held) in [(2, false), (1, true)] {
        let mut rig = Rig::new(3, 3, ControllerOptions::default());
        rig.topic(TOPIC, "t", 3, 3);
        let led_by_2 = (0..3).find(|p| rig.record(*p).leader.is_some_and(|l| l.node == id(2))).unwrap();
        rig.leave(1);
        rig.run(1);
        rig.begin(1, start, Suspects::None);
        rig.run(1);
        rig.leave(2);
        rig.run(1);
        let is_led = rig.record(led_by_2).leader.is_some_and(|l| l.node != id(2));
        assert_eq!(is_led, !is_held, "node 1 is back as start {start}");
    }
}

/// A new controller knows which nodes are there and which leave after that; it does not know for how long absent ones have been away.
#[test]
fn a_controller_that_has_just_begun_elects_for_whom_it_saw_leaving() {
    let mut rig = Rig::new(5, 5, ControllerOptions::default());
    rig.topic(TOPIC, "t", 20, 3);
    let led_by =
        |rig: &Rig, n: usize| (0..20).filter(|p| rig.record(*p).leader.is_some_and(|l| l.node == id(n))).collect::<Vec<_>>();
    let (of_4, of_3) = (led_by(&rig, 4), led_by(&rig, 3));
    rig.leave(4);
    // Node 0 begins: another process, which has seen nothing yet, and lists everything.
    rig.leave(0);
    rig.controller = Controller::new(id(0), ControllerOptions::default());
    rig.begin(0, 2, Suspects::None);
    (rig.view, rig.watched) = (View::new(Layout::new("c").unwrap(), 0), 1);
    rig.look();
    rig.controller.take_office(Ticks(rig.now), &rig.view);
    rig.run(1);
    assert_eq!(led_by(&rig, 4), of_4, "node 4 may come back: it was away before");
    rig.leave(3);
    rig.run(1);
    assert_eq!(
        led_by(&rig, 3).iter().filter(|p| rig.record(**p).isr.iter().all(|n| *n != id(4))).count(),
        0,
        "others lead at once"
    );
    rig.run(10);
    assert_eq!((led_by(&rig, 4), led_by(&rig, 3)), (vec![], vec![]), "after one TTL nothing is held");
    assert!(!of_3.is_empty() && !of_4.is_empty());
    // Its own lease ends, and perhaps others' with it: nothing moves for one TTL.
    rig.leave(0);
    rig.begin(0, 2, Suspects::None);
    rig.look();
    let of_2 = led_by(&rig, 2);
    rig.leave(2);
    rig.run(1);
    assert_eq!(led_by(&rig, 2), of_2);
}

#[test]
fn a_node_that_stays_away_is_replaced_and_the_old_replica_goes_last() {
    let options = ControllerOptions { replace_after: Duration::from_secs(30), ..ControllerOptions::default() };
    let mut rig = Rig::new(4, 4, options);
    rig.topic(TOPIC, "t", 12, 3);
    rig.leave(1);
    rig.run(20);
    assert!(rig.view.replica_count(id(1)) > 0);
    rig.run(15);
    assert!((0..12).all(|p| rig.record(p).replicas.len() == if rig.record(p).replicas.contains(&id(1)) { 4 } else { 3 }));
    (0..10).for_each(|_| {
        rig.leaders_work();
        rig.run(11);
    });
    assert_eq!(rig.view.replica_count(id(1)), 0);
    assert!((0..12).all(|p| rig.record(p).replicas.len() == 3 && rig.record(p).isr.len() == 3));
}

#[test]
fn a_node_whose_process_seems_to_have_ended_gets_no_replica() {
    let options = ControllerOptions { replace_after: Duration::from_secs(5), ..ControllerOptions::default() };
    let mut rig = Rig::new(5, 5, options);
    let session = rig.view.session(id(3));
    rig.controller.set_down(&rig.view, id(3), session);
    let nodes: BTreeSet<NodeId> =
        place(&rig.view, &rig.controller.down(&rig.view), 20, 3, 1).unwrap().into_iter().flatten().collect();
    assert!(nodes.len() == 4 && !nodes.contains(&id(3)));
    rig.controller.set_down(&rig.view, id(3), None);
    rig.topic(TOPIC, "t", 5, 3);
    rig.controller.set_down(&rig.view, id(3), session);
    let before = rig.view.replica_count(id(3));
    rig.leave(4);
    rig.run(30);
    assert_eq!(rig.view.replica_count(id(3)), before, "what was on node 4 comes to others");
    assert!((0..5).all(|p| rig.record(p).replicas.len() >= 3));
}

#[test]
fn a_busy_node_lets_one_leader_go_and_new_leaders_stand_elsewhere() {
    let mut rig = Rig::new(3, 3, ControllerOptions::default());
    rig.topic(TOPIC, "t", 6, 3);
    let led =
        |rig: &Rig, n: usize| (0..6).filter(|p| rig.record(*p).leader.is_some_and(|l| l.node == id(n))).collect::<Vec<u16>>();
    let (mine, others) = (led(&rig, 0), [led(&rig, 1), led(&rig, 2)]);
    let tell = |rig: &mut Rig, n: usize, kib_per_s: u32, busiest: &[(u16, u32)]| {
        let one =
            |(partition, kib_per_s): &(u16, u32)| PartitionLoad { topic: TOPIC, partition: *partition, kib_per_s: *kib_per_s };
        rig.put(Key::Load(id(n)), encode(&LoadRecord { kib_per_s, busiest: busiest.iter().map(one).collect() }));
    };
    tell(&mut rig, 0, 9000, &[(mine[0], 5000), (mine[1], 4000)]);
    tell(&mut rig, 1, 100, &[]);
    tell(&mut rig, 2, 200, &[]);
    let run = |rig: &mut Rig| {
        (0..60).for_each(|_| {
            rig.run(1);
            rig.leaders_work();
        })
    };
    rig.look();
    let placed: Vec<NodeId> = place(&rig.view, &BTreeSet::new(), 4, 1, 1).unwrap().concat();
    assert!(!placed.contains(&id(0)), "a new leader stands where less is published");
    run(&mut rig);
    assert_eq!((led(&rig, 0), led(&rig, 2)), (vec![mine[1]], others[1].clone()), "one leader moves, to the least busy node");
    assert_eq!(led(&rig, 1).len(), others[0].len() + 1);
    // The next move would not improve the distribution, and the outcome is told.
    tell(&mut rig, 0, 4000, &[(mine[1], 4000)]);
    tell(&mut rig, 1, 5100, &[(mine[0], 5000)]);
    rig.look();
    let before: Vec<Vec<u16>> = (0..3).map(|n| led(&rig, n)).collect();
    run(&mut rig);
    assert_eq!((0..3).map(|n| led(&rig, n)).collect::<Vec<_>>(), before);
}

fn lead_and_epochs(rig: &Rig, nodes: usize, partitions: u16) -> (Vec<usize>, Vec<u64>) {
    (counts(rig, nodes).1, (0..partitions).map(|p| rig.record(p).epoch).collect())
}

/// Seed 440000000000027 of the cluster simulator: a topic grew at a node that had seen the leader's session, and the controller had not.
#[test]
fn an_election_holds_only_if_the_former_leaders_session_is_what_the_controller_sees() {
    let mut rig = Rig::new(3, 3, ControllerOptions::default());
    rig.topic(TOPIC, "t", 1, 3);
    rig.leave(0);
    let batch = rig.controller.plan(Ticks(rig.now), &rig.view, rig.term, 1).expect("another one is to lead");
    let of_node = |n: usize, is: u64| Compare::CreateRevision { key: rig.view.layout().key(&Key::Node(id(n))), is };
    assert!(batch.txn.compares.contains(&of_node(0, 0)), "{:?}", batch.txn.compares);
    assert!(batch.txn.compares.contains(&of_node(1, rig.view.session(id(1)).unwrap())));
}

#[test]
fn leaders_move_until_they_are_even_and_then_stay() {
    let mut rig = Rig::new(3, 3, ControllerOptions { calm: Duration::ZERO, ..ControllerOptions::default() });
    rig.topic(TOPIC, "t", 15, 3);
    for n in [1, 2] {
        let moved = (0..15).find(|p| rig.record(*p).replicas[0] == id(n)).unwrap();
        let place = rig.record(moved).replicas.iter().position(|r| *r == id(0)).unwrap();
        rig.change(moved, |r| r.replicas.swap(0, place));
    }
    let work = |rig: &mut Rig| {
        (0..10).for_each(|_| {
            rig.run(11);
            rig.leaders_work();
        })
    };
    work(&mut rig);
    let before = lead_and_epochs(&rig, 3, 15);
    assert!(spread(&before.0) <= 2, "{:?}", before.0);
    work(&mut rig);
    assert_eq!(lead_and_epochs(&rig, 3, 15), before, "four leaders of 7, 4, 4 moved at once, to and fro for ever");
}

#[test]
fn a_replica_that_cannot_catch_up_keeps_the_others_from_their_share_for_a_while_only() {
    let options =
        ControllerOptions { replace_after: Duration::from_secs(60), calm: Duration::ZERO, ..ControllerOptions::default() };
    let mut rig = Rig::new(4, 4, options);
    rig.put(Key::Drain(id(3)), encode(&DrainRecord {}));
    rig.look();
    rig.topic(TOPIC, "t", 24, 2);
    (0..10).for_each(|_| {
        rig.run(11);
        rig.leaders_work();
    });
    let op = Op::Delete { key: rig.view.layout().key(&Key::Drain(id(3))) };
    rig.txn(Txn { then: vec![op], ..Txn::default() });
    let work = |rig: &mut Rig, seconds: u64| {
        (0..seconds / 11).for_each(|_| {
            rig.run(11);
            rig.leaders_work();
        })
    };
    rig.stuck = Some(0);
    rig.change(0, |r| r.isr.truncate(1));
    work(&mut rig, 44);
    assert_eq!(rig.view.replica_count(id(3)), 0, "it may soon be done");
    work(&mut rig, 660);
    assert!(rig.view.replica_count(id(3)) >= 9, "{:?}", counts(&rig, 4));
}

#[test]
fn a_replica_that_was_added_is_not_the_one_that_goes() {
    let mut rig = Rig::new(4, 4, ControllerOptions::default());
    rig.topic(TOPIC, "t", 4, 3);
    rig.put(Key::Drain(id(2)), encode(&DrainRecord {}));
    rig.look();
    // All are alive, so the one that catches up is the only one that is not in sync. It was taken away and added again for ever.
    let batches = std::iter::from_fn(|| {
        let batch = rig.controller.plan(Ticks(rig.now), &rig.view, rig.term, 1)?;
        rig.txn(batch.txn.clone());
        rig.look();
        rig.controller.settled(&rig.view, &batch, true);
        Some(())
    });
    assert!(batches.take(20).count() < 20, "the controller comes to rest");
    assert!((0..4).all(|p| rig.record(p).replicas.len() == 4 || !rig.record(p).replicas.contains(&id(2))));
}

#[test]
fn a_drained_node_ends_with_nothing_and_a_new_one_gets_its_share() {
    let mut rig = Rig::new(4, 4, ControllerOptions { calm: Duration::ZERO, ..ControllerOptions::default() });
    rig.topic(TOPIC, "t", 24, 3);
    rig.put(Key::Drain(id(2)), encode(&DrainRecord {}));
    (0..30).for_each(|_| {
        rig.run(11);
        rig.leaders_work();
    });
    assert_eq!(rig.view.replica_count(id(2)), 0, "{:?}", counts(&rig, 4));
    let op = Op::Delete { key: rig.view.layout().key(&Key::Drain(id(2))) };
    rig.txn(Txn { then: vec![op], ..Txn::default() });
    (0..60).for_each(|_| {
        rig.run(11);
        rig.leaders_work();
    });
    let (replicas, leaders) = counts(&rig, 4);
    assert!(spread(&replicas) <= 3 && spread(&leaders) <= 3, "{replicas:?} {leaders:?}");
    assert!((0..24).all(|p| rig.record(p).replicas.len() == 3));
}

/// Found by the cluster simulator: a topic that was created while a node was away had one replica less for ever.
#[test]
fn a_partition_with_too_few_replicas_gets_one_when_a_node_comes() {
    let mut rig = Rig::new(3, 3, ControllerOptions::default());
    rig.leave(2);
    rig.topic(TOPIC, "t", 3, 3);
    rig.run(5);
    assert!((0..3).all(|p| rig.record(p).replicas.len() == 2), "there is no third node");
    rig.arrive(2, Suspects::None);
    rig.run(1);
    assert!((0..3).all(|p| rig.record(p).replicas.len() == 3));
    rig.leaders_work();
    // The same of one that is drained no more.
    rig.topic(TopicId([8; 16]), "u", 1, 4);
    rig.put(Key::Drain(id(3)), encode(&DrainRecord {}));
    let member = MemberRecord { name: "n3".into(), capacity: 100, ..Default::default() };
    rig.put(Key::Member(id(3)), encode(&member));
    rig.arrive(3, Suspects::None);
    rig.run(5);
    let replicas = |rig: &Rig| rig.view.partition(TopicId([8; 16]), 0).unwrap().value.replicas.len();
    assert_eq!(replicas(&rig), 3);
    let op = Op::Delete { key: rig.view.layout().key(&Key::Drain(id(3))) };
    rig.txn(Txn { then: vec![op], ..Txn::default() });
    rig.run(1);
    assert_eq!(replicas(&rig), 4);
}

/// Found by the cluster simulator: the first two of four, both suspect, gave the partition up to each other for ever.
#[test]
fn who_resigns_is_followed_by_each_other_one_in_turn() {
    let mut rig = Rig::new(4, 2, ControllerOptions::default());
    rig.topic(TOPIC, "t", 1, 4);
    rig.put(Key::Drain(id(1)), encode(&DrainRecord {}));
    let mut led = BTreeSet::new();
    for _ in 0..4 {
        let leader = rig.record(0).leader.unwrap();
        led.insert(leader.node);
        rig.change(0, |r| (r.leader, r.wanted, r.tag) = (None, None, Tag { session: leader.session, number: 1 }));
        rig.go_on();
    }
    assert_eq!(led.len(), 4, "a node that is drained has its turn, too: it may be the one that has everything");
}

/// Carries what an operator asks for.
fn ask(rig: &mut Rig, admin: &crate::agent::Admin) -> Result<usize, crate::agent::AdminError> {
    let planner = crate::agent::plans::Planner {
        view: &rig.view,
        replicas: 3,
        partitions: 1,
        session: 0,
        fresh: TopicId([8; 16]),
        down: rig.controller.down(&rig.view),
    };
    let txns = planner.txns(admin)?;
    let count = txns.len();
    txns.into_iter().for_each(|txn| assert!(rig.txn(txn)));
    rig.look();
    Ok(count)
}

#[test]
fn a_replica_that_an_operator_moves_goes_when_the_other_one_is_in_sync_and_no_other_goes() {
    use crate::agent::Admin;
    let mut rig = Rig::new(4, 4, ControllerOptions { calm: Duration::ZERO, ..ControllerOptions::default() });
    rig.topic(TOPIC, "t", 1, 3);
    let before = rig.record(0);
    let name = |n: NodeId| format!("n{}", (0..4).find(|i| id(*i) == n).unwrap());
    let to = (0..4).map(id).find(|n| !before.replicas.contains(n)).unwrap();
    // The leader's own replica is the one that goes.
    let from = before.leader.unwrap().node;
    let topic = TopicName::new("t").unwrap();
    let admin = Admin::MoveReplica { name: topic.clone(), partition: 0, from: name(from), to: to.to_string() };
    assert_eq!(ask(&mut rig, &admin), Ok(1));
    assert_eq!(ask(&mut rig, &admin), Ok(0), "it is asked for already");
    rig.run(1);
    assert_eq!(rig.record(0).replicas.len(), 4, "it is not in sync yet");
    (0..4).for_each(|_| {
        rig.leaders_work();
        rig.run(1);
    });
    let after = rig.record(0);
    let expected: BTreeSet<NodeId> = before.replicas.iter().copied().filter(|n| *n != from).chain([to]).collect();
    assert_eq!(after.replicas.iter().copied().collect::<BTreeSet<_>>(), expected);
    assert!(after.leaving.is_none() && after.isr.len() == 3 && after.leader.unwrap().node != from, "{after:?}");
    assert_eq!(ask(&mut rig, &admin), Ok(0), "it is so");
    // And a leader, which stays where it was moved to.
    let to = *after.isr.iter().find(|n| **n != after.leader.unwrap().node).unwrap();
    let admin = Admin::MoveLeader { name: topic.clone(), partition: 0, to: name(to) };
    assert_eq!(ask(&mut rig, &admin), Ok(1));
    (0..4).for_each(|_| {
        rig.leaders_work();
        rig.run(11);
    });
    assert_eq!(rig.record(0).leader.unwrap().node, to);
    let nobody = Admin::MoveLeader { name: topic, partition: 0, to: "n9".into() };
    assert!(ask(&mut rig, &nobody).unwrap_err().to_string().contains("no node n9"));
}

#[test]
fn a_topic_that_is_altered_gets_its_replicas_and_its_min_isr() {
    use crate::agent::{Admin, TopicChange};
    let mut rig = Rig::new(4, 4, ControllerOptions { calm: Duration::ZERO, ..ControllerOptions::default() });
    rig.topic(TOPIC, "t", 2, 2);
    let name = TopicName::new("t").unwrap();
    let alter = |change| Admin::AlterTopic { name: name.clone(), change };
    let change = TopicChange { replicas: Some(4), retention_ms: Some(Some(5)), ordered: Some(true), ..Default::default() };
    assert_eq!(ask(&mut rig, &alter(change)), Ok(1));
    assert_eq!(ask(&mut rig, &alter(change)), Ok(0));
    (0..6).for_each(|_| {
        rig.run(11);
        rig.leaders_work();
    });
    assert!((0..2).all(|p| rig.record(p).replicas.len() == 4 && rig.record(p).isr.len() == 4 && rig.record(p).min_isr == 3));
    let fewer = TopicChange { replicas: Some(1), retention_ms: Some(None), ..Default::default() };
    assert_eq!(ask(&mut rig, &alter(fewer)), Ok(1));
    (0..8).for_each(|_| {
        rig.run(11);
        rig.leaders_work();
    });
    assert!((0..2).all(|p| rig.record(p).replicas.len() == 1 && rig.record(p).min_isr == 1), "{:?}", rig.record(0));
    let record = &rig.view.topic("t").unwrap().value.record;
    assert_eq!((record.properties.retention_ms, record.properties.ordered), (None, true), "what is not named stays");
    for bad in [TopicChange { replicas: Some(6), ..Default::default() }, TopicChange { min_isr: Some(2), ..Default::default() }] {
        assert_eq!(ask(&mut rig, &alter(bad)), Err(crate::agent::AdminError::BadTopic));
    }
}
