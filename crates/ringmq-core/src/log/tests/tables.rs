//! Reads of a startup in a partition with many segments: tables in first blocks name the segments before the newest one.

use super::*;
use crate::format::files::SegmentMeta;
use crate::format::files::{COMMIT_MAGIC, FileHeader, SEGMENT_MAGIC};
use crate::format::meta::TopicMeta;
use crate::format::segment_table::{SegmentTable, TABLE_AT};
use crate::format::storage::Storage;
use crate::log::recovery::{JOURNAL_BYTES_MIN, RecoverOptions, Recovered, Severity, recover};
use crate::sim::disk::SimDisk;
use zerocopy::{FromBytes, IntoBytes};

const SEGMENT_BYTES: u64 = 16 * 1024;

fn small() -> StoreOptions {
    StoreOptions { max_bytes_per_file: SEGMENT_BYTES, ..options() }
}

/// Publishes until the partition has so many segments, the last one with a single batch.
fn grow(rig: &mut Rig, p: PartitionIdx, segments: usize) {
    let mut n = 0u64;
    while rig.store.core.part(p).segments.len() < segments || rig.store.core.part(p).segments.batches() == 0 {
        rig.publish(p, &[n as u8; 3000]);
        rig.settle();
        n += 1;
    }
}

fn metas_of(rig: &Rig, p: PartitionIdx) -> Vec<SegmentMeta> {
    rig.store.core.part(p).segments.iter().map(|s| s.meta).collect()
}

/// Stops the node; its disk as a startup finds it.
fn stopped(rig: &mut Rig) -> SimDisk {
    rig.store.stop(rig.now, &NoCursors, &mut rig.io);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Stopped));
    let mut disk = SimDisk::new(1);
    start(&mut disk);
    for (file, bytes) in rig.disk.files.iter().filter(|(file, _)| !matches!(file, FileId::Journal(_))) {
        // Space is allocated ahead in longer and longer steps; halving finds the end of a commit log in it.
        let len = if matches!(file, FileId::Commit(..)) { 2 * BLOCK } else { bytes.len() };
        disk.scribble(&file.to_string(), 0, &bytes[..len]);
    }
    let d = dir("t");
    let meta = TopicMeta { info: TopicInfo { name: d.topic.clone(), id: d.topic_id, partitions: 1 }, created_unix_ns: 1 };
    for copy in [0, 1] {
        disk.scribble(&FileId::Topic(d.clone(), copy).to_string(), 0, &meta.encode());
    }
    disk
}

/// A stopped node whose partition has so many segments, and what they are.
fn node(segments: usize) -> (SimDisk, Vec<SegmentMeta>) {
    let mut rig = Rig::new(small());
    let p = rig.create("t");
    grow(&mut rig, p, segments);
    let metas = metas_of(&rig, p);
    assert_eq!(metas.len(), segments);
    (stopped(&mut rig), metas)
}

/// Counts what is asked of single files.
struct Counting<'a> {
    disk: &'a mut SimDisk,
    calls: u64,
    reads: u64,
}

impl Storage for Counting<'_> {
    fn topics(&mut self) -> Result<Vec<TopicName>, DiskError> {
        self.disk.topics()
    }
    fn partitions(&mut self, topic: &TopicName) -> Result<Vec<PartitionId>, DiskError> {
        self.disk.partitions(topic)
    }
    fn segments(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.disk.segments(dir)
    }
    fn commits(&mut self, dir: &Arc<PartitionDir>) -> Result<Vec<i64>, DiskError> {
        self.disk.commits(dir)
    }
    fn journals(&mut self) -> Result<Vec<u16>, DiskError> {
        self.disk.journals()
    }
    fn len(&mut self, file: &FileId) -> Result<Option<u64>, DiskError> {
        self.calls += 1;
        self.disk.len(file)
    }
    fn read(&mut self, file: &FileId, at: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        (self.calls, self.reads) = (self.calls + 1, self.reads + 1);
        self.disk.read(file, at, len)
    }
    fn write(&mut self, file: &FileId, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.write(file, at, bytes)
    }
    fn sync(&mut self, file: &FileId) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.sync(file)
    }
    fn allocate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.allocate(file, len)
    }
    fn fill(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.fill(file, len)
    }
    fn truncate(&mut self, file: &FileId, len: u64) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.truncate(file, len)
    }
    fn remove(&mut self, files: &[FileId]) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.remove(files)
    }
    fn set_aside_topic(&mut self, topic: &TopicName, label: &str) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.set_aside_topic(topic, label)
    }
    fn set_aside(&mut self, file: &FileId, label: &str) -> Result<(), DiskError> {
        self.calls += 1;
        self.disk.set_aside(file, label)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    calls: u64,
    reads: u64,
}

