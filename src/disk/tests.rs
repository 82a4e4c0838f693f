//! The disk of a core on a real file system, inside a real executor.

mod spares;

use super::aligned::Unfilled;
use super::shard_disk::{Completion, DiskOptions, ShardDisk};
use super::{BlockingStorage, blocks, files, lock};
use crate::base::{DiskDone, DiskError, DiskOp, Durability, FileId, OpId, PartitionDir, PartitionId, TopicId, TopicName};
use crate::format::storage::Storage as _;
use crate::ring::{Bell, Ring, WakeFd};
use bytes::Bytes;
use glommio::{LocalExecutorBuilder, Placement};
use std::future::Future;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const K4: usize = 4096;

fn dir(topic: &str, partition: u16) -> Arc<PartitionDir> {
    let topic = TopicName::new(topic).unwrap();
    Arc::new(PartitionDir { topic, topic_id: TopicId([1; 16]), partition: PartitionId(partition) })
}

/// An allocation that fails gives back the space that it had taken, and never space that another allocation has just got.
#[test]
fn an_allocation_that_fails_leaves_the_one_beside_it() {
    let temp = tempfile::tempdir().unwrap();
    let file = FileId::Snapshot(dir("t", 0), 0);
    for round in 0..100 {
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            let too_long = s.spawn(|| {
                start.wait();
                // no file system takes that: it fails like one that is full, and at once
                (0..20).all(|_| files::allocate(temp.path(), &file, i64::MAX as u64, None).is_err())
            });
            start.wait();
            files::allocate(temp.path(), &file, 64 * 1024, None).unwrap();
            assert!(too_long.join().unwrap());
        });
        let path = super::paths::path_of(temp.path(), &file);
        assert_eq!(std::fs::metadata(path).unwrap().len(), 64 * 1024, "round {round}");
        files::remove(temp.path(), std::slice::from_ref(&file)).unwrap();
    }
}

fn write(file: &FileId, at: usize, fill: u8, len: usize, durability: Durability) -> DiskOp {
    // in parts, as the store gives it
    let parts = vec![Bytes::from(vec![fill; len - 100]), Bytes::from(vec![fill; 100])];
    DiskOp::Write { file: file.clone(), at: at as u64, parts, durability }
}

struct Harness {
    disk: ShardDisk,
    ring: std::cell::RefCell<Ring>,
    next: std::cell::Cell<u64>,
}

impl Harness {
    /// Submits all, waits for all; outcomes in the order of submission.
    async fn all(&self, requests: Vec<DiskOp>) -> Vec<Result<DiskDone, DiskError>> {
        let first = self.next.get();
        let n = requests.len();
        for (i, request) in requests.into_iter().enumerate() {
            self.disk.submit_on(&mut self.ring.borrow_mut(), OpId(first + i as u64), request);
        }
        self.next.set(first + n as u64);
        let mut done: Vec<Completion> = vec![];
        while done.len() < n {
            self.reap();
            self.disk.drain(&mut done);
            if self.disk.pending() > 0 {
                glommio::timer::sleep(Duration::from_micros(100)).await; // the reactor has a turn
            }
        }
        done.sort_by_key(|c| c.op);
        assert!(done.iter().enumerate().all(|(i, c)| c.op == OpId(first + i as u64)), "each operation completes once");
        done.into_iter().map(|c| c.outcome).collect()
    }

    /// Completions of the ring, after a millisecond at most.
    fn reap(&self) {
        let ring = &mut *self.ring.borrow_mut();
        ring.enter_and_wait(Duration::from_millis(1)).unwrap();
        let mut completions = vec![];
        ring.take(&mut completions, 100);
        assert!(completions.is_empty(), "nothing else is on the ring");
        self.disk.take_completed(ring);
    }

    async fn one(&self, request: DiskOp) -> Result<DiskDone, DiskError> {
        self.all(vec![request]).await.remove(0)
    }

    async fn read(&self, file: &FileId, at: usize, len: usize) -> Result<Bytes, DiskError> {
        match self.one(DiskOp::Read { file: file.clone(), at: at as u64, len }).await? {
            DiskDone::Read(bytes) => Ok(bytes),
            _ => panic!("a read brings bytes"),
        }
    }
}

