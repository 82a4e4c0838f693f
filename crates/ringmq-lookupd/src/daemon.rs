//! The process: two listeners and one registry, on one thread of tokio, until it is told to stop.

use crate::options::Options;
use crate::registry::{Limits, Now, Registry};
use crate::{About, NSQ_VERSION, http, tcp};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Time that requests may take after the stop of the daemon begins.
const STOP_LIMIT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    #[error("cannot listen on --{flag}: {error}")]
    Listen { flag: &'static str, error: String },
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

/// The registry with its clocks. Lives on one thread; no borrow of it lasts over an await.
pub struct RegistryClock {
    registry: RefCell<Registry>,
    began: Instant,
}

impl RegistryClock {
    pub fn new(limits: Limits) -> Rc<Self> {
        Rc::new(RegistryClock { registry: RefCell::new(Registry::new(limits)), began: Instant::now() })
    }

    pub fn with<T>(&self, then: impl FnOnce(&mut Registry, Now) -> T) -> T {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix_ns = since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
        then(&mut self.registry.borrow_mut(), Now { elapsed: self.began.elapsed(), unix_ns })
    }
}

/// Runs until SIGTERM or SIGINT. `open` makes the listener of a `host:port`, or says why there is none.
pub fn run(options: Options, open: impl Fn(&str) -> Result<std::net::TcpListener, String>) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DaemonError::Runtime)?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let signals = signals().map_err(DaemonError::Signals)?;
        let (tcp_listener, tcp) = listen("tcp-address", open(&options.tcp_address))?;
        let (http_listener, http) = listen("http-address", open(&options.http_address))?;
        // In nsqlookupd's words, for programs that wait for this line.
        tracing::info!("TCP: listening on {tcp}");
        tracing::info!("HTTP: listening on {http}");
        tracing::info!(%tcp, %http, nsq_version = NSQ_VERSION, "nsqlookupd listens");
        let about = About {
            hostname: options.hostname.clone(),
            broadcast_address: options.broadcast_address.clone(),
            tcp_port: tcp.port(),
            http_port: http.port(),
        };
        let shared = RegistryClock::new(options.limits());
        let (stop, stopping) = watch::channel(());
        let nodes = tcp::serve(tcp_listener, shared.clone(), about, options.max_connections, stopping.clone());
        let clients = http::serve(http_listener, shared, options.max_connections, stopping);
        let (nodes, clients) = (tokio::task::spawn_local(nodes), tokio::task::spawn_local(clients));
        signals.await;
        tracing::info!("stopping");
        drop(stop);
        let ended = async { tokio::join!(nodes, clients) };
        if tokio::time::timeout(STOP_LIMIT, ended).await.is_err() {
            tracing::warn!("connections were cut off: they did not end within {STOP_LIMIT:?} of the stop");
        }
        Ok(())
    })
}

fn listen(flag: &'static str, opened: Result<std::net::TcpListener, String>) -> Result<(TcpListener, SocketAddr), DaemonError> {
    let listener = opened.map_err(|error| DaemonError::Listen { flag, error })?;
    let ready = listener.set_nonblocking(true).and_then(|()| Ok((listener.local_addr()?, TcpListener::from_std(listener)?)));
    let (local, listener) = ready.map_err(|error| DaemonError::Listen { flag, error: error.to_string() })?;
    Ok((listener, local))
}

fn signals() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Connections of a listener: each is a task that `converse` makes, at most `max` at a time. One beyond that goes to `refuse`. Ends
/// when `stopping` has closed and all tasks are over.
pub(crate) async fn each_connection<C: Future<Output = ()> + 'static>(
    listener: TcpListener,
    max: usize,
    mut stopping: watch::Receiver<()>,
    converse: impl Fn(TcpStream, SocketAddr) -> C,
    refuse: impl Fn(TcpStream, SocketAddr),
) {
    let permits = Arc::new(Semaphore::new(max));
    loop {
        let (stream, remote) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = stopping.changed() => break,
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            refuse(stream, remote);
            continue;
        };
        let conversation = converse(stream, remote);
        tokio::task::spawn_local(async move {
            conversation.await;
            drop(permit);
        });
    }
    let all = u32::try_from(max).unwrap_or(u32::MAX);
    let _ = permits.acquire_many(all).await;
}

/// The next connection. A failure, out of descriptors most likely, passes; a busy loop would not help.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => return (stream, canonical(remote)),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The address of an IPv4 client of a listener for both versions of IP as IPv4's.
fn canonical(remote: SocketAddr) -> SocketAddr {
    match remote.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, remote.port()),
        IpAddr::V6(_) => remote,
    }
}
