//! nsqd's HTTP API, ours beside the stock nsqd 1.3.0: the same script of requests, the same codes, types and bodies.

mod node;

use node::pki::Pki;
use node::stock::{Process, get_json, request, stock};
use node::{Client, Node, Ports};
use rcgen::ExtendedKeyUsagePurpose;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

struct Nsqd {
    _process: Process,
    ports: Ports,
}

impl Nsqd {
    fn start(flags: &[&str]) -> Nsqd {
        let ports = Ports::free();
        let (tcp, http) = (format!("--tcp-address={}", ports.at(0)), format!("--http-address={}", ports.at(1)));
        let all = ["--broadcast-address=127.0.0.1", "--log-level=error", &tcp, &http];
        let mut process = Process::start(&stock("nsqd"), all.iter().chain(flags));
        process.wait_listening(ports.at(1));
        Nsqd { _process: process, ports }
    }

    fn http(&self) -> SocketAddr {
        self.ports.at(1)
    }
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let line = head.lines().find_map(|line| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)));
    line.map_or("", |(_, value)| value)
}

/// Answer as a client sees it: status, type, envelope and body.
fn shown(http: SocketAddr, method: &str, path: &str) -> String {
    let (status, head, body) = request(http, method, path).unwrap_or_else(|e| panic!("{method} {path}: {e}"));
    let (kind, envelope) = (header(&head, "content-type"), header(&head, "x-nsq-content-type"));
    format!("{status} [{kind}] [{envelope}] {}", body.trim_end())
}

fn compare(ours: SocketAddr, theirs: SocketAddr, script: &[(&str, &str)]) {
    for (method, path) in script {
        assert_eq!(shown(ours, method, path), shown(theirs, method, path), "{method} {path}: ours, then nsqd's");
    }
}

/// Topics and their channels, with what an operator sees of each.
fn topics(http: SocketAddr) -> Vec<String> {
    let stats = get_json(http, "/stats?format=json");
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let show = |t: serde_json::Value| {
        let channels = list(&t["channels"]).into_iter().map(|c| format!("{}:{}:{}", c["channel_name"], c["depth"], c["paused"]));
        let mut channels: Vec<String> = channels.collect();
        channels.sort();
        format!("{} {} {} {channels:?}", t["topic_name"], t["depth"], t["paused"])
    };
    let mut all: Vec<String> = list(&stats["topics"]).into_iter().map(show).collect();
    all.sort();
    all
}

const OPERATIONS: [&str; 13] = [
    "/topic/create",
    "/topic/empty",
    "/topic/pause",
    "/topic/unpause",
    "/topic/delete",
    "/channel/create",
    "/channel/delete",
    "/channel/empty",
    "/channel/pause",
    "/channel/unpause",
    "/ping",
    "/stats",
    "/info",
];