fn run<F: Future<Output = ()> + 'static>(data: &Path, options: DiskOptions, test: impl FnOnce(Harness) -> F + Send + 'static) {
    files::write_probe(data).unwrap();
    let data = data.to_owned();
    LocalExecutorBuilder::new(Placement::Unbound)
        .preempt_timer(Duration::from_secs(3600))
        .ring_depth(128)
        .io_memory(1 << 20)
        .spawn(move || async move {
            let bell = Bell::new();
            let disk = ShardDisk::start(&data, options, bell).await.unwrap();
            let ring = Ring::new(64, &WakeFd::new().unwrap()).unwrap();
            test(Harness { disk: disk.clone(), ring: ring.into(), next: Default::default() }).await;
            disk.stop().await;
        })
        .unwrap()
        .join()
        .unwrap();
}

fn is_done(outcome: &Result<DiskDone, DiskError>) -> bool {
    matches!(outcome, Ok(DiskDone::Done))
}

#[test]
fn every_operation_does_what_it_says() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let data = temp.path().to_owned();
    run(temp.path(), DiskOptions::default(), move |h| async move {
        let d = dir("t", 0);
        let segment = FileId::Segment(d.clone(), 0);
        let missing = h.one(write(&segment, 0, 1, K4, Durability::Later)).await;
        assert_eq!(missing.unwrap_err(), DiskError::NotFound { file: segment.clone() });
        assert!(is_done(&h.one(DiskOp::Allocate { file: segment.clone(), len: 1 << 20 }).await));
        let outcomes = h
            .all(vec![
                write(&segment, 0, 1, K4, Durability::Later),
                write(&segment, 512 * 1024, 2, 512 * 1024, Durability::Durable),
                DiskOp::Sync { file: segment.clone() },
            ])
            .await;
        assert!(outcomes.iter().all(is_done), "{outcomes:?}");
        assert_eq!(h.read(&segment, 0, 2 * K4).await.unwrap(), [vec![1; K4], vec![0; K4]].concat());
        assert_eq!(h.read(&segment, (1 << 20) - K4, 2 * K4).await.unwrap(), vec![2; K4], "short at the end");
        assert_eq!(h.read(&segment, 1 << 20, K4).await.unwrap().len(), 0);
        assert!(is_done(&h.one(DiskOp::Truncate { file: segment.clone(), len: K4 as u64 }).await));
        assert_eq!(h.read(&segment, 0, 2 * K4).await.unwrap(), vec![1; K4]);
        assert_eq!(h.disk.open_files(), 1);
        // removed, made anew under the same name: nothing of the old one shows through the handle
        let files = vec![segment.clone(), FileId::Commit(d.clone(), 0)];
        assert!(is_done(&h.one(DiskOp::Remove { files }).await));
        assert_eq!(h.disk.open_files(), 0);
        assert!(is_done(&h.one(DiskOp::Allocate { file: segment.clone(), len: K4 as u64 }).await));
        assert_eq!(h.read(&segment, 0, K4).await.unwrap(), vec![0; K4]);
        let topic = FileId::Topic(d.clone(), 0);
        assert!(is_done(&h.one(DiskOp::Allocate { file: topic.clone(), len: K4 as u64 }).await));
        // another partition's name for the same file: one description, or its lock would be in the way
        for (file, fill) in [(&topic, 1), (&FileId::Topic(dir("t", 1), 0), 2)] {
            assert!(is_done(&h.one(write(file, 0, fill, K4, Durability::Durable)).await));
        }
        assert_eq!(h.read(&topic, 0, K4).await.unwrap(), vec![2; K4]);
        assert_eq!(h.disk.open_files(), 1, "the segment's: what is seldom written does not stay open");
        assert!(is_done(&h.one(DiskOp::RemovePartition { dir: d.clone() }).await));
        assert!(is_done(&h.one(DiskOp::RemovePartition { dir: d.clone() }).await), "gone already is no error");
        assert!(is_done(&h.one(DiskOp::Allocate { file: segment.clone(), len: K4 as u64 }).await));
        let files = vec![segment, FileId::Commit(d.clone(), 0), FileId::Snapshot(d.clone(), 0), FileId::Snapshot(d, 1)];
        assert!(is_done(&h.one(DiskOp::Remove { files }).await));
        assert!(!data.join("topics/t/0").exists(), "the partition's empty folder goes with its last file");
        assert!(is_done(&h.one(DiskOp::Remove { files: vec![topic] }).await));
        assert!(data.join("topics").exists() && !data.join("topics/t").exists(), "the empty folder of the topic goes too");
    });
}

