//! Values to frames, as pieces of a stream: the batches among them are those that were given.

use super::{
    Addressed, ENTRIES_MAX, Hello, Reject, TURN_BYTES_MAX, batches, change, cursors, fb, fits, frame, kind, refusal, relay,
};
use crate::base::Position;
use crate::codec::frame::Payload;
use crate::codec::metadata::truncated;
use crate::codec::peer::message::{
    Ack, Align, Append, Body, CURSORS_BYTES_MAX, CURSORS_MAX, Cursors, EPOCHS_MAX, Forward, Forwarded, Head, Lane, Message,
    PRODUCERS_TOLD_MAX, RUN_BYTES_MAX, Route, Standing,
};
use crate::format::producer::Producer;
use bytes::Bytes;

pub(super) type Builder<'f> = flatbuffers::FlatBufferBuilder<'f>;

/// Encodes the frames of one direction of a connection; keeps its buffer and counts the sequences.
#[derive(Default)]
pub struct Encoder {
    builder: Builder<'static>,
    sent: frame::Sequences,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("sent", &self.sent).finish_non_exhaustive()
    }
}

pub(super) fn raw(at: Position) -> fb::Position {
    fb::Position::new(at.offset, at.count, at.log_id.0)
}

fn raw_head(route: Route, head: Head) -> fb::Head {
    fb::Head::new(&fb::Id(route.topic_id.0), head.epoch.0, head.session.0, route.partition.0)
}

impl Encoder {
    pub fn hello(&mut self, out: &mut Vec<Bytes>, hello: &Hello<'_>) {
        self.greeting(out, kind::HELLO, hello);
    }

    pub fn welcome(&mut self, out: &mut Vec<Bytes>, hello: &Hello<'_>) {
        self.greeting(out, kind::WELCOME, hello);
    }

    fn greeting(&mut self, out: &mut Vec<Bytes>, kind: u8, h: &Hello<'_>) {
        let b = &mut self.builder;
        b.reset();
        let args = fb::HelloArgs {
            major: h.version.major,
            minor: h.version.minor,
            features: h.features,
            node_id: Some(&fb::Id(h.node_id.0)),
            cluster_id: Some(&fb::Id(h.cluster_id.0)),
            generation: h.generation,
            node_version: Some(b.create_string(truncated(h.node_version))),
            cores: h.layout.cores,
            core: h.layout.core,
            placement: h.layout.placement,
            lanes: h.lanes.0,
            heartbeat_ms: h.heartbeat_ms,
            link: h.link,
            incarnation: h.incarnation,
        };
        let root = fb::Hello::create(b, &args);
        b.finish_minimal(root);
        self.put(out, kind, Lane::Control, &[]);
    }

    pub fn reject(&mut self, out: &mut Vec<Bytes>, reject: &Reject<'_>) {
        let b = &mut self.builder;
        b.reset();
        let message = Some(b.create_string(truncated(reject.message)));
        let root = fb::Reject::create(b, &fb::RejectArgs { code: reject.code, message });
        b.finish_minimal(root);
        self.put(out, kind::REJECT, Lane::Control, &[]);
    }

    pub fn ping(&mut self, out: &mut Vec<Bytes>) {
        let b = &mut self.builder;
        b.reset();
        let root = fb::Ping::create(b, &fb::PingArgs {});
        b.finish_minimal(root);
        self.put(out, kind::PING, Lane::Control, &[]);
    }

    pub fn pong(&mut self, out: &mut Vec<Bytes>) {
        let b = &mut self.builder;
        b.reset();
        let root = fb::Pong::create(b, &fb::PongArgs {});
        b.finish_minimal(root);
        self.put(out, kind::PONG, Lane::Control, &[]);
    }

    /// Appends the frames of a turn's messages on one lane, in order: appends that follow each other share frames, and so do acks,
    /// forwards, and their outcomes.
    ///
    /// Panics on a message that does not travel on this lane, or is beyond the bounds of [`crate::codec::peer::message`].
    pub fn messages(&mut self, out: &mut Vec<Bytes>, lane: Lane, messages: &[Addressed]) {
        assert!(messages.iter().all(|m| fits(&m.message.body, lane)), "a message has its lane");
        let mut rest = messages;
        while let Some(first) = rest.first() {
            let num = match &first.message.body {
                Body::Append(_) => self.appends(out, lane, rest),
                Body::Ack(_) => self.acks(out, lane, rest),
                Body::Forward(_) => self.forwards(out, lane, rest),
                Body::Forwarded(_) => self.outcomes(out, lane, rest),
                Body::Relay(_) => self.relays(out, lane, rest),
                _ => self.single(out, lane, first),
            };
            rest = &rest[num..];
        }
    }

