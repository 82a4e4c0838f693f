//! A disk that fails, fills up, or gives back other bytes than it took.

use super::*;
use crate::format::{batch, files};
use crate::log::AppendError;

fn is_journal(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { file: FileId::Journal(_), .. })
}

fn is_segment_write(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { file: FileId::Segment(..), .. })
}

/// Small batches until something is in a segment and out of memory.
fn fill(rig: &mut Rig, p: PartitionIdx, batches: usize) {
    for n in 0..batches {
        rig.publish(p, &vec![n as u8; 3000]);
        rig.settle();
    }
}

#[test]
fn a_failed_journal_write_closes_the_core_and_acknowledges_nothing() {
    let mut rig = Rig::new(options());
    let (p, q) = (rig.create("a"), rig.create("b"));
    rig.publish(p, b"acknowledged");
    rig.settle();
    rig.notices.clear();
    let issued = rig.append(p, &[b"issued"]).unwrap();
    rig.turn_end();
    let late = rig.append(p, &[b"open"]).unwrap();
    let other = rig.append(q, &[b"open"]).unwrap();
    let ticket = rig.store.log_collect_start(q, Position::START);
    let journal = rig.find(is_journal).unwrap();
    rig.fail(journal, false);
    rig.settle();
    let failed = |p, from, error| Notice::AppendFailed { p, from, error };
    assert!(matches!(rig.notices[0], Notice::ReadOnly { .. }));
    assert_eq!(
        rig.notices[1..],
        [
            failed(p, late, AppendError::ReadOnly),
            failed(p, issued, AppendError::Unknown),
            failed(q, other, AppendError::ReadOnly)
        ]
    );
    assert_eq!(rig.append(p, &[b"more"]), Err(Refusal::ReadOnly));
    assert_eq!(rig.read_all(p), [b"acknowledged"]);
    // Facts are taken and never become durable; nothing is written to the journal again.
    assert!(rig.store.log_collect_start(p, Position::START) > ticket);
    rig.store.stop(rig.now, &NoCursors, &mut rig.io);
    rig.disk.take(&mut rig.io);
    assert!(rig.find(is_journal).is_none());
    rig.settle();
    assert!(rig.notices.contains(&Notice::Stopped));
    assert!(!rig.notices.iter().any(|n| matches!(n, Notice::RecordDurable { .. } | Notice::Durable { .. })));
}

#[test]
fn a_failed_segment_write_closes_one_partition_until_the_ring_is_full() {
    let mut rig = Rig::new(options());
    let (bad, good) = (rig.create("bad"), rig.create("good"));
    for n in 0..40u8 {
        rig.append(bad, &[&[n; 3000]]).unwrap();
        rig.turn_end();
        if let Some(write) = rig.find(is_segment_write) {
            rig.fail(write, false);
            break;
        }
        while let Some(other) = rig.find(|op| !is_segment_write(op)) {
            rig.complete(other);
        }
    }
    rig.settle();
    assert_eq!(rig.append(bad, &[b"more"]), Err(Refusal::ReadOnly));
    assert!(rig.store.stats(bad).read_only && !rig.store.stats(good).read_only);
    let kept = rig.read_all(bad).len();
    assert!(kept >= 21, "what was acknowledged is read from memory: {kept}");
    let mut published = 0;
    let reason = loop {
        rig.settle();
        if let Some(Notice::ReadOnly { reason }) = rig.notices.iter().find(|n| matches!(n, Notice::ReadOnly { .. })) {
            break reason.clone();
        }
        match rig.append(good, &[&[7; 3000]]) {
            Ok(_) => published += 1,
            Err(refusal) => assert_eq!(refusal, Refusal::Busy),
        }
        assert!(published < 400, "the ring cannot take so much");
    };
    assert!(reason.contains("files failed"), "{reason}");
    assert!(published > 100, "the others went on: {published}");
    assert_eq!((rig.read_all(bad).len(), rig.read_all(good).len()), (kept, published));
    let redo = rig.redo_count(RecordKind::Batch);
    assert!(redo >= kept, "the journal keeps what the bad partition's files lack");
}

