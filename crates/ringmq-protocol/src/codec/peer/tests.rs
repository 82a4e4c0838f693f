//! Every message both ways, the bounds, and what later versions and hostile peers send.

use super::frame::{FRAME_MAX, FrameError, HELLO_FRAME_MAX, Header};
use super::*;
use crate::base::{ChannelName, CoreId, Epoch, LogId, PartitionId, Position, ProducerId, TopicId, TopicName};
use crate::codec::metadata::with_later_field;
use crate::codec::native::Start;
use crate::codec::peer::message::*;
use crate::format::cursor::{CursorImage, Interval};
use crate::format::files::Bad;
use crate::format::producer::{BatchPlace, Producer};
use crate::{base::NodeId, codec::peer::error::PeerError};
use bytes::Bytes;
use proptest::prelude::*;

fn position() -> impl Strategy<Value = Position> {
    let counts = (0..=i64::MAX / 2, 0..=i64::MAX / 2, 1..=LogId::MAX.0 + 1);
    counts.prop_map(|(offset, count, id)| Position { offset, count, log_id: LogId(id) })
}

fn head() -> impl Strategy<Value = (Route, Head)> {
    (any::<[u8; 16]>(), 0..PartitionId::COUNT_MAX, any::<u64>(), 1..=u32::MAX).prop_map(|(id, partition, epoch, session)| {
        let route = Route { topic_id: TopicId(id), partition: PartitionId(partition) };
        (route, Head { epoch: Epoch(epoch), session: Session(session) })
    })
}

fn bad() -> impl Strategy<Value = Bad> {
    prop_oneof![
        prop::sample::select(vec![Bad::Short, Bad::Zero, Bad::Magic, Bad::Crc, Bad::Foreign, Bad::Bounds, Bad::Chain]),
        any::<u16>().prop_map(Bad::Version),
        any::<u16>().prop_map(Bad::Kind),
    ]
}

fn error() -> impl Strategy<Value = PeerError> {
    prop_oneof![
        prop::sample::select(vec![
            PeerError::UnknownPartition,
            PeerError::ForeignLeader,
            PeerError::NotMember,
            PeerError::NotAligned,
            PeerError::OutOfReach,
            PeerError::Failed,
            PeerError::Ephemeral,
            PeerError::Clamped,
            PeerError::Superseded,
            PeerError::NoRoom,
        ]),
        any::<u64>().prop_map(|e| PeerError::StaleEpoch { promised: Epoch(e) }),
        position().prop_map(|end| PeerError::Gap { end }),
        (0..=i64::MAX / 2).prop_map(|offset| PeerError::Diverged { offset }),
        bad().prop_map(PeerError::BadBatch),
        position().prop_map(|committed| PeerError::BelowCommitted { committed }),
    ]
}

/// Parts of any cut; none is empty and there is at most one after a decoding.
fn batches() -> impl Strategy<Value = Batches> {
    let part = prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    prop::collection::vec(part, 0..4).prop_map(Batches::new)
}

fn channel() -> impl Strategy<Value = ChannelName> {
    "[a-zA-Z0-9._-]{1,54}(#ephemeral)?".prop_map(|name| ChannelName::new(&name).unwrap())
}

fn cursor() -> impl Strategy<Value = CursorImage> {
    let gaps = prop::collection::vec((0..1000u64, 1..1000u64, 0..1i64 << 40), 0..20);
    (channel(), any::<[bool; 3]>(), any::<[u64; 2]>(), (0..1i64 << 50, 0..1i64 << 50, 1..1u64 << 40), gaps).prop_map(
        |(name, [paused, ordered, first], [epoch, generation], (offset, count, id), gaps)| {
            let mut end = id;
            let interval = |(gap, len, offset): (u64, u64, i64)| {
                let start = end + gap;
                end = start + len;
                Interval { start: LogId(start), end: Position { offset, count: 7, log_id: LogId(end) } }
            };
            let intervals = gaps.into_iter().map(interval).collect();
            let confirmed = Position { offset, count, log_id: LogId(id) };
            CursorImage { name, paused, ordered, first, epoch: Epoch(epoch), generation, confirmed, intervals, handed: vec![] }
        },
    )
}

fn standing() -> impl Strategy<Value = Standing> {
    let epochs = prop::collection::btree_map(any::<u64>(), (position(), any::<u32>()), 0..=EPOCHS_MAX);
    (any::<[bool; 2]>(), any::<u32>(), any::<u64>(), [position(), position(), position()], epochs).prop_map(
        |([suspect, more], start_crc, last, [start, durable, committed], epochs)| {
            let epoch = |(epoch, (end, chain_crc))| EpochEnd { epoch: Epoch(epoch), end, chain_crc };
            let epochs = epochs.into_iter().rev().map(epoch).collect();
            Standing { start, start_crc, last_epoch: Epoch(last), durable, committed, suspect, epochs, more }
        },
    )
}

