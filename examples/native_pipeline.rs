//! Consumes a topic, transforms what comes, publishes it to another one, and only then confirms it:
//! `cargo run --release --example native_pipeline [ADDRESS [FROM [TO]]]`. Ends with an interrupt.
//!
//! A message that was published and not yet confirmed when this ends is transformed again by the next run: at least once.

use ringmq::client::{Ack, Batch, Client, Error, Received, Start};
use std::collections::VecDeque;

/// Batches that are published and not confirmed yet.
const AHEAD: usize = 32;

async fn confirm(waiting: &mut VecDeque<(Ack, Received)>) -> Result<(), Error> {
    if let Some((ack, received)) = waiting.pop_front() {
        ack.await?;
        received.finish();
    }
    Ok(())
}

async fn pipeline(address: String, from: String, to: String) -> Result<(), Error> {
    let client = Client::builder().address(address).client_id("native_pipeline").connect().await?;
    let mut consumer = client.consumer(&from, "pipeline").start(Start::Oldest).build().await?;
    let producer = client.producer(&to).build().await?;
    let mut waiting = VecDeque::new();
    loop {
        let next = if waiting.is_empty() {
            Some(consumer.next_batch().await?)
        } else if waiting.len() >= AHEAD {
            None
        } else {
            // the first of two events: another batch, or the oldest one's acknowledgement
            let oldest: &mut (Ack, Received) = &mut waiting[0];
            tokio::select! {
                received = consumer.next_batch() => Some(received?),
                stored = &mut oldest.0 => {
                    stored?;
                    oldest.1.finish();
                    waiting.pop_front();
                    continue;
                }
            }
        };
        match next {
            None => confirm(&mut waiting).await?,
            Some(received) => {
                let mut batch = Batch::with_capacity(received.num() as usize, received.bytes());
                received.bodies().for_each(|body| batch.push(&body.to_ascii_uppercase()));
                waiting.push_back((producer.send_batch(batch).await?, received));
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:4153".into());
    let from = arguments.next().unwrap_or("example".into());
    let to = arguments.next().unwrap_or("example-upper".into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(pipeline(address, from, to))?)
}
