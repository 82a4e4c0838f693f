//! TLS of a client's connections, by rustls: the trusted CAs, the client's certificate, and the errors of a failed handshake.
//!
//! The files are read once, when the client connects for the first time; every later connection, to another core or after a
//! loss, uses their content of that time.

use super::link::BoxedStream;
use ringmq_protocol::pem::PemError;
use ringmq_protocol::pem::{certificates, private_key, roots};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, InconsistentKeys};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// TLS of a client towards a node that has `--native-tls-cert`.
///
/// ```no_run
/// # async fn f() -> Result<(), ringmq_client::Error> {
/// use ringmq_client::{Client, Tls};
///
/// // `identity` only for a node with --native-tls-client-ca
/// let tls = Tls::with_ca("ca.pem").identity("client.pem", "client.key");
/// let client = Client::builder().address("mq.example.org:4153").tls(tls).connect().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Tls {
    ca: PathBuf,
    identity: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl Tls {
    /// Trusts nodes whose certificate one of the CAs in this PEM file has signed. The system's CAs are not trusted.
    pub fn with_ca(path: impl Into<PathBuf>) -> Tls {
        Tls { ca: path.into(), identity: None, server_name: None }
    }

    /// Shows this certificate (PEM, its own first, then those between it and the CA) to a node that asks, with its private key.
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// The name, or IP address, that must stand in the node's certificate, instead of the host of its address.
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }

    /// Reads the files.
    pub fn load(&self) -> Result<Secure, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::other)?;
        let builder = builder.with_root_certificates(roots(&self.ca)?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let made = builder.with_client_auth_cert(certificates(certificate)?, private_key(key)?);
                made.map_err(|e| match e {
                    rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                        TlsError::Mismatch { certificate: certificate.clone(), key: key.clone() }
                    }
                    rustls::Error::InvalidCertificate(e) => PemError::certificate(certificate, &e).into(),
                    e => PemError::Key { path: key.clone(), what: e.to_string() }.into(),
                })?
            }
        };
        let name = self.server_name.as_deref().map(server_name).transpose()?;
        Ok(Secure { config: Arc::new(config), name, ca: self.ca.clone(), shows: self.identity.is_some() })
    }
}

/// Reason why there is no TLS with a node, with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error(transparent)]
    /// A PEM file cannot be used.
    File(#[from] PemError),
    #[error(
        "the private key in {} does not fit the certificate in {} (the client's own certificate must come first in its file)",
        key.display(), certificate.display()
    )]
    /// The key and the certificate do not belong together.
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    #[error("{name:?} is neither a host name nor an IP address; set the server name to a name in the node's certificate")]
    /// The name that the node's certificate has to show cannot be one.
    ServerName {
        /// The name.
        name: String,
    },
    #[error(
        "the node's certificate is signed by no CA in {}: give the CA that signed the node's --native-tls-cert (that file must also hold \
         the intermediate certificates)",
        ca.display()
    )]
    /// The node's certificate is signed by no CA that the client trusts.
    UnknownIssuer {
        /// The file with the CAs.
        ca: PathBuf,
    },
    #[error(
        "the node's certificate is for another name: {what}; connect to a name in the certificate, or set the server name to one"
    )]
    /// The node's certificate is for another name.
    WrongName {
        /// Names in the certificate.
        what: String,
    },
    #[error("the node's certificate is not valid: {what}; renew the node's --native-tls-cert, or set this machine's clock")]
    /// The node's certificate has expired, or does not hold for another reason.
    Invalid {
        /// The reason.
        what: String,
    },
    #[error(
        "the node asks for a client certificate (--native-tls-client-ca): give a certificate that this CA signed, and its private key"
    )]
    /// The node wants a certificate of the client, and the client has none.
    CertificateRequired,
    #[error(
        "the node refuses the client certificate ({alert}): the certificate must be signed by a CA in the node's --native-tls-client-ca, \
         and must not be expired"
    )]
    /// The node does not accept the client's certificate.
    CertificateRefused {
        /// The TLS alert that it sent.
        alert: String,
    },
    #[error("the server does not speak TLS: connect without it, or start the node with --native-tls-cert and --native-tls-key")]
    /// The other end does not speak TLS.
    NotTls,
    #[error("the node speaks TLS on this port: set the CA to trust (the TLS option of the client)")]
    /// The node speaks TLS, and the client was not told to.
    Wanted,
    #[error("the handshake failed: {what}")]
    /// The handshake failed for another reason.
    Other {
        /// The reason.
        what: String,
    },
}

