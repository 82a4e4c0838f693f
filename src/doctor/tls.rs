//! The TLS files of the native port and of the connections with other nodes: errors with which the node would not start, and
//! certificates that others would refuse.

use super::Finding;
use crate::config::Settings;
use crate::tls::{Flags, NATIVE, NSQ, PEER, PeerTerms, Terms, TlsError, doubt_of_own, nsq_terms, pem};
use rustls::pki_types::UnixTime;
use std::path::Path;
use std::time::Duration;

/// Remaining validity of a certificate below which it should be renewed.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// The files of one port.
struct Files<'a> {
    flags: Flags,
    certificate: &'a str,
    key: &'a str,
    /// PEM file of CAs. Empty: no certificate is required.
    ca: &'a str,
    /// Peers that see the certificate.
    others: &'static str,
    refused: Option<TlsError>,
}

/// A line for each file; none when there is no TLS.
pub fn check(settings: &Settings, now: UnixTime) -> Vec<Finding> {
    let native = Files {
        flags: NATIVE,
        certificate: &settings.native_tls_cert,
        key: &settings.native_tls_key,
        ca: &settings.native_tls_client_ca,
        others: "clients",
        refused: Terms::load(settings).err(),
    };
    let peer = Files {
        flags: PEER,
        certificate: &settings.peer_tls_cert,
        key: &settings.peer_tls_key,
        ca: &settings.peer_tls_ca,
        others: "peers",
        refused: PeerTerms::load(settings).err(),
    };
    let nsq = Files {
        flags: NSQ,
        certificate: &settings.tls_cert,
        key: &settings.tls_key,
        ca: &settings.tls_root_ca_file,
        others: "clients",
        refused: nsq_terms(settings).err(),
    };
    [nsq, native, peer].into_iter().flat_map(|files| files.check(now)).collect()
}

const REPLACE: &str = "correct this file, or name another one: the node does not start with it";

