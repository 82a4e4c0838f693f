//! Random runs against a model: appends, turns, facts and completions in any order over a small ring, with small
//! segments, so that laps, rolls, checkpoints, evictions and reads all happen.

use super::*;
use crate::format::cursor::Interval;
use crate::format::snapshot::{SLOTS, Snapshot};
use crate::format::{batch, files};
use crate::log::flush::FlushStage;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Partition, sizes of the bodies.
    Append(usize, Vec<usize>),
    TurnEnd,
    /// Completes the pending operation of this number.
    Complete(usize),
    Finished(usize),
    Fetch(usize, usize),
    LowWater(usize),
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![10 => 0..300usize, 3 => 300..9_000usize, 1 => 30_000..90_000usize];
    prop_oneof![
        6 => (0..3usize, prop::collection::vec(size, 1..4)).prop_map(|(p, s)| Step::Append(p, s)),
        5 => Just(Step::TurnEnd),
        12 => (0..100usize).prop_map(Step::Complete),
        1 => (0..3usize).prop_map(Step::Finished),
        2 => (0..3usize, 0..1000usize).prop_map(|(p, n)| Step::Fetch(p, n)),
        1 => (0..3usize).prop_map(Step::LowWater),
        1 => Just(Step::Tick),
    ]
}

struct Model {
    rig: Rig,
    p: Vec<PartitionIdx>,
    /// Appended bodies, by partition; `tickets` has the number of bodies that each ticket covers.
    bodies: Vec<Vec<Vec<u8>>>,
    tickets: Vec<Vec<(AppendTicket, usize)>>,
    acked: Vec<AppendTicket>,
    /// Messages that retention took.
    removed: Vec<usize>,
    records: RecordTicket,
    seed: u8,
}

impl Model {
    fn new(options: StoreOptions) -> Model {
        let mut rig = Rig::new(options);
        let p = ["a", "b", "c"].map(|t| rig.store.create(rig.now, dir(t), &mut rig.io)).to_vec();
        rig.disk.take(&mut rig.io);
        let (bodies, tickets) = (vec![vec![]; 3], vec![vec![]; 3]);
        let (acked, removed) = (vec![AppendTicket(0); 3], vec![0; 3]);
        Model { rig, p, bodies, tickets, acked, removed, records: RecordTicket(0), seed: 0 }
    }