    /// Encodes as many appends as fit a frame, at least one; returns their number.
    fn appends(&mut self, out: &mut Vec<Bytes>, lane: Lane, messages: &[Addressed]) -> usize {
        let b = &mut self.builder;
        b.reset();
        let (mut appends, mut payload, mut total) = (Vec::new(), Vec::new(), 0);
        for Addressed { route, message: Message { head, body } } in &messages[..messages.len().min(ENTRIES_MAX)] {
            let Body::Append(Append { committed, batches }) = body else { break };
            let bytes = batches.len();
            assert!(bytes <= RUN_BYTES_MAX, "an append has its bounds: send the other batches in the next");
            if !appends.is_empty() && total + bytes > TURN_BYTES_MAX {
                break;
            }
            total += bytes;
            payload.extend(batches.parts.iter().cloned());
            let (head, committed) = (raw_head(*route, *head), raw(*committed));
            let args = fb::AppendArgs { head: Some(&head), committed: Some(&committed), bytes: bytes as u32 };
            appends.push(fb::Append::create(b, &args));
        }
        let num = appends.len();
        let appends = Some(b.create_vector(&appends));
        let root = fb::Appends::create(b, &fb::AppendsArgs { appends });
        b.finish_minimal(root);
        self.put(out, kind::APPENDS, lane, &payload);
        num
    }

    /// Encodes acknowledgements, as many as fit; returns their number.
    fn acks(&mut self, out: &mut Vec<Bytes>, lane: Lane, messages: &[Addressed]) -> usize {
        let b = &mut self.builder;
        b.reset();
        let mut acks = Vec::new();
        for Addressed { route, message: Message { head, body } } in &messages[..messages.len().min(ENTRIES_MAX)] {
            let Body::Ack(Ack { durable }) = body else { break };
            let (head, durable) = (raw_head(*route, *head), raw(*durable));
            acks.push(fb::Ack::create(b, &fb::AckArgs { head: Some(&head), durable: Some(&durable) }));
        }
        let num = acks.len();
        let acks = Some(b.create_vector(&acks));
        let root = fb::Acks::create(b, &fb::AcksArgs { acks });
        b.finish_minimal(root);
        self.put(out, kind::ACKS, lane, &[]);
        num
    }

    /// Encodes forwarded publishes, as many as fit; returns their number.
    fn forwards(&mut self, out: &mut Vec<Bytes>, lane: Lane, messages: &[Addressed]) -> usize {
        let b = &mut self.builder;
        b.reset();
        let (mut forwards, mut payload, mut total) = (Vec::new(), Vec::new(), 0);
        for Addressed { route, message: Message { head, body } } in &messages[..messages.len().min(ENTRIES_MAX)] {
            let Body::Forward(Forward { asker, delay_ms, bodies }) = body else { break };
            let bytes = bodies.as_bytes().len();
            assert!(bytes <= RUN_BYTES_MAX, "a publish has its bounds");
            if !forwards.is_empty() && total + bytes > TURN_BYTES_MAX {
                break;
            }
            total += bytes;
            payload.push(bodies.as_bytes().clone());
            let args = fb::ForwardArgs {
                head: Some(&raw_head(*route, *head)),
                generation: asker.generation,
                core: asker.core.0,
                ticket: asker.ticket,
                delay_ms: *delay_ms,
                count: bodies.count() as u32,
                bytes: bytes as u32,
            };
            forwards.push(fb::Forward::create(b, &args));
        }
        let num = forwards.len();
        let forwards = Some(b.create_vector(&forwards));
        let root = fb::Forwards::create(b, &fb::ForwardsArgs { forwards });
        b.finish_minimal(root);
        self.put(out, kind::FORWARDS, lane, &payload);
        num
    }

