//! Turning bytes into commands and messages into bytes, per protocol: commands as a node decodes them, frames as it writes
//! them and as a client decodes them. A figure is for what its name says; the rate counts wire bytes.
//!
//! `cargo bench --bench codec`.

mod common;

use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use std::hint::black_box;

type Group<'a> = BenchmarkGroup<'a, WallTime>;
type Bench = fn(&mut Group<'_>);

const BODY: [u8; 100] = [7; 100];
/// Messages of a multi-publish, and of what is decoded or written at a time.
const MANY: usize = 200;

fn main() {
    let mut c = common::criterion();
    let protocols: [(&str, Bench); 2] = [("codec, nsq", nsq::bench), ("codec, native", native::bench)];
    for (name, bench) in protocols {
        let mut group = c.benchmark_group(name);
        bench(&mut group);
        group.finish();
    }
    Criterion::final_summary(&c);
}

mod nsq {
    use super::*;
    use ringmq::base::{LogId, MessageIds, MessagePlace, PartitionId, TopicId};
    use ringmq::codec::nsq::Limits;
    use ringmq::codec::nsq::command::{Command, ConnectionState, Context, Decoded, Progress, decode};
    use ringmq::codec::nsq::{frame, request};
    use ringmq::config::Settings;

    pub fn bench(group: &mut Group<'_>) {
        let limits = Limits::from(&Settings::default());
        let ids = MessageIds::of(TopicId([1; 16]));
        let id = |n: usize| ids.id(MessagePlace::new(PartitionId(0), LogId(n as u64 + 1)));

        let mut publish = vec![];
        request::publish(&mut publish, "bench", &BODY);
        commands(group, "decode a PUB of 100 B", &limits, ConnectionState::Init, &publish, 1);

        let bodies = vec![&BODY[..]; MANY];
        let mut multi = vec![];
        request::multi_publish(&mut multi, "bench", bodies.iter().copied());
        commands(group, "decode a MPUB of 200 x 100 B", &limits, ConnectionState::Init, &multi, 1);

        let mut fins = vec![];
        (0..MANY).for_each(|n| request::finish(&mut fins, &id(n).hex()));
        commands(group, "decode 200 FINs", &limits, ConnectionState::Subscribed, &fins, MANY);

        let mut out = vec![];
        (0..MANY).for_each(|n| frame::message(&mut out, 1, 1, id(n), &BODY));
        group.throughput(Throughput::Bytes(out.len() as u64));
        group.bench_function("write 200 messages of 100 B", |b| {
            b.iter(|| {
                out.clear();
                (0..MANY).for_each(|n| frame::message(&mut out, 1, 1, id(n), black_box(&BODY)));
                black_box(out.len())
            })
        });
        group.bench_function("decode 200 messages of 100 B, as a client", |b| {
            b.iter(|| frame::decode_all(black_box(&out)).expect("well-formed frames").0.len())
        });
    }

    /// Decodes `count` commands, and walks the bodies of a publish as the log does.
    fn commands(group: &mut Group<'_>, name: &str, limits: &Limits, state: ConnectionState, bytes: &[u8], count: usize) {
        let context = Context { limits, state, has_heartbeats: true, has_binary_ids: false, lacks_tls: false };
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let (mut rest, mut decoded) = (black_box(bytes), 0);
                while !rest.is_empty() {
                    let Decoded::Command { command, len } = decode(rest, &mut Progress::default(), &context) else {
                        panic!("a whole command was written");
                    };
                    if let Command::Publish { bodies, .. } = command {
                        bodies.iter().for_each(|body| _ = black_box(body));
                    } else {
                        black_box(command);
                    }
                    rest = &rest[len..];
                    decoded += 1;
                }
                assert_eq!(decoded, count);
            })
        });
    }
}

mod native {
    use super::*;
    use ringmq::base::{LogId, PartitionId};
    use ringmq::codec::native::{Encoder, Header, IdRange, Messages, Payload, Publish, Reply, Request, frame};

    /// Time of a batch of [`MANY`] messages, which does not depend on their content: the codec does not look.
    const PAYLOAD: usize = MANY * 112;

    pub fn bench(group: &mut Group<'_>) {
        let payload = vec![7; PAYLOAD];
        let publish = Request::Publish(Publish {
            topic: "bench",
            partition: PartitionId(0),
            num: MANY as u32,
            producer_id: 7,
            first_sequence: 1,
        });
        let messages = Reply::Messages(Messages {
            subscription: 1,
            log_id: LogId(1),
            num: MANY as u32,
            count: 0,
            batch_offset: 0,
            base_unix_ns: 1,
            attempts: 1,
        });
        let range = IdRange { first: LogId(1), last: LogId(MANY as u64) };
        let finish = Request::Finish { subscription: 1, ranges: vec![range] };

        let mut encoder = Encoder::default();
        let mut out = vec![];
        group.throughput(Throughput::Bytes(PAYLOAD as u64));
        group.bench_function("write a Publish of 22 KiB, checksum and copy of the payload", |b| {
            b.iter(|| {
                out.clear();
                encoder.request(&mut out, 1, black_box(&publish), Payload::of(&payload));
                out.extend_from_slice(&payload);
                black_box(out.len())
            })
        });
        decoding(group, "decode a Publish of 22 KiB, payload verified", &out, |header, metadata| {
            black_box(Request::decode(header.kind, metadata).expect("it was written so"));
        });
        group.throughput(Throughput::Bytes(PAYLOAD as u64));
        group.bench_function("write Messages of 22 KiB, checksum and copy of the payload", |b| {
            b.iter(|| {
                out.clear();
                encoder.reply(&mut out, 0, black_box(&messages), Payload::of(&payload));
                out.extend_from_slice(&payload);
                black_box(out.len())
            })
        });
        decoding(group, "decode Messages of 22 KiB, as a client", &out, |header, metadata| {
            black_box(Reply::decode(header.kind, metadata).expect("it was written so"));
        });
        out.clear();
        encoder.request(&mut out, 2, &finish, Payload::NONE);
        decoding(group, "decode a Finish of a range", &out, |header, metadata| {
            black_box(Request::decode(header.kind, metadata).expect("it was written so"));
        });
    }

    fn decoding(group: &mut Group<'_>, name: &str, bytes: &[u8], each: impl Fn(&Header, &[u8])) {
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let (header, metadata) =
                    Header::parse(black_box(bytes), frame::FRAME_MAX).expect("well-formed").expect("a whole frame");
                header.check_payload(&bytes[header.frame_len() - header.payload_len..]).expect("intact");
                each(&header, metadata);
            })
        });
    }
}
