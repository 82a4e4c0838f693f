//! Meaning of an error for the request that it answers: whether the request surely was not carried out, and whether another member may
//! do better.
//!
//! Codes alone mislead, so code *and* text count. Every error that is not surely a refusal is unknown.

use super::link::{Endpoint, LinkError, Replied};
use serde_json::Value;
use std::fmt;
use std::path::Path;

/// Knowledge of a request that has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// The request was never sent: another endpoint may be asked.
    NotSent,
    /// etcd has it and says no.
    Refused,
    /// The user's token is not valid, so etcd did not look at it.
    Token,
    /// The request may have been carried out, or may still be.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub judged: RequestOutcome,
    /// The member cannot serve: its endpoint is left.
    is_members: bool,
    text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Status codes of gRPC.
mod code {
    pub const INVALID_ARGUMENT: u64 = 3;
    pub const NOT_FOUND: u64 = 5;
    pub const ALREADY_EXISTS: u64 = 6;
    pub const PERMISSION_DENIED: u64 = 7;
    pub const RESOURCE_EXHAUSTED: u64 = 8;
    pub const FAILED_PRECONDITION: u64 = 9;
    pub const OUT_OF_RANGE: u64 = 11;
    pub const UNIMPLEMENTED: u64 = 12;
    pub const UNAVAILABLE: u64 = 14;
    pub const UNAUTHENTICATED: u64 = 16;
}

impl Fault {
    fn new(judged: RequestOutcome, is_members: bool, text: impl Into<String>) -> Fault {
        Fault { judged, is_members, text: text.into() }
    }

    /// No answer in time.
    pub fn silent() -> Fault {
        Fault::new(RequestOutcome::Unknown, true, "no answer in time")
    }

    /// No answer in time to a preceding request; the request itself was not sent.
    pub fn not_asked() -> Fault {
        Fault::new(RequestOutcome::NotSent, true, "no answer in time")
    }

    /// An answer that etcd would not give.
    pub fn not_etcd(what: impl fmt::Display) -> Fault {
        Fault::new(RequestOutcome::Unknown, true, format!("this is not an answer of etcd: {what}"))
    }

    /// The end of a stream.
    pub fn from_end(what: impl Into<String>) -> Fault {
        Fault::new(RequestOutcome::Unknown, true, what)
    }

    /// The file with the password cannot be read: the request itself was not sent.
    pub fn no_password(file: &Path, error: &std::io::Error) -> Fault {
        Fault::new(RequestOutcome::Refused, false, format!("--etcd-password-file={}: {error}", file.display()))
    }

    /// A fault of the login: the request itself was not sent.
    pub fn of_user(self) -> Fault {
        let judged = if self.judged == RequestOutcome::Unknown { RequestOutcome::NotSent } else { RequestOutcome::Refused };
        Fault { judged, text: format!("the user of --etcd-user cannot log in: {}", self.text), ..self }
    }

    pub fn at(self, endpoint: &Endpoint) -> Fault {
        Fault { text: format!("{endpoint}: {}", self.text), ..self }
    }

    /// Whether the endpoint is to be left.
    pub fn leaves(&self) -> bool {
        self.is_members
    }

    pub fn is_no_lease(&self) -> bool {
        self.text.contains("requested lease not found")
    }
}

impl From<LinkError> for Fault {
    fn from(error: LinkError) -> Fault {
        match error {
            LinkError::NotSent(text) => Fault::new(RequestOutcome::NotSent, true, text),
            LinkError::Lost(text) => Fault::new(RequestOutcome::Unknown, true, text),
        }
    }
}

/// The answer's content, or the meaning of its error.
pub fn judge(replied: Replied) -> Result<Value, Fault> {
    let Ok(value) = serde_json::from_slice::<Value>(&replied.body) else {
        let start = String::from_utf8_lossy(&replied.body[..replied.body.len().min(200)]);
        return Err(Fault::not_etcd(format!("status {}: {start:?}", replied.status)));
    };
    match error_of(&value) {
        Some(fault) => Err(fault),
        None if replied.status == 200 => Ok(value),
        None => Err(Fault::not_etcd(format!("status {}: {value}", replied.status))),
    }
}

