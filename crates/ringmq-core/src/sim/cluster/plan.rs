//! Plan of one run: the number of nodes, the source of their metadata, the faults and their frequency. A seed draws it; single faults
//! can be taken away again, which is how a failing run is made smaller.

use crate::base::Rng;
use crate::shard::LENT_MIN;

/// Source of the nodes' metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coordination {
    /// A single node that leads everything.
    Alone,
    /// A test double of a metadata store, its leases and its controller: it elects and removes any node at any time, as a fault demands.
    Store,
    /// The real agents and the real controller, over an etcd in memory.
    Etcd,
    /// A file on each node, changed by an operator.
    File,
}

/// Probabilities that an NSQ client, or an operator, comes to any node, and not to one that leads. No faults by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Strays {
    pub publishers: f64,
    /// Probability for all other NSQ clients.
    pub consumers: f64,
    /// Probability for a request of an operator.
    pub operators: f64,
    /// Probability that an NSQ client names no partition: it publishes to any and consumes all, whoever leads them.
    pub all_partitions: f64,
}

/// Faults of the metadata store and of the way to it. Unless stated otherwise: a probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreFaults {
    /// A watch event comes late, comes twice, or does not come before the next look at the whole.
    pub watch_late: f64,
    pub watch_twice: f64,
    pub watch_compacted: f64,
    /// Probability per request of an agent that it is lost; `request_late`: that it is carried out long after the agent has given it
    /// up.
    pub request_lost: f64,
    pub request_late: f64,
    /// Probability per request that was carried out that its answer is lost.
    pub answer_lost: f64,
    /// Probability per second that the store does nothing for up to several leases. Its leases go on, begin anew, or end all at once.
    pub sleep: f64,
    /// Probability per second that a topic is created or deleted. No fault by itself.
    pub topics: f64,
    /// Rate per second at which some node measures what is published to it, and tells the controller. No fault by itself.
    pub loads: f64,
    /// Rate per second of requests of an operator that moves replicas and leaders, or changes the number of a topic's replicas. No fault
    /// by itself.
    pub moves: f64,
}

/// Faults that destroy durable data of one node, and rot that destroys nothing. Unless stated otherwise: probability per write.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Damages {
    /// Rate of rotten bits, per second.
    pub rot: f64,
    pub lost_write: f64,
    pub misdirected_write: f64,
    /// Probability that one of two copies of a block rots before a startup of any node, or before a look at its disk. Nothing is lost.
    pub copies: f64,
}

impl Damages {
    /// Damages without a loss: another copy has the bytes.
    fn of_copies(self) -> Damages {
        Damages { copies: self.copies, ..Damages::default() }
    }
}

/// Memory of nodes. Probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Probability that a node, in one life, receives peers' payloads in place already from few missing bytes on.
    pub in_place: f64,
    /// Probability per piece that a node receives straight to its final place, and again for each part of it that came, that the
    /// connection is lost before the rest comes.
    pub lent_cut: f64,
    /// Probability that a node has little memory for caches, windows, publishes that wait and open messages, in a life of it. No fault by
    /// itself.
    pub small: f64,
    /// Probability that an NSQ client reads an ephemeral channel, of which nodes keep few messages. No fault by itself.
    pub ephemeral: f64,
}

