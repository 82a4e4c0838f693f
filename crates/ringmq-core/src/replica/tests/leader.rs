//! Writes of an open leader: the window, commits, who counts, who is removed, what ends as unknown.

use super::rig::{Rig, log_of, n};
use crate::base::{Epoch, Position, Ticks};
use crate::codec::peer::message::{Ack, Align, Aligned, Body, Message};
use crate::replica::model::node::NodeOutput;
use crate::replica::states::State;
use crate::replica::{Effect, Event, LogView, ReplicaError, ReplicaOptions};
use crate::{
    codec::peer::error::{PeerError, Retry},
    seam::{membership::Membership, outcome::ClientCode},
};
use std::time::Duration;

fn publish(rig: &mut Rig, count: usize) {
    let epoch = rig.node.member.epoch().expect("it leads").0;
    rig.append(epoch, count);
    rig.give(Event::Sealed);
}

fn proposals(rig: &mut Rig) -> Vec<(u64, Vec<u8>)> {
    let isr = |nodes: Vec<crate::base::NodeId>| nodes.iter().map(|n| n.0[0]).collect();
    rig.effects()
        .into_iter()
        .filter_map(|e| if let Effect::Propose { version, isr: i } = e { Some((version, isr(i))) } else { None })
        .collect()
}

#[test]
fn a_batch_is_committed_when_all_have_it_durable() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    let before = rig.end();
    publish(&mut rig, 1);
    rig.ack(2, 5, session);
    assert_eq!(rig.node.member.committed(), before, "not durable here");
    rig.settle();
    assert_eq!(rig.node.member.committed(), rig.end());
    publish(&mut rig, 1);
    rig.settle();
    let end = rig.end();
    assert!(rig.node.member.committed().offset < end.offset, "not durable there");
    rig.ack(2, 5, session);
    assert_eq!(rig.node.member.committed(), end);
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_counts_for_nothing() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    let before = rig.node.member.committed();
    rig.append(5, 1);
    rig.ack(2, 5, session);
    rig.settle();
    assert_eq!(rig.node.member.committed(), before);
    rig.ack(2, 4, session);
    rig.ack(2, 5, session + 1);
    assert_eq!(rig.node.member.committed(), before, "other epochs and sessions");
}

#[test]
fn batches_go_out_before_they_are_durable_and_within_the_window() {
    let mut rig = Rig::new();
    let options = ReplicaOptions { window_bytes: 400, ..Default::default() };
    rig.node = crate::replica::model::node::Node::new(n(1), options);
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    rig.append(1, 1);
    rig.settle();
    let session = rig.lead(5);
    let start = rig.end();
    publish(&mut rig, 10);
    let sent = |rig: &mut Rig| -> i64 {
        let appends =
            rig.said(2).into_iter().filter_map(|m| if let Body::Append(a) = m.body { Some(a.batches.len()) } else { None });
        appends.sum::<usize>() as i64
    };
    let batch = (rig.end().offset - start.offset) / 10;
    let first = sent(&mut rig);
    assert!(first >= batch && first <= 400 && first % batch == 0, "{first} of {batch}");
    rig.settle();
    let acked = rig.node.log.batches.iter().map(|b| b.header.end()).find(|e| e.offset == start.offset + first).unwrap();
    rig.hear(2, 5, session, Body::Ack(Ack { durable: acked }));
    assert_eq!(sent(&mut rig), first, "as much again");
}

/// A follower that has nothing of a log, which is in memory or not any more; a batch is read at a time.
#[test]
fn who_catches_up_gets_no_more_than_the_rate() {
    [false, true].into_iter().for_each(catches_up_at_the_rate);
}