fn producer(n: u64) -> Option<Producer> {
    Producer::new(ProducerId::new(n)?, 7 * n, n as i64, &[BatchPlace { at: AT, num: 3 }])
}

fn cursors() -> impl Strategy<Value = Cursors> {
    let lists = (prop::collection::vec(cursor(), 0..5), prop::collection::vec(channel(), 0..5));
    let starts = [prop::option::of(position()), prop::option::of(position())];
    (1..=u64::MAX, position(), any::<[bool; 3]>(), starts, lists).prop_map(
        |(seq, committed, [flush, is_all, channels_lost], [collect_start, agreed_start], (cursors, deleted))| Cursors {
            seq,
            committed,
            flush,
            is_all,
            collect_start,
            agreed_start,
            cursors,
            deleted,
            producers: if is_all { (1..40).filter_map(producer).collect() } else { vec![] },
            channels_lost,
        },
    )
}

/// But for Inquire, whose partitions depend on the route.
fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        any::<u64>().prop_map(|e| Body::EpochsAsk(EpochsAsk { below: Epoch(e) })),
        (position(), 0..=APPEND_BYTES_MAX as u32).prop_map(|(from, bytes_max)| Body::Pull(Pull { from, bytes_max })),
        (position(), any::<Option<u32>>()).prop_map(|(at, chain_crc)| Body::Align(Align::Truncate { at, chain_crc })),
        (position(), any::<u32>()).prop_map(|(start, chain_crc)| Body::Align(Align::Restart { start, chain_crc })),
        (position(), batches()).prop_map(|(committed, batches)| Body::Append(Append { committed, batches })),
        cursors().prop_map(Body::Cursors),
        standing().prop_map(Body::Standing),
        (position(), batches()).prop_map(|(from, batches)| Body::Pulled(Pulled { from, batches })),
        position().prop_map(|at| Body::Aligned(Aligned { at })),
        position().prop_map(|durable| Body::Ack(Ack { durable })),
        (1..=u64::MAX, prop::option::of(error()))
            .prop_map(|(seq, e)| Body::CursorsAck(CursorsAck { seq, result: e.map_or(Ok(()), Err) })),
        error().prop_map(Body::Refused),
        (asker(), any::<u64>(), prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 1..5)).prop_map(
            |(asker, delay_ms, bodies)| {
                let bodies = PackedBodies::pack(bodies.iter().map(|body| &body[..]));
                Body::Forward(Forward { asker, delay_ms, bodies })
            }
        ),
        relay(),
        (asker(), channel(), changing()).prop_map(|(asker, channel, what)| Body::Change(Change { asker, channel, what })),
        (asker(), not_changed()).prop_map(|(asker, why)| Body::Changed(Changed { asker, result: Err(why) })),
        (asker(), any::<bool>(), prop::option::of(position()))
            .prop_map(|(asker, is_first, at)| { Body::Changed(Changed { asker, result: Ok(ChangeDone { is_first, at }) }) }),
        (asker(), 0..=Outcome::ENUM_MAX)
            .prop_map(|(asker, outcome)| Body::Forwarded(Forwarded { asker, outcome: Outcome(outcome) })),
    ]
}

fn relay() -> impl Strategy<Value = Body> {
    let id = || any::<u64>().prop_map(LogId);
    let outcome = || (0..=Outcome::ENUM_MAX).prop_map(Outcome);
    let why =
        prop_oneof![Just(NotCarriedOut::NotInFlight), Just(NotCarriedOut::NotOwned), outcome().prop_map(NotCarriedOut::Refused),];
    let subscriber = (channel(), any::<(u64, u8, bool, bool, i64)>(), any::<[String; 4]>()).prop_map(|(channel, n, texts)| {
        let [client_id, hostname, user_agent, remote_address] = texts;
        let (msg_timeout_ms, sample_rate, ordered, placed, connected_unix_s) = n;
        Subscriber {
            channel,
            msg_timeout_ms,
            sample_rate,
            ordered,
            placed,
            client_id,
            hostname,
            user_agent,
            remote_address,
            connected_unix_s,
        }
    });
    let relayed = prop_oneof![
        subscriber.prop_map(|s| Relayed::Subscribe(Box::new(s))),
        any::<u32>().prop_map(Relayed::Lend),
        any::<u32>().prop_map(Relayed::Recall),
        any::<bool>().prop_map(Relayed::Block),
        prop::collection::vec(id(), 0..50).prop_map(Relayed::Finish),
        (id(), any::<u64>()).prop_map(|(id, delay_ms)| Relayed::Requeue { id, delay_ms }),
        id().prop_map(Relayed::Touch),
        prop::sample::select(vec![
            Relayed::Unsubscribe,
            Relayed::Subscribed,
            Relayed::Hungry,
            Relayed::Lost,
            Relayed::ChannelDeleted,
            Relayed::Other,
        ]),
        outcome().prop_map(Relayed::Refused),
        any::<u32>().prop_map(Relayed::Returned),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(|frames| Relayed::Deliver(frames.into())),
        (id(), why, 0..3).prop_map(|(id, why, of)| match of {
            0 => Relayed::NotFinished(id, why),
            1 => Relayed::NotRequeued(id, why),
            _ => Relayed::NotTouched(id, why),
        }),
    ];
    relayed.prop_map(Body::Relay)
}

