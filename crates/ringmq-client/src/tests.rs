//! The client against a node that is made up: it speaks the codec, keeps sequences as docs/native.md says, and loses connections,
//! refuses and forgets when its chance says so.

use super::link::BoxedStream;
use super::*;
use proptest::prelude::*;
use ringmq_protocol::codec::native::Welcome;
use ringmq_protocol::codec::native::{
    Encoder, HEADER_LEN, Header, IdRange, NativeError, NodeInfo, PartitionInfo, Payload, Reply, Request, TopicInfo, Topics,
};
use ringmq_protocol::format::batch::Messages as Walk;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

const PARTITIONS: u16 = 2;

/// Faults, in thousandths of publishes.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// The connection is lost before the batch is taken, and after.
    lost_before: u64,
    lost_after: u64,
    /// Refused for now; and refused although it was stored.
    later: u64,
    unknown: u64,
    /// Told to go to another core.
    wrong_core: u64,
}

/// Outcome of one publish.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Stored; the answer waits until the test lets it go.
    StoreAndWait,
    StoreInSilence,
    StoreAndLose,
    Lose,
    Refuse(Code, Retry),
}

/// Unasked actions of a session.
pub(super) enum Tell {
    Send(Vec<u8>),
    Lose,
}

/// A subscription that was asked for, and where what is sent to it goes.
pub(super) struct Subscribed {
    pub number: u32,
    pub partition: PartitionId,
    pub session: mpsc::UnboundedSender<Tell>,
}

#[derive(Default)]
pub(super) struct Mock {
    faults: Faults,
    /// Outcomes of the next publishes; random ones follow.
    script: VecDeque<Fate>,
    waiting: Vec<(mpsc::UnboundedSender<Tell>, Vec<u8>)>,
    /// Partition 0 lives on core 1, and the other way round.
    swapped: bool,
    /// The topic was deleted.
    pub is_gone: bool,
    pub subscribed: Vec<Subscribed>,
    pub unsubscribed: usize,
    pub credit: Vec<(u32, u64)>,
    pub finished: Vec<IdRange>,
    chance: u64,
    /// Bodies by partition.
    log: HashMap<u16, Vec<Vec<u8>>>,
    /// The next sequence, and where each batch was stored.
    producers: HashMap<(u16, u64), (u64, HashMap<u64, i64>)>,
}

impl Mock {
    fn hits(&mut self, thousandths: u64) -> bool {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) % 1000 < thousandths
    }

    /// Stores the batch once; the count of messages before it.
    fn store(
        &mut self,
        p: &ringmq_protocol::codec::native::Publish<'_>,
        payload: &[u8],
    ) -> std::result::Result<(i64, bool), Code> {
        let log = self.log.entry(p.partition.0).or_default();
        let count = log.len() as i64;
        let (next, known) = self.producers.entry((p.partition.0, p.producer_id)).or_default();
        if p.producer_id != 0 {
            if let Some(at) = known.get(&p.first_sequence) {
                return Ok((*at, true));
            }
            if p.first_sequence > *next {
                return Err(if *next == 0 { Code::UnknownProducer } else { Code::SequenceGap });
            }
            assert_eq!(p.first_sequence, *next, "a producer never overlaps itself");
            *next += p.num as u64;
            known.insert(p.first_sequence, count);
        }
        log.extend(Walk::resume(payload, LogId(1), 0).map(|m| m.body.to_vec()));
        Ok((count, false))
    }
}

pub(super) struct Setup {
    pub mock: Arc<Mutex<Mock>>,
    /// Publishes are not read.
    held: Arc<AtomicBool>,
    pub connections: Arc<AtomicUsize>,
}

fn scripted(script: impl IntoIterator<Item = Fate>) -> Setup {
    let setup = setup(Faults::default(), 1);
    setup.mock.lock().unwrap().script.extend(script);
    setup
}

pub(super) fn faultless() -> Setup {
    setup(Faults::default(), 1)
}

