//! Tests of both directions and every kind: decoding returns the encoded value, and no damaged bytes panic.

use super::*;
use crate::base::{LogId, PartitionId, Position, TopicId};
use crate::codec::metadata::{TEXT_MAX, with_later_field};
use proptest::prelude::*;

fn range() -> impl Strategy<Value = IdRange> {
    (1..1u64 << 40, 0..1000u64).prop_map(|(first, n)| IdRange { first: LogId(first), last: LogId(first + n) })
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        Just(Start::Default),
        Just(Start::Oldest),
        Just(Start::Newest),
        (0..i64::MAX).prop_map(Start::Offset),
        (0..i64::MAX).prop_map(Start::Count),
        (1..=LogId::MAX.0).prop_map(|id| Start::LogId(LogId(id))),
        any::<i64>().prop_map(Start::Timestamp),
    ]
}

fn position() -> impl Strategy<Value = Position> {
    (0..i64::MAX / 2, 0..i64::MAX / 2, 1..=LogId::MAX.0).prop_map(|(offset, count, id)| Position {
        offset,
        count,
        log_id: LogId(id),
    })
}

/// Kind, metadata and payload of the one frame in `bytes`.
fn open(bytes: &[u8]) -> (Header, &[u8]) {
    let (header, meta) = Header::parse(bytes, frame::FRAME_MAX).expect("intact").expect("whole");
    assert_eq!(header.frame_len(), bytes.len() + header.payload_len);
    (header, meta)
}

#[test]
fn a_topic_without_each_of_its_partitions_is_malformed() {
    for ids in [vec![], vec![1], vec![0, 2], vec![0, 0]] {
        let partitions = ids.iter().map(|id| PartitionInfo { id: PartitionId(*id), core: 0, node: 0 }).collect();
        let topic = TopicInfo { name: "t", id: TopicId([1; 16]), partitions };
        let nodes = vec![NodeInfo { id: [2; 16], address: "" }];
        let mut out = vec![];
        Encoder::default().reply(&mut out, 1, &Reply::Topics(Topics { topics: vec![topic], nodes, more: false }), Payload::NONE);
        let (header, meta) = open(&out);
        let decoded = Reply::decode(header.kind, meta);
        assert_eq!(decoded, Err(Malformed::Field { kind: "Topics", field: "partitions" }), "{ids:?}");
    }
}

fn goes_through(request: &Request<'_>) {
    // at any alignment
    for shift in 0..3 {
        let mut bytes = vec![0; shift];
        Encoder::default().request(&mut bytes, 42, request, Payload { len: 5, crc: 6 });
        let (header, meta) = open(&bytes[shift..]);
        assert_eq!((header.request, header.payload_len, header.payload_crc), (42, 5, 6));
        assert_eq!(&Request::decode(header.kind, meta).expect("what was encoded"), request);
        assert_eq!(&Request::decode(header.kind, &with_later_field(meta)).expect("a field more is survived"), request);
    }
}

fn comes_back(reply: &Reply<'_>) {
    let (mut bytes, mut encoder) = (vec![], Encoder::default());
    encoder.reply(&mut bytes, 1, &Reply::Pong, Payload::NONE);
    bytes.clear();
    encoder.reply(&mut bytes, 43, reply, Payload::NONE);
    let (header, meta) = open(&bytes);
    assert_eq!(header.request, 43);
    assert_eq!(&Reply::decode(header.kind, meta).expect("what was encoded"), reply);
    assert_eq!(&Reply::decode(header.kind, &with_later_field(meta)).expect("a field more is survived"), reply);
}

