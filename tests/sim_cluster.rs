//! Clusters of the real code over a simulated network, disks and metadata store, with all faults: seeds that are drawn anew for
//! each run (by tests/run for each version of the source), and those that found something.
//! A failing seed says how it is replayed: `cargo run --release -p ringmq-sim -- --trace=17 ...`.
//! `SIM_SEEDS=1000..2000 cargo test --test sim_cluster store` runs others.

use ringmq_core::sim::cluster::coverage::Coverage;
use ringmq_core::sim::cluster::plan::{Coordination, Faults, Plan};
use ringmq_core::sim::cluster::{RunOutcome, run};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seeds that found something, or go where few do: they run each time, beside the fresh ones, and with so many of the faults
/// [`LATER`] as there were then.
type KeptSeeds = &'static [(usize, &'static [u64])];

const KEPT_STORE: KeptSeeds = &[
    (
        0,
        &[
            28, 92, 151, 153, 269, 282, 361, 367, 667, 746, 1007, 1022, 1052, 1167, 1481, 3507, 500_570, 9_000_064, 77_000_034,
            88_000_143, 89_001_211,
        ],
    ),
    (1, &[177]),
    (5, &[832]),
    (7, &[1404]),
    (
        8,
        &[
            1659,
            471_528_332,
            471_528_929,
            471_529_716,
            700_001_006,
            710_001_103,
            710_001_999,
            720_000_744,
            3_621_132_795_115,
            88_120_260_001_725,
            88_120_260_001_839,
            88_120_260_002_028,
            88_120_260_003_480,
        ],
    ),
    (9, &[90_030_260_001_549, 90_030_260_001_808]),
    (10, &[310_000_000_000_457]),
    (11, &[340_000_000_000_051, 360_000_000_000_021, 360_000_000_000_442]),
    // found nothing, but make transitions of a replica that one seed of 400 makes, or a dozen
    (
        8,
        &[
            266_357_054_025,
            266_357_054_064,
            266_357_054_093,
            266_357_054_126,
            266_357_054_142,
            266_357_054_193,
            1_643_923_689_036,
            1_643_923_689_047,
            1_643_923_689_080,
            1_643_923_689_139,
            1_643_923_689_188,
        ],
    ),
    (12, &[930_000_000_007_032]),
    // a late channel, and copies for others behind its begin
    (13, &[990_000_000_002_944, 990_000_000_003_238, 990_000_000_004_313, 990_000_000_011_891]),
    // a client asks on a connection that its node has lost
    (14, &[4_127_493_111_043]),
    // replicas return behind a loss that an operator accepts
    (15, &[20_186, 20_617, 20_635]),
    // a write is torn over older ones when the newest checkpoint rots
    (21, &[71_114]),
];
/// Kept seeds with the real agents and the real controller.
const KEPT_ETCD: KeptSeeds = &[
    (10, &[12, 16, 17, 53, 91, 1086, 1104]),
    (12, &[950_000_000_000_342]),
    (
        13,
        &[
            734_000_000_000_079,
            981_000_000_000_023,
            981_000_000_000_107,
            981_000_000_000_445,
            981_000_000_000_494,
            440_000_000_000_027,
        ],
    ),
    // the faults end while a process is paused
    (14, &[710_000_000_000_017]),
    // deleted topics fill a journal; the leader of a MPUB's messages moves while the last of them is waited for; a topic is deleted while
    // one core of a node has stopped and the other waits for its clients
    (15, &[663_000_523, 663_000_035, 930_000_000_000_061]),
    // replicas return behind two losses that an operator accepts
    (15, &[6011]),
    // an operator asks for fewer replicas, beside lost writes
    (21, &[31_270_037]),
];
const KEPT_FILE: KeptSeeds = &[
    (0, &[73, 134, 210, 284]),
    (9, &[90_030_260_002_542]),
    (10, &[310_000_000_000_450]),
    (12, &[930_000_000_009_243]),
    // a node hears before its client that their connection is gone; a late channel and a copy for another one
    (13, &[990_000_000_006_980, 990_000_000_010_519]),
];
const KEPT_ALONE: KeptSeeds = &[
    (0, &[22]),
    // a clock is set back over a clean stop
    (15, &[1_044_820_484_443]),
];

