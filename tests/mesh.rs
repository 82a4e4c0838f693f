//! Cores that pass messages and connections to each other, each in a real executor.

#[path = "support/core.rs"]
mod core;

use crate::core::{Happened, run};
use ringmq::base::{ConnId, CoreId, Peer, Rng};
use ringmq::mesh::{Port, Wake, mesh};
use ringmq::net::{Net, NetOptions, listen};
use ringmq::ring::WakeFd;
use ringmq::seam::message::{MeshMessage, MovedSession, Protocol, Ticket};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Wakes a plain thread, as the HTTP room wakes its own.
#[derive(Default)]
struct ThreadWake {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for ThreadWake {
    fn wake(&self) {
        *self.is_woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

impl ThreadWake {
    fn wait(&self) {
        let guard = self.is_woken.lock().unwrap();
        let (mut guard, _) = self.changed.wait_timeout_while(guard, Duration::from_secs(10), |w| !*w).expect("nobody panicked");
        *guard = false;
    }
}

fn token(n: u64) -> MeshMessage {
    MeshMessage::Published { ticket: Ticket(n), result: Ok(()) }
}

fn number(m: MeshMessage) -> u64 {
    let MeshMessage::Published { ticket: Ticket(n), .. } = m else { panic!("{m:?}") };
    n
}

struct Cores {
    ports: Vec<Port>,
    wakes: Vec<Arc<WakeFd>>,
    http: Port,
    http_wake: Arc<ThreadWake>,
}

fn cores(n: u16) -> Cores {
    let (mut ports, mut http) = mesh(n);
    let wakes: Vec<_> = (0..n).map(|_| WakeFd::new().unwrap()).collect();
    let http_wake = Arc::new(ThreadWake::default());
    let wakers: Vec<Arc<dyn Wake>> = wakes.iter().map(|w| w.clone() as Arc<dyn Wake>).collect();
    for port in ports.iter_mut().chain([&mut http]) {
        port.connect_wakers(&wakers, http_wake.clone());
    }
    Cores { ports, wakes, http, http_wake }
}

fn any_listener() -> (TcpListener, SocketAddr) {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Few tokens go round three cores and the HTTP thread. Everybody sleeps most of the time, just when the next token
/// comes: one wake that is lost, and a token stands still for ever.
#[test]
fn tokens_that_go_round_never_stand_still() {
    const HOPS: u64 = 40_000;
    const TOKENS: u64 = 3;
    let Cores { ports, wakes, mut http, http_wake } = cores(3);
    let hops = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for (mut port, wake) in ports.into_iter().zip(wakes.clone()) {
        let hops = hops.clone();
        let next = if port.core() == CoreId(2) { CoreId::HTTP } else { CoreId(port.core().0 + 1) };
        threads.push(run(&format!("token {}", port.core().0), move || {
            let mut started = port.core() != CoreId(0);
            let turn = move |_: &mut Net, _: Vec<Happened>| {
                if !std::mem::replace(&mut started, true) {
                    (0..TOKENS).for_each(|_| port.send(next, token(0)));
                }
                let mut came = Vec::new();
                port.drain(&mut |_, m| came.push(number(m)));
                for n in came {
                    hops.fetch_add(1, SeqCst);
                    port.send(next, token(n + 1));
                }
                port.flush();
                hops.load(SeqCst) >= HOPS
            };
            (Net::with_wake(vec![any_listener().0], NetOptions::default(), wake).unwrap(), turn)
        }));
    }
    let (mut last, mut since) = (0, Instant::now());
    while hops.load(SeqCst) < HOPS {
        http_wake.wait();
        let mut came = Vec::new();
        http.drain(&mut |from, m| {
            assert_eq!(from, CoreId(2));
            came.push(number(m));
        });
        for n in came {
            hops.fetch_add(1, SeqCst);
            http.send(CoreId(0), token(n + 1));
        }
        http.flush();
        let now = hops.load(SeqCst);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < Duration::from_secs(10), "all tokens stand still after {now} hops");
    }
    wakes.iter().for_each(|w| w.wake());
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Every core floods every other; each message arrives once and in order, whatever is full.
#[test]
fn a_flood_among_three_cores_arrives_in_order() {
    const MESSAGES: u64 = 100_000;
    let Cores { ports, wakes, .. } = cores(3);
    let threads: Vec<_> = ports
        .into_iter()
        .zip(wakes)
        .map(|(mut port, wake)| {
            run(&format!("flood {}", port.core().0), move || {
                let mut rng = Rng::new(port.core().0 as u64);
                let mut sent = [0; 3];
                let mut got = [0; 3];
                let keep = wake.clone();
                let turn = move |_: &mut Net, _: Vec<Happened>| {
                    port.drain(&mut |from, m| {
                        assert_eq!(number(m), got[from.0 as usize], "from {from:?}");
                        got[from.0 as usize] += 1;
                    });
                    let mut own = 0;
                    for to in 0..3u16 {
                        let burst = rng.below(500).min(MESSAGES - sent[to as usize]);
                        (0..burst).for_each(|i| port.send(CoreId(to), token(sent[to as usize] + i)));
                        sent[to as usize] += burst;
                        own = if CoreId(to) == port.core() { burst } else { own };
                    }
                    port.flush();
                    // else it goes on when it is woken: by the others, or by its message to itself
                    if sent != [MESSAGES; 3] && (rng.chance(0.5) || own == 0) {
                        keep.wake();
                    }
                    sent == [MESSAGES; 3] && got == [MESSAGES; 3] && !port.has_overflow()
                };
                (Net::with_wake(vec![any_listener().0], NetOptions::default(), wake).unwrap(), turn)
            })
        })
        .collect();
    let limit = Instant::now() + Duration::from_secs(30);
    while !threads.iter().all(|t| t.is_finished()) {
        assert!(Instant::now() < limit, "the flood stands still");
        std::thread::sleep(Duration::from_millis(2));
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn session(peer: &Peer) -> Box<MovedSession> {
    MovedSession::new(peer.clone(), Protocol::Nsq, ())
}

/// Eight clients stream to an echo server that moves each connection to the other core again and again while bytes are
/// in flight both ways. Every byte comes once and in order, at the server and back at the client.
#[test]
fn a_connection_that_moves_between_cores_loses_no_byte() {
    const CLIENTS: u64 = 8;
    const BYTES: usize = 4 << 20;
    let Cores { ports, wakes, .. } = cores(2);
    let (listener, address) = any_listener();
    let mut listeners = vec![any_listener().0, listener]; // the other core gets all its connections by moves
    let (moves, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut threads = Vec::new();
    for (mut port, wake) in ports.into_iter().zip(wakes.clone()) {
        let (listener, moves, ended) = (listeners.pop().unwrap(), moves.clone(), ended.clone());
        threads.push(run(&format!("move {}", port.core().0), move || {
            let other = CoreId(1 - port.core().0);
            let mut rng = Rng::new(port.core().0 as u64 + 7);
            // bytes until it moves on, and the peer
            let mut here: HashMap<ConnId, (i64, Peer)> = HashMap::new();
            let turn = move |net: &mut Net, happened: Vec<Happened>| {
                let mut bytes_came: Vec<(ConnId, Vec<u8>)> = Vec::new();
                for h in happened {
                    match h {
                        Happened::Opened(conn, peer) => drop(here.insert(conn, (1000, peer))),
                        Happened::Bytes(conn, bytes) => bytes_came.push((conn, bytes)),
                        Happened::Closed(conn) => {
                            here.remove(&conn).expect("it was here");
                            ended.fetch_add(1, SeqCst);
                        }
                        Happened::Moved(_, fd, to, session, unread) => {
                            moves.fetch_add(1, SeqCst);
                            port.send(to, MeshMessage::Connection { fd: fd.into_raw_fd(), session, unread, layer: None });
                        }
                        Happened::Received(..) => panic!("no memory was lent"),
                        Happened::Sent(..) | Happened::Ended(..) | Happened::Dialed(..) => {}
                    }
                }
                port.drain(&mut |_, m| {
                    let MeshMessage::Connection { fd, session, unread, .. } = m else { panic!("{m:?}") };
                    // SAFETY: the descriptor came over from the other core, which gave it up.
                    let (conn, peer) = net.adopt(unsafe { OwnedFd::from_raw_fd(fd) });
                    assert_eq!(peer, session.peer);
                    here.insert(conn, (1 + rng.below(200_000) as i64, peer));
                    bytes_came.push((conn, unread));
                });
                // what comes after the decision to move, in this turn, was not looked at by the session either
                let mut leaving: HashMap<ConnId, Vec<u8>> = HashMap::new();
                for (conn, bytes) in bytes_came {
                    if let Some(unread) = leaving.get_mut(&conn) {
                        unread.extend_from_slice(&bytes);
                        continue;
                    }
                    let (left, _) = here.get_mut(&conn).expect("it is here");
                    *left -= bytes.len() as i64;
                    if *left < 0 {
                        // a part is read, the rest goes over unread
                        let read = rng.below(bytes.len() as u64 + 1) as usize;
                        net.send(conn, bytes[..read].to_vec());
                        leaving.insert(conn, bytes[read..].to_vec());
                    } else {
                        net.send(conn, bytes);
                    }
                }
                for (conn, unread) in leaving {
                    let (_, peer) = here.remove(&conn).expect("it was here");
                    net.move_away(conn, other, session(&peer), unread);
                }
                port.flush();
                ended.load(SeqCst) == CLIENTS
            };
            (Net::with_wake(vec![listener], NetOptions::default(), wake).unwrap(), turn)
        }));
    }
    let clients: Vec<_> = (0..CLIENTS).map(|i| std::thread::spawn(move || stream_and_compare(address, i, BYTES))).collect();
    clients.into_iter().for_each(|c| c.join().unwrap());
    let limit = Instant::now() + Duration::from_secs(10);
    while ended.load(SeqCst) < CLIENTS {
        assert!(Instant::now() < limit, "the end of a connection was lost");
        std::thread::sleep(Duration::from_millis(2));
    }
    wakes.iter().for_each(|w| w.wake());
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(moves.load(SeqCst) > 20, "{} moves", moves.load(SeqCst));
}

fn stream_and_compare(address: SocketAddr, seed: u64, len: usize) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut rng = Rng::new(seed);
    let sent: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut rest = &sent[..];
            while !rest.is_empty() {
                let n = (1 + rng.below(20_000) as usize).min(rest.len());
                (&mut &stream).write_all(&rest[..n]).unwrap();
                rest = &rest[n..];
            }
        });
        let mut back = vec![0; len];
        let mut got = 0;
        while got < len {
            match (&mut &stream).read(&mut back[got..]) {
                Ok(0) => panic!("client {seed}: it ended after {got} bytes"),
                Ok(n) => {
                    assert!(back[got..got + n] == sent[got..got + n], "client {seed}: other bytes from {got} on");
                    got += n;
                }
                Err(e) => panic!("client {seed}: {e} after {got} bytes"),
            }
        }
    });
}

/// A client that reads nothing cannot hold its connection between two cores for ever; the other core gets a dead connection.
#[test]
fn a_move_does_not_wait_for_a_dead_client_for_ever() {
    let (listener, address) = any_listener();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let server = run("move of the dead", move || {
        let mut started = None;
        let mut adopted = None;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Opened(conn, peer) => {
                        net.send(conn, vec![1; 32 << 20]);
                        net.move_away(conn, CoreId(1), session(&peer), vec![5]);
                        started = Some(Instant::now());
                    }
                    Happened::Moved(_, fd, to, _, unread) => {
                        assert_eq!((to, &unread[..], net.connections()), (CoreId(1), &[5][..], 0));
                        let took = started.expect("it was asked for").elapsed();
                        assert!(took > Duration::from_secs(4), "{took:?}");
                        adopted = Some(net.adopt(fd).0);
                    }
                    Happened::Closed(conn) => {
                        assert_eq!(Some(conn), adopted);
                        over.store(true, SeqCst);
                        return true;
                    }
                    _ => {}
                }
            }
            false
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let client = TcpStream::connect(address).unwrap();
    server.join().unwrap();
    assert!(is_over.load(SeqCst));
    drop(client);
}
