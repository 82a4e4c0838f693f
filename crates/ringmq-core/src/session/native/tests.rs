//! The session against a host that notes what it is asked, and says what it is told to.

use super::*;
use crate::base::{ConnId, LogId, Now, PartitionId, Peer, Position, Ticks};
use crate::codec::native::*;
use crate::codec::nsq::Limits;
use crate::codec::output::Output;
use crate::config::Settings;
use bytes::Bytes;
use machine::NodeFacts;
use std::sync::Arc;

#[derive(Default)]
struct Fake {
    said: Vec<String>,
    /// Number of times that a publish has to wait.
    stalls: usize,
    moves: bool,
}

impl NativeHost for Fake {
    fn native_move(&mut self, _conn: ConnId, core: u16) -> bool {
        self.said.push(format!("move {core}"));
        self.moves
    }

    fn native_publish(&mut self, _now: Now, _conn: ConnId, p: &mut NativePublish) -> NativeTaken {
        if self.stalls > 0 {
            self.stalls -= 1;
            return NativeTaken::Stall;
        }
        let body = std::mem::take(&mut p.body);
        assert!(body[..ROOM].iter().all(|&b| b == 0), "room for the header");
        self.said.push(format!("publish {} {} {:?}", p.topic, p.num, &body[ROOM..]));
        NativeTaken::Accepted
    }

    fn native_subscribe(&mut self, _now: Now, _conn: ConnId, s: &NativeSubscribe, client: &ClientIdentity) -> NativeTaken {
        self.said.push(format!("subscribe {} {} {} by {}", s.topic, s.channel, s.message_timeout_ms, client.client_id));
        NativeTaken::Accepted
    }

    fn native_credit(&mut self, _conn: ConnId, subscription: u32, messages: u32, bytes: u64) -> bool {
        self.said.push(format!("credit {subscription} {messages} {bytes}"));
        subscription == 1
    }

    fn native_finish(&mut self, _now: Now, _conn: ConnId, _: u64, subscription: u32, ranges: &[IdRange]) -> NativeFinished {
        match subscription {
            1 => NativeFinished::Done(ranges.iter().map(|r| r.last.0 - r.first.0 + 1).sum()),
            3 => NativeFinished::Waits,
            _ => NativeFinished::NoSubscription,
        }
    }

    fn native_requeue(
        &mut self,
        _now: Now,
        _conn: ConnId,
        _subscription: u32,
        _ranges: &[IdRange],
        _delay_ms: u32,
    ) -> Option<u64> {
        Some(0)
    }

    fn native_touch(&mut self, _now: Now, _conn: ConnId, _subscription: u32, _ranges: &[IdRange]) -> Option<u64> {
        Some(0)
    }

    fn native_unsubscribe(&mut self, _conn: ConnId, subscription: u32) -> bool {
        subscription == 1
    }

    fn native_nodes(&self) -> Vec<([u8; 16], std::sync::Arc<str>)> {
        vec![([2; 16], "other:1".into())]
    }

    fn native_topics(&mut self, _names: &[&str], after: &str, each: &mut dyn FnMut(TopicEntry) -> bool) {
        for i in 0..10_000 {
            let name = crate::base::TopicName::new(&format!("topic-{i:05}")).expect("valid");
            if &*name > after
                && !each(TopicEntry { name, id: crate::base::TopicId([1; 16]), places: vec![PartitionPlace::default(); 8] })
            {
                return;
            }
        }
    }

    fn native_create_topic(&mut self, _: Now, _: ConnId, _: u64, _: &str, _: u16) -> NativeTaken {
        NativeTaken::Refused(Failure::new(Code::DiskFull, Retry::Later, "full"))
    }

    fn native_find(&mut self, _: Now, _: ConnId, _: u64, _: &str, _: PartitionId, _: Start) -> NativeTaken {
        NativeTaken::Accepted
    }

    fn native_set_offset(&mut self, _: Now, _: ConnId, s: &NativeSetOffset) -> NativeTaken {
        self.said.push(format!("set {} {} {:?} {}", s.topic, s.channel, s.to, s.force));
        NativeTaken::Accepted
    }
}

fn at(ms: u64) -> Now {
    Now { ticks: Ticks(ms * 1_000_000), unix_ns: 1_700_000_000_000_000_000 }
}

fn session() -> NativeSession {
    let limits = Arc::new(Limits::from(&Settings::default()));
    NativeSession::new(ConnId(7), Peer("1.2.3.4:5".into()), limits, NodeFacts { node_id: [3; 16], cores: 2, core: 0 }, at(0))
}

