//! Faults, their times and durations; and the operator's or controller's work meanwhile.

use super::events::{FaultEnd, Happening};
use super::meta::TopicPartition;
use super::plan::{Coordination, FIELDS, Faults};
use super::world::{MS, Phase, SECOND, World};

/// Faults of [`FIELDS`] that come at moments of their own; the others are asked for where they apply.
const TIMED: &[&str] = &[
    "crash",
    "stop",
    "pause",
    "clock_jump",
    "partition",
    "one_way",
    "reset",
    "slow_link",
    "store_away",
    "leader_move",
    "membership",
    "slow_disk",
    "rot",
    "all_down",
    "cut_off",
    "full_disk",
    "operator",
    "hand_over",
    "store_sleep",
    "topics",
    "loads",
    "moves",
];

/// The newest of these. Nothing is drawn for them where they are not: runs without them stay as they were.
const NEWEST: &[&str] = &["full_disk", "operator", "hand_over", "store_sleep", "topics", "loads", "moves"];

impl World {
    /// The first time of each fault that this run has.
    pub fn plan_faults(&mut self) {
        for (field, (name, .., much)) in FIELDS.iter().enumerate().filter(|(_, f)| TIMED.contains(&f.0)) {
            if !NEWEST.contains(name) || *much(&mut self.faults) > 0.0 {
                self.next_fault(field);
            }
        }
    }

    fn next_fault(&mut self, field: usize) {
        let per_second = *FIELDS[field].3(&mut self.faults);
        // the draw is made in any case, so that a fault that is taken away moves no other more than it must
        let share = 0.05 + 1.9 * (self.rng.below(1000) as f64 / 1000.0);
        if per_second > 0.0 {
            let at = self.now + (share / per_second * SECOND as f64) as u64;
            self.queue.put(at, Happening::Fault(field));
        }
    }

    pub fn fault(&mut self, field: usize) {
        // A fault that was planned before the losses may be none beside them.
        if self.phase != Phase::Faulty || *FIELDS[field].3(&mut self.faults) == 0.0 {
            return;
        }
        self.next_fault(field);
        match FIELDS[field].0 {
            "operator" => return self.operate(),
            "hand_over" => return self.want_hand_over(),
            "topics" => return self.change_topics(),
            "moves" => return self.ask_for_move(),
            _ => {}
        }
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let name = FIELDS[field].0;
        match name {
            "crash" => self.crash_soon(n),
            "stop" => self.begin_stop(n),
            "pause" => self.pause(n),
            "clock_jump" => {
                let hours = self.rng.below(7200 * SECOND) as i64 - 3600 * SECOND as i64;
                self.nodes[n].wall_skew = if self.rng.chance(0.3) { 0 } else { hours };
            }
            "partition" | "one_way" => self.part(n, name == "one_way"),
            "reset" => {
                let wires = match self.rng.chance(0.7) {
                    true => self.peer_wires(),
                    false => self.clients.keys().copied().collect(),
                };
                if !wires.is_empty() {
                    let wire = wires[self.rng.below(wires.len() as u64) as usize];
                    self.reset(wire);
                }
            }
            "slow_link" => {
                let to = self.other_than(n);
                self.slow.insert((n, to));
                let until = self.now + self.rng.below(2 * SECOND);
                self.queue.put(until, Happening::Mended(FaultEnd::Slow(n, to)));
            }
            "store_away" => {
                let until = self.now + self.rng.below(4 * SECOND);
                self.take_store_away(n, until);
            }
            "leader_move" => self.move_leader(),
            "membership" if self.plan.coordination == Coordination::Etcd => self.change_drain(n),
            "membership" => self.change_membership(n),
            "slow_disk" => self.nodes[n].disk_stands_until = self.now + self.rng.below(1500 * MS),
            "rot" => self.rot(),
            "all_down" => self.power_sags(),
            "cut_off" => self.cut_off(n),
            "full_disk" => self.fill_disk(n),
            "store_sleep" => self.store_falls_asleep(),
            "loads" => self.measure_load(n),
            _ => unreachable!("only what is timed comes here"),
        }
        self.say(|| format!("fault: {name} at node{n}"));
    }