fn catches_up_at_the_rate(is_in_memory: bool) {
    let rate = 2_000;
    let mut rig = Rig::new();
    let options = ReplicaOptions { catch_up_bytes_per_second: rate, ..Default::default() };
    rig.node = crate::replica::model::node::Node::new(n(1), options);
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    rig.append(1, 200);
    rig.settle();
    let all = rig.end().offset;
    assert!(all as u64 > 10 * rate, "{all}");
    rig.node.log.memory_from = if is_in_memory { 0 } else { all };
    rig.lead(5);
    let session = rig.session(3);
    let standing = Rig::standing(&log_of(&[]), Position::START, false);
    rig.hear(3, 5, session, Body::Standing(standing));
    rig.hear(3, 5, session, Body::Aligned(Aligned { at: Position::START }));
    let (mut sent, mut seconds) = (0, 0.0);
    for step in 1..=500 {
        let reads = rig.out.iter().position(|o| matches!(o, NodeOutput::Read(to, ..) if *to == n(3)));
        if let Some(NodeOutput::Read(to, session, from, bytes_max)) = reads.and_then(|at| rig.out.remove(at)) {
            assert!(bytes_max as u64 <= rate, "{bytes_max} bytes in one go");
            let (end, batches) = rig.node.log.read(from.offset, 1);
            rig.give(Event::LogRead { to, session, from, end, result: Ok(batches.expect("it is there")) });
            rig.hear(3, 5, session.0, Body::Ack(Ack { durable: end }));
        }
        let append = |m: Message| if let Body::Append(a) = m.body { Some(a.batches.len() as i64) } else { None };
        sent += rig.said(3).into_iter().filter_map(append).sum::<i64>();
        rig.wait(Duration::from_millis(10));
        seconds = step as f64 / 100.0;
        // data of the last second may be saved, and the last batch is whole
        assert!(sent as f64 <= rate as f64 * (seconds + 1.0) + 500.0, "{sent} bytes in {seconds} s");
    }
    assert!(sent as f64 >= rate as f64 * seconds * 0.8, "{sent} bytes in {seconds} s");
}

/// A write waits for the follower: batches that it lacks and that are in memory come at once.
#[test]
fn a_replica_in_sync_catches_up_at_no_rate() {
    let mut rig = Rig::new();
    let options = ReplicaOptions { catch_up_bytes_per_second: 1, ..Default::default() };
    rig.node = crate::replica::model::node::Node::new(n(1), options);
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    rig.append(1, 20);
    rig.settle();
    rig.node.log.memory_from = 0;
    rig.metadata(5, 1, &[1, 2]);
    rig.settle();
    let session = rig.session(2);
    rig.hear(2, 5, session, Body::Standing(Rig::standing(&log_of(&[]), Position::START, false)));
    rig.hear(2, 5, session, Body::Aligned(Aligned { at: Position::START }));
    let append = |m: Message| if let Body::Append(a) = m.body { Some(a.batches.len() as i64) } else { None };
    assert_eq!(rig.said(2).into_iter().filter_map(append).sum::<i64>(), rig.end().offset);
}

#[test]
fn a_silent_follower_hears_the_rest_again_in_a_new_session_and_none_twice() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    publish(&mut rig, 2);
    rig.settle();
    rig.said(2);
    rig.wait(ReplicaOptions::default().retry);
    let said = rig.said(2).pop().expect("it asks again");
    let next = said.head.session.0;
    assert!(matches!(said.body, Body::Inquire(_)) && next > session);
    // The first of the two had come.
    let mut follower = log_of(&[]);
    rig.node.log.batches[..2].iter().for_each(|b| follower.append(b.clone()));
    rig.hear(2, 5, next, Body::Standing(Rig::standing(&follower, Position::START, false)));
    let Body::Align(Align::Truncate { at, .. }) = rig.last(2) else { panic!("no order") };
    assert_eq!(at, follower.end().at);
    rig.hear(2, 5, next, Body::Aligned(Aligned { at }));
    let said = rig.said(2).into_iter().find_map(|m| if let Body::Append(a) = m.body { Some(a) } else { None });
    let append = said.expect("what is missing comes");
    assert_eq!(append.batches.parts, vec![rig.node.log.batches[2].bytes.clone()]);
}