fn setup(faults: Faults, seed: u64) -> Setup {
    let mock = Arc::new(Mutex::new(Mock { faults, chance: seed, ..Mock::default() }));
    Setup { mock, held: Arc::default(), connections: Arc::default() }
}

impl Setup {
    pub async fn client(&self) -> Client {
        let (mock, held, connections) = (self.mock.clone(), self.held.clone(), self.connections.clone());
        let connector = move |_| {
            let (ours, theirs) = tokio::io::duplex(16 * 1024);
            connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(session(theirs, mock.clone(), held.clone()));
            async move { Ok(Box::pin(ours) as BoxedStream) }
        };
        let pauses = (Duration::from_millis(1), Duration::from_millis(2));
        Client::builder().connector(connector).pauses(pauses.0, pauses.1).connect().await.expect("the mock answers")
    }
}

impl Setup {
    /// Waits until the node is as the test wants it.
    pub async fn until(&self, is_so: impl Fn(&Mock) -> bool) {
        while !is_so(&self.mock.lock().unwrap()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets the oldest answer go that waits.
    fn let_go(&self) {
        let (session, answer) = self.mock.lock().unwrap().waiting.remove(0);
        session.send(Tell::Send(answer)).unwrap();
    }
}

async fn session(mut stream: DuplexStream, mock: Arc<Mutex<Mock>>, held: Arc<AtomicBool>) {
    let mut buffer = Vec::new();
    let (tx, mut rx) = mpsc::unbounded_channel();
    loop {
        let mut out = Vec::new();
        while let Ok(Some((header, meta))) = Header::parse(&buffer, 1 << 24) {
            let len = header.frame_len();
            if buffer.len() < len {
                break;
            }
            let payload = &buffer[HEADER_LEN + header.meta_len..len];
            header.check_payload(payload).expect("the client's checksum holds");
            let request = Request::decode(header.kind, meta).expect("the client keeps to the protocol");
            while matches!(request, Request::Publish(_)) && held.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if !handle(&mock, &header, &request, payload, &mut out, &tx) {
                let _ = stream.write_all(&out).await;
                return;
            }
            buffer.drain(..len);
        }
        if stream.write_all(&out).await.is_err() {
            return;
        }
        tokio::select! {
            read = stream.read_buf(&mut buffer) => if !read.is_ok_and(|n| n > 0) { return },
            told = rx.recv() => match told {
                Some(Tell::Send(bytes)) => if stream.write_all(&bytes).await.is_err() { return },
                Some(Tell::Lose) | None => return,
            },
        }
    }
}

/// False: the connection is lost.
fn handle(
    mock: &Mutex<Mock>,
    header: &Header,
    request: &Request<'_>,
    payload: &[u8],
    out: &mut Vec<u8>,
    session: &mpsc::UnboundedSender<Tell>,
) -> bool {
    let mut mock = mock.lock().unwrap();
    let fail = |code, retry| Reply::Error(NativeError { code, retry, message: "made up", core: 0, fatal: false });
    let partitions =
        (0..PARTITIONS).map(|i| PartitionInfo { id: PartitionId(i), core: i ^ mock.swapped as u16, node: 0 }).collect();
    let reply = match request {
        Request::Hello(hello) => Reply::Welcome(Welcome {
            version: 1,
            features: hello.features,
            node_id: [1; 16],
            node_version: "0",
            cores: PARTITIONS,
            core: hello.core.unwrap_or(0),
            max_frame_bytes: 1 << 20,
            max_message_bytes: 1 << 16,
            heartbeat_ms: 30_000,
            message_timeout_ms: 60_000,
        }),
        Request::GetTopics { .. } => {
            let topic = TopicInfo { name: "t", id: ringmq_protocol::base::TopicId([2; 16]), partitions };
            let topics = if mock.is_gone { vec![] } else { vec![topic] };
            Reply::Topics(Topics { topics, nodes: vec![NodeInfo { id: [1; 16], address: "" }], more: false })
        }
        Request::Publish(p) => {
            let Faults { lost_before, lost_after, later, unknown, wrong_core } = mock.faults;
            let fate = mock.script.pop_front();
            if matches!(fate, Some(Fate::Lose)) || mock.hits(lost_before) {
                return false;
            }
            if let Some(Fate::Refuse(code, retry)) = fate {
                fail(code, retry)
            } else if mock.hits(later) {
                fail(Code::TooMuchWaiting, Retry::Later)
            } else if mock.hits(wrong_core) {
                fail(Code::WrongCore, Retry::Refresh)
            } else {
                match mock.store(p, payload) {
                    Err(code) => fail(code, Retry::Never),
                    Ok(_) if matches!(fate, Some(Fate::StoreAndLose)) || mock.hits(lost_after) => return false,
                    Ok(_) if matches!(fate, Some(Fate::StoreInSilence)) => return true,
                    Ok(_) if mock.hits(unknown) => fail(Code::Outcome, Retry::Unknown),
                    Ok((count, duplicate)) => {
                        let at = Position { offset: count, count, log_id: LogId(count as u64 + 1) };
                        let reply = Reply::Published { at: Some(at), duplicate };
                        if matches!(fate, Some(Fate::StoreAndWait)) {
                            let mut answer = Vec::new();
                            Encoder::default().reply(&mut answer, header.request, &reply, Payload::NONE);
                            mock.waiting.push((session.clone(), answer));
                            return true;
                        }
                        reply
                    }
                }
            }
        }
        Request::Ping => Reply::Pong,
        Request::Subscribe(s) => {
            let is_there = |have: &Subscribed| have.partition == s.partition && have.session.same_channel(session);
            if mock.subscribed.iter().any(is_there) {
                fail(Code::BadSubscription, Retry::Never)
            } else {
                let (number, partition) = (s.subscription, s.partition);
                mock.subscribed.push(Subscribed { number, partition, session: session.clone() });
                let at = Position { offset: 0, count: 0, log_id: LogId(1) };
                Reply::Subscribed(ringmq_protocol::codec::native::Subscribed { subscription: number, created: false, at })
            }
        }
        Request::Credit { messages, bytes, .. } => {
            mock.credit.push((*messages, *bytes));
            return true;
        }
        Request::Finish { ranges, .. } => {
            mock.finished.extend(ranges);
            if header.request == 0 {
                return true;
            }
            Reply::Done { num: 0 }
        }
        Request::Unsubscribe { subscription } => {
            mock.unsubscribed += 1;
            Reply::Unsubscribed { subscription: *subscription, reason: "" }
        }
        other => panic!("not made up: {other:?}"),
    };
    Encoder::default().reply(out, header.request, &reply, Payload::NONE);
    true
}

pub(super) fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("it hangs") })
}

