//! Freezes the native protocol: frames of version 1 that must still be read, and generated code that fits its schema.
//!
//! `GOLDEN_WRITE=1 cargo test --test golden_native` writes the frames anew; only before a release of the format.

use ringmq::base::{LogId, PartitionId, Position, TopicId};
use ringmq::codec::native::*;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn requests() -> Vec<Request<'static>> {
    let ranges = vec![IdRange { first: LogId(7), last: LogId(9) }, IdRange { first: LogId(12), last: LogId::MAX }];
    let (topic, partition, subscription) = ("orders.eu", PartitionId(3), 5);
    vec![
        Request::Hello(Hello {
            version: 1,
            oldest_version: 1,
            features: 1,
            client_id: "id",
            hostname: "host",
            user_agent: "agent/1",
            core: Some(1),
            max_frame_bytes: 1 << 20,
            heartbeat_ms: 30_000,
            auth_method: "",
            auth: b"secret",
        }),
        Request::Publish(Publish { topic, partition, num: 200, producer_id: 0xfeed_beef, first_sequence: 400 }),
        Request::Subscribe(Subscribe {
            subscription,
            topic,
            partition,
            channel: "archive",
            start: Start::Timestamp(1_700_000_000_000_000_000),
            message_timeout_ms: 60_000,
            ordered: false,
        }),
        Request::Credit { subscription, messages: 2500, bytes: 1 << 33 },
        Request::Finish { subscription, ranges: ranges.clone() },
        Request::Requeue { subscription, ranges: ranges.clone(), delay_ms: 1500 },
        Request::Touch { subscription, ranges },
        Request::Unsubscribe { subscription },
        Request::GetTopics { topics: vec![topic, "a"], after: "" },
        Request::CreateTopic { topic, partitions: 8 },
        Request::Find { topic, partition, start: Start::LogId(LogId(77)) },
        Request::Ping,
    ]
}

fn replies() -> Vec<Reply<'static>> {
    let at = Position { offset: 1 << 40, count: 123_456, log_id: LogId(99) };
    let partitions = vec![PartitionInfo { id: PartitionId(0), core: 1, node: 0 }];
    vec![
        Reply::Welcome(Welcome {
            version: 1,
            features: 1,
            node_id: [9; 16],
            node_version: "0.1.0",
            cores: 2,
            core: 1,
            max_frame_bytes: 1 << 26,
            max_message_bytes: 1 << 20,
            heartbeat_ms: 30_000,
            message_timeout_ms: 60_000,
        }),
        Reply::Published { at: Some(at), duplicate: false },
        Reply::Published { at: None, duplicate: true },
        Reply::Subscribed(Subscribed { subscription: 5, created: true, at }),
        Reply::Messages(Messages {
            subscription: 5,
            log_id: LogId(99),
            num: 2,
            count: 123_456,
            batch_offset: 1 << 40,
            base_unix_ns: 1_700_000_000_000_000_000,
            attempts: 1,
        }),
        Reply::Done { num: 3 },
        Reply::Unsubscribed { subscription: 5, reason: "the topic was deleted" },
        Reply::Topics(Topics {
            topics: vec![TopicInfo { name: "orders.eu", id: TopicId([4; 16]), partitions }],
            nodes: vec![NodeInfo { id: [9; 16], address: "host:4160" }],
            more: true,
        }),
        Reply::Found(Found { at }),
        Reply::Pong,
        Reply::Error(NativeError {
            code: Code::WrongCore,
            retry: Retry::Refresh,
            message: "the partition lives on core 1",
            core: 1,
            fatal: false,
        }),
    ]
}

/// Requests of ordered channels.
fn ordered_requests() -> Vec<Request<'static>> {
    let (topic, partition, channel) = ("orders.eu", PartitionId(3), "archive");
    let set = |start, force| Request::SetOffset(SetOffset { topic, partition, channel, start, force });
    vec![
        Request::Subscribe(Subscribe {
            subscription: 6,
            topic,
            partition,
            channel,
            start: Start::Oldest,
            message_timeout_ms: 0,
            ordered: true,
        }),
        set(Start::Offset(1 << 40), false),
        set(Start::Count(123_456), true),
        set(Start::LogId(LogId(99)), false),
        set(Start::Timestamp(1_700_000_000_000_000_000), true),
        set(Start::Newest, false),
    ]
}

#[test]
fn frames_of_version_1_are_read() {
    hold("native-v1.bin", FROZEN, &requests(), &replies());
}

#[test]
fn frames_of_ordered_channels_are_read() {
    hold("native-v1-ordered.bin", FROZEN_ORDERED, &ordered_requests(), &[]);
}

/// Holds recorded frames against what they say.
fn hold(name: &str, frozen: u32, requests: &[Request<'_>], replies: &[Reply<'_>]) {
    let path = root().join("tests/golden").join(name);
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        let (mut bytes, mut encoder) = (vec![], Encoder::default());
        let payload = b"a body as it stands on disk";
        for (id, request) in requests.iter().enumerate() {
            let has_payload = matches!(request, Request::Publish(_));
            encoder.request(&mut bytes, id as u64 + 1, request, if has_payload { Payload::of(payload) } else { Payload::NONE });
            bytes.extend_from_slice(if has_payload { payload } else { b"" });
        }
        for (id, reply) in replies.iter().enumerate() {
            encoder.reply(&mut bytes, id as u64 + 1, reply, Payload::NONE);
        }
        std::fs::write(&path, bytes).expect("the fixture can be written");
    }
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(crc32fast::hash(&bytes), frozen, "{name}: the recorded frames are other ones");
    let mut rest = &bytes[..];
    let mut next = || {
        let (header, metadata) = Header::parse(rest, frame::FRAME_MAX).expect("intact").expect("whole");
        let (frame, after) = rest.split_at(header.frame_len());
        rest = after;
        header.check_payload(&frame[HEADER_LEN + header.meta_len..]).expect("the payload holds");
        (header, metadata)
    };
    for (id, request) in requests.iter().enumerate() {
        let (header, metadata) = next();
        assert_eq!((header.request, &Request::decode(header.kind, metadata).expect("it is known")), (id as u64 + 1, request));
    }
    for (id, reply) in replies.iter().enumerate() {
        let (header, metadata) = next();
        assert_eq!((header.request, &Reply::decode(header.kind, metadata).expect("it is known")), (id as u64 + 1, reply));
    }
    assert!(rest.is_empty());
}

const FROZEN: u32 = 0x894b_8891;
const FROZEN_ORDERED: u32 = 0xb592_2fc3;

/// schema/README.md has the command that renews both.
#[test]
fn generated_code_fits_its_schema() {
    let hashes = std::fs::read_to_string(root().join("schema/hashes")).expect("schema/hashes is there");
    let schemas = std::fs::read_dir(root().join("schema")).expect("schema is there");
    let schemas = schemas.flatten().filter(|f| f.path().extension().is_some_and(|e| e == "fbs")).count();
    assert_eq!(hashes.lines().count(), 2 * schemas, "schema/hashes names each schema and its generated file");
    for line in hashes.lines() {
        let (hash, file) = line.split_once(' ').expect("hash and file");
        let bytes = std::fs::read(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let found = format!("{:08x}", crc32fast::hash(&bytes));
        assert_eq!(found, hash, "{file} has changed: generate again, see schema/README.md");
    }
}