/// The replica missed that it was removed: for it the leader's session goes on.
#[test]
fn who_is_added_again_within_an_epoch_hears_a_session_that_it_does_not_know() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    (0..5).for_each(|_| rig.wait(ReplicaOptions::default().retry));
    let before = rig.session(3);
    let mut follower = Rig::with_batches(1);
    follower.metadata(5, 2, &[1, 2]);
    follower.inquired(5, before);
    assert!(matches!(follower.last(2), Body::Standing(_)));
    let mut m = rig.membership(5, 1, &[1, 2]);
    m.replicas.retain(|id| *id != n(3));
    rig.give(Event::Metadata(m));
    rig.metadata(5, 1, &[1, 2]);
    rig.wait(ReplicaOptions::default().retry);
    let again = rig.said(3).into_iter().find(|m| matches!(m.body, Body::Inquire(_))).expect("it is asked again");
    follower.inquired(5, again.head.session.0);
    let said = follower.said(2).pop().expect("it answers");
    assert!(matches!(said.body, Body::Standing(_)) && said.head.session == again.head.session);
}

/// The replica's files went meanwhile; the leader learns of both changes at once and cannot know that.
#[test]
fn who_was_removed_and_added_again_is_asked_anew_before_it_joins() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    rig.metadata(5, 1, &[1, 2, 3]);
    rig.effects();
    let removed = |rig: &mut Rig, removals| Membership { removals, ..rig.membership(5, 1, &[1, 3]) };
    // A member that leaves the ISR as this leader wants is in step, and joins at once.
    let m = removed(&mut rig, 0);
    rig.give(Event::Metadata(m));
    rig.ack(2, 5, session);
    assert_eq!(proposals(&mut rig).len(), 1, "it has all that there is");
    let m = removed(&mut rig, 2);
    rig.give(Event::Metadata(m));
    rig.said(2);
    rig.ack(2, 5, session);
    rig.wait(Duration::from_millis(1));
    let again = rig.said(2).pop().expect("it is asked");
    assert!(matches!(again.body, Body::Inquire(_)) && again.head.session.0 > session);
    assert_eq!(proposals(&mut rig), [], "nothing that it acknowledged before counts");
}

#[test]
fn a_lagging_member_is_removed_and_the_write_commits_with_the_rest() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    rig.metadata(5, 1, &[1, 2, 3]);
    publish(&mut rig, 1);
    rig.settle();
    rig.ack(2, 5, session);
    let before = rig.node.member.committed();
    assert!(before.offset < rig.end().offset, "3 does not have it");
    // Node 2 goes on answering.
    for _ in 0..8 {
        rig.wait(Duration::from_millis(450));
        rig.ack(2, 5, session);
    }
    assert_eq!(proposals(&mut rig).first(), Some(&(rig.version, vec![1, 2])));
    assert_eq!(rig.node.member.committed(), before, "the store has not confirmed it");
    rig.metadata(5, 1, &[1, 2]);
    assert_eq!(rig.node.member.committed(), rig.end());
}

#[test]
fn a_write_that_cannot_be_told_to_be_committed_ends_as_unknown() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    publish(&mut rig, 1);
    rig.settle();
    rig.effects();
    let options = ReplicaOptions::default();
    rig.wait(options.follower_limit);
    assert!(proposals(&mut rig).is_empty(), "one alone is fewer than min_isr");
    rig.wait(options.write_limit);
    assert_eq!(rig.state(), State::Closed);
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::AskEpoch { above: Epoch(5) })));
    assert_eq!(rig.node.member.check_write(rig.now), Err(ReplicaError::WriteDisabled));
    assert_eq!(rig.node.member.check_read(rig.now), Ok(()), "what is committed may be read");
    // Too late: only the next epoch decides it.
    let committed = rig.node.member.committed();
    rig.ack(2, 5, session);
    assert_eq!(rig.node.member.committed(), committed);
    let end = rig.end();
    rig.lead(6);
    assert_eq!(rig.node.member.committed(), end, "the next epoch commits it");
}

#[test]
fn an_open_leader_with_nothing_to_commit_waits() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    rig.wait(Duration::from_secs(60));
    rig.wait(Duration::from_secs(60));
    assert_eq!(rig.state(), State::Open);
}

