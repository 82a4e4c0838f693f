//! Links against rustls as a client in memory: any cut of the bytes, accounting, ends, moves.

use super::files::Terms;
use super::links::{Links, Port, Wire};
use crate::base::{ConnId, Now, Peer, Rng, Ticks};
use crate::config::Settings;
use crate::transport::tls::{Side, TlsEnd, TlsStream};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

/// A CA with a node's and a client's certificate, as files, too.
pub(crate) struct Pki {
    folder: tempfile::TempDir,
    pub ca: CertificateDer<'static>,
    pub client: (CertificateDer<'static>, Vec<u8>),
}

impl Pki {
    pub fn new() -> Pki {
        let folder = tempfile::tempdir().unwrap();
        let mut ca = CertificateParams::new(vec![]).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        // a CA is looked up by its name
        ca.distinguished_name.push(DnType::CommonName, folder.path().display().to_string());
        let ca_certificate = ca.self_signed(&key).unwrap();
        let issuer = Issuer::new(ca, key);
        let signed = |name: &str, purpose| {
            let mut params = CertificateParams::new(vec!["node".to_string()]).unwrap();
            params.extended_key_usages = vec![purpose];
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            std::fs::write(folder.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
            std::fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
            (certificate.der().clone(), key.serialize_der())
        };
        std::fs::write(folder.path().join("ca.pem"), ca_certificate.pem()).unwrap();
        signed("node", ExtendedKeyUsagePurpose::ServerAuth);
        let client = signed("client", ExtendedKeyUsagePurpose::ClientAuth);
        Pki { ca: ca_certificate.der().clone(), client, folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn settings(&self) -> Settings {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        Settings {
            native_tls_cert: text(&self.path("node.pem")),
            native_tls_key: text(&self.path("node.key")),
            ..Settings::default()
        }
    }

    fn with_client_ca(&self) -> Settings {
        Settings { native_tls_client_ca: self.path("ca.pem").to_str().unwrap().to_owned(), ..self.settings() }
    }
}

pub(crate) static PKI: LazyLock<Pki> = LazyLock::new(Pki::new);

/// Setting up keys takes long enough to do it once.
static TERMS: LazyLock<Terms> = LazyLock::new(|| Terms::load(&PKI.settings()).unwrap().unwrap());

pub(crate) struct Client {
    pub tls: ClientConnection,
    /// Bytes that the node sent.
    heard: Vec<u8>,
}

/// A client with these versions that trusts `ca`.
pub(crate) fn client_of(
    ca: &CertificateDer<'static>,
    versions: &[&'static rustls::SupportedProtocolVersion],
    shows: bool,
) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = if shows {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(PKI.client.1.clone()));
        builder.with_client_auth_cert(vec![PKI.client.0.clone()], key).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let mut tls = ClientConnection::new(Arc::new(config), ServerName::try_from("node").unwrap()).unwrap();
    tls.set_buffer_limit(None);
    Client { tls, heard: vec![] }
}

fn client() -> Client {
    client_of(&PKI.ca, rustls::ALL_VERSIONS, false)
}

impl Client {
    fn output(&mut self) -> Vec<u8> {
        let mut out = vec![];
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out).unwrap();
        }
        out
    }

    fn say(&mut self, plaintext: &[u8]) -> Vec<u8> {
        self.tls.writer().write_all(plaintext).unwrap();
        self.output()
    }

    fn hear(&mut self, mut bytes: &[u8]) -> Result<(), rustls::Error> {
        while !bytes.is_empty() {
            if self.tls.read_tls(&mut bytes).unwrap() == 0 {
                return Ok(());
            }
            self.tls.process_new_packets()?;
            let _ = self.tls.reader().read_to_end(&mut self.heard); // WouldBlock at the end of what is there
        }
        Ok(())
    }
}

/// Exchanges bytes until neither side has more. Returns what the node's side read, and how it ended.
fn shake(client: &mut Client, link: &mut TlsStream) -> (Vec<u8>, Option<TlsEnd>, Result<(), rustls::Error>) {
    let (mut heard, mut end, mut client_says) = (vec![], None, Ok(()));
    for _ in 0..10 {
        let bytes = client.output();
        end = link.receive(&bytes, &mut |plain| heard.extend_from_slice(plain)).or(end);
        let bytes = link.take_output();
        assert_eq!(link.sent(bytes.len()), 0, "a handshake is nobody's");
        if client_says.is_ok() {
            client_says = client.hear(&bytes);
        }
    }
    (heard, end, client_says)
}

fn link_of(settings: &Settings) -> TlsStream {
    TlsStream::accept(Terms::load(settings).unwrap().unwrap().config(), Side::Client).unwrap()
}

fn connected() -> (Client, TlsStream) {
    let (mut client, mut link) = (client(), TlsStream::accept(TERMS.config(), Side::Client).unwrap());
    let (heard, end, says) = shake(&mut client, &mut link);
    assert!(heard.is_empty() && end.is_none() && says.is_ok() && !client.tls.is_handshaking());
    (client, link)
}

#[test]
fn both_versions_are_spoken_unless_the_older_is_ruled_out() {
    let only_13 = Settings { native_tls_min_version: "1.3".into(), ..PKI.settings() };
    for (settings, versions, good) in [
        (PKI.settings(), &[&rustls::version::TLS12], true),
        (PKI.settings(), &[&rustls::version::TLS13], true),
        (only_13.clone(), &[&rustls::version::TLS13], true),
        (only_13, &[&rustls::version::TLS12], false),
    ] {
        let (mut client, mut link) = (client_of(&PKI.ca, versions, false), link_of(&settings));
        let (_, end, _) = shake(&mut client, &mut link);
        assert_eq!(end.is_none() && !client.tls.is_handshaking(), good, "{end:?}");
        if !good {
            let Some(TlsEnd::Fault(fault)) = end else { panic!("{end:?}") };
            assert!(fault.starts_with("the TLS handshake failed: "), "{fault}");
        }
    }
}

#[test]
fn a_client_that_trusts_another_ca_refuses_the_node_and_the_node_says_why() {
    let stranger = Pki::new();
    let (mut client, mut link) = (client_of(&stranger.ca, rustls::ALL_VERSIONS, false), link_of(&PKI.settings()));
    let (_, end, says) = shake(&mut client, &mut link);
    assert!(matches!(says, Err(rustls::Error::InvalidCertificate(_))), "{says:?}");
    let Some(TlsEnd::Fault(fault)) = end else { panic!("{end:?}") };
    assert!(fault.contains("UnknownCA") || fault.contains("BadCertificate"), "{fault}");
}

#[test]
fn a_client_shows_a_certificate_where_that_is_asked() {
    let settings = PKI.with_client_ca();
    let (mut knows, mut link) = (client_of(&PKI.ca, rustls::ALL_VERSIONS, true), link_of(&settings));
    assert_eq!(shake(&mut knows, &mut link).1, None);

    let (mut without, mut link) = (client_of(&PKI.ca, rustls::ALL_VERSIONS, false), link_of(&settings));
    let (_, end, says) = shake(&mut without, &mut link);
    assert!(matches!(&end, Some(TlsEnd::Fault(fault)) if fault.contains("no certificates")), "{end:?}");
    assert!(matches!(says, Err(rustls::Error::AlertReceived(_))), "the client is told: {says:?}");

    // one of another CA: the node trusts the stranger's clients only
    let stranger = Pki::new();
    let other = Settings { native_tls_client_ca: stranger.path("ca.pem").to_str().unwrap().into(), ..PKI.settings() };
    let (mut wrong, mut link) = (client_of(&PKI.ca, rustls::ALL_VERSIONS, true), link_of(&other));
    let (heard, end, _) = shake(&mut wrong, &mut link);
    assert!(heard.is_empty() && matches!(&end, Some(TlsEnd::Fault(fault)) if fault.contains("certificate")), "{end:?}");
}

#[test]
fn what_is_not_tls_ends_the_connection() {
    let mut link = TlsStream::accept(TERMS.config(), Side::Client).unwrap();
    let end = link.receive(b"\x99\x12\x34\x56 a frame of the native protocol", &mut |_| panic!("nothing was said"));
    assert!(matches!(&end, Some(TlsEnd::Fault(fault)) if fault.contains("speaks TLS")), "{end:?}");
    assert!(!link.take_output().is_empty(), "an alert");
    assert_eq!(link.receive(b"more", &mut |_| panic!("nothing was said")), None, "an end comes once");
    assert_eq!((link.send(b"x"), link.take_output().len()), (Ok(()), 0));
}

#[test]
fn a_record_that_was_tampered_with_ends_the_connection_after_what_came_before_it() {
    let (mut client, mut link) = connected();
    let mut bytes = client.say(b"good");
    let mut bad = client.say(b"tampered");
    *bad.last_mut().unwrap() ^= 1;
    bytes.extend_from_slice(&bad);
    let mut heard = vec![];
    let end = link.receive(&bytes, &mut |plain| heard.extend_from_slice(plain));
    assert_eq!(heard, b"good");
    assert!(matches!(&end, Some(TlsEnd::Fault(fault)) if fault.starts_with("TLS: ")), "{end:?}");
}

#[test]
fn either_side_says_its_end() {
    let (mut client, mut link) = connected();
    let mut bytes = client.say(b"last words");
    client.tls.send_close_notify();
    bytes.extend(client.output());
    let mut heard = vec![];
    assert_eq!(link.receive(&bytes, &mut |plain| heard.extend_from_slice(plain)), Some(TlsEnd::Peer));
    assert_eq!(heard, b"last words");
    client.hear(&link.take_output()).unwrap();
    assert_eq!(client.tls.reader().read(&mut [0]).unwrap(), 0, "a clean end, not a truncation");

    let (mut client, mut link) = connected();
    link.send(b"goodbye").unwrap();
    link.close();
    link.close();
    client.hear(&link.take_output()).unwrap();
    assert_eq!(client.heard, b"goodbye");
    assert_eq!(client.tls.reader().read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_is_sent_too_early_waits_for_the_keys() {
    let (mut client, mut link) = (client(), TlsStream::accept(TERMS.config(), Side::Client).unwrap());
    link.send(b"early ").unwrap();
    link.send(b"bird").unwrap();
    assert!(link.take_output().is_empty());
    let mut told = 0;
    for _ in 0..5 {
        assert_eq!(link.receive(&client.output(), &mut |_| {}), None);
        let bytes = link.take_output();
        told += link.sent(bytes.len());
        client.hear(&bytes).unwrap();
    }
    assert_eq!((client.heard.as_slice(), told), (&b"early bird"[..], 10));
}

const PEER: &str = "1.2.3.4:5";

fn at(ms: u64) -> Now {
    Now { ticks: Ticks(ms * 1_000_000 + 1), unix_ns: 1_700_000_000_000_000_000 }
}

/// A connection of a core's links: everything that comes out of them for the socket goes to the client.
fn carry(links: &mut Links, client: &mut Client) -> bool {
    let mut closed = false;
    for wire in links.wires() {
        match wire {
            Wire::Send { bytes, .. } => client.hear(&bytes).unwrap(),
            Wire::Close { .. } => closed = true,
        }
    }
    closed
}

/// A connection may be told to move at any byte: nothing is lost, doubled or reordered.
#[test]
fn a_connection_moves_with_its_keys_and_both_kinds_of_unread_bytes() {
    let (mut rng, peer) = (Rng::new(7), Peer(PEER.into()));
    for _ in 0..40 {
        let (here, there) = (ConnId(3), ConnId(9));
        let (mut a, mut b, mut client) = (Links::new(Some(TERMS.clone()), None), Links::new(None, None), client());
        a.opened(at(0), here, &peer, Port::Native);
        for _ in 0..5 {
            a.received(at(0), here, &client.output(), &mut |_| panic!("nothing was said"));
            assert!(!carry(&mut a, &mut client));
        }
        let said: Vec<u8> = (0..40_000).map(|i| (i / 7) as u8).collect();
        let bytes = client.say(&said);
        let cut = rng.below(bytes.len() as u64 + 1) as usize;
        let mut unparsed = vec![];
        a.received(at(0), here, &bytes[..cut], &mut |plain| unparsed.extend_from_slice(plain));
        assert!(a.leave(here, unparsed).is_empty(), "the net keeps ciphertext only");
        let (unread, layer) = a.moved(here, bytes[cut..].to_vec());
        assert_eq!(a.sent(here, 5), 5, "it is no more here");
        let mut heard = unread;
        b.adopted(at(1), there, &peer, layer.unwrap(), &mut |plain| heard.extend_from_slice(plain));
        assert_eq!(heard, said);
        let sealed = b.seal(at(1), there, b"welcome".to_vec());
        client.hear(&sealed).unwrap();
        assert_eq!((client.heard.as_slice(), b.sent(there, sealed.len())), (&b"welcome"[..], 7));
        assert_eq!(b.sent(there, 0), 0);
    }
}

#[test]
fn connections_without_tls_pass_through() {
    let (mut links, conn) = (Links::new(None, None), ConnId(1));
    links.opened(at(0), conn, &Peer(PEER.into()), Port::Native);
    let mut heard = vec![];
    links.received(at(0), conn, b"plain", &mut |bytes| heard.extend_from_slice(bytes));
    assert_eq!((heard.as_slice(), links.sent(conn, 9), links.seal(at(0), conn, vec![1])), (&b"plain"[..], 9, vec![1]));
    assert!(links.farewell(conn).is_empty() && links.leave(conn, vec![2]) == [2]);
    let (unread, layer) = links.moved(conn, vec![2, 3]);
    assert!(unread == [2, 3] && layer.is_none() && links.wires().next().is_none());
}

#[test]
fn a_flood_of_bad_clients_is_counted_later() {
    let mut links = Links::new(Some(TERMS.clone()), None);
    for i in 0..50 {
        links.opened(at(0), ConnId(i), &Peer(PEER.into()), Port::Native);
        links.received(at(0), ConnId(i), b"GET / HTTP/1.1\r\n\r\n", &mut |_| panic!("nothing was said"));
        links.closed(ConnId(i));
    }
    assert_eq!(links.wires().filter(|wire| matches!(wire, Wire::Close { .. })).count(), 50);
    let due = links.deadline().expect("some lines were held back");
    links.tick(Now { ticks: due, ..at(0) });
    assert_eq!(links.deadline(), None);
}

#[test]
fn a_connection_that_cannot_have_tls_gets_no_plaintext_either() {
    let mut config = (*TERMS.config()).clone();
    // what rustls refuses
    config.max_fragment_size = Some(1);
    let mut links = Links::new(Some(Terms::of(config)), None);
    let conn = ConnId(1);
    links.opened(at(0), conn, &Peer(PEER.into()), Port::Native);
    links.received(at(0), conn, b"plaintext", &mut |_| panic!("nothing is heard"));
    assert!(links.seal(at(0), conn, b"answer".to_vec()).is_empty());
    assert!(matches!(links.wires().collect::<Vec<_>>()[..], [Wire::Close { conn: ConnId(1) }]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the bytes are cut, on either side: every sent byte arrives, and no plaintext counts as sent before the peer can read it.
    #[test]
    fn any_cut_of_the_bytes(seed in any::<u64>(), sizes in proptest::collection::vec(0usize..50_000, 1..6)) {
        let mut rng = Rng::new(seed);
        let (mut client, mut link) = (client(), TlsStream::accept(TERMS.config(), Side::Client).unwrap());
        let mut cut = move |bytes: &mut Vec<u8>| {
            let most = if rng.below(3) == 0 { 40 } else { 20_000 };
            let n = rng.below(most.min(bytes.len() as u64) + 1) as usize;
            bytes.drain(..n).collect::<Vec<u8>>()
        };
        let (mut to_node, mut to_client) = (vec![], vec![]);
        let (mut said, mut node_said, mut heard, mut told) = (vec![], vec![], vec![], 0);
        let mut sizes = sizes.into_iter();
        let mut done = false;
        while !done {
            if to_node.is_empty() && to_client.is_empty() && !client.tls.is_handshaking() {
                match sizes.next() {
                    Some(n) => {
                        let bytes: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
                        to_node.extend(client.say(&bytes));
                        said.extend_from_slice(&bytes);
                        link.send(&bytes).unwrap();
                        node_said.extend_from_slice(&bytes);
                    }
                    None => done = true,
                }
            }
            to_node.extend(client.output());
            let piece = cut(&mut to_node);
            prop_assert_eq!(link.receive(&piece, &mut |plain| heard.extend_from_slice(plain)), None);
            to_client.extend(link.take_output());
            let taken = cut(&mut to_client);
            client.hear(&taken).unwrap();
            told += link.sent(taken.len());
            prop_assert!(told <= client.heard.len(), "told {} of {}", told, client.heard.len());
        }
        prop_assert_eq!(&heard, &said);
        prop_assert_eq!(&client.heard, &node_said);
        prop_assert_eq!(told, node_said.len());
    }
}
