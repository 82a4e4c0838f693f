//! A whole node over the simulated disk and network, many seeds: crashes, recoveries, real NSQ bytes.
//! A failing seed replays exactly: `SIM_SEEDS=17..18 cargo test --test sim_node`.

use ringmq::sim::disk::Faults;
use ringmq::sim::node::{Outcome, Plan, run};
use std::ops::Range;

const NO_FAULTS: Faults = Faults {
    read_error: 0.0,
    write_error: 0.0,
    sync_error: 0.0,
    short_write: 0.0,
    no_space: 0.0,
    capacity: 0,
    late: 0.0,
    crash_after: None,
};

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
    space: 0,
};

const FAILING_DISK: Plan = Plan {
    journal_error: 0.01,
    faults: Faults { late: 0.2, read_error: 0.01, write_error: 0.003, sync_error: 0.003, short_write: 0.002, ..NO_FAULTS },
    ..CRASHES
};

const FULL_DISK: Plan = Plan { faults: Faults { late: 0.2, no_space: 0.02, ..NO_FAULTS }, space: 700 * 1024, ..CRASHES };

/// Runs the seeds, or those of `SIM_SEEDS=a..b`.
fn sweep(name: &str, default: Range<u64>, plan: Plan) -> Outcome {
    let asked = std::env::var("SIM_SEEDS").ok().map(|text| {
        let (from, to) = text.split_once("..").expect("SIM_SEEDS is from..to");
        from.parse().expect("a number")..to.parse().expect("a number")
    });
    let mut total = Outcome::default();
    for seed in asked.unwrap_or(default) {
        let o = std::panic::catch_unwind(|| run(seed, &plan)).unwrap_or_else(|_| panic!("seed {seed} of {name}: {plan:?}"));
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
        total.crashes += o.crashes;
        total.stops += o.stops;
        total.recovery_crashes += o.recovery_crashes;
        total.redone += o.redone;
        total.read_only += o.read_only;
        total.moves += o.moves;
        total.torn_sectors += o.torn_sectors;
        total.trace ^= o.trace;
    }
    println!("{name}: {total:?}");
    total
}

#[test]
fn the_promise_holds_over_crashes() {
    sweep("CRASHES", 0..60, CRASHES);
}

#[test]
fn the_promise_holds_on_a_failing_disk() {
    sweep("FAILING_DISK", 1000..1030, FAILING_DISK);
}

#[test]
fn the_promise_holds_on_a_full_disk() {
    sweep("FULL_DISK", 2000..2030, FULL_DISK);
}

#[test]
fn a_seed_runs_the_same_twice() {
    for seed in 0..4 {
        for plan in [CRASHES, FAILING_DISK, FULL_DISK] {
            assert_eq!(run(seed, &plan), run(seed, &plan), "seed {seed}");
        }
    }
}
