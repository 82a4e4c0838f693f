//! docs/nsq-compatibility.md, held true: its rows against the stock nsqd 1.3.0 beside a node, and against the code's own tables.

mod node;

use node::stock::{Process, get_json, request, stock};
use node::{Client, Node, Ports};
use ringmq::config::{IGNORED, find};
use ringmq::http::ROUTES;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../docs/nsq-compatibility.md");

/// The text below a heading of the page.
fn section(heading: &str) -> &'static str {
    let begin = PAGE.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let rest = &PAGE[begin + 4..];
    rest.find("\n## ").map_or(rest, |end| &rest[..end])
}

/// Beginnings of the paragraphs that list names of one state, beside the tables, whose rows are the differences.
const LISTS: [(&str, &str); 4] =
    [("Same", "same"), ("No effect", "no effect"), ("Not here", "not here"), ("Never sent", "never")];

/// The state of each name.
fn rows(heading: &str) -> BTreeMap<&'static str, &'static str> {
    let mut found = BTreeMap::new();
    let mut add = |name, state| assert!(found.insert(name, state).is_none(), "twice: {name}");
    for line in section(heading).lines().filter(|line| line.starts_with("| `")) {
        let (names, note) = line[2..].split_once(" | ").expect("two cells");
        assert!(note.len() > 2, "a note is missing: {line}");
        let state = if note.starts_with("Same default") || note.starts_with("Same status") { "same" } else { "differs" };
        in_marks(names).for_each(|name| add(name, state));
    }
    for paragraph in section(heading).split("\n\n") {
        if let Some((_, state)) = LISTS.iter().find(|(begin, _)| paragraph.starts_with(begin)) {
            in_marks(paragraph).for_each(|name| add(name, *state));
        }
    }
    found
}

/// The words between backticks.
fn in_marks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Names in the paragraph «Only here».
fn only_here(heading: &str) -> BTreeSet<&'static str> {
    let text = section(heading).split("\nOnly here").nth(1).unwrap_or_default();
    in_marks(text).collect()
}

/// The stock nsqd with its default settings, and our node with its own.
struct Both {
    node: Node,
    _nsqd: Process,
    ports: Ports,
}

impl Both {
    fn start() -> Both {
        let node = Node::start(&["--shards=2", "--partitions=2", "--broadcast-address=127.0.0.1"]);
        let ports = Ports::free();
        let flags = [
            format!("--tcp-address={}", ports.at(0)),
            format!("--http-address={}", ports.at(1)),
            "--broadcast-address=127.0.0.1".into(),
        ];
        let mut nsqd = Process::start(&stock("nsqd"), &flags);
        nsqd.wait_listening(ports.at(1));
        Both { node, _nsqd: nsqd, ports }
    }

    fn http(&self) -> [SocketAddr; 2] {
        [self.node.http(), self.ports.at(1)]
    }

    fn tcp(&self) -> [SocketAddr; 2] {
        [self.node.tcp(), self.ports.at(0)]
    }
}

#[test]
fn every_flag_of_nsqd_is_here_as_its_row_says() {
    let help = Command::new(stock("nsqd")).arg("-help").output().expect("it runs");
    let help = String::from_utf8(help.stderr).expect("text");
    let flags = help.lines().filter_map(|line| line.strip_prefix("  -")?.split_whitespace().next());
    let rows = rows("Flags");
    assert_eq!(rows.keys().copied().collect::<BTreeSet<_>>(), flags.collect(), "the page's, then nsqd's");
    let keys = [
        ("lookupd-tcp-address", "nsqlookupd_tcp_addresses"),
        ("auth-http-address", "auth_http_addresses"),
        ("e2e-processing-latency-percentile", "e2e_processing_latency_percentiles"),
    ];
    let both = Both::start();
    for (flag, state) in rows {
        // These names are no settings.
        if ["config", "version"].contains(&flag) {
            continue;
        }
        assert_eq!(state == "no effect", IGNORED.iter().any(|(name, _)| *name == flag), "{flag}: {state}");
        assert_eq!(state != "no effect", find(flag).is_some(), "{flag}: {state}");
        let key = keys.iter().find(|(name, _)| *name == flag).map_or(flag.replace('-', "_"), |(_, key)| key.to_string());
        let shown = both.http().map(|http| request(http, "GET", &format!("/config/{key}")).expect("it answers").2);
        if state == "same" {
            assert_eq!(shown[0], shown[1], "{flag}: ours, then nsqd's");
        }
    }
}

/// Status of an answer, whose body may be no text.
fn status(http: SocketAddr, method: &str, path: &str) -> u16 {
    let mut stream = std::net::TcpStream::connect(http).expect("it listens");
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").expect("it reads");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("it answers");
    String::from_utf8_lossy(&head[9..]).parse().expect("a status")
}

