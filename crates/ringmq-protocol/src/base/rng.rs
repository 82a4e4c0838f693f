//! A seeded generator (xoshiro256**), so that a pure room can draw numbers and a simulation can repeat them.
//! The IO rooms seed it from the operating system; not for secrets.

#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

/// Increment of splitmix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a number over 64 bits, different ones to different ones: a step of splitmix64. Message ids depend on it.
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Rng {
    /// Spreads a seed over the state with splitmix64.
    pub fn new(seed: u64) -> Self {
        Rng(std::array::from_fn(|i| mix(seed.wrapping_add(STEP.wrapping_mul(i as u64)))))
    }

    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// True with probability `p` of 0.0 to 1.0.
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next_u64() >> 11) as f64 / (1u64 << 53) as f64) < p
    }

    pub fn bytes_16(&mut self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        b[8..].copy_from_slice(&self.next_u64().to_le_bytes());
        b
    }
}