fn changing() -> impl Strategy<Value = Changing> {
    let id = || (0..=LogId::MAX.0).prop_map(LogId);
    let to = prop_oneof![
        prop::sample::select(vec![Start::Default, Start::Oldest, Start::Newest]),
        (0..=i64::MAX).prop_map(Start::Offset),
        (0..=i64::MAX).prop_map(Start::Count),
        id().prop_map(Start::LogId),
        any::<i64>().prop_map(Start::Timestamp),
    ];
    prop_oneof![
        any::<(Option<bool>, bool)>().prop_map(|(first, is_alone)| Changing::Create { first, is_alone }),
        prop::sample::select(vec![Changing::Delete, Changing::Pause, Changing::Unpause, Changing::Other]),
        any::<bool>().prop_map(Changing::SetOrder),
        (to, prop::option::of(id()), any::<bool>()).prop_map(|(to, from, force)| Changing::SetOffset { to, from, force }),
    ]
}

fn not_changed() -> impl Strategy<Value = NotChanged> {
    use NotChanged::{HasClients, NoChannel, NoPartition, NoPlace, NotFirstClient, Unreadable};
    prop_oneof![
        prop::sample::select(vec![NoPartition, NoChannel, NotFirstClient, HasClients, NoPlace, Unreadable]),
        (0..=Outcome::ENUM_MAX).prop_map(|outcome| NotChanged::Failed(Outcome(outcome))),
    ]
}

fn asker() -> impl Strategy<Value = Asker> {
    any::<(u64, u16, u64)>().prop_map(|(generation, core, ticket)| Asker { generation, core: CoreId(core), ticket })
}

fn message() -> impl Strategy<Value = Addressed> {
    let inquire =
        ("[a-z0-9]{1,64}", any::<u64>(), head(), 0..PartitionId::COUNT_MAX).prop_map(|(topic, version, (route, head), more)| {
            let partitions = (route.partition.0 + 1 + more).min(PartitionId::COUNT_MAX);
            let topic = TopicName::new(&topic).unwrap();
            let body = Body::Inquire(Inquire { topic, partitions, membership_version: version });
            Addressed { route, message: Message { head, body } }
        });
    let others = (head(), body()).prop_map(|((route, head), body)| Addressed { route, message: Message { head, body } });
    prop_oneof![1 => inquire, 12 => others]
}

/// The message as a decoder returns it: its batches in one piece.
fn joined(mut m: Addressed) -> Addressed {
    if let Body::Append(Append { batches, .. }) | Body::Pulled(Pulled { batches, .. }) = &mut m.message.body {
        let bytes = Bytes::from(batches.parts.concat());
        *batches = Batches::new(if bytes.is_empty() { vec![] } else { vec![bytes] });
    }
    m
}

/// Header, metadata and payload of each frame; checked as a reader does.
fn frames(pieces: &[Bytes]) -> Vec<(Header, Vec<u8>, Bytes)> {
    let (bytes, mut at, mut found, mut seen) = (Bytes::from(pieces.concat()), 0, vec![], Sequences::default());
    while at < bytes.len() {
        let (header, metadata) = Header::parse(&bytes[at..], FRAME_MAX).expect("intact").expect("whole");
        at += header.frame_len();
        let payload = bytes.slice(at - header.payload_len..at);
        assert_eq!((header.check_payload(&payload), seen.check(&header)), (Ok(()), Ok(())));
        found.push((header, metadata.to_vec(), payload));
    }
    found
}

