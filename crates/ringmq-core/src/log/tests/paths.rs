//! The ways of publishes, facts, searches and segments, with a disk that works.

use super::*;
use crate::format::cursor::Interval;
use crate::format::journal::JournalIdentity;
use crate::format::journal::{RING_START, WHOLE_TOPIC};

fn is_journal(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { file: FileId::Journal(_), .. })
}

/// Places of the writes into the ring among the pending operations. Writes of checkpoint slots may stand beside them.
fn ring_writes(rig: &Rig) -> Vec<usize> {
    let is_ring = |op: &DiskOp| matches!(op, DiskOp::Write { file: FileId::Journal(_), at, .. } if *at >= RING_START);
    (0..rig.disk.pending.len()).filter(|&i| is_ring(&rig.disk.pending[i].1)).collect()
}

#[test]
fn an_append_is_acknowledged_when_its_journal_write_is_done() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let first = rig.append(p, &[b"one", b"two"]).unwrap();
    let second = rig.append(p, &[b"three"]).unwrap();
    assert!(first < second && rig.store.has_batches());
    rig.turn_end();
    assert!(!rig.store.has_batches());
    assert!(matches!(rig.store.fetch(p, 0, &mut rig.io), Fetch::End));
    assert_eq!(ring_writes(&rig).len(), 1, "one journal write for the turn");
    rig.complete(ring_writes(&rig)[0]);
    let end = rig.store.durable_end(p);
    assert_eq!(rig.notices, [Notice::Durable { p, end, tickets_upto: second }]);
    assert_eq!(rig.read_all(p), [&b"one"[..], b"two", b"three"]);
    assert_eq!(rig.redo().len(), 1);
}

#[test]
fn one_write_carries_all_partitions_and_the_next_turn_fills_behind_it() {
    let mut rig = Rig::new(options());
    let parts: Vec<_> = (0..20).map(|n| rig.create(&format!("t{n}"))).collect();
    for (round, parts) in [&parts[..], &parts[..4], &parts[..4]].into_iter().enumerate() {
        for &p in parts {
            rig.append(p, &[&[round as u8; 10]]).unwrap();
        }
        rig.turn_end();
        assert_eq!(ring_writes(&rig).len(), 1, "one write is in flight");
    }
    rig.complete(ring_writes(&rig)[0]);
    rig.turn_end();
    rig.complete(ring_writes(&rig)[0]);
    assert_eq!(rig.notices.len(), 24);
    let redo = rig.redo();
    assert_eq!(redo.len(), 24, "what two turns brought behind a write became one batch");
    let counts: Vec<i64> = parts.iter().map(|&p| rig.store.durable_end(p).count).collect();
    assert_eq!((&counts[..4], &counts[4..]), (&[3; 4][..], &[1; 16][..]));
}

#[test]
fn another_write_goes_beside_the_first_once_half_as_much_waits() {
    let mut rig = Rig::new(options());
    let parts: Vec<_> = (0..20).map(|n| rig.create(&format!("t{n}"))).collect();
    for writes in 1..=2 {
        for &p in &parts {
            rig.append(p, &[b"some message"]).unwrap();
        }
        rig.turn_end();
        assert_eq!(ring_writes(&rig).len(), writes);
    }
    // The later one is complete first: nothing of it counts before the earlier one is.
    rig.complete(ring_writes(&rig)[1]);
    assert!(rig.notices.is_empty() && parts.iter().all(|&p| rig.store.durable_end(p).count == 0));
    rig.complete(ring_writes(&rig)[0]);
    assert!(parts.iter().all(|&p| rig.store.durable_end(p).count == 2));
}

