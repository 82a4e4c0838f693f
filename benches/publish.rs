//! Publishing through a real node, over loopback: N closed-loop publishers, each on a topic of its own or all on one,
//! beside a plain loop of pwrite and fdatasync on the same disk in the same run. Then MPUB and consuming, for orientation.
//!
//! `cargo bench --bench publish [-- ROUNDS SECONDS SHARDS]`, by default one round of 1 s; `-- 5 3` for figures. The node's first core is
//! the first CPU; the client (one thread, epoll, closed loop: a publisher sends its next message when it has the answer) is on the last
//! one. The compared loops take turns within a round, so that a machine that slows down slows all; printed are medians of the rounds.
//!
//! "us CPU" is the process's user and system time (of the plain loop: its thread's), "disk B" what the kernel counts as
//! written to the disk, per message. A third of the time before each measurement is not counted: a topic is created in it,
//! and its files take their first steps.
//! Not criterion's: what is compared takes turns within a round, with the CPU time and disk bytes of another process.

mod common;
#[path = "../tests/node/mod.rs"]
mod node;

use common::{last_cpu, load, middle, percentile_us, pin, thread_cpu_seconds};
use node::{Client, Node, command_with_body, multi_publish};
use ringmq::disk::blocking::AlignedBuffer;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const PUBLISHERS: [usize; 4] = [1, 16, 64, 256];
const BODY: usize = 150;
const MULTI: (usize, usize) = (200, 1024);
const RAW_WRITE: usize = 4096;
const RAW_FILE: u64 = 16 << 20;
const OK: &[u8] = b"\0\0\0\x06\0\0\0\0OK";
const READY: u32 = 2500;

#[derive(Clone, Copy, PartialEq)]
enum Topics {
    Own,
    One,
}

#[derive(Clone, Copy, Default)]
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
    disk_bytes: f64,
}

fn main() {
    let numbers = common::numbers();
    let number = |i: usize, or: u64| numbers.get(i).copied().unwrap_or(or);
    let is_smoke = common::is_smoke();
    let seconds = if is_smoke { Duration::from_millis(60) } else { Duration::from_secs(number(1, 1)) };
    let (rounds, shards) = (if is_smoke { 1 } else { number(0, 1) }, number(2, 1));
    println!("{rounds} rounds of {seconds:?}, medians; {shards} shards; load before: {}", load());
    let mut raw = Vec::new();
    let publishers = if is_smoke { &PUBLISHERS[..2] } else { &PUBLISHERS[..] };
    let mut pairs: Vec<_> = publishers.iter().map(|&n| (n, Vec::new(), Vec::new())).collect();
    let mut multi = [1, 16].map(|n| (n, Vec::new()));
    let mut consuming = Vec::new();
    for round in 0..rounds {
        let node = Node::start(&[&format!("--shards={shards}")]);
        for (i, (n, own, one)) in pairs.iter_mut().enumerate() {
            raw.push(raw_loop(&node.data_path(), seconds / 3));
            let run = |topics| publish(&node, topics, &format!("r{round}-{n}"), *n, seconds);
            // who comes first changes: a disk or a neighbour may slow down in between
            if (round as usize + i).is_multiple_of(2) {
                own.push(run(Topics::Own));
                one.push(run(Topics::One));
            } else {
                one.push(run(Topics::One));
                own.push(run(Topics::Own));
            }
        }
        for (n, figures) in &mut multi {
            figures.push(publish_many(&node, &format!("m{round}-{n}"), *n, seconds));
        }
        consuming.push(consume(&node, &format!("c{round}")));
    }
    let raw = median(&raw);
    println!("| what | messages/s | p50 us | p99 us | us CPU | disk B | p50, of raw |");
    println!("|---|---|---|---|---|---|---|");
    // a consumer has no latency of its own
    let or_blank = |figure: f64, digits: usize| if figure.is_nan() { String::new() } else { format!("{figure:.digits$}") };
    let row = |name: &str, f: Figures| {
        println!(
            "| {name} | {:.0} | {} | {} | {:.2} | {:.0} | {} |",
            f.per_second,
            or_blank(f.p50_us, 0),
            or_blank(f.p99_us, 0),
            f.cpu_us,
            f.disk_bytes,
            or_blank(f.p50_us / raw.p50_us, 2)
        );
    };
    row(&format!("pwrite + fdatasync of {RAW_WRITE} B, one at a time"), raw);
    let mut ratios = Vec::new();
    for (n, own, one) in &pairs {
        row(&format!("{n} publishers, {n} topics"), median(own));
        row(&format!("{n} publishers, one topic"), median(one));
        // within a round: what slows the machine slows both
        let ratio = middle(own.iter().zip(one).map(|(a, b)| a.per_second / b.per_second).collect());
        ratios.push(format!("{n}: {ratio:.2}"));
    }
    for (n, figures) in &multi {
        row(&format!("{n} publishers, MPUB {} x {} B", MULTI.0, MULTI.1), median(figures));
    }
    row(&format!("1 consumer, RDY {READY}, FIN each"), median(&consuming));
    println!("\nN topics to one topic, messages/s, median of the rounds' ratios: {}", ratios.join(", "));
    println!("load after: {}", load());
}

