//! Conversion of the settings to the terms on which the node speaks TLS, with clients ([`Terms`]) and with other nodes ([`PeerTerms`]):
//! reads the PEM files and checks their content, before the cores start. It knows no connection.

use super::names::AnyName;
use super::shown::AnyCertificate;
use crate::base::Shared;
use crate::codec::nsq::layers;
use crate::config::Settings;
use ringmq_protocol::pem::{PemError, certificates, private_key, roots, usable_roots};
use rustls::client::WebPkiServerVerifier;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, Error, InconsistentKeys, RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::path::Path;
use std::sync::Arc;

/// Reason why the node cannot speak TLS as configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("--{flag}={source}")]
    File { flag: &'static str, source: PemError },
    #[error(
        "the private key in --{key_flag}={key} does not fit the certificate in --{flag}={certificate} \
         (the node's own certificate must come first in its file)"
    )]
    Mismatch { flag: &'static str, key_flag: &'static str, key: String, certificate: String },
    #[error("none of the system's CAs can be read ({0}): name the CAs to trust with --tls-root-ca-file")]
    SystemRoots(String),
    #[error("TLS cannot be set up: {0}")]
    Other(Error),
}

/// The flags that name the files of a port.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    pub certificate: &'static str,
    pub key: &'static str,
    pub ca: &'static str,
}

pub const NATIVE: Flags = Flags { certificate: "native-tls-cert", key: "native-tls-key", ca: "native-tls-client-ca" };
pub const NSQ: Flags = Flags { certificate: "tls-cert", key: "tls-key", ca: "tls-root-ca-file" };
pub const ETCD: Flags = Flags { certificate: "etcd-tls-cert", key: "etcd-tls-key", ca: "etcd-tls-ca" };
pub const PEER: Flags = Flags { certificate: "peer-tls-cert", key: "peer-tls-key", ca: "peer-tls-ca" };

/// TLS terms that the node offers its clients and asks of them.
#[derive(Clone, Debug)]
pub struct Terms(Shared<ServerConfig>);

/// The same for other nodes, from either side: each shows its certificate, and one CA has signed both.
#[derive(Clone, Debug)]
pub struct PeerTerms(Shared<PeerConfigs>);

#[derive(Debug)]
struct PeerConfigs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl Terms {
    /// `None`: the settings ask for no TLS.
    pub fn load(settings: &Settings) -> Result<Option<Terms>, TlsError> {
        if settings.native_tls_cert.is_empty() {
            return Ok(None);
        }
        let own = Own::load(NATIVE, &settings.native_tls_cert, &settings.native_tls_key)?;
        let verifier = match settings.native_tls_client_ca.as_str() {
            "" => None,
            path => Some(client_verifier(NATIVE, path)?),
        };
        let config = own.server(&versions(&settings.native_tls_min_version), verifier)?;
        Ok(Some(Terms::of(config)))
    }

    pub(super) fn of(config: ServerConfig) -> Terms {
        Terms(Shared::new(config))
    }

    /// Reads the files again, for connections that come from now on. After an error all stays as it was.
    pub fn reread(&self, settings: &Settings) -> Result<(), TlsError> {
        Terms::load(settings).map(|read| read.iter().for_each(|read| self.0.replace_by(&read.0)))
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.0.get()
    }
}

impl PeerTerms {
    /// `None`: the settings ask for no TLS.
    pub fn load(settings: &Settings) -> Result<Option<PeerTerms>, TlsError> {
        if settings.peer_tls_cert.is_empty() {
            return Ok(None);
        }
        let own = Own::load(PEER, &settings.peer_tls_cert, &settings.peer_tls_key)?;
        let versions = versions(&settings.peer_tls_min_version);
        let server = own.server(&versions, Some(client_verifier(PEER, &settings.peer_tls_ca)?))?;
        let trusted = Arc::new(roots(Path::new(&settings.peer_tls_ca)).map_err(of(PEER.ca))?);
        let verifier = WebPkiServerVerifier::builder_with_provider(trusted, provider());
        let verifier = verifier.build().map_err(|e| bad_ca(PEER, &settings.peer_tls_ca, e.to_string()))?;
        let client = own.client(&versions, verifier.clone())?;
        let (server, client) = (Arc::new(server), Arc::new(client));
        Ok(Some(PeerTerms(Shared::new(PeerConfigs { server, client, verifier }))))
    }

    /// Reads the files again, as [`Terms::reread`].
    pub fn reread(&self, settings: &Settings) -> Result<(), TlsError> {
        PeerTerms::load(settings).map(|read| read.iter().for_each(|read| self.0.replace_by(&read.0)))
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        self.0.get().server.clone()
    }

