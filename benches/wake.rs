//! Waking another core: a write to its eventfd, against MSG_RING into its ring (docs/decisions/wake.md).
//!
//! `cargo bench --bench wake` (or with `-- ROUND_TRIPS ROUNDS`). Two glommio executors on cores 0 and 1, each with a ring
//! of its own whose eventfd it sleeps on, as in src/net, throw one ball to and fro. With MSG_RING the ball's completion
//! signals that same eventfd: there is no way into glommio's own rings. Ways taken in turn; medians of the rounds.
//! Not criterion's: two ways are compared within a round, and by their CPU time too.

mod common;

use common::{executor, middle, percentile_us, thread_cpu_seconds};
use glommio::io::BufferedFile;
use io_uring::{IoUring, opcode, types};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst, fence};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq)]
enum WakeBy {
    Eventfd,
    MsgRing,
}

struct Shared {
    rings: [AtomicI32; 2],
    eventfds: [AtomicI32; 2],
    /// Odd: core 1 has the ball.
    ball: AtomicU64,
    ready: Barrier,
}

/// Microseconds per round trip, of the waker's call, and of both threads' CPU per round trip.
#[derive(Clone, Copy)]
struct Figures {
    trip_p50: f64,
    trip_p99: f64,
    call: f64,
    cpu: f64,
}

fn main() {
    if common::last_cpu() == 0 {
        return eprintln!("one CPU: there is no other core to wake");
    }
    let numbers = common::numbers();
    let (trips, rounds) = match common::is_smoke() {
        true => (1_000, 1),
        false => (numbers.first().copied().unwrap_or(50_000), numbers.get(1).copied().unwrap_or(5)),
    };
    println!("{trips} round trips between sleeping executors on cores 0 and 1, {rounds} rounds, medians");
    println!("{:>9} | {:>11} {:>11} {:>13} {:>14}", "way", "trip p50 us", "trip p99 us", "waker call us", "CPU us a trip");
    let mut all = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for (i, way) in [WakeBy::Eventfd, WakeBy::MsgRing].into_iter().enumerate() {
            all[i].push(run(way, trips));
        }
    }
    for (name, figures) in ["eventfd", "MSG_RING"].iter().zip(&all) {
        let of = |f: fn(&Figures) -> f64| middle(figures.iter().map(f).collect());
        let (p50, p99) = (of(|f| f.trip_p50), of(|f| f.trip_p99));
        println!("{name:>9} | {p50:>11.1} {p99:>11.1} {:>13.2} {:>14.1}", of(|f| f.call), of(|f| f.cpu));
    }
}

fn run(way: WakeBy, trips: u64) -> Figures {
    let none = || AtomicI32::new(-1);
    let shared =
        Arc::new(Shared { rings: [none(), none()], eventfds: [none(), none()], ball: AtomicU64::new(0), ready: Barrier::new(2) });
    let threads: Vec<_> = (0..2)
        .map(|core| {
            let shared = shared.clone();
            executor(core).spawn(move || async move { play(core, way, trips, &shared).await }).expect("an executor")
        })
        .collect();
    let mut done = threads.into_iter().map(|t| t.join().expect("no panic"));
    let (mut ns, call, cpu_0) = done.next().expect("two");
    let (_, _, cpu_1) = done.next().expect("two");
    ns.sort_unstable();
    let cpu = (cpu_0 + cpu_1) * 1e6 / trips as f64;
    Figures { trip_p50: percentile_us(&ns, 0.5), trip_p99: percentile_us(&ns, 0.99), call, cpu }
}

async fn play(core: usize, way: WakeBy, trips: u64, shared: &Shared) -> (Vec<u32>, f64, f64) {
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(64).expect("a ring");
    // SAFETY: a plain system call.
    let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    ring.submitter().register_eventfd(eventfd).expect("it is ours");
    // SAFETY: the file owns the descriptor from here on.
    let file = unsafe { BufferedFile::from_raw_fd(eventfd) };
    shared.rings[core].store(ring.as_raw_fd(), SeqCst);
    shared.eventfds[core].store(eventfd, SeqCst);
    shared.ready.wait();
    let other_ring = shared.rings[1 - core].load(SeqCst);
    let other_eventfd = shared.eventfds[1 - core].load(SeqCst);
    let (mut ns, mut calls, cpu_before) = (Vec::new(), Duration::ZERO, thread_cpu_seconds());
    let last = trips * 2;
    let mut thrown_at = Instant::now();
    loop {
        let ball = shared.ball.load(SeqCst);
        if ball % 2 == core as u64 && ball <= last {
            if ball > 1 {
                ns.push(thrown_at.elapsed().as_nanos() as u32);
            }
            thrown_at = Instant::now();
            shared.ball.store(ball + 1, SeqCst);
            match way {
                WakeBy::Eventfd => write_one(other_eventfd),
                WakeBy::MsgRing => {
                    let entry = opcode::MsgRingData::new(types::Fd(other_ring), 0, 1, None).build().user_data(2);
                    // SAFETY: the entry points to nothing.
                    unsafe { ring.submission().push(&entry).expect("there is room") };
                    ring.submit().expect("the ring works");
                }
            }
            calls += thrown_at.elapsed();
        }
        if shared.ball.load(SeqCst) > last {
            break;
        }
        // quiet while awake, as in src/net; armed before the last look
        ring.completion().enable_eventfd();
        fence(SeqCst);
        let is_late = ring.submission().taskrun() || !ring.completion().is_empty();
        if !is_late {
            file.read_at(0, 8).await.expect("an eventfd can be read");
        }
        ring.completion().disable_eventfd();
        // a turn looks at its ring, whoever woke it
        // SAFETY: no argument is passed.
        unsafe { ring.submitter().enter::<libc::sigset_t>(0, 0, 1, None).expect("the ring works") };
        ring.completion().for_each(drop);
    }
    write_one(other_eventfd); // it may sleep
    let cpu = thread_cpu_seconds() - cpu_before;
    let call = calls.as_secs_f64() * 1e6 / trips as f64;
    shared.ready.wait(); // its descriptors stay until the other has thrown for the last time
    (ns, call, cpu)
}

fn write_one(eventfd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight readable bytes.
    unsafe { libc::write(eventfd, one.as_ptr().cast(), one.len()) };
}
