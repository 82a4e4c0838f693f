//! nsqd's HTTP API, also over HTTPS: /ping /info /stats, /config, POST /pub, /mpub, /topic/{create,delete,empty,pause,unpause},
//! /channel/{create,delete,empty,pause,unpause}; and /metrics, /channel/setoffset, /channel/setorder, /replica/acceptloss;
//! of a cluster's node also nsqlookupd's: /lookup, /topics, /channels, /nodes; hyper on one thread of its own.
//!
//! It owns its listener and its connections and knows nothing of disks or partitions' contents: everything it wants of a
//! core it asks with a ticket over the mesh ([`link`]). It takes part there as [`CoreId::HTTP`](crate::base::CoreId::HTTP).
//! Nothing a client does makes it grow: connections, bytes of bodies and the time without progress are bounded.

mod authd;
mod body;
mod channels;
mod cluster;
mod config;
mod debug;
mod discovered;
mod head;
mod link;
mod load;
mod lookups;
mod profile;
mod publish;
mod replicas;
mod routes;
mod statistics;
mod statsd;
mod stream;
#[cfg(test)]
mod tests;
mod topics;

use crate::codec::nsq::layers::Terms;
use crate::config::Settings;
use crate::coordinator::hub::Hub;
use crate::discovery::{Discovery, Identity};
use crate::mesh::{HttpPort, Wake};
use crate::metrics::Latency;
use crate::metrics::buckets::Buckets;
use crate::metrics::node::SpareBytes;
use head::{HeadLimited, Progress};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use link::CoreLink;
pub use routes::ROUTES;
use routes::Safety;
use std::cell::RefCell;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Time that requests may take after the stop of the node begins.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// Largest head of a request. A query holds two names; proxies add cookies and tokens.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Wakes the HTTP thread; the mesh gets it before the thread starts.
#[derive(Default)]
pub struct HttpWake(Notify);

impl Wake for HttpWake {
    fn wake(&self) {
        self.0.notify_one();
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("the listener of --http-address={address} cannot be used: {error}")]
    Listener { address: String, error: std::io::Error },
    #[error("cannot start the HTTP thread: {0}")]
    Thread(std::io::Error),
}

/// Listeners of the thread.
pub struct Listeners {
    pub http: Option<TcpListener>,
    /// Listener of `--lookupd-http-address`.
    pub lookups: Option<TcpListener>,
    /// Listener of `--https-address`, with the terms of its TLS.
    pub https: Option<(TcpListener, Terms)>,
}

impl Listeners {
    fn all(&self) -> impl Iterator<Item = &TcpListener> {
        self.http.iter().chain(&self.lookups).chain(self.https.as_ref().map(|(listener, _)| listener))
    }
}

/// Ports under which the node is reached; 0: the listener does not exist.
struct Ports {
    tcp: u16,
    http: u16,
    https: u16,
}

/// The least severe log line that is written, while the node runs.
pub trait LogLevel: Send {
    /// A word of `--log-level`.
    fn get(&self) -> &'static str;
    /// Sets the log level. The error is the reason why it cannot be changed.
    fn set(&self, level: &str) -> Result<(), String>;
}

/// Handles that requests need of the rest of the process.
pub struct NodeHandles {
    /// Bytes of kept space for new segments, for /stats.
    pub spare_bytes: SpareBytes,
    pub log_level: Box<dyn LogLevel>,
    /// Condition of a node with an etcd, and the way for operators' requests.
    pub hub: Option<Arc<Hub>>,
}

/// The running thread.
pub struct HttpServer {
    stop: Arc<Notify>,
    thread: JoinHandle<()>,
}

impl HttpServer {
    /// Starts the HTTP thread, which serves as soon as this returns. `tcp_port`: the NSQ port in /info.
    pub fn start(
        settings: &Settings,
        listeners: Listeners,
        cores: u16,
        tcp_port: u16,
        port: HttpPort,
        wake: Arc<HttpWake>,
        around: NodeHandles,
    ) -> Result<Self, HttpError> {
        let failed = |error| HttpError::Listener { address: settings.http_address.clone(), error };
        let port_of = |listener: Option<&TcpListener>| listener.and_then(|at| at.local_addr().ok()).map_or(0, |at| at.port());
        let http_port = port_of(listeners.http.as_ref());
        for listener in listeners.all() {
            listener.set_nonblocking(true).map_err(failed)?;
        }
        let https_port = port_of(listeners.https.as_ref().map(|(listener, _)| listener));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HttpError::Thread)?;
        let stop = Arc::new(Notify::new());
        let (settings, stopping) = (settings.clone(), stop.clone());
        let serve = move || {
            let ports = Ports { tcp: tcp_port, http: http_port, https: https_port };
            let node = Rc::new(Node::new(settings, CoreLink::new(port, cores), ports, around));
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, serve(node.clone(), listeners, wake, stopping));
            tracing::info!(publish_latency = %node.publish_latency.borrow(), "http stopped");
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(serve).map_err(HttpError::Thread)?;
        Ok(HttpServer { stop, thread })
    }

    /// Takes no further request and waits, a few seconds at most, for those that are being served.
    /// The cores must still run, since these requests wait for their answers.
    pub fn stop(self) {
        self.stop.notify_one();
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread ended in a panic");
        }
    }
}

