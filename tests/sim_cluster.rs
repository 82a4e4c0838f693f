//! Clusters of the real code over a simulated network, disks and metadata store, many seeds with all faults.
//! A failing seed replays exactly: `ringmq sim --trace=17`. Sweeps are run by hand with `ringmq sim`, not here: docs/testing.md, "Open".

use ringmq::sim::cluster::plan::{Coordination, Plan};
use ringmq::sim::cluster::{Outcome, run};

fn run_one(name: &str, plan: &Plan) -> Outcome {
    let run = || run(plan, None);
    std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("seed {} of {name}: {plan:?}", plan.seed))
}

#[test]
fn a_seed_runs_the_same_twice() {
    for (seed, by) in [(1, Coordination::Store), (2, Coordination::Store), (3, Coordination::File), (4, Coordination::Alone)] {
        let plan = Plan::draw(seed, 0, Some(by));
        assert_eq!(run_one("TWICE", &plan), run_one("TWICE", &plan), "seed {seed}");
    }
}
