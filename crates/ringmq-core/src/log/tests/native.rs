//! Batches of native clients, and idempotent producers, through the store.

use super::*;
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::producer::{Sequence, SequenceError};

pub const LIMITS: BodyLimits = BodyLimits { message_bytes_max: 1 << 20, body_bytes_max: 64 << 20 };

/// A batch as a client makes it: messages without options, made `delta_us` after each other.
pub fn native(producer: u64, first: u64, bodies: &[&[u8]], delta_us: u32) -> NativeBatch {
    let mut bytes = vec![0; BATCH_HEADER_LEN];
    for (i, body) in bodies.iter().enumerate() {
        bytes.extend_from_slice(&(8 + body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(i as u32 * delta_us).to_le_bytes());
        bytes.extend_from_slice(body);
    }
    let sequence = ProducerId::new(producer).map(|producer| Sequence { producer, first });
    let crc = crc32fast::hash(&bytes[BATCH_HEADER_LEN..]);
    NativeBatch::verify(bytes, bodies.len() as u32, crc, sequence, &LIMITS).expect("it holds")
}

impl Rig {
    pub fn append_batch(&mut self, p: PartitionIdx, batch: NativeBatch) -> Result<Appended, BatchRefusal> {
        let result = self.store.append_batch(self.now, p, batch, &mut self.io);
        self.disk.take(&mut self.io);
        result.map_err(|refused| refused.why)
    }

    fn durable_upto(&self, p: PartitionIdx) -> u64 {
        let ticket = |n: &Notice| match n {
            Notice::Durable { p: of, tickets_upto, .. } if *of == p => Some(tickets_upto.0),
            _ => None,
        };
        self.notices.iter().filter_map(ticket).max().unwrap_or(0)
    }

    fn complete_journal(&mut self) {
        let is_journal = |op: &DiskOp| matches!(op, DiskOp::Write { file: FileId::Journal(0), at, .. } if *at >= RING_START);
        let index = self.find(is_journal).expect("a journal write is in flight");
        self.complete(index);
    }
}

fn new(appended: Result<Appended, BatchRefusal>) -> (Position, AppendTicket) {
    match appended {
        Ok(Appended::New { at, ticket }) => (at, ticket),
        other => panic!("{other:?}"),
    }
}

/// A caller answers a client with the place of its batch: the place is known when the batch is taken, and told when the ticket is
/// durable. NSQ publishes share a batch, so theirs is not told.
#[test]
fn a_publisher_is_answered_with_the_place_of_its_batch() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let mut waiting: std::collections::VecDeque<(AppendTicket, Option<Position>)> = Default::default();
    waiting.push_back((rig.append(p, &[b"nsq", b"nsq too"]).unwrap(), None));
    let (at, ticket) = new(rig.append_batch(p, native(0, 0, &[b"one", b"two"], 10)));
    waiting.push_back((ticket, Some(at)));
    waiting.push_back((rig.append(p, &[b"nsq again"]).unwrap(), None));
    let (at, ticket) = new(rig.append_batch(p, native(9, 0, &[b"three"], 0)));
    waiting.push_back((ticket, Some(at)));
    assert!(rig.notices.is_empty());
    rig.settle();
    let mut told = vec![];
    for notice in &rig.notices {
        let Notice::Durable { tickets_upto, .. } = notice else { continue };
        while let Some(&(ticket, at)) = waiting.front().filter(|(ticket, _)| ticket <= tickets_upto) {
            waiting.pop_front();
            told.push((ticket.0, at.map(|at| (at.log_id.0, at.count))));
        }
    }
    assert_eq!(told, [(1, None), (2, Some((3, 2))), (3, None), (4, Some((6, 5)))]);
    let bodies = rig.read_all(p);
    assert_eq!(bodies, [&b"nsq"[..], b"nsq too", b"one", b"two", b"nsq again", b"three"]);
    assert_eq!(rig.redo_count(RecordKind::Batch), 4, "each native batch is one of its own");
}

