//! Connections with layers: how IDENTIFY adds them, and that what is said in them is heard however it is cut.

use super::*;
use crate::base::Rng;
use crate::codec::nsq::layers::Terms;
use crate::session::SessionState;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use std::io::{Read, Write};
use std::sync::LazyLock;

/// A CA, with a certificate and key of a node and of a client.
struct Pki {
    ca: CertificateDer<'static>,
    node: (CertificateDer<'static>, Vec<u8>),
    client: (CertificateDer<'static>, Vec<u8>),
}

static PKI: LazyLock<Pki> = LazyLock::new(|| {
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = ca.self_signed(&key).unwrap();
    let issuer = Issuer::new(ca, key);
    let signed = |purpose| {
        let mut params = CertificateParams::new(vec!["node".to_string()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &issuer).unwrap().der().clone(), key.serialize_der())
    };
    let (node, client) = (signed(ExtendedKeyUsagePurpose::ServerAuth), signed(ExtendedKeyUsagePurpose::ClientAuth));
    Pki { ca: certificate.der().clone(), node, client }
});

fn tls_settings() -> Settings {
    Settings { tls_cert: "node.pem".into(), tls_key: "node.key".into(), ..Settings::default() }
}

/// TLS settings as the node makes them of its files (src/tls): a client may show a certificate of the CA.
fn terms() -> Terms {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(PKI.ca.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).allow_unauthenticated();
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(PKI.node.1.clone()));
    let builder = builder.with_client_cert_verifier(verifier.build().unwrap());
    Terms::new(builder.with_single_cert(vec![PKI.node.0.clone()], key).unwrap())
}

fn layered(settings: &Settings) -> Limits {
    let tls = (!settings.tls_cert.is_empty()).then(terms);
    Limits { tls, ..Limits::from(settings) }
}

/// The client's end of the layers.
#[derive(Default)]
struct Client {
    tls: Option<ClientConnection>,
    snappy: bool,
    deflate: Option<(Compress, Decompress)>,
    /// Bytes that came through TLS, if there is any, and were not decompressed: snappy's are read from the start each time.
    below: Vec<u8>,
    has_said: bool,
    heard: Vec<u8>,
}

fn tls_client(shows: bool) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(PKI.ca.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = if shows {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(PKI.client.1.clone()));
        builder.with_client_auth_cert(vec![PKI.client.0.clone()], key).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    ClientConnection::new(Arc::new(config), ServerName::try_from("node").unwrap()).unwrap()
}

impl Client {
    /// The wire's bytes for what is said.
    fn say(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut bytes = plain.to_vec();
        if self.snappy {
            let mut to = snap::write::FrameEncoder::new(vec![]);
            to.write_all(&bytes).unwrap();
            bytes = to.into_inner().unwrap();
            // one identifier is enough, and more are allowed
            self.has_said = true;
        } else if let Some((pack, _)) = &mut self.deflate {
            let mut out = Vec::with_capacity(bytes.len() + 1000);
            pack.compress_vec(&bytes, &mut out, FlushCompress::Sync).unwrap();
            bytes = out;
        }
        match &mut self.tls {
            None => bytes,
            Some(tls) => {
                tls.writer().write_all(&bytes).unwrap();
                self.output()
            }
        }
    }

    fn output(&mut self) -> Vec<u8> {
        let mut out = vec![];
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut out).unwrap();
            }
        }
        out
    }

    fn hear(&mut self, mut wire: &[u8]) -> Result<(), rustls::Error> {
        match &mut self.tls {
            None => self.below.extend_from_slice(wire),
            Some(tls) => {
                while !wire.is_empty() {
                    tls.read_tls(&mut wire).unwrap();
                    tls.process_new_packets()?;
                    let _ = tls.reader().read_to_end(&mut self.below);
                }
            }
        }
        if self.snappy {
            let mut said = vec![];
            let _ = snap::read::FrameDecoder::new(&self.below[..]).read_to_end(&mut said);
            self.heard = said;
        } else if let Some((_, unpack)) = &mut self.deflate {
            let below = std::mem::take(&mut self.below);
            let mut out = Vec::with_capacity(below.len() * 50 + 1000);
            unpack.decompress_vec(&below, &mut out, FlushDecompress::None).unwrap();
            self.heard.extend(out);
        } else {
            self.heard.append(&mut self.below);
        }
        Ok(())
    }

    /// Frames as text that were heard so far.
    fn texts(&self) -> Vec<String> {
        let (frames, _) = decode_all(&self.heard).unwrap();
        let text = |frame: &Frame<'_>| match frame {
            Frame::Response(data) => format!("= {}", String::from_utf8_lossy(data)),
            Frame::Error(data) => format!("! {}", String::from_utf8_lossy(data)),
            Frame::Message(message) => format!("* {}", String::from_utf8_lossy(message.body)),
        };
        frames.iter().map(text).collect()
    }
}

