//! A whole node over the simulated disk and network, many seeds: crashes, recoveries, real bytes of clients.
//! A failing seed replays exactly: `SIM_SEEDS=17..18 cargo test --test sim_node`.

use ringmq::shard::LENT_MIN;
use ringmq_core::sim::disk::{Faults, NO_FAULTS};
use ringmq_core::sim::node::{Plan, RunOutcome, run};
use std::ops::Range;

const CRASHES: Plan = Plan {
    lives: 4,
    steps: 900,
    cores_max: 3,
    partitions_max: 3,
    topics_max: 2,
    crash: 0.8,
    kill: 0.3,
    recovery_crash: 0.4,
    journal_error: 0.0,
    slow: 0.002,
    faults: Faults { late: 0.3, ..NO_FAULTS },
    ephemeral: 0.0,
    firsts: false,
    space: 0,
    native: 0.0,
    both: 0.0,
    order: 0.0,
    pauses: 0.0,
    removals: 0.0,
    lent_min: LENT_MIN,
    rot: 0.0,
};

/// Short lives: many end while the first channels come to be.
const FIRSTS: Plan = Plan { firsts: true, steps: 500, ..CRASHES };

const PASSING: Plan = Plan { ephemeral: 0.5, ..CRASHES };

const FAILING_DISK: Plan = Plan {
    journal_error: 0.01,
    faults: Faults { late: 0.2, read_error: 0.01, write_error: 0.003, sync_error: 0.003, short_write: 0.002, ..NO_FAULTS },
    ..CRASHES
};

const PASSING_FAILING: Plan = Plan { ephemeral: 0.5, ..FAILING_DISK };

const FULL_DISK: Plan = Plan { faults: Faults { late: 0.2, no_space: 0.02, ..NO_FAULTS }, space: 700 * 1024, ..CRASHES };

const PASSING_FULL: Plan = Plan { ephemeral: 0.5, ..FULL_DISK };

/// The same with clients of both protocols.
const NATIVE_CRASHES: Plan = Plan { native: 0.6, lent_min: 256, ..CRASHES };
const NATIVE_FAILING_DISK: Plan = Plan { native: 0.6, lent_min: 256, ..FAILING_DISK };
const NATIVE_FULL_DISK: Plan = Plan { native: 0.6, lent_min: 2000, ..FULL_DISK };

/// The same, and many of them publish behind what they have finished.
const NATIVE_BOTH: Plan = Plan { both: 0.6, native: 0.9, ..NATIVE_CRASHES };

/// Many clients read ordered channels, and channels whose offset is set meanwhile.
const ORDER_CRASHES: Plan = Plan { order: 0.35, ..CRASHES };
const ORDER_FAILING_DISK: Plan = Plan { order: 0.35, ..FAILING_DISK };
const ORDER_FULL_DISK: Plan = Plan { order: 0.35, ..FULL_DISK };

/// An operator pauses them, and lets them go on.
const PAUSES: Plan = Plan { pauses: 0.02, ..ORDER_CRASHES };

/// Plan in which the operator also empties and deletes channels, on a disk that fails (where a pause may stay for good) or is full.
const REMOVALS: Plan = Plan { pauses: 0.01, removals: 0.02, ..ORDER_CRASHES };
const REMOVALS_FAILING_DISK: Plan = Plan { removals: 0.02, ..ORDER_FAILING_DISK };
const REMOVALS_FULL_DISK: Plan = Plan { pauses: 0.01, removals: 0.02, ..ORDER_FULL_DISK };

/// Plan in which one copy of doubly stored data rots in a block, also before startups that crash.
const ROT: Plan = Plan { rot: 0.8, lives: 6, steps: 500, ..CRASHES };

