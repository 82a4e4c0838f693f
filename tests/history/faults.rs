//! Faults of a run: each is made, lasts, and ends; then the cluster must serve again.

use super::world::{ETCD, LEASE, World};
use crate::node::cluster::{rot, until};
use crate::node::small_disk::SmallDisk;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// SIGKILL.
    KillLeader,
    KillFollower,
    KillAll,
    /// SIGSTOP for longer than the lease.
    PauseLeader,
    /// The leader is cut off from etcd, in both directions.
    CutLeaderFromEtcd,
    CutLeaderFromFollowers,
    /// A node is cut off from the other nodes and from etcd.
    CutFromAll,
    /// Messages of a node to etcd are lost, and those of etcd to it come; or the other way round.
    OneWayFromEtcd,
    OneWayFromFollowers,
    OneWayFromAll,
    /// The disk of a node stands still for most of the time.
    SlowDisk,
    FullDisk,
    /// A byte of a closed segment of one replica changes.
    Rot,
    RestartEtcd,
    /// etcd is away, for a minute in a long run.
    EtcdAway,
    /// A node is added, and one of the others is drained.
    AddAndDrain,
    /// SIGTERM and a startup, one node after the other.
    RollingRestart,
}

impl Fault {
    pub const ALL: [Fault; 17] = [
        Fault::KillLeader,
        Fault::KillFollower,
        Fault::KillAll,
        Fault::PauseLeader,
        Fault::CutLeaderFromEtcd,
        Fault::CutLeaderFromFollowers,
        Fault::CutFromAll,
        Fault::OneWayFromEtcd,
        Fault::OneWayFromFollowers,
        Fault::OneWayFromAll,
        Fault::SlowDisk,
        Fault::FullDisk,
        Fault::Rot,
        Fault::RestartEtcd,
        Fault::EtcdAway,
        Fault::AddAndDrain,
        Fault::RollingRestart,
    ];

    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| format!("{fault:?}") == name)
    }

    pub fn needs_small_disk(self) -> bool {
        matches!(self, Fault::SlowDisk | Fault::FullDisk)
    }

    /// Makes it and ends it. `is_long`: with the times of a long run.
    pub fn happen(self, world: &mut World, is_long: bool) {
        match self {
            Fault::KillLeader => {
                let node = world.some_leader();
                kill(world, node);
            }
            Fault::KillFollower => {
                let (leader, others) = leader_and_nodes(world);
                let node = others[world.chance.below(others.len() as u64) as usize];
                assert_ne!(node, leader);
                kill(world, node);
            }
            Fault::KillAll => kill_all(world),
            Fault::PauseLeader => {
                let node = world.some_leader();
                world.tell(&format!("{} is stopped for longer than its lease", world.name(node)));
                world.cluster.nodes[node].signal(libc::SIGSTOP);
                std::thread::sleep(LEASE + world.some_time(500, 3000));
                world.cluster.nodes[node].signal(libc::SIGCONT);
            }
            Fault::CutLeaderFromEtcd | Fault::OneWayFromEtcd => {
                let node = world.some_leader();
                cut(world, node, &[ETCD], self == Fault::OneWayFromEtcd);
            }
            Fault::CutLeaderFromFollowers | Fault::OneWayFromFollowers => {
                let (node, others) = leader_and_nodes(world);
                cut(world, node, &others, self == Fault::OneWayFromFollowers);
            }
            Fault::CutFromAll | Fault::OneWayFromAll => {
                let node = world.some_leader();
                let others = world.others(node);
                cut(world, node, &others, self == Fault::OneWayFromAll);
            }
            Fault::SlowDisk => slow_disk(world),
            Fault::FullDisk => full_disk(world),
            Fault::Rot => rot_one(world),
            Fault::RestartEtcd => {
                world.tell("etcd is killed and starts again");
                world.etcd.restart();
            }
            Fault::EtcdAway => {
                let time = if is_long { Duration::from_secs(60) } else { LEASE * 2 };
                world.tell(&format!("etcd stands still for {time:?}"));
                world.etcd.pause();
                std::thread::sleep(time);
                world.etcd.resume();
            }
            Fault::AddAndDrain => add_and_drain(world),
            Fault::RollingRestart => {
                for node in world.running() {
                    world.tell(&format!("{} is stopped by SIGTERM and starts again", world.name(node)));
                    world.cluster.nodes[node].stop();
                    world.spawn(node);
                    world.wait_ready(node);
                    world.wait_in_sync();
                }
            }
        }
    }
}

/// The leader of a partition of chance, and the other nodes.
fn leader_and_nodes(world: &mut World) -> (usize, Vec<usize>) {
    let leader = world.some_leader();
    (leader, world.running().into_iter().filter(|node| *node != leader).collect())
}