fn body(i: u64) -> Vec<u8> {
    let mut body = i.to_le_bytes().to_vec();
    body.resize(8 + (i as usize * 37) % 300, b'x');
    body
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Each message is acknowledged and stored once, in order, at the answered offset, whatever faults come.
    #[test]
    fn an_idempotent_producer_stores_each_message_once_and_in_order(
        seed: u64, lost in (0..60u64, 0..60u64), refused in (0..40u64, 0..40u64, 0..20u64), per_batch in 1..20u32, window in 1..8usize,
    ) {
        let faults = Faults {
            lost_before: lost.0, lost_after: lost.1, later: refused.0, unknown: refused.1, wrong_core: refused.2,
        };
        let setup = setup(faults, seed);
        run(async {
            let client = setup.client().await;
            let producer = client.producer("t").batch_messages(per_batch).window_batches(window).build().await.unwrap();
            let mut acks = Vec::new();
            for i in 0..300 {
                acks.push(producer.send_to((i % 2) as u16, &body(i)).await.unwrap());
            }
            for (i, ack) in acks.into_iter().enumerate() {
                let at = ack.await.expect("it gets through");
                assert_eq!((at.partition.0 as usize, at.at.unwrap().count as usize), (i % 2, i / 2));
            }
        });
        let mock = setup.mock.lock().unwrap();
        for partition in 0..2 {
            let expected: Vec<_> = (0..150).map(|i| body(2 * i + partition)).collect();
            prop_assert_eq!(&mock.log[&(partition as u16)], &expected);
        }
    }

    /// Loss of a connection is an unknown outcome without idempotence. Acknowledged messages are stored, and none is stored twice.
    #[test]
    fn without_idempotence_nothing_is_sent_twice(seed: u64, lost_before in 0..60u64, lost_after in 0..60u64, later in 0..40u64) {
        let setup = setup(Faults { lost_before, lost_after, later, ..Faults::default() }, seed);
        run(async {
            let client = setup.client().await;
            let producer = client.producer("t").idempotent(false).batch_messages(3).window_batches(4).build().await.unwrap();
            let mut acks = Vec::new();
            for i in 0..200 {
                acks.push(producer.send_to(0, &body(i)).await.unwrap());
            }
            for (i, ack) in acks.into_iter().enumerate() {
                match ack.await {
                    Ok(at) => assert_eq!(setup.mock.lock().unwrap().log[&0][at.at.unwrap().count as usize], body(i as u64)),
                    Err(error) => assert_eq!(error.retry(), Retry::Unknown, "{error}"),
                }
            }
        });
        let mock = setup.mock.lock().unwrap();
        let mut stored = mock.log.get(&0).cloned().unwrap_or_default();
        let num = stored.len();
        stored.sort();
        stored.dedup();
        prop_assert_eq!(stored.len(), num);
    }
}

