//! One life of a node and its surroundings: disk, mesh, sockets and time, each as slow and as disordered as it may be.

mod natives;
mod passing;
mod readers;
mod sockets;

use super::any::AnyClient;
use super::book::{Book, Change, ChannelKey, EPHEMERAL_TOPICS, topic_name};
use super::client::{Client, Role};
use super::reach::Reach;
use super::reader::{ReaderKind, TopicPartition};
use super::{Plan, RunOutcome};
use crate::base::{ConnId, CoreId, DiskDone, DiskError, DiskOp, FileId, Lent, Now, OpId, Peer, Rng, Ticks, TopicRef};
use crate::config::Settings;
use crate::format::journal::RING_START;
use crate::log::recovery::Recovered;
use crate::metrics::stats::ShardStats;
use crate::seam::event::{Effect, Effects, Event};
use crate::seam::message::{MeshMessage, MovedSession, Ticket};
use crate::shard::Shard;
use crate::sim::disk::{Faults, SimDisk};
use crate::sim::startup::{NodeOptions, shards};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub const SEGMENT_BYTES: u64 = 64 * 1024;
const READ_CACHE_BYTES: u64 = 1 << 20;
/// Read memory, the scrubber's reads included.
const READ_BYTES: usize = READ_CACHE_BYTES as usize + 256 * 1024;
pub const MSG_TIMEOUT_MS: u64 = 5_000;
/// Deferred messages that are due later are copied forward, where they hold back much.
pub const FORWARD_AFTER_MS: u64 = 1_000;
const CLIENTS_MAX: usize = 8;

enum Mail {
    Mesh(MeshMessage),
    Moved { conn: u64, session: Box<MovedSession>, unread: Vec<u8> },
}

struct Socket {
    /// `None` while it moves.
    core: Option<usize>,
    /// Bytes that the client wrote and the node has not read.
    inbox: Vec<u8>,
    /// Memory for the next of them, if the node gave any.
    lent: Option<Lent>,
    /// Bytes that the node sent and the client has not read.
    wire: VecDeque<Bytes>,
    is_paused: bool,
    /// The node closes it once all is sent.
    is_closing: bool,
    /// The client went away while the connection moved.
    has_hung_up: bool,
    client: AnyClient,
}

#[derive(Clone, Copy)]
struct UnderWay {
    core: usize,
    /// The core's own number.
    op: OpId,
    /// True for a write of a journal.
    is_journal: bool,
    /// True for a write of its ring, not of a slot.
    is_ring: bool,
}

pub struct World<'a> {
    plan: &'a Plan,
    topics: u64,
    pub now: Now,
    disk: &'a mut SimDisk,
    rng: &'a mut Rng,
    book: &'a mut Book,
    outcome: &'a mut RunOutcome,
    shards: Vec<Shard>,
    /// Operations under way.
    ops: BTreeMap<OpId, UnderWay>,
    next_op: u64,
    mail: BTreeMap<(usize, usize), VecDeque<Mail>>,
    sockets: BTreeMap<u64, Socket>,
    next_conn: u64,
    is_turn_open: Vec<bool>,
    is_stopped: Vec<bool>,
    is_stopping: bool,
    /// True at the end: every client is quick and finishes its messages, and nothing fails.
    is_healed: bool,
    has_crashed: bool,
    /// The effect at which the node goes down.
    effects_left: Option<u64>,
    /// Steps during which the disk completes nothing.
    slow_left: u64,
    /// Depth of channels that a client knows, from the last answers.
    left: Vec<String>,
    /// Topics that were asked for; and those whose offset is being set, by ticket.
    known: BTreeMap<usize, TopicRef>,
    setting: BTreeMap<u64, TopicPartition>,
    /// Requests of an operator by ticket.
    operating: BTreeMap<u64, (ChannelKey, u16, Change)>,
    next_ticket: u64,
}

fn wall_ms(now: Now) -> u64 {
    now.unix_ns as u64 / 1_000_000
}

