use super::compare::Placement;
use super::*;
use crate::base::NodeId;
use crate::base::{BLOCK, ProducerId, Rng, TopicInfo};
use crate::coordinator::file::{ClusterFile, FileNode, FilePartition, FileTopic};
use crate::format::cursor::Interval;
use crate::format::files::{FileHeader, SEGMENT_MAGIC};
use crate::format::journal::{RecordKind, WRITE_MAGIC, WriteHeader};
use crate::format::producer::Sequence;
use crate::format::segment_table::SegmentTable;
use crate::format::snapshot::Snapshot;
use crate::log::recovery::{JOURNAL_BYTES_MIN, RecoverOptions, recover};
use crate::log::{BodyLimits, NativeBatch};
use ringmq_core::sim::disk::SimDisk;
use ringmq_core::sim::engine::Engine;

/// A node with one topic, some batches, a cursor; some of it in the journal alone.
fn node() -> SimDisk {
    node_with_segments(16 * 1024)
}

fn recover_options(segment_bytes: u64) -> RecoverOptions {
    RecoverOptions {
        cores: 1,
        journal_bytes: JOURNAL_BYTES_MIN,
        segment_bytes,
        now_unix_ns: 1,
        producers: Default::default(),
        seed: 1,
        accept_lost_journal: 0,
        is_clustered: false,
    }
}

fn node_with_segments(segment_bytes: u64) -> SimDisk {
    let mut disk = SimDisk::new(1);
    let recovered = recover(&mut disk, &recover_options(segment_bytes)).expect("an empty disk recovers");
    let mut e = Engine::new(disk, recovered, segment_bytes);
    let name = TopicName::new("orders").expect("it is valid");
    e.create_topic(TopicInfo { name, id: TopicId(Rng::new(5).bytes_16()), partitions: 1 }).expect("no fault");
    for i in 0..40u8 {
        e.reserve(0, 8192).expect("no fault");
        e.admit(0, 800).expect("no fault");
        let batch = if i % 4 == 3 { e.make_native(0, native(i)) } else { e.make_batch(0, &[vec![i; 600]]) };
        let mut facts = vec![e.batch_fact(0, &batch)];
        if i % 10 == 9 {
            let end = e.parts[0].end;
            facts.extend(e.confirm(0, "billing", &[Interval { start: batch.header.start().log_id, end }]));
        }
        e.write(0, &facts).expect("no fault");
        e.parts[0].pending.push(batch);
        if i == 30 {
            e.checkpoint(0).expect("no fault");
        }
    }
    e.disk
}

