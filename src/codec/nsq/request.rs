//! What a client writes: the other half of [`super::command`], for tests, the simulator and the load generator.
//! The magic ([`super::MAGIC`]) goes out once, before the first of these.

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

pub fn publish(out: &mut Vec<u8>, topic: &str, body: &[u8]) {
    line(out, &[b"PUB", topic.as_bytes()]);
    sized(out, body);
}

pub fn multi_publish<'a>(out: &mut Vec<u8>, topic: &str, bodies: impl Iterator<Item = &'a [u8]> + Clone) {
    line(out, &[b"MPUB", topic.as_bytes()]);
    let (count, bytes) = bodies.clone().fold((0u32, 4), |(n, b), body| (n + 1, b + 4 + body.len()));
    out.extend_from_slice(&(bytes as u32).to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    bodies.for_each(|body| sized(out, body));
}

pub fn subscribe(out: &mut Vec<u8>, topic: &str, channel: &str) {
    line(out, &[b"SUB", topic.as_bytes(), channel.as_bytes()]);
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
