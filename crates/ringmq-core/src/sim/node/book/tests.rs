//! Each check of the book fires when its sentence is broken.

use super::*;
use crate::base::{ChannelName, Epoch, MessageIds, PartitionDir, Position, TopicInfo, TopicName};
use crate::log::ProducerLimits;
use crate::log::recovery::report::Report;
use crate::log::state::RecoveredPartition;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs what breaks a sentence: a check must panic with its name first.
fn breaks(sentence: &str, run: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err(sentence);
    let text = panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let text = text.unwrap_or_default();
    let is_named = text.trim_start_matches("assertion `left == right` failed: ").starts_with(&format!("{sentence}: "));
    assert!(is_named, "{sentence} did not fire, but: {text}");
}

fn place(log_id: u64) -> MessagePlace {
    MessagePlace::new(PartitionId(0), LogId(log_id))
}

fn channel(name: &str) -> ChannelKey {
    (0, name.to_owned())
}

/// A cursor that has confirmed all before the log id.
fn cursor(name: &str, log_id: u64) -> CursorImage {
    let confirmed = Position { offset: log_id as i64, count: log_id as i64, log_id: LogId(log_id) };
    CursorImage::new(ChannelName::new(name).expect("valid"), Epoch(1), 0, confirmed)
}

/// A book in which clients have written so many messages to topic 0.
fn with_messages(num: usize) -> (Book, Vec<usize>) {
    let (mut book, mut rng) = (Book::default(), Rng::new(1));
    let messages = (0..num).map(|_| book.write_to(0, None, &mut rng)).collect();
    (book, messages)
}

/// A disk on which these messages stand, from log id 1 on, and these cursors.
fn disk(messages: &[usize], cursors: Vec<CursorImage>) -> StartupFindings {
    let mut found = StartupFindings { name: "acked_survives", ..StartupFindings::default() };
    found.stored.extend(messages.iter().enumerate().map(|(i, n)| (*n, place(1 + i as u64))));
    found.first.insert((0, 0), LogId(0));
    found.images.insert((0, 0), cursors);
    found
}

fn recovered(partitions: u16, first: Option<&str>) -> Recovered {
    recovered_topic("topic0", partitions, first)
}

fn recovered_topic(name: &str, partitions: u16, first: Option<&str>) -> Recovered {
    let topic = Arc::new(TopicInfo { name: TopicName::new(name).expect("valid"), id: TopicId([1; 16]), partitions });
    let partition = |number: u16| {
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition: PartitionId(number) };
        RecoveredPartition::empty(topic.clone(), Arc::new(dir), ProducerLimits::default())
    };
    let mut partitions: Vec<RecoveredPartition> = (0..partitions).map(partition).collect();
    partitions[0].channels.extend(first.map(|name| CursorImage { first: true, ..cursor(name, 0) }));
    Recovered { node_id: [1; 16], generation: 2, topics: vec![topic], partitions, journals: vec![], report: Report::default() }
}

#[test]
fn what_nobody_wrote_is_none_invented() {
    let (mut book, m) = with_messages(3);
    let body = book.body(m[0]).to_vec();
    for (topic, body) in [(0, &b"9 x"[..]), (0, b"x"), (0, b"0 another"), (1, &body)] {
        breaks("none_invented", || _ = book.none_invented(topic, body));
    }
    book.refused(m[0]);
    breaks("none_invented", || _ = book.none_invented(0, &body));
    book.messages[m[1]].is_gone = true;
    let body = book.body(m[1]).to_vec();
    breaks("none_invented", || book.delivered(&channel("a"), place(1), &body));
    breaks("none_invented", || book.passed(0, b"1 0 "));
}

#[test]
fn ids_and_places_are_those_of_one_message() {
    let (mut book, m) = with_messages(3);
    book.placed(m[0], place(1));
    breaks("ids_and_offsets_never_repeat", || book.placed(m[1], place(1)));
    breaks("ids_and_offsets_never_repeat", || book.placed(m[0], place(2)));
    book.sent_again(m[2]);
    book.placed(m[2], place(3));
    breaks("no_duplicate_from_idempotent_producer", || book.placed(m[2], place(4)));
    book.topic_is(0, TopicId([1; 16]));
    breaks("message_ids_never_repeat", || book.topic_is(0, TopicId([2; 16])));
    let ids = MessageIds::of(TopicId([1; 16]));
    let bodies: Vec<Vec<u8>> = m.iter().map(|n| book.body(*n).to_vec()).collect();
    book.message_ids_never_repeat(0, ids.id(place(1)), &bodies[0]);
    breaks("message_ids_never_repeat", || book.message_ids_never_repeat(0, ids.id(place(1)), &bodies[1]));
    breaks("message_ids_never_repeat", || book.message_ids_never_repeat(0, ids.id(place(2)), &bodies[0]));
}

