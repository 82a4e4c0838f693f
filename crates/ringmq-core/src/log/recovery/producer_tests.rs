//! The table of idempotent producers through recovery: it is what the surviving log says, whatever was truncated or damaged.

use super::*;
use crate::base::*;
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::format::files::RawPosition;
use crate::format::producer::Sequence;
use crate::log::{BodyLimits, NativeBatch, ProducerLimits, Producers};
use crate::sim::disk::SimDisk;
use crate::sim::engine::Engine;
use zerocopy::IntoBytes;

fn options() -> RecoverOptions {
    RecoverOptions {
        cores: 1,
        journal_bytes: JOURNAL_BYTES_MIN,
        segment_bytes: 16 * 1024,
        now_unix_ns: 5,
        accept_lost_journal: 0,
        is_clustered: false,
        producers: ProducerLimits::default(),
        seed: 1,
    }
}

struct Node {
    engine: Engine,
    /// Every batch of the only partition.
    headers: Vec<BatchHeader>,
    next: [u64; 4],
}

impl Node {
    fn new() -> Node {
        let mut disk = SimDisk::new(3);
        let recovered = recover(&mut disk, &options()).expect("an empty disk recovers");
        let mut engine = Engine::new(disk, recovered, 16 * 1024);
        let info = TopicInfo { name: TopicName::new("t").expect("valid"), id: TopicId([6; 16]), partitions: 1 };
        engine.create_topic(info).expect("no fault");
        Node { engine, headers: vec![], next: [0; 4] }
    }

    /// Batches of three producers in turn, each durable in the journal.
    fn write(&mut self, batches: u64) {
        for n in 0..batches {
            let producer = 1 + (n * 7 + n / 3) % 3;
            let mut bytes = vec![0; BATCH_HEADER_LEN];
            bytes.extend_from_slice(&1008u32.to_le_bytes());
            bytes.resize(BATCH_HEADER_LEN + 1012, 0);
            let crc = crc32fast::hash(&bytes[BATCH_HEADER_LEN..]);
            let first = self.next[producer as usize];
            self.next[producer as usize] += 1;
            let sequence = Some(Sequence { producer: ProducerId::new(producer).expect("not zero"), first });
            let limits = BodyLimits { message_bytes_max: 2000, body_bytes_max: 9000 };
            let native = NativeBatch::verify(bytes, 1, crc, sequence, &limits).expect("it holds");
            self.engine.reserve(0, 8192).expect("no fault");
            self.engine.admit(0, native.len()).expect("no fault");
            let batch = self.engine.make_native(0, native);
            let fact = self.engine.batch_fact(0, &batch);
            self.engine.write(0, &[fact]).expect("no fault");
            self.headers.push(batch.header);
            self.engine.parts[0].pending.push(batch);
        }
    }

    /// The journal truncates the log to its first `batches`, in a higher epoch.
    fn truncate(&mut self, batches: usize) {
        let last = self.headers[batches - 1];
        self.engine.generation += 1;
        let mut payload = RawPosition::from(last.end()).as_bytes().to_vec();
        payload.extend_from_slice(&last.header_crc.get().to_le_bytes());
        payload.extend_from_slice(&[0; 4]);
        let id = self.engine.parts[0].dir.topic_id;
        self.engine.parts[0].end = last.end();
        self.engine.write(0, &[(RecordKind::Truncate, Some(0), payload.into(), id)]).expect("no fault");
        self.headers.truncate(batches);
    }

    fn told(&self) -> Producers {
        let mut table = Producers::new(ProducerLimits::default());
        self.headers.iter().for_each(|h| table.count(h));
        table
    }

    fn recovered(&mut self) -> (RecoveredPartition, Report) {
        self.engine.disk.crash();
        let mut r = recover(&mut self.engine.disk, &options()).expect("it recovers");
        (r.partitions.remove(0), r.report)
    }
}

