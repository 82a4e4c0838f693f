//! The files of the native port's TLS: what the node would not start with, and what its clients would refuse.

use super::Finding;
use crate::config::Settings;
use crate::tls::{Terms, TlsError, doubt_of_own, pem};
use rustls::pki_types::UnixTime;
use std::path::Path;
use std::time::Duration;

/// What is left of a certificate when it is time to renew it.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

const CERTIFICATE: &str = "native-tls-cert";
const KEY: &str = "native-tls-key";
const CLIENT_CA: &str = "native-tls-client-ca";

/// A line for each file; none when there is no TLS.
pub fn check(settings: &Settings, now: UnixTime) -> Vec<Finding> {
    if settings.native_tls_cert.is_empty() {
        return vec![];
    }
    let refused = Terms::load(settings).err();
    let mut findings = vec![certificate(settings, now), key(settings, refused.as_ref())];
    if !settings.native_tls_client_ca.is_empty() {
        findings.push(client_ca(settings));
    }
    // what only the whole shows: a certificate that is PEM and no certificate
    match refused {
        Some(e) if findings.iter().all(|f| f.remedy.is_empty()) => findings.push(Finding::fail("TLS", e.to_string(), REPLACE)),
        _ => {}
    }
    findings
}

const REPLACE: &str = "name another file, or mend this one: the node does not start with it";

fn certificate(settings: &Settings, now: UnixTime) -> Finding {
    let path = &settings.native_tls_cert;
    let chain = match pem::certificates(Path::new(path)) {
        Ok(chain) => chain,
        Err(e) => return Finding::fail(CERTIFICATE, e.to_string(), REPLACE),
    };
    let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + SOON);
    let refuse = "clients will refuse it: renew it and start the node again";
    match (doubt_of_own(settings, now), doubt_of_own(settings, later)) {
        (Some(doubt), _) => Finding::warn(CERTIFICATE, format!("{path}: {doubt}"), refuse),
        (None, Some(_)) => {
            Finding::warn(CERTIFICATE, format!("{path}: it expires within 14 days"), "renew it and start the node again")
        }
        (None, None) => Finding::ok(CERTIFICATE, format!("{path}: in force, {} in the file", count(chain.len(), "certificate"))),
    }
}

fn key(settings: &Settings, refused: Option<&TlsError>) -> Finding {
    let path = &settings.native_tls_key;
    match (pem::private_key(Path::new(path)), refused) {
        (Err(e), _) => Finding::fail(KEY, e.to_string(), REPLACE),
        (Ok(_), Some(e @ TlsError::Mismatch { .. })) => {
            Finding::fail(KEY, e.to_string(), "name the certificate and the key that were made together")
        }
        (Ok(_), Some(TlsError::File { flag: KEY, source })) => Finding::fail(KEY, source.to_string(), REPLACE),
        (Ok(_), Some(_)) => Finding::ok(KEY, format!("{path}: a private key")),
        (Ok(_), None) => Finding::ok(KEY, format!("{path}: fits the certificate")),
    }
}

fn client_ca(settings: &Settings) -> Finding {
    let path = &settings.native_tls_client_ca;
    match pem::roots(Path::new(path)) {
        Ok(roots) => Finding::ok(CLIENT_CA, format!("{path}: {} may sign clients'", count(roots.len(), "CA"))),
        Err(e) => Finding::fail(CLIENT_CA, e.to_string(), REPLACE),
    }
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level::{self, Fail, Ok, Warn};
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn day(days_since_1970: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(days_since_1970 * 24 * 3600))
    }

    /// A self-signed certificate and its key; in force from 2020 to 2030.
    fn make(folder: &Path, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2030, 1, 1));
        let key = KeyPair::generate().unwrap();
        let [cert_path, key_path] = ["pem", "key"].map(|end| folder.join(format!("{name}.{end}")));
        std::fs::write(&cert_path, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        (cert_path.to_str().unwrap().into(), key_path.to_str().unwrap().into())
    }

    #[test]
    fn each_file_has_a_line_and_each_fault_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = make(folder.path(), "node");
        let (other_cert, other_key) = make(folder.path(), "other");
        let zeros = folder.path().join("zeros").to_str().unwrap().to_owned();
        std::fs::write(&zeros, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let nowhere = "/no/such/file".to_string();
        let (today, twenty_days_before) = (day(20_454), day(21_894));
        type Case<'a> = (&'a str, &'a str, &'a str, UnixTime, &'a [(Level, &'a str)]);
        let cases: [Case<'_>; 9] = [
            (&cert, &key, "", today, &[(Ok, "1 certificate in"), (Ok, "fits the certificate")]),
            (&cert, &key, &other_cert, today, &[(Ok, ""), (Ok, ""), (Ok, "1 CA may sign")]),
            (&nowhere, &key, "", today, &[(Fail, "/no/such/file: cannot be read"), (Ok, "a private key")]),
            (&key, &key, "", today, &[(Fail, "there is no certificate in it"), (Ok, "")]),
            (&cert, &cert, "", today, &[(Ok, ""), (Fail, "there is no private key in it")]),
            (&cert, &other_key, "", today, &[(Ok, ""), (Fail, "does not fit the certificate")]),
            (&cert, &key, &zeros, today, &[(Ok, ""), (Ok, ""), (Fail, "a certificate in it is not valid")]),
            (&cert, &key, "", day(30_000), &[(Warn, "has expired"), (Ok, "")]),
            (&zeros, &key, "", today, &[(Ok, ""), (Ok, ""), (Fail, "zeros: a certificate in it is not valid")]),
        ];
        for (cert, key, ca, now, expected) in cases {
            let [native_tls_cert, native_tls_key, native_tls_client_ca] = [cert, key, ca].map(str::to_owned);
            let settings = Settings { native_tls_cert, native_tls_key, native_tls_client_ca, ..Settings::default() };
            let findings = check(&settings, now);
            assert_eq!(findings.len(), expected.len(), "{findings:?}");
            for (f, (level, says)) in findings.iter().zip(expected) {
                assert!(f.level == *level && f.found.contains(says), "{f}");
                assert_eq!(f.level == Ok, f.remedy.is_empty(), "{f}");
            }
        }
        let soon = Settings { native_tls_cert: cert, native_tls_key: key, ..Settings::default() };
        assert_eq!(check(&soon, twenty_days_before)[0].level, Ok);
        assert!(check(&soon, day(21_904))[0].found.contains("within 14 days"));
        assert!(check(&Settings::default(), today).is_empty());
    }
}
