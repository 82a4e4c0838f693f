//! The clients of a run: each does one thing over and over, goes to another node when one fails, and records what it did and saw.

use super::record::{Fact, Message, Recorder, Topic};
use crate::node::{self, Chance, Client, Frame, command_with_body, multi_publish};
use ringmq::client::{self as native, Retry, Start};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

pub const PARTITIONS: u16 = 3;
/// Channel of the topic with keys, in log order.
pub const ORDERED: &str = "ordered";
/// Channel of the topic with keys, of the native client.
pub const NATIVE: &str = "native";
/// Channel of the other topics, of NSQ clients.
pub const STOCK: &str = "stock";

/// Longer than a leader waits for its followers, and than a node rides out a failover for its client.
const ANSWER_LIMIT: Duration = Duration::from_secs(8);
/// A consumer that gets nothing for so long looks elsewhere.
const IDLE_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);
/// Publishes without an answer of one native producer.
const WINDOW: usize = 50;
/// Messages that were taken and not stored are tried again for longer than any run lasts.
const RETRY_LIMIT: Duration = Duration::from_secs(3600);
const READ_LIMIT: Duration = Duration::from_secs(60);

/// State that all clients of a run share.
pub struct Shared {
    pub recorder: Recorder,
    tcp: Vec<SocketAddr>,
    native: Vec<SocketAddr>,
    producers_end: AtomicBool,
    consumers_end: AtomicBool,
    /// Channels of partitions that consumers have begun; they would not get messages from before.
    begun: AtomicUsize,
}

pub struct Clients {
    pub shared: Arc<Shared>,
    producers: Vec<JoinHandle<()>>,
    consumers: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Consumers of each channel, and the producers when the channels are there. The topics must be there.
    pub fn start(tcp: Vec<SocketAddr>, native: Vec<SocketAddr>, seed: u64) -> Clients {
        let (producers_end, consumers_end) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Shared { recorder: Recorder::new(), tcp, native, producers_end, consumers_end, begun: AtomicUsize::new(0) };
        let shared = Arc::new(shared);
        let mut clients = Clients { shared: shared.clone(), producers: vec![], consumers: vec![] };
        let mut salt = 0;
        let mut chance = move || {
            salt += 1;
            Chance::new(seed ^ salt << 40)
        };
        for partition in 0..PARTITIONS {
            let chance = chance();
            clients.consume(move |shared| consume_ordered(shared, partition, chance));
        }
        node::cluster::until(
            || shared.begun.load(Ordering::SeqCst) == PARTITIONS as usize,
            || "a SUB_ORDERED succeeds for each partition".into(),
        );
        for topic in [Topic::Plain, Topic::Deferred] {
            for node in 0..shared.tcp.len() {
                let chance = chance();
                clients.consume(move |shared| consume(shared, topic, node, chance));
            }
        }
        clients.consume(|shared| in_runtime(consume_native(&shared)));
        for producer in 0..2 {
            let chance = chance();
            clients.produce(move |shared| produce(&shared, Topic::Plain, producer, chance));
            clients.produce(move |shared| in_runtime(produce_keyed(shared, producer)));
        }
        let chance = chance();
        clients.produce(move |shared| produce(&shared, Topic::Deferred, 0, chance));
        clients
    }

    fn consume(&mut self, work: impl FnOnce(Arc<Shared>) + Send + 'static) {
        let shared = self.shared.clone();
        self.consumers.push(std::thread::spawn(move || work(shared)));
    }

    fn produce(&mut self, work: impl FnOnce(Arc<Shared>) + Send + 'static) {
        let shared = self.shared.clone();
        self.producers.push(std::thread::spawn(move || work(shared)));
    }

    /// No publish begins from now on, and each that began has its outcome.
    pub fn end_producers(&mut self) {
        self.shared.producers_end.store(true, Ordering::SeqCst);
        self.producers.drain(..).for_each(|thread| thread.join().expect("a producer does not panic"));
    }

    pub fn end_consumers(&mut self) {
        self.shared.consumers_end.store(true, Ordering::SeqCst);
        self.consumers.drain(..).for_each(|thread| thread.join().expect("a consumer does not panic"));
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.producers_end.store(true, Ordering::SeqCst);
        self.shared.consumers_end.store(true, Ordering::SeqCst);
    }
}

