//! From the settings to the [`Terms`] on which the node speaks TLS: reads the PEM files and checks what is in them, before
//! the cores start. Knows no connection.

use crate::config::Settings;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore, ServerConfig};
use std::sync::Arc;

/// Why the node cannot speak TLS as it was told to.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("--{flag}={path}: cannot be read: {source}")]
    Read { flag: &'static str, path: String, source: std::io::Error },
    #[error("--{flag}={path}: there is no {wanted} in it; it must be in PEM form, with a line -----BEGIN ...{wanted_upper}-----")]
    Nothing { flag: &'static str, path: String, wanted: &'static str, wanted_upper: String },
    #[error("--{flag}={path}: its private key is encrypted; decrypt it, for example with `openssl pkey -in {path} -out FILE`")]
    Encrypted { flag: &'static str, path: String },
    #[error("--{flag}={path}: it is not PEM: {what}")]
    NotPem { flag: &'static str, path: String, what: String },
    #[error("--{flag}={path}: a certificate in it is not valid: {what}")]
    Certificate { flag: &'static str, path: String, what: String },
    #[error("--{flag}={path}: its private key cannot be used: {what}")]
    Key { flag: &'static str, path: String, what: String },
    #[error(
        "the private key in --native-tls-key={key} does not fit the certificate in --native-tls-cert={certificate} \
         (the node's own certificate must come first in its file)"
    )]
    Mismatch { key: String, certificate: String },
    #[error("TLS cannot be set up: {0}")]
    Other(Error),
}

/// What a node offers its clients, and asks of them. Shared by all cores.
#[derive(Clone, Debug)]
pub struct Terms(pub(super) Arc<ServerConfig>);

impl Terms {
    /// `None`: the settings ask for no TLS. What is suspicious is logged, and no error.
    pub fn load(settings: &Settings) -> Result<Option<Terms>, TlsError> {
        if settings.native_tls_cert.is_empty() {
            return Ok(None);
        }
        let chain = certificates(CERTIFICATE, &settings.native_tls_cert)?;
        if let Some(doubt) = chain.first().and_then(|own| doubt(own, UnixTime::now())) {
            tracing::warn!("--{CERTIFICATE}={}: {doubt}; clients will refuse it", settings.native_tls_cert);
        }
        Terms::new(settings, chain).map(Some)
    }

    fn new(settings: &Settings, chain: Vec<CertificateDer<'static>>) -> Result<Terms, TlsError> {
        let key = private_key(&settings.native_tls_key)?;
        let versions: &[_] = match settings.native_tls_min_version.as_str() {
            "1.3" => &[&rustls::version::TLS13],
            _ => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(versions).map_err(TlsError::Other)?;
        let builder = match settings.native_tls_client_ca.as_str() {
            "" => builder.with_no_client_auth(),
            path => builder.with_client_cert_verifier(client_verifier(path, provider)?),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|e| match e {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch { key: settings.native_tls_key.clone(), certificate: settings.native_tls_cert.clone() }
            }
            Error::InvalidCertificate(e) => {
                TlsError::Certificate { flag: CERTIFICATE, path: settings.native_tls_cert.clone(), what: e.to_string() }
            }
            e => TlsError::Key { flag: KEY, path: settings.native_tls_key.clone(), what: e.to_string() },
        })?;
        // Connections live long: a handshake saved is not worth a table that all cores share, and a client's certificate is
        // looked at each time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Terms(Arc::new(config)))
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.0.clone()
    }
}

const CERTIFICATE: &str = "native-tls-cert";
const KEY: &str = "native-tls-key";
const CLIENT_CA: &str = "native-tls-client-ca";

fn read(flag: &'static str, path: &str) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { flag, path: path.to_owned(), source })
}

fn not_pem(flag: &'static str, path: &str, error: &PemError) -> TlsError {
    TlsError::NotPem { flag, path: path.to_owned(), what: error.to_string() }
}

/// At least one.
fn certificates(flag: &'static str, path: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(flag, path)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().map_err(|e| not_pem(flag, path, &e))?;
    if found.is_empty() {
        return Err(nothing(flag, path, "certificate"));
    }
    Ok(found)
}

fn private_key(path: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(KEY, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| match e {
        PemError::NoItemsFound if String::from_utf8_lossy(&bytes).contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") => {
            TlsError::Encrypted { flag: KEY, path: path.to_owned() }
        }
        PemError::NoItemsFound => nothing(KEY, path, "private key"),
        e => not_pem(KEY, path, &e),
    })
}

fn nothing(flag: &'static str, path: &str, wanted: &'static str) -> TlsError {
    TlsError::Nothing { flag, path: path.to_owned(), wanted, wanted_upper: wanted.to_uppercase() }
}

fn client_verifier(
    path: &str,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let bad = |what: String| TlsError::Certificate { flag: CLIENT_CA, path: path.to_owned(), what };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CLIENT_CA, path)? {
        roots.add(certificate).map_err(|e| bad(e.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(|e| bad(e.to_string()))
}

/// What every client will hold against the certificate. rustls offers no look at a certificate's dates, but looks at them
/// before it looks for who signed it: so nobody is trusted here, and what counts is the reason for which it is refused.
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
