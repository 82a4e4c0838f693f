//! Echo of 128 B over loopback: this Net inside a glommio executor, glommio's TcpStream, a plain tokio server.
//!
//! `cargo bench --bench echo` (or longer with `-- ROUNDS SECONDS CONNECTIONS...`). Server on core 0, client (tokio) on the last, closed
//! loop: each connection sends its next request when it has the answer. The three take turns within a round; the printed figure is the
//! median of the rounds, and of the rounds' ratios to tokio in the same round (a virtual machine's speed changes by a fifth from one
//! second to the next). "us CPU" is the server thread's user and system time per request, without setting it up. Not criterion's: it
//! would measure one after the other, minutes apart, and knows no ratio within a round.

mod common;

use common::{executor, last_cpu, middle, percentile_us, pin, thread_cpu_seconds};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use ringmq::base::ConnId;
use ringmq::net::{Net, NetEvent, NetOptions, listen};
use ringmq::ring::{Bell, Waiter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

const CONNECTIONS: [usize; 4] = [1, 8, 64, 256];
const MESSAGE: usize = 128;

/// Pause between two turns of glommio's reactor, as on a core without work for it.
const REACTOR_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq)]
enum Server {
    Net,
    Glommio,
    Tokio,
}

#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

fn main() {
    let numbers = common::numbers();
    let (rounds, duration) = match common::is_smoke() {
        true => (1, Duration::from_millis(50)),
        false => {
            let number = |i: usize, or: u64| numbers.get(i).copied().unwrap_or(or);
            (number(0, 3), Duration::from_secs(number(1, 1)))
        }
    };
    println!("echo of {MESSAGE} B, server on core 0, client on core {}, {rounds} rounds of {duration:?}, medians", last_cpu());
    println!(
        "{:>11} | {:>8} | {:>9} {:>8} {:>8} {:>8} | to tokio: req/s, CPU",
        "connections", "server", "req/s", "p50 us", "p99 us", "us CPU"
    );
    let chosen: Vec<usize> = numbers.iter().skip(2).map(|&n| n as usize).collect();
    for connections in if chosen.is_empty() { CONNECTIONS.to_vec() } else { chosen } {
        let servers = [Server::Tokio, Server::Net, Server::Glommio];
        let mut all = [const { Vec::new() }; 3];
        for round in 0..rounds as usize {
            // each is first, second and last equally often
            for i in (0..3).map(|n| (n + round) % 3) {
                all[i].push(run(servers[i], connections, duration));
            }
        }
        for (i, name) in ["tokio", "net", "glommio"].iter().enumerate() {
            let m = medians(&all[i]);
            let to_tokio =
                |of: fn(&Figures) -> f64| middle(all[i].iter().zip(&all[0]).map(|(this, tokio)| of(this) / of(tokio)).collect());
            let (r, c) = (to_tokio(|f| f.per_second), to_tokio(|f| f.cpu_us));
            println!(
                "{connections:>11} | {name:>8} | {:>9.0} {:>8.0} {:>8.0} {:>8.2} | {r:.2} {c:.2}",
                m.per_second, m.p50_us, m.p99_us, m.cpu_us
            );
        }
    }
}

fn medians(figures: &[Figures]) -> Figures {
    let of = |f: fn(&Figures) -> f64| middle(figures.iter().map(f).collect());
    Figures { per_second: of(|f| f.per_second), p50_us: of(|f| f.p50_us), p99_us: of(|f| f.p99_us), cpu_us: of(|f| f.cpu_us) }
}

fn run(server: Server, connections: usize, duration: Duration) -> Figures {
    let listener = listen("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let thread = std::thread::spawn(move || match server {
        Server::Net => serve_net(listener),
        Server::Glommio => serve_glommio(listener, connections),
        Server::Tokio => serve_tokio(listener, connections),
    });
    let mut ns = client(address, connections, duration);
    let cpu = thread.join().expect("the server ends when its clients have");
    ns.sort_unstable();
    Figures {
        per_second: ns.len() as f64 / duration.as_secs_f64(),
        p50_us: percentile_us(&ns, 0.5),
        p99_us: percentile_us(&ns, 0.99),
        cpu_us: cpu * 1e6 / ns.len() as f64,
    }
}