fn start(disk: &mut SimDisk) -> (Recovered, Counts) {
    let options = RecoverOptions {
        cores: 1,
        journal_bytes: JOURNAL_BYTES_MIN,
        segment_bytes: SEGMENT_BYTES,
        now_unix_ns: 5,
        producers: Default::default(),
        seed: 1,
        accept_lost_journal: 0,
        is_clustered: false,
    };
    let mut counting = Counting { disk, calls: 0, reads: 0 };
    let recovered = recover(&mut counting, &options).expect("it is whole");
    (recovered, Counts { calls: counting.calls, reads: counting.reads })
}

fn files(base: i64) -> [String; 2] {
    [FileId::Segment(dir("t"), base), FileId::Commit(dir("t"), base)].map(|file| file.to_string())
}

/// The files with zeros in place of each table.
fn without_tables(disk: &SimDisk, metas: &[SegmentMeta]) -> SimDisk {
    let mut disk = disk.clone();
    for path in metas.iter().flat_map(|m| files(m.base.offset)) {
        disk.scribble(&path, TABLE_AT as u64, &[0; BLOCK - TABLE_AT]);
    }
    disk
}

fn table_in(bytes: &[u8], base: i64) -> Result<SegmentTable, files::Bad> {
    let d = dir("t");
    SegmentTable::parse(bytes, d.topic_id, d.partition, base)
}

fn table_of(metas: &[SegmentMeta], index: usize) -> SegmentTable {
    SegmentTable::of(metas[..index].iter().copied())
}

/// A pair of headers: the length and the first block of both files.
const PAIR: Counts = Counts { calls: 4, reads: 2 };

#[test]
fn what_a_start_reads_does_not_grow_with_the_segments() {
    let (mut few, metas) = node(3);
    let mut few_without = without_tables(&few, &metas);
    let (recovered, counts) = start(&mut few);
    let (same, counts_without) = start(&mut few_without);
    assert_eq!((&recovered.partitions[0].files.segments, &same.partitions[0]), (&metas, &recovered.partitions[0]));
    // One pair for 143 segments: the newest, and 142 that its table names.
    for (segments, more) in [(30, 0), (143, 0), (144, 1), (300, 2)] {
        let (mut disk, metas) = node(segments);
        let mut without = without_tables(&disk, &metas);
        let (recovered, found) = start(&mut disk);
        assert!(recovered.report.findings.is_empty(), "{:?}", recovered.report);
        assert_eq!(recovered.partitions[0].files.segments, metas, "{segments}");
        let expected = Counts { calls: counts.calls + more * PAIR.calls, reads: counts.reads + more * PAIR.reads };
        assert_eq!(found, expected, "{segments} segments, against 3");
        // Where no table is, each header is read, and says the same.
        let (same, found) = start(&mut without);
        assert_eq!(same.partitions[0], recovered.partitions[0], "{segments}");
        assert!(same.report.findings.is_empty(), "{:?}", same.report);
        let all = segments as u64 - 3;
        let expected = Counts { calls: counts_without.calls + all * PAIR.calls, reads: counts_without.reads + all * PAIR.reads };
        assert_eq!(found, expected, "{segments} segments without tables");
    }
}