fn decoded(pieces: &[Bytes]) -> Vec<Addressed> {
    let messages = |(header, metadata, payload): &(Header, Vec<u8>, Bytes)| match Frame::decode(header, metadata, payload) {
        Ok(Frame::Messages(messages)) => {
            let later = with_later_field(metadata);
            let later = Frame::decode(header, &later, payload);
            assert!(matches!(&later, Ok(Frame::Messages(m)) if *m == messages), "a field more is {later:?}");
            messages
        }
        other => panic!("what was encoded is {other:?}"),
    };
    frames(pieces).iter().flat_map(messages).collect()
}

fn hello(text: &str) -> Hello<'_> {
    Hello {
        version: VERSION,
        features: 6,
        node_id: NodeId([1; 16]),
        cluster_id: ClusterId([2; 16]),
        generation: 9,
        node_version: text,
        layout: Layout { cores: 2, core: 1, placement: Layout::BY_NAME },
        lanes: Lanes::ALL,
        heartbeat_ms: 1000,
        link: 3,
        incarnation: 4,
    }
}

proptest! {
    #[test]
    fn messages_of_a_turn_come_back(messages in prop::collection::vec(message(), 0..12), lane in 0..3usize) {
        let lane = [Lane::Control, Lane::Data, Lane::CatchUp][lane];
        let messages: Vec<_> = messages.into_iter().filter(|m| fits(&m.message.body, lane)).collect();
        let mut pieces = vec![];
        Encoder::default().messages(&mut pieces, lane, &messages);
        prop_assert_eq!(decoded(&pieces), messages.into_iter().map(joined).collect::<Vec<_>>());
    }

    #[test]
    fn each_message_comes_back(message in message()) {
        let mut pieces = vec![];
        Encoder::default().messages(&mut pieces, message.message.body.lane(), std::slice::from_ref(&message));
        prop_assert_eq!(decoded(&pieces), vec![joined(message)]);
    }

    #[test]
    fn what_belongs_to_the_connection_comes_back(
        text in "[a-z0-9 ]{0,40}", ids in any::<[[u8; 16]; 2]>(), n in any::<[u16; 5]>(), big in any::<[u64; 3]>(), lanes: u8, ms: u32,
        link: u16,
    ) {
        let hello = Hello {
            version: Version { major: n[0], minor: n[1] }, features: big[0], node_id: NodeId(ids[0]), cluster_id: ClusterId(ids[1]),
            generation: big[1], node_version: &text, layout: Layout { cores: n[2], core: n[3], placement: n[4] },
            lanes: Lanes(lanes), heartbeat_ms: ms, link, incarnation: big[2],
        };
        let reject = Reject { code: RejectCode::OtherCluster, message: &text };
        let (mut pieces, mut encoder) = (vec![], Encoder::default());
        encoder.hello(&mut pieces, &hello);
        encoder.welcome(&mut pieces, &hello);
        encoder.reject(&mut pieces, &reject);
        encoder.ping(&mut pieces);
        encoder.pong(&mut pieces);
        let frames = frames(&pieces);
        prop_assert!(frames.iter().all(|(header, ..)| header.frame_len() <= HELLO_FRAME_MAX));
        let found: Vec<_> = frames.iter().map(|(h, metadata, payload)| Frame::decode(h, metadata, payload).unwrap()).collect();
        prop_assert_eq!(found, vec![Frame::Hello(hello), Frame::Welcome(hello), Frame::Reject(reject), Frame::Ping, Frame::Pong]);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(data: Vec<u8>) {
        fuzz::peer_stream(&data);
        fuzz::peer_metadata(&data);
    }

    /// The checksum keeps damage out; bytes that a hostile peer seals itself must not panic either.
    #[test]
    fn changed_frames_never_panic(message in message(), flips in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6)) {
        let mut pieces = vec![];
        Encoder::default().messages(&mut pieces, message.message.body.lane(), &[message]);
        let (header, metadata, payload) = frames(&pieces).remove(0);
        let mut data = vec![header.kind, header.flags, payload.len().min(255) as u8];
        data.extend_from_slice(&payload[..payload.len().min(255)]);
        data.extend_from_slice(&metadata);
        for (at, bits) in flips {
            let at = at % data.len();
            data[at] ^= bits;
        }
        fuzz::peer_metadata(&data);
    }
}

const AT: Position = Position { offset: 4096, count: 10, log_id: LogId(11) };

fn addressed(partition: u16, body: Body) -> Addressed {
    let route = Route { topic_id: TopicId([5; 16]), partition: PartitionId(partition) };
    Addressed { route, message: Message { head: Head { epoch: Epoch(3), session: Session(1) }, body } }
}

