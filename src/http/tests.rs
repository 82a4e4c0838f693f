//! The HTTP room against cores that are a thread each and answer as they are told.

mod limits;

use super::{HttpServer, HttpWake, Listeners, LogLevel, NodeHandles};
use crate::base::{CoreId, LogId, Position, TopicId, TopicInfo};
use crate::config::Settings;
use crate::mesh::{Port, Wake, mesh};
use crate::metrics::stats::{PartitionStats, ShardStats};
use crate::{
    codec::native::Start,
    seam::{
        message::{ChannelChange, MeshMessage},
        outcome::{AcceptLossError, PublishError, SetOffsetError, Unwritable},
    },
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Kept space of the fake node.
const SPARE_BYTES: u64 = 12_345;

/// Behaviour and observations of the fake cores.
#[derive(Default)]
struct World {
    publish_error: Option<PublishError>,
    mute: bool,
    sick: bool,
    partitions: u16,
    /// Channels that were set: partition, place, forced.
    set: Vec<(u16, Start, bool)>,
    /// Stretches that were finished: partition, first, place behind the last.
    finished: Vec<(u16, LogId, Start)>,
    set_error: Option<(u16, SetOffsetError)>,
    ordered: Vec<(u16, bool)>,
    /// Changes by operators, and why a partition refuses them.
    changed: Vec<(u16, ChannelChange)>,
    change_errors: BTreeMap<u16, SetOffsetError>,
    /// Name of the loss.
    loss: Option<String>,
    /// Bodies by (topic, partition), in order.
    stored: BTreeMap<(String, u16), Vec<Vec<u8>>>,
    publishes: usize,
    /// Delays of publishes, in order.
    delays_ms: Vec<u64>,
}

/// A log that only knows its level.
struct Level(Mutex<&'static str>);

impl Default for Level {
    fn default() -> Self {
        Level(Mutex::new("info"))
    }
}

impl LogLevel for Level {
    fn get(&self) -> &'static str {
        *self.0.lock().expect("nobody panics with it")
    }

    fn set(&self, level: &str) -> Result<(), String> {
        *self.0.lock().expect("nobody panics with it") = if level == "debug" { "debug" } else { "warn" };
        Ok(())
    }
}

struct ThreadWake(Thread);

impl Wake for ThreadWake {
    fn wake(&self) {
        self.0.unpark();
    }
}

struct Cores {
    world: Arc<Mutex<World>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    server: HttpServer,
    address: SocketAddr,
}

fn answer(core: u16, cores: u16, world: &mut World, message: MeshMessage) -> Option<MeshMessage> {
    match message {
        _ if world.mute => None,
        MeshMessage::EnsureTopic { ticket, name, .. } => {
            let partitions = world.partitions.max(1);
            Some(MeshMessage::Topic { ticket, result: Ok(Arc::new(TopicInfo { name, id: TopicId([1; 16]), partitions })) })
        }
        MeshMessage::FindTopic { ticket, name } => {
            let partitions = world.partitions.max(1);
            let info = || Arc::new(TopicInfo { name: name.clone(), id: TopicId([1; 16]), partitions });
            let result = if &*name == "unknown" { Err(PublishError::NoTopic) } else { Ok(info()) };
            Some(MeshMessage::Topic { ticket, result })
        }
        MeshMessage::SetOffset { ticket, set } => {
            assert_eq!(set.topic.core_of(set.partition, cores), CoreId(core), "asked the partition's core");
            let p = set.partition.0;
            let result = match world.set_error {
                Some((at, error)) if at == p => Err(error),
                _ => Ok(Position { offset: 100 + p as i64, count: p as i64, log_id: LogId(1 + p as u64) }),
            };
            if result.is_ok() {
                world.set.push((p, set.to, set.force));
                world.finished.extend(set.from.map(|from| (p, from, set.to)));
            }
            Some(MeshMessage::OffsetSet { ticket, result })
        }
        MeshMessage::SetOrder { ticket, set } => {
            assert_eq!(set.topic.core_of(set.partition, cores), CoreId(core), "asked the partition's core");
            let p = set.partition.0;
            let result = match world.set_error {
                Some((at, error)) if at == p => Err(error),
                _ => {
                    world.ordered.push((p, set.ordered));
                    Ok(())
                }
            };
            Some(MeshMessage::OrderSet { ticket, result })
        }
        MeshMessage::ChangeChannel { ticket, set } => {
            assert_eq!(set.topic.core_of(set.partition, cores), CoreId(core), "asked the partition's core");
            let p = set.partition.0;
            let result = match world.change_errors.get(&p) {
                Some(error) => Err(*error),
                None => {
                    world.changed.push((p, set.change));
                    Ok(set.change == ChannelChange::Create { first: None, is_alone: false })
                }
            };
            Some(MeshMessage::ChannelChanged { ticket, result })
        }
        MeshMessage::AcceptLoss { ticket, topic, partition, loss } => {
            assert_eq!(topic.core_of(partition, cores), CoreId(core), "asked the partition's core");
            let result = match &world.loss {
                None => Err(AcceptLossError::Nothing { role: "follower" }),
                named if *named == loss => Ok("all of it".into()),
                Some(name) => Err(AcceptLossError::NotNamed { name: name.clone(), what: "much".into() }),
            };
            Some(MeshMessage::LossAccepted { ticket, result })
        }
        MeshMessage::Publish { ticket, topic, partition, bodies } => {
            assert_eq!(topic.core_of(partition, cores), CoreId(core), "asked the partition's core");
            world.publishes += 1;
            world.delays_ms.push(bodies.delay_ms);
            let result = world.publish_error.map_or(Ok(()), Err);
            if result.is_ok() {
                let log = world.stored.entry((topic.name.to_string(), partition.0)).or_default();
                log.extend(bodies.iter().map(<[u8]>::to_vec));
            }
            Some(MeshMessage::Published { ticket, result })
        }
        MeshMessage::StatsRequest { ticket, topic, .. } => {
            let own = world.stored.iter().filter(|((name, _), _)| topic.as_ref().is_none_or(|t| **t == **name));
            let partitions = if core > 0 { Vec::new() } else { own.map(partition_stats).collect() };
            let healthy = !(world.sick && core == 1);
            let health = if healthy { String::new() } else { "core 1: the journal failed".into() };
            let stats = ShardStats { core, connections: 1, partitions, healthy, health, ..ShardStats::default() };
            Some(MeshMessage::Stats { ticket, stats: Box::new(stats) })
        }
        other => panic!("HTTP sends no {other:?}"),
    }
}

fn partition_stats(((topic, partition), log): (&(String, u16), &Vec<Vec<u8>>)) -> PartitionStats {
    let (count, bytes) = (log.len() as u64, log.iter().map(Vec::len).sum::<usize>() as u64);
    let (topic, partition) = (topic.clone(), *partition);
    PartitionStats {
        topic,
        partition,
        depth: count,
        paused: false,
        message_count: count,
        message_bytes: bytes,
        stored_bytes: bytes,
        unreadable: None,
        channels_lost: None,
        replication: None,
        channels: Vec::new(),
    }
}

impl Cores {
    fn start(settings: Settings) -> Self {
        const CORES: u16 = 2;
        let world = Arc::new(Mutex::new(World::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (ports, mut http_port) = mesh(CORES);
        let http_wake = Arc::new(HttpWake::default());
        let (threads, wakes): (Vec<_>, Vec<_>) = ports
            .into_iter()
            .enumerate()
            .map(|(core, port)| {
                let (world, stop, wake) = (world.clone(), stop.clone(), http_wake.clone());
                let thread = std::thread::spawn(move || run_core(core as u16, CORES, port, &world, &stop, wake));
                let waker: Arc<dyn Wake> = Arc::new(ThreadWake(thread.thread().clone()));
                (thread, waker)
            })
            .unzip();
        http_port.connect_wakers(&wakes, http_wake.clone());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let server = HttpServer::start(
            &settings,
            Listeners { http: Some(listener), lookups: None, https: None },
            CORES,
            4150,
            http_port,
            http_wake,
            NodeHandles { spare_bytes: Box::new(|| SPARE_BYTES), log_level: Box::new(Level::default()), hub: None },
        )
        .expect("it is given all");
        Cores { world, stop, threads, server, address }
    }

    fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.world.lock().expect("no test panics while it holds it")
    }

    fn send(&self, request: &[u8]) -> CoreAnswer {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        // It may answer, and close, before it has taken everything.
        let _ = stream.write_all(request);
        CoreAnswer::read(stream)
    }

    fn get(&self, path: &str) -> CoreAnswer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
    }

    fn post(&self, path: &str, body: &[u8]) -> CoreAnswer {
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        self.send(&[head.as_bytes(), body].concat())
    }

    fn stop(self) {
        self.server.stop();
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.thread().unpark();
            thread.join().expect("a core does not panic");
        }
    }
}