#[test]
fn a_disk_keeps_what_was_acknowledged_or_delivered() {
    let everywhere = |_: usize, _: u16| true;
    let (mut book, m) = with_messages(2);
    book.acknowledged(m[0]);
    book.replica_keeps(&disk(&m, vec![]), &everywhere);
    for name in ["acked_survives", "acked_is_on_every_isr_disk", "only_what_was_given_up_is_lost"] {
        let found = StartupFindings { name, ..disk(&m[1..], vec![]) };
        breaks(name, || book.replica_keeps(&found, &everywhere));
        book.replica_keeps(&found, &|_, _| false);
    }
    let body = book.body(m[1]).to_vec();
    book.delivered(&channel("a"), place(2), &body);
    breaks("consumer_never_passes_commit", || book.replica_keeps(&disk(&m[..1], vec![]), &everywhere));
}

#[test]
fn a_disk_keeps_channels_and_what_they_have_not_finished() {
    let everywhere = |_: usize, _: u16| true;
    let (mut book, mut rng) = (Book::default(), Rng::new(1));
    book.subscribed(channel("a"));
    let n = book.write_to(0, None, &mut rng);
    book.acknowledged(n);
    book.replica_keeps(&disk(&[n], vec![cursor("a", 1)]), &everywhere);
    breaks("acked_survives", || book.replica_keeps(&disk(&[n], vec![cursor("a", 2)]), &everywhere));
    breaks("acked_survives", || book.replica_keeps(&disk(&[n], vec![]), &everywhere));
    breaks("acked_survives", || book.acked_survives_to_every_channel());
    let body = book.body(n).to_vec();
    book.delivered(&channel("a"), place(1), &body);
    book.finished(&channel("a"), place(1));
    book.replica_keeps(&disk(&[n], vec![cursor("a", 2)]), &everywhere);
    book.acked_survives_to_every_channel();
}

#[test]
fn an_mpub_is_all_there_or_not_at_all() {
    let (mut book, m) = with_messages(2);
    book.subscribed(channel("a"));
    book.group(m.clone());
    book.mpub_is_all_or_nothing(&disk(&m, vec![]));
    book.mpub_is_all_or_nothing(&disk(&[], vec![]));
    breaks("mpub_is_all_or_nothing", || book.mpub_is_all_or_nothing(&disk(&m[..1], vec![])));
    let body = book.body(m[0]).to_vec();
    book.delivered(&channel("a"), place(1), &body);
    book.finished(&channel("a"), place(1));
    breaks("mpub_is_all_or_nothing", || book.acked_survives_to_every_channel());
}

#[test]
fn one_channel_is_a_topics_first_and_that_in_all_partitions() {
    for finished in [&[("a", 2), ("b", 2)][..], &[("a", 1)]] {
        let (mut book, m) = with_messages(2);
        m.iter().for_each(|n| book.acknowledged(*n));
        book.subscribes(0);
        for (name, num) in finished {
            book.subscribed(channel(name));
            for (n, i) in m[..*num].iter().zip(1..) {
                let body = book.body(*n).to_vec();
                book.delivered(&channel(name), place(i), &body);
                book.finished(&channel(name), place(i));
            }
        }
        breaks("one_channel_is_first", || book.acked_survives_to_every_channel());
    }
    let book = Book::default();
    book.first_is_everywhere(&recovered(1, Some("a")));
    breaks("first_is_everywhere", || book.first_is_everywhere(&recovered(2, Some("a"))));
}

#[test]
fn what_a_connection_publishes_stands_in_its_order() {
    let (mut book, m) = with_messages(2);
    book.acknowledged_next(1, &m);
    book.placed(m[0], place(2));
    book.a_connection_keeps_its_order();
    book.placed(m[1], place(1));
    breaks("a_connection_keeps_its_order", || book.a_connection_keeps_its_order());
}

