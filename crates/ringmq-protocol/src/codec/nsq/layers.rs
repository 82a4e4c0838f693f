//! The layers of a connection that IDENTIFY negotiates: TLS, and compression above it.

use crate::base::Shared;
use rustls::ServerConfig;
use std::sync::Arc;

/// TLS terms for NSQ and HTTPS clients: the node's certificate, and the demands on the client's certificate. SIGHUP may replace them.
#[derive(Clone, Debug)]
pub struct Terms(Shared<ServerConfig>);

impl Terms {
    pub fn new(config: ServerConfig) -> Self {
        Terms(Shared::new(config))
    }

    /// Layers of a connection that begins now.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.get()
    }

    pub fn replace_by(&self, other: &Terms) {
        self.0.replace_by(&other.0);
    }
}

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
