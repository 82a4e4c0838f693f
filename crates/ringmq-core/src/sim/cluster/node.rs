//! A node: its disk, which stays, and its process, which comes and goes.

use super::agents::Seat;
use super::check::CheckReason;
use super::events::Happening;
use super::plan::Coordination;
use super::world::{MS, Phase, SECOND, World};
use crate::base::NodeId;
use crate::base::{FileId, Now, OpId, Ticks};
use crate::config::Settings;
use crate::format::snapshot::Doubt;
use crate::log::recovery::{JOURNAL_BYTES_MIN, RecoverOptions, Recovered, recover};
use crate::seam::cluster::{ClusterOptions, Fact};
use crate::seam::event::Event;
use crate::seam::message::{MeshMessage, MovedSession};
use crate::shard::Shard;
use crate::sim::disk::{Faults, SimDisk};
use crate::sim::node::rot;
use crate::sim::node::world::{FORWARD_AFTER_MS, MSG_TIMEOUT_MS, SEGMENT_BYTES};
use crate::sim::startup::{NodeOptions, shards};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Writes of a journal that are remembered. Half as many are more than are in flight at a time.
pub const JOURNAL_WRITES: usize = 16;

/// The cluster's id.
pub const CLUSTER: [u8; 16] = [0xc5; 16];

pub struct Node {
    pub disk: SimDisk,
    pub id: NodeId,
    pub life: u64,
    pub running: Option<Running>,
    /// Time until which the process is paused.
    pub paused_until: u64,
    /// Events for the paused process, in the order in which the process gets them when the pause ends.
    pub held: Vec<Happening>,
    /// Time until which the disk completes nothing.
    pub disk_stands_until: u64,
    /// Offsets of the node's clocks from the simulation's time: when it was switched on, and the error of its wall clock.
    pub ticks_base: u64,
    pub wall_skew: i64,
    pub is_store_away: bool,
    /// Revision up to which its coordinator has read the metadata, in this life.
    pub read: u64,
    /// Cluster and revision of the etcd that its data path remembers.
    pub remembered: Option<([u8; 16], u64)>,
    /// Time until which it has no power.
    pub is_off_until: u64,
    /// Time until which its disk is full.
    pub is_full_until: u64,
    /// True while its disk often fails writes.
    pub is_shaky: bool,
    /// The next write of a journal of this life fails when it completes.
    pub fails_journal: bool,
    /// True if durable data on it was damaged.
    pub is_damaged: bool,
    /// A write or a sync failed in this life: something of it is read-only until a restart.
    pub has_failed: bool,
    pub cores: u16,
    pub generation: u64,
}

pub enum Mail {
    Mesh(MeshMessage),
    Moved { wire: u64, side: usize, session: Box<MovedSession>, unread: Vec<u8> },
}

/// A node's process.
pub struct Running {
    pub shards: Vec<Shard>,
    /// Operations under way: core, its own number, and whether it is a journal's write.
    pub ops: BTreeMap<OpId, (usize, OpId, bool)>,
    pub next_op: u64,
    pub mail: BTreeMap<(usize, usize), VecDeque<Mail>>,
    pub is_turn_open: Vec<bool>,
    pub is_stopped: Vec<bool>,
    pub is_stopping: bool,
    /// Times of each core's next Tick in the queue.
    pub tick_at: Vec<u64>,
    /// The effect at which it goes down.
    pub effects_left: Option<u64>,
    /// The latest writes of each core's journal: where, and how long.
    pub journal: Vec<VecDeque<(u64, u64)>>,
    /// Doubts that its recovery found, by partition.
    pub doubts: BTreeMap<super::meta::TopicPartition, Doubt>,
    /// The node's conversation with the etcd.
    pub seat: Option<Box<Seat>>,
}

impl Node {
    pub fn new(disk: SimDisk, id: NodeId, ticks_base: u64) -> Node {
        Node {
            disk,
            id,
            life: 0,
            running: None,
            paused_until: 0,
            held: vec![],
            disk_stands_until: 0,
            ticks_base,
            wall_skew: 0,
            is_store_away: false,
            read: 0,
            remembered: None,
            is_off_until: 0,
            is_full_until: 0,
            is_shaky: false,
            fails_journal: false,
            is_damaged: false,
            has_failed: false,
            cores: 1,
            generation: 0,
        }
    }

