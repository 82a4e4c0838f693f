//! Logs that live as a follower's, and at times as a leader's, in one thread from one seed: real stores, real recovery, the
//! simulated disk. A made-up leader appends, raises its epoch, truncates, begins anew; the node loses power at any operation.
//!
//! Checks after each recovery, and in between through the view:
//! ```text
//! appends_survive      the log has the given batches, at least as far as told durable, byte for byte
//! truncations_hold     truncated batches never come back once the truncation was told complete; before that all are there, or none
//! promises_hold        a promised epoch that was told durable is there, and none that was never given
//! epochs_agree         the table of epochs is that of the batches, and epochs never fall
//! one_batch_per_id     (epoch, log id) names one batch for ever
//! committed_is_told    the committed end was told, and is never higher
//! ```
//! Panics with a sentence at the first thing that does not hold. Only for tests.

use super::check::log_of;
use super::disk::{Faults, SimDisk};
use super::startup::recover_store;
use crate::base::*;
use crate::format::batch::{Batch, BatchBuilder, Stamp};
use crate::format::cursor::CursorImage;
use crate::format::tail::EpochEnd;
use crate::format::tail::Tail;
use crate::log::Unreadable;
use crate::log::recovery::{JOURNAL_BYTES_MIN, RecoverOptions, Recovered};
use crate::log::state::RecoveredPartition;
use crate::log::{CursorSource, Fetch, Io, Notice, PartitionIdx, ProducerLimits, RecordTicket, Store, StoreOptions};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const PARTITIONS: u16 = 3;

/// Plan of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub lives: u64,
    pub steps: u64,
    /// Faults of the disk while the node runs; crashes are the run's own.
    pub faults: Faults,
}

/// Counts of a run, so that a test can tell whether the run was worth anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOutcome {
    pub appended: u64,
    pub durable: u64,
    pub led: u64,
    pub truncations: u64,
    pub restarts: u64,
    /// Crashes while a truncation was under way, and those after which it was found done, or not begun.
    pub crashed_truncations: u64,
    pub found_truncated: u64,
    pub found_whole: u64,
    pub promises: u64,
    pub recovery_crashes: u64,
    pub read: u64,
    pub failed: u64,
}

/// Expected state of one partition.
struct Book {
    /// Start of the log, and its contents when everything that was given is durable.
    start: Tail,
    log: Vec<Batch>,
    durable: usize,
    /// Truncation: the number of batches that stay, or where the log begins anew.
    truncation: Option<Result<usize, Tail>>,
    promised: Epoch,
    promised_max: Epoch,
    /// Promises on their way.
    promising: Vec<(RecordTicket, Epoch)>,
    told: i64,
    names: BTreeMap<(u64, u64), u32>,
    /// Epoch of the leader.
    epoch: u64,
    epoch_max: u64,
    leads: bool,
    /// Batches that wait for room.
    held: VecDeque<Batch>,
    failed: bool,
    /// The verbatim read under way: where it begins.
    reading: Option<(u64, Position)>,
    /// End of the previous read: catch-up continues there.
    read_to: Option<Position>,
}

impl Book {
    fn new() -> Book {
        Book {
            start: Tail::START,
            log: vec![],
            durable: 0,
            truncation: None,
            promised: Epoch(0),
            promised_max: Epoch(0),
            promising: vec![],
            told: 0,
            names: BTreeMap::new(),
            epoch: 1,
            epoch_max: 1,
            leads: false,
            held: VecDeque::new(),
            failed: false,
            reading: None,
            read_to: None,
        }
    }

    /// The log's end with its first `n` batches.
    fn tail(&self, n: usize) -> Tail {
        n.checked_sub(1).map_or(self.start, |i| tail_of(&self.log[i]))
    }

    fn end(&self) -> Tail {
        match self.truncation {
            Some(Ok(n)) => self.tail(n),
            Some(Err(start)) => start,
            None => self.tail(self.log.len()),
        }
    }

    /// Ends of all epochs, newest first.
    fn epochs(&self, n: usize) -> Vec<EpochEnd> {
        let mut ends: Vec<EpochEnd> = vec![];
        for batch in self.log[..n].iter().rev() {
            if ends.last().is_none_or(|e| e.epoch.0 != batch.header.epoch.get()) {
                ends.push(tail_of(batch).into());
            }
        }
        ends
    }

