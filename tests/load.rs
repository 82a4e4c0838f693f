//! `ringmq load` against the real node: it measures, it verifies, and it notices when messages are lost or changed.
//!
//! That a consumer loses messages is played by a proxy between the two, which keeps some deliveries to itself.

mod node;

use node::Node;
use node::pki::Pki;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

/// The generator of the binary under test; nsqd has none.
fn load(address: SocketAddr, flags: &[&str]) -> Output {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_ringmq"));
    let asked = std::env::var_os("RINGMQ_BINARY").map(PathBuf::from).filter(|path| !path.ends_with("nsqd"));
    let mut command = Command::new(asked.unwrap_or(own));
    command.arg("load").arg(format!("--address={address}")).args(flags);
    command.output().expect("the binary can be started")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it with `--json`; answers its exit code, result and table.
fn measured(address: SocketAddr, flags: &[&str]) -> (i32, Value, String) {
    let folder = folder();
    let path = folder.path().join("run.json");
    let json = format!("--json={}", path.display());
    let output = load(address, &[flags, &[&json]].concat());
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{e}: {table}\n{}", stderr(&output)));
    (output.status.code().expect("it ended by itself"), serde_json::from_str(&text).expect("it is JSON"), table)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number was expected: {value}"))
}

#[test]
fn produce_then_consume_counts_every_message() {
    let node = Node::start(&["--shards=1"]);
    let pid = format!("--server-pid={}", node.pid());
    let flags = ["--messages=20000", "--batch=100", "--size=50-200", "--connections=2", "--in-flight=4", &pid];
    let (code, run, table) = measured(node.tcp(), &flags);
    assert_eq!((code, &run["errors"]), (0, &serde_json::json!([])), "{table}");
    assert_eq!(run["published"]["messages"], 20_000, "{table}");
    let size = number(&run["published"]["bytes"]) / 20_000.0;
    assert!((120.0..130.0).contains(&size), "uniform between 50 and 200: {size}");
    let latency = &run["publish_latency"];
    assert_eq!(latency["count"], 200, "one per MPUB");
    let points = ["p50_us", "p90_us", "p99_us", "p99_9_us", "p99_99_us", "max_us"].map(|name| number(&latency[name]));
    assert!(points[0] > 0.0 && points.is_sorted(), "{points:?}");
    assert!(run["target"]["version"].is_string() && run["delivered"].is_null() && run["verify"].is_null());
    let kind = run["target"]["kind"].as_str().expect("the name of the process");
    assert!(!kind.is_empty() && table.contains(&format!("(server {kind} ")), "{table}");
    assert!(number(&run["server"]["peak_rss_bytes"]) > 1e6 && number(&run["server"]["cpu_seconds"]) >= 0.0);
    for word in ["msg/s", "MB/s", "p99.99", "max", "errors: none", "CPU s per million", "generator: "] {
        assert!(table.contains(word), "{word} is missing:\n{table}");
    }
    let (code, run, table) = measured(node.tcp(), &["--mode=consume", "--messages=20000", "--connections=3"]);
    assert_eq!((code, &run["delivered"]["messages"]), (0, &20_000.into()), "{table}");
    assert!(number(&run["seconds"]) < 10.0, "it ends with the last message: {table}");
}

#[test]
fn both_verifies_over_topics_and_channels() {
    let node = Node::start(&["--shards=2", "--partitions=2"]);
    let flags = ["--mode=both", "--verify", "--duration=500ms", "--warm-up=200ms", "--topics=3", "--channels=2", "--threads=2"];
    let more = ["--connections=2", "--size=exp:100", "--batch=10", "--in-flight=3", "--rdy=100"];
    let (code, run, table) = measured(node.tcp(), &[&flags[..], &more].concat());
    assert_eq!((code, &run["verify"]["ok"]), (0, &true.into()), "{table}");
    let (acknowledged, consumed) = (number(&run["verify"]["acknowledged"]), number(&run["verify"]["consumed"]));
    assert!(acknowledged > 0.0 && consumed == 2.0 * acknowledged, "{table}");
    assert!(number(&run["end_to_end_latency"]["count"]) > 0.0 && table.contains("verify: ok"), "{table}");
    assert!(!run["series"].as_array().expect("a list").is_empty());
}

#[test]
fn native_produce_then_consume_counts_every_message() {
    let node = Node::start(&["--shards=2"]);
    let pid = format!("--server-pid={}", node.pid());
    let native = ["--protocol=native", "--partitions=3", &pid];
    let flags = ["--messages=20000", "--batch=150", "--size=50-200", "--connections=2", "--in-flight=4"];
    let (code, run, table) = measured(node.native(), &[&native[..], &flags].concat());
    assert_eq!((code, &run["errors"]), (0, &serde_json::json!([])), "{table}");
    assert_eq!((&run["published"]["messages"], &run["target"]["protocol"]), (&20_000.into(), &"native".into()), "{table}");
    assert_eq!(run["publish_latency"]["count"], 134, "one per batch, the last one is smaller: {table}");
    assert!(run["target"]["version"].is_string() && table.contains("native 127.0.0.1"), "{table}");
    assert!(run["target"]["kind"] == "RingMQ" && table.contains("(server RingMQ "), "{table}");
    let flags = ["--mode=consume", "--messages=20000", "--connections=2"];
    let (code, run, table) = measured(node.native(), &[&native[..], &flags].concat());
    assert_eq!((code, &run["delivered"]["messages"], &run["errors"]), (0, &20_000.into(), &serde_json::json!([])), "{table}");
    assert!(number(&run["seconds"]) < 10.0, "it ends with the last message: {table}");
    // Confirmed messages do not come again.
    let (_, run, table) =
        measured(node.native(), &[&native[..], &["--mode=consume", "--duration=300ms", "--warm-up=0"]].concat());
    assert_eq!(run["delivered"]["messages"], 0, "{table}");
    let output = load(node.native(), &["--protocol=native", "--partitions=2"]);
    assert!(stderr(&output).contains("topic load exists with 3 partitions"), "{}", stderr(&output));
    let output = load(node.native(), &["--protocol=native", "--batch=60000", "--size=1KiB"]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("--batch times --size"), "{}", stderr(&output));
    let output = load(node.tcp(), &["--protocol=native", "--duration=300ms"]);
    assert_eq!(output.status.code(), Some(1), "the other port says no: {}", stderr(&output));
}

#[test]
fn native_both_verifies_over_topics_partitions_and_channels() {
    let node = Node::start(&["--shards=2"]);
    let flags =
        ["--protocol=native", "--mode=both", "--verify", "--duration=500ms", "--warm-up=200ms", "--topics=3", "--channels=2"];
    let more = ["--partitions=2", "--threads=2", "--connections=2", "--size=exp:100", "--batch=10", "--in-flight=3", "--rdy=100"];
    let (code, run, table) = measured(node.native(), &[&flags[..], &more].concat());
    assert_eq!((code, &run["verify"]["ok"]), (0, &true.into()), "{table}");
    let (acknowledged, consumed) = (number(&run["verify"]["acknowledged"]), number(&run["verify"]["consumed"]));
    assert!(acknowledged > 0.0 && consumed == 2.0 * acknowledged, "{table}");
    assert!(number(&run["end_to_end_latency"]["count"]) > 0.0 && table.contains("verify: ok"), "{table}");
    let flags = ["--protocol=native", "--topic=paced", "--rate=200", "--in-flight=50", "--duration=1s"];
    let (code, run, table) = measured(node.native(), &[&flags[..], &["--warm-up=0"]].concat());
    // on a slow disk some of it is answered later
    assert!(code == 0 && (1.0..=201.0).contains(&number(&run["published"]["messages"])), "{table}");
    assert_eq!((&run["publish_latency"]["count"], &run["behind"]), (&200.into(), &0.into()), "{table}");
}

#[test]
fn an_open_loop_keeps_its_rate_and_says_when_it_cannot() {
    let node = Node::start(&["--shards=1"]);
    let (code, run, table) = measured(node.tcp(), &["--rate=500", "--duration=1s", "--warm-up=0", "--connections=2"]);
    let rate = number(&run["published"]["messages_per_second"]);
    assert!(code == 0 && (450.0..=501.0).contains(&rate), "{table}");
    // Far more than any machine does with one publish of one connection in flight.
    let (_, run, table) = measured(node.tcp(), &["--rate=5e7", "--duration=500ms", "--warm-up=0"]);
    assert!(number(&run["behind"]) > 1e6 && table.contains("behind: "), "{table}");
    let p50 = number(&run["publish_latency"]["p50_us"]);
    assert!(p50 > 100_000.0, "the latency counts from when they were due: {p50}");
}

#[test]
fn a_ramp_finds_a_rate() {
    let node = Node::start(&["--shards=1"]);
    let flags = ["--ramp", "--p99=2s", "--rate=1e6", "--duration=400ms", "--warm-up=50ms", "--batch=10", "--in-flight=2"];
    let (code, run, table) = measured(node.tcp(), &flags);
    assert_eq!(code, 0, "{table}");
    let steps = run["ramp"]["steps"].as_array().expect("a list");
    // A million a second is more than two publishes of ten in flight give on any disk; and where the halving has come to two
    // thousand, a step is 80 publishes, of which the slowest disk makes nearly all: so both kinds are there.
    let (kept, broken): (Vec<&Value>, Vec<&Value>) = steps.iter().partition(|step| step["kept"] == true);
    let found = kept.iter().map(|step| number(&step["rate"])).fold(0.0, f64::max);
    assert!(!kept.is_empty() && !broken.is_empty(), "{table}");
    assert_eq!(number(&run["ramp"]["found"]), found, "{table}");
    assert_eq!(number(&run["setup"]["rate"]), found, "the table is of the best step: {table}");
    let reached = |step: &&&Value| number(&step["messages_per_second"]) >= number(&step["rate"]) * 0.98;
    assert_eq!(kept.iter().filter(reached).count(), kept.len(), "{table}");
    assert!(kept.iter().all(|step| number(&step["p99_us"]) <= 2e6 && step["broke"] == serde_json::json!([])), "{table}");
    assert!(broken.iter().all(|step| step["broke"].as_array().is_some_and(|why| !why.is_empty())), "{table}");
    assert!(
        table.contains(&format!("ramp: {found:.0} msg/s is the highest")) && table.contains("broken: the rate is below"),
        "{table}"
    );
}

#[test]
fn files_are_written_and_the_page_needs_nothing_else() {
    let node = Node::start(&["--shards=1"]);
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for name in ["a", "b"] {
        let (json, hgrm, page) = (at(name) + ".json", at(name) + ".hgrm", at(name) + ".html");
        let files = [format!("--json={json}"), format!("--hgrm={hgrm}"), format!("--report={page}"), format!("--label=<{name}>")];
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        // So many messages, not so much time: a busy machine delivers none in 300 ms, and the plots would lack their points.
        let output = load(node.tcp(), &[&["--mode=both", "--messages=10000", "--warm-up=0"], &files[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert_self_contained(Path::new(&page));
        for hgrm in [hgrm.clone(), hgrm + ".publish"] {
            let text = std::fs::read_to_string(hgrm).expect("it was written");
            let mut lines = text.lines();
            assert_eq!(
                lines.next().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")),
                Some("Value Percentile TotalCount 1/(1-Percentile)".into())
            );
            assert!(lines.any(|line| line.starts_with("#[Max ")), "{text}");
        }
    }
    let (a, b, page) = (at("a.json"), at("b.json"), at("all.html"));
    let output = load(node.tcp(), &[]);
    assert!(output.status.success(), "the defaults make sense: {}", stderr(&output));
    let output = report(&[&a, &b, "--out", &page]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_self_contained(Path::new(&page));
    let text = std::fs::read_to_string(&page).expect("it was written");
    assert!(text.contains("&lt;a&gt;") && text.contains("&lt;b&gt;") && !text.contains("<a>"), "both, and escaped");
    std::fs::write(&a, "{}").expect("the folder is writable");
    let output = report(&[&a, "--out", &page]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("a.json: not a result of --json"), "{}", stderr(&output));
}

#[test]
fn a_file_that_cannot_be_written_costs_neither_the_run_nor_the_other_files() {
    let node = Node::start(&["--shards=1"]);
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let output = load(nobody, &[&format!("--json={}", at("run.json")), &format!("--report={}", at("no/page.html"))]);
    let text = stderr(&output);
    assert!(
        output.status.code() == Some(1) && text.contains("no/page.html: No such file") && !text.contains("connect"),
        "{text}"
    );
    assert!(!Path::new(&at("run.json")).exists(), "it was not left behind");
    let (page, hgrm) = (at("page.html"), at("run.hgrm"));
    let flags = ["--json=/dev/full", &format!("--hgrm={hgrm}"), &format!("--report={page}"), "--duration=300ms", "--warm-up=0"];
    let output = load(node.tcp(), &flags);
    let (code, text) = (output.status.code(), stderr(&output));
    assert!(code == Some(1) && text.contains("/dev/full: No space left on device"), "{text}");
    assert!(std::fs::read_to_string(hgrm).is_ok_and(|text| text.contains("#[Max ")), "the others are whole");
    assert!(std::fs::read_to_string(page).is_ok_and(|text| text.ends_with("</html>\n")), "the others are whole");
}

fn report(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringmq")).args(["load", "report"]).args(args).output().expect("it can be started")
}

fn assert_self_contained(page: &Path) {
    let text = std::fs::read_to_string(page).expect("it was written");
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    assert!(text.matches("<svg").count() >= 4 && text.contains("polyline") && text.contains("99.9 %"), "the plots");
    for foreign in ["http:", "https:", "src=", "<script", "<link", "@import", "url(", "NaN", "inf"] {
        assert!(!text.contains(foreign), "{foreign} in {}", page.display());
    }
}

#[test]
fn wrong_flags_and_absent_nodes_are_told_clearly() {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    for (flags, code, says) in [
        (&["--verify"][..], 2, "--verify compares acknowledged messages with delivered ones: it needs --mode=both"),
        (&["--protocol=http"], 2, "possible values: nsq, native"),
        (&["--protocol=native", "--output-buffer-timeout=1ms"], 2, "--output-buffer-timeout belongs to the NSQ protocol"),
        (&["--protocol=native"], 1, "connect: Connection refused"),
        (&["--size=100-10"], 2, "--size=100-10: 100 is more than 10"),
        (&["--duration=1"], 2, "--duration=1: the unit is missing"),
        (&["--no-such-flag"], 2, "--no-such-flag"),
        (&["--server-pid=2147483647"], 1, "--server-pid=2147483647: /proc/2147483647"),
        (&[], 1, "connect: Connection refused"),
    ] {
        let output = load(nobody, flags);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{flags:?}: {}", stderr(&output));
    }
    let node = Node::start(&["--shards=1", "--max-msg-size=1KiB"]);
    let output = load(node.tcp(), &["--mode=consume", "--rdy=100000", "--duration=300ms"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("E_INVALID RDY count"), "{}", stderr(&output));
    let (_, run, table) = measured(node.tcp(), &["--size=2KiB", "--duration=300ms", "--warm-up=0"]);
    assert!(run["published"]["messages"] == 0 && table.contains("E_BAD_MESSAGE"), "{table}");
}

#[test]
fn more_connections_than_the_soft_limit_of_open_files() {
    let node = Node::start(&["--shards=1"]);
    let own = env!("CARGO_BIN_EXE_ringmq");
    let line = format!("ulimit -Sn 40; exec {own} load --address={} --connections=100 --messages=1000", node.tcp());
    let output = Command::new("sh").arg("-c").arg(line).output().expect("there is a shell");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_tls_port_is_recognised() {
    let pki = Pki::new();
    let node = pki.node(&["--shards=1"]);
    for protocol in ["--protocol=native", "--protocol=nsq"] {
        let output = load(node.native(), &[protocol, "--duration=300ms"]);
        let text = stderr(&output);
        assert!(
            output.status.code() == Some(1) && text.contains("speaks TLS on this port: --protocol=native with --tls-ca"),
            "{text}"
        );
    }
}

/// Change that the proxy makes to the messages.
#[derive(Clone, Copy)]
enum Harm {
    None,
    Lose,
    Change,
    Repeat,
    /// Every message takes its time.
    Delay,
}

/// Proxy between the generator and the node, which harms every 50th message of a connection.
fn proxy(node: SocketAddr, harm: Harm) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("it listens");
            let server = TcpStream::connect(node).expect("the node runs");
            let (mut up_from, mut up_to) = (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            thread::spawn(move || std::io::copy(&mut up_from, &mut up_to));
            thread::spawn(move || forward(server, client, harm));
        }
    });
    address
}

/// Ends with either side.
fn forward(mut server: TcpStream, mut client: TcpStream, harm: Harm) -> std::io::Result<()> {
    let mut messages = 0;
    loop {
        let mut head = [0; 8];
        server.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let mut frame = head.to_vec();
        frame.resize(4 + word(0) as usize, 0);
        server.read_exact(&mut frame[8..])?;
        messages += (word(4) == 2) as usize;
        if word(4) == 2 && matches!(harm, Harm::Delay) {
            thread::sleep(std::time::Duration::from_millis(20));
        }
        if word(4) == 2 && messages % 50 == 0 {
            match harm {
                Harm::None | Harm::Delay => {}
                Harm::Lose => continue,
                Harm::Change => *frame.last_mut().expect("it has a head") ^= 1,
                Harm::Repeat => client.write_all(&frame)?,
            }
        }
        client.write_all(&frame)?;
    }
}

#[test]
fn verify_notices_what_is_lost_and_what_is_changed() {
    let node = Node::start(&["--shards=1"]);
    for (topic, harm) in [("kept", Harm::None), ("lost", Harm::Lose), ("changed", Harm::Change), ("repeated", Harm::Repeat)] {
        let address = proxy(node.tcp(), harm);
        let topic = format!("--topic={topic}");
        let flags = ["--mode=both", "--verify", "--messages=1000", "--drain=500ms", "--batch=10", &topic];
        let (code, run, table) = measured(address, &flags);
        let verify = &run["verify"];
        let found = (code, verify["lost"].as_u64(), verify["broken"].as_u64(), verify["ok"].as_bool());
        // A changed one is lost too; one that comes twice is allowed.
        let wanted = match harm {
            Harm::None | Harm::Repeat | Harm::Delay => (0, Some(0), Some(0), Some(true)),
            Harm::Lose => (1, Some(20), Some(0), Some(false)),
            Harm::Change => (1, Some(20), Some(20), Some(false)),
        };
        assert_eq!(found, wanted, "{table}");
        assert_eq!(verify["duplicates"] == 20, matches!(harm, Harm::Repeat), "{table}");
        assert_eq!(table.contains("verify: FAILED"), code == 1, "{table}");
    }
}

#[test]
fn what_is_not_delivered_is_counted_and_what_still_comes_is_not_lost() {
    let node = Node::start(&["--shards=1"]);
    let folder = folder();
    let page = folder.path().join("page.html").display().to_string();
    let (lossy, report) = (proxy(node.tcp(), Harm::Lose), format!("--report={page}"));
    let both = ["--mode=both", "--messages=1000", "--batch=10"];
    let (code, run, table) = measured(lossy, &[&both[..], &["--drain=500ms", "--topic=lost", &report]].concat());
    assert_eq!((code, &run["undelivered"], &run["errors"]), (0, &20.into(), &serde_json::json!([])), "{table}");
    assert_eq!(run["end_to_end_latency"]["count"], 1000, "the percentiles are of all: {table}");
    assert!(table.contains("undelivered: 20 deliveries"), "{table}");
    let page = std::fs::read_to_string(page).expect("it was written");
    assert!(page.contains("<th>undelivered</th><td>20</td>") && page.contains("20 deliveries of"), "the page says so too");
    let slow = proxy(node.tcp(), Harm::Delay);
    let (code, run, table) = measured(slow, &[&both[..], &["--verify", "--drain=2s", "--topic=late"]].concat());
    let verify = &run["verify"];
    assert_eq!((code, verify["ok"].as_bool(), verify["lost"].as_u64()), (1, Some(false), Some(0)), "{table}");
    assert!(number(&verify["late"]) > 0.0 && verify["late"] == run["undelivered"], "{table}");
    assert!(table.contains("not delivered within --drain, and deliveries still came: raise --drain"), "{table}");
    assert!(table.contains("not delivered: producer 0 message ") && !table.contains("lost"), "{table}");
}

#[test]
fn a_node_that_is_killed_and_comes_back_has_lost_nothing() {
    let mut node = Node::start(&["--shards=1"]);
    let address = node.tcp();
    let running = thread::spawn(move || {
        let flags = ["--mode=both", "--verify", "--duration=4s", "--warm-up=0", "--connections=4", "--batch=5", "--in-flight=8"];
        measured(address, &flags)
    });
    thread::sleep(std::time::Duration::from_millis(1000));
    node.kill();
    node.spawn();
    node.wait_ready().expect("it starts again");
    let (code, run, table) = running.join().expect("it does not panic");
    assert_eq!((code, run["verify"]["ok"].as_bool()), (0, Some(true)), "{table}");
    assert!(!run["errors"].as_array().expect("a list").is_empty(), "the kill was noticed: {table}");
}
