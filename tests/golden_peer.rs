//! Freezes the peer protocol: recorded frames that must still be read, and what this build makes of the same messages.
//! `tests/golden_native.rs` holds generated code against its schema.
//!
//! `GOLDEN_WRITE=1 cargo test --test golden_peer` writes the frames anew; only before a release of the format.

use bytes::Bytes;
use ringmq::base::{ChannelName, ConnId, CoreId, Epoch, LogId, Now, PartitionId, Peer, Position, ProducerId, TopicId, TopicName};
use ringmq::codec::frame::Header;
use ringmq::codec::native::Start;
use ringmq::codec::peer::message::*;
use ringmq::codec::peer::*;
use ringmq::format::cursor::{CursorImage, Interval};
use ringmq::format::files::Bad;
use ringmq::format::producer::{BatchPlace, Producer};
use ringmq::peer::{LinkEvent, LinkOptions, Links};
use ringmq::seam::cluster::ClusterNode;
use ringmq::seam::event::Effect;
use ringmq::{base::NodeId, codec::peer::error::PeerError};
use std::path::PathBuf;

fn at(n: i64) -> Position {
    Position { offset: n << 32, count: n * 1000, log_id: LogId(n as u64 * 1000 + 1) }
}

fn hello() -> Hello<'static> {
    Hello {
        version: VERSION,
        features: 5,
        node_id: NodeId([1; 16]),
        cluster_id: ClusterId([2; 16]),
        generation: 17,
        node_version: "0.1.0",
        layout: Layout { cores: 4, core: 3, placement: Layout::BY_NAME },
        lanes: Lanes::ALL,
        heartbeat_ms: 1000,
        link: 7,
        incarnation: 0x0102_0304_0506,
    }
}

fn producer(id: u64, n: i64) -> Producer {
    Producer::new(ProducerId::new(id).unwrap(), 70, n << 40, &[BatchPlace { at: at(n), num: 3 }]).unwrap()
}

fn cursors() -> Cursors {
    let image = |name, paused| CursorImage {
        name: ChannelName::new(name).unwrap(),
        paused,
        ordered: !paused,
        first: paused,
        epoch: Epoch(7),
        generation: 3,
        confirmed: at(2),
        intervals: vec![Interval { start: LogId(2500), end: at(3) }, Interval { start: LogId(3500), end: at(4) }],
        handed: vec![],
    };
    Cursors {
        seq: 12,
        committed: at(5),
        flush: true,
        is_all: true,
        collect_start: Some(at(1)),
        agreed_start: Some(at(0)),
        cursors: vec![image("archive", true), image("mail", false)],
        deleted: vec![ChannelName::new("old").unwrap(), ChannelName::new("older").unwrap()],
        producers: vec![producer(3, 2), producer(1, 4)],
        channels_lost: true,
    }
}

fn refusals() -> Vec<PeerError> {
    vec![
        PeerError::UnknownPartition,
        PeerError::StaleEpoch { promised: Epoch(9) },
        PeerError::ForeignLeader,
        PeerError::NotMember,
        PeerError::NotAligned,
        PeerError::Gap { end: at(6) },
        PeerError::Diverged { offset: 1 << 40 },
        PeerError::BadBatch(Bad::Crc),
        PeerError::BadBatch(Bad::Version(2)),
        PeerError::BelowCommitted { committed: at(7) },
        PeerError::OutOfReach,
        PeerError::Failed,
        PeerError::Ephemeral,
        PeerError::Clamped,
        PeerError::Superseded,
        PeerError::NoRoom,
    ]
}

fn addressed(partition: u16, body: Body) -> Addressed {
    let route = Route { topic_id: TopicId([4; 16]), partition: PartitionId(partition) };
    Addressed { route, message: Message { head: Head { epoch: Epoch(8), session: Session(2) }, body } }
}

/// Publishes of clients and what became of them.
fn forwards() -> Vec<Addressed> {
    let asker = |ticket| Asker { generation: 17, core: CoreId(3), ticket };
    let forward = |ticket, delay_ms, bodies: &[&'static [u8]]| {
        let bodies = PackedBodies::pack(bodies.iter().copied());
        addressed(1, Body::Forward(Forward { asker: asker(ticket), delay_ms, bodies }))
    };
    let outcome = |n| addressed(1, Body::Forwarded(Forwarded { asker: asker(n as u64), outcome: Outcome(n) }));
    let forwards = [forward(1, 0, &[b"one"]), forward(2, 1500, &[b"a", b"few", b"more"])];
    forwards.into_iter().chain((0..=Outcome::ENUM_MAX).map(outcome)).collect()
}