#[test]
fn a_direct_batch_whose_data_failed_is_never_acknowledged() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.publish(p, b"before");
    rig.settle();
    rig.settle();
    let large = loop {
        match rig.append(p, &[&[1; 50_000]]) {
            Ok(ticket) => break ticket,
            Err(_) => rig.settle(),
        }
    };
    rig.notices.clear();
    let after = rig.append(p, &[b"after"]).unwrap();
    rig.turn_end();
    assert!(rig.find(is_journal).is_none(), "neither the large batch nor what follows it may be journaled yet");
    let write = rig.find(is_segment_write).unwrap();
    rig.fail(write, false);
    rig.settle();
    assert_eq!(rig.notices, [Notice::AppendFailed { p, from: large, error: AppendError::Unknown }]);
    assert!(after > large);
    assert_eq!(rig.read_all(p), [b"before"]);
    assert_eq!(rig.redo().len(), 1);
}

#[test]
fn a_full_disk_refuses_publishes_serves_readers_and_recovers() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let mut published = 0;
    let is_allocate = |op: &DiskOp| matches!(op, DiskOp::Allocate { .. });
    // Every allocation fails from here on.
    loop {
        match rig.append(p, &[&[1; 1000]]) {
            Ok(_) => published += 1,
            Err(Refusal::DiskFull) => break,
            Err(refusal) => assert_eq!(refusal, Refusal::Busy),
        }
        rig.turn_end();
        while !rig.disk.pending.is_empty() {
            match rig.find(is_allocate) {
                Some(index) => drop(rig.fail(index, true)),
                None => rig.complete(0),
            }
            rig.turn_end();
        }
    }
    assert!((5..40).contains(&published), "{published}");
    assert!(rig.store.stats(p).disk_full);
    assert_eq!(rig.read_all(p).len(), published);
    rig.notices.clear();
    rig.tick(500);
    assert!(rig.disk.pending.is_empty(), "not before a second has passed");
    rig.tick(600);
    let index = rig.find(is_allocate).unwrap();
    rig.fail(index, true);
    assert_eq!(rig.append(p, &[&[1; 1000]]), Err(Refusal::DiskFull));
    rig.tick(1100);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Room));
    rig.append(p, &[&[1; 1000]]).unwrap();
    rig.settle();
    assert_eq!(rig.read_all(p).len(), published + 1);
}

/// Counts warnings.
struct Warnings(std::sync::atomic::AtomicUsize);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        *about.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_snapshot_that_finds_no_space_is_told_of_once() {
    let warnings = std::sync::Arc::new(Warnings(Default::default()));
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let told = || warnings.0.load(std::sync::atomic::Ordering::Relaxed);
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let is_snapshot = |op: &DiskOp| matches!(op, DiskOp::Allocate { file: FileId::Snapshot(..), .. });
    for episode in 1..3 {
        rig.store.core.part_mut(p).slots.forget_space();
        while rig.find(is_snapshot).is_none() {
            let _ = rig.append(p, &[&[1; 3000]]);
            rig.turn_end();
            while let Some(other) = rig.find(|op| !is_snapshot(op)) {
                rig.complete(other);
            }
        }
        for _ in 0..5 {
            let index = rig.find(is_snapshot).expect("it is tried again");
            rig.fail(index, true);
            assert!(rig.store.fullness().is_some_and(|text| text.contains("the checkpoint waits")));
            rig.tick(1100);
        }
        assert_eq!(told(), episode, "the operator hears of each full disk once");
        rig.settle();
        assert_eq!((rig.store.health(), rig.store.fullness()), (vec![], None));
    }
}

