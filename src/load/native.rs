//! A connection of the generator that speaks the native protocol: one socket for each core on which partitions of its topics
//! live. Batches are encoded in the socket's buffer, and walked where they were read; nothing is allocated for a message.
//!
//! It takes the codec, not `ringmq::client`: that one's tasks, channels and buffers would be measured with the node.

use super::link::{Delivered, PublishAnswer};
use super::options::Options;
use super::wire::{CLIENT_ID, HANDSHAKE_LIMIT, USER_AGENT, Wire};
use crate::base::PartitionId;
use crate::codec::native::frame::FRAME_MAX;
use crate::codec::native::{
    Encoder, FEATURES, HEADER_LEN, Header, Hello, IdRange, Malformed, NativeError, OLDEST_VERSION, Payload, Publish, RANGES_MAX,
    Reply, Request, Start, Subscribe, VERSION,
};
use crate::format::batch::{MESSAGE_OVERHEAD, Messages};
use std::io;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// Room for several frames of some hundred KiB, so that little of an incomplete frame has to be moved.
const READ_LEN: usize = 1024 * 1024;

/// Bytes of a frame beside its payload, generously.
const FRAME_HEAD: usize = 1024;

/// A partition of one of the connection's topics. As a subscription its number is its place in the list.
struct TopicPartition {
    /// Index of its core's socket.
    lane: usize,
    /// Index in the options.
    topic: usize,
    partition: PartitionId,
    /// Delivered and unconfirmed ids.
    ranges: Vec<IdRange>,
}

pub struct Native {
    lanes: Vec<Wire>,
    places: Vec<TopicPartition>,
    /// Index of the partition that the next publish goes to.
    turn: usize,
    encoder: Encoder,
    /// Head of a frame whose body is in place already.
    head: Vec<u8>,
    /// The node gives up a client that is silent for two intervals, and sends nothing unasked.
    ping: Interval,
    pub server_version: String,
}

struct Welcomed {
    version: String,
    core: u16,
    max_frame_bytes: usize,
    heartbeat: Duration,
}

impl Native {
    /// Connected to the cores of the topics with these indices; topics that are not there are made. Publishing begins with
    /// another partition for each `number`.
    pub async fn connect(options: &Options, topics: &[usize], number: u32) -> Result<Native, String> {
        match timeout(HANDSHAKE_LIMIT, Native::handshake(options, topics, number)).await {
            Ok(result) => result,
            Err(_) => Err(format!("connect: the handshakes took longer than {HANDSHAKE_LIMIT:?}")),
        }
    }

    async fn handshake(options: &Options, topics: &[usize], number: u32) -> Result<Native, String> {
        let mut encoder = Encoder::default();
        let (mut first, welcomed) = open(options, &mut encoder, "", None).await?;
        let longest = options.batch as usize * (MESSAGE_OVERHEAD + options.size.max()) + FRAME_HEAD;
        if options.mode.produces() && longest > welcomed.max_frame_bytes {
            let max = welcomed.max_frame_bytes;
            return Err(format!("--batch times --size may make {longest} bytes, the node takes {max} at a time"));
        }
        let (mut cores, mut places) = (Vec::new(), Vec::new());
        for &topic in topics {
            let all = partitions(&mut first, &mut encoder, options, topic).await?;
            for (partition, at) in all.into_iter().filter(|(p, _)| options.partition.is_none_or(|only| only == *p)) {
                let lane = cores.iter().position(|known| *known == at).unwrap_or(cores.len());
                if lane == cores.len() {
                    cores.push(at);
                }
                places.push(TopicPartition { lane, topic, partition, ranges: Vec::new() });
            }
        }
        if let Some(PartitionId(p)) = options.partition.filter(|_| places.len() < topics.len()) {
            return Err(format!("--partition={p}: a topic has fewer partitions"));
        }
        let (mut lanes, mut first) = (Vec::with_capacity(cores.len()), Some(first));
        for (node, core) in cores {
            let there = if node.is_empty() && core == welcomed.core { first.take() } else { None };
            lanes.push(match there {
                Some(wire) => wire,
                None => open(options, &mut encoder, &node, Some(core)).await?.0,
            });
        }
        let mut ping = interval(welcomed.heartbeat / 2);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        let turn = number as usize % places.len().max(1);
        Ok(Native { lanes, places, turn, encoder, head: Vec::new(), ping, server_version: welcomed.version })
    }

