//! Entry points for fuzz/: arbitrary bytes of a peer, through frames, metadata and payloads. A decoded message encodes again, and
//! decodes to the same.

use super::frame::{FRAME_MAX, HELLO_FRAME_MAX};
use super::{Encoder, Frame, Sequences};
use crate::codec::frame::{Header, META_MAX, Payload, encode};
use bytes::Bytes;

/// The bytes of a connection, before and after the handshake.
pub fn peer_stream(data: &[u8]) {
    for max in [HELLO_FRAME_MAX, FRAME_MAX] {
        let (mut rest, mut seen) = (data, Sequences::default());
        while let Ok(Some((header, metadata))) = Header::parse(rest, max) {
            let Some((frame, after)) = rest.split_at_checked(header.frame_len()) else { break };
            let payload = &frame[header.frame_len() - header.payload_len..];
            if header.check_payload(payload).is_err() || seen.check(&header).is_err() {
                break;
            }
            say_again(&header, metadata, &Bytes::copy_from_slice(payload));
            rest = after;
        }
    }
}

/// Frames with valid checksums, which a hostile peer can make itself. Kind, lane, bytes of payload, then both parts.
pub fn peer_metadata(data: &[u8]) {
    let Some((&[kind, lane, payload_len], rest)) = data.split_first_chunk::<3>() else { return };
    let (payload, metadata) = rest.split_at((payload_len as usize).min(rest.len()));
    let metadata = &metadata[..metadata.len().min(META_MAX)];
    let mut sealed = vec![];
    encode(&mut sealed, kind, lane, 1, metadata, Payload::of(payload), FRAME_MAX);
    let (header, metadata) = Header::parse(&sealed, FRAME_MAX).expect("sealed").expect("whole");
    say_again(&header, metadata, &Bytes::copy_from_slice(payload));
}

fn say_again(header: &Header, metadata: &[u8], payload: &Bytes) {
    let Ok(Frame::Messages(messages)) = Frame::decode(header, metadata, payload) else { return };
    let lane = super::frame::lane(header).expect("it was decoded");
    let mut out = vec![];
    Encoder::default().messages(&mut out, lane, &messages);
    let bytes = Bytes::from(out.concat());
    let (mut at, mut again) = (0, vec![]);
    while at < bytes.len() {
        let (header, metadata) = Header::parse(&bytes[at..], FRAME_MAX).expect("sealed").expect("whole");
        let end = at + header.frame_len();
        match Frame::decode(&header, metadata, &bytes.slice(end - header.payload_len..end)) {
            Ok(Frame::Messages(some)) => again.extend(some),
            other => panic!("what was encoded is {other:?}"),
        }
        at = end;
    }
    assert_eq!(again, messages);
}
