//! Consumers that lag behind: everything they want is cold, the read cache is at its minimum, reads take a while and end
//! in any order, or fail.

use super::*;
use crate::base::Rng;
use bytes::Bytes;

const CACHE: u64 = 1 << 20;
const BODY: usize = 16 * 1024;

fn settings(partitions: u16) -> Settings {
    Settings {
        partitions,
        journal_bytes: 4 << 20,
        read_cache_bytes: CACHE,
        tail_cache_bytes: 0,
        flush_bytes: 4096,
        direct_bytes: 256 * 1024,
        scrub_bytes_per_second: 0,
        ..Settings::default()
    }
}

fn body(n: usize) -> String {
    let mut body = format!("{n:06}");
    body.extend(std::iter::repeat_n('x', BODY - 6));
    body
}

/// Order in which reads complete.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Completes one read per turn, the oldest first.
    OneByOne,
    /// All reads that are under way complete in one turn.
    AllAtOnce,
    /// Completes some reads, at random.
    Random,
}

struct Reads {
    node: Node,
    rng: Rng,
    order: Order,
    /// Every buffer a read brought: it lives as long as somebody else has a part of it.
    buffers: Vec<Bytes>,
    /// Reads of these segments fail.
    broken: Option<FileId>,
    reads: usize,
}

impl Reads {
    /// Channels (each with a client of its own, without credit) on a topic with messages that have left the memory.
    fn new(cores: u16, partitions: u16, channels: usize, messages: usize, order: Order) -> (Reads, Vec<ConnId>) {
        let mut node = Node::with(cores, settings(partitions));
        let p = node.connect(0);
        let conns: Vec<ConnId> = (0..channels)
            .map(|i| {
                let conn = node.connect(i % cores as usize);
                node.send(conn, format!("SUB t ch{i}\n").as_bytes());
                assert_eq!(node.take(conn), ["OK"]);
                conn
            })
            .collect();
        for n in 0..messages {
            node.publish(p, "t", &body(n));
        }
        assert_eq!(node.take(p).len(), messages);
        for _ in 0..3 {
            node.pass_time(Duration::from_millis(10));
        }
        (Reads { node, rng: Rng::new(5), order, buffers: vec![], broken: None, reads: 0 }, conns)
    }

    fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        let core = self.node.clients[&conn].0;
        self.node.step(core, Event::Bytes { conn, bytes });
    }

    /// Runs one turn of every core, then completes some of what is under way.
    fn round(&mut self) {
        let n = &mut self.node;
        for core in 0..n.shards.len() {
            if n.shards[core].deadline().is_some_and(|at| at <= n.now.ticks) {
                n.step(core, Event::Tick);
            }
            n.end_turn(core);
        }
        while let Some((from, to, message)) = n.mesh.pop_front() {
            n.step(to.0 as usize, Event::Mesh { from, message });
        }
        let done = match self.order {
            Order::OneByOne => n.pending.len().min(1),
            Order::AllAtOnce => n.pending.len(),
            Order::Random => self.rng.below(n.pending.len() as u64 + 1) as usize,
        };
        for _ in 0..done {
            let i = if self.order == Order::Random { self.rng.below(n.pending.len() as u64) as usize } else { 0 };
            let (core, op, request) = n.pending.remove(i).expect("it is there");
            let is_read = matches!(request, DiskOp::Read { .. });
            let file = request.file().cloned();
            let outcome = match (is_read, &self.broken) {
                (true, Some(broken)) if file.as_ref() == Some(broken) => {
                    let file = broken.clone();
                    Err(DiskError::Io { file, call: "read", errno: 5, message: "input/output error".into() })
                }
                _ => n.disk_op(request),
            };
            if let Ok(DiskDone::Read(bytes)) = &outcome {
                self.reads += 1;
                self.buffers.push(bytes.clone());
            }
            n.step(core, Event::Disk { op, outcome });
        }
    }

    /// Finishes what a client has got; the numbers of the messages.
    fn finish(&mut self, conn: ConnId) -> Vec<usize> {
        let mut numbers = vec![];
        for message in self.node.take(conn) {
            let parts: Vec<&str> = message.split(' ').collect();
            let [id, _, body] = parts[..] else { panic!("{message}") };
            numbers.push(body[..6].parse().expect("a number"));
            self.write(conn, format!("FIN {id}\n").as_bytes());
        }
        numbers
    }

    /// Bytes of read buffers that somebody still has.
    fn held_bytes(&mut self) -> usize {
        self.buffers.retain(|b| !b.is_unique());
        self.buffers.iter().map(Bytes::len).sum()
    }

    /// The segment of a partition fails from now on.
    fn break_partition(&mut self, partition: u16) {
        let is_its = |f: &&FileId| matches!(f, FileId::Segment(dir, 0) if dir.partition.0 == partition);
        self.broken = self.node.disk.files().find(is_its).cloned();
        assert!(self.broken.is_some());
    }

    fn pass(&mut self, ms: u64) {
        self.node.now.ticks = self.node.now.ticks + Duration::from_millis(ms);
        self.round();
    }

    fn unreadable(&self) -> Vec<u16> {
        let stats = self.node.shards.iter().flat_map(|s| s.stats(Ticks(0), None, None, false).partitions);
        stats.filter(|p| p.unreadable.is_some()).map(|p| p.partition).collect()
    }

    fn shard_bytes(&self) -> usize {
        self.node.shards.iter().map(|s| s.engine.core.store.read_bytes()).sum()
    }
}

