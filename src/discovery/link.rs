//! The task of one nsqlookupd: connects, identifies the node, registers the catalog's entries, and pings.

use super::announced::Announced;
use super::{Discovery, Identity};
use crate::base::TopicName;
use ringmq_lookupd::NSQ_VERSION;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// nsqd's interval; an nsqlookupd hides a node that is silent for five minutes.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Commands that are sent before their answers are read.
const LINES_MAX: usize = 64;
/// An answer is `OK`, an error, or a small object.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// State of one nsqlookupd that the rest of the thread reads.
pub struct Peer {
    address: String,
    told: RefCell<Announced>,
    changed: Notify,
    /// HTTP address that the nsqlookupd reports.
    http: RefCell<Option<String>>,
    /// A connection was made, or could not be.
    was_tried: Cell<bool>,
}

impl Peer {
    pub fn new(address: String) -> Self {
        let (told, changed) = (RefCell::default(), Notify::new());
        Peer { address, told, changed, http: RefCell::new(None), was_tried: Cell::new(false) }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn touch(&self, name: &TopicName) {
        self.told.borrow_mut().touch(name);
        self.changed.notify_one();
    }

    pub fn http(&self) -> Option<String> {
        self.http.borrow().clone()
    }

    pub fn was_tried(&self) -> bool {
        self.was_tried.get()
    }
}

/// Never ends by itself.
pub async fn run(peer: Rc<Peer>, discovery: Rc<Discovery>, identity: Identity) {
    let mut pause = PAUSE_MIN;
    loop {
        let mut is_connected = false;
        let result = converse(&peer, &discovery, &identity, &mut is_connected).await;
        let Err(error) = result;
        peer.was_tried.set(true);
        peer.http.replace(None);
        if is_connected {
            pause = PAUSE_MIN;
            tracing::warn!(lookupd = peer.address, %error, "the connection to an nsqlookupd is lost");
        } else if pause == PAUSE_MIN || pause == PAUSE_MAX {
            tracing::warn!(lookupd = peer.address, %error, "an nsqlookupd cannot be reached; the node tries again");
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn converse(
    peer: &Peer,
    discovery: &Discovery,
    identity: &Identity,
    is_connected: &mut bool,
) -> io::Result<std::convert::Infallible> {
    let mut stream = limited(CONNECT_LIMIT, TcpStream::connect(&peer.address)).await?;
    stream.set_nodelay(true)?;
    let body = serde_json::json!({
        "broadcast_address": identity.broadcast_address,
        "hostname": identity.hostname,
        "http_port": identity.http_port,
        "tcp_port": identity.tcp_port,
        "version": NSQ_VERSION,
    })
    .to_string();
    let hello = [b"  V1IDENTIFY\n", &(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat();
    limited(ANSWER_LIMIT, stream.write_all(&hello)).await?;
    let answer = read_answer(&mut stream).await?;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let Ok(about) = serde_json::from_slice::<serde_json::Value>(&answer) else {
        return Err(invalid(format!("the nsqlookupd answers IDENTIFY with {}", String::from_utf8_lossy(&answer))));
    };
    let http = about["broadcast_address"].as_str().filter(|host| !host.is_empty()).zip(about["http_port"].as_u64());
    tracing::info!(lookupd = peer.address, %about, "registering with an nsqlookupd");
    peer.http
        .replace(http.map(|(host, port)| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }));
    peer.was_tried.set(true);
    *is_connected = true;
    peer.told.borrow_mut().restart(&discovery.catalog.borrow());
    let mut ping_at = Instant::now() + PING_INTERVAL;
    loop {
        let lines = peer.told.borrow_mut().next(&discovery.catalog.borrow(), LINES_MAX);
        if !lines.is_empty() {
            command(&mut stream, peer, &lines).await?;
            continue;
        }
        tokio::select! {
            () = peer.changed.notified() => {}
            // It says nothing unasked: this is its end.
            readable = stream.readable() => {
                readable?;
                let mut byte = [0];
                match stream.try_read(&mut byte) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => return Err(invalid("the nsqlookupd sent an answer to no command".into())),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            () = tokio::time::sleep_until(ping_at) => {
                command(&mut stream, peer, &["PING\n".into()]).await?;
                ping_at = Instant::now() + PING_INTERVAL;
            }
        }
    }
}

/// Sends the lines, then reads as many answers.
async fn command(stream: &mut TcpStream, peer: &Peer, lines: &[String]) -> io::Result<()> {
    limited(ANSWER_LIMIT, stream.write_all(lines.concat().as_bytes())).await?;
    for line in lines {
        let answer = read_answer(stream).await?;
        let line = line.trim_end();
        match &answer[..] {
            b"OK" if line == "PING" => tracing::debug!(lookupd = peer.address, "a ping was answered"),
            b"OK" => tracing::info!(lookupd = peer.address, "{line}"),
            other => {
                tracing::warn!(lookupd = peer.address, answer = %String::from_utf8_lossy(other), "an nsqlookupd refuses {line}")
            }
        }
    }
    Ok(())
}

async fn read_answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    limited(ANSWER_LIMIT, async {
        let length = stream.read_u32().await? as usize;
        if length > ANSWER_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the nsqlookupd's answer of {length} bytes is too long"),
            ));
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    })
    .await
}

async fn limited<T>(limit: Duration, doing: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, doing).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