#[test]
fn who_left_is_removed_at_once() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    rig.metadata(5, 1, &[1, 2, 3]);
    rig.hear(2, 5, session, Body::Refused(PeerError::Diverged { offset: 0 }));
    rig.wait(Duration::from_millis(1));
    assert_eq!(proposals(&mut rig), vec![(rig.version, vec![1, 3])]);
}

#[test]
fn who_caught_up_is_proposed_and_counts_from_that_moment() {
    let mut rig = Rig::with_batches(3);
    let two = rig.lead(5);
    // Node 3 is far behind, in files.
    rig.node.log.memory_from = rig.end().offset;
    let session = rig.session(3);
    let theirs = log_of(&[]);
    rig.hear(3, 5, session, Body::Standing(Rig::standing(&theirs, Position::START, false)));
    rig.hear(3, 5, session, Body::Aligned(Aligned { at: Position::START }));
    let Some(NodeOutput::Read(_, _, from, bytes_max)) = rig.out.iter().find(|o| matches!(o, NodeOutput::Read(..))) else {
        panic!("no read")
    };
    let (from, (end, batches)) = (*from, rig.node.log.read(from.offset, *bytes_max));
    let (to, session_id) = (n(3), crate::codec::peer::message::Session(session));
    rig.give(Event::LogRead { to, session: session_id, from, end, result: Ok(batches.unwrap()) });
    // Writes go on meanwhile: node 3 does not count yet.
    publish(&mut rig, 1);
    rig.settle();
    rig.ack(2, 5, two);
    assert_eq!(rig.node.member.committed(), rig.end());
    rig.hear(3, 5, session, Body::Ack(Ack { durable: end }));
    rig.hear(3, 5, session, Body::Ack(Ack { durable: rig.end() }));
    assert!(proposals(&mut rig).is_empty(), "it has no channels yet");
    let said = rig.said(3);
    let Some(Body::Cursors(list)) = said.into_iter().map(|m| m.body).find(|b| matches!(b, Body::Cursors(_))) else {
        panic!("no list")
    };
    assert!(list.is_all);
    let ack = crate::codec::peer::message::CursorsAck { seq: list.seq, result: Ok(()) };
    rig.hear(3, 5, session, Body::CursorsAck(ack));
    let proposed = rig.version;
    assert_eq!(proposals(&mut rig), vec![(proposed, vec![1, 2, 3])]);
    // From here on nothing commits without it, whatever the store says or does not say.
    let before = rig.node.member.committed();
    publish(&mut rig, 1);
    rig.settle();
    rig.ack(2, 5, two);
    assert_eq!(rig.node.member.committed(), before);
    rig.give(Event::ProposalRefused { version: proposed });
    assert_eq!(rig.node.member.committed(), before, "a repeat may have been refused");
    rig.metadata(5, 1, &[1, 2]);
    assert_eq!(rig.node.member.committed(), rig.end());
}

#[test]
fn a_log_that_no_longer_reaches_back_is_transferred_whole() {
    let mut rig = Rig::with_batches(6);
    let cut = rig.node.log.batches[3].header.start();
    rig.node.log.drop_below(cut.offset);
    rig.lead(5);
    let (start, start_crc) = rig.node.log.start();
    assert_eq!(start, cut);
    let session = rig.session(3);
    rig.hear(3, 5, session, Body::Standing(Rig::standing(&log_of(&[]), Position::START, false)));
    assert_eq!(rig.last(3), Body::Align(Align::Restart { start, chain_crc: start_crc }));
}

#[test]
fn a_lease_that_is_over_stops_writes_and_reads_until_it_is_renewed() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    let now = rig.now;
    rig.give(Event::Lease { until: now });
    assert_eq!(rig.node.member.check_write(now), Err(ReplicaError::LeaseOver));
    assert_eq!(rig.node.member.check_read(now), Err(ReplicaError::LeaseOver));
    rig.give(Event::Lease { until: now + Duration::from_secs(1) });
    assert_eq!((rig.node.member.check_write(now), rig.node.member.check_read(now)), (Ok(()), Ok(())));
}

