//! Rot on a running node: it is found, mended from a peer, and never delivered meanwhile.

use super::*;
use crate::format::snapshot::Doubt;
use crate::seam::outcome::AcceptLossError;
use crate::shard::replication::loss::accept;

/// Three nodes with several segments each, whose last segment is long behind `rot_at`; nothing of the log is in a cache.
fn stored() -> (Net, ConnId, Vec<String>) {
    let settings = Settings {
        max_bytes_per_file: 64 * 1024,
        retention_ms: 3_600_000,
        tail_cache_bytes: 0,
        read_cache_bytes: 256 * 1024,
        scrub_bytes_per_second: 0,
        flush_bytes: 1,
        ..Settings::default()
    };
    let mut net = Net::with(1, 1, settings);
    let p = net.connect(0);
    let bodies: Vec<String> = (0..120).map(|n| format!("{n}-{}", "x".repeat(2000))).collect();
    for body in &bodies {
        net.publish(p, body);
    }
    assert_eq!(net.take(p).len(), 120);
    net.pass_time(Duration::from_secs(2));
    (net, p, bodies)
}

impl Net {
    fn replication_stats(&self, node: usize) -> Option<crate::metrics::stats::ReplicationStats> {
        let stats = self.nodes[node].shards[0].stats(Ticks(0), None, None, false);
        stats.partitions.into_iter().find_map(|p| p.replication)
    }

    fn segment(&self, node: usize, index: usize) -> String {
        let mut paths: Vec<String> =
            self.nodes[node].disk.paths().filter(|p| p.ends_with(".segment")).map(String::from).collect();
        paths.sort();
        paths.swap_remove(index)
    }

    fn rot(&mut self, node: usize, index: usize) {
        let path = self.segment(node, index);
        self.nodes[node].disk.flip(&path, 4096 + 10_000, 3);
    }

    fn damage(&self, node: usize) -> bool {
        let e = &self.nodes[node].shards[0].engine;
        let (idx, _) = e.core.partitions.iter().next().expect("the node has the partition");
        e.core.store.log_view(idx).damage().is_some()
    }

    fn segments(&self, node: usize) -> Vec<Vec<u8>> {
        let mut paths: Vec<&str> = self.nodes[node].disk.paths().filter(|p| p.ends_with(".segment")).collect();
        paths.sort();
        paths.iter().map(|p| self.nodes[node].disk.contents_of(p)[4096..].to_vec()).collect()
    }

    fn accept_loss(&mut self, node: usize, loss: Option<&str>) -> Result<String, AcceptLossError> {
        let (now, topic) = (self.now, self.topic.clone());
        let engine = &mut self.nodes[node].shards[0].engine;
        let accepted = accept(&mut engine.core, &topic, PartitionId(0), loss);
        engine.in_cluster(now, |_, _| ());
        accepted.map(|accepted| accepted.what)
    }

