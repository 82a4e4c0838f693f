//! TLS of the native port, with a real node and rustls as its client.

mod node;

use node::pki::Pki;
use node::{Node, assert_serves};
use rcgen::ExtendedKeyUsagePurpose;
use ringmq::base::PartitionId;
use ringmq::codec::native::frame::FRAME_MAX;
use ringmq::codec::native::{Encoder, HEADER_LEN, Header, Hello, Payload, Publish, Reply, Request, Start, Subscribe};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A client's configuration: whom it trusts, and what it shows.
fn trusting(pki: &Pki, shows: Option<(CertificateDer<'static>, Vec<u8>)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(pki.ca.clone()).expect("a CA");
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("ring has them").with_root_certificates(roots);
    Arc::new(match shows {
        Some((certificate, key)) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
            builder.with_client_auth_cert(vec![certificate], key).expect("they fit")
        }
        None => builder.with_no_client_auth(),
    })
}

fn plain(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.native()).expect("it takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("not zero");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("not zero");
    stream
}

/// A client of the native protocol over TLS.
struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    encoder: Encoder,
    requests: u64,
}

impl Client {
    fn connect(node: &Node, config: &Arc<ClientConfig>) -> Client {
        let name = ServerName::try_from("node").expect("a name");
        let tls = ClientConnection::new(config.clone(), name).expect("the configuration holds");
        Client { stream: StreamOwned::new(tls, plain(node)), encoder: Encoder::default(), requests: 0 }
    }

    fn request(&mut self, out: &mut Vec<u8>, request: &Request<'_>, payload: &[u8]) -> u64 {
        self.requests += 1;
        self.encoder.request(out, self.requests, request, Payload::of(payload));
        out.extend_from_slice(payload);
        self.requests
    }

    /// Hello that asks for a core.
    fn hello(&mut self, core: Option<u16>) -> Vec<u8> {
        let mut out = vec![];
        let hello = Hello {
            version: 1,
            oldest_version: 1,
            features: 0,
            client_id: "",
            hostname: "",
            user_agent: "",
            core,
            max_frame_bytes: 0,
            heartbeat_ms: 0,
            auth_method: "",
            auth: b"",
        };
        self.request(&mut out, &Request::Hello(hello), b"");
        out
    }

    fn ask(&mut self, request: &Request<'_>, payload: &[u8]) {
        let mut out = vec![];
        self.request(&mut out, request, payload);
        self.stream.write_all(&out).expect("the node reads");
    }

    /// The next frame, of which `each` sees the reply and the payload.
    fn read<T>(&mut self, each: impl FnOnce(u64, Reply<'_>, &[u8]) -> T) -> io::Result<T> {
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head)?;
        let rest = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
        let mut frame = vec![0; HEADER_LEN + rest];
        frame[..HEADER_LEN].copy_from_slice(&head);
        self.stream.read_exact(&mut frame[HEADER_LEN..])?;
        let (header, metadata): (Header, &[u8]) = Header::parse(&frame, FRAME_MAX).expect("a sound frame").expect("it is whole");
        let payload = &frame[HEADER_LEN + metadata.len()..];
        Ok(each(header.request, Reply::decode(header.kind, metadata).expect("a known reply"), payload))
    }

    fn welcome(&mut self, core: Option<u16>) -> u16 {
        let hello = self.hello(core);
        self.stream.write_all(&hello).expect("the node reads");
        self.read(|_, reply, _| match reply {
            Reply::Welcome(welcome) => welcome.core,
            other => panic!("Welcome was expected: {other:?}"),
        })
        .expect("the node answers")
    }
}

/// One message of a batch's body, as in docs/on-disk.md.
fn message(body: &[u8]) -> Vec<u8> {
    [&(8 + body.len() as u32).to_le_bytes(), &[0; 8][..], body].concat()
}

#[test]
fn a_connection_lives_on_the_core_that_it_asks_for_and_loses_nothing_on_the_way() {
    const PINGS: u64 = 3000;
    let pki = Pki::new();
    let (node, config) = (pki.node(&["--shards=3"]), trusting(&pki, None));
    for core in [0, 1, 2].repeat(4) {
        let mut client = Client::connect(&node, &config);
        // All that follows Hello comes while the connection moves, much of it in the same record.
        let mut out = client.hello(Some(core));
        for _ in 0..PINGS {
            client.request(&mut out, &Request::Ping, b"");
        }
        client.stream.write_all(&out).expect("the node reads");
        let lives_on = client.read(|id, reply, _| match reply {
            Reply::Welcome(welcome) if id == 1 => welcome.core,
            other => panic!("Welcome was expected: {other:?}"),
        });
        assert_eq!(lives_on.expect("the node answers"), core);
        for id in 2..2 + PINGS {
            let answer = client.read(|id, reply, _| (id, reply == Reply::Pong)).expect("the node answers");
            assert_eq!(answer, (id, true));
        }
    }
    assert_serves(&node);
}

