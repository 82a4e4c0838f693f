//! Discovery with real processes, ours and the stock ones of NSQ 1.3.0 in any mixture: nodes register with nsqlookupds, and clients find
//! nodes.

mod node;

use node::cluster::Cluster;
use node::etcd::{FAST, Member};
use node::stock::{Lookupd, Process, eventually, get_json, request, stock};
use node::{Client, Node};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::Duration;

/// Ours first, then the stock one.
fn both() -> [Lookupd; 2] {
    [Lookupd::ours(&[]), Lookupd::stock(&[])]
}

fn started(lookupds: &[Lookupd], flags: &[&str]) -> Node {
    let addresses: Vec<String> = lookupds.iter().map(|l| format!("--lookupd-tcp-address={}", l.tcp())).collect();
    let all: Vec<&str> = addresses.iter().map(String::as_str).chain(["--broadcast-address=127.0.0.1", "--shards=2"]).collect();
    Node::start(&[&all, flags].concat())
}

fn subscribe(client: &mut Client, channel: &str) {
    client.write(format!("SUB t {channel}\n").as_bytes()).expect("it reads");
    client.ok().expect("it subscribes");
}

/// Ports of the producers of a topic, and its channels in order.
fn found(http: SocketAddr, topic: &str) -> (Vec<u64>, Vec<String>) {
    let answer = get_json(http, &format!("/lookup?topic={}", topic.replace('#', "%23")));
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    let ports = list("producers").iter().filter_map(|p| p["tcp_port"].as_u64()).collect();
    let mut channels: Vec<String> = list("channels").iter().filter_map(Value::as_str).map(String::from).collect();
    channels.sort();
    (ports, channels)
}

fn wait_found(lookupds: &[Lookupd], topic: &str, port: Option<u16>, channels: &[&str]) {
    for (lookupd, whose) in lookupds.iter().zip(["ours", "stock"]) {
        let wanted = (port.map(u64::from).into_iter().collect(), channels.iter().map(|c| c.to_string()).collect::<Vec<_>>());
        let what = format!("{whose}: {topic} {port:?} {channels:?}");
        eventually(&what, || found(lookupd.http(), topic) == wanted);
    }
}

#[test]
fn a_node_registers_what_comes_and_unregisters_what_goes() {
    let lookupds = both();
    let mut node = started(&lookupds, &[]);
    let port = node.tcp().port();
    assert!(node.post("/pub?topic=t", b"x").expect("it answers").contains("200 OK"));
    wait_found(&lookupds, "t", Some(port), &[]);
    assert!(node.post("/channel/create?topic=t&channel=c", b"").expect("it answers").contains("200 OK"));
    wait_found(&lookupds, "t", Some(port), &["c"]);
    {
        let mut client = Client::connect(node.tcp()).expect("it listens");
        subscribe(&mut client, "e#ephemeral");
        wait_found(&lookupds, "t", Some(port), &["c", "e#ephemeral"]);
    }
    // An ephemeral channel goes with its client; a durable one stays known when it is deleted here.
    wait_found(&lookupds, "t", Some(port), &["c"]);
    assert!(node.post("/channel/delete?topic=t&channel=c", b"").expect("it answers").contains("200 OK"));
    let gone = |lookupd: &Lookupd| lookupd.get("/debug").get("channel:t:c").is_none();
    eventually("the channel has no producers", || lookupds.iter().all(gone));
    for lookupd in &lookupds {
        let nodes = lookupd.get("/nodes");
        let about = &nodes["producers"][0];
        assert_eq!(about["broadcast_address"], "127.0.0.1");
        assert_eq!((&about["tcp_port"], &about["http_port"]), (&json!(port), &json!(node.http().port())));
        assert_eq!(about["version"], "1.3.0");
    }
    // The next startup registers the topics on disk again.
    node.stop();
    wait_found(&lookupds, "t", None, &["c"]);
    node.spawn();
    node.wait_ready().expect("it starts again");
    wait_found(&lookupds, "t", Some(port), &["c"]);
}

#[test]
fn an_nsqlookupd_that_comes_back_is_told_everything() {
    for mut lookupd in both() {
        let node = started(std::slice::from_ref(&lookupd), &[]);
        assert!(node.post("/channel/create?topic=t&channel=c", b"").is_ok() && node.post("/pub?topic=t", b"x").is_ok());
        assert!(node.post("/channel/create?topic=t&channel=c", b"").expect("it answers").contains("200 OK"));
        wait_found(std::slice::from_ref(&lookupd), "t", Some(node.tcp().port()), &["c"]);
        lookupd.restart_after(|| assert!(node.post("/pub?topic=meanwhile", b"x").is_ok()));
        wait_found(std::slice::from_ref(&lookupd), "t", Some(node.tcp().port()), &["c"]);
        wait_found(std::slice::from_ref(&lookupd), "meanwhile", Some(node.tcp().port()), &[]);
    }
}

