//! CPU time and memory of a process, from /proc.

use std::fs;

#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Usage {
    /// User and system.
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    /// The most since the process started.
    pub resident_bytes_max: u64,
}

/// Name of the process as the kernel has it, at most 15 bytes.
pub fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_string()).filter(|name| !name.is_empty())
}

pub fn usage(pid: u32) -> Result<Usage, String> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))
    };
    let cpu_seconds = cpu_seconds(&read("stat")?).ok_or_else(|| format!("/proc/{pid}/stat is not as expected"))?;
    let status = read("status")?;
    Ok(Usage { cpu_seconds, resident_bytes: kib(&status, "VmRSS:") << 10, resident_bytes_max: kib(&status, "VmHWM:") << 10 })
}

/// utime and stime are the 14th and 15th field; the second one, the name, may hold anything but ends with the last `)`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // SAFETY: it only answers a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some((user + system) as f64 / if ticks > 0 { ticks as f64 } else { 100.0 })
}

/// 0 when it is not there, as for a process that is about to be gone.
fn kib(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sees_itself_and_says_who_is_not_there() {
        let own = usage(std::process::id()).unwrap();
        assert!(own.resident_bytes > 0 && own.resident_bytes <= own.resident_bytes_max, "{own:?}");
        assert!(name(std::process::id()).is_some() && name(i32::MAX as u32).is_none());
        assert!(usage(i32::MAX as u32).unwrap_err().contains("/proc/2147483647/stat"));
        assert_eq!(cpu_seconds("1 (a) b) S 1 1 1 0 -1 4 1 0 0 0 150 50 0 0"), Some(2.0));
        assert_eq!(cpu_seconds("1 (a"), None);
    }
}
