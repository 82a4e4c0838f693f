//! What a data path remembers of its cluster in etcd: its name and id, the node, and the highest revision that was seen. So a data path is
//! never used in another cluster or as another node, and a store that was wiped is noticed.
//!
//! ```text
//! cluster.etcd   a line for each: cluster, id, node, revision; then one line with the crc of all that
//! ```

use super::CoordinatorError;
use super::copy::write_beside;
use crate::base::NodeId;
use crate::metadata::keys::parse_id;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const NAME: &str = "cluster.etcd";
const SEAL: &str = "crc32 ";

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Name of the cluster (`--cluster-name`).
    pub cluster: String,
    pub id: [u8; 16],
    pub node: NodeId,
    /// Revision of the store that was seen. The store is never older.
    pub revision: u64,
}

pub fn path(data: &Path) -> PathBuf {
    data.join(NAME)
}

impl Memory {
    /// `None`: the data path was never in a cluster of an etcd.
    pub fn read(data: &Path) -> Result<Option<Memory>, CoordinatorError> {
        let path = path(data);
        let bad = |what: String| CoordinatorError::BadMemory { path: path.clone(), what };
        match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(bad(e.to_string())),
            Ok(text) => Memory::parse(&text).map(Some).ok_or_else(|| bad("its checksum is another".into())),
        }
    }

    pub fn write(&self, data: &Path) -> Result<(), CoordinatorError> {
        let path = path(data);
        write_beside(&path, &self.text()).map_err(|source| CoordinatorError::Copy { path, source })
    }

    fn text(&self) -> String {
        let Memory { cluster, id, node, revision } = self;
        let text = format!("cluster {cluster}\nid {}\nnode {node}\nrevision {revision}\n", NodeId(*id));
        let crc = crc32fast::hash(text.as_bytes());
        format!("{text}{SEAL}{crc:08x}\n")
    }

    fn parse(text: &str) -> Option<Memory> {
        let (all, crc) = text.rsplit_once(SEAL)?;
        if crc != format!("{:08x}\n", crc32fast::hash(all.as_bytes())) {
            return None;
        }
        let mut lines = all.lines();
        let mut next = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let cluster = next("cluster")?.to_owned();
        let (id, node) = (parse_id(next("id")?)?, parse_id(next("node")?)?);
        let revision = next("revision")?.parse().ok()?;
        Some(Memory { cluster, id, node: NodeId(node), revision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_a_changed_byte_is_noticed() {
        let memory = Memory { cluster: "main".into(), id: [7; 16], node: NodeId([9; 16]), revision: 41 };
        let text = memory.text();
        assert_eq!(Memory::parse(&text), Some(memory));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(Memory::parse(&String::from_utf8_lossy(&bytes)), None, "byte {at}");
        }
    }
}
