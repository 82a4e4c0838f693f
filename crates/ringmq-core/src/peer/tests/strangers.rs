//! One core against foreign connections: unknown nodes, garbage, other versions, older processes.

use super::*;
use crate::base::TopicName;
use crate::codec::frame::{Header, Payload};
use crate::codec::peer::frame::FRAME_MAX;
use crate::codec::peer::message::{Inquire, Lane, Pull};
use crate::codec::peer::{Encoder, Frame, Hello, Lanes, Layout, RejectCode, VERSION, Version};

/// An acceptor that knows node 0, which is the one that connects.
fn acceptor() -> (Links, Now) {
    let now = Now { ticks: Ticks(1), unix_ns: 0 };
    let mut links = Links::new(LinkOptions::new(id(1), CLUSTER, 1, CoreId(0), 1, 1));
    links.set_nodes(now, &all(2));
    (links, now)
}

fn hello() -> Hello<'static> {
    Hello {
        version: VERSION,
        features: 0,
        node_id: id(0),
        cluster_id: CLUSTER,
        generation: 1,
        node_version: "1",
        layout: Layout { cores: 1, core: 0, placement: Layout::BY_NAME },
        lanes: Lanes(0b011),
        heartbeat_ms: 1000,
        link: 0,
        incarnation: 0,
    }
}

/// A greeting tells the newest process of its node, whatever the metadata here says of it yet.
#[test]
fn a_process_whose_successor_has_greeted_is_refused() {
    let (mut links, now) = acceptor();
    let mut greet = |conn, incarnation, generation| {
        let mut pieces = vec![];
        Encoder::default().hello(&mut pieces, &Hello { incarnation, generation, ..hello() });
        links.opened(now, ConnId(conn), Peer("x".into()));
        links.bytes(now, ConnId(conn), &pieces.concat());
        let (sent, _) = outcome(&mut links, now, ConnId(conn));
        let code = reject_code(&sent);
        links.closed(now, ConnId(conn));
        code
    };
    assert_eq!(greet(1, 5, 9), None);
    assert_eq!(greet(2, 7, 3), None, "a copy of the data path may have been started less often");
    assert_eq!(greet(3, 5, 10), Some(RejectCode::Other), "also while the later one is not connected");
    assert_eq!(greet(4, 0, 10), Some(RejectCode::Other));
    assert_eq!(greet(5, 7, 3), None);
}

fn hello_of(encoder: &mut Encoder, pieces: &mut Vec<Bytes>) -> Vec<u8> {
    encoder.hello(pieces, &hello());
    pieces.concat()
}