#[test]
fn a_send_waits_while_the_window_is_full_and_what_is_dropped_then_was_not_taken() {
    let setup = setup(Faults::default(), 1);
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").window_bytes(1000).linger(Duration::ZERO).build().await.unwrap();
        setup.held.store(true, Ordering::Relaxed);
        let mut acks = Vec::new();
        for i in 0u64.. {
            match tokio::time::timeout(Duration::from_millis(100), producer.send_to(0, &[i as u8; 88])).await {
                Ok(ack) => acks.push(ack.unwrap()),
                Err(_) => break,
            }
        }
        assert_eq!(acks.len(), 10, "100 bytes each: no more than the window");
        setup.held.store(false, Ordering::Relaxed);
        for ack in acks {
            let _ = ack.await.unwrap();
        }
        producer.send_to(0, b"after").await.unwrap().await.unwrap();
        producer.close().await.unwrap();
    });
    let log = setup.mock.lock().unwrap().log[&0].clone();
    assert_eq!(log.len(), 11, "what was dropped is not there");
    assert_eq!(log[10], b"after");
}

#[test]
fn a_producer_that_the_node_forgot_goes_on_under_a_new_id() {
    let setup = setup(Faults::default(), 1);
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").build().await.unwrap();
        producer.send_to(0, b"one").await.unwrap().await.unwrap();
        setup.mock.lock().unwrap().producers.clear();
        // refused at its first try, so it was not stored: it goes again
        producer.send_to(0, b"two").await.unwrap().await.unwrap();
    });
    assert_eq!(setup.mock.lock().unwrap().log[&0], [b"one", b"two"]);
}

#[test]
fn what_is_given_up_says_that_nobody_knows() {
    let setup = setup(Faults { unknown: 1000, ..Faults::default() }, 1);
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").retry_for(Duration::from_millis(200)).build().await.unwrap();
        let error = producer.send_to(0, b"x").await.unwrap().await.expect_err("it never gets an answer");
        assert_eq!(error.retry(), Retry::Unknown, "{error}");
        setup.mock.lock().unwrap().faults = Faults { later: 1000, ..Faults::default() };
        let error = producer.send_to(0, b"y").await.unwrap().await.expect_err("it is refused each time");
        assert!(matches!(&error, Error::Expired { why, .. } if why.contains("made up")), "certainly not stored: {error}");
    });
}

