//! The data path: its file system, O_DIRECT, free space, and the device's behaviour at a power loss.

use super::Finding;
use crate::base::BLOCK;
use crate::config::Settings;
use crate::disk::blocking::AlignedBuffer;
use crate::disk::paths::{SPARES, spare_of};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Free space below which a warning is due whatever the settings say.
const FREE_MIN: u64 = 1 << 30;

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let data = Path::new(&settings.data_path);
    let folder = match existing(data) {
        Ok(folder) => folder,
        Err(e) => {
            let remedy = "give a --data-path on a local disk that this user may write";
            return vec![Finding::fail("data path", format!("{}: {e}", data.display()), remedy)];
        }
    };
    let mut findings = vec![file_system(&folder), direct_io(&folder), free_space(&folder, settings), write_cache(&folder)];
    findings.extend(files_of_nsqd(data, settings));
    findings
}

/// Finds nsqd's files in the data path: its list of topics, and the messages that did not fit its memory.
fn files_of_nsqd(data: &Path, settings: &Settings) -> Option<Finding> {
    let names = fs::read_dir(data).into_iter().flatten().flatten().filter_map(|file| file.file_name().into_string().ok());
    let is_list = |name: &str| name.starts_with("nsqd.") && name.ends_with("dat");
    let (lists, queues): (Vec<String>, Vec<String>) =
        names.filter(|name| is_list(name) || name.contains(".diskqueue.")).partition(|name| is_list(name));
    let found = match (lists.first(), queues.len()) {
        (None, 0) => return None,
        (Some(list), 0) => list.clone(),
        (None, n) => format!("{n} files of its queues, *.diskqueue.*"),
        (Some(list), n) => format!("{list}, and {n} files of its queues, *.diskqueue.*"),
    };
    let (name, found) = ("files of nsqd", format!("{} holds files of nsqd ({found})", data.display()));
    if lists.iter().any(|list| list == "nsqd.dat") && settings.import_nsqd && !settings.is_clustered() {
        return Some(Finding::ok(name, found + ": a startup imports the remaining backlog"));
    }
    Some(Finding::warn(
        name,
        found + ": the node does not read these files, and their messages are not delivered",
        "move them to a folder of their own and take them over with `ringmq import <folder>`, or remove them",
    ))
}

/// The data path, or the nearest folder above it that is there: it will be made there.
pub(super) fn existing(data: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(data)?;
    for folder in absolute.ancestors() {
        match fs::metadata(folder) {
            Ok(found) if found.is_dir() => return Ok(folder.to_owned()),
            Ok(_) => return Err(io::Error::other(format!("{} is not a folder", folder.display()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn statfs(folder: &Path) -> io::Result<libc::statfs> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: all zeros is a valid value of this plain C struct, the path ends with a zero, the call fills the struct.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &mut found) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(found)
    }
}

fn file_system(folder: &Path) -> Finding {
    match statfs(folder) {
        Ok(found) => judge_file_system(found.f_type & 0xffff_ffff),
        Err(e) => Finding::warn(
            "file system",
            format!("{}: {e}", folder.display()),
            "use ext4 or xfs on a local disk, which are tested",
        ),
    }
}

fn judge_file_system(kind: i64) -> Finding {
    const NAME: &str = "file system";
    let elsewhere = "put --data-path on ext4 or xfs on a local disk";
    match kind {
        0xef53 => Finding::ok(NAME, "ext4"),
        0x5846_5342 => Finding::ok(NAME, "xfs"),
        0x0102_1994 | 0x8584_58f6 => {
            Finding::warn(NAME, "tmpfs: in memory, nothing survives a restart of the machine", elsewhere)
        }
        0x794c_7630 => {
            Finding::warn(NAME, "overlay: a container's own layer, it goes with the container", "mount a volume for --data-path")
        }
        0x6969 | 0xff53_4d42 | 0xfe53_4d42 | 0x517b => {
            Finding::warn(NAME, "a network file system: locks and durable writes depend on the server", elsewhere)
        }
        0x6573_5546 => Finding::warn(NAME, "fuse: locks and durable writes depend on its program", elsewhere),
        0x9123_683e | 0x2fc1_2fc1 => {
            Finding::warn(NAME, "copies on write (btrfs or zfs): overwriting the journal is never in place", elsewhere)
        }
        other => Finding::warn(NAME, format!("unknown kind {other:#x}"), "use ext4 or xfs on a local disk, which are tested"),
    }
}

/// Writes, syncs and reads back one block, in a file that has no name.
fn direct_io(folder: &Path) -> Finding {
    const NAME: &str = "O_DIRECT";
    let tried = (|| -> Result<(), (&str, io::Error)> {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC | libc::O_TMPFILE | libc::O_CLOEXEC);
        let file = options.open(folder).map_err(|e| ("open", e))?;
        let mut block = AlignedBuffer::zeroed(BLOCK);
        block.fill(0x5a);
        file.write_all_at(&block, 0).map_err(|e| ("write", e))?;
        block.fill(0);
        file.read_exact_at(&mut block, 0).map_err(|e| ("read", e))?;
        if block.iter().any(|&b| b != 0x5a) {
            return Err(("read", io::Error::other("the file reads back other bytes than were written")));
        }
        Ok(())
    })();
    match tried {
        Ok(()) => Finding::ok(NAME, format!("works at {BLOCK} bytes in {}", folder.display())),
        Err((call, e)) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)) => Finding::fail(
            NAME,
            format!("{}: {call}: {e}", folder.display()),
            "let this user write in that folder, or give another --data-path",
        ),
        Err((call, e)) if e.raw_os_error() == Some(libc::ENOSPC) => {
            let remedy = "free some space; the node starts all the same and refuses publishes until there is room";
            Finding::warn(NAME, format!("{}: {call}: {e}", folder.display()), remedy)
        }
        Err((call, e)) => Finding::fail(
            NAME,
            format!("does not work at {BLOCK} bytes in {}: {call}: {e}", folder.display()),
            "put --data-path on ext4 or xfs on a disk with sectors of at most 4,096 bytes",
        ),
    }
}

