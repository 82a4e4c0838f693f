//! Space of removed segments that is kept for new ones.

use super::super::spares::{Name, Spares};
use super::*;
use std::fs;

const SEGMENT: usize = 256 * 1024;

fn options(data: &Path, segments: usize) -> (DiskOptions, Arc<Spares>) {
    let spares = Arc::new(Spares::open(data, (segments * SEGMENT) as u64, SEGMENT as u64));
    (DiskOptions { spares: Some(spares.clone()), ..DiskOptions::default() }, spares)
}

fn files_of(partition: u16, base: i64) -> (FileId, FileId) {
    (FileId::Segment(dir("t", partition), base), FileId::Commit(dir("t", partition), base))
}

/// A segment that is `fill` from end to end, and its commit log.
async fn segment(h: &Harness, partition: u16, fill: u8, len: usize) -> (FileId, FileId) {
    let (segment, commit) = files_of(partition, fill as i64);
    assert!(is_done(&h.one(DiskOp::Allocate { file: segment.clone(), len: len as u64 }).await));
    assert!(is_done(&h.one(write(&segment, 0, fill, len, Durability::Later)).await));
    assert!(is_done(&h.one(DiskOp::Allocate { file: commit.clone(), len: K4 as u64 }).await));
    (segment, commit)
}

async fn retire(h: &Harness, partition: u16, fill: u8, len: usize) -> bool {
    let (segment, commit) = segment(h, partition, fill, len).await;
    let outcome = h.one(DiskOp::Retire { segment: segment.clone(), commit: commit.clone() }).await;
    for gone in [&segment, &commit] {
        assert_eq!(h.read(gone, 0, K4).await.unwrap_err(), DiskError::NotFound { file: gone.clone() });
    }
    let DiskDone::Retired(is_kept) = outcome.unwrap() else { panic!("a segment is retired") };
    is_kept
}

async fn allocate(h: &Harness, partition: u16, len: usize, max: usize) -> (FileId, u64) {
    let file = files_of(partition, 999).0;
    let request = DiskOp::AllocateSegment { file: file.clone(), len: len as u64, max: max as u64 };
    let DiskDone::Allocated(len) = h.one(request).await.unwrap() else { panic!("a segment is allocated") };
    (file, len)
}

fn name(number: u64, partition: u16, base: i64) -> String {
    Name { number, topic_id: TopicId([1; 16]), partition: PartitionId(partition), base }.to_string()
}

fn found(data: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(data.join("spare")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_segment_begins_on_the_space_of_a_retired_one() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let data = temp.path().to_owned();
    let (options, spares) = options(&data, 2);
    run(temp.path(), options, move |h| async move {
        assert!(retire(&h, 0, 1, SEGMENT).await && retire(&h, 1, 2, SEGMENT - K4).await);
        assert_eq!((found(&data), spares.bytes()), (vec![name(0, 0, 1), name(1, 1, 2)], (2 * SEGMENT - K4) as u64));
        assert!(!retire(&h, 0, 3, SEGMENT).await, "there is no room for a third");
        // the oldest one that is neither too short nor too long
        let (file, len) = allocate(&h, 2, K4, SEGMENT - K4).await;
        assert_eq!(len, (SEGMENT - K4) as u64);
        let bytes = h.read(&file, 0, SEGMENT).await.unwrap();
        assert!(bytes[..K4].iter().all(|&b| b == 0), "no header names it");
        assert!(bytes.len() == SEGMENT - K4 && bytes[K4..].iter().all(|&b| b == 2), "and nothing behind it was touched");
        assert!(is_done(&h.one(write(&file, 0, 9, K4, Durability::Durable)).await));
        let (file, len) = allocate(&h, 3, SEGMENT, SEGMENT).await;
        assert_eq!((len, h.read(&file, K4, K4).await.unwrap()[7]), (SEGMENT as u64, 1));
        let (file, len) = allocate(&h, 4, K4, SEGMENT).await;
        assert_eq!(
            (len, h.read(&file, 0, SEGMENT).await.unwrap()),
            (K4 as u64, Bytes::from(vec![0; K4])),
            "where there is none it is new space"
        );
        assert!(found(&data).is_empty() && spares.bytes() == 0);
        // a file that is there is not replaced
        assert!(retire(&h, 0, 4, SEGMENT).await);
        let (file, len) = allocate(&h, 2, K4, SEGMENT).await;
        assert_eq!((len, h.read(&file, 0, K4).await.unwrap()[0]), (K4 as u64, 9));
        assert_eq!(spares.bytes(), SEGMENT as u64);
    });
}

#[test]
fn what_ended_early_or_is_not_wanted_is_not_kept() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let data = temp.path().to_owned();
    let (options, _) = options(&data, 8);
    run(temp.path(), options, move |h| async move {
        assert!(!retire(&h, 0, 1, SEGMENT / 2 - K4).await, "it would be a short segment again");
        assert!(!retire(&h, 0, 2, SEGMENT + K4).await, "of another setting");
        assert!(retire(&h, 0, 3, SEGMENT / 2).await);
    });
    let (none, _) = self::options(temp.path(), 0);
    run(temp.path(), none, move |h| async move {
        assert!(!retire(&h, 0, 1, SEGMENT).await);
    });
}