#[test]
fn idle_handles_are_recycled_and_those_in_use_are_not() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let options = DiskOptions { open_files_max: 3, in_flight_max: 4, spares: None };
    run(temp.path(), options, move |h| async move {
        let journal = FileId::Journal(0);
        assert!(is_done(&h.one(DiskOp::Allocate { file: journal.clone(), len: K4 as u64 }).await));
        assert!(is_done(&h.one(write(&journal, 0, 9, K4, Durability::Durable)).await));
        let file = |i: u16| FileId::Segment(dir("many", i), 0);
        let allocate = (0..20).map(|i| DiskOp::Allocate { file: file(i), len: 4 * K4 as u64 }).collect();
        assert!(h.all(allocate).await.iter().all(is_done));
        for round in 1..4u8 {
            let writes =
                (0..80).map(|n| write(&file(n % 20), n as usize / 20 * K4, round + n as u8, K4, Durability::Later)).collect();
            assert!(h.all(writes).await.iter().all(is_done));
            assert!(h.disk.open_files() <= 3 + 4, "{} open", h.disk.open_files());
            for n in 0..80 {
                let read = h.read(&file(n % 20), n as usize / 20 * K4, K4).await.unwrap();
                assert_eq!(read, vec![round + n as u8; K4]);
            }
            assert!(h.disk.open_files() <= 3, "{} open", h.disk.open_files());
        }
        assert_eq!(h.disk.pending(), 0);
    });
}

#[test]
fn files_that_are_seldom_written_do_not_stay_open() {
    let temp = tempfile::tempdir_in(".").unwrap();
    run(temp.path(), DiskOptions::default(), move |h| async move {
        let d = dir("t", 0);
        let files = [FileId::Topic(d.clone(), 0), FileId::Snapshot(d.clone(), 0), FileId::Snapshot(d.clone(), 1)];
        let segment = FileId::Segment(d, 0);
        for round in 1..4 {
            for file in files.iter().chain([&segment]) {
                assert!(is_done(&h.one(DiskOp::Allocate { file: file.clone(), len: K4 as u64 }).await));
                assert!(is_done(&h.one(write(file, 0, round, K4, Durability::Durable)).await));
            }
            assert_eq!(h.disk.open_files(), 1, "the segment's");
            for file in &files {
                assert_eq!(h.read(file, 0, K4).await.unwrap(), vec![round; K4]);
            }
        }
        assert!(is_done(&h.one(DiskOp::Remove { files: files.to_vec() }).await));
        assert_eq!(h.read(&files[0], 0, K4).await, Err(DiskError::NotFound { file: files[0].clone() }));
    });
}

#[test]
fn a_file_that_is_being_removed_is_not_opened() {
    let temp = tempfile::tempdir_in(".").unwrap();
    run(temp.path(), DiskOptions::default(), move |h| async move {
        for i in 0..20 {
            // not open yet, so the read has to open it: glommio panics when it goes away under that
            let d = dir("going", i);
            let file = FileId::Segment(d.clone(), 0);
            assert!(is_done(&h.one(DiskOp::Allocate { file: file.clone(), len: K4 as u64 }).await));
            let remove = match i % 2 {
                0 => DiskOp::Remove { files: vec![file.clone()] },
                _ => DiskOp::RemovePartition { dir: d },
            };
            let read = DiskOp::Read { file: file.clone(), at: 0, len: K4 };
            let done = h.all(vec![remove, read]).await;
            assert!(is_done(&done[0]));
            assert_eq!(done[1].as_ref().err(), Some(&DiskError::NotFound { file: file.clone() }));
            assert!(is_done(&h.one(DiskOp::Allocate { file: file.clone(), len: K4 as u64 }).await));
            assert!(h.read(&file, 0, K4).await.is_ok(), "made anew, it is opened");
        }
    });
}