    fn take(&mut self, batch: Batch) {
        let h = &batch.header;
        let known = *self.names.entry((h.epoch.get(), h.log_id.get())).or_insert(h.header_crc.get());
        assert_eq!(known, h.header_crc.get(), "one_batch_per_id: epoch {} id {}", h.epoch, h.log_id);
        self.log.push(batch);
    }

    /// An epoch that was never written in, above that of the log's end; not above all there were, now and then.
    fn next_epoch(&mut self, rng: &mut Rng) {
        let last = self.end().epoch.0;
        let between = last + 1 + rng.below(4);
        let is_used = self.names.range((between, 0)..=(between, u64::MAX)).next().is_some();
        self.epoch = if is_used || rng.chance(0.5) { self.epoch_max + 1 + rng.below(20) } else { between };
        self.epoch_max = self.epoch_max.max(self.epoch);
    }
}

fn tail_of(batch: &Batch) -> Tail {
    let h = &batch.header;
    Tail { at: h.end(), chain_crc: h.header_crc.get(), epoch: Epoch(h.epoch.get()) }
}

struct NoCursors;

impl CursorSource for NoCursors {
    fn cursors(&self, _: PartitionIdx) -> Vec<CursorImage> {
        vec![]
    }
}

fn topic() -> TopicInfo {
    TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([6; 16]), partitions: PARTITIONS }
}

/// Runs a plan. Panics at the first thing that does not hold.
pub fn run(seed: u64, plan: &Plan) -> RunOutcome {
    let mut rng = Rng::new(seed);
    let mut disk = SimDisk::new(seed ^ 0xf0110);
    let mut outcome = RunOutcome::default();
    let mut books: Vec<Book> = (0..PARTITIONS).map(|_| Book::new()).collect();
    for life in 0..=plan.lives {
        disk.faults = Faults::default();
        let recovered = recover_somehow(&mut disk, &mut rng, &mut outcome);
        assert!(!recovered.report.has_damage(), "nothing was damaged: {:?}", recovered.report);
        assert!(recovered.generation < 1000, "generations have nothing to do with a replica's epochs");
        assert!(life == 0 || recovered.partitions.len() == books.len());
        for p in &recovered.partitions {
            check(&disk, p, &mut books[p.dir.partition.0 as usize], &mut outcome);
        }
        if life == plan.lives {
            break;
        }
        let mut node = Node::new(&mut disk, &mut rng, &mut books, &mut outcome, recovered, life);
        node.live(plan, life == 0);
    }
    outcome
}

fn recover_somehow(disk: &mut SimDisk, rng: &mut Rng, outcome: &mut RunOutcome) -> Recovered {
    let options = RecoverOptions {
        cores: 1,
        journal_bytes: JOURNAL_BYTES_MIN + 64 * 1024,
        segment_bytes: 64 * 1024,
        now_unix_ns: 7,
        producers: ProducerLimits::default(),
        seed: 0,
        accept_lost_journal: 0,
        is_clustered: true,
    };
    recover_store(disk, rng, 120, &options, &mut outcome.recovery_crashes)
}