#[test]
fn what_waits_behind_a_write_goes_beside_it_when_it_is_much() {
    let mut rig = Rig::new(options());
    let parts: Vec<_> = (0..8).map(|n| rig.create(&format!("t{n}"))).collect();
    for &p in &parts {
        rig.publish(p, b"first");
    }
    rig.settle();
    rig.notices.clear();
    let has_durable = |rig: &Rig| rig.notices.iter().any(|n| matches!(n, Notice::Durable { .. }));
    let journal = |rig: &Rig| {
        let is_journal = |op: &DiskOp| matches!(op, DiskOp::Write { file: FileId::Journal(_), .. });
        rig.disk.pending.iter().enumerate().filter(|(_, (_, op))| is_journal(op)).map(|(i, _)| i).collect::<Vec<_>>()
    };
    for &p in &parts {
        while rig.append(p, &[&vec![7; 20_000]]).is_err() {
            let grows = rig.find(|op| matches!(op, DiskOp::Allocate { .. })).expect("it waits for space");
            rig.complete(grows);
        }
        rig.turn_end();
    }
    assert_eq!(journal(&rig).len(), crate::journal::ring::DEPTH, "so many writes and no more");
    while let [_, .., last] = journal(&rig)[..] {
        rig.complete(last);
        assert!(!has_durable(&rig), "nothing is durable before the first write");
    }
    rig.complete(journal(&rig)[0]);
    assert!(has_durable(&rig));
    rig.settle();
    assert!(parts.iter().all(|&p| rig.store.durable_end(p).count == 2));
}

#[test]
fn an_append_is_never_split_and_large_ones_go_straight_to_the_segment() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let sizes = [100, 31_000, 5_000, 40_000, 100, 200_000, 400_000, 50];
    for size in sizes {
        rig.publish(p, &vec![size as u8; size]);
    }
    rig.settle();
    let found: Vec<usize> = rig.read_all(p).iter().map(Vec::len).collect();
    assert_eq!(found, sizes);
    let redo = rig.redo();
    assert_eq!(redo.iter().filter(|r| r.0 == RecordKind::DirectBatch).count(), 3);
    assert!(redo.iter().all(|r| r.2.len() < 32 * 1024));
    // A batch that is larger than a whole segment has a segment of its own size.
    let segments = rig.disk.files.keys().filter(|f| matches!(f, FileId::Segment(..))).count();
    assert!(segments >= 3, "{:?}", rig.disk.files.keys());
}

#[test]
fn nothing_is_journaled_before_the_direct_batch_ahead_of_it() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.publish(p, &[1; 20_000]);
    rig.settle();
    while rig.append(p, &[&[2; 40_000]]).is_err() {
        rig.settle();
    }
    let large = AppendTicket(2);
    let small = rig.append(p, &[&[3; 10]]).unwrap();
    rig.notices.clear();
    rig.turn_end();
    loop {
        rig.turn_end();
        if let Some(journal) = rig.find(is_journal) {
            assert!(rig.find(|op| matches!(op, DiskOp::Sync { .. })).is_none());
            rig.complete(journal);
            break;
        }
        assert!(rig.redo_count(RecordKind::Batch) == 1 && rig.notices.is_empty());
        rig.complete(0);
    }
    let end = rig.store.durable_end(p);
    assert!(large < small);
    assert_eq!(rig.notices, [Notice::Durable { p, end, tickets_upto: small }]);
    let kinds: Vec<_> = rig.redo().iter().map(|r| r.0).collect();
    assert_eq!(kinds, [RecordKind::Batch, RecordKind::DirectBatch, RecordKind::Batch]);
}

#[test]
fn too_many_waiting_bytes_are_refused_until_the_journal_moves() {
    let mut options = options();
    options.max_pub_waiting_size = 20_000;
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    rig.publish(p, &[1; 4_000]);
    rig.settle();
    rig.notices.clear();
    assert!(rig.append(p, &[&[1; 4_000]]).is_ok());
    rig.turn_end();
    while rig.append(p, &[&[1; 1_000]]).is_ok() {}
    assert_eq!(rig.append(p, &[&[1; 1_000]]), Err(Refusal::Busy));
    assert!(rig.store.memory_bytes() < 40_000);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Room));
    assert!(rig.append(p, &[&[1; 1_000]]).is_ok());
}

