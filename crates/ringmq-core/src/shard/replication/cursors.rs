//! Channels of a replicated partition: changes by the leader's clients go to the followers, and a follower applies the leader's cursors.
//!
//! ```text
//! leader     FINs journaled ─> Moved ─> (each interval) CollectCursors ─> the followers
//!            a change with a waiting client (shard/cursors.rs): its record durable ─> Sync ─> every ISR member has it
//!              ─> CursorDone ─> final, or reverted
//!            retention would remove something ─> the collect start, durable ─> Collecting ─> the followers ─> Agreed ─> it may
//! follower   ApplyCursors ─> records durable ─> Applied
//! ```

use super::CoreParts;
use super::store_work::{Recorded, StoreWork};
use crate::base::NodeId;
use crate::base::{ChannelName, Position};
use crate::channel::Channel;
use crate::codec::peer::message::{CURSORS_BYTES_MAX, PRODUCERS_TOLD_MAX, Session};
use crate::format::cursor::CursorImage;
use crate::format::producer::Producer;
use crate::log::{PartitionIdx, RecordTicket};
use crate::replica::states::State;
use crate::replica::{Channels, CursorEvent, Event};
use crate::seam::outcome::PublishError;
use crate::shard::cursors::DurableChange;
use crate::shard::partitions::{ChannelKey, Partition};

// ---- a leader's

/// The change of a cursor is durable here: now the other replicas. False: there are none, or this one does not lead.
pub fn replicate_cursor(core: &mut CoreParts, change: &DurableChange) -> bool {
    let &DurableChange { request, idx, ref name, deletes } = change;
    let Some(p) = core.partitions.look(idx) else { return false };
    if !p.is_retired() && (p.seat().is_none() || name.is_ephemeral()) {
        return false;
    }
    let number = request.0;
    match (image_of(p, name), deletes) {
        (Some(image), None) => core.work.tell(idx, Event::Cursor(CursorEvent::Sync { request: number, image })),
        (Some(_), Some(collect_start)) if p.is_deleting(name) => {
            core.work.tell(idx, Event::Cursor(CursorEvent::Delete { request: number, channel: name.clone(), collect_start }));
        }
        // A deletion was taken back when this replica ceased to lead, though it leads again.
        _ => core.syncs.end(request, Err(PublishError::NotLeader)),
    }
    true
}

/// Cursors moved in the journal: the followers hear of them with the next interval.
pub fn cursors_moved(core: &mut CoreParts) {
    for key in core.partitions.agenda.take_moved() {
        let p = core.partitions.get(key.partition_idx());
        if p.seat().is_some_and(|s| s.is_leader()) {
            let channel = p.channels[key.channel as usize].name.clone();
            core.work.tell(key.partition_idx(), Event::Cursor(CursorEvent::Moved { channel }));
        }
    }
}

/// The channels as they are, for a follower.
pub(super) fn collect_cursors(core: &mut CoreParts, idx: PartitionIdx, (to, session): (NodeId, Session), wanted: Channels) {
    let p = core.partitions.get_mut(idx);
    let Some(epoch) = p.seat().and_then(|s| s.member.epoch()) else { return };
    let is_all = wanted == Channels::All;
    let mut cursors = vec![];
    // A channel that is being deleted is gone at the follower.
    for (_, c) in p.channels.iter_mut().filter(|(_, c)| !c.name.is_ephemeral() && !c.machine.is_deleting()) {
        let is_wanted = match &wanted {
            Channels::All => true,
            Channels::Some(names) => names.contains(&c.name),
        };
        if is_wanted {
            // Changes from now on are told again.
            c.has_moved = false;
            cursors.push(CursorImage { epoch, ..c.machine.image() });
        }
    }
    fit(&mut cursors, CURSORS_BYTES_MAX);
    let collect_start = core.partitions.oldest(idx, &core.store);
    let producers = if is_all { core.store.producers_before_start(idx, PRODUCERS_TOLD_MAX) } else { vec![] };
    let event = CursorEvent::Collected { to, session, is_all, collect_start, cursors, producers };
    core.work.tell(idx, Event::Cursor(event));
}

