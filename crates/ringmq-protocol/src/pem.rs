//! Certificates and private keys from PEM files, for both ends of TLS. Its errors name the file and the content that it needs.

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as Malformed, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};

/// Reason why a PEM file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{}: the file has no {wanted}; the file must be in PEM form, with a line -----BEGIN ...{}-----",
        path.display(), wanted.to_uppercase()
    )]
    Nothing { path: PathBuf, wanted: &'static str },
    #[error(
        "{path}: the private key is encrypted; decrypt it, for example with `openssl pkey -in {path} -out FILE`",
        path = path.display()
    )]
    Encrypted { path: PathBuf },
    #[error("{}: the file is not PEM: {what}", path.display())]
    NotPem { path: PathBuf, what: String },
    #[error("{}: the file has an invalid certificate: {what}", path.display())]
    Certificate { path: PathBuf, what: String },
    #[error("{}: the private key cannot be used: {what}", path.display())]
    Key { path: PathBuf, what: String },
}

impl PemError {
    /// The error of a certificate that rustls refuses.
    pub fn certificate(path: &Path, error: &impl std::fmt::Display) -> PemError {
        let mut what = error.to_string();
        if what.contains("UnsupportedCertVersion") {
            what =
                "X.509 version 1, where version 3 is needed; sign it with extensions (`openssl x509 -req -extfile FILE`)".into();
        }
        PemError::Certificate { path: path.into(), what }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    std::fs::read(path).map_err(|source| PemError::Read { path: path.into(), source })
}

fn not_pem(path: &Path, error: &Malformed) -> PemError {
    PemError::NotPem { path: path.into(), what: error.to_string() }
}

/// Certificates, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let bytes = read(path)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().map_err(|e| not_pem(path, &e))?;
    if found.is_empty() {
        return Err(PemError::Nothing { path: path.into(), wanted: "certificate" });
    }
    Ok(found)
}

pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    let bytes = read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| match e {
        Malformed::NoItemsFound if String::from_utf8_lossy(&bytes).contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") => {
            PemError::Encrypted { path: path.into() }
        }
        Malformed::NoItemsFound => PemError::Nothing { path: path.into(), wanted: "private key" },
        e => not_pem(path, &e),
    })
}

/// The CAs to trust, at least one, and why others in the file are left out: as nsqd reads a bundle.
pub fn usable_roots(path: &Path) -> Result<(RootCertStore, Vec<String>), PemError> {
    let (mut roots, mut left_out) = (RootCertStore::empty(), vec![]);
    for found in CertificateDer::pem_slice_iter(&read(path)?) {
        let added = found.map_err(|e| e.to_string()).and_then(|one| roots.add(one).map_err(|e| e.to_string()));
        left_out.extend(added.err());
    }
    match left_out.first() {
        _ if !roots.is_empty() => Ok((roots, left_out)),
        Some(what) => Err(PemError::Certificate { path: path.into(), what: what.clone() }),
        None => Err(PemError::Nothing { path: path.into(), wanted: "certificate" }),
    }
}

/// The CAs to trust; at least one.
pub fn roots(path: &Path) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| PemError::certificate(path, &e))?;
    }
    Ok(roots)
}
