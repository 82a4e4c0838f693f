//! `ringmq doctor --measure`: the shape of its table and JSON, what it leaves behind, and what it says when it cannot. No time
//! is asserted. Also: what `doctor` and `serve` say where glommio would end the process, or refuse without a remedy.

mod node;

use node::Node;
use serde_json::Value;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn command(data: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
    command.arg("doctor").arg(format!("--data-path={}", data.display())).args(flags);
    command
}

fn doctor(data: &Path, flags: &[&str]) -> Output {
    command(data, flags).output().expect("the binary can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().expect("it is there");
    let mut names: Vec<String> = entries.map(|e| e.expect("it can be read").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn measured(data: &Path, json: &Path, flags: &[&str]) -> (Value, String) {
    let output = doctor(data, &[flags, &["--measure", "--json", json.to_str().expect("it is UTF-8")]].concat());
    let (table, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{table}\n{errors}");
    let report = std::fs::read_to_string(json).expect("it was written");
    (serde_json::from_str(&report).expect("it is JSON"), table)
}

#[test]
fn every_way_size_and_depth_is_in_the_table_and_in_the_json_and_nothing_is_left() {
    let (data, out) = (folder(), folder());
    let (report, table) = measured(data.path(), &out.path().join("doctor.json"), &["--seconds=2"]);
    assert!(names(data.path()).is_empty(), "{:?}", names(data.path()));
    assert_eq!((&report["kind"], &report["format"]), (&"ringmq doctor --measure".into(), &1.into()));
    assert_eq!(report["node_ran"], false);
    assert!(report["findings"].as_array().is_some_and(|found| found.iter().any(|f| f["name"] == "O_DIRECT")), "{report}");
    let durable = report["durable"].as_array().expect("a list");
    assert_eq!(durable.len(), 3 * 5 * 4);
    for way in ["journal", "segment", "raw"] {
        for bytes in [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            for depth in [1, 4, 16, 64] {
                let is_it = |row: &&Value| row["way"] == way && row["bytes"] == bytes && row["depth"] == depth;
                let row = durable.iter().find(is_it).unwrap_or_else(|| panic!("{way} {bytes} {depth} is missing"));
                let figures = &row["figures"];
                if figures.is_null() {
                    assert!(table.contains("note: the time ended"), "{table}"); // a slow disk
                    continue;
                }
                let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
                assert!(number("writes") >= depth as f64 && number("writes_per_second") > 0.0, "{row}");
                let points = ["p50_us", "p99_us", "max_us"].map(number);
                assert!(points[0] > 0.0 && points.is_sorted(), "{row}");
            }
        }
    }
    assert!(["write_new_synced", "write_synced", "write", "read"].iter().all(|name| !report["sequential"][name].is_boolean()));
    for words in ["O_DIRECT: works", "KiB depth", "journal p50", "fdatasync per MiB", "  1024    64 |", "read, past"] {
        assert!(table.contains(words), "{words} is missing:\n{table}");
    }
}

#[test]
fn beside_a_node_it_says_so_and_a_load_report_shows_both() {
    let node = Node::start(&["--shards=1"]);
    let out = folder();
    let at = |name: &str| out.path().join(name);
    let before = names(&node.data_path());
    let (report, table) = measured(&node.data_path(), &at("doctor.json"), &["--seconds=1"]);
    assert_eq!(report["node_ran"], true);
    assert!(table.contains("note: a node runs on this data path"), "{table}");
    assert_eq!(names(&node.data_path()), before);
    let load = |flags: &[&str]| {
        let address = format!("--address={}", node.tcp());
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
        command.args(["load", &address, "--duration=300ms", "--warm-up=0", "--quiet"]).args(flags);
        command.output().expect("the binary can be started")
    };
    let files = ["doctor.json", "run.json", "run.html"].map(|name| at(name).display().to_string());
    let output = load(&["--raw", &files[0], "--json", &files[1], "--report", &files[2]]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}\n{}", text(&output.stderr));
    assert!(table.contains("raw: publish p50, of a raw 4 KiB write: ") && table.contains("while a node ran there"), "{table}");
    let run: Value = serde_json::from_str(&std::fs::read_to_string(at("run.json")).expect("it was written")).expect("JSON");
    let raw = &run["raw"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number was expected: {raw}"));
    let times = number(&run["publish_latency"]["p50_us"]) / number(&raw["write_4k_p50_us"]);
    assert!((number(&raw["publish_p50_of_raw"]) / times - 1.0).abs() < 1e-9, "{raw}");
    let page = std::fs::read_to_string(at("run.html")).expect("it was written");
    assert!(page.contains("publish p50, of a raw 4 KiB write") && page.contains("raw sequential, fdatasync per MiB"));
    // another file than doctor's is refused before anything is loaded
    let output = load(&["--raw", &files[1]]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("run.json: not a file of ringmq doctor --measure --json"), "{}", text(&output.stderr));
}

#[test]
fn a_signal_ends_it_and_its_files_go() {
    let data = folder();
    let running = command(data.path(), &["--measure", "--seconds=600"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut running = running.expect("it starts");
    let mut errors = BufReader::new(running.stderr.take().expect("it is piped"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("it says that it measures");
    assert!(line.starts_with("measuring"), "{line}");
    while !names(data.path()).iter().any(|name| name.starts_with("ringmq-measure-")) {
        assert!(running.try_wait().expect("it can be waited for").is_none(), "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &running.id().to_string()]).status().expect("kill can be started");
    assert!(killed.success());
    let rest: Vec<String> = errors.lines().map_while(Result::ok).collect();
    assert_eq!(running.wait().expect("it ends").code(), Some(1), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted; the files of the measurement are removed")), "{rest:?}");
    assert!(names(data.path()).is_empty(), "{:?}", names(data.path()));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let data = folder();
    let file = data.path().join("file");
    std::fs::write(&file, "").expect("the folder is writable");
    let output = doctor(&file.join("below"), &["--measure", "--seconds=1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nothing was measured"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("FAIL"), "{}", text(&output.stdout));
    let output = doctor(data.path(), &["--seconds=1"]);
    assert_eq!(output.status.code(), Some(2), "--seconds says how long --measure takes");
}

/// Outputs of both subcommands in a process that `change` has prepared.
fn refused(change: fn() -> io::Result<()>) -> [String; 2] {
    ["doctor", "serve"].map(|subcommand| {
        let data = folder();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
        command.arg(subcommand).arg(format!("--data-path={}", data.path().display())).arg("--shards=1");
        command.args(["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--native-address=127.0.0.1:0"]);
        // SAFETY: `change` makes system calls and nothing else.
        unsafe { command.pre_exec(change) };
        let output = command.output().expect("it starts");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{subcommand}: {said}");
        said
    })
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Answers io_uring_setup with EPERM, as Docker 25 and later do.
fn forbid_io_uring() -> io::Result<()> {
    let step = |code: u32, jump_true, k: u32| libc::sock_filter { code: code as u16, jt: jump_true, jf: 0, k };
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0), // the number of the call
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the filter lives until the call is over; it is only read.
    unsafe {
        done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        done(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
    }
}

fn little_locked_memory() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 256 << 10, rlim_max: 256 << 10 };
    // SAFETY: it is only read.
    done(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) })
}

#[test]
fn a_container_that_forbids_io_uring_is_told_what_to_allow() {
    for said in refused(forbid_io_uring) {
        let complaint = said.lines().find(|line| line.contains(" io_uring: ")).unwrap_or_else(|| panic!("{said}"));
        assert!(complaint.contains("seccomp profile") && complaint.contains("io_uring_setup"), "{complaint}");
    }
}

#[test]
fn too_little_locked_memory_is_said_with_what_is_needed() {
    for said in refused(little_locked_memory) {
        let complaint = said.lines().find(|line| line.contains(" memlock: ")).unwrap_or_else(|| panic!("{said}"));
        assert!(complaint.contains("256 KiB may be locked") && complaint.contains("ulimit -l"), "{complaint}");
    }
}

/// No etcd is asked: the command line is enough.
#[test]
fn a_wrong_call_of_ringmq_cluster_ends_with_2() {
    const ETCD: &str = "--etcd-endpoints=http://127.0.0.1:1";
    let words = ["status", "nodes", "topics", "partitions", "init", "verify", "doctor"];
    let changes = ["expand", "move", "rebalance", "drain", "undrain", "remove"];
    let mut calls: Vec<(Vec<&str>, &str)> = vec![];
    for word in words.into_iter().chain(changes) {
        calls.push((
            vec![word, "--topic=t", "--node=a", "--to=b", "--partition=0", "--partitions=2"],
            "--etcd-endpoints is missing",
        ));
        for nonsense in ["--etcd-endpoints=nonsense", "--etcd-endpoints=ftp://h:1", "--etcd-endpoints=,"] {
            calls.push((vec![word, "--topic=t", "--node=a", "--to=b", "--partition=0", "--partitions=2", nonsense], "ringmq: "));
        }
        calls.push((vec![word, ETCD, "--cluster-name=a/b"], "is no name of a cluster"));
        calls.push((vec![word, ETCD, "--nonsense"], "--nonsense"));
    }
    calls.extend([
        (vec!["nonsense", ETCD], "nonsense"),
        (vec!["expand", ETCD], "expand needs --topic"),
        (vec!["expand", ETCD, "--topic=t"], "expand needs --partitions"),
        (vec!["move", ETCD], "move needs --topic"),
        (vec!["move", ETCD, "--topic=t"], "move needs --partition"),
        (vec!["move", ETCD, "--topic=a b", "--partition=0", "--to=b"], "a b is no name of a topic"),
        (vec!["move", ETCD, "--topic=t", "--partition=-1", "--to=b"], "--partition"),
        (vec!["move", ETCD, "--topic=t", "--partition=0"], "move needs --to"),
        (vec!["drain", ETCD], "drain needs --node"),
        (vec!["undrain", ETCD], "undrain needs --node"),
        (vec!["remove", ETCD], "remove needs --node"),
    ]);
    for (call, said) in calls {
        let output = Command::new(env!("CARGO_BIN_EXE_ringmq")).arg("cluster").args(&call).output().expect("the binary runs");
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(said), "{call:?}: {}: {error}", output.status);
    }
    // A silent etcd is no wrong call.
    for word in ["status", "rebalance", "doctor"] {
        let output = Command::new(env!("CARGO_BIN_EXE_ringmq")).args(["cluster", word, ETCD]).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1), "{word}: {}", text(&output.stderr));
    }
}