#[test]
fn a_rotten_table_costs_a_look_at_the_next_header_and_is_written_again() {
    let (disk, metas) = node(40);
    let (whole, counts) = start(&mut disk.clone());
    let newest = metas[39].base.offset;
    // (which of both files, headers that are read beside)
    for (rotten, more) in [(&[0][..], 0), (&[1], 0), (&[0, 1], 1)] {
        for at in [TABLE_AT as u64, TABLE_AT as u64 + 5, TABLE_AT as u64 + 9, 1000, 4095] {
            let what = format!("{rotten:?} at {at}");
            let mut disk = disk.clone();
            rotten.iter().for_each(|&i| disk.flip(&files(newest)[i], at, 3));
            let (found, found_counts) = start(&mut disk);
            assert_eq!(found.partitions, whole.partitions, "{what}");
            assert_eq!(found_counts.reads, counts.reads + more * PAIR.reads, "{what}");
            let findings = &found.report.findings;
            let is_told = |f: &recovery::Finding| f.severity == Severity::Repaired && files(newest).contains(&f.file.to_string());
            assert!(findings.len() == 1 && is_told(&findings[0]), "{what}: {findings:?}");
            for path in files(newest) {
                assert_eq!(table_in(disk.contents_of(&path), newest), Ok(table_of(&metas, 39)), "{what}");
            }
            let (again, _) = start(&mut disk);
            assert!(again.report.findings.is_empty(), "{what}: {:?}", again.report);
            assert_eq!(again.partitions[0].files.segments, metas, "{what}");
        }
    }
    // With the header it is written, whichever of both does not hold.
    for i in [0, 1] {
        let mut disk = disk.clone();
        disk.flip(&files(newest)[i], 10, 3);
        let (found, _) = start(&mut disk);
        assert!(found.partitions == whole.partitions && found.report.findings.len() == 1, "{i}: {:?}", found.report);
        for path in files(newest) {
            assert_eq!(table_in(disk.contents_of(&path), newest), Ok(table_of(&metas, 39)), "{i}: {path}");
        }
    }
}

/// The process before allocated the next segment and wrote nothing there: a startup writes its first blocks, and the store again.
#[test]
fn a_segment_that_was_only_allocated_names_those_before_it() {
    let (mut disk, metas) = node(5);
    let end = start(&mut disk.clone()).0.partitions[0].end.offset;
    files(end).iter().for_each(|path| disk.scribble(path, 0, &[0; 2 * BLOCK]));
    let (recovered, _) = start(&mut disk);
    assert_eq!(recovered.partitions[0].files.segments.len(), 6);
    for path in files(end) {
        assert_eq!(table_in(disk.contents_of(&path), end), Ok(table_of(&metas, 5)), "{path}");
    }
    let (mut rig, p) = scrubbing(&disk, &recovered);
    rig.publish(p, b"first");
    rig.settle();
    let disk = stopped(&mut rig);
    for path in files(end) {
        assert_eq!(table_in(disk.contents_of(&path), end), Ok(table_of(&metas, 5)), "{path}");
    }
}

/// A store that goes on where a startup left it, over the same files, and scrubs.
fn scrubbing(disk: &SimDisk, recovered: &Recovered) -> (Rig, PartitionIdx) {
    let mut rig = Rig::new(StoreOptions { scrub_bytes_per_second: MIB, epoch: Epoch(9), ..small() });
    let p = rig.store.open(recovered.partitions[0].clone());
    let bases = recovered.partitions[0].files.segments.iter().map(|m| m.base.offset);
    let of_segments = bases.flat_map(|b| [FileId::Segment(dir("t"), b), FileId::Commit(dir("t"), b)]);
    for file in of_segments.chain([0, 1, 2].map(|slot| FileId::Snapshot(dir("t"), slot))) {
        let bytes = disk.contents(&file).map(<[u8]>::to_vec);
        rig.disk.files.extend(bytes.map(|bytes| (file, bytes)));
    }
    (rig, p)
}

fn scrub_once(rig: &mut Rig) {
    let passes = rig.store.scrubs();
    rig.tick(3_600_000);
    for _ in 0..2000 {
        rig.settle();
        if rig.store.scrubs() > passes + 1 {
            return;
        }
        rig.tick(300_000);
    }
    panic!("a pass ends");
}