const HELLO: Hello<'_> = Hello {
    version: 1,
    oldest_version: 1,
    features: u64::MAX,
    client_id: "me",
    hostname: "",
    user_agent: "",
    core: None,
    max_frame_bytes: 0,
    heartbeat_ms: 5000,
    auth_method: "",
    auth: b"",
};

fn frame(id: u64, request: &Request<'_>, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    Encoder::default().request(&mut out, id, request, Payload::of(payload));
    out.extend_from_slice(payload);
    out
}

/// Every reply that the session has for the socket, as text, with its request's id.
fn replies(s: &mut NativeSession) -> Vec<(u64, String)> {
    let Some(out) = taken(s, at(1)) else { return vec![] };
    s.on_sent(at(1), out.len());
    let (mut rest, mut found) = (&out[..], vec![]);
    while !rest.is_empty() {
        let (header, metadata) = Header::parse(rest, frame::FRAME_MAX).expect("intact").expect("whole");
        found.push((header.request, format!("{:?}", Reply::decode(header.kind, metadata).expect("known"))));
        rest = &rest[header.frame_len()..];
    }
    found
}

/// Output of the session for the socket, in one piece.
fn taken(s: &mut NativeSession, now: Now) -> Option<Vec<u8>> {
    Some(match s.take_output(now)? {
        Output::Whole(bytes) => bytes,
        Output::Pieces(pieces) => pieces.concat(),
    })
}

fn open() -> (NativeSession, Fake) {
    let (mut s, mut host) = (session(), Fake::default());
    s.on_bytes(at(0), &frame(1, &Request::Hello(HELLO), b""), &mut host);
    let welcome = replies(&mut s);
    assert!(welcome.len() == 1 && welcome[0].0 == 1 && welcome[0].1.starts_with("Welcome"), "{welcome:?}");
    (s, host)
}

#[test]
fn a_conversation() {
    let (mut s, mut host) = open();
    let publish = Publish { topic: "t", partition: PartitionId(0), num: 2, producer_id: 9, first_sequence: 4 };
    let mut bytes = frame(2, &Request::Publish(publish), b"body");
    let subscribe = Subscribe {
        subscription: 1,
        topic: "t",
        partition: PartitionId(0),
        channel: "c",
        start: Start::Oldest,
        message_timeout_ms: 0,
        ordered: false,
    };
    bytes.extend(frame(3, &Request::Subscribe(subscribe), b""));
    bytes.extend(frame(0, &Request::Credit { subscription: 1, messages: u32::MAX, bytes: 5 }, b""));
    let ranges = vec![IdRange { first: LogId(1), last: LogId(10) }];
    bytes.extend(frame(4, &Request::Finish { subscription: 1, ranges: ranges.clone() }, b""));
    bytes.extend(frame(0, &Request::Finish { subscription: 1, ranges: ranges.clone() }, b""));
    bytes.extend(frame(5, &Request::Finish { subscription: 2, ranges }, b""));
    bytes.extend(frame(6, &Request::CreateTopic { topic: "t", partitions: 1 }, b""));
    bytes.extend(frame(7, &Request::CreateTopic { topic: "not a name", partitions: 1 }, b""));
    bytes.extend(frame(8, &Request::Ping, b""));
    for byte in bytes {
        s.on_bytes(at(1), &[byte], &mut host);
    }
    assert_eq!(
        host.said,
        ["publish t 2 [98, 111, 100, 121]", "subscribe t c 60000 by me", "credit 1 100000 5"],
        "credit has its bound"
    );
    let place = Position { offset: 1, count: 2, log_id: LogId(3) };
    s.answer(2, NativeAnswer::Published { at: Some(place), duplicate: false });
    let found: Vec<(u64, String)> = replies(&mut s);
    let starts = [(4, "Done { num: 10 }"), (5, "Error"), (6, "Error"), (7, "Error"), (8, "Pong"), (2, "Published")];
    assert_eq!(found.len(), starts.len(), "{found:?}");
    for ((id, text), (wanted, start)) in found.iter().zip(starts) {
        assert!(*id == wanted && text.starts_with(start), "{id} {text} but {wanted} {start}");
    }
    assert!(!s.is_closing());
}

