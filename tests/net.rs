//! The sockets of a core against real clients, in a real executor.

#[path = "support/core.rs"]
mod core;
#[path = "support/sockets.rs"]
mod sockets;

use crate::core::{Happened, run};
use crate::sockets::{connect, listener, pattern};
use ringmq::base::{ConnId, Rng};
use ringmq::net::{Net, NetOptions};
use ringmq::ring::WakeFd;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not in 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An echo server that ends when it has had `clients` and all are gone.
fn echo(listener: TcpListener, options: NetOptions, clients: usize) -> JoinHandle<()> {
    run("echo", move || {
        let (mut opened, mut closed) = (0, 0);
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Opened(..) => opened += 1,
                    Happened::Bytes(conn, bytes) => net.send(conn, bytes),
                    Happened::Ended(conn, false) => net.close(conn),
                    Happened::Closed(_) => closed += 1,
                    _ => {}
                }
            }
            assert_eq!(net.connections(), opened - closed);
            closed == clients
        };
        (Net::new(listener, options).unwrap(), turn)
    })
}

/// Sends `bytes` and reads them back, both at once.
fn exchange(stream: &TcpStream, bytes: &[u8]) {
    std::thread::scope(|s| {
        s.spawn(|| (&mut &*stream).write_all(bytes).unwrap());
        let mut back = vec![0; bytes.len()];
        (&mut &*stream).read_exact(&mut back).unwrap();
        assert!(back == bytes, "what came back is something else");
    });
}

fn many_clients(options: NetOptions, clients: usize, bytes_max: u64) {
    let (listener, address) = listener();
    let server = echo(listener, options, clients);
    let threads: Vec<_> = (0..clients as u64)
        .map(|i| {
            std::thread::spawn(move || {
                let stream = connect(address);
                let mut rng = Rng::new(i);
                for round in 0..10 {
                    let bound = if rng.chance(0.2) { bytes_max } else { 300 };
                    let len = 1 + rng.below(bound) as usize;
                    exchange(&stream, &pattern(i * 1000 + round, len));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    server.join().unwrap();
}

#[test]
fn a_hundred_connections_get_back_what_they_send() {
    many_clients(NetOptions::default(), 100, 200_000);
}

/// Two receive buffers, two submission entries, eight completions: nearly everything finds no buffer, a full submission
/// queue or an overflown completion queue.
#[test]
fn tiny_rings_and_too_few_buffers_lose_nothing() {
    many_clients(NetOptions { buffers: 2, buffer_bytes: 512, ring_entries: 2 }, 24, 100_000);
}

#[test]
fn a_client_that_ends_its_side_still_gets_its_answer() {
    let (listener, address) = listener();
    let server = run("half-close", move || {
        let mut answer_at: Option<(ConnId, Instant)> = None;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            let mut is_over = false;
            for h in happened {
                match h {
                    // as if a disk took its time
                    Happened::Bytes(conn, _) => answer_at = Some((conn, Instant::now() + Duration::from_millis(50))),
                    Happened::Closed(_) => is_over = true,
                    _ => {}
                }
            }
            if let Some((conn, at)) = answer_at
                && at <= Instant::now()
            {
                net.send(conn, b"OK".to_vec());
                answer_at = None;
            }
            net.set_deadline(answer_at.map(|(_, at)| at));
            is_over
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let mut stream = connect(address);
    stream.write_all(b"PUB").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"OK");
    server.join().unwrap();
}

#[test]
fn the_end_of_a_client_is_told_and_it_may_still_hear_something() {
    let (listener, address) = listener();
    let server = run("last words", move || {
        let mut left = 2;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Bytes(conn, bytes) if bytes == b"hello" => net.send(conn, bytes),
                    Happened::Ended(conn, unanswered) => {
                        net.send(conn, format!("unanswered: {unanswered}").into_bytes());
                        net.close(conn);
                    }
                    Happened::Closed(_) => left -= 1,
                    _ => {}
                }
            }
            left == 0
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    for (more, told) in [(&b""[..], "unanswered: false"), (b"part of a command", "unanswered: true")] {
        let mut stream = connect(address);
        exchange(&stream, b"hello");
        stream.write_all(more).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, told);
    }
    server.join().unwrap();
}

/// Closes with a reset instead of an end.
fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: the option's struct, and its size.
    let set =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size) };
    assert_eq!(set, 0);
}

#[test]
fn a_reset_while_sending_ends_that_connection_only() {
    const CLIENTS: usize = 20;
    let (listener, address) = listener();
    let (stop, wake) = (Arc::new(AtomicBool::new(false)), WakeFd::new().unwrap());
    let (stop_now, wake_too) = (stop.clone(), wake.clone());
    let server = run("reset", move || {
        let mut was_used = false; // by how many, who knows: one that is reset before it is accepted is never told
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Bytes(conn, bytes) if bytes == b"flood" => {
                        net.send(conn, vec![1; 4 << 20]);
                        net.send(conn, vec![2; 4 << 20]);
                    }
                    Happened::Bytes(conn, bytes) => net.send(conn, bytes),
                    Happened::Closed(conn) => {
                        was_used = true;
                        net.send(conn, vec![3; 10]); // the shard may not know yet
                        net.pause(conn);
                        net.close(conn);
                    }
                    _ => {}
                }
            }
            was_used && net.connections() == 0 && stop.load(SeqCst)
        };
        (Net::with_wake(vec![listener], NetOptions::default(), wake_too).unwrap(), turn)
    });
    let good = connect(address);
    exchange(&good, b"before");
    for i in 0..CLIENTS {
        let mut bad = connect(address);
        bad.write_all(b"flood").unwrap();
        if i % 2 == 0 {
            bad.read_exact(&mut vec![0; 100_000 * i]).unwrap();
        }
        reset(bad);
        exchange(&good, b"meanwhile");
    }
    drop(good);
    stop_now.store(true, SeqCst);
    wake.wake();
    server.join().unwrap();
}