/// Messages between subscriptions of clients and leaders.
fn relays() -> Vec<Addressed> {
    let subscriber = Subscriber {
        channel: ChannelName::new("mail").unwrap(),
        msg_timeout_ms: 60_000,
        sample_rate: 10,
        ordered: true,
        placed: true,
        client_id: "worker".into(),
        hostname: "worker-7".into(),
        user_agent: "go-nsq/1.1.0".into(),
        remote_address: "10.0.0.7:4711".into(),
        connected_unix_s: 1_700_000_000,
    };
    let (id, refused) = (LogId(77), NotCarriedOut::Refused(Outcome::IsrTooSmall));
    let all = [
        Relayed::Subscribe(Box::new(subscriber)),
        Relayed::Unsubscribe,
        Relayed::Lend(200),
        Relayed::Recall(20),
        Relayed::Block(true),
        Relayed::Block(false),
        Relayed::Finish(vec![LogId(1), LogId(2), LogId(7)]),
        Relayed::Requeue { id, delay_ms: 1500 },
        Relayed::Touch(id),
        Relayed::Subscribed,
        Relayed::Refused(Outcome::TooManyConsumers),
        Relayed::Returned(20),
        Relayed::Hungry,
        Relayed::Deliver(Bytes::from_static(b"frames for the client")),
        Relayed::Lost,
        Relayed::ChannelDeleted,
        Relayed::NotFinished(id, NotCarriedOut::NotInFlight),
        Relayed::NotRequeued(id, NotCarriedOut::NotOwned),
        Relayed::NotTouched(id, refused),
    ];
    all.map(|relayed| addressed(1, Body::Relay(relayed))).into()
}

/// Operations of operators on channels, and their outcomes.
fn changes() -> Vec<Body> {
    let asker = |ticket| Asker { generation: 17, core: CoreId(3), ticket };
    let offset = |to, from| Changing::SetOffset { to, from, force: from.is_none() };
    let all = [
        Changing::Create { first: None, is_alone: false },
        Changing::Create { first: Some(false), is_alone: true },
        Changing::Create { first: Some(true), is_alone: false },
        Changing::Delete,
        Changing::Pause,
        Changing::Unpause,
        Changing::SetOrder(true),
        Changing::SetOrder(false),
        offset(Start::Default, None),
        offset(Start::Oldest, None),
        offset(Start::Newest, None),
        offset(Start::Offset(4096), None),
        offset(Start::Count(7), None),
        offset(Start::LogId(LogId(9)), Some(LogId(5))),
        offset(Start::Timestamp(-1), None),
    ];
    let names = [ChannelName::new("mail").unwrap(), ChannelName::topic_pause()];
    let change = |(n, what): (usize, Changing)| {
        Body::Change(Change { asker: asker(n as u64), channel: names[n % names.len()].clone(), what })
    };
    let answers = [
        Ok(ChangeDone::default()),
        Ok(ChangeDone { is_first: true, at: None }),
        Ok(ChangeDone { is_first: false, at: Some(at(3)) }),
        Err(NotChanged::NoPartition),
        Err(NotChanged::NoChannel),
        Err(NotChanged::NotFirstClient),
        Err(NotChanged::HasClients),
        Err(NotChanged::NoPlace),
        Err(NotChanged::Unreadable),
        Err(NotChanged::Failed(Outcome::NotLeader)),
    ];
    let answers = answers.map(|result| Body::Changed(Changed { asker: asker(1), result }));
    all.into_iter().enumerate().map(change).chain(answers).collect()
}

/// Every message, by lane; those of a turn for several partitions among them.
fn turns() -> Vec<(Lane, Vec<Addressed>)> {
    let batch = |n: u8| Bytes::from(vec![n; 100]);
    let append = |n| Body::Append(Append { committed: at(3), batches: Batches::new(vec![batch(n)]) });
    let epochs = [7, 5, 2].map(|e| EpochEnd { epoch: Epoch(e), end: at(e as i64), chain_crc: 0xfeed }).to_vec();
    let standing = Standing {
        start: at(1),
        start_crc: 0xbeef,
        last_epoch: Epoch(7),
        durable: at(7),
        committed: at(6),
        suspect: true,
        epochs,
        more: true,
    };
    let topic = TopicName::new("orders.eu").unwrap();
    let control = vec![
        Body::Inquire(Inquire { topic, partitions: 8, membership_version: 99 }),
        Body::EpochsAsk(EpochsAsk { below: Epoch(2) }),
        Body::Align(Align::Truncate { at: at(2), chain_crc: None }),
        Body::Align(Align::Truncate { at: at(2), chain_crc: Some(0) }),
        Body::Align(Align::Restart { start: at(3), chain_crc: 0xcafe }),
        Body::Cursors(cursors()),
        Body::Standing(standing),
        Body::Aligned(Aligned { at: at(2) }),
        Body::CursorsAck(CursorsAck { seq: 12, result: Ok(()) }),
        Body::CursorsAck(CursorsAck { seq: 13, result: Err(PeerError::Clamped) }),
    ];
    let catch_up = vec![
        Body::Pull(Pull { from: at(4), bytes_max: 1 << 20 }),
        Body::Pulled(Pulled { from: at(4), batches: Batches::new(vec![batch(9)]) }),
        append(5),
    ];
    let acks = (0..3).map(|p| addressed(p, Body::Ack(Ack { durable: at(p as i64) })));
    let empty = Body::Append(Append { committed: at(4), batches: Batches::default() });
    let data = (0..3).map(|p| addressed(p, append(p as u8))).chain([addressed(3, empty)]).chain(acks);
    let refused = refusals().into_iter().map(|e| addressed(3, Body::Refused(e)));
    let of = |bodies: Vec<Body>| bodies.into_iter().map(|body| addressed(3, body)).collect();
    vec![
        (Lane::Control, of(control.into_iter().chain(changes()).collect())),
        (Lane::Data, data.chain(refused).chain(forwards()).chain(relays()).collect()),
        (Lane::CatchUp, of(catch_up)),
    ]
}

