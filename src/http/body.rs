//! Bodies, bounded while they are read: by the request's limit, by a budget all requests share, and by the time
//! without a further byte.

use super::Node;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// Bytes that one permit of the budget stands for.
pub const PERMIT_BYTES: u64 = 1024;

/// A body, and its share of the budget: hold it for as long as the bytes wait here or at a core.
pub struct Paid {
    pub bytes: Vec<u8>,
    pub budget: Vec<OwnedSemaphorePermit>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum BodyError {
    TooBig,
    /// Too many bytes of other requests are held, for longer than a publish waits.
    NoRoom,
    TooSlow,
    /// The client went away or sent no valid body.
    Broken,
}

pub async fn read(node: &Node, body: Incoming, max: u64) -> Result<Paid, BodyError> {
    if body.size_hint().lower() > max {
        return Err(BodyError::TooBig);
    }
    collect(node, body, max).await
}

async fn collect(node: &Node, mut body: Incoming, max: u64) -> Result<Paid, BodyError> {
    let patience = Duration::from_millis(node.settings.pub_waiting_timeout_ms);
    let mut paid = Paid { bytes: Vec::new(), budget: Vec::new() };
    let mut paid_bytes = 0;
    while let Some(frame) = timeout(node.timeout(), body.frame()).await.map_err(|_| BodyError::TooSlow)? {
        let frame = frame.map_err(|_| BodyError::Broken)?;
        let Some(data) = frame.data_ref() else { continue };
        let len = (paid.bytes.len() + data.len()) as u64;
        if len > max {
            return Err(BodyError::TooBig);
        }
        if len > paid_bytes {
            // Growing by half at least keeps the permits few; announced bytes are not paid for before they come.
            let wanted = len.max(paid_bytes + paid_bytes / 2).min(max).max(len);
            let permits = (wanted - paid_bytes).div_ceil(PERMIT_BYTES) as u32;
            let share = node.body_budget.clone().acquire_many_owned(permits);
            let permit = timeout(patience, share).await.map_err(|_| BodyError::NoRoom)?.map_err(|_| BodyError::NoRoom)?;
            paid_bytes += permits as u64 * PERMIT_BYTES;
            paid.budget.push(permit);
            paid.bytes.reserve_exact((paid_bytes as usize).min(max as usize) - paid.bytes.len());
        }
        paid.bytes.extend_from_slice(data);
    }
    Ok(paid)
}