#[test]
fn other_ports_are_told_where_they_are_given() {
    let lookupds = both();
    let node = started(&lookupds, &["-broadcast-tcp-port=4242", "-broadcast-http-port=4243"]);
    assert!(node.post("/pub?topic=t", b"x").is_ok());
    wait_found(&lookupds, "t", Some(4242), &[]);
    for lookupd in &lookupds {
        assert_eq!(lookupd.get("/nodes")["producers"][0]["http_port"], 4243);
    }
}

/// A channel that an nsqlookupd knows gets a new topic's messages from the first one, though it is asked after they came.
#[test]
fn a_new_topic_gets_its_known_channels_from_the_first_message_on() {
    for lookupd in both() {
        for channel in ["c", "d", "e%23ephemeral"] {
            let made = request(lookupd.http(), "POST", &format!("/channel/create?topic=t&channel={channel}"));
            assert_eq!(made.expect("it answers").0, 200);
        }
        let node = started(std::slice::from_ref(&lookupd), &["--partitions=3"]);
        for body in 0..30 {
            assert!(node.post("/pub?topic=t", format!("{body}").as_bytes()).expect("it answers").contains("200 OK"));
        }
        let depths = || {
            let stats = get_json(node.http(), "/stats?format=json&topic=t");
            let channels = stats["topics"][0]["channels"].as_array().cloned().unwrap_or_default();
            channels.iter().map(|c| (c["channel_name"].to_string(), c["depth"].as_u64())).collect::<Vec<_>>()
        };
        let wanted = [("\"c\"".to_owned(), Some(30)), ("\"d\"".to_owned(), Some(30))];
        eventually("both channels have all messages", || {
            let mut now = depths();
            now.sort();
            now == wanted
        });
    }
}

/// An nsqlookupd that takes every registration, and answers a question for channels when it is told to.
fn slow_lookupd(channels: &'static str) -> (SocketAddr, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (tcp, http) = (listen(), listen());
    let (address, http_port) = (tcp.local_addr().expect("it is bound"), http.local_addr().expect("it is bound").port());
    let (asked, was_asked) = mpsc::channel();
    let (answer, may_answer) = mpsc::channel::<()>();
    std::thread::spawn(move || -> std::io::Result<()> {
        let (stream, _) = tcp.accept()?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let reply = |text: &str| (&stream).write_all(&[&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat());
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            if line.contains("IDENTIFY") {
                let mut len = [0; 4];
                reader.read_exact(&mut len)?;
                reader.read_exact(&mut vec![0; u32::from_be_bytes(len) as usize])?;
                reply(&json!({"broadcast_address": "127.0.0.1", "http_port": http_port}).to_string())?;
            } else {
                reply("OK")?;
            }
            line.clear();
        }
        Ok(())
    });
    std::thread::spawn(move || {
        let (mut stream, _) = http.accept().expect("it listens");
        let mut head = vec![];
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a whole request");
            head.push(byte[0]);
        }
        asked.send(()).expect("the test waits");
        may_answer.recv().expect("the test answers");
        let body = format!("{{\"channels\":{channels}}}");
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).expect("the node reads");
    });
    (address, was_asked, answer)
}

/// The deletion is newer than what the nsqlookupd says.
#[test]
fn a_channel_that_was_deleted_while_it_was_looked_up_is_not_made_again() {
    let (lookupd, was_asked, answer) = slow_lookupd(r#"["c","d"]"#);
    let node = Node::start(&[&format!("--lookupd-tcp-address={lookupd}"), "--partitions=3", "--http-client-request-timeout=60s"]);
    let post = |path: &str| assert!(node.post(path, b"x").expect("it answers").contains("200 OK"), "{path}");
    post("/pub?topic=t");
    was_asked.recv_timeout(Duration::from_secs(60)).expect("a new topic asks");
    post("/channel/create?topic=t&channel=c");
    post("/channel/delete?topic=t&channel=c");
    answer.send(()).expect("it waits");
    let channels = || {
        let stats = get_json(node.http(), "/stats?format=json&topic=t");
        let list = stats["topics"][0]["channels"].as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|c| Some(c["channel_name"].as_str()?.to_owned())).collect::<Vec<_>>()
    };
    // In their order: c would have come before.
    eventually("the other one comes", || channels().contains(&"d".to_owned()));
    assert_eq!(channels(), ["d"]);
}