    /// Encodes outcomes, as many as fit; returns their number.
    fn outcomes(&mut self, out: &mut Vec<Bytes>, lane: Lane, messages: &[Addressed]) -> usize {
        let b = &mut self.builder;
        b.reset();
        let mut outcomes = Vec::new();
        for Addressed { route, message: Message { head, body } } in &messages[..messages.len().min(ENTRIES_MAX)] {
            let Body::Forwarded(Forwarded { asker, outcome }) = body else { break };
            let args = fb::ForwardedArgs {
                head: Some(&raw_head(*route, *head)),
                generation: asker.generation,
                core: asker.core.0,
                ticket: asker.ticket,
                outcome: *outcome,
            };
            outcomes.push(fb::Forwarded::create(b, &args));
        }
        let num = outcomes.len();
        let outcomes = Some(b.create_vector(&outcomes));
        let root = fb::Outcomes::create(b, &fb::OutcomesArgs { outcomes });
        b.finish_minimal(root);
        self.put(out, kind::OUTCOMES, lane, &[]);
        num
    }

    /// Encodes relayed messages, as many as fit; returns their number. Few of them are long, and these few bound the metadata.
    fn relays(&mut self, out: &mut Vec<Bytes>, lane: Lane, messages: &[Addressed]) -> usize {
        let b = &mut self.builder;
        b.reset();
        let (mut relays, mut payload, mut total, mut meta) = (Vec::new(), Vec::new(), 0, 0);
        for Addressed { route, message: Message { head, body } } in &messages[..messages.len().min(ENTRIES_MAX)] {
            let Body::Relay(relay) = body else { break };
            let (bytes, meta_bytes) = (relay::payload(relay), relay::metadata_max(relay));
            let len = bytes.map_or(0, Bytes::len);
            if !relays.is_empty() && (total + len > TURN_BYTES_MAX || meta + meta_bytes > frame::META_MAX) {
                break;
            }
            (total, meta) = (total + len, meta + meta_bytes);
            payload.extend(bytes.cloned());
            relays.push(relay::encode(b, &raw_head(*route, *head), relay));
        }
        let num = relays.len();
        let relays = Some(b.create_vector(&relays));
        let root = fb::Relays::create(b, &fb::RelaysArgs { relays });
        b.finish_minimal(root);
        self.put(out, kind::RELAYS, lane, &payload);
        num
    }

    /// A message with a frame of its own: one.
    fn single(&mut self, out: &mut Vec<Bytes>, lane: Lane, Addressed { route, message }: &Addressed) -> usize {
        let head = raw_head(*route, message.head);
        let head = Some(&head);
        let b = &mut self.builder;
        b.reset();
        let mut payload: &[Bytes] = &[];
        let of_cursors;
        let kind = match &message.body {
            Body::Inquire(m) => {
                let topic = Some(b.create_string(&m.topic));
                let (partitions, membership_version) = (m.partitions, m.membership_version);
                let root = fb::Inquire::create(b, &fb::InquireArgs { head, topic, partitions, membership_version });
                b.finish_minimal(root);
                kind::INQUIRE
            }
            Body::EpochsAsk(m) => {
                let root = fb::EpochsAsk::create(b, &fb::EpochsAskArgs { head, below: m.below.0 });
                b.finish_minimal(root);
                kind::EPOCHS_ASK
            }
            Body::Pull(m) => {
                let args = fb::PullArgs { head, from: Some(&raw(m.from)), bytes_max: m.bytes_max };
                let root = fb::Pull::create(b, &args);
                b.finish_minimal(root);
                kind::PULL
            }
            Body::Align(m) => {
                let (to, at, chain_crc) = match *m {
                    Align::Truncate { at, chain_crc } => (fb::AlignTo::Truncate, at, chain_crc),
                    Align::Restart { start, chain_crc } => (fb::AlignTo::Restart, start, Some(chain_crc)),
                };
                let root = fb::Align::create(b, &fb::AlignArgs { head, to, at: Some(&raw(at)), chain_crc });
                b.finish_minimal(root);
                kind::ALIGN
            }
            Body::Cursors(m) => {
                of_cursors = encode_cursors(b, head, m);
                payload = &of_cursors;
                kind::CURSORS
            }
            Body::Standing(m) => {
                encode_standing(b, head, m);
                kind::STANDING
            }
            Body::Pulled(m) => {
                assert!(m.batches.len() <= RUN_BYTES_MAX, "what is pulled has its bounds");
                payload = &m.batches.parts;
                let root = fb::Pulled::create(b, &fb::PulledArgs { head, from: Some(&raw(m.from)) });
                b.finish_minimal(root);
                kind::PULLED
            }
            Body::Aligned(m) => {
                let root = fb::Aligned::create(b, &fb::AlignedArgs { head, at: Some(&raw(m.at)) });
                b.finish_minimal(root);
                kind::ALIGNED
            }
            Body::CursorsAck(m) => {
                let error = m.result.err().map(|e| refusal::encode(b, &e));
                let root = fb::CursorsAck::create(b, &fb::CursorsAckArgs { head, seq: m.seq, error });
                b.finish_minimal(root);
                kind::CURSORS_ACK
            }
            Body::Refused(e) => {
                let error = Some(refusal::encode(b, e));
                let root = fb::Refused::create(b, &fb::RefusedArgs { head, error });
                b.finish_minimal(root);
                kind::REFUSED
            }
            Body::Change(m) => {
                let root = change::encode(b, head, m);
                b.finish_minimal(root);
                kind::CHANGE
            }
            Body::Changed(m) => {
                let root = change::encode_done(b, head, m);
                b.finish_minimal(root);
                kind::CHANGED
            }
            Body::Append(_) | Body::Ack(_) | Body::Forward(_) | Body::Forwarded(_) | Body::Relay(_) => {
                unreachable!("they share frames")
            }
        };
        self.put(out, kind, lane, payload);
        1
    }

