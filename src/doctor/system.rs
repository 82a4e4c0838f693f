//! Kernel, io_uring, CPUs.

use super::Finding;
use crate::config::Settings;
use crate::runtime::cores::allowed_cpus;
use std::fs;
use std::io;

/// 5.10 loses wakes, 5.15 hangs in D state, 6.5 crashes on some file systems.
const KERNEL_MIN: (u32, u32) = (6, 1);

pub(super) fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    judge_kernel(release.trim())
}

fn judge_kernel(release: &str) -> Finding {
    const NAME: &str = "kernel";
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) < KERNEL_MIN => Finding::fail(
            NAME,
            format!("Linux {release} is too old for the io_uring operations of a node"),
            "install Linux 6.1 or later (6.15 or later also shows idle rings as idle)",
        ),
        (Some(6), Some(5)) => Finding::warn(
            NAME,
            format!("Linux {release}"),
            "6.5 is known to crash with O_DIRECT on some file systems: use 6.6 or later",
        ),
        (Some(_), Some(_)) => Finding::ok(NAME, format!("Linux {release}")),
        _ => Finding::warn(NAME, format!("unknown version {release:?}"), "Linux 6.1 or later is needed"),
    }
}

/// Tried here, with an error to show, because glommio ends the process when its own try fails.
pub(super) fn io_uring() -> Finding {
    const NAME: &str = "io_uring";
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok().and_then(|s| s.trim().parse::<u8>().ok());
    let ring = io_uring::IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8);
    match ring {
        Ok(ring) => match missing_operations(&ring) {
            Ok(missing) if missing.is_empty() => Finding::ok(NAME, "available"),
            Ok(missing) => Finding::fail(NAME, format!("the kernel has no {}", missing.join(", ")), "install Linux 6.1 or later"),
            Err(e) => Finding::fail(NAME, format!("its features cannot be read: {e}"), seccomp_remedy()),
        },
        Err(e) => {
            let remedy = match (sysctl, e.raw_os_error()) {
                (Some(2), _) => "it is disabled: sysctl -w kernel.io_uring_disabled=0".to_owned(),
                (Some(1), _) => {
                    "it is for privileged processes only: sysctl -w kernel.io_uring_disabled=0, or put the process into the group of \
                     kernel.io_uring_group"
                        .to_owned()
                }
                (_, Some(libc::EPERM | libc::ENOSYS)) => seccomp_remedy(),
                (_, Some(libc::ENOMEM)) => "raise the limit of locked memory: ulimit -l, LimitMEMLOCK= of systemd".to_owned(),
                (_, Some(libc::EMFILE | libc::ENFILE)) => "raise the limit of open files: ulimit -n".to_owned(),
                _ => "install Linux 6.1 or later".to_owned(),
            };
            Finding::fail(NAME, format!("cannot be used: {e}"), remedy)
        }
    }
}

fn seccomp_remedy() -> String {
    let filtered = fs::read_to_string("/proc/self/status")
        .unwrap_or_default()
        .lines()
        .any(|l| l.starts_with("Seccomp:") && !l.ends_with('0'));
    let hint = if filtered { "this process runs under a seccomp filter: " } else { "" };
    format!(
        "{hint}in a container allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile \
         (docker run --security-opt seccomp=<profile>; Docker 25 and later forbid them)"
    )
}

fn missing_operations(ring: &io_uring::IoUring) -> io::Result<Vec<&'static str>> {
    use io_uring::opcode as op;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        ("read", op::ReadFixed::CODE),
        ("write", op::WriteFixed::CODE),
        ("fsync", op::Fsync::CODE),
        ("openat", op::OpenAt::CODE),
        ("statx", op::Statx::CODE),
        ("accept", op::Accept::CODE),
        ("receive", op::Recv::CODE),
        ("send", op::Send::CODE),
        ("cancel", op::AsyncCancel::CODE),
        ("timeout", op::Timeout::CODE),
    ];
    Ok(needed.iter().filter(|(_, code)| !probe.is_supported(*code)).map(|(name, _)| *name).collect())
}

/// Path of the kernel's list of CPUs. glommio reads the topology there, and ends the process where the path is missing.
const SYSFS_CPUS: &str = "/sys/devices/system/cpu/online";

pub(super) fn cpus(settings: &Settings) -> Finding {
    const NAME: &str = "cpus";
    if let Err(e) = fs::read_to_string(SYSFS_CPUS) {
        return unlisted_cpus(SYSFS_CPUS, &e);
    }
    let cpus = match allowed_cpus() {
        Ok(cpus) => cpus.len(),
        Err(e) => return Finding::warn(NAME, format!("cannot be counted: {e}"), "look at taskset and the cgroup's cpuset"),
    };
    judge_cpus(cpus, settings.shards as usize)
}

fn unlisted_cpus(path: &str, error: &io::Error) -> Finding {
    let remedy =
        "mount sysfs on /sys, as containers do; for a chroot: `mount -R /sys ROOT/sys`, and the same with /proc and /dev";
    Finding::fail("cpus", format!("{path} cannot be read: {error}"), remedy)
}

fn judge_cpus(cpus: usize, shards: usize) -> Finding {
    const NAME: &str = "cpus";
    if shards > cpus {
        let remedy = format!("use --shards={cpus} or fewer: shards that share a CPU wait for each other");
        return Finding::warn(NAME, format!("{shards} shards on {cpus} CPUs"), remedy);
    }
    let shards = if shards == 0 { cpus } else { shards };
    Finding::ok(NAME, format!("{shards} shards on {cpus} CPUs"))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_root_without_sysfs_ends_the_start_with_its_remedy() {
        let found = unlisted_cpus("/nope/online", &fs::read_to_string("/nope/online").unwrap_err());
        assert_eq!(found.level, Level::Fail);
        assert!(found.to_string().contains("/nope/online cannot be read") && found.remedy.contains("mount sysfs"), "{found}");
    }

    #[test]
    fn kernels_and_cpus_are_judged() {
        for (release, level) in [
            ("5.15.0-91-generic", Level::Fail),
            ("6.0.19", Level::Fail),
            ("6.1.0-18-amd64", Level::Ok),
            ("6.5.3", Level::Warn),
            ("6.18.44", Level::Ok),
            ("7.0-rc1", Level::Ok),
            ("", Level::Warn),
        ] {
            assert_eq!(judge_kernel(release).level, level, "{release}");
        }
        assert_eq!((judge_cpus(2, 3).level, judge_cpus(2, 2).level, judge_cpus(2, 0).level), (Level::Warn, Level::Ok, Level::Ok));
    }
}
