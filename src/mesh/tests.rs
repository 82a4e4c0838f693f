//! The mesh alone, in one thread or two. With real executors: tests/mesh.rs.

use super::*;
use crate::seam::message::Ticket;
use std::sync::atomic::AtomicUsize;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

fn message(n: u64) -> MeshMessage {
    MeshMessage::Published { ticket: Ticket(n), result: Ok(()) }
}

fn drain(port: &mut Port) -> Vec<(CoreId, u64)> {
    let mut got = Vec::new();
    let count = port.drain(&mut |from, m| match m {
        MeshMessage::Published { ticket, .. } => got.push((from, ticket.0)),
        other => panic!("{other:?}"),
    });
    assert_eq!(count, got.len());
    got
}

fn connected(cores: u16) -> (Vec<Port>, Port, Vec<Arc<Count>>) {
    let (mut ports, mut http) = mesh(cores);
    let counts: Vec<_> = (0..cores + 1).map(|_| Arc::new(Count::default())).collect();
    let mut wakers: Vec<Arc<dyn Wake>> = counts.iter().map(|c| c.clone() as Arc<dyn Wake>).collect();
    let last = wakers.pop().unwrap();
    for port in ports.iter_mut().chain([&mut http]) {
        port.connect_wakers(&wakers, last.clone());
    }
    (ports, http, counts)
}

#[test]
fn a_turns_messages_are_one_bundle_and_one_wake() {
    let (mut ports, mut http, counts) = connected(2);
    (0..5).for_each(|n| ports[0].send(CoreId(1), message(n)));
    ports[0].send(CoreId::HTTP, message(7));
    assert_eq!(drain(&mut ports[1]), []);
    ports[0].flush();
    assert_eq!(counts.iter().map(|c| c.take()).collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!(drain(&mut ports[1]), [0, 1, 2, 3, 4].map(|n| (CoreId(0), n)));
    assert_eq!(drain(&mut http), [(CoreId(0), 7)]);
    http.send(CoreId(0), message(8));
    http.flush();
    assert_eq!(drain(&mut ports[0]), [(CoreId::HTTP, 8)]);
    ports[0].flush();
    assert_eq!(counts.iter().map(|c| c.take()).collect::<Vec<_>>(), [1, 0, 0], "an empty flush wakes nobody");
}

#[test]
fn a_message_to_oneself_comes_at_the_next_drain() {
    let (mut ports, _http, counts) = connected(1);
    ports[0].send(CoreId(0), message(1));
    ports[0].flush();
    assert_eq!(counts[0].take(), 1);
    assert_eq!(drain(&mut ports[0]), [(CoreId(0), 1)]);
}

#[test]
fn a_full_queue_keeps_the_bundle_and_room_wakes_the_sender() {
    let (mut ports, _http, counts) = connected(2);
    let most = BUNDLES_MAX as u64 + 10;
    for n in 0..most {
        ports[0].send(CoreId(1), message(n));
        ports[0].flush();
    }
    assert!(ports[0].has_overflow());
    assert_eq!(ports[0].waiting(), 10);
    counts.iter().for_each(|c| assert!(c.take() <= most as usize));
    assert_eq!(drain(&mut ports[1]).len(), BUNDLES_MAX);
    assert_eq!(counts[0].take(), 1, "there is room: the sender is told");
    ports[0].flush();
    assert!(!ports[0].has_overflow());
    let rest: Vec<u64> = drain(&mut ports[1]).into_iter().map(|(_, n)| n).collect();
    assert_eq!(rest, (BUNDLES_MAX as u64..most).collect::<Vec<_>>());
    assert_eq!(counts[0].take(), 0, "nobody is starved any more");
}

#[test]
#[should_panic(expected = "core 5 of 2")]
fn a_core_that_is_not_there_is_a_bug() {
    mesh(2).0[0].send(CoreId(5), message(0));
}

#[test]
fn ports_go_to_their_threads() {
    fn is_send<T: Send>() {}
    is_send::<Port>();
    is_send::<HttpPort>();
}