#[test]
fn no_write_with_a_small_isr_and_none_commits() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    let before = rig.node.member.committed();
    rig.metadata(5, 1, &[1]);
    assert_eq!(rig.node.member.check_write(rig.now), Err(ReplicaError::IsrTooSmall { isr: 1, min_isr: 2 }));
    publish(&mut rig, 1);
    rig.settle();
    assert_eq!(rig.node.member.committed(), before);
}

#[test]
fn a_leader_that_steps_down_tells_who_waits() {
    for (issued, code) in [(true, ClientCode::NotWritable), (false, ClientCode::NotLeader)] {
        let mut rig = Rig::with_batches(1);
        let session = rig.lead(5);
        if issued {
            publish(&mut rig, 1);
        } else {
            rig.ack(2, 5, session);
        }
        let mut effects = vec![];
        let m = Membership { ..rig.membership(6, 2, &[1, 2]) };
        rig.node.member.step(rig.now, (&rig.node.log, &[]), Event::Metadata(m), &mut effects);
        let closed = effects.iter().find_map(|e| if let Effect::Closed { error } = e { Some(*error) } else { None });
        assert_eq!(closed.expect("it closes").client_code(), code);
        assert_eq!(rig.node.member.check_write(rig.now).unwrap_err(), ReplicaError::NotLeader { leader: Some(n(2)) });
    }
}

#[test]
fn a_failed_write_of_the_leader_gives_the_partition_away() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    publish(&mut rig, 1);
    rig.give(Event::LogFailed);
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::Resign { .. })));
    assert_eq!(rig.node.member.check_write(rig.now), Err(ReplicaError::Failed));
}

#[test]
fn metadata_that_is_old_or_impossible_changes_nothing() {
    let mut rig = Rig::with_batches(1);
    rig.lead(5);
    let old = Membership { version: 1, ..rig.membership(9, 2, &[2, 3]) };
    rig.give(Event::Metadata(old));
    let m = rig.membership(9, 2, &[2, 3]);
    rig.give(Event::Metadata(Membership { leader: Some(n(1)), ..m }));
    assert_eq!((rig.state(), rig.node.member.epoch()), (State::Open, Some(Epoch(5))));
}

#[test]
fn errors_carry_their_retry_rule() {
    assert_eq!(PeerError::StaleEpoch { promised: Epoch(1) }.retry(), Retry::AfterRefresh);
    assert_eq!(PeerError::Gap { end: Position::START }.retry(), Retry::AfterAlign);
    assert_eq!(PeerError::Failed.retry(), Retry::Never);
    assert_eq!(ReplicaError::OutcomeUnknown.retry(), Retry::Never);
    assert_eq!(ReplicaError::NotLeader { leader: None }.client_code().code(), "E_FAILED_ON_NOT_LEADER");
    assert_eq!(ReplicaError::OutcomeUnknown.client_code().code(), "E_FAILED_ON_NOT_WRITABLE");
}

/// A leader of an ISR with node 2 that opened alone, as one is enough; node 2 has not said where it stands.
fn settling_alone(batches: usize) -> (Rig, u32) {
    let mut rig = Rig::with_batches(batches);
    let m = rig.membership(5, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
    rig.settle();
    assert_eq!(rig.state(), State::Settling);
    let session = rig.session(2);
    rig.effects();
    (rig, session)
}

fn opens_again_only_with(rig: &mut Rig, epoch: u64, witness: &crate::replica::model::log::ModelLog) {
    let m = rig.membership(epoch, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
    rig.settle();
    assert_eq!(rig.state(), State::Asking, "one would be enough, but lacks what the other has");
    let session = rig.session(2);
    rig.hear(2, epoch, session, Body::Standing(Rig::standing(witness, witness.end().at, false)));
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::Resign { .. })), "it has what this one lost: it should lead");
    let options = ReplicaOptions::default();
    rig.now = rig.now + (options.write_limit + options.follower_limit);
    rig.hear(2, epoch, session, Body::Standing(Rig::standing(witness, witness.end().at, false)));
    assert_eq!(rig.state(), State::Fetching, "nobody names it: its log is taken");
}

