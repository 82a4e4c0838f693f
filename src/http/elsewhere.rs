//! A request to another node of the cluster, over its HTTP.

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Status and body of a POST without a body.
pub async fn post(address: &str, path: &str) -> Result<(u16, String), String> {
    match timeout(ANSWER_LIMIT, converse(address, path)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("nothing within {ANSWER_LIMIT:?}")),
    }
}

async fn converse(address: &str, path: &str) -> Result<(u16, String), Box<dyn Error>> {
    let stream = TokioIo::new(timeout(CONNECT_LIMIT, TcpStream::connect(address)).await??);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let carrier = tokio::task::spawn_local(connection);
    let request = Request::post(path).header("host", address).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string());
    carrier.abort();
    Ok((status, String::from_utf8_lossy(&body?.to_bytes()).into_owned()))
}
