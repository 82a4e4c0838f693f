//! A full disk, and a failing one, under the real binary: publishers hear of it, everybody else goes on (rule 10).
//!
//! Each test has a small file system of its own and fills it with messages. Every acknowledged message must arrive, whatever happens in
//! between. Nothing here measures time: limits only tell a slow machine from a hang.

mod node;

use node::small_disk::SmallDisk;
use node::{Client, Frame, Node};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const HANG: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// The most that a consumer may ask for.
const RDY: u32 = 2500;

const FLAGS: [&str; 4] = ["--shards=2", "--journal-bytes=1MiB", "--max-bytes-per-file=1MiB", "--pub-waiting-timeout=60s"];
/// Confirmed messages stay: the disk stays full.
const KEEPING: [&str; 5] = [FLAGS[0], FLAGS[1], FLAGS[2], FLAGS[3], "--retention=24h"];

/// Published messages of a topic, and the acknowledged ones among them.
struct Topic {
    name: String,
    sent: u64,
    acked: HashSet<Vec<u8>>,
}

/// Reason why a publish was refused.
#[derive(Debug)]
enum Refused {
    Full,
    Other(String),
}

impl Topic {
    fn new(name: &str) -> Topic {
        Topic { name: name.into(), sent: 0, acked: HashSet::new() }
    }

    fn body(&mut self, len: usize) -> Vec<u8> {
        self.sent += 1;
        let mut body = format!("{} {} ", self.name, self.sent).into_bytes();
        let fill = self.sent as u8;
        body.resize(len.max(body.len()), fill);
        body
    }

    fn is_ours(&self, body: &[u8]) -> bool {
        let text = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let mut words = text.split(' ');
        let number = words.next().filter(|name| *name == self.name).and_then(|_| words.next()?.parse::<u64>().ok());
        number.is_some_and(|n| n <= self.sent && body.last().is_some_and(|&b| b == n as u8 || b == b' '))
    }

    /// Publishes one message over a connection of its own, since a refusal ends it.
    fn publish(&mut self, node: &Node, len: usize) -> Result<(), Refused> {
        let mut client = connect(node);
        self.publish_on(&mut client, len)
    }

    fn publish_on(&mut self, client: &mut Client, len: usize) -> Result<(), Refused> {
        let body = self.body(len);
        match client.publish(&self.name, &body) {
            Ok(()) => {
                self.acked.insert(body);
                Ok(())
            }
            Err(error) => {
                let error = error.to_string();
                let is_clear = error.contains("E_PUB_FAILED PUB failed") && error.contains("disk is full");
                Err(if is_clear { Refused::Full } else { Refused::Other(error) })
            }
        }
    }

    fn publish_http(&mut self, node: &Node, len: usize) -> Result<(), Refused> {
        let body = self.body(len);
        let answer = node.post(&format!("/pub?topic={}", self.name), &body).map_err(|e| Refused::Other(e.to_string()))?;
        if answer.starts_with("HTTP/1.1 200") {
            self.acked.insert(body);
            return Ok(());
        }
        let is_clear = answer.starts_with("HTTP/1.1 507") && answer.contains("disk is full");
        Err(if is_clear { Refused::Full } else { Refused::Other(answer) })
    }

    /// Publishes until the disk is full, and says so again. Some go through the journal, some straight to a segment.
    fn fill(&mut self, node: &Node) {
        let mut client = connect(node);
        self.fill_by(|topic, len| {
            let result = topic.publish_on(&mut client, len);
            if result.is_err() {
                client = connect(node);
            }
            result
        });
    }

    fn fill_by(&mut self, mut publish: impl FnMut(&mut Topic, usize) -> Result<(), Refused>) {
        let began = Instant::now();
        let mut refusals = 0;
        for len in [30_000, 60_000, 500, 200_000].into_iter().cycle() {
            match publish(self, len) {
                Ok(()) => refusals = 0,
                Err(Refused::Full) => refusals += 1,
                Err(Refused::Other(error)) => panic!("{}: not a clear error: {error}", self.name),
            }
            if refusals >= 8 {
                return;
            }
            assert!(began.elapsed() < HANG, "the disk does not get full");
        }
    }

