//! Nodes meet, exchange, lose each other, and meet again.

use super::*;
use crate::codec::frame::Header;
use crate::codec::peer::frame::FRAME_MAX;
use crate::codec::peer::message::{Ack, Lane, Pulled};

#[test]
fn nodes_meet_and_every_lane_carries_messages_both_ways() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    assert!(world.all_connected());
    assert_eq!(world.wires.len(), 2, "one for control and data, one for catch-up");
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(world.heard(to, 0), [LinkEvent::Connected(id(from))]);
    }
    let pulled = message(Body::Pulled(Pulled { from: AT, batches: Batches::new(vec![Bytes::from(vec![3; 5000])]) }));
    let ack = message(Body::Ack(Ack { durable: AT }));
    for (from, to) in [(0, 1), (1, 0)] {
        let links = world.links(from, 0);
        links.send(id(to), route(0), append(100_000));
        links.send(id(to), route(1), append(7));
        links.send(id(to), route(0), ack.clone());
        links.send(id(to), route(2), ask(5));
        links.send(id(to), route(3), pulled.clone());
        links.send_on(id(to), Lane::CatchUp, route(3), append(9));
        world.settle();
        let mut heard = world.heard(to, 0);
        // control first, and each lane in order
        let control = heard.iter().position(|e| *e == of(from, 2, ask(5))).unwrap();
        let data = heard.iter().position(|e| *e == of(from, 0, append(100_000))).unwrap();
        assert!(control < data, "{heard:?}");
        let expected = [
            of(from, 2, ask(5)),
            of(from, 0, append(100_000)),
            of(from, 1, append(7)),
            of(from, 0, ack.clone()),
            of(from, 3, pulled.clone()),
            of(from, 3, append(9)),
        ];
        for event in expected {
            let at = heard.iter().position(|e| *e == event).expect("it came");
            heard.remove(at);
        }
        assert!(heard.is_empty());
    }
}

#[test]
fn any_cut_of_the_bytes_gives_the_same() {
    for cut in [1, 2, 7, 100, 5000] {
        let mut world = World::new(&[1, 1]);
        world.cut = cut;
        world.pass(SECOND);
        assert!(world.all_connected(), "{cut}");
        world.heard(1, 0);
        for i in 0..20 {
            world.links(0, 0).send(id(1), route(i), append(200));
        }
        world.settle();
        let expected: Vec<LinkEvent> = (0..20).map(|i| of(0, i, append(200))).collect();
        assert_eq!(world.heard(1, 0), expected, "{cut}");
    }
}

#[test]
fn a_long_payload_goes_where_it_stays_however_it_is_cut() {
    for (cut, lends) in [(3_000, true), (40_000, true), (1 << 20, true), (40_000, false)] {
        let mut world = World::new(&[1, 1]);
        world.cut = cut;
        world.nodes.iter_mut().flatten().for_each(|links| links.options.lend_min = lends.then_some(64 << 10));
        world.pass(SECOND);
        world.heard(1, 0);
        let batches = |len: usize| (0..len).map(|n| ((n * 31) >> 5) as u8).collect::<Vec<u8>>();
        let long = |len| message(Body::Append(Append { committed: AT, batches: Batches::new(vec![batches(len).into()]) }));
        let lens = [300_000, 10, 65_000, 900_000, 1_048_000, 66_000, 64];
        for (i, len) in (0..).zip(lens) {
            world.links(0, 0).send_on(id(1), Lane::CatchUp, route(i), long(len));
        }
        world.settle();
        let expected: Vec<LinkEvent> = (0..).zip(lens).map(|(i, len)| of(0, i, long(len))).collect();
        assert!(world.heard(1, 0) == expected, "{cut}");
        assert!(world.all_connected(), "{cut}");
        assert_eq!(world.lent > 0, lends, "{cut}: {}", world.lent);
    }
}

/// A batch of one message of partition 0.
fn batch(at: Position, body: &[u8]) -> Batch {
    let mut builder = BatchBuilder::default();
    builder.push(5, body);
    let Route { topic_id, partition } = route(0);
    builder.seal(Stamp { topic_id, partition, epoch: Epoch(1), at, prev_crc: 0 })
}

