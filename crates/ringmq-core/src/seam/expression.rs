//! Go's regular expressions, as auth servers write them for nsqd, in the syntax of the crate regex.
//!
//! Both syntaxes are mostly RE2's. This module rewrites the parts that differ, so that they keep Go's meaning: `\Q...\E`, `\<` and `\>`,
//! octal characters, a brace that begins no repetition, and in a class `[`, `&&`, `--` and `~~`.

use regex::Regex;
use std::iter::Peekable;
use std::str::Chars;

/// The expression, compiled; the error is the crate's.
pub fn compile(go: &str) -> Result<Regex, regex::Error> {
    Regex::new(&translated(go))
}

fn translated(go: &str) -> String {
    let mut rest = go.chars().peekable();
    let mut out = String::with_capacity(go.len());
    while let Some(c) = rest.next() {
        match c {
            '\\' if rest.next_if_eq(&'Q').is_some() => quoted(&mut rest, &mut out),
            '\\' => escape(&mut rest, &mut out),
            '[' => class(&mut rest, &mut out),
            '{' if !is_repetition(rest.clone()) => out.push_str("\\{"),
            _ => out.push(c),
        }
    }
    out
}

/// Text up to `\E`, or to the end, stands for itself.
fn quoted(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    let mut text = String::new();
    while let Some(c) = rest.next() {
        if c == '\\' && rest.next_if_eq(&'E').is_some() {
            break;
        }
        text.push(c);
    }
    out.push_str(&regex::escape(&text));
}

/// Decodes the escape that follows a backslash.
fn escape(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    match rest.next() {
        Some(c @ ('<' | '>')) => out.push(c),
        Some(first @ '0'..='7') if first == '0' || rest.peek().is_some_and(|c| ('0'..='7').contains(c)) => {
            let mut value = first.to_digit(8).unwrap_or_default();
            for _ in 0..2 {
                let Some(digit) = rest.next_if(|c| ('0'..='7').contains(c)) else { break };
                value = value * 8 + digit.to_digit(8).unwrap_or_default();
            }
            out.push_str(&format!("\\x{{{value:x}}}"));
        }
        Some(c @ ('p' | 'P' | 'x')) if rest.peek() == Some(&'{') => {
            out.extend(['\\', c]);
            out.extend(rest.by_ref().take_while(|c| *c != '}'));
            out.push('}');
        }
        Some(c) => out.extend(['\\', c]),
        None => out.push('\\'),
    }
}

/// `rest` stands behind `{`: whether it is `n}`, `n,}` or `n,m}`.
fn is_repetition(rest: Peekable<Chars<'_>>) -> bool {
    let inner: String = rest.take_while(|c| *c != '}').collect();
    let (least, most) = inner.split_once(',').unwrap_or((&inner, ""));
    let is_number = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    !least.is_empty() && is_number(least) && is_number(most)
}

/// A class, of which `[` was read.
fn class(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    out.push('[');
    if rest.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut is_first = true;
    while let Some(&c) = rest.peek() {
        rest.next();
        match c {
            ']' if !is_first => return out.push(']'),
            '[' if named_class(rest.clone()).is_some() => {
                let name: String = rest.by_ref().take_while(|c| *c != ']').collect();
                // The crate would read an unknown name as a class within the class; Go has an error, and so has this range.
                let is_known = CLASSES.contains(&name.trim_matches([':', '^']));
                if is_known { out.push_str(&format!("[{name}]")) } else { out.push_str("z-a") }
            }
            '\\' if rest.peek().is_some_and(|kind| "dDsSwWpP".contains(*kind)) => escape(rest, out),
            _ => {
                member(c, rest, out);
                let mut ahead = rest.clone();
                // A range, whose ends stand for themselves.
                if ahead.next_if_eq(&'-').is_some() && ahead.peek().is_some_and(|c| *c != ']') {
                    rest.next();
                    out.push('-');
                    rest.next().into_iter().for_each(|end| member(end, rest, out));
                }
            }
        }
        is_first = false;
    }
}

/// A character of a class.
fn member(c: char, rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    match c {
        '\\' => escape(rest, out),
        '[' | ']' | '-' | '&' | '~' | '^' => out.extend(['\\', c]),
        _ => out.push(c),
    }
}

/// Names of classes in both.
const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word", "xdigit",
];

/// The name of a class, where `rest`, which stands behind `[` in a class, is `:name:]`.
fn named_class(rest: Peekable<Chars<'_>>) -> Option<String> {
    let text: String = rest.collect();
    let (name, _) = text.strip_prefix(':')?.split_once(":]")?;
    name.bytes().all(|c| c.is_ascii_alphabetic() || c == b'^').then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 14] = ["a.b", "axb", "a", "", "b", "-", "a{", "a{,2}", "aa", "<a>", "[", "a&b", "~", "0"];

    /// Matches as Go has them.
    #[test]
    fn expressions_match_what_go_matches() {
        for (go, matched) in [
            (r"^\Qa.b\E$", &["a.b"][..]),
            (r"^\Qa.b", &["a.b"]),
            (r"^a.b$", &["a.b", "axb", "a&b"]),
            (r"^\<a\>$", &["<a>"]),
            (r"^a{$", &["a{"]),
            (r"^a{,2}$", &["a{,2}"]),
            (r"^a{2}$", &["aa"]),
            (r"^[[]$", &["["]),
            (r"^[a&&b]$", &["a", "b"]),
            (r"^[+--]$", &["-"]),
            (r"^[--0]$", &["-", "0"]),
            (r"^[~~]$", &["~"]),
            (r"^[[:alpha:]-]$", &["a", "b", "-"]),
            (r"^[]a]$", &["a"]),
            (r"^[^]a]$", &["b", "-", "[", "~", "0"]),
            (r"^\141\x62?$", &["a"]),
            (r"^[\141\]]$", &["a"]),
            (r"^[\d-x]$", &["-", "0"]),
            (r"^\pL\x{62}?$", &["a", "b"]),
            (r"^[\p{Greek}\x{61}-b]$", &["a", "b"]),
            (r"^\p{Lu}?0$", &["0"]),
        ] {
            let expression = compile(go).unwrap_or_else(|e| panic!("{go}: {e}"));
            let found: Vec<&str> = TEXTS.into_iter().filter(|text| expression.is_match(text)).collect();
            assert_eq!(found, matched, "{go} as {}", translated(go));
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for go in ["(", "[a", "a**b\\", "\\1", "[z-a]", "*a", "(?<", "[[:nope:]]"] {
            assert!(compile(go).is_err(), "{go}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_translated(text in ".{0,40}", odd in r"[\\\[\]{}QE\-&~^:a0,]{0,20}") {
            let _ = (translated(&text), translated(&odd));
        }

        #[test]
        fn plain_names_stay(name in "[a-zA-Z0-9_.-]{1,30}") {
            proptest::prop_assert_eq!(translated(&name), name);
        }
    }
}
