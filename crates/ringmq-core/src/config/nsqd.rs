//! Values that nsqd takes and a row of the table does not: the value in force instead, so that no line of nsqd's ends a startup.

use super::row::Setting;

/// Number that is in force instead of one outside a row's bounds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Instead {
    /// The bound that is nearer.
    Nearest,
    /// The largest number replaces a value below the bounds: in nsqd such a time limit means none.
    NoLimit,
    /// The row's 0, for the reason that is given.
    Zero(&'static str),
}

/// Rows with a number for which nsqd has no bounds.
const UNBOUNDED: &[(&str, Instead)] = &[
    ("broadcast-tcp-port", Instead::Zero("the value is no port, so clients are told the port of tcp-address")),
    ("broadcast-http-port", Instead::Zero("the value is no port, so clients are told the port of http-address")),
    ("http-client-connect-timeout", Instead::NoLimit),
    ("http-client-request-timeout", Instead::NoLimit),
    ("mem-queue-size", Instead::Nearest),
    ("max-msg-size", Instead::Nearest),
    ("max-body-size", Instead::Nearest),
    ("max-rdy-count", Instead::Nearest),
    ("msg-timeout", Instead::Nearest),
    ("max-msg-timeout", Instead::Nearest),
    ("max-req-timeout", Instead::Nearest),
    ("max-heartbeat-interval", Instead::Nearest),
    ("max-output-buffer-size", Instead::Nearest),
    ("max-output-buffer-timeout", Instead::Nearest),
    ("output-buffer-timeout", Instead::Nearest),
    ("min-output-buffer-timeout", Instead::Nearest),
    ("max-channel-consumers", Instead::Zero("there is no limit; nsqd refuses every consumer with a number below 0")),
    ("max-bytes-per-file", Instead::Nearest),
    ("statsd-interval", Instead::Nearest),
    ("statsd-udp-packet-size", Instead::Nearest),
    ("e2e-processing-latency-window-time", Instead::Nearest),
];

/// Whether nsqd takes any number for the row.
pub(super) fn is_unbounded(row: &Setting) -> bool {
    UNBOUNDED.iter().any(|(name, _)| *name == row.name)
}

/// The number in force instead of one outside the row's bounds, and why. `None`: nsqd refuses it, too, or has no such setting.
pub(super) fn instead(row: &Setting, number: i128) -> Option<(u64, &'static str)> {
    let (_, instead) = UNBOUNDED.iter().find(|(name, _)| *name == row.name)?;
    let is_below = number < i128::from(row.min);
    Some(match instead {
        Instead::Zero(why) => (0, why),
        Instead::NoLimit if is_below => (row.max, "the largest value here; in nsqd such a value means no limit"),
        _ if is_below => (row.min, "the smallest value here"),
        _ => (row.max, "the largest value here"),
    })
}

/// An integer as Go's flag package reads it: perhaps a sign, then a number whose prefix tells its base (`0x`, `0o` or `0`, `0b`),
/// with `_` between digits.
pub(super) fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.split_at_checked(1) {
        Some(("-", rest)) => ("-", rest),
        Some(("+", rest)) => ("", rest),
        _ => ("", text),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.split_at_checked(2) {
        Some(("0x", rest)) => (16, rest),
        Some(("0o", rest)) => (8, rest),
        Some(("0b", rest)) => (2, rest),
        _ => match lower.strip_prefix('0') {
            Some(rest) if !rest.is_empty() => (8, rest),
            _ => (10, lower.as_str()),
        },
    };
    let is_begun = base != 10;
    let is_apart = digits.ends_with('_') || digits.contains("__") || (!is_begun && digits.starts_with('_'));
    let digits = digits.replace('_', "");
    if is_apart || !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{digits}"), base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::find;

    #[test]
    fn integers_are_gos() {
        for (text, number) in [
            ("0", 0),
            ("+5", 5),
            ("-1", -1),
            ("0x100000", 1 << 20),
            ("-0X10", -16),
            ("0b101", 5),
            ("0o17", 15),
            ("017", 15),
            ("1_000", 1000),
            ("0x_ff", 255),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(text), Some(number), "{text}");
        }
        for text in ["", "-", "0x", "_1", "1_", "1__0", "1.5", "08", "--1", "0x-1", "1MiB", "9223372036854775808", " 1", "ä"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_in_force_instead_is_within_the_bounds_of_a_row() {
        for (name, _) in UNBOUNDED {
            let row = find(name).filter(|row| row.is_number()).expect("a row with a number");
            for number in [-1, i128::from(i64::MAX)] {
                let (value, why) = instead(row, number).expect("nsqd takes it");
                assert!((row.min..=row.max).contains(&value) && !why.is_empty(), "{name}");
            }
        }
    }
}