#[test]
fn batches_go_in_and_come_out_over_tls() {
    const BATCHES: usize = 40;
    let pki = Pki::new();
    let (node, config) = (pki.node(&["--shards=2"]), trusting(&pki, None));
    let mut client = Client::connect(&node, &config);
    client.welcome(None);
    client.ask(&Request::CreateTopic { topic: "t", partitions: 1 }, b"");
    let core = client
        .read(|_, reply, _| match reply {
            Reply::Topics(topics) => topics.topics[0].partitions[0].core,
            other => panic!("Topics was expected: {other:?}"),
        })
        .expect("the node answers");
    let mut client = Client::connect(&node, &config);
    assert_eq!(client.welcome(Some(core)), core);

    let subscribe = Subscribe {
        subscription: 1,
        topic: "t",
        partition: PartitionId(0),
        channel: "c",
        start: Start::Oldest,
        message_timeout_ms: 0,
        ordered: false,
    };
    client.ask(&Request::Subscribe(subscribe), b"");
    client.ask(&Request::Credit { subscription: 1, messages: 1000, bytes: u64::MAX }, b"");
    let bodies: Vec<Vec<u8>> = (0..BATCHES).map(|i| (0..100_000).map(|at| (at % 253) as u8 ^ i as u8).collect()).collect();
    for body in &bodies {
        let publish = Publish { topic: "t", partition: PartitionId(0), num: 1, producer_id: 0, first_sequence: 0 };
        client.ask(&Request::Publish(publish), &message(body));
    }
    let (mut published, mut came) = (0, vec![]);
    while published < BATCHES || came.len() < BATCHES {
        let message = client.read(|_, reply, payload| match reply {
            Reply::Published { .. } => {
                published += 1;
                None
            }
            Reply::Messages(m) => {
                assert_eq!(m.num, 1);
                Some(payload[12..].to_vec())
            }
            Reply::Subscribed(_) => None,
            other => panic!("neither an answer nor a message: {other:?}"),
        });
        came.extend(message.expect("the node answers"));
    }
    assert!(came == bodies, "as they were sent, in order");
}

#[test]
fn what_is_not_tls_and_who_says_nothing_is_closed() {
    let pki = Pki::new();
    let (node, config) = (pki.node(&["--client-timeout=1s"]), trusting(&pki, None));
    let mut silent = plain(&node);
    let mut half = plain(&node);
    half.write_all(&[22, 3, 1, 2, 0, 1]).expect("it reads"); // the beginning of a ClientHello
    let mut shaken = Client::connect(&node, &config);
    shaken.stream.flush().expect("the handshake");

    let mut wrong = plain(&node);
    wrong.write_all(b"  V2\nSUB t c\n a client of another protocol").expect("it reads");
    let mut answer = vec![];
    let _ = wrong.read_to_end(&mut answer); // an end, or a reset, as it wrote more than was read
    assert!(answer.len() < 20, "an alert at most: {answer:?}");
    assert!(node.log().contains("this port speaks TLS, and the received bytes are not TLS"), "{}", node.log());

    let mut rest = vec![];
    silent.read_to_end(&mut rest).expect("an end within the timeout");
    half.read_to_end(&mut rest).expect("an end within the timeout");
    assert_eq!(shaken.stream.read(&mut [0; 1]).expect("an end that is said"), 0);
    assert_serves(&node);
}

