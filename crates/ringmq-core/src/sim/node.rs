//! A whole node in one thread from one seed: real shards, real recovery, the simulated disk, clients that speak NSQ or the
//! native protocol. It
//! loses power or is killed at random effects, recovers (and goes down again on the way), with another number of cores
//! now and then, and what clients saw is held against what is there: [`book`].
//!
//! In the end it is healed, must drain, stop, and have forgotten nothing. Panics at the first broken promise, the name of
//! the check first. Only for tests.

pub(super) mod any;
pub(super) mod book;
pub(super) mod client;
pub(super) mod moved;
pub(super) mod native;
pub(super) mod operated;
pub(super) mod ordered;
pub(super) mod paused;
mod producers;
pub(super) mod reach;
pub(super) mod reader;
pub mod rot;
mod sequence;
pub(super) mod world;

use super::disk::{Faults, SimDisk};
use crate::base::{Now, Rng, Ticks};
use crate::log::recovery::{JOURNAL_BYTES_MIN, RecoverOptions, Recovered, recover};
use book::{Book, Counts};
use std::time::Duration;
use world::World;

/// Plan of a run. Probabilities are 0.0 to 1.0.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub lives: u64,
    /// Random steps of one life.
    pub steps: u64,
    pub cores_max: u64,
    pub partitions_max: u64,
    pub topics_max: u64,
    /// Probability that a life ends in a crash, at a random effect; else the node is stopped.
    pub crash: f64,
    /// Probability that a crash takes only the process, and not the device's cache.
    pub kill: f64,
    /// Probability that a recovery is interrupted, for each attempt.
    pub recovery_crash: f64,
    /// Probability per journal write that it fails after it was issued, and may have been written or not. The core is read-only then.
    pub journal_error: f64,
    /// Probability per step that the disk completes nothing for a while.
    pub slow: f64,
    /// Faults of the disk while the node runs; capacity and crashes are the run's own.
    pub faults: Faults,
    /// Probability that a client uses ephemeral topics. These are outside the book: their messages are promised only as long as the
    /// topics exist.
    pub ephemeral: f64,
    /// True if no client subscribes before messages are there, and then many do, to several channels at a time.
    pub firsts: bool,
    /// Bytes of space beside the journals; 0: no bound.
    pub space: u64,
    /// Probability that a client speaks the native protocol.
    pub native: f64,
    /// Probability that a native client consumes and publishes, beside those that always do.
    pub both: f64,
    /// Probability that a client reads an ordered channel, or one whose offset is set now and then.
    pub order: f64,
    /// Probability per step that an operator pauses one of their channels, or lets it go on.
    pub pauses: f64,
    /// Probability per step that an operator empties or deletes a channel that some of these clients read.
    pub removals: f64,
    /// Runs of so many bytes are lent to native clients.
    pub lent_min: usize,
    /// Probability that one of two copies of a block rots before a startup.
    pub rot: f64,
}

/// Counts of a run, so that a test can tell whether the run was worth anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOutcome {
    pub counts: Counts,
    pub crashes: u64,
    pub stops: u64,
    pub recovery_crashes: u64,
    pub redone: u64,
    /// Ephemeral topics that were removed while nodes ran.
    pub removed: u64,
    pub read_only: u64,
    pub moves: u64,
    /// Pieces of memory that bodies were received to.
    pub in_place: u64,
    /// Journal writes that were issued while another one of the same core was in flight.
    pub beside: u64,
    pub torn_sectors: u64,
    /// Segments that began on the space of others.
    pub reused: u64,
    /// Pieces of memory that were lent to clients.
    pub lent: u64,
    /// Blocks that rotted, of each kind ([`rot::BlockKind::ALL`]).
    pub rotten: [u64; rot::BlockKind::ALL.len()],
    /// Messages of ordered channels, offsets that were set, and those that a startup was asked for.
    pub ordered: u64,
    pub sets: u64,
    pub sets_looked_for: u64,
    /// Channels that were paused, or went on, and those that a startup was asked for.
    pub pauses: u64,
    pub pauses_looked_for: u64,
    /// Channels that were emptied, and deleted, and those that a startup was asked for.
    pub emptied: u64,
    pub deleted: u64,
    pub removals_looked_for: u64,
    /// Hash over every effect of every life, in order.
    pub trace: u64,
}

