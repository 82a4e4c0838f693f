//! The books of `--verify`: which messages were acknowledged, and which came on which channel. A bit per message and
//! column; sequences of a producer are dense, so the bits stand in plain vectors.

/// Number of lost messages that are named.
const EXAMPLES_MAX: usize = 10;

/// Largest accepted sequence: no run sends more, and the ledger does not grow for impossible ones.
const SEQUENCE_MAX: u64 = 1 << 36;

#[derive(Default)]
struct Bits(Vec<u64>);

impl Bits {
    /// Sets the bit; true when it was not set.
    fn set(&mut self, at: u64) -> bool {
        let (word, bit) = ((at / 64) as usize, 1 << (at % 64));
        if self.0.len() <= word {
            self.0.resize((word + 1).next_power_of_two(), 0);
        }
        let fresh = self.0[word] & bit == 0;
        self.0[word] |= bit;
        fresh
    }

    fn has(&self, at: u64) -> bool {
        self.0.get((at / 64) as usize).is_some_and(|word| word & (1 << (at % 64)) != 0)
    }

    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.0.len() as u64 * 64).filter(|at| self.has(*at))
    }
}

struct Producer {
    acknowledged: Bits,
    consumed: Vec<Bits>,
}

pub struct Ledger {
    producers: Vec<Producer>,
    acknowledged: u64,
    /// Pairs of an acknowledged message and a channel on which it came.
    matched: u64,
    consumed: u64,
    duplicates: u64,
    broken: u64,
    channels: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    pub ok: bool,
    pub acknowledged: u64,
    /// Deliveries of different messages, over all channels.
    pub consumed: u64,
    /// Acknowledged messages times channels that never came.
    pub lost: u64,
    /// The same, when deliveries still came at the end of the wait: they may only be late.
    pub late: u64,
    /// Allowed: delivery is at least once.
    pub duplicates: u64,
    /// Delivered with other bytes than were sent.
    pub broken: u64,
    /// The first lost or late ones.
    pub examples: Vec<String>,
}

impl Ledger {
    pub fn new(producers: usize, channels: usize) -> Self {
        let producer = || Producer {
            acknowledged: Bits::default(),
            consumed: std::iter::repeat_with(Bits::default).take(channels).collect(),
        };
        let producers = std::iter::repeat_with(producer).take(producers).collect();
        Ledger { producers, acknowledged: 0, matched: 0, consumed: 0, duplicates: 0, broken: 0, channels: channels as u64 }
    }

    pub fn acknowledged(&mut self, producer: u32, from: u64, count: u64) {
        let producer = &mut self.producers[producer as usize];
        for sequence in from..from + count {
            self.acknowledged += producer.acknowledged.set(sequence) as u64;
            self.matched += producer.consumed.iter().filter(|bits| bits.has(sequence)).count() as u64;
        }
    }

    /// A message of this run, intact; true when it has not come on the channel before. A message that no producer has sent counts as
    /// broken.
    pub fn consumed(&mut self, channel: usize, producer: u32, sequence: u64) -> bool {
        let Some(producer) = self.producers.get_mut(producer as usize).filter(|_| sequence < SEQUENCE_MAX) else {
            self.broken += 1;
            return false;
        };
        let fresh = producer.consumed[channel].set(sequence);
        if fresh {
            self.consumed += 1;
            self.matched += producer.acknowledged.has(sequence) as u64;
        } else {
            self.duplicates += 1;
        }
        fresh
    }

    pub fn broken(&mut self) {
        self.broken += 1;
    }

    pub fn is_complete(&self) -> bool {
        self.matched == self.acknowledged * self.channels
    }

    pub fn matched(&self) -> u64 {
        self.matched
    }

    /// Verdict on the run. `still_coming`: deliveries came up to the end of the wait, so missing messages may only be late.
    pub fn verdict(&self, still_coming: bool) -> Verdict {
        let missing = self.acknowledged * self.channels - self.matched;
        let (lost, late) = if still_coming { (0, missing) } else { (missing, 0) };
        let mut examples = Vec::new();
        if missing > 0 {
            for (number, producer) in self.producers.iter().enumerate() {
                for (channel, bits) in producer.consumed.iter().enumerate() {
                    let missing = producer.acknowledged.iter().filter(|sequence| !bits.has(*sequence));
                    let named = missing.map(|sequence| format!("producer {number} message {sequence} on channel {channel}"));
                    examples.extend(named.take(EXAMPLES_MAX - examples.len()));
                }
            }
        }
        Verdict {
            // A run that verified nothing has not shown anything.
            ok: missing == 0 && self.broken == 0 && self.acknowledged > 0,
            acknowledged: self.acknowledged,
            consumed: self.consumed,
            lost,
            late,
            duplicates: self.duplicates,
            broken: self.broken,
            examples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_named_and_what_comes_twice_is_allowed() {
        let mut ledger = Ledger::new(2, 2);
        assert!(ledger.is_complete() && !ledger.verdict(false).ok, "nothing was shown yet");
        assert!(ledger.consumed(0, 1, 5) && !ledger.consumed(0, 1, 5));
        ledger.acknowledged(1, 4, 2);
        for (channel, sequence) in [(0, 4), (1, 4), (1, 4)] {
            ledger.consumed(channel, 1, sequence);
        }
        let late = ledger.verdict(true);
        assert_eq!((late.ok, late.lost, late.late), (false, 0, 1));
        let verdict = ledger.verdict(false);
        assert_eq!((verdict.ok, verdict.lost, verdict.duplicates, verdict.consumed), (false, 1, 2, 3));
        assert_eq!(verdict.examples, ["producer 1 message 5 on channel 1"]);
        ledger.consumed(1, 1, 5);
        assert!(ledger.is_complete() && ledger.verdict(false).ok);
        // Delivered and never acknowledged: may be.
        ledger.consumed(1, 0, 70);
        assert!(ledger.verdict(false).ok);
        ledger.consumed(1, 0, SEQUENCE_MAX);
        ledger.consumed(1, 9, 0);
        ledger.broken();
        assert_eq!((ledger.verdict(false).ok, ledger.verdict(false).broken), (false, 3));
    }
}
