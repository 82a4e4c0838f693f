//! Pushes to statsd over UDP, with nsqd's names and settings: every interval the cores are asked once, as for /stats.

use super::Node;
use super::statistics::{ask_all, resident_bytes};
use crate::metrics::statsd::{Pushed, memory_lines, packets, prefix};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause between two packets, so that a receiver's buffer is not run over.
const PACKET_PAUSE: Duration = Duration::from_millis(1);

pub async fn push(node: Rc<Node>) {
    let settings = &node.settings;
    let interval = Duration::from_millis(settings.statsd_interval_ms);
    let identity = node.identity();
    let prefix = prefix(&settings.statsd_prefix, &identity.broadcast_address, identity.http_port);
    let quantiles = settings.end_to_end_quantiles();
    let mut last = Pushed::default();
    let mut next = Instant::now() + interval;
    let mut is_failing = false;
    loop {
        sleep_until(next).await;
        next = (next + interval).max(Instant::now());
        let now = Pushed::of(ask_all(&node, None, None, false).await, settings.statsd_exclude_ephemeral);
        let mut lines = now.lines(&last, &quantiles);
        if settings.statsd_mem_stats {
            lines.extend(memory_lines(resident_bytes()));
        }
        last = now;
        let sent = send(&settings.statsd_address, &packets(&prefix, &lines, settings.statsd_udp_packet_size as usize)).await;
        match sent {
            Ok(()) => is_failing = false,
            // Said once: the next push comes soon.
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::warn!(address = settings.statsd_address, %error, "a push to statsd failed; it is tried again at each interval");
            }
            Err(_) => {}
        }
    }
}

/// The address is looked up anew each time: a name may move.
async fn send(address: &str, packets: &[String]) -> std::io::Result<()> {
    let found = tokio::net::lookup_host(address).await?.next();
    let to = found.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"))?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    for packet in packets {
        socket.send(packet.as_bytes()).await?;
        sleep(PACKET_PAUSE).await;
    }
    Ok(())
}