    /// Terms of a connection to the node of this name at `host:port`. The certificate must be for one of the two; the second is told to
    /// the other side.
    pub(super) fn client(&self, address: &str, node: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
        let name = |name: &str| ServerName::try_from(name.to_owned()).ok();
        let mut names: Vec<_> = [host(address), node].into_iter().filter_map(name).collect();
        if names.is_empty() {
            return Err(format!("neither the host of {address} nor {node} can be a name in a certificate"));
        }
        let first = names.remove(0);
        let configs = self.0.get();
        let Some(second) = names.pop() else { return Ok((configs.client.clone(), first)) };
        let mut config = (*configs.client).clone();
        config.dangerous().set_certificate_verifier(Arc::new(AnyName { inner: configs.verifier.clone(), other: second }));
        Ok((Arc::new(config), first))
    }
}

/// Terms for HTTPS clients, and for NSQ clients that ask for TLS. `None`: the settings have none. The CAs must be good in any case.
pub fn nsq_terms(settings: &Settings) -> Result<Option<layers::Terms>, TlsError> {
    let trusted = nsq_roots(settings)?;
    if settings.tls_cert.is_empty() {
        return Ok(None);
    }
    let own = Own::load(NSQ, &settings.tls_cert, &settings.tls_key)?;
    let verifier: Option<Arc<dyn ClientCertVerifier>> = match (settings.tls_client_auth_policy.as_str(), trusted) {
        ("require", _) => Some(Arc::new(AnyCertificate::new(provider()))),
        ("require-verify", trusted) => {
            let trusted = trusted.map_or_else(system_roots, Ok)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider()).build();
            Some(verifier.map_err(|e| bad_ca(NSQ, &settings.tls_root_ca_file, e.to_string()))?)
        }
        _ => None,
    };
    let oldest = if settings.tls_min_version == "tls1.3" { "1.3" } else { "1.2" };
    Ok(Some(layers::Terms::new(own.server(&versions(oldest), verifier)?)))
}

/// [`Terms::reread`] for NSQ and HTTPS clients.
pub fn reread_nsq(terms: &layers::Terms, settings: &Settings) -> Result<(), TlsError> {
    nsq_terms(settings).map(|read| read.iter().for_each(|read| terms.replace_by(read)))
}

/// Terms of HTTPS requests: the CAs of --tls-root-ca-file, else the system's, are trusted.
pub fn https_client(settings: &Settings) -> Result<Arc<ClientConfig>, TlsError> {
    let trusted = nsq_roots(settings)?.map_or_else(system_roots, Ok)?;
    let oldest = if settings.tls_min_version == "tls1.3" { "1.3" } else { "1.2" };
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&versions(oldest));
    let builder = builder.map_err(TlsError::Other)?.with_root_certificates(trusted);
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// TLS of the node towards etcd: it trusts the CAs of --etcd-tls-ca, else the system's.
pub fn etcd_client(settings: &Settings) -> Result<Arc<ClientConfig>, TlsError> {
    let trusted = match settings.etcd_tls_ca.as_str() {
        "" => system_roots()?,
        path => roots(Path::new(path)).map_err(of(ETCD.ca))?,
    };
    if settings.etcd_tls_cert.is_empty() {
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&versions("1.2"));
        let builder = builder.map_err(TlsError::Other)?.with_root_certificates(trusted);
        return Ok(Arc::new(builder.with_no_client_auth()));
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(trusted), provider()).build();
    let verifier = verifier.map_err(|e| bad_ca(ETCD, &settings.etcd_tls_ca, e.to_string()))?;
    let own = Own::load(ETCD, &settings.etcd_tls_cert, &settings.etcd_tls_key)?;
    Ok(Arc::new(own.client(&versions("1.2"), verifier)?))
}

/// The CAs of --tls-root-ca-file.
fn nsq_roots(settings: &Settings) -> Result<Option<RootCertStore>, TlsError> {
    match settings.tls_root_ca_file.as_str() {
        "" => Ok(None),
        path => usable_roots(Path::new(path)).map(|(roots, _)| Some(roots)).map_err(of(NSQ.ca)),
    }
}

/// CAs that the system trusts.
fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(found.certs);
    if good == 0 {
        let why = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(TlsError::SystemRoots(why));
    }
    Ok(roots)
}

