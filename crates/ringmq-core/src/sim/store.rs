//! A whole storage node in one thread from one seed: real stores, real recovery, the simulated disk; it publishes, confirms and reads at
//! random, loses power at random, recovers (losing power again), and compares the result with the acknowledged messages.
//!
//! Panics with a sentence at the first thing that breaks the promise. Only for tests.

use super::check::log_of;
use super::disk::{Faults, SimDisk};
use super::producer::{self, IdempotentProducer, PRODUCERS};
use super::startup::recover_store;
use crate::base::*;
use crate::format::cursor::{CursorImage, Interval};
use crate::log::recovery::channels::{confirm, is_confirmed};
use crate::log::recovery::{JOURNAL_BYTES_MIN, RecoverOptions, Recovered};
use crate::log::{
    AppendTicket, Appended, BatchRefusal, CursorSource, Fetch, Io, NotAppended, Notice, PartitionIdx, ProducerLimits,
    RecordTicket, Store, StoreOptions,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Plan of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub lives: u64,
    pub steps: u64,
    /// Faults of the disk while the node runs; capacity and crashes are the run's own.
    pub faults: Faults,
    /// Bytes of space beside the journals; 0: no bound.
    pub space: u64,
    pub retention: bool,
    /// Idempotent producers that a partition remembers. Four write to each; with fewer some are forgotten all the time.
    pub producers: usize,
}

/// Counts of a run, so that a test can ask whether the run was worth anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOutcome {
    pub acknowledged: u64,
    pub unacknowledged: u64,
    pub records: u64,
    pub refused: u64,
    pub crashes: u64,
    pub stops: u64,
    pub recovery_crashes: u64,
    pub redone: u64,
    pub direct_found: u64,
    pub read: u64,
    pub failed_appends: u64,
    pub segments_removed: u64,
    /// Segments that began on the space of others.
    pub reused: u64,
    /// Batches of idempotent producers that were taken.
    pub batches: u64,
    pub duplicates: u64,
    pub resent: u64,
    pub forgotten: u64,
}

type PartitionKey = (TopicId, u16);

/// Promises of the node for one partition.
#[derive(Default)]
struct Promise {
    /// Every append in order, whether it was acknowledged or not.
    appends: Vec<Vec<Vec<u8>>>,
    acknowledged: usize,
    /// Appends that recovery found: tickets of this life count from here.
    before_this_life: usize,
    /// Cursors that were surely confirmed, by channel; `perhaps`: those that may have been.
    sure: Vec<CursorImage>,
    perhaps: Vec<CursorImage>,
    end: i64,
    producers: Vec<IdempotentProducer>,
}

impl Promise {
    fn messages(&self) -> Vec<&[u8]> {
        self.appends.iter().flatten().map(Vec::as_slice).collect()
    }
}

/// A fact that waits for its record.
struct PendingFact {
    ticket: RecordTicket,
    fact: Fact,
}

enum Fact {
    Confirm(PartitionKey, CursorImage),
    Topic(TopicInfo),
}

struct Reader {
    offset: i64,
    message: Option<u64>,
}

struct Core {
    store: Store,
    parts: BTreeMap<PartitionIdx, PartitionKey>,
    cursors: Cursors,
    waiting: Vec<PendingFact>,
    stopped: bool,
}

#[derive(Default)]
struct Cursors(BTreeMap<PartitionIdx, Vec<CursorImage>>);

impl CursorSource for Cursors {
    fn cursors(&self, p: PartitionIdx) -> Vec<CursorImage> {
        self.0.get(&p).cloned().unwrap_or_default()
    }
}

/// Life of the node, from a startup to the next crash.
struct Node<'a> {
    disk: &'a mut SimDisk,
    rng: &'a mut Rng,
    promises: &'a mut BTreeMap<PartitionKey, Promise>,
    topics: &'a mut Vec<TopicInfo>,
    outcome: &'a mut RunOutcome,
    cores: Vec<Core>,
    ops: BTreeMap<OpId, (usize, OpId)>,
    next_op: u64,
    now: Now,
    readers: BTreeMap<PartitionKey, Reader>,
    retention: bool,
    /// More producers write than a partition remembers.
    forgets: bool,
    lost: bool,
}