/// A client's batch of the size of the others.
fn native(i: u8) -> NativeBatch {
    let mut bytes = vec![0; 128];
    bytes.extend_from_slice(&608u32.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.resize(128 + 612, i);
    let crc = crc32fast::hash(&bytes[128..]);
    let sequence = Some(Sequence { producer: ProducerId::new(0xab).expect("not zero"), first: i as u64 / 4 });
    let limits = BodyLimits { message_bytes_max: 600, body_bytes_max: 612 };
    NativeBatch::verify(bytes, 1, crc, sequence, &limits).expect("it holds")
}

fn verdict(disk: &mut SimDisk, records: bool) -> (Verdict, String) {
    let mut out = vec![];
    let options = InspectOptions { records, ..InspectOptions::default() };
    let verdict = inspect(disk, &options, &mut out).expect("it can be read");
    (verdict, String::from_utf8(out).expect("it is text"))
}

fn look(disk: &mut SimDisk, records: bool) -> (bool, String) {
    let (verdict, text) = verdict(disk, records);
    assert_ne!(verdict, Verdict::Newer, "{text}");
    (verdict == Verdict::Clean, text)
}

#[test]
fn a_data_path_that_a_node_owns_is_looked_at_under_a_warning() {
    use crate::disk::DataLock;
    let dir = tempfile::tempdir().expect("it is writable");
    std::fs::create_dir(dir.path().join("journal")).expect("it is writable");
    std::fs::File::create(dir.path().join("node.meta.0")).expect("it is writable");
    let printed = || {
        let mut out = vec![];
        let verdict = run(dir.path(), &InspectOptions::default(), &mut out).expect("it can be read");
        assert_eq!(verdict, Verdict::Clean);
        String::from_utf8(out).expect("it is text")
    };
    assert!(!printed().contains("WARNING"), "{}", printed());
    let lock = DataLock::acquire(dir.path(), std::time::Duration::ZERO).expect("it is free");
    let text = printed();
    let lines: Vec<&str> = text.lines().collect();
    for line in [lines[0], lines[lines.len() - 1]] {
        let owner = format!("WARNING: a node (pid {} (", std::process::id());
        assert!(line.contains(&owner) && line.contains("half-written"), "{text}");
    }
    let mut out = vec![];
    let paths = [dir.path(), dir.path()].map(|path| path.display().to_string());
    compare::run(&paths, &InspectOptions::default(), &mut out).expect("it can be read");
    assert_eq!(String::from_utf8(out).expect("it is text").matches("WARNING").count(), 4);
    assert!(DataLock::acquire(dir.path(), std::time::Duration::ZERO).is_err(), "the node has it still");
    drop(lock);
    assert!(!printed().contains("WARNING"), "{}", printed());
}

#[test]
fn channels_that_may_be_lost_are_told_of_until_that_is_accepted() {
    let mut disk = node();
    let paths: Vec<String> = disk.paths().filter(|path| path.contains("/state.")).map(String::from).collect();
    paths.iter().for_each(|path| disk.scribble(path, 0, &[0; BLOCK]));
    let options = recover_options(16 * 1024);
    let lost = recover(&mut disk, &options).expect("it goes on").partitions[0].damage.channels_lost();
    assert!(lost > 0);
    for (upto, is_told) in [(lost - 1, true), (lost, false)] {
        let recovered = recover(&mut disk, &options).expect("it goes on");
        let dir = recovered.partitions[0].dir.clone();
        let mut engine = Engine::new(disk, recovered, 16 * 1024);
        let payload = bytes::Bytes::copy_from_slice(&upto.to_le_bytes());
        engine.write(0, &[(RecordKind::LossAccepted, Some(0), payload, dir.topic_id)]).expect("no fault");
        disk = engine.disk;
        for place in ["the journal alone has it", "a snapshot has it"] {
            let (is_clean, text) = look(&mut disk, false);
            let told = text.contains("may have lost channels: new channels begin at the oldest message");
            assert!(told == is_told && is_clean != is_told, "{place}: {text}");
            recover(&mut disk, &options).expect("it goes on");
        }
    }
}

#[test]
fn a_node_that_crashed_is_clean_and_shows_its_records() {
    let (clean, text) = look(&mut node(), true);
    assert!(clean, "{text}");
    for what in [
        "redo from write",
        "  batch, topic",
        "channel billing",
        "sequence 1, records",
        "31 messages",
        "clean",
        "1 channels, 1 producers",
        "producer 00000000000000ab from sequence 9",
        "producer 00000000000000ab: next sequence 7, 5 places",
    ] {
        assert!(text.contains(what) || what == "31 messages", "no {what:?} in\n{text}");
    }
}

/// The process went between making the next segment and writing the end of this one: the journal has it.
#[test]
fn what_a_start_does_again_is_no_damage() {
    let mut disk = node();
    let end = 40 * 740;
    for kind in ["segment", "commit"] {
        disk.scribble(&format!("topics/orders/0/{end:020}.{kind}"), 0, &[0; BLOCK]);
    }
    let (clean, text) = look(&mut disk, false);
    assert!(clean && text.contains(&format!("{end:020}.segment: not begun yet")), "{text}");
    // Batches from before the journal's records are promised as ever.
    disk.flip("topics/orders/0/00000000000000000000.segment", 4096 + 20, 2);
    let (clean, text) = look(&mut disk, false);
    assert!(!clean && text.contains("DAMAGE at byte 4096: offsets 0 to 740"), "{text}");
}

#[test]
fn damage_is_shown_with_its_place() {
    let segment = "topics/orders/0/00000000000000000000.segment";
    for (path, at, expected) in [
        (segment, 4096 + 200, format!("{segment}: DAMAGE at byte {}: the body", 4096 + 128)),
        (segment, 4096 + 20, format!("{segment}: DAMAGE at byte 4096: offsets 0 to 740")),
        (segment, 20, format!("{segment}: DAMAGE at byte 0: the file header")),
        ("node.meta.1", 9, "node.meta.1: DAMAGE at byte 0: checksum".into()),
        ("topics/orders/topic.meta.1", 30, "topics/orders/topic.meta.1: DAMAGE at byte 0: checksum".into()),
        ("topics/orders/0/state.1", 100, "topics/orders/0/state.1: DAMAGE at byte 0".into()),
        ("topics/orders/0/00000000000000000000.commit", 4096 + 70, ".commit: DAMAGE at byte 4160: record 1 is not".into()),
    ] {
        let mut disk = node();
        disk.flip(path, at, 2);
        let (clean, text) = look(&mut disk, false);
        assert!(!clean && text.contains(&expected), "no {expected:?} in\n{text}");
    }
}

/// A node with several segments, in whose first blocks a table names those before; `change` makes the last one's say otherwise.
fn node_with_tables(change: fn(&mut SegmentMeta)) -> (SimDisk, String) {
    let mut disk = node_with_segments(8 * 1024);
    let found = recover(&mut disk, &recover_options(8 * 1024)).expect("it is whole");
    let p = &found.partitions[0];
    assert!(p.files.segments.len() > 3, "{:?}", p.files.segments);
    let file = |m: &SegmentMeta| FileId::Segment(p.dir.clone(), m.base.offset).to_string();
    let last = &p.files.segments[p.files.segments.len() - 1];
    assert!(last.base.offset < p.end.offset, "it has batches");
    for (i, m) in p.files.segments.iter().enumerate() {
        let (path, mut before) = (file(m), p.files.segments[..i].to_vec());
        before.last_mut().into_iter().filter(|_| m == last).for_each(change);
        let (id, partition) = (p.dir.topic_id, p.dir.partition);
        let header = FileHeader::parse(disk.contents_of(&path), SEGMENT_MAGIC, id, partition, m.base.offset).expect("it holds");
        disk.scribble(&path, 0, &header.block(&SegmentTable::of(before.into_iter())));
    }
    (disk, file(last))
}

#[test]
fn the_table_in_a_first_block_is_shown_and_held_against_the_segments() {
    let (mut disk, path) = node_with_tables(|_| {});
    let (clean, text) = look(&mut disk, true);
    let named = format!("{path}: names ");
    assert!(clean && text.contains(&named) && text.contains(", prev crc "), "{text}");
    // Named, and removed by retention since.
    let mut without = disk.clone();
    let first: Vec<String> = without.paths().filter(|p| p.contains(&format!("/{:020}.", 0))).map(String::from).collect();
    first.iter().for_each(|path| without.lose(path, None));
    let (_, text) = look(&mut without, false);
    assert!(text.contains("segments are missing") && text.matches("DAMAGE").count() == 1 && text.contains(&named), "{text}");
    disk.flip(&path, 96 + 20, 2);
    let (clean, text) = look(&mut disk, false);
    assert!(!clean && text.contains(&format!("{path}: DAMAGE at byte 96: the table")), "{text}");
    let changes: [fn(&mut SegmentMeta); 2] = [|m| m.base.count += 1, |m| m.prev_crc ^= 1];
    for change in changes {
        let (mut disk, path) = node_with_tables(change);
        let (clean, text) = look(&mut disk, false);
        assert!(!clean && text.contains(&format!("{path}: DAMAGE at byte 96: it names a segment at")), "{text}");
    }
}

/// All written messages are confirmed and removed, and the next segment is not begun yet.
#[test]
fn what_retention_let_go_is_not_missed() {
    let mut disk = node();
    let recovered = recover(&mut disk, &recover_options(16 * 1024)).expect("it recovers");
    let mut e = Engine::new(disk, recovered, 16 * 1024);
    let end = e.parts[0].end;
    let fact = e.position_fact(0, RecordKind::Start, end);
    e.write(0, &[fact]).expect("no fault");
    let mut disk = e.disk;
    let old: Vec<String> = disk.paths().filter(|p| p.ends_with(".segment") || p.ends_with(".commit")).map(String::from).collect();
    old.iter().for_each(|path| disk.lose(path, None));
    for kind in ["segment", "commit"] {
        disk.scribble(&format!("topics/orders/0/{:020}.{kind}", end.offset), 0, &[0; BLOCK]);
    }
    let (clean, text) = look(&mut disk, false);
    assert!(clean && text.contains("segment: not begun yet"), "{text}");
}

#[test]
fn what_is_missing_is_damage_too() {
    let folder = "topics/orders/0";
    let mut disk = node();
    let lost: Vec<String> = disk.paths().filter(|p| p.contains(&format!("{folder}/{:020}.", 0))).map(String::from).collect();
    assert_eq!(lost.len(), 2);
    for path in &lost {
        disk.lose(path, None);
    }
    let (clean, text) = look(&mut disk, false);
    let expected = format!("{folder}/{:020}.segment: DAMAGE at byte 4096: segments are missing from offset 0 to ", 0);
    assert!(!clean && text.contains(&expected), "no {expected:?} in\n{text}");

    let mut disk = node();
    disk.lose("topics/orders/topic.meta.0", None);
    let (clean, text) = look(&mut disk, false);
    assert!(!clean && text.contains("topic.meta.0: DAMAGE at byte 0: it is missing"), "{text}");
}

#[test]
fn a_damaged_header_hides_nothing_behind_it_and_blames_no_other_file() {
    let mut disk = node();
    let segments: Vec<String> = disk.paths().filter(|p| p.ends_with(".segment")).map(String::from).collect();
    assert!(segments.len() > 1, "{segments:?}");
    disk.flip(&segments[0], 20, 2);
    disk.flip(&segments[0], 4096 + 200, 2);
    let (_, text) = look(&mut disk, false);
    let damage: Vec<&str> = text.lines().filter(|l| l.contains("DAMAGE")).collect();
    assert!(damage.len() == 2 && damage.iter().all(|l| l.starts_with(&segments[0])), "{text}");
}

#[test]
fn a_folder_that_is_none_is_an_error_and_a_real_one_is_read() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    assert!(matches!(run(dir.path(), &InspectOptions::default(), &mut vec![]), Err(InspectError::NotADataPath { .. })));
    let disk = node();
    for path in disk.paths() {
        let to = dir.path().join(path);
        std::fs::create_dir_all(to.parent().expect("it has a folder")).expect("a folder can be made");
        std::fs::write(to, disk.contents_of(path)).expect("a file can be written");
    }
    let mut out = vec![];
    assert_eq!(run(dir.path(), &InspectOptions::default(), &mut out).expect("it can be read"), Verdict::Clean);
    let mut sim = disk;
    assert_eq!(String::from_utf8(out).expect("it is text"), look(&mut sim, false).1);
    let filter = InspectOptions { topic: Some("other".into()), ..InspectOptions::default() };
    let error = run(dir.path(), &filter, &mut vec![]).expect_err("there is no such topic").to_string();
    assert!(error.contains("no topic other") && error.ends_with("its topics are orders"), "{error}");
}

