//! Certificates of a CA of the test's own, as files, and a node that speaks TLS with them.

use super::Node;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::CertificateDer;

/// A CA, and files of what it has signed.
pub struct Pki {
    pub folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    pub ca: CertificateDer<'static>,
}

impl Pki {
    pub fn new() -> Pki {
        let folder = tempfile::tempdir().expect("the folder for temporary files is writable");
        let mut params = CertificateParams::new(vec![]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("ring can");
        // a CA is looked up by its name
        params.distinguished_name.push(DnType::CommonName, folder.path().display().to_string());
        let certificate = params.self_signed(&key).expect("it is valid");
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("it is writable");
        Pki { folder, issuer: Issuer::new(params, key), ca: certificate.der().clone() }
    }

    /// NAME.pem and NAME.key.
    pub fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose, year_of_end: i32) -> (CertificateDer<'static>, Vec<u8>) {
        self.sign_for(name, &["node"], &[purpose], year_of_end)
    }

    /// The paths of NAME.pem, NAME.key and the CA: the files with which a node of these names and addresses proves itself to other nodes.
    pub fn peer(&self, name: &str, names: &[&str]) -> [String; 3] {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign_for(name, names, &both, 4000);
        [format!("{name}.pem"), format!("{name}.key"), "ca.pem".into()].map(|name| self.path(&name))
    }

    fn sign_for(
        &self,
        name: &str,
        names: &[&str],
        purposes: &[ExtendedKeyUsagePurpose],
        year_of_end: i32,
    ) -> (CertificateDer<'static>, Vec<u8>) {
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = purposes.to_vec();
        params.not_after = date_time_ymd(year_of_end, 1, 1);
        let key = KeyPair::generate().expect("ring can");
        let certificate = params.signed_by(&key, &self.issuer).expect("it is valid");
        std::fs::write(self.folder.path().join(format!("{name}.pem")), certificate.pem()).expect("it is writable");
        std::fs::write(self.folder.path().join(format!("{name}.key")), key.serialize_pem()).expect("it is writable");
        (certificate.der().clone(), key.serialize_der())
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a plain name").to_owned()
    }

    /// A node with a certificate of this CA.
    pub fn node(&self, flags: &[&str]) -> Node {
        self.sign("node", ExtendedKeyUsagePurpose::ServerAuth, 4000);
        let own = self.flags();
        Node::start(&own.iter().map(String::as_str).chain(flags.iter().copied()).collect::<Vec<_>>())
    }

    pub fn flags(&self) -> Vec<String> {
        vec![format!("--native-tls-cert={}", self.path("node.pem")), format!("--native-tls-key={}", self.path("node.key"))]
    }
}