#[test]
fn who_has_what_the_leader_lost_is_not_removed_and_the_opening_begins_anew() {
    let (mut rig, session) = settling_alone(1);
    let full = log_of(&[1, 1, 1]);
    rig.hear(2, 5, session, Body::Standing(Rig::standing(&full, full.end().at, false)));
    let effects = rig.effects();
    let is_alarm = |e: &Effect| matches!(e, Effect::Alarm(crate::replica::Alarm::CommittedMissing { .. }));
    assert!(effects.iter().any(is_alarm));
    assert!(effects.iter().any(|e| matches!(e, Effect::AskEpoch { above: Epoch(5) })));
    // It dies, and nobody takes that for a lagging member.
    for _ in 0..8 {
        rig.wait(ReplicaOptions::default().follower_limit);
        assert!(proposals(&mut rig).is_empty(), "its removal would make the loss final");
    }
    assert_eq!(rig.state(), State::Settling);
    opens_again_only_with(&mut rig, 6, &full);
}

/// The leader was told what it lacks, and is restarted before it has it: with one node enough it would open alone, and remove the
/// other.
#[test]
fn a_leader_that_was_told_what_it_lost_opens_with_nobody_else_after_a_restart_either() {
    let (mut rig, session) = settling_alone(1);
    let full = log_of(&[1, 1, 1]);
    rig.hear(2, 5, session, Body::Standing(Rig::standing(&full, full.end().at, false)));
    rig.settle();
    rig.node.restart(ReplicaOptions::default());
    rig.give(Event::Lease { until: Ticks(u64::MAX) });
    rig.out.clear();
    // It may have opened the first epoch that it hears of.
    rig.metadata(6, 1, &[1, 2]);
    rig.settle();
    opens_again_only_with(&mut rig, 7, &full);
}

/// The leader's log is as long as what is committed, and has something else there: it does not choose itself again.
#[test]
fn a_log_that_has_something_else_where_a_member_knows_it_committed_opens_no_epoch() {
    for epochs in [[1, 3, 3, 3], [3, 3, 3, 3]] {
        let mut rig = Rig::new();
        epochs.iter().for_each(|epoch| rig.append(*epoch, 1));
        rig.settle();
        let own = rig.node.log.end();
        rig.metadata(5, 1, &[1, 2]);
        rig.settle();
        let session = rig.session(2);
        let other = log_of(&[1, 2]);
        rig.hear(2, 5, session, Body::Standing(Rig::standing(&other, other.end().at, false)));
        assert_eq!((rig.state(), rig.node.log.end()), (State::Asking, own), "nothing is truncated, nothing is settled");
        let effects = rig.effects();
        assert!(
            effects.iter().any(|e| matches!(e, Effect::Resign { .. })) && effects.iter().any(|e| matches!(e, Effect::Alarm(_)))
        );
        let loss = rig.node.member.loss().expect("an operator may decide");
        rig.give(Event::AcceptLoss { from: loss.from });
        assert_eq!(rig.state(), State::Settling);
        // The other one keeps what it has. It leaves the ISR where min_isr allows that, and then begins anew.
        rig.hear(2, 5, session, Body::Refused(PeerError::BelowCommitted { committed: other.end().at }));
        rig.effects();
        rig.wait(ReplicaOptions::default().follower_limit);
        assert_eq!((rig.state(), proposals(&mut rig)), (State::Settling, vec![]));
        let m = rig.membership(5, 1, &[1, 2]);
        rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
        rig.wait(ReplicaOptions::default().follower_limit);
        assert_eq!(proposals(&mut rig), vec![(rig.version, vec![1])]);
        let m = rig.membership(5, 1, &[1]);
        rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
        assert_eq!(rig.state(), State::Open);
        assert!(rig.effects().iter().any(|e| matches!(e, Effect::GiveUp { .. })), "the other one is told");
    }
}

