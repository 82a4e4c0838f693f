//! A client of the node, as logs and /stats show it.

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ClientInfo {
    /// Of the protocol: "V2" as in nsqd, or "native".
    pub version: &'static str,
    pub client_id: String,
    pub hostname: String,
    pub user_agent: String,
    pub remote_address: String,
    pub connected_unix_s: i64,
    /// What its bytes pass.
    pub layers: Layers,
    /// Who the auth server says it is.
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
    /// As nsqd writes it: `TLS1.3`.
    pub version: &'static str,
    /// By its registered name: `TLS_AES_128_GCM_SHA256`.
    pub cipher_suite: String,
    pub protocol: String,
    /// Of the client's certificate; empty: it showed none.
    pub common_name: String,
}
