//! Links between nodes over real sockets: cores with their rings, TLS and the pure links, and a proxy between them that cuts and
//! freezes. What the links say goes to the test, and the test says what they send.

mod node;

use bytes::Bytes;
use node::pki::Pki;
use ringmq::base::NodeId;
use ringmq::base::{CoreId, Epoch, LogId, Now, PartitionId, Position, Ticks, TopicId};
use ringmq::codec::peer::message::{Ack, Append, Batches, Body, EpochsAsk, Head, Lane, Message, Pulled, Route, Session};
use ringmq::codec::peer::{Addressed, ClusterId};
use ringmq::config::Settings;
use ringmq::disk::{DiskOptions, files};
use ringmq::mesh::{Wake, mesh};
use ringmq::net::{NetOptions, listen};
use ringmq::peer::{LinkEvent, LinkOptions, Links};
use ringmq::ring::WakeFd;
use ringmq::runtime::clock::Clock;
use ringmq::runtime::cores::{Build, CoreParts, CoresOptions, RunningCores};
use ringmq::runtime::turn::ListenerKind;
use ringmq::runtime::{Machine, StopHandle, run_cores};
use ringmq::seam::cluster::ClusterNode;
use ringmq::seam::event::{Effect, Effects, Event};
use ringmq::tls::PeerTerms;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([5; 16]);

// ---- the log

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Log of all tests of this process.
fn log() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
        log
    })
    .clone()
}

fn log_len() -> usize {
    log().0.lock().unwrap().len()
}

/// Waits for a line behind the log's length `from`.
fn wait_for_line(from: usize, text: &str) {
    let lines = log();
    wait_until(text, || String::from_utf8_lossy(&lines.0.lock().unwrap()[from..]).contains(text));
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not in 60 s; {}", String::from_utf8_lossy(&log().0.lock().unwrap()));
        std::thread::sleep(Duration::from_millis(5));
    }
}

// ---- a node

type Sending = (NodeId, Lane, Addressed);

/// Driver between a core's links and the test.
#[derive(Default)]
struct Core {
    events: Mutex<Vec<LinkEvent>>,
    sending: Mutex<Vec<Sending>>,
}

/// Links in the place of a shard.
struct Linked {
    links: Links,
    core: Arc<Core>,
    now: Now,
    stopping: bool,
    stopped: bool,
}

impl Machine for Linked {
    fn step(&mut self, now: Now, event: Event<'_>, out: &mut Effects) {
        self.now = now;
        match event {
            Event::OpenedPeer { conn, peer } => self.links.opened(now, conn, peer),
            Event::Dialed { dial, result } => self.links.dialed(now, dial, result),
            Event::Bytes { conn, bytes } => self.links.bytes(now, conn, bytes),
            Event::Received { conn, lent } => self.links.received(now, conn, lent),
            Event::Sent { conn, bytes } => self.links.sent(now, conn, bytes),
            // The other end sends no more; what is left to say still goes out, and `Closed` follows.
            Event::Ended { .. } => {}
            Event::Closed { conn } => self.links.closed(now, conn),
            Event::Adopted { conn, session } => {
                self.links.adopted(now, conn, session.peer.clone(), session.into_state());
            }
            Event::Tick => self.links.tick(now),
            Event::Stop => {
                self.stopping = true;
                self.links.stop(now);
            }
            Event::TurnEnd => {
                for (to, lane, Addressed { route, message }) in self.core.sending.lock().unwrap().drain(..) {
                    self.links.send_on(to, lane, route, message);
                }
                self.links.turn_end(now, out);
                self.links.take(&mut self.core.events.lock().unwrap());
                if self.stopping && !self.stopped && self.links.is_idle() {
                    self.stopped = true;
                    out.push(Effect::Stopped);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Soon, for what the test wants sent.
    fn deadline(&self) -> Option<Ticks> {
        let soon = self.now.ticks + Duration::from_millis(2);
        Some(self.links.deadline().map_or(soon, |at| at.min(soon)))
    }
}

struct Node {
    running: Option<RunningCores>,
    cores: Vec<Arc<Core>>,
    _data: tempfile::TempDir,
}

fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 16])
}

/// `addresses`: as this node knows them.
fn start(node: usize, generation: u64, listening: &str, cores: u16, addresses: &[String], settings: &Settings) -> Node {
    log();
    let data = tempfile::tempdir_in(".").unwrap();
    files::write_probe(data.path()).unwrap();
    let known = |(n, address): (usize, &String)| ClusterNode::new(id(n), format!("node{n}"), address.as_str());
    let nodes: Vec<ClusterNode> = addresses.iter().enumerate().map(known).collect();
    let lend_min = settings.peer_tls_cert.is_empty().then_some(settings.receive_in_place_bytes as usize);
    let shared: Vec<Arc<Core>> = (0..cores).map(|_| Arc::default()).collect();
    let (mut ports, http) = mesh(cores);
    let wakes: Vec<_> = (0..cores).map(|_| WakeFd::new().unwrap()).collect();
    let wakers: Vec<Arc<dyn Wake>> = wakes.iter().map(|wake| wake.clone() as _).collect();
    ports.iter_mut().for_each(|port| port.connect_wakers(&wakers, wakes[0].clone()));
    drop(http);
    let part = |((port, wake), core): ((_, Arc<WakeFd>), Arc<Core>)| {
        let nodes = nodes.clone();
        let build: Build<Linked> = Box::new(move |number: CoreId| {
            let options = LinkOptions::new(id(node), CLUSTER, generation, number, cores, node as u64);
            let mut links = Links::new(LinkOptions { lend_min, ..options });
            links.set_nodes(Now::default(), &nodes);
            Linked { links, core, now: Now::default(), stopping: false, stopped: false }
        });
        CoreParts { listeners: vec![(ListenerKind::Peer, listen(listening).unwrap())], port, wake, build }
    };
    let parts = ports.into_iter().zip(wakes).zip(shared.clone()).map(part).collect();
    let options = CoresOptions {
        data: data.path().to_owned(),
        net: NetOptions::default(),
        disk: DiskOptions::default(),
        spin_before_park: Duration::ZERO,
        stall_log: Duration::from_secs(10),
        clock: Clock::start(),
        tls: None,
        peer_tls: PeerTerms::load(settings).unwrap(),
        coordinator: None,
    };
    let running = run_cores(&options, parts, &StopHandle::new()).unwrap_or_else(|e| panic!("{e}"));
    Node { running: Some(running), cores: shared, _data: data }
}

impl Node {
    fn take(&self, core: usize) -> Vec<LinkEvent> {
        std::mem::take(&mut self.cores[core].events.lock().unwrap())
    }