/// Runs a plan.
pub fn run(seed: u64, plan: &Plan) -> RunOutcome {
    let mut rng = Rng::new(seed);
    let mut disk = SimDisk::new(seed ^ 0x5eed);
    let mut book = Book::default();
    let mut outcome = RunOutcome::default();
    let topics = 1 + rng.below(plan.topics_max);
    let mut now = Now { ticks: Ticks(1), unix_ns: 1_700_000_000_000_000_000 };
    let (mut cores, mut is_writable) = (1, true);
    for life in 0..plan.lives {
        let cores_before = cores;
        cores = 1 + rng.below(plan.cores_max) as u16;
        let mut rotten = None;
        if plan.rot > 0.0 && rng.chance(plan.rot) {
            rotten = rot::strike(&mut disk, &mut rng);
            rotten.into_iter().for_each(|kind| outcome.rotten[kind as usize] += 1);
        }
        let recovered = recover_somehow(&mut disk, &mut rng, cores, now, plan, &mut outcome);
        if rotten.is_some() {
            assert!(!recovered.report.has_damage(), "one_block_costs_nothing: {rotten:?}: {:?}", recovered.report.findings);
        }
        book.recovered(&disk, &recovered, cores_before);
        let mut world = World::new(plan, topics, recovered, now, &mut disk, &mut rng, &mut book, &mut outcome);
        if life + 1 < plan.lives {
            world.live();
        } else {
            is_writable = world.quiet_node_drains();
        }
        now = world.now;
        now.unix_ns += Duration::from_secs(1).as_nanos() as i64;
        (outcome.torn_sectors, outcome.reused) = (disk.counts.torn_sectors, disk.counts.reused);
    }
    let recovered = recover_somehow(&mut disk, &mut rng, cores, now, plan, &mut outcome);
    book.recovered(&disk, &recovered, cores);
    if is_writable {
        if plan.faults.write_error == 0.0 {
            book.ephemeral_topics_go(&recovered);
        }
        book.a_clean_stop_forgets_no_fin(&recovered);
        // by now every place is known
        book.acked_survives_to_every_channel();
    }
    outcome.counts = book.counts;
    (outcome.pauses, outcome.pauses_looked_for) = (book.paused.answered, book.paused.looked_for);
    let operated = &book.operated;
    (outcome.emptied, outcome.deleted, outcome.removals_looked_for) = (operated.emptied, operated.deleted, operated.looked_for);
    (outcome.ordered, outcome.sets, outcome.sets_looked_for) = (book.order.in_order, book.moved.answered, book.moved.looked_for);
    outcome
}

/// Recovers, going down on the way now and then.
fn recover_somehow(disk: &mut SimDisk, rng: &mut Rng, cores: u16, now: Now, plan: &Plan, outcome: &mut RunOutcome) -> Recovered {
    for round in 0.. {
        disk.faults = Faults::default();
        disk.faults.crash_after = (round < 3 && rng.chance(plan.recovery_crash)).then(|| rng.below(200));
        let options = RecoverOptions {
            cores,
            journal_bytes: JOURNAL_BYTES_MIN + 64 * 1024,
            segment_bytes: world::SEGMENT_BYTES,
            now_unix_ns: now.unix_ns,
            producers: Default::default(),
            seed: rng.next_u64(),
            accept_lost_journal: 0,
            is_clustered: false,
        };
        match recover(disk, &options) {
            Ok(recovered) => {
                disk.faults.crash_after = None;
                outcome.redone += recovered.report.batches_redone;
                return recovered;
            }
            Err(e) => {
                assert!(disk.is_crashed(), "recovery gave up: {e}");
                outcome.recovery_crashes += 1;
                if rng.chance(plan.kill) { disk.kill() } else { disk.crash() }
            }
        }
    }
    unreachable!("the last rounds do not crash")
}