const REJECT: Reject<'static> = Reject { code: RejectCode::OtherCluster, message: "this node belongs to another cluster" };

fn encoded() -> Vec<u8> {
    let (mut pieces, mut encoder) = (vec![], Encoder::default());
    encoder.hello(&mut pieces, &hello());
    encoder.welcome(&mut pieces, &hello());
    encoder.reject(&mut pieces, &REJECT);
    encoder.ping(&mut pieces);
    encoder.pong(&mut pieces);
    for (lane, messages) in turns() {
        encoder.messages(&mut pieces, lane, &messages);
    }
    pieces.concat()
}

/// Hash of the recorded frames.
const FROZEN: u32 = 0x63a0_d19b;

#[test]
fn what_is_encoded_changes_only_with_the_version() {
    assert_eq!(crc32fast::hash(&encoded()), FROZEN, "peers of this version would be sent other bytes");
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/peer-v1.bin")
}

fn recorded() -> Bytes {
    Bytes::from(std::fs::read(path()).unwrap_or_else(|e| panic!("{}: {e}", path().display())))
}

#[test]
fn recorded_frames_are_read() {
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        std::fs::write(path(), encoded()).expect("the fixture can be written");
    }
    let bytes = recorded();
    assert_eq!(crc32fast::hash(&bytes), FROZEN, "the recorded frames are not those of version 1");
    let (mut at, mut seen) = (0, Sequences::default());
    let mut connection = vec![];
    let mut messages: [Vec<Addressed>; 3] = Default::default();
    while at < bytes.len() {
        let (header, metadata) = Header::parse(&bytes[at..], frame::FRAME_MAX).expect("intact").expect("whole");
        at += header.frame_len();
        let payload = bytes.slice(at - header.payload_len..at);
        header.check_payload(&payload).expect("the payload holds");
        seen.check(&header).expect("none is missing");
        match Frame::decode(&header, metadata, &payload).expect("it is known") {
            Frame::Messages(some) => messages[header.flags as usize].extend(some),
            frame => connection.push(frame),
        }
    }
    let theirs = hello();
    assert_eq!(connection, [Frame::Hello(theirs), Frame::Welcome(theirs), Frame::Reject(REJECT), Frame::Ping, Frame::Pong]);
    let expected: Vec<_> = turns().into_iter().map(|(_, messages)| messages).collect();
    assert_eq!(messages.to_vec(), expected);
}

/// The recorded Hello, to the core that it is for.
#[test]
fn the_recorded_hello_is_welcomed() {
    let theirs = hello();
    let mut links = Links::new(LinkOptions::new(NodeId([9; 16]), theirs.cluster_id, 1, CoreId(theirs.link), 8, 1));
    links.set_nodes(Now::default(), &[ClusterNode::new(theirs.node_id, "there", "there:1")]);
    links.opened(Now::default(), ConnId(1), Peer("there:9".into()));
    let bytes = recorded();
    let (header, _) = Header::parse(&bytes, frame::HELLO_FRAME_MAX).expect("intact").expect("whole");
    links.bytes(Now::default(), ConnId(1), &bytes[..header.frame_len()]);
    let (mut events, mut effects) = (vec![], vec![]);
    links.take(&mut events);
    assert_eq!(events, [LinkEvent::Connected(theirs.node_id)], "all lanes are on this connection");
    links.turn_end(Now::default(), &mut effects);
    let [Effect::Send { bytes, .. }] = &effects[..] else { panic!("{effects:?}") };
    let (header, metadata) = Header::parse(bytes, frame::HELLO_FRAME_MAX).expect("intact").expect("whole");
    let Ok(Frame::Welcome(welcome)) = Frame::decode(&header, metadata, &Bytes::new()) else { panic!("not a Welcome") };
    assert_eq!((theirs.agree(&welcome).map(|a| a.version), welcome.link), (Ok(VERSION), theirs.link));
}