#[test]
fn a_long_body_is_received_where_it_stays() {
    let limits = Limits::from(&Settings::default());
    let facts = NodeFacts { node_id: [3; 16], cores: 2, core: 0 };
    let mut host = Fake::default();
    let mut s = NativeSession::new(ConnId(7), Peer("1.2.3.4:5".into()), Arc::new(limits.clone()), facts, at(0));
    s.on_bytes(at(0), &frame(1, &Request::Hello(HELLO), b""), &mut host);
    let publish = Publish { topic: "t", partition: PartitionId(0), num: 2, producer_id: 9, first_sequence: 4 };
    let body: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    let bytes = frame(2, &Request::Publish(publish), &body);
    assert!(s.lend().is_none(), "no body is under way");
    s.on_bytes(at(1), &bytes[..10_000], &mut host);
    let mut rest = &bytes[10_000..];
    let mut lent = s.lend().expect("290 kB are missing");
    assert!(s.lend().is_none(), "one piece of memory at a time");
    let mut some = &rest[..1000];
    lent.put(&mut some);
    rest = &rest[1000..];
    s.received(at(2), lent, &mut host);
    let mut pieces = 1;
    while let Some(mut lent) = s.lend() {
        lent.put(&mut rest);
        s.received(at(3), lent, &mut host);
        pieces += 1;
    }
    assert!(pieces < 5 && rest.len() < 64 * 1024, "memory grows by what came: {pieces}, {}", rest.len());
    s.on_bytes(at(4), rest, &mut host);
    assert_eq!(host.said, [format!("publish t 2 {body:?}")]);
    // A batch that is as long as the one before gets its memory at once.
    s.on_bytes(at(5), &bytes[..10_000], &mut host);
    let mut lent = s.lend().expect("290 kB are missing");
    assert_eq!(lent.wanted, bytes.len() - 10_000);
    lent.put(&mut &bytes[10_000..]);
    s.received(at(6), lent, &mut host);
    assert_eq!(host.said.len(), 2);
    // With TLS what comes is decrypted first.
    let limits = Arc::new(Limits { native_is_plain: false, ..limits });
    let mut s =
        NativeSession::new(ConnId(7), Peer("1.2.3.4:5".into()), limits, NodeFacts { node_id: [3; 16], cores: 2, core: 0 }, at(0));
    s.on_bytes(at(0), &frame(1, &Request::Hello(HELLO), b""), &mut host);
    s.on_bytes(at(1), &bytes[..10_000], &mut host);
    assert!(s.lend().is_none());
}

#[test]
fn what_is_not_understood_is_answered_and_the_next_frame_read() {
    let (mut s, mut host) = open();
    let mut bytes = vec![];
    frame::encode(&mut bytes, 77, 5, &[1; 16], 4, frame::payload_crc(b"skip"));
    bytes.extend_from_slice(b"skip");
    frame::encode(&mut bytes, 5, 6, &[0xff; 16], 0, 0);
    bytes.extend(frame(7, &Request::Ping, b""));
    s.on_bytes(at(1), &bytes, &mut host);
    let found = replies(&mut s);
    assert!(found[0].1.contains("UnknownKind") && found[1].1.contains("Malformed"), "{found:?}");
    assert_eq!(found[2], (7, "Pong".to_owned()));
}

#[test]
fn what_is_not_the_protocol_ends_the_connection() {
    for bytes in [&[0u8; 64][..], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &frame(1, &Request::Ping, b"")] {
        let (mut s, mut host) = (session(), Fake::default());
        s.on_bytes(at(0), bytes, &mut host);
        let found = replies(&mut s);
        assert!(found.len() == 1 && found[0].1.contains("fatal: true"), "{found:?}");
        assert!(s.is_closing() && !s.wants_reading() && s.take_fault().is_some());
    }
    let (mut s, mut host) = (session(), Fake::default());
    s.on_bytes(at(0), &frame(1, &Request::Hello(Hello { version: 9, oldest_version: 8, ..HELLO }), b""), &mut host);
    assert!(replies(&mut s)[0].1.contains("BadVersion"));
}

#[test]
fn a_request_waits_and_what_came_behind_it_too() {
    let (mut s, mut host) = open();
    host.stalls = 2;
    let publish =
        |topic| Request::Publish(Publish { topic, partition: PartitionId(0), num: 1, producer_id: 0, first_sequence: 0 });
    let mut bytes = frame(2, &publish("a"), b"1");
    bytes.extend(frame(3, &publish("b"), b"2"));
    s.on_bytes(at(10), &bytes, &mut host);
    s.on_bytes(at(11), &frame(4, &Request::Ping, b""), &mut host);
    assert!(s.is_stalled() && !s.wants_reading() && host.said.is_empty());
    s.resume(at(20), &mut host);
    assert_eq!(s.stalled_since(), Some(at(10).ticks), "it has waited since then");
    s.resume(at(30), &mut host);
    assert_eq!(host.said, ["publish a 1 [49]", "publish b 1 [50]"]);
    assert_eq!(replies(&mut s), [(4, "Pong".to_owned())]);

    host.stalls = 1;
    s.on_bytes(at(40), &bytes, &mut host);
    let failure = Failure::new(Code::TooMuchWaiting, Retry::Later, "wait");
    s.fail_stalled(at(50), &failure, &mut host);
    assert!(!s.is_stalled());
    assert_eq!(host.said.len(), 3, "the second went through");
    assert!(replies(&mut s)[0].1.contains("TooMuchWaiting"));
}

