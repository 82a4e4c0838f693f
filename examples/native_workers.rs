//! A work queue: as many messages at a time as there are workers, each finished when its work is done and requeued when that
//! fails: `cargo run --release --example native_workers [ADDRESS [TOPIC [JOBS]]]`, against `ringmq serve`. It publishes its
//! jobs itself, and every seventh of them fails at the first try.

use ringmq::client::{Client, Delivery, Error, Start};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

const WORKERS: usize = 16;
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Counts of the workers' messages.
#[derive(Default)]
struct Tally {
    done: AtomicU64,
    failed: AtomicU64,
    all_done: Notify,
}

async fn work(tally: Arc<Tally>, jobs: u64, job: Delivery) -> Result<(), String> {
    tokio::time::sleep(Duration::from_millis(1)).await;
    let number: u64 = std::str::from_utf8(job.body()).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if number.is_multiple_of(7) && job.attempts() == 1 {
        tally.failed.fetch_add(1, Ordering::Relaxed);
        return Err(format!("job {number} fails at its first try"));
    }
    if tally.done.fetch_add(1, Ordering::Relaxed) + 1 == jobs {
        tally.all_done.notify_one();
    }
    Ok(())
}

async fn run(address: String, topic: String, jobs: u64) -> Result<(), Error> {
    let client = Client::builder().address(address).client_id("native_workers").connect().await?;
    let consumer = client.consumer(&topic, "workers").start(Start::Newest).max_in_flight(WORKERS as u32);
    let mut consumer = consumer.message_timeout(Duration::from_secs(30)).build().await?;

    let producer = client.producer(&topic).build().await?;
    let mut acks = Vec::new();
    for number in 0..jobs {
        acks.push(producer.send(number.to_string().as_bytes()).await?);
    }
    for ack in acks {
        ack.await?;
    }
    producer.close().await?;

    let tally = Arc::new(Tally::default());
    let working = tally.clone();
    tokio::select! {
        // it goes on until something is wrong
        error = consumer.for_each_concurrent(WORKERS, TRY_AGAIN, move |job| work(working.clone(), jobs, job)) => return Err(error),
        () = tally.all_done.notified() => {}
    }
    // handlers that are not done yet are gone with the future; here there are none, for all jobs are done
    consumer.close().await?;
    let (done, failed) = (tally.done.load(Ordering::Relaxed), tally.failed.load(Ordering::Relaxed));
    println!("{done} jobs done, {failed} of them at the second try");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:4153".into());
    let topic = arguments.next().unwrap_or("example-jobs".into());
    let jobs = arguments.next().map_or(Ok(1000), |n| n.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(run(address, topic, jobs))?)
}
