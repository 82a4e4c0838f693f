//! From the settings to the [`Terms`] on which the node speaks TLS: reads the PEM files and checks what is in them, before
//! the cores start. Knows no connection.

use super::pem::{PemError, certificates, private_key, roots};
use crate::config::Settings;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// Why the node cannot speak TLS as it was told to.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("--{flag}={source}")]
    File { flag: &'static str, source: PemError },
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
    /// `None`: the settings ask for no TLS.
    pub fn load(settings: &Settings) -> Result<Option<Terms>, TlsError> {
        if settings.native_tls_cert.is_empty() {
            return Ok(None);
        }
        let (certificate, key) = (Path::new(&settings.native_tls_cert), Path::new(&settings.native_tls_key));
        let chain = certificates(certificate).map_err(of(CERTIFICATE))?;
        let private = private_key(key).map_err(of(KEY))?;
        let versions: &[_] = match settings.native_tls_min_version.as_str() {
            "1.3" => &[&rustls::version::TLS13],
            _ => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(versions).map_err(TlsError::Other)?;
        let builder = match settings.native_tls_client_ca.as_str() {
            "" => builder.with_no_client_auth(),
            path => builder.with_client_cert_verifier(client_verifier(Path::new(path), provider)?),
        };
        let mut config = builder.with_single_cert(chain, private).map_err(|e| match e {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch { key: settings.native_tls_key.clone(), certificate: settings.native_tls_cert.clone() }
            }
            Error::InvalidCertificate(e) => {
                of(CERTIFICATE)(PemError::Certificate { path: certificate.into(), what: e.to_string() })
            }
            e => of(KEY)(PemError::Key { path: key.into(), what: e.to_string() }),
        })?;
        // Connections live long: a handshake saved is not worth a table that all cores share, and a client's certificate is
        // looked at each time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Some(Terms(Arc::new(config))))
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.0.clone()
    }
}

const CERTIFICATE: &str = "native-tls-cert";
const KEY: &str = "native-tls-key";
const CLIENT_CA: &str = "native-tls-client-ca";

fn of(flag: &'static str) -> impl Fn(PemError) -> TlsError {
    move |source| TlsError::File { flag, source }
}

fn client_verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let roots = roots(path).map_err(of(CLIENT_CA))?;
    let bad = |what: String| of(CLIENT_CA)(PemError::Certificate { path: path.into(), what });
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(|e| bad(e.to_string()))
}

/// What clients will hold against the node's certificate at that time, though it can be used; `None` also when there is no
/// certificate, or one that [`Terms::load`] refuses.
pub fn doubt_of_own(settings: &Settings, at: UnixTime) -> Option<&'static str> {
    doubt(certificates(Path::new(&settings.native_tls_cert)).ok()?.first()?, at)
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
