//! Entry points for fuzz/: arbitrary bytes of a client, cut anywhere, through frames, metadata and payload checks.

use super::ROOM;
use crate::codec::input::{Frame, Input};
use crate::codec::native::{Header, Reply, Request, frame};

/// The first byte says how the rest is cut into receives.
pub fn native_input(data: &[u8]) {
    let Some((&cut, rest)) = data.split_first() else { return };
    let mut input = Input::new(1 << 20, ROOM);
    for mut bytes in rest.chunks(cut as usize + 1) {
        while !bytes.is_empty() {
            let before = bytes.len();
            let mut taken = false;
            let mut look = |f: Frame<'_>| {
                taken = true;
                let _ = Request::decode(f.header.kind, f.metadata);
                let _ = Reply::decode(f.header.kind, f.metadata);
                let _ = f.header.check_payload(f.payload.get(ROOM..).unwrap_or_default());
            };
            match input.next(&mut bytes, |h| h.kind % 2 == 0, &mut look) {
                Ok(_) => assert!(taken || bytes.len() < before, "it goes on"),
                Err(_) => return,
            }
        }
        assert!(input.held_bytes() <= 4 * data.len() + 256 * 1024, "a length alone costs no memory");
    }
}

/// Metadata with a valid checksum, which a hostile client can make itself.
pub fn native_metadata(data: &[u8]) {
    let Some((&kind, metadata)) = data.split_first() else { return };
    let _ = Request::decode(kind, metadata);
    let _ = Reply::decode(kind, metadata);
    let mut sealed = vec![];
    if metadata.len() <= frame::META_MAX {
        frame::encode(&mut sealed, kind, 1, metadata, 0, 0);
        let found = Header::parse(&sealed, frame::FRAME_MAX).expect("sealed").expect("whole");
        assert_eq!((found.0.kind, &found.1[..metadata.len()]), (kind, metadata));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(data: Vec<u8>) {
            super::native_input(&data);
            super::native_metadata(&data);
        }
    }
}