/// A startup reads nothing of a segment that a table names: damage in its first blocks is for the scrubber to find.
#[test]
fn a_rotten_header_of_a_segment_that_a_table_names_is_mended_by_the_scrubber() {
    type Harm = fn(&mut Vec<u8>);
    let harms: [(&str, Harm); 7] = [
        ("header", |f| f[40] ^= 1),
        ("table", |f| f[TABLE_AT + 30] ^= 1),
        ("magic", |f| f[0] ^= 1),
        ("both", |f| f[20..200].fill(7)),
        ("zeros", |f| f[..BLOCK].fill(0)),
        ("another count", |f| {
            let (mut header, _) = FileHeader::read_from_prefix(f).expect("it is that long");
            header.base.count += 1;
            files::seal(&mut header);
            f[..TABLE_AT].copy_from_slice(header.as_bytes());
        }),
        ("a table of nothing", |f| f[TABLE_AT..BLOCK].fill(0)),
    ];
    let (disk, metas) = node(12);
    let (whole, counts) = start(&mut disk.clone());
    let base = metas[5].base.offset;
    for (what, harm) in harms {
        for which in [&[0][..], &[1], &[0, 1]] {
            let mut disk = disk.clone();
            for path in &which.iter().map(|&i| files(base)[i].clone()).collect::<Vec<_>>() {
                let mut bytes = disk.contents_of(path).to_vec();
                harm(&mut bytes);
                disk.scribble(path, 0, &bytes);
            }
            let (found, found_counts) = start(&mut disk);
            assert_eq!((&found.partitions, found_counts), (&whole.partitions, counts), "{what}: a startup does not see it");
            assert!(found.report.findings.is_empty(), "{what}: {:?}", found.report);
            let (mut rig, p) = scrubbing(&disk, &found);
            scrub_once(&mut rig);
            let d = dir("t");
            for (file, magic) in
                [(FileId::Segment(d.clone(), base), SEGMENT_MAGIC), (FileId::Commit(d.clone(), base), COMMIT_MAGIC)]
            {
                let bytes = &rig.disk.files[&file];
                let header = FileHeader::parse(bytes, magic, d.topic_id, d.partition, base).expect("it holds again");
                assert_eq!(header.meta(), metas[5], "{what}");
                assert_eq!(table_in(bytes, base), Ok(table_of(&metas, 5)), "{what}");
            }
            // Batches and the other first blocks are as they were.
            for (i, m) in metas.iter().enumerate() {
                for file in [FileId::Segment(d.clone(), m.base.offset), FileId::Commit(d.clone(), m.base.offset)] {
                    let from = if i == 5 { BLOCK } else { 0 };
                    assert!(rig.disk.files[&file][from..] == whole_bytes(&disk, &file)[from..], "{what}: {file}");
                }
            }
            assert!(!rig.notices.iter().any(|n| matches!(n, Notice::Damage { .. })), "{what}");
            assert_eq!(metas_of(&rig, p), metas);
        }
    }
}

/// A startup may have believed a table that is wrong. Then a header that holds, and which no batch contradicts, is what is right.
#[test]
fn a_header_that_holds_is_not_written_over_by_what_a_table_alone_says() {
    let (mut disk, metas) = node(12);
    let wrongs: [fn(&mut SegmentMeta); 2] = [|m| m.prev_crc ^= 1, |m| m.base.count += 1];
    for wrong in wrongs {
        let (mut found, _) = start(&mut disk);
        wrong(&mut found.partitions[0].files.segments[5]);
        let (mut rig, _) = scrubbing(&disk, &found);
        scrub_once(&mut rig);
        let (d, base) = (dir("t"), metas[5].base.offset);
        for file in [FileId::Segment(d.clone(), base), FileId::Commit(d.clone(), base)] {
            assert!(rig.disk.files[&file][..TABLE_AT] == whole_bytes(&disk, &file)[..TABLE_AT], "{file}");
        }
    }
}

fn whole_bytes<'a>(disk: &'a SimDisk, file: &FileId) -> &'a [u8] {
    disk.contents(file).expect("it is there")
}

/// A table of zeros is written again by the first pass of the scrubber, except the last segment's.
#[test]
fn the_scrubber_writes_tables_of_zeros_again() {
    let (disk, metas) = node(12);
    let mut disk = without_tables(&disk, &metas);
    let (recovered, _) = start(&mut disk);
    let (mut rig, p) = scrubbing(&disk, &recovered);
    scrub_once(&mut rig);
    for (i, m) in metas.iter().enumerate().take(11) {
        for file in [FileId::Segment(dir("t"), m.base.offset), FileId::Commit(dir("t"), m.base.offset)] {
            let bytes = &rig.disk.files[&file];
            assert!(bytes[..TABLE_AT] == whole_bytes(&disk, &file)[..TABLE_AT], "{file}: its header holds and stays");
            let expected = if i == 0 { Err(files::Bad::Zero) } else { Ok(table_of(&metas, i)) };
            assert_eq!(table_in(bytes, m.base.offset), expected, "{file}");
        }
    }
    assert_eq!(rig.read_all(p).len() as i64, recovered.partitions[0].end.count);
}