/// Faults that came to the plans later than others, in order: seeds draw them apart.
const LATER: &[&str] = &[
    "shaky_start",
    "all_down",
    "cut_off",
    "crash_at_removal",
    "in_place",
    "lent_cut",
    "full_disk",
    "operator",
    "role_change",
    "put_off",
    "stray",
    "hand_over",
    "relayed",
    "operator_elsewhere",
    "losses",
    "all_partitions",
    "loads",
    "moves",
    "small_memory",
    "ephemeral",
    "rot_of_copies",
];

/// Transitions of a replica that at least one store seed of fifteen makes. That none of 200 makes one is no bad luck (a chance of one in a
/// million): something keeps the seeds from getting there. How many of the rare ones a run makes is luck, so that is only printed.
const OFTEN: &[&str] = &[
    "Idle ToFollow",
    "Idle ToLead",
    "Apart Inquired",
    "Apart OrderedInStep",
    "Apart OrderedToTruncate",
    "Apart ToFollow",
    "Apart ToLead",
    "Promising Inquired",
    "Promising Stood",
    "Truncating Truncated",
    "Aligned Inquired",
    "Aligned ToFollow",
    "Aligned ToLead",
    "Aligned LogBroke",
    "Claiming Stood",
    "Asking HeardSelf",
    "Asking HeardBetter",
    "Asking ToFollow",
    "Fetching Fetched",
    "Settling TailCommitted",
    "Open Unknown",
    "Open ToFollow",
    "Open AskedToHandOver",
    "Quiescing HandedOver",
    "Resigned ToFollow",
    "Open LogBroke",
    "Closed ToLead",
];

/// A seed takes a second or two; the machine may be busy with other things.
const SEED_MAX: Duration = Duration::from_secs(600);

/// The seeds of `SIM_SEEDS=a..b`.
fn asked() -> Option<Range<u64>> {
    let text = std::env::var("SIM_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("SIM_SEEDS is from..to");
    Some(from.parse().expect("a number")..to.parse().expect("a number"))
}

/// Range of `count` seeds that are most likely new: for each run, or for each word in `SIM_FRESH`.
fn fresh(count: u64) -> Range<u64> {
    let word = std::env::var("SIM_FRESH").ok().filter(|word| !word.is_empty());
    let first = word.map_or_else(
        || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), count) >> 24,
        |word| u64::from(crc32fast::hash(word.as_bytes())) * 1000,
    );
    first..first + count
}

