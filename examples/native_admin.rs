//! An operator's requests to a node: create a topic, print the places and lengths of its partitions, and set a channel back to the oldest
//! message: `cargo run --release --example native_admin [ADDRESS [TOPIC [CHANNEL]]]`, against `ringmq serve`.

use ringmq::client::{Client, Error, Start};

async fn run(address: String, topic: String, channel: String) -> Result<(), Error> {
    let client = Client::builder().address(address).client_id("native_admin").connect().await?;
    client.ping().await?;
    // one that is there stays as it is
    let made = client.create_topic(&topic, 2).await?;
    // a channel is made by the first who subscribes
    client.consumer(&topic, &channel).build().await?.close().await?;
    for (number, place) in (0..).zip(&made.partitions) {
        let oldest = client.find(&topic, number, Start::Oldest).await?;
        let newest = client.find(&topic, number, Start::Newest).await?;
        println!(
            "{topic}, partition {number}: core {} of {}, {} messages stored, {} of them kept",
            place.core,
            place.address,
            newest.count,
            newest.count - oldest.count
        );
        // refused while several consumers are subscribed; `true` would force it
        let at = client.set_offset(&topic, number, &channel, Start::Oldest, false).await?;
        println!("{topic}, partition {number}: channel {channel} goes on behind {} messages", at.count);
    }
    let names: Vec<String> = client.topics().await?.into_iter().map(|topic| topic.name).collect();
    println!("all topics: {}", names.join(", "));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:4153".into());
    let topic = arguments.next().unwrap_or("example-admin".into());
    let channel = arguments.next().unwrap_or("audit".into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(run(address, topic, channel))?)
}
