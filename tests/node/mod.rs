//! A node as a process of its own, and a small blocking NSQ client: for the tests that need real processes.
//!
//! The node is `RINGMQ_BINARY`, or the one cargo built for the tests. Each has ports and a folder of its own, below
//! cargo's folder for tests (not /tmp: a tmpfs knows no O_DIRECT), and leaves nothing behind.

#![allow(dead_code)] // each test binary uses a part of it

pub mod cluster;
pub mod etcd;
pub mod pki;
pub mod small_disk;
pub mod stock;
pub mod wires;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixDatagram};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(30);

pub struct Node {
    child: Option<Child>,
    folder: tempfile::TempDir,
    data: PathBuf,
    ports: Ports,
    membership: Membership,
    flags: Vec<String>,
}

/// Source of the node's cluster membership.
enum Membership {
    Alone,
    /// A cluster file, which the test writes.
    File,
    /// URLs of its etcd, and its name.
    Etcd(Vec<String>, String),
}

/// A fast source of random numbers, which are the same for a seed.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Four ports in a row: NSQ, HTTP, native, peers. The ports are free now, outside the range from which the kernel takes them for outgoing
/// connections, and no other test's, in this process or another, while this lives: also while the node is down.
pub struct Ports {
    first: u16,
    /// A name that only one process can have, and that goes with it; tests/clients/server.py claims by it, too.
    _claim: UnixDatagram,
}

impl Ports {
    pub fn free() -> Ports {
        static SALT: AtomicU64 = AtomicU64::new(0);
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let mut chance = Chance::new(since ^ (std::process::id() as u64) << 32 ^ SALT.fetch_add(1, Ordering::Relaxed) << 48);
        loop {
            let first = 10_000 + chance.below(5_250) as u16 * 4;
            let claim = unix::SocketAddr::from_abstract_name(format!("ringmq-test-ports-{first}"))
                .and_then(|name| UnixDatagram::bind_addr(&name));
            match claim {
                Ok(_claim) if (first..first + 4).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) => {
                    return Ports { first, _claim };
                }
                Err(e) if e.kind() != io::ErrorKind::AddrInUse => panic!("ports cannot be claimed: {e}"),
                _ => {}
            }
        }
    }

    pub fn at(&self, n: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.first + n))
    }
}

/// nsqd itself, to try the tests on: it has no subcommands.
pub fn is_nsqd() -> bool {
    binary().file_name().is_some_and(|name| name == "nsqd")
}

pub fn binary() -> PathBuf {
    std::env::var_os("RINGMQ_BINARY").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_ringmq")), PathBuf::from)
}

impl Node {
    /// A node on an empty folder, ready to serve.
    pub fn start(flags: &[&str]) -> Node {
        Self::start_at(None, flags)
    }

    /// The data may be elsewhere: then it stays there.
    pub fn start_at(data: Option<PathBuf>, flags: &[&str]) -> Node {
        let mut node = Self::new(data, flags);
        // A process that claims no ports may have taken one since it was looked at.
        for _ in 0..5 {
            node.spawn();
            match node.wait_ready() {
                Ok(()) => return node,
                Err(error) => eprintln!("{error}; once more on other ports"),
            }
            node.kill();
            node.ports = Ports::free();
        }
        panic!("the node does not start:\n{}", node.log());
    }

    fn new(data: Option<PathBuf>, flags: &[&str]) -> Node {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
        let data = data.unwrap_or_else(|| folder.path().join("data"));
        let flags = flags.iter().map(|flag| flag.to_string()).collect();
        Node { child: None, folder, data, ports: Ports::free(), flags, membership: Membership::Alone }
    }

    /// Node of a cluster, with folder and ports, not started: its cluster file is not written yet.
    pub fn prepare(flags: &[&str]) -> Node {
        let mut node = Self::new(None, flags);
        node.membership = Membership::File;
        node
    }

    /// Node of a cluster with an etcd, not started.
    pub fn prepare_with_etcd(urls: &[String], name: &str, flags: &[&str]) -> Node {
        let mut node = Self::new(None, flags);
        node.membership = Membership::Etcd(urls.to_vec(), name.into());
        node
    }

    /// Adds a flag, from the next startup on.
    pub fn with_flag(&mut self, flag: String) {
        self.flags.push(flag);
    }

    /// Keeps its data on another file system.
    pub fn with_data(&mut self, data: PathBuf) {
        self.data = data;
    }

    /// Path of the node's cluster file.
    pub fn cluster_file(&self) -> PathBuf {
        self.folder.path().join("cluster.toml")
    }

