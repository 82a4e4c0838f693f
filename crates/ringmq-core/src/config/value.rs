//! Durations and sizes as people write them: Go durations as nsqd reads them (`1m30s`, `250ms`), with days and weeks besides
//! (`1d12h`, `2w`); sizes in plain bytes or with a binary unit (`64MiB`).

const NS: u128 = 1;
const US: u128 = 1_000;
const MS: u128 = 1_000_000;
const S: u128 = 1_000_000_000;
const M: u128 = 60 * S;
const H: u128 = 60 * M;
const D: u128 = 24 * H;
const W: u128 = 7 * D;

/// Shown largest first; a value is printed in the largest unit that it is a whole number of.
const TIME_UNITS: [(&str, u128); 9] =
    [("w", W), ("d", D), ("h", H), ("m", M), ("s", S), ("ms", MS), ("us", US), ("µs", US), ("ns", NS)];
const SIZE_UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

/// Nanoseconds of a duration: a sequence of decimal numbers, each with its unit. `0` needs none.
/// A day is 24 hours and a week 7 days.
pub fn parse_duration_ns(text: &str) -> Result<u128, String> {
    const WANTED: &str = "a duration is a number with a unit, such as 250ms, 60s, 1m30s, 2h, 1d, 2w";
    if text == "0" {
        return Ok(0);
    }
    if text.is_empty() {
        return Err(WANTED.into());
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut total = 0u128;
    while !rest.is_empty() {
        let number_len =
            rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| format!("the unit is missing; {WANTED}"))?;
        let (number, after) = rest.split_at(number_len);
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_len);
        let (_, scale) = TIME_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| WANTED.to_string())?;
        total = total.checked_add(scaled(number, *scale).ok_or(WANTED)?).ok_or("the duration is too long")?;
        rest = next;
    }
    Ok(total)
}

/// `number` (digits, perhaps with one point) times `scale`, rounded down.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > 20 || fraction.len() > 18 || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    Some(digits(whole)? * scale + digits(fraction)? * scale / 10u128.pow(fraction.len() as u32))
}

/// Bytes: digits, then perhaps KiB, MiB, GiB or TiB.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const WANTED: &str = "a size is a whole number of bytes, or one with KiB, MiB, GiB or TiB behind it";
    let digits_len = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_len);
    let unit = unit.trim_start();
    let (_, scale) = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(WANTED)?;
    let number: u64 = digits.parse().map_err(|_| WANTED)?;
    number.checked_mul(*scale).ok_or_else(|| "the size is too large".into())
}

pub fn show_bytes(bytes: u64) -> String {
    let (name, scale) = SIZE_UNITS.iter().find(|(_, s)| bytes >= *s && bytes.is_multiple_of(*s)).unwrap_or(&SIZE_UNITS[4]);
    format!("{}{name}", bytes / scale)
}

pub fn show_duration_ns(ns: u128) -> String {
    if ns == 0 {
        return "0".into();
    }
    let (name, scale) = TIME_UNITS.iter().find(|(_, s)| ns.is_multiple_of(*s)).unwrap_or(&TIME_UNITS[8]);
    format!("{}{name}", ns / scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_gos_with_days_and_weeks() {
        for (text, ns) in [
            ("0", 0),
            ("60s", 60 * S),
            ("1m0s", M),
            ("1h15m30.5s", H + 15 * M + 30 * S + S / 2),
            ("1.5h", H + 30 * M),
            ("250ms", 250 * MS),
            ("+10us", 10 * US),
            ("10µs", 10 * US),
            (".5s", S / 2),
            ("7ns", 7),
            ("1d", 24 * H),
            ("2w", 14 * 24 * H),
            ("1d12h", 36 * H),
        ] {
            assert_eq!(parse_duration_ns(text), Ok(ns), "{text}");
        }
        for text in ["", "60", "s", "1x", "-1s", "1.2.3s", ".s", "1 s", "999999999999999999999h"] {
            assert!(parse_duration_ns(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_binary_units() {
        for (text, bytes) in [("0", 0), ("1048576", 1 << 20), ("64MiB", 64 << 20), ("4 KiB", 4096), ("1gib", 1 << 30)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5MiB", "64MB", "1k", "99999999999999999999", "99999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(bytes in any::<u64>(), ns in 0u64..=u64::MAX / 2) {
            prop_assert_eq!(parse_bytes(&show_bytes(bytes)), Ok(bytes));
            prop_assert_eq!(parse_duration_ns(&show_duration_ns(ns as u128)), Ok(ns as u128));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse_bytes(&text);
            let _ = parse_duration_ns(&text);
        }
    }
}