#[test]
fn a_connection_moves_before_it_is_welcomed() {
    let (mut s, mut host) = (session(), Fake { moves: true, ..Fake::default() });
    let mut bytes = frame(1, &Request::Hello(Hello { core: Some(1), ..HELLO }), b"");
    bytes.extend(frame(2, &Request::Ping, b""));
    s.on_bytes(at(0), &bytes, &mut host);
    assert!(s.is_stalled() && s.is_quiet() && host.said == ["move 1"]);
    let (carried, unread) = s.carry();
    let limits = Arc::new(Limits::from(&Settings::default()));
    let node = NodeFacts { node_id: [3; 16], cores: 2, core: 1 };
    let mut s = NativeSession::adopt(ConnId(8), Peer("1.2.3.4:5".into()), carried, limits, node, at(5));
    s.on_bytes(at(5), &unread, &mut host);
    let found = replies(&mut s);
    assert!(found[0].1.contains("core: 1") && found[1] == (2, "Pong".to_owned()), "{found:?}");
    assert_eq!(s.client_info().client_id, "me");
}

#[test]
fn topics_come_in_parts() {
    let (mut s, mut host) = open();
    let (mut after, mut names) = (String::new(), 0);
    loop {
        s.on_bytes(at(1), &frame(2, &Request::GetTopics { topics: vec![], after: &after }, b""), &mut host);
        let out = taken(&mut s, at(1)).expect("an answer");
        s.on_sent(at(1), out.len());
        let (header, metadata) = Header::parse(&out, frame::FRAME_MAX).expect("intact").expect("whole");
        let Ok(Reply::Topics(topics)) = Reply::decode(header.kind, metadata) else { panic!("not topics") };
        names += topics.topics.len();
        after = topics.topics.last().expect("some").name.to_owned();
        if !topics.more {
            break;
        }
    }
    assert_eq!(names, 10_000);
}

#[test]
fn silence_and_a_client_that_takes_nothing_are_given_up() {
    let (mut s, mut host) = open();
    assert_eq!(s.deadline(), Some(at(5001).ticks), "it says something once per interval");
    s.tick(at(5001));
    assert_eq!(replies(&mut s), [(0, "Pong".to_owned())]);
    s.on_bytes(at(6000), &frame(2, &Request::Ping, b""), &mut host);
    s.tick(at(12_000));
    assert!(!s.is_closing());
    let out = taken(&mut s, at(12_000)).expect("a pong");
    s.on_bytes(at(20_000), &frame(3, &Request::Ping, b""), &mut host);
    s.tick(at(22_001));
    assert!(s.is_closing(), "{} bytes were not taken", out.len());
    assert_eq!(s.deadline(), None);
}

#[test]
fn what_is_lent_goes_out_in_its_place_and_is_not_copied() {
    let (mut s, mut host) = open();
    let long = Bytes::from(vec![5; 200_000]);
    let messages =
        Messages { subscription: 1, log_id: LogId(1), num: 2, count: 0, batch_offset: 0, base_unix_ns: 0, attempts: 1 };
    let crc = frame::payload_crc(&long);
    s.on_bytes(at(1), &frame(2, &Request::Ping, b""), &mut host);
    s.lent_messages(messages, long.clone(), crc);
    assert!(!s.is_output_full() && !s.is_quiet());
    s.lent_messages(messages, long.clone(), crc);
    s.messages(messages, b"copied", frame::payload_crc(b"copied"));
    s.on_bytes(at(1), &frame(3, &Request::Ping, b""), &mut host);
    assert!(s.is_output_full(), "what is lent counts");
    let Some(Output::Pieces(pieces)) = s.take_output(at(1)) else { panic!("pieces") };
    assert_eq!(pieces.iter().filter(|piece| piece.as_ptr() == long.as_ptr()).count(), 2);
    let out = pieces.concat();
    let (mut rest, mut found) = (&out[..], vec![]);
    while !rest.is_empty() {
        let (header, metadata) = Header::parse(rest, frame::FRAME_MAX).expect("intact").expect("whole");
        let payload = &rest[HEADER_LEN + header.meta_len..header.frame_len()];
        header.check_payload(payload).expect("its own payload");
        Reply::decode(header.kind, metadata).expect("known");
        found.push((header.request, payload.len()));
        rest = &rest[header.frame_len()..];
    }
    assert_eq!(found, [(2, 0), (0, 200_000), (0, 200_000), (0, 6), (3, 0)]);
    assert!(s.is_output_full() && s.take_output(at(1)).is_none());
    s.on_sent(at(2), out.len());
    assert!(!s.is_output_full() && s.is_quiet());
}
