//! Three nodes and an etcd under faults, and clients whose history is judged (tests/history).
//!
//! `HISTORY_SECONDS=600` runs that long with all faults in turns; `HISTORY_FAULTS=KillAll,Rot` takes these; `HISTORY_SEED=7` begins with
//! that seed; `HISTORY_NODES=5` has five nodes, each partition on three of them. Processes and networks do not repeat themselves: a seed
//! gives the schedule, not the run.

mod history;
mod node;

use history::faults::Fault;
use history::world::World;
use node::Chance;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn seed() -> u64 {
    let given = std::env::var("HISTORY_SEED").ok().map(|text| text.parse().expect("HISTORY_SEED is a number"));
    given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() % 1_000_000)
}

/// The faults in an order of chance, each once; the cluster serves after each.
fn run(seed: u64, nodes: usize, faults: &[Fault], least: Duration) {
    println!("HISTORY_SEED={seed} HISTORY_NODES={nodes} {faults:?}");
    let mut world = World::start(seed, nodes, faults.iter().any(|fault| fault.needs_small_disk()));
    let mut chance = Chance::new(seed ^ 0xfa17);
    let began = Instant::now();
    world.wait_progress();
    loop {
        let mut left = faults.to_vec();
        while !left.is_empty() {
            let fault = left.swap_remove(chance.below(left.len() as u64) as usize);
            world.tell(&format!("{fault:?}"));
            fault.happen(&mut world, !least.is_zero());
            world.wait_progress();
            world.tell("served");
            if chance.one_in(2) {
                world.wait_in_sync();
            }
        }
        if began.elapsed() >= least {
            break;
        }
    }
    world.finish();
}

/// Faults that need no disk of their own and end soon.
const SHORT: [Fault; 5] = [Fault::KillLeader, Fault::KillAll, Fault::PauseLeader, Fault::OneWayFromAll, Fault::RestartEtcd];

#[test]
fn what_clients_were_told_is_true_under_faults() {
    let wanted = std::env::var("HISTORY_FAULTS").ok();
    let named = wanted.map(|names| {
        let fault =
            |name: &str| Fault::named(name).unwrap_or_else(|| panic!("HISTORY_FAULTS: {name} is none of {:?}", Fault::ALL));
        names.split(',').map(fault).collect::<Vec<_>>()
    });
    let least = std::env::var("HISTORY_SECONDS").ok().map(|text| text.parse().expect("HISTORY_SECONDS is a number"));
    let faults = named.unwrap_or_else(|| if least.is_some() { Fault::ALL.to_vec() } else { SHORT.to_vec() });
    let nodes = std::env::var("HISTORY_NODES").map_or(3, |text| text.parse().expect("HISTORY_NODES is a number"));
    run(seed(), nodes, &faults, Duration::from_secs(least.unwrap_or(0)));
}