fn serve_net(listener: TcpListener) -> f64 {
    let serve = move || async move {
        let mut net = Net::new(listener, NetOptions::default()).expect("a ring");
        let bell = Bell::new();
        let (waiter, rings) = (Waiter::new(net.wake_fd()).expect("a descriptor"), bell.clone());
        let is_over = Rc::new(std::cell::Cell::new(false));
        let ends = is_over.clone();
        let waiting = glommio::spawn_local(async move {
            while !ends.get() {
                waiter.wait().await.expect("an eventfd can be read");
                rings.ring();
            }
        });
        let cpu_before = thread_cpu_seconds();
        let mut answers: Vec<(ConnId, Vec<u8>)> = Vec::new();
        let mut was_used = false;
        let mut reactor_at = Instant::now();
        loop {
            net.poll(&mut |event| match event {
                NetEvent::Opened { .. } => was_used = true,
                NetEvent::Bytes { conn, bytes } => match answers.last_mut() {
                    Some((last, answer)) if *last == conn => answer.extend_from_slice(bytes),
                    _ => answers.push((conn, bytes.to_vec())),
                },
                _ => {}
            });
            answers.drain(..).for_each(|(conn, bytes)| net.send(conn, bytes));
            let is_busy = net.submit().expect("the ring works");
            if was_used && net.connections() == 0 {
                break;
            }
            if reactor_at.elapsed() < REACTOR_PAUSE {
                if !is_busy {
                    net.park(Duration::ZERO, REACTOR_PAUSE).expect("the ring works");
                }
                continue;
            }
            if is_busy || !net.try_sleep().expect("the ring works") {
                net.wake_fd().signal();
            }
            bell.wait().await;
            reactor_at = Instant::now();
        }
        is_over.set(true);
        net.wake_fd().signal();
        waiting.await;
        thread_cpu_seconds() - cpu_before
    };
    executor(0).spawn(serve).expect("an executor").join().expect("it ends")
}

fn serve_glommio(listener: TcpListener, connections: usize) -> f64 {
    let fd = listener.into_raw_fd();
    let serve = move || async move {
        // SAFETY: the descriptor is ours.
        let listener = unsafe { glommio::net::TcpListener::from_raw_fd(fd) };
        let cpu_before = thread_cpu_seconds();
        let mut tasks = Vec::new();
        for _ in 0..connections {
            let mut s = listener.accept().await.expect("a client");
            s.set_nodelay(true).expect("a socket");
            tasks.push(glommio::spawn_local(async move {
                let mut b = [0u8; 16384];
                while let Ok(n @ 1..) = s.read(&mut b).await {
                    if s.write_all(&b[..n]).await.is_err() {
                        break;
                    }
                }
            }));
        }
        for task in tasks {
            task.await;
        }
        thread_cpu_seconds() - cpu_before
    };
    executor(0).spawn(serve).expect("an executor").join().expect("it ends")
}

fn serve_tokio(listener: TcpListener, connections: usize) -> f64 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    pin(0);
    listener.set_nonblocking(true).expect("a socket");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cpu_before = thread_cpu_seconds();
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        let mut tasks = Vec::new();
        for _ in 0..connections {
            let (mut s, _) = listener.accept().await.expect("a client");
            s.set_nodelay(true).expect("a socket");
            tasks.push(tokio::spawn(async move {
                let mut b = [0u8; 16384];
                while let Ok(n @ 1..) = s.read(&mut b).await {
                    if s.write_all(&b[..n]).await.is_err() {
                        break;
                    }
                }
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    });
    thread_cpu_seconds() - cpu_before
}

/// Round trip times in nanoseconds.
fn client(address: SocketAddr, connections: usize, duration: Duration) -> Vec<u32> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let run = move || {
        pin(last_cpu());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let end = Instant::now() + duration;
            let one = move || async move {
                let mut s = tokio::net::TcpStream::connect(address).await.expect("the server listens");
                s.set_nodelay(true).expect("a socket");
                let (message, mut answer, mut ns) = ([7u8; MESSAGE], [0u8; MESSAGE], vec![]);
                while Instant::now() < end {
                    let sent_at = Instant::now();
                    s.write_all(&message).await.expect("the server lives");
                    s.read_exact(&mut answer).await.expect("the server answers");
                    ns.push(sent_at.elapsed().as_nanos() as u32);
                }
                ns
            };
            let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(one())).collect();
            let mut ns = vec![];
            for task in tasks {
                ns.extend(task.await.expect("no panic"));
            }
            ns
        })
    };
    std::thread::spawn(run).join().expect("no panic")
}
