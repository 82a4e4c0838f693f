//! Opens sockets that listen or are about to connect, and reads the addresses of their other ends. Blocking set-up calls only.

use super::holder::holder;
use super::{Holder, NetError};
use crate::base::Peer;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Connections that may wait to be accepted; the kernel caps it at net.core.somaxconn.
pub(super) const BACKLOG: i32 = 4096;

/// A listener on `host:port` whose address other listeners of this process (one per core) may share: the kernel spreads
/// connections over them. `:4150` and `*:4150` mean every address.
pub fn listen(address: &str) -> Result<TcpListener, NetError> {
    let mut failed = io::Error::other("the name has no address");
    for at in candidates(address)? {
        match listen_at(at) {
            Ok(listener) => return Ok(listener),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => return Err(error_of(address, e)),
            Err(e) => failed = e,
        }
    }
    Err(error_of(address, failed))
}

/// Addresses that `host:port` stands for, the preferred one first. As in Go every address of the machine (`:4150`, `*:4150`,
/// `0.0.0.0:4150`, `[::]:4150`) is one socket for IPv6 and IPv4, and IPv4 alone on a machine without IPv6.
pub(super) fn candidates(address: &str) -> Result<Vec<SocketAddr>, NetError> {
    let invalid = |cause| NetError::Address { address: address.to_owned(), cause };
    let every = |port| vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    let found = in_full(address).to_socket_addrs().map_err(invalid)?;
    Ok(found.flat_map(|at| if at.ip().is_unspecified() { every(at.port()) } else { vec![at] }).collect())
}

fn in_full(address: &str) -> String {
    match address.strip_prefix('*').unwrap_or(address) {
        port if port.starts_with(':') => format!("0.0.0.0{port}"),
        _ => address.to_owned(),
    }
}

pub(super) fn error_of(address: &str, failed: io::Error) -> NetError {
    let address = address.to_owned();
    match failed.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            let taken = candidates(&address).unwrap_or_default();
            let holder = taken.into_iter().map(holder).find(|holder| *holder != Holder::Nobody).unwrap_or(Holder::Nobody);
            NetError::InUse { address, holder }
        }
        Some(libc::EACCES) => NetError::Forbidden { address },
        Some(libc::EADDRNOTAVAIL) => NetError::NotHere { address },
        _ => NetError::Listen { address, cause: failed },
    }
}

pub(super) fn listen_at(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = open(at, true)?;
    // SAFETY: a plain system call on our socket.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket.into())
}

/// A socket that is bound there, also while connections of an earlier one stand in TIME_WAIT; if `is_shared`, beside others.
pub(super) fn open(at: SocketAddr, is_shared: bool) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a plain system call.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    if is_shared {
        set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT)?;
    }
    if at.is_ipv6() && at.ip().is_unspecified() {
        set_to(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
    }
    let (storage, len) = raw_address(at);
    // SAFETY: `storage` holds an address of `len` bytes.
    check(unsafe { libc::bind(fd, (&raw const storage).cast(), len) })?;
    Ok(socket)
}

pub(super) fn raw_address(at: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros is a valid value of this plain C struct.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match at {
        SocketAddr::V4(a) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than, and aligned for, every kind of address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(v4) };
            (storage, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(a) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(v6) };
            (storage, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

/// A socket that is about to connect to another node.
pub(super) fn dialling(at: SocketAddr) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a plain system call.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set_nodelay(fd)?;
    keep_alive(&socket)?;
    Ok(socket)
}

/// A connection whose other end is gone for good ends by itself, in half a minute. Accepted sockets inherit it from their
/// listener.
pub fn keep_alive(socket: &impl AsRawFd) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE)?;
    set_to(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10)?;
    set_to(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5)?;
    set_to(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4)
}

/// Small answers must not wait for a full segment. On Linux accepted sockets inherit it from their listener.
pub(super) fn set_nodelay(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY)
}

fn set_option(fd: RawFd, level: i32, name: i32) -> io::Result<()> {
    set_to(fd, level, name, 1)
}

pub(super) fn set_to(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: an int option, and its size.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<i32>() as u32) }).map(drop)
}

/// Closes the write side: the peer reads an end behind the sent bytes.
pub(super) fn shutdown_write(fd: &OwnedFd) {
    // SAFETY: a plain system call on our socket. An error says that the connection is gone, which its receive says too.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) };
}

/// Breaks the connection at once, so that everything in flight on it ends.
pub(super) fn shutdown_both(fd: &OwnedFd) {
    // SAFETY: as above.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Address of the peer; IPv4 also where the listener is for both versions of IP. An error says that the connection is gone.
pub(super) fn peer(fd: &OwnedFd) -> io::Result<Peer> {
    // SAFETY: all zeros is a valid value of this plain C struct.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `storage` has `len` writable bytes.
    check(unsafe { libc::getpeername(fd.as_raw_fd(), (&raw mut storage).cast(), &mut len) })?;
    let text = match storage.ss_family as i32 {
        libc::AF_INET => {
            // SAFETY: the kernel says that it is this kind.
            let a = unsafe { *(&raw const storage).cast::<libc::sockaddr_in>() };
            SocketAddr::from((a.sin_addr.s_addr.to_ne_bytes(), u16::from_be(a.sin_port))).to_string()
        }
        libc::AF_INET6 => {
            // SAFETY: the kernel says that it is this kind.
            let a = unsafe { *(&raw const storage).cast::<libc::sockaddr_in6>() };
            SocketAddr::new(IpAddr::from(a.sin6_addr.s6_addr).to_canonical(), u16::from_be(a.sin6_port)).to_string()
        }
        _ => "unknown".to_owned(),
    };
    Ok(Peer(text.into()))
}

pub(super) fn check(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn cores_share_an_address_and_errors_say_what_to_do() {
        let first = listen("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap().to_string();
        listen(&address).unwrap();
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap(); // without SO_REUSEPORT
        let taken = stranger.local_addr().unwrap().to_string();
        assert!(matches!(listen(&taken), Err(NetError::InUse { .. })));
        assert!(matches!(listen("192.0.2.1:0"), Err(NetError::NotHere { .. })));
        assert!(matches!(listen("no port"), Err(NetError::Address { .. })));
        listen("localhost:0").unwrap();
    }

    #[test]
    fn every_address_of_the_machine_is_of_both_versions_of_ip() {
        let clients = ["127.0.0.1:0", "[::1]:0"].into_iter().filter(|at| TcpListener::bind(at).is_ok());
        let clients: Vec<IpAddr> = clients.map(|at| at.parse::<SocketAddr>().unwrap().ip()).collect();
        for all in [":0", "*:0", "0.0.0.0:0", "[::]:0"] {
            let listener = listen(all).unwrap();
            let port = listener.local_addr().unwrap().port();
            for client in &clients {
                let client = TcpStream::connect((*client, port)).unwrap();
                let accepted = OwnedFd::from(listener.accept().unwrap().0);
                assert_eq!(*peer(&accepted).unwrap().0, client.local_addr().unwrap().to_string(), "{all}");
            }
        }
        let of = |address: &str| candidates(address).unwrap().iter().map(SocketAddr::to_string).collect::<Vec<_>>();
        assert_eq!((of(":1"), of("127.0.0.1:1")), (vec!["[::]:1".to_owned(), "0.0.0.0:1".into()], vec!["127.0.0.1:1".into()]));
    }
}
