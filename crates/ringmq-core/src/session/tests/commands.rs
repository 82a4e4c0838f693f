//! Every command and every error, from a table: the state, the sent bytes, the host's calls, the client's answer.

use super::*;

struct Case {
    /// Commands sent before, which must go well.
    before: &'static str,
    input: Vec<u8>,
    calls: &'static [&'static str],
    frames: &'static [&'static str],
    fatal: bool,
}

const SUBSCRIBED: &str = "SUB t c\n";
const CLOSED: &str = "SUB t c\nCLS\n";

fn check(case: &Case) {
    let name = format!("{:?} {:?}", case.before, String::from_utf8_lossy(&case.input));
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), case.before.as_bytes(), &mut host);
    for slot in std::mem::take(&mut host.waiting) {
        s.reply_ok(slot);
    }
    assert!(!s.is_closing(), "{name}");
    texts(&mut s);
    host.calls.clear();
    s.on_bytes(at(0), &case.input, &mut host);
    for slot in std::mem::take(&mut host.waiting) {
        s.reply_ok(slot);
    }
    assert_eq!(host.calls, case.calls, "{name}");
    assert_eq!(texts(&mut s), case.frames, "{name}");
    assert_eq!(s.is_closing(), case.fatal, "{name}");
    assert_eq!(s.wants_reading(), !case.fatal, "{name}");
}

fn good(before: &'static str, input: impl Into<Vec<u8>>, calls: &'static [&str], frames: &'static [&str]) {
    check(&Case { before, input: input.into(), calls, frames, fatal: false });
}

fn fatal(before: &'static str, input: impl Into<Vec<u8>>, frames: &'static [&str]) {
    check(&Case { before, input: input.into(), calls: &[], frames, fatal: true });
}

/// A line and a size without the body: commands that are refused before the body comes.
fn announced(line: &str, size: i32) -> Vec<u8> {
    [line.as_bytes(), b"\n", &size.to_be_bytes()].concat()
}

