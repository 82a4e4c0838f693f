//! The layers of a connection that IDENTIFY negotiates: TLS, and compression above it.

use rustls::ServerConfig;
use std::sync::Arc;

/// On which terms NSQ clients get TLS: the node's certificate, and what is asked of theirs.
#[derive(Clone, Debug)]
pub struct Terms(pub Arc<ServerConfig>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    Snappy,
    /// With this level, 1 to 9.
    Deflate(u8),
}

/// What an IDENTIFY asked for and gets: the layers to add, the lower one first.
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