    fn take_store_away(&mut self, n: usize, until: u64) {
        self.nodes[n].is_store_away = true;
        self.queue.put(until, Happening::Mended(FaultEnd::StoreAway(n)));
    }

    /// Fills the disk of one node, or of all.
    fn fill_disk(&mut self, n: usize) {
        let until = self.now + 300 * MS + self.rng.below(3 * SECOND);
        let all = self.rng.chance(0.5);
        for n in (0..self.nodes.len()).filter(|o| all || *o == n) {
            self.nodes[n].is_full_until = until;
            self.nodes[n].disk.faults = self.disk_faults(n);
            self.queue.put(until, Happening::Mended(FaultEnd::Full(n)));
        }
    }

    fn other_than(&mut self, n: usize) -> usize {
        (n + 1 + self.rng.below(self.nodes.len() as u64 - 1) as usize) % self.nodes.len()
    }

    /// Crashes a node at one of its next effects.
    fn crash_soon(&mut self, n: usize) {
        let left = self.rng.below(400);
        if let Some(r) = &mut self.nodes[n].running {
            r.effects_left.get_or_insert(left);
        }
    }

    fn pause(&mut self, n: usize) {
        if self.nodes[n].running.is_some() {
            let longest = if self.rng.chance(0.5) { 300 * MS } else { 3 * super::meta::LEASE };
            self.nodes[n].paused_until = self.soon(longest);
            self.queue.put(self.nodes[n].paused_until, Happening::Wake { node: n });
            self.outcome.pauses += 1;
        }
    }

    /// Cuts the network between two nodes, or between one node and all others.
    fn part(&mut self, n: usize, one_way: bool) {
        let all = self.rng.chance(0.5);
        let other = self.other_than(n);
        let others: Vec<usize> = (0..self.nodes.len()).filter(|o| *o != n && (all || *o == other)).collect();
        let until = self.now + self.rng.below(3 * SECOND);
        let outward = self.rng.chance(0.5);
        for o in others {
            let both = [(n, o), (o, n)];
            let which = if one_way { &both[outward as usize..=outward as usize] } else { &both[..] };
            for &(a, b) in which {
                self.cuts.insert((a, b));
                self.outcome.cuts += 1;
                self.queue.put(until, Happening::Mended(FaultEnd::Cut(a, b)));
            }
        }
    }

    /// Stops all disks, then takes the power away from all nodes.
    fn power_sags(&mut self) {
        let until = self.now + 20 * MS + self.rng.below(80 * MS);
        for node in &mut self.nodes {
            node.disk_stands_until = node.disk_stands_until.max(until + MS);
        }
        self.queue.put(until, Happening::AllDown);
    }

    /// Isolates a node from the store, and from one node or all others. Messages that those nodes lack must not have been acknowledged,
    /// so their disks are checked at the end.
    fn cut_off(&mut self, n: usize) {
        let until = self.now + 500 * MS + self.rng.below(2500 * MS);
        self.take_store_away(n, until);
        let (other, all) = (self.other_than(n), self.rng.chance(0.5));
        for o in (0..self.nodes.len()).filter(|o| *o != n && (all || *o == other)) {
            self.queue.put(until, Happening::Probe { node: o });
            for (a, b) in [(n, o), (o, n)] {
                self.cuts.insert((a, b));
                self.outcome.cuts += 1;
                self.queue.put(until, Happening::Mended(FaultEnd::Cut(a, b)));
            }
        }
    }

    fn random_key(&mut self) -> TopicPartition {
        let keys = self.meta.keys();
        keys[self.rng.below(keys.len() as u64) as usize]
    }

    fn want_hand_over(&mut self) {
        let key = self.random_key();
        if self.meta.want(key, &mut self.rng) {
            self.say(|| format!("the leader of {key:?} is asked to hand over"));
            self.changed(key);
        }
    }

