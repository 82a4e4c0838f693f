//! CPU profiles of the node for `go tool pprof`: samples of all threads by SIGPROF, collected by the crate pprof.
//!
//! A sample is taken at any place of a thread, so the handler may only call functions that are safe in a signal handler. The unwinder
//! is, from glibc 2.35 on: it finds a library's tables without a lock (`_dl_find_object`). An older glibc gets no profile. The handler
//! allocates nothing; names of functions are looked up afterwards, on a thread of their own.

use super::routes::{Failure, Query, Reply, with_type};
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::StatusCode;
use hyper::header::{CONTENT_DISPOSITION, HeaderValue};
use pprof::ProfilerGuard;
use pprof::protos::Message;
use std::ffi::CStr;
use std::io::Write;
use std::time::Duration;

/// Samples per second of CPU time. A round number would go in step with timers of the node.
const HERTZ: i32 = 99;
/// Seconds of a profile that asks for no other time, as in Go.
const USUAL_SECONDS: u64 = 30;
const SECONDS_MAX: u64 = 600;
/// First glibc with `_dl_find_object`.
const GLIBC_NEEDED: (u32, u32) = (2, 35);
/// Libraries in which no sample is taken: the unwinder would meet itself, and the kernel's vdso has wrong tables on some systems.
const LEFT_OUT: [&str; 3] = ["libgcc", "ld-linux", "vdso"];

/// Profile of the next `seconds` in pprof's format. One at a time.
pub async fn take(query: &Query) -> Result<Reply, Failure> {
    let time = duration(query.get("seconds"))?;
    if !has_safe_unwinder(&glibc()) {
        return Err(Failure::new(
            StatusCode::NOT_IMPLEMENTED,
            "NOT_SUPPORTED: a profile needs glibc 2.35; perf record -g -p <pid> takes one of all threads",
        ));
    }
    let guard = pprof::ProfilerGuardBuilder::default().frequency(HERTZ).blocklist(&LEFT_OUT).build().map_err(cannot)?;
    tracing::info!(seconds = time.as_secs(), "a CPU profile begins");
    // A client that goes away drops the guard, which ends the profile.
    tokio::time::sleep(time).await;
    let profile = tokio::task::spawn_blocking(move || encode(&guard));
    let profile = profile.await.map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))??;
    let mut reply = with_type(StatusCode::OK, "application/octet-stream", profile.into());
    reply.headers_mut().insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"profile\""));
    Ok(reply)
}

/// The samples with names, compressed as pprof wants them.
fn encode(guard: &ProfilerGuard<'_>) -> Result<Vec<u8>, Failure> {
    let profile = guard.report().build().and_then(|report| report.pprof());
    // The table of names takes as much memory as the node.
    backtrace::clear_symbol_cache();
    let profile = profile.map_err(cannot)?;
    let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
    let written = compressed.write_all(&profile.encode_to_vec());
    written.and_then(|()| compressed.finish()).map_err(|error| cannot(error.into()))
}

/// The failure in nsqd's words.
fn cannot(error: pprof::Error) -> Failure {
    let why = match error {
        pprof::Error::Running => "cpu profiling already in use".into(),
        other => other.to_string(),
    };
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("Could not enable CPU profiling: {why}"))
}

fn duration(seconds: Option<&str>) -> Result<Duration, Failure> {
    let seconds = match seconds.map(str::parse) {
        None => USUAL_SECONDS,
        Some(Ok(seconds @ 1..=SECONDS_MAX)) => seconds,
        Some(_) => return Err(Failure::new(StatusCode::BAD_REQUEST, format!("INVALID_SECONDS: seconds is 1 to {SECONDS_MAX}"))),
    };
    Ok(Duration::from_secs(seconds))
}

fn glibc() -> String {
    // SAFETY: the function returns a string with a zero byte that lives as long as the process.
    unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned()
}

/// Whether `glibc`, as in "2.36", unwinds without a lock.
fn has_safe_unwinder(glibc: &str) -> bool {
    let mut parts = glibc.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= GLIBC_NEEDED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_profile_is_bounded() {
        assert_eq!(duration(None).map(|time| time.as_secs()), Ok(30));
        assert_eq!(duration(Some("5")).map(|time| time.as_secs()), Ok(5));
        for bad in ["0", "601", "-1", "1.5", ""] {
            assert_eq!(duration(Some(bad)).map_err(|failure| failure.status), Err(StatusCode::BAD_REQUEST), "{bad}");
        }
    }

    #[test]
    fn an_older_glibc_gets_no_profile() {
        for (version, is_good) in [("2.36", true), ("2.35", true), ("3.0", true), ("2.34", false), ("2.9", false), ("", false)] {
            assert_eq!(has_safe_unwinder(version), is_good, "{version}");
        }
    }
}
