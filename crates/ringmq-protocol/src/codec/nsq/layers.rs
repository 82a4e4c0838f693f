//! The layers of a connection that IDENTIFY negotiates: TLS, and compression above it.

use rustls::ServerConfig;
use std::sync::Arc;

/// TLS terms for NSQ clients: the node's certificate, and the demands on theirs.
#[derive(Clone, Debug)]
pub struct Terms(pub Arc<ServerConfig>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    Snappy,
    /// Deflate with this level, 1 to 9.
    Deflate(u8),
}

/// Layers that an IDENTIFY adds, the lower one first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Upgrade {
    pub tls: bool,
    pub compression: Option<Compression>,
}

impl Upgrade {
    pub fn is_none(self) -> bool {
        self == Upgrade::default()
    }
}