#[test]
fn a_large_batch_goes_straight_to_its_segment_as_it_came() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let body = vec![7; 100_000];
    rig.append(p, &[b"before"]).unwrap();
    let batch = || native(5, 0, &[&body], 0);
    loop {
        match rig.append_batch(p, batch()) {
            Err(BatchRefusal::Store(Refusal::Busy)) => rig.settle(),
            other => break assert_eq!(new(other).0.log_id, LogId(2)),
        }
    }
    rig.append(p, &[b"after"]).unwrap();
    rig.turn_end();
    assert!(matches!(rig.append_batch(p, batch()), Ok(Appended::Duplicate { ticket: Some(AppendTicket(2)), .. })));
    rig.settle();
    assert_eq!(rig.redo_count(RecordKind::DirectBatch), 1);
    assert_eq!(rig.read_all(p), [&b"before"[..], &body, b"after"]);
    assert!(matches!(rig.append_batch(p, batch()), Ok(Appended::Duplicate { ticket: None, at: Some(_) })));
    // A body above a segment's length begins the next one.
    let huge = vec![8; 300 * 1024];
    loop {
        match rig.append_batch(p, native(5, 1, &[&huge], 0)) {
            Err(BatchRefusal::Store(Refusal::Busy)) => rig.settle(),
            other => break assert_eq!(new(other).0.log_id, LogId(4)),
        }
    }
    rig.settle();
    assert_eq!(rig.read_all(p)[3], huge);
    assert_eq!(
        rig.store.memory_bytes(),
        rig.store.core.batch_memory.eviction.line_bytes() + rig.store.reads.reader().cache.bytes(),
        "everything was given back"
    );
}

#[test]
fn a_repeat_waits_for_the_original_and_is_answered_once() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let (first, t1) = new(rig.append_batch(p, native(9, 0, &[b"a", b"b"], 0)));
    // Before the turn's end, while the journal write is under way, and after it.
    let pending = Appended::Duplicate { at: Some(first), ticket: Some(t1) };
    assert_eq!(rig.append_batch(p, native(9, 0, &[b"a", b"b"], 0)), Ok(pending));
    rig.turn_end();
    assert_eq!(rig.append_batch(p, native(9, 0, &[b"a", b"b"], 0)), Ok(pending));
    let places: Vec<_> = (1..8).map(|i| new(rig.append_batch(p, native(9, 2 * i, &[b"c", b"d"], 0)))).collect();
    // Its place is forgotten; a later batch of the producer stands for its outcome.
    let forgotten = rig.append_batch(p, native(9, 2, &[b"c", b"d"], 0));
    assert_eq!(forgotten, Ok(Appended::Duplicate { at: None, ticket: Some(places[2].1) }));
    rig.complete_journal();
    assert_eq!(rig.durable_upto(p), t1.0);
    rig.settle();
    assert_eq!(rig.durable_upto(p), 8);
    let done = |at| Ok(Appended::Duplicate { at, ticket: None });
    assert_eq!(rig.append_batch(p, native(9, 0, &[b"a", b"b"], 0)), done(None));
    assert_eq!(rig.append_batch(p, native(9, 14, &[b"c", b"d"], 0)), done(Some(places[6].0)));
    let gap = SequenceError::Gap { expected: 16, found: 17 };
    assert_eq!(rig.append_batch(p, native(9, 17, &[b"x"], 0)), Err(gap.into()));
    let overlap = SequenceError::Overlap { expected: 16, first: 15, last: 16 };
    assert_eq!(rig.append_batch(p, native(9, 15, &[b"x", b"y"], 0)), Err(overlap.into()));
    assert_eq!(rig.append_batch(p, native(8, 1, &[b"x"], 0)), Err(SequenceError::UnknownProducer.into()));
    assert_eq!(rig.read_all(p).len(), 16);
}

/// A batch of a failed journal write is not in the log, so a repeat of it is not answered as if it were.
#[test]
fn after_a_failure_only_what_is_durable_is_a_duplicate() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let (at, _) = new(rig.append_batch(p, native(9, 0, &[b"a"], 0)));
    rig.settle();
    new(rig.append_batch(p, native(9, 1, &[b"b"], 0)));
    rig.turn_end();
    new(rig.append_batch(p, native(9, 2, &[b"c"], 0)));
    rig.fail(0, false);
    assert_eq!(rig.append_batch(p, native(9, 0, &[b"a"], 0)), Ok(Appended::Duplicate { at: Some(at), ticket: None }));
    for first in 1..4 {
        let refused = rig.append_batch(p, native(9, first, &[b"b"], 0));
        assert_eq!(refused, Err(Refusal::ReadOnly.into()), "sequence {first}");
    }
    let failed = rig.notices.iter().filter(|n| matches!(n, Notice::AppendFailed { .. })).count();
    assert_eq!(failed, 2);
}

