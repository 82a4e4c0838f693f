//! Drives the fuzz entry points of everything that is read from disk with random bytes, with mutations of good ones
//! (the golden fixtures), and with what proptest thinks of.

use proptest::prelude::*;
use ringmq::base::Rng;
use ringmq::sim::fuzz;

const TARGETS: [fn(&[u8]); 5] = [fuzz::batch, fuzz::headers, fuzz::snapshot, fuzz::journal_write, fuzz::data_path];

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(8) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            2 => bytes.truncate(at),
            3 => {
                let from = rng.below(bytes.len() as u64) as usize;
                let piece: Vec<u8> = bytes[from..(from + 64).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            4 => (at..(at + 8).min(bytes.len())).for_each(|i| bytes[i] = 0xff),
            _ => bytes.extend_from_slice(&rng.next_u64().to_le_bytes()),
        }
    }
}

#[test]
fn mutated_fixtures_never_panic() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut fixtures = vec![vec![], vec![0; 5000]];
    for entry in std::fs::read_dir(folder).expect("the fixtures are there") {
        fixtures.push(std::fs::read(entry.expect("it can be listed").path()).expect("it can be read"));
    }
    let mut rng = Rng::new(1);
    for fixture in &fixtures {
        for round in 0..2000 {
            let mut bytes = fixture.clone();
            mutate(&mut rng, &mut bytes);
            let targets = if round % 50 == 0 { &TARGETS[..] } else { &TARGETS[..4] };
            targets.iter().for_each(|target| target(&bytes));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
        TARGETS.iter().for_each(|target| target(&bytes));
    }
}