#[test]
fn on_a_full_disk_the_last_segment_goes_when_all_of_it_is_confirmed() {
    let mut rig = Rig::new(options());
    let (full, idle, kept) = (rig.create("full"), rig.create("idle"), rig.create("kept"));
    for p in [full, idle, kept] {
        rig.publish(p, &[1; 1000]);
    }
    rig.settle();
    for p in [full, idle] {
        let end = rig.store.end(p);
        rig.store.set_low_water(p, end);
    }
    rig.turn_end();
    rig.settle();
    assert_eq!(rig.store.start(idle), Position::START, "with room the last segment stays");
    while rig.append(full, &[&[1; 1000]]) != Err(Refusal::DiskFull) {
        rig.turn_end();
        while !rig.disk.pending.is_empty() {
            match rig.find(|op| matches!(op, DiskOp::Allocate { .. })) {
                Some(index) => drop(rig.fail(index, true)),
                None => rig.complete(0),
            }
            rig.turn_end();
        }
    }
    rig.settle();
    assert_eq!(rig.store.start(idle), rig.store.end(idle), "it held space that another partition needs");
    assert!(!rig.disk.files.contains_key(&FileId::Segment(dir("idle"), 0)));
    assert_eq!((rig.store.start(full), rig.store.start(kept)), (Position::START, Position::START), "not confirmed");
    // The closed files are begun again.
    rig.publish(idle, b"after");
    rig.settle();
    assert_eq!(rig.read_all(idle), [b"after"]);
}