fn sent(s: &mut Session) -> Vec<u8> {
    let out = s.take_output().unwrap_or_default();
    s.on_sent(out.len());
    out
}

fn identify(json: &str) -> Vec<u8> {
    with_body("IDENTIFY", json.as_bytes())
}

/// Asks for the layers and has them, the handshake included.
fn upgraded(limits: Limits, asks: &str, shows: bool) -> (Session, Client, MockHost) {
    let (mut s, mut host) = (session_with(limits), MockHost::default());
    let json = format!("{{\"feature_negotiation\":true,{asks}}}");
    s.on_bytes(at(0), &[&b"  V2"[..], &identify(&json)].concat(), &mut host);
    let mut client = Client { snappy: asks.contains("snappy"), ..Client::default() };
    client.deflate =
        asks.contains("deflate").then(|| (Compress::new(flate2::Compression::new(6), false), Decompress::new(false)));
    let out = sent(&mut s);
    let len = 4 + u32::from_be_bytes(out[..4].try_into().unwrap()) as usize;
    assert!(String::from_utf8_lossy(&out[8..len]).starts_with("{\"max_rdy_count\""), "in plain");
    if asks.contains("tls") {
        assert_eq!(out.len(), len);
        client.tls = Some(tls_client(shows));
        for _ in 0..6 {
            let bytes = client.output();
            s.on_bytes(at(0), &bytes, &mut host);
            let _ = client.hear(&sent(&mut s));
        }
    } else {
        client.hear(&out[len..]).unwrap();
    }
    if client.tls.is_some() && (client.snappy || client.deflate.is_some()) {
        // the first OK came before the other layer began
        let ok = frame_of(b"OK");
        if client.snappy {
            assert!(client.below.starts_with(&ok));
            client.below.drain(..ok.len());
            client.hear(&[]).unwrap();
        }
    }
    (s, client, host)
}

fn frame_of(data: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    crate::codec::nsq::frame::response(&mut out, data);
    out
}

#[test]
fn each_layer_says_ok_through_itself() {
    for (asks, tls, snappy, deflate) in [
        ("\"tls_v1\":true", true, false, false),
        ("\"snappy\":true", false, true, false),
        ("\"deflate\":true", false, false, true),
        ("\"tls_v1\":true,\"snappy\":true", true, true, false),
    ] {
        let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), asks, false);
        assert_eq!(client.texts(), ["= OK"], "{asks}");
        let layers = s.client_info().layers;
        assert_eq!((layers.tls.is_some(), layers.snappy, layers.deflate), (tls, snappy, deflate));
        let bytes = client.say(&with_body("PUB t", b"hello"));
        s.on_bytes(at(0), &bytes, &mut host);
        assert_eq!(host.calls, ["pub t hello"]);
        s.reply_ok(host.waiting[0]);
        client.hear(&sent(&mut s)).unwrap();
        assert_eq!(client.texts().last().unwrap(), "= OK");
        assert_eq!(client.texts().len(), 2);
        if let Some(tls) = layers.tls {
            assert_eq!((tls.version, tls.cipher_suite.starts_with("TLS_")), ("TLS1.3", true));
            assert_eq!(tls.common_name, "");
        }
    }
}