/// State that every request may read; lives on the HTTP thread.
struct Node {
    settings: Settings,
    link: CoreLink,
    ports: Ports,
    around: NodeHandles,
    /// Channels of topics that other nodes lead.
    channels: lookups::Channels,
    /// Addresses in force: a request may change them.
    lookupds: RefCell<Option<Vec<String>>>,
    hostname: String,
    start_unix_s: i64,
    /// Kilobytes of bodies that may be held at a time.
    body_budget: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    connections_max: u32,
    topics: RefCell<publish::Topics>,
    publish_latency: RefCell<Latency>,
    publish_times: RefCell<Buckets>,
}

impl Node {
    fn new(settings: Settings, link: CoreLink, ports: Ports, around: NodeHandles) -> Self {
        let connections_max = connections_max(&settings);
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Node {
            link,
            ports,
            around,
            channels: lookups::Channels::default(),
            lookupds: RefCell::new(Some(settings.lookupd_tcp_addresses.clone())),
            hostname: hostname.trim().to_string(),
            start_unix_s: unix_s(),
            body_budget: Arc::new(Semaphore::new((settings.max_pub_waiting_size / body::PERMIT_BYTES) as usize)),
            connections: Arc::new(Semaphore::new(connections_max as usize)),
            connections_max,
            topics: RefCell::default(),
            publish_latency: RefCell::default(),
            publish_times: RefCell::default(),
            settings,
        }
    }

    /// Identity that lookups return.
    fn identity(&self) -> Identity {
        let or = |port: u16, own: u16| if port == 0 { own } else { port };
        Identity {
            broadcast_address: self.settings.broadcast_address.clone(),
            hostname: self.hostname.clone(),
            tcp_port: or(self.settings.broadcast_tcp_port, self.ports.tcp),
            http_port: or(self.settings.broadcast_http_port, self.ports.http),
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.settings.http_timeout_ms)
    }
}

