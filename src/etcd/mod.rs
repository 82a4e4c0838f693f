//! A client of etcd v3 through its JSON gateway: HTTP/1.1 with hyper ([`docs/decisions/etcd.md`] says why not gRPC).
//!
//! It carries [`Request`]s and brings answers, and judges none. It lives on the coordinator's thread, inside a `LocalSet`. Every wait of
//! it ends: a request is answered within a second, or its outcome is unknown.
//!
//! | file | its concept |
//! |---|---|
//! | mod | [`Etcd`]: which endpoint is in use, failover, users |
//! | json | requests and answers as the gateway writes them; pure |
//! | fault | the meaning of an error of etcd for a request; pure |
//! | link | one HTTP connection to one endpoint, with TLS |
//! | watch | the changes of a prefix, as a stream |
//! | health | version and alarms of the members |
//!
//! **Failover.** One endpoint is in use at a time. The first request without an answer, or with an answer that shows that the member has
//! no quorum, ends all its connections, the watch's too, and the next endpoint is used.
//!
//! **Silence.** A member that sleeps answers no renewal, which the node sends every few seconds. A connection that is half open ends by
//! TCP's own keepalive; a watch is opened anew every [`watch::RENEWED_EVERY`], which proves that it works.

pub mod fault;
pub mod health;
mod json;
mod link;
mod watch;

use crate::metadata::request::{Answer, Failure, KeyValue, Listing, Outcome, Request};
use fault::{Fault, RequestOutcome};
pub use link::Endpoint;
use link::{EtcdConnection, LinkError};
use rustls::ClientConfig;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch as signal};
use tokio::time::{Instant, timeout_at};
pub use watch::WatchEnd;

/// Time for an answer. A member that needs longer is given up.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a page of a listing, which may have megabytes.
const PAGE_PATIENCE: Duration = Duration::from_secs(5);
/// Time to connect, with TLS.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// Keys of one page of a listing.
const PAGE_KEYS: usize = 10_000;
/// Keys of a whole listing; more are not believed.
const LISTING_KEYS_MAX: usize = 4_000_000;
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Requests at a time beside renewals.
const IN_FLIGHT_MAX: usize = 16;
/// Connections that are kept for the next request.
const IDLE_MAX: usize = 4;

/// The node's user in etcd.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    /// File whose first line is the password. Each login reads it, so that a new password needs no restart.
    pub password_file: PathBuf,
}

impl User {
    pub fn password(&self) -> std::io::Result<String> {
        Ok(std::fs::read_to_string(&self.password_file)?.lines().next().unwrap_or_default().to_owned())
    }
}

#[derive(Clone)]
pub struct Options {
    /// Endpoints, at least one.
    pub endpoints: Vec<Endpoint>,
    /// TLS for endpoints of `https://`.
    pub tls: Option<Arc<ClientConfig>>,
    pub user: Option<User>,
    /// Prefix of every key.
    pub prefix: String,
}

/// The conversation with the metadata store, whichever it is.
#[expect(async_fn_in_trait, reason = "it stays on one thread")]
pub trait Store {
    /// Carries one request. Ends within seconds.
    async fn carry(&self, request: Request) -> Outcome;
    /// Brings all changes of the prefix from this revision on, whole revisions in their order, until it ends.
    async fn follow(&self, from: u64, heard: &mut dyn FnMut(Vec<crate::metadata::request::Change>)) -> WatchEnd;
}

pub struct Etcd {
    options: Options,
    /// Place of the endpoint in use.
    at: Cell<usize>,
    /// Rises whenever an endpoint is given up.
    era: signal::Sender<u64>,
    /// Connections to the endpoint in use that nothing waits on.
    idle: RefCell<Vec<EtcdConnection>>,
    token: RefCell<Option<String>>,
    /// Whether the last login failed and the log said so.
    is_locked_out: Cell<bool>,
    places: Semaphore,
    /// Time since which no endpoint has answered.
    silent: Cell<Option<Instant>>,
}

