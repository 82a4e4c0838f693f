//! One connection to one core of a node: a task that reads and writes, the requests that wait for answers, and the
//! subscriptions that messages go to.
//!
//! The task owns the socket. It never blocks on the callers: requests and credit bound the input (an answer per request, messages by
//! credit), the windows of producers and consumers bound the output. It never sends anything twice: a request that is not answered when
//! the connection ends fails with [`Error::Lost`], and the caller decides.

use super::error::{Broken, Error, Result};
use super::tls::{Secure, TlsError};
use bytes::{Buf, Bytes, BytesMut};
use ringmq_protocol::base::{PartitionId, Position};
use ringmq_protocol::codec::native::frame::FRAME_MAX;
use ringmq_protocol::codec::native::{
    Encoder, FEATURES, HEADER_LEN, Header, Hello, Malformed, Messages, OLDEST_VERSION, Payload, Publish, Reply, Request, VERSION,
};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};

/// A connected byte stream; TCP, TLS, or a stream of a test.
pub trait Stream: AsyncRead + AsyncWrite + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + 'static> Stream for T {}

/// A [`Stream`] of any kind.
pub type BoxedStream = Pin<Box<dyn Stream>>;

/// Room that a read is offered.
const READ_BYTES: usize = 256 * 1024;
/// Free space below which the read buffer is replaced, in bytes.
const READ_BYTES_MIN: usize = 32 * 1024;
/// First bytes of a TLS port's answer to a client without TLS.
pub const TLS_ALERT: [u8; 2] = [21, 3];
/// A payload up to this is copied behind its head; a larger one is sent from where it is.
const COPY_BYTES_MAX: usize = 2048;
const SLICES_MAX: usize = 64;

/// Answer to a request.
#[derive(Debug)]
pub(super) enum RequestAnswer {
    Published {
        at: Option<Position>,
        duplicate: bool,
    },
    Subscribed,
    Done,
    Unsubscribed,
    /// Topics, with the known native addresses of the cluster's other nodes.
    Topics {
        topics: Vec<TopicMap>,
        nodes: Vec<Arc<str>>,
        more: bool,
    },
    Found(Position),
    Pong,
}

/// A topic, and where its partitions live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMap {
    /// The name of the topic.
    pub name: String,
    /// The place in the list is the partition's number.
    pub partitions: Vec<CoreAddress>,
}

/// Node and core of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CoreAddress {
    /// Host and port.
    pub address: Arc<str>,
    /// The core of the node that owns the partition.
    pub core: u16,
}

/// Answer to a producer's try. The number names the try over all connections.
pub(super) type LaneAnswer = (u64, Result<RequestAnswer>);

enum Pending {
    Once(oneshot::Sender<Result<RequestAnswer>>),
    Lane(u64, mpsc::UnboundedSender<LaneAnswer>),
    Nobody,
}

pub(super) enum SubEvent {
    Messages(Messages, Bytes),
    Ended(Arc<str>),
}

/// Results of the handshake.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub address: Arc<str>,
    pub core: u16,
    pub max_frame_bytes: usize,
    pub max_message_bytes: usize,
    heartbeat: Duration,
}

#[derive(Default)]
struct SendBuffer {
    encoder: Encoder,
    /// Heads and small frames that are not a chunk yet.
    head: Vec<u8>,
    chunks: VecDeque<Bytes>,
    /// True when something was queued since the last heartbeat.
    used: bool,
    closing: bool,
}

#[derive(Default)]
struct Table {
    pending: HashMap<u64, Pending>,
    subs: HashMap<u32, mpsc::UnboundedSender<SubEvent>>,
    /// Reason why the link ended.
    fault: Option<Error>,
}

pub(super) struct Connection {
    pub facts: Facts,
    out: Mutex<SendBuffer>,
    wake: Notify,
    table: Mutex<Table>,
    next_request: AtomicU64,
    next_sub: AtomicU32,
}