    /// Waits until every core's next event is this one.
    fn expect(&self, event: &LinkEvent) {
        for core in &self.cores {
            wait_until(&format!("{event:?}"), || !core.events.lock().unwrap().is_empty());
            assert_eq!(core.events.lock().unwrap().remove(0), *event);
        }
    }

    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.request_stop();
            running.join().unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// An address that nobody has.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

// ---- messages

const AT: Position = Position { offset: 4096, count: 10, log_id: LogId(11) };

fn addressed(partition: u16, body: Body) -> Addressed {
    let route = Route { topic_id: TopicId([4; 16]), partition: PartitionId(partition) };
    Addressed { route, message: Message { head: Head { epoch: Epoch(8), session: Session(2) }, body } }
}

fn batches(bytes: usize, n: u8) -> Batches {
    Batches::new(vec![Bytes::from(vec![n; bytes])])
}

/// Messages on every lane, some of them large.
fn messages() -> Vec<(Lane, Addressed)> {
    let append = |bytes, n| Body::Append(Append { committed: AT, batches: batches(bytes, n) });
    let mut messages = vec![];
    for n in 0..20u8 {
        let partition = n as u16 % 3;
        messages.push((Lane::Control, addressed(partition, Body::EpochsAsk(EpochsAsk { below: Epoch(n as u64) }))));
        messages.push((Lane::Data, addressed(partition, append(200_000 * n as usize + 1, n))));
        messages.push((Lane::Data, addressed(partition, Body::Ack(Ack { durable: AT }))));
        let pulled = Body::Pulled(Pulled { from: AT, batches: batches(500_000, n) });
        messages.push((Lane::CatchUp, addressed(partition, pulled)));
        messages.push((Lane::CatchUp, addressed(partition, append(10_000, n))));
    }
    messages
}

/// Core 0 of `from` sends all messages to `to`; each lane's come in order for each partition.
fn exchange(from: (usize, &Node), to: (usize, &Node)) {
    let sent = messages();
    let sending = sent.iter().map(|(lane, message)| (id(to.0), *lane, message.clone()));
    from.1.cores[0].sending.lock().unwrap().extend(sending);
    let mut heard: Vec<Addressed> = vec![];
    wait_until("all messages", || {
        for core in 0..to.1.cores.len() {
            for event in to.1.take(core) {
                let LinkEvent::Message { from: node, addressed } = event else { panic!("{event:?}") };
                assert_eq!(node, id(from.0));
                heard.push(addressed);
            }
        }
        heard.len() >= sent.len()
    });
    let is_large = |m: &Addressed| matches!(&m.message.body, Body::Append(a) if a.batches.len() == 10_000);
    for lane in [Lane::Control, Lane::Data, Lane::CatchUp] {
        for partition in 0..3 {
            let of_it = |m: &&Addressed| {
                let on_lane = if is_large(m) { Lane::CatchUp } else { m.message.body.lane() };
                on_lane == lane && m.route.partition == PartitionId(partition)
            };
            let expected: Vec<&Addressed> = sent.iter().map(|(_, m)| m).filter(of_it).collect();
            let found: Vec<&Addressed> = heard.iter().filter(of_it).collect();
            assert!(found == expected, "{lane:?} {partition}: {} of {}", found.len(), expected.len());
        }
    }
}

// ---- a proxy

/// Passes bytes on, until they are cut or frozen.
struct Proxy {
    address: String,
    frozen: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn to(target: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (frozen, streams) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(vec![])));
        let (is_frozen, all) = (frozen.clone(), streams.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(&target)) else { continue };
                all.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (from, to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    let is_frozen = is_frozen.clone();
                    std::thread::spawn(move || pass(from, to, &is_frozen));
                }
            }
        });
        Proxy { address, frozen, streams }
    }

    /// Ends every connection.
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_frozen: &AtomicBool) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        while is_frozen.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn nodes_meet_exchange_lose_each_other_and_meet_again() {
    let (listening, from) = ([free(), free()], log_len());
    let proxy = Proxy::to(listening[1].clone());
    // by its name, which is looked up
    let proxied = proxy.address.replace("127.0.0.1", "localhost");
    let addresses = [listening[0].clone(), proxied];
    let settings = Settings::default();
    let a = start(0, 1, &listening[0], 1, &addresses, &settings);
    wait_for_line(from, "no connection to a peer: ");
    let mut b = start(1, 1, &listening[1], 1, &addresses, &settings);
    let (met, lost) = (|n| LinkEvent::Connected(id(n)), |n| LinkEvent::Disconnected(id(n)));
    a.expect(&met(1));
    b.expect(&met(0));
    exchange((0, &a), (1, &b));
    exchange((1, &b), (0, &a));

    proxy.cut();
    a.expect(&lost(1));
    b.expect(&lost(0));
    a.expect(&met(1));
    b.expect(&met(0));
    exchange((0, &a), (1, &b));

    proxy.frozen.store(true, SeqCst);
    a.expect(&lost(1));
    b.expect(&lost(0));
    wait_for_line(from, "the peer is silent for ");
    proxy.cut();
    proxy.frozen.store(false, SeqCst);
    a.expect(&met(1));
    b.expect(&met(0));

    b.stop();
    a.expect(&lost(1));
    a.expect(&LinkEvent::Stopping(id(1)));
    wait_for_line(from, "the peer is stopping");
    let b = start(1, 2, &listening[1], 1, &addresses, &settings);
    a.expect(&met(1));
    b.expect(&met(0));
    exchange((1, &b), (0, &a));
}

