use super::*;
use crate::registry::{Limits, TopicFilter};
use proptest::prelude::*;

const NOW: Now = Now { elapsed: Duration::ZERO, unix_ns: 0 };
const IDENTITY: &[u8] = br#"{"broadcast_address":"b","hostname":"h","http_port":4151,"tcp_port":4150,"version":"1.3.0"}"#;

fn registry() -> Registry {
    let (inactive_producer_timeout, tombstone_lifetime) = (Duration::from_secs(300), Duration::from_secs(45));
    Registry::new(Limits { inactive_producer_timeout, tombstone_lifetime, entries_max: 100 })
}

fn about() -> About {
    About { hostname: "lookup".into(), broadcast_address: "l".into(), tcp_port: 4160, http_port: 4161 }
}

fn identify(body: &[u8]) -> Vec<u8> {
    [b"  V1IDENTIFY\n", &(body.len() as u32).to_be_bytes()[..], body].concat()
}

/// Answers to bytes that come in pieces, and whether the connection goes on.
fn told(registry: &mut Registry, pieces: &[&[u8]]) -> (Vec<String>, Flow) {
    let (mut session, mut out, mut flow) = (Session::new("r:1".into()), Vec::new(), Flow::Continue);
    for piece in pieces {
        flow = session.receive(piece, registry, &about(), NOW, &mut out);
        if flow == Flow::Close {
            break;
        }
    }
    if flow == Flow::Continue {
        session.end_of_input(&mut out);
    }
    let mut answers = Vec::new();
    while let Some((length, rest)) = out.split_first_chunk::<4>() {
        let (text, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        answers.push(String::from_utf8_lossy(text).into_owned());
        out = rest.to_vec();
    }
    (answers, flow)
}

#[test]
fn a_node_registers_and_unregisters() {
    let mut registry = registry();
    let commands = b"REGISTER t c\nREGISTER u\r\nPING\nUNREGISTER t c\n";
    let (answers, flow) = told(&mut registry, &[&identify(IDENTITY), commands]);
    let hello = r#"{"broadcast_address":"l","hostname":"lookup","http_port":4161,"tcp_port":4160,"version":"1.3.0"}"#;
    assert_eq!((answers, flow), ([hello, "OK", "OK", "OK", "OK"].map(String::from).to_vec(), Flow::Continue));
    assert_eq!((registry.topics(), registry.channels(TopicFilter::All)), (vec!["t", "u"], vec!["c"]));
    assert_eq!(registry.lookup(TopicFilter::Topic("t"), NOW).unwrap().producers[0].remote_address, "r:1");
}

#[test]
fn every_error_is_told_and_ends_the_connection() {
    let id = identify(IDENTITY);
    let after_id = |line: &[u8]| [&id[..], line].concat();
    let long = [b"  V1", &vec![b'x'; LINE_BYTES_MAX + 1][..]].concat();
    for (sent, wanted) in [
        (b"  V2".to_vec(), "E_BAD_PROTOCOL"),
        (b"  V1\n".to_vec(), "E_INVALID invalid command "),
        (b"  V1ping\n".to_vec(), "E_INVALID invalid command ping"),
        (b"  V1REGISTER t\n".to_vec(), "E_INVALID client must IDENTIFY"),
        (after_id(b"IDENTIFY\n"), "E_INVALID cannot IDENTIFY again"),
        (after_id(b"REGISTER\n"), "E_INVALID REGISTER insufficient number of params"),
        (after_id(b"UNREGISTER  t\n"), "E_BAD_TOPIC UNREGISTER topic name '' is not valid"),
        (after_id(b"REGISTER t a*b\n"), "E_BAD_CHANNEL REGISTER channel name 'a*b' is not valid"),
        (identify(b"{}"), "E_BAD_BODY IDENTIFY missing fields"),
        (identify(b"x"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1IDENTIFY\n\x7f\xff\xff\xff".to_vec(), "E_BAD_BODY IDENTIFY body is too long"),
        (b"  V1IDENTIFY\n\xff\xff\xff\xff".to_vec(), "E_BAD_BODY IDENTIFY body is too long"),
        (long, "E_INVALID a command is too long"),
    ] {
        let (answers, flow) = told(&mut registry(), &[&sent, b"PING\n"]);
        assert_eq!((answers.last().map(String::as_str), flow), (Some(wanted), Flow::Close), "{sent:?}");
    }
}

#[test]
fn a_body_that_ends_early_is_told() {
    for (sent, wanted) in [
        (&b"  V1IDENTIFY\n\0\0"[..], Some("E_BAD_BODY IDENTIFY failed to read body size")),
        (b"  V1IDENTIFY\n\0\0\0\x09{}", Some("E_BAD_BODY IDENTIFY failed to read body")),
        (b"  V1PIN", None),
        (b"  V", None),
    ] {
        let (answers, _) = told(&mut registry(), &[sent]);
        assert_eq!(answers.last().map(String::as_str), wanted, "{sent:?}");
    }
}

#[test]
fn a_full_registry_ends_no_connection() {
    let mut registry = registry();
    for number in 0..98 {
        registry.create_topic(&Name::new(&format!("t{number}")).unwrap()).unwrap();
    }
    let (answers, flow) = told(&mut registry, &[&identify(IDENTITY), b"REGISTER t c\nREGISTER t\nPING\n"]);
    assert!(answers[1].starts_with("E_TOO_MANY_REGISTRATIONS the registry is full with 100 registrations"), "{answers:?}");
    assert_eq!((&answers[2..], flow), (&["OK".to_owned(), "OK".to_owned()][..], Flow::Continue));
}

proptest! {
    /// However the bytes of commands are cut, and whatever stands among them, the answers are the same and nothing is kept.
    #[test]
    fn pieces_do_not_matter(
        lines in prop::collection::vec(
            prop_oneof!["(REGISTER|UNREGISTER) [tu*]( [cd]?(#ephemeral)?)?", Just("PING".to_owned()), "[ -~]{0,12}"], 0..8),
        garbage in prop::collection::vec(any::<u8>(), 0..40),
        cuts in prop::collection::vec(1..20usize, 1..12),
    ) {
        let sent = [&identify(IDENTITY)[..], (lines.join("\n") + "\n").as_bytes(), &garbage].concat();
        let (mut whole, mut cut) = (registry(), registry());
        let mut pieces = Vec::new();
        let mut rest = &sent[..];
        for length in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at((*length).min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        prop_assert_eq!(told(&mut whole, &[&sent]), told(&mut cut, &pieces));
        prop_assert_eq!(whole.topics(), cut.topics());
    }
}
