//! The TCP side: one task for each connection of a node, around its [`Session`].

use crate::About;
use crate::daemon::{RegistryClock, each_connection};
use crate::session::{Flow, Session};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// Time for a connection to become a node's. An identified one may be silent: its node is inactive then, and comes back with a PING.
const IDENTIFY_LIMIT: Duration = Duration::from_secs(60);
/// An identified connection without a byte for so long is a node that vanished; a live one pings every 15 s, and would connect anew.
const SILENCE_LIMIT: Duration = Duration::from_secs(3600);
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Time for reading further input, so that the reset does not overtake the last answer.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const DRAIN_BYTES_MAX: usize = 1 << 20;

/// Serves until `stopping` closes.
pub async fn serve(
    listener: TcpListener,
    shared: Rc<RegistryClock>,
    about: About,
    connections_max: usize,
    stopping: watch::Receiver<()>,
) {
    let about = Rc::new(about);
    let converse = |stream, remote: SocketAddr| {
        let (shared, about, mut stopping) = (shared.clone(), about.clone(), stopping.clone());
        async move {
            let mut session = Session::new(remote.to_string());
            let result = tokio::select! {
                result = converse(stream, &mut session, &shared, &about) => result,
                _ = stopping.changed() => Ok(()),
            };
            shared.with(|registry, _| session.end(registry));
            if let Err(error) = result {
                tracing::debug!(%remote, %error, "a connection broke");
            }
        }
    };
    let refuse = |_, remote| {
        tracing::warn!(%remote, connections_max, "a node is refused: there are too many connections (--max-connections)");
    };
    each_connection(listener, connections_max, stopping.clone(), converse, refuse).await;
}

async fn converse(mut stream: TcpStream, session: &mut Session, shared: &RegistryClock, about: &About) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 4096];
    let mut out = Vec::new();
    let opened = tokio::time::Instant::now();
    loop {
        // Bytes that make no node of it do not prolong it.
        let deadline = match session.is_identified() {
            true => tokio::time::Instant::now() + SILENCE_LIMIT,
            false => opened + IDENTIFY_LIMIT,
        };
        let read = tokio::time::timeout_at(deadline, stream.read(&mut buffer)).await??;
        let flow = match read {
            0 => {
                session.end_of_input(&mut out);
                Flow::Close
            }
            _ => shared.with(|registry, now| session.receive(&buffer[..read], registry, about, now, &mut out)),
        };
        if !out.is_empty() {
            timeout(WRITE_LIMIT, stream.write_all(&out)).await??;
            out.clear();
        }
        if flow == Flow::Close {
            stream.shutdown().await?;
            let mut drained = 0;
            let drain = async {
                while drained < DRAIN_BYTES_MAX {
                    match stream.read(&mut buffer).await? {
                        0 => break,
                        n => drained += n,
                    }
                }
                Ok::<_, io::Error>(())
            };
            return timeout(DRAIN_LIMIT, drain).await.unwrap_or(Ok(()));
        }
    }
}