#[test]
fn a_client_that_never_reads_is_closed_after_a_second() {
    let (listener, address) = listener();
    const GIVEN: usize = 24 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let close = Arc::new(AtomicBool::new(false));
    let wake = WakeFd::new().unwrap();
    let (seen, close_now, wake_too) = (sent.clone(), close.clone(), wake.clone());
    let server = run("never reads", move || {
        let mut conn = None;
        let mut closing_since: Option<Instant> = None;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Opened(c, _) => {
                        conn = Some(c);
                        (0..GIVEN >> 20).for_each(|_| net.send(c, vec![7; 1 << 20]));
                    }
                    Happened::Sent(_, n) => drop(sent.fetch_add(n, SeqCst)),
                    Happened::Closed(_) => {
                        let took = closing_since.expect("not before it was asked for").elapsed();
                        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(3), "{took:?}");
                        assert_eq!(net.connections(), 0);
                        return true;
                    }
                    _ => {}
                }
            }
            if close.load(SeqCst) && closing_since.is_none() {
                closing_since = Some(Instant::now());
                net.close(conn.unwrap());
            }
            false
        };
        (Net::with_wake(vec![listener], NetOptions::default(), wake_too).unwrap(), turn)
    });
    let stream = connect(address);
    std::thread::sleep(Duration::from_millis(300));
    let before = seen.load(SeqCst);
    assert!(before < GIVEN, "the kernel took all of it");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(seen.load(SeqCst), before, "it is stuck");
    close_now.store(true, SeqCst);
    wake.wake();
    server.join().unwrap();
    drop(stream);
}

/// Bytes that were sent before a close arrive, even though the client has sent unread bytes: closing a socket with unread bytes would
/// reset it and destroy the answer on its way.
#[test]
fn a_close_lets_the_last_answer_arrive() {
    const CLIENTS: usize = 50;
    let (listener, address) = listener();
    let server = run("last answer", move || {
        let mut closed = 0;
        let mut answered: HashMap<ConnId, u64> = HashMap::new(); // in which turn
        let mut turns = 0;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            turns += 1;
            for h in happened {
                match h {
                    Happened::Bytes(conn, _) => {
                        if let Some(turn) = answered.insert(conn, turns) {
                            assert_eq!(turn, turns, "bytes after the close");
                            continue;
                        }
                        net.send(conn, b"E_INVALID".to_vec());
                        net.close(conn);
                    }
                    Happened::Closed(_) => closed += 1,
                    _ => {}
                }
            }
            closed == CLIENTS
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    for _ in 0..CLIENTS {
        let mut stream = connect(address);
        for _ in 0..20 {
            if stream.write_all(&[1; 1000]).is_err() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"E_INVALID");
    }
    server.join().unwrap();
}

#[test]
fn a_paused_connection_brings_nothing_and_loses_nothing() {
    const BYTES: usize = 8 << 20;
    let (listener, address) = listener();
    let (got, resume) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let wake = WakeFd::new().unwrap();
    let (seen, resume_now, wake_too) = (got.clone(), resume.clone(), wake.clone());
    let server = run("pause", move || {
        let mut conn = None;
        let mut stream = Vec::new();
        let mut flips = 0;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Bytes(c, bytes) => {
                        if conn.replace(c).is_none() {
                            net.pause(c);
                        } else if resume.load(SeqCst) {
                            // from now on a flood of quick changes
                            flips += 1;
                            net.pause(c);
                            if flips % 3 == 0 {
                                net.resume(c);
                                net.pause(c);
                            }
                            net.resume(c);
                        }
                        stream.extend_from_slice(&bytes);
                        got.store(stream.len(), SeqCst);
                    }
                    Happened::Closed(_) => {
                        assert!(stream == pattern(5, BYTES), "bytes were lost, doubled or mixed up");
                        return true;
                    }
                    _ => {}
                }
            }
            if resume.load(SeqCst)
                && let Some(c) = conn
            {
                net.resume(c);
            }
            false
        };
        (Net::with_wake(vec![listener], NetOptions::default(), wake_too).unwrap(), turn)
    });
    let mut stream = connect(address);
    let writer = std::thread::spawn(move || stream.write_all(&pattern(5, BYTES)).unwrap());
    wait_until("first bytes", || seen.load(SeqCst) > 0);
    std::thread::sleep(Duration::from_millis(100));
    let before = seen.load(SeqCst);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(seen.load(SeqCst), before, "it is paused");
    assert!(before < BYTES);
    resume_now.store(true, SeqCst);
    wake.wake();
    writer.join().unwrap();
    server.join().unwrap();
}