    /// Subscribes to all partitions of the topic, or to the one that was asked for; nothing is delivered before credit.
    pub async fn subscribe(&mut self, options: &Options, topic: &str, channel: &str) -> Result<(), String> {
        for (number, place) in self.places.iter().enumerate() {
            let request = Request::Subscribe(Subscribe {
                subscription: number as u32,
                topic,
                partition: place.partition,
                channel,
                start: Start::Default,
                message_timeout_ms: 0,
                ordered: options.ordered,
            });
            let asked = ask(&mut self.lanes[place.lane], &mut self.encoder, "Subscribe", &request, |reply| match reply {
                Reply::Subscribed(_) => Some(()),
                _ => None,
            });
            match timeout(HANDSHAKE_LIMIT, asked).await {
                Ok(result) => result?,
                Err(_) => return Err(format!("Subscribe: no answer within {HANDSHAKE_LIMIT:?}")),
            }
        }
        Ok(())
    }

    /// Grants credit for `rdy` unconfirmed messages. Bytes are not limited: messages are processed at once.
    pub fn credit(&mut self, rdy: u32) {
        let messages = (rdy / self.places.len() as u32).max(1);
        for (number, place) in self.places.iter().enumerate() {
            let credit = Request::Credit { subscription: number as u32, messages, bytes: i64::MAX as u64 };
            self.encoder.request(&mut self.lanes[place.lane].out, 0, &credit, Payload::NONE);
        }
    }

