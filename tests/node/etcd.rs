//! Members of an etcd as processes of their own (Debian's `etcd-server`), each with ports and a folder of its own, that leave nothing
//! behind.

use super::Ports;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(30);

/// Elections within a tenth of a second.
pub const FAST: [&str; 2] = ["--heartbeat-interval=10", "--election-timeout=100"];

pub struct Member {
    name: String,
    child: Option<Child>,
    folder: tempfile::TempDir,
    ports: Ports,
    flags: Vec<String>,
    /// `https` with certificates.
    scheme: &'static str,
}

pub fn base64(text: &str) -> String {
    BASE64.encode(text)
}

/// Members of one cluster, all started and healthy.
pub fn members(count: usize, flags: &[&str]) -> Vec<Member> {
    let mut all: Vec<Member> = (0..count).map(|n| Member::new(&format!("n{n}"), "http", flags)).collect();
    let initial = all.iter().map(|m| format!("{}=http://{}", m.name, m.peer())).collect::<Vec<_>>().join(",");
    all.iter_mut().for_each(|member| member.flags.push(format!("--initial-cluster={initial}")));
    all.iter_mut().for_each(Member::spawn);
    all.iter().for_each(Member::wait_healthy);
    all
}

impl Member {
    fn new(name: &str, scheme: &'static str, flags: &[&str]) -> Member {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
        let flags = flags.iter().map(|flag| flag.to_string()).collect();
        Member { name: name.into(), child: None, folder, ports: Ports::free(), flags, scheme }
    }

    /// The only member of its cluster.
    pub fn start(flags: &[&str]) -> Member {
        members(1, flags).remove(0)
    }

