//! Frames to values: every number is held against its bound, and batches stay where they were read.

use super::{Addressed, ENTRIES_MAX, Frame, Hello, Outcome, Reject, change, cursors, fb, fits, frame, kind, refusal, relay};
use crate::base::{CoreId, Epoch, PartitionId, Position, TopicId, TopicName};
use crate::codec::frame::Header;
use crate::codec::metadata::{self, Malformed, check, table};
use crate::{
    codec::peer::message::{
        APPEND_BYTES_MAX, Ack, Align, Aligned, Append, Asker, Batches, Body, CURSORS_BYTES_MAX, CURSORS_MAX, Cursors, CursorsAck,
        EPOCHS_MAX, EpochsAsk, Forward, Forwarded, Head, Inquire, Lane, Message, PackedBodies, Pull, Pulled, RUN_BYTES_MAX,
        Route, Session, Standing,
    },
    format::tail::EpochEnd,
};
use bytes::Bytes;

pub(super) fn position(kind: &'static str, field: &'static str, at: &fb::Position) -> Result<Position, Malformed> {
    metadata::position(kind, field, at.offset(), at.count(), at.log_id())
}

impl<'a> Frame<'a> {
    /// Decodes the frame whose header and metadata came from [`Header::parse`]. The caller has verified the payload
    /// ([`Header::check_payload`]). Batches are slices of `payload` and keep all of it in memory. Short runs between those of other
    /// partitions are copied instead, since they are freed at other times.
    ///
    /// [`Malformed::UnknownKind`] comes from a later version: the reader skips the frame. Any other error is a fault of the other side,
    /// and since a lane loses nothing, it ends the connection.
    pub fn decode(header: &Header, metadata: &'a [u8], payload: &Bytes) -> Result<Frame<'a>, Malformed> {
        let name = name(header.kind).ok_or(Malformed::UnknownKind(header.kind))?;
        let lane = frame::lane(header).ok_or(Malformed::Field { kind: name, field: "lane" })?;
        let has_payload = matches!(header.kind, kind::APPENDS | kind::CURSORS | kind::PULLED | kind::FORWARDS | kind::RELAYS);
        check(payload.len() == header.payload_len && (has_payload || payload.is_empty()), name, "payload")?;
        let frame = match header.kind {
            kind::HELLO => Frame::Hello(Hello::decode(name, metadata)?),
            kind::WELCOME => Frame::Welcome(Hello::decode(name, metadata)?),
            kind::REJECT => Frame::Reject(Reject::decode(metadata)?),
            kind::PING => Frame::Ping,
            kind::PONG => Frame::Pong,
            kind::APPENDS => Frame::Messages(appends(name, metadata, payload.clone())?),
            kind::ACKS => Frame::Messages(acks(name, metadata)?),
            kind::FORWARDS => Frame::Messages(forwards(name, metadata, payload.clone())?),
            kind::OUTCOMES => Frame::Messages(outcomes(name, metadata)?),
            kind::RELAYS => Frame::Messages(relays(name, metadata, payload.clone())?),
            _ => Frame::Messages(vec![single(header.kind, name, metadata, payload)?]),
        };
        let is_placed = match &frame {
            Frame::Messages(messages) => messages.iter().all(|m| fits(&m.message.body, lane)),
            _ => lane == Lane::Control,
        };
        check(is_placed, name, "lane")?;
        Ok(frame)
    }
}

/// Name of a kind in the schema. `None`: a kind of a later version.
pub(super) fn name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        kind::HELLO => "Hello",
        kind::WELCOME => "Welcome",
        kind::REJECT => "Reject",
        kind::PING => "Ping",
        kind::PONG => "Pong",
        kind::INQUIRE => "Inquire",
        kind::EPOCHS_ASK => "EpochsAsk",
        kind::PULL => "Pull",
        kind::ALIGN => "Align",
        kind::APPENDS => "Appends",
        kind::CURSORS => "Cursors",
        kind::STANDING => "Standing",
        kind::PULLED => "Pulled",
        kind::ALIGNED => "Aligned",
        kind::ACKS => "Acks",
        kind::CURSORS_ACK => "CursorsAck",
        kind::REFUSED => "Refused",
        kind::FORWARDS => "Forwards",
        kind::OUTCOMES => "Outcomes",
        kind::RELAYS => "Relays",
        kind::CHANGE => "Change",
        kind::CHANGED => "Changed",
        _ => return None,
    })
}

fn addressed(kind: &'static str, head: &fb::Head, body: Body) -> Result<Addressed, Malformed> {
    check(head.partition() < PartitionId::COUNT_MAX, kind, "partition")?;
    check(head.session() >= 1, kind, "session")?;
    let route = Route { topic_id: TopicId(head.topic_id().0), partition: PartitionId(head.partition()) };
    let head = Head { epoch: Epoch(head.epoch()), session: Session(head.session()) };
    Ok(Addressed { route, message: Message { head, body } })
}

fn batches(bytes: Bytes) -> Batches {
    Batches::new(if bytes.is_empty() { vec![] } else { vec![bytes] })
}