fn in_runtime<F: Future>(work: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

// ---- NSQ producers

fn connect(address: SocketAddr, limit: Duration) -> io::Result<Client> {
    let mut client = Client::connect(address)?;
    client.set_read_timeout(limit)?;
    Ok(client)
}

/// Publishes one message or a few at a time, at one node as long as that is well.
fn produce(shared: &Shared, topic: Topic, producer: u16, mut chance: Chance) {
    let (mut client, mut at, mut number) = (None, chance.below(64) as usize, 0);
    while !shared.producers_end.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5 + chance.below(20)));
        let connected = match client.take() {
            Some(client) => Ok(client),
            None => connect(shared.tcp[at % shared.tcp.len()], ANSWER_LIMIT),
        };
        let Ok(mut connected) = connected else {
            at += 1;
            continue;
        };
        let count = if topic == Topic::Plain && chance.one_in(5) { 1 + chance.below(5) as u32 } else { 1 };
        let messages: Vec<Message> = (number..number + count).map(|number| Message { topic, producer, number }).collect();
        number += count;
        let delay = (topic == Topic::Deferred).then(|| Duration::from_millis(chance.below(6000)));
        if publish(shared, &mut connected, &messages, delay) && !chance.one_in(200) {
            client = Some(connected);
        } else {
            at += 1;
        }
    }
}

/// Whether the messages were acknowledged.
fn publish(shared: &Shared, client: &mut Client, messages: &[Message], delay: Option<Duration>) -> bool {
    let (topic, recorder) = (messages[0].topic.name(), &shared.recorder);
    for message in messages {
        match delay {
            Some(delay) => recorder.note_deferred(*message, delay),
            None => recorder.note(Fact::Sent { message: *message, due: None }),
        }
    }
    let bytes = match (messages, delay) {
        ([one], Some(delay)) => command_with_body(&format!("DPUB {topic} {}", delay.as_millis()), &one.body()),
        ([one], None) => command_with_body(&format!("PUB {topic}"), &one.body()),
        (many, _) => multi_publish(topic, &many.iter().map(Message::body).collect::<Vec<_>>()),
    };
    let answer = client.write(&bytes).and_then(|()| client.read());
    let told = |message: Message| match &answer {
        Ok(Frame::Response(text)) if text == b"OK" => Fact::Acknowledged(message),
        Ok(Frame::Error(text)) if !text.contains("unknown") => Fact::Refused(message),
        _ => Fact::Unknown(message),
    };
    messages.iter().for_each(|message| recorder.note(told(*message)));
    matches!(answer, Ok(Frame::Response(_)))
}

// ---- NSQ consumers

/// Whether it came because nothing came.
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Consumes a topic at one node, whatever of it that node gives; now and then without a word about a message.
fn consume(shared: Arc<Shared>, topic: Topic, node: usize, mut chance: Chance) {
    while !shared.consumers_end.load(Ordering::SeqCst) {
        let _ = consume_once(&shared, topic, node, &mut chance);
        std::thread::sleep(PAUSE);
    }
}

fn consume_once(shared: &Shared, topic: Topic, node: usize, chance: &mut Chance) -> io::Result<()> {
    let mut client = connect(shared.tcp[node], IDLE_LIMIT)?;
    client.subscribe(topic.name(), STOCK, 20)?;
    while !shared.consumers_end.load(Ordering::SeqCst) {
        let message = client.message()?;
        let Some(name) = shared.recorder.note_delivered(STOCK, &message.body, Some(message.id)) else { continue };
        match chance.below(40) {
            0 => {}
            1 => client.write(&[b"REQ ", &message.id[..], b" 100\n"].concat())?,
            2 if chance.one_in(5) => return Ok(()),
            _ => {
                client.finish(&message.id)?;
                shared.recorder.note(Fact::Finished { channel: STOCK, message: name });
            }
        }
    }
    Ok(())
}

/// The only consumer of a partition's ordered channel: one connection at a time, at whichever node takes it.
fn consume_ordered(shared: Arc<Shared>, partition: u16, mut chance: Chance) {
    let (mut at, mut has_begun) = (partition as usize, false);
    while !shared.consumers_end.load(Ordering::SeqCst) {
        let _ = consume_ordered_once(&shared, partition, at, &mut has_begun, &mut chance);
        at += 1;
        std::thread::sleep(PAUSE);
    }
}

fn consume_ordered_once(shared: &Shared, partition: u16, at: usize, begun: &mut bool, chance: &mut Chance) -> io::Result<()> {
    let mut client = connect(shared.tcp[at % shared.tcp.len()], IDLE_LIMIT)?;
    client.write(format!("SUB_ORDERED {} {ORDERED} {partition}\n", Topic::Keyed.name()).as_bytes())?;
    client.ok()?;
    if !std::mem::replace(begun, true) {
        shared.begun.fetch_add(1, Ordering::SeqCst);
    }
    client.write(b"RDY 5\n")?;
    while !shared.consumers_end.load(Ordering::SeqCst) {
        let message = match client.message() {
            // Nothing is published before all have begun.
            Err(error) if is_silence(&error) && shared.begun.load(Ordering::SeqCst) < PARTITIONS as usize => continue,
            result => result?,
        };
        // Its place in the log stands before its body.
        let body = message.body.get(12..).unwrap_or_default();
        let Some(name) = shared.recorder.note_delivered(ORDERED, body, Some(message.id)) else { continue };
        if chance.one_in(100) {
            return Ok(());
        }
        client.finish(&message.id)?;
        shared.recorder.note(Fact::Finished { channel: ORDERED, message: name });
    }
    Ok(())
}