#[test]
fn a_segment_that_retention_removed_is_named_and_does_not_come_back() {
    let mut rig = Rig::new(small());
    let p = rig.create("t");
    grow(&mut rig, p, 20);
    let all = metas_of(&rig, p);
    rig.store.set_low_water(p, all[14].base);
    rig.settle();
    // The scrubber finds nothing to mend in tables that name what is gone.
    rig.store.core.options.scrub_bytes_per_second = MIB;
    let before = rig.disk.files.clone();
    scrub_once(&mut rig);
    let is_segment = |f: &&FileId| matches!(f, FileId::Segment(..) | FileId::Commit(..));
    assert!(rig.disk.files.keys().filter(is_segment).all(|f| rig.disk.files[f] == before[f]));
    let disk = stopped(&mut rig);
    assert_eq!(rig.disk.removed.len(), 28);
    let last = all[19].base.offset;
    assert_eq!(table_in(disk.contents_of(&files(last)[0]), last), Ok(table_of(&all, 19)), "they are named still");
    let (whole, counts) = start(&mut disk.clone());
    assert!(whole.report.findings.is_empty(), "{:?}", whole.report);
    assert_eq!(whole.partitions[0].files.segments, all[14..]);
    let (mut few, _) = node(3);
    assert_eq!(counts.reads, start(&mut few).1.reads);
}

/// A file that is gone from the middle is found as ever by who reads there. (`inspect` has a test of its own.)
#[test]
fn a_missing_segment_that_a_table_names_is_not_believed_to_be_there() {
    let (mut disk, metas) = node(12);
    files(metas[5].base.offset).iter().for_each(|path| disk.lose(path, None));
    let (recovered, _) = start(&mut disk);
    let expected: Vec<SegmentMeta> = metas.iter().copied().filter(|m| *m != metas[5]).collect();
    assert_eq!(recovered.partitions[0].files.segments, expected);
    let (mut rig, p) = scrubbing(&disk, &recovered);
    let found = rig.fetch(p, metas[5].base.offset);
    let (from, to) = (metas[5].base.offset, metas[6].base.offset);
    assert!(matches!(&found, Fetch::Lost { from: f, to: t } if (f.offset, t.offset) == (from, to)), "{found:?}");
    assert!(matches!(rig.fetch(p, metas[4].base.offset), Fetch::Batch(_)));
    assert!(matches!(rig.fetch(p, metas[6].base.offset), Fetch::Batch(_)));
}

fn truncate(rig: &mut Rig, p: PartitionIdx, to: Position) {
    rig.store.truncate(rig.now, p, to, &mut rig.io);
    rig.disk.take(&mut rig.io);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Truncated { p }));
    rig.notices.clear();
}

/// A truncation removes segments, and what is appended behind it begins others, perhaps at the same places.
#[test]
fn tables_follow_a_log_that_is_truncated_and_goes_on() {
    let mut rig = Rig::new(small());
    let p = rig.create("t");
    grow(&mut rig, p, 10);
    let before = metas_of(&rig, p);
    for keep in [7, 3, 6] {
        let to = rig.store.core.part(p).segments.get(keep).expect("there are more").meta.base;
        truncate(&mut rig, p, to);
        grow(&mut rig, p, 10);
    }
    let metas = metas_of(&rig, p);
    assert!(metas.len() == 10 && metas[..3] == before[..3] && metas[9] != before[9]);
    let mut disk = stopped(&mut rig);
    for (i, m) in metas.iter().enumerate().skip(1) {
        for path in files(m.base.offset) {
            assert_eq!(table_in(disk.contents_of(&path), m.base.offset), Ok(table_of(&metas, i)), "{path}");
        }
    }
    let (recovered, _) = start(&mut disk);
    assert_eq!(recovered.partitions[0].files.segments, metas);
}
