//! Order of replies, stalls, bounds, time, and moves between cores.

use super::*;
use crate::seam::outcome::{InFlightCommand, InFlightError, PublishError};

fn publishes(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| with_body("PUB t", i.to_string().as_bytes())).collect()
}

#[test]
fn replies_leave_in_command_order() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    let bytes = [publishes(2), b"SUB t c\n".to_vec(), b"FIN 0000000000000001\nCLS\n".to_vec()].concat();
    s.on_bytes(at(0), &bytes, &mut host);
    assert_eq!(host.calls, ["pub t 0", "pub t 1", "sub t c 60000 0", "fin 1", "cls"]);
    assert!(s.is_output_full(), "no message may overtake the answer to SUB");
    s.reply_ok(ReplySlot(2));
    s.reply_ok(ReplySlot(1));
    assert_eq!(texts(&mut s), [""; 0]);
    s.reply_ok(ReplySlot(0));
    let failed = "! E_FIN_FAILED FIN 0000000000000001 failed ID not in flight";
    assert_eq!(texts(&mut s), ["= OK", "= OK", "= OK", failed, "= CLOSE_WAIT"]);
    assert!(!s.is_output_full() && s.is_quiet());
}

#[test]
fn a_fatal_error_leaves_after_earlier_replies_and_ends_all() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), &[publishes(1), b"BAD\n".to_vec(), publishes(1)].concat(), &mut host);
    assert!(!s.is_closing() && !s.wants_reading());
    s.on_bytes(at(0), &publishes(1), &mut host);
    assert_eq!(host.calls.len(), 1);
    s.reply_ok(ReplySlot(0));
    assert!(s.is_closing());
    assert_eq!(texts(&mut s), ["= OK", "! E_INVALID invalid command BAD"]);
    s.in_flight_failed(MessageId(1), InFlightCommand::Touch, InFlightError::NotInFlight);
    assert_eq!(texts(&mut s), [""; 0]);
}

#[test]
fn a_publish_that_fails_is_fatal_and_nothing_leaves_after_it() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    let bytes = [publishes(1), with_body("MPUB t", &sized(&[b"a"])), publishes(2)].concat();
    s.on_bytes(at(0), &bytes, &mut host);
    s.reply_ok(ReplySlot(2));
    s.fail(ReplySlot(1), PublishError::DiskFull);
    assert!(!s.is_closing() && !s.wants_reading());
    s.reply_ok(ReplySlot(0));
    assert!(s.is_closing());
    s.reply_ok(ReplySlot(3));
    s.fail(ReplySlot(3), PublishError::Unknown);
    let full = format!("! E_MPUB_FAILED MPUB failed {}", PublishError::DiskFull);
    assert_eq!(texts(&mut s), ["= OK".to_owned(), full]);
}

#[test]
fn a_client_that_ends_its_side_hears_all_its_answers() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), &[with_body("PUB t", b"a"), with_body("PUB t", b"b")].concat(), &mut host);
    s.on_end();
    assert!(!s.is_closing() && !s.wants_reading());
    s.reply_ok(host.waiting[0]);
    assert!(!s.is_closing());
    s.reply_ok(host.waiting[1]);
    assert!(s.is_closing());
    assert_eq!(texts(&mut s), ["= OK", "= OK"]);
    // in the middle of a body, and while it stalls
    let (mut s, mut host) = (greeted(), MockHost { next: vec![CommandTaken::Stall], ..MockHost::default() });
    s.on_bytes(at(0), &[&with_body("PUB t", b"a")[..], b"PUB t\n\0\0\0\x05ab"].concat(), &mut host);
    s.on_end();
    assert!(!s.is_closing(), "something waits");
    s.resume(at(1), &mut host);
    s.reply_ok(host.waiting[0]);
    assert_eq!(texts(&mut s), ["= OK", "! E_BAD_MESSAGE PUB failed to read message body"]);
    assert!(s.is_closing());
    for (wire, wanted) in [(&b"PUB t"[..], &[][..]), (b"", &[]), (b"MPUB t\n", &["! E_BAD_BODY MPUB failed to read body size"])] {
        let (mut s, mut host) = (greeted(), MockHost::default());
        s.on_bytes(at(0), wire, &mut host);
        s.on_end();
        assert_eq!(texts(&mut s), wanted);
        assert!(s.is_closing());
    }
}

#[test]
#[should_panic(expected = "answered before")]
fn a_slot_is_answered_once() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), &publishes(3), &mut host);
    s.reply_ok(ReplySlot(1));
    s.reply_ok(ReplySlot(1));
}