/// Batches as the other node receives them.
fn heard_batches(world: &mut World, bytes: Bytes) -> Batches {
    let append = message(Body::Append(Append { committed: AT, batches: Batches::new(vec![bytes]) }));
    world.links(0, 0).send_on(id(1), Lane::CatchUp, route(0), append);
    world.settle();
    match &world.heard(1, 0)[..] {
        [LinkEvent::Message { addressed: Addressed { message: Message { body: Body::Append(append), .. }, .. }, .. }] => {
            append.batches.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_catches_up_is_received_where_it_stays() {
    for lends in [true, false] {
        let mut world = World::new(&[1, 1]);
        world.cut = 40_000;
        world.nodes.iter_mut().flatten().for_each(|links| links.options.lend_min = lends.then_some(64 << 10));
        world.pass(SECOND);
        world.heard(1, 0);
        let mut at = Position::START;
        for n in 0..6 {
            let batch = batch(at, &vec![n; 100_000 + 333 * n as usize]);
            let heard = heard_batches(&mut world, batch.bytes.clone());
            assert!(*heard.parts == [batch.bytes], "{n}");
            at = batch.header.end();
        }
        assert_eq!(world.lent > 0, lends);
    }
}

#[test]
fn a_body_that_is_not_as_its_header_says_is_refused_by_who_takes_it() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    world.heard(1, 0);
    let sound = batch(Position::START, &[7; 300]).bytes;
    let mut other = sound.to_vec();
    other[250] ^= 1;
    for (bytes, is_sound) in [(sound, true), (Bytes::from(other), false)] {
        let heard = heard_batches(&mut world, bytes);
        assert_eq!(heard.take(&mut heard.parts[0].clone(), route(0)).is_ok(), is_sound);
    }
}

#[test]
fn the_appends_of_a_turn_share_a_frame() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    for i in 0..100 {
        world.links(0, 0).send(id(1), route(i), append(10));
    }
    let mut effects = vec![];
    let now = world.now;
    world.links(0, 0).turn_end(now, &mut effects);
    let [Effect::Send { bytes, .. }] = &effects[..] else { panic!("{effects:?}") };
    let (header, _) = Header::parse(bytes, FRAME_MAX).unwrap().unwrap();
    assert_eq!(header.frame_len(), bytes.len(), "one frame");
    world.effects((0, 0), effects);
    world.settle();
    assert_eq!(world.heard(1, 0).len(), 101);
}

#[test]
fn other_numbers_of_cores_have_links_on_every_core() {
    for (a, b) in [(1, 3), (3, 1), (2, 4), (4, 2), (3, 2), (2, 3)] {
        let mut world = World::new(&[a, b]);
        world.pass(SECOND);
        assert!(world.all_connected(), "{a} {b}");
        let links = a.max(b) as usize;
        assert_eq!(world.wires_of(0).len(), 2 * links, "{a} {b}");
        for w in world.wires_of(0) {
            // each on the core of its link on both sides
            let [Some((_, dialler)), Some((_, acceptor))] = world.wires[w].ends else { panic!("both live") };
            let k = (0..a.max(b)).find(|k| (k % a, k % b) == (dialler, acceptor));
            assert!(k.is_some(), "{a} {b}: {dialler} with {acceptor}");
        }
        // a partition's messages come on one core, in order
        for partition in 0..8 {
            for below in 0..3 {
                world.links(0, 0).send(id(1), route(partition), ask(below));
            }
        }
        world.settle();
        let mut found = BTreeMap::new();
        for core in 0..b {
            for event in world.heard(1, core) {
                if let LinkEvent::Message { addressed, .. } = event {
                    let Body::EpochsAsk(ask) = addressed.message.body else { panic!("it was an ask") };
                    found.entry(addressed.route.partition).or_insert_with(Vec::new).push((core, ask.below.0));
                }
            }
        }
        assert_eq!(found.len(), 8);
        assert!(found.values().all(|of| of.iter().map(|(core, below)| (core - of[0].0, *below)).eq([(0, 0), (0, 1), (0, 2)])));
    }
}

#[test]
fn a_connection_accepted_on_another_core_moves_before_it_is_welcomed() {
    let mut world = World::new(&[3, 3]);
    world.cut = 20;
    world.pass(SECOND);
    assert!(world.all_connected() && world.moves > 0);
    assert_eq!(world.wires_of(0).len(), 6);
}

#[test]
fn either_connection_lost_takes_the_other_with_it_and_the_dialler_comes_again() {
    for lost in 0..2 {
        let mut world = World::new(&[1, 1]);
        world.pass(SECOND);
        let wires = world.wires_of(0);
        world.heard(0, 0);
        world.heard(1, 0);
        world.wires[wires[lost]].closing = [true, true];
        world.settle();
        assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(1))]);
        assert_eq!(world.heard(1, 0), [LinkEvent::Disconnected(id(0))]);
        assert!(world.wires_of(0).is_empty());
        world.links(0, 0).send(id(1), route(0), ask(1));
        world.pass(SECOND);
        assert_eq!(world.heard(0, 0), [LinkEvent::Connected(id(1))]);
        assert_eq!(world.heard(1, 0), [LinkEvent::Connected(id(0))], "what was sent meanwhile was dropped");
    }
}