impl TlsError {
    fn other(error: rustls::Error) -> TlsError {
        TlsError::Other { what: error.to_string() }
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::ServerName { name: name.to_owned() })
}

/// The host of `host:port`, `[v6]:port`.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
}

/// Reason why a stream could not be secured.
#[derive(Debug, thiserror::Error)]
pub enum Unsecured {
    #[error(transparent)]
    Tls(TlsError),
    #[error(transparent)]
    Io(io::Error),
}

/// Contents of the files of a [`Tls`].
#[derive(Clone, Debug)]
pub struct Secure {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
    ca: PathBuf,
    shows: bool,
}

impl Secure {
    /// Shakes hands over `stream`. In TLS 1.3 a node may refuse the client's certificate later: see [`Secure::explain`].
    pub async fn connect(&self, address: &str, stream: BoxedStream) -> Result<BoxedStream, Unsecured> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host(address)).map_err(Unsecured::Tls)?,
        };
        match TlsConnector::from(self.config.clone()).connect(name, stream).await {
            Ok(stream) => Ok(Box::pin(stream)),
            Err(error) => Err(self.explain(&error).map_or(Unsecured::Io(error), Unsecured::Tls)),
        }
    }

    /// TLS cause of a stream error before the node's first answer; `None`: the network's error.
    pub fn explain(&self, error: &io::Error) -> Option<TlsError> {
        use rustls::Error as Tls;
        Some(match error.get_ref()?.downcast_ref::<Tls>()? {
            Tls::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer => TlsError::UnknownIssuer { ca: self.ca.clone() },
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    TlsError::WrongName { what: why.to_string() }
                }
                _ => TlsError::Invalid { what: why.to_string() },
            },
            Tls::AlertReceived(AlertDescription::CertificateRequired) => TlsError::CertificateRequired,
            // of TLS 1.2, which has no alert of that meaning
            Tls::AlertReceived(AlertDescription::HandshakeFailure) if !self.shows => TlsError::CertificateRequired,
            Tls::AlertReceived(
                alert @ (AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied),
            ) if self.shows => TlsError::CertificateRefused { alert: format!("{alert:?}") },
            Tls::InvalidMessage(_) => TlsError::NotTls,
            other => TlsError::Other { what: other.to_string() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_what_stands_in_certificates() {
        for (address, expected) in [("mq:4153", "mq"), ("10.0.0.1:4153", "10.0.0.1"), ("[::1]:4153", "::1"), ("mq", "mq")] {
            assert_eq!(host(address), expected);
            assert!(server_name(host(address)).is_ok(), "{address}");
        }
        let error = server_name("a b").expect_err("no name").to_string();
        assert!(error.contains("\"a b\" is neither a host name nor an IP address"), "{error}");
    }

    #[test]
    fn only_errors_of_tls_are_explained_by_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ca, key) = (folder.path().join("ca.pem"), folder.path().join("ca.key"));
        let made = rcgen::generate_simple_self_signed(vec!["mq".to_string()]).expect("ring can");
        std::fs::write(&ca, made.cert.pem()).expect("writable");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("writable");
        let secure = Tls::with_ca(&ca).load().expect("it is sound");
        assert!(secure.explain(&io::ErrorKind::ConnectionReset.into()).is_none());
        let alert = io::Error::other(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure));
        assert!(matches!(secure.explain(&alert), Some(TlsError::CertificateRequired)));
        let showing = Tls::with_ca(&ca).identity(&ca, &key).load().expect("it is sound");
        assert!(matches!(showing.explain(&alert), Some(TlsError::Other { .. })));
        let error = Tls::with_ca(&key).load().expect_err("no CA").to_string();
        assert!(error.contains("ca.key: the file has no certificate"), "{error}");
        let error = Tls::with_ca(&ca).identity(&ca, &ca).load().expect_err("no key").to_string();
        assert!(error.contains("ca.pem: the file has no private key"), "{error}");
    }
}