/// The decoding of a message that the encoder lets through.
fn outcome(body: Body) -> Result<(), Malformed> {
    let mut pieces = vec![];
    Encoder::default().messages(&mut pieces, body.lane(), &[addressed(3, body)]);
    let (header, metadata, payload) = frames(&pieces).remove(0);
    Frame::decode(&header, &metadata, &payload).map(|_| ())
}

#[test]
fn the_batches_of_a_frame_of_one_partition_are_never_copied() {
    let batch = Bytes::from(vec![7; 1000]);
    let append = Append { committed: AT, batches: Batches::new(vec![batch.clone(), batch.clone()]) };
    let mut pieces = vec![];
    Encoder::default().messages(&mut pieces, Lane::Data, &[addressed(0, Body::Append(append))]);
    assert_eq!(pieces.len(), 3);
    assert!(pieces[1..].iter().all(|piece| piece.as_ptr() == batch.as_ptr()));

    let (header, metadata, payload) = frames(&pieces).remove(0);
    let Ok(Frame::Messages(found)) = Frame::decode(&header, &metadata, &payload) else { panic!("it was encoded") };
    let Body::Append(Append { batches, .. }) = &found[0].message.body else { panic!("it was an append") };
    assert_eq!(batches.parts[0].as_ptr(), payload.as_ptr());
}

#[test]
fn a_short_run_does_not_keep_the_frame_that_it_came_in() {
    let lens = [300, 200_000, 1, 90_000];
    let append = |(n, len): (usize, &usize)| {
        addressed(n as u16, Body::Append(Append { committed: AT, batches: Batches::new(vec![vec![7; *len].into()]) }))
    };
    let mut pieces = vec![];
    Encoder::default().messages(&mut pieces, Lane::Data, &lens.iter().enumerate().map(append).collect::<Vec<_>>());
    let (header, metadata, payload) = frames(&pieces).remove(0);
    let Ok(Frame::Messages(found)) = Frame::decode(&header, &metadata, &payload) else { panic!("it was encoded") };
    let memory = payload.as_ptr_range();
    let is_slice = |m: &Addressed| match &m.message.body {
        Body::Append(m) => memory.contains(&m.batches.parts[0].as_ptr()),
        _ => false,
    };
    assert_eq!(found.iter().map(is_slice).collect::<Vec<_>>(), [false, true, false, false]);
}

#[test]
fn the_appends_of_a_turn_share_frames_up_to_their_bounds() {
    let append = |partition, bytes: usize| {
        addressed(partition, Body::Append(Append { committed: AT, batches: Batches::new(vec![vec![1; bytes].into()]) }))
    };
    let count = |messages: &[Addressed]| {
        let mut pieces = vec![];
        Encoder::default().messages(&mut pieces, Lane::Data, messages);
        assert_eq!(decoded(&pieces), messages);
        frames(&pieces).len()
    };
    let many: Vec<_> = (0..PartitionId::COUNT_MAX).map(|p| append(p, 1)).collect();
    assert_eq!(count(&many), 2);
    let acks: Vec<_> = (0..PartitionId::COUNT_MAX).map(|p| addressed(p, Body::Ack(Ack { durable: AT }))).collect();
    assert_eq!(count(&acks), 2);
    assert_eq!(count(&[append(0, TURN_BYTES_MAX), append(1, 1)]), 2, "full");
    assert_eq!(count(&[append(0, TURN_BYTES_MAX - 1), append(1, 1)]), 1);
    assert_eq!(count(&[append(0, TURN_BYTES_MAX + 1)]), 1, "one goes whatever its length is");
    assert_eq!(count(&[acks[0].clone(), append(0, 1), acks[1].clone(), acks[2].clone()]), 3, "order is kept");
}

#[test]
fn the_longest_messages_fit_a_frame() {
    let run = Batches::new(vec![vec![0; RUN_BYTES_MAX].into()]);
    assert_eq!(outcome(Body::Append(Append { committed: AT, batches: run.clone() })), Ok(()));
    assert_eq!(outcome(Body::Pulled(Pulled { from: AT, batches: run })), Ok(()));
    let epoch = |e| EpochEnd { epoch: Epoch(e), end: AT, chain_crc: 1 };
    let epochs = (0..EPOCHS_MAX as u64).rev().map(epoch).collect();
    let standing = Standing {
        start: AT,
        start_crc: 1,
        last_epoch: Epoch(70),
        durable: AT,
        committed: AT,
        suspect: true,
        epochs,
        more: true,
    };
    assert_eq!(outcome(Body::Standing(standing)), Ok(()));
    let deleted = (0..CURSORS_MAX).map(|i| ChannelName::new(&format!("{i:064}")).unwrap()).collect();
    let start = Some(AT);
    let (collect_start, agreed_start, cursors) = (start, start, vec![]);
    let producers = (1..=PRODUCERS_TOLD_MAX as u64).filter_map(producer).collect();
    let (is_all, flush, channels_lost, seq, committed) = (false, true, true, 1, AT);
    let cursors =
        Cursors { seq, committed, flush, is_all, collect_start, agreed_start, cursors, deleted, producers, channels_lost };
    assert_eq!(outcome(Body::Cursors(cursors)), Ok(()));
}

