//! The examples, as a user runs them, against a real node: their output is true.

mod node;

use node::Node;
use node::pki::Pki;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No example takes as long, on however slow a machine.
const HANG: Duration = Duration::from_secs(60);

/// A `cargo test` of everything builds the examples beside the folder of the test binaries; one of chosen tests does not.
fn example(name: &str, arguments: &[&str]) -> Child {
    let deps = std::env::current_exe().expect("the test's own path").parent().expect("it lies in deps").to_path_buf();
    let path: PathBuf = deps.parent().expect("beside deps").join("examples").join(name);
    let mut command = Command::new(&path);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|e| panic!("{}: {e} (cargo build --examples makes it)", path.display()))
}

/// Waits until the example ends by itself; returns its output.
fn ended(name: &str, mut child: Child) -> String {
    let until = Instant::now() + HANG;
    let status = loop {
        match child.try_wait().expect("it is our child") {
            Some(status) => break status,
            None if Instant::now() > until => {
                child.kill().expect("it is our child");
                child.wait().expect("it is our child");
                panic!("{name} hangs");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
    assert!(status.success(), "{name}: {status}: {out}{err}");
    out
}

/// An example that runs until it is stopped, also when the test fails.
struct Endless(Child);

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(name: &str, arguments: &[&str]) -> String {
    ended(name, example(name, arguments))
}

#[test]
fn what_is_produced_goes_through_the_pipeline_and_is_consumed() {
    let node = Node::start(&["--shards=2"]);
    let address = node.native().to_string();
    let said = run("native_produce", &[&address, "raw", "5000"]);
    assert!(said.starts_with("5000 messages are durable after "), "{said}");
    let pipeline = Endless(example("native_pipeline", &[&address, "raw", "upper"]));
    let said = run("native_consume", &[&address, "upper", "5000"]);
    drop(pipeline);
    assert!(said.starts_with("5000 messages, 500000 bytes in "), "{said}");
}

#[test]
fn operations_of_a_key_keep_their_order() {
    let node = Node::start(&["--shards=2"]);
    let said = run("native_keyed", &[&node.native().to_string(), "keyed", "200"]);
    assert_eq!(said, "200 operations of 10 accounts, 0 out of order\n");
}

#[test]
fn workers_do_each_job_and_try_again_what_failed() {
    let node = Node::start(&["--shards=1"]);
    let said = run("native_workers", &[&node.native().to_string(), "jobs", "300"]);
    // 0, 7, ... 294
    assert_eq!(said, "300 jobs done, 43 of them at the second try\n");
}

#[test]
fn an_operator_sees_where_topics_are_and_sets_channels_back() {
    let node = Node::start(&["--shards=2"]);
    let address = node.native().to_string();
    run("native_produce", &[&address, "stored", "3000"]);
    let said = run("native_admin", &[&address, "stored", "audit"]);
    assert!(said.contains("stored, partition 0: core ") && said.contains("3000 messages stored, 3000 of them kept"), "{said}");
    assert!(said.contains("stored, partition 0: channel audit goes on behind 0 messages"), "{said}");
    assert!(said.ends_with("all topics: stored\n"), "{said}");
    let said = run("native_admin", &[&address]);
    assert!(
        said.contains("example-admin, partition 1: core ") && said.ends_with("all topics: example-admin, stored\n"),
        "{said}"
    );
}

#[test]
fn one_message_goes_there_and_back_over_tls() {
    let pki = Pki::new();
    let [certificate, key, ca] = pki.peer("node", &["127.0.0.1"]);
    let node = Node::start(&[&format!("--native-tls-cert={certificate}"), &format!("--native-tls-key={key}")]);
    let said = run("native_tls", &[&node.native().to_string(), &ca]);
    assert!(said.contains("durable: partition 0") && said.contains("consumed: b\"hello\""), "{said}");
}