#[test]
fn a_late_answer_is_of_no_other_batch() {
    let setup = scripted([Fate::StoreAndWait]);
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").batch_messages(1).retry_for(Duration::from_secs(2)).build().await.unwrap();
        let error = producer.send_to(0, b"late").await.unwrap().await.expect_err("its answer waits");
        assert_eq!(error.retry(), Retry::Unknown, "{error}");
        {
            let mut mock = setup.mock.lock().unwrap();
            mock.swapped = true;
            mock.script.push_back(Fate::Refuse(Code::WrongCore, Retry::Refresh));
            mock.script.extend([Fate::StoreAndWait; 6]);
        }
        let mut acks = Vec::new();
        for i in 0..6 {
            acks.push(producer.send_to(0, &[i]).await.unwrap());
            // each by itself: the requests of the new connection reach the number of the late one's
            setup.until(|mock| mock.waiting.len() == 2 + i as usize).await;
        }
        setup.let_go();
        // so that it comes before the others, on its own connection
        tokio::time::sleep(Duration::from_millis(50)).await;
        (0..6).for_each(|_| setup.let_go());
        for (i, ack) in acks.into_iter().enumerate() {
            assert_eq!(ack.await.unwrap().at.unwrap().count, 1 + i as i64);
        }
    });
}

#[test]
fn what_was_given_up_is_held_until_it_is_answered() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let builder = client.producer("t").window_bytes(1000).linger(Duration::ZERO).retry_for(Duration::from_millis(100));
        let producer = builder.build().await.unwrap();
        setup.held.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            let acks = [producer.send_to(0, &[0; 388]).await.unwrap(), producer.send_to(0, &[0; 888]).await.unwrap()];
            for ack in acks {
                assert_eq!(ack.await.expect_err("it is not read").retry(), Retry::Unknown);
            }
            let full = tokio::time::timeout(Duration::from_millis(50), producer.send_to(0, b"x")).await;
            assert!(full.is_err(), "the connection still has the bytes");
            setup.held.store(false, Ordering::Relaxed);
            let _ = producer.send_to(0, b"there is room again").await.unwrap().await;
            setup.held.store(true, Ordering::Relaxed);
        }
    });
}

#[test]
fn only_what_is_due_expires() {
    let setup = scripted([Fate::StoreAndWait, Fate::StoreAndWait]);
    run(async {
        let client = setup.client().await;
        for idempotent in [true, false] {
            setup.mock.lock().unwrap().script = [Fate::StoreAndWait; 2].into();
            let builder = client.producer("t").idempotent(idempotent).batch_messages(1).retry_for(Duration::from_secs(2));
            let producer = builder.build().await.unwrap();
            let early = producer.send_to(0, b"early").await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let late = producer.send_to(0, b"late").await.unwrap();
            assert_eq!(early.await.expect_err("its answer waits").retry(), Retry::Unknown);
            (0..2).for_each(|_| setup.let_go());
            late.await.expect("it has time left");
        }
    });
}

#[test]
fn without_idempotence_a_refusal_does_not_send_another_batch_twice() {
    let setup = scripted([Fate::Refuse(Code::BadBatch, Retry::Never), Fate::StoreAndLose]);
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").idempotent(false).batch_messages(1).build().await.unwrap();
        let (bad, good) = (producer.send_to(0, b"bad").await.unwrap(), producer.send_to(0, b"good").await.unwrap());
        assert_eq!(bad.await.expect_err("it is refused").code(), Some(Code::BadBatch));
        assert_eq!(good.await.expect_err("its answer is lost").retry(), Retry::Unknown);
        producer.send_to(0, b"next").await.unwrap().await.unwrap();
    });
    assert_eq!(setup.mock.lock().unwrap().log[&0], [&b"good"[..], b"next"]);
}