    /// The same with TLS: `flags` name the files. It is not asked whether it is healthy.
    pub fn start_with_tls(flags: &[&str]) -> Member {
        let mut member = Member::new("n0", "https", flags);
        member.flags.push(format!("--initial-cluster=n0=http://{}", member.peer()));
        member.spawn();
        let began = Instant::now();
        while TcpStream::connect(member.client()).is_err() {
            assert!(began.elapsed() < START_LIMIT, "etcd does not start:\n{}", member.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        member
    }

    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).expect("the folder is writable");
        let mut command = Command::new("etcd");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        let (scheme, client, peer) = (self.scheme, self.client(), self.peer());
        command.arg(format!("--name={}", self.name)).arg(format!("--data-dir={}", self.folder.path().join("data").display()));
        command.arg(format!("--listen-client-urls={scheme}://{client}"));
        command.arg(format!("--advertise-client-urls={scheme}://{client}"));
        command.arg(format!("--listen-peer-urls=http://{peer}")).arg(format!("--initial-advertise-peer-urls=http://{peer}"));
        command.args(["--logger=zap", "--log-level=warn"]).args(&self.flags);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.unwrap_or_else(|e| panic!("etcd cannot be started ({e}): tests/run installs etcd-server")));
    }

    pub fn wait_healthy(&self) {
        let began = Instant::now();
        while !self.get("/health").is_some_and(|answer| answer.contains(r#""health":"true""#)) {
            assert!(began.elapsed() < START_LIMIT, "etcd does not start:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.client()).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok().map(|_| answer)
    }

    /// The answer to a request of the gateway.
    pub fn post(&self, path: &str, body: &str) -> String {
        self.post_as("", path, body)
    }

    /// The answer's body.
    fn ask(&self, path: &str, body: &str) -> Value {
        let answer = self.post(path, body);
        let body = answer.split_once("\r\n\r\n").filter(|_| answer.contains("200 OK")).map(|(_, body)| body);
        serde_json::from_str(body.unwrap_or_else(|| panic!("{path}: {answer}"))).expect("it is JSON")
    }

    /// Keys below a prefix with their values.
    pub fn values(&self, prefix: &str) -> Vec<(String, Value)> {
        self.values_at(prefix, 0)
    }

    /// The same as they were at a revision; 0: now.
    pub fn values_at(&self, prefix: &str, revision: u64) -> Vec<(String, Value)> {
        let end = format!("{prefix}~");
        let asked = json!({ "key": base64(prefix), "range_end": base64(&end), "revision": revision.to_string() });
        let found = self.ask("/v3/kv/range", &asked.to_string());
        let decoded = |value: &Value| {
            let bytes = BASE64.decode(value.as_str().expect("a text")).expect("it is base64");
            String::from_utf8(bytes).expect("it is a text")
        };
        let all = found["kvs"].as_array().cloned().unwrap_or_default();
        all.iter().map(|kv| (decoded(&kv["key"]), serde_json::from_str(&decoded(&kv["value"])).expect("it is JSON"))).collect()
    }

    /// Revision of the store.
    pub fn revision(&self) -> u64 {
        let found = self.ask("/v3/kv/range", &json!({ "key": base64("none") }).to_string());
        found["header"]["revision"].as_str().and_then(|text| text.parse().ok()).expect("a header")
    }

    pub fn put(&self, key: &str, value: &Value) {
        self.ask("/v3/kv/put", &json!({ "key": base64(key), "value": base64(&value.to_string()) }).to_string());
    }

    /// Users are asked for from now on: root with the password `r`, and one who reads and writes below `/ringmq/`.
    pub fn enable_users(&self, name: &str, password: &str) {
        let add = |name: &str, password: &str| json!({ "name": name, "password": password });
        let perm = json!({ "permType": "READWRITE", "key": base64("/ringmq/"), "range_end": base64("/ringmq0") });
        for (path, body) in [
            ("/v3/auth/user/add", add("root", "r")),
            ("/v3/auth/user/add", add(name, password)),
            ("/v3/auth/role/add", json!({ "name": "root" })),
            ("/v3/auth/role/add", json!({ "name": "ringmq" })),
            ("/v3/auth/role/grant", json!({ "name": "ringmq", "perm": perm })),
            ("/v3/auth/user/grant", json!({ "user": "root", "role": "root" })),
            ("/v3/auth/user/grant", json!({ "user": name, "role": "ringmq" })),
            ("/v3/auth/enable", json!({})),
        ] {
            self.ask(path, &body.to_string());
        }
    }

    /// Gives a user another password, where users are asked for.
    pub fn change_password(&self, name: &str, password: &str) {
        let root = self.post("/v3/auth/authenticate", r#"{"name":"root","password":"r"}"#);
        let body = root.split("\r\n\r\n").nth(1).expect("a body");
        let token: Value = serde_json::from_str(body).expect("it is JSON");
        let changed = json!({ "name": name, "password": password }).to_string();
        let answer = self.post_as(token["token"].as_str().expect("a token"), "/v3/auth/user/changepw", &changed);
        assert!(answer.contains("200 OK"), "{answer}");
    }

    /// Whether this member leads the others.
    pub fn is_leader(&self) -> bool {
        let status = self.ask("/v3/maintenance/status", "{}");
        status["leader"] == status["header"]["member_id"]
    }

    /// Sends a request with the token of a user.
    pub fn post_as(&self, token: &str, path: &str, body: &str) -> String {
        // Version 1.0: a long answer does not come in chunks.
        let mut stream = TcpStream::connect(self.client()).expect("etcd listens");
        let user = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        let head =
            format!("POST {path} HTTP/1.0\r\nHost: x\r\n{user}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    pub fn client(&self) -> SocketAddr {
        self.ports.at(0)
    }

    fn peer(&self) -> SocketAddr {
        self.ports.at(1)
    }

    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.client())
    }

    pub fn signal(&self, signal: i32) {
        let pid = self.child.as_ref().expect("it runs").id() as i32;
        // SAFETY: our own child, which was not waited for yet, so that the id is still its own.
        unsafe { libc::kill(pid, signal) };
    }

    /// Stops the process, and returns when each of its threads is stopped: a thread that still runs may acknowledge a write.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.as_ref().expect("it runs").id());
        let is_stopped = |task: &Path| {
            let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
            status.is_empty() || status.contains("State:\tT")
        };
        let limit = Instant::now() + START_LIMIT;
        while !std::fs::read_dir(&tasks).expect("it runs").flatten().all(|task| is_stopped(&task.path())) {
            assert!(Instant::now() < limit, "the threads of {tasks} do not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        self.spawn();
        self.wait_healthy();
    }

    /// Comes back with nothing: as somebody who had its disk replaced.
    pub fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data")).expect("it is ours");
        self.spawn();
        self.wait_healthy();
    }

    /// Keeps the data of now for [`Self::go_back`].
    pub fn back_up(&mut self) {
        self.kill();
        self.copy_data("data", "backup");
        self.spawn();
        self.wait_healthy();
    }

    /// Comes back with the data of the backup, as somebody who restored it.
    pub fn go_back(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data")).expect("it is ours");
        self.copy_data("backup", "data");
        self.spawn();
        self.wait_healthy();
    }

    fn copy_data(&self, from: &str, to: &str) {
        copy_folder(&self.folder.path().join(from), &self.folder.path().join(to));
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder is writable");
    for entry in std::fs::read_dir(from).expect("it is there").map(|entry| entry.expect("it is read")) {
        match entry.file_type().expect("it has one").is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).expect("it is copied")),
        }
    }
}