#[test]
fn a_silent_peer_is_given_up_after_two_heartbeats_and_an_idle_one_is_not() {
    let mut world = World::new(&[1, 1]);
    world.pass(60 * SECOND);
    assert!(world.all_connected() && world.dials == 2, "heartbeats keep it");
    world.heard(0, 0);
    world.heard(1, 0);
    let begun = world.now.ticks;
    world.wires.iter_mut().for_each(|w| w.is_cut = true);
    world.unreachable = true;
    while world.all_connected() {
        let at = world.nodes.iter().flatten().filter_map(Links::deadline).min().unwrap();
        world.now.ticks = at.max(Ticks(world.now.ticks.0 + 1));
        world.settle();
    }
    let took = world.now.ticks.since(begun);
    assert!(took >= SECOND && took <= 2 * SECOND, "{took:?}");
    world.pass(2 * SECOND);
    assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(1))]);
    assert_eq!(world.heard(1, 0), [LinkEvent::Disconnected(id(0))]);
    world.unreachable = false;
    world.pass(10 * SECOND);
    assert!(world.all_connected());
}

#[test]
fn pauses_between_attempts_grow_and_stay_bounded() {
    let mut world = World::new(&[1, 1]);
    world.unreachable = true;
    world.pass(SECOND);
    let first = world.dials;
    assert!((3..=10).contains(&first), "{first}");
    world.pass(100 * SECOND);
    let later = world.dials - first;
    assert!((20..=45).contains(&later), "{later} in 100 s");
    world.unreachable = false;
    world.pass(5 * SECOND);
    assert!(world.all_connected());
}

#[test]
fn a_node_that_starts_anew_replaces_its_old_life_even_if_that_is_not_seen_to_end() {
    for restarted in 0..2 {
        let mut world = World::new(&[2, 2]);
        world.pass(SECOND);
        for node in 0..2 {
            world.heard(node, 0);
        }
        world.kill(restarted, false);
        world.start(restarted, 2, 2, CLUSTER);
        world.pass(10 * SECOND);
        assert!(world.all_connected(), "{restarted}");
        let (gone, back) = (LinkEvent::Disconnected(id(restarted)), LinkEvent::Connected(id(restarted)));
        assert_eq!(world.heard(1 - restarted, 0), [gone, back]);
    }
}

#[test]
fn a_node_may_come_back_with_another_number_of_cores() {
    for (restarted, cores) in [(0, 1), (0, 4), (1, 1), (1, 4)] {
        let mut world = World::new(&[2, 2]);
        world.pass(SECOND);
        world.kill(restarted, true);
        world.settle();
        world.start(restarted, cores, 2, CLUSTER);
        world.pass(20 * SECOND);
        assert!(world.all_connected(), "{restarted} {cores}");
        assert_eq!(world.wires_of(0).len(), 2 * 2.max(cores as usize), "{restarted} {cores}");
    }
}

#[test]
fn three_nodes_meet_and_one_that_leaves_the_cluster_is_parted_with() {
    let mut world = World::new(&[1, 2, 1]);
    world.pass(SECOND);
    assert!(world.all_connected());
    let two = &all(3)[..2];
    let now = world.now;
    for node in 0..2 {
        for core in 0..world.nodes[node].len() as u16 {
            world.heard(node, core);
            world.links(node, core).set_nodes(now, two);
        }
    }
    world.heard(2, 0);
    world.pass(SECOND);
    assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(2))]);
    assert_eq!(world.heard(2, 0).len(), 2);
    assert!(world.links(0, 0).is_connected(id(1)) && !world.links(1, 0).is_connected(id(2)));
    // it is let in again
    let now = world.now;
    for node in 0..2 {
        for core in 0..world.nodes[node].len() as u16 {
            world.links(node, core).set_nodes(now, &all(3));
        }
    }
    world.pass(10 * SECOND);
    assert!(world.all_connected());
}

