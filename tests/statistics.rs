//! /metrics and statsd, with real processes: what Prometheus scrapes, and what ours and the stock nsqd 1.3.0 push over UDP.

mod node;

use node::stock::{Process, request, stock};
use node::{Client, Node, Ports};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Samples by their series.
fn scrape(http: SocketAddr) -> BTreeMap<String, f64> {
    let (status, head, body) = request(http, "GET", "/metrics").expect("it answers");
    assert_eq!(status, 200, "{head}");
    assert!(head.to_ascii_lowercase().contains("content-type: text/plain; version=0.0.4"), "{head}");
    let samples = body.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').expect("a value"));
    samples.map(|(series, value)| (series.to_owned(), value.parse().expect("a number"))).collect()
}

fn sum(samples: &BTreeMap<String, f64>, name: &str) -> f64 {
    samples.iter().filter(|(series, _)| series.split('{').next() == Some(name)).map(|(_, value)| value).sum()
}

#[test]
fn a_scrape_counts_what_was_done() {
    let node = Node::start(&["--shards=2", "--partitions=3"]);
    let before = scrape(node.http());
    assert_eq!((sum(&before, "ringmq_core_healthy"), sum(&before, "ringmq_topic_depth")), (2.0, 0.0));
    let mut producer = Client::connect(node.tcp()).expect("it listens");
    let mut consumer = Client::connect(node.tcp()).expect("it listens");
    consumer.subscribe("t", "c", 4).expect("it subscribes");
    for i in 0..10 {
        producer.publish("t", format!("{i}").as_bytes()).expect("it takes it");
    }
    assert!(node.post("/pub?topic=t", b"over http").expect("it answers").contains("200 OK"));
    let ids: Vec<[u8; 16]> = (0..4).map(|_| consumer.message().expect("a message").id).collect();
    consumer.finish(&ids[0]).expect("it reads");
    consumer.write(&[&b"REQ "[..], &ids[1], b" 0\nNOP\n"].concat()).expect("it reads");
    consumer.message().expect("another one");
    consumer.message().expect("another one");
    // An error that a client gets.
    let mut wrong = Client::connect(node.tcp()).expect("it listens");
    wrong.write(b"NONSENSE\n").expect("it reads");
    while wrong.read().is_ok() {}
    let after = scrape(node.http());
    let labels = "{topic=\"t\",channel=\"c\"}";
    let of = |name: &str| after[&format!("{name}{labels}")];
    assert_eq!(after["ringmq_topic_messages_total{topic=\"t\"}"], 11.0, "{after:?}");
    assert_eq!(
        (of("ringmq_channel_in_flight"), of("ringmq_channel_clients"), of("ringmq_channel_requeued_total")),
        (4.0, 1.0, 1.0)
    );
    assert_eq!(sum(&after, "ringmq_publish_duration_seconds_count"), 11.0);
    assert_eq!(after["ringmq_http_publish_duration_seconds_count"], 1.0);
    assert!((5.0..=6.0).contains(&sum(&after, "ringmq_delivery_latency_seconds_count")), "first deliveries: {after:?}");
    assert_eq!(after["ringmq_errors_total{kind=\"E_INVALID\"}"], 1.0);
    let journal = |s: &BTreeMap<String, f64>| {
        let is_it = |(series, _): &(&String, &f64)| {
            series.starts_with("ringmq_disk_operation_duration_seconds_count") && series.contains("\"journal_write\"")
        };
        s.iter().filter(is_it).map(|(_, value)| value).sum::<f64>()
    };
    assert!(journal(&after) > journal(&before), "publishes were written");
    for growing in ["ringmq_core_busy_seconds_total", "ringmq_core_turns_total", "ringmq_topic_stored_bytes"] {
        assert!(sum(&after, growing) > sum(&before, growing), "{growing}");
    }
    assert!(after["process_resident_memory_bytes"] > 1e6 && after["ringmq_journal_bytes"] > 1e6);
}

/// Lines that arrive up to one with this end, and in the time of one more push, without their values.
fn pushed(socket: &UdpSocket, last: &str) -> BTreeMap<String, Vec<String>> {
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("not zero");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut packet = [0; 65_536];
    let mut rounds = 0;
    while rounds < 2 {
        let len = socket.recv(&mut packet).expect("it is pushed");
        let text = std::str::from_utf8(&packet[..len]).expect("text");
        assert!(len <= 508 && text.ends_with('\n'), "{len}: {text}");
        for line in text.lines() {
            let (name, value) = line.split_once(':').expect("a value");
            rounds += usize::from(name.ends_with(last));
            found.entry(name.to_owned()).or_default().push(value.to_owned());
        }
    }
    found
}

/// Names as both have them: the port in the prefix differs.
fn names(found: &BTreeMap<String, Vec<String>>, port: u16) -> BTreeSet<(String, String)> {
    let kind = |values: &[String]| values[0].rsplit('|').next().expect("a type").to_owned();
    found.iter().map(|(name, values)| (name.replace(&port.to_string(), "PORT"), kind(values))).collect()
}