    /// Runs the binary to its end, which must be a good one; its output.
    pub fn run(&self, args: &[&str]) -> String {
        let output = Command::new(binary()).args(args).stdin(Stdio::null()).output().expect("the binary runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    }

    /// Starts the process on the same folder and ports, and does not wait for it.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let path = binary();
        let mut command = Command::new(&path);
        if !is_nsqd() {
            command.arg("serve");
        }
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the folder is writable");
        std::fs::create_dir_all(&self.data).expect("the folder is writable");
        command.arg(format!("--data-path={}", self.data.display()));
        command.arg(format!("--tcp-address={}", self.ports.at(0)));
        command.arg(format!("--http-address={}", self.ports.at(1)));
        if !is_nsqd() {
            command.arg(format!("--native-address={}", self.ports.at(2)));
        }
        match &self.membership {
            Membership::Alone => {}
            Membership::File => {
                command.arg(format!("--cluster-file={}", self.cluster_file().display()));
            }
            Membership::Etcd(urls, name) => {
                command.args(urls.iter().map(|url| format!("--etcd-endpoints={url}")));
                command.args([&format!("--node-name={name}"), "--broadcast-address=127.0.0.1"]);
            }
        }
        if !matches!(self.membership, Membership::Alone) {
            command.arg(format!("--peer-address={}", self.ports.at(3)));
        }
        command.args(&self.flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }

    /// Waits until the node serves. On a full disk the node says so, and serves consumers.
    pub fn wait_ready(&mut self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            if let Ok(answer) = self.get("/ping")
                && (answer.starts_with("HTTP/1.1 200") || answer.contains("disk is full"))
            {
                return Ok(());
            }
            let child = self.child.as_mut().expect("it was started");
            if let Some(status) = child.try_wait().expect("our own child") {
                return Err(format!("the node ended with {status}:\n{}", self.log()));
            }
            if began.elapsed() > START_LIMIT {
                return Err(format!("the node was not ready after {START_LIMIT:?}:\n{}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// A signal to the process.
    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, which was not waited for yet, so that the id is still its own.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// True if the node was started, and neither killed nor stopped.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// SIGTERM; answers how long it took to end with 0.
    pub fn stop(&mut self) -> Duration {
        let mut child = self.child.take().expect("it runs");
        let began = Instant::now();
        // SAFETY: a signal to our own child, which was not waited for yet, so that the id is still its own.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let status = child.wait().expect("our own child");
        assert!(status.success(), "after SIGTERM it ended with {status}:\n{}", self.log());
        began.elapsed()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn tcp(&self) -> SocketAddr {
        self.ports.at(0)
    }

    pub fn http(&self) -> SocketAddr {
        self.ports.at(1)
    }

    /// Address of the native protocol.
    pub fn native(&self) -> SocketAddr {
        self.ports.at(2)
    }

    /// Address for the other nodes of the cluster.
    pub fn peer(&self) -> SocketAddr {
        self.ports.at(3)
    }

    pub fn data_path(&self) -> PathBuf {
        self.data.clone()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The end of what it has logged over all its starts.
    pub fn log(&self) -> String {
        let text = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(8_000)..]).into_owned()
    }

    /// The whole log of the process.
    pub fn whole_log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// Keeps the data and the log for whoever looks into a failure.
    pub fn keep(&mut self) -> PathBuf {
        self.kill();
        self.folder.disable_cleanup(true);
        self.folder.path().to_path_buf()
    }

    pub fn get(&self, path: &str) -> io::Result<String> {
        self.ask("GET", path, b"", Duration::from_secs(10))
    }

    pub fn post(&self, path: &str, body: &[u8]) -> io::Result<String> {
        self.ask("POST", path, body, Duration::from_secs(60))
    }

    fn ask(&self, method: &str, path: &str, body: &[u8], limit: Duration) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.http())?;
        stream.set_read_timeout(Some(limit))?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body].concat())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub fn resident_bytes(&self) -> u64 {
        let pid = self.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("the kernel says how much it is") * 1024
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("---- the node's log\n{}", self.log());
        }
    }
}

/// Frame of a server.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Frame {
    Response(Vec<u8>),
    Error(String),
    Message(Message),
}

#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Message {
    pub unix_ns: i64,
    pub id: [u8; 16],
    pub attempts: u16,
    pub body: Vec<u8>,
}

