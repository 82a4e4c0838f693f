//! Out of file descriptors. Alone in its process, since the limit is the process's.

#[path = "support/core.rs"]
mod core;

use crate::core::{Happened, run};
use ringmq::net::{Net, NetOptions, listen};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

#[test]
fn without_descriptors_a_core_waits_and_does_not_spin() {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (turns, opened) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (turns_seen, opened_seen) = (turns.clone(), opened.clone());
    let server = run("no descriptors", move || {
        let turn = move |net: &mut Net, happened: Vec<Happened>| {
            turns.fetch_add(1, SeqCst);
            for h in happened {
                match h {
                    Happened::Opened(..) => drop(opened.fetch_add(1, SeqCst)),
                    Happened::Bytes(_, bytes) if bytes == b"end" => return true,
                    Happened::Bytes(conn, bytes) => net.send(conn, bytes),
                    _ => {}
                }
            }
            false
        };
        (Net::new(listener, NetOptions::default()).unwrap(), turn)
    });
    let mut first = TcpStream::connect(address).unwrap();
    echo(&mut first);
    // take every descriptor there is
    // SAFETY: the option's struct.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 200, rlim_max: 200 }) };
    let mut waiting = vec![TcpStream::connect(address).unwrap()]; // the client's side has its descriptor already
    let mut fillers = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        fillers.push(file);
    }
    // make room for one client's side at a time: that one waits to be accepted
    for _ in 0..3 {
        fillers.pop();
        waiting.push(TcpStream::connect(address).unwrap());
    }
    std::thread::sleep(Duration::from_millis(300));
    let (turns_before, opened_before) = (turns_seen.load(SeqCst), opened_seen.load(SeqCst));
    std::thread::sleep(Duration::from_millis(500));
    let turns = turns_seen.load(SeqCst) - turns_before;
    assert!(turns < 100, "{turns} turns in half a second");
    assert!(opened_before < 5, "{opened_before}, {} fillers, {:?}", fillers.len(), std::fs::File::open("/dev/null"));
    echo(&mut first);
    drop(fillers);
    waiting.iter_mut().for_each(echo);
    first.write_all(b"end").unwrap();
    server.join().unwrap();
}

fn echo(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"still here").unwrap();
    let mut back = [0; 10];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"still here");
}
