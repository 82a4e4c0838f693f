//! The startup of a simulated node: recovery that crashes on the way now and then, and the cores from its result.

use super::disk::SimDisk;
use crate::base::{CoreId, Epoch, Rng};
use crate::config::Settings;
use crate::log::recovery::{RecoverOptions, Recovered, recover};
use crate::seam::cluster::ClusterOptions;
use crate::shard::{Shard, ShardOptions};
use std::sync::Arc;

/// Options that all cores of a node have in common.
pub struct NodeOptions {
    pub settings: Arc<Settings>,
    pub node_id: [u8; 16],
    pub cluster: Option<ClusterOptions>,
    pub lent_min: usize,
}

/// The cores of a node as recovery left them.
pub fn shards(recovered: Recovered, rng: &mut Rng, node: &NodeOptions) -> Vec<Shard> {
    let Recovered { generation, topics, mut partitions, journals, .. } = recovered;
    let cores = journals.len() as u16;
    let shard = |(core, &journal)| {
        let core = CoreId(core);
        let own = partitions.extract_if(.., |p| p.topic.core_of(p.dir.partition, cores) == core).collect();
        Shard::new(ShardOptions {
            core,
            cores,
            settings: node.settings.clone(),
            epoch: Epoch(generation),
            journal,
            topics: topics.clone(),
            partitions: own,
            seed: rng.next_u64(),
            connections_max: 0,
            node_id: node.node_id,
            cluster: node.cluster.clone(),
            lent_min: node.lent_min,
            tls: None,
        })
    };
    (0..).zip(&journals).map(shard).collect()
}

/// Recovers a store's disk, which crashes after fewer than so many operations in two of five tries. Counts the crashes.
pub fn recover_store(
    disk: &mut SimDisk,
    rng: &mut Rng,
    operations: u64,
    options: &RecoverOptions,
    crashes: &mut u64,
) -> Recovered {
    for round in 0.. {
        disk.faults.crash_after = (round < 3 && rng.chance(0.4)).then(|| rng.below(operations));
        match recover(disk, &RecoverOptions { seed: rng.next_u64(), ..*options }) {
            Ok(recovered) => {
                disk.faults.crash_after = None;
                return recovered;
            }
            Err(e) => {
                assert!(disk.is_crashed(), "recovery gave up: {e}");
                *crashes += 1;
                if rng.chance(0.5) { disk.crash() } else { disk.kill() }
            }
        }
    }
    unreachable!("the last rounds do not crash")
}
