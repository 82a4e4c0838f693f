//! TLS with nodes, for the NSQ protocol and HTTPS: a tool's trusted CAs, and its own certificate.

use ringmq_protocol::pem::{certificates, private_key, roots};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// A connection, in plaintext or by TLS.
pub type Stream = Box<dyn Wire>;

pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Terms of TLS by the flags.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// `None`: the CAs of the system.
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The node's certificate is not verified.
    pub is_insecure: bool,
    /// TLS 1.3 alone.
    pub is_newest: bool,
}

/// Contents of the files.
#[derive(Clone)]
pub struct Secure {
    config: Arc<ClientConfig>,
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secure")
    }
}

impl Terms {
    /// Reads the files.
    pub fn load(&self) -> Result<Secure, String> {
        let provider = Arc::new(ring::default_provider());
        let versions: &[&SupportedProtocolVersion] =
            if self.is_newest { &[&rustls::version::TLS13] } else { rustls::DEFAULT_VERSIONS };
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(versions).map_err(|e| e.to_string())?;
        let builder = if self.is_insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody::new(&provider)))
        } else {
            let roots = self.roots()?;
            let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build();
            builder.with_webpki_verifier(verifier.map_err(|e| e.to_string())?)
        };
        let config = match (&self.certificate, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate).map_err(|e| e.to_string())?;
                let key = private_key(key).map_err(|e| e.to_string())?;
                builder.with_client_auth_cert(chain, key).map_err(|e| format!("{}: {e}", certificate.display()))?
            }
            _ => return Err("a client certificate and its private key are given together".into()),
        };
        Ok(Secure { config: Arc::new(config) })
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        if let Some(ca) = &self.ca {
            return roots(ca).map_err(|e| e.to_string());
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err("this system has no CAs: name a file with those that have signed the node's certificate".into());
        }
        Ok(roots)
    }
}

impl Secure {
    /// Shakes hands over `stream`. The node's certificate is for the host of `address`.
    pub async fn connect(&self, address: &str, stream: Stream) -> io::Result<Stream> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(TlsConnector::from(self.config.clone()).connect(name, stream).await?))
    }
}

/// Trusts any server that has the key of its certificate.
#[derive(Debug)]
struct Anybody(rustls::crypto::WebPkiSupportedAlgorithms);

impl Anybody {
    fn new(provider: &rustls::crypto::CryptoProvider) -> Anybody {
        Anybody(provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