// ---- native clients

/// Connects to whichever node answers; the client learns of the others.
async fn native_client(shared: &Shared) -> native::Client {
    for at in 0.. {
        let builder = native::Client::builder().address(shared.native[at % shared.native.len()].to_string());
        let builder = builder.heartbeat(Duration::from_secs(1)).connect_limit(Duration::from_secs(2));
        if let Ok(client) = builder.pauses(Duration::from_millis(20), Duration::from_millis(500)).connect().await {
            return client;
        }
        tokio::time::sleep(PAUSE).await;
    }
    unreachable!("the loop has no end")
}

/// An idempotent producer whose keys are spread over the partitions.
async fn produce_keyed(shared: Arc<Shared>, producer: u16) {
    let client = native_client(&shared).await;
    let topic = Topic::Keyed;
    let sender = client.producer(topic.name()).must_exist().retry_for(RETRY_LIMIT).build().await.expect("the topic is there");
    let window = Arc::new(Semaphore::new(WINDOW));
    for number in 0.. {
        let permit = window.clone().acquire_owned().await.expect("nobody closes it");
        if shared.producers_end.load(Ordering::SeqCst) {
            break;
        }
        let message = Message { topic, producer, number };
        shared.recorder.note(Fact::Sent { message, due: None });
        let ack = sender.send_keyed(&(number % 16).to_le_bytes(), &message.body()).await;
        let shared = shared.clone();
        tokio::spawn(async move {
            let outcome = match ack {
                Ok(ack) => ack.await.map(|_| ()),
                Err(error) => Err(error),
            };
            shared.recorder.note(match outcome {
                Ok(()) => Fact::Acknowledged(message),
                Err(error) if error.retry() != Retry::Unknown => Fact::Refused(message),
                Err(_) => Fact::Unknown(message),
            });
            drop(permit);
        });
        // An ordered channel takes a few a second on a machine that is busy.
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    // A publish without an answer by then has an unknown outcome.
    let _ = tokio::time::timeout(READ_LIMIT, window.acquire_many(WINDOW as u32)).await;
}

async fn consume_native(shared: &Shared) {
    while !shared.consumers_end.load(Ordering::SeqCst) {
        let client = native_client(shared).await;
        let Ok(mut consumer) = client.consumer(Topic::Keyed.name(), NATIVE).start(Start::Oldest).must_exist().build().await
        else {
            continue;
        };
        while !shared.consumers_end.load(Ordering::SeqCst) {
            match tokio::time::timeout(IDLE_LIMIT, consumer.next()).await {
                Ok(Ok(message)) => {
                    let name = shared.recorder.note_delivered(NATIVE, message.body(), None);
                    message.finish();
                    name.into_iter().for_each(|message| shared.recorder.note(Fact::Finished { channel: NATIVE, message }));
                }
                Ok(Err(_)) => break,
                Err(_) => {}
            }
        }
        let _ = consumer.close().await;
    }
}

// ---- what stands in the logs

/// Reads a topic from its first messages on, in a channel of its own, until all that must be there was found or does not come.
pub fn read_logs(shared: &Shared, topic: Topic) -> BTreeMap<u16, Vec<(u64, Message)>> {
    let mut logs: BTreeMap<u16, BTreeMap<u64, Message>> = BTreeMap::new();
    let mut missing = shared.recorder.must_be_stored(topic);
    in_runtime(async {
        let client = native_client(shared).await;
        let consumer = client.consumer(topic.name(), "audit").start(Start::Oldest).must_exist().max_in_flight(10_000);
        let mut consumer = consumer.build().await.expect("the topic is there");
        let began = Instant::now();
        loop {
            let batch = match tokio::time::timeout(IDLE_LIMIT, consumer.next_batch()).await {
                Ok(batch) => batch.expect("every partition has a leader"),
                Err(_) if missing.is_empty() || began.elapsed() > READ_LIMIT => break,
                Err(_) => continue,
            };
            for delivery in batch.deliveries() {
                match Message::of(delivery.body()) {
                    Some(message) => {
                        missing.remove(&message);
                        logs.entry(delivery.partition().0).or_default().insert(delivery.log_id().0, message);
                    }
                    None => shared.recorder.note_strange("the log", delivery.body()),
                }
            }
            batch.finish();
        }
    });
    logs.into_iter().map(|(partition, log)| (partition, log.into_iter().collect())).collect()
}