/// The seeds of `SIM_SEEDS=a..b`.
fn asked() -> Option<Range<u64>> {
    let text = std::env::var("SIM_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("SIM_SEEDS is from..to");
    Some(from.parse().expect("a number")..to.parse().expect("a number"))
}

fn run_one(name: &str, seed: u64, plan: &Plan) -> RunOutcome {
    std::panic::catch_unwind(|| run(seed, plan)).unwrap_or_else(|_| panic!("seed {seed} of {name}: {plan:?}"))
}

/// Runs the seeds, or those that were asked for.
fn sweep(name: &str, default: Range<u64>, plan: Plan) -> RunOutcome {
    let mut total = RunOutcome::default();
    for seed in asked().unwrap_or(default) {
        let o = run_one(name, seed, &plan);
        let (c, t) = (o.counts, &mut total.counts);
        t.written += c.written;
        t.acknowledged += c.acknowledged;
        t.refused += c.refused;
        t.delivered += c.delivered;
        t.finished += c.finished;
        t.settled += c.settled;
        t.survived += c.survived;
        t.gone += c.gone;
        t.deleted += c.deleted;
        t.firsts += c.firsts;
        t.repeats += c.repeats;
        t.duplicates += c.duplicates;
        t.native_delivered += c.native_delivered;
        t.native_channels += c.native_channels;
        t.native_claims += c.native_claims;
        t.deferred += c.deferred;
        t.put_off += c.put_off;
        t.forwarded += c.forwarded;
        t.copies += c.copies;
        total.crashes += o.crashes;
        total.stops += o.stops;
        total.recovery_crashes += o.recovery_crashes;
        total.redone += o.redone;
        total.removed += o.removed;
        total.read_only += o.read_only;
        total.moves += o.moves;
        total.in_place += o.in_place;
        total.beside += o.beside;
        total.lent += o.lent;
        total.rotten.iter_mut().zip(o.rotten).for_each(|(sum, n)| *sum += n);
        total.torn_sectors += o.torn_sectors;
        total.reused += o.reused;
        total.ordered += o.ordered;
        total.sets += o.sets;
        total.sets_looked_for += o.sets_looked_for;
        total.pauses += o.pauses;
        total.pauses_looked_for += o.pauses_looked_for;
        total.emptied += o.emptied;
        total.deleted += o.deleted;
        total.removals_looked_for += o.removals_looked_for;
        total.trace ^= o.trace;
    }
    println!("{name}: {total:?}");
    total
}

#[test]
fn the_promise_holds_over_crashes() {
    let o = sweep("CRASHES", 0..250, CRASHES);
    let c = o.counts;
    if asked().is_none() {
        assert!(c.acknowledged > 50_000 && c.survived > 50_000 && c.gone > 20_000 && c.deleted > 20_000, "{o:?}");
        assert!(c.settled > 1000 && o.moves > 500 && o.recovery_crashes > 200 && o.torn_sectors > 10_000, "{o:?}");
        assert!(o.beside > 100 && c.deferred > 1_000 && c.put_off > 150 && c.copies > 100, "{o:?}");
        assert!(c.forwarded > 50, "copies forward: {o:?}");
        assert!(o.reused > 40, "segments begin on the space of others: {o:?}");
    }
}

/// Topics that come and go, on all cores, under publishers and over crashes: they harm no other, go for good, and come
/// back as new ones.
#[test]
fn ephemeral_topics_come_and_go() {
    let o = sweep("PASSING", 3000..3080, PASSING);
    assert!(asked().is_some() || o.removed > 200 && o.counts.survived > 5_000, "{o:?}");
    sweep("PASSING_FAILING", 3100..3130, PASSING_FAILING);
    sweep("PASSING_FULL", 3200..3240, PASSING_FULL);
}

/// Several channels want to be a topic's first one, on all cores: one is, in all partitions, whatever a crash leaves of it.
#[test]
fn one_channel_is_first() {
    let o = sweep("FIRSTS", 4000..4150, FIRSTS);
    assert!(asked().is_some() || o.counts.firsts > 100, "{o:?}");
}

#[test]
fn the_promise_holds_on_a_failing_disk() {
    let o = sweep("FAILING_DISK", 1000..1100, FAILING_DISK);
    assert!(asked().is_some() || o.read_only > 50 && o.counts.refused > 500, "{o:?}");
}

#[test]
fn the_promise_holds_on_a_full_disk() {
    let o = sweep("FULL_DISK", 2000..2150, FULL_DISK);
    assert!(asked().is_some() || o.counts.refused > 500, "{o:?}");
}

#[test]
fn the_promise_holds_for_native_clients_over_crashes() {
    let o = sweep("NATIVE_CRASHES", 3000..3150, NATIVE_CRASHES);
    let c = o.counts;
    if asked().is_none() {
        assert!(c.repeats > 1000 && c.duplicates > 300 && c.native_channels > 300, "{o:?}");
        assert!(c.native_delivered > 40_000 && c.survived > 25_000 && o.moves > 500 && o.in_place > 500, "{o:?}");
        assert!(o.lent > 5_000, "{o:?}");
    }
}

/// A message that a client was told to be finished before the answer to a later publish stays finished.
#[test]
fn native_clients_publish_behind_what_they_have_finished() {
    let o = sweep("NATIVE_BOTH", 9000..9240, NATIVE_BOTH);
    assert!(asked().is_some() || o.counts.native_claims > 120, "{o:?}");
}

#[test]
fn the_promise_holds_for_native_clients_on_a_failing_disk() {
    let o = sweep("NATIVE_FAILING_DISK", 4000..4050, NATIVE_FAILING_DISK);
    assert!(asked().is_some() || o.read_only > 20 && o.counts.repeats > 500, "{o:?}");
}

#[test]
fn the_promise_holds_for_native_clients_on_a_full_disk() {
    let o = sweep("NATIVE_FULL_DISK", 5000..5070, NATIVE_FULL_DISK);
    assert!(asked().is_some() || o.counts.refused > 200, "{o:?}");
}

#[test]
fn ordered_channels_keep_their_order_over_crashes() {
    let o = sweep("ORDER_CRASHES", 6000..6100, ORDER_CRASHES);
    assert!(asked().is_some() || o.ordered > 5_000 && o.sets > 500 && o.sets_looked_for > 100, "{o:?}");
}

#[test]
fn ordered_channels_on_a_failing_disk() {
    let o = sweep("ORDER_FAILING_DISK", 7000..7060, ORDER_FAILING_DISK);
    assert!(asked().is_some() || o.ordered > 1_000 && o.sets > 100 && o.read_only > 20, "{o:?}");
}

#[test]
fn ordered_channels_on_a_full_disk() {
    let o = sweep("ORDER_FULL_DISK", 8000..8060, ORDER_FULL_DISK);
    assert!(asked().is_some() || o.ordered > 1_000 && o.sets > 100 && o.counts.refused > 100, "{o:?}");
}

#[test]
fn paused_channels_stay_so_over_crashes() {
    let o = sweep("PAUSES", 9000..9060, PAUSES);
    assert!(asked().is_some() || o.pauses > 300 && o.pauses_looked_for > 50, "{o:?}");
}

#[test]
fn emptied_and_deleted_channels_stay_so_over_crashes() {
    let o = sweep("REMOVALS", 10_000..10_060, REMOVALS);
    assert!(asked().is_some() || o.emptied > 100 && o.deleted > 100 && o.removals_looked_for > 50, "{o:?}");
}

#[test]
fn emptied_and_deleted_channels_on_a_failing_disk() {
    let o = sweep("REMOVALS_FAILING_DISK", 11_000..11_060, REMOVALS_FAILING_DISK);
    assert!(asked().is_some() || o.emptied > 30 && o.deleted > 30 && o.read_only > 10, "{o:?}");
}

#[test]
fn emptied_and_deleted_channels_on_a_full_disk() {
    let o = sweep("REMOVALS_FULL_DISK", 12_000..12_040, REMOVALS_FULL_DISK);
    assert!(asked().is_some() || o.emptied > 60 && o.deleted > 60 && o.counts.refused > 50, "{o:?}");
}

#[test]
fn a_block_of_what_stands_in_two_places_costs_nothing() {
    let o = sweep("ROT", 13_000..13_060, ROT);
    assert!(asked().is_some() || o.rotten.iter().all(|n| *n > 10) && o.counts.survived > 3_000, "{o:?}");
}

/// Seeds that failed before something was mended, or that alone catch a mutant of tests/mutants.
#[test]
fn kept_seeds() {
    let kept = [
        ("a read began after the stop", "CRASHES", 10, CRASHES),
        ("depth counted what a failed journal took", "FAILING_DISK", 1006, FAILING_DISK),
        ("E_FIN_FAILED stood behind the OKs to later publishes", "FULL_DISK", 2005, FULL_DISK),
        ("FINs for another core go before a publish to it", "FULL_DISK", 2051, FULL_DISK),
        ("only durable batches are delivered", "CRASHES", 75, CRASHES),
        ("SUB's OK waits for the channel's record", "CRASHES", 222, CRASHES),
        ("a stop journals the FINs that wait", "CRASHES", 68, CRASHES),
        ("a commit record is no promise where nothing is missing", "CRASHES", 185, CRASHES),
        ("nor where a torn write was cut", "FAILING_DISK", 20058, FAILING_DISK),
        ("the same with native clients", "NATIVE_FULL_DISK", 30802, NATIVE_FULL_DISK),
        ("a partition is removed in the turn in which a read of it ended", "PASSING_FAILING", 1010588, PASSING_FAILING),
        ("blank folders of a topic that went", "PASSING_FULL", 3010524, PASSING_FULL),
        ("a startup makes the journal durable before it acts by it", "PASSING", 2012511, PASSING),
        ("a startup writes again what a failed write left", "NATIVE_FAILING_DISK", 50082, NATIVE_FAILING_DISK),
        ("a piece of a FIN that ends with a newline of its binary id", "ORDER_CRASHES", 6072, ORDER_CRASHES),
        (
            "FINs of an ordered channel wait while failed files keep the journal full",
            "ORDER_FAILING_DISK",
            7014,
            ORDER_FAILING_DISK,
        ),
        ("a REQ puts off what was deferred, before its publisher reads its answer", "FULL_DISK", 770_000_189, FULL_DISK),
        (
            "a SUB of a new channel is refused while failed files keep the journal full",
            "REMOVALS_FAILING_DISK",
            880_000_057,
            REMOVALS_FAILING_DISK,
        ),
        ("FINs of a channel that was deleted behind them are no damage", "REMOVALS_FULL_DISK", 20_054, REMOVALS_FULL_DISK),
    ];
    for (what, name, seed, plan) in kept {
        println!("{what}");
        run_one(name, seed, &plan);
    }
}

#[test]
fn a_seed_runs_the_same_twice() {
    for seed in 0..4 {
        let nsq = [CRASHES, FAILING_DISK, FULL_DISK, PASSING, FIRSTS];
        let native = [NATIVE_CRASHES, NATIVE_FAILING_DISK, NATIVE_FULL_DISK];
        let order = [ORDER_CRASHES, ORDER_FAILING_DISK, ORDER_FULL_DISK, PAUSES, REMOVALS];
        for plan in nsq.into_iter().chain(native).chain(order) {
            assert_eq!(run(seed, &plan), run(seed, &plan), "seed {seed}");
        }
    }
}