/// Makes a newer version's header of the one at `at`, whose checksum covers its bytes from 8 to `len`.
fn make_newer(disk: &mut SimDisk, path: &str, at: usize, version_at: usize, len: usize) {
    let mut header = disk.contents_of(path)[at..at + len].to_vec();
    header[version_at] = 9;
    let crc = crc32fast::hash(&header[8..]);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    disk.scribble(path, at as u64, &header);
}

/// Files of each kind with a newer version: inspect does not call them damage, and a startup does not touch them.
#[test]
fn what_a_newer_version_wrote_is_no_damage_and_stops_a_start() {
    let (meta, state) = ("topics/orders/topic.meta.0", "topics/orders/0/state.1");
    let (segment, commit) = ("topics/orders/0/00000000000000000000.segment", "topics/orders/0/00000000000000000000.commit");
    let snapshot_len = Snapshot::len_of(node().contents_of(state)).expect("it holds");
    // The last write: writes before the checkpoint are not looked at.
    let wrote = node().contents_of("journal/0").chunks(BLOCK).rposition(|b| b.starts_with(&WRITE_MAGIC)).expect("it has") * BLOCK;
    let head = {
        let disk = node();
        let (h, _) = WriteHeader::read_from_prefix(&disk.contents_of("journal/0")[wrote..]).expect("it is long enough");
        WriteHeader::head_len(h.directory.get() as usize, h.previous.get() as usize)
    };
    let last = "topics/orders/0/00000000000000011840.segment";
    for (path, at, version_at, len, is_cold) in [
        ("node.meta.0", 0, 8, 64, false),
        ("node.meta.1", 0, 8, 64, false),
        ("journal/0", 0, 8, 128, false),
        ("journal/0", BLOCK, 8, 128, false),
        ("journal/0", wrote, 8, head, false),
        (meta, 0, 8, 192, false),
        (state, 0, 8, snapshot_len, false),
        (segment, 0, 8, 96, true),
        (commit, 0, 8, 96, true),
        (segment, BLOCK, 108, 128, true),
        (segment, BLOCK + 3 * 740, 108, 128, true),
        (last, 0, 8, 96, false),
    ] {
        let mut disk = node();
        make_newer(&mut disk, path, at, version_at, len);
        let (found, text) = verdict(&mut disk, false);
        let line = format!("{path}: NEWER at byte {at}: ");
        assert!(found == Verdict::Newer && text.contains(&line) && !text.contains("DAMAGE"), "no {line:?} alone in\n{text}");
        assert!(text.lines().last().is_some_and(|last| last.starts_with("1 places written by a newer version")), "{text}");

        let all = |disk: &SimDisk| -> Vec<(String, Vec<u8>)> {
            disk.paths().map(|path| (path.to_owned(), disk.contents_of(path).to_vec())).collect()
        };
        let before = all(&disk);
        match recover(&mut disk, &recover_options(16 * 1024)) {
            Err(error) => {
                let is_named = matches!(error, RecoverError::Unknown { .. }) && error.to_string().contains(path);
                assert!(is_named, "{path} at {at}: {error}");
                assert!(all(&disk) == before, "{path} at {at}: a startup that refuses has changed something");
            }
            // A startup does not read what lies far back in a log; `log::tests::faults` has who comes to it.
            Ok(recovered) => {
                assert!(is_cold && !recovered.report.has_damage(), "{path} at {at}: {:?}", recovered.report);
                let is_it = |(name, _): &&(String, Vec<u8>)| name == path;
                assert!(all(&disk).iter().find(is_it) == before.iter().find(is_it), "{path} at {at}: it was touched");
                assert!(disk.paths().all(|path| !path.contains('~')), "something was set aside");
            }
        }
    }
}

