//! A core never misses a wake: real executors in a process of their own, driven with a toy machine, stopped and continued
//! (SIGSTOP, SIGCONT) hundreds of times while sockets, disk, mesh, timers and a foreign thread wake them; with cores that
//! sleep, that are busy, and one of each. An answer that takes seconds is a hang: glommio 0.9.0 has holes through which an
//! executor sleeps for ever, and this test is why we believe to stay clear of them.
//!
//! It proves liveness only; what it cannot show is a hang rarer than one in some ten thousand wakes. That it can find one
//! was tried: with `PREEMPT_TIMER` at 100 us (src/runtime/cores.rs) it fails within its first two phases.

use ringmq::base::{ConnId, CoreId, DiskOp, Durability, FileId, NodeId, Now, OpId, Rng, Ticks};
use ringmq::config::Settings;
use ringmq::format::storage::Storage as _;
use ringmq::mesh::Wake;
use ringmq::runtime::cores::Build;
use ringmq::runtime::{Front, FrontStart, Machine, Recovered, Recovering, StopHandle, run_node};
use ringmq::seam::event::{Effect, Effects, Event};
use ringmq::seam::message::{MeshMessage, Ticket};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Longer than any answer takes on a crowded machine, shorter than the timers that would hide a hang.
const HANG: Duration = Duration::from_secs(5);
const ROUNDS_PER_PHASE: usize = 200;
const CHILD: &str = "RINGMQ_STALL_CHILD";
const CORES: u16 = 2;
const BLOCK: usize = ringmq::base::BLOCK;
const JOURNAL_BLOCKS: u64 = 256;
const TIMER: Duration = Duration::from_millis(3);

/// A request and its answer: kind, core that answered, number, zeros.
const FRAME: usize = 16;
const ECHO: u8 = b'E';
const DISK: u8 = b'D';
const MESH: u8 = b'M';
const TIME: u8 = b'T';
const FOREIGN: u8 = b'F';
/// Not answered: the process halts, or does not stop when it is asked to.
const HALT: u8 = b'H';
const STUBBORN: u8 = b'S';
const KINDS: [u8; 5] = [ECHO, DISK, MESH, TIME, FOREIGN];

fn main() {
    match std::env::var(CHILD) {
        Ok(data) => serve(data),
        Err(_) => {
            let begun = Instant::now();
            kill_and_start_again();
            end_at_once();
            stop_and_continue();
            println!("stall: ok, {:.1} s", begun.elapsed().as_secs_f64());
        }
    }
}

// ---- the process under test

type Frame = [u8; FRAME];

/// Answers each frame in the way that it asks for.
struct Toy {
    core: CoreId,
    partial: HashMap<ConnId, Vec<u8>>,
    output: BTreeMap<ConnId, Vec<u8>>,
    waiting: HashMap<u64, (ConnId, Frame)>,
    timers: BTreeMap<(Ticks, u64), ()>,
    next: u64,
    block: bytes::Bytes,
    stopping: bool,
    stubborn: bool,
}

impl Toy {
    fn new(core: CoreId) -> Self {
        Toy {
            core,
            partial: HashMap::new(),
            output: BTreeMap::new(),
            waiting: HashMap::new(),
            timers: BTreeMap::new(),
            next: 0,
            block: vec![7; BLOCK].into(),
            stopping: false,
            stubborn: false,
        }
    }

