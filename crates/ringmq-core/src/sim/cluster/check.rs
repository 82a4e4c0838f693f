//! Invariants of the disks, at every moment: each check is named after the sentence of docs/promise.md that it holds. The book of
//! clients ([`crate::sim::node::book`]) checks the answers to clients, the [`super::tap`] the messages between nodes.
//!
//! | check | when |
//! |---|---|
//! | acked_is_on_every_isr_disk | a disk of an ISR member, as if it lost power now, has every acknowledged or delivered message |
//! | a_pause_holds, what_an_operator_removed_never_comes | every disk of an ISR member has the changes that an operator was told |
//! | acked_survives, consumer_never_passes_commit | the same at each startup; and at rest every channel got all owed messages |
//! | committed_prefixes_are_equal_bytes | batches up to the last acknowledged or delivered one are the same on all members, and stay so |
//! | virtual_offset_never_rewinds | no member's log ends before the committed end |
//! | one_batch_per_epoch_and_log_id | of all batches on all disks and between all nodes |
//! | only_what_was_given_up_is_lost | the same, once an operator went on with a log that lacks some of it ([`super::loss`]) |
//! | one_leader_serves | at each turn of a node: no other one has served the partition's clients in a later epoch |
//! | a_deleted_topic_leaves_nothing | at the end: no disk has anything of a deleted topic ([`super::passing`]) |
//! | a_moved_replica_leaves_nothing | at the end: no disk has a file of a partition of which its node is no replica ([`super::moved`]) |
//! | an_ephemeral_channel_goes | at the end: no disk has one, and its last client left long ago |
//! | damage_is_repaired_or_reported | an undamaged disk has no damage; at the end the damaged one equals the others |

use super::meta::TopicPartition;
use super::node::recover_options;
use super::plan::Coordination;
use super::store::PASSING;
use super::world::{MS, World};
use crate::base::{Epoch, LogId, MessagePlace, PartitionId, Position};
use crate::format::batch::BatchHeader;
use crate::log::recovery::{Recovered, recover};
use crate::log::state::RecoveredPartition;
use crate::sim::check::{ReadBatch as Batches, log_of};
use crate::sim::disk::SimDisk;
use crate::sim::node::book::{ANYWHERE, Book, StartupFindings, topic_number};
use crate::sim::node::rot;
use std::collections::BTreeMap;

/// Reason for the check of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckReason {
    Start,
    Probe,
    End,
}

/// Knowledge about all logs together.
pub struct Checker {
    topics: usize,
    /// Last log id and header crc of a batch.
    batches: BTreeMap<(TopicPartition, Epoch, LogId), (LogId, u32)>,
    /// The committed batch at an offset: its header crc, and where it ends.
    committed: BTreeMap<(TopicPartition, i64), (u32, i64)>,
    ends: BTreeMap<TopicPartition, i64>,
    /// The latest epoch in which clients of a partition were served, and by which node.
    served: BTreeMap<TopicPartition, (Epoch, usize)>,
}

impl Checker {
    pub fn new(topics: usize) -> Checker {
        Checker { topics, batches: BTreeMap::new(), committed: BTreeMap::new(), ends: BTreeMap::new(), served: BTreeMap::new() }
    }

    /// The number of a topic that clients use.
    pub fn topic(&self, name: &str) -> Option<usize> {
        Some(topic_number(name)).filter(|t| *t < self.topics)
    }

    /// A batch that some node has, or sends.
    pub fn batch(&mut self, key: TopicPartition, h: &BatchHeader) {
        let id = (LogId(h.last_log_id.get()), h.header_crc.get());
        let (epoch, first) = (Epoch(h.epoch.get()), LogId(h.log_id.get()));
        let known = *self.batches.entry((key, epoch, first)).or_insert(id);
        assert_eq!(known, id, "one_batch_per_epoch_and_log_id: {key:?} {epoch:?} {first:?}");
    }

    /// A node serves a partition's clients now.
    fn serves(&mut self, key: TopicPartition, epoch: Epoch, n: usize) {
        let latest = self.served.entry(key).or_insert((epoch, n));
        assert!(
            epoch > latest.0 || (epoch, n) == *latest,
            "one_leader_serves: node{n} serves {key:?} in {epoch:?}, after node{} in {:?}",
            latest.1,
            latest.0
        );
        *latest = (epoch, n);
    }

    /// An operator gives up the committed batches behind `end`.
    pub fn gives_up(&mut self, key: TopicPartition, end: i64) {
        self.committed.retain(|(of, at), _| *of != key || *at < end);
        self.ends.entry(key).and_modify(|known| *known = (*known).min(end));
    }

