//! Messages between subscriptions of clients and leaders, as tables.

use super::encode::Builder;
use super::message::{NotCarriedOut, Relayed, Subscriber};
use super::{Outcome, fb};
use crate::base::{ChannelName, LogId};
use crate::codec::metadata::{Malformed, check, truncated};
use bytes::Bytes;

/// FINs of one relay.
pub const FINISHED_MAX: usize = 4096;

/// Bytes of a table at most, without its vectors.
const TABLE_MAX: usize = 160;
/// The same of a subscriber, whose texts are truncated.
const SUBSCRIBER_MAX: usize = 256;

/// Bytes of the metadata that the relay may take.
pub(super) fn metadata_max(relay: &Relayed) -> usize {
    TABLE_MAX
        + match relay {
            Relayed::Finish(ids) => ids.len() * size_of::<u64>(),
            Relayed::Subscribe(s) => {
                let texts = [&s.client_id, &s.hostname, &s.user_agent, &s.remote_address];
                SUBSCRIBER_MAX + texts.iter().map(|text| truncated(text).len()).sum::<usize>()
            }
            _ => 0,
        }
}

pub(super) fn payload(relay: &Relayed) -> Option<&Bytes> {
    if let Relayed::Deliver(frames) = relay { Some(frames) } else { None }
}

pub(super) fn encode<'a>(b: &mut Builder<'a>, head: &fb::Head, relay: &Relayed) -> flatbuffers::WIPOffset<fb::Relay<'a>> {
    let mut args = fb::RelayArgs { head: Some(head), ..Default::default() };
    let not = |args: &mut fb::RelayArgs<'_>, kind, id: LogId, why| {
        (args.kind, args.id) = (kind, id.0);
        (args.reason, args.outcome) = match why {
            NotCarriedOut::NotInFlight => (fb::NotInFlight::Unknown, Outcome::Unknown),
            NotCarriedOut::NotOwned => (fb::NotInFlight::NotOwned, Outcome::Unknown),
            NotCarriedOut::Refused(outcome) => (fb::NotInFlight::Refused, outcome),
        };
    };
    match relay {
        Relayed::Subscribe(s) => (args.kind, args.subscriber) = (fb::RelayKind::Subscribe, Some(subscriber(b, s))),
        Relayed::Unsubscribe => args.kind = fb::RelayKind::Unsubscribe,
        Relayed::Lend(credit) => (args.kind, args.credit) = (fb::RelayKind::Lend, *credit),
        Relayed::Recall(credit) => (args.kind, args.credit) = (fb::RelayKind::Recall, *credit),
        Relayed::Block(true) => args.kind = fb::RelayKind::Block,
        Relayed::Block(false) => args.kind = fb::RelayKind::Unblock,
        Relayed::Finish(ids) => {
            assert!(ids.len() <= FINISHED_MAX, "FINs have their bound: send the others in the next");
            let ids = b.create_vector_from_iter(ids.iter().map(|id| id.0));
            (args.kind, args.ids) = (fb::RelayKind::Finish, Some(ids));
        }
        Relayed::Requeue { id, delay_ms } => {
            (args.kind, args.id, args.delay_ms) = (fb::RelayKind::Requeue, id.0, *delay_ms);
        }
        Relayed::Touch(id) => (args.kind, args.id) = (fb::RelayKind::Touch, id.0),
        Relayed::Subscribed => args.kind = fb::RelayKind::Subscribed,
        Relayed::Refused(outcome) => (args.kind, args.outcome) = (fb::RelayKind::Refused, *outcome),
        Relayed::Returned(credit) => (args.kind, args.credit) = (fb::RelayKind::Returned, *credit),
        Relayed::Hungry => args.kind = fb::RelayKind::Hungry,
        Relayed::Deliver(frames) => (args.kind, args.bytes) = (fb::RelayKind::Deliver, frames.len() as u32),
        Relayed::Lost => args.kind = fb::RelayKind::Lost,
        Relayed::ChannelDeleted => args.kind = fb::RelayKind::ChannelDeleted,
        Relayed::NotFinished(id, why) => not(&mut args, fb::RelayKind::NotFinished, *id, *why),
        Relayed::NotRequeued(id, why) => not(&mut args, fb::RelayKind::NotRequeued, *id, *why),
        Relayed::NotTouched(id, why) => not(&mut args, fb::RelayKind::NotTouched, *id, *why),
        Relayed::Other => args.kind = fb::RelayKind::Other,
    }
    fb::Relay::create(b, &args)
}