fn median(figures: &[Figures]) -> Figures {
    let of = |f: fn(&Figures) -> f64| middle(figures.iter().map(f).collect());
    Figures {
        per_second: of(|f| f.per_second),
        p50_us: of(|f| f.p50_us),
        p99_us: of(|f| f.p99_us),
        cpu_us: of(|f| f.cpu_us),
        disk_bytes: of(|f| f.disk_bytes),
    }
}

/// Resources that the node has used since the meter began.
struct Meter {
    begun: Instant,
    cpu_s: f64,
    written: u64,
}

impl Meter {
    fn start(pid: u32) -> Meter {
        Meter { begun: Instant::now(), cpu_s: cpu_seconds(pid), written: written_bytes(pid) }
    }

    /// Figures for `messages` of which `ns` are the times of the requests that carried them.
    fn end(self, pid: u32, messages: usize, mut ns: Vec<u32>) -> Figures {
        let took = self.begun.elapsed();
        let (cpu, written) = (cpu_seconds(pid) - self.cpu_s, written_bytes(pid) - self.written);
        ns.sort_unstable();
        Figures {
            per_second: messages as f64 / took.as_secs_f64(),
            p50_us: percentile_us(&ns, 0.5),
            p99_us: percentile_us(&ns, 0.99),
            cpu_us: cpu * 1e6 / messages as f64,
            disk_bytes: written as f64 / messages as f64,
        }
    }
}

fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the node runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    let ticks = |i: usize| fields[i].parse::<f64>().expect("a number of ticks");
    // SAFETY: a plain call.
    (ticks(11) + ticks(12)) / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}

fn written_bytes(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn publish(node: &Node, topics: Topics, name: &str, n: usize, duration: Duration) -> Figures {
    let command = |i: usize| match topics {
        Topics::Own => command_with_body(&format!("PUB {name}-own-{i}"), &[b'x'; BODY]),
        Topics::One => command_with_body(&format!("PUB {name}-one"), &[b'x'; BODY]),
    };
    closed_loop(node, (0..n).map(command).collect(), 1, duration)
}

fn publish_many(node: &Node, name: &str, n: usize, duration: Duration) -> Figures {
    let bodies = vec![vec![b'x'; MULTI.1]; MULTI.0];
    let command = |i: usize| multi_publish(&format!("{name}-{i}"), &bodies);
    closed_loop(node, (0..n).map(command).collect(), MULTI.0, duration)
}

struct Publisher {
    stream: TcpStream,
    command: Vec<u8>,
    /// Bytes of the command that are out, of the answer that are here.
    sent: usize,
    answered: usize,
    at: Instant,
}

impl Publisher {
    /// Sends what the socket takes.
    fn send(&mut self) {
        while self.sent < self.command.len() {
            match self.stream.write(&self.command[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => panic!("the node takes what is sent: {e}"),
            }
        }
    }

    /// True when the answer is complete.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 256];
        match self.stream.read(&mut buffer) {
            Ok(len) => {
                let expected = OK.get(self.answered..self.answered + len);
                assert!(len > 0 && expected == Some(&buffer[..len]), "not OK: {:?}", String::from_utf8_lossy(&buffer[..len]));
                self.answered += len;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("the node answers: {e}"),
        }
        self.answered == OK.len()
    }
}

/// Load of connections that each send their command again and again. The first answer, which creates the topic, does not count.
fn closed_loop(node: &Node, commands: Vec<Vec<u8>>, messages: usize, duration: Duration) -> Figures {
    let (address, pid) = (node.tcp(), node.pid());
    let run = move || {
        pin(last_cpu());
        // SAFETY: plain calls; the events' memory is as long as is said.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        let mut publishers: Vec<Publisher> = Vec::new();
        for (i, command) in commands.into_iter().enumerate() {
            let mut stream = TcpStream::connect(address).expect("the node listens");
            stream.set_nodelay(true).expect("a socket");
            stream.write_all(b"  V2").expect("the node reads");
            stream.write_all(&command).expect("the node reads");
            let mut answer = [0; 10];
            stream.read_exact(&mut answer).expect("the node answers");
            assert_eq!(answer, OK, "{}", String::from_utf8_lossy(&answer));
            stream.set_nonblocking(true).expect("a socket");
            // a long command may need several writes
            let interest = if command.len() > 4096 { libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET } else { libc::EPOLLIN };
            let mut event = libc::epoll_event { events: interest as u32, u64: i as u64 };
            assert_eq!(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &mut event) }, 0);
            publishers.push(Publisher { stream, command, sent: 0, answered: 0, at: Instant::now() });
        }
        let mut ns = Vec::with_capacity(1 << 20);
        let mut meter = Meter::start(pid);
        let mut is_warm = false;
        for publisher in &mut publishers {
            publisher.at = Instant::now();
            publisher.send();
        }
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        while !is_warm || meter.begun.elapsed() < duration {
            if !is_warm && meter.begun.elapsed() >= duration / 3 {
                is_warm = true;
                ns.clear();
                meter = Meter::start(pid);
            }
            let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, 20_000) };
            assert!(count > 0, "no answer for 20 s");
            for event in &events[..count as usize] {
                let publisher = &mut publishers[event.u64 as usize];
                publisher.send();
                if publisher.receive() {
                    let now = Instant::now();
                    ns.push((now - publisher.at).as_nanos() as u32);
                    (publisher.sent, publisher.answered, publisher.at) = (0, 0, now);
                    publisher.send();
                }
            }
        }
        let figures = meter.end(pid, ns.len() * messages, ns);
        unsafe { libc::close(epoll) };
        figures
    };
    std::thread::spawn(run).join().expect("the client does not panic")
}

