//! Limits of the process (locked memory, open files), and the system's huge pages.

use super::Finding;
use crate::config::Settings;
use crate::disk::DiskOptions;
use crate::runtime::cores::{IO_MEMORY, RING_DEPTH, allowed_cpus};
use std::fs;
use std::io;

/// glommio refuses to start below this.
const MEMLOCK_MIN: u64 = 512 * 1024;

/// Sockets' ring, eventfds, epolls, blocking pool, standard streams: more than enough for one core.
const FILES_PER_CORE: u64 = 64;

/// The limit in force. Of open files the hard one, since the node raises its own to that when it starts.
fn limit(resource: libc::__rlimit_resource_t) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let value = if resource == libc::RLIMIT_NOFILE { limit.rlim_max } else { limit.rlim_cur };
    Ok(if value == libc::RLIM_INFINITY { u64::MAX } else { value })
}

fn cores(settings: &Settings) -> u64 {
    match settings.shards {
        0 => allowed_cpus().map_or(1, |cpus| cpus.len() as u64),
        shards => shards as u64,
    }
}

pub(super) fn memlock(settings: &Settings) -> Finding {
    const NAME: &str = "memlock";
    // with CAP_IPC_LOCK (bit 14) locked memory is not limited
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|h| u64::from_str_radix(h.trim(), 16).ok());
    let is_privileged = effective.is_some_and(|bits| bits & 1 << 14 != 0);
    match limit(libc::RLIMIT_MEMLOCK) {
        Ok(limit) => judge_memlock(limit, is_privileged, cores(settings)),
        Err(e) => Finding::warn(NAME, format!("the limit cannot be read: {e}"), "look at ulimit -l"),
    }
}

fn judge_memlock(limit: u64, is_privileged: bool, cores: u64) -> Finding {
    const NAME: &str = "memlock";
    // the disk buffers are registered with each of an executor's three rings; a ring has 64 B per submission and twice
    // 16 B per completion, with twice as many completions
    let rings = 3 * RING_DEPTH as u64 * (64 + 2 * 32);
    let needed = cores * (3 * IO_MEMORY as u64 + rings);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let remedy = format!("raise it to {} MiB or more: ulimit -l {}, LimitMEMLOCK= of systemd", mib(needed), mib(needed) << 10);
    if limit < MEMLOCK_MIN {
        return Finding::fail(NAME, format!("{} KiB may be locked, the executors refuse less than 512 KiB", limit >> 10), remedy);
    }
    if limit < needed && !is_privileged {
        let found = format!(
            "{} MiB may be locked, {cores} cores want {} MiB: disk buffers are not registered, which costs CPU",
            mib(limit),
            mib(needed)
        );
        return Finding::warn(NAME, found, remedy);
    }
    let allowed = if is_privileged || limit == u64::MAX { "unlimited".into() } else { format!("{} MiB", mib(limit)) };
    Finding::ok(NAME, format!("{allowed}, {cores} cores want {} MiB", mib(needed)))
}

pub(super) fn open_files(settings: &Settings) -> Finding {
    match limit(libc::RLIMIT_NOFILE) {
        Ok(limit) => judge_open_files(limit, cores(settings), settings.max_connections),
        Err(e) => Finding::warn("open files", format!("the limit cannot be read: {e}"), "look at ulimit -n"),
    }
}

fn judge_open_files(limit: u64, cores: u64, connections: u64) -> Finding {
    const NAME: &str = "open files";
    let own = cores * (FILES_PER_CORE + DiskOptions::default().open_files_max as u64) + 64;
    let remedy = |needed: u64| format!("raise it to {needed} or more: ulimit -n, LimitNOFILE= of systemd");
    if limit < cores * FILES_PER_CORE + 64 {
        return Finding::fail(
            NAME,
            format!("{limit} may be open, {cores} cores need {own} before the first client"),
            remedy(own + 10_000),
        );
    }
    let needed = own + if connections == 0 { 1_000 } else { connections };
    if limit < needed {
        let clients = if connections == 0 { "1,000 clients".to_owned() } else { format!("--max-connections={connections}") };
        return Finding::warn(
            NAME,
            format!("{limit} may be open, {cores} cores with {clients} need {needed}"),
            remedy(needed.max(20_000)),
        );
    }
    Finding::ok(NAME, format!("{limit} may be open: room for {} clients", limit - own))
}

