//! Owner of a listening address that is in use: looked up in /proc, for the error message.
//!
//! A killed process's ring may hold its listeners for a moment after the process is gone. The kernel's table names them then, and no
//! process has them: that is worth waiting for ([`Holder::Nobody`]), unlike for a process that lives.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// Process that listens at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A process that lives.
    Process { pid: u32, name: String },
    /// Another user's process, which only that user and root can look up.
    User { uid: u32 },
    /// No visible process: one that has just ended, or one of another container.
    Nobody,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Process { pid, name } => write!(f, "pid {pid} ({name}) listens there"),
            Holder::User { uid } => write!(f, "a process of the user with id {uid} listens there (root sees it: `ss -ltnp`)"),
            Holder::Nobody => write!(f, "another process listens there (see `ss -ltnp`)"),
        }
    }
}

/// State number of a listening socket in /proc/net/tcp.
const LISTENS: &str = "0A";

/// A socket of the kernel's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listener {
    at: SocketAddr,
    uid: u32,
    inode: u64,
}

/// Finds the process that keeps this one from listening at `at`.
pub fn holder(at: SocketAddr) -> Holder {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let listeners: Vec<Listener> =
        tables.iter().flat_map(|table| listeners(table)).filter(|l| stands_in_the_way(l.at, at)).collect();
    if listeners.is_empty() {
        return Holder::Nobody;
    }
    let sockets: Vec<String> = listeners.iter().map(|l| format!("socket:[{}]", l.inode)).collect();
    // SAFETY: asks for a number.
    let me = unsafe { libc::geteuid() };
    match processes().find(|pid| has_one_of(*pid, &sockets) && !is_ending(*pid)) {
        Some(pid) => Holder::Process { pid, name: name_of(pid) },
        None => listeners.iter().find(|l| me != 0 && l.uid != me).map_or(Holder::Nobody, |l| Holder::User { uid: l.uid }),
    }
}

/// Listening sockets of a table of the kernel.
fn listeners(table: &str) -> Vec<Listener> {
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, LISTENS, _, _, _, uid, _, inode, ..] = fields[..] else { return None };
        let (ip, port) = local.split_once(':')?;
        let at = SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?);
        Some(Listener { at, uid: uid.parse().ok()?, inode: inode.parse().ok()? })
    };
    table.lines().filter_map(listener).collect()
}

/// Words of 32 bits, each as it stands in memory, in hexadecimal.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |i: usize| u32::from_str_radix(hex.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
        }
        _ => None,
    }
}

/// True if a listener at `has` keeps others from `wanted`.
fn stands_in_the_way(has: SocketAddr, wanted: SocketAddr) -> bool {
    let is_any = |at: SocketAddr| at.ip().is_unspecified();
    has.port() == wanted.port() && (has.ip().to_canonical() == wanted.ip().to_canonical() || is_any(has) || is_any(wanted))
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn has_one_of(pid: u32, sockets: &[String]) -> bool {
    let descriptors = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
    let mut links = descriptors.filter_map(|fd| fs::read_link(fd.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.iter().any(|socket| socket == link)))
}

/// True if the process was killed and has not closed everything yet.
fn is_ending(pid: u32) -> bool {
    const PF_EXITING: u64 = 4;
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    // the name, in parentheses, may hold anything; the flags are the seventh field behind it
    let stat = read("stat");
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    let is_pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:"));
        set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & KILLED != 0)
    };
    flags.is_none_or(|flags| flags & PF_EXITING != 0) || read("status").lines().any(is_pending)
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_kernels_table_is_read() {
        const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1039 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 7001 1 0 100 0 0 10 0\n\
            1: 0100007F:1039 0100007F:E0F2 01 00000000:00000000 00:00000000 00000000  1000        0 7002 1 0 20 4 30 10 -1\n\
            2: 00000000000000000000000000000000:1038 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
            00000000  0 0 7003 1 0\nshort\n";
        let found = listeners(TABLE);
        let expected = [
            Listener { at: "127.0.0.1:4153".parse().unwrap(), uid: 1000, inode: 7001 },
            Listener { at: "[::]:4152".parse().unwrap(), uid: 0, inode: 7003 },
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_address_is_in_the_way_of_itself_and_of_all() {
        let way = |has: &str, wanted: &str| stands_in_the_way(has.parse().unwrap(), wanted.parse().unwrap());
        assert!(way("127.0.0.1:1", "127.0.0.1:1") && way("0.0.0.0:1", "127.0.0.1:1") && way("127.0.0.1:1", "0.0.0.0:1"));
        assert!(way("[::]:1", "127.0.0.1:1") && way("[::ffff:127.0.0.1]:1", "127.0.0.1:1"));
        assert!(!way("127.0.0.1:1", "127.0.0.1:2") && !way("127.0.0.2:1", "127.0.0.1:1"));
    }

    #[test]
    fn who_listens_is_found() {
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let at = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
            let Holder::Process { pid, name } = holder(at) else { panic!("{:?}", holder(at)) };
            assert_eq!((pid, name.is_empty()), (std::process::id(), false));
            drop(listener);
            assert_eq!(holder(at), Holder::Nobody);
        }
    }
}