#[test]
fn statsd_gets_what_nsqd_pushes() {
    for ephemeral in ["false", "true"] {
        let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
        let flags = |socket: &UdpSocket| {
            let address = socket.local_addr().expect("bound");
            // nsqd 1.3.0 panics with an interval of one second.
            [
                format!("--statsd-address={address}"),
                "--statsd-interval=2s".into(),
                "--e2e-processing-latency-percentile=0.99,0.5".into(),
                format!("--statsd-exclude-ephemeral={ephemeral}"),
                "--broadcast-address=127.0.0.1".into(),
            ]
        };
        let own = flags(&sockets[0]);
        let node = Node::start(&[&["--shards=2", "--partitions=2"][..], &own.each_ref().map(String::as_str)].concat());
        let ports = Ports::free();
        let mut args =
            vec![format!("--tcp-address={}", ports.at(0)), format!("--http-address={}", ports.at(1)), "--log-level=error".into()];
        args.extend(flags(&sockets[1]));
        let mut theirs = Process::start(&stock("nsqd"), args);
        theirs.wait_listening(ports.at(1));
        for http in [node.http(), ports.at(1)] {
            for path in [
                "/topic/create?topic=t",
                "/topic/create?topic=e%23ephemeral",
                "/channel/create?topic=t&channel=c",
                "/channel/create?topic=t&channel=c%23ephemeral",
            ] {
                assert_eq!(request(http, "POST", path).expect("it answers").0, 200, "{path}");
            }
        }
        let ours = pushed(&sockets[0], "topic.t.channel.c.depth");
        let stock = pushed(&sockets[1], "topic.t.channel.c.depth");
        let (ours_names, stock_names) = (names(&ours, node.http().port()), names(&stock, ports.at(1).port()));
        assert_eq!(ours_names, stock_names, "ours, then nsqd's");
        assert_eq!(ours_names.iter().any(|(name, _)| name.contains("#ephemeral")), ephemeral == "false");
        let own = format!("nsq.127_0_0_1_{}.topic.t.message_count", node.http().port());
        let counts = |found: &BTreeMap<String, Vec<String>>| {
            found[&own].iter().filter_map(|v| v.strip_suffix("|c")?.parse::<u64>().ok()).sum::<u64>()
        };
        assert_eq!(counts(&ours), 0);
        for _ in 0..3 {
            assert!(node.post("/pub?topic=t", b"x").expect("it answers").contains("200 OK"));
        }
        assert_eq!(counts(&pushed(&sockets[0], "topic.t.channel.c.depth")), 3, "what it grew by, once");
    }
}

/// The time from publish to FIN has the count and the percentiles that nsqd's has. Which times they are depends on the machine.
#[test]
fn percentiles_are_shown_as_nsqd_shows_them() {
    let flags = ["--e2e-processing-latency-percentile=0.5,1.0", "--e2e-processing-latency-percentile=0.99"];
    let node = Node::start(&[&["--shards=2", "--partitions=2"][..], &flags].concat());
    let ports = Ports::free();
    let addresses = [format!("--tcp-address={}", ports.at(0)), format!("--http-address={}", ports.at(1))];
    let mut nsqd = Process::start(&stock("nsqd"), addresses.iter().map(String::as_str).chain(flags));
    nsqd.wait_listening(ports.at(1));
    let shown = |http: SocketAddr| {
        let stats = node::stock::get_json(http, "/stats?format=json");
        let topic = stats["topics"].as_array().expect("topics").iter().find(|t| t["topic_name"] == "t").expect("t").clone();
        [topic["e2e_processing_latency"].clone(), topic["channels"][0]["e2e_processing_latency"].clone()]
    };
    let without_values = |mut shown: [serde_json::Value; 2]| {
        for one in &mut shown {
            for percentile in one["percentiles"].as_array_mut().expect("percentiles") {
                percentile["value"] = u64::from(percentile["value"].as_f64().expect("a number") > 0.0).into();
            }
        }
        shown.map(|one| one.to_string())
    };
    let both = [(node.tcp(), node.http()), (ports.at(0), ports.at(1))];
    for (tcp, http) in both {
        let mut client = Client::connect(tcp).expect("it listens");
        client.subscribe("t", "c", 3).expect("it subscribes");
        let mut producer = Client::connect(tcp).expect("it listens");
        for _ in 0..7 {
            producer.publish("t", b"x").expect("it takes it");
            let message = client.message().expect("the message");
            client.finish(&message.id).expect("it reads");
        }
        node::stock::eventually("all are counted", || shown(http)[1]["count"] == 7);
    }
    let [ours, theirs] = both.map(|(_, http)| without_values(shown(http)));
    assert_eq!(ours, theirs, "ours, then nsqd's");
    assert!(ours[0].contains("\"count\":7") && ours[1].contains("{\"quantile\":0.99,\"value\":1}"), "{ours:?}");
    let (_, _, text) = request(node.http(), "GET", "/stats").expect("it answers");
    let line = text.lines().find(|line| line.contains("[c ")).expect("the channel");
    let times: Vec<&str> = line.split("e2e%: ").nth(1).expect("percentiles").split(", ").collect();
    assert!(times.len() == 3 && times.iter().all(|time| time.ends_with('s')), "{line}");
}