    fn request(&mut self, now: Now, conn: ConnId, frame: Frame, out: &mut Effects) {
        self.next += 1;
        let ticket = self.next;
        self.waiting.insert(ticket, (conn, frame));
        let ask = MeshMessage::StatsRequest { ticket: Ticket(ticket), topic: None, channel: None, clients: false };
        match frame[0] {
            ECHO => self.answer(ticket),
            DISK => {
                let file = FileId::Journal(self.core.0);
                let at = ticket % JOURNAL_BLOCKS * BLOCK as u64;
                let request = DiskOp::Write { file, at, parts: vec![self.block.clone()], durability: Durability::Durable };
                out.push(Effect::Disk { op: OpId(ticket), request });
            }
            MESH => out.push(Effect::Pass { to: CoreId((self.core.0 + 1) % CORES), message: ask }),
            TIME => {
                self.timers.insert((now.ticks + TIMER, ticket), ());
            }
            HALT => out.push(Effect::Halt { reason: "an invariant broke".into() }),
            STUBBORN => {
                self.stubborn = true;
                self.answer(ticket);
            }
            FOREIGN => out.push(Effect::Pass { to: CoreId::HTTP, message: ask }),
            other => panic!("no such kind {other}"),
        }
    }

    fn answer(&mut self, ticket: u64) {
        let (conn, mut frame) = self.waiting.remove(&ticket).expect("answered once");
        frame[1] = self.core.0 as u8;
        self.output.entry(conn).or_default().extend_from_slice(&frame);
    }
}

