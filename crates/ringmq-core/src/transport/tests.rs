//! The layers against other ends of them: snappy's and deflate's own readers and writers. TLS is under test in src/tls and session.

use super::certificate::common_name;
use super::*;
use crate::base::Rng;
use proptest::prelude::*;
use std::io::{Read, Write};

fn with(compression: Compression) -> Transport {
    let mut transport = Transport::new(vec![]);
    transport.begin(Upgrade { tls: false, compression: Some(compression) }, None, &[]).unwrap();
    transport
}

/// Everything that the bytes say, given `cut` at a time; and the last word.
fn decode_all(transport: &mut Transport, bytes: &[u8], cut: usize) -> (Vec<u8>, Decoded) {
    let mut said = vec![];
    for mut piece in bytes.chunks(cut.max(1)) {
        loop {
            let mut plain = vec![];
            let decoded = transport.decode(&mut piece, &mut plain);
            assert!(plain.len() <= 64 * 1024, "{} bytes in one step", plain.len());
            said.extend(plain);
            match decoded {
                Decoded::More => {}
                Decoded::Dry => break,
                last => return (said, last),
            }
        }
    }
    (said, Decoded::Dry)
}

/// Bytes of a client that flushes after each write.
fn squeezed(compression: Compression, writes: &[Vec<u8>]) -> Vec<u8> {
    match compression {
        Compression::Snappy => {
            let mut to = snap::write::FrameEncoder::new(vec![]);
            for write in writes {
                to.write_all(write).unwrap();
                to.flush().unwrap();
            }
            to.into_inner().unwrap()
        }
        Compression::Deflate(level) => {
            let mut to = flate2::write::DeflateEncoder::new(vec![], flate2::Compression::new(level.into()));
            for write in writes {
                to.write_all(write).unwrap();
                to.flush().unwrap();
            }
            to.get_ref().clone()
        }
    }
}

/// Bytes that a client reads.
fn unfolded(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut said = vec![];
    match compression {
        Compression::Snappy => drop(snap::read::FrameDecoder::new(bytes).read_to_end(&mut said).unwrap()),
        // the stream has no end, and that is told as an error
        Compression::Deflate(_) => drop(flate2::read::DeflateDecoder::new(bytes).read_to_end(&mut said)),
    }
    said
}

/// Text, noise and zeros: data that compresses well, not at all, and extremely well.
fn writes() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let write = (0u8..3, 1usize..200_000, any::<u64>()).prop_map(|(kind, len, seed)| {
        let mut rng = Rng::new(seed);
        match kind {
            0 => (0..len).map(|i| b"abcdefgh "[(i / 3 + (rng.below(20) == 0) as usize) % 9]).collect(),
            1 => (0..len).map(|_| rng.below(256) as u8).collect(),
            _ => vec![0; len],
        }
    });
    prop::collection::vec(write, 1..5)
}

const ALL: [Compression; 4] = [Compression::Snappy, Compression::Deflate(1), Compression::Deflate(6), Compression::Deflate(9)];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_a_client_writes_is_read_however_it_is_cut(writes in writes(), which in 0usize..4, cut in 1usize..70_000) {
        let bytes = squeezed(ALL[which], &writes);
        let (said, last) = decode_all(&mut with(ALL[which]), &bytes, cut);
        prop_assert_eq!(last, Decoded::Dry);
        prop_assert!(said == writes.concat());
    }

    #[test]
    fn what_is_written_a_client_reads_write_by_write(writes in writes(), which in 0usize..4) {
        let (mut transport, mut bytes, mut said) = (with(ALL[which]), vec![], vec![]);
        for write in &writes {
            transport.seal(write).unwrap();
            bytes.extend(transport.take_output());
            said.extend_from_slice(write);
            prop_assert!(unfolded(ALL[which], &bytes) == said, "all of a write is there at once");
        }
    }

    #[test]
    fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..3000), which in 0usize..4, begun: bool) {
        let mut all = if begun { squeezed(ALL[which], &[b"begun".to_vec()]) } else { vec![] };
        all.extend(bytes);
        let mut transport = with(ALL[which]);
        let (_, last) = decode_all(&mut transport, &all, 100);
        if !matches!(last, Decoded::Dry) {
            prop_assert_eq!(decode_all(&mut transport, &all, 100), (vec![], Decoded::Dry), "an end comes once");
            prop_assert!(!transport.has_kept());
        }
    }
}

