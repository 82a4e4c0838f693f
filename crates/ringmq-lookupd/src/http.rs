//! The HTTP side: hyper around [`routes::answer`].

use crate::daemon::{RegistryClock, each_connection};
use crate::routes::{self, HttpResponse};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Time that a connection may be open without a request, or with a part of one's head. Clients keep connections between two lookups.
const IDLE_LIMIT: Duration = Duration::from_secs(3600);
/// Time for a request's body.
const BODY_LIMIT: Duration = Duration::from_secs(30);
/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bodies mean nothing here. A longer one ends its connection.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Serves until `stopping` closes, and then until the requests under way are answered.
pub async fn serve(listener: TcpListener, shared: Rc<RegistryClock>, connections_max: usize, stopping: watch::Receiver<()>) {
    let converse = |stream, remote: SocketAddr| {
        let conversation = converse(stream, remote.to_string(), shared.clone(), stopping.clone());
        async move {
            if let Err(error) = conversation.await {
                tracing::debug!(%remote, %error, "http connection ended");
            }
        }
    };
    each_connection(listener, connections_max, stopping.clone(), converse, |stream, _| refuse(&stream)).await;
}

/// Refuses a connection beyond the limit without waiting for it.
fn refuse(stream: &TcpStream) {
    const ANSWER: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n\
        Content-Length: 34\r\n\r\n{\"message\":\"TOO_MANY_CONNECTIONS\"}";
    let _ = stream.try_write(ANSWER);
}

async fn converse(
    stream: TcpStream,
    remote: String,
    shared: Rc<RegistryClock>,
    mut stopping: watch::Receiver<()>,
) -> hyper::Result<()> {
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(move |request| {
        let (shared, remote) = (shared.clone(), remote.clone());
        async move { Ok::<_, Infallible>(answer(&shared, request, &remote).await) }
    });
    let mut builder = http1::Builder::new();
    // Header names are written as Go writes them.
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE_LIMIT).max_buf_size(HEAD_BYTES_MAX).title_case_headers(true);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        done = connection.as_mut() => return done,
        _ = stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

async fn answer(shared: &RegistryClock, request: Request<Incoming>, remote: &str) -> Response<Full<Bytes>> {
    let began = Instant::now();
    let (head, body) = request.into_parts();
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let read = tokio::time::timeout(BODY_LIMIT, discard(body)).await.unwrap_or(false);
    let answer = shared.with(|registry, now| routes::answer(registry, head.method.as_str(), path, query, now));
    tracing::info!(status = answer.status, method = %head.method, uri = %head.uri, remote, took = ?began.elapsed(), "http");
    let mut response = respond(answer);
    if !read {
        // The rest of the body is not read.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads the body and keeps nothing of it; `false` when it is too long or broken.
async fn discard(body: Incoming) -> bool {
    let mut body = Limited::new(body, BODY_BYTES_MAX);
    loop {
        match body.frame().await {
            None => return true,
            Some(Ok(_)) => {}
            Some(Err(_)) => return false,
        }
    }
}

fn respond(answer: HttpResponse) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    if let Some(content_type) = answer.content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    if answer.is_versioned {
        headers.insert("x-nsq-content-type", HeaderValue::from_static("nsq; version=1.0"));
    }
    if let Some(allow) = answer.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    // A query that came in a request's head is one that a header can carry.
    if let Some(location) = answer.location.and_then(|location| HeaderValue::try_from(location).ok()) {
        headers.insert(LOCATION, location);
    }
    response
}
