//! Where a [`FileId`] is below the data path, and what a found file name says.

use crate::base::{CoreId, FileId, PartitionDir};
use std::path::{Path, PathBuf};

/// Held exclusively by the process that uses the data path.
pub const LOCK: &str = "LOCK";

/// A file that is never empty: what each executor opens first, see [`super::shard_disk`].
pub const PROBE: &str = "probe";

pub const JOURNALS: &str = "journal";
pub const TOPICS: &str = "topics";
/// See [`super::spares`].
pub const SPARES: &str = "spare";

pub fn path_of(data: &Path, file: &FileId) -> PathBuf {
    data.join(file.to_string())
}

pub fn folder_of(data: &Path, dir: &PartitionDir) -> PathBuf {
    data.join(dir.to_string())
}

/// The core of a journal's file name: a number as we write it, nothing else (`1~damaged` is none).
pub fn journal_of(name: &str) -> Option<CoreId> {
    let core = name.parse::<u16>().ok()?;
    (core.to_string() == name).then_some(CoreId(core))
}

/// The number of a file of kept space, and whether its first block is zeroed: `7`, `7~`.
pub fn spare_of(name: &str) -> Option<(u64, bool)> {
    let digits = name.strip_suffix('~').unwrap_or(name);
    let number = digits.parse::<u64>().ok().filter(|n| n.to_string() == digits)?;
    Some((number, digits == name))
}

/// The base offset in `<20 digits>.<extension>`.
pub fn base_of(name: &str, extension: &str) -> Option<i64> {
    let digits = name.strip_suffix(extension)?.strip_suffix('.')?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_names_are_taken_only_as_we_write_them() {
        assert_eq!(journal_of("7"), Some(CoreId(7)));
        assert_eq!((spare_of("12"), spare_of("12~")), (Some((12, true)), Some((12, false))));
        assert_eq!((spare_of("012"), spare_of("1~~"), spare_of("~")), (None, None, None));
        assert_eq!((journal_of("07"), journal_of("7~bad"), journal_of("+7")), (None, None, None));
        assert_eq!(base_of("00000000000000000042.segment", "segment"), Some(42));
        assert_eq!(base_of("00000000000000000042.commit", "segment"), None);
        assert_eq!(base_of("42.segment", "segment"), None);
        assert_eq!(base_of("99999999999999999999.segment", "segment"), None);
    }
}