/// The host of `host:port`, `[v6]:port`.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn versions(oldest: &str) -> Vec<&'static SupportedProtocolVersion> {
    match oldest {
        "1.3" => vec![&rustls::version::TLS13],
        _ => vec![&rustls::version::TLS13, &rustls::version::TLS12],
    }
}

fn of(flag: &'static str) -> impl Fn(PemError) -> TlsError {
    move |source| TlsError::File { flag, source }
}

fn bad_ca(flags: Flags, path: &str, what: String) -> TlsError {
    of(flags.ca)(PemError::Certificate { path: path.into(), what })
}

fn client_verifier(flags: Flags, path: &str) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = roots(Path::new(path)).map_err(of(flags.ca))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    verifier.map_err(|e| bad_ca(flags, path, e.to_string()))
}

/// The node's own certificate and key.
struct Own<'a> {
    flags: Flags,
    certificate: &'a str,
    key: &'a str,
    chain: Vec<CertificateDer<'static>>,
    private: PrivateKeyDer<'static>,
}

impl<'a> Own<'a> {
    fn load(flags: Flags, certificate: &'a str, key: &'a str) -> Result<Own<'a>, TlsError> {
        let chain = certificates(Path::new(certificate)).map_err(of(flags.certificate))?;
        let private = private_key(Path::new(key)).map_err(of(flags.key))?;
        Ok(Own { flags, certificate, key, chain, private })
    }

    fn server(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        verifier: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<ServerConfig, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(versions).map_err(TlsError::Other)?;
        let builder = match verifier {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let made = builder.with_single_cert(self.chain.clone(), self.private.clone_key());
        let mut config = made.map_err(|e| self.refused(e))?;
        // Connections live long: a handshake saved is not worth a table that all cores share, and a client's certificate is
        // looked at each time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        verifier: Arc<WebPkiServerVerifier>,
    ) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(versions).map_err(TlsError::Other)?;
        let builder = builder.with_webpki_verifier(verifier);
        let made = builder.with_client_auth_cert(self.chain.clone(), self.private.clone_key());
        let mut config = made.map_err(|e| self.refused(e))?;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }

    fn refused(&self, error: Error) -> TlsError {
        let Own { flags, certificate, key, .. } = self;
        match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::Mismatch {
                flag: flags.certificate,
                key_flag: flags.key,
                key: (*key).to_owned(),
                certificate: (*certificate).to_owned(),
            },
            Error::InvalidCertificate(e) => of(flags.certificate)(PemError::certificate(Path::new(certificate), &e)),
            e => {
                let what = unsupported(&self.private).map_or_else(|| e.to_string(), str::to_owned);
                of(flags.key)(PemError::Key { path: key.into(), what: format!("{what}; {SUPPORTED}") })
            }
        }
    }
}

const SUPPORTED: &str =
    "supported are RSA with 2048 to 4096 bits, ECDSA with P-256 or P-384, and Ed25519: make another key and certificate";

/// Kind of a key that the library refuses, where its bytes tell.
fn unsupported(key: &PrivateKeyDer<'_>) -> Option<&'static str> {
    const P521: &[u8] = &[0x06, 0x05, 0x2B, 0x81, 0x04, 0x00, 0x23];
    const RSA: &[u8] = &[0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01];
    // A key of 2048 bits has nearly 1,200 bytes.
    const RSA_2048_LEN_MIN: usize = 1_100;
    let der = key.secret_der();
    let has = |identifier: &[u8]| der.windows(identifier.len()).any(|bytes| bytes == identifier);
    let is_rsa = matches!(key, PrivateKeyDer::Pkcs1(_)) || has(RSA);
    match () {
        () if has(P521) => Some("ECDSA with the curve P-521 is not supported"),
        () if is_rsa && der.len() < RSA_2048_LEN_MIN => Some("RSA with less than 2048 bits is not supported"),
        () => None,
    }
}

/// Reason why others will refuse the certificate in this file at that time, though it can be used. `None` also when there is no file,
/// or it cannot be loaded.
pub fn doubt_of_own(path: &str, at: UnixTime) -> Option<&'static str> {
    doubt(certificates(Path::new(path)).ok()?.first()?, at)
}

/// Reason why every peer will refuse the certificate. rustls offers no access to a certificate's dates, but checks the dates before the
/// issuer. So no issuer is trusted here, and the reason of the refusal is the result.
fn doubt(certificate: &CertificateDer<'_>, now: UnixTime) -> Option<&'static str> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?; // what is wrong with it is an error a little later
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], now, algorithms) {
        Err(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
            Some("the certificate has expired")
        }
        Err(Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. })) => {
            Some("the certificate is not valid yet (or this machine's clock is wrong)")
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
