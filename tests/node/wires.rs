//! What stands between the processes of a cluster under an etcd: a TCP proxy before each node's peer port and, for each node, before
//! etcd. It knows from which process a connection comes, so each direction between two processes can be silenced by itself.
//!
//! Silence is what a network that loses everything looks like: nothing comes through, nothing is closed, and what was sent comes late when
//! the direction is open again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// More than any test has.
const PARTIES_MAX: usize = 8;
/// A process dials before the test was told its id.
const SOURCE_LIMIT: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

#[derive(Default)]
struct State {
    /// Silenced directions, by sender and receiver.
    silent: [[AtomicBool; PARTIES_MAX]; PARTIES_MAX],
    /// The process of each party; 0: none.
    pids: [AtomicU32; PARTIES_MAX],
    is_over: AtomicBool,
    connections: Mutex<Vec<(usize, usize, TcpStream)>>,
}

pub struct Wires {
    state: Arc<State>,
    listeners: Vec<SocketAddr>,
}

impl Wires {
    pub fn new() -> Wires {
        Wires { state: Arc::default(), listeners: vec![] }
    }

    /// Address at which others reach the party `to`, which listens at `target`. `from`: the only user of the address; without it the
    /// proxy finds out who dials.
    pub fn lay(&mut self, from: Option<usize>, to: usize, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        self.listeners.push(address);
        let state = self.state.clone();
        std::thread::spawn(move || {
            for incoming in listener.incoming().map_while(Result::ok) {
                if state.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let state = state.clone();
                std::thread::spawn(move || serve(&state, from, to, incoming, target));
            }
        });
        address
    }

    /// The party is this process from now on.
    pub fn set_process(&self, party: usize, pid: u32) {
        self.state.pids[party].store(pid, Ordering::SeqCst);
    }

    /// Drops all bytes from one party to the other.
    pub fn silence(&self, from: usize, to: usize) {
        self.state.silent[from][to].store(true, Ordering::SeqCst);
    }

    /// Opens all directions; held bytes come through.
    pub fn heal(&self) {
        self.state.silent.iter().flatten().for_each(|silent| silent.store(false, Ordering::SeqCst));
    }

    /// Ends the connections between the two.
    pub fn drop_connections(&self, one: usize, other: usize) {
        let mut connections = self.state.connections.lock().expect("nobody panics with it");
        connections.retain(|(from, to, stream)| {
            let is_theirs = (*from, *to) == (one, other) || (*from, *to) == (other, one);
            if is_theirs {
                let _ = stream.shutdown(Shutdown::Both);
            }
            !is_theirs
        });
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        self.heal();
        for (_, _, stream) in self.state.connections.lock().expect("nobody panics with it").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for address in &self.listeners {
            let _ = TcpStream::connect(address); // the listener looks up
        }
    }
}

fn serve(state: &Arc<State>, from: Option<usize>, to: usize, incoming: TcpStream, target: SocketAddr) {
    let Some(from) = from.or_else(|| source_of(state, &incoming)) else { return };
    // A connection attempt needs both directions.
    wait_open(state, from, to);
    wait_open(state, to, from);
    let Ok(outgoing) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) else { return };
    for (here, there, source, sink) in [(from, to, &incoming, &outgoing), (to, from, &outgoing, &incoming)] {
        let (Ok(source), Ok(sink), Ok(kept)) = (source.try_clone(), sink.try_clone(), source.try_clone()) else { return };
        let _ = sink.set_nodelay(true);
        state.connections.lock().expect("nobody panics with it").push((here, there, kept));
        let state = state.clone();
        std::thread::spawn(move || carry(&state, here, there, source, sink));
    }
}

fn wait_open(state: &State, from: usize, to: usize) {
    while state.silent[from][to].load(Ordering::SeqCst) {
        std::thread::sleep(LOOK);
    }
}

fn carry(state: &State, from: usize, to: usize, mut source: TcpStream, mut sink: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = source.read(&mut buffer) {
        wait_open(state, from, to);
        if sink.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    // An end is news, too.
    wait_open(state, from, to);
    let _ = source.shutdown(Shutdown::Both);
    let _ = sink.shutdown(Shutdown::Both);
}

/// The party whose process has the other end of the connection.
fn source_of(state: &State, incoming: &TcpStream) -> Option<usize> {
    let port = incoming.peer_addr().ok()?.port();
    let began = Instant::now();
    while began.elapsed() < SOURCE_LIMIT {
        let name = format!("socket:[{}]", inode_of(port)?);
        let has = |pid: u32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|link| link.to_string_lossy() == name)
        };
        let pids = state.pids.iter().map(|pid| pid.load(Ordering::SeqCst)).enumerate();
        if let Some((party, _)) = pids.filter(|(_, pid)| *pid != 0).find(|(_, pid)| has(*pid)) {
            return Some(party);
        }
        std::thread::sleep(LOOK);
    }
    None
}

/// The inode of the socket that has this local port on the loopback.
fn inode_of(port: u16) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!("0100007F:{port:04X}");
    let row =
        table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row.get(1) == Some(&local.as_str()))?;
    row.get(9).map(|inode| inode.to_string())
}
