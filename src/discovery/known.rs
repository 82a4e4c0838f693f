//! A new topic's known channels: asked of every nsqlookupd over its HTTP, and handed on to be created.
//!
//! nsqd holds back the topic's first messages meanwhile. Here they are in the log, and a channel that comes late begins at the first one.

use super::questions::Question;
use super::{ChannelsToCreate, Discovery};
use crate::base::{ChannelName, TopicRef};
use crate::config::Settings;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::collections::BTreeSet;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Number of tries for a topic that comes right after startup, while the nsqlookupds are not connected yet.
const TRIES: u32 = 100;
const TRY_INTERVAL: Duration = Duration::from_millis(50);
const BODY_BYTES_MAX: usize = 4 << 20;

/// Limits of one question to one nsqlookupd.
pub struct Limits {
    connect: Duration,
    request: Duration,
}

impl Limits {
    pub fn of(settings: &Settings) -> Self {
        Limits {
            connect: Duration::from_millis(settings.http_client_connect_timeout_ms),
            request: Duration::from_millis(settings.http_client_request_timeout_ms),
        }
    }
}

pub async fn ask(discovery: Rc<Discovery>, topic: TopicRef, question: Question) {
    for _ in 0..TRIES {
        if discovery.peers().iter().all(|peer| peer.was_tried()) {
            break;
        }
        sleep(TRY_INTERVAL).await;
    }
    // Many topics at once ask a few at a time.
    let _permit = discovery.asking.acquire().await;
    let mut names = BTreeSet::new();
    let mut asked = 0;
    for address in discovery.peers().iter().filter_map(|peer| peer.http()) {
        match timeout(discovery.limits.request, channels_of(&address, &asking(&topic.name), discovery.limits.connect)).await {
            Ok(Ok(channels)) => {
                asked += 1;
                names.extend(channels);
            }
            Ok(Err(error)) => {
                tracing::warn!(topic = %topic.name, lookupd = address, %error, "an nsqlookupd did not answer with a topic's channels")
            }
            Err(_) => {
                tracing::warn!(topic = %topic.name, lookupd = address, "an nsqlookupd does not answer (--http-client-request-timeout)")
            }
        }
    }
    if asked == 0 {
        tracing::warn!(
            topic = %topic.name,
            "no nsqlookupd could be asked for the channels of a new topic: each channel is created by its first consumer"
        );
    }
    // An ephemeral channel without a consumer would go at once.
    let named = names.iter().filter_map(|name| ChannelName::new(name).ok());
    let channels: Vec<ChannelName> = named.filter(|channel| !channel.is_ephemeral()).collect();
    if !channels.is_empty() {
        // The task that creates them may have ended with the node.
        let _ = discovery.wanted.send(ChannelsToCreate { topic, channels, question });
    }
}

/// Path of the question for a topic's channels.
pub fn asking(topic: &str) -> String {
    format!("/channels?topic={}", topic.replace('#', "%23"))
}

/// Answer to an [`asking`] path, at a host and port that speak HTTP.
pub async fn channels_of(address: &str, path: &str, connect: Duration) -> Result<Vec<String>, Box<dyn Error>> {
    let stream = TokioIo::new(timeout(connect, TcpStream::connect(address)).await??);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let carrier = tokio::task::spawn_local(connection);
    let request = Request::get(path)
        .header("host", address)
        .header("accept", "application/vnd.nsq; version=1.0")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await.map_err(|error| error.to_string());
    carrier.abort();
    let body = body?.to_bytes();
    if !status.is_success() {
        return Err(format!("the nsqlookupd answers {status}").into());
    }
    #[derive(serde::Deserialize)]
    struct Channels {
        channels: Vec<String>,
    }
    Ok(serde_json::from_slice::<Channels>(&body)?.channels)
}