/// The credit lent to a partition once was recalled while the read for it was under way; when it was done there was no
/// credit, and before there was, the cache had dropped what was read.
#[test]
fn a_laggard_with_a_ready_count_of_one_gets_on_over_many_cold_partitions() {
    for (cores, order) in [(1, Order::OneByOne), (1, Order::AllAtOnce), (1, Order::Random), (2, Order::Random)] {
        const MESSAGES: usize = 64 * 20;
        let (mut r, conns) = Reads::new(cores, 64, 1, MESSAGES, order);
        let conn = conns[0];
        r.write(conn, b"RDY 1\n");
        let (mut seen, mut last) = (std::collections::BTreeSet::new(), 0);
        for round in 0.. {
            r.round();
            let got = r.finish(conn);
            assert!(got.len() <= 1, "one in flight");
            if !got.is_empty() {
                last = round;
            }
            seen.extend(got);
            if seen.len() == MESSAGES {
                break;
            }
            assert!(
                round - last < 300,
                "{cores} cores, {order:?}: nothing comes after {} messages, {} reads",
                seen.len(),
                r.reads
            );
        }
    }
}

/// 64 channels that all begin at the oldest message of 64 partitions: bytes that are read, being read, and kept from being freed stay
/// within the cache's bound, and every channel goes on.
#[test]
fn the_read_cache_is_bounded_under_many_laggards() {
    for order in [Order::OneByOne, Order::AllAtOnce, Order::Random] {
        let (mut r, conns) = Reads::new(1, 64, 64, 64 * 12, order);
        for &conn in &conns {
            r.write(conn, b"RDY 7\n");
        }
        let (mut got, mut counted, mut held) = (vec![0; conns.len()], 0, 0);
        for _ in 0..2500 {
            r.round();
            for (i, &conn) in conns.iter().enumerate() {
                got[i] += r.finish(conn).len();
            }
            counted = counted.max(r.shard_bytes());
            held = held.max(r.held_bytes());
        }
        println!("{order:?}: {} reads, counted {counted}, held {held}, messages {got:?}", r.reads);
        assert!(counted <= CACHE as usize && held <= CACHE as usize, "{order:?}: counted {counted}, held {held}");
        assert!(got.iter().all(|&n| n > 5), "{order:?}: {got:?}");
    }
}

/// Once a channel went past what three reads in a row could not bring.
#[test]
fn a_channel_holds_where_the_device_refuses_and_the_others_go_on() {
    for (cores, rdy) in [(1, 1), (1, 9), (2, 1)] {
        let (mut r, conns) = Reads::new(cores, 4, 1, 80, Order::Random);
        let conn = conns[0];
        r.break_partition(2);
        r.write(conn, format!("RDY {rdy}\n").as_bytes());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            r.pass(10);
            seen.extend(r.finish(conn));
        }
        assert_eq!(seen.len(), 60, "{cores} cores, RDY {rdy}: three of four partitions are read");
        assert_eq!(r.unreadable(), [2]);
        r.broken = None;
        for _ in 0..1200 {
            r.pass(10);
            seen.extend(r.finish(conn));
        }
        assert_eq!(seen.len(), 80, "{cores} cores, RDY {rdy}: nothing was skipped");
        assert!(r.unreadable().is_empty());
    }
}

#[test]
fn a_node_stops_while_a_channel_holds() {
    let (mut r, conns) = Reads::new(1, 2, 1, 20, Order::OneByOne);
    r.break_partition(0);
    r.write(conns[0], b"RDY 2\n");
    for _ in 0..200 {
        r.pass(10);
    }
    assert_eq!(r.unreadable(), [0]);
    r.node.step(0, Event::Stop);
    for _ in 0..800 {
        r.pass(10);
    }
    assert_eq!(r.node.stopped, 1);
    assert!(r.node.pending.is_empty(), "nothing is tried any more");
}
