//! Batches and messages that a follower takes, refuses, and sends.

use super::rig::{Rig, inquire, log_of, n, run_of};
use crate::base::{Epoch, Position};
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Ack, Align, Aligned, Append, Batches, Body, Cursors};
use crate::format::files::Bad;
use crate::format::snapshot::Doubt;
use crate::replica::model::log::{ModelLog, id_of};
use crate::replica::states::State;
use crate::replica::{Alarm, Effect, Event, LogView};
use bytes::Bytes;

/// A follower of node 2 in epoch 5, empty, and its leader's log.
fn pair(epochs: &[u64]) -> (Rig, ModelLog) {
    let mut rig = Rig::new();
    rig.follow(5);
    (rig, log_of(epochs))
}

#[test]
fn batches_are_appended_verbatim_and_acknowledged_when_durable() {
    let (mut rig, leader) = pair(&[1, 1, 5]);
    rig.hear(2, 5, 1, run_of(&leader, 0, leader.batches[1].header.end()));
    assert!(rig.said(2).is_empty(), "not durable yet");
    rig.settle();
    assert_eq!(rig.last(2), Body::Ack(Ack { durable: leader.end().at }));
    assert!(rig.node.log.batches.iter().zip(&leader.batches).all(|(a, b)| a.bytes == b.bytes));
    assert_eq!(rig.node.member.committed(), leader.batches[1].header.end());
}

#[test]
fn several_batches_may_come_as_one_piece() {
    let (mut rig, leader) = pair(&[1, 1, 5]);
    let bytes: Vec<u8> = leader.batches.iter().flat_map(|b| b.bytes.to_vec()).collect();
    let append = Append { committed: Position::START, batches: Batches::new(vec![Bytes::from(bytes)]) };
    rig.hear(2, 5, 1, Body::Append(append));
    assert_eq!(rig.end(), leader.end().at);
}

#[test]
fn any_batch_that_is_held_is_success_without_a_write() {
    let (mut rig, leader) = pair(&[1, 1, 5, 5]);
    rig.hear(2, 5, 1, run_of(&leader, 0, Position::START));
    rig.settle();
    rig.said(2);
    for from in 0..4 {
        rig.hear(2, 5, 1, run_of(&leader, from, Position::START));
        assert!(rig.node.log.queue.is_empty());
        assert_eq!(rig.last(2), Body::Ack(Ack { durable: leader.end().at }));
    }
    // The first ones stand in a file only: the chain of those behind proves them.
    rig.node.log.memory_from = leader.batches[2].header.offset.get();
    rig.hear(2, 5, 1, run_of(&leader, 0, Position::START));
    assert_eq!(rig.last(2), Body::Ack(Ack { durable: leader.end().at }));
    // Alone they prove nothing.
    let append = Append { committed: Position::START, batches: Batches::new(vec![leader.batches[0].bytes.clone()]) };
    rig.hear(2, 5, 1, Body::Append(append));
    assert_eq!(rig.refusal(2), PeerError::NotAligned);
}

#[test]
fn other_bytes_under_a_known_id_end_the_session() {
    let (mut rig, leader) = pair(&[1, 1, 5]);
    rig.hear(2, 5, 1, run_of(&leader, 0, Position::START));
    rig.settle();
    rig.said(2);
    let mut other = ModelLog::new();
    other.append_own(Epoch(1), 1, b"other 1");
    assert_ne!(id_of(&other.batches[0]), id_of(&leader.batches[0]));
    rig.hear(2, 5, 1, run_of(&other, 0, Position::START));
    assert_eq!(rig.refusal(2), PeerError::Diverged { offset: 0 });
    assert!(PeerError::Diverged { offset: 0 }.leaves_isr());
    assert_eq!(rig.state(), State::Apart);
    // Nothing is taken any more before the logs are compared again; and nobody is told for each batch.
    rig.hear(2, 5, 1, run_of(&leader, 0, Position::START));
    assert!(rig.said(2).is_empty());
}

