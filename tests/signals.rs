//! What signals do to a running node beside stopping it: SIGHUP reads files again, SIGUSR1 and SIGUSR2 change nothing; each is
//! answered in the log. Also: whose a data path or an address is, said to whoever comes second. No time is asserted.

mod node;

use node::{Client, Node, assert_serves};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Waits until the node's log has the text so often.
fn wait_for(node: &Node, text: &str, times: usize) {
    let begun = Instant::now();
    while node.whole_log().matches(text).count() < times {
        assert!(begun.elapsed() < Duration::from_secs(20), "{text:?} is not {times} times in:\n{}", node.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_node_on_its_own_reads_its_config_file_again_on_sighup() {
    let folder = tempfile::tempdir().expect("the folder for temporary files is writable");
    let config = folder.path().join("ringmq.toml");
    let write = |text: &str| std::fs::write(&config, text).expect("it is writable");
    write("log_level = \"warn\"\n");
    let node = Node::start(&["--shards=1", "--journal-bytes=1MiB", &format!("--config={}", config.display())]);
    write("log_level = \"info\"\nmax_rdy_count = 7\n");
    node.signal(libc::SIGHUP);
    wait_for(&node, "the config file was read: log-level is info, and was warn", 1);
    wait_for(&node, "settings that take effect at the next startup: max-rdy-count", 1);
    write("log_level = \"quiet\"\n");
    node.signal(libc::SIGHUP);
    wait_for(&node, "the config file changes nothing: --config=", 1);
    write("log_level = \"error\"\n");
    node.signal(libc::SIGHUP);
    wait_for(&node, "the config file was read: log-level is error, and was info", 1);
    node.signal(libc::SIGUSR1); // a warning, so not written now
    write("log_level = \"info\"\n");
    node.signal(libc::SIGHUP);
    wait_for(&node, "the config file was read: log-level is info, and was error", 1);
    assert!(!node.whole_log().contains("SIGUSR1"), "the level counts for all threads:\n{}", node.log());
    assert_serves(&node);
}

#[test]
fn no_signal_of_the_usual_ones_ends_a_node_without_a_word() {
    let mut node = Node::start(&["--shards=1", "--journal-bytes=1MiB"]);
    let mut client = Client::connect(node.tcp()).expect("it listens");
    for (signal, said) in [
        (libc::SIGHUP, "no --config file was given: the log level stays info"),
        (libc::SIGUSR1, "SIGUSR1 has no effect"),
        (libc::SIGUSR2, "SIGUSR2 has no effect"),
    ] {
        node.signal(signal);
        wait_for(&node, said, 1);
        client.publish("t", b"1").expect("the connection is there still");
    }
    node.stop();
}

fn serve(node: &Node, flags: &[&str]) -> Child {
    let mut command = Command::new(node::binary());
    command.arg("serve").arg(format!("--data-path={}", node.data_path().display()));
    command.args(["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--native-address=127.0.0.1:0"]).args(flags);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Lines until one has the text.
fn read_to(lines: &mut impl Iterator<Item = std::io::Result<String>>, text: &str) -> Vec<String> {
    let mut said = vec![];
    for line in lines.map_while(Result::ok) {
        let is_it = line.contains(text);
        said.push(line);
        if is_it {
            return said;
        }
    }
    panic!("{text:?} was not said: {said:#?}");
}

#[test]
fn a_second_node_on_a_data_path_says_at_once_whose_it_is_and_waits() {
    let mut first = Node::start(&["--shards=1", "--journal-bytes=1MiB"]);
    let mut second = serve(&first, &["--shards=1", "--journal-bytes=1MiB"]);
    let mut lines = BufReader::new(second.stderr.take().expect("it is piped")).lines();
    let whose = format!("is in use by pid {} (ringmq): waiting", first.pid());
    read_to(&mut lines, &whose);
    assert!(second.try_wait().expect("our own child").is_none(), "it waits");
    first.stop();
    read_to(&mut lines, " ready ");
    // SAFETY: a signal to our own child, which was not waited for yet.
    unsafe { libc::kill(second.id() as i32, libc::SIGTERM) };
    assert!(second.wait().expect("our own child").success());
}

fn doctor(flags: &[String]) -> (Output, String) {
    let output = Command::new(node::binary()).arg("doctor").args(flags).stdin(Stdio::null()).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

#[test]
fn doctor_fails_where_a_start_would_and_names_who_is_in_the_way() {
    let node = Node::start(&["--shards=1", "--journal-bytes=1MiB"]);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let flags = |data: String, tcp: String| {
        let rest = ["--http-address=127.0.0.1:0", "--native-address=127.0.0.1:0"].map(String::from);
        [format!("--data-path={data}"), format!("--tcp-address={tcp}")].into_iter().chain(rest).collect::<Vec<_>>()
    };
    let (data, free) = (folder.path().join("data").display().to_string(), "127.0.0.1:0".to_owned());
    let (output, said) = doctor(&flags(data.clone(), free.clone()));
    assert!(output.status.success() && said.contains("ok    tcp-address: "), "{said}");
    let holder = format!("pid {} (ringmq)", node.pid());
    for (name, flags) in
        [("tcp-address", flags(data, node.tcp().to_string())), ("data path", flags(node.data_path().display().to_string(), free))]
    {
        let (output, said) = doctor(&flags);
        let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("FAIL")).collect();
        assert_eq!((output.status.code(), failed.len()), (Some(1), 1), "{said}");
        assert!(failed[0].starts_with(&format!("FAIL  {name}: ")) && failed[0].contains(&holder), "{said}");
    }
    assert_serves(&node);
}

#[test]
fn files_of_nsqd_that_are_not_imported_are_warned_of() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    std::fs::write(folder.path().join("nsqd.dat"), "{}").expect("it is writable");
    std::fs::write(folder.path().join("t.diskqueue.000000.dat"), "").expect("it is writable");
    let node = Node::start_at(Some(folder.path().to_owned()), &["--shards=1", "--journal-bytes=1MiB", "--import-nsqd=false"]);
    let warned = |line: &&str| line.contains("WARN") && line.contains("files of nsqd (nsqd.dat, and 1 files of its queues");
    assert_eq!(node.whole_log().lines().filter(warned).count(), 1, "{}", node.log());
}
