//! Stock programs of NSQ 1.3.0, and any other process that a test starts beside nodes; each ends with its value.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

/// The path of a stock program, which is built when it is not there.
pub fn stock(program: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's folder for tests is in the target folder");
    let folder = target.join("stock");
    BUILT.call_once(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/build");
        let status = Command::new(script).arg(&folder).stdin(Stdio::null()).status().expect("the script runs");
        assert!(status.success(), "tests/stock/build cannot build NSQ's programs: see above");
    });
    folder.join(program)
}

/// A process with a folder for its log.
pub struct Process {
    child: Option<Child>,
    folder: tempfile::TempDir,
    name: String,
}

impl Process {
    pub fn start(program: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Process {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
        let log = File::create(folder.path().join("log")).expect("the folder is writable");
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor")).stderr(log);
        let child = command.current_dir(folder.path()).spawn().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        Process { child: Some(child), folder, name: program.display().to_string() }
    }

    /// Waits until somebody listens there.
    pub fn wait_listening(&mut self, address: SocketAddr) {
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none(), "{} ended with {ended:?}:\n{}", self.name, self.log());
            assert!(began.elapsed() < Duration::from_secs(30), "{} does not listen on {address}:\n{}", self.name, self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("log")).unwrap_or_default()).into_owned()
    }

    pub fn pid(&self) -> i32 {
        self.child.as_ref().expect("it runs").id() as i32
    }

    /// SIGTERM, and its end.
    pub fn stop(&mut self) -> Option<i32> {
        // SAFETY: our own child, which was not waited for yet, so that the id is still its own.
        unsafe { libc::kill(self.pid(), libc::SIGTERM) };
        self.child.take().expect("it runs").wait().expect("our own child").code()
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("---- the log of {}\n{}", self.name, &log[log.len().saturating_sub(6000)..]);
        }
    }
}

/// nsqlookupd of whoever: its process and where it listens.
pub struct Lookupd {
    pub process: Process,
    pub ports: super::Ports,
    program: PathBuf,
    args: Vec<String>,
}

impl Lookupd {
    /// Ours.
    pub fn ours(flags: &[&str]) -> Lookupd {
        Self::start(&super::binary(), &["lookupd"], flags)
    }

    pub fn stock(flags: &[&str]) -> Lookupd {
        Self::start(&stock("nsqlookupd"), &[], flags)
    }

    fn start(program: &Path, before: &[&str], flags: &[&str]) -> Lookupd {
        let ports = super::Ports::free();
        let (tcp, http) = (format!("--tcp-address={}", ports.at(0)), format!("--http-address={}", ports.at(1)));
        let all = ["--broadcast-address=127.0.0.1", &tcp, &http];
        let args: Vec<String> = before.iter().chain(&all).chain(flags).map(|arg| arg.to_string()).collect();
        let process = Process::start(program, &args);
        let mut lookupd = Lookupd { process, ports, program: program.into(), args };
        lookupd.wait();
        lookupd
    }

    /// SIGKILL, and the same again, which knows nothing, after something was done.
    pub fn restart_after(&mut self, done: impl FnOnce()) {
        self.process.kill();
        done();
        self.process = Process::start(&self.program, &self.args);
        self.wait();
    }

    fn wait(&mut self) {
        let (tcp, http) = (self.tcp(), self.http());
        self.process.wait_listening(tcp);
        self.process.wait_listening(http);
    }

    pub fn tcp(&self) -> SocketAddr {
        self.ports.at(0)
    }

    pub fn http(&self) -> SocketAddr {
        self.ports.at(1)
    }

    /// The JSON of a 200, or null.
    pub fn get(&self, path: &str) -> serde_json::Value {
        get_json(self.http(), path)
    }
}

/// The JSON of a 200, or null.
pub fn get_json(http: SocketAddr, path: &str) -> serde_json::Value {
    let Ok((200, _, body)) = request(http, "GET", path) else { return serde_json::Value::Null };
    serde_json::from_str(&body).unwrap_or_default()
}

/// Status, head and body of an answer.
pub fn request(http: SocketAddr, method: &str, path: &str) -> io::Result<(u16, String, String)> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let is_chunked = head.to_ascii_lowercase().contains("\r\ntransfer-encoding: chunked");
    Ok((status, head.to_owned(), if is_chunked { unchunked(body) } else { body.to_owned() }))
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let (chunk, rest) = rest.split_at(usize::from_str_radix(size, 16).expect("the size of a chunk"));
        whole.push_str(chunk);
        body = rest.strip_prefix("\r\n").expect("a chunk's end");
    }
    whole
}

/// Waits until it holds, for as long as no loaded machine takes.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: it did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}