    pub fn unsent(&self) -> usize {
        self.lanes.iter().map(Wire::unsent).sum()
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.ping.poll_tick(cx).is_ready() {
            for lane in &mut self.lanes {
                self.encoder.request(&mut lane.out, 0, &Request::Ping, Payload::NONE);
            }
            // asked again, so that the next one wakes this task
            let _ = self.ping.poll_tick(cx);
        }
        self.lanes.iter_mut().try_fold(false, |progress, lane| Ok(lane.poll_flush(cx)? | progress))
    }

    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        self.lanes.iter_mut().try_fold(false, |progress, lane| Ok(lane.poll_fill(cx)? | progress))
    }

    /// Publishes one batch. All its messages have the time at which the node got it.
    pub fn publish(&mut self, options: &Options, id: u64, count: u32, mut write: impl FnMut(usize, u32, &mut Vec<u8>)) {
        let place = &self.places[self.turn];
        self.turn = if self.turn + 1 == self.places.len() { 0 } else { self.turn + 1 };
        let request = Request::Publish(Publish {
            topic: &options.topics[place.topic],
            partition: place.partition,
            num: count,
            producer_id: 0,
            first_sequence: 0,
        });
        let out = &mut self.lanes[place.lane].out;
        let start = out.len();
        // The head names the body's crc: it is encoded for its length, and again over itself when the body stands.
        self.encoder.request(out, id, &request, Payload::NONE);
        let body = out.len();
        for i in 0..count {
            let at = out.len();
            out.extend_from_slice(&[0; MESSAGE_OVERHEAD]);
            write(place.topic, i, out);
            let len = (out.len() - at - 4) as u32;
            out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
        let payload = Payload::of(&out[body..]);
        self.head.clear();
        self.encoder.request(&mut self.head, id, &request, payload);
        out[start..body].copy_from_slice(&self.head);
    }

    pub fn answers(&mut self, mut each: impl FnMut(PublishAnswer<'_>) -> Result<(), String>) -> Result<(), String> {
        for lane in &mut self.lanes {
            let mut at = 0;
            while let Some(Frame { request, reply, len, .. }) = frame(&lane.unread()[at..])? {
                at += len;
                match reply {
                    Some(Reply::Published { .. }) => each(PublishAnswer::Done(Some(request)))?,
                    Some(Reply::Pong) | None => {}
                    Some(Reply::Error(error)) if !error.fatal && request != 0 => {
                        each(PublishAnswer::Refused(Some(request), &text(&error)))?;
                    }
                    Some(other) => return Err(unexpected(&other)),
                }
            }
            lane.took(at);
        }
        Ok(())
    }

    /// Confirms by ranges, once for all that was read together.
    pub fn deliveries(&mut self, mut each: impl FnMut(Delivered<'_>)) -> Result<(), String> {
        for lane in &mut self.lanes {
            let mut at = 0;
            while let Some(Frame { reply, payload, len, .. }) = frame(&lane.unread()[at..])? {
                at += len;
                match reply {
                    Some(Reply::Messages(messages)) => {
                        let place = self.places.get_mut(messages.subscription as usize);
                        let place = place.ok_or("the node sent messages of an unknown subscription")?;
                        let mut walk = Messages::resume(payload, messages.log_id, messages.base_unix_ns);
                        let found = walk.by_ref().map(|message| each(Delivered::Message(message.body))).count();
                        if found != messages.num as usize || walk.rest_len() > 0 {
                            return Err("a batch does not hold the announced messages".into());
                        }
                        messages.ids().append_to(&mut place.ranges);
                    }
                    Some(Reply::Pong) | None => {}
                    Some(Reply::Error(error)) if !error.fatal => each(Delivered::Error(&text(&error))),
                    Some(other) => return Err(unexpected(&other)),
                }
            }
            lane.took(at);
        }
        for (number, place) in self.places.iter_mut().enumerate().filter(|(_, place)| !place.ranges.is_empty()) {
            let out = &mut self.lanes[place.lane].out;
            if place.ranges.len() <= RANGES_MAX {
                // The list goes there and back, as its memory is kept.
                let request = Request::Finish { subscription: number as u32, ranges: std::mem::take(&mut place.ranges) };
                self.encoder.request(out, 0, &request, Payload::NONE);
                if let Request::Finish { ranges, .. } = request {
                    place.ranges = ranges;
                }
            } else {
                for ranges in place.ranges.chunks(RANGES_MAX) {
                    let request = Request::Finish { subscription: number as u32, ranges: ranges.to_vec() };
                    self.encoder.request(out, 0, &request, Payload::NONE);
                }
            }
            place.ranges.clear();
        }
        Ok(())
    }
}

/// Connected and welcomed, by the node at this address; empty: the one that was named.
async fn open(options: &Options, encoder: &mut Encoder, node: &str, core: Option<u16>) -> Result<(Wire, Welcomed), String> {
    let mut wire = match node {
        "" => Wire::connect(options, READ_LEN).await?,
        node => Wire::connect_to(options, node, READ_LEN).await?,
    };
    let hello = Hello {
        version: VERSION,
        oldest_version: OLDEST_VERSION,
        features: FEATURES,
        client_id: CLIENT_ID,
        hostname: "",
        user_agent: USER_AGENT,
        core,
        max_frame_bytes: 0,
        heartbeat_ms: 0,
        auth_method: "",
        auth: &[],
    };
    let hello = Request::Hello(hello);
    let welcomed = ask(&mut wire, encoder, "Hello", &hello, |reply| match reply {
        Reply::Welcome(w) => Some(Welcomed {
            version: w.node_version.into(),
            core: w.core,
            max_frame_bytes: (w.max_frame_bytes as usize).min(FRAME_MAX),
            heartbeat: Duration::from_millis(w.heartbeat_ms.max(2) as u64),
        }),
        _ => None,
    });
    let welcomed = welcomed.await?;
    Ok((wire, welcomed))
}

/// The partitions of a topic, which is made when it is not there, and the node and core of each; an empty address is the
/// node that was asked.
async fn partitions(
    wire: &mut Wire,
    encoder: &mut Encoder,
    options: &Options,
    topic: usize,
) -> Result<Vec<(PartitionId, (String, u16))>, String> {
    let name = &options.topics[topic];
    let wanted = options.partitions.unwrap_or(0);
    let request = Request::CreateTopic { topic: name, partitions: wanted };
    let found = ask(wire, encoder, "CreateTopic", &request, |reply| match reply {
        Reply::Topics(topics) => match &topics.topics[..] {
            [one] if !one.partitions.is_empty() => {
                let node = |at: u16| topics.nodes.get(at as usize).map_or("", |n| n.address).to_owned();
                Some(one.partitions.iter().map(|p| (p.id, (node(p.node), p.core))).collect::<Vec<_>>())
            }
            _ => None,
        },
        _ => None,
    });
    let found = found.await?;
    if wanted != 0 && found.len() != wanted as usize {
        let has = found.len();
        return Err(format!(
            "--partitions={wanted}: topic {name} exists with {has} partitions; leave the flag out, or give another --topic"
        ));
    }
    Ok(found)
}

/// Sends a request and waits for its answer, of which `read` makes something of its own.
async fn ask<T>(
    wire: &mut Wire,
    encoder: &mut Encoder,
    what: &str,
    request: &Request<'_>,
    read: impl Fn(&Reply<'_>) -> Option<T>,
) -> Result<T, String> {
    encoder.request(&mut wire.out, 1, request, Payload::NONE);
    // where that fails, reading says why: a server that closes may have said so
    let _ = wire.flush().await;
    loop {
        if let Some(Frame { reply, len, .. }) =
            frame(wire.unread()).map_err(|e| format!("{what}: {}", wire.name_other_protocol(e)))?
        {
            let Some(reply) = reply else {
                wire.took(len);
                continue;
            };
            let answer = read(&reply).ok_or_else(|| match &reply {
                Reply::Error(error) => format!("{what}: {}", text(error)),
                other => format!("{what}: {}", unexpected(other)),
            });
            wire.took(len);
            return answer;
        }
        if let Err(error) = wire.fill().await {
            return Err(format!("{what}: {}", wire.explain(&error)));
        }
    }
}

struct Frame<'a> {
    request: u64,
    /// `None`: an unasked frame of a kind that only a later version knows.
    reply: Option<Reply<'a>>,
    payload: &'a [u8],
    /// Length of the whole frame.
    len: usize,
}

/// The frame at the start of `input`, verified; none: it is not whole.
fn frame(input: &[u8]) -> Result<Option<Frame<'_>>, String> {
    let Some((header, metadata)) = Header::parse(input, FRAME_MAX).map_err(|e| e.to_string())? else { return Ok(None) };
    let len = header.frame_len();
    let Some(payload) = input.get(HEADER_LEN + header.meta_len..len) else { return Ok(None) };
    header.check_payload(payload).map_err(|e| e.to_string())?;
    let reply = match Reply::decode(header.kind, metadata) {
        Err(Malformed::UnknownKind(_)) if header.request == 0 => None,
        reply => Some(reply.map_err(|e| e.to_string())?),
    };
    Ok(Some(Frame { request: header.request, reply, payload, len }))
}

fn text(error: &NativeError<'_>) -> String {
    format!("{:?}: {}", error.code, error.message)
}

fn unexpected(reply: &Reply<'_>) -> String {
    match reply {
        Reply::Error(error) => text(error),
        Reply::Unsubscribed { reason, .. } => format!("the node has ended the subscription: {reason}"),
        other => format!("an unexpected answer: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_when_it_is_whole_and_sound() {
        let (mut bytes, payload) = (Vec::new(), b"payload");
        Encoder::default().reply(&mut bytes, 7, &Reply::Done { num: 3 }, Payload::of(payload));
        bytes.extend_from_slice(payload);
        for cut in 0..bytes.len() {
            assert!(frame(&bytes[..cut]).expect("nothing is wrong yet").is_none(), "{cut}");
        }
        let found = frame(&bytes).expect("it is sound").expect("it is whole");
        assert_eq!(
            (found.request, found.reply, found.payload, found.len),
            (7, Some(Reply::Done { num: 3 }), &payload[..], bytes.len())
        );
        *bytes.last_mut().expect("it has a payload") ^= 1;
        assert!(frame(&bytes).is_err_and(|why| why.contains("checksum")));
    }

    #[test]
    fn what_only_a_later_version_says_is_skipped() {
        let kind = |request| {
            let mut bytes = Vec::new();
            crate::codec::native::frame::encode(&mut bytes, 250, request, &[1; 8], 0, 0);
            frame(&bytes).map(|found| found.map(|found| (found.reply.is_none(), found.len == bytes.len())))
        };
        assert_eq!(kind(0), Ok(Some((true, true))));
        assert!(kind(1).is_err(), "an answer that is not understood");
    }
}