#[test]
fn a_start_goes_on_with_what_is_of_use_and_removes_the_rest() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let put = |name: &str, len: usize| {
        fs::create_dir_all(temp.path().join("spare")).unwrap();
        fs::write(temp.path().join("spare").join(name), vec![5; len]).unwrap();
    };
    put(&name(7, 0, 5), SEGMENT);
    put(&format!("{}~", name(9, 0, 5)), SEGMENT); // its first block may still be a header
    put(&name(11, 0, 5), 4 * SEGMENT);
    put(&name(12, 0, 5), SEGMENT);
    put(&name(13, 0, 5), SEGMENT);
    put(&name(u64::MAX, 0, 5), K4);
    put("notes.txt", 5);
    fs::create_dir(temp.path().join("spare").join(name(1, 0, 5))).unwrap();
    let open = || Spares::open(temp.path(), 2 * SEGMENT as u64, SEGMENT as u64);
    let spares = open();
    let left = vec![name(1, 0, 5), name(12, 0, 5), name(7, 0, 5), "notes.txt".into()];
    assert_eq!((found(temp.path()), spares.bytes()), (left, 2 * SEGMENT as u64));
    let (place, whole) = (temp.path().join("place"), (0, SEGMENT as u64));
    assert_eq!(spares.take(&place, (&dir("t", 1), 0), whole), Some(SEGMENT as u64));
    assert!(place.exists() && !temp.path().join("spare").join(name(7, 0, 5)).exists());
    // one that is gone is no reason to fail
    fs::remove_file(temp.path().join("spare").join(name(12, 0, 5))).unwrap();
    assert_eq!((spares.take(&temp.path().join("other"), (&dir("t", 1), 0), whole), spares.bytes()), (None, 0));
    // nor is a folder that is none
    fs::remove_dir_all(temp.path().join("spare")).unwrap();
    fs::write(temp.path().join("spare"), b"").unwrap();
    assert_eq!(open().bytes(), 0);
}

/// The log may have been emptied and begun again at a later offset.
#[test]
fn a_partition_never_finds_its_own_batches_at_their_old_place() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let (options, spares) = options(temp.path(), 8);
    run(temp.path(), options, move |h| async move {
        assert!(retire(&h, 0, 100, SEGMENT).await);
        let take = async |partition: u16, base: i64| {
            let file = FileId::Segment(dir("t", partition), base);
            let request = DiskOp::AllocateSegment { file, len: K4 as u64, max: SEGMENT as u64 };
            let DiskDone::Allocated(len) = h.one(request).await.unwrap() else { panic!("a segment is allocated") };
            len == SEGMENT as u64
        };
        for base in [0, 100, 99 + SEGMENT as i64] {
            assert!(!take(0, base).await, "{base}");
        }
        assert!(take(0, 100 + SEGMENT as i64).await, "all of it lies before");
        assert!(retire(&h, 0, 100, SEGMENT).await && take(1, 100).await, "another partition's");
        assert!(retire(&h, 0, 100, SEGMENT).await && retire(&h, 1, 101, SEGMENT).await);
        assert!(is_done(&h.one(DiskOp::RemovePartition { dir: dir("t", 0) }).await));
        assert_eq!(spares.bytes(), SEGMENT as u64, "what is deleted takes with it what it let go");
    });
}

#[test]
fn a_file_that_somebody_else_names_or_that_has_a_hole_is_not_kept() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let (options, spares) = options(temp.path(), 8);
    let data = temp.path().to_owned();
    run(temp.path(), options, move |h| async move {
        let (linked, commit) = segment(&h, 0, 1, SEGMENT).await;
        let (path, backup) = (data.join(linked.to_string()), data.join("backup"));
        fs::hard_link(&path, &backup).unwrap();
        let outcome = h.one(DiskOp::Retire { segment: linked, commit }).await.unwrap();
        assert!(matches!(outcome, DiskDone::Retired(false)) && !path.exists());
        assert!(fs::read(&backup).unwrap().iter().all(|&b| b == 1), "a backup stays as it is");
        let (sparse, commit) = segment(&h, 0, 2, SEGMENT).await;
        fs::File::create(data.join(sparse.to_string())).unwrap().set_len(SEGMENT as u64).unwrap();
        assert!(matches!(h.one(DiskOp::Retire { segment: sparse, commit }).await, Ok(DiskDone::Retired(false))));
        assert_eq!(spares.bytes(), 0);
    });
}

#[test]
fn a_full_disk_has_them_back() {
    let small = SmallFileSystem::mount(16 << 20);
    let (options, spares) = options(&small.at, 24);
    let at = small.at.clone();
    run(&small.at, options, move |h| async move {
        for fill in 0..24 {
            assert!(retire(&h, 0, fill, SEGMENT).await);
        }
        let (before, mut files) = (spares.bytes(), 0);
        while spares.bytes() == before {
            files += 1;
            assert!(files < 64, "a 16 MiB file system is full by now");
            assert!(is_done(&h.one(DiskOp::Allocate { file: files_of(7, files).0, len: 512 * 1024 }).await));
        }
        assert!(before - spares.bytes() <= 3 * SEGMENT as u64, "no more than it takes: {} are left", spares.bytes());
        let too_much = DiskOp::Allocate { file: files_of(9, 0).0, len: 64 << 20 };
        assert!(h.one(too_much).await.unwrap_err().is_no_space());
        assert!(spares.bytes() == 0 && found(&at).is_empty());
    });
}
