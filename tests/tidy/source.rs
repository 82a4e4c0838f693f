//! Reading Rust source as text: code without comments and literals, without tests, as tokens and as paths.

use std::ops::Range;

/// The source with comments, and what stands in strings and characters, replaced by blanks; lines stay where they are.
pub(super) fn code_of(source: &str) -> String {
    let mut out = source.as_bytes().to_vec();
    for (place, _) in not_code(source) {
        out[place].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
    }
    String::from_utf8(out).expect("only whole literals and comments were blanked")
}

/// Ranges of comments and literals; true for a string.
pub(super) fn not_code(source: &str) -> Vec<(Range<usize>, bool)> {
    let bytes = source.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (len, is_string) = if rest.starts_with(b"//") {
            (rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with(b"/*") {
            (block_comment_len(rest), false)
        } else if let Some(len) = raw_string_len(source, at) {
            (len, true)
        } else if rest[0] == b'"' {
            (quoted_len(rest, b'"'), true)
        } else if rest[0] == b'\'' && is_char_literal(rest) {
            (quoted_len(rest, b'\''), false)
        } else {
            at += 1;
            continue;
        };
        let end = (at + len).min(bytes.len());
        found.push((at..end, is_string));
        at = end;
    }
    found
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn raw_string_len(source: &str, at: usize) -> Option<usize> {
    let rest = source.get(at..)?;
    let before = source[..at].chars().next_back();
    if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let after_r = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = after_r.len() - after_r.trim_start_matches('#').len();
    after_r[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let body_at = rest.len() - after_r.len() + hashes + 1;
    Some(rest[body_at..].find(&close).map_or(rest.len(), |n| body_at + n + close.len()))
}

fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Not a lifetime: `'a'`, `'\n'`, but not `'a `.
fn is_char_literal(rest: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&rest[1..rest.len().min(8)]);
    let mut chars = text.chars();
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

/// The code without what stands under `#[cfg(test)]`, which may be a whole `mod` or a single item.
pub(super) fn without_tests(code: &str) -> String {
    let (mut out, mut at) = (String::new(), 0);
    for place in tests_in(code) {
        out.push_str(&code[at..place.start]);
        at = place.end;
    }
    out + &code[at..]
}

/// Ranges of code under `#[cfg(test)]`.
pub(super) fn tests_in(code: &str) -> Vec<Range<usize>> {
    const MARK: &str = "#[cfg(test)]";
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(at) = code[from..].find(MARK) {
        let begin = from + at;
        let item = &code[begin + MARK.len()..];
        let mut depth = 0usize;
        let end = item.char_indices().find_map(|(i, c)| {
            match c {
                '{' => depth += 1,
                '}' if depth <= 1 => return Some(i + 1),
                '}' => depth -= 1,
                ';' if depth == 0 => return Some(i + 1),
                _ => {}
            }
            None
        });
        from = begin + MARK.len() + end.unwrap_or(item.len());
        found.push(begin..from);
    }
    found
}

#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) enum Token {
    Word(String),
    PathSeparator,
    Mark(char),
}

pub(super) fn tokens(code: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_alphabetic() || c == '_' {
            let mut word = c.to_string();
            while let Some(next) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                word.push(next);
            }
            out.push(Token::Word(word));
        } else if c == ':' && chars.next_if_eq(&':').is_some() {
            out.push(Token::PathSeparator);
        } else if !c.is_whitespace() {
            out.push(Token::Mark(c));
        }
    }
    out
}

/// Every path of two segments or more, wherever it stands; trees of `use` are spelled out.
pub(super) fn paths(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut out = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let starts = at == 0 || !matches!(tokens[at - 1], Token::PathSeparator | Token::Mark('.'));
        match &tokens[at] {
            Token::Word(word) if word == "use" => at = tree(&tokens, at + 1, &[], &mut out),
            Token::Word(_) if starts && tokens.get(at + 1) == Some(&Token::PathSeparator) => {
                let mut path = Vec::new();
                while let Some(Token::Word(word)) = tokens.get(at) {
                    path.push(word.clone());
                    at += 1;
                    if tokens.get(at) != Some(&Token::PathSeparator) {
                        break;
                    }
                    at += 1;
                }
                out.push(path);
            }
            _ => at += 1,
        }
    }
    out
}

/// Reads one tree of a `use`; answers where it ends.
fn tree(tokens: &[Token], mut at: usize, before: &[String], out: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at) {
            Some(Token::Word(word)) if word == "as" => at += 2,
            Some(Token::Word(word)) => {
                path.push(word.clone());
                at += 1;
            }
            Some(Token::PathSeparator) => at += 1,
            Some(Token::Mark('*')) => {
                path.push("*".into());
                at += 1;
            }
            Some(Token::Mark('{')) => {
                at += 1;
                while !matches!(tokens.get(at), None | Some(Token::Mark('}'))) {
                    at = tree(tokens, at, &path, out);
                    if tokens.get(at) == Some(&Token::Mark(',')) {
                        at += 1;
                    }
                }
                return at + 1;
            }
            _ => {
                if path.len() > before.len() {
                    out.push(path);
                }
                return at;
            }
        }
    }
}

/// `super::x` as the `crate::y::x` that it means in this module. The crates of [`CRATES`] are one: `ringmq_core::y` is `crate::y`.
pub(super) fn absolute(path: &[String], module: &[String]) -> Vec<String> {
    let of_one_crate =
        |names: &[&str], rest: &[String]| names.iter().map(|n| n.to_string()).chain(rest.iter().cloned()).collect();
    match path[0].as_str() {
        "ringmq_core" | "ringmq_protocol" => return of_one_crate(&["crate"], &path[1..]),
        "ringmq_client" => return of_one_crate(&["crate", "client"], &path[1..]),
        "crate" if module[0] == "client" => return of_one_crate(&["crate", "client"], &path[1..]),
        _ => {}
    }
    let ups = path.iter().take_while(|s| *s == "super").count();
    if ups == 0 {
        return path.to_vec();
    }
    let base = &module[..module.len().saturating_sub(ups)];
    std::iter::once("crate".to_string()).chain(base.iter().cloned()).chain(path[ups..].iter().cloned()).collect()
}