/// Runs a plan. Panics at the first broken promise.
pub fn run(seed: u64, plan: &Plan) -> RunOutcome {
    let mut rng = Rng::new(seed);
    let mut disk = SimDisk::new(seed ^ 0x5eed);
    let (mut promises, mut topics, mut outcome) = (BTreeMap::new(), vec![], RunOutcome::default());
    let mut generation = 0;
    for life in 0..plan.lives {
        disk.faults = Faults::default();
        let cores = 1 + rng.below(3) as u16;
        let recovered = recover_somehow(&mut disk, &mut rng, cores, plan, &mut outcome);
        assert!(recovered.generation > generation, "the generation must rise");
        generation = recovered.generation;
        check(&disk, &recovered, &mut promises, &topics, plan, &mut outcome);
        if life + 1 == plan.lives {
            break;
        }
        let mut node = Node {
            disk: &mut disk,
            rng: &mut rng,
            promises: &mut promises,
            topics: &mut topics,
            outcome: &mut outcome,
            cores: vec![],
            ops: BTreeMap::new(),
            next_op: 0,
            now: Now { ticks: Ticks(0), unix_ns: 1_000_000_000 * (1 + life as i64) },
            readers: BTreeMap::new(),
            retention: plan.retention,
            forgets: plan.producers < PRODUCERS,
            lost: false,
        };
        promises_forget_tickets(node.promises);
        node.open(recovered, plan);
        node.live(plan);
    }
    outcome.reused = disk.counts.reused;
    outcome
}

/// Drops the tickets when the node goes down: producers that waited for an answer hear nothing and send again.
fn promises_forget_tickets(promises: &mut BTreeMap<PartitionKey, Promise>) {
    promises.values_mut().flat_map(|p| &mut p.producers).for_each(IdempotentProducer::disconnected);
}

fn limits(plan: &Plan) -> ProducerLimits {
    ProducerLimits { max: plan.producers, expiry_ms: 1 << 40 }
}

/// Recovers, losing power on the way now and then.
fn recover_somehow(disk: &mut SimDisk, rng: &mut Rng, cores: u16, plan: &Plan, outcome: &mut RunOutcome) -> Recovered {
    let options = RecoverOptions {
        cores,
        journal_bytes: JOURNAL_BYTES_MIN + 64 * 1024,
        segment_bytes: 64 * 1024,
        now_unix_ns: 7,
        producers: limits(plan),
        seed: 0,
        accept_lost_journal: 0,
        is_clustered: false,
    };
    recover_store(disk, rng, 150, &options, &mut outcome.recovery_crashes)
}

fn check(
    disk: &SimDisk,
    recovered: &Recovered,
    promises: &mut BTreeMap<PartitionKey, Promise>,
    topics: &[TopicInfo],
    plan: &Plan,
    outcome: &mut RunOutcome,
) {
    outcome.redone += recovered.report.batches_redone;
    outcome.direct_found += recovered.report.batches_found;
    assert!(!recovered.report.has_damage(), "nothing was damaged: {:?}", recovered.report);
    for topic in topics {
        assert!(recovered.topics.iter().any(|t| **t == *topic), "the acknowledged topic {} is gone", topic.name);
    }
    for p in &recovered.partitions {
        let key = (p.dir.topic_id, p.dir.partition.0);
        let promise = promises.entry(key).or_default();
        let log = log_of(disk, p).unwrap_or_else(|e| panic!("{}/{}: {e}", p.topic.name, key.1));
        let expected = promise.messages();
        let mut next = None;
        for (h, batch) in &log {
            let batch = batch.as_ref().unwrap_or_else(|| panic!("the body at offset {} is damaged", h.offset));
            assert!(!h.is_lost(), "offset {} is lost though nothing was damaged", h.offset);
            for m in batch.messages() {
                assert!(next.is_none_or(|n| n == m.log_id.0), "ids jump from {next:?} to {}", m.log_id.0);
                let body = expected.get(m.log_id.0 as usize - 1);
                assert_eq!(body, Some(&m.body), "{}/{}: message {} is another one", p.topic.name, key.1, m.log_id.0);
                next = Some(m.log_id.0 + 1);
            }
        }
        // Whole appends only: the number of messages found is where an append ends.
        let found = p.end.log_id.0 as usize - 1;
        let mut ends = promise.appends.iter().scan(0, |n, a| {
            *n += a.len();
            Some(*n)
        });
        let appends = if found == 0 { 0 } else { 1 + ends.position(|n| n == found).expect("an append came back in part") };
        let acknowledged = promise.acknowledged;
        assert!(appends >= acknowledged, "{}/{}: {appends} of {acknowledged} appends", p.topic.name, key.1);
        assert!(p.end.offset >= promise.end, "offsets went back from {} to {:?}", promise.end, p.end);
        check_cursors(p, promise);
        producer::check_log(&log, p, limits(plan), &mut promise.producers);
        promise.appends.truncate(appends);
        (promise.acknowledged, promise.before_this_life, promise.end) = (appends, appends, p.end.offset);
        (promise.sure, promise.perhaps) = (p.channels.clone(), p.channels.clone());
    }
    let all: Vec<PartitionKey> = recovered.partitions.iter().map(|p| (p.dir.topic_id, p.dir.partition.0)).collect();
    for (key, promise) in promises.iter() {
        assert!(all.contains(key) || promise.acknowledged == 0, "a partition with acknowledged messages is gone");
    }
}