impl Etcd {
    pub fn new(options: Options) -> Etcd {
        assert!(!options.endpoints.is_empty(), "the settings name one at least");
        Etcd {
            options,
            at: Cell::new(0),
            era: signal::Sender::new(0),
            idle: RefCell::default(),
            token: RefCell::default(),
            is_locked_out: Cell::new(false),
            places: Semaphore::new(IN_FLIGHT_MAX),
            silent: Cell::new(None),
        }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.options.endpoints[self.at.get() % self.options.endpoints.len()]
    }

    /// Gives up the endpoint that was in use in this era, if it still is.
    fn leave(&self, era: u64, why: &dyn std::fmt::Display) {
        if *self.era.borrow() != era {
            return;
        }
        let left = self.endpoint().clone();
        self.at.set((self.at.get() + 1) % self.options.endpoints.len());
        self.idle.borrow_mut().clear();
        if self.silent.get().is_none() {
            self.silent.set(Some(Instant::now()));
            match self.options.endpoints.len() {
                1 => tracing::warn!("etcd does not answer, and the node tries again: {why}"),
                _ => tracing::warn!(next = %self.endpoint(), "etcd does not answer, and the node tries the next endpoint: {why}"),
            }
        } else {
            tracing::debug!(endpoint = %left, "etcd does not answer: {why}");
        }
        self.era.send_replace(era + 1);
    }

    fn answered(&self) {
        if let Some(since) = self.silent.take() {
            let ms = since.elapsed().as_millis() as u64;
            tracing::info!(endpoint = %self.endpoint(), ms, "etcd answers again");
        }
    }

    async fn link(&self, until: Instant) -> Result<EtcdConnection, LinkError> {
        if let Some(link) = self.idle.borrow_mut().pop() {
            return Ok(link);
        }
        EtcdConnection::connect(self.endpoint(), self.options.tls.clone(), until.min(Instant::now() + CONNECT_PATIENCE)).await
    }

    /// Sends one request, on any connection. A request that surely was not sent is tried on the other endpoints.
    async fn ask(&self, path: &str, body: &Value, patience: Duration) -> Result<Value, Fault> {
        let body = body.to_string();
        let until = Instant::now() + patience;
        let mut left = self.options.endpoints.len();
        let mut is_token_new = false;
        loop {
            let era = *self.era.borrow();
            let asked = self.ask_once(path, &body, until).await;
            let fault = match asked {
                Ok(answer) => {
                    self.answered();
                    return Ok(answer);
                }
                Err(fault) => fault.at(self.endpoint()),
            };
            if fault.judged == RequestOutcome::Token && self.options.user.is_some() && !std::mem::replace(&mut is_token_new, true)
            {
                self.token.replace(None);
                continue;
            }
            if fault.leaves() {
                self.leave(era, &fault);
            }
            left -= 1;
            if fault.judged != RequestOutcome::NotSent || left == 0 || Instant::now() >= until {
                return Err(fault);
            }
        }
    }

    async fn ask_once(&self, path: &str, body: &str, until: Instant) -> Result<Value, Fault> {
        let token = self.token(until).await?;
        loop {
            let is_reused = !self.idle.borrow().is_empty();
            let era = *self.era.borrow();
            let mut link = self.link(until).await?;
            let sent = timeout_at(until, link.ask(path, body, token.as_deref(), ANSWER_BYTES_MAX)).await;
            let answer = match sent {
                Err(_) => return Err(Fault::silent()),
                // It was closed while nothing waited on it.
                Ok(Err(LinkError::NotSent(_))) if is_reused => continue,
                Ok(answer) => answer?,
            };
            if era == *self.era.borrow() && self.idle.borrow().len() < IDLE_MAX {
                self.idle.borrow_mut().push(link);
            }
            return fault::judge(answer);
        }
    }