#[test]
fn rotten_bytes_are_never_handed_out() {
    for also_commit_log in [false, true] {
        let mut rig = Rig::new(options());
        let p = rig.create("t");
        fill(&mut rig, p, 60);
        let segment = FileId::Segment(dir("t"), 0);
        let batch = 128 + 12 + 3000;
        rig.disk.files.get_mut(&segment).unwrap()[4096 + 5 * batch + 700] ^= 4;
        if also_commit_log {
            rig.disk.files.get_mut(&FileId::Commit(dir("t"), 0)).unwrap()[4096 + 5 * 64 + 9] ^= 1;
        }
        rig.notices.clear();
        let (mut at, mut lost, mut read) = (0, vec![], 0);
        loop {
            match rig.fetch(p, at) {
                Fetch::Batch(b) => {
                    assert!(b.messages().all(|m| m.body.iter().all(|&x| x == b.header.count.get() as u8)));
                    read += 1;
                    at = b.header.end().offset;
                }
                Fetch::Lost { from, to } => {
                    assert_eq!(from.offset, at);
                    lost.push((from.count, to.count));
                    at = to.offset;
                }
                Fetch::End => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((read, &lost[..]), (59, &[(5, 6)][..]));
        let damage: Vec<_> = rig.notices.iter().filter(|n| matches!(n, Notice::Damage { .. })).collect();
        assert!(matches!(damage[..], [Notice::Damage { from, to, .. }] if (from.count, to.count) == (5, 6)), "{damage:?}");
    }
}

#[test]
fn the_scrubber_finds_damage_that_nobody_reads() {
    let mut options = options();
    options.scrub_bytes_per_second = MIB;
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    fill(&mut rig, p, 150);
    for n in [3, 90] {
        let base = if n < 82 { 0 } else { 82 * 3140 };
        let segment = FileId::Segment(dir("t"), base);
        assert!(rig.disk.files.contains_key(&segment), "{:?}", rig.disk.files.keys());
        rig.disk.files.get_mut(&segment).unwrap()[4096 + (n * 3140 - base) as usize + 700] ^= 4;
    }
    rig.notices.clear();
    // The first pass found nothing; the next one begins an hour later.
    rig.tick(3_600_000);
    for _ in 0..40 {
        rig.tick(300);
        rig.settle();
    }
    let damage: Vec<_> =
        rig.notices.iter().filter_map(|n| if let Notice::Damage { from, .. } = n { Some(from.count) } else { None }).collect();
    assert_eq!(damage, [3, 90]);
    assert!(rig.store.deadline().is_some_and(|d| d.since(rig.now.ticks).as_secs() > 1000), "the pass is over");
}

#[test]
fn without_a_commit_log_a_bad_batch_takes_no_other_with_it() {
    for (what, at) in [("header", 9), ("body", 700)] {
        for is_missing in [false, true] {
            let mut rig = Rig::new(options());
            let p = rig.create("t");
            fill(&mut rig, p, 150);
            let commit = FileId::Commit(dir("t"), 0);
            match is_missing {
                true => drop(rig.disk.files.remove(&commit)),
                false => rig.disk.files.get_mut(&commit).unwrap()[4096..].fill(0),
            }
            rig.disk.files.get_mut(&FileId::Segment(dir("t"), 0)).unwrap()[4096 + 5 * 3140 + at] ^= 4;
            let found = rig.fetch(p, 5 * 3140);
            let expected = (5 * 3140, 6 * 3140, 6);
            assert!(
                matches!(&found, Fetch::Lost { from, to } if (from.offset, to.offset, to.count) == expected),
                "{what}, missing {is_missing}: {found:?}"
            );
            assert!(matches!(rig.fetch(p, 6 * 3140), Fetch::Batch(_)));
        }
    }
}

#[test]
fn the_scrubber_mends_the_commit_log_of_a_closed_segment() {
    type Harm = fn(&mut Vec<u8>);
    let record = |n: usize| 4096 + n * 64;
    let harms: [(&str, Option<Harm>); 5] = [
        ("missing", None),
        ("empty", Some(|f| f.clear())),
        ("short", Some(|f| f.truncate(4096 + 1000))),
        ("zeros", Some(|f| f[4096..].fill(0))),
        ("damaged", Some(|f| f[4096 + 6 * 64 + 9..4096 + 70 * 64].fill(7))),
    ];
    for (what, harm) in harms {
        let mut options = options();
        options.scrub_bytes_per_second = MIB;
        let mut rig = Rig::new(options);
        let p = rig.create("t");
        fill(&mut rig, p, 150);
        let (segment, commit) = (FileId::Segment(dir("t"), 0), FileId::Commit(dir("t"), 0));
        let whole = rig.disk.files[&commit].clone();
        match harm {
            Some(harm) => harm(rig.disk.files.get_mut(&commit).unwrap()),
            None => drop(rig.disk.files.remove(&commit)),
        }
        rig.tick(3_600_000);
        for _ in 0..40 {
            rig.tick(300);
            rig.settle();
        }
        let mended = &rig.disk.files[&commit];
        assert!(mended[4096..record(82)] == whole[4096..record(82)], "{what}");
        assert_eq!(mended[..4], files::COMMIT_MAGIC, "{what}");
        // So a batch that fails later takes no other with it, and its record stays.
        rig.disk.files.get_mut(&segment).unwrap()[4096 + 5 * 3140 + 700] ^= 4;
        rig.disk.files.get_mut(&commit).unwrap()[record(30)] ^= 1;
        rig.store.reads.reader().cache = cache::ReadCache::new(0);
        let found = rig.fetch(p, 5 * 3140);
        assert!(matches!(&found, Fetch::Lost { from, to } if (from.count, to.count) == (5, 6)), "{what}: {found:?}");
        rig.tick(3_600_000);
        for _ in 0..40 {
            rig.tick(300);
            rig.settle();
        }
        assert!(rig.disk.files[&commit][4096..record(82)] == whole[4096..record(82)], "{what}: behind damage");
    }
}

fn is_segment_read(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Read { file: FileId::Segment(..), .. })
}

fn has_damage(rig: &Rig) -> bool {
    rig.notices.iter().any(|n| matches!(n, Notice::Damage { .. }))
}

/// An answer that says EIO says nothing of the bytes: once three of them made a batch count as lost.
#[test]
fn a_read_that_fails_is_no_damage_and_is_tried_until_it_succeeds() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    fill(&mut rig, p, 60);
    let offset = 20 * 3140;
    rig.store.reads.reader().cache = cache::ReadCache::new(0);
    let ask = |rig: &mut Rig| {
        let found = rig.store.fetch(p, offset, &mut rig.io);
        rig.disk.take(&mut rig.io);
        found
    };
    // The long read, then the batch alone.
    assert!(matches!(ask(&mut rig), Fetch::Pending));
    let read = rig.find(is_segment_read).unwrap();
    rig.fail(read, false);
    assert!(rig.notices.contains(&Notice::Readable { p }));
    rig.turn_end();
    assert!(matches!(ask(&mut rig), Fetch::Pending));
    let mut pauses = vec![];
    for n in 0..10 {
        let read = rig.find(is_segment_read).unwrap();
        rig.fail(read, false);
        rig.turn_end();
        assert!(matches!(ask(&mut rig), Fetch::Held), "after {n}");
        assert!(rig.find(is_segment_read).is_none(), "nobody asks the device before the pause is over");
        assert_eq!(rig.store.held(p).is_some(), n >= 2, "after {n}");
        if n == 4 {
            assert!(matches!(rig.fetch(p, 40 * 3140), Fetch::Batch(_)), "other places are read");
            rig.store.reads.reader().cache = cache::ReadCache::new(0);
            continue_after_probes(&mut rig);
            continue;
        }
        let pause = rig.store.reads.reader().holds.deadline().unwrap().since(rig.now.ticks).as_millis() as u64;
        pauses.push(pause);
        rig.tick(pause);
    }
    assert_eq!(pauses, [100, 200, 400, 800, 3200, 6400, 10_000, 10_000, 10_000]);
    assert!(!has_damage(&rig));
    assert!(matches!(rig.fetch(p, offset), Fetch::Batch(_)));
    assert!(rig.store.held(p).is_none() && rig.store.reads.reader().holds.deadline().is_none() && !has_damage(&rig));
}

