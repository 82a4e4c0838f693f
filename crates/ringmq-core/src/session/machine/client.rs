//! Knowledge of a session about its client; it moves with the connection to another core.

use super::auth::Auth;
use crate::codec::nsq::identify::Negotiated;
use crate::session::published::Published;

/// A client's own description.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    pub client_id: String,
    pub hostname: String,
    pub user_agent: String,
}

#[derive(Debug)]
pub(super) struct Client {
    /// The magic came.
    pub greeted: bool,
    pub negotiated: Negotiated,
    /// `None` before its IDENTIFY.
    pub identity: Option<Box<Identity>>,
    pub published: Published,
    pub connected_unix_s: i64,
    pub auth: Option<Box<Auth>>,
}
