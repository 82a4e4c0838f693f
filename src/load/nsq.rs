//! A connection of the generator that speaks NSQ V2.

use super::link::{Delivered, PublishAnswer};
use super::options::Options;
use super::wire::{CLIENT_ID, HANDSHAKE_LIMIT, USER_AGENT, Wire};
use crate::codec::nsq::frame::{self, Frame};
use crate::codec::nsq::{HEARTBEAT, MAGIC, OK, request};
use std::task::Context;
use tokio::time::timeout;

const READ_LEN: usize = 256 * 1024;

pub struct Nsq {
    wire: Wire,
    /// Indices of the topics that it publishes to, in turn.
    topics: Vec<usize>,
    turn: usize,
    /// True if the consumer reads in order: each body begins with its place.
    is_ordered: bool,
    /// Version that the server reported.
    pub server_version: Option<String>,
}

impl Nsq {
    /// Connected and identified; publishes to `topics`.
    pub async fn connect(options: &Options, topics: Vec<usize>) -> Result<Nsq, String> {
        match timeout(HANDSHAKE_LIMIT, Nsq::handshake(options, topics)).await {
            Ok(result) => result,
            Err(_) => Err(format!("connect: no answer to IDENTIFY within {HANDSHAKE_LIMIT:?}")),
        }
    }

    async fn handshake(options: &Options, topics: Vec<usize>) -> Result<Nsq, String> {
        let wire = Wire::connect(options, READ_LEN).await?;
        let mut nsq = Nsq { wire, topics, turn: 0, is_ordered: false, server_version: None };
        let mut identity = serde_json::json!({
            "client_id": CLIENT_ID, "user_agent": USER_AGENT, "feature_negotiation": true
        });
        if let Some(timeout) = options.output_buffer_timeout {
            identity["output_buffer_timeout"] = (timeout.as_millis() as u64).max(1).into();
        }
        nsq.wire.out.extend_from_slice(MAGIC);
        request::identify(&mut nsq.wire.out, identity.to_string().as_bytes());
        let answer = nsq.ask("IDENTIFY").await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
        nsq.server_version = answer["version"].as_str().map(String::from);
        Ok(nsq)
    }

    /// Subscribed; nothing is delivered before RDY.
    pub async fn subscribe(&mut self, options: &Options, topic: &str, channel: &str) -> Result<(), String> {
        self.is_ordered = options.ordered;
        let subscribe = if options.ordered { request::subscribe_ordered } else { request::subscribe_to };
        subscribe(&mut self.wire.out, topic, channel, options.partition);
        match timeout(HANDSHAKE_LIMIT, self.ask("SUB")).await {
            Ok(Ok(answer)) if answer == OK => Ok(()),
            Ok(Ok(answer)) => Err(format!("SUB: {}", unexpected(&answer))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(format!("SUB: no answer within {HANDSHAKE_LIMIT:?}")),
        }
    }

    /// Sends the bytes of `out` and waits for the one answer.
    async fn ask(&mut self, what: &str) -> Result<Vec<u8>, String> {
        let wire = &mut self.wire;
        // where that fails, reading says why: a server that closes may have said so
        let _ = wire.flush().await;
        loop {
            if let Some((frame, len)) =
                frame::decode(wire.unread()).map_err(|e| format!("{what}: {}", wire.name_other_protocol(e)))?
            {
                let answer = match frame {
                    Frame::Response(HEARTBEAT) => None,
                    Frame::Response(data) => Some(Ok(data.to_vec())),
                    Frame::Error(text) => Some(Err(format!("{what}: {}", String::from_utf8_lossy(text)))),
                    Frame::Message(_) => Some(Err(format!("{what}: the server answered with a message"))),
                };
                wire.took(len);
                match answer {
                    Some(answer) => return answer,
                    None => continue,
                }
            }
            if let Err(error) = wire.fill().await {
                return Err(format!("{what}: {}", wire.explain(&error)));
            }
        }
    }

    pub fn ready(&mut self, rdy: u32) {
        request::ready(&mut self.wire.out, rdy);
    }

    pub fn unsent(&self) -> usize {
        self.wire.unsent()
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> std::io::Result<bool> {
        self.wire.poll_flush(cx)
    }

    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> std::io::Result<bool> {
        self.wire.poll_fill(cx)
    }

    /// Publishes `count` messages; by PUB when every publish has one message.
    pub fn publish(&mut self, options: &Options, count: u32, mut write: impl FnMut(usize, u32, &mut Vec<u8>)) {
        let index = self.topics[self.turn];
        let topic = &options.topics[index];
        self.turn = if self.turn + 1 == self.topics.len() { 0 } else { self.turn + 1 };
        match count {
            1 if options.batch == 1 => {
                request::publish_with(&mut self.wire.out, topic, options.partition, |out| write(index, 0, out))
            }
            _ => request::multi_publish_with(&mut self.wire.out, topic, options.partition, count, |i, out| write(index, i, out)),
        }
    }

    /// An error frame answers the oldest publish too; a fatal one is followed by the end of the connection.
    pub fn answers(&mut self, mut each: impl FnMut(PublishAnswer<'_>) -> Result<(), String>) -> Result<(), String> {
        let (input, out) = self.wire.split();
        let mut at = 0;
        while let Some((frame, len)) = frame::decode(&input[at..]).map_err(|e| e.to_string())? {
            at += len;
            match frame {
                Frame::Response(OK) => each(PublishAnswer::Done(None))?,
                Frame::Response(HEARTBEAT) => request::nop(out),
                Frame::Response(other) => return Err(unexpected(other)),
                Frame::Error(text) => each(PublishAnswer::Refused(None, &String::from_utf8_lossy(text)))?,
                Frame::Message(_) => return Err("the server sent a message on a connection without a subscription".into()),
            }
        }
        self.wire.took(at);
        Ok(())
    }

    /// Finishes each message.
    pub fn deliveries(&mut self, mut each: impl FnMut(Delivered<'_>)) -> Result<(), String> {
        let (input, out) = self.wire.split();
        let mut at = 0;
        while let Some((frame, len)) = frame::decode(&input[at..]).map_err(|e| e.to_string())? {
            at += len;
            match frame {
                Frame::Message(message) => {
                    request::finish(out, &message.id);
                    let place = if self.is_ordered { frame::PLACE_LEN } else { 0 };
                    let body = message.body.get(place..).ok_or("the server sent a message of SUB_ORDERED without its offset")?;
                    each(Delivered::Message(body));
                }
                Frame::Response(HEARTBEAT) => request::nop(out),
                Frame::Response(other) => return Err(unexpected(other)),
                Frame::Error(text) => each(Delivered::Error(&String::from_utf8_lossy(text))),
            }
        }
        self.wire.took(at);
        Ok(())
    }
}

fn unexpected(answer: &[u8]) -> String {
    format!("an unexpected answer: {}", String::from_utf8_lossy(answer))
}