impl<'a> World<'a> {
    #[expect(clippy::too_many_arguments)]
    pub fn new(
        plan: &'a Plan,
        topics: u64,
        recovered: Recovered,
        now: Now,
        disk: &'a mut SimDisk,
        rng: &'a mut Rng,
        book: &'a mut Book,
        outcome: &'a mut RunOutcome,
    ) -> Self {
        let cores = recovered.journals.len() as u16;
        let mut settings = Settings {
            partitions: 1 + rng.below(plan.partitions_max) as u16,
            journal_bytes: recovered.journals[0].file_len,
            max_bytes_per_file: SEGMENT_BYTES,
            forward_deferred_after_ms: FORWARD_AFTER_MS,
            max_pub_waiting_size: 64 * 1024,
            direct_bytes: [4096, 16 * 1024, 1 << 20][rng.below(3) as usize],
            flush_bytes: [2000, 20_000][rng.below(2) as usize],
            read_cache_bytes: READ_CACHE_BYTES,
            tail_cache_bytes: [0, 64 * 1024][rng.below(2) as usize],
            msg_timeout_ms: MSG_TIMEOUT_MS,
            max_msg_timeout_ms: 2 * MSG_TIMEOUT_MS,
            // Some tens of open messages.
            channel_memory: 2 * 1024,
            delete_bytes_per_second: 400_000,
            ..Settings::default()
        };
        settings.receive_in_place_bytes = if settings.tail_cache_bytes == 0 { 100 } else { 64 * 1024 };
        let settings = Arc::new(settings);
        let node = NodeOptions { settings, node_id: [7; 16], cluster: None, lent_min: plan.lent_min };
        let shards = shards(recovered, rng, &node);
        book.wall_ms = wall_ms(now);
        disk.faults = plan.faults;
        disk.faults.capacity = if plan.space == 0 { 0 } else { disk.used_bytes() + plan.space };
        World {
            plan,
            topics,
            now,
            disk,
            rng,
            book,
            outcome,
            shards,
            ops: BTreeMap::new(),
            next_op: 0,
            mail: BTreeMap::new(),
            sockets: BTreeMap::new(),
            next_conn: 0,
            is_turn_open: vec![false; cores as usize],
            is_stopped: vec![false; cores as usize],
            is_stopping: false,
            is_healed: false,
            has_crashed: false,
            effects_left: None,
            slow_left: 0,
            left: vec![],
            known: BTreeMap::new(),
            setting: BTreeMap::new(),
            operating: BTreeMap::new(),
            next_ticket: 10,
        }
    }

    // ---- how a life goes

    pub fn live(&mut self) {
        self.effects_left = self.rng.chance(self.plan.crash).then(|| self.rng.below(self.plan.steps * 2));
        for _ in 0..self.plan.steps {
            self.random_step();
        }
        if self.effects_left.is_none() {
            self.stop();
        }
        self.note_read_only();
        self.go_down();
    }

    /// Healed, with a client at every channel, nothing is left to deliver, and a stop ends.
    /// Returns whether every FIN could become durable.
    pub fn quiet_node_drains(&mut self) -> bool {
        self.start_removes_ephemeral_topics();
        for _ in 0..self.plan.steps / 2 {
            self.random_step();
        }
        self.heal();
        self.drain_all();
        let gone: Vec<u64> = self.sockets.iter().filter(|(_, s)| s.client.has_failed()).map(|(conn, _)| *conn).collect();
        gone.into_iter().for_each(|conn| self.hang_up(conn));
        if self.plan.native > 0.0 {
            self.finish_producers();
        }
        if self.plan.pauses + self.plan.removals > 0.0 {
            self.unpause_all();
        }
        if self.plan.order > 0.0 {
            self.drain_readers();
        }
        for channel in self.book.channels().into_iter().filter(|c| ReaderKind::of(&c.1).is_none()) {
            // a SUB fails as a whole where a read-only core cannot make the channel
            let natively = self.plan.native > 0.0 && (self.rng.chance(self.plan.native) || !self.book.is_whole(&channel));
            if natively && self.book.homes.contains_key(&(0, channel.0)) {
                self.drain_natively(&channel);
                continue;
            }
            let conn = self.connect(Role::Drain);
            if let AnyClient::Nsq(client) = &mut self.sockets.get_mut(&conn).expect("just made").client {
                client.subscribe(self.book, channel, 50);
            }
        }
        self.drain_all();
        let since_ms = self.book.wall_ms;
        for _ in 0..40 {
            self.pass_time(1000);
            self.drain_all();
            self.book.none_is_late(since_ms, 0);
        }
        self.publish_at_rest();
        self.ephemeral_topics_go();
        let is_read_only = self.note_read_only();
        assert!(!is_read_only || self.plan.faults.write_error + self.plan.journal_error > 0.0, "nothing failed");
        self.ask_what_is_left();
        self.left.clear();
        assert!(!self.book.is_sick || self.plan.faults.write_error + self.plan.journal_error > 0.0, "nothing failed");
        self.book.producers_converge(self.plan.faults.write_error + self.plan.journal_error > 0.0);
        self.book.acked_survives_to_every_channel();
        self.ask_what_is_left();
        assert!(self.left.is_empty(), "quiet_node_drains: {:?}", self.left);
        for (conn, s) in &self.sockets {
            assert!(s.client.is_satisfied(), "quiet_node_drains: connection {conn} waits: {:?}", s.client);
        }
        self.stop();
        // a FIN of an ordered channel may wait for room in a journal that a failed file keeps full
        !(is_read_only || self.book.is_sick && self.plan.order > 0.0)
    }

