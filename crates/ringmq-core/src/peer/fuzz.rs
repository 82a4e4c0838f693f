//! Entry points for fuzz/: arbitrary bytes of a peer, cut anywhere, before and after its handshake, given to a core's links.

use super::{LinkEvent, LinkOptions, Links};
use crate::base::NodeId;
use crate::base::{ConnId, CoreId, Lent, Now, Peer, Ticks};
use crate::codec::frame::{Header, Payload, encode};
use crate::codec::peer::frame::FRAME_MAX;
use crate::codec::peer::{ClusterId, Encoder, Hello, Lanes, Layout, VERSION};
use crate::seam::cluster::ClusterNode;
use crate::seam::event::Effect;
use bytes::Bytes;

const OWN: NodeId = NodeId([9; 16]);
const OTHER: NodeId = NodeId([1; 16]);
const CLUSTER: ClusterId = ClusterId([5; 16]);

fn links() -> Links {
    let mut links = Links::new(LinkOptions::new(OWN, CLUSTER, 1, CoreId(0), 2, 1));
    let node = |id: NodeId, name: &str| ClusterNode::new(id, name, "there:1");
    links.set_nodes(Now::default(), &[node(OWN, "own"), node(OTHER, "other")]);
    links
}

fn hello(lanes: u8) -> Vec<u8> {
    let mut pieces = vec![];
    let hello = Hello {
        version: VERSION,
        features: 0,
        node_id: OTHER,
        cluster_id: CLUSTER,
        generation: 1,
        node_version: "",
        layout: Layout { cores: 2, core: 0, placement: Layout::BY_NAME },
        lanes: Lanes(lanes),
        heartbeat_ms: 1000,
        link: 0,
        incarnation: 0,
    };
    Encoder::default().hello(&mut pieces, &hello);
    pieces.concat()
}

/// The first byte says whether a handshake comes first, which connection gets the rest, and how that is cut.
pub fn links_input(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let (mut links, mut now, mut events, mut effects) = (links(), Now::default(), vec![], vec![]);
    let conns = [ConnId(1), ConnId(2)];
    for (conn, lanes) in conns.into_iter().zip([0b011, 0b100]) {
        links.opened(now, conn, Peer("fuzz:1".into()));
        if how & 1 == 1 {
            links.bytes(now, conn, &hello(lanes));
        }
    }
    let mut lent: Option<(ConnId, Lent)> = None;
    for bytes in rest.chunks((how >> 2) as usize + 1) {
        now.ticks = Ticks(now.ticks.0 + 10_000_000);
        let mut bytes = bytes;
        if let Some((conn, mut memory)) = lent.take() {
            memory.put(&mut bytes);
            links.received(now, conn, memory);
        }
        if !bytes.is_empty() {
            links.bytes(now, conns[(how >> 1 & 1) as usize], bytes);
        }
        links.tick(now);
        links.turn_end(now, &mut effects);
        links.take(&mut events);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { conn, bytes } => {
                    assert!(links.owns(conn) && !bytes.is_empty());
                    links.sent(now, conn, bytes.len());
                }
                Effect::SendPieces { conn, pieces } => links.sent(now, conn, pieces.iter().map(Bytes::len).sum()),
                // received bytes go to the lent memory from the next bytes on, and come back with each
                Effect::ReceiveInto { conn, lent: memory } => lent = Some((conn, memory)),
                Effect::Close { conn } | Effect::Move { conn, .. } => links.closed(now, conn),
                other => panic!("not of the acceptor: {other:?}"),
            }
        }
    }
    let is_of_it = |event: &LinkEvent| match event {
        LinkEvent::Connected(node)
        | LinkEvent::Disconnected(node)
        | LinkEvent::Stopping(node)
        | LinkEvent::Message { from: node, .. } => *node == OTHER,
    };
    assert!(events.iter().all(is_of_it));
}

/// Frames of a hostile peer, with valid checksums and sequences. Of each frame: kind, lane, bytes of metadata (by eight), bytes of
/// payload, then both.
pub fn links_frames(mut data: &[u8]) {
    let (mut stream, mut numbers) = (vec![1 | 60 << 2], [1u64, 0, 0]);
    while let Some((&[kind, lane, meta_len, payload_len], rest)) = data.split_first_chunk::<4>() {
        let (metadata, rest) = rest.split_at((meta_len as usize * 8).min(rest.len()));
        let (payload, rest) = rest.split_at((payload_len as usize).min(rest.len()));
        let lane = lane % 4;
        let number = numbers.get_mut(lane as usize).map_or(1, |n| {
            *n += 1;
            *n
        });
        encode(&mut stream, kind, lane, number, metadata, Payload::of(payload), FRAME_MAX);
        stream.extend_from_slice(payload);
        assert!(Header::parse(&stream[1..], FRAME_MAX).is_ok());
        data = rest;
    }
    links_input(&stream);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(data: Vec<u8>) {
            super::links_input(&data);
            super::links_frames(&data);
        }
    }
}
