//! `ringmq lookupd` beside the stock nsqlookupd 1.3.0: the same requests get the same answers, and hostile ones do no harm.

mod node;

use node::stock::{Lookupd, Process, eventually, get_json, request, stock};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The same in both answers: status, the headers that clients and tools look at, and the body. Values of a single process (ports, host,
/// times) are replaced, and lists that nsqlookupd has in random order are sorted.
#[derive(Debug, PartialEq, Eq)]
struct ShownAnswer {
    status: u16,
    headers: Vec<String>,
    body: Value,
}

const HEADERS: [&str; 5] = ["content-type", "x-nsq-content-type", "allow", "location", "connection"];

fn seen(lookupd: &Lookupd, method: &str, path: &str) -> ShownAnswer {
    let (status, head, body) = request(lookupd.http(), method, path).expect("it answers");
    let mut headers: Vec<String> = head.lines().skip(1).map(|line| line.to_ascii_lowercase()).collect();
    headers.retain(|line| HEADERS.iter().any(|name| line.starts_with(&format!("{name}:"))));
    headers.sort();
    let body = serde_json::from_str(&body).map_or(Value::String(body), |value| in_order(value, ""));
    ShownAnswer { status, headers, body }
}

fn in_order(value: Value, key: &str) -> Value {
    match (value, key) {
        (_, "remote_address" | "id" | "last_update") => Value::Null,
        (Value::Number(number), "tombstoned_at") if number.as_i64() > Some(0) => Value::Null,
        (Value::Object(map), _) => map.into_iter().map(|(key, value)| (key.clone(), in_order(value, &key))).collect(),
        (Value::Array(list), _) => {
            let mut list: Vec<Value> = list.into_iter().map(|value| in_order(value, "")).collect();
            list.sort_by_key(Value::to_string);
            list.into()
        }
        (other, _) => other,
    }
}

/// Connection of a node to an nsqlookupd.
struct Peer(TcpStream);

impl Peer {
    fn connect(tcp: SocketAddr) -> Peer {
        let stream = TcpStream::connect(tcp).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        Peer(stream)
    }

    fn identified(lookupd: &Lookupd, number: u16) -> Peer {
        Self::identified_at(lookupd.tcp(), number)
    }

    fn identified_at(tcp: SocketAddr, number: u16) -> Peer {
        let mut peer = Self::connect(tcp);
        let body = format!(
            r#"{{"broadcast_address":"b{number}","hostname":"h{number}","http_port":{},"tcp_port":4150,"version":"1.3.0"}}"#,
            4151 + number
        );
        peer.say(&[b"  V1IDENTIFY\n", &(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat());
        assert!(peer.hear().is_some_and(|answer| answer.starts_with('{')));
        peer
    }

    fn say(&mut self, bytes: &[u8]) {
        // A refused client may be gone.
        let _ = self.0.write_all(bytes);
    }

    fn hear(&mut self) -> Option<String> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut text = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    fn command(&mut self, line: &str) {
        self.say(format!("{line}\n").as_bytes());
        assert_eq!(self.hear().as_deref(), Some("OK"), "{line}");
    }
}

/// Requests, in order: later ones see the changes of earlier ones.
const REQUESTS: &[&str] = &[
    "GET /ping",
    "GET /ping?x=%zz",
    "GET /ping/",
    "GET /PING",
    "POST /ping",
    "HEAD /ping",
    "HEAD /ping/",
    "OPTIONS /ping",
    "OPTIONS /ping/",
    "OPTIONS /nope",
    "OPTIONS /topic/create",
    "GET /%70ing",
    "GET //ping",
    "GET /ping/../info",
    "GET /info",
    "GET /",
    "GET /nope",
    "POST /nope/",
    "DELETE /topics",
    "PUT /topic/create",
    "GET /topic/create",
    "PUT /PING",
    "POST /topic/create/",
    "POST /Topic/Create?topic=x",
    "GET /lookup/?topic=x&y='",
    "GET /topics",
    "GET /topics?a=;;",
    "GET /nodes",
    "GET /debug",
    "GET /lookup?topic=*",
    "GET /channels?topic=*",
    "GET /channels",
    "GET /channels?topic=nope",
    "GET /channels?topic=a;b",
    "GET /channels?topic=%zz",
    "GET /lookup",
    "GET /lookup?topic",
    "GET /lookup?topic=nope",
    "GET /lookup?topic=a%20b",
    "GET /lookup?topic=%zz",
    "GET /lookup?topic=t",
    "GET /lookup?topic=u",
    "GET /lookup?topic=u&topic=t",
    "GET /lookup?%74opic=t",
    "GET /channels?topic=t",
    "GET /channels?topic=u",
    "POST /topic/create",
    "POST /topic/create?topic=",
    "POST /topic/create?topic=a%20b",
    "POST /topic/create?topic=*",
    "POST /topic/create?topic=new",
    "POST /topic/create?topic=new",
    "GET /lookup?topic=new",
    "GET /channels?topic=new",
    "POST /channel/create",
    "POST /channel/create?topic=new",
    "POST /channel/create?topic=a*&channel=c",
    "POST /channel/create?topic=new&channel=a*",
    "POST /channel/create?topic=new&channel=",
    "POST /channel/create?topic=new&channel=c",
    "POST /channel/create?topic=made&channel=c%23frag",
    "POST /channel/create?topic=made&channel=e%23ephemeral",
    "GET /topics",
    "GET /channels?topic=made",
    "GET /lookup?topic=made",
    "GET /channels?topic=*",
    "GET /lookup?topic=*",
    "POST /channel/delete",
    "POST /channel/delete?topic=new",
    "POST /channel/delete?topic=new&channel=nope",
    "POST /channel/delete?topic=nope&channel=c",
    "POST /channel/delete?topic=new&channel=c",
    "GET /channels?topic=new",
    "POST /channel/delete?topic=t&channel=c",
    "GET /channels?topic=t",
    "GET /lookup?topic=t",
    "GET /debug",
    "POST /topic/tombstone",
    "POST /topic/tombstone?topic=t",
    "POST /topic/tombstone?topic=nope&node=x",
    "POST /topic/tombstone?topic=t&node=b1:4152",
    "GET /lookup?topic=t",
    "GET /lookup?topic=u",
    "GET /nodes",
    "GET /debug",
    "POST /topic/delete",
    "POST /topic/delete?topic=a%20b",
    "POST /topic/delete?topic=u",
    "GET /topics",
    "GET /lookup?topic=u",
    "GET /channels?topic=u",
    "GET /nodes",
    "POST /topic/delete?topic=*",
    "GET /topics",
    "GET /nodes",
    "GET /debug",
];

#[test]
fn requests_are_answered_as_by_nsqlookupd() {
    let (ours, stock) = (Lookupd::ours(&[]), Lookupd::stock(&[]));
    let nodes = [&ours, &stock].map(|lookupd| {
        let (mut one, mut two) = (Peer::identified(lookupd, 1), Peer::identified(lookupd, 2));
        ["REGISTER t c", "REGISTER t c2", "REGISTER u"].iter().for_each(|line| one.command(line));
        ["REGISTER t c", "REGISTER e#ephemeral c#ephemeral", "REGISTER u c#ephemeral", "UNREGISTER u c#ephemeral"]
            .iter()
            .for_each(|line| two.command(line));
        (one, two)
    });
    for line in REQUESTS {
        let (method, path) = line.split_once(' ').expect("a method and a path");
        assert_eq!(seen(&ours, method, path), seen(&stock, method, path), "{line}");
    }
    drop(nodes);
}

/// Messages of nodes and their answers: (bytes that are sent at once, whether the write side closes then).
#[test]
fn nodes_are_answered_as_by_nsqlookupd() {
    let (ours, stock) = (Lookupd::ours(&[]), Lookupd::stock(&[]));
    let identify = |body: &str| [b"  V1IDENTIFY\n", &(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat();
    let identity = r#"{"broadcast_address":"b","hostname":"h","http_port":1,"tcp_port":2,"version":"1.3.0"}"#;
    let after = |lines: &str| [&identify(identity)[..], lines.as_bytes()].concat();
    let sent: Vec<Vec<u8>> = vec![
        b"  V2".to_vec(),
        b"nsq!".to_vec(),
        b"  ".to_vec(),
        b"  V1".to_vec(),
        b"  V1\n".to_vec(),
        b"  V1PING\nPING\r\n PING \nping\n".to_vec(),
        b"  V1REGISTER t\n".to_vec(),
        b"  V1UNREGISTER\n".to_vec(),
        b"  V1NOPE x y\n".to_vec(),
        b"  V1IDENTIFY\n".to_vec(),
        b"  V1IDENTIFY\n\0\0".to_vec(),
        b"  V1IDENTIFY extra words\n\0\0\0\x05{}".to_vec(),
        b"  V1PING".to_vec(),
        identify("{}"),
        identify("null"),
        identify("[]"),
        identify("{\"broadcast_address\":\"b\",\"http_port\":1,\"tcp_port\":2,\"version\":\"\"}"),
        identify("{\"broadcast_address\":\"b\",\"http_port\":\"1\",\"tcp_port\":2,\"version\":\"v\"}"),
        identify("{\"broadcast_address\":\"b\",\"http_port\":1.0,\"tcp_port\":2,\"version\":\"v\"}"),
        identify("{\"BROADCAST_address\":\"b\",\"http_port\":1,\"tcp_port\":2,\"Version\":\"v\",\"x\":[{}]}"),
        identify(
            "{\"broadcast_address\":\"b\",\"http_port\":1,\"tcp_port\":0,\"tcp_port\":2,\"version\":\"v\",\"version\":null}",
        ),
        identify("{\"broadcast_address\":\"b\",\"http_port\":-1,\"tcp_port\":2,\"version\":\"v\"} x"),
        after("IDENTIFY\n"),
        after("REGISTER\n"),
        after("REGISTER t\nREGISTER t c extra\nUNREGISTER t c\nUNREGISTER t\nUNREGISTER nope nope\nPING\n"),
        after("REGISTER  t\n"),
        after("REGISTER t  c\nPING\n"),
        after("REGISTER t*\n"),
        after("REGISTER t c*\n"),
        after("UNREGISTER t#x\n"),
        after("REGISTER \u{e4}\n"),
        after(&format!("REGISTER {}\nREGISTER {}\n", "x".repeat(64), "x".repeat(65))),
    ];
    for bytes in sent {
        let [ours, stock] = [&ours, &stock].map(|lookupd| {
            let mut peer = Peer::connect(lookupd.tcp());
            peer.say(&bytes);
            let _ = peer.0.shutdown(Shutdown::Write);
            let answers: Vec<Value> = std::iter::from_fn(|| peer.hear())
                .map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)))
                .map(|mut answer| {
                    if let Some(map) = answer.as_object_mut() {
                        assert_eq!(map["tcp_port"], lookupd.tcp().port());
                        assert_eq!(map["http_port"], lookupd.http().port());
                        map.remove("tcp_port");
                        map.remove("http_port");
                    }
                    answer
                })
                .collect();
            answers
        });
        assert_eq!(ours, stock, "{}", String::from_utf8_lossy(&bytes));
    }
}

/// A node that comes by IPv4 has an address of IPv4.
#[test]
fn every_address_of_the_machine_is_of_both_versions_of_ip() {
    let hosts: Vec<IpAddr> = ["127.0.0.1", "::1"].map(|host| host.parse().expect("an address")).into();
    let hosts: Vec<IpAddr> = hosts.into_iter().filter(|host| TcpListener::bind((*host, 0)).is_ok()).collect();
    for (program, first) in [(node::binary(), Some("lookupd")), (stock("nsqlookupd"), None)] {
        let ports = node::Ports::free();
        let (tcp, http) = (ports.at(0).port(), ports.at(1).port());
        let flags = [format!("--tcp-address=:{tcp}"), format!("--http-address=0.0.0.0:{http}")];
        let mut process = Process::start(&program, first.map(String::from).into_iter().chain(flags));
        [ports.at(0), ports.at(1)].into_iter().for_each(|at| process.wait_listening(at));
        let nodes: Vec<Peer> = hosts.iter().zip(1..).map(|(host, n)| Peer::identified_at((*host, tcp).into(), n)).collect();
        let mut expected: Vec<String> = nodes.iter().map(|node| node.0.local_addr().expect("connected").to_string()).collect();
        expected.sort();
        for host in &hosts {
            let answer = get_json((*host, http).into(), "/nodes");
            let mut found: Vec<&str> =
                answer["producers"].as_array().into_iter().flatten().filter_map(|node| node["remote_address"].as_str()).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{}, over {host}: {answer}", program.display());
        }
    }
}

#[test]
fn a_node_that_goes_leaves_its_durable_names() {
    for lookupd in [Lookupd::ours(&[]), Lookupd::stock(&[])] {
        let mut peer = Peer::identified(&lookupd, 1);
        peer.command("REGISTER t c");
        assert_eq!(lookupd.get("/lookup?topic=t")["producers"][0]["broadcast_address"], "b1");
        drop(peer);
        eventually("the node is gone", || lookupd.get("/lookup?topic=t")["producers"] == serde_json::json!([]));
        assert_eq!(lookupd.get("/lookup?topic=t")["channels"], serde_json::json!(["c"]));
        assert_eq!(lookupd.get("/nodes"), serde_json::json!({ "producers": [] }));
    }
}

#[test]
fn a_silent_node_and_a_tombstone_last_as_long_as_the_flags_say() {
    let flags = ["-inactive-producer-timeout", "2s", "-tombstone-lifetime=500ms"];
    for lookupd in [Lookupd::ours(&flags), Lookupd::stock(&flags)] {
        let mut peer = Peer::identified(&lookupd, 1);
        peer.command("REGISTER t");
        let producers = || lookupd.get("/lookup?topic=t")["producers"].as_array().map_or(0, Vec::len);
        request(lookupd.http(), "POST", "/topic/tombstone?topic=t&node=b1:4152").expect("it answers");
        eventually("the tombstone ends", || {
            peer.command("PING");
            producers() == 1
        });
        eventually("silence hides it", || producers() == 0);
        assert_eq!(lookupd.get("/nodes"), serde_json::json!({ "producers": [] }));
        peer.command("PING");
        assert_eq!(producers(), 1, "it is back");
    }
}

#[test]
fn hostile_nodes_and_clients_do_no_harm() {
    let mut ours = Lookupd::ours(&["--max-connections=20", "--max-registrations=50"]);
    let mut good = Peer::identified(&ours, 1);
    good.command("REGISTER t c");
    for bytes in [
        b"  V1IDENTIFY\n\x7f\xff\xff\xff".to_vec(),
        b"  V1IDENTIFY\n\xff\xff\xff\xff".to_vec(),
        [b"  V1", &vec![b'x'; 4 << 20][..]].concat(),
        vec![0; 100_000],
    ] {
        let mut peer = Peer::connect(ours.tcp());
        peer.say(&bytes);
        assert!(peer.hear().is_some_and(|answer| answer.starts_with("E_")));
        assert_eq!(peer.hear(), None);
    }
    // A registry that is full says so, and goes on.
    for number in 0..60 {
        good.say(format!("REGISTER t{number}\n").as_bytes());
        let answer = good.hear().expect("it goes on");
        assert_eq!(answer == "OK", number < 23, "{number}: {answer}");
    }
    assert_eq!(request(ours.http(), "POST", "/topic/create?topic=new").expect("it answers").0, 503);
    // Connections above the bound are turned away, of nodes and of HTTP apart; the others go on.
    let idle: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(ours.tcp()).expect("the kernel takes it")).collect();
    let idle_http: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(ours.http()).expect("the kernel takes it")).collect();
    eventually("the bound is reached", || matches!(request(ours.http(), "GET", "/ping"), Ok((503, ..)) | Err(_)));
    good.command("PING");
    drop((idle, idle_http));
    eventually("there is room again", || matches!(request(ours.http(), "GET", "/ping"), Ok((200, ..))));
    assert!(Peer::identified(&ours, 2).hear_nothing());
    let mut long = TcpStream::connect(ours.http()).expect("it listens");
    let _ = long.write_all(&[b"GET /", &vec![b'x'; 1 << 20][..]].concat());
    let mut answer = [0; 12];
    let _ = long.read(&mut answer);
    assert_ne!(&answer[..], b"HTTP/1.1 200");
    assert_eq!(ours.process.stop(), Some(0));
}