fn check_cursors(p: &crate::log::state::RecoveredPartition, promise: &Promise) {
    for sure in &promise.sure {
        let found = p.channels.iter().find(|c| c.name == sure.name);
        let found = found.unwrap_or_else(|| panic!("the acknowledged channel {} is gone", sure.name));
        for id in (1..p.end.log_id.0).map(LogId) {
            assert!(!is_confirmed(sure, id) || is_confirmed(found, id), "{}: message {} was finished", sure.name, id.0);
        }
    }
    for found in &p.channels {
        let most = promise.perhaps.iter().find(|c| c.name == found.name).expect("nobody made this channel");
        for id in (1..p.end.log_id.0).map(LogId) {
            assert!(!is_confirmed(found, id) || is_confirmed(most, id), "{}: {} was never finished", found.name, id.0);
        }
    }
}

impl Node<'_> {
    fn open(&mut self, recovered: Recovered, plan: &Plan) {
        let count = recovered.journals.len() as u16;
        for (core, &journal) in recovered.journals.iter().enumerate() {
            let options = StoreOptions {
                core: CoreId(core as u16),
                epoch: Epoch(recovered.generation),
                journal,
                max_bytes_per_file: 64 * 1024,
                direct_bytes: [4096, 16 * 1024, 1 << 20][self.rng.below(3) as usize],
                flush_bytes: [2000, 20_000][self.rng.below(2) as usize],
                read_cache_bytes: 32 * 1024,
                tail_cache_bytes: [0, 64 * 1024][self.rng.below(2) as usize],
                max_pub_waiting_size: 64 * 1024,
                retention_ms: 0,
                retention_bytes: 0,
                topics: Default::default(),
                cluster_topics: Default::default(),
                scrub_bytes_per_second: 1 << 20,
                delete_bytes_per_second: 400_000,
                producers: limits(plan),
            };
            let (store, waiting) = (Store::new(options), vec![]);
            self.cores.push(Core { store, parts: BTreeMap::new(), cursors: Cursors::default(), waiting, stopped: false });
        }
        for p in recovered.partitions {
            let core = p.topic.core_of(p.dir.partition, count).0 as usize;
            let (key, channels) = ((p.dir.topic_id, p.dir.partition.0), p.channels.clone());
            self.readers.insert(key, Reader { offset: p.start.offset, message: None });
            let idx = self.cores[core].store.open(p);
            self.cores[core].parts.insert(idx, key);
            self.cores[core].cursors.0.insert(idx, channels);
        }
        self.disk.faults = plan.faults;
        self.disk.faults.capacity = if plan.space == 0 { 0 } else { self.disk.used_bytes() + plan.space };
        self.disk.faults.crash_after = self.rng.chance(0.6).then(|| self.rng.below(plan.steps));
    }

    fn live(&mut self, plan: &Plan) {
        for _ in 0..plan.steps {
            if self.disk.is_crashed() {
                break;
            }
            self.step();
        }
        if !self.disk.is_crashed() && self.rng.chance(0.3) {
            self.stop();
        }
        self.outcome.crashes += 1;
        if self.rng.chance(0.7) { self.disk.crash() } else { self.disk.kill() }
    }

    fn step(&mut self) {
        self.now.ticks = self.now.ticks + std::time::Duration::from_micros(self.rng.below(200_000));
        self.now.unix_ns += 1_000_000;
        let core = self.rng.below(self.cores.len() as u64) as usize;
        match self.rng.below(100) {
            0..20 => self.publish(core),
            20..30 => self.publish_idempotent(core),
            30..40 => self.confirm(core),
            40..42 => self.create_topic(),
            42..50 => self.read(core),
            50..52 if self.retention => self.low_water(core),
            52..60 => self.with(core, |c, now, io, notices| c.store.tick(now, &c.cursors, io, notices)),
            _ => {
                // A turn ends, as after every event in production; then the disk goes on.
                self.with(core, |c, now, io, _| c.store.turn_end(now, &c.cursors, io));
                for _ in 0..self.rng.below(4) {
                    self.complete();
                }
            }
        }
    }

    /// Calls the store and carries out its operations.
    fn with<T>(&mut self, core: usize, call: impl FnOnce(&mut Core, Now, &mut Io, &mut Vec<Notice>) -> T) -> T {
        let (mut io, mut notices) = (vec![], vec![]);
        let out = call(&mut self.cores[core], self.now, &mut io, &mut notices);
        for (op, request) in io {
            self.next_op += 1;
            self.ops.insert(OpId(self.next_op), (core, op));
            self.disk.submit(OpId(self.next_op), request);
        }
        notices.into_iter().for_each(|n| self.note(core, n));
        out
    }

    fn complete(&mut self) -> bool {
        let Some((id, outcome)) = self.disk.complete() else { return false };
        let (core, op) = self.ops.remove(&id).expect("every operation completes once");
        self.with(core, |c, now, io, notices| c.store.completed(now, op, outcome, &c.cursors, io, notices));
        true
    }

    fn note(&mut self, core: usize, notice: Notice) {
        match notice {
            Notice::Durable { p, tickets_upto: AppendTicket(upto), end } => {
                let promise = self.promises.get_mut(&self.cores[core].parts[&p]).expect("opened with its promise");
                promise.acknowledged = promise.acknowledged.max(promise.before_this_life + upto as usize);
                promise.producers.iter_mut().for_each(|p| p.durable_upto(AppendTicket(upto)));
                promise.end = end.offset;
                self.outcome.acknowledged += 1;
            }
            Notice::RecordDurable { upto } => {
                let waiting = std::mem::take(&mut self.cores[core].waiting);
                let (durable, left): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|w| w.ticket <= upto);
                self.cores[core].waiting = left;
                for w in durable {
                    self.outcome.records += 1;
                    self.made_durable(w.fact);
                }
            }
            Notice::AppendFailed { p, from, .. } => {
                let promise = self.promises.get_mut(&self.cores[core].parts[&p]).expect("opened with its promise");
                promise.producers.iter_mut().for_each(|p| p.failed_from(from));
                self.outcome.failed_appends += 1;
            }
            Notice::Stopped => self.cores[core].stopped = true,
            Notice::Damage { what, .. } => assert!(self.lost, "the store found damage where none was done: {what}"),
            Notice::Removed { .. } | Notice::TopicRemoved { .. } => unreachable!("no topic is removed here"),
            Notice::Truncated { .. } | Notice::Verbatim { .. } | Notice::Mended { .. } => unreachable!("nobody follows here"),
            Notice::Removable { .. } => unreachable!("nobody is asked here"),
            Notice::Readable { .. } | Notice::Room | Notice::Found { .. } | Notice::ReadOnly { .. } => {}
        }
    }

    fn made_durable(&mut self, fact: Fact) {
        match fact {
            Fact::Confirm(key, image) => {
                let promise = self.promises.get_mut(&key).expect("opened with its promise");
                match promise.sure.iter_mut().find(|c| c.name == image.name) {
                    Some(c) => *c = image,
                    None => promise.sure.push(image),
                }
            }
            Fact::Topic(info) => {
                let cores = self.cores.len() as u16;
                for partition in (0..info.partitions).map(PartitionId) {
                    let core = info.core_of(partition, cores).0 as usize;
                    let dir = Arc::new(PartitionDir { topic: info.name.clone(), topic_id: info.id, partition });
                    let idx = self.with(core, |c, now, io, _| c.store.create(now, dir, io));
                    self.cores[core].parts.insert(idx, (info.id, partition.0));
                    self.promises.insert((info.id, partition.0), Promise::default());
                    self.readers.insert((info.id, partition.0), Reader { offset: 0, message: None });
                }
                self.topics.push(info);
            }
        }
    }

    fn any_part(&mut self, core: usize) -> Option<(PartitionIdx, PartitionKey)> {
        let n = self.cores[core].parts.len() as u64;
        if n == 0 {
            return None;
        }
        let i = self.rng.below(n) as usize;
        self.cores[core].parts.iter().nth(i).map(|(&p, &key)| (p, key))
    }

    fn publish(&mut self, core: usize) {
        let Some((p, key)) = self.any_part(core) else { return };
        let len_max = [10, 200, 3000, 20_000][self.rng.below(4) as usize];
        let bodies: Vec<Vec<u8>> = (0..1 + self.rng.below(4))
            .map(|_| {
                let (len, seed) = (self.rng.below(len_max), self.rng.next_u64());
                (0..len).map(|i| (seed.wrapping_mul(i + 1) >> 24) as u8).collect()
            })
            .collect();
        let bytes = bodies.iter().map(Vec::len).sum();
        let taken =
            self.with(core, |c, now, io, _| c.store.append(now, p, bodies.iter().map(Vec::as_slice), bodies.len(), bytes, io));
        match taken {
            Ok(AppendTicket(ticket)) => {
                let promise = self.promises.get_mut(&key).expect("opened with its promise");
                promise.appends.push(bodies);
                assert_eq!(promise.before_this_life + ticket as usize, promise.appends.len(), "tickets count appends");
                self.outcome.unacknowledged += 1;
            }
            Err(_) => self.outcome.refused += 1,
        }
    }

    /// A producer sends its next batch, or repeats an unanswered or an older one.
    fn publish_idempotent(&mut self, core: usize) {
        let Some((p, key)) = self.any_part(core) else { return };
        let promise = self.promises.get_mut(&key).expect("opened with its promise");
        while promise.producers.len() < PRODUCERS {
            promise.producers.push(IdempotentProducer::new(self.rng, self.forgets));
        }
        let which = self.rng.below(PRODUCERS as u64) as usize;
        let Some(sent) = promise.producers[which].next_to_send(self.rng) else { return };
        let batch = promise.producers[which].batch(sent);
        let taken = self.with(core, |c, now, io, _| c.store.append_batch(now, p, batch, io));
        let promise = self.promises.get_mut(&key).expect("opened with its promise");
        match taken {
            Ok(appended) => {
                if let Appended::New { ticket, .. } = appended {
                    promise.appends.push(promise.producers[which].bodies(sent).to_vec());
                    assert_eq!(promise.before_this_life + ticket.0 as usize, promise.appends.len(), "tickets count appends");
                    self.outcome.batches += 1;
                }
                self.outcome.duplicates += matches!(appended, Appended::Duplicate { .. }) as u64;
                self.outcome.resent += promise.producers[which].answered(sent, appended) as u64;
            }
            Err(NotAppended { why: BatchRefusal::Store(_), .. }) => self.outcome.refused += 1,
            Err(NotAppended { why: BatchRefusal::Sequence(_), .. }) if self.forgets => {
                promise.producers[which] = IdempotentProducer::new(self.rng, true);
                self.outcome.forgotten += 1;
            }
            Err(refused) => panic!("{key:?}: a producer that only repeats was refused: {refused}"),
        }
    }

    /// Finishes some messages that are durable, on one of two channels.
    fn confirm(&mut self, core: usize) {
        let Some((p, key)) = self.any_part(core) else { return };
        let end = self.cores[core].store.durable_end(p);
        let start = self.cores[core].store.start(p);
        let name = ChannelName::new(["one", "two"][self.rng.below(2) as usize]).expect("it is valid");
        let images = self.cores[core].cursors.0.entry(p).or_default();
        let is_new = !images.iter().any(|c| c.name == name);
        if is_new {
            let (epoch, confirmed) = (Epoch(1), start);
            images.push(CursorImage::new(name.clone(), epoch, 1, confirmed));
        }
        let image = images.iter_mut().find(|c| c.name == name).expect("it was just made");
        let intervals = if end.log_id > start.log_id {
            let from = LogId(start.log_id.0 + self.rng.below(end.log_id.0 - start.log_id.0));
            vec![Interval { start: from, end }]
        } else {
            vec![]
        };
        let before = image.clone();
        confirm(image, &intervals);
        let after = image.clone();
        let ticket = self.with(core, |c, _, _, _| {
            if is_new {
                c.store.log_cursor(p, &before);
            }
            c.store.log_finished(p, &name, 1, &intervals)
        });
        if intervals.is_empty() && !is_new {
            return;
        }
        let promise = self.promises.get_mut(&key).expect("opened with its promise");
        match promise.perhaps.iter_mut().find(|c| c.name == name) {
            Some(c) => *c = after.clone(),
            None => promise.perhaps.push(after.clone()),
        }
        if !intervals.is_empty() {
            self.cores[core].waiting.push(PendingFact { ticket, fact: Fact::Confirm(key, after) });
        }
    }

    fn create_topic(&mut self) {
        if self.topics.len() >= 5 {
            return;
        }
        let name = TopicName::new(&format!("topic-{}", self.rng.below(1 << 30))).expect("it is valid");
        let core = topic::home_core(&name, self.cores.len() as u16).0 as usize;
        let info = TopicInfo { name, id: TopicId(self.rng.bytes_16()), partitions: 1 + self.rng.below(2) as u16 };
        let ticket = self.with(core, |c, now, io, _| c.store.log_topic_create(&info, now.unix_ns, io));
        self.cores[core].waiting.push(PendingFact { ticket, fact: Fact::Topic(info) });
    }

    /// Reads on in one partition: every batch handed out must be the appended one, in order, and durable.
    fn read(&mut self, core: usize) {
        let Some((p, key)) = self.any_part(core) else { return };
        let reader = &self.readers[&key];
        let (offset, message) = (reader.offset, reader.message);
        let fetched = self.with(core, |c, _, io, _| c.store.fetch(p, offset, io));
        let durable = self.cores[core].store.durable_end(p);
        let reader = self.readers.get_mut(&key).expect("made with the partition");
        match fetched {
            Fetch::Batch(batch) => {
                assert!(batch.header.end().offset <= durable.offset, "a batch that is not durable was handed out");
                assert!(message.is_none_or(|m| m == batch.header.log_id.get()), "a batch was left out before {offset}");
                let expected = self.promises[&key].messages();
                for m in batch.messages() {
                    assert_eq!(expected[m.log_id.0 as usize - 1], m.body, "message {} is another one", m.log_id.0);
                    self.outcome.read += 1;
                }
                *reader = Reader { offset: batch.header.end().offset, message: Some(batch.header.end().log_id.0) };
            }
            Fetch::Below { start } => *reader = Reader { offset: start.offset, message: Some(start.log_id.0) },
            Fetch::Lost { from, to } => panic!("{from:?} to {to:?} is lost though nothing was damaged"),
            Fetch::Pending | Fetch::Held => {}
            Fetch::End => assert_eq!(offset, durable.offset, "the log ends before its durable end"),
        }
    }

    /// Confirms all channels up to the reader's offset: retention may begin.
    fn low_water(&mut self, core: usize) {
        let Some((p, key)) = self.any_part(core) else { return };
        let reader = &self.readers[&key];
        let Some(message) = reader.message else { return };
        let at = Position { offset: reader.offset, count: message as i64 - 1, log_id: LogId(message) };
        let before = self.cores[core].store.start(p);
        self.with(core, |c, _, _, _| c.store.set_low_water(p, at));
        self.outcome.segments_removed += (self.cores[core].store.start(p).offset > before.offset) as u64;
    }

    /// A stop makes everything durable that was taken.
    fn stop(&mut self) {
        for core in 0..self.cores.len() {
            self.with(core, |c, now, io, _| c.store.stop(now, &c.cursors, io));
        }
        for _ in 0..100_000 {
            let is_done = self.cores.iter().all(|c| c.stopped);
            if is_done || self.disk.is_crashed() {
                self.outcome.stops += is_done as u64;
                return;
            }
            if !self.complete() {
                self.now.ticks = self.now.ticks + std::time::Duration::from_millis(500);
                for core in 0..self.cores.len() {
                    self.with(core, |c, now, io, notices| c.store.tick(now, &c.cursors, io, notices));
                }
            }
        }
        panic!("the store does not stop");
    }
}
