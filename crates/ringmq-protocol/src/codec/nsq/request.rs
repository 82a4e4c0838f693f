//! Commands that a client writes: the other half of [`super::command`], for tests, the simulator and the load generator. The magic
//! ([`super::MAGIC`]) goes out once, before the first of these.

use crate::base::PartitionId;
use std::fmt::Display;

fn line(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(part);
    }
    out.push(b'\n');
}

fn sized(out: &mut Vec<u8>, body: &[u8]) {
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
}

pub fn identify(out: &mut Vec<u8>, json: &[u8]) {
    line(out, &[b"IDENTIFY"]);
    sized(out, json);
}

pub fn auth(out: &mut Vec<u8>, secret: &[u8]) {
    line(out, &[b"AUTH"]);
    sized(out, secret);
}

/// Appends the command's line: its words, and the partition if there is one.
fn line_to(out: &mut Vec<u8>, parts: &[&[u8]], partition: Option<PartitionId>) {
    line(out, parts);
    if let Some(PartitionId(p)) = partition {
        out.pop();
        line(out, &[b"", &number(p)]);
    }
}

pub fn publish(out: &mut Vec<u8>, topic: &str, body: &[u8]) {
    publish_to(out, topic, None, body);
}

pub fn publish_to(out: &mut Vec<u8>, topic: &str, partition: Option<PartitionId>, body: &[u8]) {
    line_to(out, &[b"PUB", topic.as_bytes()], partition);
    sized(out, body);
}

/// DPUB: no channel delivers it before so many milliseconds have passed.
pub fn publish_deferred(out: &mut Vec<u8>, topic: &str, delay_ms: u64, body: &[u8]) {
    line(out, &[b"DPUB", topic.as_bytes(), &number(delay_ms)]);
    sized(out, body);
}

pub fn multi_publish<'a>(out: &mut Vec<u8>, topic: &str, bodies: impl Iterator<Item = &'a [u8]> + Clone) {
    multi_publish_to(out, topic, None, bodies);
}

pub fn multi_publish_to<'a>(
    out: &mut Vec<u8>,
    topic: &str,
    partition: Option<PartitionId>,
    bodies: impl Iterator<Item = &'a [u8]> + Clone,
) {
    line_to(out, &[b"MPUB", topic.as_bytes()], partition);
    let (count, bytes) = bodies.clone().fold((0u32, 4), |(n, b), body| (n + 1, b + 4 + body.len()));
    out.extend_from_slice(&(bytes as u32).to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    bodies.for_each(|body| sized(out, body));
}

/// MPUB of `count` messages that `write` appends one by one, each with its number: nothing is collected before.
pub fn multi_publish_with(
    out: &mut Vec<u8>,
    topic: &str,
    partition: Option<PartitionId>,
    count: u32,
    mut write: impl FnMut(u32, &mut Vec<u8>),
) {
    line_to(out, &[b"MPUB", topic.as_bytes()], partition);
    sized_with(out, |out| {
        out.extend_from_slice(&count.to_be_bytes());
        (0..count).for_each(|i| sized_with(out, |out| write(i, out)));
    });
}

/// PUB of the message that `write` appends.
pub fn publish_with(out: &mut Vec<u8>, topic: &str, partition: Option<PartitionId>, write: impl FnOnce(&mut Vec<u8>)) {
    line_to(out, &[b"PUB", topic.as_bytes()], partition);
    sized_with(out, write);
}

/// Appends the output of `write`, with its length before it.
fn sized_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

pub fn subscribe(out: &mut Vec<u8>, topic: &str, channel: &str) {
    subscribe_to(out, topic, channel, None);
}

pub fn subscribe_to(out: &mut Vec<u8>, topic: &str, channel: &str, partition: Option<PartitionId>) {
    line_to(out, &[b"SUB", topic.as_bytes(), channel.as_bytes()], partition);
}

pub fn subscribe_ordered(out: &mut Vec<u8>, topic: &str, channel: &str, partition: Option<PartitionId>) {
    line_to(out, &[b"SUB_ORDERED", topic.as_bytes(), channel.as_bytes()], partition);
}

fn number(n: impl Display) -> Vec<u8> {
    n.to_string().into_bytes()
}

pub fn ready(out: &mut Vec<u8>, count: u32) {
    line(out, &[b"RDY", &number(count)]);
}

pub fn finish(out: &mut Vec<u8>, id: &[u8; 16]) {
    line(out, &[b"FIN", id]);
}

pub fn requeue(out: &mut Vec<u8>, id: &[u8; 16], delay_ms: u64) {
    line(out, &[b"REQ", id, &number(delay_ms)]);
}

pub fn touch(out: &mut Vec<u8>, id: &[u8; 16]) {
    line(out, &[b"TOUCH", id]);
}

pub fn close(out: &mut Vec<u8>) {
    line(out, &[b"CLS"]);
}

pub fn nop(out: &mut Vec<u8>) {
    line(out, &[b"NOP"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_in_place_gives_the_same_bytes() {
        let bodies: [&[u8]; 3] = [b"a", b"bc", b""];
        let (mut whole, mut placed) = (Vec::new(), Vec::new());
        multi_publish(&mut whole, "t", bodies.iter().copied());
        publish_to(&mut whole, "t", Some(PartitionId(7)), bodies[1]);
        multi_publish_with(&mut placed, "t", None, 3, |i, out| out.extend_from_slice(bodies[i as usize]));
        publish_with(&mut placed, "t", Some(PartitionId(7)), |out| out.extend_from_slice(bodies[1]));
        assert_eq!(whole, placed);
    }
}
