//! The command line of the stock nsqd 1.3.0: `ringmq serve` refuses no flag of it, and reads its file as it is.

mod node;

use node::binary;
use node::stock::stock;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Flags of nsqd as its `--help` names them, each with its default where that is shown.
fn stock_flags() -> Vec<(String, Option<String>)> {
    let output = Command::new(stock("nsqd")).arg("--help").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut flags: Vec<(String, Option<String>)> = vec![];
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("  -") {
            flags.push((name.split_whitespace().next().expect("a name").to_owned(), None));
        }
        if let (Some((_, rest)), Some(last)) = (line.split_once("(default "), flags.last_mut()) {
            let value = rest.trim_end_matches(')').trim_matches('"');
            // Prose is no value.
            last.1 = (!value.contains(' ') && last.0 != "https-address").then(|| value.to_owned());
        }
    }
    flags
}

/// A value for a flag that shows none; `None`: it is a boolean, which stands alone.
fn sample(name: &str) -> Option<&'static str> {
    Some(match name {
        "verbose" | "worker-id" | "tls-required" | "statsd-exclude-ephemeral" | "snappy" | "deflate" | "statsd-mem-stats" => {
            return None;
        }
        "auth-http-address" | "lookupd-tcp-address" | "statsd-address" => "127.0.0.1:4999",
        "broadcast-address" => "here",
        "broadcast-http-port" | "broadcast-tcp-port" | "max-channel-consumers" => "5",
        "e2e-processing-latency-percentile" => "0.99,0.5",
        "tls-client-auth-policy" => "require",
        "tls-cert" | "tls-key" | "tls-root-ca-file" | "data-path" => "x",
        "tls-min-version" => "tls1.2",
        "log-prefix" => "[x] ",
        "node-id" => "7",
        // A file is tried below; a version ends the program.
        "config" | "version" => "",
        _ => "",
    })
}

fn check(args: &[String]) -> Output {
    Command::new(binary()).arg("check-flags").arg("--").arg("nsqd").args(args).output().expect("it runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn no_flag_of_nsqd_is_refused() {
    let flags = stock_flags();
    assert!(flags.len() > 45, "{flags:?}");
    let mut args = vec![];
    for (name, default) in flags.iter().filter(|(name, _)| name != "config" && name != "version") {
        let value = sample(name);
        match (value, default) {
            (None, _) => args.push(format!("-{name}")),
            (Some(""), Some(default)) => args.push(format!("-{name}={default}")),
            (Some(value), _) => args.push(format!("-{name}={value}")),
        }
    }
    let output = check(&args);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for (name, _) in flags.iter().filter(|(name, _)| name != "config" && name != "version") {
        assert!(text.contains(&format!("--{name} ")), "no verdict on --{name}:\n{text}");
    }
}

/// Every key of the example that comes with nsqd, those that it has in comments too.
#[test]
fn nsqds_file_is_read_as_it_is() {
    let file = r#"
log_level = "info"
id = 515
tcp_address = "0.0.0.0:4150"
http_address = "0.0.0.0:4151"
https_address = ""
broadcast_address = ""
nsqlookupd_tcp_addresses = ["127.0.0.1:4160"]
http_client_connect_timeout = "2s"
http_client_request_timeout = "5s"
data_path = "/var/lib/nsq"
mem_queue_size = 10000
max_bytes_per_file = 104857600
sync_every = 2500
sync_timeout = "2s"
msg_timeout = "60s"
max_msg_timeout = "15m"
max_msg_size = 1024768
max_req_timeout = "1h"
max_body_size = 5123840
max_heartbeat_interval = "60s"
max_rdy_count = 2500
max_output_buffer_size = 65536
max_output_buffer_timeout = "1s"
statsd_address = "127.0.0.1:8125"
statsd_prefix = "nsq.%s"
statsd_interval = "60s"
statsd_mem_stats = true
statsd_udp_packet_size = 508
e2e_processing_latency_percentiles = [1.0, 0.99, 0.95]
e2e_processing_latency_window_time = "10m"
tls_cert = ""
tls_key = ""
tls_root_ca_file = ""
tls_required = false
tls_min_version = ""
deflate = true
max_deflate_level = 6
snappy = true
"#;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let path = folder.path().join("nsqd.cfg");
    std::fs::write(&path, file).expect("writable");
    let output = check(&[format!("-config={}", path.display())]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.lines().any(|line| line.starts_with("sync_every") && line.contains("ignored")), "{said}");
    std::fs::write(&path, "max_mgs_size = 1\n").expect("writable");
    let output = check(&[format!("-config={}", path.display())]);
    assert!(output.status.success() && text(&output).contains("ignored"), "{}", text(&output));
    std::fs::write(&path, "max_msg_size = \"big\"\n").expect("writable");
    let output = check(&[format!("-config={}", path.display()), "-nope".into(), "-nor-this".into()]);
    assert_eq!(output.status.code(), Some(1));
    for name in ["max_msg_size", "--nope", "--nor-this"] {
        let verdict = text(&output).lines().any(|line| line.starts_with(name) && line.contains("refused"));
        assert!(verdict, "{name}: {}", text(&output));
    }
}

#[test]
fn the_version_has_the_form_that_scripts_parse() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let link = folder.path().join("nsqd");
    symlink(binary(), &link).expect("writable");
    let first_words = |output: Output| text(&output).split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
    let theirs = first_words(Command::new(stock("nsqd")).arg("-version").output().expect("it runs"));
    let ours = first_words(Command::new(&link).arg("-version").output().expect("it runs"));
    assert_eq!((theirs, &ours[0]), (ours.clone(), &"nsqd".to_owned()));
    for args in [&["version"][..], &["serve", "--version"], &["--version"]] {
        let output = Command::new(binary()).args(args).output().expect("it runs");
        assert!(output.status.success() && text(&output).starts_with("ringmq "), "{args:?}: {}", text(&output));
    }
}