#[test]
fn direct_batches_of_many_partitions_do_not_pile_up_in_memory() {
    let mut rig = Rig::new(options());
    for n in 0..60 {
        let p = rig.create(&format!("t{n}"));
        rig.publish(p, &[n; 40_000]);
        rig.settle();
        assert!(
            rig.store.core.batch_memory.eviction.unflushed_bytes() <= MIB + 50_000,
            "{} after {n}",
            rig.store.core.batch_memory.eviction.unflushed_bytes()
        );
    }
    assert!(rig.store.core.batch_memory.eviction.unflushed_bytes() > MIB / 2, "the rest waits for more");
}

/// A partition that gets little keeps its own batches in memory, and not those that the others had beside them.
#[test]
fn a_trickle_does_not_keep_the_memory_of_a_flood() {
    let journal = JournalIdentity { file_len: 64 * MIB, ..options().journal };
    let mut rig = Rig::new(StoreOptions { journal, flush_bytes: MIB, ..options() });
    let (flood, trickle) = (rig.create("flood"), rig.create("trickle"));
    for n in 0..2000u32 {
        rig.publish(flood, &[n as u8; 7000]);
        rig.publish(trickle, &n.to_le_bytes());
        rig.settle();
        let (pieces, batches) = (rig.store.core.batch_memory.bytes(), rig.store.core.batch_bytes());
        assert!(pieces <= 2 * batches + memory::SLACK, "{pieces} bytes for {batches} after {n}");
    }
    let recent = &rig.store.core.part(trickle).batches;
    assert_eq!(recent.len(), 2000, "nothing of it is flushed yet");
    let alone = recent.iter().filter(|r| r.bytes.is_unique()).count();
    assert!((1000..2000).contains(&alone), "{alone} have memory of their own");
    let bodies = rig.read_all(trickle);
    assert!((0..2000u32).zip(&bodies).all(|(n, body)| body[..] == n.to_le_bytes()) && bodies.len() == 2000);
    assert_eq!(rig.read_all(flood).len(), 2000);
}

#[test]
fn an_idle_partition_costs_kilobytes() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.publish(p, b"hello");
    rig.settle();
    let bytes: usize = rig.disk.files.iter().filter(|(f, _)| !matches!(f, FileId::Journal(_))).map(|(_, b)| b.len()).sum();
    assert_eq!(bytes, (16 + 8 + 3 * 4) * 1024);
    assert!(size_of::<partition::PartitionLog>() < 1750, "{}", size_of::<partition::PartitionLog>());
}

#[test]
fn small_facts_are_durable_in_order_and_large_ones_are_split() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let channel = ChannelName::new("ch").unwrap();
    let at = |n: u64| Position { offset: 0, count: n as i64, log_id: LogId(n) };
    let intervals: Vec<_> = (1..4000).map(|n| Interval { start: LogId(2 * n), end: at(2 * n + 1) }).collect();
    let bare = CursorImage::new(channel.clone(), Epoch(4), 3, Position::START);
    let image = CursorImage { paused: true, intervals: intervals.clone(), ..bare };
    let info = TopicInfo { name: TopicName::new("t").unwrap(), id: dir("t").topic_id, partitions: 1 };
    let topic = rig.store.log_topic_create(&info, 77, &mut rig.io);
    let first = rig.store.log_cursor(p, &image);
    let second = rig.store.log_collect_start(p, Position::START);
    let third = rig.store.log_channel_delete(p, &channel);
    assert!(topic < first && first < second && second < third);
    rig.settle();
    assert_eq!(rig.notices.last(), Some(&Notice::RecordDurable { upto: third }));
    let redo = rig.redo();
    assert_eq!((redo[0].0, redo[0].1.partition.get(), redo[0].1.sequence.get()), (RecordKind::TopicCreate, WHOLE_TOPIC, 1));
    let mut found = vec![];
    for (kind, header, payload) in &redo[1..] {
        if matches!(kind, RecordKind::Cursor | RecordKind::Finished) {
            let (part, _) = CursorImage::decode(payload).unwrap();
            assert_eq!((part.generation, &part.name), (3, &channel));
            found.extend(part.intervals);
        }
        assert_eq!(header.epoch.get(), 4);
    }
    assert_eq!(found, intervals);
    let sequences: Vec<_> = redo[1..].iter().map(|r| r.1.sequence.get()).collect();
    assert_eq!(sequences, (1..redo.len() as u64).collect::<Vec<_>>());
    let meta = &rig.disk.files[&FileId::Topic(dir("t"), 0)];
    assert_eq!(meta[..192], redo[0].2[..]);
}