#[test]
fn replicas_of_newer_versions_are_not_called_different() {
    for (path, len) in [("topics/orders/topic.meta.0", 192), ("topics/orders/0/state.1", 0), ("journal/0", 128)] {
        let mut newer = stopped(node(), 16 * 1024);
        let len = if len == 0 { Snapshot::len_of(newer.contents_of(path)).expect("it holds") } else { len };
        make_newer(&mut newer, path, 0, 8, len);
        let (mut other, mut out) = (stopped(node(), 16 * 1024), vec![]);
        let sides = vec![
            compare::ComparedPath { label: "newer".into(), storage: &mut newer },
            compare::ComparedPath { label: "other".into(), storage: &mut other },
        ];
        let found = compare::compare(sides, Placement::Everywhere, &InspectOptions::default(), &mut out).expect("it can be read");
        let text = String::from_utf8(out).expect("it is text");
        assert!(found == Verdict::Newer && text.contains("NEWER") && !text.contains("DIFFERS"), "{path}: {text}");
    }
}

fn compare(disks: &mut [SimDisk]) -> (bool, String) {
    let mut out = vec![];
    let each = disks.iter_mut().enumerate();
    let sides = each.map(|(i, disk)| compare::ComparedPath { label: format!("node{i}"), storage: disk }).collect();
    let verdict = compare::compare(sides, Placement::Everywhere, &InspectOptions::default(), &mut out).expect("it can be read");
    (verdict == Verdict::Clean, String::from_utf8(out).expect("it is text"))
}