fn appends(kind: &'static str, metadata: &[u8], mut payload: Bytes) -> Result<Vec<Addressed>, Malformed> {
    let found = table::<fb::Appends>(kind, metadata)?.appends();
    check(found.len() <= ENTRIES_MAX, kind, "appends")?;
    let (mut messages, whole) = (Vec::with_capacity(found.len()), payload.len());
    for t in found {
        let bytes = t.bytes() as usize;
        check(bytes <= RUN_BYTES_MAX && bytes <= payload.len(), kind, "bytes")?;
        let committed = position(kind, "committed", t.committed())?;
        let slice = payload.split_to(bytes);
        let run = if 2 * bytes < whole { Bytes::copy_from_slice(&slice) } else { slice };
        let append = Append { committed, batches: batches(run) };
        messages.push(addressed(kind, t.head(), Body::Append(append))?);
    }
    check(payload.is_empty(), kind, "bytes")?;
    Ok(messages)
}

fn acks(kind: &'static str, metadata: &[u8]) -> Result<Vec<Addressed>, Malformed> {
    let found = table::<fb::Acks>(kind, metadata)?.acks();
    check(found.len() <= ENTRIES_MAX, kind, "acks")?;
    let ack = |t: fb::Ack<'_>| addressed(kind, t.head(), Body::Ack(Ack { durable: position(kind, "durable", t.durable())? }));
    found.iter().map(ack).collect()
}

fn forwards(kind: &'static str, metadata: &[u8], mut payload: Bytes) -> Result<Vec<Addressed>, Malformed> {
    let found = table::<fb::Forwards>(kind, metadata)?.forwards();
    check(found.len() <= ENTRIES_MAX, kind, "forwards")?;
    let mut messages = Vec::with_capacity(found.len());
    for t in found {
        let bytes = t.bytes() as usize;
        check(bytes <= RUN_BYTES_MAX && bytes <= payload.len(), kind, "bytes")?;
        let bodies = PackedBodies::parse(t.count(), payload.split_to(bytes));
        let bodies = bodies.ok_or(Malformed::Field { kind, field: "count" })?;
        let asker = Asker { generation: t.generation(), core: CoreId(t.core()), ticket: t.ticket() };
        messages.push(addressed(kind, t.head(), Body::Forward(Forward { asker, delay_ms: t.delay_ms(), bodies }))?);
    }
    check(payload.is_empty(), kind, "bytes")?;
    Ok(messages)
}

fn outcomes(kind: &'static str, metadata: &[u8]) -> Result<Vec<Addressed>, Malformed> {
    let found = table::<fb::Outcomes>(kind, metadata)?.outcomes();
    check(found.len() <= ENTRIES_MAX, kind, "outcomes")?;
    let outcome = |t: fb::Forwarded<'_>| {
        let asker = Asker { generation: t.generation(), core: CoreId(t.core()), ticket: t.ticket() };
        addressed(kind, t.head(), Body::Forwarded(Forwarded { asker, outcome: self::outcome(t.outcome()) }))
    };
    found.iter().map(outcome).collect()
}

/// Maps an outcome that only a later version knows to `Unknown`.
pub(super) fn outcome(outcome: Outcome) -> Outcome {
    outcome.variant_name().map_or(Outcome::Unknown, |_| outcome)
}

fn relays(kind: &'static str, metadata: &[u8], mut payload: Bytes) -> Result<Vec<Addressed>, Malformed> {
    let found = table::<fb::Relays>(kind, metadata)?.relays();
    check(found.len() <= ENTRIES_MAX, kind, "relays")?;
    let mut messages = Vec::with_capacity(found.len());
    for t in found {
        let bytes = t.bytes() as usize;
        check(bytes <= RUN_BYTES_MAX && bytes <= payload.len(), kind, "bytes")?;
        let relay = relay::decode(kind, &t, payload.split_to(bytes))?;
        messages.push(addressed(kind, t.head(), Body::Relay(relay))?);
    }
    check(payload.is_empty(), kind, "bytes")?;
    Ok(messages)
}