fn check(disk: &SimDisk, p: &RecoveredPartition, book: &mut Book, outcome: &mut RunOutcome) {
    let name = &p.dir;
    let found = log_of(disk, p).unwrap_or_else(|e| panic!("{name}: {e}"));
    let found: Vec<Batch> = found.into_iter().map(|(_, b)| b.unwrap_or_else(|| panic!("{name}: a body is damaged"))).collect();
    let is_prefix = |from: &Tail, log: &[Batch]| {
        p.start == from.at && found.len() <= log.len() && found.iter().zip(log).all(|(a, b)| a.bytes == b.bytes)
    };
    let is_whole = is_prefix(&book.start, &book.log) && found.len() >= book.durable;
    match book.truncation.take() {
        None => assert!(is_whole, "appends_survive: {name}: {} batches, {} were durable", found.len(), book.durable),
        Some(truncation) => {
            outcome.crashed_truncations += 1;
            let is_truncated = match truncation {
                Ok(n) => is_prefix(&book.start, &book.log[..n]) && found.len() == n,
                Err(start) => p.start == start.at && found.is_empty() && p.chain_crc == start.chain_crc,
            };
            assert!(
                is_truncated || is_whole,
                "truncations_hold: {name}: {} batches from {:?}, {truncation:?} of {}",
                found.len(),
                p.start,
                book.log.len()
            );
            (outcome.found_truncated, outcome.found_whole) =
                (outcome.found_truncated + is_truncated as u64, outcome.found_whole + !is_truncated as u64);
            if let (true, Err(start)) = (is_truncated, truncation) {
                book.start = start;
            }
        }
    }
    book.log = found;
    book.durable = book.log.len();
    let tail = book.tail(book.log.len());
    let epoch = if book.log.is_empty() { Epoch(0) } else { tail.epoch };
    assert_eq!((p.end, p.epoch), (tail.at, epoch), "epochs_agree: {name}");
    let closed: Vec<EpochEnd> = book.epochs(book.log.len()).into_iter().skip(1).rev().collect();
    assert_eq!(p.epochs.iter().collect::<Vec<_>>(), closed, "epochs_agree: {name}");
    // A batch is word of its epoch, too, until a truncation removes it: only what is above is known to be recorded.
    let promises = book.promised..=book.promised_max.max(epoch);
    assert!(promises.contains(&p.promised), "promises_hold: {name}: {:?} is not in {promises:?}", p.promised);
    if p.promised > Epoch(0) {
        assert!(p.committed.offset <= book.told, "committed_is_told: {name}: {:?} beyond {}", p.committed, book.told);
    } else {
        book.told = p.committed.offset;
    }
    book.promised_max = p.promised;
    if p.promised > epoch {
        book.promised = p.promised;
    }
    assert_eq!(p.damage.vouched(), None, "nothing was damaged");
    book.promising.clear();
    book.held.clear();
    // Others may have seen the lost batches: another leader continues.
    book.epoch_max += 1;
    book.epoch = book.epoch_max;
    (book.failed, book.reading, book.leads) = (false, None, false);
}

/// Life of the node, from a startup to the next crash.
struct Node<'a> {
    disk: &'a mut SimDisk,
    rng: &'a mut Rng,
    books: &'a mut Vec<Book>,
    outcome: &'a mut RunOutcome,
    store: Store,
    parts: Vec<PartitionIdx>,
    now: Now,
    next_token: u64,
}

