//! Outgoing connections of a core: bytes in both directions, host names, and addresses without an answer.

#[path = "support/core.rs"]
mod core;

use crate::core::{Happened, run};
use ringmq::net::{Net, NetOptions, listen};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Dials each address, one number each; says `hello` where it is connected, and ends when all are answered and closed.
fn dial(addresses: Vec<String>) -> Vec<(u64, Result<Vec<u8>, String>)> {
    let (tell, told) = mpsc::channel();
    let core = run("dial", move || {
        let mut net = Net::new(listen("127.0.0.1:0").unwrap(), NetOptions::default()).unwrap();
        for (number, address) in addresses.iter().enumerate() {
            net.dial(number as u64 + 1, address);
        }
        let (mut left, mut open) = (addresses.len(), Vec::new());
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            for h in happened {
                match h {
                    Happened::Dialed(number, Ok((conn, peer))) => {
                        assert!(peer.0.contains(':'), "{peer:?}");
                        net.send(conn, b"hello".to_vec());
                        open.push((conn, number, vec![]));
                    }
                    Happened::Dialed(number, Err(error)) => {
                        tell.send((number, Err(error))).unwrap();
                        left -= 1;
                    }
                    Happened::Bytes(conn, bytes) => {
                        open.iter_mut().find(|(c, ..)| *c == conn).unwrap().2.extend_from_slice(&bytes);
                    }
                    Happened::Closed(conn) => {
                        let at = open.iter().position(|(c, ..)| *c == conn).unwrap();
                        let (_, number, heard) = open.remove(at);
                        tell.send((number, Ok(heard))).unwrap();
                        left -= 1;
                    }
                    _ => {}
                }
            }
            left == 0
        };
        (net, turn)
    });
    let mut found: Vec<_> = told.into_iter().collect();
    core.join().unwrap();
    found.sort();
    found
}

/// Answers each connection with what it said, and ends it.
fn answering(connections: usize) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = std::thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).unwrap();
            stream.write_all(&said).unwrap();
        }
    });
    (format!("127.0.0.1:{port}"), answers)
}

#[test]
fn an_address_and_a_name_are_connected_to_and_the_rest_says_why_not() {
    let (address, answers) = answering(2);
    let name = address.replace("127.0.0.1", "localhost");
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let found = dial(vec![address, name, refusing.clone(), "no-such-host.invalid:1".into(), "no port".into()]);
    answers.join().unwrap();
    assert_eq!(found.len(), 5);
    assert_eq!(found[0], (1, Ok(b"hello".to_vec())));
    assert_eq!(found[1], (2, Ok(b"hello".to_vec())), "localhost may be ::1 as well, where nobody listens");
    let error = |at: usize| found[at].1.clone().unwrap_err();
    assert!(error(2).starts_with(&refusing) && error(2).contains("refused"), "{}", error(2));
    assert!(error(3).starts_with("no-such-host.invalid:1: "), "{}", error(3));
    assert!(error(4).starts_with("no port: "), "{}", error(4));
}

#[test]
fn an_address_where_nobody_answers_is_given_up() {
    // a backlog that is full: the kernel drops further attempts in silence
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: a plain system call on our socket.
    unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&full), 0) };
    let address = full.local_addr().unwrap();
    let filling: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(move || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(500))))
        .collect();
    let fillers: Vec<_> = filling.into_iter().map(|f| f.join().unwrap()).collect();
    assert!(fillers.iter().any(Result::is_err), "the backlog is full");
    let begun = Instant::now();
    let found = dial(vec![address.to_string()]);
    let error = found[0].1.clone().unwrap_err();
    assert!(error.contains("no answer within"), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(4));
}