#[test]
fn a_subscription_refused_without_closing_may_be_tried_again() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    host.next = vec![CommandTaken::Refused(ClientError::passing("E_SUB_FAILED", "later"))];
    s.on_bytes(at(0), b"SUB t c\n", &mut host);
    s.on_bytes(at(0), b"SUB t c\n", &mut host);
    s.reply(host.waiting[0], Err(ClientError::passing("E_SUB_FAILED", "not now")));
    assert_eq!((s.state(), s.is_output_full()), (ConnectionState::Init, false));
    s.on_bytes(at(0), b"SUB t c\n", &mut host);
    s.reply_ok(host.waiting[1]);
    assert_eq!(texts(&mut s), ["! E_SUB_FAILED later", "! E_SUB_FAILED not now", "= OK"]);
    assert_eq!(s.state(), ConnectionState::Subscribed);
}

#[test]
fn a_stalled_command_waits_with_all_that_follows() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    host.next = vec![CommandTaken::Stall, CommandTaken::Stall, CommandTaken::Accepted];
    s.on_bytes(at(5), &publishes(3), &mut host);
    assert_eq!(host.calls, ["pub t 0", "pub t 1"]);
    assert_eq!((s.stalled_since(), s.wants_reading()), (Some(at(5).ticks), false));
    s.on_bytes(at(6), &publishes(1)[..7], &mut host);
    s.resume(at(7), &mut host);
    assert_eq!(s.stalled_since(), Some(at(5).ticks), "it has waited since then");
    s.resume(at(8), &mut host);
    assert!(!s.is_stalled() && s.wants_reading());
    s.on_bytes(at(9), &publishes(1)[7..], &mut host);
    assert_eq!(host.calls, ["pub t 0", "pub t 1", "pub t 1", "pub t 1", "pub t 2", "pub t 0"]);
    assert_eq!((s.buffered(), host.waiting.len()), (0, 4));
}

#[test]
fn a_stall_can_end_in_an_error() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    host.next = vec![CommandTaken::Stall];
    s.on_bytes(at(0), &publishes(2), &mut host);
    s.fail_stalled(ClientError::passing("E_PUB_FAILED", "x"));
    assert!(!s.is_stalled());
    // Bytes before resume: buffered bytes come first.
    s.on_bytes(at(0), &publishes(1), &mut host);
    s.resume(at(0), &mut host);
    assert_eq!(host.calls, ["pub t 0", "pub t 1", "pub t 0"]);
    host.next = vec![CommandTaken::Stall];
    s.on_bytes(at(0), &publishes(2), &mut host);
    s.fail_stalled(ClientError::fatal("E_PUB_TOO_MUCH_WAITING", "PUB waited too long"));
    s.resume(at(0), &mut host);
    host.waiting.iter().for_each(|&slot| s.reply_ok(slot));
    let last = "! E_PUB_TOO_MUCH_WAITING PUB waited too long";
    assert_eq!(texts(&mut s), ["! E_PUB_FAILED x", "= OK", "= OK", last]);
    assert!(s.is_closing());
}

#[test]
fn a_failed_stall_leaves_no_whole_command_lying() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    host.next = vec![CommandTaken::Stall];
    s.on_bytes(at(0), &publishes(2), &mut host);
    s.fail_stalled(ClientError::passing("E_PUB_FAILED", "x"));
    // Neither a newline nor a body is lacking, although the next bytes bring none.
    s.on_bytes(at(0), b"N", &mut host);
    assert_eq!(host.calls, ["pub t 0", "pub t 1"]);
    assert_eq!(s.buffered(), 1);
}

#[test]
fn a_quiet_session_moves_with_what_it_stalls_on() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), &with_body("IDENTIFY", br#"{"client_id":"me","msg_timeout":5000}"#), &mut host);
    s.on_bytes(at(0), &publishes(1), &mut host);
    s.reply_ok(ReplySlot(0));
    texts(&mut s);
    host.next = vec![CommandTaken::Stall];
    s.on_bytes(at(0), b"SUB t c\nRDY 1\nRD", &mut host);
    assert!(s.is_quiet());
    let (carried, unread) = s.carry();
    assert_eq!(unread, b"SUB t c\nRDY 1\nRD");
    let mut s = Session::adopt(ConnId(9), Peer("10.0.0.7:4711".into()), carried, Arc::new(limits()), at(1));
    host.calls.clear();
    s.on_bytes(at(1), &unread, &mut host);
    s.on_bytes(at(1), b"Y 2\n", &mut host);
    assert_eq!(host.calls, ["sub t c 5000 0", "rdy 1", "rdy 2"]);
    assert_eq!((s.client_info().client_id, s.client_info().connected_unix_s), ("me".into(), 1_700_000_000));
    assert_eq!(s.published().collect::<Vec<_>>(), [("t", 1)]);
}