#[test]
fn a_stock_nsqd_registers_with_ours() {
    let ours = Lookupd::ours(&[]);
    let ports = node::Ports::free();
    let (tcp, http) = (ports.at(0), ports.at(1));
    let flags = [
        format!("-tcp-address={tcp}"),
        format!("-http-address={http}"),
        format!("-lookupd-tcp-address={}", ours.tcp()),
        "-broadcast-address=127.0.0.1".into(),
    ];
    let mut nsqd = Process::start(&stock("nsqd"), flags);
    nsqd.wait_listening(http);
    let lookupds = [ours];
    request(lookupds[0].http(), "POST", "/channel/create?topic=t&channel=known").expect("it answers");
    eventually("it is there", || lookupds[0].get("/nodes")["producers"].as_array().is_some_and(|list| list.len() == 1));
    // nsqd asks only registries whose answer to IDENTIFY it has read: that names their HTTP port.
    eventually("it knows whom to ask for channels", || nsqd.log().contains("peer info"));
    request(http, "POST", "/topic/create?topic=t").expect("it answers");
    wait_found(&lookupds, "t", Some(tcp.port()), &["known"]);
    eventually("it has asked for the channels", || {
        get_json(http, "/stats?format=json&topic=t")["topics"][0]["channels"][0]["channel_name"] == "known"
    });
    request(http, "POST", "/channel/create?topic=t&channel=e%23ephemeral").expect("it answers");
    wait_found(&lookupds, "t", Some(tcp.port()), &["e#ephemeral", "known"]);
    request(http, "POST", "/channel/delete?topic=t&channel=e%23ephemeral").expect("it answers");
    wait_found(&lookupds, "t", Some(tcp.port()), &["known"]);
    request(http, "POST", "/topic/delete?topic=t").expect("it answers");
    wait_found(&lookupds, "t", None, &["known"]);
    assert_eq!(nsqd.stop(), Some(0));
    eventually("it is gone", || lookupds[0].get("/nodes")["producers"] == json!([]));
}