/// Bytes that a connection was sent, and whether it was closed.
fn outcome(links: &mut Links, now: Now, wanted: ConnId) -> (Vec<u8>, bool) {
    let (mut effects, mut sent, mut closed) = (vec![], vec![], false);
    links.turn_end(now, &mut effects);
    for effect in effects {
        match effect {
            Effect::Send { conn, bytes } if conn == wanted => sent.extend(bytes),
            Effect::Close { conn } if conn == wanted => closed = true,
            Effect::Send { .. } | Effect::Close { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    (sent, closed)
}

/// The code of the Reject that ends what was sent.
fn reject_code(mut sent: &[u8]) -> Option<RejectCode> {
    let mut code = None;
    while let Ok(Some((header, metadata))) = Header::parse(sent, FRAME_MAX) {
        code = match Frame::decode(&header, metadata, &Bytes::new()) {
            Ok(Frame::Reject(reject)) => Some(reject.code),
            _ => None,
        };
        sent = &sent[header.frame_len()..];
    }
    code
}

fn answer(hello: &Hello<'_>) -> Result<(), RejectCode> {
    let (mut links, now) = acceptor();
    let mut pieces = vec![];
    Encoder::default().hello(&mut pieces, hello);
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &pieces.concat());
    let (sent, closed) = outcome(&mut links, now, ConnId(1));
    match reject_code(&sent) {
        None => {
            let (header, metadata) = Header::parse(&sent, FRAME_MAX).unwrap().unwrap();
            let Ok(Frame::Welcome(welcome)) = Frame::decode(&header, metadata, &Bytes::new()) else { panic!("a Welcome") };
            assert!(!closed && welcome.lanes == Lanes(hello.lanes.0 & 0b111) && welcome.node_id == id(1));
            Ok(())
        }
        Some(code) => {
            assert!(closed);
            Err(code)
        }
    }
}

#[test]
fn who_does_not_belong_is_told_so() {
    assert_eq!(answer(&hello()), Ok(()));
    assert_eq!(answer(&Hello { version: Version { major: 2, minor: 0 }, ..hello() }), Err(RejectCode::BadVersion));
    assert_eq!(answer(&Hello { version: Version { major: 1, minor: 9 }, ..hello() }), Ok(()));
    assert_eq!(answer(&Hello { cluster_id: ClusterId([6; 16]), ..hello() }), Err(RejectCode::OtherCluster));
    assert_eq!(answer(&Hello { node_id: id(1), ..hello() }), Err(RejectCode::SameNode));
    assert_eq!(answer(&Hello { node_id: NodeId([0; 16]), ..hello() }), Err(RejectCode::UnknownNode));
    assert_eq!(answer(&Hello { lanes: Lanes(0x40), ..hello() }), Err(RejectCode::BadLanes));
    assert_eq!(answer(&Hello { link: 1, ..hello() }), Err(RejectCode::Malformed), "there is no such link");
    assert_eq!(answer(&Hello { heartbeat_ms: 0, ..hello() }), Err(RejectCode::Malformed));
}

#[test]
fn the_node_with_the_higher_id_does_not_dial() {
    let now = Now { ticks: Ticks(1), unix_ns: 0 };
    let mut links = Links::new(LinkOptions::new(id(0), CLUSTER, 1, CoreId(0), 1, 1));
    links.set_nodes(now, &all(2));
    let mut pieces = vec![];
    Encoder::default().hello(&mut pieces, &Hello { node_id: id(1), ..hello() });
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &pieces.concat());
    assert_eq!(reject_code(&outcome(&mut links, now, ConnId(1)).0), Some(RejectCode::Other));
}

#[test]
fn one_connection_may_carry_all_lanes() {
    let (mut links, now) = acceptor();
    let mut pieces = vec![];
    let mut theirs = Encoder::default();
    theirs.hello(&mut pieces, &Hello { lanes: Lanes::ALL, ..hello() });
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &pieces.concat());
    assert!(links.is_connected(id(0)), "one connection is the whole link");
    pieces.clear();
    theirs.messages(&mut pieces, Lane::Control, &[Addressed { route: route(1), message: ask(1) }]);
    links.bytes(now, ConnId(1), &pieces.concat());
    links.send(id(0), route(1), ask(2));
    links.send(id(0), route(1), message(Body::Pull(Pull { from: AT, bytes_max: 1 })));
    let mut events = vec![];
    links.take(&mut events);
    assert_eq!(events, [LinkEvent::Connected(id(0)), of(0, 1, ask(1))]);
    assert!(!outcome(&mut links, now, ConnId(1)).0.is_empty());
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_though_it_talks() {
    let (mut links, begun) = acceptor();
    let (mut theirs, mut pieces) = (Encoder::default(), vec![]);
    theirs.hello(&mut pieces, &Hello { lanes: Lanes::ALL, ..hello() });
    links.opened(begun, ConnId(1), Peer("x".into()));
    links.bytes(begun, ConnId(1), &pieces.concat());
    let (welcome, _) = outcome(&mut links, begun, ConnId(1));
    links.sent(begun, ConnId(1), welcome.len());
    links.send(id(0), route(0), append(10));
    for tenth in 1..=20 {
        let now = Now { ticks: begun.ticks + tenth * SECOND / 10, ..begun };
        pieces.clear();
        theirs.pong(&mut pieces);
        links.bytes(now, ConnId(1), &pieces.concat());
        links.tick(now);
        let closed = outcome(&mut links, now, ConnId(1)).1;
        assert!(!closed, "{tenth}: the socket has it since the end of the first turn");
    }
    let late = Now { ticks: begun.ticks + SECOND * 21 / 10, ..begun };
    links.tick(late);
    assert!(outcome(&mut links, late, ConnId(1)).1);
    let mut events = vec![];
    links.take(&mut events);
    assert_eq!(events, [LinkEvent::Connected(id(0)), LinkEvent::Disconnected(id(0))]);
}

#[test]
fn of_two_connections_of_one_life_the_later_one_stays_and_of_two_lives_the_newer() {
    let (mut links, now) = acceptor();
    let connect = |links: &mut Links, conn: u64, generation: u64| {
        let mut pieces = vec![];
        Encoder::default().hello(&mut pieces, &Hello { generation, ..hello() });
        links.opened(now, ConnId(conn), Peer("x".into()));
        links.bytes(now, ConnId(conn), &pieces.concat());
    };
    let is_ended = |links: &Links, conn: u64| links.conns[&ConnId(conn)].phase == super::conn::Phase::Ended;
    connect(&mut links, 1, 5);
    assert!(!is_ended(&links, 1));
    connect(&mut links, 2, 5);
    assert!(is_ended(&links, 1) && !is_ended(&links, 2), "the later");
    connect(&mut links, 3, 6);
    assert!(is_ended(&links, 2) && !is_ended(&links, 3), "the newer life");
    connect(&mut links, 4, 5);
    assert!(!is_ended(&links, 3) && is_ended(&links, 4), "not the older");
}

#[test]
fn garbage_is_refused_before_and_after_the_handshake() {
    let before = [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 64],
        &[0xff; 24],
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
    ];
    for garbage in before {
        let (mut links, now) = acceptor();
        links.opened(now, ConnId(1), Peer("x".into()));
        links.bytes(now, ConnId(1), garbage);
        let (sent, closed) = outcome(&mut links, now, ConnId(1));
        assert_eq!((reject_code(&sent), closed), (Some(RejectCode::Malformed), true));
        links.bytes(now, ConnId(1), b"more");
        links.closed(now, ConnId(1));
        assert!(links.is_idle());
    }
    let ping_twice = |mut theirs: Encoder| {
        let mut pieces = vec![];
        theirs.ping(&mut pieces);
        let ping = pieces.concat();
        [ping.clone(), ping].concat()
    };
    let mut theirs = Encoder::default();
    let greeting = hello_of(&mut theirs, &mut vec![]);
    for (bytes, code) in [
        (vec![0; 24], RejectCode::Malformed),
        (greeting.clone(), RejectCode::Sequence),
        (ping_twice(theirs), RejectCode::Sequence),
    ] {
        let (mut links, now) = acceptor();
        links.opened(now, ConnId(1), Peer("x".into()));
        links.bytes(now, ConnId(1), &greeting);
        links.bytes(now, ConnId(1), &bytes);
        let (sent, closed) = outcome(&mut links, now, ConnId(1));
        assert_eq!((reject_code(&sent), closed), (Some(code), true));
    }
}

