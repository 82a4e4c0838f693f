//! Memory of a data path about its cluster in etcd: the cluster's name and id, the node, and the highest revision that was seen. A data
//! path is therefore never used in another cluster or as another node, and a store that was wiped is noticed.
//!
//! ```text
//! cluster.etcd, cluster.etcd.copy   a line for each: cluster, id, node, revision; then one line with the crc of all that
//! ```

use super::CoordinatorError;
use super::twice::Twice;
use crate::base::NodeId;
use crate::metadata::keys::parse_id;
use std::path::Path;

const NAME: &str = "cluster.etcd";

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Name of the cluster (`--cluster-name`).
    pub cluster: String,
    pub id: [u8; 16],
    pub node: NodeId,
    /// Revision of the store that was seen. The store is never older.
    pub revision: u64,
    /// Processes of this data path that may be the one that was registered last: the last one that surely was, and those that began
    /// since.
    pub processes: Vec<u64>,
}

/// Processes that began without being registered, at most; the oldest ones go.
const PROCESSES_MAX: usize = 64;

pub fn files(data: &Path) -> Twice {
    Twice::new(data, NAME)
}

impl Memory {
    /// The newer of the two files. `None`: the data path was never in a cluster of an etcd.
    pub fn read(data: &Path) -> Result<Option<Memory>, CoordinatorError> {
        let files = files(data);
        match files.read(Memory::parse) {
            Ok(kept) => Ok(kept.into_iter().max_by_key(|memory| memory.revision)),
            Err((_, what)) => Err(CoordinatorError::BadMemory { paths: files.paths, what }),
        }
    }

    pub fn write(&self, data: &Path) -> Result<(), CoordinatorError> {
        files(data).write(&self.text())
    }

    /// A process of the data path that begins.
    pub fn begin(&mut self, process: u64) {
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.remove(1);
        }
        self.processes.push(process);
    }

    fn text(&self) -> String {
        let Memory { cluster, id, node, revision, processes } = self;
        let processes: String = processes.iter().map(|number| format!(" {number:016x}")).collect();
        format!("cluster {cluster}\nid {}\nnode {node}\nrevision {revision}\nprocesses{processes}\n", NodeId(*id))
    }

    fn parse(text: &str) -> Option<Memory> {
        let mut lines = text.lines();
        let mut next = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let cluster = next("cluster")?.to_owned();
        let (id, node) = (parse_id(next("id")?)?, parse_id(next("node")?)?);
        let revision = next("revision")?.parse().ok()?;
        let numbers = next("processes")?.split_whitespace();
        let processes = numbers.map(|number| u64::from_str_radix(number, 16).ok()).collect::<Option<_>>()?;
        Some(Memory { cluster, id, node: NodeId(node), revision, processes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_costs_nothing_and_two_are_refused() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(Memory::read(data.path()).unwrap(), None);
        let memory =
            |revision| Memory { cluster: "main".into(), id: [7; 16], node: NodeId([9; 16]), revision, processes: vec![1] };
        memory(41).write(data.path()).unwrap();
        let files = files(data.path());
        let older = std::fs::read(&files.paths[0]).unwrap();
        memory(42).write(data.path()).unwrap();
        for bad in [&b""[..], &older[1..], &older] {
            let whole = std::fs::read(&files.paths[0]).unwrap();
            for path in &files.paths {
                std::fs::write(path, bad).unwrap();
                assert_eq!(Memory::read(data.path()).unwrap(), Some(memory(42)), "{}", path.display());
                std::fs::write(path, &whole).unwrap();
            }
        }
        files.paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
        let refused = Memory::read(data.path()).unwrap_err().to_string();
        assert!(files.paths.iter().all(|path| refused.contains(&*path.display().to_string())), "{refused}");
    }

    #[test]
    fn processes_are_kept_from_the_last_registered_one_on() {
        let data = tempfile::tempdir().unwrap();
        let mut memory = Memory { cluster: "main".into(), id: [7; 16], node: NodeId([9; 16]), revision: 5, processes: vec![] };
        (1..=100).for_each(|process| memory.begin(process));
        memory.write(data.path()).unwrap();
        let read = Memory::read(data.path()).unwrap().unwrap();
        assert_eq!((read.processes.len(), read.processes[0], read.processes[63]), (PROCESSES_MAX, 1, 100));
    }
}