#[test]
fn what_does_not_go_on_at_the_end_is_refused() {
    let (mut rig, leader) = pair(&[1, 1, 5]);
    rig.hear(2, 5, 1, run_of(&leader, 1, Position::START));
    assert_eq!(rig.refusal(2), PeerError::Gap { end: Position::START });
    // The right place, but another batch before it.
    let (mut rig, _) = pair(&[]);
    let (one, other) = (log_of(&[1, 1]), log_of(&[2, 2]));
    rig.hear(
        2,
        5,
        1,
        Body::Append(Append { committed: Position::START, batches: Batches::new(vec![one.batches[0].bytes.clone()]) }),
    );
    rig.hear(2, 5, 1, run_of(&other, 1, Position::START));
    assert_eq!(rig.refusal(2), PeerError::Diverged { offset: other.batches[1].header.offset.get() });
}

#[test]
fn a_batch_that_is_not_what_it_says_is_refused() {
    let leader = log_of(&[1, 1]);
    let mut bytes = leader.batches[0].bytes.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let cases = [
        (bytes, PeerError::BadBatch(Bad::Crc)),
        (leader.batches[0].bytes[..100].to_vec(), PeerError::BadBatch(Bad::Short)),
        (leader.batches[0].bytes[..leader.batches[0].bytes.len() - 1].to_vec(), PeerError::BadBatch(Bad::Short)),
        // Of an epoch that is not there yet.
        (log_of(&[6]).batches[0].bytes.to_vec(), PeerError::BadBatch(Bad::Foreign)),
    ];
    for (bytes, error) in cases {
        let (mut rig, _) = pair(&[]);
        rig.hear(2, 5, 1, Body::Append(Append { committed: Position::START, batches: Batches::new(vec![bytes.into()]) }));
        assert_eq!(rig.refusal(2), error);
        assert_eq!(rig.end(), Position::START);
    }
}

#[test]
fn epochs_of_batches_never_fall() {
    let (mut rig, _) = pair(&[]);
    let first = log_of(&[3]);
    let mut falls = log_of(&[3]);
    rig.hear(2, 5, 1, run_of(&first, 0, Position::START));
    // The log of the model refuses it as well, so it is built upon a copy that believes to be in epoch 0.
    let end = falls.end();
    falls.restart(crate::format::tail::Tail { epoch: Epoch(0), ..end });
    falls.append_own(Epoch(2), 1, b"older");
    rig.hear(2, 5, 1, run_of(&falls, 0, Position::START));
    assert_eq!(rig.refusal(2), PeerError::BadBatch(Bad::Chain));
}

#[test]
fn a_promise_is_durable_before_it_is_told_and_fences_lower_epochs() {
    let mut rig = Rig::with_batches(2);
    rig.metadata(5, 2, &[1, 2, 3]);
    rig.hear(2, 5, 1, inquire());
    assert!(rig.said(2).is_empty());
    assert_eq!(rig.state(), State::Promising);
    rig.settle();
    let Body::Standing(standing) = rig.last(2) else { panic!("no standing") };
    assert_eq!((standing.last_epoch, standing.durable), (Epoch(1), rig.end()));
    rig.hear(2, 4, 9, inquire());
    assert_eq!(rig.refusal(2), PeerError::StaleEpoch { promised: Epoch(5) });
    rig.hear(2, 4, 9, run_of(&log_of(&[4]), 0, Position::START));
    assert_eq!(rig.refusal(2), PeerError::StaleEpoch { promised: Epoch(5) });
}

#[test]
fn the_standing_waits_for_what_was_appended_before() {
    let (mut rig, leader) = pair(&[1, 5]);
    rig.hear(2, 5, 1, run_of(&leader, 0, Position::START));
    rig.hear(2, 5, 2, inquire());
    assert!(rig.said(2).is_empty(), "its writes are under way");
    rig.settle();
    let Body::Standing(standing) = rig.last(2) else { panic!("no standing") };
    assert_eq!(standing.durable, leader.end().at);
}

#[test]
fn only_the_leader_of_the_metadata_is_heard() {
    let mut rig = Rig::new();
    rig.hear(2, 5, 1, inquire());
    assert_eq!(rig.refusal(2), PeerError::NotMember);
    rig.metadata(5, 2, &[1, 2, 3]);
    rig.hear(3, 5, 1, inquire());
    assert_eq!(rig.refusal(3), PeerError::ForeignLeader);
    rig.lead(6);
    rig.hear(3, 7, 1, inquire());
    assert_eq!(rig.refusal(3), PeerError::ForeignLeader);
    assert_eq!(rig.state(), State::Apart, "it neither leads nor follows before its own metadata decides");
    assert!(rig.effects().iter().any(|e| matches!(e, Effect::Refresh)));
}