impl<'a> Node<'a> {
    fn new(
        disk: &'a mut SimDisk,
        rng: &'a mut Rng,
        books: &'a mut Vec<Book>,
        outcome: &'a mut RunOutcome,
        recovered: Recovered,
        life: u64,
    ) -> Node<'a> {
        let options = StoreOptions {
            core: CoreId(0),
            epoch: Epoch(recovered.generation),
            journal: recovered.journals[0],
            max_bytes_per_file: [32, 64, 256][rng.below(3) as usize] * 1024,
            direct_bytes: [4096, 16 * 1024, 1 << 20][rng.below(3) as usize],
            flush_bytes: [1000, 20_000][rng.below(2) as usize],
            read_cache_bytes: 32 * 1024,
            tail_cache_bytes: [0, 32 * 1024][rng.below(2) as usize],
            max_pub_waiting_size: 64 * 1024,
            retention_ms: 0,
            retention_bytes: 0,
            topics: Default::default(),
            cluster_topics: Default::default(),
            scrub_bytes_per_second: 1 << 20,
            delete_bytes_per_second: 400_000,
            producers: ProducerLimits::default(),
        };
        let mut store = Store::new(options);
        let parts = recovered.partitions.into_iter().map(|p| store.open(p)).collect();
        let now = Now { ticks: Ticks(0), unix_ns: 1_000_000_000 * (1 + life as i64) };
        Node { disk, rng, books, outcome, store, parts, now, next_token: 0 }
    }

    fn live(&mut self, plan: &Plan, is_first: bool) {
        if is_first {
            let info = topic();
            let ticket = self.with(|s, now, io, _| s.log_topic_create(&info, now.unix_ns, io));
            assert_eq!(ticket, RecordTicket(1));
            self.with(|s, now, io, _| s.turn_end(now, &NoCursors, io));
            while self.complete() {}
            for partition in (0..PARTITIONS).map(PartitionId) {
                let dir = Arc::new(PartitionDir { topic: info.name.clone(), topic_id: info.id, partition });
                let idx = self.with(|s, now, io, _| s.create(now, dir, io));
                self.parts.push(idx);
            }
        }
        self.disk.faults = plan.faults;
        self.disk.faults.crash_after = self.rng.chance(0.7).then(|| self.rng.below(plan.steps));
        for _ in 0..plan.steps {
            if self.disk.is_crashed() {
                break;
            }
            self.step();
        }
        if self.rng.chance(0.7) { self.disk.crash() } else { self.disk.kill() }
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Store, Now, &mut Io, &mut Vec<Notice>) -> T) -> T {
        let (mut io, mut notices) = (vec![], vec![]);
        let out = call(&mut self.store, self.now, &mut io, &mut notices);
        self.store.take_notices(&mut notices);
        io.into_iter().for_each(|(op, request)| self.disk.submit(op, request));
        notices.into_iter().for_each(|n| self.note(n));
        out
    }

    fn complete(&mut self) -> bool {
        let Some((op, outcome)) = self.disk.complete() else { return false };
        self.with(|s, now, io, notices| s.completed(now, op, outcome, &NoCursors, io, notices));
        true
    }

    fn book(&mut self, p: PartitionIdx) -> &mut Book {
        let i = self.parts.iter().position(|q| *q == p).expect("it is one of them");
        &mut self.books[i]
    }

    fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Durable { p, end, .. } => {
                let book = self.book(p);
                let durable = book.log.partition_point(|b| b.header.end().offset <= end.offset);
                assert!(durable > book.durable && book.tail(durable).at == end, "what becomes durable is what was given");
                let more = durable - std::mem::replace(&mut book.durable, durable);
                self.outcome.durable += more as u64;
            }
            Notice::RecordDurable { upto } => {
                let mut promises = 0;
                for book in self.books.iter_mut() {
                    let (done, left) = std::mem::take(&mut book.promising).into_iter().partition(|p| p.0 <= upto);
                    let done: Vec<(RecordTicket, Epoch)> = done;
                    (book.promising, promises) = (left, promises + done.len() as u64);
                    book.promised = done.into_iter().map(|d| d.1).max().unwrap_or(book.promised).max(book.promised);
                }
                self.outcome.promises += promises;
            }
            Notice::Truncated { p } => {
                let tail = self.store.log_view(p).end();
                let book = self.book(p);
                assert_eq!((tail.at, tail.chain_crc), (book.end().at, book.end().chain_crc), "the log ends where it was to");
                match book.truncation.take().expect("a truncation was asked for") {
                    Ok(n) => book.log.truncate(n),
                    Err(start) => (book.start, book.log) = (start, vec![]),
                }
                book.durable = book.log.len();
            }
            Notice::Verbatim { p, token, result } => self.verbatim(p, token, result),
            Notice::AppendFailed { p, .. } => {
                self.book(p).failed = true;
                self.outcome.failed += 1;
            }
            Notice::ReadOnly { .. } => self.books.iter_mut().for_each(|b| b.failed = true),
            Notice::Damage { what, .. } => panic!("the store found damage where none was done: {what}"),
            _ => {}
        }
    }

    /// Checks that a verbatim read has the stored bytes.
    fn verbatim(&mut self, p: PartitionIdx, token: u64, result: Result<(Vec<Bytes>, Position), Unreadable>) {
        let book = self.book(p);
        let (known, from) = book.reading.take().expect("a read was asked for");
        assert_eq!(known, token);
        let Ok((parts, end)) = result else { return };
        let expected = book.log.iter().filter(|b| (from.offset..end.offset).contains(&b.header.offset.get()));
        let expected: Vec<u8> = expected.flat_map(|b| b.bytes.to_vec()).collect();
        book.read_to = Some(end);
        assert!(parts.concat() == expected, "what is read verbatim from {from:?} to {end:?} is what was appended");
        self.outcome.read += 1;
    }

    fn step(&mut self) {
        self.now.ticks = self.now.ticks + std::time::Duration::from_micros(self.rng.below(200_000));
        self.now.unix_ns += 1_000_000;
        let i = self.rng.below(self.parts.len() as u64) as usize;
        let p = self.parts[i];
        if self.store.stats(p).read_only {
            self.books[i].failed = true;
        }
        match self.rng.below(100) {
            _ if self.books[i].failed => drop(self.complete()),
            0..30 => self.append(i, p),
            30..34 => self.truncate(i, p),
            34 => self.restart(i, p),
            35..38 => self.change_epoch(i, p),
            38..42 => {
                let at = self.books[i].tail(self.books[i].durable).at;
                if self.books[i].truncation.is_none() && self.books[i].promised_max > Epoch(0) {
                    self.books[i].told = self.books[i].told.max(at.offset);
                    self.with(|s, _, _, _| s.log_committed(p, at));
                }
            }
            42..46 => self.read(i, p),
            46..48 => self.with(|s, _, _, _| s.clear_suspect(p)),
            48..54 => self.with(|s, now, io, notices| s.tick(now, &NoCursors, io, notices)),
            _ => {
                self.with(|s, now, io, _| s.turn_end(now, &NoCursors, io));
                self.learn();
                for _ in 0..self.rng.below(5) {
                    self.complete();
                }
            }
        }
        self.look(i, p);
    }

    /// The view says what was given.
    fn look(&self, i: usize, p: PartitionIdx) {
        let (book, view) = (&self.books[i], self.store.log_view(p));
        if book.failed || self.disk.is_crashed() || book.leads {
            return;
        }
        let end = book.end();
        assert_eq!(view.end().at, end.at, "the view's end");
        let durable = if let Some(Err(start)) = book.truncation { start } else { book.tail(book.durable) };
        assert_eq!(view.durable().at.offset, end.at.offset.min(durable.at.offset), "the view's durable end");
        if book.truncation.is_none() {
            let mut epochs = vec![];
            assert!(!view.epochs(None, 1 << 20, &mut epochs));
            assert_eq!(epochs, book.epochs(book.log.len()), "epochs_agree: the view's epochs");
            assert_eq!(view.end().chain_crc, end.chain_crc);
        }
    }

    fn append(&mut self, i: usize, p: PartitionIdx) {
        let len_max = [20, 500, 3000, 20_000][self.rng.below(4) as usize];
        let len = self.rng.below(len_max) as usize;
        let (body, book) = (vec![self.rng.next_u64() as u8; len], &mut self.books[i]);
        if book.truncation.is_some() {
            return;
        }
        if book.leads {
            let taken = self.with(|s, now, io, _| s.append(now, p, [&body[..]].into_iter(), 1, len, io));
            self.outcome.led += taken.is_ok() as u64;
            // A batch that is full is sealed, and may fail before the turn ends.
            return self.learn();
        }
        if book.held.is_empty() {
            let (end, epoch) = (book.end(), Epoch(book.epoch.max(book.end().epoch.0)));
            let mut builder = BatchBuilder::default();
            (0..1 + self.rng.below(3)).for_each(|_| builder.push(self.now.unix_ns, &body));
            let (topic_id, partition) = (topic().id, PartitionId(i as u16));
            book.held.push_back(builder.seal(Stamp { topic_id, partition, epoch, at: end.at, prev_crc: end.chain_crc }));
        }
        while let Some(batch) = self.books[i].held.pop_front() {
            let kept = batch.clone();
            let is_settled = self.rng.chance(0.3);
            match self.with(|s, _, io, _| s.append_verbatim(p, batch, is_settled, io)) {
                Ok(_) => {
                    self.books[i].take(kept);
                    self.outcome.appended += 1;
                }
                Err((_, batch)) => {
                    assert_eq!(batch.bytes, kept.bytes, "a refusal hands the batch back");
                    self.books[i].held.push_front(batch);
                    return;
                }
            }
        }
    }

    /// Own batches are known when they are sealed.
    fn learn(&mut self) {
        for (i, &p) in self.parts.iter().enumerate() {
            let book = &mut self.books[i];
            let (from, end) = (book.tail(book.log.len()).at.offset, self.store.log_view(p).end().at.offset);
            // A batch that the store took just before it failed may still become durable.
            if book.truncation.is_some() || from >= end {
                continue;
            }
            for bytes in self.store.tail(p, from, end) {
                let batch = Batch::parse(&bytes, topic().id, PartitionId(i as u16)).expect("an own batch holds");
                assert!(batch.header.epoch.get() == book.epoch, "an own batch has the epoch that was set");
                book.take(batch);
            }
            assert_eq!(book.tail(book.log.len()).at.offset, end);
        }
    }

    /// Opens a new epoch, under another leader, under this node, or no longer under this node.
    fn change_epoch(&mut self, i: usize, p: PartitionIdx) {
        if self.books[i].truncation.is_some() || !self.books[i].held.is_empty() {
            return;
        }
        let promise = Epoch(self.books[i].epoch_max + 1);
        let ticket = self.with(|s, _, _, _| s.log_epoch(p, promise));
        // This seals the open batch.
        self.learn();
        let book = &mut self.books[i];
        if book.promised_max == Epoch(0) {
            // Until now the leader was alone: durable data is committed.
            book.told = book.told.max(book.tail(book.durable).at.offset);
        }
        (book.epoch, book.epoch_max, book.promised_max) = (promise.0, promise.0, promise);
        book.promising.push((ticket, promise));
        book.leads = self.rng.chance(0.3);
        if book.leads {
            self.with(|s, _, _, _| s.set_epoch(p, promise));
        }
        let holds = self.books[i].leads;
        self.with(|s, _, _, _| s.hold_until_committed(p, holds));
    }

    /// Truncates the log, mostly near its end.
    fn truncate(&mut self, i: usize, p: PartitionIdx) {
        let book = &mut self.books[i];
        if book.truncation.is_some() || book.leads || book.promised_max == Epoch(0) {
            return;
        }
        book.held.clear();
        let back_max = [3, 10, 1000][self.rng.below(3) as usize];
        let back = self.rng.below(back_max) as usize;
        let n = book.durable.saturating_sub(back);
        let to = book.tail(n).at;
        book.truncation = Some(Ok(n));
        book.next_epoch(self.rng);
        self.outcome.truncations += 1;
        self.with(|s, now, io, _| s.truncate(now, p, to, io));
    }

    fn restart(&mut self, i: usize, p: PartitionIdx) {
        let book = &mut self.books[i];
        if book.truncation.is_some() || book.leads || book.promised_max == Epoch(0) || self.rng.chance(0.5) {
            return;
        }
        book.held.clear();
        let id = book.epoch_max * 10_000 + self.rng.below(100);
        let offset = [0, book.end().at.offset, self.rng.below(1 << 20) as i64][self.rng.below(3) as usize];
        let at = Position { offset, count: id as i64 - 1, log_id: LogId(id) };
        let start = Tail { at, chain_crc: self.rng.next_u64() as u32, epoch: Epoch(0) };
        book.truncation = Some(Err(start));
        book.epoch = book.epoch_max + 1;
        book.epoch_max += 1;
        self.outcome.restarts += 1;
        self.with(|s, now, io, _| s.restart(now, p, at, start.chain_crc, io));
    }

    fn read(&mut self, i: usize, p: PartitionIdx) {
        let book = &self.books[i];
        if book.durable == 0 || book.truncation.is_some() {
            return;
        }
        let batch = book.log[self.rng.below(book.durable as u64) as usize].clone();
        let mut from = batch.header.start();
        if book.reading.is_none() && self.rng.chance(0.5) {
            if let Some(to) = book.read_to
                && self.rng.chance(0.5)
                && book.log[..book.durable].iter().any(|b| b.header.start() == to)
            {
                from = to;
            }
            self.next_token += 1;
            let (token, bytes_max) = (self.next_token, self.rng.below(50_000) as usize);
            self.books[i].reading = Some((token, from));
            return self.with(|s, _, io, _| s.read_verbatim(p, token, from, bytes_max, io));
        }
        match self.with(|s, _, io, _| s.fetch(p, from.offset, io)) {
            Fetch::Batch(found) => assert_eq!(found.bytes, batch.bytes, "what is fetched is what was appended"),
            Fetch::Pending | Fetch::Held => {}
            other => panic!("{other:?} at {from:?}"),
        }
    }
}