#[test]
fn a_place_is_found_in_memory_and_on_disk() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let (mut starts, t0) = (vec![], rig.now.unix_ns);
    for n in 0..300 {
        rig.now.unix_ns = t0 + n * 1000;
        let at = rig.store.durable_end(p);
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
        starts.push(at);
    }
    let end = rig.store.durable_end(p);
    assert!(rig.store.core.part(p).segments.len() > 3 && rig.store.core.part(p).batches.len() < 100);
    let mut token = 0;
    let mut find = |rig: &mut Rig, by: SearchBy| {
        token += 1;
        rig.store.search(p, by, token, &mut rig.io);
        rig.settle();
        rig.tick(0);
        let found = rig.notices.drain(..).filter_map(|n| match n {
            Notice::Found { token: t, result } if t == token => Some(result),
            _ => None,
        });
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), 1, "one answer");
        found[0].clone().expect("the disk works")
    };
    for n in [0, 1, 2, 63, 64, 65, 81, 82, 83, 150, 164, 290, 299] {
        let at = starts[n];
        assert_eq!(find(&mut rig, SearchBy::LogId(at.log_id)), Some(at));
        assert_eq!(find(&mut rig, SearchBy::Count(at.count)), Some(at));
        assert_eq!(find(&mut rig, SearchBy::Offset(at.offset + 7)), Some(at));
        assert_eq!(find(&mut rig, SearchBy::UnixNs(t0 + n as i64 * 1000)), Some(at), "{n}");
        assert_eq!(find(&mut rig, SearchBy::UnixNs(t0 + n as i64 * 1000 - 500)), Some(at), "{n}");
    }
    assert_eq!(find(&mut rig, SearchBy::LogId(LogId(0))), Some(Position::START));
    assert_eq!(find(&mut rig, SearchBy::LogId(LogId(5000))), Some(end));
    assert_eq!(find(&mut rig, SearchBy::UnixNs(t0 + 1_000_000)), None);
}

#[test]
fn retention_keeps_by_consumption_age_and_size() {
    let mut options = options();
    options.retention_ms = 10_000;
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    for n in 0..300 {
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
        rig.tick(100);
    }
    let bases: Vec<i64> = rig.store.core.part(p).segments.iter().map(|s| s.base()).collect();
    assert_eq!(bases.len(), 4);
    rig.store.set_low_water(p, rig.store.core.part(p).segments.get(2).expect("there are more").meta.base);
    rig.settle();
    // The second one ended 13 seconds ago, the third one 5.
    assert_eq!(rig.store.start(p).offset, bases[2]);
    assert!(matches!(rig.store.fetch(p, 0, &mut rig.io), Fetch::Below { start } if start.offset == bases[2]));
    let gone: Vec<_> =
        [0, 1].iter().flat_map(|&i: &usize| [FileId::Segment(dir("t"), bases[i]), FileId::Commit(dir("t"), bases[i])]).collect();
    assert_eq!(rig.disk.removed, gone);
    let start = rig.redo().iter().filter(|r| r.0 == RecordKind::Start).count();
    assert!(start > 0 || rig.store.core.part(p).journaled.dirty_from().is_none());
    rig.store.set_low_water(p, rig.store.durable_end(p));
    rig.settle();
    assert_eq!(rig.store.start(p).offset, bases[2], "too young");
    for _ in 0..7 {
        rig.tick(10_000);
        rig.settle();
    }
    assert_eq!(rig.store.start(p).offset, bases[3], "the active segment stays");
    assert_eq!(rig.disk.removed.len(), 6);
}