/// A startup puts all into the partition's own files.
fn stopped(mut disk: SimDisk, segment_bytes: u64) -> SimDisk {
    recover(&mut disk, &recover_options(segment_bytes)).expect("it recovers");
    disk
}

#[test]
fn replicas_with_the_same_bytes_are_identical_wherever_their_segments_end() {
    let (same, text) = compare(&mut [node(), node()]);
    assert!(!same && text.contains("records stand in journal 0 alone"), "{text}");
    let (short, long) = (stopped(node(), 16 * 1024), stopped(node_with_segments(256 * 1024), 256 * 1024));
    let (same, text) = compare(&mut [short, long, stopped(node(), 16 * 1024)]);
    assert!(same, "{text}");
    for what in [
        "partition 0: identical in 3 data paths from offset 0 to 29600, 40 messages",
        "node1: start 0, committed 29600, end 29600",
        "channel billing",
        "    node2: confirmed 0 messages up to offset 0 and 4 intervals",
        "identical: 1 partitions",
    ] {
        assert!(text.contains(what), "no {what:?} in\n{text}");
    }
    assert!(!text.contains("alone"), "{text}");
}

#[test]
fn a_difference_is_found_where_it_begins() {
    let (first, mut second) = (stopped(node(), 16 * 1024), stopped(node(), 16 * 1024));
    let file = FileId::Segment(dir(&TopicName::new("orders").expect("valid"), TopicId::default(), PartitionId(0)), 0);
    // In the third batch's body.
    let offset = 2 * 740 + 200;
    second.flip(&file.to_string(), crate::log::recovery::scan::segment_at(0, offset), 3);
    let (same, text) = compare(&mut [first, second]);
    assert!(!same, "{text}");
    for what in [
        "DIFFERS at offset 1680 (from offset 0 to 29600 was compared)",
        "node0: topics/orders/0/00000000000000000000.segment byte 5776, in the batch offset 1480, ids 3..=3",
        "1 differences",
    ] {
        assert!(text.contains(what), "no {what:?} in\n{text}");
    }
}

