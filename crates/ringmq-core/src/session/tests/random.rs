//! Any cut of the input, any order of completion, any bytes.

use super::*;
use crate::session::fuzz::Socket;
use proptest::prelude::*;

/// Strategy for a single command, sometimes a wrong one.
fn command() -> impl Strategy<Value = Vec<u8>> {
    let text = |s: &str| Just(s.as_bytes().to_vec()).boxed();
    let body = proptest::collection::vec(any::<u8>(), 1..300);
    prop_oneof![
        10 => body.clone().prop_map(|b| with_body("PUB t", &b)),
        5 => proptest::collection::vec(body, 1..6)
            .prop_map(|b| with_body("MPUB u", &sized(&b.iter().map(Vec::as_slice).collect::<Vec<_>>()))),
        2 => text("SUB t c\n"),
        3 => any::<u64>().prop_map(|id| format!("FIN {id:016x}\n").into_bytes()),
        3 => any::<(u64, u16)>().prop_map(|(id, ms)| format!("REQ {id:016x} {ms}\r\n").into_bytes()),
        2 => text("RDY 10\n"),
        4 => text("NOP\n"),
        1 => text("CLS\n"),
        1 => Just(with_body("IDENTIFY", br#"{"feature_negotiation":true}"#)),
        1 => Just(vec![b'x'; 17_000]),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

/// A whole session, its input cut at `cuts`; calls, output, and whether it closed. A publish after every `stall`th cut stalls once.
/// Of bodies so many missing bytes are received in place.
fn walk(bytes: &[u8], cuts: &[usize], stall: usize, in_place_min: usize) -> (Vec<String>, Vec<u8>, bool) {
    let (mut s, mut host) = (session_with(Limits { in_place_min, ..limits() }), MockHost::default());
    let mut socket = Socket::default();
    let mut cuts: Vec<_> = cuts.iter().map(|c| c % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
    cuts.sort_unstable();
    for (i, pair) in cuts.windows(2).enumerate() {
        if stall > 0 && i % stall == 0 {
            host.next = vec![CommandTaken::Stall];
        }
        socket.receive(&mut s, at(0), &bytes[pair[0]..pair[1]], &mut host);
        assert!(s.is_stalled() || s.buffered() <= 5 * 1024 * 1024 + 16 * 1024 + 4);
        if s.is_stalled() {
            // The call that stalled comes again.
            host.calls.pop();
            s.resume(at(0), &mut host);
        }
    }
    socket.end(&mut s, at(0), &mut host);
    host.waiting.iter().for_each(|&slot| s.reply_ok(slot));
    let closing = s.is_closing();
    (host.calls, s.take_output().unwrap_or_default(), closing)
}

proptest! {
    #[test]
    fn cuts_and_stalls_change_nothing(
        commands in proptest::collection::vec(command(), 1..40),
        cuts in proptest::collection::vec(any::<usize>(), 0..60),
        stall in 0usize..4,
        in_place_min in prop_oneof![1usize..400, Just(usize::MAX)],
    ) {
        let bytes = [b"  V2".to_vec(), commands.concat()].concat();
        let whole = walk(&bytes, &[], 0, usize::MAX);
        prop_assert_eq!(&walk(&bytes, &cuts, stall, in_place_min), &whole);
        let every: Vec<_> = (0..bytes.len()).collect();
        prop_assert_eq!(&walk(&bytes, &every, 0, in_place_min), &whole);
    }

    #[test]
    fn any_order_of_completion_gives_the_order_of_commands(
        kinds in proptest::collection::vec(0u8..4, 1..80),
        keys in proptest::collection::vec(any::<u32>(), 80),
    ) {
        let (mut s, mut host) = (greeted(), MockHost::default());
        s.on_bytes(at(0), b"SUB t c\n", &mut host);
        s.reply_ok(ReplySlot(0));
        texts(&mut s);
        host.waiting.clear();
        let mut want = Vec::new();
        for (i, kind) in kinds.iter().enumerate() {
            match kind {
                0 | 1 => {
                    s.on_bytes(at(0), &with_body("PUB t", b"x"), &mut host);
                    want.push(if keys[i] % 5 == 0 { format!("! E_X {i}") } else { "= OK".to_owned() });
                }
                2 => s.on_bytes(at(0), b"NOP\n", &mut host),
                _ => {
                    s.on_bytes(at(0), b"FIN 0000000000000001\n", &mut host);
                    want.push("! E_FIN_FAILED FIN 0000000000000001 failed ID not in flight".to_owned());
                }
            }
        }
        let published = kinds.iter().enumerate().filter(|(_, k)| **k < 2).map(|(i, _)| i);
        let mut order: Vec<_> = host.waiting.iter().copied().zip(published).collect();
        order.sort_by_key(|(slot, i)| (keys[79 - i], *slot));
        let mut got = Vec::new();
        for (slot, i) in order {
            if keys[i] % 5 == 0 {
                s.reply(slot, Err(ClientError::passing("E_X", i.to_string())));
            } else {
                s.reply_ok(slot);
            }
            got.extend(texts(&mut s));
        }
        got.extend(texts(&mut s));
        prop_assert_eq!(got, want);
        prop_assert!(s.is_quiet());
    }
}

/// Strategy for random bytes, or plausible commands with random changes.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    (proptest::collection::vec(command(), 0..6), proptest::collection::vec((any::<u16>(), any::<u8>()), 0..8)).prop_map(
        |(commands, changes)| {
            let mut bytes = [b"  V2".to_vec(), commands.concat()].concat();
            for (at, to) in changes {
                let at = at as usize % bytes.len();
                bytes[at] = to;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        bytes in prop_oneof![nearly(), proptest::collection::vec(any::<u8>(), 0..300)],
        seed in any::<u64>(),
    ) {
        crate::session::fuzz::session(&bytes, seed);
        crate::session::fuzz::decoder(&bytes);
    }
}