    /// Publishes again and again until one is taken: a large one, that no space left over from before can hold.
    fn resumes(&mut self, node: &Node) {
        let began = Instant::now();
        loop {
            match self.publish(node, 60_000) {
                Ok(()) => return,
                Err(Refused::Full) => {}
                Err(Refused::Other(error)) => panic!("{}: not a clear error: {error}", self.name),
            }
            assert!(began.elapsed() < HANG, "{}: there is room, and no publish is taken\n{}", self.name, stats(node));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Creates the topic, and a channel at its beginning for each name.
    fn with_channels(name: &str, node: &Node, channels: &[&str]) -> Topic {
        let topic = Topic::new(name);
        for channel in channels {
            connect(node).subscribe(&topic.name, channel, 1).expect("there is room");
        }
        topic
    }

    /// Everything acknowledged arrives on the channel, nothing is invented; confirms it if wanted.
    fn consume(&self, node: &Node, channel: &str, finish: bool) {
        let mut client = connect(node);
        assert!(
            self.acked.len() < RDY as usize / 2,
            "{} messages: what is not confirmed would hold up the rest",
            self.acked.len()
        );
        client.subscribe(&self.name, channel, RDY).unwrap_or_else(|e| panic!("SUB {} {channel}: {e}", self.name));
        let mut missing: HashSet<&[u8]> = self.acked.iter().map(Vec::as_slice).collect();
        while !missing.is_empty() {
            let message = client.message().unwrap_or_else(|e| {
                panic!("{} {channel}: {e}: {} of {} are missing\n{}", self.name, missing.len(), self.acked.len(), stats(node))
            });
            assert!(self.is_ours(&message.body), "{} {channel}: nobody sent this", self.name);
            missing.remove(message.body.as_slice());
            if finish {
                client.finish(&message.id).expect("it reads");
            }
        }
        if finish {
            self.confirmed(node, channel);
        }
    }

    /// Waits until no message is left on the channel.
    fn confirmed(&self, node: &Node, channel: &str) {
        let began = Instant::now();
        while self.depth(node, channel) != Some(0) {
            assert!(began.elapsed() < HANG, "{} {channel}: FINs were not accepted\n{}", self.name, stats(node));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn depth(&self, node: &Node, channel: &str) -> Option<u64> {
        let answer = node.get(&format!("/stats?format=json&topic={}&channel={channel}", self.name)).expect("it answers HTTP");
        let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP has a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        let json: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"));
        let found = &json["topics"][0]["channels"][0];
        Some(found["depth"].as_u64()? + found["in_flight_count"].as_u64()?)
    }
}

/// Publishes to one after the other until each was refused twice in a row.
fn fill_in_turns(topics: &mut [Topic], node: &Node, len: usize) {
    let began = Instant::now();
    let mut refusals = 0;
    for n in (0..topics.len()).cycle() {
        match topics[n].publish(node, len) {
            Ok(()) => refusals = 0,
            Err(Refused::Full) => refusals += 1,
            Err(Refused::Other(error)) => panic!("{}: not a clear error: {error}", topics[n].name),
        }
        if refusals >= 2 * topics.len() {
            return;
        }
        assert!(began.elapsed() < HANG, "the disk does not get full");
    }
}

fn connect(node: &Node) -> Client {
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    client.set_read_timeout(HANG).expect("not zero");
    client
}

fn stats(node: &Node) -> String {
    node.get("/stats").unwrap_or_else(|e| e.to_string())
}

fn assert_answers(node: &Node) {
    let ping = node.get("/ping").expect("it answers HTTP");
    assert!(ping.starts_with("HTTP/1.1 500") && ping.contains("NOK - ") && ping.contains("disk is full"), "{ping}");
    let stats = node.get("/stats?format=json").expect("it answers HTTP");
    assert!(stats.starts_with("HTTP/1.1 200"), "{stats}");
}

/// `spare_bytes` of /stats comes to be what lies in `spare/`, which is something.
fn assert_says_what_it_keeps(node: &Node) {
    let began = Instant::now();
    loop {
        let answer = node.get("/stats?format=json").expect("it answers HTTP");
        let json: serde_json::Value =
            answer.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).expect("JSON");
        let files = std::fs::read_dir(node.data_path().join("spare")).into_iter().flatten();
        let kept: u64 = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum();
        if kept > 0 && json["spare_bytes"] == kept {
            return;
        }
        assert!(began.elapsed() < HANG, "{kept} bytes are kept, and /stats says {}", json["spare_bytes"]);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether /ping comes to say that the disk is full, within what a startup takes to ask for space.
fn says_full(node: &Node) -> bool {
    let began = Instant::now();
    loop {
        let ping = node.get("/ping").expect("it answers HTTP");
        if ping.contains("disk is full") {
            assert!(ping.starts_with("HTTP/1.1 500"), "{ping}");
            return true;
        }
        assert!(ping.starts_with("HTTP/1.1 200"), "{ping}");
        if began.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `serve` on whatever is there; must be ready in time.
fn restart(node: &mut Node) {
    node.spawn();
    node.wait_ready().unwrap_or_else(|error| panic!("it does not start on the full disk: {error}"));
}

#[test]
fn publishers_hear_of_it_and_everybody_else_goes_on() {
    let disk = SmallDisk::new(40 * MIB);
    let mut node = disk.node(&KEEPING);
    let mut tcp = Topic::with_channels("over-tcp", &node, &["early", "all", "rest"]);
    let mut http = Topic::with_channels("over-http", &node, &["all", "rest"]);
    let mut early = connect(&node);
    early.subscribe(&tcp.name, "early", 1).expect("there is room");
    tcp.publish(&node, 5000).expect("there is room");
    http.publish_http(&node, 5000).expect("there is room");
    tcp.fill(&node);
    http.fill_by(|topic, len| topic.publish_http(&node, len));
    assert!(tcp.acked.len() > 100, "only {} messages", tcp.acked.len());
    assert_answers(&node);

    for _ in 0..20 {
        let message = early.message().expect("consumers go on");
        early.finish(&message.id).expect("consumers go on");
    }
    drop(early);
    tcp.consume(&node, "all", true);
    http.consume(&node, "all", true);
    assert_answers(&node);

    // New topics and channels: clear errors or success.
    for n in 0..20 {
        let mut new = Topic::new(&format!("new-{n}"));
        let result = if n % 2 == 0 { new.publish(&node, 20) } else { new.publish_http(&node, 20) };
        if let Err(Refused::Other(error)) = &result {
            panic!("not a clear error: {error}");
        }
        for name in [&new.name, &tcp.name] {
            let mut client = connect(&node);
            client.write(format!("SUB {name} c{n}\n").as_bytes()).expect("it reads");
            match client.read() {
                Ok(Frame::Response(text)) if text == b"OK" => {}
                Ok(Frame::Error(text)) if text.starts_with("E_SUB_FAILED") => {}
                other => panic!("SUB to a new channel: {other:?}"),
            }
        }
        if result.is_ok() {
            new.consume(&node, &format!("c{n}"), true);
        }
    }
    assert_answers(&node);

    // Messages that were confirmed on the full disk stay confirmed, all others come.
    let took = node.stop();
    assert!(took < STOP_LIMIT, "it took {took:?} to stop");
    restart(&mut node);
    assert_eq!(tcp.depth(&node, "all"), Some(0));
    assert_eq!(http.depth(&node, "all"), Some(0));
    tcp.consume(&node, "rest", true);
    http.consume(&node, "rest", true);
}

#[test]
fn publishing_resumes_when_retention_makes_room() {
    let disk = SmallDisk::new(32 * MIB);
    let node = disk.node(&FLAGS);
    let mut topic = Topic::with_channels("retained", &node, &["a", "b"]);
    topic.fill(&node);
    topic.consume(&node, "a", true);
    assert!(matches!(topic.publish(&node, 30_000), Err(Refused::Full)), "one channel still needs all of it");
    topic.consume(&node, "b", true);
    topic.resumes(&node);
    // It is no last twitch: the same again.
    topic.acked.clear();
    topic.fill(&node);
    assert!(topic.acked.len() > 100, "only {} messages in the second round", topic.acked.len());
    topic.consume(&node, "a", true);
    topic.consume(&node, "b", true);
    topic.resumes(&node);
}

#[test]
fn stats_say_how_much_is_kept_for_new_segments() {
    let disk = SmallDisk::new(32 * MIB);
    let node = disk.node(&FLAGS);
    let mut topic = Topic::with_channels("kept", &node, &["a"]);
    (0..80).for_each(|_| topic.publish(&node, 60_000).expect("there is room"));
    topic.consume(&node, "a", true);
    assert_says_what_it_keeps(&node);
}

/// A checkpoint has more to write than its room holds, for more topics than are flushed side by side.
#[test]
fn many_topics_that_find_no_room_hold_up_nobody_and_no_stop() {
    let disk = SmallDisk::new(40 * MIB);
    // Each new channel takes two blocks of the journal, and the journal is not freed on the full disk.
    let mut node = disk.node(&["--shards=1", "--journal-bytes=16MiB", KEEPING[2], KEEPING[3], KEEPING[4]]);
    let mut topics: Vec<Topic> = (0..24).map(|n| Topic::with_channels(&format!("many-{n}"), &node, &["a"])).collect();
    topics.iter_mut().for_each(|topic| topic.publish(&node, 20_000).expect("there is room"));
    let filler = disk.filler("filler", u64::MAX);
    fill_in_turns(&mut topics, &node, 20_000);
    assert_answers(&node);
    for topic in &topics {
        for n in 0..40 {
            connect(&node)
                .subscribe(&topic.name, &format!("a-channel-with-a-name-that-takes-some-room-{n}"), 1)
                .expect("it takes no room");
        }
    }
    topics.iter().for_each(|topic| topic.consume(&node, "a", false));
    let took = node.stop();
    assert!(took < STOP_LIMIT, "it took {took:?} to stop");
    restart(&mut node);
    topics.iter().for_each(|topic| topic.consume(&node, "a", false));
    std::fs::remove_file(filler).expect("it is there");
    topics.iter_mut().for_each(|topic| topic.resumes(&node));
    topics.iter().for_each(|topic| topic.consume(&node, "a", true));
}

/// The journal can hold no more, since no checkpoint finds room for what it would write.
#[test]
fn nobody_waits_for_a_journal_that_a_full_disk_keeps_full() {
    let disk = SmallDisk::new(32 * MIB);
    let node = disk.node(&["--shards=1", KEEPING[1], KEEPING[2], KEEPING[3], KEEPING[4]]);
    let mut topic = Topic::with_channels("crowded", &node, &["a", "b"]);
    topic.publish(&node, 20_000).expect("there is room");
    let filler = disk.filler("filler", u64::MAX);
    topic.fill(&node);
    let subscribe = |n: usize| connect(&node).subscribe("crowded", &format!("a-channel-with-a-name-that-takes-some-room-{n}"), 1);
    let refused = (0..2000).find_map(|n| subscribe(n).err()).expect("the journal has room for two hundred");
    assert!(refused.to_string().contains("E_SUB_FAILED") && refused.to_string().contains("disk is full"), "{refused}");
    let answer = node.post("/channel/create?topic=crowded&channel=another", b"").expect("it answers HTTP");
    assert!(answer.starts_with("HTTP/1.1 507") && answer.contains("disk is full"), "{answer}");
    assert!(matches!(Topic::new("new").publish(&node, 100), Err(Refused::Full)));
    // An operator's change may be what makes room: it is taken longer.
    let pause = || node.post("/channel/pause?topic=crowded&channel=b", b"").expect("it answers HTTP");
    let refused = (0..2000).map(|n| (n, pause())).find(|(_, answer)| !answer.starts_with("HTTP/1.1 200"));
    let (n, answer) = refused.expect("the journal has room for some");
    assert!(n > 0 && answer.starts_with("HTTP/1.1 507") && answer.contains("disk is full"), "after {n}: {answer}");
    // The channels that are there go on.
    topic.consume(&node, "a", true);
    connect(&node).subscribe("crowded", "of-a-moment#ephemeral", 1).expect("it needs no room");
    std::fs::remove_file(filler).expect("it is there");
    topic.resumes(&node);
    let began = Instant::now();
    while let Err(error) = connect(&node).subscribe("crowded", "another", 1) {
        assert!(began.elapsed() < HANG, "there is room, and no channel is taken: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn topics_that_end_within_their_first_segment_do_not_lock_the_disk() {
    let disk = SmallDisk::new(32 * MIB);
    // As by default: a segment is larger than what each of many topics has.
    let node = disk.node(&[FLAGS[0], FLAGS[1], FLAGS[3], "--max-bytes-per-file=128MiB"]);
    let mut topics: Vec<Topic> = (0..6).map(|n| Topic::with_channels(&format!("short-{n}"), &node, &["a"])).collect();
    fill_in_turns(&mut topics, &node, 50_000);
    topics.iter().for_each(|topic| topic.consume(&node, "a", true));
    for topic in &mut topics {
        topic.resumes(&node);
    }
    for _ in 0..100 {
        topics[0].resumes(&node);
    }
}

#[test]
fn publishing_resumes_when_another_file_goes() {
    let disk = SmallDisk::new(32 * MIB);
    let node = disk.node(&KEEPING);
    let filler = disk.filler("filler", 8 * MIB);
    let mut topics = ["one", "two"].map(|name| Topic::with_channels(name, &node, &["a"]));
    topics[0].fill(&node);
    topics[1].fill(&node);
    std::fs::remove_file(filler).expect("it is there");
    topics[0].resumes(&node);
    topics[1].resumes(&node);
    topics.iter().for_each(|topic| topic.consume(&node, "a", true));
}

#[test]
fn a_node_that_is_killed_on_a_full_disk_starts_on_it() {
    let disk = SmallDisk::new(32 * MIB);
    let mut node = disk.node(&KEEPING);
    let spare = disk.filler("spare", 6 * MIB);
    let mut topics = ["one", "two", "three"].map(|name| Topic::with_channels(name, &node, &["a", "b"]));
    topics.iter_mut().for_each(|topic| topic.publish(&node, 10_000).expect("there is room"));
    for round in 0..4 {
        for topic in &mut topics {
            topic.fill(&node);
        }
        if round == 2 {
            // From here on nothing at all can be allocated.
            disk.filler("filler", u64::MAX);
            assert!(disk.free_bytes() < 4096, "{} bytes are left", disk.free_bytes());
        }
        // In the middle of what it does with new topics and channels, too.
        let mut client = connect(&node);
        client.write(format!("SUB three new-{round}\n").as_bytes()).expect("it reads");
        let mut client = connect(&node);
        client.write(format!("SUB new-{round} c\n").as_bytes()).expect("it reads");
        node.kill();
        restart(&mut node);
        // It finds out by itself, before anybody publishes; and where it says OK, there is room.
        if !says_full(&node) {
            for topic in &mut topics {
                topic
                    .publish(&node, 500)
                    .unwrap_or_else(|e| panic!("{}: /ping said OK, and there is no room: {e:?}", topic.name));
            }
        }
        for topic in &topics {
            topic.consume(&node, "a", false);
        }
        let took = node.stop();
        assert!(took < STOP_LIMIT, "it took {took:?} to stop");
        restart(&mut node);
    }
    for topic in &mut topics {
        topic.consume(&node, "a", true);
        topic.consume(&node, "b", true);
    }
    // The room comes back, and all of it works as before.
    std::fs::remove_file(spare).expect("it is there");
    topics.iter_mut().for_each(|topic| topic.resumes(&node));
    let stopped = node.stop();
    assert!(stopped < STOP_LIMIT, "it took {stopped:?} to stop");
    restart(&mut node);
    topics.iter().for_each(|topic| assert_eq!(topic.depth(&node, "a"), Some(1)));
}

#[test]
fn a_failing_journal_makes_the_node_read_only_until_a_restart() {
    // The journals on a disk of their own: the segments stay readable.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable");
    let journals = data.path().join("journal");
    std::fs::create_dir(&journals).expect("the folder is writable");
    let mut disk = SmallDisk::new_at(16 * MIB, &journals);
    let mut node = Node::start_at(Some(data.path().to_owned()), &["--shards=1", FLAGS[1], FLAGS[2], "--tail-cache-bytes=1MiB"]);
    let mut topic = Topic::with_channels("journaled", &node, &["a", "b"]);
    for n in 0..200 {
        topic.publish(&node, 20_000 + n).expect("all is well");
    }
    let mut consumer = connect(&node);
    consumer.subscribe(&topic.name, "a", 1).expect("all is well");
    disk.fail();

    let mut is_unknown = false;
    for n in 0..20 {
        let answer = if n % 2 == 0 { topic.publish(&node, 1000) } else { topic.publish_http(&node, 1000) };
        match answer {
            Err(Refused::Other(error)) if error.contains("E_PUB_FAILED") || error.contains("HTTP/1.1 50") => {
                is_unknown |= n > 0 && !error.contains("read-only");
            }
            other => panic!("a publish without a journal: {other:?}"),
        }
    }
    assert!(!is_unknown, "after the first, it is clear that nothing is stored");
    let log = node.log();
    assert!(log.contains("the core takes no publish until a restart"), "no clear line in the log:\n{log}");
    let ping = node.get("/ping").expect("it answers HTTP");
    assert!(ping.starts_with("HTTP/1.1 500"), "/ping must tell: {ping}");

    // A consumer goes on to the end, over what is in memory and what is not; a FIN is taken.
    let mut seen = HashSet::new();
    while !topic.acked.iter().all(|body| seen.contains(body)) {
        let message = consumer.message().expect("consumers go on");
        consumer.finish(&message.id).expect("it reads");
        seen.insert(message.body);
    }
    assert!(seen.iter().all(|body| topic.is_ours(body)), "nobody sent this");
    // Another that comes now, to a channel that is there.
    topic.consume(&node, "b", false);
    drop(consumer);

    node.kill();
    disk.unmount().expect("nothing has a file of it open");
    disk.mount();
    node.spawn();
    node.wait_ready().unwrap_or_else(|error| panic!("it does not recover: {error}"));
    topic.consume(&node, "b", true);
    topic.acked.clear();
    topic.resumes(&node);
    topic.consume(&node, "b", true);
    node.kill();
}
