//! Walks one client connection through its protocol states and limits. Pure.

/// What of a session moves with its connection to another core.
#[derive(Debug, Default)]
pub struct Carried {}