#[test]
fn numbers_out_of_bounds_are_malformed() {
    let field = |kind, field| Err(Malformed::Field { kind, field });
    let far = Position { offset: i64::MAX, ..AT };
    assert_eq!(outcome(Body::Ack(Ack { durable: far })), field("Acks", "durable"));
    assert_eq!(outcome(Body::Aligned(Aligned { at: Position { log_id: LogId(0), ..AT } })), field("Aligned", "at"));
    assert_eq!(outcome(Body::Pull(Pull { from: AT, bytes_max: APPEND_BYTES_MAX as u32 + 1 })), field("Pull", "bytes_max"));
    assert_eq!(outcome(Body::Refused(PeerError::Gap { end: far })), field("Refused", "at"));
    assert_eq!(outcome(Body::Refused(PeerError::Diverged { offset: -1 })), field("Refused", "offset"));
    assert_eq!(outcome(Body::CursorsAck(CursorsAck { seq: 0, result: Ok(()) })), field("CursorsAck", "seq"));
    let topic = TopicName::new("t").unwrap();
    let inquire = |partitions| Body::Inquire(Inquire { topic: topic.clone(), partitions, membership_version: 1 });
    assert_eq!(outcome(inquire(4)), Ok(()));
    assert_eq!(outcome(inquire(3)), field("Inquire", "partitions"), "partition 3 of 3");
    assert_eq!(outcome(inquire(PartitionId::COUNT_MAX + 1)), field("Inquire", "partitions"));
    let image = |intervals| CursorImage { intervals, ..CursorImage::new(ChannelName::new("c").unwrap(), Epoch(1), 1, AT) };
    let interval = |start, end| Interval { start: LogId(start), end: Position { log_id: LogId(end), ..AT } };
    let cursors = |intervals| {
        let cursors = vec![image(intervals)];
        Body::Cursors(Cursors {
            seq: 1,
            committed: AT,
            flush: false,
            is_all: true,
            collect_start: None,
            agreed_start: None,
            cursors,
            deleted: vec![],
            producers: vec![],
            channels_lost: false,
        })
    };
    assert_eq!(outcome(cursors(vec![interval(12, 14), interval(20, 21)])), Ok(()));
    for bad in [vec![interval(5, 6)], vec![interval(14, 14)], vec![interval(20, 21), interval(12, 14)]] {
        assert_eq!(outcome(cursors(bad)), field("Cursors", "cursors"));
    }
    let unordered = Standing {
        start: AT,
        start_crc: 0,
        last_epoch: Epoch(2),
        durable: AT,
        committed: AT,
        suspect: false,
        epochs: [1, 2].map(|e| EpochEnd { epoch: Epoch(e), end: AT, chain_crc: 0 }).to_vec(),
        more: false,
    };
    assert_eq!(outcome(Body::Standing(unordered)), field("Standing", "epochs"));
}

