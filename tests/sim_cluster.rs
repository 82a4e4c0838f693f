//! Clusters of the real code over a simulated network, disks and metadata store, many seeds with all faults.
//! A failing seed replays exactly: `SIM_SEEDS=17..18 cargo test --test sim_cluster`, or `ringmq sim --trace=17`.

use ringmq::sim::cluster::plan::{Coordination, Plan};
use ringmq::sim::cluster::{Outcome, run};
use std::ops::Range;

/// The seeds of `SIM_SEEDS=a..b`.
fn asked() -> Option<Range<u64>> {
    let text = std::env::var("SIM_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("SIM_SEEDS is from..to");
    Some(from.parse().expect("a number")..to.parse().expect("a number"))
}

fn run_one(name: &str, plan: &Plan) -> Outcome {
    let run = || run(plan, None);
    std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("seed {} of {name}: {plan:?}", plan.seed))
}

/// Runs the seeds, or those that were asked for.
fn sweep(name: &str, default: Range<u64>, nodes: usize, by: Option<Coordination>) -> Outcome {
    let mut total = Outcome::default();
    for seed in asked().unwrap_or(default) {
        total.add(&run_one(name, &Plan::draw(seed, nodes, by)));
    }
    println!("{name}: {total:?}");
    total
}

#[test]
fn the_promise_holds_for_one_node_alone() {
    let o = sweep("ALONE", 0..30, 1, Some(Coordination::Alone));
    assert!(asked().is_some() || o.counts.acknowledged > 5_000 && o.crashes > 10 && o.probes > 100, "{o:?}");
}

#[test]
fn the_promise_holds_in_a_cluster_with_a_metadata_store() {
    let o = sweep("STORE", 0..60, 0, Some(Coordination::Store));
    if asked().is_none() {
        let c = o.counts;
        assert!(c.acknowledged > 10_000 && c.delivered > 10_000 && c.native_delivered > 2_000, "{o:?}");
        assert!(o.crashes > 50 && o.elections > 50 && o.proposals > 50 && o.batches_replicated > 10_000, "{o:?}");
    }
}

#[test]
fn the_promise_holds_in_a_cluster_with_static_files() {
    let o = sweep("FILE", 1000..1020, 0, Some(Coordination::File));
    assert!(asked().is_some() || o.counts.acknowledged > 3_000 && o.batches_replicated > 3_000, "{o:?}");
}

/// Seeds that failed before something was mended, or that alone catch a mutant of docs/testing.md.
#[test]
fn kept_seeds() {
    let kept: [(&str, u64, usize, Coordination); 0] = [];
    for (what, seed, nodes, by) in kept {
        println!("{what}");
        run_one(what, &Plan::draw(seed, nodes, Some(by)));
    }
}

#[test]
fn a_seed_runs_the_same_twice() {
    for (seed, by) in [(1, Coordination::Store), (2, Coordination::Store), (3, Coordination::File), (4, Coordination::Alone)] {
        let plan = Plan::draw(seed, 0, Some(by));
        assert_eq!(run_one("TWICE", &plan), run_one("TWICE", &plan), "seed {seed}");
    }
}