fn free_space(folder: &Path, settings: &Settings) -> Finding {
    let shards = (settings.shards as u64).max(1);
    let wanted = (shards * settings.journal_bytes + settings.max_bytes_per_file).max(FREE_MIN);
    match free_bytes(folder) {
        Ok(free) => judge_free_space(free, kept_space(&Path::new(&settings.data_path).join(SPARES)), wanted),
        Err(e) => Finding::warn("free space", e.to_string(), "look at df"),
    }
}

/// Bytes that this user may still write.
pub(super) fn free_bytes(folder: &Path) -> io::Result<u64> {
    statfs(folder).map(|found| found.f_bavail.saturating_mul(found.f_bsize.unsigned_abs()))
}

/// Bytes of removed segments that the node keeps (`spare-bytes`) and gives back before the disk is full.
fn kept_space(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = files.filter(|file| file.file_name().to_str().is_some_and(|name| spare_of(name).is_some()));
    // one with a second name would free nothing
    let found = ours.filter_map(|file| file.metadata().ok()).filter(|found| found.is_file() && found.nlink() == 1);
    found.map(|found| found.blocks() * 512).sum()
}

fn judge_free_space(free: u64, kept: u64, wanted: u64) -> Finding {
    const NAME: &str = "free space";
    let found = match kept >> 20 {
        0 => format!("{} MiB free", free >> 20),
        kept => format!("{} MiB free, and {kept} MiB in {SPARES}/, which goes before the disk is full", free >> 20),
    };
    if free.saturating_add(kept) < wanted {
        let remedy = format!("have {} MiB or more (the journals and a segment); a full disk refuses publishes", wanted >> 20);
        return Finding::warn(NAME, found, remedy);
    }
    Finding::ok(NAME, found)
}

/// Finds whether the device has a volatile write cache. With one, each durable write pays for a flush; the flush makes the write safe,
/// unless the device lies about it.
fn write_cache(folder: &Path) -> Finding {
    const NAME: &str = "write cache";
    let unknown = |why: String| Finding::ok(NAME, format!("not known ({why})"));
    let device = match fs::metadata(folder) {
        Ok(found) => found.dev(),
        Err(e) => return unknown(e.to_string()),
    };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let block = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    // a partition has its queue in the folder of its disk
    let queue = [block.join("queue"), block.join("../queue")].into_iter().find(|queue| queue.is_dir());
    let Some(queue) = queue else { return unknown(format!("no block device {major}:{minor}")) };
    match fs::read_to_string(queue.join("write_cache")).unwrap_or_default().trim() {
        "write through" => {
            Finding::ok(NAME, "write through: a write is durable at once, or the cache is protected against power loss")
        }
        "write back" => Finding::ok(
            NAME,
            "write back: each durable write flushes the cache (a disk with power-loss protection is much faster here)",
        ),
        other => unknown(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn places_are_judged() {
        assert_eq!(judge_file_system(0xef53).level, Level::Ok);
        for volatile in [0x0102_1994, 0x794c_7630, 0x6969, 0x42] {
            assert_eq!(judge_file_system(volatile).level, Level::Warn);
        }
        assert_eq!((judge_free_space(9, 0, 10).level, judge_free_space(9, 1, 10).level), (Level::Warn, Level::Ok));
        assert!(judge_free_space(9 << 20, 3 << 20, 10).to_string().contains("9 MiB free, and 3 MiB in spare/"));
        let folder = tempfile::tempdir_in(".").unwrap();
        let spares = folder.path().join(SPARES);
        assert_eq!(kept_space(&spares), 0);
        fs::create_dir(&spares).unwrap();
        let name = |number: u32| format!("{number}-{:032x}-0-0", 7);
        for other in [name(1), name(2), "a-stranger".into()] {
            fs::write(spares.join(other), [1; BLOCK]).unwrap();
        }
        fs::hard_link(spares.join(name(2)), folder.path().join("held")).unwrap();
        let one = fs::metadata(spares.join(name(1))).unwrap().blocks() * 512;
        assert!(one > 0 && kept_space(&spares) == one, "{name:?}", name = name(1));
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        let data_path = file.path().join("below").to_str().unwrap().to_owned();
        let findings = check(&Settings { data_path, ..Settings::default() });
        assert_eq!(findings.iter().map(|f| f.level).collect::<Vec<_>>(), vec![Level::Fail], "{findings:?}");
        let (imports, keeps) = (Settings::default(), Settings { import_nsqd: false, ..Settings::default() });
        assert_eq!(files_of_nsqd(folder.path(), &imports), None);
        for name in ["nsqd.dat", "t.diskqueue.000000.dat", "t:c.diskqueue.meta.dat"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(files_of_nsqd(folder.path(), &imports).map(|found| found.level), Some(Level::Ok));
        let found = files_of_nsqd(folder.path(), &keeps).unwrap();
        assert!(found.level == Level::Warn && found.found.contains("(nsqd.dat, and 2 files of its queues"), "{found}");
        let proc = check(&Settings { data_path: "/proc/ringmq".into(), ..Settings::default() });
        assert!(proc.iter().any(|f| f.name == "O_DIRECT" && f.level == Level::Fail), "{proc:?}");
    }
}