/// A cluster file of these nodes, by which the first `replicas` of them keep the partition that `node` has.
fn cluster_file(nodes: &[NodeId], replicas: usize) -> ClusterFile {
    let replicas = &nodes[..replicas];
    let partition = FilePartition { replicas: replicas.to_vec(), isr: replicas.to_vec(), leader: None, epoch: 1, min_isr: 1 };
    let info =
        TopicInfo { name: TopicName::new("orders").expect("valid"), id: TopicId(Rng::new(5).bytes_16()), partitions: 1 }.into();
    let node = |id: &NodeId| FileNode {
        name: format!("{}", id.0[0]).into(),
        id: *id,
        peer_address: "127.0.0.1:1".into(),
        native_address: None,
        tcp_address: None,
    };
    let nodes = nodes.iter().map(node).collect();
    ClusterFile { cluster_id: [1; 16], version: 1, nodes, topics: vec![FileTopic { info, partitions: vec![partition] }] }
}

/// A bad copy counts as one difference more, and the comparison goes on.
#[test]
fn a_bad_copy_of_the_cluster_file_is_a_difference() {
    let paths = [(); 3].map(|()| tempfile::tempdir().expect("a temporary folder"));
    for path in &paths {
        std::fs::File::create(path.path().join("node.meta.0")).expect("it is writable");
    }
    std::fs::write(paths[1].path().join("cluster.toml"), "version = 3\n").expect("it is writable");
    let names = paths.each_ref().map(|path| path.path().display().to_string());
    let mut out = vec![];
    let verdict = compare::run(&names, &InspectOptions::default(), &mut out).expect("it can be read");
    let text = String::from_utf8(out).expect("it is text");
    let bad = format!("{}: the copy of the cluster file: ", names[1]);
    assert!(verdict == Verdict::Damaged && text.contains(&bad) && text.contains("the last line is missing"), "{text}");
    assert!(
        text.matches("the copy of the cluster file").count() == 1
            && text.contains("nothing was compared")
            && text.contains("2 differences"),
        "{text}"
    );
}