#[test]
fn the_short_help_fits_a_screen() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let [nsqd, nsqlookupd] = ["nsqd", "nsqlookupd"].map(|name| folder.path().join(name));
    [&nsqd, &nsqlookupd].into_iter().for_each(|link| symlink(binary(), link).expect("writable"));
    let help = |program: &Path, args: &[&str]| {
        let output = Command::new(program).args(args).output().expect("it runs");
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        text(&output)
    };
    let ringmq = binary();
    for (program, args) in [
        (&ringmq, &["-h"][..]),
        (&ringmq, &["serve", "-h"]),
        (&ringmq, &["lookupd", "-h"]),
        (&nsqd, &["-h"]),
        (&nsqlookupd, &["-h"]),
    ] {
        let short = help(program, args);
        // A terminal of 80 x 24, whose last line is the prompt's.
        let (lines, columns) = (short.lines().count(), short.lines().map(|line| line.chars().count()).max());
        assert!(lines <= 23 && columns <= Some(80), "{args:?}: {lines} lines, {columns:?} columns:\n{short}");
    }
    for (program, name) in [(&nsqd, "nsqd"), (&nsqlookupd, "nsqlookupd")] {
        let said = text(&Command::new(program).arg("-nope").output().expect("it runs"));
        assert!(said.contains(&format!("Usage: {name} [FLAGS]")), "{said}");
        let said = text(&Command::new(program).arg("-tcp-address=x").output().expect("it runs"));
        assert!(said.starts_with(&format!("{name}: --tcp-address=x: ")), "{said}");
    }
    let (short, long) = (help(&nsqd, &["-h"]), help(&nsqd, &["-help"]));
    assert!(short.contains("Usage: nsqd ") && short.contains("--data-path"), "{short}");
    assert!(!short.contains("--replica-window-bytes") && short.contains("--help"), "{short}");
    assert!(long.contains("--replica-window-bytes") && long.contains("Cluster:"));
}

/// Starts a node by a name and with flags, and ends it when it is ready. What it has said.
fn started_as(name: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let link = folder.path().join(name);
    symlink(binary(), &link).expect("writable");
    let mut command = Command::new(&link);
    command.args((name != "nsqd").then_some("serve")).args(flags).arg(format!("--data-path={}", folder.path().display()));
    command.args(["--shards=1", "--journal-bytes=1MiB", "--tcp-address=127.0.0.1:0"]);
    command.args((!flags.iter().any(|flag| flag.starts_with("--http-address"))).then_some("--http-address=127.0.0.1:0"));
    let mut node = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut said = String::new();
    for line in BufReader::new(node.stderr.take().expect("it is piped")).lines().map_while(Result::ok) {
        if line.contains(" ready ") {
            // SAFETY: a signal to our own child, which was not waited for yet.
            unsafe { libc::kill(node.id() as i32, libc::SIGTERM) };
        }
        said += &(line + "\n");
    }
    assert!(node.wait().expect("our own child").success(), "{flags:?}:\n{said}");
    said
}

#[test]
fn the_native_port_is_not_open_where_it_would_bypass_auth_or_nsqd_has_none() {
    let auth = "--auth-http-address=127.0.0.1:1";
    let said = started_as("ringmq", &[auth]);
    assert!(said.contains("WARN") && said.contains("is not served, since it would bypass --auth-http-address"), "{said}");
    assert!(said.contains("native=\"\""), "{said}");
    let said = started_as("nsqd", &[]);
    assert!(said.contains("native=\"\""), "{said}");
    let said = started_as("nsqd", &[auth, "--native-address=127.0.0.1:0"]);
    assert!(said.contains("bypasses --auth-http-address") && said.contains("native=\"127.0.0.1:"), "{said}");
}

#[test]
fn values_that_nsqd_takes_end_no_start() {
    let flags = [
        "--max-msg-size=200000000",
        "--msg-timeout=20m",
        "--max-rdy-count=0",
        "--max-channel-consumers=-1",
        "--config=",
        "--http-address=",
    ];
    let said = started_as("nsqd", &flags);
    for wanted in ["--max-msg-size=200000000: 63MiB is in force", "--max-channel-consumers=-1: 0 is in force"] {
        assert!(said.lines().any(|line| line.contains("WARN") && line.contains(wanted)), "{wanted}:\n{said}");
    }
    assert!(said.contains("TCP: listening on 127.0.0.1:") && !said.contains("HTTP: listening on"), "{said}");
    let said = started_as("nsqd", &["-log-prefix=[orders] "]);
    assert!(said.lines().all(|line| line.starts_with("[orders] 20")), "{said}");
    let said = started_as("nsqd", &[]);
    assert!(said.contains("HTTP: listening on 127.0.0.1:") && !said.contains("HTTPS: "), "{said}");
}