#[test]
fn what_comes_of_an_older_session_is_dropped() {
    let (mut rig, leader) = pair(&[5]);
    rig.inquired(5, 2);
    rig.said(2);
    rig.hear(2, 5, 1, run_of(&leader, 0, Position::START));
    rig.hear(2, 5, 1, Body::Align(Align::Truncate { at: Position::START, chain_crc: None }));
    rig.hear(2, 5, 1, inquire());
    rig.settle();
    assert!(rig.said(2).is_empty());
    assert_eq!((rig.state(), rig.end()), (State::Apart, Position::START));
}

#[test]
fn a_truncation_is_done_durably_before_the_follower_is_in_step() {
    let mut rig = Rig::with_batches(3);
    rig.metadata(5, 2, &[1, 2, 3]);
    rig.inquired(5, 1);
    rig.said(2);
    let at = rig.node.log.batches[0].header.end();
    rig.hear(2, 5, 1, Body::Align(Align::Truncate { at, chain_crc: None }));
    assert!(rig.said(2).is_empty());
    rig.settle();
    assert_eq!((rig.last(2), rig.end()), (Body::Aligned(Aligned { at }), at));
}

#[test]
fn nothing_committed_is_truncated_on_a_leaders_word() {
    let (mut rig, leader) = pair(&[1, 1, 5]);
    let committed = leader.batches[1].header.end();
    rig.hear(2, 5, 1, run_of(&leader, 0, committed));
    rig.settle();
    for align in [
        Align::Truncate { at: leader.batches[0].header.end(), chain_crc: None },
        Align::Restart { start: Position::START, chain_crc: 0 },
    ] {
        rig.inquired(5, rig.version as u32 + 2);
        rig.version += 1;
        let session = rig.session(2);
        rig.hear(2, 5, session, Body::Align(align));
        assert_eq!(rig.refusal(2), PeerError::BelowCommitted { committed });
        assert_eq!(rig.end(), leader.end().at);
        let alarm = |e: &Effect| matches!(e, Effect::Alarm(Alarm::BelowCommitted { .. }));
        assert!(rig.effects().iter().any(alarm));
    }
    // Data that damage took already is no reason to keep the rest.
    rig.node.log.disk.hole = Some(leader.batches[0].header.end().offset);
    rig.inquired(5, 9);
    let Body::Standing(standing) = rig.last(2) else { panic!("no standing") };
    assert_eq!((standing.durable, standing.committed), (leader.batches[0].header.end(), committed));
    rig.hear(2, 5, 9, Body::Align(Align::Truncate { at: standing.durable, chain_crc: None }));
    rig.settle();
    assert_eq!(rig.end(), standing.durable);
    rig.hear(2, 5, 9, run_of(&leader, 1, committed));
    rig.settle();
    assert_eq!(rig.end(), leader.end().at);
}

#[test]
fn a_prefix_that_is_not_the_leaders_is_noticed_after_the_truncation() {
    let mut rig = Rig::with_batches(3);
    rig.metadata(5, 2, &[1, 2, 3]);
    rig.inquired(5, 1);
    rig.said(2);
    let at = rig.node.log.batches[0].header.end();
    rig.hear(2, 5, 1, Body::Align(Align::Truncate { at, chain_crc: Some(77) }));
    rig.settle();
    assert_eq!(rig.refusal(2), PeerError::Diverged { offset: at.offset });
    assert_eq!(rig.state(), State::Apart);
}

#[test]
fn a_restarted_log_begins_where_the_leaders_does() {
    let mut rig = Rig::with_batches(2);
    let leader = log_of(&[2, 2, 5, 5]);
    rig.metadata(5, 2, &[1, 2, 3]);
    rig.inquired(5, 1);
    let before = crate::replica::model::log::tail_of(&leader.batches[1]);
    rig.hear(2, 5, 1, Body::Align(Align::Restart { start: before.at, chain_crc: before.chain_crc }));
    rig.settle();
    assert_eq!(rig.last(2), Body::Aligned(Aligned { at: before.at }));
    rig.hear(2, 5, 1, run_of(&leader, 2, leader.end().at));
    rig.settle();
    assert_eq!((rig.end(), rig.node.member.committed()), (leader.end().at, leader.end().at));
}

