//! Bytes that are received to where they stay, against real clients, in a real executor.

#[path = "support/core.rs"]
mod core;
#[path = "support/sockets.rs"]
mod sockets;

use crate::core::{Happened, run};
use crate::sockets::{connect, listener, pattern};
use ringmq::base::{ConnId, Lent, Rng};
use ringmq::net::{Net, NetOptions};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc;
use std::time::Duration;

/// Memory for so many bytes, with some in it already.
fn memory(inside: &[u8], wanted: usize) -> Lent {
    let mut memory = Vec::with_capacity(inside.len() + wanted);
    memory.extend_from_slice(inside);
    Lent { memory, wanted }
}

/// Input of a connection of the server.
struct ReceivedInput {
    bytes: Vec<u8>,
    /// Content of the lent memory, and the wanted length.
    lent: Option<(Vec<u8>, usize)>,
    rng: Rng,
}

/// A server that lends memory at random, and pauses now and then, to `clients` that send `bytes` each. All of it comes, in order.
fn streams(options: NetOptions, clients: u64, bytes: usize) {
    let (listener, address) = listener();
    let server = run("placed", move || {
        let (mut seen, mut closed, mut places, mut paused) = (HashMap::<ConnId, ReceivedInput>::new(), 0, 0, vec![]);
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            paused.drain(..).for_each(|conn| net.resume(conn));
            let mut touched = vec![];
            for h in happened {
                match h {
                    Happened::Opened(conn, _) => {
                        seen.insert(conn, ReceivedInput { bytes: vec![], lent: None, rng: Rng::new(conn.0) });
                    }
                    Happened::Bytes(conn, bytes) => {
                        let s = seen.get_mut(&conn).unwrap();
                        assert!(s.lent.is_none(), "bytes of a later time come first");
                        s.bytes.extend(bytes);
                        touched.push(conn);
                    }
                    Happened::Received(conn, lent) => {
                        let s = seen.get_mut(&conn).unwrap();
                        let (inside, wanted) = s.lent.take().expect("it was lent");
                        let came = lent.memory.strip_prefix(&inside[..]).expect("what was in it stays");
                        assert!(!came.is_empty() && came.len() + lent.wanted == wanted);
                        s.bytes.extend(came);
                        places += 1;
                        touched.push(conn);
                    }
                    Happened::Closed(conn) => {
                        let s = &seen[&conn];
                        assert_eq!(s.bytes.len(), bytes + 1, "and what says which it is");
                        assert!(s.bytes[1..] == pattern(s.bytes[0] as u64, bytes));
                        closed += 1;
                    }
                    Happened::Sent(..) | Happened::Ended(..) => {}
                    other => panic!("{other:?}"),
                }
            }
            for conn in touched {
                let s = seen.get_mut(&conn).unwrap();
                // bytes that would never come are not wanted
                let left = bytes + 1 - s.bytes.len();
                if s.lent.is_none() && left > 0 && s.rng.chance(0.6) {
                    let wanted = 1 + s.rng.below(left.min(300_000) as u64) as usize;
                    let inside = vec![7; s.rng.below(100) as usize];
                    net.receive_into(conn, memory(&inside, wanted));
                    s.lent = Some((inside, wanted));
                }
                if s.rng.chance(0.1) {
                    net.pause(conn);
                    net.wake_fd().wake();
                    paused.push(conn);
                }
                if s.bytes.len() == bytes + 1 {
                    net.send(conn, b"!".to_vec());
                }
            }
            if closed == clients {
                assert!(places as u64 > clients * 3, "{places}");
            }
            closed == clients
        };
        (Net::new(listener, options).unwrap(), turn)
    });
    let threads: Vec<_> = (0..clients)
        .map(|i| {
            std::thread::spawn(move || {
                let mut stream = connect(address);
                let (mut rng, all) = (Rng::new(i), pattern(i, bytes));
                stream.write_all(&[i as u8]).unwrap();
                let mut rest = &all[..];
                while !rest.is_empty() {
                    let (now, after) = rest.split_at((1 + rng.below(400_000) as usize).min(rest.len()));
                    stream.write_all(now).unwrap();
                    rest = after;
                    if rng.chance(0.2) {
                        std::thread::sleep(Duration::from_millis(rng.below(15)));
                    }
                }
                stream.read_exact(&mut [0]).unwrap();
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    server.join().unwrap();
}

#[test]
fn wherever_the_bytes_go_they_come_in_order() {
    streams(NetOptions::default(), 8, 6_000_000);
}

/// Nearly every receive finds no buffer, and the limit of a receive goes to the kernel after it.
#[test]
fn also_with_tiny_rings_and_too_few_buffers() {
    streams(NetOptions { buffers: 2, buffer_bytes: 512, ring_entries: 2 }, 8, 400_000);
}

#[test]
fn what_came_is_told_before_all_is_there() {
    let (listener, address) = listener();
    let (told, hear) = mpsc::channel();
    let server = run("slow", move || {
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            let mut is_over = false;
            for h in happened {
                match h {
                    Happened::Opened(conn, _) => net.receive_into(conn, memory(b"in front ", 500_000)),
                    Happened::Received(conn, lent) => {
                        told.send(lent.memory.clone()).unwrap();
                        net.receive_into(conn, lent);
                    }
                    // The client has closed its half; the connection ends a moment later.
                    Happened::Ended(..) => {}
                    Happened::Closed(_) => is_over = true,
                    other => panic!("{other:?}"),
                }
            }
            is_over
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let mut stream = connect(address);
    let mut expected = b"in front ".to_vec();
    for part in [&b"some"[..], b" and more", b", and the rest"] {
        stream.write_all(part).unwrap();
        expected.extend(part);
        while hear.recv_timeout(Duration::from_secs(20)).expect("the first bytes are told") != expected {}
    }
    drop(stream);
    server.join().unwrap();
}

/// A silent client must not wake the core a hundred times a second.
#[test]
fn who_is_silent_in_the_middle_of_a_body_wakes_nobody() {
    let (listener, address) = listener();
    let server = run("silent", move || {
        let mut turns = 0;
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            turns += 1;
            for h in happened {
                match h {
                    Happened::Opened(conn, _) => net.receive_into(conn, memory(b"", 500_000)),
                    Happened::Received(_, lent) => {
                        assert!(lent.memory == b"late" && turns < 30, "{turns}");
                        return true;
                    }
                    other => panic!("{other:?}"),
                }
            }
            false
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let mut stream = connect(address);
    std::thread::sleep(Duration::from_millis(1000));
    stream.write_all(b"late").unwrap();
    server.join().unwrap();
}

/// Lent memory outlives connections that end meanwhile: by the peer, by this side, and with the core. In each case the kernel has the
/// memory.
#[test]
fn memory_outlives_what_goes_there() {
    for who in ["client", "server", "core"] {
        let (listener, address) = listener();
        let server = run("ends", move || {
            let (mut asked, mut turns) = (None, 0);
            let turn = move |net: &mut Net, happened: Vec<Happened>| {
                for h in happened {
                    match h {
                        Happened::Bytes(conn, _) => {
                            net.receive_into(conn, memory(b"", 100_000));
                            net.send(conn, b"!".to_vec());
                            net.wake_fd().wake();
                            asked = Some(conn);
                        }
                        Happened::Closed(_) => return true,
                        Happened::Received(..) => panic!("nothing comes"),
                        _ => {}
                    }
                }
                // it is with the kernel when the cancelled receive is over
                turns += asked.is_some() as usize;
                if turns < 20 {
                    net.wake_fd().wake();
                } else if let (20, Some(conn)) = (turns, asked) {
                    match who {
                        "server" => net.close(conn),
                        "core" => return true,
                        _ => {}
                    }
                }
                false
            };
            (Net::new(listener, NetOptions::default()).unwrap(), turn)
        });
        let mut stream = connect(address);
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        if who != "client" {
            let end = stream.read(&mut [0; 10]);
            assert!(end.as_ref().map_or_else(|e| e.kind() == ErrorKind::ConnectionReset, |n| *n == 0), "{who}: {end:?}");
        }
        drop(stream);
        server.join().unwrap();
    }
}
