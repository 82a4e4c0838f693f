//! AUTH and its permissions. A command that needs an answer of the auth server waits for it, and so do all commands behind it.

use super::Session;
use crate::base::{Now, Ticks};
use crate::codec::nsq::error::quoted;
use crate::codec::nsq::{ClientError, frame};
use crate::seam::grants::Grants;
use crate::session::Host;
use crate::{base::client::Identity, seam::message::AuthQuery};
use serde::Serialize;
use std::sync::Arc;

/// A client that has said AUTH.
#[derive(Debug)]
pub struct Auth {
    secret: Vec<u8>,
    /// `None`: the first answer is under way.
    granted: Option<(Arc<Grants>, Ticks)>,
}

impl Auth {
    fn has_authorizations(&self) -> bool {
        self.granted.as_ref().is_some_and(|(grants, _)| !grants.authorizations.is_empty())
    }

    /// Identity of a client that may do something.
    pub fn identity(&self) -> Option<Identity> {
        let (grants, _) = self.granted.as_ref().filter(|(grants, _)| !grants.authorizations.is_empty())?;
        Some(Identity { identity: grants.identity.clone(), identity_url: grants.identity_url.clone() })
    }
}

/// The answer to AUTH.
#[derive(Serialize)]
struct Response<'a> {
    identity: &'a str,
    identity_url: &'a str,
    permission_count: usize,
}

impl Session {
    /// False: it waits.
    pub(super) fn ask_auth(&mut self, secret: &[u8], host: &mut impl Host) -> bool {
        let error = if self.client.auth.as_ref().is_some_and(|auth| auth.has_authorizations()) {
            ClientError::fatal("E_INVALID", "AUTH already set")
        } else if !self.limits.auth_required {
            ClientError::fatal("E_AUTH_DISABLED", "AUTH disabled")
        } else {
            self.client.auth = Some(Box::new(Auth { secret: secret.to_vec(), granted: None }));
            self.query_auth(host);
            return false;
        };
        self.end_with(&error);
        true
    }

    fn query_auth(&mut self, host: &mut impl Host) {
        let Some(auth) = &self.client.auth else { return };
        let tls = self.transport.as_ref().and_then(|transport| transport.tls_facts());
        let query = AuthQuery {
            remote_ip: self.remote_host().to_owned(),
            tls: tls.is_some(),
            common_name: tls.map(|tls| tls.common_name).unwrap_or_default(),
            secret: auth.secret.clone(),
        };
        self.waits_for_auth = true;
        host.authorize(self.conn, query);
    }

    /// Checks a permission. `None`: granted. `Some(false)`: the command waits. `Some(true)`: it has been refused.
    pub(super) fn forbid(&mut self, now: Now, name: &str, topic: &str, channel: &str, host: &mut impl Host) -> Option<bool> {
        if !self.limits.auth_required {
            return None;
        }
        let Some((grants, until)) = self.client.auth.as_ref().and_then(|auth| auth.granted.as_ref()) else {
            self.end_with(&ClientError::fatal("E_AUTH_FIRST", format!("AUTH required before {name}")));
            return Some(true);
        };
        if *until <= now.ticks {
            self.query_auth(host);
            return Some(false);
        }
        if grants.allow(topic, channel) {
            return None;
        }
        let [topic, channel] = [topic, channel].map(|name| quoted(name.as_bytes()));
        self.end_with(&ClientError::fatal("E_UNAUTHORIZED", format!("AUTH failed for {name} on {topic} {channel}")));
        Some(true)
    }

    /// The auth server's answer, or why there is none.
    pub fn authorized(&mut self, now: Now, result: Result<Arc<Grants>, String>, host: &mut impl Host) {
        let is_awaited = std::mem::take(&mut self.waits_for_auth) && !self.ended;
        let Some(auth) = self.client.auth.as_mut().filter(|_| is_awaited) else { return };
        let grants = match result {
            Ok(grants) => grants,
            Err(error) => {
                // The client is not told about servers behind the node.
                tracing::warn!(address = %self.peer.0, error, "AUTH failed: no auth server gave a usable answer");
                return self.fail_stalled(ClientError::fatal("E_AUTH_FAILED", "AUTH failed"));
            }
        };
        let is_first = auth.granted.is_none();
        auth.granted = Some((grants.clone(), now.ticks + grants.ttl));
        if !is_first {
            return self.resume(now, host);
        }
        let Some(stalled) = self.stalled.take() else { return };
        self.input.drop_command(stalled.len);
        if grants.authorizations.is_empty() {
            return self.end_with(&ClientError::fatal("E_UNAUTHORIZED", "AUTH no authorizations found"));
        }
        let response = Response {
            identity: &grants.identity,
            identity_url: &grants.identity_url,
            permission_count: grants.authorizations.len(),
        };
        let json = serde_json::to_string(&response).expect("two strings and a number have a JSON form");
        // As Go writes them, with HTML in mind. They occur in strings only.
        let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        let mut answer = Vec::new();
        frame::response(&mut answer, json.as_bytes());
        self.answer_frame(&answer);
        self.read_since = now.ticks;
        self.resume(now, host);
    }
}