/// The comparison must not say "identical" here. A startup that ends a deletion, and loses power then, may leave such folders.
#[test]
fn empty_folders_of_a_topic_that_is_gone_are_no_difference() {
    let paths = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    for path in &paths {
        std::fs::File::create(path.path().join("node.meta.0")).expect("it is writable");
    }
    std::fs::create_dir_all(paths[0].path().join("topics/t/0")).expect("it is writable");
    let names = paths.each_ref().map(|path| path.path().display().to_string());
    let mut out = vec![];
    compare::run(&names, &InspectOptions::default(), &mut out).expect("it can be read");
    let text = String::from_utf8(out).expect("it is text");
    assert!(text.contains("nothing was compared") && text.contains("1 differences"), "{text}");
}

#[test]
fn what_is_missing_is_a_difference() {
    let said = |disks: &mut [&mut SimDisk], placement: Placement<'_>| {
        let each = disks.iter_mut().enumerate();
        let sides = each.map(|(i, disk)| compare::ComparedPath { label: format!("node{i}"), storage: *disk }).collect();
        let mut out = vec![];
        let verdict = compare::compare(sides, placement, &InspectOptions::default(), &mut out).expect("it can be read");
        (verdict == Verdict::Clean, String::from_utf8(out).expect("it is text"))
    };
    let (mut one, mut two, mut none) = (stopped(node(), 16 * 1024), stopped(node(), 16 * 1024), SimDisk::new(1));
    // No file says which node has the partition: all are compared.
    let (same, text) = said(&mut [&mut one, &mut none], Placement::Everywhere);
    assert!(!same && text.contains("partition 0: MISSING in node1") && text.contains("nothing was compared"), "{text}");
    let (same, text) = said(&mut [&mut one, &mut two, &mut none], Placement::Everywhere);
    assert!(!same && text.contains("identical in 2 data paths") && text.contains("MISSING in node2"), "{text}");
    // An etcd says it, which nobody asks.
    let (same, text) = said(&mut [&mut one, &mut two, &mut none], Placement::WhereFound("main"));
    assert!(
        same && text.contains("identical in 2 data paths") && text.contains("the replicas in these data paths are compared"),
        "{text}"
    );
    let (same, text) = said(&mut [&mut one, &mut none], Placement::WhereFound("main"));
    assert!(!same && text.contains("partition 0: only in node0") && text.contains("nothing was compared"), "{text}");
    // Replicas by the cluster file: `one` and `two` are copies, with one node id; the third is another node.
    let mut third = SimDisk::new(1);
    recover(&mut third, &RecoverOptions { seed: 2, ..recover_options(16 * 1024) }).expect("an empty disk recovers");
    let node_id = |disk: &SimDisk| {
        NodeId(crate::format::meta::NodeMeta::decode(disk.contents_of("node.meta.0")).expect("it holds").node_id)
    };
    let ids = [node_id(&one), node_id(&third)];
    assert_ne!(ids[0], ids[1]);
    let (same, text) = said(&mut [&mut one, &mut two, &mut third], Placement::File(&cluster_file(&ids, 1)));
    assert!(same && text.contains("identical: 1 partitions"), "{text}");
    let (same, text) = said(&mut [&mut one, &mut two, &mut third], Placement::File(&cluster_file(&ids, 2)));
    assert!(!same && text.contains("MISSING in node2"), "{text}");
    // Nothing is expected of a node that nobody knows: that is said.
    for cluster in [cluster_file(&ids[..1], 1), cluster_file(&ids, 2)] {
        let stranger = if cluster.nodes.len() == 1 { &mut third } else { &mut none };
        let (same, text) = said(&mut [&mut one, &mut two, stranger], Placement::File(&cluster));
        assert!(!same && text.contains("node2: the data path's node is unknown"), "{text}");
    }
    // A replica whose snapshots are gone knows nothing that it could be compared by.
    for name in ["state.0", "state.1", "state.2"] {
        two.lose(&format!("topics/orders/0/{name}"), None);
    }
    let (same, text) = said(&mut [&mut one, &mut two], Placement::Everywhere);
    assert!(!same && text.contains("no committed data is in all of them") && text.contains("node1: no snapshot"), "{text}");
    let (same, text) = said(&mut [&mut none, &mut SimDisk::new(2)], Placement::Everywhere);
    assert!(!same && text.contains("nothing was compared"), "{text}");
}