/// The OK over TLS alone, then one through deflate, whose reader cannot be told to begin later: so by hand.
#[test]
fn deflate_begins_behind_the_ok_of_tls() {
    let (s, client, _) = upgraded(layered(&tls_settings()), "\"tls_v1\":true", false);
    drop((s, client));
    let (mut s, mut host) = (session_with(layered(&tls_settings())), MockHost::default());
    let json = r#"{"feature_negotiation":true,"tls_v1":true,"deflate":true,"deflate_level":9}"#;
    s.on_bytes(at(0), &[&b"  V2"[..], &identify(json)].concat(), &mut host);
    let answer = String::from_utf8_lossy(&sent(&mut s)[8..]).into_owned();
    assert!(
        answer.contains(r#""tls_v1":true,"deflate":true,"deflate_level":6,"max_deflate_level":6,"snappy":false"#),
        "{answer}"
    );
    let mut client = Client { tls: Some(tls_client(false)), ..Client::default() };
    for _ in 0..6 {
        let bytes = client.output();
        s.on_bytes(at(0), &bytes, &mut host);
        client.hear(&sent(&mut s)).unwrap();
    }
    let ok = frame_of(b"OK");
    assert!(client.heard.starts_with(&ok));
    let mut said = Vec::with_capacity(100);
    Decompress::new(false).decompress_vec(&client.heard[ok.len()..], &mut said, FlushDecompress::None).unwrap();
    assert_eq!(said, ok);
}

#[test]
fn what_was_asked_for_in_vain_is_answered_with_false() {
    let off = Settings { snappy: false, deflate: false, ..Settings::default() };
    let (mut s, mut host) = (session_with(layered(&off)), MockHost::default());
    let json = r#"{"feature_negotiation":true,"tls_v1":true,"snappy":true,"deflate":true,"deflate_level":3}"#;
    s.on_bytes(at(0), &[&b"  V2"[..], &identify(json), b"NOP\n"].concat(), &mut host);
    let out = texts(&mut s);
    assert!(
        out[0].contains(r#""tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false"#),
        "{out:?}"
    );
    assert_eq!(out.len(), 1);
    // without feature negotiation nothing is upgraded
    let mut s = session_with(layered(&tls_settings()));
    s.on_bytes(at(0), &[&b"  V2"[..], &identify(r#"{"tls_v1":true,"snappy":true}"#)].concat(), &mut host);
    assert_eq!(texts(&mut s), ["= OK"]);
}

#[test]
fn two_compressions_and_a_layer_twice_are_refused() {
    let (mut s, mut host) = (session_with(layered(&tls_settings())), MockHost::default());
    let both = r#"{"feature_negotiation":true,"snappy":true,"deflate":true}"#;
    s.on_bytes(at(0), &[&b"  V2"[..], &identify(both)].concat(), &mut host);
    assert_eq!(texts(&mut s), ["! E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"]);
    for (has, asks, what) in [
        ("\"snappy\":true", "\"snappy\":true", "compressed already"),
        ("\"snappy\":true", "\"tls_v1\":true", "compressed already"),
        ("\"tls_v1\":true", "\"tls_v1\":true", "TLS already"),
    ] {
        let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), has, false);
        let bytes = client.say(&identify(&format!("{{\"feature_negotiation\":true,{asks}}}")));
        s.on_bytes(at(0), &bytes, &mut host);
        client.hear(&sent(&mut s)).unwrap();
        let said = client.texts();
        assert!(said[1].starts_with("! E_IDENTIFY_FAILED") && said[1].contains(what), "{said:?}");
        assert!(s.is_closing());
    }
    // but compression may be added to TLS
    let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), "\"tls_v1\":true", false);
    let bytes = client.say(&identify("{\"feature_negotiation\":true,\"snappy\":true}"));
    s.on_bytes(at(0), &bytes, &mut host);
    client.hear(&sent(&mut s)).unwrap();
    // OK of TLS, the second answer, and then in snappy its OK
    let answer = 4 + u32::from_be_bytes(client.heard[10..14].try_into().unwrap()) as usize;
    assert!(client.heard[10 + answer..].starts_with(b"\xff\x06\x00\x00sNaPpY"));
}

#[test]
fn a_client_without_the_tls_that_is_required_may_only_identify() {
    let settings = Settings { tls_required: "tcp-https".into(), ..tls_settings() };
    for command in ["PUB t", "NOP", "SUB t c", "FOO"] {
        let (mut s, mut host) = (session_with(layered(&settings)), MockHost::default());
        s.on_bytes(at(0), format!("  V2{command}\n").as_bytes(), &mut host);
        let name = command.split(' ').next().unwrap();
        assert_eq!(texts(&mut s), [format!("! E_INVALID cannot {name} in current state (TLS required)")]);
        assert!(s.is_closing() && host.calls.is_empty());
    }
    let (mut s, mut client, mut host) = upgraded(layered(&settings), "\"tls_v1\":true", false);
    let bytes = client.say(b"SUB t c\n");
    s.on_bytes(at(0), &bytes, &mut host);
    assert_eq!(host.calls.len(), 1);
}

#[test]
fn a_handshake_that_does_not_come_about_is_told_and_ends() {
    let asks = [&b"  V2"[..], &identify(r#"{"feature_negotiation":true,"tls_v1":true}"#)].concat();
    let (mut s, mut host) = (session_with(layered(&tls_settings())), MockHost::default());
    s.on_bytes(at(0), &asks, &mut host);
    assert_eq!(s.deadline(), Some(at(5000).ticks));
    sent(&mut s);
    s.tick(at(4999));
    assert!(!s.is_closing());
    s.tick(at(5000));
    assert_eq!(texts(&mut s), ["! E_IDENTIFY_FAILED IDENTIFY failed the TLS handshake took too long"]);
    assert!(s.is_closing());
    // a client that goes on in plain, in the same breath even
    let (mut s, mut host) = (session_with(layered(&tls_settings())), MockHost::default());
    s.on_bytes(at(0), &[&asks[..], b"SUB t c\n"].concat(), &mut host);
    let told = texts(&mut s);
    let wanted = "! E_IDENTIFY_FAILED IDENTIFY failed tls: first record does not look like a TLS handshake";
    assert!(told.len() == 2 && told[1] == wanted, "in plaintext, and without an alert: {told:?}");
    assert!(s.is_closing() && host.calls.is_empty());
}

/// The answer to IDENTIFY is behind those of earlier commands, and so is the layer.
#[test]
fn layers_wait_for_the_replies_to_earlier_commands() {
    let (mut s, mut host) = (session_with(layered(&tls_settings())), MockHost::default());
    let asks = identify(r#"{"feature_negotiation":true,"snappy":true}"#);
    let mut squeezed = snap::write::FrameEncoder::new(vec![]);
    squeezed.write_all(&with_body("PUB t", b"two")).unwrap();
    let squeezed = squeezed.into_inner().unwrap();
    s.on_bytes(at(0), &[&b"  V2"[..], &with_body("PUB t", b"one"), &asks, &squeezed].concat(), &mut host);
    assert!(s.is_stalled() && s.take_output().is_none());
    s.go_on(at(1), &mut host);
    assert!(s.is_stalled(), "still");
    s.reply_ok(host.waiting[0]);
    s.go_on(at(2), &mut host);
    assert!(!s.is_stalled());
    assert_eq!(host.calls, ["pub t one", "pub t two"]);
    let out = sent(&mut s);
    assert!(out.starts_with(&frame_of(b"OK")));
}

#[test]
fn garbage_ends_the_connection_with_an_error() {
    let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), "\"snappy\":true", false);
    s.on_bytes(at(0), b"PUB t\n\0\0\0\x01x", &mut host);
    client.hear(&sent(&mut s)).unwrap();
    let said = client.texts();
    assert!(said[1].starts_with("! E_INVALID snappy: the stream does not begin with snappy's stream identifier"), "{said:?}");
    assert!(s.is_closing() && host.calls.is_empty());
}

/// A stalled session decompresses nothing while a command waits: a bomb stays small.
#[test]
fn a_stalled_session_unfolds_nothing() {
    let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), "\"deflate\":true", false);
    host.next = vec![CommandTaken::Stall];
    let one = client.say(&with_body("PUB t", b"x"));
    s.on_bytes(at(0), &one, &mut host);
    assert!(s.is_stalled());
    let mut nops = client.say(&b"NOP\n".repeat(2 << 20));
    nops.truncate(nops.len());
    s.on_bytes(at(0), &nops, &mut host);
    assert!(s.held_bytes() < 3 * nops.len() + 8192 && nops.len() < 100_000, "{} for {}", s.held_bytes(), nops.len());
    s.resume(at(1), &mut host);
    s.reply_ok(host.waiting[0]);
    let bytes = client.say(&with_body("PUB t", b"y"));
    s.on_bytes(at(1), &bytes, &mut host);
    assert_eq!(host.calls.last().unwrap(), "pub t y");
    assert!(s.held_bytes() < 8192, "{}", s.held_bytes());
}

