//! Table of paths and methods with their handlers, and the form of answers: as nsqd's, byte for byte where tools look.

use super::{Node, channels, cluster, config, debug, lookups, publish, replicas, statistics, topics};
use crate::discovery::NSQ_VERSION;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use std::borrow::Cow;
use std::time::Instant;

pub type Reply = Response<Full<Bytes>>;

/// An error answer: `{"message": "..."}`.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: StatusCode,
    pub message: Cow<'static, str>,
}

impl Failure {
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Failure { status, message: message.into() }
    }
}

const GET: &[Method] = &[Method::GET];
const POST: &[Method] = &[Method::POST];
/// Methods of `/topic/create`; PUT is for tools of the replicated NSQ, in a cluster. A single node refuses it, as nsqd does.
const POST_OR_PUT: &[Method] = &[Method::POST, Method::PUT];
const PUT: &[Method] = &[Method::PUT];

/// Paths and their methods; beside them /config/<setting>.
pub const ROUTES: [(&str, &[Method]); 42] = [
    ("/ping", GET),
    ("/info", GET),
    ("/stats", GET),
    ("/metrics", GET),
    ("/lookup", GET),
    ("/topics", GET),
    ("/channels", GET),
    ("/nodes", GET),
    ("/listlookup", GET),
    ("/pub", POST),
    ("/mpub", POST),
    ("/topic/create", POST),
    ("/topic/delete", POST),
    ("/topic/empty", POST),
    ("/topic/pause", POST),
    ("/topic/unpause", POST),
    ("/topic/meta/update", POST),
    ("/topic/partition/expand", POST),
    ("/topic/partition/move", POST),
    ("/cluster/stats", GET),
    ("/cluster/node/drain", POST),
    ("/cluster/node/undrain", POST),
    ("/cluster/node/remove", POST),
    ("/channel/create", POST),
    ("/channel/delete", POST),
    ("/channel/empty", POST),
    ("/channel/pause", POST),
    ("/channel/unpause", POST),
    ("/channel/setoffset", POST),
    ("/channel/setorder", POST),
    ("/channel/finish", POST),
    ("/replica/acceptloss", POST),
    ("/debug/pprof/", GET),
    ("/debug/pprof/cmdline", GET),
    ("/debug/pprof/symbol", &[Method::GET, Method::POST]),
    ("/debug/pprof/profile", GET),
    ("/debug/pprof/heap", GET),
    ("/debug/pprof/goroutine", GET),
    ("/debug/pprof/block", GET),
    ("/debug/pprof/threadcreate", GET),
    ("/debug/setblockrate", PUT),
    ("/debug/freememory", POST),
];

/// Requests that a connection may make when HTTPS is required.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Safety {
    Open,
    OpenForLookups,
    Secure,
}