fn kill(world: &mut World, node: usize) {
    world.tell(&format!("{} is killed", world.name(node)));
    world.cluster.nodes[node].kill();
    std::thread::sleep(world.some_time(100, 6000));
    world.tell(&format!("{} starts", world.name(node)));
    world.spawn(node);
    world.wait_ready(node);
}

fn kill_all(world: &mut World) {
    world.tell("all nodes are killed");
    let nodes = world.running();
    // At once: nobody may see another one go.
    nodes.iter().for_each(|node| world.cluster.nodes[*node].signal(libc::SIGKILL));
    nodes.iter().for_each(|node| world.cluster.nodes[*node].kill());
    std::thread::sleep(world.some_time(0, 2000));
    nodes.iter().for_each(|node| world.spawn(*node));
    nodes.iter().for_each(|node| world.wait_ready(*node));
}

/// Silences all that the node sends to the others, or all that they send to it, or both.
fn cut(world: &mut World, node: usize, others: &[usize], is_one_way: bool) {
    let mut ways: Vec<(usize, usize)> = vec![];
    let is_deaf = world.chance.one_in(2);
    if !is_one_way || !is_deaf {
        ways.extend(others.iter().map(|other| (node, *other)));
    }
    if !is_one_way || is_deaf {
        ways.extend(others.iter().map(|other| (*other, node)));
    }
    silence(world, &ways);
}

fn silence(world: &mut World, ways: &[(usize, usize)]) {
    let name = |world: &World, party: usize| if party == ETCD { "etcd" } else { world.name(party) };
    let names: Vec<String> = ways.iter().map(|(from, to)| format!("{} to {}", name(world, *from), name(world, *to))).collect();
    world.tell(&format!("nothing comes from {}", names.join(", ")));
    ways.iter().for_each(|(from, to)| world.wires.silence(*from, *to));
    std::thread::sleep(world.some_time(1000, 7000));
    if world.chance.one_in(2) {
        // Bytes on the way are lost with their connection.
        ways.iter().for_each(|(from, to)| world.wires.drop_connections(*from, *to));
    }
    world.wires.heal();
    world.tell("the network is whole");
}

fn slow_disk(world: &mut World) {
    world.tell("the disk of a is slow");
    let disk = world.disk.as_ref().expect("the run has one");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        freeze(disk, true);
        std::thread::sleep(Duration::from_millis(400));
        freeze(disk, false);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Writes to a frozen file system wait until it is thawed.
fn freeze(disk: &SmallDisk, on: bool) {
    const FIFREEZE: libc::c_ulong = 0xc004_5877;
    const FITHAW: libc::c_ulong = 0xc004_5878;
    let root = std::fs::File::open(disk.path()).expect("it is mounted");
    // SAFETY: the calls take a number that they ignore.
    let done = unsafe { libc::ioctl(root.as_raw_fd(), if on { FIFREEZE } else { FITHAW } as _, 0) };
    assert_eq!(done, 0, "the file system cannot be frozen: {}", std::io::Error::last_os_error());
}

fn full_disk(world: &mut World) {
    world.tell("the disk of a is full");
    let filler = world.disk.as_ref().expect("the run has one").filler("filler", u64::MAX);
    std::thread::sleep(world.some_time(4000, 10_000));
    std::fs::remove_file(filler).expect("it was made");
    world.tell("the disk of a has room");
}

fn rot_one(world: &mut World) {
    world.wait_in_sync();
    let partition = world.chance.below(3) as usize;
    // Not every node has a replica, where there are more nodes.
    let node = world.some_replica("plain", partition);
    let at = world.chance.below(900_000);
    let has_closed = |world: &World| {
        let folder = world.cluster.nodes[node].data_path().join(format!("topics/plain/{partition}"));
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        // One segment may be there ahead of its use.
        names.filter(|path| path.extension().is_some_and(|e| e == "segment")).count() > 2
    };
    until(|| has_closed(world), || "a segment of the plain topic is closed".into());
    let repaired = |world: &World| world.cluster.nodes[node].whole_log().matches("damage is repaired").count();
    let before = repaired(world);
    world.tell(&format!("a byte of plain/{partition} rots on {}", world.name(node)));
    rot(&world.cluster.nodes[node], "plain", partition, 0, at);
    // Its scrubber begins anew.
    world.cluster.nodes[node].stop();
    world.spawn(node);
    world.wait_ready(node);
    until(|| repaired(world) > before, || format!("it is repaired:\n{}", world.cluster.nodes[node].log()));
}

fn add_and_drain(world: &mut World) {
    world.wait_in_sync();
    let node = world.some_node();
    if !world.has_added() {
        let name = world.add_node();
        world.tell(&format!("{name} is added"));
    }
    world.tell(&format!("{} is drained", world.name(node)));
    world.drain(node);
    world.tell(&format!("{} leads nothing", world.name(node)));
    world.wait_without_replicas(node);
    world.tell(&format!("{} has no replica and is taken back", world.name(node)));
    world.end_drain(node);
}