/// nsqadmin sees all nodes, ours and stock ones, through our nsqlookupd and a node's own answers; its actions reach both.
#[test]
fn nsqadmin_works_above_a_mixture() {
    let ours = Lookupd::ours(&[]);
    let own = node::Ports::free();
    let flag = format!("--lookupd-http-address={}", own.at(0));
    let node = started(std::slice::from_ref(&ours), &[&flag]);
    let ports = node::Ports::free();
    let flags = [
        format!("-tcp-address={}", ports.at(0)),
        format!("-http-address={}", ports.at(1)),
        format!("-lookupd-tcp-address={}", ours.tcp()),
        "-broadcast-address=127.0.0.1".into(),
    ];
    let mut nsqd = Process::start(&stock("nsqd"), flags);
    nsqd.wait_listening(ports.at(1));
    let admin = ports.at(2);
    let flags = [
        format!("-http-address={admin}"),
        format!("-lookupd-http-address={}", ours.http()),
        format!("-lookupd-http-address={}", own.at(0)),
    ];
    let mut nsqadmin = Process::start(&stock("nsqadmin"), flags);
    nsqadmin.wait_listening(admin);
    for http in [node.http(), ports.at(1)] {
        // The same by both: messages create the topic.
        let said = post(http, "/pub?topic=t", b"x");
        assert!(said.contains("200 OK"), "{said}");
    }
    eventually("both nodes are seen", || get_json(admin, "/api/nodes")["nodes"].as_array().is_some_and(|list| list.len() == 2));
    eventually("both have the topic", || {
        let topic = get_json(admin, "/api/topics/t");
        topic["nodes"].as_array().is_some_and(|list| list.len() == 2) && topic["depth"] == 2
    });
    let said = post(admin, "/api/topics", br#"{"topic":"t","channel":"c"}"#);
    assert!(said.contains("200 OK"), "{said}");
    for http in [node.http(), ports.at(1)] {
        eventually("the channel is made everywhere", || {
            get_json(http, "/stats?format=json&topic=t")["topics"][0]["channels"][0]["channel_name"] == "c"
        });
    }
    eventually("the channel is seen with its messages", || get_json(admin, "/api/topics/t/c")["depth"] == 2);
    eventually("lookups name both", || found(ours.http(), "t").0.len() == 2);
}

/// A small deployment: the node alone answers what consumers ask an nsqlookupd.
#[test]
fn a_node_answers_lookups_itself() {
    let own = node::Ports::free();
    let flag = format!("--lookupd-http-address={}", own.at(0));
    let mut node = Node::start(&["--broadcast-address=127.0.0.1", "--shards=2", &flag]);
    assert_eq!(request(own.at(0), "GET", "/ping").expect("it answers").2, "OK");
    assert_eq!(request(own.at(0), "GET", "/lookup?topic=t").expect("it answers").0, 404);
    assert!(node.post("/pub?topic=t", b"x").is_ok());
    let port = u64::from(node.tcp().port());
    eventually("the topic is found", || found(own.at(0), "t") == (vec![port], vec![]));
    let mut client = Client::connect(node.tcp()).expect("it listens");
    subscribe(&mut client, "e#ephemeral");
    eventually("the channel is found", || found(own.at(0), "t") == (vec![port], vec!["e#ephemeral".into()]));
    drop(client);
    eventually("the channel is gone", || found(own.at(0), "t") == (vec![port], vec![]));
    assert_eq!(get_json(own.at(0), "/topics"), json!({ "topics": ["t"] }));
    assert_eq!(get_json(own.at(0), "/nodes")["producers"][0]["http_port"], node.http().port());
    assert!(node.stop() < Duration::from_secs(20));
    // Topics on disk are found after the next startup.
    node.spawn();
    node.wait_ready().expect("it starts again");
    eventually("the topic is found again", || found(own.at(0), "t") == (vec![port], vec![]));
}

/// Answers of all nodes that run to the same question, once they agree; `holds` says that it is the one that is waited for.
fn agreed(cluster: &Cluster, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut agreed = Value::Null;
    eventually(&format!("all nodes say the same of {path}"), || {
        let up = cluster.nodes.iter().filter(|node| node.is_up());
        let answers: Vec<Value> = up.map(|node| get_json(node.http(), path)).collect();
        agreed = answers[0].clone();
        answers.iter().all(|answer| *answer == agreed) && holds(&agreed)
    });
    agreed
}

/// Each node of a cluster answers for all topics, also for those of which it has no replica; a failover changes the answers.
#[test]
fn any_node_answers_lookups_for_its_cluster_also_after_a_failover() {
    let etcd = Member::start(&FAST);
    let mut cluster = Cluster::start_with_etcd(&[etcd.url()], &["--broadcast-address=127.0.0.1"]);
    let create = "/topic/create?topic=t&partition_num=3&replicator=2&min_isr=1";
    eventually("the topic is created", || cluster.nodes[0].post(create, b"").is_ok_and(|answer| answer.contains("200 OK")));
    let has_all = |answer: &Value| answer["partitions"].as_object().is_some_and(|all| all.len() == 3);
    let found = agreed(&cluster, "/lookup?topic=t&metainfo=true", has_all);
    assert_eq!((&found["meta"]["partition_num"], &found["meta"]["replica"]), (&json!(3), &json!(2)));
    let port = |answer: &Value, partition: &str| answer["partitions"][partition]["tcp_port"].as_u64().expect("a port") as u16;
    let first = port(&found, "0");
    let one = agreed(&cluster, "/lookup?topic=t&partition=0&access=w", |answer| answer["producers"].is_array());
    assert_eq!((one["producers"].as_array().expect("a list").len(), port(&one, "0")), (1, first));
    // Channels of one leader, also of one that no other node has.
    let leader = cluster.nodes.iter().position(|node| node.tcp().port() == first).expect("one of them");
    let mut clients = vec![];
    for channel in ["c", "e#ephemeral"] {
        eventually("the leader takes it", || {
            let mut client = Client::connect(cluster.nodes[leader].tcp()).expect("it listens");
            let is_taken = client.subscribe("t", channel, 1).is_ok();
            clients.push(client);
            is_taken
        });
    }
    agreed(&cluster, "/channels?topic=t", |answer| answer["channels"] == json!(["c", "e#ephemeral"]));
    agreed(&cluster, "/lookup?topic=t", |answer| answer["channels"] == json!(["c", "e#ephemeral"]) && has_all(answer));
    agreed(&cluster, "/topics", |answer| answer["topics"] == json!(["t"]));
    agreed(&cluster, "/nodes", |answer| answer["producers"].as_array().is_some_and(|all| all.len() == 3));
    agreed(&cluster, "/listlookup", |answer| answer["lookupdnodes"].as_array().is_some_and(|all| all.len() == 3));
    for node in &cluster.nodes {
        let (status, _, body) = request(node.http(), "GET", "/lookup?topic=nobody").expect("it answers");
        assert_eq!((status, body.as_str()), (404, r#"{"message":"TOPIC_NOT_FOUND"}"#));
        for bad in ["/lookup", "/lookup?topic=t&access=x", "/lookup?topic=t&partition=x", "/channels"] {
            assert_eq!(request(node.http(), "GET", bad).expect("it answers").0, 400, "{bad}");
        }
    }
    cluster.nodes[leader].kill();
    let is_moved = |answer: &Value| {
        let producers = answer["producers"].as_array().cloned().unwrap_or_default();
        has_all(answer) && !producers.iter().any(|p| p["tcp_port"] == first)
    };
    agreed(&cluster, "/lookup?topic=t", is_moved);
    agreed(&cluster, "/nodes", |answer| answer["producers"].as_array().is_some_and(|all| all.len() == 2));
}

fn post(http: SocketAddr, path: &str, body: &[u8]) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(http).expect("it listens");
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}
