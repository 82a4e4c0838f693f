//! Publishes messages and says how fast: `cargo run --release --example native_produce [ADDRESS [TOPIC [MESSAGES]]]`, against
//! `ringmq serve`.

use ringmq::client::{Batch, Client, Error};
use std::collections::VecDeque;
use std::time::Instant;

const PER_BATCH: u64 = 1000;
const MESSAGE: [u8; 100] = [b'x'; 100];

async fn produce(address: String, topic: String, messages: u64) -> Result<(), Error> {
    let client = Client::builder().address(address).client_id("native_produce").connect().await?;
    let producer = client.producer(&topic).build().await?;
    let began = Instant::now();
    let mut acks = VecDeque::new();
    let mut left = messages;
    while left > 0 {
        let num = left.min(PER_BATCH);
        let mut batch = Batch::with_capacity(num as usize, num as usize * MESSAGE.len());
        (0..num).for_each(|_| batch.push(&MESSAGE));
        // waits while the window is full
        acks.push_back(producer.send_batch(batch).await?);
        left -= num;
        // those that are answered are looked at; the others are waited for at the end
        while let Some(result) = acks.front().and_then(|ack| ack.now()) {
            result?;
            acks.pop_front();
        }
    }
    for ack in acks {
        ack.await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{messages} messages are durable after {seconds:.3} s: {:.0} per second", messages as f64 / seconds);
    producer.close().await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:4153".into());
    let topic = arguments.next().unwrap_or("example".into());
    let messages = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(produce(address, topic, messages))?)
}
