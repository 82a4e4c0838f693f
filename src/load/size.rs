//! Sizes of messages: fixed, uniform between two sizes, or exponential around a mean.

use crate::base::rng::Rng;
use crate::config::value;
use std::fmt;
use std::str::FromStr;

/// Largest exponential draw, in multiples of the mean.
const EXPONENTIAL_CUT: usize = 10;

/// nsqd and the node refuse larger bodies anyway, whatever they are set to.
const SIZE_MAX: usize = 256 << 20;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Size {
    Fixed(usize),
    Uniform { min: usize, max: usize },
    Exponential { mean: usize },
}

impl Size {
    pub fn min(self) -> usize {
        match self {
            Size::Fixed(size) => size,
            Size::Uniform { min, .. } => min,
            Size::Exponential { .. } => 1,
        }
    }

    pub fn max(self) -> usize {
        match self {
            Size::Fixed(size) => size,
            Size::Uniform { max, .. } => max,
            Size::Exponential { mean } => mean * EXPONENTIAL_CUT,
        }
    }

    pub fn draw(self, rng: &mut Rng) -> usize {
        match self {
            Size::Fixed(size) => size,
            Size::Uniform { min, max } => min + rng.below((max - min + 1) as u64) as usize,
            Size::Exponential { mean } => {
                // In (0, 1], so that the logarithm is finite.
                let share = ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                ((-share.ln() * mean as f64) as usize).clamp(1, self.max())
            }
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str = "give a size (100, 4KiB), a range (100-4KiB) or exp:mean (exp:1KiB)";
        let bytes = |text: &str| match value::parse_bytes(text).map(|n| n as usize) {
            Ok(0) => Err("a message has at least one byte".to_string()),
            Ok(size) if size > SIZE_MAX => Err("at most 256MiB".to_string()),
            Ok(size) => Ok(size),
            Err(_) => Err(WANTED.to_string()),
        };
        if let Some(mean) = text.strip_prefix("exp:") {
            let mean = bytes(mean)?;
            return if mean * EXPONENTIAL_CUT > SIZE_MAX {
                Err("the mean is too large".into())
            } else {
                Ok(Self::Exponential { mean })
            };
        }
        let Some((min, max)) = text.split_once('-') else { return Ok(Size::Fixed(bytes(text)?)) };
        let (min, max) = (bytes(min)?, bytes(max)?);
        if min > max {
            Err(format!("{min} is more than {max}: the smaller size comes first"))
        } else {
            Ok(Size::Uniform { min, max })
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Fixed(size) => write!(f, "{size}"),
            Size::Uniform { min, max } => write!(f, "{min}-{max}"),
            Size::Exponential { mean } => write!(f, "exp:{mean}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, shown) in [("100", "100"), ("1KiB", "1024"), ("10-1KiB", "10-1024"), ("7-7", "7-7"), ("exp:200", "exp:200")] {
            assert_eq!(text.parse::<Size>().map(|s| s.to_string()), Ok(shown.to_string()));
        }
        for text in ["", "0", "x", "5-", "-5", "9-3", "exp:", "exp:0", "exp:100MiB", "300MiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn draws_stay_within_their_bounds_and_around_their_mean() {
        let mut rng = Rng::new(1);
        for size in ["50", "50-60", "exp:300"].map(|s| s.parse::<Size>().unwrap()) {
            let draws: Vec<usize> = (0..20_000).map(|_| size.draw(&mut rng)).collect();
            assert!(draws.iter().all(|d| (size.min()..=size.max()).contains(d)));
            let mean = draws.iter().sum::<usize>() / draws.len();
            let wanted = match size {
                Size::Fixed(n) => n..=n,
                Size::Uniform { .. } => 54..=56,
                Size::Exponential { .. } => 285..=315,
            };
            assert!(wanted.contains(&mean), "{size}: {mean}");
        }
    }
}