/// Runs fresh seeds and the kept ones, or those that were asked for, on all cores.
fn sweep(by: Coordination, count: u64, kept: KeptSeeds) -> (RunOutcome, Coverage) {
    let name = format!("{by:?}").to_lowercase();
    let test = if by == Coordination::Alone { "one_node" } else { name.as_str() };
    let drawn = fresh(count);
    let kept: Vec<(u64, &[&str])> =
        kept.iter().flat_map(|(with, seeds)| seeds.iter().map(|seed| (*seed, &LATER[*with..]))).collect();
    if asked().is_none() {
        // past the capture of tests, so that it stands there also when a run is cut short
        let again = format!("SIM_SEEDS={drawn:?} cargo test --test sim_cluster {test}");
        let _ = writeln!(std::io::stderr(), "{count} fresh seeds and {} kept ones; the fresh ones again: {again}", kept.len());
    }
    let as_drawn = |seed: u64| (seed, &[][..]);
    let seeds: Vec<(u64, &[&str])> =
        asked().map_or_else(|| drawn.map(as_drawn).chain(kept).collect(), |asked| asked.map(as_drawn).collect());
    let (begun, next) = (Instant::now(), AtomicU64::new(0));
    let running = Mutex::new(BTreeMap::<u64, Instant>::new());
    let (total, failed, seen) = (Mutex::new(RunOutcome::default()), Mutex::new(vec![]), Coverage::default());
    let work = || {
        while let Some(&(seed, without)) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let mut plan = Plan::draw(seed, 0, Some(by));
            for fault in without {
                assert!(plan.faults.remove(fault), "there is no fault {fault}");
            }
            running.lock().expect("nobody panics with it").insert(seed, Instant::now());
            match catch_unwind(|| run(&plan, None)) {
                Ok(outcome) => total.lock().expect("nobody panics with it").add(&outcome),
                Err(_) => failed.lock().expect("nobody panics with it").push((seed, without)),
            }
            running.lock().expect("nobody panics with it").remove(&seed);
        }
    };
    std::thread::scope(|scope| {
        let workers = (0..std::thread::available_parallelism().map_or(1, |n| n.get()))
            .map(|_| scope.spawn(|| tracing::subscriber::with_default(seen.clone(), work)))
            .collect::<Vec<_>>();
        // a thread cannot be stopped, and who runs the tests should not wait for ever to hear of nothing
        while !workers.iter().all(|w| w.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            for (seed, begun) in running.lock().expect("nobody panics with it").iter() {
                if begun.elapsed() > SEED_MAX {
                    let _ = writeln!(
                        std::io::stderr(),
                        "seed {seed} does not end: cargo run --release -p ringmq-sim -- --trace={seed} --by={name}"
                    );
                    std::process::abort();
                }
            }
        }
    });
    let (total, failed) = (total.into_inner().expect("all is done"), failed.into_inner().expect("all is done"));
    let seconds = begun.elapsed().as_secs_f64();
    println!("{by:?}: {} seeds in {seconds:.1} s ({:.2} seeds/s): {total:?}", seeds.len(), seeds.len() as f64 / seconds);
    let replay = |(seed, without): &(u64, &[&str])| {
        let without = if without.is_empty() { String::new() } else { format!(" --without={}", without.join(",")) };
        format!("\n  cargo run --release -p ringmq-sim -- --trace={seed} --by={name}{without}")
    };
    assert!(
        failed.is_empty(),
        "{} seeds failed; each again, step by step:{}",
        failed.len(),
        failed.iter().map(replay).collect::<String>()
    );
    (total, seen)
}

#[test]
fn the_promise_holds_with_a_metadata_store() {
    let (total, seen) = sweep(Coordination::Store, 200, KEPT_STORE);
    if asked().is_some() {
        return;
    }
    println!("{}", seen.text());
    let missed: Vec<String> = seen.missed().into_iter().filter(|name| OFTEN.contains(&name.as_str())).collect();
    assert!(missed.is_empty(), "the seeds reach less of the replica than they did: {missed:?}");
    let c = total.counts;
    assert!(c.acknowledged > 100_000 && c.delivered > 300_000 && c.finished > 300_000, "{total:?}");
    assert!(c.repeats > 1_000 && c.duplicates > 500 && c.native_delivered > 100_000, "{total:?}");
    assert!(total.metadata.elections > 100 && total.metadata.proposals > 100 && total.metadata.replica_changes > 10, "{total:?}");
    assert!(total.crashes > 100 && total.recovery_crashes > 5 && total.probes > 1_000, "{total:?}");
    assert!(total.read_only > 10 && total.damages > 20, "{total:?}");
    assert!(total.reused > 200, "segments that begin on the space of others: {total:?}");
    assert!(total.lent > 500, "payloads that are received to where they stay: {total:?}");
    assert!(total.lent_cut > 2, "connections that end meanwhile: {total:?}");
    assert!(total.paused > 5 && total.removed > 15 && total.operated_looked_for > 100, "an operator's: {total:?}");
    assert!(total.role_changes > 10, "what befalls a replica that changes its role: {total:?}");
}

