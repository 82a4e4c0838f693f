//! Changes by operators of channels at another node than the leader, and their outcomes, as tables.

use super::decode::position;
use super::encode::{Builder, raw};
use super::message::{Change, ChangeDone, Changed, Changing, NotChanged};
use super::{Outcome, fb};
use crate::base::{ChannelName, CoreId, LogId};
use crate::codec::metadata::{Malformed, check};
use crate::codec::native::Start;
use crate::codec::peer::message::Asker;

pub(super) fn encode<'a>(
    b: &mut Builder<'a>,
    head: Option<&fb::Head>,
    change: &Change,
) -> flatbuffers::WIPOffset<fb::Change<'a>> {
    let Change { asker, channel, what } = change;
    let mut args = fb::ChangeArgs {
        head,
        generation: asker.generation,
        core: asker.core.0,
        ticket: asker.ticket,
        channel: Some(b.create_string(channel)),
        ..Default::default()
    };
    args.kind = match *what {
        Changing::Create { first, is_alone } => {
            (args.first, args.is_alone) = (first, is_alone);
            fb::ChangeKind::Create
        }
        Changing::Delete => fb::ChangeKind::Delete,
        Changing::Pause => fb::ChangeKind::Pause,
        Changing::Unpause => fb::ChangeKind::Unpause,
        Changing::SetOrder(true) => fb::ChangeKind::MakeOrdered,
        Changing::SetOrder(false) => fb::ChangeKind::MakeUnordered,
        Changing::SetOffset { to, from, force } => {
            (args.to, args.at) = place(to);
            (args.from, args.force) = (from.map(|id| id.0), force);
            fb::ChangeKind::SetOffset
        }
        Changing::Other => fb::ChangeKind::Other,
    };
    fb::Change::create(b, &args)
}

fn place(to: Start) -> (fb::ChangeTo, i64) {
    match to {
        Start::Default => (fb::ChangeTo::Default, 0),
        Start::Oldest => (fb::ChangeTo::Oldest, 0),
        Start::Newest => (fb::ChangeTo::Newest, 0),
        Start::Offset(at) => (fb::ChangeTo::Offset, at),
        Start::Count(at) => (fb::ChangeTo::Count, at),
        Start::LogId(id) => (fb::ChangeTo::LogId, id.0 as i64),
        Start::Timestamp(at) => (fb::ChangeTo::Timestamp, at),
    }
}

pub(super) fn decode(kind: &'static str, t: &fb::Change<'_>) -> Result<Change, Malformed> {
    let asker = Asker { generation: t.generation(), core: CoreId(t.core()), ticket: t.ticket() };
    let channel = ChannelName::of_cursor(t.channel()).map_err(|_| Malformed::Field { kind, field: "channel" })?;
    let what = match t.kind() {
        fb::ChangeKind::Create => Changing::Create { first: t.first(), is_alone: t.is_alone() },
        fb::ChangeKind::Delete => Changing::Delete,
        fb::ChangeKind::Pause => Changing::Pause,
        fb::ChangeKind::Unpause => Changing::Unpause,
        fb::ChangeKind::MakeOrdered => Changing::SetOrder(true),
        fb::ChangeKind::MakeUnordered => Changing::SetOrder(false),
        fb::ChangeKind::SetOffset => {
            let from = t.from().map(LogId);
            check(from.is_none_or(|id| id <= LogId::MAX), kind, "from")?;
            Changing::SetOffset { to: decode_place(kind, t)?, from, force: t.force() }
        }
        _ => Changing::Other,
    };
    Ok(Change { asker, channel, what })
}

fn decode_place(kind: &'static str, t: &fb::Change<'_>) -> Result<Start, Malformed> {
    let at = t.at();
    check(at >= 0 || t.to() == fb::ChangeTo::Timestamp, kind, "at")?;
    Ok(match t.to() {
        fb::ChangeTo::Default => Start::Default,
        fb::ChangeTo::Oldest => Start::Oldest,
        fb::ChangeTo::Newest => Start::Newest,
        fb::ChangeTo::Offset => Start::Offset(at),
        fb::ChangeTo::Count => Start::Count(at),
        fb::ChangeTo::LogId => {
            let id = LogId(at as u64);
            check(id <= LogId::MAX, kind, "at")?;
            Start::LogId(id)
        }
        fb::ChangeTo::Timestamp => Start::Timestamp(at),
        // Never by guess: it moves a channel.
        _ => return Err(Malformed::Field { kind, field: "to" }),
    })
}

pub(super) fn encode_done<'a>(
    b: &mut Builder<'a>,
    head: Option<&fb::Head>,
    changed: &Changed,
) -> flatbuffers::WIPOffset<fb::Changed<'a>> {
    let Changed { asker, result } = changed;
    let (done, failure) = (result.unwrap_or_default(), result.err());
    let at = done.at.map(raw);
    let (reason, outcome) = match failure {
        None => (fb::NotChanged::Failed, Outcome::Unknown),
        Some(NotChanged::NoPartition) => (fb::NotChanged::NoPartition, Outcome::Unknown),
        Some(NotChanged::NoChannel) => (fb::NotChanged::NoChannel, Outcome::Unknown),
        Some(NotChanged::NotFirstClient) => (fb::NotChanged::NotFirstClient, Outcome::Unknown),
        Some(NotChanged::HasClients) => (fb::NotChanged::HasClients, Outcome::Unknown),
        Some(NotChanged::NoPlace) => (fb::NotChanged::NoPlace, Outcome::Unknown),
        Some(NotChanged::Unreadable) => (fb::NotChanged::Unreadable, Outcome::Unknown),
        Some(NotChanged::Failed(outcome)) => (fb::NotChanged::Failed, outcome),
    };
    let args = fb::ChangedArgs {
        head,
        generation: asker.generation,
        core: asker.core.0,
        ticket: asker.ticket,
        done: failure.is_none(),
        reason,
        outcome,
        is_first: done.is_first,
        at: at.as_ref(),
    };
    fb::Changed::create(b, &args)
}

pub(super) fn decode_done(kind: &'static str, t: &fb::Changed<'_>) -> Result<Changed, Malformed> {
    let asker = Asker { generation: t.generation(), core: CoreId(t.core()), ticket: t.ticket() };
    if t.done() {
        let at = t.at().map(|at| position(kind, "at", at)).transpose()?;
        return Ok(Changed { asker, result: Ok(ChangeDone { is_first: t.is_first(), at }) });
    }
    let why = match t.reason() {
        fb::NotChanged::NoPartition => NotChanged::NoPartition,
        fb::NotChanged::NoChannel => NotChanged::NoChannel,
        fb::NotChanged::NotFirstClient => NotChanged::NotFirstClient,
        fb::NotChanged::HasClients => NotChanged::HasClients,
        fb::NotChanged::NoPlace => NotChanged::NoPlace,
        fb::NotChanged::Unreadable => NotChanged::Unreadable,
        _ => NotChanged::Failed(super::decode::outcome(t.outcome())),
    };
    Ok(Changed { asker, result: Err(why) })
}
