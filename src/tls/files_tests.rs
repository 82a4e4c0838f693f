//! Mistakes that an operator can make, with their error texts.

use super::super::tests::{PKI, Pki};
use super::*;
use std::time::Duration;

fn refused(settings: &Settings) -> String {
    Terms::load(settings).expect_err("it cannot be used").to_string()
}

/// `openssl x509 -req` without `-extfile`: version 1.
const OLD: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBFzCBvQIUDGHLiNhxidIgo+xcauCFUxKdMUYwCgYIKoZIzj0EAwIwDTELMAkG\n\
A1UEAwwCdjEwIBcNMjYxMTI2MTkyNDMzWhgPMjEyNjExMDIxOTI0MzNaMA0xCzAJ\n\
BgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEg2ZeSzJ2banjLcVa\n\
qN/d3k403eOUwzb0aoD2cNhF0x9JknXCxwQ2K8XyOcu47zhjTh7SOItbpNlVPbah\n\
bVbEazAKBggqhkjOPQQDAgNJADBGAiEAn1m0zRelQ2MpnYRNrxO5L1rf6WX+QKot\n\
9/IrxNc1XJwCIQDUf2/a2zuO3KkXMRG+MTO8pqhvdTSxK9OOsIg1Y9GmTA==\n\
-----END CERTIFICATE-----\n";

#[test]
fn good_files_are_taken_and_none_is_no_tls() {
    assert!(Terms::load(&PKI.settings()).unwrap().is_some());
    assert!(Terms::load(&Settings::default()).unwrap().is_none());
}

