//! Consumes messages in batches, until so many have come: `cargo run --release --example native_consume [ADDRESS [TOPIC [MESSAGES]]]`.

use ringmq::client::{Client, Error, Start};
use std::time::Instant;

async fn consume(address: String, topic: String, messages: u64) -> Result<(), Error> {
    let client = Client::builder().address(address).client_id("native_consume").connect().await?;
    let mut consumer = client.consumer(&topic, "example").start(Start::Oldest).build().await?;
    let (mut num, mut bytes) = (0u64, 0);
    let began = Instant::now();
    while num < messages {
        let batch = consumer.next_batch().await?;
        num += batch.num() as u64;
        bytes += batch.bodies().map(<[u8]>::len).sum::<usize>();
        batch.finish();
    }
    consumer.close().await?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{num} messages, {bytes} bytes in {seconds:.3} s: {:.0} per second", num as f64 / seconds);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:4153".into());
    let topic = arguments.next().unwrap_or("example".into());
    let messages = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(consume(address, topic, messages))?)
}
