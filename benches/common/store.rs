//! One core's store on the real disk: [`Store`] over [`ShardDisk`], on a glommio executor, without sockets and sessions.

use ringmq::base::{CoreId, Epoch, FileId, Now, OpId, PartitionDir, PartitionId, Position, Ticks, TopicId, TopicName};
use ringmq::config::Settings;
use ringmq::disk::{BlockingStorage, Completion, DiskOptions, ShardDisk, files};
use ringmq::format::batch::Batch;
use ringmq::format::cursor::CursorImage;
use ringmq::format::journal::JournalIdentity;
use ringmq::format::storage::Storage as _;
use ringmq::log::{AppendTicket, CursorSource, Fetch, Io, Notice, PartitionIdx, Refusal, SearchBy, Store, StoreOptions};
use ringmq::ring::Bell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const BEGUN_UNIX_NS: i64 = 1_700_000_000_000_000_000;

/// Cursors of no channel: the store has none to write.
struct NoCursors;

impl CursorSource for NoCursors {
    fn cursors(&self, _: PartitionIdx) -> Vec<CursorImage> {
        vec![]
    }
}

pub struct RealStore {
    pub store: Store,
    pub p: PartitionIdx,
    /// Operations of the disk so far.
    pub operations: u64,
    /// Time that messages are stamped with, beside the time that passes.
    pub ahead_ns: i64,
    disk: ShardDisk,
    bell: Bell,
    begun: Instant,
    io: Io,
    completions: Vec<Completion>,
    notices: Vec<Notice>,
    durable: AppendTicket,
    found: Option<Option<Position>>,
}

impl RealStore {
    /// Creates the files that an executor needs before it starts: the probe file and a journal of written zeros.
    pub fn prepare(data: &Path, settings: &Settings) {
        files::write_probe(data).expect("the folder is writable");
        BlockingStorage::new(data).fill(&FileId::Journal(0), settings.journal_bytes).expect("there is room for the journal");
    }

    /// Store with one partition, on a prepared folder.
    pub async fn start(data: &Path, settings: &Settings) -> Self {
        let bell = Bell::new();
        let disk = ShardDisk::start(data, DiskOptions::default(), bell.clone()).await.expect("the disk works");
        let file_len = settings.journal_bytes;
        let journal = JournalIdentity { journal_id: [1; 16], generation: 1, file_len, slot_sequence: 1 };
        let mut store = Store::new(StoreOptions::new(settings, CoreId(0), Epoch(1), journal));
        let (begun, mut io) = (Instant::now(), vec![]);
        let topic = TopicName::new("bench").expect("a valid name");
        let dir = Arc::new(PartitionDir { topic, topic_id: TopicId([1; 16]), partition: PartitionId(0) });
        let p = store.create(Now { ticks: Ticks(0), unix_ns: BEGUN_UNIX_NS }, dir, &mut io);
        let (completions, notices, durable) = (vec![], vec![], AppendTicket(0));
        let mut this =
            RealStore { store, p, operations: 0, ahead_ns: 0, disk, bell, begun, io, completions, notices, durable, found: None };
        this.settle().await;
        this
    }

    fn now(&self) -> Now {
        let ns = self.begun.elapsed().as_nanos() as u64;
        Now { ticks: Ticks(ns), unix_ns: BEGUN_UNIX_NS + ns as i64 + self.ahead_ns }
    }

    /// Timestamp of the next message.
    pub fn unix_ns(&self) -> i64 {
        self.now().unix_ns
    }

    fn carry(&mut self) {
        self.operations += self.io.len() as u64;
        self.io.drain(..).for_each(|(op, request): (OpId, _)| self.disk.submit(op, request));
    }

    /// Ends the turn: the appends are sealed and on their way.
    fn turn(&mut self) {
        let now = self.now();
        if self.store.deadline().is_some_and(|at| at <= now.ticks) {
            self.store.tick(now, &NoCursors, &mut self.io, &mut self.notices);
        }
        self.store.turn_end(now, &NoCursors, &mut self.io);
        for notice in self.notices.drain(..) {
            match notice {
                Notice::Durable { tickets_upto, .. } => self.durable = tickets_upto,
                Notice::Found { result, .. } => self.found = Some(result.expect("the commit log can be read")),
                Notice::Readable { .. } | Notice::Room | Notice::RecordDurable { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        self.carry();
    }

    /// A turn, after something of the disk has come in.
    pub async fn pass(&mut self) {
        self.turn();
        if self.disk.pending() > 0 && !self.disk.has_done() {
            self.bell.wait().await;
        }
        self.disk.drain(&mut self.completions);
        let now = self.now();
        for Completion { op, outcome } in self.completions.drain(..) {
            self.store.completed(now, op, outcome, &NoCursors, &mut self.io, &mut self.notices);
        }
        self.turn();
    }

    /// Runs until no operation is under way.
    pub async fn settle(&mut self) {
        self.pass().await;
        while self.disk.pending() > 0 || self.disk.has_done() {
            self.pass().await;
        }
    }

    /// Appends one batch; waits while the store has no room.
    pub async fn append(&mut self, bodies: &[Vec<u8>]) -> AppendTicket {
        let bytes = bodies.iter().map(Vec::len).sum();
        loop {
            let (now, all) = (self.now(), bodies.iter().map(Vec::as_slice));
            match self.store.append(now, self.p, all, bodies.len(), bytes, &mut self.io) {
                Ok(ticket) => return ticket,
                Err(Refusal::Busy) => self.pass().await,
                Err(other) => panic!("{other}"),
            }
        }
    }

    pub fn is_durable(&self, ticket: AppendTicket) -> bool {
        self.durable >= ticket
    }

    pub async fn until_durable(&mut self, ticket: AppendTicket) {
        while !self.is_durable(ticket) {
            self.pass().await;
        }
    }

    /// The batch at `offset`; `None` at the durable end.
    pub async fn read(&mut self, offset: i64) -> Option<Batch> {
        loop {
            match self.store.fetch(self.p, offset, &mut self.io) {
                Fetch::Batch(batch) => {
                    self.carry();
                    return Some(batch);
                }
                Fetch::Pending => self.pass().await,
                Fetch::End => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    pub async fn search(&mut self, by: SearchBy) -> Option<Position> {
        self.store.search(self.p, by, 1, &mut self.io);
        loop {
            self.pass().await;
            if let Some(found) = self.found.take() {
                return found;
            }
        }
    }

    pub async fn stop(mut self) {
        self.settle().await;
        self.disk.stop().await;
    }
}
