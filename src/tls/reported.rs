//! Memory of the faults logged about other nodes: a node that repeats the same fault costs one line of the log.

use crate::base::{Peer, Ticks};
use std::time::Duration;

/// The same is said again after this time.
const AGAIN: Duration = Duration::from_secs(600);

/// Hosts with their faults that are remembered; the oldest goes first.
const LINES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct ReportedErrors(Vec<(Ticks, String, String)>);

impl ReportedErrors {
    /// True if the error was not reported of the host lately.
    pub fn is_new(&mut self, now: Ticks, peer: &Peer, error: &str) -> bool {
        let host = peer.0.rsplit_once(':').map_or(&*peer.0, |(host, _)| host);
        self.0.retain(|(at, ..)| now.since(*at) < AGAIN);
        if self.0.iter().any(|(_, h, e)| h == host && e == error) {
            return false;
        }
        if self.0.len() >= LINES_MAX {
            self.0.remove(0);
        }
        self.0.push((now, host.to_owned(), error.to_owned()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_of_the_same_host_is_said_once_for_a_while() {
        let mut said = ReportedErrors::default();
        let [a, a2, b] = ["10.0.0.1:5", "10.0.0.1:6", "[::1]:5"].map(|p| Peer(p.into()));
        assert!(said.is_new(Ticks(1), &a, "x") && !said.is_new(Ticks(2), &a2, "x"));
        assert!(said.is_new(Ticks(2), &a, "y") && said.is_new(Ticks(2), &b, "x"));
        assert!(said.is_new(Ticks(1) + AGAIN, &a, "x"));
        for i in 0..200 {
            said.is_new(Ticks(9), &a, &i.to_string());
        }
        assert!(said.0.len() <= LINES_MAX);
    }
}