/// Long reads and writes go through huge pages, where there are some: `src/disk/blocks.rs` asks for them.
pub(super) fn huge_pages() -> Finding {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    // Linux 6.8 and later have a choice for each size, too
    let (all, own) = (format!("{FOLDER}/enabled"), format!("{FOLDER}/hugepages-2048kB/enabled"));
    let (path, enabled) = match fs::read_to_string(&own) {
        Ok(enabled) if !enabled.contains("[inherit]") => (own, Ok(enabled)),
        _ => (all.clone(), fs::read_to_string(&all)),
    };
    // SAFETY: a question without memory. 1: none at all, also where they are asked for.
    let is_barred = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } == 1;
    judge_huge_pages(&path, enabled, is_barred)
}

/// `enabled` as the kernel says it: the choice in force stands in brackets.
fn judge_huge_pages(path: &str, enabled: io::Result<String>, is_barred: bool) -> Finding {
    const NAME: &str = "huge pages";
    const SLOWER: &str = "long reads and writes go through small pages and cost more";
    let enabled = match enabled {
        Ok(enabled) => enabled,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Finding::warn(NAME, format!("this kernel has none: {SLOWER}"), "a kernel with CONFIG_TRANSPARENT_HUGEPAGE");
        }
        Err(e) => return Finding::warn(NAME, format!("not known: {e}"), format!("look at {path}")),
    };
    match enabled.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
        Some(("always" | "madvise", _)) if is_barred => Finding::warn(
            NAME,
            format!("disabled for this process by its parent (PR_SET_THP_DISABLE): {SLOWER}"),
            "start the node from a parent process that does not call prctl(PR_SET_THP_DISABLE)",
        ),
        Some((choice @ ("always" | "madvise"), _)) => Finding::ok(NAME, format!("available ({choice})")),
        _ => Finding::warn(NAME, format!("switched off ({}): {SLOWER}", enabled.trim()), format!("echo madvise > {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn limits_are_judged() {
        assert_eq!(judge_memlock(64 << 10, true, 1).level, Level::Fail);
        assert_eq!(judge_memlock(8 << 20, false, 4).level, Level::Warn);
        assert_eq!(judge_memlock(8 << 20, true, 4).level, Level::Ok);
        assert_eq!(judge_memlock(u64::MAX, false, 64).level, Level::Ok);
        assert_eq!(judge_open_files(100, 2, 0).level, Level::Fail);
        assert_eq!(judge_open_files(1024, 2, 0).level, Level::Warn);
        assert_eq!(judge_open_files(20_000, 2, 10_000).level, Level::Ok);
        assert_eq!(judge_open_files(20_000, 2, 100_000).level, Level::Warn);
        let huge = |enabled: &str| judge_huge_pages("/sys/its/enabled", Ok(enabled.into()), false);
        assert_eq!(huge("always [madvise] never\n").to_string(), "ok    huge pages: available (madvise)");
        assert_eq!((huge("[always] madvise never\n").level, huge("always madvise [never]\n").level), (Level::Ok, Level::Warn));
        assert!(huge("always madvise [never]\n").to_string().contains("echo madvise > /sys/its/enabled"));
        assert_eq!(judge_huge_pages("", Err(io::ErrorKind::NotFound.into()), false).level, Level::Warn);
        assert!(judge_huge_pages("", Ok("[always] madvise never".into()), true).to_string().contains("PR_SET_THP_DISABLE"));
    }
}