/// A segment write fails: batches in the journal's queue will be acknowledged, all others are forgotten.
#[test]
fn a_partition_that_fails_keeps_what_the_journal_takes() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    new(rig.append_batch(p, native(9, 0, &[b"a"], 0)));
    rig.turn_end();
    let large = vec![1; 40_000];
    let ticket = loop {
        match rig.append_batch(p, native(9, 1, &[&large], 0)) {
            Err(BatchRefusal::Store(Refusal::Busy)) => {
                let index = rig.find(|op| matches!(op, DiskOp::Allocate { .. })).expect("space is on its way");
                rig.complete(index);
            }
            other => break new(other).1,
        }
    };
    assert_eq!(ticket, AppendTicket(2));
    rig.turn_end();
    let index = rig.find(|op| matches!(op, DiskOp::Write { file: FileId::Segment(..), .. })).expect("it is direct");
    rig.fail(index, false);
    let (first, second) = (native(9, 0, &[b"a"], 0), native(9, 1, &[&large], 0));
    assert!(matches!(rig.append_batch(p, first), Ok(Appended::Duplicate { ticket: Some(AppendTicket(1)), .. })));
    assert_eq!(rig.append_batch(p, second), Err(Refusal::ReadOnly.into()));
    rig.settle();
    assert_eq!(rig.durable_upto(p), 1);
    let first = native(9, 0, &[b"a"], 0);
    assert!(matches!(rig.append_batch(p, first), Ok(Appended::Duplicate { ticket: None, .. })));
}

/// A snapshot is as of its end: it does not contain a batch that only the journal has.
#[test]
fn a_snapshot_holds_the_producers_of_what_it_contains() {
    use crate::format::snapshot::Snapshot;
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let (mut sequence, mut seen) = (0, 0);
    for _ in 0..3000 {
        match rig.append_batch(p, native(9, sequence, &[&[0; 1500]], 0)) {
            Ok(_) => sequence += 1,
            Err(BatchRefusal::Store(Refusal::Busy)) => {}
            Err(other) => panic!("{other}"),
        }
        rig.turn_end();
        if !rig.disk.pending.is_empty() {
            rig.complete(0);
        }
        let d = dir("t");
        for slot in 0..3 {
            let Some(file) = rig.disk.files.get(&FileId::Snapshot(d.clone(), slot)) else { continue };
            let Ok(s) = Snapshot::decode(file, d.topic_id, d.partition) else { continue };
            assert_eq!(s.producers[0].next, s.end.count as u64, "each message has a sequence");
            assert!(s.unix_ns > 0);
            seen += 1;
        }
    }
    assert!(seen > 100 && sequence > 500, "{seen} {sequence}");
    assert_eq!(rig.read_all(p).len() + rig.read_from, rig.store.durable_end(p).count as usize);
}

/// A search by time counts on base timestamps that never fall.
#[test]
fn base_timestamps_do_not_fall() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.append(p, &[b"now"]).unwrap();
    new(rig.append_batch(p, native(0, 0, &[b"an hour ago", b"now"], 3_600_000_000)));
    rig.now.unix_ns += 10_000_000;
    new(rig.append_batch(p, native(0, 0, &[b"4 ms ago", b"now"], 4000)));
    rig.append(p, &[b"now"]).unwrap();
    rig.settle();
    let mut at = Position::START;
    let mut bases = vec![];
    while let Fetch::Batch(batch) = rig.fetch(p, at.offset) {
        bases.push(batch.header.base_unix_ns.get() - 1_700_000_000_000_000_000);
        at = batch.header.end();
    }
    assert_eq!(bases, [0, 0, 6_000_000, 10_000_000]);
}