fn single(number: u8, kind: &'static str, metadata: &[u8], payload: &Bytes) -> Result<Addressed, Malformed> {
    match number {
        kind::INQUIRE => inquire(kind, metadata),
        kind::EPOCHS_ASK => {
            let t = table::<fb::EpochsAsk>(kind, metadata)?;
            addressed(kind, t.head(), Body::EpochsAsk(EpochsAsk { below: Epoch(t.below()) }))
        }
        kind::PULL => {
            let t = table::<fb::Pull>(kind, metadata)?;
            check(t.bytes_max() as usize <= APPEND_BYTES_MAX, kind, "bytes_max")?;
            let pull = Pull { from: position(kind, "from", t.from())?, bytes_max: t.bytes_max() };
            addressed(kind, t.head(), Body::Pull(pull))
        }
        kind::ALIGN => {
            let t = table::<fb::Align>(kind, metadata)?;
            let at = position(kind, "at", t.at())?;
            let align = match (t.to(), t.chain_crc()) {
                (fb::AlignTo::Truncate, chain_crc) => Align::Truncate { at, chain_crc },
                (fb::AlignTo::Restart, Some(chain_crc)) => Align::Restart { start: at, chain_crc },
                // Never by guess: it truncates a log.
                _ => return Err(Malformed::Field { kind, field: "to" }),
            };
            addressed(kind, t.head(), Body::Align(align))
        }
        kind::CURSORS => cursors(kind, metadata, payload),
        kind::STANDING => standing(kind, metadata),
        kind::PULLED => {
            let t = table::<fb::Pulled>(kind, metadata)?;
            check(payload.len() <= RUN_BYTES_MAX, kind, "payload")?;
            let pulled = Pulled { from: position(kind, "from", t.from())?, batches: batches(payload.clone()) };
            addressed(kind, t.head(), Body::Pulled(pulled))
        }
        kind::ALIGNED => {
            let t = table::<fb::Aligned>(kind, metadata)?;
            addressed(kind, t.head(), Body::Aligned(Aligned { at: position(kind, "at", t.at())? }))
        }
        kind::CURSORS_ACK => {
            let t = table::<fb::CursorsAck>(kind, metadata)?;
            check(t.seq() >= 1, kind, "seq")?;
            let result = t.error().map_or(Ok(Ok(())), |e| refusal::decode(kind, e).map(Err))?;
            addressed(kind, t.head(), Body::CursorsAck(CursorsAck { seq: t.seq(), result }))
        }
        kind::REFUSED => {
            let t = table::<fb::Refused>(kind, metadata)?;
            addressed(kind, t.head(), Body::Refused(refusal::decode(kind, t.error())?))
        }
        kind::CHANGE => {
            let t = table::<fb::Change>(kind, metadata)?;
            addressed(kind, t.head(), Body::Change(change::decode(kind, &t)?))
        }
        kind::CHANGED => {
            let t = table::<fb::Changed>(kind, metadata)?;
            addressed(kind, t.head(), Body::Changed(change::decode_done(kind, &t)?))
        }
        number => Err(Malformed::UnknownKind(number)),
    }
}

fn inquire(kind: &'static str, metadata: &[u8]) -> Result<Addressed, Malformed> {
    let t = table::<fb::Inquire>(kind, metadata)?;
    check(t.partitions() <= PartitionId::COUNT_MAX && t.head().partition() < t.partitions(), kind, "partitions")?;
    let topic = TopicName::new(t.topic()).map_err(|_| Malformed::Field { kind, field: "topic" })?;
    let inquire = Inquire { topic, partitions: t.partitions(), membership_version: t.membership_version() };
    addressed(kind, t.head(), Body::Inquire(inquire))
}

fn standing(kind: &'static str, metadata: &[u8]) -> Result<Addressed, Malformed> {
    let t = table::<fb::Standing>(kind, metadata)?;
    check(t.epochs().len() <= EPOCHS_MAX, kind, "epochs")?;
    let mut epochs: Vec<EpochEnd> = Vec::with_capacity(t.epochs().len());
    for e in t.epochs() {
        check(epochs.last().is_none_or(|newer| newer.epoch.0 > e.epoch()), kind, "epochs")?;
        let end = position(kind, "epochs", e.end())?;
        epochs.push(EpochEnd { epoch: Epoch(e.epoch()), end, chain_crc: e.chain_crc() });
    }
    let standing = Standing {
        start: position(kind, "start", t.start())?,
        start_crc: t.start_crc(),
        last_epoch: Epoch(t.last_epoch()),
        durable: position(kind, "durable", t.durable())?,
        committed: position(kind, "committed", t.committed())?,
        suspect: t.suspect(),
        epochs,
        more: t.more(),
    };
    addressed(kind, t.head(), Body::Standing(standing))
}

fn cursors(kind: &'static str, metadata: &[u8], payload: &Bytes) -> Result<Addressed, Malformed> {
    let t = table::<fb::Cursors>(kind, metadata)?;
    check(t.seq() >= 1, kind, "seq")?;
    check(t.cursors() as usize <= CURSORS_MAX && t.cursor_bytes() as usize <= CURSORS_BYTES_MAX, kind, "cursors")?;
    check(t.deleted() as usize <= CURSORS_MAX, kind, "deleted")?;
    let parts = payload.split_at_checked(t.cursor_bytes() as usize);
    let (images, names) = parts.ok_or(Malformed::Field { kind, field: "cursor_bytes" })?;
    let cursors = Cursors {
        seq: t.seq(),
        committed: position(kind, "committed", t.committed())?,
        flush: t.flush(),
        is_all: t.is_all(),
        collect_start: t.collect_start().map(|at| position(kind, "collect_start", at)).transpose()?,
        agreed_start: t.agreed_start().map(|at| position(kind, "agreed_start", at)).transpose()?,
        cursors: cursors::decode_cursors(images, t.cursors())?,
        deleted: cursors::decode_deleted(names, t.deleted())?,
        producers: cursors::decode_producers(t.producers().map_or(&[], |list| list.bytes()))?,
        channels_lost: t.channels_lost(),
    };
    addressed(kind, t.head(), Body::Cursors(cursors))
}
