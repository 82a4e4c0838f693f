//! The node's surroundings: disk, mesh, sockets and time, each as slow and as disordered as it may be.

use super::client::{Book, Client, EPHEMERAL, Role, topic_name};
use crate::base::{ConnId, CoreId, DiskDone, DiskError, DiskOp, FileId, Lent, Now, OpId, Peer, Rng, Ticks};
use crate::codec::nsq::Limits;
use crate::config::Settings;
use crate::seam::event::{Effect, Effects, Event};
use crate::seam::message::{MeshMessage, MovedSession};
use crate::shard::Shard;
use crate::sim::memory::{MemoryDisk, first_startup};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

enum Mail {
    Mesh(MeshMessage),
    Moved { conn: u64, session: Box<MovedSession>, unread: Vec<u8> },
}

pub struct Socket {
    /// `None` while it moves.
    core: Option<usize>,
    /// Bytes that the client wrote and the node has not read.
    pub inbox: Vec<u8>,
    /// Destination of the next bytes, if the node lent one.
    lent: Option<Lent>,
    /// Bytes that the node sent and the client has not taken.
    wire: VecDeque<Bytes>,
    paused: bool,
    /// The node closes it once all is sent.
    closing: bool,
    /// The client went away.
    hung_up: bool,
    sent_this_turn: bool,
    client: Client,
}

pub struct World {
    pub shards: Vec<Shard>,
    pub rng: Rng,
    pub now: Now,
    disk: MemoryDisk,
    /// Operations that were issued and not answered.
    pending: Vec<(usize, OpId, DiskOp)>,
    mail: BTreeMap<(usize, usize), VecDeque<Mail>>,
    pub sockets: BTreeMap<u64, Socket>,
    next_conn: u64,
    turn_open: Vec<bool>,
    stopped: Vec<bool>,
    pub no_space: bool,
    /// Core and number of the journal write that fails.
    pub fail_journal_at: Option<(usize, u64)>,
    /// Every client is quick and finishes what it gets.
    pub is_healed: bool,
    pub is_stopping: bool,
    pub is_faultless: bool,
    /// Times when everything in flight timed out.
    jumps: u32,
}