#[test]
fn a_locked_file_is_waited_for_and_the_journal_stays_locked() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let mut storage = BlockingStorage::new(temp.path());
    storage.fill(&FileId::Journal(0), K4 as u64).unwrap(); // and keeps it open, locked
    let release = std::thread::spawn({
        let other = temp.path().join("journal/0");
        move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(storage);
            other
        }
    });
    run(temp.path(), DiskOptions::default(), move |h| async move {
        assert!(is_done(&h.one(write(&FileId::Journal(0), 0, 1, K4, Durability::Durable)).await));
        let path = release.join().unwrap();
        let other = std::fs::File::open(path).unwrap();
        assert!(!lock::try_flock(other.as_raw_fd()).unwrap());
    });
    let other = std::fs::File::open(temp.path().join("journal/0")).unwrap();
    assert!(lock::try_flock(other.as_raw_fd()).unwrap(), "a stopped disk holds no lock");
}

/// Memory that says when it is freed.
struct Watched {
    memory: Bytes,
    is_freed: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.is_freed.store(true, Ordering::SeqCst);
    }
}

#[test]
fn memory_of_a_write_is_the_kernels_until_it_has_answered() {
    let temp = tempfile::tempdir_in(".").unwrap();
    let freed = [const { AtomicBool::new(false) }; 2].map(Arc::new);
    let [first, second] = freed.clone();
    run(temp.path(), DiskOptions::default(), move |h| async move {
        let journal = FileId::Journal(0);
        let write = |is_freed: &Arc<AtomicBool>| {
            let unfilled = Unfilled::new(K4);
            // SAFETY: it is that long, and written before it is looked at.
            let memory = unsafe {
                unfilled.as_ptr().write_bytes(1, K4);
                unfilled.filled(K4)
            };
            let part = Bytes::from_owner(Watched { memory, is_freed: is_freed.clone() });
            DiskOp::Write { file: journal.clone(), at: 0, parts: vec![part], durability: Durability::Durable }
        };
        assert!(is_done(&h.one(DiskOp::Allocate { file: journal.clone(), len: K4 as u64 }).await));
        assert!(is_done(&h.one(self::write(&journal, 0, 1, K4, Durability::Durable)).await), "it is open now");
        assert!(is_done(&h.one(write(&first)).await) && first.load(Ordering::SeqCst), "an answer frees it");
        assert!(h.disk.submit_on(&mut h.ring.borrow_mut(), OpId(99), write(&second)));
        assert_eq!(h.disk.in_ring(), 1);
    });
    assert!(!freed[1].load(Ordering::SeqCst), "a disk that ends before the answer leaves it");
}

#[test]
fn an_executor_refuses_a_probe_that_would_poison_the_device() {
    let temp = tempfile::tempdir_in(".").unwrap();
    std::fs::write(temp.path().join("probe"), b"").unwrap();
    let data = temp.path().to_owned();
    let executor = LocalExecutorBuilder::new(Placement::Unbound).preempt_timer(Duration::from_secs(3600));
    let start = executor.spawn(move || async move { ShardDisk::start(&data, DiskOptions::default(), Bell::new()).await.err() });
    let error = start.unwrap().join().unwrap().expect("an empty probe file is refused");
    assert!(error.to_string().contains("the file has 0 bytes"), "{error}");
}

#[test]
fn a_core_has_its_long_blocks_ready_before_anything_is_written() {
    let temp = tempfile::tempdir_in(".").unwrap();
    assert_eq!(blocks::ready(), 0, "of this thread, which is no core");
    run(temp.path(), DiskOptions::default(), |_| async { assert_eq!(blocks::ready(), blocks::FREE_MAX) });
}

/// A full file system, a real one: an ext4 image on a loop device. Needs root; without it the test says so and fails.
struct SmallFileSystem {
    _temp: tempfile::TempDir,
    at: std::path::PathBuf,
}