    fn committed(&mut self, key: TopicPartition, h: &BatchHeader, of: usize) {
        let is = (h.header_crc.get(), h.end().offset);
        let known = *self.committed.entry((key, h.offset.get())).or_insert(is);
        assert_eq!(known, is, "committed_prefixes_are_equal_bytes: {key:?} offset {} on node{of}", h.offset);
        let end = self.ends.entry(key).or_default();
        *end = (*end).max(is.1);
    }
}

/// A disk's logs, by partition.
pub type Logs = BTreeMap<TopicPartition, Vec<Batches>>;

/// Reads the clients' messages from a disk.
fn read(check: &mut Checker, book: &Book, disk: &SimDisk, r: &Recovered, is_damaged: bool, n: usize) -> (StartupFindings, Logs) {
    let (mut found, mut logs) = (StartupFindings::default(), Logs::new());
    for p in &r.partitions {
        let Some(topic) = check.topic(&p.topic.name) else { continue };
        let key = (topic, p.dir.partition.0);
        let log = match log_of(disk, p) {
            Ok(log) => log,
            Err(_) if is_damaged => continue,
            Err(e) => panic!("damage_is_repaired_or_reported: node{n} {key:?}: {e}"),
        };
        found.first.insert(key, log.first().map_or(p.end.log_id, |(h, _)| LogId(h.log_id.get())));
        found.images.insert(key, p.channels.clone());
        for (h, batch) in &log {
            if h.is_lost() || batch.is_none() {
                assert!(is_damaged, "damage_is_repaired_or_reported: node{n} {key:?} lacks the batch at {}", h.offset);
                continue;
            }
            check.batch(key, h);
            for m in batch.iter().flat_map(|b| b.messages()) {
                let id = MessagePlace::new(PartitionId(key.1), m.log_id);
                let n = book.none_invented(topic, m.body);
                if let Some(copy_of) = m.copy_of {
                    book.a_copy_names_its_message(&mut found, (topic, id), n, copy_of);
                    continue;
                }
                let twice = found.stored.insert(n, id);
                assert!(twice.is_none(), "no_duplicate_from_idempotent_producer: message {n} stands at {twice:?} and {id:?}");
            }
        }
        logs.insert(key, log);
    }
    (found, logs)
}

impl World {
    /// A turn of a core ends, with all its deliveries: checks that no other node served in a later epoch. Not with static files, which
    /// have no lease.
    pub fn look_who_serves(&mut self, n: usize, core: usize) {
        if !matches!(self.plan.coordination, Coordination::Store | Coordination::Etcd) {
            return;
        }
        self.a_deleted_topic_stays_deleted(n, core);
        let now = self.nodes[n].clocks(self.now).ticks;
        let Some(r) = &self.nodes[n].running else { return };
        for (route, epoch) in r.shards[core].served(now) {
            if let Some(key) = self.meta.key(route) {
                self.check.serves(key, epoch, n);
            }
        }
    }

    fn must_keep(&self, key: TopicPartition, n: usize) -> bool {
        !self.nodes[n].is_damaged && self.meta.is_in_sync(key, n)
    }

    /// Compares a recovery's findings on a node's disk with all known facts.
    pub fn look_at(&mut self, n: usize, r: &Recovered, look: CheckReason) -> Logs {
        let disk = self.nodes[n].disk.clone();
        self.look_at_disk(n, &disk, r, look)
    }

    fn look_at_disk(&mut self, n: usize, disk: &SimDisk, r: &Recovered, look: CheckReason) -> Logs {
        // whether a write was lost is known to the disk alone
        self.nodes[n].is_damaged |= disk.counts.damages > 0;
        let is_damaged = self.nodes[n].is_damaged;
        let report = &r.report;
        assert!(is_damaged || !report.has_damage(), "damage_is_repaired_or_reported: nothing was damaged: {report:?}");
        let (mut found, logs) = read(&mut self.check, &self.book, disk, r, is_damaged, n);
        found.name = match look {
            _ if self.book.has_given_up() => "only_what_was_given_up_is_lost",
            CheckReason::Probe => "acked_is_on_every_isr_disk",
            _ => "acked_survives",
        };
        let keeps: BTreeMap<TopicPartition, bool> =
            self.meta.keys().into_iter().map(|key| (key, self.must_keep(key, n))).collect();
        for (&key, log) in logs.iter().filter(|(key, _)| keeps[*key]) {
            self.committed_prefix(key, log, n);
            // of a log that is whole below retention, also when nothing of it is left
            let of_log =
                r.partitions.iter().find(|p| self.check.topic(&p.topic.name) == Some(key.0) && p.dir.partition.0 == key.1);
            let end = of_log.map_or(0, |p| p.end.offset);
            let known = self.check.ends.get(&key).copied().unwrap_or(0);
            assert!(end >= known, "virtual_offset_never_rewinds: {key:?} on node{n} ends at {end}, {known} was committed");
        }
        let keeps = |topic: usize, partition: u16| partition != ANYWHERE && keeps.get(&(topic, partition)) == Some(&true);
        self.book.replica_keeps(&found, &keeps);
        self.book.operators_word_is_kept(&found, &keeps);
        logs
    }

