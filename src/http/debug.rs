//! /debug: nsqd's paths, as far as they mean something without Go.

use super::profile;
use super::routes::{Failure, Query, Reply, text, with_type};
use hyper::StatusCode;
use hyper::body::Bytes;

/// Answer to a request below /debug.
pub async fn answer(path: &str, query: &Query) -> Result<Reply, Failure> {
    match path {
        "/debug/pprof/" => Ok(with_type(StatusCode::OK, "text/html; charset=utf-8", INDEX.into())),
        "/debug/pprof/cmdline" => Ok(text(StatusCode::OK, command_line())),
        // Profiles have their names with them.
        "/debug/pprof/symbol" => Ok(text(StatusCode::OK, "num_symbols: 0\n")),
        "/debug/pprof/profile" => profile::take(query).await,
        "/debug/freememory" => Ok(free_memory().await),
        _ => Err(not_here("this path belongs to Go's runtime, and this node has no such runtime")),
    }
}

fn not_here(why: &'static str) -> Failure {
    Failure::new(StatusCode::NOT_IMPLEMENTED, format!("NOT_SUPPORTED: {why}"))
}

const INDEX: &str = "<html><head><title>/debug/pprof/</title></head><body>/debug/pprof/<br>\n<ul>\n\
    <li><a href='cmdline'>cmdline</a>: command line of the node</li>\n\
    <li><a href='profile?seconds=30'>profile</a>: CPU time of all threads in the next seconds, for go tool pprof</li>\n</ul>\n\
    Not there, since they belong to Go's runtime: allocs, block, goroutine, heap, threadcreate.\n</body></html>\n";

/// Arguments of the process with zero bytes between them.
fn command_line() -> Bytes {
    let mut line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    line.pop_if(|last| *last == 0);
    line.into()
}

/// Gives free memory of the allocator back to the system, on a thread of its own since that takes a while.
async fn free_memory() -> Reply {
    // SAFETY: malloc_trim takes a number and no pointer, and locks what it changes.
    let trimmed = tokio::task::spawn_blocking(|| unsafe { libc::malloc_trim(0) }).await;
    tracing::info!(freed = trimmed.is_ok_and(|freed| freed == 1), "the allocator returns its free memory to the system");
    text(StatusCode::OK, "")
}