#[test]
fn what_may_be_stored_does_not_go_again_under_a_new_id() {
    let refusal = Fate::Refuse(Code::BadBatch, Retry::Never);
    let setup = scripted([Fate::StoreInSilence, Fate::StoreAndLose, refusal, Fate::Lose]);
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").batch_messages(1).build().await.unwrap();
        for ack in [producer.send_to(0, b"one").await.unwrap(), producer.send_to(0, b"two").await.unwrap()] {
            let error = ack.await.expect_err("nobody knows");
            assert_eq!(error.retry(), Retry::Unknown, "{error}");
        }
        producer.send_to(0, b"three").await.unwrap().await.unwrap();
    });
    assert_eq!(setup.mock.lock().unwrap().log[&0], [&b"one"[..], b"two", b"three"]);
}

#[test]
fn without_an_end_means_a_long_time() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").retry_for(Duration::MAX).linger(Duration::MAX).build().await.unwrap();
        let ack = producer.send_to(0, b"x").await.unwrap();
        producer.flush().await.unwrap();
        ack.await.unwrap();
    });
}

#[test]
fn a_producer_whose_runtime_is_gone_takes_nothing_more() {
    let setup = faultless();
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (producer, taken) = first.block_on(async {
        let builder = setup.client().await.producer("t").linger(Duration::MAX).window_bytes(1000);
        let producer = builder.build().await.unwrap();
        let taken = producer.send_to(0, &[0; 1500]).await.unwrap();
        (producer, taken)
    });
    drop(first);
    run(async {
        assert!(matches!(taken.await, Err(Error::Closed)), "it was not sent");
        assert!(matches!(producer.send_to(0, b"x").await, Err(Error::Closed)));
        assert!(matches!(producer.send_to(1, b"x").await, Err(Error::Closed)));
        assert!(matches!(producer.flush().await, Err(Error::Closed)), "it says what became of what it had taken");
    });
}

#[test]
fn a_name_that_no_frame_has_room_for_is_refused() {
    let setup = faultless();
    run(async {
        let client = setup.client().await;
        let long = "x".repeat(70_000);
        assert!(client.producer(&long).build().await.is_err_and(|e| e.retry() == Retry::Never));
        assert!(client.consumer(&long, "c").build().await.is_err_and(|e| e.retry() == Retry::Never));
        assert!(client.consumer("t", &long).build().await.is_err_and(|e| e.retry() == Retry::Never));
        assert!(client.find(&long, 0, Start::Newest).await.is_err_and(|e| e.retry() == Retry::Never));
        assert!(client.create_topic(&long, 1).await.is_err_and(|e| e.retry() == Retry::Never));
        assert!(client.topic(&long).await.is_err_and(|e| e.retry() == Retry::Never));
        assert!(Client::builder().client_id(long).connect().await.is_err_and(|e| e.retry() == Retry::Never));
    });
}

#[test]
fn questions_that_are_dropped_do_not_disturb_those_that_follow() {
    let setup = setup(Faults::default(), 1);
    run(async {
        let client = setup.client().await;
        for _ in 0..20 {
            // polled once: the question is on its way, and nobody waits for the answer
            let _ = tokio::time::timeout(Duration::ZERO, client.ping()).await;
        }
        client.ping().await.unwrap();
        assert_eq!(client.topics().await.unwrap()[0].partitions.len(), 2);
        assert_eq!(setup.connections.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_dropped_producer_still_sends_what_it_took() {
    let setup = setup(Faults::default(), 1);
    run(async {
        let client = setup.client().await;
        let producer = client.producer("t").linger(Duration::from_secs(50)).build().await.unwrap();
        let ack = producer.send_to(1, b"x").await.unwrap();
        drop((producer, client));
        ack.await.unwrap();
    });
    assert_eq!(setup.mock.lock().unwrap().log[&1], [b"x"]);
}