    /// Both clocks of the node.
    pub fn clocks(&self, now: u64) -> Now {
        Now { ticks: Ticks(self.ticks_base + now), unix_ns: 1_700_000_000_000_000_000 + now as i64 + self.wall_skew }
    }
}

/// Options of a recovery.
pub fn recover_options(cores: u16, unix_ns: i64, seed: u64, is_clustered: bool) -> RecoverOptions {
    RecoverOptions {
        cores,
        journal_bytes: JOURNAL_BYTES_MIN + 64 * 1024,
        segment_bytes: SEGMENT_BYTES,
        now_unix_ns: unix_ns,
        producers: Default::default(),
        seed,
        accept_lost_journal: 0,
        is_clustered,
    }
}

/// The same with bounds that the largest message just fits in.
fn little_memory(settings: Settings) -> Settings {
    Settings {
        max_pub_waiting_size: 42 * 1024,
        read_cache_bytes: 64 * 1024,
        tail_cache_bytes: settings.tail_cache_bytes.min(4 * 1024),
        replica_window_bytes: 4 * 1024,
        // A few open messages.
        channel_memory: 256,
        spare_bytes: 0,
        ..settings
    }
}

impl World {
    pub fn is_clustered(&self) -> bool {
        self.plan.coordination != Coordination::Alone
    }

    pub fn start(&mut self, n: usize) {
        if self.nodes[n].running.is_some() {
            return;
        }
        let off_until = self.nodes[n].is_off_until;
        if off_until > self.now {
            return self.queue.put(off_until, Happening::Start { node: n });
        }
        let drawn = 1 + self.rng.below(self.plan.cores_max) as u16;
        let cores = if self.plan.relays() { self.plan.cores_max as u16 } else { drawn };
        let copies = self.faults.damages.copies;
        if copies > 0.0 && self.rng.chance(copies) {
            let rotten = rot::strike(&mut self.nodes[n].disk, &mut self.rng);
            self.say(|| format!("rot of a copy on node{n}: {rotten:?}"));
        }
        let recovered = self.recover_somehow(n, cores);
        self.outcome.startups += 1;
        self.say(|| format!("node{n} starts with {cores} cores, generation {}", recovered.generation));
        self.look_at(n, &recovered, CheckReason::Start);
        let node = &mut self.nodes[n];
        assert!(recovered.generation > node.generation, "ids_and_offsets_never_repeat: the generation did not rise");
        assert_eq!(recovered.node_id, node.id.0, "a node keeps its id");
        (node.generation, node.cores, node.life) = (recovered.generation, cores, node.life + 1);
        (node.has_failed, node.read) = (false, 0);
        self.meta.started(n, recovered.generation);
        self.book.homes.retain(|(node, _), _| *node != n);
        let doubts = recovered.partitions.iter();
        let doubts =
            doubts.filter_map(|p| Some(((self.check.topic(&p.topic.name)?, p.dir.partition.0), p.damage.doubt()))).collect();
        let shards = self.make_shards(n, recovered);
        let seat = (self.plan.coordination == Coordination::Etcd).then(|| self.new_seat(n));
        self.nodes[n].fails_journal = false;
        self.nodes[n].is_shaky = self.faults.shaky_start > 0.0 && self.rng.chance(self.faults.shaky_start);
        if self.nodes[n].is_shaky {
            let until = self.now + self.rng.below(400 * MS);
            self.queue.put(until, Happening::Mended(super::events::FaultEnd::Shaky(n)));
        }
        let faults = self.disk_faults(n);
        let node = &mut self.nodes[n];
        node.disk.faults = faults;
        let all = cores as usize;
        node.running = Some(Running {
            shards,
            ops: BTreeMap::new(),
            next_op: 0,
            mail: BTreeMap::new(),
            is_turn_open: vec![false; all],
            is_stopped: vec![false; all],
            is_stopping: false,
            tick_at: vec![u64::MAX; all],
            effects_left: None,
            journal: vec![VecDeque::new(); all],
            doubts,
            seat,
        });
        (0..all).for_each(|core| self.arm_tick(n, core));
        if self.is_clustered() {
            let life = self.nodes[n].life;
            let at = self.soon(5 * MS);
            if self.plan.coordination == Coordination::Etcd {
                return self.queue.put(at, Happening::AgentTick { node: n, life });
            }
            self.queue.put(at, Happening::Look { node: n, life });
            match self.plan.coordination {
                Coordination::Store => self.queue.put(at, Happening::Renew { node: n, life }),
                _ => self.tell_all_cores(n, &Fact::Lease { until: Ticks(u64::MAX), revision: 0 }),
            }
        }
    }

