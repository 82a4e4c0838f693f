//! The common name in a certificate: of X.509, which is nested (kind, length, content), as much as it takes to find it.

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const VERSION: u8 = 0xa0;

/// Common name of the subject; with several, the last one, as in Go. `None`: there is none.
pub fn common_name(der: &[u8]) -> Option<String> {
    let mut certificate = expect(&mut { der }, SEQUENCE)?;
    let mut body = expect(&mut certificate, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        next(&mut body)?;
    }
    // serial number, algorithm, issuer, validity
    for _ in 0..4 {
        next(&mut body)?;
    }
    let mut subject = expect(&mut body, SEQUENCE)?;
    let mut found = None;
    while !subject.is_empty() {
        let mut set = expect(&mut subject, SET)?;
        while !set.is_empty() {
            let mut pair = expect(&mut set, SEQUENCE)?;
            let id = expect(&mut pair, OBJECT_ID)?;
            let (kind, text) = next(&mut pair)?;
            if id == COMMON_NAME {
                found = Some(decode(kind, text));
            }
        }
    }
    found
}

/// The strings of X.509: UTF-8 and its subsets, and two of fixed width.
fn decode(kind: u8, text: &[u8]) -> String {
    match kind {
        0x1e => char::decode_utf16(text.chunks_exact(2).map(|c| u16::from_be_bytes([c[0], c[1]])))
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect(),
        0x14 => text.iter().map(|&byte| byte as char).collect(),
        _ => String::from_utf8_lossy(text).into_owned(),
    }
}

fn expect<'a>(bytes: &mut &'a [u8], kind: u8) -> Option<&'a [u8]> {
    next(bytes).and_then(|(found, content)| (found == kind).then_some(content))
}

/// Takes the first element off `bytes`. Returns its kind and content.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[kind, len], mut rest) = bytes.split_first_chunk::<2>()?;
    let len = match len {
        0..=0x7f => len as usize,
        // the number of bytes that the length takes
        0x81..=0x84 => {
            let (digits, after) = rest.split_at_checked((len & 0x7f) as usize)?;
            rest = after;
            digits.iter().fold(0, |n, &digit| n << 8 | digit as usize)
        }
        _ => return None,
    };
    let (content, after) = rest.split_at_checked(len)?;
    *bytes = after;
    Some((kind, content))
}