    fn move_leader(&mut self) {
        let key = self.random_key();
        if self.plan.coordination == Coordination::Store {
            let old = self.meta.leader(key);
            if self.meta.elect(key, old, self.now, &mut self.rng) {
                self.changed(key);
            }
            return;
        }
        let replicas = self.meta.entries[&key].now.isr.clone();
        let to = replicas[self.rng.below(replicas.len() as u64) as usize];
        let to = self.meta.index(to);
        self.meta.write_file(key, to);
        self.spread_file(2 * SECOND);
    }

    /// The newest file comes to each node within this time.
    pub fn spread_file(&mut self, within: u64) {
        let version = self.meta.newest_file();
        for node in 0..self.nodes.len() {
            let at = self.soon(within);
            self.queue.put(at, Happening::Install { node, version });
        }
    }

    fn change_membership(&mut self, n: usize) {
        let key = self.random_key();
        self.change_replicas_of(key, n);
    }

    /// Changes the replicas of a partition. In a run with damage one node is never trusted to be the last good copy, so an undamaged
    /// one must stay in sync.
    pub fn change_replicas_of(&mut self, key: TopicPartition, n: usize) {
        let sound = |o: &usize| *o != n && self.meta.is_in_sync(key, *o) && self.victim != Some(*o);
        let may_go = (0..self.nodes.len()).any(|o| sound(&o));
        if self.meta.change_replicas(key, n, may_go, &mut self.rng) {
            self.changed(key);
        }
    }

    /// A stored bit of the victim flips: of a segment, a commit log or a snapshot.
    fn rot(&mut self) {
        let Some(n) = self.victim else { return };
        let disk = &mut self.nodes[n].disk;
        let suffixes = [".segment", ".commit", "state.0", "state.1", "state.2"];
        let of_partition = |p: &&str| suffixes.iter().any(|s| p.ends_with(s)) && !p.contains('~');
        let paths: Vec<String> = disk.paths().filter(of_partition).map(String::from).collect();
        if paths.is_empty() {
            return;
        }
        let path = &paths[self.rng.below(paths.len() as u64) as usize];
        let used = disk.contents_of(path).iter().rposition(|b| *b != 0).map_or(0, |at| at as u64 + 1);
        if used > 0 {
            let at = self.rng.below(used);
            disk.flip(path, at, self.rng.below(8) as u32);
            self.nodes[n].is_damaged = true;
            self.outcome.damages += 1;
            let path = path.clone();
            self.say(|| format!("rot: node{n} {path} at byte {at}"));
        }
    }

    /// An operator restarts nodes that say that they are read-only, after a while.
    pub fn watch_over(&mut self) {
        for n in 0..self.nodes.len() {
            if self.is_read_only(n) && self.rng.chance(0.05) {
                self.outcome.read_only += 1;
                self.say(|| format!("node{n} is read-only"));
                match self.rng.chance(0.5) {
                    true => self.begin_stop(n),
                    false => self.crash_soon(n),
                }
            }
        }
    }

    /// Ends all faults; everything that can come back does.
    pub fn heal(&mut self) {
        self.phase = Phase::Healed;
        self.say(|| "healed".into());
        let late = self.faults.late;
        self.faults = Faults { late, ..Faults::default() };
        self.cuts.clear();
        self.slow.clear();
        for n in 0..self.nodes.len() {
            self.nodes[n].is_full_until = 0;
            let faults = self.disk_faults(n);
            let node = &mut self.nodes[n];
            (node.paused_until, node.disk_stands_until, node.disk.faults) = (self.now, self.now, faults);
            node.is_off_until = 0;
            if let Some(r) = &mut node.running {
                r.effects_left = None;
            }
            self.wake(n);
            let node = &mut self.nodes[n];
            let is_away = std::mem::take(&mut node.is_store_away);
            if self.plan.coordination != Coordination::Etcd && (is_away || node.running.is_some()) {
                let life = node.life;
                self.queue.put(self.now, Happening::Look { node: n, life });
            }
        }
        if self.plan.coordination == Coordination::File {
            self.spread_file(10 * MS);
        }
        self.store_wakes();
        if self.plan.coordination == Coordination::Store {
            for key in self.meta.keys() {
                if self.meta.restore_replicas(key, self.plan.replicas) {
                    self.changed(key);
                }
            }
        }
    }
}