#[test]
fn reading_stops_at_the_bounds() {
    let (mut s, mut host) = (session_with(Limits { replies_max: 10, ..limits() }), MockHost::default());
    s.on_bytes(at(0), b"  V2", &mut host);
    s.on_bytes(at(0), &publishes(9), &mut host);
    assert!(s.wants_reading());
    s.on_bytes(at(0), &publishes(1), &mut host);
    assert!(!s.wants_reading());
    s.reply_ok(ReplySlot(0));
    assert!(s.wants_reading());
    for slot in 1..10 {
        s.reply_ok(ReplySlot(slot));
    }
    assert!(!s.is_output_full());
    s.output().resize(300 * 1024, 0);
    assert!(s.is_output_full() && s.wants_reading());
    s.output().resize(2 * 1024 * 1024, 0);
    assert!(!s.wants_reading());
    let taken = s.take_output().unwrap().len();
    assert!(s.is_output_full() && s.take_output().is_none());
    s.on_sent(taken);
    assert!(!s.is_output_full() && s.wants_reading() && s.is_quiet());
}

#[test]
fn heartbeats_come_each_interval_until_the_client_is_silent_for_two() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    assert_eq!(s.deadline(), Some(at(30_000).ticks));
    s.tick(at(29_999));
    assert_eq!(texts(&mut s), [""; 0]);
    s.tick(at(30_000));
    assert_eq!(texts(&mut s), ["= _heartbeat_"]);
    s.on_bytes(at(31_000), b"NOP\n", &mut host);
    s.tick(at(60_000));
    s.tick(at(90_000));
    assert_eq!(texts(&mut s), ["= _heartbeat_"; 2]);
    assert_eq!(s.deadline(), Some(at(91_000).ticks));
    s.tick(at(91_000));
    assert!(s.is_closing() && s.deadline().is_none());
}

#[test]
fn half_a_command_does_not_keep_a_connection() {
    let (mut s, mut host) = (session(), MockHost::default());
    for ms in (0..60_000).step_by(1000) {
        s.on_bytes(at(ms), if ms == 0 { b"  V2" } else { b"x" }, &mut host);
        s.tick(at(ms));
    }
    assert!(!s.is_closing());
    s.on_bytes(at(59_999), b"x", &mut host);
    s.tick(at(60_000));
    assert!(s.is_closing());
    // Nor does the magic that never comes.
    let mut s = session();
    s.tick(at(60_000));
    assert!(s.is_closing() && s.take_output().is_none());
}

#[test]
fn a_client_without_heartbeats_is_left_alone() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), &with_body("IDENTIFY", br#"{"heartbeat_interval":-1}"#), &mut host);
    assert_eq!(s.deadline(), None);
    s.tick(at(10_000_000));
    assert!(!s.is_closing());
    s.on_bytes(at(10_000_000), &with_body("IDENTIFY", br#"{"heartbeat_interval":1000}"#), &mut host);
    assert_eq!(s.deadline(), Some(at(10_001_000).ticks));
}

#[test]
fn a_stall_is_not_the_clients_fault() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    host.next = vec![CommandTaken::Stall];
    s.on_bytes(at(0), &publishes(1), &mut host);
    for ms in (0..300_000).step_by(30_000) {
        s.tick(at(ms));
    }
    assert!(!s.is_closing());
    s.resume(at(300_000), &mut host);
    s.reply_ok(ReplySlot(0));
    s.tick(at(359_999));
    assert!(!s.is_closing());
    s.tick(at(360_000));
    assert!(s.is_closing());
}

#[test]
fn a_client_that_takes_nothing_is_given_up() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.output().resize(3 * 1024 * 1024, 0);
    let len = s.take_output().unwrap().len();
    for beat in 1..=4 {
        s.on_bytes(at(beat * 30_000), b"NOP\n", &mut host);
        s.tick(at(beat * 30_000));
        if beat < 4 {
            assert!(!s.is_closing(), "it took some");
            s.on_sent(10);
        }
    }
    s.tick(at(150_000));
    assert!(!s.is_closing());
    s.tick(at(180_000));
    assert!(s.is_closing());
    assert_eq!(s.unsent(), len - 30, "no heartbeat was heaped upon it");
}

#[test]
fn an_idle_session_is_small() {
    let size = size_of::<Session>();
    assert!(size <= 448, "{size}");
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), &publishes(5000), &mut host);
    // Five thousand pipelined publishes are one run: none costs memory of its own.
    assert!(s.held_bytes() < 1024, "{}", s.held_bytes());
    s.on_bytes(at(0), &with_body("PUB t", &[0; 100_000])[..50_000], &mut host);
    s.on_bytes(at(0), &with_body("PUB t", &[0; 100_000])[50_000..], &mut host);
    host.waiting.iter().rev().for_each(|&slot| s.reply_ok(slot));
    assert_eq!(texts(&mut s).len(), 5001);
    assert_eq!(s.held_bytes(), 0);
}