#[test]
fn a_topic_or_partition_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().expect("it is writable");
    for folder in ["topics/orders/0", "topics/bills/0", "journal"] {
        std::fs::create_dir_all(dir.path().join(folder)).expect("it is writable");
    }
    let asked = |topic: Option<&str>, partition| {
        let options = InspectOptions { topic: topic.map(String::from), partition, ..InspectOptions::default() };
        let one = run(dir.path(), &options, &mut vec![]).err().map(|e| e.to_string());
        let paths = [dir.path(), dir.path()].map(|path| path.display().to_string());
        let two = compare::run(&paths, &options, &mut vec![]).err().map(|e| e.to_string());
        assert_eq!(one.is_some(), two.is_some());
        one.unwrap_or_default()
    };
    assert!(asked(Some("nope"), None).contains("no topic nope in") && asked(Some("nope"), None).contains("bills, orders"));
    assert!(asked(Some("orders"), Some(3)).ends_with("of the topic orders"));
    assert!(asked(None, Some(3)).contains("no partition 3"));
    assert_eq!((asked(None, None), asked(Some("orders"), Some(0))), (String::new(), String::new()));
}

#[test]
fn programs_get_an_object_on_each_line() {
    let mut out = vec![];
    let options = InspectOptions { records: true, format: Format::Json, ..InspectOptions::default() };
    inspect(&mut node(), &options, &mut out).expect("it can be read");
    let text = String::from_utf8(out).expect("it is text");
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let with = |name: &str| objects.iter().filter(|o| o.get(name).is_some()).count();
    for name in ["node_id", "slot_sequence", "record", "topic", "applied", "channel", "batches", "log_id", "next_sequence"] {
        assert!(with(name) > 0, "no {name} in\n{text}");
    }
    let last = objects.last().expect("it has lines");
    assert_eq!((&last["kind"], &last["verdict"], &last["damaged"]), (&json!("verdict"), &json!("clean"), &json!(0)));
    assert!(!text.contains("Position {"), "{text}");
}

/// A kill comes between the two files of a topic's topic.meta: the journal still has the topic.
#[test]
fn a_topic_that_was_being_created_is_no_damage() {
    let mut disk = SimDisk::new(9);
    let recovered = recover(&mut disk, &recover_options(16 * 1024)).expect("an empty disk recovers");
    let mut e = Engine::new(disk, recovered, 16 * 1024);
    let name = TopicName::new("orders").expect("it is valid");
    e.create_topic(TopicInfo { name, id: TopicId([7; 16]), partitions: 1 }).expect("no fault");
    let mut disk = e.disk;
    disk.lose("topics/orders/topic.meta.1", None);
    let (clean, text) = look(&mut disk, false);
    assert!(clean && text.contains("topic.meta.1: not written yet"), "{text}");
}
