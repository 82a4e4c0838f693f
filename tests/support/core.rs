//! One core for the tests of net and mesh: the loop that the head of src/net/mod.rs describes, in a real executor.

use glommio::{LocalExecutorBuilder, Placement};
use ringmq::base::{ConnId, CoreId, Lent, Peer};
use ringmq::net::{Net, NetEvent};
use ringmq::ring::{Bell, Waiter};
use ringmq::seam::message::MovedSession;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A NetEvent that owns its bytes.
#[derive(Debug)]
#[allow(dead_code)] // not every test binary looks at every field
pub enum Happened {
    Opened(ConnId, Peer),
    Bytes(ConnId, Vec<u8>),
    Received(ConnId, Lent),
    Sent(ConnId, usize),
    /// End of a connection. With `true`: bytes came after the last send.
    Ended(ConnId, bool),
    Closed(ConnId),
    Moved(ConnId, OwnedFd, CoreId, Box<MovedSession>, Vec<u8>),
    Dialed(u64, Result<(ConnId, Peer), String>),
}

fn owned(event: NetEvent<'_>) -> Happened {
    match event {
        NetEvent::Opened { conn, peer, .. } => Happened::Opened(conn, peer),
        NetEvent::Bytes { conn, bytes } => Happened::Bytes(conn, bytes.to_vec()),
        NetEvent::Received { conn, lent } => Happened::Received(conn, lent),
        NetEvent::Sent { conn, bytes } => Happened::Sent(conn, bytes),
        NetEvent::Ended { conn, unanswered } => Happened::Ended(conn, unanswered),
        NetEvent::Closed { conn } => Happened::Closed(conn),
        NetEvent::Dialed { dial, result } => Happened::Dialed(dial, result),
        NetEvent::Moved { conn, fd, to, session, unread } => Happened::Moved(conn, fd, to, session, unread),
    }
}

/// Runs `make()`'s turns on an executor of its own until one says that it is done. A turn gets what happened since the
/// last one; it runs after each wake, so what it keeps an eye on is seen when somebody wakes the core. A turn that wants
/// another one calls `wake_fd().wake()`: a bare `signal()` is not heard by a core that parks in its ring.
pub fn run<T, F>(name: &str, make: T) -> JoinHandle<()>
where
    T: FnOnce() -> (Net, F) + Send + 'static,
    F: FnMut(&mut Net, Vec<Happened>) -> bool + 'static,
{
    let name = name.to_owned();
    std::thread::spawn(move || {
        let executor =
            LocalExecutorBuilder::new(Placement::Unbound).preempt_timer(Duration::from_secs(3600)).io_memory(1 << 20).name(&name);
        executor.make().expect("an executor").run(async move {
            let (net, turn) = make();
            drive(net, turn).await;
        });
    })
}

async fn drive(mut net: Net, mut turn: impl FnMut(&mut Net, Vec<Happened>) -> bool) {
    let bell = Bell::new();
    let (waiter, rings) = (Waiter::new(net.wake_fd()).expect("a descriptor"), bell.clone());
    let is_over = Rc::new(Cell::new(false));
    let ends = is_over.clone();
    let waiting = glommio::spawn_local(async move {
        while !ends.get() {
            waiter.wait().await.expect("an eventfd can be read");
            rings.ring();
        }
    });
    // by turns asleep in the ring and in glommio, as a core that has files is
    for number in 0.. {
        let mut happened = Vec::new();
        net.poll(&mut |event| happened.push(owned(event)));
        if turn(&mut net, happened) {
            break;
        }
        let is_busy = net.submit().expect("the ring works");
        if number % 8 != 0 {
            if !is_busy {
                net.park(Duration::ZERO, Duration::from_secs(3600)).expect("the ring works");
            }
            continue;
        }
        if is_busy || !net.try_sleep().expect("the ring works") {
            net.wake_fd().signal();
        }
        bell.wait().await;
    }
    is_over.set(true);
    net.wake_fd().signal();
    waiting.await;
    assert!(net.shutdown(), "everything in flight can be reaped");
}