    /// Every consumer waits, nothing else is to be done: a publish alone must bring its delivery, before any timer does.
    fn publish_at_rest(&mut self) {
        let conn = self.connect(Role::Publisher);
        if let AnyClient::Nsq(client) = &mut self.sockets.get_mut(&conn).expect("just made").client {
            client.publish_to_all(self.book, self.rng);
        }
        self.drain_all();
        if self.plan.native > 0.0 {
            self.publish_natively();
            self.drain_all();
        }
    }

    fn ask_what_is_left(&mut self) {
        for core in 0..self.shards.len() {
            let message = MeshMessage::StatsRequest { ticket: Ticket(1), topic: None, channel: None, clients: false };
            self.step(core, Event::Mesh { from: CoreId::HTTP, message });
            self.end_turn(core);
        }
    }

    /// Notes a read-only core; only recovery makes a core writable again that lost its journal.
    fn note_read_only(&mut self) -> bool {
        let n = self.shards.iter().filter(|s| s.read_only().is_some()).count() as u64;
        self.outcome.read_only += n;
        n > 0
    }

    fn heal(&mut self) {
        self.disk.faults = Faults { late: self.plan.faults.late, ..Faults::default() };
        (self.is_healed, self.slow_left) = (true, 0);
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        for core in 0..self.shards.len() {
            self.step(core, Event::Stop);
            // At rest no client publishes any more.
            let is_quiet = self.is_healed;
            for _ in 0..self.rng.below(20) {
                if !is_quiet {
                    self.random_step();
                }
            }
        }
        self.heal();
        self.drain_all();
        for _ in 0..12 {
            self.pass_time(1000);
            self.drain_all();
        }
        let all = self.is_stopped.iter().all(|&s| s) && self.sockets.is_empty();
        assert!(all, "quiet_node_drains: stopped {:?}, {} connections stay", self.is_stopped, self.sockets.len());
        self.outcome.stops += 1;
    }

    /// Takes the node down. Bytes that were sent may still reach their client; nothing else goes on.
    fn go_down(&mut self) {
        self.has_crashed = true;
        for s in self.sockets.values_mut() {
            let n = self.rng.below(s.wire.len() as u64 + 1) as usize;
            for bytes in s.wire.drain(..n) {
                s.client.receive(self.book, &bytes);
            }
        }
        self.outcome.crashes += 1;
        if self.rng.chance(self.plan.kill) { self.disk.kill() } else { self.disk.crash() }
    }

    // ---- effects

