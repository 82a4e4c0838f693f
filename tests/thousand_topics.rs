//! A thousand topics with a channel each, published to in turn, cost kilobytes of disk each and no open files, also after
//! a restart. What a startup takes is bounded by its reads, since no test here measures time: by the number of partitions and
//! the journal, and not by what the logs hold. The bounds are generous; the figures, which
//! `cargo test --release --test thousand_topics -- --nocapture` prints, are in docs/benchmarks.md.

mod node;

use node::{Client, Node};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const TOPICS: usize = 1000;
const MESSAGES: usize = 4;
const BODY: [u8; 150] = [b'x'; 150];
const JOURNAL_BYTES: u64 = 16 << 20;

/// Disk per partition: its files and folders.
const DISK_MAX: u64 = 128 * 1024;
/// The process with nothing in use; then, while it works, the bound of files per core on top, and sockets just closed.
const FILES_IDLE_MAX: usize = 40;
const FILES_BUSY_MAX: usize = 256 + 256 + FILES_IDLE_MAX;
const RESIDENT_MAX: u64 = 192 << 20;
/// A startup reads the journal, and so much of each partition: its topic's folder, its snapshots, the ends of its files.
const START_READS_PER_TOPIC: u64 = 20;
const START_BYTES_PER_TOPIC: u64 = 96 * 1024;
/// Length of one topic's log at the last startup, several times the journal.
const LONG_LOG: u64 = 80 << 20;

#[test]
fn a_thousand_topics_are_cheap() {
    let mut node = Node::start(&["--shards=1", "--log-level=warn", &format!("--journal-bytes={JOURNAL_BYTES}")]);
    report("empty", &node);
    let mut client = Client::connect(node.tcp()).expect("it takes connections");
    for round in 0..MESSAGES {
        let began = Instant::now();
        for topic in 0..TOPICS {
            client.publish(&format!("topic-{topic}"), &BODY).expect("it takes a publish");
        }
        println!("a publish to each, round {round}: {:?}", began.elapsed());
    }
    let began = Instant::now();
    for topic in 0..TOPICS {
        let mut consumer = Client::connect(node.tcp()).expect("it takes connections");
        consumer.subscribe(&format!("topic-{topic}"), "channel", 1).expect("it takes a SUB");
        let message = consumer.message().expect("it delivers");
        consumer.finish(&message.id).expect("it reads");
    }
    println!("a channel for each, a message received: {:?}", began.elapsed());
    // The consumers' sockets linger for about a second after they left.
    let used = settled("published", &node, FILES_BUSY_MAX);
    assert!(used.files <= FILES_BUSY_MAX, "{} open files", used.files);
    assert!(used.resident <= RESIDENT_MAX && used.disk_per_topic() <= DISK_MAX, "{used:?}");

    println!("stopped in {:?}", node.stop());
    let mut before = None;
    for (what, ends) in [("after a stop", End::Kill), ("after a kill", End::Stop)] {
        let began = Instant::now();
        node.spawn();
        node.wait_ready().expect("it starts again");
        println!("{what}: ready after {:?}", began.elapsed());
        let read = start_reads(what, &node);
        assert!(read.calls <= START_READS_PER_TOPIC * TOPICS as u64 + read.of_journal(), "{what}: {read:?}");
        assert!(read.bytes <= START_BYTES_PER_TOPIC * TOPICS as u64 + JOURNAL_BYTES, "{what}: {read:?}");
        // What the startup read last is closed a moment later.
        let used = settled(what, &node, FILES_IDLE_MAX);
        assert!(used.files <= FILES_IDLE_MAX, "{} open files", used.files);
        assert!(used.resident <= RESIDENT_MAX && used.disk_per_topic() <= DISK_MAX, "{used:?}");
        if let End::Kill = ends {
            idle(&node);
        }
        let mut client = Client::connect(node.tcp()).expect("it takes connections");
        client.publish("topic-7", &BODY).expect("it takes a publish");
        match ends {
            End::Kill => node.kill(),
            End::Stop => {
                let body = vec![b'y'; 1 << 20];
                (0..LONG_LOG >> 20).for_each(|_| client.publish("topic-7", &body).expect("it takes a publish"));
                node.stop();
                before = Some(read);
            }
        }
    }
    node.spawn();
    node.wait_ready().expect("it starts again");
    let (read, before) = (start_reads("with a long log", &node), before.expect("it was started before"));
    assert!(read.bytes <= before.bytes + JOURNAL_BYTES, "the length of a log costs a startup reads: {read:?}, before {before:?}");
    assert!(
        read.calls <= before.calls + before.of_journal(),
        "the length of a log costs a startup reads: {read:?}, before {before:?}"
    );
}

/// Reads of the process so far, as the kernel counts them.
#[derive(Debug)]
struct Reads {
    calls: u64,
    bytes: u64,
}

impl Reads {
    /// Calls that may be the journal's.
    fn of_journal(&self) -> u64 {
        JOURNAL_BYTES >> 12
    }
}

/// Right after the startup: the scrub reads by io_uring, which these counts leave out.
fn start_reads(what: &str, node: &Node) -> Reads {
    let io = std::fs::read_to_string(format!("/proc/{}/io", node.pid())).expect("it runs");
    let number = |name: &str| {
        let value =
            io.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel counts it (CONFIG_TASK_IO_ACCOUNTING)");
        value.trim().parse::<u64>().expect("a number")
    };
    let reads = Reads { calls: number("syscr:"), bytes: number("rchar:") };
    println!("{what}: the startup made {} reads of {} KiB in all", reads.calls, reads.bytes >> 10);
    reads
}

/// End of the process before the startup.
enum End {
    Stop,
    Kill,
}

#[derive(Debug)]
struct Used {
    resident: u64,
    files: usize,
    disk: u64,
}

impl Used {
    /// Disk space per topic, without the journal, which is there in any case.
    fn disk_per_topic(&self) -> u64 {
        self.disk.saturating_sub(JOURNAL_BYTES) / TOPICS as u64
    }
}

fn report(what: &str, node: &Node) -> Used {
    let files = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("it runs").count();
    let used = Used { resident: node.resident_bytes(), files, disk: disk_bytes(&node.data_path()) };
    println!(
        "{what}: {} KiB resident, {files} open files, {} KiB of disk, {} B of it per topic",
        used.resident >> 10,
        used.disk >> 10,
        used.disk_per_topic()
    );
    used
}

/// The same, at the latest after ten seconds, when no more files are open than these.
fn settled(what: &str, node: &Node, files_max: usize) -> Used {
    let until = Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let used = report(what, node);
        if used.files <= files_max || Instant::now() >= until {
            return used;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// Allocated bytes of the folder, as du counts them.
fn disk_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a folder").path());
    let below = entries.map(|path| if path.is_dir() { disk_bytes(&path) } else { allocated(&path) });
    allocated(folder) + below.sum::<u64>()
}

/// A file may be gone since its folder was read.
fn allocated(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |found| found.blocks() * 512)
}

/// Checks the resources that the idle node uses, once the first scrub is over.
fn idle(node: &Node) {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        fields[11..13].iter().map(|n| n.parse::<u64>().expect("a number")).sum::<u64>()
    };
    let begun = ticks();
    std::thread::sleep(Duration::from_secs(6));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    println!("CPU: {} ms in the first 6 s, {} ms in the next 2 s", (before - begun) * 10, (ticks() - before) * 10);
}
