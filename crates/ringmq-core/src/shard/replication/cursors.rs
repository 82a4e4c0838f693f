//! Channels of a replicated partition: what the leader's clients do to them reaches the followers, and what a leader says is
//! applied to those of a follower.
//!
//! ```text
//! leader     FINs journaled ─> Moved ─> (each interval) CollectCursors ─> the followers
//!            a change that somebody waits for (shard/cursors.rs): its record durable ─> Sync ─> every ISR member has it
//!              ─> CursorDone ─> final, or taken back
//!            retention would remove something ─> the collect start, durable ─> Collecting ─> the followers ─> Agreed ─> it may
//! follower   ApplyCursors ─> records durable ─> Applied
//! ```

use super::{Engine, Recorded};
use crate::base::NodeId;
use crate::base::{ChannelName, Now, Position};
use crate::channel::Channel;
use crate::codec::peer::message::{CURSORS_BYTES_MAX, PRODUCERS_TOLD_MAX, Session};
use crate::format::cursor::CursorImage;
use crate::format::producer::Producer;
use crate::log::{PartitionIdx, RecordTicket};
use crate::replica::states::State;
use crate::replica::{Channels, CursorEvent, Event};
use crate::seam::outcome::PublishError;
use crate::shard::cursors::{CursorRequest, DurableChange};
use crate::shard::partitions::ChannelKey;

impl Engine {
    // ---- a leader's

    /// The change of a cursor is durable here: now the other replicas. False: there are none, or this one does not lead.
    pub(in crate::shard) fn replicate_cursor(&mut self, now: Now, change: &DurableChange) -> bool {
        let &DurableChange { request, idx, ref name, deletes } = change;
        let p = self.partitions.look(idx);
        if p.is_some_and(|p| p.is_retired()) {
            return self.refuse_cursor(request);
        }
        if p.is_none_or(|p| p.seat().is_none()) || name.is_ephemeral() {
            return false;
        }
        let request_number = request.0;
        let event = match (self.image_of(idx, name), deletes) {
            (Some(image), None) => CursorEvent::Sync { request: request_number, image },
            (Some(_), Some(collect_start)) if self.partitions.get(idx).is_deleting(name) => {
                CursorEvent::Delete { request: request_number, channel: name.clone(), collect_start }
            }
            // A deletion was taken back when this replica ceased to lead, though it leads again.
            _ => return self.refuse_cursor(request),
        };
        self.tell_member(now, idx, Event::Cursor(event));
        true
    }

    fn refuse_cursor(&mut self, request: CursorRequest) -> bool {
        self.syncs.end(request, Err(PublishError::NotLeader));
        true
    }

    fn image_of(&self, idx: PartitionIdx, name: &ChannelName) -> Option<CursorImage> {
        let p = self.partitions.get(idx);
        let epoch = p.seat()?.member.epoch()?;
        let c = &p.channels[p.channel(name)? as usize];
        Some(CursorImage { epoch, ..c.machine.image() })
    }

    /// Cursors moved in the journal: the followers hear of them with the next interval.
    pub(in crate::shard) fn cursors_moved(&mut self, now: Now) {
        for key in self.partitions.agenda.take_moved() {
            let p = self.partitions.get(key.partition_idx());
            if p.seat().is_some_and(|s| s.is_leader()) {
                let channel = p.channels[key.channel as usize].name.clone();
                self.tell_member(now, key.partition_idx(), Event::Cursor(CursorEvent::Moved { channel }));
            }
        }
    }

    /// The channels as they are, for a follower.
    pub(super) fn collect_cursors(&mut self, now: Now, idx: PartitionIdx, (to, session): (NodeId, Session), wanted: Channels) {
        let p = self.partitions.get_mut(idx);
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
        let collect_start = self.partitions.oldest(idx, &self.store);
        let producers = if is_all { self.store.producers_before_start(idx, PRODUCERS_TOLD_MAX) } else { vec![] };
        let event = CursorEvent::Collected { to, session, is_all, collect_start, cursors, producers };
        self.tell_member(now, idx, Event::Cursor(event));
    }

    /// Retention would remove all before `at`: from now on no channel of this leader begins there, and the others are told so, until
    /// all who may lead next have it. A follower's retention waits for its leader's word.
    pub(in crate::shard) fn collect_from(&mut self, idx: PartitionIdx, at: Position) {
        let Some(seat) = self.partitions.get_mut(idx).seat_mut() else { return };
        if seat.member.state() != State::Open || at.offset <= seat.collecting {
            return;
        }
        // A deletion that is not final may be taken back, and with it the collect start. It is looked at again then.
        if self.partitions.get(idx).channels.iter().any(|(_, c)| c.machine.is_deleting()) {
            return;
        }
        let Some(seat) = self.partitions.get_mut(idx).seat_mut() else { return };
        let known = self.store.collect_start(idx);
        let at = if known.offset > at.offset { known } else { at };
        seat.collecting = at.offset;
        let record = self.store.log_collect_start(idx, at);
        self.cluster_mut().records.push_back((record, idx, Recorded::Collecting(at)));
    }

    // ---- a follower's

    pub(super) fn apply_cursors(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        number: u64,
        (images, deleted): (Vec<CursorImage>, Vec<ChannelName>),
        (collect_start, channels_lost): (Option<Position>, Option<bool>),
        producers: &[Producer],
    ) {
        let options = self.channels().options();
        let mut record = RecordTicket::default();
        for image in images {
            let p = self.partitions.get_mut(idx);
            let partition = p.dir.partition;
            record = self.store.log_cursor(idx, &image);
            self.store.lower_low_water(idx, image.confirmed);
            match p.channel(&image.name) {
                Some(i) => p.channels[i as usize].machine = Channel::new(options, partition, image),
                None => {
                    let offset = image.confirmed.offset;
                    tracing::info!(topic = %p.topic.name, %partition, channel = %image.name, offset, "the leader created the channel");
                    self.channels().add(idx, image);
                }
            }
        }
        for name in deleted {
            let p = self.partitions.get(idx);
            if let Some(i) = p.channel(&name) {
                tracing::info!(topic = %p.topic.name, partition = %p.dir.partition, channel = %name, "the leader deleted the channel");
                record = self.store.log_channel_delete(idx, &name);
                self.channels().forget(ChannelKey { partition: idx.0, channel: i });
            }
        }
        if let Some(at) = collect_start.filter(|at| *at != self.store.collect_start(idx)) {
            record = self.store.log_collect_start(idx, at);
        }
        record = self.store.log_producers(idx, producers).unwrap_or(record);
        // This replica has the leader's channels now, and what the leader lacks.
        record = match channels_lost {
            Some(true) => self.store.mark_channels_lost(idx, self.epoch.0),
            Some(false) => self.store.accept_channels_lost(idx),
            None => record,
        };
        self.partitions.get_mut(idx).low_water_stale = true;
        self.channels().update_low_water(idx);
        // Numbers are answered in order: what needs no record waits for those before it.
        let records = &mut self.cluster_mut().records;
        let waits = records.iter().any(|(_, p, what)| *p == idx && matches!(what, Recorded::Applied(_)));
        if waits || record > RecordTicket::default() {
            self.cluster_mut().records.push_back((record, idx, Recorded::Applied(number)));
        } else {
            self.cursors_applied(now, idx, number);
        }
    }

    pub(super) fn cursors_applied(&mut self, now: Now, idx: PartitionIdx, number: u64) {
        self.tell_member(now, idx, Event::Cursor(CursorEvent::Applied { number }));
    }
}

/// Leaves the highest intervals out until the cursors fit into one message: what they confirm is delivered again by a new leader.
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