fn run_core(core: u16, cores: u16, mut port: Port, world: &Mutex<World>, stop: &AtomicBool, http: Arc<HttpWake>) {
    // Wakers of the other cores are not needed here; the HTTP thread is woken by hand.
    while !stop.load(Ordering::Relaxed) {
        let mut answers = Vec::new();
        port.drain(&mut |from, message| {
            let mut world = world.lock().expect("no test panics while it holds it");
            answers.extend(answer(core, cores, &mut world, message).map(|a| (from, a)));
        });
        if answers.is_empty() {
            std::thread::park_timeout(Duration::from_millis(50));
            continue;
        }
        answers.into_iter().for_each(|(to, a)| port.send(to, a));
        port.flush();
        http.wake();
    }
}

#[derive(Debug)]
struct CoreAnswer {
    status: u16,
    head: String,
    body: String,
}

impl CoreAnswer {
    fn read(mut stream: TcpStream) -> CoreAnswer {
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("not zero");
        let mut bytes = Vec::new();
        // A reset after the answer is as good as its end.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0);
        CoreAnswer { status, head: head.to_string(), body: body.to_string() }
    }

    fn is(&self, status: u16, message: &str) {
        assert_eq!((self.status, self.body.as_str()), (status, format!("{{\"message\":\"{message}\"}}").as_str()), "{self:?}");
    }
}