#[test]
fn a_cluster_s_word_on_the_retention_of_a_topic_comes_before_the_node_s() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let forever = crate::config::TopicSettings { retention_ms: Some(3_600_000), retention_bytes: None };
    rig.store.set_topic_retention("t", forever);
    for n in 0..300 {
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
    }
    rig.store.set_low_water(p, rig.store.durable_end(p));
    rig.settle();
    assert_eq!(rig.store.start(p).offset, 0, "all is confirmed and young");
    rig.store.set_topic_retention("t", crate::config::TopicSettings::default());
    rig.store.look_at_retention(p);
    rig.tick(100);
    rig.settle();
    assert!(rig.store.start(p).offset > 0, "the node keeps nothing that is confirmed");
}

#[test]
fn an_age_that_the_cluster_gives_a_topic_later_is_looked_at() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.publish(p, b"before");
    rig.settle();
    assert_eq!(rig.store.core.retention.deadline(&rig.store.core.ops), None, "no topic is kept for a time");
    let minute = crate::config::TopicSettings { retention_ms: Some(60_000), retention_bytes: None };
    rig.store.set_topic_retention("t", minute);
    rig.publish(p, b"after");
    rig.settle();
    assert!(rig.store.core.retention.deadline(&rig.store.core.ops).is_some());
}

/// A channel may begin before the others' confirmed offsets: its unread messages are kept from then on.
#[test]
fn retention_waits_for_a_channel_that_begins_early() {
    let mut options = options();
    options.retention_ms = 10_000;
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    for n in 0..300 {
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
    }
    let end = rig.store.durable_end(p);
    rig.store.set_low_water(p, end);
    let early = rig.store.start(p);
    rig.store.lower_low_water(p, early);
    for _ in 0..5 {
        rig.tick(10_000);
        rig.settle();
    }
    assert_eq!((rig.store.start(p), rig.disk.removed.len()), (early, 0));
    rig.store.set_low_water(p, end);
    for _ in 0..5 {
        rig.tick(10_000);
        rig.settle();
    }
    assert!(rig.store.start(p).offset > early.offset && !rig.disk.removed.is_empty());
}

#[test]
fn a_segment_is_not_unlinked_before_its_new_start_is_durable() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    for n in 0..100 {
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
    }
    rig.store.set_low_water(p, rig.store.durable_end(p));
    loop {
        rig.turn_end();
        let Some(index) = rig.find(|op| !is_journal(op)) else { break };
        assert!(!matches!(rig.disk.pending[index].1, DiskOp::Remove { .. }));
        rig.complete(index);
    }
    assert!(rig.disk.removed.is_empty());
    rig.settle();
    assert_eq!(rig.disk.removed.len(), 2);
}