#[test]
fn nodes_with_other_numbers_of_cores_meet_over_tls_and_connections_move() {
    let pki = Pki::new();
    let addresses = [free(), free()];
    // named for what is dialled, and for the node
    let a = start(0, 1, &addresses[0], 3, &addresses, &secure(&pki, "a", &["127.0.0.1"]));
    let b = start(1, 1, &addresses[1], 2, &addresses, &secure(&pki, "b", &["node1"]));
    a.expect(&LinkEvent::Connected(id(1)));
    b.expect(&LinkEvent::Connected(id(0)));
    exchange((0, &a), (1, &b));
    exchange((1, &b), (0, &a));
}

/// Settings of a node with a certificate for these names.
fn secure(pki: &Pki, name: &str, names: &[&str]) -> Settings {
    let [peer_tls_cert, peer_tls_key, peer_tls_ca] = pki.peer(name, names);
    Settings { peer_tls_cert, peer_tls_key, peer_tls_ca, ..Settings::default() }
}

/// Two nodes that must not meet, and what the log says on either side.
fn apart(settings: [&Settings; 2], lines: &[&str]) {
    let (addresses, from) = ([free(), free()], log_len());
    let nodes: Vec<Node> = (0..2).map(|n| start(n, 1, &addresses[n], 1, &addresses, settings[n])).collect();
    lines.iter().for_each(|line| wait_for_line(from, line));
    assert!(nodes.iter().all(|node| node.take(0).is_empty()), "they met");
}

#[test]
fn nodes_that_do_not_trust_each_other_say_why() {
    let (ours, others) = (Pki::new(), Pki::new());
    let good = [secure(&ours, "a", &["node0"]), secure(&ours, "b", &["node1"])];
    let lines = [
        "the peer's certificate is signed by no CA of --peer-tls-ca",
        "the peer refuses the certificate of this node (UnknownCA)",
    ];
    // the node that dials trusts another CA, then the one that is dialled
    for strange in 0..2 {
        let mut settings = good.clone();
        settings[strange].peer_tls_ca = others.path("ca.pem");
        apart([&settings[0], &settings[1]], &lines);
    }
    let misnamed = secure(&ours, "c", &["elsewhere"]);
    apart(
        [&good[0], &misnamed],
        &["the peer's certificate has neither the host of its peer_address nor its name in the cluster"],
    );
}

#[test]
fn tls_and_none_do_not_meet_and_say_so() {
    let pki = Pki::new();
    let (with, without) = (secure(&pki, "a", &["node0", "node1"]), Settings::default());
    apart(
        [&with, &without],
        &["the peer does not speak TLS, and this node does", "the peer speaks TLS, and this node does not with its peers"],
    );
    apart(
        [&without, &with],
        &[
            "this node speaks TLS with its peers, and the received bytes are not TLS",
            "the peer speaks TLS, and this node does not",
        ],
    );
}