/// Fields of the client's Hello.
#[derive(Clone, Debug)]
pub(super) struct Introduction {
    pub client_id: String,
    pub user_agent: String,
    pub heartbeat: Duration,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // no code panics while it holds one of these with half a change made
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Connection {
    /// Shakes hands over `stream`, and starts the connection's task.
    pub async fn open(
        mut stream: BoxedStream,
        secure: Option<&Secure>,
        address: Arc<str>,
        intro: &Introduction,
        core: Option<u16>,
    ) -> Result<Arc<Connection>> {
        let mut buffer = BytesMut::new();
        let facts = shake(&mut stream, &address, intro, core, &mut buffer).await.map_err(|e| match e {
            // the node looks at a client's certificate when the client is through with the handshake
            Failed::Broken(Broken::Io(e)) if let Some(error) = secure.and_then(|s| s.explain(&e)) => Error::tls(&address, error),
            Failed::Broken(Broken::Ended | Broken::Io(_) | Broken::Frame(_))
                if secure.is_none() && buffer.starts_with(&TLS_ALERT) =>
            {
                Error::tls(&address, TlsError::Wanted)
            }
            Failed::Broken(b) => b.into_error(&address),
            Failed::Refused(e) => e,
        })?;
        let link = Arc::new(Connection {
            facts,
            out: Mutex::default(),
            wake: Notify::new(),
            table: Mutex::default(),
            next_request: AtomicU64::new(1),
            next_sub: AtomicU32::new(1),
        });
        tokio::spawn(carry(link.clone(), stream, buffer));
        Ok(link)
    }

    pub fn is_alive(&self) -> bool {
        locked(&self.table).fault.is_none()
    }

    fn request_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    fn expect(&self, id: u64, pending: Pending) -> Result<()> {
        let mut table = locked(&self.table);
        match &table.fault {
            Some(fault) => Err(fault.clone()),
            None => {
                table.pending.insert(id, pending);
                Ok(())
            }
        }
    }

    fn queue(&self, id: u64, request: &Request<'_>, body: Option<(&Bytes, u32)>) {
        let mut out = locked(&self.out);
        let out = &mut *out;
        let payload = body.map_or(Payload::NONE, |(b, crc)| Payload { len: b.len(), crc });
        if payload.len > COPY_BYTES_MAX {
            out.encoder.request(&mut out.head, id, request, payload);
            let head = std::mem::take(&mut out.head);
            out.chunks.push_back(head.into());
            out.chunks.extend(body.map(|(b, _)| b.clone()));
        } else {
            out.encoder.request(&mut out.head, id, request, payload);
            if let Some((body, _)) = body {
                out.head.extend_from_slice(body);
            }
        }
        out.used = true;
        self.wake.notify_one();
    }

    /// Sends a batch; the answer, or why there is none, goes to `to` under `name`. Never waits.
    pub fn publish(
        &self,
        p: Publish<'_>,
        body: &Bytes,
        crc: u32,
        name: u64,
        to: &mpsc::UnboundedSender<LaneAnswer>,
    ) -> Result<()> {
        let id = self.request_id();
        self.expect(id, Pending::Lane(name, to.clone()))?;
        self.queue(id, &Request::Publish(p), Some((body, crc)));
        Ok(())
    }

    /// Sends a request that is not answered.
    pub fn tell(&self, request: &Request<'_>) {
        self.queue(0, request, None);
    }

    /// Asks, and waits for the answer. Dropping the future leaves the connection as it was: the answer is thrown away.
    pub async fn ask(&self, request: &Request<'_>) -> Result<RequestAnswer> {
        let id = self.request_id();
        let (tx, rx) = oneshot::channel();
        self.expect(id, Pending::Once(tx))?;
        self.queue(id, request, None);
        rx.await.unwrap_or(Err(Error::Closed))
    }

    /// A number for a subscription, and where its messages come. The receiver ends with the connection.
    pub fn new_subscription(&self) -> Result<(u32, mpsc::UnboundedReceiver<SubEvent>)> {
        let number = self.next_sub.fetch_add(1, Ordering::Relaxed);
        let (tx, rx) = mpsc::unbounded_channel();
        let mut table = locked(&self.table);
        if let Some(fault) = &table.fault {
            return Err(fault.clone());
        }
        table.subs.insert(number, tx);
        Ok((number, rx))
    }

    pub fn forget_subscription(&self, number: u32) {
        locked(&self.table).subs.remove(&number);
    }

    /// Reason why the link ended. `None`: it has not.
    pub fn fault(&self) -> Option<Error> {
        locked(&self.table).fault.clone()
    }

    /// Ends the connection once the queued output is sent.
    pub fn close(&self) {
        locked(&self.out).closing = true;
        self.wake.notify_one();
    }

    /// Ends it now, because the other side does not keep to the protocol.
    pub fn break_off(&self, error: Error) {
        self.die(error);
        self.wake.notify_one();
    }

    fn die(&self, error: Error) {
        let (pending, subs) = {
            let mut table = locked(&self.table);
            let fault = table.fault.get_or_insert(error).clone();
            (
                std::mem::take(&mut table.pending).into_iter().map(|p| (p, fault.clone())).collect::<Vec<_>>(),
                std::mem::take(&mut table.subs),
            )
        };
        drop(subs);
        for ((_, pending), fault) in pending {
            answer(pending, Err(fault));
        }
        let mut out = locked(&self.out);
        out.chunks.clear();
        out.head = Vec::new();
    }

    /// Takes the queued output; true: nothing more will follow.
    fn take(&self, to: &mut VecDeque<Bytes>) -> bool {
        let mut out = locked(&self.out);
        std::mem::swap(&mut out.chunks, to);
        if !out.head.is_empty() {
            let hint = out.head.len().min(4096);
            let head = std::mem::replace(&mut out.head, Vec::with_capacity(hint));
            to.push_back(head.into());
        }
        out.closing
    }

    fn dispatch(&self, frame: &Bytes, header: &Header, metadata: &[u8]) -> std::result::Result<(), Broken> {
        let reply = Reply::decode(header.kind, metadata);
        if header.request == 0 {
            return match reply {
                // a frame of a later version answers no request of this one
                Err(Malformed::UnknownKind(_)) => Ok(()),
                reply => self.unasked(frame, header, reply?),
            };
        }
        let Some(pending) = locked(&self.table).pending.remove(&header.request) else {
            return Err(Broken::Unexpected("the node answered an unknown request"));
        };
        let result = match reply {
            Ok(reply) => owned(&reply),
            Err(error) => Err(Error::protocol(&self.facts.address, error)),
        };
        answer(pending, result);
        Ok(())
    }

    fn unasked(&self, frame: &Bytes, header: &Header, reply: Reply<'_>) -> std::result::Result<(), Broken> {
        match reply {
            Reply::Messages(m) => {
                let payload = frame.slice(HEADER_LEN + header.meta_len..);
                let table = locked(&self.table);
                // a subscription that was given up may still have some on the way
                if let Some(sub) = table.subs.get(&m.subscription) {
                    let _ = sub.send(SubEvent::Messages(m, payload));
                }
                Ok(())
            }
            // nothing else was said for an interval
            Reply::Pong => Ok(()),
            Reply::Unsubscribed { subscription, reason } => {
                if let Some(sub) = locked(&self.table).subs.remove(&subscription) {
                    let _ = sub.send(SubEvent::Ended(reason.into()));
                }
                Ok(())
            }
            Reply::Error(e) if e.fatal => Err(Broken::Fatal(e.message.to_owned())),
            Reply::Error(e) => {
                tracing::warn!(address = %self.facts.address, code = ?e.code, "the node refuses an unanswered request: {}", e.message);
                Ok(())
            }
            _ => Err(Broken::Unexpected("the node sent an answer to no request")),
        }
    }
}

fn answer(pending: Pending, result: Result<RequestAnswer>) {
    match pending {
        // the caller may have gone
        Pending::Once(to) => drop(to.send(result)),
        Pending::Lane(name, to) => drop(to.send((name, result))),
        Pending::Nobody => {}
    }
}

fn owned(reply: &Reply<'_>) -> Result<RequestAnswer> {
    Ok(match reply {
        &Reply::Published { at, duplicate } => RequestAnswer::Published { at, duplicate },
        Reply::Subscribed(_) => RequestAnswer::Subscribed,
        Reply::Done { .. } => RequestAnswer::Done,
        Reply::Unsubscribed { .. } => RequestAnswer::Unsubscribed,
        Reply::Topics(t) => {
            let addresses: Vec<Arc<str>> = t.nodes.iter().map(|n| n.address.into()).collect();
            let topics = t.topics.iter().map(|topic| {
                let place = |p: &ringmq_protocol::codec::native::PartitionInfo| CoreAddress {
                    address: addresses[p.node as usize].clone(),
                    core: p.core,
                };
                TopicMap { name: topic.name.to_owned(), partitions: topic.partitions.iter().map(place).collect() }
            });
            let topics = topics.collect();
            RequestAnswer::Topics { topics, nodes: addresses.into_iter().filter(|a| !a.is_empty()).collect(), more: t.more }
        }
        Reply::Found(f) => RequestAnswer::Found(f.at),
        Reply::Pong => RequestAnswer::Pong,
        Reply::Error(e) => return Err(e.into()),
        Reply::Welcome(_) | Reply::Messages(_) => {
            return Err(Error::Protocol { address: "the node".into(), why: "the answer's kind does not fit the request".into() });
        }
    })
}

enum Failed {
    Broken(Broken),
    Refused(Error),
}

impl<E: Into<Broken>> From<E> for Failed {
    fn from(e: E) -> Failed {
        Failed::Broken(e.into())
    }
}

async fn shake(
    stream: &mut BoxedStream,
    address: &Arc<str>,
    intro: &Introduction,
    core: Option<u16>,
    buffer: &mut BytesMut,
) -> std::result::Result<Facts, Failed> {
    let hello = Hello {
        version: VERSION,
        oldest_version: OLDEST_VERSION,
        features: FEATURES,
        client_id: &intro.client_id,
        hostname: "",
        user_agent: &intro.user_agent,
        core,
        max_frame_bytes: 0,
        heartbeat_ms: u32::try_from(intro.heartbeat.as_millis()).unwrap_or(u32::MAX),
        auth_method: "",
        auth: &[],
    };
    let mut bytes = Vec::new();
    Encoder::default().request(&mut bytes, 1, &Request::Hello(hello), Payload::NONE);
    let written = async {
        stream.write_all(&bytes).await?;
        stream.flush().await
    };
    // a node that closes meanwhile has said why: that is read first
    let written = written.await;
    loop {
        if let Some((header, metadata)) = Header::parse(buffer, FRAME_MAX)? {
            let facts = match Reply::decode(header.kind, metadata)? {
                Reply::Welcome(w) => Facts {
                    address: address.clone(),
                    core: w.core,
                    max_frame_bytes: (w.max_frame_bytes as usize).min(FRAME_MAX),
                    max_message_bytes: w.max_message_bytes as usize,
                    heartbeat: Duration::from_millis(w.heartbeat_ms.max(1) as u64),
                },
                Reply::Error(e) => return Err(Failed::Refused((&e).into())),
                _ => return Err(Broken::Unexpected("the node's answer to Hello is not Welcome").into()),
            };
            if header.payload_len > 0 {
                return Err(Broken::Unexpected("the node's Welcome has a payload").into());
            }
            buffer.advance(header.frame_len());
            return Ok(facts);
        }
        if stream.read_buf(buffer).await? == 0 {
            written?;
            return Err(Broken::Ended.into());
        }
    }
}

/// The connection's task.
async fn carry(link: Arc<Connection>, stream: BoxedStream, buffer: BytesMut) {
    let (reader, writer) = tokio::io::split(stream);
    let broken = tokio::select! {
        broken = read(&link, reader, buffer) => broken,
        broken = write(&link, writer) => broken,
    };
    tracing::debug!(address = %link.facts.address, core = link.facts.core, "the connection ended: {broken}");
    link.die(broken.into_error(&link.facts.address));
}

async fn read(link: &Connection, mut reader: impl AsyncRead + Unpin, mut buffer: BytesMut) -> Broken {
    let mut ticker = tokio::time::interval(link.facts.heartbeat / 2);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut silent_ticks = 0;
    loop {
        let missing = match deliver(link, &mut buffer) {
            Ok(missing) => missing,
            Err(broken) => return broken,
        };
        if buffer.capacity() - buffer.len() < missing.max(READ_BYTES_MIN) {
            buffer.reserve(missing.max(READ_BYTES));
        }
        tokio::select! {
            read = reader.read_buf(&mut buffer) => match read {
                Ok(0) => return Broken::Ended,
                Ok(_) => silent_ticks = 0,
                Err(error) => return error.into(),
            },
            _ = ticker.tick() => {
                if silent_ticks >= 4 {
                    return Broken::Silent;
                }
                silent_ticks += 1;
                let used = std::mem::take(&mut locked(&link.out).used);
                if !used || silent_ticks > 1 {
                    let id = link.request_id();
                    if link.expect(id, Pending::Nobody).is_ok() {
                        link.queue(id, &Request::Ping, None);
                    }
                }
            }
        }
    }
}

/// Dispatches the whole frames at the start of `buffer`; how many bytes the next one lacks, as far as is known.
fn deliver(link: &Connection, buffer: &mut BytesMut) -> std::result::Result<usize, Broken> {
    loop {
        let Some((header, _)) = Header::parse(buffer, FRAME_MAX)? else { return Ok(0) };
        let len = header.frame_len();
        if buffer.len() < len {
            return Ok(len - buffer.len());
        }
        let frame = buffer.split_to(len).freeze();
        let (metadata, payload) = frame[HEADER_LEN..].split_at(header.meta_len);
        header.check_payload(payload)?;
        link.dispatch(&frame, &header, metadata)?;
    }
}

async fn write(link: &Connection, mut writer: impl AsyncWrite + Unpin) -> Broken {
    let mut queue: VecDeque<Bytes> = VecDeque::new();
    loop {
        let closing = link.take(&mut queue);
        if !link.is_alive() {
            return Broken::Ended;
        }
        while !queue.is_empty() {
            if let Err(error) = write_some(&mut writer, &mut queue).await {
                return error.into();
            }
        }
        if let Err(error) = writer.flush().await {
            return error.into();
        }
        if closing {
            let _ = writer.shutdown().await;
            return Broken::Ended;
        }
        link.wake.notified().await;
    }
}

async fn write_some(writer: &mut (impl AsyncWrite + Unpin), queue: &mut VecDeque<Bytes>) -> io::Result<()> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let filled = queue.iter().take(SLICES_MAX).zip(&mut slices).map(|(b, s)| *s = IoSlice::new(b)).count();
    let mut written = writer.write_vectored(&slices[..filled]).await?;
    if written == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    while let Some(first) = queue.front_mut() {
        if written < first.len() {
            first.advance(written);
            break;
        }
        written -= first.len();
        queue.pop_front();
    }
    Ok(())
}

/// The partition as a request names it.
pub(super) fn partition_of(place: usize) -> PartitionId {
    PartitionId(u16::try_from(place).unwrap_or(u16::MAX))
}