impl Files<'_> {
    fn check(&self, now: UnixTime) -> Vec<Finding> {
        let mut findings = if self.certificate.is_empty() { vec![] } else { vec![self.certificate(now), self.key()] };
        if !self.ca.is_empty() {
            findings.push(self.ca());
        }
        // errors of the whole: a file that is PEM and no certificate
        match &self.refused {
            Some(e) if findings.iter().all(|f| f.remedy.is_empty()) => {
                findings.push(Finding::fail("TLS", e.to_string(), REPLACE))
            }
            _ => {}
        }
        findings
    }

    fn certificate(&self, now: UnixTime) -> Finding {
        let (flag, path) = (self.flags.certificate, self.certificate);
        let chain = match pem::certificates(Path::new(path)) {
            Ok(chain) => chain,
            Err(e) => return Finding::fail(flag, e.to_string(), REPLACE),
        };
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + SOON);
        match (doubt_of_own(path, now), doubt_of_own(path, later)) {
            (Some(doubt), _) => {
                let refuse = format!("{} will refuse it: renew it and start the node again", self.others);
                Finding::warn(flag, format!("{path}: {doubt}"), refuse)
            }
            (None, Some(_)) => Finding::warn(
                flag,
                format!("{path}: the certificate expires within 14 days"),
                "renew it and start the node again",
            ),
            (None, None) => Finding::ok(flag, format!("{path}: in force, {} in the file", count(chain.len(), "certificate"))),
        }
    }

    fn key(&self) -> Finding {
        let (flag, path) = (self.flags.key, self.key);
        match (pem::private_key(Path::new(path)), &self.refused) {
            (Err(e), _) => Finding::fail(flag, e.to_string(), REPLACE),
            (Ok(_), Some(e @ TlsError::Mismatch { .. })) => {
                Finding::fail(flag, e.to_string(), "name the certificate and the key that were made together")
            }
            (Ok(_), Some(TlsError::File { flag: of, source })) if *of == flag => Finding::fail(flag, source.to_string(), REPLACE),
            (Ok(_), Some(_)) => Finding::ok(flag, format!("{path}: a private key")),
            (Ok(_), None) => Finding::ok(flag, format!("{path}: fits the certificate")),
        }
    }

    fn ca(&self) -> Finding {
        let path = Path::new(self.ca);
        let read = match self.flags.ca == NSQ.ca {
            true => pem::usable_roots(path),
            false => pem::roots(path).map(|roots| (roots, vec![])),
        };
        match read {
            Ok((_, left_out)) if !left_out.is_empty() => {
                let found = format!("{}: {} left out: {}", self.ca, count(left_out.len(), "certificate"), left_out.join("; "));
                Finding::warn(self.flags.ca, found, "correct the file, or remove its invalid certificates")
            }
            Ok((roots, _)) => {
                let found = format!("{}: {} may sign {}'", self.ca, count(roots.len(), "CA"), self.others);
                Finding::ok(self.flags.ca, found)
            }
            Err(e) => Finding::fail(self.flags.ca, e.to_string(), REPLACE),
        }
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
    fn the_cas_of_nsq_clients_are_looked_at_without_a_certificate_too() {
        let folder = tempfile::tempdir().unwrap();
        let (good, _) = make(folder.path(), "ca");
        let of = |text: String| {
            let path = folder.path().join("bundle");
            std::fs::write(&path, text).unwrap();
            let settings = Settings { tls_root_ca_file: path.to_str().unwrap().into(), ..Settings::default() };
            let findings = check(&settings, day(20_454));
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!(nsq_terms(&settings).is_err(), findings[0].level == Fail, "{findings:?}");
            (findings[0].level, findings[0].found.clone())
        };
        let good = std::fs::read_to_string(good).unwrap();
        let zeros = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let no_base64 = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
        for (text, level, says) in [
            (good.clone(), Ok, "1 CA may sign"),
            (format!("{zeros}{good}"), Warn, "1 certificate left out"),
            (format!("{no_base64}{good}{zeros}"), Warn, "2 certificates left out"),
            (String::new(), Fail, "the file has no certificate"),
            (zeros.to_owned(), Fail, "invalid certificate"),
        ] {
            let (is, found) = of(text);
            assert!(is == level && found.contains(says), "{says}: {found}");
        }
        let nowhere = Settings { tls_root_ca_file: "/no/such/file".into(), ..Settings::default() };
        assert!(nsq_terms(&nowhere).is_err());
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
            (&key, &key, "", today, &[(Fail, "the file has no certificate"), (Ok, "")]),
            (&cert, &cert, "", today, &[(Ok, ""), (Fail, "the file has no private key")]),
            (&cert, &other_key, "", today, &[(Ok, ""), (Fail, "does not fit the certificate")]),
            (&cert, &key, &zeros, today, &[(Ok, ""), (Ok, ""), (Fail, "the file has an invalid certificate")]),
            (&cert, &key, "", day(30_000), &[(Warn, "has expired"), (Ok, "")]),
            (&zeros, &key, "", today, &[(Ok, ""), (Ok, ""), (Fail, "zeros: the file has an invalid certificate")]),
        ];
        for (cert, key, ca, now, expected) in cases {
            let [native_tls_cert, native_tls_key, native_tls_client_ca] = [cert, key, ca].map(str::to_owned);
            let settings = Settings { native_tls_cert, native_tls_key, native_tls_client_ca, ..Settings::default() };
            let findings = check(&settings, now);
            assert_eq!(findings.len(), expected.len(), "{findings:?}");
            // the same files between nodes, which always have a CA
            let [peer_tls_cert, peer_tls_key, peer_tls_ca] =
                [cert, key, if ca.is_empty() { cert } else { ca }].map(str::to_owned);
            let of_peers = check(&Settings { peer_tls_cert, peer_tls_key, peer_tls_ca, ..Settings::default() }, now);
            assert!(of_peers.iter().all(|f| f.name.starts_with("peer-tls-") || f.name == "TLS"), "{of_peers:?}");
            for findings in [findings, of_peers] {
                for (f, (level, says)) in findings.iter().zip(expected.iter().take(2)) {
                    assert!(f.level == *level && f.found.contains(says), "{f}");
                }
                assert!(findings.iter().all(|f| (f.level == Ok) == f.remedy.is_empty()), "{findings:?}");
                let has_failed = expected.iter().any(|(level, _)| *level == Fail);
                assert_eq!(findings.iter().any(|f| f.level == Fail), has_failed, "{findings:?}");
            }
        }
        let soon = Settings { native_tls_cert: cert, native_tls_key: key, ..Settings::default() };
        assert_eq!(check(&soon, twenty_days_before)[0].level, Ok);
        assert!(check(&soon, day(21_904))[0].found.contains("within 14 days"));
        assert!(check(&Settings::default(), today).is_empty());
    }
}