    /// Checks that everything before an acknowledged or delivered batch is committed.
    fn committed_prefix(&mut self, key: TopicPartition, log: &[Batches], n: usize) {
        let book = &self.book;
        let is_committed = |batch: &Batches| {
            let messages = batch.1.iter().flat_map(|b| b.messages()).filter(|m| m.copy_of.is_none());
            let mut numbers = messages.map(|m| (book.none_invented(key.0, m.body), m.log_id));
            numbers.any(|(message, log_id)| {
                let id = MessagePlace::new(PartitionId(key.1), log_id);
                let place = book.place(message).filter(|_| book.is_committed(message));
                assert!(
                    place.is_none_or(|at| at == id),
                    "ids_and_offsets_never_repeat: message {message} is at {place:?} and on node{n} at {id:?}"
                );
                book.is_committed(message)
            })
        };
        let top = log.iter().rposition(is_committed).map_or(0, |at| at + 1);
        for (h, _) in &log[..top] {
            self.check.committed(key, h, n);
        }
    }

    /// A node's disk, as if the node went down now, and the result of its recovery.
    fn disk_now(&mut self, n: usize) -> (SimDisk, Recovered) {
        let mut disk = self.nodes[n].disk.clone();
        if self.rng.chance(0.5) {
            disk.crash()
        } else {
            disk.kill()
        }
        disk.faults = Default::default();
        let copies = self.faults.damages.copies;
        if copies > 0.0 && self.rng.chance(copies) {
            rot::strike(&mut disk, &mut self.rng);
        }
        let unix_ns = self.nodes[n].clocks(self.now).unix_ns;
        let options = recover_options(self.nodes[n].cores, unix_ns, self.rng.next_u64(), self.is_clustered());
        let recovered = recover(&mut disk, &options).unwrap_or_else(|e| panic!("recovery of node{n} gave up: {e}"));
        (disk, recovered)
    }

    /// The clients' messages on a node's disk as it is now, and of each log the end, and how much of it the node knows to be committed.
    pub fn found_on(&mut self, n: usize) -> (StartupFindings, BTreeMap<TopicPartition, (Position, Position)>) {
        let (disk, r) = self.disk_now(n);
        let (found, _) = read(&mut self.check, &self.book, &disk, &r, self.nodes[n].is_damaged, n);
        let key = |p: &RecoveredPartition| Some((self.check.topic(&p.topic.name)?, p.dir.partition.0));
        (found, r.partitions.iter().filter_map(|p| Some((key(p)?, (p.end, p.committed)))).collect())
    }

    /// A running node's disk, as if the node went down now.
    pub fn probe(&mut self, n: usize) {
        let (disk, recovered) = self.disk_now(n);
        self.outcome.probes += 1;
        self.say(|| format!("probe of node{n}"));
        self.look_at_disk(n, &disk, &recovered, CheckReason::Probe);
    }

    pub fn probe_some(&mut self) {
        let at = self.now + 300 * MS + self.rng.below(1500 * MS);
        self.queue.put(at, super::events::Happening::Probes);
        let running: Vec<usize> = (0..self.nodes.len()).filter(|n| self.nodes[*n].running.is_some()).collect();
        if !running.is_empty() {
            let n = running[self.rng.below(running.len() as u64) as usize];
            self.probe(n);
        }
    }

    /// Checks at the end that all replicas of a partition have the same bytes, from where all still have them.
    pub fn replicas_are_equal(&self, logs: &[Logs], starts: &[BTreeMap<TopicPartition, i64>]) {
        for (key, entry) in self.meta.entries.iter().filter(|(key, _)| key.0 < PASSING) {
            let replicas: Vec<usize> = entry.now.replicas.iter().map(|id| self.meta.index(*id)).collect();
            let of = |n: usize| logs[n].get(key).map_or(&[][..], |l| &l[..]);
            let start = replicas.iter().filter_map(|n| starts[*n].get(key)).copied().max().unwrap_or(0);
            let crcs = |n: usize| -> Vec<(i64, u32, bool)> {
                let from = of(n).iter().filter(|(h, _)| h.offset.get() >= start);
                from.map(|(h, b)| (h.offset.get(), h.header_crc.get(), b.is_some())).collect()
            };
            for pair in replicas.windows(2) {
                let (a, b) = (crcs(pair[0]), crcs(pair[1]));
                let apart = a.iter().zip(&b).find(|(a, b)| a != b);
                assert!(
                    a == b,
                    "quiet_cluster_converges: {key:?} differs on node{} ({} batches) and node{} ({}), first at {apart:?}",
                    pair[0],
                    a.len(),
                    pair[1],
                    b.len()
                );
            }
        }
    }
}