/// One connection. Every call blocks, at most for the read timeout.
pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
    /// Messages that came while a response was waited for.
    waiting: std::collections::VecDeque<Message>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        let mut client = Client { stream, unread: Vec::new(), waiting: Default::default() };
        client.write(b"  V2")?;
        Ok(client)
    }

    pub fn set_read_timeout(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(limit))
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next frame that is no heartbeat; heartbeats are answered.
    pub fn read(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.parse()? {
                if frame == Frame::Response(b"_heartbeat_".to_vec()) {
                    self.write(b"NOP\n")?;
                    continue;
                }
                return Ok(frame);
            }
            let mut buffer = [0; 64 * 1024];
            let len = self.stream.read(&mut buffer)?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.extend_from_slice(&buffer[..len]);
        }
    }

    fn parse(&mut self) -> io::Result<Option<Frame>> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
        let Some((head, rest)) = self.unread.split_first_chunk::<8>() else { return Ok(None) };
        let number = |bytes: &[u8]| bytes.iter().fold(0usize, |n, b| n << 8 | *b as usize);
        let (size, kind) = (number(&head[..4]), number(&head[4..]));
        if !(4..=64 << 20).contains(&size) {
            return Err(bad("a frame of a size that cannot be"));
        }
        let Some(body) = rest.get(..size - 4) else { return Ok(None) };
        let frame = match kind {
            0 => Frame::Response(body.to_vec()),
            1 => Frame::Error(String::from_utf8_lossy(body).into_owned()),
            2 if body.len() >= 26 => Frame::Message(Message {
                unix_ns: number(&body[..8]) as i64,
                attempts: number(&body[8..10]) as u16,
                id: body[10..26].try_into().expect("16 bytes were cut out"),
                body: body[26..].to_vec(),
            }),
            _ => return Err(bad("a frame of a kind that cannot be")),
        };
        self.unread.drain(..size + 4);
        Ok(Some(frame))
    }

    /// The next message, also one that came while a response was waited for.
    pub fn message(&mut self) -> io::Result<Message> {
        if let Some(message) = self.waiting.pop_front() {
            return Ok(message);
        }
        match self.read()? {
            Frame::Message(message) => Ok(message),
            other => Err(io::Error::other(format!("a message was expected: {other:?}"))),
        }
    }

    /// Reads until the answer OK; messages that come before it are kept.
    pub fn ok(&mut self) -> io::Result<()> {
        loop {
            match self.read()? {
                Frame::Message(message) => self.waiting.push_back(message),
                Frame::Response(text) if text == b"OK" => return Ok(()),
                other => return Err(io::Error::other(format!("OK was expected: {other:?}"))),
            }
        }
    }

    pub fn publish(&mut self, topic: &str, body: &[u8]) -> io::Result<()> {
        self.write(&command_with_body(&format!("PUB {topic}"), body))?;
        self.ok()
    }

    pub fn subscribe(&mut self, topic: &str, channel: &str, ready: u32) -> io::Result<()> {
        self.write(format!("SUB {topic} {channel}\n").as_bytes())?;
        self.ok()?;
        self.write(format!("RDY {ready}\n").as_bytes())
    }

    pub fn finish(&mut self, id: &[u8; 16]) -> io::Result<()> {
        self.write(&[b"FIN ", &id[..], b"\n"].concat())
    }
}

/// `PUB t\n`, the length, the body: in one piece.
pub fn command_with_body(command: &str, body: &[u8]) -> Vec<u8> {
    [command.as_bytes(), b"\n", &(body.len() as u32).to_be_bytes(), body].concat()
}

/// The whole command.
pub fn multi_publish(topic: &str, bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut inner = (bodies.len() as u32).to_be_bytes().to_vec();
    for body in bodies {
        inner.extend_from_slice(&(body.len() as u32).to_be_bytes());
        inner.extend_from_slice(body);
    }
    command_with_body(&format!("MPUB {topic}"), &inner)
}

/// Publishes and consumes once, on a topic of its own.
pub fn assert_serves(node: &Node) {
    static ROUND: AtomicU64 = AtomicU64::new(0);
    let topic = format!("still-serves-{}", ROUND.fetch_add(1, Ordering::Relaxed));
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    client.publish(&topic, b"are you there").expect("it takes a publish");
    client.subscribe(&topic, "c", 1).expect("it takes a SUB");
    let message = client.message().expect("it delivers");
    assert_eq!(message.body, b"are you there");
    client.finish(&message.id).expect("it reads");
    let ping = node.get("/ping").expect("it answers HTTP");
    assert!(ping.starts_with("HTTP/1.1 200") && ping.ends_with("OK"), "{ping}");
}