/// Time passes until the place that is held is tried again.
fn continue_after_probes(rig: &mut Rig) {
    while rig.find(is_segment_read).is_none() {
        rig.tick(100);
        rig.turn_end();
    }
}

#[test]
fn damage_whose_end_cannot_be_read_takes_nothing_with_it() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    fill(&mut rig, p, 60);
    let (segment, commit) = (FileId::Segment(dir("t"), 0), FileId::Commit(dir("t"), 0));
    rig.disk.files.get_mut(&segment).unwrap()[4096 + 5 * 3140 + 9] ^= 4;
    rig.disk.files.remove(&commit);
    rig.store.reads.reader().cache = cache::ReadCache::new(0);
    let found = rig.store.fetch(p, 5 * 3140, &mut rig.io);
    assert!(matches!(found, Fetch::Pending));
    rig.disk.take(&mut rig.io);
    rig.complete(0);
    while !rig.disk.pending.is_empty() {
        match rig.find(is_segment_read) {
            Some(read) => drop(rig.fail(read, false)),
            None => rig.complete(0),
        }
    }
    rig.turn_end();
    assert!(matches!(rig.store.fetch(p, 5 * 3140, &mut rig.io), Fetch::Held) && !has_damage(&rig));
    let found = rig.fetch(p, 5 * 3140);
    assert!(
        matches!(&found, Fetch::Lost { from, to } if (from.offset, to.offset, to.count) == (5 * 3140, 6 * 3140, 6)),
        "{found:?}"
    );
    assert!(rig.store.reads.reader().holds.deadline().is_none());
}

