//! The client library and the load generator over TLS, against a real node: everything works as without TLS, and an error names the
//! untrusted side and the remedy.

mod node;

use node::Node;
use node::pki::Pki;
use rcgen::ExtendedKeyUsagePurpose;
use ringmq::client::{Client, Error, Result, Retry, Start, Tls, TlsError};
use std::collections::BTreeSet;
use std::future::Future;
use std::process::Command;
use std::time::Duration;

/// No answer takes as long, on however slow a machine.
const HANG: Duration = Duration::from_secs(60);

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(HANG, test).await.expect("it hangs") })
}

/// The certificates of a [`Pki`] are for the name `node`; the address has another.
fn trusting(pki: &Pki) -> Tls {
    Tls::with_ca(pki.path("ca.pem")).server_name("node")
}

async fn connect(node: &Node, tls: Tls) -> Result<Client> {
    Client::builder().address(node.native().to_string()).client_id("test").tls(tls).connect().await
}

fn refusal(node: &Node, tls: Tls) -> (Error, String) {
    let error = run(connect(node, tls)).err().expect("refused");
    assert_eq!(error.retry(), Retry::Never, "{error}");
    let text = error.to_string();
    (error, text)
}

fn why(error: &Error) -> &TlsError {
    match error {
        Error::Tls { source, .. } => source,
        other => panic!("not of TLS: {other}"),
    }
}

#[test]
fn a_producer_and_a_consumer_go_on_over_tls_when_the_node_is_killed() {
    const MESSAGES: u64 = 3000;
    let pki = Pki::new();
    // more cores than one: its connections move
    let mut node = pki.node(&["--shards=3"]);
    run(async {
        let client = connect(&node, trusting(&pki)).await.expect("it trusts the node");
        let producer = client.producer("t").create_with(6).build().await.expect("a topic");
        let mut consumer = client.consumer("t", "c").start(Start::Oldest).build().await.expect("it is there");
        let mut seen = BTreeSet::new();
        for round in 0..3 {
            let mut acks = Vec::new();
            for i in 0..MESSAGES {
                // some larger than a record of TLS
                let body = format!("{round} {i} {}", "x".repeat(if i % 500 == 0 { 40_000 } else { 20 }));
                acks.push(producer.send(body.as_bytes()).await.expect("taken"));
            }
            if round < 2 {
                node.kill();
                node.spawn();
                node.wait_ready().expect("it starts again");
            }
            for ack in acks {
                ack.await.expect("stored");
            }
            while seen.len() < ((round + 1) * MESSAGES) as usize {
                let batch = consumer.next_batch().await.expect("a batch");
                for message in batch.deliveries() {
                    let body = message.body();
                    let head = std::str::from_utf8(&body[..body.len().min(12)]).expect("text");
                    let mut words = head.split(' ').map(|n| n.parse::<u64>());
                    let (Some(Ok(round)), Some(Ok(i))) = (words.next(), words.next()) else { panic!("{head}") };
                    seen.insert((round, i));
                }
                batch.finish();
            }
        }
    });
}

#[test]
fn who_is_not_trusted_is_told_what_to_do() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    let node = pki.node(&[]);
    let (error, text) = refusal(&node, trusting(&stranger));
    assert!(matches!(why(&error), TlsError::UnknownIssuer { .. }), "{text}");
    assert!(text.contains(&stranger.path("ca.pem")) && text.contains("give the CA that signed"), "{text}");

    // 127.0.0.1 does not stand in the certificate
    let (error, text) = refusal(&node, Tls::with_ca(pki.path("ca.pem")));
    assert!(matches!(why(&error), TlsError::WrongName { .. }), "{text}");
    assert!(text.contains("connect to a name in the certificate") && text.contains("node"), "{text}");
    let (error, text) = refusal(&node, trusting(&pki).server_name("no name"));
    assert!(matches!(why(&error), TlsError::ServerName { .. }), "{text}");
    let (error, text) = refusal(&node, Tls::with_ca("/no/such/ca"));
    assert!(matches!(why(&error), TlsError::File(_)) && text.contains("/no/such/ca: cannot be read"), "{text}");

    let without = Client::builder().address(node.native().to_string());
    let error = run(without.connect()).err().expect("refused");
    assert!(matches!(why(&error), TlsError::Wanted), "{error}");
    let plain = Node::start(&[]);
    let error = run(connect(&plain, trusting(&pki))).err().expect("refused");
    assert!(matches!(&error, Error::Tls { source, .. } if matches!(**source, TlsError::NotTls)), "{error:?}");

    pki.sign("node", ExtendedKeyUsagePurpose::ServerAuth, 2001);
    let flags = pki.flags();
    let expired = Node::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let (error, text) = refusal(&expired, trusting(&pki));
    assert!(matches!(why(&error), TlsError::Invalid { .. }) && text.contains("renew the node's --native-tls-cert"), "{text}");
}

#[test]
fn a_node_that_asks_for_a_certificate_gets_one_or_says_so() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    for name in ["client", "other"] {
        pki.sign(name, ExtendedKeyUsagePurpose::ClientAuth, 4000);
    }
    stranger.sign("client", ExtendedKeyUsagePurpose::ClientAuth, 4000);
    let ca = format!("--native-tls-client-ca={}", pki.path("ca.pem"));
    let node = pki.node(&[&ca]);
    run(async {
        let tls = trusting(&pki).identity(pki.path("client.pem"), pki.path("client.key"));
        let client = connect(&node, tls).await.expect("both are trusted");
        let producer = client.producer("t").build().await.expect("a topic");
        producer.send(b"one").await.expect("taken").await.expect("stored");
    });
    for _ in 0..20 {
        let (error, text) = refusal(&node, trusting(&pki));
        assert!(matches!(why(&error), TlsError::CertificateRequired), "{text}");
        let (error, text) = refusal(&node, trusting(&pki).identity(stranger.path("client.pem"), stranger.path("client.key")));
        assert!(matches!(why(&error), TlsError::CertificateRefused { .. }), "{text}");
    }
    let (error, text) = refusal(&node, trusting(&pki).identity(pki.path("client.pem"), pki.path("other.key")));
    assert!(matches!(why(&error), TlsError::Mismatch { .. }) && text.contains("other.key does not fit"), "{text}");
}

#[test]
fn the_load_generator_verifies_over_tls() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    pki.sign("client", ExtendedKeyUsagePurpose::ClientAuth, 4000);
    let ca = format!("--native-tls-client-ca={}", pki.path("ca.pem"));
    let node = pki.node(&[&ca, "--shards=2"]);
    let load = |flags: &[String]| {
        let address = format!("--address={}", node.native());
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
        let course = ["--mode=both", "--verify", "--size=100-30KiB", "--batch=10", "--messages=4000", "--quiet"];
        command.args(["load", "--protocol=native", "--tls-name=node", "--partitions=3", &address]).args(course).args(flags);
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let flag = |name: &str, path: String| format!("--tls-{name}={path}");
    let trusts = flag("ca", pki.path("ca.pem"));
    let shows = [flag("cert", pki.path("client.pem")), flag("key", pki.path("client.key"))];
    let (code, text) = load(&[&[trusts.clone()][..], &shows].concat());
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = load(&[trusts]);
    assert!(code == Some(1) && text.contains("asks for a client certificate (--native-tls-client-ca)"), "{code:?} {text}");
    let (code, text) = load(&[&[flag("ca", stranger.path("ca.pem"))][..], &shows].concat());
    assert!(code == Some(1) && text.contains("signed by no CA in"), "{code:?} {text}");
}