proptest! {
    #[test]
    fn requests(
        s in any::<[u32; 3]>(), big in any::<[u64; 2]>(), text in "[a-z0-9]{0,40}", p in 0..1024u16, start in start(),
        ranges in prop::collection::vec(range(), 0..50), core in prop::option::of(0..64u16), auth: Vec<u8>,
    ) {
        let [subscription, number, ms] = s;
        let (topic, partition) = (text.as_str(), PartitionId(p));
        goes_through(&Request::Hello(Hello {
            version: p, oldest_version: 1, features: big[0], client_id: topic, hostname: "", user_agent: topic, core,
            max_frame_bytes: number, heartbeat_ms: ms, auth_method: topic, auth: &auth,
        }));
        let (producer_id, first_sequence) = (big[0], big[1] / 2);
        goes_through(&Request::Publish(Publish { topic, partition, num: number.max(1), producer_id, first_sequence }));
        let ordered = ms % 2 == 1;
        goes_through(&Request::Subscribe(Subscribe {
            subscription, topic, partition, channel: topic, start, message_timeout_ms: ms, ordered,
        }));
        goes_through(&Request::SetOffset(SetOffset { topic, partition, channel: topic, start, force: ms % 2 == 1 }));
        goes_through(&Request::Credit { subscription, messages: number, bytes: big[1] });
        goes_through(&Request::Finish { subscription, ranges: ranges.clone() });
        goes_through(&Request::Requeue { subscription, ranges: ranges.clone(), delay_ms: ms });
        goes_through(&Request::Touch { subscription, ranges });
        goes_through(&Request::Unsubscribe { subscription });
        goes_through(&Request::GetTopics { topics: vec![topic, "x"], after: topic });
        goes_through(&Request::CreateTopic { topic, partitions: p });
        goes_through(&Request::Find { topic, partition, start });
        goes_through(&Request::Ping);
    }

    #[test]
    fn replies(
        s in any::<[u32; 3]>(), text in "[a-z0-9 ]{0,40}", at in position(), flag: bool, id in any::<[u8; 16]>(), n in 0..99u16,
        core: u16, time: i64, big: u64,
    ) {
        let [subscription, number, ms] = s;
        comes_back(&Reply::Welcome(Welcome {
            version: n, features: big, node_id: id, node_version: &text, cores: n, core, max_frame_bytes: number,
            max_message_bytes: ms, heartbeat_ms: number, message_timeout_ms: ms,
        }));
        comes_back(&Reply::Published { at: Some(at), duplicate: flag });
        comes_back(&Reply::Published { at: None, duplicate: flag });
        comes_back(&Reply::Subscribed(Subscribed { subscription, created: flag, at }));
        comes_back(&Reply::Messages(Messages {
            subscription, log_id: LogId(at.log_id.0 % (1 << 50) + 1), num: number.max(1), count: at.count,
            batch_offset: at.offset, base_unix_ns: time, attempts: n,
        }));
        comes_back(&Reply::Done { num: big });
        comes_back(&Reply::Unsubscribed { subscription, reason: &text });
        let partitions = (0..n.max(1)).map(|i| PartitionInfo { id: PartitionId(i), core, node: 0 }).collect();
        let topic = TopicInfo { name: &text, id: TopicId(id), partitions };
        let nodes = vec![NodeInfo { id, address: &text }];
        comes_back(&Reply::Topics(Topics { topics: vec![topic.clone(), topic], nodes, more: flag }));
        comes_back(&Reply::Found(Found { at }));
        comes_back(&Reply::Pong);
        comes_back(&Reply::Error(NativeError { code: Code::DiskFull, retry: Retry::Later, message: &text, core, fatal: flag }));
    }

    /// The checksum keeps damage out; bytes that a hostile client seals itself must not panic either.
    #[test]
    fn any_metadata_decodes_or_is_malformed(kind: u8, meta in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Request::decode(kind, &meta);
        let _ = Reply::decode(kind, &meta);
    }

    #[test]
    fn changed_metadata_never_panics(flips in prop::collection::vec((0..400usize, any::<u8>()), 1..6)) {
        let mut bytes = vec![];
        let ranges = vec![IdRange { first: LogId(1), last: LogId(9) }; 10];
        Encoder::default().request(&mut bytes, 1, &Request::Requeue { subscription: 1, ranges, delay_ms: 5 }, Payload::NONE);
        let (header, meta) = open(&bytes);
        let mut meta = meta.to_vec();
        for (at, bits) in flips {
            let at = at % meta.len();
            meta[at] ^= bits;
        }
        let _ = Request::decode(header.kind, &meta);
    }
}