#[test]
fn a_partition_goes_on_where_recovery_left_it() {
    use crate::format::snapshot::Snapshot;
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    for n in 0..30 {
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
    }
    rig.store.stop(rig.now, &NoCursors, &mut rig.io);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Stopped));
    let d = dir("t");
    let snapshots =
        [0, 1, 2].map(|slot| Snapshot::decode(&rig.disk.files[&FileId::Snapshot(d.clone(), slot)], d.topic_id, d.partition));
    let s = snapshots.into_iter().flatten().max_by_key(|s| s.sequence).unwrap();
    assert_eq!((s.end, s.applied), (rig.store.durable_end(p), 30));
    let at = |file: &FileId, len: u64| rig.disk.files[file][(len - len % 4096) as usize..len as usize].to_vec();
    let (segment, commit) = (FileId::Segment(d.clone(), 0), FileId::Commit(d.clone(), 0));
    let topic = Arc::new(TopicInfo { name: d.topic.clone(), id: d.topic_id, partitions: 1 });
    let files = state::RecoveredFiles {
        segments: vec![crate::format::files::SegmentMeta { base: Position::START, prev_crc: 0 }],
        segment_len: rig.disk.files[&segment].len() as u64,
        commit_len: rig.disk.files[&commit].len() as u64,
        tail: at(&segment, 4096 + s.end.offset as u64),
        commit_tail: at(&commit, 4096 + 30 * 64),
        commit_records: 30,
    };
    let recovered = state::RecoveredPartition {
        start: s.start,
        end: s.end,
        collect_start: s.collect_start,
        chain_crc: s.chain_crc,
        epoch: s.epoch,
        record_sequence: s.applied,
        snapshot_sequence: s.sequence,
        files,
        producers: Producers::restore(ProducerLimits::default(), &s.producers),
        last_unix_ns: s.unix_ns,
        ..state::RecoveredPartition::empty(topic, d.clone(), ProducerLimits::default())
    };
    let mut options = options();
    options.epoch = Epoch(5);
    // A partition without a snapshot has none of the files: space for them is seen to.
    for (sequence, missing) in [(0, vec![0, 1, 2]), (3, vec![])] {
        let mut store = Store::new(options.clone());
        let p = store.open(state::RecoveredPartition { snapshot_sequence: sequence, ..recovered.clone() });
        let _ = store.append(rig.now, p, [&b"x"[..]].into_iter(), 1, 1, &mut rig.io);
        let slots = rig.io.drain(..).filter_map(|(_, op)| match op {
            DiskOp::Allocate { file: FileId::Snapshot(_, slot), .. } => Some(slot),
            _ => None,
        });
        assert_eq!(slots.collect::<Vec<u8>>(), missing);
    }
    // Whether the disk is full is known before a publish: a partition without room for the next one is tried at once.
    for (segment_len, is_tight) in [(recovered.files.segment_len, false), (4096 + s.end.offset as u64, true)] {
        let mut store = Store::new(options.clone());
        let files = state::RecoveredFiles { segment_len, ..recovered.files.clone() };
        let p = store.open(state::RecoveredPartition { files, ..recovered.clone() });
        store.tick(rig.now, &NoCursors, &mut rig.io, &mut rig.notices);
        let asked: Vec<_> = rig.io.drain(..).filter(|(_, op)| matches!(op, DiskOp::Allocate { .. })).collect();
        assert_eq!((!asked.is_empty(), store.is_disk_full()), (is_tight, false));
        for (id, _) in asked {
            let no_space = Err(DiskError::NoSpace { file: segment.clone() });
            store.completed(rig.now, id, no_space, &NoCursors, &mut rig.io, &mut rig.notices);
        }
        assert_eq!((store.is_disk_full(), store.stats(p).disk_full), (is_tight, is_tight));
    }
    rig.store = Store::new(options);
    rig.disk.files.get_mut(&FileId::Journal(0)).unwrap().fill(0);
    let p = rig.store.open(recovered);
    for n in 30..60 {
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
    }
    let found: Vec<u8> = rig.read_all(p).iter().map(|b| b[0]).collect();
    assert_eq!(found, (0..60).collect::<Vec<u8>>());
    assert_eq!(rig.redo()[0].1.sequence.get(), 31);
    rig.store.stop(rig.now, &NoCursors, &mut rig.io);
    rig.settle();
    // From the disk alone.
    while rig.store.core.part(p).batches.first() < 30 {
        rig.store.core.part_mut(p).evict();
    }
    rig.store.reads.reader().cache = cache::ReadCache::new(0);
    assert_eq!(rig.read_all(p).len(), 60);
}
