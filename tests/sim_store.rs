//! The storage engine and recovery together over the simulated disk, many seeds. A failing seed replays exactly:
//! `SEED=17 cargo test --test sim_store`; `MORE=10` runs ten times as many.

use ringmq_core::sim::disk::{Faults, NO_FAULTS};
use ringmq_core::sim::follower;
use ringmq_core::sim::store::{Plan, RunOutcome, run};

const QUIET: Plan = Plan { lives: 4, steps: 500, faults: NO_FAULTS, space: 0, retention: true, producers: 64 };

fn sweep(seeds: std::ops::Range<u64>, plan: Plan) -> RunOutcome {
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|s| s.parse().ok());
    let more: u64 = std::env::var("MORE").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let seeds = seeds.start * 1000..seeds.start * 1000 + (seeds.end - seeds.start) * more;
    let mut total = RunOutcome::default();
    for seed in seeds.filter(|&s| only.is_none_or(|o| o == s)) {
        let o = std::panic::catch_unwind(|| run(seed, &plan)).unwrap_or_else(|_| panic!("SEED={seed} with {plan:?}"));
        total.acknowledged += o.acknowledged;
        total.unacknowledged += o.unacknowledged;
        total.records += o.records;
        total.refused += o.refused;
        total.crashes += o.crashes;
        total.stops += o.stops;
        total.recovery_crashes += o.recovery_crashes;
        total.redone += o.redone;
        total.direct_found += o.direct_found;
        total.read += o.read;
        total.failed_appends += o.failed_appends;
        total.segments_removed += o.segments_removed;
        total.reused += o.reused;
        total.batches += o.batches;
        total.duplicates += o.duplicates;
        total.resent += o.resent;
        total.forgotten += o.forgotten;
    }
    println!("{total:?}");
    total
}

#[test]
fn what_was_acknowledged_survives() {
    let o = sweep(0..200, Plan { faults: Faults { late: 0.3, ..NO_FAULTS }, ..QUIET });
    assert!(o.acknowledged > 5000 && o.records > 1000 && o.redone > 500 && o.read > 1000, "{o:?}");
    assert!(o.recovery_crashes > 100 && o.stops > 20, "{o:?}");
}

#[test]
fn what_was_acknowledged_survives_a_failing_disk() {
    let faults = Faults { write_error: 0.004, sync_error: 0.004, short_write: 0.002, read_error: 0.01, late: 0.2, ..NO_FAULTS };
    let o = sweep(1..101, Plan { faults, ..QUIET });
    assert!(o.acknowledged > 500 && o.failed_appends > 20, "{o:?}");
}

#[test]
fn what_was_acknowledged_survives_a_full_disk() {
    let faults = Faults { no_space: 0.02, ..NO_FAULTS };
    let o = sweep(2..62, Plan { faults, space: 160 * 1024, ..QUIET });
    assert!(o.acknowledged > 500 && o.refused > 100, "{o:?}");
}

/// Each (producer, sequence) is stored at most once, and an acknowledged one exactly once, through crashes at any operation. The other
/// runs here check it too; this one keeps all segments, so that each recovery's table is compared with the whole log.
#[test]
fn no_duplicate_from_idempotent_producer() {
    let o = sweep(3..103, Plan { faults: Faults { late: 0.3, ..NO_FAULTS }, retention: false, ..QUIET });
    assert!(o.batches > 2000 && o.duplicates > 500 && o.resent > 50 && o.forgotten == 0, "{o:?}");
}

/// More producers write than are remembered: every recovery forgets the same ones.
#[test]
fn forgotten_producers_are_refused() {
    let plan = Plan { faults: Faults { late: 0.3, ..NO_FAULTS }, retention: false, producers: 2, ..QUIET };
    let o = sweep(4..64, plan);
    assert!(o.batches > 500 && o.forgotten > 200, "{o:?}");
}

fn follow(seeds: std::ops::Range<u64>, plan: follower::Plan) -> follower::RunOutcome {
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|s| s.parse().ok());
    let more: u64 = std::env::var("MORE").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let seeds = seeds.start * 1000..seeds.start * 1000 + (seeds.end - seeds.start) * more;
    let mut total = follower::RunOutcome::default();
    for seed in seeds.filter(|&s| only.is_none_or(|o| o == s)) {
        let o = std::panic::catch_unwind(|| follower::run(seed, &plan)).unwrap_or_else(|_| panic!("SEED={seed} with {plan:?}"));
        total.appended += o.appended;
        total.durable += o.durable;
        total.led += o.led;
        total.truncations += o.truncations;
        total.restarts += o.restarts;
        total.crashed_truncations += o.crashed_truncations;
        total.found_truncated += o.found_truncated;
        total.found_whole += o.found_whole;
        total.promises += o.promises;
        total.recovery_crashes += o.recovery_crashes;
        total.read += o.read;
        total.failed += o.failed;
    }
    println!("{total:?}");
    total
}

/// Logs of followers, truncated and begun anew, with crashes at any operation.
#[test]
fn what_a_follower_was_given_survives_and_what_was_truncated_stays_away() {
    let o = follow(5..155, follower::Plan { lives: 5, steps: 600, faults: Faults { late: 0.3, ..NO_FAULTS } });
    assert!(o.durable > 5000 && o.led > 500 && o.promises > 300 && o.read > 300 && o.recovery_crashes > 50, "{o:?}");
    assert!(o.truncations > 500 && o.restarts > 50 && o.found_truncated > 20 && o.found_whole > 20, "{o:?}");
}

const FOLLOWER_FAILING_DISK: follower::Plan = follower::Plan {
    lives: 5,
    steps: 600,
    faults: Faults { write_error: 0.003, sync_error: 0.003, short_write: 0.002, read_error: 0.02, late: 0.2, ..NO_FAULTS },
};

#[test]
fn a_follower_s_log_survives_a_failing_disk() {
    let o = follow(6..86, FOLLOWER_FAILING_DISK);
    assert!(o.durable > 1000 && o.truncations > 100 && o.failed > 20, "{o:?}");
}

/// Seeds that found something once.
#[test]
fn seeds_that_failed_once_stay_fixed() {
    // A topic.meta that a killed process had written, not yet durable, and whose record never was: it was kept, published
    // to, and lost with the next power cut.
    run(2265, &Plan { faults: Faults { no_space: 0.02, ..NO_FAULTS }, space: 160 * 1024, ..QUIET });
    // The journal failed while a truncation looked at the files: it went on over batches that memory no longer has.
    follower::run(6068, &FOLLOWER_FAILING_DISK);
    // A replica whose promise was lost took all that peers had given it for committed.
    follower::run(6194, &FOLLOWER_FAILING_DISK);
}

#[test]
fn a_seed_runs_the_same_twice() {
    let plan = Plan { faults: Faults { late: 0.3, write_error: 0.002, ..NO_FAULTS }, ..QUIET };
    for seed in 0..5 {
        assert_eq!(run(seed, &plan), run(seed, &plan));
    }
}
