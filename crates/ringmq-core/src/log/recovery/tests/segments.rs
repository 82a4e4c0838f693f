//! The tables of segments that a startup begins, or finds begun.

use super::*;
use crate::format::files::SegmentMeta;
use crate::format::files::{COMMIT_MAGIC, FileHeader, SEGMENT_MAGIC};
use crate::format::segment_table::SegmentTable;
use crate::log::recovery::scan::segment_at;

const SMALL: u64 = 16 * 1024;

fn small(seed: u64) -> RecoverOptions {
    RecoverOptions { segment_bytes: SMALL, ..options(1, seed) }
}

/// A node that crashed with all of its log in the journal, and in segments as far as a build before the table wrote them.
fn journaled() -> SimDisk {
    let mut disk = SimDisk::new(1);
    let first = recover(&mut disk, &small(1)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, first, SMALL);
    let info = TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([7; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault was asked for");
    for n in 0..24u8 {
        engine.reserve(0, 8192).expect("no fault was asked for");
        engine.admit(0, 3140).expect("no fault was asked for");
        let batch = engine.make_batch(0, &[vec![n; 3000]]);
        let fact = engine.batch_fact(0, &batch);
        engine.write(0, &[fact]).expect("no fault was asked for");
        engine.parts[0].pending.push(batch);
    }
    assert_eq!(engine.parts[0].applied, 0, "no snapshot was taken");
    engine.disk.crash();
    engine.disk
}

fn files(p: &RecoveredPartition, base: i64) -> [(String, [u8; 4]); 2] {
    let (segment, commit) = (FileId::Segment(p.dir.clone(), base), FileId::Commit(p.dir.clone(), base));
    [(segment.to_string(), SEGMENT_MAGIC), (commit.to_string(), COMMIT_MAGIC)]
}

fn check_tables(disk: &SimDisk, p: &RecoveredPartition, what: &str) {
    for (i, m) in p.files.segments.iter().enumerate() {
        let base = m.base.offset;
        for (path, magic) in files(p, base) {
            let block = disk.contents_of(&path);
            let header = FileHeader::parse(block, magic, p.dir.topic_id, p.dir.partition, base).expect("it holds");
            assert_eq!(header.meta(), *m, "{what}: {path}");
            let before = SegmentTable::of(p.files.segments[..i].iter().copied());
            let expected = if i == 0 { Err(crate::format::files::Bad::Zero) } else { Ok(before) };
            assert_eq!(SegmentTable::parse(block, p.dir.topic_id, p.dir.partition, base), expected, "{what}: {path}");
        }
    }
}

#[test]
fn a_start_names_in_the_segments_that_it_begins_those_before_them() {
    let mut disk = journaled();
    let found = recover(&mut disk, &small(2)).expect("it is whole");
    let p = &found.partitions[0];
    assert!(p.files.segments.len() >= 6, "{:?}", p.files.segments);
    check_tables(&disk, p, "begun");
    let again = recover(&mut disk, &small(3)).expect("it is whole");
    assert_eq!(again.partitions[0].files.segments, p.files.segments);
    assert!(again.report.findings.is_empty(), "{:?}", again.report);
}

/// A process began a segment and died. Its first block's table of earlier segments is not trusted, like all bytes behind the end: it may
/// be torn, or of an earlier life in which the log was truncated elsewhere.
#[test]
fn a_segment_that_was_begun_behind_the_end_is_entered_with_a_table_that_is_true() {
    let disk = journaled();
    let whole = recover(&mut disk.clone(), &small(2)).expect("it is whole");
    let p = &whole.partitions[0];
    let (index, last) = (p.files.segments.len() - 1, *p.files.segments.last().expect("it has some"));
    let before = &p.files.segments[..index];
    let changed = |f: fn(&mut SegmentMeta)| {
        let mut metas = before.to_vec();
        metas.last_mut().into_iter().for_each(f);
        SegmentTable::of(metas.into_iter())
    };
    let tables = [
        ("none", SegmentTable::default()),
        ("too few", SegmentTable::of(before[1..].iter().copied())),
        ("another count", changed(|m| m.base.count += 1)),
        ("another crc", changed(|m| m.prev_crc ^= 1)),
        ("another border", changed(|m| m.base.offset -= 1)),
        ("all", changed(|_| {})),
    ];
    for (what, table) in tables {
        for torn in [&[][..], &[0], &[1], &[0, 1]] {
            let mut disk = disk.clone();
            for (i, (path, magic)) in files(p, last.base.offset).into_iter().enumerate() {
                let (id, partition) = (p.dir.topic_id, p.dir.partition);
                let header = FileHeader::new(magic, id, partition, last.base, last.prev_crc, Epoch(1), 5);
                let mut block = header.block(&table);
                if torn.contains(&i) {
                    block[100] ^= 1;
                }
                disk.scribble(&path, 0, &block);
            }
            let found = recover(&mut disk, &small(2)).expect("it is whole");
            assert_eq!(found.partitions[0].files.segments, p.files.segments, "{what}");
            assert!(!found.report.has_damage(), "{what}: {:?}", found.report);
            check_tables(&disk, &found.partitions[0], what);
        }
    }
}

/// Files are unlinked side by side on a full disk, so a crash leaves any of them (seed 471529716 of 8aa5a32).
#[test]
fn whichever_files_are_left_of_what_retention_let_go_nothing_is_damaged() {
    let mut disk = SimDisk::new(1);
    let first = recover(&mut disk, &small(1)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, first, SMALL);
    let info = TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([7; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault was asked for");
    for n in 0..20u8 {
        engine.reserve(0, 8192).expect("no fault was asked for");
        engine.admit(0, 3140).expect("no fault was asked for");
        let batch = engine.make_batch(0, &[vec![n; 3000]]);
        let fact = engine.batch_fact(0, &batch);
        engine.write(0, &[fact]).expect("no fault was asked for");
        engine.parts[0].pending.push(batch);
        engine.flush(0).expect("no fault was asked for");
    }
    engine.snapshot(0).expect("no fault was asked for");
    let at = engine.parts[0].end;
    let gone = engine.position_fact(0, RecordKind::Start, at);
    engine.reserve(0, 8192).expect("no fault was asked for");
    engine.write(0, &[gone]).expect("no fault was asked for");
    let (mut disk, bases, dir) = (engine.disk, engine.parts[0].bases.clone(), engine.parts[0].dir.clone());
    disk.kill();
    assert!(bases.len() >= 4, "{bases:?}");
    // The space of a segment is allocated ahead: how long its file is does not tell what it holds.
    for (left, is_long) in (0..1u32 << bases.len()).flat_map(|left| [(left, false), (left, true)]) {
        let mut disk = disk.clone();
        for base in bases.iter().filter(|_| is_long) {
            let file = FileId::Segment(dir.clone(), *base);
            disk.allocate(&file, segment_at(*base, at.offset) + SMALL).expect("there is room");
        }
        for (_, base) in bases.iter().enumerate().filter(|(i, _)| left & 1 << i == 0) {
            disk.lose(&FileId::Segment(dir.clone(), *base).to_string(), None);
            disk.lose(&FileId::Commit(dir.clone(), *base).to_string(), None);
        }
        for seed in [2, 3] {
            let found = recover(&mut disk, &small(seed)).expect("it is whole");
            let p = &found.partitions[0];
            assert!(!found.report.has_damage() && !p.damage.doubt().is_suspect(), "{left:b} {is_long}: {:?}", found.report);
            assert_eq!((p.start, p.end, p.files.segments.len()), (at, at, 1), "{left:b}");
            log_of(&disk, p).unwrap_or_else(|e| panic!("{left:b}: {e}"));
            let files = disk.paths().filter(|path| path.ends_with(".segment")).count();
            assert_eq!(files, 1, "{left:b}: what was let go is unlinked");
        }
    }
}