    /// Reads all of the channel from the first message on.
    fn consume(&mut self, node: usize, channel: &str, wanted: &[String]) {
        let (c, mut got) = self.subscribe(node, channel, 10);
        let mut found: Vec<String> = vec![];
        for _ in 0..100 {
            found.extend(bodies(&got).into_iter().map(String::from));
            self.finish(c, &got);
            self.pass_time(Duration::from_millis(50));
            got = self.take(c);
            if got.is_empty() && found.len() >= wanted.len() {
                break;
            }
        }
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_leader_s_reader_waits_at_damage_until_a_follower_has_mended_it() {
    let (mut net, _, wanted) = stored();
    net.rot(0, 1);
    let sound = net.segments(1);
    assert_ne!(net.segments(0), sound);
    let before = net.state(0);
    net.consume(0, "ch", &wanted);
    assert_eq!((net.segments(0), net.state(0)), (sound, before), "the same bytes, and it led all the while");
    assert!(!net.damage(0));
}

/// Whom it would ask is away: nothing is passed over, an operator hears of it, and it goes on when somebody is back.
#[test]
fn nothing_is_passed_while_nobody_has_it() {
    let (mut net, p, wanted) = stored();
    net.change(0, |m| m.min_isr = 1);
    net.isolate(1, true);
    net.isolate(2, true);
    net.pass_time(Duration::from_secs(6));
    net.rot(0, 1);
    let (c, mut got) = net.subscribe(0, "ch", 200);
    net.pass_time(Duration::from_secs(6));
    got.extend(net.take(c));
    assert!(!got.is_empty() && got.len() < 40, "it holds at the damage: {}", got.len());
    assert!(net.damage(0));
    let stats = net.replication_stats(0).expect("a replica");
    assert!(stats.alarm.as_ref().is_some_and(|a| a.contains("are damaged")), "{:?}", stats.alarm);
    net.publish(p, "more");
    assert_eq!(net.take(p), ["OK"], "it leads, and takes publishes");
    net.isolate(1, false);
    net.pass_time(RECONNECT);
    got.extend(net.take(c));
    assert_eq!(bodies(&got)[..120], wanted.iter().map(String::as_str).collect::<Vec<_>>()[..]);
    let stats = net.replication_stats(0).expect("a replica");
    assert_eq!(stats.alarm, None);
}

/// Readers pass damage only when an operator repeats the loss's name. A replica that still has the bytes mends it.
#[test]
fn damage_is_given_up_by_its_name() {
    let (mut net, ..) = stored();
    net.change(0, |m| m.min_isr = 1);
    net.isolate(1, true);
    net.isolate(2, true);
    net.pass_time(Duration::from_secs(6));
    assert!(matches!(net.accept_loss(0, Some("1-2")), Err(AcceptLossError::Nothing { role: "leader" })));
    net.rot(0, 1);
    let (c, mut got) = net.subscribe(0, "ch", 200);
    net.pass_time(Duration::from_secs(6));
    got.extend(net.take(c));
    let Err(AcceptLossError::NotNamed { name, what }) = net.accept_loss(0, None) else { panic!("it is named first") };
    assert!(what.contains("the damaged messages") && what.contains("(1 messages)"), "{what}");
    assert!(net.accept_loss(0, Some("0-1")).is_err() && net.accept_loss(1, Some(&name)).is_err());
    assert!(net.damage(0) && got.len() < 40);
    assert!(net.accept_loss(0, Some(&name)).is_ok());
    net.pass_time(Duration::from_millis(100));
    got.extend(net.take(c));
    assert_eq!((got.len(), net.accept_loss(0, Some(&name)).is_err()), (119, true));
    net.isolate(1, false);
    net.pass_time(RECONNECT);
    assert_eq!((net.damage(0), net.segments(0)), (false, net.segments(1)));
}

#[test]
fn a_follower_s_scrubber_finds_it_and_the_leader_has_it() {
    let (mut net, p, wanted) = stored();
    // A startup looks through all of it.
    net.kill(2);
    net.rot(2, 1);
    net.settings = Arc::new(Settings { scrub_bytes_per_second: 64 << 20, ..(*net.settings).clone() });
    net.restart(2);
    net.pass_time(RECONNECT);
    assert_eq!(net.segments(2), net.segments(0));
    assert!(!net.damage(2));
    net.publish(p, "more");
    assert_eq!(net.take(p), ["OK"]);
    // And leads with all of it.
    net.elect(0, 2);
    net.pass_time(Duration::from_secs(1));
    let wanted: Vec<String> = wanted.into_iter().chain(["more".into()]).collect();
    net.consume(2, "ch", &wanted);
}

/// A node catches up from a leader that has damage in the needed bytes.
#[test]
fn catch_up_goes_on_when_the_leader_s_damage_is_mended() {
    let (mut net, _, _) = stored();
    net.change(0, |m| m.isr.truncate(2));
    net.kill(2);
    net.nodes[2].disk = SimDisk::new(77);
    net.rot(0, 1);
    net.restart(2);
    net.pass_time(RECONNECT);
    assert_eq!((net.segments(0), net.durable(2)), (net.segments(1), 120));
    assert_eq!(net.metadata[0].isr.len(), 3);
}

/// The word is in the journal: no snapshot is taken between it and the end of the process.
#[test]
fn that_a_replica_is_suspect_survives_a_kill_and_ends_when_it_was_compared() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    let idx = net.index(0);
    let of_disk = |net: &Net| {
        let mut disk = net.nodes[0].disk.clone();
        disk.crash();
        recover(&mut disk, &net.recover_options(0)).expect("a disk without faults").partitions.remove(0).damage.doubt()
    };
    for (is_suspect, expected) in [(true, Doubt::Lost), (false, Doubt::None), (true, Doubt::Lost)] {
        let store = &mut net.nodes[0].shards[0].engine.core.store;
        if is_suspect {
            store.mark_suspect(idx)
        } else {
            store.clear_suspect(idx)
        }
        net.publish(p, "1");
        assert_eq!(of_disk(&net), expected);
    }
    net.kill(0);
    net.restart(0);
    assert_eq!(of_disk(&net), Doubt::Lost, "a startup keeps it");
    net.change(0, |m| (m.leader, m.epoch) = (Some(id_of_node(1)), Epoch(m.epoch.0 + 1)));
    net.pass_time(RECONNECT);
    assert_eq!(of_disk(&net), Doubt::None, "it follows, and has all that its leader has");
    let told: Vec<bool> = net.doubts.iter().filter(|(node, _)| *node == 0).map(|(_, is_suspect)| *is_suspect).collect();
    assert_eq!(told, [true, false, true, true, false], "the coordinator heard of each change, and at the startup");
}

/// A suspect follower has its leader's channels once it follows. A replica that led with what damage had left gave that to all the others:
/// its channels come back from nobody, so the others are marked as it is, whoever leads next, until an operator accepts the loss.
#[test]
fn lost_channels_come_from_a_leader_unless_the_replica_has_led_without_them() {
    for has_led in [false, true] {
        let (mut net, ..) = stored();
        net.subscribe(0, "ch", 1);
        net.pass_time(Duration::from_secs(2));
        let lost_on = |net: &Net, i: usize| net.nodes[i].shards[0].engine.core.store.channels_lost(net.index(i));
        let lost = |net: &Net| lost_on(net, 1);
        assert_eq!((lost(&net), net.state(1)), (0, State::Aligned));
        net.kill(1);
        let paths: Vec<String> = net.nodes[1].disk.paths().filter(|p| p.contains("/state.")).map(String::from).collect();
        paths.iter().for_each(|path| net.nodes[1].disk.scribble(path, 0, &[0x5a; crate::base::BLOCK]));
        if has_led {
            net.kill(0);
            net.kill(2);
            net.change(0, |m| (m.isr, m.min_isr) = (vec![id_of_node(1)], 1));
        }
        net.restart(1);
        assert!(lost(&net) > 0);
        if has_led {
            net.elect(0, 1);
            net.pass_time(Duration::from_secs(1));
            let Err(AcceptLossError::NotNamed { name, .. }) = net.accept_loss(1, None) else { panic!("it is named first") };
            assert!(net.accept_loss(1, Some(&name)).is_ok());
            net.pass_time(Duration::from_secs(1));
            assert_eq!(net.state(1), State::Open);
            // The topic's first channel would begin at the oldest message anyway.
            net.subscribe(1, "first", 0);
            net.restart(0);
            net.restart(2);
            net.pass_time(RECONNECT);
            net.pass_time(Duration::from_secs(6));
            net.elect(0, 0);
        }
        net.pass_time(RECONNECT);
        net.pass_time(Duration::from_secs(6));
        assert_eq!(net.state(1), State::Aligned);
        assert_eq!([0, 1, 2].map(|i| lost_on(&net, i) > 0), [has_led; 3]);
        let (_, got) = net.subscribe(0, "late", 99);
        assert_eq!(!got.is_empty(), has_led, "a channel that may have been lost begins at the oldest message: {got:?}");
        if has_led {
            // The mark is durable.
            net.kill(2);
            net.restart(2);
            assert!(lost_on(&net, 2) > 0);
            net.pass_time(RECONNECT);
            let mark = lost_on(&net, 0);
            assert!(net.accept_loss(0, Some(&format!("channels-{mark}"))).is_ok(), "an operator lets go of it");
            net.pass_time(Duration::from_secs(1));
            assert_eq!([0, 1, 2].map(|i| lost_on(&net, i)), [0; 3]);
            let (_, got) = net.subscribe(0, "later", 99);
            assert!(got.is_empty(), "{got:?}");
        }
    }
}
