//! Answers of nsqd to a command whose rest will never come.

use super::ClientError;

/// Error for the bytes at which a client's stream ends. `None`: nsqd says nothing (an incomplete line, or no command at all).
pub fn unfinished(bytes: &[u8]) -> Option<ClientError> {
    let newline = bytes.iter().position(|&b| b == b'\n')?;
    let (line, body) = (&bytes[..newline], &bytes[newline + 1..]);
    let name = line.split(|&b| b == b' ' || b == b'\r').next()?;
    let has_size = body.len() >= 4;
    Some(match name {
        b"PUB" | b"DPUB" => fault("E_BAD_MESSAGE", name, if has_size { "message body" } else { "message body size" }),
        b"IDENTIFY" | b"AUTH" => fault("E_BAD_BODY", name, if has_size { "body" } else { "body size" }),
        b"MPUB" if !has_size => fault("E_BAD_BODY", name, "body size"),
        b"MPUB" if body.len() < 8 => fault("E_BAD_BODY", name, "message count"),
        b"MPUB" => unfinished_message(&body[8..]),
        _ => return None,
    })
}

fn unfinished_message(mut messages: &[u8]) -> ClientError {
    let mut number = 0;
    loop {
        let Some((size, rest)) = messages.split_first_chunk::<4>() else {
            return fault("E_BAD_MESSAGE", b"MPUB", &format!("message({number}) body size"));
        };
        let Some(next) = rest.get(u32::from_be_bytes(*size) as usize..) else {
            return fault("E_BAD_MESSAGE", b"MPUB", "message body");
        };
        (messages, number) = (next, number + 1);
    }
}

fn fault(code: &'static str, name: &[u8], what: &str) -> ClientError {
    ClientError::fatal(code, [name, b" failed to read ", what.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_nsqds() {
        for (bytes, told) in [
            (&b"PUB t"[..], None),
            (b"NOP\n", None),
            (b"PUB t\n\0\0", Some("E_BAD_MESSAGE PUB failed to read message body size")),
            (b"DPUB t 1\n\0\0\0\x05abc", Some("E_BAD_MESSAGE DPUB failed to read message body")),
            (b"IDENTIFY\n", Some("E_BAD_BODY IDENTIFY failed to read body size")),
            (b"AUTH\r\n\0\0\0\x05", Some("E_BAD_BODY AUTH failed to read body")),
            (b"MPUB t\n", Some("E_BAD_BODY MPUB failed to read body size")),
            (b"MPUB t\n\0\0\0\x20\0", Some("E_BAD_BODY MPUB failed to read message count")),
            (b"MPUB t\n\0\0\0\x20\0\0\0\x02", Some("E_BAD_MESSAGE MPUB failed to read message(0) body size")),
            (b"MPUB t\n\0\0\0\x20\0\0\0\x02\0\0\0\x02ab\0", Some("E_BAD_MESSAGE MPUB failed to read message(1) body size")),
            (b"MPUB t\n\0\0\0\x20\0\0\0\x02\0\0\0\x02a", Some("E_BAD_MESSAGE MPUB failed to read message body")),
        ] {
            assert_eq!(unfinished(bytes).map(|e| e.to_string()).as_deref(), told, "{}", bytes.escape_ascii());
        }
    }
}