    /// Takes the notices, holding each acknowledgement against what the disk has.
    fn notices(&mut self) {
        for notice in std::mem::take(&mut self.rig.notices) {
            match notice {
                Notice::Durable { p, end, tickets_upto } => {
                    let i = p.0 as usize;
                    assert!(tickets_upto > self.acked[i], "acknowledgements move on");
                    self.acked[i] = tickets_upto;
                    let messages: usize = self.covered(i);
                    assert_eq!(end.count as usize, messages, "the end covers whole appends");
                    assert!(end.offset <= self.rig.store.durable_end(p).offset);
                    self.is_in_the_journal_or_the_files(i, end);
                }
                Notice::RecordDurable { upto } => {
                    assert!(upto > self.records);
                    self.records = upto;
                }
                Notice::Readable { .. } | Notice::Room => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn covered(&self, i: usize) -> usize {
        self.tickets[i].iter().filter(|t| t.0 <= self.acked[i]).map(|t| t.1).max().unwrap_or(0)
    }

    /// A redo from the bytes on the disk as they are now would know everything below `end`, whichever snapshot is lost beside
    /// one that is being written.
    fn is_in_the_journal_or_the_files(&self, i: usize, end: Position) {
        (0..SLOTS).for_each(|lost| self.is_there_without(i, end, lost));
    }

    fn is_there_without(&self, i: usize, end: Position, lost: u8) {
        let d = dir(["a", "b", "c"][i]);
        let snapshot = |slot| {
            let bytes = self.rig.disk.files.get(&FileId::Snapshot(d.clone(), slot))?;
            Snapshot::decode(bytes, d.topic_id, d.partition).ok()
        };
        let part = self.rig.store.core.part(self.p[i]);
        let torn = (part.flush.stage == FlushStage::Snapshot).then_some(((part.slots.next_sequence()) % SLOTS as u64) as u8);
        let whole = (0..SLOTS).filter(|slot| *slot != lost && Some(*slot) != torn);
        let best = whole.filter_map(snapshot).max_by_key(|s| s.sequence);
        let mut at = best.as_ref().map_or(Position::START, |s| s.end);
        let (mut applied, mut chain) = best.map_or((0, 0), |s| (s.applied, s.chain_crc));
        for (kind, header, payload) in self.rig.redo() {
            if header.topic_id != d.topic_id.0 || header.sequence.get() <= applied {
                continue;
            }
            assert_eq!(header.sequence.get(), applied + 1, "the records of a partition have no gap");
            applied += 1;
            let batch = match kind {
                RecordKind::Batch => {
                    let bytes = payload.into();
                    batch::Batch::parse(&bytes, d.topic_id, d.partition).expect("a journaled batch holds")
                }
                RecordKind::DirectBatch => {
                    let h = batch::BatchHeader::parse(&payload, d.topic_id, d.partition).expect("a header");
                    self.batch_in_segment(&d, h)
                }
                _ => continue,
            };
            assert_eq!((batch.header.start(), batch.header.prev_crc.get()), (at, chain), "redo goes on at the end");
            at = batch.header.end();
            chain = batch.header.header_crc.get();
        }
        assert!(at.offset >= end.offset, "acknowledged up to {end:?}, redo ends at {at:?}");
    }

    fn batch_in_segment(&self, d: &Arc<PartitionDir>, h: batch::BatchHeader) -> batch::Batch {
        let offset = h.offset.get();
        let segments = self.rig.disk.files.iter().filter_map(|(f, bytes)| match f {
            FileId::Segment(sd, base) if sd == d && *base <= offset => Some((*base, bytes)),
            _ => None,
        });
        let (base, bytes) = segments.max_by_key(|s| s.0).expect("the segment of a direct batch is there");
        let at = (files::FILE_HEADER_LEN as i64 + offset - base) as usize;
        let bytes = bytes::Bytes::copy_from_slice(&bytes[at..at + h.len()]);
        batch::Batch::parse(&bytes, d.topic_id, d.partition).expect("the body of a direct batch stands before its header")
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Append(i, sizes) => {
                self.seed = self.seed.wrapping_add(1);
                let bodies: Vec<Vec<u8>> = sizes.iter().map(|&s| vec![self.seed; s]).collect();
                let refs: Vec<&[u8]> = bodies.iter().map(|b| &b[..]).collect();
                match self.rig.append(self.p[i], &refs) {
                    Ok(ticket) => {
                        self.bodies[i].extend(bodies);
                        self.tickets[i].push((ticket, self.bodies[i].len()));
                    }
                    Err(refusal) => assert_eq!(refusal, Refusal::Busy),
                }
            }
            Step::TurnEnd => self.rig.turn_end(),
            Step::Complete(n) => {
                if !self.rig.disk.pending.is_empty() {
                    self.rig.complete(n % self.rig.disk.pending.len());
                }
            }
            Step::Finished(i) => {
                let id = LogId(self.seed as u64 + 1);
                let end = Position { offset: 0, count: id.0 as i64, log_id: LogId(id.0 + 1) };
                let channel = ChannelName::new("ch").expect("a valid name");
                self.rig.store.log_finished(self.p[i], &channel, 0, &[Interval { start: id, end }]);
            }
            Step::Fetch(i, n) => {
                // Some message that is durable.
                let all = self.read(i);
                let durable = self.rig.store.durable_end(self.p[i]).count as usize;
                assert_eq!(all.len() + self.removed[i], durable);
                let _ = n;
            }
            Step::LowWater(i) => {
                let end = self.rig.store.durable_end(self.p[i]);
                self.rig.store.set_low_water(self.p[i], end);
            }
            Step::Tick => self.rig.tick(100),
        }
        self.notices();
    }

    /// Reads all, completing whatever is pending on the way.
    fn read(&mut self, i: usize) -> Vec<Vec<u8>> {
        let p = self.p[i];
        let found = self.rig.read_all(p);
        self.removed[i] = self.rig.read_from;
        let from = self.removed[i];
        assert!(found[..] == self.bodies[i][from..from + found.len()], "what comes back is what went in");
        found
    }

    fn finish(mut self) {
        self.rig.settle();
        self.notices();
        for i in 0..3 {
            let last = self.tickets[i].last().map_or(AppendTicket(0), |t| t.0);
            assert_eq!(self.acked[i], last, "all that was taken is acknowledged");
            assert_eq!(self.read(i).len() + self.removed[i], self.bodies[i].len());
        }
        self.notices();
        assert!(!self.rig.store.stats(self.p[0]).read_only);
        self.rig.store.stop(self.rig.now, &NoCursors, &mut self.rig.io);
        self.rig.settle();
        assert!(self.rig.notices.contains(&Notice::Stopped));
        assert!(self.rig.redo().is_empty(), "after a stop there is nothing to redo");
        let batches = 512 * 1024 + 64 * 1024 + 1024 * 1024;
        let bound = 3 * batches + crate::log::memory::SLACK + 256 * 1024;
        assert!(self.rig.store.memory_bytes() <= bound, "{}", self.rig.store.memory_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        max_shrink_iters: 2000,
        rng_seed: proptest::test_runner::RngSeed::Fixed(3),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_acknowledged_can_be_redone_and_read(steps in prop::collection::vec(step(), 50..400)) {
        let mut options = options();
        options.journal.file_len = RING_START + 320 * 1024;
        let mut model = Model::new(options);
        for step in steps {
            model.run(step);
        }
        model.finish();
    }
}

/// The same over long runs from seeds, with counts that show that the runs reach what they are for.
#[test]
fn long_runs_reach_laps_rolls_direct_batches_and_reads() {
    let (mut laps, mut removed, mut reads, mut direct) = (0, 0, 0, 0);
    for seed in 0..12 {
        let mut rng = crate::base::Rng::new(seed);
        let mut options = options();
        options.journal.file_len = RING_START + 320 * 1024;
        options.scrub_bytes_per_second = MIB;
        let mut model = Model::new(options);
        for _ in 0..1500 {
            let i = rng.below(3) as usize;
            let size = |rng: &mut crate::base::Rng| if rng.chance(0.05) { rng.below(90_000) } else { rng.below(4000) } as usize;
            let step = match rng.below(100) {
                0..25 => Step::Append(i, (0..rng.below(4) + 1).map(|_| size(&mut rng)).collect()),
                25..45 => Step::TurnEnd,
                45..93 => Step::Complete(rng.below(1000) as usize),
                93..96 => Step::Finished(i),
                96 => Step::Fetch(i, 0),
                97 if rng.chance(0.2) => Step::LowWater(i),
                _ => Step::Tick,
            };
            direct = direct.max(model.rig.redo_count(RecordKind::DirectBatch));
            model.run(step);
        }
        reads += model.rig.reads;
        laps += model.rig.laps();
        removed += model.rig.disk.removed.len();
        model.finish();
    }
    assert!(laps > 20 && removed > 10 && reads > 50 && direct > 0, "{laps} {removed} {reads} {direct}");
}