pub const MSG_TIMEOUT_MS: u64 = 5_000;

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let cores = 1 + rng.below(3) as u16;
        let partitions = 1 + rng.below(4) as u16;
        let settings = Arc::new(Settings {
            partitions,
            journal_bytes: 2 << 20,
            max_pub_waiting_size: 48 * 1024,
            direct_bytes: 24 * 1024,
            msg_timeout_ms: MSG_TIMEOUT_MS,
            max_msg_timeout_ms: 2 * MSG_TIMEOUT_MS,
            // Some tens of open messages.
            channel_memory: 2 * 1024,
            ..Settings::default()
        });
        let shard = |core| {
            let mut shard = first_startup(core, cores, &settings, seed ^ core as u64);
            // Small, so that clients are full and sockets paused often.
            let limits = Limits {
                output_full_bytes: 6000,
                output_stop_bytes: 20_000,
                replies_max: 12,
                in_place_min: 200,
                ..(*shard.limits).clone()
            };
            shard.limits = Arc::new(limits);
            shard
        };
        World {
            shards: (0..cores).map(shard).collect(),
            rng,
            now: Now { ticks: Ticks(1), unix_ns: 1_700_000_000_000_000_000 },
            disk: MemoryDisk::default(),
            pending: vec![],
            mail: BTreeMap::new(),
            sockets: BTreeMap::new(),
            next_conn: 0,
            turn_open: vec![false; cores as usize],
            stopped: vec![false; cores as usize],
            no_space: false,
            fail_journal_at: None,
            is_healed: false,
            is_stopping: false,
            is_faultless: false,
            jumps: 0,
        }
    }

    fn step(&mut self, core: usize, event: Event<'_>) {
        self.turn_open[core] = !matches!(event, Event::TurnEnd);
        let mut out = vec![];
        self.shards[core].step(self.now, event, &mut out);
        self.carry(core, out);
    }

    fn carry(&mut self, core: usize, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Pass { to: CoreId::HTTP, .. } => {}
                Effect::Send { conn, bytes } => {
                    let s = self.sockets.get_mut(&conn.0).expect("it sends to a connection that it has");
                    assert!(s.core == Some(core) && !s.closing, "it sends on an open socket of its own");
                    assert!(!std::mem::replace(&mut s.sent_this_turn, true), "one send per connection and turn");
                    s.wire.push_back(bytes.into());
                }
                Effect::SendPieces { conn, pieces } => {
                    let s = self.sockets.get_mut(&conn.0).expect("it sends to a connection that it has");
                    assert!(s.core == Some(core) && !s.closing, "it sends on an open socket of its own");
                    assert!(!std::mem::replace(&mut s.sent_this_turn, true), "one send per connection and turn");
                    s.wire.extend(pieces);
                }
                Effect::ReceiveInto { conn, lent } => {
                    let s = self.sockets.get_mut(&conn.0).expect("it receives from a connection that it has");
                    assert!(s.core == Some(core) && !s.closing, "it receives from an open socket of its own");
                    assert!(s.lent.replace(lent).is_none(), "one piece of memory at a time");
                }
                Effect::Close { conn } => {
                    let s = self.sockets.get_mut(&conn.0).expect("it closes a connection that it has");
                    assert!(!std::mem::replace(&mut s.closing, true), "closed once");
                }
                Effect::PauseReading { conn } => self.sockets.get_mut(&conn.0).expect("known").paused = true,
                Effect::ResumeReading { conn } => self.sockets.get_mut(&conn.0).expect("known").paused = false,
                Effect::Move { conn, to, session, unread } => {
                    let s = self.sockets.get_mut(&conn.0).expect("known");
                    assert!(s.core == Some(core) && s.wire.is_empty() && !s.closing);
                    (s.core, s.paused) = (None, false);
                    let mail = Mail::Moved { conn: conn.0, session, unread };
                    self.mail.entry((core, to.0 as usize)).or_default().push_back(mail);
                }
                Effect::Disk { op, request } => {
                    assert!(!self.stopped[core], "nothing is written after the stop: {:?}", request.file());
                    self.pending.push((core, op, request));
                }
                Effect::Pass { to, message } => {
                    assert_ne!(to.0 as usize, core, "nobody passes to itself");
                    self.mail.entry((core, to.0 as usize)).or_default().push_back(Mail::Mesh(message));
                }
                Effect::Dial { .. } | Effect::Ask(_) => unreachable!("these nodes are alone"),
                Effect::Halt { reason } => panic!("halted: {reason}"),
                Effect::Stopped => assert!(!std::mem::replace(&mut self.stopped[core], true), "stopped once"),
            }
        }
    }

    fn end_turn(&mut self, core: usize) {
        self.step(core, Event::TurnEnd);
        self.sockets.values_mut().filter(|s| s.core == Some(core)).for_each(|s| s.sent_this_turn = false);
    }

    fn perform(&mut self, core: usize, op: DiskOp) -> Result<DiskDone, DiskError> {
        match &op {
            DiskOp::Write { file: file @ FileId::Journal(_), .. } => {
                if let Some((failing, left)) = &mut self.fail_journal_at
                    && core == *failing
                {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        let message = "injected".into();
                        return Err(DiskError::Io { file: file.clone(), call: "write", errno: 5, message });
                    }
                }
            }
            DiskOp::Allocate { file, .. } if self.no_space => return Err(DiskError::NoSpace { file: file.clone() }),
            _ => {}
        }
        Ok(self.disk.perform(op))
    }

    fn disk_done(&mut self, i: usize) -> usize {
        let (core, op, request) = self.pending.swap_remove(i);
        let outcome = self.perform(core, request);
        self.step(core, Event::Disk { op, outcome });
        core
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
                (s.core, s.sent_this_turn) = (Some(to), false);
                let hung_up = s.hung_up;
                let conn = ConnId(conn);
                self.step(to, Event::Adopted { conn, session });
                self.step(to, Event::Bytes { conn, bytes: &unread });
                if hung_up {
                    self.closed(conn.0);
                }
            }
        }
        to
    }

    fn closed(&mut self, conn: u64) {
        let s = self.sockets.remove(&conn).expect("closed once");
        self.step(s.core.expect("it does not move"), Event::Closed { conn: ConnId(conn) });
    }

    /// The client writes on, the node reads what there is of it, in any cut.
    fn read(&mut self, conn: u64, all: bool) -> bool {
        let Some(s) = self.sockets.get_mut(&conn) else { return false };
        let Some(core) = s.core.filter(|_| !s.inbox.is_empty() && !s.closing && !s.hung_up) else { return false };
        // Bytes that were under way when the socket was paused still come.
        if s.paused && (all || !self.rng.chance(0.1)) {
            return false;
        }
        let n = if all { s.inbox.len() } else { 1 + self.rng.below(s.inbox.len() as u64) as usize };
        let Some(mut lent) = s.lent.take() else {
            let bytes: Vec<u8> = s.inbox.drain(..n).collect();
            self.step(core, Event::Bytes { conn: ConnId(conn), bytes: &bytes });
            return true;
        };
        let n = lent.take(&mut s.inbox, n);
        // it comes back when all is there, and sometimes before
        if lent.wanted > 0 && !n.is_multiple_of(3) {
            s.lent = Some(lent);
        } else {
            self.step(core, Event::Received { conn: ConnId(conn), lent });
        }
        true
    }

    /// The client takes a piece of its output.
    fn take(&mut self, conn: u64, book: &mut Book) -> bool {
        let Some(s) = self.sockets.get_mut(&conn) else { return false };
        let Some(core) = s.core else { return false };
        let Some(bytes) = s.wire.pop_front() else {
            if s.closing {
                self.closed(conn);
                return true;
            }
            return false;
        };
        s.client.receive(book, &bytes, self.jumps);
        let (conn, first) = (ConnId(conn), self.rng.below(bytes.len() as u64 + 1) as usize);
        for bytes in [first, bytes.len() - first].into_iter().filter(|&n| n > 0) {
            self.step(core, Event::Sent { conn, bytes });
        }
        true
    }

    /// Disconnects clients that said CLS.
    pub fn hang_up_closing(&mut self) {
        let conns: Vec<u64> = self.sockets.iter().filter(|(_, s)| s.client.is_closing()).map(|(conn, _)| *conn).collect();
        conns.into_iter().for_each(|conn| self.hang_up(conn));
    }

    fn hang_up(&mut self, conn: u64) {
        let s = self.sockets.get_mut(&conn).expect("known");
        s.hung_up = true;
        if s.core.is_some() {
            self.closed(conn);
        }
    }

    pub fn connect(&mut self, client: Client) -> u64 {
        self.next_conn += 1;
        let core = self.rng.below(self.shards.len() as u64) as usize;
        let socket = Socket {
            core: Some(core),
            inbox: b"  V2".to_vec(),
            lent: None,
            wire: VecDeque::new(),
            paused: false,
            closing: false,
            hung_up: false,
            sent_this_turn: false,
            client,
        };
        self.sockets.insert(self.next_conn, socket);
        let conn = ConnId(self.next_conn);
        self.step(core, Event::Opened { conn, peer: Peer("test:1".into()) });
        self.next_conn
    }

    /// A client that the test speaks for; its bytes are written before the next event.
    pub fn client(&mut self, conn: u64) -> &mut Client {
        &mut self.sockets.get_mut(&conn).expect("known").client
    }

    pub fn speak(&mut self, conn: u64, say: impl FnOnce(&mut Client, &mut Rng)) {
        say(&mut self.sockets.get_mut(&conn).expect("known").client, &mut self.rng);
    }

    fn write(&mut self, conn: u64) {
        let s = self.sockets.get_mut(&conn).expect("known");
        s.inbox.append(&mut s.client.out);
    }

    pub fn stop(&mut self, core: usize) {
        self.step(core, Event::Stop);
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.below(of.len() as u64) as usize])
    }

    pub fn random_step(&mut self, book: &mut Book) {
        if self.sockets.len() < 8 && !self.is_stopping {
            let role = Role::draw(&mut self.rng);
            self.connect(Client::new(role));
        }
        let conns: Vec<u64> = self.sockets.keys().copied().collect();
        let conn = self.pick(&conns);
        let mut core = self.rng.below(self.shards.len() as u64) as usize;
        match self.rng.below(100) {
            0..28 => {
                if let Some(conn) = conn {
                    let s = self.sockets.get_mut(&conn).expect("picked");
                    if s.inbox.len() < 60_000 {
                        s.client.act(book, &mut self.rng);
                        self.write(conn);
                    }
                }
            }
            28..48 => {
                if let Some(conn) = conn {
                    self.read(conn, false);
                }
            }
            48..62 => {
                if let Some(conn) = conn {
                    self.take(conn, book);
                }
            }
            62..80 => {
                let pairs: Vec<_> = self.mail.keys().copied().collect();
                if let Some(pair) = self.pick(&pairs) {
                    core = self.deliver_mail(pair);
                }
            }
            80..94 if !self.pending.is_empty() => {
                let i = self.rng.below(self.pending.len() as u64) as usize;
                core = self.disk_done(i);
            }
            94 if self.rng.chance(0.3) => {
                if let Some(conn) = conn.filter(|c| !self.sockets[c].hung_up) {
                    self.hang_up(conn);
                }
            }
            95..97 => {
                let ms = self.rng.below(8);
                self.pass_time(ms);
            }
            _ => {}
        }
        if self.rng.chance(0.6) {
            self.end_turn(core);
        }
    }

    pub fn pass_time(&mut self, ms: u64) {
        let d = Duration::from_millis(ms);
        self.now.ticks = self.now.ticks + d;
        self.now.unix_ns += d.as_nanos() as i64;
        for core in 0..self.shards.len() {
            if self.shards[core].deadline().is_some_and(|at| at <= self.now.ticks) {
                self.step(core, Event::Tick);
            }
        }
    }

    /// Lets everything arrive that is under way, then lets all that clients hold time out.
    pub fn jump(&mut self, book: &mut Book) {
        let no_space = std::mem::replace(&mut self.no_space, false);
        self.drain_all(book);
        self.jumps += 1;
        self.pass_time(MSG_TIMEOUT_MS + 100);
        self.no_space = no_space;
        (0..self.shards.len()).for_each(|core| self.end_turn(core));
    }

    /// Runs until nothing moves without time passing.
    pub fn drain_all(&mut self, book: &mut Book) {
        for _ in 0..20_000 {
            let mut moved = false;
            for conn in self.sockets.keys().copied().collect::<Vec<_>>() {
                if self.is_healed {
                    self.client(conn).act_quick();
                }
                self.write(conn);
                moved |= self.read(conn, true) | self.take(conn, book);
            }
            for pair in self.mail.keys().copied().collect::<Vec<_>>() {
                self.deliver_mail(pair);
                moved = true;
            }
            while !self.pending.is_empty() {
                let i = self.rng.below(self.pending.len() as u64) as usize;
                self.disk_done(i);
                moved = true;
            }
            for core in 0..self.shards.len() {
                if self.shards[core].deadline().is_some_and(|at| at <= self.now.ticks) {
                    self.step(core, Event::Tick);
                    moved = true;
                }
                if self.turn_open[core] {
                    self.end_turn(core);
                    moved = true;
                }
            }
            if !moved {
                if self.is_faultless && !self.is_stopping {
                    self.check_answered();
                }
                return;
            }
        }
        panic!("the node never comes to rest");
    }

    /// No message is left in the channels that a client heard of.
    pub fn check_empty(&self, book: &Book) {
        let known = book.channels();
        for shard in &self.shards {
            for p in shard.stats(Ticks(0), None, None, false).partitions {
                let is_known = |channel: &str| known.iter().any(|(t, c)| p.topic == topic_name(*t) && c == channel);
                for c in p.channels.into_iter().filter(|c| is_known(&c.channel)) {
                    let left = (c.depth, c.in_flight_count, c.deferred_count);
                    assert_eq!(left, (0, 0, 0), "core {} {}/{} {}", shard.engine.core.id.0, p.topic, p.partition, c.channel);
                }
            }
        }
        self.check_answered();
    }

    /// Checks that an ephemeral topic is removed with its last client, on all cores and with its files.
    pub fn check_ephemeral_topic_goes(&mut self, book: &mut Book) {
        let passing: Vec<u64> = self.sockets.iter().filter(|(_, s)| s.client.is_passing()).map(|(conn, _)| *conn).collect();
        passing.into_iter().for_each(|conn| self.hang_up(conn));
        self.drain_all(book);
        let conn = self.connect(Client::new(Role::Drain));
        self.client(conn).subscribe(book, EPHEMERAL, "c#ephemeral".into(), 5);
        self.drain_all(book);
        self.hang_up(conn);
        self.drain_all(book);
        let name = topic_name(EPHEMERAL);
        for shard in &self.shards {
            let e = &shard.engine;
            assert!(e.core.topics.known(&name).is_none() && !e.core.topics.is_pending(&name), "core {} knows it", e.core.id.0);
            assert!(e.core.partitions.iter().all(|(_, p)| *p.topic.name != *name), "core {} has a partition of it", e.core.id.0);
        }
        let left: Vec<_> = self.disk.files().filter(|f| f.to_string().contains(&name)).collect();
        assert!(left.is_empty(), "files are left: {left:?}");
    }

    /// Checks at rest that every command has its answer: a command that waits for room or another core was woken, not timed out.
    fn check_answered(&self) {
        for (conn, s) in &self.sockets {
            assert!(s.client.is_satisfied(), "connection {conn} waits: {:?}", s.client);
        }
    }

    pub fn check_stopped(&self) {
        assert!(self.stopped.iter().all(|&s| s), "{:?}", self.stopped);
        assert!(self.sockets.is_empty(), "{} connections stay", self.sockets.len());
    }
}
