//! Runs every fuzz target on stable, without libFuzzer: on mutations of good bytes (the golden files, frames taken out of them, a
//! client's conversation), on what proptest thinks of, from a seed that stays and from one that is new each time.
//!
//! `FUZZ_SEED=n FUZZ_ROUNDS=m cargo test --test fuzz` replays a seed (a failure names it), and tries for longer.

#[path = "../fuzz/src/lib.rs"]
mod targets;

use proptest::prelude::*;
use ringmq::base::{Epoch, PartitionId, Position, Rng, TopicId};
use ringmq::codec::frame::Header;
use ringmq::codec::nsq::request;
use ringmq::format::batch::{BATCH_HEADER_LEN, BatchBuilder, Stamp};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use targets::{TARGETS, Target};

const FRAME_MAX: usize = 1 << 20;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn golden(is_wanted: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(root().join("tests/golden")).expect("the golden files are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    let is_wanted = |path: &&PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(&is_wanted);
    let found: Vec<Vec<u8>> = paths.iter().filter(is_wanted).map(|path| std::fs::read(path).expect("it can be read")).collect();
    assert!(!found.is_empty());
    found
}

/// Header, metadata and payload of each frame in a stream.
fn frames(stream: &[u8]) -> Vec<(Header, Vec<u8>, Vec<u8>)> {
    let (mut rest, mut found) = (stream, vec![]);
    while let Some((header, metadata)) = Header::parse(rest, FRAME_MAX).expect("golden frames hold") {
        let (frame, after) = rest.split_at(header.frame_len());
        found.push((header, metadata.to_vec(), frame[frame.len() - header.payload_len..].to_vec()));
        rest = after;
    }
    assert!(found.len() > 5, "a golden file has many frames");
    found
}

/// A client that does all that can be done, behind the seed of its host.
fn conversation(seed: u64) -> Vec<u8> {
    let (mut out, id) = (seed.to_le_bytes().to_vec(), b"00c000000000002a");
    request::identify(&mut out, br#"{"client_id":"c","feature_negotiation":true,"heartbeat_interval":1000,"msg_timeout":2000}"#);
    request::publish(&mut out, "orders", b"one");
    request::publish_to(&mut out, "orders", Some(PartitionId(3)), b"two");
    request::multi_publish(&mut out, "orders", [&b"a"[..], b"bb", b"ccc"].into_iter());
    request::subscribe(&mut out, "orders", "archive");
    request::ready(&mut out, 10);
    request::finish(&mut out, id);
    request::requeue(&mut out, id, 1500);
    request::touch(&mut out, id);
    request::nop(&mut out);
    request::publish(&mut out, "orders", b"three");
    request::close(&mut out);
    out
}

/// Body of a batch that a native client may send: the golden one has falling times.
fn body(num: u8) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    (0..num).for_each(|n| builder.push(n as i64 * 1_000_000, &vec![n; 10 * n as usize]));
    let stamp =
        Stamp { topic_id: TopicId([1; 16]), partition: PartitionId(0), epoch: Epoch(1), at: Position::START, prev_crc: 0 };
    builder.seal(stamp).bytes[BATCH_HEADER_LEN..].to_vec()
}

/// Good bytes for a target, in the shape in which it takes them.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let with_first = |first: &[u8], rest: &[u8]| [first, rest].concat();
    let is_of_disk = |name: &str| !name.starts_with("native") && !name.starts_with("peer");
    match target {
        "nsq" => (0..4).map(conversation).collect(),
        "native" => {
            let streams = golden(|name| name.starts_with("native"));
            let metadata = streams.iter().flat_map(|s| frames(s)).map(|(h, metadata, _)| with_first(&[h.kind], &metadata));
            streams.iter().map(|s| with_first(&[60], s)).chain(metadata).collect()
        }
        "peer" => {
            let streams = golden(|name| name.starts_with("peer"));
            let all = streams.iter().flat_map(|s| frames(s));
            let single = all.flat_map(|(h, metadata, payload)| {
                let payload = &payload[..payload.len().min(255)];
                let part = with_first(payload, &metadata);
                let sealed = [&[h.kind, h.flags, (metadata.len() / 8) as u8, payload.len() as u8], &*metadata, payload].concat();
                [with_first(&[h.kind, h.flags, payload.len() as u8], &part), sealed]
            });
            let single: Vec<Vec<u8>> = single.collect();
            let shaken = streams.iter().map(|s| with_first(&[1 | 60 << 2], s));
            streams.iter().cloned().chain(shaken).chain(single).collect()
        }
        "body" => {
            let batches = golden(|name| name == "batch.bin");
            let golden = batches.iter().map(|batch| with_first(&[3], &batch[BATCH_HEADER_LEN..]));
            golden.chain((1..5).map(|num| with_first(&[num], &body(num)))).collect()
        }
        "data_path" => golden(is_of_disk).iter().flat_map(|file| [1, 2, 4, 31].map(|which| with_first(&[which], file))).collect(),
        _ => golden(is_of_disk).into_iter().chain([vec![], vec![0; 5000]]).collect(),
    }
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(8) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            2 => bytes.truncate(at),
            3 => {
                let from = rng.below(bytes.len() as u64) as usize;
                let piece: Vec<u8> = bytes[from..(from + 64).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            4 => (at..(at + 8).min(bytes.len())).for_each(|i| bytes[i] = 0xff),
            _ => bytes.extend_from_slice(&rng.next_u64().to_le_bytes()),
        }
    }
}

/// Says what was being tried when it does not come back.
struct Trying<'a> {
    target: &'a str,
    seed: u64,
    bytes: &'a [u8],
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.bytes.iter().map(|b| format!("{b:02x}")).collect();
            eprintln!("target {}, FUZZ_SEED={}, bytes {hex}", self.target, self.seed);
        }
    }
}

fn try_all(seed: u64, rounds: u64) {
    for (name, target) in TARGETS {
        // recovers a whole data path twice
        let rounds = if name == "data_path" { rounds.div_ceil(25) } else { rounds };
        let corpus = corpus(name);
        let mut rng = Rng::new(seed);
        let share = rounds.div_ceil(corpus.len() as u64);
        for good in &corpus {
            for round in 0..=share {
                let mut bytes = good.clone();
                if round > 0 {
                    mutate(&mut rng, &mut bytes);
                }
                let _trying = Trying { target: name, seed, bytes: &bytes };
                target(&bytes);
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number: {value}")))
}

fn rounds() -> u64 {
    number("FUZZ_ROUNDS").unwrap_or(20_000)
}

#[test]
fn mutated_good_bytes_are_survived() {
    try_all(number("FUZZ_SEED").unwrap_or(1), rounds());
}

#[test]
fn they_are_survived_with_a_new_seed_too() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    println!("FUZZ_SEED={since}");
    try_all(since, rounds());
}

#[test]
fn every_file_of_a_target_is_run_here() {
    let entries = std::fs::read_dir(root().join("fuzz/fuzz_targets")).expect("they are there");
    let names = entries.map(|entry| entry.expect("it can be listed").path());
    let names: BTreeSet<String> = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    assert_eq!(names, TARGETS.map(|(name, _)| name.to_owned()).into());
    let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("it is there");
    for name in &names {
        let source = std::fs::read_to_string(root().join(format!("fuzz/fuzz_targets/{name}.rs"))).expect("it is there");
        assert!(source.contains(&format!("ringmq_fuzz::{name}(bytes)")), "{source}");
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is not in fuzz/Cargo.toml");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
        for (_, target) in TARGETS {
            let target: Target = target;
            target(&bytes);
        }
    }
}