fn small() -> Settings {
    Settings { max_msg_size: 64, max_body_size: 256, ..Settings::default() }
}

#[test]
fn publishes_reach_the_partitions_in_turn() {
    let cores = Cores::start(small());
    cores.world().partitions = 3;
    for n in 0..6 {
        let answer = cores.post("/pub?topic=t", format!("m{n}").as_bytes());
        assert_eq!((answer.status, answer.body.as_str()), (200, "OK"), "{answer:?}");
    }
    assert_eq!(cores.post("/mpub?topic=t", b"x\ny\n\nz").body, "OK");
    assert_eq!(cores.post("/mpub?topic=u&binary=maybe", b"\0\0\0\x02\0\0\0\x01a\0\0\0\x01b").body, "OK");
    assert_eq!(cores.post("/mpub?topic=u", b"").body, "OK");
    assert_eq!(cores.world().delays_ms, [0; 8]);
    assert_eq!(cores.post("/pub?topic=later&defer=1500", b"x").body, "OK");
    assert_eq!(cores.post("/mpub?topic=later&defer=7", b"x\ny").body, "OK");
    assert_eq!(cores.world().delays_ms[8..], [1500, 7]);
    let stored = std::mem::take(&mut cores.world().stored);
    let all = |topic: &str, p| stored[&(topic.to_string(), p)].iter().map(|b| String::from_utf8_lossy(b)).collect::<Vec<_>>();
    assert_eq!(all("t", 0), ["m0", "m3", "x", "y", "z"]);
    assert_eq!((all("t", 1), all("t", 2)), (vec!["m1".into(), "m4".into()], vec!["m2".into(), "m5".into()]));
    assert_eq!((all("u", 0), cores.world().publishes), (vec!["a".into(), "b".into()], 10));
    cores.stop();
}

#[test]
fn a_publish_may_name_its_partition() {
    let cores = Cores::start(small());
    cores.world().partitions = 3;
    assert_eq!(cores.post("/pub?topic=t&partition=2", b"a").body, "OK");
    assert_eq!(cores.post("/mpub?topic=t&partition=2", b"b\nc").body, "OK");
    cores.post("/pub?topic=t&partition=x", b"a").is(400, "INVALID_ARG_PARTITION");
    assert_eq!(cores.post("/pub?topic=t&partition=3", b"a").status, 404);
    assert_eq!(cores.world().stored[&("t".to_string(), 2)], [b"a", b"b", b"c"]);
    assert_eq!(cores.world().stored.len(), 1);
    cores.stop();
}

