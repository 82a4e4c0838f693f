//! The HTTP API: methods, paths and their answers. Pure: a request's head in, an answer out.

use crate::NSQ_VERSION;
use crate::go::{Query, to_json, unescape};
use crate::registry::{Full, Name, Now, Registry, TopicFilter};

const JSON: &str = "application/json; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// An answer, before any HTTP library has seen it.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub content_type: Option<&'static str>,
    /// `X-NSQ-Content-Type: nsq; version=1.0`
    pub is_versioned: bool,
    pub allow: Option<&'static str>,
    pub location: Option<String>,
    pub body: String,
}

impl HttpResponse {
    fn plain(body: &str) -> Self {
        HttpResponse {
            status: 200,
            content_type: Some(TEXT),
            is_versioned: false,
            allow: None,
            location: None,
            body: body.into(),
        }
    }

    fn empty() -> Self {
        HttpResponse { content_type: None, ..HttpResponse::plain("") }
    }

    fn json(value: &impl serde::Serialize) -> Self {
        HttpResponse { content_type: Some(JSON), is_versioned: true, ..HttpResponse::plain(&to_json(value)) }
    }

    fn failed(failure: Failure) -> Self {
        HttpResponse { status: failure.0, ..HttpResponse::json(&serde_json::json!({ "message": failure.1 })) }
    }

    /// Redirection to the right path.
    fn moved(is_get: bool, location: String) -> Self {
        let (status, content_type, body) = match is_get {
            true => {
                let quoted = location.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
                (301, Some(HTML), format!("<a href=\"{}\">Moved Permanently</a>.\n\n", quoted.replace('\'', "&#39;")))
            }
            false => (307, None, String::new()),
        };
        HttpResponse { status, content_type, location: Some(location), ..HttpResponse::plain(&body) }
    }
}

/// A status and a message.
struct Failure(u16, &'static str);

impl From<Full> for Failure {
    fn from(_: Full) -> Self {
        Failure(503, "TOO_MANY_REGISTRATIONS")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    Ping,
    Info,
    Debug,
    Lookup,
    Topics,
    Channels,
    Nodes,
    CreateTopic,
    DeleteTopic,
    CreateChannel,
    DeleteChannel,
    Tombstone,
}

const ROUTES: [(&str, &str, Route); 12] = [
    ("GET", "/ping", Route::Ping),
    ("GET", "/info", Route::Info),
    ("GET", "/debug", Route::Debug),
    ("GET", "/lookup", Route::Lookup),
    ("GET", "/topics", Route::Topics),
    ("GET", "/channels", Route::Channels),
    ("GET", "/nodes", Route::Nodes),
    ("POST", "/topic/create", Route::CreateTopic),
    ("POST", "/topic/delete", Route::DeleteTopic),
    ("POST", "/channel/create", Route::CreateChannel),
    ("POST", "/channel/delete", Route::DeleteChannel),
    ("POST", "/topic/tombstone", Route::Tombstone),
];

/// The answer of /nodes.
#[derive(serde::Serialize)]
struct Nodes<'a> {
    producers: Vec<crate::registry::Node<'a>>,
}

/// `path` as it came, with its escapes; `query` without its `?`.
pub fn answer(registry: &mut Registry, method: &str, path: &str, query: &str, now: Now) -> HttpResponse {
    if (method, path) == ("OPTIONS", "*") {
        return HttpResponse::empty();
    }
    let Some(path) = unescape(path, false) else { return HttpResponse::failed(Failure(400, "INVALID_REQUEST")) };
    if let Some((_, _, route)) = ROUTES.iter().find(|(of, known, _)| *of == method && *known == path) {
        return routed(registry, *route, query, now).unwrap_or_else(HttpResponse::failed);
    }
    // Where a path is almost one, the client is told which.
    let clean = cleaned(&path);
    if let Some((of, known, _)) = ROUTES.iter().find(|(of, known, _)| *of == method && known.eq_ignore_ascii_case(&clean)) {
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        return HttpResponse::moved(*of == "GET", format!("{known}{query}"));
    }
    let Some((of, _, _)) = ROUTES.iter().find(|(_, known, _)| *known == path) else {
        return HttpResponse::failed(Failure(404, "NOT_FOUND"));
    };
    let allow = Some(if *of == "GET" { "GET, OPTIONS" } else { "OPTIONS, POST" });
    match method {
        "OPTIONS" => HttpResponse { allow, ..HttpResponse::empty() },
        _ => HttpResponse { allow, ..HttpResponse::failed(Failure(405, "METHOD_NOT_ALLOWED")) },
    }
}

/// The path without empty, `.` and `..` segments, and without a slash at its end.
fn cleaned(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    format!("/{}", segments.join("/"))
}

fn routed(registry: &mut Registry, route: Route, query: &str, now: Now) -> Result<HttpResponse, Failure> {
    // These look at no parameter, and so find none wrong.
    match route {
        Route::Ping => return Ok(HttpResponse::plain("OK")),
        Route::Info => return Ok(HttpResponse::json(&serde_json::json!({ "version": NSQ_VERSION }))),
        Route::Debug => return Ok(HttpResponse::json(&registry.debug())),
        Route::Topics => return Ok(HttpResponse::json(&serde_json::json!({ "topics": registry.topics() }))),
        Route::Nodes => return Ok(HttpResponse::json(&Nodes { producers: registry.nodes(now) })),
        _ => {}
    }
    let query = Query::parse(query).ok_or(Failure(400, "INVALID_REQUEST"))?;
    let asked = query.get("topic").ok_or(Failure(400, "MISSING_ARG_TOPIC"))?;
    let wanted = TopicFilter::new(asked);
    let topic = || Name::new(asked).ok_or(Failure(400, "INVALID_ARG_TOPIC"));
    let channel = || {
        let channel = query.get("channel").ok_or(Failure(400, "MISSING_ARG_CHANNEL"))?;
        Name::new(channel).ok_or(Failure(400, "INVALID_ARG_CHANNEL"))
    };
    match route {
        Route::Channels => return Ok(HttpResponse::json(&serde_json::json!({ "channels": registry.channels(wanted) }))),
        Route::Lookup => {
            let found = registry.lookup(wanted, now).ok_or(Failure(404, "TOPIC_NOT_FOUND"))?;
            return Ok(HttpResponse::json(&found));
        }
        Route::CreateTopic => registry.create_topic(&topic()?)?,
        Route::DeleteTopic => registry.delete_topic(wanted),
        Route::CreateChannel => {
            let topic = topic()?;
            registry.create_channel(&topic, &channel()?)?;
        }
        Route::DeleteChannel => {
            let topic = topic()?;
            if !registry.delete_channel(&topic, &channel()?) {
                return Err(Failure(404, "CHANNEL_NOT_FOUND"));
            }
        }
        Route::Tombstone => registry.tombstone(wanted, query.get("node").ok_or(Failure(400, "MISSING_ARG_NODE"))?, now),
        Route::Ping | Route::Info | Route::Debug | Route::Topics | Route::Nodes => unreachable!("answered above"),
    }
    tracing::info!(?route, topic = asked, "changed by HTTP");
    Ok(HttpResponse { is_versioned: true, ..HttpResponse::empty() })
}