#[test]
fn http_on_the_port_of_https_is_told_so_in_nsqds_words() {
    let pki = Pki::new();
    let ports = Ports::free();
    pki.sign("node", ExtendedKeyUsagePurpose::ServerAuth, 4000);
    let (cert, key) = (format!("--tls-cert={}", pki.path("node.pem")), format!("--tls-key={}", pki.path("node.key")));
    let flags = |n| [cert.clone(), key.clone(), format!("--https-address={}", ports.at(n))];
    let (ours, theirs) = (flags(0), flags(1));
    let _both = (Node::start(&words(&ours)), Nsqd::start(&words(&theirs)));
    let answer = |n| {
        let mut stream = TcpStream::connect(ports.at(n)).expect("it listens");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a limit");
        stream.write_all(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx").expect("it is connected");
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(answer(0), answer(1), "ours, then nsqd's");
    assert!(answer(0).starts_with("HTTP/1.0 400 "), "{}", answer(0));
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

#[test]
fn topics_and_channels_are_made_and_removed_as_nsqd_does() {
    let (ours, theirs) = (Node::start(&["--shards=2", "--partitions=3"]), Nsqd::start(&[]));
    let both = (ours.http(), theirs.http());
    for path in OPERATIONS.iter().filter(|path| path.matches('/').count() == 2) {
        for query in [
            "",
            "?topic=",
            "?topic=a%20b",
            "?topic=a;b",
            "?topic=%zz",
            "?topic=none",
            "?topic=none&channel=a%20b",
            "?topic=none&channel=c",
        ] {
            if *path == "/topic/create" && query.contains("none") {
                continue;
            }
            compare(both.0, both.1, &[("POST", &format!("{path}{query}"))]);
        }
    }
    for path in OPERATIONS {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS"] {
            let is_the_one = (method == "GET") == (path.matches('/').count() == 1);
            if method != "GET" && method != "POST" || !is_the_one {
                compare(both.0, both.1, &[(method, path)]);
            }
        }
    }
    let script = [
        ("POST", "/topic/create?topic=t"),
        ("POST", "/topic/create?topic=t"),
        ("POST", "/topic/create?topic=u&topic=second"),
        ("POST", "/topic/create?topic=e%23ephemeral"),
        ("POST", "/channel/create?topic=t&channel=c"),
        ("POST", "/channel/pause?topic=t&channel=c"),
        ("POST", "/channel/create?topic=t&channel=c"),
        ("POST", "/channel/create?topic=t&channel=d"),
        ("POST", "/channel/delete?topic=t&channel=nope"),
        ("POST", "/channel/empty?topic=t&channel=d"),
        ("POST", "/channel/delete?topic=t&channel=d"),
        ("POST", "/topic/delete?topic=u"),
        ("POST", "/topic/delete?topic=u"),
        ("GET", "/nope"),
        ("GET", "/topic/create/"),
        ("GET", "/TOPIC/create"),
        ("GET", "/ping/"),
        ("GET", "/PING"),
        ("GET", "//ping"),
        ("GET", "/%70ing"),
        ("GET", "/%2Fping"),
        ("GET", "/foo/../ping"),
        ("GET", "/./stats?format=json&topic=t"),
        ("GET", "/stats/?format=json&topic=t"),
        ("POST", "/pub/?topic=t"),
        ("POST", "/TOPIC/create?topic=t"),
        ("GET", "/debug/pprof"),
        ("GET", "/debug/pprof/nope"),
        ("PUT", "/debug/pprof/symbol"),
        ("OPTIONS", "/debug/pprof/symbol"),
        ("GET", "/debug/freememory"),
    ];
    for step in script {
        compare(both.0, both.1, &[step]);
        assert_eq!(topics(both.0), topics(both.1), "behind {step:?}");
    }
    assert_eq!(topics(both.0).len(), 2, "t and e: {:?}", topics(both.0));
}

#[test]
fn a_topic_is_emptied_of_what_waits_for_its_first_channel() {
    let (mut ours, theirs) = (Node::start(&["--shards=2", "--partitions=3"]), Nsqd::start(&[]));
    let both = |ours: &Node| (ours.http(), theirs.http());
    let put = |ours: &Node, n: usize| {
        for http in [ours.http(), theirs.http()] {
            (0..n).for_each(|_| assert!(shown_with(http, "POST", "/pub?topic=t", "x").starts_with("200 ")));
        }
    };
    put(&ours, 5);
    let empty = ("POST", "/topic/empty?topic=t");
    compare(both(&ours).0, both(&ours).1, &[empty]);
    assert_eq!(topics(both(&ours).0), topics(both(&ours).1));
    assert_eq!(topics(ours.http()), ["\"t\" 0 false []"]);
    ours.kill();
    ours.spawn();
    ours.wait_ready().expect("it starts again");
    put(&ours, 2);
    let create = ("POST", "/channel/create?topic=t&channel=c");
    compare(both(&ours).0, both(&ours).1, &[create]);
    node::stock::eventually("both channels have what came after", || topics(both(&ours).0) == topics(both(&ours).1));
    assert_eq!(topics(ours.http()), ["\"t\" 0 false [\"\\\"c\\\":2:false\"]"]);
    // A topic with a channel has nothing of its own.
    compare(both(&ours).0, both(&ours).1, &[empty]);
    assert_eq!(topics(both(&ours).0), topics(both(&ours).1));
}

fn put(http: SocketAddr, topic: &str, numbers: std::ops::Range<u32>) {
    numbers.for_each(|n| assert!(shown_with(http, "POST", &format!("/pub?topic={topic}"), &n.to_string()).starts_with("200 ")));
}

#[test]
fn an_ephemeral_channel_keeps_as_many_messages_as_nsqds() {
    let flags = ["--mem-queue-size=20"];
    let (ours, theirs) = (Node::start(&["--shards=2", flags[0]]), Nsqd::start(&flags));
    for http in [ours.http(), theirs.http()] {
        for path in
            ["/topic/create?topic=t", "/channel/create?topic=t&channel=c%23ephemeral", "/channel/create?topic=t&channel=d"]
        {
            assert!(shown(http, "POST", path).starts_with("200 "), "{path}");
        }
        put(http, "t", 0..100);
    }
    let both = || (topics(ours.http()), topics(theirs.http()));
    node::stock::eventually("both keep as many", || both().0 == both().1);
    assert_eq!(both().0, ["\"t\" 0 false [\"\\\"c#ephemeral\\\":20:false\", \"\\\"d\\\":100:false\"]"]);
    let mut client = Client::connect(ours.tcp()).expect("it takes connections");
    client.subscribe("t", "c#ephemeral", 1).expect("subscribed");
    assert_eq!(client.message().expect("a message").body, b"80", "the newest, where nsqd keeps the oldest");
    let metrics = ours.get("/metrics").expect("it answers");
    assert!(metrics.contains("ringmq_channel_dropped_total{topic=\"t\",channel=\"c#ephemeral\"} 80\n"), "{metrics}");
    assert!(ours.log().contains("drops the oldest"), "{}", ours.log());
}

#[test]
fn an_ephemeral_topic_goes_when_its_last_channel_is_deleted_under_a_client() {
    let (ours, theirs) = (Node::start(&["--shards=2"]), Nsqd::start(&[]));
    for (http, tcp) in [(ours.http(), ours.tcp()), (theirs.http(), theirs.ports.at(0))] {
        let mut client = Client::connect(tcp).expect("it takes connections");
        client.subscribe("e#ephemeral", "c#ephemeral", 1).expect("subscribed");
        assert!(shown(http, "POST", "/channel/delete?topic=e%23ephemeral&channel=c%23ephemeral").starts_with("200 "));
        node::stock::eventually("the topic is gone", || topics(http).is_empty());
    }
}

/// Steps of a topic that is paused: each is done at both nodes, which then have to show the same.
struct Paused {
    ours: Node,
    theirs: Nsqd,
}

impl Paused {
    fn start() -> Paused {
        Paused { ours: Node::start(&["--shards=2", "--partitions=3"]), theirs: Nsqd::start(&[]) }
    }

    fn both(&self) -> [SocketAddr; 2] {
        [self.ours.http(), self.theirs.http()]
    }

    fn same(&self, step: &str, shown: &[&str]) {
        let is_so = || topics(self.both()[0]) == topics(self.both()[1]) && topics(self.both()[0]) == shown;
        let began = std::time::Instant::now();
        while !is_so() {
            let both = self.both().map(topics);
            assert!(began.elapsed().as_secs() < 20, "behind {step}: ours, nsqd's, wanted: {both:?} {shown:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn post(&self, path: &str, shown: &[&str]) {
        compare(self.both()[0], self.both()[1], &[("POST", path)]);
        self.same(path, shown);
    }

    fn publish(&self, n: usize, shown: &[&str]) {
        for http in self.both() {
            (0..n).for_each(|_| assert!(shown_with(http, "POST", "/pub?topic=t", "x").starts_with("200 ")));
        }
        self.same("a publish", shown);
    }
}

#[test]
fn a_paused_topic_keeps_what_is_published_for_the_channels_that_are_there_at_its_end() {
    let both = Paused::start();
    both.post("/topic/create?topic=t", &[r#""t" 0 false []"#]);
    // Without a channel.
    both.publish(2, &[r#""t" 2 false []"#]);
    both.post("/topic/pause?topic=t", &[r#""t" 2 true []"#]);
    both.post("/topic/pause?topic=t", &[r#""t" 2 true []"#]);
    both.publish(1, &[r#""t" 3 true []"#]);
    both.post("/channel/create?topic=t&channel=a", &[r#""t" 3 true ["\"a\":0:false"]"#]);
    both.post("/channel/create?topic=t&channel=b", &[r#""t" 3 true ["\"a\":0:false", "\"b\":0:false"]"#]);
    both.post("/topic/unpause?topic=t", &[r#""t" 0 false ["\"a\":3:false", "\"b\":3:false"]"#]);
    both.post("/topic/unpause?topic=t", &[r#""t" 0 false ["\"a\":3:false", "\"b\":3:false"]"#]);
    // With channels, and one that comes meanwhile.
    both.publish(1, &[r#""t" 0 false ["\"a\":4:false", "\"b\":4:false"]"#]);
    both.post("/topic/pause?topic=t", &[r#""t" 0 true ["\"a\":4:false", "\"b\":4:false"]"#]);
    both.publish(2, &[r#""t" 2 true ["\"a\":4:false", "\"b\":4:false"]"#]);
    both.post("/channel/delete?topic=t&channel=b", &[r#""t" 2 true ["\"a\":4:false"]"#]);
    both.post("/channel/create?topic=t&channel=c", &[r#""t" 2 true ["\"a\":4:false", "\"c\":0:false"]"#]);
    both.post("/topic/unpause?topic=t", &[r#""t" 0 false ["\"a\":6:false", "\"c\":2:false"]"#]);
    // What is emptied is what waits; and the last channel leaves it to the next one.
    both.post("/topic/pause?topic=t", &[r#""t" 0 true ["\"a\":6:false", "\"c\":2:false"]"#]);
    both.publish(3, &[r#""t" 3 true ["\"a\":6:false", "\"c\":2:false"]"#]);
    both.post("/topic/empty?topic=t", &[r#""t" 0 true ["\"a\":6:false", "\"c\":2:false"]"#]);
    both.publish(1, &[r#""t" 1 true ["\"a\":6:false", "\"c\":2:false"]"#]);
    both.post("/channel/empty?topic=t&channel=a", &[r#""t" 1 true ["\"a\":0:false", "\"c\":2:false"]"#]);
    both.post("/channel/delete?topic=t&channel=a", &[r#""t" 1 true ["\"c\":2:false"]"#]);
    both.post("/channel/delete?topic=t&channel=c", &[r#""t" 1 true []"#]);
    both.post("/channel/create?topic=t&channel=d", &[r#""t" 1 true ["\"d\":0:false"]"#]);
    both.post("/topic/unpause?topic=t", &[r#""t" 0 false ["\"d\":1:false"]"#]);
    both.post("/topic/pause?topic=t", &[r#""t" 0 true ["\"d\":1:false"]"#]);
    both.post("/topic/delete?topic=t", &[]);
    both.post("/topic/create?topic=t", &[r#""t" 0 false []"#]);
}

/// A pause survives a SIGKILL, as nsqd's does. A waiting consumer gets its messages when the pause ends.
#[test]
fn a_pause_of_a_topic_survives_a_kill() {
    let mut node = Node::start(&["--shards=2", "--partitions=3"]);
    publish(&node, "t", b"before");
    post(&node, "/channel/create?topic=t&channel=c");
    post(&node, "/topic/pause?topic=t");
    publish(&node, "t", b"while");
    for round in 0..2 {
        node.kill();
        node.spawn();
        node.wait_ready().expect("it starts again");
        assert_eq!(topics(node.http()), [r#""t" 1 true ["\"c\":1:false"]"#], "round {round}");
    }
    let mut client = Client::connect(node.tcp()).expect("it listens");
    client.subscribe("t", "c", 5).expect("it subscribes");
    let first = client.message().expect("what came before");
    assert_eq!(first.body, b"before");
    client.finish(&first.id).expect("it reads");
    let shown = topics(node.http());
    assert_eq!(shown, [r#""t" 1 true ["\"c\":0:false"]"#]);
    post(&node, "/topic/unpause?topic=t");
    assert_eq!(client.message().expect("what came while it was paused").body, b"while");
    node.kill();
    node.spawn();
    node.wait_ready().expect("it starts again");
    assert!(topics(node.http())[0].contains(" false "), "{:?}", topics(node.http()));
}

fn publish(node: &Node, topic: &str, body: &[u8]) {
    let answer = node.post(&format!("/pub?topic={topic}"), body).expect("it answers");
    assert!(answer.contains("200 OK"), "{answer}");
}

fn post(node: &Node, path: &str) {
    let answer = node.post(path, b"").expect("it answers");
    assert!(answer.contains("200 OK"), "{path}: {answer}");
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        _ => entry.metadata().map_or(0, |meta| meta.len()),
    };
    entries.flatten().map(size).sum()
}

/// A deletion that was answered survives a SIGKILL at once behind the answer: the topic is gone, and its space and its name are free.
#[test]
fn a_deleted_topic_stays_gone_and_its_space_is_free() {
    let mut node = Node::start(&["--shards=2", "--partitions=3", "--spare-bytes=0"]);
    let body = vec![b'x'; 256 * 1024];
    for round in 0..4 {
        let mut client = Client::connect(node.tcp()).expect("it listens");
        (0..40).for_each(|_| publish(&node, "big", &body));
        publish(&node, "keep", format!("kept {round}").as_bytes());
        client.subscribe("big", "c", 1).expect("it subscribes");
        client.message().expect("the first message");
        let folder = node.data_path().join("topics/big");
        assert!(bytes_below(&folder) > 0, "{}", folder.display());
        post(&node, "/topic/delete?topic=big");
        assert!(client.read().is_err(), "its client is disconnected");
        assert!(!topics(node.http()).iter().any(|t| t.contains("big")), "{:?}", topics(node.http()));
        if round % 2 == 0 {
            node.kill();
            node.spawn();
            node.wait_ready().expect("it starts again");
        } else {
            // The name is another topic's at once.
            publish(&node, "big", b"new");
            let mut client = Client::connect(node.tcp()).expect("it listens");
            client.subscribe("big", "c", 1).expect("it subscribes");
            assert_eq!(client.message().expect("the new topic's message").body, b"new");
            post(&node, "/topic/delete?topic=big");
        }
        node::stock::eventually("its space is free", || bytes_below(&folder) == 0);
        assert_eq!(topics(node.http()), [format!("\"keep\" {} false []", round + 1)]);
    }
}

#[test]
fn what_was_made_over_http_is_there_after_a_kill() {
    let mut node = Node::start(&["--shards=2", "--partitions=3"]);
    post(&node, "/topic/create?topic=t");
    post(&node, "/topic/create?topic=bare");
    post(&node, "/channel/create?topic=t&channel=first");
    post(&node, "/channel/create?topic=t&channel=second");
    let before = topics(node.http());
    node.kill();
    node.spawn();
    node.wait_ready().expect("it starts again");
    assert_eq!(topics(node.http()), before);
    assert_eq!(before.len(), 2, "{before:?}");
    // All partitions have both channels: a message in any reaches both.
    (0..3).for_each(|_| publish(&node, "t", b"x"));
    assert!(
        topics(node.http()).iter().any(|t| t.contains("first\\\":3") && t.contains("second\\\":3")),
        "{:?}",
        topics(node.http())
    );
}

/// The same, of a request with a body.
fn shown_with(http: SocketAddr, method: &str, path: &str, body: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(http).expect("it listens");
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    format!("{status} [{}] [{}] {}", header(head, "content-type"), header(head, "x-nsq-content-type"), body.trim_end())
}

#[test]
fn settings_are_read_and_changed_as_nsqds_are() {
    let (ours, theirs) = (Node::start(&["--shards=1", "--broadcast-address=127.0.0.1"]), Nsqd::start(&["--log-level=info"]));
    for path in [
        "log_level",
        "nsqlookupd_tcp_addresses",
        "max_msg_size",
        "msg_timeout",
        "max_rdy_count",
        "tls_required",
        "broadcast_address",
        "snappy",
        "max_heartbeat_interval",
        "max_deflate_level",
        "nope",
        "",
        "LogLevel",
        "verbose",
        "a/b",
    ] {
        compare(ours.http(), theirs.http(), &[("GET", &format!("/config/{path}")), ("DELETE", &format!("/config/{path}"))]);
    }
    let steps = [
        ("log_level", ""),
        ("log_level", "debug"),
        ("log_level", "loud"),
        ("log_level", "3"),
        ("log_level", "WARN"),
        ("max_msg_size", "7"),
        ("nope", "x"),
        ("nope", ""),
        ("nsqlookupd_tcp_addresses", ""),
        ("nsqlookupd_tcp_addresses", "x"),
        ("nsqlookupd_tcp_addresses", "[1]"),
        ("nsqlookupd_tcp_addresses", "[\"127.0.0.1:1\"]"),
        ("nsqlookupd_tcp_addresses", "[]"),
        ("nsqlookupd_tcp_addresses", "null"),
    ];
    for (option, body) in steps {
        let path = format!("/config/{option}");
        let answers = [ours.http(), theirs.http()].map(|http| {
            (
                shown_with(http, "PUT", &path, body),
                shown(http, "GET", "/config/log_level"),
                shown(http, "GET", "/config/nsqlookupd_tcp_addresses"),
            )
        });
        assert_eq!(answers[0], answers[1], "PUT {path} {body}: ours, then nsqd's");
    }
    assert!(ours.whole_log().contains("the log level is changed over HTTP"));
}

/// A node that was started without any nsqlookupd registers with those that it is told, and leaves those that it is told no more.
#[test]
fn an_nsqlookupd_that_is_named_over_http_gets_the_nodes_topics() {
    let lookupds = [node::stock::Lookupd::ours(&[]), node::stock::Lookupd::stock(&[])];
    let node = Node::start(&["--shards=2", "--broadcast-address=127.0.0.1"]);
    publish(&node, "before", b"x");
    let producers = |lookupd: &node::stock::Lookupd, topic: &str| {
        lookupd.get(&format!("/lookup?topic={topic}"))["producers"].as_array().map_or(0, Vec::len)
    };
    let name = |which: &[&node::stock::Lookupd]| {
        let list: Vec<String> = which.iter().map(|l| l.tcp().to_string()).collect();
        let answer = shown_with(node.http(), "PUT", "/config/nsqlookupd_tcp_addresses", &serde_json::json!(list).to_string());
        assert!(answer.starts_with("200 "), "{answer}");
    };
    name(&[&lookupds[0], &lookupds[1]]);
    node::stock::eventually("both know the topic", || lookupds.iter().all(|l| producers(l, "before") == 1));
    name(&[&lookupds[1]]);
    publish(&node, "behind", b"x");
    node::stock::eventually("the one that stays knows both", || {
        ["before", "behind"].iter().all(|t| producers(&lookupds[1], t) == 1)
    });
    node::stock::eventually("the one that was left has no producer", || producers(&lookupds[0], "before") == 0);
    assert_eq!(producers(&lookupds[0], "behind"), 0);
    name(&[]);
    node::stock::eventually("nobody has the node", || producers(&lookupds[1], "before") == 0);
}

#[test]
fn what_debug_can_show_without_go_is_shown() {
    let node = Node::start(&["--shards=1"]);
    let get = |path: &str| request(node.http(), "GET", path).expect("it answers");
    let (status, _, body) = get("/debug/pprof/heap");
    assert!(status == 501 && body.starts_with("{\"message\":\"NOT_SUPPORTED: "), "{status} {body}");
    let (_, _, line) = get("/debug/pprof/cmdline");
    assert!(line.contains("\0serve\0") && line.contains("--shards=1"), "{line:?}");
    assert!(get("/debug/pprof/").2.contains("href='cmdline'"));
    assert_eq!(shown(node.http(), "POST", "/debug/freememory"), "200 [text/plain; charset=utf-8] [] ");
}

/// A profile of `seconds` in pprof's format, without its compression.
fn profile(http: SocketAddr, seconds: u32) -> Vec<u8> {
    let mut stream = TcpStream::connect(http).expect("it listens");
    write!(stream, "GET /debug/pprof/profile?seconds={seconds} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    let body = 4 + answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head and a body");
    let mut profile = Vec::new();
    flate2::read::GzDecoder::new(&answer[body..]).read_to_end(&mut profile).expect("it is compressed");
    profile
}

#[test]
fn a_profile_names_what_the_node_does_and_the_node_goes_on() {
    let node = Node::start(&["--shards=1"]);
    let http = node.http();
    let names = |profile: &[u8], name: &str| profile.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    let taking = std::thread::spawn(move || profile(http, 2));
    node::stock::eventually("the profile begins", || node.log().contains("a CPU profile begins"));
    let refused = shown(http, "GET", "/debug/pprof/profile?seconds=1");
    let mut client = Client::connect(node.tcp()).expect("it listens");
    while !taking.is_finished() {
        client.publish("busy", &[b'x'; 1000]).expect("it is stored");
    }
    let profile = taking.join().expect("a profile");
    assert!(names(&profile, "cpu") && names(&profile, "ringmq"), "{} bytes", profile.len());
    assert!(refused.starts_with("500 ") && refused.contains("cpu profiling already in use"), "{refused}");
    assert!(shown(http, "GET", "/debug/pprof/profile?seconds=0").starts_with("400 "));
    client.publish("busy", b"afterwards").expect("it is stored");
}