/// The error that an answer is, or a line of a stream. 3.4 has the code beside the text, streams have both in an object.
pub fn error_of(value: &Value) -> Option<Fault> {
    let error = value.get("error").or_else(|| value.get("code").map(|_| value))?;
    let inner = if error.is_object() { error } else { value };
    let code = ["grpc_code", "code"].iter().find_map(|key| inner.get(key)?.as_u64()).unwrap_or(2);
    let text = inner.get("message").or(Some(error)).and_then(Value::as_str).unwrap_or("an error without a text");
    Some(of_code(code, text))
}

fn of_code(code: u64, text: &str) -> Fault {
    use code::*;
    let has = |part: &str| text.contains(part);
    let (judged, is_members) = match code {
        UNAUTHENTICATED => (RequestOutcome::Token, false),
        // A member that has not seen the newest users yet.
        INVALID_ARGUMENT if has("revision in header is old") || has("user name is empty") => (RequestOutcome::Token, false),
        INVALID_ARGUMENT | NOT_FOUND | ALREADY_EXISTS | PERMISSION_DENIED | FAILED_PRECONDITION | OUT_OF_RANGE
        | UNIMPLEMENTED => (RequestOutcome::Refused, false),
        // No space, or too many requests: not even proposed. Too large an answer says nothing of the request.
        RESOURCE_EXHAUSTED if has("etcdserver:") => (RequestOutcome::Refused, false),
        RESOURCE_EXHAUSTED => (RequestOutcome::Unknown, false),
        // Looked at before the request is.
        UNAVAILABLE if has("no leader") || has("not supported for learner") => (RequestOutcome::NotSent, true),
        _ => (RequestOutcome::Unknown, true),
    };
    Fault::new(judged, is_members, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Bytes;

    fn judged(status: u16, body: &str) -> (RequestOutcome, bool) {
        let fault = judge(Replied { status, body: Bytes::from(body.to_owned()) }).unwrap_err();
        (fault.judged, fault.leaves())
    }

    #[test]
    fn only_what_surely_was_not_done_is_refused() {
        let of = |code: u64, text: &str| judged(400, &format!(r#"{{"error":"{text}","message":"{text}","code":{code}}}"#));
        for (code, text, wanted) in [
            (5, "etcdserver: requested lease not found", (RequestOutcome::Refused, false)),
            (8, "etcdserver: mvcc: database space exceeded", (RequestOutcome::Refused, false)),
            (8, "etcdserver: too many requests", (RequestOutcome::Refused, false)),
            (8, "grpc: received message larger than max (5 vs. 4)", (RequestOutcome::Unknown, false)),
            (11, "etcdserver: mvcc: required revision has been compacted", (RequestOutcome::Refused, false)),
            (14, "etcdserver: no leader", (RequestOutcome::NotSent, true)),
            (14, "etcdserver: request timed out", (RequestOutcome::Unknown, true)),
            (14, "etcdserver: leader changed", (RequestOutcome::Unknown, true)),
            (14, "transport is closing", (RequestOutcome::Unknown, true)),
            (16, "etcdserver: invalid auth token", (RequestOutcome::Token, false)),
            (3, "etcdserver: revision in header is old", (RequestOutcome::Token, false)),
            (3, "etcdserver: duplicate key given in txn request", (RequestOutcome::Refused, false)),
            (2, "context canceled", (RequestOutcome::Unknown, true)),
            (4, "context deadline exceeded", (RequestOutcome::Unknown, true)),
        ] {
            assert_eq!(of(code, text), wanted, "{code} {text}");
        }
        assert_eq!(judged(502, "<html>bad gateway</html>"), (RequestOutcome::Unknown, true));
        assert_eq!(judged(500, "{}"), (RequestOutcome::Unknown, true));
        assert!(judge(Replied { status: 200, body: Bytes::from_static(b"{}") }).is_ok(), "an answer of zeros");
    }

    #[test]
    fn an_error_inside_a_stream_is_one() {
        let value = serde_json::json!({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}});
        assert_eq!(error_of(&value).map(|f| f.judged), Some(RequestOutcome::NotSent));
        assert_eq!(error_of(&serde_json::json!({"result":{"created":true}})), None);
    }
}