/// Faults. Unless stated otherwise: rate in the whole cluster, per second of simulated time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// A node loses power or is killed, at a random effect.
    pub crash: f64,
    /// A node is stopped as an operator does.
    pub stop: f64,
    /// Probability that a recovery is interrupted, for each attempt.
    pub recovery_crash: f64,
    /// A node stands still for up to several leases.
    pub pause: f64,
    /// A node's wall clock jumps.
    pub clock_jump: f64,
    /// Two nodes, or one and all others, do not hear each other for a while.
    pub partition: f64,
    /// The same in one direction.
    pub one_way: f64,
    /// A connection is lost.
    pub reset: f64,
    /// Slow link from a node to another, for a while.
    pub slow_link: f64,
    /// A node does not reach the metadata store for a while.
    pub store_away: f64,
    pub store: StoreFaults,
    /// Probability that another leader is named.
    pub leader_move: f64,
    /// A leader is asked to hand over, as for a drain. No fault by itself.
    pub hand_over: f64,
    /// A replica is taken away or added; with an etcd: a node is drained, or is drained no more.
    pub membership: f64,
    /// A node's disk completes nothing for a while.
    pub slow_disk: f64,
    /// Probability per operation of the disk.
    pub late: f64,
    pub read_error: f64,
    pub write_error: f64,
    pub sync_error: f64,
    pub short_write: f64,
    pub no_space: f64,
    /// Probability per journal write that it fails after it was issued, and may have been written or not.
    pub journal_error: f64,
    pub damages: Damages,
    /// Probability that a node's disk often fails writes for a while after a startup, when replicas change their roles.
    pub shaky_start: f64,
    /// Power loss of all nodes at once, under writes; they come back one by one, one of them late. The node that may be damaged comes
    /// back with rot in its journal now and then.
    pub all_down: f64,
    /// A node reaches neither the metadata store nor one, or all, other nodes for a while: clients still reach it.
    pub cut_off: f64,
    /// Probability per removal of files that the node loses power, or is killed, about then.
    pub crash_at_removal: f64,
    pub memory: Memory,
    /// A node's disk has no room for a while, or all of them at once: channels drain meanwhile, and logs empty.
    pub full_disk: f64,
    /// An operator pauses a channel at the partition's leader, lets it go on, empties or deletes it. No fault by itself.
    pub operator: f64,
    /// Probability per short-lived state of a replica that its node's disk stands still in it, and meanwhile another leader is named,
    /// the replica is taken away, or a write of its journal fails.
    pub role_change: f64,
    /// Clients defer publishes, and put messages off for longer than the message timeout.
    pub put_off: f64,
    /// Probability of losses: after the other faults all in-sync replicas of a partition are away for long, and an operator continues
    /// with one that was left behind; its missing messages are given up. Also the probability that another partition follows.
    pub losses: f64,
    pub strays: Strays,
}

/// Faults that came later than others: a seed draws them separately, so that the rest of its plan does not depend on them.
const APART: &[&str] = &["all_down", "cut_off", "crash_at_removal", "in_place"];