#[test]
fn every_endpoint_is_here_as_its_row_says() {
    let both = Both::start();
    let rows = rows("HTTP endpoints");
    for (endpoint, state) in &rows {
        let (method, path) = endpoint.split_once(' ').expect("a method and a path");
        let path = if path.ends_with("/profile") { format!("{path}?seconds=1") } else { path.to_owned() };
        let [ours, theirs] = both.http().map(|http| status(http, method, &path));
        let is_there = |status: u16| !(status == 404 || status == 405 || status == 501);
        assert!(is_there(theirs), "nsqd has no {endpoint}: {theirs}");
        match *state {
            "same" => assert_eq!(ours, theirs, "{endpoint}: ours, then nsqd's"),
            "not here" => assert_eq!(ours, 501, "{endpoint}"),
            _ => assert!(is_there(ours) && ours != theirs, "{endpoint}: {ours}, nsqd's {theirs}"),
        }
    }
    let here = only_here("HTTP endpoints");
    for endpoint in &here {
        let (method, path) = endpoint.split_once(' ').expect("a method and a path");
        let theirs = status(both.http()[1], method, path);
        assert_eq!(theirs, 404, "nsqd has {endpoint}");
    }
    let of_page: BTreeSet<String> =
        rows.keys().copied().filter(|row| !row.contains("/config/")).chain(here).map(Into::into).collect();
    let of_code = ROUTES.iter().flat_map(|(path, methods)| methods.iter().map(move |method| format!("{method} {path}")));
    assert_eq!(of_page, of_code.collect(), "the page's, then the code's");
}

/// Texts between the marks in the sources below these paths, without their tests.
fn in_sources(paths: &[&str], mark: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left: Vec<_> = paths.iter().map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let all = std::fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path());
            left.extend(all.filter(|path| !path.ends_with("tests") && !path.ends_with("fuzz.rs")));
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let word = |rest: &str| rest.split('"').next().unwrap_or_default().to_owned();
        let is_word = |word: &String| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        found.extend(text.split(mark).skip(1).map(word).filter(is_word));
    }
    found
}

#[test]
fn every_command_and_error_is_here_as_its_row_says() {
    let names = |set: BTreeSet<&str>| set.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let page = |heading| {
        let said = rows(heading).into_iter().filter(|(_, state)| *state != "never").map(|(name, _)| name);
        names(said.chain(only_here(heading)).collect())
    };
    let commands = in_sources(&["crates/ringmq-protocol/src/codec/nsq/command.rs"], "        b\"");
    assert_eq!(page("Commands"), commands, "the page's, then the code's");
    let sources = [
        "crates/ringmq-protocol/src/codec/nsq",
        "crates/ringmq-core/src/session",
        "crates/ringmq-core/src/seam",
        "crates/ringmq-core/src/shard/host.rs",
    ];
    let errors = in_sources(&sources, "\"E_").into_iter().map(|code| format!("E_{code}")).collect();
    assert_eq!(page("Errors of the protocol"), errors, "the page's, then the code's");
}

/// Collects each field with its type, below its objects.
fn fields(value: &serde_json::Value, at: &str, found: &mut BTreeSet<String>) {
    use serde_json::Value;
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(key, value)| fields(value, format!("{at}.{key}").trim_start_matches('.'), found));
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, &format!("{at}[]"), found)),
        Value::Null => drop(found.insert(format!("{at}: null"))),
        Value::Bool(_) => drop(found.insert(format!("{at}: boolean"))),
        Value::Number(_) => drop(found.insert(format!("{at}: number"))),
        Value::String(_) => drop(found.insert(format!("{at}: text"))),
    }
}

#[test]
fn every_json_field_of_nsqd_is_here_with_its_type() {
    let both = Both::start();
    let mut clients = Vec::new();
    for (tcp, http) in both.tcp().into_iter().zip(both.http()) {
        for path in ["/topic/create?topic=t", "/channel/create?topic=t&channel=c", "/topic/create?topic=bare"] {
            assert_eq!(request(http, "POST", path).expect("it answers").0, 200, "{path}");
        }
        let mut client = Client::connect(tcp).expect("it listens");
        client.publish("t", b"x").expect("it takes it");
        let mut consumer = Client::connect(tcp).expect("it listens");
        consumer.subscribe("t", "c", 2).expect("it subscribes");
        consumer.message().expect("the message");
        clients.extend([client, consumer]);
    }
    let ours_alone = ["cores[]", "spare_bytes", "ringmq_version"];
    for path in [
        "/info",
        "/stats?format=json",
        "/stats?format=json&include_clients=false",
        "/stats?format=json&include_mem=false",
        "/stats?format=json&topic=t",
        "/stats?format=json&topic=t&channel=c",
        "/stats?format=json&topic=t&channel=none",
        "/stats?format=json&topic=none",
        "/stats?format=json&topic=none&include_clients=0&include_mem=0",
    ] {
        let [ours, theirs] = both.http().map(|http| {
            let mut found = BTreeSet::new();
            fields(&get_json(http, path), "", &mut found);
            found.retain(|field| !ours_alone.iter().any(|own| field.starts_with(own)));
            found
        });
        assert!(theirs.len() > 3, "{path}: {theirs:?}");
        assert_eq!(ours, theirs, "{path}: ours, then nsqd's");
        let [ours, theirs] = both.http().map(|http| get_json(http, path)["version"].clone());
        assert_eq!(ours, theirs, "{path}: the version");
    }
    let page: BTreeSet<&str> = in_marks(section("JSON fields")).collect();
    assert!(ours_alone.iter().all(|own| page.contains(own)));
}