    fn trace(&mut self, words: [u64; 4]) {
        let t = &mut self.outcome.trace;
        words.into_iter().for_each(|w| *t = (t.rotate_left(5) ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }

    fn step(&mut self, core: usize, event: Event<'_>) {
        if self.has_crashed {
            return;
        }
        self.is_turn_open[core] = !matches!(event, Event::TurnEnd);
        let mut out = vec![];
        self.shards[core].step(self.now, event, &mut out);
        self.book.learn_topics(&self.shards[core], self.topics as usize);
        self.carry(core, out);
    }

    fn carry(&mut self, core: usize, effects: Effects) {
        for effect in effects {
            if let Some(left) = &mut self.effects_left {
                if *left == 0 {
                    self.has_crashed = true;
                    return;
                }
                *left -= 1;
            }
            match effect {
                Effect::Send { conn, bytes } => {
                    self.trace([1, conn.0, bytes.len() as u64, crc32fast::hash(&bytes) as u64]);
                    let s = self.sockets.get_mut(&conn.0).expect("it sends to a connection that it has");
                    assert!(s.core == Some(core) && !s.is_closing, "it sends on an open socket of its own");
                    if let AnyClient::Reader(reader) = &mut s.client {
                        reader.node_sent(self.book, &bytes);
                    }
                    s.wire.push_back(bytes.into());
                }
                Effect::SendPieces { conn, pieces } => {
                    let crc = pieces.iter().fold(0u64, |crc, piece| crc.rotate_left(5) ^ crc32fast::hash(piece) as u64);
                    self.trace([1, conn.0, pieces.iter().map(Bytes::len).sum::<usize>() as u64, crc]);
                    let s = self.sockets.get_mut(&conn.0).expect("it sends to a connection that it has");
                    assert!(s.core == Some(core) && !s.is_closing, "it sends on an open socket of its own");
                    self.outcome.lent += pieces.iter().filter(|piece| piece.len() >= self.plan.lent_min).count() as u64;
                    // lent memory stays lent until its client takes it
                    s.wire.extend(pieces);
                }
                Effect::ReceiveInto { conn, lent } => {
                    let s = self.sockets.get_mut(&conn.0).expect("it receives from a connection that it has");
                    assert!(s.core == Some(core) && !s.is_closing, "it receives from an open socket of its own");
                    assert!(s.lent.replace(lent).is_none(), "one piece of memory at a time");
                }
                Effect::Close { conn } => {
                    self.trace([2, conn.0, 0, 0]);
                    let s = self.sockets.get_mut(&conn.0).expect("it closes a connection that it has");
                    assert!(!std::mem::replace(&mut s.is_closing, true), "closed once");
                }
                Effect::PauseReading { conn } => self.sockets.get_mut(&conn.0).expect("known").is_paused = true,
                Effect::ResumeReading { conn } => self.sockets.get_mut(&conn.0).expect("known").is_paused = false,
                Effect::Move { conn, to, session, unread } => {
                    self.trace([3, conn.0, to.0 as u64, unread.len() as u64]);
                    self.outcome.moves += 1;
                    let s = self.sockets.get_mut(&conn.0).expect("known");
                    assert!(s.core == Some(core) && !s.is_closing, "it moves an open socket of its own");
                    (s.core, s.is_paused) = (None, false);
                    let mail = Mail::Moved { conn: conn.0, session, unread };
                    self.mail.entry((core, to.0 as usize)).or_default().push_back(mail);
                }
                Effect::Disk { op, request } => self.submit(core, op, request),
                Effect::Pass { to: CoreId::HTTP, message } => self.http_hears(message),
                Effect::Pass { to, message } => {
                    self.trace([4, core as u64, to.0 as u64, 0]);
                    assert_ne!(to.0 as usize, core, "nobody passes to itself");
                    self.mail.entry((core, to.0 as usize)).or_default().push_back(Mail::Mesh(message));
                }
                Effect::Dial { .. } | Effect::Ask(_) => unreachable!("these nodes are alone"),
                Effect::Halt { reason } => panic!("halted: {reason}"),
                Effect::Stopped => assert!(!std::mem::replace(&mut self.is_stopped[core], true), "stopped once"),
            }
        }
    }

    fn submit(&mut self, core: usize, op: OpId, request: DiskOp) {
        assert!(!self.is_stopped[core], "nothing is written after the stop: {:?}", request.file());
        let file = request.file().map_or(0, |f| crc32fast::hash(f.to_string().as_bytes()) as u64);
        let mut under_way = UnderWay { core, op, is_journal: false, is_ring: false };
        let what = match &request {
            DiskOp::Write { file, at, parts, .. } => {
                let crc = parts.iter().fold(0, |crc, p| crc << 1 ^ crc32fast::hash(p) as u64);
                under_way.is_journal = matches!(file, FileId::Journal(_));
                under_way.is_ring = under_way.is_journal && *at >= RING_START;
                at ^ crc << 20
            }
            DiskOp::Read { at, .. } => *at,
            DiskOp::Allocate { len, .. } | DiskOp::AllocateSegment { len, .. } | DiskOp::Truncate { len, .. } => *len,
            _ => 0,
        };
        self.outcome.beside += (under_way.is_ring && self.ops.values().any(|o| o.core == core && o.is_ring)) as u64;
        self.trace([5, core as u64, file, what]);
        self.outcome.removed +=
            matches!(&request, DiskOp::Remove { files } if matches!(files[..], [FileId::Topic(..), FileId::Topic(..)])) as u64;
        self.next_op += 1;
        self.ops.insert(OpId(self.next_op), under_way);
        self.disk.submit(OpId(self.next_op), request);
    }

    fn note_left(&mut self, stats: ShardStats) {
        let known = self.book.channels();
        // a read-only core may have a channel in memory whose record never became durable, and refuses subscriptions to it
        let is_read_only = self.shards.iter().any(|s| s.read_only().is_some());
        self.book.is_sick |= !stats.healthy;
        for p in stats.partitions {
            if p.topic.ends_with("#ephemeral") && self.plan.faults.write_error == 0.0 {
                self.left.push(format!("ephemeral_topics_go: {}/{}", p.topic, p.partition));
            }
            let is_known = |(topic, channel): &(usize, String), name: &str| {
                let is_there = !is_read_only || self.book.is_on(&(*topic, channel.clone()), p.partition);
                p.topic == topic_name(*topic) && name == channel && is_there
            };
            for c in &p.channels {
                let is_empty = (c.depth, c.in_flight_count, c.deferred_count) == (0, 0, 0);
                let stands_still = self.book.is_sick && ReaderKind::of(&c.channel) == Some(ReaderKind::Ordered);
                let is_read = ReaderKind::of(&c.channel).is_some() && !is_read_only;
                if !is_empty && !stands_still && (is_read || known.iter().any(|key| is_known(key, &c.channel))) {
                    self.left.push(format!("{}/{} {c:?}", p.topic, p.partition));
                }
            }
        }
    }

    // ---- arrivals

    fn end_turn(&mut self, core: usize) {
        self.step(core, Event::TurnEnd);
        let bytes = self.shards[core].read_bytes();
        assert!(bytes <= READ_BYTES, "read_memory_is_bounded: {bytes}");
    }

    fn disk_done(&mut self) -> Option<usize> {
        if self.has_crashed {
            return None;
        }
        let (id, mut outcome) = self.disk.complete()?;
        let UnderWay { core, op, is_journal, .. } = self.ops.remove(&id).expect("every operation completes once");
        if is_journal && !self.is_healed && self.rng.chance(self.plan.journal_error) {
            let file = FileId::Journal(core as u16);
            outcome = Err(DiskError::Io { file, call: "write", errno: 5, message: "injected".into() });
        }
        self.trace([6, id.0, outcome.is_ok() as u64, matches!(outcome, Ok(DiskDone::Read(_))) as u64]);
        self.step(core, Event::Disk { op, outcome });
        Some(core)
    }

    fn deliver_mail(&mut self, (from, to): (usize, usize)) -> usize {
        let queue = self.mail.get_mut(&(from, to)).expect("a queue that was seen");
        let mail = queue.pop_front();
        if queue.is_empty() {
            self.mail.remove(&(from, to));
        }
        match mail.expect("no queue is empty") {
            Mail::Mesh(message) => self.step(to, Event::Mesh { from: CoreId(from as u16), message }),
            Mail::Moved { conn, session, unread } => {
                let s = self.sockets.get_mut(&conn).expect("it lives until its Closed");
                s.core = Some(to);
                let has_hung_up = s.has_hung_up;
                self.step(to, Event::Adopted { conn: ConnId(conn), session });
                self.step(to, Event::Bytes { conn: ConnId(conn), bytes: &unread });
                if has_hung_up {
                    self.closed(conn);
                }
            }
        }
        to
    }

    // ---- time

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.below(of.len() as u64) as usize])
    }

    fn random_step(&mut self) {
        if self.has_crashed {
            return;
        }
        let is_early = self.plan.firsts && self.book.counts.acknowledged < 20;
        if self.sockets.len() < if is_early { 2 } else { CLIENTS_MAX } && !self.is_stopping {
            if self.plan.order > 0.0 && self.rng.chance(self.plan.order) {
                self.connect_reader();
            } else if self.plan.native > 0.0 && self.rng.chance(self.plan.native) {
                self.connect_natively();
            } else {
                let roles = [Role::Publisher, Role::Publisher, Role::Consumer, Role::Consumer, Role::Both, Role::Both];
                let role = roles[self.rng.below(roles.len() as u64) as usize];
                let role = if is_early { Role::Publisher } else { role };
                let is_passing = self.plan.ephemeral > 0.0 && self.rng.chance(self.plan.ephemeral);
                self.connect(if is_passing { Role::Passing } else { role });
            }
        }
        if self.slow_left > 0 {
            self.slow_left -= 1;
        } else if self.rng.chance(self.plan.slow) {
            self.slow_left = self.rng.below(150);
        }
        if self.plan.order > 0.0 && !self.is_stopping && self.rng.chance(0.02) {
            self.set_somewhere();
        }
        self.operate_somewhere();
        let conns: Vec<u64> = self.sockets.keys().copied().collect();
        let conn = self.pick(&conns);
        let mut core = self.rng.below(self.shards.len() as u64) as usize;
        match (self.rng.below(100), conn) {
            (0..26, Some(conn)) => {
                let s = self.sockets.get_mut(&conn).expect("picked");
                if s.inbox.len() < 60_000 {
                    s.client.act(self.book, self.rng);
                    self.write(conn);
                }
            }
            (26..46, Some(conn)) => drop(self.read(conn, false)),
            (46..60, Some(conn)) => drop(self.take(conn)),
            (60..76, _) => {
                let pairs: Vec<_> = self.mail.keys().copied().collect();
                if let Some(pair) = self.pick(&pairs) {
                    core = self.deliver_mail(pair);
                }
            }
            (76..94, _) if self.slow_left == 0 => core = self.disk_done().unwrap_or(core),
            (94, Some(conn)) if self.rng.chance(0.3) || self.sockets[&conn].client.nsq().is_some_and(Client::is_passing) => {
                let s = &self.sockets[&conn];
                if !s.has_hung_up {
                    self.hang_up(conn);
                }
            }
            (95..98, _) => {
                let ms = self.rng.below(40);
                self.pass_time(ms);
            }
            // All that clients hold times out, and publishes that wait.
            (98, _) if self.rng.chance(0.2) => self.pass_time(MSG_TIMEOUT_MS + 100),
            _ => {}
        }
        if self.rng.chance(0.6) {
            self.end_turn(core);
        }
    }

    fn tick(&mut self, core: usize) -> bool {
        let is_due = !self.has_crashed && self.shards[core].deadline().is_some_and(|at| at <= self.now.ticks);
        if is_due {
            self.step(core, Event::Tick);
        }
        is_due
    }

    fn pass_time(&mut self, ms: u64) {
        let d = Duration::from_millis(ms);
        self.now.ticks = Ticks(self.now.ticks.0) + d;
        self.now.unix_ns += d.as_nanos() as i64;
        self.book.wall_ms = wall_ms(self.now);
        self.sockets.values_mut().for_each(|s| s.client.time_passed(ms));
        for core in 0..self.shards.len() {
            self.tick(core);
        }
    }

    /// Runs until nothing moves without time passing.
    fn drain_all(&mut self) {
        let mut moved = [0; 4];
        for _ in 0..20_000 {
            moved = [0; 4];
            for conn in self.sockets.keys().copied().collect::<Vec<_>>() {
                if self.is_healed {
                    self.sockets.get_mut(&conn).expect("seen").client.act_quick(self.book);
                }
                self.write(conn);
                moved[0] += (self.read(conn, true) | self.take(conn)) as u32;
            }
            for pair in self.mail.keys().copied().collect::<Vec<_>>() {
                self.deliver_mail(pair);
                moved[1] += 1;
            }
            while self.disk_done().is_some() {
                moved[2] += 1;
            }
            for core in 0..self.shards.len() {
                let is_due = self.tick(core);
                if self.is_turn_open[core] {
                    self.end_turn(core);
                    moved[3] += 1;
                }
                moved[3] += is_due as u32;
            }
            if moved == [0; 4] || self.has_crashed {
                return;
            }
        }
        panic!("quiet_node_drains: no rest; sockets, mesh, disk and turns moved {moved:?} times in the last round");
    }
}