#[test]
fn the_largest_answers_fit_a_frame() {
    let mut bytes = vec![];
    let ranges = vec![IdRange { first: LogId(1), last: LogId::MAX }; RANGES_MAX];
    Encoder::default().request(&mut bytes, 1, &Request::Finish { subscription: 1, ranges }, Payload::NONE);
    let partitions: Vec<_> =
        (0..PartitionId::COUNT_MAX).map(|i| PartitionInfo { id: PartitionId(i), core: 1, node: 0 }).collect();
    let name = "n".repeat(64);
    let mut topics: Vec<TopicInfo<'_>> = vec![];
    let mut filled = 0;
    while filled < Topics::FULL_BYTES {
        let topic = TopicInfo { name: &name, id: TopicId([1; 16]), partitions: partitions.clone() };
        filled += topic.encoded_bytes();
        topics.push(topic);
    }
    let nodes = vec![NodeInfo { id: [1; 16], address: "a.host.of.a.usual.length:4153" }; 100];
    Encoder::default().reply(&mut bytes, 1, &Reply::Topics(Topics { topics, nodes, more: true }), Payload::NONE);
    let names = vec![name.as_str(); TOPICS_MAX];
    Encoder::default().request(&mut bytes, 1, &Request::GetTopics { topics: names, after: "" }, Payload::NONE);
    let message = "é".repeat(TEXT_MAX);
    let error = NativeError { code: Code::Other, retry: Retry::Never, message: &message, core: 0, fatal: true };
    Encoder::default().reply(&mut bytes, 1, &Reply::Error(error), Payload::NONE);
}

#[test]
fn a_code_or_rule_of_a_later_version_counts_as_the_first() {
    let mut bytes = vec![];
    let later = NativeError { code: Code(60_000), retry: Retry(4), message: "?", core: 0, fatal: false };
    Encoder::default().reply(&mut bytes, 1, &Reply::Error(later), Payload::NONE);
    let (header, meta) = open(&bytes);
    let known = NativeError { code: Code::Other, retry: Retry::Never, ..later };
    assert_eq!(Reply::decode(header.kind, meta), Ok(Reply::Error(known)));
}

#[test]
fn ranges_that_follow_each_other_are_one() {
    let mut ranges = vec![];
    for (first, last) in [(1, 3), (4, 4), (7, 9), (5, 6)] {
        IdRange { first: LogId(first), last: LogId(last) }.append_to(&mut ranges);
    }
    assert_eq!(ranges.iter().map(|r| (r.first.0, r.last.0)).collect::<Vec<_>>(), [(1, 4), (7, 9), (5, 6)]);
}

#[test]
fn numbers_out_of_bounds_are_malformed() {
    let bad = |request: &Request<'_>| {
        let mut bytes = vec![];
        Encoder::default().request(&mut bytes, 0, request, Payload::NONE);
        let (header, meta) = open(&bytes);
        assert!(matches!(Request::decode(header.kind, meta), Err(Malformed::Field { .. })), "{request:?}");
    };
    let publish = Publish { topic: "t", partition: PartitionId(0), num: 0, producer_id: 0, first_sequence: 0 };
    bad(&Request::Publish(publish));
    bad(&Request::Publish(Publish { num: 2, first_sequence: u64::MAX - 1, ..publish }));
    let reversed = IdRange { first: LogId(2), last: LogId(1) };
    bad(&Request::Finish { subscription: 0, ranges: vec![reversed] });
    bad(&Request::Touch { subscription: 0, ranges: vec![IdRange { first: LogId(0), last: LogId(1) }] });
    bad(&Request::Find { topic: "t", partition: PartitionId(0), start: Start::Count(-1) });
    bad(&Request::CreateTopic { topic: "t", partitions: PartitionId::COUNT_MAX + 1 });
    assert_eq!(Request::decode(77, &[]), Err(Malformed::UnknownKind(77)));
    assert_eq!(Reply::decode(0, &[0; 8]), Err(Malformed::UnknownKind(0)));
    // a table of defaults lacks what is required
    assert!(Request::decode(2, &[0; 8]).is_err());
}