/// Connections at a time. The default leaves half of the files that the process may open to the rest of it.
fn connections_max(settings: &Settings) -> u32 {
    let wanted = settings.max_http_connections as u32;
    if settings.given.contains("max-http-connections") {
        return wanted;
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let open_files = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
    open_files.map_or(wanted, |files: u32| wanted.min(files / 2).max(1))
}

fn unix_s() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

async fn serve(node: Rc<Node>, listeners: Listeners, wake: Arc<HttpWake>, stop: Arc<Notify>) {
    let Listeners { http, lookups, https } = listeners;
    // Closed when this function is done with it: every connection then finishes the request it is at.
    let (closing, closed) = watch::channel(());
    // A node alone answers for itself, and one of a cluster for all of it.
    let (of_cluster, alone) = if node.around.hub.is_some() { (lookups, None) } else { (None, lookups) };
    let (discovery, wanted) = Discovery::start(&node.settings, node.identity(), alone, closed.clone());
    node.link.set_discovery(discovery);
    tokio::task::spawn_local(discovered::create(node.clone(), wanted));
    tokio::task::spawn_local(load::tell(node.clone()));
    if !node.settings.statsd_address.is_empty() {
        tokio::task::spawn_local(statsd::push(node.clone()));
    }
    let carrier = tokio::task::spawn_local({
        let node = node.clone();
        async move { node.link.carry(&wake.0).await }
    });
    let authorizer = tokio::task::spawn_local(authd::answer_all(node.clone()));
    if let Some(address) = of_cluster.as_ref().and_then(|listener| listener.local_addr().ok()) {
        tracing::info!(%address, "the node answers lookups for its cluster");
    }
    let doors = [
        http.map(|listener| (listener, Door::Http)),
        https.map(|(listener, terms)| (listener, Door::Https(terms))),
        of_cluster.map(|listener| (listener, Door::Lookups)),
    ];
    let accepting: Vec<_> = doors
        .into_iter()
        .flatten()
        .map(|(listener, door)| tokio::task::spawn_local(accept(node.clone(), listener, door, closed.clone())))
        .collect();
    stop.notified().await;
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(closing);
    if timeout(STOP_LIMIT, node.connections.acquire_many(node.connections_max)).await.is_err() {
        tracing::warn!("http requests were cut off: they did not end within {STOP_LIMIT:?} of the stop");
    }
    authorizer.abort();
    carrier.abort();
}

/// Kind of a listener.
#[derive(Clone)]
enum Door {
    Http,
    Https(Terms),
    /// `--lookupd-http-address` of a cluster's node: answers lookups in the clear, also where HTTPS is required for the rest.
    Lookups,
}

async fn accept(node: Rc<Node>, listener: TcpListener, door: Door, closed: watch::Receiver<()>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "http cannot listen"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match node.connections.clone().try_acquire_owned() {
                Ok(permit) => {
                    tokio::task::spawn_local(begin(node.clone(), stream, door.clone(), permit, closed.clone()));
                }
                // A client that speaks TLS would not understand the answer.
                Err(_) if matches!(door, Door::Https(_)) => drop(stream),
                Err(_) => refuse(stream),
            },
            // Out of descriptors, most likely: it passes, and a busy loop would not help.
            Err(error) => {
                tracing::warn!(%error, "http cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Refuses a connection beyond the limit without waiting for it.
fn refuse(stream: TcpStream) {
    const ANSWER: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n\
        Content-Length: 34\r\n\r\n{\"message\":\"TOO_MANY_CONNECTIONS\"}";
    let _ = stream.try_write(ANSWER);
}

/// True if a client of HTTPS begins with HTTP, as Go sees that.
async fn speaks_http(stream: &TcpStream) -> bool {
    let mut begin = [0; 5];
    let read = stream.peek(&mut begin).await.unwrap_or(0);
    [&b"GET /"[..], b"HEAD ", b"POST ", b"PUT /", b"OPTIO"].contains(&&begin[..read])
}

/// Answers with Go's text, and reads a little more, so that a reset does not overtake the answer.
async fn refuse_without_tls(mut stream: TcpStream) -> std::io::Result<()> {
    const READ_BYTES_MAX: u64 = 1 << 20;
    stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n").await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(READ_BYTES_MAX), &mut tokio::io::sink()).await.map(drop)
}

async fn begin(node: Rc<Node>, stream: TcpStream, door: Door, permit: OwnedSemaphorePermit, closed: watch::Receiver<()>) {
    let limit = node.timeout();
    // Answers are small and sent whole.
    let _ = stream.set_nodelay(true);
    if matches!(door, Door::Https(_)) && timeout(limit, speaks_http(&stream)).await == Ok(true) {
        let _ = timeout(STOP_LIMIT, refuse_without_tls(stream)).await;
        return;
    }
    let stream = stream::WriteLimited::new(stream, limit);
    match door {
        Door::Http => converse(node, stream, Safety::Open, closed).await,
        Door::Lookups => converse(node, stream, Safety::OpenForLookups, closed).await,
        Door::Https(terms) => match timeout(limit, TlsAcceptor::from(terms.config()).accept(stream)).await {
            Ok(Ok(stream)) => converse(node, stream, Safety::Secure, closed).await,
            Ok(Err(error)) => tracing::debug!(%error, "an HTTPS client failed the handshake"),
            Err(_) => tracing::debug!("an HTTPS client did not end the handshake in time"),
        },
    }
    drop(permit);
}

async fn converse(
    node: Rc<Node>,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    safety: Safety,
    mut closed: watch::Receiver<()>,
) {
    let (progress, idle_limit) = (Progress::new(), Duration::from_millis(node.settings.http_idle_timeout_ms));
    let io = TokioIo::new(HeadLimited::new(stream, progress.clone(), node.timeout()));
    let service = hyper::service::service_fn(move |request| {
        let (node, progress) = (node.clone(), progress.clone());
        progress.begin_request();
        async move {
            let answer = routes::answer(&node, request, safety, Instant::now()).await;
            progress.end_request();
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut builder = http1::Builder::new();
    // Names of headers are written as nsqd writes them.
    builder.timer(TokioTimer::new()).header_read_timeout(idle_limit).max_buf_size(HEAD_BYTES_MAX).title_case_headers(true);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut stopping = false;
    loop {
        tokio::select! {
            done = connection.as_mut() => {
                if let Err(error) = done {
                    tracing::debug!(%error, "http connection ended");
                }
                break;
            }
            _ = closed.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