    /// Recovers, going down on the way now and then.
    fn recover_somehow(&mut self, n: usize, cores: u16) -> Recovered {
        let is_faulty = self.phase == Phase::Faulty;
        let (chance, late) = if is_faulty { (self.faults.recovery_crash, self.faults.late) } else { (0.0, 0.0) };
        for round in 0.. {
            let cut_short = round < 3 && self.rng.chance(chance);
            let crash_after = cut_short.then(|| self.rng.below(200));
            let unix_ns = self.nodes[n].clocks(self.now).unix_ns;
            let options = recover_options(cores, unix_ns, self.rng.next_u64(), self.is_clustered());
            let disk = &mut self.nodes[n].disk;
            disk.faults = Faults { late, crash_after, ..Faults::default() };
            match recover(disk, &options) {
                Ok(recovered) => {
                    disk.faults.crash_after = None;
                    return recovered;
                }
                Err(e) => {
                    assert!(disk.is_crashed(), "recovery gave up: {e}");
                    self.outcome.recovery_crashes += 1;
                    if self.rng.chance(0.4) { disk.kill() } else { disk.crash() }
                }
            }
        }
        unreachable!("the last rounds do not crash")
    }

    /// Faults of a running node's disk.
    pub fn disk_faults(&self, n: usize) -> Faults {
        if self.phase != Phase::Faulty {
            return Faults { late: self.faults.late, ..Faults::default() };
        }
        let f = &self.faults;
        let is_victim = self.victim == Some(n);
        Faults {
            read_error: f.read_error,
            write_error: f.write_error + if self.nodes[n].is_shaky { 0.03 } else { 0.0 },
            sync_error: f.sync_error,
            short_write: f.short_write,
            no_space: if self.nodes[n].is_full_until > self.now { 1.0 } else { f.no_space },
            capacity: 0,
            late: f.late,
            crash_after: None,
            lost_write: if is_victim { f.damages.lost_write } else { 0.0 },
            misdirected_write: if is_victim { f.damages.misdirected_write } else { 0.0 },
        }
    }

    fn settings(&mut self, journal_bytes: u64) -> Settings {
        let (rng, memory) = (&mut self.rng, self.faults.memory);
        let is_in_place = memory.in_place > 0.0 && rng.chance(memory.in_place);
        let is_small = memory.small > 0.0 && rng.chance(memory.small);
        let few = [0, 1, 5, 50][if memory.ephemeral > 0.0 { rng.below(4) as usize } else { 0 }];
        let mem_queue_size = if memory.ephemeral > 0.0 { few } else { Settings::default().mem_queue_size };
        let settings = Settings {
            partitions: 1,
            journal_bytes,
            max_bytes_per_file: SEGMENT_BYTES,
            forward_deferred_after_ms: FORWARD_AFTER_MS,
            max_pub_waiting_size: 64 * 1024,
            direct_bytes: [4096, 16 * 1024, 1 << 20][rng.below(3) as usize],
            flush_bytes: [2000, 20_000][rng.below(2) as usize],
            read_cache_bytes: 1 << 20,
            tail_cache_bytes: [0, 64 * 1024][rng.below(2) as usize],
            msg_timeout_ms: MSG_TIMEOUT_MS,
            max_msg_timeout_ms: 2 * MSG_TIMEOUT_MS,
            // Some tens of open messages.
            channel_memory: 2 * 1024,
            delete_bytes_per_second: 400_000,
            receive_in_place_bytes: if is_in_place { 1 + rng.below(2000) } else { 64 * 1024 },
            replica_window_bytes: [64 * 1024, 8 << 20][rng.below(2) as usize],
            catch_up_rate: [0, 0, 400_000][rng.below(3) as usize],
            replica_retry_ms: 20 + rng.below(80),
            replica_heartbeat_ms: 20 + rng.below(80),
            follower_limit_ms: 300 + rng.below(500),
            replica_write_limit_ms: 1000 + rng.below(800),
            cursor_sync_interval_ms: 5 + rng.below(40),
            mem_queue_size,
            ..Settings::default()
        };
        if is_small { little_memory(settings) } else { settings }
    }