/// A startup does not read a batch that lies far back; a reader that meets it must neither skip it nor call it damaged.
#[test]
fn a_batch_of_a_newer_version_is_held_and_is_no_damage() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    fill(&mut rig, p, 60);
    let (segment, offset) = (FileId::Segment(dir("t"), 0), 5 * 3140);
    let write = |rig: &mut Rig, version: u8| {
        let header = &mut rig.disk.files.get_mut(&segment).unwrap()[4096 + offset..][..128];
        header[108] = version;
        let crc = crc32fast::hash(&header[8..]);
        header[4..8].copy_from_slice(&crc.to_le_bytes());
    };
    write(&mut rig, 9);
    rig.store.reads.reader().cache = cache::ReadCache::new(0);
    assert!(matches!(rig.fetch(p, offset as i64), Fetch::Held) && !has_damage(&rig));
    let told = rig.store.held(p).expect("it is spoken of");
    assert!(told.contains(&offset.to_string()) && told.contains("newer version of ringmq"), "{told}");
    assert!(matches!(rig.fetch(p, offset as i64 + 3140), Fetch::Batch(_)), "others are read");
    let from = Position { offset: offset as i64, count: 5, log_id: LogId(6) };
    rig.store.reads.reader().cache = cache::ReadCache::new(0);
    rig.store.read_verbatim(p, 7, from, 1000, &mut rig.io);
    rig.disk.take(&mut rig.io);
    rig.settle();
    let is_refused =
        |n: &Notice| matches!(n, Notice::Verbatim { result: Err(Unreadable::Refused(why)), .. } if why.contains("newer"));
    assert!(rig.notices.iter().any(is_refused) && !has_damage(&rig), "{:?}", rig.notices);
    write(&mut rig, 1);
    assert!(matches!(rig.fetch(p, offset as i64), Fetch::Batch(_)) && rig.store.held(p).is_none());
}

#[test]
fn what_the_scrubber_cannot_read_is_no_damage() {
    let mut options = options();
    options.scrub_bytes_per_second = MIB;
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    fill(&mut rig, p, 150);
    rig.notices.clear();
    rig.tick(3_600_000);
    let mut failed = 0;
    for _ in 0..400 {
        rig.tick(300);
        while !rig.disk.pending.is_empty() {
            match rig.find(is_segment_read) {
                Some(read) => {
                    rig.fail(read, false);
                    failed += 1;
                }
                None => rig.complete(0),
            }
        }
        rig.turn_end();
    }
    assert!(failed > 5 && !has_damage(&rig), "{failed}");
    assert!(rig.store.deadline().is_some_and(|d| d.since(rig.now.ticks).as_secs() > 1000), "the pass is over");
    assert_eq!(rig.read_all(p).len(), 150);
}

#[test]
fn a_commit_log_read_that_fails_once_takes_no_batch_with_it() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    fill(&mut rig, p, 60);
    rig.disk.files.get_mut(&FileId::Segment(dir("t"), 0)).unwrap()[4096 + 5 * 3140 + 700] ^= 4;
    assert!(matches!(rig.store.fetch(p, 5 * 3140, &mut rig.io), Fetch::Pending));
    rig.disk.take(&mut rig.io);
    for _ in 0..2 {
        let of_commit_log = |op: &DiskOp| matches!(op, DiskOp::Read { file: FileId::Commit(..), .. });
        let index = loop {
            match rig.find(of_commit_log) {
                Some(index) => break index,
                None => rig.complete(0),
            }
        };
        rig.fail(index, false);
    }
    let found = rig.fetch(p, 5 * 3140);
    assert!(matches!(&found, Fetch::Lost { from, to } if (from.count, to.count) == (5, 6)), "{found:?}");
}

