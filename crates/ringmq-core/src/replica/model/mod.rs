//! Members of one partition against each other, with faults: see `world`. A seed decides everything;
//! `REPLICA_SEEDS=17..18 cargo test --lib replica::model` runs seed 17 again, a larger range looks for new ones.

mod check;
mod faults;
pub(super) mod log;
pub(super) mod node;
mod world;

use super::states::{State, TRANSITIONS, Trigger};
use std::collections::BTreeSet;
use world::World;

const FAULTY_STEPS: usize = 6000;
const QUIET_STEPS: usize = 60_000;

/// Runs until nothing is left to do.
fn come_to_rest(world: &mut World, seed: u64) {
    let mut quiet = 0;
    for _ in 0..QUIET_STEPS {
        world.step_without_clients();
        quiet = if world.is_quiet() { quiet + 1 } else { 0 };
        if quiet > 3 {
            return world.compare();
        }
    }
    panic!("quiet_cluster_converges: seed {seed}\n{}\n{}", world.describe(), world.talk());
}

/// Runs one seed; returns the transitions that it made, and the number of acknowledged publishes.
fn run(seed: u64) -> (BTreeSet<(State, Trigger, State)>, usize) {
    let mut world = World::new(seed);
    (0..FAULTY_STEPS).for_each(|_| world.step());
    world.heal();
    let mut quiet = 0;
    for step in 0..QUIET_STEPS {
        if step < QUIET_STEPS / 2 && quiet == 0 && step % 50 < 25 {
            world.step();
        } else {
            world.step_without_clients();
        }
        if world.is_quiet() {
            quiet += 1;
            if quiet > 3 {
                world.compare();
                return (world.trace, world.check.acked());
            }
        } else {
            quiet = 0;
        }
    }
    panic!("quiet_cluster_converges: seed {seed}\n{}\n{}", world.describe(), world.talk());
}

/// True for triggers that the table's own test drives from every state.
fn is_everywhere(trigger: Trigger) -> bool {
    use Trigger::{Dropped, LogBroke, ToFollow, ToLead};
    matches!(trigger, ToFollow | ToLead | Dropped | LogBroke)
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("REPLICA_SEEDS") else { return 0..400 };
    let (from, to) = text.split_once("..").expect("REPLICA_SEEDS is from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn what_is_acknowledged_survives_and_a_quiet_cluster_converges() {
    let (mut seen, mut acked) = (BTreeSet::new(), 0);
    for seed in seeds() {
        let result = std::panic::catch_unwind(|| run(seed));
        let Ok((trace, count)) = result else { panic!("seed {seed}: see above") };
        seen.extend(trace);
        acked += count;
    }
    println!("{acked} publishes acknowledged");
    assert!(acked > 0, "the runs do something");
    if std::env::var("REPLICA_SEEDS").is_err() {
        // Tests of their own do these: only damage, or a mistake, does the first and the last; the second is rare.
        seen.insert((State::Truncating, Trigger::Disagreed, State::Apart));
        seen.insert((State::Fetching, Trigger::SourceLost, State::Asking));
        seen.insert((State::Open, Trigger::HandedOver, State::Resigned));
        let missing: Vec<_> = TRANSITIONS.iter().filter(|t| !seen.contains(t) && !is_everywhere(t.1)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

/// A single node is enough to open here, so the leader opens without the members that have its lost data, and learns that only later. No
/// controller removes them. A leader that restarts while no member is in reach waits, whatever it knew before.
#[test]
fn what_a_leader_lost_unseen_it_takes_from_who_has_it() {
    for seed in 0..40 {
        let mut world = World::calm(seed);
        (0..1500).for_each(|_| world.step());
        come_to_rest(&mut world, seed);
        let acked = world.check.acked();
        assert!(acked > 0, "seed {seed}: {}", world.describe());
        let i = world.nodes.iter().position(|n| n.member.epoch().is_some()).expect("a cluster at rest has a leader");
        world.lose_unseen(i);
        world.start(i);
        world.name_leader(Some(world.nodes[i].id));
        // Told of it, it goes down before it has what it lacks, and the others are away when it comes back.
        let is_told = (0..20_000).any(|_| {
            world.step_without_clients();
            world.nodes[i].log.disk.doubt.is_suspect()
        });
        if is_told && seed % 2 == 0 {
            world.restart_alone(i);
            for _ in 0..5_000 {
                world.step_without_clients();
                assert!(world.nodes[i].opened.is_none(), "acked_survives: seed {seed}: it opens with what it has");
            }
            world.cut.clear();
        }
        come_to_rest(&mut world, seed);
        assert!(is_told, "seed {seed}: it was not told: {}", world.describe());
    }
}

#[test]
fn a_seed_runs_the_same_twice() {
    assert_eq!(run(3), run(3));
}
