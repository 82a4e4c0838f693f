//! A client of the node, as logs and /stats show it.

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ClientInfo {
    /// Protocol: "V2" as in nsqd, or "native".
    pub version: &'static str,
    pub client_id: String,
    pub hostname: String,
    pub user_agent: String,
    pub remote_address: String,
    pub connected_unix_s: i64,
    /// Layers that the connection's bytes pass.
    pub layers: Layers,
    /// Identity that the auth server gave.
    pub auth: Option<Box<Identity>>,
}

/// The layers of a client's connection, as /stats shows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    pub tls: Option<Box<TlsFacts>>,
    pub snappy: bool,
    pub deflate: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    pub identity: String,
    pub identity_url: String,
}

/// The TLS of a connection, for /stats and the auth server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsFacts {
    /// Version as nsqd writes it: `TLS1.3`.
    pub version: &'static str,
    /// Registered name: `TLS_AES_128_GCM_SHA256`.
    pub cipher_suite: String,
    pub protocol: String,
    /// Common name of the client's certificate; empty: the client showed none.
    pub common_name: String,
}