#[test]
fn a_stretch_is_finished_in_one_partition() {
    let cores = Cores::start(small());
    cores.world().partitions = 2;
    let path = "/channel/finish?topic=t&channel=c&first=7&last=9";
    assert_eq!(cores.post(&format!("{path}&partition=1"), b"").body, r#"{"finished_before":2,"partition":1}"#);
    assert_eq!(cores.world().finished, [(1, LogId(7), Start::LogId(LogId(10)))]);
    cores.post(path, b"").is(400, "MISSING_ARG_PARTITION");
    cores.post("/channel/finish?topic=t&channel=c&first=0&last=9", b"").is(400, "INVALID_ARG_FIRST");
    cores.post("/channel/finish?topic=t&channel=c&first=7&last=6", b"").is(400, "INVALID_ARG_LAST");
    cores.post("/channel/finish?topic=t&channel=c&first=7", b"").is(400, "INVALID_ARG_LAST");
    cores.post("/channel/finish?topic=unknown&channel=c&first=7&last=9", b"").is(404, "TOPIC_NOT_FOUND");
    cores.stop();
}

#[test]
fn an_offset_is_set_in_one_partition_or_in_all() {
    let cores = Cores::start(small());
    cores.world().partitions = 3;
    let path = "/channel/setoffset?topic=t&channel=c";
    let answer = cores.post(path, b"timestamp:2");
    assert_eq!(answer.status, 200, "{answer:?}");
    let json: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(json["partitions"][2], serde_json::json!({"partition": 2, "virtual_offset": 102, "count": 2, "log_id": 3}));
    assert_eq!(cores.post(&format!("{path}&partition=1&force=true"), b"special:-1").status, 200);
    let set = std::mem::take(&mut cores.world().set);
    let second = Start::Timestamp(2_000_000_000);
    assert_eq!(set, [(0, second, false), (1, second, false), (2, second, false), (1, Start::Newest, true)]);
    cores.post("/channel/setoffset?channel=c", b"msgcount:1").is(400, "MISSING_ARG_TOPIC");
    cores.post("/channel/setoffset?topic=a%20b&channel=c", b"msgcount:1").is(400, "INVALID_ARG_TOPIC");
    cores.post("/channel/setoffset?topic=t", b"msgcount:1").is(400, "MISSING_ARG_CHANNEL");
    cores.post("/channel/setoffset?topic=t&channel=a%20b", b"msgcount:1").is(400, "INVALID_ARG_CHANNEL");
    cores.post(&format!("{path}&partition=3"), b"msgcount:1").is(404, "PARTITION_NOT_FOUND");
    cores.post("/channel/setoffset?topic=unknown&channel=c", b"msgcount:1").is(404, "TOPIC_NOT_FOUND");
    assert_eq!(cores.post(path, b"msgcount:-1").status, 400);
    assert_eq!(cores.post(path, &[b'1'; 65]).status, 413);
    assert!(cores.world().set.is_empty(), "nothing was set");
    for (error, status) in [
        (SetOffsetError::NoChannel, 404),
        (SetOffsetError::NotFirstClient, 409),
        (SetOffsetError::Unreadable, 500),
        (SetOffsetError::Failed(PublishError::ReadOnly), 503),
    ] {
        cores.world().set_error = Some((1, error));
        let answer = cores.post(path, b"msgcount:1");
        assert!(answer.status == status && answer.body.contains("partition 1; set before: 0"), "{answer:?}");
    }
    cores.stop();
}

#[test]
fn an_order_is_set_in_one_partition_or_in_all() {
    let cores = Cores::start(small());
    cores.world().partitions = 3;
    let path = "/channel/setorder?topic=t&channel=c";
    let answer = cores.post(&format!("{path}&order=true"), b"");
    assert!(answer.status == 200 && answer.body.contains("[0,1,2]"), "{answer:?}");
    assert_eq!(cores.post(&format!("{path}&order=false&partition=1"), b"").status, 200);
    assert_eq!(std::mem::take(&mut cores.world().ordered), [(0, true), (1, true), (2, true), (1, false)]);
    cores.post(path, b"").is(400, "MISSING_ARG_ORDER");
    cores.post(&format!("{path}&order=maybe"), b"").is(400, "INVALID_ARG_ORDER");
    cores.world().set_error = Some((1, SetOffsetError::HasClients));
    let answer = cores.post(&format!("{path}&order=false"), b"");
    assert!(answer.status == 409 && answer.body.contains("(partition 1; set before: 0)"), "{answer:?}");
    cores.world().set_error = Some((0, SetOffsetError::HasClients));
    let answer = cores.post(&format!("{path}&order=false"), b"");
    assert!(answer.status == 409 && answer.body.contains("(partition 0; set before: none)"), "{answer:?}");
    cores.stop();
}

#[test]
fn an_operator_is_answered_as_by_nsqd() {
    let cores = Cores::start(small());
    for operation in ["create", "delete", "empty", "pause", "unpause"] {
        let path = format!("/channel/{operation}");
        cores.post(&path, b"").is(400, "MISSING_ARG_TOPIC");
        cores.post(&format!("{path}?topic=a%20b&channel=c"), b"").is(400, "INVALID_ARG_TOPIC");
        cores.post(&format!("{path}?topic=t"), b"").is(400, "MISSING_ARG_CHANNEL");
        cores.post(&format!("{path}?topic=t&channel="), b"").is(400, "INVALID_ARG_CHANNEL");
        cores.post(&format!("{path}?topic=unknown&channel=c"), b"").is(404, "TOPIC_NOT_FOUND");
        let answer = cores.post(&format!("{path}?topic=t&channel=c"), b"");
        assert!(answer.status == 200 && answer.body.is_empty(), "{operation}: {answer:?}");
    }
    cores.stop();
}

#[test]
fn an_operator_acts_on_all_partitions() {
    let cores = Cores::start(small());
    cores.world().partitions = 3;
    let pause = "/channel/pause?topic=t&channel=c";
    let answer = cores.post(pause, b"");
    assert!(answer.status == 200 && answer.body.is_empty(), "{answer:?}");
    assert_eq!(std::mem::take(&mut cores.world().changed), [0, 1, 2].map(|p| (p, ChannelChange::Pause)));
    assert_eq!(cores.post("/channel/create?topic=t&channel=c", b"").status, 200);
    let create = |first| ChannelChange::Create { first, is_alone: false };
    let expected = [(0, create(None)), (1, create(Some(true))), (2, create(Some(true)))];
    assert_eq!(std::mem::take(&mut cores.world().changed), expected, "partition 0 says which it is");
    // One lacks it, one has no leader.
    cores.world().change_errors = BTreeMap::from([(1, SetOffsetError::NoChannel)]);
    assert_eq!(cores.post(pause, b"").status, 200);
    let no_leader = SetOffsetError::Failed(PublishError::NotWritable(Unwritable::NoLeader));
    cores.world().change_errors = BTreeMap::from([(2, no_leader)]);
    let answer = cores.post(pause, b"");
    let says = "E_FAILED_ON_NOT_WRITABLE: the partition accepts no write: this node reaches no leader";
    assert!(answer.status == 503 && answer.body.contains(says), "{answer:?}");
    assert!(answer.body.contains("(partition 2; done before: 0, 1)"), "{answer:?}");
    cores.world().change_errors = BTreeMap::from([0, 1, 2].map(|p| (p, SetOffsetError::NoChannel)));
    cores.post(pause, b"").is(404, "CHANNEL_NOT_FOUND");
    // A part of it fails.
    cores.world().change_errors = BTreeMap::from([(1, SetOffsetError::Failed(PublishError::ReadOnly))]);
    let answer = cores.post(pause, b"");
    assert!(answer.status == 503 && answer.body.contains("(partition 1; done before: 0)"), "{answer:?}");
    cores.world().set.clear();
    assert_eq!(cores.post("/channel/empty?topic=t&channel=c&partition=2", b"").status, 200);
    assert_eq!(cores.world().set, [(2, Start::Newest, true)]);
    cores.stop();
}

#[test]
fn a_loss_is_accepted_by_its_name_alone() {
    let cores = Cores::start(small());
    let path = "/replica/acceptloss?topic=t";
    let answer = cores.post(path, b"");
    assert!(answer.status == 409 && answer.body.contains("NOTHING_TO_ACCEPT: "), "{answer:?}");
    cores.world().loss = Some("100-200".into());
    for asked in [path.to_string(), format!("{path}&loss=100-201"), format!("{path}&loss=")] {
        let answer = cores.post(&asked, b"");
        assert!(answer.status == 409 && answer.body.contains("loss=100-200"), "{answer:?}");
    }
    let answer = cores.post(&format!("{path}&partition=0&loss=100-200"), b"");
    assert!(answer.status == 200 && answer.body.contains("all of it"), "{answer:?}");
    cores.post(&format!("{path}&partition=1"), b"").is(404, "PARTITION_NOT_FOUND");
    cores.post("/replica/acceptloss", b"").is(400, "MISSING_ARG_TOPIC");
    cores.post("/replica/acceptloss?topic=unknown", b"").is(404, "TOPIC_NOT_FOUND");
    cores.stop();
}

/// Every line was observed on nsqd 1.3.0.
#[test]
fn errors_are_nsqds() {
    let cores = Cores::start(small());
    let big = vec![b'x'; 65];
    cores.post("/pub?topic=a", b"").is(400, "MSG_EMPTY");
    cores.post("/pub", b"x").is(400, "MISSING_ARG_TOPIC");
    cores.post("/pub?topic=", b"x").is(400, "INVALID_TOPIC");
    cores.post("/pub?topic=a%20b", b"x").is(400, "INVALID_TOPIC");
    cores.post("/pub?topic=a;b", b"x").is(400, "INVALID_REQUEST");
    cores.post("/pub?topic=%zz", b"x").is(400, "INVALID_REQUEST");
    cores.post("/pub?topic=a", &big).is(413, "MSG_TOO_BIG");
    cores.post("/mpub?topic=a", &big).is(413, "MSG_TOO_BIG");
    cores.post("/mpub?topic=a", &[b'x'; 257]).is(413, "BODY_TOO_BIG");
    cores.post("/mpub?topic=a&binary=true", &[b'x'; 257]).is(413, "BODY_TOO_BIG");
    cores.post("/mpub?topic=a&binary=true", b"abc").is(413, "BAD_BODY");
    cores.post("/mpub?topic=a&binary=true", b"\0\0\0\x02\0\0\0\x01a\0\0\0\0").is(413, "BAD_MESSAGE");
    cores.post("/pub?topic=a&defer=x", b"x").is(400, "INVALID_DEFER");
    cores.post("/pub?topic=a&defer=2592000001", b"x").is(400, "INVALID_DEFER");
    cores.get("/nope").is(404, "NOT_FOUND");
    let answer = cores.get("/pub?topic=a");
    answer.is(405, "METHOD_NOT_ALLOWED");
    assert!(answer.head.contains("Allow: OPTIONS, POST"), "{answer:?}");
    assert!(answer.head.contains("X-Nsq-Content-Type: nsq; version=1.0"), "{answer:?}");
    cores.post("/ping", b"").is(405, "METHOD_NOT_ALLOWED");
    assert_eq!(cores.send(b"OPTIONS /pub HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status, 200);
    assert_eq!(cores.world().publishes, 0);
    cores.stop();
}

#[test]
fn a_chunked_body_is_bounded_too() {
    let cores = Cores::start(small());
    let head = b"POST /pub?topic=a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = b"20\r\n01234567890123456789012345678901\r\n";
    cores.send(&[&head[..], chunk, chunk, chunk, b"0\r\n\r\n"].concat()).is(413, "MSG_TOO_BIG");
    assert_eq!(cores.send(&[&head[..], chunk, chunk, b"0\r\n\r\n"].concat()).body, "OK");
    cores.stop();
}

#[test]
fn what_the_core_says_becomes_a_status() {
    let cores = Cores::start(small());
    for (error, status, code) in [
        (PublishError::DiskFull, 507, "DISK_FULL: the disk is full"),
        (PublishError::TooBig, 413, "BODY_TOO_BIG: "),
        (PublishError::ReadOnly, 503, "READ_ONLY: "),
        (PublishError::Stopping, 503, "EXITING: "),
        (PublishError::TooMuchWaiting, 429, "TOO_MUCH_WAITING: "),
        (PublishError::Unknown, 500, "OUTCOME_UNKNOWN: "),
        (PublishError::NoTopic, 500, "NO_TOPIC: "),
    ] {
        cores.world().publish_error = Some(error);
        let answer = cores.post("/pub?topic=t", b"x");
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.body.starts_with(&format!("{{\"message\":\"{code}")), "{answer:?}");
    }
    cores.stop();
}

#[test]
fn ping_says_how_the_cores_are() {
    let cores = Cores::start(small());
    let answer = cores.get("/ping");
    assert_eq!((answer.status, answer.body.as_str()), (200, "OK"));
    cores.world().sick = true;
    let answer = cores.get("/ping");
    assert_eq!((answer.status, answer.body.as_str()), (500, "NOK - core 1: the journal failed"));
    cores.world().mute = true;
    let answer = cores.get("/ping");
    assert_eq!(answer.status, 500);
    assert!(answer.body.starts_with("NOK - core 0 did not answer within 3s; core 1 did"), "{answer:?}");
    cores.stop();
}

#[test]
fn stats_and_info_have_nsqds_shape() {
    let cores = Cores::start(small());
    cores.post("/pub?topic=a", b"hello");
    let answer = cores.get("/stats?format=json&include_mem=false");
    let e2e = r#""e2e_processing_latency":{"count":0,"percentiles":null}"#;
    let topic = format!(
        r#"{{"topic_name":"a","channels":[],"depth":1,"backend_depth":1,"message_count":1,"message_bytes":5,"paused":false,{e2e}}}"#
    );
    assert!(answer.body.contains(&format!(r#","topics":[{topic}],"producers":null,"cores":["#)), "{answer:?}");
    assert!(answer.head.contains("Content-Type: application/json; charset=utf-8"), "{answer:?}");
    assert!(cores.get("/stats?format=json&topic=zz").body.contains(r#""topics":null,"memory":{"heap_objects":0,"#));
    assert!(cores.get("/stats?format=json&topic=a%20b").body.contains(r#""topics":null"#));
    let text = cores.get("/stats").body;
    assert!(text.contains("   [a              ] depth: 1     be-depth: 1     msgs: 1        e2e%: \n"), "{text}");
    assert!(answer.body.contains(&format!(r#","spare_bytes":{SPARE_BYTES}"#)), "{answer:?}");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("spare_bytes"));
    assert_eq!(line.map(|line| line.trim().to_owned()), Some(SPARE_BYTES.to_string()), "{text}");
    assert!(text.contains("http_publish") && text.contains("count 1, p50"), "{text}");
    let info: serde_json::Value = serde_json::from_str(&cores.get("/info").body).expect("JSON");
    assert_eq!((&info["tcp_port"], &info["http_port"]), (&4150.into(), &cores.address.port().into()));
    assert_eq!(info["max_heartbeat_interval"], 60_000_000_000u64);
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!((&info["version"], &info["ringmq_version"]), (&"1.3.0".into(), &own.into()));
    assert!(text.starts_with(&format!("nsqd v1.3.0 (ringmq {own})\n")), "{text}");
    cores.stop();
}

#[test]
fn a_connection_is_used_again() {
    let cores = Cores::start(small());
    let mut stream = TcpStream::connect(cores.address).unwrap();
    let request = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";
    for _ in 0..3 {
        stream.write_all(request).unwrap();
        let mut answer = [0; 2048];
        let len = stream.read(&mut answer).unwrap();
        assert!(answer[..len].starts_with(b"HTTP/1.1 200 OK") && answer[..len].ends_with(b"\r\n\r\nOK"));
    }
    cores.stop();
}

#[test]
fn garbage_hurts_nobody() {
    let cores = Cores::start(small());
    let mut random = 7u64;
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..200)
            .map(|_| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 56) as u8
            })
            .collect();
        let mut stream = TcpStream::connect(cores.address).unwrap();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        CoreAnswer::read(stream);
    }
    assert_eq!(cores.get("/ping").body, "OK");
    cores.stop();
}

#[test]
fn a_stop_lets_a_request_end() {
    let cores = Cores::start(small());
    cores.world().mute = true;
    let mut stream = TcpStream::connect(cores.address).unwrap();
    stream.write_all(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let idle = TcpStream::connect(cores.address).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    let began = Instant::now();
    let reader = std::thread::spawn(move || CoreAnswer::read(stream));
    cores.stop();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(reader.join().expect("no panic").status, 500);
    drop(idle);
}