/// A gigabyte of zeros in a megabyte: each step has its bound, and what is not asked for stays folded.
#[test]
fn a_bomb_is_taken_a_piece_at_a_time() {
    for compression in ALL {
        let bytes = squeezed(compression, &vec![vec![0; 1 << 20]; 32]);
        let mut transport = with(compression);
        transport.keep(&bytes);
        let (mut steps, mut said) = (0, 0);
        while transport.has_kept() {
            let mut plain = vec![];
            assert_eq!(transport.decode(&mut &[][..], &mut plain), Decoded::More);
            assert!(plain.len() <= 64 * 1024 && transport.held_bytes() <= 2 * bytes.len() + KEPT);
            (steps, said) = (steps + 1, said + plain.len());
        }
        assert_eq!(said, 32 << 20, "{compression:?} after {steps} steps");
    }
}

#[test]
fn garbage_is_named() {
    let fault = |compression, bytes: &[u8]| match decode_all(&mut with(compression), bytes, 7) {
        (_, Decoded::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    };
    let snappy = |bytes: &[u8]| fault(Compression::Snappy, bytes);
    assert!(snappy(b"SUB t c\n").contains("does not begin with snappy's stream identifier"));
    let begun = |rest: &[u8]| [b"\xff\x06\x00\x00sNaPpY", rest].concat();
    assert!(snappy(&begun(b"\x02\x00\x00\x00")).contains("unknown kind 0x02"));
    assert!(snappy(&begun(b"\x00\xff\xff\xff")).contains("a chunk of 16777215 bytes"), "refused before it is collected");
    assert!(snappy(&begun(b"\x00\x06\x00\x00aaaa\x01\xff")).contains("cannot be decompressed"));
    assert!(snappy(&begun(b"\x01\x05\x00\x00aaaab")).contains("checksum"));
    assert!(snappy(&begun(b"\x00\x08\x00\x00aaaa\xff\xff\xff\x7f")).contains("more than 64 KiB"));
    assert!(snappy(b"\xff\x06\x00\x00sNaPpX").contains("another one"));
    assert!(fault(Compression::Deflate(6), b"\xff\xff\xff\xff").contains("raw deflate"));
    let mut damaged = squeezed(Compression::Snappy, &[vec![7; 5000]]);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(decode_all(&mut with(Compression::Snappy), &damaged, 99).1, Decoded::Fault(_)));
}

#[test]
fn chunks_to_skip_are_skipped_and_cost_no_memory() {
    let mut bytes = b"\xff\x06\x00\x00sNaPpY\x80\xff\xff\xff".to_vec();
    bytes.resize(bytes.len() + 0xff_ffff, 9);
    bytes.extend(&squeezed(Compression::Snappy, &[b"behind".to_vec()]));
    for cut in [1 << 20, 4099] {
        let mut transport = with(Compression::Snappy);
        assert_eq!(decode_all(&mut transport, &bytes, cut), (b"behind".to_vec(), Decoded::Dry));
    }
}

#[test]
fn a_finished_stream_is_an_end() {
    let mut to = flate2::write::DeflateEncoder::new(vec![], flate2::Compression::new(6));
    to.write_all(b"last words").unwrap();
    let bytes = to.finish().unwrap();
    assert_eq!(decode_all(&mut with(Compression::Deflate(6)), &bytes, 3), (b"last words".to_vec(), Decoded::End));
}

#[test]
fn the_common_name_is_found_and_no_bytes_break_that() {
    let named = |name: Option<&str>| {
        let mut params = rcgen::CertificateParams::new(vec!["x".to_string()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "org");
        name.into_iter().for_each(|name| params.distinguished_name.push(rcgen::DnType::CommonName, name));
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    };
    let der = named(Some("bär"));
    assert_eq!(common_name(&der).as_deref(), Some("bär"));
    assert_eq!(common_name(&named(None)), None);
    for cut in 0..der.len().min(200) {
        let _ = common_name(&der[..cut]);
        let mut bent = der.clone();
        bent[cut] ^= 0xff;
        let _ = common_name(&bent);
    }
}
