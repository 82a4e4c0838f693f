//! Connecting to other nodes on the core's own ring: one address after the other, within a limit of time. A host name is looked up on
//! a thread of its own, since that may block for long.

use super::*;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;

/// Time that all addresses of a dial may take together.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// A connection that is being made.
struct Dialing {
    fd: OwnedFd,
    at: SocketAddr,
    /// The kernel reads it until the completion.
    _raw: Box<(libc::sockaddr_storage, libc::socklen_t)>,
    /// Addresses to try if this one fails; the next one stands last.
    others: Vec<SocketAddr>,
    until: Instant,
    is_cancelled: bool,
}

/// Addresses that a resolver thread found for a name.
struct Resolved {
    dial: u64,
    addresses: Result<Vec<SocketAddr>, String>,
}

/// Dials under way, from `dial` to their answer.
pub(super) struct Dials {
    connecting: IdMap<u64, Dialing>,
    /// Names that threads look up.
    lookups: usize,
    resolved: mpsc::Receiver<Resolved>,
    /// Channel for the threads that resolve names.
    resolver: mpsc::Sender<Resolved>,
}

impl Dials {
    pub fn new() -> Dials {
        let (resolver, resolved) = mpsc::channel();
        Dials { connecting: IdMap::default(), lookups: 0, resolved, resolver }
    }

    pub fn is_connecting(&self) -> bool {
        !self.connecting.is_empty()
    }

    /// Time at which the next dial is given up.
    pub fn deadline(&self) -> Option<Instant> {
        self.connecting.values().filter(|d| !d.is_cancelled).map(|d| d.until).min()
    }
}

impl Net {
    /// Connects to `host:port`; [`NetEvent::Dialed`] answers with the number, which is below 2^60 and of one dial at a time.
    pub fn dial(&mut self, dial: u64, address: &str) {
        if let Ok(at) = address.parse::<SocketAddr>() {
            return self.connect(dial, vec![at], Instant::now() + DIAL_LIMIT);
        }
        let (name, answer, wake) = (address.to_owned(), self.dials.resolver.clone(), self.wake.clone());
        let look_up = move || {
            let found = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let addresses = match found {
                Ok(addresses) if addresses.is_empty() => Err(format!("{name}: the name has no address")),
                Ok(addresses) => Ok(addresses),
                Err(e) => Err(format!("{name}: {e}")),
            };
            let _ = answer.send(Resolved { dial, addresses }); // the core may have ended
            wake.wake();
        };
        match std::thread::Builder::new().name("resolve".into()).spawn(look_up) {
            Ok(_) => self.dials.lookups += 1,
            Err(e) => {
                let result = Err(format!("{address} cannot be looked up: {e}"));
                self.news.push_back(SocketNews::Dialed { dial, result });
            }
        }
    }

    /// Takes the addresses that the threads found.
    pub(super) fn take_resolved(&mut self) {
        while self.dials.lookups > 0
            && let Ok(Resolved { dial, addresses }) = self.dials.resolved.try_recv()
        {
            self.dials.lookups -= 1;
            match addresses {
                Ok(mut addresses) => {
                    addresses.reverse();
                    self.connect(dial, addresses, Instant::now() + DIAL_LIMIT);
                }
                Err(error) => self.news.push_back(SocketNews::Dialed { dial, result: Err(error) }),
            }
        }
    }

    /// Tries the last of `addresses`, and the others after it.
    fn connect(&mut self, dial: u64, mut addresses: Vec<SocketAddr>, until: Instant) {
        let Some(at) = addresses.pop() else { return };
        let fd = match listen::dialling(at) {
            Ok(fd) => fd,
            Err(e) if addresses.is_empty() => {
                let result = Err(format!("{at}: {e}"));
                return self.news.push_back(SocketNews::Dialed { dial, result });
            }
            Err(_) => return self.connect(dial, addresses, until),
        };
        let raw = Box::new(listen::raw_address(at));
        let entry = opcode::Connect::new(types::Fd(fd.as_raw_fd()), (&raw const raw.0).cast(), raw.1).build();
        let dialing = Dialing { fd, at, _raw: raw, others: addresses, until, is_cancelled: false };
        let old = self.dials.connecting.insert(dial, dialing);
        assert!(old.is_none(), "a dial's number is of one at a time");
        // SAFETY: the address and the socket stay in `connecting` until the completion; see `shutdown` for the end.
        unsafe { self.ring.borrow_mut().push(entry.user_data(ring::user_data(OpKind::Connect, dial))) };
    }

    pub(super) fn connected(&mut self, dial: u64, result: i32) {
        let dialing = self.dials.connecting.remove(&dial).expect("a dial stays until its completion");
        let Dialing { fd, at, others, until, is_cancelled, _raw: _ } = dialing;
        let error = match -result {
            0 => match self.conns.open(fd) {
                Some(conn) => {
                    self.open += 1;
                    self.todo.push(conn);
                    let peer = Peer(at.to_string().into());
                    return self.news.push_back(SocketNews::Dialed { dial, result: Ok((conn, peer)) });
                }
                None => format!("{at}: this core has {CONNECTIONS_MAX} connections"),
            },
            _ if is_cancelled => format!("{at}: no answer within {} s", DIAL_LIMIT.as_secs()),
            errno => format!("{at}: {}", io::Error::from_raw_os_error(errno)),
        };
        if others.is_empty() || until <= Instant::now() {
            self.news.push_back(SocketNews::Dialed { dial, result: Err(error) });
        } else {
            self.connect(dial, others, until);
        }
    }

    /// Gives up those that take too long.
    pub(super) fn end_dials(&mut self) {
        if self.dials.connecting.is_empty() {
            return;
        }
        let now = Instant::now();
        for (dial, dialing) in self.dials.connecting.iter_mut().filter(|(_, d)| !d.is_cancelled && d.until <= now) {
            dialing.is_cancelled = true;
            push_cancel(&mut self.ring.borrow_mut(), ring::user_data(OpKind::Connect, *dial));
        }
    }

    pub(super) fn reap_connect(&mut self, dial: u64) {
        self.dials.connecting.remove(&dial);
    }
}
