//! The changes of the prefix, as one stream of lines of JSON.
//!
//! The place of a watch is the mod_revision of the last *event* heard; a message's header may be ahead of its events. A watch is opened
//! anew from that place when its connection ends, its endpoint is left, or [`RENEWED_EVERY`] has passed: a member that forgot the watch
//! would be silent as one that has nothing to tell.

use super::fault::{self, Fault};
use super::json::{self, WatchMessage};
use super::link::EtcdConnection;
use super::{CONNECT_PATIENCE, Etcd, PATIENCE};
use crate::metadata::request::Change;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Longest life of one stream.
pub const RENEWED_EVERY: Duration = Duration::from_secs(20);
/// Longest message. A thousand revisions come in one; the values are small.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Reason why a watch ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEnd {
    /// The connection was lost. The watch may be opened again from the last revision heard.
    Lost(String),
    /// The revisions after the last one heard are compacted: all keys have to be listed again.
    Compacted { revision: u64 },
}

struct Stream {
    /// Ends the connection.
    _link: EtcdConnection,
    body: Incoming,
    /// Received bytes of an incomplete line.
    buffer: Vec<u8>,
    /// Length of the part of `buffer` that has no end of a line.
    looked: usize,
}

pub async fn follow(etcd: &Etcd, from: u64, heard: &mut dyn FnMut(Vec<Change>)) -> WatchEnd {
    let mut next = from;
    loop {
        let era = *etcd.era.borrow();
        let mut left = etcd.era.subscribe();
        let until = Instant::now() + RENEWED_EVERY;
        let lasted = async {
            let mut stream = open(etcd, next).await?;
            etcd.answered();
            loop {
                match timeout_at(until, stream.next()).await {
                    Err(_) => return Ok(None),
                    Ok(told) => match told? {
                        WatchMessage::Created => {}
                        WatchMessage::Changes(changes) => {
                            next = changes.last().map_or(next, |change| revision_of(change) + 1);
                            heard(changes);
                        }
                        WatchMessage::Compacted { revision } => return Ok(Some(WatchEnd::Compacted { revision })),
                        WatchMessage::Canceled(why) => return Ok(Some(WatchEnd::Lost(format!("etcd ended the watch: {why}")))),
                    },
                }
            }
        };
        let ended: Result<Option<WatchEnd>, Fault> = tokio::select! {
            biased;
            _ = left.wait_for(|now| *now != era) => return WatchEnd::Lost("the node has left the endpoint".into()),
            ended = lasted => ended,
        };
        match ended {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            Err(fault) => {
                let fault = fault.at(etcd.endpoint());
                if fault.judged == fault::RequestOutcome::Token {
                    etcd.token.replace(None);
                } else {
                    etcd.leave(era, &fault);
                }
                return WatchEnd::Lost(fault.to_string());
            }
        }
    }
}

/// A stream that etcd has answered.
async fn open(etcd: &Etcd, from: u64) -> Result<Stream, Fault> {
    let until = Instant::now() + PATIENCE;
    let token = etcd.token(until).await?;
    let connect = until.min(Instant::now() + CONNECT_PATIENCE);
    let mut link = EtcdConnection::connect(etcd.endpoint(), etcd.options.tls.clone(), connect).await?;
    let body = json::watch(etcd.options.prefix.as_bytes(), from).to_string();
    let opened = timeout_at(until, link.open("/v3/watch", &body, token.as_deref())).await;
    let response = opened.map_err(|_| Fault::silent())??;
    let mut stream = Stream { _link: link, body: response.into_body(), buffer: vec![], looked: 0 };
    match timeout_at(until, stream.next()).await {
        Err(_) => Err(Fault::silent()),
        Ok(Err(fault)) => Err(fault),
        Ok(Ok(WatchMessage::Created)) => Ok(stream),
        Ok(Ok(WatchMessage::Canceled(why))) => Err(Fault::not_etcd(format!("etcd refuses the watch: {why}"))),
        Ok(Ok(other)) => Err(Fault::not_etcd(format!("a watch begins with {other:?}"))),
    }
}

impl Stream {
    async fn next(&mut self) -> Result<WatchMessage, Fault> {
        loop {
            if let Some(at) = self.buffer[self.looked..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=self.looked + at).collect();
                self.looked = 0;
                let value: Value = serde_json::from_slice(&line).map_err(Fault::not_etcd)?;
                return match fault::error_of(&value) {
                    Some(fault) => Err(fault),
                    None => json::told(value),
                };
            }
            self.looked = self.buffer.len();
            let frame = self.body.frame().await.ok_or_else(|| Fault::from_end("the watch ended"))?;
            let frame = frame.map_err(|e| Fault::from_end(format!("the watch is lost: {e}")))?;
            if let Some(bytes) = frame.data_ref() {
                if self.buffer.len() + bytes.len() > MESSAGE_BYTES_MAX {
                    return Err(Fault::not_etcd("a message of a watch is too long"));
                }
                self.buffer.extend_from_slice(bytes);
            }
        }
    }
}

fn revision_of(change: &Change) -> u64 {
    match change {
        Change::Put(kv) => kv.mod_revision,
        Change::Deleted { mod_revision, .. } => *mod_revision,
    }
}
