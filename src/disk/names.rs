//! Names below the data path that this process has made durable. An entry of a folder survives a power loss only once the folder was
//! synced, and so does each folder above it. The record lives in the whole process, behind a lock that only the blocking calls take.
//!
//! A file that grows, or a fourth file beside three, needs no sync of folders that were synced before: each is a flush of the device,
//! and a topic's creation paid five of them for each of its five files. Names of an earlier process are not taken for durable. A name
//! must be forgotten *before* it is removed or renamed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Number of names above which all are forgotten, which costs syncs and nothing else.
const NAMES_MAX: usize = 100_000;

pub(super) struct Names {
    durable: Mutex<BTreeSet<PathBuf>>,
}

impl Names {
    pub const fn new() -> Self {
        Names { durable: Mutex::new(BTreeSet::new()) }
    }

    /// Makes sure that `path` and every folder above it up to `data` will be found: syncs, with `sync`, the folders that
    /// hold names not known to be durable. `path` exists already.
    pub fn make_durable(&self, data: &Path, path: &Path, mut sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
        // a name is known only when those above it are
        let is_new = |name: &&Path| *name != data && !self.with(|durable| durable.contains(*name));
        let new: Vec<&Path> = path.ancestors().take_while(is_new).collect();
        for name in &new {
            sync(name.parent().unwrap_or(data))?;
        }
        self.with(|durable| {
            if durable.len() + new.len() > NAMES_MAX {
                durable.clear();
            }
            durable.extend(new.into_iter().map(Path::to_owned));
        });
        Ok(())
    }

    /// The name and all below it are about to go.
    pub fn forget(&self, path: &Path) {
        self.with(|durable| {
            // paths are ordered by their components: paths below follow
            let below = durable.range(path.to_owned()..).take_while(|name| name.starts_with(path));
            let below: Vec<PathBuf> = below.cloned().collect();
            for name in &below {
                durable.remove(name);
            }
        });
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeSet<PathBuf>) -> T) -> T {
        // nothing in here can stop half way
        f(&mut self.durable.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synced(names: &Names, path: &str) -> Vec<String> {
        let mut synced = vec![];
        let sync = |folder: &Path| {
            synced.push(folder.display().to_string());
            Ok(())
        };
        names.make_durable(Path::new("/data"), Path::new(path), sync).unwrap(); // the sync above never fails
        synced
    }

    #[test]
    fn a_folder_is_synced_once_for_each_new_name_in_it() {
        let names = Names::new();
        assert_eq!(synced(&names, "/data/topics/t/0/a"), ["/data/topics/t/0", "/data/topics/t", "/data/topics", "/data"]);
        assert_eq!(synced(&names, "/data/topics/t/0/a"), [""; 0], "it grew");
        assert_eq!(synced(&names, "/data/topics/t/0/b"), ["/data/topics/t/0"]);
        assert_eq!(synced(&names, "/data/topics/tt/0/a"), ["/data/topics/tt/0", "/data/topics/tt", "/data/topics"]);
        names.forget(Path::new("/data/topics/t/0/a"));
        assert_eq!(synced(&names, "/data/topics/t/0/a"), ["/data/topics/t/0"], "made anew");
        names.forget(Path::new("/data/topics/t"));
        assert_eq!(synced(&names, "/data/topics/t/0/b"), ["/data/topics/t/0", "/data/topics/t", "/data/topics"]);
        assert_eq!(synced(&names, "/data/topics/tt/0/a"), [""; 0], "another topic's");
    }

    #[test]
    fn what_was_not_synced_is_not_known() {
        let names = Names::new();
        let fail = |folder: &Path| if folder.ends_with("topics") { Err(io::ErrorKind::Other.into()) } else { Ok(()) };
        names.make_durable(Path::new("/data"), Path::new("/data/topics/t/0/a"), fail).unwrap_err();
        assert_eq!(synced(&names, "/data/topics/t/0/a").len(), 4);
    }

    #[test]
    fn what_it_knows_is_bounded() {
        let names = Names::new();
        for i in 0..=NAMES_MAX {
            synced(&names, &format!("/data/{i}"));
        }
        assert!(names.with(|durable| durable.len()) <= NAMES_MAX);
    }
}