impl Machine for Toy {
    fn step(&mut self, now: Now, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::Bytes { conn, bytes } => {
                let mut partial = self.partial.remove(&conn).unwrap_or_default();
                partial.extend_from_slice(bytes);
                let (frames, rest) = partial.as_chunks::<FRAME>();
                frames.iter().for_each(|frame| self.request(now, conn, *frame, out));
                self.partial.insert(conn, rest.to_vec());
            }
            Event::Disk { op, outcome } => {
                outcome.expect("the disk works");
                self.answer(op.0);
            }
            Event::Mesh { from, message: MeshMessage::StatsRequest { ticket, .. } } => {
                out.push(Effect::Pass { to: from, message: MeshMessage::Stats { ticket, stats: Box::default() } });
            }
            Event::Mesh { message: MeshMessage::Stats { ticket, .. }, .. } => self.answer(ticket.0),
            Event::Tick => {
                while let Some((&(at, ticket), ())) = self.timers.first_key_value()
                    && at <= now.ticks
                {
                    self.timers.pop_first();
                    self.answer(ticket);
                }
            }
            Event::Closed { conn } => {
                self.partial.remove(&conn);
            }
            Event::Stop => self.stopping = true,
            Event::TurnEnd => {
                let output = std::mem::take(&mut self.output);
                out.extend(output.into_iter().map(|(conn, bytes)| Effect::Send { conn, bytes }));
                if self.stopping && !self.stubborn {
                    out.push(Effect::Stopped);
                }
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Ticks> {
        self.timers.first_key_value().map(|((at, _), ())| *at)
    }
}

#[derive(Default)]
struct WakeThread(OnceLock<Thread>);

impl Wake for WakeThread {
    fn wake(&self) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

fn serve(data: String) {
    let stop = StopHandle::new();
    stop.on_signals().unwrap();
    let [tcp_address, http_address] = [const { "127.0.0.1:0" }; 2].map(String::from);
    let settings =
        Settings { data_path: data, tcp_address, http_address, native_address: "".into(), shards: CORES, ..Settings::default() };
    let wake = Arc::new(WakeThread::default());
    let front = Front {
        wake: wake.clone(),
        start: Box::new(move |FrontStart { mut port, tcp_address, .. }| {
            println!("{tcp_address}");
            let ending = Arc::new(AtomicBool::new(false));
            let foreign = std::thread::spawn({
                let (ending, wake) = (ending.clone(), wake.clone());
                move || {
                    wake.0.set(std::thread::current()).unwrap();
                    let mut asked = vec![];
                    while !ending.load(Ordering::Acquire) {
                        port.drain(&mut |from, message| asked.push((from, message)));
                        for (from, message) in asked.drain(..) {
                            let MeshMessage::StatsRequest { ticket, .. } = message else { panic!("not asked for") };
                            port.send(from, MeshMessage::Stats { ticket, stats: Box::default() });
                        }
                        port.flush();
                        std::thread::park();
                    }
                }
            });
            Ok(Box::new(move || {
                ending.store(true, Ordering::Release);
                wake.wake();
                foreign.join().unwrap();
            }))
        }),
    };
    let recover = |recovering: Recovering<'_>| {
        for core in 0..recovering.cores {
            recovering.storage.fill(&FileId::Journal(core), JOURNAL_BLOCKS * BLOCK as u64).map_err(|e| e.to_string())?;
        }
        let builds = (0..recovering.cores).map(|_| Box::new(Toy::new) as Build<Toy>).collect();
        Ok(Recovered { builds, generation: 1, me: NodeId([1; 16]) })
    };
    run_node(Arc::new(settings), stop, front, |_| 0, recover, || {}).unwrap();
    println!("stopped");
}

// ---- the test

struct Client {
    stream: TcpStream,
    next: u64,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        Client { stream, next: 0 }
    }

    fn frame(kind: u8, number: u64) -> Frame {
        let mut frame = [0; FRAME];
        frame[0] = kind;
        frame[2..10].copy_from_slice(&number.to_le_bytes());
        frame
    }

    /// Sends all at once, waits for all; returns the core that answered.
    fn ask(&mut self, kinds: &[u8]) -> u8 {
        let first = self.next;
        let mut request = vec![];
        for kind in kinds {
            request.extend_from_slice(&Self::frame(*kind, self.next));
            self.next += 1;
        }
        self.stream.write_all(&request).unwrap();
        let mut answers = vec![0; request.len()];
        if let Err(e) = self.stream.read_exact(&mut answers) {
            let named: String = kinds.iter().map(|k| *k as char).collect();
            panic!("HANG: no answer to {named} within {HANG:?}: {e}");
        }
        let (frames, _) = answers.as_chunks::<FRAME>();
        let mut numbers: Vec<u64> = frames.iter().map(|f| u64::from_le_bytes(f[2..10].try_into().unwrap())).collect();
        numbers.sort();
        assert_eq!(numbers, (first..self.next).collect::<Vec<_>>());
        frames[0][1]
    }

    fn on_core(address: SocketAddr, core: u8) -> Self {
        loop {
            let mut client = Client::connect(address);
            if client.ask(&[ECHO]) == core {
                return client;
            }
        }
    }
}

struct Process {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn signal(&self, signal: i32) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// CPU time used, of all its threads.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // SAFETY: asks for a number.
        Duration::from_secs_f64(ticks as f64 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(data: &Path) -> (Process, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap()).env(CHILD, data).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut process = Process { child, output };
    let mut line = String::new();
    process.output.read_line(&mut line).unwrap();
    let address = line.trim().parse().expect("the process says where it listens");
    (process, address)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn stop_and_continue() {
    let data = folder();
    let (mut process, address) = start(data.path());

    // with nothing to do everything sleeps
    Client::on_core(address, 0).ask(&KINDS);
    let before = process.cpu();
    std::thread::sleep(Duration::from_millis(500));
    let idle = process.cpu() - before;
    assert!(idle < Duration::from_millis(50), "idle cores burnt {idle:?} in half a second");

    for (name, busy_on) in [("idle", &[][..]), ("busy", &[0, 1]), ("mixed", &[0])] {
        phase(&process, address, name, busy_on);
    }

    let begun = Instant::now();
    process.signal(libc::SIGTERM);
    let mut rest = String::new();
    process.output.read_to_string(&mut rest).unwrap();
    assert!(process.child.wait().unwrap().success() && rest.ends_with("stopped\n"), "{rest}");
    assert!(begun.elapsed() < Duration::from_secs(5), "a graceful stop took {:?}", begun.elapsed());
}

/// A process that is killed with writes in flight leaves its locks to the next one within moments.
fn kill_and_start_again() {
    let data = folder();
    for round in 0..5 {
        let (mut process, address) = start(data.path());
        for core in 0..CORES as u8 {
            Client::on_core(address, core).ask(&KINDS);
        }
        let mut writer = Client::on_core(address, 0);
        let frames: Vec<u8> = (0..200u64).flat_map(|n| Client::frame(DISK, n)).collect();
        writer.stream.write_all(&frames).unwrap();
        std::thread::sleep(Duration::from_millis(round));
        process.child.kill().unwrap();
        // not waited for: it may still be dying when the next one comes
    }
    println!("stall: killed and started again five times");
}

/// A halt, and a third signal to a node that does not stop, end the process at once, with their exit codes.
fn end_at_once() {
    let data = folder();
    let (mut process, address) = start(data.path());
    Client::on_core(address, 1).stream.write_all(&Client::frame(HALT, 0)).unwrap();
    assert_eq!(process.child.wait().unwrap().code(), Some(1));

    let (mut process, address) = start(data.path());
    Client::on_core(address, 1).ask(&[STUBBORN]);
    process.signal(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(TcpStream::connect(address).is_err(), "a stopping node takes no new client");
    assert!(process.child.try_wait().unwrap().is_none(), "it waits for its cores");
    process.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(process.child.try_wait().unwrap().is_none(), "a second signal says that it is still stopping");
    process.signal(libc::SIGTERM);
    assert_eq!(process.child.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    println!("stall: ended at once");
}

/// Stops and continues the process while probers on both cores ask one thing at a time, and others keep some cores busy.
fn phase(process: &Process, address: SocketAddr, name: &str, busy_on: &[u8]) {
    let ending = AtomicBool::new(false);
    let answered: [AtomicU64; 2] = Default::default();
    let slowest = Mutex::new(Duration::ZERO);
    std::thread::scope(|scope| {
        for &core in busy_on {
            for n in 0..4usize {
                let ending = &ending;
                scope.spawn(move || {
                    let mut client = Client::on_core(address, core);
                    let kinds = [[ECHO; 6], [ECHO, DISK, ECHO, ECHO, MESH, ECHO]][n % 2];
                    while !ending.load(Ordering::Relaxed) {
                        client.ask(&kinds);
                    }
                });
            }
        }
        for core in 0..CORES as u8 {
            let (ending, answered, slowest) = (&ending, &answered[core as usize], &slowest);
            scope.spawn(move || {
                let mut client = Client::on_core(address, core);
                let mut rng = Rng::new(core as u64 + 1);
                while !ending.load(Ordering::Relaxed) {
                    // long enough to fall asleep, or not
                    std::thread::sleep(Duration::from_micros(rng.next_u64() % 1500));
                    let asked = Instant::now();
                    client.ask(&[KINDS[rng.next_u64() as usize % KINDS.len()]]);
                    answered.fetch_add(1, Ordering::Relaxed);
                    let mut slowest = slowest.lock().unwrap();
                    *slowest = asked.elapsed().max(*slowest);
                }
            });
        }
        let mut rng = Rng::new(42);
        for _ in 0..ROUNDS_PER_PHASE {
            std::thread::sleep(Duration::from_micros(rng.next_u64() % 20_000));
            process.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_micros(rng.next_u64() % 8_000));
            process.signal(libc::SIGCONT);
        }
        // what hangs now stays so: give every prober the time to notice
        let before = [0, 1].map(|core: usize| answered[core].load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(300));
        for core in 0..CORES as usize {
            assert!(answered[core].load(Ordering::Relaxed) > before[core], "core {core} answers nothing after the last round");
        }
        ending.store(true, Ordering::Relaxed);
    });
    let answers = answered.map(|a| a.into_inner());
    println!(
        "stall: {name}: {ROUNDS_PER_PHASE} rounds, answers per core {answers:?}, slowest {:?}",
        slowest.into_inner().unwrap()
    );
}