/// A connection may move to another core at any byte, a stalled command, half a record and half a chunk with it.
#[test]
fn a_connection_moves_with_its_layers() {
    let mut rng = Rng::new(3);
    for round in 0..60 {
        let asks = ["\"tls_v1\":true", "\"snappy\":true", "\"deflate\":true", "\"tls_v1\":true,\"snappy\":true"][round % 4];
        let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), asks, false);
        let mut wire = vec![];
        let bodies: Vec<String> = (0..40).map(|i| format!("{i}-{}", "x".repeat(rng.below(3000) as usize))).collect();
        for body in &bodies {
            wire.extend(client.say(&with_body("PUB t", body.as_bytes())));
        }
        host.next = vec![CommandTaken::Stall];
        let (mut at_byte, mut heard) = (0, vec![]);
        while at_byte < wire.len() {
            let n = (1 + rng.below(9000) as usize).min(wire.len() - at_byte);
            s.on_bytes(at(0), &wire[at_byte..at_byte + n], &mut host);
            at_byte += n;
            let out = sent(&mut s);
            client.hear(&out).unwrap();
            if s.is_stalled() && s.is_quiet() {
                let (carried, unread): (SessionState, Vec<u8>) = s.carry();
                assert!(unread.is_empty(), "the socket's own bytes are of another kind");
                host.calls.pop(); // it is asked again
                s = Session::adopt(ConnId(9), Peer("10.0.0.7:4711".into()), carried, Arc::new(layered(&tls_settings())), at(0));
                s.resume(at(0), &mut host);
                host.next = vec![];
            }
            for slot in host.waiting.drain(..) {
                s.reply_ok(slot);
            }
            heard.append(&mut host.calls);
            if heard.len() % 7 == 3 && rng.below(3) == 0 {
                host.next = vec![CommandTaken::Stall];
            }
        }
        s.resume(at(0), &mut host);
        s.resume(at(0), &mut host);
        heard.append(&mut host.calls);
        heard.dedup();
        let wanted: Vec<String> = bodies.iter().map(|body| format!("pub t {body}")).collect();
        assert_eq!(heard, wanted, "round {round}");
    }
}

#[test]
fn tls_says_its_end() {
    let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), "\"tls_v1\":true", false);
    let bytes = client.say(b"BAD\n");
    s.on_bytes(at(0), &bytes, &mut host);
    client.hear(&sent(&mut s)).unwrap();
    assert_eq!(client.texts(), ["= OK", "! E_INVALID invalid command BAD"]);
    assert_eq!(client.tls.as_mut().unwrap().reader().read(&mut [0]).unwrap(), 0, "a clean end");
    // and hears it
    let (mut s, mut client, mut host) = upgraded(layered(&tls_settings()), "\"tls_v1\":true", false);
    let mut bytes = client.say(&with_body("PUB t", b"last"));
    client.tls.as_mut().unwrap().send_close_notify();
    bytes.extend(client.output());
    s.on_bytes(at(0), &bytes, &mut host);
    assert_eq!(host.calls, ["pub t last"]);
    assert!(!s.is_closing(), "the answer is owed");
    s.reply_ok(host.waiting[0]);
    assert!(s.is_closing());
}