pub async fn answer(node: &Node, request: Request<Incoming>, safety: Safety, began: Instant) -> Reply {
    let (head, body) = request.into_parts();
    let path = decoded(head.uri.path());
    let path = &*path;
    let is_open = safety == Safety::Secure || safety == Safety::OpenForLookups && lookups::is_lookup(path);
    if !is_open && node.settings.is_https_required() {
        return closed(node.ports.https);
    }
    if config::is_about(path) {
        return of_config(node, &head.method, path, body).await;
    }
    let Some((_, methods)) = ROUTES.iter().find(|(known, _)| *known == path) else {
        let elsewhere = redirected(&head.method, path, head.uri.query());
        return elsewhere.unwrap_or_else(|| failed(Failure::new(StatusCode::NOT_FOUND, "NOT_FOUND")));
    };
    let methods = if path == "/topic/create" && node.around.hub.is_some() { POST_OR_PUT } else { methods };
    if head.method == Method::OPTIONS {
        return allowing(methods, Response::new(Full::default()));
    }
    if !methods.contains(&head.method) {
        return allowing(methods, failed(Failure::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED")));
    }
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let result = match path {
        "/ping" => return statistics::ping(node).await,
        "/info" => return json(info(node)),
        "/metrics" => return statistics::metrics(node).await,
        "/stats" => match query {
            Ok(query) => return statistics::stats(node, &query).await,
            Err(failure) => Err(failure),
        },
        "/topic/create" | "/topic/delete" | "/topic/empty" => {
            let result = match path {
                "/topic/create" => topics::create(node, query).await,
                "/topic/empty" => topics::empty(node, query).await,
                _ => topics::delete(node, query).await,
            };
            match result {
                Ok(()) => return versioned(Reply::default()),
                Err(failure) => Err(failure),
            }
        }
        "/cluster/stats" => match cluster::stats(node).await {
            Ok(answer) => return json(answer),
            Err(failure) => Err(failure),
        },
        path if lookups::is_lookup(path) => match lookups::answer(node, path, query).await {
            Ok(answer) => return json(answer),
            Err(failure) => Err(failure),
        },
        "/topic/meta/update" => cluster::update(node, query).await,
        "/topic/partition/expand" => cluster::expand(node, query).await,
        "/topic/partition/move" => cluster::move_partition(node, query).await,
        "/cluster/node/remove" => match cluster::remove_node(node, query).await {
            Ok(answer) => return versioned(text(StatusCode::OK, answer)),
            Err(failure) => Err(failure),
        },
        "/cluster/node/drain" | "/cluster/node/undrain" => cluster::drain(node, query, path == "/cluster/node/drain").await,
        "/topic/pause" | "/topic/unpause" => match topics::pause(node, query, path == "/topic/pause").await {
            Ok(()) => return versioned(Reply::default()),
            Err(failure) => Err(failure),
        },
        "/channel/create" | "/channel/delete" | "/channel/empty" | "/channel/pause" | "/channel/unpause" => {
            let operation = channels::Operation::of(path).expect("it is one of these");
            match channels::operate(node, query, operation).await {
                // As nsqd's: without a word, and without its type.
                Ok(()) => return versioned(Reply::default()),
                Err(failure) => Err(failure),
            }
        }
        "/channel/setoffset" => match channels::set_offset(node, query, body).await {
            Ok(answer) => return json(answer),
            Err(failure) => Err(failure),
        },
        "/channel/setorder" => match channels::set_order(node, query).await {
            Ok(answer) => return json(answer),
            Err(failure) => Err(failure),
        },
        "/channel/finish" => match channels::finish(node, query).await {
            Ok(answer) => return json(answer),
            Err(failure) => Err(failure),
        },
        "/replica/acceptloss" => match replicas::accept_loss(node, query).await {
            Ok(answer) => return json(answer),
            Err(failure) => Err(failure),
        },
        path if path.starts_with("/debug/") => {
            return match query {
                Ok(query) => debug::answer(path, &query).await.unwrap_or_else(failed),
                Err(failure) => failed(failure),
            };
        }
        "/pub" => publish::publish(node, query, body, began).await,
        _ => publish::publish_many(node, query, body, began).await,
    };
    match result {
        Ok(()) => versioned(text(StatusCode::OK, "OK")),
        Err(failure) => failed(failure),
    }
}

/// The one path with two methods.
async fn of_config(node: &Node, method: &Method, path: &str, body: Incoming) -> Reply {
    let mut reply = match *method {
        Method::OPTIONS => Response::new(Full::default()),
        Method::GET | Method::PUT => {
            return config::answer(node, method, path, body).await.unwrap_or_else(failed);
        }
        _ => failed(Failure::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED")),
    };
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, OPTIONS, PUT"));
    reply
}

/// Plain HTTP where TLS is required; in nsqd's words, with the port of HTTPS, 0 without one.
fn closed(https_port: u16) -> Reply {
    let body = format!(r#"{{"message": "TLS_REQUIRED", "https_port": {https_port}}}"#);
    versioned(with_type(StatusCode::FORBIDDEN, "application/json; charset=utf-8", body.into()))
}

fn info(node: &Node) -> String {
    let settings = &node.settings;
    let ns = |ms: u64| ms * 1_000_000;
    serde_json::json!({
        "version": NSQ_VERSION,
        "ringmq_version": env!("CARGO_PKG_VERSION"),
        "broadcast_address": settings.broadcast_address,
        "hostname": node.hostname,
        "http_port": node.ports.http,
        "tcp_port": node.ports.tcp,
        "start_time": node.start_unix_s,
        "max_heartbeat_interval": ns(settings.max_heartbeat_interval_ms),
        "max_output_buffer_size": settings.max_output_buffer_size,
        "max_output_buffer_timeout": ns(settings.max_output_buffer_timeout_ms),
        "max_deflate_level": settings.max_deflate_level,
    })
    .to_string()
}

pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    with_type(status, "text/plain; charset=utf-8", text.into())
}

pub fn json(json: String) -> Reply {
    versioned(with_type(StatusCode::OK, "application/json; charset=utf-8", json.into()))
}

fn failed(failure: Failure) -> Reply {
    let body = serde_json::json!({ "message": failure.message }).to_string();
    let mut reply = versioned(with_type(failure.status, "application/json; charset=utf-8", body.into()));
    if failure.status == StatusCode::PAYLOAD_TOO_LARGE {
        // The rest of the body is not read.
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    reply
}

pub fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Adds the header that names the envelope; every answer but that of /ping has it.
pub fn versioned(mut reply: Reply) -> Reply {
    reply.headers_mut().insert("x-nsq-content-type", HeaderValue::from_static("nsq; version=1.0"));
    reply
}

fn allowing(methods: &[Method], mut reply: Reply) -> Reply {
    let mut all: Vec<&str> = methods.iter().map(Method::as_str).chain(["OPTIONS"]).collect();
    all.sort_unstable();
    reply.headers_mut().insert(ALLOW, HeaderValue::from_str(&all.join(", ")).expect("names of methods are good in a header"));
    reply
}

/// The path without escapes; with them where they are broken, which no path has.
fn decoded(path: &str) -> Cow<'_, str> {
    match path.contains('%') {
        true => unescape(&path.replace('+', "%2B")).map_or(Cow::Borrowed(path), Cow::Owned),
        false => Cow::Borrowed(path),
    }
}

/// The words of a path, without those that `.` and `..` take back.
fn words(path: &str) -> Vec<String> {
    let mut words = vec![];
    for word in path.split('/') {
        match word {
            "" | "." => {}
            ".." => drop(words.pop()),
            word => words.push(word.to_ascii_lowercase()),
        }
    }
    words
}

/// Redirect to the path that nsqd would correct this one to: other case, a slash more or less, `..` resolved. `None`: no known path.
fn redirected(method: &Method, path: &str, query: Option<&str>) -> Option<Reply> {
    let meant = words(path);
    let (to, _) = ROUTES.iter().find(|(known, methods)| methods.contains(method) && words(known) == meant)?;
    let to = query.map_or(to.to_string(), |query| format!("{to}?{query}"));
    let mut reply = match *method {
        Method::GET => {
            let body = format!("<a href=\"{}\">Moved Permanently</a>.\n\n", to.replace('&', "&amp;").replace('"', "&#34;"));
            with_type(StatusCode::MOVED_PERMANENTLY, "text/html; charset=utf-8", body.into())
        }
        _ => {
            let mut reply = Response::new(Full::default());
            *reply.status_mut() = StatusCode::TEMPORARY_REDIRECT;
            reply
        }
    };
    // A header may hold whatever a request line held.
    reply.headers_mut().insert(LOCATION, HeaderValue::from_str(&to).ok()?);
    Some(reply)
}

/// The parameters of a request; the first of a name counts.
#[derive(Debug, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query as Go does: `;` and broken escapes are errors, `+` is a space.
    pub fn parse(query: &str) -> Result<Self, Failure> {
        let bad = || Failure::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST");
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if pair.contains(';') {
                return Err(bad());
            }
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((unescape(key).ok_or_else(bad)?, unescape(value).ok_or_else(bad)?));
        }
        Ok(Query(pairs))
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// nsqd's booleans: missing or unknown is true.
    pub fn is_wanted(&self, key: &str) -> bool {
        !matches!(self.get(key), Some("false" | "0"))
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |b: u8| (b as char).to_digit(16);
                (digit(bytes.next()?)? << 4 | digit(bytes.next()?)?) as u8
            }
            other => other,
        });
    }
    // Names are ASCII: bytes that are no UTF-8 are no name, and are refused.
    Some(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_gos() {
        let query = Query::parse("topic=a%2Db&x=1+2&topic=second&flag&&binary=0").unwrap();
        assert_eq!((query.get("topic"), query.get("x"), query.get("flag")), (Some("a-b"), Some("1 2"), Some("")));
        assert_eq!((query.get("none"), query.is_wanted("binary"), query.is_wanted("none")), (None, false, true));
        for bad in ["topic=a;b", "topic=%zz", "topic=%4"] {
            assert_eq!(Query::parse(bad).unwrap_err().message, "INVALID_REQUEST", "{bad}");
        }
    }
}