impl Peer {
    /// Checks that the daemon sends nothing without a request.
    fn hear_nothing(&mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
        self.hear().is_none()
    }
}

#[test]
fn the_command_line_is_nsqlookupds() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let link = folder.path().join("nsqlookupd");
    std::os::unix::fs::symlink(node::binary(), &link).expect("a link");
    let run = |program: &std::path::Path, args: &[&str]| {
        let output = Command::new(program).args(args).stdin(Stdio::null()).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    for args in [&["-version"][..], &["--version"], &["-tcp-address", "nonsense:1", "-version"]] {
        let [ours, stock] = [&link, &node::stock::stock("nsqlookupd")].map(|program| run(program, args));
        let words = |text: &str| text.split(' ').take(2).collect::<Vec<_>>().join(" ");
        assert_eq!((ours.0, words(&ours.1)), (stock.0, words(&stock.1)));
        assert_eq!((ours.0, words(&ours.1).as_str()), (Some(0), "nsqlookupd v1.3.0"));
    }
    for args in [&["-nope"][..], &["--inactive-producer-timeout=5"], &["-log-level=loud"]] {
        let (code, said) = run(&link, args);
        assert_eq!(code, Some(2), "{said}");
    }
    let (code, said) = run(&link, &["--config=/nowhere"]);
    assert!(code == Some(2) && said.contains("--config=/nowhere: "), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let (code, said) = run(&link, &["-tcp-address", &address, "-http-address", "127.0.0.1:0"]);
    assert!(code == Some(1) && said.contains(&format!("--tcp-address: {address} is in use: pid ")), "{said}");
}