/// Any operation may fail at any time. Acknowledged messages from before can still be redone, and none is acknowledged afterwards.
#[test]
fn no_failure_leads_to_an_acknowledgement() {
    let mut closed = 0;
    for seed in 0..60 {
        let mut rng = crate::base::Rng::new(seed);
        let mut options = options();
        options.journal.file_len = RING_START + 320 * 1024;
        let mut rig = Rig::new(options);
        let parts = ["a", "b"].map(|t| rig.create(t));
        let fault = if rng.chance(0.5) { 0.004 } else { 0.0005 };
        let (mut acked, mut failed) = ([0u64; 2], [u64::MAX; 2]);
        for _ in 0..1200 {
            match rng.below(10) {
                0..3 => {
                    let i = rng.below(2) as usize;
                    let len = if rng.chance(0.1) { 40_000 } else { 2000 };
                    let _ = rig.append(parts[i], &[&vec![i as u8; len]]);
                }
                3..5 => rig.turn_end(),
                5 => rig.tick(300),
                _ if rig.disk.pending.is_empty() => {}
                _ => {
                    let index = rng.below(rig.disk.pending.len() as u64) as usize;
                    if rng.chance(fault) {
                        let may_fill_up = matches!(rig.disk.pending[index].1, DiskOp::Allocate { .. });
                        rig.fail(index, may_fill_up && rng.chance(0.7));
                    } else {
                        rig.complete(index);
                    }
                }
            }
            for notice in std::mem::take(&mut rig.notices) {
                match notice {
                    Notice::Durable { p, tickets_upto, .. } => {
                        assert!(tickets_upto.0 < failed[p.0 as usize], "a failed append was acknowledged");
                        acked[p.0 as usize] = tickets_upto.0;
                    }
                    Notice::AppendFailed { p, from, .. } => {
                        assert!(from.0 > acked[p.0 as usize] && from.0 < failed[p.0 as usize]);
                        failed[p.0 as usize] = from.0;
                    }
                    Notice::ReadOnly { .. } => closed += 1,
                    Notice::Damage { .. } => panic!("nothing was damaged"),
                    _ => {}
                }
            }
        }
        rig.settle();
        for (i, p) in parts.into_iter().enumerate() {
            let all = rig.read_all(p);
            assert!(all.len() as u64 >= acked[i]);
            assert!(all.iter().all(|b| b.iter().all(|&x| x == i as u8)));
        }
        rig.store.stop(rig.now, &NoCursors, &mut rig.io);
        rig.settle();
        assert!(rig.notices.contains(&Notice::Stopped), "seed {seed}");
        assert_eq!(rig.store.waiting_bytes(), 0, "seed {seed}");
        assert_eq!(rig.store.core.admission.unpacked(), 0, "seed {seed}");
    }
    assert!(closed > 3);
}

#[test]
fn more_small_messages_than_a_batch_holds_are_refused() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let most = batch::BATCH_BODY_MAX / (batch::MESSAGE_OVERHEAD + 1);
    let many = std::iter::repeat_n(&b"x"[..], most + 1);
    assert_eq!(rig.store.append(rig.now, p, many, most + 1, most + 1, &mut rig.io), Err(Refusal::TooBig));
    rig.append(p, &[b"next"]).unwrap();
    rig.settle();
    assert_eq!(rig.read_all(p).len(), 1);
}

#[test]
fn a_lost_batch_is_handed_out_and_the_log_goes_on_behind_it() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    fill(&mut rig, p, 60);
    let (d, batch) = (dir("t"), 3140);
    // Lost batch that recovery leaves in place of an unreadable one.
    let at = |n: i64| Position { offset: n * batch, count: n, log_id: LogId(n as u64 + 1) };
    let lost = batch::Batch::lost(d.topic_id, d.partition, Epoch(9), at(5), at(6), 77).unwrap();
    let segment = rig.disk.files.get_mut(&FileId::Segment(d, 0)).unwrap();
    segment[4096 + 5 * batch as usize..][..128].copy_from_slice(&lost.bytes);
    rig.store.reads.reader().cache = cache::ReadCache::new(0);
    let messages: Vec<usize> = (4..8)
        .map(|n| match rig.fetch(p, n * batch) {
            Fetch::Batch(b) => b.messages().count(),
            _ => panic!("batch {n} is not handed out"),
        })
        .collect();
    assert_eq!(messages, [1, 0, 1, 1]);
}

#[test]
fn runs_end_where_batches_end_so_that_little_is_read_twice() {
    let mut options = options();
    options.read_cache_bytes = 4 * MIB;
    options.max_bytes_per_file = 16 * MIB;
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    let body = vec![7; 200_000];
    for _ in 0..40 {
        rig.publish(p, &body);
        rig.settle();
    }
    rig.tick(60_000);
    rig.settle();
    rig.read_bytes = 0;
    assert_eq!(rig.read_all(p).len(), 40);
    // Two of them are in what a read may ask for, and half of a third.
    let log = rig.store.durable_end(p).offset as usize;
    assert!(rig.read_bytes > log / 2, "most of it is not in memory");
    assert!(rig.read_bytes < log * 21 / 20, "{} bytes were read of a log of {log}", rig.read_bytes);
}