    /// Appends the frame of the metadata that was built.
    fn put(&mut self, out: &mut Vec<Bytes>, kind: u8, lane: Lane, payload: &[Bytes]) {
        let of_payload = match kind {
            kind::APPENDS | kind::PULLED => batches::payload(payload),
            _ => Payload::of_parts(payload.iter().map(|part| &part[..])),
        };
        let (sequence, metadata) = (self.sent.next(lane), self.builder.finished_data());
        let mut head = Vec::new();
        crate::codec::frame::encode(&mut head, kind, frame::number(lane), sequence, metadata, of_payload, frame::FRAME_MAX);
        out.push(head.into());
        out.extend(payload.iter().filter(|part| !part.is_empty()).cloned());
    }
}

/// Builds the table; its payload.
fn encode_cursors(b: &mut Builder<'_>, head: Option<&fb::Head>, m: &Cursors) -> [Bytes; 1] {
    assert!(m.cursors.len() <= CURSORS_MAX && m.deleted.len() <= CURSORS_MAX, "cursors have their bounds");
    let cursor_bytes: usize = m.cursors.iter().map(crate::format::cursor::CursorImage::encoded_len).sum();
    assert!(cursor_bytes <= CURSORS_BYTES_MAX, "cursors have their bounds: leave intervals out");
    assert!(m.producers.len() <= PRODUCERS_TOLD_MAX, "producers have their bounds");
    let (collect_start, agreed_start) = (m.collect_start.map(raw), m.agreed_start.map(raw));
    let producers = Some(&m.producers).filter(|list| !list.is_empty()).map(|list| b.create_vector(&Producer::encode_all(list)));
    let args = fb::CursorsArgs {
        head,
        seq: m.seq,
        committed: Some(&raw(m.committed)),
        flush: m.flush,
        is_all: m.is_all,
        collect_start: collect_start.as_ref(),
        cursors: m.cursors.len() as u32,
        cursor_bytes: cursor_bytes as u32,
        deleted: m.deleted.len() as u32,
        agreed_start: agreed_start.as_ref(),
        producers,
        channels_lost: m.channels_lost,
    };
    let root = fb::Cursors::create(b, &args);
    b.finish_minimal(root);
    [cursors::encode(&m.cursors, &m.deleted).into()]
}

fn encode_standing(b: &mut Builder<'_>, head: Option<&fb::Head>, m: &Standing) {
    assert!(m.epochs.len() <= EPOCHS_MAX, "a page of epochs has its bounds");
    let epochs = m.epochs.iter().map(|e| fb::EpochEnd::new(e.epoch.0, &raw(e.end), e.chain_crc));
    let epochs = Some(b.create_vector_from_iter(epochs));
    let args = fb::StandingArgs {
        head,
        start: Some(&raw(m.start)),
        start_crc: m.start_crc,
        last_epoch: m.last_epoch.0,
        durable: Some(&raw(m.durable)),
        committed: Some(&raw(m.committed)),
        suspect: m.suspect,
        epochs,
        more: m.more,
    };
    let root = fb::Standing::create(b, &args);
    b.finish_minimal(root);
}