#[test]
fn an_error_names_the_file_and_what_is_wrong_with_it() {
    let good = PKI.settings();
    let write = |name: &str, text: &str| {
        let path = PKI.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cert = |path: String| refused(&Settings { native_tls_cert: path, ..good.clone() });
    let key = |path: String| refused(&Settings { native_tls_key: path, ..good.clone() });
    let ca = |path: String| refused(&Settings { native_tls_client_ca: path, ..good.clone() });

    let error = cert("/no/such/file".into());
    assert!(error.starts_with("--native-tls-cert=/no/such/file: cannot be read: No such file"), "{error}");
    let error = cert(write("empty", "hello"));
    assert!(error.contains("/empty: the file has no certificate; the file must be in PEM form"), "{error}");
    let error = cert(write("cut", "-----BEGIN CERTIFICATE-----\nAAAA\n"));
    assert!(error.contains("/cut: the file is not PEM: "), "{error}");
    let error = cert(write("zeros", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"));
    assert!(error.contains("/zeros: the file has an invalid certificate: "), "{error}");
    let error = cert(write("old", OLD));
    assert!(
        error.contains("/old: the file has an invalid certificate: X.509 version 1, where version 3 is needed; sign"),
        "{error}"
    );

    let error = key(good.native_tls_cert.clone());
    assert!(error.starts_with("--native-tls-key=") && error.contains("the file has no private key"), "{error}");
    let error = key(write("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"));
    assert!(error.contains("private key is encrypted; decrypt it"), "{error}");
    let error = key(write("zeros.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"));
    assert!(error.contains("/zeros.key: the private key cannot be used: "), "{error}");
    for (name, text, wanted) in
        [("p521", P521, "the curve P-521 is not supported"), ("r1024", RSA_1024, "RSA with less than 2048 bits")]
    {
        let error = key(write(name, text));
        assert!(
            error.contains(wanted) && error.contains("supported are RSA with 2048 to 4096 bits, ECDSA with P-256"),
            "{error}"
        );
    }
    let error = key(PKI.path("client.key").to_str().unwrap().into());
    assert!(error.contains("client.key does not fit the certificate in --native-tls-cert="), "{error}");

    let error = ca("/no/such/ca".into());
    assert!(error.starts_with("--native-tls-client-ca=/no/such/ca: cannot be read"), "{error}");
    let error = ca(good.native_tls_key.clone());
    assert!(error.contains("the file has no certificate"), "{error}");
    let error = ca(PKI.path("zeros").to_str().unwrap().into());
    assert!(error.contains("/zeros: the file has an invalid certificate: "), "{error}");
}

#[test]
fn a_certificate_out_of_its_time_is_doubted() {
    let pki = Pki::new();
    let own = certificates(&pki.path("node.pem")).unwrap();
    // rcgen's certificates hold from 1975 to 4096
    let year = |year: u64| UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
    assert_eq!(doubt(&own[0], year(2026)), None);
    assert_eq!(doubt(&own[0], year(4200)), Some("the certificate has expired"));
    assert_eq!(doubt(&own[0], year(1972)), Some("the certificate is not valid yet (or this machine's clock is wrong)"));
    assert_eq!(doubt(&pki.ca, year(4200)), Some("the certificate has expired"), "also of one that is its own CA");
}

#[test]
fn the_files_of_peers_are_named_by_their_own_flags() {
    let text = |name: &str| PKI.path(name).to_str().unwrap().to_owned();
    let [peer_tls_cert, peer_tls_key, peer_tls_ca] = ["node.pem", "node.key", "ca.pem"].map(text);
    let good = Settings { peer_tls_cert, peer_tls_key, peer_tls_ca, ..Settings::default() };
    let terms = PeerTerms::load(&good).unwrap().unwrap();
    assert!(PeerTerms::load(&Settings::default()).unwrap().is_none());
    let refused = |settings: Settings| PeerTerms::load(&settings).expect_err("it cannot be used").to_string();
    let error = refused(Settings { peer_tls_cert: "/no/such/file".into(), ..good.clone() });
    assert!(error.starts_with("--peer-tls-cert=/no/such/file: cannot be read"), "{error}");
    let error = refused(Settings { peer_tls_key: text("client.key"), ..good.clone() });
    assert!(error.contains("--peer-tls-key=") && error.contains("does not fit the certificate in --peer-tls-cert="), "{error}");
    let error = refused(Settings { peer_tls_ca: text("node.key"), ..good });
    assert!(error.starts_with("--peer-tls-ca=") && error.contains("the file has no certificate"), "{error}");

    // of the two names a certificate may have, the host goes first, where it is one
    let first = |address: &str, node: &str| terms.client(address, node).map(|(_, name)| name.to_str().into_owned());
    assert_eq!(first("mq.example.org:4170", "a"), Ok("mq.example.org".into()));
    assert_eq!(first("[::1]:4170", "a"), Ok("::1".into()));
    assert_eq!(first("a b:4170", "a"), Ok("a".into()));
    assert!(first("a b:4170", "c d").unwrap_err().contains("neither the host of a b:4170 nor c d"));
}

/// True if a client gets through the handshake, with its certificate or without.
fn is_let_in(terms: layers::Terms, shows: bool) -> bool {
    let mut server = rustls::ServerConnection::new(terms.config()).unwrap();
    let mut client = super::super::tests::client_of(&PKI.ca, rustls::ALL_VERSIONS, shows).tls;
    for _ in 0..6 {
        let mut bytes = vec![];
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            if server.process_new_packets().is_err() {
                return false;
            }
        }
        let mut bytes = vec![];
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    !server.is_handshaking()
}

#[test]
fn a_policy_asks_nsq_clients_for_a_certificate() {
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let (ca, stranger) = (text(PKI.path("ca.pem")), Pki::new());
    let other = text(stranger.path("ca.pem"));
    for (policy, root, shows, good) in [
        ("", "", false, true),
        ("require", "", true, true),
        ("require", "", false, false),
        ("require", &*other, true, true),
        ("require-verify", &*ca, true, true),
        ("require-verify", &*ca, false, false),
        ("require-verify", &*other, true, false),
    ] {
        let settings = Settings {
            tls_cert: text(PKI.path("node.pem")),
            tls_key: text(PKI.path("node.key")),
            tls_client_auth_policy: policy.into(),
            tls_root_ca_file: root.into(),
            ..Settings::default()
        };
        assert_eq!(settings.is_tls_required(), !policy.is_empty());
        assert_eq!(is_let_in(nsq_terms(&settings).unwrap().unwrap(), shows), good, "{policy} {shows}");
    }
}

/// Keys of kinds that the library does not know; made for this test.
const P521: &str = "-----BEGIN PRIVATE KEY-----\n\
    MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIAloEjGWtLcEmeJU7p\n\
    lnTkUSU+FyzdXb25nlVNP29jUgiuzo2Y4nk9BAxEL0vidJgjWEV0yGTK7eNulzb/\n\
    ZW6U7YmhgYkDgYYABADVL6seJW0mgTb/u9aII9DO8rzfTPMKAUSV89OXWnSjBqFV\n\
    4GbaWymzOJQA8aDR+DI3+rKEQGZ3VruwpjK6KxS+FQGSX513Y7txGKkf2yMUjki7\n\
    ykwTbocKBSUW4do200bZZ+3XALn3HTmVPdviAP3P/Vr7ZNvy1KF4zkcshs3DoRaX\n\
    8g==\n\
    -----END PRIVATE KEY-----\n";
const RSA_1024: &str = "-----BEGIN PRIVATE KEY-----\n\
    MIICdwIBADANBgkqhkiG9w0BAQEFAASCAmEwggJdAgEAAoGBALDKFa/SxSl9I8QB\n\
    BocjnAMq4pvzkCNImKZkhCPJFVMWB+/BDdgOuZ8gcgsNfghwy805iONn0UBZ0IHm\n\
    tC7MKpzJi/2s6Rk1MDwgJYbks4dZ7lWEtYOu8rWZCs+Be5Ykj6TkoA1qAMqmCmyT\n\
    UfK4/N6Wc06146nFeDitYnZ/9PYHAgMBAAECgYAjW1c5ActCv+9OPPJERr/l9ka5\n\
    791M4TD+Xi37RjUIl+hgb9jH9DH1fDSytzEUmRJ5ad9Rs6qq1wuXXz97+IMw4Psv\n\
    1PBhGnR1xZvf4o1gmFGAT5gU7ERRsYmaMXVd6adYUiI6wOolw6TyB+ZOfE6H6acr\n\
    OgTtHkJP+seX2pJPUQJBAOBapxyEkMiKeRRKADMgkGHL8ybbapbbhZf1YSJT3bzB\n\
    SUFkRBrI/KQpzMxYEtth5kzlElM7SmYQOc7YdmBQSA8CQQDJueMIT/Ih46cnZ2bF\n\
    ULr5a+iB5kaOhnCjDZWwATxmOBAti5MvSSyuSb/P4DjW4tx4hwL1fi6FSf2PEtN9\n\
    pTqJAkEAk3vEY0DaFJrC4Y2L+BAuGbwCycZvmWARwEU0Z2aOW2kMiQoqoxkAy8IW\n\
    uTYkn0cKJ/5mP4S4ccO03L77gnEEDQJAR+gD/pWIyP2+OrSIFLO3QmttoMg1xF41\n\
    zllsTyXRoto/Ig0LtSJPU/0j63SQrkCFuEzgCCQnbwm14Ycjbjk0iQJBAJBhOX1m\n\
    ON5DQV/8SuipAln834goFUBwF6P000EtMV/CMNGE4KfSRya6o4fu4O67SHCfEup7\n\
    YQY9x2b+Nlr7ZSU=\n\
    -----END PRIVATE KEY-----\n";