#[test]
fn a_thousand_idle_connections_cost_little_and_end_together() {
    const IDLE: usize = 1000;
    let (listener, address) = listener();
    let server = echo(listener, NetOptions::default(), IDLE);
    let clients: Vec<TcpStream> = (0..IDLE).map(|_| connect(address)).collect();
    for client in clients.iter().step_by(97) {
        exchange(client, b"one of many");
    }
    drop(clients);
    server.join().unwrap();
}

#[test]
fn stop_accepting_refuses_new_clients_and_keeps_the_old() {
    let (listener, address) = listener();
    let server = run("stop", move || {
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Bytes(conn, bytes) => {
                        if bytes == b"stop" {
                            net.stop_accepting();
                        }
                        net.send(conn, bytes);
                    }
                    Happened::Closed(_) => return true,
                    _ => {}
                }
            }
            false
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let old = connect(address);
    exchange(&old, b"stop");
    wait_until("the listener is gone", || TcpStream::connect(address).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused));
    exchange(&old, b"still here");
    drop(old);
    server.join().unwrap();
}

/// The core has no other work, so each turn after the first is woken by the deadline or by the test's end.
#[test]
fn a_deadline_wakes_a_sleeping_core_and_never_early() {
    let (listener, _) = listener();
    let server = run("deadline", move || {
        let mut left: Vec<u64> = vec![1, 5, 20, 50, 3, 0, 10];
        let mut at: Option<Instant> = None;
        let mut idle_turns = 0;
        let turn = move |net: &mut Net, _: Vec<Happened>| {
            let now = Instant::now();
            match at {
                Some(due) if now < due => idle_turns += 1,
                _ => {
                    if let Some(due) = at {
                        assert!(now - due < Duration::from_secs(2), "{:?} late", now - due);
                    }
                    let Some(ms) = left.pop() else {
                        // a turn or two to set things up is fine; waking again and again before the time is not
                        assert!(idle_turns < 15, "{idle_turns} turns before a deadline");
                        return true;
                    };
                    at = Some(now + Duration::from_millis(ms));
                    // one that moves earlier replaces the one before
                    net.set_deadline(Some(now + Duration::from_secs(3600)));
                }
            }
            net.set_deadline(at);
            false
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let limit = Instant::now() + Duration::from_secs(10);
    while !server.is_finished() {
        assert!(Instant::now() < limit, "a deadline was missed");
        std::thread::sleep(Duration::from_millis(1));
    }
    server.join().unwrap();
}

#[test]
fn any_thread_wakes_a_core_and_no_wake_is_lost() {
    const WAKES: u64 = 20_000;
    let (listener, _) = listener();
    let wake = WakeFd::new().unwrap();
    let (told, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (telling, looking, wake_too) = (told.clone(), seen.clone(), wake.clone());
    let server = run("foreign wake", move || {
        let turn = move |_: &mut Net, _: Vec<Happened>| {
            seen.store(told.load(SeqCst), SeqCst);
            seen.load(SeqCst) == WAKES
        };
        (Net::with_wake(vec![listener], NetOptions::default(), wake_too).unwrap(), turn)
    });
    let mut rng = Rng::new(1);
    for i in 1..=WAKES {
        telling.store(i, SeqCst);
        wake.wake();
        let limit = Instant::now() + Duration::from_secs(10);
        while looking.load(SeqCst) != i {
            assert!(Instant::now() < limit, "wake {i} was lost");
            std::thread::yield_now();
        }
        // at times the core is asleep by the next one, at times about to be
        (0..rng.below(2000)).for_each(|_| std::hint::spin_loop());
    }
    server.join().unwrap();
}

#[test]
fn a_core_that_stops_in_the_middle_reaps_everything() {
    let (listener, address) = listener();
    let server = run("stop in the middle", move || {
        let mut bytes_seen = 0;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                if let Happened::Bytes(conn, bytes) = h {
                    bytes_seen += bytes.len();
                    net.send(conn, vec![9; 4 << 20]);
                }
            }
            net.set_deadline(Some(Instant::now() + Duration::from_secs(60)));
            bytes_seen >= 20
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let clients: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    clients.iter().for_each(|mut c| c.write_all(b"x").unwrap());
    server.join().unwrap();
}
