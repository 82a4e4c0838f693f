//! Replicas that moved to other nodes: `a_moved_replica_leaves_nothing`, at rest, when all is where the metadata has it.

use super::plan::Coordination;
use super::world::{MS, SECOND, World};
use crate::base::{FileId, PartitionDir, PartitionId};
use std::sync::Arc;

/// Time in which a node asks the store again whether a replica has moved, and removes the files.
const PATIENCE: u64 = 20 * SECOND;

impl World {
    /// Waits until no disk has a file of a partition of which its node is no replica.
    pub fn a_moved_replica_leaves_nothing(&mut self) {
        if self.plan.coordination != Coordination::Etcd {
            return;
        }
        let until = self.now + PATIENCE;
        while let Some((n, path)) = self.left_behind() {
            assert!(self.now < until, "a_moved_replica_leaves_nothing: node{n} has {path}\n{}", self.describe());
            self.run_until(self.now + 100 * MS);
        }
    }

    fn left_behind(&self) -> Option<(usize, String)> {
        self.meta.all_keys().into_iter().find_map(|key| {
            let topic = &self.meta.topics[&key.0];
            let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition: PartitionId(key.1) };
            let path = FileId::Snapshot(Arc::new(dir), 0).to_string();
            let folder = path.trim_end_matches("state.0");
            let replicas = &self.meta.entries[&key].now.replicas;
            // Files that could not be removed, after a failure, are removed at the node's next startup.
            let others = self.nodes.iter().enumerate().filter(|(_, node)| !replicas.contains(&node.id) && !node.has_failed);
            others.map(|(n, node)| (n, &node.disk)).find_map(|(n, disk)| {
                let left = disk.paths().find(|path| path.starts_with(folder))?;
                Some((n, left.to_owned()))
            })
        })
    }
}