fn subscriber<'a>(b: &mut Builder<'a>, s: &Subscriber) -> flatbuffers::WIPOffset<fb::Subscriber<'a>> {
    let args = fb::SubscriberArgs {
        channel: Some(b.create_string(&s.channel)),
        msg_timeout_ms: s.msg_timeout_ms,
        sample_rate: s.sample_rate,
        ordered: s.ordered,
        placed: s.placed,
        client_id: Some(b.create_string(truncated(&s.client_id))),
        hostname: Some(b.create_string(truncated(&s.hostname))),
        user_agent: Some(b.create_string(truncated(&s.user_agent))),
        remote_address: Some(b.create_string(truncated(&s.remote_address))),
        connected_unix_s: s.connected_unix_s,
    };
    fb::Subscriber::create(b, &args)
}

pub(super) fn decode(kind: &'static str, t: &fb::Relay<'_>, frames: Bytes) -> Result<Relayed, Malformed> {
    check(frames.is_empty() || t.kind() == fb::RelayKind::Deliver, kind, "bytes")?;
    let id = LogId(t.id());
    let why = match t.reason() {
        fb::NotInFlight::NotOwned => NotCarriedOut::NotOwned,
        fb::NotInFlight::Refused => NotCarriedOut::Refused(super::decode::outcome(t.outcome())),
        _ => NotCarriedOut::NotInFlight,
    };
    Ok(match t.kind() {
        fb::RelayKind::Subscribe => {
            let s = t.subscriber().ok_or(Malformed::Field { kind, field: "subscriber" })?;
            Relayed::Subscribe(Box::new(decode_subscriber(kind, &s)?))
        }
        fb::RelayKind::Unsubscribe => Relayed::Unsubscribe,
        fb::RelayKind::Lend => Relayed::Lend(t.credit()),
        fb::RelayKind::Recall => Relayed::Recall(t.credit()),
        fb::RelayKind::Block => Relayed::Block(true),
        fb::RelayKind::Unblock => Relayed::Block(false),
        fb::RelayKind::Finish => {
            let ids = t.ids().into_iter().flatten().map(LogId).collect::<Vec<_>>();
            check(ids.len() <= FINISHED_MAX, kind, "ids")?;
            Relayed::Finish(ids)
        }
        fb::RelayKind::Requeue => Relayed::Requeue { id, delay_ms: t.delay_ms() },
        fb::RelayKind::Touch => Relayed::Touch(id),
        fb::RelayKind::Subscribed => Relayed::Subscribed,
        fb::RelayKind::Refused => Relayed::Refused(super::decode::outcome(t.outcome())),
        fb::RelayKind::Returned => Relayed::Returned(t.credit()),
        fb::RelayKind::Hungry => Relayed::Hungry,
        fb::RelayKind::Deliver => Relayed::Deliver(frames),
        fb::RelayKind::Lost => Relayed::Lost,
        fb::RelayKind::ChannelDeleted => Relayed::ChannelDeleted,
        fb::RelayKind::NotFinished => Relayed::NotFinished(id, why),
        fb::RelayKind::NotRequeued => Relayed::NotRequeued(id, why),
        fb::RelayKind::NotTouched => Relayed::NotTouched(id, why),
        _ => Relayed::Other,
    })
}

fn decode_subscriber(kind: &'static str, s: &fb::Subscriber<'_>) -> Result<Subscriber, Malformed> {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Ok(Subscriber {
        channel: ChannelName::new(s.channel()).map_err(|_| Malformed::Field { kind, field: "channel" })?,
        msg_timeout_ms: s.msg_timeout_ms(),
        sample_rate: s.sample_rate(),
        ordered: s.ordered(),
        placed: s.placed(),
        client_id: text(s.client_id()),
        hostname: text(s.hostname()),
        user_agent: text(s.user_agent()),
        remote_address: text(s.remote_address()),
        connected_unix_s: s.connected_unix_s(),
    })
}
