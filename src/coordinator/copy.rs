//! The cluster file that is in force, as a copy in the data path: what a restart compares with, so that an old file never
//! makes a leader of who led long ago.
//!
//! The text as the operator wrote it, then one line of our own with its crc. Written beside, synced, and renamed.

use super::CoordinatorError;
use super::file::{self, ClusterFile, FILE_BYTES_MAX};
use crate::disk::files::sync_folder;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

const NAME: &str = "cluster.toml";
const SEAL: &str = "# ringmq keeps this copy of the cluster file in force; crc32 ";

pub fn path(data: &Path) -> PathBuf {
    data.join(NAME)
}

/// `None`: the data path was never in a cluster.
pub fn read(data: &Path) -> Result<Option<ClusterFile>, CoordinatorError> {
    let copy = path(data);
    let bad = |what: String| CoordinatorError::BadCopy { copy: copy.clone(), what };
    let mut text = String::new();
    match File::open(&copy) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(bad(e.to_string())),
        Ok(opened) => opened.take(FILE_BYTES_MAX + 1024).read_to_string(&mut text).map_err(|e| bad(e.to_string()))?,
    };
    let (text, crc) = text.rsplit_once(SEAL).ok_or_else(|| bad("its last line is missing".into()))?;
    if crc.trim_end() != seal(text) {
        return Err(bad("its checksum is another".into()));
    }
    file::parse(text).map(Some).map_err(|e| bad(e.to_string()))
}

pub fn write(data: &Path, text: &str) -> Result<(), CoordinatorError> {
    let copy = path(data);
    let beside = data.join(format!("{NAME}~"));
    let written = || -> io::Result<()> {
        let mut text = text.to_owned();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let crc = seal(&text);
        let mut file = File::create(&beside)?;
        file.write_all(format!("{text}{SEAL}{crc}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &copy)?;
        sync_folder(data)
    };
    written().map_err(|source| CoordinatorError::Copy { path: copy.clone(), source })
}

fn seal(text: &str) -> String {
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}