/// Confirmations of an overtaken process would count as its successor's, whose log may lack the data.
#[test]
fn a_process_that_was_overtaken_is_parted_with_and_let_in_no_more() {
    for overtaken in 0..2 {
        let other = 1 - overtaken;
        let nodes = |incarnation| {
            let mut nodes = all(2);
            nodes[overtaken].incarnation = incarnation;
            nodes
        };
        let mut world = World::new(&[1, 1]);
        let now = world.now;
        (0..2).for_each(|n| world.links(n, 0).set_nodes(now, &nodes(5)));
        world.pass(SECOND);
        assert!(world.all_connected());
        world.heard(other, 0);
        world.heard(overtaken, 0);
        // It has registered again: the same process.
        let now = world.now;
        world.links(other, 0).set_nodes(now, &nodes(5));
        world.pass(SECOND);
        assert!(world.all_connected() && world.heard(other, 0).is_empty());
        // A copy of its data path is registered. The process itself has no way to the metadata.
        let now = world.now;
        world.links(other, 0).set_nodes(now, &nodes(9));
        world.pass(20 * SECOND);
        assert_eq!(world.heard(other, 0), [LinkEvent::Disconnected(id(overtaken))]);
        assert!(!world.links(other, 0).is_connected(id(overtaken)));
        // The copy has as many startups behind it.
        world.kill(overtaken, true);
        world.settle();
        world.start(overtaken, 1, 1, CLUSTER);
        let now = world.now;
        world.links(overtaken, 0).set_nodes(now, &nodes(9));
        world.pass(20 * SECOND);
        assert!(world.all_connected(), "{overtaken}");
    }
}

#[test]
fn a_node_that_stops_says_so() {
    for stopped in 0..2 {
        let mut world = World::new(&[1, 1]);
        world.pass(SECOND);
        world.heard(1 - stopped, 0);
        let now = world.now;
        world.links(stopped, 0).stop(now);
        world.settle();
        let gone = id(stopped);
        assert_eq!(world.heard(1 - stopped, 0), [LinkEvent::Disconnected(gone), LinkEvent::Stopping(gone)]);
        assert!(world.links(stopped, 0).is_idle());
        assert!(!world.links(1 - stopped, 0).is_connected(id(stopped)));
        world.pass(20 * SECOND);
        assert!(!world.all_connected(), "and takes no connection any more");
        assert!(world.links(stopped, 0).is_idle());
    }
}

#[test]
fn catch_up_keeps_to_its_bound_and_commits_do_not_wait_for_it() {
    let mut world = World::new(&[1, 1]);
    world.links(0, 0).options.catch_up_unsent_max = 10_000;
    world.pass(SECOND);
    world.heard(1, 0);
    let wires = world.wires_of(0);
    for _ in 0..10 {
        world.links(0, 0).send_on(id(1), Lane::CatchUp, route(0), append(8000));
    }
    // the socket of catch-up takes nothing
    world.wires[wires[1]].is_cut = true;
    world.settle();
    let unsent = world.wires[wires[1]].bytes[1].len();
    assert!((8000..20_000).contains(&unsent), "{unsent}");
    world.links(0, 0).send(id(1), route(0), append(10));
    world.settle();
    assert_eq!(world.heard(1, 0), [of(0, 0, append(10))]);
    world.wires[wires[1]].is_cut = false;
    world.settle();
    assert_eq!(world.heard(1, 0).len(), 10);
}

#[test]
fn control_goes_before_data_that_waits() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    world.heard(1, 0);
    let first = world.wires_of(0)[0];
    world.wires[first].is_cut = true;
    for _ in 0..5 {
        world.links(0, 0).send(id(1), route(0), append(600_000));
    }
    world.settle();
    world.links(0, 0).send(id(1), route(1), ask(1));
    world.wires[first].is_cut = false;
    world.settle();
    let heard = world.heard(1, 0);
    let control = heard.iter().position(|e| *e == of(0, 1, ask(1))).unwrap();
    assert!(heard.len() == 6 && (1..=2).contains(&control), "{control}");
}

#[test]
fn a_queue_beyond_its_bound_ends_the_connection() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    world.links(0, 0).options.queue_bytes_max = 3_000_000;
    for _ in 0..10 {
        world.links(0, 0).send(id(1), route(0), append(600_000));
    }
    world.heard(0, 0);
    world.settle();
    assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(1))]);
    world.pass(SECOND);
    assert!(world.all_connected());
}
