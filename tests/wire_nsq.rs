//! The NSQ V2 wire form, byte for byte. A change here breaks clients in the field.

use ringmq::base::MessageId;
use ringmq::codec::nsq::identify::{Negotiated, Request};
use ringmq::codec::nsq::layers::Upgrade;
use ringmq::codec::nsq::{ClientError, Limits, frame, request};
use ringmq::config::Settings;

#[test]
fn a_response_frame() {
    let mut out = Vec::new();
    frame::response(&mut out, b"OK");
    assert_eq!(out, b"\x00\x00\x00\x06\x00\x00\x00\x00OK");
    out.clear();
    frame::response(&mut out, b"_heartbeat_");
    assert_eq!(out, b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_");
}

#[test]
fn an_error_frame() {
    let mut out = Vec::new();
    frame::error(&mut out, &ClientError::fatal("E_INVALID", "cannot SUB in current state"));
    assert_eq!(out, b"\x00\x00\x00\x29\x00\x00\x00\x01E_INVALID cannot SUB in current state");
    out.clear();
    frame::bare_error(&mut out, "E_BAD_PROTOCOL");
    assert_eq!(out, b"\x00\x00\x00\x12\x00\x00\x00\x01E_BAD_PROTOCOL");
}

#[test]
fn a_message_frame() {
    let mut out = Vec::new();
    frame::message(&mut out, 0x0102_0304_0506_0708, 0x0a0b, MessageId(0x00c0_0000_0000_002a), b"body");
    let want = b"\x00\x00\x00\x22\x00\x00\x00\x02\x01\x02\x03\x04\x05\x06\x07\x08\x0a\x0b00c000000000002abody";
    assert_eq!(out, want);
}

#[test]
fn commands() {
    let id = b"00c000000000002a";
    let mut out = Vec::new();
    request::identify(&mut out, b"{}");
    request::subscribe(&mut out, "t", "c");
    request::ready(&mut out, 25);
    request::publish(&mut out, "t", b"hello");
    request::multi_publish(&mut out, "t", [&b"a"[..], b"bc"].into_iter());
    request::finish(&mut out, id);
    request::requeue(&mut out, id, 1500);
    request::touch(&mut out, id);
    request::close(&mut out);
    request::nop(&mut out);
    let want = [
        &b"IDENTIFY\n\x00\x00\x00\x02{}"[..],
        b"SUB t c\nRDY 25\n",
        b"PUB t\n\x00\x00\x00\x05hello",
        b"MPUB t\n\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x02bc",
        b"FIN 00c000000000002a\nREQ 00c000000000002a 1500\nTOUCH 00c000000000002a\nCLS\nNOP\n",
    ];
    assert_eq!(out, want.concat());
}

#[test]
fn the_answer_to_identify() {
    let limits = Limits { version: "1.2.3".into(), ..Limits::from(&Settings::default()) };
    let json = br#"{"feature_negotiation":true,"tls_v1":true,"deflate":true,"sample_rate":5,"msg_timeout":30000}"#;
    let request = Request::parse(json).unwrap();
    let negotiated = request.negotiate(&Negotiated::new(&limits), &limits).unwrap();
    let upgrade = request.upgrade(&limits, Upgrade::default()).unwrap();
    let answer = String::from_utf8(request.answer(&negotiated, upgrade, &limits)).unwrap();
    let want = concat!(
        r#"{"max_rdy_count":2500,"version":"1.2.3","max_msg_timeout":900000,"msg_timeout":30000,"tls_v1":false,"#,
        r#""deflate":true,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":5,"#,
        r#""auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250}"#
    );
    assert_eq!(answer, want);
}
