//! Orders per key: publishes operations of a few accounts, each account's to the partition of its key, and consumes them in
//! that order: `cargo run --release --example native_keyed [ADDRESS [TOPIC [OPERATIONS]]]`, against `ringmq serve`.
//!
//! The channel is ordered: of each partition one message at a time, so that an account's next operation is not seen before the
//! one ahead of it is finished, on whatever consumer of the channel.

use ringmq::client::{Client, Error, Start};
use std::collections::HashMap;

const PARTITIONS: u16 = 4;
const ACCOUNTS: u64 = 10;

async fn run(address: String, topic: String, operations: u64) -> Result<(), Error> {
    let client = Client::builder().address(address).client_id("native_keyed").connect().await?;
    let producer = client.producer(&topic).create_with(PARTITIONS).build().await?;
    // subscribed before anything is published: a channel that begins at the newest message misses none of it
    let mut consumer = client.consumer(&topic, "ledger").start(Start::Newest).ordered().build().await?;

    let mut acks = Vec::new();
    for number in 0..operations {
        let account = format!("account-{}", number % ACCOUNTS);
        acks.push(producer.send_keyed(account.as_bytes(), format!("{account} {number}").as_bytes()).await?);
    }
    for ack in acks {
        ack.await?;
    }
    producer.close().await?;

    let mut last: HashMap<String, u64> = HashMap::new();
    let mut turned = 0;
    for _ in 0..operations {
        let message = consumer.next().await?;
        let text = String::from_utf8_lossy(message.body()).into_owned();
        let (account, number) = text.split_once(' ').unwrap_or((&text, ""));
        let number = number.parse().unwrap_or(0);
        let before = last.insert(account.to_owned(), number);
        // after a lost connection a message may come again; an earlier one never does
        turned += before.is_some_and(|before| before > number) as u64;
        message.finish();
    }
    consumer.close().await?;
    println!("{operations} operations of {} accounts, {turned} out of order", last.len());
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:4153".into());
    let topic = arguments.next().unwrap_or("example-keyed".into());
    let operations = arguments.next().map_or(Ok(1000), |n| n.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(run(address, topic, operations))?)
}