    /// Token of a login. `None`: etcd needs no login.
    async fn token(&self, until: Instant) -> Result<Option<String>, Fault> {
        let Some(user) = &self.options.user else { return Ok(None) };
        if let Some(token) = self.token.borrow().clone() {
            return Ok(Some(token));
        }
        let token = self.log_in(user, until).await;
        match &token {
            Ok(_) if self.is_locked_out.replace(false) => tracing::info!(user = %user.name, "etcd lets the node log in again"),
            Err(fault) if fault.judged == RequestOutcome::Refused && !self.is_locked_out.replace(true) => {
                let file = user.password_file.display();
                tracing::error!(user = %user.name, "{fault}; each attempt reads the password anew from {file}");
            }
            _ => {}
        }
        token.map(Some)
    }

    async fn log_in(&self, user: &User, until: Instant) -> Result<String, Fault> {
        let password = user.password().map_err(|error| Fault::no_password(&user.password_file, &error))?;
        let body = serde_json::json!({ "name": user.name, "password": password }).to_string();
        let mut link = self.link(until).await?;
        let asked = timeout_at(until, link.ask("/v3/auth/authenticate", &body, None, ANSWER_BYTES_MAX)).await;
        let answer = fault::judge(asked.map_err(|_| Fault::not_asked())??).map_err(Fault::of_user)?;
        let token = answer["token"].as_str().ok_or_else(|| Fault::not_etcd("the answer has no token"))?.to_owned();
        self.token.replace(Some(token.clone()));
        Ok(token)
    }

    async fn list(&self) -> Result<Answer, Fault> {
        let prefix = self.options.prefix.as_bytes();
        let mut listing = Listing { revision: 0, entries: vec![] };
        let mut first: Vec<u8> = prefix.to_vec();
        loop {
            let body = json::range(&first, prefix, PAGE_KEYS, listing.revision);
            let page = json::page(self.ask("/v3/kv/range", &body, PAGE_PATIENCE).await?)?;
            if listing.revision == 0 {
                listing.revision = page.revision;
            }
            listing.entries.extend(page.entries);
            let last: Option<&KeyValue> = listing.entries.last();
            match last.filter(|_| page.more) {
                None => return Ok(Answer::Listed(listing)),
                Some(_) if listing.entries.len() > LISTING_KEYS_MAX => {
                    return Err(Fault::not_etcd("the listing has more keys than a cluster can have"));
                }
                Some(last) => first = [&last.key[..], &[0]].concat(),
            }
        }
    }

    async fn carry_one(&self, request: Request) -> Result<Answer, Fault> {
        let _place = match &request {
            Request::Renew { .. } => None,
            _ => self.places.acquire().await.ok(),
        };
        match request {
            Request::List => self.list().await,
            Request::Txn(txn) => json::committed(self.ask("/v3/kv/txn", &json::txn(&txn), PATIENCE).await?),
            Request::Grant { ttl } => {
                let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
                let body = serde_json::json!({ "TTL": seconds.to_string() });
                json::granted(self.ask("/v3/lease/grant", &body, PATIENCE).await?)
            }
            Request::Renew { lease } => {
                let body = serde_json::json!({ "ID": lease.to_string() });
                json::renewed(self.ask("/v3/lease/keepalive", &body, PATIENCE).await?)
            }
            Request::Revoke { lease } => {
                let body = serde_json::json!({ "ID": lease.to_string() });
                match self.ask("/v3/lease/revoke", &body, PATIENCE).await {
                    Ok(_) => Ok(Answer::Revoked),
                    Err(fault) if fault.is_no_lease() => Ok(Answer::Revoked),
                    Err(fault) => Err(fault),
                }
            }
        }
    }
}

impl Store for Etcd {
    async fn carry(&self, request: Request) -> Outcome {
        self.carry_one(request).await.map_err(|fault| match fault.judged {
            RequestOutcome::Unknown => Failure::Unknown(fault.to_string()),
            RequestOutcome::NotSent => Failure::Unreached(fault.to_string()),
            RequestOutcome::Refused | RequestOutcome::Token => Failure::Refused(fault.to_string()),
        })
    }

    async fn follow(&self, from: u64, heard: &mut dyn FnMut(Vec<crate::metadata::request::Change>)) -> WatchEnd {
        watch::follow(self, from, heard).await
    }
}
