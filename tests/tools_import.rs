//! `ringmq import` of data paths that the stock nsqd 1.3.0 wrote: each channel gets what waited for it and nothing else, also when the
//! import was killed in its middle, or its node was.

mod node;

use node::stock::stock;
use node::{Client, Node, Ports, binary};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Bodies that wait for each channel.
type Backlogs = BTreeMap<&'static str, Vec<String>>;

/// The stock nsqd on a data path, with small files and few messages in memory.
struct Nsqd {
    child: Child,
    ports: Ports,
}

impl Nsqd {
    fn start(data: &Path) -> Nsqd {
        let ports = Ports::free();
        let mut command = Command::new(stock("nsqd"));
        command.arg(format!("--data-path={}", data.display())).arg(format!("--tcp-address={}", ports.at(0)));
        command.arg(format!("--http-address={}", ports.at(1))).args(["--mem-queue-size=10", "--max-bytes-per-file=20000"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nsqd starts");
        while TcpStream::connect(ports.at(1)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let nsqd = Nsqd { child, ports };
        nsqd.post("/topic/create?topic=t", b"");
        nsqd
    }

    fn post(&self, path: &str, body: &[u8]) {
        let mut stream = TcpStream::connect(self.ports.at(1)).expect("it listens");
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body].concat()).expect("it reads");
        let answer = std::io::read_to_string(stream).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }

    /// Waits until the topic has given all to its channels.
    fn wait_passed_on(&self, topic: &str) {
        loop {
            let mut stream = TcpStream::connect(self.ports.at(1)).expect("it listens");
            let path = format!("/stats?format=json&topic={topic}&include_clients=false");
            stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes()).expect("it reads");
            let answer = std::io::read_to_string(stream).expect("it answers");
            let stats: serde_json::Value = serde_json::from_str(&answer[answer.find('{').expect("JSON")..]).expect("JSON");
            if stats["topics"][0]["depth"] == 0 {
                // The last one may be on its way between the queues.
                std::thread::sleep(Duration::from_millis(100));
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn publish(&self, topic: &str, bodies: &[String]) {
        for bodies in bodies.chunks(500) {
            self.post(&format!("/mpub?topic={topic}"), bodies.join("\n").as_bytes());
        }
    }

    fn stop(mut self, signal: i32) {
        // SAFETY: our own child, which was not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, signal) };
        self.child.wait().expect("our own child");
    }
}

impl Drop for Nsqd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

fn bodies(name: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{name}-{i:05}-{}", "x".repeat(i % 90))).collect()
}

/// Three channels with backlogs of their own, a paused one among them, in flight and deferred messages, and a topic without a channel.
fn fill(data: &Path) -> Backlogs {
    let nsqd = Nsqd::start(data);
    let (first, second) = (bodies("first", 3_000), bodies("second", 700));
    ["a", "b"].iter().for_each(|c| nsqd.post(&format!("/channel/create?topic=t&channel={c}"), b""));
    nsqd.post("/channel/pause?topic=t&channel=b", b"");
    nsqd.publish("t", &first);
    nsqd.wait_passed_on("t");
    // `c` comes later, and `a` has had some.
    nsqd.post("/channel/create?topic=t&channel=c", b"");
    let mut client = Client::connect(nsqd.ports.at(0)).expect("it listens");
    client.write(b"SUB t a\nRDY 1\n").expect("it reads");
    client.ok().expect("it subscribes");
    let mut done = vec![];
    for i in 0..40 {
        let message = client.message().expect("it comes");
        let (id, body) = (String::from_utf8_lossy(&message.id).into_owned(), message.body);
        match i {
            // Put off for long, and in flight at the stop.
            10 => client.write(format!("REQ {id} 100000\n").as_bytes()).expect("it reads"),
            39 => {}
            _ => {
                client.write(format!("FIN {id}\n").as_bytes()).expect("it reads");
                done.push(String::from_utf8(body).expect("text"));
            }
        }
    }
    nsqd.publish("t", &second);
    nsqd.wait_passed_on("t");
    // From here on the topic keeps what comes.
    nsqd.post("/topic/pause?topic=t", b"");
    let third = bodies("third", 50);
    nsqd.publish("t", &third);
    let lonely = bodies("lonely", 120);
    nsqd.publish("lonely", &lonely);
    nsqd.stop(libc::SIGTERM);
    let all = |parts: &[&Vec<String>]| parts.iter().flat_map(|part| part.iter().cloned()).collect::<Vec<_>>();
    let of_a = all(&[&first, &second, &third]).into_iter().filter(|body| !done.contains(body)).collect();
    BTreeMap::from([("a", of_a), ("b", all(&[&first, &second, &third])), ("c", all(&[&second, &third])), ("lonely", lonely)])
}

fn import(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("import").args(args).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Takes all that a channel delivers, finished.
fn drain(node: &Node, topic: &str, channel: &str, wanted: usize) -> Vec<String> {
    let mut client = Client::connect(node.tcp()).expect("it listens");
    client.write(format!("SUB {topic} {channel}\nRDY 500\n").as_bytes()).expect("it reads");
    client.ok().expect("it subscribes");
    let mut got = vec![];
    // One more than there is would be a foreign one.
    loop {
        let limit = if got.len() < wanted { Duration::from_secs(20) } else { Duration::from_millis(300) };
        client.set_read_timeout(limit).expect("set");
        let Ok(message) = client.message() else { return got };
        client.write(format!("FIN {}\n", String::from_utf8_lossy(&message.id)).as_bytes()).expect("it reads");
        got.push(String::from_utf8(message.body).expect("text"));
    }
}

fn assert_has(node: &Node, topic: &str, channel: &str, wanted: &[String]) {
    let mut got = drain(node, topic, channel, wanted.len());
    let mut wanted = wanted.to_vec();
    got.sort();
    wanted.sort();
    let missing = wanted.iter().filter(|body| got.binary_search(body).is_err()).count();
    assert!(got == wanted, "{topic}/{channel}: {} came, {} wanted, {missing} missing", got.len(), wanted.len());
}

fn assert_all(node: &Node, backlogs: &Backlogs) {
    let stats = node.get("/stats?format=json&topic=t").expect("it answers");
    let paused = stats
        .split("\"channel_name\":\"")
        .skip(1)
        .map(|c| (c[..1].to_owned(), c.contains("\"paused\":true")))
        .collect::<Vec<_>>();
    assert!(paused.contains(&("b".into(), true)), "{stats}");
    for channel in ["a", "b", "c"] {
        node.post(&format!("/channel/unpause?topic=t&channel={channel}"), b"").expect("it answers");
        let _ = node.post("/topic/unpause?topic=t", b"");
        assert_has(node, "t", channel, &backlogs[channel]);
    }
    assert_has(node, "lonely", "any", &backlogs["lonely"]);
}

#[test]
fn each_channel_gets_what_waited_for_it_also_after_a_kill() {
    // nsqd 1.3.0 now and then puts a file of its own queue aside at a stop; that is left out, and told by the exit code.
    let filled = || {
        let source = folder();
        let backlogs = fill(source.path());
        (source, backlogs)
    };
    let is_whole = |source: &Path| listing(source).iter().all(|(name, _)| !name.ends_with(".bad"));
    let (source, backlogs) =
        std::iter::repeat_with(filled).find(|(source, _)| is_whole(source.path())).expect("nsqd keeps its files");
    let before = listing(source.path());
    let mut node = Node::start(&[]);
    let (native, http) = (node.native().to_string(), node.http().to_string());
    let path = source.path().display().to_string();
    let args = [path.as_str(), "--native-address", &native, "--http-address", &http];
    // Killed again and again, at another place each time.
    for ms in [30, 90, 120, 150, 200] {
        let mut child = import(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(ms));
        let _ = child.kill();
        let _ = child.wait();
    }
    node.kill();
    node.spawn();
    node.wait_ready().expect("it serves");
    let output = import(&args).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("imported") && said(&output).contains("lonely"), "{}", said(&output));
    let again = import(&args).output().expect("it runs");
    assert!(again.status.success(), "a second time it does nothing: {}", said(&again));
    node.kill();
    node.spawn();
    node.wait_ready().expect("it serves");
    assert_all(&node, &backlogs);
    let after: Vec<_> = listing(source.path()).into_iter().filter(|(name, _)| !name.contains("ringmq-import")).collect();
    assert_eq!(before, after, "nsqd's files are as they were");
}

/// The binary by nsqd's name, as whoever puts it in nsqd's place has it.
fn in_nsqds_place(folder: &Path) -> PathBuf {
    let program = folder.join("nsqd");
    // A copy, not a link: the program finds itself by this name.
    std::fs::copy(binary(), &program).expect("writable");
    program
}

/// Serves on an nsqd's data path until the log has `until`, and then stops. What was logged, and whether the exit code is 0.
fn served(program: &Path, data: &Path, flags: &[&str], until: &str, signal: i32) -> (String, bool) {
    let mut command = Command::new(program);
    command.arg(format!("--data-path={}", data.display())).args(["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]);
    command.args(["--journal-bytes=4MiB", "--shards=1"]).args(flags);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok) {
        if line.contains(until) {
            // SAFETY: our own child, which was not waited for yet.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
        said += &(line + "\n");
    }
    (said, child.wait().expect("our own child").success())
}

#[test]
fn a_binary_in_nsqds_place_serves_nsqds_backlog() {
    let filled = || {
        let source = folder();
        let backlogs = fill(source.path());
        (source, backlogs)
    };
    let is_whole = |source: &Path| listing(source).iter().all(|(name, _)| !name.ends_with(".bad"));
    let (data, backlogs) =
        std::iter::repeat_with(filled).find(|(source, _)| is_whole(source.path())).expect("nsqd keeps its files");
    let (place, before) = (folder(), listing(data.path()));
    let nsqd = in_nsqds_place(place.path());
    // Killed in the import's middle, then stopped there; the next startup goes on.
    let (said, _) = served(&nsqd, data.path(), &[], "importing nsqd's backlog", libc::SIGKILL);
    assert!(!said.contains(" ready "), "{said}");
    let (said, is_done) = served(&nsqd, data.path(), &[], "importing nsqd's backlog", libc::SIGTERM);
    assert!(is_done, "{said}");
    let (said, is_done) = served(&nsqd, data.path(), &[], " ready ", libc::SIGTERM);
    assert!(is_done && said.contains("imported nsqd's backlog"), "{said}");
    let (again, is_done) = served(&nsqd, data.path(), &[], " ready ", libc::SIGTERM);
    assert!(is_done && !again.contains("import"), "once: {again}");
    assert!(!again.contains("WARN"), "a startup in nsqd's place has nothing to warn of: {again}");
    let node = Node::start_at(Some(data.path().to_path_buf()), &[]);
    assert_all(&node, &backlogs);
    drop(node);
    for (name, bytes) in before {
        assert!(std::fs::read(&name).is_ok_and(|now| now == bytes), "{name} is as it was, for a way back");
    }
    // An nsqd that has run here since has what nobody knows; and a way out is named.
    Nsqd::start(data.path()).stop(libc::SIGTERM);
    let (said, is_done) = served(&nsqd, data.path(), &[], " ready ", libc::SIGTERM);
    assert!(!is_done && said.contains("ringmq-import.json") && said.contains("--import-nsqd=false"), "{said}");
    let (said, is_done) = served(&nsqd, data.path(), &["--import-nsqd=false"], " ready ", libc::SIGTERM);
    assert!(is_done && said.contains("the node does not read these files"), "{said}");
    let (said, is_done) = served(&nsqd, data.path(), &["--etcd-endpoints=http://127.0.0.1:1"], " ready ", libc::SIGTERM);
    assert!(!is_done, "{said}");
}

fn listing(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .expect("readable")
        .map(|entry| entry.expect("readable").path())
        .map(|path: PathBuf| (path.display().to_string(), std::fs::read(&path).expect("readable")))
        .collect();
    files.sort();
    files
}

#[test]
fn a_data_path_that_no_node_runs_on_is_imported_into_and_a_running_nsqd_refused() {
    let (source, target) = (folder(), folder());
    let data = target.path().join("data");
    let (path, into) = (source.path().display().to_string(), data.display().to_string());
    let nsqd = Nsqd::start(source.path());
    ["a", "b"].iter().for_each(|c| nsqd.post(&format!("/channel/create?topic=t&channel={c}"), b""));
    nsqd.publish("t", &bodies("m", 900));
    let refused = import(&[&path, "--into", &into]).output().expect("it runs");
    let pid = format!("pid {}", nsqd.child.id());
    assert!(refused.status.code() == Some(1) && said(&refused).contains(&pid), "{}", said(&refused));
    // Killed: what was in memory is gone, the metadata is old, and what is in the files comes.
    nsqd.wait_passed_on("t");
    nsqd.stop(libc::SIGKILL);
    damage(source.path());
    let dry = import(&[&path, "--into", &into, "--dry-run", "--json"]).output().expect("it runs");
    assert_eq!(dry.status.code(), Some(3), "something is left out: {}", said(&dry));
    assert!(!data.exists(), "a dry run changes nothing");
    let output = import(&[&path, "--into", &into, "--json", "--", "--shards=1"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(summary["left_out"].to_string().contains("truncated"), "{summary}");
    let of = |channel: &str| {
        let queues = summary["queues"].as_array().expect("a list");
        // Its own, and those of the topic, whose metadata is as old.
        let of_both = queues.iter().filter(|q| q["channel"] == channel || q["channel"].is_null());
        of_both.map(|q| q["messages"].as_u64().expect("a number") as usize).sum::<usize>()
    };
    let node = Node::start_at(Some(data), &[]);
    for channel in ["a", "b"] {
        let got = drain(&node, "t", channel, of(channel));
        assert!(got.len() == of(channel) && got.len() > 500, "{channel}: {} of {}", got.len(), of(channel));
    }
}

/// The last record of channel a's last file loses its end.
fn damage(folder: &Path) {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("t:a.diskqueue.0") && std::fs::metadata(path).is_ok_and(|m| m.len() > 100)
    });
    files.sort();
    let last = files.last().expect("it has files");
    let file = std::fs::File::options().write(true).open(last).expect("writable");
    let len = file.metadata().expect("readable").len();
    file.set_len(len - 5).expect("writable");
}