    fn make_shards(&mut self, n: usize, recovered: Recovered) -> Vec<Shard> {
        let settings = Arc::new(self.settings(recovered.journals[0].file_len));
        let generation = recovered.generation;
        let cluster = self.is_clustered().then_some(ClusterOptions { cluster_id: CLUSTER, generation, creates_topics: false });
        let node = NodeOptions { settings, node_id: self.nodes[n].id.0, cluster, lent_min: self.plan.lent_min };
        shards(recovered, &mut self.rng, &node)
    }

    /// Power is lost, or the process is killed. Sent bytes may still arrive.
    pub fn go_down(&mut self, n: usize, is_kill: bool) {
        if self.nodes[n].running.take().is_none() {
            return;
        }
        self.say(|| format!("node{n} goes down ({})", if is_kill { "killed" } else { "power" }));
        self.outcome.crashes += 1;
        self.terms_end(n);
        let node = &mut self.nodes[n];
        if is_kill {
            node.disk.kill()
        } else {
            node.disk.crash()
        }
        (node.paused_until, node.disk_stands_until) = (0, 0);
        node.held.clear();
        self.drop_wires_of(n, is_kill);
        let at = self.now + 10 * MS + self.rng.below(1500 * MS);
        self.queue.put(at, Happening::Start { node: n });
    }

    /// Every node loses power. One of them comes back much later than the others, perhaps.
    pub fn all_go_down(&mut self) {
        if self.phase != Phase::Faulty {
            return;
        }
        self.say(|| "all nodes lose power".into());
        self.outcome.blackouts += 1;
        let rots = self.victim.filter(|_| self.rng.chance(0.5));
        let rot = rots.and_then(|n| Some((n, self.place_in_journal(n)?)));
        let late = self.rng.chance(0.7).then(|| self.rng.below(self.nodes.len() as u64) as usize);
        for n in 0..self.nodes.len() {
            self.go_down(n, false);
            // its start stands in the queue already, and does nothing before
            let off = if late == Some(n) { SECOND + self.rng.below(4 * SECOND) } else { 0 };
            self.nodes[n].is_off_until = self.now + off;
        }
        if let Some((n, (core, at))) = rot {
            let path = FileId::Journal(core).to_string();
            self.nodes[n].disk.flip(&path, at, self.rng.below(8) as u32);
            self.nodes[n].is_damaged = true;
            self.outcome.damages += 1;
            self.say(|| format!("rot: node{n} {path} at byte {at}"));
        }
    }

    /// A core, and a byte of its journal that was durable when one of the last writes began.
    fn place_in_journal(&mut self, n: usize) -> Option<(u16, u64)> {
        let r = self.nodes[n].running.as_ref()?;
        let core = self.rng.below(r.journal.len() as u64) as usize;
        let written = &r.journal[core];
        let old = written.len().checked_sub(JOURNAL_WRITES / 2).filter(|n| *n > 0)?;
        let (at, len) = written[self.rng.below(old as u64) as usize];
        Some((core as u16, at + self.rng.below(len)))
    }

    /// Ends the node's terms: another life or another node leads its partitions.
    fn terms_end(&mut self, n: usize) {
        for key in self.meta.keys() {
            if self.meta.leader(key) == Some(n) || !self.is_clustered() {
                self.book.term_ends(key.0, key.1);
            }
        }
    }

    pub fn begin_stop(&mut self, n: usize) {
        let Some(r) = &mut self.nodes[n].running else { return };
        if std::mem::replace(&mut r.is_stopping, true) {
            return;
        }
        self.say(|| format!("node{n} is told to stop"));
        for core in 0..self.nodes[n].cores as usize {
            self.step(n, core, Event::Stop);
        }
    }

    /// Ends the process, after all its cores have stopped.
    pub fn has_stopped(&mut self, n: usize) {
        let running = self.nodes[n].running.take().expect("it was asked");
        assert!(running.is_stopped.iter().all(|s| *s), "it was asked");
        self.give_lease_back(n, running.seat);
        self.terms_end(n);
        self.say(|| format!("node{n} has stopped"));
        self.outcome.stops += 1;
        self.nodes[n].disk.kill();
        self.drop_wires_of(n, true);
        if self.phase != Phase::Ending {
            let at = self.now + 10 * MS + self.rng.below(800 * MS);
            self.queue.put(at, Happening::Start { node: n });
        }
    }

    /// Cores and partitions that are read-only stay so until a restart.
    pub fn is_read_only(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        node.running.as_ref().is_some_and(|r| node.has_failed || r.shards.iter().any(|s| s.read_only().is_some()))
    }
}
