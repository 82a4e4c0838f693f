//! An address that belongs to this process alone before anything is read or made for it, and that answers no client yet.
//!
//! The cores' listeners share an address by SO_REUSEPORT, with which another node of the same user would quietly share it
//! too and take half of the clients. So the address is first taken without:
//!
//! ```text
//! bind, listen   with SO_REUSEADDR (connections of an earlier process may still stand in TIME_WAIT): fails when a process
//!                listens there, shared or not
//! no SO_REUSEADDR, then no listening: the port stays ours, also against sockets that do not listen yet; clients are refused
//! SO_REUSEPORT   only now, for our own listeners; a process that takes the address as above is still kept out
//! ```
//! Between two nodes that start at the same time one wins: `listen` is the kernel's to decide.

use super::listen::{BACKLOG, candidates, check, error_of, listen_at, open, set_to};
use super::{Holder, NetError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const RETRY: Duration = Duration::from_millis(5);

/// Time within which a killed process mostly releases its address. The owner is looked up only after it, since that takes a look at
/// every descriptor of every process.
const PATIENCE: Duration = Duration::from_millis(40);
const PATIENT_RETRY: Duration = Duration::from_millis(1);

pub struct Reserved {
    socket: OwnedFd,
    at: SocketAddr,
}

impl Reserved {
    /// Takes `host:port`, as [`super::listen`] reads it, waiting up to `wait` for a killed process whose ring still holds its
    /// listeners. A process that lives is not waited for. Port 0 is a free one.
    pub fn take(address: &str, wait: Duration) -> Result<Reserved, NetError> {
        let (begun, deadline) = (Instant::now(), Instant::now() + wait);
        let mut is_told = false;
        loop {
            let failed = match Self::try_take(address)? {
                Ok(reserved) => return Ok(reserved),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < PATIENCE.min(wait) => {
                    std::thread::sleep(PATIENT_RETRY);
                    continue;
                }
                Err(e) => error_of(address, e),
            };
            if !matches!(failed, NetError::InUse { holder: Holder::Nobody, .. }) {
                return Err(failed);
            }
            if Instant::now() >= deadline {
                return Err(failed);
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(
                    address,
                    ?wait,
                    "the address is in use by a process that has ended or cannot be seen: the node waits for \
                    the address"
                );
            }
            std::thread::sleep(RETRY);
        }
    }

    fn try_take(address: &str) -> Result<io::Result<Reserved>, NetError> {
        Ok(Self::first_of(candidates(address)?.into_iter()))
    }

    /// Reserves the first of the addresses that this machine has. A taken one is not skipped: otherwise a node whose former process just
    /// dies would get another address.
    fn first_of(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<Reserved> {
        let mut failed = io::Error::other("the name has no address");
        for at in addresses {
            match chosen(at).and_then(|at| Ok(Reserved { socket: exclusive(at)?, at })) {
                Err(e) if e.kind() != io::ErrorKind::AddrInUse => failed = e,
                taken => return taken,
            }
        }
        Err(failed)
    }

    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// Listeners that share the address, each of which gets its part of the connections.
    pub fn share(self, listeners: usize) -> Result<Vec<TcpListener>, NetError> {
        let shared = || -> io::Result<Vec<TcpListener>> {
            set_to(self.socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
            (0..listeners).map(|_| listen_at(self.at)).collect()
        };
        shared().map_err(|e| error_of(&self.at.to_string(), e))
    }

    /// Opens the one listener for all addresses.
    pub fn listen(self) -> Result<TcpListener, NetError> {
        let listen = || {
            // its connections inherit it, and the next process can have the address while they stand in TIME_WAIT
            set_to(self.socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            // SAFETY: a plain system call on our socket, which is bound.
            check(unsafe { libc::listen(self.socket.as_raw_fd(), BACKLOG) })
        };
        listen().map_err(|e| error_of(&self.at.to_string(), e))?;
        Ok(self.socket.into())
    }
}

/// The address with its port. A port that the kernel chose ends with its listener; a port that was named stays.
fn chosen(at: SocketAddr) -> io::Result<SocketAddr> {
    if at.port() != 0 {
        return Ok(at);
    }
    TcpListener::bind(at)?.local_addr()
}

fn exclusive(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(at, false)?;
    let fd = socket.as_raw_fd();
    // SAFETY: a plain system call on our socket.
    check(unsafe { libc::listen(fd, 1) })?;
    set_to(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 0)?;
    // SAFETY: as above.
    check(unsafe { libc::shutdown(fd, libc::SHUT_RDWR) })?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::super::listen;
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    const NOW: Duration = Duration::ZERO;

    fn is_in_use<T>(result: Result<T, NetError>) -> bool {
        matches!(result, Err(NetError::InUse { .. }))
    }

    #[test]
    fn a_reserved_address_is_nobody_elses_and_answers_nobody() {
        let reserved = Reserved::take("127.0.0.1:0", NOW).unwrap();
        let at = reserved.address();
        let everywhere = format!("0.0.0.0:{}", at.port());
        let refused = || TcpStream::connect(at).unwrap_err().kind() == ErrorKind::ConnectionRefused;
        assert!(refused());
        for address in [at.to_string(), everywhere] {
            assert!(is_in_use(Reserved::take(&address, NOW)) && is_in_use(listen(&address)), "{address}");
            assert!(TcpListener::bind(&address).is_err(), "{address}");
        }
        let listeners = reserved.share(2).unwrap();
        assert!(is_in_use(Reserved::take(&at.to_string(), NOW)), "it is shared among these alone");
        TcpStream::connect(at).unwrap();
        drop(listeners);
        let one = Reserved::take(&at.to_string(), NOW).unwrap().listen().unwrap();
        assert_eq!(one.local_addr().unwrap(), at);
        assert!(is_in_use(Reserved::take(&at.to_string(), NOW)));
    }

    #[test]
    fn of_a_name_s_addresses_the_first_that_is_here_is_taken_or_waited_for() {
        let of = |addresses: &[&str]| -> Vec<SocketAddr> { addresses.iter().map(|at| at.parse().unwrap()).collect() };
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let held = holder.local_addr().unwrap();
        let taken = |addresses: Vec<SocketAddr>| Reserved::first_of(addresses.into_iter()).map(|r| r.address().ip());
        let [elsewhere, other] = ["192.0.2.1:0", "127.0.0.2:0"];
        assert_eq!(taken(of(&[elsewhere, other])).unwrap(), of(&[other])[0].ip());
        assert_eq!(taken(vec![held, of(&[other])[0]]).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(taken(vec![]).is_err());
    }

    #[test]
    fn every_address_is_not_free_while_a_process_has_one_of_either_version_of_ip() {
        for held in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(holder) = TcpListener::bind(held) else { continue };
            for every in ["0.0.0.0", "[::]", ""] {
                let address = format!("{every}:{}", holder.local_addr().unwrap().port());
                let said = Reserved::take(&address, NOW).err().unwrap().to_string();
                assert!(said.starts_with(&format!("{address} is in use: pid {} (", std::process::id())), "{held}: {said}");
            }
        }
        let every = Reserved::take("0.0.0.0:0", NOW).unwrap();
        let port = every.address().port();
        let _listeners = every.share(2).unwrap();
        for host in ["127.0.0.1", "0.0.0.0", "[::1]"] {
            assert!(Reserved::take(&format!("{host}:{port}"), NOW).is_err(), "{host}");
        }
    }

    #[test]
    fn connections_that_are_over_hold_no_address() {
        let take = |at: &str| Reserved::take(at, NOW).unwrap();
        let shared = |reserved: Reserved| reserved.share(1).unwrap().remove(0);
        let alone = |reserved: Reserved| reserved.listen().unwrap();
        let mut at = "127.0.0.1:0".to_owned();
        for listener in [shared, alone, shared] {
            let listener = listener(take(&at));
            at = listener.local_addr().unwrap().to_string();
            let client = TcpStream::connect(&at).unwrap();
            // the side that closes first has TIME_WAIT
            drop(listener.accept().unwrap());
            drop(client);
        }
        take(&at);
    }

    #[test]
    fn a_process_that_lives_is_named_and_not_waited_for() {
        const FOR_EVER: Duration = Duration::from_secs(3600);
        for holder in [listen("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()] {
            let address = holder.local_addr().unwrap().to_string();
            let said = Reserved::take(&address, FOR_EVER).err().unwrap().to_string();
            assert!(said.starts_with(&format!("{address} is in use: pid {} (", std::process::id())), "{said}");
        }
    }

    /// No process has the socket, as when a killed one's ring still does: it is on its way through another socket.
    fn on_its_way(listener: TcpListener) -> (UnixStream, UnixStream) {
        let (from, to) = UnixStream::pair().unwrap();
        let mut byte = [0u8];
        let mut io = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = [0u64; 8];
        // SAFETY: the message points to live memory that is long and aligned enough for one descriptor.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut io, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<i32>() as u32) as _;
            let part = libc::CMSG_FIRSTHDR(&message);
            ((*part).cmsg_level, (*part).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*part).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as _;
            libc::CMSG_DATA(part).cast::<i32>().write_unaligned(listener.as_raw_fd());
            assert_eq!(libc::sendmsg(from.as_raw_fd(), &message, 0), 1);
        }
        (from, to)
    }

    #[test]
    fn what_a_process_leaves_behind_is_waited_for() {
        for listener in [listen("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()] {
            let address = listener.local_addr().unwrap().to_string();
            let holder = on_its_way(listener);
            assert!(is_in_use(Reserved::take(&address, NOW)));
            let release = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(holder);
            });
            assert_eq!(Reserved::take(&address, Duration::from_secs(10)).unwrap().address().to_string(), address);
            release.join().unwrap();
        }
    }

    /// Exactly one of many concurrent reservations gets the address, and keeps it.
    #[test]
    fn a_race_has_one_winner() {
        for _ in 0..20 {
            let at = chosen("127.0.0.1:0".parse().unwrap()).unwrap().to_string();
            let all: Vec<_> = (0..8)
                .map(|_| {
                    let at = at.clone();
                    std::thread::spawn(move || Reserved::take(&at, NOW).ok())
                })
                .collect();
            let mut won: Vec<_> = all.into_iter().filter_map(|t| t.join().unwrap()).collect();
            assert_eq!(won.len(), 1, "{at}");
            won.remove(0).share(2).unwrap();
        }
    }
}