#[test]
fn partitions_are_named() {
    good("", with_body("PUB t 3", b"x"), &["pub t/3 x"], &["= OK"]);
    good("", with_body("PUB t -1", b"x"), &["pub t x"], &["= OK"]);
    good("", with_body("MPUB t 0", &sized(&[b"a", b"b"])), &["mpub t/0 a,b"], &["= OK"]);
    good("", "SUB t c 12\r\n", &["sub t/12 c 60000 0"], &["= OK"]);
    good("", "SUB t c extra params\n", &["sub t c 60000 0"], &["= OK"]);
    good("", "SUB_ORDERED t c 1\n", &["sub t/1 c 60000 0 ordered"], &["= OK"]);
    good("", "SUB_ORDERED t c\n", &["sub t c 60000 0 ordered"], &["= OK"]);
    good("", with_body("PUB t 999999", b"x"), &["pub t/65535 x"], &["= OK"]);
    fatal("", "PUB t +1\n", &[r#"! E_BAD_PARTITION topic partition is not valid: "+1""#]);
    fatal("", "PUB bad topic!\n", &[r#"! E_BAD_TOPIC PUB topic name "bad topic!" is not valid"#]);
    fatal("", "MPUB bad topic!\n", &[r#"! E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad topic!" is not valid"#]);
    fatal("", "MPUB t 1.5\n", &[r#"! E_BAD_PARTITION topic partition is not valid: "1.5""#]);
    fatal("", "SUB t c +1\n", &[r#"! E_BAD_PARTITION topic partition is not valid: "+1""#]);
    good("", with_body("PUB t ", b"x"), &["pub t x"], &["= OK"]);
    fatal("", "SUB_ORDERED t\n", &["! E_INVALID SUB insufficient number of parameters"]);
    fatal(SUBSCRIBED, "SUB_ORDERED t c 1\n", &["! E_INVALID cannot SUB in current state"]);
}

#[test]
fn an_ordered_sub_is_not_sampled() {
    let sampled = [with_body("IDENTIFY", br#"{"sample_rate":50}"#), b"SUB_ORDERED t c 0\n".to_vec()].concat();
    fatal("", sampled, &["= OK", "! E_INVALID SUB_ORDERED does not go with a sample rate"]);
}

/// Ids of an ordered SUB are 16 bytes of any value, and end no line; wherever the bytes are cut.
#[test]
fn ids_of_an_ordered_sub_are_found_by_their_place() {
    let id: [u8; 16] = *b"\n \n \n \n\x02 \n\r \n\r \r";
    let input = [&b"FIN "[..], &id, b"\nREQ ", &id, b" 7\nTOUCH ", &id, b"\r\nNOP\nFIN ", &id, b"\r\nRDY 3\n"].concat();
    for (cut, again) in (1..input.len()).flat_map(|cut| (cut..input.len()).map(move |again| (cut, again))) {
        let (mut s, mut host) = (greeted(), MockHost::default());
        s.on_bytes(at(0), b"SUB_ORDERED t c 0\n", &mut host);
        host.calls.clear();
        s.on_bytes(at(0), &input[..cut], &mut host);
        // A piece that ends with a newline of an id: nobody waits for more of it in a loop.
        s.on_bytes(at(0), &input[cut..again], &mut host);
        s.on_bytes(at(0), &input[again..], &mut host);
        let hex = "a200a200a200a02";
        let calls: Vec<String> = ["fin", "req 7", "touch", "fin"].iter().map(|c| format!("{c} {hex}")).collect();
        assert_eq!((&host.calls[..4], &*host.calls[4]), (&calls[..], "rdy 3"), "cut at {cut} and {again}");
        assert!(!s.is_closing());
    }
    let (mut s, mut host) = (greeted(), MockHost::default());
    s.on_bytes(at(0), b"SUB_ORDERED t c 0\nFIN 0123456789abcdefg\n", &mut host);
    s.reply_ok(host.waiting[0]);
    assert_eq!(texts(&mut s), ["= OK", "! E_INVALID invalid message ID"]);
}

#[test]
fn publishing() {
    good("", with_body("PUB t", b"hello"), &["pub t hello"], &["= OK"]);
    good("", with_body("PUB t#ephemeral", b"x"), &["pub t#ephemeral x"], &["= OK"]);
    good("", with_body("PUB t extra params\r", b"x"), &["pub t x"], &["= OK"]);
    good(SUBSCRIBED, with_body("PUB t", b"x"), &["pub t x"], &["= OK"]);
    good(CLOSED, with_body("PUB t", b"x"), &["pub t x"], &["= OK"]);
    fatal("", "PUB\n", &["! E_INVALID PUB insufficient number of parameters"]);
    fatal("", "PUB a/b\n", &[r#"! E_BAD_TOPIC PUB topic name "a/b" is not valid"#]);
    fatal("", "PUB \n", &[r#"! E_BAD_TOPIC PUB topic name "" is not valid"#]);
    fatal("", b"PUB \xff\n", &[r#"! E_BAD_TOPIC PUB topic name "\xff" is not valid"#]);
    fatal("", announced("PUB t", 0), &["! E_BAD_MESSAGE PUB invalid message body size 0"]);
    fatal("", announced("PUB t", -1), &["! E_BAD_MESSAGE PUB invalid message body size -1"]);
    fatal("", announced("PUB t", 1048577), &["! E_BAD_MESSAGE PUB message too big 1048577 > 1048576"]);
}

#[test]
fn deferred_publishing() {
    good("", with_body("DPUB t 5", b"x"), &["dpub 5 t x"], &["= OK"]);
    good("", with_body("DPUB t#ephemeral 0 more", b"x"), &["pub t#ephemeral x"], &["= OK"]);
    good(SUBSCRIBED, with_body("DPUB t 3600000", b"x"), &["dpub 3600000 t x"], &["= OK"]);
    fatal("", "DPUB t\n", &["! E_INVALID DPUB insufficient number of parameters"]);
    fatal("", "DPUB a/b 5\n", &[r#"! E_BAD_TOPIC DPUB topic name "a/b" is not valid"#]);
    fatal("", "DPUB t x\n", &["! E_INVALID DPUB could not parse timeout x"]);
    fatal("", "DPUB t 2592000001\n", &["! E_INVALID DPUB timeout 2592000001 out of range 0-2592000000"]);
    fatal("", announced("DPUB t 5", 0), &["! E_BAD_MESSAGE DPUB invalid message body size 0"]);
    fatal("", announced("DPUB t 5", 1_048_577), &["! E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"]);
}

#[test]
fn multi_publishing() {
    let mpub = |body: &[u8]| with_body("MPUB t", body);
    good("", mpub(&sized(&[b"a", b"bc"])), &["mpub t a,bc"], &["= OK"]);
    // By count: beyond the limit's check the body size does not matter.
    good("", [&announced("MPUB t", 3)[..], &sized(&[b"a", b"b"])].concat(), &["mpub t a,b"], &["= OK"]);
    let more = [&announced("MPUB t", 500)[..], &sized(&[b"a"]), b"NOP\n", &with_body("PUB t", b"y")].concat();
    good("", more, &["mpub t a", "pub t y"], &["= OK", "= OK"]);
    fatal("", "MPUB\n", &["! E_INVALID MPUB insufficient number of parameters"]);
    fatal("", "MPUB a:b\n", &[r#"! E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a:b" is not valid"#]);
    fatal("", announced("MPUB t", 0), &["! E_BAD_BODY MPUB invalid body size 0"]);
    fatal("", announced("MPUB t", -7), &["! E_BAD_BODY MPUB invalid body size -7"]);
    fatal("", announced("MPUB t", 5242881), &["! E_BAD_BODY MPUB body too big 5242881 > 5242880"]);
    fatal("", mpub(&[0, 0, 0, 0]), &["! E_BAD_BODY MPUB invalid message count 0"]);
    fatal("", mpub(&[255, 255, 255, 255]), &["! E_BAD_BODY MPUB invalid message count -1"]);
    fatal("", mpub(&1_048_576u32.to_be_bytes()), &["! E_BAD_BODY MPUB invalid message count 1048576"]);
    // All or nothing: the first message is not published.
    fatal("", mpub(&sized(&[b"a", b""])), &["! E_BAD_MESSAGE MPUB invalid message(1) body size 0"]);
    let negative = [&sized(&[b"a"])[..], &[]].concat();
    let negative = [&2u32.to_be_bytes(), &negative[4..], &(-1i32).to_be_bytes()].concat();
    fatal("", mpub(&negative), &["! E_BAD_MESSAGE MPUB invalid message(1) body size -1"]);
    let big = [&1u32.to_be_bytes()[..], &1_048_577u32.to_be_bytes()].concat();
    fatal("", mpub(&big), &["! E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"]);
    // More than the limit in messages that each pass theirs.
    let body = vec![b'x'; 1024 * 1024];
    let many = sized(&[&body, &body, &body, &body, &body]);
    let lying = [&announced("MPUB t", 100)[..], &many].concat();
    fatal("", lying, &["! E_BAD_BODY MPUB body too big 5242904 > 5242880"]);
}

#[test]
fn subscribing() {
    good("", "SUB t c\n", &["sub t c 60000 0"], &["= OK"]);
    good("", "SUB t c a b\r\n", &["sub t c 60000 0"], &["= OK"]);
    fatal(SUBSCRIBED, "SUB t c\n", &["! E_INVALID cannot SUB in current state"]);
    fatal(CLOSED, "SUB t c\n", &["! E_INVALID cannot SUB in current state"]);
    fatal("", "SUB\n", &["! E_INVALID SUB insufficient number of parameters"]);
    fatal("", "SUB t\n", &["! E_INVALID SUB insufficient number of parameters"]);
    fatal("", "SUB t: c\n", &[r#"! E_BAD_TOPIC SUB topic name "t:" is not valid"#]);
    fatal("", "SUB t c:\n", &[r#"! E_BAD_CHANNEL SUB channel name "c:" is not valid"#]);
    good(SUBSCRIBED, "RDY 5\nRDY\nRDY 0\nRDY \nRDY 2500\n", &["rdy 5", "rdy 1", "rdy 0", "rdy 0", "rdy 2500"], &[]);
    good(CLOSED, "RDY nonsense\nRDY 99999999\n", &[], &[]);
    fatal("", "RDY 1\n", &["! E_INVALID cannot RDY in current state"]);
    fatal(SUBSCRIBED, "RDY 2501\n", &["! E_INVALID RDY count 2501 out of range 0-2500"]);
    fatal(SUBSCRIBED, "RDY 4294967297\n", &["! E_INVALID RDY count 4294967297 out of range 0-2500"]);
    fatal(SUBSCRIBED, "RDY -1\n", &["! E_INVALID RDY could not parse count -1"]);
    fatal(SUBSCRIBED, "RDY +1\n", &["! E_INVALID RDY could not parse count +1"]);
    fatal(SUBSCRIBED, "RDY 1.5\n", &["! E_INVALID RDY could not parse count 1.5"]);
    fatal(SUBSCRIBED, "RDY 0x1\n", &["! E_INVALID RDY could not parse count 0x1"]);
    good(SUBSCRIBED, "CLS\n", &["cls"], &["= CLOSE_WAIT"]);
    fatal("", "CLS\n", &["! E_INVALID cannot CLS in current state"]);
    fatal(CLOSED, "CLS\n", &["! E_INVALID cannot CLS in current state"]);
}

#[test]
fn messages_in_flight() {
    for before in [SUBSCRIBED, CLOSED] {
        good(before, "FIN 00000000000000a2\n", &["fin a2"], &[]);
        good(before, "REQ 00000000000000a2 50\n", &["req 50 a2"], &[]);
        good(before, "TOUCH 00000000000000a2\n", &["touch a2"], &[]);
    }
    good(SUBSCRIBED, "REQ 00000000000000a2 9999999999\n", &["req 2592000000 a2"], &[]);
    good(SUBSCRIBED, "REQ 00000000000000a2 9999999999999999999999999\n", &["req 2592000000 a2"], &[]);
    good(SUBSCRIBED, "REQ 00000000000000a2 \n", &["req 0 a2"], &[]);
    let failed = &["! E_FIN_FAILED FIN 0000000000000001 failed ID not in flight"];
    good(SUBSCRIBED, "FIN 0000000000000001\n", &["fin 1"], failed);
    let failed = &["! E_REQ_FAILED REQ 0000000000000001 failed ID not in flight"];
    good(SUBSCRIBED, "REQ 0000000000000001 0\n", &["req 0 1"], failed);
    let failed = &["! E_TOUCH_FAILED TOUCH 0000000000000001 failed ID not in flight"];
    good(SUBSCRIBED, "TOUCH 0000000000000001\n", &["touch 1"], failed);
    // No id of ours: not in flight.
    let failed = &["! E_FIN_FAILED FIN 00000000000000A2 failed ID not in flight"];
    good(SUBSCRIBED, "FIN 00000000000000A2\n", &[], failed);
    for short in ["FIN 1\n", "FIN \n", "REQ 1 0\n", "TOUCH 00000000000000001\n"] {
        fatal(SUBSCRIBED, short, &["! E_INVALID invalid message ID"]);
    }
    fatal(SUBSCRIBED, "FIN\n", &["! E_INVALID FIN insufficient number of params"]);
    fatal(SUBSCRIBED, "TOUCH\n", &["! E_INVALID TOUCH insufficient number of params"]);
    fatal(SUBSCRIBED, "REQ 00000000000000a2\n", &["! E_INVALID REQ insufficient number of params"]);
    fatal(SUBSCRIBED, "REQ 00000000000000a2 -1\n", &["! E_INVALID REQ could not parse timeout -1"]);
    fatal("", "FIN 1\n", &["! E_INVALID cannot FIN in current state"]);
    fatal("", "REQ 1 1\n", &["! E_INVALID cannot REQ in current state"]);
    fatal("", "TOUCH 1\n", &["! E_INVALID cannot TOUCH in current state"]);
}

#[test]
fn other_commands() {
    good("", "NOP\nNOP ignored\r\n", &[], &[]);
    fatal("", "\n", &["! E_INVALID invalid command "]);
    fatal("", "pub t\n", &["! E_INVALID invalid command pub"]);
    fatal("", "GET / HTTP/1.1\r\n", &["! E_INVALID invalid command GET"]);
    fatal("", with_body("AUTH", b"secret"), &["! E_AUTH_DISABLED AUTH disabled"]);
    fatal("", "AUTH x\n", &["! E_INVALID AUTH invalid number of parameters"]);
    fatal("", announced("AUTH", 0), &["! E_BAD_BODY AUTH invalid body size 0"]);
    fatal("", announced("AUTH", 5242881), &["! E_BAD_BODY AUTH body too big 5242881 > 5242880"]);
    fatal(SUBSCRIBED, "AUTH\n", &["! E_INVALID cannot AUTH in current state"]);
    fatal(SUBSCRIBED, "IDENTIFY\n", &["! E_INVALID cannot IDENTIFY in current state"]);
    // The limit of a line, its newline included.
    good("", format!("NOP {}\n", "x".repeat(16 * 1024 - 5)), &[], &[]);
    fatal("", format!("NOP {}\n", "x".repeat(16 * 1024 - 4)), &[]);
    fatal("", "x".repeat(16 * 1024), &[]);
}

#[test]
fn a_wrong_magic_is_told_and_closes() {
    let (mut s, mut host) = (session(), MockHost::default());
    s.on_bytes(at(0), b"  V", &mut host);
    assert!(!s.is_closing() && texts(&mut s).is_empty());
    s.on_bytes(at(0), b"1PUB t\n", &mut host);
    assert_eq!(texts(&mut s), ["! E_BAD_PROTOCOL"]);
    assert!(s.is_closing() && host.calls.is_empty());
}

fn identify(json: &str) -> Vec<u8> {
    with_body("IDENTIFY", json.as_bytes())
}

/// The answer to feature negotiation has the values that differ from the defaults.
fn answer(msg_timeout: u64, deflate_level: u64, sample_rate: u64, size: u64, timeout: u64) -> String {
    format!(
        concat!(
            r#"= {{"max_rdy_count":2500,"version":"{}","max_msg_timeout":900000,"msg_timeout":{},"tls_v1":false,"#,
            r#""deflate":false,"deflate_level":{},"max_deflate_level":6,"snappy":false,"sample_rate":{},"#,
            r#""auth_required":false,"output_buffer_size":{},"output_buffer_timeout":{}}}"#
        ),
        crate::codec::nsq::NSQ_VERSION,
        msg_timeout,
        deflate_level,
        sample_rate,
        size,
        timeout
    )
}

#[test]
fn identify_negotiates() {
    let negotiated = |fields: &str| {
        let (mut s, mut host) = (greeted(), MockHost::default());
        s.on_bytes(at(0), &identify(&format!(r#"{{"feature_negotiation":true{fields}}}"#)), &mut host);
        assert!(!s.is_closing());
        // behind it stands, compressed, the OK of who asked for that
        let out = s.take_output().unwrap();
        let len = u32::from_be_bytes(out[..4].try_into().unwrap()) as usize;
        format!("= {}", String::from_utf8_lossy(&out[8..4 + len]))
    };
    assert_eq!(negotiated(""), answer(60000, 6, 0, 16384, 250));
    assert_eq!(negotiated(r#","tls_v1":true,"unknown":{"a":[1]}"#), answer(60000, 6, 0, 16384, 250));
    let deflate = |n| answer(60000, n, 0, 16384, 250).replace(r#""deflate":false"#, r#""deflate":true"#);
    for (asked, level) in [(3, 3), (-4, 6), (0, 6), (9, 6), (300, 6)] {
        assert_eq!(negotiated(&format!(r#","deflate":true,"deflate_level":{asked}"#)), deflate(level));
    }
    assert_eq!(negotiated(r#","deflate_level":3"#), answer(60000, 6, 0, 16384, 250), "of who asks for no deflate");
    assert_eq!(negotiated(r#","output_buffer_size":-1"#), answer(60000, 6, 0, 1, 0));
    assert_eq!(negotiated(r#","output_buffer_timeout":-1"#), answer(60000, 6, 0, 16384, 0));
    assert_eq!(negotiated(r#","output_buffer_size":64,"output_buffer_timeout":25"#), answer(60000, 6, 0, 64, 25));
    assert_eq!(negotiated(r#","msg_timeout":1000,"sample_rate":99"#), answer(1000, 6, 99, 16384, 250));
    assert_eq!(negotiated(r#","msg_timeout":900000,"client_id":null"#), answer(900000, 6, 0, 16384, 250));
}

#[test]
fn a_client_that_asks_for_what_is_not_there_is_named_in_the_log() {
    use crate::codec::nsq::identify::Request;
    let limits = Limits { snappy: false, ..limits() };
    let refused = |json: &str| Request::parse(json.as_bytes()).expect("it is JSON").refused_features(&limits);
    let asked = r#"{"feature_negotiation":true,"tls_v1":true,"snappy":true}"#;
    assert_eq!(refused(asked).as_deref(), Some("tls_v1, snappy"));
    assert_eq!(refused(r#"{"feature_negotiation":true,"deflate":false}"#), None);
    assert_eq!(refused(r#"{"tls_v1":true}"#), None, "no answer tells it anything");
}

/// JSON of IDENTIFY is read as Go reads it.
#[test]
fn the_json_of_identify_is_gos() {
    use crate::codec::nsq::identify::Request;
    let read = |json: &[u8]| Request::parse(json).map_err(|e| e.to_string());
    let of = |json: &str| read(json.as_bytes()).unwrap();
    assert_eq!(of(r#"{"msg_timeout":1000,"msg_timeout":2000}"#).msg_timeout, 2000);
    assert_eq!(of(r#"{"msg_timeout":1000,"msg_timeout":null}"#).msg_timeout, 1000);
    assert!(of(r#"{"TLS_v1":true}"#).tls_v1 && !of(r#"{"tls_v1":true,"Tls_V1":false}"#).tls_v1);
    assert_eq!(of(r#"{"msg_timeout":7,"x":[{"msg_timeout":8}]}"#).msg_timeout, 7);
    assert_eq!(read(b"{\"client_id\":\"a\xff\"}").unwrap().client_id, "a\u{fffd}");
    let texts = [
        (r"\ud83d\ude00", "\u{1f600}"),
        (r"a\ud83d", "a\u{fffd}"),
        (r"\uDE00b", "\u{fffd}b"),
        (r"\ud83d\u0041", "\u{fffd}A"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}\u{1f600}"),
        (r"\\ud83d -0", r"\ud83d -0"),
    ];
    for (json, text) in texts {
        assert_eq!(of(&format!(r#"{{"client_id":"{json}","\ud83d":"\udE00"}}"#)).client_id, text, "{json}");
    }
    assert_eq!(of(r#"{"sample_rate":-0,"msg_timeout": -0 ,"heartbeat_interval":-1}"#).heartbeat_interval, -1);
    for bad in [
        r#"{"msg_timeout":"1"}"#,
        r#"{"msg_timeout":1.5}"#,
        r#"{"tls_v1":1}"#,
        "[]",
        "1",
        "{} {}",
        r#"{"sample_rate":3000000000}"#,
        r#"{"sample_rate":-0.0}"#,
        r#"{"sample_rate":-00}"#,
        r#"{"sample_rate":--0}"#,
        r#"{"client_id":"\ud83"}"#,
        r#"{"client_id":"\"#,
    ] {
        assert_eq!(read(bad.as_bytes()), Err("E_BAD_BODY IDENTIFY failed to decode JSON body".into()), "{bad}");
    }
}

#[test]
fn identify_without_negotiation_is_ok() {
    good("", identify("{}"), &[], &["= OK"]);
    good("", identify(" null "), &[], &["= OK"]);
    good("", identify(r#"{"snappy":true,"deflate":true}"#), &[], &["= OK"]);
    // Repeated, and in force for the SUB.
    let twice = [identify(r#"{"msg_timeout":2000}"#), identify(r#"{"sample_rate":7}"#), b"SUB t c\n".to_vec()].concat();
    good("", twice, &["sub t c 2000 7"], &["= OK", "= OK", "= OK"]);
    let off = [identify(r#"{"heartbeat_interval":-1}"#), b"SUB t c\n".to_vec()].concat();
    fatal("", off, &["= OK", "! E_INVALID cannot SUB with heartbeats disabled"]);
}

#[test]
fn identify_refuses() {
    fatal("", announced("IDENTIFY", 0), &["! E_BAD_BODY IDENTIFY invalid body size 0"]);
    fatal("", announced("IDENTIFY", 5242881), &["! E_BAD_BODY IDENTIFY body too big 5242881 > 5242880"]);
    for json in ["{", "[]", "7", r#"{"sample_rate":"x"}"#, r#"{"msg_timeout":1.5}"#, r#"{"sample_rate":3000000000}"#] {
        fatal("", identify(json), &["! E_BAD_BODY IDENTIFY failed to decode JSON body"]);
    }
    let both = identify(r#"{"feature_negotiation":true,"snappy":true,"deflate":true}"#);
    fatal("", both, &["! E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"]);
    for (field, what, values) in [
        ("heartbeat_interval", "heartbeat interval", &[-2, 1, 999, 60001][..]),
        ("output_buffer_timeout", "output buffer timeout", &[-2, 1, 24, 30001]),
        ("output_buffer_size", "output buffer size", &[-2, 1, 63, 65537]),
        ("sample_rate", "sample rate", &[-1, 100]),
        ("msg_timeout", "msg timeout", &[-1, 1, 999, 900001]),
    ] {
        for value in values {
            let (mut s, mut host) = (greeted(), MockHost::default());
            s.on_bytes(at(0), &identify(&format!(r#"{{"{field}":{value}}}"#)), &mut host);
            assert_eq!(texts(&mut s), [format!("! E_BAD_BODY IDENTIFY {what} ({value}) is invalid")]);
            assert!(s.is_closing());
        }
    }
}

#[test]
fn what_a_client_says_of_itself_is_shown() {
    let (mut s, mut host) = (greeted(), MockHost::default());
    let info = s.client_info();
    assert_eq!((&*info.client_id, &*info.hostname, &*info.user_agent), ("10.0.0.7", "10.0.0.7", ""));
    assert_eq!((&*info.remote_address, info.connected_unix_s), ("10.0.0.7:4711", 1_700_000_000));
    let long = "ü".repeat(500);
    let json = format!(r#"{{"client_id":"me","hostname":"{long}","user_agent":"x/1"}}"#);
    s.on_bytes(at(0), &identify(&json), &mut host);
    let info = s.client_info();
    assert_eq!((&*info.client_id, info.hostname.len(), &*info.user_agent), ("me", 256, "x/1"));
    s.on_bytes(at(0), &[with_body("PUB t", b"x"), with_body("MPUB a", &sized(&[b"x", b"y"]))].concat(), &mut host);
    assert_eq!(s.published().collect::<Vec<_>>(), [("a", 2), ("t", 1)]);
}
