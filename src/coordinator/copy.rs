//! The cluster file in force, kept in the data path: a restart compares with it, so that an old file never names a leader of long ago.
//!
//! Two files with the same text, so that no block holds both, and the version once more in node.meta. Each is the text as the operator
//! wrote it, then one line of our own with its crc; written beside, synced, and renamed. An invalid one is ignored, and written again at
//! startup. If neither is valid, the version in node.meta remains: no older file is taken.

use super::CoordinatorError;
use super::file::{self, ClusterFile, FILE_BYTES_MAX};
use crate::disk::BlockingStorage;
use crate::disk::blocking::Access;
use crate::disk::files::sync_folder;
use crate::log::recovery::node;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

const NAMES: [&str; 2] = ["cluster.toml", "cluster.toml.copy"];
const SEAL: &str = "# ringmq keeps this copy of the cluster file in force; crc32 ";

pub fn paths(data: &Path) -> [PathBuf; 2] {
    NAMES.map(|name| data.join(name))
}

/// Contents of a data path about the cluster file in force.
#[derive(Debug)]
pub struct InForce {
    /// The newest that holds.
    pub file: Option<ClusterFile>,
    /// Lowest acceptable version of a file; 0: the node was never in a cluster.
    pub version: u64,
    /// Files that are invalid, or missing although the other file or node.meta shows that they existed.
    pub damage: Vec<Damaged>,
}

/// Damaged copy, with the reason.
#[derive(Clone, Debug)]
pub struct Damaged {
    path: PathBuf,
    what: String,
    /// True if the other file has the same content.
    is_spare: bool,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged ({}): ", self.path.display(), self.what)?;
        f.write_str(match self.is_spare {
            true => "the other copy is used, and the damaged one is written again when the node starts",
            false => "only the version of that cluster file is still known, and no file with a lower version is taken",
        })
    }
}

enum StoredCopy {
    Holds(ClusterFile),
    Missing,
    Bad(String),
}

/// Changes nothing.
pub fn read(data: &Path) -> Result<InForce, CoordinatorError> {
    let version = match data.is_dir() {
        true => node::cluster_version(&mut BlockingStorage::with_access(data, Access::ReadOnly))?,
        false => 0,
    };
    let [first, second] = paths(data);
    let (both, mut kept, mut damage) = ([read_one(&first), read_one(&second)], vec![], vec![]);
    for (found, path) in both.into_iter().zip([first, second]) {
        let bad = |what| damage.push(Damaged { path, what, is_spare: false });
        match found {
            StoredCopy::Holds(file) => kept.push(file),
            StoredCopy::Bad(what) => bad(what),
            // The first adoption is complete when node.meta has it.
            StoredCopy::Missing if version > 0 => bad("the file is missing".into()),
            StoredCopy::Missing => {}
        }
    }
    let file = kept.into_iter().max_by_key(|file| file.version);
    let is_known = file.as_ref().is_some_and(|file| file.version >= version);
    damage.iter_mut().for_each(|d| d.is_spare = is_known);
    let version = file.as_ref().map_or(version, |file| file.version.max(version));
    Ok(InForce { file, version, damage })
}

fn read_one(path: &Path) -> StoredCopy {
    let mut text = String::new();
    match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return StoredCopy::Missing,
        Err(e) => return StoredCopy::Bad(e.to_string()),
        Ok(opened) => {
            if let Err(e) = opened.take(FILE_BYTES_MAX + 1024).read_to_string(&mut text) {
                return StoredCopy::Bad(e.to_string());
            }
        }
    }
    let Some((text, crc)) = text.rsplit_once(SEAL) else { return StoredCopy::Bad("the last line is missing".into()) };
    if crc != format!("{}\n", seal(text)) {
        return StoredCopy::Bad("the checksum does not match".into());
    }
    file::parse(text).map_or_else(|e| StoredCopy::Bad(e.to_string()), StoredCopy::Holds)
}

/// Writes both files, then the version in node.meta. Durable when done.
pub fn write(data: &Path, text: &str, version: u64) -> Result<(), CoordinatorError> {
    for copy in paths(data) {
        write_one(&copy, text).map_err(|source| CoordinatorError::Copy { path: copy.clone(), source })?;
    }
    Ok(node::adopt_cluster(&mut BlockingStorage::new(data), version)?)
}

fn write_one(copy: &Path, text: &str) -> io::Result<()> {
    let mut text = text.to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let crc = seal(&text);
    write_beside(copy, &format!("{text}{SEAL}{crc}\n"))
}

/// Replaces a file of the data path's own folder, durably: it has the old text or the new one.
pub fn write_beside(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push("~");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

fn seal(text: &str) -> String {
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}
