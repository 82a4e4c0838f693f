//! The auth servers of --auth-http-address: clients' permissions are requested from them here, off the cores.

use super::Node;
use crate::config::Settings;
use crate::seam::{
    grants::Grants,
    message::{AuthQuery, MeshMessage},
};
use crate::tls::https_client;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Questions at a time; further ones wait.
const AT_A_TIME: usize = 64;

/// Largest body of an answer.
const BODY_MAX: usize = 1024 * 1024;

/// Answers the cores, for ever.
pub async fn answer_all(node: Rc<Node>) {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    loop {
        let (core, ticket, query) = node.link.next_asked().await;
        let place = places.clone().acquire_owned().await;
        let node = node.clone();
        tokio::task::spawn_local(async move {
            let result = ask_any(&node.settings, &query).await.map(Arc::new);
            node.link.tell(core, MeshMessage::Authorized { ticket, result });
            drop(place);
        });
    }
}

/// First answer of the servers, asked in turn from a random one on.
async fn ask_any(settings: &Settings, query: &AuthQuery) -> Result<Grants, String> {
    let servers = &settings.auth_http_address;
    let first = RandomState::new().hash_one(0) as usize % servers.len().max(1);
    let mut errors = vec![];
    for server in servers.iter().cycle().skip(first).take(servers.len()) {
        match ask(settings, server, query).await {
            Ok(grants) => return Ok(grants),
            Err(error) => errors.push(format!("{server}: {error}")),
        }
    }
    Err(errors.join("; "))
}

async fn ask(settings: &Settings, server: &str, query: &AuthQuery) -> Result<Grants, String> {
    let limit = Duration::from_millis(settings.http_client_request_timeout_ms);
    let answered = timeout(limit, get(settings, endpoint(server, query))).await;
    let body = answered.map_err(|_| format!("no answer within {limit:?} (--http-client-request-timeout)"))??;
    Grants::parse(&body)
}

/// `host:port`, or a whole URL; the parameters are added to either.
fn endpoint(server: &str, query: &AuthQuery) -> String {
    let mut url = if server.contains("://") { format!("{server}?") } else { format!("http://{server}/auth?") };
    for (i, (key, value)) in [
        ("common_name", query.common_name.as_bytes()),
        ("remote_ip", query.remote_ip.as_bytes()),
        ("secret", &query.secret),
        ("tls", if query.tls { b"true" } else { b"false" }),
    ]
    .into_iter()
    .enumerate()
    {
        url.push_str(if i > 0 { "&" } else { "" });
        url.push_str(key);
        url.push('=');
        escape(&mut url, value);
    }
    url
}

/// Appends bytes as in a form: a space is `+`.
fn escape(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            b' ' => out.push('+'),
            _ => write!(out, "%{byte:02X}").expect("a String takes all that is written to it"),
        }
    }
}

/// The body of a good answer. A plain server that says so is asked again over HTTPS.
async fn get(settings: &Settings, url: String) -> Result<Bytes, String> {
    let mut url: Uri = url.parse().map_err(|e| format!("the address of the auth server is not valid: {e}"))?;
    for _ in 0..2 {
        let response = send(settings, &url).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await.map_err(|e| e.to_string())?.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let port = serde_json::from_slice::<serde_json::Value>(&body).ok().and_then(|json| json.get("https_port")?.as_u64());
        match (status.as_u16(), port) {
            (403, Some(port)) if url.scheme_str() != Some("https") => {
                let host = url.host().unwrap_or_default();
                let path = url.path_and_query().map_or("/", |path| path.as_str());
                url = format!("https://{host}:{port}{path}")
                    .parse()
                    .map_err(|e| format!("the server's https_port is not valid: {e}"))?;
            }
            _ => {
                return Err(format!("the server answered {status}: {:?}", String::from_utf8_lossy(&body[..body.len().min(200)])));
            }
        }
    }
    Err("the server asks for HTTPS, and was asked over HTTPS".into())
}

async fn send(settings: &Settings, url: &Uri) -> Result<Response<Incoming>, String> {
    let host = url.host().ok_or("the address of the auth server has no host")?.to_owned();
    let is_https = match url.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err("the address of the auth server is neither http nor https".into()),
    };
    let port = url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let limit = Duration::from_millis(settings.http_client_connect_timeout_ms);
    let connected = timeout(limit, TcpStream::connect((bare.as_str(), port))).await;
    let stream = connected
        .map_err(|_| format!("cannot connect within {limit:?} (--http-client-connect-timeout)"))?
        .map_err(|e| format!("cannot connect: {e}"))?;
    if !is_https {
        return exchange(stream, url).await;
    }
    let config = https_client(settings).map_err(|e| e.to_string())?;
    let name = ServerName::try_from(bare).map_err(|_| format!("{host} cannot be a name in a certificate"))?;
    let secured = TlsConnector::from(config).connect(name, stream).await.map_err(|e| format!("TLS: {e}"))?;
    exchange(secured, url).await
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, url: &Uri) -> Result<Response<Incoming>, String> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    // it ends with the answer's body, or the sender
    tokio::task::spawn_local(connection);
    let host = url.authority().map_or("", |authority| authority.as_str());
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header("Host", host)
        .header("Accept", "application/vnd.nsq; version=1.0")
        .header("User-Agent", concat!("ringmq/", env!("CARGO_PKG_VERSION")))
        .header("Connection", "close")
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    sender.send_request(request).await.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_nsqds() {
        let query = AuthQuery { remote_ip: "::1".into(), tls: true, common_name: "a b".into(), secret: b"p&ss/\xff~".to_vec() };
        let asked = "common_name=a+b&remote_ip=%3A%3A1&secret=p%26ss%2F%FF~&tls=true";
        assert_eq!(endpoint("h:1", &query), format!("http://h:1/auth?{asked}"));
        assert_eq!(endpoint("https://h/x", &query), format!("https://h/x?{asked}"));
    }
}
