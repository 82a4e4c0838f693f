//! One message to a node and back, over TLS: `cargo run --release --example native_tls -- ADDRESS CA [CERTIFICATE KEY]`,
//! against `ringmq serve --native-tls-cert=... --native-tls-key=...`. ADDRESS is a host that stands in the node's certificate,
//! and the port; CA the PEM file of who signed it. CERTIFICATE and KEY are for a node with `--native-tls-client-ca`.

use ringmq::client::{Client, Error, Start, Tls};

async fn there_and_back(address: String, tls: Tls) -> Result<(), Error> {
    let client = Client::builder().address(address).client_id("native_tls").tls(tls).connect().await?;
    let mut consumer = client.consumer("example_tls", "example").start(Start::Newest).build().await?;
    let producer = client.producer("example_tls").build().await?;
    let at = producer.send(b"hello").await?.await?;
    println!("durable: partition {}", at.partition);
    let message = consumer.next().await?;
    println!("consumed: {:?}", message.body());
    message.finish();
    consumer.close().await?;
    producer.close().await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, tls) = match &arguments[..] {
        [address, ca] => (address, Tls::with_ca(ca)),
        [address, ca, certificate, key] => (address, Tls::with_ca(ca).identity(certificate, key)),
        _ => return Err("usage: native_tls ADDRESS CA [CERTIFICATE KEY]".into()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(there_and_back(address.clone(), tls))?)
}
