//! Path of a [`FileId`] below the data path, and the meaning of a found file name.

use super::spares::Name;
use crate::base::{CoreId, FileId, PartitionDir, PartitionId, TopicId};
use std::path::{Path, PathBuf};

/// Held exclusively by the process that uses the data path.
pub const LOCK: &str = "LOCK";

/// A file that is never empty. Each executor opens it first, see [`super::shard_disk`].
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

/// Parses the name of a kept file: number and segment, and whether the first block is zeroed (a name without a `~`).
pub fn spare_of(name: &str) -> Option<(Name, bool)> {
    let kept = name.strip_suffix('~').unwrap_or(name);
    let mut parts = kept.split('-');
    let mut next = || parts.next();
    let (number, topic, partition, base) = (next()?.parse().ok()?, next()?, next()?.parse().ok()?, next()?.parse().ok()?);
    let topic_id = TopicId(u128::from_str_radix(topic, 16).ok()?.to_be_bytes());
    let found = Name { number, topic_id, partition: PartitionId(partition), base };
    (found.to_string() == kept).then_some((found, kept == name))
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
        let id = "0102030405060708090a0b0c0d0e0f10";
        let spare =
            Name { number: 7, topic_id: TopicId(std::array::from_fn(|i| i as u8 + 1)), partition: PartitionId(3), base: 42 };
        assert_eq!(spare_of(&format!("7-{id}-3-42")), Some((spare, true)));
        assert_eq!(spare_of(&format!("7-{id}-3-42~")), Some((spare, false)));
        for name in
            [format!("07-{id}-3-42"), format!("7-{id}-3"), format!("7-{id}-3-42-1"), format!("7-{}-3-42", &id[1..]), "7~".into()]
        {
            assert_eq!(spare_of(&name), None, "{name}");
        }
        assert_eq!((journal_of("07"), journal_of("7~bad"), journal_of("+7")), (None, None, None));
        assert_eq!(base_of("00000000000000000042.segment", "segment"), Some(42));
        assert_eq!(base_of("00000000000000000042.commit", "segment"), None);
        assert_eq!(base_of("42.segment", "segment"), None);
        assert_eq!(base_of("99999999999999999999.segment", "segment"), None);
    }
}
