//! Each checker passes a good history, and fires on one that breaks its promise and no other.

use super::*;
use std::time::Duration;

const ORDERED: Channel = Channel { topic: Topic::Keyed, name: "ordered", is_ordered: true };

fn message(number: u32) -> Message {
    Message { topic: Topic::Keyed, producer: 1, number }
}

fn sent(number: u32) -> Fact {
    Fact::Sent { message: message(number), due: None }
}

fn acknowledged(number: u32) -> Fact {
    Fact::Acknowledged(message(number))
}

fn delivered(number: u32) -> Fact {
    Fact::Delivered { channel: "ordered", message: message(number), id: Some([number as u8; 16]) }
}

fn finished(number: u32) -> Fact {
    Fact::Finished { channel: "ordered", message: message(number) }
}

/// Events a second apart, and one partition whose log has these messages.
fn history(facts: &[Fact], log: &[u32]) -> History {
    let at = |index: usize| Duration::from_secs(index as u64);
    let events = facts.iter().enumerate().map(|(index, fact)| Event { at: at(index), fact: *fact }).collect();
    let log = log.iter().enumerate().map(|(index, number)| (index as u64 + 1, message(*number))).collect();
    History { events, channels: vec![ORDERED], logs: BTreeMap::from([((Topic::Keyed, 0), log)]) }
}

/// Three messages, of which the last is unknown to its producer; the second comes twice.
fn good() -> (Vec<Fact>, Vec<u32>) {
    let mut facts = vec![sent(1), acknowledged(1), sent(2), delivered(1), finished(1), acknowledged(2), delivered(2), sent(3)];
    facts.extend([delivered(2), finished(2), Fact::Unknown(message(3)), delivered(3), sent(4), Fact::Refused(message(4))]);
    (facts, vec![1, 2, 3])
}

/// The names of the checkers that complain.
fn complaints(facts: &[Fact], log: &[u32]) -> Vec<String> {
    let mut names: Vec<String> =
        check(&history(facts, log)).iter().map(|line| line.split(':').next().expect("a name").to_string()).collect();
    names.dedup();
    names
}

/// The good history with one thing changed.
fn broken(change: impl FnOnce(&mut Vec<Fact>, &mut Vec<u32>)) -> Vec<String> {
    let (mut facts, mut log) = good();
    change(&mut facts, &mut log);
    complaints(&facts, &log)
}

#[test]
fn a_good_history_has_no_complaint() {
    assert_eq!(broken(|_, _| {}), Vec::<String>::new());
}

#[test]
fn an_acknowledged_message_that_is_in_no_log_is_noticed() {
    let found = broken(|facts, log| {
        facts.extend([sent(5), acknowledged(5)]);
        facts.push(delivered(5));
        log.retain(|n| *n != 5);
    });
    assert_eq!(found, ["acked_survives", "consumed_is_committed"]);
}

#[test]
fn an_acknowledged_message_that_a_channel_did_not_get_is_noticed() {
    assert_eq!(broken(|facts, log| (facts.extend([sent(5), acknowledged(5)]), log.push(5)).1), ["acked_is_delivered"]);
}

#[test]
fn a_message_that_nobody_sent_is_noticed_and_one_that_came_before_it_was_sent() {
    assert_eq!(broken(|_, log| log.push(9)), ["none_invented"]);
    assert_eq!(broken(|facts, log| (facts.extend([finished(3), delivered(5), sent(5)]), log.push(5)).1), ["none_invented"]);
}

#[test]
fn a_refused_message_that_is_stored_is_noticed() {
    assert_eq!(broken(|_, log| log.push(4)), ["refused_stays_away"]);
}

#[test]
fn a_message_that_was_consumed_and_that_no_replica_has_is_noticed() {
    assert_eq!(broken(|facts, _| facts.extend([sent(5), delivered(5)])), ["consumed_is_committed"]);
}

#[test]
fn a_message_with_two_outcomes_is_noticed() {
    assert_eq!(broken(|facts, _| facts.push(Fact::Unknown(message(1)))), ["told_once"]);
}

#[test]
fn a_message_that_is_stored_twice_is_noticed() {
    assert_eq!(broken(|_, log| log.push(3)), ["stored_once"]);
    let other = Fact::Delivered { channel: "ordered", message: message(3), id: Some([77; 16]) };
    assert_eq!(broken(|facts, _| facts.push(other)), ["stored_once"]);
    let same = Fact::Delivered { channel: "ordered", message: message(3), id: Some([2; 16]) };
    assert_eq!(broken(|facts, _| facts.push(same)), ["stored_once"]);
}

#[test]
fn a_log_that_turns_real_time_round_is_noticed() {
    let other = |number| Message { producer: 2, ..message(number) };
    let came = Fact::Delivered { channel: "ordered", message: other(1), id: None };
    let first = [Fact::Sent { message: other(1), due: None }, Fact::Acknowledged(other(1))];
    let facts = [&first[..], &[sent(1), acknowledged(1), delivered(1), finished(1), came]].concat();
    let mut run = history(&facts, &[1]);
    run.logs.get_mut(&(Topic::Keyed, 0)).expect("it was made").push((2, other(1)));
    let found = check(&run);
    assert!(found.len() == 1 && found[0].starts_with("log_keeps_real_time"), "{found:?}");
}

#[test]
fn a_producer_whose_messages_change_places_is_noticed() {
    let facts = [sent(1), sent(2), acknowledged(1), acknowledged(2), delivered(2), finished(2), delivered(1)];
    assert_eq!(complaints(&facts, &[2, 1]), ["producers_in_order"]);
}

#[test]
fn an_ordered_channel_that_skips_or_goes_back_is_noticed() {
    assert_eq!(broken(|facts, _| facts.push(delivered(2))), ["ordered_channel_in_order"]);
    let facts = [sent(1), sent(2), acknowledged(1), acknowledged(2), delivered(2), finished(2), delivered(1)];
    assert_eq!(complaints(&facts, &[1, 2]), ["ordered_channel_in_order"]);
    let facts = [sent(1), sent(2), acknowledged(1), acknowledged(2), delivered(1), delivered(2)];
    assert_eq!(complaints(&facts, &[1, 2]), ["ordered_channel_in_order"], "two are unfinished");
}

#[test]
fn a_deferred_message_that_comes_early_is_noticed() {
    let due = |seconds| {
        move |facts: &mut Vec<Fact>, _: &mut Vec<u32>| {
            facts[0] = Fact::Sent { message: message(1), due: Some(Duration::from_millis(seconds)) };
        }
    };
    assert_eq!(broken(due(3000)), Vec::<String>::new());
    assert_eq!(broken(due(3001)), ["deferred_not_early"]);
}

#[test]
fn a_body_says_which_message_it_is_and_no_other_byte_will_do() {
    let (name, mut body) = (message(12), message(12).body());
    assert_eq!(Message::of(&body), Some(name));
    *body.last_mut().expect("it has bytes") ^= 1;
    assert_eq!(Message::of(&body), None);
    assert_eq!(Message::of(&message(12).body()[..20]), None);
}