/// A sealed frame of these parts, as a peer of another mind could send it.
fn sealed(kind: u8, lane: u8, metadata: &[u8], payload: &'static [u8]) -> Result<Frame<'static>, Malformed> {
    let mut bytes = vec![];
    let of_payload = crate::codec::frame::Payload::of(payload);
    crate::codec::frame::encode(&mut bytes, kind, lane, 1, metadata, of_payload, FRAME_MAX);
    let (header, metadata) = Header::parse(&bytes.leak()[..], FRAME_MAX).expect("sealed").expect("whole");
    Frame::decode(&header, metadata, &Bytes::from_static(payload))
}

#[test]
fn zeros_and_other_protocols_are_refused() {
    assert_eq!(Header::parse(&[0; 24], HELLO_FRAME_MAX), Err(FrameError::Checksum));
    assert!(Header::parse(b"  V2IDENTIFY\n\0\0\0\0\0\0\0\0\0\0\0", HELLO_FRAME_MAX).is_err());
    // eight zero bytes are a flatbuffer of defaults, without its required fields
    for kind in [kind::HELLO, kind::REJECT, kind::INQUIRE, kind::PULL, kind::ALIGN, kind::APPENDS, kind::ACKS, kind::REFUSED] {
        assert_eq!(sealed(kind, 0, &[0; 8], b""), Err(Malformed::Metadata { kind: decode::name(kind).unwrap() }));
    }
    // a length alone is held against the bound before anything waits for so many bytes
    let mut long = vec![0; 24];
    long[4..8].copy_from_slice(&(FRAME_MAX as u32).to_le_bytes());
    assert!(matches!(Header::parse(&long, FRAME_MAX), Err(FrameError::TooLong { .. })));
}

#[test]
fn kinds_lanes_and_payloads_must_fit_each_other() {
    assert_eq!(sealed(200, 0, &[0; 8], b"?"), Err(Malformed::UnknownKind(200)));
    assert_eq!(sealed(200, 9, &[0; 8], b"?"), Err(Malformed::UnknownKind(200)));
    let field = |kind, field| Err(Malformed::Field { kind, field });
    assert_eq!(sealed(kind::PING, 3, &[0; 8], b""), field("Ping", "lane"), "no such lane");
    assert_eq!(sealed(kind::PING, 1, &[0; 8], b""), field("Ping", "lane"), "not its lane");
    assert_eq!(sealed(kind::PING, 0, &[0; 8], b"?"), field("Ping", "payload"));

    let mut pieces = vec![];
    let append = Append { committed: AT, batches: Batches::new(vec![Bytes::from_static(b"12345")]) };
    Encoder::default().messages(&mut pieces, Lane::CatchUp, &[addressed(0, Body::Append(append))]);
    let (header, metadata, _) = frames(&pieces).remove(0);
    assert!(sealed(header.kind, 1, &metadata, b"abcde").is_ok());
    assert_eq!(sealed(header.kind, 0, &metadata, b"abcde"), field("Appends", "lane"));
    assert_eq!(sealed(header.kind, 1, &metadata, b"abcd"), field("Appends", "bytes"), "more than there is");
    assert_eq!(sealed(header.kind, 1, &metadata, b"abcdef"), field("Appends", "bytes"), "bytes of nobody");
}

#[test]
fn a_later_minor_is_understood() {
    // a Pull with a field that this version does not know, behind its own
    let mut b = flatbuffers::FlatBufferBuilder::new();
    let (head, from) = (fb::Head::new(&fb::Id([5; 16]), 3, 1, 0), fb::Position::new(4096, 10, 11));
    let start = b.start_table();
    b.push_slot_always::<u64>(fb::Pull::VT_BYTES_MAX + 2, 77);
    b.push_slot_always::<&fb::Position>(fb::Pull::VT_FROM, &from);
    b.push_slot_always::<&fb::Head>(fb::Pull::VT_HEAD, &head);
    let root = b.end_table(start);
    b.finish_minimal(root);
    let pull = addressed(0, Body::Pull(Pull { from: AT, bytes_max: 0 }));
    assert_eq!(sealed(kind::PULL, 2, b.finished_data(), b""), Ok(Frame::Messages(vec![pull])));

    // a refusal, a reason and a rejection that it does not know
    let refused = |code, bad| {
        let mut b = flatbuffers::FlatBufferBuilder::new();
        let error = fb::RefusalArgs { code: fb::RefusalCode(code), bad: fb::Bad(bad), ..Default::default() };
        let error = Some(fb::Refusal::create(&mut b, &error));
        let root = fb::Refused::create(&mut b, &fb::RefusedArgs { head: Some(&head), error });
        b.finish_minimal(root);
        sealed(kind::REFUSED, 1, b.finished_data(), b"")
    };
    let expected = |e| Ok(Frame::Messages(vec![addressed(0, Body::Refused(e))]));
    assert_eq!(refused(60_000, 0), expected(PeerError::NotAligned));
    assert_eq!(refused(fb::RefusalCode::BadBatch.0, 99), expected(PeerError::BadBatch(Bad::Bounds)));
    let mut pieces = vec![];
    Encoder::default().reject(&mut pieces, &Reject { code: RejectCode(60_000), message: "?" });
    let (header, metadata, payload) = frames(&pieces).remove(0);
    let known = Reject { code: RejectCode::Other, message: "?" };
    assert_eq!(Frame::decode(&header, &metadata, &payload), Ok(Frame::Reject(known)));

    // but not what would truncate a log by guess
    let mut b = flatbuffers::FlatBufferBuilder::new();
    let args = fb::AlignArgs { head: Some(&head), to: fb::AlignTo(2), at: Some(&from), chain_crc: Some(1) };
    let root = fb::Align::create(&mut b, &args);
    b.finish_minimal(root);
    assert_eq!(sealed(kind::ALIGN, 0, b.finished_data(), b""), Err(Malformed::Field { kind: "Align", field: "to" }));
}

#[test]
fn a_lost_or_repeated_frame_is_noticed_on_its_lane() {
    let (mut pieces, mut encoder, mut seen) = (vec![], Encoder::default(), Sequences::default());
    let ack = [addressed(0, Body::Ack(Ack { durable: AT }))];
    encoder.ping(&mut pieces);
    encoder.messages(&mut pieces, Lane::Data, &ack);
    encoder.ping(&mut pieces);
    encoder.messages(&mut pieces, Lane::Data, &ack);
    let headers: Vec<Header> = frames(&pieces).into_iter().map(|(header, ..)| header).collect();
    for at in [1, 0, 2] {
        assert_eq!(seen.check(&headers[at]), Ok(()), "order between lanes means nothing");
    }
    let repeated = SequenceError { lane: Lane::Data, expected: 2, found: 1 };
    assert_eq!(seen.clone().check(&headers[1]), Err(repeated));
    assert_eq!(seen.check(&headers[3]), Ok(()));
    assert_eq!(seen.check(&Header { request: 5, ..headers[0] }).map_err(|e| (e.expected, e.found)), Err((3, 5)));
}

#[test]
fn two_nodes_agree_or_say_why_not() {
    let mine = hello("1.0.0");
    let theirs = Hello { node_id: NodeId([7; 16]), features: 12, ..mine };
    let later = Version { minor: VERSION.minor + 4, ..VERSION };
    let agreed = Agreed { version: VERSION, features: 4, lanes: Lanes::ALL };
    assert_eq!(mine.agree(&theirs), Ok(agreed));
    assert_eq!(mine.agree(&Hello { version: later, ..theirs }), Ok(agreed), "the lower minor");
    let data = Lanes::of(Lane::Data);
    assert_eq!(mine.agree(&Hello { lanes: Lanes(data.0 | 0x80), ..theirs }), Ok(Agreed { lanes: data, ..agreed }));
    for (hello, code) in [
        (Hello { version: Version { major: 2, minor: 0 }, ..theirs }, RejectCode::BadVersion),
        (Hello { cluster_id: ClusterId([3; 16]), ..theirs }, RejectCode::OtherCluster),
        (Hello { node_id: mine.node_id, ..theirs }, RejectCode::SameNode),
        (Hello { lanes: Lanes(0x80), ..theirs }, RejectCode::BadLanes),
        (Hello { heartbeat_ms: 0, ..theirs }, RejectCode::Malformed),
        (Hello { layout: Layout { cores: 0, core: 0, placement: 1 }, ..theirs }, RejectCode::Malformed),
    ] {
        assert_eq!(mine.agree(&hello), Err(code));
    }
}

#[test]
fn packed_bodies_are_held_against_their_lengths() {
    let bodies = [&b"one"[..], b"three", b"x"];
    let packed = PackedBodies::pack(bodies.into_iter());
    assert_eq!((packed.count(), packed.body_bytes(), packed.iter().collect::<Vec<_>>()), (3, 9, bodies.to_vec()));
    let bytes = packed.as_bytes().clone();
    assert_eq!(PackedBodies::parse(3, bytes.clone()), Some(packed));
    for count in [0, 1, 2, 4, u32::MAX] {
        assert_eq!(PackedBodies::parse(count, bytes.clone()), None, "{count} bodies");
    }
    assert_eq!(PackedBodies::parse(3, bytes.slice(..bytes.len() - 1)), None);
    assert_eq!(PackedBodies::parse(0, Bytes::new()), None, "a publish has a body");
    assert_eq!(PackedBodies::parse(1, PackedBodies::pack([&b""[..]].into_iter()).as_bytes().clone()), None, "and none is empty");
    let huge = [u32::MAX.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
    assert_eq!(PackedBodies::parse(2, huge.into()), None);
}

/// An outcome of a later version: the asker must take it neither for stored nor for safe to try again.
#[test]
fn an_outcome_that_is_not_known_is_unknown() {
    let asker = Asker { generation: 1, core: CoreId(0), ticket: 1 };
    let mut pieces = vec![];
    let said = addressed(0, Body::Forwarded(Forwarded { asker, outcome: Outcome(Outcome::ENUM_MAX + 1) }));
    Encoder::default().messages(&mut pieces, Lane::Data, &[said]);
    assert_eq!(decoded(&pieces), [addressed(0, Body::Forwarded(Forwarded { asker, outcome: Outcome::Unknown }))]);
}