impl SmallFileSystem {
    fn mount(bytes: u64) -> Self {
        let temp = tempfile::tempdir_in(".").unwrap();
        let (image, at) = (temp.path().join("image"), temp.path().join("mounted"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let output = std::process::Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(format!("{program}: {} {said}", output.status)) }
        };
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-m".as_ref(), "0".as_ref(), image.as_ref()])
            .unwrap_or_else(|e| panic!("this test needs mkfs.ext4 (Debian: e2fsprogs): {e}"));
        // tests that run at the same time may have all loop devices for a while
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        while let Err(e) = run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), at.as_ref()]) {
            let why = "this test needs root (CAP_SYS_ADMIN) and a free loop device (/dev/loop*) to mount an ext4 image";
            assert!(std::time::Instant::now() < limit, "{why}: {e}");
            std::thread::sleep(Duration::from_millis(200));
        }
        SmallFileSystem { _temp: temp, at }
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.at).status();
    }
}

#[test]
fn a_full_disk_refuses_allocations_and_changes_nothing() {
    let small = SmallFileSystem::mount(16 << 20);
    let at = small.at.clone();
    run(&small.at, DiskOptions::default(), move |h| async move {
        let (first, second) = (FileId::Segment(dir("t", 0), 0), FileId::Segment(dir("t", 1), 0));
        assert!(is_done(&h.one(DiskOp::Allocate { file: first.clone(), len: 4 << 20 }).await));
        assert!(is_done(&h.one(write(&first, 0, 5, K4, Durability::Durable)).await));
        for file in [&first, &second] {
            let refused = h.one(DiskOp::Allocate { file: file.clone(), len: 64 << 20 }).await;
            assert_eq!(refused.unwrap_err(), DiskError::NoSpace { file: file.clone() });
        }
        assert_eq!(std::fs::metadata(at.join("topics/t/0/00000000000000000000.segment")).unwrap().len(), 4 << 20);
        assert!(!at.join("topics/t/1/00000000000000000000.segment").exists());
        // allocated space can be written on the full disk, and refused writes go when there is room
        assert!(is_done(&h.one(write(&first, K4, 6, K4, Durability::Durable)).await));
        assert!(is_done(&h.one(DiskOp::Allocate { file: second, len: 1 << 20 }).await));
    });
}

#[test]
fn a_write_that_fails_poisons_its_file_and_no_other() {
    let small = SmallFileSystem::mount(16 << 20);
    run(&small.at, DiskOptions::default(), move |h| async move {
        let (bad, good) = (FileId::Segment(dir("t", 0), 0), FileId::Segment(dir("t", 1), 0));
        for file in [&bad, &good] {
            assert!(is_done(&h.one(DiskOp::Allocate { file: file.clone(), len: K4 as u64 }).await));
        }
        // writes beyond what is allocated, until the space ends: ENOSPC, or a short write before it
        let mut at = K4;
        let error = loop {
            match h.one(write(&bad, at, 1, 512 * 1024, Durability::Later)).await {
                Ok(_) => at += 512 * 1024,
                Err(error) => break error,
            }
            assert!(at < 64 << 20, "a 16 MiB file system is full by now");
        };
        assert!(error.is_no_space() || matches!(error, DiskError::ShortWrite { .. }), "{error}");
        // the space that it did not get would do for this one, which is not tried
        for again in [
            write(&bad, 0, 2, K4, Durability::Later),
            DiskOp::Sync { file: bad.clone() },
            DiskOp::Truncate { file: bad.clone(), len: 0 },
            DiskOp::Allocate { file: bad.clone(), len: K4 as u64 },
        ] {
            assert_eq!(h.one(again).await.unwrap_err(), error);
        }
        assert_eq!(h.read(&bad, 0, K4).await.unwrap(), vec![0; K4], "reads go on");
        assert!(is_done(&h.one(write(&good, 0, 3, K4, Durability::Durable)).await));
        assert!(is_done(&h.one(DiskOp::Remove { files: vec![bad.clone()] }).await));
        assert!(is_done(&h.one(DiskOp::Allocate { file: bad.clone(), len: K4 as u64 }).await));
        assert!(is_done(&h.one(write(&bad, 0, 4, K4, Durability::Durable)).await), "a new file of the name is a new file");
    });
}