/// A fault's name, how likely a seed has it, and the most of it.
type Field = (&'static str, f64, f64, fn(&mut Faults) -> &mut f64);

pub const FIELDS: &[Field] = &[
    ("crash", 0.5, 1.5, |f| &mut f.crash),
    ("stop", 0.2, 0.4, |f| &mut f.stop),
    ("recovery_crash", 0.3, 0.5, |f| &mut f.recovery_crash),
    ("pause", 0.3, 0.6, |f| &mut f.pause),
    ("clock_jump", 0.2, 0.8, |f| &mut f.clock_jump),
    ("partition", 0.35, 0.8, |f| &mut f.partition),
    ("one_way", 0.25, 0.6, |f| &mut f.one_way),
    ("reset", 0.4, 4.0, |f| &mut f.reset),
    ("slow_link", 0.25, 0.8, |f| &mut f.slow_link),
    ("store_away", 0.3, 0.5, |f| &mut f.store_away),
    ("watch_late", 0.4, 0.4, |f| &mut f.store.watch_late),
    ("watch_twice", 0.4, 0.4, |f| &mut f.store.watch_twice),
    ("watch_compacted", 0.4, 0.4, |f| &mut f.store.watch_compacted),
    ("leader_move", 0.4, 1.2, |f| &mut f.leader_move),
    ("membership", 0.35, 1.2, |f| &mut f.membership),
    ("slow_disk", 0.3, 0.6, |f| &mut f.slow_disk),
    ("late", 0.6, 0.3, |f| &mut f.late),
    ("read_error", 0.15, 0.01, |f| &mut f.read_error),
    ("write_error", 0.12, 0.001, |f| &mut f.write_error),
    ("sync_error", 0.12, 0.002, |f| &mut f.sync_error),
    ("short_write", 0.12, 0.001, |f| &mut f.short_write),
    ("no_space", 0.15, 0.02, |f| &mut f.no_space),
    ("journal_error", 0.15, 0.002, |f| &mut f.journal_error),
    ("rot", 0.12, 1.5, |f| &mut f.damages.rot),
    ("lost_write", 0.08, 0.002, |f| &mut f.damages.lost_write),
    ("misdirected_write", 0.08, 0.001, |f| &mut f.damages.misdirected_write),
    ("shaky_start", 0.12, 0.4, |f| &mut f.shaky_start),
    ("all_down", 0.2, 2.0, |f| &mut f.all_down),
    ("cut_off", 0.2, 1.2, |f| &mut f.cut_off),
    ("crash_at_removal", 0.2, 0.3, |f| &mut f.crash_at_removal),
    ("in_place", 0.85, 1.0, |f| &mut f.memory.in_place),
    ("lent_cut", 0.35, 0.06, |f| &mut f.memory.lent_cut),
    ("full_disk", 0.15, 0.8, |f| &mut f.full_disk),
    ("operator", 0.3, 12.0, |f| &mut f.operator),
    ("role_change", 0.2, 0.6, |f| &mut f.role_change),
    ("put_off", 0.4, 1.0, |f| &mut f.put_off),
    ("stray", 0.7, 1.0, |f| &mut f.strays.publishers),
    ("relayed", 0.7, 1.0, |f| &mut f.strays.consumers),
    ("hand_over", 0.3, 2.0, |f| &mut f.hand_over),
    ("losses", 0.3, 1.0, |f| &mut f.losses),
    ("operator_elsewhere", 0.6, 1.0, |f| &mut f.strays.operators),
    ("request_lost", 0.4, 0.3, |f| &mut f.store.request_lost),
    ("request_late", 0.3, 0.1, |f| &mut f.store.request_late),
    ("answer_lost", 0.4, 0.3, |f| &mut f.store.answer_lost),
    ("store_sleep", 0.3, 0.5, |f| &mut f.store.sleep),
    ("topics", 0.5, 3.0, |f| &mut f.store.topics),
    ("loads", 0.4, 8.0, |f| &mut f.store.loads),
    ("moves", 0.4, 8.0, |f| &mut f.store.moves),
    ("small_memory", 0.4, 1.0, |f| &mut f.memory.small),
    ("ephemeral", 0.4, 0.4, |f| &mut f.memory.ephemeral),
    ("rot_of_copies", 0.4, 0.8, |f| &mut f.damages.copies),
    ("all_partitions", 0.5, 2.0, |f| &mut f.strays.all_partitions),
];

/// Faults that only an etcd has: a seed draws them apart.
const OF_ETCD: &[&str] = &["request_lost", "request_late", "answer_lost", "store_sleep", "topics"];

/// Later ones: each is drawn for itself.
const OF_ETCD_LATER: &[&str] = &["loads", "moves"];

impl Faults {
    /// The names of those that there are.
    pub fn names(mut self) -> Vec<&'static str> {
        FIELDS.iter().filter(|(.., field)| *field(&mut self) > 0.0).map(|(name, ..)| *name).collect()
    }

    /// Removes a fault; `false` for an unknown name.
    pub fn remove(&mut self, name: &str) -> bool {
        let found = FIELDS.iter().find(|(known, ..)| *known == name);
        found.map(|(.., field)| *field(self) = 0.0).is_some()
    }

    /// True if faults destroy durable data of one node: the others must keep it.
    pub fn damage(&self) -> bool {
        self.damages != self.damages.of_copies()
    }

    /// Faults that go on while in-sync replicas are away: those in which a node that is there stays there.
    pub fn beside_losses(self) -> Faults {
        let Faults { recovery_crash, reset, slow_link, late, memory, strays, losses, .. } = self;
        // A late watch of the controller may outlast the faults: the budget of an election has no room for it.
        let store = StoreFaults { sleep: 0.0, topics: 0.0, watch_late: 0.0, loads: 0.0, moves: 0.0, ..self.store };
        let crash = self.crash.min(0.3);
        Faults { crash, recovery_crash, reset, slow_link, late, memory, strays, losses, store, ..Faults::default() }
    }

    /// A core may become read-only, or a channel hold, without a crash.
    pub fn fail_disks(&self) -> bool {
        self.write_error + self.sync_error + self.short_write + self.journal_error + self.shaky_start + self.role_change > 0.0
            || self.damage()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub seed: u64,
    pub coordination: Coordination,
    pub nodes: usize,
    /// Replicas of each partition, limited by the number of nodes.
    pub replicas: usize,
    pub min_isr: usize,
    pub cores_max: u64,
    /// True if all nodes have the same number of cores, so that they relay subscriptions of each other's clients.
    pub is_even: bool,
    pub topics: usize,
    pub partitions_max: u64,
    /// Clients at a time, and how many of them speak the native protocol.
    pub clients: usize,
    pub native: f64,
    /// Duration of faults in simulated milliseconds.
    pub span_ms: u64,
    /// Runs of so many bytes are lent to native clients.
    pub lent_min: usize,
    pub faults: Faults,
}

impl Plan {
    /// `nodes`: 0 draws the number.
    pub fn draw(seed: u64, nodes: usize, coordination: Option<Coordination>) -> Plan {
        let mut rng = Rng::new(seed ^ 0x9151);
        let drawn = [1, 2, 3, 3, 3, 3, 4, 5][rng.below(8) as usize];
        let nodes = if nodes == 0 { drawn } else { nodes };
        let by = if rng.chance(0.2) { Coordination::File } else { Coordination::Store };
        let coordination = coordination.unwrap_or(by);
        let nodes = if coordination == Coordination::Alone { 1 } else { nodes };
        let replicas = if rng.chance(0.75) { nodes } else { 1 + rng.below(nodes as u64) as usize };
        let majority = replicas / 2 + 1;
        let min_isr = if rng.chance(0.75) { majority } else { 1 + rng.below(replicas as u64) as usize };
        let mut faults = Faults::default();
        let is_calm = rng.chance(0.05);
        let (mut shaky, mut apart) = (Rng::new(seed ^ 0x5a4e), Rng::new(seed ^ 0xa9a7));
        let (mut lent, mut full, mut operator) = (Rng::new(seed ^ 0x1e47), Rng::new(seed ^ 0xf011), Rng::new(seed ^ 0x09e4));
        let (mut roles, mut put_off, mut stray) = (Rng::new(seed ^ 0x401e), Rng::new(seed ^ 0xde1a), Rng::new(seed ^ 0x57a9));
        let mut hand_over = Rng::new(seed ^ 0x4a2d);
        let (mut etcd, mut relayed) = (Rng::new(seed ^ 0xe7cd), Rng::new(seed ^ 0x4e1a));
        let (mut elsewhere, mut losses) = (Rng::new(seed ^ 0xe15e), Rng::new(seed ^ 0x1055));
        let (mut small, mut copies) = (Rng::new(seed ^ 0x53a1), Rng::new(seed ^ 0xc093));
        let mut ephemeral = Rng::new(seed ^ 0xe9e3);
        let (mut spread, mut balance) = (Rng::new(seed ^ 0x59ea), Rng::new(seed ^ 0xba1a));
        for (name, likely, most, field) in FIELDS {
            let rng = match *name {
                "shaky_start" => &mut shaky,
                "lent_cut" => &mut lent,
                "full_disk" => &mut full,
                "operator" => &mut operator,
                "role_change" => &mut roles,
                "put_off" => &mut put_off,
                "stray" => &mut stray,
                "hand_over" => &mut hand_over,
                "relayed" => &mut relayed,
                "operator_elsewhere" => &mut elsewhere,
                "losses" => &mut losses,
                "all_partitions" => &mut spread,
                "small_memory" => &mut small,
                "rot_of_copies" => &mut copies,
                "ephemeral" => &mut ephemeral,
                name if APART.contains(&name) => &mut apart,
                name if OF_ETCD.contains(&name) => &mut etcd,
                name if OF_ETCD_LATER.contains(&name) => &mut balance,
                _ => &mut rng,
            };
            // drawn in any case, so that a fault that is not there changes no other
            let (has_it, much) = (rng.chance(*likely), rng.below(1000) as f64 / 1000.0);
            if has_it && !is_calm {
                *field(&mut faults) = most * (0.05 + 0.95 * much * much);
            }
        }
        let mut plan = Plan {
            seed,
            coordination,
            nodes,
            replicas,
            min_isr,
            cores_max: 1 + rng.below(3),
            is_even: relayed.chance(0.8),
            topics: 1 + rng.below(2) as usize,
            partitions_max: 1 + rng.below(3),
            clients: 3 + rng.below(6) as usize,
            native: [0.0, 0.4, 0.8][rng.below(3) as usize],
            span_ms: 2_000 + rng.below(7_000),
            lent_min: [256, LENT_MIN][apart.below(2) as usize],
            faults,
        };
        plan.keep_survivable();
        plan
    }

    /// Whether consumers come to any node, and each node relays.
    pub fn relays(&self) -> bool {
        self.is_even && self.faults.strays.consumers > 0.0
    }

    /// Fewest replicas that an operator asks for. A single one may be on the damaged node, which knows of no lost write. A topic with
    /// two has a `min_isr` of two.
    pub fn replicas_least(&self) -> u8 {
        if self.faults.damage() { 2 } else { 1 }
    }

    /// Takes away the faults that this cluster cannot survive: with one node, or with an ISR that may be one node, no other node has the
    /// data that a damaged disk lost.
    pub fn keep_survivable(&mut self) {
        if self.replicas < 3 || self.min_isr < 2 || self.coordination == Coordination::File {
            self.faults.damages = self.faults.damages.of_copies();
        }
        if self.faults.clock_jump > 0.0 {
            // due times are by the leader's clock
            self.faults.put_off = 0.0;
        }
        if self.nodes == 1 {
            let f = &mut self.faults;
            (f.partition, f.one_way, f.slow_link, f.leader_move, f.membership) = (0.0, 0.0, 0.0, 0.0, 0.0);
            (f.cut_off, f.hand_over) = (0.0, 0.0);
        }
        if !self.relays() {
            self.faults.strays.all_partitions = 0.0;
        }
        if self.replicas < 2 || self.faults.damage() {
            // No replica would be left behind, or only the suspect one.
            self.faults.losses = 0.0;
        }
        let f = &mut self.faults;
        match self.coordination {
            // The controller alone names leaders.
            Coordination::Etcd => (f.leader_move, f.role_change, f.hand_over) = (0.0, 0.0, 0.0),
            Coordination::Store => {
                let StoreFaults { watch_late, watch_twice, watch_compacted, .. } = f.store;
                f.store = StoreFaults { watch_late, watch_twice, watch_compacted, ..StoreFaults::default() };
            }
            Coordination::File | Coordination::Alone => {
                (f.store_away, f.store, f.membership) = (0.0, StoreFaults::default(), 0.0);
                (f.cut_off, f.role_change, f.hand_over, f.losses) = (0.0, 0.0, 0.0, 0.0);
            }
        }
        if self.coordination == Coordination::Alone {
            // its topics are its own; the node simulator has an operator
            (self.faults.leader_move, self.faults.operator) = (0.0, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_drawn_by_some_seed_and_can_be_taken_away() {
        let etcd = |seed| Plan::draw(seed, 0, Some(Coordination::Etcd));
        let plans: Vec<Plan> = (0..300).flat_map(|seed| [Plan::draw(seed, 0, None), etcd(seed)]).collect();
        for (name, ..) in FIELDS {
            let with = plans.iter().find(|p| p.faults.names().contains(name));
            let mut faults = with.unwrap_or_else(|| panic!("no seed has {name}")).faults;
            assert!(faults.remove(name) && !faults.names().contains(name));
        }
        assert!(plans.iter().any(|p| p.faults == Faults::default()) && !Faults::default().remove("weather"));
        assert_eq!(Plan::draw(7, 0, None), Plan::draw(7, 0, None));
    }

    #[test]
    fn what_one_copy_cannot_survive_is_not_drawn() {
        for plan in (0..500).map(|seed| Plan::draw(seed, 0, None)).filter(|p| p.faults.damage()) {
            assert!(plan.min_isr >= 2 && plan.replicas >= 3, "{plan:?}");
        }
    }
}