#[test]
fn frames_of_a_later_version_are_skipped_and_counted() {
    let (mut links, now) = acceptor();
    let (mut theirs, mut pieces) = (Encoder::default(), vec![]);
    let mut bytes = hello_of(&mut theirs, &mut pieces);
    crate::codec::frame::encode(&mut bytes, 99, 0, 2, &[1; 8], Payload::of(b"later"), FRAME_MAX);
    bytes.extend_from_slice(b"later");
    let mut ping = vec![];
    let ping_kind = 4;
    let empty_table = [4, 0, 0, 0, 0, 0, 0, 0];
    crate::codec::frame::encode(&mut ping, ping_kind, 0, 3, &empty_table, Payload::NONE, FRAME_MAX);
    bytes.extend(ping);
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &bytes);
    assert_eq!(links.unknown_frames(), 1);
    let (sent, closed) = outcome(&mut links, now, ConnId(1));
    assert!(!closed && reject_code(&sent).is_none());
}

#[test]
fn a_stranger_that_says_nothing_is_closed_and_there_are_not_too_many() {
    let (mut links, now) = acceptor();
    links.opened(now, ConnId(1), Peer("x".into()));
    let due = links.deadline().unwrap();
    let later = Now { ticks: due, ..now };
    links.tick(later);
    assert!(outcome(&mut links, later, ConnId(1)).1);
    for i in 2..(STRANGERS_MAX as u64 + 2) {
        links.opened(now, ConnId(i), Peer("x".into()));
    }
    assert!(!outcome(&mut links, now, ConnId(STRANGERS_MAX as u64 + 1)).1);
    links.opened(now, ConnId(9999), Peer("x".into()));
    assert!(outcome(&mut links, now, ConnId(9999)).1);
}

#[test]
fn another_node_behind_an_address_is_refused() {
    let now = Now { ticks: Ticks(1), unix_ns: 0 };
    let mut links = Links::new(LinkOptions::new(id(0), CLUSTER, 1, CoreId(0), 1, 1));
    links.set_nodes(now, &all(2));
    let mut effects = vec![];
    links.tick(now);
    links.turn_end(now, &mut effects);
    let Effect::Dial { dial, .. } = effects[0] else { panic!("{effects:?}") };
    links.dialed(now, dial, Ok(ConnId(1)));
    let mut pieces = vec![];
    Encoder::default().welcome(&mut pieces, &Hello { node_id: id(7), ..hello() });
    links.bytes(now, ConnId(1), &pieces.concat());
    let (sent, closed) = outcome(&mut links, now, ConnId(1));
    assert_eq!((reject_code(&sent), closed), (Some(RejectCode::Other), true));
    assert!(!links.is_connected(id(1)));
    // and an answer that comes when nobody waits for it is closed
    links.dialed(now, 77, Ok(ConnId(2)));
    assert!(outcome(&mut links, now, ConnId(2)).1 && links.owns(ConnId(2)));
    let topic = TopicName::new("t").unwrap();
    let inquire = Inquire { topic, partitions: 1, membership_version: 1 };
    links.send(id(1), route(0), message(Body::Inquire(inquire)));
    assert!(outcome(&mut links, now, ConnId(1)).0.is_empty(), "dropped while there is no link");
}