/// Retention would remove all before `at`: from now on no channel of this leader begins there, and the leader tells the others until
/// every possible next leader has it. A follower's retention waits for its leader's message.
pub fn collect_from(core: &mut CoreParts, store_work: &mut StoreWork, idx: PartitionIdx, at: Position) {
    let p = core.partitions.get_mut(idx);
    // A deletion that is not final may be taken back, and with it the collect start. It is looked at again then.
    let is_deleting = p.channels.iter().any(|(_, c)| c.machine.is_deleting());
    let Some(seat) = p.seat_mut() else { return };
    if seat.member.state() != State::Open || at.offset <= seat.collecting || is_deleting {
        return;
    }
    let at = std::cmp::max_by_key(at, core.store.collect_start(idx), |at| at.offset);
    seat.collecting = at.offset;
    let record = core.store.log_collect_start(idx, at);
    store_work.record(record, idx, Recorded::Collecting(at));
}

// ---- a follower's

pub(super) fn apply_cursors(
    core: &mut CoreParts,
    store_work: &mut StoreWork,
    (idx, number): (PartitionIdx, u64),
    (images, deleted): (Vec<CursorImage>, Vec<ChannelName>),
    (collect_start, channels_lost): (Option<Position>, Option<bool>),
    producers: &[Producer],
) {
    let options = core.channels().options();
    let mut record = RecordTicket::default();
    for image in images {
        let p = core.partitions.get_mut(idx);
        let partition = p.dir.partition;
        record = core.store.log_cursor(idx, &image);
        core.store.lower_low_water(idx, image.confirmed);
        match p.channel(&image.name) {
            Some(i) => p.channels[i as usize].machine = Channel::new(options, partition, image),
            None => {
                let offset = image.confirmed.offset;
                tracing::info!(topic = %p.topic.name, %partition, channel = %image.name, offset, "the leader created the channel");
                core.channels().add(idx, image);
            }
        }
    }
    for name in deleted {
        let p = core.partitions.get(idx);
        if let Some(i) = p.channel(&name) {
            tracing::info!(topic = %p.topic.name, partition = %p.dir.partition, channel = %name, "the leader deleted the channel");
            record = core.store.log_channel_delete(idx, &name);
            core.channels().forget(ChannelKey { partition: idx.0, channel: i });
        }
    }
    if let Some(at) = collect_start.filter(|at| *at != core.store.collect_start(idx)) {
        record = core.store.log_collect_start(idx, at);
    }
    record = core.store.log_producers(idx, producers).unwrap_or(record);
    // This replica has the leader's channels now, and its lack of channels.
    record = match channels_lost {
        Some(true) => core.store.mark_channels_lost(idx, core.epoch.0),
        Some(false) => core.store.accept_channels_lost(idx),
        None => record,
    };
    core.partitions.get_mut(idx).low_water_stale = true;
    core.channels().update_low_water(idx);
    // Numbers are answered in order: one without a record waits for those before it.
    if store_work.is_applying(idx) || record > RecordTicket::default() {
        store_work.record(record, idx, Recorded::Applied(number));
    } else {
        core.work.tell(idx, Event::Cursor(CursorEvent::Applied { number }));
    }
}

/// Image of the channel in the epoch of a replica that leads.
fn image_of(p: &Partition, name: &ChannelName) -> Option<CursorImage> {
    let epoch = p.seat()?.member.epoch()?;
    let c = &p.channels[p.channel(name)? as usize];
    Some(CursorImage { epoch, ..c.machine.image() })
}

/// Leaves the highest intervals out until the cursors fit into one message: a new leader redelivers the messages of these intervals.
fn fit(cursors: &mut [CursorImage], bytes_max: usize) {
    let mut bytes: usize = cursors.iter().map(CursorImage::encoded_len).sum();
    while bytes > bytes_max {
        let Some(longest) = cursors.iter_mut().max_by_key(|c| c.intervals.len()).filter(|c| !c.intervals.is_empty()) else {
            return;
        };
        let before = longest.encoded_len();
        longest.intervals.truncate(longest.intervals.len() / 2);
        bytes -= before - longest.encoded_len();
    }
}