#[test]
fn a_truncation_takes_back_what_the_truncated_batches_told() {
    // Behind the snapshot, before it, and far before it: more batches than a producer's places.
    for (before, after, keep) in [(0, 30, 11), (20, 20, 31), (20, 20, 20), (20, 0, 18), (40, 10, 3), (60, 5, 1)] {
        let mut node = Node::new();
        node.write(before);
        if before > 0 {
            node.engine.checkpoint(0).expect("no fault");
        }
        node.write(after);
        node.truncate(keep);
        let (p, _) = node.recovered();
        assert_eq!(p.end, node.headers[keep - 1].end());
        assert_eq!(p.producers, node.told(), "{before} {after} {keep}");
    }
}

/// A replica that was promised to others' epochs: batches that are not committed may be truncated after the startup.
#[test]
fn what_a_later_truncation_takes_back_is_known_after_a_start() {
    for (committed, after, has_snapshot) in [(11, 30, false), (31, 20, true), (9, 40, true), (40, 0, false), (1, 20, true)] {
        let mut node = Node::new();
        node.write(committed as u64);
        if has_snapshot {
            node.engine.checkpoint(0).expect("no fault");
        }
        let (id, at) = (node.engine.parts[0].dir.topic_id, node.headers[committed - 1].end());
        let epoch = (RecordKind::Epoch, Some(0), 9u64.to_le_bytes().to_vec().into(), id);
        let place = (RecordKind::Committed, Some(0), RawPosition::from(at).as_bytes().to_vec().into(), id);
        node.engine.write(0, &[epoch, place]).expect("no fault");
        node.write(after);
        node.engine.disk.crash();
        let options = RecoverOptions { is_clustered: true, ..options() };
        let mut p = recover(&mut node.engine.disk, &options).expect("it recovers").partitions.remove(0);
        assert_eq!((p.committed, &p.producers), (at, &node.told()));
        while let Some(last) = p.counted.pop_back() {
            p.producers.take_back(last);
        }
        node.headers.truncate(committed);
        let next = |table: &Producers| -> Vec<_> { table.iter().map(|p| (p.id, p.next, *p.places().last().unwrap())).collect() };
        assert_eq!(next(&p.producers), next(&node.told()), "{committed} {after} {has_snapshot}");
    }
}

#[test]
fn without_a_snapshot_the_segments_tell_the_producers() {
    let mut node = Node::new();
    for _ in 0..2 {
        node.write(30);
        node.engine.checkpoint(0).expect("no fault");
    }
    assert!(node.engine.parts[0].bases.len() > 2);
    for slot in 0..2 {
        node.engine.disk.flip(&format!("topics/t/0/state.{slot}"), 100, 2);
    }
    let (p, report) = node.recovered();
    assert!(report.has_damage());
    assert_eq!((p.end, p.producers), (node.headers[59].end(), node.told()));
}

#[test]
fn either_snapshot_slot_and_the_journal_behind_it_tell_the_same() {
    for torn in [None, Some(0), Some(1)] {
        let mut node = Node::new();
        node.write(10);
        node.engine.snapshot(0).expect("no fault");
        node.write(10);
        node.engine.snapshot(0).expect("no fault");
        node.write(5);
        if let Some(slot) = torn {
            node.engine.disk.flip(&format!("topics/t/0/state.{slot}"), 100, 2);
        }
        let (p, _) = node.recovered();
        assert_eq!((p.end, p.producers), (node.headers[24].end(), node.told()), "{torn:?}");
    }
}

/// Snapshots that were written before there were producers, or by a node that allows fewer.
#[test]
fn limits_hold_at_a_start_and_no_producers_are_none() {
    let mut node = Node::new();
    node.write(20);
    node.engine.checkpoint(0).expect("no fault");
    node.engine.disk.crash();
    let fewer = RecoverOptions { producers: ProducerLimits { max: 2, expiry_ms: 1000 }, ..options() };
    let r = recover(&mut node.engine.disk, &fewer).expect("it recovers");
    let told: Vec<_> = node.told().iter().skip(1).copied().collect();
    assert_eq!(r.partitions[0].producers.iter().copied().collect::<Vec<_>>(), told);
}