/// Reads of one client that takes the content of a topic: most of it from the disk, the end from memory.
fn consume(node: &Node, topic: &str) -> Figures {
    let messages = if common::is_smoke() { 10_000 } else { 300_000 };
    let (address, pid, topic) = (node.tcp(), node.pid(), topic.to_owned());
    let run = move || {
        pin(last_cpu());
        let mut client = Client::connect(address).expect("the node listens");
        let many = multi_publish(&topic, &vec![vec![b'x'; BODY]; 1000]);
        for _ in 0..messages / 1000 {
            client.write(&many).expect("the node reads");
            client.ok().expect("the node answers");
        }
        let mut stream = TcpStream::connect(address).expect("the node listens");
        stream.set_nodelay(true).expect("a socket");
        let meter = Meter::start(pid);
        stream.write_all(format!("  V2SUB {topic} c\nRDY {READY}\n").as_bytes()).expect("the node reads");
        let (mut unread, mut buffer, mut fins) = (Vec::new(), vec![0; 256 * 1024], Vec::new());
        let mut count = 0;
        while count < messages {
            let len = stream.read(&mut buffer).expect("the node sends");
            assert!(len > 0, "the node goes on");
            unread.extend_from_slice(&buffer[..len]);
            let mut rest = &unread[..];
            while let Some((head, tail)) = rest.split_first_chunk::<8>() {
                let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
                let Some(frame) = tail.get(..size - 4) else { break };
                match (head[7], frame) {
                    (2, frame) => {
                        fins.extend_from_slice(b"FIN ");
                        fins.extend_from_slice(&frame[10..26]);
                        fins.push(b'\n');
                        count += 1;
                    }
                    (0, b"OK") => {}
                    (0, b"_heartbeat_") => fins.extend_from_slice(b"NOP\n"),
                    (kind, text) => panic!("a frame of kind {kind}: {}", String::from_utf8_lossy(text)),
                }
                rest = &tail[size - 4..];
            }
            let taken = unread.len() - rest.len();
            unread.drain(..taken);
            stream.write_all(&fins).expect("the node reads");
            fins.clear();
        }
        meter.end(pid, count, vec![])
    };
    std::thread::spawn(run).join().expect("the client does not panic")
}

/// Durable writes, one after the other, on the node's CPU, over a file that was written once before.
fn raw_loop(folder: &Path, duration: Duration) -> Figures {
    let path = folder.with_file_name("raw");
    let run = move || {
        pin(0);
        let file = File::options().create(true).write(true).custom_flags(libc::O_DIRECT).open(&path).expect("a folder to write");
        let buffer = AlignedBuffer::zeroed(RAW_WRITE);
        let fill = AlignedBuffer::zeroed(1 << 20);
        for at in (0..RAW_FILE).step_by(1 << 20) {
            file.write_all_at(&fill, at).expect("there is room");
        }
        file.sync_all().expect("the disk works");
        let mut ns = Vec::new();
        let (begun, cpu) = (Instant::now(), thread_cpu_seconds());
        for at in (0..RAW_FILE).step_by(RAW_WRITE).cycle() {
            let at_once = Instant::now();
            file.write_all_at(&buffer, at).expect("the disk works");
            file.sync_data().expect("the disk works");
            ns.push(at_once.elapsed().as_nanos() as u32);
            if begun.elapsed() >= duration {
                break;
            }
        }
        let per_second = ns.len() as f64 / begun.elapsed().as_secs_f64();
        let cpu_us = (thread_cpu_seconds() - cpu) * 1e6 / ns.len() as f64;
        ns.sort_unstable();
        let (p50_us, p99_us) = (percentile_us(&ns, 0.5), percentile_us(&ns, 0.99));
        Figures { per_second, p50_us, p99_us, cpu_us, disk_bytes: RAW_WRITE as f64 }
    };
    std::thread::spawn(run).join().expect("the raw loop does not panic")
}