#[test]
fn the_promise_holds_with_the_real_agents_over_an_etcd() {
    // No fresh ones before more of them have run: SIM_SEEDS runs them.
    let (total, _) = sweep(Coordination::Etcd, 0, KEPT_ETCD);
    let m = total.metadata;
    assert!(asked().is_some() || m.elections > 5 && m.sessions > 20 && m.topics_made > 7 && m.topics_deleted > 1, "{total:?}");
}

#[test]
fn the_promise_holds_with_static_files() {
    let (total, _) = sweep(Coordination::File, 75, KEPT_FILE);
    assert!(
        asked().is_some() || total.metadata.elections > 15 && total.crashes > 37 && total.counts.acknowledged > 5_000,
        "{total:?}"
    );
}

#[test]
fn the_promise_holds_for_one_node() {
    let (total, _) = sweep(Coordination::Alone, 45, KEPT_ALONE);
    assert!(asked().is_some() || total.crashes > 15 && total.counts.acknowledged > 3_000, "{total:?}");
}

/// Leaders hand over all the time, and nothing else happens.
#[test]
fn no_publish_hears_unknown_because_of_a_hand_over() {
    let mut total = RunOutcome::default();
    for seed in 0..12 {
        let mut plan = Plan::draw(seed, 3, Some(Coordination::Store));
        plan.faults = Faults { hand_over: 6.0, ..Faults::default() };
        (plan.replicas, plan.min_isr) = (3, 2);
        let outcome = run(&plan, None);
        assert_eq!(outcome.counts.unknown, 0, "hand_over_is_known: seed {seed}, {} hand-overs", outcome.metadata.elections);
        total.add(&outcome);
    }
    assert!(total.metadata.elections > 100 && total.counts.acknowledged > 1000, "{} hand-overs", total.metadata.elections);
}

/// Nodes are drained and filled again all the time, and killed while they remove what has moved.
#[test]
fn replicas_move_between_nodes_and_leave_nothing_behind() {
    let mut total = RunOutcome::default();
    for seed in 0..10 {
        let mut plan = Plan::draw(seed, 4, Some(Coordination::Etcd));
        plan.faults = Faults { membership: 1.5, crash: 0.3, crash_at_removal: 0.3, stop: 0.2, ..Faults::default() };
        (plan.replicas, plan.min_isr) = (2, 2);
        total.add(&run(&plan, None));
    }
    println!("{total:?}");
    assert!(total.metadata.replica_changes > 60 && total.crashes > 10, "{total:?}");
}

/// All in-sync replicas of a partition are away, and an operator goes on with one that lags.
#[test]
fn an_operator_gives_up_what_the_lost_replicas_had() {
    let mut total = RunOutcome::default();
    for (seed, by) in (0..12).flat_map(|seed| [(seed, Coordination::Store), (seed, Coordination::Etcd)]) {
        let mut plan = Plan::draw(seed, 3, Some(by));
        plan.faults = Faults { losses: 0.7, crash: 0.1, reset: 0.5, ..Faults::default() };
        (plan.replicas, plan.min_isr, plan.span_ms) = (3, 2, 500);
        total.add(&catch_unwind(|| run(&plan, None)).unwrap_or_else(|_| panic!("seed {seed} of {by:?}")));
    }
    let m = total.metadata;
    println!("{total:?}");
    assert!(m.repairs > 15 && m.given_up > 500 && m.losses > 10, "{m:?}");
}

#[test]
fn a_seed_runs_the_same_twice() {
    use Coordination::{Alone, Etcd, File, Store};
    for (seed, by) in [(1, Store), (2, Store), (3, File), (4, Alone), (5, Etcd), (6, Etcd)] {
        let plan = Plan::draw(seed, 0, Some(by));
        let once = || catch_unwind(|| run(&plan, None)).unwrap_or_else(|_| panic!("seed {seed} of {by:?}"));
        assert_eq!(once(), once(), "seed {seed}");
    }
}