#[test]
fn a_log_that_lost_all_it_had_may_begin_anywhere() {
    let (mut rig, leader) = pair(&[1, 1, 5]);
    rig.hear(2, 5, 1, run_of(&leader, 0, leader.end().at));
    rig.settle();
    // Retention took the first batch, damage the others.
    rig.node.log.drop_below(leader.batches[1].header.start().offset);
    rig.node.log.disk.hole = Some(rig.node.log.start().0.offset);
    rig.inquired(5, 2);
    rig.hear(2, 5, 2, Body::Align(Align::Restart { start: Position::START, chain_crc: 0 }));
    rig.settle();
    assert_eq!((rig.state(), rig.end()), (State::Aligned, Position::START));
}

/// Cursors are truncated with the log: the replica must not lead with its own before the leader's list has come.
#[test]
fn who_is_truncated_below_what_was_committed_is_suspect_until_it_has_the_channels() {
    let (mut rig, leader) = pair(&[1, 5]);
    let end = leader.end().at;
    rig.hear(2, 5, 1, run_of(&leader, 0, end));
    rig.settle();
    let hole = leader.batches[1].header.start();
    rig.node.log.disk.hole = Some(hole.offset);
    rig.inquired(5, 2);
    rig.hear(2, 5, 2, Body::Align(Align::Truncate { at: hole, chain_crc: None }));
    rig.settle();
    assert_eq!((rig.state(), rig.end()), (State::Aligned, hole));
    assert!(rig.node.log.doubt().is_suspect(), "its channels were truncated");
    rig.hear(2, 5, 2, run_of(&leader, 1, end));
    rig.settle();
    assert!(rig.node.log.doubt().is_suspect(), "it was not told of the channels");
    rig.hear(2, 5, 2, list_of_none(end));
    rig.hear(2, 5, 2, Body::Append(Append { committed: end, batches: Batches::default() }));
    rig.settle();
    assert!(!rig.node.log.doubt().is_suspect());
}

/// List of channels of a leader that has none.
fn list_of_none(committed: Position) -> Body {
    let (cursors, deleted, producers) = (vec![], vec![], vec![]);
    let (is_all, collect_start, agreed_start, flush) = (true, None, None, false);
    Body::Cursors(Cursors {
        seq: 1,
        committed,
        flush,
        is_all,
        collect_start,
        agreed_start,
        cursors,
        deleted,
        producers,
        channels_lost: false,
    })
}

#[test]
fn a_suspect_is_cleared_when_it_has_all_that_is_committed() {
    let (mut rig, leader) = pair(&[1, 5]);
    rig.node.log.disk.doubt = Doubt::Lost;
    let disk = rig.node.log.disk.clone();
    rig.node.log = ModelLog::recover(disk);
    rig.hear(2, 5, 1, Body::Append(Append { committed: leader.end().at, batches: Batches::default() }));
    assert!(rig.node.log.doubt().is_suspect(), "it lacks what is committed");
    rig.hear(2, 5, 1, run_of(&leader, 0, leader.end().at));
    rig.settle();
    assert!(rig.node.log.doubt().is_suspect(), "it was not told of the channels");
    rig.hear(2, 5, 1, list_of_none(leader.end().at));
    rig.hear(2, 5, 1, Body::Append(Append { committed: leader.end().at, batches: Batches::default() }));
    rig.settle();
    assert!(!rig.node.log.doubt().is_suspect());
}

#[test]
fn a_failed_write_ends_everything() {
    let (mut rig, leader) = pair(&[1]);
    rig.give(Event::LogFailed);
    rig.hear(2, 5, 1, run_of(&leader, 0, Position::START));
    assert_eq!(rig.refusal(2), PeerError::Failed);
    rig.metadata(9, 1, &[1, 2, 3]);
    assert_eq!(rig.state(), State::Failed);
    assert!(rig.node.member.check_write(rig.now).is_err());
    assert_eq!(rig.node.id, n(1));
}