#[test]
fn a_fin_before_an_ok_is_durable() {
    let with_claim = || {
        let (mut book, m) = with_messages(2);
        book.subscribed(channel("a"));
        book.placed(m[1], place(2));
        let body = book.body(m[0]).to_vec();
        book.delivered(&channel("a"), place(1), &body);
        book.claim(1, m[1], vec![(channel("a"), place(1))]);
        (book, body, m)
    };
    let (mut book, _, m) = with_claim();
    let forgot = disk(&m, vec![cursor("a", 1)]);
    breaks("fin_before_ok_is_durable", || book.fin_before_ok_is_durable(&forgot, &recovered(1, None), 1));
    let (mut book, body, m) = with_claim();
    book.fin_before_ok_is_durable(&disk(&m, vec![cursor("a", 2)]), &recovered(1, None), 1);
    breaks("fin_before_ok_is_durable", || book.delivered(&channel("a"), place(1), &body));
}

#[test]
fn a_channel_gets_nothing_from_before_its_begin() {
    let (mut book, m) = with_messages(1);
    book.subscribed_to(channel("a"), 0, Some(LogId(5)));
    let body = book.body(m[0]).to_vec();
    breaks("channel_begins_where_told", || book.delivered(&channel("a"), place(4), &body));
}

#[test]
fn a_gone_topic_stays_gone() {
    let mut book = Book::default();
    let body = book.pass(0);
    book.passed(0, &body);
    book.passing_is_gone(0);
    breaks("a_gone_topic_stays_gone", || book.passed(0, &body));
}

#[test]
fn an_ephemeral_topic_outlives_no_clean_stop() {
    let book = Book::default();
    book.ephemeral_topics_go(&recovered(1, None));
    breaks("ephemeral_topics_go", || book.ephemeral_topics_go(&recovered_topic(&passing_name(0), 1, None)));
}

/// A book in which the offset of the channel was set to this log id.
fn with_set(at: u64) -> (Book, Vec<usize>) {
    let (mut book, m) = with_messages(3);
    book.sets(1, &channel(MOVED), 0, LogId(at), BTreeSet::new());
    book.was_set(&channel(MOVED), 0, LogId(at));
    (book, m)
}

#[test]
fn nothing_comes_from_before_a_set_offset_until_the_next_set() {
    let (mut book, _) = with_set(2);
    let floor = book.floor(&channel(MOVED), 0);
    book.set_offset_is_never_undone(&channel(MOVED), place(2), floor);
    breaks("set_offset_is_never_undone", || book.set_offset_is_never_undone(&channel(MOVED), place(1), floor));
    book.sets(1, &channel(MOVED), 0, LogId(1), BTreeSet::new());
    book.set_offset_is_never_undone(&channel(MOVED), place(1), floor);
}

#[test]
fn a_startup_finds_the_channel_where_it_was_set() {
    let starts = |at: u64, generation: u64| {
        let (mut book, m) = with_set(2);
        book.sets_survive(&disk(&m, vec![CursorImage { generation: 1, ..cursor(MOVED, 2) }]));
        book.sets_survive(&disk(&m, vec![CursorImage { generation, ..cursor(MOVED, at) }]));
    };
    starts(2, 1);
    breaks("set_offset_is_never_undone", || starts(1, 1));
    breaks("set_offset_is_never_undone", || starts(2, 0));
    breaks("set_offset_is_never_undone", || starts(3, 1));
}

/// Found by seed 20186 of the cluster simulator.
#[test]
fn an_mpub_of_which_a_message_was_given_up_may_come_in_part() {
    let (mut book, m) = with_messages(2);
    book.subscribed(channel("a"));
    book.group(m.clone());
    for (n, log_id) in m.iter().zip(1..) {
        book.acknowledged(*n);
        book.placed(*n, place(log_id));
    }
    let body = book.body(m[0]).to_vec();
    book.delivered(&channel("a"), place(1), &body);
    book.finished(&channel("a"), place(1));
    assert!(book.group_that_came_in_part().is_some());
    book.gives_up((0, 0), &disk(&m[..1], vec![cursor("a", 1)]));
    assert_eq!(book.group_that_came_in_part(), None);
}