#[test]
fn an_open_leader_that_hears_it_lacks_what_is_committed_takes_nothing_more() {
    let mut rig = Rig::with_batches(1);
    let session = rig.lead(5);
    rig.hear(2, 5, session, Body::Refused(PeerError::BelowCommitted { committed: rig.end() }));
    assert_eq!(rig.state(), State::Resigned);
    assert!(rig.node.member.check_write(rig.now).is_err());
    assert!(rig.node.member.check_read(rig.now).is_err(), "another one may be named at once");
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::Resign { to } if *to == Some(n(2)))), "the other one should lead");
    rig.wait(ReplicaOptions::default().retry);
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::AskEpoch { above: Epoch(5) })), "nobody was named");
    assert!(rig.node.log.doubt().is_suspect());
    for _ in 0..8 {
        rig.wait(ReplicaOptions::default().follower_limit);
        assert!(proposals(&mut rig).is_empty());
    }
}

#[test]
fn a_loss_that_was_accepted_is_not_asked_about_again() {
    let (mut rig, session) = settling_alone(1);
    let full = log_of(&[1, 1, 1]);
    rig.hear(2, 5, session, Body::Standing(Rig::standing(&full, full.end().at, false)));
    let m = rig.membership(6, 1, &[1, 2]);
    rig.give(Event::Metadata(Membership { min_isr: 1, ..m }));
    rig.settle();
    let loss = rig.node.member.loss().expect("it is named");
    assert_eq!((loss.from, loss.to), (rig.end(), full.end().at));
    rig.give(Event::AcceptLoss { from: loss.from });
    assert_eq!(rig.state(), State::Settling);
    rig.effects();
    rig.wait(ReplicaOptions::default().follower_limit);
    assert_eq!(proposals(&mut rig), vec![(rig.version, vec![1])], "now it may go");
}

#[test]
fn a_higher_epoch_that_anybody_speaks_of_stops_a_leader_whatever_its_lease_says() {
    let stale = Body::Refused(PeerError::StaleEpoch { promised: Epoch(9) });
    for (from, epoch, body) in [(3, 9, super::rig::inquire()), (3, 5, stale.clone()), (2, 5, stale)] {
        let mut rig = Rig::with_batches(1);
        rig.lead(5);
        assert_eq!(rig.node.member.check_read(rig.now), Ok(()));
        rig.effects();
        rig.hear(from, epoch, 1, body);
        assert_eq!(rig.node.member.check_read(rig.now), Err(ReplicaError::NotLeader { leader: Some(n(1)) }));
        assert!(rig.node.member.check_write(rig.now).is_err());
        let effects = rig.effects();
        assert!(effects.iter().any(|e| matches!(e, Effect::AskEpoch { above: Epoch(9) })));
        rig.give(Event::Lease { until: Ticks(u64::MAX) });
        for epoch in [5, 8, 9] {
            rig.metadata(epoch, 1, &[1, 2]);
            assert_eq!(rig.state(), State::Apart, "epoch {epoch} may be another's");
        }
        rig.metadata(10, 1, &[1, 2]);
        assert_eq!(rig.state(), State::Claiming);
    }
}

#[test]
fn who_may_join_at_any_time_counts_as_a_member_in_every_epoch() {
    let mut rig = Rig::with_batches(1);
    let with_joining =
        |m: Membership, joining: &[u8]| Membership { min_isr: 1, joining: joining.iter().map(|i| n(*i)).collect(), ..m };
    let m = rig.membership(5, 1, &[1]);
    rig.give(Event::Metadata(with_joining(m, &[2])));
    rig.settle();
    assert_eq!(rig.state(), State::Settling, "node 2 has not said that it has the tail");
    rig.effects();
    rig.wait(ReplicaOptions::default().follower_limit);
    assert_eq!(proposals(&mut rig), vec![(rig.version, vec![1])], "somebody is told why nothing goes on");
    let m = rig.membership(5, 1, &[1]);
    rig.give(Event::Metadata(with_joining(m, &[])));
    assert_eq!(rig.state(), State::Open, "it cannot join any more");
}