#[test]
fn certificates_are_verified_on_both_sides() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    let ca = format!("--native-tls-client-ca={}", pki.path("ca.pem"));
    let (node, known) = (pki.node(&[&ca]), pki.sign("client", ExtendedKeyUsagePurpose::ClientAuth, 4000));
    let unknown = stranger.sign("client", ExtendedKeyUsagePurpose::ClientAuth, 4000);

    Client::connect(&node, &trusting(&pki, Some(known.clone()))).welcome(None);
    let refused = |config: &Arc<ClientConfig>| {
        let mut client = Client::connect(&node, config);
        let hello = client.hello(None);
        // in TLS 1.3 the client is through before the node has looked at its certificate
        let failed =
            client.stream.write_all(&hello).and_then(|()| client.read(|_, reply, _| panic!("it was answered: {reply:?}")));
        failed.map(|()| String::new()).expect_err("refused").to_string()
    };
    let error = refused(&trusting(&stranger, Some(known)));
    assert!(error.contains("UnknownIssuer"), "the client refuses the node: {error}");
    let error = refused(&trusting(&pki, None));
    assert!(error.contains("CertificateRequired"), "the node wants a certificate: {error}");
    let error = refused(&trusting(&pki, Some(unknown)));
    assert!(error.contains("UnknownCA") || error.contains("UnknownCa"), "the node refuses the client: {error}");
    let log = node.log();
    assert!(log.matches("the TLS handshake failed").count() == 3, "{log}");
}

#[test]
fn a_node_that_stops_says_so_to_its_clients() {
    let pki = Pki::new();
    let (mut node, config) = (pki.node(&[]), trusting(&pki, None));
    let mut client = Client::connect(&node, &config);
    client.welcome(None);
    node.stop();
    assert_eq!(client.stream.read(&mut [0; 1]).expect("close_notify, not a truncated stream"), 0);
}

#[test]
fn files_that_cannot_be_used_are_found_before_anything_starts() {
    let (pki, other) = (Pki::new(), Pki::new());
    pki.sign("node", ExtendedKeyUsagePurpose::ServerAuth, 4000);
    other.sign("node", ExtendedKeyUsagePurpose::ServerAuth, 4000);
    let serve = |flags: &[String]| {
        let data = pki.path("never");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
        let output = command.args(["serve", "--data-path", &data]).args(flags).output().expect("it runs");
        assert!(!std::path::Path::new(&data).exists(), "nothing was made");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, log) = serve(&pki.flags()[..1]);
    assert!(code == Some(2) && log.contains("needs native-tls-key, the private key of that certificate"), "{code:?} {log}");
    let key_of_another = [pki.flags()[0].clone(), other.flags()[1].clone()];
    let (code, log) = serve(&key_of_another);
    assert!(code == Some(1) && log.contains("does not fit the certificate"), "{code:?} {log}");

    pki.sign("node", ExtendedKeyUsagePurpose::ServerAuth, 2001);
    let flags = pki.flags();
    let node = Node::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(node.log().contains("the certificate has expired; clients will refuse it"), "{}", node.log());
    const ANYWHERE: [&str; 3] = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--native-address=127.0.0.1:0"];
    let doctor = |flags: &[String]| {
        let data = format!("--data-path={}", pki.path("data"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
        command.args(["doctor", &data]).args(ANYWHERE).args(flags);
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, lines) = doctor(&flags);
    assert!(code == Some(0) && lines.contains("warn  native-tls-cert: ") && lines.contains("ok    native-tls-key: "), "{lines}");
    let (code, lines) = doctor(&key_of_another);
    assert!(code == Some(1) && lines.contains("FAIL  native-tls-key: "), "{lines}");
}

#[test]
fn sighup_brings_other_certificates_into_force_for_new_connections() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (node, before, after) = (pki.node(&[]), trusting(&pki, None), trusting(&other, None));
    let mut kept = Client::connect(&node, &before);
    kept.welcome(None);
    let wait_for = |text: &str| {
        let begun = std::time::Instant::now();
        while !node.whole_log().contains(text) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{text:?} is not in:\n{}", node.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let copy = |from: &str, to: &str| std::fs::copy(other.path(from), pki.path(to)).expect("both are there");
    other.sign("node", ExtendedKeyUsagePurpose::ServerAuth, 4000);
    copy("node.pem", "node.pem"); // and not its key
    node.signal(libc::SIGHUP);
    wait_for("the TLS files of the native port stay as they were: the private key in --native-tls-key=");
    Client::connect(&node, &before).welcome(None);
    copy("node.key", "node.key");
    node.signal(libc::SIGHUP);
    wait_for("the TLS files of the native port are in force for new connections");
    Client::connect(&node, &after).welcome(None);
    let mut refusing = Client::connect(&node, &before);
    let hello = refusing.hello(None);
    assert!(refusing.stream.write_all(&hello).is_err(), "nobody of the old CA is there");
    // A connection that was there goes on with its keys.
    kept.ask(&Request::Ping, b"");
    assert!(kept.read(|_, reply, _| reply == Reply::Pong).expect("the node answers"));
    assert_serves(&node);
}
